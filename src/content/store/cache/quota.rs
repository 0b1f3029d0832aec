//! The quota: what is charged, what is recorded in the LRU index, and eviction until a write fits in.

use super::super::files::{is_full, lock};
use super::super::index::{Change, Changes, Sums};
use super::super::object::Object;
use super::super::policy::{EvictionPolicy, Moment};
use super::super::{Evicted, StoreError, io_error};
use super::{Cache, TICK};
use crate::content::fixity::WHOLE_LIMIT;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Pending changes that are recorded before the next tick.
const MANY_CHANGES: usize = 4096;
/// Likewise one part in so many of the quota, of pending charges, within these bounds: other processes do not see them until then.
/// Each commit waits until the disk has all that was written before, and so does the writer of a large file.
const MUCH_OF_THE_QUOTA: u64 = 64;
const MANY_BYTES: RangeInclusive<u64> = 16 << 20..=128 << 20;
/// One part in so many of the quota stays free of prefetched objects: what the index grows by would evict them again.
const HEADROOM: u64 = 50;

/// Changes that the index does not have yet.
#[derive(Default)]
pub(super) struct Pending {
    changes: Changes,
    /// Bytes charged less bytes freed.
    bytes: i64,
}

impl Pending {
    /// Returns whether it is to be recorded before the next tick.
    fn is_much(&self, quota: u64) -> bool {
        let bytes = u64::try_from(self.bytes).unwrap_or(0);
        self.changes.len() >= MANY_CHANGES
            || bytes >= (quota / MUCH_OF_THE_QUOTA).clamp(*MANY_BYTES.start(), *MANY_BYTES.end())
    }
}

/// Bytes removed that the file system does not show as free yet: descriptors of other processes hold them until their next tick, and some
/// file systems free in the background. Without them one shortage would empty the cache.
pub(super) struct Released {
    bytes: u64,
    since: Instant,
    /// Bytes that were free when they were asked last.
    free: u64,
}

impl Released {
    pub(super) fn nothing() -> Released {
        Released { bytes: 0, since: Instant::now(), free: 0 }
    }

    /// Notes the bytes that are free now: those that are more than before were counted here, and are not any more.
    fn shown(&mut self, free: u64) {
        self.bytes = self.bytes.saturating_sub(free.saturating_sub(self.free));
        self.free = free;
    }
}

impl Cache {
    /// Bytes that everything takes: what all processes recorded, what this one has not yet, the index's own files, and the counted
    /// folder.
    pub(in crate::content::store) fn bytes(&self) -> u64 {
        let pending = lock(&self.pending).bytes;
        self.sums().bytes.saturating_add_signed(pending) + self.fixed_bytes()
    }

    /// Bytes that cannot be evicted. The counted folder takes no more than half of the quota: without room for objects no large
    /// file could be read.
    fn fixed_bytes(&self) -> u64 {
        self.index.own_bytes() + self.counted_bytes.load(Ordering::Relaxed).min(self.quota / 2)
    }

    /// Returns the sums as last recorded. An index that cannot be read counts nothing: the reserve still holds.
    pub(in crate::content::store) fn sums(&self) -> Sums {
        self.index.sums().unwrap_or_else(|cause| {
            tracing::warn!(%cause, "the LRU index cannot be read");
            Sums::default()
        })
    }

    /// A file takes `bytes` now, `before` until now.
    pub(in crate::content::store) fn charge(&self, name: &str, before: u64, bytes: u64) {
        self.note(name, Change::Present { bytes, used: Moment::now() }, bytes as i64 - before as i64);
    }

    /// A file that took `before` is gone.
    pub(in crate::content::store) fn note_gone(&self, name: &str, before: u64) {
        self.note(name, Change::Gone, -(before as i64));
    }

    /// The uses of an object since they were noted last.
    pub(super) fn note_use(&self, object: &Object) {
        if let Some(used) = object.take_use() {
            self.note(&object.key().object_name(), Change::Used(used), 0);
        }
    }

    fn note(&self, name: &str, change: Change, bytes: i64) {
        let mut pending = lock(&self.pending);
        let change = pending.changes.get(name).map_or(change, |earlier| change.after(*earlier));
        pending.changes.insert(name.into(), change);
        pending.bytes = pending.bytes.saturating_add(bytes);
        if pending.is_much(self.quota) {
            self.wake.notify_one();
        }
    }

