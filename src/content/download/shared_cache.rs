//! The shared cache in a download: the first place that is asked. It is offered what the Source had.

use super::completion::has_served;
use super::incoming::IncomingBytes;
use super::object::{CachedObject, Origin};
use super::outcome::Ended;
use super::plan::{Failure, Place};
use super::promise::Promise;
use super::task::{Completed, DownloadTask, Stop};
use crate::content::blocks::Sink;
use crate::content::fixity::BLOCK;
use crate::content::form::Form;
use crate::content::shared_cache::{Name, Remote, SharedBody};
use crate::content::trust::strong;
use crate::content::{Content, FetchSpec, Verified};
use std::sync::Arc;

impl DownloadTask {
    /// The version as the shared cache has it, verified as if the Source had sent it.
    pub(super) async fn copied(&mut self) -> Result<Completed, Stop> {
        let missing = Stop::Failure(Failure::Refused(self.stalled()));
        let Some(cache) = self.content.shared_cache.as_ref().map(|shared| Arc::clone(&shared.remote)) else {
            return Err(missing);
        };
        let (body, promise) = match (self.version.shared_copy.clone(), self.version.promise.clone()) {
            (Some(copy), Some(promise)) => {
                if let Some(promise) = self.skip_to_frontier() {
                    return self.verdict_on_copy(promise, &cache).await;
                }
                let body = cache.more(&copy, self.intake.received..copy.length, self.download.priority()).await;
                (body.ok_or(missing)?, promise)
            }
            _ => self.open_copy(&cache).await?.ok_or(missing)?,
        };
        self.receive(IncomingBytes::Shared(Box::new(body)), None, &promise).await?;
        self.verdict_on_copy(promise, &cache).await
    }

    async fn verdict_on_copy(&mut self, promise: Promise, cache: &Remote) -> Result<Completed, Stop> {
        let completed = self.verdict(promise).await?;
        cache.health.hit();
        Ok(Completed { is_shared: true, ..completed })
    }

    /// The body of the copy, announced to the readers; `None`: there is none, or not of this version. [`Stop::Rest`]: readers are far
    /// from its beginning, and get what they read.
    async fn open_copy(&mut self, cache: &Remote) -> Result<Option<(SharedBody, Promise)>, Stop> {
        if self.content.download_limit().is_some_and(|limit| limit.left() == 0) {
            return Ok(None);
        }
        let Some(name) = Name::of(&self.spec, self.etag.as_deref()) else { return Ok(None) };
        let (length, window) = (self.spec.length.or(self.shown), self.far_window());
        let priority = self.download.priority();
        let source = (!self.spec.is_past()).then_some(&self.spec.uri);
        let bytes =
            window.clone().zip(length).map(|(blocks, length)| blocks.start * BLOCK..(blocks.end * BLOCK).min(length));
        let Some(body) = cache.get(&name, source, length, bytes, priority).await else { return Ok(None) };
        let copy = Arc::clone(body.copy());
        if self.spec.length.is_some_and(|published| published != copy.length) {
            cache.health.wrong(name.key());
            return Ok(None);
        }
        if length.is_some_and(|shown| shown != copy.length) {
            // The size that was shown may be what is wrong: the Source decides.
            return Ok(None);
        }
        if self.sink() == Sink::Store {
            self.look_for_room().await.map_err(Stop::End)?;
        }
        self.version.shared_copy = Some(Arc::clone(&copy));
        let origin = Origin::shared(&self.spec.uri, &copy);
        // Before it is announced, for then readers look for it.
        let extent = window.map(|window| self.begin_extent(window));
        let promise = self.promised(Form::Plain, Some(copy.length), Some(origin.clone()));
        let Some(extent) = extent else { return Ok(Some((body, promise))) };
        self.content.runtime.spawn(extent.run(origin, Some(IncomingBytes::Shared(Box::new(body)))));
        Err(Stop::Rest)
    }

    /// Remembers a copy that was wrong, and whether bytes of it were handed out.
    pub(super) fn note_wrong_copy(&mut self, failure: &Failure) {
        let (Failure::Wrong(error), Some(copy)) = (failure, &self.version.shared_copy) else { return };
        let Some(cache) = self.content.shared_cache.as_ref() else { return };
        cache.remote.health.wrong(copy.name.key());
        let is_withheld = self.download.state().trust.withheld().is_some();
        self.wrong_copy = Some(error.clone()).filter(|_| !is_withheld && has_served(&self.download));
    }

    /// How the download ends whose last attempts ended so. Where the Source had no right bytes either, what was handed out of a wrong copy
    /// must not stay readable.
    pub(super) fn after_wrong_copy(&mut self, ended: Ended) -> Ended {
        match (ended, self.wrong_copy.take()) {
            (Ended::Failed(_), Some(error)) if !self.download.state().trust.is_proved() => Ended::Poisoned(error),
            (ended, _) => ended,
        }
    }

    /// Offers a version that did not come from the shared cache to it, if these are the bytes that its name stands for there.
    pub(super) fn offer_to_shared_cache(&self, completed: &Completed) {
        let Some(cache) = self.content.shared_cache.as_ref().filter(|_| !completed.is_shared) else { return };
        let CachedObject::Store(_) = completed.object else { return };
        let Some(name) = Name::of(&self.spec, strong(completed.origin.etag.as_deref())) else { return };
        // Without a digest other bytes may be served for this version, by another place or before they are announced.
        let is_own = matches!(self.plan.place(), Some(Place::Own(_))) && self.version.newer_than_list.is_none();
        let is_right = match completed.verified {
            Verified::Digest(_) => true,
            Verified::Length | Verified::Transfer => completed.is_plain && is_own,
            Verified::NotYet | Verified::Failed => false,
        };
        if is_right {
            cache.offer(name, completed.key.clone(), false);
        }
    }
}

impl Content {
    /// Offers a file that was on this machine before to the shared cache, if a published digest vouches for its bytes: where others came
    /// from is not known any more.
    pub(super) fn offer_kept(&self, spec: &FetchSpec) {
        let Some(cache) = self.shared_cache.as_ref() else { return };
        let kept = self.local.metadata.get(spec.ino).filter(|kept| matches!(kept.verified, Verified::Digest(_)));
        if let (Some(key), Some(name)) = (kept.and_then(|kept| kept.object), Name::of(spec, None)) {
            cache.offer(name, key, true);
        }
    }
}
