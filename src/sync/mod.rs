//! Keeping in step with the Source: baseline synchronization now and whenever a list changes. The only writer of the catalog.
//!
//! A refresh asks for every document conditionally. Only when one of them differs from what the current revision
//! was made of is anything written: all lists are merged into one new revision, committed together with the
//! [`position::Position`] they stand for, and the kernel is told afterwards. Whatever fails before the commit changes nothing.

mod baseline;
pub mod guard;
pub mod notification;
pub mod poll;
pub mod position;
pub mod selection;
pub mod status;
#[cfg(test)]
mod tests;

use crate::catalog::path::MapError;
use crate::catalog::{Catalog, CatalogError, Committed, Naming};
use crate::document::{Capability, DocumentError, Limits, Uri};
use crate::source::discovery::discover;
use crate::source::http::Client;
use crate::source::spool::{Spool, SpooledDocument};
use crate::source::walk::{Progress, Walked, walk};
use crate::source::{DocumentLocation, EntryPoint, Missing, Source, SourceError};
use guard::MaxDelete;
use notification::SetChannel;
use position::Position;
use selection::Selection;
use status::SharedStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a discovered Source Description and its Capability Lists are trusted before they are read again.
const DISCOVERY_LIFETIME: Duration = Duration::from_secs(24 * 3600);

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
    last_transfer: poll::Transfer,
    status: SharedStatus,
    channels: watch::Sender<Vec<SetChannel>>,
}

impl Synchronizer {
    /// A synchronizer that spools documents in `spool` and writes `catalog`.
    pub fn new(config: SyncConfig, client: Client, catalog: Arc<Catalog>, spool: Spool) -> Synchronizer {
        Synchronizer {
            config,
            client,
            catalog,
            spool: Arc::new(spool),
            discovered: None,
            last_transfer: poll::Transfer::default(),
            status: SharedStatus::default(),
            channels: watch::Sender::default(),
        }
    }

    /// The notification channels of the mounted sets, as of each discovery; none before the first.
    pub fn channels(&self) -> watch::Receiver<Vec<SetChannel>> {
        self.channels.subscribe()
    }

    /// What it tells of itself while it runs.
    pub fn status(&self) -> SharedStatus {
        self.status.clone()
    }

    /// How the last refresh's documents came: decides when the next one is due.
    pub fn last_transfer(&self) -> poll::Transfer {
        self.last_transfer
    }

    /// Asks the Source for everything that may have changed and commits what did. On an error nothing has changed.
    pub async fn refresh(&mut self, progress: Arc<dyn Fn(Stage) + Send + Sync>) -> Result<Outcome, SyncError> {
        let outcome = self.try_refresh(progress).await;
        if outcome.is_err() {
            self.discovered = None;
        }
        outcome
    }

    async fn try_refresh(&mut self, progress: Arc<dyn Fn(Stage) + Send + Sync>) -> Result<Outcome, SyncError> {
        progress(Stage::Discovering);
        let source = self.source().await?;
        let roots = resource_lists(&source, &self.config.entry)?;

        let started = Instant::now();
        let mut walks = Vec::with_capacity(roots.len());
        for root in &roots {
            let fetching = |so_far| progress(Stage::Fetching(so_far));
            walks.push(walk(&self.client, &self.spool, root, self.config.limits, &fetching).await?);
        }
        self.last_transfer = poll::Transfer::of(&walks, started.elapsed());
        if let Some(leaf) = walks.iter().flat_map(|walked| &walked.leaves).next()
            && leaves(&walks).next().is_none()
        {
            // By its Capability List's word a Resource List, by its own another document: no tree is made of that.
            let offers = leaf.capability.as_ref().map_or("nothing", Capability::as_str);
            let offers = format!("{offers} ({})", leaf.document.location);
            return Err(SyncError::NoResourceList { entry: self.config.entry.to_string(), offers });
        }

        let (current, stored) = {
            let snapshot = self.catalog.snapshot()?;
            (snapshot.revision()?, snapshot.position()?)
        };
        let made_of = stored.as_deref().and_then(Position::decode);
        let missing = missing(&source, &roots, &walks);
        if current.is_some() {
            // What was missing already when the tree was made cannot take anything from it.
            let new = missing.iter().find(|gap| made_of.as_ref().is_none_or(|made_of| !made_of.lacked(gap)));
            if let Some(Missing { location, why, .. }) = new {
                return Err(SyncError::Incomplete { what: format!("{location}: {why}") });
            }
        } else {
            // A first tree of what there is beats none.
            for Missing { location, why, .. } in &missing {
                tracing::warn!("the tree lacks a part: {location}: {why}");
            }
        }
        let naming = self.naming(&source, &walks).await?;
        let position = Position::of(&walks, &missing, &naming);
        // A damaged catalog is built anew from the same documents.
        if made_of.as_ref() == Some(&position) && !self.catalog.is_distrusted() {
            return Ok(Outcome::Unchanged);
        }
        let committed = self.merge(naming, position, walks, current.map_or(0, |r| r.totals.files), progress).await?;
        // The commit may have used what a stale discovery said: the next refresh looks again.
        self.discovered = None;
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
        self.channels.send_replace(notification::channels(&source, self.config.host.as_deref()));
        self.discovered = Some((source.clone(), Instant::now()));
        Ok(source)
    }

