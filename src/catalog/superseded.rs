//! Entries of lists that later changes supersede, and the folders that hold nothing else.

use super::naming::media_types;
use super::naming::resolve::path_by_rule;
use super::sort::{RunLimits, SMALL_SORT, Sorted, Sorter, SpillFolder};
use super::sort_key::{for_folders_above, push_key, tag};
use super::{CatalogError, Naming, SetId};
use crate::document::{Change, Uri};
use std::cmp::Ordering;
use xxhash_rust::xxh3::xxh3_128;

/// Rows of list entries that do not count: with `extension=type` each change has some sixty, one for each extension.
const ENTRY_LIMITS: RunLimits = RunLimits { bytes: 16 << 20, pairs: 1 << 18, resident: 1 << 18 };

/// What changes supersede, as it becomes known.
pub(super) struct Superseding {
    folder: SpillFolder,
    entries: Sorter,
    /// Twice, to be read along with folders and along with what lies in them.
    candidates: [Sorter; 2],
    has_candidates: bool,
    key: Vec<u8>,
}

impl Superseding {
    /// Spills into `folder`.
    pub(super) fn new(folder: &SpillFolder) -> Superseding {
        let sorter = || Sorter::new(folder, SMALL_SORT);
        Superseding {
            folder: folder.clone(),
            entries: Sorter::new(folder, ENTRY_LIMITS),
            candidates: [sorter(), sorter()],
            has_candidates: false,
            key: Vec::new(),
        }
    }

    /// What the list of `set` has of the resource of `uri` does not count, because of a later change.
    pub(super) fn add_change(
        &mut self,
        set: SetId,
        uri: &Uri,
        change: Change,
        naming: &Naming,
    ) -> Result<(), CatalogError> {
        // It lies at this path, or by its URI at the path of its type.
        let (path, by_rule) = path_by_rule(naming, uri, None);
        self.add(set, uri, &path, by_rule)?;
        if change == Change::Deleted {
            let Superseding { candidates, has_candidates, key, .. } = self;
            let path = key.clone();
            // Nothing takes its place: the folders above may hold nothing any more.
            for_folders_above(&path, key, |folder| {
                *has_candidates = true;
                candidates.iter_mut().try_for_each(|sorter| sorter.add(folder, &[]))
            })?;
        }
        let types = media_types().filter(|_| naming.extension_by_type);
        let typed = types.map(|media_type| path_by_rule(naming, uri, Some(media_type)).0);
        typed.take_while(|typed| *typed != path).try_for_each(|typed| self.add(set, uri, &typed, false))
    }

    fn add(&mut self, set: SetId, uri: &Uri, path: &str, by_rule: bool) -> Result<(), CatalogError> {
        push_key(&mut self.key, path);
        let digest = digest(set, uri.scheme() == "https", (!by_rule).then_some(uri.as_str()));
        let value = [&[tag::SUPERSEDED][..], &digest.to_be_bytes()].concat();
        self.entries.add(&self.key, &value)
    }

    /// The rows of a sorted statement, which stand before those of the lists; and folders that may be empty.
    pub(super) fn finish(self) -> Result<(Sorted, Option<CandidateFolders>), CatalogError> {
        let Superseding { folder, entries, candidates: [folders, above], has_candidates, .. } = self;
        let candidates = CandidateFolders {
            folders: Along::new(folders)?,
            above: Along::new(above)?,
            kept: Sorter::new(&folder, SMALL_SORT),
            last_kept: Vec::new(),
            not_empty: None,
            folder,
            scratch: Vec::new(),
        };
        Ok((entries.finish()?, has_candidates.then_some(candidates)))
    }
}

/// What stands for the entry of a set among those of one path.
pub(super) fn digest(set: SetId, https: bool, uri: Option<&str>) -> u128 {
    let mut bytes = set.0.to_be_bytes().to_vec();
    bytes.push(uri.map_or(u8::from(https), |_| 2));
    bytes.extend_from_slice(uri.unwrap_or_default().as_bytes());
    xxh3_128(&bytes)
}

