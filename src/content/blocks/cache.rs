//! The block cache: blocks in memory that the cache folder does not take.
//!
//! They are charged to the memory budget. Where another reservation would wait, the least recently used are given up.

use super::memory::read_blocks;
use crate::content::fixity::BLOCK;
use crate::platform::ino::Ino;
use crate::platform::memory_budget::Budget;
use bytes::Bytes;
use lru::LruCache;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of an entry beyond its bytes.
const OVERHEAD: usize = 256;

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
    blocks: Mutex<Blocks>,
    /// Entries: a lookup in an empty cache takes no lock.
    entries: AtomicUsize,
    budget: Budget,
    most: usize,
}

struct Blocks {
    by_key: LruCache<CachedBlock, Bytes>,
    bytes: usize,
}

impl BlockCache {
    /// At most `most` bytes of `budget`.
    pub(in crate::content) fn new(budget: &Budget, most: usize) -> Arc<BlockCache> {
        let cache = Arc::new(BlockCache {
            blocks: Mutex::new(Blocks { by_key: LruCache::unbounded(), bytes: 0 }),
            entries: AtomicUsize::new(0),
            budget: budget.clone(),
            most,
        });
        let shrinking = Arc::downgrade(&cache);
        budget.on_shortage(move |bytes| {
            if let Some(cache) = shrinking.upgrade() {
                cache.change(|blocks| blocks.give_up(bytes));
            }
        });
        cache
    }

    pub(in crate::content) fn get(&self, key: &CachedBlock) -> Option<Bytes> {
        self.look()?.by_key.get(key).cloned()
    }

    /// Returns a block without counting this as a use.
    pub(in crate::content) fn peek(&self, key: &CachedBlock) -> Option<Bytes> {
        self.look()?.by_key.peek(key).cloned()
    }

    /// Removes all of an inode; how many bytes.
    pub(in crate::content) fn remove_all(&self, ino: Ino) -> u64 {
        self.change(|blocks| {
            let keys: Vec<CachedBlock> =
                blocks.by_key.iter().map(|(key, _)| *key).filter(|key| key.ino == ino).collect();
            keys.iter().filter_map(|key| blocks.remove(key)).map(|bytes| bytes.len() as u64).sum()
        })
    }

    /// Keeps `bytes`, which hold their reservation; not where something else waits for memory.
    pub(in crate::content) fn put(&self, key: CachedBlock, bytes: Bytes) {
        if self.budget.waiting() == 0 && weight(&bytes) <= self.most {
            self.change(|blocks| blocks.put(key, bytes, self.most));
            // A reservation that began to wait meanwhile found no entry to drop, and does not ask again.
            if self.budget.waiting() > 0 {
                self.change(|blocks| blocks.remove(&key));
            }
        }
    }

