//! What went out of large objects: later fetches are held to it.

use super::held::Version;
use crate::content::fixity::HandedOut;
use fuser::INodeNo;
use lru::LruCache;
use std::sync::{Arc, Mutex, PoisonError};

/// Blocks that are remembered, of all inodes: digests of 128 GiB, some 50 MB.
const BLOCKS: usize = 1 << 20;

/// Inodes that are remembered.
const INODES: usize = 4096;

/// What went out of one inode.
#[derive(Clone, Default)]
pub(super) struct Kept {
    pub(super) handed: Arc<Mutex<HandedOut>>,
    /// The whole was verified and these are its blocks.
    pub(super) is_whole: bool,
    /// It went past the cache, which had no room for it.
    pub(super) went_past: bool,
    /// The version that all of it belongs to, where that is known.
    pub(super) version: Option<Version>,
}

/// What binds the downloads of an inode apart from the blocks that went out of it.
#[derive(Clone, Copy, Default)]
pub(super) struct Bonds {
    /// Those blocks are all that the verified whole has: each binds by itself.
    pub(super) is_proved: bool,
    /// An earlier fetch was whole: any of its blocks may have gone out, though none is remembered.
    pub(super) is_known: bool,
    /// A published digest says which bytes are right.
    pub(super) is_vouched: bool,
}

impl Kept {
    fn blocks(&self) -> usize {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// What went out of the inodes of large objects: before the verdict of a fetch that failed, or after one.
///
/// Lock order: this first, then what went out of an inode.
pub(in crate::content) struct HandedOuts {
    by_inode: LruCache<INodeNo, Kept>,
}

impl Default for HandedOuts {
    fn default() -> Self {
        HandedOuts { by_inode: LruCache::unbounded() }
    }
}

impl HandedOuts {
    /// What went out of `ino`, if that is remembered.
    pub(super) fn get(&mut self, ino: INodeNo) -> Option<Kept> {
        self.by_inode.get(&ino).cloned()
    }

    /// Whether bytes of `ino` went out of which no verdict was given.
    pub(super) fn is_unjudged(&self, ino: INodeNo) -> bool {
        self.by_inode.peek(&ino).is_some_and(|kept| !kept.is_whole)
    }

    /// Nothing need be compared with what went out of `ino`.
    pub(in crate::content) fn remove(&mut self, ino: INodeNo) {
        self.by_inode.pop(&ino);
    }

    /// Remembers what went out of `ino`. The inodes answered are forgotten for it although no verdict was given on what went
    /// out of them: nothing more may.
    #[must_use]
    pub(super) fn keep(&mut self, ino: INodeNo, kept: Kept) -> Vec<INodeNo> {
        self.keep_within(ino, kept, INODES, BLOCKS)
    }

    fn keep_within(&mut self, ino: INodeNo, kept: Kept, inodes: usize, blocks: usize) -> Vec<INodeNo> {
        self.by_inode.put(ino, kept);
        // Counted anew: what is remembered grows while a fetch is under way.
        let mut all: usize = self.by_inode.iter().map(|(_, kept)| kept.blocks()).sum();
        let mut unjudged = Vec::new();
        while self.by_inode.len() > inodes || all > blocks {
            let Some((ino, dropped)) = self.by_inode.pop_lru() else { break };
            all = all.saturating_sub(dropped.blocks());
            if !dropped.is_whole {
                unjudged.push(ino);
            }
        }
        unjudged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(blocks: u64, is_whole: bool) -> Kept {
        let mut handed = HandedOut::default();
        assert!((0..blocks).all(|block| handed.record(block, &[1])));
        Kept { handed: Arc::new(Mutex::new(handed)), is_whole, went_past: false, version: None }
    }

    #[test]
    fn the_least_recent_is_forgotten_and_told_unless_it_was_verified() {
        let mut all = HandedOuts::default();
        assert_eq!(all.keep_within(INodeNo(1), kept(5, false), 3, 12), []);
        assert_eq!(all.keep_within(INodeNo(2), kept(5, true), 3, 12), []);
        assert!(all.get(INodeNo(1)).is_some());

        assert_eq!(all.keep_within(INodeNo(3), kept(5, false), 3, 12), [], "the verified one may go");
        assert!(all.get(INodeNo(2)).is_none());
        assert_eq!(all.keep_within(INodeNo(4), kept(7, false), 3, 12), [INodeNo(1)]);
        assert_eq!(all.keep_within(INodeNo(5), kept(13, false), 3, 12), [INodeNo(3), INodeNo(4), INodeNo(5)]);
        assert!(all.get(INodeNo(5)).is_none(), "more than all together may have");
    }
}
