//! Which files to fetch before they are read, and how many: the walks of readers that go through files one after the other
//! (`grep -r`, `rsync`, `tar`, `ls -l`).
//!
//! A pure state machine: it knows inodes, sizes and an opaque cursor `C` into the order of the tree, never the tree itself, the network
//! or a clock. Its driver reports what is read ([`Tracker::read`]), supplies what follows a cursor where the answer asks for it
//! ([`Tracker::supply`]), and fetches what that returns. The source's limiter decides in which order.
//!
//! - A walk has two kinds of [`Consumer`], which differ in what is fetched: the bytes of files, or their sizes alone.
//! - A walk is known once a few files were read that each were among those expected after the one before. A reader that jumps begins
//!   walks that are never known, and nothing is fetched for them.
//! - A known walk has a window: files ordered and not read yet. It grows with every file that is read, in files and in bytes.
//!   So an abandoned walk wastes no more than in proportion to what it has used.
//! - The [`Ledger`] counts what was used and what was wasted. Before a tenth is wasted, walks are known later and their windows are
//!   a small part of what they have read.
//! - What is outstanding is bounded for all walks together. A walk takes half of what the others leave.

use super::ledger::Ledger;
use super::walk::{Candidate, Consumer, Evidence, Reader, Walk, WalkId};
use crate::content::counting_filter::CountingFilter;
use fuser::INodeNo;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files expected after the last one read: readers leave out what they have, and some sort by inode.
pub(super) const EXPECTED: usize = 8;

/// Files that all walks together may have ordered and not read.
const OUTSTANDING: usize = 1024;

/// Walks remembered that are known, that are not, and of these as many of one process. A process that jumps begins one with each file,
/// and must not make the walks of others forgotten.
const KNOWN: usize = 16;
const UNKNOWN: usize = 48;
const UNKNOWN_OF_ONE: usize = 16;

/// A walk that reads nothing for so long has ended.
pub(super) const ENDED: Duration = Duration::from_secs(60);

/// The same for a known walk whose process is gone. Programs that read a file each follow each other within this time.
const ENDED_IF_GONE: Duration = Duration::from_secs(2);

/// A walk that reads nothing for so long may have ended.
const SILENT: Duration = Duration::from_secs(5);

/// Where the cache has no room, nothing is ordered for so long. What was read within this time is not evicted for a prefetch.
pub(super) const NO_ROOM: Duration = Duration::from_secs(5);

/// What a size costs, as bytes: a request and the head of its response.
pub(super) const SIZE_BYTES: u64 = 1 << 10;

/// What the driver is to do about a file that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen<C> {
    /// Nothing: it was fetched ahead, and enough is under way.
    Enough,
    /// No walk expected it: a walk begins with it ([`Tracker::begin`]).
    Elsewhere,
    /// It belongs to a walk, which is to be supplied with what follows ([`Tracker::supply`]).
    Follows(Wish<C>),
}

/// What a walk is to be supplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish<C> {
    pub(super) walk: WalkId,
    pub(super) consumer: Consumer,
    /// The process of the reader.
    pub(super) process: u32,
    /// Behind the last file that was read or ordered.
    pub(super) from: C,
    /// So many files are to be ordered; none while the walk is not known.
    pub(super) files: usize,
    /// And so many bytes; the first file may be larger.
    pub(super) bytes: u64,
    /// The cost of a file whose size is not known.
    pub(super) usual_bytes: u64,
    /// Another reader has taken up the walk: it may end with its folder.
    pub(super) is_another_readers: bool,
}

/// A file that is fetched ahead, and what of it.
type Key = (Consumer, INodeNo);

/// A file under way or here, and not read yet.
#[derive(Debug)]
struct Ordered {
    walk: WalkId,
    /// In the order of its walk.
    number: u64,
    /// As expected when it was ordered, then as fetched.
    bytes: u64,
}

/// All walks of a mount.
#[derive(Debug)]
pub(super) struct Tracker<C> {
    /// The one that read last first.
    walks: VecDeque<Walk<C>>,
    ordered: HashMap<Key, Ordered>,
    /// Of an inode that is not in it [`Tracker::read`] answers [`Seen::Elsewhere`]. It holds what is ordered and what is expected.
    looked_out_for: Arc<CountingFilter>,
    ledger: Ledger,
    /// Bytes that all walks together may have ordered and not read.
    limit: u64,
    newest: WalkId,
    /// The cache has no room until then.
    no_room_until: Option<Instant>,
}

