//! A folder for one run of a command, gone with it: at its end, or, where the process was killed, at the next start.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tempfile::TempDir;

/// A folder that lives as long as its process, at most.
pub struct Scratch {
    folder: TempDir,
    /// Locked while the folder is used: nobody takes it for one that a dead process has left behind.
    _lock: File,
}

impl Scratch {
    /// A new folder for `command` in the system's temporary one; those that killed processes of this user have left are removed.
    pub fn of(command: &str) -> io::Result<Scratch> {
        Scratch::below(&std::env::temp_dir(), command)
    }

    fn below(parent: &Path, command: &str) -> io::Result<Scratch> {
        let prefix = format!("resyncfs-{command}-");
        // What cannot be removed is another start's to remove.
        let _ = remove_dead(parent, &prefix);
        loop {
            let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent)?;
            let lock = File::open(folder.path());
            // Until it is locked another start may take it for a dead one's, and remove it.
            let is_taken = lock.as_ref().is_ok_and(is_locked_elsewhere);
            let is_there = fs::metadata(folder.path());
            match (lock, is_there) {
                (Ok(lock), Ok(there)) if !is_taken && lock.metadata()?.ino() == there.ino() => {
                    return Ok(Scratch { folder, _lock: lock });
                }
                _ => {}
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn remove_dead(parent: &Path, prefix: &str) -> io::Result<()> {
    // SAFETY: no arguments, cannot fail (getuid(2)).
    let user = unsafe { libc::geteuid() };
    for entry in fs::read_dir(parent)?.flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix))
            && entry.metadata().is_ok_and(|it| it.is_dir() && it.uid() == user);
        if !is_ours {
            continue;
        }
        let lock = File::open(entry.path())?;
        if !is_locked_elsewhere(&lock) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Locks a folder until its descriptor is closed, unless another has it. A file system without locks has none that is locked.
fn is_locked_elsewhere(folder: &File) -> bool {
    // SAFETY: the descriptor is open; the call touches no memory of ours.
    let locked = unsafe { libc::flock(folder.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
    !locked && io::Error::last_os_error().raw_os_error() == Some(libc::EWOULDBLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_has_left_is_removed_and_what_is_used_is_not() {
        let parent = tempfile::tempdir().unwrap();
        let dead = parent.path().join("resyncfs-explore-dead");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("0.tmp"), b"half a list").unwrap();
        fs::create_dir(parent.path().join("resyncfs-other")).unwrap();
        let used = Scratch::below(parent.path(), "explore").unwrap();

        let next = Scratch::below(parent.path(), "explore").unwrap();

        assert!(!dead.exists());
        assert!(used.path().exists() && next.path().exists() && parent.path().join("resyncfs-other").exists());
        drop((used, next));
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }
}
