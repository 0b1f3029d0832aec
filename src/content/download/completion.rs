//! How a download ends: what is known of its object then, what of it was handed out, and the events.

use super::failures::HostFault;
use super::in_flight::Download;
use super::object::CachedObject;
use super::outcome::{Ended, Outcome};
use super::plan::{Place, tells_of_bytes};
use super::task::Completed;
use crate::content::blocks::cache::{CachedBlock, Holder};
use crate::content::fixity::WHOLE_LIMIT;
use crate::content::served::Served;
use crate::content::{Content, ContentError, Event, FetchSpec};
use crate::document::{Timestamp, Uri};
use crate::platform::error_chain::chain;
use crate::platform::ino::Ino;
use bytes::Bytes;
use std::sync::{Arc, Mutex};
use std::time::Instant;

impl Content {
    /// The object is whole and right.
    pub(super) fn completed(&self, spec: &FetchSpec, download: &Download, completed: Completed) {
        let ino = spec.ino;
        let size = completed.object.length();
        self.counters.lock().fetched_bytes += size;
        let on_disk = match &completed.object {
            CachedObject::Store(_) => Some(completed.key.clone()),
            CachedObject::Memory(_) => None,
        };
        if let Some(key) = &on_disk {
            self.local.keep_for_patches(spec, completed.origin.media_type.as_deref(), key, size);
        }
        let mut known = None;
        self.local.metadata.update(ino, |observation| {
            known = observation.size.replace(size);
            if !completed.is_shared {
                observation.etag = completed.origin.etag;
                observation.last_modified = completed.origin.last_modified;
                observation.media_type = completed.origin.media_type;
                observation.validated_at = Some(Timestamp::now());
            }
            observation.digests = vec![completed.digest];
            observation.object = on_disk;
            observation.verified = completed.verified;
        });
        self.local.pins.completed(ino, &completed.key);
        // The kernel may keep any page of it when the cache has it no more.
        self.local.served.note_verified(ino, size);
        if completed.is_plain && size > WHOLE_LIMIT {
            let blocks = Arc::new(Mutex::new(download.state().take_whole()));
            self.local.remember_served(ino, Served { blocks, is_whole: true, version: None });
        } else {
            // Of what was decoded the download knows the coded bytes alone.
            self.local.served.clear(ino);
        }
        if let CachedObject::Memory(map) = &completed.object {
            // Its readers have not read all of it yet.
            for (first, block) in map.in_window() {
                let key = CachedBlock { ino, holder: Holder::Verified, first };
                self.local.block_cache.keep(key, Bytes::copy_from_slice(&block));
            }
        }
        self.failures().completed(ino, &spec.uri);
        if known != Some(size) {
            self.local.send_event(Event::Sized(ino, size));
        }
        self.end(ino, download, Ok(completed.object));
    }

    /// No source had right bytes.
    pub(super) fn failed(&self, spec: &FetchSpec, download: &Download, error: ContentError) {
        let ino = spec.ino;
        // First, so that nothing is handed out after the look at what was.
        download.close();
        self.counters.fetch_failed(spec, &error);
        let is_mismatch = matches!(error, ContentError::Mismatch { .. } | ContentError::Unannounced { .. });
        if is_mismatch && has_served(download) && !download.state().trust.is_proved() {
            // Before the name gets its new inode, whose readers would be shown the same bytes.
            self.failures().doubt(&spec.uri, Instant::now());
            return self.poison(spec, download, error);
        }
        if !error.is_unsent() {
            self.failures().request_failed(ino, Instant::now());
        }
        self.note_contradiction(spec, &error);
        let is_changed = matches!(error, ContentError::Changed { .. });
        self.remember_unjudged(ino, download, !is_mismatch && !is_changed);
        let is_endless = matches!(error, ContentError::Endless { .. });
        if is_changed || is_mismatch || is_endless || matches!(error, ContentError::Unarchived { .. }) {
            tracing::warn!(ino = ino.0, error = %chain(&error), "a file is not what the Source published");
            self.failures().inode_failed(ino, &error, Instant::now());
        } else if !error.is_spent() {
            tracing::info!(ino = ino.0, error = %chain(&error), "a file cannot be downloaded");
        }
        // A past version may be gone.
        if is_changed && !spec.is_past() {
            self.local.send_event(Event::Changed(ino));
        } else if self.count_unannounced(&error) {
            self.local.send_event(Event::Unannounced(ino));
        }
        self.end(ino, download, Err(Ended::Failed(error)));
    }

