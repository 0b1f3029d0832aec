//! The Source by its Source Description and Capability Lists, which are read once a day and on demand.

use super::{Synchronizer, push};
use crate::source::discovery::{discover, discover_again};
use crate::source::{Source, SourceError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a discovered Source Description and its Capability Lists are trusted before they are read again.
const DISCOVERY_LIFETIME: Duration = Duration::from_secs(24 * 3600);

impl Synchronizer {
    /// The Source as it was discovered, or discovers it again. Where that fails, the Source as it was, and why. `hurried`: discovery for
    /// safety's sake alone waits for the next poll.
    pub(super) async fn source(&mut self, hurried: bool) -> Result<(Source, Option<SourceError>), SourceError> {
        let mut are_lists_known = false;
        if let Some((source, since)) = &self.discovered {
            let is_fresh = since.elapsed() < DISCOVERY_LIFETIME;
            if is_fresh && (hurried || !self.is_stale && !self.looks_again) {
                return Ok((source.clone(), None));
            }
            are_lists_known = is_fresh && !self.is_stale;
        }
        self.looks_again = false;
        let (entry, set, limits) = (&self.config.entry, self.config.set.as_ref(), self.config.limits);
        let discovered = match are_lists_known {
            true => discover_again(&self.client, entry, set, limits, &self.spool.cache).await,
            false => discover(&self.client, entry, set, limits).await,
        };
        let source = match (discovered, &self.discovered) {
            (Ok(source), _) => source,
            (Err(cause), Some((before, _))) => {
                self.is_stale = true;
                return Ok((before.clone(), Some(cause)));
            }
            (Err(cause), None) => return Err(cause),
        };
        if let Some(authority) = &source.moved_to {
            // Downloads have clones of this client.
            self.client.move_to(authority);
        }
        self.channels.send_replace(Some(push::channels(&source, self.config.host.as_deref())));
        let asked = self.discovered.as_ref().map(|(_, since)| *since).filter(|_| are_lists_known);
        self.discovered = Some((source.clone(), asked.unwrap_or_else(Instant::now)));
        self.is_stale = false;
        Ok((source, None))
    }
}
