//! The bytes of one attempt, from the first on.

use super::super::kept::Kept;
use super::super::object::Origin;
use crate::content::fixity::BlockDigests;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers the attempts of all downloads.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

/// The bytes of one attempt.
pub(super) struct Attempt {
    /// No two attempts have the same: a random read of one is no use to another.
    pub(super) number: u64,
    /// Bytes of the whole, where known.
    pub(super) length: Option<u64>,
    pub(super) origin: Option<Origin>,
    /// Its head is here.
    pub(super) is_announced: bool,
    /// Bytes that can be read, from the first on.
    pub(super) frontier: u64,
    /// Of the blocks from the first on. Those of an earlier download lag behind the frontier until they are hashed.
    pub(super) digests: BlockDigests,
    pub(super) kept: Option<Kept>,
    /// A block differs from one that was handed out: no verdict can be good for both.
    pub(super) is_contradicted: bool,
    /// A block that is kept cannot be read back: the object is fetched again.
    pub(super) is_damaged: bool,
    /// Bytes that counted as progress: of this attempt, or of those before it.
    pub(super) counted: u64,
}

impl Attempt {
    pub(super) fn new() -> Attempt {
        Attempt {
            number: ATTEMPTS.fetch_add(1, Ordering::Relaxed),
            length: None,
            origin: None,
            is_announced: false,
            frontier: 0,
            digests: BlockDigests::default(),
            kept: None,
            is_contradicted: false,
            is_damaged: false,
            counted: 0,
        }
    }
}
