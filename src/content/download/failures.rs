//! What failed, so that the same request is not repeated for every reader, and hosts at fault are asked last. Pure.
//!
//! No host is left out: a read fails only after all locations of its resource were asked.

use crate::content::ContentError;
use crate::content::fixity::{BLOCK, WHOLE_LIMIT};
use crate::document::Uri;
use crate::platform::ino::Ino;
use crate::platform::penalty_box::PenaltyBox;
use crate::source::zip::PackageError;
use std::ops::{Range, RangeInclusive};
use std::time::{Duration, Instant};

/// The kernel repeats a failed READ at once, page by page.
const READ: Duration = Duration::from_secs(5);
/// An inode that failed as a whole.
const INODE: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(3600);
/// Longer than any process runs.
const ALWAYS: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Fault of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostFault {
    /// The host did not answer, refused, or broke off.
    Silent,
    /// Its bytes were not the Source's, and another location had the right ones.
    Wrong,
}

impl HostFault {
    /// The lengths of its penalties: the first, and the longest.
    fn penalties(self) -> RangeInclusive<Duration> {
        let [first, longest] = match self {
            HostFault::Silent => [30, 3600],
            HostFault::Wrong => [600, 24 * 3600],
        };
        Duration::from_secs(first)..=Duration::from_secs(longest)
    }
}

/// Fault of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PackageFault {
    /// The package cannot be read: it comes after the resources' own URIs.
    Unreadable,
    /// The package cannot be read for now.
    Unreachable,
    /// A member of it cannot be read, which was reported.
    Member,
    /// The own URIs of the resources in it failed: it comes before them.
    OwnUris,
}

impl PackageFault {
    pub(super) fn of(error: &PackageError) -> PackageFault {
        match error {
            error if error.is_of_one_member() => PackageFault::Member,
            error if error.is_retryable() => PackageFault::Unreachable,
            _ => PackageFault::Unreadable,
        }
    }

    /// For how long: the first time, and the longest. Failures that pass cost what those of a host do.
    pub(super) fn penalties(self) -> RangeInclusive<Duration> {
        let [first, longest] = match self {
            PackageFault::Unreachable => [30, 600],
            PackageFault::Unreadable => [600, 600],
            PackageFault::Member | PackageFault::OwnUris => [3600, 3600],
        };
        Duration::from_secs(first)..=Duration::from_secs(longest)
    }
}

/// Failures of one mount that are remembered.
#[derive(Default)]
pub(in crate::content) struct Failures {
    /// By inode and number of the block.
    reads: PenaltyBox<(Ino, u64), ContentError>,
    /// Inodes without a size that can be learnt, or with wrong bytes at every location.
    inodes: PenaltyBox<Ino, ContentError>,
    /// Inodes that nothing is asked ahead of, for they failed in any way. Their readers ask.
    ahead: PenaltyBox<Ino>,
    /// Hosts that are asked last, by their `HOST[:PORT]`.
    pub(in crate::content) hosts: PenaltyBox<Box<str>>,
    /// Resources of which wrong bytes were handed out before the verdict, under any inode: the next ones wait for theirs.
    pub(super) doubted: PenaltyBox<Uri>,
    /// Sizes that a head announced, of resources whose body then had another.
    pub(super) contradicted: PenaltyBox<Uri, u64>,
    /// Packages, by what is remembered of them.
    pub(super) packages: PenaltyBox<(Uri, PackageFault)>,
    /// Inodes that were revalidated lately, with any outcome.
    pub(super) revalidated: PenaltyBox<Ino>,
}

fn blocks(offset: u64, length: u32) -> Range<u64> {
    offset / BLOCK..offset.saturating_add(u64::from(length.max(1))).div_ceil(BLOCK)
}

impl Failures {
    /// The failure of an earlier read of any of these bytes.
    pub(super) fn read(&self, ino: Ino, offset: u64, length: u32, now: Instant) -> Option<ContentError> {
        blocks(offset, length).find_map(|block| self.reads.cause(&(ino, block), now).cloned())
    }

    /// A read of these bytes failed.
    pub(super) fn read_failed(&mut self, ino: Ino, offset: u64, length: u32, error: &ContentError, now: Instant) {
        blocks(offset, length).for_each(|block| self.reads.punish((ino, block), READ, error.clone(), now));
    }

    /// The inode failed as a whole.
    pub(super) fn inode_failed(&mut self, ino: Ino, error: &ContentError, now: Instant) {
        self.inodes.punish_longer(ino, INODE, error.clone(), now);
    }

    /// The failure of the inode as a whole.
    pub(super) fn inode(&self, ino: Ino, now: Instant) -> Option<ContentError> {
        self.inodes.cause(&ino, now).cloned()
    }

    /// A request for the inode failed, which says nothing to its next reader.
    pub(super) fn request_failed(&mut self, ino: Ino, now: Instant) {
        self.ahead.punish_longer(ino, INODE, (), now);
    }

    /// Returns whether the inode has failed lately, so that nothing is asked ahead of its readers.
    pub(super) fn has_failed(&self, ino: Ino, now: Instant) -> bool {
        self.inodes.is_punished(&ino, now) || self.ahead.is_punished(&ino, now)
    }

