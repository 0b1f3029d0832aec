//! Follows the landing pages of a tree: finds those that are due, has them read within the limits of their hosts, and hands on what they
//! have become.
//!
//! A page is due where its row in the catalog is of another version of it. New and changed pages have new inodes, so that a scan goes on
//! behind the last inode that it saw. A page that somebody opens, and those of a folder that somebody lists, come first.

use super::page::{PageError, PageReader};
use super::queue::Queue;
use super::{PageNews, may_be_page, version};
use crate::catalog::{Catalog, CatalogError, EntryId, Kind, ReadPage, Snapshot};
use crate::document::{Timestamp, Uri};
use crate::platform::error_chain::chain;
use crate::platform::scheduling::low_priority;
use crate::source::http::{Client, Priority};
use crate::sync::status::Status;
use fuser::INodeNo;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};

/// Pages that are read at once.
const AT_ONCE: usize = 8;

/// Pages that one commit takes.
const IN_BATCH: usize = 500;

/// The time for which results are collected before they are committed: each commit waits for the disk.
const COLLECTED_FOR: Duration = Duration::from_millis(250);

/// Files that are looked at in one snapshot.
const IN_SNAPSHOT: u64 = 10_000;

/// After so long a page of which the list states no version is asked again, and one that was read in part.
const ASKED_AGAIN: i64 = 7 * 24 * 3600;

/// How often pages that are due without a new inode are looked for.
const RESCANNED_AFTER: Duration = Duration::from_secs(6 * 3600);

/// What became of pages, for one commit, and where its end is told.
pub struct Batch {
    /// The pages.
    pub news: Vec<PageNews>,
    /// Receives whether it was committed.
    pub committed: oneshot::Sender<bool>,
}

/// Refreshes that concern pages, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refreshes {
    /// Those that have committed something.
    pub committed: u64,
    /// Those that a person has asked for: pages that rest after a failure are asked again.
    pub asked: u64,
}

/// Follows the pages of one tree.
pub struct Follower {
    /// The tree.
    pub catalog: Arc<Catalog>,
    /// Requests pages, behind readers.
    pub client: Client,
    /// Receives what pages have become.
    pub batches: mpsc::Sender<Batch>,
    /// Files that are read and folders that are listed: their pages come first.
    pub opened: mpsc::Receiver<INodeNo>,
    /// Changes with each refresh that has committed something, or that a person has asked for.
    pub refreshes: watch::Receiver<Refreshes>,
    /// Receives how many pages are read.
    pub status: watch::Sender<Status>,
}

/// A page that is due.
#[derive(Clone, Debug)]
struct DuePage {
    uri: Uri,
    version: Option<u64>,
    known: Option<ReadPage>,
}

/// What a scan found.
#[derive(Default)]
struct Scanned {
    /// Each with whether it was never read.
    due: Vec<(INodeNo, bool)>,
    /// The last inode that was looked at.
    last: Option<INodeNo>,
    gone: Vec<Uri>,
}

type Reading = BoxFuture<'static, (INodeNo, Result<Option<PageNews>, PageError>)>;

