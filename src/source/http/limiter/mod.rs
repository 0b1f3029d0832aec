//! When a host is asked: the one place that decides this. Pure: the caller passes the time, and `host` does the waiting.
//!
//! A request passes the gate first: the circuit breaker, and the pause that its document was asked for. Then it waits in one queue, ordered by class
//! and by process in turns. At the head of the queue it takes a permit, whose number adapts, and a token. The bucket has the rate that the person has
//! set, the window that the host announces and the pauses that it asks for. It stands behind the queue: a reader that comes later is ahead of every
//! prefetch for the next token.

mod breaker;
mod bucket;
mod concurrency;
mod queue;
mod window;

use super::announced::AnnouncedLimits;
use super::{Priority, Request, Requester};
use crate::document::Uri;
use crate::platform::penalty_box::PenaltyBox;
pub(super) use breaker::Admission;
pub(super) use queue::Ticket;
pub(super) use window::LimitStanding;

use breaker::Breaker;
use bucket::Bucket;
use concurrency::Concurrency;
use queue::{Class, DOCUMENTS, FairQueue};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// A pause for a document, or for too many requests, lasts at most so long.
const PAUSE_LIMIT: Duration = Duration::from_secs(3600);
/// A host that is out of order for one resource (503) has others: these wait no longer.
const PAUSE_LIMIT_OF_OTHERS: Duration = Duration::from_secs(60);
/// Documents whose pauses are remembered.
const PAUSED_DOCUMENTS: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");
/// After a refusal no range goes over a dedicated connection for so long; for twice as long after the next.
const RANGES_REFUSED: std::ops::RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(3600);

/// True if a request may wait for a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    /// The circuit breaker is open until then.
    Broken(Instant),
    /// The host asked for a pause until then in an answer for the same document.
    Paused(Instant),
}

/// A permit of a host, by its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// A reader's.
    Reader,
    /// Permit of a prefetch or of background work. Their number leaves some permits to readers.
    Unread,
    /// The permit that is reserved for documents. It is taken where all others are.
    Document,
}

/// The next step of the queue.
#[derive(Debug)]
pub(super) enum NextGrant<T> {
    Grant(Grant, T),
    /// A request could be granted then, when the next token comes.
    At(Instant),
    /// No request waits for which there is a permit.
    Idle,
}

/// One host's state; `T` is what the caller knows of a request that waits.
#[derive(Debug)]
pub(super) struct Limiter<T> {
    queue: FairQueue<T>,
    concurrency: Concurrency,
    /// Permits taken, and those of them that no reader waits for.
    in_flight: usize,
    unread: usize,
    has_document: bool,
    bucket: Bucket,
    /// The pause of a list that is out of order (503) does not hold for readers, nor for other lists.
    documents_paused: PenaltyBox<Uri>,
    /// Refused are ranges over dedicated connections.
    ranges_refused: PenaltyBox<()>,
    /// Breakers of http and https, which are two services of one host.
    breakers: [Breaker; 2],
}

impl<T> Limiter<T> {
    /// At most `rate` requests a second, where that is set, and `connections` in flight.
    pub(super) fn new(rate: Option<f64>, connections: usize) -> Limiter<T> {
        Limiter {
            queue: FairQueue::default(),
            concurrency: Concurrency::new(connections),
            in_flight: 0,
            unread: 0,
            has_document: false,
            bucket: Bucket::new(rate),
            documents_paused: PenaltyBox::new(PAUSED_DOCUMENTS),
            ranges_refused: PenaltyBox::new(NonZeroUsize::MIN),
            breakers: Default::default(),
        }
    }

    /// Returns whether `request`, which goes to `uri`, may wait for a permit.
    pub(super) fn gate(&mut self, request: &Request, uri: &Uri, now: Instant) -> Gate {
        if let Admission::Refused(until) = self.breaker(uri).look(uri, now) {
            return Gate::Broken(until);
        }
        let pause = self.documents_paused.until(&request.uri).filter(|until| request.is_document && *until > now);
        pause.map_or(Gate::Open, Gate::Paused)
    }

    /// Puts a request into the queue.
    pub(super) fn submit(&mut self, priority: &Priority, is_document: bool, item: T) -> Ticket {
        let (class, requester) = match (priority, priority.reader()) {
            _ if is_document => (Class::Reader, DOCUMENTS),
            (_, Some(requester)) => (Class::Reader, requester),
            (Priority::Prefetch(requester, _), None) => (Class::Prefetch, *requester),
            (_, None) => (Class::Background, Requester::default()),
        };
        self.queue.push(class, requester, item)
    }

