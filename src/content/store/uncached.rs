//! Writing without leaving the bytes in the page cache, where they would push out pages of other programs.

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;

/// Pages are dropped for so many bytes at once, where the kernel does not drop them by itself.
const STEP: u64 = 8 << 20;

/// How one file is written so, from its start to its end.
#[derive(Debug, Default)]
pub(super) struct PastCache {
    /// Kernel or filesystem does not know RWF_DONTCACHE (pwritev2(2): Linux 6.14 and ext4, xfs, btrfs).
    is_refused: bool,
    /// Whole steps that were written before the last write.
    steps: u64,
}

impl PastCache {
    /// As [`FileExt::write_all_at`]; the kernel drops the pages as soon as they are on the disk.
    pub(super) fn write_all_at(&mut self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let flags = ReadWriteFlags::from_bits_retain(libc::RWF_DONTCACHE.cast_unsigned());
        let mut written = 0;
        while !self.is_refused && written < bytes.len() {
            match pwritev2(file, &[IoSlice::new(&bytes[written..])], offset + written as u64, flags) {
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => self.is_refused = true,
                Err(cause) => return Err(cause.into()),
            }
        }
        if written == bytes.len() {
            return Ok(());
        }
        file.write_all_at(&bytes[written..], offset + written as u64)?;
        self.drop_pages(file, offset + bytes.len() as u64);
        Ok(())
    }

    /// The advice begins to write dirty pages back and drops clean ones: each step is named twice.
    fn drop_pages(&mut self, file: &File, end: u64) {
        let steps = end / STEP;
        if steps > self.steps {
            let from = self.steps.saturating_sub(1) * STEP;
            // A failure costs memory that the kernel takes back when it is short of it.
            let _ = fadvise(file, from, NonZeroU64::new(steps * STEP - from), Advice::DontNeed);
            self.steps = steps;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::time::{Duration, Instant};

    fn refused() -> PastCache {
        PastCache { is_refused: true, ..PastCache::default() }
    }

    /// Pages of a file in the page cache, of the first `pages`.
    fn cached_pages(file: &File, pages: usize) -> usize {
        // SAFETY: the file is this test's own, and the mapping is not read.
        let mapped = unsafe { memmap2::MmapOptions::new().len(pages * 4096).map(file) }.unwrap();
        let mut seen = vec![0_u8; pages];
        // SAFETY: `seen` has a byte for each page of the mapping, which lives through the call (mincore(2)).
        let asked = unsafe { libc::mincore(mapped.as_ptr().cast_mut().cast(), mapped.len(), seen.as_mut_ptr()) };
        assert_eq!(asked, 0);
        seen.iter().filter(|page| *page & 1 != 0).count()
    }

    #[test]
    fn bytes_are_written_where_the_flag_is_known_and_where_not() {
        let bytes: Vec<u8> = (0..310_000).map(|at| (at / 251 + at) as u8).collect();
        for folder in [&std::env::temp_dir(), Path::new("/dev/shm")] {
            for mut past_cache in [PastCache::default(), refused()] {
                let file = tempfile::tempfile_in(folder).unwrap();
                for (number, part) in bytes.chunks(70_001).enumerate() {
                    past_cache.write_all_at(&file, part, number as u64 * 70_001).unwrap();
                }
                let mut found = vec![0; bytes.len()];
                file.read_exact_at(&mut found, 0).unwrap();
                assert!(found == bytes, "{}", folder.display());
            }
        }
    }

    #[test]
    fn the_page_cache_keeps_few_of_the_pages() {
        const BYTES: u64 = 64 << 20;
        let bytes = vec![1; 1 << 20];
        for mut past_cache in [PastCache::default(), refused()] {
            let file = tempfile::tempfile().unwrap();
            let begun = Instant::now();
            for offset in (0..BYTES).step_by(bytes.len()) {
                past_cache.write_all_at(&file, &bytes, offset).unwrap();
            }
            file.sync_data().unwrap();
            past_cache.drop_pages(&file, BYTES + STEP);
            let most = 2 * (STEP / 4096) as usize;
            while cached_pages(&file, (BYTES / 4096) as usize) > most {
                assert!(begun.elapsed() < Duration::from_secs(30));
                past_cache = PastCache { steps: 1, ..past_cache };
                past_cache.drop_pages(&file, BYTES);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        let file = File::open("/proc/self/exe").unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        for mut past_cache in [PastCache::default(), refused()] {
            let mut write = |file: &File| past_cache.write_all_at(file, b"a", 0).unwrap_err().raw_os_error();
            assert_eq!([write(&file), write(&full)], [Some(libc::EBADF), Some(libc::ENOSPC)]);
        }
    }
}
