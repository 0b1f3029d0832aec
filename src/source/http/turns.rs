//! Whose turn it is: a bound on what is under way at each host.

use super::awaited::{Priority, Requester};
use super::places::{Place, Places};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A bound for each host on how much is under way there at once, shared out between processes. Only hosts at which something is are
/// kept.
pub struct Turns {
    at_once: usize,
    hosts: Mutex<HashMap<Box<str>, Arc<Places>>>,
}

impl Turns {
    /// No host has anything under way; each may have `at_once`.
    pub fn new(at_once: usize) -> Turns {
        Turns { at_once, hosts: Mutex::default() }
    }

    /// Waits for a turn of `requester` at `authority`, which lasts as long as what is returned.
    pub async fn take(&self, authority: &str, requester: Requester) -> Place {
        let turns = {
            let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever waits for a turn or has one holds the host's places as well.
            hosts.retain(|_, turns| Arc::strong_count(turns) > 1);
            Arc::clone(hosts.entry(authority.into()).or_insert_with(|| Places::new(self.at_once, 0)))
        };
        turns.take(Priority::By(requester)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const ASKER: Requester = Requester(7);

    #[tokio::test]
    async fn a_host_whose_turns_are_all_taken_holds_up_nobody_elses() {
        let turns = Turns::new(2);
        let taken = [turns.take("dead", ASKER).await, turns.take("dead", ASKER).await];

        assert!(turns.take("dead", ASKER).now_or_never().is_none());
        assert!(turns.take("alive", ASKER).now_or_never().is_some());

        drop(taken);
        assert!(turns.take("dead", ASKER).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_process_that_has_no_turn_comes_before_all_that_wait_of_one_that_has() {
        let turns = Turns::new(2);
        let mut taken = vec![turns.take("host", ASKER).await, turns.take("host", ASKER).await];
        let mut many: Vec<_> = (0..8).map(|_| Box::pin(turns.take("host", ASKER))).collect();
        assert!(many.iter_mut().all(|one| one.now_or_never().is_none()));
        let mut lone = Box::pin(turns.take("host", Requester(8)));
        assert!((&mut lone).now_or_never().is_none());

        taken.pop();

        assert!((&mut lone).now_or_never().is_some());
    }

    #[tokio::test]
    async fn hosts_at_which_nothing_is_under_way_are_forgotten() {
        let turns = Turns::new(1);
        let kept = turns.take("a", ASKER).await;
        for number in 0..100 {
            turns.take(&number.to_string(), ASKER).await;
        }

        assert!(turns.hosts.lock().unwrap().len() <= 2, "all but the last and the one under way are gone");
        drop(kept);
    }
}
