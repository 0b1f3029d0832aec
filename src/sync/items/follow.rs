//! Follows the landing pages of a tree: finds those that are due, has them read within the limits of their hosts, and hands on what they
//! have become.
//!
//! A page is due where its row in the catalog is of another version of it. New and changed pages have new inodes, so that a scan goes on
//! behind the last inode that it saw. A page that a program opens, and those of a folder that a program lists, come first.

use super::page::{PageError, PageReader};
use super::queue::{PageKey, PageQueue};
use super::{PageNews, may_be_page, version};
use crate::catalog::{Catalog, CatalogError, EntryId, Kind, ReadPage, Resource, Snapshot};
use crate::document::{Timestamp, Uri};
use crate::platform::error_chain::chain;
use crate::platform::ino::Ino;
use crate::platform::scheduling::low_priority;
use crate::source::http::{Client, Priority};
use crate::sync::status::SyncStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use xxhash_rust::xxh3::xxh3_64;

/// Pages that are read at once.
const AT_ONCE: usize = 8;

/// Pages that one commit takes.
const IN_BATCH: usize = 500;

/// The time for which results are collected before they are committed: each commit waits for the disk.
const COLLECTED_FOR: Duration = Duration::from_millis(250);

/// Items that one commit takes, at least.
const ITEMS_IN_BATCH: usize = 20_000;

/// Further pages that are read at once where programs wait for them.
const OPENED_AT_ONCE: usize = 4;

/// Files that are looked at in one snapshot.
const IN_SNAPSHOT: u64 = 10_000;

/// Seconds after which a page is asked again whose list states no version, or that was read in part.
const ASKED_AGAIN: i64 = 7 * 24 * 3600;

/// How often pages that are due without a new inode are looked for.
const RESCANNED_AFTER: Duration = Duration::from_secs(6 * 3600);

/// Pages that were read, for one commit, and the sender for its result.
pub struct PageBatch {
    /// The pages.
    pub news: Vec<PageNews>,
    /// Receives whether it was committed.
    pub committed: oneshot::Sender<bool>,
}

/// Refreshes that concern pages, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refreshes {
    /// Refreshes that have given files other metadata.
    pub touched: u64,
    /// Refreshes that a person has asked for: pages that rest after a failure are asked again.
    pub asked: u64,
}

/// Follows the pages of one tree.
pub struct Follower {
    /// The tree.
    pub catalog: Arc<Catalog>,
    /// Requests pages, behind readers.
    pub client: Client,
    /// Receives the news of pages.
    pub batches: mpsc::Sender<PageBatch>,
    /// Files that are read and folders that are listed: their pages come first.
    pub opened: mpsc::Receiver<Ino>,
    /// Changes with each refresh that has committed something, or that a person has asked for.
    pub refreshes: watch::Receiver<Refreshes>,
    /// Receives how many pages are read.
    pub status: watch::Sender<SyncStatus>,
}

/// A page that is due.
#[derive(Clone, Debug)]
struct DuePage {
    uri: Uri,
    version: Option<u64>,
    known: Option<ReadPage>,
}

/// Findings of a scan.
#[derive(Default)]
struct Scanned {
    /// Each with whether it was never read.
    due: Vec<(PageKey, Ino, bool)>,
    /// The last inode that was looked at.
    last: Option<Ino>,
    gone: Vec<Uri>,
    /// Pages that rest and are not due any more.
    rested: Vec<PageKey>,
}

/// A page that was read; `None`: it is not due any more.
type PageRead = (PageKey, Result<Option<PageNews>, PageError>);

/// News of pages, until they are committed.
#[derive(Default)]
struct Collected {
    news: Vec<PageNews>,
    items: usize,
    /// When the first of them came.
    since: Option<Instant>,
}

impl Collected {
    fn push(&mut self, news: PageNews) {
        self.since.get_or_insert_with(Instant::now);
        self.items += news.entries.as_ref().map_or(0, Vec::len);
        self.news.push(news);
    }

    fn is_full(&self) -> bool {
        self.news.len() >= IN_BATCH || self.items >= ITEMS_IN_BATCH
    }
}

