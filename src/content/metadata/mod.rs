//! What reading taught of each inode: size, validators, type, verdict. A cache: lost, it is learnt again.
//!
//! ```text
//! key       inode u64, big-endian; with its highest bit set it is the digest of a resource's URI, and the value is of the
//!           version that was kept last
//! value     CRC32C of the rest u32 │ version u8 │ verified u8 │ size 9 │ validated at 13 │ etag │ last modified │ type │ object
//!           │ digests: count u8, each algorithm u8 and bytes
//! ```
//!
//! Numbers in values are little-endian; size and validated at begin with a flag, zero where there is none; a text is its length u16
//! (65535: none) and its bytes. A value of another version, or damaged, is unknown.

use super::Verified;
use super::counting_filter::CountingFilter;
use super::store::{Environment, ObjectKey, each_value, make_folder};
use crate::document::{Algorithm, Digest, Timestamp};
use crate::lmdb::Readers;
use fuser::INodeNo;
use heed::types::Bytes;
use heed::{Database, Env, WithoutTls};
use lru::LruCache;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroUsize;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// What was observed is committed after so long at most, or when so much is pending.
const COMMIT_AFTER: Duration = Duration::from_secs(1);
const COMMIT_AT: usize = 1000;
/// Empty files that no digest vouches for, kept in memory: so many.
const DOUBTFUL: NonZeroUsize = NonZeroUsize::MIN.saturating_add(65_535);
/// Of values, as drawn in this module's header.
const VERSION: u8 = 1;
const ABSENT: u16 = u16::MAX;
/// From this number on a verdict is that of a digest.
const DIGEST: u8 = 16;
/// From this key on they are of resources, before it of inodes.
const OF_RESOURCES: u64 = 1 << 63;

/// What was observed of one inode. The default knows nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Bytes that a read returns (decoded, where an `encoding` is undone).
    pub size: Option<u64>,
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
    /// The verdict. [`Verified::Failed`] is poison: it stays until [`LearntMetadata::forget`].
    pub verified: Verified,
    /// When the Source last said that these are its bytes.
    pub validated_at: Option<Timestamp>,
}

impl Observation {
    /// Whether it says that the file is empty, and nothing but a server's answer does.
    pub fn is_doubtful(&self) -> bool {
        self.size == Some(0) && !matches!(self.verified, Verified::Digest(_) | Verified::Failed)
    }
}

impl Default for Observation {
    fn default() -> Self {
        Observation {
            size: None,
            etag: None,
            last_modified: None,
            media_type: None,
            digests: Vec::new(),
            object: None,
            verified: Verified::NotYet,
            validated_at: None,
        }
    }
}

/// Why observations cannot be kept.
#[derive(Debug, thiserror::Error)]
#[error("the environment {path} failed", path = .path.display())]
pub struct MetadataError {
    /// Its folder.
    pub path: PathBuf,
    /// The answer.
    #[source]
    pub cause: heed::Error,
}

/// The observations of one mount, persistent; committed in batches by a thread of its own.
pub struct LearntMetadata {
    shared: Arc<Shared>,
    committer: Mutex<Option<JoinHandle<()>>>,
}

/// Invariants: an inode's latest state is in `pending.fresh` or `pending.doubtful`, never in both, else in `pending.committing`, else in
/// the environment; what is being committed leaves `committing` only after its commit. No transaction is opened with `pending` held, so no reader waits for a commit.
/// Lock order: `commits`, `pending`.
struct Shared {
    env: Env<WithoutTls>,
    database: Database<'static, Bytes, Bytes>,
    readers: Readers,
    pending: Mutex<Pending>,
    /// The inodes that it overlays, once for each of its overlays: of any other, readers do without its lock.
    overlaid: CountingFilter,
    /// Held by the one thread that commits.
    commits: Mutex<()>,
    wake: Condvar,
}

/// What the environment does not have yet; `None`: forgotten.
type Overlay = HashMap<u64, Option<Observation>>;

struct Pending {
    fresh: Overlay,
    /// Files that a server sent without a byte, while no digest says that they are empty: never committed, so that each mount asks
    /// again. The oldest makes room.
    doubtful: LruCache<u64, Observation>,
    committing: Arc<Overlay>,
    /// How many commits there were: what the environment said before the last one may be no longer the latest.
    commits: u64,
    closed: bool,
}

