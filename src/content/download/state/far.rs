//! Readers that are far from what has come.

use super::{Download, Jump, Phase, Progress};
use crate::content::Fixity;
use crate::content::fixity::{BLOCK, WHOLE_LIMIT, releasable};
use std::ops::Range;
use std::sync::Arc;

/// A reader so many bytes beyond what is here gets a request of its own.
const JUMP: u64 = 4 << 20;

/// The kernel reads ahead of a reader that goes on twice what the mount lets it, in any order: that is no jump.
const KERNEL_AHEAD: u64 = 8 << 20;

impl Progress {
    /// Whether a reader of `offset` rather has a request of its own than waits for the stream.
    pub(super) fn is_far(&self, offset: u64) -> bool {
        let is_followed = self.demand > self.followed_from;
        let reach = if is_followed { self.demand.saturating_add(KERNEL_AHEAD) } else { 0 };
        offset >= reach.max(self.frontier.saturating_add(JUMP))
    }
}

impl Download {
    /// What is read first of an object of `length` bytes of which nothing is announced yet, where no reader is near what is here:
    /// nobody needs what follows that, and what is read may go out as soon as its version is known.
    pub(in crate::content::download) fn far_read(&self, length: u64) -> Option<Range<u64>> {
        let (offset, bytes) = self.urgency.nearest_read().filter(|(offset, _)| *offset < length)?;
        let progress = self.progress();
        let may_go_out = !progress.doubted && (!progress.whole || progress.bound_to.is_some());
        let is_first = progress.origin.is_none() && progress.window.is_none() && !self.urgency.is_wanted_whole();
        let is_streamed = length > WHOLE_LIMIT && self.fixity != Fixity::Strict;
        (is_streamed && is_first && may_go_out && progress.is_far(offset))
            .then(|| offset..offset.saturating_add(bytes.into()).min(length))
    }

    /// Records that the blocks of `jump`, fetched aside, go out with these digests. False: they must not, for the
    /// attempt is over or another block is known in their place.
    #[must_use]
    pub(in crate::content::download) fn hand_out_aside(&self, jump: &Jump, digests: &[u128]) -> bool {
        let mut progress = self.progress();
        let unverified = releasable(self.fixity, progress.length, jump.origin.length);
        let touches_end = jump.range.end > unverified;
        if progress.attempt != jump.attempt
            || progress.whole
            || !matches!(progress.phase, Phase::UnderWay)
            || (touches_end && progress.end_is_closed)
        {
            return false;
        }
        let first = jump.range.start / BLOCK;
        let contradicts_stream = (first..).zip(digests).any(|(block, digest)| {
            let streamed = usize::try_from(block).ok().and_then(|block| progress.digests.get(block));
            streamed.is_some_and(|streamed| streamed != digest)
        });
        let may_go_out = !contradicts_stream && (!progress.contradicted || progress.holds(first, digests));
        let goes_out = may_go_out && progress.record(first, digests);
        drop(progress);
        // Where they do not, the whole may be wanted now.
        self.wanted.notify_one();
        goes_out
    }

    /// The number of the attempt under way.
    pub(in crate::content::download) fn attempt(&self) -> u64 {
        self.progress().attempt
    }

    /// A reader is served aside of the stream until what is returned is dropped.
    pub(in crate::content::download) fn serve_aside(&self) -> Arc<()> {
        Arc::clone(&self.aside)
    }

    /// Whether any reader is.
    pub(in crate::content::download) fn serves_aside(&self) -> bool {
        Arc::strong_count(&self.aside) > 1
    }
}
