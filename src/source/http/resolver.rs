//! Addresses of hosts: looked up once where many connections are opened together, and kept while they work.

use crate::platform::single_flight::SingleFlight;
use crate::platform::{address_space, descriptors};
use lru::LruCache;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// How long an answer counts. The system's resolver does not report how long it may be kept.
const FRESH: Duration = Duration::from_secs(30);

/// A resolver that takes longer is not waited for where an earlier answer is known.
const SLOW: Duration = Duration::from_secs(1);

/// Look-ups in progress at a time, at most. The system's resolver may hold each up for minutes, and a thread with it.
const LOOKUPS: usize = 64;

/// Part of the threads that look-ups take at most: the others read cached files.
const SHARE: usize = 4;

/// Names remembered.
const NAMES: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// The addresses of a name, and when they were found.
type KnownAddresses = (Instant, Arc<[IpAddr]>);

/// Result of a look-up. All requests for the name share it, its failure too.
type ResolvedName = Result<Arc<[IpAddr]>, Arc<io::Error>>;

/// The latest answers of the system's resolver.
pub(super) struct NameCache {
    /// Held for a few instructions.
    known: Mutex<LruCache<Box<str>, KnownAddresses>>,
    in_flight: SingleFlight<Box<str>, ResolvedName>,
    lookups: Arc<Semaphore>,
    /// Names that may have any address.
    allowed: Vec<Box<str>>,
    /// Hosts of proxies.
    proxies: Vec<Box<str>>,
    /// True if all addresses that another name had at first were public.
    first: Mutex<HashMap<Box<str>, bool>>,
}

impl NameCache {
    pub(super) fn new(allowed: Vec<Box<str>>, proxies: Vec<Box<str>>) -> NameCache {
        let lookups = descriptors::share(LOOKUPS, 16).min(address_space::blocking_threads() / SHARE);
        let (known, lookups) = (Mutex::new(LruCache::sparse(NAMES)), Arc::new(Semaphore::new(lookups)));
        NameCache { known, in_flight: SingleFlight::default(), lookups, allowed, proxies, first: Mutex::default() }
    }

    pub(super) fn is_proxy(&self, name: &str) -> bool {
        self.proxies.iter().any(|proxy| proxy.eq_ignore_ascii_case(name))
    }

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
        let earlier = match self.known().get(name) {
            Some((since, addresses)) if since.elapsed() < FRESH => return Ok(Arc::clone(addresses)),
            answer => answer.map(|(_, addresses)| Arc::clone(addresses)),
        };
        let patience = if earlier.is_some() { SLOW } else { Duration::MAX };
        match (tokio::time::timeout(patience, self.look_up(name, ask)).await, earlier) {
            (Ok(Ok(addresses)), _) | (_, Some(addresses)) => Ok(addresses),
            (Ok(Err(cause)), None) => Err(io::Error::new(cause.kind(), cause)),
            (Err(late), None) => Err(late.into()),
        }
    }

    /// Looks `name` up, or joins the look-up in flight. Once begun it continues to its end, also if no request waits for it any more.
    async fn look_up<A>(self: &Arc<Self>, name: &str, ask: impl FnOnce() -> A + Send + 'static) -> ResolvedName
    where
        A: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    {
        let (names, name) = (Arc::clone(self), Box::<str>::from(name));
        let broke_off = || Err(io::Error::other("the look-up broke off").into());
        if let Some(found) = self.in_flight.joined(&name) {
            return found.await.unwrap_or_else(broke_off);
        }
        // A request that ends leaves this queue. One that finds a look-up in flight behind it drops its permit.
        let permit = Arc::clone(&self.lookups).acquire_owned().await;
        let (_, found) = self.in_flight.join(&Handle::current(), name.clone(), || {
            let look_up = async move {
                let _permit = permit;
                let addresses: Arc<[IpAddr]> = ask().await?.into();
                names.known().put(name, (Instant::now(), Arc::clone(&addresses)));
                Ok(addresses)
            };
            ((), look_up)
        });
        found.await.unwrap_or_else(broke_off)
    }

    /// No connection to the addresses of `name` can be made: the next request looks it up again.
    pub(super) fn forget(&self, name: &str) {
        self.known().pop(name);
    }

    /// Returns whether `name` had only public addresses when it was asked for first, and may have no others; `is_public`: whether it has now.
    pub(super) fn was_public(&self, name: &str, is_public: bool) -> bool {
        if self.allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name)) {
            return false;
        }
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        *first.entry(name.into()).or_insert(is_public)
    }

    fn known(&self) -> MutexGuard<'_, LruCache<Box<str>, KnownAddresses>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The system's resolver.
