//! The circuit breaker of one host. Pure: the caller passes the time.

use crate::document::Uri;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Number of failures in a row that open the breaker.
const FAILURES_TO_OPEN: u32 = 5;
/// URIs without an answer that are remembered.
const UNANSWERED: usize = 64;
/// How long it stays open the first time. Each probe that fails doubles it.
const OPEN_FIRST: Duration = Duration::from_secs(5);
/// How long at most.
const OPEN_LIMIT: Duration = Duration::from_secs(30);

/// A probe that fails after so long, behind so many failures in a row, has cost its reader that time in vain: the next one waits for its turn.
const LONG_PROBE: Duration = Duration::from_millis(500);
const FAILURES_OF_ALL: u32 = 2 * FAILURES_TO_OPEN;

/// Closed: all requests pass. Open: none. Half open: one probe is in flight, whose outcome closes or opens it.
///
/// It counts failures of the host: no connection, or no answer for any URI. A URI whose connection ends without an answer counts once, because
/// the fault may be the resource's. So where connections succeed, a URI that has not failed yet may be the probe at any time, until a probe
/// meets a long silence behind many others.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Failures in a row.
    failures: u32,
    /// URIs without an answer, the latest first.
    unanswered: VecDeque<Uri>,
    /// The last failure was behind a connection.
    connects: bool,
    /// Since the last success.
    openings: u32,
    open_until: Option<Instant>,
    probing_since: Option<Instant>,
    /// The last failure, for a person.
    cause: Option<Box<str>>,
}

/// True if a request may be sent to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::source::http) enum Admission {
    /// Request that is one of many.
    Pass,
    /// Request whose outcome counts.
    Probe,
    /// Not before then.
    Refused(Instant),
}

impl Breaker {
    /// Returns whether a request for `uri` may be sent.
    pub(super) fn look(&self, uri: &Uri, now: Instant) -> Admission {
        match self.open_until {
            None => Admission::Pass,
            Some(_) if self.probing_since.is_some() => Admission::Refused(now + OPEN_FIRST / 10),
            Some(until) if now < until && (!self.connects || self.unanswered.contains(uri)) => {
                Admission::Refused(until)
            }
            Some(_) => Admission::Probe,
        }
    }

    /// Admission of a request that is sent now. A probe is followed by one of the three calls below.
    pub(super) fn admit(&mut self, uri: &Uri, now: Instant) -> Admission {
        let admission = self.look(uri, now);
        if admission == Admission::Probe {
            self.probing_since = Some(now);
        }
        admission
    }

    /// A response head came, of any status.
    pub(super) fn succeeded(&mut self) {
        *self = Breaker::default();
    }

    /// No connection; or no response head for the URI `over` behind one. Whether the breaker has opened.
    pub(super) fn failed(&mut self, now: Instant, is_probe: bool, over: Option<&Uri>, cause: String) -> bool {
        let counts = over.is_none_or(|uri| !self.unanswered.contains(uri));
        if let Some(uri) = over.filter(|_| counts) {
            self.unanswered.truncate(UNANSWERED - 1);
            self.unanswered.push_front(uri.clone());
        }
        self.failures = self.failures.saturating_add(u32::from(counts));
        let probed = self.probing_since.filter(|_| is_probe).map(|since| now.saturating_duration_since(since));
        let was_in_vain = self.failures >= FAILURES_OF_ALL && probed.is_some_and(|probed| probed >= LONG_PROBE);
        self.connects = over.is_some() && !was_in_vain;
        self.cause = Some(cause.into());
        let opens = is_probe || (self.open_until.is_none() && self.failures >= FAILURES_TO_OPEN);
        if opens {
            let open = OPEN_FIRST.saturating_mul(1 << self.openings.min(8)).min(OPEN_LIMIT);
            self.openings = self.openings.saturating_add(1);
            self.open_until = Some(now + open);
        }
        if is_probe {
            self.probing_since = None;
        }
        opens
    }

    /// The probe was cancelled, or its failure is not the host's.
    pub(super) fn abandoned(&mut self) {
        self.probing_since = None;
    }

    /// Returns whether it admits all requests, or one as a probe.
    pub(super) fn is_closed(&self, now: Instant) -> bool {
        self.probing_since.is_none() && self.open_until.is_none_or(|until| until <= now)
    }

    /// Failures in a row, and how long the breaker stays open.
    pub(super) fn failures(&self, now: Instant) -> (u32, Option<Duration>) {
        let left = self.open_until.map(|until| until.saturating_duration_since(now));
        (self.failures, left.filter(|left| !left.is_zero()))
    }

