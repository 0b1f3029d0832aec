//! Failures remembered, so that what has just failed is not asked again for every reader. Pure.

use crate::content::ContentError;
use crate::content::fixity::{BLOCK, WHOLE_LIMIT};
use crate::document::Uri;
use fuser::INodeNo;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The kernel repeats a failed READ at once, and page by page.
const READ_MEMORY: Duration = Duration::from_secs(5);

/// The first failure of an inode counts so long, each further one twice as long as the one before …
const INODE_MEMORY: Duration = Duration::from_secs(10);

/// … up to this.
const INODE_MEMORY_LIMIT: Duration = Duration::from_secs(3600);

/// So many of either kind are remembered, the least recent forgotten.
const LIMIT: NonZeroUsize = NonZeroUsize::MIN.saturating_add(65_535);

struct Failed {
    error: ContentError,
    until: Instant,
}

struct FailedInode {
    failed: Failed,
    memory: Duration,
}

/// What failed lately.
pub(in crate::content) struct Failures {
    /// By inode and number of the block.
    reads: LruCache<(INodeNo, u64), Failed>,
    /// Sizes that cannot be told and objects that came wrong from everywhere.
    inodes: LruCache<INodeNo, FailedInode>,
    /// Sizes that were asked for ahead and not answered: they say nothing of a read.
    sizes_ahead: LruCache<INodeNo, Failed>,
    /// Resources of which wrong bytes were handed out before the verdict, whatever inode they have now.
    doubted: LruCache<Uri, ()>,
    /// Sizes that a head announced, of resources whose body then had another.
    contradicted: LruCache<Uri, u64>,
}

impl Default for Failures {
    fn default() -> Self {
        Failures {
            reads: LruCache::new(LIMIT),
            inodes: LruCache::new(LIMIT),
            sizes_ahead: LruCache::new(LIMIT),
            doubted: LruCache::new(LIMIT),
            contradicted: LruCache::new(LIMIT),
        }
    }
}

fn blocks(offset: u64, length: u32) -> Range<u64> {
    offset / BLOCK..offset.saturating_add(u64::from(length.max(1))).div_ceil(BLOCK)
}

impl Failures {
    /// The failure of an earlier read of any of these bytes, if it counts still.
    pub(super) fn read(&mut self, ino: INodeNo, offset: u64, length: u32, now: Instant) -> Option<ContentError> {
        blocks(offset, length).find_map(|block| {
            let failed = self.reads.get(&(ino, block)).filter(|failed| now < failed.until);
            failed.map(|failed| failed.error.clone())
        })
    }

    /// A read of these bytes failed.
    pub(super) fn read_failed(&mut self, ino: INodeNo, offset: u64, length: u32, error: &ContentError, now: Instant) {
        for block in blocks(offset, length) {
            self.reads.put((ino, block), Failed { error: error.clone(), until: now + READ_MEMORY });
        }
    }

    /// The failure of this inode, if it counts still.
    pub(super) fn inode(&mut self, ino: INodeNo, now: Instant) -> Option<ContentError> {
        self.inodes.get(&ino).filter(|inode| now < inode.failed.until).map(|inode| inode.failed.error.clone())
    }

    /// The inode failed as a whole.
    pub(super) fn inode_failed(&mut self, ino: INodeNo, error: &ContentError, now: Instant) {
        let memory = match self.inodes.peek(&ino) {
            // Several waiters may report the same failure.
            Some(before) if now < before.failed.until => before.memory,
            Some(before) => (before.memory * 2).min(INODE_MEMORY_LIMIT),
            None => INODE_MEMORY,
        };
        let failed = Failed { error: error.clone(), until: now + memory };
        self.inodes.put(ino, FailedInode { failed, memory });
    }

    /// The failure of a size that was asked for ahead, if it counts still.
    pub(super) fn size_ahead(&mut self, ino: INodeNo, now: Instant) -> Option<ContentError> {
        self.sizes_ahead.get(&ino).filter(|failed| now < failed.until).map(|failed| failed.error.clone())
    }

    /// The size was asked for ahead and not answered.
    pub(super) fn size_failed_ahead(&mut self, ino: INodeNo, error: &ContentError, now: Instant) {
        self.sizes_ahead.put(ino, Failed { error: error.clone(), until: now + INODE_MEMORY });
    }

    /// Wrong bytes of this resource were handed out before the verdict: it does not happen again.
    pub(super) fn doubt(&mut self, uri: &Uri) {
        self.doubted.put(uri.clone(), ());
    }

