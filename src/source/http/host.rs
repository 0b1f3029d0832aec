//! The hosts that are asked: their limiters, and the requests that wait there.

use super::deadline::Deadline;
use super::limiter::{Admission, Gate, Grant, Limiter, Next, Ticket, Unwanted};
use super::metrics::{HostCounters, HostTraffic, Traffic};
use super::{HttpError, Request, Requester};
use crate::document::Uri;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Past so many hosts those at rest are forgotten.
const HOSTS: usize = 1024;

/// The time in which a connection whose answer is here comes back to its pool. That takes tasks of the pool, but no answer of the host.
const BACK: Duration = Duration::from_millis(1);

/// The same after a range, which is long enough for that to cost nothing.
const RANGE_BACK: Duration = Duration::from_millis(10);

/// The time in which the connection of a cancelled request is in its pool, or seen to be closed by the host.
const CANCELLED: Duration = Duration::from_millis(100);

/// A closed connection counts as open for so long at most.
const MOST_CLOSING: Duration = Duration::from_millis(200);

/// Receives its permit; `None` where the gate may have closed.
type Waiter = oneshot::Sender<Option<Permit>>;

/// One host. No lock is held across an await. The lock of [`Hosts`] is taken before that of a host.
pub(super) struct Host {
    pub(super) authority: Box<str>,
    pub(super) counters: Arc<HostCounters>,
    state: Mutex<State>,
    /// Where timers run.
    runtime: OnceLock<Handle>,
}

struct State {
    limiter: Limiter<Waiter>,
    /// A timer runs that grants permits then.
    timer: Option<Instant>,
    /// The requests of this host share a connection, as the last answer showed.
    is_shared: bool,
    /// The last range over a connection of its own was answered.
    has_ranged: bool,
}

