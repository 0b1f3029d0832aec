//! One name of the new tree at a time: compared with the revision before, and written where it differs.

use super::super::going::Going;
use super::super::losses::Tally;
use super::super::naming::resolve::uri;
use super::super::sort_key::slashed;
use super::super::store::Store;
use super::super::store::codec::damaged;
use super::super::store::keys::name_hash;
use super::super::store::record::{NodeRecord, ResourceRecord, Sets};
use super::super::version;
use super::super::{Catalog, CatalogError, Freshness, Kind, Naming, Totals};
use super::write::{Namings, Writer};
use crate::document::Timestamp;
use crate::platform::lmdb::Ahead;
use heed::RoTxn;

/// New names of one folder that are kept in memory before they are entered: 16 octets each.
const NAMES_AT_ONCE: usize = 1 << 20;

/// Children of one folder of the revision before that are read at once: some hundred octets each.
const KNOWN_AT_ONCE: usize = if cfg!(test) { 8 } else { 1 << 14 };

/// Puts names into the tree, folder by folder, those of a folder before those beneath.
pub(in crate::catalog) struct Placer<'o> {
    pub catalog: &'o Catalog,
    pub store: &'o Store,
    pub old: &'o RoTxn<'o>,
    pub old_naming: &'o Naming,
    pub naming: &'o Naming,
    /// Whether names follow from URIs as they did in the revision before.
    pub same_naming: bool,
    /// Whether there is a revision before.
    pub has_old: bool,
    pub writer: Writer<'o>,
    pub folder: Folder<'o>,
    /// Sums of what was placed.
    pub totals: Totals,
    pub tally: Tally,
    /// Where to note what ceases to be.
    pub going: Option<Going>,
    pub ahead: ReadAhead,
}

/// Of the revision before, whose entries and inodes are read in about the order in which they were written.
#[derive(Default)]
pub(in crate::catalog) struct ReadAhead {
    entries: Ahead,
    inodes: Ahead,
}

/// The folder whose children are coming by.
pub(in crate::catalog) struct Folder<'o> {
    pub ino: u64,
    /// New in this commit: nothing of it is in the revision before.
    pub fresh: bool,
    /// Its children in the revision before with their entry ids, by name; `None` where they are read one by one.
    known: Option<Vec<(u64, NodeRecord<'o>)>>,
    /// Room for them.
    room: Vec<(u64, NodeRecord<'o>)>,
    /// Entry ids of the revision before that still exist.
    pub seen: Vec<u64>,
    /// (Hash, entry id) of new names.
    names: Vec<(u64, u64)>,
}

impl<'o> Folder<'o> {
    pub(in crate::catalog) fn new(ino: u64, fresh: bool) -> Folder<'o> {
        Folder { ino, fresh, known: None, room: Vec::new(), seen: Vec::new(), names: Vec::new() }
    }
}

/// A file to be placed.
#[derive(Clone, Copy)]
pub(in crate::catalog) struct File<'a> {
    pub name: &'a [u8],
    /// The path by which the record's URI is read, segments separated by NUL; empty where the URI stands in the record.
    pub path: &'a [u8],
    pub resource: &'a [u8],
    /// The time of the change that says so, which stands in for a `lastmod`.
    pub changed: Option<Timestamp>,
    /// A change says so that is not in the journal: it is believed that the content is another unless the entry vouches for it.
    pub updated: bool,
}

impl<'o> Placer<'o> {
    /// Goes on with another folder, all of whose children will come by.
    pub(in crate::catalog) fn enter(&mut self, ino: u64, fresh: bool) -> Result<(), CatalogError> {
        self.folder.ino = ino;
        self.folder.fresh = fresh;
        if let Some(known) = self.folder.known.take() {
            self.folder.room = known;
        }
        if fresh {
            return Ok(());
        }
        let mut known = std::mem::take(&mut self.folder.room);
        known.clear();
        for child in self.store.children(self.old, ino, 0)? {
            if known.len() == KNOWN_AT_ONCE {
                self.folder.room = known;
                return Ok(());
            }
            let child = child?;
            self.ahead.entries.read(child.1.name);
            known.push(child);
        }
        known.sort_unstable_by_key(|(_, node)| node.name);
        self.folder.known = Some(known);
        Ok(())
    }

