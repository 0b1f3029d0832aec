//! Sizes that nobody published: asked by HEAD, by the first octet, or learnt by fetching the whole.
//!
//! A size that is shown is true: an answer is trusted only where a digest or a strong ETag will hold the body to it.

use super::Joined;
use super::plan::{Place, Proof};
use super::promise::{is_decoded, published_coding, soft_failure, strong};
use super::{Joining, ROUNDS};
use crate::content::{Content, ContentError, Event, Wanted};
use crate::document::{Timestamp, Uri};
use crate::source::http::{Awaited, HttpError, Method, Request, Response, Status};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What a question for a size gave.
enum Answer {
    /// The size, and the body will be held to it.
    Trusted(u64),
    /// Only the body tells.
    Untrusted,
    /// This method does not tell, another may.
    Unclear,
    /// The place has not got it.
    Refused(ContentError),
}

impl Content {
    /// See [`Content::size`]; `is_to_be_read`: [`Content::size_with_body`].
    pub(in crate::content) async fn learnt_size(
        self: &Arc<Self>,
        wanted: &Wanted,
        is_to_be_read: bool,
    ) -> Result<u64, ContentError> {
        if let Some(size) = self.size_or_failure(wanted) {
            return size;
        }
        // It may be asked for already, for nobody.
        let awaited = self.sizes_ahead.lock().unwrap_or_else(PoisonError::into_inner).remove(&wanted.ino);
        if let Some(awaited) = awaited {
            awaited.send_replace(true);
        }
        let asking = Arc::clone(self).ask_size(wanted.clone(), is_to_be_read, None);
        let answer = self.sizes.join(&self.runtime, wanted.ino, asking);
        let answer = tokio::time::timeout(self.config.size_deadline, answer).await;
        let stalled = || ContentError::Stalled { uri: wanted.uri.clone() };
        let size = answer.ok().flatten().unwrap_or_else(|| Err(stalled()));
        self.note_size(wanted, &size);
        size
    }

    /// See [`Content::size_ahead`].
    pub(in crate::content) async fn learn_size_ahead(self: &Arc<Self>, wanted: &Wanted) -> Result<(), ContentError> {
        if let Some(size) = self.size_or_failure(wanted) {
            return size.map(drop);
        }
        let (tell, awaited) = watch::channel(false);
        let asking = async {
            self.sizes_ahead.lock().unwrap_or_else(PoisonError::into_inner).insert(wanted.ino, tell);
            Arc::clone(self).ask_size(wanted.clone(), false, Some(awaited)).await
        };
        let size = self.sizes.lead(wanted.ino, Box::pin(asking)).await;
        self.sizes_ahead.lock().unwrap_or_else(PoisonError::into_inner).remove(&wanted.ino);
        // Somebody else asks.
        let Some(size) = size else { return Ok(()) };
        self.note_size(wanted, &size);
        size.map(drop)
    }

