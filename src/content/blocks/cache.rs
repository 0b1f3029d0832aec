//! The block cache: blocks in memory that the cache folder does not take.
//!
//! They are charged to the memory budget. Where another reservation would wait, the least recently used are given up.

use super::memory::read_blocks;
use crate::content::fixity::BLOCK;
use crate::platform::ino::Ino;
use crate::platform::memory_budget::Budget;
use bytes::Bytes;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Blocks at most, for those of small files take more memory than their bytes: some 4 MB in all.
const MOST_BLOCKS: NonZeroUsize = NonZeroUsize::new(1 << 14).expect("not zero");

/// Owner of a block: an object or an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::content) enum Holder {
    /// A verified object that the cache folder had no room for.
    Verified,
    /// The attempt with this number, not verified.
    Attempt(u64),
}

/// A block: the bytes from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::content) struct CachedBlock {
    pub(in crate::content) ino: Ino,
    pub(in crate::content) holder: Holder,
    pub(in crate::content) first: u64,
}

pub(in crate::content) struct BlockCache {
    blocks: Mutex<LruCache<CachedBlock, Bytes>>,
    budget: Budget,
}

impl BlockCache {
    /// A cache of what nothing else needs of `budget`.
    pub(in crate::content) fn new(budget: &Budget) -> Arc<BlockCache> {
        let blocks = Mutex::new(LruCache::new(MOST_BLOCKS));
        let cache = Arc::new(BlockCache { blocks, budget: budget.clone() });
        let shrinking = Arc::downgrade(&cache);
        budget.on_shortage(move |bytes| {
            if let Some(cache) = shrinking.upgrade() {
                cache.give_up(bytes);
            }
        });
        cache
    }

    pub(in crate::content) fn get(&self, key: &CachedBlock) -> Option<Bytes> {
        self.lock().get(key).cloned()
    }

    /// Returns a block without counting this as a use.
    pub(in crate::content) fn peek(&self, key: &CachedBlock) -> Option<Bytes> {
        self.lock().peek(key).cloned()
    }

    /// Removes all of an inode; how many bytes.
    pub(in crate::content) fn remove_all(&self, ino: Ino) -> u64 {
        let mut blocks = self.lock();
        let keys: Vec<CachedBlock> = blocks.iter().map(|(key, _)| *key).filter(|key| key.ino == ino).collect();
        keys.iter().filter_map(|key| blocks.pop(key)).map(|bytes| bytes.len() as u64).sum()
    }

    /// Keeps `bytes` under a separate reservation; false where the budget has none for them, or something else waits for memory.
    pub(in crate::content) fn keep(&self, key: CachedBlock, bytes: Bytes) -> bool {
        if self.budget.waiting() > 0 {
            return false;
        }
        let Some(reservation) = self.budget.try_reserve(bytes.len()) else { return false };
        self.lock().put(key, reservation.attach(bytes));
        // A reservation that began to wait meanwhile found no block to drop, and does not ask again.
        let is_short = self.budget.waiting() > 0;
        if is_short {
            self.lock().pop(&key);
        }
        !is_short
    }

    /// Returns whether all blocks of a verified object of `length` bytes are here.
    pub(in crate::content) fn holds(&self, ino: Ino, length: u64) -> bool {
        let mut firsts = (0..length).step_by(BLOCK as usize);
        firsts.all(|first| self.peek(&CachedBlock { ino, holder: Holder::Verified, first }).is_some())
    }

    /// These bytes out of whole blocks; `None` unless all of them are here.
    pub(in crate::content) fn read(&self, ino: Ino, holder: Holder, range: &Range<u64>) -> Option<Bytes> {
        read_blocks(range, |first| self.get(&CachedBlock { ino, holder, first }))
    }

