//! One extent on its way: some blocks of an attempt, requested by a range and written to its block map. Readers wait for their own
//! blocks alone.

use super::Download;
use super::incoming::IncomingBytes;
use super::object::Origin;
use super::state::Extent;
use super::writer::WriteError;
use crate::content::fixity::BLOCK;
use crate::content::{Content, ContentError, FetchSpec};
use crate::source::http::{Priority, Request, Requester, Status, Way};
use bytes::{Buf, Bytes, BytesMut};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// The time in which the connection of a range that is here comes back to its pool. A range that is requested before opens another, and
/// all wait while that one grows.
const BACK: Duration = Duration::from_millis(2);

/// The fetch of an extent. Blocks that have not arrived when this is dropped do not come.
pub(super) struct ExtentFetch {
    content: Arc<Content>,
    spec: FetchSpec,
    download: Arc<Download>,
    attempt: u64,
    /// The blocks that have not arrived.
    left: Range<u64>,
    /// [`Way::Shared`] for a reader, which gets its blocks though the disk does not take them. [`Way::Ranges`] for the stream, whose attempt
    /// fails then.
    way: Way,
    priority: Priority,
    /// When the first bytes arrived.
    started: Arc<OnceLock<Instant>>,
}

/// Why an extent does not arrive whole.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExtentError {
    #[error("the server sent another range or another version than requested")]
    Refused,
    #[error(transparent)]
    Cut(#[from] ContentError),
    #[error("its blocks cannot be kept")]
    Write(#[from] WriteError),
    #[error("writing its blocks was interrupted")]
    Interrupted,
}

impl ExtentFetch {
    /// A fetch of `blocks`, which the state knows to be coming.
    pub(super) fn new(
        content: &Arc<Content>,
        spec: &FetchSpec,
        download: &Arc<Download>,
        (attempt, blocks): (u64, Range<u64>),
        way: Way,
        priority: Priority,
    ) -> ExtentFetch {
        let (content, download) = (Arc::clone(content), Arc::clone(download));
        let (spec, started) = (spec.clone(), Arc::default());
        ExtentFetch { content, spec, download, attempt, left: blocks, way, priority, started }
    }

    /// When the first bytes arrived, as soon as they have.
    pub(super) fn started(&self) -> Arc<OnceLock<Instant>> {
        Arc::clone(&self.started)
    }

    /// Requests it at `origin` for a reader, and once more what is missing where it was cut. `body` is the answer, where it was requested
    /// already. Ends with its attempt.
    pub(super) async fn run(mut self, origin: Origin, body: Option<IncomingBytes>) {
        let (download, attempt) = (Arc::clone(&self.download), self.attempt);
        let bring = async {
            if let Err(error) = self.fill(&origin, body).await {
                tracing::debug!(place = %origin.place, %error, left = ?self.left, "an extent failed");
                // Its readers look once more after a second failure.
                let _ = self.fill(&origin, None).await;
            }
        };
        tokio::select! {
            () = bring => {}
            () = download.until_over(attempt) => {}
        }
    }

    /// Requests it for the stream, which requests what is missing of it in another range.
    pub(super) async fn run_for_stream(mut self, origin: Origin) -> Result<(), ExtentError> {
        self.fill(&origin, None).await
    }

    /// The body of an answer that is just what is left of the version. [`Way::Ranges`]: over a separate connection.
    async fn ask(&self, origin: &Origin) -> Result<IncomingBytes, ExtentError> {
        let bytes = self.left.start * BLOCK..(self.left.end * BLOCK).min(origin.length);
        if let (Some(copy), Some(cache)) = (&origin.shared, &self.content.shared_cache) {
            let body = cache.remote.more(copy, bytes, self.priority.clone()).await;
            return body.map(|body| IncomingBytes::Shared(Box::new(body))).ok_or(ExtentError::Refused);
        }
        let (first, last) = (origin.first + bytes.start, origin.first + bytes.end - 1);
        let mut request = Request::get(origin.place.clone(), self.content.head_budget(2));
        request.range = Some((first, Some(last)));
        request.if_range = Some(origin.etag.clone());
        request.repeats = self.way == Way::Shared;
        request.way = self.way;
        request.priority = self.priority.clone();
        request.pause = self.download.pause().clone();
        let sent = self.content.client.send(request).await;
        let response =
            sent.map_err(|cause| ContentError::Fetch { uri: self.spec.uri.clone(), cause: Arc::new(cause) })?;
        let expected = Status::Partial { first, last, total: Some(origin.total) };
        if response.status != expected || response.etag.as_deref() != Some(&origin.etag) || response.encoding.is_some()
        {
            tracing::debug!(place = %origin.place, status = ?response.status, "a range of another version");
            return Err(ExtentError::Refused);
        }
        Ok(IncomingBytes::Body(Box::new(response.body)))
    }

    /// Writes each block that `body`, or else the answer to another request, brings.
    async fn fill(&mut self, origin: &Origin, body: Option<IncomingBytes>) -> Result<(), ExtentError> {
        let (silence, uri) = (self.content.range_silence(), self.spec.uri.clone());
        let mut body = match body {
            Some(body) => body,
            None => self.ask(origin).await?,
        };
        let mut chunk = Bytes::new();
        while !self.left.is_empty() {
            let first = self.left.start * BLOCK;
            // At most a block.
            let bytes = (origin.length - first).min(BLOCK) as usize;
            let mut block = BytesMut::with_capacity(bytes);
            while block.len() < bytes {
                if chunk.is_empty() {
                    let next = timeout(silence, body.next(&uri)).await;
                    let next = next.map_err(|_| ContentError::Stalled { uri: uri.clone() })??;
                    chunk = next.ok_or(ExtentError::Refused)?;
                    self.started.get_or_init(Instant::now);
                    self.download.state().touch();
                }
                let part = chunk.split_to(chunk.len().min(bytes - block.len()));
                block.extend_from_slice(&part);
            }
            if self.left.end - self.left.start == 1 && chunk.has_remaining() {
                // More than was requested is the answer to another question.
                return Err(ExtentError::Refused);
            }
            self.write(first, block.freeze()).await?;
            self.left.start += 1;
        }
        self.content.allocator_watch.working(&self.content.runtime);
        if self.way == Way::Ranges {
            // All bytes are here: an error behind them changes nothing.
            let _ = timeout(silence, body.next(&uri)).await;
            sleep(BACK).await;
        }
        Ok(())
    }

    async fn write(&self, first: u64, block: Bytes) -> Result<(), ExtentError> {
        let (content, download, attempt) = (Arc::clone(&self.content), Arc::clone(&self.download), self.attempt);
        let (ino, key, is_for_reader) = (self.spec.ino, content.local.partial_key(&self.spec), self.way == Way::Shared);
        let written = tokio::task::spawn_blocking(move || {
            let map = match download.open_map(&content, &key, ino, attempt) {
                Err(error) if is_for_reader => download.map_without_room(&content, ino, attempt).ok_or(error)?,
                opened => opened?,
            };
            let digests = content.block_hasher.digests(&block);
            let is_new = match map.write(first, &block, download.eviction_policy()) {
                Err(_) if is_for_reader => {
                    map.cache(first, block);
                    true
                }
                written => !written?.is_empty(),
            };
            let digests = if is_new { digests } else { Vec::new() };
            download.publish(|state| {
                state.extent_ended(attempt, &(first / BLOCK..first / BLOCK + 1));
                state.advance(attempt, first / BLOCK, &digests);
            });
            Ok::<(), WriteError>(())
        });
        Ok(written.await.map_err(|_| ExtentError::Interrupted)??)
    }
}

impl Drop for ExtentFetch {
    fn drop(&mut self) {
        self.download.publish(|state| state.extent_ended(self.attempt, &self.left));
    }
}

impl Content {
    /// The longest wait for the next bytes of a range.
    pub(super) fn range_silence(&self) -> Duration {
        self.config.stall / 6
    }

    /// Fetches an extent for a reader.
    pub(super) fn fetch_extent(
        self: &Arc<Self>,
        spec: &FetchSpec,
        download: &Arc<Download>,
        extent: Extent,
        requester: Requester,
    ) {
        let Extent { attempt, origin, blocks } = extent;
        let fetch = ExtentFetch::new(self, spec, download, (attempt, blocks), Way::Shared, Priority::Reader(requester));
        self.runtime.spawn(fetch.run(origin, None));
    }
}
