//! The hosts that are asked: their limiters, and the requests that wait there.

use super::deadline::Deadline;
use super::limiter::{Admission, Gate, Grant, Limiter, Next, Ticket};
use super::metrics::HostTraffic;
use super::{HttpError, Request, Requester, Way};
use crate::document::Uri;
use lru::LruCache;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Hosts that are remembered. Past them the one asked least recently is forgotten, of those at rest.
const HOSTS: usize = 1024;

/// Hosts whose traffic is reported by name. Further ones are counted together, so that the numbers stay few.
const NAMED: usize = 64;

/// Requests to a store at a time, however few the Source bears. A body that is read takes one, and a look bears no wait of seconds.
const CONNECTIONS_TO_STORE: usize = 64;

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
    /// Its traffic is reported by its name.
    is_named: bool,
    state: Mutex<State>,
    /// Where timers run.
    runtime: OnceLock<Handle>,
}

struct State {
    limiter: Limiter<Waiter>,
    traffic: HostTraffic,
    /// A timer runs that grants permits then.
    timer: Option<Instant>,
    /// The requests of this host share a connection, as the last answer showed.
    is_shared: bool,
    /// A range over a connection of its own was answered.
    has_ranges: bool,
    /// Why a document is requested again.
    repeated_for: Option<String>,
}

/// The clock of the timers.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Host {
    fn new(authority: &str, is_named: bool, limiter: Limiter<Waiter>) -> Host {
        let traffic = HostTraffic { host: is_named.then(|| authority.into()), ..HostTraffic::default() };
        let (timer, is_shared, has_ranges, repeated_for) = (None, false, false, None);
        let state = Mutex::new(State { limiter, traffic, timer, is_shared, has_ranges, repeated_for });
        Host { authority: authority.into(), is_named, state, runtime: OnceLock::new() }
    }

    /// A document is requested again for this reason, or no more.
    pub(super) fn repeats(&self, reason: Option<String>) {
        self.state().repeated_for = reason;
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
                    let permit = deadline.extended(self.queued(request), || self.progress()).await;
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
        // Looked at before it is submitted: a reader that joins between the two raises it, and at worst once more.
        let may_rise = !request.is_document && request.priority.reader().is_none();
        let raised = may_rise.then(|| request.priority.clone().raised());
        let ticket = self.state().limiter.submit(&request.priority, request.is_document, waiter);
        let mut waiting = Waiting { host: self, ticket };
        self.grant();
        tokio::select! {
            biased;
            granted = &mut granted => return granted.ok().flatten(),
            Some(requester) = async { Some(raised?.await) } => waiting.raise(requester),
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
                        if state.timer.is_none_or(|timer| at < timer) {
                            if let Some(runtime) = self.runtime.get() {
                                state.timer = Some(at);
                                runtime.spawn(Arc::clone(self).grant_at(at));
                            }
                        }
                        break;
                    }
                    Next::Idle => break,
                }
            }
        }
        // Without the lock: the permit of a request that has left is released here.
        for (grant, waiter) in granted {
            let host = Arc::clone(self);
            let permit = Permit { host, grant, probe: None, way: Way::Shared, closing: Duration::ZERO };
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
        self.state().limiter.pause(request, pause, now());
        // A pause for one document leaves the queue in its order: its requests pass the gate again when they are granted.
        if !request.is_document {
            self.close_gate();
        }
    }

    /// Bytes of a body came.
    pub(super) fn received(&self, bytes: u64) {
        self.state().traffic.bytes += bytes;
    }

    /// Rises with each answer and each byte of the host.
    fn progress(&self) -> u64 {
        let traffic = &self.state().traffic;
        traffic.bytes.wrapping_add(traffic.answers)
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

    /// A range over a connection of its own was answered.
    pub(super) fn answers_ranges(&self) {
        self.state().has_ranges = true;
    }

    /// A range over a connection of its own was refused although it was answered over the shared one. A connection that `was_closed` before an answer
    /// may have been idle for longer than the host allows: it refuses nothing where ranges are answered.
    pub(super) fn refuse_ranges(&self, was_closed: bool) {
        let mut state = self.state();
        if !(was_closed && state.has_ranges) {
            state.limiter.refuse_ranges(now());
        }
    }
}

/// A request in the queue.
struct Waiting<'a> {
    host: &'a Arc<Host>,
    ticket: Ticket,
}

