//! How much freed memory the allocator keeps.
//!
//! That is a matter of glibc's. musl's own serves the static program: it returns what is freed. mimalloc made a first
//! mount of a million files no faster, and took three times the memory; in a `grep -r` of 10,000 files it took nineteen times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Anonymous bytes of a process from which on freed memory is returned to the system.
const MUCH: u64 = 96 << 20;

/// The memory is checked so long after the work, or so many times the length of the last check.
const CHECK_AFTER: Duration = Duration::from_millis(250);
const TIMES: u32 = 50;

/// Arenas of the allocator. By default there are eight for each processor, and each keeps tens of megabytes that were freed in it.
#[cfg(target_env = "gnu")]
const ARENAS: i32 = 4;

/// A piece of so many bytes returns to the system when it is freed. Without a fixed bound the allocator raises its own to 32 MiB, and
/// keeps what many downloads freed.
#[cfg(target_env = "gnu")]
const OWN_MAPPING: i32 = 256 << 10;

/// Bounds what the allocator keeps of freed memory. To be called before there are other threads.
pub(crate) fn bound_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes numbers (mallopt(3)). Where it refuses nothing changes.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
    }
}

/// Returns freed memory to the system: after large reads or writes tens of megabytes may be free among used ones.
pub(crate) fn release_free() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches nothing but what is free (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns freed memory to the system while the process has much anonymous memory.
#[derive(Default)]
pub(crate) struct Watch {
    is_due: AtomicBool,
    /// Length of the last check in microseconds.
    took: AtomicU64,
}

impl Watch {
    /// Memory is used and freed now: it is checked a moment later. Cheap enough for every chunk of a body.
    pub(crate) fn working(self: &Arc<Self>, runtime: &Handle) {
        if self.is_due.load(Ordering::Relaxed) || self.is_due.swap(true, Ordering::Relaxed) {
            return;
        }
        let watch = Arc::clone(self);
        runtime.spawn(async move {
            tokio::time::sleep(CHECK_AFTER.max(TIMES * Duration::from_micros(watch.took.load(Ordering::Relaxed))))
                .await;
            // Other threads wait for the allocator while it searches for free pages.
            let _ = tokio::task::spawn_blocking(move || watch.check()).await;
        });
    }

    fn check(&self) {
        // First, so that another check follows work during this one.
        self.is_due.store(false, Ordering::Relaxed);
        let begun = Instant::now();
        if anonymous_bytes().is_some_and(|bytes| bytes > MUCH) {
            release_free();
        }
        self.took.store(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
    }
}

/// Bytes of the process that belong to no file: `RssAnon` of proc_pid_status(5), by proc_pid_statm(5).
fn anonymous_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    anonymous_pages(&statm)?.checked_mul(rustix::param::page_size() as u64)
}

fn anonymous_pages(statm: &str) -> Option<u64> {
    let mut fields = statm.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, shared) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(resident.saturating_sub(shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_is_resident_without_files() {
        assert_eq!(anonymous_pages("20000 1500 400 80 0 9000 0\n"), Some(1100));
        assert_eq!(
            (anonymous_pages("20000 1500"), anonymous_pages("20000 a b"), anonymous_pages("")),
            (None, None, None)
        );
        assert!(anonymous_bytes().is_some_and(|bytes| bytes > 0));
    }

    #[cfg(target_env = "gnu")]
    #[tokio::test]
    async fn freed_memory_is_returned_soon_after_the_work() {
        const PIECES: usize = 4000;
        let watch = Arc::<Watch>::default();
        let mut pieces: Vec<Vec<u8>> = (0..PIECES).map(|_| vec![1; 100 << 10]).collect();
        let before = anonymous_bytes().unwrap();
        let mut number = 0;
        pieces.retain(|_| {
            number += 1;
            number % 16 == 0
        });

        watch.working(&Handle::current());

        let begun = Instant::now();
        while anonymous_bytes().unwrap() + (200 << 20) > before {
            assert!(begun.elapsed() < Duration::from_secs(60), "{before} bytes before, {:?} now", anonymous_bytes());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(pieces.len(), PIECES / 16);
    }
}
