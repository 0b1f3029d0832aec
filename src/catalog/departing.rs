//! The resources that a baseline would take away, noted on the disk while it is compared with the revision before: to be counted, and
//! stated after all where they are held back.

use super::fact::Rows;
use super::sort::{Sorted, Sorter, SpillFolder};
use super::store::codec::{damaged, number};
use super::store::keys::ino_key;
use super::store::record::ResourceRecord;
use super::{CatalogError, Held, Naming, SetId};
use crate::document::Uri;

/// Bytes of them in memory: they are few, or the memory of the list itself is free by now.
const MOST: usize = 8 << 20;

/// A resource that leaves the tree, or some of its sets.
pub(super) struct Leaving<'r> {
    pub uri: &'r Uri,
    /// Its record in the revision before, a member of the sets that it leaves alone.
    pub resource: ResourceRecord<'r>,
    /// Whether it is in no other set.
    pub is_last: bool,
}

/// Resources by the inode that stood for them, where they leave the tree; those that only leave some of their sets by 0. Before them is
/// noted which inodes only have another name.
pub(super) struct Departing {
    sorter: Sorter,
    /// How many leave, those included that only have another name.
    pub count: u64,
}

/// All of them are known.
pub(super) struct Departed(Sorted);

impl Departing {
    /// Spills into `folder`.
    pub(super) fn new(folder: &SpillFolder) -> Departing {
        Departing { sorter: Sorter::new(folder, MOST), count: 0 }
    }

    /// Notes that the resource of `uri` leaves `sets`. `ino` stood for it, where it leaves the tree with them.
    pub(super) fn add(
        &mut self,
        uri: &Uri,
        resource: &ResourceRecord<'_>,
        sets: &[SetId],
        ino: Option<u64>,
    ) -> Result<(), CatalogError> {
        let record = resource.belonging(Some(uri.as_str()), sets, resource.member);
        self.count += 1;
        self.sorter.add(&[&ino_key(ino.unwrap_or(0))[..], &[1]].concat(), &record)
    }

    /// The resource that `ino` stood for has another name now.
    pub(super) fn moved(&mut self, ino: u64) -> Result<(), CatalogError> {
        self.sorter.add(&[&ino_key(ino)[..], &[0]].concat(), &[])
    }

    /// All of them; none stays here.
    pub(super) fn finish(&mut self) -> Result<Departed, CatalogError> {
        Ok(Departed(self.sorter.split_off()?.finish()?))
    }
}

impl Departed {
    /// Shows `visit` everything that leaves.
    pub(super) fn each(
        &mut self,
        visit: &mut dyn FnMut(&Leaving<'_>) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        self.0.rewind()?;
        let mut moved = 0;
        while let Some((key, value)) = self.0.next()? {
            let sense = || damaged("resource", key);
            let ino = number(key).ok_or_else(sense)?;
            if value.is_empty() {
                moved = ino;
            } else if ino == 0 || ino != moved {
                let resource = ResourceRecord::decode(value).ok_or_else(sense)?;
                let uri = resource.uri.and_then(|uri| Uri::parse(uri).ok()).ok_or_else(sense)?;
                visit(&Leaving { uri: &uri, resource, is_last: ino != 0 })?;
            }
        }
        Ok(())
    }

    /// What is `held` of them, as rows of a sorted statement, folders included.
    pub(super) fn kept(&mut self, held: &Held, naming: &Naming, folder: &SpillFolder) -> Result<Sorted, CatalogError> {
        let mut rows = Rows::new(folder, MOST);
        self.each(&mut |Leaving { uri, resource, .. }| {
            let sets: Vec<SetId> = resource.sets.iter().filter(|set| held.holds(*set)).collect();
            if sets.is_empty() { Ok(()) } else { rows.add_kept(naming, (uri, resource), &sets, false) }
        })?;
        rows.close()?;
        rows.sorter.finish()
    }
}
