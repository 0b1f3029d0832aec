//! Baseline: a complete statement of what exists, with what changed since.

use super::apply::{CommittedWith, PutRow, apply};
use super::diff::{Diff, FewChanges};
use super::held;
use super::ingest::{Rows, Share, Shared};
use super::journal;
use super::journal::{Fate, Row, Speaking, list_at};
use super::losses::losses;
use super::naming::locate::locate;
use super::numbers::Numbers;
use super::rebuild::{Target, rebuild};
use super::revision::Before;
use super::sort::{RunLimits, SMALL_SORT, Sorted, Sorter, SpillFolder};
use super::sort_key::tag;
use super::statement::{ChangeOf, Listing, SortedStatement, push_change};
use super::store::codec::{NUMBER_LIMIT, damaged, unseal};
use super::store::keys::statement_key;
use super::store::record::ResourceRecord;
use super::store::{ROOT, Store, TableId};
use super::superseded::Superseding;
use super::version;
use super::{Catalog, CatalogError, Committed, Decide, Departure, Held, HeldDeletion, Invalidation, Losses, Naming};
use super::{SetId, Statement};
use crate::document::{Change, Entry, PackageMember, Timestamp};
use fuser::INodeNo;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Changes in memory while the list itself takes most of it.
const CHANGE_LIMITS: RunLimits = RunLimits { bytes: 4 << 20, pairs: 1 << 16, resident: 1 << 20 };

/// A complete statement of what exists, as it streams in; dropped without commit it leaves no trace.
///
/// No other commit of statements may come between its first call and its commit.
pub struct Baseline<'c> {
    catalog: &'c Catalog,
    stated: Stated,
    rows: Rows,
    /// Changes, as rows of the journal.
    changes: Sorter,
    limits: RunLimits,
    /// The set that is being listed.
    set: SetId,
    /// Sets of which nothing is held back any more but what is decided now.
    decided_again: BTreeSet<SetId>,
}

/// What is stated and is no resource.
struct Stated {
    naming: Naming,
    /// The sets and what their lists speak for, ascending; empty for the first set alone.
    lists: Vec<(SetId, Option<Timestamp>)>,
    /// Sets whose part of the journal goes.
    forgotten: BTreeSet<SetId>,
}

impl Stated {
    fn listing<'s>(&'s self, catalog: &'s Catalog, at: Option<Timestamp>) -> Listing<'s> {
        let speaking = Speaking { lists: &self.lists, forgotten: &self.forgotten };
        Listing { naming: &self.naming, symbols: &catalog.symbols, at, speaking }
    }
}

impl Catalog {
    /// Begins a new baseline: a complete statement of what exists.
    pub fn baseline(&self, naming: Naming) -> Result<Baseline<'_>, CatalogError> {
        Ok(Baseline::new(self, naming))
    }
}

