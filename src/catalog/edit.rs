//! Edits: what differs between the facts of a commit and the revision that is shown, path by path; and what would leave.

use super::base::Base;
use super::fact::Facts;
use super::group::{FactScope, HeldState, NewFile, SortedFacts, StatedResource};
use super::join::{FolderRef, Visitor, beneath, join};
use super::losses::Tally;
use super::naming::locate::located;
use super::naming::names_of_path::path_by_rule;
use super::sort::{Sorted, Sorter, SpillFolder};
use super::store::codec::{damaged, number};
use super::store::keys::{ino_key, resource_key};
use super::store::record::{NamedNode, NodeRecord, ResourceRecord, SetTable};
use super::version;
use super::{Catalog, CatalogError, Held, Kind, Losses, Naming, SetId};
use crate::document::{Timestamp, Uri};
use std::collections::{BTreeMap, HashSet};

/// Edits that are held in memory, at most, each some hundred bytes, and written in place.
pub(super) const MOST_IN_PLACE: u64 = 50_000;

/// A row written in place costs as much as so many files of a tree that is written whole, in order.
const ROW_IN_PLACE: u64 = 20;

impl Catalog {
    /// True if so many changes are written with the whole tree: in place they would take longer, and more memory.
    pub fn rewrites_for(&self, changes: u64) -> Result<bool, CatalogError> {
        let files = self.snapshot()?.revision()?.map_or(0, |revision| revision.totals.files);
        Ok(changes > self.most_in_place() && changes > files / ROW_IN_PLACE)
    }
}

/// Bytes of departures in memory: they are few, or the memory of the list itself is free by now.
const MOST_DEPARTURES: usize = 8 << 20;

/// The edits of a commit, few enough to be held in memory.
#[derive(Default)]
pub(super) struct Edits {
    /// By depth and path.
    pub groups: BTreeMap<(usize, String), GroupEdits>,
    /// Rows of what is held back: new ones, and keys alone of those that hold no more, as their set has the resource again.
    pub held: Vec<([u8; 20], Option<Vec<u8>>)>,
    count: u64,
}

/// The edits of one path.
#[derive(Default)]
pub(super) struct GroupEdits {
    /// Resources that come to the path, or that are replaced or touched there.
    pub coming: Vec<(Uri, StatedResource)>,
    /// Resources that leave it.
    pub leaving: HashSet<Uri>,
}

/// The number of segments of a path.
pub(super) fn depth(path: &str) -> usize {
    1 + path.bytes().filter(|byte| *byte == b'/').count()
}

impl Edits {
    fn group(&mut self, path: String) -> &mut GroupEdits {
        self.count += 1;
        self.groups.entry((depth(&path), path)).or_default()
    }
}

/// A commit compared with the revision that is shown.
pub(super) struct Diff {
    pub edits: Edits,
    pub losses: Losses,
    pub departures: Departures,
    /// The sets of the new tree, with the times of their lists.
    pub sets: SetTable,
    /// Entries that are not shown, by path.
    pub left_out: BTreeMap<String, u64>,
}

impl Diff {
    /// Compares the facts, from their beginning, with the revision `base`. `None` where there are too many edits to be held in memory,
    /// or where names follow from URIs in another way.
    pub(super) fn of(
        catalog: &Catalog,
        base: &Base<'_>,
        scope: &FactScope,
        facts: &mut SortedFacts,
    ) -> Result<Option<Diff>, CatalogError> {
        let mut comparison = Comparison::new(catalog, base, scope);
        if comparison.is_renamed {
            return Ok(None);
        }
        comparison.edits = Some(Edits::default());
        let left_out = join(base, scope, facts, &mut comparison)?;
        if comparison.has_enough() {
            return Ok(None);
        }
        let (losses, departures) = comparison.losses()?;
        let sets = comparison.sets();
        Ok(comparison.edits.map(|edits| Diff { edits, losses, departures, sets, left_out }))
    }
}

/// The facts and the revision that is shown, name by name.
pub(super) struct Comparison<'o> {
    base: &'o Base<'o>,
    scope: &'o FactScope,
    old_naming: &'o Naming,
    /// True if names follow from URIs in another way than in the revision that is shown.
    is_renamed: bool,
    most: u64,
    /// `None` where they are only counted.
    edits: Option<Edits>,
    tally: Tally,
    departing: Departing,
}

