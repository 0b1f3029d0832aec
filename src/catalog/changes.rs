//! Incremental commits: k changes of single resources at a cost of O(k), and the guard against accidental emptiness.
//!
//! Every applied change is written to the journal, in the same commit: a later baseline whose list speaks for an earlier
//! time keeps the change (DESIGN, Sync). Rows that a list's `at` has overtaken are dropped by that baseline.

use super::Committed;
use super::apply::write::{Numbers, Writer};
use super::apply::{Settling, Stated};
use super::journal::Row;
use super::losses::{Departures, losses};
use super::naming::locate::{Located, locate};
use super::naming::resolve::path_of_record;
use super::store::codec::{damaged, unseal};
use super::store::keys::statement_key;
use super::store::record::ResourceRecord;
use super::store::sets::SetTable;
use super::store::symbols::Symbols;
use super::store::{Store, TableId, meta};
use super::{Applied, HeldDeletion, Statement};
use super::{Catalog, CatalogError, Naming, SetId};
use super::{Decide, Held, Losses};
use super::{held, version};
use crate::document::{Change, Timestamp, Uri};
use heed::RoTxn;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

/// Held deletions accepted by one commit: each takes some hundred octets of memory.
const ACCEPTED_AT_ONCE: u64 = if cfg!(test) { 1000 } else { 100_000 };

/// Changes of single resources that become one revision; dropped without commit they leave no trace.
///
/// They are kept in memory until the commit, some hundred octets each.
pub struct Changes<'c> {
    catalog: &'c Catalog,
    /// Of each resource what its sets say last.
    stated: BTreeMap<Uri, Vec<SetChange>>,
    /// Held deletions that are to be applied.
    accepted: BTreeMap<Uri, Vec<SetId>>,
    calls: u64,
    revised: Option<Revised>,
}

/// What is read once of a revision, and not for each statement.
struct Revised {
    store: Arc<Store>,
    commit: usize,
    /// `None` before the first revision.
    naming: Option<Naming>,
    sets: SetTable,
}

impl Revised {
    fn read(store: &Arc<Store>, old: &RoTxn<'_>) -> Result<Revised, CatalogError> {
        let naming = store.revision(old)?.map(|_| store.naming(old)).transpose()?;
        Ok(Revised { store: store.clone(), commit: old.id(), naming, sets: store.sets(old)? })
    }

    fn is_of(&self, store: &Arc<Store>, old: &RoTxn<'_>) -> bool {
        Arc::ptr_eq(&self.store, store) && self.commit == old.id()
    }
}

impl Catalog {
    /// Begins an incremental commit: changes of single resources over the current revision, made under its naming.
    pub fn changes(&self) -> Result<Changes<'_>, CatalogError> {
        Changes::new(self)
    }
}

/// The last change of a resource in one set.
struct SetChange {
    set: SetId,
    change: Change,
    time: Timestamp,
    /// Number of the call.
    order: u64,
    /// The row of the journal.
    row: Vec<u8>,
}