impl<'c> Baseline<'c> {
    pub(super) fn new(catalog: &'c Catalog, naming: Naming) -> Baseline<'c> {
        Baseline::with_limits(catalog, naming, RunLimits::default())
    }

    pub(super) fn with_limits(catalog: &'c Catalog, naming: Naming, limits: RunLimits) -> Baseline<'c> {
        Baseline {
            catalog,
            stated: Stated { naming, lists: Vec::new(), forgotten: BTreeSet::new() },
            rows: Rows::new(&catalog.spill_folder, limits),
            changes: Sorter::new(&catalog.spill_folder, CHANGE_LIMITS),
            limits,
            set: SetId::default(),
            decided_again: BTreeSet::new(),
        }
    }

    /// What is added from here on is of `set`, whose list speaks for `at`: changes of the journal that are older do not count
    /// any more. Without `at` all of them count. A set may be listed in several parts, with the same `at`.
    pub fn list(&mut self, set: SetId, at: Option<Timestamp>) {
        self.set = set;
        let lists = &mut self.stated.lists;
        match lists.binary_search_by_key(&set, |(listed, _)| *listed) {
            Ok(place) => lists[place].1 = at,
            Err(place) => lists.insert(place, (set, at)),
        }
    }

    /// What is held back of `set` so far does not count: it was held back only because the set could not be read.
    /// What its lists lack now counts as a loss.
    pub fn decide_again(&mut self, set: SetId) {
        self.decided_again.insert(set);
    }

    /// What the journal holds of `set` goes, where it is not listed: else it rests until the set is back.
    pub fn forget(&mut self, set: SetId) {
        self.stated.forgotten.insert(set);
    }

    /// Adds one entry of a list. Order does not matter; of several for one URI within a set the latest `lastmod`, else the last
    /// added counts, and where sets differ the one whose list speaks for the later time.
    pub fn add(&mut self, entry: &Entry) -> Result<(), CatalogError> {
        self.rows.add_file(&self.stated.naming, &self.catalog.symbols, self.set, entry, None)
    }

    /// For entries of the set that is being listed which another thread adds; they count as added at [`Baseline::join`].
    pub fn share(&self) -> Share<'_> {
        Share::new(self.catalog, &self.stated.naming, self.set, self.limits)
    }

    /// Takes what was added to a share.
    ///
    /// # Errors
    /// What was added here before could not be spilled, or what was spilled not be merged (the disk is full): the baseline is given
    /// up.
    pub fn join(&mut self, shared: Shared) -> Result<(), CatalogError> {
        self.rows.join(shared)
    }

    /// Adds one entry of a dump's manifest where the Source has no list: the resource and the member that holds it.
    pub fn add_with_member(&mut self, entry: &Entry, member: &PackageMember) -> Result<(), CatalogError> {
        self.rows.add_file(&self.stated.naming, &self.catalog.symbols, self.set, entry, Some(member))
    }

    /// Adds one entry of a dump's manifest where there are lists too: where they have its URI and provably this version (an equal digest
    /// of a shared algorithm, else an equal `lastmod` and length), `member` holds it. It is no statement of what exists.
    pub fn add_member(&mut self, entry: &Entry, member: &PackageMember) -> Result<(), CatalogError> {
        self.rows.add_member(&self.stated.naming, &self.catalog.symbols, self.set, entry, member)
    }

    /// Adds a change of a listed set. It counts unless the set's list speaks for a later time, or the journal has a later
    /// change of the resource.
    pub fn apply(&mut self, statement: Statement<'_>) -> Result<(), CatalogError> {
        let value = &mut self.rows.value;
        value.clear();
        Row::encode(&statement, &self.catalog.symbols, value);
        self.changes.add(&statement_key(statement.set, &statement.entry.loc), value)
    }

    /// [`Baseline::commit_guarded`] where all that is not listed may go.
    #[cfg(test)]
    pub(crate) fn commit(self, at: Option<Timestamp>, state: &[u8]) -> Result<Committed, CatalogError> {
        self.commit_guarded(at, &mut |_| (Held::Nothing, state.to_vec()))
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
        if self.stated.lists.is_empty() {
            self.stated.lists.push((SetId::default(), at));
        }
        let catalog = self.catalog;
        // What reading the lists took is free by now, and the store wants its own.
        crate::platform::allocator::release_free();
        let _writer = catalog.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let committed = self.commit_locked(&catalog.store(), at, decide);
        match &committed {
            Ok(_) => catalog.drop_damaged(),
            Err(error) if error.is_damage() => catalog.distrust(),
            Err(_) => {}
        }
        committed.map_err(|error| catalog.failure(error))
    }

    fn commit_locked(
        self,
        store: &Store,
        at: Option<Timestamp>,
        decide: Decide<'_>,
    ) -> Result<Committed, CatalogError> {
        if self.catalog.distrusted.load(Ordering::Acquire) {
            return self.commit_first(store, true, at, decide);
        }
        let old = store.env.read_txn()?;
        let before = Before::read(store, &old)?;
        match before.revision {
            Some(_) => self.commit_over(&before, at, decide),
            None => self.commit_first(store, false, at, decide),
        }
    }

    /// Compares everything with the revision `before`, and writes what differs in place, or the whole tree.
    fn commit_over(
        mut self,
        before: &Before<'_>,
        at: Option<Timestamp>,
        decide: Decide<'_>,
    ) -> Result<Committed, CatalogError> {
        let catalog = self.catalog;
        let mut news = self.take_changes().finish()?;
        let mut stale = self.add_held(before)?;
        let (stated, mut statement) = self.sorted(before, at, &mut news)?;
        let listing = stated.listing(catalog, at);
        let mut diff = Diff::of(catalog, before, listing, &mut statement)?;
        let (held, state) = decide(&diff.losses);
        let Some(mut changes) = diff.changes.take() else {
            let kept =
                if held == Held::Nothing { None } else { Some(diff.departed.kept(&held, catalog, listing.naming)?) };
            drop(diff);
            let statement = statement.again_with(kept, listing)?;
            let successor = before.store.of_the_same_instance(&catalog.spill_folder)?;
            let numbers = before.revision.as_ref().map_or(Numbers::FIRST, Numbers::from);
            let target = Target { store: successor.store(), numbers };
            let rows = &mut |put: &mut PutRow<'_>| journal_rows(before, &mut news, listing.speaking, true, put);
            let mut committed = rebuild(catalog, before, listing, statement, target, rows, &mut |_| Ok(state.clone()))?;
            catalog.succeed(successor, version::now())?;
            if !matches!(committed.invalidations[..], [Invalidation::Everything(_)]) {
                committed.invalidations.push(Invalidation::Orphans);
            }
            return Ok(committed);
        };
        drop(statement);
        let now = version::now();
        let mut kept = Vec::new();
        diff.hold(&mut changes, &held, &mut |set, uri| {
            let mut row = Vec::new();
            held::encode(list_at(&stated.lists, Some(set)).unwrap_or(now), uri, &mut row);
            kept.push((statement_key(set, uri), row));
        })?;
        let FewChanges { resources, released, left_out } = changes;
        let rows = &mut |put: &mut PutRow<'_>| {
            while let Some((key, _)) = stale.next()? {
                put(TableId::Held, key, None)?;
            }
            released.iter().try_for_each(|key| put(TableId::Held, key, None))?;
            kept.iter().try_for_each(|(key, row)| put(TableId::Held, key, Some(row)))?;
            journal_rows(before, &mut news, listing.speaking, false, put)
        };
        let mut committed = apply(catalog, before, resources, CommittedWith { rows, at, state, sets: diff.sets })?;
        for (path, count) in left_out {
            *committed.left_out.entry(path).or_default() += count;
        }
        Ok(committed)
    }

