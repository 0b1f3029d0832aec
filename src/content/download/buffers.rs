//! Bytes on their way from the network to the disk and to readers: in buffers that are used again and again.
//!
//! What reqwest hands out may be a small part of a large buffer, which lives as long as the part. Copied here it holds what it
//! is, and the buffer is filled anew at once.
//!
//! The whole is bound. All fetches of a mount together, of all hosts, have leave for the whole blocks of [`GATHERED_BY_ALL`] bytes that
//! came and are not written and hashed yet ([`Leave`]); each gathers [`GATHERED`] at most, a few up to [`GATHERED_AT_ONCE`], while as
//! much is being written and as much hashed. There is no more leave while all buffers hold more than [`LENT`]. It is had for what only
//! the disk keeps waiting, never for what a server is to send, and nobody waits for it: a fetch for which none is left has what it
//! holds written before it receives more. So beyond all leave a fetch has a block, what came at once, and as much being hashed. Beside
//! that, ranges fetched aside of the stream have leave for what they bring ([`super::stripes`]), and a few downloads keep what came last
//! for their readers ([`super::state`]).
//!
//! What a buffer holds begins with a page, so that the disk can have it without a copy ([`crate::content::store::PAGE`]). Its memory
//! is mapped for it alone, and goes back to the kernel with it: among what an allocator has in use it would stay, hundreds of megabytes
//! after large files were read beside small ones.

use crate::content::fixity::BLOCK;
use bytes::Bytes;
use memmap2::MmapMut;
use std::alloc::{Layout, handle_alloc_error};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of a buffer: a multiple of [`BLOCK`].
pub(super) const BUFFER: usize = 4 * BLOCK as usize;

/// While the disk is busy so many bytes are received ahead of it. They stay in the processors' caches from the copy to the digest and
/// the reader.
pub(super) const GATHERED: usize = 2 * BUFFER;

/// The same of one body whose readers have its latest bytes from memory: the disk, which has them in one write, is faster the
/// more of them there are.
pub(super) const GATHERED_AT_ONCE: usize = if cfg!(test) { 3 * BUFFER } else { 8 * BUFFER };

/// What is written and what was written before it are what readers look for.
const _: () = assert!(2 * GATHERED_AT_ONCE as u64 <= super::state::LATEST);

/// Bytes that all fetches together may have gathered and not written.
pub(super) const GATHERED_BY_ALL: usize = if cfg!(test) { 8 * BUFFER } else { 192 * BUFFER };

/// While all buffers that somebody has, for whatever it is, hold more bytes than these, there is no leave for more.
const LENT: usize = 192 * BUFFER;

/// In blocks: all of it, and where less is left a fetch gets no more than a block's room at once.
const ALL: usize = GATHERED_BY_ALL / BLOCK as usize;
const SCARCE: usize = ALL / 3;

/// Buffers that are kept while nobody uses them: a mount that has read a large file keeps their 32 MiB.
const IDLE: usize = 64;

/// The buffers that nobody uses, and leave to have others.
pub(in crate::content) struct Buffers {
    idle: Mutex<Vec<MmapMut>>,
    /// For so many blocks.
    left: Arc<Semaphore>,
    /// Bytes of the buffers that somebody has.
    lent: AtomicUsize,
}

impl Default for Buffers {
    fn default() -> Buffers {
        Buffers { idle: Mutex::default(), left: Arc::new(Semaphore::new(ALL)), lent: AtomicUsize::new(0) }
    }
}

/// Leave for the memory of some bytes, until nobody works at them any more; for none where it is of none.
#[derive(Clone, Default)]
pub(super) struct Leave(#[expect(dead_code, reason = "it is held, not looked at")] Option<Arc<OwnedSemaphorePermit>>);

impl Buffers {
    /// An empty one of [`BUFFER`] bytes.
    pub(super) fn lend(self: &Arc<Self>) -> Filling {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        self.filling(idle.unwrap_or_else(|| mapped(BUFFER)))
    }

    /// An empty one, of a block where leave is scarce.
    fn lend_for_gathering(self: &Arc<Self>) -> Filling {
        match self.left.available_permits() > SCARCE && self.lent() <= LENT {
            true => self.lend(),
            false => self.filling(mapped(BLOCK as usize)),
        }
    }

    fn filling(self: &Arc<Self>, memory: MmapMut) -> Filling {
        Filling { lent: Lent { memory: Some(memory), bytes: 0, home: Arc::clone(self) } }
    }

    /// Bytes in the buffers that somebody has.
    pub(super) fn lent(&self) -> usize {
        self.lent.load(Ordering::Relaxed)
    }

    /// Bytes for which there is leave still.
    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.left.available_permits() * BLOCK as usize
    }
}

/// So many bytes of memory that nobody else has; where there are none the process ends, as it does for any other.
fn mapped(bytes: usize) -> MmapMut {
    MmapMut::map_anon(bytes).unwrap_or_else(|_| handle_alloc_error(Layout::new::<[u8; BLOCK as usize]>()))
}

