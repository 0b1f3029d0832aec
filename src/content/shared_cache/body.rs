//! The bytes of an object of the shared cache as they arrive.

use super::super::fixity::BLOCK;
use super::health::{Health, SharedError};
use super::name::Name;
use super::rival::Race;
use crate::document::Uri;
use bytes::{Bytes, BytesMut};
use futures_util::stream::{BoxStream, StreamExt};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For so long nothing may arrive.
const SILENCE: Duration = Duration::from_secs(2);

/// A body that brings fewer bytes a second than this is too slow, also where the Source is slower.
const SLOWEST: u64 = 64 << 10;

/// An object of the shared cache that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::content) struct SharedCopy {
    pub(in crate::content) name: Name,
    /// Address at which the Source has this version, if it has.
    pub(super) source: Option<Uri>,
    /// Bytes.
    pub(in crate::content) length: u64,
    /// The CRC of each block, where those are needed.
    pub(super) checks: Option<Box<[u32]>>,
}

/// A body, in order. With CRCs it comes in whole blocks, each of which is checked before it is handed on.
pub(in crate::content) struct SharedBody {
    pieces: BoxStream<'static, object_store::Result<Bytes>>,
    copy: Arc<SharedCopy>,
    /// Bytes of it that are to come.
    left: Range<u64>,
    block: BytesMut,
    /// How long it was waited for, and how many bytes arrived.
    waited: Duration,
    got: u64,
    health: Arc<Health>,
    race: Race,
}

impl SharedBody {
    /// `pieces` bring the bytes `left` of an object, whole blocks where there are CRCs.
    pub(super) fn new(
        pieces: BoxStream<'static, object_store::Result<Bytes>>,
        copy: Arc<SharedCopy>,
        left: Range<u64>,
        health: Arc<Health>,
        race: Race,
    ) -> SharedBody {
        SharedBody { pieces, copy, left, block: BytesMut::new(), waited: Duration::ZERO, got: 0, health, race }
    }

    /// Returns the copy whose bytes these are.
    pub(in crate::content) fn copy(&self) -> &Arc<SharedCopy> {
        &self.copy
    }

    /// The next bytes; `None` at the end. A failure is counted.
    pub(in crate::content) async fn chunk(&mut self) -> Result<Option<Bytes>, SharedError> {
        let copy = Arc::clone(&self.copy);
        let next = match &copy.checks {
            None => self.piece().await,
            Some(checks) => self.checked(checks).await,
        };
        next.inspect_err(|error| match error {
            SharedError::Wrong => self.health.wrong(copy.name.key()),
            // The rest is asked for at once.
            SharedError::Store(_) if self.got >= BLOCK => self.health.broke_off(),
            error => self.health.failed(error),
        })
    }

    async fn checked(&mut self, checks: &[u32]) -> Result<Option<Bytes>, SharedError> {
        let at = self.left.start - self.block.len() as u64;
        let whole = (self.left.end - at).min(BLOCK) as usize;
        while self.block.len() < whole || whole == 0 {
            match self.piece().await? {
                Some(piece) => self.block.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
        let block = self.block.split_to(whole).freeze();
        let expected = usize::try_from(at / BLOCK).ok().and_then(|number| checks.get(number));
        if expected.copied() != Some(crc32c::crc32c(&block)) {
            return Err(SharedError::Wrong);
        }
        Ok(Some(block))
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, SharedError> {
        let begun = Instant::now();
        let piece = tokio::time::timeout(SILENCE, self.pieces.next()).await.map_err(|_| SharedError::Slow)?;
        self.waited += begun.elapsed();
        let missing = self.left.end - self.left.start;
        let Some(piece) = piece.transpose()? else {
            return if missing == 0 { Ok(None) } else { Err(SharedError::Wrong) };
        };
        let bytes = piece.len() as u64;
        self.got += bytes;
        self.health.received(piece.len());
        if bytes > missing {
            return Err(SharedError::Wrong);
        }
        self.left.start += bytes;
        let is_too_slow = self.waited > SILENCE && self.got < self.waited.as_secs() * SLOWEST;
        if self.race.is_lost(begun, bytes, missing - bytes) || is_too_slow {
            return Err(SharedError::Slow);
        }
        Ok(Some(piece))
    }
}
