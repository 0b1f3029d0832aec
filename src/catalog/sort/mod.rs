//! An external sort of (key, value) pairs in bounded memory.
//!
//! Pairs collect in an arena; a full arena is sorted and written as a run: front-coded, into a file that has no name
//! any more. A small input never touches the disk. Pairs of equal keys come out in the order they came in. Of as many runs as
//! are merged at a time one is made, so that few are open however much comes.

mod arena;
mod spill;
#[cfg(test)]
mod tests;

use super::CatalogError;
use super::store::codec::push_varint;
use arena::{common_prefix, pair, sorted};
pub(super) use spill::SpillFolder;
use spill::{RunFile, Spill};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::io::{BufRead, BufReader, BufWriter, Cursor, Read, Seek, Write};
use std::path::Path;

/// How much is held in memory before a run is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunLimits {
    /// Octets of keys and values. Above 32 MiB the allocator gives them back to the system when the arena goes.
    pub octets: usize,
    /// Pairs; 4 octets each, and 16 more while a run is sorted.
    pub pairs: usize,
    /// A last run up to this size stays in memory while it is merged, beside the store's dirty pages.
    pub resident: usize,
}

/// What is sorted beside a list that takes most of the memory.
pub(super) const BESIDE_A_LIST: RunLimits = match cfg!(test) {
    true => RunLimits { octets: 1 << 12, pairs: 1 << 6, resident: 1 << 9 },
    false => RunLimits { octets: 2 << 20, pairs: 1 << 15, resident: 1 << 18 },
};

impl Default for RunLimits {
    fn default() -> RunLimits {
        RunLimits { octets: 36 << 20, pairs: 1 << 19, resident: 2 << 20 }
    }
}

/// So many runs of one size become one: each takes a descriptor, and a buffer while it is read.
const MERGED: usize = 128;

/// Takes pairs in any order.
pub(super) struct Sorter {
    folder: SpillFolder,
    limits: RunLimits,
    /// Each pair as key length, value length, key, value.
    arena: Vec<u8>,
    /// Start of each pair in `arena`, in the order they came.
    starts: Vec<u32>,
    runs: Vec<Run>,
}

/// Hands the pairs out, smallest key first.
pub(super) struct Sorted {
    folder: SpillFolder,
    /// Boxed: they change places for many a pair.
    heads: BinaryHeap<Box<Run>>,
    /// Runs that were read to their end.
    ended: Vec<Run>,
    /// Whether the top's pair was handed out and must be passed by.
    used: bool,
}

/// A sorted run being read, standing on one pair.
struct Run {
    /// Earlier runs come first among equal keys.
    order: usize,
    /// How often its pairs were merged.
    merges: u32,
    source: Source,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// Where a run is read from.
enum Source {
    Memory(Cursor<Vec<u8>>),
    File(BufReader<RunFile>),
}

impl Source {
    /// Goes back to the run's first octet.
    fn rewind(&mut self) -> std::io::Result<()> {
        match self {
            Source::Memory(octets) => octets.set_position(0),
            Source::File(file) => file.rewind()?,
        }
        Ok(())
    }
}

impl Read for Source {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Source::Memory(octets) => octets.read(out),
            Source::File(file) => file.read(out),
        }
    }
}

impl BufRead for Source {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        match self {
            Source::Memory(octets) => octets.fill_buf(),
            Source::File(file) => file.fill_buf(),
        }
    }

    fn consume(&mut self, count: usize) {
        match self {
            Source::Memory(octets) => octets.consume(count),
            Source::File(file) => file.consume(count),
        }
    }
}

impl Sorter {
    /// Spills into `folder`, which must exist when the first run is written.
    pub(super) fn new(folder: &SpillFolder, limits: RunLimits) -> Sorter {
        Sorter { folder: folder.clone(), limits, arena: Vec::new(), starts: Vec::new(), runs: Vec::new() }
    }

