//! Baseline: a complete statement of what exists, with what changed since.

use super::Committed;
use super::Statement;
use super::apply::write::Numbers;
use super::going::{Going, Gone};
use super::held;
use super::ingest::{Rows, Share, Shared};
use super::journal;
use super::journal::{Fate, Row, Speaking};
use super::losses::losses;
use super::merge::{Listing, Merge};
use super::naming::media_types;
use super::naming::resolve::{path_by_rule, path_of_record};
use super::revision::Before;
use super::sort::{RunLimits, Sorted, Sorter};
use super::sort_key::{FIRST_SEEN, push_key};
use super::statement::push_change;
use super::store::codec::NUMBER_LIMIT;
use super::store::keys::statement_key;
use super::store::{ROOT, Store, Successor};
use super::superseded::{Noted, Overtaken};
use super::{Catalog, CatalogError, Invalidation, Naming, SetId};
use super::{Decide, Departure, Held, Losses};
use crate::document::{Change, Entry, PackageMember, Timestamp};
use fuser::INodeNo;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Changes in memory while the list itself takes most of it.
const CHANGE_LIMITS: RunLimits = RunLimits { octets: 4 << 20, pairs: 1 << 16, resident: 1 << 20 };

/// A complete statement of what exists, as it streams in; dropped without commit it leaves no trace.
///
/// No other commit of statements may come between its first call and its commit.
pub struct Baseline<'c> {
    catalog: &'c Catalog,
    naming: Naming,
    rows: Rows,
    /// Changes, as rows of the journal.
    changes: Sorter,
    limits: RunLimits,
    /// The sets and what their lists speak for, ascending; empty for the first set alone.
    lists: Vec<(SetId, Option<Timestamp>)>,
    /// The set that is being listed.
    set: SetId,
    /// Sets of which nothing is held back any more but what is decided now.
    anew: BTreeSet<SetId>,
    /// Sets whose part of the journal goes.
    forgotten: BTreeSet<SetId>,
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
            naming,
            rows: Rows::new(&catalog.spill_folder, limits),
            changes: Sorter::new(&catalog.spill_folder, CHANGE_LIMITS),
            limits,
            lists: Vec::new(),
            set: SetId::default(),
            anew: BTreeSet::new(),
            forgotten: BTreeSet::new(),
        }
    }

    /// What is added from here on is of `set`, whose list speaks for `at`: changes of the journal that are older do not count
    /// any more. Without `at` all of them count. A set may be listed in several parts, with the same `at`.
    pub fn list(&mut self, set: SetId, at: Option<Timestamp>) {
        self.set = set;
        match self.lists.binary_search_by_key(&set, |(listed, _)| *listed) {
            Ok(place) => self.lists[place].1 = at,
            Err(place) => self.lists.insert(place, (set, at)),
        }
    }

    /// What is held back of `set` so far does not count: nothing told of these deletions but that the set could not be had.
    /// What its lists lack now counts as a loss.
    pub fn decide_anew(&mut self, set: SetId) {
        self.anew.insert(set);
    }

    /// What the journal holds of `set` goes, where it is not listed: else it rests until the set is back.
    pub fn forget(&mut self, set: SetId) {
        self.forgotten.insert(set);
    }

    /// Adds one entry of a list. Order does not matter; of several for one URI within a set the latest `lastmod`, else the last
    /// added counts, and where sets differ the one whose list speaks for the later time.
    pub fn add(&mut self, entry: &Entry) -> Result<(), CatalogError> {
        self.rows.add_file(&self.naming, &self.catalog.symbols, self.set, entry, None)
    }

    /// For entries of the set that is being listed which another thread adds; they count as added at [`Baseline::join`].
    pub fn share(&self) -> Share<'_> {
        Share::new(self.catalog, &self.naming, self.set, self.limits)
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
        self.rows.add_file(&self.naming, &self.catalog.symbols, self.set, entry, Some(member))
    }

    /// Adds one entry of a dump's manifest beside lists: where they have its URI and provably this version (an equal digest
    /// of a shared algorithm, else an equal `lastmod` and length), `member` holds it. It is no statement of what exists.
    pub fn add_member(&mut self, entry: &Entry, member: &PackageMember) -> Result<(), CatalogError> {
        self.rows.add_member(&self.naming, &self.catalog.symbols, self.set, entry, member)
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
    pub(crate) fn commit(self, at: Option<Timestamp>, position: &[u8]) -> Result<Committed, CatalogError> {
        self.commit_guarded(at, &mut |_| (Held::Nothing, position.to_vec()))
    }

    /// Merges with the current revision and commits tree, journal, held deletions and position, all at once. `at` is
    /// what the revision speaks for.
    ///
    /// `decide` is asked once. Files whose deletion was held back before and that are still not listed stay so: they are no loss.
    /// Where more is to be held back, the tree is merged a second time, with what would go.
    ///
    /// # Errors
    /// The tree stays as it was. After [`CatalogError::Damaged`] the next baseline builds the store anew, whatever is in the old
    /// one, so the same baseline given once more will do. What would be held back cannot be read then: where `decide` holds
    /// anything, that baseline fails with [`CatalogError::Undecided`].
    ///
    /// Where the tree is the same nothing is written but, if they differ, `at`, journal and position. The first revision of a
    /// catalog has no invalidations: nothing was shown before.
    pub fn commit_guarded(mut self, at: Option<Timestamp>, decide: Decide<'_>) -> Result<Committed, CatalogError> {
        if self.lists.is_empty() {
            self.lists.push((SetId::default(), at));
        }
        let catalog = self.catalog;
        // What reading the lists took is free by now, and the store wants its own.
        crate::platform::allocator::release_free();
        let _writer = catalog.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if catalog.distrusted.load(Ordering::Acquire) {
            return self.rebuild(at, decide).map_err(|error| catalog.failure(error));
        }
        let committed = self.merge(&catalog.store(), at, decide).map_err(|error| catalog.failure(error));
        match &committed {
            Ok(_) => catalog.drop_damaged(),
            Err(error) if error.is_damage() => catalog.distrust(),
            Err(_) => {}
        }
        committed
    }

    fn merge(mut self, store: &Store, at: Option<Timestamp>, decide: Decide<'_>) -> Result<Committed, CatalogError> {
        let old = store.env.read_txn()?;
        let before = Before::read(store, &old)?;
        let changes = std::mem::replace(&mut self.changes, Sorter::new(&self.catalog.spill_folder, CHANGE_LIMITS));
        let mut changes = changes.finish()?;
        let mut overtaken = self.bring_forward(store, &old, &mut changes)?;
        let anew = std::mem::take(&mut self.anew);
        let spill_folder = &self.catalog.spill_folder;
        let mut stale =
            held::state(&before, &anew, spill_folder, &mut |uri, resource, set| self.add_kept(uri, resource, set))?;
        let newest = self.rows.close()?;
        let mut sorted = without_empty_folders(&mut overtaken, self.rows.sorter.finish()?)?;
        let speaking = Speaking { lists: &self.lists, forgotten: &self.forgotten };
        let listing = Listing { naming: &self.naming, newest, at, speaking };

        if before.revision.is_none() {
            // Nothing is there that could go: nothing is to be decided.
            sorted = sorted.read_once();
        }
        let mut successor = None;
        // The position, once it is decided what is held back.
        let mut decided = None;
        loop {
            let notes = before.revision.is_some() && decided.is_none();
            let going = notes.then(|| Going::new(&self.catalog.spill_folder));
            let into = successor.as_ref().map(Successor::store);
            let mut merge = Merge::new(self.catalog, &before, listing, None, going, into)?;
            merge.drop_held(&mut stale)?;
            let most = match before.revision {
                Some(_) if into.is_none() => self.catalog.most_in_place(before.files()),
                _ => u64::MAX,
            };
            if !merge.walk(&mut sorted, &mut overtaken, most)? {
                drop(merge);
                successor = Some(Store::empty(spill_folder)?);
                sorted = without_empty_folders(&mut overtaken, sorted.again_with(None)?)?;
                continue;
            }
            let mut gone = merge.gone()?;
            let position = match decided.take() {
                Some(position) => position,
                None => {
                    let departures = gone.as_mut().map_or(Ok(Vec::new()), Gone::departures)?;
                    let (held, position) = decide(&merge.losses(departures));
                    if let Some(gone) = gone.filter(|_| held != Held::Nothing) {
                        drop(merge);
                        decided = Some(position);
                        let kept = gone.kept(&held)?;
                        sorted = without_empty_folders(&mut overtaken, sorted.again_with(Some(kept))?)?;
                        continue;
                    }
                    position
                }
            };
            let now = merge.now();
            // The next one reads it no more.
            drop(sorted);
            let mut committed = merge.finish(&position, changes.again_with(None)?)?;
            drop(before);
            drop(old);
            if let Some(successor) = successor {
                self.catalog.succeed(successor, now)?;
                if !matches!(committed.invalidations[..], [Invalidation::Everything(_)]) {
                    committed.invalidations.push(Invalidation::Orphans);
                }
            }
            return Ok(committed);
        }
    }

    /// Adds to the stream what the journal and the new changes say, and answers what lists say in vain.
    fn bring_forward(
        &mut self,
        store: &Store,
        old: &heed::RoTxn<'_>,
        changes: &mut Sorted,
    ) -> Result<Option<Overtaken>, CatalogError> {
        let mut noted = None;
        let lists = std::mem::take(&mut self.lists);
        let forgotten = std::mem::take(&mut self.forgotten);
        let speaking = Speaking { lists: &lists, forgotten: &forgotten };
        let spill_folder = &self.catalog.spill_folder;
        let told = journal::brought_forward(store, old, changes, speaking, &mut |key, row, fate| match fate {
            Fate::Goes | Fate::Rests { .. } => Ok(()),
            Fate::New | Fate::Stays => {
                let noted = noted.get_or_insert_with(|| Noted::new(spill_folder));
                self.add_change(key, row, fate == Fate::New, noted)
            }
        });
        (self.lists, self.forgotten) = (lists, forgotten);
        told?;
        noted.map(Noted::finish).transpose()
    }

    fn add_change(&mut self, key: &[u8], row: &[u8], news: bool, noted: &mut Noted) -> Result<(), CatalogError> {
        let sense = || super::store::codec::damaged("sense", key);
        let row = Row::decode(row).ok_or_else(sense)?;
        let (record, uri) = row.record().ok_or_else(sense)?;
        let set = record.sets.iter().next().unwrap_or_default();
        let https = uri.scheme() == "https";
        // What a list says of it lies at this path, or by its URI at the path of its type.
        let rows = &mut self.rows;
        let (path, by_rule) = path_by_rule(&self.naming, &uri, None);
        push_key(&mut rows.key, &path);
        if by_rule {
            noted.add(set, &rows.key, https, None)?;
        } else {
            noted.add(set, &rows.key, https, Some(uri.as_str()))?;
        }
        if row.change == Change::Deleted {
            noted.add_gone(&rows.key)?;
        }
        if self.naming.extension_by_type {
            for media_type in media_types() {
                let (typed, _) = path_by_rule(&self.naming, &uri, Some(media_type));
                if typed == path {
                    break;
                }
                push_key(&mut rows.key, &typed);
                noted.add(set, &rows.key, https, Some(uri.as_str()))?;
            }
        }
        if row.change == Change::Deleted {
            return Ok(());
        }
        let (path, by_rule) = path_of_record(&self.naming, &uri, &record, &self.catalog.symbols).ok_or_else(sense)?;
        push_key(&mut rows.key, &path);
        rows.folders.enter_above(&rows.key, &mut rows.sorter)?;
        rows.folders.see(record.lastmod.or(row.shown).unwrap_or(FIRST_SEEN));
        rows.value.clear();
        push_change(&mut rows.value, news, row.time, row.shown);
        record.push_with_uri((!by_rule).then_some(uri.as_str()), &mut rows.value);
        rows.sorter.add(&rows.key, &rows.value)
    }

    /// Adds to the stream a resource whose deletion from `set` is held back.
    fn add_kept(&mut self, uri: &crate::document::Uri, resource: &[u8], set: SetId) -> Result<(), CatalogError> {
        let rows = &mut self.rows;
        rows.value.clear();
        let symbols = &self.catalog.symbols;
        let kept = (uri, resource, &[set][..]);
        super::going::push_kept(&mut rows.key, &mut rows.value, kept, true, &self.naming, symbols)?;
        rows.folders.enter_above(&rows.key, &mut rows.sorter)?;
        let time = super::going::kept_time(super::store::codec::Octets(&rows.value));
        rows.folders.see(time.unwrap_or(FIRST_SEEN));
        rows.sorter.add(&rows.key, &rows.value)
    }

    /// Builds the tree into an empty store, which then takes the place of the damaged one: every inode and entry id is new,
    /// the root's excepted, for the kernel may still know the old ones. Of the journal all counts that can be read.
    fn rebuild(mut self, at: Option<Timestamp>, decide: Decide<'_>) -> Result<Committed, CatalogError> {
        let catalog = self.catalog;
        let damaged = catalog.store();
        let mut rescued = Sorter::new(&catalog.spill_folder, CHANGE_LIMITS);
        if let Err(error) = rescue_journal(&damaged, &mut rescued) {
            tracing::warn!(%error, "changes that were applied since the last list are lost");
        }
        let successor = Store::empty(&catalog.spill_folder)?;
        let store = successor.store().clone();
        let old = store.env.read_txn()?;
        let before = Before::read(&store, &old)?;
        let changes = std::mem::replace(&mut self.changes, Sorter::new(&catalog.spill_folder, CHANGE_LIMITS));
        // Of the same time the new ones count.
        let mut changes = rescued.finish()?.again_with(Some(changes.finish()?))?;
        let mut overtaken = self.bring_forward(&store, &old, &mut changes)?;
        let newest = self.rows.close()?;
        let mut sorted = without_empty_folders(&mut overtaken, self.rows.sorter.finish()?)?;
        let speaking = Speaking { lists: &self.lists, forgotten: &self.forgotten };
        let listing = Listing { naming: &self.naming, newest, at, speaking };
        let mut merge = Merge::new(catalog, &before, listing, Some(last_numbers(&damaged)), None, None)?;
        merge.walk(&mut sorted, &mut overtaken, u64::MAX)?;
        let (held, position) = decide(&fewer(&damaged, &merge));
        if held != Held::Nothing {
            return Err(CatalogError::Undecided);
        }
        let mut committed = merge.finish(&position, changes.again_with(None)?)?;
        drop(before);
        drop(old);
        committed.invalidations = vec![Invalidation::Everything([INodeNo(ROOT)].into_iter().collect())];
        // A large tree is in a store of its own, which has taken that place.
        if Arc::ptr_eq(&damaged, &catalog.store()) {
            catalog.replace_store(successor, |_| None)?;
        }
        catalog.distrusted.store(false, Ordering::Release);
        Ok(committed)
    }
}

