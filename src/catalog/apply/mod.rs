//! The names that some changed resources concern: theirs, those of the resources that share a path with them, and those of
//! the files that become folders or cease to be.
//!
//! All URIs with one path by rule are a group: its names depend on the URIs of the group and on whether the path is a folder,
//! on nothing else. A change concerns its URI's group. Where the names of a group change, the folder that they lie in may
//! begin or cease to exist, which concerns the group of the folder's own path; so groups are settled from the deepest
//! path upwards, and then placed from the root downwards.

pub(super) mod folder_times;
pub(super) mod place;
mod removal;
mod settle_folders;
pub(super) mod write;

use super::losses::Tally;
use super::naming::beside_folder;
use super::naming::locate::{folder, locate};
use super::naming::resolve::settled_name;
use super::naming::resolve::uri as uri_of;
use super::naming::resolve::{path_of_record, split};
use super::statement::MOST_URIS;
use super::store::Store;
use super::store::codec::{damaged, unseal};
use super::store::keys::displaced_prefix;
use super::store::record::{NodeRecord, ResourceRecord};
use super::{Catalog, CatalogError, Kind, Naming, SetId, Totals};
use crate::document::{Timestamp, Uri};
use heed::RoTxn;
use place::{File, Folder, Placer, ReadAhead};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use write::Writer;

/// What becomes of one URI.
#[derive(Default)]
pub(super) struct Stated {
    /// Its path by rule in the revision before; `None` where it is new.
    pub path_before: Option<String>,
    /// Its path by rule now, and its record with the URI; no record where it goes.
    pub path: String,
    pub resource: Option<Vec<u8>>,
    /// The time of the change, which stands in for a `lastmod`.
    pub changed: Option<Timestamp>,
    /// Whether a change says so.
    pub updated: bool,
}

/// Settles names, then places them.
pub(super) struct Settling<'o> {
    catalog: &'o Catalog,
    store: &'o Store,
    old: &'o RoTxn<'o>,
    naming: &'o Naming,
    stated: BTreeMap<Uri, Stated>,
    /// The URIs that come to a path, by path.
    coming: HashMap<String, Vec<Uri>>,
    /// Paths whose group is to be settled, by depth.
    due: BTreeMap<(usize, String), ()>,
    /// Inodes of folders of the revision before.
    folders: HashMap<String, Option<u64>>,
    /// What changes among the children of a folder.
    children: HashMap<String, Children>,
    left_out: LeftOut,
}

/// What is not shown, as a path has too many URIs.
#[derive(Default)]
pub(super) struct LeftOut {
    /// How many, by path.
    pub paths: BTreeMap<String, u64>,
    /// How many of each set.
    pub sets: BTreeMap<SetId, u64>,
}

/// What changes among the children of one folder.
#[derive(Default)]
struct Children {
    gone: HashSet<Vec<u8>>,
    come: u64,
    /// The newest time of what comes.
    newest: Option<Timestamp>,
}

/// The names of one group, as they were and as they are to be.
struct Group {
    path: String,
    before: Vec<OldName>,
    /// Whether the path itself is a folder, with the newest time beneath for a new one.
    folder: Option<Timestamp>,
    /// Whether it was one and is one no more.
    folder_goes: bool,
    files: Vec<NewFile>,
}

struct OldName {
    name: Vec<u8>,
    is_folder: bool,
}

struct NewFile {
    name: String,
    /// Whether it is the name by rule.
    plain: bool,
    resource: Vec<u8>,
    changed: Option<Timestamp>,
    updated: bool,
}

/// A resource of a group in the revision before.
struct Member<'o> {
    uri: Uri,
    node: NodeRecord<'o>,
    resource: &'o [u8],
}

