//! Reading one change document: a mark of each entry stays in memory; at the end it is known which entries are new.

use super::digest::digest;
use super::mark::Mark;
use super::order::{ambiguous, own_times};
use super::{ChangeState, Prefix, latest_believed};
use crate::catalog::CatalogError;
use crate::document::{Capability, Entry, Header, PackageMember, Timestamp};
use std::cmp::Ordering;
use xxhash_rust::xxh3::Xxh3;

/// So many changes in the same order are no accident, though they have neither time nor hash nor length.
const NO_ACCIDENT: u64 = 3;

/// Digests of undated entries that stay of one document.
pub const MOST_UNDATED: usize = 10_000;

/// How the last change of a resource that the catalog's journal holds stands to an entry with its time: later, this very one,
/// earlier; `None` where there is none, or another one of the same time.
pub type Journal<'j> = &'j dyn Fn(&Entry, Option<&PackageMember>, Timestamp) -> Result<Option<Ordering>, CatalogError>;

/// Takes the entries of a document one by one.
pub type Visit<'v, E> = &'v mut dyn FnMut(&Entry, Option<&PackageMember>) -> Result<(), E>;

/// A change document, before its entries are read.
#[derive(Clone, Debug)]
pub struct DocumentHead {
    /// Where it was asked for.
    pub location: String,
    /// What stands before its first entry, or more.
    pub header: Header,
    /// What an index says of it.
    pub listed: Option<Box<Entry>>,
    /// `Last-Modified` of the response.
    pub modified: Option<Timestamp>,
}

/// A change document that was read, with a mark of each entry.
#[derive(Debug)]
pub struct ChangeDocument {
    pub(super) head: DocumentHead,
    /// No time behind this is believed.
    latest: Timestamp,
    /// Every entry, in document order.
    pub(super) marks: Vec<Mark>,
    /// All entries.
    pub(super) prefix: Prefix,
    /// The last entries without a time of their own, in document order.
    pub(super) undated: Vec<u64>,
    /// Whether its entries prove that it goes on where the last look ended.
    pub(super) meets_known: bool,
    /// Whether it is in no order, so that it does not say what became of some resource.
    pub(super) is_ambiguous: bool,
    /// The time by which it was written, where that is known.
    pub(super) written: Option<Timestamp>,
}

impl ChangeDocument {
    /// Where it was asked for.
    pub fn location(&self) -> &str {
        &self.head.location
    }

    /// Start of its interval, by its own account, else by that of its index.
    pub fn from(&self) -> Option<Timestamp> {
        self.head.from(self.latest)
    }

    /// End of its interval. Where it says anything of its interval itself, an index above is not asked: it may be older.
    pub fn until(&self) -> Option<Timestamp> {
        let DocumentHead { header, listed, .. } = &self.head;
        let is_silent = header.from.is_none() && header.until.is_none();
        header.until.or(listed.as_deref().filter(|_| is_silent).and_then(|entry| entry.until))
    }

    /// Its bytes are those of the last look: it goes on from there.
    pub fn unchanged(self) -> ChangeDocument {
        ChangeDocument { meets_known: true, ..self }
    }

    /// Whether it holds all changes since `time`, by what can be seen.
    pub(super) fn reaches_back_to(&self, time: Timestamp) -> bool {
        let is_before = |mark: &Mark| mark.datetime().is_some_and(|datetime| datetime <= time);
        self.from().is_none_or(|from| from <= time) || self.marks.iter().any(is_before)
    }

    /// Whether it reaches beyond `time`: what it lacks of earlier changes will not be published any more.
    pub fn tells_beyond(&self, time: Timestamp) -> bool {
        self.until().max(self.from()) >= Some(time)
            || self.marks.iter().any(|mark| mark.time().is_some_and(|own| own > time))
    }
}

impl DocumentHead {
    fn from(&self, latest: Timestamp) -> Option<Timestamp> {
        let listed = self.listed.as_deref().and_then(|entry| entry.from);
        self.header.from.or(listed).filter(|from| *from <= latest)
    }
}

/// A change document while it is read.
struct Reading<'k> {
    state: &'k ChangeState,
    document: ChangeDocument,
    /// What the last look saw of it; its entries are known without the journal as long as they may be these.
    before: Prefix,
    hash: Xxh3,
    /// Doubtful deletions that count as new although they are known, ascending.
    doubts: Vec<u64>,
    /// Whether the document does not begin with the entries of the last look.
    is_other: bool,
    scratch: Vec<u8>,
}

