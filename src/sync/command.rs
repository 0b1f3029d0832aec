//! Commands to a running synchronizer, and the scope of a refresh.

use super::scheduler::Schedule;
use super::status::Refreshed;
use crate::document::{Change, Digest, Entry, Uri};
use crate::source::DocumentLocation;
use std::collections::BTreeMap;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A request of the rest of the mount to a running synchronizer.
#[derive(Debug)]
pub enum Command {
    /// Refresh now. A refresh sees everything that was published before it was asked for.
    Refresh {
        /// True if the deletions that are held back are applied first.
        accept_deletions: bool,
        /// Receives the answer once the refresh has ended.
        requester: oneshot::Sender<Refreshed>,
    },
    /// A notification names these.
    Announced(Vec<Announcement>),
    /// True if every set has a notification channel that is alive: polling is rarer then.
    Channels(bool),
}

/// The subject of a notification. The notification itself is never believed: its subject is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// Every document that is followed, as at a poll.
    Everything,
    /// This document, or all of the index it belongs to.
    Document {
        /// The document announced.
        document: Uri,
        /// The index that it says it belongs to (`rel="index"`).
        index: Option<Uri>,
    },
    /// Source Description and Capability Lists, then everything.
    Source,
    /// These resources, each with the announced change, of a Source that has notifications and no Change List.
    Resources(BTreeMap<Uri, AnnouncedChange>),
}

/// A change of a resource as a notification states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedChange {
    /// The change.
    pub change: Change,
    /// The length of the new version, unless it counts coded bytes.
    pub length: Option<u64>,
    /// The digests of the new version.
    pub hashes: Vec<Digest>,
}

impl From<&Entry> for AnnouncedChange {
    fn from(entry: &Entry) -> AnnouncedChange {
        let length = entry.length.filter(|_| entry.encoding.is_none());
        AnnouncedChange { change: entry.change.unwrap_or(Change::Updated), length, hashes: entry.hashes.clone() }
    }
}

/// How much of the Source a refresh asks for. A first tree is made of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every document that is followed, and every child of an index.
    Everything,
    /// The documents that are due.
    Due,
    /// The documents that a notification names.
    Announced(AnnouncedDocuments),
}

/// The followed documents that a notification names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncedDocuments {
    /// Documents that are followed.
    pub roots: Vec<DocumentLocation>,
    /// Lists below them that are asked for although their index says nothing new of them.
    pub children: Vec<Uri>,
    /// True if caches on the way are passed by: the documents did not show yet what was announced.
    pub past_caches: bool,
}

impl Scope {
    /// True if this document is asked for.
    pub(super) fn wants(&self, root: &DocumentLocation, schedule: &Schedule) -> bool {
        match self {
            Scope::Everything => true,
            Scope::Due => schedule.is_due(root, Instant::now()),
            Scope::Announced(announced) => announced.roots.contains(root),
        }
    }

    /// True if this child of an index is asked for although its index says nothing new of it.
    pub(super) fn names(&self, child: &Uri) -> bool {
        match self {
            Scope::Everything => true,
            Scope::Due => false,
            Scope::Announced(announced) => announced.children.contains(child),
        }
    }

    /// This scope once more: what was due has just been asked for, and is due no more.
    pub(super) fn again(&self) -> Scope {
        if *self == Scope::Due { Scope::Everything } else { self.clone() }
    }

    pub(super) fn is_past_caches(&self) -> bool {
        matches!(self, Scope::Announced(announced) if announced.past_caches)
    }
}
