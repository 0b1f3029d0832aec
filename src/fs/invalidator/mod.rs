//! One thread, the only caller of the kernel's notify interface, holding no lock that a handler needs.
//!
//! A notification waits in the kernel for the lookups of its folder or the reads of its inode to end. From a handler,
//! or under a lock that a handler wants, it would wait for itself for ever; so everybody else only leaves a [`Notice`].
//!
//! Orphans (inodes replaced or deleted while the kernel knows them) are settled here as well. There is no count of
//! lookups: the kernel is asked whether it still knows the inode by a notification that changes nothing, after the
//! name is gone and again after each FORGET of it. Once it does not, the record and the pinned object go.

mod effects;
mod notification;
#[cfg(test)]
mod tests;

pub use effects::{Effects, NamesAfter, Place, Tell};
pub use notification::Notification;

use crate::catalog::{EntryId, Invalidation};
use crate::content::Event;
use crate::inodes::InodeSet;
use crate::priority;
use fuser::INodeNo;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use tokio::sync::watch;

/// Orphans that are let go together though there is more to tell.
const SETTLED: usize = 50_000;

/// What the invalidator is left to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The catalog has changed, and its commit is done.
    Changed(Invalidation),
    /// Pages of this inode that the kernel may hold from an octet on are wrong, or are to be read once more.
    Pages(INodeNo, u64),
    /// The kernel has forgotten this orphan, as far as one FORGET tells.
    Forgotten(INodeNo),
    /// The mount ends.
    Stop,
}

/// The way to the invalidator; clone it. Leaving a notice never waits.
#[derive(Clone, Debug)]
pub struct Notices {
    sender: Sender<Notice>,
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
    orphans: Arc<Orphans>,
    done: watch::Sender<u64>,
}

/// A new channel: what handlers and `sync` leave, [`Invalidator::spawn`] takes.
pub fn channel() -> (Notices, Inbox) {
    let (sender, receiver) = mpsc::channel();
    let orphans = Arc::<Orphans>::default();
    let (done, watched) = watch::channel(0);
    let notices = Notices { sender, orphans: Arc::clone(&orphans), left: Arc::default(), done: watched };
    (notices, Inbox { receiver, orphans, done })
}

impl Notices {
    /// After a commit: what it means for the kernel.
    pub fn changed(&self, invalidations: impl IntoIterator<Item = Invalidation>) {
        invalidations.into_iter().for_each(|invalidation| self.leave(Notice::Changed(invalidation)));
    }

    /// What content has found out.
    pub fn content(&self, event: &Event) {
        match event {
            Event::Poisoned(ino) | Event::Unannounced(ino) => self.leave(Notice::Pages(*ino, 0)),
            Event::Recheck(ino, from) => self.leave(Notice::Pages(*ino, *from)),
            // The kernel was given no time to live with the unknown size: it asks anyway. And of a version that only
            // the Source has, the kernel is told when it is in the catalog.
            Event::Sized(..) | Event::Changed(_) => {}
        }
    }

    /// At each FORGET: a comparison of two numbers where no orphan waits.
    pub fn forgotten(&self, ino: INodeNo) {
        if self.orphans.is_waiting(ino) {
            self.leave(Notice::Forgotten(ino));
        }
    }

    /// Waits until the kernel has heard of everything that was left before.
    pub async fn heard(&self) {
        let left = self.left.load(Ordering::Acquire);
        // With the invalidator gone nobody is left to hear.
        let _ = self.done.clone().wait_for(|done| *done >= left).await;
    }

    /// Ends the invalidator once it has done what was left before.
    pub fn stop(&self) {
        self.leave(Notice::Stop);
    }

    /// With the invalidator gone the mount is gone, and nobody is left to be told.
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
    /// The kernel has no epoch: the folders that follow are to be dropped with everything below.
    without_epoch: bool,
    /// The catalog could not tell all orphans, or not let the store go that is kept for them: the kernel is to be asked about them
    /// again.
    asks_again: bool,
}

impl Invalidator {
    /// Starts the thread. It ends after [`Notices::stop`], or when all [`Notices`] are gone.
    pub fn spawn(inbox: Inbox, effects: Effects) -> io::Result<JoinHandle<()>> {
        let invalidator = Invalidator::new(inbox, effects);
        let thread = thread::Builder::new().name("invalidator".into());
        // After a great change it has a million orphans to ask about, beside those who answer lookups.
        priority::in_short_slices(|| thread.spawn(move || invalidator.run()))
    }

