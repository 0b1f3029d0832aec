//! The Source by its Source Description and Capability Lists, which are read once a day and on demand.

use super::{Synchronizer, push};
use crate::source::discovery::discover;
use crate::source::{Source, SourceError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a discovered Source Description and its Capability Lists are trusted before they are read again.
const DISCOVERY_LIFETIME: Duration = Duration::from_secs(24 * 3600);

impl Synchronizer {
    /// The Source as it was discovered, or discovers it again. Where that fails, the Source as it was, and why. `hurried`: discovery for
    /// safety's sake alone waits for the next poll.
    pub(super) async fn source(&mut self, hurried: bool) -> Result<(Source, Option<SourceError>), SourceError> {
        if let Some((source, since)) = &self.discovered {
            if since.elapsed() < DISCOVERY_LIFETIME && (hurried || !self.is_stale) {
                return Ok((source.clone(), None));
            }
        }
        let (entry, set) = (&self.config.entry, self.config.set.as_ref());
        let source = match (discover(&self.client, entry, set, self.config.limits).await, &self.discovered) {
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
        self.discovered = Some((source.clone(), Instant::now()));
        self.is_stale = false;
        Ok((source, None))
    }
}
