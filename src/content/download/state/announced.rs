//! What is known of the bytes that come: how many, of which version, and what is shown of them.

use super::{Download, Progress};
use crate::content::download::held::{Origin, Version};
use std::time::Instant;

impl Download {
    /// An attempt has its head: how long the whole is and where ranges of it may be asked.
    pub(in crate::content::download) fn announce(&self, length: Option<u64>, whole: bool, origin: Option<Origin>) {
        let mut progress = self.progress();
        if !std::mem::replace(&mut progress.has_head, true) {
            progress.moved = Instant::now();
        }
        progress.length = length;
        let version = origin.as_ref().map(Origin::version);
        if version.is_some() && version == progress.bound_to.take() {
            // It is the version that what went out belongs to, and each block is compared with it.
            progress.whole = progress.doubted;
        }
        progress.whole |= whole || progress.is_other_than_shown();
        progress.origin = origin;
        progress.is_kept = false;
        drop(progress);
        self.changed.notify_waiters();
    }

    /// Bytes of this version are here from an earlier fetch, and go out as soon as their digests are known. Where the rest may be asked
    /// is announced when the host has answered.
    pub(in crate::content::download) fn announce_kept(&self, length: Option<u64>, version: &Version) {
        let mut progress = self.progress();
        progress.length = length;
        progress.is_kept = true;
        if progress.bound_to.as_ref() == Some(version) {
            progress.whole = progress.doubted;
        }
        progress.whole |= progress.is_other_than_shown();
    }

    /// From now on this size is shown. Of a body of another nothing more goes out: its verdict helps the name's next inode alone.
    pub(in crate::content::download) fn show(&self, size: u64) {
        let mut progress = self.progress();
        progress.shown = Some(size);
        progress.whole |= progress.is_other_than_shown();
    }
}

impl Progress {
    /// Whether the body is of another length than the size that is shown.
    fn is_other_than_shown(&self) -> bool {
        self.shown.zip(self.length).is_some_and(|(shown, length)| shown != length)
    }
}