/// The clock of the timers.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Host {
    fn new(authority: &str, counters: Arc<HostCounters>, limiter: Limiter<Waiter>) -> Host {
        let state = Mutex::new(State { limiter, timer: None, is_shared: false, has_ranged: false });
        Host { authority: authority.into(), counters, state, runtime: OnceLock::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `request` may be sent to `uri`. A request that cannot be sent before its deadline is refused at once, and so is a first try while the breaker
    /// is open. A retry waits for the breaker, because its own failures have opened it.
    pub(super) async fn permit(
        self: &Arc<Self>,
        request: &Request,
        uri: &Uri,
        deadline: &mut Deadline,
        is_retry: bool,
    ) -> Result<Permit, HttpError> {
        self.runtime.get_or_init(Handle::current);
        loop {
            let (gate, now) = (self.state().limiter.gate(request, uri, now()), now());
            let (asked, host) = (request.uri.clone(), self.authority.clone());
            match gate {
                Gate::Open => {
                    let permit = deadline.extended(self.queued(request), || self.counters.progress()).await;
                    let Some(permit) = permit else {
                        return Err(match is_retry {
                            true => HttpError::Deadline { uri: asked, last: None },
                            false => HttpError::NotSent { uri: asked },
                        });
                    };
                    if let Some(permit) = permit.and_then(|permit| permit.enter(request, uri)) {
                        return Ok(permit);
                    }
                }
                Gate::Broken(until) if !is_retry || until >= deadline.at() => {
                    let retry_in = until.saturating_duration_since(now);
                    return Err(HttpError::CircuitOpen { uri: asked, host, retry_in, last: None });
                }
                Gate::Paused(until) if until > deadline.at() => {
                    let retry_in = until.saturating_duration_since(now);
                    return Err(HttpError::Paused { uri: asked, host, retry_in });
                }
                Gate::Broken(until) | Gate::Paused(until) => tokio::time::sleep_until(until.into()).await,
            }
        }
    }

    /// Waits in the queue for a permit.
    async fn queued(self: &Arc<Self>, request: &Request) -> Option<Permit> {
        let (waiter, mut granted) = oneshot::channel();
        let is_document = request.is_document;
        // Looked at before it is submitted: a reader that joins between the two raises it, and at worst once more.
        let raised = request.priority.reader().is_none().then(|| request.priority.clone().raised());
        let ticket = self.state().limiter.submit(&request.priority, is_document, waiter);
        let mut waiting = Waiting { host: self, ticket };
        self.grant();
        tokio::select! {
            biased;
            granted = &mut granted => return granted.ok().flatten(),
            Some(requester) = async { Some(raised?.await) } => waiting.raise(requester, is_document),
        }
        granted.await.ok().flatten()
    }

    /// Grants the permits and tokens that are free.
    fn grant(self: &Arc<Self>) {
        let mut granted = Vec::new();
        {
            let (mut state, now) = (self.state(), now());
            loop {
                match state.limiter.next(now) {
                    Next::Grant(grant, waiter) => granted.push((grant, waiter)),
                    Next::At(at) => {
                        if state.timer.is_none_or(|timer| at < timer)
                            && let Some(runtime) = self.runtime.get()
                        {
                            state.timer = Some(at);
                            runtime.spawn(Arc::clone(self).grant_at(at));
                        }
                        break;
                    }
                    Next::Idle => break,
                }
            }
        }
        // Without the lock: the permit of a request that has left is released here.
        for (grant, waiter) in granted {
            let permit = Permit {
                host: Arc::clone(self),
                grant,
                probe: None,
                is_range: false,
                is_sent: false,
                latency: Duration::ZERO,
            };
            drop(waiter.send(Some(permit)));
        }
    }

    async fn grant_at(self: Arc<Self>, at: Instant) {
        tokio::time::sleep_until(at.into()).await;
        self.state().timer = None;
        self.grant();
    }

    /// The gate has closed: all requests that wait have to pass it again.
    fn close_gate(&self) {
        let waiters = self.state().limiter.drain();
        waiters.into_iter().for_each(|waiter| drop(waiter.send(None)));
    }

    /// The host asked for a pause in its answer to `request`.
    pub(super) fn pause(&self, request: &Request, pause: Duration) {
        let unwanted = Unwanted::of(request);
        let is_for_all = unwanted == Unwanted::Resources;
        self.state().limiter.pause(unwanted, pause, now());
        // A pause for one document leaves the queue in its order: its requests pass the gate again when they are granted.
        if is_for_all {
            self.close_gate();
        }
    }

    /// The host wants so much time between two requests.
    pub(super) fn slow_down(self: &Arc<Self>, interval: Duration) {
        self.state().limiter.slow_down(interval);
        self.grant();
    }

    /// Whether a range goes over a connection of its own: where it would share one, unless the host refused that.
    pub(super) fn separates_ranges(&self) -> bool {
        let state = self.state();
        state.is_shared && state.limiter.takes_ranges(now())
    }

    /// An answer came over a connection for all requests, which HTTP/2 lets them share.
    pub(super) fn shares(&self, is_shared: bool) {
        self.state().is_shared = is_shared;
    }

    /// A range over a connection of its own was answered, or refused although it was answered over the shared one. Silence may be that of a
    /// connection that was idle for too long: it is a refusal only where no range was answered yet.
    pub(super) fn ranged(&self, outcome: Result<(), RangeRefusal>) {
        let mut state = self.state();
        match outcome {
            Ok(()) => state.has_ranged = true,
            Err(RangeRefusal::Silence) if state.has_ranged => {}
            Err(_) => state.limiter.refuse_ranges(now()),
        }
    }
}

/// How a range over a connection of its own was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeRefusal {
    /// By the host, or on the way to it.
    Answer,
    /// There was no answer.
    Silence,
}

/// A request in the queue.
struct Waiting<'a> {
    host: &'a Arc<Host>,
    ticket: Ticket,
}

impl Waiting<'_> {
    fn raise(&mut self, requester: Requester, is_document: bool) {
        self.host.state().limiter.raise(&mut self.ticket, requester, is_document);
        self.host.grant();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let left = self.host.state().limiter.leave(&self.ticket);
        drop(left);
    }
}

/// Leave to have one request in flight, until it is dropped. A request that is cancelled counts for nothing.
pub(super) struct Permit {
    host: Arc<Host>,
    grant: Grant,
    /// The URI of a probe whose outcome is open.
    probe: Option<Uri>,
    /// For a range over a connection of its own.
    pub(super) is_range: bool,
    /// A request is sent that has no answer yet.
    pub(super) is_sent: bool,
    /// From the permit to the head of the answer.
    latency: Duration,
}

impl Permit {
    /// Passes the gate for `uri` again, which may have closed meanwhile.
    fn enter(mut self, request: &Request, uri: &Uri) -> Option<Permit> {
        let mut state = self.host.state();
        if state.limiter.gate(request, uri, now()) != Gate::Open {
            return None;
        }
        let is_probe = state.limiter.admit(uri, now()) == Admission::Probe;
        drop(state);
        self.probe = is_probe.then(|| uri.clone());
        self.host.counters.sent();
        Some(self)
    }