    /// Keeps `bytes` under a separate reservation; false where the budget has none for them.
    pub(in crate::content) fn keep(&self, key: CachedBlock, bytes: Bytes) -> bool {
        let reservation = (weight(&bytes) <= self.most).then(|| self.budget.try_reserve(bytes.len())).flatten();
        let is_kept = reservation.is_some();
        if let Some(reservation) = reservation {
            self.put(key, reservation.attach(bytes));
        }
        is_kept
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

    fn look(&self) -> Option<MutexGuard<'_, Blocks>> {
        (self.entries.load(Ordering::Acquire) > 0).then(|| self.lock())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Blocks) -> T) -> T {
        let mut blocks = self.lock();
        let changed = change(&mut blocks);
        self.entries.store(blocks.by_key.len(), Ordering::Release);
        changed
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blocks {
    fn put(&mut self, key: CachedBlock, bytes: Bytes, most: usize) {
        self.remove(&key);
        self.shrink_to(most - weight(&bytes));
        self.bytes += weight(&bytes);
        self.by_key.put(key, bytes);
    }

    fn remove(&mut self, key: &CachedBlock) -> Option<Bytes> {
        let bytes = self.by_key.pop(key)?;
        self.bytes -= weight(&bytes);
        Some(bytes)
    }

    fn shrink_to(&mut self, most: usize) {
        while self.bytes > most && self.drop_least() > 0 {}
    }

    /// Drops entries of at least so many bytes.
    fn give_up(&mut self, bytes: usize) {
        let mut left = bytes;
        while left > 0 {
            let dropped @ 1.. = self.drop_least() else { break };
            left = left.saturating_sub(dropped - OVERHEAD);
        }
    }

    /// The weight of the least recently used entry, which is dropped; 0 where there is none.
    fn drop_least(&mut self) -> usize {
        let dropped = self.by_key.pop_lru().map_or(0, |(_, least)| weight(&least));
        self.bytes -= dropped;
        dropped
    }
}

fn weight(bytes: &Bytes) -> usize {
    bytes.len() + OVERHEAD
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
        vec![number; MIB - OVERHEAD].into()
    }

    fn held(cache: &BlockCache) -> Vec<u64> {
        (1..=9).filter(|ino| cache.peek(&whole(*ino)).is_some()).collect()
    }

    #[test]
    fn the_least_recently_used_go_where_there_are_too_many() {
        let cache = BlockCache::new(&Budget::new(100 * MIB), 3 * MIB);
        (1..=3).for_each(|ino| assert!(cache.keep(whole(ino.into()), mib(ino))));
        assert_eq!(cache.get(&whole(1)), Some(mib(1)));
        cache.keep(whole(4), mib(4));
        assert_eq!(held(&cache), [1, 3, 4]);
        assert!(!cache.keep(whole(5), vec![0; 3 * MIB].into()), "it alone is too much");
        assert_eq!(held(&cache), [1, 3, 4]);
        assert_eq!((cache.remove_all(Ino(3)), cache.remove_all(Ino(3))), ((MIB - OVERHEAD) as u64, 0));
        cache.keep(whole(1), mib(9));
        assert_eq!((held(&cache), cache.lock().bytes), (vec![1, 4], 2 * MIB));
    }

    #[tokio::test]
    async fn what_is_cached_makes_room_for_reservations() {
        let budget = Budget::new(4 * MIB);
        let cache = BlockCache::new(&budget, 4 * MIB);
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
    async fn a_put_that_races_a_waiting_reservation_keeps_nothing() {
        for _ in 0..20 {
            let budget = Budget::new(MIB);
            let cache = BlockCache::new(&budget, MIB);
            let bytes = budget.try_reserve(MIB - OVERHEAD).unwrap().attach(mib(1));
            let lock = cache.lock();
            let putting = Arc::clone(&cache);
            let put = std::thread::spawn(move || putting.put(whole(1), bytes));
            // The other thread is past its first look at the budget, and waits for the lock.
            std::thread::sleep(std::time::Duration::from_millis(5));
            drop(lock);
            let waiting = budget.reserve(MIB);
            tokio::pin!(waiting);
            let at_once = (&mut waiting).now_or_never();
            put.join().unwrap();
            assert!(at_once.or_else(|| waiting.now_or_never()).is_some(), "the entry was given up");
        }
    }

    #[test]
    fn all_entries_of_an_inode_are_removed_together() {
        let cache = BlockCache::new(&Budget::new(100 * MIB), 100 * MIB);
        for (ino, holder) in
            [(1, Holder::Verified), (1, Holder::Attempt(6)), (1, Holder::Attempt(7)), (2, Holder::Verified)]
        {
            cache.keep(CachedBlock { ino: Ino(ino), holder, first: 0 }, mib(1));
        }

        assert_eq!(cache.remove_all(Ino(1)), 3 * (MIB - OVERHEAD) as u64);
        assert_eq!((cache.remove_all(Ino(1)), held(&cache)), (0, vec![2]));
    }

    #[test]
    fn a_lookup_in_an_empty_cache_takes_no_lock() {
        let cache = BlockCache::new(&Budget::new(MIB), MIB);
        let _lock = cache.lock();
        let key = whole(1);
        assert!(cache.get(&key).is_none() && cache.peek(&key).is_none());
    }

    #[test]
    fn ranges_are_read_from_their_blocks() {
        let cache = BlockCache::new(&Budget::new(100 * MIB), 100 * MIB);
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
