//! Windows of a large object, fetched aside for readers that jump far ahead of the stream.
//!
//! They are asked under a strong ETag only and held in memory: the stream still brings the whole, and its verdict is of
//! what the stream brought. What went out of a window is remembered and must equal it.

use super::AT_HAND;
use super::flight::{Flight, Jump};
use super::held::Origin;
use super::single_flight::SingleFlight;
use super::turns::Turns;
use crate::content::Content;
use crate::content::fixity::BLOCK;
use crate::source::http::{Request, Status};
use crate::source::off_the_workers;
use bytes::{Bytes, BytesMut};
use fuser::INodeNo;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Octets of a window: a multiple of [`BLOCK`], so that no block lies in two.
const WINDOW: u64 = 1 << 20;

/// Windows kept, of all objects.
const WINDOWS_KEPT: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

/// Windows under way at once, of all objects of a host: one that hangs holds up nobody else's.
const WINDOWS_UNDER_WAY: usize = 16;

/// And of all hosts: what is held of them before they are whole.
const WINDOWS_IN_ALL: usize = 4 * WINDOWS_UNDER_WAY;

/// (inode, attempt, number of the window)
type WindowKey = (INodeNo, u64, u64);

/// The windows of all objects.
pub(in crate::content) struct Windows {
    kept: Mutex<LruCache<WindowKey, Bytes>>,
    under_way: SingleFlight<WindowKey, Option<Bytes>>,
    requests: Turns,
    /// Leave for windows of all hosts. Taken after the turn: who waits at a host takes nothing from the others.
    room: Semaphore,
}

impl Default for Windows {
    fn default() -> Self {
        Windows {
            kept: Mutex::new(LruCache::new(WINDOWS_KEPT)),
            under_way: SingleFlight::default(),
            requests: Turns::new(WINDOWS_UNDER_WAY),
            room: Semaphore::new(WINDOWS_IN_ALL),
        }
    }
}

impl Windows {
    /// Waits until a window may be fetched from `authority`, which lasts as long as what is returned.
    async fn leave(&self, authority: &str) -> Option<(OwnedSemaphorePermit, SemaphorePermit<'_>)> {
        let turn = self.requests.take(authority).await?;
        // It is never closed.
        Some((turn, self.room.acquire().await.ok()?))
    }
}

impl Content {
    /// The octets of `jump`, recorded as handed out. `None`: they cannot be had this way, the stream must bring them.
    pub(super) async fn aside(self: &Arc<Self>, ino: INodeNo, flight: &Flight, jump: &Jump) -> Option<Bytes> {
        let blocks =
            jump.range.start - jump.range.start % BLOCK..jump.range.end.next_multiple_of(BLOCK).min(jump.origin.length);
        let mut octets = BytesMut::new();
        for number in blocks.start / WINDOW..blocks.end.div_ceil(WINDOW) {
            let window = self.window((ino, jump.attempt, number), &jump.origin).await?;
            let first = number * WINDOW;
            let start = blocks.start.saturating_sub(first) as usize;
            let end = (blocks.end - first).min(window.len() as u64) as usize;
            octets.extend_from_slice(window.get(start..end)?);
        }
        let octets = octets.freeze();
        let digest = || octets.chunks(BLOCK as usize).map(|block| self.block_digests.of(block)).collect();
        let digests: Vec<u128> = if octets.len() as u64 > AT_HAND { off_the_workers(digest) } else { digest() };
        let start = (jump.range.start - blocks.start) as usize;
        let end = (jump.range.end - blocks.start) as usize;
        flight.hand_out_aside(jump, &digests).then(|| octets.slice(start..end))
    }

    async fn window(self: &Arc<Self>, key: WindowKey, origin: &Origin) -> Option<Bytes> {
        let kept = self.windows.kept.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if kept.is_some() {
            return kept;
        }
        let (content, origin) = (Arc::clone(self), origin.clone());
        let fetched = async move {
            let window = content.fetch_window(&origin, key.2).await?;
            content.windows.kept.lock().unwrap_or_else(PoisonError::into_inner).put(key, window.clone());
            Some(window)
        };
        self.windows.under_way.join(&self.runtime, key, fetched).await.flatten()
    }

    /// One range of the version that `origin` names, whole or not at all.
    async fn fetch_window(&self, origin: &Origin, number: u64) -> Option<Bytes> {
        let leave = self.windows.leave(origin.place.authority());
        let _leave = tokio::time::timeout(self.config.stall, leave).await.ok()??;
        let range = number * WINDOW..((number + 1) * WINDOW).min(origin.length);
        let range = origin.first + range.start..origin.first + range.end;
        let mut request = Request::get(origin.place.clone(), self.head_budget(1));
        request.range = Some((range.start, Some(range.end - 1)));
        request.if_range = Some(origin.etag.clone());
        let mut response = self
            .client
            .send(request)
            .await
            .inspect_err(|error| tracing::debug!(place = %origin.place, %error, "a window cannot be fetched"))
            .ok()?;
        let expected = Status::Partial { first: range.start, last: range.end - 1, total: Some(origin.total) };
        if response.status != expected || response.etag.as_deref() != Some(&origin.etag) || response.encoding.is_some()
        {
            tracing::debug!(place = %origin.place, status = ?response.status, "a window of another version");
            return None;
        }
        let octets = (range.end - range.start) as usize;
        let mut window = BytesMut::with_capacity(octets);
        while let Some(chunk) = tokio::time::timeout(self.config.stall, response.body.chunk()).await.ok()?.ok()? {
            if window.len() + chunk.len() > octets {
                return None;
            }
            window.extend_from_slice(&chunk);
        }
        (window.len() == octets).then(|| window.freeze())
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
        let mut begin = |host: &str| windows.leave(host).now_or_never().flatten().map(|leave| under_way.push(leave));

        for host in ["one", "two", "three", "four"] {
            // The runtime lets a task acquire only so much before it gives way.
            tokio::task::yield_now().await;
            (0..WINDOWS_UNDER_WAY).for_each(|_| assert!(begin(host).is_some()));
            assert!(begin(host).is_none());
        }
        tokio::task::yield_now().await;
        assert!(begin("five").is_none(), "all together");

        drop(under_way);
        assert!(windows.leave("five").now_or_never().flatten().is_some());
    }
}
