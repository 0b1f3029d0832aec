//! Connections to a host while they are opened: never more of them than requests that wait for one.
//!
//! A pool begins to connect for each request that finds no idle connection, and gives that request whichever comes first: its own
//! connection or one that another request has done with. Where to connect takes longer than to answer, nearly all are served by the
//! latter, and what was begun for them goes on for nobody: a host came to have twice as many connections as places, and more. So a
//! request waits where so many are being opened already, and each that is open or being opened has its request with a place.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Notify;
use tower_layer::Layer;
use tower_service::Service;

/// Turns of the runtime in which a connection that its request has done with comes to be idle.
const TURNS: usize = 8;

/// One that is being opened for so long does not hold up others.
const LONGEST: Duration = Duration::from_secs(1);

tokio::task_local! {
    /// The host from which a request waits for an answer.
    static ASKED: Arc<Opening>;
}

/// The connections of one host that are being opened.
#[derive(Debug, Default)]
pub(super) struct Opening {
    /// Held for a few instructions.
    counts: Mutex<Counts>,
    /// One is open, or has failed.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Counts {
    /// Requests that wait for a connection.
    waiting: usize,
    /// Connections that are being opened.
    begun: usize,
}

impl Opening {
    /// `request`, whose connection counts as this host's while it is opened.
    pub(super) fn during<F: Future>(self: &Arc<Self>, request: F) -> impl Future<Output = F::Output> {
        ASKED.scope(Arc::clone(self), request)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(self: &Arc<Self>) -> Waiting {
        self.counts().waiting += 1;
        Waiting(Arc::clone(self))
    }

    /// The right to open one, once fewer are being opened than requests wait.
    async fn begin(self: &Arc<Self>) -> Begun {
        let is_late = pin!(tokio::time::sleep(LONGEST));
        let begun = async {
            loop {
                for _ in 0..TURNS {
                    tokio::task::yield_now().await;
                }
                let mut ended = pin!(self.ended.notified());
                ended.as_mut().enable();
                if let Some(begun) = self.begin_if(|counts| counts.begun < counts.waiting) {
                    return begun;
                }
                ended.await;
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

    fn begin_if(self: &Arc<Self>, is_wanted: impl FnOnce(&Counts) -> bool) -> Option<Begun> {
        let mut counts = self.counts();
        let is_wanted = is_wanted(&counts);
        counts.begun += usize::from(is_wanted);
        is_wanted.then(|| Begun(Arc::clone(self)))
    }
}

/// A request that waits for a connection.
struct Waiting(Arc<Opening>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.counts().waiting -= 1;
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
        let Ok(opening) = ASKED.try_with(Arc::clone) else { return Box::pin(self.connector.call(to)) };
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
            let Some(_begun) = begun else { return Err("no longer waited for".into()) };
            let mut connecting = pin!(connector.call(to));
            poll_fn(|context| {
                if !is_waited_for() {
                    drop(waiting.take());
                }
                connecting.as_mut().poll(context)
            })
            .await
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

        /// Turns in which the request waits for it.
        async fn awaited(&self, connecting: &mut Connecting) -> Option<bool> {
            for _ in 0..3 * TURNS {
                if let Some(outcome) = self.opening.during(&mut *connecting).now_or_never() {
                    return Some(outcome.is_ok());
                }
                tokio::task::yield_now().await;
            }
            None
        }

        fn begun(&self) -> usize {
            self.connector.begun.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn as_many_are_opened_as_requests_wait() {
        let host = Host::new();
        let (mut first, mut second) = (host.asked().await, host.asked().await);
        assert_eq!((host.awaited(&mut first).await, host.awaited(&mut second).await), (None, None));
        assert_eq!(host.begun(), 2);
        host.connector.told.add_permits(2);
        assert_eq!((host.awaited(&mut first).await, host.awaited(&mut second).await), (Some(true), Some(true)));
    }

    #[tokio::test]
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
        assert_eq!(host.awaited(&mut second).await, None);
        assert_eq!(host.begun(), 3, "nobody gave it a connection");
    }

    #[tokio::test]
    async fn what_was_not_begun_is_left_when_its_request_is_served_or_gone() {
        let host = Host::new();
        let mut first = host.asked().await;
        assert_eq!(host.awaited(&mut first).await, None);
        assert!((&mut first).now_or_never().is_none());
        let (mut served, mut gone) = (host.asked().await, host.asked().await);
        assert!(host.opening.during(&mut served).now_or_never().is_none());
        assert!(host.opening.during(&mut gone).now_or_never().is_none());

        assert!((&mut served).now_or_never().is_some_and(|outcome| outcome.is_err()));
        drop((first, served, gone));

        let counts = host.opening.counts();
        assert_eq!((counts.waiting, counts.begun, host.begun()), (0, 0, 1));
    }
}
