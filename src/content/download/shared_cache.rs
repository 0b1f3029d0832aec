//! The shared cache in a download: it is asked once, before the Source, and is offered what the Source had.

use super::completion::has_served;
use super::object::{CachedObject, Origin};
use super::plan::{Failure, Place};
use super::promise::{Form, strong};
use super::range_client::RangeBody;
use super::source::Source;
use super::task::{DownloadTask, Ended, Landed, Stop};
use crate::content::blocks::Sink;
use crate::content::fixity::BLOCK;
use crate::content::shared_cache::Name;
use crate::content::{Content, FetchSpec, Verified};
use std::sync::Arc;

impl DownloadTask {
    /// The version as the shared cache has it, verified as if the Source had sent it; `None`: the Source is asked.
    pub(super) async fn ask_shared_cache(&mut self) -> Result<Option<Landed>, Ended> {
        let Some(cache) = self.content.shared_cache.as_ref().map(|shared| Arc::clone(shared.remote())) else {
            return Ok(None);
        };
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
            cache.health().wrong(name.key());
            return Ok(None);
        }
        if length.is_some_and(|shown| shown != copy.length) {
            // The size that was shown may be what is wrong: the Source decides.
            return Ok(None);
        }
        if self.sink == Sink::Store {
            self.look_for_room().await?;
        }
        self.shared_copy = Some(Arc::clone(&copy));
        let origin = Origin::shared(&self.spec.uri, &copy);
        // Before it is announced, for then readers look for it.
        let extent = window.map(|window| self.begin_extent(window, copy.length));
        let promise = self.promised(Form::Plain, Some(copy.length), Some(origin.clone()));
        let mut body = Some(body);
        if let Some(extent) = extent {
            let client = self.content.range_client(origin, self.requester(), self.download.pause());
            self.content.runtime.spawn(extent.run(client, body.take().map(RangeBody::Shared)));
        }
        let stop = loop {
            let before = self.received;
            let received = match body {
                Some(body) => self.receive(Source::Shared(Box::new(body)), None, &promise).await,
                None => Err(Stop::Rest),
            };
            match received {
                Ok(()) => match self.verdict(promise).await {
                    Ok(landed) => {
                        cache.health().hit();
                        return Ok(Some(Landed { is_shared: true, ..landed }));
                    }
                    Err(stop) => break stop,
                },
                Err(Stop::Rest) => self.rest().await?,
                Err(Stop::Failure(Failure::Cut { .. })) if self.received > before => {}
                Err(stop) => break stop,
            }
            body = cache.more(&copy, self.received..copy.length, self.download.priority()).await;
            if body.is_none() {
                break Stop::Again;
            }
        };
        match stop {
            Stop::End(ended) => return Err(ended),
            Stop::Full(error) => {
                self.batch.clear();
                self.find_room(error).await?;
            }
            Stop::Failure(Failure::Wrong(error)) => {
                cache.health().wrong(name.key());
                let is_withheld = self.download.state().trust.withheld().is_some();
                self.wrong_copy = Some(error).filter(|_| !is_withheld && has_served(&self.download));
            }
            Stop::Failure(Failure::Cut { .. } | Failure::Refused(_)) | Stop::Again | Stop::Rest => {}
        }
        self.begin_again(false).await;
        self.download.state().count_again();
        Ok(None)
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
    pub(super) fn offer_to_shared_cache(&self, landed: &Landed) {
        let Some(cache) = self.content.shared_cache.as_ref() else { return };
        let CachedObject::Store(_) = landed.object else { return };
        let Some(name) = Name::of(&self.spec, strong(landed.origin.etag.as_deref())) else { return };
        // Without a digest other bytes may be served for this version, by another place or before they are announced.
        let is_own = matches!(self.plan.place(), Some(Place::Own(_))) && self.newer_than_list.is_none();
        let is_right = match landed.verified {
            Verified::Digest(_) => true,
            Verified::Length | Verified::Transfer => landed.is_plain && is_own,
            Verified::NotYet | Verified::Failed => false,
        };
        if is_right {
            cache.offer(name, landed.key.clone(), false);
        }
    }
}

impl Content {
    /// Offers a file that was on this machine before to the shared cache, if a published digest vouches for its bytes: where others came
    /// from is not known any more.
    pub(super) fn offer_kept(&self, spec: &FetchSpec) {
        let Some(cache) = self.shared_cache.as_ref() else { return };
        let kept = self.metadata.get(spec.ino).filter(|kept| matches!(kept.verified, Verified::Digest(_)));
        if let (Some(key), Some(name)) = (kept.and_then(|kept| kept.object), Name::of(spec, None)) {
            cache.offer(name, key, true);
        }
    }
}
