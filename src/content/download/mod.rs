//! One download an object: whole, streamed or by ranges, resumed after a cut, from mirrors where `loc` fails.
//!
//! A reader joins the download of its inode or starts one ([`Content::fetched`]), waits while it makes progress and takes
//! what the download hands out. [`fetch`] drives a download from place to place as [`plan`] says, [`answer`] reads what they promise, [`writer`] keeps, hashes
//! and publishes its bytes, [`download`] says what may go out when; [`patched`] makes a version of the one before it,
//! [`memento`] tells versions by time. A large object comes in several [`stripes`] at once (as many as [`lanes`] says), as far as it is [`followed`];
//! [`buffers`] hold what is on its way, [`held`] is what came of it, [`aside`] serves readers that jump far ahead, [`far`] those who begin there,
//! [`size`] asks for lengths that nobody published, [`failures`] remembers what failed.

mod ahead;
mod answer;
mod aside;
mod buffers;
mod coding;
mod cooldown;
mod ending;
mod failures;
mod far;
mod fetch;
mod followed;
mod handed;
mod hashing;
mod held;
mod lanes;
mod member;
mod memento;
mod patched;
mod plan;
mod promise;
mod revalidation;
mod room;
mod shares;
mod single_flight;
mod size;
mod state;
mod stripes;
mod urgency;
mod verdict;
mod window;
mod writer;

#[cfg(test)]
mod tests;

pub use ahead::Prefetched;
pub(super) use aside::Windows;
pub(super) use buffers::Buffers;
pub(super) use cooldown::Cooldowns;
pub(super) use failures::Failures;
pub(super) use followed::{latest_places, resting_places};
pub(super) use handed::HandedOuts;
pub(super) use held::Held;
pub(super) use member::PackagePenalties;
pub(super) use promise::{Form, is_decoded, published_coding, soft_failure, unasked};
pub(super) use revalidation::QUESTIONS;
pub(super) use shares::Shares;
pub(super) use single_flight::SingleFlight;
pub(super) use state::Download;
pub(super) use stripes::places as stripe_places;
pub(super) use window::Ends;

use super::fixity::WHOLE_LIMIT;
use super::store::{Moment, ObjectKey};
use super::{Content, ContentError, Event, FetchSpec, Mirrors, Unannounced, Verified};
use crate::document::Uri;
use bytes::Bytes;
use cooldown::Fault;
use ending::Crash;
use fetch::{Ended, Fetch};
use fuser::INodeNo;
use handed::{Bonds, Kept};
use plan::{Place, Proof, Turn, places};
use promise::strong;
use state::Look;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use window::joined;

/// A damaged object is fetched again so often within one read.
const ROUNDS: usize = 3;

/// What a download is joined for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joining {
    /// So many bytes from this one on.
    Read(u64, u32),
    /// Its length.
    Size,
    /// Nobody's read: [`Content::prefetch`] that began then.
    Ahead(Moment),
}

/// Where an object is.
enum Joined {
    /// On this machine.
    Here(Held),
    /// On its way.
    UnderWay(Arc<Download>),
}

/// What a wait for a download gave.
enum Found {
    Bytes(Bytes),
    Object(Held),
}

/// An object of so many bytes that was written a moment ago is in the page cache still: to read it takes less time than to
/// have another thread do so.
const AT_HAND: u64 = 256 << 10;

