//! The numbers that a revision ends with: no later one gives any of them again.

use super::CatalogError;
use super::store::codec::NUMBER_LIMIT;
use super::store::record::RevisionRecord;
use super::store::{ROOT, ROOT_ENTRY};

#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub revision: u64,
    pub next_ino: u64,
    pub next_entry: u64,
}

impl Numbers {
    /// Before the first revision; the root's inode and entry id are given.
    pub(super) const FIRST: Numbers = Numbers { revision: 0, next_ino: ROOT + 1, next_entry: ROOT_ENTRY + 1 };

    pub(super) fn give_ino(&mut self) -> Result<u64, CatalogError> {
        give(&mut self.next_ino, "inodes")
    }

    pub(super) fn give_entry(&mut self) -> Result<u64, CatalogError> {
        give(&mut self.next_entry, "entry ids")
    }
}

impl From<&RevisionRecord> for Numbers {
    fn from(revision: &RevisionRecord) -> Numbers {
        let RevisionRecord { number, next_ino, next_entry, .. } = *revision;
        Numbers { revision: number, next_ino, next_entry }
    }
}

/// The next number of a kind; a catalog that has used all is rebuilt.
fn give(next: &mut u64, what: &str) -> Result<u64, CatalogError> {
    let number = *next;
    if number >= NUMBER_LIMIT {
        return Err(CatalogError::Damaged(format!("all {what} are used")));
    }
    *next += 1;
    Ok(number)
}
