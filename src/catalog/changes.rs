//! Incremental commits: k changes of single resources at a cost of O(k), and the guard against accidental emptiness.
//!
//! Every applied change is written to the journal, in the same commit: a later baseline whose list speaks for an earlier
//! time keeps the change (DESIGN, Sync). That baseline drops the rows that its lists supersede.

use super::base::Before;
use super::journal::Row;
use super::losses::Tally;
use super::naming::locate::locate;
use super::naming::resolve::path_by_rule;
use super::sink::in_place::{UriChange, apply};
use super::sink::tree::TreeWriter;
use super::store::codec::damaged;
use super::store::keys::statement_key;
use super::store::record::{ResourceRecord, held, held_row};
use super::store::sets::SetTable;
use super::store::{Store, TableId};
use super::version;
use super::{Catalog, CatalogError, Committed, Decide, Held, HeldDeletion, Losses, Naming, SetId, Statement};
use crate::document::{Change, Timestamp, Uri};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::PoisonError;

/// Changes of single resources that become one revision; dropped without commit they leave no trace.
///
/// They are kept in memory until the commit, some hundred bytes each. No baseline may be committed meanwhile.
pub struct Changes<'c> {
    catalog: &'c Catalog,
    /// How names follow from URIs; `None` before the first revision.
    naming: Option<Naming>,
    sets: SetTable,
    resources: BTreeMap<Uri, Stated>,
}

/// What is stated of one resource.
#[derive(Default)]
struct Stated {
    /// Of each set the last change, in order of time.
    changes: Vec<SetChange>,
    /// Sets whose deletion, held back until now, is applied.
    accepted: Vec<SetId>,
}

/// The last change of a resource in one set.
struct SetChange {
    set: SetId,
    is_deletion: bool,
    time: Timestamp,
    /// The row of the journal.
    row: Vec<u8>,
}

impl Catalog {
    /// Begins an incremental commit: changes of single resources over the current revision, made under its naming.
    pub fn changes(&self) -> Result<Changes<'_>, CatalogError> {
        let store = self.store();
        let old = store.env.read_txn()?;
        let Before { naming, sets, .. } = Before::read(&store, &old)?;
        Ok(Changes { catalog: self, naming, sets, resources: BTreeMap::new() })
    }
}

impl Stated {
    fn of(&self, set: SetId) -> Option<&SetChange> {
        self.changes.iter().find(|known| known.set == set)
    }

    /// Whether `set` has the resource by a change.
    fn is_in(&self, set: SetId) -> bool {
        self.of(set).is_some_and(|change| !change.is_deletion)
    }

    /// Of equal times the later call is the later change.
    fn add(&mut self, change: SetChange) {
        self.changes.retain(|known| known.set != change.set);
        let place = self.changes.partition_point(|known| known.time <= change.time);
        self.changes.insert(place, change);
    }
}

