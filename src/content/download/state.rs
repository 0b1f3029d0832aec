//! The state of one download, pure but for the clock and the block map: what is here, what readers want, how it ended.

use super::demand::{Bounds, Demand, Stream, first_window};
use super::object::Origin;
use super::outcome::Outcome;
use crate::content::Fixity;
use crate::content::blocks::memory::WINDOW;
use crate::content::blocks::{BlockMap, Sink};
use crate::content::fixity::{BLOCK, BlockDigests, WHOLE_LIMIT};
use crate::content::trust::{Claim, Progress, Refusal, Trust, VersionId, Withheld};
use crate::source::http::KnownPause;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes that count as progress: fewer a second are as good as silence.
const STEP: u64 = 64;

/// Answer to a read that looks at the download.
pub(super) enum Look {
    Ended(Outcome),
    /// The blocks are here. [`DownloadState::record_hand_out`] decides whether they are handed out.
    Here(Here),
    /// The reader is far from the stream: this extent serves it better. The caller fetches it.
    Fetch(Extent),
    /// Nothing yet.
    Wait,
}

/// Whole blocks of one attempt that are here.
pub(super) struct Here {
    pub(super) attempt: u64,
    pub(super) blocks: Range<u64>,
    pub(super) map: Arc<BlockMap>,
    /// The blocks, if memory has them: it may drop them before they are read.
    pub(super) in_memory: Option<Vec<Bytes>>,
}

/// Blocks that are requested by a range.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    pub(super) attempt: u64,
    pub(super) origin: Origin,
    /// Their numbers.
    pub(super) blocks: Range<u64>,
}

/// Numbers the attempts of all downloads.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

/// The bytes of one attempt.
#[derive(Default)]
struct Attempt {
    /// No two attempts have the same: a block of one is of no use to another.
    number: u64,
    origin: Option<Origin>,
    /// Its head is here.
    is_announced: bool,
    map: Option<Arc<BlockMap>>,
    /// Under which validator its blocks are kept for a later download.
    mark: Option<String>,
    /// Bytes that are here from the first on.
    frontier: u64,
    /// Digests of its blocks. Those of an earlier download have none until they are hashed.
    digests: BlockDigests,
    /// Blocks that extents bring.
    coming: BTreeSet<u64>,
    /// A block cannot be read back: the object is fetched again.
    is_damaged: bool,
    /// Bytes that counted as progress: of this attempt, or of those before it.
    counted: u64,
}

impl Attempt {
    fn new() -> Attempt {
        Attempt { number: ATTEMPTS.fetch_add(1, Ordering::Relaxed), ..Attempt::default() }
    }
}

/// See the module.
pub(in crate::content) struct DownloadState {
    pub(super) sink: Sink,
    /// Bytes that a large object in memory comes ahead of the first reader that waits.
    pub(super) window: u64,
    attempt: Attempt,
    pub(super) demand: Demand,
    pub(super) trust: Trust,
    /// The most bytes that the stream of an attempt has brought; none before the first head.
    received: Option<u64>,
    /// When more was received than by any attempt before.
    moved: Instant,
    /// The known pause when a deadline was last asked for.
    paused: Duration,
    /// When a reader asked for bytes.
    pub(super) last_read: Instant,
    outcome: Option<Outcome>,
    pub(super) bounds: Bounds,
    /// The folder for digests that are too many for memory.
    folder: Arc<Path>,
}

impl DownloadState {
    /// A state of nothing yet. Nothing is handed out before [`Trust::bind`].
    pub(super) fn new(fixity: Fixity, bounds: Bounds, folder: Arc<Path>) -> DownloadState {
        let now = Instant::now();
        DownloadState {
            sink: Sink::Store,
            window: WINDOW,
            attempt: Attempt::new(),
            demand: Demand::default(),
            trust: Trust::new(fixity, Arc::clone(&folder)),
            received: None,
            moved: now,
            paused: Duration::ZERO,
            last_read: now,
            outcome: None,
            bounds,
            folder,
        }
    }

