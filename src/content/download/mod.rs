//! One download an object: whole, streamed or by ranges, resumed after a cut, from mirrors where `loc` fails.
//!
//! A reader joins the download of its inode in the [`table`], or starts one ([`Content::read`]), and waits while it makes progress.
//! [`state`] says what a read finds: blocks that are here and may be handed out, an [`extent`] to fetch, or a wait. [`demand`] decides how far
//! the stream comes, [`trust`](super::trust) what is handed out. The [`task`] of a download makes its [`attempts`] in the order of the [`plan`],
//! [`answer`] reads what their heads promise, [`stream`] receives a body while readers follow it, [`writer`] stores and hashes
//! its bytes, [`verify`] gives the verdict and [`completion`] remembers what is known at the end.

mod answer;
mod attempts;
mod completion;
mod demand;
mod extent;
mod failures;
mod far;
mod in_flight;
mod incoming;
mod member;
mod object;
mod outcome;
mod patched;
mod plan;
mod prefetch;
mod promise;
mod ranges;
mod revalidation;
mod shared_cache;
mod size;
mod space;
mod state;
mod stream;
mod table;
mod task;
mod verify;
mod writer;

#[cfg(test)]
mod tests;

pub(super) use failures::Failures;
pub(super) use in_flight::Download;
pub(super) use object::CachedObject;
pub(super) use revalidation::MOST_REVALIDATIONS;
pub(super) use size::SizeQuestions;
pub(super) use table::DownloadTable;

use super::blocks::Sink;
use super::store::Object;
use super::trust::Trust;
use super::{Content, ContentError, Event, FetchSpec};
use crate::platform::ino::Ino;
use crate::source::http::Requester;
use attempts::RunningDownload;
use bytes::Bytes;
use demand::Bounds;
use in_flight::Joining;
use outcome::Ended;
use state::{Here, Look};
use std::collections::HashSet;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;
use table::Waiting;

/// A damaged object is fetched again so often within one read.
const ROUNDS: usize = 3;

/// Extents of one read that may bring nothing: then the stream brings what they did not.
const FAILED_EXTENTS: usize = 2;

/// An object up to this many bytes that was just written is still in the page cache: reading it here is faster than handing it to
/// another thread.
const AT_HAND: u64 = 256 << 10;

/// Bytes that no reader has asked for, of a download that cannot be resumed or that readers have left: an eighth of the cache,
/// within these.
const UNREAD: RangeInclusive<u64> = 16 << 20..=256 << 20;

/// Bytes of a body of unknown length, at most: a quarter of the cache, but no less than these.
const LEAST_UNSIZED: u64 = 64 << 20;

/// Place of an object that a read joins.
enum Joined<'c> {
    /// In the cache folder.
    Here(Arc<Object>),
    /// On its way. Its bytes or its size are waited for as long as this is kept.
    UnderWay(Waiting<'c>),
}

/// Result of a wait for a read's bytes.
enum Found {
    Bytes(Bytes),
    Object(CachedObject),
    /// The download gave way: to be joined again.
    Nothing(ContentError),
}

impl Content {
    /// `length` bytes at `offset`, fewer only at the end of the file; waits while the download makes progress.
    pub async fn read(
        self: &Arc<Self>,
        spec: &FetchSpec,
        requester: Requester,
        offset: u64,
        length: u32,
    ) -> Result<Bytes, ContentError> {
        let read = self.read_or_download(spec, requester, offset, length).await;
        read.inspect_err(|_| self.counters.lock().failed_reads += 1)
    }

    async fn read_or_download(
        self: &Arc<Self>,
        spec: &FetchSpec,
        requester: Requester,
        offset: u64,
        length: u32,
    ) -> Result<Bytes, ContentError> {
        let (begun, mut damaged, mut is_shared) = (Instant::now(), 0, false);
        loop {
            if let Some(bytes) = self.local.verified_blocks(spec.ino, offset, length) {
                self.counters.waited(bytes.len(), is_shared);
                return Ok(bytes);
            }
            let joined = self.join(spec, Joining::Read(requester, offset, length))?;
            let is_fresh = matches!(joined, Joined::UnderWay(..));
            let found = match joined {
                Joined::Here(object) => Ok(Found::Object(CachedObject::Store(object))),
                Joined::UnderWay(waiting) => {
                    let found = self.wait((spec, requester), &waiting.download, (offset, length), begun).await;
                    is_shared = waiting.download.state().is_shared();
                    found
                }
            };
            let object = match found {
                Ok(Found::Bytes(bytes)) => {
                    self.counters.waited(bytes.len(), is_shared);
                    return Ok(bytes);
                }
                Ok(Found::Object(object)) => object,
                Ok(Found::Nothing(_)) if begun.elapsed() < self.config.stall => continue,
                Ok(Found::Nothing(error)) | Err(error) => {
                    self.failures().read_failed(spec.ino, offset, length, &error, Instant::now());
                    return Err(error);
                }
            };
            self.local.served.note_verified(spec.ino, object.length());
            let was_passed = matches!(object, CachedObject::Memory(_));
            let read = match is_fresh && object.length() <= AT_HAND {
                true => object.read(offset, length),
                false => tokio::task::spawn_blocking(move || object.read(offset, length)).await.unwrap_or_default(),
            };
            match read {
                Some(bytes) if is_fresh => {
                    self.counters.waited(bytes.len(), is_shared);
                    return Ok(bytes);
                }
                Some(bytes) => {
                    self.counters.hit(bytes.len());
                    return Ok(bytes);
                }
                None if was_passed => {}
                None if damaged < ROUNDS => damaged += 1,
                None => {
                    return Err(self.unreadable(io::Error::other("what was just written is damaged when it is read")));
                }
            }
        }
    }

