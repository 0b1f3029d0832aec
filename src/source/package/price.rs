//! What it takes to bring octets here, by which ways to a resource are compared. Pure.

use std::time::Duration;

/// What it takes to bring octets here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// Requests, one after another.
    pub requests: u32,
    /// Octets transferred.
    pub octets: u64,
}

/// What lies between here and a Source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// From a request to the first octet of its answer.
    pub round_trip: Duration,
    /// Octets a second; not 0.
    pub bandwidth: u64,
}

impl Line {
    /// A Source at some distance: round trips decide.
    pub const TYPICAL: Line = Line { round_trip: Duration::from_millis(40), bandwidth: 8_000_000 };

    /// How long that takes: `requests x round trip + octets / bandwidth`.
    pub fn time(&self, price: Price) -> Duration {
        let nanoseconds = u128::from(price.octets) * 1_000_000_000 / u128::from(self.bandwidth.max(1));
        let transfer = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        self.round_trip.saturating_mul(price.requests).saturating_add(transfer)
    }
}

impl std::ops::AddAssign for Price {
    fn add_assign(&mut self, other: Price) {
        self.requests = self.requests.saturating_add(other.requests);
        self.octets = self.octets.saturating_add(other.octets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_cost_round_trips_and_octets_bandwidth() {
        let line = Line { round_trip: Duration::from_millis(50), bandwidth: 1000 };
        assert_eq!(line.time(Price { requests: 2, octets: 500 }), Duration::from_millis(600));
        assert_eq!(line.time(Price::default()), Duration::ZERO);
        let endless = Price { requests: u32::MAX, octets: u64::MAX };
        assert!(Line { bandwidth: 0, ..line }.time(endless) > line.time(Price { requests: 1, octets: 1 }));
    }
}
