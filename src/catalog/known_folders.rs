//! The folders of which the kernel has seen names since the catalog was opened: no other inode can be open, or have a name that the kernel
//! keeps, than those whose names are in one of them.

use super::Catalog;
use crate::platform::ino::Ino;
use crate::platform::inode_set::InodeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A rebuild keeps orphans of these folders alone: a row for each inode of a great tree would take as much time and disk as the tree.
#[derive(Default)]
pub(super) struct KnownFolders(Mutex<FolderSets>);

#[derive(Default)]
struct FolderSets {
    all: InodeSet,
    /// Folders that were first seen since a rebuild began.
    lately: InodeSet,
}

impl KnownFolders {
    fn folders(&self) -> MutexGuard<'_, FolderSets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers whether names of this folder were seen.
    pub(super) fn contains(&self, folder: u64) -> bool {
        self.folders().all.contains(Ino(folder))
    }

    /// Takes the folders that were first seen since the last call.
    pub(super) fn take_lately(&self) -> InodeSet {
        std::mem::take(&mut self.folders().lately)
    }

    /// The kernel has forgotten these.
    pub(super) fn forget(&self, orphans: &InodeSet) {
        let mut folders = self.folders();
        for ino in orphans.iter() {
            folders.all.remove(ino);
        }
    }
}

impl Catalog {
    /// Notes that the kernel sees names of a folder by the reply that is made. Before the snapshot of the reply is taken: a rebuild that
    /// comes in between would keep no orphans of what the reply shows.
    pub fn kernel_looks_into(&self, folder: Ino) {
        let mut folders = self.known_folders.folders();
        if folders.all.insert(folder) {
            folders.lately.insert(folder);
        }
    }
}