    /// The last failure, where no answer came since.
    pub(super) fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(number: u32) -> Uri {
        Uri::parse(&format!("http://example.org/{number}")).unwrap()
    }

    fn fail(breaker: &mut Breaker, now: Instant, admission: Admission, over: Option<&Uri>) {
        breaker.failed(now, admission == Admission::Probe, over, "it failed".to_owned());
    }

    #[test]
    fn failures_in_a_row_open_the_breaker_and_one_probe_closes_it() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES_TO_OPEN - 1 {
            fail(&mut breaker, start, Admission::Pass, None);
        }
        assert_eq!(breaker.admit(&uri(0), start), Admission::Pass);
        fail(&mut breaker, start, Admission::Pass, None);
        assert_eq!(breaker.admit(&uri(0), start), Admission::Refused(start + OPEN_FIRST));

        let later = start + OPEN_FIRST;
        assert_eq!(breaker.admit(&uri(0), later), Admission::Probe);
        assert!(matches!(breaker.admit(&uri(0), later), Admission::Refused(_)), "one probe at a time");
        breaker.succeeded();
        assert_eq!((breaker.admit(&uri(0), later), breaker.cause()), (Admission::Pass, None));
    }

    #[test]
    fn a_uri_whose_connections_end_without_answer_counts_once() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..10 * FAILURES_TO_OPEN {
            fail(&mut breaker, start, Admission::Pass, Some(&uri(1)));
        }
        assert_eq!((breaker.failures(start).0, breaker.admit(&uri(1), start)), (1, Admission::Pass));
    }

    #[test]
    fn a_neighbour_of_uris_without_answer_is_asked_as_a_probe() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for number in 1..=FAILURES_TO_OPEN {
            fail(&mut breaker, start, Admission::Pass, Some(&uri(number)));
        }
        assert_eq!(breaker.look(&uri(1), start), Admission::Refused(start + OPEN_FIRST));
        assert_eq!(breaker.admit(&uri(9), start), Admission::Probe);
        assert!(matches!(breaker.admit(&uri(10), start), Admission::Refused(_)), "one at a time");
        breaker.succeeded();
        assert_eq!(breaker.look(&uri(1), start), Admission::Pass);

        for _ in 0..FAILURES_TO_OPEN {
            fail(&mut breaker, start, Admission::Pass, None);
        }
        assert_eq!(breaker.look(&uri(9), start), Admission::Refused(start + OPEN_FIRST), "no connection for any");
    }

    #[test]
    fn after_a_silent_probe_no_neighbour_is_asked_before_its_time() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for number in 1..=FAILURES_OF_ALL {
            fail(&mut breaker, start, Admission::Pass, Some(&uri(number)));
        }
        assert_eq!(breaker.admit(&uri(90), start), Admission::Probe);
        let later = start + LONG_PROBE;
        fail(&mut breaker, later, Admission::Probe, Some(&uri(90)));

        assert_eq!(breaker.admit(&uri(91), later), Admission::Refused(later + 2 * OPEN_FIRST));
        assert_eq!(breaker.admit(&uri(91), later + 2 * OPEN_FIRST), Admission::Probe);
    }

    #[test]
    fn a_failed_probe_opens_it_longer_and_an_abandoned_one_does_not() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES_TO_OPEN {
            fail(&mut breaker, start, Admission::Pass, None);
        }
        let first = start + OPEN_FIRST;
        assert_eq!(breaker.admit(&uri(0), first), Admission::Probe);
        breaker.abandoned();
        assert_eq!(breaker.admit(&uri(0), first), Admission::Probe);
        // A request sent before the breaker opened ends now: that is not the probe's outcome.
        fail(&mut breaker, first, Admission::Pass, None);
        assert!(matches!(breaker.admit(&uri(0), first), Admission::Refused(_)));
        fail(&mut breaker, first, Admission::Probe, None);
        assert_eq!(breaker.admit(&uri(0), first), Admission::Refused(first + 2 * OPEN_FIRST));
    }

    #[test]
    fn a_success_between_failures_restarts_the_count() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            for _ in 0..FAILURES_TO_OPEN - 1 {
                fail(&mut breaker, start, Admission::Pass, None);
            }
            breaker.succeeded();
        }
        assert_eq!(breaker.admit(&uri(0), start), Admission::Pass);
    }
}
