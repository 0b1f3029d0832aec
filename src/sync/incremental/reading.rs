//! Reading one change document: of each entry a few octets are kept, whole only the entries that are new, and these only as long
//! as they are few.

use super::doubts::resource_digest;
use super::seen::{Comparison, Seen, digest};
use crate::document::{Capability, Change, Entry, Header, PackageMember, Timestamp};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many changes in the same order are no accident, though they have neither time nor digest nor length.
const NO_ACCIDENT: usize = 3;

/// Entries that are kept whole at one time, each link counted like an entry: with all that is made of them some 3 kB each.
const MOST_KEPT: usize = if cfg!(test) { 1000 } else { 50_000 };

/// Resources of one document that are known to have changed: 9 octets each. Beyond these every statement may count.
const MOST_CHANGED: usize = 1 << 20;

/// How many more entries may be kept whole, in all documents of one look together.
#[derive(Clone, Debug)]
pub struct Room(Arc<AtomicUsize>);

impl Default for Room {
    fn default() -> Room {
        Room(Arc::new(AtomicUsize::new(MOST_KEPT)))
    }
}

impl Room {
    /// Takes room for an entry. Where there is none there will be none any more.
    fn takes(&self, entry: &Entry) -> bool {
        let wanted = 1 + entry.links.len();
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(wanted)));
        taken.is_ok_and(|left| left >= wanted)
    }
}

/// Whether an entry of a change document counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It was there at the last look.
    Known,
    /// So it was, but a new entry of the same resource stands before it: the last one of a resource counts.
    Again,
    /// It was not there.
    New,
}

/// What is kept of every entry of a change document: 40 octets, a million entries in 40 MB.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Hash of the URI.
    pub uri: u64,
    /// Digest of the entry.
    pub digest: u64,
    /// Whether it counts.
    pub standing: Standing,
    /// Whether it tells of a deletion.
    pub is_deletion: bool,
    /// Whether it is a doubtful deletion that is asked about once more.
    pub is_doubted: bool,
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
        let (uri, is_deletion) = (resource_digest(&entry.loc), entry.change == Some(Change::Deleted));
        Mark { uri, digest, standing: Standing::Known, is_deletion, is_doubted: false, time, kind }
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
    /// Those that count, ascending by place; `None` where there was no room for them.
    pub(super) kept: Option<Vec<Kept>>,
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

    /// Its octets are those of the last look: it goes on from there.
    pub fn unchanged(self) -> ChangeDocument {
        ChangeDocument { meets_known: true, ..self }
    }

    /// Whether all entries that count are held. Else the document is to be read once more, as the entries are used.
    pub fn is_held(&self) -> bool {
        self.kept.is_some()
    }

    /// How many entries are held.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.kept.as_ref().map_or(0, Vec::len)
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
    room: Room,
    seen: Arc<Seen>,
    /// Entries that count as new although they are known, ascending.
    doubts: Arc<[u64]>,
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
        let (marks, kept, meets_known) = (Vec::new(), Some(Vec::new()), false);
        let document = ChangeDocument { location, header, listed, modified, latest, marks, kept, meets_known };
        // One that begins behind all that is known is another document in the old one's place.
        let is_another = document.from() > known_until && known_until.is_some();
        let before = if is_another { Arc::default() } else { seen.of_document(&document.location) };
        let (changed, scratch) = (HashSet::new(), Vec::new());
        let (room, comparison) = (Room::default(), Comparison::with(before));
        let doubts = Arc::default();
        Reading { document, room, seen, doubts, comparison, is_distinct: false, changed, scratch }
    }

    /// Has these entries, ascending, asked about once more.
    pub(super) fn doubting(self, doubts: Arc<[u64]>) -> Reading {
        Reading { doubts, ..self }
    }

    /// Shares `room` with other documents.
    pub fn within(self, room: &Room) -> Reading {
        Reading { room: room.clone(), ..self }
    }

    /// Takes the next entry. An entry that points to a document of a known capability is no change and is passed over.
    pub fn see(&mut self, entry: Entry, member: Option<PackageMember>) {
        if !is_change(&entry) {
            return;
        }
        let document = &mut self.document;
        let digest = digest(&entry, member.as_ref(), &mut self.scratch);
        let mut mark = Mark::of(&entry, digest, document.latest);
        let was_here = self.comparison.meets(digest);
        let is_known_event = is_event(&entry, document) && self.seen.anywhere(digest);
        self.is_distinct |= was_here && (entry.lastmod.is_some() || !entry.hashes.is_empty() || entry.length.is_some());
        let goes_on = self.comparison.overlap().is_some_and(|overlap| self.is_distinct || overlap >= NO_ACCIDENT);
        document.meets_known |= is_known_event || goes_on;
        mark.is_doubted = self.doubts.binary_search(&digest).is_ok();
        let is_new = mark.is_doubted || !(was_here || is_known_event);
        mark.standing = match is_new {
            true => Standing::New,
            false if self.changed.len() >= MOST_CHANGED || self.changed.contains(&mark.uri) => Standing::Again,
            false => Standing::Known,
        };
        if is_new && self.changed.len() < MOST_CHANGED {
            self.changed.insert(mark.uri);
        }
        let place = document.marks.len();
        document.marks.push(mark);
        if mark.standing != Standing::Known
            && let Some(kept) = &mut document.kept
        {
            match self.room.takes(&entry) {
                true => kept.push(Kept { place, entry, member }),
                false => document.kept = None,
            }
        }
    }

    /// Ends the document; `header` is all that stands below its root.
    pub fn end(mut self, header: Header) -> ChangeDocument {
        self.document.header = header;
        self.document
    }
}

/// Whether an entry tells of a change: it does not point to a document of a known capability.
pub fn is_change(entry: &Entry) -> bool {
    entry.capability.as_ref().is_none_or(|capability| matches!(capability, Capability::Other(_)))
}

/// Whether an entry bears the time of its change, so that its like is the same event wherever it stands.
fn is_event(entry: &Entry, document: &ChangeDocument) -> bool {
    let within = |time: Timestamp| {
        document.from().is_some_and(|from| from <= time) && document.until().is_none_or(|until| time <= until)
    };
    entry.datetime.is_some() || entry.lastmod.is_some_and(within)
}