    fn new(inbox: Inbox, effects: Effects) -> Invalidator {
        Invalidator { inbox, effects, settled: Vec::new(), without_epoch: false, asks_again: false }
    }

    fn run(mut self) {
        while let Some(notice) = self.next() {
            if notice == Notice::Stop {
                break;
            }
            // Whatever happens to one notice, the kernel must hear of the next.
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

    /// Once after some notices, not for ever: what the catalog cannot tell now it may tell after another commit.
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
        let is_folder = matches!(notice, Notice::Changed(Invalidation::Folder(_) | Invalidation::Folders(_)));
        let folder_after_everything = is_folder && self.without_epoch;
        self.without_epoch = folder_after_everything;
        if matches!(notice, Notice::Changed(_)) {
            self.asks_again |= (self.effects.was_kept)();
        }
        match notice {
            Notice::Changed(Invalidation::Name { parent, name, orphan }) => {
                self.tell(&Notification::Entry { parent: *parent, name });
                if let Some(ino) = orphan {
                    self.orphaned(*ino);
                }
            }
            Notice::Changed(Invalidation::Folder(ino)) => self.folder(*ino, folder_after_everything),
            Notice::Changed(Invalidation::Folders(folders)) => {
                folders.iter().for_each(|ino| self.folder(ino, folder_after_everything));
            }
            Notice::Changed(Invalidation::Attributes(ino)) => self.tell(&Notification::Attributes(*ino)),
            Notice::Changed(Invalidation::Everything) => self.everything(),
            Notice::Changed(Invalidation::Orphans) => self.ask_about_all(),
            Notice::Pages(ino, from) => self.tell(&Notification::Pages(*ino, *from)),
            Notice::Forgotten(ino) => self.ask(*ino),
            Notice::Stop => {}
        }
    }

    fn folder(&mut self, ino: INodeNo, with_all_below: bool) {
        if with_all_below {
            self.drop_below(ino);
        }
        self.tell(&Notification::Inode(ino));
    }

    /// An inode has lost its name: is it still in use?
    fn orphaned(&mut self, ino: INodeNo) {
        // Before the kernel is asked, so that a FORGET after its answer finds the orphan waiting.
        self.inbox.orphans.insert(ino);
        self.ask(ino);
        if self.inbox.orphans.is_waiting(ino) {
            (self.effects.pin)(ino);
        }
    }

    /// Settles an orphan if the kernel does not know it.
    fn ask(&mut self, ino: INodeNo) {
        if let Err(error) = (self.effects.tell)(&Notification::Attributes(ino)) {
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

    fn everything(&mut self) {
        match (self.effects.tell)(&Notification::Epoch) {
            Ok(()) => {}
            Err(error) => {
                tracing::debug!("no epoch ({error}): changed folders are dropped one by one");
                self.without_epoch = true;
            }
        }
        // Such a change names no orphans. Most will be known until their names are next looked up or dropped.
        self.ask_about_all();
    }

    fn ask_about_all(&mut self) {
        let past = (self.effects.past)();
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
        if let Some(past) = past {
            let known = self.inbox.orphans.with(|waiting| waiting.clone());
            (self.effects.settle)(past, known);
        }
    }

    /// What stands in for the epoch: dropping the name of a folder drops all names below it. The root has no name, so
    /// each of its names is dropped. A file that is open keeps its old name, and a name deleted from the root itself
    /// stays, until the time to live of an entry is over.
    fn drop_below(&mut self, folder: INodeNo) {
        if let Some((parent, name)) = (self.effects.place)(folder) {
            self.tell(&Notification::Entry { parent, name: &name });
        } else if folder == INodeNo::ROOT {
            let mut after = EntryId(0);
            loop {
                let names = (self.effects.names)(folder, after);
                let Some((last, _)) = names.last() else { return };
                after = *last;
                names.iter().for_each(|(_, name)| self.tell(&Notification::Entry { parent: folder, name }));
            }
        }
    }

    fn tell(&mut self, notification: &Notification<'_>) {
        match (self.effects.tell)(notification) {
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
