//! Reading one change document, an entry after the other. Entries that the last look has seen are passed over; for each
//! further entry a [`Note`] goes into a sort.

use super::frame::{ChangeDocument, Frame};
use super::order::{InJournal, Note, Stamp};
use super::{ChangeState, DocumentState, Prefix, latest_believed};
use crate::catalog::news::Notes;
use crate::catalog::{CatalogError, SetId};
use crate::document::{Capability, Change, Entry, Header, PackageMember, Timestamp, Uri};
use std::cmp::Ordering;
use std::collections::HashSet;
use std::hash::Hash;
use std::ops::ControlFlow;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Known changes without a time that prove continuity: fewer may meet by chance.
const NO_ACCIDENT: u64 = 3;

/// Entries without a time that wait for the next one that has some.
const MOST_WAITING: usize = 1000;

/// Compares the journal's last change of a resource with an entry and its time: later, this very change, or earlier. `None` where the
/// journal has none, or another one of the same time. Without a time only the contents are compared.
pub type Journal<'j> =
    &'j dyn Fn(&Entry, Option<&PackageMember>, Option<Timestamp>) -> Result<Option<Ordering>, CatalogError>;

/// Takes the entries of a document one by one, each with the header as far as it is known.
pub type Visit<'v, E> = &'v mut dyn FnMut(&Header, Entry, Option<PackageMember>) -> Result<ControlFlow<()>, E>;

/// A change document, before its entries are read.
#[derive(Clone, Debug)]
pub struct DocumentHead {
    /// The address that it was asked for at.
    pub location: String,
    /// The digest of its bytes, or of the dump that lists it.
    pub digest: u64,
    /// Its entry in an index.
    pub listed: Option<Box<Entry>>,
    /// `Last-Modified` of the response.
    pub modified: Option<Timestamp>,
}

/// A document being read.
struct DocumentReading<'r> {
    state: &'r ChangeState,
    set: SetId,
    listed: Option<&'r Entry>,
    latest: Timestamp,
    journal: Journal<'r>,
    notes: Notes,
    /// The part that the last look has seen, where it still begins with that.
    before: Prefix,
    /// True if it was read before, and does not begin as it did then.
    is_other: bool,
    /// Digests of the resources of doubtful deletions that have not answered.
    doubts: HashSet<u64>,
    hash: Xxh3,
    /// The last `datetime`, and the last `lastmod` within the interval.
    last: [Option<Timestamp>; 2],
    /// Entries that wait for the next one that bears a time.
    waiting: Vec<(Entry, Option<PackageMember>, Note)>,
    /// Entries that the journal has at another time.
    repeated: u64,
    document: ChangeDocument,
}

