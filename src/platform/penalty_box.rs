//! The one memory of what failed: what is in the penalty box is asked last, or not at all, until its time is over. Pure.

use lru::LruCache;
use std::borrow::Borrow;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

#[derive(Debug)]
struct Penalty<C> {
    until: Instant,
    length: Duration,
    cause: C,
}

/// The keys of a penalty box by default.
const CAPACITY: NonZeroUsize = NonZeroUsize::MIN.saturating_add(65_535);

/// Penalties by key, each with its cause. Beyond its capacity the least recent penalty is forgotten.
#[derive(Debug)]
pub struct PenaltyBox<K: Hash + Eq, C = ()> {
    penalties: LruCache<K, Penalty<C>>,
}

impl<K: Hash + Eq, C> Default for PenaltyBox<K, C> {
    fn default() -> PenaltyBox<K, C> {
        PenaltyBox::new(CAPACITY)
    }
}

impl<K: Hash + Eq, C> PenaltyBox<K, C> {
    /// Remembers at most `capacity` keys.
    #[must_use]
    pub fn new(capacity: NonZeroUsize) -> PenaltyBox<K, C> {
        PenaltyBox { penalties: LruCache::sparse(capacity) }
    }

    /// A penalty of one length, however often it is repeated.
    pub fn punish(&mut self, key: K, length: Duration, cause: C, now: Instant) {
        self.punish_longer(key, length..=length, cause, now);
    }

    /// A penalty that starts at the first of `lengths`. Each fault after the end of a penalty doubles its length, up to the last of
    /// `lengths`. Faults during a penalty count once, as several requests under way meet the same one. No fault shortens a penalty.
    pub fn punish_longer(&mut self, key: K, lengths: RangeInclusive<Duration>, cause: C, now: Instant) {
        let (first, limit) = lengths.into_inner();
        let before = self.penalties.peek(&key);
        let length = match before {
            Some(before) if now < before.until => before.length.max(first),
            Some(before) => before.length.saturating_mul(2).min(limit).max(first),
            None => first,
        };
        let until = before.map_or(now + length, |before| before.until.max(now + length));
        self.penalties.put(key, Penalty { until, length, cause });
    }

    /// The end of the last penalty of `key`, which may be past.
    pub fn until<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Instant>
    where
        K: Borrow<Q>,
    {
        self.penalties.peek(key).map(|penalty| penalty.until)
    }

    /// The cause of a penalty that is not over.
    pub fn cause<Q: Hash + Eq + ?Sized>(&self, key: &Q, now: Instant) -> Option<&C>
    where
        K: Borrow<Q>,
    {
        self.penalties.peek(key).filter(|penalty| now < penalty.until).map(|penalty| &penalty.cause)
    }

    /// Returns whether a penalty of `key` is not over.
    pub fn is_punished<Q: Hash + Eq + ?Sized>(&self, key: &Q, now: Instant) -> bool
    where
        K: Borrow<Q>,
    {
        self.cause(key, now).is_some()
    }

    /// Ends the penalty of `key`; its next one is a first one.
    pub fn forgive<Q: Hash + Eq + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.penalties.pop(key);
    }

    /// Ends all penalties.
    pub fn clear(&mut self) {
        self.penalties.clear();
    }

    /// The penalties that are not over: keys, causes, and the time left.
    pub fn iter(&self, now: Instant) -> impl Iterator<Item = (&K, &C, Duration)> {
        let left = move |penalty: &Penalty<C>| penalty.until.saturating_duration_since(now);
        self.penalties
            .iter()
            .map(move |(key, penalty)| (key, &penalty.cause, left(penalty)))
            .filter(|(_, _, left)| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn new() -> PenaltyBox<&'static str, u32> {
        PenaltyBox::new(NonZeroUsize::new(2).unwrap())
    }

    #[test]
    fn a_penalty_ends_with_its_time_or_when_forgiven() {
        let (mut penalties, now) = (new(), Instant::now());
        penalties.punish("a", SECOND, 1, now);
        penalties.punish("b", 2 * SECOND, 2, now);
        assert_eq!((penalties.cause("a", now), penalties.until("a")), (Some(&1), Some(now + SECOND)));
        assert!(!penalties.is_punished("a", now + SECOND) && !penalties.is_punished("c", now));
        assert_eq!(penalties.iter(now + SECOND).collect::<Vec<_>>(), [(&"b", &2, SECOND)]);

        penalties.forgive("b");
        assert_eq!((penalties.until("b"), penalties.penalties.len()), (None, 1));
    }

    #[test]
    fn repeated_penalties_double_up_to_a_limit() {
        let (mut penalties, mut now) = (new(), Instant::now());
        for length in [1, 2, 4, 8, 10, 10].map(|length| length * SECOND) {
            penalties.punish_longer("a", SECOND..=10 * SECOND, 0, now);
            assert_eq!(penalties.until("a"), Some(now + length));
            now += length;
        }
        penalties.forgive("a");
        penalties.punish_longer("a", SECOND..=10 * SECOND, 0, now);
        assert_eq!(penalties.until("a"), Some(now + SECOND), "a first one again");
    }

    #[test]
    fn faults_during_a_penalty_count_once_and_never_shorten_it() {
        let (mut penalties, now) = (new(), Instant::now());
        (0..5).for_each(|_| penalties.punish_longer("a", 4 * SECOND..=100 * SECOND, 0, now));
        penalties.punish("a", SECOND, 7, now);
        assert_eq!((penalties.until("a"), penalties.cause("a", now)), (Some(now + 4 * SECOND), Some(&7)));
        penalties.punish_longer("a", 6 * SECOND..=100 * SECOND, 0, now);
        assert_eq!(penalties.until("a"), Some(now + 6 * SECOND), "a graver fault");
    }

    #[test]
    fn the_least_recent_penalty_is_forgotten_at_capacity() {
        let (mut penalties, now) = (new(), Instant::now());
        ["a", "b", "a", "c"].into_iter().for_each(|key| penalties.punish(key, SECOND, 0, now));
        assert_eq!((penalties.penalties.len(), penalties.until("b")), (2, None));
        penalties.clear();
        assert!(penalties.penalties.is_empty());
    }
}
