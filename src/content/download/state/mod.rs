//! One fetch as its readers see it: how far it is, what may be read already, how it ended.
//!
//! Driven by a task of its own it goes on when every reader has given up; a large one comes no further than they are likely to read.

mod announced;
mod far;
mod passing;

use super::handed::{Bonds, Kept};
use super::held::{Held, Origin, Version};
use super::shares::Shares;
use super::urgency::Urgency;
use super::window::Window;
use crate::content::fixity::{BLOCK, HandedOut, WHOLE_LIMIT, releasable};
use crate::content::store::Partial;
use crate::content::{ContentError, Fixity};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// From this length on an object comes only as far as readers follow it, and in several ranges at once: eight windows of 4 MiB.
pub(super) const LARGE: u64 = 32 << 20;

/// So far beyond what was read it comes: the more, the more was read at a stretch.
const AHEAD: Range<u64> = 1 << 20..64 << 20;

/// So many times what was read at a stretch: of a few pages, and of more than a look at the beginning takes.
const AHEAD_GROWTH: [u64; 2] = [4, 16];
const MORE_THAN_A_LOOK: u64 = 2 << 20;

/// Bytes of what came last that are held for those who wait for them: they need not be read from the disk again.
pub(super) const LATEST: u64 = 8 << 20;

/// So many bytes more are progress; fewer a second are as good as silence.
const STEP: u64 = 64;

/// How a fetch stands.
enum Phase {
    UnderWay,
    Landed(Held),
    Failed(ContentError),
}

/// Numbers the attempts of all downloads.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

struct Progress {
    phase: Phase,
    /// The last time that something arrived which no attempt had brought before.
    moved: Instant,
    /// Bytes that the attempt which brought most has brought, and those that the one which wrote most has written.
    came: u64,
    furthest: u64,
    /// An attempt has had its head.
    has_head: bool,
    /// No two attempts have the same: what was fetched aside for one is no use to another.
    attempt: u64,
    /// Bytes of the whole, as far as known.
    length: Option<u64>,
    /// The bytes are those of an earlier fetch: nothing was asked for yet.
    is_kept: bool,
    /// The size that a question taught meanwhile, and that is shown.
    shown: Option<u64>,
    /// Bytes written from the first on.
    frontier: u64,
    /// One digest a block, of what the current attempt brought; the last may be of a short block.
    digests: Vec<u128>,
    /// Where what was written can be read before the verdict.
    partial: Option<Arc<Partial>>,
    /// What came goes past the cache, and this is the latest of it.
    window: Option<Window>,
    /// How much of it may be held.
    shares: Arc<Shares>,
    /// The bytes that readers wait for, from one to another, and how many do.
    standing: BTreeMap<(u64, u64), usize>,
    /// What came last, where it is held in memory too.
    latest: Option<Window>,
    /// The furthest byte that a reader of the stream has asked for.
    demand: u64,
    /// From which byte on a reader has followed the stream without jumping away.
    followed_from: u64,
    /// Somebody waits for the end.
    is_awaited: bool,
    /// A reader asks for what has gone past.
    is_asked_again: bool,
    /// Another block came than one that went out: no verdict can be good for both.
    contradicted: bool,
    /// Wrong bytes of the resource went out before.
    doubted: bool,
    /// Nothing more goes out before the verdict.
    whole: bool,
    bonds: Bonds,
    origin: Option<Origin>,
    /// The place and strong ETag of the version that all of `handed` went out of before this download.
    bound_to: Option<Version>,
    /// Nobody followed it: it ended, and can be gone on with.
    is_left: bool,
    /// A sequential reader comes near the withheld end: it goes out to no reader that jumps.
    end_is_closed: bool,
    /// Lock order: a download's progress first, then what it handed out.
    handed: Arc<Mutex<HandedOut>>,
}

/// What a reader finds.
pub(super) enum Look {
    /// The object is whole.
    Landed(Held),
    /// The fetch failed.
    Failed(ContentError),
    /// The bytes lie in the partial and have been recorded as handed out.
    Here(Arc<Partial>, Range<u64>),
    /// These are the bytes in pieces, recorded as handed out.
    Bytes(Vec<Bytes>),
    /// The reader is far ahead and may ask for these bytes aside.
    Jump(Jump),
    /// Wait; the last time that something arrived.
    Wait(Instant),
}