    /// From now on bytes are kept in memory alone, a `window` of a large object. The attempt's blocks are not handed out any more: what held
    /// them is returned, to be dropped outside the lock.
    pub(super) fn use_memory(&mut self, window: u64) -> Option<Arc<BlockMap>> {
        (self.sink, self.window) = (Sink::Memory, window);
        self.trust.pass();
        self.attempt.map.take()
    }

    /// An attempt has its head: where ranges of it can be requested, and the mark of what is kept of it.
    pub(super) fn announce(&mut self, claim: Claim, origin: Option<Origin>, mark: Option<String>) {
        if self.received.is_none() {
            (self.received, self.moved) = (Some(0), Instant::now());
        }
        self.trust.claim(claim);
        (self.attempt.origin, self.attempt.mark, self.attempt.is_announced) = (origin, mark, true);
    }

    /// Blocks of this version are here from an earlier download, and can be read at once. Where the rest can be requested is announced
    /// when the host has answered.
    pub(super) fn resume(&mut self, length: Option<u64>, version: Option<VersionId>, map: Arc<BlockMap>) {
        let is_unjudgeable = version.is_none();
        self.trust.claim(Claim { length, version, is_unjudgeable });
        self.attempt.frontier = map.frontier();
        self.attempt.map = Some(map);
        self.note_received(self.attempt.frontier);
        self.moved = Instant::now();
    }

    /// Bytes received of an attempt. Only what no attempt before has brought is progress: places that each bring a little of the
    /// beginning do not put off a reader's deadline.
    pub(super) fn note_received(&mut self, bytes: u64) {
        self.received = self.received.max(Some(bytes));
        if bytes >= self.attempt.counted + STEP {
            (self.attempt.counted, self.moved) = (bytes, Instant::now());
        }
    }

    /// Bytes that were dropped are received again, and count as progress again.
    pub(super) fn count_again(&mut self) {
        (self.attempt.counted, self.moved) = (0, Instant::now());
    }

    /// A block of this attempt cannot be read back.
    pub(super) fn note_damage(&mut self, attempt: u64) {
        self.attempt.is_damaged |= self.attempt.number == attempt;
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.attempt.is_damaged
    }

    /// Something arrived, or the delay is not a server's fault.
    pub(super) fn touch(&mut self) {
        self.moved = Instant::now();
    }

    /// The download waits for memory: its readers have already waited in our queue, so the longer time for a first request no longer applies.
    pub(super) fn wait_for_memory(&mut self) {
        self.received.get_or_insert(0);
        self.moved = Instant::now();
    }

    /// The end of a wait that has `begun`, where nothing arrives. While a known `pause` rises no server is silent. `stall` is for a server
    /// that has answered. A first request may wait for a permit half as long again: others occupy the host, which is not silent, and the
    /// request has its own deadline.
    pub(super) fn deadline(&mut self, begun: Instant, pause: &KnownPause, stall: Duration) -> Instant {
        if pause.rises_above(&mut self.paused) {
            self.touch();
        }
        self.moved.max(begun) + if self.received.is_none() { stall.mul_f32(1.5) } else { stall }
    }

    /// The map of an attempt that is under way; `None` before its first block.
    pub(super) fn map(&self, attempt: u64) -> Option<Arc<BlockMap>> {
        self.attempt.map.clone().filter(|_| !self.is_over(attempt))
    }

    /// The blocks of an attempt go to `map`.
    pub(super) fn set_map(&mut self, map: &Arc<BlockMap>) {
        self.attempt.map = Some(Arc::clone(map));
    }

    /// Blocks from `first` on are in the attempt's map; `digests` are theirs.
    pub(super) fn advance(&mut self, attempt: u64, first: u64, digests: &[u128]) {
        if self.is_over(attempt) {
            return;
        }
        self.trust.compare(first, digests);
        for (block, digest) in (first..).zip(digests) {
            match self.attempt.digests.get(block) {
                None => self.attempt.digests.put(block, *digest, &self.folder),
                Some(known) if known != *digest => self.trust.contradict(),
                Some(_) => {}
            }
        }
        self.attempt.frontier = self.attempt.map.as_ref().map_or(0, |map| map.frontier());
    }

