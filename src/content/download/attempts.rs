//! The task of one download, from its first request to its verdict: places in their order, resumed after a cut, begun again where the
//! bytes are wrong or of another version.

use super::demand::LARGE;
use super::in_flight::Download;
use super::incoming::IncomingBytes;
use super::outcome::Ended;
use super::plan::{Failure, Next, Place, Plan, Proof, Turn, is_absent, places, tells_of_bytes};
use super::promise::Promise;
use super::ranges::Ranges;
use super::task::{Completed, DownloadTask, Intake, Stop, VersionUnderWay};
use super::writer::{Stage, Writer};
use crate::content::blocks::{BlockMap, Sink};
use crate::content::fixity::Expected;
use crate::content::form::Form;
use crate::content::store::ObjectKey;
use crate::content::trust::{VersionId, strong};
use crate::content::{Content, ContentError, FetchSpec, Unannounced};
use crate::document::Uri;
use crate::platform::error_chain::chain;
use crate::source::http::{Response, Status};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A shorter object that was cut is rather fetched again than looked for on the disk before every download.
const WORTH_RESUMING: u64 = 1 << 20;

/// A download from its start to its end. Dropped before that, by a panic or because its task was cancelled, it ends the download, so that
/// no reader waits for it.
pub(super) struct RunningDownload {
    content: Arc<Content>,
    spec: FetchSpec,
    download: Arc<Download>,
}

impl RunningDownload {
    pub(super) fn new(content: &Arc<Content>, spec: &FetchSpec, download: &Arc<Download>) -> RunningDownload {
        RunningDownload { content: Arc::clone(content), spec: spec.clone(), download: Arc::clone(download) }
    }

    pub(super) async fn run(self) {
        let RunningDownload { content, spec, download } = &self;
        content.counters.lock().fetches += 1;
        match DownloadTask::new(Arc::clone(content), spec.clone(), Arc::clone(download)).run().await {
            Ok(completed) => content.completed(spec, download, completed),
            Err(Ended::Failed(error)) => content.failed(spec, download, error),
            Err(Ended::Poisoned(error)) => content.poison(spec, download, error),
            Err(Ended::Yielded(error)) => {
                tracing::debug!(ino = spec.ino.0, error = %chain(&error), "a download gives way");
                content.end_without_verdict(spec, download, Ended::Yielded(error));
            }
        }
    }
}

impl Drop for RunningDownload {
    fn drop(&mut self) {
        if self.download.outcome().is_none() {
            let error = ContentError::Stalled { uri: self.spec.uri.clone() };
            self.content.end_without_verdict(&self.spec, &self.download, Ended::Failed(error));
        }
    }
}

impl Content {
    /// See [`places`].
    fn places(&self, spec: &FetchSpec, proof: Proof) -> Vec<Place> {
        let mut places = self.candidates(spec, proof, self.turn_of_member(spec));
        if self.config.unannounced == Unannounced::Show && !spec.is_past() {
            // What the resource is now is to be shown rather than what is listed.
            places.retain(Place::is_current);
        }
        places
    }

    /// See [`places`].
    pub(super) fn candidates(&self, spec: &FetchSpec, proof: Proof, turn: Turn) -> Vec<Place> {
        let (failures, now) = (self.failures(), Instant::now());
        let is_asked_last = |uri: &Uri| failures.hosts.is_punished(uri.authority(), now);
        places(spec, self.config.mirrors, proof, turn, &is_asked_last)
    }

    /// Time for the head of one of `places`, so that all of them are asked before a reader gives up.
    pub(super) fn head_budget(&self, places: usize) -> Duration {
        let all = self.config.stall.mul_f32(0.9);
        all / u32::try_from(places.max(1)).unwrap_or(u32::MAX)
    }
}

