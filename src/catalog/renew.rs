//! Commits besides those of statements: files that are given new inodes, and orphans that go.

use super::base::Base;
use super::sink::in_place::InPlace;
use super::sink::transaction::in_transaction;
use super::sink::tree::{CommittedWith, TreeWriter};
use super::store::codec::damaged;
use super::store::meta;
use super::store::record::{NodeRecord, ResourceRecord};
use super::{Catalog, CatalogError, Invalidation, Renewal, version};
use crate::platform::ino::Ino;
use std::collections::BTreeMap;
use std::sync::{PoisonError, TryLockError};

impl Catalog {
    /// Drops the records of orphans that the kernel has forgotten, in one commit. While another commit is running they stay
    /// until the next write: no caller waits.
    pub fn drop_orphans(&self, inodes: &[Ino]) -> Result<(), CatalogError> {
        self.forgotten.lock().unwrap_or_else(PoisonError::into_inner).extend(inodes.iter().copied());
        let _writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        // Only now is the store the one that stays: before, a rebuild or a compaction may have replaced it.
        in_transaction(self, &self.store(), |_| Ok(()))
    }

    /// Gives files new inodes, all in one commit: their bytes were found wrong after some were handed out, or changed. An
    /// inode that is not a file with a name has nothing left to renew.
    pub fn renew(&self, inodes: impl IntoIterator<Item = (Ino, Renewal)>) -> Result<Vec<Invalidation>, CatalogError> {
        let renewed = renew(self, inodes.into_iter().collect());
        if renewed.as_ref().is_err_and(CatalogError::is_damage) {
            self.distrust();
        }
        renewed
    }
}

/// See [`Catalog::renew`].
fn renew(catalog: &Catalog, mut inodes: Vec<(Ino, Renewal)>) -> Result<Vec<Invalidation>, CatalogError> {
    // The later kind counts for an inode: it takes more away.
    inodes.sort_unstable_by(|a, b| b.cmp(a));
    inodes.dedup_by_key(|(ino, _)| *ino);
    let _writer = catalog.writer.lock().unwrap_or_else(PoisonError::into_inner);
    let store = catalog.store();
    let txn = store.env.read_txn()?;
    let base = Base::read(&store, &txn)?;
    let (Some(revision), Some(naming)) = (base.revision, &base.naming) else { return Ok(Vec::new()) };
    let position = store.meta(&txn, meta::POSITION)?.unwrap_or_default();
    in_transaction(catalog, &store, |transaction| {
        let sink = InPlace(transaction);
        let mut tree = TreeWriter::new(&catalog.spill_folder, &base, naming, revision, sink);
        for (Ino(ino), renewal) in inodes {
            let Some(known) = store.by_ino(&txn, ino)? else { continue };
            let Some(record) = known.node.resource else { continue };
            let corrupt = || damaged("resource", known.node.name);
            let bytes = match renewal {
                Renewal::AsPublished => record.bytes.to_vec(),
                Renewal::Unpublished => record.unpublished().ok_or_else(corrupt)?,
            };
            let resource = Some(ResourceRecord::decode(&bytes).ok_or_else(corrupt)?);
            let mtime = version::later_than(known.node.mtime, tree.now);
            tree.replace(&known, None, NodeRecord { mtime, resource, ..known.node })?;
        }
        let with = CommittedWith { at: revision.at, position, sets: &base.sets };
        let (revision, effects) = tree.finish(&with)?;
        Ok(effects.committed(revision.number, BTreeMap::new()).invalidations)
    })
}
