//! The block map of one attempt: which blocks are here, on the disk or in memory, in whatever order they came.
//!
//! A block is written once and is the same for every reader and for the verdict: whoever brings it first decides. Readers wait until
//! their blocks are here and [`trust`](super::trust) lets them be handed out.

pub(super) mod cache;
pub(super) mod memory;

use super::fixity::BLOCK;
use super::store::{EvictionPolicy, Object, ObjectKey, Partial, StoreError, lock};
use crate::platform::ino::Ino;
use bytes::Bytes;
use cache::{BlockCache, CachedBlock, Holder};
use memory::Window;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Destination of the bytes of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sink {
    /// To the cache folder.
    Store,
    /// To memory alone: the cache folder has no room. A large object is kept in part.
    Memory,
}

/// Blocks that are held without a reservation, at most: those of one request.
const UNRESERVED: usize = 8;

/// See the module.
pub(super) struct BlockMap {
    backing: Backing,
    /// Blocks that the backing does not take.
    cache: Arc<BlockCache>,
    ino: Ino,
    attempt: u64,
    /// The latest blocks for which the memory budget had nothing: their readers get them all the same.
    unreserved: Mutex<VecDeque<(u64, Bytes)>>,
}

enum Backing {
    Disk(Arc<Partial>),
    Memory(Mutex<Window>),
}

impl BlockMap {
    /// Blocks in a file of the cache folder.
    pub(super) fn on_disk(partial: Arc<Partial>, cache: &Arc<BlockCache>, (ino, attempt): (Ino, u64)) -> BlockMap {
        BlockMap::of(Backing::Disk(partial), cache, (ino, attempt))
    }

    /// Blocks in memory, which the caller has reserved.
    pub(super) fn in_memory(window: Window, cache: &Arc<BlockCache>, (ino, attempt): (Ino, u64)) -> BlockMap {
        BlockMap::of(Backing::Memory(Mutex::new(window)), cache, (ino, attempt))
    }

    fn of(backing: Backing, cache: &Arc<BlockCache>, (ino, attempt): (Ino, u64)) -> BlockMap {
        BlockMap { backing, cache: Arc::clone(cache), ino, attempt, unreserved: Mutex::default() }
    }

    /// A map of the decoded bytes of the same attempt: in a file, or in memory where there is none.
    pub(super) fn decoded(&self, partial: Option<Partial>) -> BlockMap {
        let memory = || Backing::Memory(Mutex::new(Window::new(None, 0)));
        let backing = partial.map_or_else(memory, |partial| Backing::Disk(Arc::new(partial)));
        BlockMap::of(backing, &self.cache, (self.ino, self.attempt))
    }

    pub(super) fn sink(&self) -> Sink {
        match self.backing {
            Backing::Disk(_) => Sink::Store,
            Backing::Memory(_) => Sink::Memory,
        }
    }

    /// Bytes that came without a gap, from the first on. In memory the first of them may be dropped.
    pub(super) fn frontier(&self) -> u64 {
        match &self.backing {
            Backing::Disk(partial) => partial.frontier(),
            Backing::Memory(window) => lock(window).frontier(),
        }
    }

    /// The first byte before the frontier that is still here.
    pub(super) fn start(&self) -> u64 {
        match &self.backing {
            Backing::Disk(_) => 0,
            Backing::Memory(window) => lock(window).start(),
        }
    }

