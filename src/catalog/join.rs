//! The walk over a sorted statement and the revision before it, folder by folder, level by level: each name of the new tree with what it
//! was, and each name that is no more.

use super::base::Before;
use super::group::{HeldState, Listing, PathStatement, SortedStatement};
use super::naming::resolve::resolved_name;
use super::sort_key::{slashed, split};
use super::store::codec::damaged;
use super::store::record::{Named, ResourceRecord};
use super::store::{ROOT, Store};
use super::{CatalogError, Kind, SetId};
use crate::document::{Timestamp, Uri};
use crate::platform::lmdb::Ahead;
use heed::RoTxn;
use std::collections::{BTreeMap, VecDeque};

/// Children of one folder of the revision before that are read at once: some hundred bytes each.
const READ_AT_ONCE: usize = 1 << 13;

/// A file of the new tree.
#[derive(Clone, Copy)]
pub(super) struct File<'a> {
    pub name: &'a [u8],
    /// Its path by rule, segments separated by NUL.
    pub path: &'a [u8],
    /// Whether `name` is the last segment of that.
    pub is_plain: bool,
    /// With the URI where the path does not give it.
    pub resource: ResourceRecord<'a>,
    /// The time of the change that says so, which stands in for a `lastmod`.
    pub time: Option<Timestamp>,
    /// A change says so that is not in the journal: it is believed that the content is another unless the entry vouches for it.
    pub is_news: bool,
}

/// A folder whose names are visited, or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Folder {
    pub ino: u64,
    /// Whether it is no folder of the revision before: then nothing was in it, and the kernel knows nothing of it.
    pub is_new: bool,
}

/// Is shown the names of each folder, those of a folder before those beneath.
pub(super) trait Visitor<'o> {
    /// The names that follow lie in `folder`.
    fn enter(&mut self, _folder: Folder) -> Result<(), CatalogError> {
        Ok(())
    }
    /// A folder, `newest` the newest time beneath.
    fn folder(&mut self, name: &[u8], newest: Timestamp, before: Option<Named<'o>>) -> Result<Folder, CatalogError>;
    /// A file.
    fn file(&mut self, file: File<'_>, before: Option<Named<'o>>) -> Result<(), CatalogError>;
    /// A name that is no more, with all beneath it.
    fn removed(&mut self, before: Named<'o>) -> Result<(), CatalogError>;
    /// A deletion that is, or was, held back.
    fn held(&mut self, set: SetId, uri: &Uri, held: HeldState) -> Result<(), CatalogError>;
    /// Whether it need not be shown the rest.
    fn has_enough(&self) -> bool {
        false
    }
}

/// Shows `visitor` everything, and counts by path the entries that are not shown. A folder may be visited in which nothing is, as all that
/// lists have of it is superseded.
pub(super) fn walk<'o>(
    before: &Before<'o>,
    listing: &Listing,
    statement: &mut SortedStatement,
    visitor: &mut dyn Visitor<'o>,
) -> Result<BTreeMap<String, u64>, CatalogError> {
    let root = Folder { ino: ROOT, is_new: before.revision.is_none() };
    let (read, taken, ahead) = (None, Vec::new(), Ahead::default());
    let mut children = Children { store: before.store, old: before.old, folder: root, read, taken, ahead };
    children.enter(root)?;
    visitor.enter(root)?;
    let mut walk = Walk { listing, visitor, children, queue: VecDeque::new(), within: (1, Vec::new()) };
    let (mut path, mut left_out) = (PathStatement::default(), BTreeMap::new());
    while statement.next(&mut path, listing)? {
        // The root is no name.
        if path.key.len() > 1 {
            walk.visit(&path)?;
        }
        if path.left_out > 0 {
            left_out.insert(slashed(&path.key[1..]).ok_or_else(|| damaged("path", &path.key))?, path.left_out);
        }
        if walk.visitor.has_enough() {
            return Ok(left_out);
        }
    }
    walk.children.leave(walk.visitor)?;
    Ok(left_out)
}

