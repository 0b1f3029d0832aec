//! When to look again: the interval belongs to the documents, not to a person's guess.

use super::{Outcome, Stage, SyncError, Synchronizer};
use crate::catalog::{Catalog, CatalogError, Committed, Invalidation};
use crate::causes::chain;
use crate::document::{Change, Uri};
use crate::source::walk::Walked;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The interval for documents that answer 304 or are small.
pub const SHORTEST: Duration = Duration::from_secs(5 * 60);
/// No document is left alone longer.
pub const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// A document below this size costs nothing worth saving.
pub const SMALL: u64 = 256 * 1024;
/// A transfer may take this part of the time at most: one in a hundred.
const DUTY: u32 = 100;
/// First pause after a failed refresh; doubles up to the interval.
const FIRST_RETRY: Duration = Duration::from_secs(10);

/// How the documents of a refresh came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Octets of documents that came whole, together.
    pub octets: u64,
    /// How long it took.
    pub took: Duration,
}

impl Transfer {
    /// The sums over `walks`, which took `took`.
    pub fn of(walks: &[Walked], took: Duration) -> Transfer {
        let octets = walks
            .iter()
            .flat_map(|walked| &walked.leaves)
            .filter(|leaf| !leaf.unchanged)
            .map(|leaf| leaf.document.size)
            .sum();
        Transfer { octets, took }
    }
}

/// The pause before the next look: `configured` where a person fixed one, else by what the last one cost.
pub fn interval(configured: Option<Duration>, last: Transfer) -> Duration {
    match configured {
        Some(fixed) => fixed,
        None if last.octets <= SMALL => SHORTEST,
        None => (last.took * DUTY).clamp(SHORTEST, LONGEST),
    }
}

/// The pause after `failures` refreshes in a row have failed.
pub fn retry_pause(failures: u32, interval: Duration) -> Duration {
    FIRST_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(interval)
}

/// What the rest of the mount asks of a running synchronizer.
#[derive(Debug)]
pub enum Command {
    /// Look now.
    Refresh,
    /// Apply the deletions that are held back.
    AcceptDeletions,
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

/// Runs until `commands` is closed: refreshes at once where `at_once`, then on demand, where the catalog is found damaged,
/// and whenever an interval has passed.
pub async fn run(
    mut synchronizer: Synchronizer,
    mut commands: mpsc::Receiver<Command>,
    listeners: Listeners,
    at_once: bool,
) {
    let catalog = synchronizer.catalog.clone();
    let mut failures = 0;
    let mut due = Instant::now() + if at_once { Duration::ZERO } else { jittered(next(&synchronizer)) };
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                None => return,
                Some(Command::Refresh | Command::AcceptDeletions | Command::Look(_)) => {}
                Some(Command::Channels(live)) => {
                    synchronizer.status.write(|status| status.channels_live = live);
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
            () = catalog.damage_found() => {}
            () = tokio::time::sleep_until(due) => {}
        }
        let interval = next(&synchronizer);
        match synchronizer.refresh(Arc::new(|_: Stage| ())).await {
            Ok(outcome) => {
                failures = 0;
                if let Outcome::Committed(Committed { invalidations, .. }) = outcome {
                    (listeners.invalidate)(invalidations);
                    synchronizer.tidy();
                }
                (listeners.refreshed)();
                due = Instant::now() + jittered(next(&synchronizer));
            }
            Err(cause) => {
                failures += 1;
                let pause = jittered(retry_pause(failures, interval));
                due = Instant::now() + pause;
                report(&cause, pause);
            }
        }
    }
}

fn next(synchronizer: &Synchronizer) -> Duration {
    interval(synchronizer.config.poll, synchronizer.last_transfer())
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

/// Up to a tenth more, so that many Destinations do not ask at one moment.
fn jittered(pause: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(std::process::id()) % 1000;
    pause + pause.mul_f64(random as f64 / 10_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_or_unchanged_document_is_asked_every_five_minutes() {
        let unchanged = Transfer { octets: 0, took: Duration::from_millis(30) };

        assert_eq!(interval(None, unchanged), SHORTEST);
        assert_eq!(interval(None, Transfer { octets: SMALL, took: Duration::from_secs(60) }), SHORTEST);
    }

    #[test]
    fn a_big_document_takes_less_than_a_hundredth_of_the_time() {
        let slow = Transfer { octets: 88_000_000, took: Duration::from_secs(20) };

        assert_eq!(interval(None, slow), Duration::from_secs(2000));
        assert_eq!(interval(None, Transfer { took: Duration::from_secs(86_400), ..slow }), LONGEST);
    }

    #[test]
    fn a_fixed_interval_is_kept() {
        let slow = Transfer { octets: 88_000_000, took: Duration::from_secs(20) };

        assert_eq!(interval(Some(Duration::from_secs(2)), slow), Duration::from_secs(2));
    }

    #[test]
    fn failures_are_retried_soon_and_then_ever_less_often() {
        let pauses: Vec<u64> = (1..=7).map(|n| retry_pause(n, SHORTEST).as_secs()).collect();

        assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(retry_pause(u32::MAX, SHORTEST), SHORTEST);
    }
}
