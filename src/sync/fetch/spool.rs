//! The downloaded documents, read to their ends.

use crate::document::{DocumentError, Entry, Limits, Reader, Timestamp};
use crate::source::documents::{CachedDocument, DocumentCache};
use crate::source::{DocumentLocation, is_resource};
use crate::sync::SyncError;
use crate::sync::deviations::{NotUnderstood, SeenDeviations};
use std::io::BufRead;
use std::ops::ControlFlow;
use std::sync::Arc;

/// First entries of a list in which a crawl looks for lists to follow: as many as a head has.
const ENTRIES_IN_HEAD: u64 = 8;

/// A document while it is read.
pub type DocumentReader = Reader<Box<dyn BufRead + Send>>;

/// The downloaded documents, how they are read, and what was seen in them.
#[derive(Clone)]
pub struct Spool {
    /// The folder.
    pub cache: Arc<DocumentCache>,
    /// Bounds for every document.
    pub limits: Limits,
    /// The rules that they break.
    pub deviations: SeenDeviations,
}

impl Spool {
    /// Documents in which nothing was seen yet.
    pub fn new(cache: Arc<DocumentCache>, limits: Limits) -> Spool {
        Spool { cache, limits, deviations: SeenDeviations::default() }
    }

    /// Calls `visit` for every entry, in document order; the reader then, which knows the whole header.
    ///
    /// # Errors
    /// A document that cannot be read to its end. It is forgotten: if it were kept, a 304 would confirm it at every later poll.
    pub fn read(
        &self,
        document: &CachedDocument,
        visit: &mut dyn FnMut(Entry) -> Result<ControlFlow<()>, SyncError>,
    ) -> Result<DocumentReader, SyncError> {
        let mut reader = self.cache.reader(document, self.limits)?;
        while let Some(entry) = reader.next_entry().map_err(|cause| self.broken(&document.location, cause))? {
            if visit(entry)?.is_break() {
                break;
            }
        }
        Ok(reader)
    }

    /// The error of a document that cannot be read to its end.
    pub fn broken(&self, location: &DocumentLocation, cause: DocumentError) -> SyncError {
        if let Err(cause) = self.cache.forget(location) {
            tracing::warn!("{cause}");
        }
        SyncError::Document { location: location.clone(), cause }
    }

    /// Calls `visit` with every resource of a list, in document order. Notes which rules the list breaks, and how many of its entries
    /// cannot be understood, unless `visit` broke off.
    pub fn each_resource(
        &self,
        list: &CachedDocument,
        visit: &mut dyn FnMut(Entry) -> Result<ControlFlow<()>, SyncError>,
    ) -> Result<(), SyncError> {
        let (mut read, mut lists, mut are_followed, mut flow) = (0_u64, 0_u64, false, ControlFlow::Continue(()));
        let reader = self.read(list, &mut |entry| {
            read += 1;
            lists += u64::from(entry.is_list);
            are_followed |= entry.is_list && read <= ENTRIES_IN_HEAD;
            if is_resource(&entry) {
                flow = visit(entry)?;
            }
            Ok(flow)
        })?;
        if flow.is_break() {
            return Ok(());
        }
        for (rule, count) in reader.deviations().counts() {
            tracing::info!(document = %list.location, count, rule = rule.name(), section = rule.section(), "deviation");
        }
        let not_followed = if are_followed { 0 } else { lists };
        let entries = NotUnderstood { entries: reader.entries(), skipped: reader.skipped() + not_followed };
        self.deviations.note(&list.location, reader.deviations(), Some(entries));
        Ok(())
    }

    /// The newest `lastmod` listed: the lists are at least as new. A `lastmod` in the future, or later than its list, is wrong.
    pub fn newest_lastmod(&self, lists: &[CachedDocument]) -> Result<Option<Timestamp>, SyncError> {
        let mut newest = None;
        for list in lists {
            let written = written_by(list);
            self.each_resource(list, &mut |entry| {
                newest = newest.max(entry.lastmod.filter(|lastmod| *lastmod <= written));
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(newest)
    }
}

/// The latest time at which a list can have been written: by its server's account, else now.
pub fn written_by(list: &CachedDocument) -> Timestamp {
    let now = Timestamp::now();
    list.modified.map_or(now, |modified| modified.min(now))
}