impl Content {
    /// See [`Content::read`].
    pub(super) async fn fetched(
        self: &Arc<Self>,
        wanted: &FetchSpec,
        offset: u64,
        length: u32,
    ) -> Result<Bytes, ContentError> {
        let (begun, mut gave_way) = (Instant::now(), None);
        for _ in 0..ROUNDS {
            let joined = self.join(wanted, Joining::Read(offset, length))?;
            let is_fresh = matches!(joined, Joined::UnderWay(_));
            let found = match joined {
                Joined::Here(held) => Found::Object(held),
                Joined::UnderWay(download) => match self.wait(wanted, &download, offset, length, begun).await {
                    Ok(found) => found,
                    Err(error) if download.gave_way(&error) => {
                        gave_way = Some(error);
                        continue;
                    }
                    Err(error) => {
                        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
                        failures.read_failed(wanted.ino, offset, length, &error, Instant::now());
                        return Err(error);
                    }
                },
            };
            let held = match found {
                Found::Bytes(bytes) => return Ok(bytes),
                Found::Object(held) => held,
            };
            self.note_served(wanted.ino, held.length());
            let read = match is_fresh && held.length() <= AT_HAND {
                true => held.read(offset, length),
                false => tokio::task::spawn_blocking(move || held.read(offset, length)).await.unwrap_or_default(),
            };
            if let Some(bytes) = read {
                return Ok(bytes);
            }
            gave_way = None;
        }
        // That prefetches were in the way each time says nothing of the disk.
        let damaged = || self.unreadable(std::io::Error::other("what was just written is damaged when it is read"));
        Err(gave_way.unwrap_or_else(damaged))
    }

