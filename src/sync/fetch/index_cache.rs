//! The children of an index that are not asked at each poll, because their entries are unchanged.

use crate::document::{Entry, Uri};
use crate::source::crawl::{Child, Crawled};
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;
use tokio::time::Instant;
use xxhash_rust::xxh3::Xxh3;

/// A child whose entry is unchanged is asked this often all the same: an index may be wrong.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The children of indexes, each as its entry was when it was last asked.
#[derive(Debug, Default)]
pub struct IndexCache(HashMap<Uri, KnownChild>);

/// A child that was asked. A cache on the way may have answered with the document of before its entry: the child is kept only once it
/// was asked at a later poll too.
#[derive(Debug)]
struct KnownChild {
    /// The digest of its entry.
    entry: u64,
    /// The poll at which it was first asked with this entry.
    first: Instant,
    /// The poll at which it was last asked.
    asked: Instant,
}

impl IndexCache {
    /// The choice whether the child of this entry is asked at the poll that began at `poll`. A poll that reads lists twice asks once.
    pub fn choose(&self, entry: &Entry, poll: Instant) -> Child {
        let is_same = |known: &&KnownChild| digest(entry) == Some(known.entry);
        match self.0.get(&entry.loc).filter(is_same) {
            Some(known) if known.asked == poll => Child::Keep,
            Some(known) if known.first < known.asked && poll < known.asked + DAY => Child::Keep,
            _ => Child::Ask,
        }
    }

    /// Notes a crawl that chose by [`IndexCache::choose`] at `poll`.
    pub fn note(&mut self, walked: &Crawled, poll: Instant) {
        for entry in walked.leaves.iter().filter_map(|leaf| leaf.listed.as_deref()) {
            let Some(digest) = digest(entry).filter(|_| self.choose(entry, poll) == Child::Ask) else { continue };
            let known = self.0.get(&entry.loc).filter(|known| known.entry == digest);
            let first = known.map_or(poll, |known| known.first);
            self.0.insert(entry.loc.clone(), KnownChild { entry: digest, first, asked: poll });
        }
    }

    /// Forgets the children that are asked again in any case.
    pub fn tidy(&mut self, now: Instant) {
        self.0.retain(|_, known| now < known.asked + DAY);
    }
}

/// A digest of what changes in an entry with its document; `None` if the entry has neither time nor digest.
fn digest(entry: &Entry) -> Option<u64> {
    if entry.lastmod.is_none() && entry.hashes.is_empty() {
        return None;
    }
    let mut hasher = Xxh3::new();
    (entry.lastmod, &entry.hashes, entry.length, entry.at, entry.completed).hash(&mut hasher);
    (entry.from, entry.until, entry.datetime).hash(&mut hasher);
    Some(hasher.digest())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Header, Root, Timestamp};
    use crate::source::DocumentLocation;
    use crate::source::crawl::Leaf;
    use crate::source::documents::CachedDocument;

    fn entry(second: Option<i64>) -> Entry {
        let uri = Uri::parse("http://example.org/1.xml").unwrap();
        Entry { lastmod: second.map(|seconds| Timestamp { seconds, nanos: 0 }), ..Entry::new(uri) }
    }

    fn walked(entry: Entry) -> Crawled {
        let location = DocumentLocation::Uri(entry.loc.clone());
        let header = Header {
            root: Root::UrlSet,
            capability: None,
            at: None,
            completed: None,
            from: None,
            until: None,
            links: Vec::new(),
        };
        let validators = Default::default();
        let document = CachedDocument { location, base: None, size: 0, digest: 0, modified: None, validators };
        let (capability, has_packages, listed) = (None, false, Some(Box::new(entry)));
        let leaf = Leaf { document, header, capability, has_packages, listed };
        Crawled { leaves: vec![leaf], ..Crawled::default() }
    }

    #[test]
    fn a_child_whose_index_entry_is_unchanged_is_asked_once_a_day() {
        let now = Instant::now();
        let mut children = IndexCache::default();
        assert_eq!(children.choose(&entry(Some(1)), now), Child::Ask, "never seen");

        let minute = Duration::from_secs(60);
        children.note(&walked(entry(Some(1))), now - minute);
        children.note(&walked(entry(Some(1))), now);
        let later = now + DAY / 2;
        assert_eq!(children.choose(&entry(Some(1)), later), Child::Keep);
        assert_eq!(children.choose(&entry(Some(2)), later), Child::Ask);
        children.note(&walked(entry(Some(1))), later);

        assert_eq!(children.choose(&entry(Some(1)), now + DAY), Child::Ask, "keeping it is not asking");
    }

    /// A cache may have served the child of before, and the index of now.
    #[test]
    fn a_child_is_asked_at_two_polls_after_its_entry_changed() {
        let (now, minute) = (Instant::now(), Duration::from_secs(60));
        let mut children = IndexCache::default();
        (0..2).for_each(|poll| children.note(&walked(entry(Some(1))), now + poll * minute));
        assert_eq!(children.choose(&entry(Some(1)), now + 2 * minute), Child::Keep);

        children.note(&walked(entry(Some(2))), now + 2 * minute);
        assert_eq!(children.choose(&entry(Some(2)), now + 2 * minute), Child::Keep, "the same poll");
        assert_eq!(children.choose(&entry(Some(2)), now + 3 * minute), Child::Ask);
        children.note(&walked(entry(Some(2))), now + 3 * minute);

        assert_eq!(children.choose(&entry(Some(2)), now + 4 * minute), Child::Keep);
    }

    #[test]
    fn a_child_without_time_or_digest_is_asked_each_time() {
        let now = Instant::now();
        let mut children = IndexCache::default();

        children.note(&walked(entry(None)), now);

        assert_eq!(children.choose(&entry(None), now), Child::Ask);
    }
}