    /// The head of an answer came.
    pub(super) fn answered(&mut self, uri: &Uri, status: u16, latency: Duration) {
        self.host.counters.answered(status, latency);
        (self.probe, self.latency, self.is_sent) = (None, latency, false);
        self.host.state().limiter.answered(uri, status, latency, now());
        self.host.grant();
    }

    /// No answer came; `is_connected`: although there was a connection.
    pub(super) fn failed(&mut self, uri: &Uri, is_connected: bool, cause: String) {
        self.is_sent = false;
        let admission = self.probe.take().map_or(Admission::Pass, |_| Admission::Probe);
        let opens = self.host.state().limiter.failed(uri, admission, is_connected, cause, now());
        if opens {
            self.host.close_gate();
        }
    }

    /// Releases the permit when the connection of a whole answer is back in its pool: the next request would open another one before that.
    pub(super) fn release_with_connection(self) {
        let delay = if self.is_range { RANGE_BACK } else { BACK };
        self.release_after(delay);
    }

    /// Releases the permit when the host has seen that the connection of an unfinished answer is closed.
    pub(super) fn release_with_close(self) {
        // There and back again, and a little for the host itself.
        let delay = (2 * self.latency + RANGE_BACK).min(MOST_CLOSING);
        self.release_after(delay);
    }

    fn release_after(self, delay: Duration) {
        let is_shared = self.host.state().is_shared;
        if let Some(runtime) = self.host.runtime.get().filter(|_| !is_shared || self.is_range) {
            runtime.clone().spawn(async move {
                tokio::time::sleep(delay).await;
                // On a busy machine the timer may run before the tasks of the pool do.
                tokio::task::yield_now().await;
                tokio::time::sleep(BACK).await;
                drop(self);
            });
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.host.state();
        if let Some(uri) = self.probe.take() {
            state.limiter.cancelled(&uri, Admission::Probe);
        }
        let has_connection = self.is_sent && (!state.is_shared || self.is_range);
        drop(state);
        let (host, grant) = (Arc::clone(&self.host), self.grant);
        let release = move || {
            host.state().limiter.release(grant);
            host.grant();
        };
        match self.host.runtime.get().filter(|_| has_connection) {
            // Its connection is being opened or closed.
            Some(runtime) => drop(runtime.spawn(async move {
                tokio::time::sleep(CANCELLED).await;
                release();
            })),
            None => release(),
        }
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
        Hosts { rate, connections: connections.max(1), known: Mutex::default(), traffic: Traffic::default() }
    }

    pub(super) fn connections(&self) -> usize {
        self.connections
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Box<str>, Arc<Host>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Arc<Host>> {
        self.known().values().map(Arc::clone).collect()
    }

    pub(super) fn host(&self, authority: &str) -> Arc<Host> {
        let (mut known, now) = (self.known(), now());
        if let Some(host) = known.get(authority) {
            return Arc::clone(host);
        }
        if known.len() >= HOSTS {
            known.retain(|_, host| Arc::strong_count(host) > 1 || !host.state().limiter.is_at_rest(now));
        }
        let limiter = Limiter::new(self.rate, self.connections);
        let host = Arc::new(Host::new(authority, self.traffic.of(authority), limiter));
        known.insert(authority.into(), Arc::clone(&host));
        host
    }

    /// The last failure of a host that has not answered since.
    pub(super) fn unanswered(&self) -> Option<Box<str>> {
        self.all().iter().find_map(|host| host.state().limiter.cause().map(Into::into))
    }

    /// Hosts that asked for a pause are asked at once.
    pub(super) fn end_pauses(&self) {
        self.all().iter().for_each(|host| host.state().limiter.end_pauses());
    }

    /// The requests to every host, and the state of each.
    pub(super) fn traffic(&self) -> Vec<HostTraffic> {
        let (mut traffic, now) = (self.traffic.snapshot(), now());
        for counted in &mut traffic {
            let host = counted.host.as_deref().and_then(|authority| self.known().get(authority).map(Arc::clone));
            if let Some(host) = host {
                let state = host.state();
                (counted.failures_in_a_row, counted.opens_in) = state.limiter.failures(now);
                counted.paused_for = state.limiter.longest_pause(now);
            }
        }
        traffic
    }
}
