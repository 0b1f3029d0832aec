//! Octets on their way from the network to the disk and to readers: in buffers of one size, used again and again.
//!
//! What reqwest hands out may be a small part of a large buffer, which lives as long as the part. Copied here it holds what it
//! is, and the buffer is filled anew at once.
//!
//! The whole is bound. All fetches of a mount together, of all hosts, have leave for [`GATHERED_BY_ALL`] octets that came and are not
//! written and hashed yet ([`Leave`]); each gathers [`GATHERED`] at most while as much is being written. Where little of that is left
//! a fetch gets room for a block at a time, so that many go on; who finds none waits with what its server has sent last, and keeps
//! nothing else from the disk meanwhile. Who has leave is writing, or its server sends: that ends. Beside that, ranges fetched aside
//! of the stream have leave for what they bring ([`super::stripes`]), and a few flights keep what came last for their readers
//! ([`super::flight`]).
//!
//! What a buffer holds begins with a page, so that the disk can have it without a copy ([`PAGE`]).

use crate::content::disk::PAGE;
use crate::content::fixity::BLOCK;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Octets of a buffer: a multiple of [`BLOCK`].
pub(super) const BUFFER: usize = 4 * BLOCK as usize;

/// While the disk is busy so many octets are received ahead of it.
pub(super) const GATHERED: usize = 2 * BUFFER;

/// Octets that all fetches together may have gathered and not written.
pub(super) const GATHERED_BY_ALL: usize = if cfg!(test) { 8 * BUFFER } else { 192 * BUFFER };

/// In blocks: all of it, a buffer, and what is left to those that get a block at a time.
const ALL: usize = GATHERED_BY_ALL / BLOCK as usize;
const WHOLE: u32 = (BUFFER as u64 / BLOCK) as u32;
const LEFT_TO_BLOCKS: usize = ALL / 3;

/// Buffers that are kept while nobody uses them.
const IDLE: usize = 32;

/// The buffers that nobody uses, and leave to have others.
pub(in crate::content) struct Buffers {
    idle: Mutex<Vec<Vec<u8>>>,
    /// For so many blocks.
    left: Arc<Semaphore>,
    /// Octets of the buffers that somebody has.
    #[cfg(test)]
    lent: std::sync::atomic::AtomicUsize,
}

impl Default for Buffers {
    fn default() -> Buffers {
        Buffers {
            idle: Mutex::default(),
            left: Arc::new(Semaphore::new(ALL)),
            #[cfg(test)]
            lent: 0.into(),
        }
    }
}

/// Leave for the memory of some octets, until nobody works at them any more; for none where it is of none.
#[derive(Clone, Default)]
pub(super) struct Leave(#[expect(dead_code, reason = "it is held, not looked at")] Option<Arc<OwnedSemaphorePermit>>);

impl Buffers {
    /// An empty one of [`BUFFER`] octets, for those of whom another bound is known.
    pub(super) fn lend(self: &Arc<Self>) -> Filling {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        self.filling(idle.unwrap_or_else(|| Vec::with_capacity(PAGE + BUFFER)), BUFFER, None)
    }

    /// An empty one, of a block where there is leave for no more.
    fn lend_for(self: &Arc<Self>, leave: Option<OwnedSemaphorePermit>) -> Filling {
        match &leave {
            Some(blocks) if blocks.num_permits() >= WHOLE as usize => Filling { leave, ..self.lend() },
            _ => self.filling(Vec::with_capacity(PAGE + BLOCK as usize), BLOCK as usize, leave),
        }
    }

    fn filling(self: &Arc<Self>, mut memory: Vec<u8>, room: usize, leave: Option<OwnedSemaphorePermit>) -> Filling {
        #[cfg(test)]
        self.lent.fetch_add(memory.capacity(), std::sync::atomic::Ordering::Relaxed);
        // Less than a page.
        let first = memory.as_ptr().addr().wrapping_neg() % PAGE;
        memory.resize(first, 0);
        Filling { lent: Lent { memory, first, home: Arc::clone(self) }, room, leave }
    }

    /// Leave for a buffer, or where many have some for a block; none where all is had.
    pub(super) fn leave_at_once(&self) -> Option<OwnedSemaphorePermit> {
        let blocks = if self.left.available_permits() >= LEFT_TO_BLOCKS + WHOLE as usize { WHOLE } else { 1 };
        Arc::clone(&self.left).try_acquire_many_owned(blocks).ok()
    }

    /// Leave for a block, when others have done with it. Acquiring fails on a closed semaphore only, and this never is.
    pub(super) async fn leave(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.left).acquire_owned().await.ok()
    }

    /// Octets of the buffers that somebody has.
    #[cfg(test)]
    pub(super) fn lent(&self) -> usize {
        self.lent.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Octets for which there is leave still.
    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.left.available_permits() * BLOCK as usize
    }
}

