//! The bytes: fetched once, verified, kept on disk within a quota, handed out only when they are right.

mod blocks;
mod coding;
mod config;
pub mod download;
mod error;
mod fetch_spec;
pub mod fixity;
mod form;
pub mod freshness;
mod local;
pub mod metadata;
mod metrics;
pub mod patch;
mod pins;
mod served;
mod shared_cache;
pub mod store;
mod trust;
pub mod verify;

use crate::document::Digest;
use crate::platform::allocator;
use crate::platform::ino::Ino;
use crate::platform::memory_budget::Budget;
use crate::source::http::{Client, DownloadLimit, Pace};
use crate::source::zip::Packages;
use blocks::cache::BlockCache;
use bytes::Bytes;
use download::{DownloadTable, Failures, MOST_REVALIDATIONS, SizeQuestions};
use fixity::BlockHasher;
use local::LocalContent;
use metadata::LearntMetadata;
use serde::{Deserialize, Serialize};
use shared_cache::SharedCache;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use store::{Evicted, ObjectKey, Store};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;

pub use config::{ContentConfig, Fixity, Mirrors, Unannounced};
pub use error::ContentError;
pub use fetch_spec::{FetchSpec, Patch};
pub use freshness::Revalidate;
pub use metrics::{Cooling, Metrics, ReadFailure};
pub use shared_cache::{SharedCacheConfig, SharedCacheStatus, shared_cache_url};

/// How much of an inode's bytes is here: `user.resyncfs.state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing.
    Remote,
    /// Part of the bytes; their number.
    Partial(u64),
    /// All.
    Cached,
    /// Found wrong; never served again under this inode.
    Poisoned,
}

/// Result of the verification of the bytes: `user.resyncfs.verified`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verified {
    /// Not fetched whole yet.
    #[default]
    NotYet,
    /// The bytes gave the published digest of this algorithm.
    Digest(crate::document::Algorithm),
    /// No digest is published (or fixity is off); the published length agreed.
    Length,
    /// Nothing is published to verify against; the length the server announced agreed.
    Transfer,
    /// The bytes were wrong.
    Failed,
}

/// Answer of this machine to a read.
#[derive(Debug)]
pub enum LocalRead {
    /// The bytes.
    Bytes(Bytes),
    /// The bytes are on the disk and not in memory: [`Content::read_local`] waits for them.
    OnDisk,
    /// The bytes are not here, or may not be handed out: [`Content::read`].
    Absent,
}

/// Notice to the rest of the mount; sent through one channel, never awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes already handed out turned out wrong: drop the kernel's pages, give the name a new inode.
    Poisoned(Ino),
    /// The Source serves another version than the one whose size or bytes were shown: look at its lists.
    Changed(Ino),
    /// The Source serves bytes newer than its list, and they are to be shown ([`Unannounced::Show`]): give the name a
    /// version of which nothing is published, and drop the kernel's pages of the old one.
    Unannounced(Ino),
    /// The kernel must not keep the pages of these bytes, so that a sequential reader meets the verdict. The inode stays. They touch the end of
    /// a large object and are handed out to a reader that jumped, or it is forgotten what was.
    Recheck(Ino, Range<u64>),
    /// A size was learnt.
    Sized(Ino, u64),
}

/// Bytes that all of this holds in memory. Blocks are cached in what nothing else needs. About as much again is not counted: what connections and the allocator hold, spare buffers,
/// answers on their way to the kernel.
const MEMORY: usize = 64 << 20;

/// All content of one mount; share it by `Arc`.
///
/// Lock order: `table`, then `failures`, `served` and `pins`, none of
/// which is held while another of these three is taken; the locks inside a download come last.
pub struct Content {
    config: ContentConfig,
    client: Client,
    runtime: Handle,
    local: LocalContent,
    block_hasher: BlockHasher,
    table: DownloadTable,
    size_questions: SizeQuestions,
    allocator_watch: Arc<allocator::Watch>,
    failures: Mutex<Failures>,
    packages: OnceLock<Packages>,
    shared_cache: Option<SharedCache>,
    memory: Budget,
    revalidations: Arc<Semaphore>,
    counters: metrics::Counters,
}

