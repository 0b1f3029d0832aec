//! How many ranges of an object are asked for at once, by how long they take, and of how many bytes they are: see the model of
//! [`super::stripes`].

use crate::content::fixity::BLOCK;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Ranges asked for at once of one object, at most.
pub(super) const MOST_LANES: usize = 14;

/// Ranges at once where more would not pay: half of what a host is asked at once of which nothing is known.
const FEW_LANES: usize = 8;

/// A range whose connection is silent for a smaller part of its time comes over a full line.
const MOSTLY_AT_WORK: u64 = 4;

/// Bytes of one range at most.
pub(super) const STRIPE: u64 = 4 << 20;

/// Bytes of a range at least: new connections grow with them.
pub(super) const SHORTEST: u64 = BLOCK;

/// A range of fewer bytes does not tell how long one of [`STRIPE`] takes.
pub(super) const TELLING: u64 = STRIPE / 4;

/// Of those alone no range is supposed to take less than this.
const UNTOLD: Duration = Duration::from_secs(1);

/// Over connections that still grow a range longer than [`SHORTEST`] has at most one part in so many of the bytes that were asked for
/// before it. Of ranges of one length all would end at the same moment, the first too, for which the others wait in memory, and all
/// the work that is done in order would begin with that moment.
const RISE: u64 = 4;

/// Bytes of a range, where so many are wanted ahead of the reader in all.
pub(super) fn length(wanted: u64) -> u64 {
    let bytes = wanted / MOST_LANES as u64;
    (bytes - bytes % BLOCK).clamp(SHORTEST, STRIPE)
}

/// The same over connections that still grow, where so many were asked for before it.
pub(super) fn growing(wanted: u64, before: u64) -> u64 {
    let most = before / RISE;
    length(wanted).min((most - most % BLOCK).max(SHORTEST))
}

/// How long ranges of [`STRIPE`] bytes take: exponentially weighted means of microseconds, 0 before the first.
/// The first may come over connections that still grow: they are forgotten behind a round of them, and tell nothing of the line.
#[derive(Default)]
pub(super) struct Usual {
    ranges: AtomicUsize,
    /// From the request to the head.
    silent: AtomicU64,
    /// From the request to the last byte.
    all: AtomicU64,
    /// A connection has grown: it brought a range of at least [`TELLING`] bytes.
    has_grown: AtomicBool,
}

impl Usual {
    /// A range of so many bytes is here, of whose time its connection was `silent` at first. Of two at a time one may be lost: they
    /// are means.
    pub(super) fn note(&self, bytes: u64, silent: Duration, all: Duration) {
        if bytes != STRIPE {
            let times = STRIPE as f64 / bytes.max(1) as f64;
            return self.suppose(bytes, silent + all.saturating_sub(silent).mul_f64(times));
        }
        self.has_grown.store(true, Ordering::Relaxed);
        let is_second_round = self.ranges.fetch_add(1, Ordering::Relaxed) == MOST_LANES;
        for (mean, took) in [(&self.silent, silent), (&self.all, all)] {
            let (took, before) = (took.as_micros() as u64, mean.load(Ordering::Relaxed));
            mean.store(if before == 0 || is_second_round { took } else { (3 * before + took) / 4 }, Ordering::Relaxed);
        }
    }

    /// So long a shorter range would have taken, were it as long: better than nothing, as long as none of those came.
    fn suppose(&self, bytes: u64, all: Duration) {
        if self.ranges.load(Ordering::Relaxed) > 0 {
            return;
        }
        let all = match bytes >= TELLING {
            true => all,
            false if self.has_grown() => return,
            false => all.max(UNTOLD),
        };
        self.has_grown.fetch_or(bytes >= TELLING, Ordering::Relaxed);
        self.all.store(all.as_micros() as u64, Ordering::Relaxed);
    }

    /// Whether it is known that a connection has grown.
    pub(super) fn has_grown(&self) -> bool {
        self.has_grown.load(Ordering::Relaxed)
    }

    pub(super) fn all(&self) -> Duration {
        Duration::from_micros(self.all.load(Ordering::Relaxed))
    }

    /// How many ranges are asked for at once. Of a line that they fill, fewer: then each is silent for a small part of its time only.
    pub(super) fn lanes(&self) -> usize {
        let (silent, all) = (self.silent.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed));
        let is_told = self.ranges.load(Ordering::Relaxed) > MOST_LANES;
        if is_told && all > MOSTLY_AT_WORK * silent { FEW_LANES } else { MOST_LANES }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shorter_ranges_tell_counts_until_one_of_full_length_is_here_and_says_nothing_of_the_line() {
        let (usual, millis) = (Usual::default(), Duration::from_millis);
        usual.note(BLOCK, millis(1), millis(2));
        assert_eq!((usual.all(), usual.has_grown()), (UNTOLD, false));
        [240, 190].into_iter().for_each(|all| usual.note(TELLING, millis(20), millis(all)));
        usual.note(BLOCK, millis(40), millis(900));
        assert_eq!((usual.all(), usual.has_grown(), usual.lanes()), (millis(700), true, MOST_LANES));
        usual.note(STRIPE, millis(40), millis(300));
        usual.note(TELLING, millis(40), millis(5000));
        assert_eq!(usual.all(), millis(600));
    }

    #[test]
    fn fewer_ranges_fill_a_line_than_a_way_that_round_trips_keep_empty() {
        let lanes = |ranges: &[(u64, u64)]| {
            let usual = Usual::default();
            let note = |(silent, all)| usual.note(STRIPE, Duration::from_millis(silent), Duration::from_millis(all));
            (0..MOST_LANES).for_each(|_| note((80, 900)));
            ranges.iter().for_each(|range| note(*range));
            usual.lanes()
        };
        assert_eq!(lanes(&[]), MOST_LANES, "of which nothing is known");
        assert_eq!(lanes(&[(40, 100); 3]), MOST_LANES, "a line that round trips keep empty");
        assert_eq!(lanes(&[(40, 400); 3]), FEW_LANES, "a line that is full");
        assert_eq!(lanes(&[(40, 110), (40, 300), (40, 90)]), MOST_LANES, "one of them was held up");
    }

    #[test]
    fn ranges_are_short_as_long_as_little_is_wanted() {
        assert_eq!([0, 2 << 20, 6 << 20].map(length), [BLOCK, BLOCK, 3 * BLOCK]);
        assert_eq!([56 << 20, u64::MAX].map(length), [STRIPE; 2]);
    }

    #[test]
    fn ranges_over_new_connections_end_one_after_the_other() {
        let mut before = 0;
        let mut next = |_| {
            let bytes = growing(u64::MAX, before);
            before += bytes;
            bytes / BLOCK
        };
        assert_eq!([(); MOST_LANES].map(&mut next)[..6], [1, 1, 1, 1, 1, 1]);
        let second = [(); MOST_LANES].map(&mut next);
        assert!(second.is_sorted() && second[0] <= 6 && second[MOST_LANES - 1] == STRIPE / BLOCK, "{second:?}");
        assert_eq!(growing(2 << 20, before), BLOCK, "little is wanted");
    }
}
