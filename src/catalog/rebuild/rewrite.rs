//! A revision that shares little with the one before is written whole into a store of its own, which then takes the place of
//! the old one: sorted by table and key, so that every table is appended, and of each commit only the last pages are written again. The rows are sorted on a
//! thread of their own while more are being made.

use super::super::CatalogError;
use super::super::sort::{RunLimits, Sorter, SpillFolder};
use super::super::store::codec::{damaged, unseal};
use super::super::store::record::NodeRecord;
use super::super::store::{Store, TableId, meta};
use super::super::write_budget::WriteBudget;
use super::beside::Beside;
use super::first::{TRANSACTION, Target};
use super::transaction::Appending;
use heed::{RoTxn, RwTxn};
use std::sync::mpsc::Receiver;

/// Rows in memory; the arena of the statement is free by now.
const LIMITS: RunLimits = match cfg!(test) {
    true => RunLimits { octets: 1 << 14, pairs: 1 << 7, resident: 1 << 10 },
    false => RunLimits { octets: 36 << 20, pairs: 1 << 19, resident: 1 << 20 },
};

/// Names that differ from which on it pays, and the part of those looked at: every so many.
pub(in crate::catalog) const REWRITTEN_LEAST: u64 = 20_000;
pub(in crate::catalog) const REWRITTEN_PART: u64 = 3;

/// First octet of a sorted value.
mod tag {
    /// The record follows, yet unsealed.
    pub const ROW: u8 = 0;
    /// Removes what is at the key.
    pub const NOTHING: u8 = 1;
}

/// Octets of a batch.
const BATCH: usize = if cfg!(test) { 256 } else { 256 << 10 };

/// What is to be written, and where; dropped before it is committed it leaves no trace.
pub(in crate::catalog) struct Rewrite {
    successor: Store,
    spill_folder: SpillFolder,
    batch: Batch,
    sorting: Option<Beside<Batch, Sorter>>,
}

/// Rows, one behind the other: by table, then key; of several rows of one key the last counts, but names join.
#[derive(Default)]
struct Batch {
    octets: Vec<u8>,
    /// The end of each one's key, and its own.
    ends: Vec<(u32, u32)>,
}

/// Sorts what comes, on a thread of its own.
fn begin_sorting(spill_folder: &SpillFolder) -> Result<Beside<Batch, Sorter>, CatalogError> {
    let mut rows = Sorter::new(spill_folder, LIMITS);
    Beside::begin("catalog-sorter", "the thread that sorts the catalog", move |coming: Receiver<Batch>| {
        for batch in coming {
            let mut start = 0;
            for (between, end) in batch.ends {
                let (between, end) = (between as usize, end as usize);
                rows.add(&batch.octets[start..between], &batch.octets[between..end])?;
                start = end;
            }
        }
        Ok(rows)
    })
}

impl Rewrite {
    /// Into `successor`, which is empty; what is no part of the tree and stays is taken over from `store`.
    pub(in crate::catalog) fn new(
        successor: &Store,
        store: &Store,
        old: &RoTxn<'_>,
        spill_folder: &SpillFolder,
    ) -> Result<Rewrite, CatalogError> {
        let (successor, spill_folder) = (successor.clone(), spill_folder.clone());
        let mut rewrite = Rewrite { successor, spill_folder, batch: Batch::default(), sorting: None };
        for id in [TableId::Orphans, TableId::Held] {
            for pair in store.table(id).iter(old)? {
                let (key, sealed) = pair?;
                let record = unseal(key, sealed)?;
                rewrite.put(Target::Row(id), key, |row| row.extend_from_slice(record))?;
            }
        }
        // It goes on giving inodes where the other ends.
        let instance = store.meta(old, meta::INSTANCE)?.ok_or_else(|| damaged("absence", meta::INSTANCE))?;
        rewrite.put(Target::Row(TableId::Meta), meta::INSTANCE, |row| row.extend_from_slice(instance))?;
        Ok(rewrite)
    }

