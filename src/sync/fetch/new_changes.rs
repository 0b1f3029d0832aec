//! Change documents that were read, and the new changes among their entries. Only one batch of them is in memory.

use super::spool::{DocumentReader, Spool};
use crate::catalog::news::{Notes, SortedNews};
use crate::catalog::{Catalog, NewChange, SetId};
use crate::document::{DocumentError, Entry, PackageMember, Timestamp, Uri};
use crate::source::DocumentLocation;
use crate::source::documents::CachedDocument;
use crate::source::zip::{Manifest, PackageError};
use crate::sync::SyncError;
use crate::sync::changes::{
    AskedChildren, ChangeDocument, ChangeState, DocumentHead, Judge, Lost, Visit, resource_digest,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A root of change documents as it was read: everything in it that may be new.
pub struct ReadChanges {
    /// The set.
    pub set: SetId,
    /// The Change List, or the index of Change Lists.
    pub root: DocumentLocation,
    /// The lists that may hold something new.
    pub documents: Vec<ChangeDocument>,
    /// Notes on their entries.
    pub notes: Notes,
    /// Addresses of lists that hold nothing new.
    pub unread: Vec<String>,
    /// Documents that list earlier changes, by the documents' own word: archives, and indexes that they belong to.
    pub archives: Vec<DocumentLocation>,
    /// True if lists were left out because they begin after the time that is wanted.
    pub is_beyond: bool,
    /// True if there is a gap between the documents.
    pub is_torn: bool,
    /// Documents that are listed and fail.
    pub lost: Vec<Lost>,
    /// True if the root itself is gone.
    pub is_gone: bool,
    /// True if all that is listed was read, or is known.
    pub is_whole: bool,
}

/// The source of the entries of a change document that was fetched.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A Change List.
    List(CachedDocument),
    /// The manifest of a package of changes.
    Package(Manifest),
}

impl Origin {
    /// Calls `visit` for every entry, in its order, until it breaks off; the reader then, which knows the whole header.
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
            if visit(reader.header(), entry, member)?.is_break() {
                return Ok(reader);
            }
        }
        if reader.header().root.is_feed_or_text() { Err(broken(DocumentError::FEED_OR_TEXT)) } else { Ok(reader) }
    }

    /// Reads the document of `set`, one of those of `root`, to its end, by what is known of it.
    pub fn read(
        &self,
        head: &DocumentHead,
        (set, root, state): (SetId, &DocumentLocation, &ChangeState),
        catalog: &Catalog,
        spool: &Spool,
    ) -> Result<(ChangeDocument, Notes), SyncError> {
        let (snapshot, is_distrusted) = (catalog.snapshot()?, catalog.is_distrusted());
        let journal = |entry: &Entry, member: Option<&PackageMember>, time| match is_distrusted {
            true => Ok(None),
            false => match snapshot.compare_journal(set, time, (entry, member)) {
                // The catalog is built again from all that is published.
                Err(cause) if cause.is_damage() => Ok(None),
                compared => compared,
            },
        };
        let number = xxh3_64_with_seed(head.location.as_bytes(), head.digest ^ xxh3_64(root.to_string().as_bytes()));
        state.read_document((set, number), head, Timestamp::now(), (&journal, &|| catalog.notes()), &mut |visit| {
            let reader = self.visit(spool, visit)?;
            if let Origin::List(list) = self {
                spool.deviations.note(&list.location, reader.deviations(), None);
            }
            Ok(reader.header().clone())
        })
    }
}

impl ReadChanges {
    /// A root of which nothing is read yet; the notes on its entries go into `notes`.
    pub fn new(set: SetId, root: &DocumentLocation, notes: Notes) -> ReadChanges {
        ReadChanges {
            set,
            root: root.clone(),
            documents: Vec::new(),
            notes,
            unread: Vec::new(),
            archives: Vec::new(),
            is_beyond: false,
            is_torn: false,
            lost: Vec::new(),
            is_gone: false,
            is_whole: false,
        }
    }

    /// The reading of a root that is gone.
    pub fn gone(set: SetId, root: &DocumentLocation, known: &ChangeState, notes: Notes) -> ReadChanges {
        let unread: Vec<String> = known.locations().map(str::to_owned).collect();
        let entries = root.uri().cloned().map(Entry::new).into_iter().collect();
        let asked = AskedChildren { entries, gone: HashSet::from([root.to_string()]), ..AskedChildren::default() };
        let lost = known.lost_beside(&root.to_string(), &asked, Timestamp::now());
        ReadChanges { unread, lost, is_gone: true, ..ReadChanges::new(set, root, notes) }
    }

    /// True if this visibly goes on where `known` ends.
    pub fn goes_on(&self, known: &ChangeState) -> bool {
        !self.is_torn && known.is_joined_by(&self.documents, &self.unread)
    }

