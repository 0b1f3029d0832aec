//! One transaction over the store that readers see: all of it is committed, or nothing of it stays.

use super::super::store::codec::{number, seal};
use super::super::store::keys::ino_key;
use super::super::store::{TableId, TreeStore};
use super::super::{Catalog, CatalogError};
use super::budget::{PAGE, WriteBudget};
use crate::platform::ino::Ino;
use crate::platform::inode_set::InodeSet;
use heed::RwTxn;
use std::sync::PoisonError;

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