    /// Writes the record that `encode` appends.
    pub(in crate::catalog) fn put(
        &mut self,
        target: Target,
        key: &[u8],
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), CatalogError> {
        let (table, tag) = match target {
            Target::Entries => (TableId::Entries, tag::ROW),
            Target::Names => (TableId::Names, tag::ROW),
            Target::Inodes => (TableId::Inodes, tag::ROW),
            Target::Row(table) => (table, tag::ROW),
            Target::Nothing(table) => (table, tag::NOTHING),
        };
        let Batch { octets, ends } = &mut self.batch;
        octets.push(table as u8);
        octets.extend_from_slice(key);
        let between = octets.len();
        octets.push(tag);
        encode(octets);
        ends.push((between as u32, octets.len() as u32));
        if octets.len() < BATCH { Ok(()) } else { self.hand_over() }
    }

    fn hand_over(&mut self) -> Result<(), CatalogError> {
        let sorting = match self.sorting.take() {
            Some(sorting) => sorting,
            None => begin_sorting(&self.spill_folder)?,
        };
        let next = Batch { octets: Vec::with_capacity(BATCH + 1024), ends: Vec::with_capacity(self.batch.ends.len()) };
        self.sorting = sorting.hand_over(std::mem::replace(&mut self.batch, next))?;
        Ok(())
    }

    /// Writes everything, in as many transactions as it takes.
    pub(in crate::catalog) fn commit(mut self) -> Result<(), CatalogError> {
        self.hand_over()?;
        let Rewrite { successor, spill_folder, sorting, .. } = self;
        let rows = sorting.map_or_else(|| Ok(Sorter::new(&spill_folder, LIMITS)), Beside::end)?;
        let mut rows = rows.finish()?.read_once();
        let mut txn = successor.env.write_txn()?;
        let tables: Result<Vec<_>, _> =
            successor.tables().map(|table| Appending::new(table, &txn)).into_iter().collect();
        let mut tables = tables?;
        let mut row = Row::default();
        let mut budget = WriteBudget::of_empty(&spill_folder);
        while let Some((key, value)) = rows.next()? {
            if key != row.key {
                row.write(&mut tables, &mut txn)?;
                row.begin(key);
            }
            budget.appended(1, key.len() + value.len())?;
            row.take(value)?;
            if budget.since_commit() >= TRANSACTION {
                successor.commit(txn)?;
                budget.committed();
                txn = successor.env.write_txn()?;
            }
        }
        row.write(&mut tables, &mut txn)?;
        budget.fits()?;
        successor.commit(txn)
    }
}

/// What all rows of one key come to.
#[derive(Default)]
struct Row {
    /// Table, and key within.
    key: Vec<u8>,
    record: Vec<u8>,
    is_there: bool,
}

impl Row {
    fn begin(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.record.clear();
        self.is_there = false;
    }

    fn take(&mut self, value: &[u8]) -> Result<(), CatalogError> {
        let Some((kind, record)) = value.split_first() else { return Err(damaged("sense", &self.key)) };
        let is = |table: TableId| self.key.first() == Some(&(table as u8));
        if is(TableId::Entries) && self.is_there {
            // A folder, whose times are settled when all that lies in it was written.
            let sense = || damaged("sense", &self.key);
            let before = NodeRecord::decode(&self.record).ok_or_else(sense)?.mtime;
            let node = NodeRecord::decode(record).ok_or_else(sense)?;
            self.record.clear();
            NodeRecord { mtime: node.mtime.max(before), ..node }.encode(&mut self.record);
            return Ok(());
        }
        if !is(TableId::Names) {
            self.record.clear();
        }
        self.record.extend_from_slice(record);
        self.is_there = *kind == tag::ROW;
        Ok(())
    }

    fn write(&mut self, tables: &mut [Appending], txn: &mut RwTxn<'_>) -> Result<(), CatalogError> {
        let Some((table, key)) = self.key.split_first() else { return Ok(()) };
        match tables.get_mut(usize::from(*table)) {
            Some(table) if self.is_there => table.put(txn, key, &mut self.record),
            Some(_) => Ok(()),
            None => Err(damaged("table", key)),
        }
    }
}
