//! Asking the Source whether it still has the bytes that were told or read, behind whoever looks at them.

use super::promise::{Form, is_decoded, published_coding, soft_failure};
use crate::content::fixity::Verifier;
use crate::content::freshness::{Answer, COMPARE_LIMIT, Finding, finding, remaining};
use crate::content::metadata::Observation;
use crate::content::{Content, Event, FetchSpec, Verified};
use crate::document::{ChangeFrequency, Digest, Timestamp};
use crate::source::http::{Body, HttpError, Priority, Request, Response, Status};
use crate::source::over_bytes;
use bytes::Bytes;
use fuser::INodeNo;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a body to compare that are hashed at once.
const AT_ONCE: usize = 1 << 20;

/// Questions under way or waiting for their host, of all inodes. Who looks at more than these asks at the next look.
pub(in crate::content) const QUESTIONS: usize = 64;

impl Content {
    /// See [`Content::current_for`].
    pub(in crate::content) fn due_in(&self, ino: INodeNo, changefreq: Option<ChangeFrequency>) -> Option<Duration> {
        let interval = self.config.revalidate.interval(changefreq)?;
        Some(self.observed.validated_at(ino).map_or(interval, |at| remaining(at, interval, Timestamp::now())))
    }

    /// See [`Content::revalidate`].
    pub(in crate::content) fn ask_behind(self: &Arc<Self>, wanted: FetchSpec, changefreq: Option<ChangeFrequency>) {
        let Some(interval) = self.config.revalidate.interval(changefreq) else { return };
        let Ok(permit) = Arc::clone(&self.questions).try_acquire_owned() else { return };
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if !asked.may_ask(wanted.ino, interval, Instant::now()) {
            return;
        }
        drop(asked);
        let content = Arc::clone(self);
        self.runtime.spawn(async move {
            content.ask_whether_current(&wanted).await;
            drop(permit);
        });
    }

    pub(super) async fn ask_whether_current(&self, wanted: &FetchSpec) {
        let ino = wanted.ino;
        let Some(observation) = self.observed.get(ino).filter(|known| known.verified != Verified::Failed) else {
            return;
        };
        let request = conditional(wanted, &observation, self.head_budget(1));
        let found = match self.client.send(request).await {
            Ok(response) => self.compare(wanted, &observation, response).await,
            Err(error) => {
                tracing::debug!(uri = %wanted.uri, %error, "whether the bytes are current cannot be asked");
                return;
            }
        };
        match found {
            // Meanwhile they may have been fetched anew.
            _ if self.observed.get(ino).as_ref() != Some(&observation) => {}
            (Finding::Same, validators) => self.observed.update(ino, |known| {
                known.validated_at = Some(Timestamp::now());
                if let Some((etag, last_modified)) = validators {
                    known.etag = etag;
                    known.last_modified = last_modified;
                }
            }),
            (Finding::Other, _) => {
                tracing::info!(uri = %wanted.uri, "the Source has other bytes, which no list told");
                self.tell(Event::Changed(ino));
            }
            (Finding::Compare(_) | Finding::Unclear, _) => {
                tracing::debug!(uri = %wanted.uri, "whether the bytes are current cannot be told");
            }
        }
    }

    /// What the answer says, never [`Finding::Compare`], and the validators that go with the same bytes.
    async fn compare(
        &self,
        wanted: &FetchSpec,
        observation: &Observation,
        response: Response,
    ) -> (Finding, Option<Validators>) {
        let not_modified = response.status == Status::NotModified;
        let asked = published_coding(wanted);
        let is_unasked = response.encoding.as_deref().is_some_and(|coding| Some(coding) != asked);
        let is_undone = is_unasked && Form::of(wanted, response.encoding.as_deref(), false).is_ok();
        let unusable = soft_failure(wanted, false, response.media_type.as_deref()).is_some()
            || (is_unasked && !is_undone)
            || matches!(response.status, Status::Partial { .. });
        if unusable && !not_modified {
            return (Finding::Unclear, None);
        }
        let answer = Answer {
            not_modified,
            etag: response.etag.as_deref(),
            last_modified: response.last_modified.as_deref(),
            length: response.content_length.filter(|_| !not_modified),
        };
        let found = match finding(wanted, observation, is_decoded(wanted) || is_unasked, answer) {
            Finding::Compare(digest) => self.compare_body(&digest, response.body).await.unwrap_or_else(|error| {
                tracing::debug!(uri = %wanted.uri, ?error, "the bytes to compare did not come");
                Finding::Unclear
            }),
            found => found,
        };
        (found, (!not_modified).then_some((response.etag, response.modified_validator)))
    }

    /// Whether a body gives `digest`; `Err(None)`: no progress in time.
    async fn compare_body(&self, digest: &Digest, mut body: Body) -> Result<Finding, Option<HttpError>> {
        let mut verifier = Verifier::new(digest.algorithm());
        let (mut chunks, mut waiting) = (Vec::new(), 0);
        loop {
            let chunk = tokio::time::timeout(self.config.stall, body.chunk()).await.map_err(|_| None)??;
            let is_end = chunk.is_none();
            waiting += chunk.as_ref().map_or(0, Bytes::len);
            chunks.extend(chunk);
            if is_end || waiting >= AT_ONCE {
                over_bytes(waiting as u64, || chunks.drain(..).for_each(|chunk: Bytes| verifier.update(&chunk)));
                waiting = 0;
            }
            if verifier.length() > COMPARE_LIMIT {
                return Ok(Finding::Other);
            }
            if is_end {
                break;
            }
        }
        Ok(match verifier.finish() {
            Some(seen) if seen.digest == *digest => Finding::Same,
            _ => Finding::Other,
        })
    }
}

/// ETag and Last-Modified, as sent; without one that tells nothing apart.
type Validators = (Option<Box<str>>, Option<Box<str>>);

fn conditional(wanted: &FetchSpec, observation: &Observation, within: Duration) -> Request {
    let mut request = Request::get(wanted.uri.clone(), within);
    request.accept = wanted.media_type.clone();
    if let Some(coding) = published_coding(wanted) {
        request.accept_encoding = coding.into();
    }
    request.if_none_match = observation.etag.clone();
    request.if_modified_since = observation.last_modified.clone();
    request.priority = Priority::Background;
    request
}
