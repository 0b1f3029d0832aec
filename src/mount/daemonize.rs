//! Going into the background, in the order that an automount needs.
//!
//! The parent forks before anything is opened and waits on a pipe. The child mounts, starts its threads, and only then
//! leaves the session and process group. Under an automount the mounting process must be in systemd's group until the mount
//! is made; otherwise its own access to the mount point waits for itself.

use super::systemd::stderr_is_journal;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, setsid, waitpid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use std::fs::File;
use std::io::{self, Read, Write};

/// The side of the fork that a process is on.
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
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // SAFETY: the process has a single thread (precondition), so the child may run any code.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child(Waiting { pipe: writer.into() })),
        child => {
            drop(writer);
            Ok(Side::Parent(wait(reader.into(), child)?))
        }
    }
}

/// Waits for the child's byte, else for its exit.
fn wait(mut pipe: File, child: libc::pid_t) -> io::Result<u8> {
    if pipe.read(&mut [0; 1])? == 1 {
        return Ok(0);
    }
    let ended = rustix::io::retry_on_intr(|| waitpid(Pid::from_raw(child), WaitOptions::empty()))?;
    match ended.and_then(|(_, status)| status.exit_status()) {
        Some(code) => Ok(code as u8),
        None => {
            let signal = ended.and_then(|(_, status)| status.terminating_signal()).unwrap_or_default();
            Err(io::Error::other(format!("the process that serves the mount was ended by signal {signal}")))
        }
    }
}

impl Waiting {
    /// Leaves the caller's session, terminal and folder, then lets the parent end. Called when the tree can be used.
    pub fn ready(mut self) -> io::Result<()> {
        setsid()?;
        std::env::set_current_dir("/")?;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        dup2_stdin(&null)?;
        dup2_stdout(&null)?;
        // Under systemd the journal keeps reading standard error.
        if !stderr_is_journal() {
            dup2_stderr(&null)?;
        }
        self.pipe.write_all(&[1])
    }
}
