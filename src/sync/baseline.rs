//! From spooled lists to the catalog's baseline, entry by entry.

use super::{Stage, SyncError};
use crate::catalog::Baseline;
use crate::document::{Capability, Change, Entry, Limits, Uri};
use crate::source::spool::{Spool, SpooledDocument};

/// Entries between two calls of the progress function.
const PROGRESS_STEP: u64 = 20_000;

/// Adds every resource of `documents` to `baseline`; how many there were. A list that breaks off fails the whole.
pub fn read_into(
    baseline: &mut Baseline<'_>,
    spool: &Spool,
    documents: &[SpooledDocument],
    limits: Limits,
    progress: &dyn Fn(Stage),
) -> Result<u64, SyncError> {
    let mut entries = 0;
    for document in documents {
        for_each_resource(spool, document, limits, &mut |entry| {
            baseline.add(entry)?;
            entries += 1;
            if entries % PROGRESS_STEP == 0 {
                progress(Stage::Reading(entries));
            }
            Ok(())
        })?;
    }
    Ok(entries)
}

/// The authority of the smallest URI listed: the own host of lists that lie on disk.
pub fn smallest_authority(spool: &Spool, documents: &[SpooledDocument], limits: Limits) -> Result<Box<str>, SyncError> {
    let mut smallest: Option<Uri> = None;
    for document in documents {
        for_each_resource(spool, document, limits, &mut |entry| {
            if smallest.as_ref().is_none_or(|least| entry.loc < *least) {
                smallest = Some(entry.loc.clone());
            }
            Ok(())
        })?;
    }
    Ok(smallest.map_or_else(|| "".into(), |uri| uri.authority().into()))
}

fn for_each_resource(
    spool: &Spool,
    document: &SpooledDocument,
    limits: Limits,
    visit: &mut dyn FnMut(&Entry) -> Result<(), SyncError>,
) -> Result<(), SyncError> {
    let failed = |cause| {
        // Kept, the broken document would be confirmed by a 304 at every later poll.
        if let Err(unforgotten) = spool.forget(&document.location) {
            tracing::warn!("{unforgotten}");
        }
        SyncError::Document { location: document.location.clone(), cause }
    };
    let mut reader = spool.reader(document, limits)?;
    while let Some(entry) = reader.next_entry().map_err(failed)? {
        if is_resource(&entry) {
            visit(&entry)?;
        }
    }
    for (rule, count) in reader.deviations().counts() {
        tracing::info!(document = %document.location, count, rule = rule.sentence(), section = rule.section(), "deviation");
    }
    Ok(())
}

/// An entry of a Resource List stands for a resource unless it says that it points to a document or is gone.
fn is_resource(entry: &Entry) -> bool {
    entry.change != Some(Change::Deleted)
        && entry.capability.as_ref().is_none_or(|capability| matches!(capability, Capability::Other(_)))
}
