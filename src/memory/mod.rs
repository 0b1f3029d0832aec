//! The memory budget, and what the allocator keeps of memory that was freed.

mod budget;

pub(crate) use budget::{Budget, Reservation};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Octets of its own that a process may have before it is worth while to give back what is free among them.
const MUCH: u64 = 128 << 20;

/// So long after something was worked at that is looked at, and after so many times as long as that took the last time.
const LOOK_AFTER: Duration = Duration::from_millis(250);
const TIMES: u32 = 50;

/// Arenas of the allocator: by default eight for each processor, and each keeps tens of megabytes of what was freed in it.
#[cfg(target_env = "gnu")]
const ARENAS: i32 = 4;

/// Bytes from which on a piece of memory goes back to the system when it is freed. Without a fixed bound it rises to 32 MiB by itself, and what
/// a crowd of downloads freed stays.
#[cfg(target_env = "gnu")]
const OWN_MAPPING: i32 = 256 << 10;

/// To be called before there are other threads.
pub(crate) fn keep_little() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes numbers (mallopt(3)). Where it refuses nothing changes.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
    }
}

/// Gives it back to the system: after much was read or written at once, tens of megabytes may lie free among what is in use, for as
/// long as nobody asks.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches nothing but what is free (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives back what lies free while the process has much of its own: so that is mostly what it uses.
#[derive(Default)]
pub(crate) struct Watch {
    is_about_to_look: AtomicBool,
    /// Microseconds that the last look took.
    took: AtomicU64,
}

impl Watch {
    /// Memory is taken and given back just now: a moment later this looks at how much there is. Costs nothing to tell often.
    pub(crate) fn working(self: &Arc<Self>, runtime: &Handle) {
        if self.is_about_to_look.load(Ordering::Relaxed) || self.is_about_to_look.swap(true, Ordering::Relaxed) {
            return;
        }
        let watch = Arc::clone(self);
        runtime.spawn(async move {
            tokio::time::sleep(LOOK_AFTER.max(TIMES * Duration::from_micros(watch.took.load(Ordering::Relaxed)))).await;
            // Others wait for the allocator while it looks through what is free.
            let _ = tokio::task::spawn_blocking(move || watch.look()).await;
        });
    }

    fn look(&self) {
        // First, so that what is told meanwhile is looked at as well.
        self.is_about_to_look.store(false, Ordering::Relaxed);
        let begun = Instant::now();
        if own_octets().is_some_and(|octets| octets > MUCH) {
            give_back();
        }
        self.took.store(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
    }
}

/// Octets of the process that are no file's: `RssAnon` of proc_pid_status(5), by proc_pid_statm(5).
fn own_octets() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    // SAFETY: takes a number (sysconf(3)).
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    own_pages(&statm)?.checked_mul(page)
}

fn own_pages(statm: &str) -> Option<u64> {
    let mut fields = statm.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, shared) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(resident.saturating_sub(shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_process_own_is_what_is_resident_and_no_files() {
        assert_eq!(own_pages("20000 1500 400 80 0 9000 0\n"), Some(1100));
        assert_eq!((own_pages("20000 1500"), own_pages("20000 a b"), own_pages("")), (None, None, None));
        assert!(own_octets().is_some_and(|octets| octets > 0));
    }

    #[cfg(target_env = "gnu")]
    #[tokio::test]
    async fn what_lies_free_among_what_is_in_use_is_given_back_soon_after_the_work() {
        const PIECES: usize = 4000;
        let watch = Arc::<Watch>::default();
        let mut pieces: Vec<Vec<u8>> = (0..PIECES).map(|_| vec![1; 100 << 10]).collect();
        let before = own_octets().unwrap();
        let mut number = 0;
        pieces.retain(|_| {
            number += 1;
            number % 16 == 0
        });

        watch.working(&Handle::current());

        let begun = Instant::now();
        while own_octets().unwrap() + (200 << 20) > before {
            assert!(begun.elapsed() < Duration::from_secs(60), "{before} octets before, {:?} now", own_octets());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(pieces.len(), PIECES / 16);
    }
}