impl<'o> Settling<'o> {
    pub(super) fn new(catalog: &'o Catalog, store: &'o Store, old: &'o RoTxn<'o>, naming: &'o Naming) -> Settling<'o> {
        Settling {
            catalog,
            store,
            old,
            naming,
            stated: BTreeMap::new(),
            coming: HashMap::new(),
            due: BTreeMap::new(),
            folders: HashMap::new(),
            children: HashMap::new(),
            left_out: LeftOut::default(),
        }
    }

    /// Adds what becomes of one URI, once for each.
    pub(super) fn state(&mut self, uri: Uri, stated: Stated) -> Result<(), CatalogError> {
        if let Some(path) = &stated.path_before {
            self.due.insert((depth(path), path.clone()), ());
        }
        if stated.resource.is_some() {
            self.due.insert((depth(&stated.path), stated.path.clone()), ());
            self.coming.entry(stated.path.clone()).or_default().push(uri.clone());
        }
        self.stated.insert(uri, stated);
        Ok(())
    }

    /// Settles and writes all; brings `totals` up to date.
    pub(super) fn settle(
        mut self,
        writer: Writer<'o>,
        totals: &mut Totals,
    ) -> Result<(Writer<'o>, LeftOut), CatalogError> {
        let now = writer.now;
        let mut groups = Vec::new();
        while let Some(((_, path), ())) = self.due.pop_last() {
            groups.push(self.settle_group(path, now, totals)?);
        }
        groups.reverse();
        let mut placer = Placer {
            catalog: self.catalog,
            store: self.store,
            old: self.old,
            old_naming: self.naming,
            naming: self.naming,
            same_naming: true,
            has_old: false,
            writer,
            folder: Folder::new(0, false),
            totals: Totals::default(),
            tally: Tally::default(),
            going: None,
            ahead: ReadAhead::default(),
        };
        // Folders that are new, and such as go with all beneath.
        let mut made: HashMap<String, u64> = HashMap::new();
        let mut gone: HashSet<&str> = HashSet::new();
        for group in &groups {
            let (above, name) = split(&group.path);
            if group.folder_goes {
                gone.insert(&group.path);
            }
            if gone.contains(above) {
                continue;
            }
            let (parent, fresh) = match made.get(above) {
                Some(ino) => (*ino, true),
                None => {
                    let ino = self.folder(above)?.ok_or_else(|| damaged("absence", above.as_bytes()))?;
                    (ino, false)
                }
            };
            placer.folder.ino = parent;
            placer.folder.fresh = fresh;
            if let Some(newest) = group.folder {
                let (ino, fresh) = placer.place_folder(name.as_bytes(), newest)?;
                if fresh {
                    made.insert(group.path.clone(), ino);
                }
            }
            let key = group.path.replace('/', "\0");
            for file in &group.files {
                placer.place_file(File {
                    name: file.name.as_bytes(),
                    path: if file.plain { key.as_bytes() } else { &[] },
                    resource: &file.resource,
                    changed: file.changed,
                    updated: file.updated,
                })?;
            }
            let names: HashSet<&[u8]> = group.files.iter().map(|file| file.name.as_bytes()).collect();
            for old in &group.before {
                let stays = (group.folder.is_some() && old.name == name.as_bytes()) || names.contains(&old.name[..]);
                if !stays && let Some((entry, node)) = self.store.named(self.old, parent, &old.name)? {
                    placer.remove(entry, &node)?;
                }
            }
            placer.put_names()?;
        }
        Ok((placer.writer, self.left_out))
    }

    /// Finds the names that the group of `path` has and is to have, when all beneath is settled.
    fn settle_group(&mut self, path: String, now: Timestamp, totals: &mut Totals) -> Result<Group, CatalogError> {
        let (above, name) = split(&path);
        let members = self.members(&path)?;
        let folder_before = self.folder(&path)?;
        let mut before: Vec<OldName> =
            members.iter().map(|member| OldName { name: member.node.name.to_vec(), is_folder: false }).collect();
        if folder_before.is_some() {
            before.push(OldName { name: name.as_bytes().to_vec(), is_folder: true });
        }
        let is_folder = match self.children.get(&path) {
            Some(children) => children.come > 0 || self.has_others(folder_before, children)?,
            None => folder_before.is_some(),
        };

        // (URI, record with it, time of the change, whether a change says so)
        let mut now_here = Vec::new();
        for member in &members {
            totals.files -= 1;
            let size = member.node.size;
            totals.octets = totals.octets.saturating_sub(size.unwrap_or(0));
            totals.unsized_files -= u64::from(size.is_none());
            if !self.stated.contains_key(&member.uri) {
                let sense = || damaged("resource", member.node.name);
                let mut with_uri = Vec::new();
                let record = ResourceRecord::decode(member.resource).ok_or_else(sense)?;
                record.push_with_uri(Some(member.uri.as_str()), &mut with_uri);
                now_here.push((member.uri.clone(), with_uri, None, false));
            }
        }
        for uri in self.coming.remove(&path).unwrap_or_default() {
            if let Some(stated) = self.stated.get_mut(&uri)
                && let Some(resource) = stated.resource.take()
            {
                now_here.push((uri, resource, stated.changed, stated.updated));
            }
        }
        now_here.sort_by(|a, b| a.0.cmp(&b.0));
        for (uri, record, ..) in now_here.drain(MOST_URIS.min(now_here.len())..) {
            let record = ResourceRecord::decode(&record).ok_or_else(|| damaged("resource", uri.as_str().as_bytes()))?;
            *self.left_out.paths.entry(path.clone()).or_default() += 1;
            record.sets.iter().for_each(|set| *self.left_out.sets.entry(set).or_default() += 1);
        }

        let mut files = Vec::with_capacity(now_here.len());
        let mut newest = if is_folder { self.children.get(&path).and_then(|children| children.newest) } else { None };
        let folder_newest = newest.unwrap_or(now);
        for (index, (uri, with_uri, changed, updated)) in now_here.into_iter().enumerate() {
            let sense = || damaged("resource", uri.as_str().as_bytes());
            let record = ResourceRecord::decode(&with_uri).ok_or_else(sense)?;
            let size = record.size();
            totals.files += 1;
            totals.octets = totals.octets.saturating_add(size.unwrap_or(0));
            totals.unsized_files += u64::from(size.is_none());
            newest = newest.max(Some(record.lastmod.or(changed).unwrap_or(now)));
            let settled = settled_name(name, index, is_folder, &uri);
            let plain = settled == name;
            let mut resource = Vec::with_capacity(with_uri.len());
            let by_rule = path_of_record(self.naming, &uri, &record, &self.catalog.symbols).ok_or_else(sense)?.1;
            let gives_back = plain && by_rule;
            record.push_with_uri((!gives_back).then_some(uri.as_str()), &mut resource);
            files.push(NewFile { name: settled.into_owned(), plain, resource, changed, updated });
        }
        let folder_goes = folder_before.is_some() && !is_folder;
        totals.folders = (totals.folders + u64::from(is_folder)).saturating_sub(u64::from(folder_before.is_some()));

        // What the folder above loses and gains.
        let names_now = files.iter().map(|file| file.name.as_bytes()).chain(is_folder.then_some(name.as_bytes()));
        let names_now: HashSet<&[u8]> = names_now.collect();
        let gone: Vec<Vec<u8>> =
            before.iter().map(|old| old.name.clone()).filter(|old| !names_now.contains(&old[..])).collect();
        let were: HashSet<&[u8]> = before.iter().map(|old| &old.name[..]).collect();
        let come = names_now.iter().filter(|name| !were.contains(**name)).count() as u64;
        if !above.is_empty() && (come > 0 || !gone.is_empty()) {
            self.due.insert((depth(above), above.to_owned()), ());
            let children = self.children.entry(above.to_owned()).or_default();
            children.gone.extend(gone);
            children.come += come;
            children.newest = children.newest.max(newest);
        }
        before.retain(|old| !(old.is_folder && is_folder));
        Ok(Group { path, before, folder: is_folder.then_some(folder_newest), folder_goes, files })
    }

    /// The resources whose path by rule is `path`, in the revision before.
    fn members(&mut self, path: &str) -> Result<Vec<Member<'o>>, CatalogError> {
        let (above, name) = split(path);
        let Some(parent) = self.folder(above)? else { return Ok(Vec::new()) };
        let mut members = Vec::new();
        for settled in [name.to_owned(), beside_folder(name)] {
            if let Some((_, node)) = self.store.named(self.old, parent, settled.as_bytes())?
                && node.kind == Kind::File
            {
                let sense = || damaged("resource", node.name);
                let resource = self.store.inode(self.old, node.ino)?.ok_or_else(sense)?.resource;
                let record = ResourceRecord::decode(resource).ok_or_else(sense)?;
                let full = if above.is_empty() { settled.clone() } else { format!("{above}/{settled}") };
                let uri = uri_of(&record, &full, self.naming).ok_or_else(sense)?;
                members.push(Member { uri, node, resource });
            }
        }
        let prefix = displaced_prefix(path);
        let range = (Bound::Included(&prefix[..]), Bound::Unbounded);
        for pair in self.store.displaced.range(self.old, &range)? {
            let (key, sealed) = pair?;
            if !key.starts_with(&prefix) {
                break;
            }
            let sense = || damaged("sense", key);
            let uri = std::str::from_utf8(unseal(key, sealed)?).map_err(|_| sense())?;
            let uri = Uri::parse(uri).map_err(|_| sense())?;
            let located = locate(self.store, self.old, self.naming, &uri)?.ok_or_else(sense)?;
            members.push(Member { uri, node: located.node, resource: located.resource });
        }
        Ok(members)
    }

    /// Whether a folder of the revision before holds anything but what goes.
    fn has_others(&self, folder: Option<u64>, children: &Children) -> Result<bool, CatalogError> {
        let Some(folder) = folder else { return Ok(false) };
        for child in self.store.children(self.old, folder, 0)? {
            let (_, node) = child?;
            if !children.gone.contains(node.name) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn folder(&mut self, path: &str) -> Result<Option<u64>, CatalogError> {
        if let Some(known) = self.folders.get(path) {
            return Ok(*known);
        }
        let found = folder(self.store, self.old, path)?;
        self.folders.insert(path.to_owned(), found);
        Ok(found)
    }
}

/// The number of segments.
fn depth(path: &str) -> usize {
    1 + path.bytes().filter(|octet| *octet == b'/').count()
}
