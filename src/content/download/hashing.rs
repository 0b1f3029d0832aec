//! The digest of what is being written, computed beside the writer.
//!
//! Hashing takes about as long as writing does. Of a large object both are done at once: while a batch is written, another thread
//! hashes it. Nobody waits for a thread that may never be free: what was left to one and has not begun, who needs it does.

use super::buffers::{Blocks, Leave};
use crate::content::fixity::{Seen, Verifier};
use crate::document::Algorithm;
use bytes::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;

/// Fewer bytes are hashed at once: it takes less than a thread's beginning, and another's waiting for it.
const WORTH_A_THREAD: usize = 256 << 10;

/// A [`Verifier`], and what it has not seen yet.
pub(super) struct Hashing {
    length: u64,
    left: Arc<Mutex<Left>>,
}

/// At most one batch is left.
struct Left {
    /// Until [`Hashing::finish`].
    verifier: Option<Verifier>,
    batch: Vec<Bytes>,
    /// For those.
    leave: Leave,
}

impl Left {
    fn hash(&mut self) {
        for bytes in self.batch.drain(..) {
            self.verifier.iter_mut().for_each(|verifier| verifier.update(&bytes));
        }
        self.leave = Leave::default();
    }
}

/// Held by who hashes, who waits for that, and nobody else.
fn lock(left: &Mutex<Left>) -> MutexGuard<'_, Left> {
    left.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hashing {
    /// Of nothing yet.
    pub(super) fn new(algorithm: Algorithm) -> Hashing {
        let left = Left { verifier: Some(Verifier::new(algorithm)), batch: Vec::new(), leave: Leave::default() };
        Hashing { length: 0, left: Arc::new(Mutex::new(left)) }
    }

    /// Bytes added.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The next bytes. Blocks until those before are hashed.
    pub(super) fn add(&mut self, blocks: &Blocks) {
        let bytes: usize = blocks.pieces.iter().map(Bytes::len).sum();
        self.length += bytes as u64;
        let mut left = lock(&self.left);
        left.hash();
        left.batch.extend_from_slice(&blocks.pieces);
        left.leave = blocks.leave.clone();
        let beside = Handle::try_current().ok().filter(|_| bytes >= WORTH_A_THREAD);
        let Some(beside) = beside else { return left.hash() };
        drop(left);
        let left = Arc::clone(&self.left);
        beside.spawn_blocking(move || lock(&left).hash());
    }

    /// What was added, in all.
    pub(super) fn finish(self) -> Option<Seen> {
        let mut left = lock(&self.left);
        left.hash();
        left.verifier.take()?.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of a large object, a small one among them, one of none, and the last of an odd length.
    fn batches() -> Vec<Blocks> {
        let bytes =
            |seed: u8, length: usize| Bytes::from((0..length).map(|at| (at / 7) as u8 ^ seed).collect::<Vec<_>>());
        let mut batches: Vec<Vec<Bytes>> =
            (0..40).map(|seed| vec![bytes(seed, WORTH_A_THREAD), bytes(seed ^ 99, WORTH_A_THREAD / 2)]).collect();
        batches.insert(7, vec![bytes(1, 5)]);
        batches.insert(9, Vec::new());
        batches.push(vec![bytes(3, WORTH_A_THREAD + 13)]);
        batches.into_iter().map(|pieces| Blocks { pieces, leave: Leave::default() }).collect()
    }

    fn at_once(batches: &[Blocks]) -> Seen {
        let mut verifier = Verifier::new(Algorithm::Sha256);
        pieces(batches).for_each(|bytes| verifier.update(bytes));
        verifier.finish().unwrap()
    }

    fn pieces(batches: &[Blocks]) -> impl Iterator<Item = &Bytes> {
        batches.iter().flat_map(|batch| &batch.pieces)
    }

    fn beside(batches: &[Blocks]) -> Seen {
        let mut hashing = Hashing::new(Algorithm::Sha256);
        batches.iter().for_each(|batch| hashing.add(batch));
        assert_eq!(hashing.length(), pieces(batches).map(|bytes| bytes.len() as u64).sum::<u64>());
        hashing.finish().unwrap()
    }

    #[test]
    fn the_digest_is_that_of_all_bytes_in_order_with_other_threads_and_without() {
        let batches = batches();
        let expected = at_once(&batches);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();

        assert_eq!(beside(&batches), expected, "there is nobody else");
        for round in 0..20 {
            let _entered = runtime.enter();
            assert_eq!(beside(&batches), expected, "round {round}");
        }
    }

    #[test]
    fn nobody_waits_for_a_thread_that_is_never_free() {
        let batches = batches();
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        runtime.spawn_blocking(move || held.recv());
        let _entered = runtime.enter();

        assert_eq!(beside(&batches), at_once(&batches));

        release.send(()).unwrap();
    }
}
