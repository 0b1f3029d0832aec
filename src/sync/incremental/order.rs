//! When each change of a document happened, as far as its document tells.

use super::reading::Mark;
use crate::document::Timestamp;
use std::cmp::Ordering;
use std::collections::HashMap;

/// In which order a document lists its changes, by those that say when they happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Oldest first, as the standard wants it (section 12.1); also where nothing tells.
    OldestFirst,
    /// Newest first.
    NewestFirst,
    /// In no order: places tell nothing.
    None,
}

/// What is known of a document's times beside its entries.
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
    /// What is new and bears no time came after this.
    pub floor: Option<Timestamp>,
    /// The time for what nothing dates at all.
    pub now: Timestamp,
}

/// When a change happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The settled time.
    pub time: Timestamp,
    /// The place in the order of the document, oldest first.
    pub place: usize,
    /// Whether the change may be older than the baseline, which then says otherwise with more right.
    pub is_doubtful: bool,
}

impl Frame {
    /// The time that an entry bears itself: `datetime`, else a `lastmod` within the interval of its document. Where the
    /// interval has no start an old `lastmod` proves nothing: in version 1.1 it is the resource's own.
    fn own_time(&self, mark: &Mark) -> Option<Timestamp> {
        let begins_before = |time| match self.from {
            Some(from) => from <= time,
            None => self.at.is_none_or(|at| at < time),
        };
        let within = |time| begins_before(time) && self.until.is_none_or(|until| time <= until);
        mark.datetime().or_else(|| mark.lastmod().filter(|time| within(*time)))
    }

    fn is_in_baseline(&self, time: Timestamp) -> bool {
        self.at.is_some_and(|at| time <= at)
    }
}

/// The own times of a document's entries, and the order that they show. A `lastmod` that contradicts the `datetime`s around
/// it is none: the place decides.
pub fn own_times(marks: &[Mark], frame: &Frame) -> (Order, Vec<Option<Timestamp>>) {
    let datetimes = || marks.iter().filter_map(Mark::datetime);
    let mut times: Vec<_> = marks.iter().map(|mark| frame.own_time(mark)).collect();
    let says_order = datetimes().nth(1).is_some();
    let order = if says_order { order_of(datetimes()) } else { order_of(times.iter().flatten().copied()) };
    if datetimes().next().is_some() && order != Order::None {
        let mut lower = None;
        for place in in_order(order, marks.len()) {
            match marks[place].datetime() {
                Some(time) => lower = Some(time),
                None => times[place] = times[place].filter(|time| lower.is_none_or(|lower| lower <= *time)),
            }
        }
        let mut upper = None;
        for place in in_order(order, marks.len()).rev() {
            match marks[place].datetime() {
                Some(time) => upper = Some(time),
                None => times[place] = times[place].filter(|time| upper.is_none_or(|upper| *time <= upper)),
            }
        }
    }
    (order, times)
}

fn order_of(times: impl Iterator<Item = Timestamp>) -> Order {
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
        (true, true) => Order::None,
        (false, true) => Order::NewestFirst,
        _ => Order::OldestFirst,
    }
}

/// The places of a document, oldest entry first.
fn in_order(order: Order, entries: usize) -> impl DoubleEndedIterator<Item = usize> {
    (0..entries).map(move |at| if order == Order::NewestFirst { entries - 1 - at } else { at })
}

/// The moment of each entry, by its place in the document; `None` for what the baseline holds already.
///
/// An entry that bears no time lies behind the one before it by a nanosecond: between its neighbours, and before all that
/// is still to come.
pub fn settle(marks: &[Mark], frame: &Frame) -> Vec<Option<Moment>> {
    let (order, times) = own_times(marks, frame);
    let mut moments = vec![None; marks.len()];
    // The time of the next entry that bears one, for each place.
    let mut following = vec![None; marks.len()];
    if order != Order::None {
        let mut next = None;
        for place in in_order(order, marks.len()).rev() {
            following[place] = next;
            next = times[place].or(next);
        }
    }
    let mut before = frame.from;
    for (rank, place) in in_order(order, marks.len()).enumerate() {
        let moment = match times[place] {
            Some(time) => {
                if order != Order::None {
                    before = before.max(Some(time));
                }
                let is_doubtful = frame.is_first_look && frame.at.is_none();
                (!frame.is_in_baseline(time)).then_some(Moment { time, place: rank, is_doubtful })
            }
            None => {
                let next: Option<Timestamp> = following[place];
                let is_older = next.is_some_and(|next| frame.is_first_look && frame.is_in_baseline(next));
                let is_later =
                    order != Order::None && before.is_some_and(|before| frame.at.is_some_and(|at| at <= before));
                let is_doubtful = order == Order::None || frame.is_first_look && !is_later;
                let time = between(before, frame.floor, next, frame.now);
                before = Some(time);
                (!is_older).then_some(Moment { time, place: rank, is_doubtful })
            }
        };
        moments[place] = moment;
    }
    moments
}

/// A time behind `before` and behind `floor`, but never behind `next`.
fn between(before: Option<Timestamp>, floor: Option<Timestamp>, next: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let after = |time| successor(time);
    let least = before.map(after);
    let wanted = before.max(floor).map(after);
    match (wanted, next) {
        (Some(wanted), Some(next)) if wanted > next => least.map_or(next, |least| least.min(next)),
        (Some(wanted), _) => wanted,
        (None, Some(next)) => next,
        (None, None) => now,
    }
}

fn successor(time: Timestamp) -> Timestamp {
    match time.nanos {
        999_999_999 => Timestamp { seconds: time.seconds.saturating_add(1), nanos: 0 },
        nanos => Timestamp { seconds: time.seconds, nanos: nanos + 1 },
    }
}

/// Whether only the order of new statements that bear no time could tell what became of a resource, and there is none.
/// `is_new` answers by place.
pub fn is_disordered(marks: &[Mark], frame: &Frame, is_new: &dyn Fn(usize) -> bool) -> bool {
    let (order, times) = own_times(marks, frame);
    if order != Order::None {
        return false;
    }
    // Of each resource that has a new statement without time: its digest.
    let undated = |place: usize| times[place].is_none() && is_new(place);
    let ambiguous: HashMap<u64, u64> =
        (0..marks.len()).filter(|place| undated(*place)).map(|place| (marks[place].uri, marks[place].digest)).collect();
    marks.iter().any(|mark| ambiguous.get(&mark.uri).is_some_and(|digest| *digest != mark.digest))
}
