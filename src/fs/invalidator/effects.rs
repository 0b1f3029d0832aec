//! What the invalidator does to the kernel, the catalog and content.

use super::{DropPages, Notification};
use crate::catalog::{Catalog, CatalogError, EntryId, FolderAndName};
use crate::content::Content;
use crate::platform::error_chain::chain;
use crate::platform::scheduling;
use fuser::INodeNo;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedReceiver;

/// Sends a message to the kernel.
pub type Notify = dyn FnMut(&Notification<'_>) -> io::Result<()> + Send;

/// Some names of a folder after an entry, in its order; none at its end.
pub type NamesAfter = dyn FnMut(INodeNo, EntryId) -> Vec<(EntryId, Box<[u8]>)> + Send;

/// Everything that the invalidator does to others, so that its own logic needs neither kernel nor catalog.
pub struct Effects {
    /// Sends a message to the kernel.
    pub notify: Box<Notify>,
    /// Has the kernel drop pages; waits there for the READs that fill them.
    pub drop_pages: Arc<DropPages>,
    /// The name of an inode; of an orphan the name that it had. `None` for the root and for what does not exist any more.
    pub place: Box<dyn FnMut(INodeNo) -> Option<FolderAndName> + Send>,
    /// The names of a folder, piece by piece.
    pub names: Box<NamesAfter>,
    /// Some inodes that have lost their name and are not dropped, greater than this one and ascending; none at their end, `None`
    /// where that is unknown now.
    pub orphans: Box<dyn FnMut(INodeNo) -> Option<Vec<INodeNo>> + Send>,
    /// Keeps the object of an orphan.
    pub pin: Box<dyn FnMut(INodeNo) + Send>,
    /// Drops the records and objects of orphans.
    pub release: Box<dyn FnMut(Vec<INodeNo>) + Send>,
}

/// After so many dropped orphans the catalog checks whether compaction is worth its cost.
const MANY_DROPPED: usize = 100_000;

/// Names, or orphans, read at a time, so that no snapshot of the catalog is held while the kernel is notified.
const NAMES: usize = 1000;

impl Effects {
    /// The real ones: `device` is a duplicate of the session's descriptor. Orphans are dropped on `runtime`, because
    /// the catalog may be busy with a long commit and other notifications must go out meanwhile.
    pub fn new(
        device: OwnedFd,
        catalog: Arc<Catalog>,
        content: Arc<Content>,
        runtime: &tokio::runtime::Handle,
    ) -> Effects {
        let device = Arc::new(File::from(device));
        let of_pages = Arc::clone(&device);
        let (places, listings, nameless) = (Arc::clone(&catalog), Arc::clone(&catalog), Arc::clone(&catalog));
        let place = move |ino| {
            let found = places.snapshot().and_then(|snapshot| snapshot.inode(ino));
            let inode = reported(found, "the kernel may show an old name").flatten()?;
            inode.name.map(|name| (name.folder, name.name)).or(inode.former)
        };
        let names = move |folder, after| {
            let mut names = Vec::with_capacity(NAMES);
            let read = listings.snapshot().and_then(|snapshot| {
                snapshot.children(folder, after, &mut |id, name, _| {
                    names.push((id, name.into()));
                    names.len() < NAMES
                })
            });
            reported(read, "the kernel may show old names");
            names
        };
        let orphans = move |after| {
            let found = nameless.snapshot().and_then(|snapshot| snapshot.orphans(after, NAMES));
            reported(found, "orphans are not known, their objects may be evicted")
        };
        let pins = Arc::clone(&content);
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        runtime.spawn(drop_orphans(receiver, catalog, content));
        Effects {
            notify: Box::new(move |notification| send(&device, notification)),
            drop_pages: Arc::new(move |ino, range: &_| send(&of_pages, &Notification::Pages(ino, range))),
            place: Box::new(place),
            names: Box::new(names),
            orphans: Box::new(orphans),
            pin: Box::new(move |ino| pins.pin(ino)),
            release: Box::new(move |orphans| {
                // The receiver ends with the runtime; at the next mount the orphans are cleared.
                let _ = sender.send(orphans);
            }),
        }
    }
}

/// Answer of the catalog; an error is logged with its consequence.
fn reported<T>(answer: Result<T, CatalogError>, consequence: &str) -> Option<T> {
    answer.inspect_err(|error| tracing::error!("{consequence}: {}", chain(error))).ok()
}

/// One write is one message: the kernel takes it whole or refuses it.
fn send(mut device: &File, notification: &Notification<'_>) -> io::Result<()> {
    let message = notification.encode();
    match device.write(&message)? {
        written if written == message.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Drops orphans one batch after the other, each on a thread that may wait for the catalog.
async fn drop_orphans(mut batches: UnboundedReceiver<Vec<INodeNo>>, catalog: Arc<Catalog>, content: Arc<Content>) {
    let mut dropped = 0;
    while let Some(orphans) = batches.recv().await {
        let catalog = Arc::clone(&catalog);
        let content = Arc::clone(&content);
        dropped += orphans.len();
        // Their rows are free pages of the store now, which the commit that replaced them did not count.
        let leaves_holes = dropped >= MANY_DROPPED && batches.is_empty();
        if leaves_holes {
            dropped = 0;
        }
        let batch = tokio::task::spawn_blocking(move || {
            orphans.iter().for_each(|ino| content.unpin(*ino));
            // After a great change they are as many as the tree has files.
            if let Err(error) = scheduling::low_priority(|| catalog.drop_orphans(&orphans)) {
                tracing::error!("{} orphans stay: {}", orphans.len(), chain(&error));
                return;
            }
            orphans.iter().for_each(|ino| content.forget(*ino));
            if leaves_holes {
                if let Err(error) = scheduling::low_priority(|| catalog.compact()) {
                    tracing::warn!("the catalog is not compacted: {}", chain(&error));
                }
            }
        });
        if let Err(error) = batch.await {
            tracing::error!("orphans stay: {error}");
        }
    }
}
