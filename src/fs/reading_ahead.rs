//! Files fetched ahead of whoever reads one after the other: drives [`Readahead`] over the catalog and content.
//!
//! A READ of a file's first bytes is what is told of, where they were not here, or were and somebody is expected to read them; nearly
//! any other warm read costs one load, whatever others do ([`CountingFilter`]). Who has listed a folder before it reads there is
//! remembered for a while ([`Listings`]). What follows in the tree is [`following`](super::following)'s to say. Fetches run in the
//! background, a bounded number at a time that leaves connections for whoever waits.

use super::FsOptions;
use super::error::FsError;
use super::following::{Cursor, Stopped};
use super::links::wanted;
use super::listed::Listings;
use super::places::{Places, Taken};
use crate::catalog::{Catalog, CatalogError, EntryId, Kind, Node, Snapshot};
use crate::causes::chain;
use crate::content::counting_filter::CountingFilter;
use crate::content::fixity::WHOLE_LIMIT;
use crate::content::prefetch::{By, Candidate, ENDED, EXPECTED, Hand, Host, Ledger, Readahead, Reader, Seen, Wish};
use crate::content::{Content, FetchSpec};
use fuser::INodeNo;
use futures_util::FutureExt;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// A file whose size nobody knows is fetched ahead only among files that are usually not larger.
const UNKNOWN_AMONG: u64 = 1 << 20;

/// Folders above a file that are looked at.
const DEEP: usize = 64;

/// Files remembered that came with their size.
const CAME_WITH_SIZE: NonZeroUsize = NonZeroUsize::MIN.saturating_add(255);

/// Drives [`Readahead`].
pub(super) struct ReadingAhead {
    catalog: Arc<Catalog>,
    content: Arc<Content>,
    options: FsOptions,
    runtime: Handle,
    /// Lock order: `places` before `walks`. Each is held for a few instructions and never while the catalog or content is asked.
    places: Arc<Mutex<Places>>,
    walks: Mutex<Readahead<Cursor>>,
    listings: Listings,
    /// Files that came whole when their size was asked for, and were not read yet; each is in the filter of `outlook` once more.
    came_with_size: Mutex<LruCache<INodeNo, ()>>,
    outlook: Outlook,
    /// Fetches that one host may have under way at most; none: nothing is fetched ahead.
    at_once: usize,
}

impl ReadingAhead {
    /// Up to `at_once` fetches at a time, of up to `limit` bytes that were not read yet.
    pub(super) fn new(
        catalog: Arc<Catalog>,
        content: Arc<Content>,
        options: FsOptions,
        runtime: Handle,
        at_once: usize,
        limit: u64,
    ) -> ReadingAhead {
        let at_once = if limit == 0 { 0 } else { at_once };
        let walks = Readahead::new(limit);
        ReadingAhead {
            catalog,
            content,
            options,
            runtime,
            places: Arc::new(Mutex::new(Places::new(at_once))),
            outlook: Outlook::new(Arc::clone(walks.looked_out_for())),
            walks: Mutex::new(walks),
            listings: Listings::default(),
            came_with_size: Mutex::new(LruCache::new(CAME_WITH_SIZE)),
            at_once,
        }
    }

    /// Whether [`ReadingAhead::read_here`] could have any effect: the one thing that a warm read costs.
    pub(super) fn is_worth_a_look(&self, ino: INodeNo) -> bool {
        self.outlook.is_worth_a_look(ino, Instant::now)
    }

    /// `thread` begins to list `folder`.
    pub(super) fn lists(&self, folder: INodeNo, thread: u32) {
        if self.at_once > 0 {
            self.listings.note(thread, folder, Instant::now());
        }
    }

    /// The first bytes of a file were read, and they were here.
    pub(super) fn read_here(self: &Arc<Self>, ino: INodeNo, by: By) {
        let came_with_size = self.came().pop(&ino).is_some();
        if came_with_size {
            self.outlook.filter.remove(ino);
        }
        let seen = self.walks().read(ino, None, by, Instant::now());
        match seen {
            // Nothing is learnt from who reads what is here anyway.
            Seen::Elsewhere if !came_with_size => {}
            seen => self.go_on(ino, by, seen),
        }
    }

