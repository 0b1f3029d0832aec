//! What a first revision writes: it is noted in batches, and where there are several a thread of its own writes one while the next is
//! being made, into a store that no reader sees before all of it is there. Nothing is there to be read in between.

use super::super::CatalogError;
use super::super::sort::SpillFolder;
use super::super::store::codec::{push_room_for_seal, seal_in_place};
use super::super::store::{Store, Successor, TableId};
use super::super::write_budget::WriteBudget;
use super::beside::Beside;
use super::transaction::Transaction;
use std::ops::Range;
use std::sync::mpsc::Receiver;

/// Octets of a batch; in unit tests few, so that nearly every revision needs the thread.
const BATCH: usize = if cfg!(test) { 256 } else { 256 << 10 };

/// Octets that a transaction appends, so few that LMDB finds them soon: it holds the pages of one in memory, and looks each page that it
/// goes by up in a list of those. A commit costs the pages at the end of each table once more.
pub(in crate::catalog) const TRANSACTION: u64 = if cfg!(test) { 4096 } else { 4 << 20 };

/// What is to be written; dropped before it is committed it leaves no trace. What fits into one batch needs no thread, and no other store:
/// on a disk that is nearly full there is room for it.
pub(in crate::catalog) struct FirstRevision<'c> {
    store: &'c Store,
    spill_folder: &'c SpillFolder,
    batch: Batch,
    writing: Option<Beside<Message, ()>>,
    /// What the thread writes into.
    successor: Option<Successor>,
}

/// Where a record goes, or that one goes.
#[derive(Clone, Copy)]
pub(in crate::catalog) enum Target {
    Entries,
    Inodes,
    /// Entry ids, which join those that the key has.
    Names,
    Row(TableId),
    /// Removes what is at the key of this table.
    Nothing(TableId),
}

impl Target {
    /// Whether its records end in a checksum.
    fn is_sealed(self) -> bool {
        matches!(self, Target::Entries | Target::Inodes | Target::Row(_))
    }
}

/// What is to be written, in order: keys and, behind each, its record, which is sealed when it is written, but for those of names.
#[derive(Default)]
struct Batch {
    octets: Vec<u8>,
    records: Vec<(Target, Range<usize>, Range<usize>)>,
}

enum Message {
    Write(Batch),
    Commit(Batch),
}

impl<'c> FirstRevision<'c> {
    /// Into `store`, which is empty, or one that takes its place, on the disk of `spill_folder`.
    pub(in crate::catalog) fn new(store: &'c Store, spill_folder: &'c SpillFolder) -> FirstRevision<'c> {
        FirstRevision { store, spill_folder, batch: Batch::default(), writing: None, successor: None }
    }

    /// Whether there is anything to be written.
    pub(in crate::catalog) fn is_begun(&self) -> bool {
        self.writing.is_some() || !self.batch.records.is_empty()
    }

    /// Writes the record that `encode` appends.
    #[inline]
    pub(in crate::catalog) fn put(
        &mut self,
        target: Target,
        key: &[u8],
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), CatalogError> {
        let Batch { octets, records } = &mut self.batch;
        let start = octets.len();
        octets.extend_from_slice(key);
        let between = octets.len();
        encode(octets);
        if target.is_sealed() {
            push_room_for_seal(octets);
        }
        records.push((target, start..between, between..octets.len()));
        if octets.len() < BATCH { Ok(()) } else { self.hand_over(Message::Write) }
    }

    /// Hands the batch to the thread, which is begun here at the latest.
    fn hand_over(&mut self, message: fn(Batch) -> Message) -> Result<(), CatalogError> {
        let writing = match self.writing.take() {
            Some(writing) => writing,
            None => {
                let successor = self.successor.insert(self.store.of_the_same_instance(self.spill_folder)?);
                let (store, budget) = (successor.store().clone(), WriteBudget::of_empty(self.spill_folder));
                let write = move |coming| write_all(&store, budget, &coming);
                Beside::begin("catalog-writer", "the thread that writes the catalog", write)?
            }
        };
        let records = Vec::with_capacity(self.batch.records.len());
        let next = Batch { octets: Vec::with_capacity(BATCH + 1024), records };
        self.writing = writing.hand_over(message(std::mem::replace(&mut self.batch, next)))?;
        Ok(())
    }

    /// Commits the last of it; the store that is to take the place of the other, if there is one.
    pub(in crate::catalog) fn commit(mut self) -> Result<Option<Successor>, CatalogError> {
        if self.writing.is_some() {
            self.hand_over(Message::Commit)?;
            self.writing.take().map_or(Ok(()), Beside::end)?;
            return Ok(self.successor.take());
        }
        let mut txn = Transaction::begin(self.store)?;
        std::mem::take(&mut self.batch).write(self.store, &mut txn, &mut Vec::new())?;
        self.store.commit(txn.txn)?;
        Ok(None)
    }
}

