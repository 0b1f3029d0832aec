//! `resyncfs evict`: frees room in the cache.

use super::render::{count, size};
use super::within::{Within, by_mount};
use super::{CliError, Exit, ask, write_stdout};
use crate::control::api::{EvictEvent, EvictSummary, Request};
use std::path::PathBuf;
use tokio::sync::mpsc::Receiver;

/// Remove files and folders of a mount from the cache; the folder of the mount stands for all of it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The files stay in the mount, and are downloaded again when they are read. A file that is being downloaded \
stays in the cache, and so does an earlier version that a program has open. For a Source that is not mounted, use: \
resyncfs cache clear"
)]
pub struct EvictArgs {
    /// Files and folders in mounts; a folder stands for all below it
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(args: EvictArgs) -> Result<u8, CliError> {
    let mut exit = Exit::Success;
    for within in by_mount(&args.paths)? {
        let request = Request::Evict { paths: ask::below(&within) };
        let summary = ask::lines(&within.running, &request, async |events| show(&within, events).await)?;
        let kept = if summary.kept == 0 { String::new() } else { format!(", {} kept", count(summary.kept, "file")) };
        let text = format!("{} removed from the cache ({}){kept}\n", count(summary.files, "file"), size(summary.bytes));
        write_stdout(&text).map_err(|cause| CliError::of(Exit::Failure, &cause))?;
        if summary.missing > 0 {
            exit = Exit::Failure;
        }
    }
    Ok(exit as u8)
}

async fn show(within: &Within, mut events: Receiver<EvictEvent>) -> Result<EvictSummary, CliError> {
    let directory = within.running.directory();
    while let Some(event) = events.recv().await {
        match event {
            EvictEvent::Kept(path) => {
                let why = "stays in the cache: it is being downloaded, or a program has an earlier version open";
                ask::complain_in(directory, &path, why);
            }
            EvictEvent::Missing(path) => ask::complain_in(directory, &path, "is not in the mount"),
            EvictEvent::Done(summary) => return Ok(summary),
            EvictEvent::Failure(why) => return Err(CliError::new(Exit::Failure, why)),
        }
    }
    Err(CliError::new(Exit::Failure, format!("{}: the mount ended before all was removed", directory.display())))
}
