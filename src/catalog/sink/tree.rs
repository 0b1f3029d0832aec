//! Writes a tree: names that come, go, or stand for other content, each with its effects; in place, or all of it into an empty store.

use super::super::base::Base;
use super::super::group::NewFile;
use super::super::join::FolderRef;
use super::super::naming::disambiguated;
use super::super::naming::names_of_path::{path_by_rule, split};
use super::super::sort::SpillFolder;
use super::super::store::codec::{NUMBER_LIMIT, damaged, pack};
use super::super::store::keys::{displaced_key, entry_key, ino_key};
use super::super::store::record::{NamedNode, NodeRecord, ResourceRecord, RevisionRecord, SetTable, push_orphan};
use super::super::store::{ROOT, TableId, meta};
use super::super::version::{self, VersionChange};
use super::super::{CatalogError, Kind, Naming, Totals};
use super::effects::CommitEffects;
use super::folder_times::{ChangedFolders, FolderChange, next_folder};
use super::{RowState, Sink};
use crate::document::{Timestamp, Uri};
use crate::platform::ino::Ino;
use crate::platform::inode_set::InodeSet;

/// Writes names, each with its effects. Existing names are read from the revision that is shown. Nothing that is written here
/// is read but the ids of one name, and folders.
pub struct TreeWriter<'t> {
    pub base: &'t Base<'t>,
    pub naming: &'t Naming,
    pub sink: Box<dyn Sink + 't>,
    /// The time of this commit.
    pub now: Timestamp,
    /// The revision that is shown, with the numbers and sums of this one.
    next: RevisionRecord,
    pub effects: CommitEffects,
    /// Folders of the revision that is shown in which something changed.
    changed: ChangedFolders,
    /// Changed folders that are removed.
    lost: InodeSet,
    /// Room for a row.
    row: Vec<u8>,
}

/// The values that a revision is committed with.
pub struct CommittedWith<'w> {
    /// The time that it speaks for.
    pub at: Option<Timestamp>,
    /// The position of `sync`.
    pub position: &'w [u8],
    pub sets: &'w SetTable,
}

