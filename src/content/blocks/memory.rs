//! The blocks of an object that the cache folder has no room for: the whole of a small one, a window of a large one.

use crate::content::fixity::{BLOCK, WHOLE_LIMIT};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a large object in memory that readers may be ahead of the first that waits.
pub(in crate::content) const WINDOW: u64 = 8 << 20;

/// Bytes of the window where many large objects are read at a time.
pub(in crate::content) const NARROW_WINDOW: u64 = 2 << 20;

/// Bytes beyond the window: a batch that was received at once.
const SLACK: u64 = 2 << 20;

/// Blocks around the frontier. Those behind it that are hashed are dropped, the oldest first; others never are.
#[derive(Clone, Debug)]
pub(in crate::content) struct Window {
    /// By their first bytes; whole, but for the object's last.
    blocks: BTreeMap<u64, Bytes>,
    bytes: u64,
    frontier: u64,
    /// Bytes that the verdict no longer needs.
    hashed: u64,
    capacity: u64,
    is_closed: bool,
}

impl Window {
    /// A window of an object of `length` bytes. A small one is kept whole, `window` bytes of a large one.
    pub(in crate::content) fn new(length: Option<u64>, window: u64) -> Window {
        let capacity = Window::capacity(length, window);
        Window { blocks: BTreeMap::new(), bytes: 0, frontier: 0, hashed: 0, capacity, is_closed: false }
    }

    /// A window that takes no block.
    pub(in crate::content) fn closed() -> Window {
        Window { is_closed: true, ..Window::new(Some(0), 0) }
    }

    /// Bytes that are kept at most, but for one block.
    pub(in crate::content) fn capacity(length: Option<u64>, window: u64) -> u64 {
        match length {
            Some(length) if length > WHOLE_LIMIT => window + SLACK,
            Some(length) => length,
            None => WHOLE_LIMIT,
        }
    }

    /// Adds the blocks from `start` on, and drops the oldest where there are too many. Returns the ranges that were added, and the blocks
    /// outside the window.
    pub(in crate::content) fn write(&mut self, start: u64, bytes: &Bytes) -> (Vec<Range<u64>>, Vec<(u64, Bytes)>) {
        let (mut added, mut outside): (Vec<Range<u64>>, Vec<_>) = (Vec::new(), Vec::new());
        for (first, block) in (start..).step_by(BLOCK as usize).zip(bytes.chunks(BLOCK as usize)) {
            let block = bytes.slice_ref(block);
            if self.is_closed
                || first < self.frontier
                || first + block.len() as u64 > self.frontier + self.capacity + BLOCK
            {
                if !self.blocks.contains_key(&first) {
                    outside.push((first, block));
                }
                continue;
            }
            if !self.blocks.contains_key(&first) {
                let end = first + block.len() as u64;
                match added.last_mut() {
                    Some(last) if last.end == first => last.end = end,
                    _ => added.push(first..end),
                }
                self.bytes += block.len() as u64;
                self.blocks.insert(first, block);
            }
            while let Some(next) = self.blocks.get(&self.frontier).filter(|next| !next.is_empty()) {
                self.frontier += next.len() as u64;
            }
            self.shrink();
        }
        (added, outside)
    }

    fn shrink(&mut self) {
        while self.bytes >= self.capacity + BLOCK {
            let is_hashed = |first: u64| first + BLOCK <= self.frontier.min(self.hashed);
            let Some(oldest) = self.blocks.first_entry().filter(|oldest| is_hashed(*oldest.key())) else { return };
            self.bytes -= oldest.remove().len() as u64;
        }
    }

    /// The verdict no longer needs the bytes before this one.
    pub(in crate::content) fn note_hashed(&mut self, end: u64) {
        self.hashed = end;
        self.shrink();
    }

    /// The byte up to which blocks can come before others are hashed.
    pub(in crate::content) fn takes_until(&self) -> u64 {
        self.hashed + self.capacity
    }

    /// The first byte before the frontier that is kept.
    pub(in crate::content) fn start(&self) -> u64 {
        self.blocks.keys().next().map_or(self.frontier, |first| self.frontier.min(*first))
    }

    /// Bytes that came without a gap.
    pub(in crate::content) fn frontier(&self) -> u64 {
        self.frontier
    }

    /// Returns whether all of these bytes are kept.
    pub(in crate::content) fn has(&self, range: &Range<u64>) -> bool {
        let firsts = (range.start - range.start % BLOCK..range.end).step_by(BLOCK as usize);
        firsts.into_iter().all(|first| {
            let end = range.end.min(first + BLOCK);
            self.blocks.get(&first).is_some_and(|block| first + block.len() as u64 >= end)
        })
    }

