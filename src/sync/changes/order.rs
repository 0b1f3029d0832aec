//! The times that the entries of a document bear, and the order that they show.

use super::NEVER;
use crate::document::{Entry, Timestamp};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// The order in which a document lists its changes, by those that say when they happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryOrder {
    /// Oldest first, as the standard wants it (section 12.1); also where nothing says otherwise.
    OldestFirst,
    /// Newest first.
    NewestFirst,
    /// No order: positions mean nothing.
    None,
}

/// The time that an entry bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub time: Timestamp,
    /// True for its `datetime`, false for its `lastmod`.
    pub is_datetime: bool,
}

impl Stamp {
    /// The stamp of `entry`; no time after `latest` is believed.
    pub fn of(entry: &Entry, latest: Timestamp) -> Option<Stamp> {
        let possible = |time: Option<Timestamp>| time.filter(|time| *time <= latest);
        let stamp = |is_datetime| move |time| Stamp { time, is_datetime };
        possible(entry.datetime).map(stamp(true)).or_else(|| possible(entry.lastmod).map(stamp(false)))
    }
}

/// A note on an entry, kept until all documents are read. Each `lastmod` in it is within the interval of its document.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Note {
    /// The number of its document.
    pub document: u64,
    /// Its position there, counted from 0.
    pub position: u64,
    /// The time that it bears.
    pub stamp: Option<Stamp>,
    /// The last `datetime` and the last `lastmod` before it.
    pub before: [Option<Timestamp>; 2],
    /// The first time behind it, as far as it was waited for.
    pub next: Option<Stamp>,
    /// The digest of its resource, where it is a deletion.
    pub deleted: Option<u64>,
    /// True for a doubtful deletion whose resource has not answered.
    pub is_doubted: bool,
    pub journaled: InJournal,
}

/// The last change of a resource in the journal, compared with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InJournal {
    /// None, an earlier one, or another of the same time.
    Other,
    /// This very one.
    This,
    /// A later one.
    Later,
    /// One that says the same at another time.
    SaysTheSame,
}

/// The order that the times of a document show so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trend {
    last: Option<Stamp>,
    /// Times rise (or fall) where the baseline speaks for an earlier time than this. Only a `lastmod` may be older than a baseline.
    rises: Option<Timestamp>,
    falls: Option<Timestamp>,
}

impl Trend {
    fn see(&mut self, stamp: Stamp) {
        let Some(last) = self.last.replace(stamp) else { return };
        let bound = |it: Stamp| if it.is_datetime { NEVER } else { it.time };
        let bound = Some(bound(last).min(bound(stamp)));
        match last.time.cmp(&stamp.time) {
            Ordering::Less => self.rises = self.rises.max(bound),
            Ordering::Greater => self.falls = self.falls.max(bound),
            Ordering::Equal => {}
        }
    }
}

/// The order of `trends`, with a baseline that speaks for `at`; `None` where all times are equal, and say nothing about it.
pub fn order_of(trends: &[&Trend], at: Option<Timestamp>) -> Option<EntryOrder> {
    let is_later = |bound: Option<Timestamp>| bound.is_some() && bound > at;
    match (trends.iter().any(|it| is_later(it.rises)), trends.iter().any(|it| is_later(it.falls))) {
        (true, true) => Some(EntryOrder::None),
        (false, true) => Some(EntryOrder::NewestFirst),
        (true, false) => Some(EntryOrder::OldestFirst),
        (false, false) => None,
    }
}

/// The times of all entries of a document, in short.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    pub datetimes: Trend,
    pub all: Trend,
    /// The newest `datetime`, and the newest `lastmod` within the interval.
    pub newest: [Option<Timestamp>; 2],
}

impl Times {
    /// Takes the time of the next entry.
    pub fn see(&mut self, stamp: Stamp) {
        self.all.see(stamp);
        if stamp.is_datetime {
            self.datetimes.see(stamp);
        }
        let newest = &mut self.newest[usize::from(!stamp.is_datetime)];
        *newest = (*newest).max(Some(stamp.time));
    }
}

/// The earliest time after `time`; where that is not known a time before all changes.
pub fn just_after(time: Option<Timestamp>) -> Timestamp {
    let Timestamp { seconds, nanos } = time.unwrap_or(Timestamp { seconds: 0, nanos: 0 });
    match nanos {
        999_999_999 => Timestamp { seconds: seconds.saturating_add(1), nanos: 0 },
        _ => Timestamp { seconds, nanos: nanos + 1 },
    }
}
