//! `POST /prefetch` and `POST /evict`: files and folders are downloaded into the cache before they are read, and removed from it.

use super::pages::PagesFirst;
use super::tree::{File, Found, Tree};
use crate::catalog::CatalogError;
use crate::content::ContentError;
use crate::content::store::{Evicted, Moment};
use crate::control::api::{
    EvictEvent, EvictSummary, NotPrefetched, PrefetchEvent, PrefetchProgress, PrefetchSummary, PrefetchTotal, Stopped,
};
use crate::control::{Lines, lines_of};
use crate::platform::error_chain::chain;
use crate::platform::ino::Ino;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

/// Downloads at a time, of all hosts. The limiter of `source::http` bounds the requests to one host.
const AT_ONCE: usize = 64;

/// Time between two reports of progress.
const STEP: Duration = Duration::from_millis(200);

/// The prefetch ends after this many files in a row for which the Source did not answer.
const MAX_SILENT: u64 = 100;

/// Downloads that run end with the client.
pub(super) fn prefetch(tree: Tree, pages: PagesFirst, paths: Vec<String>, dry_run: bool) -> Lines {
    lines_of(async move |events: mpsc::Sender<PrefetchEvent>| {
        let last = events.clone();
        let ended = match dry_run {
            true => counted(tree, paths, events).await,
            false => downloaded(tree, pages, paths, events).await.map(PrefetchEvent::Done),
        };
        // A client that left does not need the last line.
        let _ = last.send(ended.unwrap_or_else(|cause| PrefetchEvent::Failure(chain(&cause)))).await;
    })
}

async fn downloaded(
    tree: Tree,
    pages: PagesFirst,
    paths: Vec<String>,
    events: mpsc::Sender<PrefetchEvent>,
) -> Result<PrefetchSummary, CatalogError> {
    pages.read(&tree, paths.clone(), &events).await?;
    let (begun, summary, total) = (Moment::now(), PrefetchSummary::default(), Arc::default());
    let job = Job { tree, events, begun, summary, cached_bytes: 0, downloading: HashSet::new(), total, silent: 0 };
    job.run(paths).await
}

async fn counted(
    tree: Tree,
    paths: Vec<String>,
    events: mpsc::Sender<PrefetchEvent>,
) -> Result<PrefetchEvent, CatalogError> {
    let counting = tokio::task::spawn_blocking(move || {
        count(&tree, paths, &events, |path| _ = events.blocking_send(PrefetchEvent::Failed(missing(path))))
    });
    match counting.await {
        Ok(total) => total.map(PrefetchEvent::Counted),
        Err(cause) => Ok(PrefetchEvent::Failure(cause.to_string())),
    }
}

/// Counts the files below `paths`, until the end or until the client of `events` left. Blocks on the disk.
fn count(
    tree: &Tree,
    paths: Vec<String>,
    events: &mpsc::Sender<PrefetchEvent>,
    missing: impl Fn(String),
) -> Result<PrefetchTotal, CatalogError> {
    let left = tree.content.download_limit().map(|limit| limit.left());
    let mut total = PrefetchTotal { left, ..PrefetchTotal::default() };
    for found in tree.walk(paths).take_while(|_| !events.is_closed()) {
        let spec = match found? {
            Found::File(file) => file.spec,
            Found::Missing(path) => {
                missing(path);
                continue;
            }
        };
        let size = tree.size(&spec);
        total.files += 1;
        total.bytes += size.unwrap_or(0);
        if tree.content.is_whole(spec.ino) {
            total.cached_files += 1;
            total.cached_bytes += size.unwrap_or(0);
        } else if let Some(size) = size {
            total.cached_bytes += tree.content.resumable(&spec).min(size);
        } else {
            total.unsized_files += 1;
        }
    }
    Ok(total)
}

fn missing(path: String) -> NotPrefetched {
    NotPrefetched { path, uri: None, why: "is not in the mount".to_owned() }
}

struct Job {
    tree: Tree,
    events: mpsc::Sender<PrefetchEvent>,
    begun: Moment,
    summary: PrefetchSummary,
    /// Bytes of files that were in the cache before.
    cached_bytes: u64,
    downloading: HashSet<Ino>,
    total: Arc<OnceLock<PrefetchTotal>>,
    /// Files in a row for which the Source did not answer.
    silent: u64,
}

