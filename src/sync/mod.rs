//! Keeping in step with the Source: what exists from its lists or dumps, then what changes. The only writer of the catalog.
//!
//! A refresh asks for documents conditionally: all of them, those that are due (`scheduler`), or what a notification names (`push`).
//! New changes (`changes`) are applied to the current revision. Where a list differs from what the revision was made of,
//! or the changes do not continue from the last refresh, all lists are merged into a new statement of what exists (`fetch`), brought
//! forward by the changes.
//!
//! Either way there is one commit (`commit`), which holds the [`position::Position`] too; the guard decides what may go. A failure before
//! it changes nothing, and what was committed is never applied again. The kernel is notified afterwards.

mod ask;
pub mod audit;
pub mod changes;
pub mod command;
mod commit;
mod config;
pub mod deletion_guard;
pub mod deviations;
mod discovery;
mod error;
pub mod fetch;
mod followed_set;
mod history;
pub mod poller;
pub mod position;
pub mod push;
mod read_set;
mod scheduler;
pub mod selection;
mod stale_list;
pub mod status;
#[cfg(test)]
mod tests;
mod tidy;

use crate::catalog::{Catalog, CatalogError, Committed, Invalidation};
use crate::document::{Capability, Timestamp, Uri};
use crate::platform::error_chain::chain;
use crate::source::crawl::Progress;
use crate::source::documents::DocumentCache;
use crate::source::http::Client;
use crate::source::zip::Packages;
use crate::source::{DocumentLocation, EntryPoint, Missing, Source};
use changes::ChangeState;
use command::Scope;
pub use config::SyncConfig;
use config::Tuning;
pub use error::{FailureKind, SyncError};
use fetch::index_cache::IndexCache;
use fetch::lists::missing;
use fetch::new_changes::{NewChanges, ReadChanges};
use fetch::spool::Spool;
use followed_set::FollowedSet;
use position::Position;
use push::SetChannel;
use read_set::ReadSet;
use scheduler::Schedule;
use serde::{Deserialize, Serialize};
use stale_list::StaleLists;
use status::{FailedDocument, Status};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The shortest pause between two polls.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// The pause where nothing is ever due: years.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// What a refresh did.
#[derive(Debug)]
pub enum Outcome {
    /// Every document is the one the current revision was made of; nothing was written.
    Unchanged,
    /// A new statement was merged and committed.
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
    /// The tree is there, and this is to be known of it.
    Remark(Box<str>),
    /// Fetching them.
    Fetching(Progress),
    /// Reading so many entries so far.
    Reading(u64),
    /// Merging and committing.
    Committing,
}

/// Brings one catalog in step with one Source.
pub struct Synchronizer {
    config: SyncConfig,
    client: Client,
    catalog: Arc<Catalog>,
    spool: Spool,
    discovered: Option<(Source, Instant)>,
    /// Whether the next refresh discovers the Source again, as something has failed.
    is_stale: bool,
    /// The same although nothing has: a person asks, or a commit was made. Lists that were read are not asked for it.
    looks_again: bool,
    schedule: Schedule,
    children: IndexCache,
    /// What dumps are read through.
    packages: Packages,
    /// The position of the current revision, once it was read: no other writer changes it.
    position: Option<Position>,
    stale_lists: StaleLists,
    /// The followed document above each list that was reached.
    below: HashMap<Uri, DocumentLocation>,
    /// The change documents, with their digests, that the state of an earlier time was made of last.
    looked_back: Vec<(String, u64)>,
    /// Held by the writer of the catalog: a commit, or a new inode given between two.
    writing: Arc<Mutex<()>>,
    /// Batches that are committed and not yet in any [`Outcome`].
    batches: Option<Committed>,
    /// Receives what each commit changes for the kernel, where the tree is mounted.
    invalidate: Option<Invalidating>,
    tuning: Tuning,
    /// Shows how far the refresh is that is under way.
    progress: Progressing,
    /// Why some change document could not be read at the refresh that is under way.
    unfollowed: Option<SyncError>,
    /// All documents that failed at the refresh that is under way, or the last one.
    failed: Vec<FailedDocument>,
    /// Whether packages may be offered that this refresh could not reach.
    lacks_packages: bool,
    /// Whether a person has confirmed what goes where a damaged catalog is built again.
    confirms_rebuilding: bool,
    /// The spool being settled behind the last commit.
    tidying: Option<JoinHandle<()>>,
    status: watch::Sender<Status>,
    channels: watch::Sender<Option<Vec<SetChannel>>>,
}

