//! One extent on its way: some blocks of an attempt, requested by a range and written to its block map. Readers wait for their own
//! blocks alone.

use super::Download;
use super::extents::MOST;
use super::object::Origin;
use super::ranges::{RangeBody, RangeClient, RangeError};
use super::state::Extent;
use crate::content::fixity::BLOCK;
use crate::content::{Content, FetchSpec};
use crate::source::http::{KnownPause, Priority, Requester};
use bytes::{Buf, Bytes, BytesMut};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The fetch of an extent. Blocks that have not arrived when this is dropped do not come.
pub(super) struct ExtentFetch {
    content: Arc<Content>,
    spec: FetchSpec,
    download: Arc<Download>,
    attempt: u64,
    /// Bytes of the whole.
    length: u64,
    /// The blocks that have not arrived.
    left: Range<u64>,
}

impl ExtentFetch {
    /// A fetch of `blocks`, which [`DownloadState::begin_extent`](super::state::DownloadState::begin_extent) knows of, of an object of
    /// `length` bytes.
    pub(super) fn new(
        content: &Arc<Content>,
        spec: &FetchSpec,
        download: &Arc<Download>,
        (attempt, blocks): (u64, Range<u64>),
        length: u64,
    ) -> ExtentFetch {
        let (content, download) = (Arc::clone(content), Arc::clone(download));
        ExtentFetch { content, spec: spec.clone(), download, attempt, length, left: blocks }
    }

    /// Requests it, and once more what is missing where it was cut. `body` is the answer, where it was requested already.
    /// Ends with its attempt.
    pub(super) async fn run(mut self, client: RangeClient, body: Option<RangeBody>) {
        let (download, attempt) = (Arc::clone(&self.download), self.attempt);
        tokio::select! {
            () = self.bring(client, body) => {}
            () = download.until_over(attempt) => {}
        }
    }

    async fn bring(&mut self, client: RangeClient, mut body: Option<RangeBody>) {
        for _ in 0..2 {
            let filled = async {
                let body = match body.take() {
                    Some(body) => body,
                    None => {
                        let bytes = self.left.start * BLOCK..(self.left.end * BLOCK).min(self.length);
                        client.ask(&bytes, false).await?
                    }
                };
                self.fill(body, client.silence).await
            };
            match filled.await {
                Ok(()) => return,
                Err(error) => tracing::debug!(place = %client.origin.place, %error, "an extent failed"),
            }
        }
    }

    /// Writes each block that `body` brings.
    async fn fill(&mut self, mut body: RangeBody, silence: Duration) -> Result<(), RangeError> {
        let mut chunk = Bytes::new();
        while !self.left.is_empty() {
            let first = self.left.start * BLOCK;
            // At most a block.
            let bytes = (self.length - first).min(BLOCK) as usize;
            let mut block = BytesMut::with_capacity(bytes);
            while block.len() < bytes {
                if chunk.is_empty() {
                    let next = timeout(silence, body.chunk()).await.map_err(|_| RangeError::Silent)??;
                    chunk = next.ok_or(RangeError::Other)?;
                    self.download.state().touch();
                }
                let part = chunk.split_to(chunk.len().min(bytes - block.len()));
                block.extend_from_slice(&part);
            }
            if self.left.end - self.left.start == 1 && chunk.has_remaining() {
                // More than was requested is the answer to another question.
                return Err(RangeError::Other);
            }
            self.write(first, block.freeze()).await?;
            self.left.start += 1;
        }
        self.content.freed.working(&self.content.runtime);
        Ok(())
    }

    async fn write(&self, first: u64, block: Bytes) -> Result<(), RangeError> {
        let (content, download, attempt) = (Arc::clone(&self.content), Arc::clone(&self.download), self.attempt);
        let (ino, key) = (self.spec.ino, content.partial_key(&self.spec));
        let written = tokio::task::spawn_blocking(move || {
            let map = download.open_map(&content, &key, ino, attempt);
            let map = map.or_else(|error| download.map_without_room(&content, ino, attempt).ok_or(error))?;
            let digests = content.block_hasher.digests(&block);
            let written = match map.write(first, &block, download.eviction_policy()) {
                Ok(written) => !written.is_empty(),
                // Its readers get it all the same.
                Err(_) => {
                    map.cache(first, block);
                    true
                }
            };
            let digests = if written { digests } else { Vec::new() };
            download.publish(|state| state.advance(attempt, first / BLOCK, &digests));
            Ok::<(), crate::content::store::StoreError>(())
        });
        match written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                tracing::debug!(%error, "an extent cannot be kept");
                Err(RangeError::Other)
            }
            Err(_) => Err(RangeError::Other),
        }
    }
}

impl Drop for ExtentFetch {
    fn drop(&mut self) {
        // A failed one is looked at by its readers.
        self.download.publish(|state| state.extent_ended(self.attempt, self.left.clone()));
    }
}

impl Content {
    /// How ranges of the version that `origin` names are requested.
    pub(super) fn range_client(&self, origin: Origin, requester: Requester, pause: &KnownPause) -> RangeClient {
        let priority = Priority::Reader(requester);
        let (head, silence) = (self.head_budget(2), self.config.stall / 6);
        RangeClient {
            client: self.client.clone(),
            origin,
            priority,
            pause: pause.clone(),
            head,
            silence,
            shared_cache: self.shared_cache.as_ref().map(|shared| Arc::clone(shared.remote())),
        }
    }

    /// Fetches an extent for a reader.
    pub(super) fn fetch_extent(self: &Arc<Self>, spec: &FetchSpec, download: &Arc<Download>, extent: Extent) {
        debug_assert!(extent.blocks.end - extent.blocks.start <= 2 * MOST);
        let length = extent.origin.length;
        let fetch = ExtentFetch::new(self, spec, download, (extent.attempt, extent.blocks), length);
        let client = self.range_client(extent.origin, spec.requester, download.pause());
        self.runtime.spawn(fetch.run(client, None));
    }
}
