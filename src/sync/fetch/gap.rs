//! The changes that a first tree would lack, before there is one.

use super::remarks::fail_if_missing;
use crate::document::Timestamp;
use crate::source::crawl::Crawled;
use crate::source::zip::Manifest;
use crate::source::{DocumentLocation, Missing, Source};
use crate::sync::changes::ChangeState;
use crate::sync::position::Position;
use crate::sync::read_set::ReadSet;
use crate::sync::{Scope, SyncError, Synchronizer, no_resource_list, offers};
use std::collections::HashMap;

/// The documents of each list, and the manifests of each dump in place of lists.
pub type Walked = HashMap<DocumentLocation, (Crawled, Vec<Manifest>)>;

impl Synchronizer {
    /// The time since when a tree of what was `walked` of `source` would lack changes; the change documents are read for it.
    pub async fn gap_behind(&mut self, source: &Source, mut walked: Walked) -> Result<Option<Timestamp>, SyncError> {
        let mut position = Position::default();
        let sets = position.follow(source);
        let mut read = Vec::with_capacity(sets.len());
        for set in &sets {
            let (walks, manifests): (Vec<_>, Vec<_>) =
                set.list_roots().iter().filter_map(|root| walked.remove(root)).unzip();
            read.push(ReadSet { manifests: manifests.concat(), ..ReadSet::of(set.id, walks) });
        }
        self.date_lists(&position, None, &mut read).await?;
        let (now, mut gap) = (Timestamp::now(), None);
        for it in self.read_changes(&sets, &position, &Scope::Everything).await? {
            let Some(set) = sets.iter().find(|set| set.id == it.set) else { continue };
            let at = read.iter().find(|read| read.id == it.set).and_then(ReadSet::at);
            let it = self.close_gap(set, it, &ChangeState::since(at)).await?;
            let known = it.over(position.known(it.set, &it.root), at, now).lacking(it.lost, now);
            gap = known.missing_since().into_iter().chain(gap).min();
        }
        Ok(gap)
    }

    /// The error of a tree of `source`, of which nothing was read and this is `missing`.
    pub fn nothing_to_show(&self, source: &Source, missing: &[Missing]) -> SyncError {
        let refused = fail_if_missing(&self.config.entry, missing).err();
        refused.unwrap_or_else(|| no_resource_list(&self.config.entry, &offers(source)))
    }
}
