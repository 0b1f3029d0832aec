//! When each change of a document happened, by what its document says: a running rule over its entries.

use super::order::{EntryOrder, InJournal, Note, Stamp, Times, just_after, order_of};
use super::{ChangeState, DocumentState};
use crate::document::Timestamp;

/// A change document that was read.
#[derive(Debug, Default)]
pub struct ChangeDocument {
    /// The state of it that is kept.
    pub state: DocumentState,
    /// The number that the notes of its entries have.
    pub number: u64,
    /// `Last-Modified` of the response.
    pub modified: Option<Timestamp>,
    /// The times of its entries.
    pub times: Times,
    /// The time up to which changes were known.
    pub known: Option<Timestamp>,
    /// True if its entries prove that it goes on where the last look ended.
    pub meets_known: bool,
    /// True if it has new entries without a time.
    pub has_undated: bool,
    /// True if it is in no order, and so leaves the fate of some resource open.
    pub is_ambiguous: bool,
    /// The time by which it was written, where that is known.
    pub written: Option<Timestamp>,
    /// The earliest `datetime` and the latest time that its entries bear.
    pub spans: (Option<Timestamp>, Option<Timestamp>),
    /// Changes after this time do not count.
    pub ends: Option<Timestamp>,
}

impl ChangeDocument {
    /// True if it holds all changes since `time`, by what can be seen.
    pub fn reaches_back_to(&self, time: Timestamp) -> bool {
        self.state.from.is_none_or(|from| from <= time) || self.spans.0.is_some_and(|oldest| oldest <= time)
    }

    /// True if it reaches beyond `time`: earlier changes that it lacks will not be published any more.
    pub fn reaches_beyond(&self, time: Timestamp) -> bool {
        self.state.until.max(self.state.from) >= Some(time) || self.spans.1 > Some(time)
    }
}

/// A document, and what is known of its times apart from its single entries.
#[derive(Debug)]
pub struct Frame {
    pub document: ChangeDocument,
    /// The time that the baseline speaks for: changes until then are in it.
    at: Option<Timestamp>,
    /// True if only the baseline is applied so far, so that an entry may be older than it.
    is_first_look: bool,
    /// True if the document was not read before, at least not under its name.
    is_unread: bool,
    /// A new entry without a time came after this.
    floor: Option<Timestamp>,
    order: EntryOrder,
    /// True if the `lastmod`s count: they leave the order that the `datetime`s have.
    counts_lastmods: bool,
}

/// The time and the rank of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeTime {
    /// The time.
    pub time: Timestamp,
    /// The position in the order of the document, oldest first.
    pub rank: u64,
    /// True if the position alone gives the time.
    pub is_by_position: bool,
    /// True if the change may be older than the baseline, which then counts more.
    pub is_doubtful: bool,
    /// True if the baseline holds it already.
    pub is_covered: bool,
}

impl Frame {
    /// The frame of `document`, by what is `known`. Its times show its order: `datetime`, else a `lastmod` within the interval. Where the
    /// `lastmod`s leave no order, and the `datetime`s have one, no `lastmod` is a time: the position decides.
    pub fn of(known: &ChangeState, document: ChangeDocument, floor: Option<Timestamp>) -> Frame {
        let Times { datetimes, all, .. } = &document.times;
        // Where a document states its `from`, each `lastmod` after that counts.
        let at = known.at.filter(|_| document.state.from.is_none());
        let order = order_of(&[all, datetimes], at);
        let (order, counts_lastmods) = match order_of(&[datetimes], None) {
            // Some `lastmod` contradicts them.
            Some(by_datetimes) if by_datetimes != EntryOrder::None && order != Some(by_datetimes) => {
                (by_datetimes, false)
            }
            _ => (order.unwrap_or(EntryOrder::OldestFirst), true),
        };
        Frame {
            at: known.at,
            is_first_look: known.documents.is_empty(),
            is_unread: known.document(&document.state.location).is_none(),
            floor,
            order,
            counts_lastmods,
            document,
        }
    }

    pub fn has_order(&self) -> bool {
        self.order != EntryOrder::None
    }

