//! The resources that a baseline would take away, noted while it is merged: counted for the decision, and stated once more where they are held back.

use super::folders::OpenFolders;
use super::losses::Departures;
use super::naming::resolve::path_of_record;
use super::sort::{RunLimits, Sorted, Sorter, SpillFolder};
use super::sort_key::{FIRST_SEEN, push_key, tag};
use super::store::codec::{Octets, damaged, push_varint};
use super::store::record::ResourceRecord;
use super::store::symbols::Symbols;
use super::{CatalogError, Departure, Held, Naming, SetId};
use crate::document::{Timestamp, Uri};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Of these there are few, or the memory of the list itself is free by now.
const LIMITS: RunLimits = RunLimits { octets: 8 << 20, pairs: 1 << 17, resident: 1 << 20 };

/// Resources by the path that rules give them in the new tree.
pub(super) struct Going {
    folder: SpillFolder,
    sorter: Sorter,
    /// Inodes that do not stand for their resource any more because it has another name.
    moved: Vec<u64>,
}

impl Going {
    /// Spills into `folder`.
    pub(super) fn new(folder: &SpillFolder) -> Going {
        Going { folder: folder.clone(), sorter: Sorter::new(folder, LIMITS), moved: Vec::new() }
    }

    /// Notes that the resource of `uri` would go from `sets`, and with them from the tree unless another set or name has it. `ino`
    /// stood for it, 0 where that does not matter.
    pub(super) fn add(
        &mut self,
        uri: &Uri,
        ino: u64,
        resource: &[u8],
        (sets, is_last): (&[SetId], bool),
        naming: &Naming,
        symbols: &Symbols,
    ) -> Result<(), CatalogError> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        push_varint(&mut value, ino);
        value.push(u8::from(is_last));
        push_kept(&mut key, &mut value, (uri, resource, sets), false, naming, symbols)?;
        self.sorter.add(&key, &value)
    }

    /// The resource that `ino` stood for has another name now.
    pub(super) fn moved(&mut self, ino: u64) {
        self.moved.push(ino);
    }

    /// All that goes, once the whole tree is known.
    pub(super) fn finish(mut self) -> Result<Gone, CatalogError> {
        self.moved.sort_unstable();
        Ok(Gone { folder: self.folder, noted: self.sorter.finish()?, moved: self.moved })
    }
}

/// What a baseline takes away.
pub(super) struct Gone {
    folder: SpillFolder,
    noted: Sorted,
    moved: Vec<u64>,
}

impl Gone {
    /// Counts what goes.
    pub(super) fn departures(&mut self) -> Result<Vec<Departure>, CatalogError> {
        let mut departures = Departures::default();
        self.each(&mut |key, is_last, value| {
            let resource = value.get(2..).and_then(ResourceRecord::decode).ok_or_else(|| damaged("resource", key))?;
            departures.count(resource.sets.iter(), is_last);
            Ok(())
        })?;
        Ok(departures.into_vec())
    }

    /// What goes and is to be held back, as a stream that states it, folders included.
    pub(super) fn kept(mut self, held: &Held) -> Result<Sorted, CatalogError> {
        let mut stated = Sorter::new(&self.folder, LIMITS);
        let mut folders = OpenFolders::new();
        self.each(&mut |key, _, value| {
            let value = match held {
                Held::Nothing => return Ok(()),
                Held::All => Cow::Borrowed(value),
                Held::Of(sets) => kept_of(Octets(value), sets).ok_or_else(|| damaged("resource", key))?,
            };
            if value.is_empty() {
                return Ok(());
            }
            folders.enter_above(key, &mut stated)?;
            folders.see(kept_time(Octets(&value)).unwrap_or(FIRST_SEEN));
            stated.add(key, &value)
        })?;
        folders.close(&mut stated)?;
        stated.finish()
    }

    /// Visits key, whether it leaves the tree, and value of what goes.
    fn each(
        &mut self,
        visit: &mut dyn FnMut(&[u8], bool, &[u8]) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        self.noted.rewind()?;
        while let Some((key, value)) = self.noted.next()? {
            let mut value = Octets(value);
            let ino = value.varint().ok_or_else(|| damaged("inode", key))?;
            let is_last = value.take(1).ok_or_else(|| damaged("inode", key))? == [1];
            if self.moved.binary_search(&ino).is_err() {
                visit(key, is_last, value.0)?;
            }
        }
        Ok(())
    }
}

/// Appends the sort key and value by which a resource of the revision before is stated once more, for these sets alone.
/// `held`: it is known to be held back.
pub(super) fn push_kept(
    key: &mut Vec<u8>,
    value: &mut Vec<u8>,
    (uri, resource, sets): (&Uri, &[u8], &[SetId]),
    held: bool,
    naming: &Naming,
    symbols: &Symbols,
) -> Result<(), CatalogError> {
    let sense = || damaged("resource", uri.as_str().as_bytes());
    let record = ResourceRecord::decode(resource).ok_or_else(sense)?;
    let (path, by_rule) = path_of_record(naming, uri, &record, symbols).ok_or_else(sense)?;
    push_key(key, &path);
    value.push(tag::KEPT);
    value.push(u8::from(held));
    record.push_belonging((!by_rule).then_some(uri.as_str()), sets, record.member, value);
    Ok(())
}

/// What [`push_kept`] stated, for those of its sets alone that are among `of`; empty where none is.
fn kept_of<'v>(value: Octets<'v>, of: &BTreeSet<SetId>) -> Option<Cow<'v, [u8]>> {
    let (head, resource) = value.0.split_at_checked(2)?;
    let record = ResourceRecord::decode(resource)?;
    let sets: Vec<SetId> = record.sets.iter().filter(|set| of.contains(set)).collect();
    let mut kept = Vec::new();
    if !sets.is_empty() {
        kept.extend_from_slice(head);
        record.push_belonging(record.uri, &sets, record.member, &mut kept);
    }
    Some(Cow::Owned(kept))
}

/// The `lastmod` of what [`push_kept`] stated.
pub(super) fn kept_time(mut value: Octets<'_>) -> Option<Timestamp> {
    value.take(2)?;
    ResourceRecord::decode(value.0)?.lastmod
}
