//! The lists of a first tree, read while others are on their way. Nothing is shown before everything is here: so who waits for
//! it waits for the longer of fetching and reading, not for both.
//!
//! Lists are read in parts, each of about as much as is sorted at once. A part is complete when it and all before it in document
//! order are here; one thread reads it. What is left at the end is left to who merges.

use super::baseline::Reading;
use super::deviations::SeenDeviations;
use super::selection::plan::Chooser;
use super::{Progressing, Stage, SyncError};
use crate::catalog::{Catalog, Naming, SetId, Share, Shared};
use crate::document::Limits;
use crate::source::spool::{Spool, SpooledDocument};
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

/// Octets of lists that are read as one part: what they hold is sorted as one run, or two (in unit tests one, so that every list
/// is a part).
const PART: u64 = if cfg!(test) { 1 } else { 64 << 20 };

/// Entries between two looks at whether anybody still wants them; a divisor of the next.
const STEP: u64 = 1_000;

/// Entries between two calls of the progress function.
const PROGRESS_STEP: u64 = 20_000;

/// What is read, how, and under which names it is entered.
pub struct Early {
    pub catalog: Arc<Catalog>,
    pub spool: Arc<Spool>,
    pub set: SetId,
    pub naming: Naming,
    pub chooser: Chooser,
    pub limits: Limits,
    pub broken: SeenDeviations,
}

/// Reads the lists of one set on threads of its own. Dropped, it stops them, and nothing was ever read.
pub struct EarlyReading {
    shared: Arc<Reader>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What was read of one set: so many of its lists, the first in document order.
pub struct ReadEarly {
    /// Under which names.
    pub naming: Naming,
    /// The lists.
    pub documents: Vec<SpooledDocument>,
    /// The resources of each.
    pub counts: Vec<u64>,
    /// What was entered, in that order.
    pub shares: Vec<Shared>,
}

/// What the threads share.
struct Reader {
    early: Early,
    parts: Mutex<Parts>,
    /// Whether a part came, or none will come.
    changed: Condvar,
    /// Whether nobody wants any of it any more.
    is_given_up: AtomicBool,
    entries: AtomicU64,
    progress: OnceLock<Progressing>,
}

#[derive(Default)]
struct Parts {
    /// What is here of the next part.
    arriving: Vec<SpooledDocument>,
    /// Parts to be read, each with its number.
    waiting: VecDeque<(usize, Vec<SpooledDocument>)>,
    /// Parts so far.
    count: usize,
    read: BTreeMap<usize, Part>,
    failure: Option<SyncError>,
    /// Whether no more will come.
    is_ended: bool,
}

/// A part that was read.
struct Part {
    documents: Vec<SpooledDocument>,
    counts: Vec<u64>,
    share: Shared,
}

impl EarlyReading {
    /// Waits for lists.
    pub fn new(early: Early) -> EarlyReading {
        let shared = Reader {
            early,
            parts: Mutex::default(),
            changed: Condvar::new(),
            is_given_up: AtomicBool::new(false),
            entries: AtomicU64::new(0),
            progress: OnceLock::new(),
        };
        EarlyReading { shared: Arc::new(shared), threads: Mutex::default() }
    }

    /// Takes the next list in document order.
    pub fn take(&self, document: SpooledDocument) {
        let mut parts = self.shared.parts();
        parts.arriving.push(document);
        if parts.arriving.iter().map(|document| document.size).sum::<u64>() < PART {
            return;
        }
        let (number, documents) = (parts.count, std::mem::take(&mut parts.arriving));
        parts.count += 1;
        parts.waiting.push_back((number, documents));
        drop(parts);
        self.shared.changed.notify_one();
        self.start();
    }

    /// Starts the threads that there are yet to be. Where none can be, nothing is read early.
    fn start(&self) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let most = thread::available_parallelism().map_or(1, NonZero::get).min(super::baseline::MOST_SHARES);
        if threads.len() < most {
            let shared = self.shared.clone();
            let started = thread::Builder::new().name("list-reader".into()).spawn(move || shared.read_parts());
            match started {
                Ok(thread) => threads.push(thread),
                Err(cause) => tracing::debug!(%cause, "there is no thread to read lists early"),
            }
        }
    }

    /// No more lists will come: waits for those that are being read. To be called where waiting harms nobody.
    ///
    /// # Errors
    /// The first that could not be read or entered.
    pub fn finish(self, progress: &Progressing) -> Result<ReadEarly, SyncError> {
        // Nobody else sets it.
        let _ = self.shared.progress.set(progress.clone());
        self.shared.parts().is_ended = true;
        self.shared.changed.notify_all();
        if let Some(panic) = self.join().pop() {
            resume_unwind(panic);
        }
        let mut parts = self.shared.parts();
        if let Some(failure) = parts.failure.take() {
            return Err(failure);
        }
        let mut read = ReadEarly {
            naming: self.shared.early.naming.clone(),
            documents: Vec::new(),
            counts: Vec::new(),
            shares: Vec::new(),
        };
        // Up to the first that nobody has read.
        for (expected, (number, part)) in std::mem::take(&mut parts.read).into_iter().enumerate() {
            if number != expected {
                break;
            }
            read.documents.extend(part.documents);
            read.counts.extend(part.counts);
            read.shares.push(part.share);
        }
        drop(parts);
        Ok(read)
    }

    /// Waits for the threads; what they panicked with.
    fn join(&self) -> Vec<Box<dyn std::any::Any + Send>> {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        threads.into_iter().filter_map(|thread| thread.join().err()).collect()
    }
}

impl Drop for EarlyReading {
    fn drop(&mut self) {
        self.shared.give_up();
        // Within some thousand entries, or a run that is being written.
        self.join();
    }
}

impl std::fmt::Debug for EarlyReading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EarlyReading").finish_non_exhaustive()
    }
}

impl Reader {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
        self.parts().is_ended = true;
        self.changed.notify_all();
    }

    /// Reads parts until there are no more.
    fn read_parts(&self) {
        let mut share = self.early.catalog.share(&self.early.naming, self.early.set);
        while let Some((number, documents)) = self.next() {
            match self.read(&mut share, documents) {
                Ok(part) => {
                    self.parts().read.insert(number, part);
                }
                Err(failure) => {
                    self.parts().failure.get_or_insert(failure);
                    return self.give_up();
                }
            }
        }
    }

    /// Waits for the next part to be read.
    fn next(&self) -> Option<(usize, Vec<SpooledDocument>)> {
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

    fn read(&self, share: &mut Share<'_>, documents: Vec<SpooledDocument>) -> Result<Part, SyncError> {
        let Early { spool, chooser, limits, broken, .. } = &self.early;
        let reading = Reading { spool, limits: *limits, chooser, broken };
        let mut counts = vec![0; documents.len()];
        let mut untold = 0;
        reading.each(&documents, &mut |document, entry| {
            share.add(&entry)?;
            if let Some(count) = counts.get_mut(document) {
                *count += 1;
            }
            untold += 1;
            Ok(if untold == STEP { self.goes_on(std::mem::take(&mut untold)) } else { ControlFlow::Continue(()) })
        })?;
        Ok(Part { documents, counts, share: share.part()? })
    }

    /// Tells of entries that were read; whether they are still wanted.
    fn goes_on(&self, entries: u64) -> ControlFlow<()> {
        let entries = self.entries.fetch_add(entries, Ordering::Relaxed) + entries;
        if let Some(progress) = self.progress.get().filter(|_| entries.is_multiple_of(PROGRESS_STEP)) {
            progress(Stage::Reading(entries));
        }
        if self.is_given_up.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
