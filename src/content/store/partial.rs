//! An object being written: its blocks come in any order, each once.
//!
//! ```text
//! 0             length                    length + 4 n
//! ┌─────────────┬─────────────────────────┬───────────────────────────────────────────────────────────────────────────┐
//! │ blocks here │ a CRC32C for each block │ validator │ its length u32 │ key fingerprint u64 │ length u64 │ version u32 │
//! │ (and holes) │ here, else 0            │           │ magic 8 │ CRC32C of this part                               │
//! └─────────────┴─────────────────────────┴───────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The layout is that of an object ([`super::object`]) with another tail, which the commit overwrites. The tail is written once a
//! validator and the length are known: only then can a later mount resume. All numbers are little-endian. The file is sparse: blocks
//! that are missing take no room on the disk and none of the quota. A CRC is written after its block; after a power loss it may stand
//! alone, and then it does not match. A block whose CRC happens to be 0 is missing after a resume.

use super::cache::Cache;
use super::files::read_exact;
use super::object::{Damaged, Object, encode_footer, footprint};
use super::{BLOCK, EvictionPolicy, ObjectKey, StoreError};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

const MAGIC: [u8; 8] = *b"rsyncprt";
/// Version of the layout in this module's header. A file of another version is dropped.
const VERSION: u32 = 4;
/// The tail behind the validator.
const TRAILER: u64 = 36;

/// The quota is charged in steps of so many bytes, so that an append seldom looks at it.
const ROOM_STEP: u64 = 1 << 20;
/// CRCs are written to the file for so many blocks at once: a kill costs no more than these.
const NOTED_BLOCKS: usize = 8;
/// CRCs are read from the file for so many blocks at once.
const READ_BLOCKS: usize = 1 << 14;
/// The longest validator that is kept: no server would recognise a longer header.
const LONGEST_VALIDATOR: u64 = 64 << 10;

/// An object being written. Share it by `Arc`: readers read the blocks that are here, and go on after the commit.
/// Dropped without commit or abort it stays for [`super::Store::resume`], if [`Partial::keep`] was called.
///
/// Invariants: a block that is here is in the file and never written again; `PartialState` has the CRC of each.
/// Lock order: `writer`, then `state`; those of `Cache` come after both.
pub struct Partial {
    key: ObjectKey,
    /// Path below the cache folder.
    name: Box<str>,
    /// Locked (flock) as long as this lives: no other process writes, evicts or removes the file.
    file: Arc<File>,
    /// False for the second writer of a key: its file has another name, which no resume looks for.
    resumable: bool,
    cache: Arc<Cache>,
    begun: Instant,
    /// Held through a write.
    writer: Mutex<PartialWriter>,
    /// Held for moments only, so that readers never wait for a write.
    state: Mutex<PartialState>,
}

struct PartialWriter {
    /// Bytes charged to the cache for this file.
    charged: u64,
    /// Bytes expected, where known.
    expected: Option<u64>,
    tail: Option<Tail>,
    /// The file has a tail, perhaps an earlier one.
    has_tail: bool,
    /// Blocks whose CRCs the file does not have yet.
    unnoted: Vec<u64>,
}

struct PartialState {
    /// Bytes that are here without a gap, from the first on.
    frontier: u64,
    /// CRCs of the whole blocks before the frontier.
    checks: Vec<u32>,
    /// CRC of the bytes between the last whole block and the frontier.
    unfinished: u32,
    /// Blocks behind the frontier: their CRCs and lengths.
    ahead: BTreeMap<u64, (u32, u64)>,
    /// Bytes that are here.
    bytes: u64,
    /// A block was found damaged: nothing of this is kept.
    is_damaged: bool,
    outcome: PartialOutcome,
}

enum PartialOutcome {
    Open,
    Committed(Arc<Object>),
    Aborted,
}

/// Facts that a resume needs, and how much of them the file has.
pub(super) struct Tail {
    /// Bytes of the whole object.
    pub(super) length: u64,
    pub(super) validator: Box<str>,
    is_written: bool,
}

/// Blocks by their numbers, with their CRCs.
pub(super) type Checks = BTreeMap<u64, u32>;