    /// Whether nothing of this resource may go out before the verdict.
    pub(super) fn is_doubted(&mut self, uri: &Uri) -> bool {
        self.doubted.get(uri).is_some()
    }

    /// A head of this resource announced the size `told`, and its body had another.
    pub(super) fn contradict(&mut self, uri: &Uri, told: u64) {
        self.contradicted.put(uri.clone(), told);
    }

    /// The size that a head announced of this resource, and that its body contradicted.
    pub(super) fn contradicted(&mut self, uri: &Uri) -> Option<u64> {
        self.contradicted.get(uri).copied()
    }

    /// Whether a head of this resource may be believed that it has `size` bytes. Where one was contradicted the whole body tells;
    /// but one too large to wait for has changed, as long as its head does not repeat itself.
    pub(super) fn is_believed(&mut self, uri: &Uri, size: u64) -> bool {
        self.contradicted(uri).is_none_or(|told| size > WHOLE_LIMIT && size != told)
    }

    /// A head of this resource says, too, that it is empty.
    pub(super) fn is_empty_by_head(&mut self, uri: &Uri) {
        self.contradicted.pop(uri);
    }

    /// The inode is whole, and the resource behind it right.
    pub(super) fn landed(&mut self, ino: INodeNo, uri: &Uri) {
        self.inodes.pop(&ino);
        self.doubted.pop(uri);
    }

    /// A refresh has happened: everything may be tried again. What was doubted stays so until it has come right.
    pub(in crate::content) fn forget(&mut self) {
        self.reads.clear();
        self.inodes.clear();
        self.sizes_ahead.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Uri;

    const INO: INodeNo = INodeNo(7);

    fn error() -> ContentError {
        ContentError::Stalled { uri: Uri::parse("http://example.org/a").unwrap() }
    }

    #[test]
    fn a_failed_read_is_answered_at_once_for_a_while_and_only_where_it_failed() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        failures.read_failed(INO, BLOCK, BLOCK as u32, &error(), now);

        assert!(failures.read(INO, BLOCK + 4096, 4096, now).is_some(), "the kernel asks again page by page");
        assert!(failures.read(INO, 0, BLOCK as u32, now).is_none());
        assert!(failures.read(INO, 2 * BLOCK, 1, now).is_none());
        assert!(failures.read(INodeNo(8), BLOCK, 1, now).is_none());
        assert!(failures.read(INO, BLOCK, 1, now + READ_MEMORY).is_none());
    }

    #[test]
    fn an_inode_that_fails_again_is_left_alone_for_twice_as_long() {
        let (mut failures, mut now) = (Failures::default(), Instant::now());
        let mut expected = INODE_MEMORY;
        for _ in 0..12 {
            failures.inode_failed(INO, &error(), now);
            assert!(failures.inode(INO, now + expected - Duration::from_millis(1)).is_some());
            now += expected;
            assert!(failures.inode(INO, now).is_none());
            expected = (expected * 2).min(INODE_MEMORY_LIMIT);
        }
        assert_eq!(expected, INODE_MEMORY_LIMIT);
    }

    #[test]
    fn many_waiters_of_one_failure_count_once() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        (0..5).for_each(|_| failures.inode_failed(INO, &error(), now));
        assert!(failures.inode(INO, now + INODE_MEMORY).is_none());
    }

    #[test]
    fn a_contradicted_head_is_believed_only_of_another_large_size() {
        let mut failures = Failures::default();
        let uri = Uri::parse("http://example.org/a").unwrap();
        let large = 2 * WHOLE_LIMIT;
        assert!(failures.is_believed(&uri, 5) && failures.is_believed(&uri, large));

        failures.contradict(&uri, large);
        failures.forget();

        assert!(!failures.is_believed(&uri, 5) && !failures.is_believed(&uri, large));
        assert!(failures.is_believed(&uri, large + 1));
        assert_eq!(failures.contradicted(&uri), Some(large));
        failures.is_empty_by_head(&uri);
        assert!(failures.is_believed(&uri, 5));
    }

    #[test]
    fn a_refresh_forgets_failures_and_no_doubts() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let uri = Uri::parse("http://example.org/a").unwrap();
        failures.read_failed(INO, 0, 1, &error(), now);
        failures.inode_failed(INO, &error(), now);
        failures.doubt(&uri);
        failures.forget();
        assert!(failures.read(INO, 0, 1, now).is_none() && failures.inode(INO, now).is_none());
        assert!(failures.is_doubted(&uri));

        failures.landed(INodeNo(8), &uri);
        assert!(!failures.is_doubted(&uri));
    }
}
