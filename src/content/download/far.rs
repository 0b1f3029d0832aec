//! A large object whose first reader is far from its beginning: what is read is requested first, by a range, and the body only
//! when it is read. So a look at the end costs one request, and nothing else is sent.

use super::demand::first_window;
use super::extent::ExtentFetch;
use super::incoming::IncomingBytes;
use super::plan::{Failure, Place};
use super::task::{DownloadTask, Stop};
use crate::content::ContentError;
use crate::content::blocks::Sink;
use crate::content::fixity::BLOCK;
use crate::content::form::published_coding;
use crate::content::trust::strong;
use crate::source::http::{Response, Status, Way};
use std::ops::Range;
use std::sync::Arc;

impl DownloadTask {
    /// The answer to the request for the blocks `window`, or where there is none for what follows what is here. [`Stop::Rest`]: readers are
    /// far from that, and get what they read.
    ///
    /// Only a 206 with a strong ETag and exactly this range identifies the version. Otherwise the body is requested as if there
    /// had been none; a server that knows no ranges has begun with it.
    pub(super) async fn ask_where_it_is_read(
        &mut self,
        place: &Place,
        window: Option<Range<u64>>,
    ) -> Result<Response, Stop> {
        let Some(window) = window else { return self.ask(place, self.intake.received, self.if_range()).await };
        let length = self.spec.length.or(self.shown).unwrap_or(window.end * BLOCK);
        let bytes = window.start * BLOCK..(window.end * BLOCK).min(length);
        let mut request = self.request(place);
        request.range = Some((bytes.start, Some(bytes.end - 1)));
        request.if_range = self.if_range();
        let response = match self.content.client.send(request).await {
            Ok(response) if response.status == Status::Full => return Ok(response),
            Ok(response) => response,
            Err(error) if error.is_retryable() => {
                let error = ContentError::Fetch { uri: self.spec.uri.clone(), cause: Arc::new(error) };
                return Err(Stop::Failure(Failure::Refused(error)));
            }
            Err(_) => return self.ask(place, self.intake.received, self.if_range()).await,
        };
        let is_resumed = self.version.validator.is_some();
        let is_of_version =
            strong(response.etag.as_deref()).is_some() && (!is_resumed || self.is_same_version(&response));
        let is_window = matches!(response.status, Status::Partial { first, last, total: Some(_) }
            if first == bytes.start && last == bytes.end - 1);
        if !is_window || !is_of_version || response.encoding.is_some() {
            // The next request may need its permit.
            drop(response);
            return self.ask(place, self.intake.received, self.if_range()).await;
        }
        // Before it is announced, for then readers look for it.
        let extent = self.begin_extent(window);
        self.promise(place, &response, is_resumed)?;
        let origin = self.download.state().origin();
        if let Some(origin) = origin {
            self.content.runtime.spawn(extent.run(origin, Some(IncomingBytes::Body(Box::new(response.body)))));
        }
        Err(Stop::Rest)
    }

    /// An extent of the attempt, which readers wait for from now on.
    pub(super) fn begin_extent(&self, blocks: Range<u64>) -> ExtentFetch {
        let attempt = self.download.change(|state| {
            state.begin_extent(blocks.clone());
            state.attempt()
        });
        let priority = self.download.priority();
        ExtentFetch::new(&self.content, &self.spec, &self.download, (attempt, blocks), Way::Shared, priority)
    }

    /// The blocks to request first, where all readers are far from what is here.
    pub(super) fn far_window(&self) -> Option<Range<u64>> {
        let is_gate = matches!(self.plan.place(), Some(Place::TimeGate(_)));
        if is_gate
            || published_coding(&self.spec).is_some()
            || self.sink() != Sink::Store
            || self.plan.has_failed()
            || self.version.is_mixed
        {
            return None;
        }
        let length = self.spec.length.or(self.shown)?;
        let range = self.download.state().far_read(length)?;
        // Blocks beyond the first window are requested when their reader looks.
        first_window(&range, length, |_| false)
    }
}
