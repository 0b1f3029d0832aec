//! The state of one download, pure but for the clock: what is here, what readers want, what may be handed out, how it ended.

mod demand;
mod received;
#[cfg(test)]
mod tests;

use super::kept::{Kept, Sink, WINDOW};
use super::look::{Here, Jump, Look};
use super::object::{Origin, Version};
use super::outcome::Outcome;
use super::served::{Bonds, Served};
use crate::content::Fixity;
use crate::content::fixity::{BLOCK, BlockDigests, WHOLE_LIMIT, releasable};
pub(in crate::content) use demand::Bounds;
use demand::Demand;
use received::Attempt;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// From this length on an object is downloaded only while readers follow it, and in parallel ranges.
pub(super) const LARGE: u64 = 32 << 20;

/// How far ahead of its readers it comes: the further, the more they have read at a stretch.
const AHEAD: Range<u64> = 1 << 20..64 << 20;
const AHEAD_GROWTH: u64 = 4;

/// The same where only a window is kept: this part of it. As much lies behind the readers, for the kernel reads several pieces in any order.
const AHEAD_IN_WINDOW: u64 = 2;

/// A reader so many bytes beyond the stream has a request of its own.
const JUMP: u64 = 4 << 20;

/// The kernel reads ahead of a sequential reader twice what the mount lets it, in any order: that is no jump.
const KERNEL_AHEAD: u64 = 8 << 20;

/// So many bytes more are progress: fewer a second are as good as silence.
const STEP: u64 = 64;

/// What may be handed out before the verdict.
struct Trust {
    /// Nothing more.
    is_withheld: bool,
    /// Wrong bytes of the resource were handed out before.
    is_doubted: bool,
    bonds: Bonds,
    /// The version that all of `served` belongs to that was handed out before this attempt.
    bound_to: Option<Version>,
    /// The size that is shown since a question for it was answered.
    shown: Option<u64>,
    /// Lock order: the state of a download first.
    served: Arc<Mutex<BlockDigests>>,
}

/// Invariant: blocks of the stream and of random reads are compared with `served` and with each other. So where no attempt is contradicted
/// the verdict on its bytes is one on all that was handed out.
pub(in crate::content) struct DownloadState {
    fixity: Fixity,
    sink: Sink,
    /// Of a large object in memory.
    window: u64,
    attempt: Attempt,
    demand: Demand,
    trust: Trust,
    /// The most bytes that an attempt has received; none before the first head.
    received: Option<u64>,
    /// When more was received than by any attempt before.
    moved: Instant,
    /// When a reader asked for bytes.
    last_read: Instant,
    outcome: Option<Outcome>,
    bounds: Bounds,
    /// Where digests are kept that are too many for memory.
    folder: Arc<Path>,
}

impl DownloadState {
    /// Of nothing yet. Nothing is handed out before [`DownloadState::bind`].
    pub(super) fn new(fixity: Fixity, bounds: Bounds, folder: Arc<Path>) -> DownloadState {
        let trust = Trust {
            is_withheld: true,
            is_doubted: false,
            bonds: Bonds::default(),
            bound_to: None,
            shown: None,
            served: Arc::default(),
        };
        let now = Instant::now();
        DownloadState {
            fixity,
            sink: Sink::Store,
            window: WINDOW,
            attempt: Attempt::new(),
            demand: Demand::default(),
            trust,
            received: None,
            moved: now,
            last_read: now,
            outcome: None,
            bounds,
            folder,
        }
    }

    /// What was handed out of the inode before, and what else binds. `is_doubted`: wrong bytes of the resource were.
    pub(super) fn bind(&mut self, served: Served, bonds: Bonds, is_doubted: bool) {
        self.trust.served = served.blocks;
        self.trust.bound_to = served.version;
        (self.trust.bonds, self.trust.is_doubted) = (bonds, is_doubted);
        self.trust.is_withheld = is_doubted || self.is_bound();
        if served.was_passed {
            self.use_memory();
        }
    }

