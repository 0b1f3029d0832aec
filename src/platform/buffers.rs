//! Large buffers that are used again: the kernel clears each page of new memory, which takes as long as to receive or read what fills it.

use bytes::Bytes;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A smaller buffer comes from the allocator, which uses it again by itself. Larger ones are whole multiples of it.
const STEP: usize = 256 << 10;

/// Bytes of the largest buffer that is used again: a batch of a download with the chunk that completes it, or a READ of whole blocks.
pub(crate) const ROOM: usize = 5 * STEP;

/// The most buffers that wait to be used again.
const SPARE: usize = 6;

/// The latest is the last.
static SPARES: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

fn spares() -> MutexGuard<'static, Vec<Vec<u8>>> {
    SPARES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_used_again(length: usize) -> bool {
    (STEP..=ROOM).contains(&length) && length % STEP == 0
}

/// Memory to write into before it is frozen. Its first content has no meaning.
#[derive(Default)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    /// A buffer of at least `length` bytes.
    pub(crate) fn of(length: usize) -> Buffer {
        let room = length.next_multiple_of(STEP);
        if !is_used_again(room) || length < STEP {
            return Buffer::small(length);
        }
        let mut spares = spares();
        match spares.iter().rposition(|spare| spare.len() == room) {
            Some(place) => Buffer(spares.remove(place)),
            None => Buffer(vec![0; room]),
        }
    }

    /// A buffer of this size, which is not kept: there is no reservation for it.
    pub(crate) fn small(length: usize) -> Buffer {
        Buffer(vec![0; length])
    }

    /// Its first `length` bytes. The memory is used again once the last clone is dropped.
    pub(crate) fn freeze(mut self, length: usize) -> Bytes {
        if is_used_again(self.0.len()) {
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
        if is_used_again(self.0.len()) {
            let mut spares = spares();
            if spares.len() == SPARE {
                spares.remove(0);
            }
            spares.push(std::mem::take(&mut self.0));
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
        for length in [0, 1, STEP - 1, STEP, STEP + 1, ROOM - 1, ROOM, ROOM + 1] {
            let frozen = filled(length, 7);
            let part = frozen.slice(length / 2..);
            drop(frozen);

            let other = filled(length, 9);

            assert_eq!((part, other.len()), (vec![7; length - length / 2].into(), length));
        }
    }

    #[test]
    fn few_spare_buffers_are_kept() {
        let many: Vec<Bytes> = (0..3 * SPARE).map(|_| filled(STEP, 1)).collect();
        drop(many);
        assert!(spares().len() <= SPARE);
    }
}
