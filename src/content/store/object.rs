//! A whole object on disk.
//!
//! ```text
//! 0          length                        length + 4 n          length + 4 n + 36
//! ┌──────────┬─────────────────────────────┬─────────────────────────────────────────────────────┐
//! │ bytes    │ n CRC32Cs, one a block:     │ key fingerprint u64 │ length u64 │ block u32        │
//! │          │ n = ceil(length / block)    │ version u32 │ magic 8 │ CRC32C of table and trailer │
//! └──────────┴─────────────────────────────┴─────────────────────────────────────────────────────┘
//! ```
//!
//! All numbers are little-endian. Block i covers the bytes from i * [`BLOCK`] on; only the last one may be shorter.
//! The table follows the bytes, so that their offsets in the file are those in the object while the length is still unknown.

use super::files::{drop_pages, read_exact, read_exact_in_memory};
use super::policy::Moment;
use super::{BLOCK, ObjectKey};
use bytes::Bytes;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const MAGIC: [u8; 8] = *b"rsyncobj";
/// Version of the layout in this module's header. A file of another version is a miss.
const VERSION: u32 = 1;
const TRAILER: u64 = 36;

/// Bytes at the end of a file that are read at once when it is opened: the table of all but large objects.
const TAIL: u64 = 4 << 10;

/// Pages behind a reader are dropped in steps of so many bytes; smaller objects are left to the kernel.
const DROP_STEP: u64 = 1 << 20;

/// Longer objects are written past the page cache.
pub(super) const LARGE: u64 = 16 << 20;

/// A block on disk is not what was written, so the bytes must come from the Source again.
/// A whole object is a miss from now on and its file is removed; a partial must be aborted.
#[derive(Debug, thiserror::Error)]
#[error("{key} is damaged at byte {offset}")]
pub struct Damaged {
    /// The object.
    pub key: ObjectKey,
    /// Offset of the damaged block.
    pub offset: u64,
    /// The operating system's answer, where it could not be read at all.
    #[source]
    pub cause: Option<std::io::Error>,
}

impl Damaged {
    /// Why the disk cannot read the block now. The block may be undamaged. `None`: it is damaged, or cut off.
    pub fn unread(&self) -> Option<&io::Error> {
        self.cause.as_ref().filter(|cause| cause.kind() != io::ErrorKind::UnexpectedEof)
    }
}

/// Reads so many bytes at an offset.
type ReadExact = fn(&File, u64, usize) -> io::Result<Bytes>;

/// Called with an object whose damage was just found.
pub(super) type OnDamage = Arc<dyn Fn(&Object) + Send + Sync>;

/// A whole, verified object; holds a descriptor. Any number of threads read at once.
///
/// Invariants: `checks` has a CRC for each block of `length`; the file's bytes below `length` are never written again.
pub struct Object {
    key: ObjectKey,
    length: u64,
    checks: Box<[u32]>,
    file: Arc<File>,
    damaged: AtomicBool,
    on_damage: Option<OnDamage>,
    /// A [`Moment`]: the last use that is not noted yet; 0: none.
    used: AtomicU64,
}

impl Object {
    /// Reads the footer of a file; `Ok(None)` where it is not a whole object of this key in this version, or no file. An error says nothing of it.
    pub(super) fn open(key: &ObjectKey, file: File, on_damage: Option<OnDamage>) -> io::Result<Option<Object>> {
        Object::open_by(read_exact, key, file, on_damage).transpose()
    }

    /// Opens an object whose footer is in the page cache.
    pub(super) fn open_in_memory(key: &ObjectKey, file: File, on_damage: Option<OnDamage>) -> Option<Object> {
        Object::open_by(read_exact_in_memory, key, file, on_damage)?.ok()
    }