impl Reading<'_> {
    fn new(state: &ChangeState, head: DocumentHead, now: Timestamp, before: Prefix) -> Reading<'_> {
        let doubts = state.asked_doubts(&head.location);
        let document = ChangeDocument {
            head,
            latest: latest_believed(now),
            marks: Vec::new(),
            prefix: Prefix::default(),
            undated: Vec::new(),
            meets_known: false,
            is_ambiguous: false,
            written: None,
        };
        let (hash, scratch) = (Xxh3::new(), Vec::new());
        Reading { state, document, before, hash, doubts, is_other: false, scratch }
    }

    /// Takes the next entry. One that points to a document of a known capability is no change and is passed over.
    fn see(&mut self, entry: &Entry, member: Option<&PackageMember>, journal: Journal<'_>) -> Result<(), CatalogError> {
        if self.is_other || !is_change(entry) {
            return Ok(());
        }
        let document = &mut self.document;
        let digest = digest(entry, member, &mut self.scratch);
        let mut mark = Mark::of(entry, digest, document.latest);
        mark.is_doubted = self.doubts.binary_search(&digest).is_ok();
        let seen = document.marks.len() as u64;
        if let Some(time) = mark.time().filter(|_| seen >= self.before.entries) {
            mark.journaled = journal(entry, member, time)?;
        }
        document.marks.push(mark);
        self.hash.update(&digest.to_le_bytes());
        if seen + 1 == self.before.entries {
            self.is_other = self.hash.digest() != self.before.hash;
        }
        Ok(())
    }

    /// Whether the document begins with the entries of the last look.
    fn begins_as_before(&self) -> bool {
        !self.is_other && self.document.marks.len() as u64 >= self.before.entries
    }

    /// Ends the document; `header` is all that stands below its root, `undated` what the last look kept of its undated entries.
    fn end(self, header: Header, now: Timestamp, undated: &[u64]) -> ChangeDocument {
        let Reading { state, mut document, before, hash, .. } = self;
        document.head.header = header;
        document.prefix = Prefix { entries: document.marks.len() as u64, hash: hash.digest() };
        let frame = state.frame(&document, now);
        let (_, times) = own_times(&document.marks, &frame);
        let all: Vec<u64> =
            document.marks.iter().zip(&times).filter(|(_, time)| time.is_none()).map(|(mark, _)| mark.digest).collect();
        // Behind the entries of the last look everything is new that the journal does not hold.
        let repeated = if before.entries > 0 { 0 } else { overlap(undated, &all) };
        let (mut rank, mut is_distinct) = (0, false);
        for (place, (mark, time)) in document.marks.iter_mut().zip(&times).enumerate() {
            rank += usize::from(time.is_none());
            let is_repeated = (place as u64) < before.entries || time.is_none() && rank <= repeated;
            is_distinct |= is_repeated && (time.is_some() || mark.is_distinct);
            let is_known = is_repeated || time.is_some() && mark.is_applied(state.until());
            mark.is_new = mark.is_doubted || !is_known;
        }
        let was_seen = |mark: &Mark| {
            let is_applied = mark.journaled == Some(Ordering::Equal);
            mark.datetime().or(mark.time().filter(|_| is_applied)).is_some_and(|time| Some(time) <= state.until())
        };
        let is_no_accident = is_distinct || before.entries.max(repeated as u64) >= NO_ACCIDENT;
        document.meets_known = is_no_accident || document.marks.iter().any(was_seen);
        document.is_ambiguous = !ambiguous(&document.marks, &frame).is_empty();
        document.written = frame.written_by().or(times.into_iter().flatten().max());
        document.undated = all[all.len().saturating_sub(MOST_UNDATED)..].to_vec();
        document
    }
}

/// How many entries `now` begins with that were there `before`, of which these are the last.
fn overlap(before: &[u64], now: &[u64]) -> usize {
    // What stood before them did not stay: `now` may begin with that.
    if before.len() == MOST_UNDATED {
        if let Some(place) = now.windows(before.len()).rposition(|window| window == before) {
            return place + before.len();
        }
    }
    let most = before.len().min(now.len());
    (0..=most).rev().find(|count| before[before.len() - count..] == now[..*count]).unwrap_or(0)
}

impl ChangeState {
    /// Reads a document. `read` goes through its entries, twice where the document does not begin as it did at the last look, and
    /// returns its whole header; `now` is the time of the look.
    pub fn read_document<E: From<CatalogError>>(
        &self,
        head: DocumentHead,
        now: Timestamp,
        journal: Journal<'_>,
        read: &mut dyn FnMut(Visit<'_, E>) -> Result<Header, E>,
    ) -> Result<ChangeDocument, E> {
        // One that begins behind all that is known is another document in the old one's place.
        let is_another = head.from(latest_believed(now)) > self.until() && self.until.is_some();
        let known = self.document(&head.location).filter(|_| !is_another);
        let (before, undated) = known.map_or((Prefix::default(), &[][..]), |it| (it.prefix, &it.undated[..]));
        let mut reading = Reading::new(self, head.clone(), now, before);
        let mut header = read(&mut |entry, member| Ok(reading.see(entry, member, journal)?))?;
        if !reading.begins_as_before() {
            reading = Reading::new(self, head, now, Prefix::default());
            header = read(&mut |entry, member| Ok(reading.see(entry, member, journal)?))?;
        }
        Ok(reading.end(header, now, undated))
    }
}

/// Whether an entry is a change: it does not point to a document of a known capability.
pub fn is_change(entry: &Entry) -> bool {
    entry.capability.as_ref().is_none_or(|capability| matches!(capability, Capability::Other(_)))
}
