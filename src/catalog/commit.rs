//! A commit: what is stated of the tree, as it streams in, and its way to one revision.
//!
//! 1. Statements become facts ([`Facts`]): entries of lists and manifests at once, changes when the journal has been read.
//! 2. Facts are compared with the revision that is shown ([`Diff`]); the caller decides what of the losses is held back, and what is held
//!    back is stated with the rest.
//! 3. Few edits are written in place ([`in_place`]), many and a first revision whole ([`whole`]): tree, journal, held deletions and the
//!    caller's position in one transaction. So many changes that the tree is written whole state all that is shown with them.

use super::base::Base;
use super::edit::Diff;
use super::fact::{ChangedValue, FactTag, Facts, SharePart};
use super::group::{FactScope, SortedFacts};
use super::journal::{ChangeRow, Fate, add_known, next_row};
use super::naming::locate::located;
use super::naming::media_types;
use super::naming::names_of_path::path_by_rule;
use super::pages::{PageRows, put_pages};
use super::sink::in_place;
use super::sink::tree::TreeWriter;
use super::sink::whole;
use super::sort::{LARGE_SORT, SMALL_SORT, Sorted, Sorter};
use super::store::codec::{damaged, pack};
use super::store::keys::resource_key;
use super::store::record::{ResourceRecord, held};
use super::store::{TableId, TreeStore};
use super::version::ChangeMark;
use super::{Catalog, CatalogError, Committed, Decide, Held, ITEMS, Losses, Naming, SetId, StatedChange};
use crate::document::{Change, Entry, PackageMember, Timestamp, Uri};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Statements that become one revision; dropped without [`Commit::finish`] they leave no trace.
///
/// A commit of lists states all that exists. A commit of changes speaks for the resources that it names alone.
/// No other commit may come between its beginning and its end.
pub struct Commit<'c> {
    catalog: &'c Catalog,
    scope: FactScope,
    facts: Facts,
    /// Changes, as rows of the journal.
    changes: Sorter,
    /// The number of changes.
    count: u64,
    /// True for a commit of changes, also where it states the whole tree with them.
    is_of_changes: bool,
    /// The sets of the changes.
    changed_sets: BTreeSet<SetId>,
    /// The set that is being listed.
    set: SetId,
    /// True for sets of which what is held back is decided again, false for those of which it stays. Of the others it is decided again
    /// where most of it is listed.
    redecided: BTreeMap<SetId, bool>,
    /// Held deletions that are applied.
    accepted: HashSet<(SetId, Uri)>,
    /// Landing pages that were read, or have gone.
    pub(super) pages: PageRows,
}

impl Catalog {
    /// Begins a commit of lists.
    pub fn commit_of_lists(&self, naming: Naming) -> Result<Commit<'_>, CatalogError> {
        Ok(Commit::with_memory(self, naming, LARGE_SORT))
    }

    /// Begins a commit of changes over the current revision, under its naming.
    pub fn commit_of_changes(&self) -> Commit<'_> {
        let mut commit = Commit::with_memory(self, Naming::default(), SMALL_SORT);
        (commit.scope.is_partial, commit.is_of_changes) = (true, true);
        commit
    }
}

