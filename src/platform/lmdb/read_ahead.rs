//! Read-ahead for a reader that goes through a table in order. Environments are opened with NO_READ_AHEAD, as lookups jump; a reader of
//! a whole table would wait for each page that is not in memory.

use std::ops::Range;

/// Bytes within which the next record is, once or twice, where a reader goes on in order.
const FIRST: usize = 64 << 10;

/// Bytes asked for ahead of the reader, at most.
const MOST: usize = 1 << 20;

/// Bytes of one request: the kernel takes no more than the device reads at once (madvise(2), MADV_WILLNEED).
const AT_ONCE: usize = 128 << 10;

/// One reader of one table: its records are passed in the order in which they are read.
///
/// Pages of a table are in its order, but for those that were written later: so a run goes on after a jump.
#[derive(Debug, Default)]
pub struct Ahead {
    run: Run,
    jump: Run,
}

/// Addresses up to `end` are of this run; those of the last `window` bytes before it were asked for, but for the first.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    from: usize,
    end: usize,
    window: usize,
}

impl Run {
    fn holds(&self, at: usize) -> bool {
        (self.from..self.end).contains(&at)
    }
}

impl Ahead {
    /// This record of the environment's mapping was read. The kernel reads what is asked for while the reader goes on.
    pub fn read(&mut self, record: &[u8]) {
        let Some(pages) = self.next(record.as_ptr().addr()) else { return };
        for first in pages.step_by(AT_ONCE) {
            // SAFETY: pages are read that are not in memory, and nothing else changes, with any mapping there.
            unsafe { libc::madvise(std::ptr::without_provenance_mut(first), AT_ONCE, libc::MADV_WILLNEED) };
        }
    }

    /// The pages to ask for once the record at this address was read.
    fn next(&mut self, at: usize) -> Option<Range<usize>> {
        if !self.run.holds(at) {
            if !self.jump.holds(at) {
                let from = at - at % FIRST;
                self.jump = Run { from, end: from + 2 * FIRST, window: FIRST };
                return None;
            }
            std::mem::swap(&mut self.run, &mut self.jump);
        }
        let run = &mut self.run;
        run.from = run.from.max((at - at % FIRST).saturating_sub(FIRST));
        if at + run.window / 2 < run.end {
            return None;
        }
        run.window = (2 * run.window).min(MOST);
        let pages = run.end..run.end + run.window;
        run.end = pages.end;
        Some(pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    const BASE: usize = 1 << 40;
    const PAGE: usize = 4096;

    /// The ranges that are asked for while a record of each of these pages is read.
    fn asked(pages: impl IntoIterator<Item = usize>) -> Vec<Range<usize>> {
        let mut ahead = Ahead::default();
        let asked = pages.into_iter().filter_map(|page| ahead.next(BASE + page * PAGE + 7));
        asked.map(|range| (range.start - BASE) / PAGE..(range.end - BASE) / PAGE).collect()
    }

    #[test]
    fn a_reader_in_order_has_each_page_asked_for_once() {
        let mut ahead = Ahead::default();
        let (mut begin, mut end) = (None, 0);
        for page in 0..10_000 {
            if let Some(pages) = ahead.next(BASE + page * PAGE) {
                assert!(begin.is_none() || pages.start == end, "no gap and nothing twice");
                begin = begin.or(Some(pages.start));
                end = pages.end;
                assert!(end - (BASE + page * PAGE) <= 2 * MOST);
            }
            assert!(page < 40 || BASE + page * PAGE < end, "page {page} was asked for");
        }
        assert!(begin.unwrap() - BASE <= 2 * FIRST);
    }

    #[test]
    fn nothing_is_read_ahead_for_a_reader_that_jumps() {
        assert!(asked((0..10_000).map(|step| step * 7919 % 100_003 * 40)).is_empty());
        assert!(asked((0..10_000).rev().map(|step| step * 20)).is_empty());
    }

    #[test]
    fn a_jump_ends_no_run() {
        let straight = asked(0..2000);
        let step = |page: usize| (page > 100).then(|| 1_000_000 + page % 7 * 5000);
        let with_steps = asked((0..2000).flat_map(|page| [Some(page), step(page)]).flatten());
        assert!(straight.len() > 5);
        assert_eq!(with_steps, straight);
    }

    #[test]
    fn pages_are_in_memory_before_they_are_read() {
        // In the folder of this program: nothing is read ahead on a file system in memory.
        let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let mut file: File = tempfile::tempfile_in(folder).unwrap();
        let (bytes, page_size) = (8 << 20, rustix::param::page_size());
        file.write_all(&vec![7; bytes]).unwrap();
        file.sync_all().unwrap();
        // SAFETY: a new mapping of the file, read alone, and given back below.
        let mapped = unsafe {
            let null = std::ptr::null_mut();
            libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
            let mapped = libc::mmap(null, bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(mapped, libc::MAP_FAILED);
            libc::madvise(mapped, bytes, libc::MADV_RANDOM);
            std::slice::from_raw_parts(mapped.cast::<u8>(), bytes)
        };
        let in_memory = |page: usize| {
            let mut seen = 0;
            // SAFETY: one page of the mapping, and room for its answer (mincore(2)).
            let answer =
                unsafe { libc::mincore(mapped[page * page_size..].as_ptr().cast_mut().cast(), page_size, &mut seen) };
            assert_eq!(answer, 0, "pages of {page_size} bytes");
            seen & 1 != 0
        };
        assert!(!in_memory(bytes / page_size / 2), "this program lies on a disk, whose pages can be dropped");
        let mut ahead = Ahead::default();

        let waited_for = (0..bytes / page_size).filter(|page| {
            let is_late = !in_memory(*page);
            assert_eq!(mapped[page * page_size], 7);
            ahead.read(&mapped[page * page_size..][..1]);
            is_late
        });

        assert!(waited_for.count() < bytes / page_size / 4);
        // SAFETY: nothing refers to it any more.
        unsafe { libc::munmap(mapped.as_ptr().cast_mut().cast(), bytes) };
    }
}
