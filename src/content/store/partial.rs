//! An object being written.

use super::object::{Damaged, Object, encode_footer, footprint};
use super::ranges::Ranges;
use super::sidecar::{Notes, Sidecar};
use super::uncached::Uncached;
use super::victims::Victims;
use super::{BLOCK, Cache, ObjectKey, StoreError, io_error};
use bytes::Bytes;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Room is asked for in steps of so many bytes, so that a write seldom looks at the quota.
const ROOM_STEP: u64 = 1 << 20;
/// After so many bytes or so much time what is present is noted on disk, for a kill.
const NOTE_BYTES: u64 = 64 << 20;
const NOTE_AFTER: Duration = Duration::from_secs(10);

/// An object being written, in any order. Share it by `Arc`: readers may read what is present while it is written,
/// and go on after the commit. Dropped without commit or abort it is kept for [`super::Store::resume`] if it has a validator.
///
/// Invariants: bytes in `State::present` are in the file and never written again; a CRC in `State::checks` is that of a block
/// whose every byte is present, computed from what was given to [`Partial::write_at`] wherever that came in order.
/// Lock order: `writer`, then `state`; those of `Cache` come after both.
pub struct Partial {
    key: ObjectKey,
    /// Path below the cache folder.
    name: Box<str>,
    /// Locked (flock) as long as this lives: nobody else writes, evicts or clears away the file.
    file: Arc<File>,
    /// False for the second writer of a key, whose file no one would look for.
    resumable: bool,
    cache: Arc<Cache>,
    /// What may go for it.
    victims: Victims,
    /// Held by whoever writes.
    writer: Mutex<Writer>,
    /// Held for moments only, so that readers never wait for a write.
    state: Mutex<State>,
}

struct Writer {
    /// Bytes charged to the cache for this file.
    charged: u64,
    /// Bytes written since `noted`.
    unnoted: u64,
    noted: Instant,
    /// What was noted on disk.
    notes: Notes,
    uncached: Uncached,
}

struct State {
    present: Ranges,
    /// By block; blocks behind its end have none.
    checks: Vec<Option<u32>>,
    /// Blocks written from their start without a gap: bytes so far and their CRC.
    growing: HashMap<u64, (u64, u32)>,
    length: Option<u64>,
    validator: Option<String>,
    outcome: Outcome,
}

enum Outcome {
    Open,
    Committed(Arc<Object>),
    Aborted,
}

impl Partial {
    /// A partial of a locked file: empty, or with what `sidecar` tells. `charged`: bytes that the cache counts for it.
    pub(super) fn new(
        cache: Arc<Cache>,
        key: ObjectKey,
        name: Box<str>,
        file: File,
        resumable: bool,
        charged: u64,
        sidecar: Sidecar,
    ) -> Partial {
        let mut present = Ranges::default();
        let mut checks = Vec::new();
        for (block, crc) in sidecar.checks {
            present.insert(block * BLOCK..(block + 1) * BLOCK);
            set_check(&mut checks, block, Some(crc));
        }
        let growing = HashMap::new();
        let Sidecar { length, validator, .. } = sidecar;
        Partial {
            key,
            name,
            file: Arc::new(file),
            resumable,
            cache,
            victims: Victims::any(),
            writer: Mutex::new(Writer {
                charged,
                unnoted: 0,
                noted: Instant::now(),
                notes: Notes::new(validator.is_some()),
                uncached: Uncached::default(),
            }),
            state: Mutex::new(State { present, checks, growing, length, validator, outcome: Outcome::Open }),
        }
    }

    /// The same, where only `victims` may go for it.
    pub(super) fn with_victims(mut self, victims: Victims) -> Partial {
        self.victims = victims;
        self
    }

    /// What may go for it.
    pub fn victims(&self) -> Victims {
        self.victims.clone()
    }

    /// The key it was begun with.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// The strong ETag (or Last-Modified) of the response it is made of: opaque here.
    pub fn validator(&self) -> Option<String> {
        self.state().validator.clone()
    }

    /// Without a validator nothing can be resumed.
    pub fn set_validator(&self, validator: Option<String>) {
        self.state().validator = validator;
    }

    /// Length expected, where known.
    pub fn length(&self) -> Option<u64> {
        self.state().length
    }

    /// See [`Partial::length`]; for a length learnt after [`super::Store::begin`].
    pub fn set_length(&self, length: Option<u64>) {
        self.state().length = length;
    }

