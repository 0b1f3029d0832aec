//! Whether the machine went down while the catalog was open: only then may its disk not hold what was committed.
//!
//! The file `running` names the boot in which the catalog was opened and not closed since. A process that was killed leaves it
//! behind under this boot's name: the kernel keeps what the process had written. Under another boot's name it means that the store's trees
//! are followed before it is mapped ([`crate::lmdb::check`]) and that the whole store is to be read once ([`super::check`]). It keeps that
//! name until it was read.

use super::CatalogError;
use super::store::{io_error, sync_folder};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Another name at each boot (proc_sys_kernel(5)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The mark of one open catalog; removed with it.
pub(super) struct Running {
    file: PathBuf,
    /// `None` where this machine does not tell: then no crash can be told from a kill.
    boot: Option<String>,
    crashed: bool,
}

impl Running {
    /// Marks the catalog in `folder`, which the caller has locked, as open.
    pub(super) fn mark(folder: &Path) -> Result<Running, CatalogError> {
        let boot = std::fs::read_to_string(BOOT_ID).ok();
        Running::mark_in(folder, boot)
    }

    fn mark_in(folder: &Path, boot: Option<String>) -> Result<Running, CatalogError> {
        let file = folder.join("running");
        let left = match std::fs::read_to_string(&file) {
            Ok(left) => Some(left),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => None,
            // Not text, so nothing that was written here.
            Err(cause) if cause.kind() == std::io::ErrorKind::InvalidData => Some(String::new()),
            Err(cause) => return Err(io_error(&file)(cause)),
        };
        let crashed = boot.is_some() && left.is_some() && left != boot;
        let running = Running { file, boot, crashed };
        if !crashed {
            running.write()?;
        }
        Ok(running)
    }

    /// Whether the machine went down while the catalog was open, and it was not read whole since.
    pub(super) fn has_crashed(&self) -> bool {
        self.crashed
    }

    /// The store was read whole and is good.
    pub(super) fn forget_crash(&self) -> Result<(), CatalogError> {
        self.write()
    }

    /// On the disk before anything that is committed behind it.
    fn write(&self) -> Result<(), CatalogError> {
        let Some(boot) = &self.boot else { return Ok(()) };
        let failed = io_error(&self.file);
        let mut options = File::options();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&self.file).map_err(&failed)?;
        file.write_all(boot.as_bytes()).and_then(|()| file.sync_all()).map_err(&failed)?;
        sync_folder(self.file.parent().unwrap_or(Path::new(".")))
    }
}

impl Drop for Running {
    /// A crash that was not looked into is left for the next mount.
    fn drop(&mut self) {
        let still_named = std::fs::read_to_string(&self.file).ok();
        if still_named == self.boot
            && let Err(cause) = std::fs::remove_file(&self.file)
            && cause.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(file = %self.file.display(), %cause, "the next mount will take this one for crashed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(folder: &Path, boot: &str) -> Running {
        Running::mark_in(folder, Some(boot.to_owned())).unwrap()
    }

    /// Ends as a kill does: nothing is tidied away.
    fn kill(running: Running) {
        std::mem::forget(running);
    }

    #[test]
    fn a_clean_close_and_a_kill_are_no_crash() {
        let folder = tempfile::tempdir().unwrap();
        drop(mark(folder.path(), "first"));
        let after_clean = mark(folder.path(), "second");
        assert!(!after_clean.has_crashed());
        kill(after_clean);
        assert!(!mark(folder.path(), "second").has_crashed());
    }

    #[test]
    fn a_crash_is_remembered_until_the_store_was_read() {
        let folder = tempfile::tempdir().unwrap();
        kill(mark(folder.path(), "first"));

        for boot in ["second", "second", "third"] {
            let crashed = mark(folder.path(), boot);
            assert!(crashed.has_crashed());
            drop(crashed);
        }
        let read = mark(folder.path(), "third");
        read.forget_crash().unwrap();
        kill(read);

        assert!(!mark(folder.path(), "third").has_crashed());
        drop(mark(folder.path(), "third"));
        assert!(!mark(folder.path(), "fourth").has_crashed());
    }

    #[test]
    fn a_machine_that_does_not_tell_its_boot_is_never_said_to_have_crashed() {
        let folder = tempfile::tempdir().unwrap();
        kill(mark(folder.path(), "first"));
        assert!(!Running::mark_in(folder.path(), None).unwrap().has_crashed());
    }
}
