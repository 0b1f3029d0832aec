//! Where a URI is found in a revision: it has the name that its path gives, `NAME%file`, or `NAME%~DIGEST`.

use super::super::store::codec::damaged;
use super::super::store::record::{NodeRecord, ResourceRecord};
use super::super::store::{Lookup, ROOT, Store};
use super::super::{Kind, Naming};
use super::resolve::{path_by_rule, split};
use super::{beside_folder, disambiguated};
use crate::document::Uri;
use heed::RoTxn;

/// A file, its place and its resource.
#[derive(Clone, Copy)]
pub struct Located<'t> {
    pub node: NodeRecord<'t>,
    pub resource: &'t [u8],
}

/// The inode of the folder at `path`, which is empty for the root.
pub fn folder(store: &Store, txn: &RoTxn<'_>, path: &str) -> Lookup<u64> {
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
pub fn locate<'t>(store: &Store, txn: &'t RoTxn<'_>, naming: &Naming, uri: &Uri) -> Lookup<Located<'t>> {
    let search = Search { store, txn, naming, uri };
    let (path, _) = path_by_rule(naming, uri, None);
    let (above, name) = split(&path);
    let Some(parent) = folder(store, txn, above)? else { return Ok(None) };
    let found = search.by_rule(parent, above, name)?;
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
        if let Some(found) = search.by_rule(parent, above, typed)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// For the file of one URI.
struct Search<'s, 't, 'e> {
    store: &'s Store,
    txn: &'t RoTxn<'e>,
    naming: &'s Naming,
    uri: &'s Uri,
}

impl<'t> Search<'_, 't, '_> {
    /// Tries the names that the URI can have where its name by rule is `name`.
    fn by_rule(&self, parent: u64, above: &str, name: &str) -> Lookup<Located<'t>> {
        if let Some(found) = self.at(parent, above, name)? {
            return Ok(Some(found));
        }
        // A resource has another name only where this one is taken.
        if self.store.named(self.txn, parent, name.as_bytes())?.is_none() {
            return Ok(None);
        }
        match self.at(parent, above, &beside_folder(name))? {
            None => self.at(parent, above, &disambiguated(name, self.uri)),
            found => Ok(found),
        }
    }

    /// The file of this name, where it stands for the URI.
    fn at(&self, parent: u64, above: &str, name: &str) -> Lookup<Located<'t>> {
        let node = self.store.named(self.txn, parent, name.as_bytes())?.map(|(_, node)| node);
        let Some(node) = node.filter(|node| node.kind == Kind::File) else { return Ok(None) };
        let sense = || damaged("resource", name.as_bytes());
        let resource = self.store.inode(self.txn, node.ino)?.ok_or_else(sense)?.resource;
        let record = ResourceRecord::decode(resource).ok_or_else(sense)?;
        let is_it = match record.uri {
            Some(known) => known == self.uri.as_str(),
            None => {
                let path = if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };
                record.https == (self.uri.scheme() == "https")
                    && self.naming.uri(&path, record.https).as_ref() == Some(self.uri)
            }
        };
        Ok(is_it.then_some(Located { node, resource }))
    }
}
