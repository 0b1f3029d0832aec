//! `POST /paths` and `POST /uris`: the path of a URI in the tree, the URI of a path, and why there is none.
//!
//! A resource that is not chosen is not stored. Of a URI that is not in the tree the mount knows which path rules leave it out
//! (`include=`, `exclude=`), and which options may leave it out by properties that only the lists hold. With `ask` the
//! lists are read again, without any choice, and the answer is certain.

use super::audit::Audits;
use super::tree::Tree;
use crate::catalog::{Catalog, CatalogError, EntryId, Kind, Naming, Snapshot};
use crate::control::api::{Identified, Located};
use crate::control::{Lines, lines_of};
use crate::document::{Entry, Uri};
use crate::platform::error_chain::chain;
use crate::platform::ino::Ino;
use crate::sync::SyncConfig;
use crate::sync::selection::{Globs, Selection};
use std::error::Error;
use std::path::Path;
use tokio::sync::OnceCell;

/// Locates each URI. With `ask` the Source's lists are read again for those that are not in the tree.
pub(super) fn paths(audits: Audits, uris: Vec<String>, ask: bool) -> Lines {
    lines_of(async move |answers| {
        let everything = OnceCell::new();
        for uri in uris {
            let mut located = Located { uri, ..Located::default() };
            let mut found = audits.in_tree(&mut located).map_err(|cause| chain(&*cause));
            if ask && located.path.is_none() && found.is_ok() {
                found = match everything.get_or_init(|| audits.everything()).await {
                    Ok((catalog, _)) => audits.in_lists(catalog, &mut located).map_err(|cause| chain(&*cause)),
                    Err(why) => Err(why.clone()),
                };
            }
            located.error = found.err();
            let _ = answers.send(located).await;
        }
    })
}

/// Identifies the file or folder at each path.
pub(super) fn uris(tree: Tree, paths: Vec<String>) -> Lines {
    lines_of(async move |answers| {
        for path in paths {
            let mut identified = Identified { path, ..Identified::default() };
            if let Err(cause) = identify(&tree, &mut identified) {
                identified.error = Some(chain(&*cause));
            }
            let _ = answers.send(identified).await;
        }
    })
}

impl Audits {
    /// Completes `located` from the tree and the options of the mount.
    fn in_tree(&self, located: &mut Located) -> Result<(), Box<dyn Error>> {
        let uri = Uri::parse(&located.uri)?;
        let config = &self.config;
        let snapshot = self.tree.catalog.snapshot()?;
        let listed = snapshot.locate(&uri)?.map(|node| snapshot.path(node.ino)).transpose()?.flatten();
        let mut paths = listed.into_iter().chain(self.item_paths(&snapshot, &uri)?);
        located.path = paths.next();
        located.further_paths = paths.collect();
        if located.path.is_some() {
            return Ok(());
        }
        if let Some(naming) = snapshot.naming()? {
            let path = naming.path(&uri, None).0;
            // The address of a folder ends in a slash, and is mostly not listed itself.
            if let Some(folder) = path.strip_suffix("%index").map(|above| above.trim_end_matches('/')) {
                if snapshot.find(folder)?.is_some_and(|node| node.kind == Kind::Folder) {
                    located.path = Some(folder.to_owned());
                    return Ok(());
                }
            }
            located.hidden_by = hiding_path(&config.selection, &path);
            located.would_be = Some(path);
        }
        if located.hidden_by.is_empty() {
            let by_property = by_property(&config.selection);
            located.may_be_hidden_by =
                by_property.iter().flat_map(Selection::identity).chain(of_sets(config)).collect();
        }
        Ok(())
    }

    /// The paths of the items of landing pages that have this address.
    fn item_paths(&self, snapshot: &Snapshot<'_>, uri: &Uri) -> Result<Vec<String>, CatalogError> {
        let mut paths = Vec::new();
        if snapshot.page_count()? > 0 {
            snapshot.files(None, &mut |_, path, resource| {
                if resource.uri.page().is_some() && resource.address() == uri {
                    paths.push(path.to_owned());
                }
                true
            })?;
        }
        Ok(paths)
    }

    /// Completes `located` from `everything`, a catalog of all that the Source lists now.
    fn in_lists(&self, everything: &Catalog, located: &mut Located) -> Result<(), Box<dyn Error>> {
        let uri = Uri::parse(&located.uri)?;
        let config = &self.config;
        let snapshot = everything.snapshot()?;
        let node = snapshot.locate(&uri)?;
        located.listed = Some(node.is_some());
        located.may_be_hidden_by.clear();
        let Some(resource) = node.map(|node| snapshot.resource(node.ino)).transpose()?.flatten() else { return Ok(()) };
        if let Some(naming) = self.tree.catalog.snapshot()?.naming()? {
            let path = naming.path(&uri, resource.media_type.as_deref()).0;
            located.hidden_by = hiding_path(&config.selection, &path);
            located.would_be = Some(path);
        }
        let entry = Entry { media_type: resource.media_type, links: resource.links, ..Entry::new(uri) };
        let hiding = by_property(&config.selection).into_iter().filter(|property| !property.chooses(&entry, ""));
        located.hidden_by.extend(hiding.flat_map(|property| property.identity()));
        if located.hidden_by.is_empty() {
            // Every other choice agrees.
            located.hidden_by.extend(of_sets(config));
        }
        Ok(())
    }
}