impl Changes<'_> {
    /// Adds one statement; answers whether it is a deletion of what is not there (any more). The journal keeps that one too: an older list
    /// may have the resource. A statement that is older than what its set said of the resource does not count.
    ///
    /// Order counts for none but statements of one resource with equal times: the later call wins.
    ///
    /// # Errors
    /// A catalog that cannot be read. Statements added before stay.
    pub fn apply(&mut self, statement: Statement<'_>) -> Result<bool, CatalogError> {
        let is_unknown = self.add(statement);
        if is_unknown.as_ref().is_err_and(CatalogError::is_damage) {
            self.catalog.distrust();
        }
        is_unknown
    }

    fn add(&mut self, statement: Statement<'_>) -> Result<bool, CatalogError> {
        let Statement { set, change, time, entry, .. } = statement;
        let store = self.catalog.store();
        let old = store.env.read_txn()?;
        let (row, key) = (Row::of(&statement), statement_key(set, &entry.loc));
        let stated = self.resources.get(&entry.loc).and_then(|stated| stated.of(set));
        let row_before = match stated {
            Some(stated) => Some(&stated.row[..]),
            None => store.get(&old, store.journal, &key)?,
        };
        let before = row_before.map(|row| Row::decode(row).ok_or_else(|| damaged("sense", &key))).transpose()?;
        let is_deletion = change == Change::Deleted;
        let is_member = match (stated, &self.naming) {
            (Some(stated), _) => !stated.is_deletion,
            (None, Some(naming)) if is_deletion => {
                let known = locate(&store, &old, naming, &entry.loc)?.and_then(|located| located.node.resource);
                known.is_some_and(|known| known.sets.contains(set))
            }
            _ => false,
        };
        // A deletion is older than the list that has its resource.
        let listed = self.sets.at(set).filter(|_| is_deletion && is_member);
        if before.map(|before| before.time).or(listed).is_some_and(|before| before > time) {
            return Ok(false);
        }
        if row_before != Some(&row) {
            let stated = self.resources.entry(entry.loc.clone()).or_default();
            stated.add(SetChange { set, is_deletion, time, row });
        }
        Ok(is_deletion && !is_member)
    }

    /// Adds deletions that earlier commits have held back, as many as a commit may change in place; how many. A caller that wants all of
    /// them commits and begins again until there are none ([`super::Snapshot::held_count`]). These are decided: no [`Losses`] count them.
    pub fn accept_held(&mut self) -> Result<u64, CatalogError> {
        let store = self.catalog.store();
        let old = store.env.read_txn()?;
        let most = self.catalog.most_in_place();
        let mut accepted = 0;
        for row in store.rows(&old, store.held, (Bound::Unbounded, Bound::Unbounded))? {
            let (key, row) = row?;
            let HeldDeletion { set, uri, .. } = held(key, row).ok_or_else(|| damaged("sense", key))?;
            let sets = &mut self.resources.entry(uri).or_default().accepted;
            if !sets.contains(&set) {
                sets.push(set);
                accepted += 1;
            }
            if accepted >= most {
                break;
            }
        }
        Ok(accepted)
    }

    /// Gives names to what is affected (a folder where a file was, URIs that meet) and commits tree, journal and
    /// position at once. `at` is what the revision speaks for. `decide` is asked once.
    ///
    /// # Errors
    /// The tree stays as it was, and before the first baseline there is none: then it is [`CatalogError::NoRevision`].
    pub fn commit(self, at: Option<Timestamp>, decide: Decide<'_>) -> Result<Committed, CatalogError> {
        let catalog = self.catalog;
        let _writer = catalog.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let committed = self.committed(&catalog.store(), at, decide).map_err(|error| catalog.failure(error));
        if committed.as_ref().is_err_and(CatalogError::is_damage) {
            catalog.distrust();
        }
        committed
    }

    fn committed(self, store: &Store, at: Option<Timestamp>, decide: Decide<'_>) -> Result<Committed, CatalogError> {
        let Changes { catalog, resources, .. } = self;
        let old = store.env.read_txn()?;
        let before = Before::read(store, &old)?;
        let Some(naming) = &before.naming else { return Err(CatalogError::NoRevision) };
        let resolved = resources.into_iter().map(|(uri, stated)| Resolved::read(&before, naming, uri, stated));
        let mut resolved = resolved.collect::<Result<Vec<_>, _>>()?;
        let (held, state) = decide(&counted(&resolved, &before));
        let (mut sets, mut changes) = (before.sets.clone(), BTreeMap::new());
        for resource in &mut resolved {
            resource.hold(&held);
            resource.before.iter().for_each(|set| sets.entry(*set).files = sets.files(*set).saturating_sub(1));
            resource.sets.iter().for_each(|set| sets.entry(*set).files += 1);
            changes.insert(resource.uri.clone(), resource.change(naming)?);
        }
        sets.0.retain(|set, record| record.files > 0 || before.sets.0.contains_key(set));
        let rows =
            &mut |tree: &mut TreeWriter<'_, '_>| resolved.iter().try_for_each(|resource| resource.put_rows(tree));
        apply(catalog, &before, changes, rows, (at, &state, sets))
    }
}

/// What becomes of one resource.
struct Resolved<'o> {
    uri: Uri,
    stated: Stated,
    /// Its record in the revision before.
    known: Option<ResourceRecord<'o>>,
    /// Its sets before.
    before: BTreeSet<SetId>,
    /// Its sets now, those without that are departing.
    sets: BTreeSet<SetId>,
    /// Deletions that may be held back, with their times; once it is decided those that are.
    departing: BTreeMap<SetId, Timestamp>,
    /// Sets of which its deletion is held back no more.
    released: Vec<SetId>,
    /// The change whose metadata count; `None` where the old ones do.
    news: Option<usize>,
}