/// Adds the rows of a damaged store's journal to `rescued`.
fn rescue_journal(damaged: &Store, rescued: &mut Sorter) -> Result<(), CatalogError> {
    let txn = damaged.env.read_txn()?;
    for pair in damaged.journal.iter(&txn)? {
        let (key, sealed) = pair?;
        let row = super::store::codec::unseal(key, sealed)?;
        Row::decode(row).and_then(|row| row.record()).ok_or_else(|| super::store::codec::damaged("sense", key))?;
        rescued.add(key, row)?;
    }
    Ok(())
}

/// See [`Overtaken::find_empty_folders`].
fn without_empty_folders(overtaken: &mut Option<Overtaken>, sorted: Sorted) -> Result<Sorted, CatalogError> {
    match overtaken {
        Some(overtaken) => overtaken.find_empty_folders(sorted),
        None => Ok(sorted),
    }
}

/// By how much a tree is smaller than the one that cannot be read any more, so far as its sums can be.
fn fewer(damaged: &Store, merge: &Merge<'_>) -> Losses {
    let unknown = || merge.losses(Vec::new());
    let Ok(txn) = damaged.env.read_txn() else { return unknown() };
    let (Ok(Some(revision)), Ok(before)) = (damaged.revision(&txn), damaged.sets(&txn)) else { return unknown() };
    let (present, files) = (revision.totals.files, merge.files());
    let now: BTreeMap<SetId, u64> = unknown().sets.iter().map(|set| (set.set, set.coming)).collect();
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
    let Ok(txn) = store.env.read_txn() else { return Numbers { next_ino: half, next_entry: half, ..Numbers::FIRST } };
    match store.revision(&txn) {
        Ok(Some(revision)) => Numbers::from(&revision),
        Ok(None) => Numbers::FIRST,
        Err(_) => Numbers { next_ino: half, next_entry: half, ..Numbers::FIRST },
    }
}
