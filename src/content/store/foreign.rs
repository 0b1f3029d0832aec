//! What lies where a file of the cache belongs, and is none that the cache has put there.

use super::cache::make_folder;
use super::recency::OBJECTS;
use std::fmt;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Below the cache folder: what is somebody's own lies here until somebody removes it.
const ASIDE: &str = "aside";

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutAway {
    /// It is gone.
    Removed,
    /// It is a folder that is not empty: it lies here now, with all that is in it.
    Aside(PathBuf),
}

impl fmt::Display for PutAway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PutAway::Removed => f.write_str("removed"),
            PutAway::Aside(path) => {
                write!(
                    f,
                    "a folder that is not empty, moved to {}: remove it when you need nothing of it",
                    path.display()
                )
            }
        }
    }
}

/// Who may have made the cache's objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owners {
    /// This process's.
    user: u32,
    /// That of the folder, which a process made that kept some; `None`: nobody knows.
    owner: Option<u32>,
}

impl Owners {
    /// As `folder` tells.
    pub(super) fn of(folder: &Path) -> Owners {
        // SAFETY: the call cannot fail and touches no memory.
        let user = unsafe { libc::geteuid() };
        Owners { user, owner: std::fs::metadata(folder.join(OBJECTS)).ok().map(|metadata| metadata.uid()) }
    }

    /// Whether `metadata` is of a file that the cache may have made: by them, or by root.
    pub(super) fn may_have_made(&self, metadata: &Metadata) -> bool {
        let uid = metadata.uid();
        metadata.is_file() && (uid == 0 || uid == self.user || self.owner.is_none_or(|owner| uid == owner))
    }
}

/// Whether something else than a file has this name.
pub(super) fn is_in_the_way(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file())
}

/// Takes away whatever is at `path` in the cache folder `folder`: a folder that holds something goes aside as it is, for nobody
/// knows whose it is; all else is removed.
pub(super) fn put_away(folder: &Path, path: &Path) -> io::Result<PutAway> {
    let removed = match std::fs::remove_file(path) {
        Err(_) if path.symlink_metadata()?.is_dir() => std::fs::remove_dir(path),
        outcome => outcome,
    };
    match removed {
        Err(cause) if cause.kind() == io::ErrorKind::DirectoryNotEmpty => {}
        outcome => return outcome.map(|()| PutAway::Removed),
    }
    make_folder(&folder.join(ASIDE))?;
    let name = path.file_name().unwrap_or_default();
    let mut number = 0;
    loop {
        let aside = folder.join(ASIDE).join(format!("{}-{number}", name.to_string_lossy()));
        // A folder takes the place of an empty one, and of nothing else.
        match std::fs::rename(path, &aside) {
            Err(cause) if matches!(cause.raw_os_error(), Some(libc::EEXIST | libc::ENOTEMPTY | libc::ENOTDIR)) => {
                number += 1
            }
            outcome => return outcome.map(|()| PutAway::Aside(aside)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Inventory, ObjectKey, Store};
    use super::*;
    use std::os::unix::fs::symlink;

    const BYTES: &[u8] = b"what the Source published";

    fn keep(disk: &Store, key: &ObjectKey) {
        let partial = disk.begin(key, Some(BYTES.len() as u64)).unwrap();
        partial.write_at(0, BYTES).unwrap();
        partial.commit(key, BYTES.len() as u64).unwrap();
    }

    /// Each kind of thing that is no file of the cache.
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
    fn what_lies_where_an_object_or_a_partial_belongs_makes_room_for_it_and_nothing_of_somebodys_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Store::open(folder.path(), Some(1 << 40), 0).unwrap();
        for kind in 0..4 {
            let key = key(kind as u64);
            let object = folder.path().join(super::super::object_name(&key));
            std::fs::create_dir_all(object.parent().unwrap()).unwrap();
            for place in [object.clone(), folder.path().join("tmp").join(key.as_str()), object] {
                places(&place, kind);
                keep(&disk, &key);
                assert_eq!(&disk.get(&key).unwrap().read(0, 100).unwrap()[..], BYTES, "{kind} at {}", place.display());
                disk.remove(&key);
            }
        }
        let aside: Vec<_> =
            std::fs::read_dir(folder.path().join(ASIDE)).unwrap().map(|it| it.unwrap().path()).collect();
        assert_eq!(aside.len(), 3, "{aside:?}");
        assert!(aside.iter().all(|it| std::fs::read(it.join("thesis")).is_ok_and(|it| it == b"not saved elsewhere")));
    }

    #[test]
    fn a_look_takes_away_what_is_no_object() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Store::open(folder.path(), Some(1 << 40), 0).unwrap();
        for kind in 0..4 {
            let key = key(kind as u64);
            let path = folder.path().join(super::super::object_name(&key));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            places(&path, kind);
            assert!(disk.get(&key).is_none());
            assert!(path.symlink_metadata().is_err(), "{kind}");

            places(&path, kind);
            let mut inventory = Inventory::open(folder.path());
            assert!(inventory.read(&key).unwrap().is_none());
            let put = inventory.remove_damaged(&key, None).unwrap();
            assert_eq!(matches!(put, PutAway::Aside(_)), kind == 1, "{put}");
            assert!(path.symlink_metadata().is_err(), "{kind}");
        }
    }

    #[test]
    fn a_file_of_another_user_is_no_object() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Store::open(folder.path(), Some(1 << 40), 0).unwrap();
        keep(&disk, &key(1));
        disk.close();
        let path = folder.path().join(super::super::object_name(&key(1)));
        let disk = Store::open(folder.path(), Some(1 << 40), 0).unwrap();
        assert!(disk.get(&key(1)).is_some());
        disk.close();
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        let disk = Store::open(folder.path(), Some(1 << 40), 0).unwrap();

        assert!(disk.get(&key(1)).is_none());
        assert!(!path.exists());
    }
}