impl<'o> Resolved<'o> {
    /// Reads what statements mean together with the revision before.
    fn read(revision: &Before<'o>, naming: &Naming, uri: Uri, stated: Stated) -> Result<Resolved<'o>, CatalogError> {
        let Before { store, old, .. } = *revision;
        let known = locate(store, old, naming, &uri)?.and_then(|located| located.node.resource);
        let before: BTreeSet<SetId> = known.iter().flat_map(|known| known.sets.iter()).collect();
        let (mut sets, mut departing, mut released, mut news) = (before.clone(), BTreeMap::new(), Vec::new(), None);
        for (index, change) in stated.changes.iter().enumerate() {
            let is_held = store.get(old, store.held, &statement_key(change.set, &uri))?.is_some();
            if !change.is_deletion {
                sets.insert(change.set);
                released.extend(is_held.then_some(change.set));
                news = Some(index);
            } else if !is_held && sets.remove(&change.set) {
                departing.insert(change.set, change.time);
            }
        }
        for set in stated.accepted.iter().filter(|set| !stated.is_in(**set)) {
            released.push(*set);
            sets.remove(set);
        }
        if let Some(latest) = news.and_then(|index| stated.changes.get(index)) {
            for set in before.iter().filter(|set| !stated.is_in(**set)) {
                // When this set stated last what it states of the resource.
                let row = store.decoded(old, store.journal, &statement_key(*set, &uri), Row::decode)?;
                let time = row.map_or(revision.sets.at(*set), |row| Some(row.time));
                if time.is_some_and(|time| time > latest.time) {
                    news = None;
                }
            }
        }
        Ok(Resolved { uri, stated, known, before, sets, departing, released, news })
    }

    /// What the writer makes of it.
    fn change(&self, naming: &Naming) -> Result<UriChange, CatalogError> {
        let Resolved { uri, stated, known, sets, news, .. } = self;
        let sense = || damaged("resource", uri.as_str().as_bytes());
        let path = |record: &ResourceRecord<'_>| path_by_rule(naming, uri, record.media_type).0;
        let gone = UriChange { path_before: known.as_ref().map(path), ..UriChange::default() };
        let row = news.and_then(|index| stated.changes.get(index)).map(|change| &change.row[..]);
        let row = row.map(|row| Row::decode(row).ok_or_else(sense)).transpose()?;
        let new = row.map(|row| row.record().ok_or_else(sense)).transpose()?.map(|(record, _)| record);
        let Some(record) = new.or(*known).filter(|_| !sets.is_empty()) else { return Ok(gone) };
        let member = match known {
            // Other metadata of the same bytes: the package holds them still.
            Some(known) if record.member.is_empty() => {
                let is_same = version::same_after_update(known, &record, true).ok_or_else(sense)?;
                if is_same { known.member } else { &[] }
            }
            _ => record.member,
        };
        let sets: Vec<SetId> = sets.iter().copied().collect();
        let resource = Some(record.belonging(Some(uri.as_str()), &sets, member));
        let time = row.and_then(|row| row.shown);
        Ok(UriChange { path: path(&record), resource, time, is_news: row.is_some(), ..gone })
    }

    /// Holds back what of its deletions is `held`.
    fn hold(&mut self, held: &Held) {
        self.departing.retain(|set, _| held.holds(*set));
        self.sets.extend(self.departing.keys());
    }

    /// Writes its rows of the journal, and of what is held back.
    fn put_rows(&self, tree: &mut TreeWriter<'_, '_>) -> Result<(), CatalogError> {
        let key = |set| statement_key(set, &self.uri);
        for change in &self.stated.changes {
            tree.row(TableId::Journal, &key(change.set), Some(&change.row))?;
        }
        for set in &self.released {
            tree.row(TableId::Held, &key(*set), None)?;
        }
        for (set, time) in &self.departing {
            tree.row(TableId::Held, &key(*set), Some(&held_row(*time, &self.uri)))?;
        }
        Ok(())
    }
}

/// What a commit takes away and adds, counted resource by resource.
fn counted(resolved: &[Resolved<'_>], before: &Before<'_>) -> Losses {
    let mut tally = Tally::default();
    for resource in resolved {
        if !resource.departing.is_empty() {
            tally.depart(resource.departing.keys().copied(), resource.sets.is_empty());
        }
        resource.released.iter().for_each(|set| *tally.released.entry(*set).or_default() += 1);
        let was_there = |set| resource.before.contains(&set);
        let is_new = resource.before.is_empty() && !resource.sets.is_empty();
        tally.count(resource.sets.iter().copied(), if is_new { None } else { Some(&was_there) });
    }
    tally.losses(before.files(), &before.sets)
}
