//! What every LMDB environment needs and LMDB does not do.

mod ahead;
mod page_cache;
mod readers;

pub use ahead::Ahead;
pub use page_cache::PageCache;
pub use readers::{Readers, Reading};

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

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
}
