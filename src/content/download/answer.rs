//! The request to a place, and the promise of its answer's head: or why its bytes cannot be the resource's.

use super::object::Origin;
use super::plan::{Failure, Place};
use super::promise::{Disagreement, Head, Promise};
use super::task::{DownloadTask, Provenance, Stop};
use crate::content::ContentError;
use crate::content::form::{Form, request};
use crate::content::trust::{Claim, strong};
use crate::document::Timestamp;
use crate::source::http::{Request, Response};
use std::sync::Arc;

impl DownloadTask {
    /// A request for the whole.
    pub(super) fn request(&self, place: &Place) -> Request {
        let budget = self.content.head_budget(self.plan.len());
        let mut request = request(&self.spec, place.uri(), budget, self.download.priority());
        request.accept_datetime = self.spec.moment().filter(|_| matches!(place, Place::TimeGate(_)));
        request.no_cache = self.plan.past_caches();
        request.pause = self.download.pause().clone();
        request
    }

    /// Requests the rest from the byte `from` on; `if_range`: only of this version.
    pub(super) async fn ask(&self, place: &Place, from: u64, if_range: Option<Box<str>>) -> Result<Response, Stop> {
        loop {
            let was_demanded = self.download.demanded().is_some();
            let mut request = self.request(place);
            if from > 0 {
                request.range = Some((from, None));
                request.if_range.clone_from(&if_range);
            }
            let error = match self.content.client.send(request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let is_retryable = error.is_retryable();
            if is_retryable && !was_demanded && self.download.demanded().is_some() {
                // The deadline was that of a prefetch. The reader that has joined it has its own.
                continue;
            }
            let error = ContentError::Fetch { uri: self.spec.uri.clone(), cause: Arc::new(error) };
            // A server that refuses the rest may still send the whole.
            let can_begin_again = from > 0 && !is_retryable;
            return Err(Stop::Failure(match can_begin_again {
                true => Failure::Cut { received: 0, error },
                false => Failure::Refused(error),
            }));
        }
    }

    pub(super) fn is_same_version(&self, response: &Response) -> bool {
        self.version.validator.as_ref().is_some_and(|(_, etag)| response.etag.as_deref() == Some(etag))
    }

    /// The ETag that the rest must have, unless other bytes are with those that are here already.
    pub(super) fn if_range(&self) -> Option<Box<str>> {
        self.version.validator.as_ref().filter(|_| !self.version.is_mixed).map(|(_, etag)| etag.clone())
    }

    /// Refuses the head of another version, where no digest will decide.
    fn admit(&self, place: &Place, response: &Response) -> Result<(), Stop> {
        if self.published.is_some() {
            return Ok(());
        }
        let uri = self.spec.uri.clone();
        // The time of a memento is the only proof without a digest.
        let life = self.spec.life();
        let is_of_version = || response.memento_datetime.zip(life).is_some_and(|(time, life)| life.contains(&time));
        if !place.is_current() && !is_of_version() {
            let what = match response.memento_datetime {
                Some(time) => format!("{place} is the version of {time}"),
                None => format!("{place} has no time"),
            };
            return Err(Stop::Failure(Failure::Refused(ContentError::Mismatch { uri, what })));
        }
        let is_earlier = || self.etag.is_some() && strong(response.etag.as_deref()) == self.etag.as_deref();
        if place.is_current() && self.spec.is_past() && self.earlier.is_none() && !is_earlier() {
            return Err(Stop::Failure(Failure::Refused(ContentError::Changed { uri })));
        }
        Ok(())
    }

    /// Reads a head: its promise, or why its bytes cannot be the resource's.
    pub(super) fn promise(&mut self, place: &Place, response: &Response, resumed: bool) -> Result<Promise, Stop> {
        self.admit(place, response)?;
        let after_list = |modified: &Timestamp| self.spec.listed_at.is_some_and(|at| *modified > at);
        let is_own = matches!(place, Place::Own(_)) && !self.spec.is_past();
        self.version.newer_than_list = response.modified.filter(|_| is_own).filter(after_list);
        let shown = self.shown_size();
        let agreed = Head::from(response).agree(&self.spec, self.published.is_some(), shown);
        let (form, length) = agreed.map_err(|disagreement| self.disagreed(disagreement))?;
        if resumed && form != Form::published(&self.spec) {
            return Err(self.changed());
        }
        let etag = strong(response.etag.as_deref());
        if !resumed {
            let resumable = etag.filter(|_| form == Form::published(&self.spec));
            self.version.validator = resumable.map(|etag| (place.uri().clone(), etag.into()));
            self.version.is_joinable = self.published.is_some() && form == Form::published(&self.spec);
            self.version.length = length;
            // The validators of a memento are not those of the current version.
            let current = place.is_current();
            self.version.provenance = Provenance {
                etag: response.etag.clone().filter(|_| current),
                last_modified: response.modified_validator.clone().filter(|_| current),
                media_type: response.media_type.clone(),
            };
        }
        let origin = match (etag, length, form) {
            // The next answer of a TimeGate may be a redirect elsewhere.
            (Some(etag), Some(length), Form::Plain)
                if !self.version.is_mixed && !matches!(place, Place::TimeGate(_)) =>
            {
                let place = place.uri().clone();
                Some(Origin { place, etag: etag.into(), first: 0, total: length, length, shared: None })
            }
            _ => None,
        };
        Ok(self.promised(form, length, origin))
    }

    pub(super) fn disagreed(&self, disagreement: Disagreement) -> Stop {
        match disagreement {
            Disagreement::Page(page) => Stop::Failure(Failure::Refused(page)),
            Disagreement::Wrong(what) => self.wrong(what),
            Disagreement::Changed => self.changed(),
        }
    }

    /// Announces what follows to the readers.
    pub(super) fn promised(&mut self, form: Form, length: Option<u64>, origin: Option<Origin>) -> Promise {
        if let Some(shown) = self.shown.filter(|_| form == Form::Plain) {
            self.download.change(|state| state.trust.show(shown));
        }
        let version = origin.as_ref().map(Origin::version);
        let claim = Claim { length, version, is_unjudgeable: form != Form::Plain || self.version.is_mixed };
        let mark = self.mark();
        self.download.publish(|state| state.announce(claim, origin, mark));
        let promise = Promise { form, expected: self.expected(form), length };
        self.version.promise = Some(promise.clone());
        promise
    }
}
