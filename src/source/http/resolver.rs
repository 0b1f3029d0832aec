//! Addresses of hosts: looked up once where many connections are opened together, and kept while they work.

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, WeakShared};
use lru::LruCache;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long an answer counts. The system's resolver does not report how long it may be kept.
const FRESH: Duration = Duration::from_secs(30);

/// A resolver that takes longer is not waited for where an earlier answer is known.
const SLOW: Duration = Duration::from_secs(1);

/// Look-ups in progress at a time. The system's resolver may hold each up for minutes.
const LOOKUPS: usize = 64;

/// Names remembered.
const NAMES: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// What a look-up found. All requests for the name share it, its failure too.
type Found = Result<Arc<[IpAddr]>, Arc<io::Error>>;

/// The latest answers of the system's resolver.
#[derive(Debug)]
pub(super) struct Names {
    /// Held for a few instructions.
    known: Mutex<LruCache<Box<str>, Known>>,
    lookups: Arc<Semaphore>,
    /// Whether all addresses that a name had at first were public; for names that may have others.
    first: Mutex<HashMap<Box<str>, bool>>,
}

/// What is known of one name.
#[derive(Debug, Default)]
struct Known {
    /// The addresses, and when they were found.
    answer: Option<(Instant, Arc<[IpAddr]>)>,
    /// The look-up in progress. It leaves the queue with the last request that waits for it.
    look_up: Option<WeakShared<BoxFuture<'static, Found>>>,
}

impl Default for Names {
    fn default() -> Names {
        let known = Mutex::new(LruCache::sparse(NAMES));
        Names { known, lookups: Arc::new(Semaphore::new(LOOKUPS)), first: Mutex::default() }
    }
}

impl Names {
    /// The addresses of `name`: fresh ones, else those that `ask` finds. Where it fails or takes long, earlier ones: they
    /// count until no connection to them can be made. `ask` is not called again while it runs for the same name.
    pub(super) async fn addresses<A>(
        self: &Arc<Self>,
        name: &str,
        ask: impl FnOnce() -> A + Send + 'static,
    ) -> io::Result<Arc<[IpAddr]>>
    where
        A: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    {
        let (look_up, earlier) = {
            let mut names = self.known();
            let known = names.get_or_insert_mut(name.into(), Known::default);
            let earlier = match &known.answer {
                Some((since, addresses)) if since.elapsed() < FRESH => return Ok(Arc::clone(addresses)),
                answer => answer.as_ref().map(|(_, addresses)| Arc::clone(addresses)),
            };
            let running =
                known.look_up.as_ref().and_then(WeakShared::upgrade).filter(|running| running.peek().is_none());
            let look_up = running.unwrap_or_else(|| Arc::clone(self).look_up(name.into(), ask).boxed().shared());
            known.look_up = look_up.downgrade();
            (look_up, earlier)
        };
        let patience = if earlier.is_some() { SLOW } else { Duration::MAX };
        match (tokio::time::timeout(patience, look_up).await, earlier) {
            (Ok(Ok(addresses)), _) | (_, Some(addresses)) => Ok(addresses),
            (Ok(Err(cause)), None) => Err(io::Error::new(cause.kind(), cause)),
            (Err(late), None) => Err(late.into()),
        }
    }

