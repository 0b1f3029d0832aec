//! The table of downloads under way, one an inode.

use super::in_flight::{Download, Joining};
use super::outcome::Outcome;
use super::state::asked;
use crate::platform::ino::Ino;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module. A download leaves it only after its object can be found, and no reader joins one that has left.
///
/// Lock order: this before the lock of a download.
#[derive(Default)]
pub(in crate::content) struct DownloadTable {
    by_inode: Mutex<HashMap<Ino, Arc<Download>>>,
}

impl DownloadTable {
    pub(in crate::content) fn get(&self, ino: Ino) -> Option<Arc<Download>> {
        self.lock().get(&ino).cloned()
    }

    pub(in crate::content) fn contains(&self, ino: Ino) -> bool {
        self.lock().contains_key(&ino)
    }

    /// How many downloads are under way.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Each download with its inode.
    pub(super) fn all(&self) -> Vec<(Ino, Arc<Download>)> {
        self.lock().iter().map(|(ino, download)| (*ino, Arc::clone(download))).collect()
    }

    /// Joins the download of an inode, or the new one that `make` returns; whether it is new.
    pub(super) fn join(&self, ino: Ino, joining: Joining, make: impl FnOnce() -> Download) -> (Waiting<'_>, bool) {
        let mut by_inode = self.lock();
        let (download, is_new) = match by_inode.entry(ino) {
            Entry::Occupied(entry) => (Arc::clone(entry.get()), false),
            Entry::Vacant(entry) => (Arc::clone(entry.insert(Arc::new(make()))), true),
        };
        download.join(joining);
        (Waiting { table: self, ino, download, joining }, is_new)
    }

    /// A prefetch waits no longer. A download for which nothing else waits leaves the table, and is cancelled.
    fn leave(&self, ino: Ino, download: &Arc<Download>) {
        let mut by_inode = self.lock();
        if download.leave() && by_inode.get(&ino).is_some_and(|found| Arc::ptr_eq(found, download)) {
            by_inode.remove(&ino);
            drop(by_inode);
            download.cancel();
        }
    }

    /// Takes a download out of the table and ends it, in one step: a later reader finds the object or begins another.
    pub(super) fn end(&self, ino: Ino, download: &Download, outcome: Outcome) {
        let mut by_inode = self.lock();
        // One that was cancelled may have a successor there.
        if by_inode.get(&ino).is_some_and(|found| std::ptr::eq(&**found, download)) {
            by_inode.remove(&ino);
        }
        download.publish(|state| state.end(outcome));
    }

    pub(in crate::content) fn lock(&self) -> MutexGuard<'_, HashMap<Ino, Arc<Download>>> {
        self.by_inode.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader or prefetch that has joined a download. It waits until this is dropped.
pub(super) struct Waiting<'t> {
    table: &'t DownloadTable,
    ino: Ino,
    pub(super) download: Arc<Download>,
    joining: Joining,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        match self.joining {
            Joining::Read(_, offset, length) => {
                self.download.change(|state| state.leave_range(asked(offset, length)));
            }
            Joining::Size(_) => self.download.change(|state| state.leave_size()),
            Joining::Ahead(..) => self.table.leave(self.ino, &self.download),
        }
    }
}
