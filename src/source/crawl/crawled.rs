//! What a crawl found: leaf lists, and what is missing.

use crate::document::{Capability, Entry, Header};
use crate::source::{DocumentDeviations, DocumentLocation, Missing, SourceError, documents::CachedDocument};
use std::sync::Arc;
use std::time::Duration;

/// A leaf list that was reached.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// The document.
    pub document: CachedDocument,
    /// Its own header up to the first entries; of its links those that lead on.
    pub header: Header,
    /// Its own capability where that is one of the standard's, else the one that its parent gives it, else its parent's. A Change
    /// Dump whose entries are changes is a Change List.
    pub capability: Option<Capability>,
    /// True if the first entries are named as packages and are no changes: in a Change List they are packages of changes.
    pub has_packages: bool,
    /// Its entry in the index above, without links; `None` for a root and for a later page.
    pub listed: Option<Box<Entry>>,
}

impl Leaf {
    /// Returns whether its entries are resources. An index may list other documents too, whose entries are changes or packages.
    pub fn lists_resources(&self) -> bool {
        matches!(self.capability, None | Some(Capability::ResourceList | Capability::Other(_)))
    }
}

/// Result of a crawl.
#[derive(Clone, Debug, Default)]
pub struct Crawled {
    /// The leaves, in document order.
    pub leaves: Vec<Leaf>,
    /// The indexes passed on the way, in document order.
    pub indexes: Vec<CachedDocument>,
    /// Headers of the indexes, with the links that lead on, in the same order: a list without its own time takes its index's.
    pub index_headers: Vec<Header>,
    /// Packages, as the indexes list them, of the links those to copies of manifests (`contents`); not fetched.
    pub packages: Vec<Entry>,
    /// Children that are gone for good, or are no lists: what they listed is not known any more.
    pub missing: Vec<Missing>,
    /// Children that cannot be read for now, where the crawl tolerates it
    /// ([`Asking::tolerates_failure`](super::Asking::tolerates_failure)).
    pub failed: Vec<(DocumentLocation, Arc<SourceError>)>,
    /// Bytes of documents that were transferred in full, together: what the crawl has cost.
    pub transferred: u64,
    /// How long its server allows the root to be kept without asking.
    pub max_age: Option<Duration>,
    /// Entries of indexes that cannot be understood. What lies below them is unknown: where there are any, absence from the
    /// leaves does not mean a deletion.
    pub skipped: u64,
    /// Rules broken by the indexes.
    pub deviations: Vec<DocumentDeviations>,
}

impl Crawled {
    /// The crawl of a document that is missing for good itself.
    pub fn without(root: Missing) -> Crawled {
        Crawled { missing: vec![root], ..Crawled::default() }
    }

    /// Documents that are missing for good: absence from the leaves proves nothing about their entries.
    pub fn lacking(&self, root: &DocumentLocation) -> Vec<Missing> {
        let mut lacking = self.missing.clone();
        if self.skipped > 0 {
            let why = format!("{} entries of its indexes cannot be understood", self.skipped);
            lacking.push(Missing { location: root.clone(), entries: self.skipped, why });
        }
        lacking
    }

    /// Every document of the crawl.
    pub fn documents(&self) -> impl Iterator<Item = &CachedDocument> {
        self.indexes.iter().chain(self.leaves.iter().map(|leaf| &leaf.document))
    }
}
