//! The folder that is to be mounted on: checked, and freed of mounts of ours whose processes have died.

use super::MountError;
use super::mountpoint::{check_descriptor, check_free, descriptor, resolve, topmost, unmount};
use super::registry::{self, MountState};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Checks that `directory` can be mounted on, and detaches dead mounts of ours there. Returns it [resolved](resolve).
pub fn prepare(directory: &Path) -> Result<PathBuf, MountError> {
    if descriptor(directory).is_some() {
        return check(directory);
    }
    if let Ok(absolute) = resolve(directory) {
        detach_dead(&absolute).map_err(|cause| MountError::Directory {
            directory: directory.to_owned(),
            what: format!("a dead mount cannot be detached: {cause}"),
        })?;
    }
    check(directory)
}

/// Checks that `directory` can be mounted on, and changes nothing. Returns it [resolved](resolve).
pub fn check(directory: &Path) -> Result<PathBuf, MountError> {
    if let Some(number) = descriptor(directory) {
        return check_descriptor(number).map(|()| directory.to_owned());
    }
    let shown = directory.display();
    let wrong = |what: String| MountError::Directory { directory: directory.to_owned(), what };
    if directory.starts_with("/dev/fd") {
        return Err(wrong("is not a descriptor; name one by its number, as in /dev/fd/3".to_owned()));
    }
    let unusable = |cause: io::Error| match cause.kind() {
        io::ErrorKind::NotFound => wrong(format!("there is no such folder; make it with: mkdir -p {shown}")),
        _ => wrong(cause.to_string()),
    };
    let absolute = resolve(directory).map_err(unusable)?;
    let is_ours = registry::mount_at(&absolute).map_err(unusable)?.is_some();
    match asked(&absolute) {
        Ok(kind) if kind != FileType::Directory => Err(wrong("is not a folder; name an empty folder".to_owned())),
        Ok(_) => check_free(&absolute, directory).map(|()| absolute),
        Err(cause) if is_dead(&cause) && is_ours => Ok(absolute),
        Err(cause) if is_dead(&cause) => {
            Err(wrong(format!("{cause}; it is not a resyncfs mount; unmount it first with: umount -l {shown}")))
        }
        Err(cause) => Err(unusable(cause)),
    }
}

/// Says that a mount at `directory` hides files. Files below an automount are not accessed: this process would wait for itself.
pub(super) fn hidden_files(directory: &Path) -> Option<String> {
    let is_automount = || topmost(directory).is_ok_and(|it| it.is_some_and(|it| it.filesystem == "autofs"));
    let mut entries = fs::read_dir(Some(directory).filter(|_| !is_automount())?).ok()?;
    entries.next()?.ok()?;
    Some(format!("{} is not empty: its own files are hidden until it is unmounted", directory.display()))
}

/// True if an access failed because the process of a FUSE mount has died.
fn is_dead(cause: &io::Error) -> bool {
    Errno::from_io_error(cause) == Some(Errno::NOTCONN)
}

/// The type of the file at `path`. A living process of ours is not asked, for it may hang. If it has died, the kernel is made to ask, for it may
/// still know the attributes.
fn asked(path: &Path) -> io::Result<FileType> {
    let flags = match registry::mount_at(path)?.map(|mount| mount.state) {
        Some(MountState::Living | MountState::Starting) => return Ok(FileType::Directory),
        Some(MountState::Dead) => AtFlags::STATX_FORCE_SYNC,
        _ => AtFlags::empty(),
    };
    let found = statx(CWD, path, flags, StatxFlags::TYPE)?;
    Ok(FileType::from_raw_mode(found.stx_mode.into()))
}

/// Detaches the mounts of ours at `directory` whose processes have died; touches no other mount.
pub fn detach_dead(directory: &Path) -> io::Result<()> {
    // Each start over a dead mount can have left one more.
    while registry::mount_at(directory)?.is_some() && asked(directory).is_err_and(|it| is_dead(&it)) {
        tracing::warn!(directory = %directory.display(), "the mount of a dead process is detached");
        unmount(directory, true)?;
    }
    Ok(())
}
