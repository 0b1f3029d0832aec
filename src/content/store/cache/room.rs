//! Room for what is written: within the quota, beside the reserve, and at the expense of what was used least recently.

use super::super::recency::{Fate, OBJECTS};
use super::super::victims::Victims;
use super::super::{ObjectKey, StoreError, is_full};
use super::{Cache, TICK, lock, unlink_idle_partial};
use crate::content::fixity::WHOLE_LIMIT;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

/// One part in so many of the quota stays free of what is fetched ahead: what the cache's own records grow by would evict it
/// again.
const HEADROOM: u64 = 50;

/// Bytes unlinked that the file system may not show as free yet: descriptors of other processes hold them until their
/// next tick, and some file systems free in the background. Without them one shortage would empty the cache.
pub(super) struct Released {
    pub(super) bytes: u64,
    pub(super) since: Instant,
}

impl Cache {
    /// Whether `needed` bytes may have room, were all objects evicted, those too that cannot be: where they have none nothing need go
    /// for them. Of few that is not worth to be asked: they are soon told.
    pub(in crate::content::store) fn could_hold(&self, needed: u64) -> bool {
        if needed <= WHOLE_LIMIT {
            return needed <= self.quota;
        }
        let stays = self.recency.own_bytes() + self.beside.bytes(self.quota);
        if needed.saturating_add(stays) > self.quota {
            return false;
        }
        let Ok(sums) = self.recency.sums() else { return true };
        let all = sums.bytes.saturating_add_signed(lock(&self.pending).bytes);
        let free = (self.free_space)().unwrap_or(u64::MAX).saturating_add(all);
        self.reserve.saturating_add(needed) <= free
    }

    /// Evicts until `needed` bytes more fit into quota and reserve; [`StoreError::Full`] where they cannot.
    pub(in crate::content::store) fn make_room(&self, needed: u64, victims: &Victims) -> Result<(), StoreError> {
        let needed = needed.saturating_add(if victims.spares() { self.quota / HEADROOM } else { 0 });
        if needed > self.quota {
            return Err(self.full());
        }
        if self.excess(needed, 0) == 0 {
            return Ok(());
        }
        let mut released = lock(&self.evicting);
        if released.since.elapsed() > 2 * TICK {
            *released = Released { bytes: 0, since: Instant::now() };
        }
        loop {
            // Another thread may have evicted while this one waited.
            match self.excess(needed, released.bytes) {
                0 => return Ok(()),
                excess => match self.evict(excess, victims) {
                    0 => return Err(self.full()),
                    bytes => released.bytes += bytes,
                },
            }
        }
    }

    /// Evicts for others who write beside it on the same file system: as many bytes, where it has so many. How many went.
    pub(in crate::content::store) fn give_up(&self, bytes: u64) -> u64 {
        let mut released = lock(&self.evicting);
        // While it is written down what is pending counts twice.
        self.flush();
        if self.sums().bytes < bytes {
            return 0;
        }
        let gone = self.evict(bytes, &Victims::any());
        released.bytes = released.bytes.saturating_add(gone);
        gone
    }

    /// Bytes that must go before `needed` more fit; `released`: those that will be free soon.
    fn excess(&self, needed: u64, released: u64) -> u64 {
        let over_quota = self.bytes().saturating_add(needed).saturating_sub(self.quota);
        let free = (self.free_space)().unwrap_or(u64::MAX).saturating_add(released);
        over_quota.max(self.reserve.saturating_add(needed).saturating_sub(free))
    }

    /// Evicts files of `bytes` in all and a tenth of what is left, so that the next writes need not evict again;
    /// oldest first. How many bytes went. Call with `evicting` held.
    fn evict(&self, bytes: u64, victims: &Victims) -> u64 {
        // What is pending decides who is oldest, too.
        self.flush();
        self.close();
        // On a full disk the commit may fail although the files are gone: the second round finds them gone and has room.
        for _ in 0..2 {
            let target = |all: u64| all.saturating_sub(bytes) / 10 * 9;
            match self.recency.evict(target, victims.since(), |name| self.victim(name)) {
                Ok(removed) => return removed,
                Err(cause) => tracing::warn!(%cause, "an eviction cannot be written down"),
            }
        }
        0
    }

    /// Unlinks a file unless it is pinned (by any process) or being written.
    pub(super) fn victim(&self, name: &str) -> Fate {
        let path = self.path(name);
        let Some(key) = name.strip_prefix(OBJECTS) else { return unlink_idle_partial(&path) };
        match std::fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.nlink() > 1 => return Fate::Kept,
            Ok(_) => {}
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Fate::Removed,
            Err(_) => return Fate::Kept,
        }
        if let Some(key) = key.split_once('/').and_then(|(_, key)| ObjectKey::parse(key)) {
            self.let_go(&key);
        }
        match std::fs::remove_file(&path) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => Fate::Kept,
            _ => Fate::Removed,
        }
    }

    /// Runs a write again after evicting, where the file system has no room.
    pub(in crate::content::store) fn retry_when_full(
        &self,
        victims: &Victims,
        mut write: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        loop {
            match write() {
                Err(cause) if is_full(&cause) => {
                    let _evicting = lock(&self.evicting);
                    if self.evict(1, victims) == 0 {
                        return Err(cause);
                    }
                }
                outcome => return outcome,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::store::{Evicted, Store};
    use std::path::Path;
    use std::sync::Arc;

    #[test]
    fn what_goes_is_held_open_by_nobody_although_it_was_never_synced() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Store::open(folder.path(), Some(1 << 30), 0).unwrap();
        let put = |number| {
            let key = ObjectKey::inode("https://source.example/", number);
            let partial = disk.begin(&key, Some(1000)).unwrap();
            partial.write_at(0, &[7; 1000]).unwrap();
            let object = Arc::downgrade(&partial.commit(&key, 1000).unwrap());
            (key, object)
        };
        let [(evicted, first), (removed, second)] = [1, 2].map(put);
        assert!(first.upgrade().is_some() && second.upgrade().is_some(), "kept open");

        assert!(matches!(disk.cache.evict_one(&evicted), Evicted::Dropped(_)));
        disk.cache.remove(&removed);

        assert!(first.upgrade().is_none() && second.upgrade().is_none());
    }

    #[test]
    fn what_others_need_on_the_same_file_system_is_given_up_and_nothing_in_vain() {
        const MIB: u64 = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let disk = Store::open(folder.path(), Some(1 << 30), 0).unwrap();
        let key = |number: u64| ObjectKey::inode("http://h/", number);
        for number in 0..8 {
            let partial = disk.begin(&key(number), Some(MIB)).unwrap();
            partial.write_at(0, &vec![1; MIB as usize]).unwrap();
            partial.commit(&key(number), MIB).unwrap();
        }
        let objects = || disk.usage().objects;

        assert_eq!((disk.give_up(folder.path(), 9 * MIB), objects()), (0, 8), "all of it would not do");
        assert_eq!((disk.give_up(Path::new("/proc"), MIB), objects()), (0, 8), "that is elsewhere");
        assert!(disk.give_up(folder.path(), 3 * MIB) >= 3 * MIB);
        assert!((1..=5).contains(&objects()), "{}", objects());
        assert!(disk.get(&key(7)).is_some(), "what was used last stays");
    }
}
