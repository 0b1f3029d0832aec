//! A folder for one run of a command, removed at its end, or by a later run if the process was killed.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// A folder younger than this may not be locked yet.
const NEW: Duration = Duration::from_secs(60);

/// A folder that lives at most as long as its process.
pub struct Scratch {
    folder: TempDir,
    /// Locked while the folder is in use.
    _lock: File,
}

impl Scratch {
    /// A new folder for `command` in the system's temporary one. Those that killed processes of this user have left are removed.
    pub fn of(command: &str) -> io::Result<Scratch> {
        Scratch::below(&std::env::temp_dir(), command)
    }

    fn below(parent: &Path, command: &str) -> io::Result<Scratch> {
        let prefix = format!("resyncfs-{command}-");
        remove_left(parent, &prefix);
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent)?;
        let lock = File::open(folder.path())?;
        // Without a lock the folder is used all the same: where it cannot be locked, no other run removes it.
        let _ = flock(&lock, FlockOperation::NonBlockingLockExclusive);
        Ok(Scratch { folder, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the folders of killed processes. A folder that cannot be opened, locked or removed stays.
fn remove_left(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(prefix)
            && entry.metadata().is_ok_and(|found| {
                let is_new = found.modified().ok().and_then(|time| time.elapsed().ok()).is_none_or(|age| age < NEW);
                found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && !is_new
            });
        if let (true, Ok(lock)) = (is_ours, File::open(entry.path()))
            && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::time::SystemTime;

    /// A folder of a run that began an hour ago.
    fn folder(parent: &Path, name: &str) -> PathBuf {
        let folder = parent.join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("0.tmp"), b"half a list").unwrap();
        File::open(&folder).unwrap().set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
        folder
    }

    #[test]
    fn folders_of_killed_processes_are_removed_and_no_others() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path();
        let killed: Vec<_> = (0..3).map(|number| folder(parent, &format!("resyncfs-explore-{number}"))).collect();
        let other = folder(parent, "resyncfs-other-1");
        let used = folder(parent, "resyncfs-explore-used");
        let lock = File::open(&used).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let new = parent.join("resyncfs-explore-new");
        fs::create_dir(&new).unwrap();

        let scratch = Scratch::below(parent, "explore").unwrap();

        assert!(killed.iter().all(|folder| !folder.exists()));
        assert!(used.exists() && new.exists() && other.exists() && scratch.path().exists());
        drop(scratch);
        assert_eq!(fs::read_dir(parent).unwrap().count(), 3);
    }

    #[test]
    fn a_folder_in_use_is_locked() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::below(parent.path(), "explore").unwrap();

        let lock = File::open(scratch.path()).unwrap();

        assert!(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err());
    }
}
