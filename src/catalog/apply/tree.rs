//! The tree of the revision before, changed in place: names that come, go, or stand for other content.

use super::super::displaced::displaced;
use super::super::effects::Effects;
use super::super::numbers::Numbers;
use super::super::store::codec::{damaged, push_number};
use super::super::store::keys::{entry_key, ino_key, name_key};
use super::super::store::record::{InodeRecord, NodeRecord, OrphanRecord, ResourceRecord, RevisionRecord};
use super::super::store::{ROOT, Store, TableId, meta};
use super::super::{Catalog, CatalogError, Committed, Kind, Naming, Totals, version};
use super::transaction::Transaction;
use crate::document::{Timestamp, Uri};
use std::collections::BTreeMap;

/// What exists is read from the revision before; of what is written here nothing is read but the ids of one name, and folders.
pub struct Tree<'t, 'c> {
    catalog: &'t Catalog,
    store: &'t Store,
    naming: &'t Naming,
    transaction: &'t mut Transaction<'c>,
    /// The time of this commit.
    pub now: Timestamp,
    before: &'t RevisionRecord,
    numbers: Numbers,
    totals: Totals,
    effects: Effects,
    /// Folders of the revision before in which something changed, and that stay.
    folders: BTreeMap<u64, FolderChange>,
}

/// A name of the revision before.
pub struct Old<'o> {
    pub parent: u64,
    pub entry: u64,
    pub node: NodeRecord<'o>,
    /// Record and URI of the resource that it stands for; `None` for a folder.
    pub resource: Option<(&'o [u8], Uri)>,
}

/// A folder that a name lies in.
#[derive(Clone, Copy)]
pub struct Parent {
    pub ino: u64,
    /// Whether this commit made it: the kernel knows nothing of it, and it has its times.
    pub is_new: bool,
}

/// What happened in one folder, or beneath it.
#[derive(Clone, Copy)]
struct FolderChange {
    /// The newest time of what changed.
    newest: Timestamp,
    /// Whether the folder's own listing changed: its names or their inodes.
    listing: bool,
}

impl<'t, 'c> Tree<'t, 'c> {
    pub fn new(
        catalog: &'t Catalog,
        store: &'t Store,
        naming: &'t Naming,
        before: &'t RevisionRecord,
        transaction: &'t mut Transaction<'c>,
    ) -> Tree<'t, 'c> {
        let (now, numbers, totals) = (version::now(), Numbers::from(before), before.totals);
        let (effects, folders) = (Effects::default(), BTreeMap::new());
        Tree { catalog, store, naming, transaction, now, before, numbers, totals, effects, folders }
    }

    /// Adds `node.name` to a folder, with a new inode and entry id; `node.ino` does not count. Returns the inode.
    pub(super) fn create(
        &mut self,
        parent: Parent,
        node: NodeRecord<'_>,
        resource: &[u8],
    ) -> Result<u64, CatalogError> {
        let (ino, entry) = (self.numbers.give_ino()?, self.numbers.give_entry()?);
        self.put((parent.ino, entry), &NodeRecord { ino, ..node }, resource)?;
        let key = name_key(parent.ino, self.store.name_hash(node.name));
        let mut ids = self.transaction.row(TableId::Names, &key)?.unwrap_or_default().to_vec();
        push_number(&mut ids, entry);
        self.transaction.put(TableId::Names, &key, |row| row.extend_from_slice(&ids))?;
        self.effects.count(node.kind, |effects| &mut effects.created);
        self.count(&node, true);
        if !parent.is_new {
            self.effects.name(parent.ino, node.name, None);
            self.note(parent.ino, self.now, true);
        }
        Ok(ino)
    }

    /// Gives a name other content, or makes it a folder, or a file: a new inode at the same place. `new.ino` and `new.ctime` do not
    /// count. Returns the inode.
    pub fn replace(&mut self, old: &Old<'_>, new: NodeRecord<'_>, resource: &[u8]) -> Result<u64, CatalogError> {
        let ino = self.numbers.give_ino()?;
        self.orphan(old)?;
        self.put((old.parent, old.entry), &NodeRecord { ino, ctime: self.now, ..new }, resource)?;
        self.effects.updated += 1;
        self.count(&old.node, false);
        self.count(&new, true);
        self.effects.name(old.parent, new.name, Some(old.node.ino));
        let newest = if old.node.kind == new.kind { new.mtime } else { self.now };
        self.note(old.parent, newest, true);
        Ok(ino)
    }

    /// Rewrites the metadata of an inode that stays.
    pub(super) fn touch(&mut self, old: &Old<'_>, new: NodeRecord<'_>, resource: &[u8]) -> Result<(), CatalogError> {
        self.effects.touched += 1;
        let Old { parent, entry, node, .. } = *old;
        self.put_inode(node.ino, (parent, entry), resource)?;
        self.count(&node, false);
        self.count(&new, true);
        if (new.size, new.mtime, new.freshness) != (node.size, node.mtime, node.freshness) {
            self.put_entry((parent, entry), &NodeRecord { ctime: self.now, ..new })?;
            self.effects.attributes(node.ino);
            self.note(parent, new.mtime, false);
        }
        Ok(())
    }