impl Default for Pending {
    fn default() -> Pending {
        Pending {
            fresh: Overlay::default(),
            doubtful: LruCache::new(DOUBTFUL),
            committing: Arc::default(),
            commits: 0,
            closed: false,
        }
    }
}

impl LearntMetadata {
    /// Opens the environment in `folder`, made where missing; a damaged one is removed and replaced by an empty one. `unclean`: some
    /// process that had it open may not have closed it.
    pub fn open(folder: &Path, unclean: bool) -> Result<LearntMetadata, MetadataError> {
        let failed = |cause| MetadataError { path: folder.to_owned(), cause };
        make_folder(folder).map_err(|cause| failed(cause.into()))?;
        let Environment { env, database, .. } = Environment::open(folder, unclean).map_err(failed)?;
        let shared = Arc::new(Shared {
            env,
            database,
            readers: Readers::default(),
            pending: Mutex::default(),
            overlaid: CountingFilter::default(),
            commits: Mutex::default(),
            wake: Condvar::new(),
        });
        let committing = Arc::clone(&shared);
        let committer = std::thread::Builder::new()
            .name("observed-committer".to_owned())
            .spawn(move || committing.run_committer())
            .map_err(|cause| failed(cause.into()))?;
        Ok(LearntMetadata { shared, committer: Mutex::new(Some(committer)) })
    }

    /// What is known of an inode; never waits for a commit.
    pub fn get(&self, ino: INodeNo) -> Option<Observation> {
        let overlaid = self.shared.overlays(ino).and_then(|pending| pending.overlaid(ino.0));
        overlaid.unwrap_or_else(|| self.shared.committed(ino.0))
    }

    /// The size alone, for whoever asks for that of many: [`LearntMetadata::get`] without a copy of all the rest.
    pub fn size(&self, ino: INodeNo) -> Option<u64> {
        let size_of = |known: Option<&Observation>| known.and_then(|o| o.size);
        let overlaid = self.shared.overlays(ino).and_then(|pending| pending.latest(ino.0).map(size_of));
        overlaid.unwrap_or_else(|| self.shared.read(ino.0, decode_size))
    }

    /// When the Source last vouched for its bytes, likewise.
    pub fn validated_at(&self, ino: INodeNo) -> Option<Timestamp> {
        let time_of = |known: Option<&Observation>| known.and_then(|o| o.validated_at);
        let overlaid = self.shared.overlays(ino).and_then(|pending| pending.latest(ino.0).map(time_of));
        overlaid.unwrap_or_else(|| self.shared.read(ino.0, decode_validated_at))
    }

    /// Changes what is known of an inode, from the default where nothing is; seen at once by [`LearntMetadata::get`], committed soon.
    /// `change` runs with the overlay locked: it must be short and not call back.
    pub fn update(&self, ino: INodeNo, change: impl FnOnce(&mut Observation)) {
        let mut pending = self.shared.pending();
        let latest = loop {
            if let Some(overlaid) = pending.overlaid(ino.0) {
                break overlaid;
            }
            // Read with no lock held. What changed of this inode meanwhile is in an overlay, or was committed: look again.
            let seen = pending.commits;
            drop(pending);
            let committed = self.shared.committed(ino.0);
            pending = self.shared.pending();
            if pending.commits == seen && pending.latest(ino.0).is_none() {
                break committed;
            }
        };
        let mut observation = latest.unwrap_or_default();
        let poisoned = observation.verified == Verified::Failed;
        change(&mut observation);
        if poisoned {
            observation.verified = Verified::Failed;
        }
        self.shared.put(&mut pending, ino.0, Some(observation));
    }

    /// Drops what is known of an inode, a poison included.
    pub fn forget(&self, ino: INodeNo) {
        let mut pending = self.shared.pending();
        self.shared.put(&mut pending, ino.0, None);
    }

    /// Drops what is known of the inodes that `gone` picks out of those it is shown, some at a time; what is known of them has
    /// been committed before `gone` is asked. How many.
    pub fn forget_gone<E>(&self, mut gone: impl FnMut(&[INodeNo]) -> Result<Vec<INodeNo>, E>) -> Result<u64, E> {
        let (mut after, mut forgotten) = (None, 0);
        loop {
            let known = self.shared.committed_within(after, 0, OF_RESOURCES - 1);
            let Some(last) = known.last() else { return Ok(forgotten) };
            after = Some(*last);
            for ino in gone(&known)? {
                self.forget(ino);
                forgotten += 1;
            }
        }
    }