    /// Bytes present.
    pub fn present(&self) -> u64 {
        self.state().present.count()
    }

    /// Where the bytes present from the start end: a sequential fetch goes on there.
    pub fn prefix(&self) -> u64 {
        self.state().present.prefix()
    }

    /// The first gap within `window`.
    pub fn absent(&self, window: Range<u64>) -> Option<Range<u64>> {
        self.state().present.gap(window)
    }

    /// Writes bytes at an offset. What is present already is never changed: only absent bytes are written. Blocks on the disk.
    /// On [`StoreError::Full`] what was written before stays readable.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.write_by(offset, &[bytes], false)
    }

    /// [`Partial::write_at`] of what its readers have from memory, in pieces one behind the other: the page cache keeps none of it,
    /// unless memory lies free or the disk is slow.
    pub fn write_uncached_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), StoreError> {
        self.write_by(offset, pieces, true)
    }

    /// Whether [`Partial::write_uncached_at`] has the disk write many pieces at once, so that it is waited for but once.
    pub fn takes_many_at_once(&self) -> bool {
        self.writer().uncached.takes_many_at_once()
    }

    fn write_by(&self, offset: u64, pieces: &[&[u8]], uncached: bool) -> Result<(), StoreError> {
        let mut writer = self.writer();
        let end = pieces.iter().fold(offset, |end, piece| end.saturating_add(piece.len() as u64));
        let mut from = offset;
        loop {
            // Not in a `while let`: that would hold the state through the write.
            let gap = self.open_state()?.present.gap(from..end);
            let Some(gap) = gap else { break };
            let missing = within(pieces, offset, &gap);
            let bytes = gap.end - gap.start;
            self.make_room(&mut writer, gap.end, bytes)?;
            let write = || match uncached {
                true => writer.uncached.write_all_at(&self.file, &missing, gap.start),
                false => write_all_at(&self.file, &missing, gap.start),
            };
            self.cache.retry_when_full(&self.victims, write).map_err(|e| self.failed(e))?;
            let mut at = gap.start;
            for piece in missing {
                let unchecked = self.state().extend(at, piece);
                unchecked.into_iter().try_for_each(|block| self.check_block(block))?;
                at += piece.len() as u64;
            }
            writer.unnoted += bytes;
            from = gap.end;
        }
        if writer.unnoted >= NOTE_BYTES || (writer.unnoted > 0 && writer.noted.elapsed() >= NOTE_AFTER) {
            self.note(&mut writer);
        }
        Ok(())
    }

    /// Exactly `length` bytes at `offset`; `None` unless all of them are present. `Err`: a block written earlier was damaged
    /// on disk and is absent now. Blocks on the disk.
    pub fn read_at(&self, offset: u64, length: usize) -> Result<Option<Bytes>, Damaged> {
        let Some(end) = offset.checked_add(length as u64) else { return Ok(None) };
        if length == 0 {
            return Ok(Some(Bytes::new()));
        }
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        let (object, checks) = {
            let state = self.state();
            if !state.present.contains(offset..end) {
                return Ok(None);
            }
            let object = match &state.outcome {
                Outcome::Committed(object) => Some(Arc::clone(object)),
                _ => None,
            };
            (object, blocks.clone().map(|block| state.check(block)).collect::<Vec<_>>())
        };
        if let Some(object) = object {
            return object.read(offset, length).map(Some);
        }
        let mut bytes = Vec::with_capacity(length);
        for (block, check) in blocks.zip(checks) {
            let start = block * BLOCK;
            let wanted = start.max(offset)..(start + BLOCK).min(end);
            // A block with a CRC is whole: read and check all of it. Of another this process wrote every byte itself.
            let span = if check.is_some() { start..start + BLOCK } else { wanted.clone() };
            let mut buffer = vec![0; (span.end - span.start) as usize];
            let read = self.file.read_exact_at(&mut buffer, span.start);
            if read.is_err() || check.is_some_and(|crc| crc != crc32c::crc32c(&buffer)) {
                self.state().lose(block);
                return Err(Damaged { key: self.key.clone(), offset: start, cause: read.err() });
            }
            bytes.extend_from_slice(&buffer[(wanted.start - span.start) as usize..(wanted.end - span.start) as usize]);
        }
        Ok(Some(Bytes::from(bytes)))
    }

    /// Makes it a whole object named `key` (not always the key it was begun with: a digest's only if the bytes gave it)
    /// of exactly `length` bytes. Returns after the rename; the sync comes later, and until then a power loss makes it a miss.
    /// On an error it stays as it is.
    pub fn commit(&self, key: &ObjectKey, length: u64) -> Result<Arc<Object>, StoreError> {
        let mut writer = self.writer();
        let (present, end) = {
            let state = self.open_state()?;
            (state.present.prefix(), state.present.end())
        };
        if present != length || end != length {
            return Err(StoreError::Incomplete { key: key.clone(), present, length });
        }
        let mut checks = Vec::new();
        for block in 0..length.div_ceil(BLOCK) {
            let known = self.state().check_upto(block, length);
            checks.push(match known {
                Some(crc) => crc,
                None => self.compute(block * BLOCK..((block + 1) * BLOCK).min(length))?,
            });
        }
        let footer = encode_footer(key, length, &checks);
        self.make_room(&mut writer, length + footer.len() as u64, footer.len() as u64)?;
        self.cache
            .retry_when_full(&self.victims, || self.file.write_all_at(&footer, length))
            .map_err(|e| self.failed(e))?;
        let object = Object::new(
            key.clone(),
            length,
            checks.into_boxed_slice(),
            Arc::clone(&self.file),
            Arc::downgrade(&self.cache),
        );
        let object = Arc::new(object);
        self.cache.install(&self.name, &object, writer.charged, &self.victims)?;
        self.remove_sidecar(&mut writer);
        writer.uncached.close();
        self.state().outcome = Outcome::Committed(Arc::clone(&object));
        Ok(object)
    }

    /// Removes it, unless it was committed.
    pub fn abort(&self) {
        let mut writer = self.writer();
        let open = {
            let mut state = self.state();
            let open = matches!(state.outcome, Outcome::Open);
            if open {
                state.outcome = Outcome::Aborted;
            }
            open
        };
        if open {
            self.remove(&mut writer);
        }
    }

    fn remove(&self, writer: &mut Writer) {
        self.remove_sidecar(writer);
        self.cache.unlink(&self.name);
        self.cache.charge_gone(&self.name, writer.charged);
        writer.charged = 0;
    }

    /// Charges what the file takes once `written` bytes are added and it reaches `end`.
    fn make_room(&self, writer: &mut Writer, end: u64, written: u64) -> Result<(), StoreError> {
        let (present, length) = {
            let state = self.state();
            (state.present.count(), state.length)
        };
        let needed = present.saturating_add(written).next_multiple_of(4096);
        if needed <= writer.charged {
            return Ok(());
        }
        // A known length bounds the step, so that small objects are not charged a whole one.
        let step = needed.saturating_add(ROOM_STEP);
        let charge = length.map_or(step, |length| step.min(footprint(length.max(end)))).max(needed);
        self.cache.make_room(charge - writer.charged, &self.victims)?;
        self.cache.charge(&self.name, writer.charged, charge);
        writer.charged = charge;
        Ok(())
    }

    /// Writes down what is present, for [`super::Store::resume`] after a kill. It is a convenience: failure costs a new fetch.
    fn note(&self, writer: &mut Writer) -> bool {
        writer.unnoted = 0;
        writer.noted = Instant::now();
        if !self.resumable {
            return false;
        }
        let sidecar = {
            let state = self.state();
            let whole = (0..).zip(&state.checks).filter_map(|(block, check)| Some((block, (*check)?)));
            Sidecar { length: state.length, validator: state.validator.clone(), checks: whole.collect() }
        };
        if sidecar.validator.is_none() || sidecar.checks.is_empty() {
            return false;
        }
        writer
            .notes
            .note(sidecar, &self.cache.path(&self.name), &self.key)
            .inspect_err(|cause| {
                tracing::debug!(key = %self.key, %cause, "a partial object cannot be resumed");
            })
            .is_ok()
    }

    /// Writes down what is present before it is due.
    #[cfg(test)]
    pub(super) fn note_now(&self) {
        assert!(self.note(&mut self.writer()));
    }

    /// Ends as by a kill.
    #[cfg(test)]
    pub(super) fn abandon(self) {
        // Committed and aborted partials alone are left as they are by the destructor.
        self.state().outcome = Outcome::Aborted;
    }

    fn remove_sidecar(&self, writer: &mut Writer) {
        if let Some(file) = writer.notes.remove(&self.cache.path(&self.name)) {
            self.cache.close_later(file);
        }
    }

    /// Computes the CRC of a block that was not written in order, from the file.
    fn check_block(&self, block: u64) -> Result<(), StoreError> {
        let crc = self.compute(block * BLOCK..(block + 1) * BLOCK)?;
        set_check(&mut self.state().checks, block, Some(crc));
        Ok(())
    }

    fn compute(&self, range: Range<u64>) -> Result<u32, StoreError> {
        let mut buffer = vec![0; (range.end - range.start) as usize];
        self.file.read_exact_at(&mut buffer, range.start).map_err(|e| self.failed(e))?;
        Ok(crc32c::crc32c(&buffer))
    }

    fn failed(&self, cause: io::Error) -> StoreError {
        if super::is_full(&cause) {
            return self.cache.full();
        }
        io_error(self.cache.path(&self.name))(cause)
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

impl Drop for Partial {
    fn drop(&mut self) {
        let mut writer = self.writer();
        if !matches!(self.state().outcome, Outcome::Open) {
            return;
        }
        if self.note(&mut writer) {
            let bytes = self.file.metadata().map_or(writer.charged, |m| m.blocks() * 512);
            self.cache.charge(&self.name, writer.charged, bytes);
        } else {
            self.remove(&mut writer);
        }
    }
}

/// What of `pieces`, the first of which begins at `offset`, lies in `range`.
fn within<'a>(pieces: &[&'a [u8]], offset: u64, range: &Range<u64>) -> Vec<&'a [u8]> {
    let mut start = offset;
    let cut = |piece: &&'a [u8]| {
        let (from, to) = (range.start.max(start), range.end.min(start + piece.len() as u64));
        let cut = (from < to).then(|| &piece[(from - start) as usize..(to - start) as usize]);
        start += piece.len() as u64;
        cut
    };
    pieces.iter().filter_map(cut).collect()
}

