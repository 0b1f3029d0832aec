//! Removing files of a cache folder, and what is in their place and is not a file: a folder, a link, a pipe.

use super::Evicted;
use super::files::{PARTIALS, flock, make_folder, open_to_read};
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Below the cache folder: unexpected folders that are not empty are moved here, until their owner removes them.
const MOVED: &str = "aside";

/// Result of the removal of an unexpected file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The file is gone.
    Removed,
    /// A folder that is not empty: it was moved here, with all that is in it.
    Moved(PathBuf),
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Removal::Removed => f.write_str("removed"),
            Removal::Moved(path) => {
                let path = path.display();
                write!(f, "a folder that is not empty, moved to {path}: delete it if you do not need it")
            }
        }
    }
}

/// Removes a file by its path below the cache folder: an object that no process has pinned, a partial that none writes.
pub(super) fn evict_file(folder: &Path, name: &str) -> io::Result<Evicted> {
    let path = folder.join(name);
    let metadata = match std::fs::symlink_metadata(&path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Evicted::Absent),
        known => known?,
    };
    let is_partial = name.starts_with(PARTIALS) && metadata.is_file();
    // Locked until its name is gone, so that no resume finds it meanwhile.
    let partial = if is_partial { Some(open_to_read(&path)?) } else { None };
    let is_written = partial.as_ref().map_or(Ok(false), |partial| flock(partial).map(|locked| !locked))?;
    if is_written || (metadata.is_file() && metadata.nlink() > 1) {
        return Ok(Evicted::Kept);
    }
    remove(folder, &path)?;
    Ok(Evicted::Bytes(metadata.blocks() * 512))
}

/// Returns whether something else than a file has this name.
pub(super) fn is_unexpected(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file())
}

/// Removes what is at `path` in the cache folder `folder`. A folder that holds something is moved as it is: it may be a user's.
pub(super) fn remove(folder: &Path, path: &Path) -> io::Result<Removal> {
    let removed = match std::fs::remove_file(path) {
        Err(_) if path.symlink_metadata()?.is_dir() => std::fs::remove_dir(path),
        outcome => outcome,
    };
    match removed {
        Err(cause) if cause.kind() == io::ErrorKind::DirectoryNotEmpty => {}
        outcome => return outcome.map(|()| Removal::Removed),
    }
    make_folder(&folder.join(MOVED))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut number = 0;
    loop {
        let moved = folder.join(MOVED).join(format!("{name}-{number}"));
        // A folder replaces an empty folder and nothing else.
        match std::fs::rename(path, &moved) {
            Err(cause) if matches!(cause.raw_os_error(), Some(libc::EEXIST | libc::ENOTEMPTY | libc::ENOTDIR)) => {
                number += 1;
            }
            outcome => return outcome.map(|()| Removal::Moved(moved)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EvictionPolicy, Inventory, ObjectKey, Store};
    use super::*;
    use std::os::unix::fs::symlink;

    const BYTES: &[u8] = b"what the Source published";

    fn keep(disk: &Store, key: &ObjectKey) {
        let partial = disk.begin(key, Some(BYTES.len() as u64), EvictionPolicy::Any).unwrap();
        partial.append(BYTES, EvictionPolicy::Any).unwrap();
        partial.commit(key, BYTES.len() as u64, EvictionPolicy::Any).unwrap();
    }

    /// One of each kind of unexpected file.
    fn places(path: &Path, kind: usize) {
        let _ = std::fs::remove_file(path);
        match kind {
            0 => std::fs::create_dir(path).unwrap(),
            1 => {
                std::fs::create_dir(path).unwrap();
                std::fs::write(path.join("thesis"), "not saved elsewhere").unwrap();
            }
            2 => symlink("/etc/passwd", path).unwrap(),
            _ => {
                let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
                // SAFETY: `path` is NUL-terminated and outlives the call.
                assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
            }
        }
    }

    fn key(number: u64) -> ObjectKey {
        ObjectKey::inode("https://source.example/", number)
    }

    #[test]
    fn unexpected_files_make_room_and_full_folders_are_moved() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Store::open(folder.path(), Some(1 << 40), 0).unwrap();
        for kind in 0..4 {
            let key = key(kind as u64);
            let object = folder.path().join(key.object_name());
            std::fs::create_dir_all(object.parent().unwrap()).unwrap();
            for place in [object.clone(), folder.path().join("tmp").join(key.as_str()), object] {
                places(&place, kind);
                keep(&disk, &key);
                assert_eq!(&disk.get(&key).unwrap().read(0, 100).unwrap()[..], BYTES, "{kind} at {}", place.display());
                disk.evict(&key);
            }
        }
        let moved: Vec<_> =
            std::fs::read_dir(folder.path().join(MOVED)).unwrap().map(|it| it.unwrap().path()).collect();
        assert_eq!(moved.len(), 3, "{moved:?}");
        assert!(moved.iter().all(|it| std::fs::read(it.join("thesis")).is_ok_and(|it| it == b"not saved elsewhere")));
    }

    #[test]
    fn a_lookup_removes_what_is_no_object() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Store::open(folder.path(), Some(1 << 40), 0).unwrap();
        for kind in 0..4 {
            let key = key(kind as u64);
            let path = folder.path().join(key.object_name());
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            places(&path, kind);
            assert!(disk.get(&key).is_none());
            assert!(path.symlink_metadata().is_err(), "{kind}");

            places(&path, kind);
            let mut inventory = Inventory::open(folder.path());
            assert!(inventory.read(&key).unwrap().is_none());
            let put = inventory.remove_damaged(&key, None).unwrap();
            assert_eq!(matches!(put, Removal::Moved(_)), kind == 1, "{put}");
            assert!(path.symlink_metadata().is_err(), "{kind}");
        }
    }
}
