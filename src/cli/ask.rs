//! Asks running mounts, and takes the lines of their answers.

use super::CliError;
use super::render::{Clock, printable_value};
use super::running::Running;
use super::within::Within;
use crate::control::api::Request;
use crate::control::call_lines;
use serde::de::DeserializeOwned;
use std::io::Write as _;
use std::path::Path;
use std::pin::pin;
use tokio::sync::mpsc::{self, Receiver};

/// Lines that wait to be shown.
const LINES: usize = 256;

/// Sends `request`, and hands the lines of the answer to `receive`. Ends when `receive` does; the mount's work ends with it.
pub fn lines<T: DeserializeOwned, R>(
    running: &Running,
    request: &Request,
    receive: impl AsyncFnOnce(Receiver<T>) -> Result<R, CliError>,
) -> Result<R, CliError> {
    running.ask(|socket| async {
        let (sender, lines) = mpsc::channel(LINES);
        let mut receiving = pin!(receive(lines));
        tokio::select! {
            received = &mut receiving => Ok(received),
            answered = call_lines(socket, request, sender) => {
                let received = receiving.await;
                answered.map(|()| received)
            }
        }
    })?
}

/// Sends `request`, and returns all lines of the answer.
pub fn all<T: DeserializeOwned>(running: &Running, request: &Request) -> Result<Vec<T>, CliError> {
    lines(running, request, async |mut lines| {
        let mut all = Vec::new();
        while let Some(line) = lines.recv().await {
            all.push(line);
        }
        Ok(all)
    })
}

/// The paths in the mount, as a request has them.
pub fn below(within: &Within) -> Vec<String> {
    within.paths.iter().map(|(_, below)| below.clone()).collect()
}

/// Prints on standard error why there is no result for one path or URI.
pub fn complain(what: &str, why: &str) {
    // A closed standard error is no failure.
    let why = Clock::now().localized(why);
    let _ = writeln!(std::io::stderr(), "resyncfs: {}: {}", printable_value(what), printable_value(&why));
}

/// Prints on standard error why there is no result for one path in the mount at `directory`.
pub fn complain_in(directory: &Path, path: &str, why: &str) {
    complain(&directory.join(path).display().to_string(), why);
}
