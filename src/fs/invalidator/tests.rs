//! The thread against a kernel that only remembers its notifications.

use super::*;
use std::collections::HashSet;

const ROOT: Ino = Ino::ROOT;

/// What the invalidator did, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Done {
    Entry(u64, String),
    Inode(u64),
    Attributes(u64),
    Epoch,
    Pin(u64),
    Release(Vec<u64>),
}

/// A kernel that knows some inodes, and the record of what was done.
#[derive(Clone, Default)]
struct World {
    known: Arc<Mutex<HashSet<u64>>>,
    has_epoch: bool,
    orphans: Vec<Ino>,
    /// The catalog fails once when it is asked for the orphans behind this one.
    fails_behind: Arc<Mutex<Option<Ino>>>,
    /// The kernel forgets inode 7 as soon as it was asked about it.
    forgets: Option<Notices>,
    done: Arc<Mutex<Vec<Done>>>,
}

impl World {
    fn new(known: &[u64], has_epoch: bool) -> World {
        World { known: Arc::new(Mutex::new(known.iter().copied().collect())), has_epoch, ..World::default() }
    }

    fn did(&self, done: Done) {
        self.done.lock().unwrap().push(done);
    }

    /// Runs an invalidator over `notices` until it ends, and returns what it did.
    fn after(&self, notices: impl IntoIterator<Item = Notice>) -> Vec<Done> {
        let (sender, inbox) = channel();
        notices.into_iter().for_each(|notice| sender.queue(notice));
        sender.stop();
        Invalidator::spawn(inbox, self.clone()).unwrap().join().unwrap();
        self.done.lock().unwrap().clone()
    }
}