/// Goes home when nobody holds a part of it any more.
struct Lent {
    /// Gone when this is dropped.
    memory: Option<MmapMut>,
    /// Its first, which were put into it.
    bytes: usize,
    home: Arc<Buffers>,
}

impl Lent {
    /// Bytes that have room.
    fn room(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.len())
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory[..self.bytes])
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        self.home.lent.fetch_sub(self.bytes, Ordering::Relaxed);
        if memory.len() < BUFFER {
            return;
        }
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
    /// Takes as many of `bytes` as have room; answers the others.
    pub(super) fn fill<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Lent { memory: Some(memory), bytes: filled, .. } = &mut self.lent else { return bytes };
        let (taken, left) = bytes.split_at(bytes.len().min(memory.len() - *filled));
        memory[*filled..*filled + taken.len()].copy_from_slice(taken);
        *filled += taken.len();
        self.lent.home.lent.fetch_add(taken.len(), Ordering::Relaxed);
        left
    }

    pub(super) fn is_full(&self) -> bool {
        self.lent.bytes == self.lent.room()
    }

    pub(super) fn len(&self) -> usize {
        self.lent.bytes
    }

    /// What it holds. A buffer that is nearly empty is not held for it.
    pub(super) fn freeze(self) -> Bytes {
        match self.len() < self.lent.room() / 2 {
            true => Bytes::copy_from_slice(self.lent.as_ref()),
            false => Bytes::from_owner(self.lent),
        }
    }
}

/// Bytes for the writer, with the leave to have them.
#[derive(Default)]
pub(super) struct Blocks {
    pub(super) pieces: Vec<Bytes>,
    pub(super) leave: Leave,
}

/// Bytes in order, not yet with the writer: from a whole number of blocks on.
pub(super) struct Gathered {
    buffers: Arc<Buffers>,
    /// Whole blocks.
    ready: VecDeque<Bytes>,
    filling: Option<Filling>,
    bytes: usize,
    /// For so many whole blocks of them.
    leave: Option<OwnedSemaphorePermit>,
}