impl<C: Copy> Tracker<C> {
    /// No walks.
    pub(super) fn new(limit: u64) -> Tracker<C> {
        Tracker {
            walks: VecDeque::new(),
            ordered: HashMap::new(),
            looked_out_for: Arc::default(),
            ledger: Ledger::default(),
            limit,
            newest: WalkId::default(),
            no_room_until: None,
        }
    }

    /// See [`Tracker::looked_out_for`].
    pub(super) fn looked_out_for(&self) -> &Arc<CountingFilter> {
        &self.looked_out_for
    }

    /// Whether a walk has `ino` fetched ahead, or expects it next.
    pub(super) fn expects(&self, consumer: Consumer, ino: INodeNo) -> bool {
        self.ordered.contains_key(&(consumer, ino)) || self.expecting(consumer, ino).is_some()
    }

    /// `reader` begins to read `ino`, or asks for its size.
    pub(super) fn read(&mut self, key: Key, bytes: Option<u64>, reader: Reader, now: Instant) -> Seen<C> {
        let ordered = self.remove(key);
        let (id, bytes, front) = if let Some(ordered) = &ordered {
            self.ledger.used(ordered.bytes);
            (ordered.walk, Some(ordered.bytes), None)
        } else if let Some((id, candidate)) = self.expecting(key.0, key.1) {
            (id, bytes.or(candidate.bytes), Some(candidate.after))
        } else {
            return Seen::Elsewhere;
        };
        let Some(place) = self.walks.iter().position(|walk| walk.id == id) else { return Seen::Elsewhere };
        // The walk that has read last stands first.
        self.walks.make_contiguous()[..=place].rotate_right(1);
        let walk = &mut self.walks[0];
        walk.last_read = now;
        let is_another_readers = !walk.read_by(reader, bytes);
        let number = match (&ordered, front) {
            (Some(ordered), _) => {
                walk.grow();
                ordered.number
            }
            (None, Some(front)) => walk.continue_at(front),
            (None, None) => return Seen::Elsewhere,
        };
        self.leave_out(number);
        match self.wish(now) {
            Some(wish) => Seen::Follows(Wish { is_another_readers, ..wish }),
            // What is expected behind it is not known yet.
            None if front.is_some() => Seen::Follows(Wish { is_another_readers, ..self.expectations() }),
            None => Seen::Enough,
        }
    }

    /// A walk begins behind a file that no other expected.
    pub(super) fn begin(
        &mut self,
        consumer: Consumer,
        after: C,
        bytes: Option<u64>,
        (reader, evidence): (Reader, Evidence),
        now: Instant,
    ) -> Wish<C> {
        while let Some(place) = self.superfluous(reader.process) {
            self.end(place);
        }
        self.newest = self.newest.next();
        self.walks.push_front(Walk::new((self.newest, consumer), after, bytes, (reader, evidence), now));
        self.wish(now).unwrap_or_else(|| self.expectations())
    }

    /// What follows, as `wish` asks for: `candidates` are to be fetched, behind them one of `expected` comes next.
    /// `front` is behind all that was looked at; at the end of the tree nothing follows there. Returns the files to fetch now.
    pub(super) fn supply(
        &mut self,
        wish: &Wish<C>,
        candidates: &[Candidate<C>],
        expected: Vec<Candidate<C>>,
        front: C,
        is_end: bool,
    ) -> Vec<INodeNo> {
        let Some(walk) = self.walks.iter_mut().find(|walk| walk.id == wish.walk) else { return Vec::new() };
        let mut ordered = Vec::new();
        for candidate in candidates.iter().take(wish.files) {
            if let Entry::Vacant(vacant) = self.ordered.entry((wish.consumer, candidate.ino)) {
                let bytes = candidate.bytes.unwrap_or(wish.usual_bytes);
                vacant.insert(Ordered { walk: wish.walk, number: walk.order(bytes), bytes });
                self.looked_out_for.add(candidate.ino);
                ordered.push(candidate.ino);
            }
        }
        expected.iter().for_each(|candidate| self.looked_out_for.add(candidate.ino));
        let before = walk.expect(front, expected, is_end && wish.files > 0);
        before.iter().for_each(|candidate| self.looked_out_for.remove(candidate.ino));
        ordered
    }

    /// An ordered file has come, with so many bytes.
    pub(super) fn landed(&mut self, key: Key, bytes: u64) {
        let Some(ordered) = self.ordered.get_mut(&key) else { return };
        let before = std::mem::replace(&mut ordered.bytes, bytes);
        if let Some(walk) = self.walks.iter_mut().find(|walk| walk.id == ordered.walk) {
            walk.resize(before, bytes);
        }
    }

