//! One revision as readers see it.

use super::held;
use super::index::Current;
use super::journal::Row;
use super::naming::locate::locate;
use super::store::codec::{Decoder, damaged};
use super::store::keys::{ino_key, statement_key, statement_set};
use super::store::record::{InodeRecord, NodeRecord, OrphanRecord, ResourceRecord};
use super::store::{ROOT, Table, meta};
use super::{
    Catalog, CatalogError, EntryId, HeldDeletion, Inode, Journaled, Name, Naming, Node, Resource, Revision, SetId,
};
use crate::document::{Change, Timestamp, Uri};
use crate::platform::lmdb::Reading;
use arc_swap::Guard;
use fuser::INodeNo;
use std::mem::ManuallyDrop;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// One revision, for one operation: take it, use it, drop it. Any number may exist at a time, on any threads; none
/// waits for a commit.
pub struct Snapshot<'c> {
    catalog: &'c Catalog,
    /// There until this is dropped.
    txn: ManuallyDrop<Reading>,
    /// Something failed in the transaction: it is not used again.
    failed: AtomicBool,
    current: Guard<Arc<Current>>,
    /// The naming of this revision, read at first use.
    naming: OnceLock<Naming>,
}

/// An inode as its store holds it.
struct Found<'t> {
    node: NodeRecord<'t>,
    parent: u64,
    /// `None` for the root, and for an orphan.
    entry: Option<u64>,
    resource: &'t [u8],
}

