//! Sizes that are not published: asked by HEAD, then by the first byte, else learnt from the body.
//!
//! A size that is shown is true. The body is held to it; a body of another length gives the name a new inode with the right size.
//! Only its body proves a file to be empty.

use super::Joined;
use super::failures::Failures;
use super::outcome::Outcome;
use super::plan::{Place, Proof, Turn, places};
use super::promise::{is_decoded, published_coding, request, soft_failure};
use super::shared::Joining;
use crate::content::fixity::WHOLE_LIMIT;
use crate::content::metadata::Observation;
use crate::content::{Content, ContentError, Event, FetchSpec};
use crate::document::{Timestamp, Uri};
use crate::source::http::{HttpError, Method, Priority, Requester, Response, Status};
use crate::source::single_flight::SingleFlight;
use fuser::INodeNo;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::watch;

/// The questions for sizes in flight. Who waits for an answer raises the priority of its requests. `None`: only the body answers.
pub(in crate::content) type Questions =
    SingleFlight<INodeNo, Result<Option<u64>, ContentError>, Arc<watch::Sender<Option<Requester>>>>;

/// The answer to one request.
enum Answer {
    /// The size, to which the body will be held.
    Trusted(u64),
    /// Only the body answers.
    Untrusted,
    /// Another method may answer.
    Unclear,
    /// This location does not have the resource.
    Refused(ContentError),
}

impl Content {
    /// See [`Content::size`]; `is_to_be_read`: [`Content::size_with_body`].
    pub(in crate::content) async fn learnt_size(
        self: &Arc<Self>,
        wanted: &FetchSpec,
        is_to_be_read: bool,
    ) -> Result<u64, ContentError> {
        if let Some(size) = self.size_or_failure(wanted) {
            return size;
        }
        let asking = tokio::time::timeout(self.config.size_deadline, self.ask_size(wanted, is_to_be_read));
        let size = asking.await.unwrap_or_else(|_| Err(stalled(wanted)));
        self.counters.size(&wanted.uri, size.as_ref().map(|_| ()));
        if let Err(error) = &size {
            self.failures().inode_failed(wanted.ino, error, Instant::now());
        }
        size
    }

    async fn ask_size(self: &Arc<Self>, wanted: &FetchSpec, is_to_be_read: bool) -> Result<u64, ContentError> {
        // One request brings the size and the bytes.
        if (is_to_be_read || self.is_in_flight(wanted.ino))
            && let Some(size) = self.size_of_body(wanted).await
        {
            return size;
        }
        if let Some(size) = self.question(wanted, Some(wanted.requester)).await? {
            return Ok(size);
        }
        loop {
            let download = match self.join(wanted, Joining::Size)? {
                Joined::Here(object) => return Ok(object.length()),
                Joined::UnderWay(download, _) => download,
            };
            download.await_whole();
            match download.ended().await {
                // It was a prefetch, say: the next one goes on. The caller has a deadline.
                Outcome::Yielded(_) => {}
                outcome => return outcome.into_result().map(|object| object.length()),
            }
        }
    }

    /// See [`Content::size_ahead`].
    pub(in crate::content) async fn learn_size_ahead(self: &Arc<Self>, wanted: &FetchSpec) -> Result<(), ContentError> {
        if let Some(size) = self.size_or_failure(wanted) {
            return size.map(drop);
        }
        let asking = tokio::time::timeout(self.config.size_deadline, self.ask_size_ahead(wanted));
        asking.await.unwrap_or_else(|_| Err(stalled(wanted)))
    }

    async fn ask_size_ahead(self: &Arc<Self>, wanted: &FetchSpec) -> Result<(), ContentError> {
        if !self.is_in_flight(wanted.ino) {
            let begun = Instant::now();
            let size = self.question(wanted, None).await;
            self.counters.size(&wanted.uri, size.as_ref().map(|_| ()));
            // The next question would wait as long for the same silence. A failure at once fails only this question.
            if let Err(error) = &size
                && error.is_silence()
                && begun.elapsed() >= self.config.size_deadline / 2
            {
                self.failures().inode_failed(wanted.ino, error, Instant::now());
            }
            if size?.is_some() {
                return Ok(());
            }
        }
        // A reader that comes meanwhile joins this download.
        self.fetch_ahead(wanted, WHOLE_LIMIT).await.map(drop)
    }

    /// The answer of the question in flight, or of a new one. `None`: only the body answers.
    async fn question(
        self: &Arc<Self>,
        wanted: &FetchSpec,
        requester: Option<Requester>,
    ) -> Result<Option<u64>, ContentError> {
        let (raise, answer) = self.sizes.join(&self.runtime, wanted.ino, || {
            let (raise, raised) = watch::channel(requester);
            let (content, wanted) = (Arc::clone(self), wanted.clone());
            let asking = async move { content.probe(&wanted, Priority::Prefetch(wanted.requester, raised)).await };
            (Arc::new(raise), asking)
        });
        if requester.is_some() {
            raise.send_if_modified(|waiting| {
                let is_first = waiting.is_none();
                if is_first {
                    *waiting = requester;
                }
                is_first
            });
        }
        answer.await.unwrap_or_else(|| Err(stalled(wanted)))
    }

