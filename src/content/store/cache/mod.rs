//! The cache folder as one process sees it: room, eviction, the hot objects and what is still to be written down.

mod hot;
mod room;

use super::beside::Beside;
use super::foreign::{self, Owners, PutAway};
use super::object::Object;
use super::opening::PARTIALS;
use super::recency::{Change, Changes, Fate, OBJECTS, Recency, Sums, now};
use super::sidecar::Sidecar;
use super::victims::Victims;
use super::{Evicted, ObjectKey, StoreError, flock, io_error, is_full};
use hot::Hot;
use room::Released;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks of the committer.
const TICK: Duration = Duration::from_secs(5);
/// So many pending changes are written down before the next tick.
const MANY_CHANGES: usize = 4096;
/// Likewise one part in so many of the quota, of pending charges, but not less or more than so many bytes: other processes do not see them
/// until then. They are not few, as the disk has to have everything that it was given each time, and who writes a large file meanwhile
/// waits for that.
const MUCH_OF_THE_QUOTA: u64 = 64;
const MANY_BYTES: RangeInclusive<u64> = 16 << 20..=128 << 20;
/// Files without a name that are kept open until the next tick, at most.
const CLOSED_LATER: usize = 64;
/// Objects synced one by one; more at once and the file system is synced whole.
const SYNCED_SINGLY: usize = 64;

/// How the free bytes of the file system are asked.
pub(super) type FreeSpace = Box<dyn Fn() -> io::Result<u64> + Send + Sync>;

/// The state that [`super::Store`], its objects and its partials share.
///
/// Invariants: `Pending::bytes` is what has been charged and is not in the sums yet (over-estimated while a flush runs, never under);
/// every file below `objects/` was complete when it got its name; a file that is locked is never unlinked by eviction; a use of an
/// object is written down at the next flush, or when it is kept open no more, unless it is used in that very moment.
/// Lock order: `evicting`, `flushing`, then one of the lock of `beside`, `pending`, that of `hot`, `unsynced`, `closing`, `stopped`, which
/// are never held together. Who reads an object that is kept open takes none of them.
pub(super) struct Cache {
    pub(super) folder: PathBuf,
    pub(super) quota: u64,
    reserve: u64,
    free_space: FreeSpace,
    /// Of the objects.
    owners: Owners,
    pub(super) recency: Arc<Recency>,
    pub(super) beside: Beside,
    /// Held by the one thread that evicts.
    evicting: Mutex<Released>,
    /// Held by the one thread that writes `pending` down.
    flushing: Mutex<()>,
    pending: Mutex<Pending>,
    hot: Hot,
    unsynced: Mutex<Unsynced>,
    closing: Mutex<Vec<File>>,
    sequence: AtomicU64,
    stopped: Mutex<bool>,
    wake: Condvar,
}

/// What the recency environment does not have yet.
#[derive(Default)]
struct Pending {
    changes: Changes,
    /// Bytes charged less bytes given back.
    bytes: i64,
}

impl Pending {
    /// Whether it is to be written down before the next tick.
    fn is_much(&self, quota: u64) -> bool {
        let bytes = u64::try_from(self.bytes).unwrap_or(0);
        self.changes.len() >= MANY_CHANGES
            || bytes >= (quota / MUCH_OF_THE_QUOTA).clamp(*MANY_BYTES.start(), *MANY_BYTES.end())
    }
}

/// Objects that a power loss may still undo.
#[derive(Default)]
struct Unsynced {
    objects: Vec<Arc<Object>>,
    /// More than are kept open for it.
    many: bool,
}

