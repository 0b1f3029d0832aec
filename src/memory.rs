//! What the allocator keeps of memory that was freed.

/// Arenas of the allocator: by default eight for each processor, and each keeps tens of megabytes of what was freed in it.
#[cfg(target_env = "gnu")]
const ARENAS: i32 = 4;

/// To be called before there are other threads.
pub(crate) fn keep_little() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes numbers (mallopt(3)). Where it refuses nothing changes.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
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
