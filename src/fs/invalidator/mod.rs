//! The only caller of the kernel's notify interface, holding no lock that a handler needs.
//!
//! One thread sends what concerns names and attributes. Such a notification waits in the kernel for the lookups of its folder to
//! end. From a handler, or under a lock that a handler wants, it would wait for itself for ever: all others only leave a
//! [`Notice`]. Names never wait for pages: those are dropped on threads of their own ([`pages`]).
//!
//! Orphans (inodes replaced or deleted while the kernel knows them) are settled here as well. There is no count of
//! lookups: the kernel is asked whether it still knows the inode by a notification that changes nothing, after the
//! name is gone and again after each FORGET of it. Once it does not, the record and the pinned object go.

mod effects;
mod notification;
mod pages;
#[cfg(test)]
mod tests;

pub use effects::{Effects, NamesAfter, Notify};
pub use notification::Notification;
pub use pages::DropPages;

use crate::catalog::{EntryId, Invalidation};
use crate::content::Event;
use crate::platform::inode_set::InodeSet;
use crate::platform::scheduling;
use fuser::INodeNo;
use pages::Pages;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use tokio::sync::watch;

/// Orphans that are let go together though more notices wait.
const SETTLED: usize = 50_000;

/// What the invalidator is left to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The catalog has changed, and its commit is done.
    Changed(Invalidation),
    /// The kernel has sent a FORGET of this orphan.
    Forgotten(INodeNo),
    /// The mount ends.
    Stop,
}

/// The way to the invalidator; clone it. Leaving a notice never waits.
#[derive(Clone, Debug)]
pub struct Notices {
    sender: Sender<Notice>,
    pages: Sender<Pages>,
    orphans: Arc<Orphans>,
    /// How many notices were left, counted before they are.
    left: Arc<AtomicU64>,
    /// How many are done with.
    done: watch::Receiver<u64>,
}

/// The invalidator's end of its channel.
#[derive(Debug)]
pub struct Inbox {
    receiver: Receiver<Notice>,
    pages: Receiver<Pages>,
    orphans: Arc<Orphans>,
    done: watch::Sender<u64>,
}

/// A new channel: what handlers and `sync` leave, [`Invalidator::spawn`] takes.
pub fn channel() -> (Notices, Inbox) {
    let (sender, receiver) = mpsc::channel();
    let (leave_pages, pages) = mpsc::channel();
    let orphans = Arc::<Orphans>::default();
    let (done, watched) = watch::channel(0);
    let (left, waiting) = (Arc::default(), Arc::clone(&orphans));
    let notices = Notices { sender, pages: leave_pages, orphans: waiting, left, done: watched };
    (notices, Inbox { receiver, pages, orphans, done })
}

impl Notices {
    /// After a commit: what it means for the kernel.
    pub fn changed(&self, invalidations: impl IntoIterator<Item = Invalidation>) {
        invalidations.into_iter().for_each(|invalidation| self.leave(Notice::Changed(invalidation)));
    }

    /// What content has found out.
    pub fn content(&self, event: &Event) {
        let pages = match event {
            Event::Poisoned(ino) | Event::Unannounced(ino) => (*ino, 0..u64::MAX),
            Event::Recheck(ino, range) => (*ino, range.clone()),
            // The kernel was given no time to live with the unknown size: it asks anyway. And of a version that only
            // the Source has, the kernel is notified when it is in the catalog.
            Event::Sized(..) | Event::Changed(_) => return,
        };
        // With the other end gone the mount is gone, and its pages are.
        let _ = self.pages.send(pages);
    }

    /// At each FORGET: a comparison of two numbers where no orphan waits.
    pub fn forgotten(&self, ino: INodeNo) {
        if self.orphans.is_waiting(ino) {
            self.leave(Notice::Forgotten(ino));
        }
    }

    /// Waits until the kernel has heard of every change that was left before.
    pub async fn heard(&self) {
        let left = self.left.load(Ordering::Acquire);
        // With the invalidator gone the mount is gone.
        let _ = self.done.clone().wait_for(|done| *done >= left).await;
    }

