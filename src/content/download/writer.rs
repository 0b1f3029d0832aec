//! Where the bytes of an attempt go: written, hashed and made known to the readers, block by block, on blocking threads.

use super::buffers::Blocks;
use super::coding::Coding;
use super::hashing::Hashing;
use super::held::{Held, Version};
use super::state::Download;
use crate::content::ContentError;
use crate::content::fixity::{BLOCK, BlockDigests, Seen, Verifier, WHOLE_LIMIT};
use crate::content::store::{ObjectKey, Partial, Store, StoreError};
use crate::document::{Algorithm, Uri};
use bytes::Bytes;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

/// Why bytes could not be kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// The cache folder has no room, or the object no place in memory.
    #[error("the cache failed")]
    Store(#[from] StoreError),
    /// The object has no place in memory either.
    #[error("larger than what is held in memory")]
    TooLarge,
    /// The coded bytes cannot be decoded.
    #[error("the coded bytes cannot be decoded")]
    Coding(#[from] io::Error),
}

impl WriteError {
    /// Whether there was no room: the object may still be had in another way.
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
            WriteError::Coding(cause) => {
                return ContentError::Mismatch { uri: uri.clone(), what: format!("it cannot be decoded: {cause}") };
            }
        };
        ContentError::Cache { path, cause: Arc::new(cause) }
    }
}

/// Where bytes are kept until the verdict.
enum Sink {
    Store(Arc<Partial>),
    Memory(Vec<u8>),
    /// Nowhere: the download holds the latest of them.
    Past(Arc<Download>),
}

/// Where there is room for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// In the cache folder.
    Store,
    /// In memory.
    Memory,
    /// Nowhere.
    Nowhere,
}

impl Sink {
    /// How many pieces of what `is_held` readers have from memory are written at once. The others reach them one by one.
    fn at_once(&self, is_held: bool) -> usize {
        match self {
            Sink::Store(partial) if is_held && partial.takes_many_at_once() => usize::MAX,
            _ => 1,
        }
    }

    /// Where `is_held` readers have the bytes from memory.
    fn write_pieces(&mut self, offset: u64, pieces: &[Bytes], is_held: bool) -> Result<(), WriteError> {
        if let (Sink::Store(partial), true) = (&self, is_held) {
            let pieces: Vec<&[u8]> = pieces.iter().map(|bytes| &bytes[..]).collect();
            return Ok(partial.write_uncached_at(offset, &pieces)?);
        }
        let mut at = offset;
        for bytes in pieces {
            self.write(at, bytes)?;
            at += bytes.len() as u64;
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), WriteError> {
        match self {
            Sink::Store(partial) => Ok(partial.write_at(offset, bytes)?),
            Sink::Memory(held) if (held.len() + bytes.len()) as u64 > WHOLE_LIMIT => Err(WriteError::TooLarge),
            Sink::Memory(held) => {
                held.extend_from_slice(bytes);
                Ok(())
            }
            Sink::Past(_) => Ok(()),
        }
    }

    fn commit(self, key: &ObjectKey, length: u64) -> Result<Held, WriteError> {
        match self {
            Sink::Store(partial) => Ok(Held::Store(partial.commit(key, length)?)),
            Sink::Memory(bytes) => Ok(Held::Memory(Bytes::from(bytes))),
            Sink::Past(download) => download.passed().map(Held::Passed).ok_or(WriteError::TooLarge),
        }
    }
}

/// Reads a sink from its first byte.
struct SinkReader<'a> {
    sink: &'a Sink,
    offset: u64,
    length: u64,
}

impl Read for SinkReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.length - self.offset).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        match self.sink {
            Sink::Store(partial) => {
                let bytes = partial
                    .read_at(self.offset, wanted)
                    .map_err(io::Error::other)?
                    .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
                buffer[..wanted].copy_from_slice(&bytes);
            }
            Sink::Memory(held) => {
                // Lies within `held`, whose length is a usize.
                let start = self.offset as usize;
                buffer[..wanted].copy_from_slice(&held[start..start + wanted]);
            }
            Sink::Past(_) => return Err(io::ErrorKind::Unsupported.into()),
        }
        self.offset += wanted as u64;
        Ok(wanted)
    }
}

/// Takes one attempt's bytes in order, from the first.
pub(super) struct Writer {
    sink: Sink,
    hashing: Hashing,
    digests: BlockDigests,
    download: Arc<Download>,
}

impl Writer {
    /// A writer of a new object, of `length` bytes as far as known: into the cache folder under `key`, or where `room` is.
    pub(super) fn begin(
        disk: &Arc<Store>,
        key: &ObjectKey,
        room: Room,
        length: Option<u64>,
        algorithm: Algorithm,
        digests: BlockDigests,
        download: Arc<Download>,
    ) -> Result<Writer, WriteError> {
        let sink = match room {
            Room::Store => Sink::Store(Arc::new(disk.begin_for(key, length, download.urgency().victims())?)),
            Room::Memory => Sink::Memory(Vec::new()),
            Room::Nowhere => Sink::Past(Arc::clone(&download)),
        };
        Ok(Writer { sink, hashing: Hashing::new(algorithm), digests, download })
    }