impl<'c> Commit<'c> {
    pub(super) fn with_memory(catalog: &'c Catalog, naming: Naming, most: usize) -> Commit<'c> {
        Commit {
            catalog,
            scope: FactScope { naming, ..FactScope::default() },
            facts: Facts::new(&catalog.spill_folder, most),
            changes: Sorter::new(&catalog.spill_folder, SMALL_SORT),
            count: 0,
            is_of_changes: false,
            changed_sets: BTreeSet::new(),
            set: SetId::default(),
            redecided: BTreeMap::new(),
            accepted: HashSet::new(),
            pages: PageRows::new(),
        }
    }

    /// Begins the list of `set`, which speaks for `at`: changes of the journal that are older do not count any more. Without `at` all of
    /// them count. A set may be listed in several parts, with the same `at`.
    pub fn begin_list(&mut self, set: SetId, at: Option<Timestamp>) {
        self.set = set;
        self.scope.lists.insert(set, at);
    }

    /// Lets what is held back of `set` be decided again: it was held back only because the set could not be read. Resources
    /// that its lists lack now count as a loss.
    pub fn decide_again(&mut self, set: SetId) {
        self.redecided.insert(set, true);
    }

    /// Lets what is held back of `sets` be decided again only where it is listed.
    pub fn keep_held(&mut self, sets: &BTreeSet<SetId>) {
        sets.iter().for_each(|set| _ = self.redecided.entry(*set).or_insert(false));
    }

    /// Forgets what the journal holds of `set`: its lists speak for all of that, or it has left the Source.
    pub fn forget(&mut self, set: SetId) {
        self.scope.forgotten.insert(set);
    }

    /// Adds one entry of a list. Order does not matter. The latest entry for one URI wins: by its list's time, then by `lastmod`, then by
    /// the order of calls.
    pub fn add(&mut self, entry: &Entry) -> Result<(), CatalogError> {
        self.facts.add_entry(FactTag::Listed, &self.scope.naming, self.set, entry, None)
    }

    /// Takes what was added to a share.
    ///
    /// # Errors
    /// Earlier facts could not be spilled or merged (the disk is full): the commit is given up.
    pub fn join(&mut self, shared: SharePart) -> Result<(), CatalogError> {
        self.facts.sorter.join(shared.0)
    }

    /// Adds one entry of a dump's manifest where the Source has no list: the resource and the member that holds it.
    pub fn add_with_member(&mut self, entry: &Entry, member: &PackageMember) -> Result<(), CatalogError> {
        self.facts.add_entry(FactTag::Listed, &self.scope.naming, self.set, entry, Some(member))
    }

    /// Adds one entry of a dump's manifest where there are lists too: where they have its URI and provably this version (an equal digest
    /// of a shared algorithm, else an equal `lastmod` and length), `member` holds it. It does not state that the resource exists.
    pub fn add_member(&mut self, entry: &Entry, member: &PackageMember) -> Result<(), CatalogError> {
        self.facts.add_entry(FactTag::Member, &self.scope.naming, self.set, entry, Some(member))
    }

    /// Adds a change. It counts unless the list of its set speaks for a later time, or the journal has a later change of the resource; of
    /// equal times the later call counts. A deletion of what is not there stays in the journal too: an older list may have the resource.
    pub fn apply(&mut self, stated: StatedChange<'_>) -> Result<(), CatalogError> {
        self.count += 1;
        self.changed_sets.insert(stated.set);
        self.changes.add(&resource_key(stated.set, &stated.entry.loc), &ChangeRow::of(&stated))
    }

    /// Adds deletions that earlier commits have held back, as many as a commit may change in place; answers how many. A caller that wants
    /// all of them commits and begins again until there are none ([`super::Snapshot::held_count`]). They are decided: nothing of this
    /// commit is held back, and its losses are none.
    pub fn accept_held(&mut self) -> Result<u64, CatalogError> {
        let store = self.catalog.store();
        let txn = store.env.read_txn()?;
        let most = usize::try_from(self.catalog.most_in_place()).unwrap_or(usize::MAX);
        for row in store.all(&txn, TableId::Held)?.take(most) {
            let (key, row) = row?;
            let (set, uri) = held(key, row).ok_or_else(|| damaged("content", key))?;
            self.accepted.insert((set, uri));
        }
        Ok(self.accepted.len() as u64)
    }

    /// Compares everything with the revision that is shown, and commits tree, journal, held deletions and position, all at once. `at` is
    /// what the revision speaks for.
    ///
    /// `decide` is asked once. Files whose deletion was held back before and that are still not listed stay so: they are not a
    /// loss.
    ///
    /// Where the tree is the same nothing is written but, if they differ, `at`, journal and position. The first revision of a
    /// catalog has no invalidations: nothing was shown before.
    ///
    /// # Errors
    /// The tree stays as it was. Changes before the first list are [`CatalogError::NoRevision`]. After
    /// [`CatalogError::Damaged`] the next commit of lists builds another store, and reads little of the old one. Deletions to
    /// be held back cannot be read then: where `decide` holds anything, that commit fails with [`CatalogError::Undecided`].
    pub fn finish(mut self, at: Option<Timestamp>, decide: Decide<'_>) -> Result<Committed, CatalogError> {
        let (catalog, is_partial) = (self.catalog, self.scope.is_partial);
        self.scope.at = at;
        if !is_partial {
            if self.scope.lists.is_empty() {
                self.scope.lists.insert(SetId::default(), at);
            }
            // The memory of reading the lists is free by now, and the store needs memory.
            crate::platform::allocator::release_free();
        }
        let writer = catalog.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let store = catalog.store();
        let committed = match !is_partial && catalog.is_distrusted() {
            true => self.commit_damaged(&store, decide),
            false => self.commit_over(&store, decide),
        };
        match &committed {
            Ok(_) if !is_partial => catalog.drop_damaged(),
            Err(error) if error.is_damage() => catalog.distrust(),
            _ => {}
        }
        // Closing a store that was replaced and freeing its space takes a while, and commits do not wait for that.
        drop(writer);
        drop(store);
        committed.map_err(|error| catalog.failure(error))
    }

    /// Compares everything with the revision of `store`, and writes the edits in place, or the whole tree.
    fn commit_over(mut self, store: &TreeStore, decide: Decide<'_>) -> Result<Committed, CatalogError> {
        let catalog = self.catalog;
        let txn = store.env.read_txn()?;
        let base = &Base::read(store, &txn)?;
        let (known, holds) = self.take_over(base)?;
        let redecided = std::mem::take(&mut self.redecided);
        let accepted = std::mem::take(&mut self.accepted);
        let pages = std::mem::take(&mut self.pages);
        let (mut scope, mut facts, mut journal, unknown) = self.sorted(known, base, &accepted)?;
        if holds {
            scope.released = facts.released(&scope, &redecided)?;
        }
        let (diff, decided) = compare((catalog, base, &scope), &mut facts, !accepted.is_empty(), decide)?;
        if let (Some(Diff { edits, sets, left_out, .. }), Some(position)) = (diff, &decided) {
            drop(facts);
            let rows = &mut |tree: &mut TreeWriter<'_>| {
                drop_held(base, &scope, &accepted, tree)?;
                edits.held.iter().try_for_each(|(key, row)| tree.row(TableId::Held, key, row.as_deref()))?;
                put_pages(base, &pages, false, tree)?;
                put_journal(&mut journal, &scope, false, tree)
            };
            let committed = in_place::write(catalog, base, edits.groups, rows, (scope.at, position, sets))?;
            return Ok(Committed { left_out, unknown, ..committed });
        }
        facts.rows.rewind()?;
        let rows = &mut |tree: &mut TreeWriter<'_>| {
            put_pages(base, &pages, !scope.forgotten.contains(&ITEMS), tree)?;
            put_journal(&mut journal, &scope, true, tree)
        };
        let committed = whole::write(catalog, base, &scope, facts, rows, (decided, decide), None)?;
        Ok(Committed { unknown, ..committed })
    }

    /// Takes over from the revision that is shown: its naming and sets for a commit of changes, its journal and its held deletions for one
    /// of lists. Returns the journal, and true if deletions are held back.
    fn take_over(&mut self, base: &Base<'_>) -> Result<(Sorter, bool), CatalogError> {
        let (mut known, mut holds) = (Sorter::new(&self.catalog.spill_folder, SMALL_SORT), false);
        if self.scope.is_partial {
            self.scope.naming = base.naming.clone().ok_or(CatalogError::NoRevision)?;
            self.scope.lists = base.sets.iter().map(|(set, record)| (*set, record.at)).collect();
            if !self.accepted.is_empty() || !self.catalog.rewrites_for(self.count)? {
                return Ok((known, false));
            }
            self.scope.is_partial = false;
            self.state_shown(base)?;
        }
        add_known(&mut known, base.store, base.txn)?;
        each_held(base, &mut |_, set, uri, record| {
            let Some(record) = record else { return Ok(()) };
            holds = true;
            self.facts.add_held(&self.scope.naming, (uri, &record), [set], true)
        })?;
        Ok((known, holds && !self.is_of_changes))
    }

    /// States all files that are shown as a list does: with the changes that is all that exists.
    fn state_shown(&mut self, base: &Base<'_>) -> Result<(), CatalogError> {
        self.facts = Facts::new(&self.catalog.spill_folder, LARGE_SORT);
        let Commit { facts, scope: FactScope { naming, lists, .. }, changed_sets, .. } = self;
        // Changes count although their set was never listed.
        changed_sets.iter().for_each(|set| _ = lists.entry(*set).or_default());
        let is_held = |set, uri: &Uri| base.store.get(base.txn, TableId::Held, &resource_key(set, uri));
        base.each_file(&mut |uri, record| {
            let mut sets = Vec::new();
            for set in record.sets.iter() {
                if is_held(set, uri)?.is_none() {
                    sets.push((set, lists.get(&set).copied().flatten()));
                }
            }
            if !sets.is_empty() {
                facts.add_shown(naming, (uri, record), &sets)?;
            }
            if record.member.is_empty() || sets.is_empty() {
                return Ok(());
            }
            // Other metadata of the same bytes: the package holds them still.
            facts.add_record(FactTag::Member, naming, (uri, record), record.sets.iter(), None, <[u8]>::to_vec)
        })
    }

    /// Builds the tree into an empty store, which takes the place of the damaged `store`. Every inode and entry id is new, the
    /// root's excepted, for the kernel may still know the old ones. All of its journal counts that can be read.
    fn commit_damaged(self, store: &TreeStore, decide: Decide<'_>) -> Result<Committed, CatalogError> {
        let catalog = self.catalog;
        let mut known = Sorter::new(&catalog.spill_folder, SMALL_SORT);
        let rescued = store.env.read_txn().map_err(CatalogError::from);
        if let Err(error) = rescued.and_then(|txn| add_known(&mut known, store, &txn)) {
            let cause = crate::platform::error_chain::chain(&error);
            tracing::warn!("changes that were applied since the last list are lost: {cause}");
        }
        let empty = store.empty(&catalog.spill_folder, None)?;
        let txn = empty.store.env.read_txn()?;
        let base = Base::read(&empty.store, &txn)?;
        let (scope, facts, mut journal, _) = self.sorted(known, &base, &HashSet::new())?;
        let rows = &mut |tree: &mut TreeWriter<'_>| put_journal(&mut journal, &scope, true, tree);
        let committed = whole::write(catalog, &base, &scope, facts, rows, (None, decide), Some(store))?;
        catalog.distrusted.store(false, Ordering::Release);
        Ok(committed)
    }

    /// Sorts all facts, those of the changes in force among them; the journal behind what is `known` of it, to be read again; and counts
    /// the deletions of what is not there.
    fn sorted(
        self,
        mut known: Sorter,
        base: &Base<'_>,
        accepted: &HashSet<(SetId, Uri)>,
    ) -> Result<(FactScope, SortedFacts, Sorted, u64), CatalogError> {
        let Commit { scope, mut facts, changes, is_of_changes, .. } = self;
        known.join(changes)?;
        let mut journal = known.finish()?;
        let (naming, mut unknown) = (scope.naming.clone(), 0);
        let mut shown = Restated { base, naming: &naming, accepted, paths: HashSet::new() };
        for (set, uri) in accepted {
            shown.find(&mut facts, uri)?;
            facts.supersede(&naming, *set, uri, std::iter::empty())?;
        }
        while let Some(next) = next_row(&mut journal, &scope, base)? {
            if next.fate != Fate::InForce || scope.is_partial && !next.is_new {
                continue;
            }
            let (row, record, uri) = next.change()?;
            let new = (row.change != Change::Deleted).then_some(&record);
            match scope.is_partial {
                true => shown.change(&mut facts, next.set, &uri, new)?,
                false => facts.supersede(&naming, next.set, &uri, media_types())?,
            }
            let is_deletion = is_of_changes && next.is_new && new.is_none() && !row.is_left_out;
            if is_deletion && !shown.known(&uri)?.iter().any(|known| known.sets.contains(next.set)) {
                tracing::debug!(%uri, "deleted, and never listed");
                unknown += 1;
            }
            if let Some(new) = new {
                let (time, mark) = (row.time, ChangeMark { datetime: row.datetime, is_news: next.is_new });
                let newest = new.lastmod.or(row.datetime);
                facts.add_record(FactTag::Changed, &naming, (&uri, new), [next.set], newest, |record| {
                    pack(&ChangedValue { time, mark, record })
                })?;
            }
        }
        facts.close()?;
        Ok((scope, SortedFacts { rows: facts.sorter.finish()? }, journal, unknown))
    }
}

