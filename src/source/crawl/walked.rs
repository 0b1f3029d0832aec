//! What a walk brings: leaf lists, and what it lacks.

use crate::document::{Capability, Entry, Header};
use crate::source::{DocumentDeviations, DocumentLocation, Missing, documents::CachedDocument};
use std::time::Duration;

/// A leaf list that was reached.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// The document.
    pub document: CachedDocument,
    /// Its own header, as far as it stands before the first entries; of its links those that lead on.
    pub header: Header,
    /// Its own capability where that is one of the standard's, else what its parent said, else what its parent is.
    pub capability: Option<Capability>,
    /// Whether the first entries are named as packages and tell of no change: in a Change List they are no changes.
    pub has_packages: bool,
    /// Whether these bytes were settled before ([`DocumentCache::settle`](crate::source::documents::DocumentCache::settle)).
    pub unchanged: bool,
    /// What the index above says of it, without links; `None` for a root and for a later page.
    pub listed: Option<Box<Entry>>,
}

impl Leaf {
    /// Whether its entries are resources. An index may list other documents too, whose entries are changes or packages.
    pub fn lists_resources(&self) -> bool {
        matches!(self.capability, None | Some(Capability::ResourceList | Capability::Other(_)))
    }
}

/// What a walk brought.
#[derive(Clone, Debug)]
pub struct Walked {
    /// The leaves, in document order.
    pub leaves: Vec<Leaf>,
    /// The indexes passed on the way, in document order.
    pub indexes: Vec<CachedDocument>,
    /// Headers of the indexes, with the links that lead on, in the same order: a list without its own time takes its index's.
    pub index_headers: Vec<Header>,
    /// Packages, as the indexes list them, of the links those to copies of manifests (`contents`); not fetched.
    pub packages: Vec<Entry>,
    /// Children that are no lists. They need not have been any; but where one was, what it listed is not known any more.
    pub passed_over: Vec<Missing>,
    /// Children that answered for good that they are not there.
    pub missing: Vec<Missing>,
    /// Children that cannot be had or read for now, where the walk bears it ([`Asking::bears_failure`](super::Asking::bears_failure)).
    pub failed: Vec<Missing>,
    /// Bytes of documents that came whole, together: what the walk has cost.
    pub transferred: u64,
    /// How long the root may be kept without asking, by its server's account.
    pub max_age: Option<Duration>,
    /// Entries of indexes that cannot be understood. Nobody knows what lies below them: where there are any, what is
    /// in no leaf is not thereby deleted.
    pub skipped: u64,
    /// Rules broken by the indexes.
    pub deviations: Vec<DocumentDeviations>,
    /// Whether every document, indexes included, holds the bytes that were settled before. The documents are then
    /// also the same ones, because the indexes say which they are.
    pub unchanged: bool,
}

impl Walked {
    /// The walk over a document that is missing for good itself.
    pub fn without(root: Missing) -> Walked {
        Walked { missing: vec![root], ..Walked::empty() }
    }

    /// A walk that has met nothing.
    pub fn empty() -> Walked {
        Walked {
            leaves: Vec::new(),
            indexes: Vec::new(),
            index_headers: Vec::new(),
            packages: Vec::new(),
            passed_over: Vec::new(),
            missing: Vec::new(),
            failed: Vec::new(),
            transferred: 0,
            max_age: None,
            skipped: 0,
            deviations: Vec::new(),
            unchanged: true,
        }
    }

    /// What it lacks for good: what absence from the leaves does not speak of.
    pub fn lacking(&self, root: &DocumentLocation) -> Vec<Missing> {
        let mut lacking: Vec<Missing> = self.missing.iter().chain(&self.passed_over).cloned().collect();
        if self.skipped > 0 {
            let why = format!("{} entries of its indexes cannot be understood", self.skipped);
            lacking.push(Missing { location: root.clone(), entries: self.skipped, why });
        }
        lacking
    }

    /// Every document of the walk, for [`DocumentCache::settle`](crate::source::documents::DocumentCache::settle).
    pub fn documents(&self) -> impl Iterator<Item = &CachedDocument> {
        self.indexes.iter().chain(self.leaves.iter().map(|leaf| &leaf.document))
    }
}