    /// The size of a file was asked for, and all of it had to be fetched: it is here before anybody reads it.
    pub(super) fn sized(&self, ino: INodeNo) {
        if self.at_once > 0 && self.content.is_here(ino) {
            let mut came = self.came();
            let before = came.push(ino, ());
            self.outlook.filter.add(ino);
            // The same, or what made room.
            before.into_iter().for_each(|(before, ())| self.outlook.filter.remove(before));
            drop(came);
            self.outlook.note(Instant::now());
        }
    }

    /// The first bytes of a file are to be read, and the Source must be asked for them. `bytes`: all of it.
    pub(super) fn read_remote(self: &Arc<Self>, ino: INodeNo, by: By, bytes: Option<u64>) {
        if self.at_once == 0 {
            return;
        }
        let seen = self.walks().read(ino, bytes, by, Instant::now());
        self.go_on(ino, by, seen);
    }

    /// Whether whoever asks for the size of `ino` is going to read it: it is fetched ahead, or comes next where files are read.
    pub(super) fn expects(&self, ino: INodeNo) -> bool {
        self.outlook.filter.may_hold(ino) && self.walks().expects(ino)
    }

    /// What reading ahead has brought.
    pub(super) fn ledger(&self) -> Ledger {
        *self.walks().ledger()
    }

    fn walks(&self) -> MutexGuard<'_, Readahead<Cursor>> {
        self.walks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn came(&self) -> MutexGuard<'_, LruCache<INodeNo, ()>> {
        self.came_with_size.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// While this is held, who takes a lock of what is read ahead waits.
    #[cfg(test)]
    pub(super) fn locked(&self) -> impl Sized {
        (self.places(), self.walks(), self.came())
    }

    fn go_on(self: &Arc<Self>, ino: INodeNo, by: By, seen: Seen<Cursor>) {
        let listed = match seen {
            Seen::Enough => Ok(()),
            Seen::Follows(wish) => {
                let from = match wish.hand {
                    Hand::Same => wish.from,
                    Hand::Next => wish.from.handed_on(),
                    // Programs that are run one after the other, each on a folder of its own.
                    Hand::Other => wish.from.in_its_folder(),
                };
                self.list(&Wish { from, ..wish })
            }
            Seen::Elsewhere => self.begin(ino, by),
        };
        if let Err(error) = listed {
            tracing::debug!(ino = ino.0, "nothing is read ahead: {}", chain(&error));
        }
        self.outlook.note(Instant::now());
        self.fetch();
    }

    fn begin(&self, ino: INodeNo, by: By) -> Result<(), CatalogError> {
        let snapshot = self.catalog.snapshot()?;
        let Some((folder, entry)) = snapshot.place(ino)? else { return Ok(()) };
        let mut cursor = Cursor::behind(folder, entry);
        let mut reader = Reader::Stranger;
        if self.listings.has_last(by.thread, folder, Instant::now()) {
            let top = self.top_listed(&snapshot, folder, by.thread)?;
            cursor = if top == folder { cursor } else { cursor.all_of(top) };
            reader =
                if first_file(&snapshot, folder)? == Some(ino) { Reader::AtFirstListed } else { Reader::HasListed };
        }
        drop(snapshot);
        let bytes = self.content.known_size(ino);
        let wish = self.walks().begin(cursor, bytes, reader, by, Instant::now());
        self.list(&wish)
    }

    /// The uppermost folder of which `thread` has listed all that lead from there to `folder`: who lists those goes through them.
    fn top_listed(&self, snapshot: &Snapshot<'_>, folder: INodeNo, thread: u32) -> Result<INodeNo, CatalogError> {
        let mut top = folder;
        for _ in 0..DEEP {
            match snapshot.place(top)? {
                Some((parent, _)) if parent != top && self.has_listed(parent, thread) => top = parent,
                _ => break,
            }
        }
        Ok(top)
    }

