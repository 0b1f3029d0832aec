//! Prefetches: into the cache folder alone, with the lowest priority.

use super::Joined;
use super::object::CachedObject;
use super::outcome::Outcome;
use super::shared::{Download, Joining};
use super::state::Sink;
use crate::content::block_cache::Key;
use crate::content::fixity::WHOLE_LIMIT;
use crate::content::metadata::Observation;
use crate::content::store::Moment;
use crate::content::{Content, ContentError, FetchSpec, Verified};
use crate::source::http::Requester;
use fuser::INodeNo;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// What was used within this time is not evicted for what is fetched ahead of a reader.
const SPARED: Duration = Duration::from_secs(5);

/// What [`Content::prefetch`] found or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetched {
    /// It was in the cache.
    Here,
    /// It is there now, and has so many bytes.
    Fetched(u64),
}

impl Content {
    /// Brings the whole of `wanted` into the cache folder, verified as for a reader.
    ///
    /// Its priority is the lowest there is: how many are under way is for the caller to bound. Only what was last used before `begun` is
    /// evicted for it, and where that makes no room the error is [`ContentError::is_full`], rather than that bytes are streamed past the
    /// cache. `begun` is one moment for all that belongs together: what one such prefetch brought does not go for the next. A read of
    /// the same object joins the download and makes it its own. Dropped, the download ends unless another request waits for it; what is
    /// here stays where it can be gone on with.
    pub async fn prefetch(self: &Arc<Self>, wanted: &FetchSpec, begun: Moment) -> Result<Prefetched, ContentError> {
        if let Some(CachedObject::Store(_)) = self.find(wanted) {
            return Ok(Prefetched::Here);
        }
        let brought = self.bring(wanted, (begun, None), u64::MAX).await?;
        Ok(brought.map_or(Prefetched::Here, Prefetched::Fetched))
    }

    /// The same for a file that a reader is expected to read next. How many are under way is for the
    /// caller to bound, so that readers find connections; what was used within the last seconds is not evicted for it.
    /// `None`: it was here, or is larger than `most` bytes, which shows at its head.
    pub async fn fetch_ahead(self: &Arc<Self>, wanted: &FetchSpec, most: u64) -> Result<Option<u64>, ContentError> {
        self.bring(wanted, (Moment::ago(SPARED), Some(wanted.requester)), most).await
    }

    /// Whether the bytes of `ino` are on this machine or on their way, without opening a file.
    pub fn is_here(&self, ino: INodeNo) -> bool {
        let is_under_way = self.download_of(ino).is_some();
        let in_memory = || self.block_cache.peek(&Key::whole(ino)).is_some();
        let is_kept = |observation: Observation| {
            observation.verified != Verified::Failed && observation.object.is_some_and(|key| self.disk.has(&key))
        };
        is_under_way || in_memory() || self.observed.get(ino).is_some_and(is_kept)
    }

    /// Bytes fetched; `None` where they were here, or are more than `most`.
    async fn bring(
        self: &Arc<Self>,
        wanted: &FetchSpec,
        (begun, expected): (Moment, Option<Requester>),
        most: u64,
    ) -> Result<Option<u64>, ContentError> {
        let download = match self.join(wanted, Joining::Ahead(begun, expected))? {
            Joined::Here(CachedObject::Store(_)) => return Ok(None),
            Joined::Here(_) => return Err(self.no_room()),
            Joined::UnderWay(download, _) => download,
        };
        let waiting = Prefetch { content: self, ino: wanted.ino, download };
        match waiting.landed(wanted, most).await? {
            Some(CachedObject::Store(object)) => Ok(Some(object.length())),
            Some(_) => Err(self.no_room()),
            None => Ok(None),
        }
    }

    /// The size of what is fetched anyway, or is about to be read: it comes with the bytes. `None` where they are too many to
    /// wait for, or are not kept.
    pub(super) async fn size_of_body(self: &Arc<Self>, wanted: &FetchSpec) -> Option<Result<u64, ContentError>> {
        let download = match self.join(wanted, Joining::Size) {
            Ok(Joined::Here(object)) => return Some(Ok(object.length())),
            Ok(Joined::UnderWay(download, _)) => download,
            Err(error) => return Some(Err(error)),
        };
        let mut changes = download.changes();
        loop {
            match download.outcome() {
                Some(Outcome::Yielded(_)) => return None,
                Some(outcome) => return Some(outcome.into_result().map(|object| object.length())),
                None => {}
            }
            let is_large = download.state().length().is_some_and(|bytes| bytes > WHOLE_LIMIT);
            if is_large || download.state().sink() == Sink::Discard {
                return None;
            }
            // A download ends by itself; a caller that cannot wait for that has a deadline of its own.
            let _ = changes.changed().await;
        }
    }

    /// Bytes that are here of a download under way.
    pub fn arrived(&self, ino: INodeNo) -> u64 {
        self.download_of(ino).map_or(0, |download| download.state().frontier())
    }
}

/// One prefetch waiting for a download.
struct Prefetch<'c> {
    content: &'c Arc<Content>,
    ino: INodeNo,
    download: Arc<Download>,
}

impl Prefetch<'_> {
    /// Waits for the end, as long as something arrives; `None` once more than `most` bytes are announced.
    async fn landed(&self, wanted: &FetchSpec, most: u64) -> Result<Option<CachedObject>, ContentError> {
        let mut changes = self.download.changes();
        loop {
            if let Some(outcome) = self.download.outcome() {
                return outcome.into_result().map(Some);
            }
            if self.download.state().length().is_some_and(|bytes| bytes > most) {
                return Ok(None);
            }
            let deadline = self.download.state().moved() + self.content.config.stall;
            if Instant::now() >= deadline {
                return Err(ContentError::Stalled { uri: wanted.uri.clone() });
            }
            // The next look shows whether it passed or something changed.
            let _ = tokio::time::timeout_at(deadline.into(), changes.changed()).await;
        }
    }
}

impl Drop for Prefetch<'_> {
    fn drop(&mut self) {
        // Under the lock: a reader finds the download with a request waiting, or not at all.
        let mut in_flight = self.content.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        let is_left = self.download.leave();
        let is_it = in_flight.get(&self.ino).is_some_and(|download| Arc::ptr_eq(download, &self.download));
        if is_left && is_it {
            in_flight.remove(&self.ino);
            drop(in_flight);
            self.download.cancel();
        }
    }
}
