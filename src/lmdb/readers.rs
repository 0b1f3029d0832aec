//! Read transactions that one reader leaves to the next.
//!
//! To begin one takes a place in the environment's table of readers, under a lock that all share, and every table's root is looked
//! up anew. So one that was ended well waits for the next reader, for as long as nothing was committed: as it reads the revision
//! that is current, it keeps no page from reuse that the current one does not need. A commit lets all that wait go
//! ([`Readers::let_go`]); one that is in use meanwhile is not taken back.

use heed::{Env, RoTxn, WithoutTls};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Threads that find a transaction of their own; more share, and begin one where the place is empty.
const PLACES: usize = 16;

/// A transaction of one environment, on whatever thread.
pub type Reading = RoTxn<'static, WithoutTls>;

/// The transactions that wait.
#[derive(Default)]
pub struct Readers([Place; PLACES]);

/// Of one thread, so that nobody waits for its lock; in a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Place(Mutex<Option<Reading>>);

impl Readers {
    /// A transaction that reads what was committed last.
    pub fn take(&self, env: &Env<WithoutTls>) -> heed::Result<Reading> {
        let waiting = self.place().0.try_lock().ok().and_then(|mut waiting| waiting.take());
        match waiting.filter(|reading| is_current(env, reading)) {
            Some(reading) => Ok(reading),
            None => env.clone().static_read_txn(),
        }
    }

    /// Takes one back that nothing failed in.
    pub fn give_back(&self, env: &Env<WithoutTls>, reading: Reading) {
        // Asked under the lock: a commit lets go of what waits after it has become the current one.
        if let Ok(mut waiting) = self.place().0.try_lock()
            && waiting.is_none()
            && is_current(env, &reading)
        {
            *waiting = Some(reading);
        }
    }

    /// Ends all that wait. To be called behind every commit.
    pub fn let_go(&self) {
        for Place(place) in &self.0 {
            let waiting = place.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(waiting);
        }
    }

    /// Of the thread that asks.
    fn place(&self) -> &Place {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        &self.0[NUMBER.get() % PLACES]
    }
}

/// Whether nothing was committed behind what it reads.
fn is_current(env: &Env<WithoutTls>, reading: &Reading) -> bool {
    env.info().last_txn_id == reading.id()
}
