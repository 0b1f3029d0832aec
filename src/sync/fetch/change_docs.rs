//! Incremental synchronization: what the change documents of the sets say that is new.

use super::DocumentFetch;
use super::new_changes::{NewChanges, Origin, ReadChanges};
use crate::document::{Capability, Entry, Header, Timestamp};
use crate::platform::error_chain::chain;
use crate::source::crawl::{Asking, Child, Crawled, EVERYTHING, Leaf, crawl};
use crate::source::{DocumentLocation, SourceError};
use crate::sync::changes::{AskedChildren, ChangeDocument, ChangeState, DocumentHead, KnownChildren, resource_digest};
use crate::sync::followed_set::FollowedSet;
use crate::sync::position::Position;
use crate::sync::scheduler::jitter;
use crate::sync::status::FailedDocument;
use crate::sync::{FailureKind, Scope, SyncError, Synchronizer};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;

/// The children that are chosen of an index, or of a dump.
pub(super) struct Chosen<'k> {
    pub known: &'k ChangeState,
    pub children: KnownChildren<'k>,
    pub asked: AskedChildren,
    /// Addresses that are left out because they hold nothing new.
    pub unread: Vec<String>,
    /// The entry among the unread that ended last.
    newest: Option<Entry>,
    /// The end of what is wanted. Without all of it up to there the reading fails.
    pub ends: Option<Timestamp>,
    /// True if something is left out because it begins after that.
    pub is_beyond: bool,
}

impl<'k> Chosen<'k> {
    /// The choice of a root of which these changes are `known`, up to `ends`: nothing so far.
    fn of(known: &'k ChangeState, ends: Option<Timestamp>) -> Chosen<'k> {
        Chosen {
            known,
            children: known.children(),
            asked: AskedChildren::default(),
            unread: Vec::new(),
            newest: None,
            ends,
            is_beyond: false,
        }
    }

    /// True if a document whose interval begins at `from` is left out: all of it is after what is wanted.
    pub fn leaves_out(&mut self, from: Option<Timestamp>) -> bool {
        let is_beyond = self.ends.is_some_and(|ends| from > Some(ends));
        self.is_beyond |= is_beyond;
        is_beyond
    }

    /// True if the document of this entry is asked for; one that `is_named` is, although its entry says nothing new.
    pub fn asks(&mut self, entry: &Entry, is_named: bool) -> bool {
        if self.leaves_out(entry.from) {
            return false;
        }
        if is_named || self.children.wants(entry) {
            self.asked.entries.push(entry.clone());
            return true;
        }
        let end = |entry: &Entry| entry.until.or(entry.lastmod);
        if self.newest.as_ref().is_none_or(|newest| end(newest) <= end(entry)) {
            self.newest = Some(entry.clone());
        }
        self.unread.push(entry.loc.as_str().to_owned());
        false
    }
}

impl Synchronizer {
    /// Fetches the change documents of `sets` that `scope` asks for. One that fails or cannot be read is left for later: it
    /// never keeps another from being read. Why the first of these failed is in `unfollowed`.
    pub(in crate::sync) async fn read_changes(
        &mut self,
        sets: &[FollowedSet],
        position: &Position,
        scope: &Scope,
    ) -> Result<Vec<ReadChanges>, SyncError> {
        let mut read = Vec::new();
        self.current.unfollowed = None;
        let roots: Vec<_> = sets.iter().flat_map(|set| set.changes.iter().map(move |root| (set, root))).collect();
        for (set, root) in roots {
            if !scope.wants(root, &self.fetch.schedule) {
                continue;
            }
            let known = position.known(set.id, root);
            let mut found = self.read_root(set, root, &known, scope, None).await;
            if let Err(cause) = &found {
                self.discovery.is_stale |= cause.is_gone();
                if cause.is_gone() && known.has_read() {
                    tracing::warn!("the changes are no longer published: {}", chain(cause));
                    found = Ok(ReadChanges::gone(set.id, root, &known, self.catalog.notes()));
                }
            }
            if let Ok(it) = found {
                found = self.close_gap(set, it, &known).await;
            }
            let cause = match found {
                Ok(it) => {
                    read.push(it);
                    continue;
                }
                Err(cause @ (SyncError::Catalog(_) | SyncError::Worker(_))) => return Err(cause),
                Err(cause) => cause,
            };
            tracing::warn!("changes cannot be read: {}", chain(&cause));
            // A document that never was a list does not count as failing: the schedule asks again, and status names it.
            let is_none = matches!(&cause, SyncError::Source(cause) if cause.is_gone() || cause.is_no_list());
            if known.has_read() || !is_none {
                self.current.note_failure(FailedDocument::of(&cause));
                self.fetch.schedule.failed(root, chain(&cause), jitter(), Instant::now());
                self.current.lacks_packages |= set.are_packed;
                self.current.unfollowed.get_or_insert(cause);
            }
        }
        Ok(read)
    }