impl Drop for FirstRevision<'_> {
    /// Waits until nothing of it is left, so that another can begin.
    fn drop(&mut self) {
        if let Some(writing) = self.writing.take() {
            // A caller that has not committed does not ask for the outcome.
            let _ = writing.end();
        }
    }
}

/// Writes what comes, in as many transactions as it takes.
fn write_all(store: &Store, mut budget: WriteBudget, coming: &Receiver<Message>) -> Result<(), CatalogError> {
    let mut txn = Transaction::begin(store)?;
    let mut record = Vec::new();
    for message in coming {
        match message {
            Message::Write(batch) => {
                budget.appended(batch.records.len(), batch.octets.len())?;
                batch.write(store, &mut txn, &mut record)?;
                if budget.since_commit() >= TRANSACTION {
                    txn = txn.go_on(store)?;
                    budget.committed();
                }
            }
            Message::Commit(batch) => {
                budget.appended(batch.records.len(), batch.octets.len())?;
                batch.write(store, &mut txn, &mut record)?;
                budget.fits()?;
                return store.commit(txn.txn);
            }
        }
    }
    Ok(())
}

impl Batch {
    /// Writes everything, table by table, each in its order; `record` is room for the ids of one name.
    fn write(mut self, store: &Store, txn: &mut Transaction<'_>, record: &mut Vec<u8>) -> Result<(), CatalogError> {
        // By who writes, who has less to do than who hands over.
        for (_, key, place) in self.records.iter().filter(|(target, ..)| target.is_sealed()) {
            seal_in_place(&mut self.octets[key.start..place.end]);
        }
        let of = |wanted: fn(&Target) -> bool| {
            let records = self.records.iter().filter(move |(target, ..)| wanted(target));
            records.map(|(target, key, place)| (*target, (&self.octets[key.clone()], &self.octets[place.clone()])))
        };
        let sealed = |wanted| of(wanted).map(|(_, sealed)| sealed);
        txn.entries.put_all(&mut txn.txn, sealed(|target| matches!(target, Target::Entries)))?;
        txn.inodes.put_all(&mut txn.txn, sealed(|target| matches!(target, Target::Inodes)))?;
        for (_, (key, ids)) in of(|target| matches!(target, Target::Names)) {
            record.clear();
            if txn.names.holds(key)
                && let Some(present) = store.get(&txn.txn, store.names, key)?
            {
                record.extend_from_slice(present);
            }
            record.extend_from_slice(ids);
            txn.names.put(&mut txn.txn, key, record)?;
        }
        for (target, (key, sealed)) in of(|target| matches!(target, Target::Row(_) | Target::Nothing(_))) {
            match target {
                Target::Row(table) => store.table(table).put(&mut txn.txn, key, sealed)?,
                Target::Nothing(table) => drop(store.table(table).delete(&mut txn.txn, key)?),
                Target::Entries | Target::Inodes | Target::Names => {}
            }
        }
        Ok(())
    }
}
