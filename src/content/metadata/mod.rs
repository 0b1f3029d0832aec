//! What reading taught of each inode: size, validators, type, verdict. A cache: lost, it is learnt again.
//!
//! ```text
//! key       inode u64, big-endian
//! value     CRC32C of the rest u32, little-endian │ as postcard writes them: version u8, mount u64, [`Observation`]
//! ```
//!
//! The mount is the one that learnt it. A value of another version, or damaged, is unknown.

use super::Verified;
use super::store::{Environment, ObjectKey, each_value, lock, make_folder};
use crate::document::{Digest, Timestamp};
use crate::platform::ino::Ino;
use crate::platform::lmdb::Readers;
use heed::types::Bytes;
use heed::{Database, Env, WithoutTls};
use lru::LruCache;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// Delay after which what was learnt is committed; [`COMMIT_AT`] changes do not wait for it.
const COMMIT_AFTER: Duration = Duration::from_secs(1);
const COMMIT_AT: usize = 1000;
/// While nothing can be committed it is tried again after a pause, which is doubled so often.
const MOST_DOUBLED: u32 = 4;
/// While nothing can be committed, so much is kept in memory.
const MOST_PENDING: usize = 64 * COMMIT_AT;
/// Versions for patches, kept in memory: so many.
const MOST_REMEMBERED: NonZeroUsize = NonZeroUsize::MIN.saturating_add(65_535);
/// Version of the values: the fields of [`Observation`] and the types in them have an order on disk.
const VERSION: u8 = 2;

/// Knowledge of one inode from answers and downloads. The default knows nothing. Its first fields are those of [`Brief`], in that order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// Bytes that a read returns (decoded, where an `encoding` is undone).
    pub size: Option<u64>,
    /// The verdict. [`Verified::Failed`] is poison: it stays until [`LearntMetadata::forget`].
    pub verified: Verified,
    /// When the Source last confirmed that these are its bytes.
    pub validated_at: Option<Timestamp>,
    /// The last response's ETag, quotes and `W/` included.
    pub etag: Option<Box<str>>,
    /// The last response's Last-Modified, as sent.
    pub last_modified: Option<Box<str>>,
    /// The last response's media type.
    pub media_type: Option<Box<str>>,
    /// Digests computed over the bytes.
    pub digests: Vec<Digest>,
    /// The object that holds the bytes, if they were committed.
    pub object: Option<ObjectKey>,
}

/// The first fields of [`Observation`]: what a listing asks of each file, read without an allocation.
#[derive(Clone, Copy, Deserialize)]
struct Brief {
    size: Option<u64>,
    verified: Verified,
    validated_at: Option<Timestamp>,
}

impl Observation {
    /// Returns whether it means that the file is empty, and only a server's answer supports that.
    pub fn is_doubtful(&self) -> bool {
        self.brief().is_doubtful()
    }

    fn brief(&self) -> Brief {
        Brief { size: self.size, verified: self.verified, validated_at: self.validated_at }
    }
}

impl Brief {
    fn is_doubtful(&self) -> bool {
        self.size == Some(0) && !matches!(self.verified, Verified::Digest(_) | Verified::Failed)
    }
}

/// Why learnt metadata cannot be kept.
#[derive(Debug, thiserror::Error)]
#[error("the environment {path} failed", path = .path.display())]
pub struct MetadataError {
    /// Its folder.
    pub path: PathBuf,
    /// The answer.
    #[source]
    pub cause: heed::Error,
}

/// The learnt metadata of one mount, persistent; committed in batches by a separate thread.
pub struct LearntMetadata {
    shared: Arc<Shared>,
    committer: Mutex<Option<JoinHandle<()>>>,
}