    /// Records what is pending. What cannot be recorded stays pending.
    pub(in crate::content::store) fn flush(&self) {
        let _flushing = lock(&self.flushing);
        self.open.all().iter().for_each(|object| self.note_use(object));
        let (changes, bytes) = {
            let mut pending = lock(&self.pending);
            if pending.changes.is_empty() {
                return;
            }
            (std::mem::take(&mut pending.changes), pending.bytes)
        };
        let written = self.index.apply(&changes);
        let mut pending = lock(&self.pending);
        match written {
            Ok(()) => pending.bytes -= bytes,
            Err(cause) => {
                tracing::warn!(%cause, "the LRU index cannot be written");
                for (name, earlier) in changes {
                    let change = pending.changes.get(&name).map_or(earlier, |later| later.after(earlier));
                    pending.changes.insert(name, change);
                }
            }
        }
    }

    /// Returns whether `needed` bytes may have room, were all objects evicted, those too that cannot be.
    /// Where they have none nothing is evicted for them. Of few bytes the question costs more than a failing write.
    pub(in crate::content::store) fn could_hold(&self, needed: u64) -> bool {
        if needed <= WHOLE_LIMIT {
            return needed <= self.quota;
        }
        if needed.saturating_add(self.fixed_bytes()) > self.quota {
            return false;
        }
        let Ok(sums) = self.index.sums() else { return true };
        let all = sums.bytes.saturating_add_signed(lock(&self.pending).bytes);
        let free = self.free().saturating_add(all);
        self.reserve.saturating_add(needed) <= free
    }

    /// Evicts until `needed` bytes more fit into quota and reserve; [`StoreError::Full`] where they cannot.
    pub(in crate::content::store) fn make_room(&self, needed: u64, policy: EvictionPolicy) -> Result<(), StoreError> {
        let headroom = if policy == EvictionPolicy::Any { 0 } else { self.quota / HEADROOM };
        let needed = needed.saturating_add(headroom);
        if needed > self.quota {
            return Err(self.full());
        }
        if self.excess(needed, self.free()) == 0 {
            return Ok(());
        }
        let mut released = self.evicting();
        loop {
            // Another thread may have evicted while this one waited.
            let free = self.free();
            released.shown(free);
            match self.excess(needed, free.saturating_add(released.bytes)) {
                0 => return Ok(()),
                excess if self.evict_oldest(&mut released, excess, policy) == 0 => return Err(self.full()),
                _ => {}
            }
        }
    }

    /// Evicts the least recently used, so many bytes, for a writer below `folder`. How many went: none where that is on another
    /// file system, or where all that is here would not do.
    pub fn give_up(&self, folder: &Path, bytes: u64) -> u64 {
        let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
        if device(folder).is_none_or(|there| Some(there) != device(&self.folder)) {
            return 0;
        }
        let mut released = self.evicting();
        // While it is recorded what is pending counts twice.
        self.flush();
        if self.sums().bytes < bytes { 0 } else { self.evict_oldest(&mut released, bytes, EvictionPolicy::Any) }
    }

    /// Bytes that must go before `needed` more fit; `free`: those that are free, or will be soon.
    fn excess(&self, needed: u64, free: u64) -> u64 {
        let over_quota = self.bytes().saturating_add(needed).saturating_sub(self.quota);
        over_quota.max(self.reserve.saturating_add(needed).saturating_sub(free))
    }

    fn free(&self) -> u64 {
        (self.free_space)().unwrap_or(u64::MAX)
    }

