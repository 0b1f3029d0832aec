//! What a mount answers on its control socket.

use super::MountConfig;
use crate::catalog::Catalog;
use crate::content::Content;
use crate::control::{Answers, Refusal, Waiting};
use crate::document::Timestamp;
use crate::sync::poll::Command;
use crate::sync::status::{HeldStatus, RefreshOutcome, Refreshed, SharedStatus};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;
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
}

impl Told {
    /// Of a mount that begins now.
    pub(super) fn new(config: &MountConfig, sync: SharedStatus, catalog: Arc<Catalog>, content: Arc<Content>) -> Told {
        Told {
            source: config.session.source.clone(),
            directory: config.directory.display().to_string(),
            mounted: Timestamp::now(),
            sync,
            catalog,
            content,
        }
    }

    /// The answers of the control socket; refreshes are ordered through `commands`.
    pub(super) fn answers(self, commands: mpsc::Sender<Command>) -> Answers {
        let sync = self.sync.clone();
        Answers {
            status: Box::new(move || json!(self.status())),
            refresh: Box::new(move |order| refresh(sync.clone(), commands.clone(), order.accept_deletions)),
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
            octets: revision.totals.octets,
            unsized_files: revision.totals.unsized_files,
        });
        Status {
            source: self.source.clone(),
            directory: self.directory.clone(),
            process: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mounted: self.mounted.to_string(),
            revision,
            unannounced: self.content.unannounced(),
            sync: self.sync.read(),
        }
    }
}

fn refresh(sync: SharedStatus, commands: mpsc::Sender<Command>, accept_deletions: bool) -> Waiting {
    Box::pin(async move {
        let (asker, answer) = oneshot::channel();
        let asked = commands.send(Command::Asked { accept_deletions, asker }).await;
        let refreshed = match asked {
            Ok(()) => answer.await.map_err(|_| Refusal::Ending)?,
            Err(_) => return Err(Refusal::Ending),
        };
        match refreshed.outcome {
            RefreshOutcome::Failed(why) => Err(Refusal::Failed(why)),
            _ => Ok(json!(RefreshAnswer { refreshed, held: sync.read().held })),
        }
    })
}
