//! Reading one change document: a mark of each entry stays in memory; at the end it is known which entries are new.

use super::mark::Mark;
use super::order::{is_ambiguous, own_times};
use super::{ChangeState, DocumentState, Prefix, latest_believed};
use crate::catalog::CatalogError;
use crate::document::{Capability, Entry, Header, PackageMember, Timestamp};
use std::cmp::Ordering;
use std::collections::HashSet;
use xxhash_rust::xxh3::Xxh3;

/// So many changes in the same order are no accident.
const NO_ACCIDENT: u64 = 3;

/// Digests of undated entries that stay of one document.
pub const MOST_UNDATED: usize = 10_000;

/// How the last change of a resource that the catalog's journal holds stands to an entry with its time: later, this very one,
/// earlier; `None` where there is none, or another one of the same time.
pub type Journal<'j> = &'j dyn Fn(&Entry, Option<&PackageMember>, Timestamp) -> Result<Option<Ordering>, CatalogError>;

/// Takes the entries of a document one by one.
pub type Visit<'v, E> = &'v mut dyn FnMut(&Entry, Option<&PackageMember>) -> Result<(), E>;

/// A change document, before its entries are read.
#[derive(Clone, Debug)]
pub struct DocumentHead {
    /// Where it was asked for.
    pub location: String,
    /// Of its bytes, or of the dump that lists it.
    pub digest: u64,
    /// What an index says of it.
    pub listed: Option<Box<Entry>>,
    /// `Last-Modified` of the response.
    pub modified: Option<Timestamp>,
}

/// A change document that was read, with a mark of each entry.
#[derive(Debug)]
pub struct ChangeDocument {
    /// What stays of it.
    pub state: DocumentState,
    /// `Last-Modified` of the response.
    pub(super) modified: Option<Timestamp>,
    /// Every entry, in document order.
    pub(super) marks: Vec<Mark>,
    /// Whether its entries prove that it goes on where the last look ended.
    pub(super) meets_known: bool,
    /// Whether it is in no order, so that it does not say what became of some resource.
    pub(super) is_ambiguous: bool,
    /// The time by which it was written, where that is known.
    pub(super) written: Option<Timestamp>,
}

impl ChangeDocument {
    /// Whether it holds all changes since `time`, by what can be seen.
    pub(super) fn reaches_back_to(&self, time: Timestamp) -> bool {
        let is_before = |mark: &Mark| mark.datetime().is_some_and(|datetime| datetime <= time);
        self.state.from.is_none_or(|from| from <= time) || self.marks.iter().any(is_before)
    }

    /// Whether it reaches beyond `time`: what it lacks of earlier changes will not be published any more.
    pub fn reaches_beyond(&self, time: Timestamp) -> bool {
        self.state.until.max(self.state.from) >= Some(time) || self.marks.iter().any(|mark| mark.time > Some(time))
    }
}

/// How many entries `now` begins with that were there `before`, of which these are the last.
fn overlap(before: &[u64], now: &[u64]) -> usize {
    if before.len() == MOST_UNDATED {
        // What stood before them did not stay: `now` may begin with that.
        if let Some(place) = now.windows(before.len()).rposition(|window| window == before) {
            return place + before.len();
        }
    }
    let most = before.len().min(now.len());
    (0..=most).rev().find(|count| before[before.len() - count..] == now[..*count]).unwrap_or(0)
}

