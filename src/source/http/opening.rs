//! Connections to a host while they are opened: never more of them than requests that wait for one.
//!
//! A pool begins to connect for each request that finds no idle connection, and gives that request whichever comes first: its own
//! connection or one that another request has done with. Where to connect takes longer than to answer, nearly all are served by the
//! latter, and what was begun for them goes on for nobody: a host came to have twice as many connections as places, and more. So a
//! request waits where so many are being opened already, and each that is open or being opened has its request with a place.
//!
//! A connection that a request has done with comes to its pool in tasks of others, which may have to wait for a processor. Who asks
//! before that does not have another one opened, which would be a new one for its first bytes and for all that it is used for
//! later: as many requests as connections are on their way back wait for those, each for [`BACK`] at most.

use super::places::Place;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

/// A connection that is not idle so long after its request has done with it is taken for closed.
const BACK: Duration = Duration::from_millis(20);

/// So many in a row that did not come back though they were waited for: the host closes them without a word, and none is waited for
/// until one has come.
const CLOSED: usize = 3;

/// Turns of the runtime in which one comes back of which nothing is known here: that of a redirect, or of an error.
const TURNS: usize = 8;

/// One that is being opened for so long does not hold up others.
const LONGEST: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// The request that waits for an answer.
    static ASKED: Arc<Asked>;
}

/// A request.
struct Asked {
    /// Its host's.
    opening: Arc<Opening>,
    /// It found no idle connection.
    waits: AtomicBool,
}

/// The connections of one host that are being opened, or on their way back to their pool.
#[derive(Debug, Default)]
pub(super) struct Opening {
    /// Held for a few instructions.
    counts: Mutex<Counts>,
    /// One is open, or has failed; or fewer come than were waited for.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Counts {
    /// Requests that wait for a connection.
    waiting: usize,
    /// Connections that are being opened.
    begun: usize,
    /// When requests had done with those that none has taken since, the oldest first: on their way, idle or closed.
    back: VecDeque<Instant>,
    /// How many in a row were waited for and did not come.
    closed: usize,
}

impl Counts {
    /// A request took the one that has been back for longest.
    fn take(&mut self) {
        if self.back.pop_front().is_some() {
            self.closed = 0;
        }
    }

    /// A request waits, so none is idle: those that were done with so long ago are closed. Answers how many.
    fn lose(&mut self, now: Instant) -> usize {
        let before = self.back.len();
        self.back.retain(|done| *done + BACK > now);
        before - self.back.len()
    }

    /// When to look again whether one is to be opened for a request that waits for others' until `until`; `None` where one is.
    fn not_before(&self, now: Instant, until: Instant) -> Option<Instant> {
        let are_awaited = now < until && self.closed < CLOSED;
        let back = self.back.iter().filter(|_| are_awaited);
        (self.begun + back.clone().count() >= self.waiting)
            .then(|| back.min().map_or(now + LONGEST, |done| until.min(*done + BACK)))
    }
}

