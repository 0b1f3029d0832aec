//! What one host is asked: how many requests at a time, how many a second, and whether at all.
//!
//! [`Pace`] and [`Breaker`] are state machines without clock: the caller tells the time.

use super::Request;
use super::awaited::Priority;
use super::bulk::{Bulk, Way};
use super::line::Line;
use super::opening::Opening;
use super::places::{Place, Places};
use super::traffic::{HostCounters, HostTraffic, Traffic};
use super::width::Width;
use crate::document::Uri;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// So many failures in a row open the breaker.
const FAILURES_TO_OPEN: u32 = 5;
/// URIs without answer that are remembered.
const UNANSWERED: usize = 64;
/// How long it stays open the first time, doubling with each probe that fails.
const OPEN_FIRST: Duration = Duration::from_secs(5);
/// How long at most.
const OPEN_LONGEST: Duration = Duration::from_secs(30);
/// A document for which a host wants a longer pause is asked for again after this one.
const PAUSE_LONGEST: Duration = Duration::from_secs(3600);
/// The same of resources: their readers do not wait for hours.
const PAUSE_OF_READERS: Duration = Duration::from_secs(60);
/// Documents whose pauses are remembered.
const PAUSED: usize = 64;
/// A host that wants more time between two requests is given this much.
const INTERVAL_LONGEST: Duration = Duration::from_secs(60);
/// Past so many hosts those that are at rest are forgotten.
const HOSTS_KEPT: usize = 1024;

/// A token bucket of `burst` tokens, filled at `rate` a second, as a schedule: each reservation moves it on by one
/// interval.
#[derive(Debug)]
pub(super) struct Pace {
    /// What was set.
    configured: Duration,
    interval: Duration,
    /// How far behind the clock the schedule may lag: the burst.
    slack: Duration,
    next: Option<Instant>,
    /// The host has said how fast it may be asked.
    is_slowed: bool,
    /// For resources.
    paused_until: Option<Instant>,
    /// Documents that have a pause of their own: what a host says of one list does not hold for what is read.
    paused: VecDeque<(Uri, Instant)>,
}

impl Pace {
    /// `rate` requests a second with bursts of one second's worth; unbounded for `None`.
    pub(super) fn new(rate: Option<f64>) -> Pace {
        let interval = rate
            .filter(|rate| *rate > 0.0)
            .and_then(|rate| Duration::try_from_secs_f64(1.0 / rate).ok())
            .unwrap_or(Duration::ZERO);
        let slack = Duration::from_secs(1).saturating_sub(interval);
        Pace {
            configured: interval,
            interval,
            slack,
            next: None,
            is_slowed: false,
            paused_until: None,
            paused: VecDeque::new(),
        }
    }

    /// The host wants so much time between two requests, none where it has taken that back: the slower of this and what was set
    /// counts.
    pub(super) fn slow_down(&mut self, interval: Duration) {
        self.is_slowed = !interval.is_zero();
        self.interval = self.configured.max(interval.min(INTERVAL_LONGEST));
        self.slack = Duration::from_secs(1).saturating_sub(self.interval);
    }

    pub(super) fn is_bounded(&self) -> bool {
        !self.interval.is_zero()
    }

    /// The moment at which a request may be sent, which is then taken; the same as an error, and nothing taken, where
    /// that lies past `latest`.
    pub(super) fn reserve(&mut self, now: Instant, latest: Instant) -> Result<Instant, Instant> {
        let scheduled = match (self.next, now.checked_sub(self.slack)) {
            (Some(next), Some(earliest)) => next.max(earliest),
            (Some(next), None) => next,
            (None, Some(earliest)) => earliest,
            (None, None) => now,
        };
        let when = scheduled.max(now);
        if when > latest {
            return Err(when);
        }
        self.next = Some(scheduled + self.interval);
        Ok(when)
    }

    /// Nothing that `of` stands for is sent before `now + pause`.
    pub(super) fn pause(&mut self, now: Instant, of: Paused<'_>, pause: Duration) {
        let until = now + pause.min(of.longest());
        match of {
            Paused::Resources => {
                self.paused_until = Some(self.paused_until.map_or(until, |earlier| earlier.max(until)));
            }
            Paused::Document(uri) => {
                self.paused.retain(|(paused, until)| paused != uri && *until > now);
                self.paused.truncate(PAUSED - 1);
                self.paused.push_front((uri.clone(), until));
            }
        }
    }

