//! An object being written, from its first byte to its last.
//!
//! ```text
//! 0             length                    length + 4 n
//! ┌─────────────┬─────────────────────────┬───────────────────────────────────────────────────────────────────────────┐
//! │ bytes so far│ CRC32Cs of whole blocks │ validator │ its length u32 │ key fingerprint u64 │ length u64 │ version u32 │
//! │ (then none) │ so far (then zeros)     │           │ magic 8 │ CRC32C of this part                               │
//! └─────────────┴─────────────────────────┴───────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The layout is that of an object ([`super::object`]) with another tail, which the commit overwrites. The tail is written once a
//! validator and the length are known: only then can a later mount resume. All numbers are little-endian. A CRC is written after its
//! block; after a power loss it may stand alone, and then it does not match.

use super::cache::Cache;
use super::files::read_exact;
use super::object::{Damaged, Object, encode_footer, footprint};
use super::{BLOCK, EvictionPolicy, ObjectKey, StoreError};
use bytes::Bytes;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const MAGIC: [u8; 8] = *b"rsyncprt";
/// Of the layout in this module's header. A file of another version is dropped.
const VERSION: u32 = 3;
/// The tail behind the validator.
const TRAILER: u64 = 36;

/// The quota is charged in steps of so many bytes, so that an append seldom looks at it.
const ROOM_STEP: u64 = 1 << 20;
/// CRCs are written to the file for so many blocks at once: a kill costs no more than these.
const NOTED_BLOCKS: usize = 8;
/// CRCs are read from the file for so many blocks at once.
const READ_BLOCKS: usize = 1 << 14;
/// A longer header is no validator that a server would know again.
const LONGEST_VALIDATOR: u64 = 64 << 10;

/// An object being written, only at its end. Share it by `Arc`: readers read what was appended, and go on after the commit.
/// Dropped without commit or abort it stays for [`super::Store::resume`], if [`Partial::keep`] was called.
///
/// Invariants: bytes below `State::length` are in the file and never written again; `State::checks` has the CRC of each whole
/// block of them.
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
    /// Held through a write.
    writer: Mutex<Writer>,
    /// Held for moments only, so that readers never wait for a write.
    state: Mutex<State>,
}

struct Writer {
    /// Bytes charged to the cache for this file.
    charged: u64,
    /// Bytes expected, where known.
    expected: Option<u64>,
    /// CRC of the bytes behind the last whole block.
    unfinished: u32,
    tail: Option<Tail>,
    /// The file has a tail, perhaps an earlier one.
    has_tail: bool,
}

struct State {
    length: u64,
    checks: Vec<u32>,
    /// A block was found damaged: nothing of this is kept.
    is_damaged: bool,
    outcome: Outcome,
}

enum Outcome {
    Open,
    Committed(Arc<Object>),
    Aborted,
}

/// What a resume needs to know, and how much of it the file has.
pub(super) struct Tail {
    /// Of the whole object.
    pub(super) length: u64,
    pub(super) validator: Box<str>,
    /// CRCs in the file; `None`: the tail has yet to be written.
    noted: Option<usize>,
}

impl Tail {
    /// The tail of a partial of this key and the CRCs of its whole blocks, the last of which matches its block. `None`: the file
    /// cannot be resumed.
    pub(super) fn read(file: &File, key: &ObjectKey) -> Option<(Tail, Vec<u32>)> {
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
        let tail = Tail { length, validator, noted: None };
        if tail.encode(key)[tail.validator.len()..] != trailer[..] {
            return None;
        }
        let mut checks = Vec::new();
        // Some at a time: of a large object that has just begun the table is all zeros.
        for first in (0..length / BLOCK).step_by(READ_BLOCKS) {
            let count = (length / BLOCK - first).min(READ_BLOCKS as u64);
            let table = read_exact(file, length + first * 4, count as usize * 4).ok()?;
            let table = table.chunks_exact(4).map(|crc| u32::from_le_bytes([crc[0], crc[1], crc[2], crc[3]]));
            checks.extend(table.take_while(|crc| *crc != 0));
            if (checks.len() as u64) < first + count {
                break;
            }
        }
        let noted = checks.len();
        while let Some(expected) = checks.last() {
            let block = read_exact(file, (checks.len() as u64 - 1) * BLOCK, BLOCK as usize);
            if block.is_ok_and(|block| crc32c::crc32c(&block) == *expected) {
                break;
            }
            checks.pop();
        }
        // A tail with CRCs of blocks that are lost is written again.
        let noted = (noted == checks.len()).then_some(noted);
        (!checks.is_empty()).then_some((Tail { noted, ..tail }, checks))
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
        let writer = Writer { charged: 0, expected, unfinished: 0, tail: None, has_tail: false };
        let state = State { length: 0, checks: Vec::new(), is_damaged: false, outcome: Outcome::Open };
        let (writer, state) = (Mutex::new(writer), Mutex::new(state));
        Partial { key, name, file: Arc::new(file), resumable, cache, writer, state }
    }

