//! A transaction of a commit: what lies behind the end of a table is appended, without a search.

use super::super::CatalogError;
use super::super::octets::seal;
use super::super::store::{Store, Table};
use heed::{PutFlags, RwTxn};

/// A transaction of a commit, and where its tables end.
pub(super) struct Transaction<'c> {
    pub txn: RwTxn<'c>,
    pub entries: Appending,
    pub names: Appending,
    pub inodes: Appending,
    pub orphans: Appending,
}

/// A table and the greatest key in it: what lies behind is appended, without a search.
pub(super) struct Appending {
    pub table: Table,
    last: Vec<u8>,
}

impl<'c> Transaction<'c> {
    /// Begins; nobody else writes until it ends.
    pub(super) fn begin(store: &'c Store) -> Result<Transaction<'c>, CatalogError> {
        let txn = store.env.write_txn()?;
        Ok(Transaction {
            entries: Appending::new(store.entries, &txn)?,
            names: Appending::new(store.names, &txn)?,
            inodes: Appending::new(store.inodes, &txn)?,
            orphans: Appending::new(store.orphans, &txn)?,
            txn,
        })
    }
}

impl Appending {
    pub(super) fn new(table: Table, txn: &RwTxn<'_>) -> Result<Appending, CatalogError> {
        Ok(Appending { table, last: table.last(txn)?.map(|(key, _)| key.to_vec()).unwrap_or_default() })
    }

    /// Whether `key` may be in the table.
    pub(super) fn holds(&self, key: &[u8]) -> bool {
        key <= &self.last[..]
    }

    /// Seals the record and puts it.
    pub(super) fn put(&mut self, txn: &mut RwTxn<'_>, key: &[u8], record: &mut Vec<u8>) -> Result<(), CatalogError> {
        seal(key, record);
        self.put_sealed(txn, key, record)
    }

    /// Puts a record that is sealed.
    pub(super) fn put_sealed(&mut self, txn: &mut RwTxn<'_>, key: &[u8], record: &[u8]) -> Result<(), CatalogError> {
        let flags = if self.holds(key) {
            PutFlags::empty()
        } else {
            self.last.clear();
            self.last.extend_from_slice(key);
            PutFlags::APPEND
        };
        Ok(self.table.put_with_flags(txn, flags, key, record)?)
    }
}