    /// How much of a pause is left for `of`.
    pub(super) fn pause_left(&self, now: Instant, of: Paused<'_>) -> Option<Duration> {
        let until = match of {
            Paused::Resources => self.paused_until,
            Paused::Document(uri) => self.paused.iter().find(|(paused, _)| paused == uri).map(|(_, until)| *until),
        };
        until.map(|until| until.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }

    /// The longest pause that is left.
    fn longest_pause_left(&self, now: Instant) -> Option<Duration> {
        let all = self.paused.iter().map(|(_, until)| *until).chain(self.paused_until);
        all.map(|until| until.saturating_duration_since(now)).filter(|left| !left.is_zero()).max()
    }

    /// A person wants to know now.
    fn end_pauses(&mut self) {
        self.paused_until = None;
        self.paused.clear();
    }

    fn is_at_rest(&self, now: Instant) -> bool {
        !self.is_slowed && self.next.is_none_or(|next| next <= now) && self.longest_pause_left(now).is_none()
    }
}

/// What a pause (`Retry-After`) is for: what was asked for when the host wanted it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Paused<'a> {
    /// All resources of the host.
    Resources,
    /// This document.
    Document(&'a Uri),
}

impl<'a> Paused<'a> {
    /// What `request` asks for.
    pub(super) fn of(request: &'a Request) -> Paused<'a> {
        if request.is_document { Paused::Document(&request.uri) } else { Paused::Resources }
    }

    /// How long a pause counts at most.
    pub(super) fn longest(self) -> Duration {
        match self {
            Paused::Resources => PAUSE_OF_READERS,
            Paused::Document(_) => PAUSE_LONGEST,
        }
    }
}

/// Leaves a host alone that does not answer. Closed: all pass. Open: none. Half open: one probe is under way, whose
/// outcome closes or opens it.
///
/// It counts what is the host's: no connection, or nothing over one for any URI. A URI whose connection ends without an answer counts
/// once: the fault may be its own. So where connections do come about, a URI that has not failed yet may be the probe at any time.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Failures in a row.
    failures: u32,
    /// URIs that had no answer over their connection, the latest first.
    unanswered: VecDeque<Uri>,
    /// The last failure was over a connection.
    connects: bool,
    /// Since the last success.
    openings: u32,
    open_until: Option<Instant>,
    probing: bool,
    last_failure: Option<Instant>,
    /// What the last failure was.
    why: Option<Box<str>>,
}

/// Whether a request may be sent to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// As one of many.
    Pass,
    /// As the one whose outcome counts.
    Probe,
    /// Not before then.
    Refused(Instant),
}

impl Breaker {
    /// Whether a request for `uri` may be sent, without counting it.
    pub(super) fn look(&self, uri: &Uri, now: Instant) -> Admission {
        match self.open_until {
            None => Admission::Pass,
            Some(_) if self.probing => Admission::Refused(now + OPEN_FIRST / 10),
            Some(until) if now < until && (!self.connects || self.unanswered.contains(uri)) => {
                Admission::Refused(until)
            }
            Some(_) => Admission::Probe,
        }
    }

    /// Lets a request pass or not; a probe must be answered by one of the three methods below.
    pub(super) fn admit(&mut self, uri: &Uri, now: Instant) -> Admission {
        let admission = self.look(uri, now);
        self.probing |= admission == Admission::Probe;
        admission
    }

    /// A response head came, whatever its status.
    pub(super) fn succeeded(&mut self) {
        *self = Breaker::default();
    }

    /// No connection; or over one no response head for the URI `over`.
    pub(super) fn failed(&mut self, now: Instant, admission: Admission, over: Option<&Uri>) {
        let is_probe = admission == Admission::Probe;
        let counts = over.is_none_or(|uri| !self.unanswered.contains(uri));
        if let Some(uri) = over.filter(|_| counts) {
            self.unanswered.truncate(UNANSWERED - 1);
            self.unanswered.push_front(uri.clone());
        }
        self.failures = self.failures.saturating_add(u32::from(counts));
        self.connects = over.is_some();
        self.last_failure = Some(now);
        if is_probe || (self.open_until.is_none() && self.failures >= FAILURES_TO_OPEN) {
            let open = OPEN_FIRST.saturating_mul(1 << self.openings.min(8)).min(OPEN_LONGEST);
            self.openings = self.openings.saturating_add(1);
            self.open_until = Some(now + open);
        }
        self.probing &= !is_probe;
    }

