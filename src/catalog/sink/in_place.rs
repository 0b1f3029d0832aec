//! Changes of single resources, written over the revision before.
//!
//! All URIs with one path by rule are a group: its names depend on the URIs of the group and on whether the path is a folder,
//! on nothing else. A change concerns its URI's group. Where the names of a group change, the folder that they lie in may
//! begin or cease to exist, which concerns the group of the folder's own path. So groups are settled from the deepest path upwards,
//! and names that go are removed on the way. Then names are placed from the root downwards.

use super::super::base::Before;
use super::super::group::MOST_URIS;
use super::super::join::Folder;
use super::super::naming::locate::folder;
use super::super::naming::resolve::{path_by_rule, resolved_name, split, uri as uri_of};
use super::super::naming::{beside_folder, disambiguated};
use super::super::store::codec::damaged;
use super::super::store::keys::digest;
use super::super::store::record::{Named, ResourceRecord};
use super::super::store::sets::SetTable;
use super::super::version::Coming;
use super::super::{Catalog, CatalogError, Committed, Naming, SetId};
use super::transaction::in_transaction;
use super::tree::{CommittedWith, Sink, TreeWriter};
use crate::document::{Timestamp, Uri};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;

/// What becomes of one resource.
#[derive(Debug, Default)]
pub struct UriChange {
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

/// Writes the rows of the journal and of what is held back. They stream: a journal may be as long as a list.
pub type PutRows<'r> = dyn FnMut(&mut TreeWriter<'_, '_>) -> Result<(), CatalogError> + 'r;

/// Changes the revision `before` in place, and commits tree, `rows` and state at once. Nothing is written where nothing differs.
/// `sets` are those after the commit; it takes off what it leaves out of paths with too many URIs. The caller holds `catalog.writer`.
///
/// # Errors
/// The tree stays as it was. Without a revision before it is [`CatalogError::NoRevision`].
pub fn apply(
    catalog: &Catalog,
    before: &Before<'_>,
    changes: BTreeMap<Uri, UriChange>,
    rows: &mut PutRows<'_>,
    (at, state, mut sets): (Option<Timestamp>, &[u8], SetTable),
) -> Result<Committed, CatalogError> {
    let (Some(revision), Some(naming)) = (before.revision, &before.naming) else {
        return Err(CatalogError::NoRevision);
    };
    in_transaction(catalog, before.store, |transaction| {
        let mut tree = TreeWriter::new(&catalog.spill_folder, before, naming, revision, Sink::InPlace(transaction));
        rows(&mut tree)?;
        let left_out = settle(&mut tree, changes, Vec::new())?;
        for (set, left) in &left_out.sets {
            sets.entry(*set).files = sets.files(*set).saturating_sub(*left);
        }
        let (revision, effects) = tree.finish(&CommittedWith { at, state, sets: &sets })?;
        Ok(effects.committed(revision.number, left_out.paths))
    })
}

/// What is not shown, as a path has too many URIs.
#[derive(Default)]
pub struct LeftOut {
    /// How many, by path.
    pub paths: BTreeMap<String, u64>,
    /// How many of each set.
    sets: BTreeMap<SetId, u64>,
}

/// Writes `changes`, and removes those of the folders `emptied` in which nothing is.
pub fn settle(
    tree: &mut TreeWriter<'_, '_>,
    changes: BTreeMap<Uri, UriChange>,
    emptied: Vec<String>,
) -> Result<LeftOut, CatalogError> {
    let (mut changed, mut due) = (BTreeSet::new(), BTreeMap::<_, Due>::new());
    for path in emptied {
        due.entry((depth(&path), path)).or_default();
    }
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
    let (before, naming) = (tree.before, tree.naming);
    let groups = Groups { before, naming, changed, due, left_out: LeftOut::default() };
    groups.settle(tree)
}

/// The groups that changes concern.
struct Groups<'o> {
    before: &'o Before<'o>,
    naming: &'o Naming,
    /// The resources that change or go.
    changed: BTreeSet<Uri>,
    /// What is known of the groups that are yet to be settled, by depth and path.
    due: BTreeMap<(usize, String), Due>,
    left_out: LeftOut,
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
    /// With the URI; once it has its name as the tree is to have it.
    record: Vec<u8>,
    time: Option<Timestamp>,
    is_news: bool,
}

/// A name of the revision before; of a file with its URI.
type Old<'o> = (Named<'o>, Option<Uri>);

/// What is to be placed of a group.
struct Group<'o> {
    path: String,
    before: Vec<Old<'o>>,
    /// Where the path is a new folder: the newest time beneath it.
    new_folder: Option<Timestamp>,
    /// Each with its name.
    files: Vec<(String, Resource)>,
}

