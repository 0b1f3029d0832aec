//! Messages to a service manager (sd_notify(3)), if one listens.
//!
//! During the first tree: progress, and more time while there is some. Then that the mount is ready, one line about it at each
//! change, and a sign of life as often as the manager wants one. There is no sign of life if a FUSE thread hangs, the runtime
//! does not run, or the synchronizer has ended.

use crate::catalog::Catalog;
use crate::fs::heartbeat::Heartbeat;
use crate::fs::invalidator::Notices;
use crate::mount::units::size;
use crate::sync::Stage;
use crate::sync::command::Command;
use crate::sync::status::{RefreshOutcome, SyncStatus};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use sd_notify::NotifyState;
use std::mem::discriminant;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;

/// The time between two lines about a first tree.
const STEP: Duration = Duration::from_secs(1);

/// A first tree without progress for so long hangs. Each request has a much earlier deadline.
const WITHOUT_PROGRESS: Duration = Duration::from_secs(120);

/// A commit reports no progress, and takes minutes for many millions of entries.
const WITHOUT_COMMIT: Duration = Duration::from_secs(1800);

/// The most characters of a line about the mount.
const LINE: usize = 500;

/// True if standard error of this process, not only of a parent, leads into the journal (systemd.exec(5), `JOURNAL_STREAM`).
pub fn stderr_is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    std::fs::metadata("/proc/self/fd/2").is_ok_and(|file| stream == format!("{}:{}", file.dev(), file.ino()))
}

/// `progress` that reports to the service manager too.
pub fn watched_progress(progress: Arc<dyn Fn(Stage) + Send + Sync>) -> Arc<dyn Fn(Stage) + Send + Sync> {
    if !is_managed() {
        return progress;
    }
    let last = Mutex::new(None::<(Stage, Instant)>);
    Arc::new(move |stage| {
        progress(stage.clone());
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_early = last.as_ref().is_some_and(|(before, when)| {
            *before == stage || (discriminant(before) == discriminant(&stage) && when.elapsed() < STEP)
        });
        if is_early {
            return;
        }
        notify(&[NotifyState::Status(&first_tree(&stage))]);
        if let Some(time) = more_time(&stage) {
            notify(&[NotifyState::ExtendTimeoutUsec(u32::try_from(time.as_micros()).unwrap_or(u32::MAX))]);
        }
        *last = Some((stage, Instant::now()));
    })
}

/// How long the next progress may take after this.
fn more_time(stage: &Stage) -> Option<Duration> {
    match stage {
        // Neither a beginning nor a failure is progress.
        Stage::Discovering | Stage::Unanswered(_) | Stage::Remark(_) => None,
        Stage::Fetching(so_far) => (so_far.bytes > 0).then_some(WITHOUT_PROGRESS),
        Stage::Reading(_) => Some(WITHOUT_PROGRESS),
        Stage::Committing => Some(WITHOUT_COMMIT),
    }
}

fn first_tree(stage: &Stage) -> String {
    match stage {
        Stage::Discovering => "first tree: looking for the Source's documents".to_owned(),
        Stage::Unanswered(why) => format!("first tree: {why}; trying again"),
        Stage::Remark(remark) => remark.to_string(),
        Stage::Fetching(so_far) => {
            let (documents, known, size) = (so_far.documents, so_far.known, size(so_far.bytes));
            format!("first tree: downloading documents, {documents} of {known}, {size}")
        }
        Stage::Reading(entries) => format!("first tree: reading lists, {entries} entries"),
        Stage::Committing => "first tree: writing the catalog".to_owned(),
    }
}

/// The state behind a sign of life and the line about the mount.
pub(super) struct Watched {
    pub heartbeat: Arc<Heartbeat>,
    pub status: watch::Receiver<SyncStatus>,
    pub catalog: Arc<Catalog>,
    pub commands: mpsc::Sender<Command>,
}

impl Watched {
    /// The tree can be used. From now on the manager gets changes and signs of life. Within a runtime.
    pub(super) fn ready(self) {
        if is_managed() {
            notify(&[NotifyState::Ready, NotifyState::Status(&self.line())]);
            tokio::spawn(self.keep());
        }
    }

    async fn keep(mut self) {
        // sd_watchdog_enabled(3): twice as often as wanted.
        let beat = sd_notify::watchdog_enabled().map(|wanted| wanted / 2).filter(|beat| !beat.is_zero());
        let mut ticks = tokio::time::interval(beat.unwrap_or(STEP));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_line = String::new();
        loop {
            let line = self.line();
            if line != last_line {
                notify(&[NotifyState::Status(&line)]);
                last_line = line;
            }
            tokio::select! {
                _ = ticks.tick(), if beat.is_some() => self.live(beat.unwrap_or_default()),
                changed = self.status.changed() => if changed.is_err() { return },
            }
        }
    }

    /// One sign of life, unless something hangs.
    fn live(&self, patience: Duration) {
        let busy = self.heartbeat.longest(Instant::now());
        if self.commands.is_closed() {
            tracing::error!("no sign of life: the synchronizer has ended");
        } else if busy > patience {
            tracing::error!(?busy, "no sign of life: the kernel waits for an answer");
        } else {
            notify(&[NotifyState::Watchdog]);
        }
    }