impl Follower {
    /// Follows until the receiver of batches is gone.
    pub async fn run(mut self) {
        let (mut queue, mut reading) = (PageQueue::default(), JoinSet::<PageRead>::new());
        let (mut collected, mut committing) = (Collected::default(), None::<(Vec<PageKey>, oneshot::Receiver<bool>)>);
        let (mut last, mut is_scan_due, mut rescan_at) = (None, true, Instant::now() + RESCANNED_AFTER);
        let (mut seen, mut is_asked) = (*self.refreshes.borrow(), false);
        loop {
            if std::mem::take(&mut is_scan_due) {
                let now = *self.refreshes.borrow_and_update();
                let before = std::mem::replace(&mut seen, now);
                if before.asked != now.asked {
                    queue.wake_all();
                    is_asked = true;
                }
                // A page with another time and the same content keeps its inode.
                let is_whole = (before.asked, before.touched) != (now.asked, now.touched);
                let scanned = self.scan(last, queue.resting(), is_asked).await;
                last = scanned.last.or(last);
                scanned.rested.into_iter().for_each(|key| queue.done(key));
                scanned.due.into_iter().for_each(|(key, ino, is_new)| queue.push(key, ino, is_new));
                scanned.gone.into_iter().for_each(|page| collected.push(PageNews { page, row: None, entries: None }));
                self.report(&queue);
                // New pages come first, then all others are looked at.
                is_asked &= is_whole;
                if is_whole {
                    (last, is_scan_due) = (None, true);
                }
            }
            queue.wake(Instant::now());
            while reading.len() < AT_ONCE + OPENED_AT_ONCE && !collected.is_full() {
                let Some((key, ino)) = queue.next(reading.len() >= AT_ONCE) else { break };
                self.read(&mut reading, key, ino, seen.asked);
            }
            let is_ripe = collected
                .since
                .is_some_and(|since| reading.is_empty() || collected.is_full() || since.elapsed() >= COLLECTED_FOR);
            if is_ripe && committing.is_none() {
                let Collected { news, .. } = std::mem::take(&mut collected);
                let keys = news.iter().map(|news| key(&news.page)).collect();
                let (committed, is_committed) = oneshot::channel();
                // There is one batch at a time: it finds room, unless the mount has ended.
                if self.batches.try_send(PageBatch { news, committed }).is_err() {
                    return;
                }
                committing = Some((keys, is_committed));
            }
            let wakes_at = Instant::now() + queue.wakes_in(Instant::now()).unwrap_or(RESCANNED_AFTER);
            let ripe_at = collected.since.filter(|_| committing.is_none()).map(|since| since + COLLECTED_FOR);
            let wake_at = rescan_at.min(wakes_at).min(ripe_at.unwrap_or(rescan_at));
            let wake_at = if is_scan_due { Instant::now() } else { wake_at };
            tokio::select! {
                Some(ino) = self.opened.recv() => self.bring_forward(ino, &mut queue),
                Some(read) = reading.join_next() => match read {
                    Ok((_, Ok(Some(page)))) => collected.push(page),
                    Ok((key, Ok(None))) => {
                        // Another inode may stand for it by now.
                        queue.done(key);
                        is_scan_due = true;
                    }
                    Ok((key, Err(cause))) => {
                        tracing::warn!("a landing page cannot be read now: {}", chain(&cause));
                        queue.failed(key, Instant::now());
                        self.report(&queue);
                    }
                    Err(cause) => tracing::error!("a landing page cannot be read: {}", chain(&cause)),
                },
                is_committed = ended(&mut committing) => {
                    let (Some((keys, _)), Ok(is_committed)) = (committing.take(), is_committed) else { return };
                    for key in keys {
                        if is_committed { queue.done(key) } else { queue.failed(key, Instant::now()) }
                    }
                    self.report(&queue);
                }
                changed = self.refreshes.changed() => match changed {
                    Ok(()) => is_scan_due = true,
                    Err(_) => return,
                },
                () = tokio::time::sleep_until(wake_at.into()) => if Instant::now() >= rescan_at {
                    (last, is_scan_due, rescan_at) = (None, true, Instant::now() + RESCANNED_AFTER);
                },
            }
        }
    }

    /// Starts a task that reads the page behind `ino`, where it is due. Its requests hold permits of their hosts, which must not wait for
    /// this loop.
    fn read(&self, reading: &mut JoinSet<PageRead>, key: PageKey, ino: Ino, asked: u64) {
        let (catalog, client) = (self.catalog.clone(), self.client.clone());
        reading.spawn(async move {
            let look_up = move || catalog.snapshot().and_then(|snapshot| due_page(&snapshot, ino, asked > 0));
            let due = tokio::task::spawn_blocking(look_up).await.unwrap_or(Ok(None));
            let due = due.inspect_err(|cause| tracing::warn!("a landing page cannot be looked up: {}", chain(cause)));
            let Ok(Some(due)) = due else { return (key, Ok(None)) };
            let reader = PageReader { client: &client, priority: Priority::background(), repeats: false };
            (key, reader.read_due(due).await.map(Some))
        });
    }

    /// Lets the page behind `ino` come first, or those right below a folder.
    fn bring_forward(&self, ino: Ino, queue: &mut PageQueue) {
        let pages = self.catalog.snapshot().and_then(|snapshot| {
            let mut pages = Vec::new();
            match snapshot.attributes(ino)?.map(|node| node.kind) {
                Some(Kind::Folder) => snapshot.children(ino, EntryId(0), &mut |_, _, node| {
                    if queue.holds(node.ino) {
                        pages.push(node.ino);
                    }
                    pages.len() < IN_BATCH
                })?,
                _ => pages.push(ino),
            }
            Ok(pages)
        });
        match pages {
            Ok(pages) => pages.into_iter().rev().for_each(|ino| queue.bring_forward(ino)),
            Err(cause) => tracing::debug!("what was opened cannot be looked up: {}", chain(&cause)),
        }
    }

