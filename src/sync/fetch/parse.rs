//! Lists are parsed and sorted by several threads: those of a first tree while others are fetched, those of a refresh together.
//!
//! A part is some lists in document order, which one thread parses and sorts. The sorted parts stay in document order, so that of
//! several entries for one resource the last counts.

use crate::catalog::{Catalog, Naming, SetId, Share};
use crate::document::{Deviations, DocumentError, Entry, Limits, Timestamp, Uri};
use crate::source::documents::{CachedDocument, DocumentCache};
use crate::source::{DocumentLocation, is_resource};
use crate::sync::deviations::{NotUnderstood, SeenDeviations};
use crate::sync::read_set::{ParsedLists, ReadSet};
use crate::sync::selection::plan::{Chooser, Plan};
use crate::sync::{Progressing, Stage, SyncError};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

/// Threads at most: each sorts within some 45 MB.
const THREADS: usize = 3;

/// Bytes of a part, at least: as many as take a thread some tenths of a second.
pub const LEAST_PART: u64 = 8 << 20;

/// A part is at least this fraction of all bytes so far: long lists make few parts, and the last part is no large one.
const PART_FRACTION: u64 = 16;

/// A thread reports its progress, and stops if it is to, after so many entries.
const STEP: u64 = 5_000;

/// First entries of a list in which a crawl looks for lists to follow: as many as a head has.
const ENTRIES_IN_HEAD: u64 = 8;

/// How the lists of a set are parsed, and under which names their resources are entered.
pub struct ParseJob {
    pub catalog: Arc<Catalog>,
    pub documents: Arc<DocumentCache>,
    pub set: SetId,
    pub naming: Naming,
    pub chooser: Arc<Chooser>,
    pub limits: Limits,
    pub deviations: SeenDeviations,
    /// Bytes of a part, at least.
    pub least_part: u64,
}

impl ParseJob {
    /// Parses `lists`, all that there are.
    ///
    /// # Errors
    /// A list that cannot be parsed to its end, or resources that cannot be sorted.
    pub fn parse(self, lists: Vec<CachedDocument>, progress: &Progressing) -> Result<ParsedLists, SyncError> {
        let mut parser = ListParser::new(self);
        lists.into_iter().for_each(|list| parser.take(list));
        parser.finish(progress)
    }
}

/// Parses the lists of one set. Dropped, it stops its threads, and nothing was parsed.
pub struct ListParser {
    work: Arc<Work>,
    /// `None` when all lists are there.
    queue: Option<Sender<(usize, Part)>>,
    threads: Vec<JoinHandle<Parsed>>,
    /// The next part, its number and its bytes.
    next: Part,
    number: usize,
    bytes: u64,
    /// Bytes of all lists.
    all_bytes: u64,
}

/// Lists in document order.
type Part = Vec<CachedDocument>;

/// What a thread has parsed: parts with their numbers.
type Parsed = Result<Vec<(usize, ParsedLists)>, SyncError>;

/// What the threads share.
struct Work {
    job: ParseJob,
    queue: Mutex<Receiver<(usize, Part)>>,
    is_stopped: AtomicBool,
    /// Entries so far.
    entries: AtomicU64,
    /// Set when all lists are there: before, fetching is the progress.
    progress: OnceLock<Progressing>,
}

/// Whether `bytes` are enough for a part, the last of `all` bytes.
fn is_part(bytes: u64, all: u64, least: u64) -> bool {
    bytes >= least.max(all / PART_FRACTION)
}

impl ListParser {
    /// A parser without lists.
    pub fn new(job: ParseJob) -> ListParser {
        let (queue, parts) = channel();
        let work = Work {
            job,
            queue: Mutex::new(parts),
            is_stopped: AtomicBool::new(false),
            entries: AtomicU64::new(0),
            progress: OnceLock::new(),
        };
        let (threads, next) = (Vec::new(), Part::new());
        ListParser { work: Arc::new(work), queue: Some(queue), threads, next, number: 0, bytes: 0, all_bytes: 0 }
    }

    /// Takes the next list in document order.
    pub fn take(&mut self, list: CachedDocument) {
        self.bytes += list.size;
        self.all_bytes += list.size;
        self.next.push(list);
        if is_part(self.bytes, self.all_bytes, self.work.job.least_part) {
            self.queue_part();
        }
    }

