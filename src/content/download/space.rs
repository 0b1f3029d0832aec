//! Where an object goes for which the cache folder has no room.

use super::attempt::{Ended, Fetch};
use super::promise::Form;
use super::state::Sink;
use super::window::WINDOW;
use super::writer::WriteError;
use crate::content::fixity::WHOLE_LIMIT;
use std::sync::Arc;
use std::time::Instant;

/// For so many times as long as a server's silence is borne, a download waits for memory that others have.
const PATIENCE: u32 = 1;

/// Bytes of a download between its body and its window.
const UNWRITTEN: u64 = 2 << 20;

impl Fetch {
    /// A large object of which nothing is here, and for which there can be no room, is streamed past the cache from its beginning.
    pub(super) async fn look_for_room(&mut self) -> Result<(), Ended> {
        let length = self.wanted.length.or(self.shown).filter(|length| *length > WHOLE_LIMIT);
        if length.is_none() || self.received > 0 || self.sink != Sink::Store {
            return Ok(());
        }
        let content = Arc::clone(&self.content);
        match tokio::task::spawn_blocking(move || content.disk.could_hold(length)).await {
            Ok(Err(full)) => self.find_room(full.into()).await,
            // That it was interrupted the writer finds too.
            _ => Ok(()),
        }
    }

    /// Without room on disk the object is fetched into memory; a larger one is streamed past the cache, to its readers of this moment.
    /// Where that cannot be either, the download fails.
    pub(super) async fn find_room(&mut self, error: WriteError) -> Result<(), Ended> {
        if self.download.demanded().is_none() {
            // No reader waits for the bytes themselves.
            return Err(Ended::Yielded(self.unkept(error)));
        }
        let expected = self.length.or(self.wanted.length).or(self.shown);
        let is_large = self.sink == Sink::Memory || expected.is_some_and(|length| length > WHOLE_LIMIT);
        // What must be decoded must be here whole.
        if self.sink == Sink::Discard || (is_large && Form::published(&self.wanted) != Form::Plain) {
            return Err(Ended::Failed(self.unkept(error)));
        }
        tracing::warn!(uri = %self.wanted.uri, %error, "the object is not cached");
        if is_large {
            return self.discard().await;
        }
        self.sink = Sink::Memory;
        self.reserve(expected.unwrap_or(WHOLE_LIMIT)).await
    }

    /// The object is streamed past the cache.
    pub(super) async fn discard(&mut self) -> Result<(), Ended> {
        self.sink = Sink::Discard;
        self.download.discard();
        self.reserve(WINDOW + UNWRITTEN).await
    }

    /// Waits for memory. That others have it is no fault of the server's: readers wait on, but not for ever, for what has memory
    /// comes as slowly as its readers do.
    async fn reserve(&mut self, bytes: u64) -> Result<(), Ended> {
        // Not held while more is waited for: a download that has that may wait for this.
        self.memory = None;
        let stall = self.content.config.stall;
        let until = Instant::now() + stall * PATIENCE;
        let memory = self.content.memory.clone();
        let reservation = memory.reserve(bytes as usize);
        tokio::pin!(reservation);
        loop {
            let reserved = tokio::time::timeout(stall / 8, &mut reservation).await;
            self.download.state().touch();
            match reserved {
                Ok(reservation) => {
                    self.memory = Some(reservation);
                    return Ok(());
                }
                Err(_) if Instant::now() >= until => return Err(Ended::Failed(self.stalled())),
                Err(_) => {}
            }
        }
    }
}
