//! How many files may be fetched ahead at once, for each host by itself: one that does not answer holds up nobody else's.

use crate::content::prefetch::Host;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Fetches under way at a host of which nothing is known.
const FIRST: usize = 8;

/// Fetches under way of all hosts together, in those that one may have.
const HOSTS_AT_ONCE: usize = 4;

/// Hosts remembered while nothing is under way there.
const HOSTS: usize = 64;

/// Fetches under way, by host.
pub(super) struct Places {
    hosts: HashMap<Host, Asked>,
    /// Of all hosts.
    under_way: usize,
    /// The most for one host.
    at_once: usize,
}

/// One host.
#[derive(Clone, Copy)]
struct Asked {
    under_way: usize,
    /// That may be under way, as the host bore them when that was learnt last.
    places: usize,
}

impl Places {
    /// Nothing is under way; one host may have `at_once` fetches at most.
    pub(super) fn new(at_once: usize) -> Places {
        Places { hosts: HashMap::new(), under_way: 0, at_once }
    }

    /// Whether something is known of a host.
    pub(super) fn know(&self, host: Host) -> bool {
        self.hosts.contains_key(&host)
    }

    /// A host bears so many fetches that nobody waits for. One is left at least: with none nobody would see that it recovers.
    pub(super) fn learn(&mut self, host: Host, places: usize) {
        let at_once = self.at_once;
        self.of(host).places = places.clamp(1, at_once.max(1));
    }

    /// Whether one more may be fetched.
    pub(super) fn are_left(&self, host: Host) -> bool {
        let is_free = |asked: &Asked| asked.under_way < asked.places;
        self.under_way < self.at_once * HOSTS_AT_ONCE && self.hosts.get(&host).is_none_or(is_free)
    }

    /// A fetch begins.
    pub(super) fn take(&mut self, host: Host) {
        self.under_way += 1;
        self.of(host).under_way += 1;
    }

    /// A fetch has ended.
    pub(super) fn give_back(&mut self, host: Host) {
        self.under_way = self.under_way.saturating_sub(1);
        let asked = self.of(host);
        asked.under_way = asked.under_way.saturating_sub(1);
    }

    fn of(&mut self, host: Host) -> &mut Asked {
        if self.hosts.len() >= HOSTS && !self.hosts.contains_key(&host) {
            self.hosts.retain(|_, asked| asked.under_way > 0);
        }
        let places = self.at_once.min(FIRST);
        self.hosts.entry(host).or_insert(Asked { under_way: 0, places })
    }
}

/// A fetch under way; its place is given back when it is dropped, also by a panic.
pub(super) struct Taken {
    places: Arc<Mutex<Places>>,
    host: Host,
}

impl Taken {
    /// Of a place at `host` that was taken.
    pub(super) fn of(places: &Arc<Mutex<Places>>, host: Host) -> Taken {
        Taken { places: Arc::clone(places), host }
    }

    pub(super) fn host(&self) -> Host {
        self.host
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).give_back(self.host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_that_panics_gives_its_place_back() {
        let places = Arc::new(Mutex::new(Places::new(64)));
        places.lock().unwrap().learn(ALIVE, 1);
        places.lock().unwrap().take(ALIVE);
        let taken = Taken::of(&places, ALIVE);
        let fetching = std::thread::spawn(move || {
            let _taken = taken;
            panic!("while it is fetched");
        });

        fetching.join().unwrap_err();
        assert!(places.lock().unwrap().are_left(ALIVE));
    }

    const DEAD: Host = Host(1);
    const ALIVE: Host = Host(2);

    #[test]
    fn a_host_whose_places_are_all_taken_leaves_the_others_theirs() {
        let mut places = Places::new(64);
        places.learn(DEAD, 14);
        (0..14).for_each(|_| places.take(DEAD));

        assert!(!places.are_left(DEAD));
        assert!(places.are_left(ALIVE));

        places.give_back(DEAD);
        assert!(places.are_left(DEAD));
    }

    #[test]
    fn all_hosts_together_have_four_times_what_one_may_have() {
        let mut places = Places::new(10);
        for host in 0..4 {
            places.learn(Host(host), usize::MAX);
            (0..10).for_each(|_| places.take(Host(host)));
        }
        assert!(!places.are_left(Host(5)));
        places.give_back(Host(0));
        assert!(places.are_left(Host(5)));
    }

    #[test]
    fn a_host_that_bears_nothing_keeps_one_place_and_the_idle_are_forgotten() {
        let mut places = Places::new(64);
        places.learn(DEAD, 0);
        assert!(places.are_left(DEAD));
        places.take(DEAD);
        assert!(!places.are_left(DEAD));
        (10..1000).for_each(|host| places.learn(Host(host), 1));
        assert!(places.hosts.len() <= HOSTS && places.know(DEAD));
    }
}
