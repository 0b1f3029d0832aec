//! New entries of change documents, the order in which they count, and whether they go on where the last look ended.
//!
//! A root is a Change List, a Change List Index or a Change List Archive that the Source offers (section 12), or a Change Dump
//! whose manifests are read (section 13). For each there is one [`ChangeState`], stored with the revision. A look at a root:
//!
//! 1. [`ChangeState::children`] says which children of an index are asked for; the others count as unread. Those that fail are
//!    [lost](ChangeState::lacking) and asked for again.
//! 2. [`ChangeState::read_document`] for each list: a [`ChangeDocument`], and a note of each entry that the last look has not seen.
//! 3. [`ChangeState::is_joined_by`]: `false` is a gap, which a new baseline closes. One that it does not close is marked by
//!    [`ChangeState::tear`], and the changes are applied all the same.
//! 4. [`ChangeState::with_documents`]: the next [`ChangeState`], and the [`Frame`] which gives the times of a document's notes.
//! 5. [`Judge::judge`]: the notes, sorted by resource, become the news: of each resource the last change, where that is new, in order
//!    of time.
//!
//! After a baseline [`ChangeState::rebased`] goes on with the time that it speaks for; [`ChangeState::since`] begins with it.
//!
//! *What is known.* The entries of the last look, as long as the document begins with them. The catalog's journal holds the
//! last change of each resource: an entry with a time is new where the journal holds neither this change nor a later one, or
//! where it is dated after all that was known; and where the baseline speaks for no later time. An entry without is new; but
//! in a document that does not begin as it did it is known where the journal says the same, whenever that was. For in version
//! 1.1 `lastmod` is the resource's own and may be years old, and a list may be written newest first or in no order.
//!
//! *Times.* A change happened at its `datetime`, else at a `lastmod` within `from`…`until`, else right after the entry before
//! it; of equal times the position decides. All of these are times of the Source, whose clock may differ from ours. A change
//! with a time up to the baseline's is in the baseline. An entry without a time that may be older is applied all the same, for
//! that changes nothing; but a deletion of this kind is doubtful, as is each where the baseline has no time, and the resource
//! itself is asked. Until it answers ([`ChangeState::answered`]) the entry counts as new at each look, and stays doubtful.
//!
//! In a document without any order positions mean nothing: what is new and bears no time is not applied, and that is a gap, unless the
//! baseline is newer than the document.
//!
//! *Continuity* is proved by the entries of the last look, by `from` or an entry at or before what is known, by `from` at or before the
//! time at which all was read whole, or by entries that the journal holds: one with a time, or some without.
//! Without `from`, and with nothing seen before, no gap can be seen.

mod children;
mod frame;
mod judge;
mod order;
mod reading;
#[cfg(test)]
mod tests;

pub use crate::catalog::NewChange;
pub use children::{AskedChildren, KnownChildren, Lost};
pub use frame::ChangeDocument;
use frame::Frame;
pub use judge::Judge;
pub use order::just_after;
pub use reading::{DocumentHead, Visit, resource_digest};

use crate::document::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// Later than every time.
const NEVER: Timestamp = Timestamp { seconds: i64::MAX, nanos: 0 };

/// Seconds by which clocks may differ. A time further ahead is not believed, be it by a wrong clock or a missing zone: it would
/// outlast every change that is still to come.
const CLOCKS_DIFFER: i64 = 24 * 3600;

/// The changes of one root that are applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeState {
    /// The time that the baseline speaks for.
    at: Option<Timestamp>,
    /// The time up to which changes are known.
    pub until: Option<Timestamp>,
    /// The time of the latest change that was seen: a new entry without a time came after it.
    latest: Option<Timestamp>,
    /// A time of the Source: all documents were read at it, or later.
    seen: Option<Timestamp>,
    /// The time of `seen` by our clock.
    looked: Option<Timestamp>,
    /// The seconds that the documents went back then.
    width: i64,
    /// The beginning of the documents at the look of `looked`.
    began: Option<Timestamp>,
    /// The change documents read, oldest first.
    documents: Vec<DocumentState>,
    /// Documents that failed when they were last asked for.
    lost: Vec<Lost>,
    /// The time since when changes may be missing that nothing published contains.
    pub gap_since: Option<Timestamp>,
}

/// The state of one change document that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentState {
    /// The address that it was asked for at.
    pub location: String,
    /// The digest of its bytes, or of the dump that lists it.
    pub digest: u64,
    /// Start of its interval.
    from: Option<Timestamp>,
    /// All its entries.
    prefix: Prefix,
    /// End of its interval, where it is closed.
    until: Option<Timestamp>,
    /// `lastmod` of the entry of its index, where that is all it says of the end.
    listed: Option<Timestamp>,
    /// Digests of the resources of doubtful deletions that have not answered.
    unanswered: Vec<u64>,
}

/// The first entries of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Prefix {
    entries: u64,
    /// XXH3 over their digests.
    hash: u64,
    /// The digest of the first: a list that is written newest first is another one from there on.
    first: u64,
}

