//! Whole objects that the disk has no room for.

use super::counting_filter::CountingFilter;
use bytes::Bytes;
use fuser::INodeNo;
use lru::LruCache;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of them that are kept in memory; the least recent go.
const LIMIT: usize = 64 << 20;

/// The objects. Who looks for another takes no lock.
#[derive(Default)]
pub(super) struct Uncached {
    objects: Mutex<Objects>,
    /// Changed under the lock.
    held: CountingFilter,
}

struct Objects {
    by_inode: LruCache<INodeNo, Bytes>,
    bytes: usize,
}

impl Default for Objects {
    fn default() -> Objects {
        Objects { by_inode: LruCache::unbounded(), bytes: 0 }
    }
}

impl Uncached {
    pub(super) fn get(&self, ino: INodeNo) -> Option<Bytes> {
        self.objects(ino)?.by_inode.get(&ino).cloned()
    }

    /// The same for who only looks: it does not count as a use.
    pub(super) fn peek(&self, ino: INodeNo) -> Option<Bytes> {
        self.objects(ino)?.by_inode.peek(&ino).cloned()
    }

    pub(super) fn remove(&self, ino: INodeNo) -> Option<Bytes> {
        let mut objects = self.objects(ino)?;
        let bytes = objects.by_inode.pop(&ino)?;
        objects.bytes -= bytes.len();
        self.held.remove(ino);
        Some(bytes)
    }

    pub(super) fn put(&self, ino: INodeNo, bytes: Bytes) {
        let mut objects = self.lock();
        objects.bytes += bytes.len();
        match objects.by_inode.put(ino, bytes) {
            Some(before) => objects.bytes -= before.len(),
            None => self.held.add(ino),
        }
        while objects.bytes > LIMIT {
            let Some((dropped, bytes)) = objects.by_inode.pop_lru() else { break };
            objects.bytes -= bytes.len();
            self.held.remove(dropped);
        }
    }

    /// Where that one may be among them.
    fn objects(&self, ino: INodeNo) -> Option<MutexGuard<'_, Objects>> {
        self.held.may_hold(ino).then(|| self.lock())
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
        (1..=4).for_each(|number| drop(uncached.remove(INodeNo(number))));
        assert!(
            !(1..=4).any(|number| uncached.held.may_hold(INodeNo(number))),
            "each was taken out as often as put in"
        );
    }

    #[test]
    fn who_looks_for_another_waits_for_nobody() {
        let uncached = Uncached::default();
        uncached.put(INodeNo(2), Bytes::from_static(b"a"));
        uncached.put(INodeNo(2), Bytes::from_static(b"b"));
        let _lock = uncached.lock();

        assert!(uncached.get(INodeNo(1)).is_none() && uncached.remove(INodeNo(1)).is_none());
    }
}