    /// The same with what [`Tail::read`] found in the file. `charged`: bytes that the cache counts for it.
    pub(super) fn resumed(self, tail: Tail, checks: Vec<u32>, charged: u64) -> Partial {
        let mut writer = self.writer();
        (writer.expected, writer.charged, writer.has_tail) = (Some(tail.length), charged, true);
        writer.tail = Some(tail);
        drop(writer);
        let mut state = self.state();
        (state.length, state.checks) = (checks.len() as u64 * BLOCK, checks);
        drop(state);
        self
    }

    /// Bytes appended so far, those that a resume found included: the next append goes on there.
    pub fn length(&self) -> u64 {
        self.state().length
    }

    /// From now on a drop or a kill keeps what is here, for a resume that accepts this validator and length. `None`: it keeps
    /// nothing, as where the length is unknown. The validator is opaque here.
    pub fn keep(&self, validator: Option<&str>, length: Option<u64>) {
        let mut writer = self.writer();
        writer.expected = length;
        let known = validator.zip(length).filter(|(validator, _)| validator.len() as u64 <= LONGEST_VALIDATOR);
        if writer.tail.as_ref().map(|tail| (&*tail.validator, tail.length)) != known {
            writer.tail = known.map(|(validator, length)| Tail { length, validator: validator.into(), noted: None });
        }
    }

    /// Appends bytes, at the expense of what `policy` allows. Blocks on the disk. On an error what was appended before stays
    /// readable.
    pub fn append(&self, bytes: &[u8], policy: EvictionPolicy) -> Result<(), StoreError> {
        let mut writer = self.writer();
        let start = self.open_state()?.length;
        let end = start + bytes.len() as u64;
        if writer.tail.as_ref().is_some_and(|tail| tail.length < end) {
            // More than the length: it was wrong, and the tail lies where the bytes belong.
            writer.tail = None;
        }
        self.make_room(&mut writer, end, policy)?;
        self.cache.retry_when_full(policy, &self.path(), || self.file.write_all_at(bytes, start))?;
        let checks = writer.check(start, bytes);
        let mut state = self.state();
        state.checks.extend(checks);
        state.length = end;
        let unnoted = state.checks.len() - writer.tail.as_ref().and_then(|tail| tail.noted).unwrap_or(0);
        drop(state);
        if unnoted >= NOTED_BLOCKS {
            self.note(&mut writer);
        }
        Ok(())
    }

    /// Exactly `length` bytes at `offset`; `None` unless all of them were appended. `Err`: a block is damaged on disk, and with it
    /// all of this: abort it. Blocks on the disk.
    pub fn read_at(&self, offset: u64, length: usize) -> Result<Option<Bytes>, Damaged> {
        let Some(end) = offset.checked_add(length as u64) else { return Ok(None) };
        let start = offset / BLOCK * BLOCK;
        let (checks, read_end) = {
            let state = self.state();
            if end > state.length {
                return Ok(None);
            }
            let last = end.next_multiple_of(BLOCK);
            if let Outcome::Committed(object) = &state.outcome {
                let object = Arc::clone(object);
                drop(state);
                return object.read(offset, length).map(Some);
            }
            let whole = state.checks.len();
            let blocks = (start / BLOCK) as usize..(last / BLOCK) as usize;
            (state.checks[blocks.start.min(whole)..blocks.end.min(whole)].to_vec(), last.min(state.length))
        };
        let damage = |offset, cause| {
            self.state().is_damaged = true;
            Damaged { key: self.key.clone(), offset, cause }
        };
        let buffer = read_exact(&self.file, start, (read_end - start) as usize).map_err(|e| damage(start, Some(e)))?;
        // The unfinished block at the end has no CRC yet: this process has just written it.
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
        let (present, mut checks) = {
            let state = self.open_state()?;
            (state.length, state.checks.clone())
        };
        if present != length {
            return Err(StoreError::Incomplete { key: key.clone(), present, length });
        }
        if length % BLOCK != 0 {
            checks.push(writer.unfinished);
        }
        let footer = encode_footer(key, length, &checks);
        let end = length + footer.len() as u64;
        self.make_room(&mut writer, end, policy)?;
        let write = || {
            self.file.write_all_at(&footer, length)?;
            if writer.has_tail { self.file.set_len(end) } else { Ok(()) }
        };
        self.cache.retry_when_full(policy, &self.path(), write)?;
        let (checks, on_damage) = (checks.into_boxed_slice(), Some(self.cache.on_damage()));
        let object = Arc::new(Object::new(key.clone(), length, checks, Arc::clone(&self.file), on_damage));
        self.cache.install(&self.name, &object, writer.charged, policy)?;
        self.state().outcome = Outcome::Committed(Arc::clone(&object));
        Ok(object)
    }