    /// Builds the tree into an empty store, which takes the place of `store`: that has no tree, or one that is damaged. Then every inode
    /// and entry id is new, the root's excepted, for the kernel may still know the old ones. Of its journal all counts that can be read.
    fn commit_first(
        mut self,
        store: &Store,
        is_damaged: bool,
        at: Option<Timestamp>,
        decide: Decide<'_>,
    ) -> Result<Committed, CatalogError> {
        let catalog = self.catalog;
        let mut news = self.take_changes().finish()?;
        let (successor, numbers) = match is_damaged {
            true => {
                // Of the same time the new ones count.
                news = rescued_journal(store, &catalog.spill_folder)?.again_with(Some(news))?;
                (store.empty(&catalog.spill_folder)?, last_numbers(store))
            }
            false => (store.of_the_same_instance(&catalog.spill_folder)?, Numbers::FIRST),
        };
        let empty = successor.store().clone();
        // A transaction that reads a store keeps its pages from being used again.
        let readable = if is_damaged { &empty } else { store };
        let old = readable.env.read_txn()?;
        let before = Before::read(readable, &old)?;
        let (stated, statement) = self.sorted(&before, at, &mut news)?;
        let listing = stated.listing(catalog, at);
        let rows = &mut |put: &mut PutRow<'_>| journal_rows(&before, &mut news, listing.speaking, true, put);
        let decide = &mut |losses: &Losses| match is_damaged {
            true => match decide(&fewer(store, losses)) {
                (Held::Nothing, state) => Ok(state),
                _ => Err(CatalogError::Undecided),
            },
            // Nothing is there that could go: nothing is to be decided.
            false => Ok(decide(losses).1),
        };
        let target = Target { store: &empty, numbers };
        let mut committed = rebuild(catalog, &before, listing, statement, target, rows, decide)?;
        if is_damaged {
            committed.invalidations = vec![Invalidation::Everything([INodeNo(ROOT)].into_iter().collect())];
        }
        catalog.replace_store(successor, |_| None)?;
        catalog.distrusted.store(false, Ordering::Release);
        Ok(committed)
    }

    fn take_changes(&mut self) -> Sorter {
        std::mem::replace(&mut self.changes, Sorter::new(&self.catalog.spill_folder, CHANGE_LIMITS))
    }

    /// Sorts everything that is stated, with what the journal of the revision `before` keeps in force.
    fn sorted(
        self,
        before: &Before<'_>,
        at: Option<Timestamp>,
        news: &mut Sorted,
    ) -> Result<(Stated, SortedStatement), CatalogError> {
        let Baseline { catalog, stated, mut rows, .. } = self;
        let listing = stated.listing(catalog, at);
        let mut superseding = None;
        journal::brought_forward(before.store, before.old, news, listing.speaking, &mut |key, row, fate| match fate {
            Fate::Goes | Fate::Rests { .. } => Ok(()),
            Fate::New | Fate::Stays => {
                let row = Row::decode(row).ok_or_else(|| damaged("sense", key))?;
                let (record, uri) = row.record().ok_or_else(|| damaged("sense", key))?;
                let set = record.sets.iter().next().unwrap_or_default();
                let superseding = superseding.get_or_insert_with(|| Superseding::new(&catalog.spill_folder));
                superseding.add_change(set, &uri, row.change, listing.naming)?;
                if row.change == Change::Deleted {
                    return Ok(());
                }
                let mut head = Vec::new();
                push_change(&mut head, ChangeOf { time: row.time, shown: row.shown, is_news: fate == Fate::New });
                let time = record.lastmod.or(row.shown);
                rows.add_record(&uri, &record, &[set], &head, time, (catalog, listing.naming))
            }
        })?;
        let newest = rows.close()?;
        let statement = SortedStatement::new(rows.sorter.finish()?, newest, superseding, listing)?;
        Ok((stated, statement))
    }

