//! The only caller of the kernel's notify interface, holding no lock that a handler needs.
//!
//! One thread sends what concerns names and attributes. Such a notification waits in the kernel for the lookups of its folder to
//! end. Sent from a handler, or under a lock that a handler wants, it would wait for itself for ever: all others only queue a
//! [`Notice`]. Names never wait for pages: those are dropped on dedicated threads ([`pages`]).
//!
//! Orphans (inodes replaced or deleted while the kernel knows them) are settled here as well. Lookups are not
//! counted: a notification that changes nothing asks the kernel whether it still knows the inode, after the
//! name is gone and again after each FORGET. Once it does not, the record and the pinned object are dropped.

mod effects;
mod notification;
mod pages;
#[cfg(test)]
mod tests;

pub use effects::{FolderNames, InvalidatorEffects, MountEffects};
pub use notification::Notification;
pub use pages::DropPages;

use crate::catalog::{EntryId, Invalidation};
use crate::content::Event;
use crate::platform::ino::Ino;
use crate::platform::inode_set::InodeSet;
use crate::platform::scheduling;
use pages::DroppedPages;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use tokio::sync::oneshot;

/// Number of settled orphans that are dropped together although more notices wait.
const SETTLED: usize = 50_000;

/// A message to the invalidator.
#[derive(Debug)]
pub enum Notice {
    /// The catalog has changed, and its commit is done.
    Changed(Invalidation),
    /// The kernel has sent a FORGET of this orphan.
    Forgotten(Ino),
    /// All notices before this one are handled when the receiver hears of it.
    Flush(oneshot::Sender<()>),
    /// The mount ends.
    Stop,
}

/// The sending end of the invalidator's queues; clone it. Queueing a notice never waits.
#[derive(Clone, Debug)]
pub struct Notices {
    sender: Sender<Notice>,
    pages: Sender<DroppedPages>,
    orphans: Arc<Orphans>,
}

/// The invalidator's end of its queues.
#[derive(Debug)]
pub struct Inbox {
    receiver: Receiver<Notice>,
    pages: Receiver<DroppedPages>,
    orphans: Arc<Orphans>,
}

/// New queues: handlers and `sync` fill them, [`Invalidator::spawn`] takes the other end.
pub fn channel() -> (Notices, Inbox) {
    let ((sender, receiver), (page_sender, pages)) = (mpsc::channel(), mpsc::channel());
    let orphans = Arc::<Orphans>::default();
    let notices = Notices { sender, pages: page_sender, orphans: Arc::clone(&orphans) };
    (notices, Inbox { receiver, pages, orphans })
}

impl Notices {
    /// After a commit: what it means for the kernel.
    pub fn changed(&self, invalidations: impl IntoIterator<Item = Invalidation>) {
        invalidations.into_iter().for_each(|invalidation| self.queue(Notice::Changed(invalidation)));
    }

    /// Queues what an event of content means for the kernel.
    pub fn content(&self, event: &Event) {
        let pages = match event {
            Event::Poisoned(ino) | Event::Unannounced(ino) => (*ino, 0..u64::MAX),
            Event::Recheck(ino, range) => (*ino, range.clone()),
            // The kernel keeps no unknown size: it asks anyway. And of a version that only the Source has, the kernel is notified
            // when it is in the catalog.
            Event::Sized(..) | Event::Changed(_) => return,
        };
        // With the other end gone the mount is gone, and its pages are.
        let _ = self.pages.send(pages);
    }

    /// At each FORGET.
    pub fn forgotten(&self, ino: Ino) {
        if waiting(&self.orphans).contains(ino) {
            self.queue(Notice::Forgotten(ino));
        }
    }

    /// Waits until the kernel is notified of every change that was queued before.
    pub async fn flushed(&self) {
        let (sender, receiver) = oneshot::channel();
        self.queue(Notice::Flush(sender));
        // With the invalidator gone the mount is gone.
        let _ = receiver.await;
    }

    /// Ends the invalidator once it has handled what was queued before.
    pub fn stop(&self) {
        self.queue(Notice::Stop);
    }

    fn queue(&self, notice: Notice) {
        // With the invalidator gone the mount is gone.
        let _ = self.sender.send(notice);
    }
}

/// Orphans that the kernel knew when it was asked last. The lock is held for one look-up only.
type Orphans = Mutex<InodeSet>;

fn waiting(orphans: &Orphans) -> MutexGuard<'_, InodeSet> {
    orphans.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's own state.
pub struct Invalidator {
    inbox: Inbox,
    effects: Box<dyn InvalidatorEffects>,
    /// Orphans that the kernel does not know, to be dropped together.
    settled: Vec<Ino>,
    /// The kernel has no epoch, and was not asked yet about all orphans whose names it may still have.
    names_stay: bool,
    /// The catalog did not name all orphans: the kernel is to be asked about them again.
    asks_again: bool,
}

impl Invalidator {
    /// Starts the threads. The returned one ends after [`Notices::stop`]; it and the others when all [`Notices`] are gone.
    pub fn spawn(mut inbox: Inbox, effects: impl InvalidatorEffects + 'static) -> io::Result<JoinHandle<()>> {
        let (_, none) = mpsc::channel();
        pages::spawn(std::mem::replace(&mut inbox.pages, none), effects.drop_pages())?;
        let invalidator = Invalidator::new(inbox, effects);
        let thread = thread::Builder::new().name("invalidator".into());
        // After a great change it asks about a million orphans, while other threads answer lookups.
        scheduling::in_short_slices(|| thread.spawn(move || invalidator.run()))
    }

