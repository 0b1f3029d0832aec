//! Baseline synchronization: fetches the lists of every set, which together state what exists.

use super::list_parser::ListParser;
use super::remarks::explained;
use crate::catalog::{Naming, SetId};
use crate::document::{Entry, Header};
use crate::source::crawl::{Asking, Child, Crawled, Leaf};
use crate::source::{Missing, Source};
use crate::sync::followed_set::FollowedSet;
use crate::sync::position::Position;
use crate::sync::read_set::{ParsedLists, ReadSet};
use crate::sync::selection::plan::{ChoicePlan, Chooser};
use crate::sync::{Scope, SyncError, Synchronizer};
use std::sync::{Arc, Mutex, PoisonError};

impl Synchronizer {
    /// Fetches the lists of all `sets`. `None` if those of `scope` are the lists that `before`, the position of the current
    /// revision, was made of, and they are not needed all the same. With `naming` lists are parsed while others are fetched.
    pub(in crate::sync) async fn read_lists(
        &mut self,
        sets: &[FollowedSet],
        scope: &Scope,
        before: Option<&Position>,
        naming: Option<&Naming>,
        are_needed: bool,
    ) -> Result<Option<Vec<ReadSet>>, SyncError> {
        let is_in_scope =
            |set: &FollowedSet| set.list_roots().iter().any(|list| scope.wants(list, &self.fetch.schedule));
        let (first, others): (Vec<_>, Vec<_>) = sets.iter().partition(|set| is_in_scope(set));
        let mut read = Vec::with_capacity(sets.len());
        for set in first {
            read.push(self.read_set(set, sets, scope, before, naming).await?);
        }
        // Dumps that state what exists are asked for with the lists.
        let is_same = |it: &ReadSet| before.is_some_and(|before| before.is_made_of(it) && !before.follows_dumps(it.id));
        if !are_needed && *scope != Scope::Everything && read.iter().all(is_same) {
            return Ok(None);
        }
        for set in others {
            read.push(self.read_set(set, sets, scope, before, naming).await?);
        }
        read.sort_by_key(|it| sets.iter().position(|set| set.id == it.id));
        let is_nothing = read.iter().flat_map(|it| &it.walks).all(|walked| walked.documents().next().is_none());
        if let Some(cause) = read.iter_mut().filter(|_| is_nothing).find_map(|it| it.refused.take()) {
            return Err(cause.into());
        }
        Ok(Some(read))
    }

    /// Fetches the lists of one of the sets. A document that is gone for good, or is not a list, counts as missing.
    async fn read_set(
        &mut self,
        set: &FollowedSet,
        sets: &[FollowedSet],
        scope: &Scope,
        before: Option<&Position>,
        naming: Option<&Naming>,
    ) -> Result<ReadSet, SyncError> {
        let (mut walks, mut refused) = (Vec::new(), None);
        // Where links choose, all lists are read once before they are chosen from.
        let parser = naming.filter(|_| !self.config.selection.follows_links()).map(|naming| {
            let chooser = ChoicePlan::new(&self.config.selection, naming).finish();
            Mutex::new(self.list_parser(set.id, naming, chooser.into()))
        });
        let reached = |leaf: &Leaf| {
            if let Some(parser) = parser.as_ref().filter(|_| leaf.lists_resources()) {
                parser.lock().unwrap_or_else(PoisonError::into_inner).take(leaf.document.clone());
            }
        };
        for list in set.list_roots() {
            let poll = self.current.began;
            let is_doubted = self.fetch.absence.is_doubted();
            let mut children = std::mem::take(&mut self.fetch.children);
            // A list that is named is asked, even if its index says that it is unchanged.
            let choice = |_: &Header, entry: &Entry| {
                if is_doubted || scope.names(&entry.loc) { Child::Ask } else { children.choose(entry, poll) }
            };
            let asking = Asking {
                choice: &choice,
                tolerates_failure: false,
                // A cache gives parts of different times, and the same ones each time.
                past_caches: is_doubted || scope.is_past_caches(),
                is_patient: true,
                reached: &reached,
            };
            let walked = self.fetch.walk(&self.current.progress, list, asking).await;
            if let Ok(walked) = &walked {
                children.note(walked, poll);
            }
            self.fetch.children = children;
            walks.push(match walked {
                Ok(walked) => walked,
                Err(cause) if cause.is_gone() || cause.is_no_list() => {
                    let missing = Missing { location: list.clone(), entries: 0, why: cause.why() };
                    refused.get_or_insert(cause);
                    Crawled::without(missing)
                }
                Err(cause) => return Err(explained(cause, list, set, sets, &self.config.entry).into()),
            });
        }
        let mut read = ReadSet { refused, ..ReadSet::of(set.id, walks) };
        if let Some(parser) = parser {
            let parser = parser.into_inner().unwrap_or_else(PoisonError::into_inner);
            read.parsed = Some(parser.finish(&self.current.progress).await?);
        }
        // Where only packages state the time, or the lists' newest date, they are not read yet.
        let is_dated = before.is_some_and(|before| before.is_made_of(&read)) || read.stated_at().is_some();
        if is_dated && before.is_some_and(|before| before.is_newer_than(&read).is_none()) {
            self.stale_lists.remove(&set.id);
        }
        Ok(read)
    }