    /// A reader of `requester` waits for the request now. A request that was granted keeps its share.
    pub(super) fn raise(&mut self, ticket: &mut Ticket, requester: Requester) {
        if let Some(item) = self.queue.remove(ticket) {
            *ticket = self.queue.push(Class::Reader, requester, item);
        }
    }

    /// Takes a request out of the queue, if it is there.
    pub(super) fn leave(&mut self, ticket: &Ticket) -> Option<T> {
        self.queue.remove(ticket)
    }

    /// Takes all requests out of the queue: the gate has closed for some of them.
    pub(super) fn drain(&mut self) -> Vec<T> {
        self.queue.drain()
    }

    /// Grants the next permit. The caller repeats this until none is granted.
    pub(super) fn next(&mut self, now: Instant) -> NextGrant<T> {
        let Some((grant, class)) = self.eligible() else { return NextGrant::Idle };
        let token = self.bucket.next(grant == Grant::Unread, now);
        if token > now {
            return NextGrant::At(token);
        }
        let item = if grant == Grant::Document { self.queue.pop_document() } else { self.queue.pop(class) };
        let Some(item) = item else { return NextGrant::Idle };
        self.bucket.take(now);
        match grant {
            Grant::Reader => self.in_flight += 1,
            Grant::Unread => (self.in_flight, self.unread) = (self.in_flight + 1, self.unread + 1),
            Grant::Document => self.has_document = true,
        }
        NextGrant::Grant(grant, item)
    }

    /// The first class that waits and has a permit.
    fn eligible(&self) -> Option<(Grant, Class)> {
        // What is sent ahead keeps its permits when their number shrinks: those that are reserved for readers are theirs all the same.
        let is_reader_behind = self.queue.has(Class::Reader) && self.in_flight < self.concurrency.limit();
        if is_reader_behind && self.in_flight - self.unread < self.concurrency.reader_permits() {
            return Some((Grant::Reader, Class::Reader));
        }
        if self.in_flight >= self.concurrency.permits() {
            return (self.queue.has_document() && !self.has_document).then_some((Grant::Document, Class::Reader));
        }
        // Half of the permits at most are for work in the background. One at least: without any the recovery of a host would go unseen.
        let classes = [
            (Grant::Reader, Class::Reader, usize::MAX),
            (Grant::Unread, Class::Prefetch, self.concurrency.prefetch_permits()),
            (Grant::Unread, Class::Background, self.concurrency.permits() / 2),
        ];
        let mut eligible =
            classes.into_iter().filter(|(_, class, most)| self.unread < (*most).max(1) && self.queue.has(*class));
        eligible.next().map(|(grant, class, _)| (grant, class))
    }

    /// A request that has its permit is sent a second time.
    pub(super) fn repeat(&mut self, now: Instant) {
        self.bucket.take(now);
    }

    /// A permit is free again.
    pub(super) fn release(&mut self, grant: Grant) {
        match grant {
            Grant::Reader => self.in_flight -= 1,
            Grant::Unread => (self.in_flight, self.unread) = (self.in_flight - 1, self.unread - 1),
            Grant::Document => self.has_document = false,
        }
    }

    fn breaker(&mut self, uri: &Uri) -> &mut Breaker {
        &mut self.breakers[usize::from(uri.scheme() == "https")]
    }

    /// Returns whether a request that has its permit is sent to `uri` now.
    pub(super) fn admit(&mut self, uri: &Uri, now: Instant) -> Admission {
        self.breaker(uri).admit(uri, now)
    }

    /// When a request of this priority would get a token if it were the next, and whether the person or the host has said so.
    pub(super) fn held(&self, request: &Request, now: Instant) -> Option<(Instant, bool)> {
        let is_ahead = !request.is_document && request.priority.reader().is_none();
        let token = self.bucket.next(is_ahead, now);
        (token > now).then(|| (token, self.bucket.is_known(now)))
    }

    /// Returns whether the host's window holds requests, and until when.
    pub(super) fn paced(&self, now: Instant) -> Option<Instant> {
        let standing = self.bucket.standing(now);
        standing.ends_in.and(Some(self.bucket.next(false, now))).filter(|next| *next > now)
    }

    /// Returns whether the person or the host has said why requests wait for a token.
    pub(super) fn is_known(&self, now: Instant) -> bool {
        self.bucket.is_known(now)
    }

    /// Returns whether what no reader waits for has no token now.
    pub(super) fn holds_prefetches(&self, now: Instant) -> bool {
        self.bucket.next(true, now) > now
    }

    /// The host's window, for a person.
    pub(super) fn standing(&self, now: Instant) -> LimitStanding {
        self.bucket.standing(now)
    }

