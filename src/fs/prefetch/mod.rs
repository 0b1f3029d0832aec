//! Fetches files before they are read, and sizes before they are asked for: drives the [`Tracker`] over the catalog and content.
//!
//! | file | contents |
//! |---|---|
//! | `tracker` | which files to fetch, and how many: a pure state machine over all walks, and which part of their bytes was used |
//! | `walk` | one walk, and its window |
//! | `cursor` | the order in which programs go through the tree |
//! | `listings` | which thread has listed which folder |
//!
//! The tracker sees READs of a file's first bytes and GETATTRs that wait. While there are walks it also sees those that this machine
//! answers. Ordered files are fetched by tasks: the tracker bounds their number, and the Source's limiter decides their order.

mod cursor;
mod listings;
#[cfg(test)]
mod tests;
mod tracker;
mod walk;

pub use walk::{Consumer, Reader};

use super::FsOptions;
use super::error::FsError;
use super::fetch_spec::fetch_spec;
use super::readers::is_gone;
use crate::catalog::{Catalog, CatalogError, InodeName, Node, Snapshot};
use crate::content::Content;
use crate::content::fixity::WHOLE_LIMIT;
use crate::platform::error_chain::chain;
use crate::platform::ino::Ino;
use crate::source::http::Requester;
use cursor::{SearchEnd, TreeCursor};
use listings::Listings;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tracker::{EXPECTED, PrefetchKey, Reaction, Tracker, Wish};
use walk::{Candidate, Evidence, SIZE_BYTES, WalkStart};

/// A file of unknown size is fetched ahead only among files that are usually not larger.
const UNKNOWN_AMONG: u64 = 1 << 20;

/// Bytes that may be fetched ahead where only sizes are.
const FOR_SIZES: u64 = 1 << 20;

/// Folders above a file that are searched.
const DEEP: usize = 64;

/// How often walks are ended whose readers are gone.
const SWEEP: Duration = Duration::from_secs(1);

/// Fetches ahead of readers.
pub(super) struct Prefetch {
    catalog: Arc<Catalog>,
    content: Arc<Content>,
    options: FsOptions,
    runtime: Handle,
    /// Held for a few instructions, and never while the catalog or content is asked.
    state: Mutex<PrefetchState>,
    /// A task sweeps the tracker as long as there are walks.
    has_walks: AtomicBool,
    listings: Listings,
    /// True if the bytes of files are fetched, or sizes alone.
    fetches_bytes: bool,
}

struct PrefetchState {
    tracker: Tracker<TreeCursor>,
    /// The tasks that fetch bytes, by file. The sweep removes those that have ended.
    tasks: HashMap<Ino, AbortHandle>,
}

impl Prefetch {
    /// Up to `limit` bytes that were not read yet; for 0 only sizes are asked for ahead.
    pub(super) fn new(
        catalog: Arc<Catalog>,
        content: Arc<Content>,
        options: FsOptions,
        runtime: Handle,
        limit: u64,
    ) -> Prefetch {
        Prefetch {
            catalog,
            content,
            options,
            runtime,
            state: Mutex::new(PrefetchState { tracker: Tracker::new(limit.max(FOR_SIZES)), tasks: HashMap::new() }),
            has_walks: AtomicBool::new(false),
            listings: Listings::default(),
            fetches_bytes: limit > 0,
        }
    }

    /// Returns whether there are walks: the only cost for a reader while nothing is fetched.
    pub(super) fn has_walks(&self) -> bool {
        self.has_walks.load(Ordering::Acquire)
    }

    /// `thread` begins to list `folder`.
    pub(super) fn listed(&self, folder: Ino, thread: u32) {
        if self.fetches_bytes {
            self.listings.note(thread, folder);
        }
    }

    /// A program reads the first bytes of a file, or asks for its size. `is_here`: this machine answers, which begins no walk.
    pub(super) fn read(
        self: &Arc<Self>,
        (consumer, ino): PrefetchKey,
        reader: Reader,
        bytes: Option<u64>,
        is_here: bool,
    ) {
        let mut state = self.state();
        // A learnt size may have come with the bytes: only an ordered one shows that its reader continues.
        if is_here && consumer == Consumer::Sizes && !state.tracker.is_ordered((consumer, ino)) {
            return;
        }
        let seen = state.tracker.read((consumer, ino), bytes, reader, Instant::now());
        drop(state);
        if matches!(seen, Reaction::Enough) || (is_here && matches!(seen, Reaction::Elsewhere)) {
            return;
        }
        // A FUSE thread asks, and to see which files are here the disk may have to be waited for.
        let this = Arc::clone(self);
        self.runtime.spawn_blocking(move || {
            let followed = match seen {
                Reaction::Enough => Ok(()),
                Reaction::Follows(wish) => {
                    let from = if wish.is_another_readers { wish.from.in_its_folder() } else { wish.from };
                    this.supply(&Wish { from, ..wish })
                }
                Reaction::Elsewhere => this.begin(consumer, ino, reader, Evidence::None),
            };
            report(ino, followed);
        });
    }

