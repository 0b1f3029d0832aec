//! How a download ends: what is known of its object then, what of it went out, and who is told.

use super::fetch::Landed;
use super::handed::Kept;
use super::held::{Held, Version};
use super::plan::tells_of_bytes;
use super::state::Download;
use crate::causes::chain;
use crate::content::fixity::WHOLE_LIMIT;
use crate::content::{Content, ContentError, Event, FetchSpec, Verified};
use crate::document::Timestamp;
use fuser::INodeNo;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Content {
    pub(super) fn landed(&self, wanted: &FetchSpec, download: &Download, landed: Landed) {
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
            download.bind_later();
            self.remember_handed(ino, Kept { handed: download.handed(), is_whole: true, went_past, version: None });
        } else {
            // Of what was decoded the download knows the coded bytes alone.
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
        self.end(ino, download, Ok(landed.held));
    }

    pub(super) fn failed(&self, wanted: &FetchSpec, download: &Download, error: ContentError) {
        let ino = wanted.ino;
        let version = download.version();
        // First, so that nothing goes out after the look at what went out.
        download.close();
        self.counters.fetch_failed(&wanted.uri, &error);
        let handed = download.handed();
        let went_out = !handed.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        let mismatch = matches!(error, ContentError::Mismatch { .. } | ContentError::Unannounced { .. });
        let is_unjudged = !download.is_proved();
        if went_out && mismatch && is_unjudged {
            // Before the name gets its new inode, whose readers would be shown the same bytes.
            self.failures.lock().unwrap_or_else(PoisonError::into_inner).doubt(&wanted.uri);
            return self.poison(wanted, download, error);
        }
        self.note_contradiction(wanted, &error);
        if went_out {
            let version = version.filter(|_| !mismatch && !matches!(error, ContentError::Changed { .. }));
            self.remember_unjudged(ino, download, version);
        }
        let changed = matches!(error, ContentError::Changed { .. });
        if changed || mismatch || matches!(error, ContentError::Unarchived { .. }) {
            tracing::warn!(ino = ino.0, error = %chain(&error), "an object is not what the Source published");
            let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures.inode_failed(ino, &error, Instant::now());
        } else if download.gave_way(&error) {
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
        self.end(ino, download, Err(error));
    }

    /// Nobody follows a download any more: what is here stays for who comes back.
    pub(super) fn left(&self, wanted: &FetchSpec, download: &Download) {
        let version = download.version();
        download.leave();
        download.close();
        self.remember_unjudged(wanted.ino, download, version);
        self.end(wanted.ino, download, Err(ContentError::Stalled { uri: wanted.uri.clone() }));
    }

    /// Remembers what went out of a download that ends without verdict. What was proved before stays so.
    fn remember_unjudged(&self, ino: INodeNo, download: &Download, version: Option<Version>) {
        let handed = download.handed();
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

    pub(super) fn poison(&self, wanted: &FetchSpec, download: &Download, error: ContentError) {
        let ino = wanted.ino;
        self.note_contradiction(wanted, &error);
        self.condemn(ino);
        self.handed.lock().unwrap_or_else(PoisonError::into_inner).remove(ino);
        tracing::error!(ino = ino.0, error = %chain(&error), "bytes handed out before the verdict cannot be vouched for");
        let shown = self.count_unannounced(&error);
        // Readers fail first, then the kernel's pages go: in the other order a reader could fill them again.
        self.end(ino, download, Err(error));
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

    /// Ends a download and takes it out of the table at once: who comes later finds the object or starts another.
    pub(super) fn end(&self, ino: INodeNo, download: &Download, outcome: Result<Held, ContentError>) {
        // What is kept for a later download is written down here, without the lock.
        download.close();
        let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        // One that was left may have a successor there.
        let is_last = in_flight.get(&ino).is_some_and(|found| std::ptr::eq(&**found, download));
        if is_last {
            in_flight.remove(&ino);
        }
        download.land(outcome);
        drop(in_flight);
        if is_last {
            self.windows.forget(ino);
        }
        self.freed.working(&self.runtime);
    }
}

/// Ends a download whose task was dropped or panicked, so that no reader waits for it.
pub(super) struct Crash<'a> {
    pub(super) content: &'a Content,
    pub(super) wanted: &'a FetchSpec,
    pub(super) download: &'a Download,
}

impl Drop for Crash<'_> {
    fn drop(&mut self) {
        if self.download.outcome().is_none() {
            let version = self.download.version();
            self.download.close();
            self.content.remember_unjudged(self.wanted.ino, self.download, version);
            let error = ContentError::Stalled { uri: self.wanted.uri.clone() };
            self.content.end(self.wanted.ino, self.download, Err(error));
        }
    }
}
