//! How many requests one host is sent at a time: as many as it answers as fast as one, up to what a person allows.
//!
//! A state machine without clock: the caller tells the time. It begins with [`FIRST`], doubles in each round trip as long as
//! the places are taken and answers come as fast as before, and goes back where the host says that it is too much (429, 503), does
//! not answer, or answers ever slower; from then on it grows by one a round trip (additive increase, multiplicative
//! decrease, as TCP does, RFC 5681).
//!
//! Slower answers are the fault of too many requests only if fewer are answered faster: lists that lie ready say nothing of
//! how fast a resource is made, what a cache holds says nothing of what it does not, and a way may have become longer. So
//! answers are compared by the means of whole rounds, and a cut for slowness is a trial: one that makes answers hardly faster was
//! for nothing, is taken back, and what is seen then is as fast as this host is.

use std::time::{Duration, Instant};

/// Requests at a time before anything is known.
const FIRST: usize = 16;

/// Answers that are no slower than fast ones, times [`SLOWER`], and this are no reason to send less.
const TOLERANCE: Duration = Duration::from_millis(50);

/// See [`TOLERANCE`].
const SLOWER: u32 = 4;

/// What slowness leaves of the requests at a time: so much that answers tell whether they were the reason.
const SLOWED: f64 = 0.5;

/// One part in so many of the places is left for readers when the rest is taken for what nobody reads yet: more of them than
/// these wait for the next answer, of which there are many then.
const FOR_READERS: usize = 16;

/// One answer counts one part in so many of the smoothed latency.
const SMOOTHING: u32 = 8;

/// A round has so many answers at least, and is a round trip long.
const ANSWERS: u32 = 16;

/// Those of a round that is compared with another, which is two round trips long: means of fewer differ by chance.
const COMPARED: u32 = 32;

/// Answers of before say nothing of now.
const STALE: Duration = Duration::from_secs(60);

/// Fewer than this only a host that refuses, or a person, brings about: slowness alone may be the bodies' own.
pub(super) const SLOW_LEAST: usize = 4;

/// The number of requests at a time for one host.
#[derive(Debug)]
pub(super) struct Width {
    most: usize,
    /// Its whole part counts.
    now: f64,
    /// Nothing has been too much yet.
    is_starting: bool,
    smoothed: Duration,
    /// The lowest mean of a round; the first answer before there is one.
    fastest: Option<Duration>,
    round: Option<Round>,
    pace: Pace,
    cut_at: Option<Instant>,
    /// The most that were under way at once in this round trip, and in the one before.
    busiest: [usize; 2],
    round_trip_began: Option<Instant>,
}

/// Answers whose mean counts.
#[derive(Clone, Copy, Debug)]
struct Round {
    began: Instant,
    answers: u32,
    sum: Duration,
}

/// How fast answers come.
#[derive(Clone, Copy, Debug)]
enum Pace {
    /// As fast as ever.
    Usual,
    /// Too slowly, as the last round showed; this one is of answers to what was asked for while there were ever more.
    Slow,
    /// This round shows how slowly.
    Measured,
    /// Fewer are asked for now; this round is of answers to what was asked for before that.
    Cut(Trial),
    /// This round shows whether that makes answers faster.
    Tried(Trial),
}

/// Fewer requests at a time than answers would allow if they were not so slow.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// The mean latency and the width before it.
    before: (Duration, f64),
    /// If requests at a time are all that makes answers slow, they come in this part of the time.
    part: f64,
}

impl Width {
    /// At most `most`, at least one.
    pub(super) fn new(most: usize) -> Width {
        let most = most.max(1);
        Width {
            most,
            now: FIRST.min(most) as f64,
            is_starting: true,
            smoothed: Duration::ZERO,
            fastest: None,
            round: None,
            pace: Pace::Usual,
            cut_at: None,
            busiest: [0; 2],
            round_trip_began: None,
        }
    }

    /// Requests that may be under way.
    pub(super) fn places(&self) -> usize {
        // Between 1 and `most`.
        self.now as usize
    }

    /// Of so many requests that a host bears at once, those that may be for nobody yet: readers find a sixteenth free, one at least.
    pub(super) fn beside_readers(&self) -> usize {
        self.places() - self.places().div_ceil(FOR_READERS)
    }

