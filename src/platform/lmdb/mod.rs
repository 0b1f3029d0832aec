//! The care that each LMDB environment needs and LMDB does not take.

mod new_file;
mod read_ahead;
mod readers;
mod structure;

pub use read_ahead::Ahead;
pub use readers::{Readers, Reading};
pub use structure::{StructureError, check};

use crate::platform::address_space;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes of a page of each environment. LMDB's own choice is the page size of the machine: where that is 16 or 64 KiB, as many changed pages as
/// it holds in memory at a commit would be 256 or 512 MiB, and a changed record would cost as much on disk as 4 or 8 do elsewhere.
pub const PAGE: u32 = 4096;

/// Bytes of the lock file before its readers, rounded up.
const LOCK_HEADER: u64 = 4096;

/// Bytes of one reader in the lock file: a cache line.
const READER: u64 = 64;

/// One map takes at most this part of a limited address space: a catalog that is replaced has three, and the rest of the process needs some.
const SHARE: u64 = 8;

/// A map that is smaller is of no use.
const LEAST_MAP: u64 = 1 << 20;

/// Each map is a multiple of this, and so of any machine's page size.
const GRANULE: usize = 1 << 20;

/// Makes the files of the environment in `folder`, where it has none, before it is opened for writing and for `readers` at one time.
pub fn make_files(folder: &Path, readers: u32) -> io::Result<()> {
    reserve_lock_file(folder, readers)?;
    new_file::make(folder, PAGE)
}

/// Takes the room of the lock file of the environment in `folder` on disk. On a full disk that is an error.
///
/// LMDB makes the file with a hole and writes to it through a mapping: the first write to a page that the disk has no
/// room for is a SIGBUS, the end of the mount, at the opening or much later, when many read at once.
fn reserve_lock_file(folder: &Path, readers: u32) -> io::Result<()> {
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
    match fallocate(&lock, FallocateFlags::empty(), 0, length) {
        // Some file systems cannot.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(cause) => Err(cause.into()),
    }
}

/// Bytes of a map of which `wanted` are asked for: less where the address space is limited.
pub fn largest_map(wanted: u64) -> u64 {
    address_space::limit().map_or(wanted, |limit| wanted.min((limit / SHARE).max(LEAST_MAP)))
}

/// Opens an environment by `open`, which is given the size of its map: `wanted` bytes, or less where the address space has no room for so
/// many. No less than the file: LMDB sees to that.
pub fn with_map<T>(wanted: u64, mut open: impl FnMut(usize) -> heed::Result<T>) -> heed::Result<T> {
    let mut size = usize::try_from(largest_map(wanted)).unwrap_or(usize::MAX / 2) / GRANULE * GRANULE;
    loop {
        match open(size) {
            Err(heed::Error::Io(cause)) if cause.raw_os_error() == Some(libc::ENOMEM) => {
                if size as u64 <= LEAST_MAP {
                    return Err(heed::Error::Io(no_address_space()));
                }
                size /= 2;
            }
            outcome => return outcome,
        }
    }
}

/// Why a file cannot be mapped, or cannot grow within its map.
pub fn no_address_space() -> io::Error {
    let allowed =
        address_space::limit().map_or_else(String::new, |limit| format!(": `ulimit -v` allows {} kB", limit >> 10));
    let what = format!("the address space of this process has no room for the file{allowed}");
    io::Error::new(io::ErrorKind::OutOfMemory, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_map_is_halved_until_it_fits() {
        let sizes = std::cell::RefCell::new(Vec::new());
        let fits = |most: usize| {
            sizes.borrow_mut().clear();
            with_map(16 << 20, |size| {
                sizes.borrow_mut().push(size >> 20);
                if size > most { Err(io::Error::from_raw_os_error(libc::ENOMEM).into()) } else { Ok(size) }
            })
        };

        assert_eq!(fits(5 << 20).unwrap(), 4 << 20);
        assert_eq!(*sizes.borrow(), [16, 8, 4]);
        let error = fits(0).unwrap_err();
        assert!(error.to_string().contains("no room"), "{error}");
        assert_eq!(*sizes.borrow(), [16, 8, 4, 2, 1]);
    }

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
