//! The running synchronizer: it refreshes when a document is due, and on demand; meanwhile it receives commands.

use super::command::{Command, Scope};
use super::items::follow::{Follower, PageBatch, Refreshes};
use super::push::announce::Checked;
use super::push::queue::{Announcements, PendingAnnouncement};
use super::scheduler::{jitter, jittered, retry_pause};
use super::status::{RefreshOutcome, Refreshed};
use super::{Invalidating, RefreshResult, SHORTEST_PAUSE, SyncError, Synchronizer, unwatched};
use crate::catalog::{Catalog, Renewal};
use crate::platform::error_chain::chain;
use crate::platform::ino::Ino;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::Instant;

/// The listeners of a running synchronizer: the rest of the mount.
pub struct Listeners {
    /// Called after each commit, with what is to be invalidated in the kernel.
    pub invalidate: Invalidating,
    /// Called after each refresh that succeeded, changed or not, if only in part.
    pub refreshed: Box<dyn Fn() + Send + Sync>,
}

/// Commands that wait for their turn.
struct WaitingCommands {
    refresh: Option<AskedRefresh>,
    announced: Announcements,
    /// True if channels are alive, where that is news.
    live: Option<bool>,
    /// True if a command may follow.
    is_open: bool,
}

/// One refresh for all who have asked for one.
#[derive(Default)]
struct AskedRefresh {
    /// True if one of them has confirmed the deletions that are held back.
    accept_deletions: bool,
    requesters: Vec<oneshot::Sender<Refreshed>>,
}

/// A refresh or a check.
enum Task {
    /// Ask for everything, on demand or as something known has proved wrong; on demand the Source Description too, and first apply what
    /// is held back, where that is confirmed.
    Refresh(AskedRefresh),
    /// Ask for what was announced.
    Check(PendingAnnouncement),
    /// Ask for what is due.
    Poll,
}

impl WaitingCommands {
    fn new() -> WaitingCommands {
        WaitingCommands { refresh: None, announced: Announcements::new(Instant::now()), live: None, is_open: true }
    }

    /// Takes a command; `None` is the end of them.
    fn take(&mut self, command: Option<Command>) {
        match command {
            None => self.is_open = false,
            Some(Command::Refresh { accept_deletions, requester }) => {
                let asked = self.refresh.get_or_insert_default();
                asked.accept_deletions |= accept_deletions;
                asked.requesters.push(requester);
            }
            Some(Command::Announced(announced)) => {
                let now = Instant::now();
                announced.into_iter().for_each(|announcement| self.announced.add(announcement, now));
            }
            Some(Command::Channels(live)) => self.live = Some(live),
        }
    }

    /// The next task; the polls are `due` then. Announcements and all other tasks take turns, so that neither keeps the other
    /// waiting.
    fn next(&mut self, due: Instant, is_turn_of_announced: bool) -> Option<Task> {
        let now = Instant::now();
        match is_turn_of_announced {
            _ if !self.is_open => None,
            true => self.announced.next(now).map(Task::Check),
            false => self.refresh.take().map(Task::Refresh).or_else(|| (due <= now).then_some(Task::Poll)),
        }
    }
}

/// The time between two commits of new inodes, at least: one walk may find thousands of files changed, and each commit waits for the
/// disk.
const RENEWALS_EVERY: Duration = Duration::from_millis(250);