    /// Takes one pair.
    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), CatalogError> {
        let pair = key.len() + value.len() + 20;
        if self.arena.len() + pair > self.limits.octets || self.starts.len() >= self.limits.pairs {
            self.spill()?;
        }
        if self.arena.capacity() == 0 {
            // All at once: pages not touched cost nothing, and growing would copy.
            self.arena.reserve_exact(self.limits.octets);
            self.starts.reserve_exact(self.limits.pairs);
        }
        self.starts.push(self.arena.len() as u32);
        push_varint(&mut self.arena, key.len() as u64);
        push_varint(&mut self.arena, value.len() as u64);
        self.arena.extend_from_slice(key);
        self.arena.extend_from_slice(value);
        Ok(())
    }

    /// Everything is here: begins handing out.
    pub(super) fn finish(mut self) -> Result<Sorted, CatalogError> {
        if self.runs.is_empty() && self.arena.len() <= self.limits.resident {
            let mut octets = Vec::with_capacity(self.arena.len());
            write_run(&self.arena, &self.starts, &mut octets).map_err(|cause| io_error(&self.folder.path, cause))?;
            self.runs.push(Run::new(0, 0, Source::Memory(Cursor::new(octets))));
        } else if !self.starts.is_empty() {
            self.spill()?;
        }
        let Sorter { folder, runs, arena, starts, .. } = self;
        drop((arena, starts));
        let mut sorted = Sorted { folder, heads: BinaryHeap::new(), ended: runs, used: false };
        sorted.rewind()?;
        Ok(sorted)
    }

    /// The same with nothing left in memory.
    pub(super) fn spilled(mut self) -> Result<Sorter, CatalogError> {
        self.split_off()
    }

    /// Everything that was taken so far, with nothing left in memory; the room for more stays here.
    pub(super) fn split_off(&mut self) -> Result<Sorter, CatalogError> {
        if !self.starts.is_empty() {
            self.spill()?;
        }
        let runs = std::mem::take(&mut self.runs);
        Ok(Sorter { runs, ..Sorter::new(&self.folder, self.limits) })
    }

    /// Takes what `other` has taken, behind what is here.
    pub(super) fn join(&mut self, other: Sorter) -> Result<(), CatalogError> {
        if !self.starts.is_empty() {
            self.spill()?;
        }
        let behind = self.runs.last().map_or(0, |run| run.order + 1);
        let other = other.spilled()?;
        self.runs.extend(other.runs.into_iter().map(|run| Run { order: behind + run.order, ..run }));
        // What lies before counts as merged as often as what lies behind it, so that the levels go down and are merged each.
        let mut merges = 0;
        for run in self.runs.iter_mut().rev() {
            merges = run.merges.max(merges);
            run.merges = merges;
        }
        self.merge_runs()
    }

    fn spill(&mut self) -> Result<(), CatalogError> {
        let order = self.runs.last().map_or(0, |run| run.order + 1);
        let run = run_file(&self.folder, |out| write_run(&self.arena, &self.starts, out))
            .map_err(|cause| io_error(&self.folder.path, cause))?;
        self.runs.push(Run::new(order, 0, run));
        self.arena.clear();
        self.starts.clear();
        self.merge_runs()
    }

    /// Makes one run of [`MERGED`] that were merged equally often: each pair is written once more for each time that the number
    /// of runs grows so many times over.
    fn merge_runs(&mut self) -> Result<(), CatalogError> {
        while let Some(first) = self.first_of_enough() {
            let behind = self.runs.split_off(first + MERGED);
            let ended = self.runs.split_off(first);
            let (order, merges) = ended.first().map_or((0, 0), |run| (run.order, run.merges));
            let mut sorted = Sorted { folder: self.folder.clone(), heads: BinaryHeap::new(), ended, used: false };
            sorted.rewind()?;
            let mut sorted = sorted.read_once();
            let mut failed = Ok(());
            let run = run_file(&self.folder, |out| {
                let (mut previous, mut lengths) = (Vec::new(), Vec::with_capacity(30));
                loop {
                    match sorted.next() {
                        Ok(Some((key, value))) => {
                            write_pair(&previous, key, value, &mut lengths, out)?;
                            previous.clear();
                            previous.extend_from_slice(key);
                        }
                        Ok(None) => return Ok(()),
                        Err(error) => {
                            failed = Err(error);
                            return Ok(());
                        }
                    }
                }
            });
            failed?;
            let run = run.map_err(|cause| io_error(&self.folder.path, cause))?;
            self.runs.push(Run::new(order, merges + 1, run));
            self.runs.extend(behind);
        }
        Ok(())
    }

    /// The first of [`MERGED`] runs that were merged equally often.
    fn first_of_enough(&self) -> Option<usize> {
        let mut first = 0;
        for equal in self.runs.chunk_by(|one, next| one.merges == next.merges) {
            if equal.len() >= MERGED {
                return Some(first);
            }
            first += equal.len();
        }
        None
    }
}

