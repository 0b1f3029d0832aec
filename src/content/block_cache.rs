//! Blocks in memory: random reads of large files, objects that do not fit the disk, and the ends of files read past the cache.
//!
//! They are charged to the memory budget. Where another reservation would wait, the least recently used are given up.

use super::fixity::BLOCK;
use crate::memory::Budget;
use bytes::{Bytes, BytesMut};
use fuser::INodeNo;
use lru::LruCache;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What an entry takes beyond its bytes.
const OVERHEAD: usize = 256;

/// Which bytes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::content) enum Version {
    /// A verified object, whole, in one entry at 0.
    Whole,
    /// The end of a verified object that was read past the cache.
    End,
    /// Random reads of the attempt with this number, not verified.
    Attempt(u64),
}

/// An entry: the bytes from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::content) struct Key {
    pub(in crate::content) ino: INodeNo,
    pub(in crate::content) version: Version,
    pub(in crate::content) first: u64,
}

impl Key {
    pub(in crate::content) fn whole(ino: INodeNo) -> Key {
        Key { ino, version: Version::Whole, first: 0 }
    }
}

pub(in crate::content) struct BlockCache {
    blocks: Mutex<Blocks>,
    /// Entries: a lookup in an empty cache takes no lock.
    entries: AtomicUsize,
    budget: Budget,
    most: usize,
}

struct Blocks {
    by_key: LruCache<Key, Bytes>,
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

    pub(in crate::content) fn get(&self, key: &Key) -> Option<Bytes> {
        self.look()?.by_key.get(key).cloned()
    }

    /// The same without counting as a use.
    pub(in crate::content) fn peek(&self, key: &Key) -> Option<Bytes> {
        self.look()?.by_key.peek(key).cloned()
    }

    pub(in crate::content) fn remove(&self, key: &Key) -> Option<Bytes> {
        if self.entries.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.change(|blocks| blocks.remove(key))
    }

    /// Removes all of an inode; how many bytes.
    pub(in crate::content) fn remove_all(&self, ino: INodeNo) -> u64 {
        self.change(|blocks| {
            let keys: Vec<Key> = blocks.by_key.iter().map(|(key, _)| *key).filter(|key| key.ino == ino).collect();
            keys.iter().filter_map(|key| blocks.remove(key)).map(|bytes| bytes.len() as u64).sum()
        })
    }

    /// Keeps `bytes`, which hold their reservation; not where something else waits for memory.
    pub(in crate::content) fn put(&self, key: Key, bytes: Bytes) {
        if self.budget.waiting() == 0 && weight(&bytes) <= self.most {
            self.change(|blocks| blocks.put(key, bytes, self.most));
            // A reservation that began to wait meanwhile found no entry to drop, and does not ask again.
            if self.budget.waiting() > 0 {
                self.remove(&key);
            }
        }
    }

    /// Keeps `bytes` under a reservation of their own; false where the budget has none for them.
    pub(in crate::content) fn keep(&self, key: Key, bytes: Bytes) -> bool {
        let reservation = (weight(&bytes) <= self.most).then(|| self.budget.try_reserve(bytes.len())).flatten();
        let is_kept = reservation.is_some();
        if let Some(reservation) = reservation {
            self.put(key, reservation.attach(bytes));
        }
        is_kept
    }

