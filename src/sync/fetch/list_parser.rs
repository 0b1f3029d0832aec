//! The parser of lists, where a list entry enters the catalog. Several threads parse and sort: the lists of a first tree while
//! others are fetched, those of a refresh together.
//!
//! A part is some lists in document order, which one thread parses and sorts. The sorted parts stay in document order, so that of
//! several entries for one resource the last counts.

use super::spool::{Spool, written_by};
use crate::catalog::{Catalog, Naming, SetId};
use crate::platform::scheduling;
use crate::source::documents::CachedDocument;
use crate::sync::read_set::{ParsedLists, ReadSet};
use crate::sync::selection::plan::{ChoicePlan, Chooser, MOST};
use crate::sync::{Progressing, Stage, SyncError};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Threads at most: each sorts within some 45 MB.
const THREADS: usize = 3;

/// Bytes of a part, at least: as many as take a thread some tenths of a second.
pub const LEAST_PART: u64 = 8 << 20;

/// A part is at least this fraction of all bytes so far: long lists make few parts, and the last part is not large.
const PART_FRACTION: u64 = 16;

/// A thread reports its progress, and stops if it is to, after so many entries.
const STEP: u64 = 5_000;

/// Parses the lists of one set. Dropped, it stops its threads, and nothing was parsed.
pub struct ListParser {
    work: Arc<ListParsing>,
    /// Each for a part.
    parsing: Vec<JoinHandle<Result<ParsedLists, SyncError>>>,
    /// The next part, in document order, and its bytes.
    next: Vec<CachedDocument>,
    bytes: u64,
    /// Bytes of all lists.
    all_bytes: u64,
    /// Bytes of a part, at least.
    least_part: u64,
}

/// The state that the threads share.
struct ListParsing {
    catalog: Arc<Catalog>,
    spool: Spool,
    set: SetId,
    naming: Naming,
    chooser: Arc<Chooser>,
    threads: Semaphore,
    is_stopped: AtomicBool,
    /// Entries so far.
    entries: AtomicU64,
    /// Set when all lists are there: before, fetching is the progress.
    progress: OnceLock<Progressing>,
}

/// True if `bytes` are enough for a part, the last of `all` bytes.
fn is_part(bytes: u64, all: u64, least: u64) -> bool {
    bytes >= least.max(all / PART_FRACTION)
}

impl ListParser {
    /// A parser of the lists of `set`, without lists. `chooser` chooses, and resources are entered into `catalog` under `naming`. A part has
    /// `least_part` bytes, at least.
    pub fn new(
        catalog: &Arc<Catalog>,
        spool: &Spool,
        set: SetId,
        (naming, chooser): (&Naming, Arc<Chooser>),
        least_part: u64,
    ) -> ListParser {
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS);
        let work = ListParsing {
            catalog: catalog.clone(),
            spool: spool.clone(),
            set,
            naming: naming.clone(),
            chooser,
            threads: Semaphore::new(threads),
            is_stopped: AtomicBool::new(false),
            entries: AtomicU64::new(0),
            progress: OnceLock::new(),
        };
        ListParser { work: Arc::new(work), parsing: Vec::new(), next: Vec::new(), bytes: 0, all_bytes: 0, least_part }
    }

    /// Takes the next list in document order.
    pub fn take(&mut self, list: CachedDocument) {
        self.bytes += list.size;
        self.all_bytes += list.size;
        self.next.push(list);
        if is_part(self.bytes, self.all_bytes, self.least_part) {
            self.parse_next();
        }
    }

    /// Has the next part parsed as soon as a thread is free.
    fn parse_next(&mut self) {
        let (work, part) = (self.work.clone(), std::mem::take(&mut self.next));
        self.bytes = 0;
        self.parsing.push(tokio::spawn(async move {
            // It is never closed.
            let _permit = work.threads.acquire().await;
            let parsing = work.clone();
            tokio::task::spawn_blocking(move || at_low_priority(&parsing.catalog, || parsing.parse(part))).await?
        }));
    }

    /// No more lists follow: waits until all are parsed.
    ///
    /// # Errors
    /// A list that cannot be parsed to its end, or resources that cannot be sorted.
    pub async fn finish(mut self, progress: &Progressing) -> Result<ParsedLists, SyncError> {
        // Set here alone, and once.
        let _ = self.work.progress.set(progress.clone());
        if !self.next.is_empty() {
            self.parse_next();
        }
        let (mut all, mut failed) = (ParsedLists::default(), None);
        for part in std::mem::take(&mut self.parsing) {
            match part.await? {
                Ok(lists) => {
                    all.counts.extend(lists.counts);
                    all.newest = all.newest.max(lists.newest);
                    all.entered.extend(lists.entered);
                }
                Err(cause) => {
                    self.work.is_stopped.store(true, Ordering::Relaxed);
                    failed.get_or_insert(cause);
                }
            }
        }
        failed.map_or(Ok(all), Err)
    }
}

