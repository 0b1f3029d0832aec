//! What a mount has done since it began, as `status` tells it: reads, the cache, hosts, programs, errors.

use crate::content::Metrics;
use crate::document::Timestamp;
use crate::fs::programs::Reading;
use crate::source::http::HostTraffic;
use crate::sync::status::FailedRefresh;
use serde::{Deserialize, Serialize};

/// Reads and fetches since the mount began, and the cache as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStatus {
    /// Whole objects in the cache folder, those of other mounts included.
    pub objects: u64,
    /// Octets that the folder takes.
    pub octets: u64,
    /// Octets that it may take.
    pub quota: u64,
    /// READs that this machine answered at once.
    pub hits: u64,
    /// Their octets.
    pub hit_octets: u64,
    /// READs that waited for the Source.
    pub misses: u64,
    /// Their octets.
    pub miss_octets: u64,
    /// READs that failed.
    pub failed_reads: u64,
    /// Fetches begun.
    pub fetches: u64,
    /// Fetches that failed.
    pub failed_fetches: u64,
    /// Octets of the files that were fetched whole.
    pub fetched_octets: u64,
    /// Sizes asked for.
    pub sizes: u64,
    /// Sizes that could not be had.
    pub failed_sizes: u64,
}

impl From<&Metrics> for CacheStatus {
    fn from(content: &Metrics) -> CacheStatus {
        CacheStatus {
            objects: content.cache.objects,
            octets: content.cache.bytes,
            quota: content.cache.quota,
            hits: content.hits,
            hit_octets: content.hit_bytes,
            misses: content.misses,
            miss_octets: content.miss_bytes,
            failed_reads: content.failed_reads,
            fetches: content.fetches,
            failed_fetches: content.failed_fetches,
            fetched_octets: content.fetched_bytes,
            sizes: content.sizes,
            failed_sizes: content.failed_sizes,
        }
    }
}

impl CacheStatus {
    /// Which part of the READs was answered at once, of those that were answered; `None` before the first.
    pub fn hit_rate(&self) -> Option<f64> {
        let answered = self.hits.checked_add(self.misses).filter(|answered| *answered > 0)?;
        Some(self.hits as f64 / answered as f64)
    }
}

/// A host that was asked. Durations are in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    /// `HOST[:PORT]`; `None`: all that came after the first 64.
    pub host: Option<String>,
    /// Requests sent.
    pub requests: u64,
    /// Requests without an answer.
    pub failures: u64,
    /// Answers with a status of 400 or more.
    pub refusals: u64,
    /// Octets of bodies that came.
    pub octets: u64,
    /// Answers.
    pub answers: u64,
    /// Time to the heads of all answers together.
    pub waited: u64,
    /// Time to the head of an answer, smoothed over the last ones.
    pub latency: u64,
    /// Failures since the last answer.
    pub failures_in_a_row: u32,
    /// The breaker is open: nothing is sent for so long.
    pub opens_in: Option<u64>,
    /// The host asked for a pause that lasts so long still.
    pub paused_for: Option<u64>,
    /// As a mirror it failed lately, and others are asked before it for so long.
    pub cools_for: Option<u64>,
}

/// An answer that takes longer is slow, in milliseconds.
const SLOW: u64 = 1000;

impl HostStatus {
    /// The hosts that were asked, each with how long it cools down.
    pub(super) fn all(traffic: Vec<HostTraffic>, content: &Metrics) -> Vec<HostStatus> {
        let milliseconds = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let cools_for = |host: &str| {
            let cooling = content.cooling.iter().find(|cooling| &*cooling.host == host);
            cooling.map(|cooling| milliseconds(cooling.left))
        };
        let status = |host: HostTraffic| HostStatus {
            requests: host.requests,
            failures: host.failures,
            refusals: host.refusals,
            octets: host.bytes,
            answers: host.answers,
            waited: milliseconds(host.waited),
            latency: milliseconds(host.latency),
            failures_in_a_row: host.failures_in_a_row,
            opens_in: host.opens_in.map(milliseconds),
            paused_for: host.paused_for.map(milliseconds),
            cools_for: host.host.as_deref().and_then(cools_for),
            host: host.host.map(String::from),
        };
        traffic.into_iter().map(status).collect()
    }

    /// Whether it does not answer now.
    pub fn is_failing(&self) -> bool {
        self.failures_in_a_row > 0 || self.opens_in.is_some()
    }

    /// Whether it answers late.
    pub fn is_slow(&self) -> bool {
        self.latency >= SLOW
    }
}

/// A program that has read, or was refused (`deny=`). What it reads of the kernel's own pages is not seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramStatus {
    /// Its name as in `/proc/PID/comm`.
    pub program: String,
    /// READs that were answered.
    pub reads: u64,
    /// Their octets.
    pub octets: u64,
    /// READs and questions for a size that were refused.
    pub denied: u64,
}

impl From<Reading> for ProgramStatus {
    fn from(reading: Reading) -> ProgramStatus {
        ProgramStatus {
            program: reading.program.to_string(),
            reads: reading.reads,
            octets: reading.bytes,
            denied: reading.denied,
        }
    }
}

/// Something that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorStatus {
    /// When.
    pub time: String,
    /// The resource; `None`: a look at the Source's lists.
    pub uri: Option<String>,
    /// Why.
    pub why: String,
}

impl ErrorStatus {
    /// The latest failures, the newest first.
    pub(super) fn all(content: &Metrics, refreshes: &[FailedRefresh]) -> Vec<ErrorStatus> {
        let read = content.failures.iter().map(|failure| ErrorStatus {
            time: failure.time.to_string(),
            uri: Some(failure.uri.to_string()),
            why: failure.why.clone(),
        });
        let refreshed = refreshes.iter().map(|failed| ErrorStatus {
            time: failed.ended.clone(),
            uri: None,
            why: failed.why.clone(),
        });
        let mut all: Vec<_> = read.chain(refreshed).collect();
        all.sort_by_key(|error| std::cmp::Reverse(Timestamp::parse(&error.time)));
        all
    }
}