    fn line(&self) -> String {
        let revision = self.catalog.revision().ok().flatten();
        let shown = revision.map(|revision| (revision.number, revision.totals.files));
        line(shown, &self.status.borrow(), &TimeZone::system())
    }
}

/// One line: the revision (its number and its files), the last refresh, the next, and unconfirmed deletions.
fn line(revision: Option<(u64, u64)>, status: &SyncStatus, zone: &TimeZone) -> String {
    let time = |time: Timestamp| time.to_zoned_datetime(zone.clone()).strftime("%F %T");
    let mut parts = Vec::new();
    parts.extend(revision.map(|(number, files)| format!("revision {number}, {files} files")));
    parts.push(match &status.last_refresh {
        Some(last) => format!("last refresh {}: {}", time(last.ended), outcome(&last.outcome)),
        None => "no refresh since the mount".to_owned(),
    });
    parts.extend(status.next_poll.map(|next| format!("next refresh {}", time(next))));
    parts.extend(status.held.as_ref().map(|held| format!("{} unconfirmed deletions", held.files)));
    one_line(&parts.join("; "))
}

fn outcome(outcome: &RefreshOutcome) -> String {
    match outcome {
        RefreshOutcome::Unchanged => "unchanged".to_owned(),
        RefreshOutcome::Committed { created, updated, touched, deleted } => {
            format!("{created} new, {updated} changed, {touched} with new metadata only, {deleted} deleted")
        }
        RefreshOutcome::Failed(why) => format!("failed ({why})"),
    }
}

/// Each line of a message to a service manager is an assignment; text of a Source must not become one.
fn one_line(text: &str) -> String {
    text.chars().take(LINE).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// SIGHUP: starts a refresh, and notifies the manager when it begins and when readers see its changes. Within a runtime.
pub(super) fn reload(commands: &mpsc::Sender<Command>, notices: Notices) {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(cause) => tracing::debug!(%cause, "the time since boot is not known"),
    }
    let (requester, ended) = oneshot::channel();
    // A full channel means that a refresh is on its way already.
    let asked = commands.try_send(Command::Refresh { accept_deletions: false, requester });
    tokio::spawn(async move {
        if asked.is_ok() {
            // Without a synchronizer there is nothing to wait for, and no sign of life either.
            let _ = ended.await;
            notices.flushed().await;
        }
        notify(&[NotifyState::Ready]);
    });
}

/// The mount ends.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("detached; files that are still open are served")]);
}

fn is_managed() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(cause) = sd_notify::notify(states) {
        tracing::debug!(%cause, "the service manager gets no messages");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::crawl::Progress;
    use crate::sync::status::{HeldStatus, Refreshed};

    #[test]
    fn the_line_shows_revision_refreshes_and_unconfirmed_deletions() {
        let outcome = RefreshOutcome::Committed { created: 2, updated: 1, touched: 0, deleted: 3 };
        let status = SyncStatus {
            last_refresh: Some(Refreshed {
                ended: "2024-05-01T10:00:00Z".parse().unwrap(),
                milliseconds: 5,
                outcome,
                failed: Vec::new(),
            }),
            next_poll: "2024-05-01T10:05:00Z".parse().ok(),
            held: Some(HeldStatus { files: 7, since: Timestamp::UNIX_EPOCH, why: String::new() }),
            ..SyncStatus::default()
        };

        let zone = TimeZone::fixed(jiff::tz::offset(2));
        assert_eq!(
            line(Some((4, 1200)), &status, &zone),
            "revision 4, 1200 files; last refresh 2024-05-01 12:00:00: 2 new, 1 changed, 0 with new metadata only, 3 deleted; \
             next refresh 2024-05-01 12:05:00; 7 unconfirmed deletions"
        );
        assert_eq!(
            line(Some((1, 5)), &SyncStatus::default(), &zone),
            "revision 1, 5 files; no refresh since the mount"
        );
    }

    #[test]
    fn text_of_a_source_is_no_message_of_its_own() {
        let outcome = RefreshOutcome::Failed(format!("it said\nMAINPID=1{}", "x".repeat(5000)));
        let last_refresh =
            Some(Refreshed { ended: Timestamp::UNIX_EPOCH, milliseconds: 0, outcome, failed: Vec::new() });

        let line = line(None, &SyncStatus { last_refresh, ..SyncStatus::default() }, &TimeZone::UTC);

        assert!(line.starts_with("last refresh 1970-01-01 00:00:00: failed (it said MAINPID=1xxx"), "{line}");
        assert_eq!(line.chars().count(), LINE);
    }

    #[test]
    fn only_progress_earns_more_time() {
        let fetched = |bytes| Stage::Fetching(Progress { bytes, ..Progress::default() });

        assert_eq!(more_time(&Stage::Discovering), None);
        assert_eq!(more_time(&fetched(0)), None);
        assert_eq!(more_time(&fetched(1)), Some(WITHOUT_PROGRESS));
        assert_eq!(more_time(&Stage::Reading(1)), Some(WITHOUT_PROGRESS));
        assert_eq!(more_time(&Stage::Committing), Some(WITHOUT_COMMIT));
    }
}
