//! One reader's walk through the files.

use crate::platform::ino::Ino;
use std::collections::VecDeque;
use std::time::Instant;

/// The cost of a size in bytes: a request and the head of its response.
pub(super) const SIZE_BYTES: u64 = 1 << 10;

/// Files read in order before others are fetched ahead, and the same while too much is wasted.
const IN_ORDER: u32 = 3;
const IN_ORDER_CAREFUL: u32 = 12;

/// Files of the first window, and of one that begins on less evidence.
const FIRST: usize = 16;
const FIRST_CAREFUL: usize = 4;

/// Files that a window grows by for each of its files that is read: it doubles each time it is read through.
const GROWTH: usize = 2;

/// Files of the largest window: 64 may be under way from a host, and as many here and not read.
const LARGEST: usize = 128;

/// Bytes that a window may always hold, and at most.
const BYTES_FIRST: u64 = 2 << 20;
const BYTES_LARGEST: u64 = 64 << 20;

/// A window may hold this multiple of the bytes that its walk has read.
const BYTES_GROWTH: u64 = 2;

/// The assumed size of a file of unknown size, until others of its walk were read.
const UNKNOWN_BYTES: u64 = 64 << 10;

/// A window is filled when one part in so many is free, so that the tree is not searched for every file.
const REFILL: usize = 4;

/// While too much is wasted a window holds one part in so many of what its walk has read.
const PART_CAREFUL: u32 = 16;

/// A file so many places behind its reader counts as skipped: some programs read several at a time, or in another order.
const LEFT_OUT: u64 = 64;

/// Kind of prefetch that a walk orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Consumer {
    /// The bytes of files that are read.
    Bytes,
    /// The sizes of files that are listed.
    Sizes,
}

impl Consumer {
    /// The cost of a file in bytes; `known`: its size.
    pub(super) fn cost(self, known: impl FnOnce() -> Option<u64>) -> Option<u64> {
        match self {
            Consumer::Bytes => known(),
            Consumer::Sizes => Some(SIZE_BYTES),
        }
    }
}

/// The thread that reads, and its process (0: unknown), as the kernel numbers them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reader {
    /// The thread.
    pub thread: u32,
    /// Its process.
    pub process: u32,
}

/// Evidence for a walk before its first file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// Nothing.
    None,
    /// Reader has just listed the folder, and reads the first file of it.
    FirstListed,
    /// Reader waits so long for a file that the next are likely to take as long.
    LongWait,
}

/// The first file of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct WalkStart<C> {
    pub(super) consumer: Consumer,
    /// Behind the file.
    pub(super) after: C,
    /// Its cost, where that is known.
    pub(super) bytes: Option<u64>,
    pub(super) reader: Reader,
    pub(super) evidence: Evidence,
}

/// Files, and their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) files: usize,
    pub(super) bytes: u64,
}

/// A file that could be read next, in the order of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate<C> {
    pub(super) ino: Ino,
    /// Cost of the fetch, where that is known.
    pub(super) bytes: Option<u64>,
    /// Behind it in this order.
    pub(super) after: C,
}

/// A file under way or here, and not read yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ordered {
    ino: Ino,
    /// In the order of its walk.
    pub(super) number: u64,
    /// Size as expected when it was ordered, then as fetched.
    pub(super) bytes: u64,
}

/// One walk.
#[derive(Debug)]
pub(super) struct FileWalk<C> {
    /// Its number among all that began.
    pub(super) id: u64,
    pub(super) consumer: Consumer,
    /// The reader of the last file.
    pub(super) reader: Reader,
    /// Behind the last file that was read or ordered.
    pub(super) front: C,
    pub(super) last_read: Instant,
    expected: Vec<Candidate<C>>,
    /// By number.
    ordered: VecDeque<Ordered>,
    /// Files read, and how many the evidence before the first counts for.
    read: u32,
    credit: u32,
    read_bytes: u64,
    /// Files that the reader of the last one has read in a row.
    in_a_row: u32,
    /// Files ordered, or read without that.
    numbered: u64,
    /// Files that may be ordered and not read.
    window: usize,
    /// Nothing follows behind `front`.
    is_at_end: bool,
}

impl<C: Copy> FileWalk<C> {
    /// A walk of which one file was read. `id`: its number among all that began.
    pub(super) fn new(id: u64, start: WalkStart<C>, now: Instant) -> FileWalk<C> {
        let WalkStart { consumer, after: front, bytes, reader, evidence } = start;
        let (credit, window) = match evidence {
            Evidence::None => (0, 0),
            Evidence::FirstListed => (IN_ORDER - 1, 0),
            Evidence::LongWait => (IN_ORDER_CAREFUL, LARGEST),
        };
        FileWalk {
            id,
            consumer,
            reader,
            front,
            last_read: now,
            expected: Vec::new(),
            ordered: VecDeque::new(),
            read: 1,
            credit,
            read_bytes: bytes.unwrap_or(UNKNOWN_BYTES),
            in_a_row: 1,
            numbered: 0,
            window,
            is_at_end: false,
        }
    }

