//! The token bucket of a bounded rate. Pure: the caller passes the time.

use std::time::{Duration, Instant};

/// A host that wants more time between two requests is given this much.
const INTERVAL_LIMIT: Duration = Duration::from_secs(60);

/// A bucket of one second's tokens, kept as a schedule: each token moves it on by one interval.
#[derive(Debug)]
pub(super) struct Bucket {
    /// The interval of `rate=`.
    configured: Duration,
    /// Zero: the rate is unbounded.
    interval: Duration,
    /// When the next token would come to a bucket that is never full.
    next: Option<Instant>,
}

impl Bucket {
    /// `rate` requests a second; unbounded for `None`.
    pub(super) fn new(rate: Option<f64>) -> Bucket {
        let rate = rate.filter(|rate| *rate > 0.0);
        let interval = rate.and_then(|rate| Duration::try_from_secs_f64(1.0 / rate).ok()).unwrap_or_default();
        Bucket { configured: interval, interval, next: None }
    }

    /// The host's own interval, or zero where it has withdrawn that. The slower of this and `rate=` holds.
    pub(super) fn slow_down(&mut self, interval: Duration) {
        self.interval = self.configured.max(interval.min(INTERVAL_LIMIT));
    }

    /// The time of the next token; not after `now` where one is here.
    pub(super) fn next(&self, now: Instant) -> Instant {
        self.next.filter(|_| !self.interval.is_zero()).unwrap_or(now)
    }

    /// Takes the next token, which is here.
    pub(super) fn take(&mut self, now: Instant) {
        let burst = Duration::from_secs(1).saturating_sub(self.interval);
        let earliest = now.checked_sub(burst).unwrap_or(now);
        self.next = Some(self.next.map_or(earliest, |next| next.max(earliest)) + self.interval);
    }

    /// Whether it has a token, and the host has not asked for more time between two.
    pub(super) fn is_at_rest(&self, now: Instant) -> bool {
        self.interval == self.configured && self.next(now) <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes tokens as they come until `until`; when they came.
    fn taken(bucket: &mut Bucket, mut now: Instant, until: Instant) -> Vec<Duration> {
        let (begun, mut times) = (now, Vec::new());
        loop {
            now = now.max(bucket.next(now));
            if now > until {
                return times;
            }
            bucket.take(now);
            times.push(now - begun);
        }
    }

    #[test]
    fn a_burst_is_one_seconds_worth() {
        let (mut bucket, now) = (Bucket::new(Some(4.0)), Instant::now());
        let times = taken(&mut bucket, now, now + Duration::from_secs(1));
        assert_eq!(times.iter().filter(|time| time.is_zero()).count(), 4);
        assert_eq!(times[4..], [250, 500, 750, 1000].map(Duration::from_millis));
        let later = now + Duration::from_secs(100);
        assert_eq!(taken(&mut bucket, later, later).len(), 4, "a rest fills it once");
    }

    #[test]
    fn slow_rates_have_no_burst() {
        let (mut bucket, now) = (Bucket::new(Some(0.5)), Instant::now());
        assert_eq!(taken(&mut bucket, now, now + Duration::from_secs(5)), [0, 2, 4].map(Duration::from_secs));
    }

    #[test]
    fn a_host_may_be_slower_than_set_but_not_faster() {
        let (mut bucket, now) = (Bucket::new(Some(2.0)), Instant::now());
        bucket.slow_down(Duration::from_secs(3));
        assert_eq!(taken(&mut bucket, now, now + Duration::from_secs(6)), [0, 3, 6].map(Duration::from_secs));
        bucket.slow_down(Duration::from_millis(1));
        let later = now + Duration::from_secs(100);
        assert_eq!(taken(&mut bucket, later, later).len(), 2);
        bucket.slow_down(Duration::from_secs(1 << 20));
        assert_eq!(bucket.interval, INTERVAL_LIMIT);
    }

    #[test]
    fn without_a_rate_tokens_are_always_here() {
        let (mut bucket, now) = (Bucket::new(None), Instant::now());
        (0..1000).for_each(|_| bucket.take(now));
        assert_eq!(bucket.next(now), now);
    }
}
