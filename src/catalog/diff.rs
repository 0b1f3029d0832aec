//! What differs between a sorted statement and the revision before it, resource by resource.

use super::apply::UriChange;
use super::departing::{Departed, Departing};
use super::losses::{Departures, Tally};
use super::naming::locate::locate;
use super::naming::resolve::{path_of_record, uri};
use super::revision::Before;
use super::sort_key::slashed;
use super::statement::{HeldState, Listing, SortedStatement};
use super::store::codec::damaged;
use super::store::keys::statement_key;
use super::store::record::{NodeRecord, ResourceRecord};
use super::store::sets::SetTable;
use super::version;
use super::walk::{File, Folder, Known, Visitor, beneath, walk};
use super::{Catalog, CatalogError, Held, Kind, Losses, Naming, SetId};
use crate::document::{Timestamp, Uri};
use std::collections::BTreeMap;

/// So many changes are held in memory, each some hundred bytes, and written in place.
pub(super) const MOST_IN_PLACE: u64 = 50_000;

/// What a commit changes.
pub(super) struct Diff {
    /// `None` where there are too many, or where names follow from URIs in another way.
    pub changes: Option<FewChanges>,
    pub losses: Losses,
    pub departed: Departed,
    /// The sets of the new tree, with the times of their lists, but for what is held back.
    pub sets: SetTable,
}

/// Few enough to be held in memory.
#[derive(Default)]
pub(super) struct FewChanges {
    pub resources: BTreeMap<Uri, UriChange>,
    /// Keys of deletions that are held back no more: their set has the resource again.
    pub released: Vec<[u8; 20]>,
    /// How many entries are not shown, by path.
    pub left_out: BTreeMap<String, u64>,
}

impl Diff {
    /// Compares the statement, from its beginning, with the revision `before`.
    pub(super) fn of(
        catalog: &Catalog,
        before: &Before<'_>,
        listing: Listing<'_>,
        statement: &mut SortedStatement,
    ) -> Result<Diff, CatalogError> {
        let naming = listing.naming;
        let mut comparison = Comparison {
            catalog,
            before,
            naming,
            old_naming: before.naming.as_ref().unwrap_or(naming),
            is_renamed: !before.has_naming(naming),
            most: catalog.most_in_place(),
            changes: before.has_naming(naming).then(FewChanges::default),
            tally: Tally::default(),
            departing: Departing::new(&catalog.spill_folder),
        };
        walk(before, listing, statement, &mut comparison)?;
        let Comparison { tally, departing, mut changes, most, .. } = comparison;
        let mut departed = departing.finish()?;
        let mut departures = Departures::default();
        departed.each(&mut |leaving| {
            departures.count(leaving.resource.sets.iter(), leaving.is_last);
            if leaving.is_last {
                let change = UriChange { path_before: Some(leaving.path.to_owned()), ..UriChange::default() };
                put(&mut changes, most, leaving.uri.clone(), change);
            }
            Ok(())
        })?;
        let losses = tally.losses(before.files(), &before.sets, departures.into_vec());
        Ok(Diff { changes, losses, departed, sets: tally.table(listing.speaking.lists) })
    }

    /// Takes what is held back out of `changes`, and counts it among the sets. Shows `visit` each such deletion.
    pub(super) fn hold(
        &mut self,
        changes: &mut FewChanges,
        held: &Held,
        visit: &mut dyn FnMut(SetId, &Uri),
    ) -> Result<(), CatalogError> {
        let sets = &mut self.sets;
        self.departed.each(&mut |leaving| {
            let mut kept = leaving.held(held);
            if kept.is_empty() {
                return Ok(());
            }
            for set in &kept {
                sets.entry(*set).files += 1;
                visit(*set, leaving.uri);
            }
            let change = changes.resources.entry(leaving.uri.clone()).or_default();
            // It stays what it was, unless another set has it and says what it is.
            let stated = change.resource.take();
            let stated = stated.as_deref().and_then(ResourceRecord::decode);
            kept.extend(stated.iter().flat_map(|record| record.sets.iter()));
            kept.sort_unstable();
            let record = stated.unwrap_or(leaving.resource);
            let mut resource = Vec::new();
            record.push_belonging(Some(leaving.uri.as_str()), &kept, record.member, &mut resource);
            if stated.is_none() {
                leaving.path.clone_into(&mut change.path);
            }
            change.resource = Some(resource);
            Ok(())
        })
    }
}

/// Adds to the changes, unless they become too many.
fn add(changes: &mut Option<FewChanges>, most: u64, add: impl FnOnce(&mut FewChanges)) {
    if let Some(few) = changes {
        add(few);
        if few.resources.len() as u64 + few.released.len() as u64 > most {
            *changes = None;
        }
    }
}

/// Adds what becomes of a resource. Where its type differs from set to set it may have several names: then not by its URI.
fn put(changes: &mut Option<FewChanges>, most: u64, uri: Uri, change: UriChange) {
    let mut has_other = false;
    add(changes, most, |changes| has_other = changes.resources.insert(uri, change).is_some());
    if has_other {
        *changes = None;
    }
}

/// The statement and the revision before, name by name.
struct Comparison<'c, 'o> {
    catalog: &'c Catalog,
    before: &'c Before<'o>,
    naming: &'c Naming,
    old_naming: &'c Naming,
    /// Whether names follow from URIs in another way than in the revision before.
    is_renamed: bool,
    most: u64,
    changes: Option<FewChanges>,
    tally: Tally,
    departing: Departing,
}