/// A run that `write` writes to a file, to be read from its beginning.
fn run_file(
    folder: &SpillFolder,
    write: impl FnOnce(&mut BufWriter<Spill<'_>>) -> std::io::Result<()>,
) -> std::io::Result<Source> {
    let mut file = BufWriter::with_capacity(1 << 18, folder.file()?);
    write(&mut file)?;
    let file = file.into_inner().map_err(|error| error.into_error())?.file;
    Ok(Source::File(BufReader::with_capacity(1 << 16, RunFile::new(file)?)))
}

fn io_error(path: &Path, cause: std::io::Error) -> CatalogError {
    CatalogError::Io { path: path.to_path_buf(), cause }
}

/// Sorts the arena's pairs and writes them.
fn write_run(arena: &[u8], starts: &[u32], out: &mut impl Write) -> std::io::Result<()> {
    let mut lengths = Vec::with_capacity(30);
    let mut previous: &[u8] = &[];
    for start in sorted(arena, starts) {
        let (key, value) = pair(arena, start);
        write_pair(previous, key, value, &mut lengths, out)?;
        previous = key;
    }
    out.flush()
}

/// Writes one pair: length shared with the key before, length and octets of the rest, the value. `lengths` is room.
#[inline]
fn write_pair(
    previous: &[u8],
    key: &[u8],
    value: &[u8],
    lengths: &mut Vec<u8>,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let shared = common_prefix(previous, key);
    lengths.clear();
    push_varint(lengths, shared as u64);
    push_varint(lengths, (key.len() - shared) as u64);
    push_varint(lengths, value.len() as u64);
    out.write_all(lengths)?;
    out.write_all(&key[shared..])?;
    out.write_all(value)
}

impl Sorted {
    /// The same pairs once more from the smallest, those of `other` among them, behind ours of equal keys.
    pub(super) fn again_with(mut self, other: Option<Sorted>) -> Result<Sorted, CatalogError> {
        if let Some(mut other) = other {
            self.ended.extend(std::mem::take(&mut self.heads).into_iter().map(|run| *run));
            let behind = self.ended.iter().map(|run| run.order + 1).max().unwrap_or(0);
            other.ended.extend(std::mem::take(&mut other.heads).into_iter().map(|run| *run));
            self.ended.extend(other.ended.into_iter().map(|mut run| {
                run.order += behind;
                run
            }));
        }
        self.rewind()?;
        Ok(self)
    }

    /// The same pairs, which are not read again behind the one handed out last: the disk has the room of what was read back.
    pub(super) fn read_once(mut self) -> Sorted {
        let mut heads = std::mem::take(&mut self.heads).into_vec();
        for run in heads.iter_mut().map(|run| &mut **run).chain(&mut self.ended) {
            if let Source::File(file) = &mut run.source {
                file.get_mut().read_once();
            }
        }
        Sorted { heads: heads.into(), ..self }
    }

    /// Begins again with the smallest pair.
    pub(super) fn rewind(&mut self) -> Result<(), CatalogError> {
        self.ended.extend(std::mem::take(&mut self.heads).into_iter().map(|run| *run));
        self.used = false;
        for mut run in std::mem::take(&mut self.ended) {
            match run.rewind().map_err(|cause| io_error(&self.folder.path, cause))? {
                true => self.heads.push(Box::new(run)),
                false => self.ended.push(run),
            }
        }
        Ok(())
    }

    /// The next pair; `None` at the end.
    #[allow(clippy::type_complexity)]
    pub(super) fn next(&mut self) -> Result<Option<(&[u8], &[u8])>, CatalogError> {
        self.pass_by()?;
        self.used = true;
        Ok(self.heads.peek().map(|run| (&run.key[..], &run.value[..])))
    }

    /// The pair that [`Sorted::next`] hands out next; `None` at the end.
    #[allow(clippy::type_complexity)]
    pub(super) fn peek(&mut self) -> Result<Option<(&[u8], &[u8])>, CatalogError> {
        self.pass_by()?;
        Ok(self.heads.peek().map(|run| (&run.key[..], &run.value[..])))
    }

    /// Leaves the pair that was handed out.
    fn pass_by(&mut self) -> Result<(), CatalogError> {
        if std::mem::replace(&mut self.used, false)
            && let Some(mut top) = self.heads.peek_mut()
            && !top.advance().map_err(|cause| io_error(&self.folder.path, cause))?
        {
            self.ended.push(*PeekMut::pop(top));
        }
        Ok(())
    }
}

impl Run {
    fn new(order: usize, merges: u32, source: Source) -> Run {
        Run { order, merges, source, key: Vec::new(), value: Vec::new() }
    }

    /// Steps to the first pair; `false` where there is none.
    fn rewind(&mut self) -> std::io::Result<bool> {
        self.source.rewind()?;
        self.key.clear();
        self.value.clear();
        self.advance()
    }

    /// Steps to the next pair; `false` at the end.
    fn advance(&mut self) -> std::io::Result<bool> {
        let buffered = self.source.fill_buf()?;
        if buffered.is_empty() {
            return Ok(false);
        }
        // Nearly every pair is short, and in the buffer as a whole.
        if let [shared @ 0..=0x7f, rest @ 0..=0x7f, value @ 0..=0x7f, octets @ ..] = buffered
            && let (shared, rest) = (usize::from(*shared), usize::from(*rest))
            && let Some((key, octets)) = octets.split_at_checked(rest)
            && let Some(value) = octets.get(..usize::from(*value))
        {
            self.key.resize(shared, 0);
            self.key.extend_from_slice(key);
            self.value.clear();
            self.value.extend_from_slice(value);
            let length = 3 + rest + value.len();
            self.source.consume(length);
            return Ok(true);
        }
        let shared = self.varint()?;
        let rest = self.varint()?;
        let value = self.varint()?;
        self.key.resize(shared + rest, 0);
        self.source.read_exact(&mut self.key[shared..])?;
        self.value.resize(value, 0);
        self.source.read_exact(&mut self.value)?;
        Ok(true)
    }

    fn varint(&mut self) -> std::io::Result<usize> {
        let mut value = 0;
        for shift in (0..usize::BITS).step_by(7) {
            let mut octet = [0];
            self.source.read_exact(&mut octet)?;
            value |= usize::from(octet[0] & 0x7f) << shift;
            if octet[0] < 0x80 {
                break;
            }
        }
        Ok(value)
    }
}

/// By key, then by age; reversed, for the heap hands out the greatest.
impl Ord for Run {
    fn cmp(&self, other: &Run) -> Ordering {
        other.key.cmp(&self.key).then(other.order.cmp(&self.order))
    }
}

impl PartialOrd for Run {
    fn partial_cmp(&self, other: &Run) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Run {
    fn eq(&self, other: &Run) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Run {}
