//! `POST /evict`: cached bytes of files and folders are removed, to make room.

use super::tree::{Found, Tree};
use crate::catalog::CatalogError;
use crate::content::store::Evicted;
use crate::control::api::{EvictEvent, EvictSummary};
use crate::control::{Lines, lines_of};
use crate::platform::error_chain::chain;
use tokio::sync::mpsc;

pub(super) fn evict(tree: Tree, paths: Vec<String>) -> Lines {
    lines_of(async move |events| {
        let last = events.clone();
        let evicted = tokio::task::spawn_blocking(move || evict_below(&tree, paths, &events)).await;
        let event = match evicted {
            Ok(Ok(summary)) => EvictEvent::Done(summary),
            Ok(Err(cause)) => EvictEvent::Failure(chain(&cause)),
            Err(cause) => EvictEvent::Failure(cause.to_string()),
        };
        // A client that left does not need the last line.
        let _ = last.send(event).await;
    })
}

fn evict_below(
    tree: &Tree,
    paths: Vec<String>,
    events: &mpsc::Sender<EvictEvent>,
) -> Result<EvictSummary, CatalogError> {
    let mut summary = EvictSummary::default();
    // The end is not sent to a client that left; the walk need not go on for it.
    for found in tree.walk(paths).take_while(|_| !events.is_closed()) {
        match found? {
            Found::Missing(path) => {
                summary.missing += 1;
                let _ = events.blocking_send(EvictEvent::Missing(path));
            }
            Found::File(file) => match tree.content.evict(&file.wanted) {
                Evicted::Absent => {}
                Evicted::Bytes(bytes) => {
                    summary.files += 1;
                    summary.bytes += bytes;
                }
                Evicted::Kept => {
                    summary.kept += 1;
                    let _ = events.blocking_send(EvictEvent::Kept(file.path));
                }
            },
        }
    }
    Ok(summary)
}
