//! When a host is asked: the one place that decides this. Pure: the caller passes the time, and `host` does the waiting.
//!
//! A request passes the gate first: the circuit breaker, and the pauses that the host asked for. Then it waits in one queue, ordered by class and
//! by process in turns. At the head of the queue it takes a permit, whose number adapts, and a token of the bounded rate. The bucket stands behind
//! the queue: a reader that comes later is ahead of every prefetch for the next token.

mod breaker;
mod bucket;
mod concurrency;
mod queue;

use super::{Priority, Request, Requester};
use crate::document::Uri;
use crate::source::penalty_box::PenaltyBox;
pub(super) use breaker::Admission;
pub(super) use queue::Ticket;

use breaker::Breaker;
use bucket::Bucket;
use concurrency::Concurrency;
use queue::{Class, Queue};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// A pause for a document lasts at most so long.
const PAUSE_LIMIT: Duration = Duration::from_secs(3600);
/// The same for resources: their readers do not wait for hours.
const PAUSE_LIMIT_OF_READERS: Duration = Duration::from_secs(60);
/// Pauses that are remembered.
const PAUSES: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");
/// After a refusal no range goes over a connection of its own for so long; for twice as long after the next.
const RANGES_REFUSED: std::ops::RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(3600);

/// What a host does not want for a while.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Unwanted {
    /// All resources.
    Resources,
    /// This document: a pause for one list does not hold for readers.
    Document(Uri),
    /// Ranges over connections of their own.
    Ranges,
}

impl Unwanted {
    /// What a pause forbids that the host asked for in its answer to `request`.
    pub(super) fn of(request: &Request) -> Unwanted {
        if request.is_document { Unwanted::Document(request.uri.clone()) } else { Unwanted::Resources }
    }
}

/// Whether a request may wait for a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    /// The circuit breaker is open until then.
    Broken(Instant),
    /// The host asked for a pause until then.
    Paused(Instant),
}

/// A permit of a host, by its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// A reader's.
    Reader,
    /// That of a prefetch or of background work. Their number leaves some permits to readers.
    Unread,
    /// The permit that is reserved for documents.
    Document,
}

/// The next step of the queue.
#[derive(Debug)]
pub(super) enum Next<T> {
    Grant(Grant, T),
    /// A request could be granted then, when the next token comes.
    At(Instant),
    /// No request waits for which there is a permit.
    Idle,
}

/// One host's state; `T` is what the caller knows of a request that waits.
#[derive(Debug)]
pub(super) struct Limiter<T> {
    queue: Queue<T>,
    concurrency: Concurrency,
    /// Permits taken, and those of them that no reader waits for.
    in_flight: usize,
    unread: usize,
    has_document: bool,
    bucket: Bucket,
    unwanted: PenaltyBox<Unwanted>,
    /// Of http and of https: these are two services of one host.
    breakers: [Breaker; 2],
}

impl<T> Limiter<T> {
    /// At most `rate` requests a second, where that is set, and `connections` in flight.
    pub(super) fn new(rate: Option<f64>, connections: usize) -> Limiter<T> {
        Limiter {
            queue: Queue::default(),
            concurrency: Concurrency::new(connections),
            in_flight: 0,
            unread: 0,
            has_document: false,
            bucket: Bucket::new(rate),
            unwanted: PenaltyBox::new(PAUSES),
            breakers: Default::default(),
        }
    }

    /// Whether `request`, which goes to `uri`, may wait for a permit.
    pub(super) fn gate(&self, request: &Request, uri: &Uri, now: Instant) -> Gate {
        if let Admission::Refused(until) = self.breaker_of(uri).look(uri, now) {
            return Gate::Broken(until);
        }
        let pause = self.unwanted.until(&Unwanted::of(request));
        pause.filter(|until| *until > now).map_or(Gate::Open, Gate::Paused)
    }

    /// Puts a request into the queue.
    pub(super) fn submit(&mut self, priority: &Priority, is_document: bool, item: T) -> Ticket {
        let (class, requester) = match (priority, priority.reader()) {
            (_, Some(requester)) => (Class::Reader, requester),
            (Priority::Prefetch(requester, _), None) => (Class::Prefetch, *requester),
            (_, None) => (Class::Background, Requester::default()),
        };
        self.queue.push(class, requester, is_document, item)
    }

