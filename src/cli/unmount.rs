//! `resyncfs unmount`

use super::log::say_failure;
use super::mounts::{self, mounted_at};
use super::{CliError, Exit, complain, config};
use crate::mount::registry::{self, MountState};
use crate::mount::{LONGEST_END, mountpoint, preparation};
use clap_complete::engine::ArgValueCompleter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a mount in use is tried again. A process that is being started holds the open files of the process that starts it until
/// it runs its program, although that one has closed them: some 40 ms, and longer on a machine under load.
const BRIEF_USE: Duration = Duration::from_secs(2);

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// Unmount one or more mounts
#[derive(Debug, clap::Args)]
pub struct UnmountArgs {
    /// Take it out of the tree at once, even if it is in use; open files stay open
    #[arg(short, long)]
    lazy: bool,
    /// Only detach mounts whose process has died; if there is none, do nothing
    #[arg(long, conflicts_with = "lazy")]
    dead: bool,
    /// Mount points, or NAMEs of /etc/resyncfs/NAME.toml
    #[arg(required = true, value_name = "DIR|NAME", add = ArgValueCompleter::new(mounts::complete))]
    directories: Vec<PathBuf>,
}

/// Runs the command; it returns when the process that served the mount has ended, unless another mount shows the same tree.
pub fn run(args: UnmountArgs) -> Result<Exit, CliError> {
    let mut exit = Exit::Success;
    for directory in &args.directories {
        let ended = if args.dead { detach_dead(directory) } else { unmount(directory, args.lazy) };
        if let Err(failure) = ended {
            let _ = say_failure("resyncfs", &failure.message);
            exit = failure.exit;
        }
    }
    Ok(exit)
}

fn detach_dead(directory: &Path) -> Result<(), CliError> {
    // What is wrong with the file of a NAME was an error of its mount: a service that runs this after it reports it once.
    let Ok(directory) = &config::directory(directory) else { return Ok(()) };
    let detached = match mountpoint::resolve(directory) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        resolved => resolved.and_then(|absolute| preparation::detach_dead(&absolute)),
    };
    detached.map_err(|cause| CliError::at(Exit::MountPoint, directory, cause))
}

fn unmount(directory: &Path, lazy: bool) -> Result<(), CliError> {
    let shown = directory.display();
    let failed = |cause: io::Error| match cause.kind() {
        io::ErrorKind::ResourceBusy => CliError::new(
            Exit::MountPoint,
            format!(
                "{shown}: is in use; close the programs that use it (fuser -vm {shown} lists them), or detach it all the same \
                 with --lazy"
            ),
        ),
        io::ErrorKind::PermissionDenied => {
            CliError::at(Exit::Denied, directory, "only root and the user who mounted it may unmount it")
        }
        _ => CliError::at(Exit::MountPoint, directory, cause),
    };
    let absolute = mounted_at(directory)?;
    let process = if lazy { None } else { process(&absolute).map_err(failed)? };
    unmount_when_unused(&absolute, lazy).map_err(failed)?;
    if let Some((process, handle)) = process {
        if !ends_within(&handle, LONGEST_END).map_err(failed)? {
            // It is unmounted, as requested.
            complain(&shown.to_string(), &format!("unmounted; its process {process} has not ended yet"));
        }
    }
    Ok(())
}

fn unmount_when_unused(directory: &Path, lazy: bool) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match mountpoint::unmount(directory, lazy) {
            Err(cause) if cause.kind() == io::ErrorKind::ResourceBusy && begun.elapsed() < BRIEF_USE => {
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

/// The process that will end with the mount at `directory`: none if the same tree is mounted elsewhere as well, or if no record
/// names it. Its handle (pidfd) never stands for a later process with the same ID.
fn process(directory: &Path) -> io::Result<Option<(u32, OwnedFd)>> {
    let ours = mountpoint::ours()?;
    let device = ours.iter().rev().find(|mounted| mounted.directory == directory).map(|mounted| &mounted.device);
    if ours.iter().filter(|mounted| Some(&mounted.device) == device).count() > 1 {
        return Ok(None);
    }
    let known = registry::mount_at(directory)?.filter(|known| known.state == MountState::Living);
    let Some(process) = known.and_then(|known| known.process) else { return Ok(None) };
    let handle =
        i32::try_from(process).ok().and_then(Pid::from_raw).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    Ok(handle.map(|handle| (process, handle)))
}

/// True if the process ends within `patience`.
fn ends_within(process: &OwnedFd, patience: Duration) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    Ok(rustix::io::retry_on_intr(|| poll(&mut polled, Some(&timeout)))? > 0)
}