pub(super) async fn ask_system(name: Box<str>) -> io::Result<Vec<IpAddr>> {
    Ok(tokio::net::lookup_host((&*name, 0)).await?.map(|address| address.ip()).collect())
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
        let (names, asked) = (Arc::new(NameCache::new(Vec::new(), Vec::new())), Arc::new(AtomicUsize::new(0)));
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
        let names = Arc::new(NameCache::new(Vec::new(), Vec::new()));
        let fails = || async { Err(io::ErrorKind::TimedOut.into()) };
        let both = (names.addresses("example.org", fails), names.addresses("example.org", || found(OTHER)));
        let (first, second) = tokio::join!(both.0, both.1);
        assert_eq!(first.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(second.unwrap_err().kind(), io::ErrorKind::TimedOut);

        assert_eq!(*names.addresses("example.org", || found(ADDRESS)).await.unwrap(), [ADDRESS]);
    }

    #[tokio::test]
    async fn an_address_that_does_not_work_is_forgotten() {
        let names = Arc::new(NameCache::new(Vec::new(), Vec::new()));
        names.addresses("example.org", || found(ADDRESS)).await.unwrap();
        assert_eq!(*names.addresses("example.org", || found(OTHER)).await.unwrap(), [ADDRESS]);
        names.forget("example.org");
        assert_eq!(*names.addresses("example.org", || found(OTHER)).await.unwrap(), [OTHER]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_answer_counts_while_the_resolver_fails() {
        let names = Arc::new(NameCache::new(Vec::new(), Vec::new()));
        let long_ago = Instant::now().checked_sub(2 * FRESH).unwrap();
        names.known().put("example.org".into(), (long_ago, Arc::from([ADDRESS])));

        let failed = names.addresses("example.org", || async { Err(io::ErrorKind::TimedOut.into()) }).await;
        let silent = names.addresses("example.org", std::future::pending).await;

        assert_eq!((&*failed.unwrap(), &*silent.unwrap()), (&[ADDRESS][..], &[ADDRESS][..]));
    }

    #[tokio::test(start_paused = true)]
    async fn names_without_answer_hold_up_no_others_for_long() {
        let names = Arc::new(NameCache::new(Vec::new(), Vec::new()));
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

    /// As many names as may be looked up at a time have no answer for long: those that join one of them wait for its answer alone.
    #[tokio::test(start_paused = true)]
    async fn a_look_up_in_flight_is_joined_without_a_permit() {
        let names = Arc::new(NameCache::new(Vec::new(), Vec::new()));
        let mut in_flight: Vec<_> = (0..names.lookups.available_permits())
            .map(|number| {
                let (names, seconds) = (Arc::clone(&names), if number == 0 { 5 } else { 500 });
                let late = move || async move {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    Ok(vec![ADDRESS])
                };
                tokio::spawn(async move { names.addresses(&format!("slow-{number}"), late).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let others: Vec<_> = (0..9)
            .map(|number| {
                let names = Arc::clone(&names);
                tokio::spawn(async move { names.addresses(&format!("other-{number}"), || found(OTHER)).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let begun = tokio::time::Instant::now();

        assert_eq!(*names.addresses("slow-0", || found(OTHER)).await.unwrap(), [ADDRESS]);

        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        in_flight.drain(..).chain(others).for_each(|task| task.abort());
    }

    #[tokio::test]
    async fn no_more_than_so_many_names_are_kept() {
        let names = Arc::new(NameCache::new(Vec::new(), Vec::new()));
        for number in 0..3 * NAMES.get() {
            names.addresses(&format!("host-{number}.example.org"), || found(ADDRESS)).await.unwrap();
        }
        assert!(names.known().len() <= NAMES.get());
    }
}
