//! Reading one change document: of each entry a few octets are kept, whole only the entries that are new.

use super::order::{self, Frame};
use super::seen::{Comparison, Seen, digest};
use crate::document::{Capability, Entry, Header, PackageMember, Timestamp};
use std::collections::HashSet;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// So many changes in the same order are no accident, though they have neither time nor digest nor length.
const NO_ACCIDENT: usize = 3;

/// What is kept of every entry of a change document: 40 octets, a million entries in 40 MB.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Hash of the URI.
    pub uri: u64,
    /// Digest of the entry.
    pub digest: u64,
    time: Timestamp,
    kind: TimeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeKind {
    Datetime,
    LastMod,
    None,
}

impl Mark {
    fn of(entry: &Entry, digest: u64, latest: Timestamp) -> Mark {
        let possible = |time: Option<Timestamp>| time.filter(|time| *time <= latest);
        let (time, kind) = match (possible(entry.datetime), possible(entry.lastmod)) {
            (Some(time), _) => (time, TimeKind::Datetime),
            (None, Some(time)) => (time, TimeKind::LastMod),
            (None, None) => (Timestamp { seconds: 0, nanos: 0 }, TimeKind::None),
        };
        Mark { uri: xxh3_64(entry.loc.as_str().as_bytes()), digest, time, kind }
    }

    /// The entry's `datetime`.
    pub fn datetime(&self) -> Option<Timestamp> {
        (self.kind == TimeKind::Datetime).then_some(self.time)
    }

    /// Its `lastmod`, where it has no `datetime`.
    pub fn lastmod(&self) -> Option<Timestamp> {
        (self.kind == TimeKind::LastMod).then_some(self.time)
    }
}

/// An entry that is kept whole.
#[derive(Debug)]
pub struct Kept {
    /// Its place in the document.
    pub place: usize,
    /// Whether it was not there at the last look. What was there is kept where a new entry of the same resource stands before
    /// it: the last one of a resource counts.
    pub is_new: bool,
    /// The entry.
    pub entry: Entry,
    /// Where a package holds its bytes.
    pub member: Option<PackageMember>,
}

/// A change document as it was fetched, with the entries that are new.
#[derive(Debug)]
pub struct ChangeDocument {
    /// Where it was asked for.
    pub location: String,
    /// Its own header.
    pub header: Header,
    /// What an index says of it.
    pub listed: Option<Box<Entry>>,
    /// `Last-Modified` of the response.
    pub modified: Option<Timestamp>,
    /// No time behind this is believed.
    latest: Timestamp,
    /// Every entry, in document order.
    pub(super) marks: Vec<Mark>,
    /// Those kept whole, ascending by place.
    pub(super) kept: Vec<Kept>,
    /// Whether its entries prove that it goes on where the last look ended.
    pub(super) meets_known: bool,
}

impl ChangeDocument {
    /// Start of its interval, by its own account, else by that of its index.
    pub fn from(&self) -> Option<Timestamp> {
        from(&self.header, self.listed.as_deref()).filter(|from| *from <= self.latest)
    }

    /// End of its interval. Where it says anything of its interval itself, an index above is not asked: it may be older.
    pub fn until(&self) -> Option<Timestamp> {
        until(&self.header, self.listed.as_deref())
    }

    /// Whether it tells of the time after `time`: what it lacks of earlier changes will not be told any more.
    pub fn tells_beyond(&self, time: Timestamp) -> bool {
        self.until().max(self.from()) >= Some(time)
            || self.marks.iter().any(|mark| mark.kind != TimeKind::None && mark.time > time)
    }

    /// See [`order::ambiguous`].
    pub(super) fn ambiguous(&self, frame: &Frame) -> HashSet<u64> {
        let is_new = |place| {
            let found = self.kept.binary_search_by_key(&place, |kept| kept.place);
            found.is_ok_and(|at| self.kept[at].is_new)
        };
        order::ambiguous(&self.marks, frame, &is_new)
    }
}

fn from(header: &Header, listed: Option<&Entry>) -> Option<Timestamp> {
    header.from.or(listed.and_then(|entry| entry.from))
}

fn until(header: &Header, listed: Option<&Entry>) -> Option<Timestamp> {
    let is_silent = header.from.is_none() && header.until.is_none();
    header.until.or(listed.filter(|_| is_silent).and_then(|entry| entry.until))
}

/// A change document while it is read: [`Reading::see`] takes its entries one by one.
#[derive(Debug)]
pub struct Reading {
    document: ChangeDocument,
    seen: Arc<Seen>,
    comparison: Comparison,
    /// Whether one of the entries that were there at the last look is unlike all others.
    is_distinct: bool,
    /// Hashes of the URIs that have a new entry.
    changed: HashSet<u64>,
    scratch: Vec<u8>,
}

impl Reading {
    /// Begins a document. `header` need hold no more than what stands before the first entry; `known_until` is the time up to
    /// which changes are known, `latest` the latest time that is believed.
    pub(super) fn new(
        seen: Arc<Seen>,
        (known_until, latest): (Option<Timestamp>, Timestamp),
        location: String,
        header: Header,
        listed: Option<Box<Entry>>,
        modified: Option<Timestamp>,
    ) -> Reading {
        let (marks, kept, meets_known) = (Vec::new(), Vec::new(), false);
        let document = ChangeDocument { location, header, listed, modified, latest, marks, kept, meets_known };
        // One that begins behind all that is known is another document in the old one's place.
        let is_another = document.from() > known_until && known_until.is_some();
        let before = if is_another { Arc::default() } else { seen.of_document(&document.location) };
        let (changed, scratch) = (HashSet::new(), Vec::new());
        Reading { document, seen, comparison: Comparison::with(before), is_distinct: false, changed, scratch }
    }

    /// Takes the next entry. An entry that points to a document of a known capability is no change and is passed over.
    pub fn see(&mut self, entry: Entry, member: Option<PackageMember>) {
        if !entry.capability.as_ref().is_none_or(|capability| matches!(capability, Capability::Other(_))) {
            return;
        }
        let document = &mut self.document;
        let digest = digest(&entry, member.as_ref(), &mut self.scratch);
        let mark = Mark::of(&entry, digest, document.latest);
        let was_here = self.comparison.meets(digest);
        let is_known_event = is_event(&entry, document) && self.seen.anywhere(digest);
        self.is_distinct |= was_here && (entry.lastmod.is_some() || !entry.hashes.is_empty() || entry.length.is_some());
        let goes_on = self.comparison.overlap().is_some_and(|overlap| self.is_distinct || overlap >= NO_ACCIDENT);
        document.meets_known |= is_known_event || goes_on;
        let is_new = !(was_here || is_known_event);
        let place = document.marks.len();
        document.marks.push(mark);
        if is_new {
            self.changed.insert(mark.uri);
        }
        if is_new || self.changed.contains(&mark.uri) {
            document.kept.push(Kept { place, is_new, entry, member });
        }
    }

    /// Ends the document; `header` is all that stands below its root.
    pub fn end(mut self, header: Header) -> ChangeDocument {
        self.document.header = header;
        self.document
    }
}

/// Whether an entry bears the time of its change, so that its like is the same event wherever it stands.
fn is_event(entry: &Entry, document: &ChangeDocument) -> bool {
    let within = |time: Timestamp| {
        document.from().is_some_and(|from| from <= time) && document.until().is_none_or(|until| time <= until)
    };
    entry.datetime.is_some() || entry.lastmod.is_some_and(within)
}
