//! What a commit adds to a store's file, held to the room that is left on the disk.

use super::CatalogError;
use super::error::io_error;
use super::sort::SpillFolder;
use super::store::{Store, TableId};
use crate::room::{BETWEEN_LOOKS, Short};

/// Octets of changed pages that LMDB holds in memory before it writes them to the file: `MDB_IDL_UM_MAX` pages under the feature
/// `mdb_idl_logn_13`.
const HELD: u64 = 64 << 20;

/// A page of the file.
const PAGE: u64 = 4096;

/// LMDB keeps its pages a quarter full or more: a record whose neighbours are written too takes four times its octets at most.
const LEAST_FILLED: u64 = 4;

/// Octets that a record takes in a page beside its own and its key's: its head, its place, its checksum.
const BESIDE_A_RECORD: usize = 16;

/// Octets between two words to the room.
const STEP: u64 = BETWEEN_LOOKS / 4;

/// Counts what a transaction writes, from its beginning, or what several do.
pub(super) struct Growth {
    folder: SpillFolder,
    /// Octets that records take which lie behind all others, since the last commit.
    octets: u64,
    /// Octets of pages that are written anew since then, no more than there are.
    pages: u64,
    most_pages: u64,
    /// The key of each table that was written last.
    last: [Vec<u8>; Store::TABLES.len()],
    unsaid: u64,
}

impl Growth {
    /// Of a store on the disk of `folder` in which there is nothing yet.
    pub(super) fn of_empty(folder: &SpillFolder) -> Growth {
        Growth { folder: folder.clone(), octets: 0, pages: 0, most_pages: 0, last: Default::default(), unsaid: 0 }
    }

    /// Of `store`, which LMDB changes by writing each page that is touched to another place.
    pub(super) fn of(store: &Store, folder: &SpillFolder) -> Result<Growth, CatalogError> {
        let most_pages = store.env.real_disk_size()?.max(PAGE);
        Ok(Growth { most_pages, ..Growth::of_empty(folder) })
    }

    /// So many records are written behind all others, which with their keys are so many octets.
    ///
    /// # Errors
    /// Less than is to stay free would be left.
    pub(super) fn appended(&mut self, records: usize, octets: usize) -> Result<(), CatalogError> {
        let taken = (octets + records * BESIDE_A_RECORD) as u64;
        self.octets += taken;
        self.count(taken)
    }

    /// Octets that the transaction takes so far.
    pub(super) fn since_commit(&self) -> u64 {
        self.octets + self.pages
    }

    /// A record is written, or removed, wherever it belongs.
    ///
    /// # Errors
    /// Less than is to stay free would be left.
    pub(super) fn touched(&mut self) -> Result<(), CatalogError> {
        self.pages = self.most_pages.min(self.pages + PAGE);
        self.count(PAGE)
    }

    /// A record of so many octets is written at `key` of a table. One that lies right behind the record before takes its share of a
    /// page, which is in that one's or begins where that one ends; any other is taken to lie in a page of its own.
    ///
    /// # Errors
    /// Less than is to stay free would be left.
    pub(super) fn put(&mut self, table: TableId, key: &[u8], octets: usize) -> Result<(), CatalogError> {
        let last = &mut self.last[table as usize];
        let lies_beside = is_next(last, key);
        last.clear();
        last.extend_from_slice(key);
        if !lies_beside {
            return self.touched();
        }
        let share = PAGE.min((key.len() + octets + BESIDE_A_RECORD) as u64 * LEAST_FILLED);
        self.pages = self.most_pages.min(self.pages + share);
        self.count(share)
    }

    /// The file system knows of all that was counted so far.
    pub(super) fn committed(&mut self) {
        (self.octets, self.pages) = (0, 0);
    }

    fn count(&mut self, octets: u64) -> Result<(), CatalogError> {
        self.unsaid += octets;
        if self.unsaid < STEP {
            return Ok(());
        }
        let SpillFolder { path, room } = &self.folder;
        let taken = room.take(path, std::mem::take(&mut self.unsaid), self.unseen());
        taken.map_err(|short: Short| io_error(path)(short.into()))
    }

