//! The Source by its Source Description and Capability Lists, which are read once a day and on demand.

use super::Synchronizer;
use super::push::{self, SetChannel};
use crate::source::discovery::{discover, discover_again};
use crate::source::{Source, SourceError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The time that a discovered Source Description and its Capability Lists are trusted before they are read again.
const DISCOVERY_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The Source as it was discovered, and when it is discovered again.
#[derive(Default)]
pub(super) struct Discovery {
    /// The Source that was found last, and when.
    pub found: Option<(Source, Instant)>,
    /// True if the next refresh discovers the Source again, as something has failed.
    pub is_stale: bool,
    /// True if it does so although nothing has failed: a person asks, or a commit was made. Lists that were read are not asked for it.
    pub looks_again: bool,
    /// The notification channels of the mounted sets.
    pub channels: watch::Sender<Option<Vec<SetChannel>>>,
}

impl Synchronizer {
    /// The Source as it was discovered, or discovers it again. Where that fails, the Source as it was, and why. `hurried`: discovery for
    /// safety's sake alone waits for the next poll.
    pub(super) async fn source(&mut self, hurried: bool) -> Result<(Source, Option<SourceError>), SourceError> {
        let mut are_lists_known = false;
        if let Some((source, since)) = &self.discovery.found {
            let is_fresh = since.elapsed() < DISCOVERY_LIFETIME;
            if is_fresh && (hurried || !self.discovery.is_stale && !self.discovery.looks_again) {
                return Ok((source.clone(), None));
            }
            are_lists_known = is_fresh && !self.discovery.is_stale;
        }
        self.discovery.looks_again = false;
        let (entry, set, limits) = (&self.config.entry, self.config.set.as_ref(), self.config.limits);
        let discovered = match are_lists_known {
            true => discover_again(&self.fetch.client, entry, set, limits, &self.fetch.spool.cache).await,
            false => discover(&self.fetch.client, entry, set, limits).await,
        };
        let source = match (discovered, &self.discovery.found) {
            (Ok(source), _) => source,
            (Err(cause), Some((known, _))) => {
                self.discovery.is_stale = true;
                return Ok((known.clone(), Some(cause)));
            }
            (Err(cause), None) => return Err(cause),
        };
        if let Some(authority) = &source.moved_to {
            // Downloads have clones of this client.
            self.fetch.client.move_to(authority);
        }
        self.discovery.channels.send_replace(Some(push::channels(&source, self.config.host.as_deref())));
        let asked = self.discovery.found.as_ref().map(|(_, since)| *since).filter(|_| are_lists_known);
        self.discovery.found = Some((source.clone(), asked.unwrap_or_else(Instant::now)));
        self.discovery.is_stale = false;
        Ok((source, None))
    }
}
