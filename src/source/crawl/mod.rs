//! From a set's documents to the leaf lists: indexes of any depth followed, pages turned, everything spooled.
//!
//! A walk is whole or fails: a list that fails for now would look like the deletion of all it lists. What a walk can do without
//! are children that are gone for good (404, 410) or are no lists at all: these are recorded, so that nothing is deleted for
//! its absence.

mod fetch;
mod progress;
#[cfg(test)]
mod tests;
mod walked;

use super::{
    DocumentDeviations, DocumentLocation, Missing, SourceError,
    documents::{DocumentCache, Held},
    head::{Head, archived, is_document, is_package, known, leading_on},
    http::Client,
    off_the_workers,
};
use crate::causes::chain;
use crate::document::{Capability, Deviations, DocumentError, Entry, Header, Limits, Uri};
use fetch::{Fetched, fetch};
use futures_util::{StreamExt, stream::FuturesUnordered};
pub use progress::Progress;
use progress::Reporter;
use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};
pub use walked::{Leaf, Walked};

/// Documents under way at once.
pub const CONCURRENCY: usize = 8;

/// Indexes below one another.
pub const DEPTH: usize = 8;

/// Documents of one walk, pages and indexes included.
pub const DOCUMENTS: usize = 50_000;

/// Children whose server does not answer, or not now, before a walk is given up that bears it.
pub const FAILURES: usize = 16;

/// What a person can do while one of the lists that an index names fails.
pub const ANOTHER_LIST: &str = ", or paste the address of another list to mount that one alone";

/// Packages that the indexes of one walk list. A dump of more is a list of them.
pub const PACKAGES: usize = 200_000;

/// What becomes of a child of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    /// It is asked for, conditionally.
    Ask,
    /// What the spool holds of it will do; asked for only where it holds nothing.
    Keep,
    /// It is left out.
    Leave,
}

/// What becomes of the entries of an index: (header of the index, entry).
pub type Choice<'a> = &'a (dyn Fn(&Header, &Entry) -> Child + Send + Sync);

/// How a walk asks.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// Which children.
    pub choice: Choice<'a>,
    /// Whether caches on the way are passed by (`Cache-Control: no-cache`).
    pub past_caches: bool,
    /// Whether a child that fails for now, or is no document, is recorded as failed; else the first ends the walk, and the
    /// second is passed over. Of those that may answer later only so many are, for each takes its time ([`FAILURES`]).
    pub bears_failure: bool,
    /// Whether what fails is asked for again at once, patiently; else whoever walks comes again later.
    pub is_patient: bool,
    /// Hears of each leaf as soon as it and all before it in document order are here.
    pub reached: Reached<'a>,
}

/// Hears of a leaf.
pub type Reached<'a> = &'a (dyn Fn(&Leaf) + Send + Sync);

/// Every child, through caches, and none may fail for now.
pub const EVERYTHING: Asking<'static> =
    Asking { choice: &|_, _| Child::Ask, past_caches: false, bears_failure: false, is_patient: true, reached: &|_| () };

