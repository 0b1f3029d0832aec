//! From what was read to one revision. The guard decides what may go, and the position is part of the same commit.

use super::changes::NewChange;
use super::deletion_guard::{DeletionGuard, ListLoss, MaxDelete};
use super::deviations::SeenDeviations;
use super::fetch::dumps;
use super::fetch::list_parser::{at_low_priority, chooser};
use super::fetch::new_changes::NewChanges;
use super::position::Position;
use super::read_set::ReadSet;
use super::selection::Selection;
use super::selection::plan::{Plan, path};
use super::{Outcome, Stage, SyncError, Synchronizer};
use crate::catalog::{Catalog, CatalogError, Committed, Held, Losses, Naming, Resource, SetId, Snapshot, Statement};
use crate::document::{Change, Entry, Timestamp};
use crate::source::Missing;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tokio::time::Instant;

/// How a commit went.
struct Made {
    committed: Committed,
    /// What was stored with it.
    position: Position,
}

/// What is held back of a commit, and the `position` that is stored with it. The lists list less by `lists`; of the sets `unreadable`
/// nothing, or less than before, could be read.
fn decide(
    limit: MaxDelete,
    lists: &[ListLoss],
    unreadable: &BTreeSet<SetId>,
    position: &mut Position,
    losses: &Losses,
) -> (Held, Vec<u8>) {
    let (now, guard) = (Timestamp::now(), &mut position.guard);
    guard.release(&losses.released);
    let verdict = guard.decide(limit, losses, lists, now);
    guard.after(&verdict, losses, unreadable, now);
    guard.note_lists(&verdict, lists);
    if verdict.held != Held::Nothing {
        tracing::warn!(
            deletions = verdict.files,
            held = guard.held().map_or(0, |held| held.files),
            "unconfirmed deletions are not applied, everything else is: {}. To confirm them: \
             resyncfs refresh --accept-deletions DIR",
            verdict.why
        );
    }
    (verdict.held, position.encode())
}

/// A person has confirmed what goes; so many held deletions are `left` for a further commit.
fn confirmed(position: &mut Position, left: u64) -> (Held, Vec<u8>) {
    match left {
        0 => position.guard = DeletionGuard::default(),
        _ => position.guard.recount(left, 0),
    }
    (Held::Nothing, position.encode())
}

/// Counts what is held back; of the sets that are `decided` again nothing is.
fn recount(catalog: &Catalog, guard: &mut DeletionGuard, decided: &BTreeSet<SetId>) -> Result<(), CatalogError> {
    let snapshot = catalog.snapshot()?;
    let count = |sets: &BTreeSet<SetId>| sets.iter().map(|set| snapshot.held_of(*set)).sum::<Result<u64, _>>();
    let (files, unreadable) = (snapshot.held_count()?.saturating_sub(count(decided)?), count(guard.unreadable_sets())?);
    guard.recount(files, unreadable);
    Ok(())
}

impl Synchronizer {
    /// Writes one revision on a thread of its own, and remembers the position that is stored with it. What is returned includes the
    /// batches before it.
    async fn commit(
        &mut self,
        write: impl FnOnce() -> Result<Made, SyncError> + Send + 'static,
    ) -> Result<Committed, SyncError> {
        let writer = self.writing.clone().lock_owned().await;
        let made = tokio::task::spawn_blocking(move || {
            let _writer = writer;
            write()
        });
        let Made { mut committed, position } = made.await??;
        // Readers see a batch while the next one is written.
        if let Some(invalidate) = &self.invalidate {
            invalidate(std::mem::take(&mut committed.invalidations));
        }
        tracing::info!(
            revision = committed.revision,
            created = committed.created,
            updated = committed.updated,
            touched = committed.touched,
            deleted = committed.deleted,
            "committed"
        );
        self.position = Some(position);
        self.status.send_modify(|status| status.unknown_deletions += committed.unknown);
        Ok(match self.batches.take() {
            Some(before) => before.and(committed),
            None => committed,
        })
    }