impl Content {
    /// Opens the cache. Runs its background work on `runtime`. Events go to `events`. [`ContentError::Cache`] where
    /// the folders cannot be used.
    pub fn open(
        config: ContentConfig,
        client: Client,
        runtime: Handle,
        events: UnboundedSender<Event>,
    ) -> Result<Arc<Content>, ContentError> {
        let store = Store::open(&config.folder, config.quota, config.reserve).map_err(|error| ContentError::Cache {
            path: config.folder.clone(),
            cause: Arc::new(io::Error::other(error)),
        })?;
        if let Some(folder) = &config.counted_folder {
            store.count_folder(folder);
        }
        let metadata = LearntMetadata::open(&config.metadata_folder, false).map_err(|error| ContentError::Cache {
            path: error.path.clone(),
            cause: Arc::new(io::Error::other(error)),
        })?;
        let memory = Budget::new(MEMORY);
        let block_cache = BlockCache::new(&memory);
        let shared_cache = config.shared_cache.as_ref().map(|shared| {
            SharedCache::open(shared, &client, &store, &memory, &runtime).map_err(|error| ContentError::Cache {
                path: shared.url.as_str().into(),
                cause: Arc::new(io::Error::other(error)),
            })
        });
        let shared_cache = shared_cache.transpose()?;
        let local = LocalContent::new(&config, &store, metadata, block_cache, events);
        Ok(Arc::new(Content {
            config,
            client,
            runtime,
            local,
            block_hasher: BlockHasher::default(),
            table: DownloadTable::default(),
            size_questions: SizeQuestions::default(),
            allocator_watch: Arc::default(),
            failures: Mutex::default(),
            packages: OnceLock::new(),
            shared_cache,
            memory,
            revalidations: Arc::new(Semaphore::new(MOST_REVALIDATIONS)),
            counters: metrics::Counters::default(),
        }))
    }

    /// The memory that all of this shares, for [`Packages`] to draw on too.
    pub(crate) fn memory(&self) -> Budget {
        self.memory.clone()
    }

    /// Lets members of packages be read; without it every resource comes from its own URI. Called once, before the first read.
    pub fn read_packages(&self, packages: Packages) {
        // A second one would be of the same folder.
        let _ = self.packages.set(packages);
    }

    /// A size learnt earlier (an earlier fetch or HEAD, the decoded length); never waits.
    pub fn known_size(&self, ino: Ino) -> Option<u64> {
        self.local.metadata.size(ino)
    }

    /// Returns whether the file is known to be empty by its server's word alone.
    pub fn is_doubtful(&self, ino: Ino) -> bool {
        self.local.metadata.get(ino).is_some_and(|observation| observation.is_doubtful())
    }

    /// A question for a size that takes so long is likely to fail, and so are those for its neighbours.
    pub fn long_question(&self) -> Duration {
        self.config.size_deadline / 8
    }

    /// The bytes if they are on this machine and may be handed out; never waits on the network. `None`: ask [`Content::read`].
    pub fn read_local(&self, ino: Ino, offset: u64, length: u32) -> Option<Bytes> {
        self.local.read(ino, offset, length).inspect(|bytes| self.counters.hit(bytes.len()))
    }

    /// Reads as [`Content::read_local`] does, without waiting for a disk.
    pub fn read_in_memory(&self, ino: Ino, offset: u64, length: u32) -> LocalRead {
        let read = self.local.read_in_memory(ino, offset, length);
        if let LocalRead::Bytes(bytes) = &read {
            self.counters.hit(bytes.len());
        }
        read
    }

    /// Like [`Content::read_local`], and also bytes that another inode brought or a download under way has. Sends no request.
    pub async fn read_present(&self, spec: &FetchSpec, offset: u64, length: u32) -> Option<Bytes> {
        self.present(spec, offset, length).await.inspect(|bytes| self.counters.hit(bytes.len()))
    }

    /// The size, where it is known without asking the Source.
    pub fn size_present(&self, spec: &FetchSpec) -> Option<u64> {
        self.local.size(spec)
    }

    /// Compares what was read of an inode with what is published of it now; another version is reported
    /// to the rest of the mount. For bytes of which the catalog does not know that they are others.
    pub fn hold_to_published(&self, spec: &FetchSpec) {
        let Some(read) = self.local.metadata.get(spec.ino).filter(|read| read.verified != Verified::NotYet) else {
            return;
        };
        let is_coded = form::published_coding(spec).is_some();
        let contradicts = |published: &Digest| {
            read.digests.iter().any(|seen| seen.algorithm() == published.algorithm() && seen != published)
        };
        let has_other_length = spec.length.zip(read.size).is_some_and(|(published, size)| published != size);
        if !is_coded && !spec.is_past() && (has_other_length || spec.hashes.iter().any(contradicts)) {
            self.local.send_event(Event::Changed(spec.ino));
        }
    }

    /// Bytes that the cache folder may take.
    pub fn quota(&self) -> u64 {
        self.local.store.quota
    }

    /// Evicts for a writer below `folder`; see `Cache::give_up`.
    pub fn give_up(&self, folder: &Path, bytes: u64) -> u64 {
        self.local.store.give_up(folder, bytes)
    }