    fn open_by(
        read_exact: ReadExact,
        key: &ObjectKey,
        file: File,
        on_damage: Option<OnDamage>,
    ) -> Option<io::Result<Object>> {
        let unread = |cause: io::Error| (cause.kind() != io::ErrorKind::UnexpectedEof).then_some(Err(cause));
        let metadata = match file.metadata() {
            Ok(metadata) => Some(metadata).filter(|metadata| metadata.is_file())?,
            Err(cause) => return unread(cause),
        };
        let trailer_at = metadata.len().checked_sub(TRAILER)?;
        let tail_at = metadata.len().saturating_sub(TAIL);
        let tail = match read_exact(&file, tail_at, (metadata.len() - tail_at) as usize) {
            Ok(tail) => tail,
            Err(cause) => return unread(cause),
        };
        let trailer = &tail[(trailer_at - tail_at) as usize..];
        let length = u64::from_le_bytes(trailer[8..16].try_into().ok()?);
        let table = length.div_ceil(BLOCK).checked_mul(4)?;
        if length.checked_add(table)? != trailer_at {
            return None;
        }
        let footer = match length.checked_sub(tail_at) {
            Some(at) => tail.slice(at as usize..),
            None => match read_exact(&file, length, usize::try_from(table + TRAILER).ok()?) {
                Ok(footer) => footer,
                Err(cause) => return unread(cause),
            },
        };
        let checks = decode_footer(key, length, &footer)?;
        Some(Ok(Object::new(key.clone(), length, checks, Arc::new(file), on_damage)))
    }

    pub(super) fn new(
        key: ObjectKey,
        length: u64,
        checks: Box<[u32]>,
        file: Arc<File>,
        on_damage: Option<OnDamage>,
    ) -> Object {
        let (damaged, used) = (AtomicBool::new(false), AtomicU64::new(0));
        Object { key, length, checks, file, damaged, on_damage, used }
    }

    /// Its key.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The CRC32C of each of its blocks.
    pub fn checks(&self) -> &[u32] {
        &self.checks
    }

    /// Notes a use, for [`Object::take_use`].
    pub(super) fn use_at(&self, now: Moment) {
        self.used.fetch_max(now.0, Ordering::Relaxed);
    }

    /// The last use since this was called last.
    pub(super) fn take_use(&self) -> Option<Moment> {
        Some(self.used.swap(0, Ordering::Relaxed)).filter(|used| *used > 0).map(Moment)
    }

    /// `length` bytes at `offset`, fewer only at the end. Every block it touches is read whole and checked. Blocks on the disk.
    pub fn read(&self, offset: u64, length: usize) -> Result<Bytes, Damaged> {
        self.read_by(read_exact, offset, length).inspect_err(|damaged| self.damage(damaged))
    }

    /// Reads for a check: an object that the disk cannot read now does not count as damaged.
    pub fn check(&self, offset: u64, length: usize) -> Result<Bytes, Damaged> {
        self.read_by(read_exact, offset, length).inspect_err(|damaged| {
            if damaged.unread().is_none() {
                self.damage(damaged);
            }
        })
    }

    /// Reads blocks that are all in the page cache; `None`: [`Object::read`] waits for the disk.
    pub fn read_in_memory(&self, offset: u64, length: usize) -> Option<Result<Bytes, Damaged>> {
        match self.read_by(read_exact_in_memory, offset, length) {
            Err(Damaged { cause: Some(cause), .. }) if cause.kind() == io::ErrorKind::WouldBlock => None,
            outcome => Some(outcome.inspect_err(|damaged| self.damage(damaged))),
        }
    }