    /// Drops the least recently used blocks, until they are of so many bytes.
    fn give_up(&self, bytes: usize) {
        let (mut blocks, mut given) = (self.lock(), 0);
        while given < bytes {
            let Some((_, least)) = blocks.pop_lru() else { return };
            given += least.len();
        }
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<CachedBlock, Bytes>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const MIB: usize = 1 << 20;

    fn whole(ino: u64) -> CachedBlock {
        CachedBlock { ino: Ino(ino), holder: Holder::Verified, first: 0 }
    }

    fn mib(number: u8) -> Bytes {
        vec![number; MIB].into()
    }

    fn held(cache: &BlockCache) -> Vec<u64> {
        (1..=9).filter(|ino| cache.peek(&whole(*ino)).is_some()).collect()
    }

    #[test]
    fn the_least_recently_used_go_where_there_are_too_many() {
        let budget = Budget::new(3 * MIB);
        let cache = BlockCache::new(&budget);
        (1..=3).for_each(|ino| assert!(cache.keep(whole(ino.into()), mib(ino))));
        assert_eq!(cache.get(&whole(1)), Some(mib(1)));
        assert!(cache.keep(whole(4), mib(4)));
        assert_eq!(held(&cache), [1, 3, 4]);
        assert_eq!((cache.remove_all(Ino(3)), cache.remove_all(Ino(3))), (MIB as u64, 0));
        assert!(cache.keep(whole(1), mib(9)));
        assert_eq!((held(&cache), budget.free()), (vec![1, 4], MIB));
    }

    #[tokio::test]
    async fn what_is_cached_makes_room_for_reservations() {
        let budget = Budget::new(4 * MIB);
        let cache = BlockCache::new(&budget);
        (1..=4).for_each(|ino| assert!(cache.keep(whole(ino.into()), mib(ino))));
        let reader = cache.get(&whole(1));

        let reservation = budget.reserve(2 * MIB).now_or_never().expect("blocks are given up");
        assert_eq!(held(&cache), [1, 4]);
        let waiting = budget.reserve(2 * MIB);
        tokio::pin!(waiting);
        assert!((&mut waiting).now_or_never().is_none(), "a reader still holds one");
        assert_eq!(held(&cache), [0; 0]);
        assert!(!cache.keep(whole(2), mib(2)), "nothing is cached while a reservation waits");

        drop(reader);
        let second = waiting.now_or_never().expect("all is free");
        drop((reservation, second));
        assert_eq!(budget.free(), 4 * MIB);
        assert!(cache.keep(whole(2), mib(2)));
    }

    #[tokio::test]
    async fn a_block_that_races_a_waiting_reservation_is_not_kept() {
        for _ in 0..20 {
            let budget = Budget::new(MIB);
            let cache = BlockCache::new(&budget);
            let lock = cache.lock();
            let keeping = Arc::clone(&cache);
            let keep = std::thread::spawn(move || keeping.keep(whole(1), mib(1)));
            // The other thread is past its first look at the budget, and waits for the lock.
            std::thread::sleep(std::time::Duration::from_millis(5));
            drop(lock);
            let waiting = budget.reserve(MIB);
            tokio::pin!(waiting);
            let at_once = (&mut waiting).now_or_never();
            keep.join().unwrap();
            assert!(at_once.or_else(|| waiting.now_or_never()).is_some(), "the entry was given up");
        }
    }

    #[test]
    fn all_entries_of_an_inode_are_removed_together() {
        let cache = BlockCache::new(&Budget::new(100 * MIB));
        for (ino, holder) in
            [(1, Holder::Verified), (1, Holder::Attempt(6)), (1, Holder::Attempt(7)), (2, Holder::Verified)]
        {
            cache.keep(CachedBlock { ino: Ino(ino), holder, first: 0 }, mib(1));
        }

        assert_eq!(cache.remove_all(Ino(1)), 3 * MIB as u64);
        assert_eq!((cache.remove_all(Ino(1)), held(&cache)), (0, vec![2]));
    }

    #[test]
    fn ranges_are_read_from_their_blocks() {
        let cache = BlockCache::new(&Budget::new(100 * MIB));
        let length = 5 * BLOCK + 77;
        let all: Vec<u8> = (0..length).map(|place| (place / 251 + place) as u8).collect();
        for (number, block) in all.chunks(BLOCK as usize).enumerate().skip(1) {
            let key = CachedBlock { first: number as u64 * BLOCK, ..whole(7) };
            assert!(cache.keep(key, Bytes::copy_from_slice(block)));
        }

        let read = |range: Range<u64>| cache.read(Ino(7), Holder::Verified, &range);
        for range in [BLOCK..length, length - 5..length, 3 * BLOCK - 1..3 * BLOCK + 1, length..length] {
            assert_eq!(read(range.clone()).unwrap(), all[range.start as usize..range.end as usize]);
        }
        assert!(read(BLOCK - 1..length).is_none());
        assert!(read(length - 1..length + 1).is_none());
        assert!(cache.read(Ino(7), Holder::Attempt(1), &(2 * BLOCK..length)).is_none());
        assert!(cache.read(Ino(8), Holder::Verified, &(2 * BLOCK..length)).is_none());

        assert!(!cache.holds(Ino(7), length));
        assert!(cache.keep(whole(7), Bytes::copy_from_slice(&all[..BLOCK as usize])));
        assert!(cache.holds(Ino(7), length) && !cache.holds(Ino(7), 6 * BLOCK + 1));
    }
}
