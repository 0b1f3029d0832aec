//! Requests for ranges of the version under way: of its place, or of the shared cache.

use super::object::Origin;
use crate::content::ContentError;
use crate::content::fixity::BLOCK;
use crate::content::shared_cache::{Remote, SharedBody};
use crate::document::Uri;
use crate::source::http::{Body, Client, HttpError, KnownPause, Priority, Request, Status, Way};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Requests for ranges of one version.
#[derive(Clone)]
pub(super) struct RangeClient {
    pub(super) client: Client,
    pub(super) origin: Origin,
    pub(super) priority: Priority,
    pub(super) pause: KnownPause,
    /// The head of a range must be here within this time.
    pub(super) head: Duration,
    /// The longest wait for the next bytes of a range.
    pub(super) silence: Duration,
    pub(super) shared_cache: Option<Arc<Remote>>,
}

/// The bytes of a range.
pub(super) enum RangeBody {
    Source(Body),
    Shared(SharedBody),
}

impl RangeBody {
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, RangeError> {
        match self {
            RangeBody::Source(body) => Ok(body.chunk().await?),
            RangeBody::Shared(body) => body.chunk().await.map_err(|_| RangeError::Other),
        }
    }
}

/// Why a range does not arrive.
#[derive(Debug, thiserror::Error)]
pub(super) enum RangeError {
    #[error("a range cannot be downloaded")]
    Http(#[source] Arc<HttpError>),
    #[error("the server sent another range or another version than requested")]
    Other,
    #[error("nothing arrived in time")]
    Silent,
}

impl RangeError {
    /// Converts it into the error of an attempt to fetch `uri`.
    pub(super) fn into_content(self, uri: &Uri) -> ContentError {
        match self {
            RangeError::Http(cause) => ContentError::Fetch { uri: uri.clone(), cause },
            RangeError::Other | RangeError::Silent => ContentError::Stalled { uri: uri.clone() },
        }
    }
}

impl From<HttpError> for RangeError {
    fn from(error: HttpError) -> RangeError {
        RangeError::Http(Arc::new(error))
    }
}

impl RangeClient {
    /// The body of an answer that is just this range of the version. [`Way::Ranges`]: over a separate connection.
    pub(super) async fn ask(&self, range: &Range<u64>, way: Way) -> Result<RangeBody, RangeError> {
        let origin = &self.origin;
        if let (Some(copy), Some(cache)) = (&origin.shared, &self.shared_cache) {
            let blocks = range.start..range.end.next_multiple_of(BLOCK).min(origin.length);
            let body = cache.more(copy, blocks, self.priority.clone()).await;
            return body.map(RangeBody::Shared).ok_or(RangeError::Other);
        }
        let (first, last) = (origin.first + range.start, origin.first + range.end - 1);
        let mut request = Request::get(origin.place.clone(), self.head);
        request.range = Some((first, Some(last)));
        request.if_range = Some(origin.etag.clone());
        request.repeats = way == Way::Shared;
        request.way = way;
        request.priority = self.priority.clone();
        request.pause = self.pause.clone();
        let response = self.client.send(request).await?;
        let expected = Status::Partial { first, last, total: Some(origin.total) };
        if response.status != expected || response.etag.as_deref() != Some(&origin.etag) || response.encoding.is_some()
        {
            tracing::debug!(place = %origin.place, status = ?response.status, "a range of another version");
            return Err(RangeError::Other);
        }
        Ok(RangeBody::Source(response.body))
    }
}