    /// A reader of `requester` waits for the request now. A request that was granted keeps its share.
    pub(super) fn raise(&mut self, ticket: &mut Ticket, requester: Requester, is_document: bool) {
        if let Some(item) = self.queue.remove(ticket) {
            *ticket = self.queue.push(Class::Reader, requester, is_document, item);
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
    pub(super) fn next(&mut self, now: Instant) -> Next<T> {
        let Some((grant, class)) = self.eligible() else { return Next::Idle };
        let token = self.bucket.next(now);
        if token > now {
            return Next::At(token);
        }
        let item = if grant == Grant::Document { self.queue.pop_document() } else { self.queue.pop(class) };
        let Some(item) = item else { return Next::Idle };
        self.bucket.take(now);
        match grant {
            Grant::Reader => self.in_flight += 1,
            Grant::Unread => (self.in_flight, self.unread) = (self.in_flight + 1, self.unread + 1),
            Grant::Document => self.has_document = true,
        }
        self.concurrency.sent(self.in_flight);
        Next::Grant(grant, item)
    }

    /// The first class that waits and has a permit.
    fn eligible(&self) -> Option<(Grant, Class)> {
        if self.in_flight >= self.concurrency.permits() {
            return (self.queue.has_document() && !self.has_document).then_some((Grant::Document, Class::Reader));
        }
        if self.queue.has(Class::Reader) {
            return Some((Grant::Reader, Class::Reader));
        }
        // Half of the permits at most are for work in the background. One at least: without any the recovery of a host would go unseen.
        let permits = [
            (Class::Prefetch, self.concurrency.prefetch_permits()),
            (Class::Background, self.concurrency.permits() / 2),
        ];
        let is_next = |(class, most): &(Class, usize)| self.unread < (*most).max(1) && self.queue.has(*class);
        let (class, _) = permits.into_iter().find(is_next)?;
        Some((Grant::Unread, class))
    }

    /// A permit is free again.
    pub(super) fn release(&mut self, grant: Grant) {
        match grant {
            Grant::Reader => self.in_flight -= 1,
            Grant::Unread => (self.in_flight, self.unread) = (self.in_flight - 1, self.unread - 1),
            Grant::Document => self.has_document = false,
        }
    }

    fn breaker_of(&self, uri: &Uri) -> &Breaker {
        &self.breakers[usize::from(uri.scheme() == "https")]
    }

    fn breaker(&mut self, uri: &Uri) -> &mut Breaker {
        &mut self.breakers[usize::from(uri.scheme() == "https")]
    }

    /// Whether a request that has its permit is sent to `uri` now.
    pub(super) fn admit(&mut self, uri: &Uri, now: Instant) -> Admission {
        self.breaker(uri).admit(uri, now)
    }

    /// The head of an answer came after `latency`.
    pub(super) fn answered(&mut self, uri: &Uri, status: u16, latency: Duration, now: Instant) {
        self.breaker(uri).succeeded();
        match status {
            429 | 503 => self.concurrency.refused(now),
            _ => self.concurrency.answered(latency, now),
        }
    }

    /// No answer came, although there was a connection where `is_connected`. Whether the breaker has opened.
    pub(super) fn failed(
        &mut self,
        uri: &Uri,
        admission: Admission,
        is_connected: bool,
        cause: String,
        now: Instant,
    ) -> bool {
        self.concurrency.refused(now);
        self.breaker(uri).failed(now, admission, is_connected.then_some(uri), cause)
    }

    /// A request was cancelled: it counts for nothing.
    pub(super) fn cancelled(&mut self, uri: &Uri, admission: Admission) {
        self.breaker(uri).abandoned(admission);
    }

    /// The host wants so much time between two requests (`Crawl-delay`).
    pub(super) fn slow_down(&mut self, interval: Duration) {
        self.bucket.slow_down(interval);
    }

    /// The host asked for a pause (`Retry-After`).
    pub(super) fn pause(&mut self, unwanted: Unwanted, pause: Duration, now: Instant) {
        let limit = if unwanted == Unwanted::Resources { PAUSE_LIMIT_OF_READERS } else { PAUSE_LIMIT };
        self.unwanted.punish(unwanted, pause.min(limit), (), now);
    }

    /// The host refused a range over a connection of its own.
    pub(super) fn refuse_ranges(&mut self, now: Instant) {
        self.unwanted.punish_longer(Unwanted::Ranges, RANGES_REFUSED, (), now);
    }

    /// Whether ranges may go over connections of their own.
    pub(super) fn takes_ranges(&self, now: Instant) -> bool {
        !self.unwanted.is_punished(&Unwanted::Ranges, now)
    }

    /// The host is asked at once, whatever pauses it asked for.
    pub(super) fn end_pauses(&mut self) {
        self.unwanted.clear();
    }

    /// The longest pause that is left.
    pub(super) fn longest_pause(&self, now: Instant) -> Option<Duration> {
        let pauses = self.unwanted.iter(now).filter(|(unwanted, ..)| **unwanted != Unwanted::Ranges);
        pauses.map(|(_, _, left)| left).max()
    }

    /// Failures in a row, and how long the breaker stays open.
    pub(super) fn failures(&self, now: Instant) -> (u32, Option<Duration>) {
        let [http, https] = self.breakers.each_ref().map(|breaker| breaker.failures(now));
        if https.1 >= http.1 && https.0 > 0 { https } else { http }
    }

    /// The last failure, where no answer came since.
    pub(super) fn cause(&self) -> Option<&str> {
        self.breakers.iter().find_map(Breaker::cause)
    }

    /// Whether a new state would behave as this one.
    pub(super) fn is_at_rest(&self, now: Instant) -> bool {
        let is_quiet = self.breakers.iter().all(|breaker| breaker.is_at_rest(now));
        is_quiet && self.bucket.is_full(now) && self.longest_pause(now).is_none()
    }
}

#[cfg(test)]
mod adaptation_tests;
#[cfg(test)]
mod tests;
