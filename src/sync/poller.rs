//! The running synchronizer: it refreshes when a document is due, and on demand; meanwhile it receives commands.

use super::command::{Command, Scope};
use super::push::announce::Checked;
use super::push::queue::{Announcements, Pending};
use super::scheduler::{jitter, jittered, retry_pause};
use super::status::{RefreshOutcome, Refreshed};
use super::{Invalidating, Outcome, SHORTEST_PAUSE, SyncError, Synchronizer, unwatched};
use crate::catalog::{Catalog, Committed, Renewal};
use crate::platform::error_chain::chain;
use fuser::INodeNo;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::Instant;

/// What the rest of the mount hears of a running synchronizer.
pub struct Listeners {
    /// Called after each commit, with what is to be invalidated in the kernel.
    pub invalidate: Invalidating,
    /// Called after each refresh that succeeded, changed or not, if only in part.
    pub refreshed: Box<dyn Fn() + Send + Sync>,
}

/// What waits for its turn.
struct Waiting {
    refresh: Option<Asked>,
    announced: Announcements,
    /// Whether channels are alive, where that is news.
    live: Option<bool>,
    /// Whether the last thing that was done is a refresh or poll: between two of these announcements have their turn.
    has_refreshed: bool,
}

/// One refresh for all who have asked for one.
#[derive(Default)]
struct Asked {
    /// Whether one of them has confirmed the deletions that are held back.
    accept_deletions: bool,
    requesters: Vec<oneshot::Sender<Refreshed>>,
}

/// What is to be done next.
enum Task {
    /// Ask for everything, on demand or as something known has proved wrong; on demand the Source Description too, and first apply what
    /// is held back, where that is confirmed.
    Refresh(Asked),
    /// Ask for what was announced.
    Check(Pending),
    /// Ask for what is due.
    Poll,
}

impl Waiting {
    fn new() -> Waiting {
        Waiting { refresh: None, announced: Announcements::new(Instant::now()), live: None, has_refreshed: false }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Refresh { accept_deletions, requester } => {
                let asked = self.refresh.get_or_insert_default();
                asked.accept_deletions |= accept_deletions;
                asked.requesters.push(requester);
            }
            Command::Announced(announced) => {
                let now = Instant::now();
                announced.into_iter().for_each(|announcement| self.announced.add(announcement, now));
            }
            Command::Channels(live) => self.live = Some(live),
        }
    }

    /// What is to be done now; the polls are `due` then. `None` where nothing is.
    fn next(&mut self, due: Instant) -> Option<Task> {
        let now = Instant::now();
        let mut task = None;
        if !self.has_refreshed {
            task = self.refresh.take().map(Task::Refresh).or_else(|| (due <= now).then_some(Task::Poll));
        }
        let task = task
            .or_else(|| self.announced.next(now).map(Task::Check))
            .or_else(|| self.refresh.take().map(Task::Refresh))
            .or_else(|| (due <= now).then_some(Task::Poll));
        self.has_refreshed = matches!(task, Some(Task::Refresh(_) | Task::Poll));
        task
    }
}

/// Between two commits of new inodes lies at least this: one walk may find thousands of files changed, and each commit waits for the
/// disk.
const RENEWALS_EVERY: Duration = Duration::from_millis(250);

/// Runs until `commands` is closed: refreshes at once where `at_once`, then on demand, where the catalog is found damaged, and whenever
/// a document is due.
///
/// Commands are received during a refresh too, and done next: all refreshes asked for together as one. Inodes of `renewals`, whose
/// bytes are not those that were published, get their successors between its commits, without waiting for the Source.
pub async fn run(
    mut synchronizer: Synchronizer,
    commands: mpsc::Receiver<Command>,
    renewals: mpsc::UnboundedReceiver<(INodeNo, Renewal)>,
    listeners: Listeners,
    at_once: bool,
) {
    let (catalog, writing) = (synchronizer.catalog.clone(), synchronizer.writing.clone());
    synchronizer.invalidate = Some(listeners.invalidate.clone());
    tokio::join!(
        renew_all(renewals, &catalog, &writing, &listeners),
        refresh_all(synchronizer, commands, &listeners, at_once)
    );
}

