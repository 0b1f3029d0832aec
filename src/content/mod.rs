//! The bytes: fetched once, verified, kept on disk within a quota, handed out only when they are right.

pub mod check;
pub mod counting_filter;
pub mod download;
mod evict;
pub mod fixity;
pub mod freshness;
pub mod metadata;
mod metrics;
pub mod patch;
mod pins;
mod resource;
pub mod store;
pub mod stored;
mod uncached;

use crate::document::{ChangeFrequency, Digest, Timestamp, Uri};
use crate::inodes::InodeSet;
use crate::memory;
use crate::source::http::{Client, HttpError, Requester, Turns};
use crate::source::zip::{PackageError, Packages};
use bytes::Bytes;
use download::{
    Cooldowns, Download, Ends, Failures, HandedOuts, Held, PackagePenalties, QUESTIONS, Shares, SingleFlight, Windows,
};
use fixity::BlockDigests;
use freshness::Asked;
use fuser::INodeNo;
use metadata::LearntMetadata;
use pins::Pins;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use store::{ObjectKey, Store};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Semaphore, watch};
use uncached::Uncached;

pub use download::Prefetched;
pub use evict::Dropped;
pub use freshness::Revalidate;
pub use metrics::{Cooling, Failure, Tally};
pub use resource::{FetchSpec, Patch};

/// How strictly bytes are verified before they are handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fixity {
    /// Everything whole before the first byte.
    Strict,
    /// Whole up to 16 MiB; above, streamed with the last block withheld.
    #[default]
    Stream,
    /// Published hashes are ignored (a Source whose hashes are wrong); lengths still count.
    Off,
}

/// Where a resource with mirrors (`duplicate`) is asked for first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mirrors {
    /// With a published hash mirrors first, without one `loc` first.
    #[default]
    Auto,
    /// Always mirrors first.
    First,
    /// Always `loc` first.
    Last,
    /// Never asked.
    Off,
}

/// What is done about bytes that are others than those published because they are newer than the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unannounced {
    /// Reading fails, until a list tells of them.
    #[default]
    Error,
    /// The name gets a new version of which no length and no digest is known.
    Show,
}

/// What the cache needs to know.
#[derive(Clone, Debug)]
pub struct ContentConfig {
    /// The cache folder, shared by all mounts that name it.
    pub folder: PathBuf,
    /// A folder of this mount alone, for what was observed.
    pub observed_folder: PathBuf,
    /// A folder whose files count in the quota too: the catalogs and observations of all mounts.
    pub counted_folder: Option<PathBuf>,
    /// Distinguishes objects without digest of different Sources in one folder.
    pub source: String,
    /// Bytes the folder may take; `None`: 10 GiB or a tenth of the free space, whichever is smaller.
    pub quota: Option<u64>,
    /// Bytes of free space to leave on the file system.
    pub reserve: u64,
    /// See [`Fixity`].
    pub fixity: Fixity,
    /// See [`Mirrors`].
    pub mirrors: Mirrors,
    /// See [`Revalidate`].
    pub revalidate: Revalidate,
    /// See [`Unannounced`].
    pub unannounced: Unannounced,
    /// A fetch without progress for so long has failed for its waiters.
    pub stall: Duration,
    /// All of a GETATTR's wait for a size.
    pub size_deadline: Duration,
}

/// How much of an inode's bytes is here: `user.resyncfs.state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing.
    Remote,
    /// So many bytes.
    Partial(u64),
    /// All.
    Cached,
    /// Found wrong; never served again under this inode.
    Poisoned,
}

/// What is known of the bytes' truth: `user.resyncfs.verified`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// Not fetched whole yet.
    NotYet,
    /// They gave the published digest of this algorithm.
    Digest(crate::document::Algorithm),
    /// No digest is published (or fixity is off); the published length agreed.
    Length,
    /// Nothing is published to verify against; the length the server announced agreed.
    Transfer,
    /// They were wrong.
    Failed,
}

/// What this machine has of a read.
#[derive(Debug)]
pub enum LocalRead {
    /// The bytes.
    Bytes(Bytes),
    /// They lie on the disk and not in memory: [`Content::read_local`] waits for it.
    OnDisk,
    /// They are not here, or may not be handed out: [`Content::read`].
    Absent,
}

