//! The requests to each host and its answers, counted since the client was made.

use std::time::Duration;

/// A new latency counts one part in so many of the smoothed one.
const SMOOTHING: u32 = 8;

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
    /// Answers of every status.
    pub answers: u64,
    /// Time from sending a request to the head of its answer, of all answers together.
    pub waited: Duration,
    /// The same for one answer, smoothed over the last ones; of several hosts the longest.
    pub latency: Duration,
    /// Failures since the last answer.
    pub failures_in_a_row: u32,
    /// The breaker is open: nothing is sent for so long.
    pub opens_in: Option<Duration>,
    /// The host asked for a pause (`Retry-After`) that lasts so long still.
    pub paused_for: Option<Duration>,
    /// Requests that the host allows in a window, as it has announced.
    pub limit: Option<u64>,
    /// The length of that window.
    pub window: Option<Duration>,
    /// Requests that are left in it.
    pub remaining: Option<u64>,
    /// The next window begins then.
    pub resets_in: Option<Duration>,
    /// The host's limit holds readers back: the next request is sent then.
    pub paced_for: Option<Duration>,
    /// Readers that wait for a permit.
    pub waiting_readers: u64,
}

impl HostTraffic {
    /// The head of an answer came after `latency`.
    pub(super) fn answered(&mut self, status: u16, latency: Duration) {
        self.refusals += u64::from(status >= 400);
        self.waited += latency;
        self.latency = match self.answers {
            0 => latency,
            _ => self.latency - self.latency / SMOOTHING + latency / SMOOTHING,
        };
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
        self.latency = self.latency.max(other.latency);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_smoothed_and_begins_with_the_first() {
        let mut counted = HostTraffic::default();
        counted.answered(200, Duration::from_millis(80));
        assert_eq!(counted.latency, Duration::from_millis(80));
        counted.answered(404, Duration::from_millis(160));

        assert_eq!(counted.latency, Duration::from_millis(90));
        assert_eq!((counted.waited, counted.answers, counted.refusals), (Duration::from_millis(240), 2, 1));
    }
}