    /// What a name of the folder stood for.
    fn existing(&self, name: &[u8]) -> Result<Option<(u64, NodeRecord<'o>)>, CatalogError> {
        match &self.folder.known {
            _ if self.folder.fresh => Ok(None),
            Some(known) => {
                let place = known.binary_search_by(|(_, node)| node.name.cmp(name));
                Ok(place.ok().map(|place| known[place]))
            }
            None => self.store.named(self.old, self.folder.ino, name),
        }
    }

    /// Removes the children that did not come by.
    pub(in crate::catalog) fn remove_others(&mut self) -> Result<(), CatalogError> {
        if self.folder.fresh {
            return Ok(());
        }
        self.folder.seen.sort_unstable();
        match self.folder.known.take() {
            Some(known) => {
                for (entry, node) in &known {
                    self.remove_unseen(*entry, node)?;
                }
                self.folder.room = known;
            }
            None => {
                for child in self.store.children(self.old, self.folder.ino, 0)? {
                    let (entry, node) = child?;
                    self.remove_unseen(entry, &node)?;
                }
            }
        }
        self.folder.seen.clear();
        Ok(())
    }

    fn remove_unseen(&mut self, entry: u64, node: &NodeRecord<'_>) -> Result<(), CatalogError> {
        match self.folder.seen.binary_search(&entry) {
            Ok(_) => Ok(()),
            Err(_) => self.remove(entry, node),
        }
    }

    /// Places a folder; its inode, and whether it is new in this commit. `newest`: the newest time beneath, for a new one.
    pub(in crate::catalog) fn place_folder(
        &mut self,
        name: &[u8],
        newest: Timestamp,
    ) -> Result<(u64, bool), CatalogError> {
        self.totals.folders += 1;
        let parent = self.folder.ino;
        let now = self.writer.now;
        let (mtime, freshness) = (newest.min(now), Freshness::Listed);
        let node = NodeRecord { ino: 0, kind: Kind::Folder, size: None, mtime, ctime: now, freshness, name };
        let (old, namings) = (self.old, Namings { old: self.old_naming, new: self.naming });
        Ok(match self.existing(name)? {
            Some((entry, before)) => {
                self.folder.seen.push(entry);
                match before.kind {
                    Kind::Folder => {
                        self.keep((parent, entry), &before, &[])?;
                        (before.ino, false)
                    }
                    Kind::File => {
                        self.note_going(&before)?;
                        self.name_again(&before, entry)?;
                        (self.writer.replace(old, namings, (parent, entry), &before, node, &[])?, true)
                    }
                }
            }
            None => (self.create(node, &[])?, true),
        })
    }

