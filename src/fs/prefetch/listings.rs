//! Which thread has listed which folder lately: a program that goes through files (`grep -r`, `rsync`, `tar`) lists their folder first,
//! and then reads them in that order.

use crate::platform::ino::Ino;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Listings remembered: `rsync` lists a thousand files ahead.
const LISTINGS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(4095);

/// Threads remembered with the last listing of each.
const THREADS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1023);

/// Listings by threads (`fuse_in_header.pid`, fuse(4)). Held for a few instructions, with no other lock.
///
/// They do not expire: the kernel keeps listings, so a reader that comes back to a folder is not seen to list it again.
pub(super) struct Listings(Mutex<ListedFolders>);

struct ListedFolders {
    by_thread: LruCache<(u32, Ino), ()>,
    last: LruCache<u32, Ino>,
}

impl Default for Listings {
    fn default() -> Self {
        Listings(Mutex::new(ListedFolders { by_thread: LruCache::sparse(LISTINGS), last: LruCache::sparse(THREADS) }))
    }
}

impl Listings {
    /// `thread` (0: unknown) begins to list `folder`.
    pub(super) fn note(&self, thread: u32, folder: Ino) {
        if thread != 0 {
            let mut listed = self.listed();
            listed.by_thread.put((thread, folder), ());
            listed.last.put(thread, folder);
        }
    }

    /// Returns whether `thread` has listed `folder`.
    pub(super) fn has(&self, thread: u32, folder: Ino) -> bool {
        self.listed().by_thread.get(&(thread, folder)).is_some()
    }

    /// Returns whether `folder` was the last that `thread` listed. A thread that lists many folders and then reads here and there walks through none.
    pub(super) fn is_last(&self, thread: u32, folder: Ino) -> bool {
        self.listed().last.get(&thread) == Some(&folder)
    }

    fn listed(&self) -> MutexGuard<'_, ListedFolders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_its_threads_own() {
        let listed = Listings::default();
        listed.note(7, Ino(2));
        listed.note(0, Ino(2));

        assert!(listed.has(7, Ino(2)));
        assert!(!listed.has(8, Ino(2)) && !listed.has(7, Ino(3)) && !listed.has(0, Ino(2)));
    }

    #[test]
    fn a_thread_has_one_last_listing() {
        let listed = Listings::default();
        listed.note(7, Ino(2));
        listed.note(8, Ino(3));
        assert!(listed.is_last(7, Ino(2)));
        listed.note(7, Ino(4));
        assert!(!listed.is_last(7, Ino(2)) && listed.has(7, Ino(2)));
    }

    #[test]
    fn the_oldest_listing_makes_room() {
        let listed = Listings::default();
        (1..=5000).for_each(|folder| listed.note(7, Ino(folder)));

        assert!(!listed.has(7, Ino(1)));
        assert!(listed.has(7, Ino(5000)));
    }
}
