//! What was handed out of large objects: later downloads are held to it.

use super::fixity::{BlockDigests, WHOLE_LIMIT};
use super::trust::VersionId;
use crate::platform::ino::Ino;
use crate::platform::inode_set::InodeSet;
use lru::LruCache;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory for the records of all inodes, counted in digests of blocks: some 10 MB.
const DIGESTS: usize = 1 << 18;

/// Memory of an inode beside its digests, counted in digests.
const INODE: usize = 16;

/// Inodes with a file, which takes a descriptor.
const FILES: usize = 256;

/// Record of the blocks that were handed out of one inode.
#[derive(Clone, Default)]
pub(super) struct Served {
    pub(super) blocks: Arc<Mutex<BlockDigests>>,
    /// The whole was verified and these are its blocks.
    pub(super) is_whole: bool,
    /// The version that all of it belongs to, where that is known.
    pub(super) version: Option<VersionId>,
}

impl Served {
    /// The file that it has, and what it takes in memory.
    fn held(&self) -> (usize, usize) {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        (usize::from(blocks.has_file()), INODE + blocks.in_memory())
    }
}

fn sum(one: (usize, usize), other: (usize, usize)) -> (usize, usize) {
    (one.0 + other.0, one.1 + other.1)
}

/// Records of what was handed out of each inode, and of what later reads are told of it.
///
/// Lock order: one of these at a time, the last of all but for the blocks of an inode.
pub(super) struct ServedRecords {
    /// Blocks handed out of large objects: before the verdict of a download that failed, or after one.
    blocks: Mutex<LruCache<Ino, Served>>,
    /// Large inodes of which verified bytes were handed out: the kernel may hold any page of them.
    verified: Mutex<InodeSet>,
    /// Poisoned inodes whose event was sent in this mount.
    reminded: Mutex<InodeSet>,
}

impl Default for ServedRecords {
    fn default() -> ServedRecords {
        let blocks = Mutex::new(LruCache::unbounded());
        ServedRecords { blocks, verified: Mutex::default(), reminded: Mutex::default() }
    }
}

impl ServedRecords {
    pub(super) fn get(&self, ino: Ino) -> Option<Served> {
        self.lock().get(&ino).cloned()
    }

    /// Remembers what was handed out of `ino`. Returns the inodes that are forgotten for it without a verdict: the kernel must not keep
    /// their pages, with which later ones are no longer compared.
    #[must_use]
    pub(super) fn keep(&self, ino: Ino, served: Served) -> Vec<Ino> {
        keep_within(&mut self.lock(), ino, served, FILES, DIGESTS)
    }

    /// Returns whether bytes of `ino` were handed out without a verdict.
    pub(super) fn is_unjudged(&self, ino: Ino) -> bool {
        self.lock().peek(&ino).is_some_and(|served| !served.is_whole)
    }

    /// Later downloads of `ino` need not be compared with any block.
    pub(super) fn clear(&self, ino: Ino) {
        self.lock().pop(&ino);
    }

    /// Notes that a verified object of `bytes` bytes is handed out.
    pub(super) fn note_verified(&self, ino: Ino, bytes: u64) {
        if bytes > WHOLE_LIMIT {
            self.verified.lock().unwrap_or_else(PoisonError::into_inner).insert(ino);
        }
    }

    /// Returns whether bytes of a large verified object were handed out.
    pub(super) fn has_verified(&self, ino: Ino) -> bool {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner).contains(ino)
    }

    /// The event of a poisoned inode is sent; false where it was.
    pub(super) fn remind(&self, ino: Ino) -> bool {
        self.reminded.lock().unwrap_or_else(PoisonError::into_inner).insert(ino)
    }

    /// Forgets what was handed out of an inode that will never be asked for again.
    pub(super) fn forget(&self, ino: Ino) {
        self.clear(ino);
        self.verified.lock().unwrap_or_else(PoisonError::into_inner).remove(ino);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LruCache<Ino, Served>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`ServedRecords::keep`]; at most so many `files` and `digests`.
fn keep_within(blocks: &mut LruCache<Ino, Served>, ino: Ino, served: Served, files: usize, digests: usize) -> Vec<Ino> {
    blocks.put(ino, served);
    // Counted each time: what is remembered grows while a download is under way.
    let mut all = blocks.iter().map(|(_, served)| served.held()).fold((0, 0), sum);
    let is_much = |(in_files, in_memory): (usize, usize)| in_files > files || in_memory > digests;
    if !is_much(all) {
        return Vec::new();
    }
    // Of what was verified whole the digest is known still, so that goes first.
    let oldest = blocks.iter().rev().map(|(ino, served)| (*ino, served.is_whole));
    let mut oldest: Vec<_> = oldest.filter(|(oldest, _)| *oldest != ino).collect();
    oldest.sort_by_key(|(_, is_whole)| !is_whole);
    let mut unjudged = Vec::new();
    for (ino, is_whole) in oldest.into_iter().chain([(ino, false)]) {
        if !is_much(all) {
            break;
        }
        let Some(dropped) = blocks.pop(&ino) else { continue };
        let held = dropped.held();
        all = (all.0 - held.0.min(all.0), all.1 - held.1.min(all.1));
        if !is_whole && !dropped.is_whole {
            unjudged.push(ino);
        }
    }
    unjudged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(blocks: u64, is_whole: bool) -> Served {
        let folder = tempfile::tempdir().unwrap();
        let mut handed = BlockDigests::default();
        assert!((0..blocks).all(|block| handed.record(block, &[1], folder.path())));
        Served { blocks: Arc::new(Mutex::new(handed)), is_whole, ..Served::default() }
    }

    #[test]
    fn what_was_verified_is_forgotten_before_what_was_not() {
        let mut all = LruCache::unbounded();
        let mut keep = |ino, served, inodes| keep_within(&mut all, Ino(ino), served, FILES, inodes * (INODE + 5));
        assert_eq!(keep(1, served(5, false), 3), []);
        assert_eq!(keep(2, served(5, true), 3), []);
        assert_eq!(keep(3, served(5, false), 3), []);

        assert_eq!(keep(4, served(5, false), 3), [], "the verified one may go");
        assert_eq!(keep(5, served(5, false), 3), [Ino(1)], "then the least recent");
        assert_eq!(keep(6, served(500, false), 3), [3, 4, 5, 6].map(Ino), "more than all together may have");
        assert!(all.get(&Ino(6)).is_none());
    }

    /// A file manager samples a folder of videos: a few blocks of each.
    #[test]
    fn thousands_of_sampled_files_are_remembered() {
        let all = ServedRecords::default();
        for ino in 1..=8000 {
            assert_eq!(all.keep(Ino(ino), served(8, false)), []);
        }
        assert!(all.is_unjudged(Ino(1)));
    }

    #[test]
    fn descriptors_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut all = LruCache::unbounded();
        for ino in 1..=4 {
            let mut long = BlockDigests::default();
            assert!((0..5000).all(|block| long.record(block, &[1], folder.path())));
            let served = Served { blocks: Arc::new(Mutex::new(long)), ..Served::default() };
            let forgotten = keep_within(&mut all, Ino(ino), served, 3, DIGESTS);
            assert_eq!(forgotten, if ino < 4 { vec![] } else { vec![Ino(1)] });
        }
    }
}
