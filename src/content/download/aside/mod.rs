//! Windows of a large object, fetched aside for readers that jump far ahead of the stream.
//!
//! They are asked under a strong ETag only and held in memory: the stream still brings the whole, and its verdict is of
//! what the stream brought. What went out of a window is remembered and must equal it. A reader waits for its own blocks, not for
//! the rest of their window; how long that is [`growth`] tells, and [`kept`] which are here.

mod growth;
mod kept;

use super::AT_HAND;
use super::held::Origin;
use super::state::{Download, Jump};
use crate::content::fixity::BLOCK;
use crate::content::{Content, Event};
use crate::source::http::{Place, Priority, Request, Requester, Status, Turns};
use crate::source::off_the_workers;
use bytes::{Bytes, BytesMut};
use fuser::INodeNo;
use kept::{Coming, Cut, Kept};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Windows under way at once, of all objects of a host: one that hangs holds up nobody else's.
const WINDOWS_UNDER_WAY: usize = 16;

/// And of all hosts: what is held of them, [`growth::LONGEST`] bytes of each at most, beside what is kept.
const WINDOWS_IN_ALL: usize = 4 * WINDOWS_UNDER_WAY;

/// The windows of all objects.
pub(in crate::content) struct Windows {
    kept: Mutex<Kept>,
    requests: Turns,
    /// Leave for windows of all hosts. Taken after the turn: who waits at a host takes nothing from the others.
    room: Arc<Semaphore>,
}

impl Default for Windows {
    fn default() -> Self {
        Windows {
            kept: Mutex::default(),
            requests: Turns::new(WINDOWS_UNDER_WAY),
            room: Arc::new(Semaphore::new(WINDOWS_IN_ALL)),
        }
    }
}

impl Windows {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a window may be fetched from `authority` for `requester`, which lasts as long as what is returned.
    pub(super) async fn leave(&self, authority: &str, requester: Requester) -> Option<(Place, OwnedSemaphorePermit)> {
        let turn = self.requests.take(authority, requester).await;
        // It is never closed.
        Some((turn, Arc::clone(&self.room).acquire_owned().await.ok()?))
    }

    /// The window of the first read of an attempt, of an object of `length` bytes.
    pub(super) fn first(read: &Range<u64>, length: u64) -> Range<u64> {
        let mut gap = blocks(read, length);
        gap.end = gap.end.min(gap.start + growth::LONGEST);
        growth::window(&gap, &[], length)
    }

    /// That window, which readers find from now on.
    pub(super) fn begin(&self, ino: INodeNo, attempt: u64, range: Range<u64>) -> Coming {
        self.kept().begin((ino, attempt), range)
    }

    /// Lets go what is here of an object of which no attempt is under way any more. Who reads it still has it.
    pub(super) fn forget(&self, ino: INodeNo) {
        self.kept().forget(ino);
    }
}

/// The whole blocks in which `range` lies.
fn blocks(range: &Range<u64>, length: u64) -> Range<u64> {
    range.start - range.start % BLOCK..range.end.next_multiple_of(BLOCK).min(length)
}

impl Content {
    /// The bytes of `jump`, recorded as handed out. `None`: they cannot be had this way, the stream must bring them.
    pub(super) async fn aside(
        self: &Arc<Self>,
        reader: (INodeNo, Requester),
        download: &Download,
        jump: &Jump,
    ) -> Option<Bytes> {
        let _serving = download.serve_aside();
        let blocks = blocks(&jump.range, jump.origin.length);
        let bytes = match self.blocks_of(reader, jump, &blocks).await {
            // A connection that was lost, it may be.
            Err(cut) if cut.is_midway => self.blocks_of(reader, jump, &blocks).await.ok()?,
            bytes => bytes.ok()?,
        };
        let digest = || bytes.chunks(BLOCK as usize).map(|block| self.block_digests.of(block)).collect();
        let digests: Vec<u128> = if bytes.len() as u64 > AT_HAND { off_the_workers(digest) } else { digest() };
        let start = (jump.range.start - blocks.start) as usize;
        let end = (jump.range.end - blocks.start) as usize;
        if !download.hand_out_aside(jump, &digests) {
            return None;
        }
        if jump.range.end > download.withheld_from() {
            // Before the answer: the kernel drops a page that is being read as soon as it is answered.
            self.tell(Event::Recheck(reader.0, jump.range.clone()));
        }
        Some(bytes.slice(start..end))
    }

    /// The bytes `blocks`, by windows that are here and new ones.
    async fn blocks_of(
        self: &Arc<Self>,
        (ino, requester): (INodeNo, Requester),
        jump: &Jump,
        blocks: &Range<u64>,
    ) -> Result<Bytes, Cut> {
        let (parts, coming) = self.windows.kept().cover((ino, jump.attempt), blocks, jump.origin.length);
        for window in coming {
            self.runtime.spawn(Arc::clone(self).fetch_window(jump.origin.clone(), window, requester));
        }
        let mut bytes = BytesMut::with_capacity((blocks.end - blocks.start) as usize);
        for part in parts {
            bytes.extend_from_slice(&part.bytes().await?);
        }
        Ok(bytes.freeze())
    }

    /// One range of the version that `origin` names.
    async fn fetch_window(self: Arc<Self>, origin: Origin, window: Coming, requester: Requester) {
        let leave = tokio::time::timeout(self.config.stall, self.windows.leave(origin.place.authority(), requester));
        let Ok(Some(_leave)) = leave.await else { return };
        let (first, last) = (origin.first + window.range.start, origin.first + window.range.end - 1);
        let mut request = Request::get(origin.place.clone(), self.head_budget(1));
        request.range = Some((first, Some(last)));
        request.if_range = Some(origin.etag.clone());
        request.priority = Priority::Reader(requester);
        let response = match self.client.send(request).await {
            Ok(response) => response,
            Err(error) => return tracing::debug!(place = %origin.place, %error, "a window cannot be fetched"),
        };
        let expected = Status::Partial { first, last, total: Some(origin.total) };
        if response.status != expected || response.etag.as_deref() != Some(&origin.etag) || response.encoding.is_some()
        {
            return tracing::debug!(place = %origin.place, status = ?response.status, "a window of another version");
        }
        window.fill(response.body, self.config.stall).await;
        self.freed.working(&self.runtime);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn windows_have_a_bound_at_each_host_and_over_all() {
        let windows = Windows::default();
        let mut under_way = Vec::new();
        let mut begin = |host: &str| {
            windows.leave(host, Requester::default()).now_or_never().flatten().map(|leave| under_way.push(leave))
        };

        for host in ["one", "two", "three", "four"] {
            // The runtime lets a task acquire only so much before it gives way.
            tokio::task::yield_now().await;
            (0..WINDOWS_UNDER_WAY).for_each(|_| assert!(begin(host).is_some()));
            assert!(begin(host).is_none());
        }
        tokio::task::yield_now().await;
        assert!(begin("five").is_none(), "all together");

        drop(under_way);
        assert!(windows.leave("five", Requester::default()).now_or_never().flatten().is_some());
    }
}
