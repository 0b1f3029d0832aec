//! Which hosts are asked last, because they failed or served wrong bytes lately. Pure.
//!
//! Nothing is left out for that: of a resource all places are asked before it cannot be read.

use crate::content::Cooling;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// Hosts remembered, the least recent forgotten.
const HOSTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1023);

/// What was wrong with a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It did not answer, refused, or broke off.
    Silent,
    /// Its bytes were not the Source's, and another place had the right ones.
    Wrong,
}

impl Fault {
    /// How long a host cools down at its first fault, and at most: each further fault doubles it.
    fn pauses(self) -> (Duration, Duration) {
        match self {
            Fault::Silent => (Duration::from_secs(30), Duration::from_secs(3600)),
            Fault::Wrong => (Duration::from_secs(600), Duration::from_secs(24 * 3600)),
        }
    }
}

struct Cooldown {
    until: Instant,
    pause: Duration,
}

/// The hosts that cool down, by their `HOST[:PORT]`.
pub(in crate::content) struct Cooldowns {
    hosts: LruCache<Box<str>, Cooldown>,
}

impl Default for Cooldowns {
    fn default() -> Self {
        Cooldowns { hosts: LruCache::new(HOSTS) }
    }
}

impl Cooldowns {
    /// Whether others are asked before `authority`.
    pub(super) fn is_cooling(&self, authority: &str, now: Instant) -> bool {
        self.hosts.peek(authority).is_some_and(|cooldown| now < cooldown.until)
    }

    /// Those that cool down.
    pub(in crate::content) fn cooling(&self, now: Instant) -> Vec<Cooling> {
        let all = self.hosts.iter().map(|(host, cooldown)| Cooling {
            host: host.clone(),
            left: cooldown.until.saturating_duration_since(now),
        });
        all.filter(|cooling| !cooling.left.is_zero()).collect()
    }

    /// `authority` was at fault.
    pub(super) fn failed(&mut self, authority: &str, fault: Fault, now: Instant) {
        let (first, limit) = fault.pauses();
        let pause = match self.hosts.get(authority) {
            // Many fetches under way may meet the same fault.
            Some(cooldown) if now < cooldown.until => cooldown.pause,
            Some(cooldown) => cooldown.pause.saturating_mul(2).min(limit),
            None => first,
        };
        let pause = pause.max(first);
        self.hosts.put(authority.into(), Cooldown { until: now + pause, pause });
    }

    /// `authority` served right bytes.
    pub(super) fn served(&mut self, authority: &str) {
        self.hosts.pop(authority);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_fails_again_is_asked_last_for_twice_as_long_up_to_a_limit() {
        let (mut cooldowns, mut now) = (Cooldowns::default(), Instant::now());
        let (mut pause, limit) = Fault::Silent.pauses();
        for _ in 0..12 {
            cooldowns.failed("m", Fault::Silent, now);
            assert!(cooldowns.is_cooling("m", now + pause - Duration::from_millis(1)));
            assert!(!cooldowns.is_cooling("other", now));
            now += pause;
            assert!(!cooldowns.is_cooling("m", now));
            pause = (pause * 2).min(limit);
        }
        assert_eq!(pause, limit);
    }

    #[test]
    fn many_fetches_that_meet_one_fault_count_once() {
        let (mut cooldowns, now) = (Cooldowns::default(), Instant::now());
        (0..5).for_each(|_| cooldowns.failed("m", Fault::Silent, now));
        assert!(!cooldowns.is_cooling("m", now + Fault::Silent.pauses().0));
    }

    #[test]
    fn wrong_bytes_count_longer_than_silence_and_right_ones_end_it() {
        let (mut cooldowns, now) = (Cooldowns::default(), Instant::now());
        cooldowns.failed("m", Fault::Silent, now);
        cooldowns.failed("m", Fault::Wrong, now);
        assert!(cooldowns.is_cooling("m", now + Fault::Silent.pauses().0));

        cooldowns.served("m");
        assert!(!cooldowns.is_cooling("m", now));
    }
}
