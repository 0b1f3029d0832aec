//! Whole files and folders brought into the cache ahead of reading.

use super::tree::{Below, File, Tree, told};
use crate::catalog::CatalogError;
use crate::content::ContentError;
use crate::content::store::Moment;
use crate::control::Lines;
use crate::platform::error_chain::chain;
use fuser::INodeNo;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

/// Files under way at once, of all hosts. The limiter of `source::http` bounds the requests of one host.
const AT_ONCE: usize = 64;

/// Between two reports of progress.
const STEP: Duration = Duration::from_millis(200);

/// After so many files in a row for which nobody answered the rest is not asked for.
const SILENCE: u64 = 100;

/// What a prefetch tells while it runs; the last is `Done` or `Failure`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrefetchEvent {
    /// How far it is.
    Progress(PrefetchProgress),
    /// A file that did not come, or a path that is not in the tree.
    Failed(NotFetched),
    /// All that could be done is.
    Done(PrefetchSummary),
    /// It could not go on: why.
    Failure(String),
}

/// How far a prefetch is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchProgress {
    /// Files that are over: fetched, here before, or failed.
    pub files: u64,
    /// Octets that have come, those of files under way included.
    pub octets: u64,
    /// What was asked for, once it is counted.
    pub of: Option<PrefetchTotal>,
}

/// What a prefetch was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchTotal {
    /// Files.
    pub files: u64,
    /// Sum of the sizes that are published or were learnt.
    pub octets: u64,
    /// Files of which no size is known.
    pub unsized_files: u64,
}

/// A file that did not come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotFetched {
    /// Its path below the root.
    pub path: String,
    /// Its resource; `None` where there is no such path.
    pub uri: Option<String>,
    /// For a person.
    pub why: String,
}

/// What a prefetch came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchSummary {
    /// Files that are in the cache now and were not before.
    pub fetched: u64,
    /// Their octets.
    pub octets: u64,
    /// Files that were there.
    pub here: u64,
    /// Files that did not come.
    pub failed: u64,
    /// Why the rest was left, where some was.
    pub stopped: Option<Stopped>,
}

/// Why a prefetch ended before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stopped {
    /// The cache folder has no more room beside what this prefetch brought and what was read since it began.
    Full,
    /// Nobody answers.
    Silent,
}

impl Tree {
    /// See [`crate::control::OfTree::prefetch`]. What is under way ends with whoever listens.
    pub(super) fn prefetch(&self, paths: Vec<String>) -> Lines {
        let tree = self.clone();
        told(async move |events| {
            let mut job = Job::new(tree, events);
            let last = match job.run(paths).await {
                Ok(()) => PrefetchEvent::Done(job.summary),
                Err(cause) => PrefetchEvent::Failure(chain(&cause)),
            };
            // Who left before the end does not want to know.
            let _ = job.events.send(last).await;
        })
    }
}

struct Job {
    tree: Tree,
    events: mpsc::Sender<PrefetchEvent>,
    begun: Moment,
    summary: PrefetchSummary,
    under_way: HashSet<INodeNo>,
    total: Arc<OnceLock<PrefetchTotal>>,
    /// Files in a row that nobody answered for.
    silent: u64,
}

impl Job {
    fn new(tree: Tree, events: mpsc::Sender<PrefetchEvent>) -> Job {
        Job {
            tree,
            events,
            begun: Moment::now(),
            summary: PrefetchSummary::default(),
            under_way: HashSet::new(),
            total: Arc::default(),
            silent: 0,
        }
    }

