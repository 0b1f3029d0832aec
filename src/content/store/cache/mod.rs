//! The cache folder as one process sees it: objects by name, the quota, and what is still to be recorded and synced.

mod failure;
mod open;
mod quota;

use super::files::{
    OBJECTS, allocated, allocated_below, lock, make_folder, open_to_read, open_to_read_in_memory, same_file,
};
use super::index::LruIndex;
use super::object::{Object, OnDamage};
use super::pins::PinFolder;
use super::policy::{EvictionPolicy, Moment};
use super::removal::{self, Removal, is_unexpected};
use super::{Evicted, ObjectKey, StoreError};
use crate::platform::descriptors;
use failure::WriteFailures;
use open::OpenObjects;
use quota::{Pending, Released};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Between two rounds of the committer.
const TICK: Duration = Duration::from_secs(5);
/// The other counted folder is measured again after this time: a catalog grows once in minutes.
const MEASURED_EVERY: Duration = Duration::from_secs(60);
/// Objects synced in one round of the committer. The kernel writes others back within half a minute, which a power loss may undo. Each
/// holds a descriptor until then.
const MOST_SYNCED: usize = 64;
/// Objects that are kept open, each with a descriptor.
const MOST_OPEN: usize = 256;

/// How the free bytes of the file system are asked.
pub(super) type FreeSpace = Box<dyn Fn() -> io::Result<u64> + Send + Sync>;

/// The cache folder for its readers: the state that [`super::Store`] and its partials share.
///
/// Invariants: `Pending::bytes` is what has been charged and is not in the index yet (over-estimated while a flush runs, never under);
/// every file below `objects/` was complete when it got its name; a file that is locked is never removed by eviction; a use of an
/// object is recorded at the next flush, or when it is kept open no longer, unless it is used in that very moment.
/// Lock order: `evicting`, `flushing`, then one of `pending`, that of `open`, that of `pins`, `unsynced`, `stopped`, which are never
/// held together; those of `failures` and `unremovable` alone. A reader of an object that is kept open takes that of `open` alone.
pub struct Cache {
    pub(super) folder: PathBuf,
    /// Bytes that the folder may take.
    pub quota: u64,
    reserve: u64,
    free_space: FreeSpace,
    pub(super) index: Arc<LruIndex>,
    pub(super) pins: PinFolder,
    on_damage: OnDamage,
    /// A folder that counts in the quota too, and the bytes it took when it was last measured.
    counted: OnceLock<PathBuf>,
    counted_bytes: AtomicU64,
    /// Held by the one thread that evicts.
    evicting: Mutex<Released>,
    /// Held by the one thread that records `pending`.
    flushing: Mutex<()>,
    pending: Mutex<Pending>,
    open: OpenObjects,
    pub(in crate::content) failures: WriteFailures,
    /// Damaged objects whose files cannot be removed.
    unremovable: Mutex<HashSet<ObjectKey>>,
    unsynced: Mutex<Vec<Arc<Object>>>,
    stopped: Mutex<bool>,
    wake: Condvar,
}

impl Cache {
    pub(super) fn new(
        folder: &Path,
        (quota, reserve): (u64, u64),
        free_space: FreeSpace,
        index: Arc<LruIndex>,
        pins: PinFolder,
    ) -> Arc<Cache> {
        let cache = Arc::new_cyclic(|cache: &Weak<Cache>| {
            let cache = Weak::clone(cache);
            Cache {
                folder: folder.to_owned(),
                quota,
                reserve,
                free_space,
                index,
                pins,
                on_damage: Arc::new(move |object| {
                    if let Some(cache) = cache.upgrade() {
                        cache.discard(object);
                    }
                }),
                counted: OnceLock::new(),
                counted_bytes: AtomicU64::new(0),
                evicting: Mutex::new(Released::nothing()),
                flushing: Mutex::default(),
                pending: Mutex::default(),
                open: OpenObjects::new(descriptors::share(MOST_OPEN, 4)),
                failures: WriteFailures::default(),
                unremovable: Mutex::default(),
                unsynced: Mutex::default(),
                stopped: Mutex::default(),
                wake: Condvar::new(),
            }
        });
        let spare = Arc::downgrade(&cache);
        descriptors::on_shortage(move || spare.upgrade().inspect(|cache| cache.close_half()).is_some());
        cache
    }