    /// Returns whether each of these blocks has a digest, and so was compared with what was handed out.
    pub(super) fn has_digests(&self, blocks: Range<u64>) -> bool {
        blocks.into_iter().all(|block| self.attempt.digests.has(block))
    }

    /// An extent does not bring these blocks any more.
    pub(super) fn extent_ended(&mut self, attempt: u64, blocks: &Range<u64>) {
        if self.attempt.number == attempt {
            self.attempt.coming.retain(|block| !blocks.contains(block));
        }
    }

    /// The attempt's bytes are dropped, the next begins at the first byte. `is_doubted`: they were wrong. What held them is returned.
    pub(super) fn restart(&mut self, is_doubted: bool) -> Option<Arc<BlockMap>> {
        let before = std::mem::replace(&mut self.attempt, Attempt::new());
        self.attempt.counted = before.counted;
        self.trust.restart(is_doubted);
        self.demand.restart();
        before.map
    }

    /// Nothing more is handed out. Whether what was agrees with the whole, every block of which has a digest now.
    pub(super) fn agrees(&mut self) -> bool {
        self.trust.agrees(self.attempt.digests.end())
    }

    /// Later downloads are held to the blocks of the whole, which is right.
    pub(super) fn take_whole(&mut self) -> BlockDigests {
        std::mem::take(&mut self.attempt.digests)
    }

    /// Nothing more is handed out before the end. What held its bytes is returned, to be dropped outside the lock.
    pub(super) fn close(&mut self) -> impl Sized + use<> {
        self.trust.close();
        (self.attempt.map.take(), std::mem::take(&mut self.attempt.digests))
    }

    pub(super) fn end(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }

    pub(super) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Bytes of the whole, as the attempt under way has announced them.
    pub(super) fn length(&self) -> Option<u64> {
        self.trust.length()
    }

    pub(in crate::content) fn frontier(&self) -> u64 {
        self.attempt.frontier
    }

    pub(super) fn attempt(&self) -> u64 {
        self.attempt.number
    }

    pub(super) fn mark(&self) -> Option<String> {
        self.attempt.mark.clone()
    }

    /// Returns whether this attempt is not under way any more.
    pub(super) fn is_over(&self, attempt: u64) -> bool {
        self.attempt.number != attempt || self.outcome.is_some()
    }

    /// Returns whether the shared cache has the bytes of this attempt.
    pub(super) fn is_shared(&self) -> bool {
        self.attempt.origin.as_ref().is_some_and(|origin| origin.shared.is_some())
    }

    pub(super) fn origin(&self) -> Option<Origin> {
        self.attempt.origin.clone()
    }

    /// A reader waits for a range no longer.
    pub(super) fn leave_range(&mut self, range: (u64, u64)) {
        self.demand.leave_range(range, self.attempt.frontier, Instant::now());
    }

    /// A reader waits for the size no longer.
    pub(super) fn leave_size(&mut self) {
        self.demand.leave_size(self.attempt.frontier, Instant::now());
    }

    /// The first byte that can be read again in order.
    fn kept_from(&self) -> u64 {
        self.attempt.map.as_ref().map_or(0, |map| map.start())
    }

    fn progress(&self) -> Progress {
        let (frontier, received) = (self.attempt.frontier, self.received.unwrap_or(0));
        Progress { frontier, received, has_ranges: self.attempt.origin.is_some() }
    }

    /// The byte up to which the stream comes unless a reader reads further.
    pub(super) fn limit(&self) -> u64 {
        let does_pass = self.trust.does_pass();
        let can_hand_out = self.length().is_some() && self.trust.withheld().is_none();
        self.demand.limit(&Stream {
            length: self.length(),
            is_followed: can_hand_out || (does_pass && self.trust.was_served(self.attempt.frontier / BLOCK)),
            is_whole: self.trust.is_contradicted() || self.attempt.is_damaged,
            is_strict: self.trust.fixity() == Fixity::Strict,
            has_ranges: self.attempt.origin.is_some(),
            window: does_pass.then(|| (self.kept_from(), self.window)),
            bounds: self.bounds,
        })
    }

