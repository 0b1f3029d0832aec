//! The walk over the sorted statement and the current revision, folder by folder, level by level.

use super::super::octets::{Octets, damaged};
use super::super::path::{beside_folder, disambiguated};
use super::super::record::{NodeRecord, ResourceRecord, RevisionRecord};
use super::super::sorter::Sorted;
use super::super::store::{ROOT, Store, meta, name_hash};
use super::super::{Catalog, CatalogError, Freshness, Kind, Naming, Totals, snapshot};
use super::write::{Numbers, Writer};
use super::{Committed, marker_time, tag, version};
use crate::document::{Timestamp, Uri};
use heed::RoTxn;
use std::collections::{HashSet, VecDeque};

/// New names of one folder that are kept in memory before they are entered: 16 octets each.
const NAMES_AT_ONCE: usize = 1 << 20;

/// What is stated beside the paths.
#[derive(Clone, Copy)]
pub(super) struct Statement<'a> {
    pub naming: &'a Naming,
    /// The newest `lastmod` of all.
    pub newest: Option<Timestamp>,
    pub at: Option<Timestamp>,
    pub position: &'a [u8],
}

/// Makes the tree of `store` that of `sorted`, and commits. An empty store goes on from `numbers`, where there are any.
///
/// The caller holds `catalog.writer`.
pub(super) fn merge(
    catalog: &Catalog,
    store: &Store,
    mut sorted: Sorted,
    statement: Statement<'_>,
    numbers: Option<Numbers>,
) -> Result<Committed, CatalogError> {
    let Statement { naming, newest, .. } = statement;
    let old = store.env.read_txn()?;
    let revision = store.revision(&old)?;
    let old_naming = revision.map(|_| store.naming(&old)).transpose()?;
    let numbers = revision.as_ref().map(Numbers::from).or(numbers).unwrap_or(Numbers::FIRST);
    let mut writer = Writer::new(catalog, store, numbers, revision.is_some(), version::now());
    if revision.is_none() {
        writer.create_root(newest.map_or(writer.now, |newest| newest.min(writer.now)))?;
    }
    let mut merge = Merge {
        catalog,
        store,
        old: &old,
        old_naming: old_naming.as_ref().unwrap_or(naming),
        naming,
        same_naming: old_naming.as_ref().is_none_or(|old| old == naming),
        writer,
        folder: Folder::new(ROOT, revision.is_none()),
        folders: VecDeque::new(),
        totals: Totals { folders: 1, ..Totals::default() },
        scratch: Vec::new(),
    };
    merge.walk(&mut sorted)?;
    merge.finish(revision, statement)
}

struct Merge<'o> {
    catalog: &'o Catalog,
    store: &'o Store,
    old: &'o RoTxn<'o>,
    old_naming: &'o Naming,
    naming: &'o Naming,
    same_naming: bool,
    writer: Writer<'o>,
    folder: Folder,
    /// Folders whose children are still to come, as (inode, new in this commit), in the order of the stream.
    folders: VecDeque<(u64, bool)>,
    totals: Totals,
    scratch: Vec<u8>,
}

/// The folder whose children are coming by.
struct Folder {
    ino: u64,
    /// New in this commit: nothing of it is in the revision before.
    fresh: bool,
    /// Entry ids of the revision before that still exist.
    seen: Vec<u64>,
    /// (Hash, entry id) of new names.
    names: Vec<(u64, u64)>,
    /// Names given to settle conflicts, for no other to take.
    settled: HashSet<String>,
}

impl Folder {
    fn new(ino: u64, fresh: bool) -> Folder {
        Folder { ino, fresh, seen: Vec::new(), names: Vec::new(), settled: HashSet::new() }
    }
}

/// Everything that the statement says of one path.
#[derive(Default)]
struct Path {
    /// Depth, then the segments separated by NUL.
    key: Vec<u8>,
    /// Where it is a folder: the newest time beneath.
    folder: Option<Timestamp>,
    /// Where it is a file: a resource for each of its URIs. Only the first `files` count; the others keep their memory
    /// for later paths.
    resources: Vec<Vec<u8>>,
    files: usize,
}

