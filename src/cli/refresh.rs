//! `resyncfs refresh`: updates a mount now.

use super::mounts::{self, Running};
use super::progress::{Activity, Progress};
use super::render::{Clock, count, printable_value, thousands};
use clap_complete::engine::ArgValueCompleter;

use super::{CliError, Exit, print, print_json};
use crate::control::api::Request;
use crate::control::call;
use crate::mount::status::{RefreshAnswer, Status};
use crate::sync::status::{HeldStatus, RefreshOutcome};
use serde_json::json;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time between two looks at a refresh under way.
const INTERVAL: Duration = Duration::from_secs(1);

/// Update a mount from its Source now, and show what changed
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A document whose host does not answer is requested again for two minutes; a pause that the host asks for \
does not count. Then the command fails, and the files stay as they were. Ctrl-C ends the command, not the refresh."
)]
pub struct RefreshArgs {
    /// Confirm the unconfirmed deletions, so that their files disappear
    #[arg(long)]
    accept_deletions: bool,
    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,
    /// The folder of the mount, or the NAME of /etc/resyncfs/NAME.toml
    #[arg(value_name = "DIR|NAME", add = ArgValueCompleter::new(mounts::complete))]
    directory: PathBuf,
}

/// Runs the command.
pub fn run(args: RefreshArgs) -> Result<Exit, CliError> {
    let running = Running::at(&args.directory)?;
    let request = Request::Refresh { accept_deletions: args.accept_deletions };
    let progress = Progress::start(false);
    progress.report(Activity::of("refreshing"));
    let answer: RefreshAnswer = running.ask(async |socket| {
        tokio::select! {
            answer = call(socket, &request) => answer,
            never = report_failures(socket, &progress) => match never {},
        }
    })?;
    progress.finish();
    let clock = Clock::now();
    if args.json {
        print_json(&json!(answer))?;
    } else {
        let mut text = format!("{}\n", sentence(&answer.refreshed.outcome, &clock));
        if let Some(held) = &answer.held {
            text += &format!("{}\n", held_sentence(held, &running.directory, &clock));
        }
        print(&text)?;
    }
    match (answer.refreshed.why(), answer.refreshed.failed.first()) {
        (Some(why), Some(first)) => {
            Err(CliError::new(Exit::of_refresh(first.kind), format!("some documents could not be read: {why}")))
        }
        _ => Ok(Exit::Success),
    }
}

/// Shows why a refresh takes long: a host does not answer, or answers with an error.
async fn report_failures(socket: &Path, progress: &Progress) -> Infallible {
    let mut reported = None;
    loop {
        tokio::time::sleep(INTERVAL).await;
        let status: Option<Status> = call(socket, &Request::Status {}).await.ok();
        let Some(why) = status.and_then(|status| status.unanswered) else { continue };
        if reported.as_ref() != Some(&why) {
            progress.message(&format!("{why}; trying again"));
            reported = Some(why);
        }
    }
}

/// A sentence about the result of a refresh.
pub fn sentence(outcome: &RefreshOutcome, clock: &Clock) -> String {
    match outcome {
        RefreshOutcome::Unchanged => "nothing has changed".to_owned(),
        RefreshOutcome::Committed { created, updated, touched, deleted } => format!(
            "{} new, {} changed, {} with new metadata only, {} deleted",
            count(*created, "file"),
            thousands(*updated),
            thousands(*touched),
            thousands(*deleted)
        ),
        RefreshOutcome::Failed(why) => {
            format!("failed, so the files stay as they were: {}", printable_value(&clock.localized(why)))
        }
    }
}

/// The unconfirmed deletions, why they are, and how to confirm them.
pub fn held_sentence(held: &HeldStatus, directory: &Path, clock: &Clock) -> String {
    format!(
        "{} since {}: {}.\nThe files stay until the Source lists them again, or until you confirm that they are gone:\n  \
         resyncfs refresh --accept-deletions {}",
        count(held.files, "unconfirmed deletion"),
        clock.time(held.since),
        printable_value(&held.why),
        printable_value(&directory.to_string_lossy())
    )
}