    /// Notes what the last failure was.
    pub(super) fn failed_for(&mut self, why: String) {
        self.why = Some(why.into());
    }

    /// Whether nothing is lost with it: the last failure is so old that an open breaker would let a probe pass.
    fn is_at_rest(&self, now: Instant) -> bool {
        !self.probing && self.last_failure.is_none_or(|failure| now.saturating_duration_since(failure) >= OPEN_LONGEST)
    }

    /// Failures in a row, and for how long nothing is sent for that.
    fn standing(&self, now: Instant) -> (u32, Option<Duration>) {
        let left = self.open_until.map(|until| until.saturating_duration_since(now));
        (self.failures, left.filter(|left| !left.is_zero()))
    }

    /// The request was given up before it could show anything.
    pub(super) fn abandoned(&mut self, admission: Admission) {
        self.probing &= admission != Admission::Probe;
    }
}

/// One host's state. No lock is held across an await, nor together with another but for `width`, which is locked before that of
/// `places`.
pub(super) struct Host {
    pub(super) authority: Box<str>,
    pub(super) counters: Arc<HostCounters>,
    opening: Arc<Opening>,
    /// The same of those for requests that go apart.
    opening_apart: Arc<Opening>,
    places: Arc<Places>,
    /// How many of `places` there are to be; its lock is held while they are brought in line with it.
    width: Mutex<Width>,
    /// One place more, for documents alone.
    document: Arc<Semaphore>,
    pace: Mutex<Pace>,
    /// The request that has it takes the next token of `pace`: in the order in which places are given out, so that no reader waits for what
    /// is fetched ahead.
    token: Arc<Places>,
    /// Of http and of https: without a port in the authority these are two places of one host.
    breakers: [Mutex<Breaker>; 2],
    line: Mutex<Line>,
    bulk: Mutex<Bulk>,
}

impl Host {
    /// A request is sent that has its place.
    pub(super) fn sent(&self, now: Instant) {
        self.counters.sent();
        let under_way = self.places.taken();
        self.width.lock().unwrap_or_else(PoisonError::into_inner).sent(under_way, now);
    }

    /// The head of an answer came after `latency`.
    pub(super) fn answered(&self, status: u16, latency: Duration, now: Instant) {
        self.adjust(|width| match status {
            429 | 503 => width.refused(now),
            _ => width.answered(latency, now),
        });
    }

    /// No answer came.
    pub(super) fn unanswered(&self, now: Instant) {
        self.adjust(|width| width.refused(now));
    }

    /// Requests that may be under way for nobody yet, as things stand.
    pub(super) fn beside_readers(&self) -> usize {
        self.width.lock().unwrap_or_else(PoisonError::into_inner).beside_readers()
    }

    fn adjust(&self, learn: impl FnOnce(&mut Width)) {
        let mut width = self.width.lock().unwrap_or_else(PoisonError::into_inner);
        learn(&mut width);
        self.places.resize(width.places(), width.beside_readers());
    }

    /// A place, once there is one; a document may take the one that is kept for it.
    pub(super) async fn place(&self, is_document: bool, awaited: Priority) -> Place {
        let usual = self.places.take(awaited);
        if !is_document {
            return usual.await;
        }
        tokio::select! {
            biased;
            place = usual => place,
            Ok(permit) = Arc::clone(&self.document).acquire_owned() => Place::of_document(permit),
        }
    }

    /// Waits for the next token where the host's rate is bounded.
    pub(super) async fn in_pace(&self, awaited: Priority) {
        if !self.pace().is_bounded() {
            return;
        }
        let _next = self.token.take(awaited).await;
        // It is taken when its time has come: a request that is given up before leaves it to the next.
        loop {
            // The clock of the timer, which tests stop.
            let now = tokio::time::Instant::now().into_std();
            let reserved = self.pace().reserve(now, now);
            match reserved {
                Ok(_) => return,
                Err(turn) => tokio::time::sleep_until(turn.into()).await,
            }
        }
    }

