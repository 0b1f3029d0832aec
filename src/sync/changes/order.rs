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
    /// What is new and bears no time came after this, unless its neighbours say otherwise.
    pub floor: Option<Timestamp>,
    /// The latest time that a place alone has settled so far: an earlier look or an earlier list held it, so what is new came
    /// after it, even if it bears an earlier time.
    pub by_place: Option<Timestamp>,
    /// When the document was written, by its server's account.
    pub modified: Option<Timestamp>,
    /// The time of the look.
    pub now: Timestamp,
}

/// When a change happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The settled time.
    pub time: Timestamp,
    /// The place in the order of the document, oldest first.
    pub place: usize,
    /// Where the place alone has settled the time, the time that it proves: what comes later is later than that.
    pub by_place: Option<Timestamp>,
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
    let by_datetimes = match datetimes.iter().flatten().count() {
        0 | 1 => Order::None,
        _ => order_of(datetimes.iter().flatten().copied()),
    };
    match by_datetimes {
        Order::None => (order, times),
        // Some `lastmod` contradicts them.
        _ if order != by_datetimes => (by_datetimes, datetimes),
        _ => (order, times),
    }
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

/// The moment of each entry, by its place in the document; `None` for what the baseline holds already, and in a document in no order
/// for what bears no time.
///
/// An entry that bears no time lies right before the next one that does: a list that was drawn up between its neighbours holds what
/// came before it, so that one that says otherwise was drawn up earlier. Without a next one it lies behind the one before it by a
/// nanosecond, before all that is still to come.
pub fn settle(marks: &[Mark], frame: &Frame) -> Vec<Option<Moment>> {
    let (order, times) = own_times(marks, frame);
    let mut moments = vec![None; marks.len()];
    // The time of the next entry that bears one, for each place, and how many entries it is away.
    let mut following = vec![None; marks.len()];
    let mut next = frame.until.map(|until| (until, 1));
    for place in in_order(order, marks.len()).rev() {
        following[place] = next;
        next = times[place].map(|time| (time, 0)).or(next).map(|(time, away)| (time, away + 1));
    }
    // Where nothing bears a time, what is new may have happened just now: a list that is older must not undo it, and no change
    // with a time can come to be mistaken for an earlier one.
    let is_timeless = times.iter().all(Option::is_none);
    // Taken for earlier than it was it would be undone by a list that was drawn up in the same second before it.
    let written = frame.written_by().map_or(frame.now, |end| frame.now.min(later(end, -(marks.len() as i64))));
    let now = written.max(frame.floor.unwrap_or(written));
    // Behind the end of the document nothing in it has happened: then they lie at its end, one before the other.
    let last = frame.until.map(|until| later(until, -(marks.len() as i64)));
    let floors = [Some(last.map_or(now, |last| now.min(last))).filter(|_| is_timeless), frame.floor];
    let mut before = frame.from;
    // The latest time that something up to there bears.
    let mut borne = frame.from;
    for (rank, place) in in_order(order, marks.len()).enumerate() {
        let moment = match times[place] {
            Some(time) => {
                before = before.max(Some(time));
                borne = borne.max(Some(time));
                let is_doubtful = frame.at.is_none();
                (!frame.came_before_baseline(time)).then_some(Moment { time, place: rank, by_place: None, is_doubtful })
            }
            // Its place means nothing: that a baseline is needed is reported as a gap.
            None if order == Order::None => None,
            None => {
                // An end that is yet to come, or a clock that runs ahead, means nothing.
                let right_before =
                    following[place].map(|(next, away)| later(next, -away)).filter(|time| *time <= written);
                let next: Option<Timestamp> = following[place].map(|(next, _)| next);
                let is_older = next.is_some_and(|next| frame.is_unread && frame.is_in_baseline(next))
                    || [frame.until, frame.written_by()].into_iter().flatten().any(|end| frame.is_in_baseline(end));
                let is_later = borne.is_some_and(|borne| frame.at.is_some_and(|at| at <= borne));
                let is_doubtful = frame.is_first_look && !is_later;
                let low = between(before, floors, next, written);
                let time = right_before.filter(|time| *time > low).unwrap_or(low);
                before = Some(low);
                (!is_older).then_some(Moment { time, place: rank, by_place: Some(low), is_doubtful })
            }
        };
        moments[place] = moment;
    }
    if let Some(reached) = frame.by_place {
        raise(&mut moments, reached);
    }
    moments
}

/// Puts behind `reached` what lies up to it; the order stays as it is.
fn raise(moments: &mut [Option<Moment>], reached: Timestamp) {
    let mut all: Vec<&mut Moment> = moments.iter_mut().flatten().collect();
    all.sort_by_key(|moment| (moment.time, moment.place));
    let mut before = reached;
    for moment in all {
        if moment.time > before {
            break;
        }
        before = later(before, 1);
        (moment.time, moment.by_place) = (before, Some(before));
    }
}

/// A time behind `before`, never behind `next`, and behind the first of `floors` that leaves room.
fn between(
    before: Option<Timestamp>,
    floors: [Option<Timestamp>; 2],
    next: Option<Timestamp>,
    now: Timestamp,
) -> Timestamp {
    let is_before_next = |time: &Timestamp| next.is_none_or(|next| *time <= next);
    let behind = floors.into_iter().flatten().map(|floor| later(before.map_or(floor, |before| before.max(floor)), 1));
    let wanted = behind.chain(before.map(|before| later(before, 1))).find(is_before_next);
    wanted.or(next).unwrap_or(now)
}

/// So many nanoseconds after `time`.
fn later(time: Timestamp, nanos: i64) -> Timestamp {
    let sum = i64::from(time.nanos) + nanos;
    let seconds = time.seconds.saturating_add(sum.div_euclid(1_000_000_000));
    Timestamp { seconds, nanos: sum.rem_euclid(1_000_000_000) as u32 }
}

/// Whether the document is in no order and says something new without a time: it is unknown what became of that resource.
pub fn is_ambiguous(marks: &[Mark], frame: &Frame) -> bool {
    let (order, times) = own_times(marks, frame);
    order == Order::None && marks.iter().zip(&times).any(|(mark, time)| mark.is_new && time.is_none())
}