/// What content tells the rest of the mount; sent through one channel, never awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes already handed out turned out wrong: drop the kernel's pages, give the name a new inode.
    Poisoned(INodeNo),
    /// The Source serves another version than the one whose size or bytes were told: look at its lists.
    Changed(INodeNo),
    /// The Source serves bytes newer than its list, and they are to be shown ([`Unannounced::Show`]): give the name a
    /// version of which nothing is published, and drop the kernel's pages of the old one.
    Unannounced(INodeNo),
    /// These bytes, which touch the end of a large object, are going out before its verdict to a reader that jumped: the kernel must not
    /// keep their pages, so that a sequential reader meets the verdict. The inode stays.
    Recheck(INodeNo, Range<u64>),
    /// A size was learnt.
    Sized(INodeNo, u64),
}

/// Why bytes or a size cannot be had. `fs::error` maps each to an errno.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ContentError {
    /// Every place failed; the last failure.
    #[error("{uri} cannot be fetched")]
    Fetch {
        /// The resource.
        uri: Uri,
        /// The last failure.
        #[source]
        cause: Arc<HttpError>,
    },
    /// The bytes are not those the Source published.
    #[error("{uri}: {what}")]
    Mismatch {
        /// The resource.
        uri: Uri,
        /// Which digest or length, published and seen.
        what: String,
    },
    /// The bytes are not those the Source published, and newer than its list: it has not announced the change yet.
    #[error("{uri} has changed at {modified}, after the list was made, which its Source has not announced: {what}")]
    Unannounced {
        /// The resource.
        uri: Uri,
        /// Its Last-Modified.
        modified: Timestamp,
        /// Which digest or length, published and seen.
        what: String,
        /// Whether the name gets a version that can be read ([`Unannounced::Show`]).
        shown: bool,
    },
    /// The Source serves another version now and the old bytes are not here.
    #[error("{uri} has changed at the Source")]
    Changed {
        /// The resource.
        uri: Uri,
    },
    /// The mount shows the Source as it was, and nothing has the bytes of then.
    #[error("no memento and no package has {uri} as it was at {at}")]
    Unarchived {
        /// The resource.
        uri: Uri,
        /// The time that is shown.
        at: Timestamp,
    },
    /// Its member of a package cannot be read.
    #[error("{uri} cannot be had from its package")]
    Package {
        /// The resource.
        uri: Uri,
        /// What is wrong with the package or the member.
        #[source]
        cause: Arc<PackageError>,
    },
    /// No progress in time.
    #[error("{uri}: no progress in time")]
    Stalled {
        /// The resource.
        uri: Uri,
    },
    /// The cache failed and streaming past it failed too.
    #[error("the cache at {path} failed", path = .path.display())]
    Cache {
        /// File or folder.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        cause: Arc<std::io::Error>,
    },
}

impl ContentError {
    /// Whether nobody answered, so that the same may be asked again later.
    pub fn is_silence(&self) -> bool {
        match self {
            ContentError::Fetch { cause, .. } => cause.is_retryable(),
            ContentError::Stalled { .. } => true,
            _ => false,
        }
    }

    /// Whether there is no room in the cache folder.
    pub fn is_full(&self) -> bool {
        matches!(self, ContentError::Cache { cause, .. } if cause.kind() == io::ErrorKind::StorageFull)
    }

    /// The resource, where it is one that fails.
    pub fn uri(&self) -> Option<&Uri> {
        match self {
            ContentError::Fetch { uri, .. }
            | ContentError::Mismatch { uri, .. }
            | ContentError::Unannounced { uri, .. }
            | ContentError::Changed { uri }
            | ContentError::Unarchived { uri, .. }
            | ContentError::Package { uri, .. }
            | ContentError::Stalled { uri } => Some(uri),
            ContentError::Cache { .. } => None,
        }
    }
}

/// Fetches under way at once of one host that somebody waits for, or as many as it is sent requests: those that wait for a dead
/// one hold up nobody else's.
const FETCHES: usize = 64;

/// Prefetches under way at once of one host, at most: half of the connections that it is given before it is known.
const PREFETCHES: usize = 8;

