//! Demand: what readers want of an object, and from that what is fetched next. Pure.
//!
//! A stream brings the object in order, as far ahead of its readers as [`Demand::limit`] says. A reader far from it is served by an extent:
//! some blocks around what it reads ([`window`]), requested by a range.

use crate::content::fixity::BLOCK;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

/// From this length on an object is downloaded only while readers follow it, and in parallel ranges.
pub(super) const LARGE: u64 = 32 << 20;

/// Bytes that the stream may be ahead of its readers: more, the longer they have read at a stretch.
const AHEAD: Range<u64> = 1 << 20..64 << 20;
const AHEAD_GROWTH: u64 = 4;

/// The part of a window in memory that the stream may be ahead of its readers. As much is kept behind them, for the kernel reads several
/// pieces in any order.
const AHEAD_IN_WINDOW: u64 = 2;

/// A reader so many bytes beyond the stream is served by an extent.
const JUMP: u64 = 4 << 20;

/// The kernel reads ahead of a sequential reader twice what the mount lets it, in any order: that is not a jump.
const KERNEL_AHEAD: u64 = 8 << 20;

/// Blocks of one extent, at most.
pub(super) const MOST: u64 = 8;

/// Bytes of a first read of the end, at least: `tail` reads backwards, and so does a search for an archive's directory.
const END: u64 = 64 << 10;

/// Bounds of a download that no reader waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::content) struct Bounds {
    /// Bytes behind what the last reader left, or ahead of the readers of a body that cannot be resumed.
    pub(in crate::content) unread: u64,
    /// Bytes of a body whose length is unknown; as many behind the last reader that waited for the whole.
    pub(in crate::content) unsized_body: u64,
}

/// The demand of readers.
#[derive(Default)]
pub(super) struct Demand {
    /// The furthest byte that a reader of the stream has got, and from which byte on it has read at a stretch.
    read: u64,
    since: u64,
    /// The ranges that readers wait for, by first byte and end, and how many readers.
    waiting: BTreeMap<(u64, u64), usize>,
    /// Ranges of `waiting` that the stream brings, and the byte up to which it has to come for each.
    followed: BTreeMap<(u64, u64), u64>,
    /// Readers that wait for a size.
    sizes: usize,
    /// When the last of all readers left, and how much was here then.
    left: Option<(Instant, u64)>,
    /// Prefetches that wait for the whole.
    prefetches: usize,
    /// A size or a verdict is waited for, whether readers follow or not.
    is_whole: bool,
    /// Ranges of `waiting` whose bytes are not kept any more.
    behind: BTreeSet<(u64, u64)>,
}

/// The stream, as far as its limit depends on it.
pub(super) struct Stream {
    pub(super) length: Option<u64>,
    /// Readers get bytes before the verdict.
    pub(super) is_followed: bool,
    /// Only the whole is of use: a block contradicts what was handed out, or is damaged.
    pub(super) is_whole: bool,
    /// See [`Fixity::Strict`](crate::content::Fixity::Strict).
    pub(super) is_strict: bool,
    /// Ranges of the version can be requested.
    pub(super) has_ranges: bool,
    /// The first byte that is kept and the bytes of the window, for a large object in memory.
    pub(super) window: Option<(u64, u64)>,
    pub(super) bounds: Bounds,
}

impl Demand {
    /// A reader begins to wait for a range.
    pub(super) fn await_range(&mut self, range: (u64, u64)) {
        *self.waiting.entry(range).or_default() += 1;
    }

    /// The reader waits no longer; `here`: bytes that are here `now`.
    pub(super) fn leave_range(&mut self, range: (u64, u64), here: u64, now: Instant) {
        if let Some(readers) = self.waiting.get_mut(&range) {
            *readers -= 1;
            if *readers == 0 {
                self.waiting.remove(&range);
                self.followed.remove(&range);
                self.behind.remove(&range);
            }
        }
        self.note_left(here, now);
    }

    /// A reader begins to wait for the size.
    pub(super) fn await_size(&mut self) {
        self.sizes += 1;
    }

    /// The reader waits no longer.
    pub(super) fn leave_size(&mut self, here: u64, now: Instant) {
        self.sizes = self.sizes.saturating_sub(1);
        self.note_left(here, now);
    }