    /// Ends a download that gave way or was interrupted: what is here stays for a later download.
    pub(super) fn end_without_verdict(&self, spec: &FetchSpec, download: &Download, ended: Ended) {
        download.close();
        self.remember_unjudged(spec.ino, download, true);
        self.end(spec.ino, download, Err(ended));
    }

    /// Remembers what was handed out of a download that ends without verdict. What was proved before stays so.
    /// `is_of_version`: nothing says that its version is another than published.
    fn remember_unjudged(&self, ino: Ino, download: &Download, is_of_version: bool) {
        if has_served(download) {
            let before = self.local.served.get(ino).unwrap_or_default();
            let (blocks, version) = download.state().trust.record();
            self.local.remember_served(ino, Served { blocks, version: version.filter(|_| is_of_version), ..before });
        }
    }

    /// Counts a failure that the Source has not announced yet; whether its bytes are to be shown.
    fn count_unannounced(&self, error: &ContentError) -> bool {
        let ContentError::Unannounced { shown, .. } = error else { return false };
        self.counters.lock().unannounced += 1;
        *shown
    }

    /// A body had other bytes than those that were announced, for a size that only a head had: the name's next inode has
    /// its size from the body.
    fn note_contradiction(&self, spec: &FetchSpec, error: &ContentError) {
        if !tells_of_bytes(error) || spec.is_past() {
            return;
        }
        let known = self.local.metadata.get(spec.ino).filter(|observation| observation.digests.is_empty());
        if let Some(size) = known.and_then(|observation| observation.size) {
            self.failures().contradict(&spec.uri, size, Instant::now());
        }
    }

    /// Bytes that were handed out are wrong.
    pub(super) fn poison(&self, spec: &FetchSpec, download: &Download, error: ContentError) {
        let ino = spec.ino;
        self.note_contradiction(spec, &error);
        self.local.condemn(ino);
        tracing::error!(ino = ino.0, error = %chain(&error), "bytes that were read before the check may be wrong");
        let is_shown = self.count_unannounced(&error);
        // Readers fail first, then the kernel's pages go: in the other order a reader could fill them again.
        self.end(ino, download, Err(Ended::Poisoned(error)));
        self.local.send_event(if is_shown { Event::Unannounced(ino) } else { Event::Poisoned(ino) });
    }

    /// Ends a download and takes it out of the table at once: a later reader finds the object or starts another.
    pub(super) fn end(&self, ino: Ino, download: &Download, outcome: Outcome) {
        // What is kept for a later download is written down here, without the lock.
        download.close();
        self.table.end(ino, download, outcome);
        self.allocator_watch.working(&self.runtime);
    }

    /// Hosts that were at fault are asked last for a while; `right`: the place that had the right bytes. Where none had,
    /// the list may be at fault.
    pub(super) fn judge_hosts(&self, faults: &[(Uri, HostFault)], right: Option<&Place>) {
        let (mut failures, now) = (self.failures(), Instant::now());
        for (uri, fault) in faults {
            // Hosts that serve the current version are not at fault where the resource has changed since.
            if *fault == HostFault::Silent || right.is_some_and(Place::is_current) {
                failures.host_failed(uri.authority(), *fault, now);
            }
        }
        if let Some(place) = right.filter(|place| place.is_of_host()) {
            failures.hosts.forgive(place.uri().authority());
        }
    }
}

/// Returns whether anything was handed out of the inode.
pub(super) fn has_served(download: &Download) -> bool {
    download.state().trust.has_served()
}
