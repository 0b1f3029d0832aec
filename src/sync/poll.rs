//! The running synchronizer: it looks when a document is due, and when it is told to; while it looks, it listens.

use super::command::{Command, Look, Next, Scope, Waiting};
use super::looks::{AGAIN_DUE, Unseen};
use super::schedule::{jitter, jittered, retry_pause};
use super::status::{RefreshOutcome, Refreshed};
use super::{Outcome, Progressing, SHORTEST_PAUSE, Stage, SyncError, Synchronizer};
use crate::catalog::{Catalog, Committed, Invalidation, Renewal};
use crate::document::Timestamp;
use crate::platform::error_chain::chain;
use crate::source::zip::Packages;
use fuser::INodeNo;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

/// What a running synchronizer tells the rest of the mount.
pub struct Listeners {
    /// Called after each commit, with what the kernel must be told.
    pub invalidate: Box<dyn Fn(Vec<Invalidation>) + Send + Sync>,
    /// Called after each refresh that succeeded, changed or not, if only in part.
    pub refreshed: Box<dyn Fn() + Send + Sync>,
}

/// What is to be done next.
enum Task {
    /// Apply what is held back where `accept`, then look at everything.
    Refresh { accept: bool },
    /// Look at what was just announced.
    Look(Look),
    /// Look at what is due, and again at what was announced and could not be seen.
    Timer,
}

/// Between two commits of new inodes lies at least this: one walk may find thousands of files changed, and each commit waits for the
/// disk.
const RENEWALS_EVERY: Duration = Duration::from_millis(250);

/// Runs until `commands` is closed: refreshes at once where `at_once`, then on demand, where the catalog is found damaged,
/// and whenever a document is due.
///
/// Commands are received during a refresh too: a new inode is given between its commits, without waiting for the
/// Source; whatever else is asked for meanwhile is done next, all refreshes together as one.
pub async fn run(synchronizer: Synchronizer, commands: mpsc::Receiver<Command>, listeners: Listeners, at_once: bool) {
    let (sender, renewals) = mpsc::unbounded_channel();
    let (catalog, writing) = (synchronizer.catalog.clone(), synchronizer.writing.clone());
    tokio::join!(
        renew_all(renewals, &catalog, &writing, &listeners),
        refresh_all(synchronizer, commands, sender, &listeners, at_once)
    );
}

/// The same, but for new inodes, which are asked of `renewals`.
async fn refresh_all(
    mut synchronizer: Synchronizer,
    mut commands: mpsc::Receiver<Command>,
    renewals: mpsc::UnboundedSender<(INodeNo, Renewal)>,
    listeners: &Listeners,
    at_once: bool,
) {
    let (packages, catalog) = (synchronizer.packages.clone(), synchronizer.catalog.clone());
    let (mut unseen, mut waiting) = (Unseen::default(), Waiting::default());
    let (mut failures, mut is_open) = (0, true);
    let mut due = Instant::now() + if at_once { Duration::ZERO } else { synchronizer.pause() };
    while is_open {
        let mut live = None;
        while let Ok(command) = commands.try_recv() {
            hear(command, &mut waiting, &mut live, &renewals);
        }
        live.into_iter().for_each(|live| synchronizer.set_live(live));
        let wake = unseen.next().map_or(due, |again| again.min(due));
        let mut requesters = Vec::new();
        let task = match waiting.next() {
            Some(Next::Refresh { accept, requesters: all }) => {
                requesters = all;
                synchronizer.distrust_discovery();
                synchronizer.client.end_pauses();
                Task::Refresh { accept }
            }
            Some(Next::Look(look)) => Task::Look(look),
            None => tokio::select! {
                command = commands.recv() => match command {
                    None => return,
                    Some(command) => {
                        let mut live = None;
                        hear(command, &mut waiting, &mut live, &renewals);
                        live.into_iter().for_each(|live| synchronizer.set_live(live));
                        continue;
                    }
                },
                () = catalog.damage_found() => Task::Refresh { accept: false },
                () = contradiction_found(packages.as_ref()) => Task::Refresh { accept: false },
                () = tokio::time::sleep_until(wake) => Task::Timer,
            },
        };
        let (now, mut accepted, mut live) = (Instant::now(), 0, None);
        let is_look = matches!(task, Task::Look(_));
        let done = {
            let work = perform(&mut synchronizer, listeners, &mut unseen, task, (now, due), &mut accepted);
            let mut work = std::pin::pin!(work);
            loop {
                tokio::select! {
                    done = &mut work => break done,
                    command = commands.recv(), if is_open => match command {
                        Some(command) => hear(command, &mut waiting, &mut live, &renewals),
                        None => is_open = false,
                    },
                }
            }
        };
        live.into_iter().for_each(|live| synchronizer.set_live(live));
        let Some(done) = done else { continue };
        let outcome = RefreshOutcome::from(&done).after_deleting(accepted);
        match done {
            Ok(outcome) => {
                failures = 0;
                tell(&mut synchronizer, listeners, outcome);
                due = Instant::now() + synchronizer.pause();
            }
            Err(cause) => {
                failures += 1;
                let pause = jittered(retry_pause(failures, synchronizer.usual_interval()), jitter());
                let ended = Instant::now();
                let mut again = ended + pause;
                if matches!(cause, SyncError::Behind(_)) {
                    // What cannot be had keeps no other document waiting; and the Source answers where one of them has.
                    let others = synchronizer.schedule.next_after(now).map(|next| next.max(ended + SHORTEST_PAUSE));
                    again = others.map_or(again, |next| next.min(again));
                    if synchronizer.schedule.has_answered_since(now) {
                        (listeners.refreshed)();
                    }
                }
                // What is announced and cannot be had puts off no other document.
                due = if is_look { due.min(again) } else { again };
                report(&cause, again - ended);
            }
        }
        let milliseconds = u64::try_from(now.elapsed().as_millis()).unwrap_or(u64::MAX);
        for requester in requesters {
            let ended = Timestamp::now().to_string();
            // Who has gone meanwhile is not told.
            let _ = requester.send(Refreshed { ended, milliseconds, outcome: outcome.clone() });
        }
    }
}

