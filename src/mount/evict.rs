//! Cached bytes of files and folders dropped because somebody wants their room.

use super::tree::{Tree, told};
use crate::content::store::Evicted;
use crate::control::Lines;
use crate::platform::error_chain::chain;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

/// What an eviction tells; the last is `Done` or `Failure`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvictEvent {
    /// The bytes of this path stay: they belong to a version that somebody has open, or are being fetched.
    Kept(String),
    /// There is no such path in the tree.
    Absent(String),
    /// All was dropped that could be.
    Done(EvictSummary),
    /// It could not go on: why.
    Failure(String),
}

/// What an eviction came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictSummary {
    /// Files of which something was dropped.
    pub files: u64,
    /// Octets, in allocated blocks where they lay on the disk.
    pub octets: u64,
    /// Files whose bytes stay.
    pub kept: u64,
    /// Paths that are not in the tree.
    pub absent: u64,
}

impl Tree {
    /// See [`crate::control::OfTree::evict`].
    pub(super) fn evict(&self, paths: Vec<String>) -> Lines {
        let tree = self.clone();
        told(async move |events| {
            let last = events.clone();
            let evicted = tokio::task::spawn_blocking(move || tree.evict_below(paths, &events)).await;
            let event = match evicted {
                Ok(event) => event,
                Err(cause) => EvictEvent::Failure(cause.to_string()),
            };
            // Who left before the end does not want to know.
            let _ = last.send(event).await;
        })
    }

    fn evict_below(&self, paths: Vec<String>, events: &mpsc::Sender<EvictEvent>) -> EvictEvent {
        let mut below = self.below(paths);
        let mut summary = EvictSummary::default();
        loop {
            let batch = match below.next() {
                Ok(Some(batch)) if !events.is_closed() => batch,
                Ok(_) => return EvictEvent::Done(summary),
                Err(cause) => return EvictEvent::Failure(chain(&cause)),
            };
            for path in batch.absent {
                summary.absent += 1;
                let _ = events.blocking_send(EvictEvent::Absent(path));
            }
            for file in batch.files {
                match self.content.evict(&file.wanted) {
                    Evicted::Absent => {}
                    Evicted::Bytes(octets) => {
                        summary.files += 1;
                        summary.octets += octets;
                    }
                    Evicted::Kept => {
                        summary.kept += 1;
                        let _ = events.blocking_send(EvictEvent::Kept(file.path));
                    }
                }
            }
        }
    }
}