    /// Drops what is known of resources whose last kept version is no longer here: where `is_here` says so of its object. How many.
    pub fn forget_versions(&self, is_here: impl Fn(&ObjectKey) -> bool) -> u64 {
        let (mut after, mut forgotten) = (None, 0);
        loop {
            let known = self.shared.committed_within(after, OF_RESOURCES, u64::MAX);
            let Some(last) = known.last() else { return forgotten };
            after = Some(*last);
            for resource in known {
                let Some(version) = self.get(resource) else { continue };
                if !version.object.is_some_and(|object| is_here(&object)) {
                    self.forget(resource);
                    forgotten += 1;
                }
            }
        }
    }

    /// While this is held, who takes the lock of what was learnt waits. What is known of `known` was committed.
    #[cfg(test)]
    pub(super) fn locked(&self, known: &[INodeNo]) -> impl Sized {
        loop {
            let pending = self.shared.pending();
            if !known.iter().any(|ino| pending.latest(ino.0).is_some()) {
                return pending;
            }
            drop(pending);
            std::thread::sleep(COMMIT_AFTER / 50);
        }
    }

    /// Commits what is pending and stops the thread; idempotent. Dropping does the same.
    pub fn close(&self) {
        self.shared.pending().closed = true;
        self.shared.wake.notify_all();
        let committer = self.committer.lock().unwrap_or_else(PoisonError::into_inner).take();
        match committer.map(JoinHandle::join) {
            Some(Err(_)) => tracing::error!("the thread that commits what was observed panicked"),
            Some(Ok(())) => {}
            // Closed before: what came since is committed here.
            None => self.shared.commit(),
        }
    }
}

