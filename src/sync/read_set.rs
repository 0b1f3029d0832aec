//! One set as it was read for a baseline: the documents that its lists led to, and the packages of its dumps.

use super::changes::latest_believed;
use crate::catalog::{SetId, SharePart};
use crate::document::{Timestamp, Uri};
use crate::source::crawl::{Crawled, Leaf};
use crate::source::documents::CachedDocument;
use crate::source::zip::Manifest;
use crate::source::{DocumentLocation, Missing, SourceError};
use std::collections::HashSet;

/// A set as it was read for a baseline.
#[derive(Default)]
pub struct ReadSet {
    /// The set.
    pub id: SetId,
    /// A walk for each of its lists, or where it has none for each of its dumps.
    pub walks: Vec<Crawled>,
    /// The cause why the first missing document of these is missing.
    pub refused: Option<SourceError>,
    /// All packages of the dumps; `None` if they were not read, or a dump fails for now.
    pub packages: Option<Vec<Uri>>,
    /// The manifests of those that can be read.
    pub manifests: Vec<Manifest>,
    /// A walk for each of the dumps next to lists, where these were read.
    pub dumps: Vec<Crawled>,
    /// True if these dumps are asked for again as they are: nothing of them is left to be read.
    pub dumps_are_read: bool,
    /// Next to lists: the names that the lists have too, where the manifests state what exists of all others. `None` where they state
    /// nothing.
    pub shared_names: Option<HashSet<u64>>,
    /// The resources that the manifests state next to lists.
    pub stated: u64,
    /// Packages that cannot be read.
    pub missing: Vec<Missing>,
    /// The time that they speak for where they do not state it: the newest `lastmod` listed, or what an archive says of them.
    pub newest: Option<Timestamp>,
    /// Its lists, once they are parsed.
    pub parsed: Option<ParsedLists>,
    /// True if they supersede what was announced of the set: it has no change documents, and its lists are whole and others than before.
    pub supersedes_announced: bool,
}

/// The lists of one set, parsed.
#[derive(Default)]
pub struct ParsedLists {
    /// The chosen resources of each, in document order.
    pub counts: Vec<u64>,
    /// The newest `lastmod` listed.
    pub newest: Option<Timestamp>,
    /// The resources, sorted: parts in document order.
    pub entered: Vec<SharePart>,
}

impl ReadSet {
    /// The set that these walks found.
    pub fn of(id: SetId, walks: Vec<Crawled>) -> ReadSet {
        ReadSet { id, walks, ..ReadSet::default() }
    }

    /// The time that its lists speak for: as they state it, else their newest `lastmod`, else their server's Last-Modified.
    pub fn at(&self) -> Option<Timestamp> {
        let latest = latest_believed(Timestamp::now());
        let stated = self.stated_at().or(self.newest).or_else(|| last_modified(&self.walks));
        stated.filter(|at| *at <= latest)
    }

    /// The time that its lists, or else its packages, state. A time in the future does not count: every change would be older
    /// than the lists.
    pub fn stated_at(&self) -> Option<Timestamp> {
        let latest = latest_believed(Timestamp::now());
        let packed = self.manifests.iter().filter_map(|manifest| manifest.header().at).filter(|at| *at <= latest).min();
        stated_at(&self.walks, latest).or(packed)
    }

    /// True if dumps next to the lists state a later time than these.
    pub fn has_later_dumps(&self) -> bool {
        let latest = latest_believed(Timestamp::now());
        let times = stated_at(&self.walks, latest).zip(stated_at(&self.dumps, latest));
        times.is_some_and(|(lists, dumps)| lists < dumps)
    }

    /// The time at which the lists, or an index of them, were last written, by their server's account.
    pub fn written(&self) -> Option<Timestamp> {
        self.walks.iter().flat_map(Crawled::documents).filter_map(|document| document.modified).max()
    }

    /// True if lists say what exists of it, and packages at most more.
    pub fn has_lists(&self) -> bool {
        self.lists().next().is_some()
    }

    /// True if no part of what says what exists is missing.
    pub fn is_whole(&self) -> bool {
        (self.missing.is_empty() || self.has_lists())
            && self.walks.iter().all(|walked| walked.missing.is_empty() && walked.skipped == 0)
    }

    /// True if several documents say what exists of it: they are read one after the other, and may be of different times.
    pub fn has_parts(&self) -> bool {
        self.walks.iter().flat_map(Crawled::documents).nth(1).is_some()
    }

    /// True if the lists of the set lead to `location`.
    pub fn leads_to(&self, location: &DocumentLocation) -> bool {
        let lacks = |missing: &[Missing]| missing.iter().any(|missing| missing.location == *location);
        let walks = |walked: &Crawled| {
            let is_index = walked.indexes.iter().any(|index| index.location == *location);
            is_index || lacks(&walked.missing)
        };
        let is_package = lacks(&self.missing) && !self.has_lists();
        is_package || self.walks.iter().any(walks) || self.sources().any(|it| it == *location)
    }

    /// The documents that list its resources: its lists, or else the packages whose manifests were read.
    pub fn sources(&self) -> impl Iterator<Item = DocumentLocation> {
        let in_place = self.manifests.iter().filter(|_| !self.has_lists());
        let packages = in_place.map(|manifest| DocumentLocation::Uri(manifest.package().clone()));
        self.lists().map(|leaf| leaf.document.location.clone()).chain(packages)
    }

    /// Digests of the manifests that can be read.
    pub fn fingerprints(&self) -> Vec<u64> {
        self.manifests.iter().map(Manifest::fingerprint).collect()
    }

    /// Each document that was reached, with the number of resources that it lists; 0 for an index.
    pub fn documents(&self) -> impl Iterator<Item = (&CachedDocument, u64)> {
        let mut counts = self.parsed.iter().flat_map(|parsed| &parsed.counts).copied();
        let all = self.walks.iter().flat_map(|walked| {
            let indexes = walked.indexes.iter().map(|index| (index, false));
            indexes.chain(walked.leaves.iter().map(|leaf| (&leaf.document, leaf.lists_resources())))
        });
        all.map(move |(document, lists)| (document, if lists { counts.next().unwrap_or(0) } else { 0 }))
    }

    /// The documents of [`ReadSet::lists`].
    pub fn list_documents(&self) -> Vec<CachedDocument> {
        self.lists().map(|leaf| leaf.document.clone()).collect()
    }

    /// The lists of resources among what the walks reached.
    pub fn lists(&self) -> impl Iterator<Item = &Leaf> {
        self.walks.iter().flat_map(|walked| &walked.leaves).filter(|leaf| leaf.lists_resources())
    }
}

/// The earliest `at` of the leaves, each by itself or by the index above, but none after `latest`.
fn stated_at(walks: &[Crawled], latest: Timestamp) -> Option<Timestamp> {
    let leaves = || walks.iter().flat_map(|walked| &walked.leaves);
    let indexes = || walks.iter().flat_map(|walked| &walked.index_headers);
    let leaf_at = |leaf: &Leaf| leaf.header.at.or(leaf.listed.as_ref().and_then(|entry| entry.at));
    let stated = leaves().filter_map(leaf_at).chain(indexes().filter_map(|header| header.at));
    stated.filter(|at| *at <= latest).min()
}

/// The newest Last-Modified of lists.
pub fn last_modified<'w>(walks: impl IntoIterator<Item = &'w Crawled>) -> Option<Timestamp> {
    walks.into_iter().flat_map(|walked| &walked.leaves).filter_map(|leaf| leaf.document.modified).max()
}