    /// The right to evict, and what was released lately.
    fn evicting(&self) -> MutexGuard<'_, Released> {
        let mut released = lock(&self.evicting);
        if released.since.elapsed() > 2 * TICK {
            *released = Released::nothing();
        }
        released
    }

    /// Evicts files of `bytes` in all and a tenth of what is left, so that the next writes need not evict again;
    /// oldest first. How many bytes went.
    fn evict_oldest(&self, released: &mut Released, bytes: u64, policy: EvictionPolicy) -> u64 {
        // What is pending decides too which are the oldest.
        self.flush();
        released.shown(self.free());
        // On a full disk the commit may fail although the files are gone: the second round finds them gone and has room.
        for _ in 0..2 {
            let target = |all: u64| all.saturating_sub(bytes) / 10 * 9;
            match self.index.evict(target, policy.spared_since(), |name| self.evict_file(name) != Evicted::Kept) {
                Ok(gone) => {
                    released.bytes = released.bytes.saturating_add(gone);
                    released.shown(self.free());
                    return gone;
                }
                Err(cause) => tracing::warn!(%cause, "an eviction cannot be recorded"),
            }
        }
        0
    }

    /// Runs a write to `path` again after evicting, where the file system has no room.
    pub(in crate::content::store) fn retry_when_full<T>(
        &self,
        policy: EvictionPolicy,
        path: &Path,
        mut write: impl FnMut() -> io::Result<T>,
    ) -> Result<T, StoreError> {
        loop {
            let is_without_room = |outcome: &io::Result<T>| outcome.as_ref().is_err_and(is_full);
            let mut outcome = write();
            if is_without_room(&outcome) {
                let mut released = self.evicting();
                // Another thread may have evicted while this one waited.
                outcome = write();
                if is_without_room(&outcome) {
                    match self.evict_oldest(&mut released, 1, policy) {
                        0 => return Err(self.full()),
                        _ => continue,
                    }
                }
            }
            return outcome.map_err(io_error(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::store::{ObjectKey, Store};
    use std::sync::Arc;

    #[test]
    fn an_evicted_object_is_closed_although_it_was_never_synced() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Store::open(folder.path(), Some(1 << 30), 0).unwrap();
        let put = |number| {
            let key = ObjectKey::inode("https://source.example/", number);
            let partial = disk.begin(&key, Some(1000), EvictionPolicy::Any).unwrap();
            partial.append(&[7; 1000], EvictionPolicy::Any).unwrap();
            let object = Arc::downgrade(&partial.commit(&key, 1000, EvictionPolicy::Any).unwrap());
            (key, object)
        };
        let [(evicted, first), (removed, second)] = [1, 2].map(put);
        assert!(first.upgrade().is_some() && second.upgrade().is_some(), "kept open");

        assert!(matches!(disk.evict(&evicted), Evicted::Bytes(_)));
        disk.cache.remove(&removed);

        assert!(first.upgrade().is_none() && second.upgrade().is_none());
    }

    #[test]
    fn bytes_are_given_up_for_the_same_file_system_and_none_in_vain() {
        const MIB: u64 = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let disk = Store::open(folder.path(), Some(1 << 30), 0).unwrap();
        let key = |number: u64| ObjectKey::inode("http://h/", number);
        for number in 0..8 {
            let partial = disk.begin(&key(number), Some(MIB), EvictionPolicy::Any).unwrap();
            partial.append(&vec![1; MIB as usize], EvictionPolicy::Any).unwrap();
            partial.commit(&key(number), MIB, EvictionPolicy::Any).unwrap();
        }
        let objects = || {
            disk.cache.write_down();
            disk.usage().objects
        };

        assert_eq!((disk.give_up(folder.path(), 9 * MIB), objects()), (0, 8), "all of it would not do");
        assert_eq!((disk.give_up(Path::new("/proc"), MIB), objects()), (0, 8), "that is elsewhere");
        assert!(disk.give_up(folder.path(), 3 * MIB) >= 3 * MIB);
        assert!((1..=5).contains(&objects()), "{}", objects());
        assert!(disk.get(&key(7)).is_some(), "what was used last stays");
    }

    #[test]
    fn pending_charges_are_few_compared_with_the_quota() {
        let pending = |bytes| Pending { bytes, ..Pending::default() };
        let mib = 1 << 20;

        assert!(pending(16 * mib).is_much(64 << 20) && !pending(16 * mib - 1).is_much(64 << 20), "a small cache");
        assert!(pending(64 * mib).is_much(4 << 30) && !pending(64 * mib - 1).is_much(4 << 30));
        assert!(pending(128 * mib).is_much(1 << 40) && !pending(128 * mib - 1).is_much(1 << 40), "a large one");
        assert!(!pending(-mib).is_much(0), "freed");
        let changes = (0..MANY_CHANGES).map(|number| (number.to_string().into(), Change::Gone)).collect();
        assert!(Pending { changes, bytes: 0 }.is_much(16 << 30));
    }

    /// Charges that cannot be recorded count still, and are recorded later.
    #[test]
    fn charges_that_cannot_be_recorded_stay_pending() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Store::open(folder.path(), Some(1 << 30), 0).unwrap();
        // The database takes no key so long.
        let long = "n".repeat(1000);
        disk.cache.charge("tmp/a", 0, 5 << 20);
        disk.cache.charge(&long, 0, 3 << 20);
        let before = disk.cache.bytes();

        disk.cache.flush();
        disk.cache.charge("tmp/a", 5 << 20, 6 << 20);
        disk.cache.flush();

        assert_eq!((disk.cache.bytes(), disk.cache.sums().bytes), (before + (1 << 20), 0));
        lock(&disk.cache.pending).changes.remove(&*long);
        disk.cache.flush();
        assert_eq!(disk.cache.sums().bytes, 6 << 20);
    }
}
