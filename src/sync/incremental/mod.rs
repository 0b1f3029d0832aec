//! What change documents say that is new, in which order it counts, and whether it goes on where the last look ended. Pure.
//!
//! A root is a Change List, a Change List Index or a Change List Archive that the Source offers (section 12), or a Change Dump
//! whose manifests are read (section 13). For each there is one [`Known`], stored with the revision. A look at a root:
//!
//! 1. [`Known::wanted`] says which children of an index are asked for; the others count as unread. Those that cannot be had are
//!    [lost](Known::lacking) and wanted on.
//! 2. [`Known::seen`] once, then for each list [`Known::reading`], [`Reading::see`] for each of its entries and
//!    [`Reading::end`]: a [`ChangeDocument`], which holds whole only what is new, or where that is too much nothing.
//! 3. [`Known::is_joined_by`]: `false` is a gap, which a new baseline closes. One that it does not close is marked by
//!    [`Known::tear`], and the changes are applied all the same.
//! 4. [`Known::read`]: the new changes, each resource once, each with its settled time, and the next [`Known`]. Where they are too
//!    many to be held, [`Known::settle`]: the settled times by place, for whoever reads the documents once more.
//!
//! After a baseline [`Known::rebased`] goes on with the time that it speaks for; [`Known::since`] begins with it.
//!
//! *Position.* What was seen is known by the digests of its entries, not by time: in version 1.1 `lastmod` is the resource's own
//! and may be years old, and a list may be written newest first or in no order.
//!
//! *Times.* A change happened at its `datetime`, else at a `lastmod` within `from`…`until`, else at its place: behind the entry
//! before it. What bears a time up to the baseline's is in the baseline. What bears none and may be older is applied all the
//! same, for that changes nothing; but a deletion of this kind is doubtful, and the resource itself must be asked. As long as it
//! has not answered ([`Known::answered`]) the entry counts as new at each look, and stays doubtful.
//!
//! A document in no order at all cannot tell by places: of a resource that it says several things of, one of them without time,
//! nothing is told, and that is a gap, unless the baseline is newer than the document.
//!
//! *Continuity* is proved by one entry with its time that was seen before, by entries without that go on in the order they had, or
//! by `from` at or before what is known. Without `from`, and with
//! nothing seen before, no gap can be seen.

mod doubts;
mod lost;
mod order;
mod reading;
mod seen;
#[cfg(test)]
mod tests;
mod wanted;

pub use doubts::{MOST_ASKED, resource_digest, some};
pub use lost::{Absent, Asked, Lost};
pub use reading::{ChangeDocument, Reading, Room, is_change};
pub use seen::Seen;

use crate::document::{Change, Entry, Header, PackageMember, Timestamp, Uri};
use order::{Frame, Moment, ambiguous, is_covered, settle};
use reading::{Kept, Mark, Standing};
use seen::Digests;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet, hash_map};
use std::convert::Infallible;
use std::sync::Arc;

/// Digests kept for one root: beyond this many those of older lists are dropped, never those of the newest.
const MOST_DIGESTS: usize = 1 << 19;

/// A time so many seconds ahead is no time, neither by a clock that is wrong nor by a zone that is not told: believed, it would
/// outlast every change that is still to come.
const CLOCKS_DIFFER: i64 = 24 * 3600;

/// Seconds and nanoseconds since the epoch, as stored.
type Stored = (i64, u32);

/// How far the changes of one root are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The time that the baseline speaks for.
    at: Option<Stored>,
    /// Changes are known up to here.
    until: Option<Stored>,
    /// The latest time that a place alone has settled.
    by_place: Option<Stored>,
    /// What happened later is not told, where the state of an earlier time is wanted.
    #[serde(default)]
    ends: Option<Stored>,
    /// The change documents read, oldest first.
    documents: Vec<DocumentRead>,
    /// Those that could not be had when they were asked for last.
    #[serde(default)]
    lost: Vec<Lost>,
    /// Since when changes may be missing that nothing published tells of.
    pub gap_since: Option<Stored>,
}

/// How far one change document is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DocumentRead {
    location: String,
    /// Its entries. None are kept of a list that is closed and older than what is known: it does not change any more.
    entries: Digests,
    /// End of its interval, where it is closed.
    until: Option<Stored>,
    /// `lastmod` of the entry of its index, where that is all it says of the end.
    listed: Option<Stored>,
    /// What is not here came later: its Last-Modified, else, where none of its entries bears a time, when it was read.
    read: Option<Stored>,
    /// Those of its entries, ascending, that are doubtful deletions of resources that have not answered.
    #[serde(default)]
    doubts: Digests,
    /// The doubtful deletions that are asked about now: resource and entry.
    #[serde(skip)]
    asked: Vec<(u64, u64)>,
}

