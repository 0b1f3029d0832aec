//! Behind a commit: room is made in the catalog, in the spool and among the packages.

use super::Synchronizer;
use super::commit::CatalogWriter;
use super::position::Position;
use crate::catalog::Catalog;
use crate::platform::error_chain::chain;
use crate::platform::scheduling;
use crate::source::documents::DocumentCache;
use crate::source::zip::Packages;

impl Synchronizer {
    /// After a commit, in the background: makes room in the catalog, in the spool and among the packages. Waits for the spool to be tidy
    /// behind the commit before: two at a time would overwrite each other's list of what it holds.
    pub async fn tidy(&mut self) {
        self.writer.tidied().await;
        let catalog = self.catalog.clone();
        tokio::task::spawn_blocking(move || {
            scheduling::low_priority(|| compact(&catalog));
            crate::platform::allocator::release_free();
        });
        let (catalog, spool, packages) =
            (self.catalog.clone(), self.fetch.spool.cache.clone(), self.fetch.packages.clone());
        let tidy = move || tidy_folders(&catalog, &spool, &packages);
        self.writer.tidying = Some(tokio::task::spawn_blocking(|| scheduling::low_priority(tidy)));
    }
}

impl CatalogWriter {
    /// Waits until the spool is tidy. A document fetched meanwhile belongs to no position yet and would be dropped.
    pub(super) async fn tidied(&mut self) {
        if let Some(tidying) = self.tidying.take() {
            if let Err(cause) = tidying.await {
                tracing::warn!(%cause, "the folder of downloaded lists cannot be tidied");
            }
        }
    }
}

/// Copies the catalog without the holes that replaced revisions left, where these have become many.
fn compact(catalog: &Catalog) {
    match catalog.compact() {
        Ok(true) => tracing::info!("the catalog was compacted"),
        Ok(false) => {}
        Err(cause) => tracing::warn!(%cause, "the catalog cannot be compacted"),
    }
}

/// Drops documents that no list refers to any more and makes the rest small; drops what is kept of packages that no dump
/// lists any more.
fn tidy_folders(catalog: &Catalog, spool: &DocumentCache, packages: &Packages) {
    let keep = match catalog.snapshot().and_then(|snapshot| snapshot.position()) {
        Ok(stored) => stored.as_deref().and_then(Position::decode),
        Err(cause) => {
            tracing::warn!(%cause, "the folder of downloaded lists cannot be tidied");
            return;
        }
    };
    if let Some(position) = &keep {
        if let Err(cause) = packages.retain(&position.packages()) {
            tracing::warn!("the folder of packages cannot be tidied: {}", chain(&cause));
        }
    }
    let keep: Vec<_> = keep.iter().flat_map(Position::locations).collect();
    if let Err(cause) = spool.keep(&keep) {
        tracing::warn!(%cause, "the folder of downloaded lists cannot be tidied");
    }
}
