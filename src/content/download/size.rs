//! Sizes that are not published: asked by HEAD, then by the first byte, else learnt from the body.
//!
//! A size that is shown is true. The body is held to it; a body of another length gives the name a new inode with the right size.
//! Only its body proves a file to be empty.

use super::Joined;
use super::failures::Failures;
use super::in_flight::Joining;
use super::outcome::Ended;
use super::plan::{Place, Proof, Turn, is_absent};
use super::promise::{Disagreement, Head};
use crate::content::fixity::WHOLE_LIMIT;
use crate::content::form::{Form, is_decoded, request};
use crate::content::metadata::Observation;
use crate::content::{Content, ContentError, Event, FetchSpec};
use crate::document::Timestamp;
use crate::platform::ino::Ino;
use crate::platform::single_flight::SingleFlight;
use crate::source::http::{HttpError, KnownPause, Method, Priority, Requester, Response};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A known pause that a GETATTR waits for, at most: the kernel cannot cancel it.
const PATIENCE: Duration = Duration::from_secs(120);

/// The questions for sizes in flight. A reader that waits for an answer raises the priority of its requests, and sees their pauses. `None`: only the
/// body answers.
pub(in crate::content) type SizeQuestions =
    SingleFlight<Ino, Result<Option<u64>, ContentError>, (Arc<watch::Sender<Option<Requester>>>, KnownPause)>;

/// A question ahead that waited for one part in so many of its time counts as one that a reader waited for. A HEAD alone has more.
const SILENT_PART: u32 = 4;

impl Content {
    /// The true size of what a read returns; asks the Source where it must, within `size_deadline`. `is_to_be_read`: the size comes with the
    /// bytes, in one request, unless they are too many to wait for.
    pub async fn size(
        self: &Arc<Self>,
        spec: &FetchSpec,
        requester: Requester,
        is_to_be_read: bool,
    ) -> Result<u64, ContentError> {
        if let Some(size) = self.size_or_failure(spec) {
            return size;
        }
        let (deadline, pause) = (Instant::now() + self.config.size_deadline, KnownPause::default());
        let asking = self.ask_size(spec, requester, is_to_be_read, &pause);
        let size = pause.put_off(deadline, PATIENCE, asking).await.unwrap_or_else(|| Err(stalled(spec)));
        self.counters.size(spec, size.as_ref().map(drop));
        match &size {
            // A question ahead, which this one joined, may have failed.
            Ok(_) => self.failures().inode_answered(spec.ino),
            Err(error) if error.is_unsent() || pause.total() >= PATIENCE => {}
            Err(error) => self.failures().inode_failed(spec.ino, error, Instant::now()),
        }
        size
    }

    async fn ask_size(
        self: &Arc<Self>,
        spec: &FetchSpec,
        requester: Requester,
        is_to_be_read: bool,
        pause: &KnownPause,
    ) -> Result<u64, ContentError> {
        // One request brings the size and the bytes.
        if is_to_be_read || self.table.get(spec.ino).is_some() {
            if let Some(size) = self.size_of_body(spec, requester, false, pause).await? {
                return Ok(size);
            }
        }
        if let Some(size) = self.question(spec, requester, true, pause).await? {
            return Ok(size);
        }
        loop {
            if let Some(size) = self.size_of_body(spec, requester, true, pause).await? {
                return Ok(size);
            }
        }
    }

    /// The size that comes with the bytes. `None`: the download gave way, say to a prefetch; or it is too long to wait for, where the whole
    /// is not awaited.
    async fn size_of_body(
        self: &Arc<Self>,
        spec: &FetchSpec,
        requester: Requester,
        awaits_whole: bool,
        pause: &KnownPause,
    ) -> Result<Option<u64>, ContentError> {
        let waiting = match self.join(spec, Joining::Size(requester))? {
            Joined::Here(object) => return Ok(Some(object.length())),
            Joined::UnderWay(waiting) => waiting,
        };
        let download = &waiting.download;
        if awaits_whole {
            download.change(|state| state.demand.await_whole());
        }
        let mut changes = download.changes();
        loop {
            match download.outcome() {
                Some(Err(Ended::Yielded(_))) => return Ok(None),
                Some(outcome) => return Ok(Some(outcome?.length())),
                None => {}
            }
            let is_large = download.state().length().is_some_and(|bytes| bytes > WHOLE_LIMIT);
            if !awaits_whole && is_large {
                return Ok(None);
            }
            // A download ends by itself; a caller that cannot wait for that has its own deadline.
            let _ = pause.following(download.pause(), changes.changed()).await;
        }
    }

