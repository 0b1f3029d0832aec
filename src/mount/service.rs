//! What a service manager is told of this mount (sd_notify(3)), where one listens.
//!
//! While the first tree is made: its progress, and more time as long as there is some. Then that the tree is there, one
//! line about it whenever it changes, and a sign of life as often as the manager wants one, which is not given when
//! a FUSE thread hangs, the runtime does not come to it, or the synchronizer is gone.

use crate::catalog::Catalog;
use crate::fs::heartbeat::Heartbeat;
use crate::sync::Stage;
use crate::sync::command::Command;
use crate::sync::status::{RefreshOutcome, Status};
use sd_notify::NotifyState;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;

/// Between two lines about a first tree.
const STEP: Duration = Duration::from_secs(1);

/// A first tree of which no more has come or been read for so long hangs. Each request has a much earlier deadline.
const WITHOUT_PROGRESS: Duration = Duration::from_secs(120);

/// Writing the catalog tells nothing until it is done, and takes minutes for many millions of entries.
const WITHOUT_COMMIT: Duration = Duration::from_secs(1800);

/// The most characters of a line about the mount.
const LINE: usize = 500;

/// Whether standard error leads into the journal (systemd.exec(5), `JOURNAL_STREAM`), not merely that of a parent's did.
pub fn stderr_is_journal() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let known = std::fs::metadata("/proc/self/fd/2").ok();
    known.is_some_and(|known| stream == format!("{}:{}", known.dev(), known.ino()))
}

/// `progress`, of which a service manager hears as well.
pub fn watched_progress(progress: Arc<dyn Fn(Stage) + Send + Sync>) -> Arc<dyn Fn(Stage) + Send + Sync> {
    if !is_heard() {
        return progress;
    }
    let told = Mutex::new(None::<(Stage, Instant)>);
    Arc::new(move |stage| {
        progress(stage.clone());
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((before, when)) = &*told {
            let same_kind = std::mem::discriminant(before) == std::mem::discriminant(&stage);
            if *before == stage || (same_kind && when.elapsed() < STEP) {
                return;
            }
        }
        let line = first_tree(&stage);
        let time = more_time(&stage);
        *told = Some((stage, Instant::now()));
        match time {
            Some(time) => {
                let microseconds = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
                tell(&[NotifyState::Status(&line), NotifyState::ExtendTimeoutUsec(microseconds)]);
            }
            None => tell(&[NotifyState::Status(&line)]),
        }
    })
}

/// How long the next progress may take after this.
fn more_time(stage: &Stage) -> Option<Duration> {
    match stage {
        // A beginning is no progress, and a failure none.
        Stage::Discovering | Stage::Unanswered(_) | Stage::Remark(_) => None,
        Stage::Fetching(so_far) => (so_far.bytes > 0).then_some(WITHOUT_PROGRESS),
        Stage::Reading(_) => Some(WITHOUT_PROGRESS),
        Stage::Committing => Some(WITHOUT_COMMIT),
    }
}

fn first_tree(stage: &Stage) -> String {
    match stage {
        Stage::Discovering => "first tree: looking for the Source's documents".to_owned(),
        Stage::Unanswered(why) => format!("first tree: {why}; it is asked again"),
        Stage::Remark(remark) => remark.to_string(),
        Stage::Fetching(so_far) => {
            format!("first tree: fetching documents, {} of {}, {} octets", so_far.documents, so_far.known, so_far.bytes)
        }
        Stage::Reading(entries) => format!("first tree: reading lists, {entries} entries"),
        Stage::Committing => "first tree: writing the catalog".to_owned(),
    }
}

/// What is looked at before a sign of life is given, and what the line about the mount is made of.
pub(super) struct Watched {
    pub heartbeat: Arc<Heartbeat>,
    pub status: watch::Receiver<Status>,
    pub catalog: Arc<Catalog>,
    pub commands: mpsc::Sender<Command>,
}

impl Watched {
    /// The tree can be used. From now on the manager hears of changes, and that this process lives. Within a runtime.
    pub(super) fn ready(self) {
        if !is_heard() {
            return;
        }
        tell(&[NotifyState::Ready, NotifyState::Status(&self.line())]);
        tokio::spawn(self.keep());
    }

