//! The status of a mount and what it answers on its control socket.

mod metrics;
mod types;

pub use types::{
    DownloadStatus, ErrorStatus, MinuteStatus, NotificationsStatus, RefreshAnswer, RevisionStatus, Status,
    SubscriptionStatus,
};

use crate::catalog::Catalog;
use crate::content::{self, Content};
use crate::control::Metrics;
use crate::fs::readers::Programs;
use crate::source::http::{Client, HostTraffic};
use crate::source::websub::Subscriber;
use crate::sync::status::SyncStatus;
use crate::sync::{Progressing, Stage};
use jiff::Timestamp;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Reports the status of a running mount.
pub(super) struct Reporter {
    /// What stays the same while the process runs. `mounted` is when it began.
    pub fixed: Status,
    /// The last stage of the first tree.
    pub stage: Mutex<Stage>,
    /// When the mount was there.
    pub mounted: OnceLock<Timestamp>,
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
    /// The subscriptions at hubs.
    pub subscriber: OnceLock<Subscriber>,
    /// The counters of each minute, the oldest first.
    pub minutes: Mutex<VecDeque<MinuteStatus>>,
}

/// Between two entries of the minutes.
const MINUTE: Duration = Duration::from_secs(60);
/// The most minutes that are kept: three hours.
const MOST_MINUTES: usize = 180;

impl Reporter {
    /// The status in the text format of Prometheus.
    pub(super) fn metrics(self: &Arc<Self>) -> Metrics {
        let reporter = Arc::clone(self);
        Arc::new(move || metrics::text(reporter.status()))
    }

    /// Notes the counters of each minute, as long as the mount runs.
    pub(super) async fn note_minutes(self: Arc<Self>) {
        let mut due = tokio::time::interval(MINUTE);
        loop {
            due.tick().await;
            let now = self.minute();
            let mut minutes = self.minutes.lock().unwrap_or_else(PoisonError::into_inner);
            if minutes.len() == MOST_MINUTES {
                minutes.pop_front();
            }
            minutes.push_back(now);
        }
    }

    /// The counters now.
    fn minute(&self) -> MinuteStatus {
        let received_bytes = self.client.traffic().iter().map(|host| host.bytes).sum();
        MinuteStatus { time: Timestamp::now(), received_bytes, cache_bytes: self.content.metrics().bytes }
    }

    /// The minutes up to now.
    fn minutes(&self) -> Vec<MinuteStatus> {
        let noted = self.minutes.lock().unwrap_or_else(PoisonError::into_inner);
        noted.iter().copied().chain([self.minute()]).collect()
    }

    /// `progress` of a first tree, which the status shows too.
    pub(super) fn noting(self: &Arc<Self>, progress: Progressing) -> Progressing {
        let reporter = Arc::clone(self);
        Arc::new(move |stage| {
            if !matches!(stage, Stage::Unanswered(_) | Stage::Remark(_)) {
                *reporter.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage.clone();
            }
            progress(stage);
        })
    }

    /// True while the mount is not there yet.
    pub(super) fn is_starting(&self) -> bool {
        self.mounted.get().is_none()
    }

    /// The downloads under way, those that have come furthest first.
    fn downloads(&self) -> Vec<DownloadStatus> {
        let mut downloads = self.content.downloads();
        downloads.sort_by_key(|(_, bytes, _)| Reverse(*bytes));
        let Ok(snapshot) = self.catalog.snapshot() else { return Vec::new() };
        let named = downloads.into_iter().filter_map(|(ino, bytes, of_bytes)| {
            Some(DownloadStatus { uri: snapshot.resource(ino).ok()??.uri.to_string(), bytes, of_bytes })
        });
        named.collect()
    }

    /// The hosts that were asked, the most requests first, with the pauses of mirrors.
    fn hosts(&self, content: &content::Metrics) -> Vec<HostTraffic> {
        let mut hosts = self.client.traffic();
        for host in &mut hosts {
            let is_it = |cooling: &&content::Cooling| host.host.as_ref().is_some_and(|name| **name == *cooling.host);
            host.cools_for = content.cooling.iter().find(is_it).map(|cooling| cooling.left);
        }
        hosts
    }

    /// The mount as it is now. Must not wait.
    pub(super) fn status(&self) -> Status {
        let revision = self.catalog.revision().unwrap_or_else(|cause| {
            tracing::warn!(%cause, "the status shows no revision");
            None
        });
        let (content, sync) = (self.content.metrics(), self.sync.borrow().clone());
        Status {
            mounted: self.mounted.get().copied().unwrap_or(self.fixed.mounted),
            starting: self.is_starting().then(|| self.stage.lock().unwrap_or_else(PoisonError::into_inner).clone()),
            minutes: self.minutes(),
            downloads: self.downloads(),
            revision: revision.map(RevisionStatus::from),
            unannounced: self.content.unannounced(),
            notifications: self.subscriber.get().map(NotificationsStatus::from),
            hosts: self.hosts(&content),
            unanswered: self.client.unanswered().map(String::from),
            errors: ErrorStatus::all(&content.failures, &sync.recent_failures),
            max_download: self.client.download_limit(),
            cache_failure: content.write_failure.as_ref().map(|failure| ErrorStatus {
                time: failure.since.into(),
                uri: None,
                why: failure.why.clone(),
            }),
            cache: content,
            shared_cache: self.content.shared_cache(),
            programs: self.programs.snapshot(),
            sync,
            ..self.fixed.clone()
        }
    }
}
