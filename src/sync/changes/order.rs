//! When each change of a document happened, by what its document says.

use super::mark::Mark;
use crate::document::Timestamp;
use std::cmp::Ordering;

/// In which order a document lists its changes, by those that say when they happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Oldest first, as the standard wants it (section 12.1); also where nothing says otherwise.
    OldestFirst,
    /// Newest first.
    NewestFirst,
    /// In no order: places mean nothing.
    None,
}

/// What is known of a document's times apart from its entries.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Start of its interval.
    pub from: Option<Timestamp>,
    /// End of its interval.
    pub until: Option<Timestamp>,
    /// The time that the baseline speaks for: what happened until then is in it.
    pub at: Option<Timestamp>,
    /// Whether nothing was applied yet but the baseline, so that an entry may be older than it.
    pub is_first_look: bool,
    /// Whether the document was not read before, at least not under its name.
    pub is_unread: bool,
    /// What is new and bears no time came after this.
    pub floor: Option<Timestamp>,
    /// When the document was written, by its server's account.
    pub modified: Option<Timestamp>,
}

/// When a change happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The settled time.
    pub time: Timestamp,
    /// The place in the order of the document, oldest first.
    pub place: usize,
    /// The place alone has settled the time.
    pub is_by_place: bool,
    /// Whether the change may be older than the baseline, which then says otherwise with more right.
    pub is_doubtful: bool,
}

impl Frame {
    /// Whether this `lastmod` lies within the interval of the document. Where that has no start an old one proves nothing: in version
    /// 1.1 it is the resource's own.
    fn is_within(&self, lastmod: Timestamp) -> bool {
        let begins_before = match self.from {
            Some(from) => from <= lastmod,
            None => self.at.is_none_or(|at| at < lastmod),
        };
        begins_before && self.until.is_none_or(|until| lastmod <= until)
    }

    /// The latest time at which the document can have been written: HTTP has whole seconds.
    pub fn written_by(&self) -> Option<Timestamp> {
        self.modified.map(|modified| Timestamp { nanos: 999_999_999, ..modified })
    }

    /// Whether what was written at `time` is in the baseline as a whole.
    fn is_in_baseline(&self, time: Timestamp) -> bool {
        self.at.is_some_and(|at| time <= at)
    }

    /// Whether a change of `time` came before the baseline. One of the very moment is applied: the list may have been begun
    /// before it (many Sources date by the second), and what is in the list already changes nothing.
    fn came_before_baseline(&self, time: Timestamp) -> bool {
        self.at.is_some_and(|at| time < at)
    }
}

/// The own times of a document's entries, and the order that they show: `datetime`, else a `lastmod` within the interval. Where the
/// `lastmod`s leave no order, and the `datetime`s have one, no `lastmod` is a time: the place decides.
pub fn own_times(marks: &[Mark], frame: &Frame) -> (Order, Vec<Option<Timestamp>>) {
    let datetimes: Vec<_> = marks.iter().map(Mark::datetime).collect();
    let own = |mark: &Mark| mark.datetime().or(mark.time.filter(|lastmod| frame.is_within(*lastmod)));
    let times: Vec<_> = marks.iter().map(own).collect();
    let order = order_of(times.iter().flatten().copied());
    match order_of(datetimes.iter().flatten().copied()) {
        // Some `lastmod` contradicts them.
        Some(by_datetimes) if by_datetimes != Order::None && order != Some(by_datetimes) => (by_datetimes, datetimes),
        _ => (order.unwrap_or(Order::OldestFirst), times),
    }
}

/// The order that `times` show; `None` where they are all equal, and say nothing about it.
fn order_of(times: impl Iterator<Item = Timestamp>) -> Option<Order> {
    let (mut rises, mut falls, mut before) = (false, false, None);
    for time in times {
        match before.map(|before| time.cmp(&before)) {
            Some(Ordering::Greater) => rises = true,
            Some(Ordering::Less) => falls = true,
            _ => {}
        }
        before = Some(time);
    }
    match (rises, falls) {
        (true, true) => Some(Order::None),
        (false, true) => Some(Order::NewestFirst),
        (true, false) => Some(Order::OldestFirst),
        (false, false) => None,
    }
}

/// The places of a document, oldest entry first.
fn in_order(order: Order, entries: usize) -> impl DoubleEndedIterator<Item = usize> {
    (0..entries).map(move |at| if order == Order::NewestFirst { entries - 1 - at } else { at })
}

/// The moment of each entry, by its place in the document; `None` for what the baseline holds already, and in a document in no order
/// for what bears no time.
///
/// An entry that bears no time happened right after the one before it, but never after the next one that bears a time. No clock of this
/// machine counts: it may differ from the Source's, and what it says would outlast later changes and lists.
pub fn settle(marks: &[Mark], frame: &Frame) -> Vec<Option<Moment>> {
    let (order, times) = own_times(marks, frame);
    let mut moments = vec![None; marks.len()];
    // The time of the next entry that bears one, for each place.
    let mut following = vec![None; marks.len()];
    let mut next = frame.until;
    for place in in_order(order, marks.len()).rev() {
        following[place] = next;
        next = times[place].or(next);
    }
    let mut before = frame.from;
    // The latest time that something up to there bears.
    let mut borne = frame.from;
    for (rank, place) in in_order(order, marks.len()).enumerate() {
        let moment = match times[place] {
            Some(time) => {
                before = before.max(Some(time));
                borne = borne.max(Some(time));
                let is_doubtful = frame.at.is_none();
                let moment = Moment { time, place: rank, is_by_place: false, is_doubtful };
                (!frame.came_before_baseline(time)).then_some(moment)
            }
            // Its place means nothing: that a baseline is needed is reported as a gap.
            None if order == Order::None => None,
            None => {
                let next = following[place];
                let is_older = next.is_some_and(|next| frame.is_unread && frame.is_in_baseline(next))
                    || [frame.until, frame.written_by()].into_iter().flatten().any(|end| frame.is_in_baseline(end));
                let is_later = borne.is_some_and(|borne| frame.at.is_some_and(|at| at <= borne));
                let is_doubtful = frame.is_first_look && !is_later;
                let behind = just_after(before.max(frame.floor));
                let time = next.map_or(behind, |next| behind.min(next));
                before = before.max(Some(time));
                (!is_older).then_some(Moment { time, place: rank, is_by_place: true, is_doubtful })
            }
        };
        moments[place] = moment;
    }
    moments
}

/// The earliest time after `time`; where that is not known a time before all changes.
pub fn just_after(time: Option<Timestamp>) -> Timestamp {
    let Timestamp { seconds, nanos } = time.unwrap_or(Timestamp { seconds: 0, nanos: 0 });
    match nanos {
        999_999_999 => Timestamp { seconds: seconds.saturating_add(1), nanos: 0 },
        _ => Timestamp { seconds, nanos: nanos + 1 },
    }
}

/// Whether the document is in no order and says something new without a time: it is unknown what became of that resource.
pub fn is_ambiguous(marks: &[Mark], frame: &Frame) -> bool {
    let (order, times) = own_times(marks, frame);
    order == Order::None && marks.iter().zip(&times).any(|(mark, time)| mark.is_new && time.is_none())
}