    /// Looks for pages that are due behind the inode `last`, and for pages that have left the tree.
    async fn scan(&self, last: Option<Ino>, resting: Vec<(PageKey, Ino)>, is_asked: bool) -> Scanned {
        let catalog = self.catalog.clone();
        let scan = move || low_priority(|| scan(&catalog, last, &resting, is_asked).map_err(|cause| chain(&cause)));
        let scanned = tokio::task::spawn_blocking(scan).await.unwrap_or_else(|cause| Err(cause.to_string()));
        scanned.unwrap_or_else(|why| {
            tracing::warn!("the tree cannot be searched for landing pages: {why}");
            Scanned::default()
        })
    }

    fn report(&self, queue: &PageQueue) {
        let read = self.catalog.snapshot().and_then(|snapshot| snapshot.page_count()).unwrap_or(0);
        self.status.send_modify(|status| status.pages = Some(queue.status(read)));
    }
}

impl PageReader<'_> {
    async fn read_due(&self, due: DuePage) -> Result<PageNews, PageError> {
        let DuePage { uri, version, known } = due;
        // A page that its list says to be another may have another link set and be the same itself.
        let may_be_same = |known: &&ReadPage| !known.is_partial && known.version == version;
        let validator = known.as_ref().filter(may_be_same).and_then(|known| known.validator.clone());
        let read = self.read(&uri, version, validator).await?;
        let had_items = known.as_ref().is_some_and(|known| !known.items.is_empty());
        if had_items && read.as_ref().is_some_and(|read| read.entries.is_empty() && read.page.links.is_empty()) {
            return Err(PageError::Unlinked { page: uri });
        }
        let (row, entries) = match read {
            Some(read) => (Some(read.page), Some(read.entries)),
            None => (known.map(|known| ReadPage { version, read: Timestamp::now(), ..known }), None),
        };
        Ok(PageNews { page: uri, row, entries })
    }
}

/// Waits for the end of a commit that is under way.
async fn ended(committing: &mut Option<(Vec<PageKey>, oneshot::Receiver<bool>)>) -> Result<bool, RecvError> {
    match committing {
        Some((_, is_committed)) => is_committed.await,
        None => std::future::pending().await,
    }
}

fn key(page: &Uri) -> PageKey {
    xxh3_64(page.as_str().as_bytes())
}

/// True if a landing page is behind `ino`, and is to be read.
pub fn is_due(snapshot: &Snapshot<'_>, ino: Ino) -> Result<bool, CatalogError> {
    Ok(due_page(snapshot, ino, false)?.is_some())
}

/// The page behind `ino`, which another inode may stand for by now, if it is one and due. `is_asked`: so is one that was read in part.
fn due_page(snapshot: &Snapshot<'_>, ino: Ino, is_asked: bool) -> Result<Option<DuePage>, CatalogError> {
    let Some(Resource { uri, .. }) = snapshot.resource(ino)?.filter(may_be_page) else { return Ok(None) };
    let Some(resource) = snapshot.resource_of(&uri)? else { return Ok(None) };
    let (known, version) = (snapshot.page(&uri)?, version(&resource));
    let is_due = known.as_ref().is_none_or(|known| {
        let is_old = Timestamp::now().seconds.saturating_sub(known.read.seconds) > ASKED_AGAIN;
        known.version != version || version.is_none() && is_old || known.is_partial && (is_asked || is_old)
    });
    Ok(is_due.then_some(DuePage { uri, version, known }))
}

/// A scan of the tree behind the inode `last`, of the pages that rest, and of those that were read.
fn scan(
    catalog: &Catalog,
    last: Option<Ino>,
    resting: &[(PageKey, Ino)],
    is_asked: bool,
) -> Result<Scanned, CatalogError> {
    let mut scanned = Scanned { last, ..Scanned::default() };
    loop {
        let (snapshot, mut seen, mut files) = (catalog.snapshot()?, 0, Vec::new());
        snapshot.files(scanned.last, &mut |ino, _, resource| {
            seen += 1;
            scanned.last = Some(ino);
            if may_be_page(&resource) {
                files.push(ino);
            }
            seen < IN_SNAPSHOT
        })?;
        for ino in files {
            let due = due_page(&snapshot, ino, is_asked)?;
            scanned.due.extend(due.map(|due| (key(&due.uri), ino, due.known.is_none())));
        }
        if seen < IN_SNAPSHOT {
            break;
        }
    }
    let snapshot = catalog.snapshot()?;
    for (key, ino) in resting {
        if due_page(&snapshot, *ino, is_asked)?.is_none() {
            scanned.rested.push(*key);
        }
    }
    snapshot.pages(&mut |page| {
        if snapshot.locate(&page.uri)?.is_none() {
            scanned.gone.push(page.uri);
        }
        Ok(())
    })?;
    Ok(scanned)
}
