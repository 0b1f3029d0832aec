//! What was read, fetched and failed since the mount began.
//!
//! Reads that this machine answers only add to numbers; failures alone take a lock.

use super::ContentError;
use super::store::Usage;
use crate::causes::chain;
use crate::document::{Timestamp, Uri};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Failures remembered.
const FAILURES: usize = 50;

/// Bytes of a failure's text that are remembered: a Source has its say in it.
const LONGEST_TEXT: usize = 1000;

/// Something that could not be read or sized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// When.
    pub time: Timestamp,
    /// Which resource.
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

/// What content has done since the mount began, and what the cache holds now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// READs of the kernel that were answered from this machine at once.
    pub hits: u64,
    /// Their bytes.
    pub hit_bytes: u64,
    /// READs that waited for the Source and got their bytes.
    pub misses: u64,
    /// Their bytes.
    pub miss_bytes: u64,
    /// READs that failed.
    pub failed_reads: u64,
    /// Objects whose fetch was begun.
    pub fetches: u64,
    /// Fetches that failed.
    pub failed_fetches: u64,
    /// Sizes that were asked for.
    pub sizes: u64,
    /// Sizes that could not be had.
    pub failed_sizes: u64,
    /// Bytes of the objects that came, as files.
    pub fetched_bytes: u64,
    /// The cache folder, all its mounts counted.
    pub cache: Usage,
    /// Hosts that are asked last.
    pub cooling: Vec<Cooling>,
    /// The latest failures, the newest first.
    pub failures: Vec<Failure>,
}

/// The numbers themselves.
#[derive(Debug, Default)]
pub(super) struct Counters {
    hits: AtomicU64,
    hit_bytes: AtomicU64,
    misses: AtomicU64,
    miss_bytes: AtomicU64,
    failed_reads: AtomicU64,
    fetches: AtomicU64,
    failed_fetches: AtomicU64,
    sizes: AtomicU64,
    failed_sizes: AtomicU64,
    fetched_bytes: AtomicU64,
    /// The newest last.
    failures: Mutex<VecDeque<Failure>>,
}

impl Counters {
    /// A READ was answered at once.
    pub(super) fn hit(&self, bytes: usize) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.hit_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A READ that waited is over.
    pub(super) fn waited<T>(&self, outcome: Result<usize, T>) {
        match outcome {
            Ok(bytes) => {
                self.misses.fetch_add(1, Ordering::Relaxed);
                self.miss_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Err(_) => {
                self.failed_reads.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A fetch begins.
    pub(super) fn fetch(&self) {
        self.fetches.fetch_add(1, Ordering::Relaxed);
    }

    /// A fetch brought a whole object.
    pub(super) fn fetched(&self, bytes: u64) {
        self.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A fetch failed.
    pub(super) fn fetch_failed(&self, uri: &Uri, error: &ContentError) {
        self.failed_fetches.fetch_add(1, Ordering::Relaxed);
        self.remember(uri, error);
    }

    /// A size was asked for.
    pub(super) fn size(&self, uri: &Uri, outcome: Result<(), &ContentError>) {
        self.sizes.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = outcome {
            self.failed_sizes.fetch_add(1, Ordering::Relaxed);
            self.remember(uri, error);
        }
    }

    fn remember(&self, uri: &Uri, error: &ContentError) {
        let mut why = chain(error);
        if why.len() > LONGEST_TEXT {
            let end = (0..=LONGEST_TEXT).rev().find(|end| why.is_char_boundary(*end)).unwrap_or(0);
            why.truncate(end);
            why.push('…');
        }
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        // A body that is fetched for its size fails both ways.
        if failures.back().is_some_and(|last| last.uri == *uri && last.why == why) {
            return;
        }
        if failures.len() >= FAILURES {
            failures.pop_front();
        }
        failures.push_back(Failure { time: Timestamp::now(), uri: uri.clone(), why });
    }

    /// What was counted; what the cache holds and who cools down is for others to add.
    pub(super) fn snapshot(&self) -> Tally {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        Tally {
            hits: number(&self.hits),
            hit_bytes: number(&self.hit_bytes),
            misses: number(&self.misses),
            miss_bytes: number(&self.miss_bytes),
            failed_reads: number(&self.failed_reads),
            fetches: number(&self.fetches),
            failed_fetches: number(&self.failed_fetches),
            sizes: number(&self.sizes),
            failed_sizes: number(&self.failed_sizes),
            fetched_bytes: number(&self.fetched_bytes),
            failures: failures.iter().rev().cloned().collect(),
            ..Tally::default()
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
        for number in 0..2 * FAILURES {
            let error = ContentError::Mismatch { uri: uri(number), what: "x".repeat(100_000) };
            counters.fetch_failed(&uri(number), &error);
            counters.fetch_failed(&uri(number), &error);
        }

        let tally = counters.snapshot();

        assert_eq!((tally.failures.len(), tally.failed_fetches), (FAILURES, 4 * FAILURES as u64));
        assert_eq!(tally.failures[0].uri, uri(2 * FAILURES - 1), "the newest first");
        assert!(tally.failures.iter().all(|failure| failure.why.len() < 2 * LONGEST_TEXT));
    }
}
