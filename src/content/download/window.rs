//! The latest bytes of an object that goes past the cache, because the cache has no room for it.

use bytes::{Bytes, BytesMut};
use fuser::INodeNo;
use lru::LruCache;
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes that are held for readers that follow the stream, at most.
pub(super) const WINDOW: u64 = 16 << 20;

/// One part in so many of what is held, the stream may run ahead of its furthest reader. Readers ask for several pieces at once, in
/// any order: what lies behind the furthest must still be here.
pub(super) const LEAD: u64 = 4;

/// Bytes beyond what is to be held that are held for those who wait for them: what comes before the stream is stopped.
const WAITED_FOR: u64 = 4 << 20;

/// Bytes of the ends that are held for those who followed: of few objects that went past alone, or of as many as go past at once.
const ENDS: u64 = 64 << 20;

/// The end of what has come so far.
#[derive(Clone, Debug)]
pub(in crate::content) struct Window {
    /// Pieces without a gap between them.
    pieces: VecDeque<Bytes>,
    range: Range<u64>,
    /// Bytes that are held.
    most: u64,
}

impl Default for Window {
    fn default() -> Self {
        Window::new(0, WINDOW)
    }
}

impl Window {
    /// An empty one of `most` bytes, from `first` on.
    pub(super) fn new(first: u64, most: u64) -> Window {
        Window { pieces: VecDeque::new(), range: first..first, most }
    }

    /// More came. What lies too far behind is let go by [`Window::hold`].
    pub(super) fn push(&mut self, bytes: Bytes) {
        self.range.end += bytes.len() as u64;
        self.pieces.push_back(bytes);
    }

    /// From now on `most` bytes are held. Those from `waited_for` on stay nevertheless, unless they are far too many.
    pub(super) fn hold(&mut self, most: u64, waited_for: Option<u64>) {
        self.most = most;
        while let Some(first) = self.pieces.front() {
            let bytes = first.len() as u64;
            let left = self.range.end - self.range.start - bytes;
            if left < self.most || (left < self.most + WAITED_FOR && self.loses(waited_for)) {
                break;
            }
            self.range.start += bytes;
            self.pieces.pop_front();
        }
    }

    /// Whether what goes next is what somebody waits for from this byte on.
    fn loses(&self, waited_for: Option<u64>) -> bool {
        let end = self.pieces.front().map_or(self.range.start, |first| self.range.start + first.len() as u64);
        waited_for.is_some_and(|first| (self.range.start..end).contains(&first))
    }

    /// Whether more would push out what somebody waits for from this byte on.
    pub(super) fn is_full_of(&self, waited_for: Option<u64>) -> bool {
        self.range.end - self.range.start >= self.most && self.loses(waited_for)
    }

    fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Where the bytes that are here lie in the object.
    pub(super) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Whether all bytes from `offset` on are here, where this is the end of the object.
    pub(super) fn covers(&self, offset: u64) -> bool {
        self.range.contains(&offset)
    }

    /// These bytes; `None` unless all of them are here.
    pub(super) fn read(&self, wanted: &Range<u64>) -> Option<Bytes> {
        self.slices(wanted).map(joined)
    }

    /// The same in pieces, of which nothing is copied.
    pub(super) fn slices(&self, wanted: &Range<u64>) -> Option<Vec<Bytes>> {
        if wanted.start < self.range.start || wanted.end > self.range.end {
            return None;
        }
        let mut slices = Vec::new();
        let mut start = self.range.start;
        for piece in &self.pieces {
            let end = start + piece.len() as u64;
            if start >= wanted.end {
                break;
            }
            if end > wanted.start {
                let from = wanted.start.saturating_sub(start) as usize;
                slices.push(piece.slice(from..(wanted.end.min(end) - start) as usize));
            }
            start = end;
        }
        Some(slices)
    }
}

/// All bytes of `pieces`.
pub(super) fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    if pieces.len() <= 1 {
        return pieces.pop().unwrap_or_default();
    }
    let mut bytes = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
    bytes.freeze()
}

/// The ends of the objects that went past last: whoever followed one reads on when its fetch has ended.
pub(in crate::content) struct Ends {
    by_inode: LruCache<INodeNo, Window>,
    /// Of all of them.
    bytes: u64,
}

impl Default for Ends {
    fn default() -> Self {
        Ends { by_inode: LruCache::unbounded(), bytes: 0 }
    }
}

impl Ends {
    pub(super) fn get(&mut self, ino: INodeNo) -> Option<Window> {
        self.by_inode.get(&ino).cloned()
    }

    /// The least recent make room; this one stays, whatever it takes.
    pub(super) fn put(&mut self, ino: INodeNo, end: Window) {
        self.remove(ino);
        self.bytes += end.bytes();
        while self.bytes > ENDS
            && let Some((_, least)) = self.by_inode.pop_lru()
        {
            self.bytes -= least.bytes();
        }
        self.by_inode.put(ino, end);
    }

    pub(super) fn remove(&mut self, ino: INodeNo) {
        self.bytes -= self.by_inode.pop(&ino).map_or(0, |end| end.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_bytes_are_here_and_they_are_the_right_ones() {
        let mut window = Window::default();
        let mut all = Vec::new();
        for number in 0..50_u8 {
            let piece = vec![number; (1 << 20) + usize::from(number)];
            all.extend_from_slice(&piece);
            window.push(piece.into());
            window.hold(WINDOW, None);
            let range = window.range();
            assert!(range.end == all.len() as u64 && range.end - range.start < WINDOW + (2 << 20));
        }
        let range = window.range().clone();
        assert!(range.end - range.start >= WINDOW);
        for wanted in [range.clone(), range.start + 5..range.start + (3 << 20), range.end..range.end] {
            let expected = &all[wanted.start as usize..wanted.end as usize];
            assert_eq!(window.read(&wanted).unwrap(), expected);
        }
        assert_eq!(window.read(&(range.start - 1..range.end)), None);
        assert_eq!(window.read(&(range.start..range.end + 1)), None);
    }

    #[test]
    fn ends_of_many_are_here_where_they_are_short_and_of_few_where_they_are_long() {
        let end = |bytes: usize| {
            let mut window = Window::default();
            window.push(vec![0; bytes].into());
            window
        };
        let held_of = |bytes: usize| {
            let mut ends = Ends::default();
            (2..=50).for_each(|ino| ends.put(INodeNo(ino), end(bytes)));
            ends.put(INodeNo(50), end(bytes));
            ends.remove(INodeNo(49));
            let held: Vec<_> = (2..=50).filter(|ino| ends.get(INodeNo(*ino)).is_some()).collect();
            assert_eq!(ends.bytes, (held.len() * bytes) as u64);
            held
        };

        assert_eq!(held_of(2 << 20), (19..=50).filter(|ino| *ino != 49).collect::<Vec<_>>());
        assert_eq!(held_of(20 << 20), [48, 50]);
        assert_eq!(held_of(100 << 20), [50]);
    }
}
