//! How many requests one host is sent at a time: as many as it answers as fast as one, up to `connections=`. Pure: the caller passes the time.
//!
//! Additive increase, multiplicative decrease, as TCP does it (RFC 5681): at first the number doubles in each round trip, and it is halved
//! when the host refuses (429, 503) or does not answer. After that it grows by one in each round trip. Growth needs requests that use the number.
//!
//! It is also halved when answers become slow, on trial: many requests are the reason only if fewer are answered faster. Answers are compared
//! by the means of rounds, because single ones differ: a cache answers at once, and what it does not hold is made first.

use std::time::{Duration, Instant};

/// Requests at a time before anything is known.
const FIRST: usize = 16;

/// A round is slow if its mean is past so many times the fastest one, and [`TOLERANCE`].
const SLOW: u32 = 4;
const TOLERANCE: Duration = Duration::from_millis(50);

/// Slowness alone leaves at least so many: fewer may be slow by their bodies.
pub(super) const SLOW_LEAST: usize = 4;

/// A trial has helped if answers come in less than this part of the time before.
const HELPED: f64 = 0.75;

/// One permit in so many is reserved for readers, at least one.
const FOR_READERS: usize = 16;

/// A round has so many answers at least, and lasts as long as one of them at least. A round that is compared has twice as many: means of fewer
/// differ by chance.
const ANSWERS: u32 = 16;

/// A round that has lasted so long proves nothing about now.
const STALE: Duration = Duration::from_secs(60);

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
    phase: Phase,
    /// Answers that are passed over: their requests were sent before the phase.
    skipped: usize,
    halved: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Growing,
    /// The last round was slow; this one is measured without growth.
    Measuring,
    /// Half of the permits are in use. Before that: the permits, and the mean of a round.
    Trial(f64, Duration),
}

/// Answers whose mean counts.
#[derive(Debug, Default)]
struct Round {
    began: Option<Instant>,
    answers: u32,
    sum: Duration,
    /// The most requests in flight at once.
    in_flight: usize,
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
            phase: Phase::Growing,
            skipped: 0,
            halved: None,
        }
    }

    /// Requests that may be in flight.
    pub(super) fn permits(&self) -> usize {
        self.permits as usize
    }

    /// Permits for requests that no reader need wait for.
    pub(super) fn prefetch_permits(&self) -> usize {
        self.permits() - self.reader_permits()
    }

    /// Permits that are reserved for readers.
    pub(super) fn reader_permits(&self) -> usize {
        self.permits().div_ceil(FOR_READERS)
    }

    /// The most permits that there may be.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The head of an answer came after `latency`. With its request so many are in flight, which hold their permits until their bodies end.
    pub(super) fn answered(&mut self, latency: Duration, in_flight: usize, now: Instant) {
        self.round.in_flight = self.round.in_flight.max(in_flight);
        if self.round.began.is_some_and(|began| now.saturating_duration_since(began) > STALE) {
            self.end_trial();
            self.round = Round { in_flight: self.round.in_flight, ..Round::default() };
        }
        self.fastest.get_or_insert(latency);
        if self.skipped > 0 {
            self.skipped -= 1;
            return;
        }
        let began = *self.round.began.get_or_insert_with(|| now.checked_sub(latency).unwrap_or(now));
        self.round.answers += 1;
        self.round.sum += latency;
        let answers = if let Phase::Growing = self.phase {
            self.grow();
            ANSWERS
        } else {
            2 * ANSWERS
        };
        let mean = self.round.sum / self.round.answers;
        if self.round.answers >= answers && now.saturating_duration_since(began) >= mean {
            let in_flight = std::mem::take(&mut self.round).in_flight;
            self.round.began = Some(now);
            self.latest = mean;
            self.judge(mean, in_flight);
        }
    }

    fn grow(&mut self) {
        if 2 * self.round.in_flight >= self.permits() {
            let more = if self.is_starting { 1.0 } else { 1.0 / self.permits };
            self.permits = (self.permits + more).min(self.limit as f64);
        }
    }

    /// A round is over.
    fn judge(&mut self, mean: Duration, in_flight: usize) {
        let mut fastest = self.fastest.map_or(mean, |fastest| fastest.min(mean));
        if let Phase::Trial(_, before) = self.phase {
            if mean > before.mul_f64(HELPED) {
                // The host is that slow however few requests it has.
                self.end_trial();
                self.fastest = Some(mean / 2);
                return;
            }
            // The requests had waited for each other: the host is faster than an earlier trial may have shown by chance.
            fastest = fastest.min(mean / (SLOW - 1));
        }
        self.fastest = Some(fastest);
        let is_slow = mean > fastest * SLOW + TOLERANCE;
        let used = self.permits.min(in_flight as f64);
        let fewer = (used / 2.0).max(SLOW_LEAST as f64);
        (self.phase, self.skipped) = match self.phase {
            Phase::Growing if is_slow => (Phase::Measuring, in_flight),
            Phase::Measuring | Phase::Trial(..) if is_slow && fewer < used => {
                let trial = Phase::Trial(self.permits, mean);
                self.permits = fewer;
                (trial, in_flight)
            }
            _ => {
                if is_slow {
                    self.fastest = Some(mean / 2);
                }
                (Phase::Growing, 0)
            }
        };
        self.is_starting &= !is_slow;
    }

    /// Back to the permits before a trial.
    fn end_trial(&mut self) {
        if let Phase::Trial(before, _) = self.phase {
            self.permits = self.permits.max(before);
        }
        self.phase = Phase::Growing;
    }

    /// The host refused for want of capacity, or did not answer. All requests of one round trip count once.
    pub(super) fn refused(&mut self, now: Instant) {
        self.is_starting = false;
        (self.phase, self.skipped) = (Phase::Growing, 0);
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
