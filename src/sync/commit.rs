//! Commits: of a baseline, of changes alone, of deletions that a person has confirmed. The guard judges what may go, and the position
//! is part of the same commit.

use super::absence::AbsenceProof;
use super::changes::NewChange;
use super::choose::{ChangeChoice, add_applied};
use super::deletion_guard::{DeletionGuard, HeldCounts, ListLoss, MaxDelete};
use super::deviations::SeenDeviations;
use super::fetch::dumps;
use super::fetch::list_parser::{at_low_priority, chooser};
use super::fetch::new_changes::NewChanges;
use super::fetch::spool::Spool;
use super::items::{PageNews, changes_of};
use super::position::Position;
use super::read_set::ReadSet;
use super::selection::plan::{ChoicePlan, Chooser};
use super::{Invalidating, Progressing, RefreshResult, Stage, SyncError, Synchronizer};
use crate::catalog::{Catalog, CatalogError, Commit, Committed, Held, ITEMS, Losses, Naming, SetId, StatedChange};
use crate::document::{Change, Timestamp};
use crate::source::Missing;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The writer of the catalog: there is one at a time.
#[derive(Default)]
pub(super) struct CatalogWriter {
    /// The position of the current revision, once it was read: no other writer changes it.
    pub position: Option<Position>,
    /// Held during a commit, and while a new inode is given between two.
    pub writing: Arc<Mutex<()>>,
    /// Batches and confirmed deletions that are committed and not yet in any [`RefreshResult`].
    pub batches: Option<Committed>,
    /// Receives what each commit changes for the kernel, where the tree is mounted.
    pub invalidate: Option<Invalidating>,
    /// True if a person has confirmed what goes where a damaged catalog is built again.
    pub confirms_rebuilding: bool,
    /// The folders being tidied behind the last commit.
    pub tidying: Option<JoinHandle<()>>,
}

/// A commit that was made.
pub(super) struct Made {
    committed: Committed,
    /// The position that was stored with it.
    position: Position,
}

/// Judges a commit before which so much was `held` back: what is held back of it, and the `position` that is stored with it. The lists list
/// less by the first of `lists`; of the sets in the second nothing, or less than before, could be read.
fn decide(
    limit: MaxDelete,
    lists: (&[ListLoss], &BTreeSet<SetId>),
    held: HeldCounts,
    position: &mut Position,
    losses: &Losses,
) -> (Held, Vec<u8>) {
    let verdict = position.guard.judge(limit, losses, lists, held, Timestamp::now());
    if verdict.held != Held::Nothing {
        tracing::warn!(
            deletions = verdict.files,
            held = held.files + verdict.files,
            "unconfirmed deletions are not applied, everything else is: {}. To confirm them: \
             resyncfs refresh --accept-deletions DIR",
            verdict.why
        );
    }
    (verdict.held, position.encode())
}

/// Makes a revision of `commit`, of which the guard may hold deletions back. `position` is stored with it.
pub(super) fn guarded(
    catalog: &Catalog,
    commit: Commit<'_>,
    limit: MaxDelete,
    mut position: Position,
) -> Result<Made, SyncError> {
    let none = BTreeSet::new();
    let held = held_counts(catalog, &mut position.guard)?;
    let at = position.at();
    let committed = commit.finish(at, &mut |losses| decide(limit, (&[], &none), held, &mut position, losses))?;
    Ok(Made { committed, position })
}

/// A person has confirmed what goes; so many held deletions are `left` for a further commit.
fn confirmed(position: &mut Position, left: u64) -> (Held, Vec<u8>) {
    if left == 0 {
        position.guard = DeletionGuard::default();
    }
    (Held::Nothing, position.encode())
}

/// Counts what is held back.
fn held_counts(catalog: &Catalog, guard: &mut DeletionGuard) -> Result<HeldCounts, CatalogError> {
    let snapshot = catalog.snapshot()?;
    let files = snapshot.held_count()?;
    if files == 0 {
        guard.none_is_held();
    }
    let unreadable = guard.unreadable_sets().iter().map(|set| snapshot.held_of(*set));
    Ok(HeldCounts { files, unreadable: unreadable.sum::<Result<u64, _>>()? })
}

