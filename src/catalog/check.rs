//! Reading the whole store once, in a process of its own: a page that the map's file lost is a SIGBUS, which ends whoever
//! reads it.

use super::CatalogError;
use super::octets::{Octets, damaged, unseal};
use super::record::{InodeRecord, NodeRecord, OrphanRecord, ResourceRecord};
use super::store::{ROOT, Store, Table};
use super::update::held;
use super::update::journal::Row;
use heed::RoTxn;
use std::ops::Bound;
use std::path::Path;

/// Reads every record of the catalog in `folder`, which another process may have open: answers how many there are, or
/// [`CatalogError::Damaged`] with the first that does not match its checksum or leads nowhere.
pub(super) fn check(folder: &Path) -> Result<u64, CatalogError> {
    let store = Store::open_beside(folder)?;
    let mut checked = 0;
    checked += each(&store, store.meta, |_, _, _| Ok(()))?;
    checked += each(&store, store.entries, |txn, key, octets| {
        let sense = || damaged("sense", key);
        let node = NodeRecord::decode(octets).ok_or_else(sense)?;
        let place = store.inode(txn, node.ino)?.ok_or_else(sense)?;
        let mut key = Octets(key);
        match (key.number(), key.number()) == (Some(place.parent), Some(place.entry)) {
            true => Ok(()),
            false => Err(sense()),
        }
    })?;
    checked += each(&store, store.inodes, |txn, key, octets| {
        let sense = || damaged("sense", key);
        let place = InodeRecord::decode(octets).ok_or_else(sense)?;
        let ino = Octets(key).number().ok_or_else(sense)?;
        let node = store.entry(txn, place.parent, place.entry)?.filter(|node| node.ino == ino).ok_or_else(sense)?;
        if ino != ROOT {
            store.named(txn, place.parent, node.name)?.filter(|(id, _)| *id == place.entry).ok_or_else(sense)?;
        }
        check_resource(place.resource).ok_or_else(sense)
    })?;
    checked += each(&store, store.names, |_, _, _| Ok(()))?;
    checked += each(&store, store.orphans, |_, key, octets| {
        let orphan = OrphanRecord::decode(octets).ok_or_else(|| damaged("sense", key))?;
        check_resource(orphan.resource).ok_or_else(|| damaged("sense", key))
    })?;
    checked += each(&store, store.displaced, |_, _, _| Ok(()))?;
    checked += each(&store, store.journal, |_, key, octets| {
        let sense = || damaged("sense", key);
        let (record, _) = Row::decode(octets).and_then(|row| row.record()).ok_or_else(sense)?;
        record.digests().map(|_| ()).ok_or_else(sense)
    })?;
    checked += each(&store, store.held, |_, key, octets| {
        held::decode(key, octets).map(|_| ()).ok_or_else(|| damaged("sense", key))
    })?;
    Ok(checked)
}

/// `None`: it makes no sense. A folder has none.
fn check_resource(octets: &[u8]) -> Option<()> {
    if !octets.is_empty() {
        ResourceRecord::decode(octets)?.digests()?;
    }
    Some(())
}

/// Records looked at in one transaction: a longer one would keep the pages that commits leave behind from reuse.
const AT_ONCE: usize = 10_000;

/// Calls `look` for every record of a table, with the transaction that it was read in; how many there were. What is
/// committed meanwhile may be met or not.
fn each(
    store: &Store,
    table: Table,
    look: impl Fn(&RoTxn<'_>, &[u8], &[u8]) -> Result<(), CatalogError>,
) -> Result<u64, CatalogError> {
    let mut checked = 0;
    let mut behind: Option<Vec<u8>> = None;
    loop {
        let txn = store.env.read_txn()?;
        let from = behind.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for pair in table.range(&txn, &(from, Bound::Unbounded))?.take(AT_ONCE) {
            let (key, sealed) = pair?;
            look(&txn, key, unseal(key, sealed)?)?;
            checked += 1;
            last = Some(key);
        }
        match last {
            Some(last) => behind = Some(last.to_vec()),
            None => return Ok(checked),
        }
    }
}