/// Fetches `root` and everything below it into the spool, several at a time, conditionally.
/// One document that fails for now or is truncated fails the whole walk: a tree is shown whole or not at all.
///
/// A document that ends early but came in full, by its server's account, is found by whoever reads it to the end;
/// that one calls [`DocumentCache::forget`], so that it is not asked for conditionally any more.
///
/// # Errors
/// [`SourceError`] of the first document that failed. What was complete stays in the spool for the next walk.
pub async fn walk(
    client: &Client,
    spool: &DocumentCache,
    root: &DocumentLocation,
    limits: Limits,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Walked, SourceError> {
    walk_asking(client, spool, root, limits, EVERYTHING, progress).await
}

/// As [`walk`], asking as `asking` says: of the children of a Change List Index those not seen to their end.
///
/// # Errors
/// See [`walk`].
pub async fn walk_asking(
    client: &Client,
    spool: &DocumentCache,
    root: &DocumentLocation,
    limits: Limits,
    asking: Asking<'_>,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Walked, SourceError> {
    let reporter = Reporter::new(progress);
    let (nodes, seen, waiting) = (Vec::new(), HashSet::new(), VecDeque::new());
    let mut walk = Walk {
        spool,
        limits,
        asking,
        nodes,
        seen,
        waiting,
        packages: 0,
        met_again: false,
        transferred: 0,
        max_age: None,
        failures: 0,
        upcoming: vec![0],
    };
    walk.add(Node::new(root.clone(), 0))?;
    let mut under_way = FuturesUnordered::new();
    loop {
        while under_way.len() < CONCURRENCY
            && let Some(node) = walk.waiting.pop_front()
        {
            let (location, kept) = (walk.nodes[node].location.clone(), walk.nodes[node].kept);
            let reporter = &reporter;
            under_way.push(async move {
                if let Some(held) = kept.then(|| spool.held(&location)).flatten() {
                    return (node, Ok(Fetched::Document { held, bytes: 0, max_age: None }));
                }
                let received = |bytes| reporter.received(bytes);
                (node, fetch(client, spool, &location, limits, asking, &received).await)
            });
        }
        reporter.known(walk.nodes.len());
        let Some((node, fetched)) = under_way.next().await else { break };
        walk.arrived(node, fetched)?;
        walk.tell_reached();
        reporter.complete();
    }
    walk.finish(root)
}

/// A document of the walk, met or fetched.
struct Node {
    location: DocumentLocation,
    /// Indexes above it.
    depth: usize,
    /// The number of the document that names it; `None` for the root.
    named_by: Option<usize>,
    /// What its parent said of it.
    hint: Option<Capability>,
    /// What the index above it is.
    within: Option<Capability>,
    /// What the index above it says of it.
    listed: Option<Box<Entry>>,
    /// Whether what the spool holds will do.
    kept: bool,
    /// Its children if it is an index, in document order.
    children: Vec<usize>,
    /// The page after it.
    next: Option<usize>,
    found: Found,
}

/// What a node turned out to be.
enum Found {
    /// Not here yet.
    Nothing,
    Leaf(Box<Leaf>),
    Index {
        held: Box<Held>,
        header: Box<Header>,
        deviations: Deviations,
        skipped: u64,
        packages: Vec<Entry>,
    },
    /// As the index above lists it; `None` for a later page.
    Package(Option<Box<Entry>>),
    /// Why it is no document.
    PassedOver(String),
    /// Gone, with the server's answer.
    Gone(String),
    /// Not to be had, or no document.
    Failed(String),
}

impl Node {
    fn new(location: DocumentLocation, depth: usize) -> Node {
        let (children, next, found) = (Vec::new(), None, Found::Nothing);
        let (hint, within, listed) = (None, None, None);
        Node { location, depth, named_by: None, hint, within, listed, kept: false, children, next, found }
    }

    /// What follows it in document order: what is below it, then the page after it. Of `upcoming` the last is the first.
    fn go_on(&self, upcoming: &mut Vec<usize>) {
        upcoming.extend(self.next);
        upcoming.extend(self.children.iter().rev());
    }

    /// Whether its parent says that it is something that nobody here knows.
    fn is_unknown(&self) -> bool {
        matches!(self.hint, Some(Capability::Other(_)))
    }

    /// Whether it is expected to be, or to hold, packages.
    fn in_dump(&self) -> bool {
        use Capability::*;
        let dump = |capability: &Option<Capability>| {
            matches!(capability, Some(ResourceDump | ChangeDump | ResourceDumpArchive | ChangeDumpArchive))
        };
        dump(&self.hint) || dump(&self.within)
    }
}

/// The state of a walk. Nodes are kept in the order they were met; `children` and `next` hold the document order.
struct Walk<'a> {
    spool: &'a DocumentCache,
    limits: Limits,
    asking: Asking<'a>,
    nodes: Vec<Node>,
    /// Every location that is a node: what is met again is not followed again, so cycles end.
    seen: HashSet<DocumentLocation>,
    /// Nodes to be fetched.
    waiting: VecDeque<usize>,
    /// Packages listed so far.
    packages: usize,
    /// Whether an index listed what had been met before.
    met_again: bool,
    /// See [`Walked::transferred`] and [`Walked::max_age`].
    transferred: u64,
    max_age: Option<Duration>,
    /// Children that may answer later.
    failures: usize,
    /// Nodes of which nobody has heard yet, with all below and behind them: in document order, the last is the first.
    upcoming: Vec<usize>,
}