impl ChangeState {
    /// Reads a document of `set`; its notes go into `notes`, under its `number`. `read` goes through its entries and returns its header; it
    /// is called again where the document does not begin as it did at the last look. `now` is the time of the look. An entry that points
    /// to a document of a known capability is passed over.
    pub fn read_document<E: From<CatalogError>>(
        &self,
        (set, number): (SetId, u64),
        head: &DocumentHead,
        now: Timestamp,
        (journal, notes): (Journal<'_>, &dyn Fn() -> Notes),
        read: &mut dyn FnMut(Visit<'_, E>) -> Result<Header, E>,
    ) -> Result<(ChangeDocument, Notes), E> {
        let known = self.document(&head.location);
        let mut before = known.map_or(Prefix::default(), |it| it.prefix);
        loop {
            let (location, digest) = (head.location.clone(), head.digest);
            let mut reading = DocumentReading {
                state: self,
                set,
                listed: head.listed.as_deref(),
                latest: latest_believed(now),
                journal,
                notes: notes(),
                before,
                is_other: known.is_some_and(|it| it.prefix.entries > 0) && before.entries == 0,
                doubts: known.iter().flat_map(|it| &it.unanswered).copied().collect(),
                hash: Xxh3::new(),
                last: [None; 2],
                waiting: Vec::new(),
                repeated: 0,
                document: ChangeDocument {
                    state: DocumentState { location, digest, ..DocumentState::default() },
                    number,
                    modified: head.modified,
                    known: self.until,
                    meets_known: known.is_some_and(|it| it.digest == digest),
                    ..ChangeDocument::default()
                },
            };
            let header = read(&mut |header, entry, member| Ok(reading.visit(header, entry, member)?))?;
            let is_another = reading.is_another(reading.interval(&header).0);
            let is_shorter = reading.document.state.prefix.entries < before.entries;
            if before.entries > 0 && (reading.is_other || is_another || is_shorter) {
                before = Prefix::default();
                continue;
            }
            return Ok(reading.finish(&header)?);
        }
    }
}

impl DocumentReading<'_> {
    /// The interval of the document. Where it says anything of that itself, an index above is not asked: it may be older.
    fn interval(&self, header: &Header) -> (Option<Timestamp>, Option<Timestamp>) {
        let listed = self.listed;
        let from = header.from.or(listed.and_then(|entry| entry.from)).filter(|from| *from <= self.latest);
        let is_silent = header.from.is_none() && header.until.is_none();
        (from, header.until.or(listed.filter(|_| is_silent).and_then(|entry| entry.until)))
    }

    /// True if a document that begins at `from`, behind all that is known, has replaced the old one.
    fn is_another(&self, from: Option<Timestamp>) -> bool {
        self.state.until.is_some() && from > self.state.reached()
    }

    /// Takes the next entry. A document that does not begin as it did is broken off.
    fn visit(
        &mut self,
        header: &Header,
        entry: Entry,
        member: Option<PackageMember>,
    ) -> Result<ControlFlow<()>, CatalogError> {
        if !is_change(&entry) {
            return Ok(ControlFlow::Continue(()));
        }
        let position = self.document.state.prefix.entries;
        self.extend_prefix(digest(&entry, member.as_ref()));
        let (from, until) = self.interval(header);
        // Nearly always the head says that a document has replaced the old one.
        self.is_other |= position == 0 && self.before.entries > 0 && self.is_another(from);
        if self.is_other && self.before.entries > 0 {
            return Ok(ControlFlow::Break(()));
        }
        let is_within = |time: Timestamp| from.is_none_or(|from| from <= time) && until.is_none_or(|it| time <= it);
        let borne = Stamp::of(&entry, self.latest);
        let stamp = borne.filter(|it| it.is_datetime || is_within(it.time));
        let is_seen = position < self.before.entries;
        let journaled = self.journaled((&entry, member.as_ref()), borne, from, is_seen)?;
        self.sum_up(borne, stamp, from, (journaled, is_seen));
        if stamp.is_some() {
            self.release(stamp)?;
        }
        let deleted = (entry.change == Some(Change::Deleted)).then(|| resource_digest(&entry.loc));
        let is_doubted = deleted.is_some_and(|resource| self.doubts.contains(&resource));
        if !is_seen || is_doubted {
            let (document, before) = (self.document.number, self.last);
            let note = Note { document, position, stamp, before, next: None, deleted, is_doubted, journaled };
            self.waiting.push((entry, member, note));
            if borne.is_some_and(|it| it.is_datetime) || self.waiting.len() >= MOST_WAITING {
                self.release(None)?;
            }
        }
        if let Some(stamp) = stamp {
            self.last[usize::from(!stamp.is_datetime)] = Some(stamp.time);
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Counts an entry of this digest, and notices where the document does not begin as it did.
    fn extend_prefix(&mut self, digest: u64) {
        let (before, prefix) = (self.before, &mut self.document.state.prefix);
        self.hash.update(&digest.to_le_bytes());
        if prefix.entries == 0 {
            prefix.first = digest;
            self.is_other |= before.first != 0 && before.first != digest;
        }
        prefix.entries += 1;
        self.is_other |= prefix.entries == before.entries && self.hash.digest() != before.hash;
    }

    /// Compares an entry with the journal. Where the document does not begin as it did, the journal alone says which entries without a
    /// time are known.
    fn journaled(
        &mut self,
        (entry, member): (&Entry, Option<&PackageMember>),
        borne: Option<Stamp>,
        from: Option<Timestamp>,
        is_seen: bool,
    ) -> Result<InJournal, CatalogError> {
        let mut journaled = InJournal::Other;
        if let Some(stamp) = borne.filter(|_| !is_seen) {
            journaled = match (self.journal)(entry, member, Some(stamp.time))? {
                Some(Ordering::Equal) => InJournal::This,
                Some(Ordering::Greater) => InJournal::Later,
                _ => InJournal::Other,
            };
        }
        let has_datetime = borne.is_some_and(|it| it.is_datetime);
        if self.is_other && !has_datetime && journaled != InJournal::This && !self.is_another(from) {
            let said = (self.journal)(entry, member, None)?;
            if said == Some(Ordering::Equal) {
                journaled = InJournal::SaysTheSame;
                self.repeated += 1;
            }
        }
        Ok(journaled)
    }

    /// Adds an entry to what is known of its document as a whole: its times, and whether it goes on from the last look.
    fn sum_up(
        &mut self,
        borne: Option<Stamp>,
        stamp: Option<Stamp>,
        from: Option<Timestamp>,
        (journaled, is_seen): (InJournal, bool),
    ) {
        let is_applied = journaled == InJournal::This;
        let time = borne.map(|it| it.time);
        let datetime = borne.filter(|it| it.is_datetime).map(|it| it.time);
        let seen = datetime.or(time.filter(|_| is_applied));
        let is_dated = stamp.is_some_and(|it| it.is_datetime || from.is_some() || Some(it.time) > self.state.at);
        let document = &mut self.document;
        document.meets_known |= seen.is_some() && seen <= self.state.until;
        document.has_undated |= !is_dated && !is_seen && !is_applied && journaled != InJournal::SaysTheSame;
        document.spans.0 = [document.spans.0, datetime].into_iter().flatten().min();
        document.spans.1 = document.spans.1.max(time);
        stamp.iter().for_each(|stamp| document.times.see(*stamp));
    }

    /// Notes what waits for the `next` entry that bears a time.
    fn release(&mut self, next: Option<Stamp>) -> Result<(), CatalogError> {
        self.waiting.drain(..).try_for_each(|(entry, member, note)| {
            let is_known = note.journaled == InJournal::This && !note.is_doubted;
            self.notes.add(self.set, (&entry, member.as_ref()), &Note { next, ..note }, is_known)
        })
    }

    fn finish(mut self, header: &Header) -> Result<(ChangeDocument, Notes), CatalogError> {
        self.release(None)?;
        let ((from, until), mut document) = (self.interval(header), self.document);
        document.state.prefix.hash = self.hash.digest();
        (document.state.from, document.state.until) = (from, until);
        let listed = self.listed.filter(|entry| entry.until.is_none());
        document.state.listed = listed.and_then(|entry| entry.lastmod);
        document.meets_known |= self.before.entries.max(self.repeated) >= NO_ACCIDENT;
        let frame = Frame::of(self.state, document, None);
        let is_ambiguous = frame.document.has_undated && !frame.has_order();
        let written = frame.written_by().or(frame.newest());
        Ok((ChangeDocument { is_ambiguous, written, ..frame.document }, self.notes))
    }
}

/// The digest that stands for a resource among those that were asked.
pub fn resource_digest(uri: &Uri) -> u64 {
    xxh3_64(uri.as_str().as_bytes())
}

/// XXH3 over everything that an entry says of its change.
fn digest(entry: &Entry, member: Option<&PackageMember>) -> u64 {
    let mut hasher = Xxh3::new();
    (&entry.loc, entry.change, entry.datetime, entry.lastmod, &entry.hashes, entry.length).hash(&mut hasher);
    (&entry.media_type, &entry.encoding, &entry.path, member, &entry.links).hash(&mut hasher);
    hasher.digest()
}

/// True if an entry is a change: it does not point to a document of a known capability.
pub fn is_change(entry: &Entry) -> bool {
    entry.capability.as_ref().is_none_or(|capability| matches!(capability, Capability::Other(_)))
}