    /// Notes what fails or cannot be read below `root`, if anything.
    pub(in crate::sync) fn note_failed(&mut self, root: &DocumentLocation, failed: Option<FailedDocument>) {
        if let Some(failed) = failed {
            tracing::warn!("some changes cannot be read now: {}", failed.why);
            self.fetch.schedule.failed_in_part(root, failed.why.clone(), jitter(), Instant::now());
            // A child that fails for good is passed over, and reported as missing.
            self.current.note_failure(failed);
        }
    }

    /// Fills a gap between what is known and `read` from archives. What does not close the gap is left out.
    pub(in crate::sync) async fn close_gap(
        &mut self,
        set: &FollowedSet,
        mut read: ReadChanges,
        known: &ChangeState,
    ) -> Result<ReadChanges, SyncError> {
        if read.goes_on(known) {
            return Ok(read);
        }
        let earlier = self.read_archives(set, &mut read, known, None).await?;
        if known.is_followed_by(earlier.iter().chain(&read.documents).map(|it| &it.state), None) {
            if !earlier.is_empty() {
                tracing::info!(set = %set.name, documents = earlier.len(), "the changes in between are read from archives");
            }
            read.is_torn = false;
            read.documents.extend(earlier);
        }
        Ok(read)
    }

    /// Reads archives up to `ends`: those of `set`, and those that documents of `read` name. Returns the documents that are not in `read`.
    pub(in crate::sync) async fn read_archives(
        &mut self,
        set: &FollowedSet,
        read: &mut ReadChanges,
        known: &ChangeState,
        ends: Option<Timestamp>,
    ) -> Result<Vec<ChangeDocument>, SyncError> {
        let archives: Vec<_> = set.earlier_changes.iter().chain(&read.archives).cloned().collect();
        let (mut earlier, mut met) = (Vec::new(), HashSet::from([read.root.clone()]));
        for archive in archives {
            if !met.insert(archive.clone()) {
                continue;
            }
            let archived = match self.read_root(set, &archive, known, &Scope::Everything, ends).await {
                Err(cause) if ends.is_some() && !cause.is_gone() => return Err(cause),
                Err(cause @ (SyncError::Source(_) | SyncError::Document { .. } | SyncError::Package(_))) => {
                    tracing::warn!("the archive {archive} cannot be read now: {}", chain(&cause));
                    continue;
                }
                archived => archived?,
            };
            read.is_beyond |= archived.is_beyond;
            read.notes.join(archived.notes)?;
            for document in archived.documents {
                // Fetched again, perhaps with other bytes, it counts as it is now.
                match read.documents.iter_mut().find(|it| it.state.location == document.state.location) {
                    Some(before) => *before = document,
                    None => earlier.push(document),
                }
            }
        }
        Ok(earlier)
    }