    /// Ends the invalidator once it has done what was left before.
    pub fn stop(&self) {
        self.leave(Notice::Stop);
    }

    /// With the invalidator gone the mount is gone.
    fn leave(&self, notice: Notice) {
        self.left.fetch_add(1, Ordering::AcqRel);
        let _ = self.sender.send(notice);
    }
}

/// Orphans that the kernel knew when it was asked last. The lock is held for one look-up only.
#[derive(Debug, Default)]
struct Orphans {
    /// How many there are, to be read at each FORGET without the lock.
    count: AtomicUsize,
    waiting: Mutex<InodeSet>,
}

impl Orphans {
    fn is_waiting(&self, ino: INodeNo) -> bool {
        self.count.load(Ordering::Acquire) != 0 && self.with(|waiting| waiting.contains(ino))
    }

    fn insert(&self, ino: INodeNo) {
        self.with(|waiting| waiting.insert(ino));
    }

    fn remove(&self, ino: INodeNo) {
        self.with(|waiting| waiting.remove(ino));
    }

    fn with<T>(&self, operation: impl FnOnce(&mut InodeSet) -> T) -> T {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let result = operation(&mut waiting);
        self.count.store(waiting.len(), Ordering::Release);
        result
    }
}

/// The thread's own state.
pub struct Invalidator {
    inbox: Inbox,
    effects: Effects,
    /// Orphans that the kernel does not know, to be let go together.
    settled: Vec<INodeNo>,
    /// The kernel has no epoch, and was not asked yet about all orphans whose names may be left in it.
    names_stay: bool,
    /// The catalog did not name all orphans, or kept the store that is there for them: the kernel is to be asked about them
    /// again.
    asks_again: bool,
}

impl Invalidator {
    /// Starts the threads. The one that is returned ends after [`Notices::stop`]; it and the others when all [`Notices`] are gone.
    pub fn spawn(mut inbox: Inbox, effects: Effects) -> io::Result<JoinHandle<()>> {
        let (_, none) = mpsc::channel();
        pages::spawn(std::mem::replace(&mut inbox.pages, none), Arc::clone(&effects.drop_pages))?;
        let invalidator = Invalidator::new(inbox, effects);
        let thread = thread::Builder::new().name("invalidator".into());
        // After a great change it has a million orphans to ask about, while other threads answer lookups.
        scheduling::in_short_slices(|| thread.spawn(move || invalidator.run()))
    }

    fn new(inbox: Inbox, effects: Effects) -> Invalidator {
        Invalidator { inbox, effects, settled: Vec::new(), names_stay: false, asks_again: false }
    }

    fn run(mut self) {
        while let Some(notice) = self.next() {
            if notice == Notice::Stop {
                break;
            }
            // A notice that fails must not keep the kernel from the next.
            if catch_unwind(AssertUnwindSafe(|| self.handle(&notice))).is_err() {
                tracing::error!("the kernel was not told of {notice:?}: the invalidator panicked");
            }
            self.inbox.done.send_modify(|done| *done += 1);
        }
        self.let_settled_go();
    }