    pub(super) fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That of requests for `uri`.
    pub(super) fn breaker(&self, uri: &Uri) -> MutexGuard<'_, Breaker> {
        let [plain, tls] = &self.breakers;
        let breaker = if uri.scheme() == "https" { tls } else { plain };
        breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn breakers(&self) -> impl Iterator<Item = MutexGuard<'_, Breaker>> {
        self.breakers.iter().map(|breaker| breaker.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bulk(&self) -> MutexGuard<'_, Bulk> {
        self.bulk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connections that are being opened for requests of this way, or come back from them.
    pub(super) fn opening(&self, way: Way) -> &Arc<Opening> {
        match way {
            Way::Shared => &self.opening,
            Way::Apart => &self.opening_apart,
        }
    }

    fn is_at_rest(&self, now: Instant) -> bool {
        self.pace().is_at_rest(now) && self.breakers().all(|breaker| breaker.is_at_rest(now))
    }
}

/// The hosts that were asked, by `HOST[:PORT]`.
pub(super) struct Hosts {
    rate: Option<f64>,
    connections: usize,
    known: Mutex<HashMap<Box<str>, Arc<Host>>>,
    traffic: Traffic,
}

impl Hosts {
    pub(super) fn new(rate: Option<f64>, connections: usize) -> Hosts {
        let connections = connections.clamp(1, Semaphore::MAX_PERMITS);
        Hosts { rate, connections, known: Mutex::default(), traffic: Traffic::default() }
    }

    pub(super) fn connections(&self) -> usize {
        self.connections
    }

    pub(super) fn host(&self, authority: &str, now: Instant) -> Arc<Host> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = known.get(authority) {
            return Arc::clone(host);
        }
        if known.len() >= HOSTS_KEPT {
            known.retain(|_, host| Arc::strong_count(host) > 1 || !host.is_at_rest(now));
        }
        let width = Width::new(self.connections);
        let places = Places::new(width.places(), width.beside_readers());
        let host = Arc::new(Host {
            authority: authority.into(),
            counters: self.traffic.of(authority),
            opening: Arc::default(),
            opening_apart: Arc::default(),
            places,
            width: Mutex::new(width),
            document: Arc::new(Semaphore::new(1)),
            pace: Mutex::new(Pace::new(self.rate)),
            token: Places::new(1, 1),
            breakers: Default::default(),
            line: Mutex::default(),
            bulk: Mutex::default(),
        });
        known.insert(authority.into(), Arc::clone(&host));
        host
    }

