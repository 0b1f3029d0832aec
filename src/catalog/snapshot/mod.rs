//! One revision as readers see it.

mod journal;

use super::naming::locate::locate;
use super::store::codec::{damaged, number};
use super::store::keys::ino_key;
use super::store::record::{NamedNode, ResourceRecord};
use super::store::{Lookup, ROOT, TableId, TreeStore, meta};
use super::{Catalog, CatalogError, EntryId, Inode, InodeName, Naming, Node, Resource, Revision};
use crate::document::{Timestamp, Uri};
use crate::platform::ino::Ino;
use crate::platform::lmdb::Reading;
use arc_swap::Guard;
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
    pub(super) store: Guard<Arc<TreeStore>>,
    /// The naming of this revision, read at first use.
    naming: OnceLock<Naming>,
}

impl Snapshot<'_> {
    pub(super) fn txn(&self) -> &Reading {
        &self.txn
    }

    /// The naming that this revision was made with. There must be one.
    fn known_naming(&self) -> Result<&Naming, CatalogError> {
        if let Some(naming) = self.naming.get() {
            return Ok(naming);
        }
        let naming = self.store.naming(self.txn())?;
        Ok(self.naming.get_or_init(|| naming))
    }

    /// Reads something. Damage found on the way is reported to the catalog, unless its store was replaced meanwhile.
    fn read<T>(&self, read: impl FnOnce() -> Result<T, CatalogError>) -> Result<T, CatalogError> {
        let result = read();
        if let Err(error) = &result {
            self.failed.store(true, Ordering::Relaxed);
            if error.is_damage() && Arc::ptr_eq(&self.store, &self.catalog.store()) {
                self.catalog.distrust();
            }
        }
        result
    }

    /// The node at `name` in `parent`.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Option<Node>, CatalogError> {
        self.read(|| Ok(self.store.named(self.txn(), parent.0, name)?.map(|named| named.node.node())))
    }

    /// An inode, and whether it is an orphan.
    fn by_ino(&self, ino: Ino) -> Lookup<(NamedNode<'_>, bool)> {
        self.read(|| match self.store.by_ino(self.txn(), ino.0)? {
            Some(named) => Ok(Some((named, false))),
            None => Ok(self.store.orphan(self.txn(), ino.0)?.map(|orphan| (orphan, true))),
        })
    }

    /// The node of an inode, orphans included.
    pub fn attributes(&self, ino: Ino) -> Result<Option<Node>, CatalogError> {
        Ok(self.by_ino(ino)?.map(|(named, _)| named.node.node()))
    }

    /// An inode with its attributes and name, orphans included.
    pub fn inode(&self, ino: Ino) -> Result<Option<Inode>, CatalogError> {
        let Some((NamedNode { parent, entry, node }, is_orphan)) = self.by_ino(ino)? else { return Ok(None) };
        let (folder, entry, name) = (Ino(parent), EntryId(entry), Box::from(node.name));
        let (name, former) = match is_orphan {
            true => (None, Some((folder, name))),
            false => ((ino.0 != ROOT).then_some(InodeName { folder, entry, name }), None),
        };
        Ok(Some(Inode { node: node.node(), name, former }))
    }

    /// Calls `visit` for the children of `parent` whose entry id is greater than `after`, in their order, until it
    /// answers `false`. No allocation per child.
    pub fn children(
        &self,
        parent: Ino,
        after: EntryId,
        visit: &mut dyn FnMut(EntryId, &[u8], Node) -> bool,
    ) -> Result<(), CatalogError> {
        self.read(|| {
            for child in self.store.children(self.txn(), parent.0, after.0)? {
                let NamedNode { entry, node, .. } = child?;
                if !visit(EntryId(entry), node.name, node.node()) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// The resource behind a file, orphans included; `None` for folders.
    pub fn resource(&self, ino: Ino) -> Result<Option<Resource>, CatalogError> {
        self.read_resource(ino, None)
    }

    /// [`Snapshot::resource`] of the file at `path`, for a caller that has its path.
    pub fn resource_at(&self, ino: Ino, path: &str) -> Result<Option<Resource>, CatalogError> {
        self.read_resource(ino, Some(path))
    }

    /// True if a file and the one at the same path of another catalog say the same of their resource's URI and content; `false` also
    /// where only the resources can decide.
    pub fn says_the_same(&self, ino: Ino, other: &Snapshot<'_>, other_ino: Ino) -> Result<bool, CatalogError> {
        let (ours, theirs) = (self.record(ino)?, other.record(other_ino)?);
        let (Some(ours), Some(theirs)) = (ours, theirs) else { return Ok(false) };
        let says = |record: &ResourceRecord<'_>| (record.https, record.lastmod, record.length, record.digests());
        Ok((ours.uri, ours.encoding, says(&ours)) == (theirs.uri, theirs.encoding, says(&theirs))
            && self.known_naming()? == other.known_naming()?)
    }

    /// The record of a file that has a name.
    fn record(&self, ino: Ino) -> Result<Option<ResourceRecord<'_>>, CatalogError> {
        self.read(|| Ok(self.store.by_ino(self.txn(), ino.0)?.and_then(|named| named.node.resource)))
    }

    /// `path` is looked up where it is not given.
    fn read_resource(&self, ino: Ino, path: Option<&str>) -> Result<Option<Resource>, CatalogError> {
        let Some((NamedNode { node, .. }, _)) = self.by_ino(ino)? else { return Ok(None) };
        let Some(record) = node.resource else { return Ok(None) };
        self.read(|| {
            let corrupt = || damaged("resource", &ino_key(ino.0));
            let uri = match (record.uri, path) {
                (Some(uri), _) => Uri::parse_item(uri).map_err(|_| corrupt())?,
                (None, Some(path)) => self.known_naming()?.uri(path, record.https).ok_or_else(corrupt)?,
                (None, None) => self.store.uri_of(self.txn(), &node, self.known_naming()?)?,
            };
            record.resource(uri).ok_or_else(corrupt).map(Some)
        })
    }

    /// Number and sums of this revision; `None` before the first commit.
    pub fn revision(&self) -> Result<Option<Revision>, CatalogError> {
        let Some(record) = self.read(|| self.store.revision(self.txn()))? else { return Ok(None) };
        Ok(Some(Revision { number: record.number, committed: record.committed, at: record.at, totals: record.totals }))
    }

    /// The position that `sync` committed with this revision, in the format of `sync`; `None` before the first commit.
    pub fn position(&self) -> Result<Option<Box<[u8]>>, CatalogError> {
        self.read(|| Ok(self.store.meta(self.txn(), meta::POSITION)?.map(Box::from)))
    }

    /// The time that this revision speaks for.
    pub fn at(&self) -> Result<Option<Timestamp>, CatalogError> {
        Ok(self.revision()?.and_then(|revision| revision.at))
    }

    /// The naming that this revision was made with; `None` before the first commit.
    pub fn naming(&self) -> Result<Option<Naming>, CatalogError> {
        self.read(|| match self.store.revision(self.txn())? {
            Some(_) => self.store.naming(self.txn()).map(Some),
            None => Ok(None),
        })
    }

    /// The path below the root, segments joined by `/`, empty for the root; `None` for an orphan or an unknown inode.
    pub fn path(&self, ino: Ino) -> Result<Option<String>, CatalogError> {
        self.read(|| self.store.path_of(self.txn(), ino.0))
    }

    /// The node at `path`, relative to the root; empty segments do not count, so `/` and `` are the root.
    pub fn find(&self, path: &str) -> Result<Option<Node>, CatalogError> {
        let mut node = self.attributes(Ino(ROOT))?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let Some(folder) = node else { return Ok(None) };
            node = self.lookup(folder.ino, name.as_bytes())?;
        }
        Ok(node)
    }

    /// The file of a resource: at its path by rule, next to a folder of the same name, or with a digest.
    pub fn locate(&self, uri: &Uri) -> Result<Option<Node>, CatalogError> {
        self.read(|| {
            let Some(_) = self.store.revision(self.txn())? else { return Ok(None) };
            Ok(locate(&self.store, self.txn(), self.known_naming()?, uri)?.map(|located| located.node.node()))
        })
    }

    /// The resource of `uri`, where a file stands for it.
    pub fn resource_of(&self, uri: &Uri) -> Result<Option<Resource>, CatalogError> {
        self.locate(uri)?.map_or(Ok(None), |node| self.resource(node.ino))
    }

    /// Calls `visit` for every file whose inode is greater than `after`, ascending, with its path and resource, until it
    /// answers `false`. A snapshot held for long keeps old pages from reuse: visit some ten thousand, and go on with another.
    pub fn files(
        &self,
        after: Option<Ino>,
        visit: &mut dyn FnMut(Ino, &str, Resource) -> bool,
    ) -> Result<(), CatalogError> {
        self.read(|| {
            let first = ino_key(after.map_or(ROOT, |ino| ino.0));
            for row in self.store.rows(self.txn(), TableId::Inodes, behind(&first))? {
                let ino = ino_of(row?.0)?;
                if self.record(ino)?.is_none() {
                    continue;
                }
                let corrupt = || damaged("content", &ino_key(ino.0));
                let path = self.store.path_of(self.txn(), ino.0)?.ok_or_else(corrupt)?;
                let resource = self.read_resource(ino, Some(&path))?.ok_or_else(corrupt)?;
                if !visit(ino, &path, resource) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Up to `most` inodes behind `after`, ascending, that have lost their names since the catalog was opened and were not dropped yet.
    pub fn orphans(&self, after: Ino, most: usize) -> Result<Vec<Ino>, CatalogError> {
        self.read(|| {
            let rows = self.store.rows(self.txn(), TableId::Orphans, behind(&ino_key(after.0)))?;
            rows.take(most).map(|row| ino_of(row?.0)).collect()
        })
    }
}

/// The range of all keys behind `key`.
fn behind(key: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Excluded(key), Bound::Unbounded)
}

fn ino_of(key: &[u8]) -> Result<Ino, CatalogError> {
    number(key).map(Ino).ok_or_else(|| damaged("key", key))
}

impl Catalog {
    /// The current revision; `None` before the first commit.
    pub fn revision(&self) -> Result<Option<Revision>, CatalogError> {
        self.snapshot()?.revision()
    }

    /// The current revision for one operation. Short: a snapshot held keeps old pages from reuse.
    pub fn snapshot(&self) -> Result<Snapshot<'_>, CatalogError> {
        let store = self.current.load();
        let txn = ManuallyDrop::new(store.readers.take(&store.env)?);
        Ok(Snapshot { catalog: self, txn, failed: AtomicBool::new(false), store, naming: OnceLock::new() })
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        // SAFETY: it is taken here alone, and nothing reads it after this.
        let txn = unsafe { ManuallyDrop::take(&mut self.txn) };
        if !self.failed.load(Ordering::Relaxed) {
            self.store.readers.give_back(&self.store.env, txn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{commit, entry, is_rebuilt, open, tree};

    #[test]
    fn an_orphan_has_its_former_place() {
        for most_in_place in [u64::MAX, 0] {
            let folder = tempfile::tempdir().unwrap();
            let catalog = open(folder.path());
            commit(&catalog, &[entry("http://h/a/b"), entry("http://h/c")]);
            let before = tree(&catalog);
            catalog.write_in_place(most_in_place);
            let store = catalog.store();
            commit(&catalog, &[entry("http://h/c")]);
            assert_eq!(is_rebuilt(&catalog, &store), most_in_place == 0);

            let orphan = before["a/b"].node.ino;
            let snapshot = catalog.snapshot().unwrap();
            let inode = snapshot.inode(orphan).unwrap().unwrap();

            assert_eq!((inode.node.ino, inode.name), (orphan, None));
            assert_eq!(inode.former, Some((before["a"].node.ino, Box::from(&b"b"[..]))));
            assert_eq!(snapshot.resource(orphan).unwrap(), before["a/b"].resource);
        }
    }
}
