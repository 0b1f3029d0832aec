//! One process has a catalog.

use super::CatalogError;
use super::error::io_error;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The lock that one process holds on a catalog's folder; it goes with the process, however that ends.
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Locks `folder` for this process, or [`CatalogError::Busy`] with the text of the holder.
    pub fn take(folder: &Path, holder: &str) -> Result<FolderLock, CatalogError> {
        let path = path(folder);
        loop {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let mut file = options.open(&path).map_err(io_error(&path))?;
            if !flock(&file, libc::LOCK_EX).map_err(io_error(&path))? {
                return Err(CatalogError::Busy { folder: folder.to_path_buf(), holder: holder_of(&mut file) });
            }
            // Between open and lock the folder may have been moved away to be removed: then this is the lock of that one.
            if !is_at(&file, &path) {
                continue;
            }
            let text = format!("process {}, {holder}", std::process::id());
            file.set_len(0).and_then(|()| file.rewind()).map_err(io_error(&path))?;
            file.write_all(text.as_bytes()).map_err(io_error(&path))?;
            return Ok(FolderLock { _file: file });
        }
    }

    /// The text of the process that has the catalog in `folder`; `None` where none has, or there is no catalog.
    pub fn holder(folder: &Path) -> Result<Option<String>, CatalogError> {
        let path = path(folder);
        let mut file = match File::open(&path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(io_error(&path))?,
        };
        let is_free = flock(&file, libc::LOCK_SH).map_err(io_error(&path))?;
        Ok((!is_free).then(|| holder_of(&mut file)))
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("lock")
}

/// Whether the lock was to be had at once.
fn flock(file: &File, kind: libc::c_int) -> io::Result<bool> {
    // SAFETY: flock takes no pointers, and the descriptor is open for as long as `file` lives.
    if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        cause if cause.kind() == io::ErrorKind::WouldBlock => Ok(false),
        cause => Err(cause),
    }
}

fn holder_of(file: &mut File) -> String {
    let mut text = String::new();
    match file.read_to_string(&mut text) {
        Ok(_) if !text.is_empty() => text,
        _ => "another process".into(),
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_folder_is_told_as_long_as_it_does() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(FolderLock::holder(folder.path()).unwrap(), None);

        let lock = FolderLock::take(folder.path(), "mounted at /mnt").unwrap();
        let holder = FolderLock::holder(folder.path()).unwrap();
        let second = FolderLock::take(folder.path(), "another");

        assert_eq!(holder, Some(format!("process {}, mounted at /mnt", std::process::id())));
        assert!(matches!(second, Err(CatalogError::Busy { .. })));
        drop(lock);
        assert_eq!(FolderLock::holder(folder.path()).unwrap(), None);
    }
}