/// Invariants: an inode's latest state is in `PendingWrites::fresh`, else in the environment; it leaves `fresh` only after its commit. No
/// transaction is opened with `pending` held, so no reader waits for a commit.
/// Lock order: `commits` or `updates`, then `pending`; `versions` and `closed` alone.
struct Shared {
    env: Env<WithoutTls>,
    database: Database<'static, Bytes, Bytes>,
    readers: Readers,
    /// The number of this mount.
    mount: u64,
    pending: RwLock<PendingWrites>,
    /// Held through an update.
    updates: Mutex<()>,
    /// Held by the one thread that commits.
    commits: Mutex<()>,
    /// By a resource: the object that was its last version here, and its bytes.
    versions: Mutex<LruCache<u64, (ObjectKey, u64)>>,
    closed: Mutex<bool>,
    wake: Condvar,
}

/// Changes that the environment does not have yet.
#[derive(Default)]
struct PendingWrites {
    /// By inode, with the number of the change; `None`: forgotten.
    fresh: HashMap<u64, (u64, Option<Observation>)>,
    changes: u64,
}

impl LearntMetadata {
    /// Opens the environment in `folder`, made where missing; a damaged one is removed and replaced by an empty one. `unclean`: some
    /// process that had it open may not have closed it.
    pub fn open(folder: &Path, unclean: bool) -> Result<LearntMetadata, MetadataError> {
        let failed = |cause| MetadataError { path: folder.to_owned(), cause };
        make_folder(folder).map_err(|cause| failed(cause.into()))?;
        let Environment { env, database } = Environment::open(folder, unclean).map_err(failed)?;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let shared = Arc::new(Shared {
            env,
            database,
            readers: Readers::default(),
            mount: since.as_nanos() as u64,
            pending: RwLock::default(),
            updates: Mutex::default(),
            commits: Mutex::default(),
            versions: Mutex::new(LruCache::new(MOST_REMEMBERED)),
            closed: Mutex::default(),
            wake: Condvar::new(),
        });
        let committing = Arc::clone(&shared);
        let committer = std::thread::Builder::new()
            .name("metadata-committer".to_owned())
            .spawn(move || committing.run_committer())
            .map_err(|cause| failed(cause.into()))?;
        Ok(LearntMetadata { shared, committer: Mutex::new(Some(committer)) })
    }

    /// Returns what is known of an inode; never waits for a commit.
    pub fn get(&self, ino: Ino) -> Option<Observation> {
        self.shared.get(ino, Observation::clone)
    }

    /// The size alone.
    pub fn size(&self, ino: Ino) -> Option<u64> {
        self.shared.get(ino, Observation::brief)?.size
    }

    /// When the Source last confirmed its bytes.
    pub fn validated_at(&self, ino: Ino) -> Option<Timestamp> {
        self.shared.get(ino, Observation::brief)?.validated_at
    }

    /// Changes what is known of an inode, from the default where nothing is; seen at once by [`LearntMetadata::get`], committed soon.
    /// `change` must be short and not call back.
    pub fn update(&self, ino: Ino, change: impl FnOnce(&mut Observation)) {
        let _alone = lock(&self.shared.updates);
        let mut observation = self.get(ino).unwrap_or_default();
        let is_poisoned = observation.verified == Verified::Failed;
        change(&mut observation);
        if is_poisoned {
            observation.verified = Verified::Failed;
        }
        self.shared.put(ino.0, Some(observation));
    }

    /// Drops what is known of an inode, a poison included.
    pub fn forget(&self, ino: Ino) {
        let _alone = lock(&self.shared.updates);
        self.shared.put(ino.0, None);
    }

    /// Drops what is known of the inodes that `gone` picks out of those it is shown, some at a time; what is known of them has
    /// been committed before `gone` is asked. How many.
    pub fn forget_gone<E>(&self, mut gone: impl FnMut(&[Ino]) -> Result<Vec<Ino>, E>) -> Result<u64, E> {
        let (mut after, mut forgotten) = (None, 0);
        loop {
            let known = self.shared.committed_after(after);
            let Some(last) = known.last() else { return Ok(forgotten) };
            after = Some(*last);
            for ino in gone(&known)? {
                self.forget(ino);
                forgotten += 1;
            }
        }
    }