/// Compares the facts with the revision that is shown. Few edits are returned, with the position of `decide`, which is asked for them.
/// Deletions that it holds back become facts, and all is compared once more: the edits may be too many by then. A commit that
/// `is_accepted` has no losses.
fn compare(
    (catalog, base, scope): (&Catalog, &Base<'_>, &FactScope),
    facts: &mut SortedFacts,
    is_accepted: bool,
    decide: Decide<'_>,
) -> Result<(Option<Diff>, Option<Vec<u8>>), CatalogError> {
    if base.revision.is_none() {
        return Ok((None, None));
    }
    let Some(mut diff) = Diff::of(catalog, base, scope, facts)? else { return Ok((None, None)) };
    if is_accepted {
        let none = Losses::of_totals(base.files(), base.files());
        return Ok((Some(diff), Some(decide(&none).1)));
    }
    let (held, position) = decide(&diff.losses);
    match held {
        Held::Nothing => return Ok((Some(diff), Some(position))),
        Held::Undecided => return Err(CatalogError::Undecided),
        Held::All | Held::Of(_) => {}
    }
    let kept = diff.departures.kept(&held, &scope.naming, &catalog.spill_folder)?;
    facts.add(kept)?;
    Ok((Diff::of(catalog, base, scope, facts)?, Some(position)))
}

/// The paths of a commit of changes whose resources were stated as the tree has them.
struct Restated<'b> {
    base: &'b Base<'b>,
    naming: &'b Naming,
    accepted: &'b HashSet<(SetId, Uri)>,
    paths: HashSet<String>,
}