    /// See [`Content::read_present`].
    pub(super) async fn present(&self, wanted: &FetchSpec, offset: u64, length: u32) -> Option<Bytes> {
        let download = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).get(&wanted.ino).cloned();
        // What goes past the cache comes as far as its readers ask; what nobody demanded may end without a verdict on what
        // went out.
        if download.as_ref().is_some_and(|download| download.is_passing() || !download.urgency().is_demanded()) {
            return None;
        }
        let found = match download.map(|download| download.look(offset, length, false)) {
            Some(Look::Bytes(pieces)) => return Some(joined(pieces)),
            Some(Look::Here(partial, range)) => {
                let bytes = (range.end - range.start) as usize;
                let read = tokio::task::spawn_blocking(move || partial.read_at(range.start, bytes)).await;
                return read.ok()?.ok()?;
            }
            Some(Look::Landed(held)) => Some(held),
            // What went out of it is not compared with what is found elsewhere.
            Some(Look::Failed(_) | Look::Jump(_) | Look::Wait(_)) => None,
            None => self.find(wanted),
        };
        let held = found?;
        self.note_served(wanted.ino, held.length());
        tokio::task::spawn_blocking(move || held.read(offset, length)).await.ok()?
    }

    /// The object, the download under way for it, or a new one. Where it is joined for the bytes of a read, an earlier
    /// failure of theirs or of the whole inode that counts still is an error at once.
    fn join(self: &Arc<Self>, wanted: &FetchSpec, joining: Joining) -> Result<Joined, ContentError> {
        let read = match joining {
            Joining::Read(offset, length) => Some((offset, length)),
            Joining::Size | Joining::Ahead(_) => None,
        };
        let in_flight = || self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        let is_under_way = in_flight().contains_key(&wanted.ino);
        // What is here is opened without the lock that all others need.
        if !is_under_way && let Some(held) = self.find(wanted) {
            return Ok(Joined::Here(held));
        }
        let mut in_flight = in_flight();
        let download = in_flight.get(&wanted.ino).cloned();
        if download.is_none() {
            // Again, under the lock: a download leaves the table only after its object can be found, and one may have just now.
            if let Some(held) = self.find(wanted) {
                return Ok(Joined::Here(held));
            }
            if self.is_poisoned(wanted.ino) {
                // An earlier mount may have ended before its name had another inode.
                if self.reminded.lock().unwrap_or_else(PoisonError::into_inner).insert(wanted.ino) {
                    self.tell(Event::Poisoned(wanted.ino));
                }
                return Err(poisoned(wanted));
            }
        }
        let end = |(offset, _)| {
            let end = self.ends.lock().unwrap_or_else(PoisonError::into_inner).get(wanted.ino)?;
            end.covers(offset).then(|| Joined::Here(Held::Passed(end)))
        };
        if let Some(end) = read.and_then(end) {
            return Ok(end);
        }
        if let Some((offset, length)) = read {
            let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let of_read = failures.read(wanted.ino, offset, length, now);
            let of_inode = if download.is_none() { failures.inode(wanted.ino, now) } else { None };
            if let Some(error) = of_read.or(of_inode) {
                return Err(error);
            }
        }
        if let Some(download) = download {
            download.urgency().join(joining, wanted.requester);
            // Who waits for the whole makes it go on.
            download.wanted().notify_one();
            return Ok(Joined::UnderWay(download));
        }
        let kept = self.handed.lock().unwrap_or_else(PoisonError::into_inner).get(wanted.ino);
        // Of a past version the Source may well serve another one's bytes: none go out before the verdict.
        let doubted =
            wanted.is_past() || self.failures.lock().unwrap_or_else(PoisonError::into_inner).is_doubted(&wanted.uri);
        let (kept, bonds) = self.bonds(wanted, kept);
        let went_past = kept.went_past;
        let download = Arc::new(Download::new(self.config.fixity, kept, bonds, doubted));
        download.urgency().join(joining, wanted.requester);
        if went_past {
            download.pass_by(&self.memory);
        }
        in_flight.insert(wanted.ino, Arc::clone(&download));
        self.runtime.spawn(Arc::clone(self).fly(wanted.clone(), Arc::clone(&download)));
        Ok(Joined::UnderWay(download))
    }

    /// Bytes of a verified object of so many go out.
    pub(super) fn note_served(&self, ino: INodeNo, bytes: u64) {
        if bytes > WHOLE_LIMIT {
            self.served.lock().unwrap_or_else(PoisonError::into_inner).insert(ino);
        }
    }

    /// What binds a download of `wanted`, of which `kept` is remembered.
    fn bonds(&self, wanted: &FetchSpec, kept: Option<Kept>) -> (Kept, Bonds) {
        let observation = self.observed.get(wanted.ino).unwrap_or_default();
        let is_vouched = self.vouching_digest(wanted).is_some();
        let was_served = self.served.lock().unwrap_or_else(PoisonError::into_inner).contains(wanted.ino);
        let bonds = Bonds {
            is_proved: kept.as_ref().is_some_and(|kept| kept.is_whole),
            is_known: !observation.digests.is_empty() && (was_served || !is_vouched),
            is_vouched,
        };
        let kept = kept.unwrap_or_else(|| {
            // The kernel may hold all but a few pages of what was verified: no validator proves those few. And the validators of mirrors
            // are not those of `loc`, and nothing says whose this is.
            let can_prove = !is_vouched && wanted.mirrors.is_empty();
            let etag = strong(observation.etag.as_deref()).filter(|_| can_prove);
            Kept { version: etag.map(|etag| (wanted.uri.clone(), etag.into())), ..Kept::default() }
        });
        (kept, bonds)
    }

    /// The object if it is on this machine: under this inode, or under its digest whoever fetched it.
    pub(super) fn find(&self, wanted: &FetchSpec) -> Option<Held> {
        if let Some(held) = self.find_local(wanted.ino) {
            return Some(held);
        }
        let observation = self.observed.get(wanted.ino);
        let told = observation.as_ref().and_then(|observation| observation.size);
        if published_coding(wanted).is_some() || self.is_poisoned(wanted.ino) {
            return None;
        }
        let digest = self.vouching_digest(wanted)?;
        let key = ObjectKey::digest(&self.config.source, &digest);
        let object = self.disk.get(&key)?;
        let agrees = |length: Option<u64>| length.is_none_or(|length| length == object.length());
        let is_unjudged = self.handed.lock().unwrap_or_else(PoisonError::into_inner).is_unjudged(wanted.ino);
        // Where bytes went out before a verdict, or others are known, the download must compare them.
        let is_other = observation.is_some_and(|known| known.digests.first().is_some_and(|known| *known != digest));
        if !agrees(wanted.length) || !agrees(told) || is_unjudged || is_other {
            return None;
        }
        self.observed.update(wanted.ino, |observation| {
            observation.size = Some(object.length());
            observation.object = Some(key.clone());
            observation.digests = vec![digest];
            observation.verified = Verified::Digest(digest.algorithm());
        });
        self.pin_landed(wanted.ino, &key);
        self.keep_for_patches(wanted, None, &key, object.length());
        if told.is_none() {
            self.tell(Event::Sized(wanted.ino, object.length()));
        }
        Some(Held::Store(object))
    }

    /// What [`Content::find_local`] would find, for who only looks: it does not count as a use.
    pub(super) fn peek_local(&self, ino: INodeNo) -> Option<Held> {
        let in_memory = self.uncached.peek(ino);
        if let Some(bytes) = in_memory {
            return Some(Held::Memory(bytes));
        }
        let observation = self.observed.get(ino).filter(|observation| observation.verified != Verified::Failed)?;
        let object = self.disk.peek(&observation.object?)?;
        (observation.size == Some(object.length())).then_some(Held::Store(object))
    }

    /// The object that is known to be this inode's, if it is on this machine.
    pub(super) fn find_local(&self, ino: INodeNo) -> Option<Held> {
        let in_memory = self.uncached.get(ino);
        if let Some(bytes) = in_memory {
            return Some(Held::Memory(bytes));
        }
        let observation = self.observed.get(ino)?;
        if observation.verified == Verified::Failed {
            return None;
        }
        let object = self.disk.get(&observation.object?)?;
        (observation.size == Some(object.length())).then_some(Held::Store(object))
    }

    /// Whether bytes handed out of this inode turned out wrong.
    pub(super) fn is_poisoned(&self, ino: INodeNo) -> bool {
        self.observed.get(ino).is_some_and(|observation| observation.verified == Verified::Failed)
    }

    /// The task of a download.
    async fn fly(self: Arc<Self>, wanted: FetchSpec, download: Arc<Download>) {
        let crash = Crash { content: &self, wanted: &wanted, download: &download };
        let fetched = async {
            // Whoever begins fetches ahead bounds how many there are: no read stands behind them, nor waits here for one that it joins.
            let turn = match download.urgency().demanded() {
                Some(requester) => Some(self.fetches.take(wanted.uri.authority(), requester).await),
                None => None,
            };
            download.touch();
            self.counters.fetch();
            Fetch::new(Arc::clone(&self), wanted.clone(), Arc::clone(&download), turn).run().await
        };
        let outcome = tokio::select! {
            fetched = fetched => fetched,
            () = self.held_up(&wanted, &download) => return,
            // It is in the table no more, where another may be by now.
            () = download.urgency().left() => {
                download.close();
                return download.land(Err(ContentError::Stalled { uri: wanted.uri.clone() }));
            }
        };
        match outcome {
            Ok(landed) => self.landed(&wanted, &download, landed),
            Err(Ended::Failed(error)) => self.failed(&wanted, &download, error),
            Err(Ended::Poisoned(error)) => self.poison(&wanted, &download, error),
            Err(Ended::Left) => self.left(&wanted, &download),
        }
        drop(crash);
    }

    /// Waits until `download` has these bytes, as long as something arrives. All that a read tries has one deadline, which counts from
    /// when it has `begun` or from the last progress of its object.
    async fn wait(
        self: &Arc<Self>,
        wanted: &FetchSpec,
        download: &Arc<Download>,
        offset: u64,
        length: u32,
        begun: Instant,
    ) -> Result<Found, ContentError> {
        let mut may_jump = true;
        let mut standing = None;
        loop {
            let changed = download.changed().notified();
            tokio::pin!(changed);
            // Registered before the look: what happens between the two is not missed.
            changed.as_mut().enable();
            match download.look(offset, length, may_jump) {
                Look::Landed(held) => return Ok(Found::Object(held)),
                Look::Failed(error) => return Err(error),
                Look::Here(partial, range) => {
                    let bytes = (range.end - range.start) as usize;
                    let read = tokio::task::spawn_blocking(move || partial.read_at(range.start, bytes)).await;
                    return match read {
                        Ok(Ok(Some(bytes))) => Ok(Found::Bytes(bytes)),
                        Ok(Err(damaged)) => Err(self.unreadable(std::io::Error::other(damaged))),
                        _ => Err(self.unreadable(std::io::Error::other("what was just written is gone"))),
                    };
                }
                Look::Bytes(pieces) => return Ok(Found::Bytes(joined(pieces))),
                Look::Jump(jump) => {
                    // What goes past does not wait for who has a request of its own.
                    standing = None;
                    let until = begun.max(download.moved()) + self.config.stall;
                    let aside = self.aside((wanted.ino, wanted.requester), download, &jump);
                    let aside = tokio::time::timeout_at(until.into(), aside).await;
                    match aside {
                        Ok(Some(bytes)) => return Ok(Found::Bytes(bytes)),
                        _ => may_jump = false,
                    }
                }
                Look::Wait(moved) => {
                    // Until it is handed out, or the reader is gone, what goes past does not go without it.
                    standing.get_or_insert_with(|| download.stand_at(offset, length));
                    let deadline = moved.max(begun) + self.config.stall;
                    if Instant::now() >= deadline {
                        return Err(ContentError::Stalled { uri: wanted.uri.clone() });
                    }
                    // Whether it passed or something changed, the next look tells.
                    let _ = tokio::time::timeout_at(deadline.into(), changed).await;
                }
            }
        }
    }

    /// Rises with whatever comes from a host that may be asked for `wanted`.
    fn progress(&self, wanted: &FetchSpec) -> u64 {
        let mirrors = wanted.mirrors.iter().filter(|_| self.config.mirrors != Mirrors::Off).map(|(_, uri)| uri);
        let versions = wanted.mementos.iter().chain(&wanted.timegate).chain(&wanted.timemap);
        let package = wanted.member.iter().filter(|_| self.packages.get().is_some()).map(|member| &member.package);
        let places = std::iter::once(&wanted.uri).chain(mirrors).chain(versions).chain(package);
        places.fold(0, |sum, uri| sum.wrapping_add(self.client.progress(uri)))
    }

    /// Never ends: where a host brings others what they asked for, a reader of a download that has nothing yet waits on, but for less
    /// than half as long again: what others are sent is no progress of this object.
    async fn held_up(&self, wanted: &FetchSpec, download: &Download) {
        let mut before = self.progress(wanted);
        for _ in 0..3 {
            tokio::time::sleep(self.config.stall / 8).await;
            let now = self.progress(wanted);
            if now != before && download.frontier() == 0 && download.announced().is_none() {
                download.touch();
            }
            before = now;
        }
        std::future::pending().await
    }

    /// See [`places`].
    fn places(&self, wanted: &FetchSpec, proof: Proof, turn: Turn) -> Vec<Place> {
        let now = Instant::now();
        let cooldowns = self.cooldowns.lock().unwrap_or_else(PoisonError::into_inner);
        let is_cooling = |uri: &Uri| cooldowns.is_cooling(uri.authority(), now);
        let mut places = places(wanted, self.config.mirrors, proof, turn, &is_cooling);
        if self.config.unannounced == Unannounced::Show && !wanted.is_past() {
            // What the resource is now is to be shown rather than what is listed.
            places.retain(Place::is_current);
        }
        places
    }

    /// Hosts that were at fault are asked last for a while; `right`: the place that had the right bytes. Where none had,
    /// the list may be at fault.
    fn cool_down(&self, faults: &[(Uri, Fault)], right: Option<&Place>) {
        let now = Instant::now();
        let mut cooldowns = self.cooldowns.lock().unwrap_or_else(PoisonError::into_inner);
        for (uri, fault) in faults {
            // That the resource has changed since is no fault of those that serve what it is now.
            if *fault == Fault::Silent || right.is_some_and(Place::is_current) {
                cooldowns.failed(uri.authority(), *fault, now);
            }
        }
        if let Some(place) = right.filter(|place| !matches!(place, Place::Member(_))) {
            cooldowns.served(place.uri().authority());
        }
    }

    fn unreadable(&self, cause: std::io::Error) -> ContentError {
        ContentError::Cache { path: self.config.folder.clone(), cause: Arc::new(cause) }
    }

    /// Time for the head of one of `places`, so that all of them are asked before a reader gives up.
    pub(super) fn head_budget(&self, places: usize) -> Duration {
        let all = self.config.stall.mul_f32(0.9);
        all / u32::try_from(places.max(1)).unwrap_or(u32::MAX)
    }

    /// Tells the rest of the mount; nobody listens any more when the mount ends.
    pub(super) fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }
}

/// What readers of a poisoned inode get.
fn poisoned(wanted: &FetchSpec) -> ContentError {
    let what = "bytes handed out earlier were wrong; open the name again".into();
    ContentError::Mismatch { uri: wanted.uri.clone(), what }
}
