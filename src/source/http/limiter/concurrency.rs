//! How many requests one host is sent at a time: as many as it answers as fast as one, up to `connections=`. Pure: the caller passes the time.
//!
//! Additive increase, multiplicative decrease, as TCP does it (RFC 5681): at first the number doubles in each round trip, and it is halved
//! when the host refuses (429, 503) or does not answer. After that it grows by one in each round trip. Growth needs requests that use the number.
//!
//! It also shrinks when answers become slow, on trial: many requests are the reason only if fewer are answered faster. Answers are compared
//! by the means of rounds, because single ones differ: a cache answers at once, and what it does not hold is made first.

use std::time::{Duration, Instant};

/// Requests at a time before anything is known.
const FIRST: usize = 16;

/// A round is slow if its mean is past so many times the fastest one, and [`TOLERANCE`].
const SLOW: u32 = 4;
const TOLERANCE: Duration = Duration::from_millis(50);

/// Slowness alone leaves at least so many: fewer may be slow by their bodies.
pub(super) const SLOW_LEAST: usize = 4;

/// The part of the permits in use that a trial leaves.
const TRIAL: f64 = 0.55;

/// A trial has helped if answers come in less than this part of the time before.
const HELPED: f64 = 0.75;

/// One permit in so many is reserved for readers, at least one.
const FOR_READERS: usize = 16;

/// A round has so many answers at least, and lasts as long as one of them at least. Means of fewer differ by chance.
const ANSWERS: u32 = 32;

/// The number of permits of one host.
#[derive(Debug)]
pub(super) struct Concurrency {
    limit: usize,
    /// Its whole part counts; from 1 to `limit`.
    permits: f64,
    /// The host has refused nothing and was never slow.
    is_starting: bool,
    round: Round,
    /// The mean of the fastest round; the first answer before there is one.
    fastest: Option<Duration>,
    /// The mean of the last round, about a round trip.
    latest: Duration,
    /// During a trial: the permits before it, and the mean of the round before it.
    trial: Option<(f64, Duration)>,
    /// Answers that are passed over: their requests were sent before the trial.
    skipped: usize,
    halved: Option<Instant>,
}

/// Answers whose mean counts.
#[derive(Debug, Default)]
struct Round {
    began: Option<Instant>,
    answers: u32,
    sum: Duration,
}

impl Concurrency {
    /// At most `limit` permits, at least one.
    pub(super) fn new(limit: usize) -> Concurrency {
        let limit = limit.max(1);
        Concurrency {
            limit,
            permits: FIRST.min(limit) as f64,
            is_starting: true,
            round: Round::default(),
            fastest: None,
            latest: Duration::ZERO,
            trial: None,
            skipped: 0,
            halved: None,
        }
    }

    /// Requests that may be in flight.
    pub(super) fn permits(&self) -> usize {
        self.permits as usize
    }

    /// Those of them that no reader need wait for.
    pub(super) fn prefetch_permits(&self) -> usize {
        self.permits() - self.permits().div_ceil(FOR_READERS)
    }

    /// The head of an answer came after `latency`. With its request so many are in flight.
    pub(super) fn answered(&mut self, latency: Duration, in_flight: usize, now: Instant) {
        self.fastest.get_or_insert(latency);
        if self.skipped > 0 {
            self.skipped -= 1;
            return;
        }
        if self.trial.is_none() && 2 * in_flight >= self.permits() {
            let more = if self.is_starting { 1.0 } else { 1.0 / self.permits };
            self.permits = (self.permits + more).min(self.limit as f64);
        }
        let began = *self.round.began.get_or_insert_with(|| now.checked_sub(latency).unwrap_or(now));
        self.round.answers += 1;
        self.round.sum += latency;
        let (mean, took) = (self.round.sum / self.round.answers, now.saturating_duration_since(began));
        if self.round.answers >= ANSWERS && took >= mean {
            // Little's law: the requests in flight are those that came in the time, multiplied by how long each took.
            let used = self.permits.min(self.round.sum.as_secs_f64() / took.as_secs_f64());
            self.round = Round { began: Some(now), ..Round::default() };
            self.latest = mean;
            self.judge(mean, used);
        }
    }

    /// A round is over. Its answers took `mean`, with so many requests in flight.
    fn judge(&mut self, mean: Duration, used: f64) {
        let mut fastest = self.fastest.map_or(mean, |fastest| fastest.min(mean));
        match self.trial.take() {
            None => {}
            // The host is that slow however few requests it has.
            Some((before, slow)) if mean > slow.mul_f64(HELPED) => (self.permits, fastest) = (before, mean / 2),
            // The requests had waited for each other: the host is faster than an earlier trial may have shown by chance.
            Some(_) => fastest = fastest.min(mean / (SLOW - 1)),
        }
        self.fastest = Some(fastest);
        if mean > fastest * SLOW + TOLERANCE {
            self.is_starting = false;
            let fewer = (used * TRIAL).max(SLOW_LEAST as f64);
            if fewer < used {
                self.trial = Some((self.permits, mean));
                (self.skipped, self.permits) = (self.permits(), fewer);
            }
        }
    }

    /// The host refused for want of capacity, or did not answer. All requests of one round trip count once.
    pub(super) fn refused(&mut self, now: Instant) {
        self.is_starting = false;
        (self.trial, self.skipped) = (None, 0);
        let since = self.halved.map(|halved| now.saturating_duration_since(halved));
        if since.is_none_or(|since| since >= self.latest.max(TOLERANCE)) {
            self.halved = Some(now);
            self.permits = (self.permits / 2.0).max(1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// `count` answers of `latency` each, as many in flight as permitted.
    fn run(concurrency: &mut Concurrency, now: &mut Instant, count: usize, latency: Duration) {
        for _ in 0..count {
            *now += latency / concurrency.permits() as u32;
            concurrency.answered(latency, concurrency.permits(), *now);
        }
    }

    #[test]
    fn permits_grow_only_where_they_are_used() {
        let (mut concurrency, mut now) = (Concurrency::new(64), Instant::now());
        assert_eq!(concurrency.permits(), FIRST);
        for _ in 0..1000 {
            now += 40 * MS;
            concurrency.answered(40 * MS, 2, now);
        }
        assert_eq!(concurrency.permits(), FIRST);
        run(&mut concurrency, &mut now, 100, 40 * MS);
        assert_eq!(concurrency.permits(), 64);
    }

    #[test]
    fn a_refusal_halves_the_permits_once_a_round_trip() {
        let (mut concurrency, mut now) = (Concurrency::new(64), Instant::now());
        run(&mut concurrency, &mut now, 200, 100 * MS);
        (0..30).for_each(|_| concurrency.refused(now));
        assert_eq!(concurrency.permits(), 32);
        now += 100 * MS;
        concurrency.refused(now);
        assert_eq!(concurrency.permits(), 16);
        run(&mut concurrency, &mut now, 16, 100 * MS);
        assert!((16..=17).contains(&concurrency.permits()), "one more in a round trip");
        for _ in 0..100 {
            now += 1000 * MS;
            concurrency.refused(now);
        }
        assert_eq!((concurrency.permits(), concurrency.prefetch_permits()), (1, 0));
    }

    #[test]
    fn a_sixteenth_is_reserved_for_readers() {
        for (permits, prefetch) in [(1, 0), (2, 1), (16, 15), (17, 15), (64, 60)] {
            let concurrency = Concurrency { permits: permits as f64, ..Concurrency::new(64) };
            assert_eq!(concurrency.prefetch_permits(), prefetch, "{permits}");
        }
    }
}
