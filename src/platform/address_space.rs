//! The address space of this process. Machines of many users limit it (`ulimit -v`), and what is reserved counts, not what is used.

use rustix::process::{Resource, getrlimit};

/// Bytes that a thread reserves for its stack, where no other size is set.
const STACK: u64 = 2 << 20;

/// Stacks of threads that read from disk or compute take at most this part: where the rest is used up, the allocator ends the process.
const SHARE: u64 = 8;

/// The most such threads, as the runtime has by itself, and the fewest: some refreshes hold one each.
const MOST: u64 = 512;
const LEAST: u64 = 32;

/// Bytes that this process may map, where that is limited.
pub(crate) fn limit() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Threads that may read from disk or compute at one time. More work than threads waits. Work that waits for a host takes a part of
/// them only (the resolver of `source::http`).
pub(crate) fn blocking_threads() -> usize {
    threads_within(limit()) as usize
}

fn threads_within(limit: Option<u64>) -> u64 {
    limit.map_or(MOST, |limit| (limit / SHARE / STACK).clamp(LEAST, MOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_address_space_has_fewer_threads() {
        for (limit, threads) in
            [(None, 512), (Some(u64::MAX), 512), (Some(2_000_000 << 10), 122), (Some(100 << 20), 32), (Some(0), 32)]
        {
            assert_eq!(threads_within(limit), threads, "{limit:?}");
        }
    }
}