/// A read far ahead of the stream.
#[derive(Clone, Debug)]
pub(super) struct Jump {
    /// Where to ask.
    pub(super) origin: Origin,
    /// The attempt it belongs to.
    pub(super) attempt: u64,
    /// Which bytes, cut at the object's end.
    pub(super) range: Range<u64>,
}

/// One fetch of one inode's object.
pub(in crate::content) struct Download {
    fixity: Fixity,
    progress: Mutex<Progress>,
    changed: Notify,
    /// A reader wants more.
    wanted: Notify,
    /// A reader has jumped away.
    turned: Notify,
    urgency: Urgency,
    /// Held by each reader that is served aside.
    aside: Arc<()>,
}

impl Download {
    /// A download of which nothing has arrived; `kept` is what went out of this inode before, `doubted`: wrong bytes of the
    /// resource did.
    pub(super) fn new(fixity: Fixity, kept: Kept, bonds: Bonds, doubted: bool) -> Download {
        let mut progress = Progress {
            phase: Phase::UnderWay,
            moved: Instant::now(),
            came: 0,
            furthest: 0,
            has_head: false,
            attempt: ATTEMPTS.fetch_add(1, Ordering::Relaxed),
            length: None,
            is_kept: false,
            shown: None,
            frontier: 0,
            digests: Vec::new(),
            partial: None,
            window: None,
            shares: Arc::default(),
            standing: BTreeMap::new(),
            latest: None,
            demand: 0,
            followed_from: 0,
            is_awaited: false,
            is_asked_again: false,
            contradicted: false,
            doubted,
            whole: false,
            bonds,
            origin: None,
            bound_to: kept.version,
            is_left: false,
            end_is_closed: false,
            handed: kept.handed,
        };
        progress.whole = doubted || progress.is_bound();
        Download {
            fixity,
            progress: Mutex::new(progress),
            changed: Notify::new(),
            urgency: Urgency::default(),
            wanted: Notify::new(),
            turned: Notify::new(),
            aside: Arc::default(),
        }
    }

    /// Wakes whoever drives the download, when a reader wants more than has come.
    pub(super) fn wanted(&self) -> &Notify {
        &self.wanted
    }

    /// Ready when a reader jumps away: less of what follows is wanted.
    pub(super) async fn turned(&self) {
        self.turned.notified().await;
    }

    /// From now on what comes is held for those who wait for it; or no more.
    pub(super) fn hold_latest(&self, holds: bool) {
        self.progress().latest = holds.then(|| Window::new(0, LATEST));
    }

    /// Whether so many bytes, which come next, are handed out of memory: before the verdict, to readers who follow closely enough.
    pub(super) fn is_read_from_memory(&self, bytes: u64) -> bool {
        let progress = self.progress();
        let is_near = progress.frontier + bytes <= progress.demand.saturating_add(LATEST);
        progress.latest.is_some() && !progress.whole && self.fixity != Fixity::Strict && is_near
    }

    /// These bytes came, the last of them before `end`.
    pub(super) fn keep_latest(&self, bytes: &Bytes, end: u64) {
        let mut progress = self.progress();
        let Some(latest) = &mut progress.latest else { return };
        let first = end - bytes.len() as u64;
        if latest.range().end != first {
            *latest = Window::new(first, LATEST);
        }
        latest.push(bytes.clone());
        latest.hold(LATEST, None);
    }

    /// Up to which byte it comes as long as nobody reads on.
    pub(super) fn limit(&self) -> u64 {
        if self.urgency.is_wanted_whole() { u64::MAX } else { self.progress().limit(self.fixity) }
    }

    /// How far that is beyond the furthest that readers have asked for.
    pub(super) fn ahead(&self) -> u64 {
        let limit = self.limit();
        limit.saturating_sub(self.progress().demand)
    }

    /// Where ranges of the version under way may be asked.
    pub(super) fn origin(&self) -> Option<Origin> {
        self.progress().origin.clone()
    }