    /// Reads what may be new in `root`, one of the change documents of `set`, or an archive of theirs; only what begins by `ends`, and then
    /// all of that or nothing.
    pub(in crate::sync) async fn read_root(
        &mut self,
        set: &FollowedSet,
        root: &DocumentLocation,
        known: &ChangeState,
        scope: &Scope,
        ends: Option<Timestamp>,
    ) -> Result<ReadChanges, SyncError> {
        let chosen = Mutex::new(Chosen::of(known, ends));
        let (walked, is_alone) = self.walk_root(set, root, &chosen, scope).await?;
        let mut chosen = chosen.into_inner().unwrap_or_else(PoisonError::into_inner);
        chosen.asked.gone = walked.missing.iter().map(|it| it.location.to_string()).collect();
        chosen.asked.failed = walked.failed.iter().map(|(location, _)| location.to_string()).collect();
        let mut read = ReadChanges::new(set.id, root, self.catalog.notes());
        let headers = walked.index_headers.iter().chain(walked.leaves.iter().map(|leaf| &leaf.header));
        // The links at the end of the list before are in the index of all, where the list that is read is the next (section 12.1).
        let earlier = headers.flat_map(|it| [it.link("archives"), it.link("index")]).flatten();
        read.archives = earlier.cloned().map(DocumentLocation::Uri).collect();
        let of_child = |cause: &SourceError| FailedDocument { why: chain(cause), kind: FailureKind::from(cause) };
        let mut failed = walked.failed.first().map(|(_, cause)| of_child(cause));
        let mut documents = Vec::new();
        if set.are_packed {
            let (packages, why) = self.fetch.change_packages(&walked, &mut chosen).await?;
            failed = failed.or(why.map(|why| FailedDocument { why, kind: FailureKind::Unreachable }));
            self.current.lacks_packages |= failed.is_some();
            documents = packages;
        }
        documents.extend(self.change_lists(walked.leaves, is_alone, &mut chosen));
        failed = failed.or(self.read_documents(documents, &mut chosen, &mut read).await?);
        (read.unread, read.is_beyond) = (chosen.unread, chosen.is_beyond);
        read.is_whole = failed.is_none() && chosen.asked.gone.is_empty();
        read.lost = known.lost_beside(&root.to_string(), &chosen.asked, Timestamp::now());
        self.note_failed(root, failed);
        Ok(read)
    }

    /// Walks from `root` to the documents that may hold something new, and on to those that it leads to; true if `root` is not
    /// an index.
    async fn walk_root(
        &mut self,
        set: &FollowedSet,
        root: &DocumentLocation,
        chosen: &Mutex<Chosen<'_>>,
        scope: &Scope,
    ) -> Result<(Crawled, bool), SyncError> {
        let chosen = || chosen.lock().unwrap_or_else(PoisonError::into_inner);
        let choice = |header: &Header, entry: &Entry| {
            let is_named = match set.are_packed {
                // Entries of a dump are chosen later. An archive lists whole dumps, and no packages by themselves.
                true => header.capability != Some(Capability::ChangeDumpArchive),
                false => matches!(scope, Scope::Announced(_)) && scope.names(&entry.loc),
            };
            if chosen().asks(entry, is_named) { Child::Ask } else { Child::Leave }
        };
        // The schedule asks again: no requester of a refresh waits for a server that fails.
        let needs_all = chosen().ends.is_some();
        let is_patient = needs_all && !set.are_packed && self.catalog.revision()?.is_none();
        let past_caches = scope.is_past_caches();
        let asking = Asking { choice: &choice, tolerates_failure: !needs_all, past_caches, is_patient, ..EVERYTHING };
        let mut walked = self.fetch.walk(&self.current.progress, root, asking).await?;
        let is_alone = walked.indexes.is_empty();
        // A closed list leads on by its index (section 12.1).
        let closed = walked.leaves.iter().find(|leaf| is_alone && leaf.header.until.is_some());
        let index = closed.and_then(|leaf| leaf.header.link("index")).map(|index| DocumentLocation::Uri(index.clone()));
        if let Some(index) = index.filter(|index| !set.are_packed && !set.changes.contains(index)) {
            // Fetched again, the root would be another document where its end is the time of the request.
            let others = |header: &Header, entry: &Entry| match Some(&entry.loc) == root.uri() {
                true => Child::Leave,
                false => choice(header, entry),
            };
            let above = self.fetch.lead_on(&index, Asking { choice: &others, ..asking }).await?;
            walked.leaves.extend(above.leaves.into_iter().filter(|leaf| leaf.document.location != *root));
            walked.failed.extend(above.failed);
            walked.missing.extend(above.missing);
        }
        let newest = chosen().newest.take();
        if let Some(newest) = newest.filter(|_| !set.are_packed && walked.leaves.is_empty()) {
            // Nothing was read yet, and all that is listed ended before: the newest says what comes next.
            let below = self.fetch.lead_on(&DocumentLocation::Uri(newest.loc.clone()), asking).await?;
            if !below.leaves.is_empty() {
                chosen().unread.retain(|location| newest.loc.as_str() != location);
            }
            let listed = |leaf| Leaf { listed: Some(Box::new(newest.clone())), ..leaf };
            walked.leaves.extend(below.leaves.into_iter().map(listed));
        }
        Ok((walked, is_alone))
    }

