//! The bytes of an attempt that can be read again: all of them in the cache folder, or the latest of them in memory.

use crate::content::block_cache::read_blocks;
use crate::content::fixity::{BLOCK, WHOLE_LIMIT};
use crate::content::store::{EvictionPolicy, Partial, StoreError};
use bytes::Bytes;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Where the bytes of a download go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sink {
    /// Into the cache folder.
    Store,
    /// Into memory: a small object whole, of a large one the latest bytes.
    Memory,
}

/// Of a large object in memory, the stream comes at most so far ahead of the first reader that waits.
pub(super) const WINDOW: u64 = 8 << 20;

/// The same where many are read at a time.
pub(super) const NARROW_WINDOW: u64 = 2 << 20;

/// Bytes beyond the window: a batch that was received at once.
const SLACK: u64 = 2 << 20;

/// The latest blocks of an object, without a gap.
#[derive(Clone, Debug)]
pub(in crate::content) struct RecentBlocks {
    /// Whole, but for the object's last.
    blocks: VecDeque<Bytes>,
    end: u64,
    capacity: u64,
}

impl RecentBlocks {
    /// Of an object of `length` bytes. A small one is kept whole, a `window` of a large one.
    pub(super) fn new(length: Option<u64>, window: u64) -> RecentBlocks {
        RecentBlocks { blocks: VecDeque::new(), end: 0, capacity: RecentBlocks::capacity(length, window) }
    }

    /// Bytes that are kept at most, but for one block.
    pub(super) fn capacity(length: Option<u64>, window: u64) -> u64 {
        match length {
            Some(length) if length > WHOLE_LIMIT => window + SLACK,
            Some(length) => length,
            None => WHOLE_LIMIT,
        }
    }

    /// Adds the blocks that follow, and drops the oldest where there are too many.
    pub(super) fn push(&mut self, bytes: &Bytes) {
        self.blocks.extend(bytes.chunks(BLOCK as usize).map(|block| bytes.slice_ref(block)));
        self.end += bytes.len() as u64;
        while self.end - self.start() >= self.capacity + BLOCK {
            self.blocks.pop_front();
        }
    }

    /// The first byte that is kept.
    pub(super) fn start(&self) -> u64 {
        self.end.next_multiple_of(BLOCK) - self.blocks.len() as u64 * BLOCK
    }

    /// The byte behind the last.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Each block, with the place of its first byte.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, &Bytes)> {
        (self.start()..).step_by(BLOCK as usize).zip(&self.blocks)
    }

    /// These bytes; `None` unless all of them are kept.
    pub(super) fn read(&self, range: &Range<u64>) -> Option<Bytes> {
        read_blocks(range, |first| {
            let index = first.checked_sub(self.start())? / BLOCK;
            self.blocks.get(usize::try_from(index).ok()?).cloned()
        })
    }
}

/// See the module.
#[derive(Clone)]
pub(super) enum Kept {
    Store(Arc<Partial>),
    Memory(RecentBlocks),
}

impl Kept {
    /// Adds the blocks that follow.
    pub(super) fn append(&mut self, blocks: &Bytes, policy: EvictionPolicy) -> Result<(), StoreError> {
        match self {
            Kept::Store(partial) => partial.append(blocks, policy),
            Kept::Memory(recent) => {
                recent.push(blocks);
                Ok(())
            }
        }
    }

    /// The first byte that can be read again.
    pub(super) fn start(&self) -> u64 {
        match self {
            Kept::Store(_) => 0,
            Kept::Memory(recent) => recent.start(),
        }
    }

    /// Bytes that were appended. Blocks on the disk.
    pub(super) fn read(&self, range: &Range<u64>) -> io::Result<Bytes> {
        let read = match self {
            Kept::Store(partial) => {
                partial.read_at(range.start, (range.end - range.start) as usize).map_err(io::Error::other)?
            }
            Kept::Memory(recent) => recent.read(range),
        };
        read.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Drops the bytes.
    pub(super) fn discard(self) {
        if let Kept::Store(partial) = self {
            partial.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_latest_blocks_of_a_large_object() {
        [WINDOW, NARROW_WINDOW].into_iter().for_each(keeps_the_latest_blocks);
    }

    fn keeps_the_latest_blocks(window: u64) {
        let mut recent = RecentBlocks::new(Some(WHOLE_LIMIT + 1), window);
        let mut all = Vec::new();
        for number in 0..20_u8 {
            let batch: Vec<u8> = (0..8 * BLOCK).map(|place| number ^ (place / 251) as u8).collect();
            all.extend_from_slice(&batch);
            recent.push(&batch.into());
        }
        all.extend_from_slice(b"end");
        recent.push(&Bytes::from_static(b"end"));

        assert_eq!(recent.end(), all.len() as u64);
        assert!((window + SLACK..window + SLACK + BLOCK).contains(&(recent.end() - recent.start())));
        let range = recent.start()..recent.end();
        for wanted in [range.clone(), range.start + 5..range.start + (3 << 20), range.end..range.end] {
            assert_eq!(recent.read(&wanted).unwrap(), all[wanted.start as usize..wanted.end as usize]);
        }
        assert_eq!(recent.read(&(range.start - 1..range.end)), None);
        assert_eq!(recent.read(&(range.start..range.end + 1)), None);
        let (first, block) = recent.blocks().last().unwrap();
        assert_eq!((first, &block[..]), (range.end - 3, &b"end"[..]));
    }

    #[test]
    fn keeps_a_small_object_whole() {
        for (length, known) in [(WHOLE_LIMIT, true), (WHOLE_LIMIT, false), (1000, true), (0, true)] {
            let mut recent = RecentBlocks::new(known.then_some(length), WINDOW);
            let all: Vec<u8> = (0..length).map(|place| (place / 253) as u8).collect();
            all.chunks(8 * BLOCK as usize).for_each(|batch| recent.push(&Bytes::copy_from_slice(batch)));
            assert_eq!((recent.start(), recent.read(&(0..length)).unwrap().len() as u64), (0, length));
        }
    }
}