    fn note_left(&mut self, here: u64, now: Instant) {
        self.left = (!self.is_waited_for()).then_some((now, here));
    }

    fn is_waited_for(&self) -> bool {
        self.sizes > 0 || !self.waiting.is_empty()
    }

    /// Returns whether nothing has waited for it for so long `now`.
    pub(super) fn is_left(&self, patience: Duration, now: Instant) -> bool {
        self.prefetches == 0 && self.left.is_some_and(|(since, _)| now.saturating_duration_since(since) > patience)
    }

    /// A prefetch begins to wait for the whole.
    pub(super) fn add_prefetch(&mut self) {
        self.prefetches += 1;
    }

    /// A prefetch waits no longer. Returns how many still do.
    pub(super) fn remove_prefetch(&mut self) -> usize {
        self.prefetches = self.prefetches.saturating_sub(1);
        self.prefetches
    }

    pub(super) fn await_whole(&mut self) {
        self.is_whole = true;
    }

    /// Returns whether the whole is wanted, no matter who reads which part.
    pub(super) fn is_wanted_whole(&self) -> bool {
        self.is_whole || self.prefetches > 0
    }

    /// Returns whether a reader waits for bytes that are not kept any more: all is to be fetched again.
    pub(super) fn is_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// A reader waits for `range`, which is not kept any more.
    pub(super) fn note_behind(&mut self, range: (u64, u64)) {
        if self.waiting.contains_key(&range) {
            self.behind.insert(range);
        }
    }

    /// A reader of the stream has got the bytes up to `end`.
    pub(super) fn note_read(&mut self, end: u64) {
        self.read = self.read.max(end);
    }

    /// A reader has jumped. Unless others follow the stream, a new stretch begins where a reader comes back to it.
    pub(super) fn note_jump(&mut self) {
        if self.followed.is_empty() {
            self.since = self.until();
        }
    }

    /// A reader waits for `range` in the stream, which comes to `end` for it as long as it waits.
    pub(super) fn follow(&mut self, range: (u64, u64), end: u64) {
        if self.waiting.contains_key(&range) {
            self.followed.insert(range, end);
        }
    }

    /// The stream begins at the first byte again.
    pub(super) fn restart(&mut self) {
        self.followed.clear();
        self.behind.clear();
        (self.read, self.since) = (0, 0);
    }

    /// The first range that a reader waits for.
    pub(super) fn first(&self) -> Option<Range<u64>> {
        self.waiting.keys().next().map(|(first, end)| *first..*end)
    }

    /// Returns whether an extent serves a reader of `offset` better than the stream does.
    pub(super) fn is_far(&self, offset: u64, frontier: u64) -> bool {
        // One that waits for a place far ahead follows the stream, but says nothing of those in between.
        let near = self.followed.keys().filter(|(first, _)| *first < frontier.saturating_add(JUMP));
        let until = near.fold(self.read, |until, (_, end)| until.max(*end));
        let reach = if until > self.since { until.saturating_add(KERNEL_AHEAD) } else { 0 };
        offset >= reach.max(frontier.saturating_add(JUMP))
    }

    /// The byte up to which readers of the stream want it.
    fn until(&self) -> u64 {
        self.followed.values().fold(self.read, |until, end| until.max(*end))
    }

    /// The byte up to which the stream comes unless a reader reads further.
    pub(super) fn limit(&self, stream: &Stream) -> u64 {
        if self.prefetches > 0 {
            return u64::MAX;
        }
        // Readers that wait for the verdict have the whole of it come; when they are gone it continues for a while.
        let is_whole = self.is_whole || stream.length.is_none();
        let more = if is_whole { stream.bounds.unsized_body } else { stream.bounds.unread };
        let whole = match self.left {
            _ if self.is_waited_for() => u64::MAX,
            left => left.map_or(0, |(_, here)| here).saturating_add(more),
        };
        if self.is_whole || stream.is_whole || !stream.is_followed {
            return whole;
        }
        let is_large = stream.length.is_some_and(|length| length >= LARGE);
        let followed = match self.until() {
            _ if stream.is_strict => whole,
            _ if !is_large || (stream.window.is_some() && !stream.has_ranges) => u64::MAX,
            // Its readers have jumped.
            0 => 0,
            until => {
                let stretch = until.saturating_sub(self.since);
                until.saturating_add(stretch.saturating_mul(AHEAD_GROWTH).clamp(AHEAD.start, AHEAD.end))
            }
        };
        let Some((kept_from, window)) = stream.window else { return followed };
        let first_waiting = self.waiting.range((kept_from, 0)..).next();
        let kept = first_waiting.map_or(u64::MAX, |((first, _), _)| first.saturating_add(window));
        followed.min(kept).min(self.until().saturating_add(window / AHEAD_IN_WINDOW))
    }
}

