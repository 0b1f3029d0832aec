//! The previous store: after a rebuild, what lost its name by it is still read there, until the kernel was asked which inodes it knows.

use super::super::{CatalogError, Kind};
use super::codec::{Decoder, damaged};
use super::keys::ino_key;
use super::record::{NodeRecord, OrphanRecord, ResourceRecord};
use super::{ROOT, Store};
use crate::document::Timestamp;
use crate::platform::error_chain::chain;
use crate::platform::inode_set::InodeSet;
use fuser::INodeNo;
use heed::RoTxn;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A store that was replaced, and is not written any more.
///
/// Its damage is not damage of the catalog: what cannot be read is no orphan any more, and a list that cannot be read to its end is
/// [`CatalogError::DamagedBefore`].
pub struct PreviousStore {
    /// Of one process.
    pub number: u64,
    store: Arc<Store>,
    /// When it was replaced.
    since: Timestamp,
    /// Inodes that the kernel has forgotten since.
    dropped: Mutex<InodeSet>,
}

impl PreviousStore {
    pub fn new(store: Arc<Store>, since: Timestamp) -> PreviousStore {
        static STORES: AtomicU64 = AtomicU64::new(1);
        PreviousStore { number: STORES.fetch_add(1, Ordering::Relaxed), store, since, dropped: Mutex::default() }
    }

    /// The kernel has forgotten these: they are no orphans any more.
    pub fn drop_orphans(&self, inodes: &[INodeNo]) {
        self.with_dropped(|dropped| dropped.extend(inodes.iter().copied()));
    }

    fn with_dropped<T>(&self, operation: impl FnOnce(&mut InodeSet) -> T) -> T {
        operation(&mut self.dropped.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether `ino`, which is not in the present store, lost its name when this one was replaced.
    fn is_orphan(&self, ino: u64) -> bool {
        ino != ROOT && !self.with_dropped(|dropped| dropped.contains(INodeNo(ino)))
    }

    /// Appends the record that an orphan of this store has in the present one; `false` where it is none. `ino` is not in the present store.
    pub fn push_orphan(&self, ino: u64, out: &mut Vec<u8>) -> Result<bool, CatalogError> {
        if !self.is_orphan(ino) {
            return Ok(false);
        }
        match self.read_orphan(ino, out) {
            Err(error) if error.is_damage() => {
                tracing::error!(ino, "an old version of an open file is lost: {}", chain(&error));
                Ok(false)
            }
            found => found,
        }
    }

    fn read_orphan(&self, ino: u64, out: &mut Vec<u8>) -> Result<bool, CatalogError> {
        let txn = self.store.env.read_txn()?;
        let Some((place, node)) = self.store.inode_entry(&txn, ino)? else { return Ok(false) };
        let mut with_uri = Vec::new();
        if node.kind == Kind::File {
            let record = ResourceRecord::decode(place.resource).ok_or_else(|| damaged("resource", &ino_key(ino)))?;
            let uri = self.store.uri_of(&txn, ino, &record, &self.store.naming(&txn)?)?;
            record.push_with_uri(Some(uri.as_str()), &mut with_uri);
        }
        let node = NodeRecord { ctime: self.since, ..node };
        OrphanRecord { parent: place.parent, node, resource: &with_uri }.encode(out);
        Ok(true)
    }

    /// Up to `most` inodes behind `behind`, ascending, that lost their name when this store was replaced by `present`.
    pub fn orphans(
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
            let ino = Decoder(key).number().ok_or_else(|| before(damaged("key", key)))?;
            if self.is_orphan(ino)
                && present.inodes.get(txn, key)?.is_none()
                && present.orphans.get(txn, key)?.is_none()
            {
                orphans.push(INodeNo(ino));
                if orphans.len() == most {
                    break;
                }
            }
        }
        Ok(orphans)
    }
}

/// Damage is that of the previous store.
fn before(error: CatalogError) -> CatalogError {
    match error {
        CatalogError::Damaged(what) => CatalogError::DamagedBefore(what),
        error if error.is_damage() => CatalogError::DamagedBefore(chain(&error)),
        error => error,
    }
}
