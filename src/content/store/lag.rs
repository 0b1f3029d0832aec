//! How far a disk lags behind a fast one: which may pause once in a while, and which is slow.

use std::time::Duration;

/// Bytes a second. A slower disk holds up who writes, and readers behind it, for longer than a copy into new pages of the page cache
/// takes: from one of some 500 MB/s a file of 512 MiB came at 215 MB/s so, and at 335 MB/s through the page cache.
const FAST: f64 = 1e9;

/// So far it may lag behind.
const HICCUP: Duration = Duration::from_millis(20);

/// So far a disk lags behind of which nothing is known: it has no leave to pause before it proves fast.
const UNPROVED: Duration = Duration::from_millis(15);

/// What was written faster makes up for what was slower, but not ahead of it.
///
/// Invariant: `seconds` is neither negative nor more than [`HICCUP`]: a disk that was slow is so again with the next slow write.
#[derive(Debug, Default)]
pub(super) struct Lag {
    seconds: f64,
}

impl Lag {
    /// Of a disk of which nothing is known, where there is a way that does not wait for it.
    pub(super) fn unproved() -> Lag {
        Lag { seconds: UNPROVED.as_secs_f64() }
    }

    /// So many bytes more took so long: whether the disk is slow.
    pub(super) fn is_slow_with(&mut self, bytes: usize, took: Duration) -> bool {
        let seconds = self.seconds + took.as_secs_f64() - bytes as f64 / FAST;
        self.seconds = seconds.clamp(0.0, HICCUP.as_secs_f64());
        seconds > HICCUP.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `pieces` of half a MiB, those until a disk is slow that takes so many us for each.
    fn taken(pieces: usize, micros: fn(usize) -> u64) -> usize {
        let mut lag = Lag::default();
        (0..pieces).take_while(|piece| !lag.is_slow_with(512 << 10, Duration::from_micros(micros(*piece)))).count()
    }

    #[test]
    fn a_disk_is_slow_that_a_line_would_wait_for_and_may_pause_once_in_a_while() {
        assert_eq!(taken(10_000, |_| 500), 10_000, "1,050 MB/s");
        assert_eq!(taken(10_000, |piece| if piece % 200 == 7 { 15_000 } else { 300 }), 10_000, "a pause in 100 MiB");
        assert!(taken(10_000, |_| 1000) < 45, "525 MB/s");
        assert!(taken(10_000, |_| 5000) < 7, "105 MB/s");
        assert!(taken(10_000, |_| 28_000) < 3, "18 MB/s");
        assert_eq!(taken(10_000, |piece| if piece == 100 { 500_000 } else { 500 }), 100);
    }

    #[test]
    fn a_disk_is_to_prove_that_it_is_fast_before_it_may_pause() {
        let (mut fast, mut slow) = (Lag::unproved(), Lag::unproved());
        let millis = Duration::from_millis;
        assert!((0..4).all(|_| !fast.is_slow_with(4 << 20, millis(2))), "2.1 GB/s");
        assert!(!fast.is_slow_with(4 << 20, millis(15)));
        assert!(!slow.is_slow_with(4 << 20, millis(8)) && slow.is_slow_with(4 << 20, millis(8)), "525 MB/s");
    }

    #[test]
    fn what_was_slow_need_not_be_seen_to_be_so_anew() {
        let mut lag = Lag::default();
        let millis = Duration::from_millis;
        assert!(lag.is_slow_with(512 << 10, millis(500)));
        assert!(lag.is_slow_with(512 << 10, millis(1)));
        assert!((0..200).all(|_| !lag.is_slow_with(512 << 10, Duration::ZERO)));
        assert!(!lag.is_slow_with(512 << 10, millis(15)), "made up for");
    }
}