    async fn naming(&self, source: &Source, walks: &[Walked]) -> Result<Naming, SyncError> {
        let own_authority = match (&self.config.host, &source.own_authority) {
            (Some(host), _) => host.clone(),
            (None, Some(authority)) => authority.clone(),
            (None, None) => {
                let (spool, limits) = (self.spool.clone(), self.config.limits);
                let documents: Vec<_> = leaves(walks).collect();
                tokio::task::spawn_blocking(move || baseline::smallest_authority(&spool, &documents, limits)).await??
            }
        };
        let maps = self.config.maps.iter().map(|(prefix, path)| (&**prefix, &**path));
        Ok(Naming::new(&own_authority, maps, self.config.extension_by_type)?)
    }

    async fn merge(
        &self,
        naming: Naming,
        position: Position,
        walks: Vec<Walked>,
        files_now: u64,
        progress: Arc<dyn Fn(Stage) + Send + Sync>,
    ) -> Result<Committed, SyncError> {
        let (catalog, spool, limits) = (self.catalog.clone(), self.spool.clone(), self.config.limits);
        let selection = self.config.selection.clone();
        let committed = tokio::task::spawn_blocking(move || {
            let documents: Vec<_> = leaves(&walks).collect();
            let at = position::at(&walks);
            let chooser = baseline::chooser(&selection, &naming, &spool, &documents, limits, &[])?;
            let mut baseline = catalog.baseline(naming)?;
            let entries = baseline::read_into(&mut baseline, &spool, &documents, limits, &chooser, &*progress)?;
            if entries == 0 && files_now > 0 {
                return Err(SyncError::WouldEmpty { files: files_now });
            }
            if entries == 0 {
                tracing::warn!("the tree is empty: the lists hold nothing, or nothing that was chosen");
            }
            progress(Stage::Committing);
            Ok(baseline.commit(at, &position.encode())?)
        })
        .await??;
        tracing::info!(
            revision = committed.revision,
            created = committed.created,
            updated = committed.updated,
            touched = committed.touched,
            deleted = committed.deleted,
            "committed"
        );
        Ok(committed)
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

/// What keeps absence from these walks, one for each of `roots`, from proving that something is gone.
fn missing(source: &Source, roots: &[DocumentLocation], walks: &[Walked]) -> Vec<Missing> {
    let skipped = roots.iter().zip(walks).filter(|(_, walked)| walked.skipped > 0).map(|(root, walked)| Missing {
        location: root.clone(),
        entries: walked.skipped,
        why: format!("{} entries of its indexes cannot be understood", walked.skipped),
    });
    source.missing.iter().cloned().chain(skipped).collect()
}

/// The lists of resources among what the walks reached.
fn leaves(walks: &[Walked]) -> impl Iterator<Item = SpooledDocument> + '_ {
    let lists = walks.iter().flat_map(|walked| &walked.leaves).filter(|leaf| leaf.lists_resources());
    lists.map(|leaf| leaf.document.clone())
}

/// Every Resource List of every set, each once.
fn resource_lists(source: &Source, entry: &EntryPoint) -> Result<Vec<DocumentLocation>, SyncError> {
    let mut roots: Vec<DocumentLocation> = Vec::new();
    for (capability, location) in source.sets.iter().flat_map(|set| &set.documents) {
        if *capability == Capability::ResourceList && !roots.contains(location) {
            roots.push(location.clone());
        }
    }
    if roots.is_empty() {
        let mut offers: Vec<String> = source
            .sets
            .iter()
            .flat_map(|set| &set.documents)
            .map(|(capability, location)| format!("{} ({location})", capability.as_str()))
            .collect();
        if offers.is_empty() {
            offers.push("nothing".to_owned());
        }
        return Err(SyncError::NoResourceList { entry: entry.to_string(), offers: offers.join(", ") });
    }
    Ok(roots)
}
