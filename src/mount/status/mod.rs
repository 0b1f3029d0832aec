//! The status of a mount and what it answers on its control socket.

mod metrics;
mod types;

pub use types::{
    ErrorStatus, HostStatus, NotificationsStatus, RefreshAnswer, RevisionStatus, Status, SubscriptionStatus,
};

use super::MountConfig;
use super::audit::Auditor;
use super::tree::Tree;
use crate::catalog::Catalog;
use crate::content::Content;
use crate::control::{Answers, Metrics, Refusal, Waiting};
use crate::fs::invalidator::Notices;
use crate::fs::programs::Programs;
use crate::source::http::Client;
use crate::source::websub::Subscriber;
use crate::sync::command::Command;
use crate::sync::status::{RefreshOutcome, SharedStatus};
use jiff::Timestamp;
use serde_json::json;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Reports the status of a running mount.
pub(super) struct Reporter {
    source: String,
    directory: String,
    mounted: Timestamp,
    sync: SharedStatus,
    catalog: Arc<Catalog>,
    content: Arc<Content>,
    client: Client,
    programs: Arc<Programs>,
    denied: Vec<String>,
    metrics: Option<String>,
    subscriber: Option<Subscriber>,
    notices: Notices,
}

impl Reporter {
    /// The reporter of a mount that begins now.
    pub(super) fn new(
        config: &MountConfig,
        sync: SharedStatus,
        catalog: Arc<Catalog>,
        content: Arc<Content>,
        client: Client,
        programs: Arc<Programs>,
        notices: Notices,
    ) -> Reporter {
        Reporter {
            source: config.session.source.clone(),
            directory: config.directory.display().to_string(),
            mounted: Timestamp::now(),
            sync,
            catalog,
            content,
            client,
            programs,
            denied: config.denied.iter().map(|name| name.to_string()).collect(),
            metrics: None,
            subscriber: None,
            notices,
        }
    }

    /// The same with the subscriptions at hubs.
    pub(super) fn with_subscriber(self, subscriber: Option<Subscriber>) -> Reporter {
        Reporter { subscriber, ..self }
    }

    /// The same with the address of the metrics.
    pub(super) fn with_metrics_at(self, address: Option<String>) -> Reporter {
        Reporter { metrics: address, ..self }
    }

    /// The status in the text format of Prometheus.
    pub(super) fn metrics(self: &Arc<Self>) -> Metrics {
        let reporter = Arc::clone(self);
        Arc::new(move || metrics::text(reporter.status()))
    }

    /// The answers of the control socket; refreshes are ordered through `commands`, audits made by `auditor`.
    pub(super) fn answers(self: &Arc<Self>, commands: mpsc::Sender<Command>, auditor: Auditor, tree: &Tree) -> Answers {
        let (sync, notices) = (self.sync.clone(), self.notices.clone());
        let (lister, reporter) = (auditor.clone(), Arc::clone(self));
        Answers {
            metrics: self.metrics(),
            status: Box::new(move || json!(reporter.status())),
            refresh: Box::new(move |order| {
                refresh(sync.clone(), notices.clone(), commands.clone(), order.accept_deletions)
            }),
            audit: Box::new(move |order| auditor.audit(order)),
            files: Box::new(move || lister.files()),
            tree: tree.answers(),
        }
    }

    fn status(&self) -> Status {
        let revision = self.catalog.revision().unwrap_or_else(|cause| {
            tracing::warn!(%cause, "the status shows no revision");
            None
        });
        let (content, sync) = (self.content.metrics(), self.sync.read());
        Status {
            source: self.source.clone(),
            directory: self.directory.clone(),
            process: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mounted: self.mounted,
            revision: revision.map(RevisionStatus::from),
            unannounced: self.content.unannounced(),
            notifications: self.subscriber.as_ref().map(NotificationsStatus::from),
            hosts: HostStatus::all(self.client.traffic(), &content),
            errors: ErrorStatus::all(&content.failures, &sync.recent_failures),
            cache: content,
            programs: self.programs.snapshot(),
            denied: self.denied.clone(),
            metrics: self.metrics.clone(),
            sync,
        }
    }
}

/// Requests a refresh; ready when its changes can be seen in the mount.
fn refresh(sync: SharedStatus, notices: Notices, commands: mpsc::Sender<Command>, accept_deletions: bool) -> Waiting {
    Box::pin(async move {
        let (requester, answer) = oneshot::channel();
        let asked = commands.send(Command::Refresh { accept_deletions, requester }).await;
        let refreshed = match asked {
            Ok(()) => answer.await.map_err(|_| Refusal::Ending)?,
            Err(_) => return Err(Refusal::Ending),
        };
        notices.heard().await;
        match refreshed.outcome {
            RefreshOutcome::Failed(why) => Err(Refusal::Failed(why)),
            _ => Ok(json!(RefreshAnswer { refreshed, held: sync.read().held })),
        }
    })
}
