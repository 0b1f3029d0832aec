//! Addresses of hosts: looked up once where many connections are opened together, and kept while they work.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};

/// How long an answer counts. The system's resolver does not tell how long it may be kept; what moves is followed soon.
const FRESH: Duration = Duration::from_secs(30);

/// A resolver that takes longer is not waited for where an earlier answer is known.
const SLOW: Duration = Duration::from_secs(1);

/// Look-ups under way at a time. The system's resolver may hold each up for minutes.
const LOOKUPS: usize = 64;

/// Names remembered; with more those whose answers are too old, or else all, are forgotten.
const NAMES: usize = 256;

/// What a look-up found. All that asked for the name share it, its failure too.
type Found = Result<Arc<[IpAddr]>, Arc<io::Error>>;

/// What the system's resolver said lately.
#[derive(Debug)]
pub(super) struct Names {
    /// Held for a few instructions.
    known: Mutex<HashMap<Box<str>, Known>>,
    lookups: Arc<Semaphore>,
    /// Whether all addresses that a name had at first were public; for names that may have others.
    first: Mutex<HashMap<Box<str>, bool>>,
}

impl Default for Names {
    fn default() -> Names {
        Names { known: Mutex::default(), lookups: Arc::new(Semaphore::new(LOOKUPS)), first: Mutex::default() }
    }
}

/// What is known of one name.
#[derive(Debug, Default)]
struct Known {
    /// The addresses, and when they were found.
    answer: Option<(Instant, Arc<[IpAddr]>)>,
    /// The look-up under way.
    asked: Option<Arc<watch::Sender<Option<Found>>>>,
    /// The addresses that were forgotten last.
    failed: Option<Arc<[IpAddr]>>,
}

impl Known {
    fn is_fresh(&self) -> bool {
        self.answer.as_ref().is_some_and(|(since, _)| since.elapsed() < FRESH)
    }
}

impl Names {
    /// The addresses of `name`: fresh ones, else those that `ask` finds. Where it fails or takes long, earlier ones: they
    /// count until no connection to them can be made. `ask` is not called again while it runs for the same name, and a
    /// name that no request waits for any more leaves the queue of look-ups.
    pub(super) async fn addresses<A>(
        self: &Arc<Self>,
        name: &str,
        ask: impl FnOnce() -> A + Send + 'static,
    ) -> io::Result<Arc<[IpAddr]>>
    where
        A: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    {
        let (mut answer, earlier) = {
            let mut names = self.known();
            let known = entry(&mut names, name);
            let earlier = known.answer.as_ref().map(|(_, addresses)| Arc::clone(addresses));
            if let Some(addresses) = earlier.as_ref().filter(|_| known.is_fresh()) {
                return Ok(Arc::clone(addresses));
            }
            let answer = match &known.asked {
                Some(asked) => asked.subscribe(),
                None => {
                    let (asked, answer) = watch::channel(None);
                    let asked = Arc::new(asked);
                    known.asked = Some(Arc::clone(&asked));
                    tokio::spawn(look_up(Arc::clone(self), name.into(), asked, ask));
                    answer
                }
            };
            (answer, earlier)
        };
        let patience = if earlier.is_some() { SLOW } else { Duration::MAX };
        let found = tokio::time::timeout(patience, answer.wait_for(Option::is_some)).await;
        let found = found.ok().and_then(Result::ok).and_then(|found| found.clone());
        match (found, earlier) {
            (Some(Ok(addresses)), _) | (_, Some(addresses)) => Ok(addresses),
            (Some(Err(cause)), None) => Err(io::Error::new(cause.kind(), cause)),
            (None, None) => Err(io::Error::other("the look-up was given up")),
        }
    }

    /// No connection to the addresses of `name` can be made: they are forgotten. Tells whether they were found before
    /// `begun`, so that another look-up may find others.
    pub(super) fn forget(&self, name: &str, begun: Instant) -> bool {
        let mut names = self.known();
        let Some(known) = names.get_mut(name) else { return true };
        // Where there are none, another request met the same and forgot them.
        let Some((since, addresses)) = known.answer.take() else { return true };
        known.failed = Some(addresses);
        since < begun
    }

