//! The budget of a commit: bytes that it adds to a store's file, within the room that is left on the disk.

use super::super::CatalogError;
use super::super::error::io_error;
use super::super::sort::SpillFolder;
use crate::platform::free_space::NoSpace;
use crate::platform::lmdb;

/// Bytes of changed pages that LMDB holds in memory before it writes them to the file: `MDB_IDL_UM_MAX` pages under the feature
/// `mdb_idl_logn_13`.
const HELD: u64 = 64 << 20;

/// A page of the file: it is written again where a record in it is written or removed.
pub(super) const PAGE: u64 = lmdb::PAGE as u64;

/// Bytes that a record behind all others takes besides its own and its key's: its head, its slot, its checksum.
pub(super) const RECORD_OVERHEAD: usize = 16;

/// Counts the bytes that are written into a store.
pub(super) struct WriteBudget {
    folder: SpillFolder,
    /// Bytes since the last commit, at most `most`: the file system may not know of them.
    pub(super) uncommitted: u64,
    most: u64,
    unchecked: u64,
}

impl WriteBudget {
    /// A budget for a store on the disk of `folder`. One transaction writes `most` bytes of pages, however many records they
    /// hold.
    pub(super) fn new(folder: &SpillFolder, most: u64) -> WriteBudget {
        WriteBudget { folder: folder.clone(), uncommitted: 0, most, unchecked: 0 }
    }

    /// Counts bytes of pages that are written.
    ///
    /// # Errors
    /// Less than is to stay free would be left.
    pub(super) fn count(&mut self, bytes: u64) -> Result<(), CatalogError> {
        self.uncommitted = self.most.min(self.uncommitted + bytes);
        self.unchecked += bytes;
        let SpillFolder { path, room } = &self.folder;
        if self.unchecked < room.step() / 4 {
            return Ok(());
        }
        let taken = room.reserve(path, std::mem::take(&mut self.unchecked), self.unseen());
        taken.map_err(|short: NoSpace| io_error(path)(short.into()))
    }

    /// Checks that there is room for what only the commit writes. A few bytes always have it.
    ///
    /// # Errors
    /// Less than is to stay free would be left.
    pub(super) fn fits(&self) -> Result<(), CatalogError> {
        let SpillFolder { path, room } = &self.folder;
        match self.unseen() {
            unseen if unseen < room.step() => Ok(()),
            unseen => room.reserve_now(path, unseen).map_err(|short| io_error(path)(short.into())),
        }
    }

    /// Bytes that the file system does not know of yet, at most.
    fn unseen(&self) -> u64 {
        HELD.min(self.uncommitted)
    }
}