    async fn run(&mut self, paths: Vec<String>) -> Result<(), CatalogError> {
        self.count(self.tree.below(paths.clone()));
        let mut below = Some(self.tree.below(paths));
        let mut waiting = VecDeque::new();
        let mut fetches = FuturesUnordered::new();
        let mut steps = tokio::time::interval(STEP);
        steps.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            while fetches.len() < AT_ONCE && self.summary.stopped.is_none() {
                // A batch may hold nothing that is to be fetched.
                while waiting.is_empty()
                    && let Some(rest) = below.take()
                {
                    below = self.next(rest, &mut waiting).await?;
                }
                let Some(file) = waiting.pop_front() else { break };
                self.under_way.insert(file.wanted.ino);
                let (content, begun) = (Arc::clone(&self.tree.content), self.begun);
                fetches.push(async move {
                    let fetched = content.prefetch(&file.wanted, begun).await;
                    (file, fetched)
                });
            }
            if fetches.is_empty() {
                return Ok(());
            }
            tokio::select! {
                Some((file, fetched)) = fetches.next() => self.ended(file, fetched).await,
                _ = steps.tick() => self.progress(),
            }
        }
    }

    /// Counts in the background what there is to be done.
    fn count(&self, mut below: Below) {
        let (tree, total, events) = (self.tree.clone(), Arc::clone(&self.total), self.events.clone());
        tokio::task::spawn_blocking(move || {
            let mut sum = PrefetchTotal::default();
            while let Ok(Some(batch)) = below.next() {
                for File { wanted, .. } in batch.files {
                    let published = wanted.length.filter(|_| wanted.encoding.is_none());
                    let size = tree.content.known_size(wanted.ino).or(published);
                    sum.files += 1;
                    sum.octets += size.unwrap_or(0);
                    sum.unsized_files += u64::from(size.is_none());
                }
                if events.is_closed() {
                    return;
                }
            }
            let _ = total.set(sum);
        });
    }

    /// The next files; what is left after them.
    async fn next(&mut self, mut below: Below, waiting: &mut VecDeque<File>) -> Result<Option<Below>, CatalogError> {
        let read = tokio::task::spawn_blocking(move || {
            let batch = below.next();
            (below, batch)
        });
        // Only a panic, told by its own message, keeps it from coming.
        let Ok((below, batch)) = read.await else { return Ok(None) };
        let Some(batch) = batch? else { return Ok(None) };
        for path in batch.absent {
            self.fail(NotFetched { path, uri: None, why: "is not in the tree".to_owned() }).await;
        }
        waiting.extend(batch.files);
        Ok(Some(below))
    }

    async fn ended(&mut self, file: File, fetched: Result<Option<u64>, ContentError>) {
        self.under_way.remove(&file.wanted.ino);
        let silent = std::mem::take(&mut self.silent);
        let cause = match fetched {
            Ok(None) => {
                self.summary.here += 1;
                return;
            }
            Ok(Some(octets)) => {
                self.summary.fetched += 1;
                self.summary.octets += octets;
                return;
            }
            Err(cause) => cause,
        };
        let is_too_large = file.wanted.length.is_some_and(|length| length > self.tree.content.quota());
        if cause.is_full() && !is_too_large {
            self.summary.stopped = Some(Stopped::Full);
            return;
        }
        if cause.is_retryable() && !cause.is_unsent() {
            self.silent = silent + 1;
            if self.silent >= SILENCE {
                self.summary.stopped = Some(Stopped::Silent);
            }
        }
        let why = if is_too_large { "is larger than the cache may be (cache-size=)".to_owned() } else { chain(&cause) };
        self.fail(NotFetched { path: file.path, uri: Some(file.wanted.uri.to_string()), why }).await;
    }

    async fn fail(&mut self, failed: NotFetched) {
        self.summary.failed += 1;
        let _ = self.events.send(PrefetchEvent::Failed(failed)).await;
    }

    /// Tells how far it is; what finds no room is overtaken by the next.
    fn progress(&self) {
        let PrefetchSummary { fetched, octets, here, failed, .. } = self.summary;
        let coming: u64 = self.under_way.iter().map(|ino| self.tree.content.arrived(*ino)).sum();
        let progress =
            PrefetchProgress { files: fetched + here + failed, octets: octets + coming, of: self.total.get().copied() };
        let _ = self.events.try_send(PrefetchEvent::Progress(progress));
    }
}
