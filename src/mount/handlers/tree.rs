//! The files below given paths of the tree, however many, without holding a revision meanwhile.

use crate::catalog::{Catalog, CatalogError, EntryId, Kind, Snapshot};
use crate::content::{Content, FetchSpec};
use crate::fs::{self, FsOptions};
use crate::platform::ino::Ino;
use std::collections::VecDeque;
use std::path::Path;
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
    /// Paths that are not read yet, the next one last. Of a folder found on the way: its inode, and the last entry read.
    open: Vec<(String, Option<(Ino, EntryId)>)>,
    found: VecDeque<Found>,
}

impl Tree {
    /// The files at and below `paths`, each once. A path below another requested path is not walked again.
    pub(super) fn walk(&self, paths: Vec<String>) -> Walk {
        let plain = |path: String| path.split('/').filter(|name| !name.is_empty()).collect::<Vec<_>>().join("/");
        let mut requested: Vec<String> = paths.into_iter().map(plain).collect();
        requested.sort_unstable_by(|a, b| Path::new(a).cmp(Path::new(b)));
        requested.dedup_by(|path, above| Path::new(path).starts_with(above));
        let open = requested.into_iter().rev().map(|path| (path, None)).collect();
        Walk { tree: self.clone(), open, found: VecDeque::new() }
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
        while self.found.is_empty() {
            let (path, folder) = self.open.pop()?;
            if let Err(cause) = self.read(path, folder) {
                self.open.clear();
                self.found.clear();
                return Some(Err(cause));
            }
        }
        self.found.pop_front().map(Ok)
    }
}

impl Walk {
    /// Reads a path, or further in a folder. The folders found in it come before its remaining entries.
    fn read(&mut self, path: String, folder: Option<(Ino, EntryId)>) -> Result<(), CatalogError> {
        let catalog = Arc::clone(&self.tree.catalog);
        let snapshot = catalog.snapshot()?;
        let (ino, mut after) = match folder {
            Some(folder) => folder,
            None => match snapshot.find(&path)? {
                Some(node) if node.kind == Kind::Folder => (node.ino, EntryId(0)),
                Some(node) => return self.push(&snapshot, path, node.ino),
                None => {
                    self.found.push_front(Found::Missing(path));
                    return Ok(());
                }
            },
        };
        let mut children = Vec::new();
        snapshot.children(ino, after, &mut |id, name, node| {
            after = id;
            let name = String::from_utf8_lossy(name);
            children.push((if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") }, node));
            children.len() < BATCH
        })?;
        if children.len() == BATCH {
            self.open.push((path, Some((ino, after))));
        }
        for (path, node) in children.into_iter().rev() {
            match node.kind {
                Kind::Folder => self.open.push((path, Some((node.ino, EntryId(0))))),
                Kind::File => self.push(&snapshot, path, node.ino)?,
            }
        }
        Ok(())
    }

    fn push(&mut self, snapshot: &Snapshot<'_>, path: String, ino: Ino) -> Result<(), CatalogError> {
        if let Some(spec) = self.tree.spec(snapshot, ino)? {
            self.found.push_front(Found::File(Box::new(File { path, spec })));
        }
        Ok(())
    }
}
