//! The revision that is shown, over which a commit is made.

use super::fact::slashed;
use super::naming::locate::folder;
use super::naming::names_of_path::{split, uri};
use super::naming::{beside_folder, disambiguated};
use super::store::codec::damaged;
use super::store::keys::digest;
use super::store::record::{NamedNode, NodeRecord, ResourceRecord, RevisionRecord, SetTable};
use super::store::{ROOT, TableId, TreeStore};
use super::{CatalogError, Naming};
use crate::document::Uri;
use heed::RoTxn;
use std::collections::VecDeque;
use std::ops::Bound;

/// The revision that is shown.
pub(super) struct Base<'o> {
    pub store: &'o TreeStore,
    pub txn: &'o RoTxn<'o>,
    pub revision: Option<RevisionRecord>,
    /// `None` before the first revision.
    pub naming: Option<Naming>,
    pub sets: SetTable,
}

impl<'o> Base<'o> {
    pub(super) fn read(store: &'o TreeStore, txn: &'o RoTxn<'o>) -> Result<Base<'o>, CatalogError> {
        let revision = store.revision(txn)?;
        let naming = revision.map(|_| store.naming(txn)).transpose()?;
        Ok(Base { store, txn, revision, naming, sets: store.sets(txn)? })
    }

    pub(super) fn files(&self) -> u64 {
        self.revision.map_or(0, |revision| revision.totals.files)
    }

    /// Tells whether names follow from URIs by `naming` as they did.
    pub(super) fn has_naming(&self, naming: &Naming) -> bool {
        self.naming.as_ref().is_none_or(|old| old == naming)
    }

    fn known_naming(&self) -> Result<&Naming, CatalogError> {
        self.naming.as_ref().ok_or(CatalogError::NoRevision)
    }

    /// The URI of a file of this revision.
    pub(super) fn uri(&self, node: &NodeRecord<'_>) -> Result<Uri, CatalogError> {
        self.store.uri_of(self.txn, node, self.known_naming()?)
    }

    /// Tells whether a file was of the same URI as `new`, which has its name. `path` is the path of `new` by rule, segments separated by NUL.
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
        let corrupt = || damaged("resource", path);
        Ok(self.uri(node)? == uri(new, &slashed(path).ok_or_else(corrupt)?, naming).ok_or_else(corrupt)?)
    }

    /// Calls `visit` for each file of this revision, folder by folder.
    pub(super) fn each_file(
        &self,
        visit: &mut dyn FnMut(&Uri, &ResourceRecord<'o>) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        let mut folders = VecDeque::from([(ROOT, String::new())]);
        while let Some((folder, above)) = folders.pop_front() {
            for child in self.store.children(self.txn, folder, 0)? {
                let child = child?;
                let corrupt = || damaged("resource", child.node.name);
                let name = std::str::from_utf8(child.node.name).map_err(|_| corrupt())?;
                let path = if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };
                match child.node.resource {
                    Some(record) => visit(&uri(&record, &path, self.known_naming()?).ok_or_else(corrupt)?, &record)?,
                    None => folders.push_back((child.node.ino, path)),
                }
            }
        }
        Ok(())
    }

    /// The names of the group of `path`, each file with its URI.
    pub(super) fn names(&self, path: &str) -> Result<Vec<(NamedNode<'o>, Option<Uri>)>, CatalogError> {
        let ((above, name), store, txn) = (split(path), self.store, self.txn);
        let Some(parent) = folder(store, txn, above)? else { return Ok(Vec::new()) };
        let mut names = vec![name.to_owned(), beside_folder(name)];
        let prefix = digest(path);
        for row in store.rows(txn, TableId::Displaced, (Bound::Included(&prefix[..]), Bound::Unbounded))? {
            let (key, uri) = row?;
            if !key.starts_with(&prefix) {
                break;
            }
            let uri = std::str::from_utf8(uri).ok().and_then(|uri| Uri::parse_item(uri).ok());
            names.push(disambiguated(name, &uri.ok_or_else(|| damaged("content", key))?));
        }
        let mut found = Vec::new();
        for (index, name) in names.into_iter().enumerate() {
            let Some(named) = store.named(txn, parent, name.as_bytes())? else { continue };
            match named.node.resource {
                Some(record) => {
                    let full = if above.is_empty() { name } else { format!("{above}/{name}") };
                    let uri = uri(&record, &full, self.known_naming()?);
                    found.push((named, Some(uri.ok_or_else(|| damaged("resource", full.as_bytes()))?)));
                }
                None if index == 0 => found.push((named, None)),
                None => {}
            }
        }
        Ok(found)
    }
}
