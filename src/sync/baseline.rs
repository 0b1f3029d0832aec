//! From spooled lists to the catalog's baseline. Several lists are shared out among threads, each of which reads and enters
//! its own; what is but one is read on a thread of its own and entered on the caller's.

use super::deviations::{NotUnderstood, SeenDeviations};
use super::read_set::ReadSet;
use super::selection::plan::{Chooser, Plan};
use super::{Stage, SyncError};
use crate::catalog::{Baseline, Share};
use crate::document::{Deviations, Entry, Limits, Timestamp, Uri};
use crate::source::documents::{CachedDocument, DocumentCache};
use crate::source::is_resource;
use std::num::NonZero;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, ScopedJoinHandle};

/// Entries between two calls of the progress function.
pub const PROGRESS_STEP: u64 = 20_000;

/// Of one thread, where several read: a divisor of the above.
pub const SHARE_STEP: u64 = 1_000;

/// Entries between two looks at whether anybody still wants them.
const LOOK: u64 = 1_000;

/// First entries of a list in which the walk looks for lists to follow: as many as a head has.
const LOOKED_AT: u64 = 8;

/// Entries handed from the reading thread to the entering one at once, and how many such batches may wait between them:
/// enough that neither waits for the other's pauses, less than a megabyte of usual entries.
const BATCH: usize = 128;
const BATCHES_WAITING: usize = 8;

/// Threads that read and enter, at most: each sorts within some 45 MB.
pub const MOST_SHARES: usize = 3;

/// Octets of lists that are worth a thread and runs of their own (in unit tests few, so that nearly all lists are shared out).
const LEAST_SHARE: u64 = if cfg!(test) { 1 } else { 16 << 20 };

/// What is chosen by `plan`, which knows all changes since, of the lists of `read`. They are read only where the links of their
/// entries count.
pub fn chooser(
    mut plan: Plan<'_>,
    spool: &DocumentCache,
    read: &[ReadSet],
    limits: Limits,
) -> Result<Chooser, SyncError> {
    if plan.reads_lists() {
        for (set, list) in read.iter().flat_map(|it| it.lists().map(|list| (it.id, list))) {
            let mut failed = None;
            for_each_resource(spool, &list.document, limits, &|| true, &mut |entry| match plan.list(set, &entry) {
                Ok(()) => ControlFlow::Continue(()),
                Err(cause) => {
                    failed = Some(cause);
                    ControlFlow::Break(())
                }
            })?;
            failed.map_or(Ok(()), |cause| Err(SyncError::Scratch(cause)))?;
        }
    }
    Ok(plan.finish())
}

/// Adds every resource of `documents` that `chooser` chooses to `baseline`; how many there were of each. A list
/// that breaks off fails the whole.
pub fn read_into(
    baseline: &mut Baseline<'_>,
    spool: &DocumentCache,
    documents: &[CachedDocument],
    limits: Limits,
    chooser: &Chooser,
    broken: &SeenDeviations,
    progress: &(dyn Fn(Stage) + Sync),
) -> Result<Vec<u64>, SyncError> {
    if documents.is_empty() {
        return Ok(Vec::new());
    }
    let reading = Reading { spool, limits, chooser, broken, goes_on: &|| true };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let shares = shares(documents, processors.min(MOST_SHARES));
    if shares.len() > 1 {
        reading.shared(baseline, &shares, progress)
    } else {
        reading.alone(baseline, documents, progress)
    }
}

/// How lists are read.
#[derive(Clone, Copy)]
pub struct Reading<'a> {
    pub spool: &'a DocumentCache,
    pub limits: Limits,
    pub chooser: &'a Chooser,
    pub broken: &'a SeenDeviations,
    /// Whether anybody wants what is read; asked now and then.
    pub goes_on: &'a (dyn Fn() -> bool + Sync),
}

