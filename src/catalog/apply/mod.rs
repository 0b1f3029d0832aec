//! Changes of single resources, written over the revision before.
//!
//! All URIs with one path by rule are a group: its names depend on the URIs of the group and on whether the path is a folder,
//! on nothing else. A change concerns its URI's group. Where the names of a group change, the folder that they lie in may
//! begin or cease to exist, which concerns the group of the folder's own path. So groups are settled from the deepest path upwards,
//! and names that go are removed on the way. Then names are placed from the root downwards.

pub(super) mod transaction;
pub(super) mod tree;

use super::naming::locate::folder;
use super::naming::resolve::{path_of_record, resolved_name, split, uri as uri_of};
use super::naming::{beside_folder, disambiguated};
use super::revision::Before;
use super::statement::MOST_URIS;
use super::store::codec::damaged;
use super::store::keys::displaced_prefix;
use super::store::record::{NodeRecord, ResourceRecord};
use super::store::sets::SetTable;
use super::store::{TableId, meta};
use super::version::{self, Coming, Outcome};
use super::{Catalog, CatalogError, Committed, Freshness, Kind, Naming, SetId};
use crate::document::{Timestamp, Uri};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use transaction::in_transaction;
use tree::{Old, Parent, Tree};

/// What becomes of one resource.
#[derive(Debug, Default)]
pub(super) struct UriChange {
    /// Its path by rule in the revision before; `None` where it is new.
    pub path_before: Option<String>,
    /// Its path by rule now; empty where it goes.
    pub path: String,
    /// Its record with the URI; `None` where it goes.
    pub resource: Option<Vec<u8>>,
    /// The time of the change, which stands in for a `lastmod`.
    pub time: Option<Timestamp>,
    /// A change that is not in the journal says so: the content is new unless the entry vouches for the old one.
    pub is_news: bool,
}

/// Writes a row of the journal or of what is held back; `None` removes it.
pub(super) type PutRow<'p> = dyn FnMut(TableId, &[u8], Option<&[u8]>) -> Result<(), CatalogError> + 'p;

/// What a commit writes in addition to the tree.
pub(super) struct CommittedWith<'r> {
    /// Called once, to write the rows of the journal and of what is held back. They stream: a journal may be as long as a list.
    pub rows: &'r mut dyn FnMut(&mut PutRow<'_>) -> Result<(), CatalogError>,
    /// What the revision speaks for.
    pub at: Option<Timestamp>,
    /// The state of `sync`.
    pub state: Vec<u8>,
    /// The sets after the commit. [`apply`] takes off what it leaves out of paths with too many URIs.
    pub sets: SetTable,
}

/// Changes the revision `before` in place, and commits tree, rows and state at once. Nothing is written where nothing differs.
/// The caller holds `catalog.writer`.
///
/// # Errors
/// The tree stays as it was. Without a revision before it is [`CatalogError::NoRevision`].
pub(super) fn apply(
    catalog: &Catalog,
    before: &Before<'_>,
    changes: BTreeMap<Uri, UriChange>,
    with: CommittedWith<'_>,
) -> Result<Committed, CatalogError> {
    let (Some(revision), Some(naming)) = (&before.revision, &before.naming) else {
        return Err(CatalogError::NoRevision);
    };
    let CommittedWith { rows, at, state, mut sets } = with;
    in_transaction(catalog, before.store, |transaction| {
        rows(&mut |table, key, row| match row {
            Some(row) => transaction.put(table, key, |out| out.extend_from_slice(row)),
            None => transaction.remove(table, key),
        })?;
        let mut tree = Tree::new(catalog, before.store, naming, revision, transaction);
        let left_out = Groups::new(catalog, before, naming, changes).settle(&mut tree)?;
        let committed = tree.finish(at, left_out.paths)?;
        for (set, left) in &left_out.sets {
            sets.entry(*set).files = sets.files(*set).saturating_sub(*left);
        }
        transaction.put_if_other(TableId::Meta, meta::POSITION, |row| row.extend_from_slice(&state))?;
        transaction.put_if_other(TableId::Meta, meta::SETS, |row| sets.encode(row))?;
        // Rows of the journal name symbols too.
        transaction.put_if_other(TableId::Meta, meta::SYMBOLS, |row| catalog.symbols.encode(row))?;
        Ok(committed)
    })
}

/// The groups that changes concern.
struct Groups<'o> {
    catalog: &'o Catalog,
    before: &'o Before<'o>,
    naming: &'o Naming,
    /// The resources that change or go.
    changed: BTreeSet<Uri>,
    /// What is known of the groups that are yet to be settled, by depth and path.
    due: BTreeMap<(usize, String), Due>,
    /// Inodes of folders of the revision before.
    folders: HashMap<String, Option<u64>>,
    left_out: LeftOut,
}

/// What is not shown, as a path has too many URIs.
#[derive(Default)]
struct LeftOut {
    /// How many, by path.
    paths: BTreeMap<String, u64>,
    /// How many of each set.
    sets: BTreeMap<SetId, u64>,
}

