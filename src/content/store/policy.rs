//! Which objects may be evicted to make room for another.

use std::time::{Duration, SystemTime};

/// Rule for which objects may be evicted to make room for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// Any object, the least recently used first.
    Any,
    /// Only what was last used before this moment; a fiftieth of the quota stays free too.
    UnusedSince(Moment),
}

/// A moment as the LRU index counts it: microseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub(super) u64);

impl Moment {
    /// This moment.
    pub fn now() -> Moment {
        Moment::at(SystemTime::now())
    }

    /// The moment `time` before now.
    pub fn ago(time: Duration) -> Moment {
        Moment::at(SystemTime::now().checked_sub(time).unwrap_or(SystemTime::UNIX_EPOCH))
    }

    pub(super) fn at(time: SystemTime) -> Moment {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Moment(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }
}

impl EvictionPolicy {
    /// Objects that were last used at this moment or later are spared.
    pub(super) fn spared_since(self) -> Moment {
        match self {
            EvictionPolicy::Any => Moment(u64::MAX),
            EvictionPolicy::UnusedSince(since) => since,
        }
    }
}
