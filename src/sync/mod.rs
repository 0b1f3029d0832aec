//! Keeping in step with the Source: baseline synchronization now and whenever a list changes. The only writer of the catalog.
//!
//! A refresh asks for every document conditionally. Only when one of them differs from what the current revision
//! was made of is anything written: all lists are merged into one new revision, committed together with the
//! [`position::Position`] they stand for, and the kernel is told afterwards. Whatever fails before the commit changes nothing.

pub mod audit;
mod baseline;
mod children;
mod followed;
pub mod guard;
pub mod incremental;
mod lists;
pub mod notification;
pub mod poll;
pub mod position;
mod schedule;
pub mod selection;
pub mod status;
#[cfg(test)]
mod tests;

use crate::catalog::path::MapError;
use crate::catalog::{Catalog, CatalogError, Committed};
use crate::causes::chain;
use crate::document::{Capability, DocumentError, Limits, Timestamp, Uri};
use crate::source::discovery::discover;
use crate::source::http::Client;
use crate::source::spool::{Spool, SpooledDocument};
use crate::source::walk::Progress;
use crate::source::{DocumentLocation, EntryPoint, Missing, Source, SourceError};
use children::Children;
use followed::{FollowedSet, followed};
use guard::MaxDelete;
use lists::{Reading, missing};
use notification::SetChannel;
use position::Position;
use schedule::Schedule;
use selection::Selection;
use status::{DocumentStatus, RefreshOutcome, Refreshed, SharedStatus};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a discovered Source Description and its Capability Lists are trusted before they are read again.
const DISCOVERY_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Between two looks that nobody asked for lies at least this, whatever the schedule says.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// What is synchronized, and under which names.
#[derive(Clone, Debug)]
pub struct SyncConfig {
    /// What the person pasted.
    pub entry: EntryPoint,
    /// One set alone (`set=`).
    pub set: Option<Uri>,
    /// `host=`: the own `HOST[:PORT]` in place of the entry point's.
    pub host: Option<Box<str>>,
    /// `map=`
    pub maps: Vec<(Box<str>, Box<str>)>,
    /// `extension=type`
    pub extension_by_type: bool,
    /// `include=`, `exclude=`, `type=`, `collection=`, `conforms=`, `with=`
    pub selection: Selection,
    /// Bounds for every document.
    pub limits: Limits,
    /// `poll=`: a fixed interval in place of the documents' own.
    pub poll: Option<Duration>,
    /// `max-delete=`
    pub max_delete: MaxDelete,
}

/// What a refresh did.
#[derive(Debug)]
pub enum Outcome {
    /// Every document is the one the current revision was made of; nothing was written.
    Unchanged,
    /// A new statement was merged and committed.
    Committed(Committed),
}

/// A stage of a refresh, for whoever shows progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Looking for the Source's documents.
    Discovering,
    /// Fetching them.
    Fetching(Progress),
    /// Reading so many entries so far.
    Reading(u64),
    /// Merging and committing.
    Committing,
}

