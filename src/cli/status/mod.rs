//! `resyncfs status`: `screen` is the text of one mount, `watch` draws it every second with the rates of `earlier`.

mod earlier;
mod screen;
mod watch;

use super::render::{Clock, printable};
use super::running::{PATIENCE, Running, nothing_mounted};
use super::{CliError, Exit, write_stdout};
use crate::control::api::Request;
use crate::control::call;
use crate::mount::registry::{self, Mount, MountState};
use crate::mount::status::Status;
use crate::platform::error_chain::printable_json;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::Write as _;
use std::path::PathBuf;

/// Show the state of mounts: the last refresh, reads, the cache, hosts and errors
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Print JSON: an object for DIR, an array without DIR
    #[arg(long)]
    json: bool,
    /// Show it again every second, with rates, until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// The folder of the mount; without DIR every mount that you may ask
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: StatusArgs) -> Result<u8, CliError> {
    let failed = |cause: std::io::Error| CliError::of(Exit::Failure, &cause);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let which = Which(args.directory);
    if args.watch {
        return runtime.block_on(watch::run(&which));
    }
    let text = if args.json {
        // Another version of resyncfs may answer more than this one knows.
        let answers: Answers<Value> = runtime.block_on(which.ask())?;
        let _ = std::io::stderr().write_all(printable(&answers.notes()).as_bytes());
        match which.0 {
            Some(_) => answers.statuses.iter().map(|status| format!("{}\n", printable_json(status))).collect(),
            None => format!("{}\n", printable_json(&Value::Array(answers.statuses))),
        }
    } else {
        let answers: Answers<Status> = runtime.block_on(which.ask())?;
        let clock = Clock::now();
        let mut screens: Vec<_> = answers.statuses.iter().map(|status| screen::screen(status, &clock, None)).collect();
        screens.extend(Some(answers.notes()).filter(|notes| !notes.is_empty()));
        printable(&screens.join("\n"))
    };
    write_stdout(&text).map_err(failed)?;
    Ok(Exit::Success as u8)
}

/// The mounts that are asked: the one at a folder, or all.
struct Which(Option<PathBuf>);

/// The answers of the mounts.
struct Answers<T> {
    statuses: Vec<T>,
    /// The errors of the mounts that did not answer.
    failures: Vec<CliError>,
}

impl<T> Answers<T> {
    /// A line for each mount that did not answer.
    fn notes(&self) -> String {
        self.failures.iter().map(|failure| format!("{}\n", failure.message)).collect()
    }
}

impl Which {
    /// Asks for their status; an error where none answers.
    async fn ask<T: DeserializeOwned>(&self) -> Result<Answers<T>, CliError> {
        let Some(directory) = &self.0 else { return ask_all().await };
        let running = Running::at(directory)?;
        let status = running.hear_within(PATIENCE, |socket| call(socket, &Request::Status {})).await?;
        Ok(Answers { statuses: vec![status], failures: Vec::new() })
    }
}

async fn ask_all<T: DeserializeOwned>() -> Result<Answers<T>, CliError> {
    let mut known = registry::mounts().map_err(|cause| CliError::of(Exit::Failure, &cause))?;
    // A detached mount is no longer in the tree.
    known.retain(|known| known.state != MountState::Detached);
    if known.is_empty() {
        return Err(nothing_mounted());
    }
    let mut answers = Answers { statuses: Vec::new(), failures: Vec::new() };
    for answer in futures_util::future::join_all(known.iter().map(ask_one)).await {
        match answer {
            Ok(status) => answers.statuses.push(status),
            Err(failure) => answers.failures.push(failure),
        }
    }
    if answers.statuses.is_empty() {
        let denied = answers.failures.iter().find(|failure| failure.exit == Exit::Denied);
        let exit = denied.or(answers.failures.first()).map_or(Exit::Failure, |failure| failure.exit);
        return Err(CliError::new(exit, answers.notes().trim_end()));
    }
    Ok(answers)
}

async fn ask_one<T: DeserializeOwned>(known: &Mount) -> Result<T, CliError> {
    if known.state == MountState::Unknown {
        // Only the mount's root names its socket, and a look at the root may hang.
        let shown = known.directory.display();
        let message = format!("{shown}: you may not read which process serves it; try: resyncfs status {shown}");
        return Err(CliError::new(Exit::MountPoint, message));
    }
    Running::of(known)?.hear_within(PATIENCE, |socket| call(socket, &Request::Status {})).await
}
