//! Commits besides those of statements: files that are given new inodes, and orphans that go.

use super::Renewal;
use super::apply::write::{Namings, Numbers, Writer};
use super::index::Current;
use super::store::codec::damaged;
use super::store::keys::ino_key;
use super::store::previous::Past;
use super::store::record::ResourceRecord;
use super::store::{ROOT, TableId};
use super::{Catalog, CatalogError, Invalidation, Kind, Naming, Totals};
use crate::platform::inode_set::InodeSet;
use fuser::INodeNo;
use heed::RoTxn;
use std::sync::PoisonError;
use std::sync::{Arc, TryLockError};

/// Orphans of the store before that one transaction takes over.
pub(super) const TAKEN_OVER_AT_ONCE: usize = 100_000;

impl Catalog {
    /// Drops the records of orphans that the kernel has forgotten, in one commit. While another commit is running they stay
    /// until the next write: no caller waits.
    pub fn drop_orphans(&self, inodes: &[INodeNo]) -> Result<(), CatalogError> {
        let Current { store, past } = self.current();
        let mut forgotten = inodes.to_vec();
        if let Some(past) = past {
            past.drop_orphans(inodes);
            let txn = store.env.read_txn()?;
            let mut present = Vec::new();
            for ino in forgotten {
                present.extend(store.orphans.get(&txn, &ino_key(ino.0))?.map(|_| ino));
            }
            forgotten = present;
        }
        if forgotten.is_empty() {
            return Ok(());
        }
        self.forgotten.lock().unwrap_or_else(PoisonError::into_inner).extend(forgotten);
        match self.writer.try_lock() {
            Err(TryLockError::WouldBlock) => Ok(()),
            Ok(_) | Err(TryLockError::Poisoned(_)) => drop_forgotten(self),
        }
    }

    /// The kernel was asked about all orphans, beginning when there was the store number `past_number`, and knows these: the records
    /// of all others are dropped with that store. To be called away from every reader.
    ///
    /// # Errors
    /// The records of the known could not be written (the disk is full): the store stays, and may be settled later.
    pub fn settle_orphans(&self, past_number: u64, known: &InodeSet) -> Result<(), CatalogError> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let Current { store, past } = self.current();
        let Some(past) = past.filter(|known| known.number == past_number) else { return Ok(()) };
        take_over(self, &past, known)?;
        self.drop_late(&past, known)?;
        let before = self.current.swap(Arc::new(Current { store, past: None }));
        // To close it and to give back what it took needs a while, and commits do not wait for that.
        drop(writer);
        drop((past, before));
        Ok(())
    }

    /// Drops those that were let go while they were taken over: their rows were in neither store that [`Catalog::drop_orphans`] looked
    /// into. The caller holds `writer`.
    fn drop_late(&self, past: &Past, known: &InodeSet) -> Result<(), CatalogError> {
        let late = past.dropped(known);
        if late.is_empty() {
            return Ok(());
        }
        self.forgotten.lock().unwrap_or_else(PoisonError::into_inner).extend(late);
        drop_forgotten(self)
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

/// Drops the records of the orphans that the kernel has forgotten. The caller holds `catalog.writer`.
pub(super) fn drop_forgotten(catalog: &Catalog) -> Result<(), CatalogError> {
    let store = catalog.store();
    let mut writer = Writer::new(catalog, &store, Numbers::FIRST, true, super::version::now());
    writer.drop_forgotten()?;
    writer.commit_bare()
}

/// Enters among the orphans of the present store those that are `known`. The caller holds `catalog.writer`.
pub(super) fn take_over(catalog: &Catalog, past: &Past, known: &InodeSet) -> Result<(), CatalogError> {
    let store = catalog.store();
    let mut known = known.iter().peekable();
    let mut row = Vec::new();
    while known.peek().is_some() {
        let mut writer = Writer::new(catalog, &store, Numbers::FIRST, true, super::version::now());
        let old = store.env.read_txn()?;
        for INodeNo(ino) in known.by_ref().take(TAKEN_OVER_AT_ONCE) {
            row.clear();
            if store.inode(&old, ino)?.is_none()
                && store.orphan(&old, ino)?.is_none()
                && past.push_orphan(ino, &mut row)?
            {
                writer.put_row(TableId::Orphans, &ino_key(ino), &row)?;
            }
        }
        writer.commit_bare()?;
    }
    Ok(())
}

/// See [`Catalog::renew`].
pub(super) fn renew(catalog: &Catalog, mut inodes: Vec<(INodeNo, Renewal)>) -> Result<Vec<Invalidation>, CatalogError> {
    // Of one inode the later kind, which says more.
    inodes.sort_unstable_by(|a, b| b.cmp(a));
    inodes.dedup_by_key(|(ino, _)| *ino);
    let _writer = catalog.writer.lock().unwrap_or_else(PoisonError::into_inner);
    let store = catalog.store();
    let old = store.env.read_txn()?;
    let Some(revision) = store.revision(&old)? else { return Ok(Vec::new()) };
    let naming = store.naming(&old)?;
    let mut writer = Writer::new(catalog, &store, Numbers::from(&revision), true, super::version::now());
    let mut totals = revision.totals;
    for (ino, renewal) in inodes {
        renew_one(&mut writer, &old, &naming, ino, renewal, &mut totals)?;
    }
    if !writer.changed() {
        return Ok(Vec::new());
    }
    writer.settle_folders(&old)?;
    let record = writer.next_revision(revision.at, totals);
    writer.put_revision(&record)?;
    Ok(writer.commit()?.invalidations)
}

fn renew_one(
    writer: &mut Writer<'_>,
    old: &RoTxn<'_>,
    naming: &Naming,
    ino: INodeNo,
    renewal: Renewal,
    totals: &mut Totals,
) -> Result<(), CatalogError> {
    let store = writer.store;
    let Some((place, node)) = store.inode_entry(old, ino.0)? else { return Ok(()) };
    if node.kind == Kind::Folder || ino.0 == ROOT {
        return Ok(());
    }
    let mtime = super::version::later_than(node.mtime, writer.now);
    let mut renewed = super::version::renewed(&node, mtime);
    let mut stripped = Vec::new();
    let resource = match renewal {
        Renewal::AsPublished => place.resource,
        Renewal::Unpublished => {
            let sense = || damaged("resource", &ino_key(ino.0));
            let record = ResourceRecord::decode(place.resource).ok_or_else(sense)?;
            record.push_unpublished(&mut stripped).ok_or_else(sense)?;
            renewed.freshness = ResourceRecord::decode(&stripped).ok_or_else(sense)?.freshness();
            if let Some(size) = renewed.size.take() {
                totals.octets = totals.octets.saturating_sub(size);
                totals.unsized_files += 1;
            }
            &stripped
        }
    };
    let namings = Namings { old: naming, new: naming };
    writer.replace(old, namings, (place.parent, place.entry), &node, renewed, resource)?;
    Ok(())
}