    /// Finds the newest `lastmod` of each set whose lists do not state which time they speak for. Other lists than `before` are parsed for
    /// that once and for all under `naming`, unless the links of all lists choose among their entries.
    pub(in crate::sync) async fn date_lists(
        &self,
        before: &Position,
        naming: Option<&Naming>,
        read: &mut [ReadSet],
    ) -> Result<(), SyncError> {
        for it in read {
            if it.newest.is_some() || it.stated_at().is_some() {
                continue;
            }
            if before.is_made_of(it) {
                it.newest = before.set(it.id).and_then(|set| set.at);
                continue;
            }
            let parses = it.parsed.is_none() && !self.config.selection.follows_links();
            if let Some(naming) = naming.filter(|_| parses) {
                let chooser = ChoicePlan::new(&self.config.selection, naming).finish();
                it.parsed = Some(self.parse_lists(it, naming, chooser.into()).await?);
            }
            let newest = match &it.parsed {
                Some(parsed) => parsed.newest,
                None => {
                    let (spool, lists) = (self.fetch.spool.clone(), it.list_documents());
                    tokio::task::spawn_blocking(move || spool.newest_lastmod(&lists)).await??
                }
            };
            it.newest = before.newest_of(it, newest);
        }
        Ok(())
    }

    /// A parser of the lists of `set`.
    fn list_parser(&self, set: SetId, naming: &Naming, chooser: Arc<Chooser>) -> ListParser {
        ListParser::new(&self.catalog, &self.fetch.spool, set, (naming, chooser), self.tuning.least_part)
    }

    /// Parses the lists of a set.
    pub(in crate::sync) async fn parse_lists(
        &self,
        read: &ReadSet,
        naming: &Naming,
        chooser: Arc<Chooser>,
    ) -> Result<ParsedLists, SyncError> {
        let mut parser = self.list_parser(read.id, naming, chooser);
        read.list_documents().into_iter().for_each(|list| parser.take(list));
        parser.finish(&self.current.progress).await
    }
}

/// The missing parts of the lists: absence from the rest proves no deletion.
pub fn missing(source: &Source, sets: &[FollowedSet], read: &[ReadSet]) -> Vec<Missing> {
    let mut missing = source.missing.clone();
    for it in read {
        let lists = sets.iter().filter(|set| set.id == it.id).flat_map(|set| set.list_roots());
        missing.extend(it.missing.iter().cloned());
        for (list, walked) in lists.zip(&it.walks) {
            missing.extend(walked.lacking(list));
        }
    }
    missing
}
