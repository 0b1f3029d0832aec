//! Lists that several threads read at once: those of a first tree while others are on their way, and all lists of a later
//! baseline. A first tree is shown once everything is read: its lists take the longer of fetching and reading, not both.
//!
//! Lists are read in parts, each of about as much as is sorted at once. A part is complete when it and all before it in document
//! order are here; one thread reads it. The lists after the last whole part are read by the caller.

use super::baseline::{PROGRESS_STEP, Reading, SHARE_STEP};
use super::deviations::SeenDeviations;
use super::read_set::ReadLists;
use super::selection::plan::Chooser;
use super::{Progressing, Stage, SyncError};
use crate::catalog::{Baseline, Catalog, Naming, SetId, Share, Shared};
use crate::document::Limits;
use crate::source::documents::{CachedDocument, DocumentCache};
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

/// Threads that read and enter, at most: each sorts within some 45 MB.
const MOST_SHARES: usize = 3;

/// Entries that are read as one part, about: with the folders above them they are sorted as one run.
const PART: u64 = 150_000;

/// Octets of a part as long as nobody knows how many entries they hold, and bounds of what they are taken to hold (in unit tests so few
/// that a part is a list, or two).
const FIRST_PART: u64 = if cfg!(test) { 1 } else { 8 << 20 };
const LEAST_PART: u64 = if cfg!(test) { 600 } else { 1 << 20 };
const MOST_PART: u64 = if cfg!(test) { 600 } else { 64 << 20 };

/// What is read, how, and under which names it is entered.
pub struct ListReading {
    pub catalog: Arc<Catalog>,
    pub spool: Arc<DocumentCache>,
    pub set: SetId,
    pub naming: Naming,
    pub chooser: Arc<Chooser>,
    pub limits: Limits,
    pub broken: SeenDeviations,
}

impl ListReading {
    /// Adds every chosen resource of `documents` to `baseline`; how many there are of each. So many `entries` were read
    /// before. A list that breaks off fails the whole.
    pub fn read_into(
        self,
        baseline: &mut Baseline<'_>,
        documents: &[CachedDocument],
        entries: u64,
        progress: &Progressing,
    ) -> Result<Vec<u64>, SyncError> {
        let (spool, limits) = (self.spool.clone(), self.limits);
        let (chooser, broken) = (self.chooser.clone(), self.broken.clone());
        let mut counts = Vec::new();
        if documents.len() > 1 {
            let together = ListPool::new(self);
            together.shared.entries.store(whole_steps(entries), Ordering::Relaxed);
            documents.iter().for_each(|document| together.take(document.clone()));
            let read = together.wait(progress)?;
            read.entered.map_or(Ok(()), |entered| baseline.join(entered))?;
            counts = read.counts;
        }
        let entries = whole_steps(entries + counts.iter().sum::<u64>());
        let reading = Reading { spool: &spool, limits, chooser: &chooser, broken: &broken, goes_on: &|| true };
        counts.extend(reading.alone(baseline, &documents[counts.len()..], entries, &**progress)?);
        Ok(counts)
    }
}

/// `entries` as progress tells them.
fn whole_steps(entries: u64) -> u64 {
    entries / PROGRESS_STEP * PROGRESS_STEP
}

/// Reads the lists of one set on threads of its own. Dropped, it stops them, and nothing was ever read.
pub struct ListPool {
    shared: Arc<Reader>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What the threads share.
struct Reader {
    reading: ListReading,
    parts: Mutex<Parts>,
    read: Mutex<Read>,
    /// Octets of a part.
    part: AtomicU64,
    /// Whether a part came, or none will come.
    changed: Condvar,
    /// Whether nobody wants any of it any more.
    is_given_up: AtomicBool,
    entries: AtomicU64,
    progress: OnceLock<Progressing>,
}

#[derive(Default)]
struct Parts {
    /// What is here of the next part, and its octets.
    arriving: Vec<CachedDocument>,
    octets: u64,
    /// Parts to be read, each with its number.
    waiting: VecDeque<(usize, Vec<CachedDocument>)>,
    /// Parts so far.
    count: usize,
    /// Whether no more will come.
    is_ended: bool,
}

/// What was read, in the order of the parts.
#[derive(Default)]
struct Read {
    /// So many parts are joined.
    joined: usize,
    documents: Vec<CachedDocument>,
    counts: Vec<u64>,
    entered: Option<Shared>,
    /// Parts of which some before are yet to be read.
    later: BTreeMap<usize, Part>,
    failure: Option<SyncError>,
}

/// A part that was read.
struct Part {
    documents: Vec<CachedDocument>,
    counts: Vec<u64>,
    share: Shared,
}

impl ListPool {
    /// Waits for lists.
    pub fn new(reading: ListReading) -> ListPool {
        let shared = Reader {
            reading,
            parts: Mutex::default(),
            read: Mutex::default(),
            part: AtomicU64::new(FIRST_PART),
            changed: Condvar::new(),
            is_given_up: AtomicBool::new(false),
            entries: AtomicU64::new(0),
            progress: OnceLock::new(),
        };
        ListPool { shared: Arc::new(shared), threads: Mutex::default() }
    }

