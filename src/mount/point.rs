//! The mount point: checked before, found after, detached in the end; never a mount that is not ours.

use super::MountError;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The type that `/proc/mounts` shows for our mounts.
pub const FILESYSTEM_TYPE: &str = "fuse.resyncfs";

/// One line of `/proc/self/mountinfo` (proc(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// `MAJOR:MINOR` of the mount's device.
    pub device: String,
    /// Where.
    pub directory: PathBuf,
    /// `fuse.resyncfs` for ours.
    pub filesystem: String,
    /// What is mounted.
    pub source: String,
    /// Whose mount it is (`user_id=` of FUSE).
    pub user: Option<u32>,
}

/// A mount of this process.
#[derive(Clone, Debug)]
pub struct MountPoint {
    directory: PathBuf,
    device: String,
}

impl MountPoint {
    /// Finds the mount just made at `directory` without asking the mount itself.
    pub fn find(directory: &Path) -> Result<MountPoint, MountError> {
        let wrong = |what: &str| MountError::Directory { directory: directory.to_owned(), what: what.to_owned() };
        match topmost(directory).map_err(|cause| wrong(&format!("/proc/self/mountinfo: {cause}")))? {
            Some(mounted) => Ok(MountPoint { directory: mounted.directory, device: mounted.device }),
            None => Err(wrong("the mount is not visible here; does this unit have a mount namespace of its own?")),
        }
    }

    /// `MAJOR:MINOR`, as in `/sys/class/bdi`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Takes the mount out of the tree at once; whoever has files open keeps them. Nothing happens where the mount is gone already.
    pub fn detach(&self) -> io::Result<()> {
        match topmost(&self.directory)? {
            Some(mounted) if mounted.device == self.device => unmount(&self.directory, true),
            _ => Ok(()),
        }
    }
}

/// The mounts of this machine that are ours.
pub fn ours() -> io::Result<Vec<Mounted>> {
    let mut mounts = all()?;
    mounts.retain(|mounted| mounted.filesystem == FILESYSTEM_TYPE);
    Ok(mounts)
}

/// `directory` as `/proc/self/mountinfo` writes it: absolute, without links and `..`. The last component is looked into
/// only where it is a link, because an automount must not be touched from within; it need not exist, nor answer.
pub fn resolve(directory: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(directory)?;
    // Without the trailing slash that would follow a link.
    let plain: PathBuf = absolute.components().collect();
    match (plain.parent(), plain.file_name()) {
        (Some(parent), Some(name)) if !fs::symlink_metadata(&plain).is_ok_and(|found| found.is_symlink()) => {
            Ok(fs::canonicalize(parent)?.join(name))
        }
        _ => fs::canonicalize(&plain),
    }
}

/// The same without looking at `directory` itself, whatever it is: its process may hang.
pub fn resolve_untouched(directory: &Path) -> io::Result<PathBuf> {
    let plain: PathBuf = std::path::absolute(directory)?.components().collect();
    match (plain.parent(), plain.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
        _ => Ok(plain),
    }
}

/// What is at a folder that can be mounted on.
enum Usable {
    Free(PathBuf),
    /// A mount of ours whose process has died.
    Dead(PathBuf),
}

/// Checks that `directory` can be mounted on and changes nothing.
pub fn check(directory: &Path) -> Result<(), MountError> {
    look(directory).map(|_| ())
}

/// Checks that `directory` can be mounted on; a dead mount of ours there is detached first. Returns it [resolved](resolve).
pub fn prepare(directory: &Path) -> Result<PathBuf, MountError> {
    match look(directory)? {
        Usable::Free(absolute) => Ok(absolute),
        Usable::Dead(absolute) => {
            tracing::warn!(directory = %absolute.display(), "detaching what a dead process left mounted");
            unmount(&absolute, true).map_err(|cause| MountError::Directory {
                directory: directory.to_owned(),
                what: format!("a dead mount cannot be detached: {cause}"),
            })?;
            // Below it another may lie.
            match look(directory)? {
                Usable::Free(absolute) => Ok(absolute),
                Usable::Dead(_) => Err(MountError::Directory {
                    directory: directory.to_owned(),
                    what: format!(
                        "several dead mounts lie over each other; detach them with: umount -l {}",
                        directory.display()
                    ),
                }),
            }
        }
    }
}