impl Walk<'_> {
    /// Adds a node that was not met before; its number.
    fn add(&mut self, node: Node) -> Result<Option<usize>, SourceError> {
        if !self.seen.insert(node.location.clone()) {
            return Ok(None);
        }
        if self.nodes.len() >= DOCUMENTS {
            return Err(structure(&node.location, &format!("there are more than {DOCUMENTS} documents")));
        }
        if node.depth > DEPTH {
            return Err(structure(&node.location, &format!("lies below more than {DEPTH} indexes")));
        }
        self.waiting.push_back(self.nodes.len());
        self.nodes.push(node);
        Ok(Some(self.nodes.len() - 1))
    }

    /// Looks into a document that has come and adds what it leads to.
    fn arrived(&mut self, number: usize, fetched: Result<Fetched, SourceError>) -> Result<(), SourceError> {
        let node = &mut self.nodes[number];
        let is_child = number > 0;
        let fetched = match fetched {
            Err(error) if is_child && error.is_gone() => {
                node.found = Found::Gone(error.why());
                return Ok(());
            }
            Err(error @ SourceError::Http { .. }) if is_child && self.asking.bears_failure => {
                let may_answer = matches!(&error, SourceError::Http { cause, .. } if cause.is_retryable());
                self.failures += usize::from(may_answer);
                if self.failures > FAILURES {
                    return Err(error);
                }
                node.found = Found::Failed(chain(&error));
                return Ok(());
            }
            Err(error) if is_child && error.is_no_list() => {
                let why = error.why();
                node.found = if self.asking.bears_failure { Found::Failed(why) } else { Found::PassedOver(why) };
                return Ok(());
            }
            Err(error) => return Err(self.of_child(number, error)),
            Ok(fetched) => fetched,
        };
        let held = match fetched {
            Fetched::Document { held, bytes, max_age } => {
                self.transferred += bytes;
                if number == 0 {
                    self.max_age = max_age;
                }
                held
            }
            Fetched::Package if node.in_dump() => {
                node.found = Found::Package(node.listed.take());
                return Ok(());
            }
            Fetched::Package if is_child => {
                node.found = Found::PassedOver("it is a package, no list".to_owned());
                return Ok(());
            }
            Fetched::Package => return Err(structure(&node.location, "is a package where a list is expected")),
        };
        let met_before = self.nodes.len();
        match off_the_workers(|| self.read(number, held)) {
            Err(error @ SourceError::Document { .. }) => {
                let node = &mut self.nodes[number];
                // Else it would be asked for conditionally and stay as it is.
                self.spool.forget(&node.location)?;
                if node.is_unknown() || is_child && error.is_no_list() && !self.asking.bears_failure {
                    // Nothing of half an index: what is met again elsewhere is followed there.
                    node.children.clear();
                    node.found = Found::PassedOver(error.why());
                    for child in self.nodes.drain(met_before..) {
                        self.seen.remove(&child.location);
                    }
                    self.waiting.retain(|waiting| *waiting < met_before);
                    return Ok(());
                }
                if is_child && self.asking.bears_failure {
                    node.found = Found::Failed(chain(&error));
                    return Ok(());
                }
                Err(self.of_child(number, error))
            }
            other => other,
        }
    }

    /// Why the walk ends at a document, with the one that names it.
    fn of_child(&self, number: usize, error: SourceError) -> SourceError {
        match self.nodes[number].named_by {
            Some(above) => error.named_by(&self.nodes[above].location, ANOTHER_LIST),
            None => error,
        }
    }

    /// Tells of the leaves that are next in document order, up to the first node that is not here yet.
    fn tell_reached(&mut self) {
        while let Some(node) = self.upcoming.last().and_then(|number| self.nodes.get(*number)) {
            if let Found::Nothing = node.found {
                return;
            }
            self.upcoming.pop();
            node.go_on(&mut self.upcoming);
            if let Found::Leaf(leaf) = &node.found {
                (self.asking.reached)(leaf);
            }
        }
    }

    fn read(&mut self, number: usize, held: Held) -> Result<(), SourceError> {
        let broken = |cause: DocumentError| SourceError::Document { location: held.document.location.clone(), cause };
        let mut reader = self.spool.reader(&held.document, self.limits)?;
        let head = Head::read(&mut reader, false).map_err(broken)?;
        let node = &self.nodes[number];
        let capability = head.capability().or(node.hint.as_ref().and_then(known)).or(node.within.as_ref()).cloned();
        let may_mix = matches!(capability, None | Some(Capability::ResourceList));
        if head.header.root.is_feed_or_text() && (node.is_unknown() || !may_mix) {
            return Err(broken(DocumentError::FEED_OR_TEXT));
        }
        let holds_lists = may_mix && head.first.iter().any(|entry| entry.is_list);
        let has_packages = head.lists_packages();
        if !head.is_index() && !holds_lists {
            return self.is_leaf(number, head.header, capability, has_packages, held);
        }
        // Of an index that says that it is one, `<url>`s alone are its lists.
        let holds_resources = may_mix && (capability.is_none() || holds_lists);
        let mut mixes = false;
        // Of an archive the children are lists, not archives.
        let within = capability.map(archived);
        let mut first = head.first.into_iter();
        let mut packages = Vec::new();
        loop {
            let mut entry = match first.next() {
                Some(entry) => entry,
                None => match reader.next_entry().map_err(broken)? {
                    Some(entry) => entry,
                    None => break,
                },
            };
            if holds_resources && !is_document(&entry) {
                mixes = true;
                continue;
            }
            let choice = (self.asking.choice)(reader.header(), &entry);
            if choice == Child::Leave {
                continue;
            }
            let mut child = Node::new(DocumentLocation::Uri(entry.loc.clone()), self.nodes[number].depth + 1);
            child.named_by = Some(number);
            child.hint = entry.capability.clone();
            child.within = within.clone();
            let in_dump = child.in_dump();
            entry.links.retain(|link| in_dump && &*link.rel == "contents");
            entry.links.shrink_to_fit();
            if in_dump && is_package(&entry) {
                self.packages += 1;
                if self.packages > PACKAGES {
                    return Err(structure(&held.document.location, &format!("lists more than {PACKAGES} packages")));
                }
                packages.push(entry);
                continue;
            }
            child.kept = choice == Child::Keep;
            child.listed = Some(Box::new(entry));
            match self.add(child)? {
                Some(child) => self.nodes[number].children.push(child),
                None => self.met_again = true,
            }
        }
        if mixes {
            return self.is_leaf(number, reader.header().clone(), within, has_packages, held);
        }
        let header = leading_on(reader.header().clone());
        let next = header.link("next").cloned();
        self.nodes[number].found = Found::Index {
            deviations: reader.deviations().clone(),
            skipped: reader.skipped(),
            header: Box::new(header),
            packages,
            held: Box::new(held),
        };
        self.turn(number, next)
    }

    /// Notes a list of resources; lists that stand among these are its children.
    fn is_leaf(
        &mut self,
        number: usize,
        header: Header,
        capability: Option<Capability>,
        has_packages: bool,
        held: Held,
    ) -> Result<(), SourceError> {
        let capability = capability.or_else(|| header.capability.clone());
        let header = leading_on(header);
        let next = header.link("next").cloned();
        let listed = self.nodes[number].listed.take();
        let unchanged = held.settled;
        let leaf = Leaf { document: held.document, header, capability, has_packages, unchanged, listed };
        self.nodes[number].found = Found::Leaf(Box::new(leaf));
        self.turn(number, next)
    }

    /// Adds the page after `number`. Pages are no deeper than what they follow: only their count is bounded.
    fn turn(&mut self, number: usize, next: Option<Uri>) -> Result<(), SourceError> {
        let Some(next) = next else { return Ok(()) };
        let before = &self.nodes[number];
        let mut page = Node::new(DocumentLocation::Uri(next), before.depth);
        page.named_by = Some(number);
        page.hint = before.hint.clone();
        page.within = before.within.clone();
        self.nodes[number].next = self.add(page)?;
        Ok(())
    }

    /// What was found, in document order: a document, what is below it, the page after it.
    fn finish(self, root: &DocumentLocation) -> Result<Walked, SourceError> {
        let mut walked = Walked { transferred: self.transferred, max_age: self.max_age, ..Walked::empty() };
        let mut nodes: Vec<Option<Node>> = self.nodes.into_iter().map(Some).collect();
        let mut upcoming = vec![0];
        while let Some(number) = upcoming.pop() {
            let Some(node) = nodes.get_mut(number).and_then(Option::take) else { continue };
            node.go_on(&mut upcoming);
            match (node.found, node.location) {
                (Found::Leaf(leaf), _) => {
                    walked.unchanged &= leaf.unchanged;
                    walked.leaves.push(*leaf);
                }
                (Found::Index { held, header, deviations, skipped, packages }, location) => {
                    walked.skipped += skipped;
                    walked.unchanged &= held.settled;
                    walked.indexes.push(held.document);
                    walked.index_headers.push(*header);
                    walked.packages.extend(packages);
                    if !deviations.is_empty() {
                        walked.deviations.push(DocumentDeviations { location, deviations });
                    }
                }
                (Found::Package(listed), DocumentLocation::Uri(uri)) => {
                    walked.packages.push(listed.map_or_else(|| Entry::new(uri), |entry| *entry));
                }
                (Found::PassedOver(why), location) => {
                    walked.passed_over.push(Missing { location, entries: 0, why });
                }
                (Found::Gone(why), location) => walked.missing.push(Missing { location, entries: 0, why }),
                (Found::Failed(why), location) => walked.failed.push(Missing { location, entries: 0, why }),
                // A file is never anyone's child, and no node is left unfetched by a walk that did not fail.
                (Found::Package(_), DocumentLocation::File(_)) | (Found::Nothing, _) => {}
            }
        }
        let nothing = walked.leaves.is_empty()
            && walked.packages.is_empty()
            && walked.passed_over.is_empty()
            && walked.missing.is_empty()
            && walked.failed.is_empty();
        if nothing && self.met_again {
            return Err(structure(root, "the index contains itself and nothing else"));
        }
        if nothing && walked.skipped > 0 {
            return Err(structure(root, "none of the index's entries can be understood"));
        }
        Ok(walked)
    }
}

fn structure(location: &DocumentLocation, what: &str) -> SourceError {
    SourceError::Structure { location: location.clone(), what: what.to_owned() }
}
