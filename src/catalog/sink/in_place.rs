//! Edits written over the revision that is shown.
//!
//! Where the names of a group change, the folder that they are in may begin or cease to exist, which concerns the group of the folder's
//! own path. So groups are resolved from the deepest path upwards, and names that go are removed on the way. Then names are placed from
//! the root downwards.

use super::super::base::Base;
use super::super::edit::{GroupEdits, depth};
use super::super::group::{Group, StatedResource};
use super::super::join::FolderRef;
use super::super::naming::locate::folder;
use super::super::naming::names_of_path::split;
use super::super::store::codec::{damaged, push_number};
use super::super::store::keys::name_key;
use super::super::store::record::{NamedNode, ResourceRecord, SetTable};
use super::super::store::{Lookup, TableId};
use super::super::version::ChangeMark;
use super::super::{Catalog, CatalogError, Committed, Naming};
use super::transaction::{Transaction, in_transaction};
use super::tree::{CommittedWith, TreeWriter};
use super::{RowState, Sink};
use crate::document::{Timestamp, Uri};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Rows over those of the revision that is shown.
pub struct InPlace<'t, 'c>(pub &'t mut Transaction<'c>);

impl Sink for InPlace<'_, '_> {
    fn put(&mut self, is: RowState, table: TableId, key: &[u8], row: &[u8]) -> Result<(), CatalogError> {
        if is == RowState::Unchanged { Ok(()) } else { self.0.put(table, key, row) }
    }

    fn remove(&mut self, table: TableId, key: &[u8]) -> Result<(), CatalogError> {
        self.0.remove(table, key)
    }

    fn put_name(&mut self, is: RowState, parent: u64, hash: u32, entry: u64) -> Result<(), CatalogError> {
        if is == RowState::Unchanged {
            return Ok(());
        }
        let key = name_key(parent, hash);
        let mut ids = self.0.row(TableId::Names, &key)?.unwrap_or_default().to_vec();
        push_number(&mut ids, entry);
        self.0.put(TableId::Names, &key, &ids)
    }

    fn remove_name(&mut self, parent: u64, hash: u32, entry: u64) -> Result<(), CatalogError> {
        let key = name_key(parent, hash);
        let namesakes = self.0.row(TableId::Names, &key)?.unwrap_or_default();
        let others = namesakes.chunks(5).filter(|id| *id != &entry.to_be_bytes()[3..]).collect::<Vec<_>>().concat();
        match others[..] {
            [] => self.0.remove(TableId::Names, &key),
            _ => self.0.put(TableId::Names, &key, &others),
        }
    }

    fn put_meta(&mut self, key: &[u8], row: &[u8]) -> Result<(), CatalogError> {
        match self.0.row(TableId::Meta, key)? == Some(row) {
            true => Ok(()),
            false => self.0.put(TableId::Meta, key, row),
        }
    }

    fn folder<'r>(&'r self, base: &'r Base<'_>, ino: u64) -> Lookup<NamedNode<'r>> {
        // A folder in which, and beneath which, something changed is read as it was written before.
        base.store.by_ino(&self.0.txn, ino)
    }
}

/// Writes the rows of the journal and of what is held back. They stream: a journal may be as long as a list.
pub type PutRows<'r> = dyn FnMut(&mut TreeWriter<'_>) -> Result<(), CatalogError> + 'r;

/// Edits the revision `base`, and commits tree, `rows` and position at once. Nothing is written where nothing differs. `sets` are those after
/// the commit. The caller holds `catalog.writer`.
///
/// # Errors
/// The tree stays as it was. Without a revision it is [`CatalogError::NoRevision`].
pub fn write(
    catalog: &Catalog,
    base: &Base<'_>,
    edits: BTreeMap<(usize, String), GroupEdits>,
    rows: &mut PutRows<'_>,
    (at, position, sets): (Option<Timestamp>, &[u8], SetTable),
) -> Result<Committed, CatalogError> {
    let (Some(revision), Some(naming)) = (base.revision, &base.naming) else { return Err(CatalogError::NoRevision) };
    in_transaction(catalog, base.store, |transaction| {
        let mut tree = TreeWriter::new(&catalog.spill_folder, base, naming, revision, InPlace(transaction));
        rows(&mut tree)?;
        write_groups(&mut tree, edits, Vec::new())?;
        let (revision, effects) = tree.finish(&CommittedWith { at, position, sets: &sets })?;
        Ok(effects.committed(revision.number, BTreeMap::new()))
    })
}

/// Writes `edits`, and removes the empty folders `emptied`.
pub fn write_groups(
    tree: &mut TreeWriter<'_>,
    edits: BTreeMap<(usize, String), GroupEdits>,
    emptied: Vec<String>,
) -> Result<(), CatalogError> {
    let due = |(key, edits): ((usize, String), GroupEdits)| (key, Due { edits, ..Due::default() });
    let mut due: BTreeMap<_, Due> = edits.into_iter().map(due).collect();
    for path in emptied {
        due.entry((depth(&path), path)).or_default();
    }
    let (base, naming) = (tree.base, tree.naming);
    Groups { base, naming, due }.write(tree)
}

