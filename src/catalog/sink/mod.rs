//! Sinks: a tree is written in place, over the revision that is shown, or whole, into a store that takes the place of the one there was.

mod effects;
mod folder_times;
pub mod in_place;
pub mod rows;
pub mod transaction;
pub mod tree;
pub mod whole;

use super::CatalogError;
use super::base::Base;
use super::store::record::NamedNode;
use super::store::{Lookup, TableId};

/// A row of the new tree next to the revision that is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RowState {
    Changed,
    /// The store of that revision has it as it is.
    Unchanged,
}

/// The rows of a tree on their way to the disk. The defaults are those of an empty store: all of it is written, and nothing removed.
pub trait Sink {
    /// Writes a row.
    fn put(&mut self, is: RowState, table: TableId, key: &[u8], row: &[u8]) -> Result<(), CatalogError>;

    /// Writes a row of `meta`, where it is another now.
    fn put_meta(&mut self, key: &[u8], row: &[u8]) -> Result<(), CatalogError> {
        self.put(RowState::Changed, TableId::Meta, key, row)
    }

    /// Removes a row, where there is one.
    fn remove(&mut self, _table: TableId, _key: &[u8]) -> Result<(), CatalogError> {
        Ok(())
    }

    /// Enters a name: the hash of its bytes in the folder `parent`, and its entry id.
    fn put_name(&mut self, is: RowState, parent: u64, hash: u32, entry: u64) -> Result<(), CatalogError>;

    /// Removes a name.
    fn remove_name(&mut self, _parent: u64, _hash: u32, _entry: u64) -> Result<(), CatalogError> {
        Ok(())
    }

    /// A folder of the revision that is shown, with what was written of it so far where it would be written again.
    fn folder<'r>(&'r self, base: &'r Base<'_>, ino: u64) -> Lookup<NamedNode<'r>> {
        base.store.by_ino(base.txn, ino)
    }

    /// Answers whether an inode of a folder may be open when it loses its name.
    fn keeps_orphans_of(&self, _folder: u64) -> bool {
        true
    }

    /// Makes all rows part of the store.
    fn commit(&mut self) -> Result<(), CatalogError> {
        Ok(())
    }
}
