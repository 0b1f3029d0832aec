//! Bulk: ranges of something large that are fetched at once, each over a connection of its own, also from a host that is asked everything
//! else over one.
//!
//! HTTP/2 has all requests share a TCP connection, and a TCP connection brings a window in a round trip, however many ranges share that.
//! Over 40 ms several connections bring five times as much as one. So what is [`super::Request::is_bulk`] goes apart: to a pool that
//! speaks HTTP/1.1 alone. That pool has a connection for each request under way, so the places that bound the requests bound the
//! connections too, and the ones that are idle are closed soon. Several connections of HTTP/2 would do as well, but a pool keeps
//! one of them to a host, so that there would have to be a pool for each and somebody to choose among them; and each byte would
//! come in frames and be counted against windows that nobody shares (RFC 9113, 5.2).
//!
//! Not every host takes that: it may speak HTTP/2 alone, refuse further connections, or answer otherwise over HTTP/1.1. What is refused
//! is asked for over the shared connection at once, and if it is answered there, all goes over that for a while.

use super::HttpError;
use reqwest::Version;
use std::time::{Duration, Instant};

/// After a refusal nothing goes apart for so long, for twice as long after the next.
const FIRST_REFUSAL: Duration = Duration::from_secs(60);
/// For so long at most.
const LONGEST_REFUSAL: Duration = Duration::from_secs(3600);

/// Over which of the connections to its host a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// One that it may share with all others.
    Shared,
    /// One that it has for itself.
    Apart,
}

/// What a host takes of requests that go apart. Pure: the caller tells the time.
#[derive(Debug, Default)]
pub(super) struct Bulk {
    /// Whether the requests to this host share a connection, as the last answer showed.
    is_shared: bool,
    /// Whether one that went apart was answered.
    is_known_to_work: bool,
    refused_until: Option<Instant>,
    /// How often in a row.
    refusals: u32,
}

/// How a request that went apart was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// By the host, or on the way to it.
    Told,
    /// There is no answer; the connection may have been closed as too long idle.
    Silent,
}

impl Refusal {
    /// Whether and how a request was refused that was answered with this status, or not at all. What the resource itself may be refused
    /// for counts too: the shared connection tells. A host that asks for less gets less.
    pub(super) fn of(outcome: Result<u16, &HttpError>) -> Option<Refusal> {
        match outcome {
            Ok(429) => None,
            Ok(400..=499 | 505) => Some(Refusal::Told),
            Err(HttpError::Tls { .. } | HttpError::Name { .. } | HttpError::Connect { .. }) => Some(Refusal::Told),
            Err(HttpError::Head { .. }) => Some(Refusal::Silent),
            Ok(_) | Err(_) => None,
        }
    }
}

impl Bulk {
    /// The way of a request for a part of much.
    pub(super) fn way(&self, now: Instant) -> Way {
        match self.is_shared && self.refused_until.is_none_or(|until| until <= now) {
            true => Way::Apart,
            false => Way::Shared,
        }
    }

    /// An answer came over TLS.
    pub(super) fn answered(&mut self, way: Way, version: Version, status: u16) {
        match way {
            Way::Shared => self.is_shared = version >= Version::HTTP_2,
            Way::Apart if status < 400 => (self.is_known_to_work, self.refusals) = (true, 0),
            Way::Apart => {}
        }
    }

    /// What had been refused was answered over the shared connection. Those that went together with it say the same.
    pub(super) fn refused(&mut self, refusal: Refusal, now: Instant) {
        let is_over = self.refused_until.is_none_or(|until| until <= now);
        if is_over && (refusal == Refusal::Told || !self.is_known_to_work) {
            self.refused_until = Some(now + (FIRST_REFUSAL * (1 << self.refusals.min(8))).min(LONGEST_REFUSAL));
            self.refusals = self.refusals.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Bulk {
        let mut bulk = Bulk::default();
        bulk.answered(Way::Shared, Version::HTTP_2, 200);
        bulk
    }

    #[test]
    fn requests_go_apart_where_they_would_share_a_connection() {
        let (mut bulk, now) = (Bulk::default(), Instant::now());
        assert_eq!(bulk.way(now), Way::Shared, "nothing is known");
        bulk.answered(Way::Shared, Version::HTTP_2, 404);
        assert_eq!(bulk.way(now), Way::Apart);
        bulk.answered(Way::Apart, Version::HTTP_11, 206);
        assert_eq!(bulk.way(now), Way::Apart);
        bulk.answered(Way::Shared, Version::HTTP_11, 200);
        assert_eq!(bulk.way(now), Way::Shared, "each has its own already");
    }

    #[test]
    fn a_host_that_refuses_is_left_alone_for_ever_longer() {
        let (mut bulk, start) = (shared(), Instant::now());
        for _ in 0..12 {
            bulk.refused(Refusal::Told, start);
        }
        let first = start + FIRST_REFUSAL;
        assert_eq!(bulk.way(first - Duration::from_secs(1)), Way::Shared);
        assert_eq!(bulk.way(first), Way::Apart, "twelve at once say the same");
        bulk.refused(Refusal::Told, first);
        assert_eq!(bulk.way(first + FIRST_REFUSAL), Way::Shared);
        let mut now = first;
        for _ in 0..12 {
            now += LONGEST_REFUSAL;
            assert_eq!(bulk.way(now), Way::Apart);
            bulk.refused(Refusal::Told, now);
        }
        now += LONGEST_REFUSAL;
        bulk.answered(Way::Apart, Version::HTTP_11, 206);
        bulk.refused(Refusal::Told, now);
        assert_eq!(bulk.way(now + FIRST_REFUSAL), Way::Apart, "it had taken one meanwhile");
    }

    #[test]
    fn a_connection_that_was_closed_idle_is_no_refusal() {
        let (mut bulk, now) = (shared(), Instant::now());
        bulk.answered(Way::Apart, Version::HTTP_11, 206);
        bulk.refused(Refusal::Silent, now);
        assert_eq!(bulk.way(now), Way::Apart);
        let mut never = shared();
        never.refused(Refusal::Silent, now);
        assert_eq!(never.way(now), Way::Shared);
    }

    #[test]
    fn what_asks_for_less_and_what_is_wrong_with_the_server_is_no_refusal() {
        for status in [200, 206, 302, 304, 429, 500, 502, 503, 504] {
            assert_eq!(Refusal::of(Ok(status)), None, "{status}");
        }
        for status in [400, 403, 404, 421, 426, 505] {
            assert_eq!(Refusal::of(Ok(status)), Some(Refusal::Told), "{status}");
        }
    }
}
