//! Baseline: a complete statement of what exists, with what changed since.

use super::base::Before;
use super::edit::{Diff, FewChanges};
use super::fact::{Rows, Shared};
use super::group::{Fate, Listing, SortedStatement, StatedChange};
use super::journal::{Row, add_known, next_settled};
use super::losses::Tally;
use super::naming::locate::locate;
use super::sink::in_place::{PutRows, apply};
use super::sink::tree::TreeWriter;
use super::sink::whole::{Rebuild, add_late_orphans};
use super::sort::{LARGE_SORT, SMALL_SORT, Sorted, Sorter};
use super::sort_key::Tag;
use super::store::codec::{NUMBER_LIMIT, damaged, pack};
use super::store::keys::statement_key;
use super::store::record::{ResourceRecord, RevisionRecord, held};
use super::store::{ROOT, Store, TableId};
use super::{Catalog, CatalogError, Committed, Decide, Held, HeldDeletion, Invalidation, Losses, Naming};
use super::{SetId, Statement};
use crate::document::{Change, Entry, PackageMember, Timestamp, Uri};
use crate::platform::error_chain::chain;
use fuser::INodeNo;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// A complete statement of what exists, as it streams in; dropped without commit it leaves no trace.
///
/// No other commit of statements may come between its first call and its commit.
pub struct Baseline<'c> {
    catalog: &'c Catalog,
    /// Of the first set alone where no set is listed.
    listing: Listing,
    rows: Rows,
    /// Changes, as rows of the journal.
    changes: Sorter,
    /// The set that is being listed.
    set: SetId,
    /// Sets of which nothing is held back any more but what is decided now.
    decided_again: BTreeSet<SetId>,
    /// Sets of which all stays held back that is not listed, however much of them is listed again.
    keep_held: BTreeSet<SetId>,
}

impl Catalog {
    /// Begins a new baseline: a complete statement of what exists.
    pub fn baseline(&self, naming: Naming) -> Result<Baseline<'_>, CatalogError> {
        Ok(Baseline::with_memory(self, naming, LARGE_SORT))
    }
}