    /// Takes the next list in document order.
    pub fn take(&self, document: CachedDocument) {
        let mut parts = self.shared.parts();
        parts.octets += document.size;
        parts.arriving.push(document);
        if parts.octets < self.shared.part.load(Ordering::Relaxed) {
            return;
        }
        parts.octets = 0;
        let (number, documents) = (parts.count, std::mem::take(&mut parts.arriving));
        parts.count += 1;
        parts.waiting.push_back((number, documents));
        drop(parts);
        self.shared.changed.notify_one();
        self.start();
    }

    /// Starts the threads that there are yet to be. Where none can be, nothing is read here.
    fn start(&self) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let most = thread::available_parallelism().map_or(1, NonZero::get).min(MOST_SHARES);
        if threads.len() < most {
            let shared = self.shared.clone();
            let started = thread::Builder::new().name("list-reader".into()).spawn(move || shared.read_parts());
            match started {
                Ok(thread) => threads.push(thread),
                Err(cause) => tracing::debug!(%cause, "there is no thread to read lists"),
            }
        }
    }

    /// No more lists will come: waits for those that are being read. Whoever waits no more stops them.
    ///
    /// # Errors
    /// The first that could not be read or entered.
    pub async fn finish(self, progress: &Progressing) -> Result<ReadLists, SyncError> {
        struct Wanted(Arc<Reader>);

        impl Drop for Wanted {
            fn drop(&mut self) {
                self.0.give_up();
            }
        }

        let (_wanted, progress) = (Wanted(self.shared.clone()), progress.clone());
        tokio::task::spawn_blocking(move || self.wait(&progress)).await?
    }

    fn wait(self, progress: &Progressing) -> Result<ReadLists, SyncError> {
        // Nobody else sets it.
        let _ = self.shared.progress.set(progress.clone());
        self.shared.parts().is_ended = true;
        self.shared.changed.notify_all();
        if let Some(panic) = self.join().pop() {
            resume_unwind(panic);
        }
        let read = std::mem::take(&mut *self.shared.read());
        match read.failure {
            Some(failure) => Err(failure),
            None => Ok(ReadLists {
                naming: self.shared.reading.naming.clone(),
                documents: read.documents,
                counts: read.counts,
                entered: read.entered,
            }),
        }
    }

    /// Waits for the threads; what they panicked with.
    fn join(&self) -> Vec<Box<dyn std::any::Any + Send>> {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        threads.into_iter().filter_map(|thread| thread.join().err()).collect()
    }
}

impl Drop for ListPool {
    fn drop(&mut self) {
        self.shared.give_up();
        // Within some thousand entries, or a run that is being written.
        self.join();
    }
}

impl Reader {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> MutexGuard<'_, Read> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
        self.parts().is_ended = true;
        self.changed.notify_all();
    }

    /// Reads parts until there are no more.
    fn read_parts(&self) {
        let mut share = self.reading.catalog.share(&self.reading.naming, self.reading.set);
        while let Some((number, documents)) = self.next() {
            let part = self.read_part(&mut share, documents);
            if self.is_given_up.load(Ordering::Relaxed) {
                // It may be but the beginning of a part.
                return;
            }
            if let Err(failure) = part.and_then(|part| self.read().take(number, part)) {
                // What was read is of no use any more, nor is its room on the disk.
                let failure = self.read().failure.take().unwrap_or(failure);
                *self.read() = Read { failure: Some(failure), ..Read::default() };
                return self.give_up();
            }
        }
    }

    /// Waits for the next part to be read.
    fn next(&self) -> Option<(usize, Vec<CachedDocument>)> {
        let mut parts = self.parts();
        loop {
            if self.is_given_up.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(part) = parts.waiting.pop_front() {
                return Some(part);
            }
            if parts.is_ended {
                return None;
            }
            parts = self.changed.wait(parts).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn read_part(&self, share: &mut Share<'_>, documents: Vec<CachedDocument>) -> Result<Part, SyncError> {
        let ListReading { spool, chooser, limits, broken, .. } = &self.reading;
        let goes_on = || !self.is_given_up.load(Ordering::Relaxed);
        let reading = Reading { spool, limits: *limits, chooser, broken, goes_on: &goes_on };
        let counts = reading.enter(&documents, share, &|| self.tell())?;
        let (octets, entries) =
            (documents.iter().map(|document| document.size).sum::<u64>(), counts.iter().sum::<u64>());
        let part = octets.saturating_mul(PART) / entries.max(1);
        self.part.store(part.clamp(LEAST_PART, MOST_PART), Ordering::Relaxed);
        Ok(Part { documents, counts, share: share.part()? })
    }

    /// Tells of [`SHARE_STEP`] entries that were read.
    fn tell(&self) {
        let entries = self.entries.fetch_add(SHARE_STEP, Ordering::Relaxed) + SHARE_STEP;
        if let Some(progress) = self.progress.get().filter(|_| entries.is_multiple_of(PROGRESS_STEP)) {
            progress(Stage::Reading(entries));
        }
    }
}

impl Read {
    /// Joins a part, or keeps it until those before it are joined.
    fn take(&mut self, number: usize, part: Part) -> Result<(), SyncError> {
        self.later.insert(number, part);
        while let Some(part) = self.later.remove(&self.joined) {
            self.joined += 1;
            self.documents.extend(part.documents);
            self.counts.extend(part.counts);
            match &mut self.entered {
                Some(entered) => entered.join(part.share)?,
                None => self.entered = Some(part.share),
            }
        }
        Ok(())
    }
}