impl<'o> Comparison<'o> {
    /// A comparison that counts, and holds no edits.
    pub(super) fn new(catalog: &Catalog, base: &'o Base<'o>, scope: &'o FactScope) -> Comparison<'o> {
        let naming = &scope.naming;
        Comparison {
            base,
            scope,
            old_naming: base.naming.as_ref().unwrap_or(naming),
            is_renamed: !base.has_naming(naming),
            most: if scope.is_partial { u64::MAX } else { catalog.most_in_place() },
            edits: None,
            tally: Tally::default(),
            departing: Departing::new(&catalog.spill_folder),
        }
    }

    /// The losses, when everything was compared.
    pub(super) fn losses(&mut self) -> Result<(Losses, Departures), CatalogError> {
        let mut departures = self.departing.finish()?;
        departures.each(&mut |departure| {
            if !departure.is_moved {
                self.tally.depart(departure.uri.as_str(), departure.resource.sets.iter(), departure.is_last);
            }
            if departure.is_last || departure.is_moved {
                let path = path_by_rule(self.old_naming, departure.uri, departure.resource.media_type).0;
                self.add(|edits| _ = edits.group(path).leaving.insert(departure.uri.clone()));
            }
            Ok(())
        })?;
        let losses = self.tally.losses(self.base.files(), &self.base.sets);
        let mut released = self.scope.released.clone();
        self.tally.released.iter().for_each(|(set, count)| *released.entry(*set).or_default() += count);
        Ok((Losses { released, ..losses }, departures))
    }

    /// The sets of the new tree.
    pub(super) fn sets(&self) -> SetTable {
        self.tally.table(&self.base.sets, &self.scope.lists)
    }

    /// Notes that a set has a resource again whose deletion was held back.
    pub(super) fn release(&mut self, set: SetId) {
        *self.tally.released.entry(set).or_default() += 1;
    }

    /// Compares a file with what its name stood for; answers whether that was of the same URI.
    pub(super) fn compare(&mut self, file: &NewFile<'_>, base: Option<NamedNode<'o>>) -> Result<bool, CatalogError> {
        let new = &file.resource;
        if let Some((known, record)) = base.and_then(|known| Some((known, known.node.resource?))) {
            if record.bytes == new.bytes && !self.is_renamed && !file.mark.is_news {
                return Ok(true);
            }
            if self.base.is_same_uri(&known.node, new, file.path, &self.scope.naming)? {
                self.tally.name(new.sets.iter(), record.sets.iter());
                self.stays(file, &record, true)?;
                return Ok(true);
            }
        }
        base.map_or(Ok(()), |known| self.removed(known))?;
        self.tally.name(new.sets.iter(), std::iter::empty());
        // Under the same rules a resource has another name only where its plain one is taken.
        let may_have_moved = self.is_renamed || self.scope.naming.extension_by_type || !file.is_plain;
        if self.base.revision.is_some() && (may_have_moved || base.is_some()) {
            let uri = file.uri(&self.scope.naming)?;
            let located = located(self.base.store, self.base.txn, self.old_naming, &uri, usize::MAX)?;
            let known = || located.iter().filter_map(|located| Some((located, located.node.resource?)));
            // The name that its sets had, where there are several.
            let its = known().find(|(_, known)| new.sets.iter().any(|set| known.sets.contains(set)));
            if let Some((located, known)) = its.or_else(|| known().next()) {
                let is_same_path = path_by_rule(self.old_naming, &uri, known.media_type).0 == file.path()?;
                self.departing.moved(located.node.ino, is_same_path)?;
                self.stays(file, &known, is_same_path)?;
                return Ok(false);
            }
        }
        self.tally.come(new.sets.iter(), None);
        self.edit(file)?;
        Ok(false)
    }

    /// Compares a resource that is in the tree with its record `known` there. Where types make paths, a set may list it at another.
    fn stays(
        &mut self,
        file: &NewFile<'_>,
        known: &ResourceRecord<'_>,
        is_same_path: bool,
    ) -> Result<(), CatalogError> {
        let new = &file.resource;
        self.tally.come(new.sets.iter(), Some(&|set| known.sets.contains(set)));
        let speaks = is_same_path || !self.scope.naming.extension_by_type;
        let left: Vec<SetId> = known.sets.iter().filter(|set| speaks && !new.sets.contains(*set)).collect();
        if !left.is_empty() {
            self.departing.add(&file.uri(&self.scope.naming)?, known, left, None)?;
        }
        let is_same = is_same_path && known.says_the_same(new) && known.sets == new.sets && known.member == new.member;
        let vouched = || version::same_after_update(known, new, true).ok_or_else(|| damaged("resource", file.path));
        if is_same && (!file.mark.is_news || vouched()?) { Ok(()) } else { self.edit(file) }
    }

    /// Adds to the edits, unless they become too many.
    fn add(&mut self, add: impl FnOnce(&mut Edits)) {
        let Some(edits) = &mut self.edits else { return };
        add(edits);
        if edits.count + edits.held.len() as u64 > self.most {
            self.edits = None;
        }
    }

    fn edit(&mut self, file: &NewFile<'_>) -> Result<(), CatalogError> {
        if self.edits.is_some() {
            let (uri, path, resource) = (file.uri(&self.scope.naming)?, file.path()?, file.stated());
            self.add(|edits| edits.group(path).coming.push((uri, resource)));
        }
        Ok(())
    }

    /// Notes that the file of `node` no longer stands for its resource.
    fn departs(&mut self, node: &NodeRecord<'_>) -> Result<(), CatalogError> {
        let Some(record) = node.resource else { return Ok(()) };
        self.tally.name(std::iter::empty(), record.sets.iter());
        self.departing.add(&self.base.uri(node)?, &record, record.sets.iter(), Some(node.ino))
    }
}

impl<'o> Visitor<'o> for Comparison<'o> {
    fn folder(&mut self, _: &[u8], _: Timestamp, base: Option<NamedNode<'o>>) -> Result<FolderRef, CatalogError> {
        match base {
            Some(known) if known.node.kind() == Kind::Folder => Ok(FolderRef { ino: known.node.ino, is_new: false }),
            file => {
                file.map_or(Ok(()), |file| self.departs(&file.node))?;
                Ok(FolderRef { ino: 0, is_new: true })
            }
        }
    }