impl Path {
    fn begin(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.folder = None;
        self.files = 0;
    }

    fn take(&mut self, value: &[u8]) -> Result<(), CatalogError> {
        match value.split_first() {
            Some((&tag::FILE, resource)) => self.take_resource(resource),
            Some((&tag::FOLDER, time)) => {
                let time = marker_time(Octets(time)).ok_or_else(|| damaged("time", &self.key))?;
                self.folder = self.folder.max(Some(time));
                Ok(())
            }
            _ => Err(damaged("kind", &self.key)),
        }
    }

    /// Of one URI the latest `lastmod` counts, else what was added last. A path has few URIs, however often they are listed.
    fn take_resource(&mut self, resource: &[u8]) -> Result<(), CatalogError> {
        let sense = || damaged("resource", &self.key);
        let new = ResourceRecord::decode(resource).ok_or_else(sense)?;
        let mut place = self.files;
        for (index, known) in self.resources[..self.files].iter().enumerate() {
            let known = ResourceRecord::decode(known).ok_or_else(sense)?;
            if (known.https, known.uri) == (new.https, new.uri) {
                if known.lastmod > new.lastmod {
                    return Ok(());
                }
                place = index;
            }
        }
        if place == self.resources.len() {
            self.resources.push(Vec::new());
        }
        self.files = self.files.max(place + 1);
        self.resources[place].clear();
        self.resources[place].extend_from_slice(resource);
        Ok(())
    }

    /// Depth and path of the folder it lies in, and its name.
    fn split(&self) -> ((u8, &[u8]), &[u8]) {
        let (depth, segments) = self.key.split_first().map_or((0, &[][..]), |(depth, segments)| (*depth, segments));
        match segments.iter().rposition(|octet| *octet == 0) {
            Some(at) => ((depth, &segments[..at]), &segments[at + 1..]),
            None => ((depth, &[]), segments),
        }
    }
}