impl<'c> Changes<'c> {
    pub(super) fn new(catalog: &'c Catalog) -> Result<Changes<'c>, CatalogError> {
        Ok(Changes { catalog, stated: BTreeMap::new(), accepted: BTreeMap::new(), calls: 0, revised: None })
    }

    /// Adds one statement. Order counts for none but statements of one resource with equal times: the later call wins.
    ///
    /// # Errors
    /// A catalog that cannot be read. Statements added before stay.
    pub fn apply(&mut self, statement: Statement<'_>) -> Result<Applied, CatalogError> {
        let applied = self.applied(statement);
        if applied.as_ref().is_err_and(CatalogError::is_damage) {
            self.catalog.distrust();
        }
        applied
    }

    fn applied(&mut self, statement: Statement<'_>) -> Result<Applied, CatalogError> {
        let Statement { set, change, time, entry, .. } = statement;
        let catalog = self.catalog;
        let store = catalog.store();
        let old = store.env.read_txn()?;
        let revised = match self.revised.take().filter(|revised| revised.is_of(&store, &old)) {
            Some(revised) => self.revised.insert(revised),
            None => self.revised.insert(Revised::read(&store, &old)?),
        };
        let located = revised.naming.as_ref().map(|naming| locate(&store, &old, naming, &entry.loc));
        let known = located.transpose()?.flatten();
        let sense = || damaged("resource", entry.loc.as_str().as_bytes());
        let record =
            known.as_ref().map(|known| ResourceRecord::decode(known.resource).ok_or_else(sense)).transpose()?;

        let mut row = Vec::new();
        Row::encode(&statement, &catalog.symbols, &mut row);
        let key = statement_key(set, &entry.loc);
        let said = self.stated.get(&entry.loc).and_then(|changes| changes.iter().find(|said| said.set == set));
        let journaled = match said {
            Some(said) => Some(&said.row[..]),
            None => store.get(&old, store.journal, &key)?,
        };
        let before = journaled.map(|row| Row::decode(row).ok_or_else(sense)).transpose()?;
        if before.is_some_and(|before| before.time > time) {
            return Ok(Applied::Older);
        }
        let is_member = match said {
            Some(said) => said.change != Change::Deleted,
            None => record.is_some_and(|record| record.sets.contains(set)),
        };
        if journaled == Some(&row) {
            return Ok(if change == Change::Deleted && !is_member { Applied::Unknown } else { Applied::Same });
        }
        let listed_later = before.is_none() && revised.sets.at(set).is_some_and(|at| at > time);
        if change == Change::Deleted && is_member && listed_later {
            return Ok(Applied::Older);
        }
        let applied = match (change, said, &record) {
            (Change::Deleted, ..) if is_member => Applied::Changed,
            (Change::Deleted, ..) => Applied::Unknown,
            (_, None, Some(record)) if is_member => {
                let (new, _) = Row::decode(&row).and_then(|row| row.record()).ok_or_else(sense)?;
                let same = version::same_after_update(record, &new, true, &catalog.symbols).ok_or_else(sense)?;
                if same && record.says_the_same(&new) { Applied::Same } else { Applied::Changed }
            }
            _ => Applied::Changed,
        };
        self.calls += 1;
        let said = SetChange { set, change, time, order: self.calls, row };
        let changes = self.stated.entry(entry.loc.clone()).or_default();
        match changes.iter_mut().find(|known| known.set == set) {
            Some(known) => *known = said,
            None => changes.push(said),
        }
        Ok(applied)
    }

    /// Adds deletions that earlier commits have held back, 100,000 at most; how many. A caller that wants all of them commits and
    /// begins again until there are none ([`super::Snapshot::held_count`]). These are decided: no [`super::Losses`] count them.
    pub fn accept_held(&mut self) -> Result<u64, CatalogError> {
        let store = self.catalog.store();
        let old = store.env.read_txn()?;
        let mut accepted = 0;
        for pair in store.held.iter(&old)?.take(ACCEPTED_AT_ONCE as usize) {
            let (key, sealed) = pair?;
            let HeldDeletion { set, uri, .. } =
                held::decode(key, unseal(key, sealed)?).ok_or_else(|| damaged("sense", key))?;
            let sets = self.accepted.entry(uri).or_default();
            if !sets.contains(&set) {
                sets.push(set);
                accepted += 1;
            }
        }
        Ok(accepted)
    }

    /// Settles names anew for what is affected (a folder where a file was, URIs that meet) and commits tree, journal and
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
        let Changes { catalog, stated, accepted, .. } = self;
        let old = store.env.read_txn()?;
        let Some(revision) = store.revision(&old)? else { return Err(CatalogError::NoRevision) };
        let naming = store.naming(&old)?;
        let sets = store.sets(&old)?;
        let resolving = Resolving { store, old: &old, naming: &naming, sets: &sets, symbols: &catalog.symbols };

        let uris: BTreeSet<&Uri> = stated.keys().chain(accepted.keys()).collect();
        let mut resolved = Vec::with_capacity(uris.len());
        for uri in uris {
            let changes = stated.get(uri).map_or(&[][..], |changes| &changes[..]);
            let accepted = accepted.get(uri).map_or(&[][..], |sets| &sets[..]);
            let resource = resolving.resolve(uri, changes, accepted)?;
            resolved.push((uri, changes, resource));
        }
        let (held, position) = decide(&counted(&resolved, revision.totals.files, &sets));
        resolved.iter_mut().for_each(|(_, _, resource)| resource.hold(&held));

        let mut writer = Writer::new(catalog, store, Numbers::from(&revision), true, version::now());
        let mut after = sets.clone();
        let mut settling = Settling::new(catalog, store, &old, &naming);
        for (uri, changes, resource) in &mut resolved {
            for change in changes.iter() {
                writer.put_row(TableId::Journal, &statement_key(change.set, uri), &change.row)?;
            }
            for set in &resource.unheld {
                writer.drop_row(TableId::Held, &statement_key(*set, uri))?;
            }
            for (set, time) in &resource.kept {
                writer.put_held(&statement_key(*set, uri), *time, uri)?;
            }
            resource.before.iter().for_each(|set| after.entry(*set).files = after.files(*set).saturating_sub(1));
            resource.sets.iter().for_each(|set| after.entry(*set).files += 1);
            settling.state((*uri).clone(), resolving.stated(uri, resource)?)?;
        }
        let mut totals = revision.totals;
        let (mut writer, left_out) = settling.settle(writer, &mut totals)?;
        left_out.sets.iter().for_each(|(set, left)| after.entry(*set).files = after.files(*set).saturating_sub(*left));
        after.keep(|record| record.files > 0 || sets.get(record.set).is_some());
        writer.settle_folders(&old)?;

        let changed = writer.changed_tree();
        let wrote = writer.changed();
        let next = match changed {
            true => writer.next_revision(at, totals),
            false => super::store::record::RevisionRecord { at, ..revision },
        };
        if next != revision {
            writer.put_revision(&next)?;
        }
        if store.meta(&old, meta::POSITION)? != Some(&position) {
            writer.put_position(&position)?;
        }
        if after != sets {
            writer.put_sets(&after)?;
        }
        if wrote {
            writer.put_symbols()?;
            writer.drop_forgotten()?;
        }
        Ok(Committed { left_out: left_out.paths, ..writer.commit()? })
    }
}

