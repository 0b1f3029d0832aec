//! The mount point: checked before the mount, found after it, detached at the end. Never a mount of another program.

use super::MountError;
use rustix::fs::{major, minor};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The type of our mounts in `/proc/mounts`.
pub const FILESYSTEM_TYPE: &str = "fuse.resyncfs";

/// The number of /dev/fuse, everywhere (devices.txt of the kernel).
const FUSE: (u32, u32) = (10, 229);

/// One line of `/proc/self/mountinfo` (proc(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// `MAJOR:MINOR` of the mount's device.
    pub device: String,
    /// The mount point.
    pub directory: PathBuf,
    /// [`FILESYSTEM_TYPE`] for ours.
    pub filesystem: String,
    /// The Source, for ours.
    pub source: String,
    /// The user who mounted it (`user_id=` of FUSE).
    pub user: Option<u32>,
}

impl Mounted {
    /// True for a mount of resyncfs.
    pub fn is_ours(&self) -> bool {
        self.filesystem == FILESYSTEM_TYPE
    }
}

/// A mount that this process serves.
#[derive(Clone, Debug)]
pub struct MountPoint {
    /// The mount point, or the name of a descriptor.
    pub directory: PathBuf,
    /// `MAJOR:MINOR`, as in `/sys/class/bdi`, where it is known.
    pub device: Option<String>,
    /// False where another process made the mount: then nothing here can take it out of the tree.
    pub is_own: bool,
}

impl MountPoint {
    /// Finds the mount just made at `directory`, without a request to it.
    pub fn find(directory: &Path) -> Result<MountPoint, MountError> {
        let wrong = |what: String| MountError::Directory { directory: directory.to_owned(), what };
        match topmost(directory).map_err(|cause| wrong(format!("/proc/self/mountinfo: {cause}")))? {
            Some(Mounted { directory, device, .. }) => Ok(MountPoint { directory, device: Some(device), is_own: true }),
            None => {
                Err(wrong("the mount is not visible here; does this unit have its own mount namespace?".to_owned()))
            }
        }
    }

    /// An error where the mount is still there: then its connection did not end by an unmount.
    pub fn check_gone(self) -> Result<(), MountError> {
        let is_it =
            |mounted: &Mounted| self.device.as_ref() == Some(&mounted.device) && mounted.directory == self.directory;
        if ours().is_ok_and(|ours| ours.iter().any(is_it)) {
            let aborted = MountError::Aborted { directory: self.directory };
            tracing::error!("{aborted}");
            return Err(aborted);
        }
        Ok(())
    }

    /// Takes the mount out of the tree at once; open files stay open. Does nothing if the mount is gone.
    pub fn detach(&self) -> io::Result<()> {
        match topmost(&self.directory)? {
            Some(mounted) if self.device.as_ref() == Some(&mounted.device) => unmount(&self.directory, true),
            _ => Ok(()),
        }
    }
}

/// The mounts of resyncfs on this machine.
pub fn ours() -> io::Result<Vec<Mounted>> {
    let mut mounts = all()?;
    mounts.retain(Mounted::is_ours);
    Ok(mounts)
}

/// The mount that is seen at `directory`: the last one made there.
pub fn topmost(directory: &Path) -> io::Result<Option<Mounted>> {
    Ok(all()?.into_iter().rev().find(|mounted| mounted.directory == directory))
}

/// The mount that holds `path`, a path without links: the last one made at the nearest mount point above it.
pub fn holding(path: &Path) -> io::Result<Option<Mounted>> {
    let holds = all()?.into_iter().filter(|mounted| path.starts_with(&mounted.directory));
    Ok(holds.max_by_key(|mounted| mounted.directory.components().count()))
}

/// `directory` as `/proc/self/mountinfo` writes it: absolute, without links and `..`. It need not exist. A mount point is not
/// accessed: its process may hang, and a process below an automount would wait for itself.
pub fn resolve(directory: &Path) -> io::Result<PathBuf> {
    // Without the trailing slash that would follow a link.
    let plain: PathBuf = std::path::absolute(directory)?.components().collect();
    // A descriptor does not lead to a mount point, and its target need not exist under that name.
    if plain.starts_with("/proc") || descriptor(&plain).is_some() {
        return Ok(plain);
    }
    let (Some(parent), Some(name)) = (plain.parent(), plain.file_name()) else { return fs::canonicalize(&plain) };
    let resolved = fs::canonicalize(parent)?.join(name);
    let is_link = || fs::symlink_metadata(&resolved).is_ok_and(|found| found.is_symlink());
    if topmost(&resolved)?.is_none() && is_link() { fs::canonicalize(&resolved) } else { Ok(resolved) }
}

/// N of `/dev/fd/N`.
pub(super) fn descriptor(directory: &Path) -> Option<RawFd> {
    let number = directory.to_str()?.strip_prefix("/dev/fd/")?.parse::<u16>().ok()?;
    Some(number.into())
}

