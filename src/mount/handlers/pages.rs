//! Landing pages below some paths are read before what they lead to is downloaded.

use super::tree::{Found, Tree};
use crate::catalog::CatalogError;
use crate::control::api::PrefetchEvent;
use crate::platform::ino::Ino;
use crate::sync::items::follow::is_due;
use crate::sync::status::SyncStatus;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Time between two looks at how many pages are read.
const STEP: Duration = Duration::from_millis(250);

/// Looks in a row at which no page is read any more before the others are given up.
const LOOKS_AT_REST: u32 = 8;

/// The pages of a mount that follows them.
#[derive(Clone)]
pub struct PagesFirst {
    /// Receives pages that are to be read first.
    pub opened: mpsc::Sender<Ino>,
    /// Says how many are read.
    pub sync: watch::Receiver<SyncStatus>,
}

impl PagesFirst {
    /// Waits until the pages below `paths` are read, and tells `events` how many are. Pages that fail are not waited for.
    pub(super) async fn read(
        &self,
        tree: &Tree,
        paths: Vec<String>,
        events: &mpsc::Sender<PrefetchEvent>,
    ) -> Result<(), CatalogError> {
        if self.sync.borrow().pages.is_none() {
            return Ok(());
        }
        let walked = tree.clone();
        let mut unread = in_background(move || unread(&walked, paths)).await?;
        let all = unread.len() as u64;
        for ino in &unread {
            // A mount that ends has no pages any more.
            let _ = self.opened.send(*ino).await;
        }
        let mut at_rest = 0;
        while !unread.is_empty() && !events.is_closed() {
            let read = all - unread.len() as u64;
            let _ = events.send(PrefetchEvent::Pages { read, all }).await;
            tokio::time::sleep(STEP).await;
            let (looked_at, before) = (tree.clone(), std::mem::take(&mut unread));
            let left = before.len();
            unread = in_background(move || still_due(&looked_at, before)).await?;
            let is_at_rest =
                self.sync.borrow().pages.is_some_and(|pages| pages.all > 0 && pages.read + pages.failed >= pages.all);
            // The status may be behind: of a mount that has just begun, or of pages that have just changed.
            at_rest = if is_at_rest && unread.len() == left { at_rest + 1 } else { 0 };
            if at_rest >= LOOKS_AT_REST {
                break;
            }
        }
        Ok(())
    }
}

fn unread(tree: &Tree, paths: Vec<String>) -> Result<Vec<Ino>, CatalogError> {
    let mut files = Vec::new();
    for found in tree.walk(paths) {
        if let Found::File(file) = found? {
            files.push(file.spec.ino);
        }
    }
    still_due(tree, files)
}

fn still_due(tree: &Tree, mut pages: Vec<Ino>) -> Result<Vec<Ino>, CatalogError> {
    let (snapshot, mut failed) = (tree.catalog.snapshot()?, None);
    pages.retain(|ino| {
        is_due(&snapshot, *ino).unwrap_or_else(|cause| {
            failed = Some(cause);
            false
        })
    });
    failed.map_or(Ok(pages), Err)
}

async fn in_background(
    work: impl FnOnce() -> Result<Vec<Ino>, CatalogError> + Send + 'static,
) -> Result<Vec<Ino>, CatalogError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Ok(Vec::new()))
}