    /// How far the stream has to come for a reader of the bytes up to `end`: the last block is withheld until all others are here.
    fn followed_to(&self, end: u64) -> u64 {
        let is_kept = !self.trust.does_pass();
        self.length().filter(|_| is_kept && end > self.trust.withheld_from()).unwrap_or(end)
    }

    /// The first read that waits, of an object of `length` bytes of which nothing is announced yet, where it is far from what is here:
    /// what follows that is not needed, and what is read may be handed out as soon as its version is known.
    pub(super) fn far_read(&self, length: u64) -> Option<Range<u64>> {
        let range = self.demand.first()?;
        let may_hand_out = match self.trust.withheld() {
            None => true,
            Some(reason) => reason == Withheld::OtherVersion && self.trust.is_bound_to_version(),
        };
        let is_first = self.attempt.origin.is_none() && self.sink == Sink::Store && !self.demand.is_wanted_whole();
        let is_streamed = length > WHOLE_LIMIT && self.trust.fixity() != Fixity::Strict;
        let is_far = range.start < length && self.demand.is_far(range.start, self.attempt.frontier);
        (may_hand_out && is_first && is_streamed && is_far).then(|| range.start..range.end.min(length))
    }

    /// Looks for a read of `length` bytes at `offset`; `may_jump` unless extents have failed. `refused`: an attempt whose bytes must not be
    /// handed out to it. A read that touches the withheld end waits whole: it is never shortened.
    pub(super) fn look(&mut self, offset: u64, length: u32, may_jump: bool, refused: Option<u64>) -> Look {
        if let Some(outcome) = &self.outcome {
            return Look::Ended(outcome.clone());
        }
        self.last_read = Instant::now();
        if self.trust.does_pass() && self.attempt.frontier.saturating_add(BLOCK) >= self.limit() {
            // The window is full: it stood still for a slower reader, and that is not the server's fault.
            self.moved = self.last_read;
        }
        let Some(whole) = self.length() else { return Look::Wait };
        let asked = asked(offset, length);
        let range = offset.min(whole)..asked.1.min(whole);
        if range.is_empty() {
            // Beyond the announced end: whether it is the end, the verdict says.
            self.demand.follow(asked, self.followed_to(whole));
            return Look::Wait;
        }
        if refused != Some(self.attempt.number) {
            if let Some(here) = self.here(&range, whole) {
                if here.blocks.end <= self.attempt.frontier {
                    self.demand.note_read(self.followed_to(range.end));
                }
                return Look::Here(here);
            }
        }
        let is_behind = range.start < self.kept_from();
        if may_jump && self.may_jump(&range, is_behind) {
            if !is_behind {
                // A reader behind the window says nothing of those that go on.
                self.demand.note_jump();
            }
            if let Some(extent) = self.extent(&range) {
                return Look::Fetch(extent);
            }
            if self.is_coming(range.start / BLOCK..range.end.div_ceil(BLOCK)) {
                return Look::Wait;
            }
        }
        if is_behind {
            self.demand.note_behind(asked);
        } else if self.attempt.is_announced {
            // Before the head of a resumed download an extent may serve it better.
            self.demand.follow(asked, self.followed_to(range.end));
        }
        Look::Wait
    }

    /// Returns whether these bytes are here and may be handed out. No reader looks for them by this.
    pub(super) fn has(&self, offset: u64, length: u32) -> bool {
        let Some(whole) = self.length() else { return false };
        let range = offset.min(whole)..offset.saturating_add(u64::from(length)).min(whole);
        !range.is_empty() && self.here(&range, whole).is_some()
    }

    /// The whole blocks of `range`, where they are here and nothing is known that forbids to hand them out.
    fn here(&self, range: &Range<u64>, length: u64) -> Option<Here> {
        let blocks = whole_blocks(range, length);
        let map = self.attempt.map.clone()?;
        if !map.has(&blocks) || !self.trust.may_hand_out(&blocks, self.progress()) {
            return None;
        }
        let in_memory = if map.sink() == Sink::Memory { map.in_memory_now(&blocks) } else { None };
        Some(Here { attempt: self.attempt.number, blocks, map, in_memory })
    }