/// Runs until `commands` is closed: refreshes at once where `at_once`, then on demand, where the catalog is found damaged, and whenever
/// a document is due.
///
/// Commands are received during a refresh too, and done next: all refreshes asked for together as one. Inodes of `renewals`, whose
/// bytes are not those that were published, get their successors between its commits, without waiting for the Source. Where landing
/// pages are followed, those of `opened` files and folders come first.
pub async fn run(
    mut synchronizer: Synchronizer,
    commands: mpsc::Receiver<Command>,
    renewals: mpsc::UnboundedReceiver<(Ino, Renewal)>,
    opened: mpsc::Receiver<Ino>,
    listeners: Listeners,
    at_once: bool,
) {
    let (catalog, writing) = (synchronizer.catalog.clone(), synchronizer.writer.writing.clone());
    synchronizer.writer.invalidate = Some(listeners.invalidate.clone());
    let due = Instant::now() + if at_once { Duration::ZERO } else { synchronizer.pause() };
    let ((batches, pages), (refreshes, refreshed)) = (mpsc::channel(1), watch::channel(Refreshes::default()));
    let follower = synchronizer.config.follows_items.then(|| Follower {
        catalog: catalog.clone(),
        client: synchronizer.fetch.client.clone(),
        batches,
        opened,
        refreshes: refreshed,
        status: synchronizer.status.clone(),
    });
    let poller = Poller { synchronizer, listeners: &listeners, failures: 0, due, pages, refreshes };
    let follow = async {
        if let Some(follower) = follower {
            follower.run().await;
        }
    };
    tokio::join!(renew_all(renewals, &catalog, &writing, &listeners), poller.run(commands), follow);
}

/// The synchronizer and when it polls.
struct Poller<'l> {
    synchronizer: Synchronizer,
    listeners: &'l Listeners,
    /// Tasks that have failed in a row.
    failures: u32,
    due: Instant,
    /// News of landing pages.
    pages: mpsc::Receiver<PageBatch>,
    /// Tells the follower of pages of refreshes.
    refreshes: watch::Sender<Refreshes>,
}