    /// Somebody waits for the end, whether readers follow or not.
    pub(super) fn await_whole(&self) {
        self.progress().is_awaited = true;
        self.wanted.notify_one();
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes every reader; registered before a [`Download::look`], none is missed.
    pub(super) fn changed(&self) -> &Notify {
        &self.changed
    }

    /// Something arrived, or what holds it up is no server's fault.
    pub(super) fn touch(&self) {
        self.progress().moved = Instant::now();
    }

    /// So many bytes of an attempt have come. Only what no attempt before has brought puts off what its readers wait at most: places
    /// that each bring a little of the beginning do not.
    pub(super) fn came(&self, received: u64) {
        let mut progress = self.progress();
        if received >= progress.came + STEP {
            progress.came = received;
            progress.moved = Instant::now();
        }
    }

    /// More was written: `digests` of the blocks that follow those before, up to byte `frontier`.
    pub(super) fn advance(&self, partial: Option<&Arc<Partial>>, digests: &[u128], frontier: u64) {
        let mut progress = self.progress();
        if frontier > progress.furthest {
            progress.furthest = frontier;
            progress.moved = Instant::now();
        }
        progress.frontier = frontier;
        let first = progress.digests.len() as u64;
        let contradicted = progress.handed.lock().unwrap_or_else(PoisonError::into_inner).contradicts(first, digests);
        progress.contradicted |= contradicted;
        progress.digests.extend_from_slice(digests);
        if progress.partial.is_none() {
            progress.partial = partial.cloned();
        }
        progress.end_is_closed |= progress.length.is_some_and(|length| frontier >= length / 2);
        drop(progress);
        self.changed.notify_waiters();
    }

    /// The attempt's bytes are given up, the next begins at the first byte. `doubted`: they were wrong.
    pub(super) fn restart(&self, doubted: bool) {
        let mut progress = self.progress();
        progress.doubted |= doubted;
        if let Some(origin) = progress.origin.take() {
            progress.bound_to = (!progress.whole).then(|| origin.version());
        }
        progress.whole |= doubted || progress.is_bound();
        progress.window = progress.window.is_some().then(Window::default);
        progress.latest = progress.latest.is_some().then(|| Window::new(0, LATEST));
        progress.demand = 0;
        progress.followed_from = 0;
        progress.is_asked_again = false;
        progress.contradicted = false;
        progress.attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
        progress.length = None;
        progress.is_kept = false;
        progress.frontier = 0;
        progress.digests.clear();
        progress.partial = None;
    }

    /// Whether it failed with `error` because it was begun for nobody yet, and the cache had no room, or because nobody followed it.
    /// Who came too late to change that begins another, which goes past the cache where it must.
    pub(super) fn gave_way(&self, error: &ContentError) -> bool {
        (error.is_full() && self.urgency.began_ahead()) || self.progress().is_left
    }

    /// Nobody follows it: it ends.
    pub(super) fn leave(&self) {
        self.progress().is_left = true;
    }

    /// The version that all that went out belongs to, where that is known.
    pub(super) fn version(&self) -> Option<Version> {
        let progress = self.progress();
        progress.origin.as_ref().filter(|_| !progress.whole).map(Origin::version)
    }

    /// Who waits for it.
    pub(super) fn urgency(&self) -> &Urgency {
        &self.urgency
    }

    /// The last time that something arrived.
    pub(super) fn moved(&self) -> Instant {
        self.progress().moved
    }

    /// Bytes of the whole, as the attempt under way has announced them.
    pub(super) fn announced(&self) -> Option<u64> {
        self.progress().length
    }

    /// Bytes written so far.
    pub(in crate::content) fn frontier(&self) -> u64 {
        self.progress().frontier
    }

    /// Whether all that went out belongs to a whole that was verified before.
    pub(super) fn is_proved(&self) -> bool {
        self.progress().bonds.is_proved
    }

    /// What went out before the verdict.
    pub(super) fn handed(&self) -> Arc<Mutex<HandedOut>> {
        Arc::clone(&self.progress().handed)
    }

    /// The verdict is good. Whether what went out before agrees with the whole; from here on nothing more goes out
    /// unverified, so the answer stays true.
    pub(super) fn agrees(&self) -> bool {
        let mut progress = self.progress();
        progress.whole = true;
        let handed = progress.handed.lock().unwrap_or_else(PoisonError::into_inner);
        handed.agrees_with(&progress.digests)
    }

    /// Nothing more goes out before the end, and the partial is let go.
    pub(super) fn close(&self) {
        let mut progress = self.progress();
        progress.whole = true;
        let gone = (progress.partial.take(), progress.latest.take());
        drop(progress);
        drop(gone);
    }

    /// The end of the download.
    pub(super) fn land(&self, outcome: Result<Held, ContentError>) {
        let mut progress = self.progress();
        progress.phase = match outcome {
            Ok(held) => Phase::Landed(held),
            Err(error) => Phase::Failed(error),
        };
        progress.digests = Vec::new();
        drop(progress);
        self.changed.notify_waiters();
    }

    /// How the download ended, if it did.
    pub(super) fn outcome(&self) -> Option<Result<Held, ContentError>> {
        match &self.progress().phase {
            Phase::UnderWay => None,
            Phase::Landed(held) => Some(Ok(held.clone())),
            Phase::Failed(error) => Some(Err(error.clone())),
        }
    }

    /// What there is for a read of `length` bytes at `offset`; `may_jump` as long as asking aside has not failed.
    /// A read that touches the withheld end waits whole: it is never shortened.
    pub(super) fn look(&self, offset: u64, length: u32, may_jump: bool) -> Look {
        let mut progress = self.progress();
        match &progress.phase {
            Phase::Landed(held) => return Look::Landed(held.clone()),
            Phase::Failed(error) => return Look::Failed(error.clone()),
            Phase::UnderWay => {}
        }
        if progress.window.is_some() {
            let followed_from = progress.followed_from;
            let found = progress.look_past(self.fixity, offset, length, may_jump);
            self.wanted.notify_one();
            if progress.followed_from != followed_from {
                self.turned.notify_waiters();
            }
            return found;
        }
        let Some(whole_length) = progress.length.filter(|_| !progress.whole) else {
            return Look::Wait(progress.moved);
        };
        let range = offset.min(whole_length)..offset.saturating_add(u64::from(length)).min(whole_length);
        if range.is_empty() {
            // Past the announced end: whether that is the end, the verdict tells.
            self.follow(&mut progress, whole_length);
            return Look::Wait(progress.moved);
        }
        let is_here = range.end <= releasable(self.fixity, progress.length, progress.frontier)
            && (!progress.contradicted || progress.went_out(&range));
        if let Some(partial) = progress.partial.clone().filter(|_| is_here) {
            self.follow(&mut progress, range.end);
            if !progress.hand_out(&range) {
                self.wanted.notify_one();
                return Look::Wait(progress.moved);
            }
            return match progress.latest.as_ref().and_then(|latest| latest.slices(&range)) {
                Some(pieces) => Look::Bytes(pieces),
                None => Look::Here(partial, range),
            };
        }
        match &progress.origin {
            Some(origin)
                if may_jump
                    && !progress.contradicted
                    && whole_length > WHOLE_LIMIT
                    && self.fixity != Fixity::Strict
                    && progress.is_far(range.start)
                    && !(progress.end_is_closed
                        && range.end > releasable(self.fixity, progress.length, whole_length)) =>
            {
                let jump = Jump { origin: origin.clone(), attempt: progress.attempt, range };
                // Should it come back it begins anew.
                progress.followed_from = progress.demand;
                self.turned.notify_waiters();
                Look::Jump(jump)
            }
            _ => {
                // Where its bytes are not here it may be better served by a request of its own.
                if !progress.is_kept {
                    self.follow(&mut progress, range.end);
                }
                Look::Wait(progress.moved)
            }
        }
    }

    /// The first byte that waits for the verdict on the whole; zero as long as its length is not known.
    pub(super) fn withheld_from(&self) -> u64 {
        self.progress().length.map_or(0, |length| releasable(self.fixity, Some(length), length))
    }

    /// A reader of the stream has come to `until`.
    fn follow(&self, progress: &mut Progress, until: u64) {
        // The last block is withheld until all others are here.
        let verdict = progress.length.filter(|length| until > releasable(self.fixity, Some(*length), *length));
        let until = verdict.unwrap_or(until);
        if until <= progress.demand {
            return;
        }
        if progress.frontier.saturating_add(BLOCK) >= progress.limit(self.fixity) {
            // It stood still for want of a reader, and that is not the server's fault.
            progress.moved = Instant::now();
        }
        progress.demand = until;
        self.wanted.notify_one();
    }
}

impl Progress {
    /// See [`Download::limit`].
    fn limit(&self, fixity: Fixity) -> u64 {
        let is_large = self.length.is_some_and(|length| length >= LARGE);
        let is_followed = is_large && self.origin.is_some() && fixity != Fixity::Strict;
        if !is_followed || self.whole || self.is_awaited || self.contradicted {
            return u64::MAX;
        }
        if self.demand == 0 {
            // Whoever is there has jumped.
            return 0;
        }
        let stretch = self.demand - self.followed_from;
        // What goes past the cache and nobody reads is lost.
        let growth = AHEAD_GROWTH[usize::from(stretch > MORE_THAN_A_LOOK && self.window.is_none())];
        self.demand.saturating_add(stretch.saturating_mul(growth).clamp(AHEAD.start, AHEAD.end))
    }

