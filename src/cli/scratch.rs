//! A folder for one run of a command, removed at its end, or by a later run if the process was killed.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tempfile::TempDir;

/// A new folder is removed by another run before it is locked at most this often.
const ATTEMPTS: usize = 100;

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
        for _ in 0..ATTEMPTS {
            let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent)?;
            if let Some(lock) = locked(folder.path())? {
                return Ok(Scratch { folder, _lock: lock });
            }
        }
        Err(io::Error::other(format!("other runs remove each new folder in {}", parent.display())))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// The lock of a new folder; `None` where another run takes it for one that a killed process has left.
fn locked(folder: &Path) -> io::Result<Option<File>> {
    let lock = match File::open(folder) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        lock => lock?,
    };
    // Where folders cannot be locked no other run removes it either.
    if flock(&lock, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        return Ok(None);
    }
    let is_there = fs::metadata(folder).is_ok_and(|there| lock.metadata().is_ok_and(|it| it.ino() == there.ino()));
    Ok(is_there.then_some(lock))
}

/// Removes the folders of killed processes. A folder that cannot be opened, locked or removed stays.
fn remove_left(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(prefix)
            && entry.metadata().is_ok_and(|it| it.is_dir() && it.uid() == rustix::process::geteuid().as_raw());
        // Nothing else is opened: the open of a pipe would wait for its writer.
        let lock = is_ours.then(|| File::open(entry.path()).ok()).flatten();
        // Locked until it is gone: else its run could lock it in between, and continue without it.
        if let Some(lock) = lock {
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::thread;

    /// A folder that a run has left.
    fn folder(parent: &Path, name: &str) -> PathBuf {
        let folder = parent.join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("0.tmp"), b"half a list").unwrap();
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

        let scratch = Scratch::below(parent, "explore").unwrap();

        assert!(killed.iter().all(|folder| !folder.exists()));
        assert!(used.exists() && other.exists() && scratch.path().exists());
        drop(scratch);
        assert_eq!(fs::read_dir(parent).unwrap().count(), 2);
    }

    #[test]
    fn runs_that_begin_together_each_keep_their_folder() {
        let parent = tempfile::tempdir().unwrap();
        let run = || Scratch::below(parent.path(), "explore").unwrap();

        for _ in 0..50 {
            let scratches = thread::scope(|scope| {
                let runs: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
                runs.into_iter().map(|run| run.join().unwrap()).collect::<Vec<_>>()
            });
            assert!(scratches.iter().all(|scratch| scratch.path().is_dir()));
        }

        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_pipe_in_the_temporary_folder_stops_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let pipe = parent.path().join("resyncfs-explore-pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();

        let scratch = Scratch::below(parent.path(), "explore").unwrap();

        assert!(scratch.path().is_dir() && pipe.exists());
    }

    #[test]
    fn a_folder_in_use_is_locked() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::below(parent.path(), "explore").unwrap();

        let lock = File::open(scratch.path()).unwrap();

        assert!(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err());
    }
}
