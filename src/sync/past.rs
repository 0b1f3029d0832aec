//! The Source as it was (`at=`): of each set the last statement of what existed up to then, archived or not, brought forward
//! by the changes up to that moment (section 15).
//!
//! It is shown whole or not at all: as long as a change document cannot be had there is no first tree, and a tree that is shown
//! stays. What is gone for good is told as a gap, and as the time that the tree speaks for.
//!
//! There is one baseline of it. It is made again only as long as something may still be told of that time: while it lies in the
//! future, and until the change documents tell of what came after it.

use super::followed::{FollowedSet, Purpose, followed};
use super::incremental::Known;
use super::position::Position;
use super::read_changes::ReadChanges;
use super::read_set::ReadSet;
use super::schedule::jitter;
use super::{Outcome, Progressing, Scope, Stage, Step, SyncError, Synchronizer, no_resource_list};
use crate::document::{Entry, Header, Root, Timestamp};
use crate::platform::error_chain::chain;
use crate::source::crawl::{Asking, Child, Crawled, EVERYTHING, Leaf};
use crate::source::{DocumentLocation, SourceError};
use std::sync::{Mutex, PoisonError};
use tokio::time::Instant;

/// A statement of what existed at a time.
struct Found {
    at: Timestamp,
    roots: Vec<DocumentLocation>,
    walks: Vec<Crawled>,
}

/// What is looked for, and the earliest time that was met meanwhile.
struct Search {
    as_of: Timestamp,
    earliest: Option<Timestamp>,
}

impl Search {
    /// Whether a statement that speaks for `at` is old enough.
    fn admits(&mut self, at: Timestamp) -> bool {
        self.earliest = Some(self.earliest.map_or(at, |earliest| earliest.min(at)));
        at <= self.as_of
    }
}

impl Synchronizer {
    /// Brings the catalog to the state of the Source at `as_of`.
    pub(super) async fn look_back(&mut self, as_of: Timestamp, progress: &Progressing) -> Result<Outcome, SyncError> {
        let stored = self.position()?;
        let is_first_tree = self.catalog.revision()?.is_none();
        let shown = stored.as_ref().filter(|_| !is_first_tree && !self.catalog.is_distrusted());
        if shown.is_some_and(|position| position.is_final) {
            return Ok(Outcome::Unchanged);
        }
        let began = Timestamp::now();
        progress(Stage::Discovering);
        let (source, failed) = self.source(false).await?;
        if let Some(cause) = failed {
            return Err(cause.into());
        }
        let offered = followed(&source, &mut Position::numbers(stored.as_ref()));
        if !offered.iter().any(FollowedSet::offers_what_exists) {
            return Err(no_resource_list(&source, &self.config.entry));
        }
        self.schedule.follow(offered.iter().flat_map(FollowedSet::documents), Instant::now());
        let mut position = stored.clone().unwrap_or_else(|| Position::of_sets(&offered));
        position.follow(&offered);

        let mut search = Search { as_of, earliest: None };
        let (mut sets, mut read) = (Vec::with_capacity(offered.len()), Vec::with_capacity(offered.len()));
        for set in offered {
            let Some((set, found)) = self.set_of_then(set, &mut search, progress).await? else { continue };
            for root in set.incremental().1 {
                position.note(set.id, root, Known::since(Some(found.at)).up_to(as_of));
            }
            read.push(ReadSet::of(set.id, found.walks));
            sets.push(set);
        }
        if sets.is_empty() {
            let earliest = search.earliest.map_or_else(
                || "none of its lists says of which time it is".to_owned(),
                |earliest| format!("the earliest time that it tells of is {earliest}"),
            );
            return Err(SyncError::NothingThatOld { at: as_of, earliest });
        }
        let changes = self.changes_of_then(&sets, &position, as_of, progress).await?;
        position.is_final = as_of < began && sets.iter().all(|set| is_told_to_the_end(set, &changes, as_of));
        let is_same = shown
            .is_some_and(|shown| shown.is_final == position.is_final && read.iter().all(|it| shown.is_made_of(it)));
        let digests = || changes.iter().flat_map(|it| &it.digests);
        if is_same && digests().all(|(location, digest)| self.applied.get(location) == Some(digest)) {
            return Ok(Outcome::Unchanged);
        }
        let step = Step { source, sets, is_first_tree, anew: true, position };
        let outcome = self.rebase(step, read, changes, progress).await?;
        Ok(outcome.unwrap_or(Outcome::Unchanged))
    }