impl Waiting<'_> {
    fn raise(&mut self, requester: Requester) {
        self.host.state().limiter.raise(&mut self.ticket, requester);
        self.host.grant();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let left = self.host.state().limiter.leave(&self.ticket);
        drop(left);
    }
}

/// The right to have one request in flight, until it is dropped. A request that is cancelled counts for nothing.
pub(super) struct Permit {
    pub(super) host: Arc<Host>,
    grant: Grant,
    /// The URI of a probe whose outcome is open.
    probe: Option<Uri>,
    way: Way,
    /// How long the connection of the request counts as open after the permit is dropped.
    closing: Duration,
}

impl Permit {
    /// Passes the gate for `uri` again, which may have closed meanwhile.
    fn enter(mut self, request: &Request, uri: &Uri) -> Option<Permit> {
        let mut state = self.host.state();
        if state.limiter.gate(request, uri, now()) != Gate::Open {
            return None;
        }
        let is_probe = state.limiter.admit(uri, now()) == Admission::Probe;
        state.traffic.requests += 1;
        drop(state);
        self.probe = is_probe.then(|| uri.clone());
        Some(self)
    }

    /// The request is sent now. Until its answer comes a connection is opened or closed for it.
    pub(super) fn sent(&mut self, way: Way) {
        (self.way, self.closing) = (way, CANCELLED);
    }

    /// The head of an answer came. No body of it is read.
    pub(super) fn answered(&mut self, uri: &Uri, status: u16, latency: Duration) {
        (self.probe, self.closing) = (None, Duration::ZERO);
        let mut state = self.host.state();
        state.traffic.answered(status, latency);
        state.limiter.answered(uri, status, latency, now());
        drop(state);
        self.host.grant();
    }

    /// No answer came. Where that is a failure of the host: whether there was a connection, and the cause.
    pub(super) fn failed(&mut self, uri: &Uri, failure: Option<(bool, String)>) {
        let mut state = self.host.state();
        state.traffic.failures += 1;
        let Some((is_connected, cause)) = failure else { return };
        self.closing = Duration::ZERO;
        let is_probe = self.probe.take().is_some();
        let opens = state.limiter.failed(uri, is_probe, is_connected, cause, now());
        drop(state);
        if opens {
            self.host.close_gate();
        }
    }

    /// A body is read. Where it is dropped before its end the host closes the connection a round trip later.
    pub(super) fn reading(mut self, round_trip: Duration) -> Permit {
        self.closing = (2 * round_trip + RANGE_BACK).min(MOST_CLOSING);
        self
    }

    /// The answer is whole. The next request would open another connection before this one is in its pool.
    pub(super) fn finished(mut self) {
        self.closing = if self.way == Way::Ranges { RANGE_BACK } else { BACK };
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.host.state();
        if let Some(uri) = self.probe.take() {
            state.limiter.cancelled(&uri);
        }
        let has_connection = !state.is_shared || self.way == Way::Ranges;
        drop(state);
        let (host, grant, closing) = (Arc::clone(&self.host), self.grant, self.closing);
        let release = move || {
            host.state().limiter.release(grant);
            host.grant();
        };
        match self.host.runtime.get().filter(|_| has_connection && !closing.is_zero()) {
            None => release(),
            Some(runtime) => drop(runtime.spawn(async move {
                tokio::time::sleep(closing).await;
                // On a busy machine the timer may run before the tasks of the pool do.
                tokio::task::yield_now().await;
                tokio::time::sleep(BACK).await;
                release();
            })),
        }
    }
}

/// The hosts that were asked, by `HOST[:PORT]`.
pub(super) struct Hosts {
    rate: Option<f64>,
    connections: usize,
    known: Mutex<LruCache<Box<str>, Arc<Host>>>,
}

impl Hosts {
    pub(super) fn new(rate: Option<f64>, connections: usize) -> Hosts {
        let known = Mutex::new(LruCache::unbounded());
        Hosts { rate, connections: connections.max(1), known }
    }

    pub(super) fn connections(&self) -> usize {
        self.connections
    }