    /// Remembers for this mount the object, and its bytes, that is the last version here of a resource.
    pub fn keep_version(&self, resource: u64, object: ObjectKey, bytes: u64) {
        lock(&self.shared.versions).put(resource, (object, bytes));
    }

    /// Returns what [`LearntMetadata::keep_version`] was given last.
    pub fn version(&self, resource: u64) -> Option<(ObjectKey, u64)> {
        lock(&self.shared.versions).get(&resource).cloned()
    }

    /// Commits what is pending and stops the thread; idempotent. Dropping does the same.
    pub fn close(&self) {
        *lock(&self.shared.closed) = true;
        self.shared.wake.notify_all();
        match lock(&self.committer).take().map(JoinHandle::join) {
            Some(Err(_)) => tracing::error!("the thread that commits learnt metadata panicked"),
            Some(Ok(())) => {}
            // Closed before: later updates are committed here.
            None => drop(self.shared.commit()),
        }
    }
}

/// Calls `visit` for each object that the learnt metadata in `folder` names, some of them more than once. It may be that of a
/// running mount, in another process.
pub fn each_object(folder: &Path, visit: &mut dyn FnMut(&ObjectKey)) -> Result<(), MetadataError> {
    each_value(folder, &mut |value| {
        if let Some(object) = decode(value, 0).and_then(|known: Observation| known.object) {
            visit(&object);
        }
    })
    .map_err(|cause| MetadataError { path: folder.to_owned(), cause })
}

impl Drop for LearntMetadata {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn pending(&self) -> RwLockReadGuard<'_, PendingWrites> {
        self.pending.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending_mut(&self) -> RwLockWriteGuard<'_, PendingWrites> {
        self.pending.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that is known, or the first fields of it; `of` takes them from what is pending. What cannot be read is unknown.
    fn get<T: DeserializeOwned>(&self, ino: Ino, of: fn(&Observation) -> T) -> Option<T> {
        if let Some((_, latest)) = self.pending().fresh.get(&ino.0) {
            return latest.as_ref().map(of);
        }
        let read = || -> heed::Result<Option<T>> {
            let txn = self.readers.take(&self.env)?;
            let value = self.database.get(&txn, &ino.0.to_be_bytes())?;
            let known = value.and_then(|value| decode(value, self.mount));
            self.readers.give_back(&self.env, txn);
            Ok(known)
        };
        read().unwrap_or_else(|cause| {
            tracing::warn!(ino = ino.0, %cause, "learnt metadata cannot be read");
            None
        })
    }

    fn put(&self, ino: u64, observation: Option<Observation>) {
        let mut pending = self.pending_mut();
        pending.changes += 1;
        let change = pending.changes;
        pending.fresh.insert(ino, (change, observation));
        if pending.fresh.len() >= COMMIT_AT {
            self.wake.notify_one();
        }
    }

    /// Some inodes behind `after` of which something is committed, ascending; none: there are no more.
    fn committed_after(&self, after: Option<Ino>) -> Vec<Ino> {
        let read = || -> heed::Result<Vec<Ino>> {
            let txn = self.env.read_txn()?;
            let after = after.map(|after| after.0.to_be_bytes());
            let first = after.as_ref().map_or(Bound::Unbounded, |after| Bound::Excluded(&after[..]));
            let mut known = Vec::new();
            for record in self.database.range(&txn, &(first, Bound::Unbounded))?.take(COMMIT_AT) {
                known.extend(record?.0.try_into().ok().map(u64::from_be_bytes).map(Ino));
            }
            Ok(known)
        };
        read().unwrap_or_else(|cause| {
            tracing::warn!(%cause, "learnt metadata cannot be read");
            Vec::new()
        })
    }

