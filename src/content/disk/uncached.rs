//! Writing without leaving the octets in the page cache: for what readers have from memory, so that a large file is not there twice.
//!
//! The disk has them from where they are ([`Direct`]), which costs a tenth of what a copy does and pages to hold it. Where they do not
//! lie as it needs them they pass through the page cache: the kernel begins to write them back at once, and lets their pages go when that
//! is done. Who writes waits for the disk, which else has until memory is full: so it is only for a disk that is fast, see [`Detour`].

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Duration;

/// Octets a second; a slower disk would hold up a line of half a gigabit.
const SLOW: f64 = 50e6;

/// So long a writer may wait for anything else.
const HICCUP: Duration = Duration::from_millis(20);

/// Octets that the page cache takes after the first write that was slow; after each that follows twice as many, until it is
/// this one, doubled so often.
const DETOUR: u64 = 16 << 20;
const DOUBLINGS: u32 = 8;

/// Writes that go to the page cache because the disk was slow. That may have been but a hiccup: so they come to an end.
#[derive(Debug, Default)]
pub(super) struct Detour {
    left: u64,
    doublings: u32,
}

impl Detour {
    /// Whether so many octets more may pass the page cache.
    pub(super) fn is_over(&mut self, octets: u64) -> bool {
        let is_over = self.left == 0;
        self.left = self.left.saturating_sub(octets);
        is_over
    }

    /// A write of so many octets that passed it took so long.
    pub(super) fn note(&mut self, octets: usize, took: Duration) {
        if is_slow(octets, took) {
            self.left = DETOUR << self.doublings;
            self.doublings = (self.doublings + 1).min(DOUBLINGS);
        }
    }
}

/// Whether the disk holds up who writes, as a write of so many octets shows that took so long.
fn is_slow(octets: usize, took: Duration) -> bool {
    took.saturating_sub(HICCUP).as_secs_f64() > octets as f64 / SLOW
}

/// What the disk is handed without a copy begins with a page in memory and in the file, and ends with one (open(2), O_DIRECT): no
/// device asks for more of it.
const PAGE: usize = 4 << 10;

/// A second opening of a file, which passes the page cache (O_DIRECT). What the file has there goes before such a write and behind it.
#[derive(Debug, Default)]
pub(super) enum Direct {
    /// Not needed so far.
    #[default]
    Untried,
    Opened(File),
    /// Filesystem or disk cannot.
    Refused,
}

impl Direct {
    /// Writes as many of the first of `octets` as can be written so, answers how many. An error tells that there is no room.
    fn write(&mut self, file: &File, octets: &[u8], offset: u64) -> io::Result<usize> {
        let pages = octets.len() - octets.len() % PAGE;
        let lies_well = octets.as_ptr().addr().is_multiple_of(PAGE) && offset.is_multiple_of(PAGE as u64);
        if pages == 0 || !lies_well {
            return Ok(0);
        }
        if matches!(self, Direct::Untried) {
            *self = opened_again(file).map_or(Direct::Refused, Direct::Opened);
        }
        let Direct::Opened(direct) = self else { return Ok(0) };
        match direct.write_all_at(&octets[..pages], offset) {
            Ok(()) => Ok(pages),
            Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
                Err(error)
            }
            // What else is wrong, the write tells that follows.
            Err(_) => {
                *self = Direct::Refused;
                Ok(0)
            }
        }
    }
}

/// By its descriptor, as it may have another name by now (proc_pid_fd(5)).
fn opened_again(file: &File) -> io::Result<File> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().write(true).custom_flags(libc::O_DIRECT).open(link)
}

