//! A revision that is written whole, append-only, into a store that takes the place of the one there was: the first, and one that shares
//! little with the one before. Nothing of what it writes is read.

pub(super) mod folder_times;
mod rows;

use super::apply::PutRow;
use super::displaced::displaced;
use super::effects::Effects;
use super::held;
use super::journal::{Lists, list_at};
use super::losses::Tally;
use super::numbers::Numbers;
use super::revision::Before;
use super::statement::{HeldState, Listing, SortedStatement};
use super::store::codec::{damaged, push_number, unseal};
use super::store::keys::{entry_key, ino_key, name_key, statement_key};
use super::store::record::{InodeRecord, NodeRecord, ResourceRecord, RevisionRecord};
use super::store::sets::SetTable;
use super::store::{ROOT, ROOT_ENTRY, Store, TableId, meta, push_naming};
use super::version::{self, Coming, Outcome};
use super::walk::{File, Folder, Known, Visitor, beneath, walk};
use super::{Catalog, CatalogError, Committed, Freshness, Kind, Losses, Naming, SetId, Totals};
use crate::document::{Timestamp, Uri};
use crate::platform::error_chain::chain;
use folder_times::{ChangedFolders, FolderChange};
use fuser::INodeNo;
use rows::Rows;
use std::collections::BTreeMap;

/// New names of one folder that are held in memory before they are entered: 16 bytes each.
const NAMES_AT_ONCE: usize = 1 << 20;

/// Orphans of the previous store that are taken over where it goes. Files beyond that are lost to readers that have them open.
const TAKEN_OVER: usize = 100_000;

/// Where a revision is written.
pub(super) struct Target<'t> {
    /// Empty.
    pub store: &'t Store,
    /// Those of the revision before.
    pub numbers: Numbers,
}

/// Writes the tree of `statement` into another store than that of `before`, with the `rows` of the journal and the state that `decide` gives
/// when the tree is known. It is not shown before that store takes the place of the other.
pub(super) fn rebuild(
    catalog: &Catalog,
    before: &Before<'_>,
    listing: Listing<'_>,
    statement: SortedStatement,
    target: Target<'_>,
    rows: &mut dyn FnMut(&mut PutRow<'_>) -> Result<(), CatalogError>,
    decide: &mut dyn FnMut(&Losses) -> Result<Vec<u8>, CatalogError>,
) -> Result<Committed, CatalogError> {
    let Target { store, numbers } = target;
    let is_first = before.revision.is_none();
    let mut rebuild = Rebuild {
        catalog,
        before,
        naming: listing.naming,
        is_renamed: !before.has_naming(listing.naming),
        lists: listing.speaking.lists,
        rows: Rows::begin(store, &catalog.spill_folder, is_first)?,
        numbers,
        now: version::now(),
        totals: Totals { folders: 1, ..Totals::default() },
        tally: Tally::default(),
        effects: Effects::default(),
        left_out: BTreeMap::new(),
        folder: Folder { ino: ROOT, is_new: is_first },
        names: Vec::new(),
        changed_folders: ChangedFolders::new(&catalog.spill_folder),
    };
    let mut statement = statement.read_once();
    rebuild.put_root(statement.newest)?;
    if !is_first {
        rebuild.take_over_orphans()?;
    }
    walk(before, listing, &mut statement, &mut rebuild)?;
    // The next one reads it no more.
    drop(statement);
    rebuild.put_names()?;
    let state = decide(&rebuild.tally.losses(0, &SetTable::default(), Vec::new()))?;
    rebuild.settle_folders()?;
    rows(&mut |table, key, row| match row {
        Some(row) => rebuild.rows.put(table, key, |record| record.extend_from_slice(row)),
        None => Ok(()),
    })?;
    rebuild.commit(listing, &state)
}

struct Rebuild<'o> {
    catalog: &'o Catalog,
    before: &'o Before<'o>,
    naming: &'o Naming,
    is_renamed: bool,
    lists: &'o Lists,
    rows: Rows,
    numbers: Numbers,
    now: Timestamp,
    totals: Totals,
    tally: Tally,
    effects: Effects,
    left_out: BTreeMap<String, u64>,
    /// The folder whose names are written.
    folder: Folder,
    /// (Hash, entry id) of its names.
    names: Vec<(u64, u64)>,
    /// Folders of the revision before in which something changed.
    changed_folders: ChangedFolders,
}

