//! The bytes of an attempt on their way: where they come from, and what the writer has not got yet.

use crate::content::ContentError;
use crate::content::fixity::BLOCK;
use crate::content::shared_cache::SharedBody;
use crate::document::Uri;
use crate::platform::buffers::{Buffer, ROOM};
use crate::platform::memory_budget::{Budget, Reservation};
use crate::source::http::Body;
use crate::source::zip::Member;
use bytes::Bytes;
use std::sync::Arc;

/// Bytes that are received while those before are written, but for those of the last chunk: with it they are at most [`ROOM`].
const BATCH: usize = 3 << 18;

/// Bytes as they come, in order and without holes.
pub(super) enum IncomingBytes {
    /// The body of a response.
    Body(Box<Body>),
    /// A member of a package, unpacked.
    Member(Box<Member>),
    /// A copy in the shared cache.
    Shared(Box<SharedBody>),
}

impl IncomingBytes {
    /// The next bytes of the version of `uri`; `None` at the end.
    pub(super) async fn next(&mut self, uri: &Uri) -> Result<Option<Bytes>, ContentError> {
        match self {
            IncomingBytes::Body(body) => {
                let chunk = body.chunk().await;
                chunk.map_err(|cause| ContentError::Fetch { uri: uri.clone(), cause: Arc::new(cause) })
            }
            IncomingBytes::Member(member) => {
                let chunk = member.chunk().await;
                chunk.map_err(|cause| ContentError::Package { uri: uri.clone(), cause: Arc::new(cause) })
            }
            // The shared cache has reported its failure, and no reader gets it.
            IncomingBytes::Shared(body) => body.chunk().await.map_err(|_| ContentError::Stalled { uri: uri.clone() }),
        }
    }
}

/// Bytes in order that the writer has not got yet, from a whole number of blocks on.
#[derive(Default)]
pub(super) struct Batch {
    buffer: Buffer,
    length: usize,
    /// Without one a batch is a block and the chunk that completed it.
    reservation: Option<Reservation>,
}

impl Batch {
    /// Adds bytes. `left`: those of the object that are still to come, where known.
    pub(super) fn push(&mut self, chunk: &[u8], left: Option<u64>, memory: &Budget) {
        let end = self.length + chunk.len();
        let mut room = end;
        if self.reservation.is_none() {
            let left = left.and_then(|left| usize::try_from(left).ok()).filter(|left| *left < BATCH);
            self.reservation = memory.try_reserve(left.unwrap_or(ROOM).max(1));
            room = end.max(self.reservation.as_ref().map_or(BLOCK as usize, Reservation::bytes));
        }
        if self.buffer.len() < room {
            let mut larger = if self.reservation.is_some() { Buffer::of(room) } else { Buffer::small(room) };
            larger[..self.length].copy_from_slice(&self.buffer[..self.length]);
            self.buffer = larger;
        }
        self.buffer[self.length..end].copy_from_slice(chunk);
        self.length = end;
    }

    /// Bytes of it.
    pub(super) fn len(&self) -> u64 {
        self.length as u64
    }

    pub(super) fn has_block(&self) -> bool {
        self.length >= BLOCK as usize
    }

    /// Returns whether the writer is to have it before more is received.
    pub(super) fn is_full(&self) -> bool {
        self.length >= self.reservation.as_ref().map_or(0, Reservation::bytes).clamp(BLOCK as usize, BATCH)
    }

    /// The whole blocks, with what is reserved for them.
    pub(super) fn take_blocks(&mut self) -> (Bytes, Option<Reservation>) {
        let whole = self.length - self.length % BLOCK as usize;
        let mut rest = Buffer::of(self.length - whole);
        rest.copy_from_slice(&self.buffer[whole..self.length]);
        self.length -= whole;
        (std::mem::replace(&mut self.buffer, rest).freeze(whole), self.reservation.take())
    }

    pub(super) fn take(&mut self) -> (Bytes, Option<Reservation>) {
        let length = std::mem::take(&mut self.length);
        (std::mem::take(&mut self.buffer).freeze(length), self.reservation.take())
    }

    pub(super) fn clear(&mut self) {
        *self = Batch::default();
    }
}