impl Job {
    async fn run(mut self, paths: Vec<String>) -> Result<PrefetchSummary, CatalogError> {
        let (tree, total, events, all) =
            (self.tree.clone(), Arc::clone(&self.total), self.events.clone(), paths.clone());
        let is_bounded = tree.content.download_limit().is_some();
        let counting = tokio::task::spawn_blocking(move || {
            // A total that cannot be counted stays unknown.
            if let Ok(counted) = count(&tree, all, &events, |_| {}) {
                let _ = total.set(counted);
            }
        });
        if is_bounded {
            // Whether it fits is shown before the first download.
            let _ = counting.await;
            self.progress();
        }
        // One item ahead of the downloads.
        let (sender, mut found) = mpsc::channel(1);
        let mut walk = self.tree.walk(paths);
        tokio::task::spawn_blocking(move || walk.all(|it| sender.blocking_send(it).is_ok()));
        let mut downloads = FuturesUnordered::new();
        let mut steps = tokio::time::interval(STEP);
        steps.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            while downloads.len() < AT_ONCE && self.summary.stopped.is_none() {
                let Some(it) = found.recv().await else { break };
                let file = match it? {
                    Found::File(file) => file,
                    Found::Missing(path) => {
                        self.fail(missing(path)).await;
                        continue;
                    }
                };
                self.downloading.insert(file.spec.ino);
                let (content, begun) = (Arc::clone(&self.tree.content), self.begun);
                downloads.push(async move {
                    loop {
                        let downloaded = content.prefetch(&file.spec, begun).await;
                        // Its host allows no requests for longer than readers have patience.
                        let pause = downloaded.as_ref().err().and_then(ContentError::paused_for);
                        let Some(pause) = pause else { return (*file, downloaded) };
                        tokio::time::sleep(pause.max(STEP)).await;
                    }
                });
            }
            if downloads.is_empty() {
                return Ok(self.summary);
            }
            tokio::select! {
                Some((file, downloaded)) = downloads.next() => self.ended(file, downloaded).await,
                _ = steps.tick() => self.progress(),
            }
        }
    }

    async fn ended(&mut self, file: File, downloaded: Result<Option<u64>, ContentError>) {
        self.downloading.remove(&file.spec.ino);
        let silent = std::mem::take(&mut self.silent);
        let cause = match downloaded {
            Ok(None) => {
                self.summary.here += 1;
                self.cached_bytes += self.tree.size(&file.spec).unwrap_or(0);
                return;
            }
            Ok(Some(bytes)) => {
                self.summary.fetched += 1;
                self.summary.bytes += bytes;
                return;
            }
            Err(cause) => cause,
        };
        if cause.is_spent() {
            self.summary.stopped = Some(Stopped::Spent);
            return;
        }
        let is_too_large = file.spec.length.is_some_and(|length| length > self.tree.content.quota());
        if cause.is_of_cache() && !is_too_large {
            self.summary.stopped = Some(if cause.is_full() { Stopped::Full } else { Stopped::Unwritable });
            return;
        }
        if cause.is_retryable() && !cause.is_unsent() {
            self.silent = silent + 1;
            if self.silent >= MAX_SILENT {
                self.summary.stopped = Some(Stopped::Silent);
            }
        }
        let why = if is_too_large { "is larger than the cache may be (cache-size=)".to_owned() } else { chain(&cause) };
        self.fail(NotPrefetched { path: file.path, uri: Some(file.spec.uri.to_string()), why }).await;
    }

    async fn fail(&mut self, failed: NotPrefetched) {
        self.summary.failed += 1;
        let _ = self.events.send(PrefetchEvent::Failed(failed)).await;
    }

    /// Reports the progress, unless there is no room for it now: a later report replaces it.
    fn progress(&self) {
        let PrefetchSummary { fetched, bytes, here, failed, .. } = self.summary;
        let arrived: u64 = self.downloading.iter().map(|ino| self.tree.content.arrived(*ino)).sum();
        let (files, of) = (fetched + here + failed, self.total.get().copied());
        // Of those that are in the cache nothing is requested.
        let left = of.map(|of| (of.files - of.cached_files).saturating_sub(files.saturating_sub(here)));
        let pace = left.and_then(|left| self.tree.content.pace(left));
        let (bytes, cached_bytes) = (bytes + arrived, self.cached_bytes);
        let progress = PrefetchProgress { files, bytes, cached_bytes, of, pace };
        let _ = self.events.try_send(PrefetchEvent::Progress(progress));
    }
}

/// Cached bytes of files and folders are removed, to make room.
pub(super) fn evict(tree: Tree, paths: Vec<String>) -> Lines {
    lines_of(async move |events| {
        let last = events.clone();
        let evicted = tokio::task::spawn_blocking(move || evict_below(&tree, paths, &events)).await;
        let event = match evicted {
            Ok(Ok(summary)) => EvictEvent::Done(summary),
            Ok(Err(cause)) => EvictEvent::Failure(chain(&cause)),
            Err(cause) => EvictEvent::Failure(cause.to_string()),
        };
        // A client that left does not need the last line.
        let _ = last.send(event).await;
    })
}

fn evict_below(
    tree: &Tree,
    paths: Vec<String>,
    events: &mpsc::Sender<EvictEvent>,
) -> Result<EvictSummary, CatalogError> {
    let mut summary = EvictSummary::default();
    // The end is not sent to a client that left; the walk can stop.
    for found in tree.walk(paths).take_while(|_| !events.is_closed()) {
        match found? {
            Found::Missing(path) => {
                summary.missing += 1;
                let _ = events.blocking_send(EvictEvent::Missing(path));
            }
            Found::File(file) => match tree.content.evict(&file.spec) {
                Evicted::Absent => {}
                Evicted::Bytes(bytes) => {
                    summary.files += 1;
                    summary.bytes += bytes;
                }
                Evicted::Kept => {
                    summary.kept += 1;
                    let _ = events.blocking_send(EvictEvent::Kept(file.path));
                }
            },
        }
    }
    Ok(summary)
}