impl<'o> Rebuild<'o> {
    fn commit(self, listing: Listing<'_>, state: &[u8]) -> Result<Committed, CatalogError> {
        let Rebuild { catalog, before, mut rows, numbers, tally, effects, left_out, totals, now: committed, .. } = self;
        let (at, number) = (listing.at, numbers.revision + 1);
        let revision = match before.revision {
            Some(before) if effects.is_nothing() => RevisionRecord { at, ..before },
            _ => {
                let Numbers { next_ino, next_entry, .. } = numbers;
                RevisionRecord { number, committed, at, totals, next_ino, next_entry }
            }
        };
        rows.put(TableId::Meta, meta::REVISION, |record| revision.encode(record))?;
        rows.put(TableId::Meta, meta::POSITION, |record| record.extend_from_slice(state))?;
        rows.put(TableId::Meta, meta::NAMING, |record| push_naming(record, listing.naming))?;
        rows.put(TableId::Meta, meta::SETS, |record| tally.table(listing.speaking.lists).encode(record))?;
        rows.put(TableId::Meta, meta::SYMBOLS, |record| catalog.symbols.encode(record))?;
        rows.commit()?;
        Ok(effects.committed(revision.number, left_out))
    }

    fn put_root(&mut self, newest: Option<Timestamp>) -> Result<(), CatalogError> {
        let Before { store, old, .. } = self.before;
        if self.folder.is_new {
            let root = self.folder_node(ROOT, b"", newest.unwrap_or(self.now));
            return self.put_node(0, ROOT_ENTRY, &root, &[]);
        }
        let (place, root) = store.inode_entry(old, ROOT)?.ok_or_else(|| damaged("absence", &ino_key(ROOT)))?;
        self.put_node(place.parent, place.entry, &root, &[])
    }

    /// What has lost its name before stays readable.
    fn take_over_orphans(&mut self) -> Result<(), CatalogError> {
        let Before { store, old, .. } = self.before;
        for pair in store.orphans.iter(old)? {
            let (key, sealed) = pair?;
            let record = unseal(key, sealed)?;
            self.rows.put(TableId::Orphans, key, |row| row.extend_from_slice(record))?;
        }
        let Some(previous) = self.catalog.current().previous else { return Ok(()) };
        let orphans = previous.orphans(store, old, INodeNo(0), TAKEN_OVER).unwrap_or_else(|error| {
            tracing::warn!("old versions of open files are lost: {}", chain(&error));
            Vec::new()
        });
        let mut row = Vec::new();
        for INodeNo(ino) in orphans {
            row.clear();
            if previous.push_orphan(ino, &mut row)? {
                self.rows.put(TableId::Orphans, &ino_key(ino), |record| record.extend_from_slice(&row))?;
            }
        }
        Ok(())
    }

