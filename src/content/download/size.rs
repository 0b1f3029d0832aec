//! Sizes that are not published: asked by HEAD, by the first byte, or learnt by fetching the whole.
//!
//! A size that is shown is true: the body is held to it, and where it contradicts, the name gets a new inode whose size is that of
//! the body. That a file is empty only its body shows.

use super::Joined;
use super::plan::{Place, Proof, Turn};
use super::promise::{is_decoded, published_coding, soft_failure};
use super::{Joining, ROUNDS};
use crate::content::fixity::WHOLE_LIMIT;
use crate::content::{Content, ContentError, Event, FetchSpec};
use crate::document::{Timestamp, Uri};
use crate::source::http::{HttpError, Method, Priority, Request, Response, Status};
use fuser::INodeNo;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What a question for a size gave.
enum Answer {
    /// The size, to which the body will be held.
    Trusted(u64),
    /// Only the body tells.
    Untrusted,
    /// This method does not tell, another may.
    Unclear,
    /// The place has not got it.
    Refused(ContentError),
}

/// Whether a size is asked for by HEAD and by the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Questions {
    /// Before the body is fetched for it.
    First,
    /// Where the body, which is going to be read, does not tell.
    AfterBody,
    /// They were asked, and did not tell.
    Asked,
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
        let answer = tokio::time::timeout(self.config.size_deadline, self.asked_size(wanted, is_to_be_read)).await;
        let stalled = || ContentError::Stalled { uri: wanted.uri.clone() };
        let size = answer.ok().flatten().unwrap_or_else(|| Err(stalled()));
        self.note_size(wanted, &size);
        size
    }

    /// The answer of whoever asks already, or of a task of its own; `None` where that was given up.
    async fn asked_size(
        self: &Arc<Self>,
        wanted: &FetchSpec,
        is_to_be_read: bool,
    ) -> Option<Result<u64, ContentError>> {
        let mut questions = if is_to_be_read { Questions::AfterBody } else { Questions::First };
        loop {
            let asking = Arc::clone(self).ask_size(wanted.clone(), questions);
            let answer = self.sizes.join(&self.runtime, wanted.ino, asking);
            // It may be asked for already, for nobody.
            let awaited = self.sizes_ahead.lock().unwrap_or_else(PoisonError::into_inner).remove(&wanted.ino);
            if let Some(awaited) = awaited {
                awaited.send_replace(Some(wanted.requester));
            }
            match answer.await? {
                Ok(Some(size)) => return Some(Ok(size)),
                Ok(None) => questions = Questions::Asked,
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// See [`Content::size_ahead`].
    pub(in crate::content) async fn learn_size_ahead(self: &Arc<Self>, wanted: &FetchSpec) -> Result<(), ContentError> {
        if let Some(size) = self.size_or_failure(wanted) {
            return size.map(drop);
        }
        let begun = Instant::now();
        let sized = self.ask_size_ahead(wanted).await;
        // The next question would wait as long for the same silence. What failed at once is asked again.
        let is_mute = begun.elapsed() >= self.config.size_deadline / 2 && self.arrived(wanted.ino) == 0;
        if let Err(error) = &sized
            && error.is_silence()
            && is_mute
        {
            let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures.size_failed_ahead(wanted.ino, error, Instant::now());
        }
        sized
    }

    async fn ask_size_ahead(self: &Arc<Self>, wanted: &FetchSpec) -> Result<(), ContentError> {
        if self.is_under_way(wanted.ino) {
            return self.fetch_for_size(wanted).await;
        }
        let asking = || {
            let (tell, awaited) = watch::channel(None);
            self.sizes_ahead.lock().unwrap_or_else(PoisonError::into_inner).insert(wanted.ino, tell);
            let asking = Box::pin(self.probe_ahead(wanted, Priority::Prefetch(wanted.requester, awaited)));
            async move {
                let size = asking.await;
                // While nobody else can lead.
                self.sizes_ahead.lock().unwrap_or_else(PoisonError::into_inner).remove(&wanted.ino);
                size
            }
        };
        let size = match self.sizes.lead(wanted.ino, asking).await {
            // Somebody else asks.
            None => return Ok(()),
            Some(Ok(Some(size))) => Ok(size),
            Some(Err(error)) => Err(error),
            Some(Ok(None)) => return self.fetch_for_size(wanted).await,
        };
        // A failure counts for those who wait for it: nobody who asks later is answered by a question that was none of theirs.
        self.counters.size(&wanted.uri, size.as_ref().map(|_| ()));
        size.map(drop)
    }

    /// Only the body tells: whoever asks for the size or reads meanwhile makes this fetch its own. It has a deadline, because what
    /// comes slowly would keep the sizes of others from being learnt.
    async fn fetch_for_size(self: &Arc<Self>, wanted: &FetchSpec) -> Result<(), ContentError> {
        let fetched = tokio::time::timeout(self.config.size_deadline, self.fetch_ahead(wanted, WHOLE_LIMIT)).await;
        match fetched {
            Ok(fetched) => fetched.map(drop),
            Err(_) => Err(ContentError::Stalled { uri: wanted.uri.clone() }),
        }
    }

    /// What is known, or failed so lately that it counts.
    fn size_or_failure(&self, wanted: &FetchSpec) -> Option<Result<u64, ContentError>> {
        if let Some(size) = self.known_size(wanted.ino) {
            return Some(Ok(size));
        }
        if let Some(length) = wanted.length.filter(|_| !is_decoded(wanted)) {
            return Some(Ok(length));
        }
        if let Some(held) = self.find(wanted) {
            return Some(Ok(held.length_alone()));
        }
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        failures.inode(wanted.ino, now).or_else(|| failures.size_ahead(wanted.ino, now)).map(Err)
    }

    fn note_size(&self, wanted: &FetchSpec, size: &Result<u64, ContentError>) {
        self.counters.size(&wanted.uri, size.as_ref().map(|_| ()));
        if let Err(error) = size {
            let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures.inode_failed(wanted.ino, error, Instant::now());
        }
    }

    /// Asks for nobody yet; `None`: only the body tells.
    async fn probe_ahead(&self, wanted: &FetchSpec, awaited: Priority) -> Result<Option<u64>, ContentError> {
        match self.size_without_question(wanted) {
            Some(size) => Ok(Some(size)),
            None => self.size_by_questions(wanted, awaited).await,
        }
    }

    /// A fetch that began before the size was known is held to it.
    fn hold_to_shown(&self, ino: INodeNo, size: u64) {
        if let Some(download) = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).get(&ino) {
            download.show(size);
        }
    }

    fn is_under_way(&self, ino: INodeNo) -> bool {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&ino)
    }

    /// What can be told without asking anybody.
    fn size_without_question(&self, wanted: &FetchSpec) -> Option<u64> {
        // Another requester may have learnt it between the look of this one and now.
        if let Some(size) = self.known_size(wanted.ino) {
            return Some(size);
        }
        // A digest will hold the member, or what comes instead of it, to this.
        let digest = self.vouching_digest(wanted)?;
        let packed = self.size_in_package(wanted).filter(|size| *size > 0 || digest.is_of_nothing());
        let size = packed.filter(|_| !is_decoded(wanted))?;
        self.observed.update(wanted.ino, |observation| observation.size = Some(size));
        self.hold_to_shown(wanted.ino, size);
        self.tell(Event::Sized(wanted.ino, size));
        Some(size)
    }

    /// `None`: only the body tells.
    async fn size_by_questions(&self, wanted: &FetchSpec, awaited: Priority) -> Result<Option<u64>, ContentError> {
        // What the Source says now is no past version's size.
        match is_decoded(wanted) || wanted.is_past() {
            true => Ok(None),
            // Where the resource is not to be had its package may have it.
            false if wanted.member.is_some() => Ok(self.probe(wanted, awaited).await.unwrap_or(None)),
            false => self.probe(wanted, awaited).await,
        }
    }

    /// Never `None`: somebody waits.
    async fn ask_size(self: Arc<Self>, wanted: FetchSpec, questions: Questions) -> Result<Option<u64>, ContentError> {
        if let Some(size) = self.size_without_question(&wanted) {
            return Ok(Some(size));
        }
        if (questions == Questions::AfterBody || self.is_under_way(wanted.ino))
            && let Some(size) = self.size_of_body(&wanted).await
        {
            return size.map(Some);
        }
        if questions != Questions::Asked
            && let Some(size) = self.size_by_questions(&wanted, Priority::Reader(wanted.requester)).await?
        {
            return Ok(Some(size));
        }
        let mut gave_way = None;
        for _ in 0..ROUNDS {
            let download = match self.join(&wanted, Joining::Size)? {
                Joined::Here(held) => return Ok(Some(held.length())),
                Joined::UnderWay(download) => download,
            };
            let outcome = loop {
                download.await_whole();
                let changed = download.changed().notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if let Some(outcome) = download.outcome() {
                    break outcome;
                }
                // One begun ahead of this question may have waited for its first byte for as long already.
                let deadline = download.moved() + self.config.size_deadline;
                if download.frontier() == 0 && Instant::now() >= deadline {
                    break Err(ContentError::Stalled { uri: wanted.uri.clone() });
                }
                // Without a byte the next look tells, else the download's end.
                let silence = tokio::time::sleep_until(deadline.into());
                tokio::select! {
                    () = changed => {}
                    () = silence, if download.frontier() == 0 => {}
                }
            };
            match outcome {
                Err(error) if download.gave_way(&error) => gave_way = Some(error),
                outcome => return outcome.map(|held| Some(held.length())),
            }
        }
        Err(gave_way.unwrap_or_else(|| self.no_room()))
    }

    /// Asks every current place without fetching the whole; `None`: that is left.
    async fn probe(&self, wanted: &FetchSpec, awaited: Priority) -> Result<Option<u64>, ContentError> {
        let vouched = self.vouching_digest(wanted).is_some();
        let mut places = self.places(wanted, Proof { vouched, earlier: false }, Turn::Never);
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

    async fn answer(&self, wanted: &FetchSpec, request: Request, vouched: bool) -> Answer {
        let method = request.method;
        match self.client.send(request).await {
            Ok(response) => self.read_answer(wanted, &response, method, vouched),
            Err(error) => refusal(wanted, error),
        }
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
        let failures = || self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        match length {
            // Some servers announce an empty body because they send none to HEAD.
            Some(0) if method == Method::Head => {
                failures().is_empty_by_head(&wanted.uri);
                Answer::Unclear
            }
            None => Answer::Unclear,
            Some(size) if size == 0 || !failures().is_believed(&wanted.uri, size) => Answer::Untrusted,
            Some(size) => {
                self.observed.update(wanted.ino, |observation| {
                    observation.size = Some(size);
                    observation.etag = response.etag.clone();
                    observation.last_modified = response.modified_validator.clone();
                    observation.media_type = response.media_type.clone();
                    observation.validated_at = Some(Timestamp::now());
                });
                self.hold_to_shown(wanted.ino, size);
                self.tell(Event::Sized(wanted.ino, size));
                Answer::Trusted(size)
            }
        }
    }
}

/// One question: HEAD, or GET of the first byte.
fn question(wanted: &FetchSpec, place: &Uri, method: Method, budget: Duration, awaited: Priority) -> Request {
    let mut request = Request::get(place.clone(), budget);
    request.method = method;
    request.priority = awaited;
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
fn refusal(wanted: &FetchSpec, error: HttpError) -> Answer {
    match error.status() {
        // 400, 405, 416 (of an empty body no range can be had) and 501 refuse the question, not the resource.
        Some(400 | 405 | 416 | 501) => Answer::Unclear,
        _ => Answer::Refused(ContentError::Fetch { uri: wanted.uri.clone(), cause: Arc::new(error) }),
    }
}
