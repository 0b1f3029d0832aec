//! What a mount answers on its control socket.

mod activity;
mod metrics;

pub use activity::{CacheStatus, ErrorStatus, HostStatus, ProgramStatus};
pub use metrics::exposition;

use super::MountConfig;
use super::audit::Auditor;
use super::tree::Tree;
use crate::catalog::Catalog;
use crate::content::Content;
use crate::control::{Answers, Metrics, Refusal, Waiting};
use crate::document::Timestamp;
use crate::fs::invalidator::Notices;
use crate::fs::programs::Programs;
use crate::source::http::Client;
use crate::source::websub::Subscriber;
use crate::sync::command::Command;
use crate::sync::status::{HeldStatus, RefreshOutcome, Refreshed, SharedStatus};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::{mpsc, oneshot};

/// A mount as it is now. Times are W3C datetimes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The Source, without credentials.
    pub source: String,
    /// Where it is mounted.
    pub directory: String,
    /// The process that serves it.
    pub process: u32,
    /// Which resyncfs that is.
    pub version: String,
    /// Since when.
    pub mounted: String,
    /// What is shown; `None` where the catalog cannot say.
    pub revision: Option<RevisionStatus>,
    /// How often since the mount bytes were met that are newer than the list and others than it says.
    pub unannounced: u64,
    /// How it is kept in step with its Source.
    pub sync: crate::sync::status::Status,
    /// What hubs deliver, where they may.
    #[serde(default)]
    pub notifications: Option<NotificationsStatus>,
    /// Reads and fetches since the mount began, and the cache.
    #[serde(default)]
    pub cache: CacheStatus,
    /// The hosts that were asked since the mount began, those asked most first.
    #[serde(default)]
    pub hosts: Vec<HostStatus>,
    /// The latest failures, the newest first.
    #[serde(default)]
    pub errors: Vec<ErrorStatus>,
    /// Which programs read how much, the most first.
    #[serde(default)]
    pub programs: Vec<ProgramStatus>,
    /// Programs for which nothing is fetched (`deny=`).
    #[serde(default)]
    pub denied: Vec<String>,
    /// Where Prometheus may ask too (`metrics-listen=`).
    #[serde(default)]
    pub metrics: Option<String>,
}

/// What hubs have been asked for and what they have brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationsStatus {
    /// The URL below which hubs deliver; the paths below it are known to the hubs alone.
    pub callback: String,
    /// The subscriptions.
    pub channels: Vec<SubscriptionStatus>,
    /// What came to the listener since the mount began, and how often.
    pub seen: BTreeMap<String, u64>,
}

/// One subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionStatus {
    /// The Capability List of the set.
    pub set: Option<String>,
    /// What is subscribed to.
    pub topic: String,
    /// Where.
    pub hub: String,
    /// `kept`, `asked`, `active`, `failing`, `denied` or `left`.
    pub standing: String,
    /// When the hub stops delivering.
    pub lease_ends: Option<String>,
    /// Notifications since the mount began.
    pub deliveries: u64,
    /// The last.
    pub last_delivery: Option<String>,
}

impl NotificationsStatus {
    fn of(subscriber: &Subscriber) -> NotificationsStatus {
        let time = |time: SystemTime| Timestamp::from(time).to_string();
        let now = SystemTime::now();
        let channels = subscriber.channels().into_iter().map(|channel| SubscriptionStatus {
            set: channel.subject.set.map(|set| set.to_string()),
            topic: channel.subject.topic.to_string(),
            hub: channel.subject.hub.to_string(),
            standing: channel.subscription.standing(now).as_str().to_owned(),
            lease_ends: channel.subscription.lease_ends().map(time),
            deliveries: channel.deliveries,
            last_delivery: channel.last_delivery.map(time),
        });
        NotificationsStatus {
            callback: subscriber.callback().to_string(),
            channels: channels.collect(),
            seen: subscriber.counts().into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
        }
    }
}

