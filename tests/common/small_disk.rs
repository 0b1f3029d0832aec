//! A disk that is full when a test wants it so.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A tmpfs of few bytes, unmounted whatever a test does. Declare it before the mount that uses it.
pub struct SmallDisk {
    folder: tempfile::TempDir,
}

/// A read-only mount over a folder, where nothing can be made or removed; unmounted whatever a test does.
pub struct ReadOnly(PathBuf);

impl ReadOnly {
    /// The folder as it is. What is open in it stays writable.
    pub fn of(folder: &Path) -> ReadOnly {
        mount(folder, c"none", libc::MS_BIND);
        mount(folder, c"none", libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY);
        ReadOnly(folder.to_owned())
    }

    /// Without anything in it.
    pub fn instead_of(folder: &Path) -> ReadOnly {
        mount(folder, c"tmpfs", libc::MS_RDONLY);
        ReadOnly(folder.to_owned())
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let path = c_path(&self.0);
        // SAFETY: `path` is NUL-terminated and outlives the call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

fn mount(folder: &Path, kind: &CStr, flags: libc::c_ulong) {
    let path = c_path(folder);
    // SAFETY: all strings are NUL-terminated and outlive the call. A bind mount is of the folder itself.
    let mounted = unsafe { libc::mount(path.as_ptr(), path.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) };
    assert_eq!(mounted, 0, "{}: {}", folder.display(), std::io::Error::last_os_error());
}

impl SmallDisk {
    /// An empty disk of so many bytes.
    pub fn of(bytes: u64) -> SmallDisk {
        let folder = tempfile::Builder::new().prefix("resyncfs-disk-").tempdir().unwrap();
        let target = c_path(folder.path());
        let options = CString::new(format!("size={bytes},mode=700")).unwrap();
        // SAFETY: all strings are NUL-terminated and outlive the call.
        let mounted =
            unsafe { libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, options.as_ptr().cast()) };
        assert_eq!(mounted, 0, "a small disk needs root: {}", std::io::Error::last_os_error());
        SmallDisk { folder }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Takes all room but `left` bytes.
    pub fn fill(&self, left: u64) {
        let mut filler = File::create(self.filler()).unwrap();
        while filler.write_all(&[0x55; 4096]).is_ok() {}
        let length = filler.metadata().unwrap().len();
        filler.set_len(length.saturating_sub(left)).unwrap();
    }

    /// Gives the room back.
    pub fn free(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    /// Bytes that are free now.
    pub fn free_space(&self) -> u64 {
        let path = c_path(self.path());
        // SAFETY: all zeros is a valid value of this plain structure.
        let mut space: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: `path` is NUL-terminated; both outlive the call.
        assert_eq!(unsafe { libc::statvfs(path.as_ptr(), &mut space) }, 0, "{}", std::io::Error::last_os_error());
        space.f_bavail * space.f_frsize
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let path = c_path(self.path());
        // SAFETY: `path` is NUL-terminated and outlives the call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}
