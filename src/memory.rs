//! What the allocator keeps of memory that was freed.

/// Gives it back to the system: after much was read or written at once, tens of megabytes may lie free among what is in use, for as
/// long as nobody asks.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches nothing but what is free (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
}
