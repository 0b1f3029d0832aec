//! The rows of a store that is written whole: collected in batches, which a worker writes, or sorts and then writes, while more are made.

use super::super::CatalogError;
use super::super::error::io_error;
use super::super::sort::{LARGE_SORT, Sorter, SpillFolder};
use super::super::store::codec::{damaged, push_number, seal, unseal};
use super::super::store::keys::name_key;
use super::super::store::record::NodeRecord;
use super::super::store::{Table, TableId, TreeStore};
use super::transaction::{RECORD_OVERHEAD, WriteBudget};
use heed::{PutFlags, RwTxn};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// Bytes of a batch.
const BATCH: usize = 256 << 10;

/// New names of one folder that are held in memory before they are entered: 16 bytes each.
const NAMES_AT_ONCE: usize = 1 << 20;

/// Batches that may wait for the worker: more would only take memory.
const WAITING: usize = 4;

/// Bytes of a transaction, so few that LMDB soon finds its pages in the list of those that it holds in memory. A commit costs the pages at
/// the end of each table once more.
const TRANSACTION: u64 = 4 << 20;

/// Rows on their way into a store that no reader sees before it takes the place of another. The last row of a key counts; but
/// entry ids of names join, and of times of folders the latest count.
pub struct Rows {
    batch: RowBatch,
    /// Hash and entry id of the names of one folder, and that folder: sorted, they come behind those of other folders.
    names: Vec<(u32, u64)>,
    names_of: u64,
    worker: Option<Worker>,
}

type Worker = (SyncSender<RowBatch>, JoinHandle<Result<(), CatalogError>>);

/// Rows in a sequence: table, key, record.
#[derive(Default)]
struct RowBatch {
    bytes: Vec<u8>,
    /// The end of each one's key, and its own.
    ends: Vec<(u32, u32)>,
    /// True where nothing follows, and what came is to be committed.
    is_last: bool,
}

impl Rows {
    /// Begins to write into `store`, which is on the disk of `spill_folder`. `is_ascending`: nearly all rows come behind those of their
    /// table that came before, so that they need not be sorted.
    pub fn begin(store: &TreeStore, spill_folder: &SpillFolder, is_ascending: bool) -> Result<Rows, CatalogError> {
        let (batches, waiting) = sync_channel(WAITING);
        let (store, spill_folder) = (store.clone(), spill_folder.clone());
        let work = move || write_all(&store, &spill_folder, is_ascending, &waiting);
        let thread = thread::Builder::new().name("catalog-writer".into()).spawn(work);
        let thread = thread.map_err(io_error(Path::new("the thread that writes the catalog")))?;
        let worker = Some((batches, thread));
        Ok(Rows { batch: RowBatch::default(), names: Vec::new(), names_of: 0, worker })
    }

    /// Writes a record.
    #[inline]
    pub(super) fn put(&mut self, table: TableId, key: &[u8], record: &[u8]) -> Result<(), CatalogError> {
        let RowBatch { bytes, ends, .. } = &mut self.batch;
        bytes.push(table as u8);
        bytes.extend_from_slice(key);
        let between = bytes.len();
        bytes.extend_from_slice(record);
        ends.push((between as u32, bytes.len() as u32));
        if bytes.len() < BATCH { Ok(()) } else { self.send() }
    }

    /// Enters a name of a folder.
    pub(super) fn put_name(&mut self, parent: u64, hash: u32, entry: u64) -> Result<(), CatalogError> {
        if parent != self.names_of || self.names.len() >= NAMES_AT_ONCE {
            self.put_names()?;
            self.names_of = parent;
        }
        self.names.push((hash, entry));
        Ok(())
    }

    fn put_names(&mut self) -> Result<(), CatalogError> {
        let (mut names, mut ids) = (std::mem::take(&mut self.names), Vec::new());
        names.sort_unstable();
        for namesakes in names.chunk_by(|a, b| a.0 == b.0) {
            let key = name_key(self.names_of, namesakes[0].0);
            ids.clear();
            namesakes.iter().for_each(|(_, entry)| push_number(&mut ids, *entry));
            self.put(TableId::Names, &key, &ids)?;
        }
        names.clear();
        self.names = names;
        Ok(())
    }

    fn send(&mut self) -> Result<(), CatalogError> {
        let batch = std::mem::take(&mut self.batch);
        match &self.worker {
            Some((batches, _)) if batches.send(batch).is_ok() => Ok(()),
            // It has failed, and says why.
            _ => self.end(),
        }
    }

