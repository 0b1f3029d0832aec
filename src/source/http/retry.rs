//! How long to wait before asking again, and how often.

use super::HttpError;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// The longest first wait.
const BASE: Duration = Duration::from_millis(100);
/// The longest wait at all.
const CAP: Duration = Duration::from_secs(5);
/// A name that cannot be resolved is mostly a misspelt one: the deadline is not spent on it.
const NAME_ATTEMPTS: u32 = 3;
/// Attempts for a host without a connection, where a command does not wait for it.
const CONNECT_ATTEMPTS: u32 = 3;

/// The wait after the `attempt`th failure (1 is the first), full jitter: `random` in 0 to 1 of the doubled base.
pub(super) fn backoff(attempt: u32, random: f64) -> Duration {
    BASE.saturating_mul(1 << attempt.saturating_sub(1).min(16)).min(CAP).mul_f64(random.clamp(0.0, 1.0))
}

/// Attempts where connections end without an answer: the fault is mostly the resource's own.
const HEAD_ATTEMPTS: u32 = 6;

/// Returns whether a request that failed with `error` at its `attempt`th try is worth another within the same deadline;
/// `waits_for_hosts`: [`super::HttpConfig::waits_for_hosts`].
pub(super) fn is_worthwhile(error: &HttpError, attempt: u32, waits_for_hosts: bool) -> bool {
    match error {
        // These say that no time is left, or that the host is not to be asked now.
        HttpError::Deadline { .. }
        | HttpError::NotSent { .. }
        | HttpError::CircuitOpen { .. }
        | HttpError::Paused { .. } => false,
        HttpError::Name { .. } => attempt < NAME_ATTEMPTS,
        HttpError::Connect { .. } if !waits_for_hosts => attempt < CONNECT_ATTEMPTS,
        HttpError::Head { .. } => attempt < HEAD_ATTEMPTS,
        other => other.is_retryable(),
    }
}

/// A random number from 0 to 1, for jitter alone: each `RandomState` has new keys.
pub(super) fn jitter() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap() {
        let longest: Vec<u128> = (1..=8).map(|attempt| backoff(attempt, 1.0).as_millis()).collect();
        assert_eq!(longest, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff(u32::MAX, 1.0), CAP);
        assert_eq!(backoff(3, 0.0), Duration::ZERO);
    }

    #[test]
    fn jitter_stays_in_its_range() {
        assert!((0..1000).map(|_| jitter()).all(|random| (0.0..=1.0).contains(&random)));
    }
}