/// What one refresh goes on from.
struct Step {
    source: Source,
    sets: Vec<FollowedSet>,
    /// Whether nothing is shown yet.
    is_first_tree: bool,
    /// Whether a baseline is made although the lists are those of before.
    decides_again: bool,
    /// The position of the current revision, with room for all sets.
    position: Position,
}

/// Shows progress.
pub type Progressing = Arc<dyn Fn(Stage) + Send + Sync>;

/// Notifies the kernel of what one commit has changed.
pub type Invalidating = Arc<dyn Fn(Vec<Invalidation>) + Send + Sync>;

/// For the refreshes of a running mount, which show no progress.
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
        Synchronizer {
            spool,
            schedule: Schedule::new(config.poll),
            config,
            client,
            catalog,
            discovered: None,
            is_stale: false,
            looks_again: false,
            children: IndexCache::default(),
            packages,
            position: None,
            stale_lists: StaleLists::default(),
            below: HashMap::new(),
            looked_back: Vec::new(),
            writing: Arc::default(),
            batches: None,
            invalidate: None,
            tuning: Tuning::default(),
            progress: unwatched(),
            unfollowed: None,
            failed: Vec::new(),
            lacks_packages: false,
            confirms_rebuilding: false,
            tidying: None,
            status: watch::Sender::default(),
            channels: watch::Sender::default(),
        }
    }

    /// The notification channels of the mounted sets, as of each discovery; `None` before the first.
    pub fn channels(&self) -> watch::Receiver<Option<Vec<SetChannel>>> {
        self.channels.subscribe()
    }

    /// The downloaded documents.
    pub fn spool(&self) -> &Spool {
        &self.spool
    }

    /// Its state while it runs.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Asks the Source for everything that may have changed and commits what did. On an error nothing has changed.
    pub async fn refresh(&mut self, progress: Progressing) -> Result<Outcome, SyncError> {
        self.refresh_of(Scope::Everything, progress).await
    }

    /// As [`Synchronizer::refresh`], asking only for what `scope` says. A first tree is made of everything.
    pub async fn refresh_of(&mut self, scope: Scope, progress: Progressing) -> Result<Outcome, SyncError> {
        self.tidied().await;
        self.client.renew_credentials().await;
        self.progress = progress;
        self.status.send_modify(|status| status.refreshing_since = Some(jiff::Timestamp::now()));
        self.lacks_packages = false;
        self.failed.clear();
        let began = Instant::now();
        let contradicted = self.packages.contradicted();
        let scope = if contradicted.is_empty() { scope } else { Scope::Everything };
        let outcome = match self.try_refresh(scope.clone(), false).await {
            // What was due has just been asked for, so it is due no more.
            Ok(None) if scope == Scope::Due => self.try_refresh(Scope::Everything, true).await,
            Ok(None) => self.try_refresh(scope, true).await,
            outcome => outcome,
        };
        let outcome = match (outcome, self.batches.take()) {
            // The rest is found again at the next look: the journal holds what is applied.
            (Err(cause), Some(committed)) => {
                tracing::warn!("not all changes are applied: {}", chain(&cause));
                Ok(Outcome::Committed(committed))
            }
            (outcome, _) => outcome.map(|outcome| outcome.unwrap_or(Outcome::Unchanged)),
        };
        // What has ended the refresh comes first. Where it went on, that is the documents that fail.
        if let Err(cause) = &outcome {
            if self.failed.is_empty() || !matches!(cause, SyncError::Behind(_)) {
                let ended_by = FailedDocument::of(cause);
                self.failed.retain(|failed| *failed != ended_by);
                self.failed.insert(0, ended_by);
            }
        }
        match &outcome {
            // What fails may be offered elsewhere by now; but it may fail for long.
            Err(SyncError::Behind(_)) => {
                let interval = self.usual_interval();
                self.is_stale |= self.discovered.as_ref().is_none_or(|(_, since)| since.elapsed() >= interval);
            }
            Err(_) => self.is_stale = true,
            Ok(_) => {}
        }
        if matches!(outcome, Ok(_) | Err(SyncError::Behind(_))) && !self.lacks_packages {
            self.packages.corrected(&contradicted);
        }
        // It was given for this refresh: one that fails leaves it to no later one.
        self.confirms_rebuilding = false;
        self.progress = unwatched();
        self.report(&outcome, began.elapsed());
        outcome
    }

    /// `None`: there are changes that only the lists can choose from, and these were not read. Once more with `decides_again` they are.
    async fn try_refresh(&mut self, scope: Scope, decides_again: bool) -> Result<Option<Outcome>, SyncError> {
        if let Some(as_of) = self.config.as_of {
            return self.look_back(as_of).await;
        }
        (self.progress)(Stage::Discovering);
        let (source, undiscovered) = self.source(matches!(scope, Scope::Announced(_))).await?;
        let is_first_tree = self.catalog.revision()?.is_none();
        let stored = self.position()?;
        let mut position = stored.clone().unwrap_or_default();
        let sets = position.follow(&source);
        if sets.iter().all(|set| set.baseline().is_empty()) {
            return Err(no_resource_list(&self.config.entry, &offers(&source)));
        }
        self.schedule.follow(sets.iter().flat_map(FollowedSet::documents), Instant::now());
        // A damaged catalog is built again from the same documents.
        let is_first = is_first_tree || stored.is_none() || self.catalog.is_distrusted();
        let scope = if is_first { Scope::Everything } else { scope };
        if self.catalog.is_distrusted() {
            // Its journal may be lost in part: which changes are applied is not known.
            position.forget_documents();
        }

        let changes = self.read_changes(&sets, &position, &scope).await?;
        let known = |it: &ReadChanges| position.known(it.set, &it.root);
        let is_torn = changes.iter().any(|it| !it.goes_on(&known(it)));
        // A change document that cannot be read is reported and asked for again. The lists may have its changes already.
        let loses = changes.iter().any(|it| known(it).loses(&it.lost));
        let decides_again = decides_again || is_first;
        // What the changes do not say the lists may. Where these are only to be chosen from again, what their indexes say nothing new of
        // is not asked.
        let of_lists = match decides_again {
            _ if is_torn || loses || is_first => Scope::Everything,
            true => Scope::Due,
            false => scope.clone(),
        };
        let early = if is_first_tree && !self.catalog.is_distrusted() { self.known_naming(&source)? } else { None };
        let read = self.read_lists(&sets, &of_lists, stored.as_ref(), early.as_ref(), decides_again).await;
        let (read, mut failure) = match read {
            Ok(read) => (read, None),
            // Without the lists these changes cannot be applied.
            Err(cause) if decides_again => return Err(cause),
            // Changes are followed all the same.
            Err(cause) => {
                self.lacks_packages = true;
                // They may have moved.
                self.is_stale = true;
                (None, Some(cause))
            }
        };
        let step = Step { source, sets, is_first_tree, decides_again, position };
        let outcome = match read {
            Some(read) => match self.rebase(&step, read, changes).await {
                // Read a moment ago, the lists are of no use. The changes are followed all the same.
                Err(cause) if cause.is_of_a_list() && !decides_again => {
                    failure = Some(cause);
                    (self.lacks_packages, self.is_stale) = (true, true);
                    let mut position = self.position()?.unwrap_or_default();
                    let sets = position.follow(&step.source);
                    // What was due has just been asked for, so it is due no more.
                    let scope = if scope == Scope::Due { Scope::Everything } else { scope };
                    let changes = self.read_changes(&sets, &position, &scope).await?;
                    self.advance(&sets, position, changes).await?
                }
                outcome => outcome?,
            },
            None => self.advance(&step.sets, step.position, changes).await?,
        };
        let unfollowed = self.unfollowed.take();
        let undiscovered = undiscovered.map(SyncError::Source);
        failure.iter().chain(&undiscovered).for_each(|cause| self.failed.insert(0, FailedDocument::of(cause)));
        match (outcome, failure.or(undiscovered).or(unfollowed)) {
            (Some(Outcome::Unchanged), Some(cause)) => Err(SyncError::Behind(cause.into())),
            (outcome, failure) => {
                failure.iter().for_each(|cause| tracing::warn!("the refresh is incomplete: {}", chain(cause)));
                Ok(outcome)
            }
        }
    }

    /// Goes on from lists and changes: where the lists are others than before a new baseline is made.
    async fn rebase(
        &mut self,
        step: &Step,
        mut read: Vec<ReadSet>,
        mut changes: Vec<ReadChanges>,
    ) -> Result<Option<Outcome>, SyncError> {
        let is_new = step.decides_again
            || !self.packages.contradicted().is_empty()
            || !read.iter().all(|it| step.position.is_made_of(it));
        self.read_dumps(&step.sets, &mut read, is_new).await?;
        let missing = missing(&step.source, &step.sets, &read);
        let leaf = read.iter().flat_map(|it| &it.walks).flat_map(|walked| &walked.leaves).next();
        let is_nothing = read.iter().all(|it| it.lists().next().is_none() && it.manifests.is_empty());
        if is_nothing && (step.is_first_tree || leaf.is_some()) {
            self.fail_if_missing(&missing)?;
        }
        if let Some(leaf) = leaf.filter(|_| is_nothing) {
            // By its Capability List's word a Resource List, by its own another document: no tree is made of that.
            let offers = leaf.capability.as_ref().map_or("nothing", Capability::as_str);
            return Err(no_resource_list(&self.config.entry, &format!("{offers} ({})", leaf.document.location)));
        }
        let naming = self.naming(&step.source, &read).await?;
        self.date_lists(&step.position, &mut read).await?;
        for it in &mut read {
            let is_without_changes = step.sets.iter().any(|set| set.id == it.id && set.changes.is_empty());
            it.supersedes_announced = is_without_changes && it.is_whole() && !step.position.is_made_of(it);
        }
        let believed = self.stale_lists(step, &read);
        let mut base = step.position.clone();
        let is_same = !step.decides_again && base.is_of(&read, &missing, &naming);
        let believed = match believed {
            Ok(believed) if !is_same => believed,
            Err(older) if step.decides_again => return Err(older),
            believed => {
                if let Some(older) = believed.err().filter(|_| !is_same) {
                    tracing::warn!("a Resource List is ignored: {}", chain(&older));
                    if let SyncError::OlderList { location, .. } = &older {
                        self.schedule.ignored(location, chain(&older));
                    }
                    self.note_failure(FailedDocument::of(&older));
                }
                return self.advance(&step.sets, base, changes).await;
            }
        };
        if !believed.is_empty() {
            believed.into_iter().for_each(|(set, at)| base.go_back(set, at));
            // What has been seen between then and what is shown is in neither the lists nor the catalog's journal.
            changes = self.read_changes(&step.sets, &base, &Scope::Everything).await?;
        }
        let now = Timestamp::now();
        let at = |set| read.iter().find(|it| it.id == set).and_then(ReadSet::at);
        let mut closed = Vec::with_capacity(changes.len());
        for mut it in changes {
            let known = base.known(it.set, &it.root);
            // Of an earlier time the archives have been asked for all that there is.
            let is_closed = known.is_of_the_past() || known.has_read() && it.goes_on(&known);
            if let Some(set) = step.sets.iter().find(|set| set.id == it.set).filter(|_| !is_closed) {
                it = self.close_gap(set, it, &ChangeState::since(at(set.id))).await?;
            }
            base.note(it.set, &it.root, it.over(known, at(it.set), now));
            closed.push(it);
        }
        let news = self.news(closed, &base, now).await?;
        base.retain(&step.sets);
        let before = (!step.is_first_tree).then(|| base.clone());
        let committed = self.merge(naming, read, missing, base, news).await?;
        // The mount itself says what a first tree lacks.
        if let (Some(before), Some(now)) = (before, &self.position) {
            let new = now.lacking().filter(|it| !before.lacking().any(|before| before == *it));
            new.for_each(|Missing { location, why, .. }| {
                tracing::warn!("a part of the Source is missing: {location}: {why}")
            });
        }
        // The commit may rest on an old discovery: the next refresh discovers again.
        self.looks_again = true;
        self.children.tidy(Instant::now());
        Ok(Some(Outcome::Committed(committed)))
    }

    /// Goes on from changes alone; `None` where only the lists can choose from them.
    async fn advance(
        &mut self,
        sets: &[FollowedSet],
        before: Position,
        changes: Vec<ReadChanges>,
    ) -> Result<Option<Outcome>, SyncError> {
        let now = Timestamp::now();
        let mut position = before.clone();
        for it in &changes {
            let mut known = before.known(it.set, &it.root);
            if !it.goes_on(&known) {
                // The lists were asked, and are no newer than this.
                known.tear(now);
            }
            position.note(it.set, &it.root, known);
        }
        position.retain(sets);
        let has_other_bytes = changes.iter().any(|it| !it.documents.is_empty());
        let new = self.news(changes, &position, now).await?;
        if new.is_empty() && new.states.iter().all(|(set, root, it)| it.knows_the_same(&before.known(*set, root))) {
            new.states.into_iter().for_each(|(set, root, state)| position.note(set, &root, state));
            // That the bytes are others is worth no commit, unless a restart would not go on from what is stored.
            if has_other_bytes && !self.stored()?.is_some_and(|stored| position.goes_on_from(&stored)) {
                self.apply(Vec::new(), position).await?;
            } else {
                self.position = Some(position);
            }
            return Ok(Some(Outcome::Unchanged));
        }
        let (new, needs_lists) = self.needs_lists(new).await?;
        if needs_lists {
            return Ok(None);
        }
        (self.progress)(Stage::Committing);
        let roots: Vec<_> = new.states.iter().map(|(_, root, _)| root.clone()).collect();
        let applied = self.apply_batches(new, position).await;
        if let Some(cause) = applied.as_ref().err().filter(|_| self.batches.is_some()) {
            // The refresh counts as one that has committed: what is left is asked for soon all the same.
            let failed = FailedDocument::of(cause);
            roots.iter().for_each(|root| self.note_failed(root, Some(failed.clone())));
        }
        applied.map(Some)
    }

    /// Applies what is new, a batch a commit.
    async fn apply_batches(&mut self, mut new: NewChanges, mut position: Position) -> Result<Outcome, SyncError> {
        loop {
            let (spool, most) = (self.spool.clone(), self.tuning.in_batch);
            let next = move || new.next_batch(most, &spool).map(|changes| (new, changes));
            let changes;
            (new, changes) = tokio::task::spawn_blocking(next).await??;
            let is_last = new.is_empty();
            if is_last {
                new.states.drain(..).for_each(|(set, root, state)| position.note(set, &root, state));
            }
            let committed = self.apply(changes, position).await?;
            if is_last {
                return Ok(Outcome::Committed(committed));
            }
            self.batches = Some(committed);
            position = self.position()?.unwrap_or_default();
        }
    }

    /// The position of the current revision.
    fn position(&mut self) -> Result<Option<Position>, SyncError> {
        if self.position.is_none() {
            self.position = self.stored()?;
        }
        Ok(self.position.clone())
    }

    /// The position that is stored with the current revision.
    fn stored(&self) -> Result<Option<Position>, SyncError> {
        match self.catalog.snapshot()?.position() {
            // The catalog is distrusted by now: everything is read again.
            Err(cause) if cause.is_damage() => Ok(None),
            position => Ok(position?.as_deref().and_then(Position::decode)),
        }
    }

    /// Whether deletions are held back that can be accepted.
    pub fn holds_deletions(&self) -> Result<bool, CatalogError> {
        Ok(!self.catalog.is_distrusted() && self.catalog.snapshot()?.held_count()? > 0)
    }

    /// Whether nothing is ever due: all that will be published of an earlier time is known.
    fn is_idle(&self) -> bool {
        self.position.as_ref().is_some_and(|position| position.is_final)
    }

    /// How long until a document is due.
    fn pause(&self) -> Duration {
        if self.is_idle() {
            return NEVER;
        }
        let due = self.schedule.next();
        due.map_or(self.usual_interval(), |due| due.saturating_duration_since(Instant::now())).max(SHORTEST_PAUSE)
    }

    /// The interval of a document that costs nothing.
    fn usual_interval(&self) -> Duration {
        self.config.poll.unwrap_or(scheduler::SHORTEST)
    }
}

/// The error of a Source without lists, which `offers` other documents.
fn no_resource_list(entry: &EntryPoint, offers: &str) -> SyncError {
    SyncError::NothingToShow(format!("{entry} offers no Resource List, only: {offers}"))
}

/// What a Source offers, for a person.
fn offers(source: &Source) -> String {
    let documents = source.sets.iter().flat_map(|set| &set.documents);
    let mut offers: Vec<String> =
        documents.map(|(capability, location)| format!("{} ({location})", capability.as_str())).collect();
    if offers.is_empty() {
        offers.push("nothing".to_owned());
    }
    offers.extend(source.missing.iter().map(|Missing { location, why, .. }| format!("missing is {location}: {why}")));
    offers.join(", ")
}
