//! The walk over a sorted statement and the revision before it, folder by folder, level by level: each name of the new tree with what it
//! was, and each name that is no more.

use super::naming::resolve::resolved_name;
use super::revision::Before;
use super::sort_key::{slashed, split};
use super::statement::{HeldState, Listing, PathStatement, SortedStatement};
use super::store::codec::damaged;
use super::store::record::{NodeRecord, ResourceRecord};
use super::store::{ROOT, Store};
use super::{CatalogError, Kind, SetId};
use crate::document::{Timestamp, Uri};
use crate::platform::lmdb::Ahead;
use heed::RoTxn;
use std::collections::VecDeque;

/// Children of one folder of the revision before that are read at once: some hundred bytes each.
const READ_AT_ONCE: usize = 1 << 14;

/// A file of the new tree.
#[derive(Clone, Copy)]
pub(super) struct File<'a> {
    pub name: &'a [u8],
    /// Its path by rule, segments separated by NUL.
    pub path: &'a [u8],
    /// Whether `name` is the last segment of that.
    pub is_plain: bool,
    /// Its record, with the URI where the path does not give it.
    pub resource: &'a [u8],
    /// The time of the change that says so, which stands in for a `lastmod`.
    pub time: Option<Timestamp>,
    /// A change says so that is not in the journal: it is believed that the content is another unless the entry vouches for it.
    pub is_news: bool,
}

/// What a name stood for in the revision before.
#[derive(Clone, Copy)]
pub(super) struct Known<'o> {
    pub entry: u64,
    pub node: NodeRecord<'o>,
    /// Of a file.
    pub resource: &'o [u8],
}

/// A folder whose children are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Folder {
    pub ino: u64,
    /// Whether it is no folder of the revision before: then nothing was in it.
    pub is_new: bool,
}

/// Is shown the names of each folder, those of a folder before those beneath.
pub(super) trait Visitor<'o> {
    /// The names that follow lie in `folder`.
    fn enter(&mut self, folder: Folder) -> Result<(), CatalogError>;
    /// A folder, `newest` the newest time beneath.
    fn folder(&mut self, name: &[u8], newest: Timestamp, before: Option<Known<'o>>) -> Result<Folder, CatalogError>;
    /// A file.
    fn file(&mut self, file: File<'_>, before: Option<Known<'o>>) -> Result<(), CatalogError>;
    /// A name that is no more, with all beneath it.
    fn removed(&mut self, before: Known<'o>) -> Result<(), CatalogError>;
    /// A deletion that is, or was, held back.
    fn held(&mut self, set: SetId, uri: &Uri, held: HeldState) -> Result<(), CatalogError>;
    /// So many entries are not shown at `path`.
    fn left_out(&mut self, path: String, count: u64);
}

/// Shows `visitor` everything.
pub(super) fn walk<'o>(
    before: &Before<'o>,
    listing: Listing<'_>,
    statement: &mut SortedStatement,
    visitor: &mut dyn Visitor<'o>,
) -> Result<(), CatalogError> {
    let root = Folder { ino: ROOT, is_new: before.revision.is_none() };
    let mut children = Children::new(before.store, before.old);
    children.enter(root)?;
    visitor.enter(root)?;
    let mut walk = Walk { listing, visitor, children, queue: VecDeque::new(), within: (1, Vec::new()) };
    let mut path = PathStatement::default();
    while statement.next(&mut path, listing)? {
        walk.visit(&path)?;
    }
    walk.children.leave(walk.visitor)
}

struct Walk<'w, 'o> {
    listing: Listing<'w>,
    visitor: &'w mut dyn Visitor<'o>,
    children: Children<'o>,
    /// Folders whose children follow, in the order of the statement: inode, and in the lowest bit whether it is new. All of a level wait
    /// while the one above is visited.
    queue: VecDeque<u64>,
    /// The folder whose children are visited: their depth, and its path.
    within: (u8, Vec<u8>),
}

impl<'o> Walk<'_, 'o> {
    fn visit(&mut self, path: &PathStatement) -> Result<(), CatalogError> {
        let corrupt = || damaged("path", &path.key);
        if path.left_out > 0 {
            self.visitor.left_out(slashed(&path.key[1..]).ok_or_else(corrupt)?, path.left_out);
        }
        path.held.iter().try_for_each(|(set, uri, state)| self.visitor.held(*set, uri, *state))?;
        let (parent, name) = split(&path.key);
        if parent != (self.within.0, &self.within.1) {
            // Each folder holds something, and the statement is sorted by segments: children come in the order of their folders.
            self.children.leave(self.visitor)?;
            let next = self.queue.pop_front().ok_or_else(corrupt)?;
            let folder = Folder { ino: next >> 1, is_new: next & 1 == 1 };
            self.children.enter(folder)?;
            self.visitor.enter(folder)?;
            self.within.0 = parent.0;
            self.within.1.clear();
            self.within.1.extend_from_slice(parent.1);
        }
        if let Some(newest) = path.folder {
            let before = self.children.take(name)?;
            let Folder { ino, is_new } = self.visitor.folder(name, newest, before)?;
            self.queue.push_back(ino << 1 | u64::from(is_new));
        }
        for (index, stated) in path.resources.iter().enumerate() {
            let (time, is_news) = stated.change.map_or((None, false), |change| (change.shown, change.is_news));
            let plain = File { name, path: &path.key[1..], is_plain: true, resource: &stated.record, time, is_news };
            if index == 0 && path.folder.is_none() {
                let before = self.children.take(name)?;
                self.visitor.file(plain, before)?;
                continue;
            }
            // Another has the plain name: each machine gives the same names, in any order and after any history.
            let record = ResourceRecord::decode(&stated.record).ok_or_else(corrupt)?;
            let uri = path.uri(&record, self.listing.naming)?;
            let name = std::str::from_utf8(name).map_err(|_| corrupt())?;
            let settled = resolved_name(name, index, path.folder.is_some(), &uri);
            let mut resource = Vec::new();
            record.push_with_uri(Some(uri.as_str()), &mut resource);
            let before = self.children.take(settled.as_bytes())?;
            let file = File { name: settled.as_bytes(), is_plain: false, resource: &resource, ..plain };
            self.visitor.file(file, before)?;
        }
        Ok(())
    }
}

