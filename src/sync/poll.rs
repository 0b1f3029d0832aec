//! The running synchronizer: it looks when a document is due, and when it is told to.

use super::extent::Extent;
use super::looks::Unseen;
use super::schedule::{jitter, jittered, retry_pause};
use super::status::{RefreshOutcome, Refreshed};
use super::{Outcome, Progressing, Stage, SyncError, Synchronizer};
use crate::catalog::{Catalog, CatalogError, Committed, Invalidation};
use crate::causes::chain;
use crate::document::{Change, Timestamp, Uri};
use crate::source::package::Packages;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// What the rest of the mount asks of a running synchronizer.
#[derive(Debug)]
pub enum Command {
    /// Look now.
    Refresh,
    /// Apply the deletions that are held back.
    AcceptDeletions,
    /// The same as one of these, for somebody who waits to be told what came of it.
    Asked {
        /// Whether the deletions that are held back are to be applied.
        accept_deletions: bool,
        /// Who waits; told once the refresh has ended.
        asker: oneshot::Sender<Refreshed>,
    },
    /// A notification came: look at what it names.
    Look(Look),
    /// Whether every set has a notification channel that is alive: polling is rarer then.
    Channels(bool),
    /// This inode's bytes were found wrong or changed: its name needs another inode.
    Renew(fuser::INodeNo),
    /// The Source serves other bytes than it published, which are to be shown: its name needs an inode without length and
    /// digests.
    Unannounced(fuser::INodeNo),
}

/// What is to be looked at because a notification named it. The notification itself is never believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// Every document that is followed, as a poll does.
    Poll,
    /// This document, or all of the index it belongs to.
    Document {
        /// The document announced.
        document: Uri,
        /// The index that it says it belongs to (`rel="index"`).
        index: Option<Uri>,
    },
    /// Source Description and Capability Lists, then everything.
    Rediscover,
    /// These resources themselves, of a Source that has notifications and no Change List: (URI, what is said to have
    /// happened).
    Resources(Vec<(Uri, Change)>),
}

/// What a running synchronizer tells the rest of the mount.
pub struct Listeners {
    /// Called after each commit, with what the kernel must be told.
    pub invalidate: Box<dyn Fn(Vec<Invalidation>) + Send + Sync>,
    /// Called after each refresh that succeeded, changed or not.
    pub refreshed: Box<dyn Fn() + Send + Sync>,
}

/// What is to be done next.
enum Task {
    Refresh(Extent),
    /// Apply what is held back, then look at everything.
    Accept,
    /// Look at what was just announced.
    Look(Look),
    /// Look at what is due, and again at what was announced and could not be seen.
    Timer,
}

/// Runs until `commands` is closed: refreshes at once where `at_once`, then on demand, where the catalog is found damaged,
/// and whenever a document is due.
pub async fn run(
    mut synchronizer: Synchronizer,
    mut commands: mpsc::Receiver<Command>,
    listeners: Listeners,
    at_once: bool,
) {
    let catalog = synchronizer.catalog.clone();
    let packages = synchronizer.packages.clone();
    let mut unseen = Unseen::default();
    let mut failures = 0;
    let mut due = Instant::now() + if at_once { Duration::ZERO } else { synchronizer.pause() };
    loop {
        let mut waiting = None;
        let wake = unseen.next().map_or(due, |again| again.min(due));
        let task = tokio::select! {
            command = commands.recv() => match command {
                None => return,
                Some(Command::Refresh) => {
                    synchronizer.distrust_discovery();
                    Task::Refresh(Extent::Everything)
                }
                Some(Command::AcceptDeletions) => Task::Accept,
                Some(Command::Asked { accept_deletions, asker }) => {
                    waiting = Some(asker);
                    synchronizer.distrust_discovery();
                    if accept_deletions { Task::Accept } else { Task::Refresh(Extent::Everything) }
                }
                Some(Command::Look(look)) => Task::Look(look),
                Some(Command::Channels(live)) => {
                    synchronizer.set_live(live);
                    continue;
                }
                Some(Command::Renew(ino)) => {
                    renew(&synchronizer, &listeners, ino, Catalog::renew).await;
                    continue;
                }
                Some(Command::Unannounced(ino)) => {
                    renew(&synchronizer, &listeners, ino, Catalog::renew_unpublished).await;
                    continue;
                }
            },
            () = catalog.damage_found() => Task::Refresh(Extent::Everything),
            () = contradiction_found(packages.as_ref()) => Task::Refresh(Extent::Everything),
            () = tokio::time::sleep_until(wake) => Task::Timer,
        };
        let now = Instant::now();
        let mut accepted = 0;
        let done = match task {
            Task::Refresh(extent) => synchronizer.refresh_of(extent, silence()).await,
            Task::Accept => match accept(&mut synchronizer, &listeners, &mut accepted).await {
                Ok(()) => synchronizer.refresh(silence()).await,
                Err(cause) => Err(cause),
            },
            Task::Look(look) => {
                let looked = synchronizer.look(&look, false).await;
                match &looked {
                    Ok(Outcome::Committed(_)) => unseen.seen(&look),
                    Ok(Outcome::Unchanged) | Err(_) => unseen.missed(look, now),
                }
                looked
            }
            Task::Timer => {
                for look in unseen.due(now) {
                    match synchronizer.look(&look, true).await {
                        Ok(outcome) => {
                            if matches!(outcome, Outcome::Committed(_)) {
                                unseen.seen(&look);
                            }
                            tell(&mut synchronizer, &listeners, outcome);
                        }
                        Err(cause) => tracing::warn!("what was announced cannot be seen: {}", chain(&cause)),
                    }
                }
                if now < due {
                    continue;
                }
                synchronizer.refresh_of(Extent::Due, silence()).await
            }
        };
        let outcome = RefreshOutcome::from(&done).after_deleting(accepted);
        match done {
            Ok(outcome) => {
                failures = 0;
                tell(&mut synchronizer, &listeners, outcome);
                due = Instant::now() + synchronizer.pause();
            }
            Err(cause) => {
                failures += 1;
                let pause = jittered(retry_pause(failures, synchronizer.usual_interval()), jitter());
                due = Instant::now() + pause;
                report(&cause, pause);
            }
        }
        if let Some(asker) = waiting {
            let milliseconds = u64::try_from(now.elapsed().as_millis()).unwrap_or(u64::MAX);
            // Who has gone meanwhile is not told.
            let _ = asker.send(Refreshed { ended: Timestamp::now().to_string(), milliseconds, outcome });
        }
    }
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

async fn renew(
    synchronizer: &Synchronizer,
    listeners: &Listeners,
    ino: fuser::INodeNo,
    renew: fn(&Catalog, fuser::INodeNo) -> Result<Vec<Invalidation>, CatalogError>,
) {
    let catalog = synchronizer.catalog.clone();
    match tokio::task::spawn_blocking(move || renew(&catalog, ino)).await {
        Ok(Ok(invalidations)) => (listeners.invalidate)(invalidations),
        Ok(Err(cause)) => tracing::error!(%ino, %cause, "no new inode"),
        Err(cause) => tracing::error!(%ino, %cause, "no new inode"),
    }
}

fn report(cause: &SyncError, pause: Duration) {
    tracing::warn!(again_in = ?pause, "refresh failed, the tree stays as it is: {}", chain(cause));
}
