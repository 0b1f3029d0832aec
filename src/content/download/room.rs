//! What is done with an object for which the cache folder has no room.

use super::fetch::{Ended, Fetch, Stop};
use super::promise::{Form, Promise};
use super::writer::{Room, WriteError};
use crate::content::fixity::WHOLE_LIMIT;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What goes past the cache goes on for so long while no reader follows it.
const UNFOLLOWED: Duration = Duration::from_secs(10);

/// For so many times as long as a server's silence is borne, a place is waited for that others have.
const TURNS: u32 = 4;

impl Fetch {
    /// A large object of which nothing is here, and for which there can be no room, goes past the cache from its beginning.
    pub(super) async fn look_for_room(&mut self) -> Result<(), Ended> {
        let length = self.wanted.length.or(self.told).filter(|length| *length > WHOLE_LIMIT);
        if length.is_none() || self.received > 0 || self.room != Room::Store {
            return Ok(());
        }
        let content = Arc::clone(&self.content);
        match tokio::task::spawn_blocking(move || content.disk.could_hold(length)).await {
            Ok(Err(full)) => self.find_room(full.into()).await,
            // That it was interrupted the writer finds too.
            _ => Ok(()),
        }
    }

    /// Without room on disk the object is fetched into memory; one too large for that goes past, to those who read it now.
    /// Where that cannot be either, it cannot be had.
    pub(super) async fn find_room(&mut self, error: WriteError) -> Result<(), Ended> {
        if !self.download.urgency().is_demanded() {
            // Nobody waits for the bytes themselves.
            return Err(Ended::Failed(self.unkept(error)));
        }
        let expected = self.length.or(self.wanted.length).or(self.told);
        let is_large = self.room == Room::Memory || expected.is_some_and(|length| length > WHOLE_LIMIT);
        // What must be decoded must be here whole.
        if self.room == Room::Nowhere || (is_large && Form::published(&self.wanted) != Form::Plain) {
            return Err(Ended::Failed(self.unkept(error)));
        }
        tracing::warn!(uri = %self.wanted.uri, %error, "the object is not cached");
        if is_large {
            self.download.pass_by(&self.content.memory);
            self.go_past().await
        } else {
            self.room = Room::Memory;
            let content = Arc::clone(&self.content);
            self.memory = self.in_turn(content.memory.whole()).await?;
            Ok(())
        }
    }

    /// The object goes past the cache.
    pub(super) async fn go_past(&mut self) -> Result<(), Ended> {
        self.room = Room::Nowhere;
        self.download.hold_latest(false);
        self.latest = None;
        // Not held while another is waited for: those who have that one may wait for this.
        self.memory = None;
        let content = Arc::clone(&self.content);
        self.memory = self.in_turn(content.memory.passing()).await?;
        Ok(())
    }

    /// Waits for a place. That others have them is no fault of the server's: readers wait on, but not for ever, for who has a place
    /// comes as slowly as its readers do. Meanwhile others have the turn at the host, and later as well: the places are bound enough.
    pub(super) async fn in_turn<T>(&mut self, place: impl Future<Output = T>) -> Result<T, Ended> {
        self.turn = None;
        let stall = self.content.config.stall;
        let until = Instant::now() + stall * TURNS;
        tokio::pin!(place);
        loop {
            let taken = tokio::time::timeout(stall / 8, &mut place).await;
            self.download.touch();
            match taken {
                Ok(place) => return Ok(place),
                Err(_) if Instant::now() >= until => return Err(Ended::Failed(self.stalled())),
                Err(_) => {}
            }
        }
    }

    /// Waits until a reader follows what goes past the cache, for nothing of it is kept. Where none does the fetch ends.
    pub(super) async fn wait_for_readers(&mut self, promise: &Promise) -> Result<(), Stop> {
        if self.download.may_go_on_from(self.received) && self.received < self.download.limit() {
            return Ok(());
        }
        // What was given to the writer counts as come.
        self.written().await?;
        if self.received >= self.download.limit() && self.rest.has_blocks() {
            self.write_blocks(promise).await?;
            self.written().await?;
        }
        self.rest.give_leave_back();
        loop {
            let wanted = self.download.wanted().notified();
            if self.download.may_go_on() && self.received < self.download.limit() {
                self.download.touch();
                return Ok(());
            }
            if self.download.take_asked_again() {
                return Err(Stop::Again);
            }
            if tokio::time::timeout(self.content.config.stall.min(UNFOLLOWED), wanted).await.is_err() {
                return Err(Stop::End(Ended::Failed(self.stalled())));
            }
        }
    }
}