    /// A request is sent, and so many are under way with it.
    pub(super) fn sent(&mut self, under_way: usize, now: Instant) {
        let is_over = |began| now.saturating_duration_since(began) >= self.smoothed;
        if self.round_trip_began.is_none_or(is_over) {
            self.busiest = [0, self.busiest[0]];
            self.round_trip_began = Some(now);
        }
        self.busiest[0] = self.busiest[0].max(under_way);
    }

    /// The head of an answer came after `latency`.
    pub(super) fn answered(&mut self, latency: Duration, now: Instant) {
        self.smoothed = match self.fastest {
            None => latency,
            Some(_) => self.smoothed - self.smoothed / SMOOTHING + latency / SMOOTHING,
        };
        self.fastest.get_or_insert(latency);
        self.count(latency, now);
        if !matches!(self.pace, Pace::Usual) {
            return;
        }
        // How many were under way at once counts, not how many are now: answers come together, and who sent those requests sends
        // the next when all of their bodies are here. Those at the start are followed by twice as many (RFC 2861, 3.1). What
        // is fetched ahead never takes the readers' places, and is to grow all the same.
        let is_used = match self.is_starting {
            true => self.busiest() * 2 >= self.places(),
            false => self.busiest() >= self.beside_readers(),
        };
        if is_used {
            let more = if self.is_starting { 1.0 } else { 1.0 / self.now };
            self.now = (self.now + more).min(self.most as f64);
        }
    }

    fn busiest(&self) -> usize {
        self.busiest[0].max(self.busiest[1])
    }

    /// Adds an answer to its round, and learns of the round if it is over with that.
    fn count(&mut self, latency: Duration, now: Instant) {
        let mut round = match self.round {
            Some(round) if now.saturating_duration_since(round.began) < STALE => round,
            stale => {
                if stale.is_some() {
                    self.give_up_trial();
                }
                Round { began: now.checked_sub(latency).unwrap_or(now), answers: 0, sum: Duration::ZERO }
            }
        };
        round.answers += 1;
        round.sum += latency;
        self.round = Some(round);
        let (answers, round_trips) = match self.pace {
            Pace::Measured | Pace::Tried(_) => (COMPARED, 2),
            Pace::Usual | Pace::Slow | Pace::Cut(_) => (ANSWERS, 1),
        };
        let mean = round.sum / round.answers;
        if round.answers >= answers && now.saturating_duration_since(round.began) >= mean * round_trips {
            self.round = Some(Round { began: now, answers: 0, sum: Duration::ZERO });
            self.learn(mean, now);
        }
    }

    /// A round is over, and `mean` is its latency.
    fn learn(&mut self, mean: Duration, now: Instant) {
        match self.pace {
            Pace::Cut(trial) => {
                self.pace = Pace::Tried(trial);
                return;
            }
            Pace::Tried(trial) if mean > trial.before.0.mul_f64((1.0 + trial.part) / 2.0) => {
                self.give_up_trial();
                self.is_how_fast_it_is(mean);
                return;
            }
            // They had waited for each other: it is faster than a trial of before may have shown by chance.
            Pace::Tried(_) => self.fastest = self.fastest.map(|fastest| fastest.min(mean / (SLOWER - 1))),
            Pace::Usual | Pace::Slow | Pace::Measured => {}
        }
        let fastest = self.fastest.map_or(mean, |fastest| fastest.min(mean));
        self.fastest = Some(fastest);
        if mean <= fastest * SLOWER + TOLERANCE {
            self.pace = Pace::Usual;
            return;
        }
        self.is_starting = false;
        if let Pace::Usual | Pace::Slow = self.pace {
            self.pace = if matches!(self.pace, Pace::Usual) { Pace::Slow } else { Pace::Measured };
            return;
        }
        // Places that nobody takes are no fault of theirs.
        let used = self.now.min(self.busiest() as f64);
        let fewer = (used * SLOWED).max(SLOW_LEAST as f64);
        if fewer.floor() >= used.floor() {
            // So few are not too many.
            self.pace = Pace::Usual;
            self.is_how_fast_it_is(mean);
            return;
        }
        self.pace = Pace::Cut(Trial { before: (mean, self.now), part: fewer.floor() / used.floor() });
        self.cut_at = Some(now);
        self.now = fewer;
    }

