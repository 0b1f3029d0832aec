//! `resyncfs unmount`

use super::running::{Running, mounted_at};
use super::{CliError, Exit, config};
use crate::mount::server::Server;
use crate::mount::{ENDING, point};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A mount in use is tried again for so long. A process that is being started holds the open files of the process that starts it until
/// it runs its program, although that one has closed them: some 40 ms, and longer on a machine that is loaded.
const BRIEF_USE: Duration = Duration::from_secs(2);

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// A mount that is asked where its socket lies answers within this time, or is left alone.
const PATIENCE: Duration = Duration::from_secs(2);

/// End mounts
#[derive(Debug, clap::Args)]
pub struct UnmountArgs {
    /// Take it out of the tree at once although it is in use; who has files open keeps them
    #[arg(short, long)]
    lazy: bool,
    /// Only detach what a process that has died left mounted; where there is no such thing nothing happens
    #[arg(long, conflicts_with = "lazy")]
    dead: bool,
    /// Where they are mounted, or NAMEs of /etc/resyncfs/NAME.toml
    #[arg(required = true, value_name = "DIR|NAME")]
    directories: Vec<PathBuf>,
}

/// Runs the command; it returns when the process that served the mount has ended, unless that goes on for others.
pub fn run(args: UnmountArgs) -> Result<u8, CliError> {
    let mut last = None;
    for directory in &args.directories {
        let ended = if args.dead { detach_dead(directory) } else { unmount(directory, args.lazy) };
        if let Err(cause) = ended
            && let Some(earlier) = last.replace(cause)
        {
            earlier.say();
        }
    }
    last.map_or(Ok(Exit::Success as u8), Err)
}

fn detach_dead(directory: &Path) -> Result<(), CliError> {
    let shown = directory.display();
    point::detach_dead(&config::directory(directory)?)
        .map_err(|cause| CliError::new(Exit::MountPoint, format!("{shown}: {cause}")))
}

fn unmount(directory: &Path, lazy: bool) -> Result<(), CliError> {
    let shown = directory.display();
    let absolute = mounted_at(directory)?;
    let server = if lazy { None } else { server(&absolute)? };
    unmount_when_unused(&absolute, lazy).map_err(|cause| match cause.kind() {
        io::ErrorKind::ResourceBusy => CliError::new(
            Exit::MountPoint,
            format!("{shown}: is in use (fuser -vm {shown} tells by whom); --lazy detaches it all the same"),
        ),
        io::ErrorKind::PermissionDenied => {
            CliError::new(Exit::Denied, format!("{shown}: only root and who mounted it may unmount it ({cause})"))
        }
        _ => CliError::new(Exit::MountPoint, format!("{shown}: {cause}")),
    })?;
    if let Some(server) = server
        && !server.wait(ENDING).map_err(|cause| CliError::of(Exit::Failure, &cause))?
    {
        // It is unmounted, which is what was asked for.
        let process = server.process();
        let _ = writeln!(
            io::stderr(),
            "resyncfs: {shown}: unmounted; process {process}, which served it, has not ended yet"
        );
    }
    Ok(())
}

fn unmount_when_unused(directory: &Path, lazy: bool) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match point::unmount(directory, lazy) {
            Err(cause) if cause.kind() == io::ErrorKind::ResourceBusy && begun.elapsed() < BRIEF_USE => {
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

/// The process that will end with the mount at `directory`: none where the same tree is mounted elsewhere as well, or where
/// nobody tells.
fn server(directory: &Path) -> Result<Option<Server>, CliError> {
    let ours = point::ours().map_err(|cause| CliError::of(Exit::Failure, &cause))?;
    let Some(mounted) = ours.iter().rev().find(|mounted| mounted.directory == directory) else { return Ok(None) };
    if ours.iter().filter(|other| other.device == mounted.device).count() > 1 {
        return Ok(None);
    }
    Ok(Server::of(mounted).or_else(|| {
        let (answer, answered) = mpsc::channel();
        let directory = directory.to_owned();
        std::thread::spawn(move || {
            let server = Running::at(&directory).ok().and_then(|running| Server::listening_at(running.socket()).ok());
            // Who has lost patience does not listen.
            let _ = answer.send(server);
        });
        answered.recv_timeout(PATIENCE).ok().flatten()
    }))
}
