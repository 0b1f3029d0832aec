//! Who has listed which folder lately: whoever goes through files lists their folder first (`grep -r`, `rsync`, `tar`, `cp -r`),
//! and then reads them in that order.

use fuser::INodeNo;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Listings remembered of the threads of one part: `rsync` lists a thousand files ahead.
const LISTINGS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1023);

/// And threads, with the last listing of each.
const THREADS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

/// How long. The kernel keeps listings, so a reader that comes back to a folder is not seen to list it again.
const REMEMBERED: Duration = Duration::from_secs(300);

/// Threads of one part wait for each other. Those of one program have numbers that follow each other, so they are of different parts.
const PARTS: usize = 32;

/// Listings by threads (`fuse_in_header.pid`, fuse(4)).
#[derive(Default)]
pub(super) struct Listings {
    /// Each held by itself alone.
    parts: [Mutex<Listed>; PARTS],
}

impl Listings {
    /// `thread` (0: one that cannot be told from others) begins to list `folder`.
    pub(super) fn note(&self, thread: u32, folder: INodeNo, now: Instant) {
        if thread != 0 {
            self.part(thread).note(thread, folder, now);
        }
    }

    /// The same, and no other since: who lists many folders and then reads here and there goes through none.
    pub(super) fn has_last(&self, thread: u32, folder: INodeNo, now: Instant) -> bool {
        self.part(thread).has_last(thread, folder, now)
    }

    /// Whether `thread` has listed `folder` not long ago.
    pub(super) fn has(&self, thread: u32, folder: INodeNo, now: Instant) -> bool {
        self.part(thread).has(thread, folder, now)
    }

    fn part(&self, thread: u32) -> MutexGuard<'_, Listed> {
        self.parts[thread as usize % PARTS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those of some threads.
struct Listed {
    by_thread: LruCache<(u32, INodeNo), Instant>,
    last: LruCache<u32, INodeNo>,
}

impl Default for Listed {
    fn default() -> Self {
        Listed { by_thread: LruCache::sparse(LISTINGS), last: LruCache::sparse(THREADS) }
    }
}

impl Listed {
    fn note(&mut self, thread: u32, folder: INodeNo, now: Instant) {
        self.by_thread.put((thread, folder), now);
        self.last.put(thread, folder);
    }

    fn has_last(&mut self, thread: u32, folder: INodeNo, now: Instant) -> bool {
        self.last.get(&thread) == Some(&folder) && self.has(thread, folder, now)
    }

    fn has(&mut self, thread: u32, folder: INodeNo, now: Instant) -> bool {
        let listed = self.by_thread.get(&(thread, folder));
        listed.is_some_and(|since| now.saturating_duration_since(*since) < REMEMBERED)
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
    fn the_last_listing_is_one() {
        let (listed, now) = (Listings::default(), Instant::now());
        listed.note(7, INodeNo(2), now);
        listed.note(8, INodeNo(3), now);
        assert!(listed.has_last(7, INodeNo(2), now));
        listed.note(7, INodeNo(4), now);
        assert!(!listed.has_last(7, INodeNo(2), now) && listed.has(7, INodeNo(2), now));
    }

    #[test]
    fn the_oldest_makes_room() {
        let (listed, now) = (Listings::default(), Instant::now());
        (1..=2000).for_each(|folder| listed.note(7, INodeNo(folder), now));

        assert!(!listed.has(7, INodeNo(1), now));
        assert!(listed.has(7, INodeNo(2000), now));
    }

    #[test]
    fn threads_that_follow_each_other_do_not_wait_for_each_other() {
        let (listed, now) = (Listings::default(), Instant::now());
        let _others: Vec<_> = (8..8 + PARTS as u32 - 1).map(|thread| listed.part(thread)).collect();

        listed.note(7, INodeNo(2), now);

        assert!(listed.has_last(7, INodeNo(2), now));
    }
}
