//! From a set's documents to the leaf lists: indexes of any depth followed, pages turned, every document cached.
//!
//! A crawl is whole or fails: a list that fails for now would look like the deletion of all it lists. The exceptions are
//! children that are gone for good (404, 410) or are no lists: they are recorded as missing, and nothing is deleted for their
//! absence.

mod crawled;
mod fetch;
#[cfg(test)]
mod tests;

use super::{
    DocumentDeviations, DocumentLocation, Missing, SourceError,
    document_kind::{DocumentStart, archived, is_document, is_package, known, leading_on},
    documents::{CachedDocument, DocumentCache},
    http::Client,
};
use crate::document::{Capability, Deviations, DocumentError, Entry, Header, Limits, Uri};
use crate::platform::scheduling::off_the_workers;
pub use crawled::{Crawled, Leaf};
use fetch::{Fetched, Progressed, fetch};
use futures_util::{StreamExt, stream::FuturesUnordered};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Documents in flight at once.
pub const CONCURRENCY: usize = 8;

/// Indexes below one another.
pub const DEPTH: usize = 8;

/// Documents of one crawl, pages and indexes included.
pub const DOCUMENTS: usize = 50_000;

/// Children whose server fails for now, before a crawl that tolerates failures is given up.
pub const FAILURES: usize = 16;

/// Advice to a person while one of the lists that an index names fails.
pub const ANOTHER_LIST: &str = ", or paste the address of another list to mount that one alone";

/// Packages that the indexes of one crawl list. A dump of more is a list of them.
pub const PACKAGES: usize = 200_000;

/// Treatment of a child of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    /// Child is requested conditionally.
    Ask,
    /// The cached document is used; it is asked for only where there is none.
    Keep,
    /// Child is not followed.
    Leave,
}

/// Choice for each entry of an index: (header of the index, entry).
pub type Choice<'a> = &'a (dyn Fn(&Header, &Entry) -> Child + Send + Sync);

/// How a crawl asks.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// Which children.
    pub choice: Choice<'a>,
    /// True if caches on the way are passed by (`Cache-Control: no-cache`).
    pub past_caches: bool,
    /// True if a child that fails for now, or is not a document, is recorded as failed. Otherwise the first ends the crawl, and the
    /// second is missing. Each server that may answer later takes its time, so only [`FAILURES`] of them are recorded.
    pub tolerates_failure: bool,
    /// True if a request that fails is repeated at once, patiently. Otherwise the caller crawls again later.
    pub is_patient: bool,
    /// Called with each leaf as soon as it and all before it in document order are here.
    pub reached: &'a (dyn Fn(&Leaf) + Send + Sync),
}

/// Documents and bytes fetched so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Documents complete.
    pub documents: u64,
    /// Documents known of.
    pub known: u64,
    /// Bytes transferred.
    pub bytes: u64,
    /// The length of the only document that is known of, where its server announces it.
    pub of_bytes: Option<u64>,
}

/// Every child, through caches, and none may fail for now.
pub const EVERYTHING: Asking<'static> = Asking {
    choice: &|_, _| Child::Ask,
    past_caches: false,
    tolerates_failure: false,
    is_patient: true,
    reached: &|_| (),
};

/// Brings `root` and everything below it into the cache, several at a time, conditionally.
/// One document that fails for now or is truncated fails the whole crawl: a tree is shown whole or not at all.
///
/// A document that ends early, although its server sent all of it, is found by the reader that reads it to the end;
/// that one calls [`DocumentCache::forget`], so the document is not asked for conditionally any more.
///
/// # Errors
/// [`SourceError`] of the first document that failed. Complete documents stay in the cache for the next crawl.
pub async fn crawl(
    client: &Client,
    cache: &DocumentCache,
    root: &DocumentLocation,
    limits: Limits,
    asking: Asking<'_>,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Crawled, SourceError> {
    let counts = Mutex::new(Progress::default());
    let count = |change: &dyn Fn(&mut Progress)| {
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut counts);
        progress(*counts);
    };
    let received = |received| {
        count(&|counts| match received {
            Progressed::Length(length) => counts.of_bytes = length.filter(|_| counts.known == 1),
            Progressed::Bytes(bytes) => counts.bytes += bytes,
        });
    };
    let mut crawl = Crawl {
        cache,
        limits,
        asking,
        nodes: Vec::new(),
        begun: 0,
        seen: HashSet::new(),
        packages: 0,
        met_again: false,
        failures: 0,
        upcoming: vec![0],
        crawled: Crawled::default(),
    };
    crawl.add(Node::root(root.clone()))?;
    let mut in_flight = FuturesUnordered::new();
    loop {
        while in_flight.len() < CONCURRENCY {
            let Some(node) = crawl.nodes.get(crawl.begun) else { break };
            let (number, location, is_kept) = (crawl.begun, node.location.clone(), node.is_kept);
            let received = &received;
            crawl.begun += 1;
            in_flight.push(async move {
                if let Some(document) = is_kept.then(|| cache.known(&location)).flatten() {
                    return (number, Ok(Fetched::Document { document, bytes: 0, max_age: None }));
                }
                (number, fetch(client, cache, &location, limits, asking, received).await)
            });
        }
        count(&|counts| {
            counts.known = crawl.nodes.len() as u64;
            counts.of_bytes = counts.of_bytes.filter(|_| counts.known == 1);
        });
        let Some((number, fetched)) = in_flight.next().await else { break };
        crawl.arrived(number, fetched)?;
        crawl.advance();
        count(&|counts| counts.documents += 1);
    }
    crawl.finish(root)
}