    /// The length of the host's window, where it has one.
    pub(super) fn window(&self) -> Option<Duration> {
        self.bucket.window()
    }

    /// Readers that wait.
    pub(super) fn waiting_readers(&self) -> usize {
        self.queue.readers()
    }

    /// The head of an answer came after `latency`. Whether it has left nothing until the next window.
    pub(super) fn answered(
        &mut self,
        uri: &Uri,
        (status, announced): (u16, Option<AnnouncedLimits>),
        latency: Duration,
        now: Instant,
    ) -> bool {
        self.breaker(uri).succeeded();
        let was_exhausted = self.bucket.is_exhausted(now);
        self.bucket.answered(Some((status, announced)), now);
        match status {
            429 | 503 => self.concurrency.refused(now),
            _ => self.concurrency.answered(latency, self.in_flight, now),
        }
        self.bucket.is_exhausted(now) && !was_exhausted
    }

    /// A request that took its token has no answer, and will have none.
    pub(super) fn unanswered(&mut self, now: Instant) {
        self.bucket.answered(None, now);
    }

    /// No answer came, although there was a connection where `is_connected`. Whether the breaker has opened.
    pub(super) fn failed(
        &mut self,
        uri: &Uri,
        is_probe: bool,
        is_connected: bool,
        cause: String,
        now: Instant,
    ) -> bool {
        self.concurrency.refused(now);
        self.breaker(uri).failed(now, is_probe, is_connected.then_some(uri), cause)
    }

    /// A probe was cancelled: it counts for nothing.
    pub(super) fn cancelled(&mut self, uri: &Uri) {
        self.breaker(uri).abandoned();
    }

    /// The host wants so much time between two requests (`Crawl-delay`).
    pub(super) fn slow_down(&mut self, interval: Duration) {
        self.bucket.slow_down(interval);
    }

    /// The host has refused `request` by 429 or 503, and asks for this pause (`Retry-After`), if for any. Whether that is for other requests too:
    /// a 429 is for all, and the 503 of a document for that one alone.
    pub(super) fn refused(&mut self, request: &Request, status: u16, pause: Option<Duration>, now: Instant) -> bool {
        let is_for_all = status == 429 || !request.is_document;
        let limit = if status == 503 && is_for_all { PAUSE_LIMIT_OF_OTHERS } else { PAUSE_LIMIT };
        let pause = pause.map(|pause| pause.min(limit));
        match pause {
            Some(pause) if !is_for_all => self.documents_paused.punish(request.uri.clone(), pause, (), now),
            pause if status == 429 || pause.is_some() => self.bucket.refused(pause, now),
            _ => {}
        }
        is_for_all
    }

    /// The host refused a range over a dedicated connection.
    pub(super) fn refuse_ranges(&mut self, now: Instant) {
        self.ranges_refused.punish_longer((), RANGES_REFUSED, (), now);
    }

    /// Returns whether ranges may go over dedicated connections.
    pub(super) fn takes_ranges(&self, now: Instant) -> bool {
        !self.ranges_refused.is_punished(&(), now)
    }

    /// All pauses end: the host is asked at once.
    pub(super) fn end_pauses(&mut self, now: Instant) {
        self.bucket.end_pause(now);
        self.documents_paused.clear();
    }

    /// The longest pause that is left.
    pub(super) fn longest_pause(&self, now: Instant) -> Option<Duration> {
        let resources = self.bucket.paused_until().map(|until| until.saturating_duration_since(now));
        let documents = self.documents_paused.iter(now).map(|(_, _, left)| left);
        documents.chain(resources.filter(|left| !left.is_zero())).max()
    }

    /// Failures in a row, and how long the breaker stays open.
    pub(super) fn failures(&self, now: Instant) -> (u32, Option<Duration>) {
        let [http, https] = self.breakers.each_ref().map(|breaker| breaker.failures(now));
        if https.1 >= http.1 && https.0 > 0 { https } else { http }
    }

    /// Returns whether a new state would behave as this one, where no request waits or is in flight.
    pub(super) fn is_at_rest(&self, now: Instant) -> bool {
        let is_closed = self.breakers.iter().all(|breaker| breaker.is_closed(now));
        is_closed && self.bucket.is_at_rest(now) && self.longest_pause(now).is_none()
    }

    /// The last failure, where no answer came since.
    pub(super) fn cause(&self) -> Option<&str> {
        self.breakers.iter().find_map(Breaker::cause)
    }
}

#[cfg(test)]
mod adaptation_tests;
#[cfg(test)]
mod tests;
