//! Whose turn it is: a bound on what is under way at each host.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A bound for each host on how much is under way there at once. Only hosts at which something is are kept.
pub(in crate::content) struct Turns {
    at_once: usize,
    hosts: Mutex<HashMap<Box<str>, Arc<Semaphore>>>,
}

impl Turns {
    /// No host has anything under way; each may have `at_once`.
    pub(in crate::content) fn new(at_once: usize) -> Turns {
        Turns { at_once, hosts: Mutex::default() }
    }

    /// Waits for a turn at `authority`, which lasts as long as what is returned.
    pub(super) async fn take(&self, authority: &str) -> Option<OwnedSemaphorePermit> {
        let turns = {
            let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever waits or has a turn holds the host's semaphore as well.
            hosts.retain(|_, turns| Arc::strong_count(turns) > 1);
            Arc::clone(hosts.entry(authority.into()).or_insert_with(|| Arc::new(Semaphore::new(self.at_once))))
        };
        // Acquiring fails on a closed semaphore only, and these never are.
        turns.acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn a_host_whose_turns_are_all_taken_holds_up_nobody_elses() {
        let turns = Turns::new(2);
        let taken = [turns.take("dead").await, turns.take("dead").await];

        assert!(turns.take("dead").now_or_never().is_none());
        assert!(turns.take("alive").now_or_never().flatten().is_some());

        drop(taken);
        assert!(turns.take("dead").now_or_never().flatten().is_some());
    }

    #[tokio::test]
    async fn hosts_at_which_nothing_is_under_way_are_forgotten() {
        let turns = Turns::new(1);
        let kept = turns.take("a").await;
        for number in 0..100 {
            turns.take(&number.to_string()).await;
        }

        assert!(turns.hosts.lock().unwrap().len() <= 2, "all but the last and the one under way are gone");
        drop(kept);
    }
}
