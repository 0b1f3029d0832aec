//! Fetches ahead of every reader: into the cache folder alone, and only while nobody's read needs what they would take.

use super::flight::{Flight, Held};
use super::{Joined, Joining};
use crate::content::disk::Moment;
use crate::content::{Content, ContentError, Wanted};
use fuser::INodeNo;
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// What [`Content::prefetch`] found or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetched {
    /// It was in the cache.
    Here,
    /// It is there now, and has so many octets.
    Fetched(u64),
}

impl Content {
    /// Brings the whole of `wanted` into the cache folder, verified as for a reader.
    ///
    /// Its priority is the lowest there is. One host is asked for half of its connections' worth of such fetches at once, so that
    /// reads find a place; only what was last used before `begun` is evicted for it, and where that makes no room
    /// [`ContentError::is_full`] tells, rather than that bytes go past the cache. Whatever `begun` is, it is one moment for
    /// all that belongs together: what one such fetch brought does not go for the next. A read of the same object joins
    /// the fetch and makes it its own. Dropped, the fetch ends unless somebody else waits for it; what has come is kept
    /// where it can be gone on with.
    pub async fn prefetch(self: &Arc<Self>, wanted: &Wanted, begun: Moment) -> Result<Prefetched, ContentError> {
        if let Some(Held::Disk(_)) = self.find(wanted) {
            return Ok(Prefetched::Here);
        }
        let _turn = self.ahead.take(wanted.uri.authority()).await;
        let flight = match self.join(wanted, Joining::Ahead(begun))? {
            Joined::Here(Held::Disk(_)) => return Ok(Prefetched::Here),
            Joined::Here(_) => return Err(self.no_room()),
            Joined::UnderWay(flight) => flight,
        };
        let waiting = Waiting { content: self, ino: wanted.ino, flight };
        match waiting.landed(wanted).await? {
            Held::Disk(object) => Ok(Prefetched::Fetched(object.length())),
            Held::Memory(_) | Held::Passed(_) => Err(self.no_room()),
        }
    }

    /// Octets that have come of a fetch under way.
    pub fn arrived(&self, ino: INodeNo) -> u64 {
        let flight = self.flights.lock().unwrap_or_else(PoisonError::into_inner).get(&ino).cloned();
        flight.map_or(0, |flight| flight.frontier())
    }

    fn no_room(&self) -> ContentError {
        self.unreadable(io::ErrorKind::StorageFull.into())
    }
}

/// One prefetch waiting for a flight.
struct Waiting<'c> {
    content: &'c Arc<Content>,
    ino: INodeNo,
    flight: Arc<Flight>,
}

impl Waiting<'_> {
    /// Waits for the end, as long as something arrives.
    async fn landed(&self, wanted: &Wanted) -> Result<Held, ContentError> {
        loop {
            let changed = self.flight.changed().notified();
            tokio::pin!(changed);
            // Registered before the look: what happens between the two is not missed.
            changed.as_mut().enable();
            if let Some(outcome) = self.flight.outcome() {
                return outcome;
            }
            let deadline = self.flight.moved() + self.content.config.stall;
            if Instant::now() >= deadline {
                return Err(ContentError::Stalled { uri: wanted.uri.clone() });
            }
            // Whether it passed or something changed, the next look tells.
            let _ = tokio::time::timeout_at(deadline.into(), changed).await;
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // Under the lock: who looks for the flight finds it with somebody waiting, or not at all.
        let mut flights = self.content.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let is_left = self.flight.urgency().leave();
        let is_it = flights.get(&self.ino).is_some_and(|flight| Arc::ptr_eq(flight, &self.flight));
        if is_left && is_it {
            flights.remove(&self.ino);
            drop(flights);
            self.flight.urgency().give_up();
        }
    }
}