/// What is known of a group before it is settled.
#[derive(Default)]
struct Due {
    /// Resources of its path that are new or change.
    coming: Vec<Resource>,
    /// What changes among the children of the folder of its path: names that go, whether any comes, and the newest time of these.
    gone: HashSet<Vec<u8>>,
    has_new: bool,
    newest: Option<Timestamp>,
}

struct Resource {
    uri: Uri,
    /// With the URI.
    record: Vec<u8>,
    time: Option<Timestamp>,
    is_news: bool,
}

/// What is to be placed of a group.
struct Group<'o> {
    path: String,
    before: Vec<Old<'o>>,
    /// Where the path is a new folder: the newest time beneath it.
    new_folder: Option<Timestamp>,
    /// Each with its name; the record is as the tree has it.
    files: Vec<(String, Resource)>,
}

impl<'o> Groups<'o> {
    fn new(
        catalog: &'o Catalog,
        before: &'o Before<'o>,
        naming: &'o Naming,
        changes: BTreeMap<Uri, UriChange>,
    ) -> Groups<'o> {
        let (mut changed, mut due) = (BTreeSet::new(), BTreeMap::<_, Due>::new());
        for (uri, UriChange { path_before, path, resource, time, is_news }) in changes {
            if let Some(path) = path_before {
                due.entry((depth(&path), path)).or_default();
            }
            if let Some(record) = resource {
                let resource = Resource { uri: uri.clone(), record, time, is_news };
                due.entry((depth(&path), path)).or_default().coming.push(resource);
            }
            changed.insert(uri);
        }
        Groups { catalog, before, naming, changed, due, folders: HashMap::new(), left_out: LeftOut::default() }
    }

    /// Settles and writes all.
    fn settle(mut self, tree: &mut Tree<'_, '_>) -> Result<LeftOut, CatalogError> {
        let mut groups = Vec::new();
        while let Some(((_, path), due)) = self.due.pop_last() {
            groups.push(self.settle_group(path, due, tree)?);
        }
        let mut new_folders = HashMap::new();
        for Group { path, before, new_folder, files } in groups.into_iter().rev() {
            if new_folder.is_none() && files.is_empty() {
                continue;
            }
            let (above, name) = split(&path);
            let parent = match new_folders.get(above) {
                Some(ino) => Parent { ino: *ino, is_new: true },
                None => {
                    let ino = self.folder(above)?.ok_or_else(|| damaged("absence", above.as_bytes()))?;
                    Parent { ino, is_new: false }
                }
            };
            let named = |name: &str| before.iter().find(|old| old.node.name == name.as_bytes());
            if let Some(newest) = new_folder {
                let (mtime, ctime) = (newest.min(tree.now), tree.now);
                let (kind, freshness, name) = (Kind::Folder, Freshness::Listed, name.as_bytes());
                let node = NodeRecord { ino: 0, kind, size: None, mtime, ctime, freshness, name };
                let ino = match named(split(&path).1) {
                    Some(file) => tree.replace(file, node, &[])?,
                    None => tree.create(parent, node, &[])?,
                };
                new_folders.insert(path.clone(), ino);
            }
            for (name, resource) in &files {
                self.place(tree, parent, named(name), name, resource)?;
            }
        }
        Ok(self.left_out)
    }

    /// Finds the names that the group of `path` is to have, when all beneath is settled, and removes those that it had and has no more.
    fn settle_group(&mut self, path: String, due: Due, tree: &mut Tree<'_, '_>) -> Result<Group<'o>, CatalogError> {
        let (above, name) = split(&path);
        let before = self.names(&path)?;
        let folder_before = before.iter().find(|old| old.is_folder());
        let is_folder =
            due.has_new || folder_before.map_or(Ok(false), |folder| self.has_others(folder.node.ino, &due.gone))?;

        let mut resources = due.coming;
        for old in &before {
            let Some((record, uri)) = &old.resource else { continue };
            if !self.changed.contains(uri) {
                let record = ResourceRecord::decode(record).ok_or_else(|| damaged("resource", old.node.name))?;
                let mut with_uri = Vec::new();
                record.push_with_uri(Some(uri.as_str()), &mut with_uri);
                resources.push(Resource { uri: uri.clone(), record: with_uri, time: None, is_news: false });
            }
        }
        resources.sort_by(|a, b| a.uri.cmp(&b.uri));
        for Resource { uri, record, .. } in resources.drain(MOST_URIS.min(resources.len())..) {
            let record = ResourceRecord::decode(&record).ok_or_else(|| damaged("resource", uri.as_str().as_bytes()))?;
            *self.left_out.paths.entry(path.clone()).or_default() += 1;
            record.sets.iter().for_each(|set| *self.left_out.sets.entry(set).or_default() += 1);
        }

        let mut newest = due.newest.filter(|_| is_folder);
        let new_folder = (is_folder && folder_before.is_none()).then(|| newest.unwrap_or(tree.now));
        let mut files = Vec::with_capacity(resources.len());
        for (index, Resource { uri, record: with_uri, time, is_news }) in resources.into_iter().enumerate() {
            let sense = || damaged("resource", uri.as_str().as_bytes());
            let record = ResourceRecord::decode(&with_uri).ok_or_else(sense)?;
            newest = newest.max(Some(record.lastmod.or(time).unwrap_or(tree.now)));
            let settled = resolved_name(name, index, is_folder, &uri).into_owned();
            let by_rule = path_of_record(self.naming, &uri, &record, &self.catalog.symbols).ok_or_else(sense)?.1;
            let gives_uri = settled == name && by_rule;
            let mut shown = Vec::with_capacity(with_uri.len());
            record.push_with_uri((!gives_uri).then_some(uri.as_str()), &mut shown);
            files.push((settled, Resource { uri, record: shown, time, is_news }));
        }

        let names = files.iter().map(|(name, _)| name.as_bytes()).chain(is_folder.then_some(name.as_bytes()));
        let names: HashSet<&[u8]> = names.collect();
        let mut gone = HashSet::new();
        for old in before.iter().filter(|old| !names.contains(old.node.name)) {
            tree.remove(old)?;
            gone.insert(old.node.name.to_vec());
        }
        let has_new = names.iter().any(|name| before.iter().all(|old| old.node.name != *name));
        if !above.is_empty() && (has_new || !gone.is_empty()) {
            let folder = self.due.entry((depth(above), above.to_owned())).or_default();
            folder.gone.extend(gone);
            folder.has_new |= has_new;
            folder.newest = folder.newest.max(newest);
        }
        Ok(Group { path, before, new_folder, files })
    }

    /// Puts a file at a name that stood for `before`.
    fn place(
        &self,
        tree: &mut Tree<'_, '_>,
        parent: Parent,
        before: Option<&Old<'_>>,
        name: &str,
        file: &Resource,
    ) -> Result<(), CatalogError> {
        let Resource { uri, record: resource, time, is_news } = file;
        let record = ResourceRecord::decode(resource).ok_or_else(|| damaged("resource", name.as_bytes()))?;
        let (size, freshness) = (record.size(), record.freshness());
        let (mtime, ctime) = (record.lastmod.or(*time).unwrap_or(tree.now), tree.now);
        let node = NodeRecord { ino: 0, kind: Kind::File, size, mtime, ctime, freshness, name: name.as_bytes() };
        let Some(before) = before else { return tree.create(parent, node, resource).map(|_| ()) };
        let Some((known, known_uri)) = &before.resource else {
            return tree.replace(before, node, resource).map(|_| ());
        };
        let coming = Coming { resource, same_uri: known_uri == uri, time: *time, is_news: *is_news };
        match version::compare(&before.node, known, coming, &self.catalog.symbols, tree.now)? {
            Outcome::Same => Ok(()),
            Outcome::Touched(node) => tree.touch(before, node, resource),
            Outcome::Replaced(node) => tree.replace(before, node, resource).map(|_| ()),
        }
    }

    /// The names that the group of `path` had in the revision before.
    fn names(&mut self, path: &str) -> Result<Vec<Old<'o>>, CatalogError> {
        let (above, name) = split(path);
        let Some(parent) = self.folder(above)? else { return Ok(Vec::new()) };
        let Before { store, old, .. } = *self.before;
        let mut names = vec![name.to_owned(), beside_folder(name)];
        let prefix = displaced_prefix(path);
        for row in store.rows(old, store.displaced, (Bound::Included(&prefix[..]), Bound::Unbounded))? {
            let (key, uri) = row?;
            if !key.starts_with(&prefix) {
                break;
            }
            let uri = std::str::from_utf8(uri).ok().and_then(|uri| Uri::parse(uri).ok());
            names.push(disambiguated(name, &uri.ok_or_else(|| damaged("sense", key))?));
        }
        let mut found = Vec::new();
        for (index, settled) in names.into_iter().enumerate() {
            let Some((entry, node)) = store.named(old, parent, settled.as_bytes())? else { continue };
            let sense = || damaged("resource", node.name);
            let resource = match node.kind {
                Kind::Folder if index == 0 => None,
                Kind::Folder => continue,
                Kind::File => {
                    let resource = store.inode(old, node.ino)?.ok_or_else(sense)?.resource;
                    let record = ResourceRecord::decode(resource).ok_or_else(sense)?;
                    let full = if above.is_empty() { settled } else { format!("{above}/{settled}") };
                    Some((resource, uri_of(&record, &full, self.naming).ok_or_else(sense)?))
                }
            };
            found.push(Old { parent, entry, node, resource });
        }
        Ok(found)
    }

    /// Whether a folder of the revision before holds anything but what goes.
    fn has_others(&self, folder: u64, gone: &HashSet<Vec<u8>>) -> Result<bool, CatalogError> {
        for child in self.before.store.children(self.before.old, folder, 0)? {
            if !gone.contains(child?.1.name) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn folder(&mut self, path: &str) -> Result<Option<u64>, CatalogError> {
        if let Some(known) = self.folders.get(path) {
            return Ok(*known);
        }
        let found = folder(self.before.store, self.before.old, path)?;
        self.folders.insert(path.to_owned(), found);
        Ok(found)
    }
}

/// The number of segments.
fn depth(path: &str) -> usize {
    1 + path.bytes().filter(|byte| *byte == b'/').count()
}