impl<'b> Restated<'b> {
    /// States what the tree has at the paths of a change of `set`, and that the part of `set` in its resource does not count any more.
    /// `new` is the resource by the change; `None` is a deletion.
    fn change(
        &mut self,
        facts: &mut Facts,
        set: SetId,
        uri: &Uri,
        new: Option<&ResourceRecord<'_>>,
    ) -> Result<(), CatalogError> {
        let known = self.find(facts, uri)?;
        if let Some(new) = new {
            self.restate(facts, path_by_rule(self.naming, uri, new.media_type).0)?;
            for known in known.iter().filter(|known| new.member.is_empty() && !known.member.is_empty()) {
                // Other metadata of the same bytes: the package holds them still.
                facts.add_record(
                    FactTag::Member,
                    self.naming,
                    (uri, known),
                    known.sets.iter(),
                    None,
                    <[u8]>::to_vec,
                )?;
            }
        }
        facts.supersede(self.naming, set, uri, std::iter::empty())?;
        let mut types = known.iter().filter_map(|known| known.media_type);
        types.try_for_each(|it| facts.supersede(self.naming, set, uri, std::iter::once(it)))
    }

    /// The resource of `uri` as the tree has it: at each path that types give it.
    fn known(&self, uri: &Uri) -> Result<Vec<ResourceRecord<'b>>, CatalogError> {
        let located = located(self.base.store, self.base.txn, self.naming, uri, usize::MAX)?;
        Ok(located.into_iter().filter_map(|located| located.node.resource).collect())
    }

    /// The same, and states all of these paths.
    fn find(&mut self, facts: &mut Facts, uri: &Uri) -> Result<Vec<ResourceRecord<'b>>, CatalogError> {
        let known = self.known(uri)?;
        for known in &known {
            self.restate(facts, path_by_rule(self.naming, uri, known.media_type).0)?;
        }
        Ok(known)
    }

    /// States the resources of `path` as the tree has them, once.
    fn restate(&mut self, facts: &mut Facts, path: String) -> Result<(), CatalogError> {
        if self.paths.contains(&path) {
            return Ok(());
        }
        let Base { store, txn, sets: lists, .. } = self.base;
        for (named, uri) in self.base.names(&path)? {
            let (Some(record), Some(uri)) = (named.node.resource, uri) else { continue };
            let (mut sets, mut held) = (Vec::new(), Vec::new());
            for set in record.sets.iter() {
                let key = resource_key(set, &uri);
                if store.get(txn, TableId::Held, &key)?.is_none() {
                    let row = store.decoded(txn, TableId::Journal, &key, ChangeRow::decode)?;
                    sets.push((set, row.map_or(lists.get(&set).and_then(|list| list.at), |row| Some(row.time))));
                } else if !self.accepted.contains(&(set, uri.clone())) {
                    held.push(set);
                }
            }
            // A resource that no set has any more is stated all the same: the path is visited, and its name goes.
            facts.add_shown(self.naming, (&uri, &record), &sets)?;
            if !held.is_empty() {
                facts.add_held(self.naming, (&uri, &record), held, true)?;
            }
        }
        self.paths.insert(path);
        Ok(())
    }
}