    fn run_committer(&self) {
        let mut failures = 0;
        loop {
            let is_much = self.pending().fresh.len() >= COMMIT_AT;
            let mut closed = lock(&self.closed);
            if failures > 0 {
                // More that is pending is no reason to try it sooner.
                let pause = COMMIT_AFTER * 2_u32.pow(failures.min(MOST_DOUBLED));
                let waited = self.wake.wait_timeout_while(closed, pause, |closed| !*closed);
                closed = waited.unwrap_or_else(PoisonError::into_inner).0;
            } else if !*closed && !is_much {
                closed = self.wake.wait_timeout(closed, COMMIT_AFTER).unwrap_or_else(PoisonError::into_inner).0;
            }
            let is_closed = *closed;
            drop(closed);
            failures = if self.commit() { 0 } else { failures + 1 };
            if is_closed {
                return;
            }
        }
    }

    /// Commits what is pending; whether that was possible. What cannot be committed stays so.
    fn commit(&self) -> bool {
        let _commits = lock(&self.commits);
        let batch: Vec<(u64, u64, Option<Vec<u8>>)> = {
            let pending = self.pending();
            let encoded = |known: &Option<Observation>| known.as_ref().and_then(|known| encode(known, self.mount));
            pending.fresh.iter().map(|(ino, (change, latest))| (*ino, *change, encoded(latest))).collect()
        };
        if batch.is_empty() {
            return true;
        }
        let written = self.write(&batch);
        let mut pending = self.pending_mut();
        let is_written = written.is_ok();
        match written {
            Ok(()) => {
                for (ino, change, _) in batch {
                    if pending.fresh.get(&ino).is_some_and(|(latest, _)| *latest == change) {
                        pending.fresh.remove(&ino);
                    }
                }
            }
            Err(cause) => {
                tracing::warn!(%cause, "learnt metadata cannot be written; it is tried again");
                // A full disk must not become full memory too: poison is kept, the rest can be learnt again.
                if pending.fresh.len() > MOST_PENDING {
                    let is_poison = |known: &Observation| known.verified == Verified::Failed;
                    pending.fresh.retain(|_, (_, known)| known.as_ref().is_none_or(is_poison));
                }
            }
        }
        is_written
    }

    fn write(&self, batch: &[(u64, u64, Option<Vec<u8>>)]) -> heed::Result<()> {
        let mut txn = self.env.write_txn()?;
        for (ino, _, value) in batch {
            match value {
                Some(value) => self.database.put(&mut txn, &ino.to_be_bytes(), value)?,
                None => {
                    self.database.delete(&mut txn, &ino.to_be_bytes())?;
                }
            }
        }
        txn.commit()?;
        self.readers.let_go();
        Ok(())
    }
}

/// `None`: it is not kept.
fn encode(known: &Observation, mount: u64) -> Option<Vec<u8>> {
    let mut value = postcard::to_extend(&(VERSION, mount, known), vec![0; 4]).ok()?;
    let crc = crc32c::crc32c(&value[4..]);
    value[..4].copy_from_slice(&crc.to_le_bytes());
    Some(value)
}

/// All of a value, or its first fields.
fn decode<T: DeserializeOwned>(value: &[u8], mount: u64) -> Option<T> {
    let (crc, value) = value.split_first_chunk()?;
    if crc32c::crc32c(value) != u32::from_le_bytes(*crc) || value.first() != Some(&VERSION) {
        return None;
    }
    let (_, learnt_in, brief): (u8, u64, Brief) = postcard::from_bytes(value).ok()?;
    // Each mount asks again whether a file is empty that no digest vouches for: its digest must not bind what comes then.
    if learnt_in != mount && brief.is_doubtful() {
        return None;
    }
    let (_, _, known): (u8, u64, T) = postcard::from_bytes(value).ok()?;
    Some(known)
}

#[cfg(test)]
mod tests;