    fn has_listed(&self, folder: INodeNo, thread: u32) -> bool {
        self.listings.has(thread, folder, Instant::now())
    }

    /// Tells a walk what follows.
    fn list(&self, wish: &Wish<Cursor>) -> Result<(), CatalogError> {
        let snapshot = self.catalog.snapshot()?;
        let mut ordered: Vec<Candidate<Cursor>> = Vec::with_capacity(wish.files);
        let mut front = wish.from;
        let mut bytes = 0u64;
        let mut is_end = false;
        if wish.files > 0 {
            let stopped = wish.from.follow(&snapshot, &mut |node, after| {
                if wish.from.leads_further(&after) {
                    is_end = true;
                    return false;
                }
                let candidate = self.candidate(node, after);
                let counted = candidate.bytes.unwrap_or(wish.usual_bytes);
                if !self.is_fit(&candidate, wish) {
                    front = after;
                    return true;
                }
                if ordered.len() == wish.files || (!ordered.is_empty() && bytes + counted > wish.bytes) {
                    return false;
                }
                bytes += counted;
                front = after;
                ordered.push(candidate);
                ordered.len() < wish.files
            })?;
            match stopped {
                Stopped::Enough => {}
                // What was passed over is not looked at again, so that each question comes further.
                Stopped::Further(at) if !wish.from.leads_further(&at) => front = at,
                Stopped::Further(_) | Stopped::End => is_end = true,
            }
        }
        for candidate in &mut ordered {
            let Some(wanted) = wanted(&snapshot, candidate.ino, &self.options)? else { continue };
            candidate.host = host(&wanted);
            if !self.places().know(candidate.host) {
                let places = self.beside_readers(&wanted);
                self.places().learn(candidate.host, places);
            }
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
        let bytes = node.size.or_else(|| self.content.known_size(node.ino));
        Candidate { ino: node.ino, host: Host::default(), bytes, after }
    }

    /// Whether a file is to be fetched ahead: large ones stream fast enough when they are read.
    fn is_fit(&self, candidate: &Candidate<Cursor>, wish: &Wish<Cursor>) -> bool {
        let is_small = match candidate.bytes {
            Some(bytes) => bytes <= WHOLE_LIMIT,
            None => wish.usual_bytes <= UNKNOWN_AMONG,
        };
        is_small && !self.content.is_here(candidate.ino)
    }

    /// Begins as many fetches as may be under way.
    fn fetch(self: &Arc<Self>) {
        while let Some((ino, taken)) = self.take_place() {
            let ahead = Arc::clone(self);
            self.runtime.spawn(async move {
                // What was spawned last runs first: whoever waits comes before this.
                tokio::task::yield_now().await;
                let fetching = AssertUnwindSafe(ahead.fetch_one(ino)).catch_unwind().await;
                let (fetched, places) = match fetching {
                    Ok((fetched, places)) => (Some(fetched), places),
                    Err(_) => (None, None),
                };
                match fetched {
                    Some(Ok(Some(bytes))) => ahead.walks().landed(ino, bytes, Instant::now()),
                    Some(Ok(None)) => ahead.walks().dropped(ino, false),
                    Some(Err(FsError::Content(error))) if error.is_full() => {
                        ahead.walks().no_room(ino, Instant::now());
                    }
                    Some(Err(error)) => {
                        tracing::debug!(ino = ino.0, "not read ahead: {}", chain(&error));
                        ahead.walks().dropped(ino, true);
                    }
                    // It panicked: the walk goes on without the file.
                    None => ahead.walks().dropped(ino, true),
                }
                if let Some(places) = places {
                    ahead.places().learn(taken.host(), places);
                }
                drop(taken);
                ahead.outlook.note(Instant::now());
                ahead.fetch();
            });
        }
    }

    /// The next file to fetch, of a host where a place is left, which is then taken.
    fn take_place(&self) -> Option<(INodeNo, Taken)> {
        let mut places = self.places();
        let (ino, host) = self.walks().take_next(|host| places.are_left(host))?;
        places.take(host);
        Some((ino, Taken::of(&self.places, host)))
    }

    /// Bytes fetched, `None` where there is nothing to fetch, or where the host bears nothing but reads now; and how many places
    /// it has for this.
    async fn fetch_one(&self, ino: INodeNo) -> (Result<Option<u64>, FsError>, Option<usize>) {
        let found =
            || -> Result<Option<FetchSpec>, CatalogError> { wanted(&self.catalog.snapshot()?, ino, &self.options) };
        let wanted = match found() {
            Ok(Some(wanted)) => wanted,
            Ok(None) => return (Ok(None), None),
            Err(error) => return (Err(error.into()), None),
        };
        if self.beside_readers(&wanted) == 0 {
            return (Ok(None), Some(0));
        }
        let fetched = self.content.fetch_ahead(&wanted, WHOLE_LIMIT).await;
        (fetched.map_err(FsError::from), Some(self.beside_readers(&wanted)))
    }

    /// How many files may be fetched ahead from the host of `wanted`, as things stand.
    fn beside_readers(&self, wanted: &FetchSpec) -> usize {
        self.content.beside_readers(&wanted.uri)
    }
}

/// Whether a file is expected to be read, looked at without a lock.
struct Outlook {
    /// Files fetched ahead and not read yet, those that walks expect, and those that came with their size.
    filter: Arc<CountingFilter>,
    /// When these changed last: milliseconds since `begun`.
    changed: AtomicU64,
    begun: Instant,
}

impl Outlook {
    fn new(filter: Arc<CountingFilter>) -> Outlook {
        Outlook { filter, changed: AtomicU64::new(0), begun: Instant::now() }
    }