    /// Makes one revision of the lists of every set that were `read`, with what is offered and `missing`, and of the changes since.
    pub(super) async fn merge(
        &mut self,
        naming: Naming,
        mut read: Vec<ReadSet>,
        mut missing: Vec<Missing>,
        position: Position,
        mut news: NewChanges,
    ) -> Result<Committed, SyncError> {
        let (catalog, spool, progress) = (self.catalog.clone(), self.spool.clone(), self.progress.clone());
        let limit = self.config.max_delete;
        let mut plan = Plan::new(&self.config.selection, &naming);
        let choose = move || {
            if plan.reads_lists() {
                news.each(&spool, &mut |set, new| {
                    plan.change(set, new.change, &new.entry);
                    Ok(())
                })?;
                add_applied(&catalog, &read, &mut plan)?;
            }
            let chooser = Arc::new(chooser(plan, &spool, &read)?);
            Ok::<_, SyncError>((read, news, chooser))
        };
        let low = self.catalog.clone();
        let chooser;
        (read, news, chooser) = tokio::task::spawn_blocking(move || at_low_priority(&low, choose)).await??;
        for it in read.iter_mut().filter(|it| it.parsed.is_none()) {
            let mut parser = self.list_parser(it.id, &naming, chooser.clone());
            it.list_documents().into_iter().for_each(|list| parser.take(list));
            it.parsed = Some(parser.finish(&progress).await?);
        }
        // What is held back cannot be read in a damaged catalog: it goes with the rest.
        let is_confirmed = self.confirms_rebuilding && self.catalog.is_distrusted();
        let (catalog, spool, low) = (self.catalog.clone(), self.spool.clone(), self.catalog.clone());
        let merge = move || {
            let mut baseline = catalog.baseline(naming.clone())?;
            for it in &mut read {
                baseline.list(it.id, it.at());
                if it.supersedes_announced {
                    baseline.forget(it.id);
                }
                let entered = it.parsed.iter_mut().flat_map(|parsed| std::mem::take(&mut parsed.entered));
                entered.into_iter().try_for_each(|part| baseline.join(part))?;
                let has_lists = it.lists().next().is_some();
                for manifest in &it.manifests {
                    dumps::enter(&mut baseline, manifest, has_lists, &chooser, &spool)?;
                }
            }
            missing.extend(not_understood(&read, &spool.deviations)?);
            news.each(&spool, &mut |set, new| {
                let is_chosen = new.change == Change::Deleted || chooser.chooses(&new.entry);
                Ok(baseline.apply(statement(set, new, is_chosen))?)
            })?;
            progress(Stage::Committing);
            let mut next = position.after(&read, missing, &naming);
            let unreadable = next.unreadable_sets(&read);
            let readable: BTreeSet<SetId> = next.guard.unreadable_sets().difference(&unreadable).copied().collect();
            for set in &readable {
                next.guard.readable_again(*set);
                baseline.decide_again(*set);
            }
            // A set of which nothing is held back has gone; until then it may only be out of reach.
            // A damaged catalog has no count.
            for set in position.absent(&read).filter(|_| !catalog.is_distrusted()) {
                if catalog.snapshot()?.held_of(set)? == 0 {
                    next.forget(set);
                    baseline.forget(set);
                }
            }
            recount(&catalog, &mut next.guard, &readable)?;
            baseline.keep_held(next.guard.by_list().clone());
            news.states.into_iter().for_each(|(set, root, state)| next.note(set, &root, state));
            let lists = position.losses(&next);
            // What lacked before is not in the tree, or held back already.
            let lacks_more = |set: &SetId| lists.iter().any(|list| !list.speaks && list.set == Some(*set));
            let is_read = |set: &SetId| read.iter().any(|it| it.id == *set);
            let unreadable = unreadable.into_iter().filter(|set| !is_read(set) || lacks_more(set)).collect();
            let committed = baseline.finish(next.at(), &mut |losses| match is_confirmed {
                true => confirmed(&mut next, 0),
                false => decide(limit, &lists, &unreadable, &mut next, losses),
            })?;
            Ok(Made { committed, position: next })
        };
        let committed = self.commit(move || at_low_priority(&low, merge)).await?;
        self.spool.deviations.note_left_out(committed.left_out.clone(), true);
        Ok(committed)
    }