/// Goes home when nobody holds a part of it any more.
///
/// Invariant: `memory` has room for [`Filling::room`] octets from `first` on, where a page begins, and is never moved.
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
        #[cfg(test)]
        self.home.lent.fetch_sub(memory.capacity(), std::sync::atomic::Ordering::Relaxed);
        memory.clear();
        let mut idle = self.home.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE && memory.capacity() >= PAGE + BUFFER {
            idle.push(memory);
        }
    }
}

/// A buffer that is being filled.
pub(super) struct Filling {
    lent: Lent,
    /// Octets.
    room: usize,
    leave: Option<OwnedSemaphorePermit>,
}

impl Filling {
    /// Takes as many of `octets` as have room; answers the others.
    pub(super) fn fill<'a>(&mut self, octets: &'a [u8]) -> &'a [u8] {
        let (taken, left) = octets.split_at(octets.len().min(self.room - self.lent.len()));
        self.lent.memory.extend_from_slice(taken);
        left
    }

    pub(super) fn is_full(&self) -> bool {
        self.lent.len() == self.room
    }

    pub(super) fn len(&self) -> usize {
        self.lent.len()
    }

    /// What it holds. A buffer that is nearly empty is not held for it.
    pub(super) fn freeze(self) -> Bytes {
        match self.len() < self.room / 2 {
            true => Bytes::copy_from_slice(self.lent.as_ref()),
            false => Bytes::from_owner(self.lent),
        }
    }
}

/// Octets for the writer, with the leave to have them.
#[derive(Default)]
pub(super) struct Blocks {
    pub(super) pieces: Vec<Bytes>,
    pub(super) leave: Leave,
}

/// Octets in order, not yet with the writer: from a whole number of blocks on.
pub(super) struct Gathered {
    buffers: Arc<Buffers>,
    /// Whole blocks.
    ready: VecDeque<Bytes>,
    /// For those.
    leave: Option<OwnedSemaphorePermit>,
    filling: Option<Filling>,
    /// For what comes next, where nothing is being filled.
    reserved: Option<OwnedSemaphorePermit>,
    octets: usize,
}

impl Gathered {
    pub(super) fn new(buffers: Arc<Buffers>) -> Gathered {
        Gathered { buffers, ready: VecDeque::new(), leave: None, filling: None, reserved: None, octets: 0 }
    }

    /// Whether there is leave for what is being filled, and so for something of what comes next.
    pub(super) fn has_room(&self) -> bool {
        self.filling.as_ref().map_or(self.reserved.is_some(), |filling| filling.leave.is_some())
    }

    /// There is leave for what comes next.
    pub(super) fn reserve(&mut self, leave: OwnedSemaphorePermit) {
        match &mut self.filling {
            Some(filling) => filling.leave = Some(leave),
            None => self.reserved = Some(leave),
        }
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

    /// More came. Of a buffer that is full, or nearly, nothing is copied. No more is without leave than what came at once.
    pub(super) fn push(&mut self, octets: Bytes) {
        self.octets += octets.len();
        if self.filling.is_none() && octets.len() >= BUFFER / 2 && octets.len().is_multiple_of(BLOCK as usize) {
            let leave = self.next_leave();
            self.make_ready(octets, leave);
            return;
        }
        let mut left = &octets[..];
        while !left.is_empty() {
            let mut filling = match self.filling.take() {
                Some(filling) => filling,
                None => {
                    let leave = self.next_leave();
                    self.buffers.lend_for(leave)
                }
            };
            left = filling.fill(left);
            match filling.is_full() {
                true => self.freeze(filling),
                false => self.filling = Some(filling),
            }
        }
    }

    /// The whole blocks.
    pub(super) fn take_blocks(&mut self) -> Blocks {
        if let Some(filling) = self.filling.take_if(|filling| filling.len() >= BLOCK as usize) {
            self.freeze(filling);
        }
        let rest = match self.ready.back_mut() {
            Some(last) => last.split_off(last.len() - last.len() % BLOCK as usize),
            None => Bytes::new(),
        };
        let mut leave = self.leave.take();
        if !rest.is_empty() {
            let own = self.next_leave().or_else(|| leave.as_mut()?.split(1));
            let mut filling = self.buffers.lend_for(own);
            filling.fill(&rest);
            self.filling = Some(filling);
        }
        self.octets = self.filling.as_ref().map_or(0, Filling::len);
        Blocks { pieces: self.ready.drain(..).collect(), leave: Leave(leave.map(Arc::new)) }
    }

    /// All of it.
    pub(super) fn take(&mut self) -> Blocks {
        self.octets = 0;
        if let Some(filling) = self.filling.take() {
            self.freeze(filling);
        }
        Blocks { pieces: self.ready.drain(..).collect(), leave: Leave(self.leave.take().map(Arc::new)) }
    }

    fn next_leave(&mut self) -> Option<OwnedSemaphorePermit> {
        self.reserved.take().or_else(|| self.buffers.leave_at_once())
    }

    fn freeze(&mut self, mut filling: Filling) {
        let leave = filling.leave.take();
        self.make_ready(filling.freeze(), leave);
    }

    fn make_ready(&mut self, octets: Bytes, leave: Option<OwnedSemaphorePermit>) {
        self.ready.push_back(octets);
        match (&mut self.leave, leave) {
            (Some(all), Some(leave)) => all.merge(leave),
            (all @ None, leave) => *all = leave,
            (Some(_), None) => {}
        }
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
            for piece in gathered.take_blocks().pieces {
                assert!(piece.len().is_multiple_of(BLOCK as usize));
                seen.extend_from_slice(&piece);
            }
            assert!(!gathered.has_blocks() && seen.len() + gathered.len() == from);
        }
        gathered.take().pieces.iter().for_each(|piece| seen.extend_from_slice(piece));
        assert!(seen == all && gathered.len() == 0);
    }

