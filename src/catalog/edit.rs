//! What differs between a sorted statement and the revision before it, resource by resource.

use super::base::Before;
use super::departing::{Departed, Departing};
use super::group::{HeldState, Listing, SortedStatement};
use super::join::{File, Folder, Visitor, beneath, walk};
use super::losses::Tally;
use super::naming::locate::locate;
use super::naming::resolve::{path_by_rule, uri};
use super::sink::in_place::UriChange;
use super::sort_key::slashed;
use super::store::codec::damaged;
use super::store::keys::statement_key;
use super::store::record::{Named, NodeRecord, ResourceRecord, held_row};
use super::store::sets::SetTable;
use super::version;
use super::{Catalog, CatalogError, Kind, Losses, Naming, SetId};
use crate::document::{Timestamp, Uri};
use std::collections::BTreeMap;

/// So many changes are held in memory, each some hundred bytes, and written in place.
pub(super) const MOST_IN_PLACE: u64 = 50_000;

/// What a commit changes.
pub(super) struct Diff {
    pub changes: FewChanges,
    pub losses: Losses,
    pub departed: Departed,
    /// The sets of the new tree, with the times of their lists.
    pub sets: SetTable,
    /// How many entries are not shown, by path.
    pub left_out: BTreeMap<String, u64>,
}

/// Few enough to be held in memory.
#[derive(Default)]
pub(super) struct FewChanges {
    pub resources: BTreeMap<Uri, UriChange>,
    /// Rows of what is held back: new ones, and keys alone of those that hold no more, as their set has the resource again.
    pub held: Vec<([u8; 20], Option<Vec<u8>>)>,
}

impl Diff {
    /// Compares the statement, from its beginning, with the revision `before`. `None` where there are too many changes to be held in memory,
    /// or where names follow from URIs in another way.
    pub(super) fn of(
        catalog: &Catalog,
        before: &Before<'_>,
        listing: &Listing,
        statement: &mut SortedStatement,
    ) -> Result<Option<Diff>, CatalogError> {
        let mut comparison = Comparison::new(catalog, before, listing);
        if comparison.is_renamed {
            return Ok(None);
        }
        comparison.changes = Some(FewChanges::default());
        let left_out = walk(before, listing, statement, &mut comparison)?;
        if comparison.has_enough() {
            return Ok(None);
        }
        let (losses, departed) = comparison.losses()?;
        let Comparison { tally, changes, .. } = comparison;
        Ok(changes.map(|changes| Diff { changes, losses, departed, sets: tally.table(&listing.lists), left_out }))
    }
}

/// The statement and the revision before, name by name.
pub(super) struct Comparison<'o> {
    before: &'o Before<'o>,
    listing: &'o Listing,
    old_naming: &'o Naming,
    /// Whether names follow from URIs in another way than in the revision before.
    is_renamed: bool,
    most: u64,
    /// `None` where they are only counted.
    changes: Option<FewChanges>,
    pub tally: Tally,
    departing: Departing,
    now: Timestamp,
}