/// A baseline before it is written.
pub(super) struct Merge {
    pub naming: Naming,
    /// The lists of every set.
    pub read: Vec<ReadSet>,
    /// The parts of the Source that are offered and missing.
    pub missing: Vec<Missing>,
    /// The position that it goes on from.
    pub base: Position,
    /// The changes since the lists.
    pub news: NewChanges,
    /// True if items of landing pages are followed: none of the lists has them.
    pub follows_items: bool,
    /// The proof that it needs before it deletes by absence.
    pub proof: AbsenceProof,
}

impl Merge {
    /// The choice from the lists: by the links of changes too, where `plan` follows these.
    fn chooser(&mut self, mut plan: ChoicePlan, catalog: &Catalog, spool: &Spool) -> Result<Arc<Chooser>, SyncError> {
        if plan.reads_lists() {
            self.news.each(&mut |set, new| {
                plan.change(set, new.change, &new.entry);
                Ok(())
            })?;
            add_applied(catalog, &self.read, &mut plan)?;
        }
        Ok(Arc::new(chooser(plan, spool, &self.read)?))
    }

    /// Writes the revision. More than `max_delete` is held back; `None`: a person has confirmed what goes.
    fn write(
        mut self,
        catalog: &Catalog,
        spool: &Spool,
        chooser: &Chooser,
        progress: &Progressing,
        max_delete: Option<MaxDelete>,
    ) -> Result<Made, SyncError> {
        let mut commit = catalog.commit_of_lists(self.naming.clone())?;
        if self.follows_items {
            commit.begin_list(ITEMS, None);
        }
        for it in &mut self.read {
            enter(&mut commit, it, chooser, spool)?;
        }
        self.missing.extend(not_understood(&self.read, &spool.deviations)?);
        self.news.each(&mut |set, new| {
            let is_chosen = new.change == Change::Deleted || chooser.chooses(&new.entry);
            Ok(commit.apply(stated_change(set, new, is_chosen))?)
        })?;
        progress(Stage::Committing);
        let Merge { naming, read, missing, base, news, proof, .. } = self;
        let mut next = base.after(&read, missing, &naming);
        let unreadable = next.unreadable_sets(&read);
        let readable: BTreeSet<SetId> = next.guard.unreadable_sets().difference(&unreadable).copied().collect();
        for set in &readable {
            next.guard.readable_again(*set);
            commit.decide_again(*set);
        }
        // A set of which nothing is held back has gone; until then it may only be out of reach. A damaged catalog has no count.
        for set in base.absent(&read).filter(|_| !catalog.is_distrusted()) {
            if catalog.snapshot()?.held_of(set)? == 0 {
                next.forget(set);
                commit.forget(set);
            }
        }
        let held = held_counts(catalog, &mut next.guard)?;
        commit.keep_held(next.guard.by_list());
        news.states.into_iter().for_each(|(set, root, state)| next.note(set, &root, state));
        let lists = base.losses(&next);
        // Resources that lacked before are not in the tree, or held back already.
        let lacks_more = |set: &SetId| lists.iter().any(|list| !list.speaks && list.set == Some(*set));
        let is_read = |set: &SetId| read.iter().any(|it| it.id == *set);
        let unreadable = unreadable.into_iter().filter(|set| !is_read(set) || lacks_more(set)).collect();
        let mut unproved = None;
        let committed = commit.finish(next.at(), &mut |losses| match max_delete {
            None => confirmed(&mut next, 0),
            Some(limit) => {
                unproved = proof.lacks(losses);
                match unproved {
                    Some(_) => (Held::Undecided, Vec::new()),
                    None => decide(limit, (&lists, &unreadable), held, &mut next, losses),
                }
            }
        });
        match unproved {
            Some(absent) => Err(SyncError::Unproved(absent)),
            None => Ok(Made { committed: committed?, position: next }),
        }
    }
}

/// Enters the lists of one set, and the members of its packages.
fn enter(commit: &mut Commit<'_>, read: &mut ReadSet, chooser: &Chooser, spool: &Spool) -> Result<(), SyncError> {
    commit.begin_list(read.id, read.at());
    if read.supersedes_announced {
        commit.forget(read.id);
    }
    let entered = read.parsed.iter_mut().flat_map(|parsed| std::mem::take(&mut parsed.entered));
    entered.into_iter().try_for_each(|part| commit.join(part))?;
    let (has_lists, shared) = (read.has_lists(), read.shared_names.as_ref());
    for manifest in &read.manifests {
        read.stated += dumps::enter(commit, manifest, (has_lists, shared), chooser, spool)?;
    }
    Ok(())
}

