//! Large buffers that are used again: the kernel clears each page of new memory, which takes as long as to receive or read what fills it.

use bytes::Bytes;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A smaller buffer comes from the allocator, which uses it again by itself.
const LEAST: usize = 256 << 10;

/// Bytes of a buffer that is used again: a batch of a download with the chunk that completes it, or a READ of whole blocks.
const ROOM: usize = 3 << 19;

/// So many wait to be used again, at most.
const SPARE: usize = 12;

static SPARES: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

fn spares() -> MutexGuard<'static, Vec<Vec<u8>>> {
    SPARES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory to write into before it is frozen. What it holds at first is of no meaning.
#[derive(Default)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    /// Of at least `length` bytes.
    pub(crate) fn of(length: usize) -> Buffer {
        match length {
            LEAST..=ROOM => Buffer(spares().pop().unwrap_or_else(|| vec![0; ROOM])),
            _ => Buffer(vec![0; length]),
        }
    }

    /// Its first `length` bytes. The memory is used again once the last clone is dropped.
    pub(crate) fn freeze(mut self, length: usize) -> Bytes {
        if self.0.len() == ROOM {
            return Bytes::from_owner(self).slice(..length);
        }
        self.0.truncate(length);
        std::mem::take(&mut self.0).into()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.0.len() == ROOM {
            let mut spares = spares();
            if spares.len() < SPARE {
                spares.push(std::mem::take(&mut self.0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(length: usize, value: u8) -> Bytes {
        let mut buffer = Buffer::of(length);
        buffer[..length].fill(value);
        buffer.freeze(length)
    }

    #[test]
    fn frozen_bytes_stay_while_other_buffers_are_filled() {
        for length in [0, 1, LEAST - 1, LEAST, ROOM - 1, ROOM, ROOM + 1] {
            let frozen = filled(length, 7);
            let part = frozen.slice(length / 2..);
            drop(frozen);

            let other = filled(length, 9);

            assert_eq!((part, other.len()), (vec![7; length - length / 2].into(), length));
        }
    }

    #[test]
    fn few_spare_buffers_are_kept() {
        let many: Vec<Bytes> = (0..3 * SPARE).map(|_| filled(LEAST, 1)).collect();
        drop(many);
        assert!(spares().len() <= SPARE);
    }
}
