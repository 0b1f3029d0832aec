//! Objects on disk: written aside, verified, renamed; checked block by block whenever they are read; evicted by age.
//!
//! ```text
//! FOLDER/objects/XX/KEY    whole objects (`object` draws their format), XX being the last two bytes of KEY
//!        tmp/KEY           an object being written, flock'ed by its writer
//!        tmp/KEY.present   what is present of it (`sidecar` draws its format)
//!        pins/PID/KEY      hard links to objects that a process keeps from eviction; PID is flock'ed by it
//!        recency/          last use and size of all files (`recency` draws its format)
//!        aside/            folders of somebody's that lay where a file belongs
//! ```
//!
//! Any number of mounts and processes share a folder. What they rely on: a file appears below `objects/` by a rename
//! when it is complete; eviction only unlinks, so that open descriptors and pins read on; the records in `recency/` are
//! never trusted over the files.

mod beside;
mod cache;
mod direct;
mod environment;
mod foreign;
mod inventory;
mod key;
mod lag;
mod object;
mod opening;
mod partial;
mod ranges;
mod recency;
mod sidecar;
#[cfg(test)]
mod tests;
mod uncached;
mod victims;

pub use beside::allocated_below;
pub use direct::PAGE;
pub use foreign::PutAway;
pub use inventory::{Inventory, Removed};
pub use key::ObjectKey;
pub use object::{Damaged, Object};
pub use partial::Partial;
pub use victims::{Moment, Victims};

pub(super) use cache::make_folder;
pub(super) use environment::{Environment, each_value};

use cache::{Cache, FreeSpace, allocated, lock, object_name, same_file};
use opening::{PARTIALS, PinFolder};
use recency::Recency;
use sidecar::Sidecar;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Bytes of a block, the unit that is checked: reads that do not begin and end on its multiples read more than they return.
pub const BLOCK: u64 = 128 << 10;

/// The quota where none is given, unless a tenth of the free space is less.
const DEFAULT_QUOTA: u64 = 10 << 30;

/// What a cache folder holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Whole objects.
    pub objects: u64,
    /// Bytes in allocated blocks: objects, partial objects, the recency environment, and what else counts
    /// ([`Store::count_beside`]).
    pub bytes: u64,
    /// Bytes that the folder may take.
    pub quota: u64,
}

/// What came of [`Store::evict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// Nothing was here.
    Absent,
    /// So many bytes, in allocated blocks, are free again, or will be when the last reader closes it.
    Dropped(u64),
    /// Some process has it pinned, or writes it.
    Kept,
}

