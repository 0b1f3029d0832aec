//! Memory for what the cache folder has no room for: whole objects, and the latest bytes of those that go past it.
//!
//! All who read share it. Of what goes past the less is held the more of it goes past at once; what somebody waits for is held
//! in any case. Who finds no place waits for one, some minutes at most: who has one comes further or ends, within the deadlines of
//! a fetch, but no sooner than its readers do.

use crate::content::download::window::WINDOW;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Objects that are fetched into memory at once, each of up to [`crate::content::fixity::WHOLE_LIMIT`].
const WHOLE: usize = 4;

/// Objects that go past at once.
const PASSING: usize = if cfg!(test) { 6 } else { 32 };

/// Bytes that are held of each at least.
const LEAST: u64 = 2 << 20;

/// Bytes that are held of all objects that go past.
const WINDOWS: u64 = PASSING as u64 * LEAST;

/// The places of one mount.
pub(in crate::content) struct Shares {
    whole: Arc<Semaphore>,
    passing: Arc<Semaphore>,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares { whole: Arc::new(Semaphore::new(WHOLE)), passing: Arc::new(Semaphore::new(PASSING)) }
    }
}

impl Shares {
    /// A place for one object held whole. Acquiring fails on a closed semaphore only, and these never are.
    pub(super) async fn whole(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.whole).acquire_owned().await.ok()
    }

    /// The same for whom it is not worth a wait.
    pub(super) fn whole_at_once(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.whole).try_acquire_owned().ok()
    }

    /// A place for one object that goes past.
    pub(super) async fn passing(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.passing).acquire_owned().await.ok()
    }

    /// Bytes that each of those that go past may hold, as things stand: 2 to 16 MiB.
    pub(super) fn window(&self) -> u64 {
        let passing = PASSING - self.passing.available_permits();
        (WINDOWS / passing.max(1) as u64).min(WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_more_go_past_the_less_is_held_of_each() {
        let shares = Shares::default();
        let (mut places, mut windows) = (Vec::new(), Vec::new());
        for _ in 0..PASSING {
            places.push(shares.passing().await);
            windows.push(shares.window());
            assert!(windows.len() as u64 * shares.window() <= WINDOWS);
        }
        assert_eq!((windows[0], windows[PASSING - 1]), (WINDOW.min(WINDOWS), LEAST));
    }
}