    /// Whether the lists must be chosen from again to know what `new` brings and takes.
    pub(super) async fn needs_lists(&self, new: NewChanges) -> Result<(NewChanges, bool), SyncError> {
        if new.is_empty() || !self.config.selection.follows_links() {
            return Ok((new, false));
        }
        let (catalog, spool, selection) = (self.catalog.clone(), self.spool.clone(), self.config.selection.clone());
        let look = move || {
            let (snapshot, mut needs_lists) = (catalog.snapshot()?, false);
            new.each(&spool, &mut |_, change| {
                needs_lists = needs_lists || !stays_as_chosen(&snapshot, &selection, change)?;
                Ok(())
            })?;
            Ok::<_, SyncError>((new, needs_lists))
        };
        tokio::task::spawn_blocking(look).await?
    }

    /// Makes one revision of changes alone, over the one there is: of each resource of each set the last, in order of time. `position` is
    /// what is known with them.
    pub(super) async fn apply(
        &mut self,
        changes: Vec<(SetId, NewChange)>,
        mut position: Position,
    ) -> Result<Committed, SyncError> {
        let (catalog, selection) = (self.catalog.clone(), self.config.selection.clone());
        let limit = self.config.max_delete;
        let apply = move || {
            let chosen = chosen(&catalog, &selection, &changes)?;
            let mut commit = catalog.changes();
            for ((set, new), is_chosen) in changes.iter().zip(chosen) {
                commit.apply(statement(*set, new, is_chosen))?;
            }
            let none = BTreeSet::new();
            recount(&catalog, &mut position.guard, &none)?;
            let at = position.at();
            let committed = commit.finish(at, &mut |losses| decide(limit, &[], &none, &mut position, losses))?;
            Ok(Made { committed, position })
        };
        let committed = self.commit(apply).await?;
        self.spool.deviations.note_left_out(committed.left_out.clone(), false);
        Ok(committed)
    }

    /// Applies deletions that are held back, as many as one commit takes: a person has confirmed them. To be called until
    /// none [is held](Synchronizer::holds_deletions).
    pub async fn accept_deletions(&mut self) -> Result<Outcome, SyncError> {
        let began = Instant::now();
        self.failed.clear();
        if self.catalog.is_distrusted() {
            // What is held back cannot be read: the baseline that builds the catalog again leaves it out.
            self.confirms_rebuilding = true;
            return Ok(Outcome::Unchanged);
        }
        let Some(mut position) = self.position()? else { return Ok(Outcome::Unchanged) };
        let catalog = self.catalog.clone();
        let accept = move || {
            let held = catalog.snapshot()?.held_count()?;
            let mut commit = catalog.changes();
            let accepted = commit.accept_held()?;
            tracing::info!(accepted, "the unconfirmed deletions are now applied");
            let left = held.saturating_sub(accepted);
            let committed = commit.finish(position.at(), &mut |_| confirmed(&mut position, left))?;
            Ok(Made { committed, position })
        };
        let outcome = Ok(Outcome::Committed(self.commit(accept).await?));
        self.report(&outcome, began.elapsed());
        outcome
    }
}

