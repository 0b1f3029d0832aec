//! A user without rights, who mounts through fusermount3.

use super::mounted::PROGRAM;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The user and group nobody.
const ID: u32 = 65_534;

static DEVICE: Mutex<()> = Mutex::new(());

/// The device, open to all users as on most machines, and as it was when this is dropped. One test of a process has it at a time.
struct OpenDevice {
    before: Permissions,
    _turn: MutexGuard<'static, ()>,
}

impl OpenDevice {
    fn open() -> OpenDevice {
        let turn = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
        let before = fs::metadata("/dev/fuse").unwrap().permissions();
        fs::set_permissions("/dev/fuse", Permissions::from_mode(0o666)).unwrap();
        OpenDevice { before, _turn: turn }
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        let _ = fs::set_permissions("/dev/fuse", self.before.clone());
    }
}

/// The user, with a home folder and a copy of the program: the one under test may be in a folder that only root can enter.
pub struct User {
    home: tempfile::TempDir,
    mount_point: PathBuf,
    _device: OpenDevice,
}

impl User {
    /// A user whose mount point is `mnt` in the home folder.
    pub fn new() -> User {
        let home = tempfile::Builder::new().prefix("resyncfs-user-").tempdir().unwrap();
        let mount_point = home.path().join("mnt");
        User::mounting_at(home, mount_point)
    }

    /// A user whose mount point is a folder of its own below `folder`.
    pub fn with_mount_point_below(folder: &Path) -> User {
        let home = tempfile::Builder::new().prefix("resyncfs-user-").tempdir().unwrap();
        let mount_point = folder.join(home.path().file_name().unwrap());
        User::mounting_at(home, mount_point)
    }

    fn mounting_at(home: tempfile::TempDir, mount_point: PathBuf) -> User {
        fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
        fs::copy(PROGRAM, home.path().join("resyncfs")).unwrap();
        fs::create_dir_all(&mount_point).unwrap();
        for path in [home.path(), &mount_point] {
            chown(path, Some(ID), Some(ID)).unwrap();
        }
        User { home, mount_point, _device: OpenDevice::open() }
    }

    /// Where the user mounts.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// The home folder.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Writes a program of the user's own, and returns its path.
    pub fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Runs a line of shell in the home folder; `$MNT` is the mount point.
    pub fn runs(&self, line: &str) -> Output {
        let ids = ["--reuid=65534", "--regid=65534", "--clear-groups", "bash", "-c", line];
        let mut command = Command::new("setpriv");
        command.args(ids).current_dir(self.home.path()).env("HOME", self.home.path()).env("MNT", &self.mount_point);
        command.env_remove("XDG_CACHE_HOME").output().unwrap()
    }

    /// The line of the mount in `/proc/mounts`, where it is mounted.
    pub fn mounted(&self) -> Option<String> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let point = format!(" {} ", self.mount_point.to_str().unwrap().replace(' ', r"\040"));
        mounts.lines().find(|line| line.contains(&point)).map(str::to_owned)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.mount_point).stderr(Stdio::null()).status();
        let _ = fs::remove_dir(&self.mount_point);
    }
}
