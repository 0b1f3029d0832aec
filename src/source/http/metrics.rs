//! The requests to each host and its answers, counted since the client was made.

use crate::platform::milliseconds;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A new latency counts one part in so many of the smoothed one.
const SMOOTHING: u32 = 8;

/// Upper bounds of the latencies that are counted apart, in milliseconds.
pub const LATENCIES: [u64; 10] = [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 10_000];

/// An answer that takes longer is slow.
const SLOW: Duration = Duration::from_secs(1);

/// The requests to one host since the client was made, and its state now; also as JSON shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostTraffic {
    /// `HOST[:PORT]`; `None`: all hosts together that came after the first 64.
    pub host: Option<Box<str>>,
    /// Requests sent, each repetition and each redirect counted.
    pub requests: u64,
    /// Requests without an answer: no name, no connection, no head.
    pub failures: u64,
    /// Answers with a status of 400 or more, except where a list was only looked for.
    pub refusals: u64,
    /// Bytes of bodies that came.
    pub bytes: u64,
    /// Answers of every status.
    pub answers: u64,
    /// Time from sending a request to the head of its answer, of all answers together.
    #[serde(rename = "waited_ms", with = "milliseconds")]
    pub waited: Duration,
    /// Answers by that time: how many came within each of [`LATENCIES`] and not within the one before.
    pub latencies: [u64; LATENCIES.len()],
    /// Latency of one answer, smoothed over the last ones; of several hosts the longest. `None` before the first answer.
    #[serde(rename = "latency_ms", with = "milliseconds")]
    pub latency: Option<Duration>,
    /// Failures since the last answer.
    pub failures_in_a_row: u32,
    /// The breaker is open: nothing is sent for so long.
    #[serde(rename = "opens_in_ms", with = "milliseconds")]
    pub opens_in: Option<Duration>,
    /// The host asked for a pause (`Retry-After`) that lasts so long still.
    #[serde(rename = "paused_for_ms", with = "milliseconds")]
    pub paused_for: Option<Duration>,
    /// Requests that the host allows in a window, as it has announced.
    #[serde(rename = "limit_requests")]
    pub limit: Option<u64>,
    /// The length of that window.
    #[serde(rename = "limit_window_ms", with = "milliseconds")]
    pub window: Option<Duration>,
    /// Requests that are left in it.
    #[serde(rename = "remaining_requests")]
    pub remaining: Option<u64>,
    /// The next window begins then.
    #[serde(rename = "resets_in_ms", with = "milliseconds")]
    pub resets_in: Option<Duration>,
    /// The host's limit holds readers back: the next request is sent then.
    #[serde(rename = "paced_for_ms", with = "milliseconds")]
    pub paced_for: Option<Duration>,
    /// Readers that wait for a permit.
    pub waiting_readers: u64,
    /// The time for which other mirrors come before it, as it failed as a mirror: content sets it.
    #[serde(rename = "cools_for_ms", with = "milliseconds")]
    pub cools_for: Option<Duration>,
}

/// A host whose announced limit decides how long many requests take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// `HOST[:PORT]`
    pub host: String,
    /// Requests that it allows in a minute.
    pub requests_per_minute: u64,
    /// The least time that the requests which are left take.
    #[serde(rename = "least_s")]
    pub least: u64,
}

/// Requests a minute, where so many are allowed in a window; at least one.
pub fn per_minute(limit: u64, window: Duration) -> u64 {
    ((limit as f64 * 60.0 / window.as_secs_f64().max(1e-3)).round() as u64).max(1)
}

impl HostTraffic {
    /// True if it does not answer now.
    pub fn is_failing(&self) -> bool {
        self.failures_in_a_row > 0 || self.opens_in.is_some()
    }

    /// True if it answers late.
    pub fn is_slow(&self) -> bool {
        self.latency.is_some_and(|latency| latency >= SLOW)
    }

