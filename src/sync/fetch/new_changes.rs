//! What was read of the change documents, and what of it is new, by place. The entries are read again when they are applied, so that
//! however many they are, only those of one batch lie in memory.

use super::spool::{DocumentReader, Spool};
use crate::catalog::{Catalog, SetId, Statement};
use crate::document::{Change, DocumentError, Entry, PackageMember, Timestamp, Uri};
use crate::source::DocumentLocation;
use crate::source::documents::CachedDocument;
use crate::source::zip::{Manifest, PackageError};
use crate::sync::SyncError;
use crate::sync::changes::{
    Asked, ChangeDocument, ChangeState, DocumentHead, Lost, NewChange, Settled, SettledChange, Visit, is_change,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

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
    /// Whether all that is listed was read, or is known.
    pub is_whole: bool,
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
    pub fn visit(&self, spool: &Spool, visit: Visit<'_, SyncError>) -> Result<DocumentReader, SyncError> {
        let broken = |cause| match self {
            Origin::List(list) => spool.broken(&list.location, cause),
            Origin::Package(manifest) => {
                let (package, cause) = (manifest.package().clone(), Arc::new(cause));
                SyncError::Package(PackageError::Manifest { package, cause })
            }
        };
        let mut reader = match self {
            Origin::List(list) => spool.cache.reader(list, spool.limits)?,
            Origin::Package(manifest) => manifest.reader().map_err(SyncError::Package)?,
        };
        while let Some(entry) = reader.next_entry().map_err(broken)? {
            let member = match self {
                Origin::List(_) => None,
                Origin::Package(manifest) => manifest.member(&entry),
            };
            visit(&entry, member.as_ref())?;
        }
        if reader.header().root.is_feed_or_text() { Err(broken(DocumentError::FEED_OR_TEXT)) } else { Ok(reader) }
    }

    /// Reads the document of `set` to its end, by what is known of it.
    pub fn read(
        &self,
        head: DocumentHead,
        (set, state): (SetId, &ChangeState),
        catalog: &Catalog,
        spool: &Spool,
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
        state.read_document(head, Timestamp::now(), &journal, &mut |visit| {
            let reader = self.visit(spool, visit)?;
            if let Origin::List(list) = self {
                spool.deviations.note(&list.location, reader.deviations(), None);
            }
            Ok(reader.header().clone())
        })
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
            archives: Vec::new(),
            is_beyond: false,
            is_torn: false,
            lost: Vec::new(),
            is_gone: false,
            is_whole: false,
        }
    }

    /// What is left of a root that is gone.
    pub fn gone(set: SetId, root: &DocumentLocation, known: &ChangeState) -> ReadChanges {
        let unread: Vec<String> = known.locations().map(str::to_owned).collect();
        let entries = root.uri().cloned().map(Entry::new).into_iter().collect();
        let asked = Asked { entries, gone: HashSet::from([root.to_string()]), ..Asked::default() };
        let lost = known.lost_beside(&root.to_string(), &asked, Timestamp::now());
        let is_torn = known.is_of_the_past();
        ReadChanges { unread, lost, is_torn, is_gone: true, ..ReadChanges::new(set, root) }
    }

    /// Whether this visibly goes on where `known` ends.
    pub fn goes_on(&self, known: &ChangeState) -> bool {
        let is_silent = self.is_beyond && self.documents.is_empty() && self.unread.is_empty();
        !self.is_torn && !is_silent && known.is_joined_by(&self.documents, &self.unread)
    }

    /// What is known before this is applied, over a baseline that speaks for `at`. Between the two a gap may be left.
    pub fn over(&self, before: ChangeState, at: Option<Timestamp>, now: Timestamp) -> ChangeState {
        let reaches_back = before.reaches_back_to(at, &self.documents, &self.unread);
        let is_closed = !self.is_gone && reaches_back && self.goes_on(&ChangeState::since(at));
        let mut known = if before.has_read() { before } else { before.rebased(at) };
        if is_closed {
            known.gap_since = None;
        } else if !self.goes_on(&known) {
            known.tear(now);
        }
        known.rebased(at)
    }
}

/// The new changes that one look has found, by place.
#[derive(Debug, Default)]
pub struct NewChanges {
    documents: Vec<(SetId, Option<Origin>)>,
    /// Of each resource of each set the last, in ascending order of time; their documents are those of [`NewChanges::documents`].
    changes: Vec<SettledChange>,
    /// How many of them were handed out.
    applied: usize,
    /// The state of each root that was read, once all of them are applied.
    pub states: Vec<(SetId, DocumentLocation, ChangeState)>,
}

