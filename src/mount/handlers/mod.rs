//! How a mount answers the requests to its control socket; [`crate::control::api`] lists them.

mod audit;
mod evict;
mod names;
mod prefetch;
mod tree;

pub(super) use audit::Audits;
pub(super) use tree::Tree;

use super::status::{RefreshAnswer, Reporter};
use crate::control::api::{AuditRequest, FilesRequest, RefreshRequest, StatusRequest};
use crate::control::{Refusal, Routes};
use crate::fs::invalidator::Notices;
use crate::sync::command::Command;
use crate::sync::status::{RefreshOutcome, SharedStatus};
use names::Names;
use serde_json::json;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// What a refresh needs.
#[derive(Clone)]
pub(super) struct Refresher {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) notices: Notices,
    pub(super) sync: SharedStatus,
}

/// The routes of the control socket.
pub(super) fn routes(reporter: Arc<Reporter>, refresher: Refresher, tree: Tree, audits: Audits) -> Routes {
    let names = Names::new(tree.clone(), audits.clone());
    let (files, located, evicted) = (audits.clone(), names.clone(), tree.clone());
    Routes::default()
        .value(move |StatusRequest {}| std::future::ready(Ok(json!(reporter.status()))))
        .value(move |request: RefreshRequest| refresher.clone().refresh(request))
        .lines(move |request: AuditRequest| audits.audit(request))
        .lines(move |FilesRequest {}| files.files())
        .lines(move |request| prefetch::prefetch(tree.clone(), request))
        .lines(move |request| evict::evict(evicted.clone(), request))
        .lines(move |request| located.clone().paths(request))
        .lines(move |request| names.clone().uris(request))
}

impl Refresher {
    /// Refreshes the tree; answers when a reader of the mount sees the changes.
    async fn refresh(self, request: RefreshRequest) -> Result<serde_json::Value, Refusal> {
        let (requester, answer) = oneshot::channel();
        let command = Command::Refresh { accept_deletions: request.accept_deletions, requester };
        self.commands.send(command).await.map_err(|_| Refusal::Ending)?;
        let refreshed = answer.await.map_err(|_| Refusal::Ending)?;
        self.notices.flushed().await;
        match refreshed.outcome {
            RefreshOutcome::Failed(why) => Err(Refusal::Failed(why)),
            _ => Ok(json!(RefreshAnswer { refreshed, held: self.sync.read().held })),
        }
    }
}
