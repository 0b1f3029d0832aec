//! Which objects may be evicted to make room for another.

use super::recency::now;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What may go for the sake of one object; clones share it, as the object may become wanted while it is written.
#[derive(Clone, Debug)]
pub struct Victims {
    /// Only what was last used before, in microseconds since the epoch; `u64::MAX`: anything.
    since: Arc<AtomicU64>,
}

/// A moment as the records of last use count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// This one.
    pub fn now() -> Moment {
        Moment(now())
    }

    /// One so long past.
    pub fn ago(time: Duration) -> Moment {
        Moment(now().saturating_sub(u64::try_from(time.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl Victims {
    /// Whatever was used least recently.
    pub fn any() -> Victims {
        Victims { since: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    /// From now on only what was not used since `moment`, and a little room is left beside.
    pub fn spare_since(&self, moment: Moment) {
        self.since.store(moment.0, Ordering::Relaxed);
    }

    /// From now on anything.
    pub fn spare_nothing(&self) {
        self.since.store(u64::MAX, Ordering::Relaxed);
    }

    pub(super) fn since(&self) -> u64 {
        self.since.load(Ordering::Relaxed)
    }

    pub(super) fn spares(&self) -> bool {
        self.since() != u64::MAX
    }
}
