//! An external sort of (key, value) pairs in bounded memory.
//!
//! Pairs collect in an arena. A full arena is sorted and written as a run: front-coded, into a file without a name. A small input never
//! touches the disk. Pairs of equal keys leave in the order in which they were added.

mod spill;
#[cfg(test)]
mod tests;

use super::CatalogError;
use super::error::io_error;
use super::store::codec::{Decoder, push_varint};
use spill::RunFile;
pub(super) use spill::SpillFolder;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Cursor, Seek, Write};

/// Bytes of keys and values that a sort of a whole list holds in memory before a run is written. The allocator returns more than 32 MiB to
/// the system when they are dropped.
pub(super) const LARGE_SORT: usize = 36 << 20;

/// Memory of a sort that goes on while a list takes most of the memory.
pub(super) const SMALL_SORT: usize = 4 << 20;

/// One pair for so many of these bytes, at most: each takes 4 bytes more, and some 36 while a run is sorted.
const BYTES_A_PAIR: usize = 64;

/// A last run up to this part of them stays in memory while it is merged, as do the store's dirty pages.
const RESIDENT: usize = 8;

/// Runs of one sort, at most: each takes a descriptor, and a buffer while it is read. More are merged into one.
const MOST_RUNS: usize = 512;

/// Takes pairs in any order.
pub(super) struct Sorter {
    folder: SpillFolder,
    /// Bytes of the arena, at most.
    most: usize,
    /// Each pair as key length, value length, key, value.
    arena: Vec<u8>,
    /// Start of each pair in `arena`, in the order in which they were added.
    starts: Vec<u32>,
    runs: Vec<RunBytes>,
}

/// Key and value.
pub(super) type Pair<'s> = (&'s [u8], &'s [u8]);

/// Reads the pairs, smallest key first.
pub(super) struct Sorted {
    folder: SpillFolder,
    /// The oldest first.
    runs: Vec<SortedRun>,
    /// The key of the current pair of each run that has one, with the number of the run: the smallest is the next pair, of equal
    /// keys the oldest.
    heads: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    /// True if [`Sorted::next`] has returned the top's pair.
    used: bool,
}

/// A sorted run being read, at one pair.
struct SortedRun {
    source: RunBytes,
    value: Vec<u8>,
}

/// The bytes of a run, in memory or on disk.
enum RunBytes {
    Memory(Cursor<Vec<u8>>),
    File(BufReader<RunFile>),
}

impl RunBytes {
    /// The file, to be read from its beginning.
    fn of(out: BufWriter<File>) -> std::io::Result<RunBytes> {
        let file = out.into_inner().map_err(|error| error.into_error())?;
        Ok(RunBytes::File(BufReader::with_capacity(1 << 16, RunFile::new(file)?)))
    }

    fn reader(&mut self) -> &mut dyn Reader {
        match self {
            RunBytes::Memory(bytes) => bytes,
            RunBytes::File(file) => file,
        }
    }
}

trait Reader: BufRead + Seek {}

impl<R: BufRead + Seek> Reader for R {}

impl Sorter {
    /// Spills into `folder`, which must exist when the first run is written.
    pub fn new(folder: &SpillFolder, most: usize) -> Sorter {
        Sorter { folder: folder.clone(), most, arena: Vec::new(), starts: Vec::new(), runs: Vec::new() }
    }