    /// Returns whether all of these bytes are here.
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
        let has_block = |first: u64| self.keeps(&(first..range.end.min(first + BLOCK))) || self.cached(first).is_some();
        self.keeps(range) || blocks(range).all(has_block)
    }

    /// Returns whether all of these bytes are in the backing, where the frontier counts them.
    pub(super) fn keeps(&self, range: &Range<u64>) -> bool {
        match &self.backing {
            Backing::Disk(partial) => partial.has(range),
            Backing::Memory(window) => lock(window).has(range),
        }
    }

    /// The verdict no longer needs the bytes before this one: memory may drop them.
    pub(super) fn note_hashed(&self, end: u64) {
        if let Backing::Memory(window) = &self.backing {
            lock(window).note_hashed(end);
        }
    }

    /// The byte up to which the backing takes blocks now.
    pub(super) fn takes_until(&self) -> u64 {
        match &self.backing {
            Backing::Disk(_) => u64::MAX,
            Backing::Memory(window) => lock(window).takes_until(),
        }
    }

    fn cached(&self, first: u64) -> Option<Bytes> {
        let unreserved = lock(&self.unreserved);
        let fresh = unreserved.iter().find(|(at, _)| *at == first).map(|(_, block)| block.clone());
        fresh.or_else(|| self.cache.get(&self.key(first)))
    }

    fn key(&self, first: u64) -> CachedBlock {
        CachedBlock { ino: self.ino, holder: Holder::Attempt(self.attempt), first }
    }

    /// Whole blocks, where memory has all of them: they stay readable though memory drops them.
    pub(super) fn in_memory_now(&self, range: &Range<u64>) -> Option<Vec<Bytes>> {
        let block = |first: u64| {
            let in_window = match &self.backing {
                Backing::Disk(_) => None,
                Backing::Memory(window) => lock(window).block(first),
            };
            in_window.or_else(|| self.cached(first))
        };
        blocks(range).map(block).collect()
    }

    /// Bytes that are here. Blocks on the disk.
    pub(super) fn read(&self, range: &Range<u64>) -> io::Result<Bytes> {
        let read = |part: &Range<u64>| match &self.backing {
            Backing::Disk(partial) => {
                partial.read_at(part.start, (part.end - part.start) as usize).map_err(io::Error::other)
            }
            Backing::Memory(window) => Ok(lock(window).read(part)),
        };
        if let Some(bytes) = read(range)? {
            return Ok(bytes);
        }
        let mut parts = Vec::new();
        for first in blocks(range) {
            let part = range.start.max(first)..range.end.min(first + BLOCK);
            let bytes = match self.cached(first) {
                Some(block) => {
                    block.get((part.start - first) as usize..(part.end - first) as usize).map(|it| block.slice_ref(it))
                }
                None => read(&part)?,
            };
            parts.push(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        }
        Ok(parts.concat().into())
    }

    /// Writes the blocks from `start` on: whole ones, but for the object's last. Those that are here stay as they are.
    /// Returns the ranges that were written. Blocks on the disk.
    pub(super) fn write(
        &self,
        start: u64,
        bytes: &Bytes,
        policy: EvictionPolicy,
    ) -> Result<Vec<Range<u64>>, StoreError> {
        match &self.backing {
            Backing::Disk(partial) => partial.write(start, bytes, policy),
            Backing::Memory(window) => {
                let (mut written, outside) = lock(window).write(start, bytes);
                for (first, block) in outside {
                    if self.cached(first).is_none() {
                        written.push(first..first + block.len() as u64);
                        self.cache(first, block);
                    }
                }
                Ok(written)
            }
        }
    }

    /// Keeps a block that the backing cannot take as long as the memory allows.
    pub(super) fn cache(&self, first: u64, block: Bytes) {
        if !self.cache.keep(self.key(first), block.clone()) {
            let mut unreserved = lock(&self.unreserved);
            unreserved.truncate(UNRESERVED - 1);
            unreserved.push_front((first, block));
        }
    }

    /// Keeps what is written for a later download under this validator.
    pub(super) fn keep_under(&self, validator: Option<&str>, length: Option<u64>) {
        if let Backing::Disk(partial) = &self.backing {
            partial.keep(validator, length);
        }
    }

    /// Makes all of it, `length` bytes, the object `key`; in memory there is none.
    pub(super) fn commit(
        &self,
        key: &ObjectKey,
        length: u64,
        policy: EvictionPolicy,
    ) -> Result<Option<Arc<Object>>, StoreError> {
        match &self.backing {
            Backing::Disk(partial) => partial.commit(key, length, policy).map(Some),
            Backing::Memory(_) => Ok(None),
        }
    }

    /// Each block that is in memory, with its first byte.
    pub(super) fn in_window(&self) -> Vec<(u64, Bytes)> {
        match &self.backing {
            Backing::Disk(_) => Vec::new(),
            Backing::Memory(window) => lock(window).blocks().map(|(first, block)| (first, block.clone())).collect(),
        }
    }

    /// Drops the bytes.
    pub(super) fn discard(&self) {
        if let Backing::Disk(partial) = &self.backing {
            partial.abort();
        }
    }
}

/// The first byte of each block that `range` touches.
fn blocks(range: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
    (range.start - range.start % BLOCK..range.end).step_by(BLOCK as usize)
}
