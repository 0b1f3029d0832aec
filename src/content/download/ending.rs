//! How a flight ends: what is known of its object then, what of it went out, and who is told.

use super::fetch::Landed;
use super::flight::Flight;
use super::handed::Kept;
use super::held::{Held, Version};
use super::plan::tells_of_bytes;
use crate::causes::chain;
use crate::content::fixity::WHOLE_LIMIT;
use crate::content::{Content, ContentError, Event, FetchSpec, Verified};
use crate::document::Timestamp;
use fuser::INodeNo;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Content {
    pub(super) fn landed(&self, wanted: &FetchSpec, flight: &Flight, landed: Landed) {
        let ino = wanted.ino;
        let size = landed.held.length();
        self.counters.fetched(size);
        let on_disk = match &landed.held {
            Held::Store(_) => Some(landed.key.clone()),
            Held::Memory(bytes) => {
                self.uncached.put(ino, bytes.clone());
                None
            }
            Held::Passed(_) => None,
        };
        if let Some(key) = &on_disk {
            self.keep_for_patches(wanted, landed.origin.media_type.as_deref(), key, size);
        }
        let mut known = None;
        self.observed.update(ino, |observation| {
            known = observation.size.replace(size);
            observation.etag = landed.origin.etag;
            observation.last_modified = landed.origin.last_modified;
            observation.media_type = landed.origin.media_type;
            observation.digests = vec![landed.digest];
            observation.object = on_disk;
            observation.verified = landed.verified;
            observation.validated_at = Some(Timestamp::now());
        });
        self.pin_landed(ino, &landed.key);
        let went_past = matches!(landed.held, Held::Passed(_));
        // The kernel may keep any page of it when the cache has it no more.
        self.note_served(ino, size);
        if landed.is_plain && (went_past || size > WHOLE_LIMIT) {
            flight.bind_later();
            self.remember_handed(ino, Kept { handed: flight.handed(), is_whole: true, went_past, version: None });
        } else {
            // Of what was decoded the flight knows the coded bytes alone.
            self.handed.lock().unwrap_or_else(PoisonError::into_inner).remove(ino);
        }
        if let Held::Passed(end) = &landed.held {
            // Its readers have not read all of it yet.
            self.ends.lock().unwrap_or_else(PoisonError::into_inner).put(ino, end.clone());
        }
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).landed(ino, &wanted.uri);
        if known != Some(size) {
            self.tell(Event::Sized(ino, size));
        }
        self.end(ino, flight, Ok(landed.held));
    }

    pub(super) fn failed(&self, wanted: &FetchSpec, flight: &Flight, error: ContentError) {
        let ino = wanted.ino;
        let version = flight.version();
        // First, so that nothing goes out after the look at what went out.
        flight.close();
        self.counters.fetch_failed(&wanted.uri, &error);
        let handed = flight.handed();
        let went_out = !handed.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        let mismatch = matches!(error, ContentError::Mismatch { .. } | ContentError::Unannounced { .. });
        let is_unjudged = !flight.is_proved();
        if went_out && mismatch && is_unjudged {
            // Before the name gets its new inode, whose readers would be shown the same bytes.
            self.failures.lock().unwrap_or_else(PoisonError::into_inner).doubt(&wanted.uri);
            return self.poison(wanted, flight, error);
        }
        self.note_contradiction(wanted, &error);
        if went_out {
            let version = version.filter(|_| !mismatch && !matches!(error, ContentError::Changed { .. }));
            self.remember_unjudged(ino, flight, version);
        }
        let changed = matches!(error, ContentError::Changed { .. });
        if changed || mismatch || matches!(error, ContentError::Unarchived { .. }) {
            tracing::warn!(ino = ino.0, error = %chain(&error), "an object is not what the Source published");
            let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures.inode_failed(ino, &error, Instant::now());
        } else if flight.gave_way(&error) {
            tracing::debug!(ino = ino.0, "no room for an object that nobody reads yet");
        } else {
            tracing::info!(ino = ino.0, error = %chain(&error), "an object cannot be fetched");
        }
        // That a past version is no longer to be had tells nobody anything new.
        if changed && !wanted.is_past() {
            self.tell(Event::Changed(ino));
        } else if self.count_unannounced(&error) {
            self.tell(Event::Unannounced(ino));
        }
        self.end(ino, flight, Err(error));
    }

    /// Nobody follows a flight any more: what is here stays for who comes back.
    pub(super) fn left(&self, wanted: &FetchSpec, flight: &Flight) {
        let version = flight.version();
        flight.leave();
        flight.close();
        self.remember_unjudged(wanted.ino, flight, version);
        self.end(wanted.ino, flight, Err(ContentError::Stalled { uri: wanted.uri.clone() }));
    }

    /// Remembers what went out of a flight that ends without verdict. What was proved before stays so.
    fn remember_unjudged(&self, ino: INodeNo, flight: &Flight, version: Option<Version>) {
        let handed = flight.handed();
        if handed.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return;
        }
        let before = self.handed.lock().unwrap_or_else(PoisonError::into_inner).get(ino).unwrap_or_default();
        self.remember_handed(ino, Kept { handed, version, ..before });
    }

    /// Counts a failure that the Source has not announced yet; whether its bytes are to be shown.
    fn count_unannounced(&self, error: &ContentError) -> bool {
        let ContentError::Unannounced { shown, .. } = error else { return false };
        self.unannounced.fetch_add(1, Ordering::Relaxed);
        *shown
    }

    /// A body of other bytes than those that were announced came for a size that only a head had told: the name's next inode has
    /// its size from the body.
    fn note_contradiction(&self, wanted: &FetchSpec, error: &ContentError) {
        if !tells_of_bytes(error) || wanted.is_past() {
            return;
        }
        let told = self.observed.get(wanted.ino).filter(|observation| observation.digests.is_empty());
        if let Some(size) = told.and_then(|observation| observation.size) {
            self.failures.lock().unwrap_or_else(PoisonError::into_inner).contradict(&wanted.uri, size);
        }
    }

    pub(super) fn poison(&self, wanted: &FetchSpec, flight: &Flight, error: ContentError) {
        let ino = wanted.ino;
        self.note_contradiction(wanted, &error);
        self.condemn(ino);
        self.handed.lock().unwrap_or_else(PoisonError::into_inner).remove(ino);
        tracing::error!(ino = ino.0, error = %chain(&error), "bytes handed out before the verdict cannot be vouched for");
        let shown = self.count_unannounced(&error);
        // Readers fail first, then the kernel's pages go: in the other order a reader could fill them again.
        self.end(ino, flight, Err(error));
        self.tell(if shown { Event::Unannounced(ino) } else { Event::Poisoned(ino) });
    }

    /// Remembers what went out, and gives up the inodes that are forgotten for it.
    fn remember_handed(&self, ino: INodeNo, kept: Kept) {
        let unjudged = self.handed.lock().unwrap_or_else(PoisonError::into_inner).keep(ino, kept);
        for ino in unjudged {
            tracing::warn!(ino = ino.0, "too much went out without a verdict: nothing more does of this version");
            self.condemn(ino);
            self.tell(Event::Poisoned(ino));
        }
    }

    /// From now on every reader of `ino` fails. The caller tells why.
    fn condemn(&self, ino: INodeNo) {
        // Before a reader can find it poisoned, and tell once more.
        self.reminded.lock().unwrap_or_else(PoisonError::into_inner).insert(ino);
        self.observed.update(ino, |observation| {
            observation.verified = Verified::Failed;
            observation.object = None;
        });
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).remove(ino);
    }

    /// Ends a flight and takes it out of the table at once: who comes later finds the object or starts another.
    pub(super) fn end(&self, ino: INodeNo, flight: &Flight, outcome: Result<Held, ContentError>) {
        // What is kept for a later flight is written down here, without the lock.
        flight.close();
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        // One that was left may have a successor there.
        let is_last = flights.get(&ino).is_some_and(|found| std::ptr::eq(&**found, flight));
        if is_last {
            flights.remove(&ino);
        }
        flight.land(outcome);
        drop(flights);
        if is_last {
            self.windows.forget(ino);
        }
        self.freed.working(&self.runtime);
    }
}

/// Ends a flight whose task was dropped or panicked, so that no reader waits for it.
pub(super) struct Crash<'a> {
    pub(super) content: &'a Content,
    pub(super) wanted: &'a FetchSpec,
    pub(super) flight: &'a Flight,
}

impl Drop for Crash<'_> {
    fn drop(&mut self) {
        if self.flight.outcome().is_none() {
            let version = self.flight.version();
            self.flight.close();
            self.content.remember_unjudged(self.wanted.ino, self.flight, version);
            let error = ContentError::Stalled { uri: self.wanted.uri.clone() };
            self.content.end(self.wanted.ino, self.flight, Err(error));
        }
    }
}
