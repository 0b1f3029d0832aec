//! What goes past the cache, because that has no room for it: readers get what comes as it comes, and it waits for them.

use super::{Download, Jump, Look, Progress};
use crate::content::Fixity;
use crate::content::download::shares::Shares;
use crate::content::download::window::{LEAD, Window};
use crate::content::fixity::{BLOCK, releasable};
use bytes::Bytes;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

impl Download {
    /// From now on what comes goes past the cache. With a published digest what went out before binds each block by itself, so that
    /// the others can go out although the whole is never here.
    pub(in crate::content::download) fn pass_by(&self, shares: &Arc<Shares>) {
        let mut progress = self.progress();
        let is_same_version = progress.origin.is_some() && !progress.whole;
        progress.window = Some(Window::default());
        progress.shares = Arc::clone(shares);
        let is_bound = progress.is_bound() && !is_same_version;
        progress.whole = progress.doubted || self.fixity == Fixity::Strict || is_bound;
    }

    /// Whether what comes goes past the cache.
    pub(in crate::content::download) fn is_passing(&self) -> bool {
        self.progress().window.is_some()
    }

    /// Whether more may come: of what goes past the cache only as much as readers follow.
    pub(in crate::content::download) fn may_go_on(&self) -> bool {
        self.progress().may_go_on()
    }

    /// The same, were what was received here too.
    pub(in crate::content::download) fn may_go_on_from(&self, received: u64) -> bool {
        let progress = self.progress();
        progress.is_followed_at(received) && progress.may_go_on()
    }

    /// Whether a reader waits for what has gone past; it is asked for once.
    pub(in crate::content::download) fn take_asked_again(&self) -> bool {
        std::mem::take(&mut self.progress().is_asked_again)
    }

    /// More went past the cache.
    pub(in crate::content::download) fn pass(&self, bytes: Bytes) {
        let mut progress = self.progress();
        let waited_for = progress.waited_for();
        let longest = waited_for.as_ref().map_or(0, |range| range.end - range.start);
        let most = progress.shares.window().max(longest);
        if let Some(window) = &mut progress.window {
            window.push(bytes);
            window.hold(most, waited_for.map(|range| range.start));
        }
    }

    /// A reader waits for `length` bytes at `offset`, until what is returned is dropped.
    pub(in crate::content::download) fn stand_at(&self, offset: u64, length: u32) -> Standing<'_> {
        let range = (offset, offset.saturating_add(u64::from(length)));
        *self.progress().standing.entry(range).or_default() += 1;
        Standing { download: self, range }
    }

    /// The whole went past: its end. Whether it agrees with what went out, [`Download::agrees`] tells.
    pub(in crate::content::download) fn passed(&self) -> Option<Window> {
        self.progress().window.clone()
    }

    /// Later fetches are held to the blocks of the whole. Of what went past the end can go out from here on, so the verdict must
    /// be recorded before: who has read all of it finds that.
    pub(in crate::content::download) fn bind_later(&self) {
        let progress = self.progress();
        let mut handed = progress.handed.lock().unwrap_or_else(PoisonError::into_inner);
        // No other block is among them since the verdict was that they agree.
        let agrees = handed.record(0, &progress.digests);
        debug_assert!(agrees);
    }
}

/// A reader that waits; see [`Download::stand_at`].
pub(in crate::content::download) struct Standing<'f> {
    download: &'f Download,
    range: (u64, u64),
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        let mut progress = self.download.progress();
        if let Entry::Occupied(mut waiting) = progress.standing.entry(self.range) {
            *waiting.get_mut() -= 1;
            if *waiting.get() == 0 {
                waiting.remove();
            }
        }
        drop(progress);
        self.download.wanted.notify_one();
    }
}

