//! Joins facts with the revision that is shown: each name of the new tree with what it stood for, and each name that goes.
//!
//! A commit of lists walks the whole tree, folder by folder, level by level. A commit of changes visits the groups that have facts.

use super::base::Base;
use super::fact::split;
use super::group::{FactScope, Group, HeldState, NewFile, SortedFacts};
use super::store::record::NamedNode;
use super::store::{ROOT, TreeStore};
use super::{CatalogError, Kind, SetId};
use crate::document::{Timestamp, Uri};
use crate::platform::lmdb::Ahead;
use heed::RoTxn;
use std::collections::{BTreeMap, VecDeque};

/// Children of one folder of the revision that is shown that are read at once: some hundred bytes each.
const READ_AT_ONCE: usize = 1 << 13;

/// A folder whose names are visited, or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FolderRef {
    pub ino: u64,
    /// True if the revision shown does not have the folder: nothing was in it, and the kernel does not know it.
    pub is_new: bool,
}

/// Receives the names of each folder, those of a folder before those beneath.
pub(super) trait Visitor<'o> {
    /// Goes on with the names in `folder`.
    fn enter(&mut self, _folder: FolderRef) -> Result<(), CatalogError> {
        Ok(())
    }
    /// Takes a folder, `newest` the newest time beneath.
    fn folder(
        &mut self,
        name: &[u8],
        newest: Timestamp,
        base: Option<NamedNode<'o>>,
    ) -> Result<FolderRef, CatalogError>;
    /// Takes a file.
    fn file(&mut self, file: NewFile<'_>, base: Option<NamedNode<'o>>) -> Result<(), CatalogError>;
    /// Takes a name that goes, with all beneath it.
    fn removed(&mut self, base: NamedNode<'o>) -> Result<(), CatalogError>;
    /// Takes a deletion that is, or was, held back.
    fn held(&mut self, set: SetId, uri: &Uri, held: HeldState) -> Result<(), CatalogError>;
    /// True if the visitor needs no more.
    fn has_enough(&self) -> bool {
        false
    }
}

/// Shows `visitor` everything that `facts` speak for, and counts by path the entries that are not shown. A folder may be visited in which
/// nothing is, as all that lists have of it is superseded.
pub(super) fn join<'o>(
    base: &Base<'o>,
    scope: &FactScope,
    facts: &mut SortedFacts,
    visitor: &mut dyn Visitor<'o>,
) -> Result<BTreeMap<String, u64>, CatalogError> {
    let root = FolderRef { ino: ROOT, is_new: base.revision.is_none() };
    let (read, taken, ahead) = (None, Vec::new(), Ahead::default());
    let mut children = Children { store: base.store, txn: base.txn, folder: root, read, taken, ahead };
    if !scope.is_partial {
        children.enter(root)?;
        visitor.enter(root)?;
    }
    let mut walk = TreeWalk { scope, visitor, children, queue: VecDeque::new(), within: (1, Vec::new()) };
    let (mut group, mut left_out) = (Group::default(), BTreeMap::new());
    while facts.next(&mut group, scope)? {
        match scope.is_partial {
            true => visit_group(base, scope, &mut group, walk.visitor)?,
            // The root has no name.
            false if group.key.len() > 1 => walk.visit(&group)?,
            false => {}
        }
        if group.left_out > 0 {
            left_out.insert(group.path()?, group.left_out);
        }
        if walk.visitor.has_enough() {
            return Ok(left_out);
        }
    }
    if !scope.is_partial {
        walk.children.leave(walk.visitor)?;
    }
    Ok(left_out)
}

/// Shows `visitor` one group of a commit of changes, each resource next to what the tree has of its URI. The names may be others once it is
/// known which folders come and go.
fn visit_group<'o>(
    base: &Base<'o>,
    scope: &FactScope,
    group: &mut Group,
    visitor: &mut dyn Visitor<'o>,
) -> Result<(), CatalogError> {
    if !group.is_named {
        return Ok(());
    }
    let mut shown = base.names(&group.path()?)?;
    group.folder = shown.iter().find(|(_, uri)| uri.is_none()).map(|(folder, _)| folder.node.mtime);
    shown.retain(|(_, uri)| uri.is_some());
    group.held.iter().try_for_each(|(set, uri, state)| visitor.held(*set, uri, *state))?;
    group.names(&scope.naming, &mut |file| {
        let uri = file.uri(&scope.naming)?;
        let index = shown.iter().position(|(_, known)| known.as_ref() == Some(&uri));
        visitor.file(file, index.map(|index| shown.swap_remove(index).0))
    })?;
    shown.into_iter().try_for_each(|(named, _)| visitor.removed(named))
}