    /// Removes a name; of a folder all that lay in it is removed already.
    pub(super) fn remove(&mut self, old: &Old<'_>) -> Result<(), CatalogError> {
        let Old { parent, entry, node, .. } = *old;
        self.effects.count(node.kind, |effects| &mut effects.deleted);
        self.count(&node, false);
        self.effects.name(parent, node.name, Some(node.ino));
        self.orphan(old)?;
        self.transaction.remove(TableId::Entries, &entry_key(parent, entry))?;
        let key = name_key(parent, self.store.name_hash(node.name));
        let namesakes = self.transaction.row(TableId::Names, &key)?.unwrap_or_default();
        let others = namesakes.chunks(5).filter(|id| *id != &entry.to_be_bytes()[3..]).collect::<Vec<_>>().concat();
        match others[..] {
            [] => self.transaction.remove(TableId::Names, &key)?,
            _ => self.transaction.put(TableId::Names, &key, |row| row.extend_from_slice(&others))?,
        }
        self.note(parent, self.now, true);
        Ok(())
    }

    /// Moves an inode to the orphans: it loses its name, but may be open.
    fn orphan(&mut self, old: &Old<'_>) -> Result<(), CatalogError> {
        let (key, node) = (ino_key(old.node.ino), NodeRecord { ctime: self.now, ..old.node });
        let mut resource = Vec::new();
        if let Some((record, uri)) = &old.resource {
            let record = ResourceRecord::decode(record).ok_or_else(|| damaged("resource", &key))?;
            record.push_with_uri(Some(uri.as_str()), &mut resource);
        }
        if let Some((key, _)) = displaced(node.name, &resource, self.naming, &self.catalog.symbols)? {
            self.transaction.remove(TableId::Displaced, &key)?;
        }
        let orphan = OrphanRecord { parent: old.parent, node, resource: &resource };
        self.transaction.put(TableId::Orphans, &key, |row| orphan.encode(row))?;
        self.transaction.remove(TableId::Inodes, &key)?;
        self.folders.remove(&node.ino);
        Ok(())
    }

    fn put(&mut self, place: (u64, u64), node: &NodeRecord<'_>, resource: &[u8]) -> Result<(), CatalogError> {
        self.put_entry(place, node)?;
        self.put_inode(node.ino, place, resource)?;
        if let Some((key, uri)) = displaced(node.name, resource, self.naming, &self.catalog.symbols)? {
            self.transaction.put(TableId::Displaced, &key, |row| row.extend_from_slice(uri.as_str().as_bytes()))?;
        }
        Ok(())
    }

    fn put_entry(&mut self, (parent, entry): (u64, u64), node: &NodeRecord<'_>) -> Result<(), CatalogError> {
        self.transaction.put(TableId::Entries, &entry_key(parent, entry), |row| node.encode(row))
    }

    fn put_inode(&mut self, ino: u64, (parent, entry): (u64, u64), resource: &[u8]) -> Result<(), CatalogError> {
        let record = InodeRecord { parent, entry, resource };
        self.transaction.put(TableId::Inodes, &ino_key(ino), |row| record.encode(row))
    }

    /// Counts a node that comes, or one that goes.
    fn count(&mut self, node: &NodeRecord<'_>, comes: bool) {
        let add = |sum: &mut u64, by: u64| *sum = if comes { sum.saturating_add(by) } else { sum.saturating_sub(by) };
        let Totals { files, folders, bytes, unsized_files } = &mut self.totals;
        match node.kind {
            Kind::Folder => add(folders, 1),
            Kind::File => {
                add(files, 1);
                add(bytes, node.size.unwrap_or(0));
                add(unsized_files, u64::from(node.size.is_none()));
            }
        }
    }

    /// Something of this time changed in a folder of the revision before.
    fn note(&mut self, folder: u64, newest: Timestamp, listing: bool) {
        let newest = newest.min(self.now);
        let known = self.folders.entry(folder).or_insert(FolderChange { newest, listing });
        *known = FolderChange { newest: known.newest.max(newest), listing: known.listing || listing };
    }

    /// Writes the folders whose listing changed or that are older than what lies in them, those above them included.
    fn settle_folders(&mut self) -> Result<(), CatalogError> {
        while !self.folders.is_empty() {
            for (folder, change) in std::mem::take(&mut self.folders) {
                // A folder in which, and beneath which, something changed is read as it was written before.
                let known = self.store.inode_entry(self.transaction.read(), folder)?;
                let (place, node) = known.ok_or_else(|| damaged("absence", &ino_key(folder)))?;
                if !change.listing && change.newest <= node.mtime {
                    continue;
                }
                let (parent, name) = (place.parent, node.name.to_vec());
                let mtime = node.mtime.max(change.newest);
                let node = NodeRecord { mtime, ctime: self.now, name: &name, ..node };
                self.put_entry((parent, place.entry), &node)?;
                self.effects.folder(folder);
                if folder != ROOT {
                    self.note(parent, change.newest, false);
                }
            }
        }
        Ok(())
    }

    /// All is changed: brings the folders up to date and writes the revision, which is the one before where the tree is the same.
    pub fn finish(mut self, at: Option<Timestamp>, left_out: BTreeMap<String, u64>) -> Result<Committed, CatalogError> {
        self.settle_folders()?;
        let mut next = RevisionRecord { at, ..*self.before };
        if !self.effects.is_nothing() {
            let (number, committed, totals) = (next.number + 1, self.now, self.totals);
            let Numbers { next_ino, next_entry, .. } = self.numbers;
            next = RevisionRecord { number, committed, at, totals, next_ino, next_entry };
        }
        self.transaction.put_if_other(TableId::Meta, meta::REVISION, |row| next.encode(row))?;
        Ok(self.effects.committed(next.number, left_out))
    }
}

impl Old<'_> {
    pub(super) fn is_folder(&self) -> bool {
        self.node.kind == Kind::Folder
    }
}
