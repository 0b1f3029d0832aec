//! The Source at an earlier time (`at=`): the last lists of each set by then, archived or not, brought forward by the changes up to
//! that moment (section 15).
//!
//! The tree is shown whole or not at all. While a change document cannot be read there is no first tree, and a tree that is
//! shown stays. A document that is gone for good is reported as a gap, and by the time that the tree speaks for.
//!
//! There is one baseline. It is made again while that time is in the future, and until the change documents reach beyond it.

use super::changes::ChangeState;
use super::fetch::new_changes::ReadChanges;
use super::followed_set::FollowedSet;
use super::position::{AsOf, Position};
use super::read_set::{ReadSet, last_modified};
use super::scheduler::jitter;
use super::{RefreshResult, Scope, SyncError, Synchronizer, no_resource_list, offers};
use crate::document::{Entry, Header, Root, Timestamp};
use crate::platform::error_chain::chain;
use crate::source::crawl::{Asking, Child, Crawled, EVERYTHING, Leaf};
use crate::source::{DocumentLocation, SourceError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Manifests of packages that are read at once, and the time for them: all, for such a tree is made once.
const ALL_PACKAGES: (usize, Duration) = (usize::MAX, Duration::MAX);

/// The lists, or dumps, that say what existed at a time.
struct PastLists {
    at: Timestamp,
    roots: Vec<DocumentLocation>,
    walks: Vec<Crawled>,
}

/// The time that is searched for, and the earliest time of lists so far.
struct Search {
    as_of: Timestamp,
    earliest: Option<Timestamp>,
}

impl Search {
    /// True if lists that speak for `at` are old enough.
    fn admits(&mut self, at: Timestamp) -> bool {
        self.earliest = Some(self.earliest.map_or(at, |earliest| earliest.min(at)));
        at <= self.as_of
    }
}

impl Synchronizer {
    /// Brings the catalog to the state of the Source at `as_of`.
    pub(super) async fn look_back(&mut self, as_of: Timestamp) -> Result<Option<RefreshResult>, SyncError> {
        let is_whole = self.catalog.revision()?.is_some() && !self.catalog.is_distrusted();
        let shown = self.position()?.filter(|_| is_whole);
        if shown.as_ref().is_some_and(|position| position.is_final()) {
            return Ok(Some(RefreshResult::Unchanged));
        }
        let began = Timestamp::now();
        let (mut step, failed) = self.discover(&Scope::Everything, true).await?;
        if let Some(cause) = failed {
            return Err(cause.into());
        }
        if !step.sets.iter().any(FollowedSet::offers_what_exists) {
            return Err(no_resource_list(&self.config.entry, &offers(&step.source)));
        }
        self.tuning.packages = ALL_PACKAGES;
        let mut search = Search { as_of, earliest: None };
        let mut read = Vec::with_capacity(step.sets.len());
        for set in std::mem::take(&mut step.sets) {
            let Some((set, lists)) = self.set_by_then(set, &mut search).await? else { continue };
            for root in &set.changes {
                step.position.note(set.id, root, ChangeState::since(Some(lists.at)));
            }
            // The time of an archived document may be in the archive's entry alone.
            read.push(ReadSet { newest: Some(lists.at), ..ReadSet::of(set.id, lists.walks) });
            step.sets.push(set);
        }
        if step.sets.is_empty() {
            let earliest = match search.earliest {
                Some(earliest) => format!("its oldest list dates from {earliest}"),
                None => "its lists have no times".to_owned(),
            };
            return Err(SyncError::NothingToShow(format!("the Source has no list as old as {as_of}: {earliest}")));
        }
        let mut changes = Vec::new();
        for (set, lists) in step.sets.iter().zip(&read) {
            self.changes_by_then(set, &ChangeState::since(lists.newest), as_of, &mut changes).await?;
        }
        let is_final = as_of < began && step.sets.iter().all(|set| is_complete(set, &changes, as_of));
        step.position.as_of = Some(AsOf { time: as_of, is_final });
        let is_of = |shown: Position| shown.as_of == step.position.as_of && read.iter().all(|it| shown.is_made_of(it));
        let is_same = shown.is_some_and(is_of);
        let documents = changes.iter().flat_map(|it| &it.documents);
        let documents: Vec<_> = documents.map(|it| (it.state.location.clone(), it.state.digest)).collect();
        if is_same && self.looked_back == documents {
            return Ok(Some(RefreshResult::Unchanged));
        }
        let named = self.complete(&step, &mut read, true).await?;
        let outcome = self.commit_baseline(&step, read, named, step.position.clone(), changes).await?;
        self.looked_back = documents;
        Ok(outcome)
    }

    /// Reads the change documents of `set` up to `as_of`. One that cannot be read for now is an error: without it the tree would be of an
    /// earlier time.
    async fn changes_by_then(
        &mut self,
        set: &FollowedSet,
        known: &ChangeState,
        as_of: Timestamp,
        changes: &mut Vec<ReadChanges>,
    ) -> Result<(), SyncError> {
        for root in &set.changes {
            match self.read_by_then(set, root, known, as_of).await {
                Ok(read) => changes.push(read),
                Err(cause @ (SyncError::Catalog(_) | SyncError::Worker(_))) => return Err(cause),
                Err(cause) => {
                    self.discovery.is_stale |= cause.is_gone();
                    self.fetch.schedule.failed(root, chain(&cause), jitter(), Instant::now());
                    let (location, cause) = (root.clone(), Box::new(cause));
                    return Err(SyncError::ChangesOfThen { at: as_of, location, cause });
                }
            }
        }
        Ok(())
    }

    /// All that `root` says between what is `known` and `as_of`, and where it leaves a gap the archives too. A gap that they do not close
    /// stays marked.
    async fn read_by_then(
        &mut self,
        set: &FollowedSet,
        root: &DocumentLocation,
        known: &ChangeState,
        as_of: Timestamp,
    ) -> Result<ReadChanges, SyncError> {
        let mut read = match self.read_root(set, root, known, &Scope::Everything, Some(as_of)).await {
            // The archives may have all of it.
            Err(cause) if cause.is_gone() => ReadChanges::gone(set.id, root, known, self.catalog.notes()),
            read => read?,
        };
        let is_silent = read.is_beyond && read.documents.is_empty() && read.unread.is_empty();
        read.is_torn = !read.is_whole || is_silent;
        if !read.goes_on(known) {
            let earlier = self.read_archives(set, &mut read, known, Some(as_of)).await?;
            let documents = earlier.iter().chain(&read.documents).map(|it| &it.state);
            read.is_torn = !known.is_followed_by(documents, Some(as_of));
            read.documents.extend(earlier);
        }
        read.documents.iter_mut().for_each(|it| it.ends = Some(as_of));
        read.lost.clear();
        Ok(read)
    }

    /// The last lists or dumps of `set` by the time searched for; `None` if there are none.
    async fn set_by_then(
        &mut self,
        set: FollowedSet,
        search: &mut Search,
    ) -> Result<Option<(FollowedSet, PastLists)>, SyncError> {
        let lists = self.last_lists(&set.lists, &set.archived_lists, search).await?;
        let dumps = self.last_lists(&set.dumps, &set.archived_dumps, search).await?;
        let dump_roots = dumps.as_ref().map(|dumps| dumps.roots.clone()).unwrap_or_default();
        let (list_roots, last) = match (lists, dumps) {
            (Some(lists), Some(dumps)) if lists.at < dumps.at => (Vec::new(), dumps),
            (Some(lists), _) => (lists.roots.clone(), lists),
            (None, Some(dumps)) => (Vec::new(), dumps),
            (None, None) => {
                tracing::warn!(set = %set.name, at = %search.as_of, "a set has no list of that time and is ignored");
                return Ok(None);
            }
        };
        Ok(Some((FollowedSet { lists: list_roots, dumps: dump_roots, ..set }, last)))
    }

    /// The last lists by the time searched for: the `current` documents together, else one document that `archives` list.
    async fn last_lists(
        &mut self,
        current: &[DocumentLocation],
        archives: &[DocumentLocation],
        search: &mut Search,
    ) -> Result<Option<PastLists>, SyncError> {
        let mut walks = Vec::with_capacity(current.len());
        for root in current {
            walks.push(self.walk_by_then(root, search.as_of).await?);
        }
        let times = walks.iter().map(|walked| own_time(walked).or_else(|| last_modified([walked])));
        let at = times.collect::<Option<Vec<_>>>().and_then(|times| times.into_iter().max());
        if let Some(at) = at.filter(|at| search.admits(*at)) {
            return Ok(Some(PastLists { at, roots: current.to_vec(), walks }));
        }
        let mut archived = Vec::new();
        for archive in archives {
            archived.extend(self.archived(archive).await?);
        }
        archived.sort_by_key(|entry| std::cmp::Reverse(entry.at));
        // Entries without a time are last: only their documents can state one.
        let mut last: Option<PastLists> = None;
        for entry in archived {
            let newest = last.as_ref().map(|last| last.at);
            if entry.at.is_some_and(|at| !search.admits(at) || newest >= Some(at)) {
                continue;
            }
            let root = DocumentLocation::Uri(entry.loc.clone());
            match self.walk_by_then(&root, search.as_of).await {
                Ok(walked) => {
                    let at = own_time(&walked).or(entry.at);
                    if let Some(at) = at.filter(|at| search.admits(*at) && newest < Some(*at)) {
                        last = Some(PastLists { at, roots: vec![root], walks: vec![walked] });
                    }
                }
                Err(cause)
                    if cause.is_gone()
                        || matches!(cause, SourceError::Document { .. } | SourceError::Structure { .. }) =>
                {
                    tracing::warn!("an archived document is ignored: {}", chain(&cause));
                }
                Err(cause) => return Err(cause.into()),
            }
        }
        Ok(last)
    }

    /// The entries of an archive.
    async fn archived(&mut self, archive: &DocumentLocation) -> Result<Vec<Entry>, SyncError> {
        let listed = Mutex::new(Vec::new());
        let choice = |header: &Header, entry: &Entry| {
            // An index of archives says nothing of its parts.
            if header.root == Root::SitemapIndex && entry.at.is_none() && entry.capability.is_none() {
                return Child::Ask;
            }
            listed.lock().unwrap_or_else(PoisonError::into_inner).push(entry.clone());
            Child::Leave
        };
        let walked = self.fetch.walk(&self.current.progress, archive, Asking { choice: &choice, ..EVERYTHING }).await?;
        let mut listed = listed.into_inner().unwrap_or_else(PoisonError::into_inner);
        listed.extend(walked.leaves.into_iter().filter_map(|leaf| leaf.listed).map(|entry| *entry));
        Ok(listed)
    }

    /// Fetches lists, but no part of them that is too late.
    async fn walk_by_then(&mut self, root: &DocumentLocation, as_of: Timestamp) -> Result<Crawled, SourceError> {
        let choice = |header: &Header, _: &Entry| if header.at > Some(as_of) { Child::Leave } else { Child::Ask };
        self.fetch.walk(&self.current.progress, root, Asking { choice: &choice, ..EVERYTHING }).await
    }
}

/// The time that a document states; of an index without one the latest of its parts.
fn own_time(walked: &Crawled) -> Option<Timestamp> {
    let of_leaf = |leaf: &Leaf| leaf.header.at.or(leaf.listed.as_ref().and_then(|entry| entry.at));
    let of_index = walked.index_headers.first().and_then(|header| header.at);
    of_index.or_else(|| walked.leaves.iter().filter_map(of_leaf).max())
}

/// True if all changes of `set` up to `as_of` were read: no later document can add one.
fn is_complete(set: &FollowedSet, changes: &[ReadChanges], as_of: Timestamp) -> bool {
    set.changes.iter().all(|root| {
        let mut read = changes.iter().filter(|it| it.set == set.id && it.root == *root);
        read.any(|it| {
            !it.is_torn && (it.is_beyond || it.documents.iter().any(|document| document.reaches_beyond(as_of)))
        })
    })
}
