//! The status of a mount and what it answers on its control socket.

mod metrics;
mod types;

pub use types::{
    ErrorStatus, HostStatus, NotificationsStatus, RefreshAnswer, RevisionStatus, Status, SubscriptionStatus,
};

use super::MountConfig;
use crate::catalog::Catalog;
use crate::content::Content;
use crate::control::Metrics;
use crate::fs::programs::Programs;
use crate::source::http::Client;
use crate::source::websub::Subscriber;
use crate::sync::status::SharedStatus;
use jiff::Timestamp;
use std::sync::Arc;

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

    /// The mount as it is now. Must not wait.
    pub(super) fn status(&self) -> Status {
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
            unanswered: self.client.unanswered().map(String::from),
            errors: ErrorStatus::all(&content.failures, &sync.recent_failures),
            cache: content,
            programs: self.programs.snapshot(),
            denied: self.denied.clone(),
            metrics: self.metrics.clone(),
            sync,
        }
    }
}
