//! Failures to write the cache folder. While they last files are read past it.

use super::super::files::lock;
use super::super::{StoreError, WriteFailure};
use crate::document::Timestamp;
use crate::platform::descriptors::is_shortage;
use crate::platform::error_chain::chain;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// After a failure the folder is not written for so long; then one writer finds out whether it can be.
const RETRY: Duration = Duration::from_secs(10);

/// The failure that lasts.
#[derive(Default)]
pub(in crate::content) struct WriteFailures(Mutex<Option<Lasting>>);

struct Lasting {
    failure: WriteFailure,
    /// When the first write failed.
    since: Instant,
    /// When the next writer tries.
    next: Instant,
}

impl WriteFailures {
    /// A write failed. A folder without room is not a failure: other objects may have room. Nor are descriptors that are short.
    pub(in crate::content) fn failed(&self, error: &StoreError) {
        match error {
            StoreError::Io { cause, .. } if !is_shortage(cause) => {}
            StoreError::Index { .. } => {}
            _ => return,
        }
        let (mut lasting, why) = (lock(&self.0), chain(error));
        let next = Instant::now() + RETRY;
        match &mut *lasting {
            Some(lasting) => (lasting.failure.why, lasting.next) = (why, next),
            none => {
                tracing::warn!(error = %why, "the cache cannot be written; files are read past it");
                let failure = WriteFailure { since: Timestamp::now(), why };
                *none = Some(Lasting { failure, since: Instant::now(), next });
            }
        }
    }

    /// An object was written that was `begun` then. One that was begun before the failure proves nothing.
    pub(super) fn ended(&self, begun: Instant) {
        if lock(&self.0).take_if(|lasting| lasting.since < begun).is_some() {
            tracing::info!("the cache can be written again");
        }
    }

    /// The failure that lasts.
    pub(in crate::content) fn lasting(&self) -> Option<WriteFailure> {
        lock(&self.0).as_ref().map(|lasting| lasting.failure.clone())
    }

    /// Returns whether the folder is better not written now. One caller in a while learns that it is to try.
    pub(in crate::content) fn is_lasting(&self, now: Instant) -> bool {
        match &mut *lock(&self.0) {
            Some(lasting) if now >= lasting.next => {
                lasting.next = now + RETRY;
                false
            }
            lasting => lasting.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn failed(kind: io::ErrorKind) -> StoreError {
        StoreError::Io { path: "/cache/tmp/a".into(), cause: kind.into() }
    }

    #[test]
    fn one_writer_in_a_while_tries_a_folder_that_failed() {
        let failures = WriteFailures::default();
        failures.failed(&StoreError::Full { folder: "/cache".into() });
        assert!(!failures.is_lasting(Instant::now()) && failures.lasting().is_none(), "no room is no failure");

        let begun = Instant::now();
        failures.failed(&failed(io::ErrorKind::ReadOnlyFilesystem));
        failures.ended(begun);

        let later = Instant::now() + RETRY;
        assert!(failures.is_lasting(Instant::now()));
        assert!(!failures.is_lasting(later) && failures.is_lasting(later), "one tries, the others do not wait for it");
        assert!(failures.lasting().is_some_and(|failure| failure.why.contains("/cache/tmp/a")));
        failures.ended(Instant::now());
        assert!(!failures.is_lasting(Instant::now()) && failures.lasting().is_none());
    }
}