    /// The state before this is applied, over a baseline that speaks for `at`. Between the two a gap may be left.
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

/// The new changes that one look has found: of each resource of each set the last, in order of time.
pub struct NewChanges {
    news: SortedNews,
    /// Doubtful deletions among them: digests of their resources, one of several sets once for each.
    doubtful: Vec<u64>,
    /// Doubtful deletions that count: the resource is gone.
    gone: HashSet<u64>,
    /// The number of changes that are still to be handed out.
    left: u64,
    /// The state of each root that was read, once all of them are applied.
    pub states: Vec<(SetId, DocumentLocation, ChangeState)>,
}

impl NewChanges {
    /// The new changes in `read`, each with the state of its root. `notes` are empty.
    pub fn of(
        read: Vec<(ChangeState, ReadChanges)>,
        mut notes: Notes,
        now: Timestamp,
    ) -> Result<NewChanges, SyncError> {
        let (mut judge, mut roots) = (Judge::default(), Vec::with_capacity(read.len()));
        for (state, ReadChanges { set, root, documents, unread, notes: read, lost, is_whole, .. }) in read {
            let (state, documents) = state.with_documents(documents, &unread, now);
            judge.add_root(documents);
            notes.join(read)?;
            roots.push((set, root, state, lost, is_whole));
        }
        let (news, mut doubtful, mut states) = (judge.judge(notes)?, Vec::new(), Vec::with_capacity(roots.len()));
        for ((set, root, state, lost, is_whole), doubts) in roots.into_iter().zip(judge.take_doubts()) {
            doubtful.extend(doubts.values().flatten());
            let mut state = state.doubting(doubts);
            if is_whole {
                state.see(now);
            }
            states.push((set, root, state.lacking(lost, now)));
        }
        Ok(NewChanges { news, doubtful, gone: HashSet::new(), left: judge.certain, states })
    }

    /// True if none is left to be applied.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// The resources that are asked whether they are gone: no more than `most`, others each time, so that silent ones hold up no
    /// other.
    pub fn doubtful(&mut self, most: usize) -> Result<Vec<Uri>, SyncError> {
        let (mut chosen, order) = (BTreeMap::new(), RandomState::new());
        if !self.doubtful.is_empty() {
            while let Some((_, new, is_doubtful)) = self.news.next_change()? {
                if is_doubtful {
                    chosen.insert(order.hash_one(&new.entry.loc), new.entry.loc);
                    if chosen.len() > most {
                        chosen.pop_last();
                    }
                }
            }
            self.news.rewind()?;
        }
        Ok(chosen.into_values().collect())
    }

    /// Takes the `answers` of resources: a doubtful deletion counts where the resource is gone. Those that have not answered are
    /// asked at the next look.
    pub fn answered(&mut self, answers: &HashMap<u64, bool>) {
        let doubtful = || self.doubtful.iter().copied();
        self.gone = doubtful().filter(|resource| answers.get(resource) == Some(&true)).collect();
        self.left += doubtful().filter(|resource| self.gone.contains(resource)).count() as u64;
        let unanswered = doubtful().filter(|resource| !answers.contains_key(resource)).collect();
        self.states.iter_mut().for_each(|(_, _, state)| state.answered(&unanswered));
        let open: usize = self.states.iter().map(|(_, _, state)| state.doubts()).sum();
        if open > 0 {
            tracing::warn!(
                deletions = open,
                "deletions without a time wait: the server has to confirm that the files are gone, and is asked again"
            );
        }
    }

    /// How many are left to be applied.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The next change to be applied; `None` at the end.
    pub fn next_change(&mut self) -> Result<Option<(SetId, NewChange)>, SyncError> {
        let next = if self.is_empty() { None } else { self.next()? };
        self.left = if next.is_some() { self.left - 1 } else { 0 };
        Ok(next)
    }

    /// The next change that counts.
    fn next(&mut self) -> Result<Option<(SetId, NewChange)>, SyncError> {
        while let Some((set, new, is_doubtful)) = self.news.next_change()? {
            if !is_doubtful || self.gone.contains(&resource_digest(&new.entry.loc)) {
                return Ok(Some((set, new)));
            }
        }
        Ok(None)
    }

    /// Calls `visit` for every change, and begins again.
    pub fn each(&mut self, visit: &mut dyn FnMut(SetId, &NewChange) -> Result<(), SyncError>) -> Result<(), SyncError> {
        while let Some((set, change)) = self.next()? {
            visit(set, &change)?;
        }
        Ok(self.news.rewind()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Change;

    /// One change, of which the count says that they are two.
    fn miscounted() -> NewChanges {
        let (mut notes, set) = (Notes::few(), SetId(1));
        let entry = Entry { change: Some(Change::Updated), ..Entry::new(Uri::parse("http://h/a").unwrap()) };
        notes.add(set, (&entry, None), &0, false).unwrap();
        let (mut notes, mut news) = notes.sorted().unwrap();
        let (_, _, _, row) = notes.next_note::<i64>().unwrap().unwrap();
        news.add(set, (Timestamp { seconds: 1, nanos: 0 }, 0, 0), false, row).unwrap();
        let news = news.sorted().unwrap();
        NewChanges { news, doubtful: Vec::new(), gone: HashSet::new(), left: 2, states: Vec::new() }
    }

    #[test]
    fn changes_end_where_none_is_found() {
        let mut new = miscounted();

        assert!(new.next_change().unwrap().is_some());
        assert!(new.next_change().unwrap().is_none());

        assert!(new.is_empty(), "a loop over the batches would not end");
    }
}
