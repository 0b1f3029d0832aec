//! Which files to fetch before they are read, and how many: the walks of readers that go through files one after the other
//! (`grep -r`, `rsync`, `tar`, `ls -l`).
//!
//! A pure state machine: it knows inodes, sizes and an opaque cursor `C` into the order of the tree, never the tree itself, the network
//! or a clock. Its driver reports reads ([`Tracker::read`]), supplies the files that follow a cursor where the answer asks for them
//! ([`Tracker::supply`]), and fetches those that are returned.
//!
//! - A walk has two kinds of [`Consumer`], which differ in what is fetched: the bytes of files, or their sizes alone.
//! - A walk is known once a few files were read, each of them among those expected after the one before. A reader that jumps begins
//!   walks that are never known, and nothing is fetched for them.
//! - A known walk has a window: files ordered and not read yet. It grows with every file that is read, in files and in bytes.
//!   So an abandoned walk wastes no more than in proportion to what it has used.
//! - The [`Ledger`] counts used and wasted bytes. Before a tenth is wasted, walks are known later, and their windows are a small
//!   part of the files that they have read.
//! - All walks together have a bounded number of files ordered. A walk takes half of what the others leave.

use super::walk::{Amount, Candidate, Consumer, FileWalk, Reader, WalkStart};
use crate::platform::ino::Ino;
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Files expected after the last one read: readers skip files that they have, and some sort by inode.
pub(super) const EXPECTED: usize = 8;

/// Files that all walks together may have ordered and not read.
const OUTSTANDING: usize = 1024;

/// Walks remembered, and the unknown ones of one process among them. A process that jumps begins one with each file, which must
/// not push out the walks of others.
const WALKS: usize = 64;
const UNKNOWN_OF_ONE: usize = 16;

/// A walk that reads nothing for so long has ended.
pub(super) const ENDED: Duration = Duration::from_secs(60);

/// Silence after which a known walk ends whose process is gone. Programs that read a file each follow each other within this time.
const ENDED_IF_GONE: Duration = Duration::from_secs(2);

/// A walk that reads nothing for so long may have ended.
const SILENT: Duration = Duration::from_secs(5);

/// Time without orders after the cache had no room. Objects read within this time are not evicted for a prefetch.
pub(super) const NO_ROOM: Duration = Duration::from_secs(5);

/// Reaction of the driver to a file that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction<C> {
    /// Nothing: it was fetched ahead, and enough is under way.
    Enough,
    /// No walk expected it: a walk begins with it ([`Tracker::begin`]).
    Elsewhere,
    /// Walk that the file belongs to, which is to be supplied with what follows ([`Tracker::supply`]).
    Follows(Wish<C>),
}

/// The files that a walk wants to be supplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish<C> {
    /// Its number.
    pub(super) walk: u64,
    pub(super) consumer: Consumer,
    /// The process of the reader.
    pub(super) process: u32,
    /// Behind the last file that was read or ordered.
    pub(super) from: C,
    /// Files to order; none while the walk is not known.
    pub(super) files: usize,
    /// Bytes to order; the first file may be larger.
    pub(super) bytes: u64,
    /// The cost of a file whose size is not known.
    pub(super) usual_bytes: u64,
    /// Another reader has taken up the walk: it may end with its folder.
    pub(super) is_another_readers: bool,
}

/// Kind of prefetch, and its file.
pub(super) type PrefetchKey = (Consumer, Ino);

/// All walks of a mount.
#[derive(Debug)]
pub(super) struct Tracker<C> {
    /// The one that read last first.
    walks: VecDeque<FileWalk<C>>,
    ledger: Ledger,
    /// Bytes that all walks together may have ordered and not read.
    limit: u64,
    /// Walks begun so far.
    begun: u64,
    /// The cache has no room until then.
    no_room_until: Option<Instant>,
}

impl<C: Copy> Tracker<C> {
    /// No walks.
    pub(super) fn new(limit: u64) -> Tracker<C> {
        Tracker { walks: VecDeque::new(), ledger: Ledger::default(), limit, begun: 0, no_room_until: None }
    }

    /// Returns whether a walk has a file fetched ahead, or expects it next.
    pub(super) fn expects(&self, key: PrefetchKey) -> bool {
        self.find(key).is_some()
    }

    /// Returns whether a walk has a file fetched ahead.
    pub(super) fn is_ordered(&self, key: PrefetchKey) -> bool {
        self.ordering(key).is_some()
    }

