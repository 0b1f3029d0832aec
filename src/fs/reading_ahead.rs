//! Files fetched ahead of whoever reads one after the other: drives [`Readahead`] over the catalog and content.
//!
//! A READ of a file's first octets is what is told of, where they were not here, or were because they had been fetched ahead; a
//! warm read costs one relaxed load. What follows in the tree is [`following`](super::following)'s to say. Fetches run in
//! the background, a bounded number at a time that leaves connections for whoever waits.

use super::FsOptions;
use super::error::FsError;
use super::following::Cursor;
use super::links::wanted;
use crate::catalog::{Catalog, CatalogError, Node};
use crate::causes::chain;
use crate::content::fixity::WHOLE_LIMIT;
use crate::content::readahead::{Candidate, EXPECTED, Ledger, Readahead, Seen, Wish};
use crate::content::{Content, Wanted};
use fuser::INodeNo;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::runtime::Handle;

/// A file whose size nobody knows is fetched ahead only among files that are usually not larger.
const UNKNOWN_AMONG: u64 = 1 << 20;

/// Fetches under way before a host was asked.
const PLACES_FIRST: usize = 8;

/// Files remembered that came with their size.
const CAME_WITH_SIZE: NonZeroUsize = NonZeroUsize::MIN.saturating_add(255);

/// Drives [`Readahead`].
pub(super) struct ReadingAhead {
    catalog: Arc<Catalog>,
    content: Arc<Content>,
    options: FsOptions,
    runtime: Handle,
    /// Held for a few instructions, with no other lock and never while the catalog or content is asked.
    walks: Mutex<Readahead<Cursor>>,
    /// Files that came whole when their size was asked for, and were not read yet.
    came_with_size: Mutex<LruCache<INodeNo, ()>>,
    /// Files fetched ahead and not read yet, and those that came with their size, as of the last change; looked at without the lock.
    outstanding: AtomicUsize,
    /// Fetches under way.
    under_way: AtomicUsize,
    /// Fetches that may be under way, as the host that was asked last bears them.
    places: AtomicUsize,
    /// The most of them; none: nothing is fetched ahead.
    at_once: usize,
}

impl ReadingAhead {
    /// Up to `at_once` fetches at a time, of up to `limit` octets that were not read yet.
    pub(super) fn new(
        catalog: Arc<Catalog>,
        content: Arc<Content>,
        options: FsOptions,
        runtime: Handle,
        at_once: usize,
        limit: u64,
    ) -> ReadingAhead {
        ReadingAhead {
            catalog,
            content,
            options,
            runtime,
            walks: Mutex::new(Readahead::new(limit)),
            came_with_size: Mutex::new(LruCache::new(CAME_WITH_SIZE)),
            outstanding: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            places: AtomicUsize::new(at_once.min(PLACES_FIRST)),
            at_once,
        }
    }

    /// Whether [`ReadingAhead::read_here`] could have any effect: the one thing that a warm read costs.
    pub(super) fn looks_out(&self) -> bool {
        self.outstanding.load(Ordering::Relaxed) > 0
    }

    /// The first octets of a file were read, and they were here.
    pub(super) fn read_here(self: &Arc<Self>, ino: INodeNo) {
        let came_with_size = self.came().pop(&ino).is_some();
        let seen = self.walks().read(ino, None, Instant::now());
        match seen {
            // Nothing is learnt from who reads what is here anyway.
            Seen::Elsewhere if !came_with_size => {}
            seen => self.go_on(ino, seen),
        }
    }

    /// The size of a file was asked for, and all of it had to be fetched: it is here before anybody reads it.
    pub(super) fn sized(&self, ino: INodeNo) {
        if self.at_once > 0 && self.content.is_here(ino) {
            self.came().put(ino, ());
            self.note_outstanding();
        }
    }

    /// The first octets of a file are to be read, and the Source must be asked for them. `octets`: all of it.
    pub(super) fn read_remote(self: &Arc<Self>, ino: INodeNo, octets: Option<u64>) {
        if self.at_once == 0 {
            return;
        }
        let seen = self.walks().read(ino, octets, Instant::now());
        self.go_on(ino, seen);
    }

    /// Whether whoever asks for the size of `ino` is going to read it: it is fetched ahead, or comes next where files are read.
    pub(super) fn expects(&self, ino: INodeNo) -> bool {
        self.at_once > 0 && self.walks().expects(ino)
    }

    /// What reading ahead has brought.
    pub(super) fn ledger(&self) -> Ledger {
        *self.walks().ledger()
    }

    fn walks(&self) -> MutexGuard<'_, Readahead<Cursor>> {
        self.walks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn came(&self) -> MutexGuard<'_, LruCache<INodeNo, ()>> {
        self.came_with_size.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn go_on(self: &Arc<Self>, ino: INodeNo, seen: Seen<Cursor>) {
        let listed = match seen {
            Seen::Enough => Ok(()),
            Seen::Follows(wish) => self.list(&wish),
            Seen::Elsewhere => self.begin(ino),
        };
        if let Err(error) = listed {
            tracing::debug!(ino = ino.0, "nothing is read ahead: {}", chain(&error));
        }
        self.note_outstanding();
        self.fetch();
    }

