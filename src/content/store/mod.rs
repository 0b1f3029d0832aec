//! Objects on disk: written to a temporary file, verified, renamed; checked block by block at each read; evicted by last use.
//!
//! ```text
//! FOLDER/objects/XX/KEY    whole objects (`object` draws their format), XX being the last two bytes of KEY
//!        tmp/KEY           an object being written (`partial` draws its format), flock'ed by its writer
//!        pins/PID-N/KEY    hard links to objects that a process keeps from eviction; PID-N is flock'ed by it
//!        recency/          last use and size of all files (`index` draws its format)
//!        aside/            folders with files of a user that lay where a file of the cache belongs
//! ```
//!
//! Any number of mounts and processes share a folder, by these rules: a file appears below `objects/` by a rename when it is
//! complete; eviction only unlinks, so that open descriptors and pins read on; the index is never trusted over the files.

mod cache;
mod environment;
mod files;
mod index;
mod inventory;
mod key;
mod object;
mod opening;
mod partial;
mod pins;
mod policy;
mod removal;
#[cfg(test)]
mod tests;

pub use files::{allocated_below, free_space};
pub use inventory::Inventory;
pub use key::ObjectKey;
pub use object::{Damaged, Object, decode_footer, encode_footer};
pub use partial::Partial;
pub use policy::{EvictionPolicy, Moment};
pub use removal::Removal;

pub(super) use environment::{Environment, each_value};
pub(super) use files::{lock, make_folder};

pub use crate::content::fixity::BLOCK;
use crate::document::Timestamp;
use crate::platform::descriptors::opened;
use cache::{Cache, FreeSpace};
use files::{PARTIALS, allocated, flock, same_file};
use index::LruIndex;
use partial::Tail;
use pins::PinFolder;
use removal::is_unexpected;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The quota where none is given, unless a tenth of the free space is less.
const DEFAULT_QUOTA: u64 = 10 << 30;

/// Names that are tried for writers of one object at once.
const MOST_WRITERS: u32 = 16;

/// Time that another process may take to clear the folder and make environments in it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Usage of a cache folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Whole objects.
    pub objects: u64,
    /// Bytes in allocated blocks: objects, partials, the index, and a folder that counts too ([`Cache::count_folder`]).
    pub bytes: u64,
    /// Bytes that the folder may take.
    pub quota: u64,
}

/// Result of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// The object was not here.
    Absent,
    /// Bytes, in allocated blocks, that are free again, or will be when the last reader closes the object.
    Bytes(u64),
    /// A process has it pinned, or writes it.
    Kept,
}

impl Evicted {
    /// Combines the results for both files.
    #[must_use]
    pub fn and(self, other: Evicted) -> Evicted {
        match (self, other) {
            (Evicted::Kept, _) | (_, Evicted::Kept) => Evicted::Kept,
            (Evicted::Bytes(before), Evicted::Bytes(bytes)) => Evicted::Bytes(before + bytes),
            (Evicted::Absent, evicted) | (evicted, Evicted::Absent) => evicted,
        }
    }
}

/// Why an object cannot be stored. It is read from the Source without being kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Neither quota nor file system has room, after everything that may be evicted was: stream uncached.
    #[error("no room in the cache folder {folder}", folder = .folder.display())]
    Full {
        /// The cache folder.
        folder: PathBuf,
    },
    /// The operating system refused.
    #[error("{path} failed", path = .path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// The answer.
        #[source]
        cause: io::Error,
    },
    /// The LRU index cannot be used.
    #[error("the environment {path} failed", path = .path.display())]
    Index {
        /// Its folder.
        path: PathBuf,
        /// The answer.
        #[source]
        cause: heed::Error,
    },
    /// An object cannot be committed: fewer bytes than its length were appended, or more.
    #[error("{key} has {present} bytes, its length is {length}")]
    Incomplete {
        /// The object.
        key: ObjectKey,
        /// Bytes appended.
        present: u64,
        /// The length given.
        length: u64,
    },
    /// The partial was committed or aborted before.
    #[error("{key} is no longer being written")]
    Finished {
        /// The object.
        key: ObjectKey,
    },
}