    fn file(&mut self, file: NewFile<'_>, base: Option<NamedNode<'o>>) -> Result<(), CatalogError> {
        self.compare(&file, base).map(drop)
    }

    fn removed(&mut self, base: NamedNode<'o>) -> Result<(), CatalogError> {
        self.departs(&base.node)?;
        match base.node.kind() {
            Kind::File => Ok(()),
            Kind::Folder => {
                beneath(self.base.store, self.base.txn, base.node.ino, &mut |named| self.departs(&named.node))
            }
        }
    }

    fn held(&mut self, set: SetId, uri: &Uri, held: HeldState) -> Result<(), CatalogError> {
        let row = match held {
            HeldState::Still => return Ok(()),
            HeldState::Listed => {
                self.release(set);
                None
            }
            HeldState::New => Some(uri.as_str().into()),
        };
        self.add(|edits| edits.held.push((resource_key(set, uri), row)));
        Ok(())
    }

    fn has_enough(&self) -> bool {
        self.edits.is_none() || self.departing.count > self.most
    }
}

/// A resource that leaves the tree, or some of its sets.
pub(super) struct DepartingFile<'r> {
    pub uri: &'r Uri,
    /// Its record in the revision that is shown, a member of the sets that it leaves alone.
    pub resource: ResourceRecord<'r>,
    /// True where no other set has it.
    pub is_last: bool,
    /// True where it only moves to another path.
    is_moved: bool,
}

/// Departures on their way to the disk, by the inode of a resource that leaves the tree; those that only leave some of their sets by 0.
/// Inodes that only have another name are noted before them.
struct Departing {
    sorter: Sorter,
    /// Resources that leave, those included that only have another name.
    count: u64,
}

/// All departures of a commit, to be counted, and stated after all where they are held back.
pub(super) struct Departures(Sorted);

impl Departing {
    fn new(folder: &SpillFolder) -> Departing {
        Departing { sorter: Sorter::new(folder, MOST_DEPARTURES), count: 0 }
    }

    /// Notes that the resource of `uri` leaves `sets`. `ino` stood for it, where it leaves the tree with them.
    fn add(
        &mut self,
        uri: &Uri,
        resource: &ResourceRecord<'_>,
        sets: impl IntoIterator<Item = SetId>,
        ino: Option<u64>,
    ) -> Result<(), CatalogError> {
        let record = resource.belonging(Some(uri.as_str()), sets, resource.member);
        self.count += 1;
        self.sorter.add(&[&ino_key(ino.unwrap_or(0))[..], &[1]].concat(), &record)
    }

    /// Notes that the resource of `ino` has another name now, and perhaps another path.
    fn moved(&mut self, ino: u64, is_same_path: bool) -> Result<(), CatalogError> {
        self.sorter.add(&[&ino_key(ino)[..], &[0]].concat(), &[u8::from(is_same_path)])
    }

    /// All of them; none stays here.
    fn finish(&mut self) -> Result<Departures, CatalogError> {
        Ok(Departures(self.sorter.split_off()?.finish()?))
    }
}

impl Departures {
    /// Calls `visit` for each.
    fn each(
        &mut self,
        visit: &mut dyn FnMut(&DepartingFile<'_>) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        self.0.rewind()?;
        let mut moved = (0, false);
        while let Some((key, value)) = self.0.next()? {
            let corrupt = || damaged("departure", key);
            let ino = number(&key[..key.len() - 1]).ok_or_else(corrupt)?;
            if key.ends_with(&[0]) {
                moved = (ino, value == [1]);
                continue;
            }
            let is_moved = ino != 0 && ino == moved.0;
            if is_moved && moved.1 {
                continue;
            }
            let resource = ResourceRecord::decode(value).ok_or_else(corrupt)?;
            let uri = resource.uri.and_then(|uri| Uri::parse_item(uri).ok()).ok_or_else(corrupt)?;
            visit(&DepartingFile { uri: &uri, resource, is_last: ino != 0 && !is_moved, is_moved })?;
        }
        Ok(())
    }

    /// The departures that are `held`, as sorted facts, folders included.
    pub(super) fn kept(&mut self, held: &Held, naming: &Naming, folder: &SpillFolder) -> Result<Sorted, CatalogError> {
        let mut facts = Facts::new(folder, MOST_DEPARTURES);
        self.each(&mut |DepartingFile { uri, resource, is_moved, .. }| {
            let sets: Vec<SetId> = resource.sets.iter().filter(|set| !is_moved && held.holds(*set)).collect();
            if sets.is_empty() { Ok(()) } else { facts.add_held(naming, (uri, resource), sets, false) }
        })?;
        facts.close()?;
        facts.sorter.finish()
    }
}