/// Reads what statements mean beside the revision before.
struct Resolving<'o> {
    store: &'o Store,
    old: &'o RoTxn<'o>,
    naming: &'o Naming,
    sets: &'o SetTable,
    symbols: &'o Symbols,
}

/// What becomes of one resource.
struct Resolved<'o> {
    located: Option<Located<'o>>,
    /// Its sets before.
    before: BTreeSet<SetId>,
    /// Its sets now, those without that are going.
    sets: BTreeSet<SetId>,
    /// Deletions that may be held back, with their times.
    going: Vec<(SetId, Timestamp)>,
    /// Those of them that are held back.
    kept: Vec<(SetId, Timestamp)>,
    /// Sets of which it is no longer held back.
    unheld: Vec<SetId>,
    /// The row of the change whose metadata count; none where the old ones do.
    news: Option<Vec<u8>>,
}

impl<'o> Resolving<'o> {
    fn resolve(&self, uri: &Uri, changes: &[SetChange], accepted: &[SetId]) -> Result<Resolved<'o>, CatalogError> {
        let sense = || damaged("resource", uri.as_str().as_bytes());
        let located = locate(self.store, self.old, self.naming, uri)?;
        let before: BTreeSet<SetId> = match &located {
            Some(located) => ResourceRecord::decode(located.resource).ok_or_else(sense)?.sets.iter().collect(),
            None => BTreeSet::new(),
        };
        let mut resolved = Resolved {
            located,
            sets: before.clone(),
            before,
            going: Vec::new(),
            kept: Vec::new(),
            unheld: Vec::new(),
            news: None,
        };
        let mut latest: Option<&SetChange> = None;
        for change in changes {
            let key = statement_key(change.set, uri);
            let is_held = self.store.get(self.old, self.store.held, &key)?.is_some();
            if change.change != Change::Deleted {
                resolved.sets.insert(change.set);
                if is_held {
                    resolved.unheld.push(change.set);
                }
                if latest.is_none_or(|latest| (change.time, change.order) > (latest.time, latest.order)) {
                    latest = Some(change);
                }
            } else if !is_held && resolved.sets.remove(&change.set) {
                resolved.going.push((change.set, change.time));
            }
        }
        for set in accepted {
            if changes.iter().any(|change| change.set == *set && change.change != Change::Deleted) {
                continue;
            }
            resolved.unheld.push(*set);
            resolved.sets.remove(set);
        }
        if let Some(latest) = latest {
            let restated =
                |set: &SetId| changes.iter().any(|change| change.set == *set && change.change != Change::Deleted);
            let others = resolved.before.iter().filter(|set| !restated(set));
            let mut later = false;
            for set in others {
                later |= self.said(*set, uri)?.is_some_and(|time| time > latest.time);
            }
            if !later {
                resolved.news = Some(latest.row.clone());
            }
        }
        Ok(resolved)
    }

    /// When `set` said last what it says of a resource that it has.
    fn said(&self, set: SetId, uri: &Uri) -> Result<Option<Timestamp>, CatalogError> {
        let key = statement_key(set, uri);
        match self.store.get(self.old, self.store.journal, &key)? {
            Some(row) => Ok(Some(Row::decode(row).ok_or_else(|| damaged("sense", &key))?.time)),
            None => Ok(self.sets.at(set)),
        }
    }

    /// The resource as it is to be, for the resolution of its name.
    fn stated(&self, uri: &Uri, resolved: &Resolved<'_>) -> Result<Stated, CatalogError> {
        let sense = || damaged("resource", uri.as_str().as_bytes());
        let by_rule = |record: &ResourceRecord<'_>| -> Result<String, CatalogError> {
            Ok(path_of_record(self.naming, uri, record, self.symbols).ok_or_else(sense)?.0)
        };
        let mut stated = Stated::default();
        let known = match &resolved.located {
            Some(located) => Some(ResourceRecord::decode(located.resource).ok_or_else(sense)?),
            None => None,
        };
        if let Some(known) = &known {
            stated.path_before = Some(by_rule(known)?);
        }
        let sets: Vec<SetId> = resolved.sets.iter().copied().collect();
        if sets.is_empty() {
            return Ok(stated);
        }
        let mut resource = Vec::new();
        match (&resolved.news, &known) {
            (Some(row), _) => {
                let row = Row::decode(row).ok_or_else(sense)?;
                let (new, _) = row.record().ok_or_else(sense)?;
                let member = match &known {
                    // Other metadata of the same bytes: the package holds them still.
                    Some(known) if new.member.is_empty() => {
                        let same = version::same_after_update(known, &new, true, self.symbols).ok_or_else(sense)?;
                        if same { known.member } else { &[] }
                    }
                    _ => new.member,
                };
                new.push_belonging(Some(uri.as_str()), &sets, member, &mut resource);
                stated.changed = row.shown;
                stated.updated = true;
                stated.path = by_rule(&new)?;
            }
            (None, Some(known)) => {
                known.push_belonging(Some(uri.as_str()), &sets, known.member, &mut resource);
                stated.path = by_rule(known)?;
            }
            (None, None) => return Ok(stated),
        }
        stated.resource = Some(resource);
        Ok(stated)
    }
}

impl Resolved<'_> {
    /// Holds back what of its deletions is `held`.
    fn hold(&mut self, held: &Held) {
        let is_held = |set: &SetId| match held {
            Held::Nothing => false,
            Held::All => true,
            Held::Of(sets) => sets.contains(set),
        };
        for (set, time) in self.going.extract_if(.., |(set, _)| is_held(set)) {
            self.sets.insert(set);
            self.kept.push((set, time));
        }
    }
}

/// What a commit takes away and adds, counted resource by resource.
fn counted(resolved: &[(&Uri, &[SetChange], Resolved<'_>)], files: u64, before: &SetTable) -> Losses {
    let (mut departures, mut new, mut coming) = (Departures::default(), 0, BTreeMap::new());
    for (_, _, resource) in resolved {
        let mut going: Vec<SetId> = resource.going.iter().map(|(set, _)| *set).collect();
        if !going.is_empty() {
            going.sort_unstable();
            departures.count(going.into_iter(), resource.sets.is_empty());
        }
        new += u64::from(resource.before.is_empty() && !resource.sets.is_empty());
        resource.sets.difference(&resource.before).for_each(|set| *coming.entry(*set).or_default() += 1);
    }
    losses(files, new, before, coming, departures.into_vec())
}
