//! What the invalidator does to the kernel, the catalog and content.

use super::{DropPages, Notification};
use crate::catalog::{Catalog, CatalogError, EntryId, FolderAndName};
use crate::content::Content;
use crate::platform::error_chain::chain;
use crate::platform::ino::Ino;
use crate::platform::scheduling;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Some names of a folder in its order, each with its entry.
pub type FolderNames = Vec<(EntryId, Box<[u8]>)>;

/// Everything that the invalidator does to others, so that its own logic needs neither kernel nor catalog.
pub trait InvalidatorEffects: Send {
    /// Sends a message to the kernel.
    fn notify(&mut self, notification: &Notification<'_>) -> io::Result<()>;

    /// Drops pages in the kernel; waits there for the READs that fill them.
    fn drop_pages(&self) -> Arc<DropPages>;

    /// Name of an inode; of an orphan the name that it had. `None` for the root and for an inode that no longer exists.
    fn place(&mut self, ino: Ino) -> Option<FolderAndName>;

    /// Some names of a folder behind an entry; none at its end.
    fn names(&mut self, folder: Ino, after: EntryId) -> FolderNames;

    /// Some inodes that have lost their name and are not dropped, greater than this one and ascending; none at their end, `None`
    /// where that is unknown now.
    fn orphans(&mut self, after: Ino) -> Option<Vec<Ino>>;

    /// Keeps the object of an orphan.
    fn pin(&mut self, ino: Ino);

    /// Drops the records and objects of orphans.
    fn release(&mut self, orphans: Vec<Ino>);
}

/// The effects on a mount.
pub struct MountEffects {
    device: Arc<File>,
    catalog: Arc<Catalog>,
    content: Arc<Content>,
    /// Receives orphans that are to be dropped.
    dropped: UnboundedSender<Vec<Ino>>,
}

/// After so many dropped orphans the catalog checks whether compaction is worth its cost.
const MANY_DROPPED: usize = 100_000;

/// Names, or orphans, read at a time, so that no snapshot of the catalog is held while the kernel is notified.
const NAMES: usize = 1000;

impl MountEffects {
    /// Effects by way of `device`, a duplicate of the session's descriptor. Orphans are dropped on `runtime`, because
    /// the catalog may be busy with a long commit and other notifications must go out meanwhile.
    pub fn new(
        device: OwnedFd,
        catalog: Arc<Catalog>,
        content: Arc<Content>,
        runtime: &tokio::runtime::Handle,
    ) -> MountEffects {
        let (dropped, receiver) = unbounded_channel();
        runtime.spawn(drop_orphans(receiver, Arc::clone(&catalog), Arc::clone(&content)));
        MountEffects { device: Arc::new(File::from(device)), catalog, content, dropped }
    }
}

impl InvalidatorEffects for MountEffects {
    fn notify(&mut self, notification: &Notification<'_>) -> io::Result<()> {
        send(&self.device, notification)
    }

    fn drop_pages(&self) -> Arc<DropPages> {
        let device = Arc::clone(&self.device);
        Arc::new(move |ino, range: &_| send(&device, &Notification::Pages(ino, range)))
    }

    fn place(&mut self, ino: Ino) -> Option<FolderAndName> {
        let found = self.catalog.snapshot().and_then(|snapshot| snapshot.inode(ino));
        let inode = reported(found, "the kernel may show an old name").flatten()?;
        inode.name.map(|name| (name.folder, name.name)).or(inode.former)
    }

    fn names(&mut self, folder: Ino, after: EntryId) -> FolderNames {
        let mut names = Vec::with_capacity(NAMES);
        let read = self.catalog.snapshot().and_then(|snapshot| {
            snapshot.children(folder, after, &mut |id, name, _| {
                names.push((id, name.into()));
                names.len() < NAMES
            })
        });
        reported(read, "the kernel may show old names");
        names
    }

    fn orphans(&mut self, after: Ino) -> Option<Vec<Ino>> {
        let found = self.catalog.snapshot().and_then(|snapshot| snapshot.orphans(after, NAMES));
        reported(found, "orphans are not known, their objects may be evicted")
    }

    fn pin(&mut self, ino: Ino) {
        self.content.pin(ino);
    }

    fn release(&mut self, orphans: Vec<Ino>) {
        // The receiver ends with the runtime; at the next mount the orphans are cleared.
        let _ = self.dropped.send(orphans);
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
async fn drop_orphans(mut batches: UnboundedReceiver<Vec<Ino>>, catalog: Arc<Catalog>, content: Arc<Content>) {
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
