//! One host that is asked: its limiter, and the requests that wait there.

use super::announced::AnnouncedLimits;
use super::deadline::Deadline;
use super::limiter::{Admission, Gate, Grant, Limiter, NextGrant, Ticket};
use super::metrics::HostTraffic;
use super::silence::{Silence, SilenceStep};
use super::{HttpError, Request, Requester, Way};
use crate::document::Uri;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The time in which a connection whose answer is here comes back to its pool. That takes tasks of the pool, but no answer of the host.
const BACK: Duration = Duration::from_millis(1);

/// The time in which the connection of a request that ended early is in its pool, or seen to be closed by the host.
const CLOSING: Duration = Duration::from_millis(100);

/// A host whose limit has held no request for so long, and for a window, is paced no more.
const QUIET: Duration = Duration::from_secs(2);

/// Receives its permit; `None` where the gate may have closed.
type Waiter = oneshot::Sender<Option<RequestPermit>>;

/// One host. No lock is held across an await. The lock of all hosts that are remembered is taken before that of one.
pub(super) struct Host {
    pub(super) authority: Box<str>,
    /// Its traffic is reported by its name.
    pub(super) is_named: bool,
    state: Mutex<HostState>,
    /// Runtime of the timers.
    runtime: OnceLock<Handle>,
}

pub(super) struct HostState {
    pub(super) limiter: Limiter<Waiter>,
    pub(super) traffic: HostTraffic,
    /// A timer runs that grants permits then.
    timer: Option<Instant>,
    /// The requests of this host share a connection, as the last answer showed.
    is_shared: bool,
    /// A range over a dedicated connection was answered.
    has_ranges: bool,
    /// Why a document is requested again.
    pub(super) repeated_for: Option<String>,
    hold: Hold,
    /// Silence with resources, and with documents.
    silence: [Silence; 2],
}

/// The time in which tokens held the queue.
#[derive(Default)]
struct Hold {
    /// Begin of the hold, where its reason is known.
    since: Option<Instant>,
    /// All of it before.
    total: Duration,
    /// The host's limit held readers last then: it is logged that this began, and a task will log its end.
    paced: Option<Instant>,
}

impl Hold {
    fn total(&self, now: Instant) -> Duration {
        self.total + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    fn set(&mut self, is_held: bool, now: Instant) {
        if is_held != self.since.is_some() {
            self.total = self.total(now);
            self.since = is_held.then_some(now);
        }
    }
}

/// The clock of the timers.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Host {
    pub(super) fn new(authority: &str, is_named: bool, limiter: Limiter<Waiter>) -> Host {
        let traffic = HostTraffic { host: is_named.then(|| authority.into()), ..HostTraffic::default() };
        let (timer, is_shared, has_ranges, repeated_for) = (None, false, false, None);
        let (hold, silence) = (Hold::default(), [false, true].map(Silence::new));
        let state =
            Mutex::new(HostState { limiter, traffic, timer, is_shared, has_ranges, repeated_for, hold, silence });
        Host { authority: authority.into(), is_named, state, runtime: OnceLock::new() }
    }

    /// A document is requested again for this reason, or no more.
    pub(super) fn repeats(&self, reason: Option<String>) {
        self.state().repeated_for = reason;
    }

