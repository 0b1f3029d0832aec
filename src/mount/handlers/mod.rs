//! The answers of a mount to the requests at its control socket; [`crate::control::api`] lists them.

mod audit;
mod cached;
mod names;
mod pages;
mod tree;

pub(super) use audit::Audits;
pub(super) use pages::PagesFirst;
pub(super) use tree::Tree;

use super::status::{RefreshAnswer, Reporter};
use crate::control::Answer;
use crate::control::api::Request;
use crate::fs::invalidator::Notices;
use crate::sync::audit::Depth;
use crate::sync::command::Command;
use crate::sync::status::RefreshOutcome;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// A status waits no longer for a disk.
const MEASURING: Duration = Duration::from_secs(1);

/// Answers the requests to one mount; clones share it.
#[derive(Clone)]
pub(super) struct Handlers {
    pub(super) reporter: Arc<Reporter>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) notices: Notices,
    pub(super) audits: Audits,
    pub(super) pages: PagesFirst,
}

impl Handlers {
    pub(super) async fn answer(self, request: Request) -> Answer {
        match request {
            Request::Status {} => self.status().await,
            Request::Metrics {} => Answer::Metrics(self.reporter.metrics()()),
            _ if self.reporter.is_starting() => {
                Answer::Failed { why: "the first tree is not complete yet".to_owned(), kind: None }
            }
            Request::Files {} => Answer::Lines(self.audits.files()),
            Request::Refresh { accept_deletions } => self.refresh(accept_deletions).await.unwrap_or(Answer::Ending),
            Request::Audit { content, fetch } => Answer::Lines(self.audits.audit(Depth { content, fetch })),
            Request::Prefetch { paths, dry_run } => {
                Answer::Lines(cached::prefetch(self.audits.tree, self.pages, paths, dry_run))
            }
            Request::Evict { paths } => Answer::Lines(cached::evict(self.audits.tree, paths)),
            Request::Paths { uris, ask } => Answer::Lines(names::paths(self.audits, uris, ask)),
            Request::Uris { paths } => Answer::Lines(names::uris(self.audits.tree, paths)),
        }
    }

    /// The status. What other folders of the cache take is measured for it, as long as the disk answers soon.
    async fn status(self) -> Answer {
        let content = Arc::clone(&self.audits.tree.content);
        let _ = tokio::time::timeout(MEASURING, tokio::task::spawn_blocking(move || content.measure())).await;
        Answer::Value(json!(self.reporter.status()))
    }

    /// Refreshes the tree; answers when a reader of the mount sees the changes. `None` where the mount ends before.
    async fn refresh(self, accept_deletions: bool) -> Option<Answer> {
        let (requester, answer) = oneshot::channel();
        self.commands.send(Command::Refresh { accept_deletions, requester }).await.ok()?;
        let refreshed = answer.await.ok()?;
        self.notices.flushed().await;
        Some(match refreshed.outcome {
            RefreshOutcome::Failed(ref why) => {
                let kind = refreshed.failed.first().and_then(|failed| json!(failed.kind).as_str().map(str::to_owned));
                Answer::Failed { why: refreshed.why().unwrap_or_else(|| why.clone()), kind }
            }
            _ => Answer::Value(json!(RefreshAnswer { refreshed, held: self.pages.sync.borrow().held.clone() })),
        })
    }
}