    /// Whether what was handed out binds places that bring other bytes than its version: nothing more is handed out before their verdict.
    /// Where all is never kept at once, a published digest gives a verdict all the same.
    fn is_bound(&self) -> bool {
        let Bonds { is_proved, is_known, is_vouched } = self.trust.bonds;
        let can_pass = self.sink == Sink::Memory && is_vouched;
        !is_proved && (is_known || (!can_pass && !self.served().is_empty()))
    }

    fn served(&self) -> MutexGuard<'_, BlockDigests> {
        self.trust.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was handed out.
    pub(super) fn served_blocks(&self) -> Arc<Mutex<BlockDigests>> {
        Arc::clone(&self.trust.served)
    }

    /// Whether all that was handed out belongs to a whole that was verified before.
    pub(super) fn is_proved(&self) -> bool {
        self.trust.bonds.is_proved
    }

    /// The version that all that was handed out belongs to, where that is known.
    pub(super) fn version(&self) -> Option<Version> {
        self.attempt.origin.as_ref().filter(|_| !self.trust.is_withheld).map(Origin::version)
    }

    pub(super) fn sink(&self) -> Sink {
        self.sink
    }

    /// How far a large object in memory comes ahead of the first reader that waits.
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// Before the first byte is kept in memory.
    pub(super) fn set_window(&mut self, window: u64) {
        self.window = window;
    }

    /// From now on bytes are kept in memory alone. With a published digest what was handed out binds each block by itself, so that
    /// the others can be handed out although the whole is never here. The attempt's bytes are not handed out any more: what held them is
    /// returned, to be dropped outside the lock.
    pub(super) fn use_memory(&mut self) -> Option<Kept> {
        let is_same_version = self.attempt.origin.is_some() && !self.trust.is_withheld;
        self.sink = Sink::Memory;
        let is_bound = self.is_bound() && !is_same_version;
        let is_refused = is_bound || self.is_other_than_shown();
        self.trust.is_withheld = self.trust.is_doubted || self.fixity == Fixity::Strict || is_refused;
        self.attempt.kept.take()
    }

    /// An attempt has its head: how long the whole is, and where ranges of it can be requested. `is_withheld`: nothing is handed out
    /// before its verdict.
    pub(super) fn announce(&mut self, length: Option<u64>, is_withheld: bool, origin: Option<Origin>) {
        if self.received.is_none() {
            (self.received, self.moved) = (Some(0), Instant::now());
        }
        let version = origin.as_ref().map(Origin::version);
        if version.is_some() && version == self.trust.bound_to.take() {
            // It is the version that was handed out, and each block is compared with it.
            self.trust.is_withheld = self.trust.is_doubted;
        }
        self.attempt.origin = origin;
        (self.attempt.length, self.attempt.is_announced) = (length, true);
        self.trust.is_withheld |= is_withheld || self.is_other_than_shown();
    }

    /// Bytes of this version are here from an earlier download, up to `frontier`, and can be read at once. Where the rest can be requested
    /// is announced when the host has answered.
    pub(super) fn resume(&mut self, length: Option<u64>, version: &Version, kept: Kept, frontier: u64) {
        if self.trust.bound_to.as_ref() == Some(version) {
            self.trust.is_withheld = self.trust.is_doubted;
        }
        self.attempt.length = length;
        self.attempt.kept = Some(kept);
        self.attempt.frontier = frontier;
        self.trust.is_withheld |= self.is_other_than_shown();
        self.note_received(frontier);
        self.moved = Instant::now();
    }

    /// From now on this size is shown. Of a body of another nothing more is handed out: its verdict helps the name's next inode alone.
    pub(super) fn show(&mut self, size: u64) {
        self.trust.shown = Some(size);
        self.trust.is_withheld |= self.is_other_than_shown();
    }

