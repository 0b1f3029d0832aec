//! Which thread has listed which folder lately: a program that goes through files lists their folder first (`grep -r`, `rsync`, `tar`),
//! and then reads them in that order.

use fuser::INodeNo;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Listings remembered: `rsync` lists a thousand files ahead.
const LISTINGS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(4095);

/// Threads remembered with the last listing of each.
const THREADS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1023);

/// A listing counts for so long. The kernel keeps listings, so a reader that comes back to a folder is not seen to list it again.
const REMEMBERED: Duration = Duration::from_secs(300);

/// Listings by threads (`fuse_in_header.pid`, fuse(4)). Held for a few instructions, with no other lock.
pub(super) struct Listings(Mutex<Listed>);

struct Listed {
    by_thread: LruCache<(u32, INodeNo), Instant>,
    last: LruCache<u32, INodeNo>,
}

impl Default for Listings {
    fn default() -> Self {
        Listings(Mutex::new(Listed { by_thread: LruCache::sparse(LISTINGS), last: LruCache::sparse(THREADS) }))
    }
}

impl Listings {
    /// `thread` (0: unknown) begins to list `folder`.
    pub(super) fn note(&self, thread: u32, folder: INodeNo, now: Instant) {
        if thread != 0 {
            let mut listed = self.listed();
            listed.by_thread.put((thread, folder), now);
            listed.last.put(thread, folder);
        }
    }

    /// Whether `thread` has listed `folder` not long ago.
    pub(super) fn has(&self, thread: u32, folder: INodeNo, now: Instant) -> bool {
        let mut listed = self.listed();
        let since = listed.by_thread.get(&(thread, folder));
        since.is_some_and(|since| now.saturating_duration_since(*since) < REMEMBERED)
    }

    /// The same, and no other since: a thread that lists many folders and then reads here and there goes through none.
    pub(super) fn is_last(&self, thread: u32, folder: INodeNo, now: Instant) -> bool {
        self.listed().last.get(&thread) == Some(&folder) && self.has(thread, folder, now)
    }

    fn listed(&self) -> MutexGuard<'_, Listed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_its_threads_own_for_a_while() {
        let (listed, now) = (Listings::default(), Instant::now());
        listed.note(7, INodeNo(2), now);
        listed.note(0, INodeNo(2), now);

        assert!(listed.has(7, INodeNo(2), now));
        assert!(!listed.has(8, INodeNo(2), now) && !listed.has(7, INodeNo(3), now) && !listed.has(0, INodeNo(2), now));
        assert!(!listed.has(7, INodeNo(2), now + REMEMBERED));
    }

    #[test]
    fn a_thread_has_one_last_listing() {
        let (listed, now) = (Listings::default(), Instant::now());
        listed.note(7, INodeNo(2), now);
        listed.note(8, INodeNo(3), now);
        assert!(listed.is_last(7, INodeNo(2), now));
        listed.note(7, INodeNo(4), now);
        assert!(!listed.is_last(7, INodeNo(2), now) && listed.has(7, INodeNo(2), now));
    }

    #[test]
    fn the_oldest_listing_makes_room() {
        let (listed, now) = (Listings::default(), Instant::now());
        (1..=5000).for_each(|folder| listed.note(7, INodeNo(folder), now));

        assert!(!listed.has(7, INodeNo(1), now));
        assert!(listed.has(7, INodeNo(5000), now));
    }
}