    /// Requests that it allows in a minute, where it has announced that.
    pub fn per_minute(&self) -> Option<u64> {
        Some(per_minute(self.limit?, self.window?))
    }

    /// The least time that so many requests take under the limit which the host has announced. `is_ahead`: no reader waits for them, so
    /// that half of each window is left.
    pub fn least_time(&self, requests: u64, is_ahead: bool) -> Option<Duration> {
        let (limit, window) = (self.limit?, self.window?);
        let kept = if is_ahead { limit / 2 } else { 0 };
        let (each, now) = ((limit - kept).max(1), self.remaining.unwrap_or(limit).saturating_sub(kept));
        let Some(later) = requests.checked_sub(now + 1) else { return Some(Duration::ZERO) };
        let whole = window.mul_f64(later as f64 / each as f64);
        Some(self.resets_in.unwrap_or(window).saturating_add(whole))
    }

    /// How its limit paces so many requests, if it has announced one.
    pub(super) fn pace(&self, requests: u64, is_ahead: bool) -> Option<Pace> {
        let least = self.least_time(requests, is_ahead)?.as_secs();
        Some(Pace { host: self.host.clone()?.into(), requests_per_minute: self.per_minute()?, least })
    }

    /// The head of an answer came after `latency`.
    pub(super) fn answered(&mut self, is_refusal: bool, latency: Duration) {
        self.refusals += u64::from(is_refusal);
        self.waited += latency;
        if let Some(bucket) = LATENCIES.iter().position(|bound| latency <= Duration::from_millis(*bound)) {
            self.latencies[bucket] += 1;
        }
        let smoothed = self.latency.map(|before| before - before / SMOOTHING + latency / SMOOTHING);
        self.latency = Some(smoothed.unwrap_or(latency));
        self.answers += 1;
    }

    /// Counts what another host was asked as well.
    pub(super) fn add(&mut self, other: &HostTraffic) {
        self.requests += other.requests;
        self.failures += other.failures;
        self.refusals += other.refusals;
        self.bytes += other.bytes;
        self.answers += other.answers;
        self.waited += other.waited;
        self.latencies.iter_mut().zip(other.latencies).for_each(|(own, other)| *own += other);
        self.latency = self.latency.max(other.latency);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_take_as_long_as_the_announced_limit_needs() {
        let minute = Duration::from_secs(60);
        let full = HostTraffic { limit: Some(60), window: Some(minute), ..HostTraffic::default() };
        let used = HostTraffic { remaining: Some(10), resets_in: Some(minute / 2), ..full.clone() };
        let seconds = |host: &HostTraffic, requests, is_ahead| host.least_time(requests, is_ahead).unwrap().as_secs();

        assert_eq!([60, 61, 121].map(|it| seconds(&full, it, false)), [0, 60, 120]);
        assert_eq!([30, 31, 61].map(|it| seconds(&full, it, true)), [0, 60, 120], "readers have the other half");
        assert_eq!([10, 11, 71].map(|it| seconds(&used, it, false)), [0, 30, 90]);
        assert_eq!(seconds(&used, 1, true), 30);
        assert_eq!(HostTraffic::default().least_time(1000, false), None);
        assert_eq!((per_minute(133, minute), per_minute(5000, 60 * minute), per_minute(1, 60 * minute)), (133, 83, 1));
    }

    #[test]
    fn a_latency_is_smoothed_and_begins_with_the_first() {
        let mut counted = HostTraffic::default();
        counted.answered(false, Duration::from_millis(80));
        assert_eq!(counted.latency, Some(Duration::from_millis(80)));
        counted.answered(true, Duration::from_millis(160));

        assert_eq!(counted.latency, Some(Duration::from_millis(90)));
        assert_eq!((counted.waited, counted.answers, counted.refusals), (Duration::from_millis(240), 2, 1));
        assert_eq!(counted.latencies, [0, 0, 0, 0, 1, 1, 0, 0, 0, 0], "80 ms are over 50, 160 ms over 100");
    }
}
