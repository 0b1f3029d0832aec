//! `resyncfs evict`

use super::render::printable_value;
use super::render::{count, size};
use super::within::{Within, by_mount};
use super::{CliError, Exit, tell};
use crate::control::{PathsOrder, ask_evict};
use crate::mount::evict::{EvictEvent, EvictSummary};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Events on their way from the mount.
const EVENTS: usize = 256;

/// Drop what is cached of files and folders of a mount; the mount point stands for all of it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The files stay where they are and are fetched again when they are read. What belongs to a version that \
somebody still has open, or is being fetched, stays and is told. For what is not mounted there is: resyncfs cache clear"
)]
pub struct EvictArgs {
    /// Files and folders of mounts; folders with all below them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(args: EvictArgs) -> Result<u8, CliError> {
    let mut exit = Exit::Success;
    for within in by_mount(&args.paths)? {
        let summary = evict(&within)?;
        let kept = if summary.kept == 0 { String::new() } else { format!(", {} kept", count(summary.kept, "file")) };
        let text = format!("{} dropped ({}){kept}\n", count(summary.files, "file"), size(summary.octets));
        tell(&text).map_err(|cause| CliError::of(Exit::Failure, &cause))?;
        if summary.absent > 0 {
            exit = Exit::Failure;
        }
    }
    Ok(exit as u8)
}

fn evict(within: &Within) -> Result<EvictSummary, CliError> {
    let order = PathsOrder { paths: within.paths.iter().map(|(_, below)| below.clone()).collect() };
    let shown = within.running.ask(|socket| async {
        let (sender, events) = mpsc::channel(EVENTS);
        let (shown, asked) = tokio::join!(show(within.running.directory(), events), ask_evict(socket, &order, sender));
        asked.map(|()| shown)
    });
    shown?
}

async fn show(directory: &Path, mut events: mpsc::Receiver<EvictEvent>) -> Result<EvictSummary, CliError> {
    let say = |path: &str, what: &str| {
        let path = printable_value(&directory.join(path).display().to_string());
        let _ = writeln!(std::io::stderr(), "resyncfs: {path}: {what}");
    };
    while let Some(event) = events.recv().await {
        match event {
            EvictEvent::Kept(path) => say(&path, "stays: an earlier version of it is open, or it is being fetched"),
            EvictEvent::Absent(path) => say(&path, "is not in the tree"),
            EvictEvent::Done(summary) => return Ok(summary),
            EvictEvent::Failure(why) => return Err(CliError::new(Exit::Failure, why)),
        }
    }
    Err(CliError::new(Exit::Failure, format!("{}: the mount ended before all was dropped", directory.display())))
}