    /// Places a file.
    pub(in crate::catalog) fn place_file(&mut self, file: File<'_>) -> Result<(), CatalogError> {
        let File { name, path, resource, .. } = file;
        let sense = || damaged("resource", name);
        let new = ResourceRecord::decode(resource).ok_or_else(sense)?;
        let size = new.size();
        self.totals.files += 1;
        self.totals.octets = self.totals.octets.saturating_add(size.unwrap_or(0));
        self.totals.unsized_files += u64::from(size.is_none());

        let parent = self.folder.ino;
        let now = self.writer.now;
        let dated = new.lastmod.or(file.changed);
        let freshness = new.freshness();
        let mtime = dated.unwrap_or(now);
        let node = NodeRecord { ino: 0, kind: Kind::File, size, mtime, ctime: now, freshness, name };
        let (old, namings) = (self.old, Namings { old: self.old_naming, new: self.naming });
        let Some((entry, before)) = self.existing(name)? else {
            self.tally_elsewhere(&new, path, false)?;
            return self.create(node, resource).map(|_| ());
        };
        self.folder.seen.push(entry);
        let place = (parent, entry);
        if before.kind == Kind::Folder {
            self.tally_elsewhere(&new, path, true)?;
            self.note_going_beneath(before.ino)?;
            self.name_again(&before, entry)?;
            self.writer.replace(old, namings, place, &before, node, resource)?;
            return Ok(());
        }
        let known = self.store.inode(old, before.ino)?.filter(|known| (known.parent, known.entry) == place);
        let known = known.ok_or_else(sense)?.resource;
        self.ahead.inodes.read(known);
        if known == resource && self.same_naming && !file.updated {
            self.tally.count(new.sets, Some(new.sets));
            return self.keep(place, &before, known);
        }

        let record = ResourceRecord::decode(known).ok_or_else(sense)?;
        // One name and one naming, and a URI that the path gives: one path, so the scheme tells.
        let same_uri = if self.same_naming && record.uri.is_none() == new.uri.is_none() {
            (record.https, record.uri) == (new.https, new.uri)
        } else {
            let new_path = slashed(path).ok_or_else(sense)?;
            let old_uri = self.store.uri_of(old, before.ino, &record, self.old_naming)?;
            old_uri == uri(&new, &new_path, self.naming).ok_or_else(sense)?
        };
        if same_uri {
            self.tally.count(new.sets, Some(record.sets));
            self.note_leaving(&before, record.sets, new.sets)?;
        } else {
            self.tally_elsewhere(&new, path, true)?;
            self.note_going(&before)?;
        }
        let same = match file.updated {
            true => version::same_after_update(&record, &new, same_uri, &self.catalog.symbols),
            false => version::same_version(&record, &new, same_uri, &self.catalog.symbols),
        };
        if known == resource && same_uri && (!file.updated || same == Some(true)) {
            return self.keep(place, &before, known);
        }
        self.name_again(&before, entry)?;
        if !same.ok_or_else(sense)? {
            let mtime = version::mtime(&before, size, dated, now);
            let node = NodeRecord { mtime, ..node };
            self.writer.replace(old, namings, place, &before, node, resource)?;
            return Ok(());
        }
        let mtime = if record.lastmod == new.lastmod { before.mtime } else { new.lastmod.unwrap_or(before.mtime) };
        self.writer.touch(place, &before, NodeRecord { size, mtime, freshness, ..before }, resource, self.naming)
    }

    /// A name of the folder stays as it is.
    fn keep(&mut self, place: (u64, u64), node: &NodeRecord<'_>, resource: &[u8]) -> Result<(), CatalogError> {
        self.name_again(node, place.1)?;
        self.writer.keep(place, node, resource, self.naming)
    }

    /// Where the whole tree is written, a name that was there is to be entered too.
    fn name_again(&mut self, node: &NodeRecord<'_>, entry: u64) -> Result<(), CatalogError> {
        if self.writer.is_rewrite() { self.note_name(node.name, entry) } else { Ok(()) }
    }

    fn note_name(&mut self, name: &[u8], entry: u64) -> Result<(), CatalogError> {
        self.folder.names.push((name_hash(name), entry));
        if self.folder.names.len() >= NAMES_AT_ONCE {
            self.put_names()?;
        }
        Ok(())
    }

    fn create(&mut self, node: NodeRecord<'_>, resource: &[u8]) -> Result<u64, CatalogError> {
        let parent = self.folder.ino;
        let (ino, entry) = self.writer.create(parent, node, resource, self.naming)?;
        self.note_name(node.name, entry)?;
        if !self.folder.fresh {
            self.writer.name_changed(parent, node.name, None);
            self.writer.folder_changed(parent, self.writer.now, true)?;
        }
        Ok(ino)
    }

    /// Enters the new names of the folder; more may come in the same commit.
    pub(in crate::catalog) fn put_names(&mut self) -> Result<(), CatalogError> {
        self.writer.put_names(self.folder.ino, &mut self.folder.names)
    }

