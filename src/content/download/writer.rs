//! The bytes of an attempt: stored, hashed and made known to the readers, block by block, on blocking threads.

use super::coding::Coding;
use super::object::CachedObject;
use super::shared::Download;
use super::state::Sink;
use crate::content::ContentError;
use crate::content::fixity::{BLOCK, BlockHasher, Seen, Verifier, WHOLE_LIMIT};
use crate::content::store::{EvictionPolicy, ObjectKey, Partial, Store, StoreError};
use crate::document::{Algorithm, Uri};
use bytes::Bytes;
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
    /// The object has no place in memory either.
    #[error("larger than what is held in memory")]
    TooLarge,
    /// The coded bytes cannot be decoded.
    #[error("the coded bytes cannot be decoded")]
    Coding(#[from] io::Error),
    /// What an earlier download left cannot be read back.
    #[error("the bytes of an earlier download are damaged")]
    Damaged(#[source] io::Error),
}

impl WriteError {
    /// Whether there was no room: the object may be fetched into another sink.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, WriteError::Store(StoreError::Full { .. }) | WriteError::TooLarge)
    }

    /// The error that a reader of `uri` gets; `folder` is the cache's.
    pub(super) fn into_content(self, uri: &Uri, folder: &Path) -> ContentError {
        let (path, cause) = match self {
            WriteError::Store(StoreError::Io { path, cause }) => (path, cause),
            WriteError::Store(StoreError::Full { .. }) | WriteError::TooLarge => {
                (folder.to_owned(), io::ErrorKind::StorageFull.into())
            }
            WriteError::Store(other) => (folder.to_owned(), io::Error::other(other)),
            WriteError::Damaged(cause) => (folder.to_owned(), cause),
            WriteError::Coding(cause) => {
                return ContentError::Mismatch { uri: uri.clone(), what: format!("it cannot be decoded: {cause}") };
            }
        };
        ContentError::Cache { path, cause: Arc::new(cause) }
    }
}

/// The bytes of a [`Sink`] that are kept.
enum Kept {
    Store(Arc<Partial>),
    Memory(Vec<u8>),
    Discard,
}

impl Kept {
    fn append(&mut self, bytes: &[u8], policy: EvictionPolicy) -> Result<(), WriteError> {
        match self {
            Kept::Store(partial) => Ok(partial.append(bytes, policy)?),
            Kept::Memory(kept) if (kept.len() + bytes.len()) as u64 > WHOLE_LIMIT => Err(WriteError::TooLarge),
            Kept::Memory(kept) => {
                kept.extend_from_slice(bytes);
                Ok(())
            }
            Kept::Discard => Ok(()),
        }
    }

    /// `length` bytes at `offset`, all of which were appended.
    fn read(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        match self {
            Kept::Store(partial) => {
                let read = partial.read_at(offset, length).map_err(io::Error::other)?;
                read.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
            }
            // Lies within `kept`, whose length is a usize.
            Kept::Memory(kept) => Ok(Bytes::copy_from_slice(&kept[offset as usize..offset as usize + length])),
            Kept::Discard => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn discard(self) {
        if let Kept::Store(partial) = self {
            partial.abort();
        }
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
            Sink::Memory => Kept::Memory(Vec::new()),
            Sink::Discard => Kept::Discard,
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
        self.kept.append(&bytes, self.download.eviction_policy())?;
        let start = self.length;
        self.length += bytes.len() as u64;
        let (partial, window) = match &self.kept {
            Kept::Store(partial) => (Some(partial), None),
            Kept::Memory(_) => (None, None),
            Kept::Discard => (None, Some(bytes.clone())),
        };
        if self.verifier.length() == start {
            self.download.advance(partial, window, self.length, &self.hasher.digests(&bytes));
            self.verifier.update(&bytes);
            return Ok(());
        }
        self.download.advance(partial, window, self.length, &[]);
        self.catch_up(self.verifier.length() + CATCH_UP)
    }

    /// Hashes what is kept, up to `end` where there is so much.
    fn catch_up(&mut self, end: u64) -> Result<(), WriteError> {
        while self.verifier.length() < self.length.min(end) {
            let at = self.verifier.length();
            let bytes = self.kept.read(at, (self.length - at).min(8 * BLOCK) as usize).map_err(WriteError::Damaged)?;
            self.verifier.update(&bytes);
            self.download.digest(&self.hasher.digests(&bytes));
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
    pub(super) fn commit(self, key: &ObjectKey, download: &Download) -> Result<CachedObject, WriteError> {
        Ok(match self.kept {
            Kept::Store(partial) => CachedObject::Store(partial.commit(key, self.length, self.policy)?),
            Kept::Memory(bytes) => CachedObject::Memory(Bytes::from(bytes)),
            Kept::Discard => CachedObject::Passed(download.state().window()),
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
            Kept::Memory(_) => Kept::Memory(Vec::new()),
            Kept::Discard => return Err(WriteError::TooLarge),
            Kept::Store(_) => Kept::Store(Arc::new(disk.begin(into, None, policy)?)),
        };
        let coded = KeptReader { kept: &self.kept, offset: 0, length: self.length };
        let decoded = coding.decode(coded, self.length, |bytes| {
            kept.append(bytes, policy)?;
            verifier.update(bytes);
            Ok::<(), WriteError>(())
        });
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
        let left = usize::try_from(self.length - self.offset).unwrap_or(usize::MAX);
        let bytes = self.kept.read(self.offset, buffer.len().min(left))?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        self.offset += bytes.len() as u64;
        Ok(bytes.len())
    }
}