    fn end(&mut self) -> Result<(), CatalogError> {
        let Some((batches, thread)) = self.worker.take() else { return Ok(()) };
        drop(batches);
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Commits all rows.
    pub(super) fn commit(&mut self) -> Result<(), CatalogError> {
        self.put_names()?;
        self.batch.is_last = true;
        self.send()?;
        self.end()
    }
}

impl Drop for Rows {
    /// Waits until nothing of it is left, so that another can begin.
    fn drop(&mut self) {
        // A caller that has not committed does not ask for the outcome.
        let _ = self.end();
    }
}

impl RowBatch {
    fn rows(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end as usize));
        let row = |(start, (between, end)): (usize, &(u32, u32))| {
            let (between, end) = (*between as usize, *end as usize);
            (&self.bytes[start..between], &self.bytes[between..end])
        };
        starts.zip(&self.ends).map(row)
    }
}

/// Writes what comes; or sorts it first by table and key, so that every table is appended to.
fn write_all(
    store: &TreeStore,
    spill_folder: &SpillFolder,
    is_ascending: bool,
    batches: &Receiver<RowBatch>,
) -> Result<(), CatalogError> {
    let mut tables = Tables::new(store, spill_folder);
    let mut sorter = (!is_ascending).then(|| Sorter::new(spill_folder, LARGE_SORT));
    for batch in batches {
        batch.rows().try_for_each(|(key, record)| match &mut sorter {
            Some(sorter) => sorter.add(key, record),
            None => tables.put(key, record),
        })?;
        if !batch.is_last {
            continue;
        }
        if let Some(sorter) = sorter {
            let mut sorted = sorter.finish()?;
            sorted.read_once();
            while let Some((key, record)) = sorted.next()? {
                tables.put(key, record)?;
            }
        }
        return tables.commit();
    }
    Ok(())
}

/// The tables of a store, and the greatest key of each: rows behind it are appended, without a search.
struct Tables<'s> {
    store: &'s TreeStore,
    txn: Option<RwTxn<'s>>,
    budget: WriteBudget,
    tables: [(Table, Vec<u8>); 9],
    record: Vec<u8>,
}

impl<'s> Tables<'s> {
    fn new(store: &'s TreeStore, spill_folder: &SpillFolder) -> Tables<'s> {
        let tables = store.tables.map(|table| (table, Vec::new()));
        Tables { store, txn: None, budget: WriteBudget::new(spill_folder, u64::MAX), tables, record: Vec::new() }
    }

    /// Writes a row: table and key, and the record.
    fn put(&mut self, row: &[u8], record: &[u8]) -> Result<(), CatalogError> {
        let Some((id, key)) = row.split_first() else { return Ok(()) };
        self.budget.count((row.len() + record.len() + RECORD_OVERHEAD) as u64)?;
        if self.budget.uncommitted >= TRANSACTION {
            self.txn.take().map_or(Ok(()), |txn| self.store.commit(txn))?;
            self.budget.uncommitted = 0;
        }
        let txn = match &mut self.txn {
            Some(txn) => txn,
            none => none.insert(self.store.env.write_txn()?),
        };
        let (table, last) = self.tables.get_mut(usize::from(*id)).ok_or_else(|| damaged("table", row))?;
        self.record.clear();
        // Only `meta` has rows already.
        let flags = if key > &last[..] && *id != TableId::Meta as u8 {
            last.clear();
            last.extend_from_slice(key);
            self.record.extend_from_slice(record);
            PutFlags::APPEND
        } else {
            let present = table.get(txn, key)?.map(|sealed| unseal(key, sealed)).transpose()?.unwrap_or_default();
            match *id {
                id if id == TableId::Names as u8 => {
                    self.record.extend_from_slice(present);
                    self.record.extend_from_slice(record);
                }
                id if id == TableId::Entries as u8 && !present.is_empty() => {
                    let corrupt = || damaged("content", key);
                    let mtime = NodeRecord::decode(present).ok_or_else(corrupt)?.mtime;
                    let node = NodeRecord::decode(record).ok_or_else(corrupt)?;
                    NodeRecord { mtime: node.mtime.max(mtime), ..node }.encode(&mut self.record);
                }
                _ => self.record.extend_from_slice(record),
            }
            PutFlags::empty()
        };
        seal(key, &mut self.record);
        Ok(table.put_with_flags(txn, flags, key, &self.record)?)
    }

    fn commit(self) -> Result<(), CatalogError> {
        self.budget.fits()?;
        self.txn.map_or(Ok(()), |txn| self.store.commit(txn))
    }
}
