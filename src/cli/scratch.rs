//! A folder for one run of a command, gone with it: at its end, or, where the process was killed, at the next start.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tempfile::TempDir;

/// So often a new folder may be removed by others before it is locked.
const MOST_REMOVED: usize = 100;

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
        let _ = remove_dead(parent, &prefix, &opened);
        Scratch::made(parent, &prefix, &opened)
    }

    /// A new folder that is `open`ed to be locked.
    fn made(parent: &Path, prefix: &str, open: &dyn Fn(&Path) -> io::Result<File>) -> io::Result<Scratch> {
        for _ in 0..MOST_REMOVED {
            let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
            // Until it is locked another start may take it for a dead one's, and remove it.
            let lock = match open(folder.path()) {
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
                lock => lock?,
            };
            // A file system without locks has nobody remove it.
            if matches!(locked(&lock), Ok(false)) {
                continue;
            }
            match fs::metadata(folder.path()) {
                Ok(there) if there.ino() == lock.metadata()?.ino() => return Ok(Scratch { folder, _lock: lock }),
                Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
                _ => {}
            }
        }
        Err(io::Error::other(format!("others remove each new folder in {}", parent.display())))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn opened(folder: &Path) -> io::Result<File> {
    File::open(folder)
}

/// Removes the folders that nobody uses any more. One that cannot be opened, locked or removed keeps none behind it.
fn remove_dead(parent: &Path, prefix: &str, open: &dyn Fn(&Path) -> io::Result<File>) -> io::Result<()> {
    // SAFETY: no arguments, cannot fail (getuid(2)).
    let user = unsafe { libc::geteuid() };
    for entry in fs::read_dir(parent)?.flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix))
            && entry.metadata().is_ok_and(|it| it.is_dir() && it.uid() == user);
        if !is_ours {
            continue;
        }
        let removed = open(&entry.path()).and_then(|lock| match locked(&lock)? {
            true => fs::remove_dir_all(entry.path()),
            false => Ok(()),
        });
        if let Err(cause) = removed {
            tracing::debug!(%cause, folder = %entry.path().display(), "perhaps left behind, and not removed");
        }
    }
    Ok(())
}

/// Locks a folder until its descriptor is closed; `false` where another has it. An error where it cannot be locked at all.
fn locked(folder: &File) -> io::Result<bool> {
    // SAFETY: the descriptor is open; the call touches no memory of ours.
    if unsafe { libc::flock(folder.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        cause if cause.raw_os_error() == Some(libc::EWOULDBLOCK) => Ok(false),
        cause => Err(cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `folder` is opened where nothing of it can be done: a descriptor that cannot be locked either.
    fn opened_as_a_place(folder: &Path) -> io::Result<File> {
        use std::os::unix::fs::OpenOptionsExt;
        File::options().read(true).custom_flags(libc::O_PATH).open(folder)
    }

    #[test]
    fn where_no_folder_can_be_opened_it_is_said_and_where_none_can_be_locked_it_is_used() {
        let parent = tempfile::tempdir().unwrap();
        let full = |_: &Path| Err(io::Error::from_raw_os_error(libc::EMFILE));

        let refused = Scratch::made(parent.path(), "resyncfs-explore-", &full).map(|_| ());
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EMFILE));
        let removed = |_: &Path| Err(io::Error::from(io::ErrorKind::NotFound));
        assert!(Scratch::made(parent.path(), "resyncfs-explore-", &removed).is_err(), "not for ever");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);

        let without_locks = Scratch::made(parent.path(), "resyncfs-explore-", &opened_as_a_place).unwrap();
        assert!(without_locks.path().exists());
    }

    #[test]
    fn a_folder_that_cannot_be_opened_or_locked_is_left_and_keeps_none_behind_it() {
        let parent = tempfile::tempdir().unwrap();
        let folders: Vec<_> = (0..20).map(|it| parent.path().join(format!("resyncfs-explore-{it}"))).collect();
        folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
        let open = |folder: &Path| match folders.iter().position(|it| it == folder) {
            Some(7) => Err(io::Error::from(io::ErrorKind::PermissionDenied)),
            Some(8) => opened_as_a_place(folder),
            _ => File::open(folder),
        };

        remove_dead(parent.path(), "resyncfs-explore-", &open).unwrap();

        let left: Vec<_> = folders.iter().filter(|folder| folder.exists()).collect();
        assert_eq!(left, [&folders[7], &folders[8]]);
    }

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