/// The blocks to request, so that those of `missing` arrive, of an object of `length` bytes. `is_known`: a block is here or on its way.
///
/// A first read gets what it asks for. A reader that continues, forwards or backwards, gets one block more than it has read so far.
pub(super) fn window(missing: &Range<u64>, length: u64, is_known: impl Fn(u64) -> bool) -> Range<u64> {
    let lowest = missing.start.saturating_sub(MOST);
    let highest = (missing.end + MOST).min(length.div_ceil(BLOCK));
    let before = (lowest..missing.start).rev().take_while(|block| is_known(*block)).count() as u64;
    let behind = (missing.end..highest).take_while(|block| is_known(*block)).count() as u64;
    let is_short_end = missing.end * BLOCK >= length && length - missing.start * BLOCK < END;
    let backwards = |blocks: u64| {
        let start = missing.end.saturating_sub(blocks.min(MOST)).min(missing.start);
        let known = (start..missing.start).rev().find(|block| is_known(*block));
        known.map_or(start, |known| known + 1)..missing.end
    };
    match (before, behind) {
        (0, 0) if is_short_end => backwards(2),
        (0, 1..) => backwards(behind + 1),
        (1.., 0) => {
            let end = (missing.start + MOST.min(before + 1)).min(highest).max(missing.end);
            missing.start..(missing.end..end).find(|block| is_known(*block)).unwrap_or(end)
        }
        _ => missing.clone(),
    }
}

