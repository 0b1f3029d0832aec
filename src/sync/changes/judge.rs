//! The change of each resource that counts, among all that documents say of it.

use super::frame::{ChangeTime, Frame};
use super::order::Note;
use crate::catalog::news::{ChangeRank, News, Notes, SortedNews};
use crate::catalog::{CatalogError, SetId};
use std::collections::HashMap;

/// The documents of all roots, and what is to be asked about them.
#[derive(Default)]
pub struct Judge {
    /// The documents by number, each with its root and its rank among all.
    documents: HashMap<u64, (usize, u32, Frame)>,
    /// Digests of the resources of doubtful deletions, by root and the location of the document.
    doubts: Vec<HashMap<String, Vec<u64>>>,
    /// New changes that are not doubtful deletions.
    pub certain: u64,
}

/// The last word of a document on a resource.
struct Last {
    document: u64,
    set: SetId,
    rank: ChangeRank,
    moment: ChangeTime,
    is_new: bool,
    /// The digest of the resource, where it is a deletion.
    deleted: Option<u64>,
    row: Vec<u8>,
}

/// The changes of one resource that count so far: of the document that is being judged, and of those before it.
#[derive(Default)]
struct ResourceChanges {
    here: Option<Last>,
    last: Option<Last>,
}

impl ResourceChanges {
    fn add(&mut self, said: Last, is_ordered: bool) {
        if self.here.as_ref().is_some_and(|here| here.document != said.document) {
            self.close();
        }
        // The last word of an ordered document counts, even before later times of others.
        let order = |it: &Last| (if is_ordered { None } else { Some(it.moment.time) }, it.moment.rank);
        if self.here.as_ref().is_none_or(|here| order(here) <= order(&said)) {
            self.here = Some(said);
        }
    }

    fn close(&mut self) {
        // A known entry without a time has no reliable one outside its own document.
        let counts = |it: &Last| !it.moment.is_covered && (it.is_new || !it.moment.is_by_position);
        let Some(here) = self.here.take().filter(counts) else { return };
        if self.last.as_ref().is_none_or(|last| last.rank <= here.rank) {
            self.last = Some(here);
        }
    }
}

impl Judge {
    /// Adds the documents of the next root, in the order in which they count.
    pub fn add_root(&mut self, documents: Vec<Frame>) {
        for frame in documents {
            self.documents.insert(frame.document.number, (self.doubts.len(), self.documents.len() as u32, frame));
        }
        self.doubts.push(HashMap::new());
    }

    /// The news in `notes`, of each resource the last. Notes of unknown documents do not count.
    pub fn judge(&mut self, notes: Notes) -> Result<SortedNews, CatalogError> {
        let (mut notes, mut news) = notes.sorted()?;
        let (mut resource, mut known_key) = (ResourceChanges::default(), Vec::new());
        while let Some((key, set, note, row)) = notes.next_note::<Note>()? {
            if key != known_key {
                self.end(&mut resource, &mut news)?;
                known_key = key.to_vec();
            }
            let Some((_, number, frame)) = self.documents.get(&note.document) else { continue };
            let Some(moment) = frame.moment(&note) else { continue };
            let (rank, is_new) = ((moment.time, *number, moment.rank), frame.is_new(&note));
            let Note { document, deleted, .. } = note;
            let said = Last { document, set, rank, moment, is_new, deleted, row: row.to_vec() };
            resource.add(said, frame.has_order());
        }
        self.end(&mut resource, &mut news)?;
        news.sorted()
    }

    /// Adds the news of a resource whose notes are all judged.
    fn end(&mut self, resource: &mut ResourceChanges, news: &mut News) -> Result<(), CatalogError> {
        resource.close();
        let Some(last) = resource.last.take().filter(|last| last.is_new) else { return Ok(()) };
        let doubt = last.deleted.filter(|_| last.moment.is_doubtful);
        match (doubt, self.documents.get(&last.document)) {
            (Some(resource), Some((root, _, frame))) => {
                self.doubts[*root].entry(frame.document.state.location.clone()).or_default().push(resource);
            }
            _ => self.certain += 1,
        }
        news.add(last.set, last.rank, doubt.is_some(), &last.row)
    }

    /// Takes the doubts about the documents of each root, in the order in which the roots were added.
    pub fn take_doubts(&mut self) -> Vec<HashMap<String, Vec<u64>>> {
        std::mem::take(&mut self.doubts)
    }
}