    /// Whether what went out before binds places that bring other bytes than its version: nothing more goes out before their verdict.
    /// Of what goes past the cache the whole is never here, and with a published digest its verdict is found all the same.
    fn is_bound(&self) -> bool {
        let can_pass = self.window.is_some() && self.bonds.is_vouched;
        let went_out = || !self.handed.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        !self.bonds.is_proved && (self.bonds.is_known || (!can_pass && went_out()))
    }

    /// Of the blocks of `range`, all of them written. Their numbers fit, for the digests are in memory.
    fn written(&self, range: &Range<u64>) -> Option<&[u128]> {
        self.digests.get((range.start / BLOCK) as usize..range.end.div_ceil(BLOCK) as usize)
    }

    /// Whether these blocks went out before: they can again, whatever the verdict will be.
    fn holds(&self, first: u64, digests: &[u128]) -> bool {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner).holds(first, digests)
    }

    /// The same of the written blocks of `range`.
    fn went_out(&self, range: &Range<u64>) -> bool {
        self.written(range).is_some_and(|digests| self.holds(range.start / BLOCK, digests))
    }

    /// Records the blocks of `range`, all of them written, as handed out; see [`Progress::record`].
    fn hand_out(&mut self, range: &Range<u64>) -> bool {
        let digests = self.written(range).map(<[u128]>::to_vec);
        digests.is_some_and(|digests| self.record(range.start / BLOCK, &digests))
    }