/// Receives a deletion that is held back: its key, set and URI, and the resource if that is still in the tree and the set.
type VisitHeld<'v> = dyn FnMut(&[u8], SetId, &Uri, Option<ResourceRecord<'_>>) -> Result<(), CatalogError> + 'v;

/// Calls `visit` for each row of what is held back, with its resource as it is in the tree: none where the row holds nothing any more.
fn each_held(base: &Base<'_>, visit: &mut VisitHeld<'_>) -> Result<(), CatalogError> {
    let Base { store, txn, naming: Some(naming), .. } = base else { return Ok(()) };
    for row in store.all(txn, TableId::Held)? {
        let (key, row) = row?;
        let (set, uri) = held(key, row).ok_or_else(|| damaged("content", key))?;
        let mut records =
            located(store, txn, naming, &uri, usize::MAX)?.into_iter().filter_map(|located| located.node.resource);
        let record = records.find(|record| record.sets.contains(set));
        visit(key, set, &uri, record)?;
    }
    Ok(())
}

/// Removes the rows of deletions that are held back no more: those that were accepted, and in a commit of lists those that hold nothing or
/// were decided again.
fn drop_held(
    base: &Base<'_>,
    scope: &FactScope,
    accepted: &HashSet<(SetId, Uri)>,
    tree: &mut TreeWriter<'_>,
) -> Result<(), CatalogError> {
    for (set, uri) in accepted {
        tree.row(TableId::Held, &resource_key(*set, uri), None)?;
    }
    if scope.is_partial {
        return Ok(());
    }
    each_held(base, &mut |key, set, _, record| match record {
        Some(_) if !scope.released.contains_key(&set) => Ok(()),
        _ => tree.row(TableId::Held, key, None),
    })
}

/// Writes the rows of the journal: those that differ from what is there, or all of them.
fn put_journal(
    journal: &mut Sorted,
    scope: &FactScope,
    all: bool,
    tree: &mut TreeWriter<'_>,
) -> Result<(), CatalogError> {
    journal.rewind()?;
    while let Some(next) = next_row(journal, scope, tree.base)? {
        match next.fate {
            Fate::Superseded => tree.row(TableId::Journal, &next.key, None)?,
            _ if all || next.is_new => tree.row(TableId::Journal, &next.key, Some(&next.row))?,
            _ => {}
        }
    }
    Ok(())
}