impl DocumentState {
    /// True if something in it is still to be asked about.
    fn is_open(&self) -> bool {
        !self.unanswered.is_empty()
    }
}

impl ChangeState {
    /// The state behind a baseline that speaks for `at`, with nothing else known; `None` where the baseline has no time.
    pub fn since(at: Option<Timestamp>) -> ChangeState {
        ChangeState { at, until: at, ..ChangeState::default() }
    }

    /// The state where other documents of the set hold its changes up to `until`: a document that begins there goes on from them,
    /// though all its entries are still to be applied.
    pub fn known_until(mut self, until: Option<Timestamp>) -> ChangeState {
        self.until = self.until.max(until);
        self
    }

    /// The state after a baseline that speaks for `at`: known changes stay known.
    pub fn rebased(mut self, at: Option<Timestamp>) -> ChangeState {
        self.at = self.at.max(at);
        self.until = self.until.max(self.at);
        self.forget_covered();
        self
    }

    /// True if `documents` visibly go on where the last look ended; `unread` were left out because they hold nothing new.
    pub fn is_joined_by(&self, documents: &[ChangeDocument], unread: &[String]) -> bool {
        let is_joined = documents.is_empty() || !unread.is_empty() || documents.iter().any(|it| self.joins(it));
        is_joined && !documents.iter().any(|it| self.is_disordered(it))
    }