impl Tail {
    /// The tail of a partial of this key and the CRCs of its whole blocks, the last of which matches its block. `None`: the file
    /// cannot be resumed.
    pub(super) fn read(file: &File, key: &ObjectKey) -> Option<(Tail, Checks)> {
        let end = file.metadata().ok()?.len();
        let trailer = read_exact(file, end.checked_sub(TRAILER)?, TRAILER as usize).ok()?;
        let (validator_length, length) = (number(&trailer[..4])?, number(&trailer[12..20])?);
        let table = length.div_ceil(BLOCK).checked_mul(4)?;
        let validator_at = end.checked_sub(TRAILER)?.checked_sub(validator_length)?;
        if length.checked_add(table)? != validator_at || validator_length > LONGEST_VALIDATOR {
            return None;
        }
        let validator = read_exact(file, validator_at, usize::try_from(validator_length).ok()?).ok()?;
        let validator = std::str::from_utf8(&validator).ok()?.into();
        let tail = Tail { length, validator, is_written: true };
        if tail.encode(key)[tail.validator.len()..] != trailer[..] {
            return None;
        }
        let mut checks = Checks::new();
        for first in (0..length / BLOCK).step_by(READ_BLOCKS) {
            let count = (length / BLOCK - first).min(READ_BLOCKS as u64);
            let table = read_exact(file, length + first * 4, count as usize * 4).ok()?;
            let table = table.chunks_exact(4).map(|crc| u32::from_le_bytes([crc[0], crc[1], crc[2], crc[3]]));
            checks.extend((first..).zip(table).filter(|(_, crc)| *crc != 0));
        }
        while let Some(last) = checks.last_entry() {
            let block = read_exact(file, last.key() * BLOCK, BLOCK as usize);
            if block.is_ok_and(|block| crc32c::crc32c(&block) == *last.get()) {
                break;
            }
            last.remove();
        }
        // The last byte is always requested again, so that a head says what the bytes are.
        checks.remove(&(length.div_ceil(BLOCK).saturating_sub(1)));
        (!checks.is_empty()).then_some((tail, checks))
    }

    /// Returns whether a file ends as the partials of another version do.
    pub(super) fn is_of_other_version(file: &File) -> bool {
        let end = file.metadata().map_or(0, |metadata| metadata.len());
        let trailer = end.checked_sub(TRAILER).and_then(|at| read_exact(file, at, TRAILER as usize).ok());
        trailer.is_some_and(|trailer| trailer[24..32] == MAGIC && trailer[20..24] != VERSION.to_le_bytes())
    }

    /// The part behind the CRCs.
    fn encode(&self, key: &ObjectKey) -> Vec<u8> {
        let mut bytes = self.validator.as_bytes().to_vec();
        bytes.extend_from_slice(&(self.validator.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&key.hash().to_le_bytes());
        bytes.extend_from_slice(&self.length.to_le_bytes());
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&MAGIC);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    let mut whole = [0; 8];
    whole.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(whole))
}

impl Partial {
    /// An empty partial of a locked file. `expected`: bytes of the whole object, where known.
    pub(super) fn new(
        cache: Arc<Cache>,
        key: ObjectKey,
        name: Box<str>,
        file: File,
        resumable: bool,
        expected: Option<u64>,
    ) -> Partial {
        let writer = PartialWriter { charged: 0, expected, tail: None, has_tail: false, unnoted: Vec::new() };
        let state = PartialState {
            frontier: 0,
            checks: Vec::new(),
            unfinished: 0,
            ahead: BTreeMap::new(),
            bytes: 0,
            is_damaged: false,
            outcome: PartialOutcome::Open,
        };
        let (writer, state) = (Mutex::new(writer), Mutex::new(state));
        Partial { key, name, file: Arc::new(file), resumable, cache, begun: Instant::now(), writer, state }
    }

    /// Adds what [`Tail::read`] found in the file. `charged`: bytes that the cache counts for it.
    pub(super) fn resumed(self, tail: Tail, checks: Checks, charged: u64) -> Partial {
        let mut writer = self.writer();
        (writer.expected, writer.charged, writer.has_tail) = (Some(tail.length), charged, true);
        writer.tail = Some(tail);
        drop(writer);
        let mut state = self.state();
        state.bytes = checks.len() as u64 * BLOCK;
        state.ahead = checks.into_iter().map(|(block, crc)| (block, (crc, BLOCK))).collect();
        state.join_ahead();
        drop(state);
        self
    }

    /// Bytes that are here without a gap, from the first on; those that a resume found included.
    pub fn frontier(&self) -> u64 {
        self.state().frontier
    }

