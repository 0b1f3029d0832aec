//! What a read finds in the state of a download.

use super::kept::Kept;
use super::object::Origin;
use super::outcome::Outcome;
use std::ops::Range;
use std::time::Instant;

/// What a read finds.
pub(super) enum Look {
    Ended(Outcome),
    /// The bytes are here. The state decides whether they may go out.
    Here(Here),
    /// The reader is far from the stream: a request of its own serves it better.
    Jump(Jump),
    /// Nothing yet. When something arrived.
    Wait(Instant),
}

/// Whole blocks that are here, of one attempt.
pub(super) struct Here {
    pub(super) attempt: u64,
    pub(super) blocks: Range<u64>,
    pub(super) kept: Kept,
}

/// A read far from the stream.
#[derive(Clone, Debug)]
pub(super) struct Jump {
    pub(super) origin: Origin,
    pub(super) attempt: u64,
    /// Cut at the object's end.
    pub(super) range: Range<u64>,
}