impl Cache {
    pub(super) fn new(
        folder: PathBuf,
        quota: u64,
        reserve: u64,
        free_space: FreeSpace,
        recency: Arc<Recency>,
    ) -> Cache {
        Cache {
            owners: Owners::of(&folder),
            folder,
            quota,
            reserve,
            free_space,
            recency,
            beside: Beside::default(),
            evicting: Mutex::new(Released { bytes: 0, since: Instant::now() }),
            flushing: Mutex::default(),
            pending: Mutex::default(),
            hot: Hot::default(),
            unsynced: Mutex::default(),
            closing: Mutex::default(),
            sequence: AtomicU64::new(0),
            stopped: Mutex::default(),
            wake: Condvar::new(),
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A number that this process gives once.
    pub(super) fn next_number(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn full(&self) -> StoreError {
        StoreError::Full { folder: self.folder.clone() }
    }

    /// Bytes that everything takes: what all processes wrote down, what this one has not yet, the environment's own, and
    /// what lies beside.
    pub(super) fn bytes(&self) -> u64 {
        let pending = lock(&self.pending).bytes;
        let beside = self.beside.bytes(self.quota);
        self.sums().bytes.saturating_add_signed(pending) + self.recency.own_bytes() + beside
    }

    /// As last written down. An environment that cannot be read counts nothing: the reserve still holds.
    pub(super) fn sums(&self) -> Sums {
        self.recency.sums().unwrap_or_else(|cause| {
            tracing::warn!(%cause, "the recency environment cannot be read");
            Sums::default()
        })
    }

    /// A file takes `bytes` now, `before` until now.
    pub(super) fn charge(&self, name: &str, before: u64, bytes: u64) {
        self.note(name, Change::Present { bytes, used: now() }, bytes as i64 - before as i64);
    }

    /// A file that took `before` is gone.
    pub(super) fn charge_gone(&self, name: &str, before: u64) {
        self.note(name, Change::Gone, -(before as i64));
    }

    fn note(&self, name: &str, change: Change, bytes: i64) {
        let mut pending = lock(&self.pending);
        let change = pending.changes.get(name).map_or(change, |earlier| change.after(*earlier));
        pending.changes.insert(name.into(), change);
        pending.bytes = pending.bytes.saturating_add(bytes);
        if pending.is_much(self.quota) {
            self.wake.notify_one();
        }
    }

    /// What was used since that was noted last.
    fn note_use(&self, object: &Object) {
        if let Some(used) = object.unnoted_use() {
            self.note(&object_name(object.key()), Change::Used(used), 0);
        }
    }

    /// Writes down what is pending. What cannot be written stays pending.
    pub(super) fn flush(&self) {
        let _flushing = lock(&self.flushing);
        self.hot.all().for_each(|object| self.note_use(&object));
        let (changes, bytes) = {
            let mut pending = lock(&self.pending);
            if pending.changes.is_empty() {
                return;
            }
            (std::mem::take(&mut pending.changes), pending.bytes)
        };
        let written = self.recency.apply(&changes, |name| allocated(&self.path(name)));
        let mut pending = lock(&self.pending);
        match written {
            Ok(_) => pending.bytes -= bytes,
            Err(cause) => {
                tracing::warn!(%cause, "what was used cannot be written down");
                for (name, earlier) in changes {
                    let change = pending.changes.get(&name).map_or(earlier, |later| later.after(earlier));
                    pending.changes.insert(name, change);
                }
            }
        }
    }

    /// The object, from the hot ones or from the disk, where it lies in one of `paths`; a file that is not it is removed.
    pub(super) fn get<P: Iterator<Item = PathBuf>>(
        self: &Arc<Self>,
        key: &ObjectKey,
        paths: impl FnOnce() -> P,
    ) -> Option<Arc<Object>> {
        if let Some(object) = self.whole_hot(key) {
            object.use_at(now());
            return Some(object);
        }
        let object = self.open_whole(key, paths())?;
        object.use_at(now());
        self.keep_open(&object);
        Some(object)
    }

    /// Whether there is an object of that name, as far as its file tells without being opened.
    pub(super) fn has(&self, key: &ObjectKey, mut paths: impl Iterator<Item = PathBuf>) -> bool {
        let is_hot = self.whole_hot(key).is_some();
        is_hot || paths.any(|path| std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file()))
    }

    /// The object as [`Cache::get`] finds it, which nobody uses by that: the order of eviction stays.
    pub(super) fn peek(self: &Arc<Self>, key: &ObjectKey, paths: impl Iterator<Item = PathBuf>) -> Option<Arc<Object>> {
        self.whole_hot(key).or_else(|| self.open_whole(key, paths))
    }

    fn whole_hot(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.hot.get(key).filter(|object| !object.is_damaged())
    }

    fn keep_open(&self, object: &Arc<Object>) {
        if let Some(displaced) = self.hot.put(Arc::clone(object)) {
            self.note_use(&displaced);
        }
    }

    fn open_whole(self: &Arc<Self>, key: &ObjectKey, paths: impl Iterator<Item = PathBuf>) -> Option<Arc<Object>> {
        for path in paths {
            let file = match open_regular(&path) {
                // Out of descriptors: the hot objects hold most of them.
                Err(cause) if matches!(cause.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    self.hot.clear().iter().for_each(|object| self.note_use(object));
                    open_regular(&path)
                }
                outcome => outcome,
            };
            match file {
                Ok(file) => {
                    if let Some(object) = Object::open(key, file, &self.owners, Arc::downgrade(self)) {
                        return Some(Arc::new(object));
                    }
                }
                Err(_) if foreign::is_in_the_way(&path) => {}
                Err(_) => continue,
            }
            // What cannot be taken away is told, and met again when the object is to lie there.
            let _ = self.put_away(&path);
            self.note(&object_name(key), Change::Gone, 0);
        }
        None
    }

    /// Takes away what is no whole object or partial of ours, and tells what became of it.
    pub(super) fn put_away(&self, path: &Path) -> io::Result<PutAway> {
        let put = foreign::put_away(&self.folder, path);
        match &put {
            Ok(put) => tracing::warn!(path = %path.display(), "not a whole file of the cache: {put}"),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => {
                tracing::error!(path = %path.display(), %cause, "not a whole file of the cache, and it cannot be removed: remove it by hand");
            }
        }
        put
    }

    /// Gives a complete file its place: `name` is its path until now, `charged` what it was charged there.
    pub(super) fn install(
        &self,
        name: &str,
        object: &Arc<Object>,
        charged: u64,
        victims: &Victims,
    ) -> Result<(), StoreError> {
        let object_name = object_name(object.key());
        let (from, to) = (self.path(name), self.path(&object_name));
        let renamed = self.retry_when_full(victims, || {
            std::fs::rename(&from, &to).or_else(|_| {
                if foreign::is_in_the_way(&to) {
                    self.put_away(&to)?;
                }
                // The first object of its shard.
                to.parent().map_or(Ok(()), |shard| {
                    if std::fs::symlink_metadata(shard).is_ok_and(|metadata| !metadata.is_dir()) {
                        self.put_away(shard)?;
                    }
                    make_folder(shard)
                })?;
                std::fs::rename(&from, &to)
            })
        });
        match renamed {
            // The cache was emptied below the mount: the object is here for as long as it is kept open.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound && !from.exists() => {
                self.charge_gone(name, charged);
                object.use_at(now());
                self.keep_open(object);
                return Ok(());
            }
            Err(cause) if is_full(&cause) => return Err(self.full()),
            renamed => renamed.map_err(io_error(to))?,
        }
        let bytes = object.file().metadata().map_or(charged, |m| m.blocks() * 512);
        self.charge_gone(name, charged);
        self.charge(&object_name, 0, bytes);
        object.use_at(now());
        self.keep_open(object);
        let mut unsynced = lock(&self.unsynced);
        if unsynced.objects.len() < SYNCED_SINGLY {
            unsynced.objects.push(Arc::clone(object));
        } else {
            unsynced.many = true;
        }
        Ok(())
    }

    /// Removes a damaged object, if the file of that name is still it.
    pub(super) fn discard(&self, object: &Object) {
        let path = self.path(&object_name(object.key()));
        let is_it = |path: &Path| same_file(object.file(), path);
        self.hot.pop(object.key(), |hot| hot.is_damaged());
        if is_it(&path) {
            self.remove(object.key());
        }
    }

    pub(super) fn remove(&self, key: &ObjectKey) {
        let name = object_name(key);
        self.let_go(key);
        let bytes = allocated(&self.path(&name));
        self.unlink(&name);
        self.charge_gone(&name, bytes.unwrap_or(0));
    }

    /// See [`super::Store::evict`].
    pub(super) fn evict_one(&self, key: &ObjectKey) -> Evicted {
        let mut dropped = None;
        for name in [object_name(key), format!("{PARTIALS}{key}")] {
            let Some(bytes) = allocated(&self.path(&name)) else { continue };
            if self.victim(&name) == Fate::Kept {
                return Evicted::Kept;
            }
            self.charge_gone(&name, bytes);
            dropped = Some(dropped.unwrap_or(0) + bytes);
        }
        dropped.map_or(Evicted::Absent, Evicted::Dropped)
    }

    pub(super) fn unlink(&self, name: &str) {
        let path = self.path(name);
        if let Err(cause) = std::fs::remove_file(&path)
            && cause.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %cause, "cannot be removed from the cache");
        }
    }

    /// Syncs, writes down and makes room, until stopped.
    pub(super) fn run_committer(&self) {
        loop {
            let stopped = lock(&self.stopped);
            let stopped = match *stopped {
                true => true,
                false => *self.wake.wait_timeout(stopped, TICK).unwrap_or_else(PoisonError::into_inner).0,
            };
            self.sync();
            self.flush();
            self.drop_unlinked();
            self.close();
            if stopped {
                return;
            }
            self.beside.refresh();
            self.write_down();
        }
    }

    /// Writes down what is pending, and makes room for what the records grow by; others may have filled folder or file system, too.
    pub(super) fn write_down(&self) {
        self.flush();
        // Full is told to whoever writes.
        let _ = self.make_room(0, &Victims::any());
    }

    pub(super) fn stop(&self) {
        *lock(&self.stopped) = true;
        self.wake.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        *lock(&self.stopped)
    }

    fn sync(&self) {
        let unsynced = std::mem::take(&mut *lock(&self.unsynced));
        if unsynced.many {
            if let Ok(folder) = File::open(&self.folder) {
                // SAFETY: the descriptor is open; the call touches no memory of ours.
                unsafe { libc::syncfs(folder.as_raw_fd()) };
            }
            return;
        }
        let mut shards = HashSet::new();
        for object in &unsynced.objects {
            // What cannot be synced may be torn by a power loss: its CRCs tell then.
            let _ = object.file().sync_data();
            shards.insert(object.key().shard());
        }
        for shard in shards {
            let _ = File::open(self.folder.join(OBJECTS).join(shard)).and_then(|folder| folder.sync_all());
        }
    }

    /// Closes an object whose file goes, and need not be synced any more: its blocks are free when nobody has it open.
    fn let_go(&self, key: &ObjectKey) {
        self.hot.pop(key, |_| true);
        let unsynced: Vec<_> = lock(&self.unsynced).objects.extract_if(.., |object| object.key() == key).collect();
        drop(unsynced);
    }

    /// Closes a file that has no name any more, but not now unless there are many: its blocks are given back then, which may wait for
    /// the disk.
    pub(super) fn close_later(&self, file: File) {
        let mut closing = lock(&self.closing);
        if closing.len() < CLOSED_LATER {
            closing.push(file);
        }
    }

    fn close(&self) {
        // Not while it is locked.
        let closing = std::mem::take(&mut *lock(&self.closing));
        drop(closing);
    }

    /// Closes hot objects that another process evicted: their blocks are free only then.
    fn drop_unlinked(&self) {
        for object in self.hot.all().filter(|object| object.is_unlinked()) {
            self.hot.pop(object.key(), |hot| Arc::ptr_eq(hot, &object));
        }
    }
}