impl DocumentRead {
    /// Whether something in it is still to be asked about.
    fn is_open(&self) -> bool {
        !self.doubts.0.is_empty() || !self.asked.is_empty()
    }
}

/// One change that was not known before, the last of its resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewChange {
    /// What happened; an entry that does not say is taken for an update.
    pub change: Change,
    /// When, as far as can be told.
    pub time: Timestamp,
    /// Whether this is a deletion that may be older than the baseline: it is believed where the resource itself answers 404 or
    /// 410, and nowhere else.
    pub is_doubtful: bool,
    /// The entry.
    pub entry: Entry,
    /// Where a package holds the new bytes.
    pub member: Option<PackageMember>,
}

/// What was made of the change documents of a root.
#[derive(Debug)]
pub struct News {
    /// Of each resource the last, in ascending order of time.
    pub changes: Vec<NewChange>,
    /// How far the changes are known when these are applied.
    pub known: Known,
}

/// A change document of which it is settled when each of its changes happened.
#[derive(Debug)]
pub struct SettledDocument {
    /// Where it was asked for.
    pub location: String,
    marks: Vec<Mark>,
    moments: Vec<Option<Moment>>,
    kept: Option<Vec<Kept>>,
}

/// When a change happened, and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// When, as far as can be told.
    pub time: Timestamp,
    /// Its place among the changes of its document, oldest first.
    pub place: usize,
    /// Whether it was not known before.
    pub is_new: bool,
    /// See [`NewChange::is_doubtful`]; also where it is no deletion.
    pub is_doubtful: bool,
}

impl SettledDocument {
    /// The change at a place of the document, its entries [that are changes](is_change) counted from 0; `None` where it does
    /// not count.
    pub fn at(&self, place: usize) -> Option<Settled> {
        let (mark, moment) = (self.marks.get(place)?, self.moments.get(place).copied().flatten()?);
        let Moment { time, place, is_doubtful, .. } = moment;
        Some(Settled { time, place, is_new: mark.standing == Standing::New, is_doubtful })
    }
}

/// The latest statement about a resource so far.
struct Latest {
    /// Time, number of the document, place in its order.
    order: (Timestamp, usize, usize),
    /// Statements of the resource that were new.
    new: usize,
    change: NewChange,
}

impl Known {
    /// Nothing is known but a baseline that speaks for `at`; `None` where no time is known that it could speak for.
    pub fn since(at: Option<Timestamp>) -> Known {
        Known { at: at.map(stored), until: at.map(stored), ..Known::default() }
    }

    /// Other documents of the set have told its changes up to `until`: what begins there goes on from them, though all that it
    /// holds itself is still to be applied.
    pub fn beside(mut self, until: Option<Timestamp>) -> Known {
        self.until = self.until.max(until.map(stored));
        self
    }

    /// The time that the state of an earlier time was brought forward to; `None` where today's is wanted. `is_final`: all that
    /// will ever be told of that time is known.
    pub fn brought_to(&self, is_final: bool) -> Option<Timestamp> {
        let ends = self.ends?;
        let reached = if is_final { ends } else { self.until.map_or(ends, |until| until.min(ends)) };
        let reached = loaded(reached);
        Some(self.missing_since().map_or(reached, |gap| gap.min(reached)))
    }

    /// The same for changes up to `ends` alone, that moment included.
    pub fn up_to(mut self, ends: Timestamp) -> Known {
        self.ends = Some(stored(ends));
        self
    }

    /// The time up to which changes are known.
    pub fn until(&self) -> Option<Timestamp> {
        self.until.map(loaded)
    }

    /// A baseline was made that speaks for `at`: what was known of changes stays known.
    pub fn rebased(mut self, at: Option<Timestamp>) -> Known {
        self.at = self.at.max(at.map(stored));
        self.until = self.until.max(self.at);
        self.forget_covered();
        self
    }

    /// All that was seen, to compare documents with.
    pub fn seen(&self) -> Arc<Seen> {
        Arc::new(Seen::of(self.documents.iter().map(|read| (read.location.as_str(), &read.entries))))
    }

    /// Begins to read a list. `header` need hold no more than what stands before its first entry; `listed` is what an index
    /// says of it, `modified` the `Last-Modified` it came with, `now` the time of the look.
    pub fn reading(
        &self,
        seen: &Arc<Seen>,
        location: String,
        header: Header,
        listed: Option<Box<Entry>>,
        modified: Option<Timestamp>,
        now: Timestamp,
    ) -> Reading {
        let times = (self.until(), latest_believed(now));
        let open = self.documents.iter().filter(|read| read.is_open()).count();
        let doubts = self.document(&location).map(|read| doubts::asked(&read.doubts.0, open)).unwrap_or_default();
        Reading::new(seen.clone(), times, location, header, listed, modified).doubting(doubts)
    }