impl<'o> Comparison<'_, 'o> {
    fn uri(&self, file: &File<'_>, new: &ResourceRecord<'_>) -> Result<Uri, CatalogError> {
        let sense = || damaged("resource", file.path);
        uri(new, &slashed(file.path).ok_or_else(sense)?, self.naming).ok_or_else(sense)
    }

    /// A resource that is in the tree has this record there, and `new` in the statement.
    fn stays(&mut self, file: &File<'_>, new: &ResourceRecord<'_>, known: &[u8]) -> Result<(), CatalogError> {
        let sense = || damaged("resource", file.path);
        let symbols = &self.catalog.symbols;
        let record = ResourceRecord::decode(known).ok_or_else(sense)?;
        self.tally.count(new.sets, Some(record.sets));
        if record.sets != new.sets {
            let left: Vec<SetId> = record.sets.iter().filter(|set| !new.sets.contains(*set)).collect();
            if !left.is_empty() {
                let uri = self.uri(file, new)?;
                self.departing.add(&uri, &record, &left, None, (self.catalog, self.naming))?;
            }
        }
        let is_same = record.says_the_same(new) && record.sets == new.sets && record.member == new.member;
        let vouched = || version::same_after_update(&record, new, true, symbols).ok_or_else(sense);
        if self.changes.is_none() || (is_same && (!file.is_news || vouched()?)) {
            return Ok(());
        }
        let uri = self.uri(file, new)?;
        let path_before = path_of_record(self.old_naming, &uri, &record, symbols).ok_or_else(sense)?.0;
        self.change(file, new, Some(path_before))
    }

    fn change(
        &mut self,
        file: &File<'_>,
        new: &ResourceRecord<'_>,
        path_before: Option<String>,
    ) -> Result<(), CatalogError> {
        if self.changes.is_none() {
            return Ok(());
        }
        let uri = self.uri(file, new)?;
        let path = slashed(file.path).ok_or_else(|| damaged("resource", file.path))?;
        let mut resource = Vec::new();
        new.push_with_uri(Some(uri.as_str()), &mut resource);
        let change = UriChange { path_before, path, resource: Some(resource), time: file.time, is_news: file.is_news };
        put(&mut self.changes, self.most, uri, change);
        Ok(())
    }

    /// The file of `node` no longer stands for its resource.
    fn departs(&mut self, node: &NodeRecord<'_>) -> Result<(), CatalogError> {
        let sense = || damaged("resource", node.name);
        let Before { store, old, .. } = self.before;
        let resource = store.inode(old, node.ino)?.ok_or_else(sense)?.resource;
        let record = ResourceRecord::decode(resource).ok_or_else(sense)?;
        let uri = store.uri_of(old, node.ino, &record, self.old_naming)?;
        let sets: Vec<SetId> = record.sets.iter().collect();
        self.departing.add(&uri, &record, &sets, Some(node.ino), (self.catalog, self.naming))
    }
}

impl<'o> Visitor<'o> for Comparison<'_, 'o> {
    fn enter(&mut self, _: Folder) -> Result<(), CatalogError> {
        Ok(())
    }

    fn folder(&mut self, _: &[u8], _: Timestamp, before: Option<Known<'o>>) -> Result<Folder, CatalogError> {
        match before {
            Some(known) if known.node.kind == Kind::Folder => Ok(Folder { ino: known.node.ino, is_new: false }),
            Some(known) => {
                self.removed(known)?;
                Ok(Folder { ino: 0, is_new: true })
            }
            None => Ok(Folder { ino: 0, is_new: true }),
        }
    }

    fn file(&mut self, file: File<'_>, before: Option<Known<'o>>) -> Result<(), CatalogError> {
        let sense = || damaged("resource", file.path);
        let new = ResourceRecord::decode(file.resource).ok_or_else(sense)?;
        if let Some(known) = before.filter(|known| known.node.kind == Kind::File) {
            if known.resource == file.resource && !self.is_renamed && !file.is_news {
                self.tally.count(new.sets, Some(new.sets));
                return Ok(());
            }
            let record = ResourceRecord::decode(known.resource).ok_or_else(sense)?;
            if self.before.is_same_uri((known.node.ino, &record), &new, file.path, self.naming)? {
                return self.stays(&file, &new, known.resource);
            }
        }
        before.map_or(Ok(()), |known| self.removed(known))?;
        // Under the same rules a resource has another name only where its plain one is taken.
        if self.is_renamed || self.naming.extension_by_type || !file.is_plain || before.is_some() {
            let uri = self.uri(&file, &new)?;
            if let Some(located) = locate(self.before.store, self.before.old, self.old_naming, &uri)? {
                self.departing.moved(located.node.ino);
                let known = ResourceRecord::decode(located.resource).ok_or_else(sense)?;
                if self.naming.extension_by_type && known.sets.iter().any(|set| !new.sets.contains(set)) {
                    // Another set may list it with that type still, and both names stay.
                    self.changes = None;
                }
                return self.stays(&file, &new, located.resource);
            }
        }
        self.tally.count(new.sets, None);
        self.change(&file, &new, None)
    }

    fn removed(&mut self, before: Known<'o>) -> Result<(), CatalogError> {
        if before.node.kind == Kind::File {
            return self.departs(&before.node);
        }
        let Before { store, old, .. } = self.before;
        beneath(store, old, before.node.ino, &mut |_, node| match node.kind {
            Kind::File => self.departs(&node),
            Kind::Folder => Ok(()),
        })
    }

    fn held(&mut self, set: SetId, uri: &Uri, held: HeldState) -> Result<(), CatalogError> {
        if held == HeldState::Listed {
            add(&mut self.changes, self.most, |changes| changes.released.push(statement_key(set, uri)));
        }
        Ok(())
    }

    fn left_out(&mut self, path: String, count: u64) {
        add(&mut self.changes, self.most, |changes| {
            changes.left_out.insert(path, count);
        });
    }
}
