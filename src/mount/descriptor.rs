//! A FUSE descriptor in place of a mount point: `/dev/fd/N`, which another process opened, mounted and handed to this one.
//!
//! A container without the right to mount gets its mount so: from the driver of its node (CSI), or from fusermount3. Nothing is mounted
//! or unmounted here; the mount ends with its connection.

use super::mountpoint::{self, MountPoint, Mounted, bad_descriptor as wrong, check_descriptor, descriptor};
use super::{MountConfig, MountError};
use crate::fs::session::mount_options;
use fuser::{Filesystem, Session, SessionACL};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// An open FUSE device with a mount.
#[derive(Debug)]
pub(super) struct Descriptor {
    opened: OwnedFd,
    /// `MAJOR:MINOR` of the mount, where it is seen here and belongs to this user.
    device: Option<String>,
    name: PathBuf,
}

impl Descriptor {
    /// The descriptor by that number, which belongs to this value from now on. `None` where `directory` is a folder.
    pub(super) fn of(directory: &Path) -> Result<Option<Descriptor>, MountError> {
        let Some(number) = descriptor(directory) else { return Ok(None) };
        check_descriptor(number)?;
        // SAFETY: it is an open FUSE device. This process opens none by itself before it mounts, so another handed it over, and nothing
        // else here owns it.
        let opened = unsafe { OwnedFd::from_raw_fd(number) };
        let failed = |cause: io::Error| wrong(number, cause.to_string());
        // No program that this one starts keeps the connection alive.
        fcntl_setfd(&opened, FdFlags::CLOEXEC).map_err(|cause| failed(cause.into()))?;
        let mut polled = [PollFd::new(&opened, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_err(|cause| failed(cause.into()))?;
        if polled[0].revents().contains(PollFlags::ERR) {
            return Err(wrong(number, "is a FUSE device without a mount; mount it before this program starts"));
        }
        let seen = mounted(number).map_err(failed)?;
        // Commands believe a record about the mounts of its own user alone.
        let own = seen.filter(|it| it.user == Some(rustix::process::geteuid().as_raw()));
        Ok(Some(match own {
            Some(Mounted { device, directory, .. }) => Descriptor { opened, device: Some(device), name: directory },
            None => {
                let name = format!("/proc/{}/fd/{number}", std::process::id());
                Descriptor { opened, device: None, name: name.into() }
            }
        }))
    }

    /// By what commands find it: the mount point, else the descriptor as a path that other processes can use.
    pub(super) fn name(&self) -> &Path {
        &self.name
    }

    /// Serves it. The kernel checks who may enter, by the options of the mount.
    pub(super) fn session<F: Filesystem>(
        self,
        config: &MountConfig,
        filesystem: F,
    ) -> Result<(Session<F>, MountPoint), MountError> {
        let Descriptor { opened, device, name: directory } = self;
        match Session::from_fd(filesystem, opened, SessionACL::All, mount_options(&config.session)) {
            Ok(session) => Ok((session, MountPoint { directory, device, is_own: false })),
            Err(cause) => Err(MountError::Kernel { directory, hint: String::new(), cause }),
        }
    }
}

/// The mount of this descriptor, where it is seen here and the kernel shows which one it is.
fn mounted(number: RawFd) -> io::Result<Option<Mounted>> {
    let shown = fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let connection = shown.lines().find_map(|line| line.strip_prefix("fuse_connection:"));
    let Some(connection) = connection.and_then(|number| number.trim().parse::<u32>().ok()) else { return Ok(None) };
    let device = format!("0:{connection}");
    Ok(mountpoint::ours()?.into_iter().find(|it| it.device == device))
}
