//! Time in which requests wait for what is known, as seen by those that wait for their answers.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::{timeout, timeout_at};

/// How often a wait says what it knows of its end.
pub(super) const STEP: Duration = Duration::from_millis(250);

/// The time in which the requests of one purpose have waited for a known pause: one that their host has announced, or that the person has set. It is no
/// stall of the host. It rises while they wait.
#[derive(Clone, Debug, Default)]
pub struct KnownPause(Arc<AtomicU64>);

impl KnownPause {
    /// Counted in milliseconds in `counter`, with what else is progress.
    pub fn counted_in(counter: &Arc<AtomicU64>) -> KnownPause {
        KnownPause(Arc::clone(counter))
    }

    /// All of it so far.
    pub fn total(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    /// Returns whether it has risen above `seen`, which then is all of it so far.
    pub fn rises_above(&self, seen: &mut Duration) -> bool {
        let total = self.total();
        std::mem::replace(seen, total) < total
    }

    /// The output of `work`; `None` where a deadline passes first, which is put off by as much as this rises, up to `patience`.
    pub async fn put_off<T>(&self, deadline: Instant, patience: Duration, work: impl Future<Output = T>) -> Option<T> {
        let (mut work, before) = (pin!(work), self.total());
        loop {
            let due = deadline + self.total().saturating_sub(before).min(patience);
            match timeout_at(due.into(), &mut work).await {
                Ok(output) => return Some(output),
                Err(_) if due + self.total().saturating_sub(before).min(patience) <= Instant::now() => return None,
                Err(_) => {}
            }
        }
    }

    /// The output of `work`. As much as `other` rises meanwhile this rises too.
    pub async fn following<T>(&self, other: &KnownPause, work: impl Future<Output = T>) -> T {
        let (mut work, mut seen) = (pin!(work), other.total());
        loop {
            let output = timeout(STEP, &mut work).await;
            let before = seen;
            if other.rises_above(&mut seen) {
                self.add(seen - before);
            }
            if let Ok(output) = output {
                return output;
            }
        }
    }

    pub(super) fn add(&self, pause: Duration) {
        self.0.fetch_add(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