    /// Reads all that the change documents of `sets` tell up to `as_of`. Without it the lists would be shown, which are older
    /// than what was asked for: a document that cannot be had for now fails the whole. One that is gone for good
    /// (404, 410) will never tell: the tree is what is told, and its time says how far that goes.
    async fn changes_of_then(
        &mut self,
        sets: &[FollowedSet],
        position: &Position,
        as_of: Timestamp,
        progress: &Progressing,
    ) -> Result<Vec<ReadChanges>, SyncError> {
        let mut read = Vec::new();
        for set in sets {
            let (purpose, roots) = set.incremental();
            for root in roots {
                let known = position.known(set.id, root);
                match self.changes_below(set, (purpose, root, roots), &known, progress).await {
                    Ok(changes) => read.push(changes),
                    Err(cause @ (SyncError::Catalog(_) | SyncError::Worker(_) | SyncError::NoThread(_))) => {
                        return Err(cause);
                    }
                    Err(cause) => {
                        self.schedule.failed(root, chain(&cause), jitter(), Instant::now());
                        let (location, cause) = (root.clone(), Box::new(cause));
                        return Err(SyncError::ChangesOfThen { at: as_of, location, cause });
                    }
                }
            }
        }
        Ok(read)
    }

    /// Reads one of the change documents of `set`, with what its archives tell where it begins too late or is gone.
    async fn changes_below(
        &mut self,
        set: &FollowedSet,
        (purpose, root, roots): (Purpose, &DocumentLocation, &[DocumentLocation]),
        known: &Known,
        progress: &Progressing,
    ) -> Result<ReadChanges, SyncError> {
        let read = match purpose {
            Purpose::ChangeDump => self.read_change_dump(set.id, root, known, &Scope::Everything, progress).await,
            _ => self.read_root(set.id, (root, roots), known, &Scope::Everything, progress).await,
        };
        let mut read = match read {
            Err(cause) if cause.is_gone() => {
                tracing::warn!("changes are not told any more: {}", chain(&cause));
                self.is_stale = true;
                ReadChanges { is_torn: true, ..ReadChanges::new(set.id, root) }
            }
            read => read?,
        };
        self.close_gap(set, &mut read, known, progress).await?;
        Ok(read)
    }

    /// The documents of `set` as of the time looked for; `None` where it tells nothing of that time.
    async fn set_of_then(
        &mut self,
        set: FollowedSet,
        search: &mut Search,
        progress: &Progressing,
    ) -> Result<Option<(FollowedSet, Found)>, SyncError> {
        let lists = self.last_before((&set.lists, &set.archives.lists), search, progress).await?;
        let dumps = match self.packages {
            Some(_) => self.last_before((&set.dumps, &set.archives.dumps), search, progress).await?,
            None => None,
        };
        let dump_roots = dumps.as_ref().map(|found| found.roots.clone()).unwrap_or_default();
        Ok(match (lists, dumps) {
            (Some(lists), Some(dumps)) if lists.at < dumps.at => {
                Some((FollowedSet { lists: Vec::new(), dumps: dump_roots, ..set }, dumps))
            }
            (None, Some(dumps)) => Some((FollowedSet { lists: Vec::new(), dumps: dump_roots, ..set }, dumps)),
            (Some(lists), _) => Some((FollowedSet { lists: lists.roots.clone(), dumps: dump_roots, ..set }, lists)),
            (None, None) => {
                tracing::warn!(set = %set.name, at = %search.as_of, "the set tells nothing of that time and is left out");
                None
            }
        })
    }

