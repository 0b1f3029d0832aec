//! What lies between here and a host, measured as it is used, and what it takes to bring bytes over it. Pure.
//!
//! The cost of a way to some bytes, by which ways are compared, is
//!
//! ```text
//! requests x round trip / requests at once + bytes / bandwidth
//! ```
//!
//! *Round trip*: from a request to the head of its answer, of requests for which the server need not make anything first, and
//! the least of the last [`RECENT`]: of some the name had to be looked up and a connection set up first, and a server at work
//! answers others late.
//! *Bandwidth*: of bodies of at least 64 KiB whose reader did not keep them waiting. Both are exponentially weighted means,
//! kept for each host as long as it is known ([`super::Client::line`]): of a round trip the newest counts an eighth, or a half where it is
//! shorter, of a body
//! the more the larger it is, up to a half. Averaged is the time of a byte rather than the bytes of a second: a burst out
//! of a buffer says little. At first a line is [`Line::TYPICAL`]. However near a host, a request is never taken for cheaper
//! than 20 ms: it costs the server too, and many bear a few requests a second only.

use std::time::Duration;

/// What a request costs at least.
const LEAST_ROUND_TRIP: f64 = 0.02;

/// A round trip beyond this many of those before is a pause of the server's.
const OUTLIER: f64 = 8.0;

/// How much the newest round trip counts, and one that is shorter than was known: nothing makes an answer come too early.
const NEWEST: f64 = 0.125;
const SHORTER: f64 = 0.5;

/// Answers of which the fastest counts.
const RECENT: usize = 8;

/// A smaller body comes in one burst, or in the slow start of its connection.
pub(super) const WORTH_MEASURING: u64 = 64 << 10;

/// A body of so many bytes counts a half of what was known before; none counts more.
const HALF: f64 = (1 << 20) as f64;

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

const NONE_YET: [f64; RECENT] = [f64::INFINITY; RECENT];

/// What lies between here and a host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Seconds from a request to the head of its answer.
    round_trip: f64,
    /// The last of them as they were measured, the oldest first; infinite where there were not so many yet.
    recent: [f64; RECENT],
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
    pub const TYPICAL: Line = Line { round_trip: 0.04, recent: NONE_YET, byte: 1.0 / 8e6 };

    /// A line of this round trip that brings so many bytes a second.
    pub fn new(round_trip: Duration, bandwidth: u64) -> Line {
        let (round_trip, byte) = (round_trip.as_secs_f64(), 1.0 / bandwidth.max(1) as f64);
        Line { round_trip, recent: NONE_YET, byte }
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

    /// The head of an answer came so long after its request.
    pub(super) fn answered(&mut self, after: Duration) {
        let after = after.as_secs_f64().min(self.round_trip.max(LEAST_ROUND_TRIP) * OUTLIER);
        self.recent.rotate_left(1);
        self.recent[RECENT - 1] = after;
        let least = self.recent.iter().copied().fold(f64::INFINITY, f64::min);
        self.round_trip += (least - self.round_trip) * if least < self.round_trip { SHORTER } else { NEWEST };
    }

    /// A body of so many bytes came within this time.
    pub(super) fn brought(&mut self, bytes: u64, within: Duration) {
        if bytes < WORTH_MEASURING {
            return;
        }
        let bytes = bytes as f64;
        let newest = within.as_secs_f64().max(1e-5) / bytes;
        self.byte += (newest - self.byte) * (bytes / (bytes + HALF)).min(0.5);
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

    #[test]
    fn a_line_is_what_is_measured_of_it_after_a_while() {
        let mut line = Line::TYPICAL;
        for _ in 0..40 {
            line.answered(200 * MS);
            line.brought(2_000_000, 1000 * MS);
        }
        let request = line.time(Price { requests: 1, bytes: 0 }, 1);
        assert!(request > 190 * MS && request < 201 * MS, "{request:?}");
        let megabyte = line.time(Price { requests: 0, bytes: 1_000_000 }, 1);
        assert!(megabyte > 495 * MS && megabyte < 501 * MS, "{megabyte:?}");
    }

    #[test]
    fn one_pause_and_one_burst_say_little() {
        let mut line = Line::TYPICAL;
        line.answered(60_000 * MS);
        assert!(line.time(Price { requests: 1, bytes: 0 }, 1) < 80 * MS);
        line.brought(1 << 30, Duration::ZERO);
        assert!(line.time(Price { requests: 0, bytes: 16_000_000 }, 1) > 900 * MS, "at most twice as fast");
        let before = line;
        line.brought(10_000, 10_000 * MS);
        assert_eq!(line, before, "too small to tell");
    }

    #[test]
    fn what_it_takes_to_set_connections_up_is_no_round_trip() {
        let mut line = Line::TYPICAL;
        let request = |line: &Line| line.time(Price { requests: 1, bytes: 0 }, 1);
        // Name, TCP and TLS, of as many as are opened at first; then these are used again.
        (0..16).for_each(|_| line.answered(160 * MS));
        (0..4).for_each(|_| line.answered(40 * MS));
        assert!(request(&line) < 50 * MS, "{:?}", request(&line));
        for answer in 0..100 {
            line.answered(if answer % 4 == 0 { 40 * MS } else { 160 * MS });
        }
        assert!(request(&line) < 45 * MS, "connections opened now and then: {:?}", request(&line));
        (0..40).for_each(|_| line.answered(160 * MS));
        assert!(request(&line) > 140 * MS, "a longer way: {:?}", request(&line));
    }

    #[test]
    fn a_request_is_never_free() {
        let mut line = Line::TYPICAL;
        (0..100).for_each(|_| line.answered(Duration::ZERO));
        assert_eq!(line.time(Price { requests: 1, bytes: 0 }, 1), 20 * MS);
    }
}