    /// Adds to the statement what is held back, as it is in the tree. Answers the keys of rows that hold nothing (any more), which may be
    /// as many as there are files.
    fn add_held(&mut self, before: &Before<'_>) -> Result<Sorted, CatalogError> {
        let mut stale = Sorter::new(&self.catalog.spill_folder, SMALL_SORT);
        let Before { store, old, naming: Some(naming), .. } = before else { return stale.finish() };
        for pair in store.held.iter(old)? {
            let (key, sealed) = pair?;
            let sense = || damaged("sense", key);
            let HeldDeletion { set, uri, .. } = held::decode(key, unseal(key, sealed)?).ok_or_else(sense)?;
            let located = if self.decided_again.contains(&set) { None } else { locate(store, old, naming, &uri)? };
            let record =
                located.map(|located| ResourceRecord::decode(located.resource).ok_or_else(sense)).transpose()?;
            match record.filter(|record| record.sets.contains(set)) {
                Some(record) => {
                    let rules = (self.catalog, &self.stated.naming);
                    self.rows.add_record(&uri, &record, &[set], &[tag::KEPT, 1], record.lastmod, rules)?;
                }
                None => stale.add(key, &[])?,
            }
        }
        stale.finish()
    }
}

/// Writes the rows of the journal, with the new changes: those that differ from what is there, or all of them.
fn journal_rows(
    before: &Before<'_>,
    news: &mut Sorted,
    speaking: Speaking<'_>,
    all: bool,
    put: &mut PutRow<'_>,
) -> Result<(), CatalogError> {
    news.rewind()?;
    journal::brought_forward(before.store, before.old, news, speaking, &mut |key, row, fate| match fate {
        Fate::Stays | Fate::Rests { is_new: false } if !all => Ok(()),
        Fate::Stays | Fate::New | Fate::Rests { .. } => put(TableId::Journal, key, Some(row)),
        Fate::Goes => put(TableId::Journal, key, None),
    })
}

/// The rows of a damaged store's journal that can be read.
fn rescued_journal(store: &Store, spill_folder: &SpillFolder) -> Result<Sorted, CatalogError> {
    let mut rescued = Sorter::new(spill_folder, CHANGE_LIMITS);
    let rescue = |rescued: &mut Sorter| {
        let txn = store.env.read_txn()?;
        for pair in store.journal.iter(&txn)? {
            let (key, sealed) = pair?;
            let row = unseal(key, sealed)?;
            Row::decode(row).and_then(|row| row.record()).ok_or_else(|| damaged("sense", key))?;
            rescued.add(key, row)?;
        }
        Ok::<_, CatalogError>(())
    };
    if let Err(error) = rescue(&mut rescued) {
        tracing::warn!(%error, "changes that were applied since the last list are lost");
    }
    rescued.finish()
}

/// By how much a tree, all of which comes, is smaller than the one that cannot be read any more, where its sums can be read.
fn fewer(store: &Store, tree: &Losses) -> Losses {
    let Ok(txn) = store.env.read_txn() else { return tree.clone() };
    let (Ok(Some(revision)), Ok(before)) = (store.revision(&txn), store.sets(&txn)) else { return tree.clone() };
    let (present, files) = (revision.totals.files, tree.coming);
    let now: BTreeMap<SetId, u64> = tree.sets.iter().map(|set| (set.set, set.coming)).collect();
    let lost = before.iter().map(|record| {
        let files = record.files.saturating_sub(now.get(&record.set).copied().unwrap_or(0));
        Departure { sets: Box::new([record.set]), is_last: false, files }
    });
    let mut departures: Vec<_> = lost.filter(|departure| departure.files > 0).collect();
    departures.push(Departure { sets: Box::new([]), is_last: true, files: present.saturating_sub(files) });
    let coming = now.iter().map(|(set, files)| (*set, files.saturating_sub(before.files(*set)))).collect();
    losses(present, files.saturating_sub(present), &before, coming, departures)
}

/// The numbers that a damaged store may have given: those of its revision, else half of all.
fn last_numbers(store: &Store) -> Numbers {
    let half = NUMBER_LIMIT / 2;
    let txn = store.env.read_txn();
    match txn.map_err(CatalogError::from).and_then(|txn| store.revision(&txn)) {
        Ok(revision) => revision.as_ref().map_or(Numbers::FIRST, Numbers::from),
        Err(_) => Numbers { next_ino: half, next_entry: half, ..Numbers::FIRST },
    }
}