    /// Learns a size that the process `expected` is likely to ask for next, with the priority of a prefetch: where only the body shows it,
    /// as [`Content::fetch_ahead`] does, within `size_deadline`.
    ///
    /// # Errors
    /// As [`Content::size`]; a failure ahead keeps no reader from asking, but for a refusal and for a long silence.
    pub async fn size_ahead(self: &Arc<Self>, spec: &FetchSpec, expected: Requester) -> Result<(), ContentError> {
        if let Some(size) = self.size_or_failure(spec) {
            return size.map(drop);
        }
        let (deadline, pause) = (Instant::now() + self.config.size_deadline, KnownPause::default());
        let asking = async {
            if self.table.get(spec.ino).is_none() {
                let begun = Instant::now();
                let answer = self.question(spec, expected, false, &pause).await;
                if let Err(error) = &answer {
                    self.question_failed(spec.ino, error, begun.elapsed().saturating_sub(pause.total()));
                }
                if answer?.is_some() {
                    return Ok(());
                }
            }
            // A reader that comes meanwhile joins this download.
            self.fetch_ahead(spec, expected, WHOLE_LIMIT).await.map(drop)
        };
        let asked = pause.put_off(deadline, PATIENCE, asking).await.unwrap_or_else(|| Err(stalled(spec)));
        self.counters.size(spec, asked.as_ref().map(drop));
        asked
    }

    /// A question ahead for the size of `ino` failed after `waited`. A reader would be refused as well, or would wait as long for the same
    /// silence. Any other failure is remembered for questions ahead alone.
    fn question_failed(&self, ino: Ino, error: &ContentError, waited: Duration) {
        if error.is_unsent() {
            return;
        }
        let now = Instant::now();
        // It was asked several times, and each connection ended without an answer.
        let is_closed = matches!(error, ContentError::Fetch { cause, .. } if matches!(**cause, HttpError::Head { .. }));
        if is_closed || !error.is_retryable() || waited >= self.config.size_deadline / SILENT_PART {
            self.failures().inode_failed(ino, error, now);
        } else {
            self.failures().request_failed(ino, now);
        }
        // A reader that asked once more may have the size by now. One that has it later forgives this.
        if self.known_size(ino).is_some() {
            self.failures().inode_answered(ino);
        }
    }

    /// Returns whether a request for `ino` has failed lately: nothing is asked ahead of its readers.
    pub fn has_failed(&self, ino: Ino) -> bool {
        self.failures().has_failed(ino, Instant::now())
    }

    /// The answer of the question in flight, or of a new one; `is_waiting`: the process waits for it now. `None`: only the body answers.
    async fn question(
        self: &Arc<Self>,
        spec: &FetchSpec,
        process: Requester,
        is_waiting: bool,
        pause: &KnownPause,
    ) -> Result<Option<u64>, ContentError> {
        let mut may_repeat = is_waiting;
        let requester = is_waiting.then_some(process);
        loop {
            let mut is_new = false;
            let ((raise, its_pause), answer) = self.size_questions.join(&self.runtime, spec.ino, || {
                is_new = true;
                let (raise, raised) = watch::channel(requester);
                let (content, spec, pause) = (Arc::clone(self), spec.clone(), KnownPause::default());
                let waiting = (Priority::Prefetch(process, raised), pause.clone());
                let asking = async move { content.probe(&spec, waiting).await };
                ((Arc::new(raise), pause), asking)
            });
            raise.send_if_modified(|waiting| {
                let is_first = waiting.is_none() && requester.is_some();
                *waiting = waiting.or(requester);
                is_first
            });
            match pause.following(&its_pause, answer).await.unwrap_or_else(|| Err(stalled(spec))) {
                // Its deadline was that of an earlier requester, of a prefetch say. A reader has its own.
                Err(error) if !is_new && may_repeat && error.is_retryable() => may_repeat = false,
                answer => return answer,
            }
        }
    }

    /// The size or the failure that is known.
    fn size_or_failure(&self, spec: &FetchSpec) -> Option<Result<u64, ContentError>> {
        match self.size_present(spec).or_else(|| self.size_of_member(spec)) {
            Some(size) => Some(Ok(size)),
            None => self.failures().inode(spec.ino, Instant::now()).map(Err),
        }
    }