impl Opening {
    /// `request`, whose connection counts as this host's while it is opened.
    pub(super) async fn during<F: Future>(self: &Arc<Self>, request: F) -> F::Output {
        let asked = Arc::new(Asked { opening: Arc::clone(self), waits: AtomicBool::new(false) });
        let mut request = pin!(ASKED.scope(Arc::clone(&asked), request));
        let mut is_first = true;
        poll_fn(|context| {
            let outcome = request.as_mut().poll(context);
            // Whoever finds an idle one has it at once.
            if std::mem::take(&mut is_first) && !asked.waits.load(Ordering::Relaxed) {
                self.take();
            }
            outcome
        })
        .await
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has a connection that came back; another may have waited for just that.
    fn take(&self) {
        let mut counts = self.counts();
        counts.take();
        let are_others_waiting = counts.waiting > 0;
        drop(counts);
        if are_others_waiting {
            self.ended.notify_waiters();
        }
    }

    /// A request has done with a connection.
    fn give_back(&self) {
        // Under the lock: in order.
        let mut counts = self.counts();
        counts.back.push_back(Instant::now());
    }

    /// Connections that requests have done with and none has taken since.
    #[cfg(test)]
    pub(super) fn given_back(&self) -> usize {
        self.counts().back.len()
    }

    fn wait(self: &Arc<Self>) -> Waiting {
        let mut counts = self.counts();
        counts.waiting += 1;
        counts.lose(Instant::now());
        Waiting { opening: Arc::clone(self), is_served: false }
    }

    /// The right to open one, once fewer are being opened, or on their way back, than requests wait.
    async fn begin(self: &Arc<Self>) -> Begun {
        let until = Instant::now() + BACK;
        let is_late = pin!(tokio::time::sleep(LONGEST));
        let begun = async {
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            loop {
                let mut ended = pin!(self.ended.notified());
                ended.as_mut().enable();
                let not_before = {
                    let (mut counts, now) = (self.counts(), Instant::now());
                    counts.closed += counts.lose(now);
                    let not_before = counts.not_before(now, until);
                    counts.begun += usize::from(not_before.is_none());
                    not_before
                };
                let Some(not_before) = not_before else { return Begun(Arc::clone(self)) };
                // Whichever comes first.
                let _ = tokio::time::timeout_at(not_before, ended).await;
            }
        };
        tokio::select! {
            biased;
            begun = begun => begun,
            () = is_late => {
                self.counts().begun += 1;
                Begun(Arc::clone(self))
            }
        }
    }
}

/// The connection over which a request was answered, and its place among those to its host.
pub(super) struct Connection {
    /// `None` where it is not known to serve others when this request has done with it, or has been given back.
    opening: Option<Arc<Opening>>,
    _place: Place,
}

impl Connection {
    /// One that is opened as `opening` says, if it serves one request after the other.
    pub(super) fn new(opening: Option<Arc<Opening>>, place: Place) -> Connection {
        Connection { opening, _place: place }
    }

    /// All of the answer is here.
    pub(super) fn give_back(&mut self) {
        if let Some(opening) = self.opening.take() {
            opening.give_back();
        }
    }
}

/// A request that waits for a connection.
struct Waiting {
    opening: Arc<Opening>,
    is_served: bool,
}

impl Waiting {
    /// It has a connection that came back.
    fn served(mut self) {
        self.is_served = true;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut counts = self.opening.counts();
        counts.waiting -= 1;
        if self.is_served {
            counts.take();
        }
    }
}

/// A connection that is being opened.
struct Begun(Arc<Opening>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.counts().begun -= 1;
        self.0.ended.notify_waiters();
    }
}

/// Around whatever connects. A pool goes on with what its request no longer waits for in a task of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpeningLayer;

impl<S> Layer<S> for OpeningLayer {
    type Service = Counted<S>;

    fn layer(&self, connector: S) -> Counted<S> {
        Counted { connector }
    }
}

/// See [`OpeningLayer`].
#[derive(Clone, Debug)]
pub(super) struct Counted<S> {
    connector: S,
}

impl<S, R> Service<R> for Counted<S>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: From<&'static str>,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, to: R) -> Self::Future {
        let Ok(asked) = ASKED.try_with(Arc::clone) else { return Box::pin(self.connector.call(to)) };
        asked.waits.store(true, Ordering::Relaxed);
        let opening = Arc::clone(&asked.opening);
        // The one that is ready goes along, a clone of it may not be (tower_service::Service::call).
        let clone = self.connector.clone();
        let mut connector = std::mem::replace(&mut self.connector, clone);
        Box::pin(async move {
            let mut waiting = Some(opening.wait());
            let begun = {
                let mut begin = pin!(opening.begin());
                poll_fn(|context| match is_waited_for() {
                    true => begin.as_mut().poll(context).map(Some),
                    false => Poll::Ready(None),
                })
                .await
            };
            let Some(_begun) = begun else {
                waiting.into_iter().for_each(Waiting::served);
                return Err("no longer waited for".into());
            };
            let mut connecting = pin!(connector.call(to));
            let opened = poll_fn(|context| {
                if !is_waited_for() {
                    waiting.take().into_iter().for_each(Waiting::served);
                }
                connecting.as_mut().poll(context)
            })
            .await;
            if waiting.is_none() && opened.is_ok() {
                opening.give_back();
            }
            opened
        })
    }
}

