//! One transaction over the store that readers see: all of it is committed, or nothing of it stays. The budget of each commit is the room
//! that is left on the disk.

use super::super::error::io_error;
use super::super::sort::SpillFolder;
use super::super::store::codec::{number, seal};
use super::super::store::keys::ino_key;
use super::super::store::{TableId, TreeStore};
use super::super::{Catalog, CatalogError};
use crate::platform::free_space::NoSpace;
use crate::platform::ino::Ino;
use crate::platform::inode_set::InodeSet;
use crate::platform::lmdb;
use heed::RwTxn;
use std::sync::PoisonError;

/// Bytes of changed pages that LMDB holds in memory before it writes them to the file: `MDB_IDL_UM_MAX` pages under the feature
/// `mdb_idl_logn_13`.
const HELD: u64 = 64 << 20;

/// A page of the file: it is written again where a record in it is written or removed.
pub(super) const PAGE: u64 = lmdb::PAGE as u64;

/// Bytes that a record behind all others takes besides its own and its key's: its head, its slot, its checksum.
pub(super) const RECORD_OVERHEAD: usize = 16;

/// Writes rows, each with its checksum.
pub struct Transaction<'c> {
    store: &'c TreeStore,
    pub(super) txn: RwTxn<'c>,
    budget: WriteBudget,
    has_written: bool,
    /// Inodes that lose their names.
    orphans: Vec<Ino>,
    /// Room for a row.
    row: Vec<u8>,
}

/// Runs `write`, drops the orphans that the kernel has forgotten, and commits where anything was written. The caller holds
/// `catalog.writer`.
///
/// # Errors
/// Nothing of it stays, and the forgotten orphans are for the next transaction to drop.
pub fn in_transaction<T>(
    catalog: &Catalog,
    store: &TreeStore,
    write: impl FnOnce(&mut Transaction<'_>) -> Result<T, CatalogError>,
) -> Result<T, CatalogError> {
    // LMDB writes each page that is touched to another page, and no more pages than there are.
    let budget = WriteBudget::new(&catalog.spill_folder, store.env.real_disk_size()?.max(PAGE));
    let (txn, orphans, row) = (store.env.write_txn()?, Vec::new(), Vec::new());
    let mut transaction = Transaction { store, txn, budget, has_written: false, orphans, row };
    let mut dropped = InodeSet::default();
    let written = write(&mut transaction).and_then(|written| {
        dropped = std::mem::take(&mut *catalog.forgotten.lock().unwrap_or_else(PoisonError::into_inner));
        dropped.iter().try_for_each(|ino| transaction.remove(TableId::Orphans, &ino_key(ino.0)))?;
        Ok(written)
    });
    let Transaction { txn, budget, has_written, orphans, .. } = transaction;
    let committed = written.and_then(|written| {
        if has_written {
            budget.fits()?;
            catalog.keeping(&orphans, || store.commit(txn))?;
        }
        catalog.known_folders.forget(&dropped);
        Ok(written)
    });
    if committed.is_err() {
        catalog.forgotten.lock().unwrap_or_else(PoisonError::into_inner).extend(dropped.iter());
        if has_written {
            store.fit_length();
        }
    }
    committed
}

impl Transaction<'_> {
    /// The row as it is now, changes of this transaction included.
    pub fn row(&self, table: TableId, key: &[u8]) -> Result<Option<&[u8]>, CatalogError> {
        self.store.get(&self.txn, table, key)
    }

    /// Writes a row.
    pub fn put(&mut self, table: TableId, key: &[u8], row: &[u8]) -> Result<(), CatalogError> {
        self.budget.count(PAGE)?;
        self.has_written = true;
        if table == TableId::Orphans {
            self.orphans.extend(number(key).map(Ino));
        }
        self.row.clear();
        self.row.extend_from_slice(row);
        seal(key, &mut self.row);
        Ok(self.store.table(table).put(&mut self.txn, key, &self.row)?)
    }

    /// Removes the row, where there is one.
    pub fn remove(&mut self, table: TableId, key: &[u8]) -> Result<(), CatalogError> {
        if self.store.table(table).delete(&mut self.txn, key)? {
            self.has_written = true;
            self.budget.count(PAGE)?;
        }
        Ok(())
    }
}

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