    /// The block that begins at `first`.
    pub(in crate::content) fn block(&self, first: u64) -> Option<Bytes> {
        self.blocks.get(&first).cloned()
    }

    /// Each block, with its first byte.
    pub(in crate::content) fn blocks(&self) -> impl Iterator<Item = (u64, &Bytes)> {
        self.blocks.iter().map(|(first, block)| (*first, block))
    }

    /// These bytes; `None` unless all of them are kept.
    pub(in crate::content) fn read(&self, range: &Range<u64>) -> Option<Bytes> {
        read_blocks(range, |first| self.blocks.get(&first).cloned())
    }
}

/// The bytes `range` out of the blocks in which they lie; `block` is asked for each by its first byte.
pub(in crate::content) fn read_blocks(range: &Range<u64>, block: impl Fn(u64) -> Option<Bytes>) -> Option<Bytes> {
    let mut parts = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let first = at - at % BLOCK;
        let bytes = block(first)?;
        // Both are within a block.
        let part = (at - first) as usize..(range.end.min(first + BLOCK) - first) as usize;
        at = first + part.end as u64;
        parts.push(bytes.get(part).map(|part| bytes.slice_ref(part))?);
    }
    Some(match &parts[..] {
        [part] => part.clone(),
        parts => parts.concat().into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_object_keeps_its_latest_blocks() {
        [WINDOW, NARROW_WINDOW].into_iter().for_each(keeps_the_latest_blocks);
    }

    fn keeps_the_latest_blocks(size: u64) {
        let mut window = Window::new(Some(WHOLE_LIMIT + 1), size);
        let mut all = Vec::new();
        for number in 0..20_u8 {
            let batch: Vec<u8> = (0..8 * BLOCK).map(|place| number ^ (place / 251) as u8).collect();
            assert_eq!(window.write(all.len() as u64, &batch.clone().into()).1, []);
            all.extend_from_slice(&batch);
            window.note_hashed(all.len() as u64 - 1);
        }
        assert_eq!(window.write(all.len() as u64, &Bytes::from_static(b"end")).1, []);
        all.extend_from_slice(b"end");

        assert_eq!(window.frontier(), all.len() as u64);
        assert!((size + SLACK..=size + SLACK + BLOCK).contains(&(window.frontier() - window.start())));
        let kept = window.start()..window.frontier();
        for range in [kept.clone(), kept.start + 5..kept.start + (3 << 20), kept.end..kept.end] {
            assert_eq!(window.read(&range).unwrap(), all[range.start as usize..range.end as usize]);
            assert!(window.has(&range));
        }
        for range in [kept.start - 1..kept.end, kept.start..kept.end + 1] {
            assert!(window.read(&range).is_none() && !window.has(&range));
        }
        let (first, block) = window.blocks().last().unwrap();
        assert_eq!((first, &block[..]), (kept.end - 3, &b"end"[..]));
    }

    #[test]
    fn a_small_object_is_kept_whole() {
        for (length, is_known) in [(WHOLE_LIMIT, true), (WHOLE_LIMIT, false), (1000, true), (0, true)] {
            let mut window = Window::new(is_known.then_some(length), WINDOW);
            let all: Vec<u8> = (0..length).map(|place| (place / 253) as u8).collect();
            for (number, batch) in all.chunks(8 * BLOCK as usize).enumerate() {
                assert_eq!(window.write(number as u64 * 8 * BLOCK, &Bytes::copy_from_slice(batch)).1, []);
            }
            assert_eq!((window.start(), window.read(&(0..length)).unwrap().len() as u64), (0, length));
        }
    }

    #[test]
    fn blocks_ahead_of_the_frontier_are_kept_until_it_passes() {
        let mut window = Window::new(Some(WHOLE_LIMIT + 1), NARROW_WINDOW);
        let block = |number: u8| Bytes::from(vec![number; BLOCK as usize]);
        let (added, outside) = window.write(2 * BLOCK, &block(2));
        assert_eq!((&added[0], outside.len()), (&(2 * BLOCK..3 * BLOCK), 0));
        assert_eq!((window.frontier(), window.start(), window.has(&(2 * BLOCK..3 * BLOCK))), (0, 0, true));
        let far = 2 * (NARROW_WINDOW + SLACK);
        assert_eq!(window.write(far, &block(9)), (vec![], vec![(far, block(9))]), "outside");

        let (added, _) = window.write(0, &[block(0), block(1), block(7)].concat().into());

        assert_eq!((&added[0], added.len(), window.frontier()), (&(0..2 * BLOCK), 1, 3 * BLOCK));
        assert_eq!(window.read(&(2 * BLOCK..3 * BLOCK)).unwrap(), block(2), "the first that came stays");
    }
}
