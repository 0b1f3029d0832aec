//! Entries as rows of the sorted statement, with the folders that they imply. Each thread that enters some has a share of its own.

use super::naming::media_types;
use super::naming::resolve::path_by_rule;
use super::sort::{LARGE_SORT, Sorter, SpillFolder};
use super::sort_key::{FIRST_SEEN, Tag, push_key, split};
use super::store::codec::push_time;
use super::store::record::{ResourceRecord, push_resource};
use super::{Catalog, CatalogError, Naming, SetId};
use crate::document::{Entry, PackageMember, Timestamp, Uri};
use xxhash_rust::xxh3::xxh3_128;

/// Rows on their way into the sorter.
pub(super) struct Rows {
    pub sorter: Sorter,
    folders: OpenFolders,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// Entries of a list that one of several threads adds to a baseline.
pub struct Share<'b> {
    naming: &'b Naming,
    set: SetId,
    rows: Rows,
}

/// A part of what was added to a [`Share`].
pub struct Shared(pub(super) Sorter);

impl<'b> Share<'b> {
    /// As [`super::Baseline::add`].
    ///
    /// # Errors
    /// What does not fit into memory could not be spilled (the disk is full): the share is given up.
    pub fn add(&mut self, entry: &Entry) -> Result<(), CatalogError> {
        self.rows.add_entry(Tag::File, self.naming, self.set, entry, None)
    }

    /// Everything that was added since the last part.
    ///
    /// # Errors
    /// The rest could not be spilled (the disk is full): the share is given up.
    pub fn part(&mut self) -> Result<Shared, CatalogError> {
        self.rows.close()?;
        Ok(Shared(self.rows.sorter.split_off()?))
    }
}

impl Catalog {
    /// For entries that another thread adds; they count as added at [`super::Baseline::join`].
    pub fn share<'c>(&self, naming: &'c Naming, set: SetId) -> Share<'c> {
        // There are several at once.
        Share { naming, set, rows: Rows::new(&self.spill_folder, LARGE_SORT / 4 * 3) }
    }
}

impl Rows {
    pub(super) fn new(spill_folder: &SpillFolder, most: usize) -> Rows {
        let sorter = Sorter::new(spill_folder, most);
        Rows { sorter, folders: OpenFolders::default(), key: Vec::new(), value: Vec::new() }
    }

    /// Adds a file, which `member` of a package may hold, or what a package holds.
    pub(super) fn add_entry(
        &mut self,
        tag: Tag,
        naming: &Naming,
        set: SetId,
        entry: &Entry,
        member: Option<&PackageMember>,
    ) -> Result<(), CatalogError> {
        let (path, by_rule) = path_by_rule(naming, &entry.loc, entry.media_type.as_deref());
        push_key(&mut self.key, &path, tag);
        if tag == Tag::File {
            self.folders.see(&self.key, entry.lastmod, &mut self.sorter)?;
        }
        self.value.clear();
        push_resource(&mut self.value, entry, !by_rule, &[set], member);
        self.sorter.add(&self.key, &self.value)
    }