/// Folder 5 is `five` in the root; the root has the names `a` and `b`. Orphan 7 was `seven` in folder 5, any other is in use.
impl InvalidatorEffects for World {
    fn notify(&mut self, notification: &Notification<'_>) -> io::Result<()> {
        let known = |ino: Ino| {
            if self.known.lock().unwrap().contains(&ino.0) {
                Ok(())
            } else {
                Err(io::Error::from_raw_os_error(libc::ENOENT))
            }
        };
        match notification {
            Notification::Entry { parent, name } => {
                assert_ne!(*name, b"panic", "the test asks for it");
                self.did(Done::Entry(parent.0, String::from_utf8_lossy(name).into_owned()));
                known(*parent)
            }
            Notification::Inode(ino) => {
                self.did(Done::Inode(ino.0));
                known(*ino)
            }
            Notification::Attributes(ino) => {
                self.did(Done::Attributes(ino.0));
                let answer = known(*ino);
                if let Some(notices) = self.forgets.as_ref().filter(|_| self.known.lock().unwrap().remove(&7)) {
                    notices.forgotten(Ino(7));
                }
                answer
            }
            Notification::Pages(ino, range) => unreachable!("{range:?} of {ino}: pages have separate threads"),
            Notification::Epoch => {
                self.did(Done::Epoch);
                if self.has_epoch { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
            }
        }
    }

    fn drop_pages(&self) -> Arc<DropPages> {
        Arc::new(|_, _| Ok(()))
    }

    fn place(&mut self, ino: Ino) -> Option<(Ino, Box<[u8]>)> {
        match ino.0 {
            5 => Some((ROOT, (*b"five").into())),
            7 => Some((Ino(5), (*b"seven").into())),
            _ => None,
        }
    }

    fn names(&mut self, _folder: Ino, after: EntryId) -> FolderNames {
        let names: [(EntryId, Box<[u8]>); 2] = [(EntryId(1), (*b"a").into()), (EntryId(2), (*b"b").into())];
        names.into_iter().find(|(id, _)| *id > after).into_iter().collect()
    }

    fn orphans(&mut self, behind: Ino) -> Option<Vec<Ino>> {
        let fails = self.fails_behind.lock().unwrap().take_if(|at| *at == behind).is_some();
        (!fails).then(|| self.orphans.iter().copied().find(|ino| *ino > behind).into_iter().collect())
    }

    fn pin(&mut self, ino: Ino) {
        self.did(Done::Pin(ino.0));
    }

    fn release(&mut self, inos: Vec<Ino>) {
        self.did(Done::Release(inos.iter().map(|ino| ino.0).collect()));
    }
}

fn handle(invalidator: &mut Invalidator, notice: Notice) {
    match notice {
        Notice::Changed(change) => invalidator.changed(&change),
        Notice::Forgotten(ino) => invalidator.ask(ino),
        Notice::Flush(_) | Notice::Stop => unreachable!("these change nothing"),
    }
}

fn name(parent: u64, name: &str, orphan: Option<u64>) -> Notice {
    Notice::Changed(Invalidation::Name { parent: Ino(parent), name: name.as_bytes().into(), orphan: orphan.map(Ino) })
}

fn folder(ino: u64) -> Notice {
    Notice::Changed(Invalidation::Folder(Ino(ino)))
}

fn everything(folders: &[u64]) -> Notice {
    Notice::Changed(Invalidation::Everything(folders.iter().copied().map(Ino).collect()))
}

#[test]
fn every_change_has_its_notification() {
    let world = World::new(&[1, 5, 9], true);
    let done = world.after([
        name(5, "a", None),
        folder(5),
        Notice::Changed(Invalidation::Attributes(Ino(9))),
        everything(&[5]),
    ]);
    assert_eq!(done, [Done::Entry(5, "a".into()), Done::Inode(5), Done::Attributes(9), Done::Epoch, Done::Inode(5)]);
}

#[test]
fn an_orphan_unknown_to_the_kernel_is_dropped() {
    let world = World::new(&[1], true);
    let done = world.after([name(1, "a", Some(7)), name(1, "b", Some(8))]);
    assert_eq!(
        done,
        [
            Done::Entry(1, "a".into()),
            Done::Attributes(7),
            Done::Entry(1, "b".into()),
            Done::Attributes(8),
            Done::Release(vec![7, 8])
        ]
    );
}

/// Promise: an open file keeps its bytes or gets ESTALE, never others.
#[test]
fn an_orphan_in_use_is_pinned_until_the_kernel_forgets_it() {
    let world = World::new(&[1, 7], true);
    let (notices, inbox) = channel();
    let mut invalidator = Invalidator::new(inbox, world.clone());
    handle(&mut invalidator, name(1, "a", Some(7)));
    assert_eq!(*world.done.lock().unwrap(), [Done::Entry(1, "a".into()), Done::Attributes(7), Done::Pin(7)]);
    // One of two references is forgotten, another inode as well.
    notices.forgotten(Ino(7));
    notices.forgotten(Ino(99));
    assert!(matches!(invalidator.next(), Some(Notice::Forgotten(Ino(7)))));
    handle(&mut invalidator, Notice::Forgotten(Ino(7)));
    assert!(invalidator.settled.is_empty());
    world.known.lock().unwrap().remove(&7);
    notices.forgotten(Ino(7));
    notices.stop();
    invalidator.run();
    assert_eq!(world.done.lock().unwrap().last(), Some(&Done::Release(vec![7])));
    notices.forgotten(Ino(7));
}

#[test]
fn a_forget_right_after_the_kernels_answer_settles_the_orphan() {
    let world = World::new(&[1, 7], true);
    let (notices, inbox) = channel();
    let kernel = World { forgets: Some(notices.clone()), ..world.clone() };

    notices.changed([Invalidation::Name { parent: ROOT, name: (*b"a").into(), orphan: Some(Ino(7)) }]);
    let thread = Invalidator::spawn(inbox, kernel).unwrap();
    let settled = || world.done.lock().unwrap().contains(&Done::Release(vec![7]));
    (0..1000).take_while(|_| !settled()).for_each(|_| thread::sleep(std::time::Duration::from_millis(5)));

    assert!(settled(), "{:?}", world.done.lock().unwrap());
    notices.stop();
    thread.join().unwrap();
}

#[test]
fn without_an_epoch_changed_folders_are_dropped_with_all_below() {
    let world = World::new(&[1, 5], false);
    let done = world.after([everything(&[5, 1]), name(5, "x", None), folder(5)]);
    assert_eq!(
        done,
        [
            Done::Epoch,
            Done::Entry(1, "a".into()),
            Done::Entry(1, "b".into()),
            Done::Inode(1),
            Done::Entry(1, "five".into()),
            Done::Inode(5),
            Done::Entry(5, "x".into()),
            Done::Inode(5),
        ]
    );
}

/// A name that left the root is below no folder that changed, and one in use stays below its folder.
#[test]
fn without_an_epoch_the_names_of_known_orphans_are_dropped() {
    let world = World { orphans: vec![Ino(7), Ino(8)], ..World::new(&[1, 5, 7, 8], false) };

    let done = world.after([everything(&[5])]);

    let folders = [Done::Epoch, Done::Entry(1, "five".into()), Done::Inode(5)];
    let seven = [Done::Attributes(7), Done::Entry(5, "seven".into()), Done::Attributes(7), Done::Pin(7)];
    assert_eq!(done, [&folders[..], &seven, &[Done::Attributes(8), Done::Pin(8)]].concat());
}

#[test]
fn names_are_dropped_although_orphans_could_not_be_listed() {
    let mut world = World { orphans: vec![Ino(7)], ..World::new(&[7], false) };
    world.fails_behind = Arc::new(Mutex::new(Some(Ino(0))));

    let (_notices, inbox) = channel();
    let mut invalidator = Invalidator::new(inbox, world.clone());

    handle(&mut invalidator, everything(&[]));
    handle(&mut invalidator, Notice::Forgotten(Ino(9)));
    invalidator.ask_again();

    let seven = [Done::Attributes(7), Done::Entry(5, "seven".into()), Done::Attributes(7), Done::Pin(7)];
    let forgotten = [Done::Epoch, Done::Attributes(9), Done::Release(vec![9])];
    assert_eq!(*world.done.lock().unwrap(), [&forgotten[..2], &seven, &forgotten[2..]].concat());
    assert!(!invalidator.names_stay);
}

#[test]
fn very_many_folders_come_in_one_notice() {
    let folders: InodeSet = [Ino(5), ROOT].into_iter().collect();
    let world = World::new(&[1, 5], false);
    let done = world.after([Notice::Changed(Invalidation::Folders(folders))]);
    assert_eq!(done, [Done::Inode(1), Done::Inode(5)]);
}

#[test]
fn everything_settles_the_orphans_that_it_does_not_name() {
    let world = World { orphans: vec![Ino(7), Ino(8)], ..World::new(&[7], true) };
    let done = world.after([everything(&[])]);
    assert_eq!(done, [Done::Epoch, Done::Attributes(7), Done::Pin(7), Done::Attributes(8), Done::Release(vec![8])]);
}

#[test]
fn a_panic_over_one_notice_does_not_stop_the_next() {
    let world = World::new(&[1], true);
    let done = world.after([name(1, "panic", None), name(1, "a", None)]);
    assert_eq!(done, [Done::Entry(1, "a".into())]);
}

#[test]
fn the_thread_ends_when_all_notices_handles_are_gone() {
    let (notices, inbox) = channel();
    let thread = Invalidator::spawn(inbox, World::new(&[], true)).unwrap();
    drop(notices);
    thread.join().unwrap();
}

#[test]
fn content_events_drop_pages_only_where_they_are_wrong() {
    let (notices, inbox) = channel();
    notices.content(&Event::Sized(Ino(3), 10));
    notices.content(&Event::Changed(Ino(3)));
    notices.content(&Event::Poisoned(Ino(3)));
    notices.content(&Event::Recheck(Ino(4), 4096..8192));
    notices.content(&Event::Unannounced(Ino(5)));
    assert_eq!(inbox.pages.try_recv(), Ok((Ino(3), 0..u64::MAX)));
    assert_eq!(inbox.pages.try_recv(), Ok((Ino(4), 4096..8192)));
    assert_eq!(inbox.pages.try_recv(), Ok((Ino(5), 0..u64::MAX)));
    assert_eq!(inbox.pages.try_recv(), Err(TryRecvError::Empty));
    assert!(matches!(inbox.receiver.try_recv(), Err(TryRecvError::Empty)), "no name waits for pages");
}

#[tokio::test]
async fn flush_waits_for_all_earlier_notices() {
    let world = World::new(&[1, 2], true);
    let (notices, inbox) = channel();
    let thread = Invalidator::spawn(inbox, world.clone()).unwrap();

    notices.changed([Invalidation::Attributes(Ino(2)), Invalidation::Folder(ROOT)]);
    notices.flushed().await;

    assert_eq!(*world.done.lock().unwrap(), [Done::Attributes(2), Done::Inode(1)]);
    notices.stop();
    thread.join().unwrap();
    notices.flushed().await;
}

#[test]
fn orphans_are_asked_about_again_until_the_catalog_names_all() {
    let mut world = World::new(&[9], true);
    world.orphans = [3, 9].map(Ino).to_vec();
    world.fails_behind = Arc::new(Mutex::new(Some(Ino(3))));
    let (notices, inbox) = channel();
    let mut invalidator = Invalidator::new(inbox, world.clone());

    handle(&mut invalidator, everything(&[]));
    assert_eq!(*world.done.lock().unwrap(), [Done::Epoch, Done::Attributes(3)], "the next is not known");

    notices.stop();
    invalidator.ask_again();
    let done = world.done.lock().unwrap().clone();
    assert_eq!(
        done[2..],
        [3, 9].map(Done::Attributes).into_iter().chain([Done::Pin(9), Done::Release(vec![3, 3])]).collect::<Vec<_>>()
    );
    assert!(!invalidator.asks_again);
}