    /// Looks `name` up. Once begun that goes on to its end, also if no request waits for it any more.
    async fn look_up<A>(self: Arc<Self>, name: Box<str>, ask: impl FnOnce() -> A + Send + 'static) -> Found
    where
        A: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    {
        let permit = Arc::clone(&self.lookups).acquire_owned().await;
        let running = tokio::spawn(async move {
            let _permit = permit;
            let addresses: Arc<[IpAddr]> = ask().await?.into();
            self.known().get_or_insert_mut(name, Known::default).answer =
                Some((Instant::now(), Arc::clone(&addresses)));
            Ok(addresses)
        });
        running.await.unwrap_or_else(|broken| Err(io::Error::other(broken))).map_err(Arc::new)
    }

    /// No connection to the addresses of `name` can be made: the next request looks it up again.
    pub(super) fn forget(&self, name: &str) {
        if let Some(known) = self.known().peek_mut(name) {
            known.answer = None;
        }
    }

    /// Whether `name` had only public addresses when it was asked for first; `is_public`: whether it has now.
    pub(super) fn was_public(&self, name: &str, is_public: bool) -> bool {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        *first.entry(name.into()).or_insert(is_public)
    }

    fn known(&self) -> MutexGuard<'_, LruCache<Box<str>, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The system's resolver, on a thread of its own: it may not answer for long, and no other work may wait for that.
pub(super) async fn ask_system(name: Box<str>) -> io::Result<Vec<IpAddr>> {
    let (sender, found) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("look-up".to_owned()).spawn(move || {
        let found = std::net::ToSocketAddrs::to_socket_addrs(&(&*name, 0));
        // The receiver may be gone.
        let _ = sender.send(found.map(|found| found.map(|address| address.ip()).collect()));
    })?;
    found.await.unwrap_or_else(|_| Err(io::Error::other("the look-up broke off")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 8));

    async fn found(address: IpAddr) -> io::Result<Vec<IpAddr>> {
        Ok(vec![address])
    }

    #[tokio::test]
    async fn one_look_up_serves_all_that_ask_together_and_soon_after() {
        let (names, asked) = (Arc::new(Names::default()), Arc::new(AtomicUsize::new(0)));
        let ask = || {
            let asked = Arc::clone(&asked);
            move || async move {
                asked.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                Ok(vec![ADDRESS])
            }
        };
        let together = futures_util::future::join_all((0..64).map(|_| names.addresses("example.org", ask()))).await;
        let later = names.addresses("example.org", ask()).await;

        assert!(together.into_iter().chain([later]).all(|answer| *answer.unwrap() == [ADDRESS]));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_failure_is_shared_and_not_remembered() {
        let names = Arc::new(Names::default());
        let fails = || async { Err(io::ErrorKind::TimedOut.into()) };
        let both = (names.addresses("example.org", fails), names.addresses("example.org", || found(OTHER)));
        let (first, second) = tokio::join!(both.0, both.1);
        assert_eq!(first.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(second.unwrap_err().kind(), io::ErrorKind::TimedOut);

        assert_eq!(*names.addresses("example.org", || found(ADDRESS)).await.unwrap(), [ADDRESS]);
    }

    #[tokio::test]
    async fn an_address_that_does_not_work_is_forgotten() {
        let names = Arc::new(Names::default());
        names.addresses("example.org", || found(ADDRESS)).await.unwrap();
        assert_eq!(*names.addresses("example.org", || found(OTHER)).await.unwrap(), [ADDRESS]);
        names.forget("example.org");
        assert_eq!(*names.addresses("example.org", || found(OTHER)).await.unwrap(), [OTHER]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_answer_counts_while_the_resolver_fails() {
        let names = Arc::new(Names::default());
        let long_ago = Instant::now().checked_sub(2 * FRESH).unwrap();
        let old = Known { answer: Some((long_ago, Arc::from([ADDRESS]))), ..Known::default() };
        names.known().put("example.org".into(), old);

        let failed = names.addresses("example.org", || async { Err(io::ErrorKind::TimedOut.into()) }).await;
        let silent = names.addresses("example.org", std::future::pending).await;

        assert_eq!((&*failed.unwrap(), &*silent.unwrap()), (&[ADDRESS][..], &[ADDRESS][..]));
    }

    #[tokio::test(start_paused = true)]
    async fn names_without_answer_hold_up_no_others_for_long() {
        let names = Arc::new(Names::default());
        let dead = |number: usize| {
            let names = Arc::clone(&names);
            async move {
                let late = || async {
                    tokio::time::sleep(Duration::from_secs(20)).await;
                    Err(io::ErrorKind::TimedOut.into())
                };
                let patience = Duration::from_millis(30);
                tokio::time::timeout(patience, names.addresses(&format!("dead-{number}"), late)).await
            }
        };
        let gone = futures_util::future::join_all((0..1000).map(dead)).await;
        assert!(gone.iter().all(Result::is_err));

        let begun = tokio::time::Instant::now();
        assert_eq!(*names.addresses("example.org", || found(ADDRESS)).await.unwrap(), [ADDRESS]);
        assert!(begun.elapsed() <= Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn no_more_than_so_many_names_are_kept() {
        let names = Arc::new(Names::default());
        for number in 0..3 * NAMES.get() {
            names.addresses(&format!("host-{number}.example.org"), || found(ADDRESS)).await.unwrap();
        }
        assert!(names.known().len() <= NAMES.get());
    }
}