impl Poller<'_> {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut waiting = WaitingCommands::new();
        let (packages, catalog) = (self.synchronizer.fetch.packages.clone(), self.synchronizer.catalog.clone());
        while waiting.is_open {
            while let Ok(command) = commands.try_recv() {
                waiting.take(Some(command));
            }
            if let Some(live) = waiting.live.take() {
                self.synchronizer.fetch.schedule.set_live(live);
                self.synchronizer.status.send_modify(|status| status.channels_live = live);
                self.due = self.due.min(Instant::now() + self.synchronizer.pause());
            }
            let mut has_performed = false;
            for is_turn_of_announced in [false, true] {
                if let Some(task) = waiting.next(self.due, is_turn_of_announced) {
                    self.perform(task, &mut waiting, &mut commands).await;
                    has_performed = true;
                }
            }
            if has_performed {
                continue;
            }
            let wake = waiting.announced.due().map_or(self.due, |announced| announced.min(self.due));
            tokio::select! {
                Some(batch) = self.pages.recv() => self.apply(batch).await,
                command = commands.recv() => waiting.take(command),
                () = catalog.damage_found() => { waiting.refresh.get_or_insert_default(); }
                () = packages.contradiction_found() => { waiting.refresh.get_or_insert_default(); }
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    /// Commits news of landing pages.
    async fn apply(&mut self, PageBatch { news, committed }: PageBatch) {
        let applied = self.synchronizer.apply_pages(news).await;
        if let Err(cause) = &applied {
            tracing::error!("the items of landing pages cannot be stored: {}", chain(cause));
        }
        // The follower ends with the mount.
        let _ = committed.send(applied.is_ok());
    }

    /// Performs a task to its end, while commands are received.
    async fn perform(&mut self, task: Task, waiting: &mut WaitingCommands, commands: &mut mpsc::Receiver<Command>) {
        let began = Instant::now();
        let done = {
            let mut work = std::pin::pin!(perform(&mut self.synchronizer, &task));
            loop {
                tokio::select! {
                    done = &mut work => break done,
                    command = commands.recv(), if waiting.is_open => waiting.take(command),
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
                self.failures = 0;
                if let RefreshResult::Committed(committed) = outcome {
                    self.refreshes.send_modify(|it| it.touched += u64::from(committed.touched > 0));
                    self.synchronizer.tidy().await;
                }
                (self.listeners.refreshed)();
                self.due = Instant::now() + self.synchronizer.pause();
            }
            Err(cause) => self.put_off(&cause, began, is_check),
        }
        if !requesters.is_empty() {
            self.refreshes.send_modify(|refreshes| refreshes.asked += 1);
        }
        for requester in requesters {
            // One that has gone meanwhile gets no answer.
            let _ = requester.send(self.synchronizer.refreshed(outcome.clone(), began.elapsed()));
        }
    }

    /// Puts off the next poll after a task that has failed.
    fn put_off(&mut self, cause: &SyncError, began: Instant, is_check: bool) {
        self.failures += 1;
        let (schedule, ended) = (&self.synchronizer.fetch.schedule, Instant::now());
        let pause = jittered(retry_pause(self.failures, self.synchronizer.usual_interval()), jitter());
        let mut again = ended + pause;
        if matches!(cause, SyncError::Behind(_)) {
            // A failing document keeps no other waiting; and the Source answers where one of them has.
            let others = schedule.next_after(began).map(|next| next.max(ended + SHORTEST_PAUSE));
            again = others.map_or(again, |next| next.min(again));
            if schedule.has_answered_since(began) {
                (self.listeners.refreshed)();
            }
        }
        // An announced document that fails does not delay the others.
        self.due = if is_check { self.due.min(again) } else { again };
        tracing::warn!(again_in = ?again - ended, "refresh failed, the tree stays as it is: {}", chain(cause));
    }
}

/// Performs one task.
async fn perform(synchronizer: &mut Synchronizer, task: &Task) -> Result<Checked, SyncError> {
    let outcome = match task {
        Task::Check(pending) => return synchronizer.check(&pending.announcement, pending.is_retry()).await,
        Task::Refresh(asked) => {
            if !asked.requesters.is_empty() {
                // A person asks what there is now.
                synchronizer.discovery.looks_again = true;
                synchronizer.fetch.client.end_pauses();
            }
            if asked.accept_deletions {
                accept(synchronizer).await?;
            }
            synchronizer.refresh(unwatched()).await
        }
        Task::Poll => synchronizer.refresh_of(Scope::Due, unwatched()).await,
    };
    Ok(Checked { outcome: outcome?, unseen: None })
}

/// Applies all deletions that are held back. The refresh that follows has them in its result, even if it fails.
async fn accept(synchronizer: &mut Synchronizer) -> Result<(), SyncError> {
    loop {
        if let RefreshResult::Committed(committed) = synchronizer.accept_deletions().await? {
            synchronizer.writer.batches = Some(committed).filter(|it| it.deleted > 0);
        }
        if !synchronizer.holds_deletions()? {
            return Ok(());
        }
    }
}

/// Gives inodes their successors, all that were asked for since the last commit at once. There is one writer at a time: it waits for a
/// commit under way, and for nothing else.
async fn renew_all(
    mut renewals: mpsc::UnboundedReceiver<(Ino, Renewal)>,
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
        let mut waiting = WaitingCommands::new();
        [false, true, false].into_iter().for_each(|accept| waiting.take(Some(refresh(accept))));

        let task = waiting.next(later(), false);

        assert!(matches!(task, Some(Task::Refresh(asked)) if asked.accept_deletions && asked.requesters.len() == 3));
        assert!(waiting.next(later(), false).is_none());
    }

    #[test]
    fn refreshes_and_announcements_take_turns() {
        let (mut waiting, due) = (WaitingCommands::new(), Instant::now());
        waiting.take(Some(Command::Announced(vec![Announcement::Everything])));
        assert!(matches!(waiting.next(due, false), Some(Task::Poll)));
        waiting.take(Some(refresh(false)));
        assert!(matches!(waiting.next(due, false), Some(Task::Refresh(_))));

        assert!(matches!(waiting.next(due, true), Some(Task::Check(_))));
        assert!(waiting.next(due, true).is_none());
    }
}
