//! `resyncfs status --check`: one line for Nagios, Icinga and their like (Monitoring Plugins Development Guidelines), about one mount
//! or all of a user.

use super::{Answers, NONE};
use crate::cli::render::{Clock, count, duration, printable_value, size, some, thousands};
use crate::cli::{CliError, Exit};
use crate::mount::status::Status;
use crate::sync::status::{PollAnswer, RefreshOutcome};
use std::time::Duration;

/// A refresh that is due for so long does not come.
const OVERDUE: Duration = Duration::from_secs(15 * 60);

/// A host whose requests failed so often one after the other does not answer. Fewer may be chance.
const SILENT: u32 = 3;

/// The states of a service; their numbers are the exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The mount is in step.
    Ok,
    /// Something needs a look.
    Warning,
    /// The mount fails.
    Critical,
}

/// The exit code and the line.
pub fn line(answers: Result<Answers<Status>, CliError>, clock: &Clock) -> (Exit, String) {
    let mut mounts = Vec::new();
    let mut figures = String::new();
    match answers {
        Err(failure) => mounts.push((Level::Critical, failure.message)),
        Ok(Answers { statuses, failures }) => {
            if let ([only], []) = (&statuses[..], &failures[..]) {
                figures = figures_of(only);
            }
            mounts.extend(failures.into_iter().map(|failure| (Level::Critical, failure.message)));
            mounts.extend(statuses.iter().map(|status| judged(status, clock)));
        }
    }
    // The worst first.
    mounts.sort_by_key(|(level, _)| std::cmp::Reverse(*level));
    let level = mounts.first().map_or(Level::Critical, |(level, _)| *level);
    let text: Vec<_> = mounts.iter().map(|(_, text)| printable_value(&clock.localized(text))).collect();
    let text = if text.is_empty() { NONE.to_owned() } else { text.join("; ") };
    // What follows a bar is read as figures.
    let text = text.replace('|', "/");
    let (exit, word) = match level {
        Level::Ok => (Exit::Success, "OK"),
        Level::Warning => (Exit::Failure, "WARNING"),
        Level::Critical => (Exit::Usage, "CRITICAL"),
    };
    (exit, format!("RESYNCFS {word} - {text}{figures}\n"))
}

/// The state of one mount, and why.
pub fn judged(status: &Status, clock: &Clock) -> (Level, String) {
    let (sync, mut failing, mut warnings) = (&status.sync, Vec::new(), Vec::new());
    let last = sync.last_refresh.as_ref();
    if let Some(RefreshOutcome::Failed(why)) = last.map(|last| &last.outcome) {
        failing.push(format!("refreshes fail ({}): {why}", thousands(sync.failures.into())));
    }
    if status.starting.is_some() {
        warnings.push("the first tree is not complete yet".to_owned());
    } else if status.revision.is_none() {
        failing.push("the catalog cannot be read".to_owned());
    }
    let overdue = sync.next_poll.filter(|due| sync.refreshing_since.is_none() && clock.since(*due) > OVERDUE);
    warnings.extend(overdue.map(|due| format!("no refresh since it was due {}", clock.when(due))));
    let gap = sync.sets.iter().filter_map(|set| set.gap_since).min();
    warnings.extend(gap.map(|since| format!("changes since {} may be missing", clock.time(since))));
    warnings.extend(sync.held.as_ref().map(|held| count(held.files, "unconfirmed deletion")));
    let is_failed = |answer: &PollAnswer| matches!(answer, PollAnswer::Failed(_));
    let failed = sync.documents.iter().filter(|document| is_failed(&document.answer)).count() as u64;
    warnings.extend(some(sync.missing.len() as u64, "missing part"));
    warnings.extend(some(failed, "failed document"));
    for host in &status.hosts {
        let pause = host.paused_for.map(duration);
        let name = host.host.as_deref().unwrap_or("a host");
        warnings.extend(pause.map(|pause| format!("{name} asks for a pause of {pause}")));
        warnings.extend((host.failures_in_a_row >= SILENT).then(|| format!("{name} does not answer")));
    }
    if status.cache.bytes > status.cache.quota {
        warnings.push(format!("the cache takes {} of {}", size(status.cache.bytes), size(status.cache.quota)));
    }
    warnings.extend(status.cache_failure.as_ref().map(|_| "the cache cannot be written".to_owned()));
    let is_reached = status.max_download.is_some_and(|limit| limit.left() == 0);
    warnings.extend(is_reached.then(|| "max-download= is reached".to_owned()));
    let level = match (failing.is_empty(), warnings.is_empty()) {
        (false, _) => Level::Critical,
        (true, false) => Level::Warning,
        (true, true) => Level::Ok,
    };
    failing.append(&mut warnings);
    if failing.is_empty() {
        let files = status.revision.as_ref().map_or(0, |revision| revision.files);
        let ended = last.map(|last| format!(", last refresh {}", clock.when(last.ended))).unwrap_or_default();
        failing.push(format!("in step, {}{ended}", count(files, "file")));
    }
    (level, format!("{}: {}", status.directory, failing.join(", ")))
}

/// The performance data of one mount.
fn figures_of(status: &Status) -> String {
    let (cache, files) = (&status.cache, status.revision.as_ref().map_or(0, |revision| revision.files));
    format!(" | files={files} cache={}B;;;0;{} refresh_failures={}", cache.bytes, cache.quota, status.sync.failures)
}
