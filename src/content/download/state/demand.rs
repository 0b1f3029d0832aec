//! The demand for one download: which of its bytes readers and prefetches wait for, and when the last of them left.

use super::DownloadState;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How far a download goes on that no reader waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::content) struct Bounds {
    /// Bytes behind what the last reader left, or ahead of the readers of a body that cannot be gone on with later.
    pub(in crate::content) unread: u64,
    /// Bytes of a body whose length is unknown; as many behind the last reader that waited for the whole.
    pub(in crate::content) unsized_body: u64,
}

/// What readers want.
#[derive(Default)]
pub(super) struct Demand {
    /// The furthest byte that a reader of the stream has got, and from which byte on it has read at a stretch.
    pub(super) read: u64,
    pub(super) since: u64,
    /// The ranges that readers wait for, by first byte and end, and how many readers.
    pub(super) waiting: BTreeMap<(u64, u64), usize>,
    /// Those of them that are waited for in the stream, and the byte up to which it has to come for each.
    pub(super) followed: BTreeMap<(u64, u64), u64>,
    /// Readers that wait for a size.
    pub(super) sizes: usize,
    /// When the last of all readers left, and how much was here then.
    pub(super) left: Option<(Instant, u64)>,
    /// Prefetches that wait for the whole.
    pub(super) prefetches: usize,
    /// A size or a verdict is waited for, whether readers follow or not.
    pub(super) is_whole: bool,
    /// A reader waits for bytes that are not kept any more.
    pub(super) is_behind: bool,
}

impl Demand {
    /// Up to which byte readers of the stream want it.
    pub(super) fn until(&self) -> u64 {
        self.followed.values().fold(self.read, |until, end| until.max(*end))
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.sizes > 0 || !self.waiting.is_empty()
    }
}

impl DownloadState {
    /// A reader begins to wait for a range, or a prefetch for all of it.
    pub(in crate::content::download) fn await_range(&mut self, range: (u64, u64)) {
        *self.demand.waiting.entry(range).or_default() += 1;
    }

    /// The reader waits no longer.
    pub(in crate::content::download) fn leave_range(&mut self, range: (u64, u64)) {
        if let Some(readers) = self.demand.waiting.get_mut(&range) {
            *readers -= 1;
            if *readers == 0 {
                self.demand.waiting.remove(&range);
                self.demand.followed.remove(&range);
            }
        }
        self.note_left();
    }

    /// A reader begins to wait for the size.
    pub(in crate::content::download) fn await_size(&mut self) {
        self.demand.sizes += 1;
    }

    /// The reader waits no longer.
    pub(in crate::content::download) fn leave_size(&mut self) {
        self.demand.sizes = self.demand.sizes.saturating_sub(1);
        self.note_left();
    }

    pub(super) fn note_left(&mut self) {
        let here = self.attempt.frontier;
        self.demand.left = (!self.demand.is_waited_for()).then(|| (Instant::now(), here));
    }

    /// Whether nothing has waited for it for so long.
    pub(in crate::content::download) fn is_left(&self, patience: Duration) -> bool {
        self.demand.prefetches == 0 && self.demand.left.is_some_and(|(since, _)| since.elapsed() > patience)
    }

    pub(in crate::content::download) fn bounds(&self) -> Bounds {
        self.bounds
    }

    pub(in crate::content::download) fn add_prefetch(&mut self) {
        self.demand.prefetches += 1;
    }

    /// How many prefetches wait still.
    pub(in crate::content::download) fn remove_prefetch(&mut self) -> usize {
        self.demand.prefetches = self.demand.prefetches.saturating_sub(1);
        self.demand.prefetches
    }

    pub(in crate::content::download) fn await_whole(&mut self) {
        self.demand.is_whole = true;
    }

    /// Whether a reader waits for bytes that are not kept any more.
    pub(in crate::content::download) fn take_behind(&mut self) -> bool {
        std::mem::take(&mut self.demand.is_behind)
    }
}