    /// Adds one pair.
    ///
    /// # Errors
    /// A run could not be written: the disk is full.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), CatalogError> {
        let pair = key.len() + value.len() + 20;
        if self.arena.len() + pair > self.most || self.starts.len() > self.most / BYTES_A_PAIR {
            self.spill()?;
        }
        if self.arena.capacity() == 0 {
            // All at once: pages not touched cost nothing, and growing would copy.
            self.arena.reserve_exact(self.most);
            self.starts.reserve_exact(self.most / BYTES_A_PAIR + 1);
        }
        self.starts.push(self.arena.len() as u32);
        push_varint(&mut self.arena, key.len() as u64);
        push_varint(&mut self.arena, value.len() as u64);
        self.arena.extend_from_slice(key);
        self.arena.extend_from_slice(value);
        Ok(())
    }

    /// All pairs are added.
    ///
    /// # Errors
    /// As [`Sorter::add`].
    pub fn finish(mut self) -> Result<Sorted, CatalogError> {
        if self.runs.is_empty() && self.arena.len() <= self.most / RESIDENT {
            let run = self.write_sorted(Vec::with_capacity(self.arena.len()));
            self.runs.push(RunBytes::Memory(Cursor::new(run.map_err(io_error(&self.folder.path))?)));
        } else {
            self.spill()?;
        }
        let Sorter { folder, runs, arena, starts, .. } = self;
        drop((arena, starts));
        Sorted::of(folder, runs)
    }

    /// Everything that was added so far, with little of it in memory; the arena stays here for more.
    ///
    /// # Errors
    /// As [`Sorter::add`].
    pub fn split_off(&mut self) -> Result<Sorter, CatalogError> {
        if !self.runs.is_empty() || self.arena.len() > self.most / RESIDENT {
            self.spill()?;
        }
        let (arena, starts) = (self.arena.clone(), self.starts.clone());
        self.clear();
        Ok(Sorter { arena, starts, runs: std::mem::take(&mut self.runs), ..Sorter::new(&self.folder, self.most) })
    }

    /// Adds all pairs of `other`, behind those that are here.
    ///
    /// # Errors
    /// As [`Sorter::add`].
    pub fn join(&mut self, other: Sorter) -> Result<(), CatalogError> {
        if !other.runs.is_empty() {
            self.spill()?;
            self.add_runs(other.runs)?;
        }
        // Many small ones share a run.
        other.starts.iter().try_for_each(|start| {
            let (key, value) = pair(&other.arena, *start);
            self.add(key, value)
        })
    }

    fn spill(&mut self) -> Result<(), CatalogError> {
        if self.starts.is_empty() {
            return Ok(());
        }
        let bytes = self.arena.len() as u64;
        let run = self.folder.writer(bytes).and_then(|out| self.write_sorted(out)).and_then(RunBytes::of);
        let run = run.map_err(io_error(&self.folder.path))?;
        self.clear();
        self.add_runs(vec![run])
    }

    fn add_runs(&mut self, runs: Vec<RunBytes>) -> Result<(), CatalogError> {
        self.runs.extend(runs);
        if self.runs.len() > MOST_RUNS {
            let mut sorted = Sorted::of(self.folder.clone(), std::mem::take(&mut self.runs))?;
            sorted.read_once();
            self.runs.push(sorted.write_run()?);
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.arena.clear();
        self.starts.clear();
    }

    fn write_sorted<W: Write>(&self, out: W) -> std::io::Result<W> {
        let mut run = RunWriter::new(out);
        for start in sorted(&self.arena, &self.starts) {
            let (key, value) = pair(&self.arena, start);
            run.write(key, value)?;
        }
        Ok(run.out)
    }
}

/// Writes sorted pairs: of each the length that its key shares with the key before, the lengths of the rest and of the value, both.
struct RunWriter<W> {
    out: W,
    previous: Vec<u8>,
    lengths: Vec<u8>,
}

impl<W: Write> RunWriter<W> {
    fn new(out: W) -> RunWriter<W> {
        RunWriter { out, previous: Vec::new(), lengths: Vec::with_capacity(30) }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> std::io::Result<()> {
        let shared = common_prefix(&self.previous, key);
        self.lengths.clear();
        push_varint(&mut self.lengths, shared as u64);
        push_varint(&mut self.lengths, (key.len() - shared) as u64);
        push_varint(&mut self.lengths, value.len() as u64);
        self.out.write_all(&self.lengths)?;
        self.out.write_all(&key[shared..])?;
        self.out.write_all(value)?;
        self.previous.truncate(shared);
        self.previous.extend_from_slice(&key[shared..]);
        Ok(())
    }
}

impl Sorted {
    /// The merge of `runs`, the oldest first.
    fn of(folder: SpillFolder, runs: Vec<RunBytes>) -> Result<Sorted, CatalogError> {
        let runs = runs.into_iter().map(|source| SortedRun { source, value: Vec::new() }).collect();
        let mut sorted = Sorted { folder, runs, heads: BinaryHeap::new(), used: false };
        sorted.rewind()?;
        Ok(sorted)
    }

    /// Writes the pairs that are left as one run. The memory of the pairs that were read is free by then.
    fn write_run(&mut self) -> Result<RunBytes, CatalogError> {
        let folder = self.folder.clone();
        let failed = io_error(&folder.path);
        let mut run = RunWriter::new(folder.writer(0).map_err(&failed)?);
        while let Some((key, value)) = self.next()? {
            run.write(key, value).map_err(&failed)?;
        }
        RunBytes::of(run.out).map_err(&failed)
    }