    pub(super) fn state(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `request` may be sent to `uri`. A request that cannot be sent before its deadline is refused at once, and so is a first try while the breaker
    /// is open. A retry waits for the breaker, because its own failures have opened it. A pause that is known does not count against the deadline.
    pub(super) async fn permit(
        self: &Arc<Self>,
        request: &Request,
        uri: &Uri,
        deadline: &mut Deadline,
        is_retry: bool,
    ) -> Result<RequestPermit, HttpError> {
        self.runtime.get_or_init(Handle::current);
        loop {
            let now = now();
            let (gate, held) = {
                let mut state = self.state();
                (state.limiter.gate(request, uri, now), state.limiter.held(request, now))
            };
            let (asked, host) = (request.uri.clone(), self.authority.clone());
            match gate {
                Gate::Open => {
                    if let Some((until, _)) = held.filter(|(until, is_known)| *until > deadline.latest(*is_known)) {
                        let retry_in = until.saturating_duration_since(now);
                        return Err(HttpError::Paused { uri: asked, host, retry_in });
                    }
                    let (progress, paced) = (|| self.progress(), || self.held_time());
                    let Some(permit) = deadline.extended(self.queued(request), progress, paced).await else {
                        return Err(self.unsent(request, is_retry));
                    };
                    if let Some(permit) = permit.and_then(|permit| permit.enter(request, uri)) {
                        return Ok(permit);
                    }
                }
                Gate::Broken(until) if !is_retry || until >= deadline.at() => {
                    let retry_in = until.saturating_duration_since(now);
                    let state = self.state();
                    // Without the address that failed then.
                    let why = state.limiter.cause().map(|why| why.split_once(": ").map_or(why, |(_, why)| why));
                    let why = why.unwrap_or_default().into();
                    return Err(HttpError::CircuitOpen { uri: asked, host, retry_in, why, last: None });
                }
                Gate::Paused(until) if until > deadline.latest(true) => {
                    let retry_in = until.saturating_duration_since(now);
                    return Err(HttpError::Paused { uri: asked, host, retry_in });
                }
                Gate::Paused(until) => deadline.pause_until(until).await,
                Gate::Broken(until) => tokio::time::sleep_until(until.into()).await,
            }
        }
    }

    /// Why the deadline of `request` passed in the queue.
    fn unsent(&self, request: &Request, is_retry: bool) -> HttpError {
        let (uri, now) = (request.uri.clone(), now());
        let held = self.state().limiter.held(request, now);
        match (held, is_retry) {
            (Some((until, true)), _) => {
                let retry_in = until.saturating_duration_since(now);
                HttpError::Paused { uri, host: self.authority.clone(), retry_in }
            }
            (_, true) => HttpError::Deadline { uri, last: None },
            (_, false) => HttpError::NotSent { uri },
        }
    }

    /// Waits in the queue for a permit.
    async fn queued(self: &Arc<Self>, request: &Request) -> Option<RequestPermit> {
        let (waiter, mut granted) = oneshot::channel();
        // Looked at before it is submitted: a reader that joins between the two raises it, and at worst once more.
        let may_rise = !request.is_document && request.priority.reader().is_none();
        let raised = may_rise.then(|| request.priority.clone().raised());
        let ticket = self.state().limiter.submit(&request.priority, request.is_document, waiter);
        let mut waiting = QueuedRequest { host: self, ticket };
        self.grant();
        tokio::select! {
            biased;
            granted = &mut granted => return granted.ok().flatten(),
            Some(requester) = async { Some(raised?.await) } => waiting.raise(requester),
        }
        granted.await.ok().flatten()
    }

    /// Grants the permits and tokens that are free.
    pub(super) fn grant(self: &Arc<Self>) {
        let mut granted = Vec::new();
        {
            let (mut state, now) = (self.state(), now());
            loop {
                match state.limiter.next(now) {
                    NextGrant::Grant(grant, waiter) => granted.push((grant, waiter)),
                    NextGrant::At(at) => {
                        let is_known = state.limiter.is_known(now);
                        state.hold.set(is_known, now);
                        self.note_pace(&mut state, now);
                        if state.timer.is_none_or(|timer| at < timer) {
                            if let Some(runtime) = self.runtime.get() {
                                state.timer = Some(at);
                                runtime.spawn(Arc::clone(self).grant_at(at));
                            }
                        }
                        break;
                    }
                    NextGrant::Idle => {
                        state.hold.set(false, now);
                        break;
                    }
                }
            }
        }
        // Without the lock: the permit of a request that has left is released here.
        for (grant, waiter) in granted {
            let host = Arc::clone(self);
            let (probe, way, closing) = (None, Way::Shared, Duration::ZERO);
            let permit = RequestPermit { host, grant, probe, way, closing, is_unanswered: true };
            drop(waiter.send(Some(permit)));
        }
    }

    /// Tokens hold the queue. If the host's limit makes readers wait, that is logged once.
    fn note_pace(self: &Arc<Self>, state: &mut HostState, now: Instant) {
        let Some(until) = state.limiter.paced(now).filter(|_| state.limiter.waiting_readers() > 0) else { return };
        if state.hold.paced.replace(now).is_some() {
            return;
        }
        let (host, standing) = (&self.authority, state.limiter.standing(now));
        let next = until.saturating_duration_since(now).as_secs() + 1;
        match (standing.limit, standing.length) {
            (Some(limit), Some(window)) => tracing::info!(
                "{host} allows {limit} requests in {} s: readers are paced, the next request is sent in {next} s",
                window.as_secs()
            ),
            _ => {
                tracing::info!("{host} takes no more requests for now: readers wait, the next one is sent in {next} s")
            }
        }
        if let Some(runtime) = self.runtime.get() {
            runtime.spawn(Arc::clone(self).pace());
        }
    }

    /// Logs the end of a pace, once no reader was held for a window.
    async fn pace(self: Arc<Self>) {
        loop {
            let over = {
                let (mut state, now) = (self.state(), now());
                let is_held = state.hold.since.is_some() && state.limiter.waiting_readers() > 0;
                let last = if is_held { now } else { state.hold.paced.unwrap_or(now) };
                let over = last + state.limiter.window().unwrap_or_default().max(QUIET);
                if over <= now {
                    state.hold.paced = None;
                    tracing::info!("{} does not pace readers any more", self.authority);
                    return;
                }
                over
            };
            tokio::time::sleep_until(over.into()).await;
        }
    }

    /// The time in which the queue was held for a reason that is known.
    fn held_time(&self) -> Duration {
        self.state().hold.total(now())
    }

    /// Returns whether the host's limit holds what no reader waits for.
    pub(super) fn holds_prefetches(&self) -> bool {
        let (state, now) = (self.state(), now());
        state.limiter.standing(now).ends_in.is_some() && state.limiter.holds_prefetches(now)
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

    /// The host has refused `request` by 429 or 503, and asks for this pause, if for any.
    pub(super) fn refused(&self, request: &Request, status: u16, pause: Option<Duration>) {
        let is_for_all = self.state().limiter.refused(request, status, pause, now());
        // A pause for one document leaves the queue in its order: its requests pass the gate again when they are granted.
        if is_for_all {
            self.close_gate();
        }
    }

    /// Waits until a request that was sent at `begun` over `pools` is to be sent once more: its connection may be dead. The second request
    /// goes with the permit of the first, and takes its own token.
    pub(super) async fn silence(self: &Arc<Self>, request: &Request, pools: u64, begun: Instant) -> Repetition {
        let kind = usize::from(request.is_document);
        loop {
            let step = self.state().silence[kind].look(pools, begun.elapsed(), now());
            match step {
                SilenceStep::Wait(time) => tokio::time::sleep(time).await,
                step => {
                    let mut state = self.state();
                    state.limiter.repeat(now());
                    state.traffic.requests += 1;
                    drop(state);
                    let probes = (step == SilenceStep::Probe).then_some(kind);
                    return Repetition { host: Arc::clone(self), probes, is_answered: false };
                }
            }
        }
    }

    /// The answer to `request`, which was sent at `begun`, came over `pools`.
    pub(super) fn answered_over(&self, request: &Request, pools: u64, begun: Instant) {
        self.state().silence[usize::from(request.is_document)].answered(pools, begun.elapsed());
    }

    /// Bytes of a body came.
    pub(super) fn received(&self, bytes: u64) {
        self.state().traffic.bytes += bytes;
    }

    /// Rises with each answer and each byte of the host.
    pub(super) fn progress(&self) -> u64 {
        let traffic = &self.state().traffic;
        traffic.bytes.wrapping_add(traffic.answers)
    }

    /// The host wants so much time between two requests.
    pub(super) fn slow_down(self: &Arc<Self>, interval: Duration) {
        self.state().limiter.slow_down(interval);
        self.grant();
    }

    /// Returns whether a range goes over a dedicated connection: where it would share one, unless the host refused that.
    pub(super) fn separates_ranges(&self) -> bool {
        let state = self.state();
        state.is_shared && state.limiter.takes_ranges(now())
    }

    /// An answer came over a connection for all requests, which HTTP/2 lets them share.
    pub(super) fn shares(&self, is_shared: bool) {
        self.state().is_shared = is_shared;
    }

    /// A range over a dedicated connection was answered.
    pub(super) fn answers_ranges(&self) {
        self.state().has_ranges = true;
    }

    /// A range over a dedicated connection was refused although it was answered over the shared one. A connection that `was_closed` before an answer
    /// may have been idle for longer than the host allows: it refuses nothing where ranges are answered.
    pub(super) fn refuse_ranges(&self, was_closed: bool) {
        let mut state = self.state();
        if !(was_closed && state.has_ranges) {
            state.limiter.refuse_ranges(now());
        }
    }
}

/// A request in the queue.
struct QueuedRequest<'a> {
    host: &'a Arc<Host>,
    ticket: Ticket,
}

impl QueuedRequest<'_> {
    fn raise(&mut self, requester: Requester) {
        self.host.state().limiter.raise(&mut self.ticket, requester);
        self.host.grant();
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        let left = self.host.state().limiter.leave(&self.ticket);
        drop(left);
    }
}