    /// `reader` begins to read a file, or asks for its size.
    pub(super) fn read(&mut self, key: PrefetchKey, bytes: Option<u64>, reader: Reader, now: Instant) -> Reaction<C> {
        let Some(place) = self.find(key) else { return Reaction::Elsewhere };
        // The walk that has read last stands first.
        self.walks.make_contiguous()[..=place].rotate_right(1);
        let walk = &mut self.walks[0];
        walk.last_read = now;
        let (number, bytes, is_ordered) = match (walk.take(key.1), walk.expects(key.1)) {
            (Some(ordered), _) => {
                self.ledger.used(ordered.bytes);
                walk.grow();
                (ordered.number, Some(ordered.bytes), true)
            }
            (None, Some(candidate)) => (walk.continue_at(candidate.after), bytes.or(candidate.bytes), false),
            (None, None) => return Reaction::Elsewhere,
        };
        let is_another_readers = !walk.read_by(reader, bytes);
        let left_out = walk.leave_out(number);
        match key.0 {
            Consumer::Bytes => self.ledger.wasted(left_out),
            // A learnt size often goes out with a listing, which is not seen here.
            Consumer::Sizes => self.ledger.used(left_out),
        }
        match self.wish(now) {
            Some(wish) => Reaction::Follows(Wish { is_another_readers, ..wish }),
            None if is_ordered => Reaction::Enough,
            // The files behind it are not known.
            None => Reaction::Follows(Wish { is_another_readers, ..self.expectations() }),
        }
    }

    /// A walk begins behind a file that no other expected.
    pub(super) fn begin(&mut self, start: WalkStart<C>, now: Instant) -> Wish<C> {
        while let Some(place) = self.superfluous(start.reader.process) {
            self.end(place);
        }
        self.begun += 1;
        self.walks.push_front(FileWalk::new(self.begun, start, now));
        self.wish(now).unwrap_or_else(|| self.expectations())
    }

    /// The files that `wish` asks for: `candidates` are to be fetched, and one of `expected` is likely to be read after them.
    /// `front` is behind all files that were searched; `is_end`: nothing follows there. Returns the files to fetch now.
    pub(super) fn supply(
        &mut self,
        wish: &Wish<C>,
        mut candidates: Vec<Candidate<C>>,
        expected: Vec<Candidate<C>>,
        front: C,
        is_end: bool,
    ) -> Vec<Ino> {
        candidates.truncate(wish.files);
        candidates.retain(|candidate| !self.is_ordered((wish.consumer, candidate.ino)));
        let Some(walk) = self.walks.iter_mut().find(|walk| walk.id == wish.walk) else { return Vec::new() };
        walk.expect(front, expected, is_end && wish.files > 0);
        for candidate in &candidates {
            walk.order(candidate.ino, candidate.bytes.unwrap_or(wish.usual_bytes));
        }
        candidates.iter().map(|candidate| candidate.ino).collect()
    }

    /// An ordered file has arrived, with so many bytes.
    pub(super) fn completed(&mut self, key: PrefetchKey, bytes: u64) {
        if let Some(place) = self.ordering(key) {
            self.walks[place].resize(key.1, bytes);
        }
    }

    /// An ordered file was here already, or has failed: no walk is charged for it.
    pub(super) fn dropped(&mut self, key: PrefetchKey, has_failed: bool) {
        if let Some(place) = self.ordering(key) {
            let walk = &mut self.walks[place];
            walk.take(key.1);
            // A size that does not come costs little, and much time where it is asked for alone.
            if has_failed && key.0 == Consumer::Bytes {
                walk.shrink();
            }
        }
    }

    /// The cache has no room for an ordered file: nothing is ordered for a while.
    pub(super) fn no_room(&mut self, key: PrefetchKey, now: Instant) {
        self.dropped(key, true);
        self.no_room_until = now.checked_add(NO_ROOM);
    }

    /// The processes of all walks.
    pub(super) fn processes(&self) -> HashSet<u32> {
        self.walks.iter().map(|walk| walk.reader.process).collect()
    }

    /// Forgets walks that have ended; their unread files are wasted. `false`: none is left.
    pub(super) fn sweep(&mut self, now: Instant, is_gone: impl Fn(u32) -> bool) -> bool {
        for place in (0..self.walks.len()).rev() {
            let walk = &self.walks[place];
            let silent = now.saturating_duration_since(walk.last_read);
            let is_left = || silent > ENDED_IF_GONE && walk.is_known() && is_gone(walk.reader.process);
            if silent > ENDED || is_left() {
                self.end(place);
            }
        }
        !self.walks.is_empty()
    }

    /// The place of the walk that has a file ordered or, where none has, of the first that expects it.
    fn find(&self, key: PrefetchKey) -> Option<usize> {
        let expecting = || self.walks.iter().position(|walk| walk.consumer == key.0 && walk.expects(key.1).is_some());
        self.ordering(key).or_else(expecting)
    }

