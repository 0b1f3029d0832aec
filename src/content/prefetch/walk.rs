//! One reader's way through the files, as far as it is known.

use super::ledger::Caution;
use super::{By, Candidate, Hand, Host, IN_ORDER, WalkId};
use fuser::INodeNo;
use std::collections::VecDeque;
use std::time::Instant;

/// Files of the first window, and of a cautious one.
const FIRST: usize = 16;
const FIRST_CAUTIOUS: usize = 4;

/// Files that a window grows by for each file of it that is read: it doubles each time it is read through.
const GROWTH: usize = 2;

/// Files of the largest window: what a walk that is given up leaves behind.
const LARGEST: usize = 256;

/// Bytes that a window may hold whatever the walk has used.
const BYTES_FIRST: u64 = 2 << 20;

/// A window may hold so many times the bytes that the walk has used.
const BYTES_GROWTH: u64 = 2;

/// Bytes of the largest window.
const BYTES_LARGEST: u64 = 64 << 20;

/// A file whose size nobody knows is taken to be so large until others of its walk were seen.
const UNKNOWN_BYTES: u64 = 64 << 10;

/// A window is filled up when it is emptier than its so-manieth part, so that the tree is not looked at for every file.
const REFILL: usize = 4;

/// While some of what is fetched ahead is wasted, a walk may have fetched one part in so many of what it has read, and while much
/// is: whenever it is left, it has not wasted more.
const PART_IF_SOME: u32 = 4;
const PART_IF_MUCH: u32 = 16;

/// One walk.
#[derive(Debug)]
pub(super) struct Walk<C> {
    pub(super) id: WalkId,
    /// Behind the last file that was read or ordered.
    pub(super) front: C,
    /// When it was last heard of.
    pub(super) heard: Instant,
    /// The last walk that had begun by then.
    pub(super) heard_at: WalkId,
    /// When it is to be served next among those of its process ([`super::turns`]).
    pub(super) due: u64,
    expected: Vec<Candidate<C>>,
    /// Files read in order.
    in_order: u32,
    /// What its reader did before, in files read in order, as long as it leaves none out.
    credit: u32,
    /// Who read the last of them.
    pub(super) by: By,
    /// How many in a row that one has read.
    in_hand: u32,
    /// Bytes of them.
    read_bytes: u64,
    /// Ordered, not given out to be fetched yet.
    queue: VecDeque<(INodeNo, Host)>,
    /// Ordered and not read yet, those in the queue included.
    files: usize,
    bytes: u64,
    /// Files that may be ordered and not read.
    window: usize,
    /// Nothing follows behind `front`.
    is_at_end: bool,
}

impl<C: Copy + PartialEq> Walk<C> {
    pub(super) fn new(id: WalkId, after: C, bytes: Option<u64>, (credit, by): (u32, By), now: Instant) -> Walk<C> {
        Walk {
            id,
            front: after,
            heard: now,
            heard_at: id,
            due: 0,
            expected: Vec::new(),
            in_order: 1,
            credit,
            by,
            in_hand: 1,
            read_bytes: bytes.unwrap_or(UNKNOWN_BYTES),
            queue: VecDeque::new(),
            files: 0,
            bytes: 0,
            window: 0,
            is_at_end: false,
        }
    }

    /// Those that may come next.
    pub(super) fn expects(&self) -> impl Iterator<Item = INodeNo> {
        self.expected.iter().map(|candidate| candidate.ino)
    }

    /// `ino` as one of those that may come next.
    pub(super) fn expected(&self, ino: INodeNo) -> Option<Candidate<C>> {
        self.expected.iter().find(|candidate| candidate.ino == ino).copied()
    }

    /// An expected file is read that was not ordered.
    pub(super) fn followed(&mut self, candidate: Candidate<C>, bytes: Option<u64>, by: By) -> Hand {
        self.read_bytes = self.read_bytes.saturating_add(bytes.unwrap_or_else(|| self.usual_bytes()));
        if self.expected.first().is_some_and(|next| next.ino != candidate.ino) {
            self.credit = 0;
        }
        self.in_order = self.in_order.saturating_add(1);
        self.front = candidate.after;
        self.is_at_end = false;
        self.taken_up(by)
    }

