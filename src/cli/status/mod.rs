//! `resyncfs status`
//!
//! `screen` is the text of one mount, `activity` its part about reads, hosts, programs and errors, `watch` draws it again and
//! again.

mod activity;
mod screen;
mod watch;

use super::running::{PATIENCE, Running, nothing_mounted};
use super::{CliError, Exit, tell};
use crate::control::api::StatusRequest;
use crate::control::call;
use crate::mount::register::{self, Known, Standing};
use crate::mount::status::Status;
use crate::platform::error_chain::printable_json;
use serde_json::Value;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::SystemTime;

/// Tell how mounts are kept in step with their Sources, and what they are asked
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// JSON instead of text: an object; without DIR an array of them
    #[arg(long)]
    json: bool,
    /// Draw it anew every second, with rates, until ^C
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Where it is mounted; without it, every mount that you may ask
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
    if args.json {
        // As the mount tells it, what another version knows more included.
        let heard: Heard<Value> = runtime.block_on(which.ask())?;
        let _ = std::io::stderr().write_all(super::render::printable(&heard.notes()).as_bytes());
        let text = match which.0 {
            Some(_) => heard.told.into_iter().map(|status| format!("{}\n", printable_json(&status))).collect(),
            None => format!("{}\n", printable_json(&Value::Array(heard.told))),
        };
        tell(&text).map_err(failed)?;
    } else {
        let heard: Heard<Status> = runtime.block_on(which.ask())?;
        let now = SystemTime::now();
        let mut screens: Vec<_> = heard.told.iter().map(|status| screen::screen(status, now, None)).collect();
        screens.extend(Some(heard.notes()).filter(|notes| !notes.is_empty()));
        tell(&super::render::printable(&screens.join("\n"))).map_err(failed)?;
    }
    Ok(Exit::Success as u8)
}

/// The mounts that are asked: the one at a folder, or all.
struct Which(Option<PathBuf>);

/// What they said.
struct Heard<T> {
    told: Vec<T>,
    /// Why the others said nothing.
    silent: Vec<CliError>,
}

impl<T> Heard<T> {
    /// A line for each that said nothing.
    fn notes(&self) -> String {
        self.silent.iter().map(|silent| format!("{}\n", silent.message)).collect()
    }
}

impl Which {
    /// Asks them; an error where none answers.
    async fn ask<T: serde::de::DeserializeOwned>(&self) -> Result<Heard<T>, CliError> {
        let Some(directory) = &self.0 else { return ask_all().await };
        let running = Running::at(directory)?;
        Ok(Heard {
            told: vec![running.hear_within(PATIENCE, |socket| call(socket, &StatusRequest {})).await?],
            silent: Vec::new(),
        })
    }
}

async fn ask_all<T: serde::de::DeserializeOwned>() -> Result<Heard<T>, CliError> {
    let mut known = register::mounts().map_err(|cause| CliError::of(Exit::Failure, &cause))?;
    // It has left the tree: nobody asks how it is.
    known.retain(|known| known.standing != Standing::Detached);
    if known.is_empty() {
        return Err(nothing_mounted());
    }
    let answers = futures_util::future::join_all(known.iter().map(ask_one)).await;
    let mut heard = Heard { told: Vec::new(), silent: Vec::new() };
    for answer in answers {
        match answer {
            Ok(told) => heard.told.push(told),
            Err(silent) => heard.silent.push(silent),
        }
    }
    if heard.told.is_empty() {
        let is_denied = |silent: &CliError| silent.exit == Exit::Denied;
        let exit = match heard.silent.iter().any(is_denied) {
            true => Exit::Denied,
            false => heard.silent.first().map_or(Exit::Failure, |silent| silent.exit),
        };
        return Err(CliError::new(exit, heard.notes().trim_end()));
    }
    Ok(heard)
}

async fn ask_one<T: serde::de::DeserializeOwned>(known: &Known) -> Result<T, CliError> {
    if known.standing == Standing::Unknown {
        // To find its socket one would have to look at its root, which may hang.
        let shown = known.directory.display();
        return Err(CliError::new(
            Exit::MountPoint,
            format!("{shown}: nothing that you may read tells of its process; try: resyncfs status {shown}"),
        ));
    }
    Running::of(known)?.hear_within(PATIENCE, |socket| call(socket, &StatusRequest {})).await
}