    pub(super) fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a size, to which a download that began before it was known is held. Returns the size that counts: the body may have
    /// shown another one in the meantime.
    fn show_size(&self, ino: Ino, size: u64, learn: impl FnOnce(&mut Observation)) -> u64 {
        let mut known = None;
        self.local.metadata.update(ino, |observation| {
            known = observation.size;
            if known.is_none() {
                observation.size = Some(size);
                learn(observation);
            }
        });
        if let Some(known) = known {
            return known;
        }
        if let Some(download) = self.table.get(ino) {
            download.change(|state| state.trust.show(size));
        }
        self.local.send_event(Event::Sized(ino, size));
        size
    }

    /// The size of the resource's member in a package whose directory is known. Its digest holds any bytes to this size.
    fn size_of_member(&self, spec: &FetchSpec) -> Option<u64> {
        let digest = self.local.vouching_digest(spec).filter(|_| !is_decoded(spec))?;
        let size = self.size_in_package(spec).filter(|size| *size > 0 || digest.is_of_nothing())?;
        Some(self.show_size(spec.ino, size, |_| {}))
    }

    /// Asks every current location without fetching the whole. `None`: only the body answers.
    async fn probe(
        &self,
        spec: &FetchSpec,
        (priority, pause): (Priority, KnownPause),
    ) -> Result<Option<u64>, ContentError> {
        // Another requester may have learnt it since this one looked.
        if let Some(size) = self.known_size(spec.ino) {
            return Ok(Some(size));
        }
        // The Source's current size is not that of a past version.
        if is_decoded(spec) || spec.is_past() {
            return Ok(None);
        }
        let proof = Proof { vouched: self.local.vouching_digest(spec).is_some(), earlier: false };
        let mut locations = self.candidates(spec, proof, Turn::Never);
        locations.retain(Place::is_current);
        // Two requests a location, and as much time again for the whole.
        let requests = u32::try_from(3 * locations.len()).unwrap_or(u32::MAX);
        let budget = self.config.size_deadline.mul_f32(0.9) / requests;
        let mut refusal = None;
        for location in locations {
            for method in [Method::Head, Method::Get] {
                let mut request = request(spec, location.uri(), budget, priority.clone());
                request.method = method;
                (request.patience, request.pause) = (PATIENCE, pause.clone());
                request.range = (method == Method::Get).then_some((0, Some(0)));
                let response = self.client.send(request).await;
                match self.read_size(spec, response, method, proof.vouched) {
                    Ok(Some(size)) => return Ok(Some(size)),
                    // That there is nothing, or that nothing may be sent now, holds for every request.
                    Err(error) if is_absent(&error) || error.paused_for().is_some() => {
                        refusal = Some(error);
                        break;
                    }
                    // A server may refuse HEAD alone.
                    _ if method == Method::Head => {}
                    Ok(None) => return Ok(None),
                    Err(error) => refusal = Some(error),
                }
            }
        }
        // Without the resource its package may still have it.
        refusal.filter(|_| spec.member.is_none()).map_or(Ok(None), Err)
    }

    /// The size that an answer announces, to which the body will be held. `None`: only the body answers. An error: this location does not
    /// have the resource.
    fn read_size(
        &self,
        spec: &FetchSpec,
        response: Result<Response, HttpError>,
        method: Method,
        vouched: bool,
    ) -> Result<Option<u64>, ContentError> {
        let response = match response {
            Ok(response) => response,
            // Only this kind of request is refused. An empty body has no range (416).
            Err(error) if matches!(error.status(), Some(400 | 405 | 416 | 501)) => return Ok(None),
            Err(error) => return Err(ContentError::Fetch { uri: spec.uri.clone(), cause: Arc::new(error) }),
        };
        let size = match Head::from(&response).agree(spec, vouched, None) {
            Ok((Form::Plain, size)) => size,
            Err(Disagreement::Page(page)) => return Err(page),
            _ => None,
        };
        // Some servers announce an empty body because they send none to HEAD.
        if size == Some(0) && method == Method::Head {
            self.failures().contradicted.forgive(&spec.uri);
        }
        let is_believed = |size: &u64| self.failures().is_believed(&spec.uri, *size, Instant::now());
        let Some(size) = size.filter(|size| *size > 0).filter(is_believed) else { return Ok(None) };
        let size = self.show_size(spec.ino, size, |observation| {
            observation.etag = response.etag.clone();
            observation.last_modified = response.modified_validator.clone();
            observation.media_type = response.media_type.clone();
            observation.validated_at = Some(Timestamp::now());
        });
        Ok(Some(size))
    }
}

fn stalled(spec: &FetchSpec) -> ContentError {
    ContentError::Stalled { uri: spec.uri.clone() }
}