    /// A writer that goes on where an earlier fetch of the same key stopped, where `is_wanted` finds the version by its validator and
    /// its length. What is there is read and hashed again; block by block it may go out meanwhile. `None`: nothing is there.
    pub(super) fn resume(
        disk: &Arc<Store>,
        key: &ObjectKey,
        algorithm: Algorithm,
        digests: BlockDigests,
        download: Arc<Download>,
        is_wanted: impl FnOnce(&str, Option<u64>) -> Option<Version>,
    ) -> Option<(Writer, Version)> {
        let partial = Arc::new(disk.resume_for(key, download.urgency().victims())?);
        let Some(version) = is_wanted(&partial.validator()?, partial.length()) else {
            partial.abort();
            return None;
        };
        let whole_blocks = partial.prefix() - partial.prefix() % BLOCK;
        let sink = Sink::Store(Arc::clone(&partial));
        let mut writer = Writer { sink, hashing: Hashing::new(algorithm), digests, download };
        while writer.length() < whole_blocks {
            let Ok(Some(block)) = partial.read_at(writer.length(), BLOCK as usize) else { break };
            let end = writer.length() + block.len() as u64;
            writer.pass(&block, end);
            writer.hashing.add(&Blocks { pieces: vec![block], ..Blocks::default() });
        }
        // Bytes beyond what was read would stay in the file whatever the stream brings: they must not be there.
        let is_prefix = writer.length() > 0 && partial.present() == writer.length();
        if !is_prefix {
            writer.download.restart(false);
            writer.discard();
            return None;
        }
        Some((writer, version))
    }

    /// Makes what is written findable by [`Writer::resume`] later.
    pub(super) fn set_validator(&self, validator: Option<String>, length: Option<u64>) {
        if let Sink::Store(partial) = &self.sink {
            partial.set_length(length);
            partial.set_validator(validator);
        }
    }

    /// Bytes absorbed.
    pub(super) fn length(&self) -> u64 {
        self.hashing.length()
    }

    /// The next bytes: pieces of whole blocks, but for the object's last.
    pub(super) fn absorb(&mut self, blocks: &Blocks) -> Result<(), WriteError> {
        let mut at = self.length();
        self.hashing.add(blocks);
        let bytes = blocks.pieces.iter().map(|bytes| bytes.len() as u64).sum();
        let is_held = self.download.is_read_from_memory(bytes);
        for pieces in blocks.pieces.chunks(self.sink.at_once(is_held)) {
            self.sink.write_pieces(at, pieces, is_held)?;
            for bytes in pieces {
                at += bytes.len() as u64;
                self.pass(bytes, at);
            }
        }
        Ok(())
    }

    /// Makes bytes known that are written, the last of them before `end`.
    fn pass(&mut self, bytes: &Bytes, end: u64) {
        let digests: Vec<u128> = bytes.chunks(BLOCK as usize).map(|block| self.digests.of(block)).collect();
        let partial = match &self.sink {
            Sink::Store(partial) => Some(partial),
            Sink::Memory(_) => None,
            Sink::Past(download) => {
                download.pass(bytes.clone());
                None
            }
        };
        self.download.keep_latest(bytes, end);
        self.download.advance(partial, &digests, end);
    }

    /// Every byte was absorbed: what they were, and the bytes themselves, not yet committed.
    pub(super) fn finish(self) -> (Option<Seen>, Written) {
        let length = self.length();
        (self.hashing.finish(), Written { sink: self.sink, length })
    }

    /// The bytes are not wanted, now or later.
    pub(super) fn discard(self) {
        Written { length: self.length(), sink: self.sink }.discard();
    }
}

/// All bytes of an object, before the commit.
pub(super) struct Written {
    sink: Sink,
    length: u64,
}

impl Written {
    /// Bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Makes them the object `key`.
    pub(super) fn commit(self, key: &ObjectKey) -> Result<Held, WriteError> {
        self.sink.commit(key, self.length)
    }

    /// Undoes a coding into `into`, a new object of the same kind of place; the coded bytes are dropped.
    /// The digest is of the decoded bytes.
    pub(super) fn decode(
        self,
        coding: Coding,
        disk: &Arc<Store>,
        into: &ObjectKey,
        algorithm: Algorithm,
    ) -> Result<(Option<Seen>, Written), WriteError> {
        let mut sink = match &self.sink {
            Sink::Memory(_) => Sink::Memory(Vec::new()),
            Sink::Past(_) => return Err(WriteError::TooLarge),
            Sink::Store(coded) => Sink::Store(Arc::new(disk.begin_for(into, None, coded.victims())?)),
        };
        let mut verifier = Verifier::new(algorithm);
        let coded = SinkReader { sink: &self.sink, offset: 0, length: self.length };
        let decoded = coding.decode(coded, self.length, |bytes| {
            sink.write(verifier.length(), bytes)?;
            verifier.update(bytes);
            Ok::<(), WriteError>(())
        });
        self.discard();
        let length = verifier.length();
        let written = Written { sink, length };
        match decoded {
            Ok(_) => Ok((verifier.finish(), written)),
            Err(error) => {
                written.discard();
                Err(error)
            }
        }
    }

    /// The bytes are not wanted, now or later.
    pub(super) fn discard(self) {
        if let Sink::Store(partial) = self.sink {
            partial.abort();
        }
    }
}
