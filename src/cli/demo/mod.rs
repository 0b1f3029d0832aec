//! `resyncfs demo`: a built-in Source, served on loopback and mounted.

mod source;

use super::args::Options;
use super::log::{LogTarget, start_logging_of};
use super::mount::configure;
use super::{CliError, Exit, print};
use crate::mount;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Mount a small built-in Source to try things out
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Folder to mount on (default: a new temporary folder)
    directory: Option<PathBuf>,
}

/// Serves and mounts the Source until the command is interrupted or the folder is unmounted.
pub fn run(args: DemoArgs, verbosity: u8) -> Result<Exit, CliError> {
    start_logging_of(verbosity, LogTarget::StandardError, "warn,fuser=error");
    let scratch = tempfile::Builder::new().prefix("resyncfs-demo-").tempdir()?;
    let directory = args.directory.unwrap_or_else(|| scratch.path().join("mnt"));
    let shown = directory.display().to_string();
    let unmade = |cause| CliError::at(Exit::MountPoint, &directory, format!("the folder cannot be made: {cause}"));
    std::fs::create_dir_all(&directory).map_err(unmade)?;
    let address = source::start()?;

    let source = format!("http://{address}/");
    let mut options = Options::parse(&[])?;
    options.cache.folder = Some(scratch.path().join("cache"));
    // A new letter is visible a second after its publication.
    options.refresh.poll = Some(std::time::Duration::from_secs(1));
    let config = configure(&options, &source, &directory)?;
    mount::run(config, Arc::new(|_| ()), move || {
        print(&format!(
            "A Source is published at {source} and mounted at {shown}. In another terminal, try:\n\n  \
             ls -lR {shown}\n  \
             grep -r storm {shown}\n  \
             getfattr -d {shown}/letters/1851-02-14.txt\n  \
             curl -X POST {source}publish     # publishes a new letter, which is visible a second later\n  \
             resyncfs mount {source}records/1 DIR     # a data set that no list names, by its landing page\n\n\
             To end the demo, press Ctrl-C here or run: resyncfs unmount {shown}\n"
        ))
        .map_err(|failure| io::Error::other(failure.message))
    })?;
    Ok(Exit::Success)
}