    /// What the last failure was of a host that has not answered since.
    pub(super) fn unanswered(&self) -> Option<Box<str>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let hosts: Vec<_> = known.values().map(Arc::clone).collect();
        drop(known);
        hosts.iter().find_map(|host| host.breakers().find_map(|breaker| breaker.why.clone()))
    }

    /// Hosts that wanted a pause are asked again at once.
    pub(super) fn end_pauses(&self) {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().for_each(|host| host.pace().end_pauses());
    }

    /// What every host was asked, and how it stands.
    pub(super) fn traffic(&self, now: Instant) -> Vec<HostTraffic> {
        let mut traffic = self.traffic.snapshot();
        for counted in &mut traffic {
            let known = |authority: &str| {
                self.known.lock().unwrap_or_else(PoisonError::into_inner).get(authority).map(Arc::clone)
            };
            if let Some(host) = counted.host.as_deref().and_then(known) {
                let standing = host.breakers().map(|breaker| breaker.standing(now)).max_by_key(|(_, open)| *open);
                (counted.failures_in_a_row, counted.opens_in) = standing.unwrap_or_default();
                counted.paused_for = host.pace().longest_pause_left(now);
            }
        }
        traffic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn uri(number: u32) -> Uri {
        Uri::parse(&format!("http://example.org/{number}")).unwrap()
    }

    #[test]
    fn a_burst_of_one_second_then_the_rate() {
        let start = Instant::now() + 100 * SECOND;
        let mut pace = Pace::new(Some(4.0));
        let sent: Vec<u128> =
            (0..8).map(|_| (pace.reserve(start, start + 9 * SECOND).unwrap() - start).as_millis()).collect();
        assert_eq!(sent, [0, 0, 0, 0, 250, 500, 750, 1000]);
    }

    #[test]
    fn idling_never_saves_up_more_than_the_burst() {
        let start = Instant::now() + 100 * SECOND;
        let mut pace = Pace::new(Some(1.0));
        assert_eq!(pace.reserve(start, start), Ok(start));
        let later = start + 50 * SECOND;
        assert_eq!(pace.reserve(later, later), Ok(later));
        assert_eq!(pace.reserve(later, later + SECOND), Ok(later + SECOND));
    }

    #[test]
    fn what_comes_too_late_takes_nothing() {
        let start = Instant::now() + 100 * SECOND;
        let mut pace = Pace::new(Some(0.5));
        assert_eq!(pace.reserve(start, start), Ok(start));
        assert_eq!(pace.reserve(start, start + SECOND), Err(start + 2 * SECOND));
        assert_eq!(pace.reserve(start, start + 2 * SECOND), Ok(start + 2 * SECOND));
    }

    #[test]
    fn a_pause_counts_for_what_asked_and_the_longer_one() {
        let start = Instant::now() + 100 * SECOND;
        let mut pace = Pace::new(None);
        pace.pause(start, Paused::Resources, 5 * SECOND);
        pace.pause(start, Paused::Resources, 2 * SECOND);
        pace.pause(start, Paused::Document(&uri(1)), Duration::MAX);
        assert_eq!(pace.pause_left(start, Paused::Resources), Some(5 * SECOND));
        assert_eq!(pace.pause_left(start, Paused::Document(&uri(1))), Some(PAUSE_LONGEST));
        assert_eq!(pace.pause_left(start, Paused::Document(&uri(2))), None);
        assert_eq!(pace.longest_pause_left(start), Some(PAUSE_LONGEST));
        assert_eq!(pace.pause_left(start + 5 * SECOND, Paused::Resources), None);
        pace.pause(start, Paused::Resources, Duration::MAX);
        assert_eq!(pace.pause_left(start, Paused::Resources), Some(PAUSE_OF_READERS));
        pace.end_pauses();
        assert_eq!(pace.longest_pause_left(start), None);
    }

    #[test]
    fn a_host_may_want_more_time_between_requests_never_less() {
        let start = Instant::now() + 100 * SECOND;
        let mut pace = Pace::new(Some(0.5));
        pace.slow_down(SECOND);
        pace.slow_down(5 * SECOND);
        assert_eq!(pace.reserve(start, start), Ok(start));
        assert_eq!(pace.reserve(start, start + 9 * SECOND), Ok(start + 5 * SECOND));

        pace.slow_down(Duration::ZERO);
        assert_eq!((pace.interval, pace.is_slowed), (2 * SECOND, false), "it was taken back");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_rate_is_kept_and_a_request_given_up_takes_nothing() {
        let host = Hosts::new(Some(0.005), 1).host("slow", Instant::now());
        let start = tokio::time::Instant::now();
        host.in_pace(Priority::default()).await;
        let given_up = tokio::time::timeout(100 * SECOND, host.in_pace(Priority::default())).await;
        assert!(given_up.is_err());

        host.in_pace(Priority::default()).await;

        assert!((200..202).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    }

    #[test]
    fn failures_in_a_row_open_the_breaker_and_one_probe_closes_it() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES_TO_OPEN - 1 {
            breaker.failed(start, Admission::Pass, None);
        }
        assert_eq!(breaker.admit(&uri(0), start), Admission::Pass);
        breaker.failed(start, Admission::Pass, None);
        assert_eq!(breaker.admit(&uri(0), start), Admission::Refused(start + OPEN_FIRST));

        let later = start + OPEN_FIRST;
        assert_eq!(breaker.admit(&uri(0), later), Admission::Probe);
        assert!(matches!(breaker.admit(&uri(0), later), Admission::Refused(_)), "one probe at a time");
        breaker.succeeded();
        assert_eq!(breaker.admit(&uri(0), later), Admission::Pass);
    }

    #[test]
    fn a_uri_whose_connections_end_without_answer_counts_once() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..10 * FAILURES_TO_OPEN {
            breaker.failed(start, Admission::Pass, Some(&uri(1)));
        }
        assert_eq!((breaker.standing(start).0, breaker.admit(&uri(1), start)), (1, Admission::Pass));
    }

    #[test]
    fn a_neighbour_of_uris_without_answer_is_asked_as_a_probe() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for number in 1..=FAILURES_TO_OPEN {
            breaker.failed(start, Admission::Pass, Some(&uri(number)));
        }
        assert_eq!(breaker.look(&uri(1), start), Admission::Refused(start + OPEN_FIRST));
        assert_eq!(breaker.admit(&uri(9), start), Admission::Probe);
        assert!(matches!(breaker.admit(&uri(10), start), Admission::Refused(_)), "one at a time");
        breaker.succeeded();
        assert_eq!(breaker.look(&uri(1), start), Admission::Pass);

        for _ in 0..FAILURES_TO_OPEN {
            breaker.failed(start, Admission::Pass, None);
        }
        assert_eq!(breaker.look(&uri(9), start), Admission::Refused(start + OPEN_FIRST), "no connection for any");
    }

    #[test]
    fn a_failed_probe_opens_it_for_longer_and_an_abandoned_one_frees_its_place() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES_TO_OPEN {
            breaker.failed(start, Admission::Pass, None);
        }
        let first = start + OPEN_FIRST;
        assert_eq!(breaker.admit(&uri(0), first), Admission::Probe);
        breaker.abandoned(Admission::Probe);
        assert_eq!(breaker.admit(&uri(0), first), Admission::Probe);
        // A request sent before the breaker opened ends now: that is not the probe's outcome.
        breaker.failed(first, Admission::Pass, None);
        breaker.abandoned(Admission::Pass);
        assert!(matches!(breaker.admit(&uri(0), first), Admission::Refused(_)));
        breaker.failed(first, Admission::Probe, None);
        assert_eq!(breaker.admit(&uri(0), first), Admission::Refused(first + 2 * OPEN_FIRST));
    }

    #[test]
    fn a_success_between_failures_starts_the_count_anew() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            for _ in 0..FAILURES_TO_OPEN - 1 {
                breaker.failed(start, Admission::Pass, None);
            }
            breaker.succeeded();
        }
        assert_eq!(breaker.admit(&uri(0), start), Admission::Pass);
    }

    #[tokio::test]
    async fn a_host_that_says_that_it_is_too_much_is_asked_for_half_as_much_at_once() {
        for status in [429, 503] {
            let (hosts, now) = (Hosts::new(None, 64), Instant::now());
            let host = hosts.host("busy", now);
            let mut under_way = Vec::new();
            while let Ok(place) = tokio::time::timeout(SECOND / 50, host.place(false, Priority::default())).await {
                under_way.push(place);
            }
            let before = under_way.len();
            host.answered(status, SECOND / 25, now);
            under_way.truncate(before / 2);

            let next = tokio::time::timeout(SECOND / 50, host.place(false, Priority::default())).await;
            assert!(next.is_err(), "{status}: half of {before} are under way");
            under_way.pop();
            let next = tokio::time::timeout(20 * SECOND, host.place(false, Priority::default())).await;
            assert!(next.is_ok(), "{status}: one less than half of {before} are under way");
        }
    }

    #[test]
    fn a_host_that_failed_once_is_forgotten_in_the_end() {
        let now = Instant::now();
        let hosts = Hosts::new(None, 1);
        for number in 0..2 * HOSTS_KEPT {
            hosts.host(&format!("dead{number}"), now).breaker(&uri(0)).failed(now, Admission::Pass, None);
        }
        let probed = hosts.host("probed", now);
        for _ in 0..FAILURES_TO_OPEN {
            probed.breaker(&uri(0)).failed(now, Admission::Pass, None);
        }
        drop(probed);
        assert!(hosts.known.lock().unwrap().len() > 2 * HOSTS_KEPT, "their failures count still");
        let later = now + OPEN_LONGEST;
        let open = hosts.host("open", later);
        for _ in 0..FAILURES_TO_OPEN {
            open.breaker(&uri(0)).failed(later, Admission::Pass, None);
        }
        drop(open);
        assert_eq!(hosts.host("probed", later).breaker(&uri(0)).admit(&uri(0), later), Admission::Pass, "forgotten");
        for number in 0..=HOSTS_KEPT {
            hosts.host(&number.to_string(), later);
        }
        assert!(hosts.known.lock().unwrap().len() <= HOSTS_KEPT + 2);
        assert!(matches!(hosts.host("open", later).breaker(&uri(0)).admit(&uri(0), later), Admission::Refused(_)));
    }

    #[test]
    fn hosts_at_rest_are_forgotten_the_others_kept() {
        let now = Instant::now();
        let hosts = Hosts::new(None, 1);
        hosts.host("paused", now).pace().pause(now, Paused::Resources, SECOND);
        let held = hosts.host("held", now);
        for number in 0..2 * HOSTS_KEPT {
            hosts.host(&number.to_string(), now);
        }
        assert!(hosts.known.lock().unwrap().len() <= HOSTS_KEPT + 1);
        assert!(hosts.host("paused", now).pace().longest_pause_left(now).is_some());
        assert!(Arc::ptr_eq(&held, &hosts.host("held", now)));
    }
}
