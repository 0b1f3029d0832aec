//! Diff and merge: a new statement of what exists becomes one commit and the invalidations it means.
//!
//! A [`Baseline`] sorts what it is given by (depth, path), each folder as a marker beside the files. Only then does it walk
//! the sorted stream and the current revision together, folder by folder (`merge`), and writes what differs
//! (`write`). What makes a new content version, and its times, is decided in `version`.

pub mod changes;
mod merge;
mod version;
mod write;

use super::octets::{NUMBER_LIMIT, Octets, damaged, push_time};
use super::path::disambiguated;
use super::record::{ResourceRecord, push_resource};
use super::sorter::{RunLimits, Sorted, Sorter};
use super::store::{ROOT, Store, ino_key};
use super::{Catalog, CatalogError, Invalidation, Kind, Naming};
use crate::document::{Entry, Timestamp, Uri};
use fuser::INodeNo;
use std::borrow::Cow;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use write::{Numbers, Writer};

/// The longest chain of folders and file. A path with more segments is cut to this many and its last one
/// disambiguated: the kernel's own limit on paths leaves little more than names of one octet at such depths.
pub(super) const DEEPEST: usize = 255;

/// More invalidations of names and attributes than this become one [`Invalidation::Everything`].
const MOST_INVALIDATIONS: usize = 20_000;

/// A time later than all: a file without `lastmod` is as new as the moment that it is first seen.
const FIRST_SEEN: Timestamp = Timestamp { seconds: i64::MAX, nanos: 0 };

/// First octet of a sorted value: what the key's path is.
mod tag {
    /// A folder; the newest `lastmod` beneath follows.
    pub const FOLDER: u8 = 0;
    /// A file; its resource follows.
    pub const FILE: u8 = 1;
}

/// A complete statement of what exists, as it streams in; dropped without commit it leaves no trace.
pub struct Baseline<'c> {
    catalog: &'c Catalog,
    naming: Naming,
    sorter: Sorter,
    folders: OpenFolders,
    path: String,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// The folders above the entry added last. A folder's marker is written when the entries leave it, so that it carries the
/// newest time of what came by.
struct OpenFolders {
    /// The path of the innermost one, segments separated by NUL.
    path: Vec<u8>,
    /// For each, outermost first: the end of its path, and the newest time beneath. The first is the root.
    stack: Vec<(usize, Option<Timestamp>)>,
}

/// What a commit did.
#[derive(Debug)]
pub struct Committed {
    /// Number of the new revision; the old one's where the tree did not change.
    pub revision: u64,
    /// Names that did not exist before.
    pub created: u64,
    /// Names with new content (a new inode).
    pub updated: u64,
    /// Same content, other metadata.
    pub touched: u64,
    /// Names gone.
    pub deleted: u64,
    /// What the kernel must be told, after the commit.
    pub invalidations: Vec<Invalidation>,
}

