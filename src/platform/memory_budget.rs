//! One budget of bytes in memory, which everything that buffers draws from.
//!
//! Reservations are granted in the order in which they were asked for. Memory that can be dropped at any time (a cache) draws
//! from the same budget and is asked to shrink before anything waits.

use bytes::Bytes;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Frees at least so many bytes where it can.
type Reclaim = Box<dyn Fn(usize) + Send + Sync>;

/// Clones share the bytes.
#[derive(Clone)]
pub(crate) struct Budget {
    shared: Arc<BudgetState>,
}

struct BudgetState {
    /// A permit for each byte. The semaphore is fair and a waiter that is dropped returns what it had.
    free: Arc<Semaphore>,
    bytes: usize,
    /// Bytes that reservations wait for.
    waiting: AtomicUsize,
    reclaim: OnceLock<Reclaim>,
}

impl Budget {
    /// At most 4 GiB and a semaphore's most.
    pub(crate) fn new(bytes: usize) -> Budget {
        let bytes = bytes.min(u32::MAX as usize).min(Semaphore::MAX_PERMITS);
        let free = Arc::new(Semaphore::new(bytes));
        Budget { shared: Arc::new(BudgetState { free, bytes, waiting: AtomicUsize::new(0), reclaim: OnceLock::new() }) }
    }

    /// `reclaim` is called with the bytes that are missing, before a reservation waits or is refused. It may drop reservations, and takes none.
    /// Only the first call has an effect.
    pub(crate) fn on_shortage(&self, reclaim: impl Fn(usize) + Send + Sync + 'static) {
        let _ = self.shared.reclaim.set(Box::new(reclaim));
    }

    /// Waits until `bytes` are free; more than the whole budget counts as the whole. May be dropped while it waits.
    pub(crate) async fn reserve(&self, bytes: usize) -> Reservation {
        if let Some(reservation) = self.try_reserve(bytes) {
            return reservation;
        }
        let bytes = bytes.min(self.shared.bytes);
        let _waiting = WaitingBytes::new(&self.shared, bytes);
        // A cache that took bytes before it could see this one wait gives them up now.
        self.reclaim(bytes);
        let permits = Arc::clone(&self.shared.free).acquire_many_owned(bytes as u32).await;
        // It is never closed.
        Reservation { permits: permits.ok() }
    }

    /// Reserves at once; `None` where they are not free or where others wait.
    pub(crate) fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        let bytes = bytes.min(self.shared.bytes);
        let take = || Arc::clone(&self.shared.free).try_acquire_many_owned(bytes as u32).ok();
        let permits = take().or_else(|| {
            self.reclaim(bytes);
            take()
        })?;
        Some(Reservation { permits: Some(permits) })
    }

    /// Bytes that reservations wait for: a cache does not grow while there are any.
    pub(crate) fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::SeqCst)
    }

    /// Answers whether so many bytes are free, or a cache can give up as many as are missing.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.reclaim(bytes);
        self.free() >= bytes
    }

    pub(crate) fn free(&self) -> usize {
        self.shared.free.available_permits()
    }

    fn reclaim(&self, bytes: usize) {
        let missing = bytes.saturating_sub(self.free());
        if missing > 0 {
            if let Some(reclaim) = self.shared.reclaim.get() {
                reclaim(missing);
            }
        }
    }
}

/// Counted in [`BudgetState::waiting`] while it is there.
struct WaitingBytes<'a> {
    shared: &'a BudgetState,
    bytes: usize,
}

impl WaitingBytes<'_> {
    fn new(shared: &BudgetState, bytes: usize) -> WaitingBytes<'_> {
        shared.waiting.fetch_add(bytes, Ordering::SeqCst);
        WaitingBytes { shared, bytes }
    }
}

impl Drop for WaitingBytes<'_> {
    fn drop(&mut self) {
        self.shared.waiting.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// Bytes of the budget, released at drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    permits: Option<OwnedSemaphorePermit>,
}

impl Reservation {
    pub(crate) fn bytes(&self) -> usize {
        self.permits.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// A reservation of `bytes` of this one, at most all, split off.
    pub(crate) fn split(&mut self, bytes: usize) -> Reservation {
        let bytes = bytes.min(self.bytes());
        Reservation { permits: self.permits.as_mut().and_then(|permits| permits.split(bytes)) }
    }

    /// Releases all but `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        drop(self.split(self.bytes().saturating_sub(bytes)));
    }

