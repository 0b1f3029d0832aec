//! What it takes to bring bytes over a usual way to a host. Pure.
//!
//! ```text
//! requests x round trip / requests at once + bytes / bandwidth
//! ```

use std::time::Duration;

/// What a request costs at least.
const LEAST_ROUND_TRIP: f64 = 0.02;

/// What it takes to bring bytes here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// Requests.
    pub requests: u32,
    /// Bytes transferred.
    pub bytes: u64,
}

impl std::ops::AddAssign for Price {
    fn add_assign(&mut self, other: Price) {
        self.requests = self.requests.saturating_add(other.requests);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// What lies between here and a host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Seconds from a request to the head of its answer.
    round_trip: f64,
    /// Seconds that a byte takes.
    byte: f64,
}

impl Default for Line {
    fn default() -> Self {
        Line::TYPICAL
    }
}

impl Line {
    /// A host at some distance, 40 ms and 8 MB/s: round trips decide.
    pub const TYPICAL: Line = Line { round_trip: 0.04, byte: 1.0 / 8e6 };

    /// A line of this round trip that brings so many bytes a second.
    pub fn new(round_trip: Duration, bandwidth: u64) -> Line {
        let (round_trip, byte) = (round_trip.as_secs_f64(), 1.0 / bandwidth.max(1) as f64);
        Line { round_trip, byte }
    }

    /// How long that takes, with so many requests under way at once (0 is 1).
    pub fn time(&self, price: Price, at_once: u32) -> Duration {
        let trips = f64::from(price.requests) / f64::from(at_once.max(1)) * self.round_trip.max(LEAST_ROUND_TRIP);
        Duration::try_from_secs_f64(trips + price.bytes as f64 * self.byte).unwrap_or(Duration::MAX)
    }

    /// Bytes that come in the time of a round trip: fewer are rather let pass than asked around.
    pub fn bytes_in_round_trip(&self) -> u64 {
        (self.round_trip.max(LEAST_ROUND_TRIP) / self.byte) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn requests_cost_round_trips_and_bytes_bandwidth() {
        let line = Line::new(50 * MS, 1000);
        assert_eq!(line.time(Price { requests: 2, bytes: 500 }, 1), 600 * MS);
        assert_eq!(line.time(Price { requests: 8, bytes: 500 }, 4), 600 * MS, "four at once");
        assert_eq!(line.time(Price::default(), 0), Duration::ZERO);
        assert_eq!(line.bytes_in_round_trip(), 50);
        let endless = Price { requests: u32::MAX, bytes: u64::MAX };
        assert!(Line::new(Duration::MAX, 0).time(endless, 1) > line.time(Price { requests: 1, bytes: 1 }, 1));
    }
}