/// A document of the crawl, met or fetched.
struct Node {
    location: DocumentLocation,
    /// Indexes above it.
    depth: usize,
    /// The number of the document that names it; `None` for the root.
    named_by: Option<usize>,
    /// The capability that its parent gives it.
    hint: Option<Capability>,
    /// The capability of the index above it.
    within: Option<Capability>,
    /// Its entry in the index above it.
    listed: Option<Box<Entry>>,
    /// True if the cached document is used as it is.
    is_kept: bool,
    /// Its children if it is an index, in document order.
    children: Vec<usize>,
    /// The page after it.
    next: Option<usize>,
    found: Found,
}

/// Content of a node.
enum Found {
    /// Not here yet, or taken over into [`Crawled`].
    Nothing,
    Leaf(Box<Leaf>),
    Index(Box<Index>),
    /// Package as the index above lists it.
    Package(Box<Entry>),
    /// Gone for good or no list, and why.
    Missing(String),
    /// Failure that may pass.
    Failed(SourceError),
}

struct Index {
    document: CachedDocument,
    header: Header,
    deviations: Deviations,
    skipped: u64,
    packages: Vec<Entry>,
}

impl Node {
    fn root(location: DocumentLocation) -> Node {
        Node {
            location,
            depth: 0,
            named_by: None,
            hint: None,
            within: None,
            listed: None,
            is_kept: false,
            children: Vec::new(),
            next: None,
            found: Found::Nothing,
        }
    }

    /// Capability of the document with this head: its own, else that of its entry, else that of the index above it.
    fn capability(&self, head: &DocumentStart) -> Option<Capability> {
        head.capability().or(self.hint.as_ref().and_then(known)).or(self.within.as_ref()).cloned()
    }

    /// Returns whether its parent gives it a capability that is not the standard's.
    fn is_unknown(&self) -> bool {
        matches!(self.hint, Some(Capability::Other(_)))
    }

    /// Returns whether it is expected to be, or to hold, packages.
    fn in_dump(&self) -> bool {
        use Capability::*;
        let is_dump = |capability: &Option<Capability>| {
            matches!(capability, Some(ResourceDump | ChangeDump | ResourceDumpArchive | ChangeDumpArchive))
        };
        is_dump(&self.hint) || is_dump(&self.within)
    }
}

/// The state of a crawl. Nodes are kept in the order they were met; `children` and `next` hold the document order.
struct Crawl<'a> {
    cache: &'a DocumentCache,
    limits: Limits,
    asking: Asking<'a>,
    nodes: Vec<Node>,
    /// Nodes before this one are fetched, or in flight.
    begun: usize,
    /// Every location that is a node: what is met again is not followed again, so cycles end.
    seen: HashSet<DocumentLocation>,
    /// Packages listed so far.
    packages: usize,
    /// True if an index listed a location that had been met before.
    met_again: bool,
    /// Children that may answer later.
    failures: usize,
    /// Nodes that come next in document order, each with all below and behind it; the last is the first.
    upcoming: Vec<usize>,
    /// Result of all nodes before these.
    crawled: Crawled,
}

