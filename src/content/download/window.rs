//! The latest bytes of an object that the cache has no room for.

use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes that are kept at least.
pub(super) const WINDOW: u64 = 8 << 20;

/// Bytes without a gap between them.
#[derive(Clone, Debug, Default)]
pub(in crate::content) struct Window {
    pieces: VecDeque<Bytes>,
    range: Range<u64>,
}

impl Window {
    /// Adds the bytes that follow, and drops the oldest beyond [`WINDOW`].
    pub(super) fn push(&mut self, bytes: Bytes) {
        self.range.end += bytes.len() as u64;
        self.pieces.push_back(bytes);
        while let Some(first) = self.pieces.front()
            && self.range.end - self.range.start >= WINDOW + first.len() as u64
        {
            self.range.start += first.len() as u64;
            self.pieces.pop_front();
        }
    }

    /// Where the bytes lie in the object.
    pub(super) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Its bytes, in order.
    pub(super) fn pieces(mut self) -> Vec<Bytes> {
        self.pieces.make_contiguous().to_vec()
    }

    /// These bytes; `None` unless all of them are kept.
    pub(super) fn read(&self, wanted: &Range<u64>) -> Option<Bytes> {
        if wanted.start < self.range.start || wanted.end > self.range.end {
            return None;
        }
        let (mut slices, mut start) = (Vec::new(), self.range.start);
        for piece in &self.pieces {
            let end = start + piece.len() as u64;
            let (from, to) = (wanted.start.max(start), wanted.end.min(end));
            if from < to {
                slices.push(piece.slice((from - start) as usize..(to - start) as usize));
            }
            start = end;
        }
        if slices.len() <= 1 {
            return Some(slices.pop().unwrap_or_default());
        }
        let mut bytes = BytesMut::with_capacity((wanted.end - wanted.start) as usize);
        slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
        Some(bytes.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_latest_bytes_alone() {
        let (mut window, mut all) = (Window::default(), Vec::new());
        for number in 0..50_u8 {
            let piece = vec![number; (1 << 20) + usize::from(number)];
            all.extend_from_slice(&piece);
            window.push(piece.into());
            let range = window.range();
            assert!(range.end == all.len() as u64 && range.end - range.start < WINDOW + (2 << 20));
        }
        let range = window.range().clone();
        assert!(range.end - range.start >= WINDOW);
        for wanted in [range.clone(), range.start + 5..range.start + (3 << 20), range.end..range.end] {
            assert_eq!(window.read(&wanted).unwrap(), all[wanted.start as usize..wanted.end as usize]);
        }
        assert_eq!(window.read(&(range.start - 1..range.end)), None);
        assert_eq!(window.read(&(range.start..range.end + 1)), None);
    }
}
