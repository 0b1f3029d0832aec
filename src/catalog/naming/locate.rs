//! Where a URI is found in a revision: it has the name that its path gives, `NAME%file`, or `NAME%~DIGEST`.

use super::super::store::codec::damaged;
use super::super::store::record::{NodeRecord, ResourceRecord};
use super::super::store::{ROOT, Store};
use super::super::{CatalogError, Kind, Naming};
use super::resolve::{path_by_rule, split};
use super::{beside_folder, disambiguated};
use crate::document::Uri;
use heed::RoTxn;

/// A file, its place and its resource.
#[derive(Clone, Copy)]
pub(in crate::catalog) struct Located<'t> {
    pub node: NodeRecord<'t>,
    pub resource: &'t [u8],
}

/// The inode of the folder at `path`, which is empty for the root.
pub(in crate::catalog) fn folder(store: &Store, txn: &RoTxn<'_>, path: &str) -> Result<Option<u64>, CatalogError> {
    let mut ino = ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        match store.named(txn, ino, name.as_bytes())? {
            Some((_, node)) if node.kind == Kind::Folder => ino = node.ino,
            _ => return Ok(None),
        }
    }
    Ok(Some(ino))
}

/// The file that stands for `uri` in a revision made under `naming`.
pub(in crate::catalog) fn locate<'t>(
    store: &Store,
    txn: &'t RoTxn<'_>,
    naming: &Naming,
    uri: &Uri,
) -> Result<Option<Located<'t>>, CatalogError> {
    let (path, _) = path_by_rule(naming, uri, None);
    let (above, name) = split(&path);
    let Some(parent) = folder(store, txn, above)? else { return Ok(None) };
    let found = locate_in(store, txn, naming, uri, (parent, above, name))?;
    if found.is_some() || !naming.extension_by_type {
        return Ok(found);
    }
    // The type that it had is not known: one of each extension.
    for media_type in super::media_types() {
        let (path, _) = path_by_rule(naming, uri, Some(media_type));
        let (above, typed) = split(&path);
        if typed == name {
            break;
        }
        if let Some(found) = locate_in(store, txn, naming, uri, (parent, above, typed))? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Tries the names that a URI with this name by rule can have.
fn locate_in<'t>(
    store: &Store,
    txn: &'t RoTxn<'_>,
    naming: &Naming,
    uri: &Uri,
    (parent, above, name): (u64, &str, &str),
) -> Result<Option<Located<'t>>, CatalogError> {
    if let Some(found) = stands_for(store, txn, naming, uri, (parent, above, name))? {
        return Ok(Some(found));
    }
    // A resource has another name only where this one is taken.
    if store.named(txn, parent, name.as_bytes())?.is_none() {
        return Ok(None);
    }
    for name in [beside_folder(name), disambiguated(name, uri)] {
        if let Some(found) = stands_for(store, txn, naming, uri, (parent, above, &name))? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The file of this name, where it stands for `uri`.
fn stands_for<'t>(
    store: &Store,
    txn: &'t RoTxn<'_>,
    naming: &Naming,
    uri: &Uri,
    (parent, above, name): (u64, &str, &str),
) -> Result<Option<Located<'t>>, CatalogError> {
    let Some((_, node)) = store.named(txn, parent, name.as_bytes())?.filter(|(_, node)| node.kind == Kind::File) else {
        return Ok(None);
    };
    let sense = || damaged("resource", name.as_bytes());
    let resource = store.inode(txn, node.ino)?.ok_or_else(sense)?.resource;
    let record = ResourceRecord::decode(resource).ok_or_else(sense)?;
    let is_it = match record.uri {
        Some(known) => known == uri.as_str(),
        None => {
            let path = if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };
            record.https == (uri.scheme() == "https") && naming.uri(&path, record.https).as_ref() == Some(uri)
        }
    };
    Ok(is_it.then_some(Located { node, resource }))
}
