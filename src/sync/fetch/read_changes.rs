//! What was read of the change documents of one root.

use super::parse::broken_document;
use crate::catalog::{Catalog, SetId, Statement};
use crate::document::{Change, DocumentError, Entry, Limits, PackageMember, Reader, Timestamp};
use crate::source::DocumentLocation;
use crate::source::documents::{CachedDocument, DocumentCache};
use crate::source::zip::{Manifest, PackageError};
use crate::sync::SyncError;
use crate::sync::changes::{ChangeDocument, ChangeState, DocumentHead, Lost, Visit};
use crate::sync::deviations::SeenDeviations;
use std::collections::HashMap;
use std::io::BufRead;
use std::sync::Arc;

/// The state of each root of a set.
pub type ChangeStates = Vec<(SetId, DocumentLocation, ChangeState)>;

/// What a root of change documents holds now that may be new.
#[derive(Debug)]
pub struct ReadChanges {
    /// The set.
    pub set: SetId,
    /// The Change List, or the index of Change Lists.
    pub root: DocumentLocation,
    /// The lists that may hold something new.
    pub documents: Vec<ChangeDocument>,
    /// By location, where the entries of these can be read again.
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
    /// What is listed and fails.
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

impl Origin {
    /// Calls `visit` for every entry, in its order; the reader then, which knows the whole header.
    ///
    /// # Errors
    /// A document that cannot be read to its end.
    pub fn visit(
        &self,
        spool: &DocumentCache,
        limits: Limits,
        visit: Visit<'_, SyncError>,
    ) -> Result<Reader<Box<dyn BufRead + Send>>, SyncError> {
        let mut reader = match self {
            Origin::List(list) => spool.reader(list, limits)?,
            Origin::Package(manifest) => manifest.reader().map_err(SyncError::Package)?,
        };
        if reader.header().root.is_feed_or_text() {
            return Err(self.broken(DocumentError::FEED_OR_TEXT));
        }
        while let Some(entry) = reader.next_entry().map_err(|cause| self.broken(cause))? {
            let member = match self {
                Origin::List(_) => None,
                Origin::Package(manifest) => manifest.member(&entry),
            };
            visit(&entry, member.as_ref())?;
        }
        Ok(reader)
    }

    fn broken(&self, cause: DocumentError) -> SyncError {
        match self {
            Origin::List(list) => SyncError::Document { location: list.location.clone(), cause },
            Origin::Package(manifest) => {
                let (package, cause) = (manifest.package().clone(), Arc::new(cause));
                SyncError::Package(PackageError::Manifest { package, cause })
            }
        }
    }
}

/// Reads a change document of `set` to its end, by what is known of it.
pub fn read_document(
    origin: &Origin,
    head: DocumentHead,
    (set, state): (SetId, &ChangeState),
    catalog: &Catalog,
    (documents, limits): (&DocumentCache, Limits),
    deviations: &SeenDeviations,
) -> Result<ChangeDocument, SyncError> {
    let (snapshot, is_distrusted) = (catalog.snapshot()?, catalog.is_distrusted());
    let journal = |entry: &Entry, member: Option<&PackageMember>, time: Timestamp| {
        if is_distrusted {
            return Ok(None);
        }
        let change = entry.change.unwrap_or(Change::Updated);
        match snapshot.compare_journal(&Statement { set, change, time, entry, member }) {
            // The catalog is built again from all that is published.
            Err(cause) if cause.is_damage() => Ok(None),
            compared => compared,
        }
    };
    let document = state.read_document(head, Timestamp::now(), &journal, &mut |visit| {
        let reader = origin.visit(documents, limits, visit)?;
        if let Origin::List(list) = origin {
            deviations.note(&list.location, reader.deviations());
        }
        Ok(reader.header().clone())
    });
    match (document, origin) {
        (Err(SyncError::Document { cause, .. }), Origin::List(list)) => {
            Err(broken_document(documents, &list.location, cause))
        }
        (document, _) => document,
    }
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
    pub fn gone(set: SetId, root: &DocumentLocation, known: &ChangeState) -> Option<ReadChanges> {
        let unread: Vec<String> = known.locations().map(str::to_owned).collect();
        let lost = known.lost_with(&root.to_string(), Timestamp::now());
        (!unread.is_empty()).then(|| ReadChanges { unread, lost, is_gone: true, ..ReadChanges::new(set, root) })
    }

    /// Whether this visibly goes on where `known` ends.
    pub fn goes_on(&self, known: &ChangeState) -> bool {
        let tells_nothing = self.is_beyond && self.documents.is_empty() && self.unread.is_empty();
        !self.is_torn && !tells_nothing && known.is_joined_by(&self.documents, &self.unread)
    }

    /// What is known before this is applied, over a baseline that speaks for `at`. Between the two a gap may be left.
    pub fn over(&self, before: ChangeState, at: Option<Timestamp>, now: Timestamp) -> ChangeState {
        let reaches_back = before.reaches_back_to(at, &self.documents, &self.unread);
        let is_closed = !self.is_gone && reaches_back && self.goes_on(&ChangeState::since(at));
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
