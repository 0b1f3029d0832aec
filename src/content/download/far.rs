//! A large object whose first reader is far from its beginning: what is read is asked for first, by a range, and the body when
//! somebody reads that. Then what is read costs one connection, and what nobody reads is not sent.

use super::aside::Windows;
use super::fetch::{Fetch, Stop};
use super::plan::{Failure, Place};
use super::promise::{published_coding, strong};
use super::writer::Room;
use crate::content::ContentError;
use crate::source::http::{Response, Status};
use std::ops::Range;
use std::sync::Arc;

impl Fetch {
    /// The answer to the request for `window`, or where there is none for what follows what is here. [`Stop::Rest`]: readers are far
    /// from that, and get what they read.
    ///
    /// The range is asked for without condition where no version is known. Only an answer under a strong ETag, of just these bytes of
    /// a whole of the length that is known, tells which version it is of; with any other the body is asked for as if there had been none, and a
    /// server that knows no ranges has begun with it.
    pub(super) async fn ask_where_it_is_read(
        &mut self,
        place: &Place,
        window: Option<Range<u64>>,
    ) -> Result<Response, Stop> {
        let Some(window) = window else { return self.ask(place, self.received).await };
        let leave = self.content.windows.leave(place.uri().authority(), self.requester());
        let leave = tokio::time::timeout(self.content.config.stall, leave);
        let Ok(Some(leave)) = leave.await else { return self.ask(place, self.received).await };
        let mut request = self.request(place);
        request.range = Some((window.start, Some(window.end - 1)));
        request.if_range = self.validator.as_ref().map(|(_, etag)| etag.clone());
        let response = match self.content.client.send(request).await {
            Ok(response) => response,
            Err(error) if error.is_retryable() => {
                let error = ContentError::Fetch { uri: self.wanted.uri.clone(), cause: Arc::new(error) };
                return Err(Stop::Failure(Failure::Refused(error)));
            }
            Err(error) => {
                tracing::debug!(%place, %error, "a range is refused where the whole may be had");
                return self.ask(place, self.received).await;
            }
        };
        if response.status == Status::Full {
            return Ok(response);
        }
        let is_resumed = self.validator.is_some();
        let is_of_version =
            strong(response.etag.as_deref()).is_some() && (!is_resumed || self.is_same_version(&response));
        let is_window = matches!(response.status, Status::Partial { first, last, total: Some(_) }
            if first == window.start && last == window.end - 1);
        if !is_window || !is_of_version || response.encoding.is_some() {
            tracing::debug!(%place, status = ?response.status, "a range of a version that nothing names");
            return self.ask(place, self.received).await;
        }
        // Before it is announced, for then readers look for it.
        let coming = self.content.windows.begin(self.wanted.ino, self.download.attempt(), window);
        self.promise(place, &response, is_resumed)?;
        let stall = self.content.config.stall;
        self.content.runtime.spawn(async move {
            coming.fill(response.body, stall).await;
            drop(leave);
        });
        Err(Stop::Rest)
    }

    /// Which bytes to ask for first, where all readers are far from what is here.
    pub(super) fn far_window(&self, place: &Place) -> Option<Range<u64>> {
        let is_plain = published_coding(&self.wanted).is_none() && !matches!(place, Place::TimeGate(_));
        if !is_plain || self.room != Room::Store || self.plan.has_failed() {
            return None;
        }
        let length = self.wanted.length.or(self.told)?;
        Some(Windows::first(&self.download.far_read(length)?, length))
    }
}