    /// Removes a name of the folder, and all beneath it.
    pub(in crate::catalog) fn remove(&mut self, entry: u64, node: &NodeRecord<'_>) -> Result<(), CatalogError> {
        match node.kind {
            Kind::Folder => self.note_going_beneath(node.ino)?,
            Kind::File => self.note_going(node)?,
        }
        self.writer.remove(self.old, self.old_naming, (self.folder.ino, entry), node)
    }

    /// Counts a resource that its name did not stand for: it is new, or had another name. `existed`: whether the name did.
    fn tally_elsewhere(&mut self, new: &ResourceRecord<'_>, path: &[u8], existed: bool) -> Result<(), CatalogError> {
        // Under the same rules nobody has another name for want of a plain one that nobody had.
        let may_have_moved = !self.same_naming || self.naming.extension_by_type || path.is_empty() || existed;
        if !self.has_old || !may_have_moved {
            self.tally.count(new.sets, None);
            return Ok(());
        }
        let sense = || damaged("resource", path);
        let uri = uri(new, &slashed(path).ok_or_else(sense)?, self.naming).ok_or_else(sense)?;
        let located = super::super::naming::locate::locate(self.store, self.old, self.old_naming, &uri)?;
        let Some(located) = located else {
            self.tally.count(new.sets, None);
            return Ok(());
        };
        let record = ResourceRecord::decode(located.resource).ok_or_else(sense)?;
        self.tally.count(new.sets, Some(record.sets));
        if let Some(going) = &mut self.going {
            going.moved(located.node.ino);
            for set in record.sets.iter().filter(|set| !new.sets.contains(*set)) {
                going.add(&uri, 0, located.resource, (&[set], false), self.naming, &self.catalog.symbols)?;
            }
        }
        Ok(())
    }

    /// Notes that the file at `node` does not stand for its resource any more.
    fn note_going(&mut self, node: &NodeRecord<'_>) -> Result<(), CatalogError> {
        if self.going.is_none() {
            return Ok(());
        }
        let sense = || damaged("resource", node.name);
        let octets = self.store.inode(self.old, node.ino)?.ok_or_else(sense)?.resource;
        let record = ResourceRecord::decode(octets).ok_or_else(sense)?;
        let sets: Vec<_> = record.sets.iter().collect();
        self.note(node, &record, (&sets, true), octets)
    }

    /// Notes the sets that a resource which stays is no member of any more.
    fn note_leaving(&mut self, node: &NodeRecord<'_>, before: Sets<'_>, now: Sets<'_>) -> Result<(), CatalogError> {
        if self.going.is_none() || before == now {
            return Ok(());
        }
        let sets: Vec<_> = before.iter().filter(|set| !now.contains(*set)).collect();
        if sets.is_empty() {
            return Ok(());
        }
        let sense = || damaged("resource", node.name);
        let octets = self.store.inode(self.old, node.ino)?.ok_or_else(sense)?.resource;
        let record = ResourceRecord::decode(octets).ok_or_else(sense)?;
        self.note(node, &record, (&sets, false), octets)
    }

    fn note(
        &mut self,
        node: &NodeRecord<'_>,
        record: &ResourceRecord<'_>,
        sets: (&[super::super::SetId], bool),
        octets: &[u8],
    ) -> Result<(), CatalogError> {
        let uri = self.store.uri_of(self.old, node.ino, record, self.old_naming)?;
        match &mut self.going {
            Some(going) => going.add(&uri, node.ino, octets, sets, self.naming, &self.catalog.symbols),
            None => Ok(()),
        }
    }

    fn note_going_beneath(&mut self, folder: u64) -> Result<(), CatalogError> {
        if self.going.is_none() {
            return Ok(());
        }
        let (store, old) = (self.store, self.old);
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            for child in store.children(old, folder, 0)? {
                let (_, node) = child?;
                match node.kind {
                    Kind::Folder => folders.push(node.ino),
                    Kind::File => self.note_going(&node)?,
                }
            }
        }
        Ok(())
    }
}