    /// Returns whether all of these bytes are here.
    pub fn has(&self, range: &Range<u64>) -> bool {
        self.state().has(range)
    }

    /// From now on a drop or a kill keeps what is here, for a resume that accepts this validator and length. `None`: it keeps
    /// nothing, as where the length is unknown. The validator is opaque here.
    pub fn keep(&self, validator: Option<&str>, length: Option<u64>) {
        let mut writer = self.writer();
        writer.expected = length;
        let known = validator.zip(length).filter(|(validator, _)| validator.len() as u64 <= LONGEST_VALIDATOR);
        if writer.tail.as_ref().map(|tail| (&*tail.validator, tail.length)) != known {
            writer.tail =
                known.map(|(validator, length)| Tail { length, validator: validator.into(), is_written: false });
            let state = self.state();
            writer.unnoted = (0..state.checks.len() as u64).chain(state.ahead.keys().copied()).collect();
        }
    }

    /// Appends bytes at the frontier; see [`Partial::write`].
    pub fn append(&self, bytes: &[u8], policy: EvictionPolicy) -> Result<(), StoreError> {
        self.write(self.frontier(), bytes, policy).map(drop)
    }

    /// Writes bytes from `start` on, which is the frontier or the beginning of a block: whole blocks, but for the object's last. Blocks
    /// that are here stay as they are. Returns the ranges that were written. Evicts what `policy` allows. Blocks on the disk. On an error what
    /// was written before stays readable.
    pub fn write(&self, start: u64, bytes: &[u8], policy: EvictionPolicy) -> Result<Vec<Range<u64>>, StoreError> {
        let mut writer = self.writer();
        if writer.tail.as_ref().is_some_and(|tail| tail.length < start + bytes.len() as u64) {
            // More than the length: it was wrong, and the tail is where the bytes belong.
            writer.tail = None;
        }
        let missing = self.open_state()?.missing(start, bytes);
        for (start, piece) in &missing {
            self.make_room(&mut writer, piece.len() as u64, policy)?;
            self.cache.retry_when_full(policy, &self.path(), || self.file.write_all_at(piece, *start))?;
            self.state().add(*start, piece, &mut writer.unnoted);
        }
        if writer.unnoted.len() >= NOTED_BLOCKS {
            self.note(&mut writer);
        }
        Ok(missing.into_iter().map(|(start, piece)| start..start + piece.len() as u64).collect())
    }

    /// Exactly `length` bytes at `offset`; `None` unless all of them are here. `Err`: a block is damaged on disk, and with it
    /// all of this: abort it. Blocks on the disk.
    pub fn read_at(&self, offset: u64, length: usize) -> Result<Option<Bytes>, Damaged> {
        let Some(end) = offset.checked_add(length as u64) else { return Ok(None) };
        let start = offset / BLOCK * BLOCK;
        let (checks, read_end) = {
            let state = self.state();
            if !state.has(&(offset..end)) {
                return Ok(None);
            }
            if let PartialOutcome::Committed(object) = &state.outcome {
                let object = Arc::clone(object);
                drop(state);
                return object.read(offset, length).map(Some);
            }
            let blocks = start / BLOCK..end.div_ceil(BLOCK);
            let read_end = blocks.end.checked_sub(1).map_or(start, |last| state.block_end(last));
            (blocks.map_while(|block| state.check(block)).collect::<Vec<_>>(), read_end)
        };
        let damage = |offset, cause| {
            self.state().is_damaged = true;
            Damaged { key: self.key.clone(), offset, cause }
        };
        let buffer = read_exact(&self.file, start, (read_end - start) as usize).map_err(|e| damage(start, Some(e)))?;
        // A block that is not whole yet has no CRC: this process has just written it.
        for ((block, expected), number) in buffer.chunks(BLOCK as usize).zip(checks).zip(0..) {
            if crc32c::crc32c(block) != expected {
                return Err(damage(start + number * BLOCK, None));
            }
        }
        Ok(Some(buffer.slice((offset - start) as usize..(end - start) as usize)))
    }