    /// See [`Content::read_present`].
    pub(super) async fn present(&self, spec: &FetchSpec, offset: u64, length: u32) -> Option<Bytes> {
        let download = self.table.get(spec.ino);
        // What is not kept comes only where its readers ask, and a prefetch may end without a verdict on what was handed out.
        let is_joinable = |download: &Download| download.state().sink == Sink::Store && download.demanded().is_some();
        if download.as_ref().is_some_and(|download| !is_joinable(download)) {
            return None;
        }
        let object = match download.as_ref().map(|download| (download, download.look(offset, length, false, None))) {
            Some((download, Look::Here(here))) => {
                return self.hand_out(spec.ino, download, here, (offset, length)).await.ok()?;
            }
            Some((_, Look::Ended(Ok(object)))) => object,
            // What was handed out of it is not compared with what is found elsewhere.
            Some(_) => return None,
            None => CachedObject::Store(self.local.find(spec)?),
        };
        self.local.served.note_verified(spec.ino, object.length());
        tokio::task::spawn_blocking(move || object.read(offset, length)).await.ok()?
    }

    /// Each download under way: its version, its bytes that are here without a gap, and its length, where that is known.
    pub fn downloads(&self) -> Vec<(Ino, u64, Option<u64>)> {
        let part = |(ino, download): (Ino, Arc<Download>)| {
            let state = download.state();
            (ino, state.frontier(), state.length())
        };
        self.table.all().into_iter().map(part).collect()
    }

