//! One refresh: discover the Source, fetch what is new, put it in order, commit.
//!
//! The lists make a baseline where they are others than before, and the changes are applied behind them (`rebase`). Else the changes
//! alone are applied to the revision that is shown (`advance`).

use super::absence::{Absence, AbsenceProof};
use super::changes::ChangeState;
use super::choose::needs_lists;
use super::commit::Merge;
use super::fetch::lists;
use super::fetch::new_changes::{NewChanges, ReadChanges};
use super::fetch::own_host::{known_naming, naming};
use super::fetch::remarks::fail_if_missing;
use super::followed_set::FollowedSet;
use super::position::Position;
use super::push::{self, SetChannels};
use super::read_set::ReadSet;
use super::status::FailedDocument;
use super::{Progressing, RefreshResult, Scope, Stage, SyncError, Synchronizer, unwatched};
use crate::catalog::{Naming, SetId};
use crate::document::{Capability, Timestamp};
use crate::platform::error_chain::chain;
use crate::source::crawl::Crawled;
use crate::source::discovery::{discover, discover_again};
use crate::source::{DocumentLocation, EntryPoint, Missing, Source, SourceError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The time that a discovered Source Description and its Capability Lists are trusted before they are read again.
const DISCOVERY_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The Source as it was discovered, and when it is discovered again.
#[derive(Default)]
pub(super) struct Discovery {
    /// The Source that was found last, and when.
    pub found: Option<(Source, Instant)>,
    /// True if the next refresh discovers the Source again, as something has failed.
    pub is_stale: bool,
    /// True if it does so although nothing has failed: a person asks, or a commit was made. Lists that were read are not asked for it.
    pub looks_again: bool,
    /// The notification channels of the mounted sets.
    pub channels: watch::Sender<Option<SetChannels>>,
}

/// The refresh that is under way, or the last one.
pub(super) struct Current {
    /// When it began.
    pub began: Instant,
    /// Shows how far it is.
    pub progress: Progressing,
    /// Documents that failed.
    pub failed: Vec<FailedDocument>,
    /// The failure of the first change document that could not be read.
    pub unfollowed: Option<SyncError>,
    /// True if packages may be offered that it could not reach.
    pub lacks_packages: bool,
}

impl Current {
    /// A refresh that begins.
    pub fn new(progress: Progressing) -> Current {
        Current { began: Instant::now(), progress, failed: Vec::new(), unfollowed: None, lacks_packages: false }
    }

    /// Notes a document that fails: it may be read twice.
    pub fn note_failure(&mut self, failed: FailedDocument) {
        if !self.failed.contains(&failed) {
            self.failed.push(failed);
        }
    }
}

/// No cache is stale for longer: older lists that are served all that time are what the Source publishes.
pub(super) const LONGEST_STALE: Duration = Duration::from_secs(24 * 3600);

/// The sets whose lists are older than what is shown of them: the time of these, and since when they have been served without a break.
pub(super) type StaleLists = HashMap<SetId, (Timestamp, Instant)>;

/// A discovered Source, and what the refresh goes on from.
pub(super) struct Step {
    pub source: Source,
    pub sets: Vec<FollowedSet>,
    /// The position that is stored with the current revision.
    pub stored: Option<Position>,
    /// The stored position, or an empty one, with room for all sets.
    pub position: Position,
    /// True if nothing is shown yet.
    pub is_first_tree: bool,
    /// True if the tree is made of everything: a first one, or in place of one that cannot be read.
    pub is_first: bool,
    /// True if a baseline is made although the lists are those of before.
    pub decides_again: bool,
}

impl Synchronizer {
    /// Asks the Source for everything that may have changed and commits what did. On an error nothing has changed.
    pub async fn refresh(&mut self, progress: Progressing) -> Result<RefreshResult, SyncError> {
        self.refresh_of(Scope::Everything, progress).await
    }

    /// A refresh of what `scope` says alone. A first tree is made of everything.
    pub async fn refresh_of(&mut self, scope: Scope, progress: Progressing) -> Result<RefreshResult, SyncError> {
        self.writer.tidied().await;
        self.fetch.client.renew_credentials().await;
        (self.current, self.fetch.absence) = (Current::new(progress), Absence::default());
        self.status.send_modify(|status| status.refreshing_since = Some(jiff::Timestamp::now()));
        let contradicted = self.fetch.packages.contradicted();
        let scope = if contradicted.is_empty() { scope } else { Scope::Everything };
        let outcome = match (self.try_until_proved(scope).await, self.writer.batches.take()) {
            // The rest is found again at the next refresh: the journal holds what is applied.
            (Err(cause), Some(committed)) => {
                tracing::warn!("the refresh has failed, but for what was committed before: {}", chain(&cause));
                self.note_end(&cause);
                Ok(RefreshResult::Committed(committed))
            }
            (Ok(None | Some(RefreshResult::Unchanged)), Some(committed)) => Ok(RefreshResult::Committed(committed)),
            (outcome, _) => outcome.map(|outcome| outcome.unwrap_or(RefreshResult::Unchanged)),
        };
        if let Err(cause) = &outcome {
            self.note_end(cause);
        }
        if matches!(outcome, Ok(_) | Err(SyncError::Behind(_))) && !self.current.lacks_packages {
            self.fetch.packages.corrected(&contradicted);
        }
        // A confirmation is for this refresh alone: one that fails leaves it to no later one.
        self.writer.confirms_rebuilding = false;
        self.current.progress = unwatched();
        self.report(&outcome, self.current.began.elapsed());
        outcome
    }

    /// Notes why the refresh has failed. The cause of its end comes before the documents that fail; where it went on there are
    /// only these.
    fn note_end(&mut self, cause: &SyncError) {
        let went_on = matches!(cause, SyncError::Behind(_));
        if self.current.failed.is_empty() || !went_on {
            let ended_by = FailedDocument::of(cause);
            self.current.failed.retain(|failed| *failed != ended_by);
            self.current.failed.insert(0, ended_by);
        }
        // A failing document may be offered elsewhere by now; but it may fail for long.
        let interval = self.usual_interval();
        let is_old = || self.discovery.found.as_ref().is_none_or(|(_, since)| since.elapsed() >= interval);
        self.discovery.is_stale |= !went_on || is_old();
    }

    /// The flow, until what it deletes by absence is proved.
    async fn try_until_proved(&mut self, mut scope: Scope) -> Result<Option<RefreshResult>, SyncError> {
        loop {
            let outcome = match self.try_refresh(&scope, false).await {
                Ok(None) => self.try_refresh(&scope.again(), true).await,
                outcome => outcome,
            };
            let Err(SyncError::Unproved(absent)) = outcome else { return outcome };
            self.fetch.absence.note(absent);
            scope = scope.again();
            (self.current.unfollowed, self.current.failed) = (None, Vec::new());
        }
    }

    /// The flow. `None`: there are changes that only the lists can choose from, and these were not read. Once more with
    /// `decides_again` they are.
    async fn try_refresh(&mut self, scope: &Scope, decides_again: bool) -> Result<Option<RefreshResult>, SyncError> {
        if let Some(as_of) = self.config.as_of {
            return self.look_back(as_of).await;
        }
        let (step, undiscovered) = self.discover(scope, decides_again).await?;
        if let Some(page) = &step.source.page {
            return self.refresh_page(&step, page).await.map(Some);
        }
        if step.sets.iter().all(|set| set.list_roots().is_empty()) {
            return Err(no_resource_list(&self.config.entry, &offers(&step.source)));
        }
        let scope = if step.is_first { &Scope::Everything } else { scope };
        let changes = self.read_changes(&step.sets, &step.position, scope).await?;
        let (outcome, failure) = match self.fetch_lists(&step, scope, &changes).await {
            Ok(Some(read)) => match self.rebase(&step, read, changes).await {
                // Read a moment ago, the lists are of no use. The changes are followed all the same.
                Err(cause) if cause.is_of_a_list() && !step.decides_again => {
                    self.lose_lists();
                    let changes = self.read_changes(&step.sets, &step.position, &scope.again()).await?;
                    (self.advance(&step, changes).await?, Some(cause))
                }
                outcome => (outcome?, None),
            },
            Ok(None) => (self.advance(&step, changes).await?, None),
            // Without the lists these changes cannot be applied.
            Err(cause) if step.decides_again => return Err(cause),
            Err(cause) => {
                self.lose_lists();
                (self.advance(&step, changes).await?, Some(cause))
            }
        };
        let unfollowed = self.current.unfollowed.take();
        let undiscovered = undiscovered.map(SyncError::Source);
        let documents = failure.iter().chain(&undiscovered).map(FailedDocument::of);
        documents.for_each(|failed| self.current.failed.insert(0, failed));
        match (outcome, failure.or(undiscovered).or(unfollowed)) {
            (Some(RefreshResult::Unchanged), Some(cause)) => Err(SyncError::Behind(cause.into())),
            (outcome, failure) => {
                failure.iter().for_each(|cause| tracing::warn!("the refresh is incomplete: {}", chain(cause)));
                Ok(outcome)
            }
        }
    }

    /// Discovers the Source, and the sets that are followed from here on. A discovery that fails is not an error where an
    /// earlier one is known.
    pub(super) async fn discover(
        &mut self,
        scope: &Scope,
        decides_again: bool,
    ) -> Result<(Step, Option<SourceError>), SyncError> {
        (self.current.progress)(Stage::Discovering);
        let (mut source, failed) = self.source(matches!(scope, Scope::Announced(_))).await?;
        if source.page.is_none() && !self.catalog.is_distrusted() {
            // A page that is mounted stays a page, even if it answers otherwise for a moment.
            source.page = self.catalog.snapshot()?.naming()?.and_then(|shown| shown.page);
        }
        let (is_first_tree, stored) = (self.catalog.revision()?.is_none(), self.position()?);
        let mut position = stored.clone().unwrap_or_default();
        let sets = position.follow(&source);
        let page = source.page.clone().map(DocumentLocation::Uri);
        self.fetch.schedule.follow(sets.iter().flat_map(FollowedSet::documents).chain(&page), Instant::now());
        if self.catalog.is_distrusted() {
            // Its journal may be lost in part: which changes are applied is not known.
            position.forget_documents();
        }
        // A damaged catalog is built again from the same documents.
        let is_first = is_first_tree || stored.is_none() || self.catalog.is_distrusted();
        let decides_again = decides_again || is_first;
        Ok((Step { source, sets, stored, position, is_first_tree, is_first, decides_again }, failed))
    }

    /// The Source as it was discovered, or discovers it again. Where that fails, the Source as it was, and why. `hurried`: discovery for
    /// safety's sake alone waits for the next poll.
    pub(super) async fn source(&mut self, hurried: bool) -> Result<(Source, Option<SourceError>), SourceError> {
        let mut are_lists_known = false;
        if let Some((source, since)) = &self.discovery.found {
            let is_fresh = since.elapsed() < DISCOVERY_LIFETIME;
            if is_fresh && (hurried || !self.discovery.is_stale && !self.discovery.looks_again) {
                return Ok((source.clone(), None));
            }
            are_lists_known = is_fresh && !self.discovery.is_stale;
        }
        self.discovery.looks_again = false;
        let (entry, set, limits) = (&self.config.entry, self.config.set.as_ref(), self.config.limits);
        let discovered = match are_lists_known {
            true => discover_again(&self.fetch.client, entry, set, limits, &self.fetch.spool.cache).await,
            false => discover(&self.fetch.client, entry, set, limits).await,
        };
        let source = match (discovered, &self.discovery.found) {
            (Ok(source), _) => source,
            (Err(cause), Some((known, _))) => {
                self.discovery.is_stale = true;
                return Ok((known.clone(), Some(cause)));
            }
            (Err(cause), None) => return Err(cause),
        };
        if let Some(authority) = &source.moved_to {
            // Downloads have clones of this client.
            self.fetch.client.move_to(authority);
        }
        self.discovery.channels.send_replace(Some(push::channels(&source, self.config.host.as_deref())));
        let asked = self.discovery.found.as_ref().map(|(_, since)| *since).filter(|_| are_lists_known);
        self.discovery.found = Some((source.clone(), asked.unwrap_or_else(Instant::now)));
        self.discovery.is_stale = false;
        Ok((source, None))
    }

    /// Fetches the lists where they may say what `changes` do not; `None` where they are those of before and not needed.
    async fn fetch_lists(
        &mut self,
        step: &Step,
        scope: &Scope,
        changes: &[ReadChanges],
    ) -> Result<Option<Vec<ReadSet>>, SyncError> {
        let known = |it: &ReadChanges| step.position.known(it.set, &it.root);
        let is_torn = changes.iter().any(|it| !it.goes_on(&known(it)));
        // A change document that cannot be read is reported and asked for again. The lists may have its changes already.
        let loses = changes.iter().any(|it| known(it).loses(&it.lost));
        let due = Scope::Due;
        let scope = match step.decides_again {
            _ if is_torn || loses || step.is_first => &Scope::Everything,
            // To be chosen from again, a list of whose index nothing new is said is not asked.
            true => &due,
            false => scope,
        };
        let is_undamaged = step.is_first_tree && !self.catalog.is_distrusted();
        let naming = if is_undamaged { known_naming(&self.config, &self.catalog, &step.source)? } else { None };
        self.read_lists(&step.sets, scope, step.stored.as_ref(), naming.as_ref(), step.decides_again).await
    }

    /// Notes that lists or packages fail: they may have moved.
    fn lose_lists(&mut self) {
        (self.current.lacks_packages, self.discovery.is_stale) = (true, true);
    }

    /// Goes on from lists and changes: where the lists are others than before a new baseline is made.
    async fn rebase(
        &mut self,
        step: &Step,
        mut read: Vec<ReadSet>,
        mut changes: Vec<ReadChanges>,
    ) -> Result<Option<RefreshResult>, SyncError> {
        let is_made_of = |it: &ReadSet| step.position.is_made_of(it);
        let is_contradicted = !self.fetch.packages.contradicted().is_empty();
        let is_new = step.decides_again || is_contradicted || !read.iter().all(is_made_of);
        let (mut missing, naming) = self.complete(step, &mut read, is_new).await?;
        let is_same = !step.decides_again && step.position.is_of(&read, &missing, &naming);
        if !is_same && !is_new {
            // A new baseline is made of the packages too.
            self.read_dumps((&step.sets, &step.position), &mut read, true).await?;
            missing = lists::missing(&step.source, &step.sets, &read);
        }
        let Some(older) = self.believe(step, &read, is_same)? else { return self.advance(step, changes).await };
        let mut base = step.position.clone();
        if !older.is_empty() {
            older.into_iter().for_each(|(set, at)| base.go_back(set, at));
            // Changes between then and the revision that is shown are in neither the lists nor the catalog's journal.
            changes = self.read_changes(&step.sets, &base, &Scope::Everything).await?;
        }
        self.commit_baseline(step, read, (missing, naming), base, changes).await
    }

    /// The sets whose lists are merged although they are older than what is shown, each with the time that its lists speak for. `None`
    /// where nothing is merged: the tree `is_same`, or some lists are left out as older. Without them there is no tree that
    /// `decides_again`, which is an error. Only a tree that is whole is compared.
    fn believe(
        &mut self,
        step: &Step,
        read: &[ReadSet],
        is_same: bool,
    ) -> Result<Option<Vec<(SetId, Timestamp)>>, SyncError> {
        let is_whole = !step.is_first_tree && !self.catalog.is_distrusted();
        let (now, served) = (Instant::now(), std::mem::take(&mut self.stale_lists));
        let (mut believed, mut older) = (Vec::new(), None);
        for it in read.iter().filter(|_| is_whole) {
            let Some((at, shown)) = step.position.is_newer_than(it) else { continue };
            let Some(list) = it.walks.iter().flat_map(Crawled::documents).next() else { continue };
            let since = served.get(&it.id).filter(|(time, _)| *time == at).map_or(now, |(_, since)| *since);
            self.stale_lists.insert(it.id, (at, since));
            if now.saturating_duration_since(since) >= LONGEST_STALE {
                believed.extend(it.at().map(|at| (it.id, at)));
            } else {
                older.get_or_insert((&list.location, at, shown));
            }
        }
        let Some((location, at, shown)) = older.filter(|_| !is_same) else {
            return Ok(Some(believed).filter(|_| !is_same));
        };
        let older = SyncError::OlderList { location: location.clone(), at, shown };
        if step.decides_again {
            return Err(older);
        }
        tracing::warn!("a Resource List is ignored: {}", chain(&older));
        self.fetch.schedule.ignored(location, chain(&older));
        self.current.note_failure(FailedDocument::of(&older));
        Ok(None)
    }

    /// Reads what belongs to the lists of `read`: dumps, times, and the names of their resources. Returns what is missing of them.
    pub(super) async fn complete(
        &mut self,
        step: &Step,
        read: &mut [ReadSet],
        is_new: bool,
    ) -> Result<(Vec<Missing>, Naming), SyncError> {
        self.read_dumps((&step.sets, &step.position), read, is_new).await?;
        let missing = lists::missing(&step.source, &step.sets, read);
        self.fail_if_nothing(step, read, &missing)?;
        let naming = naming(&self.config, &self.catalog, &self.fetch.spool, &step.source, read).await?;
        self.date_lists(&step.position, Some(&naming), read).await?;
        for it in read {
            let is_without_changes = step.sets.iter().any(|set| set.id == it.id && set.changes.is_empty());
            it.supersedes_announced = is_without_changes && it.is_whole() && !step.position.is_made_of(it);
        }
        Ok((missing, naming))
    }

    /// Commits a baseline of `read`, which lacks what is `missing`, over `base`, brought forward by `changes`.
    pub(super) async fn commit_baseline(
        &mut self,
        step: &Step,
        read: Vec<ReadSet>,
        (mut missing, naming): (Vec<Missing>, Naming),
        mut base: Position,
        changes: Vec<ReadChanges>,
    ) -> Result<Option<RefreshResult>, SyncError> {
        missing.extend(self.fetch.absence.unproved(&read, &step.position));
        // Lists of an earlier time do not change any more.
        let proof = match self.config.as_of {
            None => self.fetch.absence.proof(&read, &step.position),
            Some(_) => AbsenceProof::default(),
        };
        let news = self.order_behind(step, &read, &mut base, changes).await?;
        let follows_items = self.config.follows_items;
        let committed = self.merge(Merge { naming, read, missing, base, news, follows_items, proof }).await?;
        if let Some(now) = self.writer.position.as_ref().filter(|_| !step.is_first_tree) {
            // The mount itself says what a first tree lacks.
            let new = now.lacking().filter(|it| !step.position.lacking().any(|known| known == *it));
            new.for_each(|Missing { location, why, .. }| {
                tracing::warn!("a part of the Source is missing: {location}: {why}")
            });
        }
        // The commit may rest on an old discovery: the next refresh discovers again.
        self.discovery.looks_again = true;
        self.fetch.children.tidy(Instant::now());
        Ok(Some(RefreshResult::Committed(committed)))
    }

    /// An error where nothing was `read` that a tree can be made of.
    fn fail_if_nothing(&self, step: &Step, read: &[ReadSet], missing: &[Missing]) -> Result<(), SyncError> {
        if !read.iter().all(|it| it.lists().next().is_none() && it.manifests.is_empty()) {
            return Ok(());
        }
        let leaf = read.iter().flat_map(|it| &it.walks).flat_map(|walked| &walked.leaves).next();
        if step.is_first_tree || leaf.is_some() {
            fail_if_missing(&self.config.entry, missing)?;
        }
        let Some(leaf) = leaf else { return Ok(()) };
        // By its Capability List's word a Resource List, by its own another document: no tree is made of that.
        let offers = leaf.capability.as_ref().map_or("nothing", Capability::as_str);
        Err(no_resource_list(&self.config.entry, &format!("{offers} ({})", leaf.document.location)))
    }

    /// Orders `changes` behind the lists that were `read`, and notes in `base` how far they are known with these.
    async fn order_behind(
        &mut self,
        step: &Step,
        read: &[ReadSet],
        base: &mut Position,
        changes: Vec<ReadChanges>,
    ) -> Result<NewChanges, SyncError> {
        let now = Timestamp::now();
        let at = |set| read.iter().find(|it| it.id == set).and_then(ReadSet::at);
        let mut closed = Vec::with_capacity(changes.len());
        for mut it in changes {
            let known = base.known(it.set, &it.root);
            // The archives have been asked for everything where an earlier time is wanted.
            let is_closed = base.as_of.is_some() || known.has_read() && it.goes_on(&known);
            if let Some(set) = step.sets.iter().find(|set| set.id == it.set).filter(|_| !is_closed) {
                it = self.close_gap(set, it, &ChangeState::since(at(set.id))).await?;
            }
            base.note(it.set, &it.root, it.over(known, at(it.set), now));
            closed.push(it);
        }
        let news = self.news(closed, base, now).await?;
        base.retain(&step.sets);
        Ok(news)
    }

    /// Goes on from changes alone; `None` where only the lists can choose from them.
    async fn advance(&mut self, step: &Step, changes: Vec<ReadChanges>) -> Result<Option<RefreshResult>, SyncError> {
        let (now, base) = (Timestamp::now(), &step.position);
        let mut position = base.clone();
        for it in &changes {
            let mut known = base.known(it.set, &it.root);
            if !it.goes_on(&known) {
                // The lists were asked, and are not newer than this.
                known.tear(now);
            }
            position.note(it.set, &it.root, known);
        }
        position.retain(&step.sets);
        let has_other_bytes = changes.iter().any(|it| !it.documents.is_empty());
        let new = self.news(changes, &position, now).await?;
        if new.is_empty() && new.states.iter().all(|(set, root, it)| it.knows_the_same(&base.known(*set, root))) {
            new.states.into_iter().for_each(|(set, root, state)| position.note(set, &root, state));
            // Different bytes alone do not justify a commit, unless a restart would not go on from what is stored.
            if has_other_bytes && !self.stored()?.is_some_and(|stored| position.goes_on_from(&stored)) {
                self.apply(Vec::new(), position).await?;
            } else {
                self.writer.position = Some(position);
            }
            return Ok(Some(RefreshResult::Unchanged));
        }
        let (new, needs_lists) = needs_lists(&self.catalog, &self.config.selection, new).await?;
        if needs_lists {
            return Ok(None);
        }
        (self.current.progress)(Stage::Committing);
        let roots: Vec<_> = new.states.iter().map(|(_, root, _)| root.clone()).collect();
        let applied = self.apply_batches(new, position).await;
        if let Some(cause) = applied.as_ref().err().filter(|_| self.writer.batches.is_some()) {
            // The refresh counts as one that has committed: what is left is asked for soon all the same.
            let failed = FailedDocument::of(cause);
            roots.iter().for_each(|root| self.note_failed(root, Some(failed.clone())));
        }
        applied.map(Some)
    }

    /// Applies what is new, a batch a commit.
    async fn apply_batches(&mut self, new: NewChanges, mut position: Position) -> Result<RefreshResult, SyncError> {
        let new = Arc::new(Mutex::new(new));
        loop {
            let committed = self.apply_next(new.clone(), position).await?;
            if new.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
                return Ok(RefreshResult::Committed(committed));
            }
            self.writer.batches = Some(committed);
            position = self.position()?.unwrap_or_default();
        }
    }
}

/// The error of a Source without lists, which `offers` other documents.
pub(super) fn no_resource_list(entry: &EntryPoint, offers: &str) -> SyncError {
    SyncError::NothingToShow(format!("{entry} offers no Resource List, only: {offers}"))
}

/// The documents that a Source offers, for a person.
pub(super) fn offers(source: &Source) -> String {
    let documents = source.sets.iter().flat_map(|set| &set.documents);
    let mut offers: Vec<String> =
        documents.map(|(capability, location)| format!("{} ({location})", capability.as_str())).collect();
    if offers.is_empty() {
        offers.push("nothing".to_owned());
    }
    offers.extend(source.missing.iter().map(|Missing { location, why, .. }| format!("missing is {location}: {why}")));
    offers.join(", ")
}