    /// `reader` has read a file. `false`: another reader has taken up the walk. Programs that read one file each, one after the
    /// other, count as one reader.
    pub(super) fn read_by(&mut self, reader: Reader, bytes: Option<u64>) -> bool {
        self.read_bytes = self.read_bytes.saturating_add(bytes.unwrap_or_else(|| self.usual_bytes()));
        self.read = self.read.saturating_add(1);
        if std::mem::replace(&mut self.reader, reader).thread == reader.thread {
            self.in_a_row = self.in_a_row.saturating_add(1);
            return true;
        }
        std::mem::replace(&mut self.in_a_row, 1) == 1
    }

    /// The file that was read was expected and not ordered. Returns its number.
    pub(super) fn continue_at(&mut self, front: C) -> u64 {
        self.front = front;
        self.is_at_end = false;
        self.numbered += 1;
        self.numbered
    }

    /// A file is ordered.
    pub(super) fn order(&mut self, ino: Ino, bytes: u64) {
        self.numbered += 1;
        self.ordered.push_back(Ordered { ino, number: self.numbered, bytes });
    }

    /// Returns whether a file is ordered.
    pub(super) fn has_ordered(&self, ino: Ino) -> bool {
        self.ordered.iter().any(|ordered| ordered.ino == ino)
    }

    /// A file was read, or is not fetched: it is not ordered any more.
    pub(super) fn take(&mut self, ino: Ino) -> Option<Ordered> {
        let place = self.ordered.iter().position(|ordered| ordered.ino == ino)?;
        self.ordered.remove(place)
    }

    /// An ordered file turned out to have so many bytes.
    pub(super) fn resize(&mut self, ino: Ino, bytes: u64) {
        self.ordered.iter_mut().filter(|ordered| ordered.ino == ino).for_each(|ordered| ordered.bytes = bytes);
    }

    /// File `number` is read: those ordered well before it are skipped. Returns their bytes.
    pub(super) fn leave_out(&mut self, number: u64) -> u64 {
        let before = match self.consumer {
            Consumer::Bytes => number.saturating_sub(LEFT_OUT),
            Consumer::Sizes => number,
        };
        let left_out = self.ordered.partition_point(|ordered| ordered.number < before);
        self.ordered.drain(..left_out).map(|ordered| ordered.bytes).sum()
    }

    /// An ordered file was read: the window grows.
    pub(super) fn grow(&mut self) {
        self.window = (self.window + GROWTH).min(LARGEST);
    }

    /// A file could not be fetched: those that follow it often cannot either.
    pub(super) fn shrink(&mut self) {
        self.window = (self.window / 2).max(FIRST_CAREFUL);
    }

    /// The walk continues at `front` with one of `expected`.
    pub(super) fn expect(&mut self, front: C, expected: Vec<Candidate<C>>, is_at_end: bool) {
        (self.front, self.expected, self.is_at_end) = (front, expected, is_at_end);
    }

    /// Candidate for an expected file.
    pub(super) fn expects(&self, ino: Ino) -> Option<Candidate<C>> {
        self.expected.iter().find(|candidate| candidate.ino == ino).copied()
    }

    /// Returns whether files are fetched ahead for it.
    pub(super) fn is_known(&self) -> bool {
        self.window > 0 || !self.ordered.is_empty()
    }

    /// The files that are ordered and not read.
    pub(super) fn outstanding(&self) -> Amount {
        Amount { files: self.ordered.len(), bytes: self.ordered.iter().map(|ordered| ordered.bytes).sum() }
    }

    /// The usual size of its files.
    pub(super) fn usual_bytes(&self) -> u64 {
        self.read_bytes / u64::from(self.read.max(1))
    }

    /// The files to order now, of those that all walks leave; `None`: none.
    pub(super) fn wants(&mut self, is_careful: bool, left: Amount) -> Option<Amount> {
        let needed = if is_careful { IN_ORDER_CAREFUL } else { IN_ORDER };
        if self.read.saturating_add(self.credit) < needed || self.is_at_end {
            return None;
        }
        let first = if is_careful || (self.read < needed && self.window == 0) { FIRST_CAREFUL } else { FIRST };
        self.window = self.window.max(first);
        let mut bytes = self.read_bytes.saturating_mul(BYTES_GROWTH).clamp(BYTES_FIRST, BYTES_LARGEST);
        if is_careful {
            // Whenever the walk ends, it has not wasted more than this part.
            self.window = self.window.min((self.read / PART_CAREFUL) as usize);
            bytes = bytes.min(self.read_bytes / u64::from(PART_CAREFUL));
        }
        let outstanding = self.outstanding();
        let files = self.window.saturating_sub(outstanding.files);
        if files == 0 || files * REFILL < self.window {
            return None;
        }
        let bytes = bytes.saturating_sub(outstanding.bytes).min(left.bytes);
        let files = files.min(left.files);
        (files > 0 && bytes >= self.usual_bytes()).then_some(Amount { files, bytes })
    }
}