impl<'o> Groups<'o> {
    /// Settles and writes all.
    fn settle(mut self, tree: &mut TreeWriter<'_, '_>) -> Result<LeftOut, CatalogError> {
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
                Some(ino) => Folder { ino: *ino, is_new: true },
                None => {
                    let ino = folder(self.before.store, self.before.old, above)?
                        .ok_or_else(|| damaged("absence", above.as_bytes()))?;
                    Folder { ino, is_new: false }
                }
            };
            let named = |name: &str| {
                let found = before.iter().find(|(old, _)| old.node.name == name.as_bytes());
                found.map(|(old, uri)| (old, uri.as_ref()))
            };
            if let Some(newest) = new_folder {
                let ino = tree.put_folder(parent, name.as_bytes(), named(name), newest)?;
                new_folders.insert(path.clone(), ino);
            }
            for (name, Resource { uri, record, time, is_news }) in &files {
                let (before, time, is_news) = (named(name), *time, *is_news);
                let same_uri = before.is_some_and(|(_, known)| known == Some(uri));
                let coming = Coming { resource: decode(record, name.as_bytes())?, same_uri, time, is_news };
                tree.put_file(parent, name.as_bytes(), before, coming)?;
            }
        }
        Ok(self.left_out)
    }

    /// Finds the names that the group of `path` is to have, when all beneath is settled, and removes those that it had and has no more.
    fn settle_group(
        &mut self,
        path: String,
        due: Due,
        tree: &mut TreeWriter<'_, '_>,
    ) -> Result<Group<'o>, CatalogError> {
        let (above, name) = split(&path);
        let before = self.names(&path)?;
        let folder_before = before.iter().find(|(_, uri)| uri.is_none()).map(|(folder, _)| folder.node.ino);
        let is_folder = due.has_new || folder_before.map_or(Ok(false), |folder| self.has_others(folder, &due.gone))?;

        let mut resources = due.coming;
        for (old, uri) in &before {
            let (Some(record), Some(uri)) = (old.node.resource, uri) else { continue };
            if !self.changed.contains(uri) {
                let record = record.with_uri(Some(uri.as_str()));
                resources.push(Resource { uri: uri.clone(), record, time: None, is_news: false });
            }
        }
        resources.sort_by(|a, b| a.uri.cmp(&b.uri));
        for Resource { uri, record, .. } in resources.drain(MOST_URIS.min(resources.len())..) {
            let record = decode(&record, uri.as_str().as_bytes())?;
            *self.left_out.paths.entry(path.clone()).or_default() += 1;
            record.sets.iter().for_each(|set| *self.left_out.sets.entry(set).or_default() += 1);
        }

        let mut newest = due.newest.filter(|_| is_folder);
        let new_folder = (is_folder && folder_before.is_none()).then(|| newest.unwrap_or(tree.now));
        let mut files = Vec::with_capacity(resources.len());
        for (index, resource) in resources.into_iter().enumerate() {
            let Resource { uri, record, time, .. } = &resource;
            let with_uri = decode(record, uri.as_str().as_bytes())?;
            newest = newest.max(Some(with_uri.lastmod.or(*time).unwrap_or(tree.now)));
            let settled = resolved_name(name, index, is_folder, uri).into_owned();
            let by_rule = path_by_rule(self.naming, uri, with_uri.media_type).1;
            let record = with_uri.with_uri((settled != name || !by_rule).then_some(uri.as_str()));
            files.push((settled, Resource { record, ..resource }));
        }

        let names = files.iter().map(|(name, _)| name.as_bytes()).chain(is_folder.then_some(name.as_bytes()));
        let names: HashSet<&[u8]> = names.collect();
        let mut gone = HashSet::new();
        for (old, uri) in before.iter().filter(|(old, _)| !names.contains(old.node.name)) {
            tree.remove(old, uri.as_ref())?;
            gone.insert(old.node.name.to_vec());
        }
        let has_new = names.iter().any(|name| before.iter().all(|(old, _)| old.node.name != *name));
        if !above.is_empty() && (has_new || !gone.is_empty()) {
            let folder = self.due.entry((depth(above), above.to_owned())).or_default();
            folder.gone.extend(gone);
            folder.has_new |= has_new;
            folder.newest = folder.newest.max(newest);
        }
        Ok(Group { path, before, new_folder, files })
    }

    /// The names that the group of `path` had in the revision before.
    fn names(&self, path: &str) -> Result<Vec<Old<'o>>, CatalogError> {
        let (above, name) = split(path);
        let Before { store, old, .. } = *self.before;
        let Some(parent) = folder(store, old, above)? else { return Ok(Vec::new()) };
        let mut names = vec![name.to_owned(), beside_folder(name)];
        let prefix = digest(path);
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
            let Some(named) = store.named(old, parent, settled.as_bytes())? else { continue };
            match named.node.resource {
                Some(record) => {
                    let full = if above.is_empty() { settled } else { format!("{above}/{settled}") };
                    let uri = uri_of(&record, &full, self.naming);
                    found.push((named, Some(uri.ok_or_else(|| damaged("resource", full.as_bytes()))?)));
                }
                None if index == 0 => found.push((named, None)),
                None => {}
            }
        }
        Ok(found)
    }

    /// Whether a folder of the revision before holds anything but what goes.
    fn has_others(&self, folder: u64, gone: &HashSet<Vec<u8>>) -> Result<bool, CatalogError> {
        for child in self.before.store.children(self.before.old, folder, 0)? {
            if !gone.contains(child?.node.name) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn decode<'r>(record: &'r [u8], what: &[u8]) -> Result<ResourceRecord<'r>, CatalogError> {
    ResourceRecord::decode(record).ok_or_else(|| damaged("resource", what))
}

/// The number of segments.
fn depth(path: &str) -> usize {
    1 + path.bytes().filter(|byte| *byte == b'/').count()
}