/// Whether the task that runs is that of the request.
fn is_waited_for() -> bool {
    ASKED.try_with(|_| ()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Semaphore;

    /// Opens connections when it is told to.
    #[derive(Clone)]
    struct Connector {
        begun: Arc<AtomicUsize>,
        told: Arc<Semaphore>,
    }

    impl Service<()> for Connector {
        type Response = ();
        type Error = Box<dyn std::error::Error + Send + Sync>;
        type Future = Pin<Box<dyn Future<Output = Result<(), Self::Error>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, (): ()) -> Self::Future {
            self.begun.fetch_add(1, Ordering::SeqCst);
            let told = Arc::clone(&self.told);
            Box::pin(async move {
                told.acquire().await?.forget();
                Ok(())
            })
        }
    }

    type Connecting = <Counted<Connector> as Service<()>>::Future;

    struct Host {
        opening: Arc<Opening>,
        connector: Connector,
    }

    impl Host {
        fn new() -> Host {
            let connector = Connector { begun: Arc::default(), told: Arc::new(Semaphore::new(0)) };
            Host { opening: Arc::default(), connector }
        }

        /// A request that finds no idle connection.
        async fn asked(&self) -> Connecting {
            let mut counted = OpeningLayer.layer(self.connector.clone());
            self.opening.during(poll_fn(|_| Poll::Ready(counted.call(())))).await
        }

        /// What comes of it while the request waits for so long.
        async fn awaited_for(&self, connecting: &mut Connecting, long: Duration) -> Option<bool> {
            let asked = Asked { opening: Arc::clone(&self.opening), waits: AtomicBool::new(true) };
            let opened = tokio::time::timeout(long, ASKED.scope(Arc::new(asked), connecting)).await;
            opened.ok().map(|opened| opened.is_ok())
        }

        /// What comes of it as soon as nobody else has anything to do.
        async fn awaited(&self, connecting: &mut Connecting) -> Option<bool> {
            self.awaited_for(connecting, Duration::from_millis(1)).await
        }

        fn begun(&self) -> usize {
            self.connector.begun.load(Ordering::SeqCst)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_are_opened_as_requests_wait() {
        let host = Host::new();
        let (mut first, mut second) = (host.asked().await, host.asked().await);
        assert_eq!((host.awaited(&mut first).await, host.awaited(&mut second).await), (None, None));
        assert_eq!(host.begun(), 2);
        host.connector.told.add_permits(2);
        assert_eq!((host.awaited(&mut first).await, host.awaited(&mut second).await), (Some(true), Some(true)));
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_while_one_is_opened_for_nobody_begins_none_until_that_has_ended() {
        let host = Host::new();
        let mut first = host.asked().await;
        assert_eq!(host.awaited(&mut first).await, None);
        assert!((&mut first).now_or_never().is_none(), "its request was given another and is gone");

        let mut second = host.asked().await;
        assert_eq!(host.awaited(&mut second).await, None);
        assert_eq!(host.begun(), 1);
        let mut third = host.asked().await;
        assert_eq!(host.awaited(&mut third).await, None);
        assert_eq!(host.begun(), 2, "two wait, and one was being opened");

        host.connector.told.add_permits(1);
        assert!((&mut first).now_or_never().is_some_and(|outcome| outcome.is_ok()), "it goes on for nobody");
        assert_eq!((host.awaited(&mut second).await, host.begun()), (None, 2), "that one comes to the pool");
        assert_eq!(host.awaited_for(&mut second, 2 * BACK).await, None);
        assert_eq!(host.begun(), 3, "nobody gave it that connection");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_begun_is_left_when_its_request_is_served_or_gone() {
        let host = Host::new();
        let mut others = [host.asked().await, host.asked().await];
        for other in &mut others {
            assert_eq!(host.awaited(other).await, None);
        }
        assert!(others.iter_mut().all(|other| other.now_or_never().is_none()));
        let (mut served, mut gone) = (host.asked().await, host.asked().await);
        assert_eq!((host.awaited(&mut served).await, host.awaited(&mut gone).await), (None, None));

        assert!((&mut served).now_or_never().is_some_and(|outcome| outcome.is_err()));
        drop((others, served, gone));

        let counts = host.opening.counts();
        assert_eq!((counts.waiting, counts.begun, host.begun()), (0, 0, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_a_connection_on_its_way_back_waits_for_it_and_who_is_one_too_many_has_one_opened() {
        let host = Host::new();
        host.opening.give_back();
        let (mut first, mut second) = (host.asked().await, host.asked().await);
        assert_eq!((host.awaited(&mut first).await, host.begun()), (None, 0));
        assert_eq!((host.awaited(&mut second).await, host.begun()), (None, 1), "two wait, and one comes");

        assert!((&mut first).now_or_never().is_some_and(|outcome| outcome.is_err()), "it was given the one that came");

        assert_eq!(host.opening.counts().back.len(), 0);
        host.connector.told.add_permits(1);
        assert_eq!(host.awaited(&mut second).await, Some(true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_does_not_come_back_is_waited_for_no_longer_than_it_takes_one_to_come() {
        let host = Host::new();
        host.opening.give_back();
        let mut request = host.asked().await;
        assert_eq!((host.awaited(&mut request).await, host.begun()), (None, 0));
        // Others go on coming, and are given to others.
        tokio::time::sleep(BACK / 2).await;
        host.opening.give_back();
        assert_eq!((host.awaited_for(&mut request, BACK).await, host.begun()), (None, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_closes_its_connections_without_a_word_is_believed_after_a_few() {
        let host = Host::new();
        let mut waited = 0;
        for number in 1..=2 * CLOSED {
            host.opening.give_back();
            let mut request = host.asked().await;
            assert_eq!(host.awaited(&mut request).await, None);
            waited += usize::from(host.begun() < number);
            assert_eq!(host.awaited_for(&mut request, 2 * BACK).await, None);
            assert_eq!(host.begun(), number);
            host.connector.told.add_permits(1);
            assert_eq!(host.awaited(&mut request).await, Some(true));
        }
        assert_eq!(waited, CLOSED);

        host.opening.give_back();
        host.opening.during(async {}).await;
        host.opening.give_back();
        let mut request = host.asked().await;
        assert_eq!((host.awaited(&mut request).await, host.begun()), (None, 2 * CLOSED), "one has come");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_connection_that_another_takes_is_told() {
        let host = Host::new();
        host.opening.give_back();
        let mut request = host.asked().await;
        assert_eq!((host.awaited(&mut request).await, host.begun()), (None, 0));
        let begun_at = Instant::now();

        let taken = async {
            tokio::task::yield_now().await;
            host.opening.during(async {}).await;
            host.connector.told.add_permits(1);
        };
        let (opened, ()) = tokio::join!(host.awaited_for(&mut request, LONGEST), taken);

        assert_eq!((opened, begun_at.elapsed()), (Some(true), Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_an_idle_connection_takes_the_one_that_was_given_back_first() {
        let host = Host::new();
        host.opening.give_back();
        tokio::time::sleep(2 * BACK).await;
        host.opening.give_back();
        host.opening.during(async {}).await;

        let mut request = host.asked().await;
        assert_eq!((host.awaited(&mut request).await, host.begun()), (None, 0), "the other is still on its way");
    }
}