struct TreeWalk<'w, 'o> {
    scope: &'w FactScope,
    visitor: &'w mut dyn Visitor<'o>,
    children: Children<'o>,
    /// Folders whose children follow, in the order of the facts: inode, and in the lowest bit whether it is new. All of a level wait
    /// while the one above is visited.
    queue: VecDeque<u64>,
    /// The folder whose children are visited: their depth, and its path.
    within: (u8, Vec<u8>),
}

impl TreeWalk<'_, '_> {
    fn visit(&mut self, group: &Group) -> Result<(), CatalogError> {
        group.held.iter().try_for_each(|(set, uri, state)| self.visitor.held(*set, uri, *state))?;
        let (parent, name) = split(&group.key);
        if parent != (self.within.0, &self.within.1) {
            // Each folder has a fact, and facts are sorted by segments: children come in the order of their folders.
            self.children.leave(self.visitor)?;
            let next = self.queue.pop_front().ok_or_else(|| group.corrupt())?;
            let folder = FolderRef { ino: next >> 1, is_new: next & 1 == 1 };
            self.children.enter(folder)?;
            self.visitor.enter(folder)?;
            self.within.0 = parent.0;
            self.within.1.clear();
            self.within.1.extend_from_slice(parent.1);
        }
        if let Some(newest) = group.folder {
            let base = self.children.take(name)?;
            let FolderRef { ino, is_new } = self.visitor.folder(name, newest, base)?;
            self.queue.push_back(ino << 1 | u64::from(is_new));
        }
        let TreeWalk { scope, visitor, children, .. } = self;
        group.names(&scope.naming, &mut |file| {
            let base = children.take(file.name)?;
            visitor.file(file, base)
        })
    }
}

/// The children of a folder of the revision that is shown.
struct Children<'o> {
    store: &'o TreeStore,
    txn: &'o RoTxn<'o>,
    folder: FolderRef,
    /// Its children by name, each with whether it was taken, where they are few enough; else they are looked up one by one.
    read: Option<Vec<(NamedNode<'o>, bool)>>,
    /// Entry ids of those that were looked up.
    taken: Vec<u64>,
    ahead: Ahead,
}

impl<'o> Children<'o> {
    /// Goes on with another folder.
    fn enter(&mut self, folder: FolderRef) -> Result<(), CatalogError> {
        (self.folder, self.read) = (folder, None);
        if folder.is_new {
            return Ok(());
        }
        let mut read = Vec::new();
        for child in self.store.children(self.txn, folder.ino, 0)? {
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

    /// Takes the node that `name` stood for.
    fn take(&mut self, name: &[u8]) -> Result<Option<NamedNode<'o>>, CatalogError> {
        if self.folder.is_new {
            return Ok(None);
        }
        if let Some(read) = &mut self.read {
            let index = read.binary_search_by(|(child, _)| child.node.name.cmp(name)).ok();
            return Ok(index.map(|index| {
                let (child, is_taken) = &mut read[index];
                *is_taken = true;
                *child
            }));
        }
        let found = self.store.named(self.txn, self.folder.ino, name)?;
        self.taken.extend(found.map(|found| found.entry));
        Ok(found)
    }

    /// Leaves the folder: names that were not taken go.
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
        for child in self.store.children(self.txn, self.folder.ino, 0)? {
            let child = child?;
            if taken.binary_search(&child.entry).is_err() {
                visitor.removed(child)?;
            }
        }
        Ok(())
    }
}

/// Calls `each` for every name beneath a folder of `store`.
pub(super) fn beneath<'o>(
    store: &TreeStore,
    txn: &'o RoTxn<'_>,
    folder: u64,
    each: &mut dyn FnMut(NamedNode<'o>) -> Result<(), CatalogError>,
) -> Result<(), CatalogError> {
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for child in store.children(txn, folder, 0)? {
            let child = child?;
            if child.node.kind() == Kind::Folder {
                folders.push(child.node.ino);
            }
            each(child)?;
        }
    }
    Ok(())
}
