//! `resyncfs status`: `screen` is the text of one mount, `watch` draws it every second with rates, `check` is the line for monitoring,
//! `page` the page for a browser.

mod check;
mod page;
mod screen;
mod watch;

use super::mounts::{self, PATIENCE, Running, known_at};
use super::render::{Clock, printable, wrapped_here};
use super::{CliError, Exit, block_on, print};
use crate::mount::registry::Mount;
use crate::platform::text::printable_json;
use clap_complete::engine::ArgValueCompleter;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Show the state of mounts: the last refresh, reads, the cache, hosts and errors
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Print JSON: an object for DIR, an array without DIR
    #[arg(long)]
    json: bool,
    /// Show it again every second, with rates, until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Print one line for monitoring; exit code 0: in step, 1: a warning, 2: failing
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    check: bool,
    /// Write a self-contained page for a browser to FILE
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "watch", "check"])]
    html: Option<PathBuf>,
    /// The folder of the mount, or the NAME of /etc/resyncfs/NAME.toml; without it all your mounts
    #[arg(value_name = "DIR|NAME", add = ArgValueCompleter::new(mounts::complete))]
    directory: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: StatusArgs) -> Result<Exit, CliError> {
    let directory = args.directory.as_deref();
    if args.check {
        let (exit, line) = check::line(block_on(ask(directory)), &Clock::now());
        return print(&printable(&line)).map(|()| exit);
    }
    if let Some(file) = &args.html {
        let answers = block_on(ask(directory));
        page::write(file, &answers, &Clock::now())?;
        return answers.map(|_| Exit::Success);
    }
    if args.watch {
        return block_on(watch::run(directory));
    }
    let text = if args.json {
        // Another version of resyncfs may answer more than this one knows.
        let answers: Answers<Value> = block_on(ask(directory))?;
        answers.report_none();
        let _ = std::io::stderr().write_all(printable(&answers.notes()).as_bytes());
        match directory {
            Some(_) => answers.statuses.iter().map(|status| format!("{}\n", printable_json(status))).collect(),
            None => format!("{}\n", printable_json(&Value::Array(answers.statuses))),
        }
    } else {
        let clock = Clock::now();
        let answers = block_on(ask(directory))?;
        answers.report_none();
        wrapped_here(&answers.text(|status| screen::screen(status, &clock, None)), false)
    };
    print(&text)?;
    Ok(Exit::Success)
}

/// The message if only other users have mounts.
const NONE: &str = "you have no mounts; resyncfs list shows those of other users";

/// The answers of the mounts; none at all where this user has no mounts.
struct Answers<T> {
    statuses: Vec<T>,
    /// The errors of the mounts that did not answer.
    failures: Vec<CliError>,
}

impl<T> Answers<T> {
    /// Says on standard error that only other users have mounts.
    fn report_none(&self) {
        if self.statuses.is_empty() {
            let _ = writeln!(std::io::stderr(), "resyncfs: {NONE}");
        }
    }

    /// A line for each mount that did not answer.
    fn notes(&self) -> String {
        self.failures.iter().map(|failure| format!("{}\n", failure.message)).collect()
    }

    /// The screens of all mounts.
    fn text(&self, screen: impl FnMut(&T) -> String) -> String {
        let mut screens: Vec<_> = self.statuses.iter().map(screen).collect();
        screens.extend(Some(self.notes()).filter(|notes| !notes.is_empty()));
        printable(&screens.join("\n"))
    }
}

/// Asks the mount at `directory`, or all, for the status; an error where none answers.
async fn ask<T: DeserializeOwned>(directory: Option<&Path>) -> Result<Answers<T>, CliError> {
    if let Some(directory) = directory {
        let known = known_at(directory)?;
        let status = Running::with_status(&known)?.status(PATIENCE).await;
        let status = status.map_err(|failure| failure.of_mount(&known.directory))?;
        return Ok(Answers { statuses: vec![status], failures: Vec::new() });
    }
    let mut answers = Answers { statuses: Vec::new(), failures: Vec::new() };
    let ask = async |known: &Mount| Running::with_status(known)?.status(PATIENCE).await;
    let mut own = mounts::all()?;
    own.retain(mounts::is_own);
    for (known, answer) in own.iter().zip(futures_util::future::join_all(own.iter().map(ask)).await) {
        match answer {
            Ok(status) => answers.statuses.push(status),
            Err(failure) => answers.failures.push(failure.of_mount(&known.directory)),
        }
    }
    match answers.failures.first() {
        Some(failure) if answers.statuses.is_empty() => Err(CliError::new(failure.exit, answers.notes().trim_end())),
        _ => Ok(answers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_its_mount_once() {
        let named = |message: &str| CliError::new(Exit::Failure, message).of_mount(Path::new("/mnt/repo")).message;

        assert_eq!(named("no answer"), "/mnt/repo: no answer");
        assert_eq!(named("/mnt/repo: no answer"), "/mnt/repo: no answer");
    }
}