/// `documents` in their order, as up to `most` shares of about as many octets; a single one where that makes none much smaller.
fn shares(documents: &[CachedDocument], most: usize) -> Vec<&[CachedDocument]> {
    let octets = |documents: &[CachedDocument]| documents.iter().map(|document| document.size).sum::<u64>();
    let all = octets(documents);
    let count = (all / LEAST_SHARE).clamp(1, most as u64);
    let (mut shares, mut rest, mut before) = (Vec::new(), documents, 0);
    for share in 1..=count {
        // A document belongs to the share that its middle lies in.
        let end = rest.iter().position(|document| {
            let middle = before + document.size / 2;
            before += document.size;
            middle > all * share / count
        });
        let taken;
        (taken, rest) = rest.split_at(end.unwrap_or(rest.len()));
        before = all - octets(rest);
        shares.extend((!taken.is_empty()).then_some(taken));
    }
    let largest = shares.iter().map(|share| octets(share)).max().unwrap_or(0);
    if largest > all / 4 * 3 { vec![documents] } else { shares }
}

/// What `work` makes. Whatever keeps it from that, a panic too, has the others told that it has `failed`.
fn telling<T>(failed: &AtomicBool, work: impl FnOnce() -> Result<T, SyncError>) -> Result<T, SyncError> {
    /// Told when it is dropped, unless it is forgotten.
    struct Failing<'a>(&'a AtomicBool);

    impl Drop for Failing<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let failing = Failing(failed);
    let made = work()?;
    std::mem::forget(failing);
    Ok(made)
}