    /// The next notice. Orphans are asked about again and let go when there is nothing more urgent.
    fn next(&mut self) -> Option<Notice> {
        match self.inbox.receiver.try_recv() {
            Ok(notice) => Some(notice),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                self.let_settled_go();
                self.ask_again();
                self.inbox.receiver.recv().ok()
            }
        }
    }

    /// Once after some notices, not for ever: another commit may make known what the catalog does not know now.
    fn ask_again(&mut self) {
        if !std::mem::take(&mut self.asks_again) {
            return;
        }
        if catch_unwind(AssertUnwindSafe(|| self.ask_about_all())).is_err() {
            tracing::error!("the kernel was not asked about all orphans: the invalidator panicked");
        }
        self.let_settled_go();
    }

    fn let_settled_go(&mut self) {
        if !self.settled.is_empty() {
            (self.effects.release)(std::mem::take(&mut self.settled));
        }
    }

    fn handle(&mut self, notice: &Notice) {
        if matches!(notice, Notice::Changed(_)) {
            self.asks_again |= (self.effects.was_kept)();
        }
        match notice {
            Notice::Changed(Invalidation::Name { parent, name, orphan }) => {
                self.notify(&Notification::Entry { parent: *parent, name });
                if let Some(ino) = orphan {
                    self.orphaned(*ino);
                }
            }
            Notice::Changed(Invalidation::Folder(ino)) => self.notify(&Notification::Inode(*ino)),
            Notice::Changed(Invalidation::Folders(folders)) => {
                folders.iter().for_each(|ino| self.notify(&Notification::Inode(ino)));
            }
            Notice::Changed(Invalidation::Attributes(ino)) => self.notify(&Notification::Attributes(*ino)),
            Notice::Changed(Invalidation::Everything(folders)) => self.everything(folders),
            Notice::Changed(Invalidation::Orphans) => self.ask_about_all(),
            Notice::Forgotten(ino) => self.ask(*ino),
            Notice::Stop => {}
        }
    }

    /// An inode has lost its name: is it still in use?
    fn orphaned(&mut self, ino: INodeNo) {
        // Before the kernel is asked, so that a FORGET after its answer finds the orphan waiting.
        self.inbox.orphans.insert(ino);
        self.ask(ino);
        if self.names_stay
            && self.inbox.orphans.is_waiting(ino)
            && let Some((parent, name)) = (self.effects.former_place)(ino)
        {
            self.notify(&Notification::Entry { parent, name: &name });
            self.ask(ino);
        }
        if self.inbox.orphans.is_waiting(ino) {
            (self.effects.pin)(ino);
        }
    }

    /// Settles an orphan if the kernel does not know it.
    fn ask(&mut self, ino: INodeNo) {
        if let Err(error) = (self.effects.notify)(&Notification::Attributes(ino)) {
            if is_unknown(&error) {
                self.inbox.orphans.remove(ino);
                self.settled.push(ino);
                if self.settled.len() >= SETTLED {
                    self.let_settled_go();
                }
            } else {
                // It is kept until the mount ends: wasteful, never wrong.
                tracing::warn!(ino = ino.0, "the kernel cannot be asked about an orphan: {error}");
            }
        }
    }

    /// Kernels before Linux 6.16 have no epoch. There the name of each changed folder is dropped, and with it all names below. That leaves
    /// names which went from the root itself, and those that are in use: they are dropped one by one, as their inodes are orphans.
    fn everything(&mut self, folders: &InodeSet) {
        if let Err(error) = (self.effects.notify)(&Notification::Epoch) {
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
        let previous = (self.effects.previous)();
        let mut behind = INodeNo(0);
        loop {
            let Some(orphans) = (self.effects.orphans)(behind) else {
                // The store of those that were not asked about must stay.
                self.asks_again = true;
                return;
            };
            let Some(last) = orphans.last() else { break };
            behind = *last;
            for ino in orphans {
                if !self.inbox.orphans.is_waiting(ino) {
                    self.orphaned(ino);
                }
            }
        }
        self.names_stay = false;
        if let Some(previous) = previous {
            let known = self.inbox.orphans.with(|waiting| waiting.clone());
            (self.effects.settle)(previous, known);
        }
    }

    /// Drops the name of a folder and all names below it that are not in use. The root has no name, so each of its names is
    /// dropped.
    fn drop_below(&mut self, folder: INodeNo) {
        if let Some((parent, name)) = (self.effects.place)(folder) {
            self.notify(&Notification::Entry { parent, name: &name });
        } else if folder == INodeNo::ROOT {
            let mut after = EntryId(0);
            loop {
                let names = (self.effects.names)(folder, after);
                let Some((last, _)) = names.last() else { return };
                after = *last;
                names.iter().for_each(|(_, name)| self.notify(&Notification::Entry { parent: folder, name }));
            }
        }
    }

    fn notify(&mut self, notification: &Notification<'_>) {
        match (self.effects.notify)(notification) {
            Ok(()) => {}
            // It never knew, or has dropped it by itself.
            Err(error) if is_unknown(&error) => {}
            Err(error) => tracing::warn!("the kernel was not told of {notification}: {error}"),
        }
    }
}

fn is_unknown(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOENT)
}