    fn folder_node<'n>(&self, ino: u64, name: &'n [u8], newest: Timestamp) -> NodeRecord<'n> {
        let (kind, mtime, ctime, freshness) = (Kind::Folder, newest.min(self.now), self.now, Freshness::Listed);
        NodeRecord { ino, kind, size: None, mtime, ctime, freshness, name }
    }

    /// Writes a node of the tree; `resource` is empty for a folder.
    fn put_node(
        &mut self,
        parent: u64,
        entry: u64,
        node: &NodeRecord<'_>,
        resource: &[u8],
    ) -> Result<(), CatalogError> {
        self.rows.put(TableId::Entries, &entry_key(parent, entry), |record| node.encode(record))?;
        let place = InodeRecord { parent, entry, resource };
        self.rows.put(TableId::Inodes, &ino_key(node.ino), |record| place.encode(record))?;
        if let Some((key, uri)) = displaced(node.name, resource, self.naming, &self.catalog.symbols)? {
            self.rows.put(TableId::Displaced, &key, |record| record.extend_from_slice(uri.as_str().as_bytes()))?;
        }
        Ok(())
    }

    /// Writes a name of the folder.
    fn put(&mut self, entry: u64, node: &NodeRecord<'_>, resource: &[u8]) -> Result<(), CatalogError> {
        self.put_node(self.folder.ino, entry, node, resource)?;
        if node.kind == Kind::File {
            let size = node.size;
            self.totals.files += 1;
            self.totals.bytes = self.totals.bytes.saturating_add(size.unwrap_or(0));
            self.totals.unsized_files += u64::from(size.is_none());
        } else {
            self.totals.folders += 1;
        }
        self.names.push((self.before.store.name_hash(node.name), entry));
        if self.names.len() < NAMES_AT_ONCE { Ok(()) } else { self.put_names() }
    }

    /// Enters the names of the folder; more may follow.
    fn put_names(&mut self) -> Result<(), CatalogError> {
        self.names.sort_unstable();
        for namesakes in self.names.chunk_by(|a, b| a.0 == b.0) {
            let key = name_key(self.folder.ino, namesakes[0].0);
            self.rows
                .put(TableId::Names, &key, |record| namesakes.iter().for_each(|(_, id)| push_number(record, *id)))?;
        }
        self.names.clear();
        Ok(())
    }

    fn create(&mut self, node: NodeRecord<'_>, resource: &[u8]) -> Result<u64, CatalogError> {
        let (ino, entry) = (self.numbers.give_ino()?, self.numbers.give_entry()?);
        self.put(entry, &NodeRecord { ino, ..node }, resource)?;
        self.effects.count(node.kind, |effects| &mut effects.created);
        if !self.folder.is_new {
            self.effects.name(self.folder.ino, node.name, None);
            self.folder_changed(self.now, true)?;
        }
        Ok(ino)
    }

    /// Gives an existing name a new inode: new content, or a folder where a file was, or the other way round.
    fn replace(&mut self, before: Known<'_>, node: NodeRecord<'_>, resource: &[u8]) -> Result<u64, CatalogError> {
        self.removed_beneath(&before)?;
        let ino = self.numbers.give_ino()?;
        self.put(before.entry, &NodeRecord { ino, ..node }, resource)?;
        self.effects.updated += 1;
        self.effects.name(self.folder.ino, node.name, Some(before.node.ino));
        self.folder_changed(if before.node.kind == node.kind { node.mtime } else { self.now }, true)?;
        Ok(ino)
    }

    fn removed_beneath(&mut self, before: &Known<'_>) -> Result<(), CatalogError> {
        if before.node.kind == Kind::File {
            return Ok(());
        }
        let effects = &mut self.effects;
        beneath(self.before.store, self.before.old, before.node.ino, &mut |parent, node| {
            effects.count(node.kind, |effects| &mut effects.deleted);
            effects.name(parent, node.name, Some(node.ino));
            Ok(())
        })
    }

    /// Something of this time changed in the folder; `listing`: its names or their inodes.
    fn folder_changed(&mut self, newest: Timestamp, listing: bool) -> Result<(), CatalogError> {
        self.changed_folders.note(self.folder.ino, FolderChange { newest: newest.min(self.now), listing })
    }

    /// Writes the folders once more whose listing changed or whose mtime moved, level by level up to the root.
    fn settle_folders(&mut self) -> Result<(), CatalogError> {
        let Before { store, old, .. } = self.before;
        let mut settling = self.changed_folders.take()?;
        loop {
            let mut is_last = true;
            while let Some((folder, change)) = settling.next()? {
                let found = store.inode_entry(old, folder)?;
                let (place, node) = found.ok_or_else(|| damaged("absence", &ino_key(folder)))?;
                if !change.listing && change.newest <= node.mtime {
                    continue;
                }
                let node = NodeRecord { mtime: node.mtime.max(change.newest), ctime: self.now, ..node };
                let key = entry_key(place.parent, place.entry);
                self.rows.put(TableId::Entries, &key, |record| node.encode(record))?;
                self.effects.folder(folder);
                // No folder is older than what lies in it.
                if folder != ROOT {
                    self.changed_folders.note(place.parent, FolderChange { newest: change.newest, listing: false })?;
                    is_last = false;
                }
            }
            if is_last {
                return Ok(());
            }
            settling = self.changed_folders.take()?;
        }
    }
}