    /// Reads `documents` into `read`. Returns the first failure of a child, which is asked for again.
    async fn read_documents(
        &self,
        documents: Vec<(DocumentHead, Origin)>,
        chosen: &mut Chosen<'_>,
        read: &mut ReadChanges,
    ) -> Result<Option<FailedDocument>, SyncError> {
        let (set, state, mut failed) = (read.set, Arc::new(chosen.known.clone()), None);
        for (head, origin) in documents {
            let (catalog, spool) = (self.catalog.clone(), self.fetch.spool.clone());
            let (state, root) = (state.clone(), read.root.clone());
            let reading = move || origin.read(&head, (set, &root, &state), &catalog, &spool);
            match tokio::task::spawn_blocking(reading).await? {
                Ok((document, notes)) => {
                    read.notes.join(notes)?;
                    read.documents.push(document);
                }
                Err(SyncError::Document { location, cause }) if location != read.root && chosen.ends.is_none() => {
                    chosen.asked.failed.insert(location.to_string());
                    failed.get_or_insert_with(|| FailedDocument::of(&SyncError::Document { location, cause }));
                }
                Err(cause) => return Err(cause),
            }
        }
        Ok(failed)
    }

    /// The Change Lists among these leaves that may hold something new.
    fn change_lists(
        &mut self,
        leaves: Vec<Leaf>,
        is_alone: bool,
        chosen: &mut Chosen<'_>,
    ) -> Vec<(DocumentHead, Origin)> {
        let mut documents = Vec::new();
        for Leaf { document, header, listed, .. } in leaves.into_iter().filter(lists_changes) {
            let (location, digest) = (document.location.to_string(), document.digest);
            // The Capability List names the next. A list whose end moves at each request goes on itself.
            self.discovery.is_stale |=
                is_alone && header.until.is_some() && chosen.children.has_read_same(&location, digest);
            if chosen.children.is_done_with(&location, digest) {
                chosen.unread.push(location);
                continue;
            }
            let head = DocumentHead { location, digest, listed, modified: document.modified };
            documents.push((head, Origin::List(document)));
        }
        documents
    }

    /// The new changes in `read`, by the `position`. A deletion without a time is among them where its resource confirms it.
    pub(in crate::sync) async fn news(
        &self,
        read: Vec<ReadChanges>,
        position: &Position,
        now: Timestamp,
    ) -> Result<NewChanges, SyncError> {
        let read = read.into_iter().map(|it| (position.known(it.set, &it.root), it)).collect();
        let (notes, asked) = (self.catalog.notes(), self.tuning.asked);
        let find = move || {
            let mut new = NewChanges::of(read, notes, now)?;
            new.doubtful(asked).map(|doubtful| (new, doubtful))
        };
        let (mut new, doubtful) = tokio::task::spawn_blocking(find).await??;
        let mut answers = HashMap::new();
        if !doubtful.is_empty() {
            // Any other answer than 404 or 410 is none of a deletion; one that fails may answer later.
            let asked = self.fetch.ask(doubtful, self.tuning.answers_due, |answer| match answer {
                Err(cause) if cause.is_retryable() => None,
                answer => Some(answer.is_err_and(|cause| cause.is_gone())),
            });
            let asked = asked.await;
            answers = asked.into_iter().filter_map(|(uri, is_gone)| Some((resource_digest(&uri), is_gone?))).collect();
        }
        new.answered(&answers);
        Ok(new)
    }
}

impl DocumentFetch {
    /// Follows changes on to the document at `location`, which another leads to; to nothing where it cannot be read for now.
    async fn lead_on(&self, location: &DocumentLocation, asking: Asking<'_>) -> Result<Crawled, SyncError> {
        match crawl(&self.client, &self.spool.cache, location, self.spool.limits, asking, &|_| ()).await {
            Ok(crawled) => Ok(crawled),
            Err(cause) if !asking.tolerates_failure && !cause.is_gone() => Err(cause.into()),
            Err(cause) => {
                tracing::warn!("a change document leads to {location}, which cannot be read: {}", chain(&cause));
                Ok(Crawled::default())
            }
        }
    }
}

/// True if the entries of a leaf are changes.
fn lists_changes(leaf: &Leaf) -> bool {
    let is_list = matches!(leaf.capability, None | Some(Capability::ChangeList | Capability::Other(_)));
    if is_list && leaf.has_packages {
        let location = &leaf.document.location;
        tracing::warn!(%location, "a Change List lists packages and no changes, as a Change Dump does; it is ignored");
    }
    is_list && !leaf.has_packages
}