fn look(directory: &Path) -> Result<Usable, MountError> {
    let wrong = |what: String| MountError::Directory { directory: directory.to_owned(), what };
    let absent = || wrong(format!("there is no such folder; make it with: mkdir -p {}", directory.display()));
    let absolute = match resolve(directory) {
        Ok(absolute) => absolute,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Err(absent()),
        Err(cause) => return Err(wrong(cause.to_string())),
    };
    match fs::metadata(&absolute) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(wrong("is not a folder".to_owned())),
        Err(cause) if cause.raw_os_error() == Some(libc::ENOTCONN) => {
            let dead = topmost(&absolute).map_err(|cause| wrong(cause.to_string()))?;
            if dead.is_none_or(|mounted| mounted.filesystem != FILESYSTEM_TYPE) {
                return Err(wrong(format!("{cause}; it is no mount of resyncfs: unmount it first")));
            }
            return Ok(Usable::Dead(absolute));
        }
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Err(absent()),
        Err(cause) => return Err(wrong(cause.to_string())),
    }
    if let Ok(Some(mounted)) = topmost(&absolute)
        && mounted.filesystem == FILESYSTEM_TYPE
    {
        return Err(wrong(format!(
            "{} is mounted here already; unmount it with: resyncfs unmount {}",
            mounted.source,
            directory.display()
        )));
    }
    Ok(Usable::Free(absolute))
}

/// Detaches what a dead process of ours left mounted at `directory`; nothing else is touched, a live mount neither.
pub fn detach_dead(directory: &Path) -> io::Result<()> {
    let absolute = match resolve(directory) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        resolved => resolved?,
    };
    let is_dead = || fs::metadata(&absolute).is_err_and(|cause| cause.raw_os_error() == Some(libc::ENOTCONN));
    // Each start over a dead mount can have left one more.
    while topmost(&absolute)?.is_some_and(|mounted| mounted.filesystem == FILESYSTEM_TYPE) && is_dead() {
        unmount(&absolute, true)?;
    }
    Ok(())
}

/// Unmounts `directory`, as root by umount2(2), else by the setuid helper of fuse3. `lazy` detaches a busy mount.
pub fn unmount(directory: &Path, lazy: bool) -> io::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let flags = if lazy { libc::MNT_DETACH } else { 0 } | libc::UMOUNT_NOFOLLOW;
    // SAFETY: `path` is a NUL-terminated string that outlives the call.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let refused = io::Error::last_os_error();
    if refused.raw_os_error() != Some(libc::EPERM) {
        return Err(refused);
    }
    let mut helper = Command::new("fusermount3");
    helper.arg("-u").args(lazy.then_some("-z")).arg("--").arg(directory).stdin(Stdio::null());
    super::descriptors::give_back(&mut helper);
    let output = helper.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let kind = if said.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::PermissionDenied };
    Err(io::Error::new(kind, said.trim().to_owned()))
}

/// The mount that one sees at `directory`: the last one made there.
pub fn topmost(directory: &Path) -> io::Result<Option<Mounted>> {
    Ok(all()?.into_iter().rev().find(|mounted| mounted.directory == directory))
}

fn all() -> io::Result<Vec<Mounted>> {
    Ok(fs::read("/proc/self/mountinfo")?.split(|octet| *octet == b'\n').filter_map(parse).collect())
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|octet| *octet == b' ');
    let device = fields.nth(2)?;
    let directory = fields.nth(1)?;
    let mut after_separator = fields.skip_while(|field| *field != b"-").skip(1);
    let filesystem = after_separator.next()?;
    let source = after_separator.next()?;
    let options = after_separator.next().unwrap_or_default().split(|octet| *octet == b',');
    let user = options.filter_map(|option| option.strip_prefix(b"user_id=")).next();
    Some(Mounted {
        device: String::from_utf8_lossy(device).into_owned(),
        directory: PathBuf::from(std::ffi::OsString::from_vec(unescape(directory))),
        filesystem: String::from_utf8_lossy(filesystem).into_owned(),
        source: String::from_utf8_lossy(&unescape(source)).into_owned(),
        user: user.and_then(|user| std::str::from_utf8(user).ok()?.parse().ok()),
    })
}

/// Undoes the kernel's `\040` for blank, tab, newline and backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| {
            digits.iter().try_fold(0u32, |value, digit| (*digit as char).to_digit(8).map(|digit| value * 8 + digit))
        });
        match octal {
            Some(value) => {
                plain.push(value as u8);
                rest = &tail[3..];
            }
            None => {
                plain.push(*first);
                rest = tail;
            }
        }
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
    fn a_folder_that_is_not_there_says_how_to_make_it() {
        let parent = tempfile::tempdir().unwrap();
        let absent = parent.path().join("absent");

        let refused = prepare(&absent).unwrap_err().to_string();

        assert!(refused.contains("mkdir -p"), "{refused}");
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

    #[test]
    fn a_file_is_no_mount_point() {
        let file = tempfile::NamedTempFile::new().unwrap();

        let refused = prepare(file.path()).unwrap_err().to_string();

        assert!(refused.contains("is not a folder"), "{refused}");
    }
}