    fn known(&self) -> MutexGuard<'_, LruCache<Box<str>, Arc<Host>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn host(&self, authority: &str) -> Arc<Host> {
        self.host_with(authority, self.rate, self.connections)
    }

    /// The same of a store that the person named. The limits are meant for the Source: they hold here only where it has the same host.
    pub(super) fn store(&self, authority: &str) -> Arc<Host> {
        self.host_with(authority, None, self.connections.max(CONNECTIONS_TO_STORE))
    }

    fn host_with(&self, authority: &str, rate: Option<f64>, connections: usize) -> Arc<Host> {
        let mut known = self.known();
        if let Some(host) = known.get(authority) {
            return Arc::clone(host);
        }
        if known.len() >= HOSTS {
            let now = now();
            // A request that waits or is in flight has a reference. No other can be taken while `known` is locked.
            let is_idle = |host: &Arc<Host>| Arc::strong_count(host) == 1 && host.state().limiter.is_at_rest(now);
            let idle = known.iter().rev().find(|(_, host)| is_idle(host)).map(|(authority, _)| authority.clone());
            idle.map(|authority| known.pop(&authority));
        }
        let limiter = Limiter::new(rate, connections);
        let host = Arc::new(Host::new(authority, known.len() < NAMED, limiter));
        known.put(authority.into(), Arc::clone(&host));
        host
    }

    /// The last failure of a host that has not answered since, or the reason why a document is requested again.
    pub(super) fn unanswered(&self) -> Option<Box<str>> {
        self.known().iter().find_map(|(_, host)| {
            let state = host.state();
            state.limiter.cause().or(state.repeated_for.as_deref()).map(Into::into)
        })
    }

    /// Hosts that asked for a pause are asked at once.
    pub(super) fn end_pauses(&self) {
        self.known().iter().for_each(|(_, host)| host.state().limiter.end_pauses());
    }

    /// The requests to every host, and the state of each, those asked most first.
    pub(super) fn traffic(&self) -> Vec<HostTraffic> {
        let (mut named, mut others, now) = (Vec::new(), HostTraffic::default(), now());
        for (_, host) in self.known().iter() {
            let state = host.state();
            if host.is_named {
                let (failures_in_a_row, opens_in) = state.limiter.failures(now);
                let paused_for = state.limiter.longest_pause(now);
                named.push(HostTraffic { failures_in_a_row, opens_in, paused_for, ..state.traffic.clone() });
            } else {
                others.add(&state.traffic);
            }
        }
        named.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.host.cmp(&b.host)));
        named.extend(Some(others).filter(|others| others.requests > 0));
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_is_counted_by_itself_and_too_many_together() {
        let hosts = Hosts::new(None, 1);
        for number in 0..NAMED + 10 {
            hosts.host(&format!("h{number}")).state().traffic.requests += 1;
        }
        hosts.host("h3").state().traffic.requests += 1;

        let counted = hosts.traffic();

        assert_eq!(counted.len(), NAMED + 1);
        assert_eq!((counted[0].host.as_deref(), counted[0].requests), (Some("h3"), 2));
        assert_eq!((&counted[NAMED].host, counted[NAMED].requests), (&None, 10));
    }

    #[test]
    fn the_host_asked_least_recently_is_forgotten() {
        let hosts = Hosts::new(None, 1);
        let first = hosts.host("h0");
        for number in 0..HOSTS + 10 {
            hosts.host(&format!("h{number}"));
            hosts.host("h0");
        }
        assert!(Arc::ptr_eq(&first, &hosts.host("h0")) && hosts.known().len() == HOSTS);
    }

    /// A host that is forgotten would be asked at once, at full speed, and with all permits.
    #[test]
    fn no_host_is_forgotten_that_is_not_at_rest() {
        let (hosts, hour) = (Hosts::new(None, 1), Duration::from_secs(3600));
        let uri = Uri::parse("http://example.org/").unwrap();
        let request = Request::get(uri.clone(), hour);
        hosts.host("paused").pause(&request, hour);
        hosts.host("list").pause(&Request { is_document: true, ..request }, hour);
        hosts.host("slow").slow_down(hour);
        hosts.host("rested").slow_down(Duration::ZERO);
        for _ in 0..100 {
            hosts.host("broken").state().limiter.failed(&uri, false, false, String::new(), now());
        }
        let asked = hosts.host("asked");

        for number in 0..HOSTS + 10 {
            hosts.host(&format!("h{number}"));
        }

        let known = hosts.known();
        assert!(["paused", "list", "slow", "broken", "asked"].iter().all(|name| known.contains(*name)));
        assert!(!known.contains("rested") && !known.contains("h0") && known.len() == HOSTS);
        drop((known, asked));
    }
}