    /// `bytes`, which hold the reservation until their last clone is dropped.
    pub(crate) fn attach(mut self, bytes: Bytes) -> Bytes {
        self.shrink_to(bytes.len());
        Bytes::from_owner(Charged { bytes, _reservation: self })
    }
}

struct Charged {
    bytes: Bytes,
    _reservation: Reservation,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::sync::Mutex;

    #[tokio::test]
    async fn bytes_are_free_again_when_a_reservation_is_dropped() {
        let budget = Budget::new(100);
        let first = budget.reserve(60).await;
        assert!(budget.try_reserve(41).is_none());
        let second = budget.try_reserve(40);
        assert_eq!(budget.free(), 0);
        drop((first, second));
        assert_eq!(budget.free(), 100);
    }

    #[tokio::test]
    async fn a_large_reservation_is_not_overtaken_by_small_ones() {
        let budget = Budget::new(100);
        let held = budget.reserve(50).await;
        let mut large = Box::pin(budget.reserve(80));
        assert!((&mut large).now_or_never().is_none());
        assert!(budget.try_reserve(1).is_none(), "one waits");
        let mut small = Box::pin(budget.reserve(30));
        assert!((&mut small).now_or_never().is_none());
        assert_eq!(budget.waiting(), 110);

        drop(held);
        assert!((&mut small).now_or_never().is_none());
        let large = large.now_or_never().unwrap();
        assert!((&mut small).now_or_never().is_none());
        drop(large);
        assert_eq!(small.await.bytes(), 30);
        assert_eq!((budget.free(), budget.waiting()), (100, 0));
    }

    #[tokio::test]
    async fn a_dropped_waiter_reserves_nothing() {
        let budget = Budget::new(100);
        let held = budget.reserve(50).await;
        let mut large = Box::pin(budget.reserve(80));
        assert!((&mut large).now_or_never().is_none());
        let mut next = Box::pin(budget.reserve(50));
        assert!((&mut next).now_or_never().is_none());

        drop(large);
        let next = next.now_or_never().unwrap();
        assert_eq!((budget.free(), budget.waiting()), (0, 0));
        drop((held, next));
        assert_eq!(budget.free(), 100);
    }

    #[tokio::test]
    async fn more_than_the_whole_budget_waits_for_the_whole() {
        let budget = Budget::new(100);
        assert_eq!(budget.reserve(1 << 40).await.bytes(), 100);
        assert_eq!(budget.try_reserve(0).unwrap().bytes(), 0);
    }

    #[test]
    fn parts_of_a_reservation_are_released_alone() {
        let budget = Budget::new(100);
        let mut all = budget.try_reserve(100).unwrap();
        let part = all.split(30);
        assert_eq!((all.bytes(), part.bytes(), budget.free()), (70, 30, 0));
        all.shrink_to(20);
        assert_eq!((all.bytes(), budget.free()), (20, 50));
        all.shrink_to(90);
        let rest = all.split(90);
        assert_eq!((rest.bytes(), all.bytes(), budget.free()), (20, 0, 50));
        drop((all, part, rest));
        assert_eq!(budget.free(), 100);
    }

    #[test]
    fn bytes_hold_their_reservation_until_the_last_clone_is_dropped() {
        let budget = Budget::new(100);
        let bytes = budget.try_reserve(50).unwrap().attach(Bytes::from_static(b"abc"));
        assert_eq!((&bytes[..], budget.free()), (&b"abc"[..], 97));
        let part = bytes.slice(1..2);
        drop(bytes);
        assert_eq!((&part[..], budget.free()), (&b"b"[..], 97));
        drop(part);
        assert_eq!(budget.free(), 100);
    }

    #[tokio::test]
    async fn a_cache_shrinks_before_anything_waits() {
        let budget = Budget::new(100);
        let cached: Arc<Mutex<Vec<Reservation>>> = Arc::default();
        for _ in 0..10 {
            cached.lock().unwrap().push(budget.try_reserve(10).unwrap());
        }
        let shrinking = Arc::clone(&cached);
        budget.on_shortage(move |bytes| {
            let mut cached = shrinking.lock().unwrap();
            let left = cached.len().saturating_sub(bytes.div_ceil(10));
            cached.truncate(left);
        });

        assert_eq!(budget.try_reserve(25).unwrap().bytes(), 25);
        assert_eq!((cached.lock().unwrap().len(), budget.free()), (7, 30));
        let held = budget.reserve(95).now_or_never().unwrap();
        assert_eq!((cached.lock().unwrap().len(), budget.free()), (0, 5));
        assert!(budget.reserve(10).now_or_never().is_none());
        drop(held);
    }
}