    /// True if the intervals of `documents` follow one another without a gap from what is known on. Documents that begin after
    /// `ends` do not count.
    pub fn is_followed_by<'d>(
        &self,
        documents: impl Iterator<Item = &'d DocumentState>,
        ends: Option<Timestamp>,
    ) -> bool {
        let Some(mut reached) = self.reached() else { return true };
        let is_within = |it: &&DocumentState| ends.is_none_or(|ends| it.from <= Some(ends));
        let mut intervals: Vec<_> = documents.filter(is_within).map(|it| (it.from, it.until)).collect();
        intervals.sort_unstable();
        !intervals.is_empty()
            && intervals.into_iter().all(|(from, until)| {
                let goes_on = from.is_some_and(|from| from <= reached);
                reached = reached.max(until.unwrap_or(NEVER));
                goes_on
            })
    }

    /// True if a document goes on where the last look ended: it holds a known entry, or begins before that.
    fn joins(&self, document: &ChangeDocument) -> bool {
        let is_unknown = || self.document(&document.state.location).is_none_or(|read| read.prefix.entries == 0);
        match document.state.from {
            // Nothing is known from any time on that could be missed.
            _ if self.until.is_none() && self.documents.is_empty() => true,
            Some(from) if Some(from) <= self.reached() => true,
            None if is_unknown() => true,
            _ => document.meets_known,
        }
    }

    /// True if `documents`, or those of `unread` that are known, hold all changes since `at`. Going on where the last look ended
    /// proves nothing of the time before it.
    pub fn reaches_back_to(&self, at: Option<Timestamp>, documents: &[ChangeDocument], unread: &[String]) -> bool {
        let Some(at) = at else { return true };
        let is_unread = |location: &String| self.document(location).is_some_and(|read| read.from <= Some(at));
        let is_nothing = documents.is_empty() && unread.is_empty();
        is_nothing || documents.iter().any(|it| it.reaches_back_to(at)) || unread.iter().any(is_unread)
    }

    /// True if only a baseline that is newer than the document decides the fate of some resource.
    fn is_disordered(&self, document: &ChangeDocument) -> bool {
        let is_covered = document.written.is_some_and(|written| Some(written) <= self.at);
        document.is_ambiguous && !is_covered
    }

    /// The state once `documents` are applied, and the frame of each. These and the `unread` ones, which were left out, are all
    /// that there are now. `now` is the time of the look.
    pub fn with_documents(
        &self,
        mut documents: Vec<ChangeDocument>,
        unread: &[String],
        now: Timestamp,
    ) -> (ChangeState, Vec<Frame>) {
        // The open list last: it holds the newest, and it is the one that goes on growing.
        documents.sort_by_key(|it| (it.state.until.is_none(), it.state.until, it.state.from));
        let mut state = ChangeState { documents: Vec::with_capacity(documents.len()), ..self.clone() };
        let (unread, lost): (HashSet<&str>, _) = (unread.iter().map(String::as_str).collect(), self.lost_before());
        state.documents.extend(self.documents.iter().filter(|read| unread.contains(read.location.as_str())).cloned());
        let mut frames = Vec::with_capacity(documents.len());
        for document in documents {
            // Positions in an older list stand for earlier times than positions in the next one. One that was lost may be the
            // oldest of all.
            let is_found = lost.contains_key(document.state.location.as_str());
            let floor = self.at.max(state.latest.filter(|_| !is_found));
            let has_undated = document.has_undated;
            let frame = Frame::of(self, document, floor);
            let (read, newest) = (&frame.document.state, frame.newest());
            state.reach(read.until, now);
            state.reach(newest, now);
            let latest = if has_undated { Some(just_after(newest.max(read.from).max(floor))) } else { newest };
            state.latest = state.latest.max(latest);
            state.documents.push(read.clone());
            frames.push(frame);
        }
        state.documents.sort_by_key(|read| (read.until.is_none(), read.until));
        (state, frames)
    }

    /// Notes that all documents were read whole at `now`, by our clock. The Source's clock may show another time, but runs as fast. Ours may
    /// be set in between: the time that counts as passed is at most the interval that the documents covered. Documents that were not
    /// written again tell nothing: it is at most what their beginning has moved.
    pub fn see(&mut self, now: Timestamp) {
        let oldest = self.oldest();
        let moved = oldest.zip(self.began).map_or(0, |(begins, began)| begins.seconds - began.seconds);
        let most = self.width.min(moved).max(0);
        let passed = self.looked.map_or(0, |looked| now.seconds - looked.seconds).clamp(0, most);
        let by_then = |it: Timestamp| Timestamp { seconds: it.seconds + passed, ..it };
        self.seen = self.until.max(self.seen.map(by_then));
        if moved != 0 || self.began.is_none() || self.looked.is_none() {
            (self.began, self.looked) = (oldest, Some(now));
        }
        let width = oldest.zip(self.seen).map_or(0, |(from, seen)| seen.seconds - from.seconds);
        self.width = width.max(0);
    }

    /// The beginning of the documents, where they state it.
    fn oldest(&self) -> Option<Timestamp> {
        self.documents.iter().filter_map(|read| read.from).min()
    }

    /// The time up to which no change can have been missed: a document that begins by then goes on from what is known.
    fn reached(&self) -> Option<Timestamp> {
        self.until.max(self.seen)
    }

    /// True if a restart that knows `stored` goes on from there for as long again as a rolling window is wide.
    pub fn goes_on_from(&self, stored: &ChangeState) -> bool {
        self.oldest().zip(self.reached()).is_none_or(|(from, reached)| {
            let middle = (from.seconds + reached.seconds) / 2;
            stored.reached().is_some_and(|stored| stored.seconds >= middle)
        })
    }

    /// Notes that changes up to `time` are known; a time that is yet to come counts as now.
    fn reach(&mut self, time: Option<Timestamp>, now: Timestamp) {
        self.until = self.until.max(time.map(|time| time.min(now)));
    }

    /// Drops what does not change any more: lists that their index will never have asked for again, but for the two newest.
    fn shorten(&mut self) {
        let (until, oldest) = (self.until, self.documents.len().saturating_sub(2));
        let is_over = |read: &DocumentState| read.until.is_some() && read.until <= until && !read.is_open();
        let mut number = 0..;
        self.documents.retain(|read| number.next() >= Some(oldest) || !is_over(read) || read.listed.is_some());
    }

    /// The state with the doubtful deletions that are to be asked about, by document; lists that do not change any more are
    /// dropped.
    pub fn doubting(mut self, mut doubts: HashMap<String, Vec<u64>>) -> ChangeState {
        for read in &mut self.documents {
            doubts.remove(&read.location).into_iter().for_each(|resources| read.unanswered = resources);
        }
        self.shorten();
        self
    }

    /// Notes the resources that have not answered whether they are gone: their deletions stay doubtful.
    pub fn answered(&mut self, unanswered: &HashSet<u64>) {
        for read in &mut self.documents {
            read.unanswered.retain(|resource| unanswered.contains(resource));
        }
    }

    /// Deletions that are still to be asked about.
    pub fn doubts(&self) -> usize {
        self.documents.iter().map(|read| read.unanswered.len()).sum()
    }

    /// True if `other` knows the same entries of the same documents: a list whose `until` is the time of the request says nothing
    /// new by that.
    pub fn knows_the_same(&self, other: &ChangeState) -> bool {
        fn entries(state: &ChangeState) -> impl Iterator<Item = (&str, Prefix, &[u64])> {
            state.documents.iter().map(|read| (&*read.location, read.prefix, &read.unanswered[..]))
        }
        self.gap_since == other.gap_since && self.lost == other.lost && entries(self).eq(entries(other))
    }

    fn document(&self, location: &str) -> Option<&DocumentState> {
        self.documents.iter().find(|read| read.location == location)
    }

    /// The documents that were read.
    pub fn locations(&self) -> impl Iterator<Item = &str> {
        self.documents.iter().map(|read| read.location.as_str())
    }

    /// True if a document was read.
    pub fn has_read(&self) -> bool {
        !self.documents.is_empty()
    }

    /// Forgets the documents: they are read as at a first look.
    pub fn forget_documents(&mut self) {
        self.documents.clear();
    }

    /// Marks that changes after what is known may be missing, unless an earlier mark stands.
    pub fn tear(&mut self, now: Timestamp) {
        self.gap_since = self.gap_since.or(self.reached()).or(Some(now));
    }
}

/// The latest time that is believed at `now`.
pub fn latest_believed(now: Timestamp) -> Timestamp {
    Timestamp { seconds: now.seconds.saturating_add(CLOCKS_DIFFER), ..now }
}