/// Notes what a command asks for; whether channels are `live` is for the caller.
fn hear(
    command: Command,
    waiting: &mut Waiting,
    live: &mut Option<bool>,
    renewals: &mpsc::UnboundedSender<(INodeNo, Renewal)>,
) {
    // They are received for as long as this runs.
    let renew = |ino, renewal| {
        let _ = renewals.send((ino, renewal));
    };
    match command {
        Command::Refresh => waiting.refresh(false, None),
        Command::AcceptDeletions => waiting.refresh(true, None),
        Command::Asked { accept_deletions, requester } => waiting.refresh(accept_deletions, Some(requester)),
        Command::Look(look) => waiting.look(look),
        Command::Channels(are_live) => *live = Some(are_live),
        Command::Renew(ino) => renew(ino, Renewal::AsPublished),
        Command::Unannounced(ino) => renew(ino, Renewal::Unpublished),
    }
}

/// Does what is to be done; `None` where that was no refresh. `accepted` is how many names a person's word has taken.
async fn perform(
    synchronizer: &mut Synchronizer,
    listeners: &Listeners,
    unseen: &mut Unseen,
    task: Task,
    (now, due): (Instant, Instant),
    accepted: &mut u64,
) -> Option<Result<Outcome, SyncError>> {
    Some(match task {
        Task::Refresh { accept: false } => synchronizer.refresh(silence()).await,
        Task::Refresh { accept: true } => match accept(synchronizer, listeners, accepted).await {
            Ok(()) => synchronizer.refresh(silence()).await,
            Err(cause) => Err(cause),
        },
        Task::Look(look) => {
            let looked = synchronizer.look(&look, false).await;
            match looked {
                Ok(mut looked) => {
                    unseen.looked(&look, now, &mut looked);
                    Ok(looked.outcome)
                }
                Err(cause) => {
                    unseen.missed(look, now);
                    Err(cause)
                }
            }
        }
        Task::Timer => {
            // What there is no time for stays due.
            while now.elapsed() < AGAIN_DUE
                && let Some(look) = unseen.due(now)
            {
                match synchronizer.look(&look, true).await {
                    Ok(mut looked) => {
                        unseen.looked_again(&look, &mut looked);
                        tell(synchronizer, listeners, looked.outcome);
                    }
                    Err(cause) => tracing::warn!("what was announced cannot be seen: {}", chain(&cause)),
                }
            }
            if now < due {
                return None;
            }
            synchronizer.refresh_of(Scope::Due, silence()).await
        }
    })
}

/// Ends when a package says other things than what was taken over of it.
async fn contradiction_found(packages: Option<&Packages>) {
    match packages {
        Some(packages) => packages.contradiction_found().await,
        None => std::future::pending().await,
    }
}

/// Nobody watches the progress of a running mount's refreshes.
fn silence() -> Progressing {
    Arc::new(|_: Stage| ())
}

/// Tells the rest of the mount what a refresh has done.
fn tell(synchronizer: &mut Synchronizer, listeners: &Listeners, outcome: Outcome) {
    if let Outcome::Committed(Committed { invalidations, .. }) = outcome {
        (listeners.invalidate)(invalidations);
        synchronizer.tidy();
    }
    (listeners.refreshed)();
}

/// Applies all deletions that are held back; `accepted` is how many names have gone so far.
async fn accept(synchronizer: &mut Synchronizer, listeners: &Listeners, accepted: &mut u64) -> Result<(), SyncError> {
    loop {
        let outcome = synchronizer.accept_deletions().await?;
        if let Outcome::Committed(committed) = &outcome {
            *accepted += committed.deleted;
        }
        tell(synchronizer, listeners, outcome);
        if !synchronizer.holds_deletions()? {
            return Ok(());
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
            Ok(Err(cause)) => tracing::error!(count, "files keep their inodes: {}", chain(&cause)),
            Err(cause) => tracing::error!(count, %cause, "files keep their inodes"),
        }
        tokio::time::sleep_until(next).await;
    }
}

fn report(cause: &SyncError, pause: Duration) {
    tracing::warn!(again_in = ?pause, "refresh failed, the tree stays as it is: {}", chain(cause));
}