    /// Adds the pairs of `other`, behind ours of equal keys. They are read from the next [`Sorted::rewind`] on.
    pub fn add(&mut self, mut other: Sorted) {
        self.runs.append(&mut other.runs);
    }

    /// Lets the pairs be read for the last time: the disk has the room of each part as soon as it was read.
    pub fn read_once(&mut self) {
        for run in &mut self.runs {
            if let RunBytes::File(file) = &mut run.source {
                file.get_mut().is_read_once = true;
            }
        }
    }

    /// Begins again with the smallest pair.
    pub fn rewind(&mut self) -> Result<(), CatalogError> {
        (self.heads, self.used) = (BinaryHeap::new(), false);
        for (run_index, run) in self.runs.iter_mut().enumerate() {
            let mut key = Vec::new();
            let is_there = run.source.reader().rewind().and_then(|()| run.advance(&mut key));
            if is_there.map_err(io_error(&self.folder.path))? {
                self.heads.push(Reverse((key, run_index)));
            }
        }
        Ok(())
    }

    /// The next pair; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Pair<'_>>, CatalogError> {
        self.leave_used()?;
        self.used = true;
        Ok(self.top())
    }

    /// The pair that [`Sorted::next`] returns next; `None` at the end.
    pub fn peek(&mut self) -> Result<Option<Pair<'_>>, CatalogError> {
        self.leave_used()?;
        Ok(self.top())
    }

    fn top(&self) -> Option<Pair<'_>> {
        let Reverse((key, run_index)) = self.heads.peek()?;
        Some((key, &self.runs[*run_index].value))
    }

    fn leave_used(&mut self) -> Result<(), CatalogError> {
        let top = if std::mem::take(&mut self.used) { self.heads.peek_mut() } else { None };
        let Some(mut top) = top else { return Ok(()) };
        let Reverse((key, run_index)) = &mut *top;
        if !self.runs[*run_index].advance(key).map_err(io_error(&self.folder.path))? {
            PeekMut::pop(top);
        }
        Ok(())
    }
}

impl SortedRun {
    /// Steps to the next pair, from that of `key`; `false` at the end.
    fn advance(&mut self, key: &mut Vec<u8>) -> std::io::Result<bool> {
        let reader = self.source.reader();
        if reader.fill_buf()?.is_empty() {
            return Ok(false);
        }
        let (shared, rest, value) = (varint(reader)?, varint(reader)?, varint(reader)?);
        key.resize(shared + rest, 0);
        reader.read_exact(&mut key[shared..])?;
        self.value.resize(value, 0);
        reader.read_exact(&mut self.value)?;
        Ok(true)
    }
}

/// The key and value that begin at `start`.
#[inline]
fn pair(arena: &[u8], start: u32) -> (&[u8], &[u8]) {
    let mut bytes = Decoder(&arena[start as usize..]);
    let (key, value) = bytes.value::<(usize, usize)>().unwrap_or_default();
    (bytes.take(key).unwrap_or_default(), bytes.take(value).unwrap_or_default())
}

/// The starts in the order of their keys, of equal keys in the order in which they were added. Most lists are in order but for the folders
/// between, and a sort by runs passes by what is.
fn sorted(arena: &[u8], starts: &[u32]) -> impl Iterator<Item = u32> {
    let mut order: Vec<(&[u8], u32)> = starts.iter().map(|start| (pair(arena, *start).0, *start)).collect();
    order.sort();
    order.into_iter().map(|(_, start)| start)
}

/// The number of bytes that both begin with.
fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let equal = 8 * a.chunks_exact(8).zip(b.chunks_exact(8)).take_while(|(a, b)| a == b).count();
    equal + a[equal..].iter().zip(&b[equal..]).take_while(|(a, b)| a == b).count()
}

fn varint(reader: &mut dyn Reader) -> std::io::Result<usize> {
    let mut value = 0;
    for shift in (0..usize::BITS).step_by(7) {
        let mut byte = [0];
        reader.read_exact(&mut byte)?;
        value |= usize::from(byte[0] & 0x7f) << shift;
        if byte[0] < 0x80 {
            break;
        }
    }
    Ok(value)
}