    /// Returns whether an extent may serve a reader, because it is far from the stream.
    fn may_jump(&self, range: &Range<u64>, is_behind: bool) -> bool {
        let can_ask =
            self.attempt.origin.is_some() && matches!(self.trust.withheld(), None | Some(Withheld::Contradicted));
        let is_streamed = self.trust.is_streamed() && !self.trust.is_contradicted();
        let is_closed = self.trust.is_end_closed(self.received.unwrap_or(0)) && range.end > self.trust.withheld_from();
        let is_far = self.demand.is_far(range.start, self.attempt.frontier);
        can_ask && (is_behind || (is_streamed && !is_closed && is_far))
    }

    /// An extent that brings the first of `range` that is neither here nor coming; from now on it is coming.
    fn extent(&mut self, range: &Range<u64>) -> Option<Extent> {
        let origin = self.attempt.origin.clone()?;
        let (map, coming) = (self.attempt.map.as_deref(), &self.attempt.coming);
        let has = |block: u64| {
            let bytes = block * BLOCK..((block + 1) * BLOCK).min(origin.length);
            map.is_some_and(|map| map.has(&bytes))
        };
        let blocks = first_window(range, origin.length, |block| coming.contains(&block) || has(block))?;
        self.begin_extent(blocks.clone());
        Some(Extent { attempt: self.attempt.number, origin, blocks })
    }

    /// Returns whether an extent brings one of these blocks.
    pub(super) fn is_coming(&self, blocks: Range<u64>) -> bool {
        self.attempt.coming.range(blocks).next().is_some()
    }

    /// Returns whether the backing of the attempt's map has a block.
    pub(super) fn has_block(&self, block: u64) -> bool {
        let end = ((block + 1) * BLOCK).min(self.length().unwrap_or(u64::MAX));
        self.attempt.map.as_ref().is_some_and(|map| map.keeps(&(block * BLOCK..end)))
    }

    /// An extent brings these blocks from now on.
    pub(super) fn begin_extent(&mut self, blocks: Range<u64>) {
        self.attempt.coming.extend(blocks);
    }

    /// The byte up to which the attempt's map takes blocks now.
    pub(super) fn takes_until(&self) -> u64 {
        self.attempt.map.as_ref().map_or(u64::MAX, |map| map.takes_until())
    }

    /// The first of `blocks` before `wanted` that is neither here nor coming, and those that follow it, at most `most`. From now on an extent
    /// of `attempt` brings them.
    pub(super) fn begin_missing(
        &mut self,
        attempt: u64,
        blocks: Range<u64>,
        wanted: u64,
        most: u64,
    ) -> Option<Range<u64>> {
        let is_missing = |block: &u64| !self.attempt.coming.contains(block) && !self.has_block(*block);
        let first = (blocks.start..blocks.end.min(wanted)).find(is_missing)?;
        let count = (first..blocks.end.min(first + most)).take_while(is_missing).count() as u64;
        let missing = first..first + count;
        if self.is_over(attempt) {
            return None;
        }
        self.begin_extent(missing.clone());
        Some(missing)
    }

    /// Records that blocks are handed out. False: they must not be, and nothing is recorded.
    #[must_use]
    pub(super) fn record_hand_out(&mut self, attempt: u64, blocks: &Range<u64>, digests: &[u128]) -> bool {
        let first = blocks.start / BLOCK;
        let is_same = |(block, digest)| self.attempt.digests.get(block).is_none_or(|known| known == digest);
        if self.is_over(attempt) || !(first..).zip(digests.iter().copied()).all(is_same) {
            return false;
        }
        let progress = self.progress();
        let handed_out = self.trust.record_hand_out(blocks, digests, progress);
        if handed_out == Err(Refusal::NeedsWhole) {
            self.demand.await_whole();
        }
        handed_out.is_ok()
    }
}

/// The first byte of a read, and the end of it.
pub(super) fn asked(offset: u64, length: u32) -> (u64, u64) {
    (offset, offset.saturating_add(u64::from(length)))
}

/// The whole blocks that `range` touches, of an object of `length` bytes.
pub(super) fn whole_blocks(range: &Range<u64>, length: u64) -> Range<u64> {
    range.start - range.start % BLOCK..range.end.next_multiple_of(BLOCK).min(length)
}
