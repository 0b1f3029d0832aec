//! Which path a URI has in the tree, which URI a path has, and why there is none.
//!
//! What is not chosen is not stored. So of a URI that is not in the tree the catalog tells by which path rule it would be
//! left out (`include=`, `exclude=`), and which options may leave it out by what its entry says, which is not known here. Only
//! who asks for it has the lists read anew, without any choice, and is told by which option it is left out, or that the
//! Source does not list it.

use super::tree::{Tree, told};
use crate::catalog::{Catalog, CatalogError, EntryId, Kind, Naming, Snapshot};
use crate::control::{Lines, UrisOrder};
use crate::document::{Entry, Uri};
use crate::platform::error_chain::chain;
use crate::sync::SyncConfig;
use crate::sync::selection::Selection;
use fuser::INodeNo;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Where one URI lies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located {
    /// As it was asked for.
    pub uri: String,
    /// Its path below the root; `None` where it is not in the tree.
    pub path: Option<String>,
    /// The path that it would have by the rules for names alone.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub would_be: Option<String>,
    /// Options that leave it out.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub hidden_by: Vec<String>,
    /// Options that may leave it out: what they look at is not known here.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub may_be_hidden_by: Vec<String>,
    /// Whether the Source lists it, where its lists were read anew.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub listed: Option<bool>,
    /// Why nothing can be told.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// What lies at one path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identified {
    /// Below the root, as it was asked for.
    pub path: String,
    /// The resource's; of a folder the address below which its files lie.
    pub uri: Option<String>,
    /// Whether it is a folder.
    #[serde(default)]
    pub folder: bool,
    /// The representation whose bytes are shown in its place (`alternate=`).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub shown_by: Option<String>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

impl Tree {
    /// See [`crate::control::OfTree::paths`].
    pub(super) fn locate(&self, order: UrisOrder) -> Lines {
        let tree = self.clone();
        told(async move |events: mpsc::Sender<Located>| {
            let mut anew = None;
            for text in order.uris {
                let mut located = tree.located(text);
                if located.path.is_none() && located.error.is_none() && order.ask {
                    if anew.is_none() {
                        anew = Some(tree.auditor.whole().await);
                    }
                    match &anew {
                        Some(Ok((catalog, _scratch))) => tree.ask_of(catalog, &mut located),
                        Some(Err(why)) => located.error = Some(why.clone()),
                        None => {}
                    }
                }
                let _ = events.send(located).await;
            }
        })
    }

    fn located(&self, text: String) -> Located {
        let mut located = Located { uri: text, ..Located::default() };
        let found = match Uri::parse(&located.uri) {
            Ok(uri) => self.locate_in_tree(&uri, &mut located).map_err(|cause| chain(&cause)),
            Err(cause) => Err(chain(&cause)),
        };
        located.error = found.err();
        located
    }

    fn locate_in_tree(&self, uri: &Uri, located: &mut Located) -> Result<(), CatalogError> {
        let snapshot = self.catalog.snapshot()?;
        if let Some(node) = snapshot.locate(uri)? {
            located.path = snapshot.path(node.ino)?;
            return Ok(());
        }
        let Some(config) = self.auditor.config() else { return Ok(()) };
        if let Some(naming) = snapshot.naming()? {
            let path = naming.path(uri, None).path;
            located.hidden_by = hiding_paths(&config.selection, &path);
            located.would_be = Some(path.into());
        }
        if located.hidden_by.is_empty() {
            located.may_be_hidden_by = narrowing(config);
        }
        Ok(())
    }

    /// Completes `located` by what `whole`, a catalog of all that the Source lists now, says of it.
    fn ask_of(&self, whole: &Catalog, located: &mut Located) {
        let asked = self.read_listed(whole, located);
        if let Err(cause) = asked {
            located.error = Some(chain(&cause));
        }
    }

    fn read_listed(&self, whole: &Catalog, located: &mut Located) -> Result<(), CatalogError> {
        let (Ok(uri), Some(config)) = (Uri::parse(&located.uri), self.auditor.config()) else { return Ok(()) };
        let snapshot = whole.snapshot()?;
        let node = snapshot.locate(&uri)?;
        located.listed = Some(node.is_some());
        located.may_be_hidden_by.clear();
        let Some(resource) = node.map(|node| snapshot.resource(node.ino)).transpose()?.flatten() else { return Ok(()) };
        if let Some(naming) = self.catalog.snapshot()?.naming()? {
            let path = naming.path(&uri, resource.media_type.as_deref()).path;
            located.hidden_by = hiding_paths(&config.selection, &path);
            located.would_be = Some(path.into());
        }
        let entry = Entry { media_type: resource.media_type, links: resource.links, ..Entry::new(uri) };
        located.hidden_by.extend(hiding_statements(&config.selection, &entry));
        if located.hidden_by.is_empty() {
            // Every other choice agrees.
            located.hidden_by.extend(config.set.iter().map(|set| format!("set={set}")));
            located.hidden_by.extend(config.as_of.iter().map(|at| format!("at={at}")));
        }
        Ok(())
    }

    /// See [`crate::control::OfTree::uris`].
    pub(super) fn identify(&self, paths: Vec<String>) -> Lines {
        let tree = self.clone();
        told(async move |events: mpsc::Sender<Identified>| {
            for path in paths {
                let mut identified = Identified { path, ..Identified::default() };
                let found = tree.identify_one(&mut identified);
                if let Err(cause) = found {
                    identified.error = Some(chain(&cause));
                }
                let _ = events.send(identified).await;
            }
        })
    }

    fn identify_one(&self, identified: &mut Identified) -> Result<(), CatalogError> {
        let snapshot = self.catalog.snapshot()?;
        let naming = snapshot.naming()?;
        let Some(node) = snapshot.find(&identified.path)? else {
            let by_rule = naming.and_then(|naming| naming.uri(&identified.path, true));
            identified.error = Some(match by_rule {
                Some(uri) => format!("is not in the tree; by its name it would be {uri}, or the same with http:"),
                None => "is not in the tree".to_owned(),
            });
            return Ok(());
        };
        if node.kind == Kind::Folder {
            identified.folder = true;
            identified.uri = match naming {
                Some(naming) => folder_uri(&snapshot, &naming, &identified.path, node.ino)?,
                None => None,
            };
            if identified.uri.is_none() {
                identified.error = Some("is a folder that stands for no address".to_owned());
            }
            return Ok(());
        }
        let resource = snapshot.resource(node.ino)?;
        let wanted = self.wanted(&snapshot, node.ino)?;
        identified.uri = resource.map(|resource| resource.uri.to_string());
        let shown_by = wanted.map(|wanted| wanted.uri.to_string());
        identified.shown_by = shown_by.filter(|shown| identified.uri.as_ref() != Some(shown));
        Ok(())
    }
}

/// The address below which the files of a folder lie; `None` where no address gives such a path.
fn folder_uri(
    snapshot: &Snapshot<'_>,
    naming: &Naming,
    path: &str,
    ino: INodeNo,
) -> Result<Option<String>, CatalogError> {
    // Names do not tell the scheme: a file below does.
    let https = first_below(snapshot, ino)?.is_none_or(|uri| uri.scheme() == "https");
    let plain: Vec<_> = path.split('/').filter(|name| !name.is_empty()).chain(["%index"]).collect();
    Ok(naming.uri(&plain.join("/"), https).map(|uri| uri.to_string()))
}

fn first_below(snapshot: &Snapshot<'_>, mut ino: INodeNo) -> Result<Option<Uri>, CatalogError> {
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

/// The options that leave out whatever lies at `path`.
fn hiding_paths(selection: &Selection, path: &str) -> Vec<String> {
    let mut hiding = Vec::new();
    if !selection.included.is_empty() && !selection.included.matches(path) {
        hiding.extend(selection.included.patterns().map(|pattern| format!("include={pattern}")));
    }
    if selection.excluded.matches(path) {
        hiding.extend(selection.excluded.patterns().filter(|it| covers(it, path)).map(|it| format!("exclude={it}")));
    }
    hiding
}

fn covers(pattern: &str, path: &str) -> bool {
    let mut alone = crate::sync::selection::Globs::default();
    alone.add(pattern).is_ok() && alone.matches(path)
}

/// The options that leave out `entry` for what it says itself.
fn hiding_statements(selection: &Selection, entry: &Entry) -> Vec<String> {
    let kinds = [
        Selection { types: selection.types.clone(), ..Selection::default() },
        Selection { collections: selection.collections.clone(), ..Selection::default() },
        Selection { formats: selection.formats.clone(), ..Selection::default() },
    ];
    kinds.iter().filter(|kind| !kind.chooses(entry, "")).flat_map(Selection::identity).collect()
}

/// The options of a mount that look at what an entry says.
fn narrowing(config: &SyncConfig) -> Vec<String> {
    let selection = &config.selection;
    let statements = Selection {
        types: selection.types.clone(),
        collections: selection.collections.clone(),
        formats: selection.formats.clone(),
        ..Selection::default()
    };
    let mut options = statements.identity();
    options.extend(config.set.iter().map(|set| format!("set={set}")));
    options.extend(config.as_of.iter().map(|at| format!("at={at}")));
    options
}

/// A catalog of everything that the Source lists now, and the folder that it lies in.
pub(super) type Whole = Result<(Arc<Catalog>, tempfile::TempDir), String>;