impl Progress {
    /// See [`Download::may_go_on`].
    pub(super) fn may_go_on(&self) -> bool {
        let Some(window) = self.window.as_ref().filter(|_| !self.is_awaited) else { return true };
        let is_followed = self.is_followed_at(self.frontier);
        // Who waits for bytes that are here is about to take them.
        let is_here = |range: &Range<u64>| range.end <= releasable(Fixity::Stream, self.length, self.frontier);
        let waited_for = self.waited_for().filter(is_here).map(|range| range.start);
        if is_followed && !window.is_full_of(waited_for) {
            return true;
        }
        // Nobody can follow where nothing goes out before the verdict.
        let nothing_goes_out = self.whole || self.length.is_none();
        self.contradicted || (nothing_goes_out && !self.is_proved_at(self.frontier))
    }

    /// Whether the furthest reader is near this byte.
    fn is_followed_at(&self, offset: u64) -> bool {
        offset < self.demand.saturating_add(self.shares.window() / LEAD)
    }

    /// The bytes that a reader waits for, of several readers the first, of what is or will be held.
    fn waited_for(&self) -> Option<Range<u64>> {
        let held = self.window.as_ref()?.range();
        self.standing.range((held.start, 0)..).next().map(|((first, end), _)| *first..*end)
    }

    /// Whether the block at `offset` is known from what went out before.
    fn is_proved_at(&self, offset: u64) -> bool {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner).went_out(offset / BLOCK)
    }

    /// [`Download::look`] where what comes goes past the cache.
    pub(super) fn look_past(&mut self, fixity: Fixity, offset: u64, length: u32, may_jump: bool) -> Look {
        if !self.may_go_on() || self.frontier.saturating_add(BLOCK) >= self.limit(fixity) {
            // It stood still for want of a reader, and that is not the server's fault.
            self.moved = Instant::now();
        }
        let wait = Look::Wait(self.moved);
        let Some(whole_length) = self.length else { return wait };
        let range = offset.min(whole_length)..offset.saturating_add(u64::from(length)).min(whole_length);
        let Some(window) = self.window.as_ref().filter(|_| !range.is_empty()) else { return wait };
        let is_behind = range.start < window.range().start;
        let is_far = is_behind || self.is_far(range.start);
        if let Some(origin) = self.origin.as_ref().filter(|_| is_far && may_jump && !self.whole) {
            if !is_behind {
                // Should it come back it begins anew. Who reads what has gone past says nothing of those who go on.
                self.followed_from = self.demand;
            }
            return Look::Jump(Jump { origin: origin.clone(), attempt: self.attempt, range });
        }
        if is_behind {
            self.is_asked_again = true;
            return wait;
        }
        let bytes = window.read(&range);
        self.demand = self.demand.max(range.end);
        let Some(bytes) = bytes else { return wait };
        let Some(digests) = self.written(&range).map(<[u128]>::to_vec) else { return wait };
        let may_go_out =
            !self.whole && !self.contradicted && range.end <= releasable(fixity, self.length, self.frontier);
        let first = range.start / BLOCK;
        if self.holds(first, &digests) || (may_go_out && self.record(first, &digests)) {
            Look::Bytes(vec![bytes])
        } else {
            wait
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::download::handed::{Bonds, Kept};
    use crate::content::fixity::WHOLE_LIMIT;

    #[test]
    fn the_end_of_what_went_past_goes_out_no_sooner_than_its_verdict_is_recorded() {
        let download = Download::new(Fixity::Stream, Kept::default(), Bonds::default(), false);
        download.pass_by(&Arc::default());
        download.announce(Some(WHOLE_LIMIT + 5), false, None);
        let blocks = (0..WHOLE_LIMIT / BLOCK).map(|_| Bytes::from(vec![1; BLOCK as usize]));
        for (number, bytes) in (1..).zip(blocks.chain([Bytes::from_static(b"whole")])) {
            download.pass(bytes);
            download.advance(None, &[number], (number as u64 * BLOCK).min(WHOLE_LIMIT + 5));
        }

        assert!(download.agrees() && download.passed().is_some());
        assert!(matches!(download.look(WHOLE_LIMIT, 5, false), Look::Wait(_)), "right, but nobody can find that yet");
        download.bind_later();
        assert!(matches!(download.look(WHOLE_LIMIT, 5, false), Look::Bytes(_)));
    }
}
