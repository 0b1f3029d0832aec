//! `resyncfs uri`: which resource lies at a path.

use super::render::printable_value;
use super::within::{Within, by_mount};
use super::{CliError, Exit, tell};
use crate::control::{PathsOrder, ask_uris};
use crate::mount::names::Identified;
use crate::platform::error_chain::printable_json;
use crate::source::EntryPoint;
use serde_json::json;
use std::io::Write as _;
use std::path::PathBuf;
use tokio::sync::mpsc;

/// Answers on their way from the mount.
const ANSWERS: usize = 256;

/// Tell the addresses of files and folders of a mount: one a line
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A folder's address is that below which its files lie. Exit code 1: some paths have none; standard error \
says which and why."
)]
pub struct UriArgs {
    /// A JSON object a line
    #[arg(long)]
    json: bool,
    /// Files and folders of mounts
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(args: UriArgs) -> Result<u8, CliError> {
    for path in &args.paths {
        let given = path.display().to_string();
        if given.contains("://") && matches!(EntryPoint::parse(&given), Ok(EntryPoint::Uri(_))) {
            let given = printable_value(&given);
            let what = format!("{given}: is an address, no path; where it lies tells: resyncfs path {given}");
            return Err(CliError::new(Exit::Usage, what));
        }
    }
    let mut answers: Vec<Option<(PathBuf, Identified)>> = vec![None; args.paths.len()];
    for within in by_mount(&args.paths)? {
        let identified = ask(&within)?;
        for ((given, _), identified) in within.paths.into_iter().zip(identified) {
            // One path may have been given twice.
            let place = args.paths.iter().zip(&answers).position(|(path, answer)| *path == given && answer.is_none());
            if let Some(answer) = place.and_then(|place| answers.get_mut(place)) {
                *answer = Some((given, identified));
            }
        }
    }
    let mut output = String::new();
    let mut all_found = true;
    for (given, identified) in answers.into_iter().flatten() {
        all_found &= identified.uri.is_some();
        if args.json {
            let mut value = json!(identified);
            value["path"] = json!(given.display().to_string());
            output += &format!("{}\n", printable_json(&value));
        } else if let Some(uri) = &identified.uri {
            output += &format!("{uri}\n");
        } else {
            let why = identified.error.unwrap_or_else(|| "has no address".to_owned());
            let given = printable_value(&given.display().to_string());
            let _ = writeln!(std::io::stderr(), "resyncfs: {given}: {}", printable_value(&why));
        }
    }
    tell(&output).map_err(|cause| CliError::of(Exit::Failure, &cause))?;
    Ok(if all_found { Exit::Success } else { Exit::Failure } as u8)
}

fn ask(within: &Within) -> Result<Vec<Identified>, CliError> {
    let order = PathsOrder { paths: within.paths.iter().map(|(_, below)| below.clone()).collect() };
    within.running.ask(|socket| async {
        let (sender, mut lines) = mpsc::channel(ANSWERS);
        let collect = async {
            let mut identified = Vec::new();
            while let Some(line) = lines.recv().await {
                identified.push(line);
            }
            identified
        };
        let (identified, asked) = tokio::join!(collect, ask_uris(socket, &order, sender));
        asked.map(|()| identified)
    })
}
