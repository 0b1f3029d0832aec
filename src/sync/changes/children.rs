//! The children of an index of change documents: which are asked for, and which fail, so that their changes are still to come.
//!
//! An index of many closed lists is gone through at each look. A child that fails is asked for at every look until it is read,
//! though what is known has gone on beyond it, or until a baseline covers all that it can contain. Meanwhile changes may be
//! missing, and `status` says since when.

use super::{ChangeState, DocumentState};
use crate::document::{Entry, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// A change document that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub(super) location: String,
    /// End of its interval, by its index; of one that is not listed any more when that was seen.
    until: Option<Timestamp>,
    /// The time since when changes may be missing; `None` until a baseline is known that they follow.
    since: Option<Timestamp>,
}

/// Children of an index that were asked for.
#[derive(Debug, Default)]
pub struct AskedChildren {
    /// All of them.
    pub entries: Vec<Entry>,
    /// Addresses of those that are gone, by their server's word.
    pub gone: HashSet<String>,
    /// Addresses of those that fail for now.
    pub failed: HashSet<String>,
}

/// Known documents by their address, for one look.
#[derive(Debug)]
pub struct KnownChildren<'k> {
    known: &'k ChangeState,
    read: HashMap<&'k str, &'k DocumentState>,
    lost: HashMap<&'k str, &'k Lost>,
}

impl KnownChildren<'_> {
    /// True if a child of an index may hold unknown changes. Lists that ended before what is known are left out, whether their
    /// index says so or they themselves did, while their entry in the index is unchanged. The newest one of the last look and
    /// those that failed are always wanted.
    pub fn wants(&self, entry: &Entry) -> bool {
        let (known, location) = (self.known, entry.loc.as_str());
        let read = self.read.get(location);
        let is_newest = known.documents.last().is_some_and(|newest| newest.location == location);
        if is_newest || self.lost.contains_key(location) || read.is_some_and(|read| read.is_open()) {
            return true;
        }
        // Where nothing was read yet, the baseline alone is known.
        let reached = if known.documents.is_empty() { known.at } else { known.until };
        let is_over = |until: Option<Timestamp>| until.is_some() && until <= reached;
        match (entry.until, entry.lastmod) {
            (Some(until), _) => !is_over(Some(until)),
            (None, Some(lastmod)) if entry.from.is_none() => {
                !read.is_some_and(|read| is_over(read.until) && read.listed == Some(lastmod))
            }
            _ => true,
        }
    }

    /// True if the document at `location` was read with the same bytes.
    pub fn has_read_same(&self, location: &str, digest: u64) -> bool {
        self.read.get(location).is_some_and(|read| read.digest == digest)
    }

    /// True if it was read with the same bytes, and nothing in it is still to be asked about.
    pub fn is_done_with(&self, location: &str, digest: u64) -> bool {
        self.has_read_same(location, digest) && self.read.get(location).is_some_and(|read| !read.is_open())
    }

    /// True if the document at `location` was read.
    pub fn has_read(&self, location: &str) -> bool {
        self.read.contains_key(location)
    }
}

impl ChangeState {
    /// The known documents, for many lookups.
    pub fn children(&self) -> KnownChildren<'_> {
        let read = self.documents.iter().map(|read| (read.location.as_str(), read)).collect();
        KnownChildren { known: self, read, lost: self.lost_before() }
    }

    /// The documents that are lost after a look at an index, with or without the `root` itself. A child that fails for now and is
    /// still open is not lost: it is wanted on, and nothing goes on beyond it.
    pub fn lost_beside(&self, root: &str, asked: &AskedChildren, now: Timestamp) -> Vec<Lost> {
        let was_asked: HashSet<&str> = asked.entries.iter().map(|it| it.loc.as_str()).chain([root]).collect();
        let unlisted = self.lost.iter().filter(|it| !was_asked.contains(it.location.as_str()));
        let unlisted = unlisted.map(|it| Lost { until: it.until.or(Some(now)), ..it.clone() });
        let (known, mut seen) = (self.children(), HashSet::new());
        let fails = asked.entries.iter().filter(|it| {
            let location = it.loc.as_str();
            let fails = asked.gone.contains(location) || it.until.is_some() && asked.failed.contains(location);
            // An index may list a document twice.
            fails && seen.insert(location)
        });
        let losing = |it: &Entry| {
            let before = known.lost.get(it.loc.as_str());
            // The entries of one that was read are still known.
            let from = it.from.filter(|_| !known.has_read(it.loc.as_str()));
            let since = || from.or(self.until).max(self.at);
            Lost {
                location: it.loc.as_str().to_owned(),
                until: it.until.or(before.and_then(|before| before.until)),
                since: before.map_or_else(since, |before| before.since),
            }
        };
        unlisted.chain(fails.map(losing)).collect()
    }

    /// True if more of `lost` fails than did before.
    pub fn loses(&self, lost: &[Lost]) -> bool {
        let before = self.lost_before();
        lost.iter().any(|it| self.may_lack(it) && !before.contains_key(it.location.as_str()))
    }

    /// The state with `lost`, and nothing else lost. A document without a known time is missing since `now`.
    pub fn lacking(mut self, lost: Vec<Lost>, now: Timestamp) -> ChangeState {
        self.lost = lost;
        self.forget_covered();
        self.lost.iter_mut().for_each(|it| it.since = it.since.or(Some(now)));
        self
    }

    /// Forgets the lost documents that the baseline covers.
    pub(super) fn forget_covered(&mut self) {
        let lost = std::mem::take(&mut self.lost).into_iter().filter(|it| self.may_lack(it));
        self.lost = lost.map(|it| Lost { since: it.since.max(self.at), ..it }).collect();
    }

    /// True if a lost document may contain what is not in the baseline.
    fn may_lack(&self, lost: &Lost) -> bool {
        lost.until.is_none() || lost.until > self.at
    }

    /// The lost documents before this look, by address.
    pub(super) fn lost_before(&self) -> HashMap<&str, &Lost> {
        self.lost.iter().map(|it| (it.location.as_str(), it)).collect()
    }

    /// The time since when changes may be missing, for any reason.
    pub fn missing_since(&self) -> Option<Timestamp> {
        self.gap_since.into_iter().chain(self.lost.iter().filter_map(|it| it.since)).min()
    }
}