    fn read_by(&self, read_exact: ReadExact, offset: u64, length: usize) -> Result<Bytes, Damaged> {
        let end = offset.saturating_add(length as u64).min(self.length);
        if offset >= end {
            return Ok(Bytes::new());
        }
        let first = offset / BLOCK;
        let start = first * BLOCK;
        let read_end = end.next_multiple_of(BLOCK).min(self.length);
        let bytes = (read_end - start) as usize;
        let damaged = |offset, cause| Damaged { key: self.key.clone(), offset, cause };
        let buffer = read_exact(&self.file, start, bytes).map_err(|cause| damaged(start, Some(cause)))?;
        let checks = &self.checks[first as usize..];
        for ((block, expected), number) in buffer.chunks(BLOCK as usize).zip(checks).zip(first..) {
            if crc32c::crc32c(block) != *expected {
                return Err(damaged(number * BLOCK, None));
            }
        }
        self.drop_pages_behind(offset, end);
        Ok(buffer.slice((offset - start) as usize..(end - start) as usize))
    }

    /// The kernel keeps the pages of the mounted file; ours would be the same bytes a second time. Each read that
    /// ends a step drops the one before it: readers of a step in parallel still share its pages.
    fn drop_pages_behind(&self, offset: u64, end: u64) {
        let (before, after) = (offset / DROP_STEP, end / DROP_STEP);
        let ends_object = end == self.length;
        if self.length <= DROP_STEP || (before == after && !ends_object) {
            return;
        }
        let from = before.saturating_sub(1) * DROP_STEP;
        let to = if ends_object { self.length } else { after.saturating_sub(1) * DROP_STEP };
        drop_pages(&self.file, from..to);
    }

    fn damage(&self, Damaged { offset, .. }: &Damaged) {
        if !self.damaged.swap(true, Ordering::Relaxed) {
            tracing::warn!(key = %self.key, offset, "a damaged object is removed from the cache");
            if let Some(on_damage) = &self.on_damage {
                on_damage(self);
            }
        }
    }

    /// Returns whether it was found damaged: a miss, although a descriptor is still open.
    pub(super) fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Returns whether its file has no name left: evicted by some process, its blocks are held by descriptors alone.
    pub(super) fn is_unlinked(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.nlink() == 0)
    }

    /// Writes it to the disk; a large one leaves the page cache then. After a power loss one that failed does not match its CRCs.
    pub(super) fn sync(&self) {
        if self.file.sync_data().is_ok() && self.length > LARGE {
            drop_pages(&self.file, 0..self.length);
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

/// CRC table and trailer of an object.
pub fn encode_footer(key: &ObjectKey, length: u64, checks: &[u32]) -> Vec<u8> {
    let mut footer = Vec::with_capacity(checks.len() * 4 + TRAILER as usize);
    checks.iter().for_each(|crc| footer.extend_from_slice(&crc.to_le_bytes()));
    footer.extend_from_slice(&key.hash().to_le_bytes());
    footer.extend_from_slice(&length.to_le_bytes());
    footer.extend_from_slice(&(BLOCK as u32).to_le_bytes());
    footer.extend_from_slice(&VERSION.to_le_bytes());
    footer.extend_from_slice(&MAGIC);
    let crc = crc32c::crc32c(&footer);
    footer.extend_from_slice(&crc.to_le_bytes());
    footer
}

/// The CRCs of a footer, if it is that of an object of this key and length.
pub fn decode_footer(key: &ObjectKey, length: u64, footer: &[u8]) -> Option<Box<[u32]>> {
    let table = footer.get(..usize::try_from(length.div_ceil(BLOCK).checked_mul(4)?).ok()?)?;
    let checks: Box<[u32]> =
        table.chunks_exact(4).map(|crc| u32::from_le_bytes([crc[0], crc[1], crc[2], crc[3]])).collect();
    // Written out again from what was understood, the footer is the same only if every field is the expected one.
    (encode_footer(key, length, &checks) == footer).then_some(checks)
}

/// Bytes that an object of this length takes on most file systems: its pages and the footer's.
pub(super) fn footprint(length: u64) -> u64 {
    let footer = length.div_ceil(BLOCK).saturating_mul(4).saturating_add(TRAILER);
    length.saturating_add(footer).checked_next_multiple_of(4096).unwrap_or(u64::MAX)
}