    /// The last statement before the time looked for: by the current documents, all together, else by one that `archives` list.
    async fn last_before(
        &mut self,
        (current, archives): (&[DocumentLocation], &[DocumentLocation]),
        search: &mut Search,
        progress: &Progressing,
    ) -> Result<Option<Found>, SyncError> {
        let mut walks = Vec::with_capacity(current.len());
        for root in current {
            walks.push(self.walk_then(root, search.as_of, progress).await?);
        }
        let times = walks.iter().map(|walked| own_time(walked).or_else(|| modified(walked)));
        let at = times.collect::<Option<Vec<_>>>().and_then(|times| times.into_iter().max());
        if let Some(at) = at.filter(|at| search.admits(*at)) {
            return Ok(Some(Found { at, roots: current.to_vec(), walks }));
        }
        let mut last: Option<Found> = None;
        for archive in archives {
            for entry in self.archived(archive, progress).await? {
                let is_later = |at: &Timestamp| last.as_ref().is_none_or(|last| last.at < *at);
                if entry.at.is_some_and(|at| !search.admits(at) || !is_later(&at)) {
                    continue;
                }
                let root = DocumentLocation::Uri(entry.loc.clone());
                let walked = match self.walk_then(&root, search.as_of, progress).await {
                    Ok(walked) => walked,
                    Err(cause) if is_lost(&cause) => {
                        tracing::warn!("what the archive lists is left: {}", chain(&cause));
                        continue;
                    }
                    Err(cause) => return Err(cause.into()),
                };
                let Some(at) = own_time(&walked).or(entry.at) else { continue };
                if search.admits(at) && is_later(&at) {
                    last = Some(Found { at, roots: vec![root], walks: vec![speaking_for(walked, entry, at)] });
                }
            }
        }
        Ok(last)
    }

    /// What an archive lists, latest first; what bears no time comes last, since only it itself can tell.
    async fn archived(&mut self, archive: &DocumentLocation, progress: &Progressing) -> Result<Vec<Entry>, SyncError> {
        let listed = Mutex::new(Vec::new());
        let choice = |header: &Header, entry: &Entry| {
            // An index of archives says nothing of its parts.
            if header.root == Root::SitemapIndex && entry.at.is_none() && entry.capability.is_none() {
                return Child::Ask;
            }
            listed.lock().unwrap_or_else(PoisonError::into_inner).push(entry.clone());
            Child::Leave
        };
        let asking = Asking { choice: &choice, ..EVERYTHING };
        let walked = self.walk(archive, asking, progress).await?;
        let mut listed = listed.into_inner().unwrap_or_else(PoisonError::into_inner);
        listed.extend(walked.leaves.into_iter().filter_map(|leaf| leaf.listed).map(|entry| *entry));
        listed.sort_by_key(|entry| std::cmp::Reverse(entry.at));
        Ok(listed)
    }

    /// Fetches a statement of what existed, but no part of one that is too late.
    async fn walk_then(
        &mut self,
        root: &DocumentLocation,
        as_of: Timestamp,
        progress: &Progressing,
    ) -> Result<Crawled, SourceError> {
        let choice = |header: &Header, _: &Entry| if header.at > Some(as_of) { Child::Leave } else { Child::Ask };
        let asking = Asking { choice: &choice, ..EVERYTHING };
        self.walk(root, asking, progress).await
    }
}

/// The time that a document says it speaks for; of an index without one the latest of its parts.
fn own_time(walked: &Crawled) -> Option<Timestamp> {
    let of_leaf = |leaf: &Leaf| leaf.header.at.or(leaf.listed.as_ref().and_then(|entry| entry.at));
    let of_index = walked.index_headers.first().and_then(|header| header.at);
    of_index.or_else(|| walked.leaves.iter().filter_map(of_leaf).max())
}

fn modified(walked: &Crawled) -> Option<Timestamp> {
    walked.leaves.iter().filter_map(|leaf| leaf.document.modified).max()
}

/// An archived document may bear its time in the archive's entry alone: its parts that have none speak for `at`.
fn speaking_for(mut walked: Crawled, entry: Entry, at: Timestamp) -> Crawled {
    if own_time(&walked).is_none() {
        for leaf in &mut walked.leaves {
            leaf.listed.get_or_insert_with(|| Box::new(entry.clone())).at = Some(at);
        }
    }
    walked
}

/// Whether an archived document cannot be had or understood, now or ever.
fn is_lost(cause: &SourceError) -> bool {
    match cause {
        SourceError::Http { cause, .. } => cause.is_gone(),
        SourceError::Document { .. } | SourceError::Structure { .. } => true,
        _ => false,
    }
}

/// Whether nothing more will be told of what happened in `set` up to `as_of`.
fn is_told_to_the_end(set: &FollowedSet, changes: &[ReadChanges], as_of: Timestamp) -> bool {
    let roots = set.incremental().1;
    roots.iter().all(|root| {
        let mut read = changes.iter().filter(|it| it.set == set.id && it.root == *root);
        read.any(|it| !it.is_torn && (it.is_beyond || it.documents.iter().any(|document| document.tells_beyond(as_of))))
    })
}
