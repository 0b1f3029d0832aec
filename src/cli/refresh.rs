//! `resyncfs refresh`

use super::render::{Clock, count, printable_value};
use super::running::Running;
use super::{CliError, Exit, tell};
use crate::control::{RefreshOrder, ask_refresh};
use crate::mount::status::RefreshAnswer;
use crate::sync::status::{HeldStatus, RefreshOutcome};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Have a mount look at its Source now, and tell what came of it
#[derive(Debug, clap::Args)]
pub struct RefreshArgs {
    /// Apply the deletions that are held back because there were so many of them
    #[arg(long)]
    accept_deletions: bool,
    /// Where it is mounted, or the NAME of /etc/resyncfs/NAME.toml
    directory: PathBuf,
}

/// Runs the command.
pub fn run(args: RefreshArgs, utc: bool) -> Result<u8, CliError> {
    let running = Running::at(&args.directory)?;
    let order = RefreshOrder { accept_deletions: args.accept_deletions };
    let answer: RefreshAnswer = running.ask(|socket| ask_refresh(socket, order))?;
    let mut text = format!("{}\n", sentence(&answer.refreshed.outcome));
    if let Some(held) = &answer.held {
        let _ = writeln!(text, "{}", held_sentence(held, running.directory(), &Clock::new(utc)));
    }
    tell(&text).map_err(|cause| CliError::of(Exit::Failure, &cause))?;
    Ok(Exit::Success as u8)
}

/// What a refresh did.
pub fn sentence(outcome: &RefreshOutcome) -> String {
    match outcome {
        RefreshOutcome::Unchanged => "nothing has changed".to_owned(),
        RefreshOutcome::Committed { created, updated, touched, deleted } => format!(
            "{} new, {} changed, {} with other metadata, {} gone",
            count(*created, "file"),
            updated,
            touched,
            deleted
        ),
        RefreshOutcome::Failed(why) => format!("failed, the tree stays as it is: {}", printable_value(why)),
    }
}

/// What is held back, why, and how to have it done.
pub fn held_sentence(held: &HeldStatus, directory: &Path, clock: &Clock) -> String {
    format!(
        "{} held back since {}: {}.\nThe files stay until the Source lists them again or somebody confirms that they are gone:\n  \
         resyncfs refresh --accept-deletions {}",
        count(held.files, "deletion"),
        clock.time(held.since),
        printable_value(&held.why),
        printable_value(&directory.to_string_lossy())
    )
}
