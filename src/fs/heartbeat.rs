//! Whether the FUSE threads answer: how long each has been busy with its operation.
//!
//! A FUSE thread waits for the kernel or runs one operation, and no operation waits on the network. So an operation that takes
//! long hangs. A stat of the mount by its own process would prove the same, but without an answer neither the call nor the process
//! could be killed.

use super::session::THREADS;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nothing is under way.
const IDLE: u64 = 0;

/// The operations of the FUSE threads of one mount.
#[derive(Debug)]
pub struct Heartbeat {
    epoch: Instant,
    /// When the operations under way began: milliseconds since `epoch`, plus 1; one place a thread.
    under_way: [AtomicU64; THREADS],
}

/// An operation under way, until dropped.
#[derive(Debug)]
pub struct Busy<'h>(Option<&'h AtomicU64>);

impl Default for Heartbeat {
    fn default() -> Heartbeat {
        Heartbeat { epoch: Instant::now(), under_way: Default::default() }
    }
}

impl Heartbeat {
    /// An operation begins.
    pub fn busy(&self) -> Busy<'_> {
        let began = self.milliseconds(Instant::now());
        let place = self
            .under_way
            .iter()
            .find(|place| place.compare_exchange(IDLE, began, Ordering::Relaxed, Ordering::Relaxed).is_ok());
        Busy(place)
    }

    /// How long the oldest operation under way has taken until `now`; zero where there is none.
    pub fn longest(&self, now: Instant) -> Duration {
        let now = self.milliseconds(now);
        let began =
            self.under_way.iter().map(|place| place.load(Ordering::Relaxed)).filter(|began| *began != IDLE).min();
        Duration::from_millis(began.map_or(0, |began| now.saturating_sub(began)))
    }

    fn milliseconds(&self, at: Instant) -> u64 {
        let since = u64::try_from(at.saturating_duration_since(self.epoch).as_millis());
        since.unwrap_or(u64::MAX - 1).saturating_add(1)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(IDLE, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_operation_under_way_counts() {
        let heartbeat = Heartbeat::default();
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert_eq!(heartbeat.longest(later(50)), Duration::ZERO);

        let hanging = heartbeat.busy();
        for _ in 0..1000 {
            drop(heartbeat.busy());
        }

        assert!(heartbeat.longest(later(50)) >= Duration::from_secs(49));
        drop(hanging);
        assert_eq!(heartbeat.longest(later(50)), Duration::ZERO);
    }

    #[test]
    fn more_threads_than_places_do_no_harm() {
        let heartbeat = Heartbeat::default();

        let busy: Vec<_> = (0..THREADS + 3).map(|_| heartbeat.busy()).collect();

        assert!(heartbeat.longest(Instant::now() + Duration::from_secs(9)) >= Duration::from_secs(8));
        drop(busy);
        assert_eq!(heartbeat.longest(Instant::now() + Duration::from_secs(9)), Duration::ZERO);
    }
}
