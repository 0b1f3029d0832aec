//! Large objects come only as far as somebody reads them: what lies behind is fetched when a reader draws near.

use super::fetch::{Ended, Fetch, Stop};
use super::promise::Promise;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Objects that may stand still at a time.
const RESTING: usize = 16;

/// Objects whose latest bytes are held in memory for their readers.
const HELD: usize = 4;

/// A body is held open for so long while nobody reads on.
const HELD_OPEN: Duration = Duration::from_secs(2);

/// What stood still for so long ends; who reads on then begins another fetch, which goes on where this one ended.
const LONGEST: Duration = Duration::from_secs(600);

/// Leave to stand still.
pub(in crate::content) fn resting_places() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(RESTING))
}

/// Leave to hold what came last.
pub(in crate::content) fn latest_places() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(HELD))
}

impl Fetch {
    /// Has the download hold what comes for its readers, where there is leave for that.
    pub(super) fn hold_latest(&mut self) {
        if self.latest.is_none() {
            self.latest = Arc::clone(&self.content.latest).try_acquire_owned().ok();
            self.download.hold_latest(self.latest.is_some());
        }
    }

    /// Waits as long as nobody follows, where what is here can be gone on with later.
    pub(super) async fn wait_to_be_followed(&mut self, promise: &Promise) -> Result<(), Stop> {
        if self.validator.is_none() || self.received < self.download.limit() {
            return Ok(());
        }
        if self.rest.has_blocks() {
            self.write_blocks(promise).await?;
        }
        self.written().await?;
        if self.is_followed_within(HELD_OPEN).await { Ok(()) } else { Err(Stop::Rest) }
    }

    /// Waits without a body until somebody reads on; not for ever, and of more objects than may only while readers are served aside.
    /// Meanwhile others have the turn at the host.
    pub(super) async fn stand_still(&mut self) -> Result<(), Ended> {
        self.download.hold_latest(false);
        (self.latest, self.turn) = (None, None);
        if self.resting.is_none() {
            self.resting = Arc::clone(&self.content.resting).try_acquire_owned().ok();
        }
        let patience = if self.resting.is_some() { LONGEST } else { HELD_OPEN };
        while !self.is_followed_within(patience).await {
            if !self.download.serves_aside() {
                self.keep().await;
                return Err(Ended::Left);
            }
        }
        self.resting = None;
        let content = Arc::clone(&self.content);
        let authority = self.wanted.uri.authority().to_owned();
        match self.in_turn(content.fetches.take(&authority, self.requester())).await {
            Ok(turn) => self.turn = Some(turn),
            Err(late) => {
                self.keep().await;
                return Err(late);
            }
        }
        self.download.touch();
        Ok(())
    }

    async fn is_followed_within(&self, patience: Duration) -> bool {
        let followed = async {
            loop {
                // Registered before the look: what happens between the two is not missed.
                let wanted = self.download.wanted().notified();
                if self.received < self.download.limit() {
                    return;
                }
                wanted.await;
            }
        };
        let is_followed = tokio::time::timeout(patience, followed).await.is_ok();
        if is_followed {
            self.download.touch();
        }
        is_followed
    }
}
