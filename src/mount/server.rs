//! The process that serves a mount, seen from another one: found, and waited for.

use super::point::Mounted;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// A process that serves a mount; its number cannot come to mean another one meanwhile.
#[derive(Debug)]
pub struct Server {
    process: u32,
    handle: OwnedFd,
}

impl Server {
    /// The process that has the mount's device open, where this user may know and the kernel tells (`fuse_connection` in
    /// `/proc/PID/fdinfo`). The mount itself is not asked anything.
    pub fn of(mounted: &Mounted) -> Option<Server> {
        let connection = mounted.device.strip_prefix("0:")?;
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.find(|process| serves(*process, connection)).and_then(|process| Server::open(process).ok())
    }

    /// The process that listens at a socket.
    pub fn listening_at(socket: &Path) -> io::Result<Server> {
        let connected = UnixStream::connect(socket)?;
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: `peer` is a ucred of the length that is told, as SO_PEERCRED wants (unix(7)); both outlive the call.
        let told = unsafe {
            let value = (&raw mut peer).cast();
            libc::getsockopt(connected.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, value, &mut length)
        };
        match u32::try_from(peer.pid) {
            Ok(process) if told == 0 && process > 0 => Server::open(process),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    /// Its number.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Waits until the process has ended; `false` where it has not after `patience`.
    pub fn wait(&self, patience: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).as_millis();
            let mut polled = libc::pollfd { fd: self.handle.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: `polled` is one pollfd, and it outlives the call.
            match unsafe { libc::poll(&mut polled, 1, i32::try_from(left).unwrap_or(i32::MAX)) } {
                0 => return Ok(false),
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                -1 => return Err(io::Error::last_os_error()),
                _ => return Ok(true),
            }
        }
    }

    fn open(process: u32) -> io::Result<Server> {
        // SAFETY: pidfd_open(2) takes two numbers.
        match unsafe { libc::syscall(libc::SYS_pidfd_open, process as libc::pid_t, 0) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: the descriptor was just made and is owned by nobody else.
            handle => Ok(Server { process, handle: unsafe { OwnedFd::from_raw_fd(handle as i32) } }),
        }
    }
}

/// Whether `process` holds a descriptor of this FUSE connection.
fn serves(process: u32, connection: &str) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    descriptors.flatten().any(|descriptor| {
        fs::read_link(descriptor.path()).is_ok_and(|target| target == Path::new("/dev/fuse"))
            && fs::read_to_string(format!("/proc/{process}/fdinfo/{}", descriptor.file_name().display())).is_ok_and(
                |told| {
                    told.lines().any(|line| line.strip_prefix("fuse_connection:").map(str::trim) == Some(connection))
                },
            )
    })
}