    /// Whether `documents` go on where the last look ended, as far as can be seen; `unread` were left out because they hold
    /// nothing new.
    pub fn is_joined_by(&self, documents: &[ChangeDocument], unread: &[String]) -> bool {
        let is_joined = documents.is_empty() || !unread.is_empty() || documents.iter().any(|it| self.joins(it));
        is_joined && !documents.iter().any(|it| self.is_disordered(it))
    }

    /// Whether the intervals of `documents` follow one another without a gap from what is known on. What begins after the time
    /// that is wanted does not count.
    pub fn is_followed_by<'d>(&self, documents: impl Iterator<Item = &'d ChangeDocument>) -> bool {
        let Some(mut reached) = self.until else { return true };
        let interval = |it: &ChangeDocument| (it.from().map(stored), it.until().map_or((i64::MAX, 0), stored));
        let mut intervals: Vec<_> = documents.filter(|it| !self.is_beyond(it.from())).map(interval).collect();
        intervals.sort_unstable();
        !intervals.is_empty()
            && intervals.into_iter().all(|(from, until)| {
                let goes_on = from.is_some_and(|from| from <= reached);
                reached = reached.max(until);
                goes_on
            })
    }

    /// Whether the state of an earlier time is wanted.
    pub fn is_of_the_past(&self) -> bool {
        self.ends.is_some()
    }

    /// Whether all that a document tells, whose interval begins at `from`, happened after the time that is wanted.
    pub fn is_beyond(&self, from: Option<Timestamp>) -> bool {
        self.ends.is_some_and(|ends| from.map(stored) > Some(ends))
    }

    /// Whether a document goes on where the last look ended: it holds an entry that is known, or begins before.
    fn joins(&self, document: &ChangeDocument) -> bool {
        let is_unknown = || self.document(&document.location).is_none_or(|read| read.entries.0.is_empty());
        match document.from() {
            // Nothing is known from any time on that could be missed.
            _ if self.until.is_none() && self.documents.is_empty() => true,
            Some(from) if Some(stored(from)) <= self.until => true,
            None if is_unknown() => true,
            _ => document.meets_known,
        }
    }

    /// Whether what became of some resource can only be told by a baseline that is newer than the document.
    fn is_disordered(&self, document: &ChangeDocument) -> bool {
        // Only whether entries bear a time counts here, not which moments become of it.
        let frame = self.frame(document, Timestamp { seconds: 0, nanos: 0 });
        !ambiguous(&document.marks, &frame).is_empty() && !is_covered(&document.marks, &frame)
    }

    /// What `documents`, whose new entries are all [held](ChangeDocument::is_held), say that is not known. They are all that
    /// there are now, but those of `unread`, which were left out. `now` is the time of the look.
    pub fn read(&self, documents: Vec<ChangeDocument>, unread: &[String], now: Timestamp) -> News {
        let mut latest: HashMap<Uri, Latest> = HashMap::new();
        let settled = self.settle(documents, unread, now, &mut |number, mut document| {
            for kept in document.kept.take().unwrap_or_default() {
                if let Some(settled) = document.at(kept.place) {
                    Latest::note(&mut latest, number, settled, kept);
                }
            }
            Ok::<(), Infallible>(())
        });
        let Ok(known) = settled;
        let new = latest.into_values().filter(|latest| latest.new > 0);
        let mut changes: Vec<(usize, usize, NewChange)> =
            new.map(|latest| (latest.order.1, latest.order.2, latest.settled())).collect();
        changes.sort_unstable_by_key(|(number, place, change)| (change.time, *number, *place));
        News { changes: changes.into_iter().map(|(_, _, change)| change).collect(), known }
    }

    /// As [`Known::read`], for any documents: tells of each, by number, when its changes happened. How far changes are known
    /// when these are applied.
    pub fn settle<E>(
        &self,
        mut documents: Vec<ChangeDocument>,
        unread: &[String],
        now: Timestamp,
        tell: &mut dyn FnMut(usize, SettledDocument) -> Result<(), E>,
    ) -> Result<Known, E> {
        // The open list last: it holds the newest, and it is the one that goes on growing.
        documents.sort_by_key(|document| (document.until().is_none(), document.until(), document.from()));
        let mut known = Known { documents: Vec::with_capacity(documents.len()), ..self.clone() };
        let (unread, lost): (HashSet<&str>, _) = (unread.iter().map(String::as_str).collect(), self.lost_before());
        known.documents.extend(self.documents.iter().filter(|read| unread.contains(read.location.as_str())).cloned());
        let mut has_found = false;
        for (number, document) in documents.into_iter().enumerate() {
            // What an older list says by its places is older than what the next one says so. One that was lost may be the
            // oldest of all.
            let by_place = known.by_place.filter(|_| !lost.contains_key(document.location.as_str()));
            let (floor, by_place) = (self.floor(&document, by_place), by_place.map(loaded));
            let frame = Frame { floor, by_place, ..self.frame(&document, now) };
            let mut moments = settle(&document.marks, &frame);
            for (mark, moment) in document.marks.iter().zip(&mut moments).filter(|(mark, _)| mark.is_doubted) {
                *moment = moment.map(|moment| Moment { is_doubtful: true, ..moment }).filter(|_| mark.is_deletion);
            }
            let ambiguous = ambiguous(&document.marks, &frame);
            known.reach(document.until(), now);
            let (_, times) = order::own_times(&document.marks, &frame);
            times.iter().for_each(|time| known.reach(*time, now));
            let is_undated = times.iter().all(Option::is_none);
            drop(times);
            let (until, modified) = (document.until().map(stored), document.modified.map(|time| time.min(now)));
            let ChangeDocument { marks, kept, listed, location, .. } = document;
            let listed = listed.as_deref().filter(|entry| entry.until.is_none()).and_then(|entry| entry.lastmod);
            for (mark, moment) in marks.iter().zip(&mut moments) {
                // What is ambiguous the baseline decides: that there must be one has been told as a gap.
                let counts = mark.standing != Standing::Known && !ambiguous.contains(&mark.uri);
                let is_wanted = |moment: &Moment| self.ends.is_none_or(|ends| stored(moment.time) <= ends);
                *moment = moment.filter(is_wanted).filter(|_| counts);
                let by_place = moment.and_then(|moment| moment.by_place).map(stored);
                known.by_place = known.by_place.max(by_place);
            }
            let open = self.document(&location).map_or(&[][..], |read| &read.doubts.0);
            let stays = |mark: &&Mark| !mark.is_doubted && open.binary_search(&mark.digest).is_ok();
            let mut doubts: Vec<u64> = marks.iter().filter(stays).map(|mark| mark.digest).collect();
            doubts.sort_unstable();
            doubts.dedup();
            let is_asked = |(mark, moment): &(&Mark, &Option<Moment>)| {
                mark.standing == Standing::New && mark.is_deletion && moment.is_some_and(|moment| moment.is_doubtful)
            };
            let asked = marks.iter().zip(&moments).filter(is_asked).map(|(mark, _)| (mark.uri, mark.digest)).collect();
            known.documents.push(DocumentRead {
                doubts: Digests(doubts.into()),
                asked,
                entries: Digests(marks.iter().map(|mark| mark.digest).collect()),
                until,
                listed: listed.map(stored),
                read: modified.or(is_undated.then_some(now)).map(stored),
                location: location.clone(),
            });
            known.forget_closed();
            has_found |= lost.contains_key(location.as_str());
            tell(number, SettledDocument { location, marks, moments, kept })?;
        }
        if has_found {
            // Read last, it is not the newest.
            known.documents.sort_by_key(|read| (read.until.is_none(), read.until));
        }
        known.shorten();
        Ok(known)
    }

    fn frame(&self, document: &ChangeDocument, now: Timestamp) -> Frame {
        Frame {
            from: document.from(),
            until: document.until(),
            at: self.at.map(loaded),
            is_first_look: self.documents.is_empty(),
            floor: self.floor(document, self.by_place),
            by_place: self.by_place.map(loaded),
            modified: document.modified,
            now,
        }
    }

    /// What is new in `document` and bears no time came after this.
    fn floor(&self, document: &ChangeDocument, by_place: Option<Stored>) -> Option<Timestamp> {
        let read = self.document(&document.location).and_then(|before| before.read);
        read.max(self.at).max(by_place).map(loaded)
    }

    /// Changes up to `time` are known; a time that is yet to come is none.
    fn reach(&mut self, time: Option<Timestamp>, now: Timestamp) {
        let ends = self.ends.map_or(now, |ends| now.min(loaded(ends)));
        self.until = self.until.max(time.map(|time| stored(time.min(ends))));
    }

    /// Drops the digests of lists that do not change any more, while further ones are still to come.
    fn forget_closed(&mut self) {
        let until = self.until;
        // As in `shorten`; one more may come to be the newest.
        for read in self.documents.iter_mut().rev().skip(2) {
            if read.until.is_some() && read.until <= until && !read.is_open() {
                read.entries = Digests::default();
            }
        }
    }

    /// Drops the digests of what does not change any more, and those beyond [`MOST_DIGESTS`]. Nothing stays of a list that
    /// its index will never have asked for again.
    fn shorten(&mut self) {
        let Some((newest, older)) = self.documents.split_last_mut() else { return };
        let mut room = MOST_DIGESTS.saturating_sub(newest.entries.0.len());
        // The list before the newest stays whole: entries may wander from the one to the other.
        for (age, read) in older.iter_mut().rev().enumerate() {
            let is_over = age > 0 && read.until.is_some() && read.until <= self.until;
            if read.is_open() {
                // Without its digests all of it would be new.
                room = room.saturating_sub(read.entries.0.len());
                continue;
            }
            match room.checked_sub(read.entries.0.len()) {
                Some(left) if !is_over => room = left,
                _ => read.entries = Digests::default(),
            }
        }
        let until = self.until;
        let is_short = |read: &DocumentRead| read.entries.0.is_empty() && read.until.is_some() && read.until <= until;
        let last = self.documents.len();
        let mut number = 0;
        self.documents.retain(|read| {
            number += 1;
            number == last || !is_short(read) || read.listed.is_some()
        });
    }

    /// Of the resources that were asked whether they are gone these have not answered: what is said of them stays open.
    pub fn answered(&mut self, unanswered: &HashSet<u64>) {
        for read in &mut self.documents {
            let asked = std::mem::take(&mut read.asked).into_iter();
            let open = asked.filter(|(resource, _)| unanswered.contains(resource)).map(|(_, entry)| entry);
            let mut open: Vec<u64> = open.chain(read.doubts.0.iter().copied()).collect();
            open.sort_unstable();
            open.dedup();
            read.doubts = Digests(open.into());
        }
    }

    /// Deletions that are still to be asked about.
    pub fn doubts(&self) -> usize {
        self.documents.iter().map(|read| read.doubts.0.len()).sum()
    }

    /// Whether `other` knows the same entries of the same documents: a list whose `until` is the time of the request says
    /// nothing new by that.
    pub fn knows_the_same(&self, other: &Known) -> bool {
        let entries = |known: &Known| -> Vec<(String, Digests, Digests)> {
            let read = known.documents.iter();
            read.map(|read| (read.location.clone(), read.entries.clone(), read.doubts.clone())).collect()
        };
        self.gap_since == other.gap_since && self.lost == other.lost && entries(self) == entries(other)
    }

    fn document(&self, location: &str) -> Option<&DocumentRead> {
        self.documents.iter().find(|read| read.location == location)
    }

    /// The documents that were read.
    pub fn locations(&self) -> impl Iterator<Item = &str> {
        self.documents.iter().map(|read| read.location.as_str())
    }

    /// Marks that changes after what is known may be missing, unless an earlier mark stands.
    pub fn tear(&mut self, now: Timestamp) {
        self.gap_since = self.gap_since.or(self.until).or(Some(stored(now)));
    }
}