async fn refresh_all(
    mut synchronizer: Synchronizer,
    mut commands: mpsc::Receiver<Command>,
    listeners: &Listeners,
    at_once: bool,
) {
    let mut waiting = Waiting::new();
    let (packages, catalog) = (synchronizer.packages.clone(), synchronizer.catalog.clone());
    let (mut failures, mut is_open) = (0, true);
    let mut due = Instant::now() + if at_once { Duration::ZERO } else { synchronizer.pause() };
    while is_open {
        while let Ok(command) = commands.try_recv() {
            waiting.take(command);
        }
        if let Some(live) = waiting.live.take() {
            synchronizer.schedule.set_live(live);
            synchronizer.status.send_modify(|status| status.channels_live = live);
            due = due.min(Instant::now() + synchronizer.pause());
        }
        let wake = waiting.announced.due().map_or(due, |announced| announced.min(due));
        let task = match waiting.next(due) {
            Some(task) => task,
            None => tokio::select! {
                command = commands.recv() => match command {
                    None => return,
                    Some(command) => {
                        waiting.take(command);
                        continue;
                    }
                },
                () = catalog.damage_found() => Task::Refresh(Asked::default()),
                () = packages.contradiction_found() => Task::Refresh(Asked::default()),
                () = tokio::time::sleep_until(wake) => continue,
            },
        };
        let began = Instant::now();
        let done = {
            let mut work = std::pin::pin!(perform(&mut synchronizer, &task));
            loop {
                tokio::select! {
                    done = &mut work => break done,
                    command = commands.recv(), if is_open => match command {
                        Some(command) => waiting.take(command),
                        None => is_open = false,
                    },
                }
            }
        };
        let (is_check, mut requesters) = (matches!(task, Task::Check(_)), Vec::new());
        match task {
            Task::Check(pending) => {
                let unseen = match &done {
                    Ok(checked) => checked.unseen.clone(),
                    Err(_) => Some(pending.announcement.clone()),
                };
                waiting.announced.checked(pending, unseen, Instant::now());
            }
            Task::Refresh(asked) => requesters = asked.requesters,
            Task::Poll => {}
        }
        let done = done.map(|checked| checked.outcome);
        let outcome = RefreshOutcome::from(&done);
        match done {
            Ok(outcome) => {
                failures = 0;
                if let Outcome::Committed(_) = outcome {
                    synchronizer.tidy().await;
                }
                (listeners.refreshed)();
                due = Instant::now() + synchronizer.pause();
            }
            Err(cause) => {
                failures += 1;
                let pause = jittered(retry_pause(failures, synchronizer.usual_interval()), jitter());
                let ended = Instant::now();
                let mut again = ended + pause;
                if matches!(cause, SyncError::Behind(_)) {
                    // What fails keeps no other document waiting; and the Source answers where one of them has.
                    let others = synchronizer.schedule.next_after(began).map(|next| next.max(ended + SHORTEST_PAUSE));
                    again = others.map_or(again, |next| next.min(again));
                    if synchronizer.schedule.has_answered_since(began) {
                        (listeners.refreshed)();
                    }
                }
                // What is announced and fails puts off no other document.
                due = if is_check { due.min(again) } else { again };
                tracing::warn!(again_in = ?again - ended, "refresh failed, the tree stays as it is: {}", chain(&cause));
            }
        }
        let milliseconds = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        for requester in requesters {
            let ended = Timestamp::now();
            // One that has gone meanwhile gets no answer.
            let (outcome, failed) = (outcome.clone(), synchronizer.failed.clone());
            let _ = requester.send(Refreshed { ended, milliseconds, outcome, failed });
        }
    }
}

