//! From what was read to one revision. The guard decides what may go, and the position is part of the same commit.

use super::changes::NewChange;
use super::deletion_guard::{DeletionGuard, ListLoss, MaxDelete};
use super::deviations::SeenDeviations;
use super::fetch::dumps;
use super::fetch::new_changes::{NewChanges, News};
use super::fetch::parse::{ParseJob, chooser};
use super::read_set::ReadSet;
use super::selection::Selection;
use super::selection::changes::{Judge, Verdict, entry_of};
use super::selection::plan::Plan;
use super::state::Position;
use super::{Progressing, Stage, SyncError, Synchronizer};
use crate::catalog::{Applied, Catalog, CatalogError, Committed, Held, Losses, Naming, SetId, Statement};
use crate::document::{Change, Entry, Timestamp, Uri};
use crate::platform::scheduling;
use crate::source::{DocumentLocation, Missing};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What a baseline is made of.
pub struct Reading {
    /// Under which names.
    pub naming: Naming,
    /// The lists of every set.
    pub read: Vec<ReadSet>,
    /// What is offered and missing.
    pub missing: Vec<Missing>,
    /// The position before.
    pub position: Position,
    /// The changes since the lists.
    pub news: NewChanges,
}

/// How a commit went.
pub struct Made {
    pub committed: Committed,
    /// What was stored with it.
    pub position: Position,
    /// Deletions of what is not there.
    pub unknown: u64,
    /// Whether the changes of a set that has gone are not known any more.
    pub forgets: bool,
}

/// A position on its way into a commit, for which the guard decides.
struct Guarded {
    position: Position,
    limit: MaxDelete,
    /// What lists do not list any more.
    lists: Vec<ListLoss>,
    /// Sets of which nothing, or less than before, could be read.
    unheard: BTreeSet<SetId>,
}

impl Guarded {
    fn decide(&mut self, losses: &Losses) -> (Held, Vec<u8>) {
        let (now, guard) = (Timestamp::now(), &mut self.position.guard);
        let verdict = guard.decide(self.limit, losses, &self.lists, now);
        guard.after(&verdict, losses, &self.unheard, now);
        if verdict.held != Held::Nothing {
            tracing::warn!(
                deletions = verdict.files,
                held = guard.held().map_or(0, |held| held.files),
                "unconfirmed deletions are not applied, everything else is: {}. To confirm them: \
                 resyncfs refresh --accept-deletions DIR",
                verdict.why
            );
        }
        (verdict.held, self.position.encode())
    }
}

/// A person has confirmed what goes; so many held deletions are `left` for a further commit.
fn confirmed(position: &mut Position, left: u64) -> (Held, Vec<u8>) {
    match left {
        0 => position.guard.confirm(),
        _ => position.guard.recount(left, 0),
    }
    (Held::Nothing, position.encode())
}

/// Does `work` at low priority, with all threads that it starts, where a tree is shown; else on the caller's thread.
fn at_low_priority<T: Send>(
    catalog: &Catalog,
    work: impl FnOnce() -> Result<T, SyncError> + Send,
) -> Result<T, SyncError> {
    match catalog.revision().is_ok_and(|revision| revision.is_some()) {
        true => scheduling::low_priority(work),
        false => work(),
    }
}

/// Counts what is held back; of the sets that are `decided` again nothing is.
fn recount(catalog: &Catalog, guard: &mut DeletionGuard, decided: &BTreeSet<SetId>) -> Result<(), CatalogError> {
    let snapshot = catalog.snapshot()?;
    let count = |sets: Vec<SetId>| sets.into_iter().map(|set| snapshot.held_of(set)).sum::<Result<u64, _>>();
    let files = snapshot.held_count()?.saturating_sub(count(decided.iter().copied().collect())?);
    guard.recount(files, count(guard.unheard().collect())?);
    Ok(())
}