impl<'c> Baseline<'c> {
    pub(super) fn new(catalog: &'c Catalog, naming: Naming) -> Baseline<'c> {
        Baseline::with_limits(catalog, naming, RunLimits::default())
    }

    pub(super) fn with_limits(catalog: &'c Catalog, naming: Naming, limits: RunLimits) -> Baseline<'c> {
        Baseline {
            catalog,
            naming,
            sorter: Sorter::new(&catalog.spill_folder, limits),
            folders: OpenFolders { path: Vec::new(), stack: vec![(0, None)] },
            path: String::new(),
            key: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Adds one entry of a list. Order does not matter; of several for one URI the latest `lastmod`, else the last added counts.
    pub fn add(&mut self, entry: &Entry) -> Result<(), CatalogError> {
        let by_rule = self.naming.path_into(&entry.loc, entry.media_type.as_deref(), &mut self.path);
        let (path, whole) = within_depth(&self.path, &entry.loc);

        self.key.clear();
        self.key.push(0);
        self.key.extend_from_slice(path.as_bytes());
        let mut depth = 1;
        let mut folder = 0;
        for (at, octet) in self.key[1..].iter_mut().enumerate() {
            if *octet == b'/' {
                *octet = 0;
                depth += 1;
                folder = at;
            }
        }
        self.key[0] = depth;

        self.folders.enter(&self.key[1..1 + folder], &mut self.sorter)?;
        self.folders.see(entry.lastmod.unwrap_or(FIRST_SEEN));

        self.value.clear();
        self.value.push(tag::FILE);
        push_resource(&mut self.value, entry, !(by_rule && whole), &self.catalog.symbols);
        self.sorter.add(&self.key, &self.value)
    }

    /// Merges with the current revision and commits, in one transaction with `position`.
    ///
    /// # Errors
    /// The tree stays as it was. After [`CatalogError::Damaged`] the next baseline builds the store anew, whatever is in the old
    /// one, so the same baseline given once more will do.
    ///
    /// Where the tree is the same nothing is written but, if they differ, `at` and `position`. The first revision of a
    /// catalog has no invalidations: nothing was shown before.
    pub fn commit(mut self, at: Option<Timestamp>, position: &[u8]) -> Result<Committed, CatalogError> {
        let newest = self.folders.close(&mut self.sorter)?;
        let sorted = self.sorter.finish()?;
        let _writer = self.catalog.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let statement = merge::Statement { naming: &self.naming, newest, at, position };
        if self.catalog.distrusted.load(Ordering::Acquire) {
            return rebuild(self.catalog, sorted, statement);
        }
        let committed = merge::merge(self.catalog, &self.catalog.store(), sorted, statement, None);
        if let Err(CatalogError::Damaged(_)) = committed {
            self.catalog.distrust();
        }
        committed
    }
}

/// The path, cut to [`DEEPEST`] segments, and whether it was left whole.
fn within_depth<'p>(path: &'p str, uri: &Uri) -> (Cow<'p, str>, bool) {
    match path.match_indices('/').nth(DEEPEST - 2) {
        Some((at, _)) if path[at + 1..].contains('/') => {
            let last = path.rsplit('/').next().unwrap_or_default();
            (format!("{}/{}", &path[..at], disambiguated(last, uri)).into(), false)
        }
        _ => (path.into(), true),
    }
}

impl OpenFolders {
    /// Leaves the folders that do not lie on the way to `path`, and enters those that do.
    fn enter(&mut self, path: &[u8], sorter: &mut Sorter) -> Result<(), CatalogError> {
        if path == self.path {
            return Ok(());
        }
        while !self.innermost_holds(path) {
            self.leave(sorter)?;
        }
        let entered = self.path.len();
        self.path.extend_from_slice(&path[entered..]);
        for at in entered + 1..=path.len() {
            if at == path.len() || path[at] == 0 {
                self.stack.push((at, None));
            }
        }
        Ok(())
    }

    fn innermost_holds(&self, path: &[u8]) -> bool {
        let end = self.path.len();
        path.starts_with(&self.path) && (end == 0 || path.len() == end || path[end] == 0)
    }

    /// An entry of this time lies in the innermost.
    fn see(&mut self, time: Timestamp) {
        if let Some((_, newest)) = self.stack.last_mut() {
            *newest = (*newest).max(Some(time));
        }
    }

    fn leave(&mut self, sorter: &mut Sorter) -> Result<(), CatalogError> {
        // The root, whose path is empty, holds every path and is never left.
        let Some((_, newest)) = self.stack.pop() else { return Ok(()) };
        let depth = self.stack.len() as u8;
        let mut key = vec![depth];
        key.extend_from_slice(&self.path);
        let mut value = vec![tag::FOLDER];
        push_time(&mut value, newest.unwrap_or(FIRST_SEEN));
        sorter.add(&key, &value)?;
        if let Some((end, above)) = self.stack.last_mut() {
            *above = (*above).max(newest);
            self.path.truncate(*end);
        }
        Ok(())
    }

    /// Leaves all but the root; the newest time of everything, `None` where there is nothing.
    fn close(&mut self, sorter: &mut Sorter) -> Result<Option<Timestamp>, CatalogError> {
        while self.stack.len() > 1 {
            self.leave(sorter)?;
        }
        Ok(self.stack.first().and_then(|(_, newest)| *newest))
    }
}

/// Builds the tree into an empty store, which then takes the place of the damaged one: every inode and entry id is new,
/// the root's excepted, for the kernel may still know the old ones.
fn rebuild(catalog: &Catalog, sorted: Sorted, statement: merge::Statement<'_>) -> Result<Committed, CatalogError> {
    let damaged = catalog.store();
    let store = Store::empty(&catalog.spill_folder)?;
    let mut committed = merge::merge(catalog, &store, sorted, statement, Some(last_numbers(&damaged)))?;
    committed.invalidations = vec![Invalidation::Everything, Invalidation::Folder(INodeNo(ROOT))];
    catalog.replace_store(store)?;
    catalog.distrusted.store(false, Ordering::Release);
    if let Err(error) = catalog.forget_crash() {
        tracing::warn!(%error, "the new store will be checked at the next mount");
    }
    Ok(committed)
}

/// The numbers that a damaged store may have given: those of its revision, else half of all.
fn last_numbers(store: &Store) -> Numbers {
    let half = NUMBER_LIMIT / 2;
    let Ok(txn) = store.env.read_txn() else { return Numbers { next_ino: half, next_entry: half, ..Numbers::FIRST } };
    match store.revision(&txn) {
        Ok(Some(revision)) => Numbers::from(&revision),
        Ok(None) => Numbers::FIRST,
        Err(_) => Numbers { next_ino: half, next_entry: half, ..Numbers::FIRST },
    }
}

/// The newest time that a folder's marker carries.
fn marker_time(mut octets: Octets<'_>) -> Option<Timestamp> {
    octets.time()
}

/// Drops the records of the orphans that the kernel has forgotten. The caller holds `catalog.writer`.
pub(super) fn drop_forgotten(catalog: &Catalog) -> Result<(), CatalogError> {
    let store = catalog.store();
    let mut writer = Writer::new(catalog, &store, Numbers::FIRST, true, version::now());
    writer.drop_forgotten()?;
    writer.commit_bare()
}

/// What a renewed inode keeps of its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewal {
    /// All of it.
    AsPublished,
    /// All but length and digests.
    Unpublished,
}

/// See [`Catalog::renew`].
pub(super) fn renew(catalog: &Catalog, ino: INodeNo, renewal: Renewal) -> Result<Vec<Invalidation>, CatalogError> {
    let _writer = catalog.writer.lock().unwrap_or_else(PoisonError::into_inner);
    let store = catalog.store();
    let old = store.env.read_txn()?;
    let Some(revision) = store.revision(&old)? else { return Ok(Vec::new()) };
    let Some((place, node)) = store.inode_entry(&old, ino.0)? else { return Ok(Vec::new()) };
    if node.kind == Kind::Folder || ino.0 == ROOT {
        return Ok(Vec::new());
    }
    let naming = store.naming(&old)?;
    let mut writer = Writer::new(catalog, &store, Numbers::from(&revision), true, version::now());
    let mtime = version::later_than(node.mtime, writer.now);
    let mut renewed = version::renewed(&node, mtime);
    let mut totals = revision.totals;
    let mut stripped = Vec::new();
    let resource = match renewal {
        Renewal::AsPublished => place.resource,
        Renewal::Unpublished => {
            let sense = || damaged("resource", &ino_key(ino.0));
            let record = ResourceRecord::decode(place.resource).ok_or_else(sense)?;
            record.push_unpublished(place.resource, &mut stripped).ok_or_else(sense)?;
            renewed.freshness = ResourceRecord::decode(&stripped).ok_or_else(sense)?.freshness();
            if let Some(size) = renewed.size.take() {
                totals.octets = totals.octets.saturating_sub(size);
                totals.unsized_files += 1;
            }
            &stripped
        }
    };
    writer.replace(&old, &naming, (place.parent, place.entry), &node, renewed, resource)?;
    writer.settle_folders(&old)?;
    let record = writer.next_revision(revision.at, totals);
    writer.put_revision(&record)?;
    Ok(writer.commit()?.invalidations)
}