/// Why the cache folder cannot be written, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteFailure {
    /// When the first write failed.
    pub since: Timestamp,
    /// The latest failure, with its causes.
    pub why: String,
}

/// The objects of a cache folder, which any number of mounts and processes may share. It owns the threads that look after the
/// cache, and begins what is written to it; all else is asked of the [`Cache`] itself.
pub struct Store {
    cache: Arc<Cache>,
    /// Never held while a lock of `Cache` is taken.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Store {
    /// Opens a cache folder, made where missing, for this process.
    ///
    /// `quota`: bytes that all of the folder may take; `None`: 10 GiB or a tenth of the free space, whichever is smaller.
    /// `reserve`: bytes to leave free on the file system. Clears what dead processes left behind, and starts two threads.
    pub fn open(folder: &Path, quota: Option<u64>, reserve: u64) -> Result<Arc<Store>, StoreError> {
        let asked = folder.to_owned();
        Store::open_on(folder, quota, reserve, Box::new(move || free_space(&asked)), PATIENCE)
    }

    fn open_on(
        folder: &Path,
        quota: Option<u64>,
        reserve: u64,
        free: FreeSpace,
        patience: Duration,
    ) -> Result<Arc<Store>, StoreError> {
        opening::make_folders(folder)?;
        // One process at a time clears the folder and makes environments. The lock ends with the descriptor.
        let whole = File::open(folder).map_err(io_error(folder))?;
        opening::lock_folder(&whole, patience).map_err(io_error(folder))?;
        let (pins, died) = PinFolder::open(&folder.join("pins"))?;
        let path = folder.join("recency");
        let (index, is_new) = LruIndex::open(&path, died).map_err(|cause| StoreError::Index { path, cause })?;
        opening::clear_partials(folder, &index);
        drop(whole);

        let quota = quota.unwrap_or_else(|| {
            // What the cache holds already counts as free: a remount must not shrink it.
            let held = index.sums().unwrap_or_default().bytes;
            free().map_or(DEFAULT_QUOTA, |free| (free.saturating_add(held) / 10).min(DEFAULT_QUOTA))
        });
        let cache = Cache::new(folder, (quota, reserve), free, index, pins);
        let store = Store { cache, threads: Mutex::default() };
        store.spawn("store-committer", |cache| cache.run_committer())?;
        if died || is_new {
            store.spawn("store-rescan", |cache| opening::rescan(&cache))?;
        }
        Ok(Arc::new(store))
    }

