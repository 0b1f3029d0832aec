//! Addresses of hosts: asked for once where many connections are opened together, and remembered for a moment.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an answer counts. The system's resolver does not tell how long it may be kept; what moves is followed soon.
const REMEMBERED: Duration = Duration::from_secs(30);

/// Names remembered; with more those whose answers are too old, or else all, are forgotten.
const NAMES: usize = 256;

/// The addresses of a host, as of when they were asked for.
type Answer = Option<(Instant, Arc<[IpAddr]>)>;

/// What the system's resolver said lately.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// The outer lock is held for a look alone, an inner one while its host is asked about: who comes meanwhile waits for that.
    known: Mutex<HashMap<Box<str>, Arc<tokio::sync::Mutex<Answer>>>>,
}

impl Names {
    /// The addresses of `name`: known ones, else what `ask` answers. A failure is told to one asker and not remembered.
    pub(super) async fn addresses<A>(&self, name: &str, ask: impl FnOnce() -> A) -> io::Result<Arc<[IpAddr]>>
    where
        A: Future<Output = io::Result<Vec<IpAddr>>>,
    {
        let place = self.place(name);
        let mut answer = place.lock().await;
        if let Some((since, addresses)) = &*answer
            && since.elapsed() < REMEMBERED
        {
            return Ok(Arc::clone(addresses));
        }
        *answer = None;
        let addresses: Arc<[IpAddr]> = ask().await?.into();
        *answer = Some((Instant::now(), Arc::clone(&addresses)));
        Ok(addresses)
    }

    fn place(&self, name: &str) -> Arc<tokio::sync::Mutex<Answer>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= NAMES && !known.contains_key(name) {
            let counts = |answer: &Arc<tokio::sync::Mutex<Answer>>| {
                let fresh = |answer: &Answer| answer.as_ref().is_some_and(|(since, _)| since.elapsed() < REMEMBERED);
                answer.try_lock().map_or(true, |answer| fresh(&answer))
            };
            known.retain(|_, answer| counts(answer));
            if known.len() >= NAMES {
                known.clear();
            }
        }
        Arc::clone(known.entry(name.into()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));

    #[tokio::test]
    async fn many_who_ask_together_and_soon_after_have_the_resolver_asked_once() {
        let (names, asked) = (Names::default(), AtomicUsize::new(0));
        let ask = || async {
            asked.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok(vec![ADDRESS])
        };
        let together = futures_util::future::join_all((0..64).map(|_| names.addresses("example.org", ask))).await;
        let later = names.addresses("example.org", ask).await;

        assert!(together.into_iter().chain([later]).all(|answer| *answer.unwrap() == [ADDRESS]));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_failure_is_not_remembered() {
        let names = Names::default();
        let failed = names.addresses("example.org", || async { Err(io::ErrorKind::TimedOut.into()) }).await;
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::TimedOut);

        assert_eq!(*names.addresses("example.org", || async { Ok(vec![ADDRESS]) }).await.unwrap(), [ADDRESS]);
    }

    #[tokio::test]
    async fn no_more_than_so_many_names_are_kept() {
        let names = Names::default();
        for number in 0..3 * NAMES {
            names.addresses(&format!("host-{number}.example.org"), || async { Ok(vec![ADDRESS]) }).await.unwrap();
        }
        assert!(names.known.lock().unwrap().len() <= NAMES);
    }
}