    /// Whether there is room for what only the commit writes. So little as is written without asking has it.
    ///
    /// # Errors
    /// Less than is to stay free would be left.
    pub(super) fn fits(&self) -> Result<(), CatalogError> {
        let SpillFolder { path, room } = &self.folder;
        match self.unseen() {
            ..BETWEEN_LOOKS => Ok(()),
            unseen => room.claim(path, unseen).map_err(|short| io_error(path)(short.into())),
        }
    }

    /// Octets that the file system does not know of yet, at most.
    fn unseen(&self) -> u64 {
        HELD.min(self.since_commit())
    }
}

/// Whether `key` is the number behind `last`, so that no record lies between them.
fn is_next(last: &[u8], key: &[u8]) -> bool {
    // What carries over begins with an octet that has become one more, behind which all are zero that were full.
    let carried = key.iter().rev().take_while(|octet| **octet == 0).count();
    let Some(place) = key.len().checked_sub(carried + 1) else { return false };
    last.len() == key.len()
        && last[..place] == key[..place]
        && last[place].checked_add(1) == Some(key[place])
        && last[place + 1..].iter().all(|octet| *octet == u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::store::keys::{entry_key, ino_key};
    use super::*;

    const RECORDS: u64 = 1 << 14;
    const RECORD: usize = 120;

    fn counted() -> Growth {
        let folder = SpillFolder::new(std::path::Path::new("/"));
        Growth { most_pages: u64::MAX, ..Growth::of_empty(&folder) }
    }

    #[test]
    fn records_beside_each_other_count_for_the_pages_that_they_share_and_others_for_a_page_each() {
        let (mut beside, mut apart) = (counted(), counted());
        for number in 1..=RECORDS {
            beside.put(TableId::Inodes, &ino_key(number), RECORD).unwrap();
            beside.put(TableId::Entries, &entry_key(7, number), RECORD).unwrap();
            apart.put(TableId::Inodes, &ino_key(2 * number), RECORD).unwrap();
        }

        assert_eq!(apart.unseen(), HELD);
        assert!(beside.unseen() < HELD / 3, "{} octets", beside.unseen());
    }

    /// LMDB writes each page that is touched to another place: the file grows by these.
    #[test]
    fn a_file_grows_by_no_more_than_was_counted() {
        for step in [1, 2, 3, 50] {
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open(folder.path()).unwrap();
            let mut growth = counted();
            let mut before = 0;
            for is_counted in [false, true] {
                before = store.env.real_disk_size().unwrap();
                let mut txn = store.env.write_txn().unwrap();
                for number in (1..=RECORDS).step_by(if is_counted { step } else { 1 }) {
                    let record = [0; RECORD];
                    if is_counted {
                        growth.put(TableId::Inodes, &ino_key(number), RECORD).unwrap();
                    }
                    store.inodes.put(&mut txn, &ino_key(number), &record).unwrap();
                }
                txn.commit().unwrap();
            }
            let grown = store.env.real_disk_size().unwrap() - before;

            // What is above the leaves, and the list of pages that are free.
            let above = (growth.pages / 32).max(16 * PAGE);
            assert!(
                grown > 0 && growth.pages + above >= grown,
                "every {step}: {} counted, {grown} grown",
                growth.pages
            );
        }
    }

    #[test]
    fn the_next_key_is_the_next_number() {
        for number in [0, 1, 254, 255, 256, 65_535, (1 << 24) - 1, 1 << 24] {
            assert!(is_next(&ino_key(number), &ino_key(number + 1)), "{number}");
            assert!(!is_next(&ino_key(number), &ino_key(number + 2)), "{number}");
            assert!(!is_next(&ino_key(number + 1), &ino_key(number)), "{number}");
            assert!(!is_next(&entry_key(1, number), &entry_key(2, number + 1)), "{number}");
        }
        assert!(!is_next(&[], &ino_key(1)) && !is_next(&ino_key(0), &ino_key(0)));
    }
}