    /// Hands the next part to the threads, and starts one of them if there are not yet all.
    fn queue_part(&mut self) {
        let part = (self.number, std::mem::take(&mut self.next));
        self.number += 1;
        self.bytes = 0;
        if let Some(queue) = &self.queue {
            // `work` has the receiver.
            let _ = queue.send(part);
        }
        if self.threads.len() < thread::available_parallelism().map_or(1, NonZero::get).min(THREADS) {
            let work = self.work.clone();
            match thread::Builder::new().name("list-parser".into()).spawn(move || work.parse_parts()) {
                Ok(thread) => self.threads.push(thread),
                Err(cause) => tracing::debug!(%cause, "no more threads can parse lists"),
            }
        }
    }

    /// No more lists follow: waits until all are parsed.
    ///
    /// # Errors
    /// A list that cannot be parsed to its end, or resources that cannot be sorted.
    pub fn finish(mut self, progress: &Progressing) -> Result<ParsedLists, SyncError> {
        // Set here alone, and once.
        let _ = self.work.progress.set(progress.clone());
        if !self.next.is_empty() {
            self.queue_part();
        }
        self.queue = None;
        // Without any thread, this one parses all parts; else there is nothing left when the threads have ended.
        let mut ended = self.join();
        ended.push(Ok(self.work.parse_parts()));
        let mut parts = Vec::new();
        for parsed in ended {
            parts.extend(parsed.unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        parts.sort_unstable_by_key(|(number, _)| *number);
        let mut all = ParsedLists::default();
        for (_, lists) in parts {
            all.documents.extend(lists.documents);
            all.counts.extend(lists.counts);
            all.entered.extend(lists.entered);
        }
        Ok(all)
    }

    /// Waits as [`ListParser::finish`], and stops the threads when it is dropped.
    pub async fn finish_async(self, progress: &Progressing) -> Result<ParsedLists, SyncError> {
        struct StopOnDrop(Arc<Work>);

        impl Drop for StopOnDrop {
            fn drop(&mut self) {
                self.0.stop();
            }
        }

        let (_stop, progress) = (StopOnDrop(self.work.clone()), progress.clone());
        tokio::task::spawn_blocking(move || self.finish(&progress)).await?
    }

    /// Waits for all threads.
    fn join(&mut self) -> Vec<thread::Result<Parsed>> {
        self.threads.drain(..).map(JoinHandle::join).collect()
    }
}

impl Drop for ListParser {
    fn drop(&mut self) {
        self.work.stop();
        self.queue = None;
        self.join();
    }
}

impl Work {
    fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Parses parts until there are no more, or it is stopped: then a failure is reported, or no result is awaited. A failure stops
    /// the other threads.
    fn parse_parts(&self) -> Parsed {
        let mut share = self.job.catalog.share(&self.job.naming, self.job.set);
        let mut parsed = Vec::new();
        while let Some((number, part)) = self.next() {
            match self.parse(part, &mut share).inspect_err(|_| self.stop())? {
                Some(lists) => parsed.push((number, lists)),
                None => break,
            }
        }
        Ok(parsed)
    }

    /// Waits for the next part; `None` at the end.
    fn next(&self) -> Option<(usize, Part)> {
        let part = self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        part.ok().filter(|_| !self.is_stopped())
    }

    /// Parses a part; `None` if it was stopped.
    fn parse(&self, documents: Part, share: &mut Share<'_>) -> Result<Option<ParsedLists>, SyncError> {
        let ParseJob { documents: cache, chooser, limits, deviations, .. } = &self.job;
        let (mut counts, mut entries) = (Vec::with_capacity(documents.len()), 0_u64);
        for list in &documents {
            let mut resources = 0;
            let read = for_each_resource(cache, list, *limits, &mut |entry| {
                entries += 1;
                if entries % STEP == 0 {
                    self.report();
                    if self.is_stopped() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                if chooser.chooses(&entry).map_err(SyncError::Scratch)? {
                    share.add(&entry)?;
                    resources += 1;
                }
                Ok(ControlFlow::Continue(()))
            })?;
            let Some((broken, understood)) = read else { return Ok(None) };
            deviations.note(&list.location, &broken);
            deviations.note_entries(&list.location, understood);
            counts.push(resources);
        }
        Ok(Some(ParsedLists { documents, counts, entered: vec![share.part()?] }))
    }

    /// Reports [`STEP`] entries more.
    fn report(&self) {
        let entries = self.entries.fetch_add(STEP, Ordering::Relaxed) + STEP;
        if let Some(progress) = self.progress.get() {
            progress(Stage::Reading(entries));
        }
    }
}

/// What is chosen by `plan`, which knows all changes since, of the lists of `read`. These are parsed only where the links of
/// their entries count.
pub fn chooser(
    mut plan: Plan<'_>,
    documents: &DocumentCache,
    read: &[ReadSet],
    limits: Limits,
) -> Result<Chooser, SyncError> {
    if plan.reads_lists() {
        for (set, list) in read.iter().flat_map(|it| it.lists().map(|list| (it.id, list))) {
            for_each_resource(documents, &list.document, limits, &mut |entry| {
                plan.list(set, &entry).map(ControlFlow::Continue).map_err(SyncError::Scratch)
            })?;
        }
    }
    Ok(plan.finish())
}

/// The authority of the smallest URI listed: the own host of lists on a disk.
pub fn smallest_authority(
    documents: &DocumentCache,
    lists: &[CachedDocument],
    limits: Limits,
) -> Result<Box<str>, SyncError> {
    let mut smallest: Option<Uri> = None;
    for list in lists {
        for_each_resource(documents, list, limits, &mut |entry| {
            if smallest.as_ref().is_none_or(|least| entry.loc < *least) {
                smallest = Some(entry.loc);
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(smallest.map_or_else(|| "".into(), |uri| uri.authority().into()))
}

/// The newest `lastmod` listed: the lists are at least as new. A `lastmod` in the future, or later than its list, is wrong.
pub fn newest_lastmod(
    documents: &DocumentCache,
    lists: &[CachedDocument],
    limits: Limits,
) -> Result<Option<Timestamp>, SyncError> {
    let (mut newest, now) = (None, Timestamp::now());
    for list in lists {
        let written = list.modified.map_or(now, |modified| modified.min(now));
        for_each_resource(documents, list, limits, &mut |entry| {
            newest = newest.max(entry.lastmod.filter(|lastmod| *lastmod <= written));
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(newest)
}

/// Calls `visit` with every resource of a list, in document order. Returns which rules the list breaks, and how many of its entries
/// cannot be understood; `None` where `visit` broke off.
fn for_each_resource(
    documents: &DocumentCache,
    list: &CachedDocument,
    limits: Limits,
    visit: &mut dyn FnMut(Entry) -> Result<ControlFlow<()>, SyncError>,
) -> Result<Option<(Deviations, NotUnderstood)>, SyncError> {
    let mut reader = documents.reader(list, limits)?;
    let (mut read, mut lists, mut are_followed) = (0_u64, 0_u64, false);
    while let Some(entry) = reader.next_entry().map_err(|cause| broken_document(documents, &list.location, cause))? {
        read += 1;
        lists += u64::from(entry.is_list);
        are_followed |= entry.is_list && read <= ENTRIES_IN_HEAD;
        if is_resource(&entry) && visit(entry)?.is_break() {
            return Ok(None);
        }
    }
    for (rule, count) in reader.deviations().counts() {
        tracing::info!(document = %list.location, count, rule = rule.sentence(), section = rule.section(), "deviation");
    }
    let not_followed = if are_followed { 0 } else { lists };
    let entries = NotUnderstood { entries: reader.entries(), skipped: reader.skipped() + not_followed };
    Ok(Some((reader.deviations().clone(), entries)))
}

/// The error of a document that cannot be parsed to its end. It is forgotten: if it were kept, a 304 would confirm it at every
/// later poll.
pub fn broken_document(documents: &DocumentCache, location: &DocumentLocation, cause: DocumentError) -> SyncError {
    if let Err(cause) = documents.forget(location) {
        tracing::warn!("{cause}");
    }
    SyncError::Document { location: location.clone(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of lists of one size.
    fn parts(lists: u64, size: u64) -> Vec<u64> {
        let (mut parts, mut bytes) = (Vec::new(), 0);
        for number in 1..=lists {
            bytes += size;
            if is_part(bytes, number * size, LEAST_PART) {
                parts.push(std::mem::take(&mut bytes));
            }
        }
        parts
    }

    #[test]
    fn lists_make_few_parts_and_the_last_is_a_small_share() {
        assert!(parts(1, LEAST_PART - 1).is_empty(), "a short list is the rest");
        assert_eq!(parts(3, 100 << 20).len(), 3, "a long list is a part");
        for size in [1 << 16, 1 << 20, 6 << 20] {
            let few = parts((1 << 30) / size, size);
            assert!((20..60).contains(&few.len()), "{}", few.len());
            let many = parts((64 << 30) / size, size);
            assert!((60..140).contains(&many.len()), "{}", many.len());
            assert!(many.iter().all(|bytes| *bytes < (64 << 30) / PART_FRACTION + size));
        }
    }
}