/// The right to have one request in flight, until it is dropped. A request that is cancelled counts for nothing.
pub(super) struct RequestPermit {
    pub(super) host: Arc<Host>,
    grant: Grant,
    /// The URI of a probe whose outcome is open.
    probe: Option<Uri>,
    way: Way,
    /// How long the connection of the request counts as open after the permit is dropped.
    closing: Duration,
    /// The host may count the request, and has not answered it.
    is_unanswered: bool,
}

impl RequestPermit {
    /// Passes the gate for `uri` again, which may have closed meanwhile.
    fn enter(mut self, request: &Request, uri: &Uri) -> Option<RequestPermit> {
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
        (self.way, self.closing) = (way, CLOSING);
    }

    /// The head of an answer came. No body of it is read.
    pub(super) fn answered(
        &mut self,
        uri: &Uri,
        answer: (u16, Option<AnnouncedLimits>),
        is_refusal: bool,
        latency: Duration,
    ) {
        (self.probe, self.closing, self.is_unanswered) = (None, Duration::ZERO, false);
        let mut state = self.host.state();
        state.traffic.answered(is_refusal, latency);
        let is_exhausted = state.limiter.answered(uri, answer, latency, now());
        drop(state);
        if is_exhausted {
            // Those that cannot wait for the next window end now.
            self.host.close_gate();
        }
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
    pub(super) fn reading(mut self, round_trip: Duration) -> RequestPermit {
        self.closing = (2 * round_trip + BACK).min(CLOSING);
        self
    }

    /// The answer is whole. The next request would open another connection before this one is in its pool.
    pub(super) fn finished(mut self) {
        self.closing = BACK;
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut state = self.host.state();
        if let Some(uri) = self.probe.take() {
            state.limiter.cancelled(&uri);
        }
        if self.is_unanswered {
            state.limiter.unanswered(now());
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

/// A request that is sent a second time. Where it is a probe, its outcome counts for the host.
pub(super) struct Repetition {
    host: Arc<Host>,
    /// The kind of request that it is a probe for.
    probes: Option<usize>,
    pub(super) is_answered: bool,
}

impl Drop for Repetition {
    fn drop(&mut self) {
        let mut state = self.host.state();
        // The permit gives back one of the two requests.
        state.limiter.unanswered(now());
        if let Some(kind) = self.probes {
            state.silence[kind].probed(self.is_answered, now());
        }
    }
}