    /// Keeps the whole blocks among `pieces`, which follow each other from `first` on to the end of the object.
    pub(in crate::content) fn keep_end(&self, ino: INodeNo, first: u64, pieces: &[Bytes]) {
        let mut at = first;
        let mut block = BytesMut::new();
        let keep = |end: u64, block: &mut BytesMut| {
            let start = end - block.len() as u64;
            if start.is_multiple_of(BLOCK) && !block.is_empty() {
                self.keep(Key { ino, version: Version::End, first: start }, block.split().freeze());
            }
            block.clear();
        };
        for piece in pieces {
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let left = (BLOCK - at % BLOCK) as usize;
                let (part, behind) = rest.split_at(left.min(rest.len()));
                block.extend_from_slice(part);
                (at, rest) = (at + part.len() as u64, behind);
                if at.is_multiple_of(BLOCK) {
                    keep(at, &mut block);
                }
            }
        }
        keep(at, &mut block);
    }

    /// These bytes out of whole blocks; `None` unless all of them are here.
    pub(in crate::content) fn read(&self, ino: INodeNo, version: Version, range: &Range<u64>) -> Option<Bytes> {
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let first = at - at % BLOCK;
            let block = self.get(&Key { ino, version, first })?;
            // Both lie within a block.
            let part = (at - first) as usize..(range.end.min(first + BLOCK) - first) as usize;
            at = first + part.end as u64;
            parts.push(block.get(part).map(|part| block.slice_ref(part))?);
        }
        Some(match &parts[..] {
            [part] => part.clone(),
            parts => parts.concat().into(),
        })
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
    fn put(&mut self, key: Key, bytes: Bytes, most: usize) {
        self.remove(&key);
        self.shrink_to(most - weight(&bytes));
        self.bytes += weight(&bytes);
        self.by_key.put(key, bytes);
    }

    fn remove(&mut self, key: &Key) -> Option<Bytes> {
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
        while left > 0
            && let dropped @ 1.. = self.drop_least()
        {
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

    fn mib(number: u8) -> Bytes {
        vec![number; MIB - OVERHEAD].into()
    }

    fn held(cache: &BlockCache) -> Vec<u64> {
        (1..=9).filter(|ino| cache.peek(&Key::whole(INodeNo(*ino))).is_some()).collect()
    }

    #[test]
    fn the_least_recently_used_go_where_there_are_too_many() {
        let cache = BlockCache::new(&Budget::new(100 * MIB), 3 * MIB);
        (1..=3).for_each(|ino| assert!(cache.keep(Key::whole(INodeNo(ino.into())), mib(ino))));
        assert_eq!(cache.get(&Key::whole(INodeNo(1))), Some(mib(1)));
        cache.keep(Key::whole(INodeNo(4)), mib(4));
        assert_eq!(held(&cache), [1, 3, 4]);
        assert!(!cache.keep(Key::whole(INodeNo(5)), vec![0; 3 * MIB].into()), "it alone is too much");
        assert_eq!(held(&cache), [1, 3, 4]);
        assert_eq!(cache.remove(&Key::whole(INodeNo(3))), Some(mib(3)));
        assert_eq!(cache.remove(&Key::whole(INodeNo(3))), None);
        cache.keep(Key::whole(INodeNo(1)), mib(9));
        assert_eq!((held(&cache), cache.lock().bytes), (vec![1, 4], 2 * MIB));
    }

    #[tokio::test]
    async fn what_is_cached_makes_room_for_reservations() {
        let budget = Budget::new(4 * MIB);
        let cache = BlockCache::new(&budget, 4 * MIB);
        (1..=4).for_each(|ino| assert!(cache.keep(Key::whole(INodeNo(ino.into())), mib(ino))));
        let reader = cache.get(&Key::whole(INodeNo(1)));

        let reservation = budget.reserve(2 * MIB).now_or_never().expect("blocks are given up");
        assert_eq!(held(&cache), [1, 4]);
        let waiting = budget.reserve(2 * MIB);
        tokio::pin!(waiting);
        assert!((&mut waiting).now_or_never().is_none(), "a reader still holds one");
        assert_eq!(held(&cache), [0; 0]);
        assert!(!cache.keep(Key::whole(INodeNo(2)), mib(2)), "nothing is cached while a reservation waits");

        drop(reader);
        let second = waiting.now_or_never().expect("all is free");
        drop((reservation, second));
        assert_eq!(budget.free(), 4 * MIB);
        assert!(cache.keep(Key::whole(INodeNo(2)), mib(2)));
    }

    #[tokio::test]
    async fn a_put_that_races_a_waiting_reservation_keeps_nothing() {
        for _ in 0..20 {
            let budget = Budget::new(MIB);
            let cache = BlockCache::new(&budget, MIB);
            let bytes = budget.try_reserve(MIB - OVERHEAD).unwrap().attach(mib(1));
            let lock = cache.lock();
            let putting = Arc::clone(&cache);
            let put = std::thread::spawn(move || putting.put(Key::whole(INodeNo(1)), bytes));
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
        for (ino, version) in [(1, Version::Whole), (1, Version::End), (1, Version::Attempt(7)), (2, Version::Whole)] {
            cache.keep(Key { ino: INodeNo(ino), version, first: 0 }, mib(1));
        }

        assert_eq!(cache.remove_all(INodeNo(1)), 3 * (MIB - OVERHEAD) as u64);
        assert_eq!((cache.remove_all(INodeNo(1)), held(&cache)), (0, vec![2]));
    }

    #[test]
    fn a_lookup_in_an_empty_cache_takes_no_lock() {
        let cache = BlockCache::new(&Budget::new(MIB), MIB);
        let _lock = cache.lock();
        let key = Key::whole(INodeNo(1));
        assert!(cache.get(&key).is_none() && cache.peek(&key).is_none() && cache.remove(&key).is_none());
    }

    #[test]
    fn the_end_of_an_object_is_read_from_its_blocks() {
        let cache = BlockCache::new(&Budget::new(100 * MIB), 100 * MIB);
        let (first, length) = (BLOCK + 1000, 5 * BLOCK + 77);
        let all: Vec<u8> = (0..length).map(|place| (place / 251 + place) as u8).collect();
        let pieces: Vec<Bytes> = all[first as usize..].chunks(50_000).map(Bytes::copy_from_slice).collect();
        cache.keep_end(INodeNo(7), first, &pieces);

        let read = |range: Range<u64>| cache.read(INodeNo(7), Version::End, &range);
        for range in [2 * BLOCK..length, length - 5..length, 3 * BLOCK - 1..3 * BLOCK + 1, length..length] {
            assert_eq!(read(range.clone()).unwrap(), all[range.start as usize..range.end as usize]);
        }
        assert!(read(first..length).is_none(), "its first block is not whole");
        assert!(read(length - 1..length + 1).is_none());
        assert!(cache.read(INodeNo(7), Version::Attempt(1), &(2 * BLOCK..length)).is_none());
        assert!(cache.read(INodeNo(8), Version::End, &(2 * BLOCK..length)).is_none());
    }
}
