//! A download as its task and its readers share it: the state, who is notified of its changes, and its priority.

use super::demand::Bounds;
use super::outcome::Outcome;
use super::state::{DownloadState, Look, asked};
use crate::content::blocks::memory::Window;
use crate::content::blocks::{BlockMap, Sink};
use crate::content::store::{EvictionPolicy, Moment, ObjectKey, StoreError};
use crate::content::{Content, Fixity};
use crate::platform::ino::Ino;
use crate::source::http::{KnownPause, Priority, Requester};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout_at;

/// Purpose for which a download is joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joining {
    /// A read: the process, the first byte and the number of bytes.
    Read(Requester, u64, u32),
    /// Its length, by this process.
    Size(Requester),
    /// A prefetch that began then, for a process that is expected to read it; without one it is work in the background.
    Ahead(Moment, Option<Requester>),
}

/// One download of one inode's object.
pub(in crate::content) struct Download {
    state: Mutex<DownloadState>,
    /// Held while the block map of an attempt is made. Locked before the state.
    opening: Mutex<()>,
    /// Notifies readers of every change that they can see.
    changes: watch::Sender<()>,
    /// The byte up to which the stream comes: [`DownloadState::limit`]. Notifies the task.
    limit: watch::Sender<u64>,
    /// The first reader that asked for its bytes or its size: from then on the download continues to its end, and its requests are
    /// those of a reader.
    requester: watch::Sender<Option<Requester>>,
    /// When the first prefetch that joined it began.
    prefetched: OnceLock<Moment>,
    /// The first process that is expected to read it.
    expected: OnceLock<Requester>,
    task: OnceLock<AbortHandle>,
    /// The pause that all its requests know of.
    pause: KnownPause,
}

impl Download {
    /// Makes a download of nothing yet. `folder` is for digests that are too many for memory.
    pub(super) fn new(fixity: Fixity, bounds: Bounds, folder: Arc<Path>) -> Download {
        let state = DownloadState::new(fixity, bounds, folder);
        Download {
            limit: watch::Sender::new(state.limit()),
            state: Mutex::new(state),
            opening: Mutex::default(),
            changes: watch::Sender::default(),
            requester: watch::Sender::default(),
            prefetched: OnceLock::new(),
            expected: OnceLock::new(),
            task: OnceLock::new(),
            pause: KnownPause::default(),
        }
    }

    /// The time in which its requests have waited for known pauses.
    pub(super) fn pause(&self) -> &KnownPause {
        &self.pause
    }