impl Synchronizer {
    /// Writes one revision on another thread, and keeps the position that is stored with it. Returns it with the batches before it.
    pub(super) async fn commit(
        &mut self,
        write: impl FnOnce() -> Result<Made, SyncError> + Send + 'static,
    ) -> Result<Committed, SyncError> {
        let writer = self.writer.writing.clone().lock_owned().await;
        let made = tokio::task::spawn_blocking(move || {
            let _writer = writer;
            write()
        });
        let Made { mut committed, position } = made.await??;
        // Readers see a batch while the next one is written.
        if let Some(invalidate) = &self.writer.invalidate {
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
        self.writer.position = Some(position);
        self.status.send_modify(|status| status.unknown_deletions += committed.unknown);
        Ok(committed.behind(self.writer.batches.take()))
    }

    /// Makes one revision of the lists of every set, and of the changes since.
    pub(super) async fn merge(&mut self, mut merge: Merge) -> Result<Committed, SyncError> {
        let plan = ChoicePlan::new(&self.config.selection, &merge.naming);
        let (catalog, spool, progress) =
            (self.catalog.clone(), self.fetch.spool.clone(), self.current.progress.clone());
        let choose =
            move || at_low_priority(&catalog, || Ok::<_, SyncError>((merge.chooser(plan, &catalog, &spool)?, merge)));
        let chooser;
        (chooser, merge) = tokio::task::spawn_blocking(choose).await??;
        for it in merge.read.iter_mut().filter(|it| it.parsed.is_none()) {
            it.parsed = Some(self.parse_lists(it, &merge.naming, chooser.clone()).await?);
        }
        // Held deletions cannot be read in a damaged catalog: they go with the rest.
        let is_confirmed = self.writer.confirms_rebuilding && self.catalog.is_distrusted();
        let max_delete = if is_confirmed { None } else { Some(self.config.max_delete) };
        let (catalog, spool) = (self.catalog.clone(), self.fetch.spool.clone());
        let write =
            move || at_low_priority(&catalog, || merge.write(&catalog, &spool, &chooser, &progress, max_delete));
        let committed = self.commit(write).await?;
        self.fetch.spool.deviations.note_left_out(committed.left_out.clone(), true);
        Ok(committed)
    }

    /// Makes one revision of changes alone, over the one there is: of each resource of each set the last, in order of time. `position` is
    /// what is known with them.
    pub(super) async fn apply(
        &mut self,
        changes: Vec<(SetId, NewChange)>,
        position: Position,
    ) -> Result<Committed, SyncError> {
        self.apply_with(position, move |commit, _| changes.iter().try_for_each(|(set, new)| commit.apply(*set, new)))
            .await
    }

    /// Makes one revision of the next changes that are `new`: of as many as are written in place at once, or of all where the tree is
    /// written whole with them.
    pub(super) async fn apply_next(
        &mut self,
        new: Arc<std::sync::Mutex<NewChanges>>,
        position: Position,
    ) -> Result<Committed, SyncError> {
        let in_batch = self.tuning.in_batch;
        self.apply_with(position, move |commit, position| {
            let mut new = new.lock().unwrap_or_else(PoisonError::into_inner);
            let most = if commit.catalog.rewrites_for(new.left())? { u64::MAX } else { in_batch };
            for _ in 0..most {
                let Some((set, change)) = new.next_change()? else { break };
                commit.apply(set, &change)?;
            }
            if new.is_empty() {
                new.states.drain(..).for_each(|(set, root, state)| position.note(set, &root, state));
            }
            Ok(())
        })
        .await
    }

    /// Makes one revision of news of landing pages: their items, and their rows.
    pub(super) async fn apply_pages(&mut self, news: Vec<PageNews>) -> Result<Committed, SyncError> {
        let position = self.position()?.unwrap_or_default();
        let state = move |commit: &mut ChosenChanges<'_>, _: &mut Position| {
            let mut changes = Vec::new();
            for page in &news {
                let row = changes_of(&commit.choice.snapshot, page, &mut changes)?;
                commit.commit.set_page(&page.page, row.as_ref());
            }
            changes.iter().try_for_each(|(set, new)| commit.apply(*set, new))
        };
        let committed = self.apply_with(position, state).await?;
        let (held, _) = self.held();
        self.status.send_modify(|status| status.held = held);
        Ok(committed)
    }