/// The revision that is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevisionStatus {
    /// Counts commits from 1.
    pub number: u64,
    /// When it was committed here.
    pub committed: String,
    /// The time that it speaks for.
    pub at: Option<String>,
    /// Files.
    pub files: u64,
    /// Folders, the root included.
    pub folders: u64,
    /// Sum of the published lengths.
    pub octets: u64,
    /// Files without a published length.
    pub unsized_files: u64,
}

/// What a refresh that was asked for has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefreshAnswer {
    /// What it has done.
    pub refreshed: Refreshed,
    /// Deletions that are held back now.
    pub held: Option<HeldStatus>,
}

/// Where the answers come from.
pub(super) struct Told {
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

impl Told {
    /// Of a mount that begins now.
    pub(super) fn new(
        config: &MountConfig,
        sync: SharedStatus,
        catalog: Arc<Catalog>,
        content: Arc<Content>,
        client: Client,
        programs: Arc<Programs>,
        notices: Notices,
    ) -> Told {
        Told {
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

    /// The same with what hubs deliver.
    pub(super) fn with_subscriber(self, subscriber: Option<Subscriber>) -> Told {
        Told { subscriber, ..self }
    }

    /// The same with where metrics are told too.
    pub(super) fn with_metrics_at(self, address: Option<String>) -> Told {
        Told { metrics: address, ..self }
    }

    /// The status in numbers.
    pub(super) fn metrics(self: &Arc<Self>) -> Metrics {
        let told = Arc::clone(self);
        Arc::new(move || exposition(&told.status()))
    }

    /// The answers of the control socket; refreshes are ordered through `commands`, audits made by `auditor`.
    pub(super) fn answers(self: &Arc<Self>, commands: mpsc::Sender<Command>, auditor: Auditor, tree: &Tree) -> Answers {
        let (sync, notices) = (self.sync.clone(), self.notices.clone());
        let (lister, told) = (auditor.clone(), Arc::clone(self));
        Answers {
            metrics: self.metrics(),
            status: Box::new(move || json!(told.status())),
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
            tracing::warn!(%cause, "the status tells of no revision");
            None
        });
        let revision = revision.map(|revision| RevisionStatus {
            number: revision.number,
            committed: revision.committed.to_string(),
            at: revision.at.map(|at| at.to_string()),
            files: revision.totals.files,
            folders: revision.totals.folders,
            octets: revision.totals.bytes,
            unsized_files: revision.totals.unsized_files,
        });
        let (content, sync) = (self.content.metrics(), self.sync.read());
        Status {
            source: self.source.clone(),
            directory: self.directory.clone(),
            process: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mounted: self.mounted.to_string(),
            revision,
            unannounced: self.content.unannounced(),
            notifications: self.subscriber.as_ref().map(NotificationsStatus::of),
            cache: CacheStatus::from(&content),
            hosts: HostStatus::all(self.client.traffic(), &content),
            errors: ErrorStatus::all(&content, &sync.recent_failures),
            programs: self.programs.snapshot().into_iter().map(ProgramStatus::from).collect(),
            denied: self.denied.clone(),
            metrics: self.metrics.clone(),
            sync,
        }
    }
}

/// Has a refresh done; answers when whoever looks into the mount sees what it has done.
fn refresh(sync: SharedStatus, notices: Notices, commands: mpsc::Sender<Command>, accept_deletions: bool) -> Waiting {
    Box::pin(async move {
        let (requester, answer) = oneshot::channel();
        let asked = commands.send(Command::Refresh { accept_deletions, requester }).await;
        let refreshed = match asked {
            Ok(()) => answer.await.map_err(|_| Refusal::Ending)?,
            Err(_) => return Err(Refusal::Ending),
        };
        notices.flushed().await;
        match refreshed.outcome {
            RefreshOutcome::Failed(why) => Err(Refusal::Failed(why)),
            _ => Ok(json!(RefreshAnswer { refreshed, held: sync.read().held })),
        }
    })
}