    fn begin(&self, ino: INodeNo) -> Result<(), CatalogError> {
        let place = self.catalog.snapshot()?.place(ino)?;
        let Some((folder, entry)) = place else { return Ok(()) };
        let wish = self.walks().begin(Cursor::behind(folder, entry), self.content.known_size(ino), Instant::now());
        self.list(&wish)
    }

    /// Tells a walk what follows.
    fn list(&self, wish: &Wish<Cursor>) -> Result<(), CatalogError> {
        let snapshot = self.catalog.snapshot()?;
        let mut ordered: Vec<Candidate<Cursor>> = Vec::with_capacity(wish.files);
        let mut front = wish.from;
        let mut octets = 0u64;
        let mut is_blocked = false;
        let mut is_end = false;
        if wish.files > 0 {
            let stopped = wish.from.follow(&snapshot, &mut |node, after| {
                if wish.from.leads_further(&after) {
                    is_blocked = true;
                    return false;
                }
                let candidate = self.candidate(node, after);
                let counted = candidate.octets.unwrap_or(wish.usual_octets);
                if !self.is_fit(&candidate, wish) {
                    front = after;
                    return true;
                }
                if ordered.len() == wish.files || (!ordered.is_empty() && octets + counted > wish.octets) {
                    return false;
                }
                octets += counted;
                front = after;
                ordered.push(candidate);
                ordered.len() < wish.files
            })?;
            is_end = stopped.is_end || is_blocked;
        }
        let mut expected = Vec::with_capacity(2 * EXPECTED);
        for from in [front, front.in_other_order()] {
            let mut left = EXPECTED;
            from.follow(&snapshot, &mut |node, after| {
                if self.content.is_here(node.ino) {
                    return true;
                }
                if !expected.iter().any(|known: &Candidate<Cursor>| known.ino == node.ino) {
                    expected.push(self.candidate(node, after));
                }
                left -= 1;
                left > 0
            })?;
        }
        drop(snapshot);
        self.walks().supply(wish, &ordered, expected, front, is_end);
        Ok(())
    }

    fn candidate(&self, node: Node, after: Cursor) -> Candidate<Cursor> {
        Candidate { ino: node.ino, octets: node.size.or_else(|| self.content.known_size(node.ino)), after }
    }

    /// Whether a file is to be fetched ahead: large ones stream fast enough when they are read.
    fn is_fit(&self, candidate: &Candidate<Cursor>, wish: &Wish<Cursor>) -> bool {
        let is_small = match candidate.octets {
            Some(octets) => octets <= WHOLE_LIMIT,
            None => wish.usual_octets <= UNKNOWN_AMONG,
        };
        is_small && !self.content.is_here(candidate.ino)
    }

    fn note_outstanding(&self) {
        let outstanding = self.walks().outstanding() + self.came().len();
        self.outstanding.store(outstanding, Ordering::Relaxed);
    }

    /// Begins as many fetches as may be under way.
    fn fetch(self: &Arc<Self>) {
        loop {
            let taken = self.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |under_way| {
                (under_way < self.places.load(Ordering::Relaxed)).then_some(under_way + 1)
            });
            if taken.is_err() {
                return;
            }
            let next = self.walks().take_next();
            let Some(ino) = next else {
                self.under_way.fetch_sub(1, Ordering::Relaxed);
                // Something may have been ordered between the look and the place's return.
                if !self.walks().has_queued() {
                    return;
                }
                continue;
            };
            let ahead = Arc::clone(self);
            self.runtime.spawn(async move {
                let fetched = ahead.fetch_one(ino).await;
                match fetched {
                    Ok(Some(octets)) => ahead.walks().landed(ino, octets),
                    Ok(None) => ahead.walks().dropped(ino, false),
                    Err(FsError::Content(error)) if error.is_full() => ahead.walks().no_room(ino, Instant::now()),
                    Err(error) => {
                        tracing::debug!(ino = ino.0, "not read ahead: {}", chain(&error));
                        ahead.walks().dropped(ino, true);
                    }
                }
                ahead.under_way.fetch_sub(1, Ordering::Relaxed);
                ahead.note_outstanding();
                ahead.fetch();
            });
        }
    }

    /// Octets fetched; `None` where there is nothing to fetch, or where the host bears nothing but reads now.
    async fn fetch_one(&self, ino: INodeNo) -> Result<Option<u64>, FsError> {
        let wanted = {
            let snapshot = self.catalog.snapshot()?;
            wanted(&snapshot, ino, &self.options)?
        };
        match wanted {
            Some(wanted) => {
                if self.beside_readers(&wanted) == 0 {
                    // The last place of this host; others may have many.
                    self.places.store(1, Ordering::Relaxed);
                    return Ok(None);
                }
                let fetched = self.content.fetch_ahead(&wanted, WHOLE_LIMIT).await;
                // One at least: with none nobody would see that the host recovers.
                self.places.store(self.beside_readers(&wanted).clamp(1, self.at_once), Ordering::Relaxed);
                Ok(fetched?)
            }
            None => Ok(None),
        }
    }

    /// How many files may be fetched ahead from the host of `wanted`, as things stand.
    fn beside_readers(&self, wanted: &Wanted) -> usize {
        self.content.beside_readers(&wanted.uri)
    }
}
