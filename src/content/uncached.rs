//! Whole objects that the disk has no room for.

use bytes::Bytes;
use fuser::INodeNo;
use lru::LruCache;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Octets of them that are kept in memory; the least recent go.
const LIMIT: usize = 64 << 20;

/// The objects. As long as there are none, which is nearly always, who looks takes no lock.
#[derive(Default)]
pub(super) struct Uncached {
    objects: Mutex<Objects>,
    /// How many there are. Written under the lock.
    count: AtomicUsize,
}

struct Objects {
    by_inode: LruCache<INodeNo, Bytes>,
    octets: usize,
}

impl Default for Objects {
    fn default() -> Objects {
        Objects { by_inode: LruCache::unbounded(), octets: 0 }
    }
}

impl Uncached {
    pub(super) fn get(&self, ino: INodeNo) -> Option<Bytes> {
        self.objects()?.by_inode.get(&ino).cloned()
    }

    /// The same for who only looks: it does not count as a use.
    pub(super) fn peek(&self, ino: INodeNo) -> Option<Bytes> {
        self.objects()?.by_inode.peek(&ino).cloned()
    }

    pub(super) fn remove(&self, ino: INodeNo) -> Option<Bytes> {
        let mut objects = self.objects()?;
        let octets = objects.by_inode.pop(&ino)?;
        objects.octets -= octets.len();
        self.count.store(objects.by_inode.len(), Ordering::Relaxed);
        Some(octets)
    }

    pub(super) fn put(&self, ino: INodeNo, octets: Bytes) {
        let mut objects = self.lock();
        objects.octets += octets.len();
        if let Some(before) = objects.by_inode.put(ino, octets) {
            objects.octets -= before.len();
        }
        while objects.octets > LIMIT {
            let Some((_, dropped)) = objects.by_inode.pop_lru() else { break };
            objects.octets -= dropped.len();
        }
        self.count.store(objects.by_inode.len(), Ordering::Relaxed);
    }

    /// Where there are any.
    fn objects(&self) -> Option<MutexGuard<'_, Objects>> {
        (self.count.load(Ordering::Relaxed) > 0).then(|| self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recent_go_where_there_are_too_many() {
        let uncached = Uncached::default();
        let third = Bytes::from(vec![1; LIMIT / 3]);
        (1..=3).for_each(|number| uncached.put(INodeNo(number), third.clone()));
        assert!(uncached.get(INodeNo(1)).is_some());

        uncached.put(INodeNo(4), third);

        let kept: Vec<u64> = (1..=4).filter(|number| uncached.peek(INodeNo(*number)).is_some()).collect();
        assert_eq!(kept, [1, 3, 4]);
        assert!(uncached.remove(INodeNo(3)).is_some() && uncached.remove(INodeNo(3)).is_none());
    }

    #[test]
    fn where_there_are_none_who_looks_waits_for_nobody() {
        let uncached = Uncached::default();
        let _lock = uncached.lock();

        assert!(uncached.get(INodeNo(1)).is_none() && uncached.remove(INodeNo(1)).is_none());
    }
}
