//! The resources that a baseline would take away, noted on the disk while it is compared with the revision before: to be counted, and
//! stated after all where they are held back.

use super::ingest::Rows;
use super::naming::resolve::path_of_record;
use super::sort::{RunLimits, Sorted, Sorter, SpillFolder};
use super::sort_key::{push_key, slashed, tag};
use super::store::codec::{Decoder, damaged, push_varint};
use super::store::record::ResourceRecord;
use super::{Catalog, CatalogError, Held, Naming, SetId};
use crate::document::Uri;

/// Of these there are few, or the memory of the list itself is free by now.
const LIMITS: RunLimits = RunLimits { bytes: 8 << 20, pairs: 1 << 17, resident: 1 << 20 };

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

impl Leaving<'_> {
    /// Those of its sets which keep it where this much is held back.
    pub(super) fn held(&self, held: &Held) -> Vec<SetId> {
        self.resource.sets.iter().filter(|set| held.holds(*set)).collect()
    }
}

/// Resources by the path that rules give them in the new tree.
pub(super) struct Departing {
    sorter: Sorter,
    /// Inodes that no longer stand for their resource because it has another name.
    moved: Vec<u64>,
}

/// All of them are known.
pub(super) struct Departed {
    noted: Sorted,
    moved: Vec<u64>,
}

impl Departing {
    /// Spills into `folder`.
    pub(super) fn new(folder: &SpillFolder) -> Departing {
        Departing { sorter: Sorter::new(folder, LIMITS), moved: Vec::new() }
    }

    /// Notes that the resource of `uri` leaves `sets`. `ino` stood for it, where it leaves the tree with them.
    pub(super) fn add(
        &mut self,
        uri: &Uri,
        resource: &ResourceRecord<'_>,
        sets: &[SetId],
        ino: Option<u64>,
        (catalog, naming): (&Catalog, &Naming),
    ) -> Result<(), CatalogError> {
        let found = path_of_record(naming, uri, resource, &catalog.symbols);
        let (path, _) = found.ok_or_else(|| damaged("resource", uri.as_str().as_bytes()))?;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        push_key(&mut key, &path);
        push_varint(&mut value, ino.unwrap_or(0));
        resource.push_belonging(Some(uri.as_str()), sets, resource.member, &mut value);
        self.sorter.add(&key, &value)
    }

    /// The resource that `ino` stood for has another name now.
    pub(super) fn moved(&mut self, ino: u64) {
        self.moved.push(ino);
    }

    pub(super) fn finish(mut self) -> Result<Departed, CatalogError> {
        self.moved.sort_unstable();
        Ok(Departed { noted: self.sorter.finish()?, moved: self.moved })
    }
}

impl Departed {
    /// Shows `visit` everything that leaves.
    pub(super) fn each(
        &mut self,
        visit: &mut dyn FnMut(&Leaving<'_>) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        self.noted.rewind()?;
        while let Some((key, value)) = self.noted.next()? {
            let sense = || damaged("resource", key);
            let mut value = Decoder(value);
            let ino = value.varint().ok_or_else(sense)?;
            if self.moved.binary_search(&ino).is_err() {
                let resource = ResourceRecord::decode(value.0).ok_or_else(sense)?;
                let uri = resource.uri.and_then(|uri| Uri::parse(uri).ok()).ok_or_else(sense)?;
                let path = slashed(&key[1..]).ok_or_else(sense)?;
                visit(&Leaving { uri: &uri, path: &path, resource, is_last: ino != 0 })?;
            }
        }
        Ok(())
    }

    /// What is `held` of them, as rows of a sorted statement, folders included.
    pub(super) fn kept(&mut self, held: &Held, catalog: &Catalog, naming: &Naming) -> Result<Sorted, CatalogError> {
        let mut rows = Rows::new(&catalog.spill_folder, LIMITS);
        self.each(&mut |leaving| {
            let sets = leaving.held(held);
            let Leaving { uri, resource, .. } = leaving;
            match sets.is_empty() {
                true => Ok(()),
                false => rows.add_record(uri, resource, &sets, &[tag::KEPT, 0], resource.lastmod, (catalog, naming)),
            }
        })?;
        rows.close()?;
        rows.sorter.finish()
    }
}