impl DownloadTask {
    pub(super) fn new(content: Arc<Content>, spec: FetchSpec, download: Arc<Download>) -> DownloadTask {
        let published = content.local.vouching_digest(&spec);
        let observation = content.local.metadata.get(spec.ino).unwrap_or_default();
        let earlier = observation.digests.first().copied();
        let etag = strong(observation.etag.as_deref()).map(Box::from);
        let proof = Proof { vouched: published.is_some(), earlier: earlier.is_some() || etag.is_some() };
        let mut places = content.places(&spec, proof);
        if !spec.patches.is_empty() {
            places.insert(0, Place::Patched(spec.uri.clone()));
        }
        if content.shared_cache.is_some() {
            places.insert(0, Place::Shared(spec.uri.clone()));
        }
        let plan = Plan::new(places);
        DownloadTask {
            content,
            spec,
            download,
            plan,
            published,
            earlier,
            etag,
            shown: observation.size,
            version: VersionUnderWay::default(),
            intake: Intake::default(),
            wrong_copy: None,
            was_damaged: false,
            has_adopted: false,
            memory: None,
        }
    }

    /// The destination of the bytes.
    pub(super) fn sink(&self) -> Sink {
        self.download.state().sink
    }

    /// Runs the download to its end.
    pub(super) async fn run(mut self) -> Result<Completed, Ended> {
        if self.sink() == Sink::Memory {
            self.use_memory().await?;
        }
        let asked = self.ask_places().await;
        let completed = asked.map_err(|ended| self.after_wrong_copy(ended))?;
        self.offer_to_shared_cache(&completed);
        Ok(completed)
    }

    async fn ask_places(&mut self) -> Result<Completed, Ended> {
        loop {
            let Some(place) = self.plan.place().cloned() else { return Err(Ended::Failed(self.given_up())) };
            if !place.is_shortcut() && !std::mem::replace(&mut self.has_adopted, true) {
                self.adopt_partial().await;
            }
            let stop = match self.attempt(&place).await {
                Ok(completed) => {
                    self.content.judge_hosts(self.plan.faults(), Some(&place));
                    self.content.member_served(&place, self.plan.has_failed());
                    return Ok(completed);
                }
                Err(stop) => stop,
            };
            let failure = match stop {
                Stop::End(ended) => return Err(ended),
                Stop::Full(error) => {
                    // Others may reserve as much meanwhile.
                    self.intake.batch.clear();
                    self.find_room(error).await?;
                    self.receive_again().await;
                    continue;
                }
                Stop::Again => {
                    self.receive_again().await;
                    continue;
                }
                Stop::Rest => {
                    self.rest().await?;
                    continue;
                }
                // A later run resumes what is here.
                Stop::Failure(Failure::Refused(error) | Failure::Cut { error, .. }) if error.is_spent() => {
                    self.keep().await;
                    return Err(Ended::Failed(error));
                }
                Stop::Failure(failure) => failure,
            };
            let is_doubted = matches!(failure, Failure::Wrong(_)) && !place.is_shortcut();
            tracing::debug!(%place, ?failure, "an attempt failed");
            self.note_wrong_copy(&failure);
            match self.plan.after(failure, self.can_be_resumed()) {
                Next::Resume => {}
                Next::Again => {
                    self.begin_again(is_doubted).await;
                    if place.is_shortcut() {
                        self.download.state().count_again();
                    }
                }
                Next::GiveUp => {
                    if is_doubted {
                        self.begin_again(is_doubted).await;
                    } else {
                        self.keep().await;
                    }
                    self.content.judge_hosts(self.plan.faults(), None);
                    return Err(Ended::Failed(self.given_up()));
                }
            }
        }
    }

    /// Why no place had the version.
    fn given_up(&self) -> ContentError {
        let uri = || self.spec.uri.clone();
        let error = self.plan.error();
        let is_elsewhere = error.as_ref().is_none_or(|error| tells_of_bytes(error) || is_absent(error));
        match (self.spec.as_of, error) {
            (Some(at), _) if is_elsewhere => ContentError::Unarchived { uri: uri(), at },
            (None, _) if is_elsewhere && self.spec.is_replaced => ContentError::Changed { uri: uri() },
            // The missing address of a member says nothing of what is wrong with the member.
            (_, Some(error)) if is_absent(&error) => self.plan.package_error().unwrap_or(error),
            (_, error) => error.unwrap_or_else(|| self.stalled()),
        }
    }

