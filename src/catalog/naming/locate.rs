//! Where a URI is found in a revision: it has the name that its path gives, `NAME%file`, or `NAME%~DIGEST`.

use super::super::store::record::NamedNode;
use super::super::store::{Lookup, ROOT, TreeStore};
use super::super::{CatalogError, Kind, Naming};
use super::names_of_path::{path_by_rule, resolved_name, split, uri as uri_of};
use crate::document::Uri;
use heed::RoTxn;

/// The inode of the folder at `path`, which is empty for the root.
pub fn folder(store: &TreeStore, txn: &RoTxn<'_>, path: &str) -> Lookup<u64> {
    let mut ino = ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        match store.named(txn, ino, name.as_bytes())? {
            Some(named) if named.node.kind() == Kind::Folder => ino = named.node.ino,
            _ => return Ok(None),
        }
    }
    Ok(Some(ino))
}

/// The file that stands for `uri` in a revision made under `naming`; the first where there are several.
pub fn locate<'t>(store: &TreeStore, txn: &'t RoTxn<'_>, naming: &Naming, uri: &Uri) -> Lookup<NamedNode<'t>> {
    Ok(located(store, txn, naming, uri, 1)?.pop())
}

/// The files that stand for `uri`, at most so many: its sets may give it types with different extensions.
pub fn located<'t>(
    store: &TreeStore,
    txn: &'t RoTxn<'_>,
    naming: &Naming,
    uri: &Uri,
    most: usize,
) -> Result<Vec<NamedNode<'t>>, CatalogError> {
    let mut all = Vec::new();
    let (path, _) = path_by_rule(naming, uri, None);
    let (above, name) = split(&path);
    let Some(parent) = folder(store, txn, above)? else { return Ok(all) };
    // The file of this name, where it stands for the URI.
    let at = |name: &str| {
        let path = if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };
        let named = store.named(txn, parent, name.as_bytes())?;
        let is_it = |named: &NamedNode<'_>| {
            let record = named.node.resource.filter(|record| record.https == (uri.scheme() == "https"));
            record.is_some_and(|record| uri_of(&record, &path, naming).as_ref() == Some(uri))
        };
        Ok::<_, CatalogError>(named.filter(is_it))
    };
    // The type that it had is not known: one of each extension.
    let types = super::media_types().take_while(|_| naming.extension_by_type);
    let typed = types.map(|media_type| split(&path_by_rule(naming, uri, Some(media_type)).0).1.to_owned());
    for name in std::iter::once(name.to_owned()).chain(typed.take_while(|typed| typed != name)) {
        // It has another name than by rule only where that one is taken.
        if store.named(txn, parent, name.as_bytes())?.is_none() {
            continue;
        }
        for (index, is_folder) in [(0, false), (0, true), (1, false)] {
            let found = at(&resolved_name(&name, index, is_folder, uri))?;
            if let Some(found) = found {
                all.push(found);
                break;
            }
        }
        if all.len() == most {
            break;
        }
    }
    Ok(all)
}
