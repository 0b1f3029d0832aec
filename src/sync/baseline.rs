//! From spooled lists to the catalog's baseline, one after another.

use super::deviations::{NotUnderstood, SeenDeviations};
use super::read_set::ReadSet;
use super::selection::plan::{Chooser, Plan};
use super::{Stage, SyncError};
use crate::catalog::{Baseline, Share};
use crate::document::{Deviations, Entry, Limits, Timestamp, Uri};
use crate::source::documents::{CachedDocument, DocumentCache};
use crate::source::is_resource;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

/// Entries between two calls of the progress function.
pub const PROGRESS_STEP: u64 = 20_000;

/// Of one thread of several: a divisor of the above.
pub const SHARE_STEP: u64 = 1_000;

/// Entries between two looks at whether anybody still wants them.
const LOOK: u64 = 1_000;

/// First entries of a list in which the walk looks for lists to follow: as many as a head has.
const LOOKED_AT: u64 = 8;

/// Entries handed from the reading thread to the entering one at once, and how many such batches may wait between them:
/// enough that neither waits for the other's pauses, less than a megabyte of usual entries.
const BATCH: usize = 128;
const BATCHES_WAITING: usize = 8;

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

impl Reading<'_> {
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

    /// Reads on a thread of its own and enters on the caller's; how many resources there are of each document. So many
    /// `entries` were read before.
    pub fn alone(
        self,
        baseline: &mut Baseline<'_>,
        documents: &[CachedDocument],
        mut entries: u64,
        progress: &dyn Fn(Stage),
    ) -> Result<Vec<u64>, SyncError> {
        if documents.is_empty() {
            return Ok(Vec::new());
        }
        thread::scope(|scope| {
            let (batches, arriving) = sync_channel(BATCHES_WAITING);
            let reading = thread::Builder::new()
                .name("list-reader".into())
                .spawn_scoped(scope, move || self.batches(documents, &batches))
                .map_err(SyncError::NoThread)?;
            let mut counts = vec![0; documents.len()];
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
