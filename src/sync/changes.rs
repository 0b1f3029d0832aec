//! Incremental synchronization: what the change documents of the sets say that is new.

use super::deviations::SeenDeviations;
use super::followed::{FollowedSet, Purpose, followed};
use super::incremental::{
    Absent, Asked, ChangeDocument, Known, MOST_ASKED, NewChange, Room, Seen, resource_digest, some,
};
use super::position::Position;
use super::read_changes::{KnownRoots, Origin, ReadChanges};
use super::sorted::{SortedChanges, sort};
use super::{Outcome, Progressing, Scope, Step, SyncError, Synchronizer, Unheard};
use crate::catalog::SetId;
use crate::document::{Capability, DocumentError, Entry, Header, Limits, Timestamp, Uri};
use crate::platform::error_chain::chain;
use crate::source::crawl::{Asking, Child, EVERYTHING, Leaf, crawl};
use crate::source::documents::DocumentCache;
use crate::source::http::{Client, Request};
use crate::source::{DocumentLocation, Missing};
use futures_util::{FutureExt, StreamExt, stream};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Resources asked at once whether they are gone.
const ASKED_AT_ONCE: usize = 8;

/// How long a resource has to say whether it is gone.
const ANSWER_DUE: Duration = Duration::from_secs(30);

/// How long all resources of one look have: whoever asks for a refresh waits meanwhile.
const ALL_DUE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 30 });

/// What one look may still ask.
struct Leave {
    resources: usize,
    until: Instant,
}

/// What resources have told that were asked whether they are gone.
#[derive(Debug, Default)]
struct Answers {
    gone: HashSet<Uri>,
    /// Digests of those that have told nothing, or were not asked.
    unanswered: HashSet<u64>,
}

/// What was left out of an index.
#[derive(Debug, Default)]
struct Left {
    locations: Vec<String>,
    /// The one that ended last.
    newest: Option<Entry>,
}

impl Left {
    fn note(&mut self, entry: &Entry) {
        let end = |entry: &Entry| entry.until.or(entry.lastmod);
        if self.newest.as_ref().is_none_or(|newest| end(newest) <= end(entry)) {
            self.newest = Some(entry.clone());
        }
        self.locations.push(entry.loc.as_str().to_owned());
    }
}

/// The changes that a commit applies, and how far they are known then.
#[derive(Debug, Default)]
pub struct News {
    /// Of each resource of each set the last, in ascending order of time.
    pub changes: Vec<(SetId, NewChange)>,
    /// Where they are too many to be held: all of them, and none above.
    pub sorted: Option<SortedChanges>,
    /// For each root that was read.
    pub known: KnownRoots,
    /// See [`ReadChanges::digests`].
    pub digests: Vec<(DocumentLocation, u64)>,
}

impl Synchronizer {
    /// Follows the changes of a tree whose lists, read a moment ago, are of no use.
    pub(super) async fn advance_without_lists(
        &mut self,
        scope: &Scope,
        progress: &Progressing,
    ) -> Result<Option<Outcome>, SyncError> {
        (self.lacks_packages, self.is_stale) = (true, true);
        let Some(mut position) = self.position()? else { return Ok(Some(Outcome::Unchanged)) };
        let source = self.source(true).await?.0;
        let sets = followed(&source, &mut Position::numbers(Some(&position)));
        position.follow(&sets);
        // What was due has just been asked for, so it is due no more.
        let scope = if *scope == Scope::Due { &Scope::Everything } else { scope };
        let changes = self.read_changes(&sets, &position, scope, progress).await?;
        let step = Step { source, sets, is_first_tree: false, anew: false, position };
        self.advance(step, changes, progress).await
    }