impl ChangeState {
    /// Reads a document. `read` goes through its entries, twice where the document does not begin as it did at the last look, and
    /// returns its header; `now` is the time of the look. An entry that points to a document of a known capability is passed over.
    pub fn read_document<E: From<CatalogError>>(
        &self,
        head: DocumentHead,
        now: Timestamp,
        journal: Journal<'_>,
        read: &mut dyn FnMut(Visit<'_, E>) -> Result<Header, E>,
    ) -> Result<ChangeDocument, E> {
        let (latest, known) = (latest_believed(now), self.document(&head.location));
        let doubts: HashSet<u64> = known.iter().flat_map(|it| &it.unanswered).copied().collect();
        // The entries of the last look are known without the journal as long as they may be these.
        let (mut before, mut undated) = known.map_or((Prefix::default(), &[][..]), |it| (it.prefix, &it.undated[..]));
        loop {
            let (mut marks, mut hash, mut is_other) = (Vec::new(), Xxh3::new(), false);
            let header = read(&mut |entry, member| {
                if is_other || !is_change(entry) {
                    return Ok(());
                }
                let mut mark = Mark::of(entry, member, latest);
                mark.is_doubted = mark.is_deletion && doubts.contains(&mark.uri);
                let seen = marks.len() as u64;
                if let Some(time) = mark.time.filter(|_| seen >= before.entries) {
                    mark.journaled = journal(entry, member, time)?;
                }
                marks.push(mark);
                hash.update(&mark.digest.to_le_bytes());
                is_other = seen + 1 == before.entries && hash.digest() != before.hash;
                Ok(())
            })?;
            let prefix = Prefix { entries: marks.len() as u64, hash: hash.digest() };
            let listed = head.listed.as_deref();
            let from = header.from.or(listed.and_then(|entry| entry.from)).filter(|from| *from <= latest);
            // One that begins behind all that is known is another document in the old one's place.
            let is_another = self.until.is_some() && from > self.reached();
            if before.entries > 0 && (is_another || is_other || prefix.entries < before.entries) {
                before = Prefix::default();
                continue;
            }
            if is_another {
                undated = &[];
            }
            // Where it says anything of its interval itself, an index above is not asked: it may be older.
            let is_silent = header.from.is_none() && header.until.is_none();
            let until = header.until.or(listed.filter(|_| is_silent).and_then(|entry| entry.until));
            let state = DocumentState {
                location: head.location,
                digest: head.digest,
                from,
                until,
                listed: head.listed.filter(|entry| entry.until.is_none()).and_then(|entry| entry.lastmod),
                prefix,
                ..DocumentState::default()
            };
            return Ok(self.judged(state, marks, head.modified, (before, undated)));
        }
    }

    /// The document of these entries. The last look saw the first of them as `before`, and kept what was `undated`.
    fn judged(
        &self,
        state: DocumentState,
        mut marks: Vec<Mark>,
        modified: Option<Timestamp>,
        (before, undated): (Prefix, &[u64]),
    ) -> ChangeDocument {
        let frame = self.frame(&state, modified);
        let (_, times) = own_times(&marks, &frame);
        let all: Vec<u64> =
            marks.iter().zip(&times).filter(|(_, time)| time.is_none()).map(|(mark, _)| mark.digest).collect();
        // Behind the entries of the last look everything is new that the journal does not hold.
        let repeated = if before.entries > 0 { 0 } else { overlap(undated, &all) };
        let mut rank = 0;
        for (place, (mark, time)) in marks.iter_mut().zip(&times).enumerate() {
            rank += usize::from(time.is_none());
            let is_repeated = (place as u64) < before.entries || time.is_none() && rank <= repeated;
            let is_known = is_repeated || time.is_some() && mark.is_applied(self.until);
            mark.is_new = mark.is_doubted || !is_known;
        }
        let was_seen = |mark: &Mark| {
            let is_applied = mark.journaled == Some(Ordering::Equal);
            mark.datetime().or(mark.time.filter(|_| is_applied)).is_some_and(|time| Some(time) <= self.until)
        };
        let is_same = self.document(&state.location).is_some_and(|read| read.digest == state.digest);
        let is_no_accident = before.entries.max(repeated as u64) >= NO_ACCIDENT;
        ChangeDocument {
            meets_known: is_same || is_no_accident || marks.iter().any(was_seen),
            is_ambiguous: is_ambiguous(&marks, &frame),
            written: frame.written_by().or(times.into_iter().flatten().max()),
            state: DocumentState { undated: all[all.len().saturating_sub(MOST_UNDATED)..].to_vec(), ..state },
            modified,
            marks,
        }
    }
}

/// Whether an entry is a change: it does not point to a document of a known capability.
pub fn is_change(entry: &Entry) -> bool {
    entry.capability.as_ref().is_none_or(|capability| matches!(capability, Capability::Other(_)))
}
