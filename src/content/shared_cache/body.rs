//! The bytes of an object of the shared cache as they arrive.

use super::super::fixity::BLOCK;
use super::health::Health;
use bytes::{Bytes, BytesMut};
use futures_util::stream::{BoxStream, StreamExt};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For so long nothing may arrive.
const SILENCE: Duration = Duration::from_secs(2);

/// A body that brings fewer bytes a second than this is too slow: the Source is asked.
const SLOWEST: u64 = 64 << 10;

/// Why the rest of a body is of no use.
#[derive(Debug, thiserror::Error)]
pub(in crate::content) enum BodyError {
    #[error("the shared cache broke off")]
    Store(#[from] object_store::Error),
    #[error("the shared cache is too slow")]
    Slow,
    #[error("the shared cache has {got} of {expected} bytes")]
    Length { got: u64, expected: u64 },
    #[error("the shared cache has a damaged block at byte {0}")]
    Damaged(u64),
}

/// A body, in order. With CRCs it comes in whole blocks, each of which is checked before it goes on.
pub(in crate::content) struct SharedBody {
    pieces: BoxStream<'static, object_store::Result<Bytes>>,
    /// What of the object comes, from a block's first byte on.
    left: Range<u64>,
    /// Bytes of the object.
    length: u64,
    checks: Option<Arc<[u32]>>,
    block: BytesMut,
    /// How long it was waited for, and how many bytes arrived.
    waited: Duration,
    got: u64,
    health: Arc<Health>,
}

impl SharedBody {
    pub(super) fn new(
        pieces: BoxStream<'static, object_store::Result<Bytes>>,
        range: Range<u64>,
        length: u64,
        checks: Option<Arc<[u32]>>,
        health: Arc<Health>,
    ) -> SharedBody {
        let (block, waited) = (BytesMut::new(), Duration::ZERO);
        SharedBody { pieces, left: range, length, checks, block, waited, got: 0, health }
    }

    /// Bytes of the object.
    pub(in crate::content) fn length(&self) -> u64 {
        self.length
    }

    /// The next bytes; `None` at the end. A failure is counted.
    pub(in crate::content) async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        let next = match self.checks.clone() {
            None => self.piece().await,
            Some(checks) => self.checked(&checks).await,
        };
        next.inspect_err(|error| self.health.failed(error))
    }

    async fn checked(&mut self, checks: &[u32]) -> Result<Option<Bytes>, BodyError> {
        let at = self.left.start - self.block.len() as u64;
        let whole = (self.length - at).min(BLOCK) as usize;
        while self.block.len() < whole {
            match self.piece().await? {
                Some(piece) => self.block.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
        let block = self.block.split_to(whole).freeze();
        let expected = usize::try_from(at / BLOCK).ok().and_then(|number| checks.get(number));
        if expected.copied() != Some(crc32c::crc32c(&block)) {
            return Err(BodyError::Damaged(at));
        }
        Ok(Some(block))
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, BodyError> {
        let begun = Instant::now();
        let piece = tokio::time::timeout(SILENCE, self.pieces.next()).await.map_err(|_| BodyError::Slow)?;
        self.waited += begun.elapsed();
        let Some(piece) = piece.transpose()? else {
            let (got, expected) = (self.got, self.got + (self.left.end - self.left.start));
            return if got == expected { Ok(None) } else { Err(BodyError::Length { got, expected }) };
        };
        let bytes = piece.len() as u64;
        self.got += bytes;
        self.health.received(piece.len());
        if bytes > self.left.end - self.left.start {
            return Err(BodyError::Length {
                got: self.got,
                expected: self.got - bytes + self.left.end - self.left.start,
            });
        }
        self.left.start += bytes;
        if self.waited > SILENCE && self.got < self.waited.as_secs() * SLOWEST {
            return Err(BodyError::Slow);
        }
        Ok(Some(piece))
    }
}