impl<'o> Comparison<'o> {
    /// Counts changes.
    pub(super) fn new(catalog: &Catalog, before: &'o Before<'o>, listing: &'o Listing) -> Comparison<'o> {
        let naming = &listing.naming;
        Comparison {
            before,
            listing,
            old_naming: before.naming.as_ref().unwrap_or(naming),
            is_renamed: !before.has_naming(naming),
            most: catalog.most_in_place(),
            changes: None,
            tally: Tally::default(),
            departing: Departing::new(&catalog.spill_folder),
            now: version::now(),
        }
    }

    /// What is lost, when everything was compared.
    pub(super) fn losses(&mut self) -> Result<(Losses, Departed), CatalogError> {
        let mut departed = self.departing.finish()?;
        departed.each(&mut |leaving| {
            self.tally.depart(leaving.resource.sets.iter(), leaving.is_last);
            if leaving.is_last && self.changes.is_some() {
                let path = path_by_rule(&self.listing.naming, leaving.uri, leaving.resource.media_type).0;
                self.put(leaving.uri.clone(), UriChange { path_before: Some(path), ..UriChange::default() });
            }
            Ok(())
        })?;
        let losses = self.tally.losses(self.before.files(), &self.before.sets);
        let mut released = self.listing.released.clone();
        self.tally.released.iter().for_each(|(set, count)| *released.entry(*set).or_default() += count);
        Ok((Losses { released, ..losses }, departed))
    }

    /// Compares a file with what its name stood for; whether that was of the same URI.
    pub(super) fn compare(&mut self, file: &File<'_>, before: Option<Named<'o>>) -> Result<bool, CatalogError> {
        let new = &file.resource;
        if let Some((known, record)) = before.and_then(|known| Some((known, known.node.resource?))) {
            if record.bytes == new.bytes && !self.is_renamed && !file.is_news {
                self.tally.count(new.sets.iter(), Some(&|_| true));
                return Ok(true);
            }
            if self.before.is_same_uri(&known.node, new, file.path, &self.listing.naming)? {
                self.stays(file, &record)?;
                return Ok(true);
            }
        }
        before.map_or(Ok(()), |known| self.removed(known))?;
        // Under the same rules a resource has another name only where its plain one is taken.
        let may_have_moved = self.is_renamed || self.listing.naming.extension_by_type || !file.is_plain;
        if self.before.revision.is_some() && (may_have_moved || before.is_some()) {
            let located = locate(self.before.store, self.before.old, self.old_naming, &self.uri(file)?)?;
            if let Some((located, known)) = located.and_then(|located| Some((located, located.node.resource?))) {
                self.departing.moved(located.node.ino)?;
                if self.listing.naming.extension_by_type && known.sets.iter().any(|set| !new.sets.contains(set)) {
                    // Another set may list it with that type still, and both names stay.
                    self.changes = None;
                }
                self.stays(file, &known)?;
                return Ok(false);
            }
        }
        self.tally.count(new.sets.iter(), None);
        self.change(file, None)?;
        Ok(false)
    }

    /// Adds to the changes, unless they become too many.
    fn add(&mut self, add: impl FnOnce(&mut FewChanges)) {
        let Some(few) = &mut self.changes else { return };
        add(few);
        if few.resources.len() as u64 + few.held.len() as u64 > self.most {
            self.changes = None;
        }
    }

    /// Adds what becomes of a resource. Where its type differs from set to set it may have several names: then not by its URI.
    fn put(&mut self, uri: Uri, change: UriChange) {
        let mut has_other = false;
        self.add(|changes| has_other = changes.resources.insert(uri, change).is_some());
        if has_other {
            self.changes = None;
        }
    }

    fn uri(&self, file: &File<'_>) -> Result<Uri, CatalogError> {
        let sense = || damaged("resource", file.path);
        uri(&file.resource, &slashed(file.path).ok_or_else(sense)?, &self.listing.naming).ok_or_else(sense)
    }

    /// A resource that is in the tree has the record `known` there.
    fn stays(&mut self, file: &File<'_>, known: &ResourceRecord<'_>) -> Result<(), CatalogError> {
        let new = &file.resource;
        self.tally.count(new.sets.iter(), Some(&|set| known.sets.contains(set)));
        let left: Vec<SetId> = known.sets.iter().filter(|set| !new.sets.contains(*set)).collect();
        if !left.is_empty() {
            self.departing.add(&self.uri(file)?, known, &left, None)?;
        }
        let is_same = known.says_the_same(new) && known.sets == new.sets && known.member == new.member;
        let vouched = || version::same_after_update(known, new, true).ok_or_else(|| damaged("resource", file.path));
        if self.changes.is_none() || (is_same && (!file.is_news || vouched()?)) {
            return Ok(());
        }
        let path_before = path_by_rule(self.old_naming, &self.uri(file)?, known.media_type).0;
        self.change(file, Some(path_before))
    }

    fn change(&mut self, file: &File<'_>, path_before: Option<String>) -> Result<(), CatalogError> {
        if self.changes.is_some() {
            let (uri, time, is_news) = (self.uri(file)?, file.time, file.is_news);
            let path = slashed(file.path).ok_or_else(|| damaged("resource", file.path))?;
            let resource = Some(file.resource.with_uri(Some(uri.as_str())));
            self.put(uri, UriChange { path_before, path, resource, time, is_news });
        }
        Ok(())
    }

    /// The file of `node` no longer stands for its resource.
    fn departs(&mut self, node: &NodeRecord<'_>) -> Result<(), CatalogError> {
        let Some(record) = node.resource else { return Ok(()) };
        let sets: Vec<SetId> = record.sets.iter().collect();
        self.departing.add(&self.before.uri(node)?, &record, &sets, Some(node.ino))
    }
}

impl<'o> Visitor<'o> for Comparison<'o> {
    fn folder(&mut self, _: &[u8], _: Timestamp, before: Option<Named<'o>>) -> Result<Folder, CatalogError> {
        match before {
            Some(known) if known.node.kind() == Kind::Folder => Ok(Folder { ino: known.node.ino, is_new: false }),
            file => {
                file.map_or(Ok(()), |file| self.departs(&file.node))?;
                Ok(Folder { ino: 0, is_new: true })
            }
        }
    }

    fn file(&mut self, file: File<'_>, before: Option<Named<'o>>) -> Result<(), CatalogError> {
        self.compare(&file, before).map(drop)
    }

    fn removed(&mut self, before: Named<'o>) -> Result<(), CatalogError> {
        self.departs(&before.node)?;
        match before.node.kind() {
            Kind::File => Ok(()),
            Kind::Folder => {
                beneath(self.before.store, self.before.old, before.node.ino, &mut |named| self.departs(&named.node))
            }
        }
    }

    fn held(&mut self, set: SetId, uri: &Uri, held: HeldState) -> Result<(), CatalogError> {
        let row = match held {
            HeldState::Still => return Ok(()),
            HeldState::Listed => {
                *self.tally.released.entry(set).or_default() += 1;
                None
            }
            HeldState::New => Some(held_row(self.listing.list_at(set).unwrap_or(self.now), uri)),
        };
        self.add(|changes| changes.held.push((statement_key(set, uri), row)));
        Ok(())
    }

    fn has_enough(&self) -> bool {
        self.changes.is_none() || self.departing.count > self.most
    }
}
