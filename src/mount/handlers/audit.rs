//! `POST /audit` and `GET /files`: audits of the mounted tree, each in a separate scratch folder.

use super::tree::Tree;
use crate::catalog::Catalog;
use crate::control::{Lines, lines_of};
use crate::fs;
use crate::platform::error_chain::chain;
use crate::source::http::Client;
use crate::sync::SyncConfig;
use crate::sync::audit::{self, Audit, AuditEvent, Depth, Events};
use crate::sync::selection::Selection;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// Makes the audits of one mount; clones share it.
#[derive(Clone)]
pub(in crate::mount) struct Audits {
    /// The settings that the tree was made with.
    pub(super) config: SyncConfig,
    client: Client,
    pub(super) tree: Tree,
    folder: PathBuf,
}

/// A catalog of everything that the Source lists now, and the folder that it is in.
pub(super) type Everything = (Arc<Catalog>, TempDir);

impl Audits {
    /// The audits of a mount that begins now. Audits of an earlier process left nothing of use in `folder`: it is removed. No other
    /// process may use it.
    pub(in crate::mount) fn new(config: SyncConfig, client: Client, tree: Tree, folder: PathBuf) -> Audits {
        match std::fs::remove_dir_all(&folder) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(folder = %folder.display(), %cause, "the files of an earlier audit cannot be removed");
            }
            _ => {}
        }
        Audits { config, client, tree, folder }
    }

    /// Compares the tree with the Source.
    pub(super) fn audit(&self, depth: Depth) -> Lines {
        self.run(async move |audit, events| audit.run(depth, events).await)
    }

    /// Lists every file.
    pub(super) fn files(&self) -> Lines {
        self.run(async move |audit, events| audit.list(events).await)
    }

    /// Everything that the Source lists now, without the choice of this mount. An error is the reason, for a person.
    pub(super) async fn everything(&self) -> Result<Everything, String> {
        let config = SyncConfig { selection: Selection::default(), set: None, as_of: None, ..self.config.clone() };
        let scratch = self.scratch()?;
        let listed = audit::listed(&config, &self.client, scratch.path(), Arc::new(|_| ())).await;
        listed.map(|listed| (listed.catalog, scratch)).map_err(|cause| chain(&cause))
    }

    fn run<F>(&self, work: impl FnOnce(Audit, Events) -> F + Send + 'static) -> Lines
    where
        F: Future<Output = ()> + Send,
    {
        let audits = self.clone();
        lines_of(async move |events: Events| match audits.scratch() {
            Ok(scratch) => work(audits.audit_in(scratch.path().to_owned()), events).await,
            Err(why) => {
                let _ = events.send(AuditEvent::Failure(why)).await;
            }
        })
    }

    fn audit_in(&self, scratch: PathBuf) -> Audit {
        let view = self.tree.view.clone();
        Audit {
            config: Some(self.config.clone()),
            client: self.client.clone(),
            catalog: self.tree.catalog.clone(),
            content: Some(self.tree.content.clone()),
            packages: None,
            versions: Arc::new(move |snapshot, ino| fs::fetch_spec(snapshot, ino, &view)),
            scratch,
        }
    }

    fn scratch(&self) -> Result<TempDir, String> {
        let scratch = std::fs::create_dir_all(&self.folder).and_then(|()| TempDir::new_in(&self.folder));
        scratch.map_err(|cause| format!("{}: {}", self.folder.display(), chain(&cause)))
    }
}
