//! How a download ends, as its readers see it.

use super::object::CachedObject;
use crate::content::ContentError;

/// How a download ended.
#[derive(Clone)]
pub(super) enum Outcome {
    Done(CachedObject),
    Failed(ContentError),
    /// The download gave way, for want of readers or of room for what no reader waits for. A reader begins another.
    Yielded(ContentError),
}
