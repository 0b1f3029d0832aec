//! What was learnt of inodes that the catalog knows no more is dropped now and then, so that a tree that changes all the time
//! does not leave more behind than a day's changes.

use crate::catalog::{Catalog, CatalogError};
use crate::content::Content;
use crate::platform::error_chain::chain;
use fuser::INodeNo;
use std::sync::Arc;
use std::time::Duration;

/// The first time; who mounts for a moment need not wait for it.
const FIRST: Duration = Duration::from_secs(10 * 60);

/// How often from then on.
const AGAIN: Duration = Duration::from_secs(24 * 3600);

/// Runs as long as the mount does.
pub(super) async fn run(catalog: Arc<Catalog>, content: Arc<Content>) {
    let mut due = tokio::time::interval_at(tokio::time::Instant::now() + FIRST, AGAIN);
    loop {
        due.tick().await;
        let (catalog, content) = (Arc::clone(&catalog), Arc::clone(&content));
        let forgotten = tokio::task::spawn_blocking(move || content.forget_gone(|known| gone(&catalog, known)));
        match forgotten.await {
            Ok(Ok(0)) | Err(_) => {}
            Ok(Ok(forgotten)) => tracing::debug!(forgotten, "what was learnt of inodes that are gone is dropped"),
            Ok(Err(cause)) => tracing::warn!("what was learnt of inodes that are gone stays: {}", chain(&cause)),
        }
    }
}

/// Those of `known` that are neither in the tree nor open: an inode's number never comes back.
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
