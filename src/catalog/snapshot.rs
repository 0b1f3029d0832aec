//! One revision as readers see it.

use super::held;
use super::index::Current;
use super::journal::Row;
use super::naming::locate::locate;
use super::store::codec::{Octets, damaged, unseal};
use super::store::keys::{ino_key, statement_key, statement_set};
use super::store::record::{InodeRecord, ResourceRecord};
use super::store::{ROOT, meta};
use super::{Catalog, CatalogError, EntryId, HeldDeletion, Journaled, Naming, Node, Place, Resource, Revision, SetId};
use crate::document::{Change, Timestamp, Uri};
use crate::platform::lmdb::Reading;
use arc_swap::Guard;
use fuser::INodeNo;
use std::borrow::Cow;
use std::mem::ManuallyDrop;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// One revision, for one operation: take it, use it, drop it. Any number may exist at a time, on any threads; none
/// waits for a commit.
pub struct Snapshot<'c> {
    catalog: &'c Catalog,
    /// In place until this is dropped.
    txn: ManuallyDrop<Reading>,
    /// Something failed in the transaction: the next reader gets another.
    failed: AtomicBool,
    current: Guard<Arc<Current>>,
    /// The naming of this revision, once it was read.
    naming: OnceLock<Naming>,
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

    /// The node of an inode, orphans included.
    pub fn attributes(&self, ino: INodeNo) -> Result<Option<Node>, CatalogError> {
        self.read(|| match self.current.store.inode_entry(self.txn(), ino.0)? {
            Some((_, record)) => Ok(Some(record.node())),
            None => match (self.current.store.orphan(self.txn(), ino.0)?, &self.current.past) {
                (Some(orphan), _) => Ok(Some(orphan.node.node())),
                (None, Some(past)) => past.node(ino.0),
                (None, None) => Ok(None),
            },
        })
    }

    /// The node of an inode, orphans included, with the folder above it; the root has none, and neither has an orphan.
    pub fn attributes_and_parent(&self, ino: INodeNo) -> Result<Option<(Node, Option<INodeNo>)>, CatalogError> {
        let named = self.read(|| self.current.store.inode_entry(self.txn(), ino.0))?;
        match named {
            Some((place, node)) => Ok(Some((node.node(), (ino.0 != ROOT).then_some(INodeNo(place.parent))))),
            None => Ok(self.attributes(ino)?.map(|node| (node, None))),
        }
    }

    /// The folder above, and the name in it; `None` for the root, and for an orphan, which has neither.
    pub fn parent(&self, ino: INodeNo) -> Result<Option<Place>, CatalogError> {
        self.read(|| match self.current.store.inode_entry(self.txn(), ino.0)? {
            Some((place, node)) if ino.0 != ROOT => Ok(Some((INodeNo(place.parent), node.name.into()))),
            _ => Ok(None),
        })
    }

    /// The folder that an orphan had its name in, and that name; `None` for what is no orphan.
    pub fn place_of_orphan(&self, ino: INodeNo) -> Result<Option<Place>, CatalogError> {
        self.read(|| match (self.current.store.orphan(self.txn(), ino.0)?, &self.current.past) {
            (Some(orphan), _) => Ok(Some((INodeNo(orphan.parent), orphan.node.name.into()))),
            (None, Some(past)) => past.place(ino.0),
            (None, None) => Ok(None),
        })
    }

    /// The folder above, and the entry in it; `None` for the root, and for an orphan, which has neither.
    pub fn place(&self, ino: INodeNo) -> Result<Option<(INodeNo, EntryId)>, CatalogError> {
        self.read(|| {
            let place = self.current.store.inode(self.txn(), ino.0)?.filter(|_| ino.0 != ROOT);
            Ok(place.map(|place| (INodeNo(place.parent), EntryId(place.entry))))
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
        self.read(|| self.read_resource(ino, None))
    }

    /// [`Snapshot::resource`] of the file at `path`, for a caller that has its path.
    pub fn resource_at(&self, ino: INodeNo, path: &str) -> Result<Option<Resource>, CatalogError> {
        self.read(|| self.read_resource(ino, Some(path)))
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

    /// `path` is asked for where it is not given.
    fn read_resource(&self, ino: INodeNo, path: Option<&str>) -> Result<Option<Resource>, CatalogError> {
        let octets = match self.current.store.inode(self.txn(), ino.0)? {
            Some(place) => place.resource,
            None => match (self.current.store.orphan(self.txn(), ino.0)?, &self.current.past) {
                (Some(orphan), _) => orphan.resource,
                (None, Some(past)) => return past.resource(ino.0, &self.catalog.symbols),
                (None, None) => &[],
            },
        };
        if octets.is_empty() {
            return Ok(None);
        }
        let sense = || damaged("resource", &ino_key(ino.0));
        let record = ResourceRecord::decode(octets).ok_or_else(sense)?;
        let uri = match record.uri {
            Some(uri) => Uri::parse(uri).map_err(|_| sense())?,
            None => {
                let path = match path {
                    Some(path) => path.into(),
                    None => Cow::from(self.path(ino)?.ok_or_else(sense)?),
                };
                self.known_naming()?.uri(&path, record.https).ok_or_else(sense)?
            }
        };
        record.resource(uri, &self.catalog.symbols).ok_or_else(sense).map(Some)
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

    /// The file of a resource, wherever its path lies: by rule, beside a folder of the same name, or with a digest.
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
        self.read(|| {
            let first = ino_key(after.map_or(ROOT, |ino| ino.0));
            for pair in self.current.store.inodes.range(self.txn(), &(Bound::Excluded(&first[..]), Bound::Unbounded))? {
                let (key, sealed) = pair?;
                let sense = || damaged("sense", key);
                let record = InodeRecord::decode(unseal(key, sealed)?).ok_or_else(sense)?;
                if record.resource.is_empty() {
                    continue;
                }
                let ino = INodeNo(Octets(key).number().ok_or_else(sense)?);
                let path = self.current.store.path_of(self.txn(), ino.0)?.ok_or_else(sense)?;
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

    /// The time that the list of a set speaks for; `None` where it does not tell.
    pub fn set_at(&self, set: SetId) -> Result<Option<Timestamp>, CatalogError> {
        self.read(|| Ok(self.current.store.sets(self.txn())?.at(set)))
    }

    /// The last change of a resource in a set, unless the set's list speaks for a later time.
    pub fn journaled(&self, set: SetId, uri: &Uri) -> Result<Option<Journaled>, CatalogError> {
        self.read(|| {
            let key = statement_key(set, uri);
            let Some(row) = self.current.store.get(self.txn(), self.current.store.journal, &key)? else {
                return Ok(None);
            };
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
        self.read(|| {
            for pair in self.current.store.journal.iter(self.txn())? {
                let (key, sealed) = pair?;
                let sense = || damaged("sense", key);
                let row = Row::decode(unseal(key, sealed)?).ok_or_else(sense)?;
                let (record, uri) = row.record().ok_or_else(sense)?;
                let resource = record.resource(uri, &self.catalog.symbols).ok_or_else(sense)?;
                let set = statement_set(key).ok_or_else(sense)?;
                let change = if row.is_left_out { Change::Updated } else { row.change };
                if !visit(set, Journaled { change, time: row.time, datetime: row.shown }, resource) {
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
            let mut count = 0;
            for pair in self.current.store.held.prefix_iter(self.txn(), &set.0.to_be_bytes())? {
                pair?;
                count += 1;
            }
            Ok(count)
        })
    }

    /// Calls `visit` for every deletion that is held back, set by set, until it answers `false`.
    pub fn held(&self, visit: &mut dyn FnMut(HeldDeletion) -> bool) -> Result<(), CatalogError> {
        self.read(|| {
            for pair in self.current.store.held.iter(self.txn())? {
                let (key, sealed) = pair?;
                let deletion = held::decode(key, unseal(key, sealed)?).ok_or_else(|| damaged("sense", key))?;
                if !visit(deletion) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Every inode that has lost its name since the catalog was opened and was not dropped yet, ascending.
    pub fn orphans(&self, behind: INodeNo, most: usize) -> Result<Vec<INodeNo>, CatalogError> {
        self.read(|| {
            let mut orphans: Vec<INodeNo> = self
                .current
                .store
                .orphans
                .range(self.txn(), &(Bound::Excluded(&ino_key(behind.0)[..]), Bound::Unbounded))?
                .take(most)
                .map(|pair| {
                    let (key, _) = pair?;
                    let ino = Octets(key).number().ok_or_else(|| damaged("key", key))?;
                    Ok(INodeNo(ino))
                })
                .collect::<Result<_, CatalogError>>()?;
            if let Some(past) = &self.current.past {
                orphans.extend(past.orphans(&self.current.store, self.txn(), behind, most)?);
                orphans.sort_unstable();
                orphans.truncate(most);
            }
            Ok(orphans)
        })
    }
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