impl NewChanges {
    /// What is new in `read`, each with the state of its root.
    pub fn of(read: Vec<(ChangeState, ReadChanges)>, now: Timestamp) -> NewChanges {
        let mut new = NewChanges::default();
        let mut last: HashMap<(SetId, u64), SettledChange> = HashMap::new();
        for (state, ReadChanges { set, root, documents, unread, origins, lost, is_whole, .. }) in read {
            let Settled { documents, changes, mut state } = state.settle(documents, &unread, now);
            if is_whole {
                state.see(now);
            }
            let before = new.documents.len();
            new.documents.extend(documents.iter().map(|location| (set, origins.get(location).cloned())));
            for change in changes {
                let change = SettledChange { document: before + change.document, ..change };
                let known = last.entry((set, change.resource)).or_insert(change);
                if known.time <= change.time {
                    *known = change;
                }
            }
            new.states.push((set, root, state.lacking(lost, now)));
        }
        new.changes = last.into_values().collect();
        new.changes.sort_unstable_by_key(|change| (change.time, change.document, change.rank));
        new
    }

    /// Whether none is left to be applied.
    pub fn is_empty(&self) -> bool {
        self.applied == self.changes.len()
    }

    /// The deletions that count only where their resources say so themselves: no more than `most`, others each time, so that those
    /// that stay silent hold up no other.
    pub fn doubtful(&self, most: usize) -> Vec<SettledChange> {
        let doubtful = self.changes.iter().filter(|change| change.is_doubtful);
        // A map is in another order each time.
        let doubtful: HashMap<_, _> = doubtful.map(|change| ((change.document, change.place), *change)).collect();
        doubtful.into_values().take(most).collect()
    }

    /// The resources of these changes.
    pub fn resources(&self, changes: &[SettledChange], spool: &Spool) -> Result<Vec<Uri>, SyncError> {
        let mut uris = Vec::with_capacity(changes.len());
        self.read(changes, spool, &mut |_, _, change| {
            uris.push(change.entry.loc);
            Ok(())
        })?;
        Ok(uris)
    }

    /// Of the doubtful deletions those count whose resources are gone by their `answers`. Those that have not answered are asked at
    /// the next look.
    pub fn answered(&mut self, answers: &HashMap<u64, bool>) {
        let doubtful = self.changes.iter().filter(|change| change.is_doubtful).map(|change| change.resource);
        let unanswered: HashSet<u64> = doubtful.filter(|resource| !answers.contains_key(resource)).collect();
        self.changes.retain(|change| !change.is_doubtful || answers.get(&change.resource) == Some(&true));
        self.states.iter_mut().for_each(|(_, _, state)| state.answered(&unanswered));
        let open: usize = self.states.iter().map(|(_, _, state)| state.doubts()).sum();
        if open > 0 {
            tracing::warn!(
                deletions = open,
                "deletions without a time wait: the server has to confirm that the files are gone, and is asked again"
            );
        }
    }

    /// The next changes, `most` of them, in order of time: of each resource of each set the last.
    pub fn next_batch(&mut self, most: usize, spool: &Spool) -> Result<Vec<(SetId, NewChange)>, SyncError> {
        let end = self.changes.len().min(self.applied.saturating_add(most));
        let mut changes = BTreeMap::new();
        self.read(&self.changes[self.applied..end], spool, &mut |number, set, change| {
            changes.insert(number, (set, change));
            Ok(())
        })?;
        self.applied = end;
        Ok(changes.into_values().collect())
    }

    /// Calls `visit` for every change, in no order.
    pub fn each(
        &self,
        spool: &Spool,
        visit: &mut dyn FnMut(SetId, &NewChange) -> Result<(), SyncError>,
    ) -> Result<(), SyncError> {
        self.read(&self.changes, spool, &mut |_, set, change| visit(set, &change))
    }

    /// Reads the entries of `changes`; `visit` gets each with its number among them.
    fn read(
        &self,
        changes: &[SettledChange],
        spool: &Spool,
        visit: &mut dyn FnMut(usize, SetId, NewChange) -> Result<(), SyncError>,
    ) -> Result<(), SyncError> {
        let mut order: Vec<usize> = (0..changes.len()).collect();
        order.sort_unstable_by_key(|number| (changes[*number].document, changes[*number].place));
        for wanted in order.chunk_by(|one, next| changes[*one].document == changes[*next].document) {
            let (set, Some(origin)) = &self.documents[changes[wanted[0]].document] else { continue };
            let (mut wanted, mut place) = (wanted.iter().copied().peekable(), 0);
            origin.visit(spool, &mut |entry, member| {
                if !is_change(entry) {
                    return Ok(());
                }
                if let Some(number) = wanted.next_if(|number| changes[*number].place == place) {
                    let (mut entry, member, time) = (entry.clone(), member.cloned(), changes[number].time);
                    let change = *entry.change.get_or_insert(Change::Updated);
                    visit(number, *set, NewChange { change, time, entry, member })?;
                }
                place += 1;
                Ok(())
            })?;
        }
        Ok(())
    }
}
