//! The request to a place, and the promise of its answer's head: or why its bytes cannot be the resource's.

use super::attempt::{Fetch, Provenance, Stop};
use super::memento::is_of_version;
use super::object::Origin;
use super::plan::{Failure, Place};
use super::promise::{Form, Promise, request, soft_failure, strong};
use super::state::Sink;
use crate::content::ContentError;
use crate::document::Timestamp;
use crate::source::http::{Request, Response, Status};
use std::sync::Arc;

impl Fetch {
    /// A request for the whole.
    pub(super) fn request(&self, place: &Place) -> Request {
        let budget = self.content.head_budget(self.plan.len());
        let mut request = request(&self.wanted, place.uri(), budget, self.download.priority());
        request.accept_datetime = self.wanted.moment().filter(|_| matches!(place, Place::TimeGate(_)));
        request.no_cache = self.plan.past_caches();
        request
    }

    pub(super) async fn ask(&self, place: &Place, from: u64) -> Result<Response, Stop> {
        let mut request = self.request(place);
        if from > 0 {
            request.range = Some((from, None));
            request.if_range = self.validator.as_ref().map(|(_, etag)| etag.clone());
        }
        self.content.client.send(request).await.map_err(|error| {
            let retryable = error.is_retryable();
            let error = ContentError::Fetch { uri: self.wanted.uri.clone(), cause: Arc::new(error) };
            // A server that refuses the rest may still send the whole.
            let can_begin_again = from > 0 && !retryable;
            Stop::Failure(if can_begin_again { Failure::Cut { received: 0, error } } else { Failure::Refused(error) })
        })
    }

    pub(super) fn is_same_version(&self, response: &Response) -> bool {
        self.validator.as_ref().is_some_and(|(_, etag)| response.etag.as_deref() == Some(etag))
    }

    /// Refuses the head of another version, where no digest will decide.
    fn admit(&self, place: &Place, response: &Response) -> Result<(), Stop> {
        if self.published.is_some() {
            return Ok(());
        }
        let uri = self.wanted.uri.clone();
        if !place.is_current() && !is_of_version(&self.wanted, response.memento_datetime) {
            let what = match response.memento_datetime {
                Some(time) => format!("{place} is the version of {time}"),
                None => format!("{place} does not say its time"),
            };
            return Err(Stop::Failure(Failure::Refused(ContentError::Mismatch { uri, what })));
        }
        let is_earlier = || self.etag.is_some() && strong(response.etag.as_deref()) == self.etag.as_deref();
        if place.is_current() && self.wanted.is_past() && self.earlier.is_none() && !is_earlier() {
            return Err(Stop::Failure(Failure::Refused(ContentError::Changed { uri })));
        }
        Ok(())
    }

    /// Reads a head: its promise, or why its bytes cannot be the resource's.
    pub(super) fn promise(&mut self, place: &Place, response: &Response, resumed: bool) -> Result<Promise, Stop> {
        self.admit(place, response)?;
        if let Some(page) = soft_failure(&self.wanted, self.published.is_some(), response.media_type.as_deref()) {
            return Err(Stop::Failure(Failure::Refused(page)));
        }
        let after_list = |modified: &Timestamp| self.wanted.listed_at.is_some_and(|at| *modified > at);
        let is_own = matches!(place, Place::Own(_)) && !self.wanted.is_past();
        self.newer_than_list = response.modified.filter(|_| is_own).filter(after_list);
        let vouched = self.published.is_some();
        let form = Form::of(&self.wanted, response.encoding.as_deref(), vouched).map_err(|what| self.wrong(what))?;
        if resumed && form != Form::published(&self.wanted) {
            return Err(self.changed());
        }
        let expected = self.expected(form);
        let announced = match response.status {
            Status::Partial { total, .. } => total,
            _ => response.content_length,
        };
        // In a coding that was not requested they are other bytes than the published ones.
        let published = expected.length.filter(|_| !matches!(form, Form::Unasked(_)));
        let shown = self.shown_size().filter(|_| form == Form::Plain);
        match (published, shown, announced) {
            (Some(published), _, Some(announced)) if published != announced => {
                return Err(self.wrong(format!("{announced} bytes are announced where {published} are published")));
            }
            // A digest decides which of two lengths was wrong.
            (None, Some(shown), Some(announced)) if shown != announced && !vouched => return Err(self.changed()),
            _ => {}
        }
        let length = published.or(announced).or(shown);
        let etag = strong(response.etag.as_deref());
        if !resumed {
            let resumable = etag.filter(|_| form == Form::published(&self.wanted));
            self.validator = resumable.map(|etag| (place.uri().clone(), etag.into()));
            self.length = length;
            // The validators of a memento are not those of the current version.
            let current = place.is_current();
            self.provenance = Provenance {
                etag: response.etag.clone().filter(|_| current),
                last_modified: response.modified_validator.clone().filter(|_| current),
                media_type: response.media_type.clone(),
            };
        }
        let origin = match (etag, length, form) {
            // The next answer of a TimeGate may be a redirect elsewhere.
            (Some(etag), Some(length), Form::Plain) if !matches!(place, Place::TimeGate(_)) => {
                let place = place.uri().clone();
                Some(Origin { place, etag: etag.into(), first: 0, total: length, length })
            }
            _ => None,
        };
        if let Some(shown) = shown {
            self.download.show(shown);
        }
        self.download.announce(length, form != Form::Plain || self.sink == Sink::Memory, origin);
        Ok(Promise { form, expected, length })
    }
}