    fn note(&self, now: Instant) {
        self.changed.store(self.milliseconds(now), Ordering::Relaxed);
    }

    /// Whether somebody may still come for what was fetched ahead. A walk that was left has ended, whatever it has left behind.
    fn is_worth_a_look(&self, ino: INodeNo, now: impl FnOnce() -> Instant) -> bool {
        let is_expected = || {
            let silent = self.milliseconds(now()).saturating_sub(self.changed.load(Ordering::Relaxed));
            Duration::from_millis(silent) <= ENDED
        };
        self.filter.may_hold(ino) && is_expected()
    }

    fn milliseconds(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.begun).as_millis()).unwrap_or(u64::MAX)
    }
}

/// Who is asked for `wanted` first.
fn host(wanted: &FetchSpec) -> Host {
    Host(xxhash_rust::xxh3::xxh3_64(wanted.uri.authority().as_bytes()))
}

/// The first file of a listing of `folder`.
fn first_file(snapshot: &Snapshot<'_>, folder: INodeNo) -> Result<Option<INodeNo>, CatalogError> {
    let mut first = None;
    let mut left = EXPECTED;
    snapshot.children(folder, EntryId(0), &mut |_, _, node| {
        first = (node.kind == Kind::File).then_some(node.ino);
        left -= 1;
        first.is_none() && left > 0
    })?;
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_read_looks_no_more_for_what_a_walk_that_was_left_has_left_behind() {
        let (outlook, ahead, other) = (Outlook::new(Arc::default()), INodeNo(7), INodeNo(8));
        let begun = outlook.begun;
        outlook.filter.add(ahead);
        outlook.note(begun + ENDED);

        assert!(
            !outlook
                .is_worth_a_look(other, || unreachable!("of what is not looked out for not even the clock is asked"))
        );
        assert!(outlook.is_worth_a_look(ahead, || begun + ENDED));
        assert!(outlook.is_worth_a_look(ahead, || begun + 2 * ENDED));
        assert!(!outlook.is_worth_a_look(ahead, || begun + 2 * ENDED + Duration::from_millis(1)));
        outlook.note(begun + 3 * ENDED);
        assert!(outlook.is_worth_a_look(ahead, || begun + 3 * ENDED), "who reads on is looked for");
    }
}
