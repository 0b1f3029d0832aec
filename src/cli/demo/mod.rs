//! `resyncfs demo`: a built-in Source, served on loopback and mounted.

mod collection;
mod server;

use super::args::Options;
use super::log::{LogTarget, start_logging};
use super::mount::configure;
use super::{CliError, Exit, write_stdout};
use crate::mount;
use std::path::PathBuf;
use std::sync::Arc;

/// Mount a small built-in Source to try things out
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Where to mount it (default: a new temporary folder)
    directory: Option<PathBuf>,
}

/// Serves and mounts the Source until the command is interrupted or the folder is unmounted.
pub fn run(args: DemoArgs, verbosity: u8) -> Result<u8, CliError> {
    start_logging(verbosity, LogTarget::StandardError);
    let failed = |cause: std::io::Error| CliError::of(Exit::Failure, &cause);
    let scratch = tempfile::Builder::new().prefix("resyncfs-demo-").tempdir().map_err(failed)?;
    let directory = args.directory.unwrap_or_else(|| scratch.path().join("mnt"));
    std::fs::create_dir_all(&directory).map_err(failed)?;
    let address = server::start().map_err(failed)?;

    let source = format!("http://{address}/");
    let mut options = Options::parse(&[])?;
    options.cache.folder = Some(scratch.path().join("cache"));
    // A new letter is visible a second after its publication.
    options.refresh.poll = Some(std::time::Duration::from_secs(1));
    let config = configure(&options, &source, &directory)?;
    let shown = directory.display().to_string();
    mount::run(config, Arc::new(|_| ()), move || {
        write_stdout(&format!(
            "A Source is published at {source} and mounted at {shown}. In another terminal, try:\n\n  \
             ls -lR {shown}\n  \
             grep -r storm {shown}\n  \
             getfattr -d {shown}/letters/1851-02-14.txt\n  \
             curl -X POST {source}publish     # publishes a new letter, which is visible a second later\n\n\
             To end the demo, press Ctrl-C here or run: resyncfs unmount {shown}\n"
        ))
    })?;
    Ok(Exit::Success as u8)
}