    async fn keep(mut self) {
        let wanted = sd_notify::watchdog_enabled().filter(|interval| !interval.is_zero());
        // sd_watchdog_enabled(3): twice as often as wanted.
        let beat = wanted.map(|interval| interval / 2);
        let mut last_line = String::new();
        let mut ticks = beat.map(|beat| {
            let mut ticks = tokio::time::interval(beat);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        loop {
            let line = self.line();
            if line != last_line {
                tell(&[NotifyState::Status(&line)]);
                last_line = line;
            }
            let tick = async {
                match &mut ticks {
                    Some(ticks) => ticks.tick().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = tick => self.live(beat.unwrap_or_default()),
                changed = self.status.changed() => if changed.is_err() { return },
            }
        }
    }

    /// One sign of life, if there is life.
    fn live(&self, patience: Duration) {
        let busy = self.heartbeat.longest(Instant::now());
        if self.commands.is_closed() {
            tracing::error!("no sign of life is given: the synchronizer has ended");
        } else if busy > patience {
            tracing::error!(?busy, "no sign of life is given: the kernel waits for an answer");
        } else {
            tell(&[NotifyState::Watchdog]);
        }
    }

    fn line(&self) -> String {
        let revision = self.catalog.revision().ok().flatten();
        let shown = revision.map(|revision| (revision.number, revision.totals.files));
        line(shown, &self.status.borrow())
    }
}

/// One line: the revision (its number and its files), the last refresh, the next, and what is held back.
fn line(revision: Option<(u64, u64)>, status: &Status) -> String {
    let mut parts = Vec::new();
    parts.extend(revision.map(|(number, files)| format!("revision {number}, {files} files")));
    parts.push(match &status.last_refresh {
        Some(last) => format!("last sync {}: {}", last.ended, outcome(&last.outcome)),
        None => "not looked at the Source yet since the mount".to_owned(),
    });
    parts.extend(status.next_poll.as_ref().map(|next| format!("next poll {next}")));
    parts.extend(status.held.as_ref().map(|held| format!("{} deletions held back", held.files)));
    one_line(&parts.join("; "))
}

fn outcome(outcome: &RefreshOutcome) -> String {
    match outcome {
        RefreshOutcome::Unchanged => "unchanged".to_owned(),
        RefreshOutcome::Committed { created, updated, touched, deleted } => {
            format!("{created} new, {updated} changed, {touched} with other metadata, {deleted} gone")
        }
        RefreshOutcome::Failed(why) => format!("failed ({why})"),
    }
}

/// Each line of a message to a service manager is an assignment; what a Source said must not become one.
fn one_line(text: &str) -> String {
    text.chars().take(LINE).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// SIGHUP: has a refresh done, and the manager told when it begins and when it has ended. Within a runtime.
pub(super) fn reload(commands: &mpsc::Sender<Command>, heard: impl Future<Output = ()> + Send + 'static) {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(cause) => tracing::debug!(%cause, "the time since boot is not known"),
    }
    let (requester, ended) = oneshot::channel();
    // A full channel means that a refresh is on its way already.
    let asked = commands.try_send(Command::Refresh { accept_deletions: false, requester });
    tokio::spawn(async move {
        if asked.is_ok() {
            // With the synchronizer gone there is nothing to wait for, and no sign of life either.
            let _ = ended.await;
            heard.await;
        }
        tell(&[NotifyState::Ready]);
    });
}

/// The mount ends.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("detached; serving whoever has files open")]);
}

fn is_heard() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(cause) = sd_notify::notify(states) {
        tracing::debug!(%cause, "the service manager does not hear");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::crawl::Progress;
    use crate::sync::status::{HeldStatus, Refreshed};

    #[test]
    fn the_line_tells_revision_sync_poll_and_what_is_held_back() {
        let outcome = RefreshOutcome::Committed { created: 2, updated: 1, touched: 0, deleted: 3 };
        let status = Status {
            last_refresh: Some(Refreshed { ended: "2024-05-01T10:00:00Z".parse().unwrap(), milliseconds: 5, outcome }),
            next_poll: "2024-05-01T10:05:00Z".parse().ok(),
            held: Some(HeldStatus { files: 7, since: jiff::Timestamp::UNIX_EPOCH, why: String::new() }),
            ..Status::default()
        };

        assert_eq!(
            line(Some((4, 1200)), &status),
            "revision 4, 1200 files; last sync 2024-05-01T10:00:00Z: 2 new, 1 changed, 0 with other metadata, 3 gone; \
             next poll 2024-05-01T10:05:00Z; 7 deletions held back"
        );
        assert_eq!(
            line(Some((1, 5)), &Status::default()),
            "revision 1, 5 files; not looked at the Source yet since the mount"
        );
    }

    #[test]
    fn what_a_source_said_is_no_message_of_its_own() {
        let outcome = RefreshOutcome::Failed(format!("it said\nMAINPID=1{}", "x".repeat(5000)));
        let last_refresh = Some(Refreshed { ended: jiff::Timestamp::UNIX_EPOCH, milliseconds: 0, outcome });

        let line = line(None, &Status { last_refresh, ..Status::default() });

        assert!(line.starts_with("last sync 1970-01-01T00:00:00Z: failed (it said MAINPID=1xxx"), "{line}");
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