/// Why a refresh changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The Source did not give its documents.
    #[error("the Source cannot be read")]
    Source(#[from] SourceError),
    /// A list came, but broke off or is no list.
    #[error("{location} cannot be read to its end")]
    Document {
        /// The list.
        location: DocumentLocation,
        /// What is wrong with it.
        #[source]
        cause: DocumentError,
    },
    /// The Source has no Resource List.
    #[error("{entry} offers no Resource List, only: {offers}")]
    NoResourceList {
        /// The entry point.
        entry: String,
        /// The capabilities there are.
        offers: String,
    },
    /// All lists together are empty although the tree is not.
    #[error("the Source's lists are empty now; the {files} files of the last revision stay")]
    WouldEmpty {
        /// Files shown.
        files: u64,
    },
    /// The catalog failed.
    #[error("the catalog cannot be written")]
    Catalog(#[from] CatalogError),
    /// Part of what the Source lists cannot be reached or understood, so what is missing may only be hidden.
    #[error("the Source's lists are incomplete: {what}")]
    Incomplete {
        /// Which part.
        what: String,
    },
    /// What is collected while lists are chosen from has no room on the disk.
    #[error("the lists cannot be chosen from: the spool's folder takes no more")]
    Scratch(#[source] std::io::Error),
    /// A `map=` that cannot be.
    #[error("these names cannot be given")]
    Naming(#[from] MapError),
    /// A thread of this program died.
    #[error("a worker ended early")]
    Worker(#[from] tokio::task::JoinError),
    /// The operating system gives no further thread.
    #[error("no thread to read the lists")]
    NoThread(#[source] std::io::Error),
}

/// Brings one catalog in step with one Source.
pub struct Synchronizer {
    config: SyncConfig,
    client: Client,
    catalog: Arc<Catalog>,
    spool: Arc<Spool>,
    discovered: Option<(Source, Instant)>,
    schedule: Schedule,
    children: Children,
    status: SharedStatus,
    channels: watch::Sender<Option<Vec<SetChannel>>>,
}

/// Whoever shows progress.
pub type Progressing = Arc<dyn Fn(Stage) + Send + Sync>;

/// How much of the Source a refresh looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Every document that is followed.
    Everything,
    /// Those that are due.
    Due,
}

impl Synchronizer {
    /// A synchronizer that spools documents in `spool` and writes `catalog`.
    pub fn new(config: SyncConfig, client: Client, catalog: Arc<Catalog>, spool: Spool) -> Synchronizer {
        let schedule = Schedule::new(config.poll);
        Synchronizer {
            config,
            client,
            catalog,
            spool: Arc::new(spool),
            discovered: None,
            schedule,
            children: Children::default(),
            status: SharedStatus::default(),
            channels: watch::Sender::default(),
        }
    }

    /// The notification channels of the mounted sets, as of each discovery; `None` before the first.
    pub fn channels(&self) -> watch::Receiver<Option<Vec<SetChannel>>> {
        self.channels.subscribe()
    }

    /// What it tells of itself while it runs.
    pub fn status(&self) -> SharedStatus {
        self.status.clone()
    }

    /// Asks the Source for everything that may have changed and commits what did. On an error nothing has changed.
    pub async fn refresh(&mut self, progress: Progressing) -> Result<Outcome, SyncError> {
        self.refresh_of(Extent::Everything, progress).await
    }

    /// As [`Synchronizer::refresh`], asking only for what `extent` says. A first tree is made of everything.
    pub async fn refresh_of(&mut self, extent: Extent, progress: Progressing) -> Result<Outcome, SyncError> {
        let began = Instant::now();
        let outcome = self.try_refresh(extent, progress).await;
        if outcome.is_err() {
            self.discovered = None;
        }
        self.tell(&outcome, began.elapsed());
        outcome
    }

    async fn try_refresh(&mut self, extent: Extent, progress: Progressing) -> Result<Outcome, SyncError> {
        progress(Stage::Discovering);
        let source = self.source().await?;
        let (current, stored) = {
            let snapshot = self.catalog.snapshot()?;
            (snapshot.revision()?, snapshot.position()?)
        };
        let stored = stored.as_deref().and_then(Position::decode);
        let sets = followed(&source, stored.as_ref());
        if sets.iter().all(|set| set.lists.is_empty()) {
            return Err(no_resource_list(&source, &self.config.entry));
        }
        self.schedule.follow(sets.iter().flat_map(FollowedSet::documents), Instant::now());
        let mut position = stored.clone().unwrap_or_else(|| Position::of_sets(&sets));
        position.follow(&sets);

        let is_first = current.is_none() || stored.is_none() || self.catalog.is_distrusted();
        let extent = if is_first { Extent::Everything } else { extent };
        let read = self.read_lists(&sets, extent, stored.as_ref(), &progress).await?;
        let Some(read) = read else { return Ok(Outcome::Unchanged) };
        if let Some(leaf) = read.iter().flat_map(|it| &it.walks).flat_map(|walked| &walked.leaves).next()
            && read.iter().all(|it| it.lists().next().is_none())
        {
            // By its Capability List's word a Resource List, by its own another document: no tree is made of that.
            let offers = leaf.capability.as_ref().map_or("nothing", Capability::as_str);
            let offers = format!("{offers} ({})", leaf.document.location);
            return Err(SyncError::NoResourceList { entry: self.config.entry.to_string(), offers });
        }
        let missing = missing(&source, &sets, &read);
        if current.is_none() {
            // A first tree of what there is beats none.
            for Missing { location, why, .. } in &missing {
                tracing::warn!("the tree lacks a part: {location}: {why}");
            }
        }
        let naming = self.naming(&source, &read).await?;
        // A damaged catalog is built anew from the same documents.
        if !is_first && position.is_of(&read, &missing, &naming) {
            return Ok(Outcome::Unchanged);
        }
        let next = position.after(&read, &missing, &naming);
        if let Some(hidden) = next.losses().iter().find(|loss| current.is_some() && !loss.speaks) {
            return Err(SyncError::Incomplete { what: hidden.location.to_string() });
        }
        let files_now = current.map_or(0, |revision| revision.totals.files);
        let committed = self.merge(Reading { naming, read, missing, position }, files_now, progress).await?;
        // The commit may have used what a stale discovery said: the next refresh looks again.
        self.discovered = None;
        self.children.tidy(Instant::now());
        Ok(Outcome::Committed(committed))
    }

    async fn source(&mut self) -> Result<Source, SourceError> {
        if let Some((source, since)) = &self.discovered
            && since.elapsed() < DISCOVERY_LIFETIME
        {
            return Ok(source.clone());
        }
        let source = discover(&self.client, &self.config.entry, self.config.set.as_ref(), self.config.limits).await?;
        if let Some(authority) = &source.moved_to {
            // Whoever fetches what the lists name has a clone of this client.
            self.client.move_to(authority);
        }
        self.channels.send_replace(Some(notification::channels(&source, self.config.host.as_deref())));
        self.discovered = Some((source.clone(), Instant::now()));
        Ok(source)
    }

    /// Whether every set has a notification channel that is alive.
    fn set_live(&mut self, live: bool) {
        self.schedule.set_live(live);
        self.status.write(|status| status.channels_live = live);
    }

    /// How long until a document is due.
    fn pause(&self) -> Duration {
        let due = self.schedule.next();
        due.map_or(self.usual_interval(), |due| due.saturating_duration_since(Instant::now())).max(SHORTEST_PAUSE)
    }

    /// The interval of a document that costs nothing.
    fn usual_interval(&self) -> Duration {
        self.config.poll.unwrap_or(schedule::SHORTEST)
    }

    /// Writes down how a refresh went.
    fn tell(&self, outcome: &Result<Outcome, SyncError>, took: Duration) {
        let (now, real_now) = (Instant::now(), SystemTime::now());
        // Instants are no times of day: they are told by their distance from now.
        let told = |instant: Instant| {
            let time = match instant.checked_duration_since(now) {
                Some(ahead) => real_now + ahead,
                None => real_now - (now - instant),
            };
            Timestamp::from(time).to_string()
        };
        let documents = self.schedule.documents().map(|planned| DocumentStatus {
            location: planned.location.to_string(),
            interval: planned.interval.as_secs(),
            asked: planned.asked.map(told),
            due: Some(told(planned.due)),
            answer: planned.answer.clone(),
        });
        let documents: Vec<_> = documents.collect();
        let revision = self.catalog.revision().unwrap_or_default();
        self.status.write(|status| {
            status.revision = revision.map(|revision| revision.number);
            status.files = revision.map_or(0, |revision| revision.totals.files);
            status.at = revision.and_then(|revision| revision.at).map(|at| at.to_string());
            let ended = Timestamp::from(real_now).to_string();
            let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            status.last_refresh = Some(Refreshed { ended, milliseconds, outcome: outcome.into() });
            status.failures = if outcome.is_ok() { 0 } else { status.failures.saturating_add(1) };
            status.next_poll = self.schedule.next().map(told);
            status.documents = documents;
        });
    }

    /// After a commit, in the background: makes room in the catalog and in the spool.
    pub fn tidy(&self) {
        self.compact_catalog();
        self.settle_spool();
    }

    /// Copies the catalog without the holes that replaced revisions left, where these have become many.
    fn compact_catalog(&self) {
        let catalog = self.catalog.clone();
        tokio::task::spawn_blocking(move || match catalog.compact() {
            Ok(true) => tracing::info!("the catalog was copied without its holes"),
            Ok(false) => {}
            Err(cause) => tracing::warn!(%cause, "the catalog keeps its holes"),
        });
    }

    /// Drops documents that no list refers to any more and makes the rest small.
    fn settle_spool(&self) {
        let (catalog, spool) = (self.catalog.clone(), self.spool.clone());
        tokio::task::spawn_blocking(move || {
            let keep = match catalog.snapshot().and_then(|snapshot| snapshot.position()) {
                Ok(stored) => stored.as_deref().and_then(Position::decode),
                Err(cause) => {
                    tracing::warn!(%cause, "the spool is not settled");
                    return;
                }
            };
            let keep: Vec<SpooledDocument> =
                keep.iter().flat_map(Position::locations).filter_map(|location| spool.known(&location)).collect();
            if let Err(cause) = spool.settle(&keep) {
                tracing::warn!(%cause, "the spool is not settled");
            }
        });
    }
}

impl From<&Result<Outcome, SyncError>> for RefreshOutcome {
    fn from(outcome: &Result<Outcome, SyncError>) -> RefreshOutcome {
        match outcome {
            Ok(Outcome::Unchanged) => RefreshOutcome::Unchanged,
            Ok(Outcome::Committed(Committed { created, updated, touched, deleted, .. })) => {
                RefreshOutcome::Committed { created: *created, updated: *updated, touched: *touched, deleted: *deleted }
            }
            Err(cause) => RefreshOutcome::Failed(chain(cause)),
        }
    }
}

/// What the Source offers where there is nothing to make a tree of.
fn no_resource_list(source: &Source, entry: &EntryPoint) -> SyncError {
    let documents = source.sets.iter().flat_map(|set| &set.documents);
    let mut offers: Vec<String> =
        documents.map(|(capability, location)| format!("{} ({location})", capability.as_str())).collect();
    if offers.is_empty() {
        offers.push("nothing".to_owned());
    }
    SyncError::NoResourceList { entry: entry.to_string(), offers: offers.join(", ") }
}
