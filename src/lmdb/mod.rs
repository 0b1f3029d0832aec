//! What every LMDB environment needs and LMDB does not do.

mod readers;

pub use readers::{Readers, Reading};

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// Octets of the lock file before its readers, rounded up.
const LOCK_HEADER: u64 = 4096;

/// Octets of one reader in the lock file: a cache line.
const READER: u64 = 64;

/// Takes the room of the lock file of the environment in `folder` on disk, before the environment is opened for
/// `readers` at one time. On a full disk that is an error.
///
/// LMDB makes the file with a hole and writes to it through a mapping: the first write to a page that the disk has no
/// room for is a SIGBUS, the end of the mount, at the opening or much later, when many read at once.
pub fn reserve_lock_file(folder: &Path, readers: u32) -> io::Result<()> {
    let lock = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(folder.join("lock.mdb"))?;
    // Processes that have it open have mapped its length: it never grows.
    let length = match lock.metadata()?.len() {
        0 => LOCK_HEADER + u64::from(readers) * READER,
        length => length,
    };
    // SAFETY: the descriptor is open; the call touches no memory of ours.
    if unsafe { libc::fallocate(lock.as_raw_fd(), 0, 0, length.cast_signed()) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // The file system knows no such thing.
        error if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => Ok(()),
        error => Err(error),
    }
}

/// Has the disk begin to write what was committed without waiting for it, on a thread of its own: the sync at the end would else begin with
/// all of it, and what makes the rest would wait for nothing meanwhile.
pub struct WritingBack {
    asking: Option<(SyncSender<()>, JoinHandle<()>)>,
    written: usize,
}

impl WritingBack {
    /// Octets between two askings.
    const STEP: usize = 8 << 20;

    /// Of the environment in `folder`. Where it cannot be, the commit has it all to do.
    pub fn of(folder: &Path) -> WritingBack {
        let begin = || {
            let file = File::open(folder.join("data.mdb"))?;
            let (asking, asked) = sync_channel(1);
            let write_back = move || {
                for () in asked {
                    // SAFETY: the descriptor is open; the call touches no memory of ours. What it does not do the sync does.
                    unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
                }
            };
            let thread = thread::Builder::new().name("write-back".into()).spawn(write_back)?;
            Ok::<_, io::Error>((asking, thread))
        };
        WritingBack { asking: begin().ok(), written: 0 }
    }

    /// So many octets more were written.
    pub fn wrote(&mut self, octets: usize) {
        self.written += octets;
        if self.written < WritingBack::STEP {
            return;
        }
        self.written = 0;
        if let Some((asking, _)) = &self.asking {
            // One that is asked already will come to these too.
            let _ = asking.try_send(());
        }
    }
}

impl Drop for WritingBack {
    fn drop(&mut self) {
        if let Some((asking, thread)) = self.asking.take() {
            drop(asking);
            // It holds nothing that a panic could leave in disorder.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_lock_file_has_its_room_and_never_grows() {
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join("lock.mdb");

        reserve_lock_file(folder.path(), 1000).unwrap();
        let metadata = lock.metadata().unwrap();
        assert_eq!(metadata.len(), 4096 + 64_000);
        assert!(metadata.blocks() * 512 >= metadata.len());

        File::options().write(true).open(&lock).unwrap().set_len(8192).unwrap();
        reserve_lock_file(folder.path(), 1000).unwrap();
        assert_eq!(lock.metadata().unwrap().len(), 8192);
    }

    #[test]
    fn what_writes_back_ends_with_its_owner_and_does_nothing_where_there_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data.mdb");
        std::fs::write(&file, vec![1; 1 << 20]).unwrap();
        let open = || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == file)).count()
        };

        let mut writing = WritingBack::of(folder.path());
        (0..9).for_each(|_| writing.wrote(WritingBack::STEP / 2));
        assert_eq!((open(), writing.written), (1, WritingBack::STEP / 2));
        drop(writing);
        assert_eq!(open(), 0, "its thread has ended");

        let mut writing = WritingBack::of(&folder.path().join("none"));
        writing.wrote(2 * WritingBack::STEP);
        assert!(writing.asking.is_none());
    }
}
