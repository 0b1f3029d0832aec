//! The resources that a baseline would take away, noted on the disk while it is compared with the revision before: to be counted, and
//! stated after all where they are held back.

use super::folders::OpenFolders;
use super::losses::Departures;
use super::naming::resolve::{path_of_record, uri};
use super::sort::{RunLimits, Sorted, Sorter, SpillFolder};
use super::sort_key::{FIRST_SEEN, push_key, slashed, tag};
use super::store::codec::{Octets, damaged, push_varint};
use super::store::record::ResourceRecord;
use super::store::symbols::Symbols;
use super::{CatalogError, Departure, Held, Naming, SetId};
use crate::document::{Timestamp, Uri};

/// Of these there are few, or the memory of the list itself is free by now.
const LIMITS: RunLimits = RunLimits { octets: 8 << 20, pairs: 1 << 17, resident: 1 << 20 };

/// A resource that leaves the tree, or some of its sets.
pub(super) struct Leaving<'r> {
    pub uri: &'r Uri,
    /// Its path by rule.
    pub path: &'r str,
    /// Its record in the revision before, a member of the sets that it leaves alone.
    pub resource: ResourceRecord<'r>,
    /// Whether it is in no other set.
    pub is_last: bool,
}

/// Resources by the path that rules give them in the new tree.
pub(super) struct Departing {
    folder: SpillFolder,
    sorter: Sorter,
    /// Inodes that no longer stand for their resource because it has another name.
    moved: Vec<u64>,
}

/// All of them are known.
pub(super) struct Departed {
    folder: SpillFolder,
    noted: Sorted,
    moved: Vec<u64>,
}

impl Departing {
    /// Spills into `folder`.
    pub(super) fn new(folder: &SpillFolder) -> Departing {
        Departing { folder: folder.clone(), sorter: Sorter::new(folder, LIMITS), moved: Vec::new() }
    }

    /// Notes that the resource of `uri` leaves `sets`. `ino` stood for it, where it leaves the tree with them.
    pub(super) fn add(
        &mut self,
        (uri, resource, sets): (&Uri, &[u8], &[SetId]),
        ino: Option<u64>,
        naming: &Naming,
        symbols: &Symbols,
    ) -> Result<(), CatalogError> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        push_varint(&mut value, ino.unwrap_or(0));
        push_kept(&mut key, &mut value, (uri, resource, sets), false, naming, symbols)?;
        self.sorter.add(&key, &value)
    }

    /// The resource that `ino` stood for has another name now.
    pub(super) fn moved(&mut self, ino: u64) {
        self.moved.push(ino);
    }

    pub(super) fn finish(mut self) -> Result<Departed, CatalogError> {
        self.moved.sort_unstable();
        Ok(Departed { folder: self.folder, noted: self.sorter.finish()?, moved: self.moved })
    }
}

impl Departed {
    /// Shows `visit` the sort key and what is stated of each, and whether it leaves the tree.
    fn visit(
        &mut self,
        visit: &mut dyn FnMut(&[u8], &[u8], bool) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        self.noted.rewind()?;
        while let Some((key, value)) = self.noted.next()? {
            let mut value = Octets(value);
            let ino = value.varint().ok_or_else(|| damaged("inode", key))?;
            if self.moved.binary_search(&ino).is_err() {
                visit(key, value.0, ino != 0)?;
            }
        }
        Ok(())
    }

    /// Shows `visit` everything that leaves.
    pub(super) fn each(
        &mut self,
        naming: &Naming,
        visit: &mut dyn FnMut(&Leaving<'_>) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        self.visit(&mut |key, stated, is_last| {
            let sense = || damaged("resource", key);
            let resource = stated.get(2..).and_then(ResourceRecord::decode).ok_or_else(sense)?;
            let path = slashed(&key[1..]).ok_or_else(sense)?;
            let uri = uri(&resource, &path, naming).ok_or_else(sense)?;
            visit(&Leaving { uri: &uri, path: &path, resource, is_last })
        })
    }

    /// How many leave which sets.
    pub(super) fn count(&mut self) -> Result<Vec<Departure>, CatalogError> {
        let mut departures = Departures::default();
        self.visit(&mut |key, stated, is_last| {
            let resource = stated.get(2..).and_then(ResourceRecord::decode).ok_or_else(|| damaged("resource", key))?;
            departures.count(resource.sets.iter(), is_last);
            Ok(())
        })?;
        Ok(departures.into_vec())
    }

    /// What is `held` of them, as rows of a sorted statement, folders included.
    pub(super) fn kept(&mut self, held: &Held) -> Result<Sorted, CatalogError> {
        let mut stated = Sorter::new(&self.folder, LIMITS);
        let mut folders = OpenFolders::new();
        self.visit(&mut |key, value, _| {
            let sense = || damaged("resource", key);
            let (head, resource) = value.split_at_checked(2).ok_or_else(sense)?;
            let resource = ResourceRecord::decode(resource).ok_or_else(sense)?;
            let sets = held_of(&resource, held);
            if sets.is_empty() {
                return Ok(());
            }
            folders.enter_above(key, &mut stated)?;
            folders.see(resource.lastmod.unwrap_or(FIRST_SEEN));
            let mut kept = head.to_vec();
            resource.push_belonging(resource.uri, &sets, resource.member, &mut kept);
            stated.add(key, &kept)
        })?;
        folders.close(&mut stated)?;
        stated.finish()
    }
}

/// The sets of a resource that leaves them which are held back.
pub(super) fn held_of(resource: &ResourceRecord<'_>, held: &Held) -> Vec<SetId> {
    let is_held = |set: &SetId| match held {
        Held::Nothing => false,
        Held::All => true,
        Held::Of(sets) => sets.contains(set),
    };
    resource.sets.iter().filter(is_held).collect()
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
) -> Result<Option<Timestamp>, CatalogError> {
    let sense = || damaged("resource", uri.as_str().as_bytes());
    let record = ResourceRecord::decode(resource).ok_or_else(sense)?;
    let (path, by_rule) = path_of_record(naming, uri, &record, symbols).ok_or_else(sense)?;
    push_key(key, &path);
    value.push(tag::KEPT);
    value.push(u8::from(held));
    record.push_belonging((!by_rule).then_some(uri.as_str()), sets, record.member, value);
    Ok(record.lastmod)
}