/// An error unless this process has inherited a FUSE device by that number.
pub(super) fn check_descriptor(number: RawFd) -> Result<(), MountError> {
    let is_fuse = |it: &fs::Metadata| it.file_type().is_char_device() && (major(it.rdev()), minor(it.rdev())) == FUSE;
    let what = match fs::metadata(format!("/proc/self/fd/{number}")) {
        // In the background they are replaced by /dev/null, and before that messages go to them.
        _ if (0..=2).contains(&number) => "is standard input, output or error; use a number from 3 on".to_owned(),
        Ok(metadata) if is_fuse(&metadata) => return Ok(()),
        Ok(_) => "is not an open /dev/fuse".to_owned(),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            "is not open; the process that starts this one must let it inherit the descriptor".to_owned()
        }
        Err(cause) => cause.to_string(),
    };
    Err(bad_descriptor(number, what))
}

/// Why a descriptor cannot be served.
pub(super) fn bad_descriptor(number: RawFd, what: impl Into<String>) -> MountError {
    MountError::Directory { directory: format!("/dev/fd/{number}").into(), what: what.into() }
}

/// An error if a mount of ours is at `absolute`, which the user calls `directory`. The mount point is not accessed.
pub fn check_free(absolute: &Path, directory: &Path) -> Result<(), MountError> {
    let wrong = |what: String| MountError::Directory { directory: directory.to_owned(), what };
    match topmost(absolute).map_err(|cause| wrong(cause.to_string()))?.filter(Mounted::is_ours) {
        Some(Mounted { source, .. }) => Err(wrong(format!(
            "{source} is mounted here already; unmount it with: resyncfs unmount {}",
            directory.display()
        ))),
        None => Ok(()),
    }
}

/// Unmounts `directory`, as root by umount2(2), else by the setuid helper of fuse3. `lazy` detaches a mount in use.
pub fn unmount(directory: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(directory, flags | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => {}
        result => return Ok(result?),
    }
    let mut helper = Command::new("fusermount3");
    helper.arg("-u").args(lazy.then_some("-z")).arg("--").arg(directory).stdin(Stdio::null());
    let mut output = helper.output()?;
    if output.status.code().is_none() {
        // A signal to all processes of a service or a terminal has ended it.
        output = helper.output()?;
    }
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let kind = if message.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::PermissionDenied };
    Err(io::Error::new(kind, message.trim().to_owned()))
}

fn all() -> io::Result<Vec<Mounted>> {
    Ok(fs::read("/proc/self/mountinfo")?.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
///
/// As bytes: one name that is not UTF-8, of any mount of the machine, must not hide ours.
fn parse(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = fields.nth(2)?;
    let directory = fields.nth(1)?;
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let (filesystem, source, options) = (fields.next()?, fields.next()?, fields.next().unwrap_or_default());
    let user = options.split(|byte| *byte == b',').find_map(|option| option.strip_prefix(b"user_id="));
    let text = |field: Vec<u8>| String::from_utf8_lossy(&field).into_owned();
    Some(Mounted {
        device: text(device.to_owned()),
        directory: OsString::from_vec(unescape(directory)).into(),
        filesystem: text(filesystem.to_owned()),
        source: text(unescape(source)),
        user: user.and_then(|user| std::str::from_utf8(user).ok()?.parse().ok()),
    })
}

/// Undoes the kernel's `\040` for blank, tab, newline and backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut parts = field.split(|byte| *byte == b'\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (digits, rest) = part.split_at(part.len().min(3));
        plain.extend(std::str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, 8).ok()));
        plain.extend_from_slice(rest);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read() {
        let line =
            b"99 28 0:53 / /mnt/my\\040repo ro,nosuid shared:5 master:1 - fuse.resyncfs https://h/a\\134b ro,user_id=0";

        let mounted = parse(line);

        assert_eq!(
            mounted,
            Some(Mounted {
                device: "0:53".into(),
                directory: "/mnt/my repo".into(),
                filesystem: "fuse.resyncfs".into(),
                source: "https://h/a\\b".into(),
                user: Some(0),
            })
        );
    }

    #[test]
    fn a_path_is_resolved_as_the_kernel_writes_it() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", root.join("to-a")).unwrap();
        std::os::unix::fs::symlink("a/b", root.join("to-b")).unwrap();

        for written in ["a/b", "a/b/", "a/./b", "a/../a/b", "to-a/b", "to-b", "to-b/", "a/b/../b"] {
            assert_eq!(resolve(&root.join(written)).unwrap(), root.join("a/b"), "{written}");
        }
        assert_eq!(resolve(&root.join("a/b/..")).unwrap(), root.join("a"));
        assert_eq!(resolve(&root.join("to-a/absent")).unwrap(), root.join("a/absent"));
        assert_eq!(resolve(Path::new("/")).unwrap(), Path::new("/"));
    }
}