    /// The next file is read.
    fn taken_up(&mut self, by: By) -> Hand {
        if std::mem::replace(&mut self.by, by).thread == by.thread {
            self.in_hand = self.in_hand.saturating_add(1);
            return Hand::Same;
        }
        if std::mem::replace(&mut self.in_hand, 1) == 1 { Hand::Next } else { Hand::Other }
    }

    /// An ordered file is read.
    pub(super) fn passed(&mut self, ino: INodeNo, bytes: u64, is_queued: bool, by: By) {
        self.leave(ino, bytes, is_queued);
        self.taken_up(by);
        self.read_bytes = self.read_bytes.saturating_add(bytes);
        self.in_order = self.in_order.saturating_add(1);
        self.window = (self.window + GROWTH).min(LARGEST);
    }

    /// An ordered file is not fetched after all.
    pub(super) fn dropped(&mut self, ino: INodeNo, bytes: u64, has_failed: bool) {
        self.leave(ino, bytes, true);
        if has_failed {
            // What follows a file that cannot be had is often not to be had either.
            self.window = (self.window / 2).max(FIRST_CAUTIOUS);
        }
    }

    fn leave(&mut self, ino: INodeNo, bytes: u64, is_queued: bool) {
        if is_queued && let Some(place) = self.queue.iter().position(|(queued, _)| *queued == ino) {
            self.queue.remove(place);
        }
        self.files = self.files.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// A file is ordered.
    pub(super) fn order(&mut self, ino: INodeNo, host: Host, bytes: u64) {
        self.queue.push_back((ino, host));
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// An ordered file turned out to be `after` bytes long.
    pub(super) fn landed(&mut self, before: u64, after: u64) {
        self.bytes = self.bytes.saturating_sub(before).saturating_add(after);
    }

    /// The walk goes on at `front`, where `expected` come next. Answers which did before.
    pub(super) fn go_on(&mut self, front: C, expected: Vec<Candidate<C>>, is_end: bool) -> Vec<Candidate<C>> {
        self.front = front;
        self.is_at_end = is_end;
        std::mem::replace(&mut self.expected, expected)
    }

    /// Whether anything is to be fetched for it, or was and was not read yet.
    pub(super) fn is_known(&self) -> bool {
        self.window > 0 || self.files > 0
    }

    pub(super) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The first of a host that may be asked.
    pub(super) fn take_queued(&mut self, may_ask: impl Fn(Host) -> bool) -> Option<(INodeNo, Host)> {
        let place = self.queue.iter().position(|(_, host)| may_ask(*host))?;
        self.queue.remove(place)
    }

    pub(super) fn outstanding_bytes(&self) -> u64 {
        self.bytes
    }

    /// The usual size of this walk's files.
    pub(super) fn usual_bytes(&self) -> u64 {
        self.read_bytes / u64::from(self.in_order.max(1))
    }

    /// How many more files to order, and bytes, where `left` bytes are left for all walks; `None`: none now.
    pub(super) fn wants(&mut self, caution: Caution, left: u64) -> Option<(usize, u64)> {
        let (needed, first) = match caution {
            Caution::None => (IN_ORDER, FIRST),
            Caution::Some => (2 * IN_ORDER, FIRST_CAUTIOUS),
            Caution::Much => (4 * IN_ORDER, FIRST_CAUTIOUS),
        };
        if self.in_order.saturating_add(self.credit) < needed || self.is_at_end {
            return None;
        }
        let first = if self.in_order < needed && self.window == 0 { FIRST_CAUTIOUS } else { first };
        self.window = self.window.max(first);
        let mut allowed = self.read_bytes.saturating_mul(BYTES_GROWTH).clamp(BYTES_FIRST, BYTES_LARGEST);
        let part = match caution {
            Caution::None => None,
            Caution::Some => Some(PART_IF_SOME),
            Caution::Much => Some(PART_IF_MUCH),
        };
        if let Some(part) = part {
            // From here it grows again as any window does.
            self.window = self.window.min((self.in_order / part) as usize);
            allowed = allowed.min(self.read_bytes / u64::from(part));
        }
        let room = self.window.saturating_sub(self.files);
        if room == 0 || room * REFILL < self.window {
            return None;
        }
        let bytes = allowed.saturating_sub(self.bytes).min(left);
        (bytes >= self.usual_bytes()).then_some((room, bytes))
    }
}