impl Merge<'_> {
    fn walk(&mut self, sorted: &mut Sorted) -> Result<(), CatalogError> {
        let mut path = Path::default();
        // The folder whose children come by: depth of the children, path. It begins as the root.
        let mut within = (1, Vec::new());
        while let Some((key, value)) = sorted.next()? {
            if key != path.key {
                self.place(&mut path, &mut within)?;
                path.begin(key);
            }
            path.take(value)?;
        }
        self.place(&mut path, &mut within)?;
        self.finish_folder()
    }

    /// Puts one path into the tree.
    fn place(&mut self, path: &mut Path, within: &mut (u8, Vec<u8>)) -> Result<(), CatalogError> {
        if path.key.is_empty() {
            return Ok(());
        }
        let (parent, name) = path.split();
        if parent != (within.0, &within.1) {
            // Each folder holds something, and the stream is sorted by segments: its children come in the order of
            // the folders themselves.
            self.finish_folder()?;
            let (ino, fresh) = self.folders.pop_front().ok_or_else(|| damaged("order", &path.key))?;
            self.folder.ino = ino;
            self.folder.fresh = fresh;
            within.0 = parent.0;
            within.1.clear();
            within.1.extend_from_slice(parent.1);
        }
        if let Some(newest) = path.folder {
            self.place_folder(name, newest)?;
        }
        match &path.resources[..path.files] {
            [] => Ok(()),
            [resource] if path.folder.is_none() && self.folder.settled.is_empty() => {
                self.place_file(name, &path.key[1..], resource)
            }
            resources => self.settle(name, path, resources),
        }
    }

    /// Several resources with one path, or one whose path is a folder too: the same names on every machine, whatever
    /// the order and the history.
    fn settle(&mut self, name: &[u8], path: &Path, resources: &[Vec<u8>]) -> Result<(), CatalogError> {
        let sense = || damaged("path", &path.key);
        let slashed = slashed(&path.key[1..]).ok_or_else(sense)?;
        let name = std::str::from_utf8(name).map_err(|_| sense())?;
        let mut candidates = Vec::with_capacity(resources.len());
        for resource in resources {
            let record = ResourceRecord::decode(resource).ok_or_else(sense)?;
            candidates.push((uri(&record, &slashed, self.naming).ok_or_else(sense)?, record, resource));
        }
        candidates.sort_by(|a, b| a.0.cmp(&b.0));
        for (index, (uri, record, resource)) in candidates.into_iter().enumerate() {
            let taken = path.folder.is_some() || self.folder.settled.contains(name);
            let settled = match index {
                0 if !taken => {
                    self.place_file(name.as_bytes(), &path.key[1..], resource)?;
                    continue;
                }
                0 if path.folder.is_some() => beside_folder(name),
                _ => disambiguated(name, &uri),
            };
            let mut with_uri = std::mem::take(&mut self.scratch);
            with_uri.clear();
            match record.uri {
                Some(_) => with_uri.extend_from_slice(resource),
                None => record.push_with_uri(resource, uri.as_str(), &mut with_uri),
            }
            // The URI stands in the record: the path is not asked for it.
            let placed = self.place_file(settled.as_bytes(), &[], &with_uri);
            self.scratch = with_uri;
            self.folder.settled.insert(settled);
            placed?;
        }
        Ok(())
    }

    fn place_folder(&mut self, name: &[u8], newest: Timestamp) -> Result<(), CatalogError> {
        self.totals.folders += 1;
        let parent = self.folder.ino;
        let now = self.writer.now;
        let (mtime, freshness) = (newest.min(now), Freshness::Listed);
        let node = NodeRecord { ino: 0, kind: Kind::Folder, size: None, mtime, ctime: now, freshness, name };
        let old = self.old;
        let existing = if self.folder.fresh { None } else { self.store.named(old, parent, name)? };
        let folder = match existing {
            Some((entry, before)) => {
                self.folder.seen.push(entry);
                match before.kind {
                    Kind::Folder => (before.ino, false),
                    Kind::File => {
                        (self.writer.replace(old, self.old_naming, (parent, entry), &before, node, &[])?, true)
                    }
                }
            }
            None => (self.create(node, &[])?, true),
        };
        self.folders.push_back(folder);
        Ok(())
    }

    /// `path` is that of the record's URI, segments separated by NUL.
    fn place_file(&mut self, name: &[u8], path: &[u8], resource: &[u8]) -> Result<(), CatalogError> {
        let sense = || damaged("resource", name);
        let new = ResourceRecord::decode(resource).ok_or_else(sense)?;
        let size = new.size();
        self.totals.files += 1;
        self.totals.octets = self.totals.octets.saturating_add(size.unwrap_or(0));
        self.totals.unsized_files += u64::from(size.is_none());

        let parent = self.folder.ino;
        let now = self.writer.now;
        let mtime = new.lastmod.unwrap_or(now);
        let freshness = new.freshness();
        let node = NodeRecord { ino: 0, kind: Kind::File, size, mtime, ctime: now, freshness, name };
        let old = self.old;
        let existing = if self.folder.fresh { None } else { self.store.named(old, parent, name)? };
        let Some((entry, before)) = existing else { return self.create(node, resource).map(|_| ()) };
        self.folder.seen.push(entry);
        let place = (parent, entry);
        if before.kind == Kind::Folder {
            self.writer.replace(old, self.old_naming, place, &before, node, resource)?;
            return Ok(());
        }
        let known = self.store.inode(old, before.ino)?.filter(|known| (known.parent, known.entry) == place);
        let known = known.ok_or_else(sense)?.resource;
        if known == resource && self.same_naming {
            return Ok(());
        }

        let record = ResourceRecord::decode(known).ok_or_else(sense)?;
        // One name and one naming, and a URI that the path gives: one path, so the scheme tells.
        let same_uri = if self.same_naming && record.uri.is_none() == new.uri.is_none() {
            (record.https, record.uri) == (new.https, new.uri)
        } else {
            let old_path = snapshot::path(self.store, old, before.ino)?.ok_or_else(sense)?;
            let new_path = slashed(path).ok_or_else(sense)?;
            let old_uri = uri(&record, &old_path, self.old_naming).ok_or_else(sense)?;
            old_uri == uri(&new, &new_path, self.naming).ok_or_else(sense)?
        };
        if known == resource && same_uri {
            return Ok(());
        }
        if !version::same_version(&record, &new, same_uri, &self.catalog.symbols).ok_or_else(sense)? {
            let mtime = version::mtime(&before, size, new.lastmod, now);
            let node = NodeRecord { mtime, ..node };
            self.writer.replace(old, self.old_naming, place, &before, node, resource)?;
            return Ok(());
        }
        let mtime = if record.lastmod == new.lastmod { before.mtime } else { new.lastmod.unwrap_or(before.mtime) };
        self.writer.touch(place, &before, NodeRecord { size, mtime, freshness, ..before }, resource)
    }

    fn create(&mut self, node: NodeRecord<'_>, resource: &[u8]) -> Result<u64, CatalogError> {
        let parent = self.folder.ino;
        let (ino, entry) = self.writer.create(parent, node, resource)?;
        self.folder.names.push((name_hash(node.name), entry));
        if self.folder.names.len() >= NAMES_AT_ONCE {
            self.writer.put_names(parent, &mut self.folder.names)?;
        }
        if !self.folder.fresh {
            self.writer.name_changed(parent, node.name, None);
            self.writer.folder_changed(parent, self.writer.now, true);
        }
        Ok(ino)
    }

    /// All children have come by: what was not among them goes.
    fn finish_folder(&mut self) -> Result<(), CatalogError> {
        let parent = self.folder.ino;
        if !self.folder.fresh {
            self.folder.seen.sort_unstable();
            let old = self.old;
            for child in self.store.children(old, parent, 0)? {
                let (entry, node) = child?;
                if self.folder.seen.binary_search(&entry).is_err() {
                    self.writer.remove(old, self.old_naming, (parent, entry), &node)?;
                }
            }
        }
        self.writer.put_names(parent, &mut self.folder.names)?;
        self.folder.seen.clear();
        self.folder.settled.clear();
        Ok(())
    }

    fn finish(mut self, revision: Option<RevisionRecord>, statement: Statement<'_>) -> Result<Committed, CatalogError> {
        self.writer.settle_folders(self.old)?;
        let changed = self.writer.changed();
        let next = match &revision {
            Some(before) if !changed => RevisionRecord { at: statement.at, ..*before },
            _ => self.writer.next_revision(statement.at, self.totals),
        };
        if revision != Some(next) {
            self.writer.put_revision(&next)?;
        }
        if self.store.meta(self.old, meta::POSITION)? != Some(statement.position) {
            self.writer.put_position(statement.position)?;
        }
        if revision.is_none() || !self.same_naming {
            self.writer.put_naming(self.naming)?;
        }
        if changed {
            self.writer.put_symbols()?;
            self.writer.drop_forgotten()?;
        }
        self.writer.commit()
    }
}

/// The URI of a record at a path.
fn uri(record: &ResourceRecord<'_>, path: &str, naming: &Naming) -> Option<Uri> {
    match record.uri {
        Some(uri) => Uri::parse(uri).ok(),
        None => naming.uri(path, record.https),
    }
}

/// The path of a sort key's octets, segments joined by `/` instead of NUL.
fn slashed(segments: &[u8]) -> Option<String> {
    let mut path = segments.to_vec();
    path.iter_mut().filter(|octet| **octet == 0).for_each(|octet| *octet = b'/');
    String::from_utf8(path).ok()
}