/// Calls `visit` for each object that the observations in `folder` name, some of them more than once. They may be those of a
/// mount that runs, in another process.
pub fn each_object(folder: &Path, visit: &mut dyn FnMut(&ObjectKey)) -> Result<(), MetadataError> {
    each_value(folder, &mut |value| {
        if let Some(object) = decode(value).and_then(|observation| observation.object) {
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

impl Pending {
    /// The state of an inode, where the environment does not have it; `Some(None)`: forgotten.
    fn latest(&self, ino: u64) -> Option<Option<&Observation>> {
        let doubtful = || self.doubtful.peek(&ino).map(Some);
        let committing = || self.committing.get(&ino).map(Option::as_ref);
        self.fresh.get(&ino).map(Option::as_ref).or_else(doubtful).or_else(committing)
    }

    /// The same to keep.
    fn overlaid(&self, ino: u64) -> Option<Option<Observation>> {
        self.latest(ino).map(Option::<&Observation>::cloned)
    }
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the environment does not have yet, where something of `ino` may be among it.
    fn overlays(&self, ino: INodeNo) -> Option<MutexGuard<'_, Pending>> {
        self.overlaid.may_hold(ino).then(|| self.pending())
    }

    fn put(&self, pending: &mut Pending, ino: u64, observation: Option<Observation>) {
        if pending.doubtful.pop(&ino).is_some() {
            self.overlaid.remove(INodeNo(ino));
        }
        match observation {
            Some(doubtful) if doubtful.is_doubtful() => {
                if pending.fresh.remove(&ino).is_some() {
                    self.overlaid.remove(INodeNo(ino));
                }
                self.overlaid.add(INodeNo(ino));
                if let Some((oldest, _)) = pending.doubtful.push(ino, doubtful) {
                    self.overlaid.remove(INodeNo(oldest));
                }
            }
            observation => {
                if pending.fresh.insert(ino, observation).is_none() {
                    self.overlaid.add(INodeNo(ino));
                }
            }
        }
        if pending.fresh.len() >= COMMIT_AT {
            self.wake.notify_one();
        }
    }

    /// The state of an inode in the environment.
    fn committed(&self, ino: u64) -> Option<Observation> {
        self.read(ino, decode)
    }

    /// What `decode` makes of an inode's value. What cannot be read is unknown.
    fn read<T>(&self, ino: u64, decode: fn(&[u8]) -> Option<T>) -> Option<T> {
        let read = || -> heed::Result<Option<T>> {
            let txn = self.readers.take(&self.env)?;
            let value = self.database.get(&txn, &ino.to_be_bytes())?.and_then(decode);
            self.readers.give_back(&self.env, txn);
            Ok(value)
        };
        read().unwrap_or_else(|cause| {
            tracing::warn!(ino, %cause, "what was observed cannot be read");
            None
        })
    }

    /// Some keys from `first` to `last`, and behind `after`, of which something is committed, ascending; none: there are no more.
    fn committed_within(&self, after: Option<INodeNo>, first: u64, last: u64) -> Vec<INodeNo> {
        let read = || -> heed::Result<Vec<INodeNo>> {
            let txn = self.env.read_txn()?;
            let after = after.map(|after| after.0.to_be_bytes());
            let (first, last) = (first.to_be_bytes(), last.to_be_bytes());
            let first = after.as_ref().map_or(Bound::Included(&first[..]), |after| Bound::Excluded(&after[..]));
            let behind = (first, Bound::Included(&last[..]));
            let mut known = Vec::new();
            for record in self.database.range(&txn, &behind)?.take(COMMIT_AT) {
                known.extend(record?.0.try_into().ok().map(u64::from_be_bytes).map(INodeNo));
            }
            Ok(known)
        };
        read().unwrap_or_else(|cause| {
            tracing::warn!(%cause, "what was observed cannot be read");
            Vec::new()
        })
    }

    fn run_committer(&self) {
        loop {
            let closed = {
                let mut pending = self.pending();
                if !pending.closed && pending.fresh.len() < COMMIT_AT {
                    pending = self.wake.wait_timeout(pending, COMMIT_AFTER).unwrap_or_else(PoisonError::into_inner).0;
                }
                pending.closed
            };
            self.commit();
            if closed {
                return;
            }
        }
    }

    fn commit(&self) {
        let _commits = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        let overlay = {
            let mut pending = self.pending();
            if pending.fresh.is_empty() {
                return;
            }
            pending.committing = Arc::new(std::mem::take(&mut pending.fresh));
            Arc::clone(&pending.committing)
        };
        let written = self.write(&overlay);
        let mut pending = self.pending();
        pending.committing = Arc::default();
        pending.commits += 1;
        match written {
            Ok(()) => overlay.keys().for_each(|ino| self.overlaid.remove(INodeNo(*ino))),
            Err(cause) => {
                tracing::warn!(%cause, "what was observed cannot be committed and is tried again");
                self.take_back(&mut pending, Arc::unwrap_or_clone(overlay));
            }
        }
    }

    /// What could not be committed is pending again, but for what was learnt anew meanwhile.
    fn take_back(&self, pending: &mut Pending, overlay: Overlay) {
        for (ino, observation) in overlay {
            match pending.fresh.entry(ino) {
                Entry::Vacant(vacant) if !pending.doubtful.contains(&ino) => {
                    vacant.insert(observation);
                }
                _ => self.overlaid.remove(INodeNo(ino)),
            }
        }
        // A full disk must not become full memory too: what is poisoned is kept, the rest can be learnt again.
        if pending.fresh.len() > 64 * COMMIT_AT {
            let can_be_learnt_again =
                |o: &Option<Observation>| o.as_ref().is_some_and(|o| o.verified != Verified::Failed);
            for (ino, _) in pending.fresh.extract_if(|_, observation| can_be_learnt_again(observation)) {
                self.overlaid.remove(INodeNo(ino));
            }
        }
    }

    fn write(&self, overlay: &Overlay) -> heed::Result<()> {
        let mut txn = self.env.write_txn()?;
        for (ino, observation) in overlay {
            match observation {
                Some(observation) => self.database.put(&mut txn, &ino.to_be_bytes(), &encode(observation))?,
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

fn encode(observation: &Observation) -> Vec<u8> {
    let mut value = vec![0; 4];
    value.push(VERSION);
    value.push(match observation.verified {
        Verified::NotYet => 0,
        Verified::Length => 1,
        Verified::Transfer => 2,
        Verified::Failed => 3,
        Verified::Digest(algorithm) => DIGEST + algorithm.number(),
    });
    value.push(observation.size.is_some().into());
    value.extend_from_slice(&observation.size.unwrap_or(0).to_le_bytes());
    let time = observation.validated_at.unwrap_or(Timestamp { seconds: 0, nanos: 0 });
    value.push(observation.validated_at.is_some().into());
    value.extend_from_slice(&time.seconds.to_le_bytes());
    value.extend_from_slice(&time.nanos.to_le_bytes());
    let object = observation.object.as_ref().map(ObjectKey::as_str);
    for text in
        [observation.etag.as_deref(), observation.last_modified.as_deref(), observation.media_type.as_deref(), object]
    {
        // A header so long is no validator that a server would know again.
        let text = text.filter(|text| text.len() < usize::from(ABSENT));
        value.extend_from_slice(&text.map_or(ABSENT, |text| text.len() as u16).to_le_bytes());
        value.extend_from_slice(text.unwrap_or_default().as_bytes());
    }
    let digests = &observation.digests[..observation.digests.len().min(usize::from(u8::MAX))];
    value.push(digests.len() as u8);
    for digest in digests {
        value.push(digest.algorithm().number());
        value.extend_from_slice(digest.octets());
    }
    let crc = crc32c::crc32c(&value[4..]);
    value[..4].copy_from_slice(&crc.to_le_bytes());
    value
}

/// A value's bytes behind its version, if it is whole and of this version.
fn whole(value: &[u8]) -> Option<&[u8]> {
    let (crc, rest) = value.split_first_chunk()?;
    if crc32c::crc32c(rest) != u32::from_le_bytes(*crc) {
        return None;
    }
    rest.strip_prefix(&[VERSION])
}

fn decode_size(value: &[u8]) -> Option<u64> {
    let (&verified, rest) = whole(value)?.split_first()?;
    let (&is_sized, rest) = rest.split_first()?;
    let (size, _) = rest.split_first_chunk()?;
    (is_sized != 0).then(|| u64::from_le_bytes(*size)).filter(|size| *size > 0 || verified >= DIGEST)
}

fn decode_validated_at(value: &[u8]) -> Option<Timestamp> {
    let (_verified, rest) = whole(value)?.split_first()?;
    let (_is_sized, rest) = rest.split_first()?;
    let (_size, rest): (&[u8; 8], _) = rest.split_first_chunk()?;
    let (&is_validated, rest) = rest.split_first()?;
    let (seconds, rest) = rest.split_first_chunk()?;
    let (nanos, _) = rest.split_first_chunk()?;
    let time = Timestamp { seconds: i64::from_le_bytes(*seconds), nanos: u32::from_le_bytes(*nanos) };
    (is_validated != 0).then_some(time)
}

fn decode(value: &[u8]) -> Option<Observation> {
    let rest = whole(value)?;
    let (&verified, rest) = rest.split_first()?;
    let verified = match verified {
        0 => Verified::NotYet,
        1 => Verified::Length,
        2 => Verified::Transfer,
        3 => Verified::Failed,
        number => Verified::Digest(Algorithm::numbered(number.checked_sub(DIGEST)?)?),
    };
    let (&sized, rest) = rest.split_first()?;
    let (size, rest) = rest.split_first_chunk()?;
    let (&validated, rest) = rest.split_first()?;
    let (seconds, rest) = rest.split_first_chunk()?;
    let (nanos, rest) = rest.split_first_chunk()?;
    let time = Timestamp { seconds: i64::from_le_bytes(*seconds), nanos: u32::from_le_bytes(*nanos) };
    let (etag, rest) = decode_text(rest)?;
    let (last_modified, rest) = decode_text(rest)?;
    let (media_type, rest) = decode_text(rest)?;
    let (object, rest) = decode_text(rest)?;
    let (&count, mut rest) = rest.split_first()?;
    let mut digests = Vec::with_capacity(count.into());
    for _ in 0..count {
        let (&number, bytes) = rest.split_first()?;
        let algorithm = Algorithm::numbered(number)?;
        let (bytes, behind) = bytes.split_at_checked(algorithm.digest_length())?;
        digests.push(Digest::new(algorithm, bytes)?);
        rest = behind;
    }
    Some(Observation {
        size: (sized != 0).then(|| u64::from_le_bytes(*size)),
        etag,
        last_modified,
        media_type,
        digests,
        object: object.and_then(|text| ObjectKey::parse(&text)),
        verified,
        validated_at: (validated != 0).then_some(time),
    })
}

/// A text, if there is one, and what follows it.
fn decode_text(value: &[u8]) -> Option<(Option<Box<str>>, &[u8])> {
    let (length, rest) = value.split_first_chunk()?;
    match u16::from_le_bytes(*length) {
        ABSENT => Some((None, rest)),
        length => {
            let (text, rest) = rest.split_at_checked(length.into())?;
            Some((Some(std::str::from_utf8(text).ok()?.into()), rest))
        }
    }
}

#[cfg(test)]
mod tests;
