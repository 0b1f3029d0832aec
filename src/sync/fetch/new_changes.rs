//! New changes by their places in the change documents. Their entries are read again when they are applied, so that however many
//! they are, only those of one batch lie in memory.

use super::read_changes::{ChangeStates, Origin, ReadChanges};
use crate::catalog::SetId;
use crate::document::{Change, Limits, Timestamp, Uri};
use crate::source::DocumentLocation;
use crate::source::documents::DocumentCache;
use crate::sync::SyncError;
use crate::sync::changes::{ChangeState, NewChange, Settled, SettledChange, is_change};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Changes that a commit applies.
#[derive(Debug, Default)]
pub struct News {
    /// Of each resource of each set the last, in ascending order of time.
    pub changes: Vec<(SetId, NewChange)>,
    /// The state of each root that was read; nothing in a batch that is not the last.
    pub states: ChangeStates,
    /// Whether no further batch follows.
    pub is_last: bool,
}

/// The new changes that one look has found, by place.
#[derive(Debug, Default)]
pub struct NewChanges {
    documents: Vec<(SetId, Option<Origin>)>,
    /// Of each resource of each set the last, in ascending order of time; their documents are those of [`NewChanges::documents`].
    changes: Vec<SettledChange>,
    /// How many of them were handed out.
    applied: usize,
    states: ChangeStates,
    /// See [`ReadChanges::digests`].
    pub digests: Vec<(DocumentLocation, u64)>,
}

impl NewChanges {
    /// What is new in `read`, each with the state of its root.
    pub fn of(read: Vec<(ChangeState, ReadChanges)>, now: Timestamp) -> NewChanges {
        let mut new = NewChanges::default();
        let mut last: HashMap<(SetId, u64), SettledChange> = HashMap::new();
        for (state, ReadChanges { set, root, documents, unread, origins, lost, digests, .. }) in read {
            let Settled { documents, changes, state } = state.settle(documents, &unread, now);
            let before = new.documents.len();
            new.documents.extend(documents.iter().map(|location| (set, origins.get(location).cloned())));
            for change in changes {
                let change = SettledChange { document: before + change.document, ..change };
                let known = last.entry((set, change.resource)).or_insert(change);
                if known.time <= change.time {
                    *known = change;
                }
            }
            new.states.push((set, root, state.lacking(lost)));
            new.digests.extend(digests);
        }
        new.changes = last.into_values().collect();
        new.changes.sort_unstable_by_key(|change| (change.time, change.document, change.rank));
        new
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The state of each root that was read.
    pub fn states(&self) -> &ChangeStates {
        &self.states
    }

    /// The deletions that count only where their resources say so themselves.
    pub fn doubtful(&self) -> Vec<SettledChange> {
        self.changes.iter().filter(|change| change.is_doubtful).copied().collect()
    }

    /// The resources of these changes.
    pub fn resources(
        &self,
        changes: &[SettledChange],
        spool: &DocumentCache,
        limits: Limits,
    ) -> Result<Vec<Uri>, SyncError> {
        let mut uris = Vec::with_capacity(changes.len());
        self.read(changes, spool, limits, &mut |_, _, change| {
            uris.push(change.entry.loc);
            Ok(())
        })?;
        Ok(uris)
    }

    /// Of the doubtful deletions those of `gone` count and the others do not; `unanswered` are asked about at the next look.
    pub fn answered(&mut self, gone: &HashSet<u64>, unanswered: &HashSet<u64>) {
        self.changes.retain(|change| !change.is_doubtful || gone.contains(&change.resource));
        self.states.iter_mut().for_each(|(_, _, state)| state.answered(unanswered));
        let open: usize = self.states.iter().map(|(_, _, state)| state.doubts()).sum();
        if open > 0 {
            tracing::warn!(
                deletions = open,
                "deletions without a time wait: the server has to confirm that the files are gone, and is asked again"
            );
        }
    }

    /// The next changes, `most` of them, in order of time; with the last of all the states.
    pub fn next_batch(&mut self, most: usize, spool: &DocumentCache, limits: Limits) -> Result<News, SyncError> {
        let end = self.changes.len().min(self.applied.saturating_add(most));
        let batch = &self.changes[self.applied..end];
        let mut changes = BTreeMap::new();
        self.read(batch, spool, limits, &mut |number, set, change| {
            changes.insert(number, (set, change));
            Ok(())
        })?;
        self.applied = end;
        let is_last = end == self.changes.len();
        let states = if is_last { std::mem::take(&mut self.states) } else { ChangeStates::new() };
        Ok(News { changes: changes.into_values().collect(), states, is_last })
    }

    /// Calls `visit` for every change, in no order.
    pub fn each(
        &self,
        spool: &DocumentCache,
        limits: Limits,
        visit: &mut dyn FnMut(SetId, &NewChange) -> Result<(), SyncError>,
    ) -> Result<(), SyncError> {
        self.read(&self.changes, spool, limits, &mut |_, set, change| visit(set, &change))
    }

    /// Reads the entries of `changes`; `visit` gets each with its number among them.
    fn read(
        &self,
        changes: &[SettledChange],
        spool: &DocumentCache,
        limits: Limits,
        visit: &mut dyn FnMut(usize, SetId, NewChange) -> Result<(), SyncError>,
    ) -> Result<(), SyncError> {
        let mut order: Vec<usize> = (0..changes.len()).collect();
        order.sort_unstable_by_key(|number| (changes[*number].document, changes[*number].place));
        for wanted in order.chunk_by(|one, next| changes[*one].document == changes[*next].document) {
            let Some((set, Some(origin))) =
                wanted.first().and_then(|first| self.documents.get(changes[*first].document))
            else {
                continue;
            };
            let (mut wanted, mut place) = (wanted.iter().copied().peekable(), 0);
            origin.visit(spool, limits, &mut |entry, member| {
                if !is_change(entry) {
                    return Ok(());
                }
                if let Some(number) = wanted.next_if(|number| changes[*number].place == place) {
                    let (mut entry, member, time) = (entry.clone(), member.cloned(), changes[number].time);
                    let change = *entry.change.get_or_insert(Change::Updated);
                    visit(number, *set, NewChange { change, time, entry, member })?;
                }
                place += 1;
                Ok(())
            })?;
        }
        Ok(())
    }
}