/// Why something cannot be kept. None of them hinders reading from the Source.
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
    /// The recency environment cannot be used.
    #[error("the environment {path} failed", path = .path.display())]
    Recency {
        /// Its folder.
        path: PathBuf,
        /// The answer.
        #[source]
        cause: heed::Error,
    },
    /// An object cannot be committed: not every byte of its length was written, or some beyond it.
    #[error("{key} has {present} bytes, its length is {length}")]
    Incomplete {
        /// The object.
        key: ObjectKey,
        /// Bytes present from the start without a gap.
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

/// The objects of a cache folder, which any number of mounts and processes may share.
///
/// Lock order: `threads` and `pinned` are never held together, nor while a lock of `Cache` is taken.
pub struct Store {
    cache: Arc<Cache>,
    pins: PinFolder,
    /// Hashes of the keys with a link in `pins`.
    pinned: Mutex<HashSet<u64>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Store {
    /// Opens a cache folder, made where missing, for this process.
    ///
    /// `quota`: bytes that all of the folder may take; `None`: 10 GiB or a tenth of the free space, whichever is smaller.
    /// `reserve`: bytes to leave free on the file system. Clears what dead processes left behind, and starts two threads.
    pub fn open(folder: &Path, quota: Option<u64>, reserve: u64) -> Result<Arc<Store>, StoreError> {
        let asked = folder.to_owned();
        Store::open_on(folder, quota, reserve, Box::new(move || free_space(&asked)))
    }

    fn open_on(folder: &Path, quota: Option<u64>, reserve: u64, free: FreeSpace) -> Result<Arc<Store>, StoreError> {
        opening::make_folders(folder)?;
        // One process at a time clears up and makes environments. It ends with the descriptor.
        let whole = File::open(folder).map_err(io_error(folder))?;
        opening::lock(&whole).map_err(io_error(folder))?;
        let (pins, died) = opening::open_pins(&folder.join("pins"))?;
        let environment = folder.join("recency");
        let (recency, anew) =
            Recency::open(&environment, died).map_err(|cause| StoreError::Recency { path: environment, cause })?;
        opening::clear_partials(folder, &recency)?;
        drop(whole);

        let quota = quota.unwrap_or_else(|| {
            // What the cache holds already counts as free: a remount must not shrink it.
            let held = recency.sums().unwrap_or_default().bytes;
            free().map_or(DEFAULT_QUOTA, |free| (free.saturating_add(held) / 10).min(DEFAULT_QUOTA))
        });
        let cache = Arc::new(Cache::new(folder.to_owned(), quota, reserve, free, recency));
        let disk = Store { cache, pins, pinned: Mutex::default(), threads: Mutex::default() };
        disk.spawn("disk-committer", |cache| cache.run_committer())?;
        if died || anew {
            disk.spawn("disk-rescan", |cache| opening::rescan(&cache))?;
        }
        Ok(Arc::new(disk))
    }

    /// Counts what lies below `folder`, which is not the cache's own, in the quota too, up to half of it. Measured in the
    /// background, soon and then each minute.
    pub fn count_beside(&self, folder: &Path) {
        self.cache.beside.count(folder);
    }

    fn spawn(&self, name: &str, work: impl FnOnce(Arc<Cache>) + Send + 'static) -> Result<(), StoreError> {
        let cache = Arc::clone(&self.cache);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || work(cache));
        lock(&self.threads).push(thread.map_err(io_error(&self.cache.folder))?);
        Ok(())
    }

    /// The whole object of that name, or `None`: absent, or not whole and so removed. Opens a file at most; never waits.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.cache.get(key, || self.paths(key))
    }

    /// The same for who only looks: it does not count as a use, and nothing is kept open for it.
    pub fn peek(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.cache.peek(key, self.paths(key))
    }

    /// Whether it is here, as far as that can be told without opening a file.
    pub fn has(&self, key: &ObjectKey) -> bool {
        self.cache.has(key, self.paths(key))
    }

    /// Where it may lie.
    fn paths(&self, key: &ObjectKey) -> impl Iterator<Item = PathBuf> {
        let pinned = lock(&self.pinned).contains(&key.hash()).then(|| self.pins.path.join(key.as_str()));
        std::iter::once(self.cache.path(&object_name(key))).chain(pinned)
    }

    /// Starts an object anew; drops what [`Store::resume`] would have found. `length`: bytes expected, where known.
    /// [`StoreError::Full`] at once where that cannot fit ([`Store::could_hold`]).
    ///
    /// Where the same object is being written already, by whatever process, both go on and the last commit stays:
    /// same key, same bytes.
    pub fn begin(&self, key: &ObjectKey, length: Option<u64>) -> Result<Partial, StoreError> {
        self.begin_for(key, length, Victims::any())
    }

    /// [`Store::begin`] of an object for which only `victims` may go.
    pub fn begin_for(&self, key: &ObjectKey, length: Option<u64>, victims: Victims) -> Result<Partial, StoreError> {
        self.could_hold(length)?;
        let name = format!("{PARTIALS}{key}");
        let mut made = self.create_locked(&name, &victims)?;
        let resumable = made.is_some();
        let mut name = name;
        while made.is_none() {
            // Not a key's name, so nobody resumes it and the next open clears it away.
            name = format!("{PARTIALS}{key}~{}-{}", std::process::id(), self.cache.next_number());
            made = self.create_locked(&name, &victims)?;
        }
        let Some(file) = made else { return Err(self.cache.full()) };
        let path = self.cache.path(&name);
        let (before, is_empty) = file.metadata().map_or((0, false), |it| (it.blocks() * 512, it.len() == 0));
        Sidecar::remove(&path);
        // Not where there is nothing to cut: ext4 writes out at its close whatever was truncated (`auto_da_alloc`).
        if !is_empty {
            file.set_len(0).map_err(io_error(&path))?;
        }
        self.cache.charge(&name, before, 0);
        let sidecar = Sidecar { length, ..Sidecar::default() };
        let partial = Partial::new(Arc::clone(&self.cache), key.clone(), name.into(), file, resumable, 0, sidecar);
        Ok(partial.with_victims(victims))
    }

    /// [`StoreError::Full`] where an object of `length` bytes would have no room, were all else evicted.
    pub fn could_hold(&self, length: Option<u64>) -> Result<(), StoreError> {
        match length {
            Some(length) if !self.cache.could_hold(object::footprint(length)) => Err(self.cache.full()),
            _ => Ok(()),
        }
    }

    /// Opens or makes a file and locks it; `None`: another one holds its lock.
    fn create_locked(&self, name: &str, victims: &Victims) -> Result<Option<File>, StoreError> {
        let path = self.cache.path(name);
        loop {
            if foreign::is_in_the_way(&path) {
                self.cache.put_away(&path).map_err(io_error(&path))?;
            }
            let mut file = None;
            let made = self.cache.retry_when_full(victims, || {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(false).mode(0o600);
                options.custom_flags(libc::O_NOFOLLOW);
                file = Some(match options.open(&path) {
                    // The cache was emptied below the mount.
                    Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                        path.parent().map_or(Ok(()), make_folder)?;
                        options.open(&path)?
                    }
                    opened => opened?,
                });
                Ok(())
            });
            match made {
                Err(cause) if is_full(&cause) => return Err(self.cache.full()),
                outcome => outcome.map_err(io_error(&path))?,
            }
            let Some(file) = file.filter(flock) else { return Ok(None) };
            // Between open and lock another process may have cleared it away: then the lock is on a nameless file.
            if same_file(&file, &path) {
                return Ok(Some(file));
            }
        }
    }

    /// A partial that an earlier mount or fetch left, with its validator and whole blocks; `None`: start anew.
    /// Its blocks are checked when [`Partial::read_at`] reads them.
    pub fn resume(&self, key: &ObjectKey) -> Option<Partial> {
        self.resume_for(key, Victims::any())
    }

    /// [`Store::resume`] of an object for which only `victims` may go.
    pub fn resume_for(&self, key: &ObjectKey, victims: Victims) -> Option<Partial> {
        let name = format!("{PARTIALS}{key}");
        let path = self.cache.path(&name);
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(&path).ok()?;
        if !flock(&file) || !same_file(&file, &path) {
            return None;
        }
        let sidecar = Sidecar::read(&path, key)?;
        let charged = allocated(&path)?;
        self.cache.charge(&name, charged, charged);
        let partial = Partial::new(Arc::clone(&self.cache), key.clone(), name.into(), file, true, charged, sidecar);
        Some(partial.with_victims(victims))
    }

    /// Removes an object whose bytes turned out not to be the Source's. Open readers keep their descriptors.
    pub fn remove(&self, key: &ObjectKey) {
        self.unpin(key);
        self.cache.remove(key);
    }

    /// Evicts what was used least recently, so many bytes, for whoever writes below `folder`. How many went: none where that is
    /// another file system, or where all that is here would not do.
    pub fn give_up(&self, folder: &Path, bytes: u64) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
        let is_beside = device(folder).is_some_and(|there| Some(there) == device(&self.cache.folder));
        if is_beside { self.cache.give_up(bytes) } else { 0 }
    }

    /// Drops the object, and what is there of it while nobody writes it, as an eviction would: a pin keeps it, and who has it
    /// open reads on.
    pub fn evict(&self, key: &ObjectKey) -> Evicted {
        self.cache.evict_one(key)
    }

    /// Keeps the object, if it is here, readable by this process until [`Store::unpin`], whoever evicts. Not counted:
    /// one `unpin` ends any number of pins. False: nothing was here to pin.
    pub fn pin(&self, key: &ObjectKey) -> bool {
        let link = self.pins.path.join(key.as_str());
        let here = match std::fs::hard_link(self.cache.path(&object_name(key)), link) {
            Ok(()) => true,
            Err(cause) => cause.kind() == io::ErrorKind::AlreadyExists,
        };
        if here {
            lock(&self.pinned).insert(key.hash());
        }
        here
    }

    /// See [`Store::pin`].
    pub fn unpin(&self, key: &ObjectKey) {
        if lock(&self.pinned).remove(&key.hash()) {
            let _ = std::fs::remove_file(self.pins.path.join(key.as_str()));
        }
    }

    /// Bytes that the folder may take.
    pub fn quota(&self) -> u64 {
        self.cache.quota
    }

    /// What the folder holds, all processes counted, as far as they have written it down. What that takes beyond the quota is evicted.
    pub fn usage(&self) -> Usage {
        self.cache.write_down();
        self.glance()
    }

    /// The same without writing anything down first: objects of the last few seconds may not be counted yet.
    pub fn glance(&self) -> Usage {
        Usage { objects: self.cache.sums().objects, bytes: self.cache.bytes(), quota: self.cache.quota }
    }

    /// Writes out what is pending and stops the threads; idempotent. Pins end. Dropping does the same.
    pub fn close(&self) {
        self.cache.stop();
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            if thread.join().is_err() {
                tracing::error!("a thread of the cache panicked");
            }
        }
        // A folder left behind would tell the next open that this process died.
        lock(&self.pinned).clear();
        if let Err(cause) = std::fs::remove_dir_all(&self.pins.path)
            && cause.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.pins.path.display(), %cause, "pins cannot be removed");
        }
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

/// Whether the file system or its quota has no room.
fn is_full(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Locks a file or folder until its descriptor is closed; false: another descriptor holds the lock.
fn flock(file: &File) -> bool {
    // SAFETY: the descriptor is open; the call touches no memory of ours.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// Bytes that an unprivileged process may still write to the file system of a folder.
pub fn free_space(folder: &Path) -> io::Result<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: all zeros is a valid statvfs, a plain C struct of numbers.
    let mut answer: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` is a C string and `answer` a statvfs, both living through the call.
    match unsafe { libc::statvfs(path.as_ptr(), &mut answer) } {
        0 => Ok(answer.f_bavail.saturating_mul(answer.f_frsize)),
        _ => Err(io::Error::last_os_error()),
    }
}