impl<'t> TreeWriter<'t> {
    /// Goes on from `next`, with the numbers and sums of the revision that is shown.
    pub fn new(
        spill_folder: &SpillFolder,
        base: &'t Base<'t>,
        naming: &'t Naming,
        next: RevisionRecord,
        sink: impl Sink + 't,
    ) -> TreeWriter<'t> {
        let (now, changed) = (version::now(), ChangedFolders::new(spill_folder));
        let (effects, lost) = (CommitEffects::default(), InodeSet::default());
        TreeWriter { base, naming, sink: Box::new(sink), now, next, effects, changed, lost, row: Vec::new() }
    }

    /// Writes a row; `None` removes it.
    pub fn row(&mut self, table: TableId, key: &[u8], row: Option<&[u8]>) -> Result<(), CatalogError> {
        match row {
            Some(row) => self.sink.put(RowState::Changed, table, key, row),
            None => self.sink.remove(table, key),
        }
    }

    fn put_node(&mut self, is: RowState, key: &[u8], node: &NodeRecord<'_>) -> Result<(), CatalogError> {
        self.row.clear();
        node.encode(&mut self.row);
        self.sink.put(is, TableId::Entries, key, &self.row)
    }

    /// Writes what a name stands for: its entry, where its inode is found, and its name.
    fn write(&mut self, named: &NamedNode<'_>, [entry, inode, name]: [RowState; 3]) -> Result<(), CatalogError> {
        let (key, hash) = (entry_key(named.parent, named.entry), self.base.store.name_hash(named.node.name));
        self.put_node(entry, &key, &named.node)?;
        self.sink.put(inode, TableId::Inodes, &ino_key(named.node.ino), &key)?;
        if let Some((key, uri)) = displaced(&named.node, self.naming) {
            self.sink.put(inode, TableId::Displaced, &key, uri.as_str().as_bytes())?;
        }
        self.sink.put_name(name, named.parent, hash, named.entry)
    }

    /// Puts a file at a name that stood for `shown`, whose URI is the second where that is known. `same_uri`: it is that of the file.
    pub fn put_file(
        &mut self,
        parent: FolderRef,
        file: &NewFile<'_>,
        shown: Option<(&NamedNode<'_>, Option<&Uri>)>,
        same_uri: bool,
    ) -> Result<(), CatalogError> {
        let (NewFile { name, resource, mark, .. }, now) = (*file, self.now);
        let mtime = resource.lastmod.or(mark.datetime).unwrap_or(now);
        let node = NodeRecord { ino: 0, mtime, ctime: now, name, resource: Some(resource) };
        let Some((shown, uri)) = shown else { return self.create(parent, node).map(drop) };
        let Some(known) = &shown.node.resource else { return self.replace(shown, uri, node).map(drop) };
        let compared = version::compare((&shown.node, known), (resource, same_uri), mark, now);
        match compared.ok_or_else(|| damaged("resource", name))? {
            VersionChange::Same => self.keep(shown),
            VersionChange::Touched(node) => self.touch(shown, node),
            VersionChange::Replaced(node) => self.replace(shown, uri, node).map(drop),
        }
    }

    /// A folder that is new, or that takes the place of the file `shown`; its inode.
    pub fn put_folder(
        &mut self,
        parent: FolderRef,
        name: &[u8],
        shown: Option<(&NamedNode<'_>, Option<&Uri>)>,
        newest: Timestamp,
    ) -> Result<u64, CatalogError> {
        let node = NodeRecord { ino: 0, mtime: newest.min(self.now), ctime: self.now, name, resource: None };
        match shown {
            Some((shown, uri)) => self.replace(shown, uri, node),
            None => self.create(parent, node),
        }
    }

    /// Adds `node.name` to a folder, with a new inode and entry id; `node.ino` does not count. Returns the inode.
    fn create(&mut self, parent: FolderRef, node: NodeRecord<'_>) -> Result<u64, CatalogError> {
        let (ino, entry) = (give(&mut self.next.next_ino)?, give(&mut self.next.next_entry)?);
        let named = NamedNode { parent: parent.ino, entry, node: NodeRecord { ino, ..node } };
        self.write(&named, [RowState::Changed; 3])?;
        self.effects.count(node.kind(), |effects| &mut effects.created);
        self.count(&node, true);
        if !parent.is_new {
            self.effects.name(parent.ino, node.name, None);
            self.note(parent.ino, self.now, true)?;
        }
        Ok(ino)
    }

    /// Writes the root, which has no name.
    pub fn put_root(&mut self, root: &NamedNode<'_>) -> Result<(), CatalogError> {
        let key = entry_key(root.parent, root.entry);
        self.put_node(RowState::Changed, &key, &root.node)?;
        self.sink.put(RowState::Changed, TableId::Inodes, &ino_key(root.node.ino), &key)
    }

    /// A name that stands for what it stood for.
    pub fn keep(&mut self, named: &NamedNode<'_>) -> Result<(), CatalogError> {
        self.write(named, [RowState::Unchanged; 3])
    }

    /// Gives a name other content, or makes it a folder, or a file: a new inode at the same place. `new.ino` and `new.ctime` do not
    /// count. Returns the inode.
    pub fn replace(
        &mut self,
        old: &NamedNode<'_>,
        uri: Option<&Uri>,
        new: NodeRecord<'_>,
    ) -> Result<u64, CatalogError> {
        let ino = give(&mut self.next.next_ino)?;
        self.orphan(old, uri)?;
        let named =
            NamedNode { parent: old.parent, entry: old.entry, node: NodeRecord { ino, ctime: self.now, ..new } };
        self.write(&named, [RowState::Changed, RowState::Changed, RowState::Unchanged])?;
        match (old.node.kind(), new.kind()) {
            (Kind::File, Kind::File) => self.effects.updated += 1,
            (before, after) => {
                self.effects.count(before, |effects| &mut effects.deleted);
                self.effects.count(after, |effects| &mut effects.created);
            }
        }
        self.count(&old.node, false);
        self.count(&new, true);
        self.effects.name(old.parent, new.name, Some(old.node.ino));
        let newest = if old.node.kind() == new.kind() { new.mtime } else { self.now };
        self.note(old.parent, newest, true)?;
        Ok(ino)
    }

    /// Rewrites the metadata of an inode that stays.
    fn touch(&mut self, old: &NamedNode<'_>, new: NodeRecord<'_>) -> Result<(), CatalogError> {
        self.effects.touched += 1;
        self.count(&old.node, false);
        self.count(&new, true);
        let (then, now) = (old.node.node(), new.node());
        let is_shown = (now.size, now.mtime, now.freshness) != (then.size, then.mtime, then.freshness);
        let ctime = if is_shown { self.now } else { new.ctime };
        let named = NamedNode { parent: old.parent, entry: old.entry, node: NodeRecord { ctime, ..new } };
        self.write(&named, [RowState::Changed, RowState::Unchanged, RowState::Unchanged])?;
        if is_shown {
            self.effects.attributes(old.parent, new.ino);
            self.note(old.parent, new.mtime, false)?;
        }
        Ok(())
    }

    /// Removes a name; the names beneath it are removed by calls for each.
    pub fn remove(&mut self, old: &NamedNode<'_>, uri: Option<&Uri>) -> Result<(), CatalogError> {
        let NamedNode { parent, entry, node } = old;
        self.effects.count(node.kind(), |effects| &mut effects.deleted);
        self.count(node, false);
        self.effects.name(*parent, node.name, Some(node.ino));
        self.orphan(old, uri)?;
        self.sink.remove(TableId::Entries, &entry_key(*parent, *entry))?;
        self.sink.remove_name(*parent, self.base.store.name_hash(node.name), *entry)?;
        self.note(*parent, self.now, true)
    }

    /// Enters an inode among the orphans: it loses its name, but may be open.
    fn orphan(&mut self, old: &NamedNode<'_>, uri: Option<&Uri>) -> Result<(), CatalogError> {
        let key = ino_key(old.node.ino);
        if old.node.resource.is_none() {
            self.lost.insert(Ino(old.node.ino));
        }
        if self.sink.keeps_orphans_of(old.parent) {
            let row = orphan_row(self.base, old, uri, self.now)?;
            self.row(TableId::Orphans, &key, Some(&row))?;
        }
        self.sink.remove(TableId::Inodes, &key)?;
        match displaced(&old.node, self.naming) {
            Some((key, _)) => self.sink.remove(TableId::Displaced, &key),
            None => Ok(()),
        }
    }

    /// Counts a node that comes, or one that goes.
    fn count(&mut self, node: &NodeRecord<'_>, comes: bool) {
        let add = |sum: &mut u64, by: u64| *sum = if comes { sum.saturating_add(by) } else { sum.saturating_sub(by) };
        let Totals { files, folders, bytes, unsized_files } = &mut self.next.totals;
        match node.kind() {
            Kind::Folder => add(folders, 1),
            Kind::File => {
                let size = node.size();
                add(files, 1);
                add(bytes, size.unwrap_or(0));
                add(unsized_files, u64::from(size.is_none()));
            }
        }
    }

    /// Something of this time changed in a folder of the revision that is shown; `scope`: its names or their inodes.
    fn note(&mut self, folder: u64, newest: Timestamp, scope: bool) -> Result<(), CatalogError> {
        self.changed.note(folder, FolderChange { newest: newest.min(self.now), scope })
    }

    /// Writes the folders whose listing changed or that are older than their children, and the folders above them.
    fn write_changed_folders(&mut self) -> Result<(), CatalogError> {
        let mut is_last = false;
        while !is_last {
            is_last = true;
            let mut changed = self.changed.take()?;
            while let Some((folder, change)) = next_folder(&mut changed)? {
                if self.lost.contains(Ino(folder)) {
                    continue;
                }
                let found = self.sink.folder(self.base, folder)?;
                let NamedNode { parent, entry, node } = found.ok_or_else(|| damaged("absence", &ino_key(folder)))?;
                if !change.scope && change.newest <= node.mtime {
                    continue;
                }
                let (name, mtime) = (node.name.to_vec(), node.mtime.max(change.newest));
                let node = NodeRecord { ino: folder, mtime, ctime: self.now, name: &name, resource: None };
                let key = entry_key(parent, entry);
                self.put_node(RowState::Changed, &key, &node)?;
                self.effects.folder(folder);
                if folder != ROOT {
                    self.note(parent, change.newest, false)?;
                    is_last = false;
                }
            }
        }
        Ok(())
    }

    /// All is changed: brings the folders up to date and writes the revision, which stays the one that is shown where the tree is the same.
    pub fn finish(mut self, with: &CommittedWith<'_>) -> Result<(RevisionRecord, CommitEffects), CatalogError> {
        self.write_changed_folders()?;
        let (at, committed) = (with.at, self.now);
        let revision = match self.base.revision {
            Some(base) if self.effects.is_nothing() => RevisionRecord { at, ..base },
            _ => RevisionRecord { number: self.next.number + 1, committed, at, ..self.next },
        };
        self.sink.put_meta(meta::REVISION, &pack(&revision))?;
        self.sink.put_meta(meta::POSITION, with.position)?;
        self.sink.put_meta(meta::NAMING, &pack(self.naming))?;
        self.sink.put_meta(meta::SETS, &pack(with.sets))?;
        self.sink.commit()?;
        Ok((revision, self.effects))
    }
}

/// The row that is kept of an inode that loses its name; `uri` is that of a file, where it is known.
pub fn orphan_row(
    base: &Base<'_>,
    old: &NamedNode<'_>,
    uri: Option<&Uri>,
    now: Timestamp,
) -> Result<Vec<u8>, CatalogError> {
    let resource = match old.node.resource {
        Some(resource) if resource.uri.is_none() => {
            let computed = if uri.is_none() { Some(base.uri(&old.node)?) } else { None };
            resource.with_uri(uri.or(computed.as_ref()).map(Uri::as_str))
        }
        resource => resource.map(|resource| resource.bytes.to_vec()).unwrap_or_default(),
    };
    let node = NodeRecord { ctime: now, resource: ResourceRecord::decode(&resource), ..old.node };
    let mut row = Vec::new();
    push_orphan(&mut row, old.parent, &node);
    Ok(row)
}

/// The next number of a kind; a catalog that has used all is rebuilt.
fn give(next: &mut u64) -> Result<u64, CatalogError> {
    let number = *next;
    if number >= NUMBER_LIMIT {
        return Err(CatalogError::Damaged("all its numbers are used".into()));
    }
    *next += 1;
    Ok(number)
}

/// Key and URI of the row by which a file is found among those of its path, where another has the plain name; `None` where it has none.
fn displaced(node: &NodeRecord<'_>, naming: &Naming) -> Option<([u8; 32], Uri)> {
    // Stands in every such name ([`disambiguated`]).
    let is_marked = memchr::memchr_iter(b'%', node.name).any(|at| node.name[at..].starts_with(b"%~"));
    let record = node.resource.filter(|_| is_marked)?;
    // A name that is not by rule has its URI in the record.
    let uri = Uri::parse_item(record.uri?).ok()?;
    let (path, _) = path_by_rule(naming, &uri, record.media_type);
    let (_, plain) = split(&path);
    let is_displaced = plain.as_bytes() != node.name && disambiguated(plain, &uri).as_bytes() == node.name;
    is_displaced.then(|| (displaced_key(&path, &uri), uri))
}