    /// Such are the host's answers, however few are asked for at a time; much slower ones ask for another trial.
    fn is_how_fast_it_is(&mut self, mean: Duration) {
        self.fastest = Some(mean * 2 / SLOWER);
    }

    /// Back to as many as before a trial.
    fn give_up_trial(&mut self) {
        if let Pace::Cut(trial) | Pace::Tried(trial) = self.pace {
            self.now = self.now.max(trial.before.1);
        }
        self.pace = Pace::Usual;
    }

    /// The host refused for want of room, or did not answer. Once a round trip: all that were sent together say the same.
    pub(super) fn refused(&mut self, now: Instant) {
        self.is_starting = false;
        // What it says itself needs no trial.
        if !matches!(self.pace, Pace::Usual) {
            self.pace = Pace::Usual;
            self.round = None;
        }
        let since = self.cut_at.map(|cut_at| now.saturating_duration_since(cut_at));
        if since.is_some_and(|since| since < self.smoothed.max(TOLERANCE)) {
            return;
        }
        self.cut_at = Some(now);
        self.now = (self.now * 0.5).max(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_millis(40);

    fn answers(width: &mut Width, count: usize, latency: Duration, now: &mut Instant) {
        for _ in 0..count {
            width.sent(width.places(), *now);
            width.answered(latency, *now);
            *now += latency / 16;
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
            width.sent(7, now);
            width.answered(FAST, now);
        }
        assert_eq!(width.places(), 16);
        assert_eq!(Width::new(3).places(), 3);
        assert_eq!(Width::new(0).places(), 1);
    }

    /// As files are fetched ahead: all that the last answers made room for go together, and are answered together.
    #[test]
    fn it_doubles_in_a_round_trip_too_where_answers_come_together() {
        let (mut width, mut now) = (Width::new(64), Instant::now());
        let mut widths = Vec::new();
        for _ in 0..3 {
            let together = width.beside_readers();
            (1..=together).for_each(|under_way| width.sent(under_way, now));
            now += FAST;
            (0..together).for_each(|_| width.answered(FAST, now));
            widths.push(width.places());
        }
        assert_eq!(widths, [31, 59, 64]);
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
    fn it_grows_where_all_but_the_readers_places_are_taken() {
        for most in [2, 3, 64] {
            let (mut width, mut now) = (Width::new(64), Instant::now());
            for _ in 0..50 {
                width.refused(now);
                now += Duration::from_secs(1);
            }
            assert_eq!((width.places(), width.beside_readers()), (1, 0), "nothing is fetched ahead");
            for _ in 0..5000 {
                let taken = width.beside_readers().max(1).min(most);
                width.sent(taken, now);
                width.answered(FAST, now);
                now += FAST;
            }
            let grown = if most == 64 { 64 } else { most + 2 };
            assert_eq!(width.places(), grown, "{most} requests at a time");
        }
    }

    #[test]
    fn more_than_a_host_can_do_narrows_it_but_not_to_nothing() {
        for each in [10, 30, 100].map(Duration::from_millis) {
            let (mut width, mut now) = (Width::new(64), Instant::now());
            width.answered(each, now);
            let mut seen = Vec::new();
            for _ in 0..4000 {
                // One after the other: who asks for more at a time waits for longer.
                now += each;
                width.sent(width.places(), now);
                width.answered(each * u32::try_from(width.places()).unwrap(), now);
                seen.push(width.places());
            }
            let usual = seen[2000..].iter().sum::<usize>() / 2000;
            assert!((3..=24).contains(&usual), "{each:?}: {usual}");
        }
    }

    #[test]
    fn a_host_whose_lists_are_fast_and_whose_resources_are_slow_is_not_narrowed() {
        let (mut width, mut now) = (Width::new(64), Instant::now());
        answers(&mut width, 20, Duration::from_millis(1), &mut now);
        for _ in 0..10 {
            answers(&mut width, 200, Duration::from_millis(300), &mut now);
            answers(&mut width, 1, Duration::from_millis(1), &mut now);
        }
        assert!(width.places() >= 32, "{}", width.places());
    }

    #[test]
    fn a_host_that_is_always_slow_is_not_narrowed() {
        let (mut width, mut now) = (Width::new(64), Instant::now());
        answers(&mut width, 200, Duration::from_secs(2), &mut now);
        assert_eq!(width.places(), 64);
    }
}