struct Walk<'w, 'o> {
    listing: &'w Listing,
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
        path.held.iter().try_for_each(|(set, uri, state)| self.visitor.held(*set, uri, *state))?;
        let (parent, name) = split(&path.key);
        if parent != (self.within.0, &self.within.1) {
            // Of each folder something is stated, and the statement is sorted by segments: children come in the order of their folders.
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
            let (time, is_news) = (stated.shown, stated.is_news);
            let resource = ResourceRecord::decode(&stated.record).ok_or_else(corrupt)?;
            let plain = File { name, path: &path.key[1..], is_plain: true, resource, time, is_news };
            if index == 0 && path.folder.is_none() {
                let before = self.children.take(name)?;
                self.visitor.file(plain, before)?;
                continue;
            }
            // Another has the plain name: each machine gives the same names, in any order and after any history.
            let uri = path.uri(&resource, &self.listing.naming)?;
            let name = std::str::from_utf8(name).map_err(|_| corrupt())?;
            let settled = resolved_name(name, index, path.folder.is_some(), &uri);
            let with_uri = resource.with_uri(Some(uri.as_str()));
            let resource = ResourceRecord::decode(&with_uri).ok_or_else(corrupt)?;
            let before = self.children.take(settled.as_bytes())?;
            self.visitor.file(File { name: settled.as_bytes(), is_plain: false, resource, ..plain }, before)?;
        }
        Ok(())
    }
}

/// What a folder held in the revision before.
struct Children<'o> {
    store: &'o Store,
    old: &'o RoTxn<'o>,
    folder: Folder,
    /// Its children by name, each with whether it was taken, where they are few enough; else they are looked up one by one.
    read: Option<Vec<(Named<'o>, bool)>>,
    /// Entry ids of those that were looked up.
    taken: Vec<u64>,
    ahead: Ahead,
}

impl<'o> Children<'o> {
    /// Goes on with another folder.
    fn enter(&mut self, folder: Folder) -> Result<(), CatalogError> {
        (self.folder, self.read) = (folder, None);
        if folder.is_new {
            return Ok(());
        }
        let mut read = Vec::new();
        for child in self.store.children(self.old, folder.ino, 0)? {
            let child = child?;
            if read.len() == READ_AT_ONCE {
                return Ok(());
            }
            self.ahead.read(child.node.name);
            read.push((child, false));
        }
        read.sort_unstable_by_key(|(child, _)| child.node.name);
        self.read = Some(read);
        Ok(())
    }

    /// What `name` stood for.
    fn take(&mut self, name: &[u8]) -> Result<Option<Named<'o>>, CatalogError> {
        if self.folder.is_new {
            return Ok(None);
        }
        if let Some(read) = &mut self.read {
            let place = read.binary_search_by(|(child, _)| child.node.name.cmp(name)).ok();
            return Ok(place.map(|place| {
                let (child, is_taken) = &mut read[place];
                *is_taken = true;
                *child
            }));
        }
        let found = self.store.named(self.old, self.folder.ino, name)?;
        self.taken.extend(found.map(|found| found.entry));
        Ok(found)
    }

    /// Leaves the folder: what was not taken is no more.
    fn leave(&mut self, visitor: &mut dyn Visitor<'o>) -> Result<(), CatalogError> {
        if self.folder.is_new {
            return Ok(());
        }
        if let Some(read) = self.read.take() {
            return read
                .into_iter()
                .filter(|(_, is_taken)| !is_taken)
                .try_for_each(|(child, _)| visitor.removed(child));
        }
        let mut taken = std::mem::take(&mut self.taken);
        taken.sort_unstable();
        for child in self.store.children(self.old, self.folder.ino, 0)? {
            let child = child?;
            if taken.binary_search(&child.entry).is_err() {
                visitor.removed(child)?;
            }
        }
        Ok(())
    }
}

/// Shows `each` every name beneath a folder of `store`.
pub(super) fn beneath<'o>(
    store: &Store,
    old: &'o RoTxn<'_>,
    folder: u64,
    each: &mut dyn FnMut(Named<'o>) -> Result<(), CatalogError>,
) -> Result<(), CatalogError> {
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for child in store.children(old, folder, 0)? {
            let child = child?;
            if child.node.kind() == Kind::Folder {
                folders.push(child.node.ino);
            }
            each(child)?;
        }
    }
    Ok(())
}
