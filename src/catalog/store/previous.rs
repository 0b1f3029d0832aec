//! The store before a revision that was written whole into another: what lost its name then is still read in it, until the
//! kernel was asked which inodes it knows.

use super::super::{CatalogError, Kind, Node, Place, Resource};
use super::codec::{Octets, damaged};
use super::keys::ino_key;
use super::record::{NodeRecord, OrphanRecord, ResourceRecord};
use super::symbols::Symbols;
use super::{ROOT, Store};
use crate::document::Timestamp;
use crate::platform::error_chain::chain;
use crate::platform::inode_set::InodeSet;
use fuser::INodeNo;
use heed::RoTxn;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A store whose files have no name any more, and which is not written.
///
/// Damage in it says nothing of the present store, so no error of its methods is damage of the catalog: what cannot be read is no
/// orphan any more, and a list that cannot be read to its end is [`CatalogError::DamagedBefore`].
pub(in crate::catalog) struct Past {
    /// Of one process.
    pub number: u64,
    store: Arc<Store>,
    /// When its names went.
    since: Timestamp,
    /// Inodes that were let go since.
    dropped: Mutex<InodeSet>,
}

impl Past {
    pub(in crate::catalog) fn new(store: Arc<Store>, since: Timestamp) -> Past {
        static STORES: AtomicU64 = AtomicU64::new(1);
        Past { number: STORES.fetch_add(1, Ordering::Relaxed), store, since, dropped: Mutex::default() }
    }

    /// These are no orphans any more.
    pub(in crate::catalog) fn drop_orphans(&self, inodes: &[INodeNo]) {
        self.with_dropped(|dropped| dropped.extend(inodes.iter().copied()));
    }

    /// Those of `inodes` that are no orphans any more.
    pub(in crate::catalog) fn dropped(&self, inodes: &InodeSet) -> Vec<INodeNo> {
        self.with_dropped(|dropped| inodes.iter().filter(|ino| dropped.contains(*ino)).collect())
    }

    fn with_dropped<T>(&self, operation: impl FnOnce(&mut InodeSet) -> T) -> T {
        operation(&mut self.dropped.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether `ino`, which is not in the present store, lost its name when this one was replaced. Only then do the methods
    /// below count.
    fn lost(&self, ino: u64) -> bool {
        ino != ROOT && !self.with_dropped(|dropped| dropped.contains(INodeNo(ino)))
    }

    /// What `read` finds of an orphan.
    fn orphan<T>(
        &self,
        ino: u64,
        read: impl FnOnce() -> Result<Option<T>, CatalogError>,
    ) -> Result<Option<T>, CatalogError> {
        if !self.lost(ino) {
            return Ok(None);
        }
        match read() {
            Err(error) if error.is_damage() => {
                tracing::error!(ino, "an orphan is lost with the store that held it: {}", chain(&error));
                Ok(None)
            }
            found => found,
        }
    }

    /// The node of an orphan.
    pub(in crate::catalog) fn node(&self, ino: u64) -> Result<Option<Node>, CatalogError> {
        self.orphan(ino, || {
            let txn = self.store.env.read_txn()?;
            let found = self.store.inode_entry(&txn, ino)?;
            Ok(found.map(|(_, node)| Node { ctime: self.since, ..node.node() }))
        })
    }

    /// The resource of an orphan; `None` also where it was a folder.
    pub(in crate::catalog) fn resource(&self, ino: u64, symbols: &Symbols) -> Result<Option<Resource>, CatalogError> {
        self.orphan(ino, || self.read_resource(ino, symbols))
    }

    fn read_resource(&self, ino: u64, symbols: &Symbols) -> Result<Option<Resource>, CatalogError> {
        let txn = self.store.env.read_txn()?;
        let Some(place) = self.store.inode(&txn, ino)?.filter(|place| !place.resource.is_empty()) else {
            return Ok(None);
        };
        let sense = || damaged("resource", &ino_key(ino));
        let record = ResourceRecord::decode(place.resource).ok_or_else(sense)?;
        let uri = self.store.uri_of(&txn, ino, &record, &self.store.naming(&txn)?)?;
        record.resource(uri, symbols).ok_or_else(sense).map(Some)
    }

    /// Appends the record that an orphan has in the present store; `false` where it is none.
    pub(in crate::catalog) fn push_orphan(&self, ino: u64, out: &mut Vec<u8>) -> Result<bool, CatalogError> {
        Ok(self.orphan(ino, || self.read_orphan(ino, out))?.is_some())
    }

    fn read_orphan(&self, ino: u64, out: &mut Vec<u8>) -> Result<Option<()>, CatalogError> {
        let txn = self.store.env.read_txn()?;
        let Some((place, node)) = self.store.inode_entry(&txn, ino)? else { return Ok(None) };
        let mut with_uri = Vec::new();
        if node.kind == Kind::File {
            let record = ResourceRecord::decode(place.resource).ok_or_else(|| damaged("resource", &ino_key(ino)))?;
            let uri = self.store.uri_of(&txn, ino, &record, &self.store.naming(&txn)?)?;
            record.push_with_uri(Some(uri.as_str()), &mut with_uri);
        }
        let node = NodeRecord { ctime: self.since, ..node };
        OrphanRecord { parent: place.parent, node, resource: &with_uri }.encode(out);
        Ok(Some(()))
    }

    /// The folder that an orphan had its name in, and the name.
    pub(in crate::catalog) fn place(&self, ino: u64) -> Result<Option<Place>, CatalogError> {
        self.orphan(ino, || {
            let txn = self.store.env.read_txn()?;
            let found = self.store.inode_entry(&txn, ino)?;
            Ok(found.map(|(place, node)| (INodeNo(place.parent), node.name.into())))
        })
    }

    /// Up to `most` inodes behind `behind`, ascending, that lost their name when this store was replaced by `present`.
    pub(in crate::catalog) fn orphans(
        &self,
        present: &Store,
        txn: &RoTxn<'_>,
        behind: INodeNo,
        most: usize,
    ) -> Result<Vec<INodeNo>, CatalogError> {
        let old = self.store.env.read_txn()?;
        let from = ino_key(behind.0);
        let mut orphans = Vec::new();
        let names = self.store.inodes.range(&old, &(Bound::Excluded(&from[..]), Bound::Unbounded));
        for pair in names.map_err(|error| before(error.into()))? {
            let (key, _) = pair.map_err(|error| before(error.into()))?;
            let ino = Octets(key).number().ok_or_else(|| before(damaged("key", key)))?;
            if self.lost(ino) && present.inodes.get(txn, key)?.is_none() && present.orphans.get(txn, key)?.is_none() {
                orphans.push(INodeNo(ino));
                if orphans.len() == most {
                    break;
                }
            }
        }
        Ok(orphans)
    }
}

/// Damage is that of a store before the present one.
fn before(error: CatalogError) -> CatalogError {
    match error {
        CatalogError::Damaged(what) => CatalogError::DamagedBefore(what),
        error if error.is_damage() => CatalogError::DamagedBefore(chain(&error)),
        error => error,
    }
}