impl Latest {
    fn note(latest: &mut HashMap<Uri, Latest>, number: usize, settled: Settled, mut kept: Kept) {
        let order = (settled.time, number, settled.place);
        let change = NewChange {
            change: *kept.entry.change.get_or_insert(Change::Updated),
            time: settled.time,
            is_doubtful: settled.is_doubtful,
            entry: kept.entry,
            member: kept.member,
        };
        let new = usize::from(settled.is_new);
        match latest.entry(change.entry.loc.clone()) {
            hash_map::Entry::Vacant(vacant) => _ = vacant.insert(Latest { order, new, change }),
            hash_map::Entry::Occupied(mut occupied) => {
                let latest = occupied.get_mut();
                latest.new += new;
                if latest.order <= order {
                    (latest.order, latest.change) = (order, change);
                }
            }
        }
    }

    fn settled(self) -> NewChange {
        let is_doubtful = self.change.is_doubtful && self.change.change == Change::Deleted;
        NewChange { is_doubtful, ..self.change }
    }
}

/// No time behind this is believed where it is `now`.
pub fn latest_believed(now: Timestamp) -> Timestamp {
    Timestamp { seconds: now.seconds.saturating_add(CLOCKS_DIFFER), ..now }
}

fn stored(time: Timestamp) -> Stored {
    (time.seconds, time.nanos)
}

fn loaded((seconds, nanos): Stored) -> Timestamp {
    Timestamp { seconds, nanos }
}
