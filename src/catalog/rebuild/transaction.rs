//! A transaction of a commit: what lies behind the end of a table is appended, without a search.
//!
//! LMDB looks each page up that it goes by on its way to the last one, in a list of all that are written. Where much is appended, a
//! cursor that stays at the end goes no way at all, as long as the record is known to fit there ([`LastLeaf`]).

use super::super::CatalogError;
use super::super::store::codec::seal;
use super::super::store::{Store, Table};
use heed::types::Bytes;
use heed::{PutFlags, RwTxn};

/// Octets of a page's head, of a record's, and of its place in the page (`PAGEHDRSZ`, `NODESIZE` and `indx_t` of LMDB).
const PAGE_HEAD: usize = 16;
const RECORD_HEAD: usize = 8;
const RECORD_PLACE: usize = 2;

/// A transaction of a commit, and where its tables end.
pub(in crate::catalog) struct Transaction<'c> {
    pub txn: RwTxn<'c>,
    pub entries: Appending,
    pub names: Appending,
    pub inodes: Appending,
    pub orphans: Appending,
}

/// A table and the greatest key in it: what lies behind is appended, without a search.
pub(in crate::catalog) struct Appending {
    pub table: Table,
    last: Vec<u8>,
    leaf: LastLeaf,
}

/// What is known of the last page of a table's records. A wrong number would leave pages half empty, no worse.
struct LastLeaf {
    page_size: usize,
    /// Octets that it has room for; `None`: not known.
    room: Option<usize>,
}

impl<'c> Transaction<'c> {
    /// Begins; no other thread writes until it ends.
    pub(in crate::catalog) fn begin(store: &'c Store) -> Result<Transaction<'c>, CatalogError> {
        let txn = store.env.write_txn()?;
        Ok(Transaction {
            entries: Appending::new(store.entries, &txn)?,
            names: Appending::new(store.names, &txn)?,
            inodes: Appending::new(store.inodes, &txn)?,
            orphans: Appending::new(store.orphans, &txn)?,
            txn,
        })
    }

    /// Commits, and begins another that goes on where this one ends.
    pub(in crate::catalog) fn go_on(self, store: &'c Store) -> Result<Transaction<'c>, CatalogError> {
        store.commit(self.txn)?;
        Ok(Transaction { txn: store.env.write_txn()?, ..self })
    }
}

impl LastLeaf {
    /// Octets that a record takes in a page; `None` where it has pages of its own.
    fn taken(&self, key: &[u8], record: &[u8]) -> Option<usize> {
        let octets = RECORD_HEAD + key.len() + record.len();
        // LMDB has two records in each page at least (`me_nodemax`).
        let most = (self.page_size - PAGE_HEAD) / 2 / 2 * 2 - RECORD_PLACE;
        (octets <= most).then(|| octets.next_multiple_of(2) + RECORD_PLACE)
    }

    /// Whether one that takes so much, behind all others, begins a new page.
    fn begins_another(&mut self, taken: usize) -> bool {
        match self.room.and_then(|room| room.checked_sub(taken)) {
            Some(room) => {
                self.room = Some(room);
                false
            }
            None => {
                self.room = Some(self.page_size - PAGE_HEAD - taken);
                true
            }
        }
    }
}

impl Appending {
    pub(in crate::catalog) fn new(table: Table, txn: &RwTxn<'_>) -> Result<Appending, CatalogError> {
        let last = table.last(txn)?.map(|(key, _)| key.to_vec()).unwrap_or_default();
        let page_size = table.stat(txn)?.page_size as usize;
        Ok(Appending { table, last, leaf: LastLeaf { page_size, room: None } })
    }

    /// Whether `key` may be in the table.
    pub(in crate::catalog) fn holds(&self, key: &[u8]) -> bool {
        key <= &self.last[..]
    }

    /// Seals the record and puts it.
    pub(in crate::catalog) fn put(
        &mut self,
        txn: &mut RwTxn<'_>,
        key: &[u8],
        record: &mut Vec<u8>,
    ) -> Result<(), CatalogError> {
        seal(key, record);
        self.put_sealed(txn, key, record)
    }

    /// Puts a record that is sealed.
    pub(in crate::catalog) fn put_sealed(
        &mut self,
        txn: &mut RwTxn<'_>,
        key: &[u8],
        record: &[u8],
    ) -> Result<(), CatalogError> {
        self.leaf.room = None;
        let flags = if self.holds(key) {
            PutFlags::empty()
        } else {
            self.ends_with(key);
            PutFlags::APPEND
        };
        Ok(self.table.put_with_flags(txn, flags, key, record)?)
    }

    /// Puts records that are sealed, in their order, faster where they are many and lie behind the end.
    pub(in crate::catalog) fn put_all<'r>(
        &mut self,
        txn: &mut RwTxn<'_>,
        records: impl Iterator<Item = (&'r [u8], &'r [u8])>,
    ) -> Result<(), CatalogError> {
        let mut records = records.peekable();
        loop {
            if self.leaf.room.is_some() {
                self.append(txn, &mut records)?;
            }
            let Some((key, record)) = records.next() else { return Ok(()) };
            let (behind, taken) = (!self.holds(key), self.leaf.taken(key, record));
            let before = self.table.stat(txn)?.leaf_pages;
            self.put_sealed(txn, key, record)?;
            if let Some(taken) = taken.filter(|_| behind)
                && self.table.stat(txn)?.leaf_pages > before
            {
                self.leaf.begins_another(taken);
            }
        }
    }

    /// Puts those of the next records that lie behind the end and in pages with others.
    fn append<'r>(
        &mut self,
        txn: &mut RwTxn<'_>,
        records: &mut std::iter::Peekable<impl Iterator<Item = (&'r [u8], &'r [u8])>>,
    ) -> Result<(), CatalogError> {
        let mut cursor = self.table.iter_mut(txn)?;
        loop {
            let Some((key, record)) = records.peek().copied().filter(|(key, _)| !self.holds(key)) else {
                return Ok(());
            };
            let Some(taken) = self.leaf.taken(key, record) else { return Ok(()) };
            // Without the flag LMDB stays in the page that the cursor is in; with it a full one is left as full as it is.
            let flags = if self.leaf.begins_another(taken) { PutFlags::APPEND } else { PutFlags::empty() };
            // SAFETY: nothing that was read of the table is held.
            if let Err(failure) = unsafe { cursor.put_current_with_options::<Bytes>(flags, key, record) } {
                self.leaf.room = None;
                return Err(failure.into());
            }
            self.ends_with(key);
            records.next();
        }
    }