impl Reading<'_> {
    /// Reads and enters each share on a thread of its own.
    fn shared(
        self,
        baseline: &mut Baseline<'_>,
        shares: &[&[CachedDocument]],
        progress: &(dyn Fn(Stage) + Sync),
    ) -> Result<Vec<u64>, SyncError> {
        let entries = AtomicU64::new(0);
        let failed = AtomicBool::new(false);
        let ended = thread::scope(|scope| {
            let started: Vec<_> = shares
                .iter()
                .map(|documents| {
                    let (mut share, entries, failed) = (baseline.share(), &entries, &failed);
                    let read = move || {
                        // What is brought beside one that failed is of no use any more.
                        let goes_on = || !failed.load(Ordering::Relaxed);
                        let told = || {
                            let entries = entries.fetch_add(SHARE_STEP, Ordering::Relaxed) + SHARE_STEP;
                            if entries.is_multiple_of(PROGRESS_STEP) {
                                progress(Stage::Reading(entries));
                            }
                        };
                        let counts = Reading { goes_on: &goes_on, ..self }.enter(documents, &mut share, &told)?;
                        Ok((share.part()?, counts))
                    };
                    let read = move || telling(failed, read);
                    let started = thread::Builder::new().name("list-reader".into()).spawn_scoped(scope, read);
                    telling(failed, || started.map_err(SyncError::NoThread))
                })
                .collect();
            let join = |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            started.into_iter().map(|thread| thread.and_then(join)).collect::<Vec<_>>()
        });
        let mut counts = Vec::new();
        // All of them before any: one that broke off for the failure of another has not failed itself.
        for (share, of_documents) in ended.into_iter().collect::<Result<Vec<_>, _>>()? {
            baseline.join(share)?;
            counts.extend(of_documents);
        }
        Ok(counts)
    }

    /// Enters every chosen resource of `documents` into `share`; how many there are of each. `told` hears of each [`SHARE_STEP`].
    pub fn enter(
        self,
        documents: &[CachedDocument],
        share: &mut Share<'_>,
        told: &dyn Fn(),
    ) -> Result<Vec<u64>, SyncError> {
        let (mut counts, mut untold) = (vec![0; documents.len()], 0);
        self.each(documents, &mut |document, entry| {
            share.add(&entry)?;
            if let Some(count) = counts.get_mut(document) {
                *count += 1;
            }
            untold += 1;
            if untold == SHARE_STEP {
                untold = 0;
                told();
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(counts)
    }

    /// Reads on a thread of its own and enters on the caller's.
    fn alone(
        self,
        baseline: &mut Baseline<'_>,
        documents: &[CachedDocument],
        progress: &(dyn Fn(Stage) + Sync),
    ) -> Result<Vec<u64>, SyncError> {
        thread::scope(|scope| {
            let (batches, arriving) = sync_channel(BATCHES_WAITING);
            let reading = thread::Builder::new()
                .name("list-reader".into())
                .spawn_scoped(scope, move || self.batches(documents, &batches))
                .map_err(SyncError::NoThread)?;
            let mut counts = vec![0; documents.len()];
            let mut entries = 0_u64;
            // Where adding fails the channel closes, and the reading thread ends at its next batch.
            for (document, batch) in arriving {
                if let Some(count) = counts.get_mut(document) {
                    *count += batch.len() as u64;
                }
                for entry in &batch {
                    baseline.add(entry)?;
                    entries += 1;
                    if entries.is_multiple_of(PROGRESS_STEP) {
                        progress(Stage::Reading(entries));
                    }
                }
            }
            // Only the thread's own word says that the lists have come to their end.
            match reading.join() {
                Ok(read) => read.map(|()| counts),
                Err(panic) => resume_unwind(panic),
            }
        })
    }

    /// Sends every chosen resource of `documents` with the number of its document, until nobody receives any more.
    fn batches(self, documents: &[CachedDocument], batches: &SyncSender<(usize, Vec<Entry>)>) -> Result<(), SyncError> {
        let (mut batch, mut of) = (Vec::with_capacity(BATCH), 0);
        // Where nobody receives it, the receiver has failed and says so.
        let send = |of, batch| {
            if batches.send((of, batch)).is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        self.each(documents, &mut |document, entry| {
            if document == of && batch.len() < BATCH {
                batch.push(entry);
                return Ok(ControlFlow::Continue(()));
            }
            let full = std::mem::replace(&mut batch, Vec::with_capacity(BATCH));
            batch.push(entry);
            Ok(send(std::mem::replace(&mut of, document), full))
        })?;
        let _ = send(of, batch);
        Ok(())
    }

    /// Calls `visit` with every chosen resource of `documents` and the number of its document, in their order, until it breaks or nobody
    /// wants any more.
    fn each(
        self,
        documents: &[CachedDocument],
        visit: &mut dyn FnMut(usize, Entry) -> Result<ControlFlow<()>, SyncError>,
    ) -> Result<(), SyncError> {
        for (number, document) in documents.iter().enumerate() {
            let mut ended = Ok(ControlFlow::Continue(()));
            let (deviations, entries) =
                for_each_resource(self.spool, document, self.limits, self.goes_on, &mut |entry| {
                    ended = match self.chooser.chooses(&entry) {
                        Ok(true) => visit(number, entry),
                        Ok(false) => return ControlFlow::Continue(()),
                        Err(cause) => Err(SyncError::Scratch(cause)),
                    };
                    if matches!(ended, Ok(ControlFlow::Continue(()))) {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                })?;
            if ended?.is_break() || !(self.goes_on)() {
                return Ok(());
            }
            self.broken.note(&document.location, &deviations);
            self.broken.note_entries(&document.location, entries);
        }
        Ok(())
    }
}

/// The authority of the smallest URI listed: the own host of lists that lie on disk.
pub fn smallest_authority(
    spool: &DocumentCache,
    documents: &[CachedDocument],
    limits: Limits,
) -> Result<Box<str>, SyncError> {
    let mut smallest: Option<Uri> = None;
    for document in documents {
        for_each_resource(spool, document, limits, &|| true, &mut |entry| {
            if smallest.as_ref().is_none_or(|least| entry.loc < *least) {
                smallest = Some(entry.loc);
            }
            ControlFlow::Continue(())
        })?;
    }
    Ok(smallest.map_or_else(|| "".into(), |uri| uri.authority().into()))
}

/// The newest `lastmod` listed: the lists are not older than that. One that is yet to come, or later than its list, is wrong.
pub fn newest_lastmod(
    spool: &DocumentCache,
    documents: &[CachedDocument],
    limits: Limits,
) -> Result<Option<Timestamp>, SyncError> {
    let mut newest = None;
    let now = Timestamp::now();
    for document in documents {
        let written = document.modified.map_or(now, |modified| modified.min(now));
        for_each_resource(spool, document, limits, &|| true, &mut |entry| {
            newest = newest.max(entry.lastmod.filter(|lastmod| *lastmod <= written));
            ControlFlow::Continue(())
        })?;
    }
    Ok(newest)
}

/// Calls `visit` for every resource, in the order of the document, until it breaks or nobody wants any more. Which rules the
/// document breaks, and how many of its entries cannot be understood, as far as it was read.
fn for_each_resource(
    spool: &DocumentCache,
    document: &CachedDocument,
    limits: Limits,
    goes_on: &dyn Fn() -> bool,
    visit: &mut dyn FnMut(Entry) -> ControlFlow<()>,
) -> Result<(Deviations, NotUnderstood), SyncError> {
    let failed = |cause| {
        // Kept, the broken document would be confirmed by a 304 at every later poll.
        if let Err(unforgotten) = spool.forget(&document.location) {
            tracing::warn!("{unforgotten}");
        }
        SyncError::Document { location: document.location.clone(), cause }
    };
    let mut reader = spool.reader(document, limits)?;
    let (mut read, mut lists, mut are_followed) = (0_u64, 0_u64, false);
    while let Some(entry) = reader.next_entry().map_err(failed)? {
        read += 1;
        if read.is_multiple_of(LOOK) && !goes_on() {
            break;
        }
        lists += u64::from(entry.is_list);
        are_followed |= entry.is_list && read <= LOOKED_AT;
        if is_resource(&entry) && visit(entry).is_break() {
            break;
        }
    }
    for (rule, count) in reader.deviations().counts() {
        tracing::info!(document = %document.location, count, rule = rule.sentence(), section = rule.section(), "deviation");
    }
    let not_followed = if are_followed { 0 } else { lists };
    let entries = NotUnderstood { entries: reader.entries(), skipped: reader.skipped() + not_followed };
    Ok((reader.deviations().clone(), entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of each share.
    fn shared(sizes: &[u64], most: usize) -> Vec<Vec<u64>> {
        let documents: Vec<_> = sizes
            .iter()
            .map(|size| CachedDocument {
                location: crate::source::DocumentLocation::File("list.xml".into()),
                base: None,
                size: *size,
                digest: 0,
                modified: None,
                validators: Default::default(),
            })
            .collect();
        let shares = shares(&documents, most).into_iter();
        shares.map(|share| share.iter().map(|document| document.size).collect()).collect()
    }

    #[test]
    fn whatever_ends_the_reading_of_one_share_is_told_to_the_others() {
        let failed = AtomicBool::new(false);
        let refused = || SyncError::NoThread(std::io::Error::from(std::io::ErrorKind::WouldBlock));

        assert_eq!(telling(&failed, || Ok(1)).unwrap(), 1);
        assert!(!failed.swap(false, Ordering::Relaxed));
        telling(&failed, || Err::<(), _>(refused())).unwrap_err();
        assert!(failed.swap(false, Ordering::Relaxed));
        let panicked =
            thread::scope(|scope| scope.spawn(|| telling(&failed, || -> Result<(), _> { panic!("a test") })).join());
        assert!(panicked.is_err() && failed.into_inner());
    }

    #[test]
    fn lists_are_shared_out_in_their_order_and_evenly_or_not_at_all() {
        assert_eq!(shared(&[5; 4], 2), [[5, 5], [5, 5]]);
        assert_eq!(shared(&[5; 3], 3), [[5], [5], [5]]);
        assert_eq!(shared(&[9, 2, 2, 2, 2, 1], 2), [vec![9], vec![2, 2, 2, 2, 1]]);
        assert_eq!(shared(&[1, 1, 4, 1, 1], 2), [vec![1, 1, 4], vec![1, 1]]);
        assert_eq!(shared(&[1, 20, 1], 2), [[1, 20, 1]], "one thread would have nearly all");
        assert_eq!(shared(&[5; 4], 1), [[5; 4]]);
        assert_eq!(shared(&[0, 0], 2), [[0, 0]]);
        assert!(shared(&[], 2).is_empty());
    }
}
