//! A thread of a commit that works on what is handed to it, while the next of it is being made.

use super::super::CatalogError;
use super::super::error::io_error;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// What may wait for the thread: more would only take memory.
const WAITING: usize = 4;

/// The thread, and the way to it. What it makes of all `B` is a `T`.
pub(in crate::catalog) struct Beside<B, T> {
    batches: SyncSender<B>,
    thread: JoinHandle<Result<T, CatalogError>>,
}

impl<B: Send + 'static, T: Send + 'static> Beside<B, T> {
    /// Begins `work`, which ends when nothing more comes, or when it fails. `what` the thread does is told where it cannot be had.
    pub(in crate::catalog) fn begin(
        name: &str,
        what: &str,
        work: impl FnOnce(Receiver<B>) -> Result<T, CatalogError> + Send + 'static,
    ) -> Result<Beside<B, T>, CatalogError> {
        let (batches, coming) = sync_channel(WAITING);
        let thread = thread::Builder::new().name(name.into()).spawn(move || work(coming));
        Ok(Beside { batches, thread: thread.map_err(io_error(Path::new(what)))? })
    }

    /// Hands over the next, when the thread has come so far; `None` where the thread has ended, which it does not do before the
    /// last unless it fails.
    pub(in crate::catalog) fn hand_over(self, batch: B) -> Result<Option<Beside<B, T>>, CatalogError> {
        match self.batches.send(batch) {
            Ok(()) => Ok(Some(self)),
            // It has failed, and says why.
            Err(_) => self.end().map(|_| None),
        }
    }

    /// All is handed over: what has come of it, once the thread has ended.
    pub(in crate::catalog) fn end(self) -> Result<T, CatalogError> {
        drop(self.batches);
        self.thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}
