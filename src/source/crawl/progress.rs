//! How far a walk has come.

use std::sync::{Mutex, PoisonError};

/// Bytes between two reports of progress.
const REPORT_BYTES: u64 = 64 * 1024;

/// What has been fetched so far, for whoever shows progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Documents complete.
    pub documents: u64,
    /// Documents known of.
    pub known: u64,
    /// Bytes transferred.
    pub bytes: u64,
}

/// Tells the progress: each change of a count, and bytes now and then.
pub(super) struct Reporter<'a> {
    progress: &'a (dyn Fn(Progress) + Send + Sync),
    /// What was counted, and the bytes at the last report.
    counted: Mutex<(Progress, u64)>,
}

impl<'a> Reporter<'a> {
    pub(super) fn new(progress: &'a (dyn Fn(Progress) + Send + Sync)) -> Reporter<'a> {
        Reporter { progress, counted: Mutex::default() }
    }

    pub(super) fn known(&self, documents: usize) {
        self.count(|counted| counted.known = documents as u64);
    }

    pub(super) fn complete(&self) {
        self.count(|counted| counted.documents += 1);
    }

    pub(super) fn received(&self, bytes: u64) {
        self.count(|counted| counted.bytes += bytes);
    }

    fn count(&self, change: impl FnOnce(&mut Progress)) {
        let report = {
            let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
            let before = counted.0;
            change(&mut counted.0);
            let now = counted.0;
            let counts_changed = (now.documents, now.known) != (before.documents, before.known);
            (counts_changed || now.bytes >= counted.1 + REPORT_BYTES).then(|| {
                counted.1 = now.bytes;
                now
            })
        };
        if let Some(report) = report {
            (self.progress)(report);
        }
    }
}
