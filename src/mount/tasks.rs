//! The background tasks of a mount: the first tree, messages between content, sync and the kernel, and old metadata dropped.

use super::MountError;
use super::registry::Registration;
use super::serving::Signals;
use crate::catalog::{Catalog, CatalogError, Renewal};
use crate::content::{Content, Event};
use crate::fs::invalidator::Notices;
use crate::platform::error_chain::chain;
use crate::platform::ino::Ino;
use crate::source::http::Client;
use crate::sync::poller::Listeners;
use crate::sync::{RefreshResult, Stage, Synchronizer};
use jiff::Timestamp;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::mpsc;

/// How often the client is asked whether a host does not answer.
const LOOK: Duration = Duration::from_millis(200);

/// A mount from an earlier tree waits so long for the first answer of its Source.
const FIRST_ANSWER: Duration = Duration::from_millis(500);

/// Makes the first revision; a signal ends that.
pub(super) async fn make_first_tree(
    synchronizer: &mut Synchronizer,
    client: &Client,
    progress: Arc<dyn Fn(Stage) + Send + Sync>,
    signals: &mut Signals,
) -> Result<(), MountError> {
    let outcome = tokio::select! {
        outcome = synchronizer.refresh(progress.clone()) => outcome?,
        never = report_failures(client, &*progress) => match never {},
        () = signals.end() => return Err(MountError::Interrupted),
    };
    if let RefreshResult::Committed(_) = outcome {
        synchronizer.tidy().await;
    }
    Ok(())
}

/// The time between two looks at the record of the mount.
const RECORDED: Duration = Duration::from_secs(10);

/// Records the mount again where its record was removed. Runs as long as `registration` is kept.
pub(super) async fn keep_record(registration: Weak<Mutex<Registration>>) {
    let mut due = tokio::time::interval(RECORDED);
    loop {
        due.tick().await;
        let Some(registration) = registration.upgrade() else { return };
        if let Err(cause) = locked(&registration).restore() {
            tracing::debug!(%cause, "commands cannot find this mount");
        }
    }
}

pub(super) fn locked(registration: &Mutex<Registration>) -> MutexGuard<'_, Registration> {
    registration.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that an earlier tree is shown, where its Source is asked now and no answer comes at once.
pub(super) async fn old_tree(catalog: &Catalog, client: &Client) -> Result<Option<String>, CatalogError> {
    let waiting = async {
        loop {
            let hosts = client.traffic();
            if hosts.iter().any(|host| host.answers > 0) {
                return None;
            }
            if let Some(why) = client.unanswered() {
                return Some(why.into());
            }
            tokio::time::sleep(LOOK / 10).await;
        }
    };
    let late =
        |_| client.traffic().iter().any(|host| host.requests > 0).then(|| "the Source does not answer".to_owned());
    let why = tokio::time::timeout(FIRST_ANSWER, waiting).await.unwrap_or_else(late);
    let made = catalog.revision()?.map(|revision| Timestamp::from(revision.committed).to_string()).unwrap_or_default();
    Ok(why.map(|why| format!("{why}; until it answers the files are those of {made}")))
}

/// Reports why lists take long: once for each time that a host ceases to answer, or answers with an error.
pub async fn report_failures(client: &Client, progress: &(dyn Fn(Stage) + Send + Sync)) -> Infallible {
    let mut is_reported = false;
    loop {
        let unanswered = client.unanswered();
        let is_unanswered = unanswered.is_some();
        if let Some(why) = unanswered.filter(|_| !is_reported) {
            progress(Stage::Unanswered(why));
        }
        is_reported = is_unanswered;
        tokio::time::sleep(LOOK).await;
    }
}

/// Has the objects of inodes pinned before a commit takes their names: the commit itself may ask for room. The invalidator ends the pins of
/// those that are not open.
pub(super) fn keep_orphans(catalog: &Catalog, content: &Arc<Content>) {
    let content = Arc::downgrade(content);
    catalog.keep_orphans_by(Box::new(move |orphans, keep| {
        let Some(content) = content.upgrade() else { return };
        orphans.iter().for_each(|ino| if keep { content.pin(*ino) } else { content.unpin(*ino) });
    }));
}

/// The actions after a refresh: the kernel is notified of changes, and content forgets failed downloads.
pub(super) fn listeners(notices: Notices, content: Arc<Content>) -> Listeners {
    Listeners {
        invalidate: Arc::new(move |invalidations| notices.changed(invalidations)),
        refreshed: Box::new(move || content.forget_failures()),
    }
}

/// Turns events of content into notices to the kernel and inodes that sync renews.
pub(super) async fn forward_events(
    mut events: mpsc::UnboundedReceiver<Event>,
    renewals: mpsc::UnboundedSender<(Ino, Renewal)>,
    notices: Notices,
) {
    while let Some(event) = events.recv().await {
        notices.content(&event);
        let renewal = match event {
            Event::Poisoned(ino) | Event::Changed(ino) => (ino, Renewal::AsPublished),
            Event::Unannounced(ino) => (ino, Renewal::Unpublished),
            Event::Recheck(..) | Event::Sized(..) => continue,
        };
        // While the mount ends sync renews none; open files are still served, and their pages still dropped.
        let _ = renewals.send(renewal);
    }
}

/// The first time after the mount; a short mount does without.
const FIRST: Duration = Duration::from_secs(10 * 60);

/// The interval from then on.
const INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Drops learnt metadata of inodes that are gone, so that a tree with constant changes leaves at most a day's of it behind. Runs as
/// long as the mount does.
pub(super) async fn forget_gone(catalog: Arc<Catalog>, content: Arc<Content>) {
    let mut due = tokio::time::interval_at(tokio::time::Instant::now() + FIRST, INTERVAL);
    loop {
        due.tick().await;
        let (catalog, content) = (Arc::clone(&catalog), Arc::clone(&content));
        let dropped = tokio::task::spawn_blocking(move || content.forget_gone(|known| gone(&catalog, known)));
        match dropped.await {
            Ok(Ok(dropped)) => tracing::debug!(dropped, "learnt metadata of inodes that are gone"),
            Ok(Err(cause)) => tracing::warn!("learnt metadata of inodes that are gone stays: {}", chain(&cause)),
            Err(_) => {}
        }
    }
}

/// Inodes of `known` that are neither in the tree nor open: an inode's number is never used again.
fn gone(catalog: &Catalog, known: &[Ino]) -> Result<Vec<Ino>, CatalogError> {
    let snapshot = catalog.snapshot()?;
    let mut gone = Vec::new();
    for ino in known {
        if snapshot.attributes(*ino)?.is_none() {
            gone.push(*ino);
        }
    }
    Ok(gone)
}
