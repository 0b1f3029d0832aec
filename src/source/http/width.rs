//! How many requests one host is sent at a time: as many as it answers as fast as one, up to what a person allows.
//!
//! A state machine without clock: the caller tells the time. It begins with [`FIRST`], doubles in each round trip as long as
//! all places are taken and answers come as fast as before, and goes back where the host says that it is too much (429, 503), does not
//! answer, or answers ever slower; from then on it grows by one a round trip (additive increase, multiplicative decrease,
//! as TCP does, RFC 5681).

use std::time::{Duration, Instant};

/// Requests at a time before anything is known.
const FIRST: usize = 16;

/// Answers that came slower are no reason to send less: each is as fast as the fastest, times [`SLOWER`], and this.
const TOLERANCE: Duration = Duration::from_millis(50);

/// See [`TOLERANCE`].
const SLOWER: u32 = 4;

/// One answer counts one part in so many of the smoothed latency.
const SMOOTHING: u32 = 8;

/// The fastest answer is forgotten by one part in so many with each answer: routes and servers change.
const FORGETTING: u32 = 256;

/// Fewer than this only a host that refuses, or a person, brings about: slowness alone may be the bodies' own.
const SLOW_LEAST: usize = 4;

/// The number of requests at a time for one host.
#[derive(Debug)]
pub(super) struct Width {
    most: usize,
    /// Its whole part counts.
    now: f64,
    /// Nothing has been too much yet.
    is_starting: bool,
    fastest: Option<Duration>,
    smoothed: Duration,
    cut_at: Option<Instant>,
}

impl Width {
    /// At most `most`, at least one.
    pub(super) fn new(most: usize) -> Width {
        let most = most.max(1);
        Width {
            most,
            now: FIRST.min(most) as f64,
            is_starting: true,
            fastest: None,
            smoothed: Duration::ZERO,
            cut_at: None,
        }
    }

    /// Requests that may be under way.
    pub(super) fn places(&self) -> usize {
        // Between 1 and `most`.
        self.now as usize
    }

    /// The head of an answer came after `latency`; `is_full`: all places were taken.
    pub(super) fn answered(&mut self, latency: Duration, is_full: bool, now: Instant) {
        let fastest = self.fastest.map_or(latency, |fastest| fastest + fastest / FORGETTING).min(latency);
        self.smoothed = match self.fastest {
            None => latency,
            Some(_) => self.smoothed - self.smoothed / SMOOTHING + latency / SMOOTHING,
        };
        self.fastest = Some(fastest);
        if self.smoothed > fastest * SLOWER + TOLERANCE {
            if self.places() > SLOW_LEAST {
                self.cut(0.75, now);
            }
        } else if is_full {
            let more = if self.is_starting { 1.0 } else { 1.0 / self.now };
            self.now = (self.now + more).min(self.most as f64);
        }
    }

    /// The host refused for want of room, or did not answer.
    pub(super) fn refused(&mut self, now: Instant) {
        self.cut(0.5, now);
    }

    /// Once a round trip: all that were sent together say the same.
    fn cut(&mut self, part: f64, now: Instant) {
        self.is_starting = false;
        let since = self.cut_at.map(|cut_at| now.saturating_duration_since(cut_at));
        if since.is_some_and(|since| since < self.smoothed.max(TOLERANCE)) {
            return;
        }
        self.cut_at = Some(now);
        self.now = (self.now * part).max(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_millis(40);

    fn answers(width: &mut Width, count: usize, latency: Duration, now: &mut Instant) {
        for _ in 0..count {
            width.answered(latency, true, *now);
            *now += Duration::from_millis(1);
        }
    }

    #[test]
    fn it_doubles_in_a_round_trip_up_to_what_is_allowed() {
        let (mut width, mut now) = (Width::new(64), Instant::now());
        assert_eq!(width.places(), 16);
        answers(&mut width, 16, FAST, &mut now);
        assert_eq!(width.places(), 32);
        answers(&mut width, 100, FAST, &mut now);
        assert_eq!(width.places(), 64);
    }

    #[test]
    fn it_stays_where_places_are_free_and_within_what_a_person_allows() {
        let (mut width, now) = (Width::new(64), Instant::now());
        for _ in 0..100 {
            width.answered(FAST, false, now);
        }
        assert_eq!(width.places(), 16);
        assert_eq!(Width::new(3).places(), 3);
        assert_eq!(Width::new(0).places(), 1);
    }

    #[test]
    fn refusals_halve_it_once_a_round_trip_and_it_grows_slowly_again() {
        let (mut width, mut now) = (Width::new(64), Instant::now());
        answers(&mut width, 100, FAST, &mut now);
        for _ in 0..64 {
            width.refused(now);
        }
        assert_eq!(width.places(), 32);
        answers(&mut width, 33, FAST, &mut now);
        assert_eq!(width.places(), 33);
        for _ in 0..20 {
            now += Duration::from_secs(1);
            width.refused(now);
        }
        assert_eq!(width.places(), 1);
    }

    #[test]
    fn answers_that_come_ever_slower_narrow_it_but_not_to_nothing() {
        let (mut width, mut now) = (Width::new(64), Instant::now());
        answers(&mut width, 100, FAST, &mut now);
        for _ in 0..100 {
            width.answered(10 * FAST, true, now);
            now += FAST;
        }
        assert!(width.places() < 32, "{}", width.places());
        assert!(width.places() >= SLOW_LEAST - 1);
    }

    #[test]
    fn a_host_that_is_always_slow_is_not_narrowed() {
        let (mut width, mut now) = (Width::new(64), Instant::now());
        answers(&mut width, 200, Duration::from_secs(2), &mut now);
        assert_eq!(width.places(), 64);
    }
}