    /// [Forgets](Names::forget) the addresses of `name`, and looks it up again. Whether `ask` finds another address.
    pub(super) async fn has_moved<A>(
        self: &Arc<Self>,
        name: &str,
        begun: Instant,
        ask: impl FnOnce() -> A + Send + 'static,
    ) -> bool
    where
        A: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    {
        if !self.forget(name, begun) {
            return false;
        }
        let failed = self.known().get(name).and_then(|known| known.failed.clone()).unwrap_or_default();
        let found = self.addresses(name, ask).await;
        found.is_ok_and(|found| found.iter().any(|address| !failed.contains(address)))
    }

    /// Whether `name` had only public addresses when it was asked for first; `is_public` tells whether it has now.
    pub(super) fn was_public(&self, name: &str, is_public: bool) -> bool {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        *first.entry(name.into()).or_insert(is_public)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Box<str>, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of `name`; others are forgotten where there are too many.
fn entry<'a>(names: &'a mut HashMap<Box<str>, Known>, name: &str) -> &'a mut Known {
    if names.len() >= NAMES && !names.contains_key(name) {
        names.retain(|_, known| known.asked.is_some() || known.is_fresh());
        if names.len() >= NAMES {
            names.retain(|_, known| known.asked.is_some());
        }
    }
    names.entry(name.into()).or_default()
}

/// Looks `name` up when it is its turn, unless no request waits for it by then. Once begun it goes on to its end.
async fn look_up<A>(
    names: Arc<Names>,
    name: Box<str>,
    asked: Arc<watch::Sender<Option<Found>>>,
    ask: impl FnOnce() -> A + Send + 'static,
) where
    A: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
{
    let mut turn = std::pin::pin!(Arc::clone(&names.lookups).acquire_owned());
    let _turn = loop {
        tokio::select! {
            biased;
            turn = &mut turn => break turn,
            () = asked.closed() => {
                let mut known = names.known();
                // A request may have come meanwhile: it subscribes under the lock.
                if asked.receiver_count() == 0 {
                    entry(&mut known, &name).asked = None;
                    known.retain(|_, known| known.asked.is_some() || known.answer.is_some());
                    return;
                }
            }
        }
    };
    let found = ask().await;
    let mut known = names.known();
    let known = entry(&mut known, &name);
    known.asked = None;
    asked.send_replace(Some(match found {
        Ok(addresses) => {
            let addresses: Arc<[IpAddr]> = addresses.into();
            known.answer = Some((Instant::now(), Arc::clone(&addresses)));
            Ok(addresses)
        }
        Err(cause) => Err(Arc::new(cause)),
    }));
}

/// The system's resolver, on a thread of its own: it may not answer for long, and no other work may wait for that.
pub(super) async fn ask_system(name: Box<str>) -> io::Result<Vec<IpAddr>> {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("look-up".to_owned()).spawn(move || {
        let found = std::net::ToSocketAddrs::to_socket_addrs(&(&*name, 0));
        // Who asked may be gone.
        let _ = tell.send(found.map(|found| found.map(|address| address.ip()).collect()));
    })?;
    told.await.unwrap_or_else(|_| Err(io::Error::other("the look-up broke off")))
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
        assert!(names.forget("example.org", Instant::now()));
        assert!(names.forget("example.org", Instant::now()), "another request met the same");

        let begun = Instant::now();
        assert_eq!(*names.addresses("example.org", || found(OTHER)).await.unwrap(), [OTHER]);
        assert!(!names.forget("example.org", begun), "it was looked up since");
    }

    #[tokio::test]
    async fn a_host_that_is_down_has_not_moved() {
        let names = Arc::new(Names::default());
        names.addresses("example.org", || found(ADDRESS)).await.unwrap();
        assert!(!names.has_moved("example.org", Instant::now(), || found(ADDRESS)).await);
        assert!(names.has_moved("example.org", Instant::now(), || found(OTHER)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_answer_counts_while_the_resolver_fails() {
        let names = Arc::new(Names::default());
        let long_ago = Instant::now().checked_sub(2 * FRESH).unwrap();
        let old = Known { answer: Some((long_ago, Arc::from([ADDRESS]))), ..Known::default() };
        names.known().insert("example.org".into(), old);

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
        assert!(names.known().len() <= LOOKUPS + 1, "those that left are forgotten");
    }

    #[tokio::test]
    async fn no_more_than_so_many_names_are_kept() {
        let names = Arc::new(Names::default());
        for number in 0..3 * NAMES {
            names.addresses(&format!("host-{number}.example.org"), || found(ADDRESS)).await.unwrap();
        }
        assert!(names.known().len() <= NAMES);
    }
}