    /// Adds a resource that no list states, as a member of `sets` and `time` its newest; `value` makes a value of its record.
    pub(super) fn add_record(
        &mut self,
        tag: Tag,
        naming: &Naming,
        (uri, record): (&Uri, &ResourceRecord<'_>),
        sets: &[SetId],
        time: Option<Timestamp>,
        value: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Result<(), CatalogError> {
        let (path, by_rule) = path_by_rule(naming, uri, record.media_type);
        push_key(&mut self.key, &path, tag);
        self.folders.see(&self.key, time, &mut self.sorter)?;
        let record = record.belonging((!by_rule).then_some(uri.as_str()), sets, record.member);
        self.sorter.add(&self.key, &value(&record))
    }

    /// Adds a resource whose deletion is held back from `sets`; `is_held`: that is known.
    pub(super) fn add_kept(
        &mut self,
        naming: &Naming,
        (uri, record): (&Uri, &ResourceRecord<'_>),
        sets: &[SetId],
        is_held: bool,
    ) -> Result<(), CatalogError> {
        self.add_record(Tag::Kept, naming, (uri, record), sets, record.lastmod, |record| {
            [&[u8::from(is_held)], record].concat()
        })
    }

    /// What the list of `set` has of the resource of `uri` does not count, because of a later change.
    pub(super) fn supersede(&mut self, naming: &Naming, set: SetId, uri: &Uri) -> Result<(), CatalogError> {
        let Rows { sorter, key, .. } = self;
        let mut add = |path: &str, by_rule: bool| {
            push_key(key, path, Tag::Superseded);
            let digest = digest(set, uri.scheme() == "https", (!by_rule).then_some(uri.as_str()));
            sorter.add(key, &digest.to_be_bytes())
        };
        // It lies at this path, or by its URI at the path of its type.
        let (plain, by_rule) = path_by_rule(naming, uri, None);
        add(&plain, by_rule)?;
        let types = media_types().filter(|_| naming.extension_by_type);
        let typed = types.map(|media_type| path_by_rule(naming, uri, Some(media_type)).0);
        typed.take_while(|typed| *typed != plain).try_for_each(|typed| add(&typed, false))
    }

    /// Leaves all folders.
    pub(super) fn close(&mut self) -> Result<(), CatalogError> {
        while !self.folders.stack.is_empty() {
            self.folders.leave(&mut self.sorter)?;
        }
        Ok(())
    }
}

/// What stands for the entry of a set among those of one path.
pub(super) fn digest(set: SetId, https: bool, uri: Option<&str>) -> u128 {
    let mut bytes = set.0.to_be_bytes().to_vec();
    bytes.push(uri.map_or(u8::from(https), |_| 2));
    bytes.extend_from_slice(uri.unwrap_or_default().as_bytes());
    xxh3_128(&bytes)
}

/// The folders above the entry added last. A folder's row is written when the entries leave it, so that it carries the newest time of
/// what came by.
#[derive(Default)]
struct OpenFolders {
    /// The path of the innermost one, segments separated by NUL.
    path: Vec<u8>,
    /// For each, outermost first: the end of its path, and the newest time beneath. The first is the root, whose path is empty.
    stack: Vec<(usize, Timestamp)>,
    key: Vec<u8>,
}

impl OpenFolders {
    /// An entry of this key and time: leaves the folders that do not lie on the way to it, and enters those that do.
    fn see(&mut self, key: &[u8], time: Option<Timestamp>, sorter: &mut Sorter) -> Result<(), CatalogError> {
        let ((_, path), _) = split(&key[..key.len() - 2]);
        let time = time.unwrap_or(FIRST_SEEN);
        if self.stack.is_empty() {
            self.stack.push((0, time));
        }
        if path != self.path {
            while !self.innermost_holds(path) {
                self.leave(sorter)?;
            }
            let entered = self.path.len();
            self.path.extend_from_slice(&path[entered..]);
            let ends = (entered + 1..=path.len()).filter(|at| *at == path.len() || path[*at] == 0);
            self.stack.extend(ends.map(|at| (at, time)));
        }
        if let Some((_, newest)) = self.stack.last_mut() {
            *newest = time.max(*newest);
        }
        Ok(())
    }

    fn innermost_holds(&self, path: &[u8]) -> bool {
        let end = self.path.len();
        path.starts_with(&self.path) && (end == 0 || path.len() == end || path[end] == 0)
    }

    fn leave(&mut self, sorter: &mut Sorter) -> Result<(), CatalogError> {
        let Some((_, newest)) = self.stack.pop() else { return Ok(()) };
        self.key.clear();
        self.key.push(self.stack.len() as u8);
        self.key.extend_from_slice(&self.path);
        self.key.extend_from_slice(&[0, Tag::Folder as u8]);
        let mut value = Vec::new();
        push_time(&mut value, newest);
        sorter.add(&self.key, &value)?;
        if let Some((end, above)) = self.stack.last_mut() {
            *above = newest.max(*above);
            self.path.truncate(*end);
        }
        Ok(())
    }
}