impl Synchronizer {
    /// Makes one revision of all that was read.
    pub(super) async fn merge(&self, reading: Reading, progress: Progressing) -> Result<Made, SyncError> {
        let (catalog, spool, limits) = (self.catalog.clone(), self.spool.clone(), self.config.limits);
        let (selection, limit) = (self.config.selection.clone(), self.config.max_delete);
        let (broken, least_part) = (self.deviations.clone(), self.tuning.least_part);
        // What is held back cannot be read in a damaged catalog: it goes with the rest.
        let is_confirmed = self.confirms_rebuilding && self.catalog.is_distrusted();
        let writer = self.writing.clone().lock_owned().await;
        let merge = move |catalog: &Arc<Catalog>| {
            let _writer = writer;
            let Reading { naming, mut read, mut missing, position, news } = reading;
            let scratch = |bytes| spool.scratch(bytes);
            let mut plan = Plan::new(&selection, &naming, &scratch);
            if plan.reads_lists() {
                news.each(&spool, limits, &mut |set, new| {
                    plan.change(set, new.change, &new.entry).map_err(SyncError::Scratch)
                })?;
                add_applied(catalog, &read, &mut plan)?;
            }
            let chooser = Arc::new(chooser(plan, &spool, &read, limits)?);
            let mut baseline = catalog.baseline(naming.clone())?;
            for it in &mut read {
                baseline.list(it.id, it.at());
                let lists = it.list_documents();
                let has_lists = !lists.is_empty();
                let parsed = match it.parsed.take().filter(|parsed| parsed.documents == lists) {
                    Some(parsed) => parsed,
                    None => {
                        let job = ParseJob {
                            catalog: catalog.clone(),
                            documents: spool.clone(),
                            set: it.id,
                            naming: naming.clone(),
                            chooser: chooser.clone(),
                            limits,
                            deviations: broken.clone(),
                            least_part,
                        };
                        job.parse(lists, &progress)?
                    }
                };
                it.counts = parsed.counts;
                parsed.entered.into_iter().try_for_each(|part| baseline.join(part))?;
                let chooses = |entry: &Entry| chooser.chooses(entry).map_err(SyncError::Scratch);
                for manifest in &it.manifests {
                    dumps::enter(&mut baseline, manifest, has_lists, &chooses, &broken)?;
                }
            }
            missing.extend(not_understood(&read, &broken)?);
            news.each(&spool, limits, &mut |set, new| {
                let is_chosen =
                    new.change == Change::Deleted || chooser.chooses(&new.entry).map_err(SyncError::Scratch)?;
                let change = if is_chosen { new.change } else { Change::Deleted };
                Ok(baseline.apply(statement(set, change, new))?)
            })?;
            progress(Stage::Committing);
            let mut next = position.after(&read, &missing, &naming);
            let unheard = next.unheard(&read);
            let heard: BTreeSet<SetId> = next.guard.unheard().filter(|set| !unheard.contains(set)).collect();
            for set in &heard {
                next.guard.hear(*set);
                baseline.decide_again(*set);
            }
            // A set of which nothing is held back has gone; until then it may only be out of reach.
            let mut forgets = false;
            for set in position.absent(&read) {
                if catalog.snapshot()?.held_of(set)? == 0 {
                    next.forget(set);
                    baseline.forget(set);
                    forgets = true;
                }
            }
            recount(catalog, &mut next.guard, &heard)?;
            for (set, root, state) in news.states() {
                next.note(*set, root, state.clone());
            }
            // A damaged catalog has no count.
            let holds = |set| Ok(catalog.is_distrusted() || catalog.snapshot()?.held_of(set)? > 0);
            next.drop_gone(&position, &read, holds)?;
            let (at, lists) = (next.at(), position.losses(&next));
            // What lacked before is not in the tree, or held back already.
            let lacks_more = |set: &SetId| lists.iter().any(|list| !list.speaks && list.set == Some(*set));
            let is_read = |set: &SetId| read.iter().any(|it| it.id == *set);
            let unheard = unheard.into_iter().filter(|set| !is_read(set) || lacks_more(set)).collect();
            let mut guarded = Guarded { position: next, limit, lists, unheard };
            let committed = baseline.commit_guarded(at, &mut |losses| match is_confirmed {
                true => confirmed(&mut guarded.position, 0),
                false => guarded.decide(losses),
            })?;
            Ok::<_, SyncError>(Made { committed, position: guarded.position, unknown: 0, forgets })
        };
        let made = tokio::task::spawn_blocking(move || at_low_priority(&catalog, || merge(&catalog))).await??;
        self.deviations.note_left_out(made.committed.left_out.clone(), true);
        report(&made.committed);
        Ok(made)
    }

    /// Makes one revision of changes alone, over the one there is; `None` where what is chosen is known with the lists alone.
    pub(super) async fn apply(&self, news: News, position: Position) -> Result<Option<Made>, SyncError> {
        let (catalog, selection) = (self.catalog.clone(), self.config.selection.clone());
        let limit = self.config.max_delete;
        let writer = self.writing.clone().lock_owned().await;
        let made = tokio::task::spawn_blocking(move || {
            let _writer = writer;
            let Some(changes) = chosen(&catalog, &selection, &news.changes)? else { return Ok(None) };
            let mut unknown = 0;
            let mut commit = catalog.changes()?;
            for (set, change, new) in changes {
                if commit.apply(statement(set, change, new))? == Applied::Unknown && new.change == Change::Deleted {
                    tracing::debug!(uri = %new.entry.loc, "deleted, and never listed");
                    unknown += 1;
                }
            }
            let mut next = position;
            recount(&catalog, &mut next.guard, &BTreeSet::new())?;
            for (set, root, state) in news.states {
                next.note(set, &root, state);
            }
            let at = next.at();
            let mut guarded = Guarded { position: next, limit, lists: Vec::new(), unheard: BTreeSet::new() };
            let committed = commit.commit(at, &mut |losses| guarded.decide(losses))?;
            Ok::<_, SyncError>(Some(Made { committed, position: guarded.position, unknown, forgets: false }))
        })
        .await??;
        if let Some(made) = &made {
            self.deviations.note_left_out(made.committed.left_out.clone(), false);
            report(&made.committed);
        }
        Ok(made)
    }

