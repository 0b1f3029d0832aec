//! What stays in memory of an entry of a change document.

use crate::document::{Change, Entry, PackageMember, Timestamp, Uri};
use std::cmp::Ordering;
use std::hash::Hash;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// What stays of every entry of a change document: a million entries in 64 MB.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// [`resource_digest`] of the URI.
    pub uri: u64,
    /// Digest of the entry.
    pub digest: u64,
    /// The time that the entry bears, by which it may have happened.
    pub time: Option<Timestamp>,
    /// Whether that is its `datetime`, rather than its `lastmod`.
    is_datetime: bool,
    /// Whether it was not known at the last look.
    pub is_new: bool,
    /// Whether it is a deletion.
    pub is_deletion: bool,
    /// Whether it is a doubtful deletion whose resource has not answered.
    pub is_doubted: bool,
    /// How the last change of the resource that the journal holds stands to this one.
    pub journaled: Option<Ordering>,
}

impl Mark {
    /// The mark of a new entry; no time behind `latest` is believed.
    pub fn of(entry: &Entry, member: Option<&PackageMember>, latest: Timestamp) -> Mark {
        let possible = |time: Option<Timestamp>| time.filter(|time| *time <= latest);
        let datetime = possible(entry.datetime);
        Mark {
            uri: resource_digest(&entry.loc),
            digest: digest(entry, member),
            time: datetime.or_else(|| possible(entry.lastmod)),
            is_datetime: datetime.is_some(),
            is_new: true,
            is_deletion: entry.change == Some(Change::Deleted),
            is_doubted: false,
            journaled: None,
        }
    }

    /// The entry's `datetime`.
    pub fn datetime(&self) -> Option<Timestamp> {
        self.time.filter(|_| self.is_datetime)
    }

    /// Whether the journal holds this change, or a later one of its resource, where changes are known up to `until`.
    pub fn is_applied(&self, until: Option<Timestamp>) -> bool {
        match self.journaled {
            Some(Ordering::Equal) => true,
            // What no earlier look can have seen is new, even where a place has settled a later time for another change.
            Some(Ordering::Greater) => self.time <= until,
            _ => false,
        }
    }
}

/// What a resource is known by among those that were asked.
pub fn resource_digest(uri: &Uri) -> u64 {
    xxh3_64(uri.as_str().as_bytes())
}

/// XXH3 over everything that an entry says of its change.
fn digest(entry: &Entry, member: Option<&PackageMember>) -> u64 {
    let mut hasher = Xxh3::new();
    (&entry.loc, entry.change, entry.datetime, entry.lastmod, &entry.hashes, entry.length).hash(&mut hasher);
    (&entry.media_type, &entry.encoding, &entry.path, member, &entry.links).hash(&mut hasher);
    hasher.digest()
}