    fn spawn(&self, name: &str, work: impl FnOnce(Arc<Cache>) + Send + 'static) -> Result<(), StoreError> {
        let cache = Arc::clone(&self.cache);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || work(cache));
        lock(&self.threads).push(thread.map_err(io_error(&self.cache.folder))?);
        Ok(())
    }

    /// Bytes that the partial of `key` takes, without opening it.
    pub fn partial_bytes(&self, key: &ObjectKey) -> u64 {
        allocated(&self.cache.path(&key.partial_name())).unwrap_or(0)
    }

    /// Begins an object at its first byte; drops what [`Store::resume`] would have found. `length`: bytes expected, where known.
    /// [`StoreError::Full`] at once where that cannot fit ([`Store::could_hold`]).
    ///
    /// Where the same object is being written already, by any process, both go on and the last commit stays: same key, same bytes.
    pub fn begin(&self, key: &ObjectKey, length: Option<u64>, policy: EvictionPolicy) -> Result<Partial, StoreError> {
        self.could_hold(length)?;
        let mut name = key.partial_name();
        let mut others = 0;
        let file = loop {
            if let Some(file) = self.create_locked(&name, policy)? {
                break file;
            }
            // Not a key's name: no resume finds it, and the next open removes it.
            others += 1;
            if others > MOST_WRITERS {
                return Err(io_error(self.cache.path(&name))(io::ErrorKind::ResourceBusy.into()));
            }
            name = format!("{PARTIALS}{key}~{}-{others}", std::process::id());
        };
        let path = self.cache.path(&name);
        let (before, is_empty) = file.metadata().map_or((0, false), |it| (it.blocks() * 512, it.len() == 0));
        // Not where there is nothing to cut: ext4 writes out at its close what was truncated (`auto_da_alloc`).
        if !is_empty {
            file.set_len(0).map_err(io_error(&path))?;
        }
        self.cache.charge(&name, before, 0);
        Ok(Partial::new(Arc::clone(&self.cache), key.clone(), name.into(), file, others == 0, length))
    }

    /// [`StoreError::Full`] where an object of `length` bytes would have no room, were all else evicted.
    pub fn could_hold(&self, length: Option<u64>) -> Result<(), StoreError> {
        match length {
            Some(length) if !self.cache.could_hold(object::footprint(length)) => Err(self.cache.full()),
            _ => Ok(()),
        }
    }

    /// Opens or makes a file and locks it; `None`: another one holds its lock.
    fn create_locked(&self, name: &str, policy: EvictionPolicy) -> Result<Option<File>, StoreError> {
        let path = self.cache.path(name);
        loop {
            if is_unexpected(&path) {
                self.cache.remove_unexpected(&path).map_err(io_error(&path))?;
            }
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
            let open = || match options.open(&path) {
                // The cache was emptied below the mount.
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                    path.parent().map_or(Ok(()), make_folder)?;
                    options.open(&path)
                }
                opened => opened,
            };
            let file = self.cache.retry_when_full(policy, &path, || opened(open))?;
            if !flock(&file).map_err(io_error(&path))? {
                return Ok(None);
            }
            // Between open and lock another process may have cleared it away: then the lock is on a nameless file.
            if same_file(&file, &path) {
                return Ok(Some(file));
            }
        }
    }

    /// A partial that an earlier mount or download left, up to its last good block, if `accept` takes its validator and length;
    /// what that answers. One that is refused is removed. Its other blocks are checked when [`Partial::read_at`] reads them.
    pub fn resume<T>(&self, key: &ObjectKey, accept: impl FnOnce(&str, u64) -> Option<T>) -> Option<(Partial, T)> {
        let name = key.partial_name();
        let path = self.cache.path(&name);
        let open = || OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(&path);
        let file = opened(open).ok()?;
        if !flock(&file).unwrap_or(false) || !same_file(&file, &path) {
            return None;
        }
        let (tail, checks) = Tail::read(&file, key)?;
        let accepted = accept(&tail.validator, tail.length);
        let charged = allocated(&path)?;
        self.cache.charge(&name, charged, charged);
        let partial = Partial::new(Arc::clone(&self.cache), key.clone(), name.into(), file, true, None);
        let partial = partial.resumed(tail, checks, charged);
        if accepted.is_none() {
            partial.abort();
        }
        Some((partial, accepted?))
    }

    /// Keeps the object, if it is here, readable by this process until [`Store::unpin`], even if another evicts it. Not counted:
    /// one `unpin` ends any number of pins. False: it was not here.
    pub fn pin(&self, key: &ObjectKey) -> bool {
        self.cache.pins.add(key, &self.cache.path(&key.object_name()))
    }

    /// See [`Store::pin`].
    pub fn unpin(&self, key: &ObjectKey) {
        self.cache.pins.remove(key);
    }

    /// Returns what the folder holds, all processes counted. What is pending is recorded first, and what is beyond the quota evicted.
    pub fn usage(&self) -> Usage {
        self.cache.write_down();
        self.recorded_usage()
    }

    /// Returns the usage without recording anything first: objects of the last few seconds may not be counted yet.
    pub fn recorded_usage(&self) -> Usage {
        Usage { objects: self.cache.sums().objects, bytes: self.cache.bytes(), quota: self.cache.quota }
    }

    /// Records what is pending and stops the threads; idempotent. Pins end. Dropping does the same.
    pub fn close(&self) {
        self.cache.stop();
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            if thread.join().is_err() {
                tracing::error!("a thread of the cache panicked");
            }
        }
        self.cache.pins.close();
    }
}

impl Deref for Store {
    type Target = Cache;

    fn deref(&self) -> &Cache {
        &self.cache
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

fn io_error(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.into();
    |cause| StoreError::Io { path, cause }
}