/// What cannot be understood of the lists that were read, and of the manifests in place of lists. That this is all of them is an error.
fn not_understood(read: &[ReadSet], broken: &SeenDeviations) -> Result<Vec<Missing>, SyncError> {
    let (mut hidden, mut is_nothing) = (Vec::new(), true);
    // Next to lists packages say nothing of what exists.
    let counted = |it: &ReadSet| if it.lists().next().is_some() { it.lists().count() } else { usize::MAX };
    for location in read.iter().flat_map(|it| it.sources().take(counted(it))) {
        let Some((entries, example)) = broken.not_understood(&location) else {
            is_nothing = false;
            continue;
        };
        is_nothing &= entries.is_all();
        hidden.push(entries.missing(&location, example));
    }
    match hidden.first() {
        Some(Missing { location, why, .. }) if is_nothing => {
            Err(SyncError::NothingToShow(format!("{location} cannot be used: {why}")))
        }
        _ => Ok(hidden),
    }
}

/// What a change does to the tree: what is not chosen, or not any more, goes, which does nothing where it is not in the tree.
fn statement(set: SetId, new: &NewChange, is_chosen: bool) -> Statement<'_> {
    let change = if is_chosen { new.change } else { Change::Deleted };
    Statement { set, change, time: new.time, entry: &new.entry, member: new.member.as_ref() }
}

/// Which changes concern the tree by themselves. Where the links of other entries choose too, what is in the tree stays.
fn chosen(catalog: &Catalog, selection: &Selection, changes: &[(SetId, NewChange)]) -> Result<Vec<bool>, CatalogError> {
    let snapshot = catalog.snapshot()?;
    let naming = snapshot.naming()?;
    let is_chosen = |(_, NewChange { change, entry, .. }): &(SetId, NewChange)| {
        let path = naming.as_ref().map(|naming| path(selection, naming, entry)).unwrap_or_default();
        Ok(*change == Change::Deleted
            || selection.chooses(entry, &path)
            || selection.follows_links() && snapshot.locate(&entry.loc)?.is_some())
    };
    changes.iter().map(is_chosen).collect()
}

/// Whether a change leaves it as it is which resources are chosen: one that is shown keeps its type and links, or goes and is no record.
fn stays_as_chosen(snapshot: &Snapshot<'_>, selection: &Selection, new: &NewChange) -> Result<bool, CatalogError> {
    let shown = snapshot.locate(&new.entry.loc)?.map(|node| snapshot.resource(node.ino)).transpose()?.flatten();
    Ok(shown.is_some_and(|shown| match new.change {
        Change::Deleted => !selection.may_be_record(&shown.links),
        _ => shown.media_type == new.entry.media_type && shown.links == new.entry.links,
    }))
}

/// Adds to `plan` the changes of the catalog's journal that count with the lists of `read`. The plan keeps a later one that it has.
fn add_applied(catalog: &Catalog, read: &[ReadSet], plan: &mut Plan) -> Result<(), CatalogError> {
    let mut failed = None;
    let counted = read.iter().filter(|it| !it.supersedes_announced);
    let at: HashMap<SetId, Option<Timestamp>> = counted.map(|it| (it.id, it.at())).collect();
    let snapshot = catalog.snapshot()?;
    snapshot.journal(&mut |set, journaled, resource| {
        // As in the baseline, a list that speaks for a later time counts more.
        if !at.get(&set).is_some_and(|at| at.is_none_or(|at| journaled.time >= at)) {
            return true;
        }
        // Of what is in the tree the latest statement of its sets counts.
        let in_tree = snapshot.locate(&resource.uri).and_then(|node| match node {
            Some(node) if journaled.change != Change::Deleted => snapshot.resource(node.ino),
            _ => Ok(None),
        });
        match in_tree {
            Ok(in_tree) => {
                let Resource { uri, media_type, links, .. } = in_tree.unwrap_or(resource);
                plan.applied(set, journaled.change, &Entry { media_type, links, ..Entry::new(uri) });
            }
            Err(cause) => failed = Some(cause),
        }
        failed.is_none()
    })?;
    failed.map_or(Ok(()), Err)
}
