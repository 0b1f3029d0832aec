//! READs that wait for the Source: those of one file are bounded, so that the kernel sends those of other files.
//!
//! The kernel has a bounded number of background requests under way: readahead, and reads of pages that it does not have.
//! A program that asks for gigabytes ahead (`posix_fadvise`) from a silent host would use them all.
//!
//! A READ that is refused was ahead of every program. Where a program needs some of its bytes the kernel asks once more, for a page or for a
//! folio of many, and that READ does not count as a background request.

use crate::platform::ino::Ino;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Background requests under way at a time. Reads through the page cache are background requests: with the usual few,
/// readers that wait for a dead host would stop reads of cached files.
pub(super) const MAX_BACKGROUND: u16 = 4096;

/// The READs of a file may use one part in so many of what is free. A sequential reader has about eight READs.
const PART: usize = 16;

/// READs that were refused, remembered: as many as the kernel has under way.
const REFUSED: usize = 4096;

/// The READs of one mount that wait.
#[derive(Debug)]
pub struct ReadLimit {
    /// Background requests that the kernel has under way at most.
    most: usize,
    /// Bytes of a page. The kernel reads no less ahead.
    page: u32,
    by_file: Mutex<ByFile>,
}

#[derive(Debug, Default)]
struct ByFile {
    all: usize,
    counts: HashMap<Ino, usize>,
    /// READs that were refused lately: files, and their bytes.
    refused: VecDeque<(Ino, Range<u64>)>,
}

/// One READ that waits, until dropped.
#[derive(Debug)]
pub struct WaitingRead {
    waiting: Arc<ReadLimit>,
    ino: Ino,
}

impl Default for ReadLimit {
    /// The limit of a mount on this machine.
    fn default() -> ReadLimit {
        ReadLimit::new(MAX_BACKGROUND, u32::try_from(rustix::param::page_size()).unwrap_or(4096))
    }
}

impl ReadLimit {
    /// No READ waits. `most`: background requests under way at a time; `page`: bytes of a page of this machine.
    pub fn new(most: u16, page: u32) -> ReadLimit {
        ReadLimit { most: most.into(), page, by_file: Mutex::default() }
    }

    /// A READ of `length` bytes at `offset` begins to wait. `None`: its file has too many, and the READ is to fail, unless it was refused
    /// before.
    pub fn begin(self: &Arc<Self>, ino: Ino, offset: u64, length: u32) -> Option<WaitingRead> {
        let mut by_file = self.by_file();
        let left = self.most.saturating_sub(by_file.all);
        let count = by_file.counts.get(&ino).copied().unwrap_or(0);
        let end = offset.saturating_add(length.into());
        let lies_within = |(file, range): &(Ino, Range<u64>)| *file == ino && range.start <= offset && end <= range.end;
        if length > self.page && count >= left / PART && !by_file.refused.iter().any(lies_within) {
            by_file.refused.push_back((ino, offset..end));
            if by_file.refused.len() > REFUSED {
                by_file.refused.pop_front();
            }
            return None;
        }
        *by_file.counts.entry(ino).or_default() += 1;
        by_file.all += 1;
        Some(WaitingRead { waiting: Arc::clone(self), ino })
    }

    fn by_file(&self) -> MutexGuard<'_, ByFile> {
        self.by_file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WaitingRead {
    fn drop(&mut self) {
        let mut by_file = self.waiting.by_file();
        by_file.all -= 1;
        if let Some(count) = by_file.counts.get_mut(&self.ino) {
            *count -= 1;
            if *count == 0 {
                by_file.counts.remove(&self.ino);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_asked_far_ahead_leave_room_for_others() {
        let waiting = Arc::new(ReadLimit::new(4096, 16384));
        let mut under_way = Vec::new();
        for file in 0..40 {
            under_way.extend((0..3600).map_while(|number| waiting.begin(Ino(file), number << 20, 1 << 20)));
        }

        assert!((2000..4000).contains(&under_way.len()), "{}", under_way.len());
        assert!(waiting.begin(Ino(7), 5 << 40, 1 << 20).is_none());
        assert!(waiting.begin(Ino(7), 6 << 40, 16384).is_some(), "a program needs it");
        let reader: Vec<_> = (0..8).map_while(|number: u64| waiting.begin(Ino(99), number << 20, 1 << 20)).collect();
        assert_eq!(reader.len(), 8, "as many as one sequential reader has");
    }

    #[test]
    fn an_answered_read_does_not_count() {
        let waiting = Arc::new(ReadLimit::new(64, 4096));
        let all: Vec<_> = (0..9).map_while(|number: u64| waiting.begin(Ino(1), number << 20, 1 << 20)).collect();
        assert_eq!(all.len(), 3);

        drop(all);

        assert_eq!(waiting.by_file().all, 0);
        assert!(waiting.by_file().counts.is_empty());
        assert!(waiting.begin(Ino(1), 0, 1 << 20).is_some());
    }

    /// The kernel asks a second time for what a program needs, in pieces of any size.
    #[test]
    fn what_was_refused_and_is_needed_is_read() {
        let waiting = Arc::new(ReadLimit::new(64, 4096));
        let _all: Vec<_> = (0..9).map_while(|number: u64| waiting.begin(Ino(1), number << 20, 1 << 20)).collect();
        assert!(waiting.begin(Ino(1), 9 << 20, 1 << 20).is_none());

        let large_folio = waiting.begin(Ino(1), 9 << 20, 64 << 10);
        let all_again = waiting.begin(Ino(1), 9 << 20, 1 << 20);

        assert!(large_folio.is_some() && all_again.is_some());
        assert!(waiting.begin(Ino(1), 10 << 20, 64 << 10).is_none(), "behind it");
        assert!(waiting.begin(Ino(2), 0, 1 << 20).is_some());
        for number in 0..2 * REFUSED as u64 {
            assert!(waiting.begin(Ino(1), number << 30, 1 << 20).is_none() || number == 0);
        }
        assert_eq!(waiting.by_file().refused.len(), REFUSED);
    }
}
