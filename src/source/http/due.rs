//! When the head of an answer is due: waiting for a place at a host that is busy answering others is not the host's silence.

use super::Request;
use super::awaited::Priority;
use super::limits::Host;
use super::places::Place;
use futures_util::FutureExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often who waits for a place looks whether the host does anything for those who have one: more often where less time is left.
const LOOK: Duration = Duration::from_secs(1);

/// No timer tells shorter times.
const TICK: Duration = Duration::from_millis(1);

/// The deadline of one request, put off by the time that a busy host has held it up: at most by half of the time it had.
pub(super) struct Due {
    latest: Mutex<Instant>,
    last: Instant,
}

impl Due {
    /// As the request says.
    pub(super) fn of(request: &Request) -> Due {
        let budget = request.deadline.saturating_duration_since(Instant::now());
        Due { latest: Mutex::new(request.deadline), last: request.deadline + budget / 2 }
    }

    /// The deadline as it is now; later it may be later.
    pub(super) fn latest(&self) -> Instant {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `work` comes to; `None` where the deadline passes first.
    pub(super) async fn within<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            let latest = self.latest();
            match tokio::time::timeout_at(latest.into(), &mut work).await {
                Ok(done) => return Some(done),
                Err(_) if self.latest() == latest => return None,
                // Put off meanwhile.
                Err(_) => {}
            }
        }
    }

    /// A place among the host's connections. While others get answers there, the wait does not count, up to half of the time there was.
    pub(super) async fn place(&self, host: &Host, is_document: bool, awaited: Priority) -> Place {
        let place = host.place(is_document, awaited);
        tokio::pin!(place);
        // Mostly there is one, and no timer is needed.
        if let Some(place) = place.as_mut().now_or_never() {
            return place;
        }
        let (mut before, mut since) = (host.counters.progress(), Instant::now());
        loop {
            // Before the deadline, which is put off by nobody once it has passed.
            let look = LOOK.min(self.latest().saturating_duration_since(Instant::now()) / 4).max(TICK);
            let found = tokio::time::timeout(look, &mut place).await;
            let (progress, now) = (host.counters.progress(), Instant::now());
            if progress != before {
                let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
                *latest = (*latest + now.saturating_duration_since(since)).min(self.last.max(*latest));
                drop(latest);
                (before, since) = (progress, now);
            }
            if let Ok(place) = found {
                return place;
            }
        }
    }
}
