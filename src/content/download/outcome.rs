//! How a download ends, as its task and its readers see it.

use super::object::CachedObject;
use crate::content::ContentError;

/// The object, or why there is none.
pub(super) type Outcome = Result<CachedObject, Ended>;

/// The reason why a download ended without object.
#[derive(Clone)]
pub(super) enum Ended {
    /// Every place failed.
    Failed(ContentError),
    /// Bytes that were handed out before the verdict were wrong.
    Poisoned(ContentError),
    /// The download gave way, for want of readers or of room for what no reader waits for. A reader begins another, which goes on with what
    /// is here.
    Yielded(ContentError),
}

impl From<Ended> for ContentError {
    fn from(ended: Ended) -> ContentError {
        let (Ended::Failed(error) | Ended::Poisoned(error) | Ended::Yielded(error)) = ended;
        error
    }
}