    /// Applies deletions that are held back and that a person has confirmed: as many as one commit takes.
    pub(super) async fn accept(&self, mut position: Position) -> Result<Made, SyncError> {
        let catalog = self.catalog.clone();
        let writer = self.writing.clone().lock_owned().await;
        let made = tokio::task::spawn_blocking(move || {
            let _writer = writer;
            let held = catalog.snapshot()?.held_count()?;
            let mut commit = catalog.changes()?;
            let accepted = commit.accept_held()?;
            tracing::info!(accepted, "the unconfirmed deletions are now applied");
            let left = held.saturating_sub(accepted);
            let committed = commit.commit(position.at(), &mut |_| confirmed(&mut position, left))?;
            Ok::<_, SyncError>(Made { committed, position, unknown: 0, forgets: false })
        })
        .await??;
        report(&made.committed);
        Ok(made)
    }
}

/// What cannot be understood of the lists that were read, and of the manifests in place of lists. That this is all of them is an error.
fn not_understood(read: &[ReadSet], broken: &SeenDeviations) -> Result<Vec<Missing>, SyncError> {
    let (mut hidden, mut is_nothing) = (Vec::new(), true);
    for it in read {
        let lists = it.lists().map(|leaf| leaf.document.location.clone());
        let has_lists = it.lists().next().is_some();
        let manifests = it.manifests.iter().filter(|_| !has_lists).map(|manifest| manifest.package().clone());
        for location in lists.chain(manifests.map(DocumentLocation::Uri)) {
            let Some((entries, example)) = broken.not_understood(&location) else {
                is_nothing = false;
                continue;
            };
            is_nothing &= entries.is_all();
            hidden.push(entries.missing(&location, example));
        }
    }
    match hidden.first() {
        Some(Missing { location, why, .. }) if is_nothing => {
            Err(SyncError::NothingUnderstood { location: location.clone(), why: why.clone() })
        }
        _ => Ok(hidden),
    }
}

fn statement(set: SetId, change: Change, new: &NewChange) -> Statement<'_> {
    Statement { set, change, time: new.time, entry: &new.entry, member: new.member.as_ref() }
}

/// What happens to the tree by changes where not everything is chosen: (set, what happens, the change). `None` where that cannot be
/// known from them alone.
#[allow(clippy::type_complexity)]
fn chosen<'n>(
    catalog: &Catalog,
    selection: &Selection,
    changes: &'n [(SetId, NewChange)],
) -> Result<Option<Vec<(SetId, Change, &'n NewChange)>>, CatalogError> {
    if *selection == Selection::default() {
        return Ok(Some(changes.iter().map(|(set, new)| (*set, new.change, new)).collect()));
    }
    let snapshot = catalog.snapshot()?;
    let Some(naming) = snapshot.naming()? else { return Ok(None) };
    let tree = |uri: &Uri| match snapshot.locate(uri)? {
        Some(node) => snapshot.resource(node.ino),
        None => Ok(None),
    };
    let mut judge = Judge::new(selection, &naming, &tree);
    changes.iter().for_each(|(_, new)| judge.change(new.change, &new.entry));
    let mut chosen = Vec::with_capacity(changes.len());
    for (set, new) in changes {
        match judge.judge(new.change, &new.entry)? {
            Verdict::Applies => chosen.push((*set, new.change, new)),
            Verdict::Ceases => chosen.push((*set, Change::Deleted, new)),
            Verdict::NeedsBaseline => return Ok(None),
        }
    }
    Ok(Some(chosen))
}

/// Adds to `plan` the changes of the catalog's journal that count with the lists of `read`. The plan keeps a later one that it has.
fn add_applied(catalog: &Catalog, read: &[ReadSet], plan: &mut Plan<'_>) -> Result<(), SyncError> {
    let mut failed = None;
    let at: HashMap<SetId, Option<Timestamp>> = read.iter().map(|it| (it.id, it.at())).collect();
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
        failed = match in_tree {
            Ok(in_tree) => {
                let entry = entry_of(in_tree.unwrap_or(resource));
                plan.applied(set, journaled.change, &entry).map_err(SyncError::Scratch).err()
            }
            Err(cause) => Some(cause.into()),
        };
        failed.is_none()
    })?;
    failed.map_or(Ok(()), Err)
}

fn report(committed: &Committed) {
    tracing::info!(
        revision = committed.revision,
        created = committed.created,
        updated = committed.updated,
        touched = committed.touched,
        deleted = committed.deleted,
        "committed"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn work_on_a_tree_that_is_shown_has_a_thread_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(folder.path(), "a test").unwrap();
        let whose = || at_low_priority(&catalog, || Ok(thread::current().id())).unwrap();
        assert_eq!(whose(), thread::current().id(), "no reader is slowed down");

        catalog.baseline(Naming::default()).unwrap().commit(None, b"").unwrap();

        assert_ne!(whose(), thread::current().id());
    }
}
