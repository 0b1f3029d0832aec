//! Stale lists speak for an earlier time than what is shown: a cache serves them, or the Source publishes them.

use super::read_set::ReadSet;
use super::refresh::Step;
use super::status::FailedDocument;
use super::{SyncError, Synchronizer};
use crate::catalog::SetId;
use crate::document::Timestamp;
use crate::platform::error_chain::chain;
use crate::source::crawl::Crawled;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// No cache is stale for longer: lists served all that time are what the Source publishes.
pub(super) const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The sets whose lists are older than what is shown of them: the time of these, and since when they have been served without a break.
pub(super) type StaleLists = HashMap<SetId, (Timestamp, Instant)>;

impl Synchronizer {
    /// The sets whose lists are merged although they are older than what is shown, each with the time that its lists speak for. `None`
    /// where nothing is merged: the tree `is_same`, or some lists are left out as older. Without them there is no tree that
    /// `decides_again`, which is an error. Only a tree that is whole is compared.
    pub(super) fn believe(
        &mut self,
        step: &Step,
        read: &[ReadSet],
        is_same: bool,
    ) -> Result<Option<Vec<(SetId, Timestamp)>>, SyncError> {
        let is_whole = !step.is_first_tree && !self.catalog.is_distrusted();
        let (now, served) = (Instant::now(), std::mem::take(&mut self.stale_lists));
        let (mut believed, mut older) = (Vec::new(), None);
        for it in read.iter().filter(|_| is_whole) {
            let Some((at, shown)) = step.position.is_newer_than(it) else { continue };
            let Some(list) = it.walks.iter().flat_map(Crawled::documents).next() else { continue };
            let since = served.get(&it.id).filter(|(time, _)| *time == at).map_or(now, |(_, since)| *since);
            self.stale_lists.insert(it.id, (at, since));
            if now.saturating_duration_since(since) >= LONGEST {
                believed.extend(it.at().map(|at| (it.id, at)));
            } else {
                older.get_or_insert((&list.location, at, shown));
            }
        }
        let Some((location, at, shown)) = older.filter(|_| !is_same) else {
            return Ok(Some(believed).filter(|_| !is_same));
        };
        let older = SyncError::OlderList { location: location.clone(), at, shown };
        if step.decides_again {
            return Err(older);
        }
        tracing::warn!("a Resource List is ignored: {}", chain(&older));
        self.schedule.ignored(location, chain(&older));
        self.note_failure(FailedDocument::of(&older));
        Ok(None)
    }
}