/// Folders that may hold nothing but superseded entries. Each method is called with paths in the order of the statement.
pub(super) struct CandidateFolders {
    folder: SpillFolder,
    folders: Along,
    above: Along,
    /// Those that hold something all the same, while they are found.
    kept: Sorter,
    /// The one of them that was kept last: what lies in one folder comes together.
    last_kept: Vec<u8>,
    /// The same, all of them.
    not_empty: Option<Along>,
    scratch: Vec<u8>,
}

impl CandidateFolders {
    /// Goes back to the beginning: what they hold is to be found.
    pub(super) fn begin(&mut self) -> Result<(), CatalogError> {
        self.kept = Sorter::new(&self.folder, SMALL_SORT);
        self.last_kept.clear();
        self.not_empty = None;
        self.folders.rewind()?;
        self.above.rewind()
    }

    pub(super) fn contains(&mut self, folder: &[u8]) -> Result<bool, CatalogError> {
        self.folders.reach(folder)
    }

    /// Something lies in `folder`.
    pub(super) fn keep(&mut self, folder: &[u8]) -> Result<(), CatalogError> {
        if self.last_kept == folder || !self.above.reach(folder)? {
            return Ok(());
        }
        self.last_kept.clear();
        self.last_kept.extend_from_slice(folder);
        let (kept, scratch) = (&mut self.kept, &mut self.scratch);
        kept.add(folder, &[])?;
        for_folders_above(folder, scratch, |key| kept.add(key, &[]))
    }

    /// All is known: goes back to the beginning.
    pub(super) fn finish(&mut self) -> Result<(), CatalogError> {
        let kept = std::mem::replace(&mut self.kept, Sorter::new(&self.folder, SMALL_SORT));
        self.not_empty = Some(Along::new(kept)?);
        self.folders.rewind()
    }

    /// Whether nothing is left in `folder`.
    pub(super) fn is_empty(&mut self, folder: &[u8]) -> Result<bool, CatalogError> {
        let Some(not_empty) = &mut self.not_empty else { return Ok(false) };
        Ok(self.folders.reach(folder)? && !not_empty.reach(folder)?)
    }
}

/// A sorted stream that is read up to one key after the other, ascending.
struct Along {
    sorted: Sorted,
}

impl Along {
    fn new(sorter: Sorter) -> Result<Along, CatalogError> {
        Ok(Along { sorted: sorter.finish()? })
    }

    fn rewind(&mut self) -> Result<(), CatalogError> {
        self.sorted.rewind()
    }

    /// Goes on to `key`; whether it is there.
    fn reach(&mut self, key: &[u8]) -> Result<bool, CatalogError> {
        while let Some((next, _)) = self.sorted.peek()? {
            match next.cmp(key) {
                Ordering::Less => self.sorted.next()?,
                Ordering::Equal => return Ok(true),
                Ordering::Greater => return Ok(false),
            };
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{naming, uri};
    use super::*;

    #[test]
    fn a_folder_is_noted_once_however_much_lies_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut superseding = Superseding::new(&SpillFolder::new(folder.path()));
        for gone in ["http://h/a/b/gone", "http://h/a/c/gone"] {
            superseding.add_change(SetId(0), &uri(gone), Change::Deleted, &naming()).unwrap();
        }
        let (_, candidates) = superseding.finish().unwrap();
        let mut candidates = candidates.unwrap();
        candidates.begin().unwrap();
        let (mut b, mut c) = (Vec::new(), Vec::new());
        push_key(&mut b, "a/b");
        push_key(&mut c, "a/c");
        (0..1000).for_each(|_| candidates.keep(&b).unwrap());
        (0..1000).for_each(|_| candidates.keep(&c).unwrap());

        let none = Sorter::new(&candidates.folder, SMALL_SORT);
        let mut kept = std::mem::replace(&mut candidates.kept, none).finish().unwrap();
        let mut rows = 0;
        while kept.next().unwrap().is_some() {
            rows += 1;
        }
        assert_eq!(rows, 4, "each of both, and the folder above for each");
    }
}