    /// Makes one revision of the changes, and of the rows of landing pages, that `state` adds. It may change the position.
    async fn apply_with(
        &mut self,
        mut position: Position,
        state: impl FnOnce(&mut ChosenChanges<'_>, &mut Position) -> Result<(), SyncError> + Send + 'static,
    ) -> Result<Committed, SyncError> {
        let (catalog, selection) = (self.catalog.clone(), self.config.selection.clone());
        let limit = self.config.max_delete;
        let apply = move || {
            let (catalog, choice) = (&*catalog, ChangeChoice::new(&catalog, &selection)?);
            let mut changes = ChosenChanges { catalog, choice, commit: catalog.commit_of_changes() };
            state(&mut changes, &mut position)?;
            let ChosenChanges { commit, choice, .. } = changes;
            // A snapshot keeps the pages of its revision from being used again.
            drop(choice);
            guarded(catalog, commit, limit, position)
        };
        let committed = self.commit(apply).await?;
        self.fetch.spool.deviations.note_left_out(committed.left_out.clone(), false);
        Ok(committed)
    }

    /// The newest position that is known: it may be ahead of the one that is stored.
    pub(super) fn position(&mut self) -> Result<Option<Position>, SyncError> {
        if self.writer.position.is_none() {
            self.writer.position = self.stored()?;
        }
        Ok(self.writer.position.clone())
    }

    /// The position that is stored with the current revision.
    pub(super) fn stored(&self) -> Result<Option<Position>, SyncError> {
        match self.catalog.snapshot()?.position() {
            // The catalog is distrusted by now: everything is read again.
            Err(cause) if cause.is_damage() => Ok(None),
            position => Ok(position?.as_deref().and_then(Position::decode)),
        }
    }

    /// True if deletions are held back that can be accepted.
    pub fn holds_deletions(&self) -> Result<bool, CatalogError> {
        Ok(!self.catalog.is_distrusted() && self.catalog.snapshot()?.held_count()? > 0)
    }

    /// Applies deletions that are held back, as many as one commit takes: a person has confirmed them. To be called until
    /// none [is held](Synchronizer::holds_deletions).
    pub async fn accept_deletions(&mut self) -> Result<RefreshResult, SyncError> {
        let began = Instant::now();
        self.current.failed.clear();
        if self.catalog.is_distrusted() {
            // Held deletions cannot be read: the baseline that builds the catalog again leaves them out.
            self.writer.confirms_rebuilding = true;
            return Ok(RefreshResult::Unchanged);
        }
        let Some(mut position) = self.position()? else { return Ok(RefreshResult::Unchanged) };
        let catalog = self.catalog.clone();
        let accept = move || {
            let held = catalog.snapshot()?.held_count()?;
            let mut commit = catalog.commit_of_changes();
            let accepted = commit.accept_held()?;
            tracing::info!(accepted, "the unconfirmed deletions are now applied");
            let left = held.saturating_sub(accepted);
            let committed = commit.finish(position.at(), &mut |_| confirmed(&mut position, left))?;
            Ok(Made { committed, position })
        };
        let outcome = Ok(RefreshResult::Committed(self.commit(accept).await?));
        self.report(&outcome, began.elapsed());
        outcome
    }
}

/// A commit of changes, each of which is chosen or left out.
struct ChosenChanges<'c> {
    catalog: &'c Catalog,
    choice: ChangeChoice<'c>,
    commit: Commit<'c>,
}

impl ChosenChanges<'_> {
    /// Adds a change: what is not chosen, or not any more, goes, which does nothing where it is not in the tree.
    fn apply(&mut self, set: SetId, new: &NewChange) -> Result<(), SyncError> {
        let is_chosen = self.choice.chooses(new)?;
        Ok(self.commit.apply(stated_change(set, new, is_chosen))?)
    }
}

/// Lists with entries that are not understood, and manifests in place of lists. Fails if no entry of any is understood.
fn not_understood(read: &[ReadSet], broken: &SeenDeviations) -> Result<Vec<Missing>, SyncError> {
    let (mut hidden, mut is_nothing) = (Vec::new(), true);
    for location in read.iter().flat_map(ReadSet::sources) {
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

/// A change as the catalog takes it.
fn stated_change(set: SetId, new: &NewChange, is_chosen: bool) -> StatedChange<'_> {
    let NewChange { change, time, entry, member } = new;
    let is_left_out = !is_chosen && *change != Change::Deleted;
    StatedChange { set, change: *change, time: *time, is_left_out, entry, member: member.as_ref() }
}
