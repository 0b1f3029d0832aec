//! Octets on their way from the network to the disk and to readers: in buffers of one size, used again and again.
//!
//! What reqwest hands out may be a small part of a large buffer, which lives as long as the part. Copied here it holds what it
//! is, and the buffer is filled anew at once. Who has how many bounds the whole: a fetch gathers [`GATHERED`] while as much
//! is being written and hashed ([`super::hashing`]), ranges fetched aside of the stream have leave for what they bring
//! ([`super::stripes`]), and a few flights keep what came last for their readers ([`super::flight`]).
//!
//! What a buffer holds begins with a page, so that the disk can have it without a copy ([`PAGE`]).

use crate::content::disk::PAGE;
use crate::content::fixity::BLOCK;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Octets of a buffer: a multiple of [`BLOCK`].
pub(super) const BUFFER: usize = 4 * BLOCK as usize;

/// While the disk is busy so many octets are received ahead of it.
pub(super) const GATHERED: usize = 2 * BUFFER;

/// Buffers that are kept while nobody uses them.
const IDLE: usize = 32;

/// The buffers that nobody uses.
#[derive(Default)]
pub(in crate::content) struct Buffers {
    idle: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// An empty one.
    pub(super) fn lend(self: &Arc<Self>) -> Filling {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut memory = idle.unwrap_or_else(|| Vec::with_capacity(PAGE + BUFFER));
        // Less than a page.
        let first = memory.as_ptr().addr().wrapping_neg() % PAGE;
        memory.resize(first, 0);
        Filling { lent: Lent { memory, first, home: Arc::clone(self) } }
    }
}

/// Goes home when nobody holds a part of it any more.
///
/// Invariant: `memory` has room for [`BUFFER`] octets from `first` on, where a page begins, and is never moved.
struct Lent {
    memory: Vec<u8>,
    first: usize,
    home: Arc<Buffers>,
}

impl Lent {
    fn len(&self) -> usize {
        self.memory.len() - self.first
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.first..]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut memory = std::mem::take(&mut self.memory);
        memory.clear();
        let mut idle = self.home.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE {
            idle.push(memory);
        }
    }
}

/// A buffer that is being filled.
pub(super) struct Filling {
    lent: Lent,
}

impl Filling {
    /// Takes as many of `octets` as have room; answers the others.
    pub(super) fn fill<'a>(&mut self, octets: &'a [u8]) -> &'a [u8] {
        let (taken, left) = octets.split_at(octets.len().min(BUFFER - self.lent.len()));
        self.lent.memory.extend_from_slice(taken);
        left
    }

    pub(super) fn is_full(&self) -> bool {
        self.lent.len() == BUFFER
    }

    pub(super) fn len(&self) -> usize {
        self.lent.len()
    }

    /// What it holds. A buffer that is nearly empty is not held for it.
    pub(super) fn freeze(self) -> Bytes {
        match self.len() < BUFFER / 2 {
            true => Bytes::copy_from_slice(self.lent.as_ref()),
            false => Bytes::from_owner(self.lent),
        }
    }
}

/// Octets in order, not yet with the writer: from a whole number of blocks on.
pub(super) struct Gathered {
    buffers: Arc<Buffers>,
    /// Whole blocks.
    ready: VecDeque<Bytes>,
    filling: Option<Filling>,
    octets: usize,
}

