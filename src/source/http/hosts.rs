//! The hosts that are asked, each remembered with its state while that matters.

use super::host::{Host, now};
use super::limiter::{LimitStanding, Limiter};
use super::metrics::HostTraffic;
use crate::platform::descriptors;
use lru::LruCache;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Hosts that are remembered. Past them the one asked least recently is forgotten, of those at rest.
const HOSTS: usize = 1024;

/// Hosts whose traffic is reported by name. Further ones are counted together, so that the numbers stay few.
const NAMED: usize = 64;

/// Requests to a store at a time, however few the Source bears. A body that is read takes one, and a look bears no wait of seconds.
const CONNECTIONS_TO_STORE: usize = 64;

/// The hosts that were asked, by `HOST[:PORT]`.
pub(super) struct Hosts {
    rate: Option<f64>,
    connections: usize,
    known: Mutex<LruCache<Box<str>, Arc<Host>>>,
}

impl Hosts {
    pub(super) fn new(rate: Option<f64>, connections: usize) -> Hosts {
        let known = Mutex::new(LruCache::unbounded());
        Hosts { rate, connections: connections.max(1), known }
    }

    pub(super) fn connections(&self) -> usize {
        self.connections
    }

    fn known(&self) -> MutexGuard<'_, LruCache<Box<str>, Arc<Host>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn host(&self, authority: &str) -> Arc<Host> {
        self.host_with(authority, self.rate, self.connections)
    }

    /// Host of a store that the person named. The limits are meant for the Source: they apply to a store only on the same host.
    pub(super) fn store(&self, authority: &str) -> Arc<Host> {
        let connections = descriptors::share(CONNECTIONS_TO_STORE, 8);
        self.host_with(authority, None, self.connections.max(connections))
    }

    fn host_with(&self, authority: &str, rate: Option<f64>, connections: usize) -> Arc<Host> {
        let mut known = self.known();
        if let Some(host) = known.get(authority) {
            return Arc::clone(host);
        }
        if known.len() >= HOSTS {
            let now = now();
            // A request that waits or is in flight has a reference. No other can be taken while `known` is locked.
            let is_idle = |host: &Arc<Host>| Arc::strong_count(host) == 1 && host.state().limiter.is_at_rest(now);
            let idle = known.iter().rev().find(|(_, host)| is_idle(host)).map(|(authority, _)| authority.clone());
            idle.map(|authority| known.pop(&authority));
        }
        let limiter = Limiter::new(rate, connections);
        let host = Arc::new(Host::new(authority, known.len() < NAMED, limiter));
        known.put(authority.into(), Arc::clone(&host));
        host
    }

    /// The last failure of a host that has not answered since, or the reason why a document is requested again.
    pub(super) fn unanswered(&self) -> Option<Box<str>> {
        self.known().iter().find_map(|(_, host)| {
            let state = host.state();
            state.limiter.cause().or(state.repeated_for.as_deref()).map(Into::into)
        })
    }

    /// Hosts that asked for a pause are asked at once.
    pub(super) fn end_pauses(&self) {
        for (_, host) in self.known().iter() {
            host.state().limiter.end_pauses(now());
            host.grant();
        }
    }

    /// The requests to every host, and the state of each, those asked most first.
    pub(super) fn traffic(&self) -> Vec<HostTraffic> {
        let (mut named, mut others, now) = (Vec::new(), HostTraffic::default(), now());
        for (_, host) in self.known().iter() {
            let state = host.state();
            if host.is_named {
                let (failures_in_a_row, opens_in) = state.limiter.failures(now);
                let LimitStanding { limit, length: window, remaining, ends_in: resets_in } =
                    state.limiter.standing(now);
                named.push(HostTraffic {
                    failures_in_a_row,
                    opens_in,
                    paused_for: state.limiter.longest_pause(now),
                    limit,
                    window,
                    remaining,
                    resets_in,
                    paced_for: state.limiter.paced(now).map(|until| until.saturating_duration_since(now)),
                    waiting_readers: state.limiter.waiting_readers() as u64,
                    ..state.traffic.clone()
                });
            } else {
                others.add(&state.traffic);
            }
        }
        named.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.host.cmp(&b.host)));
        named.extend(Some(others).filter(|others| others.requests > 0));
        named
    }
}

#[cfg(test)]
mod tests {
    use super::super::Request;
    use super::*;
    use crate::document::Uri;
    use std::time::Duration;

    #[test]
    fn each_host_is_counted_by_itself_and_too_many_together() {
        let hosts = Hosts::new(None, 1);
        for number in 0..NAMED + 10 {
            hosts.host(&format!("h{number}")).state().traffic.requests += 1;
        }
        hosts.host("h3").state().traffic.requests += 1;

        let counted = hosts.traffic();

        assert_eq!(counted.len(), NAMED + 1);
        assert_eq!((counted[0].host.as_deref(), counted[0].requests), (Some("h3"), 2));
        assert_eq!((&counted[NAMED].host, counted[NAMED].requests), (&None, 10));
    }

    #[test]
    fn the_host_asked_least_recently_is_forgotten() {
        let hosts = Hosts::new(None, 1);
        let first = hosts.host("h0");
        for number in 0..HOSTS + 10 {
            hosts.host(&format!("h{number}"));
            hosts.host("h0");
        }
        assert!(Arc::ptr_eq(&first, &hosts.host("h0")) && hosts.known().len() == HOSTS);
    }

    /// A host that is forgotten would be asked at once, at full speed, and with all permits.
    #[test]
    fn no_host_is_forgotten_that_is_not_at_rest() {
        let (hosts, hour) = (Hosts::new(None, 1), Duration::from_secs(3600));
        let uri = Uri::parse("http://example.org/").unwrap();
        let request = Request::get(uri.clone(), hour);
        hosts.host("paused").refused(&request, 429, Some(hour));
        hosts.host("list").refused(&Request { is_document: true, ..request }, 503, Some(hour));
        hosts.host("slow").slow_down(hour);
        hosts.host("rested").slow_down(Duration::ZERO);
        for _ in 0..100 {
            hosts.host("broken").state().limiter.failed(&uri, false, false, String::new(), now());
        }
        let asked = hosts.host("asked");

        for number in 0..HOSTS + 10 {
            hosts.host(&format!("h{number}"));
        }

        let known = hosts.known();
        assert!(["paused", "list", "slow", "broken", "asked"].iter().all(|name| known.contains(*name)));
        assert!(!known.contains("rested") && !known.contains("h0") && known.len() == HOSTS);
        drop((known, asked));
    }
}