impl Gathered {
    pub(super) fn new(buffers: Arc<Buffers>) -> Gathered {
        Gathered { buffers, ready: VecDeque::new(), filling: None, bytes: 0, leave: None }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there is a whole block.
    pub(super) fn has_blocks(&self) -> bool {
        self.bytes >= BLOCK as usize
    }

    pub(super) fn clear(&mut self) {
        *self = Gathered::new(Arc::clone(&self.buffers));
    }

    /// More came. Of a buffer that is full, or nearly, nothing is copied. `false`: there is not leave for all of it, it is to be written
    /// before more is received.
    pub(super) fn push(&mut self, bytes: Bytes) -> bool {
        self.bytes += bytes.len();
        if self.filling.is_none() && bytes.len() >= BUFFER / 2 && bytes.len().is_multiple_of(BLOCK as usize) {
            self.ready.push_back(bytes);
            return self.has_leave();
        }
        let mut left = &bytes[..];
        while !left.is_empty() {
            let mut filling = self.filling.take().unwrap_or_else(|| self.buffers.lend_for_gathering());
            left = filling.fill(left);
            match filling.is_full() {
                true => self.ready.push_back(filling.freeze()),
                false => self.filling = Some(filling),
            }
        }
        self.has_leave()
    }

    /// The whole blocks.
    pub(super) fn take_blocks(&mut self) -> Blocks {
        let mut pieces: Vec<Bytes> = self.ready.drain(..).collect();
        if let Some(filling) = self.filling.take_if(|filling| filling.len() >= BLOCK as usize) {
            let mut bytes = filling.freeze();
            let rest = bytes.split_off(bytes.len() - bytes.len() % BLOCK as usize);
            pieces.push(bytes);
            if !rest.is_empty() {
                let mut filling = self.buffers.lend_for_gathering();
                filling.fill(&rest);
                self.filling = Some(filling);
            }
        }
        self.bytes = self.filling.as_ref().map_or(0, Filling::len);
        Blocks { pieces, leave: self.take_leave() }
    }

    /// All of it.
    pub(super) fn take(&mut self) -> Blocks {
        self.bytes = 0;
        let last = self.filling.take().map(Filling::freeze);
        Blocks { pieces: self.ready.drain(..).chain(last).collect(), leave: self.take_leave() }
    }

    /// It holds what it has for a reader, and within another bound: others have leave meanwhile.
    pub(super) fn give_leave_back(&mut self) {
        self.leave = None;
    }

    fn take_leave(&mut self) -> Leave {
        Leave(self.leave.take().map(Arc::new))
    }

    /// Whether there is leave for all whole blocks.
    fn has_leave(&mut self) -> bool {
        let had = self.leave.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = (self.bytes / BLOCK as usize).saturating_sub(had);
        if missing == 0 {
            return true;
        }
        if self.buffers.lent() > LENT {
            return false;
        }
        // At most all there are.
        let Ok(more) = Arc::clone(&self.buffers.left).try_acquire_many_owned(missing.min(ALL + 1) as u32) else {
            return false;
        };
        match &mut self.leave {
            Some(leave) => leave.merge(more),
            none => *none = Some(more),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::store::PAGE;

    fn gathered() -> Gathered {
        Gathered::new(Arc::default())
    }

    /// Bytes that tell their place.
    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|place| (place / 251 + place) as u8).collect()
    }

    #[test]
    fn whole_blocks_are_given_away_in_order_and_the_rest_stays() {
        let all = bytes(3 * BUFFER + 77);
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
        let piece = Bytes::from(bytes(BUFFER));
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
            assert!(filling.fill(&bytes(BUFFER + 3)).len() == 3 && filling.is_full());
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
                    assert_eq!((filling.len(), filling.fill(&bytes(BUFFER)).len()), (1 + number, 1 + number));
                    filling.freeze()
                })
                .collect();
            for (number, buffer) in held.iter().enumerate() {
                assert!(buffer.as_ptr().addr().is_multiple_of(PAGE), "round {round}");
                assert!(buffer[..=number] == vec![number as u8; 1 + number]);
                assert!(buffer[1 + number..] == bytes(BUFFER)[..BUFFER - 1 - number]);
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

    #[test]
    fn all_fetches_together_have_leave_for_no_more_than_is_left() {
        let buffers = Arc::<Buffers>::default();
        let mut fetches: Vec<Gathered> = (0..ALL).map(|_| Gathered::new(Arc::clone(&buffers))).collect();
        let less = Bytes::from(bytes(BLOCK as usize - 1));

        assert!(fetches.iter_mut().all(|fetch| fetch.push(less.clone())));
        assert_eq!(buffers.left(), GATHERED_BY_ALL, "what a server is to send has none");
        let with_two = fetches.iter_mut().filter_map(|fetch| fetch.push(less.clone()).then_some(())).count();
        assert_eq!((with_two, buffers.left()), (ALL, 0));
        assert!(!fetches[0].push(less.clone()));

        drop(fetches[1].take_blocks());
        assert!(fetches[0].push(Bytes::new()), "what was written makes room");
    }

    #[test]
    fn there_is_no_leave_while_all_others_have_as_much_memory_as_may_be() {
        let buffers = Arc::<Buffers>::default();
        let full = bytes(BUFFER);
        let lend = |_| {
            let mut filling = buffers.lend();
            filling.fill(&full);
            filling
        };
        let mut others: Vec<Filling> = (0..=LENT / BUFFER).map(lend).collect();
        let mut gathered = Gathered::new(Arc::clone(&buffers));

        assert!(gathered.push(Bytes::from(bytes(BLOCK as usize - 1))), "it is no block yet");
        assert!(!gathered.push(Bytes::from(bytes(1))));
        assert_eq!(gathered.take_blocks().pieces.concat(), [bytes(BLOCK as usize - 1), bytes(1)].concat());

        others.truncate(LENT / BUFFER - 1);
        assert!(gathered.push(Bytes::from(bytes(BLOCK as usize))));
        drop((others, gathered));
        assert_eq!((buffers.lent(), buffers.left()), (0, GATHERED_BY_ALL));
    }

    #[test]
    fn leave_is_given_back_when_nobody_works_at_the_bytes_any_more() {
        let buffers = Arc::<Buffers>::default();
        let had = || (GATHERED_BY_ALL - buffers.left()) / BLOCK as usize;
        let mut gathered = Gathered::new(Arc::clone(&buffers));
        assert!(gathered.push(Bytes::from(bytes(2 * BLOCK as usize + 5))));
        assert_eq!(had(), 2);
        let blocks = gathered.take_blocks();
        let hashed = blocks.leave.clone();
        drop(blocks);
        assert_eq!(had(), 2, "it is still being hashed");
        drop(hashed);
        assert_eq!((had(), gathered.len()), (0, 5));

        assert!(gathered.push(Bytes::from(bytes(BUFFER))));
        assert_eq!(had(), 4);
        gathered.give_leave_back();
        assert_eq!(had(), 0);
        assert!(gathered.push(Bytes::new()));
        assert_eq!(had(), 4, "more came");
        gathered.clear();
        assert_eq!(had(), 0);
    }

    #[test]
    fn what_is_gathered_without_leave_is_the_same() {
        let buffers = Arc::<Buffers>::default();
        let _others = Arc::clone(&buffers.left).try_acquire_many_owned(ALL as u32 - 3).unwrap();
        let all = bytes(3 * BUFFER + 77);
        let (mut gathered, mut seen) = (Gathered::new(Arc::clone(&buffers)), Vec::new());
        let mut refused = 0;
        for piece in all.chunks(50_000) {
            if !gathered.push(Bytes::copy_from_slice(piece)) {
                refused += 1;
                gathered.take_blocks().pieces.iter().for_each(|piece| seen.extend_from_slice(piece));
            }
        }
        gathered.take().pieces.iter().for_each(|piece| seen.extend_from_slice(piece));
        assert!(seen == all && refused > 2);
    }
}