    /// Records blocks as handed out. False, and none of them must go out, where another went out in the place of one. The last that is
    /// missing waits for the verdict, and so for the whole; so does a block that is not of the verified whole, where that binds.
    fn record(&mut self, first: u64, digests: &[u128]) -> bool {
        let blocks = first..first + digests.len() as u64;
        let mut handed = self.handed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_last = self.length.is_none_or(|length| handed.would_complete(blocks, length.div_ceil(BLOCK)));
        if is_last || (self.bonds.is_proved && !handed.holds(first, digests)) {
            self.is_awaited = true;
            return false;
        }
        handed.record(first, digests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a large object, its latest bytes held, the first of them demanded.
    fn demanded(fixity: Fixity) -> Download {
        let download = Download::new(fixity, Kept::default(), Bonds::default(), false);
        download.hold_latest(true);
        download.announce(Some(2 * LARGE), false, None);
        assert!(matches!(download.look(0, 1 << 20, false), Look::Wait(_)));
        download
    }

    #[test]
    fn what_comes_is_read_from_memory_by_those_who_follow_closely_and_wait_for_no_verdict() {
        let download = demanded(Fixity::Stream);
        assert!(download.is_read_from_memory(BLOCK));
        download.advance(None, &[], (1 << 20) + LATEST + BLOCK);
        assert!(!download.is_read_from_memory(1), "it is pushed out before anybody comes to it");
        download.look(8 << 20, 1 << 20, false);
        assert!(download.is_read_from_memory(BLOCK));
        download.hold_latest(false);
        assert!(!download.is_read_from_memory(BLOCK));

        assert!(!demanded(Fixity::Strict).is_read_from_memory(BLOCK));
        let again = demanded(Fixity::Stream);
        again.restart(true);
        assert!(!again.is_read_from_memory(BLOCK), "wrong bytes went out before");
    }
}