    /// Removes it, unless it was committed.
    pub fn abort(&self) {
        let mut writer = self.writer();
        let before = {
            let mut state = self.state();
            if matches!(state.outcome, Outcome::Committed(_)) {
                return;
            }
            std::mem::replace(&mut state.outcome, Outcome::Aborted)
        };
        if matches!(before, Outcome::Open) {
            self.remove(&mut writer);
        }
    }

    fn remove(&self, writer: &mut Writer) {
        self.cache.unlink(&self.name);
        self.cache.note_gone(&self.name, writer.charged);
        writer.charged = 0;
    }

    /// Charges what the file takes once it reaches `end`.
    fn make_room(&self, writer: &mut Writer, end: u64, policy: EvictionPolicy) -> Result<(), StoreError> {
        let needed = end.next_multiple_of(4096);
        if needed <= writer.charged {
            return Ok(());
        }
        // A known length bounds the step, so that small objects are not charged a whole one.
        let step = needed.saturating_add(ROOM_STEP);
        let charge = writer.expected.map_or(step, |length| step.min(footprint(length.max(end)))).max(needed);
        self.cache.make_room(charge - writer.charged, policy)?;
        self.cache.charge(&self.name, writer.charged, charge);
        writer.charged = charge;
        Ok(())
    }

    /// Writes the CRCs of whole blocks to the file; whether it can be resumed then. A failure costs a new download after a kill.
    fn note(&self, writer: &mut Writer) -> bool {
        let Some(tail) = writer.tail.as_mut().filter(|_| self.resumable) else { return false };
        let (length, checks) = {
            let state = self.state();
            (state.length, state.checks[tail.noted.unwrap_or(0)..].to_vec())
        };
        let mut write = || {
            let table = tail.length.div_ceil(BLOCK) * 4;
            if tail.noted.is_none() {
                // What lies behind the bytes is of no use any more.
                self.file.set_len(length)?;
                writer.has_tail = true;
                self.file.write_all_at(&tail.encode(&self.key), tail.length + table)?;
            }
            let noted = tail.noted.unwrap_or(0);
            let bytes: Vec<u8> = checks.iter().flat_map(|crc| crc.to_le_bytes()).collect();
            self.file.write_all_at(&bytes, tail.length + noted as u64 * 4)?;
            tail.noted = Some(noted + checks.len());
            io::Result::Ok(())
        };
        let written = write();
        if let Err(cause) = &written {
            tracing::debug!(key = %self.key, %cause, "a partial object cannot be resumed");
        }
        written.is_ok() && tail.noted.is_some_and(|noted| noted > 0)
    }

    /// Ends as by a kill; `noted`: every whole block has its CRC in the file.
    #[cfg(test)]
    pub(super) fn kill(self, noted: bool) {
        if noted {
            assert!(self.note(&mut self.writer()));
        }
        // The destructor leaves an aborted partial as it is.
        self.state().outcome = Outcome::Aborted;
    }

    fn path(&self) -> PathBuf {
        self.cache.path(&self.name)
    }

    /// The state of a partial that is neither committed nor aborted.
    fn open_state(&self) -> Result<MutexGuard<'_, State>, StoreError> {
        let state = self.state();
        match state.outcome {
            Outcome::Open => Ok(state),
            _ => Err(StoreError::Finished { key: self.key.clone() }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// The CRCs of the blocks that `bytes`, appended at `start`, make whole.
    fn check(&mut self, start: u64, bytes: &[u8]) -> Vec<u32> {
        let missing = (start.next_multiple_of(BLOCK) - start).min(bytes.len() as u64) as usize;
        let (first, rest) = bytes.split_at(missing);
        let mut checks = Vec::new();
        let mut end = start;
        for piece in std::iter::once(first).chain(rest.chunks(BLOCK as usize)).filter(|piece| !piece.is_empty()) {
            self.unfinished = crc32c::crc32c_append(self.unfinished, piece);
            end += piece.len() as u64;
            if end % BLOCK == 0 {
                checks.push(std::mem::take(&mut self.unfinished));
            }
        }
        checks
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let mut writer = self.writer();
        let is_damaged = {
            let state = self.state();
            if !matches!(state.outcome, Outcome::Open) {
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
