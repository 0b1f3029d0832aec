//! Audits of a running mount: its catalog, its client and what it keeps, in a folder of their own.

use super::MountConfig;
use super::names::Whole;
use crate::catalog::Catalog;
use crate::content::Content;
use crate::control::{AuditOrder, Lines};
use crate::fs;
use crate::platform::error_chain::chain;
use crate::source::http::Client;
use crate::sync::SyncConfig;
use crate::sync::audit::{self, Audit, Depth, Event, Events};
use crate::sync::selection::Selection;
use futures_util::stream;
use serde_json::json;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::sync::mpsc;

/// Events on their way to whoever asked.
const EVENTS: usize = 256;

/// Audits one mount; clones share it.
#[derive(Clone)]
pub(super) struct Auditor {
    /// Its scratch folder is each audit's own.
    audit: Audit,
    folder: PathBuf,
}

impl Auditor {
    /// Of a mount that begins now. What audits of an earlier process left in `folder` is removed: nobody else may use it.
    pub(super) fn new(
        config: &MountConfig,
        client: Client,
        catalog: Arc<Catalog>,
        content: Arc<Content>,
        folder: PathBuf,
    ) -> Auditor {
        match std::fs::remove_dir_all(&folder) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(folder = %folder.display(), %cause, "what an earlier audit left stays");
            }
            _ => {}
        }
        let view = config.fs.clone();
        let audit = Audit {
            config: Some(config.sync.clone()),
            client,
            catalog,
            content: Some(content),
            packages: None,
            versions: Arc::new(move |snapshot, ino| fs::wanted(snapshot, ino, &view)),
            scratch: PathBuf::new(),
        };
        Auditor { audit, folder }
    }

    /// See [`crate::control::Answers::audit`].
    pub(super) fn audit(&self, order: AuditOrder) -> Lines {
        let depth = Depth { content: order.content, fetch: order.fetch };
        self.start(async move |audit, events| audit.run(depth, events).await)
    }

    /// See [`crate::control::Answers::files`].
    pub(super) fn files(&self) -> Lines {
        self.start(async move |audit, events| audit.list(events).await)
    }

    /// Has `work` done in the background; what it tells becomes lines. Its files are gone at its end.
    fn start<F>(&self, work: impl FnOnce(Audit, Events) -> F + Send + 'static) -> Lines
    where
        F: Future<Output = ()> + Send,
    {
        let (sender, events) = mpsc::channel::<Event>(EVENTS);
        let auditor = self.clone();
        tokio::spawn(async move {
            let scratch = match auditor.scratch() {
                Ok(scratch) => scratch,
                Err(cause) => {
                    let what = format!("{}: {}", auditor.folder.display(), chain(&cause));
                    let _ = sender.send(Event::Failure(what)).await;
                    return;
                }
            };
            work(Audit { scratch: scratch.path().to_owned(), ..auditor.audit }, sender).await;
        });
        let lines = |mut events: mpsc::Receiver<Event>| async { events.recv().await.map(|it| (json!(it), events)) };
        Box::pin(stream::unfold(events, lines))
    }

    /// What the tree was made of.
    pub(super) fn config(&self) -> Option<&SyncConfig> {
        self.audit.config.as_ref()
    }

    /// Everything that the Source lists now, whatever this mount chooses of it.
    pub(super) async fn whole(&self) -> Whole {
        let Some(config) = self.config() else { return Err("nothing is known of the Source".to_owned()) };
        let config = SyncConfig { selection: Selection::default(), set: None, as_of: None, ..config.clone() };
        let scratch = self.scratch().map_err(|cause| format!("{}: {}", self.folder.display(), chain(&cause)))?;
        let listed = audit::listed(&config, &self.audit.client, scratch.path(), Arc::new(|_| ())).await;
        listed.map(|listed| (listed.catalog, scratch)).map_err(|cause| chain(&cause))
    }

    fn scratch(&self) -> io::Result<TempDir> {
        std::fs::create_dir_all(&self.folder)?;
        TempDir::new_in(&self.folder)
    }
}
