//! Change documents that are offered and fail: their changes are still to come.
//!
//! Each is asked for at every look until it is read, though what is known has gone on beyond it, or until a baseline covers
//! all that it can contain. Meanwhile changes may be missing, and `status` says since when.

use super::{ChangeState, Stored, stored};
use crate::document::{Entry, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// A change document that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub(super) location: String,
    /// End of its interval, by its index; of one that is not listed any more when that was seen.
    until: Option<Stored>,
    /// Since when changes may be missing.
    since: Stored,
    /// Whether it is gone by its server's word, rather than that it fails for now.
    is_gone: bool,
}

/// A child of an index that was asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    location: String,
    from: Option<Stored>,
    until: Option<Stored>,
}

impl From<&Entry> for Asked {
    fn from(entry: &Entry) -> Asked {
        let (from, until) = (entry.from.map(stored), entry.until.map(stored));
        Asked { location: entry.loc.as_str().to_owned(), from, until }
    }
}

/// Children of an index that failed, by their locations.
#[derive(Debug, Default)]
pub struct Absent {
    /// By their server's word.
    pub gone: HashSet<String>,
    /// For now.
    pub failed: HashSet<String>,
}

impl ChangeState {
    /// What is lost after a look at an index that `asked` for these children, with or without the `root` itself. One that fails
    /// for now and is still open is not: it is wanted on, and nothing goes on beyond it.
    pub fn lost_beside(&self, root: &str, asked: &[Asked], absent: &Absent, now: Timestamp) -> Vec<Lost> {
        if self.is_of_the_past() {
            // That is whole or not at all.
            return Vec::new();
        }
        let was_asked: HashSet<&str> = asked.iter().map(|it| it.location.as_str()).chain([root]).collect();
        let unlisted = self.lost.iter().filter(|it| !was_asked.contains(it.location.as_str()));
        let unlisted = unlisted.map(|it| Lost { until: it.until.or(Some(stored(now))), ..it.clone() });
        let (before, known) = (self.lost_before(), self.wanted());
        let mut seen = HashSet::new();
        let losing = |it: &Asked| {
            let is_gone = absent.gone.contains(&it.location);
            let has_failed = || it.until.is_some() && absent.failed.contains(&it.location);
            // An index may list a document twice.
            if !(is_gone || has_failed()) || !seen.insert(it.location.clone()) {
                return None;
            }
            // Of one that was read what was known is still known.
            let from = it.from.filter(|_| !known.has_read(&it.location));
            let since = from.or(self.until).max(self.at).unwrap_or(stored(now));
            Some(match before.get(it.location.as_str()) {
                Some(lost) => Lost { until: it.until.or(lost.until), is_gone, ..(*lost).clone() },
                None => Lost { location: it.location.clone(), until: it.until, since, is_gone },
            })
        };
        unlisted.chain(asked.iter().filter_map(losing)).collect()
    }

    /// What is lost where `root` itself is gone.
    pub fn lost_with(&self, root: &str, now: Timestamp) -> Vec<Lost> {
        let since = self.until.or(self.at).unwrap_or(stored(now));
        let new = || Lost { location: root.to_owned(), until: None, since, is_gone: true };
        let mut lost = self.lost.clone();
        if !lost.iter().any(|it| it.location == root) {
            lost.push(new());
        }
        lost
    }

    /// Whether more of `lost` is gone than was before.
    pub fn loses(&self, lost: &[Lost]) -> bool {
        let before = self.lost_before();
        let was_gone = |it: &Lost| before.get(it.location.as_str()).is_some_and(|before| before.is_gone);
        lost.iter().any(|it| it.is_gone && self.may_lack(it) && !was_gone(it))
    }

    /// The same with this lost, and nothing else.
    pub fn lacking(mut self, lost: Vec<Lost>) -> ChangeState {
        self.lost = lost;
        self.forget_covered();
        self
    }

    /// Forgets the lost documents that the baseline covers.
    pub(super) fn forget_covered(&mut self) {
        let lost = std::mem::take(&mut self.lost).into_iter().filter(|it| self.may_lack(it));
        self.lost = lost.map(|it| Lost { since: self.at.map_or(it.since, |at| at.max(it.since)), ..it }).collect();
    }

    /// Whether a lost document may contain what is not in the baseline.
    fn may_lack(&self, lost: &Lost) -> bool {
        lost.until.is_none() || lost.until > self.at
    }

    /// What was lost before, by location.
    pub(super) fn lost_before(&self) -> HashMap<&str, &Lost> {
        self.lost.iter().map(|it| (it.location.as_str(), it)).collect()
    }

    /// Since when changes may be missing, for any reason.
    pub fn missing_since(&self) -> Option<Timestamp> {
        let lost = self.lost.iter().map(|it| it.since);
        self.gap_since.into_iter().chain(lost).min().map(super::loaded)
    }
}