    /// An ordered file was here already, or has failed: no walk is charged for it.
    pub(super) fn dropped(&mut self, key: Key, has_failed: bool) {
        let Some(ordered) = self.remove(key) else { return };
        if has_failed && let Some(walk) = self.walks.iter_mut().find(|walk| walk.id == ordered.walk) {
            walk.shrink();
        }
    }

    /// The cache has no room for an ordered file: nothing is ordered for a while.
    pub(super) fn no_room(&mut self, key: Key, now: Instant) {
        self.dropped(key, true);
        self.no_room_until = now.checked_add(NO_ROOM);
    }

    /// Walks that have ended are forgotten, and what was fetched for them is wasted. `false`: none is left.
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

    /// Whether a file is still ordered.
    pub(super) fn is_ordered(&self, key: Key) -> bool {
        self.ordered.contains_key(&key)
    }

    /// The reader of the first walk has come to file `number`: its window is free of what was left out.
    fn leave_out(&mut self, number: u64) {
        let walk = &mut self.walks[0];
        let (id, before) = (walk.id, walk.left_out_before(number));
        let is_left_out = |ordered: &Ordered| ordered.walk == id && ordered.number < before;
        for ((consumer, ino), ordered) in self.ordered.extract_if(|_, ordered| is_left_out(ordered)) {
            self.looked_out_for.remove(ino);
            walk.remove(ordered.bytes);
            match consumer {
                Consumer::Bytes => self.ledger.wasted(ordered.bytes),
                Consumer::Sizes => self.ledger.used(ordered.bytes),
            }
        }
    }

    fn remove(&mut self, key: Key) -> Option<Ordered> {
        let ordered = self.ordered.remove(&key)?;
        self.looked_out_for.remove(key.1);
        if let Some(walk) = self.walks.iter_mut().find(|walk| walk.id == ordered.walk) {
            walk.remove(ordered.bytes);
        }
        Some(ordered)
    }

    fn expecting(&self, consumer: Consumer, ino: INodeNo) -> Option<(WalkId, Candidate<C>)> {
        let mut walks = self.walks.iter().filter(|walk| walk.consumer == consumer);
        walks.find_map(|walk| Some((walk.id, walk.expects(ino)?)))
    }

    /// What the first walk wants to have fetched, if that is worth a search of the tree.
    fn wish(&mut self, now: Instant) -> Option<Wish<C>> {
        if self.no_room_until.is_some_and(|until| now < until) {
            return None;
        }
        let is_careful = self.ledger.is_careful(self.doubtful(now));
        let all: u64 = self.walks.iter().map(|walk| walk.outstanding().1).sum();
        let (files, bytes) = self.walks.front()?.outstanding();
        let left = (
            OUTSTANDING.saturating_sub(self.ordered.len() + files) / 2,
            self.limit.saturating_sub(all).saturating_sub(bytes) / 2,
        );
        let (files, bytes) = self.walks.front_mut()?.wants(is_careful, left)?;
        Some(Wish { files, bytes, ..self.expectations() })
    }

    /// The first walk only wants to know what comes next.
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
        let is_silent = |walk: &&Walk<C>| now.saturating_duration_since(walk.last_read) > SILENT;
        self.walks.iter().skip(1).filter(is_silent).map(|walk| walk.outstanding().1).sum()
    }

    /// The place of a walk that is to be forgotten before one of `process` begins.
    fn superfluous(&self, process: u32) -> Option<usize> {
        // The oldest of some, where there are more than `most`.
        let beyond = |most: usize, is_one: &dyn Fn(&Walk<C>) -> bool| {
            let mut places = (0..self.walks.len()).rev().filter(|place| is_one(&self.walks[*place]));
            let oldest = places.next()?;
            (1 + places.count() > most).then_some(oldest)
        };
        beyond(KNOWN, &Walk::is_known)
            .or_else(|| beyond(UNKNOWN_OF_ONE - 1, &|walk| !walk.is_known() && walk.reader.process == process))
            .or_else(|| beyond(UNKNOWN - 1, &|walk| !walk.is_known()))
    }

    /// A walk has ended: what it has ordered is wasted.
    fn end(&mut self, place: usize) {
        let Some(walk) = self.walks.remove(place) else { return };
        walk.expected().iter().for_each(|candidate| self.looked_out_for.remove(candidate.ino));
        for ((_, ino), ordered) in self.ordered.extract_if(|_, ordered| ordered.walk == walk.id) {
            self.looked_out_for.remove(ino);
            self.ledger.wasted(ordered.bytes);
        }
    }
}