    /// Fetches the change documents of `sets` that `scope` asks for. One that cannot be had or read is left for later: it
    /// never keeps another from being read. Why the first of these failed is in `unfollowed`.
    pub(super) async fn read_changes(
        &mut self,
        sets: &[FollowedSet],
        position: &Position,
        scope: &Scope,
        progress: &Progressing,
    ) -> Result<Vec<ReadChanges>, SyncError> {
        let mut read = Vec::new();
        self.room = Room::default();
        self.unfollowed = None;
        self.unheard.clear();
        for set in sets {
            let (purpose, roots) = set.incremental();
            for root in roots {
                if !scope.wants(root, &self.schedule) {
                    continue;
                }
                let known = position.known(set.id, root);
                let it = match purpose {
                    Purpose::ChangeDump => self.read_change_dump(set.id, root, &known, scope, progress).await,
                    _ => self.read_root(set.id, (root, roots), &known, scope, progress).await,
                };
                match it {
                    Ok(mut it) => {
                        self.close_gap(set, &mut it, &known, progress).await?;
                        read.push(it);
                    }
                    Err(cause) if cause.is_gone() => {
                        tracing::warn!("changes cannot be followed any more: {}", chain(&cause));
                        self.unheard.push(Unheard { root: root.clone(), why: chain(&cause) });
                        read.extend(ReadChanges::gone(set.id, root, &known));
                        self.is_stale = true;
                    }
                    // What never was a list is none that fails: the schedule asks again, and status names it.
                    Err(SyncError::Source(cause)) if cause.is_no_list() && known.locations().next().is_none() => {
                        tracing::warn!("changes are not followed: {}", chain(&cause));
                        self.unheard.push(Unheard { root: root.clone(), why: chain(&cause) });
                    }
                    Err(
                        cause @ (SyncError::Source(_)
                        | SyncError::Document { .. }
                        | SyncError::Package(_)
                        | SyncError::Worker(_)),
                    ) => {
                        tracing::warn!("changes cannot be followed for now: {}", chain(&cause));
                        self.unheard.push(Unheard { root: root.clone(), why: chain(&cause) });
                        self.schedule.failed(root, chain(&cause), super::schedule::jitter(), Instant::now());
                        self.lacks_packages |= matches!(purpose, Purpose::ChangeDump);
                        self.unfollowed.get_or_insert(cause);
                    }
                    Err(cause) => return Err(cause),
                }
            }
        }
        Ok(read)
    }

    /// Notes that something below `root` cannot be had or read, where `why` says so; so it was `before` times in a row.
    pub(super) fn note_failed(&mut self, root: &DocumentLocation, why: Option<String>, before: u32) {
        if let Some(why) = why {
            tracing::warn!("some changes cannot be followed for now: {why}");
            self.unheard.push(Unheard { root: root.clone(), why: why.clone() });
            self.schedule.failed_in_part(root, (why, before), super::schedule::jitter(), Instant::now());
        }
    }

