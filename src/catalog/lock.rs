//! One process at a time uses a catalog.

use super::CatalogError;
use super::error::io_error;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The lock of one process on a catalog's folder. It ends with the process, however that ends.
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
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The folder may have been moved away before the lock, to be removed: then this is the lock of that one.
                Ok(()) if !is_at(&file, &path) => continue,
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    return Err(CatalogError::Busy { folder: folder.to_path_buf(), holder: holder_of(&mut file) });
                }
                Err(cause) => return Err(io_error(&path)(cause.into())),
            }
            let text = format!("process {}, {holder}", std::process::id());
            file.set_len(0).and_then(|()| file.rewind()).map_err(io_error(&path))?;
            file.write_all(text.as_bytes()).map_err(io_error(&path))?;
            return Ok(FolderLock { _file: file });
        }
    }

    /// The text of the process that uses the catalog in `folder`; `None` where none does, or where there is no catalog.
    pub fn holder(folder: &Path) -> Result<Option<String>, CatalogError> {
        let path = path(folder);
        let mut file = match File::open(&path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(io_error(&path))?,
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(None),
            Err(Errno::WOULDBLOCK) => Ok(Some(holder_of(&mut file))),
            Err(cause) => Err(io_error(&path)(cause.into())),
        }
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("lock")
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
    fn the_holder_of_a_folder_is_known_while_it_lives() {
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
