//! How far a crawl has come.

use std::sync::{Mutex, PoisonError};

/// What has been fetched so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Documents complete.
    pub documents: u64,
    /// Documents known of.
    pub known: u64,
    /// Bytes transferred.
    pub bytes: u64,
}

/// Reports every change of a count.
pub(super) struct Reporter<'a> {
    report: &'a (dyn Fn(Progress) + Send + Sync),
    progress: Mutex<Progress>,
}

impl<'a> Reporter<'a> {
    pub(super) fn new(report: &'a (dyn Fn(Progress) + Send + Sync)) -> Reporter<'a> {
        Reporter { report, progress: Mutex::default() }
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut Progress)) {
        let now = {
            let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut progress);
            *progress
        };
        (self.report)(now);
    }
}