/// The groups that edits concern.
struct Groups<'o> {
    base: &'o Base<'o>,
    naming: &'o Naming,
    /// The groups that are yet to be resolved, by depth and path.
    due: BTreeMap<(usize, String), Due>,
}

/// A group before it is resolved.
#[derive(Default)]
struct Due {
    edits: GroupEdits,
    /// Changes among the children of the folder of its path: names that go, whether any comes, and the newest time of these.
    gone: HashSet<Vec<u8>>,
    has_new: bool,
    newest: Option<Timestamp>,
}

/// A group whose names are to be written.
struct ResolvedGroup<'o> {
    path: String,
    /// The names of the revision that is shown, each file with its URI.
    shown: Vec<(NamedNode<'o>, Option<Uri>)>,
    /// The newest time beneath it, where the path is a new folder.
    new_folder: Option<Timestamp>,
    group: Group,
}

impl<'o> Groups<'o> {
    fn write(mut self, tree: &mut TreeWriter<'_>) -> Result<(), CatalogError> {
        let mut resolved = Vec::new();
        while let Some(((_, path), due)) = self.due.pop_last() {
            resolved.push(self.resolve(path, due, tree)?);
        }
        let mut new_folders = HashMap::new();
        for ResolvedGroup { path, shown, new_folder, group } in resolved.into_iter().rev() {
            if new_folder.is_none() && group.resources.is_empty() {
                continue;
            }
            let (above, name) = split(&path);
            let parent = match new_folders.get(above) {
                Some(ino) => FolderRef { ino: *ino, is_new: true },
                None => {
                    let ino = folder(self.base.store, self.base.txn, above)?;
                    FolderRef { ino: ino.ok_or_else(|| damaged("absence", above.as_bytes()))?, is_new: false }
                }
            };
            let named = |name: &[u8]| {
                let found = shown.iter().find(|(old, _)| old.node.name == name);
                found.map(|(old, uri)| (old, uri.as_ref()))
            };
            if let Some(newest) = new_folder {
                let ino = tree.put_folder(parent, name.as_bytes(), named(name.as_bytes()), newest)?;
                new_folders.insert(path.clone(), ino);
            }
            group.names(self.naming, &mut |file| {
                let (shown, uri) = (named(file.name), file.uri(self.naming)?);
                let same_uri = shown.is_some_and(|(_, known)| known == Some(&uri));
                tree.put_file(parent, &file, shown, same_uri)
            })?;
        }
        Ok(())
    }

    /// Finds the names that the group of `path` is to have, when all beneath is resolved, and removes those that it had and has no more.
    fn resolve(
        &mut self,
        path: String,
        due: Due,
        tree: &mut TreeWriter<'_>,
    ) -> Result<ResolvedGroup<'o>, CatalogError> {
        let (above, name) = split(&path);
        let shown = self.base.names(&path)?;
        let old_folder = shown.iter().find(|(_, uri)| uri.is_none()).map(|(folder, _)| folder.node.ino);
        let is_folder = due.has_new || old_folder.map_or(Ok(false), |folder| self.has_others(folder, &due.gone))?;

        let mut resources: BTreeMap<Uri, StatedResource> = due.edits.coming.into_iter().collect();
        let mut newest = due.newest.filter(|_| is_folder);
        for (old, uri) in &shown {
            let (Some(record), Some(uri)) = (old.node.resource, uri) else { continue };
            if !due.edits.leaving.contains(uri) {
                let unchanged = || StatedResource::of(record.with_uri(Some(uri.as_str())), ChangeMark::default());
                resources.entry(uri.clone()).or_insert_with(unchanged);
            }
        }
        let new_folder = (is_folder && old_folder.is_none()).then(|| newest.unwrap_or(tree.now));
        for resource in resources.values() {
            let lastmod = ResourceRecord::decode(&resource.record).and_then(|record| record.lastmod);
            newest = newest.max(Some(lastmod.or(resource.mark.datetime).unwrap_or(tree.now)));
        }
        let group = Group::of(&path, is_folder.then_some(tree.now), resources.into_values().collect());
        let mut names: HashSet<Vec<u8>> = is_folder.then(|| name.as_bytes().to_vec()).into_iter().collect();
        group.names(self.naming, &mut |file| {
            names.insert(file.name.to_vec());
            Ok(())
        })?;
        let mut gone = HashSet::new();
        for (old, uri) in shown.iter().filter(|(old, _)| !names.contains(old.node.name)) {
            tree.remove(old, uri.as_ref())?;
            gone.insert(old.node.name.to_vec());
        }
        let has_new = names.iter().any(|name| shown.iter().all(|(old, _)| old.node.name != *name));
        if !above.is_empty() && (has_new || !gone.is_empty()) {
            let folder = self.due.entry((depth(above), above.to_owned())).or_default();
            folder.gone.extend(gone);
            folder.has_new |= has_new;
            folder.newest = folder.newest.max(newest);
        }
        Ok(ResolvedGroup { path, shown, new_folder, group })
    }

    /// Answers whether a folder of the revision that is shown holds anything but what goes.
    fn has_others(&self, folder: u64, gone: &HashSet<Vec<u8>>) -> Result<bool, CatalogError> {
        for child in self.base.store.children(self.base.txn, folder, 0)? {
            if !gone.contains(child?.node.name) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
