//! The files below given paths of the tree, however many, without holding a revision meanwhile.

use crate::catalog::{Catalog, CatalogError, EntryId, Kind, Snapshot};
use crate::content::{Content, FetchSpec};
use crate::fs::{self, FsOptions};
use crate::platform::ino::Ino;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Entries that are read in one snapshot.
const BATCH: usize = 256;

/// The tree of a mount with its bytes; clones share it.
#[derive(Clone)]
pub(in crate::mount) struct Tree {
    pub(in crate::mount) catalog: Arc<Catalog>,
    pub(in crate::mount) content: Arc<Content>,
    pub(in crate::mount) view: FsOptions,
}

/// One file of the tree.
#[derive(Debug)]
pub(super) struct File {
    /// Below the root.
    pub(super) path: String,
    /// The version that it shows.
    pub(super) spec: FetchSpec,
}

/// One finding of a walk at or below a requested path.
#[derive(Debug)]
pub(super) enum Found {
    File(Box<File>),
    /// This requested path is not in the tree.
    Missing(String),
}

/// All files below some paths, one after the other. Blocks on the disk.
pub(super) struct Walk {
    tree: Tree,
    requested: VecDeque<String>,
    /// Folders that are not read to their end, the next one last.
    open: Vec<Folder>,
    found: VecDeque<Found>,
}

struct Folder {
    ino: Ino,
    path: String,
    after: EntryId,
}

impl Tree {
    /// The files at and below `paths`, each once. A path below another requested path is not walked again.
    pub(super) fn walk(&self, paths: Vec<String>) -> Walk {
        let plain = |path: String| path.split('/').filter(|name| !name.is_empty()).collect::<Vec<_>>().join("/");
        let requested: BTreeSet<String> = paths.into_iter().map(plain).collect();
        let is_outermost = |path: &&String| {
            let above = path.match_indices('/').map(|(at, _)| &path[..at]);
            !above.chain((!path.is_empty()).then_some("")).any(|above| requested.contains(above))
        };
        let outermost = requested.iter().filter(is_outermost).cloned().collect();
        Walk { tree: self.clone(), requested: outermost, open: Vec::new(), found: VecDeque::new() }
    }

    /// The version that `ino` shows.
    pub(super) fn spec(&self, snapshot: &Snapshot<'_>, ino: Ino) -> Result<Option<FetchSpec>, CatalogError> {
        fs::fetch_spec(snapshot, ino, &self.view)
    }

    /// The size of a file, if it was learnt or is published.
    pub(super) fn size(&self, spec: &FetchSpec) -> Option<u64> {
        let published = spec.length.filter(|_| spec.encoding.is_none());
        self.content.known_size(spec.ino).or(published)
    }
}

impl Iterator for Walk {
    type Item = Result<Found, CatalogError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.found.is_empty() && !(self.requested.is_empty() && self.open.is_empty()) {
            if let Err(cause) = self.read_batch() {
                self.requested.clear();
                self.open.clear();
                return Some(Err(cause));
            }
        }
        self.found.pop_front().map(Ok)
    }
}

impl Walk {
    fn read_batch(&mut self) -> Result<(), CatalogError> {
        let catalog = Arc::clone(&self.tree.catalog);
        let snapshot = catalog.snapshot()?;
        while self.found.len() < BATCH {
            if let Some(folder) = self.open.pop() {
                self.read(&snapshot, folder)?;
                continue;
            }
            let Some(path) = self.requested.pop_front() else { break };
            match snapshot.find(&path)? {
                Some(node) if node.kind == Kind::Folder => {
                    self.open.push(Folder { ino: node.ino, path, after: EntryId(0) });
                }
                Some(node) => self.push(&snapshot, path, node.ino)?,
                None => self.found.push_back(Found::Missing(path)),
            }
        }
        Ok(())
    }

    /// Reads further in a folder. The folders found in it come before its remaining entries.
    fn read(&mut self, snapshot: &Snapshot<'_>, folder: Folder) -> Result<(), CatalogError> {
        let mut children = Vec::new();
        let mut after = folder.after;
        snapshot.children(folder.ino, folder.after, &mut |id, name, node| {
            after = id;
            children.push((String::from_utf8_lossy(name).into_owned(), node));
            children.len() < BATCH
        })?;
        let is_whole = children.len() < BATCH;
        let joined = |name: String| if folder.path.is_empty() { name } else { format!("{}/{name}", folder.path) };
        let mut folders = Vec::new();
        for (name, node) in children {
            match node.kind {
                Kind::Folder => folders.push(Folder { ino: node.ino, path: joined(name), after: EntryId(0) }),
                Kind::File => self.push(snapshot, joined(name), node.ino)?,
            }
        }
        if !is_whole {
            self.open.push(Folder { after, ..folder });
        }
        self.open.extend(folders.into_iter().rev());
        Ok(())
    }

    fn push(&mut self, snapshot: &Snapshot<'_>, path: String, ino: Ino) -> Result<(), CatalogError> {
        if let Some(spec) = self.tree.spec(snapshot, ino)? {
            self.found.push_back(Found::File(Box::new(File { path, spec })));
        }
        Ok(())
    }
}
