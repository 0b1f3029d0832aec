//! Incremental synchronization: what the change documents of the sets say that is new.

use super::new_changes::NewChanges;
use super::read_changes::{Origin, ReadChanges, read_document};
use crate::catalog::SetId;
use crate::document::{Capability, Entry, Header, Timestamp, Uri};
use crate::platform::error_chain::chain;
use crate::source::crawl::{Asking, Child, EVERYTHING, Leaf, crawl};
use crate::source::http::{Client, Request};
use crate::source::{DocumentLocation, Missing};
use crate::sync::changes::{Absent, Asked, ChangeDocument, ChangeState, DocumentHead, resource_digest, some};
use crate::sync::documents::{FollowedSet, Purpose, followed};
use crate::sync::state::Position;
use crate::sync::{Outcome, Progressing, Scope, Step, SyncError, Synchronizer, Unheard};
use futures_util::{FutureExt, StreamExt, stream};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Resources asked at once whether they are gone.
const ASKED_AT_ONCE: usize = 8;

/// How long a resource has to say whether it is gone.
const ANSWER_DUE: Duration = Duration::from_secs(30);

/// What resources have answered that were asked whether they are gone, by their digests.
#[derive(Debug, Default)]
struct Answers {
    gone: HashSet<u64>,
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

impl Synchronizer {
    /// Follows the changes of a tree whose lists, read a moment ago, are of no use.
    pub(in crate::sync) async fn advance_without_lists(
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
        let step = Step { source, sets, is_first_tree: false, decides_again: false, position };
        self.advance(step, changes, progress).await
    }