    /// The object, the download under way for it, or a new one. Where it is joined for the bytes of a read, an earlier
    /// failure of theirs or of the whole inode that counts still is an error at once.
    ///
    /// No file and no database is read under the lock of the table. A new download is put into the table first, and then the object is
    /// looked for again: a download leaves the table only after its object can be found.
    fn join(self: &Arc<Self>, spec: &FetchSpec, joining: Joining) -> Result<Joined<'_>, ContentError> {
        let under_way = self.table.get(spec.ino);
        if under_way.is_none() {
            if let Some(object) = self.local.find(spec) {
                return Ok(Joined::Here(object));
            }
        }
        if let Joining::Read(_, offset, length) = joining {
            let error = {
                let (failures, now) = (self.failures(), Instant::now());
                let of_inode = || failures.inode(spec.ino, now).filter(|_| under_way.is_none());
                failures.read(spec.ino, offset, length, now).or_else(of_inode)
            };
            // The bytes that a read failed to get may have come since.
            let is_here = || under_way.as_ref().is_some_and(|it| it.state().has(offset, length));
            if let Some(error) = error.filter(|_| !is_here()) {
                return Err(error);
            }
        }
        let (waiting, is_new) = self.table.join(spec.ino, joining, || self.new_download());
        if is_new {
            self.start(spec, &waiting.download);
        }
        Ok(Joined::UnderWay(waiting))
    }

    fn new_download(&self) -> Download {
        Download::new(self.config.fixity, self.bounds(), self.config.folder.as_path().into())
    }

    /// See [`Bounds`]: parts of what the cache folder may take.
    fn bounds(&self) -> Bounds {
        let quota = self.local.store.quota;
        Bounds {
            unread: (quota / 8).clamp(*UNREAD.start(), *UNREAD.end()),
            unsized_body: (quota / 4).max(LEAST_UNSIZED),
        }
    }

    /// Starts the task of a download that is in the table, unless its object has come since, or must not.
    fn start(self: &Arc<Self>, spec: &FetchSpec, download: &Arc<Download>) {
        let running = RunningDownload::new(self, spec, download);
        if let Some(object) = self.local.find(spec) {
            return self.end(spec.ino, download, Ok(CachedObject::Store(object)));
        }
        if self.local.is_poisoned(spec.ino) {
            // An earlier mount may have ended before its name had another inode.
            if self.local.served.remind(spec.ino) {
                self.local.send_event(Event::Poisoned(spec.ino));
            }
            return self.end(spec.ino, download, Err(Ended::Poisoned(poisoned(spec))));
        }
        let (served, prior) = self.local.prior_serves(spec);
        // Of a past version the Source may well serve another one's bytes: none are handed out before the verdict.
        let is_doubted = spec.is_past() || self.failures().doubted.is_punished(&spec.uri, Instant::now());
        download.change(|state| state.trust.bind((served.blocks, served.version), prior, is_doubted));
        let task = self.runtime.spawn(running.run());
        download.run_by(task.abort_handle());
    }

    /// Waits until `download` has the bytes `(offset, length)`, as long as something arrives. All that a read tries has one deadline, which
    /// counts from when it has `begun`, from the last progress of its object, or from the end of a known pause.
    async fn wait(
        self: &Arc<Self>,
        (spec, requester): (&FetchSpec, Requester),
        download: &Arc<Download>,
        (offset, length): (u64, u32),
        begun: Instant,
    ) -> Result<Found, ContentError> {
        let (mut requested, mut failed, mut refused, mut damaged) = (HashSet::new(), 0, None, 0);
        let mut changes = download.changes();
        loop {
            match download.look(offset, length, failed < FAILED_EXTENTS, refused) {
                Look::Ended(Ok(object)) => return Ok(Found::Object(object)),
                Look::Ended(Err(Ended::Yielded(error))) => return Ok(Found::Nothing(error)),
                Look::Ended(Err(ended)) => return Err(ended.into()),
                Look::Here(here) => {
                    let attempt = here.attempt;
                    match self.hand_out(spec.ino, download, here, (offset, length)).await {
                        Ok(Some(bytes)) => return Ok(Found::Bytes(bytes)),
                        Ok(None) => refused = Some(attempt),
                        // The attempt is over, and its file with it: that is not damage. Nor is a block that memory has dropped.
                        Err(_) if download.state().is_over(attempt) => {}
                        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                        Err(error) if damaged >= ROUNDS => return Err(self.unreadable(error)),
                        Err(_) => {
                            (refused, damaged) = (Some(attempt), damaged + 1);
                            download.change(|state| state.note_damage(attempt));
                        }
                    }
                }
                Look::Fetch(extent) => {
                    // What is requested again was not brought before.
                    failed += usize::from(!requested.insert(extent.blocks.start));
                    self.fetch_extent(spec, download, extent, requester);
                }
                Look::Wait => {
                    if !download.next_change(&mut changes, begun, self.config.stall).await {
                        return Err(ContentError::Stalled { uri: spec.uri.clone() });
                    }
                }
            }
        }
    }

    /// The bytes `(offset, length)` out of blocks that are here, recorded as handed out; `None`: they must not be, before the verdict.
    async fn hand_out(
        &self,
        ino: Ino,
        download: &Download,
        here: Here,
        (offset, length): (u64, u32),
    ) -> io::Result<Option<Bytes>> {
        let Here { attempt, blocks, map, in_memory } = here;
        let (hasher, range) = (self.block_hasher, blocks.clone());
        let read = tokio::task::spawn_blocking(move || {
            let bytes = in_memory.map_or_else(|| map.read(&range), |blocks| Ok(blocks.concat().into()))?;
            io::Result::Ok((hasher.digests(&bytes), bytes))
        });
        let (digests, bytes) = read.await.map_err(io::Error::other)??;
        let end = offset.saturating_add(u64::from(length)).min(blocks.end);
        let range = (offset - blocks.start) as usize..(end - blocks.start) as usize;
        let is_handed_out = download.change(|state| state.record_hand_out(attempt, &blocks, &digests));
        let touches_end = |trust: &Trust| end > trust.withheld_from() && !trust.is_proved();
        if is_handed_out && touches_end(&download.state().trust) {
            // Before the answer: the kernel drops a page that is being read as soon as it is answered.
            self.local.send_event(Event::Recheck(ino, offset..end));
        }
        Ok(is_handed_out.then(|| bytes.slice(range)))
    }

    fn unreadable(&self, cause: io::Error) -> ContentError {
        ContentError::Cache { path: self.config.folder.clone(), cause: Arc::new(cause) }
    }

    pub(super) fn no_room(&self) -> ContentError {
        let failing = self.local.store.failures.lasting().map(|failure| io::Error::other(failure.why));
        self.unreadable(failing.unwrap_or_else(|| io::ErrorKind::StorageFull.into()))
    }
}

/// Makes the error that readers of a poisoned inode get.
fn poisoned(spec: &FetchSpec) -> ContentError {
    let what = "bytes that were read before were wrong; open the file again".into();
    ContentError::Mismatch { uri: spec.uri.clone(), what }
}