impl Follower {
    /// Follows until the receiver of batches is gone.
    pub async fn run(mut self) {
        let (mut queue, mut reading) = (Queue::default(), FuturesUnordered::<Reading>::new());
        // What pages have become, and since when the first of these waits for a commit.
        let (mut news, mut since) = (Vec::new(), Instant::now());
        let (mut last, mut is_scan_due, mut rescan_at) = (None, true, Instant::now() + RESCANNED_AFTER);
        let mut asked = self.refreshes.borrow().asked;
        loop {
            if std::mem::take(&mut is_scan_due) {
                let now = self.refreshes.borrow_and_update().asked;
                if std::mem::replace(&mut asked, now) != now {
                    queue.wake_all();
                }
                let scanned = self.scan(last).await;
                last = scanned.last.or(last);
                scanned.due.into_iter().for_each(|(ino, is_new)| queue.push(ino, is_new));
                news.extend(scanned.gone.into_iter().map(|page| (None, PageNews { page, row: None, entries: None })));
                self.report(&queue);
            }
            queue.wake(Instant::now());
            while reading.len() < AT_ONCE && news.len() < IN_BATCH {
                let Some(ino) = queue.next() else { break };
                reading.push(self.read(ino));
            }
            if !news.is_empty() && (reading.is_empty() || news.len() >= IN_BATCH || since.elapsed() >= COLLECTED_FOR) {
                if !self.commit(std::mem::take(&mut news), &mut queue).await {
                    return;
                }
                continue;
            }
            let mut wake_at = rescan_at.min(Instant::now() + queue.wakes_in(Instant::now()).unwrap_or(RESCANNED_AFTER));
            if !news.is_empty() {
                wake_at = wake_at.min(since + COLLECTED_FOR);
            }
            tokio::select! {
                Some(ino) = self.opened.recv() => self.bring_forward(ino, &mut queue),
                Some((ino, read)) = reading.next() => match read {
                    Ok(Some(page)) => {
                        since = if news.is_empty() { Instant::now() } else { since };
                        news.push((Some(ino), page));
                    }
                    Ok(None) => queue.done(ino),
                    Err(cause) => {
                        tracing::warn!("a landing page cannot be read now: {}", chain(&cause));
                        queue.failed(ino, Instant::now());
                        self.report(&queue);
                    }
                },
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

    /// Commits what pages have become; `false` where nothing commits any more.
    async fn commit(&self, news: Vec<(Option<INodeNo>, PageNews)>, queue: &mut Queue) -> bool {
        let (inodes, news): (Vec<_>, Vec<_>) = news.into_iter().unzip();
        let (committed, is_committed) = oneshot::channel();
        if self.batches.send(Batch { news, committed }).await.is_err() {
            return false;
        }
        let Ok(is_committed) = is_committed.await else { return false };
        for ino in inodes.into_iter().flatten() {
            if is_committed { queue.done(ino) } else { queue.failed(ino, Instant::now()) }
        }
        self.report(queue);
        true
    }

    /// A future that reads the page behind `ino`, where it is due.
    fn read(&self, ino: INodeNo) -> Reading {
        let (catalog, client) = (self.catalog.clone(), self.client.clone());
        async move {
            let look_up = move || catalog.snapshot().and_then(|snapshot| due_page(&snapshot, ino));
            let due = tokio::task::spawn_blocking(look_up).await.unwrap_or(Ok(None));
            let due = due.inspect_err(|cause| tracing::warn!("a landing page cannot be looked up: {}", chain(cause)));
            let Ok(Some(due)) = due else { return (ino, Ok(None)) };
            let reader = PageReader { client: &client, priority: Priority::background(), repeats: false };
            (ino, reader.read_due(due).await.map(Some))
        }
        .boxed()
    }

    /// Lets the page behind `ino` come first, or those right below a folder.
    fn bring_forward(&self, ino: INodeNo, queue: &mut Queue) {
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
    async fn scan(&self, last: Option<INodeNo>) -> Scanned {
        let catalog = self.catalog.clone();
        let scan = move || low_priority(|| scan(&catalog, last).map_err(|cause| chain(&cause)));
        let scanned = tokio::task::spawn_blocking(scan).await.unwrap_or_else(|cause| Err(cause.to_string()));
        scanned.unwrap_or_else(|why| {
            tracing::warn!("the tree cannot be searched for landing pages: {why}");
            Scanned::default()
        })
    }

    fn report(&self, queue: &Queue) {
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

/// True if a landing page is behind `ino`, and is to be read.
pub fn is_due(snapshot: &Snapshot<'_>, ino: INodeNo) -> Result<bool, CatalogError> {
    Ok(due_page(snapshot, ino)?.is_some())
}

/// The page behind `ino`, if it is one and due.
fn due_page(snapshot: &Snapshot<'_>, ino: INodeNo) -> Result<Option<DuePage>, CatalogError> {
    if snapshot.inode(ino)?.is_none_or(|inode| inode.name.is_none()) {
        return Ok(None);
    }
    let Some(resource) = snapshot.resource(ino)?.filter(may_be_page) else { return Ok(None) };
    let (known, version) = (snapshot.page(&resource.uri)?, version(&resource));
    let is_due = known.as_ref().is_none_or(|known| {
        let is_old = Timestamp::now().seconds.saturating_sub(known.read.seconds) > ASKED_AGAIN;
        known.version != version || (version.is_none() || known.is_partial) && is_old
    });
    Ok(is_due.then_some(DuePage { uri: resource.uri, version, known }))
}

/// A scan of the whole tree behind the inode `last`, and of the pages that were read.
fn scan(catalog: &Catalog, last: Option<INodeNo>) -> Result<Scanned, CatalogError> {
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
            scanned.due.extend(due_page(&snapshot, ino)?.map(|due| (ino, due.known.is_none())));
        }
        if seen < IN_SNAPSHOT {
            break;
        }
    }
    let (snapshot, mut failed) = (catalog.snapshot()?, None);
    snapshot.pages(&mut |page| {
        match snapshot.locate(&page.uri) {
            Ok(Some(_)) => {}
            Ok(None) => scanned.gone.push(page.uri),
            Err(cause) => failed = Some(cause),
        }
        failed.is_none()
    })?;
    failed.map_or(Ok(scanned), Err)
}
