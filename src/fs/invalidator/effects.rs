//! What the invalidator does to the kernel, the catalog and content.

use super::{DropPages, Notification};
use crate::catalog::{Catalog, EntryId, Place};
use crate::content::Content;
use crate::platform::error_chain::chain;
use crate::platform::inode_set::InodeSet;
use crate::platform::scheduling;
use fuser::INodeNo;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Where a folder lies; `None` for the root and for what is no more.
    pub place: Box<dyn FnMut(INodeNo) -> Option<Place> + Send>,
    /// Where an orphan had its name.
    pub former_place: Box<dyn FnMut(INodeNo) -> Option<Place> + Send>,
    /// The names of a folder, piece by piece.
    pub names: Box<NamesAfter>,
    /// Some inodes that have lost their name and were not let go, greater than this one and ascending; none at their end, `None`
    /// where that is unknown now.
    pub orphans: Box<dyn FnMut(INodeNo) -> Option<Vec<INodeNo>> + Send>,
    /// Keeps the object of an orphan.
    pub pin: Box<dyn FnMut(INodeNo) + Send>,
    /// Lets the records and objects of orphans go.
    pub release: Box<dyn FnMut(Vec<INodeNo>) + Send>,
    /// The number of a store that is kept for orphans alone, where there is one.
    pub previous: Box<dyn FnMut() -> Option<u64> + Send>,
    /// Lets such a store go, but for these orphans: since it was looked for all were asked about.
    pub settle: Box<dyn FnMut(u64, InodeSet) + Send>,
    /// Whether one was to go and had to stay, since this was asked last.
    pub was_kept: Box<dyn FnMut() -> bool + Send>,
}

/// Orphans behind which it is looked whether the store is worth copying.
const MANY_DROPPED: usize = 100_000;

/// Names, or orphans, read at a time, so that no snapshot of the catalog is held while the kernel is notified.
const NAMES: usize = 1000;

impl Effects {
    /// The real ones: `device` is a duplicate of the session's descriptor; orphans are let go on `runtime`, because
    /// the catalog may be busy with a long commit and other notifications must go out meanwhile.
    pub fn new(
        device: OwnedFd,
        catalog: Arc<Catalog>,
        content: Arc<Content>,
        runtime: &tokio::runtime::Handle,
    ) -> Effects {
        let device = Arc::new(File::from(device));
        let of_pages = Arc::clone(&device);
        let notify = move |notification: &Notification<'_>| send(&device, notification);
        let drop_pages = move |ino, range: &Range<u64>| send(&of_pages, &Notification::Pages(ino, range));
        let places = Arc::clone(&catalog);
        let place = move |ino| match places.snapshot().and_then(|snapshot| snapshot.inode(ino)) {
            Ok(inode) => inode.and_then(|inode| inode.name).map(|name| (name.folder, name.name)),
            Err(error) => {
                tracing::error!("the kernel may show an old folder: {}", chain(&error));
                None
            }
        };
        let former = Arc::clone(&catalog);
        let former_place = move |ino| match former.snapshot().and_then(|snapshot| snapshot.inode(ino)) {
            Ok(inode) => inode.and_then(|inode| inode.former),
            Err(error) => {
                tracing::error!("the kernel may show an old name: {}", chain(&error));
                None
            }
        };
        let listings = Arc::clone(&catalog);
        let names = move |folder, after| {
            let mut names = Vec::with_capacity(NAMES);
            let read = listings.snapshot().and_then(|snapshot| {
                snapshot.children(folder, after, &mut |id, name, _| {
                    names.push((id, name.into()));
                    names.len() < NAMES
                })
            });
            if let Err(error) = read {
                tracing::error!("the kernel may show old names: {}", chain(&error));
            }
            names
        };
        let nameless = Arc::clone(&catalog);
        let orphans = move |behind| match nameless.snapshot().and_then(|snapshot| snapshot.orphans(behind, NAMES)) {
            Ok(orphans) => Some(orphans),
            Err(error) => {
                tracing::error!("orphans are not known, their objects may go: {}", chain(&error));
                None
            }
        };
        let (stores, settling) = (Arc::clone(&catalog), Arc::clone(&catalog));
        let threads = runtime.clone();
        let kept = Arc::<AtomicBool>::default();
        let was_kept = Arc::clone(&kept);
        let settle = move |previous, known: InodeSet| {
            let (catalog, kept) = (Arc::clone(&settling), Arc::clone(&kept));
            let settle = move || {
                if let Err(error) = catalog.settle_orphans(previous, &known) {
                    tracing::warn!("the catalog's old store is kept until a later change: {}", chain(&error));
                    kept.store(true, Ordering::Release);
                }
            };
            // It may wait for a commit, and takes as long as what it frees is big. From the runtime: a thread of its pool that is made here would
            // have this one's short slices.
            threads.spawn(async move { tokio::task::spawn_blocking(|| scheduling::low_priority(settle)).await });
        };
        let pins = Arc::clone(&content);
        let (leave, left) = tokio::sync::mpsc::unbounded_channel();
        runtime.spawn(let_go(left, catalog, content));
        Effects {
            notify: Box::new(notify),
            drop_pages: Arc::new(drop_pages),
            place: Box::new(place),
            former_place: Box::new(former_place),
            names: Box::new(names),
            orphans: Box::new(orphans),
            pin: Box::new(move |ino| pins.pin(ino)),
            release: Box::new(move |orphans| {
                // The receiver ends with the runtime; at the next mount the orphans are cleared.
                let _ = leave.send(orphans);
            }),
            previous: Box::new(move || stores.previous()),
            settle: Box::new(settle),
            was_kept: Box::new(move || was_kept.swap(false, Ordering::AcqRel)),
        }
    }
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
async fn let_go(mut left: UnboundedReceiver<Vec<INodeNo>>, catalog: Arc<Catalog>, content: Arc<Content>) {
    let mut dropped = 0;
    while let Some(orphans) = left.recv().await {
        let catalog = Arc::clone(&catalog);
        let content = Arc::clone(&content);
        dropped += orphans.len();
        // What so many took in the store is a hole now, which its commit could not know of.
        let leaves_holes = dropped >= MANY_DROPPED && left.is_empty();
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
            if leaves_holes && let Err(error) = scheduling::low_priority(|| catalog.compact()) {
                tracing::warn!("the catalog keeps its holes: {}", chain(&error));
            }
        });
        if let Err(error) = batch.await {
            tracing::error!("orphans stay: {error}");
        }
    }
}
