//! What a test sets small, so that a small tree takes every way.

use super::diff::MOST_IN_PLACE;

/// Of one catalog, for as long as it is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning {
    /// Bits of a name's hash in the store's keys; the same for all that open one store.
    pub hash_bits: u32,
    /// Changes that one commit makes in place, at most; more are a rebuild.
    pub most_in_place: u64,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning { hash_bits: 64, most_in_place: MOST_IN_PLACE }
    }
}
