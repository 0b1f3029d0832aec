//! The Source as the rival of a slow store: a store is left where the Source would be done sooner.

use crate::document::Uri;
use crate::source::http::{Client, Priority, Request, Status};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A store that was waited for so long, and will be for longer, is compared with the Source. So much sooner the Source must be done.
const PATIENCE: Duration = Duration::from_secs(2);

/// A reader that pauses for so long is content with the store.
const PAUSE: Duration = Duration::from_millis(500);

/// Bytes of the file that are requested from the Source to learn how fast it is, and the time for them.
const SAMPLE: u64 = 256 << 10;
const WITHIN: Duration = Duration::from_secs(10);

/// How fast a body of the store comes, and how fast the Source would send the same.
pub(super) struct Race {
    client: Client,
    priority: Priority,
    /// Address and bytes of the file at the Source, if it has this version still.
    source: Option<(Uri, u64)>,
    /// Bytes that the Source would send.
    whole: u64,
    waited: Duration,
    got: u64,
    last: Instant,
    /// Bytes a second of the Source, once they are asked for and known.
    rival: Option<watch::Receiver<Option<f64>>>,
}

impl Race {
    /// `whole` bytes would have to come from the Source instead, of a file of `length` bytes at `source`.
    pub(super) fn new(client: &Client, priority: Priority, source: Option<&Uri>, length: u64, whole: u64) -> Race {
        let source = source.map(|uri| (uri.clone(), length));
        let (client, last) = (client.clone(), Instant::now());
        Race { client, priority, source, whole, waited: Duration::ZERO, got: 0, last, rival: None }
    }

    /// `bytes` arrived of what was waited for since `begun`; whether the Source would be done before the `left` ones are here.
    pub(super) fn is_lost(&mut self, begun: Instant, bytes: u64, left: u64) -> bool {
        if begun.saturating_duration_since(self.last) > PAUSE {
            (self.waited, self.got) = (Duration::ZERO, 0);
        }
        self.last = Instant::now();
        self.waited += self.last - begun;
        self.got += bytes;
        let to_come = self.waited.as_secs_f64() * left as f64 / self.got.max(1) as f64 - PATIENCE.as_secs_f64();
        if self.waited < PATIENCE || to_come < 0.0 {
            return false;
        }
        let Some((uri, length)) = &self.source else { return false };
        let rival = self.rival.get_or_insert_with(|| measure(&self.client, uri, *length, &self.priority));
        let rate = *rival.borrow();
        rate.is_some_and(|rate| self.whole as f64 / rate < to_come)
    }
}

/// Learns how fast the Source sends this file. A Source that does not answer, or has another version, is not a rival.
fn measure(client: &Client, uri: &Uri, length: u64, priority: &Priority) -> watch::Receiver<Option<f64>> {
    let (learnt, rate) = watch::channel(None);
    let (client, range) = (client.clone(), Some((0, Some(SAMPLE.min(length) - 1))));
    let request = Request { range, priority: priority.clone(), ..Request::get(uri.clone(), WITHIN) };
    let uri = uri.clone();
    let sample = async move {
        let begun = Instant::now();
        let mut response = client.send(request).await.ok()?;
        let has = match response.status {
            Status::Partial { total, .. } => total,
            Status::Full => response.content_length,
            Status::NotModified => None,
        };
        let mut got = 0;
        while has == Some(length) && got < SAMPLE {
            let Some(chunk) = response.body.chunk().await.ok()? else { break };
            got += chunk.len() as u64;
        }
        let rate = got as f64 / begun.elapsed().as_secs_f64();
        tracing::debug!(%uri, rate, "the Source is compared with a slow shared cache");
        (got > 0).then_some(rate)
    };
    tokio::spawn(async move { learnt.send_replace(tokio::time::timeout(WITHIN, sample).await.ok().flatten()) });
    rate
}