    fn ends_with(&mut self, key: &[u8]) {
        self.last.clear();
        self.last.extend_from_slice(key);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::store::keys::ino_key;
    use super::*;
    use std::collections::BTreeMap;

    type Pair = (Vec<u8>, Vec<u8>);

    /// Records of lengths without pattern, each of `numbers` as its key.
    fn records(numbers: impl Iterator<Item = u64>) -> Vec<Pair> {
        let mut state = 1_u64;
        let mut length = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // A few have pages of their own, or nearly.
            if (state >> 40).is_multiple_of(50) { 1500 + (state >> 33) % 4000 } else { (state >> 33) % 200 }
        };
        numbers.map(|number| (ino_key(number).to_vec(), vec![number as u8; length() as usize])).collect()
    }

    fn pairs(records: &[Pair]) -> impl Iterator<Item = (&[u8], &[u8])> {
        records.iter().map(|(key, record)| (&key[..], &record[..]))
    }

    fn written(store: &Store, table: Table) -> Vec<Pair> {
        let txn = store.env.read_txn().unwrap();
        table
            .iter(&txn)
            .unwrap()
            .map(|pair| pair.unwrap())
            .map(|(key, record)| (key.to_vec(), record.to_vec()))
            .collect()
    }

    #[test]
    fn what_is_appended_lies_as_close_as_what_is_put_one_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let records = records(1..20_000);

        let mut txn = Transaction::begin(&store).unwrap();
        for batch in records.chunks(777) {
            txn.inodes.put_all(&mut txn.txn, pairs(batch)).unwrap();
            pairs(batch).for_each(|(key, record)| txn.orphans.put_sealed(&mut txn.txn, key, record).unwrap());
            txn = txn.go_on(&store).unwrap();
        }
        store.commit(txn.txn).unwrap();

        assert!(written(&store, store.inodes) == records);
        let txn = store.env.read_txn().unwrap();
        let leaves = |table: Table| table.stat(&txn).unwrap().leaf_pages;
        assert_eq!(leaves(store.inodes), leaves(store.orphans));
    }

    #[test]
    fn records_come_in_any_order() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        // Runs that lie behind all others, between them, and over what is there.
        let runs = [1..500, 1000..2000, 600..700, 1990..2500, 400..610, 2500..4000];
        let records: Vec<_> = records(runs.into_iter().flatten());

        let mut txn = Transaction::begin(&store).unwrap();
        for batch in records.chunks(97) {
            txn.inodes.put_all(&mut txn.txn, pairs(batch)).unwrap();
        }
        store.commit(txn.txn).unwrap();

        let expected: BTreeMap<_, _> = records.into_iter().collect();
        assert!(written(&store, store.inodes) == expected.into_iter().collect::<Vec<_>>());
    }
}
