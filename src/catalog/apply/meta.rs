//! What a revision holds beside the tree.

use super::super::rebuild::first::Target;
use super::super::store::codec::seal;
use super::super::store::record::RevisionRecord;
use super::super::store::sets::SetTable;
use super::super::store::{TableId, meta, push_naming};
use super::super::{CatalogError, Naming};
use super::write::Writer;

impl Writer<'_> {
    pub(in crate::catalog) fn put_revision(&mut self, revision: &RevisionRecord) -> Result<(), CatalogError> {
        self.numbers.revision = revision.number;
        self.put_meta(meta::REVISION, |record| revision.encode(record))
    }

    pub(in crate::catalog) fn put_position(&mut self, position: &[u8]) -> Result<(), CatalogError> {
        self.put_meta(meta::POSITION, |record| record.extend_from_slice(position))
    }

    pub(in crate::catalog) fn put_naming(&mut self, naming: &Naming) -> Result<(), CatalogError> {
        self.put_meta(meta::NAMING, |record| push_naming(record, naming))
    }

    pub(in crate::catalog) fn put_symbols(&mut self) -> Result<(), CatalogError> {
        let symbols = &self.catalog.symbols;
        self.put_meta(meta::SYMBOLS, |record| symbols.encode(record))
    }

    pub(in crate::catalog) fn put_sets(&mut self, sets: &SetTable) -> Result<(), CatalogError> {
        self.put_meta(meta::SETS, |record| sets.encode(record))
    }

    fn put_meta(&mut self, key: &[u8], encode: impl FnOnce(&mut Vec<u8>)) -> Result<(), CatalogError> {
        let store = self.store;
        if let Some(apart) = &mut self.apart {
            return apart.put(Target::Row(TableId::Meta), key, encode);
        }
        self.write(|txn, record| {
            encode(record);
            seal(key, record);
            Ok(store.meta.put(&mut txn.txn, key, record)?)
        })
    }
}
