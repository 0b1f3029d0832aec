//! Commits besides those of statements: files that are given new inodes, and orphans that go.

use super::apply::transaction::in_transaction;
use super::apply::tree::{Old, Tree};
use super::index::Current;
use super::store::TableId;
use super::store::codec::damaged;
use super::store::keys::ino_key;
use super::store::previous::PreviousStore;
use super::store::record::{NodeRecord, ResourceRecord};
use super::{Catalog, CatalogError, Invalidation, Kind, Renewal, version};
use crate::platform::inode_set::InodeSet;
use fuser::INodeNo;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, TryLockError};

impl Catalog {
    /// Drops the records of orphans that the kernel has forgotten, in one commit. While another commit is running they stay
    /// until the next write: no caller waits.
    pub fn drop_orphans(&self, inodes: &[INodeNo]) -> Result<(), CatalogError> {
        self.current().previous.inspect(|previous| previous.drop_orphans(inodes));
        self.forgotten.lock().unwrap_or_else(PoisonError::into_inner).extend(inodes.iter().copied());
        match self.writer.try_lock() {
            Err(TryLockError::WouldBlock) => Ok(()),
            // Only now is the store the one that stays: before, a rebuild or a compaction may have replaced it.
            Ok(_) | Err(TryLockError::Poisoned(_)) => in_transaction(self, &self.store(), |_| Ok(())),
        }
    }

    /// The kernel was asked about all orphans, beginning when there was the store number `number`, and knows these: the records
    /// of all others are dropped with that store. To be called away from every reader.
    ///
    /// # Errors
    /// The records of the known could not be written (the disk is full): the store stays, and may be settled later.
    pub fn settle_orphans(&self, number: u64, known: &InodeSet) -> Result<(), CatalogError> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let Current { store, previous } = self.current();
        let Some(previous) = previous.filter(|known| known.number == number) else { return Ok(()) };
        take_over(self, &previous, known)?;
        let before = self.current.swap(Arc::new(Current { store, previous: None }));
        // To close it and to free its disk space takes a while, and commits do not wait for that.
        drop(writer);
        drop((previous, before));
        Ok(())
    }

    /// Gives files new inodes, all in one commit: their bytes were found wrong after some were handed out, or changed. What is no file
    /// with a name has nothing left to renew.
    pub fn renew(
        &self,
        inodes: impl IntoIterator<Item = (INodeNo, Renewal)>,
    ) -> Result<Vec<Invalidation>, CatalogError> {
        let renewed = renew(self, inodes.into_iter().collect());
        if renewed.as_ref().is_err_and(CatalogError::is_damage) {
            self.distrust();
        }
        renewed
    }
}

/// Enters among the orphans of the present store those that are `known`. The caller holds `catalog.writer`.
pub(super) fn take_over(catalog: &Catalog, previous: &PreviousStore, known: &InodeSet) -> Result<(), CatalogError> {
    let store = catalog.store();
    let old = store.env.read_txn()?;
    let mut row = Vec::new();
    in_transaction(catalog, &store, |transaction| {
        for INodeNo(ino) in known.iter() {
            let is_here = store.inode(&old, ino)?.is_some() || store.orphan(&old, ino)?.is_some();
            row.clear();
            if !is_here && previous.push_orphan(ino, &mut row)? {
                transaction.put(TableId::Orphans, &ino_key(ino), |out| out.extend_from_slice(&row))?;
            }
        }
        Ok(())
    })
}

/// See [`Catalog::renew`].
fn renew(catalog: &Catalog, mut inodes: Vec<(INodeNo, Renewal)>) -> Result<Vec<Invalidation>, CatalogError> {
    // Of one inode the later kind counts: it takes more away.
    inodes.sort_unstable_by(|a, b| b.cmp(a));
    inodes.dedup_by_key(|(ino, _)| *ino);
    let _writer = catalog.writer.lock().unwrap_or_else(PoisonError::into_inner);
    let store = catalog.store();
    let old = store.env.read_txn()?;
    let Some(revision) = store.revision(&old)? else { return Ok(Vec::new()) };
    let naming = store.naming(&old)?;
    in_transaction(catalog, &store, |transaction| {
        let mut tree = Tree::new(catalog, &store, &naming, &revision, transaction);
        for (INodeNo(ino), renewal) in inodes {
            let Some((place, node)) = store.inode_entry(&old, ino)?.filter(|(_, node)| node.kind == Kind::File) else {
                continue;
            };
            let record = ResourceRecord::decode(place.resource).ok_or_else(|| damaged("resource", &ino_key(ino)))?;
            let uri = store.uri_of(&old, ino, &record, &naming)?;
            let known = Old { parent: place.parent, entry: place.entry, node, resource: Some((place.resource, uri)) };
            renew_one(&mut tree, &known, renewal, &record)?;
        }
        Ok(tree.finish(revision.at, BTreeMap::new())?.invalidations)
    })
}

/// Gives one file a new inode.
fn renew_one(
    tree: &mut Tree<'_, '_>,
    known: &Old<'_>,
    renewal: Renewal,
    record: &ResourceRecord<'_>,
) -> Result<(), CatalogError> {
    let mut node = NodeRecord { mtime: version::later_than(known.node.mtime, tree.now), ..known.node };
    let mut resource = Vec::new();
    match renewal {
        Renewal::AsPublished => record.push_with_uri(record.uri, &mut resource),
        Renewal::Unpublished => {
            let sense = || damaged("resource", known.node.name);
            record.push_unpublished(&mut resource).ok_or_else(sense)?;
            node.freshness = ResourceRecord::decode(&resource).ok_or_else(sense)?.freshness();
            node.size = None;
        }
    }
    tree.replace(known, node, &resource).map(drop)
}
