//! The shared cache in a download: it is asked once, before the Source, and is offered what the Source had.

use super::attempt::{Ended, Fetch, Landed, Stop};
use super::kept::Sink;
use super::object::CachedObject;
use super::plan::{Failure, Place};
use super::promise::Form;
use super::source::Source;
use crate::content::Verified;
use crate::content::shared_cache::Name;
use std::sync::Arc;

impl Fetch {
    /// The version as the shared cache has it, verified as if the Source had sent it; `None`: the Source is asked.
    pub(super) async fn from_shared_cache(&mut self) -> Result<Option<Landed>, Ended> {
        let content = Arc::clone(&self.content);
        let Some(cache) = content.shared_cache.as_ref() else { return Ok(None) };
        let Some(name) = Name::of(&self.wanted, self.etag.as_deref()) else { return Ok(None) };
        let length = self.wanted.length.or(self.shown);
        let Some(body) = cache.get(&name, length, self.download.priority()).await else { return Ok(None) };
        if length.is_some_and(|length| length != body.length()) {
            cache.was_wrong(&name);
            self.is_shared_copy_wrong = true;
            return Ok(None);
        }
        if self.sink == Sink::Store {
            self.look_for_room().await?;
        }
        let promise = self.promised(Form::Plain, Some(body.length()), None);
        let stop = match self.receive(Source::Shared(Box::new(body)), &promise).await {
            Ok(()) => self.verdict(promise).await,
            Err(stop) => Err(stop),
        };
        let stop = match stop {
            Ok(landed) => {
                cache.served();
                return Ok(Some(Landed { is_shared: true, ..landed }));
            }
            Err(stop) => stop,
        };
        match stop {
            Stop::End(ended) => return Err(ended),
            Stop::Full(error) => {
                self.batch.clear();
                self.find_room(error).await?;
            }
            Stop::Failure(Failure::Wrong(_)) => {
                cache.was_wrong(&name);
                self.is_shared_copy_wrong = true;
            }
            Stop::Failure(Failure::Cut { .. } | Failure::Refused(_)) => self.is_shared_copy_wrong = true,
            Stop::Again | Stop::Rest => {}
        }
        self.begin_again(false).await;
        self.download.state().count_again();
        Ok(None)
    }

    /// Offers a version that did not come from the shared cache to it, if these are the bytes that its name stands for there.
    pub(super) fn offer_to_shared_cache(&self, landed: &Landed) {
        let Some(cache) = self.content.shared_cache.as_ref() else { return };
        let CachedObject::Store(_) = landed.object else { return };
        let Some(name) = Name::of(&self.wanted, landed.origin.etag.as_deref()) else { return };
        // Without a digest other bytes may be served for this version, by another place or before they are announced.
        let is_own = matches!(self.plan.place(), Some(Place::Own(_))) && self.newer_than_list.is_none();
        let is_right = match landed.verified {
            Verified::Digest(_) => true,
            Verified::Length | Verified::Transfer => landed.is_plain && is_own,
            Verified::NotYet | Verified::Failed => false,
        };
        if is_right {
            cache.offer(name, landed.key.clone(), self.is_shared_copy_wrong);
        }
    }
}
