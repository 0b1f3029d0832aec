//! Keeping in step with the Source: what exists from its lists or dumps, then what changes. No other room changes
//! the tree of the catalog.
//!
//! A refresh asks for documents conditionally: all of them, those that are due (`scheduler`), or what a notification names (`push`).
//! New changes (`changes`) are applied to the current revision. Where a list differs from what the revision was made of,
//! or the changes do not continue from the last refresh, all lists are merged into a new baseline (`fetch`), brought
//! forward by the changes.
//!
//! Each commit (`commit`) holds the [`position::Position`] too; the guard decides what may go. A baseline is one commit, changes are
//! one or more. A failure leaves what was committed before, which is never applied again. The kernel is notified after each.

mod absence;
pub mod audit;
pub mod changes;
mod choose;
pub mod command;
mod commit;
mod config;
pub mod deletion_guard;
pub mod deviations;
mod error;
pub mod fetch;
mod followed_set;
mod history;
pub mod items;
pub mod poller;
pub mod position;
pub mod push;
mod read_set;
mod refresh;
mod scheduler;
pub mod selection;
pub mod status;
#[cfg(test)]
mod tests;
mod tidy;

use crate::catalog::{Catalog, Committed, Invalidation};
use crate::source::crawl::Progress;
use crate::source::documents::DocumentCache;
use crate::source::http::Client;
use crate::source::zip::Packages;
use absence::Absence;
use command::Scope;
use commit::CatalogWriter;
pub use config::SyncConfig;
use config::Tuning;
pub use error::{FailureKind, SyncError};
use fetch::DocumentFetch;
use fetch::index_cache::IndexCache;
use fetch::spool::Spool;
use position::Position;
use push::SetChannels;
use refresh::{Current, Discovery, StaleLists, no_resource_list, offers};
use scheduler::Schedule;
use serde::{Deserialize, Serialize};
use status::SyncStatus;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The shortest pause between two polls.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// The pause where nothing is ever due: years.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The outcome of a refresh.
#[derive(Debug)]
pub enum RefreshResult {
    /// No document says anything new: the tree is the same. The position may have been stored.
    Unchanged,
    /// Lists or changes were committed.
    Committed(Committed),
}

/// A stage of a refresh, to show progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Looking for the Source's documents.
    Discovering,
    /// A host does not answer, for this reason, and is asked again.
    Unanswered(Box<str>),
    /// A remark on the tree, which is there.
    Remark(Box<str>),
    /// Fetching them.
    Fetching(Progress),
    /// Reading so many entries so far.
    Reading(u64),
    /// Merging and committing.
    Committing,
}

/// A synchronizer brings one catalog in step with one Source.
pub struct Synchronizer {
    config: SyncConfig,
    tuning: Tuning,
    catalog: Arc<Catalog>,
    discovery: Discovery,
    fetch: DocumentFetch,
    stale_lists: StaleLists,
    /// The change documents, with their digests, that the state of an earlier time was made of last.
    looked_back: Vec<(String, u64)>,
    writer: CatalogWriter,
    current: Current,
    status: watch::Sender<SyncStatus>,
}

/// Shows progress.
pub type Progressing = Arc<dyn Fn(Stage) + Send + Sync>;

/// Notifies the kernel of what one commit has changed.
pub type Invalidating = Arc<dyn Fn(Vec<Invalidation>) + Send + Sync>;

/// The progress of refreshes of a running mount: it is not shown.
fn unwatched() -> Progressing {
    Arc::new(|_: Stage| ())
}

impl Synchronizer {
    /// A synchronizer that spools documents in `spool`, reads dumps through `packages`, and writes `catalog`, on one disk.
    pub fn new(
        config: SyncConfig,
        client: Client,
        catalog: Arc<Catalog>,
        spool: DocumentCache,
        packages: Packages,
    ) -> Synchronizer {
        let spool = Spool::new(Arc::new(spool.leaving(catalog.room())), config.limits);
        let (schedule, children, below) = (Schedule::new(config.poll), IndexCache::default(), HashMap::new());
        Synchronizer {
            tuning: Tuning::default(),
            catalog,
            discovery: Discovery::default(),
            fetch: DocumentFetch {
                client,
                spool,
                packages,
                schedule,
                children,
                absence: Absence::default(),
                below,
                reading: JoinSet::new(),
            },
            stale_lists: StaleLists::default(),
            looked_back: Vec::new(),
            writer: CatalogWriter::default(),
            current: Current::new(unwatched()),
            status: watch::Sender::default(),
            config,
        }
    }

    /// The notification channels of the mounted sets, as of each discovery; `None` before the first.
    pub fn channels(&self) -> watch::Receiver<Option<SetChannels>> {
        self.discovery.channels.subscribe()
    }

    /// True if the items of landing pages are files.
    pub fn follows_items(&self) -> bool {
        self.config.follows_items
    }

    /// The downloaded documents.
    pub fn spool(&self) -> &Spool {
        &self.fetch.spool
    }

    /// The state while it runs.
    pub fn status(&self) -> watch::Receiver<SyncStatus> {
        self.status.subscribe()
    }

    /// True if nothing is ever due: all that will be published of an earlier time is known.
    fn is_idle(&self) -> bool {
        self.writer.position.as_ref().is_some_and(Position::is_final)
    }

    /// The time until a document is due.
    fn pause(&self) -> Duration {
        if self.is_idle() {
            return NEVER;
        }
        let due = self.fetch.schedule.next();
        due.map_or(self.usual_interval(), |due| due.saturating_duration_since(Instant::now())).max(SHORTEST_PAUSE)
    }

    /// The interval of a document that costs nothing.
    fn usual_interval(&self) -> Duration {
        self.config.poll.unwrap_or(scheduler::SHORTEST)
    }
}