impl<'c> Baseline<'c> {
    pub(super) fn with_memory(catalog: &'c Catalog, naming: Naming, most: usize) -> Baseline<'c> {
        Baseline {
            catalog,
            listing: Listing {
                naming,
                at: None,
                lists: BTreeMap::new(),
                forgotten: BTreeSet::new(),
                released: BTreeMap::new(),
            },
            rows: Rows::new(&catalog.spill_folder, most),
            changes: Sorter::new(&catalog.spill_folder, SMALL_SORT),
            set: SetId::default(),
            decided_again: BTreeSet::new(),
            keep_held: BTreeSet::new(),
        }
    }

    /// What is added from here on is of `set`, whose list speaks for `at`: changes of the journal that are older do not count
    /// any more. Without `at` all of them count. A set may be listed in several parts, with the same `at`.
    pub fn list(&mut self, set: SetId, at: Option<Timestamp>) {
        self.set = set;
        self.listing.lists.insert(set, at);
    }

    /// What is held back of `set` so far does not count: it was held back only because the set could not be read.
    /// What its lists lack now counts as a loss.
    pub fn decide_again(&mut self, set: SetId) {
        self.decided_again.insert(set);
    }

    /// What is held back of `sets` is decided again only where it is listed.
    pub fn keep_held(&mut self, sets: BTreeSet<SetId>) {
        self.keep_held = sets;
    }

    /// What the journal holds of `set` goes: its lists settle all of that, or it has left the Source.
    pub fn forget(&mut self, set: SetId) {
        self.listing.forgotten.insert(set);
    }

    /// Adds one entry of a list. Order does not matter; of several for one URI within a set the latest `lastmod`, else the last
    /// added counts, and where sets differ the one whose list speaks for the later time.
    pub fn add(&mut self, entry: &Entry) -> Result<(), CatalogError> {
        self.rows.add_entry(Tag::File, &self.listing.naming, self.set, entry, None)
    }

    /// Takes what was added to a share.
    ///
    /// # Errors
    /// What was added here before could not be spilled, or what was spilled not be merged (the disk is full): the baseline is given
    /// up.
    pub fn join(&mut self, shared: Shared) -> Result<(), CatalogError> {
        self.rows.sorter.join(shared.0)
    }

    /// Adds one entry of a dump's manifest where the Source has no list: the resource and the member that holds it.
    pub fn add_with_member(&mut self, entry: &Entry, member: &PackageMember) -> Result<(), CatalogError> {
        self.rows.add_entry(Tag::File, &self.listing.naming, self.set, entry, Some(member))
    }

    /// Adds one entry of a dump's manifest where there are lists too: where they have its URI and provably this version (an equal digest
    /// of a shared algorithm, else an equal `lastmod` and length), `member` holds it. It is no statement of what exists.
    pub fn add_member(&mut self, entry: &Entry, member: &PackageMember) -> Result<(), CatalogError> {
        self.rows.add_entry(Tag::Member, &self.listing.naming, self.set, entry, Some(member))
    }

    /// Adds a change of a listed set. It counts unless the set's list speaks for a later time, or the journal has a later
    /// change of the resource.
    pub fn apply(&mut self, statement: Statement<'_>) -> Result<(), CatalogError> {
        self.changes.add(&statement_key(statement.set, &statement.entry.loc), &Row::of(&statement))
    }

    /// Compares everything with the current revision and commits tree, journal, held deletions and state, all at once. `at` is what the
    /// revision speaks for. Few changes are written in place, many into a store of their own.
    ///
    /// `decide` is asked once. Files whose deletion was held back before and that are still not listed stay so: they are no loss.
    ///
    /// Where the tree is the same nothing is written but, if they differ, `at`, journal and state. The first revision of a
    /// catalog has no invalidations: nothing was shown before.
    ///
    /// # Errors
    /// The tree stays as it was. After [`CatalogError::Damaged`] the next baseline builds another store, and reads little of the old
    /// one, so the same baseline given once more will do. What would be held back cannot be read then: where `decide` holds
    /// anything, that baseline fails with [`CatalogError::Undecided`].
    pub fn commit_guarded(mut self, at: Option<Timestamp>, decide: Decide<'_>) -> Result<Committed, CatalogError> {
        self.listing.at = at;
        if self.listing.lists.is_empty() {
            self.listing.lists.insert(SetId::default(), at);
        }
        let catalog = self.catalog;
        // What reading the lists took is free by now, and the store wants its own.
        crate::platform::allocator::release_free();
        let writer = catalog.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let store = catalog.store();
        let committed = self.commit_locked(&store, decide);
        match &committed {
            Ok(_) => catalog.drop_damaged(),
            Err(error) if error.is_damage() => catalog.distrust(),
            Err(_) => {}
        }
        // Closing a store that was replaced and freeing its space takes a while, and commits do not wait for that.
        drop(writer);
        drop(store);
        committed.map_err(|error| catalog.failure(error))
    }

    fn commit_locked(self, store: &Store, decide: Decide<'_>) -> Result<Committed, CatalogError> {
        let catalog = self.catalog;
        if catalog.distrusted.load(Ordering::Acquire) {
            return self.commit_damaged(store, decide);
        }
        let old = store.env.read_txn()?;
        let before = Before::read(store, &old)?;
        self.commit_over(&before, decide)
    }

    /// Compares everything with the revision `before`, and writes what differs in place, or the whole tree.
    fn commit_over(mut self, before: &Before<'_>, decide: Decide<'_>) -> Result<Committed, CatalogError> {
        let catalog = self.catalog;
        let mut known = Sorter::new(&catalog.spill_folder, SMALL_SORT);
        add_known(&mut known, before.store, before.old)?;
        let (mut decided_again, mut holds) = (std::mem::take(&mut self.decided_again), false);
        let keep_held = std::mem::take(&mut self.keep_held);
        each_held(before, &decided_again, &mut |_, set, uri, record| match record {
            Some(record) => {
                holds = true;
                self.rows.add_kept(&self.listing.naming, (uri, &record), &[set], true)
            }
            None => Ok(()),
        })?;
        let (mut listing, mut statement, mut journal) = self.sorted(known, before)?;
        if holds {
            listing.released = statement.released(&listing)?;
            listing.released.retain(|set, _| !keep_held.contains(set));
            decided_again.extend(listing.released.keys());
        }
        let mut decided = None;
        if before.revision.is_some() {
            let mut diff = Diff::of(catalog, before, &listing, &mut statement)?;
            if let Some(few) = &mut diff {
                let (held, state) = decide(&few.losses);
                decided = Some(state);
                if held != Held::Nothing {
                    // From here on what is held back is stated with all else.
                    let kept = few.departed.kept(&held, &listing.naming, &catalog.spill_folder)?;
                    statement.rows = statement.rows.again_with(kept)?;
                    diff = Diff::of(catalog, before, &listing, &mut statement)?;
                }
            }
            if let (Some(Diff { changes: FewChanges { resources, held }, sets, left_out, .. }), Some(state)) =
                (diff, &decided)
            {
                drop(statement);
                let rows = &mut |tree: &mut TreeWriter<'_, '_>| {
                    each_held(before, &decided_again, &mut |key, _, _, record| match record {
                        Some(_) => Ok(()),
                        None => tree.row(TableId::Held, key, None),
                    })?;
                    held.iter().try_for_each(|(key, row)| tree.row(TableId::Held, key, row.as_deref()))?;
                    put_journal(&mut journal, &listing, false, tree)
                };
                let mut committed = apply(catalog, before, resources, rows, (listing.at, state, sets))?;
                committed.left_out.extend(left_out);
                return Ok(committed);
            }
            statement.rows.rewind()?;
        }
        let rows = &mut |tree: &mut TreeWriter<'_, '_>| put_journal(&mut journal, &listing, true, tree);
        write_whole(catalog, before, &listing, statement, rows, (decided, decide))
    }

    /// Builds the tree into an empty store, which takes the place of the damaged `store`. Every inode and entry id is new, the root's
    /// excepted, for the kernel may still know the old ones. Of its journal all counts that can be read.
    fn commit_damaged(self, store: &Store, decide: Decide<'_>) -> Result<Committed, CatalogError> {
        let catalog = self.catalog;
        let mut known = Sorter::new(&catalog.spill_folder, SMALL_SORT);
        let rescued = store.env.read_txn().map_err(CatalogError::from);
        if let Err(error) = rescued.and_then(|old| add_known(&mut known, store, &old)) {
            tracing::warn!("changes that were applied since the last list are lost: {}", chain(&error));
        }
        let successor = store.empty(&catalog.spill_folder, None)?;
        // A transaction that reads a store keeps its pages from being used again.
        let empty = successor.store().clone();
        let old = empty.env.read_txn()?;
        let before = Before::read(&empty, &old)?;
        let (listing, mut statement, mut journal) = self.sorted(known, &before)?;
        let target = (&empty, last_numbers(store));
        let rows = &mut |tree: &mut TreeWriter<'_, '_>| put_journal(&mut journal, &listing, true, tree);
        statement.rows = statement.rows.read_once();
        let mut rebuild = Rebuild::begin(catalog, &before, &listing, &mut statement, target)?;
        drop(statement);
        let (Held::Nothing, state) = decide(&fewer(store, &rebuild.losses()?.0)) else {
            return Err(CatalogError::Undecided);
        };
        let committed = rebuild.finish(&state, rows)?;
        catalog.replace_store(successor)?;
        catalog.distrusted.store(false, Ordering::Release);
        let invalidations = vec![Invalidation::Everything([INodeNo(ROOT)].into_iter().collect())];
        Ok(Committed { invalidations, ..committed })
    }

    /// Sorts everything that is stated, with the changes in force; and the journal behind what is `known` of it, to be read again.
    fn sorted(
        self,
        mut known: Sorter,
        before: &Before<'_>,
    ) -> Result<(Listing, SortedStatement, Sorted), CatalogError> {
        let Baseline { listing, mut rows, changes, .. } = self;
        known.join(changes)?;
        let (naming, mut journal) = (&listing.naming, known.finish()?);
        while let Some(settled) = next_settled(&mut journal, &listing, before)? {
            if settled.fate != Fate::InForce {
                continue;
            }
            let sense = || damaged("sense", &settled.key);
            let row = Row::decode(&settled.row).ok_or_else(sense)?;
            let (record, uri) = row.record().ok_or_else(sense)?;
            let set = record.sets.iter().next().unwrap_or_default();
            rows.supersede(naming, set, &uri)?;
            if row.change != Change::Deleted {
                let Row { time, shown, .. } = row;
                let is_news = settled.is_new;
                let newest = record.lastmod.or(shown);
                rows.add_record(Tag::Change, naming, (&uri, &record), &[set], newest, |record| {
                    pack(&StatedChange { time, shown, is_news, record })
                })?;
            }
        }
        rows.close()?;
        let statement = SortedStatement { rows: rows.sorter.finish()? };
        Ok((listing, statement, journal))
    }
}

/// Writes the whole tree into a store that takes the place of the one of `before`. What is held back may be `decided`; else `decide` is
/// asked, and where it holds anything the tree is written once more, with that.
fn write_whole(
    catalog: &Catalog,
    before: &Before<'_>,
    listing: &Listing,
    mut statement: SortedStatement,
    rows: &mut PutRows<'_>,
    (mut decided, decide): (Option<Vec<u8>>, Decide<'_>),
) -> Result<Committed, CatalogError> {
    let instance = Some(before.store.instance(before.old)?);
    let last = before.revision.unwrap_or(RevisionRecord::NONE);
    loop {
        // Over nothing, nothing can be held back.
        if before.revision.is_none() || decided.is_some() {
            statement.rows = statement.rows.read_once();
        }
        let successor = before.store.empty(&catalog.spill_folder, instance)?;
        let mut rebuild = Rebuild::begin(catalog, before, listing, &mut statement, (successor.store(), last))?;
        let state = match decided.take() {
            Some(state) => state,
            None => {
                let (losses, mut departed) = rebuild.losses()?;
                let (held, state) = decide(&losses);
                if before.revision.is_some() && held != Held::Nothing {
                    let kept = departed.kept(&held, &listing.naming, &catalog.spill_folder)?;
                    statement.rows = statement.rows.again_with(kept)?;
                    decided = Some(state);
                    continue;
                }
                state
            }
        };
        // What is written from here on has the room of the statement.
        drop(statement);
        let committed = rebuild.finish(&state, rows)?;
        let keep_late = |store: &Store| {
            // The new tree does not wait for room for the old one.
            if let Err(error) = add_late_orphans(catalog, before, store) {
                tracing::warn!("files that were opened just now may not be readable to their end: {}", chain(&error));
            }
        };
        keep_late(successor.store());
        catalog.replace_store(successor)?;
        // Those of replies that were made in between.
        keep_late(&catalog.store());
        return Ok(committed);
    }
}

/// Takes a deletion that is held back: its key, set and URI, and the resource if that is still in the tree and the set.
type VisitHeld<'v> = dyn FnMut(&[u8], SetId, &Uri, Option<ResourceRecord<'_>>) -> Result<(), CatalogError> + 'v;

/// Shows `visit` each row of what is held back, with its resource as it is in the tree: none where the row holds nothing (any more), as
/// its set is `decided_again`.
fn each_held(
    before: &Before<'_>,
    decided_again: &BTreeSet<SetId>,
    visit: &mut VisitHeld<'_>,
) -> Result<(), CatalogError> {
    let Before { store, old, naming: Some(naming), .. } = before else { return Ok(()) };
    for row in store.rows(old, store.held, (Bound::Unbounded, Bound::Unbounded))? {
        let (key, row) = row?;
        let HeldDeletion { set, uri, .. } = held(key, row).ok_or_else(|| damaged("sense", key))?;
        let located = if decided_again.contains(&set) { None } else { locate(store, old, naming, &uri)? };
        let record = located.and_then(|located| located.node.resource).filter(|record| record.sets.contains(set));
        visit(key, set, &uri, record)?;
    }
    Ok(())
}

/// Writes the rows of the journal: those that differ from what is there, or all of them.
fn put_journal(
    journal: &mut Sorted,
    listing: &Listing,
    all: bool,
    tree: &mut TreeWriter<'_, '_>,
) -> Result<(), CatalogError> {
    journal.rewind()?;
    while let Some(settled) = next_settled(journal, listing, tree.before)? {
        match settled.fate {
            Fate::Goes => tree.row(TableId::Journal, &settled.key, None)?,
            _ if all || settled.is_new => tree.row(TableId::Journal, &settled.key, Some(&settled.row))?,
            _ => {}
        }
    }
    Ok(())
}

/// By how much a tree, all of which comes, is smaller than the one that cannot be read any more, where its sums can be read.
fn fewer(store: &Store, tree: &Losses) -> Losses {
    let Ok(txn) = store.env.read_txn() else { return tree.clone() };
    let (Ok(Some(revision)), Ok(before)) = (store.revision(&txn), store.sets(&txn)) else { return tree.clone() };
    let (present, files) = (revision.totals.files, tree.coming);
    let mut tally = Tally { new: files.saturating_sub(present), ..Tally::default() };
    let now: BTreeMap<SetId, u64> = tree.sets.iter().map(|set| (set.set, set.coming)).collect();
    for (set, files) in &now {
        tally.sets.entry(*set).or_default().coming = files.saturating_sub(before.files(*set));
    }
    for (set, record) in &before.0 {
        let lost = record.files.saturating_sub(now.get(set).copied().unwrap_or(0));
        if lost > 0 {
            tally.departures.insert((Box::new([*set]), false), lost);
        }
    }
    tally.departures.insert((Box::new([]), true), present.saturating_sub(files));
    tally.losses(present, &before)
}

/// The numbers that a damaged store may have given: those of its revision, else half of all. Nothing else of it stays.
fn last_numbers(store: &Store) -> RevisionRecord {
    let txn = store.env.read_txn();
    let (next_ino, next_entry) = (NUMBER_LIMIT / 2, NUMBER_LIMIT / 2);
    match txn.map_err(CatalogError::from).and_then(|txn| store.revision(&txn)) {
        Ok(revision) => {
            RevisionRecord { totals: RevisionRecord::NONE.totals, ..revision.unwrap_or(RevisionRecord::NONE) }
        }
        Err(_) => RevisionRecord { next_ino, next_entry, ..RevisionRecord::NONE },
    }
}