    /// For the xattrs.
    pub fn state(&self, ino: Ino) -> (State, Verified) {
        if self.local.is_poisoned(ino) {
            return (State::Poisoned, Verified::Failed);
        }
        if self.local.peek(ino).is_some() || self.local.is_in_memory(ino) {
            let verified = self.local.metadata.get(ino).map_or(Verified::NotYet, |observation| observation.verified);
            return (State::Cached, verified);
        }
        match self.table.get(ino).map(|download| download.state().frontier()).filter(|bytes| *bytes > 0) {
            Some(bytes) => (State::Partial(bytes), Verified::NotYet),
            None => (State::Remote, Verified::NotYet),
        }
    }

    /// How often since the start bytes were met that the Source has not announced yet.
    pub fn unannounced(&self) -> u64 {
        self.counters.lock().unannounced
    }

    /// Measures what the folders of all mounts take, for [`Content::metrics`] to be the same in each of them. Blocks on the disk.
    pub fn measure(&self) {
        self.local.store.measure();
    }

    /// Returns what was read, fetched and failed since the start, and what the cache holds.
    pub fn metrics(&self) -> Metrics {
        let now = std::time::Instant::now();
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let cooling = failures.hosts.iter(now).map(|(host, (), left)| Cooling { host: host.clone(), left }).collect();
        drop(failures);
        let cache = self.local.store.recorded_usage();
        let (objects, bytes, quota) = (cache.objects, cache.bytes, cache.quota);
        let write_failure = self.local.store.failures.lasting();
        Metrics { objects, bytes, quota, cooling, write_failure, ..self.counters.lock().clone() }
    }

    /// Why the latest read of this version failed, where it is not here whole by now.
    pub fn failure(&self, ino: Ino) -> Option<String> {
        let why = self.counters.lock().failure(ino)?;
        (self.state(ino).0 != State::Cached).then_some(why)
    }

    /// The bytes that may be downloaded and those that were, where that is bounded.
    pub fn download_limit(&self) -> Option<DownloadLimit> {
        self.client.download_limit()
    }

    /// How the announced limit of a host paces so many downloads that no reader waits for.
    pub fn pace(&self, downloads: u64) -> Option<Pace> {
        self.client.pace(downloads, true)
    }

    /// Returns the state of the shared cache, if the mount has one.
    pub fn shared_cache(&self) -> Option<SharedCacheStatus> {
        self.shared_cache.as_ref().map(SharedCache::status)
    }

    /// The name of the object that holds the bytes, once they were kept: `user.resyncfs.object`.
    pub fn object(&self, ino: Ino) -> Option<ObjectKey> {
        self.local.metadata.get(ino)?.object
    }

    /// Keeps the object of an orphan from eviction until [`Content::unpin`]; an object not here yet, once it is.
    pub fn pin(&self, ino: Ino) {
        self.local.pins.pin(ino, || self.local.metadata.get(ino).and_then(|observation| observation.object));
    }

    /// See [`Content::pin`].
    pub fn unpin(&self, ino: Ino) {
        self.local.pins.unpin(ino);
    }

    /// Forgets what was learnt of an inode that will never be asked for again.
    pub fn forget(&self, ino: Ino) {
        self.local.metadata.forget(ino);
        self.local.served.forget(ino);
    }

    /// Forgets what was learnt of the inodes that `gone` picks, and returns how many. `gone` is shown them some at a time.
    /// Blocks on the disk.
    pub fn forget_gone<E>(&self, gone: impl FnMut(&[Ino]) -> Result<Vec<Ino>, E>) -> Result<u64, E> {
        self.local.metadata.forget_gone(gone)
    }

    /// Removes what is kept here of `spec`, on the disk and in memory; it is downloaded again when it is read. Objects are shared: other
    /// names of the same bytes, in other mounts of the cache folder too, are downloaded again as well. Kept: a version that is still open,
    /// or that is being downloaded. Blocks on the disk.
    pub fn evict(&self, spec: &FetchSpec) -> Evicted {
        if self.table.contains(spec.ino) { Evicted::Kept } else { self.local.evict(spec) }
    }

    /// Clears remembered failures: a refresh has happened.
    pub fn forget_failures(&self) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).forget();
    }

    /// Writes out what is pending; called once at the end of a mount.
    pub async fn close(&self) {
        if let Some(shared) = &self.shared_cache {
            shared.close().await;
        }
        let (store, metadata) = (Arc::clone(&self.local.store), Arc::clone(&self.local.metadata));
        let closing = tokio::task::spawn_blocking(move || {
            store.close();
            metadata.close();
        });
        // It cannot be reported to anybody any more.
        let _ = closing.await;
    }
}
