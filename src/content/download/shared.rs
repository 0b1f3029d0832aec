//! A download as its task and its readers share it: the state, who is notified of its changes, and its priority.

use super::look::{Here, Jump, Look};
use super::object::{CachedObject, Origin, Version};
use super::outcome::Outcome;
use super::served::{Bonds, Served};
use super::state::{State, whole_blocks};
use crate::content::store::{EvictionPolicy, Moment, Partial};
use crate::content::{ContentError, Fixity};
use crate::source::http::{Priority, Requester};
use bytes::Bytes;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// What a download is joined for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joining {
    /// So many bytes from this one on.
    Read(u64, u32),
    /// Its length.
    Size,
    /// A prefetch that began then, for a process that is expected to read it; without one it is work in the background.
    Ahead(Moment, Option<Requester>),
}

/// One download of one inode's object.
pub(in crate::content) struct Download {
    state: Mutex<State>,
    /// Notifies readers of every change that they can see.
    changes: watch::Sender<()>,
    /// The byte up to which the stream comes: [`State::limit`]. Notifies the task.
    limit: watch::Sender<u64>,
    /// The first reader that asked for its bytes or its size: from then on the download goes on to its end, and its requests are
    /// those of a reader.
    requester: watch::Sender<Option<Requester>>,
    /// When the first prefetch that joined it began.
    prefetched: OnceLock<Moment>,
    /// The first process that is expected to read it.
    expected: OnceLock<Requester>,
    task: OnceLock<AbortHandle>,
}

impl Download {
    /// Of nothing yet. `folder` is where digests are kept that are too many for memory.
    pub(super) fn new(fixity: Fixity, folder: Arc<Path>) -> Download {
        let state = State::new(fixity, folder);
        Download {
            limit: watch::Sender::new(state.limit()),
            state: Mutex::new(state),
            changes: watch::Sender::default(),
            requester: watch::Sender::default(),
            prefetched: OnceLock::new(),
            expected: OnceLock::new(),
            task: OnceLock::new(),
        }
    }

