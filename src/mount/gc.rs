//! Drops learnt metadata of inodes that are gone, so that a tree with constant changes leaves at most a day's of it behind.

use crate::catalog::{Catalog, CatalogError};
use crate::content::Content;
use crate::platform::error_chain::chain;
use fuser::INodeNo;
use std::sync::Arc;
use std::time::Duration;

/// The first time after the mount; a short mount does without.
const FIRST: Duration = Duration::from_secs(10 * 60);

/// The interval from then on.
const INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Runs as long as the mount does.
pub(super) async fn run(catalog: Arc<Catalog>, content: Arc<Content>) {
    let mut due = tokio::time::interval_at(tokio::time::Instant::now() + FIRST, INTERVAL);
    loop {
        due.tick().await;
        let (catalog, content) = (Arc::clone(&catalog), Arc::clone(&content));
        let dropped = tokio::task::spawn_blocking(move || content.forget_gone(|known| gone(&catalog, known)));
        match dropped.await {
            Ok(Ok(dropped)) => tracing::debug!(dropped, "learnt metadata of inodes that are gone"),
            Ok(Err(cause)) => tracing::warn!("learnt metadata of inodes that are gone stays: {}", chain(&cause)),
            Err(_) => {}
        }
    }
}

/// Those of `known` that are neither in the tree nor open: an inode's number is never used again.
fn gone(catalog: &Catalog, known: &[INodeNo]) -> Result<Vec<INodeNo>, CatalogError> {
    let snapshot = catalog.snapshot()?;
    let mut gone = Vec::new();
    for ino in known {
        if snapshot.attributes(*ino)?.is_none() {
            gone.push(*ino);
        }
    }
    Ok(gone)
}