impl Drop for ListParser {
    fn drop(&mut self) {
        self.work.is_stopped.store(true, Ordering::Relaxed);
    }
}

impl ListParsing {
    /// Parses a part, or a piece of it where it is stopped.
    fn parse(&self, documents: Vec<CachedDocument>) -> Result<ParsedLists, SyncError> {
        let ListParsing { catalog, spool, chooser, .. } = self;
        let mut share = catalog.share(&self.naming, self.set);
        let (mut counts, mut entries, mut newest) = (Vec::with_capacity(documents.len()), 0_u64, None);
        for list in &documents {
            let (mut resources, written) = (0, written_by(list));
            spool.each_resource(list, &mut |entry| {
                entries += 1;
                if entries % STEP == 0 {
                    self.report();
                    if self.is_stopped.load(Ordering::Relaxed) {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                newest = newest.max(entry.lastmod.filter(|lastmod| *lastmod <= written));
                if chooser.chooses(&entry) {
                    share.add(&entry)?;
                    resources += 1;
                }
                Ok(ControlFlow::Continue(()))
            })?;
            if self.is_stopped.load(Ordering::Relaxed) {
                break;
            }
            counts.push(resources);
        }
        Ok(ParsedLists { counts, newest, entered: vec![share.part()?] })
    }

    /// Reports [`STEP`] entries more.
    fn report(&self) {
        let entries = self.entries.fetch_add(STEP, Ordering::Relaxed) + STEP;
        if let Some(progress) = self.progress.get() {
            progress(Stage::Reading(entries));
        }
    }
}

/// Does `work` at low priority where a tree is shown; else on the caller's thread.
pub fn at_low_priority<T: Send>(
    catalog: &Catalog,
    work: impl FnOnce() -> Result<T, SyncError> + Send,
) -> Result<T, SyncError> {
    match catalog.revision().is_ok_and(|revision| revision.is_some()) {
        true => scheduling::low_priority(work),
        false => work(),
    }
}

/// The chooser for the lists of `read` by a `plan` that knows all changes since. The lists are parsed only where the links of their
/// entries count.
pub fn chooser(mut plan: ChoicePlan, spool: &Spool, read: &[ReadSet]) -> Result<Chooser, SyncError> {
    if plan.reads_lists() {
        for (set, list) in read.iter().flat_map(|it| it.lists().map(|list| (it.id, list))) {
            spool.each_resource(&list.document, &mut |entry| {
                plan.list(set, &entry);
                Ok(if plan.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
        }
    }
    if plan.is_full() {
        return Err(SyncError::NothingToShow(format!(
            "conforms= and with=describes take records that name no more than {MOST} resources, and this Source has more"
        )));
    }
    Ok(plan.finish())
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

    #[test]
    fn work_on_a_tree_that_is_shown_has_a_thread_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(folder.path(), "a test").unwrap();
        let whose = || at_low_priority(&catalog, || Ok(thread::current().id())).unwrap();
        assert_eq!(whose(), thread::current().id(), "no reader is slowed down");

        catalog.commit_of_lists(Naming::default()).unwrap().commit(None, b"").unwrap();

        assert_ne!(whose(), thread::current().id());
    }
}