fn write_all_at(file: &File, pieces: &[&[u8]], mut offset: u64) -> io::Result<()> {
    for piece in pieces {
        file.write_all_at(piece, offset)?;
        offset += piece.len() as u64;
    }
    Ok(())
}

impl State {
    /// Notes bytes written at `start`, absent before; the whole blocks among them whose CRC must be computed from the file.
    fn extend(&mut self, start: u64, bytes: &[u8]) -> Vec<u64> {
        let end = start + bytes.len() as u64;
        self.present.insert(start..end);
        let mut unchecked = Vec::new();
        for block in start / BLOCK..end.div_ceil(BLOCK) {
            let block_start = block * BLOCK;
            let span = block_start.max(start)..(block_start + BLOCK).min(end);
            let piece = &bytes[(span.start - start) as usize..(span.end - start) as usize];
            let (grown, crc) = self.growing.get(&block).copied().unwrap_or((0, 0));
            if grown == span.start - block_start {
                self.growing.insert(block, (span.end - block_start, crc32c::crc32c_append(crc, piece)));
            }
            if self.present.contains(block_start..block_start + BLOCK) {
                match self.growing.remove(&block) {
                    Some((BLOCK, crc)) => set_check(&mut self.checks, block, Some(crc)),
                    _ => unchecked.push(block),
                }
            }
        }
        unchecked
    }

    fn check(&self, block: u64) -> Option<u32> {
        self.checks.get(block as usize).copied().flatten()
    }

    /// The CRC of a block of an object of that length: the last one may be short.
    fn check_upto(&self, block: u64, length: u64) -> Option<u32> {
        let size = (length - block * BLOCK).min(BLOCK);
        let grown = || self.growing.get(&block).filter(|(grown, _)| *grown == size).map(|(_, crc)| *crc);
        self.check(block).or_else(grown)
    }

    /// A block whose bytes on disk cannot be used.
    fn lose(&mut self, block: u64) {
        self.present.remove(block * BLOCK..(block + 1) * BLOCK);
        self.growing.remove(&block);
        set_check(&mut self.checks, block, None);
    }
}

fn set_check(checks: &mut Vec<Option<u32>>, block: u64, check: Option<u32>) {
    let index = block as usize;
    if checks.len() <= index {
        checks.resize(index + 1, None);
    }
    checks[index] = check;
}