    /// The state, for looks and changes that no reader waits for.
    pub(in crate::content) fn state(&self) -> MutexGuard<'_, DownloadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and notifies the task where more or less is wanted by it.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut DownloadState) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        let limit = state.limit();
        // Under the lock, so that an older limit does not replace a newer one.
        self.limit.send_if_modified(|before| std::mem::replace(before, limit) != limit);
        result
    }

    /// Changes the state as [`Download::change`] does, and notifies the readers.
    pub(super) fn publish<T>(&self, change: impl FnOnce(&mut DownloadState) -> T) -> T {
        let result = self.change(change);
        self.changes.send_replace(());
        result
    }

    /// Notifies of the changes from now on.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Waits for the next of the `changes`. False: the time is over in which something must arrive; see [`DownloadState::deadline`].
    pub(super) async fn next_change(&self, changes: &mut watch::Receiver<()>, begun: Instant, stall: Duration) -> bool {
        let deadline = self.state().deadline(begun, &self.pause, stall);
        if Instant::now() >= deadline {
            return false;
        }
        // The next look shows whether it passed or something changed.
        let _ = timeout_at(deadline.into(), changes.changed()).await;
        true
    }

    /// Waits until an attempt is not under way any more.
    pub(super) async fn until_over(&self, attempt: u64) {
        let mut changes = self.changes();
        // The sender is part of this.
        let _ = changes.wait_for(|()| self.state().is_over(attempt)).await;
    }

    /// The byte up to which the stream is to come, and its changes from now on.
    pub(super) fn limit(&self) -> watch::Receiver<u64> {
        self.limit.subscribe()
    }

    /// A process begins to wait.
    pub(super) fn join(&self, joining: Joining) {
        match joining {
            Joining::Read(requester, ..) | Joining::Size(requester) => {
                self.requester.send_if_modified(|first| {
                    let is_first = first.is_none();
                    first.get_or_insert(requester);
                    is_first
                });
            }
            Joining::Ahead(begun, expected) => {
                self.prefetched.get_or_init(|| begun);
                if let Some(process) = expected {
                    self.expected.get_or_init(|| process);
                }
            }
        }
        self.change(|state| match joining {
            Joining::Read(_, offset, length) => state.demand.await_range(asked(offset, length)),
            Joining::Size(_) => state.demand.await_size(),
            Joining::Ahead(..) => state.demand.add_prefetch(),
        });
    }

    /// A prefetch waits no longer. Whether nothing else does; then no reader may join it any more.
    pub(super) fn leave(&self) -> bool {
        self.change(|state| state.demand.remove_prefetch()) == 0 && self.demanded().is_none()
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

    /// Returns what may be evicted for its object: anything once a reader asked for it.
    pub(super) fn eviction_policy(&self) -> EvictionPolicy {
        match (self.demanded(), self.prefetched.get()) {
            (None, Some(begun)) => EvictionPolicy::UnusedSince(*begun),
            _ => EvictionPolicy::Any,
        }
    }

    /// Notes the task that drives it.
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

    /// See [`DownloadState::look`].
    pub(super) fn look(&self, offset: u64, length: u32, may_jump: bool, refused: Option<u64>) -> Look {
        let mut state = self.state();
        let found = state.look(offset, length, may_jump, refused);
        let limit = state.limit();
        // Where a reader waits the task looks what for, although it is to come no further.
        let waits = matches!(found, Look::Wait);
        self.limit.send_if_modified(|before| std::mem::replace(before, limit) != limit || waits);
        found
    }

    /// The block map of an attempt, made under `key` before its first block. Blocks on the disk.
    pub(super) fn open_map(
        &self,
        content: &Content,
        key: &ObjectKey,
        ino: Ino,
        attempt: u64,
    ) -> Result<Arc<BlockMap>, StoreError> {
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.state();
        if state.is_over(attempt) {
            return Err(StoreError::Finished { key: key.clone() });
        }
        if let Some(map) = state.map(attempt).filter(|map| map.sink() == state.sink) {
            return Ok(map);
        }
        let (sink, length, window, mark) = (state.sink, state.length(), state.window, state.mark());
        drop(state);
        let (cache, holder) = (&content.local.block_cache, (ino, attempt));
        let map = Arc::new(match sink {
            Sink::Store => {
                let partial = content.local.store.begin(key, length, self.eviction_policy())?;
                BlockMap::on_disk(Arc::new(partial), cache, holder)
            }
            Sink::Memory => BlockMap::in_memory(Window::new(length, window), cache, holder),
        });
        map.keep_under(mark.as_deref(), length);
        let mut state = self.state();
        if state.is_over(attempt) {
            map.discard();
            return Err(StoreError::Finished { key: key.clone() });
        }
        state.set_map(&map);
        Ok(map)
    }

    /// The block map of an attempt for extents where none can be opened: blocks that memory has room for.
    pub(super) fn map_without_room(&self, content: &Content, ino: Ino, attempt: u64) -> Option<Arc<BlockMap>> {
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        if state.is_over(attempt) {
            return None;
        }
        Some(state.map(attempt).unwrap_or_else(|| {
            let map = Arc::new(BlockMap::in_memory(Window::closed(), &content.local.block_cache, (ino, attempt)));
            state.set_map(&map);
            map
        }))
    }

    /// See [`DownloadState::close`].
    pub(super) fn close(&self) {
        let closed = self.state().close();
        drop(closed);
    }

    /// How the download ended, if it did.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.state().outcome().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { unread: 1 << 20, unsized_body: 1 << 20 };

    #[test]
    fn a_download_is_left_by_its_last_prefetch_unless_demanded() {
        let download = || Arc::new(Download::new(Fixity::Stream, BOUNDS, Path::new("/nowhere").into()));
        let ahead = Joining::Ahead(Moment::now(), Some(Requester(7)));
        let prefetched = download();
        prefetched.join(ahead);
        prefetched.join(ahead);
        assert!(!prefetched.leave());
        assert!(prefetched.leave());

        let demanded = download();
        demanded.join(ahead);
        let priority = demanded.priority();
        assert_eq!(priority.reader(), None, "a prefetch");
        demanded.join(Joining::Read(Requester(8), 0, 1));
        demanded.join(Joining::Size(Requester(9)));
        assert_eq!((priority.reader(), demanded.priority().reader()), (Some(Requester(8)), Some(Requester(8))));
        assert!(!demanded.leave());
    }
}