    /// Reads `root`, one of the `roots` of its set, or an archive of theirs.
    pub(super) async fn read_root(
        &mut self,
        set: SetId,
        (root, roots): (&DocumentLocation, &[DocumentLocation]),
        known: &Known,
        scope: &Scope,
        progress: &Progressing,
    ) -> Result<ReadChanges, SyncError> {
        let left = Mutex::new(Left::default());
        let is_beyond = AtomicBool::new(false);
        let (wanted, asked) = (known.wanted(), Mutex::new(Vec::new()));
        let choice = |_: &Header, entry: &Entry| {
            if wanted.contains(entry) || matches!(scope, Scope::Announced(_)) && scope.names(&entry.loc) {
                asked.lock().unwrap_or_else(PoisonError::into_inner).push(Asked::from(entry));
                return Child::Ask;
            }
            if known.is_beyond(entry.from) {
                is_beyond.store(true, Ordering::Relaxed);
                return Child::Leave;
            }
            left.lock().unwrap_or_else(PoisonError::into_inner).note(entry);
            Child::Leave
        };
        // The schedule asks again: nobody who waits for this synchronizer waits for a server that fails. But the tree of an
        // earlier time is whole or not at all.
        let needs_all = known.is_of_the_past();
        let is_patient = needs_all && self.catalog.revision()?.is_none();
        let past_caches = scope.is_past_caches();
        let asking = Asking { choice: &choice, tolerates_failure: !needs_all, past_caches, is_patient, ..EVERYTHING };
        let failures = self.schedule.failures(root);
        let walked = self.walk(root, asking, progress).await?;
        let is_incomplete = !walked.missing.is_empty();
        let (mut leaves, mut failed) = (walked.leaves, walked.failed);
        let locations = |missing: Vec<Missing>| missing.into_iter().map(|it| it.location.to_string());
        let mut gone: HashSet<String> = locations(walked.missing).collect();
        // A closed list leads on by its index (section 12.1).
        let closed = leaves.iter().find(|leaf| walked.indexes.is_empty() && leaf.header.until.is_some());
        let index = closed.and_then(|leaf| leaf.header.link("index")).map(|index| DocumentLocation::Uri(index.clone()));
        if let Some(index) = index.filter(|index| !roots.contains(index)) {
            match crawl(&self.client, &self.spool, &index, self.config.limits, asking, &|_| ()).await {
                Ok(beside) => {
                    let is_new = |leaf: &Leaf| leaf.document.location != *root;
                    leaves.extend(beside.leaves.into_iter().filter(is_new));
                    failed.extend(beside.failed);
                    gone.extend(locations(beside.missing));
                }
                Err(cause) if needs_all && !cause.is_gone() => return Err(cause.into()),
                Err(cause) => tracing::warn!("a closed list leads to an index that cannot be read: {}", chain(&cause)),
            }
        }
        let left = std::mem::take(&mut *left.lock().unwrap_or_else(PoisonError::into_inner));
        let Left { locations: mut unread, newest } = left;
        if let Some(newest) = newest.filter(|_| leaves.is_empty()) {
            // Nothing was read yet, and all that is listed ended before: the newest tells what comes next.
            let child = DocumentLocation::Uri(newest.loc.clone());
            match crawl(&self.client, &self.spool, &child, self.config.limits, asking, &|_| ()).await {
                Ok(below) => {
                    unread.retain(|location| location != newest.loc.as_str());
                    let listed = |leaf| Leaf { listed: Some(Box::new(newest.clone())), ..leaf };
                    leaves.extend(below.leaves.into_iter().map(listed));
                }
                Err(cause) if needs_all && !cause.is_gone() => return Err(cause.into()),
                Err(cause) => tracing::warn!("the newest list of an index cannot be read: {}", chain(&cause)),
            }
        }
        let mut read = ReadChanges { unread, is_beyond: is_beyond.into_inner(), ..ReadChanges::new(set, root) };
        read.is_torn = needs_all && is_incomplete;
        let headers = walked.index_headers.iter().chain(leaves.iter().map(|leaf| &leaf.header));
        // What the list before told at its end stands in the index of all, where the one read is the next (section 12.1).
        let earlier = headers.flat_map(|it| [it.link("archives"), it.link("index")]).flatten();
        read.archives = earlier.cloned().map(DocumentLocation::Uri).collect();
        let has_stopped = |leaf: &Leaf| {
            let is_same = self.applied.get(&leaf.document.location) == Some(&leaf.document.digest);
            leaf.header.until.is_some() && is_same
        };
        if walked.indexes.is_empty() && leaves.iter().any(has_stopped) {
            // The Capability List names the next. A list that ends anew at each request goes on itself.
            self.is_stale = true;
        }
        let (seen, shared) = (known.seen(), Arc::new(known.clone()));
        for leaf in leaves.into_iter().filter(lists_changes) {
            let location = &leaf.document.location;
            read.digests.push((location.clone(), leaf.document.digest));
            let is_same = self.applied.get(location) == Some(&leaf.document.digest);
            if is_same && wanted.knows(&location.to_string()) {
                read.unread.push(location.to_string());
                continue;
            }
            read.origins.insert(location.to_string(), Origin::List(leaf.document.clone()));
            let goes_on = is_same && wanted.has_read(&location.to_string());
            let is_child = location != root;
            let (spool, limits) = (self.spool.clone(), self.config.limits);
            let (known, seen, room) = (shared.clone(), seen.clone(), self.room.clone());
            let broken = self.deviations.clone();
            let read_on = move || read_document(&spool, leaf, limits, (&known, &seen, &room), &broken);
            match tokio::task::spawn_blocking(read_on).await? {
                Ok(document) => read.documents.push(if goes_on { document.unchanged() } else { document }),
                Err(SyncError::Document { location, cause }) if is_child && !needs_all => {
                    read.digests.pop();
                    let why = chain(&SyncError::Document { location: location.clone(), cause });
                    failed.push(Missing { location, entries: 0, why });
                }
                Err(cause) => return Err(cause),
            }
        }
        let absent = Absent { gone, failed: failed.iter().map(|it| it.location.to_string()).collect() };
        let asked = std::mem::take(&mut *asked.lock().unwrap_or_else(PoisonError::into_inner));
        read.lost = known.lost_beside(&root.to_string(), &asked, &absent, Timestamp::now());
        self.note_failed(root, failed.into_iter().next().map(|it| it.why), failures);
        Ok(read)
    }