    fn is_other_than_shown(&self) -> bool {
        self.trust.shown.zip(self.attempt.length).is_some_and(|(shown, length)| shown != length)
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

    /// Something arrived, or what delays it is no server's fault.
    pub(super) fn touch(&mut self) {
        self.moved = Instant::now();
    }

    /// The download waits for memory: its readers have borne our own queue, and bear the first request no longer than any other.
    pub(super) fn wait_for_memory(&mut self) {
        self.received.get_or_insert(0);
        self.moved = Instant::now();
    }

    /// How long a reader bears that nothing arrives; `stall`: from a server that has answered. A first request may wait for a permit half
    /// as long again: that others occupy the host is no silence of it, and the request has a deadline of its own.
    pub(super) fn patience(&self, stall: Duration) -> Duration {
        if self.received.is_none() { stall.mul_f32(1.5) } else { stall }
    }

    pub(super) fn moved(&self) -> Instant {
        self.moved
    }

    pub(super) fn last_read(&self) -> Instant {
        self.last_read
    }

    /// All up to `frontier` was received, and `kept` of it; `digests` are of the blocks that follow those which have one.
    pub(super) fn advance(&mut self, kept: Kept, frontier: u64, digests: &[u128]) {
        self.digest(digests);
        (self.attempt.kept, self.attempt.frontier) = (Some(kept), frontier);
    }

    /// The digests of the blocks that follow those before.
    pub(super) fn digest(&mut self, digests: &[u128]) {
        let first = self.attempt.digests.end();
        let is_contradicted = self.served().contradicts(first, digests);
        self.attempt.is_contradicted |= is_contradicted;
        for (block, digest) in (first..).zip(digests) {
            self.attempt.digests.put(block, *digest, &self.folder);
        }
    }

    /// The attempt's bytes are dropped, the next begins at the first byte. `is_doubted`: they were wrong.
    pub(super) fn restart(&mut self, is_doubted: bool) {
        let before = std::mem::replace(&mut self.attempt, Attempt::new());
        self.attempt.counted = before.counted;
        self.trust.is_doubted |= is_doubted;
        if let Some(origin) = before.origin {
            self.trust.bound_to = (!self.trust.is_withheld).then(|| origin.version());
        }
        self.trust.is_withheld |= is_doubted || self.is_bound();
        self.demand.followed.clear();
        (self.demand.read, self.demand.since, self.demand.is_behind) = (0, 0, false);
    }

    /// Nothing more is handed out. Whether what was agrees with the whole, every block of which has a digest now.
    pub(super) fn agrees(&mut self) -> bool {
        self.trust.is_withheld = true;
        !self.attempt.is_contradicted && self.served().end() <= self.attempt.digests.end()
    }

    /// Later downloads are held to the blocks of the whole, which is right.
    pub(super) fn take_whole(&mut self) -> BlockDigests {
        std::mem::take(&mut self.attempt.digests)
    }

    /// Nothing more is handed out before the end. What held its bytes is returned, to be dropped outside the lock.
    pub(super) fn close(&mut self) -> impl Sized + use<> {
        self.trust.is_withheld = true;
        (self.attempt.kept.take(), std::mem::take(&mut self.attempt.digests))
    }

    pub(super) fn end(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }

    pub(super) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Bytes of the whole, as the attempt under way has announced them.
    pub(super) fn length(&self) -> Option<u64> {
        self.attempt.length
    }

    pub(in crate::content) fn frontier(&self) -> u64 {
        self.attempt.frontier
    }

    pub(super) fn attempt(&self) -> u64 {
        self.attempt.number
    }

    /// Whether this attempt is not under way any more.
    pub(super) fn is_over(&self, attempt: u64) -> bool {
        self.attempt.number != attempt || self.outcome.is_some()
    }

    /// Whether the shared cache has the bytes of this attempt.
    pub(super) fn is_shared(&self) -> bool {
        self.attempt.origin.as_ref().is_some_and(|origin| origin.shared.is_some())
    }

    pub(super) fn origin(&self) -> Option<Origin> {
        self.attempt.origin.clone()
    }

    /// Whether it is a large object of which only the latest bytes are kept.
    fn does_pass(&self) -> bool {
        self.sink == Sink::Memory && self.attempt.length.is_some_and(|length| length > WHOLE_LIMIT)
    }

    /// The first byte that can be read again.
    fn kept_from(&self) -> u64 {
        self.attempt.kept.as_ref().map_or(0, Kept::start)
    }

    /// Up to which byte the stream comes as long as no reader goes on.
    pub(super) fn limit(&self) -> u64 {
        let Attempt { length, frontier, is_contradicted, is_damaged, .. } = self.attempt;
        let does_pass = self.does_pass();
        if self.demand.prefetches > 0 {
            return u64::MAX;
        }
        // Readers that wait for the verdict have the whole of it come; when they are gone it goes on for a while.
        let is_whole = self.demand.is_whole || length.is_none();
        let more = if is_whole { self.bounds.unsized_body } else { self.bounds.unread };
        let whole = match self.demand.left {
            _ if self.demand.is_waited_for() => u64::MAX,
            left => left.map_or(0, |(_, here)| here).saturating_add(more),
        };
        if self.demand.is_whole || is_contradicted || is_damaged {
            return whole;
        }
        let can_hand_out = length.is_some() && !self.trust.is_withheld;
        let is_followed = can_hand_out || (does_pass && self.served().has(frontier / BLOCK));
        if !is_followed {
            // No reader can follow before the verdict.
            return whole;
        }
        let is_large = length.is_some_and(|length| length >= LARGE);
        let followed = match self.demand.until() {
            _ if self.fixity == Fixity::Strict => whole,
            _ if !is_large || (does_pass && self.attempt.origin.is_none()) => u64::MAX,
            // Its readers have jumped.
            0 => 0,
            until => {
                let stretch = until.saturating_sub(self.demand.since);
                until.saturating_add(stretch.saturating_mul(AHEAD_GROWTH).clamp(AHEAD.start, AHEAD.end))
            }
        };
        if !does_pass {
            return followed;
        }
        let first_waiting = self.demand.waiting.range((self.kept_from(), 0)..).next();
        let kept = first_waiting.map_or(u64::MAX, |((first, _), _)| first.saturating_add(self.window));
        followed.min(kept).min(self.demand.until().saturating_add(self.window / AHEAD_IN_WINDOW))
    }

    /// The first byte that waits for the verdict on the whole; 0 as long as its length is not known.
    pub(super) fn withheld_from(&self) -> u64 {
        self.attempt.length.map_or(0, |length| releasable(self.fixity, Some(length), length))
    }

    /// How far the stream has to come for a reader of the bytes up to `end`.
    fn followed_to(&self, end: u64) -> u64 {
        // The last block is withheld until all others are here.
        let is_kept = !self.does_pass();
        self.attempt.length.filter(|_| is_kept && end > self.withheld_from()).unwrap_or(end)
    }

    /// A reader waits for `range` in the stream, which comes to `end` for it as long as it waits.
    fn follow(&mut self, range: (u64, u64), end: u64) {
        let end = self.followed_to(end);
        if self.demand.waiting.contains_key(&range) {
            self.demand.followed.insert(range, end);
        }
    }

    /// Whether a reader of `offset` rather has a request of its own than waits for the stream.
    fn is_far(&self, offset: u64) -> bool {
        let until = self.demand.until();
        let reach = if until > self.demand.since { until.saturating_add(KERNEL_AHEAD) } else { 0 };
        offset >= reach.max(self.attempt.frontier.saturating_add(JUMP))
    }

    /// Whether a sequential reader comes near the withheld end: it is handed out to no reader that jumps.
    fn is_end_closed(&self) -> bool {
        self.attempt.length.is_some_and(|length| self.received.unwrap_or(0) >= length / 2)
    }

    /// The first read that waits, of an object of `length` bytes of which nothing is announced yet, where it is far from what is here:
    /// what follows that is not needed, and what is read may be handed out as soon as its version is known.
    pub(super) fn far_read(&self, length: u64) -> Option<Range<u64>> {
        let (&(first, end), _) = self.demand.waiting.first_key_value()?;
        let may_be_handed_out = !self.trust.is_doubted && (!self.trust.is_withheld || self.trust.bound_to.is_some());
        let is_wanted_whole = self.demand.is_whole || self.demand.prefetches > 0;
        let is_first = self.attempt.origin.is_none() && self.sink == Sink::Store && !is_wanted_whole;
        let is_streamed = length > WHOLE_LIMIT && self.fixity != Fixity::Strict;
        (first < length && may_be_handed_out && is_first && is_streamed && self.is_far(first))
            .then(|| first..end.min(length))
    }

    /// What there is for a read of `length` bytes at `offset`; `may_jump` unless a request of its own has failed. `refused`: an attempt whose
    /// bytes must not be handed out to it. A read that touches the withheld end waits whole: it is never shortened.
    pub(super) fn look(&mut self, offset: u64, length: u32, may_jump: bool, refused: Option<u64>) -> Look {
        if let Some(outcome) = &self.outcome {
            return Look::Ended(outcome.clone());
        }
        self.last_read = Instant::now();
        if self.attempt.frontier.saturating_add(BLOCK) >= self.limit() {
            // It stood still for want of a reader, and that is not the server's fault.
            self.moved = self.last_read;
        }
        let wait = Look::Wait(self.moved);
        let Some(whole) = self.attempt.length else { return wait };
        let asked = (offset, offset.saturating_add(u64::from(length)));
        let range = offset.min(whole)..asked.1.min(whole);
        if range.is_empty() {
            // Beyond the announced end: whether it is the end, the verdict says.
            self.follow(asked, whole);
            return wait;
        }
        let is_behind = range.start < self.kept_from();
        if refused != Some(self.attempt.number) {
            if let Some(here) = self.here(&range, whole) {
                self.demand.read = self.demand.read.max(self.followed_to(range.end));
                return Look::Here(here);
            }
        }
        if let Some(jump) = self.jump(&range, is_behind).filter(|_| may_jump) {
            if !is_behind {
                // Where it comes back a new stretch begins. A reader behind the window says nothing of those that go on.
                self.demand.since = self.demand.until();
            }
            return Look::Jump(jump);
        }
        if is_behind {
            self.demand.is_behind = true;
        } else if self.attempt.is_announced {
            // Before the head of a resumed download a request of its own may serve it better.
            self.follow(asked, range.end);
        }
        wait
    }

    /// The whole blocks of `range`, where they are here and nothing is known that forbids to hand them out.
    fn here(&self, range: &Range<u64>, length: u64) -> Option<Here> {
        let blocks = whole_blocks(range, length);
        if blocks.end > self.attempt.frontier || !(self.may_be_handed_out(&blocks) || self.was_handed_out(&blocks)) {
            return None;
        }
        let kept = self.attempt.kept.clone().filter(|kept| kept.start() <= blocks.start)?;
        Some(Here { attempt: self.attempt.number, blocks, kept })
    }

    /// Whether blocks of the stream may be handed out before the verdict.
    fn may_be_handed_out(&self, blocks: &Range<u64>) -> bool {
        let releasable = releasable(self.fixity, self.attempt.length, self.attempt.frontier);
        !self.trust.is_withheld && !self.attempt.is_contradicted && blocks.end <= releasable
    }

    /// Whether blocks were handed out in all of these places. Those of a stream past the cache may be again, before any verdict.
    fn was_handed_out(&self, blocks: &Range<u64>) -> bool {
        let is_kept = !self.does_pass();
        let waits =
            self.trust.is_withheld || blocks.end > releasable(self.fixity, self.attempt.length, self.attempt.frontier);
        let served = self.served();
        !(is_kept && waits) && (blocks.start / BLOCK..blocks.end.div_ceil(BLOCK)).all(|block| served.has(block))
    }

    /// The request of its own by which a reader far from the stream is served, where there may be one.
    fn jump(&self, range: &Range<u64>, is_behind: bool) -> Option<Jump> {
        let origin = self.attempt.origin.as_ref().filter(|_| !self.trust.is_withheld)?;
        let is_streamed = origin.length > WHOLE_LIMIT && self.fixity != Fixity::Strict && !self.attempt.is_contradicted;
        let is_open = !(self.is_end_closed() && range.end > self.withheld_from());
        let is_far = is_behind || (is_streamed && is_open && self.is_far(range.start));
        is_far.then(|| Jump { origin: origin.clone(), attempt: self.attempt.number, range: range.clone() })
    }

    /// Records that blocks of the stream, which begin at `start`, go out. False: they must not.
    #[must_use]
    pub(super) fn hand_out(&mut self, attempt: u64, blocks: &Range<u64>, digests: &[u128]) -> bool {
        let first = blocks.start / BLOCK;
        if self.is_over(attempt) || !self.equals_stream(first, digests) {
            return false;
        }
        let was_handed_out = self.was_handed_out(blocks) && self.served().holds(first, digests);
        was_handed_out || (self.may_be_handed_out(blocks) && self.record(first, digests))
    }

    /// The same of blocks that a random read brought: they are compared with the stream, or the stream will be with them.
    #[must_use]
    pub(super) fn hand_out_random(&mut self, attempt: u64, blocks: &Range<u64>, digests: &[u128]) -> bool {
        let first = blocks.start / BLOCK;
        let touches_end = blocks.end > self.withheld_from();
        let is_over = self.is_over(attempt) || self.trust.is_withheld;
        // Blocks that are here and not hashed yet are read where they are.
        let Attempt { frontier, digests: hashed, .. } = &self.attempt;
        let is_unhashed = blocks.start < *frontier && hashed.end() * BLOCK < blocks.end.min(*frontier);
        if is_over || is_unhashed || (touches_end && self.is_end_closed()) || !self.equals_stream(first, digests) {
            return false;
        }
        let is_known = !self.attempt.is_contradicted || self.served().holds(first, digests);
        is_known && self.record(first, digests)
    }

    fn equals_stream(&self, first: u64, digests: &[u128]) -> bool {
        let mut blocks = (first..).zip(digests);
        blocks.all(|(block, digest)| self.attempt.digests.get(block).is_none_or(|streamed| streamed == *digest))
    }

    /// Records blocks as handed out. False, and none of them must go out, where another was handed out in the place of one. The last that is
    /// missing waits for the verdict, and so for the whole; so does a block that is not of the verified whole, where that binds.
    fn record(&mut self, first: u64, digests: &[u128]) -> bool {
        let blocks = first..first + digests.len() as u64;
        let length = self.attempt.length;
        let mut served = self.trust.served.lock().unwrap_or_else(PoisonError::into_inner);
        let is_last = length.is_none_or(|length| served.would_complete(blocks, length.div_ceil(BLOCK)));
        if is_last || (self.trust.bonds.is_proved && !served.holds(first, digests)) {
            self.demand.is_whole = true;
            return false;
        }
        served.record(first, digests, &self.folder)
    }
}

/// The whole blocks in which `range` lies, of an object of `length` bytes.
pub(super) fn whole_blocks(range: &Range<u64>, length: u64) -> Range<u64> {
    range.start - range.start % BLOCK..range.end.next_multiple_of(BLOCK).min(length)
}