    /// Resumes where an earlier download of this inode was cut. Bytes that belong to a strong validator of the first place are readable at
    /// once; the writer hashes them while the rest comes. Others wait for the verdict, and are of use where a digest is published.
    async fn adopt_partial(&mut self) {
        let length = self.spec.length.or(self.shown);
        if self.sink() != Sink::Store || length.is_some_and(|length| length < WORTH_RESUMING) {
            return;
        }
        let Some(first) = self.plan.place().filter(|place| !matches!(place, Place::Member(_))) else { return };
        let (first, is_joinable) = (first.uri().clone(), self.published.is_some());
        let is_expected = move |validator: &str, kept: u64| -> Option<Option<VersionId>> {
            let version = validator.split_once(' ').filter(|(_, place)| *place == first.as_str());
            let version = version.and_then(|(etag, _)| Some((first, strong(Some(etag))?.into())));
            let is_of_use = length.is_none_or(|length| length == kept) && (version.is_some() || is_joinable);
            is_of_use.then_some(version)
        };
        let (content, key) = (Arc::clone(&self.content), self.key());
        let resumed = tokio::task::spawn_blocking(move || {
            content
                .local
                .store
                .resume(&key, |validator, length| is_expected(validator, length).map(|version| (version, length)))
        });
        let Ok(Some((partial, (version, length)))) = resumed.await else { return };
        let (ino, attempt) = (self.spec.ino, self.download.state().attempt());
        let map = Arc::new(BlockMap::on_disk(Arc::new(partial), &self.content.local.block_cache, (ino, attempt)));
        self.intake.received = map.frontier();
        (self.version.is_joinable, self.version.is_mixed) = (is_joinable, version.is_none());
        let shown = version.clone().filter(|_| Form::published(&self.spec) == Form::Plain);
        self.download.publish(|state| state.resume(Some(length), shown, Arc::clone(&map)));
        let algorithm = self.expected(Form::Plain).algorithm();
        let writer = Writer::new(map, algorithm, self.content.block_hasher, Arc::clone(&self.download), attempt);
        self.intake.stage = Stage::Idle(Box::new(writer));
        (self.version.validator, self.version.length) = (version, Some(length));
    }

    /// Returns the requirements on the transferred bytes, given in `form`.
    pub(super) fn expected(&self, form: Form) -> Expected {
        let earlier = self.earlier.filter(|_| form == Form::Plain);
        Expected { length: self.spec.length, published: self.published, earlier }
    }

    /// The name under which bytes are kept until the verdict.
    pub(super) fn key(&self) -> ObjectKey {
        self.content.local.partial_key(&self.spec)
    }

    pub(super) fn wrong(&self, what: impl Into<String>) -> Stop {
        let (uri, what) = (self.spec.uri.clone(), what.into());
        let shown = self.content.config.unannounced == Unannounced::Show;
        Stop::Failure(Failure::Wrong(match self.version.newer_than_list {
            Some(modified) => ContentError::Unannounced { uri, modified, what, shown },
            None => ContentError::Mismatch { uri, what },
        }))
    }

    pub(super) fn changed(&self) -> Stop {
        Stop::Failure(Failure::Wrong(ContentError::Changed { uri: self.spec.uri.clone() }))
    }

    pub(super) fn stalled(&self) -> ContentError {
        ContentError::Stalled { uri: self.spec.uri.clone() }
    }

    pub(super) fn panicked(&self) -> Stop {
        let cause = Arc::new(io::Error::other("writing the object was interrupted"));
        Stop::End(Ended::Failed(ContentError::Cache { path: self.content.config.folder.clone(), cause }))
    }