fn identify(tree: &Tree, identified: &mut Identified) -> Result<(), Box<dyn Error>> {
    let snapshot = tree.catalog.snapshot()?;
    let naming = snapshot.naming()?;
    let Some(node) = snapshot.find(&identified.path)? else {
        let https = is_https_around(&snapshot, &identified.path)?;
        let by_rule = naming.and_then(|naming| naming.uri(&identified.path, https));
        identified.error = Some(match by_rule {
            Some(uri) => format!("is not in the mount; by its name it would be {uri}"),
            None => "is not in the mount".to_owned(),
        });
        return Ok(());
    };
    if node.kind == Kind::Folder {
        identified.folder = true;
        if let Some(naming) = naming {
            identified.uri = folder_uri(&snapshot, &naming, &identified.path, node.ino)?;
        }
        if identified.uri.is_none() {
            identified.error = Some("is a folder without an address".to_owned());
        }
        return Ok(());
    }
    identified.uri = snapshot.resource(node.ino)?.map(|resource| resource.address().to_string());
    let shown_by = tree.spec(&snapshot, node.ino)?.map(|spec| spec.uri.to_string());
    identified.shown_by = shown_by.filter(|shown| identified.uri.as_ref() != Some(shown));
    Ok(())
}

/// The address below which the files of a folder are; `None` where no address gives such a path.
fn folder_uri(snapshot: &Snapshot<'_>, naming: &Naming, path: &str, ino: Ino) -> Result<Option<String>, CatalogError> {
    // A name does not show the scheme; a file below has one.
    let https = first_below(snapshot, ino)?.is_none_or(|uri| uri.scheme() == "https");
    let plain: Vec<_> = path.split('/').filter(|name| !name.is_empty()).chain(["%index"]).collect();
    Ok(naming.uri(&plain.join("/"), https).map(|uri| uri.to_string()))
}

/// True if the files of the folder in which a missing path would be have https addresses.
fn is_https_around(snapshot: &Snapshot<'_>, path: &str) -> Result<bool, CatalogError> {
    for above in Path::new(path).ancestors().skip(1).filter_map(Path::to_str) {
        if let Some(folder) = snapshot.find(above)?.filter(|node| node.kind == Kind::Folder) {
            return Ok(first_below(snapshot, folder.ino)?.is_none_or(|uri| uri.scheme() == "https"));
        }
    }
    Ok(true)
}

fn first_below(snapshot: &Snapshot<'_>, mut ino: Ino) -> Result<Option<Uri>, CatalogError> {
    loop {
        let mut first = None;
        snapshot.children(ino, EntryId(0), &mut |_, _, node| {
            first = Some(node);
            false
        })?;
        match first {
            Some(node) if node.kind == Kind::Folder => ino = node.ino,
            Some(node) => return Ok(snapshot.resource(node.ino)?.map(|resource| resource.uri)),
            None => return Ok(None),
        }
    }
}

/// The options that leave out every resource at `path`.
fn hiding_path(selection: &Selection, path: &str) -> Vec<String> {
    let mut hiding = Vec::new();
    if !selection.included.is_empty() && !selection.included.matches(path) {
        hiding.extend(selection.included.patterns().map(|pattern| format!("include={pattern}")));
    }
    let excludes = |pattern: &&str| {
        let mut alone = Globs::default();
        alone.add(pattern).is_ok() && alone.matches(path)
    };
    hiding.extend(selection.excluded.patterns().filter(excludes).map(|pattern| format!("exclude={pattern}")));
    hiding
}

/// The parts of a selection that look at the properties of an entry, each alone.
fn by_property(selection: &Selection) -> [Selection; 3] {
    [
        Selection { types: selection.types.clone(), ..Selection::default() },
        Selection { collections: selection.collections.clone(), ..Selection::default() },
        Selection { formats: selection.formats.clone(), ..Selection::default() },
    ]
}

/// The options that choose among sets and times.
fn of_sets(config: &SyncConfig) -> impl Iterator<Item = String> {
    let set = config.set.iter().map(|set| format!("set={set}"));
    set.chain(config.as_of.iter().map(|at| format!("at={at}")))
}
