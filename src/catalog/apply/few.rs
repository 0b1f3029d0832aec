//! Whose names are entered in `names`: those of folders that have more than [`FEW`] children.

use super::super::CatalogError;
use super::super::store::keys::{name_hash, name_key};
use super::super::store::{FEW, Store};
use heed::RoTxn;

/// Makes of the new `names` of a folder, given as (hash, entry id), those that are to be entered: none where it has but few
/// children with them, those of the children before that are missing beside them where it comes to have more. `txn` has all
/// of these children.
pub(in crate::catalog) fn settle(
    store: &Store,
    txn: &RoTxn<'_>,
    parent: u64,
    names: &mut Vec<(u64, u64)>,
) -> Result<(), CatalogError> {
    // Greater than every id that was given before.
    let Some(first_new) = names.iter().map(|(_, entry)| *entry).min() else { return Ok(()) };
    let mut before = Vec::new();
    for child in store.children(txn, parent, 0)? {
        let (entry, node) = child?;
        if entry >= first_new {
            break;
        }
        if before.len() == FEW {
            return Ok(());
        }
        before.push((name_hash(node.name), entry));
    }
    if before.len() + names.len() <= FEW {
        names.clear();
        return Ok(());
    }
    for (hash, entry) in before {
        let row = store.get(txn, store.names, &name_key(parent, hash))?.unwrap_or_default();
        if row.chunks(5).all(|id| id != &entry.to_be_bytes()[3..]) {
            names.push((hash, entry));
        }
    }
    Ok(())
}
