//! A body as it arrives.

use super::HttpError;
use super::allowance::Allowance;
use super::cause::ConnectionError;
use super::host::RequestPermit;
use crate::document::Uri;
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A body as it arrives, under the low-speed limit. It holds its permit until its end, an error, or its drop. A caller that keeps one unread
/// while it asks the same host for more may wait for itself.
pub struct Body {
    uri: Uri,
    /// Bytes that must come, where known.
    expected: Option<u64>,
    got: u64,
    speed: LowSpeed,
    /// Allowance that its bytes count against.
    allowance: Option<Arc<Allowance>>,
    state: BodyState,
}

enum BodyState {
    /// The permit is released once all bytes are here.
    Open(reqwest::Response, Option<RequestPermit>),
    Ended,
    Failed,
}

impl Body {
    /// The body of `response`; its bytes count as the host's, and against `allowance`.
    pub(super) fn new(
        uri: Uri,
        response: reqwest::Response,
        expected: Option<u64>,
        speed: LowSpeed,
        permit: RequestPermit,
        allowance: Option<Arc<Allowance>>,
    ) -> Body {
        Body { uri, expected, got: 0, speed, allowance, state: BodyState::Open(response, Some(permit)) }
    }

    /// The body of an answer that has none. Bytes that the server sends are not read.
    pub(super) fn empty(uri: Uri, speed: LowSpeed) -> Body {
        Body { uri, expected: Some(0), got: 0, speed, allowance: None, state: BodyState::Ended }
    }

    /// The next piece; `None` at the end. A body shorter or longer than its Content-Length is an error, and a body that failed once
    /// never seems to end well. May be dropped while it waits: no byte is lost, but the time until then counts neither as the
    /// server's silence nor as its work. So it is for callers that do that seldom.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        let (response, permit) = match &mut self.state {
            BodyState::Open(response, permit) => (response, permit),
            BodyState::Ended => return Ok(None),
            BodyState::Failed => return Err(self.cut(None)),
        };
        let checked = match self.speed.watch(response.chunk()).await {
            None => {
                let (uri, LowSpeed { limit, window: over, .. }) = (self.uri.clone(), self.speed);
                Err(HttpError::Stalled { uri, limit, over, got: self.got })
            }
            Some(Err(cause)) => Err(self.cut(Some((&cause).into()))),
            Some(Ok(piece)) => {
                let bytes = piece.as_ref().map_or(0, Bytes::len) as u64;
                self.got += bytes;
                if let Some(permit) = permit {
                    permit.host.received(bytes);
                }
                let counted = self.allowance.as_ref().map_or(Ok(()), |allowance| allowance.take(&self.uri, bytes));
                match self.expected {
                    _ if counted.is_err() => counted.map(|()| None),
                    Some(expected) if self.got > expected => {
                        Err(HttpError::Overlong { uri: self.uri.clone(), expected })
                    }
                    Some(expected) if self.got < expected && piece.is_none() => Err(self.cut(None)),
                    _ => Ok(piece),
                }
            }
        };
        match &checked {
            Ok(Some(_)) if self.expected != Some(self.got) => {}
            Ok(piece) => {
                if let BodyState::Open(_, permit) = &mut self.state {
                    permit.take().into_iter().for_each(RequestPermit::finished);
                }
                if piece.is_none() {
                    self.state = BodyState::Ended;
                }
            }
            Err(_) => self.state = BodyState::Failed,
        }
        checked
    }

    fn cut(&self, cause: Option<ConnectionError>) -> HttpError {
        let (uri, got) = (self.uri.clone(), self.got);
        match self.expected {
            Some(expected) => HttpError::Truncated { uri, expected, got, cause },
            None => HttpError::Body { uri, got, cause },
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Body({} bytes of {:?})", self.got, self.expected)
    }
}

/// Measures a body over windows of waiting time. The reader's own time does not count: a slow reader makes the server slow.
#[derive(Clone, Copy, Debug)]
pub(super) struct LowSpeed {
    /// Bytes a second.
    limit: u64,
    window: Duration,
    waited: Duration,
    got: u64,
}

impl LowSpeed {
    pub(super) fn new(limit: u64, window: Duration) -> LowSpeed {
        LowSpeed { limit, window, waited: Duration::ZERO, got: 0 }
    }

    pub(super) fn window(&self) -> Duration {
        self.window
    }

    /// Waits for the next piece; `None` where the window passed with less than its share.
    async fn watch(
        &mut self,
        next: impl Future<Output = reqwest::Result<Option<Bytes>>>,
    ) -> Option<reqwest::Result<Option<Bytes>>> {
        tokio::pin!(next);
        loop {
            let begun = Instant::now();
            let left = self.window.saturating_sub(self.waited);
            match tokio::time::timeout(left, &mut next).await {
                Ok(outcome) => {
                    let bytes = outcome.as_ref().ok().and_then(Option::as_ref).map_or(0, Bytes::len);
                    self.count(begun.elapsed(), bytes as u64);
                    return Some(outcome);
                }
                Err(_) if self.is_too_slow() => return None,
                Err(_) => self.begin_window(),
            }
        }
    }

    /// Adds a piece. A window that is over with this piece is judged by what came, the piece included.
    fn count(&mut self, waited: Duration, bytes: u64) {
        self.waited += waited;
        self.got += bytes;
        if self.waited >= self.window && !self.is_too_slow() {
            self.begin_window();
        }
    }

    /// Returns whether the window's bytes are too few; silence always is.
    fn is_too_slow(&self) -> bool {
        let share = u128::from(self.limit) * self.window.as_millis() / 1000;
        self.got == 0 || u128::from(self.got) < share
    }

    fn begin_window(&mut self) {
        self.waited = Duration::ZERO;
        self.got = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_judged_by_its_bytes() {
        let mut speed = LowSpeed::new(100, Duration::from_secs(2));
        speed.count(Duration::from_secs(1), 199);
        assert!(speed.is_too_slow());
        speed.count(Duration::from_millis(500), 1);
        assert!(!speed.is_too_slow());
        speed.count(Duration::from_secs(1), 0);
        assert_eq!((speed.waited, speed.got), (Duration::ZERO, 0), "a good window is followed by a new one");
    }

    #[test]
    fn without_a_limit_only_silence_is_too_slow() {
        let mut speed = LowSpeed::new(0, Duration::from_secs(2));
        assert!(speed.is_too_slow());
        speed.count(Duration::from_secs(1), 1);
        assert!(!speed.is_too_slow());
    }
}
