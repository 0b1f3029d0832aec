//! Stale lists speak for an earlier time than what is shown: a cache serves them, or the Source publishes them.

use super::read_set::ReadSet;
use super::{Step, SyncError, Synchronizer};
use crate::catalog::SetId;
use crate::document::Timestamp;
use crate::source::crawl::Crawled;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// No cache is stale for longer: lists served all that time are what the Source publishes.
pub(super) const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The sets whose lists are older than what is shown of them: what these speak for, and since when they have been served without a
/// break. Pure: time is passed in, of a monotonic clock.
#[derive(Debug, Default)]
pub(super) struct StaleLists(HashMap<SetId, (Timestamp, Instant)>);

impl StaleLists {
    /// The lists of all sets were read: these are `older`, each with what they speak for, and those of no other set.
    fn read(&mut self, older: impl Iterator<Item = (SetId, Timestamp)>, now: Instant) {
        let before = std::mem::take(&mut self.0);
        let since = |set, at| before.get(&set).filter(|(before, _)| *before == at).map_or(now, |(_, since)| *since);
        self.0 = older.map(|(set, at)| (set, (at, since(set, at)))).collect();
    }

    /// The lists of this set are not older than what is shown.
    pub fn caught_up(&mut self, set: SetId) {
        self.0.remove(&set);
    }

    /// Whether the lists of this set, read last at `now`, are what the Source publishes.
    fn is_believed(&self, set: SetId, now: Instant) -> bool {
        self.0.get(&set).is_some_and(|(_, since)| now.saturating_duration_since(*since) >= LONGEST)
    }

    /// As if this much time had gone by.
    #[cfg(test)]
    pub fn age(&mut self, by: Duration) {
        self.0.values_mut().for_each(|(_, since)| *since -= by);
    }
}

impl Synchronizer {
    /// Notes which of the lists that were `read`, those of all sets, are older than what is shown, where that is whole and of today.
    /// The sets of which they are believed all the same, each with the time its lists speak for; an error where some are not.
    pub(super) fn stale_lists(&mut self, step: &Step, read: &[ReadSet]) -> Result<Vec<(SetId, Timestamp)>, SyncError> {
        let is_whole = !step.is_first_tree && self.config.as_of.is_none() && !self.catalog.is_distrusted();
        let older = |it: &ReadSet| {
            let (at, shown) = step.position.is_newer_than(it)?;
            let location = it.walks.iter().flat_map(Crawled::documents).next()?.location.clone();
            Some((it.id, at, SyncError::OlderList { location, at, shown }))
        };
        let older: Vec<_> = read.iter().filter(|_| is_whole).filter_map(older).collect();
        let now = Instant::now();
        self.stale_lists.read(older.iter().map(|(set, at, _)| (*set, *at)), now);
        let believed = |(set, at, why)| if self.stale_lists.is_believed(set, now) { Ok((set, at)) } else { Err(why) };
        older.into_iter().map(believed).collect()
    }
}
