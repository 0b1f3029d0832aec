//! How much of the Source one refresh looks at.

use super::schedule::Schedule;
use crate::document::Uri;
use crate::source::DocumentLocation;
use tokio::time::Instant;

/// How much of the Source a refresh looks at. A first tree is made of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every document that is followed, and every child of an index.
    Everything,
    /// The documents that are due.
    Due,
    /// What a notification names.
    Announced(Announced),
}

/// What a notification names, in terms of the documents that are followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// Documents that are followed.
    pub roots: Vec<DocumentLocation>,
    /// Lists below them that are asked for although their index says nothing new of them.
    pub children: Vec<Uri>,
    /// Whether caches on the way are passed by: the documents did not show yet what was announced.
    pub past_caches: bool,
}

impl Scope {
    /// Whether this document is looked at.
    pub(super) fn wants(&self, root: &DocumentLocation, schedule: &Schedule) -> bool {
        match self {
            Scope::Everything => true,
            Scope::Due => schedule.is_due(root, Instant::now()),
            Scope::Announced(announced) => announced.roots.contains(root),
        }
    }

    /// Whether this child of an index is looked at whatever its index says.
    pub(super) fn names(&self, child: &Uri) -> bool {
        match self {
            Scope::Everything => true,
            Scope::Due => false,
            Scope::Announced(announced) => announced.children.contains(child),
        }
    }

    pub(super) fn is_past_caches(&self) -> bool {
        matches!(self, Scope::Announced(announced) if announced.past_caches)
    }
}
