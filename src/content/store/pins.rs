//! Objects that this process keeps from eviction: hard links in a folder that it locks as long as it lives.

use super::files::flock;
use super::{ObjectKey, StoreError, io_error};
use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The pins of this process.
pub(super) struct PinFolder {
    pub(super) folder: PathBuf,
    _lock: File,
}

impl PinFolder {
    /// Removes the pins of dead processes and makes a folder for this one's. The flag: some process died without closing.
    /// Call with the cache folder locked, so that a folder just made does not pass for a dead one.
    pub(super) fn open(folder: &Path) -> Result<(PinFolder, bool), StoreError> {
        let mut died = false;
        for entry in std::fs::read_dir(folder).map_err(io_error(folder))?.flatten() {
            let path = entry.path();
            // The lock shows which processes live: process ids are used again, and differ between containers.
            if File::open(&path).is_ok_and(|pins| flock(&pins).unwrap_or(false)) {
                died = true;
                if let Err(cause) = std::fs::remove_dir_all(&path) {
                    tracing::warn!(path = %path.display(), %cause, "pins of a dead process cannot be removed");
                }
            }
        }
        let mut number = 0;
        loop {
            let path = folder.join(format!("{}-{number}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                // Of another mount of this process, or of the same id in another container.
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => number += 1,
                outcome => {
                    let lock = outcome.and_then(|()| File::open(&path)).map_err(io_error(&path))?;
                    flock(&lock).map_err(io_error(&path))?;
                    return Ok((PinFolder { folder: path, _lock: lock }, died));
                }
            }
        }
    }

    /// Pins the object at `path`; whether there is one, or was when it was pinned before.
    pub(super) fn add(&self, key: &ObjectKey, path: &Path) -> bool {
        let pinned = self.path(key);
        std::fs::hard_link(path, &pinned).is_ok() || pinned.symlink_metadata().is_ok()
    }

    /// Ends a pin.
    pub(super) fn remove(&self, key: &ObjectKey) {
        let _ = std::fs::remove_file(self.path(key));
    }

    /// Returns the path of an object in the pin folder; a pinned one is there too.
    pub(super) fn path(&self, key: &ObjectKey) -> PathBuf {
        self.folder.join(key.as_str())
    }

    /// Ends all pins. A folder left behind would mean to the next open that this process died.
    pub(super) fn close(&self) {
        if let Err(cause) = std::fs::remove_dir_all(&self.folder) {
            if cause.kind() != io::ErrorKind::NotFound {
                tracing::warn!(path = %self.folder.display(), %cause, "pins cannot be removed");
            }
        }
    }
}
