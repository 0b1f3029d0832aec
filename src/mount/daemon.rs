//! Going into the background the way an automount allows.
//!
//! The parent forks before anything is opened and waits on a pipe. The child mounts, starts its threads, and only then
//! leaves the session and process group: under an automount the mounting process must be in systemd's group until the mount is made,
//! or looking at the mount point waits for itself.

use super::service::stderr_is_journal;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Which side of the fork this is.
pub enum Side {
    /// The process that was called: the child's exit code, or 0 once the tree is there.
    Parent(u8),
    /// The process that mounts and stays.
    Child(Waiting),
}

/// The child's end of the pipe on which its parent waits.
pub struct Waiting {
    pipe: File,
}

/// Forks. Must be called while the process has one thread and nothing open that a child must not share.
pub fn fork() -> io::Result<Side> {
    let mut ends = [0; 2];
    // SAFETY: `ends` is an array of two ints, as pipe2(2) wants.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both descriptors were just made by pipe2 and are owned by nobody else.
    let (read, write) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // SAFETY: the process has a single thread (precondition), so the child may go on running any code.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(read);
            Ok(Side::Child(Waiting { pipe: File::from(write) }))
        }
        child => {
            drop(write);
            Ok(Side::Parent(wait(File::from(read), child)?))
        }
    }
}

/// Waits for the child's byte, else for its exit.
fn wait(mut pipe: File, child: libc::pid_t) -> io::Result<u8> {
    let mut told = [0; 1];
    if pipe.read(&mut told)? == 1 {
        return Ok(0);
    }
    let mut status = 0;
    // SAFETY: `status` is an int for waitpid(2) to fill in; `child` is this process's own child.
    while unsafe { libc::waitpid(child, &mut status, 0) } == -1 {
        let cause = io::Error::last_os_error();
        if cause.kind() != io::ErrorKind::Interrupted {
            return Err(cause);
        }
    }
    if libc::WIFEXITED(status) {
        return Ok(libc::WEXITSTATUS(status) as u8);
    }
    let signal = libc::WTERMSIG(status);
    Err(io::Error::other(format!("the process that was to serve the mount was ended by signal {signal}")))
}

impl Waiting {
    /// Leaves the caller's session, terminal and folder, then tells the parent. Called when the tree can be used.
    pub fn ready(mut self) -> io::Result<()> {
        // SAFETY: setsid has no preconditions; it fails only for a group leader, which a forked child is not.
        unsafe { libc::setsid() };
        std::env::set_current_dir("/")?;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        for standard in [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO] {
            // Under systemd the journal goes on listening to standard error.
            if standard == libc::STDERR_FILENO && stderr_is_journal() {
                continue;
            }
            // SAFETY: both descriptors are open; dup2 replaces the standard one.
            if unsafe { libc::dup2(null.as_raw_fd(), standard) } == -1 {
                return Err(io::Error::last_os_error());
            }
        }
        self.pipe.write_all(&[1])
    }
}
