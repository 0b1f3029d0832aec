//! What was handed out of large objects: later downloads are held to it.

use super::object::Version;
use crate::content::fixity::BlockDigests;
use fuser::INodeNo;
use lru::LruCache;
use std::sync::{Arc, Mutex, PoisonError};

/// Digests of blocks that are kept in memory, of all inodes: some 10 MB.
const DIGESTS: usize = 1 << 18;

/// Inodes that are remembered, each with a file at most.
const INODES: usize = 1024;

/// What was handed out of one inode.
#[derive(Clone, Default)]
pub(super) struct Served {
    pub(super) blocks: Arc<Mutex<BlockDigests>>,
    /// The whole was verified and these are its blocks.
    pub(super) is_whole: bool,
    /// It was streamed past the cache, which had no room for it.
    pub(super) was_passed: bool,
    /// The version that all of it belongs to, where that is known.
    pub(super) version: Option<Version>,
}

/// What binds the downloads of an inode, besides the blocks handed out.
#[derive(Clone, Copy, Default)]
pub(super) struct Bonds {
    /// Those blocks are all that the verified whole has: each binds by itself.
    pub(super) is_proved: bool,
    /// An earlier download was whole: any of its blocks may have been handed out, though none is remembered.
    pub(super) is_known: bool,
    /// A published digest says which bytes are right.
    pub(super) is_vouched: bool,
}

/// What was handed out of the inodes of large objects: before the verdict of a download that failed, or after one.
///
/// Lock order: this first, then the blocks of an inode.
pub(in crate::content) struct ServedBlocks {
    by_inode: LruCache<INodeNo, Served>,
}

impl Default for ServedBlocks {
    fn default() -> Self {
        ServedBlocks { by_inode: LruCache::unbounded() }
    }
}

impl ServedBlocks {
    pub(super) fn get(&mut self, ino: INodeNo) -> Option<Served> {
        self.by_inode.get(&ino).cloned()
    }

    /// Whether bytes of `ino` were handed out without a verdict.
    pub(super) fn is_unjudged(&self, ino: INodeNo) -> bool {
        self.by_inode.peek(&ino).is_some_and(|served| !served.is_whole)
    }

    /// Later downloads of `ino` need not be compared with anything.
    pub(in crate::content) fn remove(&mut self, ino: INodeNo) {
        self.by_inode.pop(&ino);
    }

    /// Remembers what was handed out of `ino`. Returns the inodes that are forgotten for it without a verdict: nothing more of them
    /// may be handed out.
    #[must_use]
    pub(super) fn keep(&mut self, ino: INodeNo, served: Served) -> Vec<INodeNo> {
        self.keep_within(ino, served, INODES, DIGESTS)
    }

    fn keep_within(&mut self, ino: INodeNo, served: Served, inodes: usize, digests: usize) -> Vec<INodeNo> {
        let in_memory = |served: &Served| served.blocks.lock().unwrap_or_else(PoisonError::into_inner).in_memory();
        self.by_inode.put(ino, served);
        // Counted each time: what is remembered grows while a download is under way.
        let mut all: usize = self.by_inode.iter().map(|(_, served)| in_memory(served)).sum();
        let mut unjudged = Vec::new();
        while self.by_inode.len() > inodes || all > digests {
            let Some((ino, dropped)) = self.by_inode.pop_lru() else { break };
            all = all.saturating_sub(in_memory(&dropped));
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

    fn served(blocks: u64, is_whole: bool) -> Served {
        let folder = tempfile::tempdir().unwrap();
        let mut handed = BlockDigests::default();
        assert!((0..blocks).all(|block| handed.record(block, &[1], folder.path())));
        Served { blocks: Arc::new(Mutex::new(handed)), is_whole, ..Served::default() }
    }

    #[test]
    fn the_least_recent_is_forgotten_and_reported_if_unjudged() {
        let mut all = ServedBlocks::default();
        assert_eq!(all.keep_within(INodeNo(1), served(5, false), 3, 12), []);
        assert_eq!(all.keep_within(INodeNo(2), served(5, true), 3, 12), []);
        assert!(all.get(INodeNo(1)).is_some());

        assert_eq!(all.keep_within(INodeNo(3), served(5, false), 3, 12), [], "the verified one may go");
        assert!(all.get(INodeNo(2)).is_none());
        assert_eq!(all.keep_within(INodeNo(4), served(7, false), 3, 12), [INodeNo(1)]);
        assert_eq!(all.keep_within(INodeNo(5), served(13, false), 3, 12), [INodeNo(3), INodeNo(4), INodeNo(5)]);
        assert!(all.get(INodeNo(5)).is_none(), "more than all together may have");
    }
}
