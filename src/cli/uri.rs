//! `resyncfs uri`: the addresses of files and folders.

use super::within::by_mount;
use super::{CliError, Exit, ask, write_stdout};
use crate::control::api::{Identified, Request};
use crate::platform::error_chain::printable_json;
use crate::source::EntryPoint;
use serde_json::json;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Show the addresses of files and folders in a mount, one per line
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The address of a folder is the one below which its files are. Exit code 1: some paths have no address; \
standard error says which ones and why."
)]
pub struct UriArgs {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Files and folders in mounts
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(args: UriArgs) -> Result<u8, CliError> {
    args.paths.iter().try_for_each(|path| is_path(path))?;
    let mut answers: HashMap<PathBuf, Identified> = HashMap::new();
    for within in by_mount(&args.paths)? {
        let request = Request::Uris { paths: ask::below(&within) };
        let identified: Vec<Identified> = ask::all(&within.running, &request)?;
        answers.extend(within.paths.into_iter().map(|(given, _)| given).zip(identified));
    }
    let mut output = String::new();
    let mut exit = Exit::Success;
    for path in &args.paths {
        let Some(identified) = answers.get(path) else { continue };
        let shown = path.display().to_string();
        if identified.uri.is_none() {
            exit = Exit::Failure;
        }
        if args.json {
            let identified = Identified { path: shown, ..identified.clone() };
            output += &format!("{}\n", printable_json(&json!(identified)));
        } else if let Some(uri) = &identified.uri {
            output += &format!("{uri}\n");
        } else {
            ask::complain(&shown, identified.error.as_deref().unwrap_or("has no address"));
        }
    }
    write_stdout(&output).map_err(|cause| CliError::of(Exit::Failure, &cause))?;
    Ok(exit as u8)
}

fn is_path(path: &Path) -> Result<(), CliError> {
    let given = path.display().to_string();
    if given.contains("://") && matches!(EntryPoint::parse(&given), Ok(EntryPoint::Uri(_))) {
        let what = format!("{given}: is an address, not a path; for its path, use: resyncfs path {given}");
        return Err(CliError::new(Exit::Usage, what));
    }
    Ok(())
}