/// Writes all of `octets` at `offset`, as `write_all_at` does; past the page cache where `direct` can, or kernel and filesystem
/// (RWF_DONTCACHE of pwritev2(2): Linux 6.16 and ext4, xfs, btrfs).
pub(super) fn write_all_at(file: &File, direct: &mut Direct, octets: &[u8], offset: u64) -> io::Result<()> {
    let mut written = direct.write(file, octets, offset)?;
    while written < octets.len() {
        let (rest, at) = (&octets[written..], offset + written as u64);
        match write_some_at(file, rest, at) {
            Ok(more) if more > 0 => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // What is wrong but that nobody knows the flag, that write tells.
            _ => return file.write_all_at(rest, at),
        }
    }
    Ok(())
}

fn write_some_at(file: &File, octets: &[u8], offset: u64) -> io::Result<usize> {
    let part = libc::iovec { iov_base: octets.as_ptr().cast_mut().cast(), iov_len: octets.len() };
    // A file's length is an off_t.
    let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
    // SAFETY: the one iovec names `octets`, which are only read and live through the call.
    let written = unsafe { libc::pwritev2(file.as_raw_fd(), &raw const part, 1, offset, libc::RWF_DONTCACHE) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::time::Instant;

    /// The first `length` octets of it begin with a page.
    fn paged(length: usize, memory: &mut Vec<u8>) -> &[u8] {
        memory.resize(PAGE + length, 0);
        let first = memory.as_ptr().align_offset(PAGE);
        (0..length).for_each(|at| memory[first + at] = (at / 251 + at) as u8);
        &memory[first..first + length]
    }

    /// What a file in `folder` holds behind writes of `octets` in parts of `part`, the last part first.
    fn written_in(folder: &Path, octets: &[u8], part: usize) -> (Vec<u8>, Direct) {
        let file = tempfile::tempfile_in(folder).unwrap();
        let mut direct = Direct::default();
        for (number, part_of_it) in octets.chunks(part).enumerate().rev() {
            write_all_at(&file, &mut direct, part_of_it, (number * part) as u64).unwrap();
            // Whatever a reader has had of the file: the page cache knows of no write that passes it.
            file.read_at(&mut [0; 3 * PAGE], 0).unwrap();
        }
        let mut all = vec![0; octets.len()];
        file.read_exact_at(&mut all, 0).unwrap();
        (all, direct)
    }

    /// How many of the first pages of a file are in the page cache.
    fn pages_in_memory(file: &File, pages: usize) -> usize {
        let mut seen = vec![0_u8; pages];
        // SAFETY: a new mapping of the file, as long as `seen` has pages; it is not read, only asked about (mincore(2)).
        unsafe {
            let mapped =
                libc::mmap(std::ptr::null_mut(), pages * 4096, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(mapped, libc::MAP_FAILED);
            assert_eq!(libc::mincore(mapped, pages * 4096, seen.as_mut_ptr()), 0);
            libc::munmap(mapped, pages * 4096);
        }
        seen.iter().filter(|page| *page & 1 != 0).count()
    }

    #[test]
    fn octets_are_written_wherever_they_lie() {
        let mut memory = Vec::new();
        let octets = paged(300_000, &mut memory);
        for folder in [&std::env::temp_dir(), Path::new("/dev/shm")] {
            for (from, part) in [(0, 300_000), (0, 16 * PAGE), (0, 5000), (1, 16 * PAGE), (0, 16 * PAGE + 1)] {
                let written = written_in(folder, &octets[from..], part).0;
                assert!(written == octets[from..], "from {from} in parts of {part} in {}", folder.display());
            }
        }
    }

    #[test]
    fn the_disk_has_whole_pages_from_where_they_are_and_nothing_else() {
        let mut memory = Vec::new();
        let octets = paged(64 * PAGE + 5, &mut memory);
        let (folder, file) = (std::env::temp_dir(), tempfile::tempfile().unwrap());
        let opened = |direct: &Direct| matches!(direct, Direct::Opened(_));
        let mut direct = Direct::default();

        assert_eq!(direct.write(&file, &octets[1..], 0).unwrap(), 0, "memory");
        assert_eq!(direct.write(&file, octets, 5).unwrap(), 0, "file");
        assert_eq!(direct.write(&file, &octets[..5], 0).unwrap(), 0, "less than a page");
        assert!(matches!(direct, Direct::Untried));
        assert_eq!(direct.write(&file, octets, 4 * PAGE as u64).unwrap(), 64 * PAGE);
        assert!(opened(&direct) && pages_in_memory(&file, 68) == 0);
        assert!(opened(&written_in(&folder, octets, 8 * PAGE).1));
    }

    #[test]
    fn who_cannot_be_handed_octets_is_not_asked_again() {
        let mut memory = Vec::new();
        let octets = paged(4 * PAGE, &mut memory);
        let file = tempfile::tempfile().unwrap();
        // Any error but that there is no room.
        let mut direct = Direct::Opened(File::open("/proc/self/exe").unwrap());

        write_all_at(&file, &mut direct, octets, 0).unwrap();

        let mut all = vec![0; octets.len()];
        file.read_exact_at(&mut all, 0).unwrap();
        assert!(all == octets && matches!(direct, Direct::Refused));
    }

    #[test]
    fn that_there_is_no_room_is_told_at_once_and_asked_again() {
        let mut memory = Vec::new();
        let octets = paged(4 * PAGE, &mut memory);
        let file = tempfile::tempfile().unwrap();
        let mut direct = Direct::Opened(File::options().write(true).open("/dev/full").unwrap());

        let error = write_all_at(&file, &mut direct, octets, 0).unwrap_err();

        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(matches!(direct, Direct::Opened(_)) && file.metadata().unwrap().len() == 0);
    }

    #[test]
    fn the_page_cache_keeps_none_of_them_where_kernel_and_filesystem_can() {
        let (plain, passing) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let octets = vec![1; 256 * 4096];
        let can = write_some_at(&tempfile::tempfile().unwrap(), &octets, 0).is_ok();

        plain.write_all_at(&octets, 0).unwrap();
        write_all_at(&passing, &mut Direct::Refused, &octets, 0).unwrap();

        passing.sync_data().unwrap();
        assert_eq!(pages_in_memory(&plain, 256), 256);
        let kept = if can { 0 } else { 256 };
        let begun = Instant::now();
        while pages_in_memory(&passing, 256) != kept {
            assert!(begun.elapsed() < Duration::from_secs(20), "{} pages", pages_in_memory(&passing, 256));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        let file = File::open("/proc/self/exe").unwrap();
        let write = |file: &File| write_all_at(file, &mut Direct::default(), b"a", 0).unwrap_err().raw_os_error();
        assert_eq!(write(&file), Some(libc::EBADF));
        let full = File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(write(&full), Some(libc::ENOSPC));
    }

    #[test]
    fn after_a_hiccup_the_page_cache_is_passed_again_and_a_disk_that_is_always_slow_is_asked_ever_more_seldom() {
        const PIECE: u64 = 1 << 20;
        let passing = |is_slow: fn(usize) -> bool| {
            let mut detour = Detour::default();
            let passes = |number: usize| {
                let passes = detour.is_over(PIECE);
                if passes {
                    detour.note(PIECE as usize, Duration::from_millis(if is_slow(number) { 500 } else { 1 }));
                }
                passes
            };
            (0..10_000).map(passes).filter(|passes| *passes).count()
        };
        assert_eq!(passing(|_| false), 10_000);
        assert_eq!(passing(|number| number == 100), 10_000 - 16, "16 MiB go to the page cache");
        assert_eq!(passing(|_| true), 10, "after 16, 32, 64 MiB and so on");
    }

    #[test]
    fn a_disk_is_slow_that_a_line_would_wait_for() {
        let millis = Duration::from_millis;
        assert!(!is_slow(512 << 10, millis(1)), "a disk of 500 MB/s");
        assert!(!is_slow(512 << 10, millis(25)), "somebody else had the processor");
        assert!(is_slow(512 << 10, millis(40)));
    }
}