/// Does what is to be done.
async fn perform(synchronizer: &mut Synchronizer, task: &Task) -> Result<Checked, SyncError> {
    let mut accepted = None;
    let outcome = match task {
        Task::Check(pending) => return synchronizer.check(&pending.announcement, pending.is_retry()).await,
        Task::Refresh(asked) => {
            if !asked.requesters.is_empty() {
                // A person asks what there is now.
                synchronizer.looks_again = true;
                synchronizer.client.end_pauses();
            }
            if asked.accept_deletions {
                accepted = accept(synchronizer).await?;
            }
            synchronizer.refresh(unwatched()).await
        }
        Task::Poll => synchronizer.refresh_of(Scope::Due, unwatched()).await,
    };
    let outcome = match (accepted, outcome?) {
        (Some(accepted), Outcome::Committed(committed)) => Outcome::Committed(accepted.and(committed)),
        (Some(accepted), Outcome::Unchanged) => Outcome::Committed(accepted),
        (None, outcome) => outcome,
    };
    Ok(Checked { outcome, unseen: None })
}

/// Applies all deletions that are held back. What that has done.
async fn accept(synchronizer: &mut Synchronizer) -> Result<Option<Committed>, SyncError> {
    let mut accepted: Option<Committed> = None;
    loop {
        if let Outcome::Committed(committed) = synchronizer.accept_deletions().await? {
            accepted = Some(match accepted {
                Some(before) => before.and(committed),
                None => committed,
            });
        }
        if !synchronizer.holds_deletions()? {
            return Ok(accepted.filter(|it| it.deleted > 0));
        }
    }
}

/// Gives inodes their successors, all that were asked for since the last commit at once. There is one writer at a time: it waits for a
/// commit under way, and for nothing else.
async fn renew_all(
    mut renewals: mpsc::UnboundedReceiver<(INodeNo, Renewal)>,
    catalog: &Arc<Catalog>,
    writing: &Arc<Mutex<()>>,
    listeners: &Listeners,
) {
    while let Some(first) = renewals.recv().await {
        let next = Instant::now() + RENEWALS_EVERY;
        let (catalog, writer) = (catalog.clone(), writing.clone().lock_owned().await);
        let mut asked = vec![first];
        while let Ok(another) = renewals.try_recv() {
            asked.push(another);
        }
        let count = asked.len();
        let renewed = tokio::task::spawn_blocking(move || {
            let _writer = writer;
            catalog.renew(asked)
        });
        match renewed.await {
            Ok(Ok(invalidations)) => (listeners.invalidate)(invalidations),
            Ok(Err(cause)) => tracing::error!(count, "files keep their old versions: {}", chain(&cause)),
            Err(cause) => tracing::error!(count, %cause, "files keep their old versions"),
        }
        tokio::time::sleep_until(next).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::Announcement;
    use super::*;

    fn refresh(accept_deletions: bool) -> Command {
        Command::Refresh { accept_deletions, requester: oneshot::channel().0 }
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn requesters_share_one_refresh_and_its_confirmation() {
        let mut waiting = Waiting::new();
        [false, true, false].into_iter().for_each(|accept| waiting.take(refresh(accept)));

        let task = waiting.next(later());

        assert!(matches!(task, Some(Task::Refresh(asked)) if asked.accept_deletions && asked.requesters.len() == 3));
        assert!(waiting.next(later()).is_none());
    }

    #[test]
    fn refreshes_keep_no_announcement_waiting() {
        let mut waiting = Waiting::new();
        waiting.take(Command::Announced(vec![Announcement::Everything]));
        waiting.take(refresh(false));
        assert!(matches!(waiting.next(later()), Some(Task::Refresh(_))));
        waiting.take(refresh(false));

        assert!(matches!(waiting.next(later()), Some(Task::Check(_))));
        assert!(matches!(waiting.next(later()), Some(Task::Refresh(_))));
        assert!(waiting.next(later()).is_none());
    }

    #[test]
    fn announcements_without_end_keep_no_poll_waiting() {
        let (mut waiting, due) = (Waiting::new(), Instant::now());
        let mut polls = Vec::new();
        for _ in 0..6 {
            waiting.take(Command::Announced(vec![Announcement::Everything]));
            polls.push(matches!(waiting.next(due), Some(Task::Poll)));
        }

        assert!(polls.contains(&false) && polls.chunks(2).all(|two| two.contains(&true)), "{polls:?}");
    }
}