impl Crawl<'_> {
    /// Adds a node that was not met before; its number.
    fn add(&mut self, node: Node) -> Result<Option<usize>, SourceError> {
        if !self.seen.insert(node.location.clone()) {
            return Ok(None);
        }
        if self.nodes.len() >= DOCUMENTS {
            return Err(structure(&node.location, &format!("there are more than {DOCUMENTS} documents")));
        }
        if node.depth > DEPTH {
            return Err(structure(&node.location, &format!("is below more than {DEPTH} indexes")));
        }
        self.nodes.push(node);
        Ok(Some(self.nodes.len() - 1))
    }

    /// Reads a document that has arrived and adds what it leads to, or decides what its failure means.
    fn arrived(&mut self, number: usize, fetched: Result<Fetched, SourceError>) -> Result<(), SourceError> {
        let met_before = self.nodes.len();
        let Err(error) = fetched.and_then(|fetched| self.take(number, fetched)) else { return Ok(()) };
        let node = &mut self.nodes[number];
        if let SourceError::Document { .. } = error {
            // Otherwise it would be asked for conditionally and stay as it is.
            self.cache.forget(&node.location)?;
        }
        let tolerates = self.asking.tolerates_failure;
        node.found = match &error {
            _ if number == 0 => return Err(error),
            SourceError::Http { .. } if error.is_gone() => Found::Missing(error.why()),
            SourceError::Http { cause, .. } if tolerates => {
                self.failures += usize::from(cause.is_retryable());
                if self.failures > FAILURES {
                    return Err(error);
                }
                Found::Failed(error)
            }
            SourceError::Document { .. } if node.is_unknown() || error.is_no_list() && !tolerates => {
                Found::Missing(error.why())
            }
            SourceError::Document { .. } if tolerates => Found::Failed(error),
            _ => {
                let Some(above) = node.named_by else { return Err(error) };
                return Err(error.named_by(&self.nodes[above].location, ANOTHER_LIST));
            }
        };
        // Nothing of half an index: a child that is met again elsewhere is followed there.
        node.children.clear();
        for child in self.nodes.drain(met_before..) {
            self.seen.remove(&child.location);
        }
        Ok(())
    }

    fn take(&mut self, number: usize, fetched: Fetched) -> Result<(), SourceError> {
        let node = &mut self.nodes[number];
        match fetched {
            Fetched::Document { document, bytes, max_age } => {
                self.crawled.transferred += bytes;
                if number == 0 {
                    self.crawled.max_age = max_age;
                }
                return off_the_workers(|| self.read(number, document));
            }
            Fetched::Package if number == 0 => {
                return Err(structure(&node.location, "is a package, but a list is expected"));
            }
            // A later page has no entry.
            Fetched::Package => match node.location.uri().filter(|_| node.in_dump()) {
                Some(uri) => {
                    node.found =
                        Found::Package(node.listed.take().unwrap_or_else(|| Box::new(Entry::new(uri.clone()))));
                }
                None => node.found = Found::Missing("it is a package, not a list".to_owned()),
            },
        }
        Ok(())
    }

    fn read(&mut self, number: usize, document: CachedDocument) -> Result<(), SourceError> {
        let broken = |cause: DocumentError| SourceError::Document { location: document.location.clone(), cause };
        let mut reader = self.cache.reader(&document, self.limits)?;
        let head = DocumentStart::read(&mut reader, false).map_err(broken)?;
        let node = &self.nodes[number];
        let mut capability = node.capability(&head);
        let may_mix = matches!(capability, None | Some(Capability::ResourceList));
        if head.header.root.is_feed_or_text() && (node.is_unknown() || !may_mix) {
            return Err(broken(DocumentError::FEED_OR_TEXT));
        }
        let holds_lists = may_mix && head.first.iter().any(|entry| entry.is_list);
        let (has_packages, lists_changes) = (head.lists_packages(), head.lists_changes());
        let mut is_leaf = !head.is_index() && !holds_lists;
        let mut packages = Vec::new();
        if !is_leaf {
            // Of an index that says that it is one, `<url>`s alone are its lists.
            let holds_resources = may_mix && (capability.is_none() || holds_lists);
            // Of an archive the children are lists, not archives.
            capability = capability.map(archived);
            let mut first = head.first.into_iter();
            while let Some(entry) =
                first.next().map_or_else(|| reader.next_entry(), |entry| Ok(Some(entry))).map_err(broken)?
            {
                if holds_resources && !is_document(&entry) {
                    // Lists that stand among resources are the children of a leaf.
                    is_leaf = true;
                } else {
                    packages.extend(self.follow(number, reader.header(), entry, &capability)?);
                }
            }
        }
        let header = reader.header();
        let capability = capability.or_else(|| header.capability.clone().filter(|_| is_leaf));
        let capability = match capability {
            Some(Capability::ChangeDump) if is_leaf && lists_changes => Some(Capability::ChangeList),
            capability => capability,
        };
        let header = leading_on(header.clone());
        let next = header.link("next").cloned();
        let node = &mut self.nodes[number];
        node.found = if is_leaf {
            Found::Leaf(Box::new(Leaf { document, header, capability, has_packages, listed: node.listed.take() }))
        } else {
            let (deviations, skipped) = (reader.deviations().clone(), reader.skipped());
            Found::Index(Box::new(Index { document, header, deviations, skipped, packages }))
        };
        if let Some(next) = next {
            self.nodes[number].next = self.add_page(number, next)?;
        }
        Ok(())
    }

    /// Adds the page after the document `number`.
    fn add_page(&mut self, number: usize, uri: Uri) -> Result<Option<usize>, SourceError> {
        let before = &self.nodes[number];
        // A page is no deeper than the page before it: only their number is bounded.
        let page = Node {
            depth: before.depth,
            named_by: Some(number),
            hint: before.hint.clone(),
            within: before.within.clone(),
            ..Node::root(DocumentLocation::Uri(uri))
        };
        self.add(page)
    }

    /// Adds the child that an entry of the index `number` names, or hands back the package that it is.
    fn follow(
        &mut self,
        number: usize,
        header: &Header,
        mut entry: Entry,
        within: &Option<Capability>,
    ) -> Result<Option<Entry>, SourceError> {
        let choice = (self.asking.choice)(header, &entry);
        if choice == Child::Leave {
            return Ok(None);
        }
        let mut child = Node {
            depth: self.nodes[number].depth + 1,
            named_by: Some(number),
            hint: entry.capability.clone(),
            within: within.clone(),
            is_kept: choice == Child::Keep,
            ..Node::root(DocumentLocation::Uri(entry.loc.clone()))
        };
        let in_dump = child.in_dump();
        entry.links.retain(|link| in_dump && &*link.rel == "contents");
        entry.links.shrink_to_fit();
        if in_dump && is_package(&entry) {
            self.packages += 1;
            if self.packages > PACKAGES {
                let location = &self.nodes[number].location;
                return Err(structure(location, &format!("lists more than {PACKAGES} packages")));
            }
            return Ok(Some(entry));
        }
        child.listed = Some(Box::new(entry));
        match self.add(child)? {
            Some(child) => self.nodes[number].children.push(child),
            None => self.met_again = true,
        }
        Ok(None)
    }

    /// Takes over what is next in document order, up to the first node that is not here yet: a document, what is below it, the
    /// page after it.
    fn advance(&mut self) {
        let crawled = &mut self.crawled;
        while let Some(node) = self.upcoming.last().and_then(|number| self.nodes.get_mut(*number)) {
            let location = node.location.clone();
            match (std::mem::replace(&mut node.found, Found::Nothing), location) {
                (Found::Nothing, _) => return,
                (Found::Leaf(leaf), _) => {
                    (self.asking.reached)(&leaf);
                    crawled.leaves.push(*leaf);
                }
                (Found::Index(index), location) => {
                    let Index { document, header, deviations, skipped, packages } = *index;
                    crawled.skipped += skipped;
                    crawled.indexes.push(document);
                    crawled.index_headers.push(header);
                    crawled.packages.extend(packages);
                    if !deviations.is_empty() {
                        crawled.deviations.push(DocumentDeviations { location, deviations });
                    }
                }
                (Found::Package(listed), _) => crawled.packages.push(*listed),
                (Found::Missing(why), location) => crawled.missing.push(Missing { location, entries: 0, why }),
                (Found::Failed(cause), location) => crawled.failed.push((location, cause.into())),
            }
            self.upcoming.pop();
            self.upcoming.extend(node.next);
            self.upcoming.extend(node.children.iter().rev());
        }
    }

    fn finish(self, root: &DocumentLocation) -> Result<Crawled, SourceError> {
        let Crawled { leaves, packages, missing, failed, skipped, .. } = &self.crawled;
        let is_empty = leaves.is_empty() && packages.is_empty() && missing.is_empty() && failed.is_empty();
        match is_empty {
            true if self.met_again => Err(structure(root, "the index contains itself and nothing else")),
            true if *skipped > 0 => Err(structure(root, "none of the index's entries can be understood")),
            _ => Ok(self.crawled),
        }
    }
}

fn structure(location: &DocumentLocation, what: &str) -> SourceError {
    SourceError::Structure { location: location.clone(), what: what.to_owned() }
}
