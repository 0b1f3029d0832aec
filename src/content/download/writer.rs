//! The bytes of an attempt: stored, hashed and made known to the readers, block by block, on blocking threads.

use super::in_flight::Download;
use crate::content::ContentError;
use crate::content::blocks::BlockMap;
use crate::content::fixity::{BLOCK, BlockHasher, Seen, Verifier};
use crate::content::store::StoreError;
use crate::document::{Algorithm, Uri};
use bytes::Bytes;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Bytes of what an earlier download left that are hashed for each batch that comes, until all of it is.
const CATCH_UP: u64 = 16 << 20;

/// Why bytes could not be kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// The cache folder has no room, or cannot be written.
    #[error("the cache failed")]
    Store(#[from] StoreError),
    /// The cache folder could not be written a moment ago.
    #[error("the cache cannot be written: {0}")]
    Failing(String),
    /// The object has no place in memory either.
    #[error("too large for memory")]
    TooLarge,
    /// The coded bytes cannot be decoded.
    #[error("the coded bytes cannot be decoded")]
    Coding(#[from] io::Error),
    /// The kept bytes cannot be read back.
    #[error("the partial download is damaged")]
    Damaged(#[source] io::Error),
}

impl WriteError {
    /// Returns whether the fault is the cache's: the object may be fetched into another sink.
    pub(super) fn is_of_sink(&self) -> bool {
        use StoreError::{Full, Index, Io};
        matches!(self, WriteError::Store(Full { .. } | Io { .. } | Index { .. }) | WriteError::TooLarge)
    }

    /// The error that a reader of `uri` gets; `folder` is the cache's.
    pub(super) fn into_content(self, uri: &Uri, folder: &Path) -> ContentError {
        let (path, cause) = match self {
            WriteError::Store(StoreError::Io { path, cause }) => (path, cause),
            WriteError::Store(StoreError::Full { .. }) | WriteError::TooLarge => {
                (folder.to_owned(), io::ErrorKind::StorageFull.into())
            }
            WriteError::Store(other) => (folder.to_owned(), io::Error::other(other)),
            WriteError::Failing(why) => (folder.to_owned(), io::Error::other(why)),
            WriteError::Damaged(cause) => (folder.to_owned(), cause),
            WriteError::Coding(cause) => {
                return ContentError::Mismatch { uri: uri.clone(), what: format!("it cannot be decoded: {cause}") };
            }
        };
        ContentError::Cache { path, cause: Arc::new(cause) }
    }
}

/// Takes the stream of one attempt in order, and hashes its block map as far as it has come. The verifier lags behind the frontier where
/// an earlier download or extents brought blocks.
pub(super) struct Writer {
    map: Arc<BlockMap>,
    verifier: Verifier,
    hasher: BlockHasher,
    download: Arc<Download>,
    attempt: u64,
}

impl Writer {
    /// A writer of the blocks of `attempt`, of which some may be here.
    pub(super) fn new(
        map: Arc<BlockMap>,
        algorithm: Algorithm,
        hasher: BlockHasher,
        download: Arc<Download>,
        attempt: u64,
    ) -> Writer {
        Writer { map, verifier: Verifier::new(algorithm), hasher, download, attempt }
    }

    /// Keeps what is written for a later download under this validator.
    pub(super) fn keep_under(&self, validator: Option<&str>, length: Option<u64>) {
        self.map.keep_under(validator, length);
    }

    /// The bytes from `start` on: whole blocks, but for the object's last.
    pub(super) fn absorb(&mut self, start: u64, bytes: Bytes) -> Result<(), WriteError> {
        if self.download.state().is_damaged() {
            return Err(WriteError::Damaged(io::ErrorKind::InvalidData.into()));
        }
        let written = self.map.write(start, &bytes, self.download.eviction_policy())?;
        let end = start + bytes.len() as u64;
        for range in &written {
            let part = &bytes[(range.start - start) as usize..(range.end - start) as usize];
            self.advance(range.start, &self.hasher.digests(part));
        }
        // The verdict is on the bytes of the map: those that were here before are read back.
        let is_all_new = matches!(&written[..], [range] if *range == (start..end));
        if is_all_new && self.verifier.length() == start {
            self.hash(&bytes);
        }
        self.catch_up()
    }

    /// Hashes more of the blocks that are here without a gap.
    pub(super) fn catch_up(&mut self) -> Result<(), WriteError> {
        self.catch_up_to(self.verifier.length() + CATCH_UP)
    }

    /// Bytes that are here without a gap and not hashed.
    pub(super) fn lag(&self) -> u64 {
        self.map.frontier().saturating_sub(self.verifier.length())
    }

    fn hash(&mut self, bytes: &[u8]) {
        self.verifier.update(bytes);
        self.map.note_hashed(self.verifier.length());
    }

    fn advance(&self, start: u64, digests: &[u128]) {
        self.download.publish(|state| state.advance(self.attempt, start / BLOCK, digests));
    }

    /// Hashes the blocks that are here without a gap, up to `end` where there are so many.
    fn catch_up_to(&mut self, end: u64) -> Result<(), WriteError> {
        while self.verifier.length() < self.map.frontier().min(end) {
            let at = self.verifier.length();
            let range = at..self.map.frontier().min(at + 8 * BLOCK);
            let bytes = self.map.read(&range).map_err(WriteError::Damaged)?;
            self.hash(&bytes);
            let is_known = self.download.state().has_digests(range.start / BLOCK..range.end.div_ceil(BLOCK));
            let digests = if is_known { Vec::new() } else { self.hasher.digests(&bytes) };
            self.advance(at, &digests);
            self.download.state().touch();
        }
        Ok(())
    }

    /// Every byte is here: what they were, and the map that has them, not yet committed.
    pub(super) fn finish(mut self) -> Result<(Seen, Arc<BlockMap>), WriteError> {
        self.catch_up_to(u64::MAX).inspect_err(|_| self.discard())?;
        Ok((self.verifier.finish(), self.map))
    }

    /// Drops the bytes.
    pub(super) fn discard(&self) {
        self.map.discard();
    }
}

/// The writer of the attempt under way.
#[derive(Default)]
pub(super) enum Stage {
    /// Nothing is kept.
    #[default]
    Empty,
    /// The writer waits for more.
    Idle(Box<Writer>),
    /// The writer is at work on a blocking thread.
    Busy(JoinHandle<Result<Box<Writer>, WriteError>>),
}
