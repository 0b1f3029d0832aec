//! The requests to each host and its answers, counted since the client was made.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Hosts counted by name; further ones are counted together, so that the numbers stay few.
const NAMED: usize = 64;

/// A new latency counts one part in so many of the smoothed one.
const SMOOTHING: u32 = 8;

/// The counters of one host.
#[derive(Debug, Default)]
pub(super) struct HostCounters {
    /// Held for a few instructions.
    counted: Mutex<HostTraffic>,
}

impl HostCounters {
    fn counted(&self) -> MutexGuard<'_, HostTraffic> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request was sent.
    pub(super) fn sent(&self) {
        self.counted().requests += 1;
    }

    /// The head of an answer came after `latency`.
    pub(super) fn answered(&self, status: u16, latency: Duration) {
        let mut counted = self.counted();
        counted.refusals += u64::from(status >= 400);
        counted.waited += latency;
        counted.latency = match counted.answers {
            0 => latency,
            _ => counted.latency - counted.latency / SMOOTHING + latency / SMOOTHING,
        };
        counted.answers += 1;
    }

    /// No answer came.
    pub(super) fn failed(&self) {
        self.counted().failures += 1;
    }

    /// Bytes of a body came.
    pub(super) fn received(&self, bytes: u64) {
        self.counted().bytes += bytes;
    }

    /// Rises with each answer and each byte of the host.
    pub(super) fn progress(&self) -> u64 {
        let counted = self.counted();
        counted.bytes.wrapping_add(counted.answers)
    }

    fn snapshot(&self, host: Option<Box<str>>) -> HostTraffic {
        HostTraffic { host, ..self.counted().clone() }
    }
}

/// The requests to one host since the client was made, and its state now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostTraffic {
    /// `HOST[:PORT]`; `None`: all hosts together that came after the first 64.
    pub host: Option<Box<str>>,
    /// Requests sent, each repetition and each redirect counted.
    pub requests: u64,
    /// Requests without an answer: no name, no connection, no head.
    pub failures: u64,
    /// Answers with a status of 400 or more.
    pub refusals: u64,
    /// Bytes of bodies that came.
    pub bytes: u64,
    /// Answers, whatever their status.
    pub answers: u64,
    /// Time from sending a request to the head of its answer, of all answers together.
    pub waited: Duration,
    /// The same for one answer, smoothed over the last ones.
    pub latency: Duration,
    /// Failures since the last answer.
    pub failures_in_a_row: u32,
    /// The breaker is open: nothing is sent for so long.
    pub opens_in: Option<Duration>,
    /// The host asked for a pause (`Retry-After`) that lasts so long still.
    pub paused_for: Option<Duration>,
}

/// The counters of all hosts.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    hosts: Mutex<HashMap<Box<str>, Arc<HostCounters>>>,
    others: Arc<HostCounters>,
}

impl Traffic {
    /// The counters of a host.
    pub(super) fn of(&self, authority: &str) -> Arc<HostCounters> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counters) = hosts.get(authority) {
            return Arc::clone(counters);
        }
        if hosts.len() >= NAMED {
            return Arc::clone(&self.others);
        }
        Arc::clone(hosts.entry(authority.into()).or_default())
    }

    /// What was counted, those asked most first.
    pub(super) fn snapshot(&self) -> Vec<HostTraffic> {
        let hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = hosts.iter().map(|(host, counters)| counters.snapshot(Some(host.clone()))).collect();
        drop(hosts);
        all.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.host.cmp(&b.host)));
        let others = self.others.snapshot(None);
        if others.requests > 0 {
            all.push(others);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_is_counted_by_itself_and_too_many_together() {
        let traffic = Traffic::default();
        for number in 0..NAMED + 10 {
            traffic.of(&format!("h{number}")).sent();
        }
        traffic.of("h3").sent();

        let counted = traffic.snapshot();

        assert_eq!(counted.len(), NAMED + 1);
        assert_eq!((counted[0].host.as_deref(), counted[0].requests), (Some("h3"), 2));
        assert_eq!((&counted[NAMED].host, counted[NAMED].requests), (&None, 10));
    }

    #[test]
    fn a_latency_is_smoothed_and_begins_with_the_first() {
        let counters = HostCounters::default();
        counters.answered(200, Duration::from_millis(80));
        assert_eq!(counters.snapshot(None).latency, Duration::from_millis(80));
        counters.answered(404, Duration::from_millis(160));

        let counted = counters.snapshot(None);

        assert_eq!(counted.latency, Duration::from_millis(90));
        assert_eq!((counted.waited, counted.answers, counted.refusals), (Duration::from_millis(240), 2, 1));
    }
}
