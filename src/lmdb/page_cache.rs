//! What the kernel's page cache does beside one who appends very much to an environment, on a thread of its own.
//!
//! Ahead of the end of the file it has pages ready: where the machine's memory has to be taken from its host, or from other files, the
//! writer would else wait for each. Behind it the disk begins to write what was committed: the sync at the end would else begin with all
//! of it, and what makes the rest would wait for nothing meanwhile.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// Octets written between two askings.
const STEP: usize = if cfg!(test) { 16 << 10 } else { 8 << 20 };

/// Octets asked for by one readahead(2), of which the kernel takes no more than the device reads at once.
const AT_ONCE: usize = 128 << 10;

/// Octets that lie ready ahead of the end: it goes on while the thread is busy, and is told late by what a transaction holds.
const AHEAD: u64 = 4 * STEP as u64;

/// The thread. The file becomes longer than the environment is; who writes no more gives it its length.
pub struct PageCache {
    serving: Option<Serving>,
    written: usize,
}

struct Serving {
    file: Arc<File>,
    /// Up to here pages were asked for.
    asked: u64,
    asking: SyncSender<Range<u64>>,
    thread: JoinHandle<()>,
}

impl PageCache {
    /// Of the environment in `folder`. Where it cannot be, the writer has it all to do.
    pub fn of(folder: &Path) -> PageCache {
        PageCache { serving: Serving::begin(&folder.join("data.mdb")).ok(), written: 0 }
    }

    /// So many octets more were written; the environment ends at `end`. To be called by the writer.
    pub fn wrote(&mut self, octets: usize, end: impl FnOnce() -> u64) {
        self.written += octets;
        if self.written < STEP {
            return;
        }
        self.written = 0;
        if let Some(serving) = &mut self.serving {
            serving.ask(end());
        }
    }
}

impl Drop for PageCache {
    fn drop(&mut self) {
        if let Some(Serving { asking, thread, .. }) = self.serving.take() {
            drop(asking);
            // It holds nothing that a panic could leave in disorder.
            let _ = thread.join();
        }
    }
}

impl Serving {
    fn begin(path: &Path) -> io::Result<Serving> {
        let file = Arc::new(File::options().read(true).write(true).open(path)?);
        let (asking, asked) = sync_channel(1);
        let of = file.clone();
        let serve = move || asked.into_iter().for_each(|pages| serve(&of, pages));
        let thread = thread::Builder::new().name("page-cache".into()).spawn(serve)?;
        Ok(Serving { file, asked: 0, asking, thread })
    }

    /// Asks for pages ahead of `end`. There the file goes on with a hole, which takes nothing of the disk where the file system knows holes;
    /// elsewhere it has the room until the writer has come to its end.
    fn ask(&mut self, end: u64) {
        let (from, to) = (self.asked.max(end), end + AHEAD);
        // Never made shorter: the writer is here, and writes nothing meanwhile.
        let is_longer = self.file.metadata().is_ok_and(|file| file.len() >= to || self.file.set_len(to).is_ok());
        let pages = if is_longer && from < to { from..to } else { 0..0 };
        // One that is busy has the next asking do these too.
        if self.asking.try_send(pages.clone()).is_ok() {
            self.asked = self.asked.max(pages.end);
        }
    }
}

/// Takes `pages` of a file, and has the disk begin to write what was written to others.
fn serve(file: &File, pages: Range<u64>) {
    for first in pages.step_by(AT_ONCE) {
        // SAFETY: the descriptor is open; the call touches no memory of ours. Pages that it does not take the writer takes.
        unsafe { libc::readahead(file.as_raw_fd(), first.cast_signed(), AT_ONCE) };
    }
    // SAFETY: as above. What it does not write the sync writes.
    unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    const END: u64 = 1 << 20;

    /// A folder with a file of `END` octets, as an environment has it: beside this program, for of a file system in memory nothing is read
    /// ahead.
    fn folder() -> (tempfile::TempDir, std::path::PathBuf) {
        let program = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let path = folder.path().join("data.mdb");
        std::fs::write(&path, vec![1; END as usize]).unwrap();
        (folder, path)
    }

    /// How many of the pages between two places of a file the page cache has.
    fn resident(file: &File, from: u64, to: u64) -> usize {
        let (length, at) = ((to - from) as usize, from as libc::off_t);
        let mut resident = vec![0_u8; length.div_ceil(4096)];
        // SAFETY: the file is that long, nobody shortens it; `resident` has an octet for each page (mincore(2)).
        unsafe {
            let map = libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), at);
            assert_ne!(map, libc::MAP_FAILED);
            assert_eq!(libc::mincore(map, length, resident.as_mut_ptr()), 0);
            assert_eq!(libc::munmap(map, length), 0);
        }
        resident.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn pages_lie_ready_ahead_of_the_end_and_take_nothing_of_the_disk() {
        let (folder, path) = folder();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        let blocks = file.metadata().unwrap().blocks();

        let mut pages = PageCache::of(folder.path());
        pages.wrote(STEP, || END);
        pages.wrote(STEP, || END);
        drop(pages);

        assert_eq!(file.metadata().unwrap().len(), END + AHEAD);
        assert_eq!(resident(&file, END, END + AHEAD), AHEAD as usize / 4096);
        assert_eq!(file.metadata().unwrap().blocks(), blocks);
        file.write_all_at(b"what is appended", END).unwrap();
        let mut octets = [0; 20];
        file.read_exact_at(&mut octets, END).unwrap();
        assert_eq!(&octets, b"what is appended\0\0\0\0");
    }

    #[test]
    fn all_pages_are_taken_however_many_the_device_reads_at_once() {
        const MANY: u64 = 64 << 20;
        let (_folder, path) = folder();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.set_len(END + MANY).unwrap();

        serve(&file, END..END + MANY);

        assert_eq!(resident(&file, END, END + MANY), MANY as usize / 4096);
    }

    #[test]
    fn a_file_that_is_longer_already_keeps_its_octets() {
        let (folder, path) = folder();
        let before = END - AHEAD - 1;

        let mut pages = PageCache::of(folder.path());
        pages.wrote(STEP, || before);
        drop(pages);

        assert!(std::fs::read(&path).unwrap() == vec![1; END as usize]);
    }

    #[test]
    fn the_thread_ends_with_its_owner_and_does_nothing_where_there_is_no_file() {
        let (folder, path) = folder();
        let open = || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path)).count()
        };

        let mut pages = PageCache::of(folder.path());
        (0..9).for_each(|_| pages.wrote(STEP / 2, || END));
        assert_eq!((open(), pages.written), (1, STEP / 2));
        drop(pages);
        assert_eq!(open(), 0, "its thread has ended");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), END + AHEAD);

        let mut pages = PageCache::of(&folder.path().join("none"));
        pages.wrote(2 * STEP, || END);
        assert!(pages.serving.is_none());
    }
}