impl Drop for Cache {
    /// Partials may outlive the mount's close: what they charged since is written down with the last of them.
    fn drop(&mut self) {
        self.flush();
    }
}

pub(super) fn object_name(key: &ObjectKey) -> String {
    format!("{OBJECTS}{}/{key}", key.shard())
}

/// Bytes in allocated blocks; `None`: it is not there.
pub(super) fn allocated(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|metadata| metadata.blocks() * 512)
}

/// Whether the file at a path is the open one.
pub(super) fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// Makes a folder that only its owner may enter; one that is there is fine.
pub(in crate::content) fn make_folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn open_regular(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    // Never through a link, never waiting for a pipe's writer.
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Unlinks a partial that nobody writes.
pub(super) fn unlink_idle_partial(path: &Path) -> Fate {
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Fate::Removed,
        Err(_) => return Fate::Kept,
    };
    // Held until the names are gone: nobody resumes it in between.
    if !flock(&file) {
        return Fate::Kept;
    }
    Sidecar::remove(path);
    std::fs::remove_file(path).map_or(Fate::Kept, |()| Fate::Removed)
}

/// The value of a mutex; one that a panicking thread held is as good as any, as each change of it is made at once.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;

    #[test]
    fn what_others_are_not_told_yet_is_little_beside_the_quota() {
        let pending = |bytes| Pending { bytes, ..Pending::default() };
        let mib = 1 << 20;

        assert!(pending(16 * mib).is_much(64 << 20) && !pending(16 * mib - 1).is_much(64 << 20), "a small cache");
        assert!(pending(64 * mib).is_much(4 << 30) && !pending(64 * mib - 1).is_much(4 << 30));
        assert!(pending(128 * mib).is_much(1 << 40) && !pending(128 * mib - 1).is_much(1 << 40), "a large one");
        assert!(!pending(-mib).is_much(0), "given back");
        let changes = (0..MANY_CHANGES).map(|number| (number.to_string().into(), Change::Gone)).collect();
        assert!(Pending { changes, bytes: 0 }.is_much(16 << 30));
    }

    #[test]
    fn a_file_is_closed_later_and_of_many_some_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let recency = Recency::open(folder.path(), false).unwrap().0;
        let cache = Cache::new(folder.path().to_owned(), 1 << 30, 0, Box::new(|| Ok(u64::MAX)), recency);
        let (mut reader, writer) = io::pipe().unwrap();
        let file = || File::from(OwnedFd::from(writer.try_clone().unwrap()));
        (0..2 * CLOSED_LATER).for_each(|_| cache.close_later(file()));
        assert_eq!(lock(&cache.closing).len(), CLOSED_LATER);
        drop(writer);

        cache.close();

        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "nobody has the other end");
    }
}