    fn ordering(&self, key: PrefetchKey) -> Option<usize> {
        self.walks.iter().position(|walk| walk.consumer == key.0 && walk.has_ordered(key.1))
    }

    /// The files that the first walk wants, if they are worth a search of the tree.
    fn wish(&mut self, now: Instant) -> Option<Wish<C>> {
        if self.no_room_until.is_some_and(|until| now < until) {
            return None;
        }
        let is_careful = self.ledger.is_careful(self.doubtful(now));
        let all = || self.walks.iter().map(FileWalk::outstanding);
        let own = self.walks.front()?.outstanding();
        let left = Amount {
            files: OUTSTANDING.saturating_sub(all().map(|it| it.files).sum::<usize>() + own.files) / 2,
            bytes: self.limit.saturating_sub(all().map(|it| it.bytes).sum::<u64>() + own.bytes) / 2,
        };
        let Amount { files, bytes } = self.walks.front_mut()?.wants(is_careful, left)?;
        Some(Wish { files, bytes, ..self.expectations() })
    }

    /// The first walk only wants to know which files come next.
    fn expectations(&self) -> Wish<C> {
        let walk = &self.walks[0];
        Wish {
            walk: walk.id,
            consumer: walk.consumer,
            process: walk.reader.process,
            from: walk.front,
            files: 0,
            bytes: 0,
            usual_bytes: walk.usual_bytes(),
            is_another_readers: false,
        }
    }

    /// Bytes fetched for walks that may have ended; the first has not.
    fn doubtful(&self, now: Instant) -> u64 {
        let is_silent = |walk: &&FileWalk<C>| now.saturating_duration_since(walk.last_read) > SILENT;
        self.walks.iter().skip(1).filter(is_silent).map(|walk| walk.outstanding().bytes).sum()
    }

    /// The place of a walk that makes room for a new one of `process`.
    fn superfluous(&self, process: u32) -> Option<usize> {
        let is_unknown = |walk: &FileWalk<C>| !walk.is_known();
        let is_its_own = |walk: &FileWalk<C>| is_unknown(walk) && walk.reader.process == process;
        if self.walks.iter().filter(|walk| is_its_own(walk)).count() >= UNKNOWN_OF_ONE {
            return self.walks.iter().rposition(is_its_own);
        }
        let is_full = self.walks.len() >= WALKS;
        is_full.then(|| self.walks.iter().rposition(is_unknown).unwrap_or(self.walks.len() - 1))
    }

    /// A walk has ended: its ordered files are wasted.
    fn end(&mut self, place: usize) {
        if let Some(walk) = self.walks.remove(place) {
            self.ledger.wasted(walk.outstanding().bytes);
        }
    }
}

/// Beyond this both sums are halved, so that an abandoned walk does not count for ever.
const REMEMBERED: u64 = 256 << 20;

/// Bytes that may be wasted before any were used: the first walks of a mount.
const ALLOWANCE: u64 = 1 << 20;

/// Prefetching is careful once the wasted bytes are one part in so many of the used ones. The aim is less than a tenth, and files under
/// way may be wasted too.
const CAREFUL: u64 = 16;

/// Bytes fetched ahead of readers, the older ones counted less.
#[derive(Debug, Default)]
struct Ledger {
    used: u64,
    wasted: u64,
}

impl Ledger {
    /// Bytes fetched ahead were read.
    fn used(&mut self, bytes: u64) {
        self.used += bytes;
        self.fade();
    }

    /// Bytes fetched ahead will not be read.
    fn wasted(&mut self, bytes: u64) {
        self.wasted += bytes;
        self.fade();
    }

    /// Returns whether too much is wasted, where `doubtful` more bytes are likely to be.
    fn is_careful(&self, doubtful: u64) -> bool {
        self.wasted.saturating_add(doubtful).saturating_sub(ALLOWANCE) > self.used / CAREFUL
    }

    fn fade(&mut self) {
        if self.used + self.wasted > REMEMBERED {
            self.used /= 2;
            self.wasted /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waste_makes_careful_until_enough_is_used() {
        let mut ledger = Ledger::default();
        ledger.wasted(ALLOWANCE);
        assert!(!ledger.is_careful(0) && ledger.is_careful(1));
        ledger.wasted(1 << 20);
        assert!(ledger.is_careful(0));
        ledger.used(CAREFUL << 20);
        assert!(!ledger.is_careful(0));
    }

    #[test]
    fn the_past_fades() {
        let mut ledger = Ledger::default();
        ledger.used(REMEMBERED);
        ledger.wasted(1);
        assert_eq!(ledger.used, REMEMBERED / 2);
    }
}