    /// Makes it a whole object named `key` (not always the key it was begun with: a digest's only if the bytes gave it)
    /// of exactly `length` bytes. Returns after the rename; a power loss soon after makes it a miss. On an error it stays as it is.
    pub fn commit(&self, key: &ObjectKey, length: u64, policy: EvictionPolicy) -> Result<Arc<Object>, StoreError> {
        let mut writer = self.writer();
        let (present, mut checks, unfinished) = {
            let state = self.open_state()?;
            (state.frontier, state.checks.clone(), state.unfinished)
        };
        if present != length {
            return Err(StoreError::Incomplete { key: key.clone(), present, length });
        }
        if length % BLOCK != 0 {
            checks.push(unfinished);
        }
        let footer = encode_footer(key, length, &checks);
        let end = length + footer.len() as u64;
        self.make_room(&mut writer, footer.len() as u64, policy)?;
        let write = || {
            self.file.write_all_at(&footer, length)?;
            if writer.has_tail { self.file.set_len(end) } else { Ok(()) }
        };
        self.cache.retry_when_full(policy, &self.path(), write)?;
        let (checks, on_damage) = (checks.into_boxed_slice(), Some(self.cache.on_damage()));
        let object = Arc::new(Object::new(key.clone(), length, checks, Arc::clone(&self.file), on_damage));
        self.cache.install(&self.name, &object, (writer.charged, self.begun), policy)?;
        self.state().outcome = PartialOutcome::Committed(Arc::clone(&object));
        Ok(object)
    }

    /// Removes it, unless it was committed.
    pub fn abort(&self) {
        let mut writer = self.writer();
        let before = {
            let mut state = self.state();
            if matches!(state.outcome, PartialOutcome::Committed(_)) {
                return;
            }
            std::mem::replace(&mut state.outcome, PartialOutcome::Aborted)
        };
        if matches!(before, PartialOutcome::Open) {
            self.remove(&mut writer);
        }
    }

    fn remove(&self, writer: &mut PartialWriter) {
        self.cache.unlink(&self.name);
        self.cache.note_gone(&self.name, writer.charged);
        writer.charged = 0;
    }

    /// Charges what the file takes with so many `more` bytes.
    fn make_room(&self, writer: &mut PartialWriter, more: u64, policy: EvictionPolicy) -> Result<(), StoreError> {
        let needed = (self.state().bytes + more).next_multiple_of(4096);
        if needed <= writer.charged {
            return Ok(());
        }
        // A known length bounds the step, so that small objects are not charged a whole one.
        let step = needed.saturating_add(ROOM_STEP);
        let charge = writer.expected.map_or(step, |length| step.min(footprint(length))).max(needed);
        self.cache.make_room(charge - writer.charged, policy)?;
        self.cache.charge(&self.name, writer.charged, charge);
        writer.charged = charge;
        Ok(())
    }

    /// Writes the CRCs of blocks to the file; whether it can be resumed then. A failure costs a new download after a kill.
    fn note(&self, writer: &mut PartialWriter) -> bool {
        let Some(tail) = writer.tail.as_mut().filter(|_| self.resumable) else { return false };
        let (frontier, has_blocks, checks) = {
            let state = self.state();
            writer.unnoted.sort_unstable();
            // The file cannot have that of the object's last block where it is short: it is requested again.
            let checks = writer.unnoted.iter().filter_map(|block| Some((*block, state.check(*block)?)));
            (state.last_byte(), state.bytes >= BLOCK, checks.collect::<Vec<_>>())
        };
        let mut write = || {
            let table = tail.length.div_ceil(BLOCK) * 4;
            if !tail.is_written {
                // What follows the bytes is of no use any more.
                self.file.set_len(frontier)?;
                writer.has_tail = true;
                self.file.write_all_at(&tail.encode(&self.key), tail.length + table)?;
                tail.is_written = true;
            }
            for run in checks.chunk_by(|(block, _), (next, _)| block + 1 == *next) {
                let bytes: Vec<u8> = run.iter().flat_map(|(_, crc)| crc.to_le_bytes()).collect();
                self.file.write_all_at(&bytes, tail.length + run[0].0 * 4)?;
            }
            io::Result::Ok(())
        };
        let written = write();
        match &written {
            Ok(()) => writer.unnoted.clear(),
            Err(cause) => tracing::debug!(key = %self.key, %cause, "a partial object cannot be resumed"),
        }
        written.is_ok() && has_blocks
    }

    fn path(&self) -> PathBuf {
        self.cache.path(&self.name)
    }

