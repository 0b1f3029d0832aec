//! Asks the Source whether it still has the bytes that were shown or read, in the background.

use super::promise::Head;
use crate::content::fixity::Verifier;
use crate::content::form::{Form, request};
use crate::content::freshness::{Answer, COMPARE_LIMIT, Finding, finding, remaining};
use crate::content::metadata::Observation;
use crate::content::{Content, Event, FetchSpec, Verified};
use crate::document::{ChangeFrequency, Digest, Timestamp};
use crate::platform::ino::Ino;
use crate::platform::scheduling::over_bytes;
use crate::source::http::{Body, HttpError, Priority, Response, Status};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An inode is revalidated once within this time (or its interval, if that is shorter), with any outcome.
const PAUSE: Duration = Duration::from_secs(60);

/// Revalidations in flight, of all inodes. Beyond this bound an inode is revalidated when it is next looked at.
pub(in crate::content) const MOST_REVALIDATIONS: usize = 64;

impl Content {
    /// How long what is known here of an entry that shows no changes may be taken for current: its bytes, or its
    /// size alone; nothing where [`Content::revalidate`] is due, `None` where it never is.
    pub fn current_for(&self, ino: Ino, changefreq: Option<ChangeFrequency>) -> Option<Duration> {
        let interval = self.config.revalidate.interval(changefreq)?;
        Some(self.local.metadata.validated_at(ino).map_or(interval, |at| remaining(at, interval, Timestamp::now())))
    }

    /// Asks the Source in the background whether it still has the version of `spec`; other bytes are
    /// [`Event::Changed`]. Nothing is asked where the same was a moment ago, or many are: the next look asks.
    pub fn revalidate(self: &Arc<Self>, spec: FetchSpec, changefreq: Option<ChangeFrequency>) {
        let Some(interval) = self.config.revalidate.interval(changefreq) else { return };
        let Ok(permit) = Arc::clone(&self.revalidations).try_acquire_owned() else { return };
        let now = Instant::now();
        let mut failures = self.failures();
        if failures.revalidated.is_punished(&spec.ino, now) {
            return;
        }
        failures.revalidated.punish(spec.ino, interval.min(PAUSE), (), now);
        drop(failures);
        let content = Arc::clone(self);
        self.runtime.spawn(async move {
            content.ask_whether_current(&spec).await;
            drop(permit);
        });
    }

    pub(super) async fn ask_whether_current(&self, spec: &FetchSpec) {
        let ino = spec.ino;
        let known = self.local.metadata.get(ino).filter(|known| known.verified != Verified::Failed);
        let Some(observation) = known else { return };
        let mut request = request(spec, &spec.uri, self.head_budget(1), Priority::background());
        request.if_none_match = observation.etag.clone();
        request.if_modified_since = observation.last_modified.clone();
        let response = match self.client.send(request).await {
            Ok(response) => response,
            Err(error) => return tracing::debug!(uri = %spec.uri, %error, "a revalidation failed"),
        };
        // The validators of the same bytes.
        let validators = (response.etag.clone(), response.modified_validator.clone());
        let is_unmodified = response.status == Status::NotModified;
        let found = self.compare(spec, &observation, response).await;
        if self.local.metadata.get(ino).as_ref() != Some(&observation) {
            // They were fetched again meanwhile.
            return;
        }
        match found {
            Finding::Same => self.local.metadata.update(ino, |known| {
                known.validated_at = Some(Timestamp::now());
                if !is_unmodified {
                    (known.etag, known.last_modified) = validators;
                }
            }),
            Finding::Other => {
                tracing::info!(uri = %spec.uri, "a file has changed at the Source, which no list announced");
                self.local.send_event(Event::Changed(ino));
            }
            Finding::Compare(_) | Finding::Unclear => {
                tracing::debug!(uri = %spec.uri, "a revalidation was inconclusive");
            }
        }
    }

    /// Returns the conclusion from the answer, never [`Finding::Compare`].
    async fn compare(&self, spec: &FetchSpec, observation: &Observation, response: Response) -> Finding {
        if response.status == Status::NotModified {
            return Finding::Same;
        }
        let form = match Head::from(&response).agree(spec, false, None) {
            Ok((form, _)) if response.status == Status::Full => form,
            _ => return Finding::Unclear,
        };
        let answer = Answer {
            etag: response.etag.as_deref(),
            last_modified: response.last_modified.as_deref(),
            length: response.content_length,
        };
        match finding(spec, observation, form != Form::Plain, answer) {
            Finding::Compare(digest) => self.compare_body(&digest, response.body).await.unwrap_or_else(|error| {
                tracing::debug!(uri = %spec.uri, ?error, "the bytes to compare did not arrive");
                Finding::Unclear
            }),
            found => found,
        }
    }

    /// Compares the digest of a body with `digest`; `Err(None)`: no progress in time.
    async fn compare_body(&self, digest: &Digest, mut body: Body) -> Result<Finding, Option<HttpError>> {
        let mut verifier = Verifier::new(digest.algorithm());
        while let Some(chunk) = tokio::time::timeout(self.config.stall, body.chunk()).await.map_err(|_| None)?? {
            over_bytes(chunk.len() as u64, || verifier.update(&chunk));
            if verifier.length() > COMPARE_LIMIT {
                return Ok(Finding::Other);
            }
        }
        Ok(if verifier.finish().digest == *digest { Finding::Same } else { Finding::Other })
    }
}
