//! Writing without leaving the bytes in the page cache: for what readers have from memory, so that a large file is not there twice.
//!
//! A fast disk has them from where they are ([`Direct`]). Else they pass through the page cache: the kernel begins to write them back at
//! once and lets their pages go when that is done, so that those are used again and again and nobody else's go for them. Who writes may
//! have to wait for the disk then, which else is written to in the background: so it is not for one that is slow, see [`Detour`], nor
//! is it while so much memory of the machine lies free that nobody's pages go for those ([`lies_free`]; within a control group
//! with a limit of its own the group's older pages go).

use super::direct::Direct;
use super::lag::Lag;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The ways of one file's bytes to the disk, and which of them proved slow.
pub(super) struct Uncached {
    direct: Direct,
    detour: Detour,
    /// [`lies_free`], or what a test says.
    lies_free: fn() -> bool,
}

impl Default for Uncached {
    fn default() -> Uncached {
        Uncached { direct: Direct::default(), detour: Detour::default(), lies_free }
    }
}

impl Uncached {
    /// Whether the disk has many pieces in one write, as far as is known.
    pub(super) fn takes_many_at_once(&self) -> bool {
        self.direct.is_usable()
    }

    /// Writes all of `pieces` one behind the other from `offset` on, as `write_all_at` does; past the page cache where that is the
    /// faster way, or the one that costs others least.
    pub(super) fn write_all_at(&mut self, file: &File, pieces: &[&[u8]], mut offset: u64) -> io::Result<()> {
        // Bytes from `offset` on that are written.
        let mut ahead = 0;
        for (number, piece) in pieces.iter().enumerate() {
            if ahead == 0 {
                ahead = self.direct.write(file, &pieces[number..], offset)?;
            }
            let written = ahead.min(piece.len());
            ahead -= written;
            self.write_through(file, &piece[written..], offset + written as u64)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    fn write_through(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if (self.lies_free)() || !self.detour.passes(bytes.len() as u64) {
            return file.write_all_at(bytes, offset);
        }
        let begun = Instant::now();
        write_past(file, bytes, offset)?;
        self.detour.note(bytes.len(), begun.elapsed());
        Ok(())
    }

    /// No more is to be written.
    pub(super) fn close(&mut self) {
        self.direct = Direct::default();
    }
}

/// Of so many parts of the machine's memory one must be free.
const A_PART: libc::c_ulong = 4;

/// Whether memory is free that nobody has any use for, of which the page cache may have some (sysinfo(2)). Where the kernel does not
/// tell, it is not.
fn lies_free() -> bool {
    let mut found = MaybeUninit::<libc::sysinfo>::uninit();
    // SAFETY: there is room for one answer.
    if unsafe { libc::sysinfo(found.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: it was answered.
    let found = unsafe { found.assume_init() };
    is_plenty(found.freeram, found.totalram)
}

fn is_plenty(free: libc::c_ulong, total: libc::c_ulong) -> bool {
    total > 0 && free >= total / A_PART
}

/// Bytes that the page cache takes after the first write that was slow; after each that follows twice as many, until it is
/// this one, doubled so often.
const DETOUR: u64 = 16 << 20;
const DOUBLINGS: u32 = 8;

/// Writes that go to the page cache because the disk was slow. That may have been but a hiccup: so they come to an end.
#[derive(Debug, Default)]
pub(super) struct Detour {
    lag: Lag,
    left: u64,
    doublings: u32,
}

impl Detour {
    /// Whether so many bytes, written next, pass the page cache.
    pub(super) fn passes(&mut self, bytes: u64) -> bool {
        let is_over = self.left == 0;
        self.left = self.left.saturating_sub(bytes);
        is_over
    }

    /// A write of so many bytes that passed it took so long.
    pub(super) fn note(&mut self, bytes: usize, took: Duration) {
        if self.lag.is_slow_with(bytes, took) {
            self.left = DETOUR << self.doublings;
            self.doublings = (self.doublings + 1).min(DOUBLINGS);
        }
    }
}

/// As `write_all_at`; past the page cache where kernel and filesystem can (RWF_DONTCACHE of pwritev2(2): Linux 6.16 and ext4, xfs,
/// btrfs).
fn write_past(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        let (rest, at) = (&bytes[written..], offset + written as u64);
        match write_past_some(file, rest, at) {
            Ok(more) if more > 0 => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // What is wrong but that nobody knows the flag, that write tells.
            _ => return file.write_all_at(rest, at),
        }
    }
    Ok(())
}

fn write_past_some(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // A file's length is an off_t.
    let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
    // SAFETY: the one iovec names `bytes`, which are only read and live through the call.
    let written = unsafe { libc::pwritev2(file.as_raw_fd(), &raw const part, 1, offset, libc::RWF_DONTCACHE) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::content::store::{BLOCK, ObjectKey, Store};
    use std::ops::Range;
    use std::path::Path;

    /// Where the disk has bytes from where they are, and where not; where memory lies free, and where not.
    fn ways() -> [Uncached; 4] {
        let way = |direct, lies_free| Uncached { direct, lies_free, ..Uncached::default() };
        [
            way(Direct::Untried, || true),
            way(Direct::Untried, || false),
            way(Direct::Refused, || true),
            way(Direct::Refused, || false),
        ]
    }

    /// What a file in `folder` holds behind writes of `bytes` in parts of `part`, the last part first.
    fn written_in(folder: &Path, mut uncached: Uncached, bytes: &[u8], part: usize) -> Vec<u8> {
        let file = tempfile::tempfile_in(folder).unwrap();
        for (number, part_of_it) in bytes.chunks(part).enumerate().rev() {
            uncached.write_all_at(&file, &[part_of_it], (number * part) as u64).unwrap();
        }
        let mut all = vec![0; bytes.len()];
        file.read_exact_at(&mut all, 0).unwrap();
        all
    }

    /// How many of the first pages of a file are in the page cache.
    pub(in crate::content::store) fn pages_in_memory(file: &File, pages: usize) -> usize {
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
    fn bytes_are_written_wherever_they_lie() {
        let memory: Vec<u8> = (0..310_000).map(|at| (at / 251 + at) as u8).collect();
        let bytes = &memory[memory.as_ptr().align_offset(4096)..];
        for folder in [&std::env::temp_dir(), Path::new("/dev/shm")] {
            for (from, part) in [(0, 300_000), (0, 1 << 16), (0, 5000), (1, 1 << 16), (0, (1 << 16) + 1)] {
                for uncached in ways() {
                    let written = written_in(folder, uncached, &bytes[from..], part);
                    assert!(written == bytes[from..], "from {from} in parts of {part} in {}", folder.display());
                }
            }
        }
    }

    #[test]
    fn pieces_are_written_one_behind_the_other_wherever_they_lie() {
        let memory: Vec<u8> = (0..310_000).map(|at| (at / 251 + at) as u8).collect();
        let bytes = &memory[memory.as_ptr().align_offset(4096)..][..300_000];
        let ends = [
            &[8192, 16_384, 16_384, 65_536, 65_537, 69_632, 200_704, 300_000][..],
            &[1, 4096, 8192, 300_000],
            &[4096, 8190, 12_288, 299_999, 300_000],
            &[4096, 8190, 12_288, 299_999, 300_000],
        ];
        for folder in [&std::env::temp_dir(), Path::new("/dev/shm")] {
            for (ends, offset) in ends.iter().zip([0, 4096, 0, 5]) {
                let begins = [0].iter().chain(*ends);
                let pieces: Vec<&[u8]> = begins.zip(*ends).map(|(from, to)| &bytes[*from..*to]).collect();
                for mut uncached in ways() {
                    let file = tempfile::tempfile_in(folder).unwrap();

                    uncached.write_all_at(&file, &pieces, offset).unwrap();

                    let mut found = vec![0; bytes.len()];
                    file.read_exact_at(&mut found, offset).unwrap();
                    assert!(found == bytes, "{ends:?} at {offset} in {}", folder.display());
                }
            }
        }
    }

    #[test]
    fn an_object_is_whole_whichever_part_of_it_passed_the_page_cache() {
        let folder = tempfile::tempdir().unwrap();
        let (key, length) = (ObjectKey::inode("https://source.example/", 7), 9 * BLOCK + 77);
        let memory: Vec<u8> = (0..length + 4096).map(|at| (at / 251 + at) as u8).collect();
        let bytes = &memory[memory.as_ptr().align_offset(4096)..][..length as usize];
        let part = |range: Range<u64>| &bytes[range.start as usize..range.end as usize];
        let disk = Store::open(folder.path(), None, 0).unwrap();
        let partial = disk.begin(&key, Some(length)).unwrap();
        let reads = |range: Range<u64>| {
            let found = partial.read_at(range.start, (range.end - range.start) as usize).unwrap();
            assert!(found.unwrap() == part(range.clone()), "{range:?}");
        };

        partial.write_uncached_at(0, &[part(0..BLOCK), part(BLOCK..2 * BLOCK)]).unwrap();
        reads(BLOCK - 9..2 * BLOCK);
        partial.write_at(3 * BLOCK + 100, part(3 * BLOCK + 100..3 * BLOCK + 200)).unwrap();
        reads(3 * BLOCK + 100..3 * BLOCK + 200);
        partial
            .write_uncached_at(2 * BLOCK, &[part(2 * BLOCK..3 * BLOCK + 150), part(3 * BLOCK + 150..5 * BLOCK)])
            .unwrap();
        reads(0..5 * BLOCK);
        partial.write_at(5 * BLOCK, part(5 * BLOCK..6 * BLOCK)).unwrap();
        partial.write_uncached_at(6 * BLOCK, &[part(6 * BLOCK..8 * BLOCK), &[], part(8 * BLOCK..length)]).unwrap();
        reads(0..length);
        partial.commit(&key, length).unwrap();
        drop((partial, disk));

        let disk = Store::open(folder.path(), None, 0).unwrap();
        assert!(disk.get(&key).unwrap().read(0, length as usize).unwrap() == bytes);
    }

    #[test]
    fn the_page_cache_keeps_none_of_them_where_kernel_and_filesystem_can_and_no_memory_lies_free() {
        let bytes = vec![1; 256 * 4096];
        let can = write_past_some(&tempfile::tempfile().unwrap(), &bytes, 0).is_ok();
        let written = |lies_free| {
            let file = tempfile::tempfile().unwrap();
            let mut uncached = Uncached { direct: Direct::Refused, lies_free, ..Uncached::default() };
            uncached.write_all_at(&file, &[&bytes], 0).unwrap();
            file
        };

        let (plain, passing) = (written(|| true), written(|| false));

        assert_eq!(pages_in_memory(&plain, 256), 256);
        passing.sync_data().unwrap();
        let kept = if can { 0 } else { 256 };
        let begun = Instant::now();
        while pages_in_memory(&passing, 256) != kept {
            assert!(begun.elapsed() < Duration::from_secs(20), "{} pages", pages_in_memory(&passing, 256));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn memory_lies_free_of_which_nobody_uses_a_quarter() {
        assert_eq!(
            [(6, 24), (5, 24), (24, 24), (0, 24), (0, 0)].map(|(free, total)| is_plenty(free, total)),
            [true, false, true, false, false]
        );
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        let file = File::open("/proc/self/exe").unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        for lies_free in [|| true, || false] {
            let mut uncached = Uncached { lies_free, ..Uncached::default() };
            let mut write = |file: &File| uncached.write_all_at(file, &[b"a"], 0).unwrap_err().raw_os_error();
            assert_eq!([write(&file), write(&full)], [Some(libc::EBADF), Some(libc::ENOSPC)]);
        }
    }

    #[test]
    fn after_a_hiccup_the_page_cache_is_passed_again_and_a_disk_that_is_always_slow_is_asked_ever_more_seldom() {
        const PIECE: u64 = 1 << 20;
        let passing = |is_slow: fn(usize) -> bool| {
            let mut detour = Detour::default();
            let passes = |number: usize| {
                let passes = detour.passes(PIECE);
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
}
