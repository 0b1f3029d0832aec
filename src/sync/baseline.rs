//! From spooled lists to the catalog's baseline: read on a thread of its own, entered on the caller's.

use super::deviations::SeenDeviations;
use super::position::ReadSet;
use super::selection::plan::{Chooser, Plan};
use super::{Stage, SyncError};
use crate::catalog::Baseline;
use crate::document::{Capability, Change, Deviations, Entry, Limits, Timestamp, Uri};
use crate::source::spool::{Spool, SpooledDocument};
use std::ops::ControlFlow;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

/// Entries between two calls of the progress function.
const PROGRESS_STEP: u64 = 20_000;

/// Entries handed from the reading thread to the entering one at once, and how many such batches may wait between them:
/// enough that neither waits for the other's pauses, less than a megabyte of usual entries.
const BATCH: usize = 128;
const BATCHES_WAITING: usize = 8;

/// What is chosen by `plan`, which knows all changes since, of the lists of `read`. They are read only where the links of their
/// entries count.
pub fn chooser(mut plan: Plan<'_>, spool: &Spool, read: &[ReadSet], limits: Limits) -> Result<Chooser, SyncError> {
    if plan.reads_lists() {
        for (set, list) in read.iter().flat_map(|it| it.lists().map(|list| (it.id, list))) {
            let mut failed = None;
            for_each_resource(spool, &list.document, limits, &mut |entry| match plan.list(set, &entry) {
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
    spool: &Spool,
    documents: &[SpooledDocument],
    limits: Limits,
    chooser: &Chooser,
    broken: &SeenDeviations,
    progress: &dyn Fn(Stage),
) -> Result<Vec<u64>, SyncError> {
    thread::scope(|scope| {
        let (batches, arriving) = sync_channel(BATCHES_WAITING);
        let reading = thread::Builder::new()
            .name("list-reader".into())
            .spawn_scoped(scope, move || read_batches(spool, documents, limits, (chooser, broken), &batches))
            .map_err(SyncError::NoThread)?;
        let mut counts = vec![0; documents.len()];
        let mut entries = 0;
        // Where adding fails the channel closes, and the reading thread ends at its next batch.
        for (document, batch) in arriving {
            if let Some(count) = counts.get_mut(document) {
                *count += batch.len() as u64;
            }
            for entry in &batch {
                baseline.add(entry)?;
                entries += 1;
                if entries % PROGRESS_STEP == 0 {
                    progress(Stage::Reading(entries));
                }
            }
        }
        // Only the thread's own word says that the lists have come to their end.
        match reading.join() {
            Ok(read) => read.map(|()| counts),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Sends every chosen resource of `documents` with the number of its document, until nobody receives any more.
fn read_batches(
    spool: &Spool,
    documents: &[SpooledDocument],
    limits: Limits,
    (chooser, broken): (&Chooser, &SeenDeviations),
    batches: &SyncSender<(usize, Vec<Entry>)>,
) -> Result<(), SyncError> {
    let mut batch = Vec::with_capacity(BATCH);
    let mut failed = None;
    for (number, document) in documents.iter().enumerate() {
        let deviations = for_each_resource(spool, document, limits, &mut |entry| {
            match chooser.chooses(&entry) {
                Ok(true) => batch.push(entry),
                Ok(false) => {}
                Err(cause) => {
                    failed = Some(cause);
                    return ControlFlow::Break(());
                }
            }
            if batch.len() < BATCH {
                return ControlFlow::Continue(());
            }
            match batches.send((number, std::mem::replace(&mut batch, Vec::with_capacity(BATCH)))) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        failed.take().map_or(Ok(()), |cause| Err(SyncError::Scratch(cause)))?;
        broken.note(&document.location, &deviations);
        // Where nobody receives it, the receiver has failed and says so.
        let _ = batches.send((number, std::mem::take(&mut batch)));
    }
    Ok(())
}

/// The authority of the smallest URI listed: the own host of lists that lie on disk.
pub fn smallest_authority(spool: &Spool, documents: &[SpooledDocument], limits: Limits) -> Result<Box<str>, SyncError> {
    let mut smallest: Option<Uri> = None;
    for document in documents {
        for_each_resource(spool, document, limits, &mut |entry| {
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
    spool: &Spool,
    documents: &[SpooledDocument],
    limits: Limits,
) -> Result<Option<Timestamp>, SyncError> {
    let mut newest = None;
    let now = Timestamp::now();
    for document in documents {
        let written = document.modified.map_or(now, |modified| modified.min(now));
        for_each_resource(spool, document, limits, &mut |entry| {
            newest = newest.max(entry.lastmod.filter(|lastmod| *lastmod <= written));
            ControlFlow::Continue(())
        })?;
    }
    Ok(newest)
}

/// Calls `visit` for every resource, in the order of the document, until it breaks. Which rules the document breaks, as far as
/// it was read.
fn for_each_resource(
    spool: &Spool,
    document: &SpooledDocument,
    limits: Limits,
    visit: &mut dyn FnMut(Entry) -> ControlFlow<()>,
) -> Result<Deviations, SyncError> {
    let failed = |cause| {
        // Kept, the broken document would be confirmed by a 304 at every later poll.
        if let Err(unforgotten) = spool.forget(&document.location) {
            tracing::warn!("{unforgotten}");
        }
        SyncError::Document { location: document.location.clone(), cause }
    };
    let mut reader = spool.reader(document, limits)?;
    while let Some(entry) = reader.next_entry().map_err(failed)? {
        if is_resource(&entry) && visit(entry).is_break() {
            break;
        }
    }
    for (rule, count) in reader.deviations().counts() {
        tracing::info!(document = %document.location, count, rule = rule.sentence(), section = rule.section(), "deviation");
    }
    Ok(reader.deviations().clone())
}

/// An entry of a Resource List stands for a resource unless it says that it points to a document or is gone.
fn is_resource(entry: &Entry) -> bool {
    entry.change != Some(Change::Deleted)
        && entry.capability.as_ref().is_none_or(|capability| matches!(capability, Capability::Other(_)))
}