    /// The state, for looks and changes that no reader waits for.
    pub(in crate::content) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and notifies the task where more or less is wanted by it.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        let limit = state.limit();
        // Under the lock, so that an older limit does not replace a newer one.
        self.limit.send_if_modified(|before| std::mem::replace(before, limit) != limit);
        result
    }

    /// The same, and notifies the readers.
    fn publish<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = self.change(change);
        self.changes.send_replace(());
        result
    }

    /// Notifies of the changes from now on.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The byte up to which the stream is to come, and its changes from now on.
    pub(super) fn limit(&self) -> watch::Receiver<u64> {
        self.limit.subscribe()
    }

    /// See [`State::bind`].
    pub(super) fn bind(&self, served: Served, bonds: Bonds, is_doubted: bool) {
        let was_passed = served.was_passed;
        self.change(|state| {
            state.bind(served, bonds, is_doubted);
            if was_passed {
                state.discard();
            }
        });
    }

    /// `requester` begins to wait. Each [`Joining::Ahead`] ends with [`Download::leave`].
    pub(super) fn join(self: &Arc<Self>, joining: Joining, requester: Requester) {
        if let Joining::Ahead(begun, expected) = joining {
            self.prefetched.get_or_init(|| begun);
            if let Some(process) = expected {
                self.expected.get_or_init(|| process);
            }
            return self.change(State::add_prefetch);
        }
        self.requester.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(requester);
            is_first
        });
    }

    /// A prefetch waits no longer. Whether nothing else does; then no reader may join it any more.
    pub(super) fn leave(&self) -> bool {
        self.change(State::remove_prefetch) == 0 && self.demanded().is_none()
    }

    /// The first reader that asked for its bytes or its size.
    pub(super) fn demanded(&self) -> Option<Requester> {
        *self.requester.borrow()
    }

    /// The priority of its requests, which rises when a reader joins.
    pub(super) fn priority(&self) -> Priority {
        match (self.demanded(), self.expected.get()) {
            (Some(requester), _) => Priority::Reader(requester),
            (None, Some(process)) => Priority::Prefetch(*process, self.requester.subscribe()),
            (None, None) => Priority::Background(self.requester.subscribe()),
        }
    }

    /// What may be evicted for its object: anything once a reader asked for it.
    pub(super) fn eviction_policy(&self) -> EvictionPolicy {
        match (self.demanded(), self.prefetched.get()) {
            (None, Some(begun)) => EvictionPolicy::UnusedSince(*begun),
            _ => EvictionPolicy::Any,
        }
    }

    /// It is driven by this task.
    pub(super) fn run_by(&self, task: AbortHandle) {
        // Once: by the caller that put it into the table.
        let _ = self.task.set(task);
    }

    /// Ends it without an outcome: no request waits for it, and none can find it any more.
    pub(super) fn cancel(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    /// A reader waits for these bytes until the result is dropped.
    pub(super) fn await_range(self: &Arc<Self>, offset: u64, length: u32) -> Waiting {
        let range = (offset, offset.saturating_add(u64::from(length)));
        self.change(|state| state.await_range(range));
        Waiting { download: Arc::clone(self), range }
    }

    /// A size or a verdict is waited for, whether readers follow or not.
    pub(super) fn await_whole(&self) {
        self.change(State::await_whole);
    }

    /// See [`State::look`].
    pub(super) fn look(&self, offset: u64, length: u32, may_jump: bool, refused: Option<u64>) -> Look {
        let mut state = self.state();
        let found = state.look(offset, length, may_jump, refused);
        let limit = state.limit();
        // Where a reader waits the task looks what for, although it is to come no further.
        let waits = matches!(found, Look::Wait(_));
        self.limit.send_if_modified(|before| std::mem::replace(before, limit) != limit || waits);
        found
    }

    /// See [`State::hand_out`].
    #[must_use]
    pub(super) fn hand_out(&self, here: &Here, digests: &[u128]) -> bool {
        self.change(|state| state.hand_out(here.attempt, &here.blocks, digests))
    }

    /// See [`State::hand_out_random`].
    #[must_use]
    pub(super) fn hand_out_random(&self, jump: &Jump, digests: &[u128]) -> bool {
        let blocks = whole_blocks(&jump.range, jump.origin.length);
        self.change(|state| state.hand_out_random(jump.attempt, &blocks, digests))
    }

    /// See [`State::announce`].
    pub(super) fn announce(&self, length: Option<u64>, is_withheld: bool, origin: Option<Origin>) {
        self.publish(|state| state.announce(length, is_withheld, origin));
    }

    /// See [`State::resume`].
    pub(super) fn resume(&self, length: Option<u64>, version: &Version, partial: &Arc<Partial>) {
        let frontier = partial.length();
        self.publish(|state| state.resume(length, version, partial, frontier));
    }

    /// See [`State::show`].
    pub(super) fn show(&self, size: u64) {
        self.change(|state| state.show(size));
    }

    /// See [`State::discard`].
    pub(super) fn discard(&self) {
        self.change(State::discard);
    }

    /// More can be read: up to `frontier`, with the digests of its blocks.
    pub(super) fn advance(
        &self,
        partial: Option<&Arc<Partial>>,
        bytes: Option<Bytes>,
        frontier: u64,
        digests: &[u128],
    ) {
        self.publish(|state| {
            state.digest(digests);
            state.advance(partial, bytes, frontier);
        });
    }

    /// What was here from an earlier download is hashed: the digests of its next blocks.
    pub(super) fn digest(&self, digests: &[u128]) {
        self.publish(|state| {
            state.digest(digests);
            state.touch();
        });
    }

    /// See [`State::restart`].
    pub(super) fn restart(&self, is_doubted: bool) {
        self.publish(|state| state.restart(is_doubted));
    }

    /// See [`State::close`].
    pub(super) fn close(&self) {
        let closed = self.state().close();
        drop(closed);
    }

    /// The end of the download.
    pub(super) fn end(&self, outcome: Outcome) {
        self.publish(|state| state.end(outcome));
    }

    /// How the download ended, if it did.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.state().outcome().cloned()
    }

    /// Whether this attempt is not under way any more.
    pub(super) fn is_over(&self, attempt: u64) -> bool {
        let state = self.state();
        state.attempt() != attempt || state.outcome().is_some()
    }

    /// Waits for the end of the download, which comes by itself.
    pub(super) async fn ended(&self) -> Outcome {
        let mut changes = self.changes();
        loop {
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            // The sender lives as long as this.
            let _ = changes.changed().await;
        }
    }
}

impl Outcome {
    /// The object or why there is none.
    pub(super) fn into_result(self) -> Result<CachedObject, ContentError> {
        match self {
            Outcome::Done(object) => Ok(object),
            Outcome::Failed(error) | Outcome::Yielded(error) => Err(error),
        }
    }
}

/// A reader that waits.
pub(super) struct Waiting {
    download: Arc<Download>,
    range: (u64, u64),
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.download.change(|state| state.leave_range(self.range));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_is_left_by_its_last_prefetch_unless_demanded() {
        let download = || Arc::new(Download::new(Fixity::Stream, Path::new("/nowhere").into()));
        let ahead = Joining::Ahead(Moment::now(), Some(Requester(7)));
        let prefetched = download();
        prefetched.join(ahead, Requester(7));
        prefetched.join(ahead, Requester(7));
        assert!(!prefetched.leave());
        assert!(prefetched.leave());

        let demanded = download();
        demanded.join(ahead, Requester(7));
        let priority = demanded.priority();
        assert_eq!(priority.reader(), None, "a prefetch");
        demanded.join(Joining::Read(0, 1), Requester(8));
        demanded.join(Joining::Size, Requester(9));
        assert_eq!((priority.reader(), demanded.priority().reader()), (Some(Requester(8)), Some(Requester(8))));
        assert!(!demanded.leave());
    }
}