    fn new(inbox: Inbox, effects: impl InvalidatorEffects + 'static) -> Invalidator {
        Invalidator { inbox, effects: Box::new(effects), settled: Vec::new(), names_stay: false, asks_again: false }
    }

    fn run(mut self) {
        while let Some(notice) = self.next() {
            match notice {
                Notice::Stop => break,
                // One that waits no longer needs no answer.
                Notice::Flush(sender) => drop(sender.send(())),
                Notice::Forgotten(ino) => self.guarded(|this| this.ask(ino)),
                Notice::Changed(change) => self.guarded(|this| this.changed(&change)),
            }
        }
        self.release_settled();
    }

    /// A panic over one notice must not keep the kernel from the next.
    fn guarded(&mut self, operation: impl FnOnce(&mut Invalidator)) {
        if catch_unwind(AssertUnwindSafe(|| operation(self))).is_err() {
            tracing::error!("the kernel may show an old state: the invalidator panicked");
        }
    }

    /// The next notice. Orphans are asked about again and dropped when there is nothing more urgent.
    fn next(&mut self) -> Option<Notice> {
        match self.inbox.receiver.try_recv() {
            Ok(notice) => Some(notice),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                self.release_settled();
                self.ask_again();
                self.inbox.receiver.recv().ok()
            }
        }
    }

    /// Once after some notices, not for ever: another commit may make known what the catalog does not know now.
    fn ask_again(&mut self) {
        if std::mem::take(&mut self.asks_again) {
            self.guarded(Invalidator::ask_about_all);
            self.release_settled();
        }
    }

    fn release_settled(&mut self) {
        if !self.settled.is_empty() {
            self.effects.release(std::mem::take(&mut self.settled));
        }
    }

    fn changed(&mut self, change: &Invalidation) {
        match change {
            Invalidation::Name { parent, name, orphan } => {
                self.notify(&Notification::Entry { parent: *parent, name });
                orphan.iter().for_each(|ino| self.orphaned(*ino));
            }
            Invalidation::Folder(ino) => self.notify(&Notification::Inode(*ino)),
            Invalidation::Folders(folders) => folders.iter().for_each(|ino| self.notify(&Notification::Inode(ino))),
            Invalidation::Attributes(ino) => self.notify(&Notification::Attributes(*ino)),
            Invalidation::Everything(folders) => self.everything(folders),
        }
    }

    /// An inode has lost its name: is it still in use?
    fn orphaned(&mut self, ino: Ino) {
        // Before the kernel is asked, so that a FORGET after its answer finds the orphan waiting.
        waiting(&self.inbox.orphans).insert(ino);
        self.ask(ino);
        if self.names_stay && waiting(&self.inbox.orphans).contains(ino) {
            if let Some((parent, name)) = self.effects.place(ino) {
                self.notify(&Notification::Entry { parent, name: &name });
                self.ask(ino);
            }
        }
        if waiting(&self.inbox.orphans).contains(ino) {
            self.effects.pin(ino);
        }
    }

    /// Settles an orphan if the kernel does not know it.
    fn ask(&mut self, ino: Ino) {
        match self.effects.notify(&Notification::Attributes(ino)) {
            Ok(()) => {}
            Err(error) if is_unknown(&error) => {
                waiting(&self.inbox.orphans).remove(ino);
                self.settled.push(ino);
                if self.settled.len() >= SETTLED {
                    self.release_settled();
                }
            }
            // It is kept until the mount ends: wasteful, never wrong.
            Err(error) => tracing::warn!(ino = ino.0, "the kernel cannot be asked about an orphan: {error}"),
        }
    }

    /// Kernels before Linux 6.16 have no epoch. There the name of each changed folder is dropped, and with it all names below. Names
    /// that went from the root itself, and those in use, are dropped one by one, as their inodes are orphans.
    fn everything(&mut self, folders: &InodeSet) {
        if let Err(error) = self.effects.notify(&Notification::Epoch) {
            tracing::debug!("no epoch ({error}): changed folders are dropped one by one");
            self.names_stay = true;
        }
        for ino in folders.iter() {
            if self.names_stay {
                self.drop_below(ino);
            }
            self.notify(&Notification::Inode(ino));
        }
        // Such a change names no orphans. With an epoch most are known until their names are next looked up.
        self.ask_about_all();
    }

    fn ask_about_all(&mut self) {
        let mut after = Ino(0);
        loop {
            let Some(orphans) = self.effects.orphans(after) else {
                self.asks_again = true;
                return;
            };
            let Some(last) = orphans.last() else { break };
            after = *last;
            for ino in orphans {
                if !waiting(&self.inbox.orphans).contains(ino) {
                    self.orphaned(ino);
                }
            }
        }
        self.names_stay = false;
    }

    /// Drops the name of a folder and all names below it that are not in use. The root has no name, so each of its names is
    /// dropped.
    fn drop_below(&mut self, folder: Ino) {
        if let Some((parent, name)) = self.effects.place(folder) {
            self.notify(&Notification::Entry { parent, name: &name });
        } else if folder == Ino::ROOT {
            let mut after = EntryId(0);
            loop {
                let names = self.effects.names(folder, after);
                let Some((last, _)) = names.last() else { return };
                after = *last;
                names.iter().for_each(|(_, name)| self.notify(&Notification::Entry { parent: folder, name }));
            }
        }
    }

    fn notify(&mut self, notification: &Notification<'_>) {
        match self.effects.notify(notification) {
            Ok(()) => {}
            // It never knew, or has dropped it by itself.
            Err(error) if is_unknown(&error) => {}
            Err(error) => tracing::warn!("the kernel was not notified of {notification}: {error}"),
        }
    }
}

fn is_unknown(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOENT)
}
