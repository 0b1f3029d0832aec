//! Fetches ahead of every reader: into the cache folder alone, and only while nobody's read needs what they would take.

use super::held::Held;
use super::state::Download;
use super::{Joined, Joining};
use crate::content::fixity::WHOLE_LIMIT;
use crate::content::metadata::Observation;
use crate::content::store::Moment;
use crate::content::{Content, ContentError, FetchSpec, Verified};
use crate::source::http::Requester;
use fuser::INodeNo;
use std::io;
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
    /// Its priority is the lowest there is. One host is asked for so many such fetches at once that reads find a place; only what was last used before `begun` is evicted for it, and where that makes no room
    /// [`ContentError::is_full`] tells, rather than that bytes go past the cache. Whatever `begun` is, it is one moment for
    /// all that belongs together: what one such fetch brought does not go for the next. A read of the same object joins
    /// the fetch and makes it its own. Dropped, the fetch ends unless somebody else waits for it; what has come is kept
    /// where it can be gone on with.
    pub async fn prefetch(self: &Arc<Self>, wanted: &FetchSpec, begun: Moment) -> Result<Prefetched, ContentError> {
        if let Some(Held::Store(object)) = self.find(wanted) {
            object.forget_bytes();
            return Ok(Prefetched::Here);
        }
        // Of nobody: whoever asks for many files ahead waits for none of them.
        let _turn = self.ahead.take(wanted.uri.authority(), Requester::default()).await;
        let brought = self.bring(wanted, begun, u64::MAX).await?;
        Ok(brought.map_or(Prefetched::Here, Prefetched::Fetched))
    }

    /// The same for a file that somebody is expected to read next, who is to find it here. How many are under way is for the
    /// caller to bound, so that readers find connections; what was used within the last seconds is not evicted for it.
    /// `None`: it was here, or is larger than `most` bytes, which shows when it begins to come.
    pub async fn fetch_ahead(self: &Arc<Self>, wanted: &FetchSpec, most: u64) -> Result<Option<u64>, ContentError> {
        self.bring(wanted, Moment::ago(SPARED), most).await
    }

    /// Whether the bytes of `ino` are on this machine or on their way, as far as that can be told without opening a file.
    pub fn is_here(&self, ino: INodeNo) -> bool {
        let is_under_way = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&ino);
        let in_memory = || self.uncached.peek(ino).is_some();
        let is_kept = |observation: Observation| {
            observation.verified != Verified::Failed && observation.object.is_some_and(|key| self.disk.has(&key))
        };
        is_under_way || in_memory() || self.observed.get(ino).is_some_and(is_kept)
    }

    /// Bytes fetched; `None` where they were here, or are more than `most`.
    async fn bring(
        self: &Arc<Self>,
        wanted: &FetchSpec,
        begun: Moment,
        most: u64,
    ) -> Result<Option<u64>, ContentError> {
        let download = match self.join(wanted, Joining::Ahead(begun))? {
            Joined::Here(Held::Store(_)) => return Ok(None),
            Joined::Here(_) => return Err(self.no_room()),
            Joined::UnderWay(download) => download,
        };
        let waiting = Waiting { content: self, ino: wanted.ino, download };
        match waiting.landed(wanted, most).await? {
            Some(Held::Store(object)) => Ok(Some(object.length())),
            Some(Held::Memory(_) | Held::Passed(_)) => Err(self.no_room()),
            None => Ok(None),
        }
    }

    /// The size of what is fetched anyway, or is about to be read: it comes with the bytes. `None` where they are too many to
    /// wait for, or go past the cache.
    pub(super) async fn size_of_body(self: &Arc<Self>, wanted: &FetchSpec) -> Option<Result<u64, ContentError>> {
        let download = match self.join(wanted, Joining::Size) {
            Ok(Joined::Here(held)) => return Some(Ok(held.length())),
            Ok(Joined::UnderWay(download)) => download,
            Err(error) => return Some(Err(error)),
        };
        loop {
            let changed = download.changed().notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match download.outcome() {
                Some(Err(error)) if download.gave_way(&error) => return None,
                Some(outcome) => return Some(outcome.map(|held| held.length())),
                None => {}
            }
            if download.is_passing() || download.announced().is_some_and(|bytes| bytes > WHOLE_LIMIT) {
                return None;
            }
            // A download ends by itself; who cannot wait for that has a deadline of its own.
            changed.await;
        }
    }

    /// Bytes that have come of a fetch under way.
    pub fn arrived(&self, ino: INodeNo) -> u64 {
        let download = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).get(&ino).cloned();
        download.map_or(0, |download| download.frontier())
    }

    pub(super) fn no_room(&self) -> ContentError {
        self.unreadable(io::ErrorKind::StorageFull.into())
    }
}

/// One prefetch waiting for a download.
struct Waiting<'c> {
    content: &'c Arc<Content>,
    ino: INodeNo,
    download: Arc<Download>,
}

impl Waiting<'_> {
    /// Waits for the end, as long as something arrives; `None` once more than `most` bytes are announced.
    async fn landed(&self, wanted: &FetchSpec, most: u64) -> Result<Option<Held>, ContentError> {
        loop {
            let changed = self.download.changed().notified();
            tokio::pin!(changed);
            // Registered before the look: what happens between the two is not missed.
            changed.as_mut().enable();
            if let Some(outcome) = self.download.outcome() {
                return outcome.map(Some);
            }
            if self.download.announced().is_some_and(|bytes| bytes > most) {
                return Ok(None);
            }
            let deadline = self.download.moved() + self.content.config.stall;
            if Instant::now() >= deadline {
                return Err(ContentError::Stalled { uri: wanted.uri.clone() });
            }
            // Whether it passed or something changed, the next look tells.
            let _ = tokio::time::timeout_at(deadline.into(), changed).await;
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // Under the lock: who looks for the download finds it with somebody waiting, or not at all.
        let mut in_flight = self.content.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        let is_left = self.download.urgency().leave();
        let is_it = in_flight.get(&self.ino).is_some_and(|download| Arc::ptr_eq(download, &self.download));
        if is_left && is_it {
            in_flight.remove(&self.ino);
            drop(in_flight);
            self.download.urgency().give_up();
        }
    }
}
