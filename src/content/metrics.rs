//! What was read, downloaded and failed since the mount began.

use super::store::WriteFailure;
use super::{ContentError, FetchSpec};
use crate::document::{Timestamp, Uri};
use crate::platform::error_chain::chain;
use crate::platform::ino::Ino;
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Failures remembered.
const MOST_FAILURES: usize = 50;

/// Bytes of a failure's text that are remembered: part of it comes from the Source.
const LONGEST_TEXT: usize = 1000;

/// A file that could not be read or sized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadFailure {
    /// When.
    pub time: Timestamp,
    /// Which version.
    pub ino: Ino,
    /// Its resource.
    pub uri: Uri,
    /// Why, with its causes.
    pub why: String,
}

/// A host that is asked last because it failed lately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cooling {
    /// `HOST[:PORT]`
    pub host: Box<str>,
    /// For so long still.
    pub left: Duration,
}

/// Reads and downloads since the mount began, and the cache as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// Whole objects in the cache folder, for all mounts that use it.
    pub objects: u64,
    /// Bytes that the folder takes.
    pub bytes: u64,
    /// Bytes that it may take.
    pub quota: u64,
    /// READs of the kernel that this machine answered at once.
    pub hits: u64,
    /// Their bytes.
    pub hit_bytes: u64,
    /// READs that waited for the shared cache and got their bytes.
    pub shared_hits: u64,
    /// Their bytes.
    pub shared_bytes: u64,
    /// READs that waited for the Source and got their bytes.
    pub misses: u64,
    /// Their bytes.
    pub miss_bytes: u64,
    /// READs that failed.
    pub failed_reads: u64,
    /// Downloads that began.
    pub fetches: u64,
    /// Downloads that failed.
    pub failed_fetches: u64,
    /// Bytes of the files that were downloaded whole.
    pub fetched_bytes: u64,
    /// Sizes that were asked for.
    pub sizes: u64,
    /// Sizes that were not learnt.
    pub failed_sizes: u64,
    /// Downloads that met bytes which the Source has not announced yet.
    #[serde(skip)]
    pub unannounced: u64,
    /// Why nothing can be kept in the cache folder, where that is so.
    #[serde(skip)]
    pub write_failure: Option<WriteFailure>,
    /// Hosts that are asked last.
    #[serde(skip)]
    pub cooling: Vec<Cooling>,
    /// The latest failures, the newest first.
    #[serde(skip)]
    pub failures: Vec<ReadFailure>,
}

/// The counters behind the metrics; their lock is never held across I/O.
#[derive(Debug, Default)]
pub(super) struct Counters(Mutex<Metrics>);

impl Counters {
    /// A READ was answered at once.
    pub(super) fn hit(&self, bytes: usize) {
        let mut metrics = self.lock();
        metrics.hits += 1;
        metrics.hit_bytes += bytes as u64;
    }

    /// A READ that waited got so many bytes, of the shared cache or of the Source.
    pub(super) fn waited(&self, bytes: usize, is_shared: bool) {
        let mut metrics = self.lock();
        let Metrics { shared_hits, shared_bytes, misses, miss_bytes, .. } = &mut *metrics;
        let (reads, read) = if is_shared { (shared_hits, shared_bytes) } else { (misses, miss_bytes) };
        *reads += 1;
        *read += bytes as u64;
    }

    /// A download failed.
    pub(super) fn fetch_failed(&self, spec: &FetchSpec, error: &ContentError) {
        let mut metrics = self.lock();
        metrics.failed_fetches += 1;
        metrics.remember(spec, error);
    }

    /// A size was asked for.
    pub(super) fn size(&self, spec: &FetchSpec, outcome: Result<(), &ContentError>) {
        let mut metrics = self.lock();
        metrics.sizes += 1;
        if let Err(error) = outcome {
            metrics.failed_sizes += 1;
            metrics.remember(spec, error);
        }
    }

    /// The counters, to add to or to read; `Content::metrics` adds the cache and the hosts that are asked last.
    pub(super) fn lock(&self) -> MutexGuard<'_, Metrics> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Metrics {
    /// The part of the answered READs that this machine answered at once; `None` before the first.
    pub fn hit_rate(&self) -> Option<f64> {
        let answered =
            self.hits.checked_add(self.shared_hits)?.checked_add(self.misses).filter(|answered| *answered > 0)?;
        Some(self.hits as f64 / answered as f64)
    }

    /// Why this version failed last, among the latest failures.
    pub(super) fn failure(&self, ino: Ino) -> Option<String> {
        self.failures.iter().find(|failed| failed.ino == ino).map(|failed| failed.why.clone())
    }

    fn remember(&mut self, spec: &FetchSpec, error: &ContentError) {
        if error.is_spent() {
            // The status shows the limit. All that was tried past it would hide other failures.
            return;
        }
        let mut why = chain(error);
        if why.len() > LONGEST_TEXT {
            let end = (0..=LONGEST_TEXT).rev().find(|end| why.is_char_boundary(*end)).unwrap_or(0);
            why.truncate(end);
            why.push('…');
        }
        // A body that is fetched for its size fails both ways.
        if self.failures.first().is_none_or(|last| last.ino != spec.ino || last.why != why) {
            let (ino, uri) = (spec.ino, spec.uri.clone());
            self.failures.insert(0, ReadFailure { time: Timestamp::now(), ino, uri, why });
            self.failures.truncate(MOST_FAILURES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_failures_are_remembered_and_no_more() {
        let counters = Counters::default();
        let uri = |number: usize| Uri::parse(&format!("http://h/{number}")).unwrap();
        for number in 0..2 * MOST_FAILURES {
            let error = ContentError::Mismatch { uri: uri(number), what: "x".repeat(100_000) };
            let spec = FetchSpec::new(Ino(number as u64), uri(number));
            counters.fetch_failed(&spec, &error);
            counters.fetch_failed(&spec, &error);
        }

        let metrics = counters.lock();

        assert_eq!((metrics.failures.len(), metrics.failed_fetches), (MOST_FAILURES, 4 * MOST_FAILURES as u64));
        assert_eq!(metrics.failures[0].uri, uri(2 * MOST_FAILURES - 1), "the newest first");
        assert!(metrics.failure(Ino(0)).is_none() && metrics.failure(metrics.failures[1].ino).is_some());
        assert!(metrics.failures.iter().all(|failure| failure.why.len() < 2 * LONGEST_TEXT));
    }
}
