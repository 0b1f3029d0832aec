//! The tree of a running mount as commands see it: the files below given paths, however many, with no revision held meanwhile.

use super::audit::Auditor;
use crate::catalog::{Catalog, CatalogError, EntryId, Kind, Snapshot};
use crate::content::{Content, FetchSpec};
use crate::control::{Lines, OfTree};
use crate::fs::{self, FsOptions};
use fuser::INodeNo;
use futures_util::stream;
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Children that are looked at in one snapshot.
const BATCH: usize = 256;

/// Lines on their way to whoever asked.
const LINES: usize = 256;

/// The tree with its bytes; clones share it.
#[derive(Clone)]
pub(super) struct Tree {
    pub(super) catalog: Arc<Catalog>,
    pub(super) content: Arc<Content>,
    pub(super) view: FsOptions,
    /// What the Source's lists are read anew by.
    pub(super) auditor: Auditor,
}

/// One file of the tree.
#[derive(Debug)]
pub(super) struct File {
    /// Below the root.
    pub(super) path: String,
    /// The version that it shows.
    pub(super) wanted: FetchSpec,
}

/// Some of the files that were asked for.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) files: Vec<File>,
    /// Paths that are not in the tree.
    pub(super) absent: Vec<String>,
}

/// All files below some paths, one after the other.
pub(super) struct Below {
    tree: Tree,
    given: VecDeque<String>,
    /// Folders that are not read to their end, the next one last.
    open: Vec<Folder>,
}

struct Folder {
    ino: INodeNo,
    path: String,
    after: EntryId,
}

impl Tree {
    /// What the socket answers of it.
    pub(super) fn answers(&self) -> OfTree {
        let [prefetching, evicting, locating, identifying] = [(); 4].map(|()| self.clone());
        OfTree {
            prefetch: Box::new(move |order| prefetching.prefetch(order.paths)),
            evict: Box::new(move |order| evicting.evict(order.paths)),
            paths: Box::new(move |order| locating.locate(order)),
            uris: Box::new(move |order| identifying.identify(order.paths)),
        }
    }

    /// The files at and below `paths`, each once. A path that lies below another counts with that.
    pub(super) fn below(&self, paths: Vec<String>) -> Below {
        let plain = |path: String| path.split('/').filter(|name| !name.is_empty()).collect::<Vec<_>>().join("/");
        let given: BTreeSet<String> = paths.into_iter().map(plain).collect();
        let is_outermost = |path: &&String| {
            let above = path.match_indices('/').map(|(at, _)| &path[..at]);
            !above.chain((!path.is_empty()).then_some("")).any(|above| given.contains(above))
        };
        let outermost = given.iter().filter(is_outermost).cloned().collect();
        Below { tree: self.clone(), given: outermost, open: Vec::new() }
    }

    /// The version that `ino` shows.
    pub(super) fn wanted(&self, snapshot: &Snapshot<'_>, ino: INodeNo) -> Result<Option<FetchSpec>, CatalogError> {
        fs::wanted(snapshot, ino, &self.view)
    }
}

impl Below {
    /// The next of them; `None` at the end. Blocks on the disk.
    pub(super) fn next(&mut self) -> Result<Option<Batch>, CatalogError> {
        let tree = self.tree.clone();
        let snapshot = tree.catalog.snapshot()?;
        let mut batch = Batch::default();
        while batch.files.len() < BATCH && batch.absent.len() < BATCH {
            if let Some(folder) = self.open.pop() {
                self.read(&snapshot, folder, &mut batch)?;
                continue;
            }
            let Some(path) = self.given.pop_front() else { break };
            match snapshot.find(&path)? {
                Some(node) if node.kind == Kind::Folder => {
                    self.open.push(Folder { ino: node.ino, path, after: EntryId(0) });
                }
                Some(node) => batch.push(&tree, &snapshot, path, node.ino)?,
                None => batch.absent.push(path),
            }
        }
        let is_end = batch.files.is_empty() && batch.absent.is_empty();
        Ok((!is_end).then_some(batch))
    }

    /// Reads on in a folder; what lies in its folders comes before the rest of it.
    fn read(&mut self, snapshot: &Snapshot<'_>, folder: Folder, batch: &mut Batch) -> Result<(), CatalogError> {
        let mut children = Vec::new();
        let mut after = folder.after;
        snapshot.children(folder.ino, folder.after, &mut |id, name, node| {
            after = id;
            children.push((String::from_utf8_lossy(name).into_owned(), node));
            children.len() < BATCH
        })?;
        let joined =
            |name: &str| if folder.path.is_empty() { name.to_owned() } else { format!("{}/{name}", folder.path) };
        let mut folders = Vec::new();
        for (name, node) in &children {
            match node.kind {
                Kind::Folder => folders.push(Folder { ino: node.ino, path: joined(name), after: EntryId(0) }),
                Kind::File => batch.push(&self.tree, snapshot, joined(name), node.ino)?,
            }
        }
        if children.len() == BATCH {
            self.open.push(Folder { after, ..folder });
        }
        self.open.extend(folders.into_iter().rev());
        Ok(())
    }
}

impl Batch {
    fn push(&mut self, tree: &Tree, snapshot: &Snapshot<'_>, path: String, ino: INodeNo) -> Result<(), CatalogError> {
        if let Some(wanted) = tree.wanted(snapshot, ino)? {
            self.files.push(File { path, wanted });
        }
        Ok(())
    }
}

/// Has `work` done in the background; what it sends becomes lines. It ends, wherever it is, when nobody listens any more.
pub(super) fn told<T, F>(work: impl FnOnce(mpsc::Sender<T>) -> F + Send + 'static) -> Lines
where
    T: Serialize + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, events) = mpsc::channel::<T>(LINES);
    let left = sender.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = work(sender) => {}
            () = left.closed() => {}
        }
    });
    let lines = |mut events: mpsc::Receiver<T>| async { events.recv().await.map(|it| (json!(it), events)) };
    Box::pin(stream::unfold(events, lines))
}