    /// What is new in `read`, beside what `known` says of each root: of the deletions that nothing dates those that are so, by
    /// the word of their resources.
    pub(super) async fn news(
        &self,
        read: Vec<ReadChanges>,
        known: &(dyn Fn(SetId, &DocumentLocation) -> Known + Sync),
        now: Timestamp,
    ) -> Result<News, SyncError> {
        if read.iter().all(ReadChanges::is_held) {
            let mut news = News::of(read, known, now);
            let asked = news.changes.iter().filter(|(_, change)| change.is_doubtful);
            let asked = asked.map(|(_, change)| change.entry.loc.clone()).collect();
            let Answers { gone, unanswered } = self.gone(asked, &mut Leave::of_a_look()).await;
            news.changes.retain(|(_, change)| !change.is_doubtful || gone.contains(&change.entry.loc));
            news.answered(&unanswered);
            return Ok(news);
        }
        let mut read: Vec<_> = read.into_iter().map(|it| (known(it.set, &it.root), it)).collect();
        let digests = read.iter_mut().flat_map(|(_, it)| std::mem::take(&mut it.digests)).collect();
        let (catalog, spool, limits) = (self.catalog.clone(), self.spool.clone(), self.config.limits);
        let sorting = tokio::task::spawn_blocking(move || sort(read, &catalog, &spool, limits, now));
        let (sorted, known) = sorting.await??;
        let (sorted, unanswered) = self.settle_sorted(sorted).await?;
        let mut news = News { sorted: Some(sorted), known, digests, ..News::default() };
        news.answered(&unanswered);
        Ok(news)
    }

    /// Asks the resources of all deletions that nothing dates, some at a time; those that have not answered.
    async fn settle_sorted(&self, mut sorted: SortedChanges) -> Result<(SortedChanges, HashSet<u64>), SyncError> {
        let (mut leave, mut unanswered) = (Leave::of_a_look(), HashSet::new());
        let mut is_at_end = !sorted.last.has_doubts();
        while !is_at_end {
            let looking = tokio::task::spawn_blocking(move || sorted.doubtful().map(|asked| (sorted, asked)));
            let (rest, asked) = looking.await??;
            sorted = rest;
            is_at_end = asked.is_empty();
            let answers = self.gone(asked, &mut leave).await;
            unanswered.extend(answers.unanswered);
            for uri in answers.gone {
                let scratch = |octets| self.spool.scratch(octets);
                sorted.gone.add(uri.as_str(), &scratch).map_err(SyncError::Scratch)?;
            }
        }
        Ok((sorted, unanswered))
    }

    /// Asks resources whether they are gone, no more than `leave` allows.
    async fn gone(&self, asked: Vec<Uri>, leave: &mut Leave) -> Answers {
        let mut answers = Answers::default();
        answers.unanswered.extend(asked.iter().map(resource_digest));
        let asked = some(asked, leave.resources, Uri::clone);
        leave.resources -= asked.len();
        let ask = |uri: Uri| {
            let client = self.client.clone();
            async move { (is_gone(&client, &uri).await, uri) }.boxed()
        };
        let asked = stream::iter(asked.into_iter().map(ask).collect::<Vec<_>>()).buffer_unordered(ASKED_AT_ONCE);
        let mut told = std::pin::pin!(asked.take_until(tokio::time::sleep_until(leave.until)));
        while let Some((is_gone, uri)) = told.next().await {
            let Some(is_gone) = is_gone else { continue };
            answers.unanswered.remove(&resource_digest(&uri));
            if is_gone {
                answers.gone.insert(uri);
            }
        }
        answers
    }
}

impl Leave {
    fn of_a_look() -> Leave {
        Leave { resources: MOST_ASKED, until: Instant::now() + ALL_DUE }
    }
}