impl<'o> Visitor<'o> for Rebuild<'o> {
    fn enter(&mut self, folder: Folder) -> Result<(), CatalogError> {
        self.put_names()?;
        self.folder = folder;
        Ok(())
    }

    fn folder(&mut self, name: &[u8], newest: Timestamp, before: Option<Known<'o>>) -> Result<Folder, CatalogError> {
        let node = self.folder_node(0, name, newest);
        let ino = match before {
            Some(known) if known.node.kind == Kind::Folder => {
                self.put(known.entry, &known.node, &[])?;
                return Ok(Folder { ino: known.node.ino, is_new: false });
            }
            Some(known) => self.replace(known, node, &[])?,
            None => self.create(node, &[])?,
        };
        Ok(Folder { ino, is_new: true })
    }

    fn file(&mut self, file: File<'_>, before: Option<Known<'o>>) -> Result<(), CatalogError> {
        let File { name, path, resource, time, is_news, .. } = file;
        let sense = || damaged("resource", name);
        let new = ResourceRecord::decode(resource).ok_or_else(sense)?;
        self.tally.count(new.sets, None);
        let mtime = new.lastmod.or(time).unwrap_or(self.now);
        let (kind, ctime, freshness) = (Kind::File, self.now, new.freshness());
        let node = NodeRecord { ino: 0, kind, size: new.size(), mtime, ctime, freshness, name };
        let known = match before {
            None => return self.create(node, resource).map(drop),
            Some(known) if known.node.kind == Kind::Folder => return self.replace(known, node, resource).map(drop),
            Some(known) => known,
        };
        let same_uri = if known.resource == resource && !self.is_renamed {
            true
        } else {
            let record = ResourceRecord::decode(known.resource).ok_or_else(sense)?;
            self.before.is_same_uri((known.node.ino, &record), &new, path, self.naming)?
        };
        let coming = Coming { resource, same_uri, time, is_news };
        match version::compare(&known.node, known.resource, coming, &self.catalog.symbols, self.now)? {
            Outcome::Same => self.put(known.entry, &known.node, resource),
            Outcome::Replaced(node) => self.replace(known, node, resource).map(drop),
            Outcome::Touched(touched) => {
                self.effects.touched += 1;
                let before = &known.node;
                let is_equal =
                    (touched.size, touched.mtime, touched.freshness) == (before.size, before.mtime, before.freshness);
                if is_equal {
                    return self.put(known.entry, before, resource);
                }
                self.effects.attributes(before.ino);
                self.folder_changed(touched.mtime, false)?;
                self.put(known.entry, &NodeRecord { ctime: self.now, ..touched }, resource)
            }
        }
    }

    fn removed(&mut self, before: Known<'o>) -> Result<(), CatalogError> {
        self.removed_beneath(&before)?;
        self.effects.count(before.node.kind, |effects| &mut effects.deleted);
        self.effects.name(self.folder.ino, before.node.name, Some(before.node.ino));
        self.folder_changed(self.now, true)
    }

    fn held(&mut self, set: SetId, uri: &Uri, held: HeldState) -> Result<(), CatalogError> {
        let key = statement_key(set, uri);
        let Before { store, old, .. } = self.before;
        match held {
            HeldState::Listed => Ok(()),
            HeldState::Still => {
                let known = store.get(old, store.held, &key)?.ok_or_else(|| damaged("absence", &key))?;
                self.rows.put(TableId::Held, &key, |row| row.extend_from_slice(known))
            }
            HeldState::New => {
                let time = list_at(self.lists, Some(set)).unwrap_or(self.now);
                self.rows.put(TableId::Held, &key, |row| held::encode(time, uri, row))
            }
        }
    }

    fn left_out(&mut self, path: String, count: u64) {
        self.left_out.insert(path, count);
    }
}
