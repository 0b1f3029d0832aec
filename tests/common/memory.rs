//! The memory that a process takes.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Anonymous memory that a mount may take, in bytes.
pub const MOST: u64 = 150_000_000;

/// Anonymous memory of a process, in bytes.
pub fn rss_anon(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Runs `work`, and gives the most anonymous memory that the process had meanwhile, in bytes.
pub fn most_memory_during(pid: u32, work: impl FnOnce()) -> u64 {
    let (is_over, most) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(rss_anon(pid), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        // The sampler ends also where the work panics.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    most.into_inner()
}