    /// The state of a partial that is neither committed nor aborted.
    fn open_state(&self) -> Result<MutexGuard<'_, PartialState>, StoreError> {
        let state = self.state();
        match state.outcome {
            PartialOutcome::Open => Ok(state),
            _ => Err(StoreError::Finished { key: self.key.clone() }),
        }
    }

    fn state(&self) -> MutexGuard<'_, PartialState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, PartialWriter> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialState {
    /// Returns whether all of these bytes are here.
    fn has(&self, range: &Range<u64>) -> bool {
        let behind = self.frontier.max(range.start) / BLOCK..range.end.div_ceil(BLOCK);
        range.end <= self.frontier
            || behind.clone().all(|block| self.ahead.contains_key(&block))
                && range.end <= self.block_end(behind.end - 1)
    }

    /// The CRC of a whole block, or of the object's last.
    fn check(&self, block: u64) -> Option<u32> {
        let before = usize::try_from(block).ok().and_then(|block| self.checks.get(block)).copied();
        before.or_else(|| self.ahead.get(&block).map(|(crc, _)| *crc))
    }

    /// The byte behind the last that is here of a block.
    fn block_end(&self, block: u64) -> u64 {
        let ahead = self.ahead.get(&block).map(|(_, length)| block * BLOCK + length);
        ahead.unwrap_or_else(|| self.frontier.min((block + 1) * BLOCK))
    }

    /// The byte behind the last that is here.
    fn last_byte(&self) -> u64 {
        self.ahead.last_key_value().map_or(self.frontier, |(block, (_, length))| block * BLOCK + length)
    }

    /// The parts of `bytes`, which begin at `start`, that are not here.
    fn missing<'b>(&self, start: u64, bytes: &'b [u8]) -> Vec<(u64, &'b [u8])> {
        let end = start + bytes.len() as u64;
        let mut missing: Vec<(u64, &[u8])> = Vec::new();
        let mut at = start.max(self.frontier.min(end));
        while at < end {
            let next = ((at / BLOCK + 1) * BLOCK).min(end);
            let piece = |from: u64| &bytes[(from - start) as usize..(next - start) as usize];
            match missing.last_mut() {
                _ if self.ahead.contains_key(&(at / BLOCK)) => {}
                Some((first, run)) if *first + run.len() as u64 == at => *run = piece(*first),
                _ => missing.push((at, piece(at))),
            }
            at = next;
        }
        missing
    }

    /// Bytes were written from `start` on.
    fn add(&mut self, start: u64, bytes: &[u8], unnoted: &mut Vec<u64>) {
        self.bytes += bytes.len() as u64;
        let missing = (start.next_multiple_of(BLOCK) - start).min(bytes.len() as u64) as usize;
        let (first, rest) = bytes.split_at(missing);
        let mut at = start;
        for piece in std::iter::once(first).chain(rest.chunks(BLOCK as usize)).filter(|piece| !piece.is_empty()) {
            let (block, length) = (at / BLOCK, piece.len() as u64);
            at += length;
            if at - length != self.frontier {
                self.ahead.insert(block, (crc32c::crc32c(piece), length));
                unnoted.push(block);
                continue;
            }
            self.unfinished = crc32c::crc32c_append(self.unfinished, piece);
            self.frontier = at;
            if at % BLOCK == 0 {
                self.checks.push(std::mem::take(&mut self.unfinished));
                unnoted.push(block);
                self.join_ahead();
            }
        }
    }

    /// Moves the frontier over the blocks that are here.
    fn join_ahead(&mut self) {
        while let Some((crc, length)) = self.ahead.remove(&(self.frontier / BLOCK)) {
            self.frontier += length;
            match length {
                BLOCK => self.checks.push(crc),
                _ => self.unfinished = crc,
            }
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let mut writer = self.writer();
        let is_damaged = {
            let state = self.state();
            if !matches!(state.outcome, PartialOutcome::Open) {
                return;
            }
            state.is_damaged
        };
        if !is_damaged && self.note(&mut writer) {
            let bytes = self.file.metadata().map_or(writer.charged, |m| m.blocks() * 512);
            self.cache.charge(&self.name, writer.charged, bytes);
        } else {
            self.remove(&mut writer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Partial {
        /// Ends as by a kill; `noted`: every whole block has its CRC in the file.
        pub(in crate::content::store) fn kill(self, noted: bool) {
            if noted {
                assert!(self.note(&mut self.writer()));
            }
            // The destructor leaves an aborted partial as it is.
            self.state().outcome = PartialOutcome::Aborted;
        }
    }
}