/// All content of one mount; share it by `Arc`.
///
/// Lock order: `in_flight`, then `failures`, `cooldowns`, `handed`, that of `uncached`, `ends`, `pinned`, `asked` and `package_penalties`, none of
/// which is held while another of these eight is taken; the locks inside a download come last.
pub struct Content {
    config: ContentConfig,
    client: Client,
    runtime: Handle,
    events: UnboundedSender<Event>,
    disk: Arc<Store>,
    observed: Arc<LearntMetadata>,
    block_digests: BlockDigests,
    in_flight: Mutex<HashMap<INodeNo, Arc<Download>>>,
    /// `None`: only the body tells, and it was asked for ahead.
    sizes: SingleFlight<INodeNo, Result<Option<u64>, ContentError>>,
    /// Tells the questions for sizes that nobody waits for when somebody does.
    sizes_ahead: Mutex<HashMap<INodeNo, watch::Sender<Option<Requester>>>>,
    windows: Windows,
    buffers: Arc<download::Buffers>,
    freed: Arc<memory::Watch>,
    /// Leave for ranges of large objects.
    stripes: Arc<Semaphore>,
    /// Leave for downloads to hold what came last.
    latest: Arc<Semaphore>,
    /// Leave for large objects to stand still while nobody reads on.
    resting: Arc<Semaphore>,
    failures: Mutex<Failures>,
    cooldowns: Mutex<Cooldowns>,
    handed: Mutex<HandedOuts>,
    uncached: Uncached,
    /// Large inodes of which verified bytes went out: the kernel may hold any page of them. Taken last.
    served: Mutex<InodeSet>,
    /// Poisoned inodes of which was told in this mount that their names need others.
    reminded: Mutex<InodeSet>,
    /// Of objects that went past the cache.
    ends: Mutex<Ends>,
    pinned: Mutex<Pins>,
    packages: OnceLock<Packages>,
    package_penalties: Mutex<PackagePenalties>,
    fetches: Turns,
    /// Of those that nobody's read waits for.
    ahead: Turns,
    memory: Arc<Shares>,
    /// Which inodes were asked about lately, whether their bytes are current.
    asked: Mutex<Asked>,
    questions: Arc<Semaphore>,
    /// Fetches that ended with [`ContentError::Unannounced`].
    unannounced: AtomicU64,
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
        Content::open_after(false, config, client, runtime, events)
    }

    /// The same; `crash`: the machine went down while the observations were open.
    pub fn open_after(
        crash: bool,
        config: ContentConfig,
        client: Client,
        runtime: Handle,
        events: UnboundedSender<Event>,
    ) -> Result<Arc<Content>, ContentError> {
        let disk = Store::open(&config.folder, config.quota, config.reserve).map_err(|error| ContentError::Cache {
            path: config.folder.clone(),
            cause: Arc::new(io::Error::other(error)),
        })?;
        if let Some(beside) = &config.counted_folder {
            disk.count_beside(beside);
        }
        let fetches = Turns::new(FETCHES.max(client.connections()));
        let ahead = Turns::new((client.connections() / 2).clamp(1, PREFETCHES));
        let observed = LearntMetadata::open(&config.observed_folder, crash).map_err(|error| ContentError::Cache {
            path: error.path.clone(),
            cause: Arc::new(io::Error::other(error)),
        })?;
        Ok(Arc::new(Content {
            config,
            client,
            runtime,
            events,
            disk,
            observed: Arc::new(observed),
            block_digests: BlockDigests::default(),
            in_flight: Mutex::default(),
            sizes: SingleFlight::default(),
            sizes_ahead: Mutex::default(),
            windows: Windows::default(),
            buffers: Arc::default(),
            freed: Arc::default(),
            stripes: download::stripe_places(),
            latest: download::latest_places(),
            resting: download::resting_places(),
            failures: Mutex::default(),
            cooldowns: Mutex::default(),
            handed: Mutex::default(),
            uncached: Uncached::default(),
            served: Mutex::default(),
            reminded: Mutex::default(),
            ends: Mutex::default(),
            pinned: Mutex::default(),
            packages: OnceLock::new(),
            package_penalties: Mutex::default(),
            fetches,
            ahead,
            memory: Arc::default(),
            asked: Mutex::default(),
            questions: Arc::new(Semaphore::new(QUESTIONS)),
            unannounced: AtomicU64::new(0),
            counters: metrics::Counters::default(),
        }))
    }

    /// Lets members of packages be read; without it every resource comes from its own URI. Said once, before the first read.
    pub fn read_packages(&self, packages: Packages) {
        // A second one would be of the same folder.
        let _ = self.packages.set(packages);
    }

    /// A size learnt earlier (an earlier fetch or HEAD, the decoded length); never waits.
    pub fn known_size(&self, ino: INodeNo) -> Option<u64> {
        self.observed.size(ino)
    }

    /// Whether the file is known to be empty by its server's word alone.
    pub fn is_doubtful(&self, ino: INodeNo) -> bool {
        self.observed.get(ino).is_some_and(|observation| observation.is_doubtful())
    }

    /// The true size of what a read returns; asks the Source where it must, within `size_deadline`.
    pub async fn size(self: &Arc<Self>, wanted: &FetchSpec) -> Result<u64, ContentError> {
        self.learnt_size(wanted, false).await
    }

    /// The same of a file that whoever asks is going to read: its size comes with its bytes, in one request, unless they are
    /// too many to wait for.
    pub async fn size_with_body(self: &Arc<Self>, wanted: &FetchSpec) -> Result<u64, ContentError> {
        self.learnt_size(wanted, true).await
    }

    /// A question for a size that takes so long is likely to fail, and so are those for its neighbours.
    pub fn long_question(&self) -> Duration {
        self.config.size_deadline / 8
    }

    /// Learns a size that somebody is expected to ask for next, while nobody's read needs what that takes: where only the body
    /// tells, as [`Content::fetch_ahead`] does, within `size_deadline`.
    ///
    /// # Errors
    /// As [`Content::size`]; what cannot be had ahead keeps nobody from asking.
    pub async fn size_ahead(self: &Arc<Self>, wanted: &FetchSpec) -> Result<(), ContentError> {
        self.learn_size_ahead(wanted).await
    }

    /// The bytes if they are on this machine and may be handed out; never waits on the network. `None`: ask [`Content::read`].
    pub fn read_local(&self, ino: INodeNo, offset: u64, length: u32) -> Option<Bytes> {
        let held = self.find_local(ino)?;
        self.note_served(ino, held.length());
        held.read(offset, length).inspect(|bytes| self.counters.hit(bytes.len()))
    }

    /// The same where no disk is waited for either, once the object is open.
    pub fn read_in_memory(&self, ino: INodeNo, offset: u64, length: u32) -> LocalRead {
        let Some(held) = self.find_local(ino) else { return LocalRead::Absent };
        if let Held::Store(object) = &held
            && object.waits_for_disk(offset, length as usize)
        {
            return LocalRead::OnDisk;
        }
        self.note_served(ino, held.length());
        let bytes = held.read(offset, length).inspect(|bytes| self.counters.hit(bytes.len()));
        bytes.map_or(LocalRead::Absent, LocalRead::Bytes)
    }

    /// The same for bytes that came for another file or are on their way already: whatever can be had without asking the
    /// Source.
    pub async fn read_present(&self, wanted: &FetchSpec, offset: u64, length: u32) -> Option<Bytes> {
        self.present(wanted, offset, length).await.inspect(|bytes| self.counters.hit(bytes.len()))
    }

    /// The size as far as it can be told without asking the Source.
    pub fn size_present(&self, wanted: &FetchSpec) -> Option<u64> {
        let published = wanted.length.filter(|_| !download::is_decoded(wanted));
        self.known_size(wanted.ino).or(published).or_else(|| Some(self.find(wanted)?.length_alone()))
    }

    /// `length` bytes at `offset`, fewer only at the end of the file; waits while the fetch makes progress.
    pub async fn read(self: &Arc<Self>, wanted: &FetchSpec, offset: u64, length: u32) -> Result<Bytes, ContentError> {
        let read = self.fetched(wanted, offset, length).await;
        self.counters.waited(read.as_ref().map(Bytes::len));
        read
    }

    /// How long what is known here of an entry that does not tell of its changes may be taken for current: its bytes, or its
    /// size alone; nothing where [`Content::revalidate`] is due, `None` where it never is.
    pub fn current_for(&self, ino: INodeNo, changefreq: Option<ChangeFrequency>) -> Option<Duration> {
        self.due_in(ino, changefreq)
    }

    /// Asks the Source in the background whether it still has the version of `wanted`; other bytes are
    /// [`Event::Changed`]. At once where the same was asked a moment ago, or much is being asked: the next look asks.
    pub fn revalidate(self: &Arc<Self>, wanted: FetchSpec, changefreq: Option<ChangeFrequency>) {
        self.ask_behind(wanted, changefreq);
    }

    /// Compares what was read of an inode with what is published of it now; where that is another version the rest of the
    /// mount is told. For bytes of which the catalog does not know that they are others.
    pub fn hold_to_published(&self, wanted: &FetchSpec) {
        let Some(read) = self.observed.get(wanted.ino).filter(|read| read.verified != Verified::NotYet) else { return };
        let is_coded = download::published_coding(wanted).is_some();
        let contradicts = |published: &Digest| {
            read.digests.iter().any(|seen| seen.algorithm() == published.algorithm() && seen != published)
        };
        let has_other_length = wanted.length.zip(read.size).is_some_and(|(published, size)| published != size);
        if !is_coded && !wanted.is_past() && (has_other_length || wanted.hashes.iter().any(contradicts)) {
            self.tell(Event::Changed(wanted.ino));
        }
    }

    /// Bytes that the cache folder may take.
    pub fn quota(&self) -> u64 {
        self.disk.quota()
    }

    /// Evicts for whoever writes below `folder`; see [`store::Store::give_up`].
    pub fn give_up(&self, folder: &Path, bytes: u64) -> u64 {
        self.disk.give_up(folder, bytes)
    }

    /// For the xattrs.
    pub fn state(&self, ino: INodeNo) -> (State, Verified) {
        if self.is_poisoned(ino) {
            return (State::Poisoned, Verified::Failed);
        }
        if self.peek_local(ino).is_some() {
            let verified = self.observed.get(ino).map_or(Verified::NotYet, |observation| observation.verified);
            return (State::Cached, verified);
        }
        let download = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).get(&ino).cloned();
        match download.map(|download| download.frontier()).filter(|bytes| *bytes > 0) {
            Some(bytes) => (State::Partial(bytes), Verified::NotYet),
            None => (State::Remote, Verified::NotYet),
        }
    }

    /// How often since the start bytes were met that the Source has not announced yet.
    pub fn unannounced(&self) -> u64 {
        self.unannounced.load(Ordering::Relaxed)
    }

    /// What was read, fetched and failed since the start, and what the cache holds.
    pub fn tally(&self) -> Tally {
        let now = std::time::Instant::now();
        let cooling = self.cooldowns.lock().unwrap_or_else(PoisonError::into_inner).cooling(now);
        Tally { cache: self.disk.glance(), cooling, ..self.counters.snapshot() }
    }

    /// The name of the object that holds the bytes, once they were kept: `user.resyncfs.object`.
    pub fn object(&self, ino: INodeNo) -> Option<ObjectKey> {
        self.observed.get(ino)?.object
    }

    /// Keeps the object of an orphan from eviction until [`Content::unpin`]; an object not here yet, once it is.
    pub fn pin(&self, ino: INodeNo) {
        let key = self.observed.get(ino).and_then(|observation| observation.object);
        let key = key.filter(|key| self.disk.pin(key));
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner).pin(ino, key.as_ref());
    }

    /// See [`Content::pin`].
    pub fn unpin(&self, ino: INodeNo) {
        let key = self.observed.get(ino).and_then(|observation| observation.object);
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        if let (true, Some(key)) = (pinned.unpin(ino, key.as_ref()), &key) {
            self.disk.unpin(key);
        }
    }

    /// Forgets what was learnt of an inode that will never be asked for again.
    pub fn forget(&self, ino: INodeNo) {
        self.observed.forget(ino);
        self.handed.lock().unwrap_or_else(PoisonError::into_inner).remove(ino);
        self.served.lock().unwrap_or_else(PoisonError::into_inner).remove(ino);
    }

    /// The same for those that `gone` picks out of the inodes of which something was learnt, shown some at a time, and for
    /// versions kept for patches that the cache folder has no more; how many. Blocks on the disk.
    pub fn forget_gone<E>(&self, gone: impl FnMut(&[INodeNo]) -> Result<Vec<INodeNo>, E>) -> Result<u64, E> {
        Ok(self.observed.forget_gone(gone)? + self.observed.forget_versions(|object| self.disk.has(object)))
    }

    fn pin_landed(&self, ino: INodeNo, key: &ObjectKey) {
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        if pinned.has(ino) {
            pinned.pin(ino, self.disk.pin(key).then_some(key));
        }
    }

    /// Clears remembered failures: a refresh has happened.
    pub fn forget_failures(&self) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).forget();
    }

    /// While this is held, who takes a lock of what is being fetched or was learnt waits. What is known of `known` was committed.
    #[cfg(test)]
    pub(crate) fn locked(&self, known: &[INodeNo]) -> impl Sized {
        let in_flight = self.in_flight.lock().unwrap();
        let kept = (self.failures.lock().unwrap(), self.cooldowns.lock().unwrap(), self.handed.lock().unwrap());
        let others = (self.ends.lock().unwrap(), self.pinned.lock().unwrap(), self.package_penalties.lock().unwrap());
        (in_flight, kept, others, self.observed.locked(known))
    }

    /// Writes out what is pending; called once at the end of a mount.
    pub async fn close(&self) {
        let (disk, observed) = (Arc::clone(&self.disk), Arc::clone(&self.observed));
        let closing = tokio::task::spawn_blocking(move || {
            disk.close();
            observed.close();
        });
        // It cannot be reported to anybody any more.
        let _ = closing.await;
    }
}
