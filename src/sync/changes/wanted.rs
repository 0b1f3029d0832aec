//! Which children of an index are asked for: an index of many closed lists is gone through at each look.

use super::{ChangeState, DocumentState, Lost, Stored, stored};
use crate::document::Entry;
use std::collections::HashMap;

/// What is known of documents, by their location, for one look.
#[derive(Debug)]
pub struct FetchSpec<'k> {
    known: &'k ChangeState,
    read: HashMap<&'k str, &'k DocumentState>,
    lost: HashMap<&'k str, &'k Lost>,
}

impl ChangeState {
    /// What is known of documents, for many lookups.
    pub fn wanted(&self) -> FetchSpec<'_> {
        let read = self.documents.iter().map(|read| (read.location.as_str(), read)).collect();
        FetchSpec { known: self, read, lost: self.lost_before() }
    }
}

impl FetchSpec<'_> {
    /// Whether a child of an index may hold what is not known. Left out are lists that ended before what is known, whether
    /// their index says so or they themselves have, while the index says of them what it said before; but never the one that
    /// was the newest at the last look, nor one that could not be had.
    pub fn contains(&self, entry: &Entry) -> bool {
        let (known, location) = (self.known, entry.loc.as_str());
        if known.is_beyond(entry.from) {
            return false;
        }
        if known.documents.last().is_some_and(|newest| newest.location == location) || self.lost.contains_key(location)
        {
            return true;
        }
        let read = self.read.get(location);
        if read.is_some_and(|read| read.is_open()) {
            return true;
        }
        // Where nothing was read yet, the baseline alone is known.
        let reached = if known.documents.is_empty() { known.at } else { known.until };
        let is_over = |until: Option<Stored>| until.is_some() && until <= reached;
        match (entry.until, entry.lastmod) {
            (Some(until), _) => !is_over(Some(stored(until))),
            (None, Some(lastmod)) if entry.from.is_none() => {
                !read.is_some_and(|read| is_over(read.until) && read.listed == Some(stored(lastmod)))
            }
            _ => true,
        }
    }

    /// Whether the document at `location` was read, and nothing in it is still to be asked about.
    pub fn knows(&self, location: &str) -> bool {
        self.read.get(location).is_some_and(|read| !read.is_open())
    }

    /// Whether the document at `location` was read.
    pub fn has_read(&self, location: &str) -> bool {
        self.read.contains_key(location)
    }
}