    /// What is known, or failed so lately that it counts.
    fn size_or_failure(&self, wanted: &Wanted) -> Option<Result<u64, ContentError>> {
        if let Some(size) = self.known_size(wanted.ino) {
            return Some(Ok(size));
        }
        if let Some(length) = wanted.length.filter(|_| !is_decoded(wanted)) {
            return Some(Ok(length));
        }
        if let Some(held) = self.find(wanted) {
            return Some(Ok(held.length()));
        }
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).inode(wanted.ino, Instant::now()).map(Err)
    }

    fn note_size(&self, wanted: &Wanted, size: &Result<u64, ContentError>) {
        self.counters.size(&wanted.uri, size.as_ref().map(|_| ()));
        if let Err(error) = size {
            let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures.inode_failed(wanted.ino, error, Instant::now());
        }
    }

    /// `awaited`: where nobody waits for it yet.
    async fn ask_size(
        self: Arc<Self>,
        wanted: Wanted,
        is_to_be_read: bool,
        awaited: Option<Awaited>,
    ) -> Result<u64, ContentError> {
        // Another asker may have learnt it between the look of this one and now.
        if let Some(size) = self.known_size(wanted.ino) {
            return Ok(size);
        }
        // A digest will hold the member, or whatever comes instead of it, to this.
        let packed = self.size_in_package(&wanted).filter(|_| self.vouching_digest(&wanted).is_some());
        if let Some(size) = packed.filter(|_| !is_decoded(&wanted)) {
            self.observed.update(wanted.ino, |observation| observation.size = Some(size));
            self.tell(Event::Sized(wanted.ino, size));
            return Ok(size);
        }
        let is_under_way = self.flights.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&wanted.ino);
        if (is_to_be_read || is_under_way)
            && let Some(size) = self.size_of_body(&wanted).await
        {
            return size;
        }
        // What the Source says now is no past version's size.
        let probed = match is_decoded(&wanted) || wanted.is_past() {
            true => None,
            // Where the resource is not to be had its package may have it.
            false if wanted.member.is_some() => self.probe(&wanted, awaited).await.unwrap_or(None),
            false => self.probe(&wanted, awaited).await?,
        };
        if let Some(size) = probed {
            return Ok(size);
        }
        for _ in 0..ROUNDS {
            let flight = match self.join(&wanted, Joining::Size)? {
                Joined::Here(held) => return Ok(held.length()),
                Joined::UnderWay(flight) => flight,
            };
            let outcome = loop {
                flight.await_whole();
                let changed = flight.changed().notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if let Some(outcome) = flight.outcome() {
                    break outcome;
                }
                // A flight ends by itself; who cannot wait for that has a deadline of its own.
                changed.await;
            };
            match outcome {
                Err(error) if flight.gave_way(&error) => {}
                outcome => return outcome.map(|held| held.length()),
            }
        }
        Err(self.no_room())
    }

    /// Asks every current place without fetching the whole; `None`: that is left.
    async fn probe(&self, wanted: &Wanted, awaited: Option<Awaited>) -> Result<Option<u64>, ContentError> {
        let vouched = self.vouching_digest(wanted).is_some();
        let mut places = self.places(wanted, Proof { vouched, earlier: false });
        places.retain(Place::is_current);
        // Two questions a place, and as much time again for the whole.
        let questions = u32::try_from(3 * places.len()).unwrap_or(u32::MAX);
        let budget = self.config.size_deadline.mul_f32(0.9) / questions;
        let mut refusal = None;
        for place in places {
            for method in [Method::Head, Method::Get] {
                let request = question(wanted, place.uri(), method, budget, awaited.clone());
                match self.answer(wanted, request, vouched).await {
                    Answer::Trusted(size) => return Ok(Some(size)),
                    Answer::Untrusted => return Ok(None),
                    Answer::Unclear if method == Method::Get => return Ok(None),
                    Answer::Unclear => {}
                    // A server may refuse HEAD alone.
                    Answer::Refused(_) if method == Method::Head => {}
                    Answer::Refused(error) => refusal = Some(error),
                }
            }
        }
        refusal.map_or(Ok(None), Err)
    }

    async fn answer(&self, wanted: &Wanted, request: Request, vouched: bool) -> Answer {
        let method = request.method;
        match self.client.send(request).await {
            Ok(response) => self.read_answer(wanted, &response, method, vouched),
            Err(error) => refusal(wanted, error),
        }
    }

    fn read_answer(&self, wanted: &Wanted, response: &Response, method: Method, vouched: bool) -> Answer {
        if let Some(page) = soft_failure(wanted, vouched, response.media_type.as_deref()) {
            return Answer::Refused(page);
        }
        let asked = published_coding(wanted);
        if response.encoding.as_deref().is_some_and(|coding| Some(coding) != asked) {
            return Answer::Untrusted;
        }
        let etag = strong(response.etag.as_deref());
        if !vouched && etag.is_none() {
            return Answer::Untrusted;
        }
        let length = match response.status {
            Status::Partial { total, .. } => total,
            Status::Full => response.content_length,
            Status::NotModified => None,
        };
        match length {
            // Some servers announce an empty body because they send none to HEAD.
            Some(0) if method == Method::Head => Answer::Unclear,
            None => Answer::Unclear,
            Some(size) => {
                self.observed.update(wanted.ino, |observation| {
                    observation.size = Some(size);
                    observation.etag = response.etag.clone();
                    observation.last_modified = response.modified_validator.clone();
                    observation.media_type = response.media_type.clone();
                    observation.validated_at = Some(Timestamp::now());
                });
                self.tell(Event::Sized(wanted.ino, size));
                Answer::Trusted(size)
            }
        }
    }
}

/// One question: HEAD, or GET of the first octet.
fn question(wanted: &Wanted, place: &Uri, method: Method, budget: Duration, awaited: Option<Awaited>) -> Request {
    let mut request = Request::get(place.clone(), budget);
    request.method = method;
    request.awaited = awaited;
    request.accept = wanted.media_type.clone();
    if let Some(coding) = published_coding(wanted) {
        request.accept_encoding = coding.into();
    }
    if method == Method::Get {
        request.range = Some((0, Some(0)));
    }
    request
}

/// Whether a failed question says that the resource is not to be had, or only that it was asked the wrong way.
fn refusal(wanted: &Wanted, error: HttpError) -> Answer {
    match error.status() {
        // 400, 405, 416 (of an empty body no range can be had) and 501 refuse the question, not the resource.
        Some(400 | 405 | 416 | 501) => Answer::Unclear,
        _ => Answer::Refused(ContentError::Fetch { uri: wanted.uri.clone(), cause: Arc::new(error) }),
    }
}
