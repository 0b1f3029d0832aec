//! Pages of files leave the kernel's page cache on dedicated threads.
//!
//! A page that a READ fills is locked until the READ is answered, and the kernel waits for it before it drops the page. That READ may
//! wait for a slow Source. So each drop has a thread: one that waits blocks no name, no refresh and no other drop.

use crate::platform::ino::Ino;
use crate::platform::scheduling;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Drops that may wait in the kernel at a time; later ones wait until one of them is done.
const MOST: usize = 64;

/// Has the kernel drop pages.
pub type DropPages = dyn Fn(Ino, &Range<u64>) -> io::Result<()> + Send + Sync;

/// The bytes of a file whose pages are to go.
pub(super) type DroppedPages = (Ino, Range<u64>);

/// Starts to drop what is sent to `pages`, until its other end is gone.
pub(super) fn spawn(pages: Receiver<DroppedPages>, drop_pages: Arc<DropPages>) -> io::Result<()> {
    let thread = thread::Builder::new().name("pages".into());
    scheduling::in_short_slices(|| thread.spawn(move || each_on_a_thread(&pages, &drop_pages))).map(drop)
}

fn each_on_a_thread(pages: &Receiver<DroppedPages>, drop_pages: &Arc<DropPages>) {
    let (free, permits) = channel();
    for _ in 0..MOST {
        let _ = free.send(());
    }
    while let (Ok((ino, range)), Ok(())) = (pages.recv(), permits.recv()) {
        let (on_thread, of_thread, permit) = (Arc::clone(drop_pages), range.clone(), DropPermit(free.clone()));
        let drop_them = move || {
            let _permit = permit;
            drop_range(ino, &of_thread, &on_thread);
        };
        if let Err(error) = thread::Builder::new().name("pages".into()).spawn(drop_them) {
            tracing::warn!(ino = ino.0, "pages that are dropped next may wait for these: no thread: {error}");
            drop_range(ino, &range, drop_pages);
        }
    }
}

fn drop_range(ino: Ino, range: &Range<u64>, drop_pages: &Arc<DropPages>) {
    match drop_pages(ino, range) {
        // The kernel does not know the inode: it has no pages of it.
        Err(error) if super::is_unknown(&error) => {}
        Err(error) => tracing::warn!(ino = ino.0, "pages were not dropped: {error}"),
        Ok(()) => {}
    }
}

/// Returned when dropped.
struct DropPermit(Sender<()>);

impl Drop for DropPermit {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Duration;

    #[test]
    fn a_drop_that_waits_blocks_no_other() {
        let (sender, pages) = channel();
        let (answer_reads, answered) = channel::<()>();
        let answered = Mutex::new(answered);
        let (dropped, drops) = channel();
        let dropped = Mutex::new(dropped);
        let kernel = move |ino: Ino, range: &Range<u64>| {
            if ino.0 == 7 {
                // A READ of it is under way.
                answered.lock().unwrap().recv().unwrap();
            }
            dropped.lock().unwrap().send((ino, range.clone())).unwrap();
            Ok(())
        };
        spawn(pages, Arc::new(kernel)).unwrap();

        for drop in [(Ino(7), 0..4096), (Ino(8), 4096..8192)] {
            sender.send(drop).unwrap();
        }

        let next = || drops.recv_timeout(Duration::from_secs(9)).unwrap();
        assert_eq!(next(), (Ino(8), 4096..8192));
        answer_reads.send(()).unwrap();
        assert_eq!(next(), (Ino(7), 0..4096));
    }
}
