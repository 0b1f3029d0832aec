//! The bytes of an attempt: stored, hashed and made known to the readers, block by block, on blocking threads.

use super::coding::Coding;
use super::kept::{Kept, RecentBlocks, Sink, WINDOW};
use super::object::CachedObject;
use super::shared::Download;
use crate::content::ContentError;
use crate::content::fixity::{BLOCK, BlockHasher, Seen, Verifier, WHOLE_LIMIT};
use crate::content::store::{EvictionPolicy, ObjectKey, Partial, Store, StoreError};
use crate::document::{Algorithm, Uri};
use bytes::{Bytes, BytesMut};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Of what an earlier download left, so much is hashed for each batch that comes, until all of it is.
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
    /// What is kept cannot be read back.
    #[error("the partial download is damaged")]
    Damaged(#[source] io::Error),
}

impl WriteError {
    /// Whether the fault is the cache's: the object may be fetched into another sink.
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

/// Takes one attempt's bytes in order, from the first. Bytes that an earlier download left may be hashed later than they are
/// readable: the verifier lags behind the length.
pub(super) struct Writer {
    kept: Kept,
    length: u64,
    verifier: Verifier,
    hasher: BlockHasher,
    download: Arc<Download>,
}

impl Writer {
    /// A writer of a new object, of `length` bytes where known.
    pub(super) fn begin(
        disk: &Arc<Store>,
        key: &ObjectKey,
        sink: Sink,
        length: Option<u64>,
        algorithm: Algorithm,
        hasher: BlockHasher,
        download: Arc<Download>,
    ) -> Result<Writer, WriteError> {
        let kept = match sink {
            Sink::Store => Kept::Store(Arc::new(disk.begin(key, length, download.eviction_policy())?)),
            Sink::Memory => Kept::Memory(RecentBlocks::new(length, download.state().window())),
        };
        Ok(Writer { kept, length: 0, verifier: Verifier::new(algorithm), hasher, download })
    }

    /// A writer that goes on where an earlier download of the same key stopped.
    pub(super) fn resume(
        partial: Arc<Partial>,
        algorithm: Algorithm,
        hasher: BlockHasher,
        download: Arc<Download>,
    ) -> Writer {
        let length = partial.length();
        Writer { kept: Kept::Store(partial), length, verifier: Verifier::new(algorithm), hasher, download }
    }

    /// What is written is kept for a later download under this validator.
    pub(super) fn keep_under(&self, validator: Option<&str>, length: Option<u64>) {
        if let Kept::Store(partial) = &self.kept {
            partial.keep(validator, length);
        }
    }

    /// The next bytes: whole blocks, but for the object's last.
    pub(super) fn absorb(&mut self, bytes: Bytes) -> Result<(), WriteError> {
        if self.download.state().is_damaged() {
            return Err(WriteError::Damaged(io::ErrorKind::InvalidData.into()));
        }
        self.kept.append(&bytes, self.download.eviction_policy())?;
        let is_next = self.verifier.length() == self.length;
        self.length += bytes.len() as u64;
        let digests = if is_next { self.hasher.digests(&bytes) } else { Vec::new() };
        self.download.publish(|state| state.advance(self.kept.clone(), self.length, &digests));
        if is_next {
            self.verifier.update(&bytes);
            return Ok(());
        }
        self.catch_up(self.verifier.length() + CATCH_UP)
    }

    /// Hashes what is kept, up to `end` where there is so much.
    fn catch_up(&mut self, end: u64) -> Result<(), WriteError> {
        while self.verifier.length() < self.length.min(end) {
            let at = self.verifier.length();
            let range = at..self.length.min(at + 8 * BLOCK);
            let bytes = self.kept.read(&range).map_err(WriteError::Damaged)?;
            self.verifier.update(&bytes);
            let digests = self.hasher.digests(&bytes);
            self.download.publish(|state| {
                state.digest(&digests);
                state.touch();
            });
        }
        Ok(())
    }

    /// Every byte was absorbed: what they were, and the bytes themselves, not yet committed.
    pub(super) fn finish(mut self) -> Result<(Option<Seen>, Written), WriteError> {
        let hashed = self.catch_up(u64::MAX);
        let written = Written { policy: self.download.eviction_policy(), kept: self.kept, length: self.length };
        match hashed {
            Ok(()) => Ok((self.verifier.finish(), written)),
            Err(error) => {
                written.discard();
                Err(error)
            }
        }
    }

    /// Drops the bytes.
    pub(super) fn discard(self) {
        self.kept.discard();
    }
}

/// The writer of the attempt under way.
pub(super) enum Stage {
    /// Nothing is kept.
    Empty,
    /// It waits for more.
    Idle(Box<Writer>),
    /// It is at work on a blocking thread.
    Busy(JoinHandle<Result<Box<Writer>, WriteError>>),
}

/// All bytes of an object, before the commit.
pub(super) struct Written {
    kept: Kept,
    length: u64,
    /// What may be evicted for them.
    policy: EvictionPolicy,
}

impl Written {
    /// Bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Makes them the object `key`.
    pub(super) fn commit(self, key: &ObjectKey) -> Result<CachedObject, WriteError> {
        Ok(match self.kept {
            Kept::Store(partial) => CachedObject::Store(partial.commit(key, self.length, self.policy)?),
            Kept::Memory(recent) => CachedObject::Memory(recent),
        })
    }

    /// Undoes a coding into `into`, a new object in the same kind of sink; the coded bytes are dropped.
    /// The digest is of the decoded bytes.
    pub(super) fn decode(
        self,
        coding: Coding,
        disk: &Arc<Store>,
        into: &ObjectKey,
        algorithm: Algorithm,
    ) -> Result<(Option<Seen>, Written), WriteError> {
        let (policy, mut verifier) = (self.policy, Verifier::new(algorithm));
        let mut kept = match &self.kept {
            Kept::Store(_) => Kept::Store(Arc::new(disk.begin(into, None, policy)?)),
            Kept::Memory(recent) if recent.start() > 0 => return Err(WriteError::TooLarge),
            Kept::Memory(_) => Kept::Memory(RecentBlocks::new(None, WINDOW)),
        };
        let mut in_memory = BytesMut::new();
        let coded = KeptReader { kept: &self.kept, offset: 0, length: self.length };
        let decoded = coding.decode(coded, self.length, |bytes| {
            verifier.update(bytes);
            match &kept {
                Kept::Store(partial) => partial.append(bytes, policy)?,
                Kept::Memory(_) if verifier.length() > WHOLE_LIMIT => return Err(WriteError::TooLarge),
                Kept::Memory(_) => in_memory.extend_from_slice(bytes),
            }
            Ok::<(), WriteError>(())
        });
        if let Kept::Memory(recent) = &mut kept {
            recent.push(&in_memory.freeze());
        }
        self.discard();
        let written = Written { kept, length: verifier.length(), policy };
        match decoded {
            Ok(_) => Ok((verifier.finish(), written)),
            Err(error) => {
                written.discard();
                Err(error)
            }
        }
    }

    /// Drops the bytes.
    pub(super) fn discard(self) {
        self.kept.discard();
    }
}

/// Reads what is kept from its first byte.
struct KeptReader<'a> {
    kept: &'a Kept,
    offset: u64,
    length: u64,
}

impl Read for KeptReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let end = self.length.min(self.offset + buffer.len() as u64);
        let bytes = self.kept.read(&(self.offset..end))?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        self.offset += bytes.len() as u64;
        Ok(bytes.len())
    }
}
