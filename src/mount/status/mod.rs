//! The status of a mount and what it answers on its control socket.

mod metrics;
mod types;

pub use types::{
    DownloadLimitStatus, ErrorStatus, HostStatus, NotificationsStatus, RefreshAnswer, RevisionStatus, Status,
    SubscriptionStatus,
};

use crate::catalog::Catalog;
use crate::content::Content;
use crate::control::Metrics;
use crate::fs::programs::Programs;
use crate::source::http::Client;
use crate::source::websub::Subscriber;
use crate::sync::status::Status as SyncStatus;
use jiff::Timestamp;
use std::sync::Arc;
use tokio::sync::watch;

/// Reports the status of a running mount.
pub(super) struct Reporter {
    /// The Source, without credentials.
    pub source: String,
    /// The mount point.
    pub directory: String,
    /// The cache folder.
    pub cache_folder: String,
    /// The file of the log.
    pub log: Option<String>,
    /// When the mount began.
    pub mounted: Timestamp,
    /// How it is kept in step.
    pub sync: watch::Receiver<SyncStatus>,
    /// The tree.
    pub catalog: Arc<Catalog>,
    /// The bytes.
    pub content: Arc<Content>,
    /// The hosts.
    pub client: Client,
    /// The programs that read.
    pub programs: Arc<Programs>,
    /// Those for which nothing is downloaded.
    pub denied: Vec<String>,
    /// The address of the metrics.
    pub metrics: Option<String>,
    /// The subscriptions at hubs.
    pub subscriber: Option<Subscriber>,
}

impl Reporter {
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
        let (content, sync) = (self.content.metrics(), self.sync.borrow().clone());
        Status {
            source: self.source.clone(),
            directory: self.directory.clone(),
            process: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cache_folder: self.cache_folder.clone(),
            log: self.log.clone(),
            mounted: self.mounted,
            revision: revision.map(RevisionStatus::from),
            unannounced: self.content.unannounced(),
            notifications: self.subscriber.as_ref().map(NotificationsStatus::from),
            hosts: HostStatus::all(self.client.traffic(), &content),
            unanswered: self.client.unanswered().map(String::from),
            errors: ErrorStatus::all(&content.failures, &sync.recent_failures),
            max_download: self.client.download_limit().map(DownloadLimitStatus::from),
            cache_failure: content.write_failure.as_ref().map(|failure| ErrorStatus {
                time: failure.since.into(),
                uri: None,
                why: failure.why.clone(),
            }),
            cache: content,
            shared_cache: self.content.shared_cache(),
            programs: self.programs.snapshot(),
            denied: self.denied.clone(),
            metrics: self.metrics.clone(),
            sync,
        }
    }
}