impl Gathered {
    pub(super) fn new(buffers: Arc<Buffers>) -> Gathered {
        Gathered { buffers, ready: VecDeque::new(), filling: None, octets: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.octets
    }

    /// Whether there is a whole block.
    pub(super) fn has_blocks(&self) -> bool {
        self.octets >= BLOCK as usize
    }

    pub(super) fn clear(&mut self) {
        *self = Gathered::new(Arc::clone(&self.buffers));
    }

    /// More came. Of a buffer that is full, or nearly, nothing is copied.
    pub(super) fn push(&mut self, octets: Bytes) {
        self.octets += octets.len();
        if self.filling.is_none() && octets.len() >= BUFFER / 2 && octets.len().is_multiple_of(BLOCK as usize) {
            self.ready.push_back(octets);
            return;
        }
        let mut left = &octets[..];
        while !left.is_empty() {
            let mut filling = self.filling.take().unwrap_or_else(|| self.buffers.lend());
            left = filling.fill(left);
            match filling.is_full() {
                true => self.ready.push_back(filling.freeze()),
                false => self.filling = Some(filling),
            }
        }
    }

    /// The whole blocks.
    pub(super) fn take_blocks(&mut self) -> Vec<Bytes> {
        let mut blocks: Vec<Bytes> = self.ready.drain(..).collect();
        if let Some(filling) = self.filling.take_if(|filling| filling.len() >= BLOCK as usize) {
            let mut octets = filling.freeze();
            let rest = octets.split_off(octets.len() - octets.len() % BLOCK as usize);
            blocks.push(octets);
            if !rest.is_empty() {
                let mut filling = self.buffers.lend();
                filling.fill(&rest);
                self.filling = Some(filling);
            }
        }
        self.octets = self.filling.as_ref().map_or(0, Filling::len);
        blocks
    }

    /// All of it.
    pub(super) fn take(&mut self) -> Vec<Bytes> {
        self.octets = 0;
        let last = self.filling.take().map(Filling::freeze);
        self.ready.drain(..).chain(last).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered() -> Gathered {
        Gathered::new(Arc::default())
    }

    /// Octets that tell their place.
    fn octets(length: usize) -> Vec<u8> {
        (0..length).map(|place| (place / 251 + place) as u8).collect()
    }

    #[test]
    fn whole_blocks_are_given_away_in_order_and_the_rest_stays() {
        let all = octets(3 * BUFFER + 77);
        let (mut gathered, mut seen, mut from) = (gathered(), Vec::new(), 0_usize);
        for step in [1, 100_000, BUFFER, 31, BUFFER / 2, usize::MAX] {
            let to = from.max(from.saturating_add(step).min(all.len()));
            gathered.push(Bytes::copy_from_slice(&all[from..to]));
            from = to;
            for piece in gathered.take_blocks() {
                assert!(piece.len().is_multiple_of(BLOCK as usize));
                seen.extend_from_slice(&piece);
            }
            assert!(!gathered.has_blocks() && seen.len() + gathered.len() == from);
        }
        gathered.take().iter().for_each(|piece| seen.extend_from_slice(piece));
        assert!(seen == all && gathered.len() == 0);
    }

    #[test]
    fn what_comes_in_whole_blocks_is_not_copied() {
        let mut gathered = gathered();
        let piece = Bytes::from(octets(BUFFER));
        gathered.push(piece.clone());
        assert_eq!(gathered.take_blocks()[0].as_ptr(), piece.as_ptr());
        gathered.push(Bytes::from_static(b"a"));
        gathered.push(piece.clone());
        assert_ne!(gathered.take_blocks()[0].as_ptr(), piece.as_ptr(), "behind a part of a block it must be");
    }

    #[test]
    fn buffers_are_used_again_and_a_bounded_number_is_kept() {
        let buffers = Arc::<Buffers>::default();
        let full = || {
            let mut filling = buffers.lend();
            assert!(filling.fill(&octets(BUFFER + 3)).len() == 3 && filling.is_full());
            filling.freeze()
        };
        let first = full().as_ptr();
        assert_eq!(full().as_ptr(), first);
        let many: Vec<Bytes> = (0..2 * IDLE).map(|_| full()).collect();
        drop(many);
        assert_eq!(buffers.idle.lock().unwrap().len(), IDLE);
    }

    #[test]
    fn a_buffer_begins_with_a_page_and_holds_what_was_put_into_it() {
        let buffers = Arc::<Buffers>::default();
        for round in 0..3 {
            let held: Vec<_> = (0..2 * IDLE)
                .map(|number| {
                    let mut filling = buffers.lend();
                    assert_eq!(filling.fill(&vec![number as u8; 1 + number]).len(), 0);
                    assert_eq!((filling.len(), filling.fill(&octets(BUFFER)).len()), (1 + number, 1 + number));
                    filling.freeze()
                })
                .collect();
            for (number, buffer) in held.iter().enumerate() {
                assert!(buffer.as_ptr().addr().is_multiple_of(PAGE), "round {round}");
                assert!(buffer[..=number] == vec![number as u8; 1 + number]);
                assert!(buffer[1 + number..] == octets(BUFFER)[..BUFFER - 1 - number]);
            }
        }
    }

    #[test]
    fn a_small_part_does_not_hold_a_buffer() {
        let buffers = Arc::<Buffers>::default();
        let mut filling = buffers.lend();
        filling.fill(b"abc");
        let part = filling.freeze();
        assert_eq!((&part[..], buffers.idle.lock().unwrap().len()), (&b"abc"[..], 1));
    }
}