/// The first window of blocks to request for a read of `range`, of an object of `length` bytes; `None` where each block is known.
pub(super) fn first_window(range: &Range<u64>, length: u64, is_known: impl Fn(u64) -> bool) -> Option<Range<u64>> {
    let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
    let first = blocks.clone().find(|block| !is_known(*block))?;
    let most = blocks.end.min(first + MOST);
    let end = (first + 1..most).find(|block| is_known(*block)).unwrap_or(most);
    Some(window(&(first..end), length, is_known))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of an object whose last block is short.
    const LENGTH: u64 = 100 * BLOCK + 12_345;

    const BOUNDS: Bounds = Bounds { unread: 3 << 20, unsized_body: 7 << 20 };

    /// A large body that readers follow.
    const FOLLOWED: Stream = Stream {
        length: Some(2 * LARGE),
        is_followed: true,
        is_whole: false,
        is_strict: false,
        has_ranges: true,
        window: None,
        bounds: BOUNDS,
    };

    /// The windows that reads of `step` bytes request, `forwards` or backwards from `start` on.
    fn windows(start: u64, bytes: u64, forwards: bool) -> Vec<Range<u64>> {
        const STEP: u64 = 8 << 10;
        let (mut known, mut windows) = (Vec::new(), Vec::new());
        for step in 0..bytes / STEP {
            let first = if forwards { start + step * STEP } else { start - (step + 1) * STEP };
            let is_known = |block: u64| known.contains(&block);
            if let Some(window) = first_window(&(first..first + STEP), LENGTH, is_known) {
                known.extend(window.clone());
                windows.push(window);
            }
        }
        windows
    }

    /// Promise: what is fetched again is fetched for a reader that still waits for it.
    #[test]
    fn a_reader_is_behind_only_as_long_as_it_waits() {
        let mut demand = Demand::default();
        let (first, second) = ((0, BLOCK), (BLOCK, 2 * BLOCK));
        demand.note_behind(first);
        assert!(!demand.is_behind(), "nobody waits for it");

        demand.await_range(first);
        demand.await_range(second);
        demand.note_behind(first);
        demand.note_behind(second);
        demand.leave_range(second, 0, Instant::now());
        assert!(demand.is_behind());
        demand.leave_range(first, 0, Instant::now());
        assert!(!demand.is_behind());

        demand.await_range(first);
        demand.note_behind(first);
        demand.restart();
        assert!(!demand.is_behind(), "it is not behind a stream that begins again");
    }

    #[test]
    fn a_reader_that_goes_on_gets_more_each_time() {
        assert_eq!(windows(20 * BLOCK, 2 << 20, true), [20..21, 21..23, 23..27, 27..35, 35..43]);
        assert_eq!(windows(LENGTH, 2 << 20, false), [99..101, 96..99, 90..96, 82..90]);
    }

    #[test]
    fn a_download_that_nobody_waits_for_goes_on_for_a_while() {
        let stream = |length| Stream { length, is_followed: false, ..FOLLOWED };
        let mut demand = Demand::default();
        assert_eq!(demand.limit(&stream(None)), BOUNDS.unsized_body);
        demand.await_size();
        assert_eq!(demand.limit(&stream(None)), u64::MAX);
        let (left, patience) = (Instant::now(), Duration::from_secs(9));
        demand.leave_size(0, left);
        assert!(!demand.is_left(patience, left + patience));
        assert!(demand.is_left(patience, left + 2 * patience));
        assert_eq!(demand.limit(&stream(Some(LARGE))), BOUNDS.unread, "withheld");
        demand.await_range((5, 6));
        assert_eq!(demand.limit(&stream(Some(LARGE))), u64::MAX);
        demand.leave_range((5, 6), 0, left);
        demand.add_prefetch();
        assert_eq!(demand.limit(&stream(Some(LARGE))), u64::MAX);
        assert!(!demand.is_left(patience, left + 2 * patience));
    }

    #[test]
    fn one_that_waits_far_ahead_leaves_others_their_ranges() {
        let mut demand = Demand::default();
        let (near, far) = ((0, 1 << 20), (80 << 20, 81 << 20));
        for (range, end) in [(near, near.1), (far, 200 << 20)] {
            demand.await_range(range);
            demand.follow(range, end);
        }

        assert!(demand.is_far(40 << 20, 1 << 20));
        assert!(!demand.is_far(8 << 20, 1 << 20), "the kernel reads ahead of the first");
        assert!(demand.limit(&FOLLOWED) >= 200 << 20, "the stream comes to the second");
    }

    #[test]
    fn the_stream_comes_as_far_as_it_is_read() {
        let stream = FOLLOWED;
        let mut demand = Demand::default();
        assert_eq!(demand.limit(&stream), 0);
        let range = (0, 1 << 20);
        demand.await_range(range);
        demand.follow(range, range.1);
        assert_eq!(demand.limit(&stream), (1 << 20) + 4 * (1 << 20));
        assert!(demand.is_far(LARGE, 0) && !demand.is_far(8 << 20, 0));
        demand.note_jump();
        assert_eq!(demand.limit(&stream), (1 << 20) + 4 * (1 << 20), "one that follows keeps it");
        demand.note_read(range.1);
        demand.leave_range(range, 0, Instant::now());
        assert_eq!(demand.limit(&stream), (1 << 20) + 4 * (1 << 20));
        demand.note_jump();
        assert_eq!(demand.limit(&stream), (1 << 20) + AHEAD.start, "a jump lowers it");
        demand.await_whole();
        demand.await_range(range);
        assert_eq!(demand.limit(&stream), u64::MAX);
    }

    #[test]
    fn a_window_waits_for_the_reader_of_its_first_bytes() {
        for window in [8 << 20, 2 << 20] {
            let stream = Stream { window: Some((0, window)), ..FOLLOWED };
            let mut demand = Demand::default();
            assert_eq!(demand.limit(&Stream { has_ranges: false, ..stream }), window / 2);
            let (first, second) = ((0, 1 << 20), (20 << 20, 21 << 20));
            demand.await_range(first);
            demand.await_range(second);
            demand.follow(second, second.1);
            let stream = Stream { has_ranges: false, window: Some((0, window)), ..FOLLOWED };
            assert_eq!(demand.limit(&stream), window);
            demand.leave_range(first, 0, Instant::now());
            assert_eq!(demand.limit(&stream), (21 << 20) + window / 2 - (1 << 20) + (1 << 20));
        }
    }
}
