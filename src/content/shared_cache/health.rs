//! What the shared cache did, and whether it is asked: after a failure it is left alone for a while.

use super::super::store::ObjectKey;
use crate::platform::error_chain::chain;
use crate::platform::penalty_box::PenaltyBox;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The shared cache is not asked for so long after a failure: the first time, and at most.
const PAUSE: RangeInclusive<Duration> = Duration::from_secs(30)..=Duration::from_secs(600);

/// An object with wrong bytes is not asked for again for so long.
const WRONG: Duration = Duration::from_secs(3600);

/// Wrong objects that are remembered, and the store itself.
const REMEMBERED: NonZeroUsize = NonZeroUsize::MIN.saturating_add(16_383);

/// Characters of a failure that are remembered.
const LONGEST: usize = 300;

/// The shared cache since the mount began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SharedCacheStatus {
    /// Address of the store.
    pub url: String,
    /// `working`, or `paused: ` or `only read: ` and why.
    pub state: String,
    /// Files that came from it.
    pub hits: u64,
    /// Files that it did not have.
    pub misses: u64,
    /// Bytes that it sent.
    pub bytes_read: u64,
    /// Bytes that were uploaded.
    pub bytes_written: u64,
    /// Files that were uploaded.
    pub uploads: u64,
    /// Files that were not uploaded, because too many waited or the store failed.
    pub dropped: u64,
    /// Requests that failed, and files of it that were wrong.
    pub failures: u64,
}

/// Why the shared cache is of no use now.
#[derive(Debug, thiserror::Error)]
pub(in crate::content) enum SharedError {
    #[error("the shared cache failed")]
    Store(#[from] object_store::Error),
    #[error("the shared cache is too slow")]
    Slow,
    #[error("the shared cache returned wrong bytes")]
    Wrong,
    #[error("the folder of the shared cache is missing, or less than 5 % of its file system is free")]
    NoRoom,
    #[error("the object to upload cannot be read")]
    Unreadable(#[source] io::Error),
}

/// Fault of the store. A store that cannot be written may still be read.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Fault {
    Reads,
    Uploads,
    Object(ObjectKey),
}

/// Counts, and remembers what failed.
pub(in crate::content) struct Health {
    counted: Mutex<SharedCacheStatus>,
    faults: Mutex<PenaltyBox<Fault, String>>,
}

impl Health {
    pub(super) fn new(url: String) -> Health {
        let counted = Mutex::new(SharedCacheStatus { url, ..SharedCacheStatus::default() });
        Health { counted, faults: Mutex::new(PenaltyBox::new(REMEMBERED)) }
    }

    fn counted(&self) -> MutexGuard<'_, SharedCacheStatus> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, PenaltyBox<Fault, String>> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether nothing is uploaded now.
    pub(super) fn is_closed(&self) -> bool {
        self.faults().is_punished(&Fault::Uploads, Instant::now())
    }

    /// Returns whether the store has wrong bytes in its place.
    pub(super) fn is_wrong(&self, key: &ObjectKey) -> bool {
        self.faults().is_punished(&Fault::Object(key.clone()), Instant::now())
    }

    /// Returns whether this object is not asked for now.
    pub(super) fn is_shunned(&self, key: &ObjectKey) -> bool {
        let (faults, now) = (self.faults(), Instant::now());
        faults.is_punished(&Fault::Reads, now) || faults.is_punished(&Fault::Object(key.clone()), now)
    }

    /// An object of it was right.
    pub(in crate::content) fn hit(&self) {
        self.counted().hits += 1;
        self.faults().forgive(&Fault::Reads);
    }

    /// Counts an object that the store does not have.
    pub(super) fn miss(&self) {
        self.counted().misses += 1;
    }

    pub(super) fn received(&self, bytes: usize) {
        self.counted().bytes_read += bytes as u64;
    }

    /// An object was uploaded.
    pub(super) fn uploaded(&self, key: &ObjectKey, bytes: u64) {
        let mut counted = self.counted();
        counted.uploads += 1;
        counted.bytes_written += bytes;
        drop(counted);
        let mut faults = self.faults();
        faults.forgive(&Fault::Uploads);
        faults.forgive(&Fault::Object(key.clone()));
    }

    pub(super) fn dropped(&self) {
        self.counted().dropped += 1;
    }

    /// A request for bytes failed.
    pub(super) fn failed(&self, error: &SharedError) {
        self.fault(Fault::Reads, reason(error));
    }

    /// A body ended too early, of which much had arrived.
    pub(super) fn broke_off(&self) {
        self.counted().failures += 1;
    }

    /// An upload failed.
    pub(super) fn upload_failed(&self, error: &SharedError) {
        self.dropped();
        self.fault(Fault::Uploads, reason(error));
    }

    /// An object of it was wrong.
    pub(in crate::content) fn wrong(&self, key: &ObjectKey) {
        self.faults().punish(Fault::Object(key.clone()), WRONG, String::new(), Instant::now());
        self.fault(Fault::Reads, format!("it has wrong bytes for {key}"));
    }

    fn fault(&self, fault: Fault, mut why: String) {
        // Part of it comes from the store.
        if let Some((end, _)) = why.char_indices().nth(LONGEST) {
            why.truncate(end);
        }
        tracing::warn!(%why, "the shared cache is not used for a while");
        self.counted().failures += 1;
        self.faults().punish_longer(fault, PAUSE, why, Instant::now());
    }

    pub(super) fn status(&self) -> SharedCacheStatus {
        let (faults, now) = (self.faults(), Instant::now());
        let state = match (faults.cause(&Fault::Reads, now), faults.cause(&Fault::Uploads, now)) {
            (Some(why), _) => format!("paused: {why}"),
            (None, Some(why)) => format!("only read: {why}"),
            (None, None) => "working".to_owned(),
        };
        SharedCacheStatus { state, ..self.counted().clone() }
    }
}

/// Formats a failure for the status.
/// The addresses that the store's library puts before the answer of the store would leave no room for it.
fn reason(error: &SharedError) -> String {
    let (mut next, mut answer): (Option<&(dyn Error + 'static)>, _) = (Some(error), None);
    while let Some(cause) = next {
        next = cause.source();
        if cause.to_string().starts_with("Error performing ") {
            answer = next;
        }
    }
    match answer {
        Some(answer) => format!("{error}: {}", chain(answer)),
        None => chain(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Failure(String, #[source] Option<Box<Failure>>);

    #[test]
    fn a_reason_begins_with_the_answer_of_the_store() {
        let answer = Failure("status 403".to_owned(), None);
        let asked =
            Failure(format!("Error performing GET http://h/{:0300} in 1ms - status 403", 0), Some(answer.into()));
        let source = Box::new(asked);
        let denied = object_store::Error::PermissionDenied { path: "0".repeat(300), source };

        assert_eq!(reason(&denied.into()), "the shared cache failed: status 403");
        assert_eq!(reason(&SharedError::Slow), "the shared cache is too slow");
    }
}
