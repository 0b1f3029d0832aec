//! What stays in memory of an entry of a change document.

use super::doubts::resource_digest;
use crate::document::{Change, Entry, Timestamp};
use std::cmp::Ordering;

/// What stays of every entry of a change document: a million entries in 64 MB.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Hash of the URI.
    pub uri: u64,
    /// Digest of the entry.
    pub digest: u64,
    /// Whether it was not known at the last look.
    pub is_new: bool,
    /// Whether it is a deletion.
    pub is_deletion: bool,
    /// Whether it is a doubtful deletion whose resource is asked once more.
    pub is_doubted: bool,
    /// Whether more than its URI distinguishes it from other changes.
    pub is_distinct: bool,
    /// How the last change of the resource that the journal holds stands to this one.
    pub journaled: Option<Ordering>,
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
    /// The mark of a new entry; no time behind `latest` is believed.
    pub fn of(entry: &Entry, digest: u64, latest: Timestamp) -> Mark {
        let possible = |time: Option<Timestamp>| time.filter(|time| *time <= latest);
        let (time, kind) = match (possible(entry.datetime), possible(entry.lastmod)) {
            (Some(time), _) => (time, TimeKind::Datetime),
            (None, Some(time)) => (time, TimeKind::LastMod),
            (None, None) => (Timestamp { seconds: 0, nanos: 0 }, TimeKind::None),
        };
        Mark {
            uri: resource_digest(&entry.loc),
            digest,
            is_new: true,
            is_deletion: entry.change == Some(Change::Deleted),
            is_doubted: false,
            is_distinct: entry.lastmod.is_some() || !entry.hashes.is_empty() || entry.length.is_some(),
            journaled: None,
            time,
            kind,
        }
    }

    /// The time that the entry bears, by which it may have happened.
    pub fn time(&self) -> Option<Timestamp> {
        (self.kind != TimeKind::None).then_some(self.time)
    }

    /// The entry's `datetime`.
    pub fn datetime(&self) -> Option<Timestamp> {
        (self.kind == TimeKind::Datetime).then_some(self.time)
    }

    /// Its `lastmod`, where it has no `datetime`.
    pub fn lastmod(&self) -> Option<Timestamp> {
        (self.kind == TimeKind::LastMod).then_some(self.time)
    }

    /// Whether the journal holds this change, or a later one of its resource, where changes are known up to `until`.
    pub fn is_applied(&self, until: Option<Timestamp>) -> bool {
        match self.journaled {
            Some(Ordering::Equal) => true,
            // What no earlier look can have seen is new, even where a place has settled a later time for another change.
            Some(Ordering::Greater) => Some(self.time) <= until,
            _ => false,
        }
    }
}