    /// One request and its body: the whole, or the rest where bytes of a strong validator are here.
    async fn attempt(&mut self, place: &Place) -> Result<Completed, Stop> {
        match place {
            Place::Member(member) => return self.unpacked(member).await,
            Place::Shared(_) => return self.copied().await,
            Place::Patched(_) => return self.patched().await,
            _ => {}
        }
        if let Some(promise) = self.skip_to_frontier() {
            return self.verdict(promise).await;
        }
        let from = self.intake.received;
        let window = self.far_window();
        if window.is_none() {
            self.look_for_room().await.map_err(Stop::End)?;
        }
        let mut response = self.ask_where_it_is_read(place, window).await?;
        if from > 0 && self.is_of_another_node(&response) {
            // The next request may need its permit.
            drop(response);
            response = self.ask(place, from, None).await?;
        }
        let round_trip = response.round_trip;
        let resumed = match response.status {
            Status::Partial { first, total, .. } if from > 0 => {
                // Without a total the rest might be cut short unnoticed.
                let is_rest =
                    first == from && total.is_some() && (self.version.length.is_none() || total == self.version.length);
                let is_other = self.version.is_mixed || !self.is_same_version(&response);
                if !is_rest || (is_other && !self.version.is_joinable) {
                    return Err(self.changed());
                }
                if is_other {
                    self.mix().await?;
                }
                true
            }
            Status::Full => {
                // The server has another version, or knows no ranges: never a mix, this body is the whole.
                let is_other = |(from, _): &(Uri, _)| from != place.uri() || !self.is_same_version(&response);
                if from > 0 || self.version.validator.as_ref().is_some_and(is_other) {
                    self.begin_again(false).await;
                }
                false
            }
            Status::Partial { .. } | Status::NotModified => {
                return Err(self.wrong("the answer is not the whole although the whole was asked for"));
            }
        };
        let promise = self.promise(place, &response, resumed)?;
        let has_ranges = resumed || response.accepts_ranges;
        let ranges = self.ranges(has_ranges, round_trip);
        self.receive(IncomingBytes::Body(Box::new(response.body)), ranges, &promise).await?;
        self.verdict(promise).await
    }

    /// The request begins behind what extents brought. The promise of the whole where all of it is here.
    pub(super) fn skip_to_frontier(&mut self) -> Option<Promise> {
        let frontier = self.download.state().frontier();
        if frontier > self.intake.received && self.can_be_resumed() {
            self.intake.batch.clear();
            self.intake.received = frontier;
        }
        self.version
            .promise
            .clone()
            .filter(|promise| promise.length == Some(self.intake.received) && self.intake.received > 0)
    }

    /// Returns whether the whole was sent instead of the rest, under another ETag, and the rest may come under any.
    /// Servers behind one name may have an ETag each.
    fn is_of_another_node(&self, response: &Response) -> bool {
        let is_of_this_length = response.content_length.is_none() || response.content_length == self.version.length;
        let is_whole = response.status == Status::Full && is_of_this_length;
        is_whole && self.version.is_joinable && self.if_range().is_some() && !self.is_same_version(response)
    }

    /// The ranges that continue a large body. Where something failed before one connection is enough.
    fn ranges(&self, has_ranges: bool, round_trip: Duration) -> Option<Ranges> {
        let origin =
            self.download.state().origin().filter(|origin| origin.length.saturating_sub(self.intake.received) >= LARGE);
        // What may be in another coding than published has no validator, and is not waited for either.
        let has_ranges = has_ranges && self.version.validator.is_some() && !self.plan.has_failed();
        let origin = origin.filter(|_| has_ranges)?;
        Some(Ranges::new(&self.content, &self.spec, &self.download, origin, round_trip))
    }

    /// The size that is shown: a question may have taught it since the download began.
    pub(super) fn shown_size(&mut self) -> Option<u64> {
        self.shown = self.shown.or_else(|| self.content.known_size(self.spec.ino));
        self.shown
    }
}