/// What a folder held in the revision before.
struct Children<'o> {
    store: &'o Store,
    old: &'o RoTxn<'o>,
    folder: Folder,
    /// Its children by name, where they are few enough; else they are looked up one by one.
    read: Option<Vec<(u64, NodeRecord<'o>)>>,
    /// Room for them.
    room: Vec<(u64, NodeRecord<'o>)>,
    /// Entry ids of those that were taken.
    taken: Vec<u64>,
    entries_ahead: Ahead,
    inodes_ahead: Ahead,
}

impl<'o> Children<'o> {
    fn new(store: &'o Store, old: &'o RoTxn<'o>) -> Children<'o> {
        Children {
            store,
            old,
            folder: Folder { ino: ROOT, is_new: true },
            read: None,
            room: Vec::new(),
            taken: Vec::new(),
            entries_ahead: Ahead::default(),
            inodes_ahead: Ahead::default(),
        }
    }

    /// Goes on with another folder.
    fn enter(&mut self, folder: Folder) -> Result<(), CatalogError> {
        self.folder = folder;
        if folder.is_new {
            return Ok(());
        }
        let mut read = std::mem::take(&mut self.room);
        read.clear();
        for child in self.store.children(self.old, folder.ino, 0)? {
            if read.len() == READ_AT_ONCE {
                self.room = read;
                return Ok(());
            }
            let child = child?;
            self.entries_ahead.read(child.1.name);
            read.push(child);
        }
        read.sort_unstable_by_key(|(_, node)| node.name);
        self.read = Some(read);
        Ok(())
    }

    /// What `name` stood for.
    fn take(&mut self, name: &[u8]) -> Result<Option<Known<'o>>, CatalogError> {
        if self.folder.is_new {
            return Ok(None);
        }
        let found = match &self.read {
            Some(read) => read.binary_search_by(|(_, node)| node.name.cmp(name)).ok().map(|place| read[place]),
            None => self.store.named(self.old, self.folder.ino, name)?,
        };
        let Some((entry, node)) = found else { return Ok(None) };
        self.taken.push(entry);
        self.known(entry, node).map(Some)
    }

    fn known(&mut self, entry: u64, node: NodeRecord<'o>) -> Result<Known<'o>, CatalogError> {
        if node.kind == Kind::Folder {
            return Ok(Known { entry, node, resource: &[] });
        }
        let found = self.store.inode(self.old, node.ino)?;
        let found = found.filter(|found| (found.parent, found.entry) == (self.folder.ino, entry));
        let resource = found.ok_or_else(|| damaged("resource", node.name))?.resource;
        self.inodes_ahead.read(resource);
        Ok(Known { entry, node, resource })
    }

    /// Leaves the folder: what was not taken is no more.
    fn leave(&mut self, visitor: &mut dyn Visitor<'o>) -> Result<(), CatalogError> {
        if self.folder.is_new {
            return Ok(());
        }
        let mut taken = std::mem::take(&mut self.taken);
        taken.sort_unstable();
        let is_gone = |entry: &u64| taken.binary_search(entry).is_err();
        if let Some(read) = self.read.take() {
            for (entry, node) in read.iter().filter(|(entry, _)| is_gone(entry)) {
                visitor.removed(self.known(*entry, *node)?)?;
            }
            self.room = read;
        } else {
            for child in self.store.children(self.old, self.folder.ino, 0)? {
                let (entry, node) = child?;
                if is_gone(&entry) {
                    visitor.removed(self.known(entry, node)?)?;
                }
            }
        }
        taken.clear();
        self.taken = taken;
        Ok(())
    }
}

/// Shows `each` every name beneath a folder of `store`, with the folder that it lies in.
pub(super) fn beneath<'o>(
    store: &Store,
    old: &'o RoTxn<'_>,
    folder: u64,
    each: &mut dyn FnMut(u64, NodeRecord<'o>) -> Result<(), CatalogError>,
) -> Result<(), CatalogError> {
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for child in store.children(old, folder, 0)? {
            let (_, node) = child?;
            if node.kind == Kind::Folder {
                folders.push(node.ino);
            }
            each(folder, node)?;
        }
    }
    Ok(())
}
