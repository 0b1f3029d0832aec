//! The revision that a commit starts from.

use super::store::Store;
use super::store::record::RevisionRecord;
use super::store::sets::SetTable;
use super::{CatalogError, Naming};
use heed::RoTxn;

/// The revision before.
pub(super) struct Before<'o> {
    pub store: &'o Store,
    pub old: &'o RoTxn<'o>,
    pub revision: Option<RevisionRecord>,
    /// `None` before the first revision.
    pub naming: Option<Naming>,
    pub sets: SetTable,
}

impl<'o> Before<'o> {
    pub(super) fn read(store: &'o Store, old: &'o RoTxn<'o>) -> Result<Before<'o>, CatalogError> {
        let revision = store.revision(old)?;
        let naming = revision.map(|_| store.naming(old)).transpose()?;
        Ok(Before { store, old, revision, naming, sets: store.sets(old)? })
    }

    pub(super) fn files(&self) -> u64 {
        self.revision.map_or(0, |revision| revision.totals.files)
    }
}