    /// The size or the failure that is known.
    fn size_or_failure(&self, wanted: &FetchSpec) -> Option<Result<u64, ContentError>> {
        match self.size_present(wanted).or_else(|| self.size_of_member(wanted)) {
            Some(size) => Some(Ok(size)),
            None => self.failures().inodes.cause(&wanted.ino, Instant::now()).cloned().map(Err),
        }
    }

    pub(super) fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_in_flight(&self, ino: INodeNo) -> bool {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&ino)
    }

    /// Remembers a size, to which a download that began before it was known is held.
    fn show_size(&self, ino: INodeNo, size: u64, learn: impl FnOnce(&mut Observation)) {
        self.observed.update(ino, |observation| {
            observation.size = Some(size);
            learn(observation);
        });
        if let Some(download) = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).get(&ino) {
            download.show(size);
        }
        self.send_event(Event::Sized(ino, size));
    }

    /// The size of the resource's member in a package whose directory is known. Its digest holds any bytes to this size.
    fn size_of_member(&self, wanted: &FetchSpec) -> Option<u64> {
        let digest = self.vouching_digest(wanted).filter(|_| !is_decoded(wanted))?;
        let size = self.size_in_package(wanted).filter(|size| *size > 0 || digest.is_of_nothing())?;
        self.show_size(wanted.ino, size, |_| {});
        Some(size)
    }

    /// Asks every current location without fetching the whole. `None`: only the body answers.
    async fn probe(&self, wanted: &FetchSpec, priority: Priority) -> Result<Option<u64>, ContentError> {
        // Another requester may have learnt it since this one looked.
        if let Some(size) = self.known_size(wanted.ino) {
            return Ok(Some(size));
        }
        // The Source's current size is not that of a past version.
        if is_decoded(wanted) || wanted.is_past() {
            return Ok(None);
        }
        let vouched = self.vouching_digest(wanted).is_some();
        let locations = self.current_locations(wanted, vouched);
        // Two requests a location, and as much time again for the whole.
        let requests = u32::try_from(3 * locations.len()).unwrap_or(u32::MAX);
        let budget = self.config.size_deadline.mul_f32(0.9) / requests;
        let mut refusal = None;
        for location in locations {
            for method in [Method::Head, Method::Get] {
                let mut request = request(wanted, location.uri(), budget, priority.clone());
                request.method = method;
                request.range = (method == Method::Get).then_some((0, Some(0)));
                let answer = match self.client.send(request).await {
                    Ok(response) => self.read_answer(wanted, &response, method, vouched),
                    Err(error) => refusal_of(wanted, error),
                };
                match answer {
                    Answer::Trusted(size) => return Ok(Some(size)),
                    Answer::Untrusted => return Ok(None),
                    Answer::Unclear if method == Method::Get => return Ok(None),
                    // A server may refuse HEAD alone.
                    Answer::Unclear | Answer::Refused(_) if method == Method::Head => {}
                    Answer::Unclear => {}
                    Answer::Refused(error) => refusal = Some(error),
                }
            }
        }
        // Without the resource its package may still have it.
        refusal.filter(|_| wanted.member.is_none()).map_or(Ok(None), Err)
    }

    fn current_locations(&self, wanted: &FetchSpec, vouched: bool) -> Vec<Place> {
        let (failures, now) = (self.failures(), Instant::now());
        let is_asked_last = |uri: &Uri| failures.hosts.is_punished(uri.authority(), now);
        let proof = Proof { vouched, earlier: false };
        let mut locations = places(wanted, self.config.mirrors, proof, Turn::Never, &is_asked_last);
        locations.retain(Place::is_current);
        locations
    }

    fn read_answer(&self, wanted: &FetchSpec, response: &Response, method: Method, vouched: bool) -> Answer {
        if let Some(page) = soft_failure(wanted, vouched, response.media_type.as_deref()) {
            return Answer::Refused(page);
        }
        let asked = published_coding(wanted);
        if response.encoding.as_deref().is_some_and(|coding| Some(coding) != asked) {
            return Answer::Untrusted;
        }
        let length = match response.status {
            Status::Partial { total, .. } => total,
            Status::Full => response.content_length,
            Status::NotModified => None,
        };
        match length {
            // Some servers announce an empty body because they send none to HEAD.
            Some(0) if method == Method::Head => {
                self.failures().contradicted.forgive(&wanted.uri);
                Answer::Unclear
            }
            None => Answer::Unclear,
            Some(size) if size == 0 || !self.failures().is_believed(&wanted.uri, size, Instant::now()) => {
                Answer::Untrusted
            }
            Some(size) => {
                self.show_size(wanted.ino, size, |observation| {
                    observation.etag = response.etag.clone();
                    observation.last_modified = response.modified_validator.clone();
                    observation.media_type = response.media_type.clone();
                    observation.validated_at = Some(Timestamp::now());
                });
                Answer::Trusted(size)
            }
        }
    }
}

fn stalled(wanted: &FetchSpec) -> ContentError {
    ContentError::Stalled { uri: wanted.uri.clone() }
}

/// Whether a location refused the resource, or only this kind of request.
fn refusal_of(wanted: &FetchSpec, error: HttpError) -> Answer {
    match error.status() {
        // An empty body has no range (416).
        Some(400 | 405 | 416 | 501) => Answer::Unclear,
        _ => Answer::Refused(ContentError::Fetch { uri: wanted.uri.clone(), cause: Arc::new(error) }),
    }
}