    /// A size takes long: the next ones are asked for at once, in order or not.
    pub(super) fn size_takes_long(self: &Arc<Self>, ino: Ino, reader: Reader) {
        report(ino, self.begin(Consumer::Sizes, ino, reader, Evidence::LongWait));
    }

    /// Returns whether the reader that asks for the size of `ino` is going to read it: a walk has fetched it or expects it.
    pub(super) fn expects(&self, ino: Ino) -> bool {
        self.has_walks() && self.state().tracker.expects((Consumer::Bytes, ino))
    }

    fn state(&self) -> MutexGuard<'_, PrefetchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(
        self: &Arc<Self>,
        consumer: Consumer,
        ino: Ino,
        reader: Reader,
        mut evidence: Evidence,
    ) -> Result<(), CatalogError> {
        if consumer == Consumer::Bytes && !self.fetches_bytes {
            return Ok(());
        }
        let snapshot = self.catalog.snapshot()?;
        let Some(InodeName { folder, entry, .. }) = snapshot.inode(ino)?.and_then(|inode| inode.name) else {
            return Ok(());
        };
        let mut cursor = TreeCursor::behind(folder, entry);
        if consumer == Consumer::Bytes && self.listings.is_last(reader.thread, folder) {
            let top = self.top_listed(&snapshot, folder, reader.thread)?;
            cursor = if top == folder { cursor } else { cursor.all_of(top) };
            TreeCursor::before_files_of(folder).follow(&snapshot, &mut |node, _| {
                if node.ino == ino {
                    evidence = Evidence::FirstListed;
                }
                false
            })?;
        }
        drop(snapshot);
        let bytes = consumer.cost(|| self.content.known_size(ino));
        let start = WalkStart { consumer, after: cursor, bytes, reader, evidence };
        let wish = self.state().tracker.begin(start, Instant::now());
        self.sweep();
        self.supply(&wish)
    }

    /// The uppermost folder of which `thread` has listed all that lead from there to `folder`: it goes through them.
    fn top_listed(&self, snapshot: &Snapshot<'_>, folder: Ino, thread: u32) -> Result<Ino, CatalogError> {
        let mut top = folder;
        for _ in 0..DEEP {
            match snapshot.inode(top)?.and_then(|inode| inode.name) {
                Some(InodeName { folder, .. }) if self.listings.has(thread, folder) => top = folder,
                _ => break,
            }
        }
        Ok(top)
    }

    /// Supplies a walk with the files that follow, and fetches those that it orders.
    fn supply(self: &Arc<Self>, wish: &Wish<TreeCursor>) -> Result<(), CatalogError> {
        let snapshot = self.catalog.snapshot()?;
        let mut candidates: Vec<Candidate<TreeCursor>> = Vec::with_capacity(wish.files);
        let (mut front, mut bytes, mut is_end) = (wish.from, 0u64, false);
        if wish.files > 0 {
            let stopped = wish.from.follow(&snapshot, &mut |node, after| {
                if wish.from.leads_further(&after) {
                    is_end = true;
                    return false;
                }
                let candidate = self.candidate(wish.consumer, &node, after);
                let counted = candidate.bytes.unwrap_or(wish.usual_bytes);
                let is_small = candidate.bytes.map_or(wish.usual_bytes <= UNKNOWN_AMONG, |bytes| bytes <= WHOLE_LIMIT);
                // Large files stream fast enough when they are read.
                if is_small && self.is_missing(wish.consumer, &node) && !self.content.has_failed(node.ino) {
                    if !candidates.is_empty() && bytes + counted > wish.bytes {
                        return false;
                    }
                    bytes += counted;
                    candidates.push(candidate);
                }
                front = after;
                candidates.len() < wish.files
            })?;
            match stopped {
                SearchEnd::Enough => {}
                // The next search begins behind this one.
                SearchEnd::Further(at) if !wish.from.leads_further(&at) => front = at,
                SearchEnd::Further(_) | SearchEnd::End => is_end = true,
            }
        }
        // Their readers ask for them when the host allows that again.
        if self.is_paced(&snapshot, &candidates)? {
            (front, is_end) = (wish.from, false);
            candidates.clear();
        }
        let mut expected: Vec<Candidate<TreeCursor>> = Vec::with_capacity(2 * EXPECTED);
        for from in [front, front.in_other_order()] {
            let mut left = EXPECTED;
            from.follow(&snapshot, &mut |node, after| {
                if self.is_missing(wish.consumer, &node) {
                    if !expected.iter().any(|known| known.ino == node.ino) {
                        expected.push(self.candidate(wish.consumer, &node, after));
                    }
                    left -= 1;
                }
                left > 0
            })?;
        }
        drop(snapshot);
        let mut state = self.state();
        for ino in state.tracker.supply(wish, candidates, expected, front, is_end) {
            let fetching = Arc::clone(self).fetch(wish.consumer, ino, Requester(wish.process));
            let task = self.runtime.spawn(fetching).abort_handle();
            // A reader may wait for the same answer to a question for a size, so that is never aborted.
            if wish.consumer == Consumer::Bytes {
                if let Some(earlier) = state.tasks.insert(ino, task) {
                    earlier.abort();
                }
            }
        }
        Ok(())
    }

    /// Returns whether the host of the next file leaves no requests for what is fetched ahead.
    fn is_paced(&self, snapshot: &Snapshot<'_>, candidates: &[Candidate<TreeCursor>]) -> Result<bool, CatalogError> {
        let Some(next) = candidates.first() else { return Ok(false) };
        let spec = fetch_spec(snapshot, next.ino, &self.options)?;
        Ok(spec.is_some_and(|spec| self.content.is_paced(&spec)))
    }

    fn candidate(&self, consumer: Consumer, node: &Node, after: TreeCursor) -> Candidate<TreeCursor> {
        let bytes = consumer.cost(|| node.size.or_else(|| self.content.known_size(node.ino)));
        Candidate { ino: node.ino, bytes, after }
    }

    /// Returns whether there is something to fetch.
    fn is_missing(&self, consumer: Consumer, node: &Node) -> bool {
        match consumer {
            Consumer::Bytes => !self.content.is_here(node.ino),
            Consumer::Sizes => node.size.is_none() && self.content.known_size(node.ino).is_none(),
        }
    }

    /// The task of one file.
    async fn fetch(self: Arc<Self>, consumer: Consumer, ino: Ino, requester: Requester) {
        // The runtime polls first what was spawned last: the reader comes before this.
        tokio::task::yield_now().await;
        let fetched = self.fetch_now(consumer, ino, requester).await;
        let (key, mut state) = ((consumer, ino), self.state());
        match fetched {
            Ok(Some(bytes)) => state.tracker.completed(key, bytes),
            Ok(None) => state.tracker.dropped(key, false),
            Err(FsError::Content(error)) if error.is_of_cache() => state.tracker.no_room(key, Instant::now()),
            Err(error) => {
                state.tracker.dropped(key, true);
                tracing::debug!(ino = ino.0, "not fetched ahead: {}", chain(&error));
            }
        }
    }

    /// Bytes fetched; `None` where there is nothing to fetch.
    async fn fetch_now(&self, consumer: Consumer, ino: Ino, requester: Requester) -> Result<Option<u64>, FsError> {
        let Some(spec) = fetch_spec(&self.catalog.snapshot()?, ino, &self.options)? else { return Ok(None) };
        match consumer {
            Consumer::Bytes => Ok(self.content.fetch_ahead(&spec, requester, WHOLE_LIMIT).await?),
            Consumer::Sizes => {
                // Boxed, so that a task that waits for a permit is small.
                Box::pin(self.content.size_ahead(&spec, requester)).await?;
                Ok(Some(SIZE_BYTES))
            }
        }
    }

    /// Ends walks whose readers are gone, and the downloads that they leave, as long as there are walks.
    fn sweep(self: &Arc<Self>) {
        if self.has_walks.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = Arc::clone(self);
        self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                // The processes are looked for without the lock.
                let mut gone = this.state().tracker.processes();
                gone.retain(|process| is_gone(*process));
                let PrefetchState { tracker, tasks } = &mut *this.state();
                let is_left = tracker.sweep(Instant::now(), |process| gone.contains(&process));
                // Files that were read are ordered no more, but their reader waits for them.
                tasks.retain(|ino, task| {
                    let is_wanted = !task.is_finished() && tracker.is_ordered((Consumer::Bytes, *ino));
                    if !is_wanted {
                        task.abort();
                    }
                    is_wanted
                });
                if !is_left {
                    this.has_walks.store(false, Ordering::Release);
                    return;
                }
            }
        });
    }
}

fn report(ino: Ino, followed: Result<(), CatalogError>) {
    if let Err(error) = followed {
        tracing::debug!(ino = ino.0, "nothing is fetched ahead: {}", chain(&error));
    }
}