    /// Fetches the change documents of `sets` that `scope` asks for. One that fails or cannot be read is left for later: it
    /// never keeps another from being read. Why the first of these failed is in `unfollowed`.
    pub(in crate::sync) async fn read_changes(
        &mut self,
        sets: &[FollowedSet],
        position: &Position,
        scope: &Scope,
        progress: &Progressing,
    ) -> Result<Vec<ReadChanges>, SyncError> {
        let mut read = Vec::new();
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
                        tracing::warn!("changes can no longer be read: {}", chain(&cause));
                        self.unheard.push(Unheard { root: root.clone(), why: chain(&cause) });
                        read.extend(ReadChanges::gone(set.id, root, &known));
                        self.is_stale = true;
                    }
                    // What never was a list is none that fails: the schedule asks again, and status names it.
                    Err(SyncError::Source(cause)) if cause.is_no_list() && known.locations().next().is_none() => {
                        tracing::warn!("changes are not read: {}", chain(&cause));
                        self.unheard.push(Unheard { root: root.clone(), why: chain(&cause) });
                    }
                    Err(
                        cause @ (SyncError::Source(_)
                        | SyncError::Document { .. }
                        | SyncError::Package(_)
                        | SyncError::Worker(_)),
                    ) => {
                        tracing::warn!("changes cannot be read now: {}", chain(&cause));
                        self.unheard.push(Unheard { root: root.clone(), why: chain(&cause) });
                        self.schedule.failed(root, chain(&cause), crate::sync::scheduler::jitter(), Instant::now());
                        self.lacks_packages |= matches!(purpose, Purpose::ChangeDump);
                        self.unfollowed.get_or_insert(cause);
                    }
                    Err(cause) => return Err(cause),
                }
            }
        }
        Ok(read)
    }

    /// Notes that something below `root` fails or cannot be read, where `why` says so; so it was `before` times in a row.
    pub(in crate::sync) fn note_failed(&mut self, root: &DocumentLocation, why: Option<String>, before: u32) {
        if let Some(why) = why {
            tracing::warn!("some changes cannot be read now: {why}");
            self.unheard.push(Unheard { root: root.clone(), why: why.clone() });
            self.schedule.failed_in_part(root, (why, before), crate::sync::scheduler::jitter(), Instant::now());
        }
    }

    /// Reads `root`, one of the `roots` of its set, or an archive of theirs.
    pub(in crate::sync) async fn read_root(
        &mut self,
        set: SetId,
        (root, roots): (&DocumentLocation, &[DocumentLocation]),
        known: &ChangeState,
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
        // The schedule asks again: no requester of a refresh waits for a server that fails. But the tree of an
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
            // Fetched again, the root would be another document where its end is the time of the request.
            let others = |header: &Header, entry: &Entry| match DocumentLocation::Uri(entry.loc.clone()) == *root {
                true => Child::Leave,
                false => choice(header, entry),
            };
            let asking = Asking { choice: &others, ..asking };
            match crawl(&self.client, &self.spool, &index, self.config.limits, asking, &|_| ()).await {
                Ok(above) => {
                    let is_new = |leaf: &Leaf| leaf.document.location != *root;
                    leaves.extend(above.leaves.into_iter().filter(is_new));
                    failed.extend(above.failed);
                    gone.extend(locations(above.missing));
                }
                Err(cause) if needs_all && !cause.is_gone() => return Err(cause.into()),
                Err(cause) => tracing::warn!("a closed list leads to an index that cannot be read: {}", chain(&cause)),
            }
        }
        let left = std::mem::take(&mut *left.lock().unwrap_or_else(PoisonError::into_inner));
        let Left { locations: mut unread, newest } = left;
        if let Some(newest) = newest.filter(|_| leaves.is_empty()) {
            // Nothing was read yet, and all that is listed ended before: the newest says what comes next.
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
        // What the list before said at its end stands in the index of all, where the one read is the next (section 12.1).
        let earlier = headers.flat_map(|it| [it.link("archives"), it.link("index")]).flatten();
        read.archives = earlier.cloned().map(DocumentLocation::Uri).collect();
        let has_stopped = |leaf: &Leaf| {
            let is_same = self.applied.get(&leaf.document.location) == Some(&leaf.document.digest);
            leaf.header.until.is_some() && is_same
        };
        if walked.indexes.is_empty() && leaves.iter().any(has_stopped) {
            // The Capability List names the next. A list whose end moves at each request goes on itself.
            self.is_stale = true;
        }
        let state = Arc::new(known.clone());
        for leaf in leaves.into_iter().filter(lists_changes) {
            let Leaf { document, header, listed, .. } = leaf;
            let location = document.location.clone();
            read.digests.push((location.clone(), document.digest));
            let is_same = self.applied.get(&location) == Some(&document.digest);
            if is_same && wanted.knows(&location.to_string()) {
                read.unread.push(location.to_string());
                continue;
            }
            let goes_on = is_same && wanted.has_read(&location.to_string());
            let head = DocumentHead { location: location.to_string(), header, listed, modified: document.modified };
            match self.read_document(set, &state, head, Origin::List(document), goes_on, &mut read).await {
                Err(SyncError::Document { location, cause }) if location != *root && !needs_all => {
                    read.digests.pop();
                    let why = chain(&SyncError::Document { location: location.clone(), cause });
                    failed.push(Missing { location, entries: 0, why });
                }
                it => it?,
            }
        }
        let absent = Absent { gone, failed: failed.iter().map(|it| it.location.to_string()).collect() };
        let asked = std::mem::take(&mut *asked.lock().unwrap_or_else(PoisonError::into_inner));
        read.lost = known.lost_beside(&root.to_string(), &asked, &absent, Timestamp::now());
        self.note_failed(root, failed.into_iter().next().map(|it| it.why), failures);
        Ok(read)
    }

    /// Adds a change document to `read`.
    pub(in crate::sync) async fn read_document(
        &self,
        set: SetId,
        state: &Arc<ChangeState>,
        head: DocumentHead,
        origin: Origin,
        is_unchanged: bool,
        read: &mut ReadChanges,
    ) -> Result<(), SyncError> {
        let (catalog, spool, limits) = (self.catalog.clone(), self.spool.clone(), self.config.limits);
        let (state, deviations, source) = (state.clone(), self.deviations.clone(), origin.clone());
        let reading = move || read_document(&source, head, (set, &state), &catalog, (&spool, limits), &deviations);
        let document: ChangeDocument = tokio::task::spawn_blocking(reading).await??;
        read.origins.insert(document.location().to_owned(), origin);
        read.documents.push(if is_unchanged { document.unchanged() } else { document });
        Ok(())
    }

    /// What is new in `read`, by the `state` of each root: of undated deletions those that their resources confirm.
    pub(in crate::sync) async fn news(
        &self,
        read: Vec<ReadChanges>,
        state: &(dyn Fn(SetId, &DocumentLocation) -> ChangeState + Sync),
        now: Timestamp,
    ) -> Result<NewChanges, SyncError> {
        let read = read.into_iter().map(|it| (state(it.set, &it.root), it)).collect();
        let mut new = tokio::task::spawn_blocking(move || NewChanges::of(read, now)).await?;
        let doubtful = new.doubtful();
        let mut answers = Answers::default();
        if !doubtful.is_empty() {
            answers.unanswered.extend(doubtful.iter().map(|change| change.resource));
            let asked = some(doubtful, self.tuning.asked, |change| change.resource);
            let (spool, limits) = (self.spool.clone(), self.config.limits);
            let resources = move || new.resources(&asked, &spool, limits).map(|uris| (new, uris));
            let uris;
            (new, uris) = tokio::task::spawn_blocking(resources).await??;
            self.ask_whether_gone(uris, &mut answers).await;
        }
        new.answered(&answers.gone, &answers.unanswered);
        Ok(new)
    }

    /// Asks resources whether they are gone.
    async fn ask_whether_gone(&self, resources: Vec<Uri>, answers: &mut Answers) {
        let ask = |uri: Uri| {
            let client = self.client.clone();
            async move { (is_gone(&client, &uri).await, resource_digest(&uri)) }.boxed()
        };
        let asked = stream::iter(resources.into_iter().map(ask).collect::<Vec<_>>()).buffer_unordered(ASKED_AT_ONCE);
        let mut answered = std::pin::pin!(asked.take_until(tokio::time::sleep(self.tuning.answers_due)));
        while let Some((is_gone, resource)) = answered.next().await {
            let Some(is_gone) = is_gone else { continue };
            answers.unanswered.remove(&resource);
            if is_gone {
                answers.gone.insert(resource);
            }
        }
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

/// Whether the entries of a leaf are changes.
fn lists_changes(leaf: &Leaf) -> bool {
    let is_list = matches!(leaf.capability, None | Some(Capability::ChangeList | Capability::Other(_)));
    if is_list && leaf.has_packages {
        let location = &leaf.document.location;
        tracing::warn!(%location, "a Change List lists packages and no changes, as a Change Dump does; it is ignored");
    }
    is_list && !leaf.has_packages
}
