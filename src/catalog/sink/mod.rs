//! Sinks: a tree is written in place, over the revision that is shown, or whole, into a store that takes the place of the one there was.

mod budget;
mod effects;
mod folder_times;
pub mod in_place;
pub mod rows;
pub mod transaction;
pub mod tree;
pub mod whole;

use super::CatalogError;
use super::base::Base;
use super::store::record::Named;
use super::store::{Lookup, TableId};

/// Where the rows of a tree are written.
pub trait Sink {
    /// Writes the row that `encode` appends.
    fn put(&mut self, table: TableId, key: &[u8], encode: &mut dyn FnMut(&mut Vec<u8>)) -> Result<(), CatalogError>;

    /// Writes a row that the revision that is shown has as it is.
    fn put_unchanged(
        &mut self,
        table: TableId,
        key: &[u8],
        encode: &mut dyn FnMut(&mut Vec<u8>),
    ) -> Result<(), CatalogError>;

    /// Removes a row, where there is one.
    fn remove(&mut self, table: TableId, key: &[u8]) -> Result<(), CatalogError>;

    /// Enters a name: the hash of its bytes in the folder `parent`, and its entry id.
    fn put_name(&mut self, parent: u64, hash: u32, entry: u64) -> Result<(), CatalogError>;

    /// Enters a name that the revision that is shown has.
    fn put_unchanged_name(&mut self, parent: u64, hash: u32, entry: u64) -> Result<(), CatalogError>;

    /// Removes a name.
    fn remove_name(&mut self, parent: u64, hash: u32, entry: u64) -> Result<(), CatalogError>;

    /// Writes a row of `meta`, where it is another now.
    fn put_meta(&mut self, key: &[u8], row: &[u8]) -> Result<(), CatalogError>;

    /// A folder that is in the revision that is shown, with what was written of it so far where that is needed.
    fn folder<'r>(&'r self, base: &'r Base<'_>, ino: u64) -> Lookup<Named<'r>>;

    /// Whether an inode of a folder may be open when it loses its name.
    fn keeps_orphans_of(&self, folder: u64) -> bool;

    /// Makes all rows part of the store.
    fn commit(&mut self) -> Result<(), CatalogError>;
}
