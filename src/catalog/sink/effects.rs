//! Effects of a commit on what readers see: counted, and noted for the kernel.

use super::super::{Committed, Invalidation, Kind};
use crate::platform::ino::Ino;
use crate::platform::inode_set::InodeSet;
use std::collections::BTreeMap;

/// More invalidations of names and attributes than this become one [`Invalidation::Everything`], with all folders. More of folders alone
/// become one [`Invalidation::Folders`].
const MOST_INVALIDATIONS: usize = 20_000;

#[derive(Default)]
pub struct CommitEffects {
    /// Files; folders that come and go are counted by themselves.
    pub created: u64,
    pub updated: u64,
    pub touched: u64,
    pub deleted: u64,
    folders_changed: u64,
    /// No longer extended once the limit is exceeded.
    names: Vec<Invalidation>,
    /// Folders whose listing or attributes are others now.
    folders: InodeSet,
    /// Folders of files whose attributes are others now: the kernel drops what it knows of them where each file would be too many.
    touched_folders: InodeSet,
}

impl CommitEffects {
    /// Answers whether readers see the tree as it was.
    pub fn is_nothing(&self) -> bool {
        self.created + self.updated + self.touched + self.deleted + self.folders_changed == 0
    }

    /// Counts a file that came or went in `files`, a folder among folders.
    pub fn count(&mut self, kind: Kind, files: fn(&mut CommitEffects) -> &mut u64) {
        match kind {
            Kind::File => *files(self) += 1,
            Kind::Folder => self.folders_changed += 1,
        }
    }

    /// A name stands for something else, or for nothing, or is new. `orphan`: the inode that it stood for.
    pub fn name(&mut self, parent: u64, name: &[u8], orphan: Option<u64>) {
        let orphan = orphan.map(Ino);
        self.note(|| Invalidation::Name { parent: Ino(parent), name: name.into(), orphan });
    }

    /// A file of the same content has other attributes.
    pub fn attributes(&mut self, parent: u64, ino: u64) {
        self.touched_folders.insert(Ino(parent));
        self.note(|| Invalidation::Attributes(Ino(ino)));
    }

    /// The listing or the attributes of a folder changed.
    pub fn folder(&mut self, ino: u64) {
        self.folders.insert(Ino(ino));
    }

    fn note(&mut self, invalidation: impl FnOnce() -> Invalidation) {
        if self.names.len() <= MOST_INVALIDATIONS {
            self.names.push(invalidation());
        }
    }

    /// The report of the commit of `revision`.
    pub fn committed(self, revision: u64, left_out: BTreeMap<String, u64>) -> Committed {
        let CommitEffects { created, updated, touched, deleted, names: mut invalidations, .. } = self;
        let mut folders = self.folders;
        if invalidations.len() > MOST_INVALIDATIONS {
            for folder in self.touched_folders.iter() {
                folders.insert(folder);
            }
            invalidations = vec![Invalidation::Everything(folders)];
        } else if folders.len() > MOST_INVALIDATIONS {
            invalidations.push(Invalidation::Folders(folders));
        } else {
            invalidations.extend(folders.iter().map(Invalidation::Folder));
        }
        Committed { revision, created, updated, touched, deleted, invalidations, left_out, unknown: 0 }
    }
}