    /// An answer came for the inode.
    pub(super) fn inode_answered(&mut self, ino: Ino) {
        self.inodes.forgive(&ino);
        self.ahead.forgive(&ino);
    }

    /// The host `authority` was at fault.
    pub(super) fn host_failed(&mut self, authority: &str, fault: HostFault, now: Instant) {
        self.hosts.punish_longer(authority.into(), fault.penalties(), (), now);
    }

    /// Wrong bytes of this resource were handed out before the verdict.
    pub(super) fn doubt(&mut self, uri: &Uri, now: Instant) {
        self.doubted.punish(uri.clone(), ALWAYS, (), now);
    }

    /// A head of this resource announced `size`, and its body had another.
    pub(super) fn contradict(&mut self, uri: &Uri, size: u64, now: Instant) {
        self.contradicted.punish(uri.clone(), ALWAYS, size, now);
    }

    /// Returns whether a head may be believed that this resource has `size` bytes. After a contradiction the whole body decides.
    /// But a body too large to wait for has changed if its head announces another size than before.
    pub(super) fn is_believed(&self, uri: &Uri, size: u64, now: Instant) -> bool {
        let contradicted = self.contradicted.cause(uri, now);
        contradicted.is_none_or(|announced| size > WHOLE_LIMIT && size != *announced)
    }

    /// The inode is whole, and the resource behind it right.
    pub(super) fn completed(&mut self, ino: Ino, uri: &Uri) {
        self.inode_answered(ino);
        self.doubted.forgive(uri);
    }

    /// After a refresh everything may be tried again. Doubts stay until right bytes end them.
    pub(in crate::content) fn forget(&mut self) {
        self.reads.clear();
        self.inodes.clear();
        self.ahead.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);

    fn uri() -> Uri {
        Uri::parse("http://example.org/a").unwrap()
    }

    fn error() -> ContentError {
        ContentError::Stalled { uri: uri() }
    }

    #[test]
    fn a_failed_read_fails_again_at_once_only_where_it_failed() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        failures.read_failed(INO, BLOCK, BLOCK as u32, &error(), now);

        assert!(failures.read(INO, BLOCK + 4096, 4096, now).is_some(), "the kernel repeats it page by page");
        assert!(failures.read(INO, 0, BLOCK as u32, now).is_none());
        assert!(failures.read(INO, 2 * BLOCK, 1, now).is_none());
        assert!(failures.read(Ino(8), BLOCK, 1, now).is_none());
        assert!(failures.read(INO, BLOCK, 1, now + READ).is_none());
    }

    #[test]
    fn an_inode_fails_at_once_for_ten_seconds_then_for_twenty() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let seconds = |seconds| now + Duration::from_secs(seconds);
        (0..5).for_each(|_| failures.inode_failed(INO, &error(), now));
        assert!(failures.inodes.is_punished(&INO, seconds(9)) && !failures.inodes.is_punished(&INO, seconds(10)));
        failures.inode_failed(INO, &error(), seconds(10));
        assert!(failures.inodes.is_punished(&INO, seconds(29)) && !failures.inodes.is_punished(&INO, seconds(30)));
    }

    #[test]
    fn a_failed_request_fails_no_reader_and_ends_with_an_answer() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        failures.request_failed(INO, now);
        assert!(failures.inode(INO, now).is_none() && failures.has_failed(INO, now));
        failures.inode_answered(INO);
        assert!(!failures.has_failed(INO, now));
    }

    #[test]
    fn wrong_bytes_count_longer_than_silence_and_right_ones_end_it() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let later = now + *HostFault::Silent.penalties().start();
        failures.host_failed("m", HostFault::Silent, now);
        assert!(failures.hosts.is_punished("m", now) && !failures.hosts.is_punished("m", later));
        failures.host_failed("m", HostFault::Wrong, now);
        assert!(failures.hosts.is_punished("m", later) && !failures.hosts.is_punished("other", now));

        failures.hosts.forgive("m");
        assert!(!failures.hosts.is_punished("m", now));
    }

    #[test]
    fn a_contradicted_head_is_believed_only_of_another_large_size() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let large = 2 * WHOLE_LIMIT;
        assert!(failures.is_believed(&uri(), 5, now) && failures.is_believed(&uri(), large, now));

        failures.contradict(&uri(), large, now);
        failures.forget();

        assert!(!failures.is_believed(&uri(), 5, now) && !failures.is_believed(&uri(), large, now));
        assert!(failures.is_believed(&uri(), large + 1, now));
        assert_eq!(failures.contradicted.cause(&uri(), now), Some(&large));
        failures.contradicted.forgive(&uri());
        assert!(failures.is_believed(&uri(), 5, now));
    }

    #[test]
    fn a_refresh_forgets_failures_and_no_doubts() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        failures.read_failed(INO, 0, 1, &error(), now);
        failures.inode_failed(INO, &error(), now);
        failures.request_failed(INO, now);
        failures.doubt(&uri(), now);
        failures.forget();
        assert!(failures.read(INO, 0, 1, now).is_none() && !failures.has_failed(INO, now));
        assert!(failures.doubted.is_punished(&uri(), now));

        failures.completed(Ino(8), &uri());
        assert!(!failures.doubted.is_punished(&uri(), now));
    }
}