    /// The time of an entry by its own word. Where the interval has no start an old `lastmod` proves nothing: in version 1.1 it is the
    /// resource's own.
    pub fn own(&self, stamp: Option<Stamp>) -> Option<Timestamp> {
        let is_late = |time: Timestamp| self.document.state.from.is_some() || self.at.is_none_or(|at| at < time);
        stamp.filter(|it| it.is_datetime || self.counts_lastmods && is_late(it.time)).map(|it| it.time)
    }

    /// The times among a `datetime` and a `lastmod` that count.
    fn own_of(&self, times: [Option<Timestamp>; 2]) -> impl Iterator<Item = Timestamp> + '_ {
        let stamp = |time, is_datetime| Some(Stamp { time, is_datetime });
        times.into_iter().zip([true, false]).filter_map(move |(time, is_datetime)| self.own(stamp(time?, is_datetime)))
    }

    /// The newest time that an entry bears.
    pub fn newest(&self) -> Option<Timestamp> {
        self.own_of(self.document.times.newest).max()
    }

    /// The latest time at which the document can have been written: HTTP has whole seconds.
    pub fn written_by(&self) -> Option<Timestamp> {
        self.document.modified.map(|modified| Timestamp { nanos: 999_999_999, ..modified })
    }

    /// True if a document that was written at `time` is in the baseline as a whole.
    fn is_in_baseline(&self, time: Timestamp) -> bool {
        self.at.is_some_and(|at| time <= at)
    }

    /// The moment of an entry; `None` where it does not count: it happened later than what is wanted, or bears no time in a document in
    /// no order. That a baseline is needed then is reported as a gap.
    ///
    /// An entry that bears no time happened right after the one before it, but never after the next one that bears a time. No clock of this
    /// machine counts: it may differ from the Source's, and what it says would outlast later changes and lists.
    pub fn moment(&self, note: &Note) -> Option<ChangeTime> {
        let is_newest_first = self.order == EntryOrder::NewestFirst;
        let rank = if is_newest_first {
            self.document.state.prefix.entries.saturating_sub(note.position + 1)
        } else {
            note.position
        };
        let moment = match self.own(note.stamp) {
            Some(time) => {
                // One that may be of the very moment is applied: the list may have been begun before it (many Sources date by the second
                // or the day), and what is in the list already changes nothing.
                let is_covered = self.at.is_some_and(|at| !time.may_reach(at));
                ChangeTime { time, rank, is_by_position: false, is_doubtful: self.at.is_none(), is_covered }
            }
            None if self.order == EntryOrder::None => return None,
            None => {
                let next = self.own(note.next);
                let (before, next) = match is_newest_first {
                    true => (next, self.own_of(note.before).min()),
                    false => (self.own_of(note.before).max(), next),
                };
                let (from, until) = (self.document.state.from, self.document.state.until);
                let (borne, next) = (from.max(before), next.or(until));
                let is_covered = next.is_some_and(|next| self.is_unread && self.is_in_baseline(next))
                    || [until, self.written_by()].into_iter().flatten().any(|end| self.is_in_baseline(end));
                let is_later = borne.is_some() && self.at.is_some_and(|at| Some(at) <= borne);
                let behind = just_after(borne.max(self.floor));
                let time = next.map_or(behind, |next| behind.min(next));
                ChangeTime {
                    time,
                    rank,
                    is_by_position: true,
                    is_doubtful: self.is_first_look && !is_later,
                    is_covered,
                }
            }
        };
        let is_wanted = self.document.ends.is_none_or(|ends| moment.time <= ends);
        is_wanted.then_some(ChangeTime {
            is_doubtful: note.deleted.is_some() && (moment.is_doubtful || note.is_doubted),
            ..moment
        })
    }

    /// Tells whether an entry was not known when its document was read.
    pub fn is_new(&self, note: &Note) -> bool {
        let time = self.own(note.stamp);
        let is_known = match note.journaled {
            InJournal::This => true,
            // An entry dated after `until` is new even if the journal has a later inferred time.
            InJournal::Later => time.is_some() && time <= self.document.known,
            InJournal::SaysTheSame => time.is_none(),
            InJournal::Other => false,
        };
        note.is_doubted || !is_known
    }
}