impl<'c> Snapshot<'c> {
    pub(super) fn new(catalog: &'c Catalog) -> Result<Snapshot<'c>, CatalogError> {
        let current = catalog.current.load();
        let txn = ManuallyDrop::new(current.store.readers.take(&current.store.env)?);
        Ok(Snapshot { catalog, txn, failed: AtomicBool::new(false), current, naming: OnceLock::new() })
    }

    fn txn(&self) -> &Reading {
        &self.txn
    }

    /// The naming that this revision was made with. There must be one.
    fn known_naming(&self) -> Result<&Naming, CatalogError> {
        if let Some(naming) = self.naming.get() {
            return Ok(naming);
        }
        let naming = self.current.store.naming(self.txn())?;
        Ok(self.naming.get_or_init(|| naming))
    }

    /// Reads something. Damage found on the way is reported to the catalog, unless its store was replaced meanwhile.
    fn read<T>(&self, read: impl FnOnce() -> Result<T, CatalogError>) -> Result<T, CatalogError> {
        let result = read();
        if let Err(error) = &result {
            self.failed.store(true, Ordering::Relaxed);
            if error.is_damage() && Arc::ptr_eq(&self.current.store, &self.catalog.store()) {
                self.catalog.distrust();
            }
        }
        result
    }

    /// The node at `name` in `parent`.
    pub fn lookup(&self, parent: INodeNo, name: &[u8]) -> Result<Option<Node>, CatalogError> {
        self.read(|| Ok(self.current.store.named(self.txn(), parent.0, name)?.map(|(_, record)| record.node())))
    }

    /// What `answer` makes of an inode, orphans included.
    fn inode_as<T>(
        &self,
        ino: INodeNo,
        answer: impl FnOnce(Found<'_>) -> Result<T, CatalogError>,
    ) -> Result<Option<T>, CatalogError> {
        let Current { store, previous } = &**self.current;
        let row = &mut Vec::new();
        self.read(|| {
            if let Some((place, node)) = store.inode_entry(self.txn(), ino.0)? {
                let entry = (ino.0 != ROOT).then_some(place.entry);
                return answer(Found { node, parent: place.parent, entry, resource: place.resource }).map(Some);
            }
            let orphan = match (store.orphan(self.txn(), ino.0)?, previous) {
                (Some(orphan), _) => orphan,
                (None, Some(previous)) if previous.push_orphan(ino.0, row)? => {
                    OrphanRecord::decode(row).ok_or_else(|| damaged("orphan", &ino_key(ino.0)))?
                }
                _ => return Ok(None),
            };
            answer(Found { node: orphan.node, parent: orphan.parent, entry: None, resource: orphan.resource }).map(Some)
        })
    }

    /// The node of an inode, orphans included.
    pub fn attributes(&self, ino: INodeNo) -> Result<Option<Node>, CatalogError> {
        self.inode_as(ino, |found| Ok(found.node.node()))
    }

    /// An inode and its place, orphans included.
    pub fn inode(&self, ino: INodeNo) -> Result<Option<Inode>, CatalogError> {
        self.inode_as(ino, |Found { node, parent, entry, .. }| {
            let folder = INodeNo(parent);
            let name = entry.map(|entry| Name { folder, entry: EntryId(entry), name: node.name.into() });
            let former = (name.is_none() && ino.0 != ROOT).then(|| (folder, node.name.into()));
            Ok(Inode { node: node.node(), name, former })
        })
    }

    /// Calls `visit` for the children of `parent` whose entry id is greater than `after`, in their order, until it
    /// answers `false`. No allocation per child.
    pub fn children(
        &self,
        parent: INodeNo,
        after: EntryId,
        visit: &mut dyn FnMut(EntryId, &[u8], Node) -> bool,
    ) -> Result<(), CatalogError> {
        self.read(|| {
            for child in self.current.store.children(self.txn(), parent.0, after.0)? {
                let (id, record) = child?;
                if !visit(EntryId(id), record.name, record.node()) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// The resource behind a file, orphans included; `None` for folders.
    pub fn resource(&self, ino: INodeNo) -> Result<Option<Resource>, CatalogError> {
        self.read_resource(ino, None)
    }

    /// [`Snapshot::resource`] of the file at `path`, for a caller that has its path.
    pub fn resource_at(&self, ino: INodeNo, path: &str) -> Result<Option<Resource>, CatalogError> {
        self.read_resource(ino, Some(path))
    }

    /// Whether a file and the one at the same path of another catalog say the same of their resource's URI and content.
    /// `false` also where that must be looked at more closely.
    pub fn says_the_same(&self, ino: INodeNo, other: &Snapshot<'_>, other_ino: INodeNo) -> Result<bool, CatalogError> {
        let (ours, theirs) = (self.record(ino)?, other.record(other_ino)?);
        let (Some(ours), Some(theirs)) = (ours, theirs) else { return Ok(false) };
        let encoding = |of: &Snapshot<'_>, record: &ResourceRecord<'_>| {
            record.encoding.and_then(|encoding| of.catalog.symbols.resolve(encoding))
        };
        Ok((ours.https, ours.uri, ours.lastmod, ours.length)
            == (theirs.https, theirs.uri, theirs.lastmod, theirs.length)
            && ours.digests() == theirs.digests()
            && encoding(self, &ours) == encoding(other, &theirs)
            && self.known_naming()? == other.known_naming()?)
    }

    /// The record of a file that has a name.
    fn record(&self, ino: INodeNo) -> Result<Option<ResourceRecord<'_>>, CatalogError> {
        self.read(|| match self.current.store.inode(self.txn(), ino.0)?.filter(|place| !place.resource.is_empty()) {
            Some(place) => {
                ResourceRecord::decode(place.resource).ok_or_else(|| damaged("resource", &ino_key(ino.0))).map(Some)
            }
            None => Ok(None),
        })
    }

    /// `path` is looked up where it is not given.
    fn read_resource(&self, ino: INodeNo, path: Option<&str>) -> Result<Option<Resource>, CatalogError> {
        let sense = || damaged("resource", &ino_key(ino.0));
        let resource = self.inode_as(ino, |found| {
            if found.resource.is_empty() {
                return Ok(None);
            }
            let record = ResourceRecord::decode(found.resource).ok_or_else(sense)?;
            let uri = match (record.uri, path) {
                (Some(uri), _) => Uri::parse(uri).map_err(|_| sense())?,
                (None, Some(path)) => self.known_naming()?.uri(path, record.https).ok_or_else(sense)?,
                (None, None) => self.current.store.uri_of(self.txn(), ino.0, &record, self.known_naming()?)?,
            };
            record.resource(uri, &self.catalog.symbols).ok_or_else(sense).map(Some)
        });
        Ok(resource?.flatten())
    }

    /// Number and sums of this revision; `None` before the first commit.
    pub fn revision(&self) -> Result<Option<Revision>, CatalogError> {
        let Some(record) = self.read(|| self.current.store.revision(self.txn()))? else { return Ok(None) };
        Ok(Some(Revision { number: record.number, committed: record.committed, at: record.at, totals: record.totals }))
    }

    /// What `sync` committed with this revision: its position, in its own format; `None` before the first commit.
    pub fn position(&self) -> Result<Option<Box<[u8]>>, CatalogError> {
        self.read(|| Ok(self.current.store.meta(self.txn(), meta::POSITION)?.map(Box::from)))
    }

    /// `at` of the newest list in this revision: [`Snapshot::revision`] without all else.
    pub fn at(&self) -> Result<Option<Timestamp>, CatalogError> {
        self.read(|| Ok(self.current.store.revision(self.txn())?.and_then(|record| record.at)))
    }

    /// The naming that this revision was made with; `None` before the first commit.
    pub fn naming(&self) -> Result<Option<Naming>, CatalogError> {
        self.read(|| match self.current.store.revision(self.txn())? {
            Some(_) => self.current.store.naming(self.txn()).map(Some),
            None => Ok(None),
        })
    }

    /// The path below the root, segments joined by `/`, empty for the root; `None` for an orphan or an unknown inode.
    pub fn path(&self, ino: INodeNo) -> Result<Option<String>, CatalogError> {
        self.read(|| self.current.store.path_of(self.txn(), ino.0))
    }

    /// The node at `path`, relative to the root; empty segments do not count, so `/` and `` are the root.
    pub fn find(&self, path: &str) -> Result<Option<Node>, CatalogError> {
        let mut node = self.attributes(INodeNo(ROOT))?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let Some(folder) = node else { return Ok(None) };
            node = self.lookup(folder.ino, name.as_bytes())?;
        }
        Ok(node)
    }

    /// The file of a resource: at its path by rule, next to a folder of the same name, or with a digest.
    pub fn locate(&self, uri: &Uri) -> Result<Option<Node>, CatalogError> {
        self.read(|| {
            let Some(_) = self.current.store.revision(self.txn())? else { return Ok(None) };
            Ok(locate(&self.current.store, self.txn(), self.known_naming()?, uri)?.map(|located| located.node.node()))
        })
    }

    /// Calls `visit` for every file whose inode is greater than `after`, ascending, with its path and resource, until it
    /// answers `false`. A snapshot held for long keeps old pages from reuse: visit some ten thousand, and go on with another.
    pub fn files(
        &self,
        after: Option<INodeNo>,
        visit: &mut dyn FnMut(INodeNo, &str, Resource) -> bool,
    ) -> Result<(), CatalogError> {
        let store = &self.current.store;
        self.read(|| {
            let first = ino_key(after.map_or(ROOT, |ino| ino.0));
            for row in store.rows(self.txn(), store.inodes, behind(&first))? {
                let (key, record) = row?;
                let sense = || damaged("sense", key);
                if InodeRecord::decode(record).ok_or_else(sense)?.resource.is_empty() {
                    continue;
                }
                let ino = ino_of(key)?;
                let path = store.path_of(self.txn(), ino.0)?.ok_or_else(sense)?;
                let resource = self.read_resource(ino, Some(&path))?.ok_or_else(sense)?;
                if !visit(ino, &path, resource) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// The sets of this revision, ascending.
    pub fn sets(&self) -> Result<Vec<SetId>, CatalogError> {
        self.read(|| Ok(self.current.store.sets(self.txn())?.iter().map(|record| record.set).collect()))
    }

    /// How many files are members of a set.
    pub fn set_files(&self, set: SetId) -> Result<u64, CatalogError> {
        self.read(|| Ok(self.current.store.sets(self.txn())?.files(set)))
    }

    /// The last change of a resource in a set, unless the set's list speaks for a later time.
    pub fn journaled(&self, set: SetId, uri: &Uri) -> Result<Option<Journaled>, CatalogError> {
        let (store, key) = (&self.current.store, statement_key(set, uri));
        self.read(|| {
            let Some(row) = store.get(self.txn(), store.journal, &key)? else { return Ok(None) };
            let row = Row::decode(row).ok_or_else(|| damaged("sense", &key))?;
            Ok(Some(Journaled { change: row.change, time: row.time, datetime: row.shown }))
        })
    }

    /// How the last change that the journal holds of a resource stands to `said`: later, this very one, earlier. `None` where
    /// there is none, or another one of the same time.
    pub fn compare_journal(&self, said: &super::Statement<'_>) -> Result<Option<std::cmp::Ordering>, CatalogError> {
        self.read(|| {
            let key = statement_key(said.set, &said.entry.loc);
            let Some(held) = self.current.store.get(self.txn(), self.current.store.journal, &key)? else {
                return Ok(None);
            };
            let row = Row::decode(held).ok_or_else(|| damaged("sense", &key))?;
            if row.time != said.time {
                return Ok(Some(row.time.cmp(&said.time)));
            }
            let change = if row.is_left_out { Change::Deleted } else { said.change };
            let mut same = Vec::new();
            Row::encode(&super::Statement { change, ..*said }, &self.catalog.symbols, &mut same);
            Ok((held == same).then_some(std::cmp::Ordering::Equal))
        })
    }

    /// Calls `visit` for every change that the journal holds, set by set, with what it says of the resource (of a deletion the
    /// URI alone), until it answers `false`. What is there and was left out by choice is no deletion here.
    pub fn journal(&self, visit: &mut dyn FnMut(SetId, Journaled, Resource) -> bool) -> Result<(), CatalogError> {
        let store = &self.current.store;
        let decode = |key: &[u8], row: &[u8]| {
            let row = Row::decode(row)?;
            let (record, uri) = row.record()?;
            let change = if row.is_left_out { Change::Updated } else { row.change };
            let journaled = Journaled { change, time: row.time, datetime: row.shown };
            Some((statement_set(key)?, journaled, record.resource(uri, &self.catalog.symbols)?))
        };
        self.scan(store.journal, decode, &mut |(set, journaled, resource)| visit(set, journaled, resource))
    }

    /// Calls `visit` for every deletion that is held back, set by set, until it answers `false`.
    pub fn held(&self, visit: &mut dyn FnMut(HeldDeletion) -> bool) -> Result<(), CatalogError> {
        self.scan(self.current.store.held, held::decode, visit)
    }

    /// Calls `visit` for each row of a table, decoded, until it answers `false`.
    fn scan<T>(
        &self,
        table: Table,
        decode: impl Fn(&[u8], &[u8]) -> Option<T>,
        visit: &mut dyn FnMut(T) -> bool,
    ) -> Result<(), CatalogError> {
        self.read(|| {
            for row in self.current.store.rows(self.txn(), table, (Bound::Unbounded, Bound::Unbounded))? {
                let (key, record) = row?;
                if !visit(decode(key, record).ok_or_else(|| damaged("sense", key))?) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// How many deletions are held back.
    pub fn held_count(&self) -> Result<u64, CatalogError> {
        self.read(|| Ok(self.current.store.held.len(self.txn())?))
    }

    /// How many of them are of this set.
    pub fn held_of(&self, set: SetId) -> Result<u64, CatalogError> {
        self.read(|| {
            let mut rows = self.current.store.held.prefix_iter(self.txn(), &set.0.to_be_bytes())?;
            Ok(rows.try_fold(0, |count, row| row.map(|_| count + 1))?)
        })
    }

    /// Up to `most` inodes behind `after`, ascending, that have lost their names since the catalog was opened and were not dropped yet.
    pub fn orphans(&self, after: INodeNo, most: usize) -> Result<Vec<INodeNo>, CatalogError> {
        let Current { store, previous } = &**self.current;
        self.read(|| {
            let rows = store.rows(self.txn(), store.orphans, behind(&ino_key(after.0)))?;
            let mut orphans: Vec<INodeNo> = rows.take(most).map(|row| ino_of(row?.0)).collect::<Result<_, _>>()?;
            if let Some(previous) = previous {
                orphans.extend(previous.orphans(store, self.txn(), after, most)?);
                orphans.sort_unstable();
                orphans.truncate(most);
            }
            Ok(orphans)
        })
    }
}

/// The range of all keys behind `key`.
fn behind(key: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Excluded(key), Bound::Unbounded)
}

fn ino_of(key: &[u8]) -> Result<INodeNo, CatalogError> {
    Decoder(key).number().map(INodeNo).ok_or_else(|| damaged("key", key))
}

impl Catalog {
    /// The current revision; `None` before the first commit.
    pub fn revision(&self) -> Result<Option<Revision>, CatalogError> {
        self.snapshot()?.revision()
    }

    /// The current revision for one operation. Short: a snapshot held keeps old pages from reuse.
    pub fn snapshot(&self) -> Result<Snapshot<'_>, CatalogError> {
        Snapshot::new(self)
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        // SAFETY: it is taken here alone, and nothing reads it after this.
        let txn = unsafe { ManuallyDrop::take(&mut self.txn) };
        if !self.failed.load(Ordering::Relaxed) {
            self.current.store.readers.give_back(&self.current.store.env, txn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{commit, entry, open, tree};

    #[test]
    fn an_orphan_has_its_former_place_in_either_store() {
        for most_in_place in [u64::MAX, 0] {
            let folder = tempfile::tempdir().unwrap();
            let catalog = open(folder.path());
            commit(&catalog, &[entry("http://h/a/b"), entry("http://h/c")]);
            let before = tree(&catalog);
            catalog.write_in_place(most_in_place);
            commit(&catalog, &[entry("http://h/c")]);
            assert_eq!(catalog.previous().is_some(), most_in_place == 0);

            let orphan = before["a/b"].node.ino;
            let snapshot = catalog.snapshot().unwrap();
            let inode = snapshot.inode(orphan).unwrap().unwrap();

            assert_eq!((inode.node.ino, inode.name), (orphan, None));
            assert_eq!(inode.former, Some((before["a"].node.ino, Box::from(&b"b"[..]))));
            assert_eq!(snapshot.resource(orphan).unwrap(), before["a/b"].resource);
        }
    }
}
