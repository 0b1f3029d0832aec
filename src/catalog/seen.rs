//! The inodes that the kernel has seen since the catalog was opened: no other can be open, or have a name that the kernel keeps.

use super::Catalog;
use crate::platform::inode_set::InodeSet;
use fuser::INodeNo;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A rebuild keeps orphans of these alone: a row for each inode of a great tree would take as much time and disk as the tree.
#[derive(Default)]
pub(super) struct Seen(Mutex<Inodes>);

#[derive(Default)]
struct Inodes {
    all: InodeSet,
    /// Those that were first seen since a rebuild began.
    lately: InodeSet,
}

impl Seen {
    fn inodes(&self) -> MutexGuard<'_, Inodes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn contains(&self, ino: u64) -> bool {
        self.inodes().all.contains(INodeNo(ino))
    }

    /// The inodes that were first seen since this was asked last.
    pub(super) fn lately(&self) -> InodeSet {
        std::mem::take(&mut self.inodes().lately)
    }

    /// The kernel has forgotten these.
    pub(super) fn forget(&self, orphans: &InodeSet) {
        let mut inodes = self.inodes();
        for ino in orphans.iter() {
            inodes.all.remove(ino);
        }
    }
}

impl Catalog {
    /// Notes that the kernel sees an inode by the reply that is made. Before the reply is sent.
    pub fn kernel_sees(&self, ino: INodeNo) {
        let mut inodes = self.seen.inodes();
        if inodes.all.insert(ino) {
            inodes.lately.insert(ino);
        }
    }
}
