//! Where an object goes for which the cache folder has no room, or which it fails to keep.

use super::outcome::Ended;
use super::task::DownloadTask;
use super::writer::WriteError;
use crate::content::blocks::Sink;
use crate::content::blocks::memory::{NARROW_WINDOW, WINDOW, Window};
use crate::content::fixity::WHOLE_LIMIT;
use crate::content::form::Form;
use crate::content::store::StoreError;
use crate::platform::error_chain::chain;
use std::sync::Arc;
use std::time::Instant;

/// While the memory has room for so many wide windows another is wide: the memory that is left serves many narrow ones.
const WIDE: usize = 5;

impl DownloadTask {
    /// An object of which nothing is here goes past the cache from its beginning where the folder cannot be written, or can have no room
    /// for one so large.
    pub(super) async fn look_for_room(&mut self) -> Result<(), Ended> {
        if self.intake.received > 0 || self.sink() == Sink::Memory {
            return Ok(());
        }
        let failures = &self.content.local.store.failures;
        if let Some(failure) = failures.lasting().filter(|_| failures.is_lasting(Instant::now())) {
            return self.find_room(WriteError::Failing(failure.why)).await;
        }
        let length = self.spec.length.or(self.shown).filter(|length| *length > WHOLE_LIMIT);
        if length.is_none() {
            return Ok(());
        }
        let content = Arc::clone(&self.content);
        match tokio::task::spawn_blocking(move || content.local.store.could_hold(length)).await {
            Ok(Err(full)) => self.find_room(full.into()).await,
            // That it was interrupted the writer finds too.
            _ => Ok(()),
        }
    }

    /// Turns to memory for bytes that cannot be kept on the disk, where there is room for them. Else the download fails.
    pub(super) async fn find_room(&mut self, error: WriteError) -> Result<(), Ended> {
        if let WriteError::Store(error) = &error {
            self.content.local.store.failures.failed(error);
        }
        if self.download.demanded().is_none() {
            // No reader waits for the bytes themselves.
            return Err(Ended::Yielded(self.unkept(error)));
        }
        let is_large = self.expected_length().is_some_and(|length| length > WHOLE_LIMIT);
        // What must be decoded must be here whole.
        if self.sink() == Sink::Memory || (is_large && Form::published(&self.spec) != Form::Plain) {
            return Err(Ended::Failed(self.unkept(error)));
        }
        match error {
            WriteError::Store(StoreError::Full { .. }) => {
                tracing::warn!(uri = %self.spec.uri, %error, "a file cannot be cached");
            }
            // The store has reported it.
            error => tracing::debug!(uri = %self.spec.uri, error = %chain(&error), "a file is read past the cache"),
        }
        self.use_memory().await
    }

    /// The object goes to memory alone, when there is enough. The server is not at fault where others have it: readers wait as long as
    /// they bear its silence, but not for ever, for what has memory comes as slowly as its readers do.
    pub(super) async fn use_memory(&mut self) -> Result<(), Ended> {
        let memory = self.content.memory.clone();
        let length = self.expected_length();
        let bytes = |window| Window::capacity(length, window) as usize;
        let window = if memory.has_room(WIDE * bytes(WINDOW)) { WINDOW } else { NARROW_WINDOW };
        drop(self.download.publish(|state| state.use_memory(window)));
        let stall = self.content.config.stall;
        let until = Instant::now() + stall;
        let reservation = memory.reserve(bytes(window));
        tokio::pin!(reservation);
        loop {
            let reserved = tokio::time::timeout(stall / 8, &mut reservation).await;
            match reserved {
                Ok(reservation) => {
                    self.memory = Some(reservation);
                    return Ok(());
                }
                Err(_) if Instant::now() >= until => return Err(Ended::Failed(self.stalled())),
                Err(_) => self.download.state().wait_for_memory(),
            }
        }
    }

    fn expected_length(&self) -> Option<u64> {
        self.version.length.or(self.spec.length).or(self.shown)
    }
}
