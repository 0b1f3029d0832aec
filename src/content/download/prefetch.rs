//! Prefetches: into the cache folder alone, with the lowest priority.

use super::Joined;
use super::in_flight::Joining;
use super::object::CachedObject;
use crate::content::store::Moment;
use crate::content::{Content, ContentError, FetchSpec};
use crate::platform::ino::Ino;
use crate::source::http::Requester;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which a used object is not evicted for what is fetched ahead of a reader.
const SPARED: Duration = Duration::from_secs(5);

impl Content {
    /// Brings the whole of `spec` into the cache folder, verified as for a reader. Returns the bytes fetched; `None`: it was here.
    ///
    /// Its priority is the lowest there is; the caller bounds how many are under way. Only what was last used before `begun` is
    /// evicted for it. Where that makes no room the error is [`ContentError::is_full`], and nothing is streamed past the
    /// cache. `begun` is one moment for all that belongs together: what one such prefetch brought is not evicted for the next. A read of
    /// the same object joins the download and makes it its own. Dropped, the download ends unless another request waits for it; what is
    /// here stays where it can be resumed.
    pub async fn prefetch(self: &Arc<Self>, spec: &FetchSpec, begun: Moment) -> Result<Option<u64>, ContentError> {
        let brought = self.bring(spec, Joining::Ahead(begun, None), u64::MAX).await?;
        if brought.is_none() {
            self.offer_kept(spec);
        }
        Ok(brought)
    }

    /// Fetches a file that the process `expected` is likely to read next, and returns how many bytes it brought.
    /// `None`: it was here, or is larger than `most` bytes, as its head announces.
    /// The caller bounds how many are under way, so that readers find connections. What was used within the last seconds is not evicted for it.
    pub async fn fetch_ahead(
        self: &Arc<Self>,
        spec: &FetchSpec,
        expected: Requester,
        most: u64,
    ) -> Result<Option<u64>, ContentError> {
        self.bring(spec, Joining::Ahead(Moment::ago(SPARED), Some(expected)), most).await
    }

    /// Returns whether the host of `spec` leaves no requests for what is fetched ahead.
    pub fn is_paced(&self, spec: &FetchSpec) -> bool {
        self.client.is_paced(&spec.uri)
    }

    /// Returns whether the bytes of `ino` are on this machine or on their way, without opening a file.
    pub fn is_here(&self, ino: Ino) -> bool {
        self.table.contains(ino) || self.is_whole(ino)
    }

    /// Returns whether all bytes of `ino` are on this machine, without opening a file.
    pub fn is_whole(&self, ino: Ino) -> bool {
        self.local.is_whole(ino)
    }

    /// Bytes that are here of a download under way.
    pub fn arrived(&self, ino: Ino) -> u64 {
        self.table.get(ino).map_or(0, |download| download.state().frontier())
    }

    /// Bytes of a file that is not whole which a download would go on from, by its allocated blocks where none is under way.
    pub fn resumable(&self, spec: &FetchSpec) -> u64 {
        match self.table.get(spec.ino) {
            Some(download) => download.state().frontier(),
            None => self.local.store.partial_bytes(&self.local.partial_key(spec)),
        }
    }

    /// Bytes fetched; `None` where they were here, or are more than `most`.
    async fn bring(
        self: &Arc<Self>,
        spec: &FetchSpec,
        joining: Joining,
        most: u64,
    ) -> Result<Option<u64>, ContentError> {
        if self.local.is_in_memory(spec.ino) {
            // There was no room for it: without any by now a request would be of no use.
            let (content, size) = (Arc::clone(self), self.known_size(spec.ino));
            let has_room = tokio::task::spawn_blocking(move || content.local.store.could_hold(size).is_ok());
            if !has_room.await.unwrap_or(false) {
                return Err(self.no_room());
            }
        }
        let Joined::UnderWay(waiting) = self.join(spec, joining)? else { return Ok(None) };
        let download = &waiting.download;
        let (mut changes, begun) = (download.changes(), Instant::now());
        loop {
            match download.outcome() {
                Some(Ok(CachedObject::Store(object))) => return Ok(Some(object.length())),
                Some(Ok(_)) => return Err(self.no_room()),
                Some(Err(ended)) => return Err(ended.into()),
                None => {}
            }
            if download.state().length().is_some_and(|bytes| bytes > most) {
                return Ok(None);
            }
            if !download.next_change(&mut changes, begun, self.config.stall).await {
                return Err(ContentError::Stalled { uri: spec.uri.clone() });
            }
        }
    }
}