    #[test]
    fn what_comes_in_whole_blocks_is_not_copied() {
        let mut gathered = gathered();
        let piece = Bytes::from(octets(BUFFER));
        gathered.push(piece.clone());
        assert_eq!(gathered.take_blocks().pieces[0].as_ptr(), piece.as_ptr());
        gathered.push(Bytes::from_static(b"a"));
        gathered.push(piece.clone());
        assert_ne!(gathered.take_blocks().pieces[0].as_ptr(), piece.as_ptr(), "behind a part of a block it must be");
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

    /// What a fetch does with what came, as long as there is leave for more.
    fn gather(gathered: &mut Gathered, octets: &[u8]) -> bool {
        if !gathered.has_room() {
            let Some(leave) = gathered.buffers.leave_at_once() else { return false };
            gathered.reserve(leave);
        }
        gathered.push(Bytes::copy_from_slice(octets));
        true
    }

    #[test]
    fn all_fetches_together_gather_no_more_than_is_left_and_the_last_of_it_block_by_block() {
        let buffers = Arc::<Buffers>::default();
        let piece = octets(BLOCK as usize / 4);
        let mut fetches: Vec<Gathered> = (0..2 * ALL).map(|_| Gathered::new(Arc::clone(&buffers))).collect();

        let began = fetches.iter_mut().filter_map(|fetch| gather(fetch, &piece).then_some(())).count();
        assert_eq!(buffers.left(), 0);
        let with_a_buffer = (ALL - LEFT_TO_BLOCKS) / WHOLE as usize;
        assert_eq!(began, with_a_buffer + (ALL - with_a_buffer * WHOLE as usize));

        for fetch in &mut fetches {
            while gather(fetch, &piece) {}
        }
        let octets: usize = fetches.iter().map(Gathered::len).sum();
        assert_eq!(octets, GATHERED_BY_ALL, "none holds what it does not fill for ever");
    }

    #[test]
    fn leave_is_given_back_when_nobody_works_at_the_octets_any_more() {
        let buffers = Arc::<Buffers>::default();
        let mut gathered = Gathered::new(Arc::clone(&buffers));
        assert!(gather(&mut gathered, &octets(BLOCK as usize + 5)));
        let blocks = gathered.take_blocks();
        let hashed = blocks.leave.clone();
        assert_eq!(GATHERED_BY_ALL - buffers.left(), 2 * BUFFER, "the block, and what is left of it");

        drop(blocks);
        assert_eq!(GATHERED_BY_ALL - buffers.left(), 2 * BUFFER, "it is still being hashed");
        drop(hashed);
        assert_eq!(GATHERED_BY_ALL - buffers.left(), BUFFER);
        drop(gathered.take());
        assert_eq!(buffers.left(), GATHERED_BY_ALL);

        assert!(gather(&mut gathered, b"abc"));
        gathered.clear();
        assert_eq!(buffers.left(), GATHERED_BY_ALL);
    }

    #[test]
    fn what_is_gathered_block_by_block_is_the_same() {
        let buffers = Arc::<Buffers>::default();
        let mut others: Vec<_> = std::iter::from_fn(|| buffers.leave_at_once()).collect();
        others.truncate(others.len() - 3);
        let all = octets(3 * BUFFER + 77);
        let (mut gathered, mut seen) = (Gathered::new(Arc::clone(&buffers)), Vec::new());
        let mut blocks_held = 0;
        for (number, piece) in all.chunks(50_000).enumerate() {
            while !gather(&mut gathered, piece) {
                blocks_held += 1;
                gathered.take_blocks().pieces.iter().for_each(|piece| seen.extend_from_slice(piece));
            }
            if number % 11 == 0 {
                gathered.take_blocks().pieces.iter().for_each(|piece| seen.extend_from_slice(piece));
            }
        }
        gathered.take().pieces.iter().for_each(|piece| seen.extend_from_slice(piece));
        assert!(seen == all && blocks_held > 0);
    }
}
