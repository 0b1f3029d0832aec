//! The revision that a commit starts from.

use super::naming::resolve::uri;
use super::sort_key::slashed;
use super::store::Store;
use super::store::codec::damaged;
use super::store::record::{NodeRecord, ResourceRecord, RevisionRecord};
use super::store::sets::SetTable;
use super::{CatalogError, Naming};
use crate::document::Uri;
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

    /// Whether names follow from URIs by `naming` as they did.
    pub(super) fn has_naming(&self, naming: &Naming) -> bool {
        self.naming.as_ref().is_none_or(|old| old == naming)
    }

    /// The URI of a file of this revision.
    pub(super) fn uri(&self, node: &NodeRecord<'_>) -> Result<Uri, CatalogError> {
        let naming = self.naming.as_ref().ok_or(CatalogError::NoRevision)?;
        self.store.uri_of(self.old, node, naming)
    }

    /// Whether a file was of the same URI as `new`, which has its name. `path` is the path of `new` by rule, segments separated by NUL.
    pub(super) fn is_same_uri(
        &self,
        node: &NodeRecord<'_>,
        new: &ResourceRecord<'_>,
        path: &[u8],
        naming: &Naming,
    ) -> Result<bool, CatalogError> {
        let Some(known) = node.resource else { return Ok(false) };
        if self.has_naming(naming) && known.uri.is_none() == new.uri.is_none() {
            // One name and one naming: where the path gives the URI, it is one path, so the scheme decides.
            return Ok((known.https, known.uri) == (new.https, new.uri));
        }
        let sense = || damaged("resource", path);
        Ok(self.uri(node)? == uri(new, &slashed(path).ok_or_else(sense)?, naming).ok_or_else(sense)?)
    }
}