    /// Closes half of the objects that are kept open. The next read of one opens it again.
    fn close_half(&self) {
        self.open.pop_half().iter().for_each(|object| self.note_use(object));
        self.sync();
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(super) fn full(&self) -> StoreError {
        StoreError::Full { folder: self.folder.clone() }
    }

    pub(super) fn on_damage(&self) -> OnDamage {
        Arc::clone(&self.on_damage)
    }

    /// Counts the files below `folder`, which is not the cache's own, in the quota too, up to half of it. Measured in the
    /// background, soon and then each minute.
    pub fn count_folder(&self, folder: &Path) {
        // A second one would be of the same mount.
        let _ = self.counted.set(folder.to_owned());
    }

    /// Measures the folder that counts too ([`Cache::count_folder`]); whether there is one.
    pub fn measure(&self) -> bool {
        let Some(folder) = self.counted.get() else { return false };
        self.counted_bytes.store(allocated_below(folder), Ordering::Relaxed);
        true
    }

    /// Returns the paths at which an object may be.
    fn paths(&self, key: &ObjectKey) -> [PathBuf; 2] {
        [self.path(&key.object_name()), self.pins.path(key)]
    }

    /// The whole object of that name, or `None`: absent, or not whole and so removed. Opens a file at most.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        let object = match self.whole_open(key) {
            Some(object) => object,
            None => {
                let object = self.open_whole(key)?;
                self.keep_open(&object);
                object
            }
        };
        object.use_at(Moment::now());
        Some(object)
    }

    /// Gets an object without waiting for the disk: an error where it has to be waited for.
    pub fn get_in_memory(&self, key: &ObjectKey) -> io::Result<Option<Arc<Object>>> {
        let object = match self.whole_open(key) {
            Some(object) => object,
            None => {
                let Some(object) = self.open_in_memory(key)? else { return Ok(None) };
                self.keep_open(&object);
                object
            }
        };
        object.use_at(Moment::now());
        Ok(Some(object))
    }

    fn open_in_memory(&self, key: &ObjectKey) -> io::Result<Option<Arc<Object>>> {
        for path in self.paths(key) {
            match open_to_read_in_memory(&path) {
                Ok(file) => {
                    let object = Object::open_in_memory(key, file, Some(self.on_damage()));
                    // A reader that waits for the disk finds out what else it is.
                    return object.map(Arc::new).map(Some).ok_or_else(|| io::ErrorKind::WouldBlock.into());
                }
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(None)
    }

    /// Gets an object without counting this as a use; it is not kept open.
    pub fn peek(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.whole_open(key).or_else(|| self.open_whole(key))
    }

    /// Returns whether there is a file for it, which is not opened.
    pub fn has(&self, key: &ObjectKey) -> bool {
        let is_file = |path: PathBuf| std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file());
        self.whole_open(key).is_some() || self.paths(key).into_iter().any(is_file)
    }

    fn whole_open(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.open.get(key).filter(|object| !object.is_damaged())
    }

    fn keep_open(&self, object: &Arc<Object>) {
        if let Some(closed) = self.open.put(Arc::clone(object)) {
            self.note_use(&closed);
        }
    }

    /// Opens the object; a file under its name that is not it is removed.
    fn open_whole(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        if lock(&self.unremovable).contains(key) {
            return None;
        }
        for path in self.paths(key) {
            match open_to_read(&path) {
                Ok(file) => match Object::open(key, file, Some(self.on_damage())) {
                    Ok(Some(object)) => return Some(Arc::new(object)),
                    Ok(None) => {}
                    // It may be whole. A download that ends replaces it.
                    Err(cause) => {
                        tracing::warn!(path = %path.display(), %cause, "a cached file cannot be read now");
                        continue;
                    }
                },
                Err(_) if is_unexpected(&path) => {}
                Err(_) => continue,
            }
            // What cannot be removed is logged, and met again when the object is to lie there.
            let _ = self.remove_unexpected(&path);
            self.note_gone(&key.object_name(), 0);
        }
        None
    }

    /// Removes what is no whole object or partial of ours, and logs what became of it.
    pub(super) fn remove_unexpected(&self, path: &Path) -> io::Result<Removal> {
        let removed = removal::remove(&self.folder, path);
        match &removed {
            Ok(removal) => tracing::warn!(path = %path.display(), "an incomplete file in the cache: {removal}"),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => {
                tracing::error!(path = %path.display(), %cause, "an incomplete file in the cache cannot be removed: remove it by hand");
            }
        }
        removed
    }

    /// Gives a complete file its place: `name` is its path until now, `charged` what it was charged there.
    pub(super) fn install(
        &self,
        name: &str,
        object: &Arc<Object>,
        (charged, begun): (u64, Instant),
        policy: EvictionPolicy,
    ) -> Result<(), StoreError> {
        let object_name = object.key().object_name();
        let (from, to) = (self.path(name), self.path(&object_name));
        let renamed = self.retry_when_full(policy, &to, || {
            std::fs::rename(&from, &to).or_else(|_| {
                self.clear_the_way(&to)?;
                std::fs::rename(&from, &to)
            })
        });
        let is_named = match renamed {
            // The cache was emptied below the mount: the object stays as long as it is kept open.
            Err(StoreError::Io { .. }) if !from.exists() => false,
            renamed => renamed.map(|()| true)?,
        };
        self.failures.ended(begun);
        lock(&self.unremovable).remove(object.key());
        self.note_gone(name, charged);
        object.use_at(Moment::now());
        self.keep_open(object);
        if is_named {
            self.charge(&object_name, 0, allocated(&to).unwrap_or(charged));
            let mut unsynced = lock(&self.unsynced);
            if unsynced.len() < descriptors::share(MOST_SYNCED, 8) {
                unsynced.push(Arc::clone(object));
            }
        }
        Ok(())
    }

    /// Makes the folder of an object that is to lie at `path`, and removes what is unexpected there.
    fn clear_the_way(&self, path: &Path) -> io::Result<()> {
        if is_unexpected(path) {
            self.remove_unexpected(path)?;
        }
        let Some(shard) = path.parent() else { return Ok(()) };
        if std::fs::symlink_metadata(shard).is_ok_and(|metadata| !metadata.is_dir()) {
            self.remove_unexpected(shard)?;
        }
        make_folder(shard)
    }

    /// Removes a damaged object, where the file of its name is still it.
    fn discard(&self, object: &Object) {
        let key = object.key();
        self.open.pop(key, |open| open.is_damaged());
        if same_file(object.file(), &self.pins.path(key)) {
            self.pins.remove(key);
        }
        if same_file(object.file(), &self.path(&key.object_name())) {
            self.remove(key);
        }
        // As on a disk that has become read-only.
        if self.paths(key).iter().any(|path| same_file(object.file(), path)) {
            lock(&self.unremovable).insert(key.clone());
        }
    }

    pub(super) fn remove(&self, key: &ObjectKey) {
        let name = key.object_name();
        self.close_object(key);
        let bytes = allocated(&self.path(&name));
        self.unlink(&name);
        self.note_gone(&name, bytes.unwrap_or(0));
    }

    /// Evicts the object, and its partial if no process writes it; not what is pinned. Open readers keep their descriptors.
    pub fn evict(&self, key: &ObjectKey) -> Evicted {
        let remove = |name: String| {
            let evicted = self.evict_file(&name);
            if let Evicted::Bytes(bytes) = evicted {
                self.note_gone(&name, bytes);
            }
            evicted
        };
        remove(key.object_name()).and(remove(key.partial_name()))
    }

    /// Removes a file unless a process has it pinned or writes it.
    fn evict_file(&self, name: &str) -> Evicted {
        // One that cannot be removed stays.
        let evicted = removal::evict_file(&self.folder, name).unwrap_or(Evicted::Kept);
        if evicted != Evicted::Kept {
            if let Some(key) = name.rsplit('/').next().filter(|_| name.starts_with(OBJECTS)).and_then(ObjectKey::parse)
            {
                self.close_object(&key);
            }
        }
        evicted
    }

    pub(super) fn unlink(&self, name: &str) {
        let path = self.path(name);
        if let Err(cause) = std::fs::remove_file(&path) {
            if cause.kind() != io::ErrorKind::NotFound {
                tracing::warn!(path = %path.display(), %cause, "cannot be removed from the cache");
            }
        }
    }

    /// Closes an object whose file goes and need not be synced any more: its blocks are free when no reader has it open.
    fn close_object(&self, key: &ObjectKey) {
        self.open.pop(key, |_| true);
        let mut unsynced = lock(&self.unsynced);
        let (gone, left) = std::mem::take(&mut *unsynced).into_iter().partition(|object| object.key() == key);
        *unsynced = left;
        // Closed without the lock.
        drop(unsynced);
        drop::<Vec<_>>(gone);
    }

    /// Syncs, records and makes room, until stopped.
    pub(super) fn run_committer(&self) {
        let mut measured: Option<Instant> = None;
        loop {
            let stopped = lock(&self.stopped);
            let stopped = match *stopped {
                true => true,
                false => *self.wake.wait_timeout(stopped, TICK).unwrap_or_else(PoisonError::into_inner).0,
            };
            self.sync();
            self.close_unlinked();
            if stopped {
                return self.flush();
            }
            if measured.is_none_or(|at| at.elapsed() >= MEASURED_EVERY) && self.measure() {
                measured = Some(Instant::now());
            }
            self.write_down();
        }
    }

    /// Records what is pending, and makes room for what the records grow by. Others may have filled folder or file system, too.
    pub(super) fn write_down(&self) {
        self.flush();
        // The next writer gets the error.
        let _ = self.make_room(0, EvictionPolicy::Any);
    }

    pub(super) fn stop(&self) {
        *lock(&self.stopped) = true;
        self.wake.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        *lock(&self.stopped)
    }

    pub(super) fn sync(&self) {
        let unsynced = std::mem::take(&mut *lock(&self.unsynced));
        let shards: HashSet<&str> = unsynced.iter().map(|object| object.key().shard()).collect();
        unsynced.iter().for_each(|object| object.sync());
        for shard in shards {
            let _ = File::open(self.folder.join(OBJECTS).join(shard)).and_then(|folder| folder.sync_all());
        }
    }

    /// Closes objects that another process evicted: their blocks are free only then.
    fn close_unlinked(&self) {
        for object in self.open.all().into_iter().filter(|object| object.is_unlinked()) {
            self.open.pop(object.key(), |open| Arc::ptr_eq(open, &object));
        }
    }
}

impl Drop for Cache {
    /// Partials may outlive the mount's close: what they charged since is recorded with the last of them.
    fn drop(&mut self) {
        self.flush();
    }
}