/// Whether a resource says itself that it is gone: 404 or 410. Any other answer is none of a deletion; `None` where it may
/// answer later.
async fn is_gone(client: &Client, uri: &Uri) -> Option<bool> {
    let mut request = Request::head(uri.clone(), ANSWER_DUE);
    request.no_cache = true;
    match client.send(request).await {
        Err(cause) if cause.is_retryable() => None,
        answer => Some(answer.is_err_and(|cause| cause.is_gone())),
    }
}

impl News {
    /// Of the resources that were asked whether they are gone these have not answered. They are asked once more.
    fn answered(&mut self, unanswered: &HashSet<u64>) {
        self.known.iter_mut().for_each(|(_, _, known)| known.answered(unanswered));
        let open: usize = self.known.iter().map(|(_, _, known)| known.doubts()).sum();
        if open > 0 {
            tracing::warn!(
                deletions = open,
                "deletions that nothing dates are not applied: their resources have not told yet whether they are gone, \
                 and are asked again"
            );
        }
    }

    /// Calls `visit` for each change.
    pub fn each(&mut self, visit: &mut dyn FnMut(SetId, &NewChange) -> Result<(), SyncError>) -> Result<(), SyncError> {
        self.changes.iter().try_for_each(|(set, new)| visit(*set, new))?;
        self.sorted.as_mut().map_or(Ok(()), |sorted| sorted.each(visit))
    }

    /// What is new in `read`, all of it [held](ReadChanges::is_held), beside what `known` says of each root.
    fn of(read: Vec<ReadChanges>, known: &dyn Fn(SetId, &DocumentLocation) -> Known, now: Timestamp) -> News {
        let mut news = News::default();
        let mut last: HashMap<(SetId, Uri), usize> = HashMap::new();
        let mut changes: Vec<(SetId, NewChange)> = Vec::new();
        for ReadChanges { set, root, documents, unread, digests, lost, .. } in read {
            let found = known(set, &root).read(documents, &unread, now);
            news.known.push((set, root, found.known.lacking(lost)));
            news.digests.extend(digests);
            for change in found.changes {
                match last.get(&(set, change.entry.loc.clone())) {
                    Some(place) if changes[*place].1.time > change.time => {}
                    Some(place) => changes[*place].1 = change,
                    None => {
                        last.insert((set, change.entry.loc.clone()), changes.len());
                        changes.push((set, change));
                    }
                }
            }
        }
        changes.sort_by_key(|(_, change)| change.time);
        news.changes = changes;
        news
    }
}

/// Whether the entries of a leaf are changes.
fn lists_changes(leaf: &Leaf) -> bool {
    let is_list = matches!(leaf.capability, None | Some(Capability::ChangeList | Capability::Other(_)));
    if is_list && leaf.has_packages {
        let location = &leaf.document.location;
        tracing::warn!(%location, "a Change List lists packages and no changes, as a Change Dump does: it is passed over");
    }
    is_list && !leaf.has_packages
}

/// Reads a Change List to its end; what is known of it is passed over.
fn read_document(
    spool: &DocumentCache,
    leaf: Leaf,
    limits: Limits,
    (known, seen, room): (&Known, &Arc<Seen>, &Room),
    broken: &SeenDeviations,
) -> Result<ChangeDocument, SyncError> {
    let Leaf { document, header, listed, .. } = leaf;
    let failed = |cause| {
        // Kept, the broken document would be confirmed by a 304 at every later poll.
        if let Err(unforgotten) = spool.forget(&document.location) {
            tracing::warn!("{unforgotten}");
        }
        SyncError::Document { location: document.location.clone(), cause }
    };
    let mut reader = spool.reader(&document, limits)?;
    if reader.header().root.is_feed_or_text() {
        return Err(failed(DocumentError::FEED_OR_TEXT));
    }
    let (location, now) = (document.location.to_string(), Timestamp::now());
    let reading = known.reading(seen, location, header, listed, document.modified, now);
    let mut reading = reading.within(room);
    while let Some(entry) = reader.next_entry().map_err(failed)? {
        reading.see(entry, None);
    }
    broken.note(&document.location, reader.deviations());
    Ok(reading.end(reader.header().clone()))
}
