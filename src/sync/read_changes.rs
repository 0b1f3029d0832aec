//! What was read of the change documents of one root.

use super::incremental::{ChangeDocument, Known, Lost};
use crate::catalog::SetId;
use crate::document::Timestamp;
use crate::source::DocumentLocation;
use crate::source::documents::CachedDocument;
use crate::source::zip::Manifest;
use std::collections::HashMap;

/// How far the changes of each root of a set are known.
pub type KnownRoots = Vec<(SetId, DocumentLocation, Known)>;

/// What a root of change documents holds now, as far as it may be new.
#[derive(Debug)]
pub struct ReadChanges {
    /// The set.
    pub set: SetId,
    /// The Change List, or the index of Change Lists.
    pub root: DocumentLocation,
    /// The lists that may hold something new.
    pub documents: Vec<ChangeDocument>,
    /// By location, where these can be read once more.
    pub origins: HashMap<String, Origin>,
    /// Those that hold nothing new.
    pub unread: Vec<String>,
    /// Octet digests of all lists: with these nothing is new once all of it is committed.
    pub digests: Vec<(DocumentLocation, u64)>,
    /// Where earlier changes are listed, by the documents' own word: archives, and indexes that they belong to.
    pub archives: Vec<DocumentLocation>,
    /// Whether lists were left out because they begin after the time that is wanted.
    pub is_beyond: bool,
    /// Whether the documents do not follow one another without a gap.
    pub is_torn: bool,
    /// What is listed and cannot be had.
    pub lost: Vec<Lost>,
    /// Whether the root itself is gone.
    pub is_gone: bool,
}

/// Where a change document lies that was fetched.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A Change List.
    List(CachedDocument),
    /// The manifest of a package of changes.
    Package(Manifest),
}

impl ReadChanges {
    /// Nothing yet.
    pub fn new(set: SetId, root: &DocumentLocation) -> ReadChanges {
        ReadChanges {
            set,
            root: root.clone(),
            documents: Vec::new(),
            origins: HashMap::new(),
            unread: Vec::new(),
            digests: Vec::new(),
            archives: Vec::new(),
            is_beyond: false,
            is_torn: false,
            lost: Vec::new(),
            is_gone: false,
        }
    }

    /// What is left of a root that is gone; nothing where nothing was read of it.
    pub fn gone(set: SetId, root: &DocumentLocation, known: &Known) -> Option<ReadChanges> {
        let unread: Vec<String> = known.locations().map(str::to_owned).collect();
        let lost = known.lost_with(&root.to_string(), Timestamp::now());
        (!unread.is_empty()).then(|| ReadChanges { unread, lost, is_gone: true, ..ReadChanges::new(set, root) })
    }

    /// Whether all that may be new is held. Else it is read once more as it is used, and takes a baseline.
    pub fn is_held(&self) -> bool {
        self.documents.iter().all(ChangeDocument::is_held)
    }

    /// Whether this goes on where `known` ends, as far as can be seen.
    pub fn goes_on(&self, known: &Known) -> bool {
        let tells_nothing = self.is_beyond && self.documents.is_empty() && self.unread.is_empty();
        !self.is_torn && !tells_nothing && known.is_joined_by(&self.documents, &self.unread)
    }

    /// What is known before this is applied, over a baseline that speaks for `at`. Between the two a gap may be left.
    pub fn over(&self, before: Known, at: Option<Timestamp>, now: Timestamp) -> Known {
        let is_closed = !self.is_gone && self.goes_on(&Known::since(at));
        let was_read = before.locations().next().is_some();
        let mut known = if was_read { before } else { before.rebased(at) };
        if is_closed {
            known.gap_since = None;
        } else if !self.goes_on(&known) {
            known.tear(now);
        }
        known.rebased(at)
    }
}
