//! What the store asks the operating system about files and folders.

use crate::platform::buffers::Buffer;
use crate::platform::descriptors::opened;
use bytes::Bytes;
use rustix::fs::{Advice, CWD, FlockOperation, Mode, OFlags, ResolveFlags, fadvise, openat2};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The folder of objects.
pub(super) const OBJECTS: &str = "objects/";
/// The folder of partials.
pub(super) const PARTIALS: &str = "tmp/";

/// The file system of the cache folder does not say what is in the page cache (tmpfs, overlayfs): each read would ask in vain.
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// Bytes that an unprivileged process may still write to the file system of a folder.
pub fn free_space(folder: &Path) -> io::Result<u64> {
    let answer = rustix::fs::statvfs(folder)?;
    Ok(answer.f_bavail.saturating_mul(answer.f_frsize))
}

/// Bytes in allocated blocks of all files below a folder; those that go away meanwhile do not count.
pub fn allocated_below(folder: &Path) -> u64 {
    let mut bytes = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => bytes += allocated(&entry.path()).unwrap_or(0),
                _ => {}
            }
        }
    }
    bytes
}

/// Bytes in allocated blocks; `None`: there is no such file.
pub(super) fn allocated(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|metadata| metadata.blocks() * 512)
}

/// Returns whether the file at a path is the open one.
pub(super) fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// Makes a folder that only its owner may enter; one that exists is fine.
pub(in crate::content) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Opens a file to read it: never through a link, never waiting for a pipe's writer.
pub(super) fn open_to_read(path: &Path) -> io::Result<File> {
    opened(|| OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path))
}

/// Opens a file as [`open_to_read`] does, without waiting for the disk: [`io::ErrorKind::WouldBlock`] where it may have to be waited for,
/// and where the kernel does not know whether it has (before Linux 5.12).
pub(super) fn open_to_read_in_memory(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        Ok(file) => Ok(file.into()),
        Err(Errno::NOENT) => Err(io::ErrorKind::NotFound.into()),
        Err(_) => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// Exactly `length` bytes of a file at `offset`.
pub(super) fn read_exact(file: &File, offset: u64, length: usize) -> io::Result<Bytes> {
    filled(offset, length, |bytes, at| rustix::io::pread(file, bytes, at))
}

/// Reads out of the page cache alone: [`io::ErrorKind::WouldBlock`] where the disk has to be waited for.
/// A file system that cannot say so is read at once.
pub(super) fn read_exact_in_memory(file: &File, offset: u64, length: usize) -> io::Result<Bytes> {
    filled(offset, length, |bytes, at| {
        if IS_SILENT.load(Ordering::Relaxed) {
            return rustix::io::pread(file, bytes, at);
        }
        match preadv2(file, &mut [IoSliceMut::new(&mut *bytes)], at, ReadWriteFlags::NOWAIT) {
            Err(Errno::OPNOTSUPP) => {
                IS_SILENT.store(true, Ordering::Relaxed);
                rustix::io::pread(file, bytes, at)
            }
            outcome => outcome,
        }
    })
}

/// `read` fills its buffer with the bytes from an offset on, and returns how many; none at the end of the file.
fn filled(
    offset: u64,
    length: usize,
    mut read: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
) -> io::Result<Bytes> {
    let (mut buffer, mut at) = (Buffer::of(length), 0);
    while at < length {
        match read(&mut buffer[at..length], offset + at as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => at += count,
            Err(Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
    }
    Ok(buffer.freeze(length))
}

/// Drops clean pages of a range, and begins to write dirty ones to the disk. A failure costs memory that the kernel can take.
pub(super) fn drop_pages(file: &File, range: Range<u64>) {
    if let Some(bytes) = range.end.checked_sub(range.start).and_then(NonZeroU64::new) {
        let _ = fadvise(file, range.start, Some(bytes), Advice::DontNeed);
    }
}

/// Returns whether the file system or its quota has no room.
pub(super) fn is_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Locks a file or folder until its descriptor is closed; false: another descriptor holds the lock.
pub(super) fn flock(file: &File) -> io::Result<bool> {
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
    }
}

/// The value of a mutex. One that a panicking thread held is as good as any: each change of it is made at once.
pub(in crate::content) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_cannot_be_asked_for_is_no_lock_held() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = [(); 2].map(|()| File::open(folder.path()).unwrap());
        assert_eq!((flock(&first).unwrap(), flock(&second).unwrap()), (true, false));

        let no_locks = rustix::fs::open(folder.path(), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let no_locks = File::from(no_locks);
        assert_eq!(flock(&no_locks).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
