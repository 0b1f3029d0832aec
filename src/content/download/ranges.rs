//! A large body in parallel ranges, handed on in order.
//!
//! A connection brings at most its window in a round trip, so several bring several times as much of a line that one does not fill.
//! Whether one fills it shows at the beginning of the body that was asked for first ([`is_growing`]), and again while ranges arrive: where
//! they fill the line, fewer are enough. The body goes on until the range behind it arrives; a server that refuses a range loses nothing
//! by that, the body goes on alone.
//!
//! Ranges are asked for under the body's strong ETag, and only up to the demand of the download. The first that is missing is handed on
//! as it arrives and needs no memory. Those behind it arrive in memory, charged to the budget chunk by chunk; without a reservation a range is
//! not read on, and the server waits. So neither a host that is silent nor another download can keep one from going on.

use super::object::Origin;
use crate::content::ContentError;
use crate::content::fixity::BLOCK;
use crate::content::shared_cache::{Remote, SharedBody};
use crate::document::Uri;
use crate::platform::memory_budget::Budget;
use crate::source::http::{Body, Client, HttpError, KnownPause, Priority, Request, Status, Way};
use bytes::{Buf, Bytes};
use futures_util::stream::{self, Stream, StreamExt};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Bytes of a range, at most.
pub(super) const RANGE: u64 = 4 << 20;

/// Bytes of one of the first ranges, at least.
const SHORT_RANGE: u64 = 1 << 20;

/// Ranges of one body under way at once, at most. Their connections begin together: one that begins later grows while all wait for it.
const MOST: usize = 14;

/// The same where the line is full: the ranges' connections are silent for less than one part in [`MOSTLY_AT_WORK`] of their time. More
/// ranges lose packets then, and all wait for the first.
const MOST_OF_A_FULL_LINE: usize = 8;
const MOSTLY_AT_WORK: u32 = 4;

/// Bytes of the body that are measured, and the round trips that they may take. A connection that grows brings them in six, one that is
/// held to 64 KiB a round trip in nine, and a line that brings less gains nothing by several.
const MEASURED: u64 = 512 << 10;
const ROUND_TRIPS: u32 = 10;

/// Where a round trip takes less, one connection fills the line.
const NEAR: Duration = Duration::from_millis(3);

/// Bytes that the body brings while the connections of the first ranges grow.
const MEANWHILE: u64 = 2 * RANGE;

/// The time in which the connection of a range that is here comes back to its pool. A range that is asked for before opens another, and
/// all wait while that one grows.
const BACK: Duration = Duration::from_millis(2);

/// Whether a line brings more by several connections than by one: its first [`MEASURED`] bytes `took` so long, a `round_trip` included.
fn is_growing(round_trip: Duration, took: Duration) -> bool {
    round_trip > NEAR && took < ROUND_TRIPS * round_trip
}

/// Asks for ranges of one version.
#[derive(Clone)]
pub(super) struct RangeClient {
    pub(super) client: Client,
    pub(super) origin: Origin,
    pub(super) priority: Priority,
    pub(super) pause: KnownPause,
    /// The head of a range must be here within this time.
    pub(super) head: Duration,
    /// The longest wait for the next bytes of a range.
    pub(super) silence: Duration,
    pub(super) shared_cache: Option<Arc<Remote>>,
}

/// The bytes of a range.
pub(super) enum RangeBody {
    Source(Body),
    Shared(SharedBody),
}

impl RangeBody {
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, RangeError> {
        match self {
            RangeBody::Source(body) => Ok(body.chunk().await?),
            RangeBody::Shared(body) => body.chunk().await.map_err(|_| RangeError::Other),
        }
    }
}

/// Why a range does not arrive.
#[derive(Debug, thiserror::Error)]
pub(super) enum RangeError {
    #[error("a range cannot be downloaded")]
    Http(#[source] Arc<HttpError>),
    #[error("the server sent another range or another version than requested")]
    Other,
    #[error("nothing arrived in time")]
    Silent,
}

impl RangeError {
    /// As the error of an attempt to fetch `uri`.
    pub(super) fn into_content(self, uri: &Uri) -> ContentError {
        match self {
            RangeError::Http(cause) => ContentError::Fetch { uri: uri.clone(), cause },
            RangeError::Other | RangeError::Silent => ContentError::Stalled { uri: uri.clone() },
        }
    }
}

impl From<HttpError> for RangeError {
    fn from(error: HttpError) -> RangeError {
        RangeError::Http(Arc::new(error))
    }
}

impl RangeClient {
    /// The body of an answer that is just this range of the version. `in_parallel`: over a connection of its own.
    pub(super) async fn ask(&self, range: &Range<u64>, in_parallel: bool) -> Result<RangeBody, RangeError> {
        let origin = &self.origin;
        if let (Some(copy), Some(cache)) = (&origin.shared, &self.shared_cache) {
            let blocks = range.start..range.end.next_multiple_of(BLOCK).min(origin.length);
            let body = cache.more(copy, blocks, self.priority.clone()).await;
            return body.map(RangeBody::Shared).ok_or(RangeError::Other);
        }
        let (first, last) = (origin.first + range.start, origin.first + range.end - 1);
        let mut request = Request::get(origin.place.clone(), self.head);
        request.range = Some((first, Some(last)));
        request.if_range = Some(origin.etag.clone());
        request.way = if in_parallel { Way::Ranges } else { Way::Shared };
        request.repeats = !in_parallel;
        request.priority = self.priority.clone();
        request.pause = self.pause.clone();
        let response = self.client.send(request).await?;
        let expected = Status::Partial { first, last, total: Some(origin.total) };
        if response.status != expected || response.etag.as_deref() != Some(&origin.etag) || response.encoding.is_some()
        {
            tracing::debug!(place = %origin.place, status = ?response.status, "a range of another version");
            return Err(RangeError::Other);
        }
        Ok(RangeBody::Source(response.body))
    }
}

type Chunks = Pin<Box<dyn Stream<Item = Result<Bytes, RangeError>> + Send>>;

/// The bytes of one range, over a connection of its own.
struct Fetching {
    client: Arc<RangeClient>,
    left: Range<u64>,
    body: Option<RangeBody>,
}

impl Fetching {
    fn chunks(client: &Arc<RangeClient>, left: Range<u64>) -> Chunks {
        let fetching = Fetching { client: Arc::clone(client), left, body: None };
        let next = |mut fetching: Fetching| async move {
            let chunk = fetching.chunk().await?;
            Ok(chunk.map(|chunk| (chunk, fetching)))
        };
        Box::pin(stream::try_unfold(fetching, next))
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, RangeError> {
        let body = match &mut self.body {
            Some(body) => body,
            none => none.insert(self.client.ask(&self.left, true).await?),
        };
        let chunk = timeout(self.client.silence, body.chunk()).await;
        if self.left.is_empty() {
            // All bytes are here: an error behind them changes nothing.
            sleep(BACK).await;
            return Ok(None);
        }
        match chunk {
            Err(_) => Err(RangeError::Silent),
            Ok(Err(error)) => Err(error),
            Ok(Ok(Some(chunk))) if chunk.len() as u64 <= self.left.end - self.left.start => {
                self.left.start += chunk.len() as u64;
                Ok(Some(chunk))
            }
            Ok(Ok(_)) => Err(RangeError::Other),
        }
    }
}

/// One range, and what arrived of it. Where it was cut it is asked for a second time, from there on.
struct InFlight {
    client: Arc<RangeClient>,
    /// Not handed on yet.
    left: Range<u64>,
    /// The first byte that has not arrived.
    next: u64,
    /// Asked for while the body arrives: how long its connection, which grows, is at work says nothing of the line.
    is_early: bool,
    is_repeated: bool,
    chunks: Chunks,
    /// Each holds its reservation. An error is the last.
    arrived: VecDeque<Result<Bytes, RangeError>>,
    /// Arrived, without a reservation yet. Nothing more is read until it has one.
    uncharged: Option<Bytes>,
    begun: Instant,
    started: Option<Instant>,
    /// No more chunks are to come.
    has_ended: bool,
}

impl InFlight {
    fn new(client: &Arc<RangeClient>, left: Range<u64>, is_early: bool) -> InFlight {
        InFlight {
            client: Arc::clone(client),
            next: left.start,
            is_early,
            is_repeated: false,
            chunks: Fetching::chunks(client, left.clone()),
            left,
            arrived: VecDeque::new(),
            uncharged: None,
            begun: Instant::now(),
            started: None,
            has_ended: false,
        }
    }

    /// The next chunk of the host. `is_extra`: the body can do without this range, so that it is not asked for twice where it is refused.
    fn poll_chunk(&mut self, cx: &mut Context, is_extra: bool) -> Poll<Option<Result<Bytes, RangeError>>> {
        loop {
            let chunk = ready!(self.chunks.poll_next_unpin(cx));
            match chunk {
                Some(Ok(chunk)) => {
                    self.started.get_or_insert_with(Instant::now);
                    self.next += chunk.len() as u64;
                    return Poll::Ready(Some(Ok(chunk)));
                }
                Some(Err(error)) if !self.is_repeated && (self.started.is_some() || !is_extra) => {
                    let place = &self.client.origin.place;
                    tracing::debug!(%place, %error, next = self.next, left = ?self.left, "a range failed");
                    self.is_repeated = true;
                    self.chunks = Fetching::chunks(&self.client, self.next..self.left.end);
                }
                end => return Poll::Ready(end),
            }
        }
    }

    fn has_failed(&self) -> bool {
        self.arrived.back().is_some_and(Result::is_err)
    }

    /// Takes in the chunks that are here, while the budget has room. Where they are the last of a grown connection: how long it was
    /// silent, and under way.
    fn fill(&mut self, cx: &mut Context, budget: &Budget, is_extra: bool) -> Option<(Duration, Duration)> {
        while !self.has_ended {
            if let Some(chunk) = self.uncharged.take() {
                match budget.try_reserve(chunk.len()) {
                    Some(reservation) => self.arrived.push_back(Ok(reservation.attach(chunk))),
                    None => {
                        self.uncharged = Some(chunk);
                        return None;
                    }
                }
            }
            match self.poll_chunk(cx, is_extra) {
                Poll::Pending => return None,
                Poll::Ready(Some(Ok(chunk))) => self.uncharged = Some(chunk),
                Poll::Ready(end) => {
                    self.has_ended = true;
                    self.arrived.extend(end);
                    let started = self.started.filter(|_| !self.is_early)?;
                    return Some((started - self.begun, self.begun.elapsed()));
                }
            }
        }
        None
    }

    /// The next bytes, from `at` on: the body may have brought the first of them.
    fn poll_next(&mut self, cx: &mut Context, at: u64) -> Poll<Result<Bytes, RangeError>> {
        loop {
            let mut chunk = match self.arrived.pop_front().or_else(|| self.uncharged.take().map(Ok)) {
                Some(chunk) => chunk?,
                None => ready!(self.poll_chunk(cx, false)).unwrap_or(Err(RangeError::Other))?,
            };
            let known = at.saturating_sub(self.left.start).min(chunk.len() as u64);
            self.left.start += chunk.len() as u64;
            // At most the chunk's length.
            chunk.advance(known as usize);
            if !chunk.is_empty() {
                return Poll::Ready(Ok(chunk));
            }
        }
    }
}

/// A body, and the ranges that follow it.
pub(super) struct Ranges {
    client: Arc<RangeClient>,
    budget: Budget,
    /// The first byte that is not wanted yet.
    demand: watch::Receiver<u64>,
    /// The next byte to hand on.
    at: u64,
    /// Until the first range has arrived.
    body: Option<Chunks>,
    round_trip: Duration,
    /// Bytes and time of the body while it is measured.
    measured: (u64, Duration),
    /// Ranges under way at once; `None` before it is measured.
    width: Option<usize>,
    /// Of the latest ranges, in the mean: how long a connection was silent, and at work with it.
    pace: Option<(Duration, Duration)>,
    /// Behind the last byte that was asked for in a range.
    asked: u64,
    /// In order, without a hole.
    ranges: VecDeque<InFlight>,
    /// Ranges that were handed on, until their connections are back.
    handed_on: Vec<Chunks>,
}

impl Ranges {
    /// `body` brings the version from the byte `from` on; its head was here `round_trip` after the request was sent.
    pub(super) fn start(
        client: RangeClient,
        budget: Budget,
        demand: watch::Receiver<u64>,
        from: u64,
        body: Box<Body>,
        round_trip: Duration,
    ) -> Ranges {
        let next = |mut body: Box<Body>| async move { Ok(body.chunk().await?.map(|chunk| (chunk, body))) };
        Ranges {
            client: Arc::new(client),
            budget,
            demand,
            at: from,
            body: Some(Box::pin(stream::try_unfold(body, next))),
            round_trip,
            measured: (0, round_trip),
            width: None,
            pace: None,
            asked: from,
            ranges: VecDeque::new(),
            handed_on: Vec::new(),
        }
    }

    /// The next bytes, as soon as they are wanted and here; `None` at the end. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, RangeError> {
        let mut demand = self.demand.clone();
        let (length, silence) = (self.client.origin.length, self.client.silence);
        while self.at < length {
            let wanted = (*demand.borrow_and_update()).min(length);
            self.begin(wanted);
            if self.at >= wanted {
                // The download is gone, and its readers with it.
                demand.changed().await.map_err(|_| RangeError::Silent)?;
                continue;
            }
            let begun = Instant::now();
            let can_do_without_body = self.body.is_some() && !self.ranges.is_empty();
            let chunk = tokio::select! {
                biased;
                chunk = poll_fn(|cx| self.poll_next(cx)) => chunk?,
                Ok(()) = demand.changed() => continue,
                () = sleep(silence), if can_do_without_body => {
                    self.replace_body();
                    continue;
                }
            };
            self.at += chunk.len() as u64;
            self.measure(chunk.len() as u64, begun.elapsed());
            return Ok(Some(chunk));
        }
        Ok(None)
    }

    /// Only the time that is spent waiting counts: a reader may be slow.
    fn measure(&mut self, bytes: u64, took: Duration) {
        if self.width.is_none() {
            self.measured = (self.measured.0 + bytes, self.measured.1 + took);
            if self.measured.0 >= MEASURED {
                let is_growing = is_growing(self.round_trip, self.measured.1);
                // One connection fewer than the host may have: one of an earlier range may still be open.
                let most = self.client.client.connections().saturating_sub(1).clamp(1, MOST);
                self.width = Some(if is_growing { most } else { 1 });
                self.asked = (self.at + MEANWHILE).next_multiple_of(BLOCK);
                tracing::debug!(place = %self.client.origin.place, width = ?self.width, "parallel ranges");
            }
        }
    }

    /// Drops ranges from `spec` on, and asks for those before it.
    fn begin(&mut self, wanted: u64) {
        while self.ranges.front().is_some_and(|first| first.left.is_empty()) {
            let first = self.ranges.pop_front().filter(|first| !first.has_ended);
            self.handed_on.extend(first.map(|first| first.chunks));
        }
        while self.ranges.back().is_some_and(|last| last.left.start >= wanted) {
            self.asked = self.ranges.pop_back().map_or(self.asked, |last| last.left.start);
        }
        let Some(width) = self.width.filter(|width| self.body.is_none() || *width > 1) else { return };
        if self.body.is_none() && self.ranges.is_empty() {
            self.asked = self.at;
        }
        while self.asked < wanted && (self.is_needed() || self.has_room(width)) {
            let end = (self.asked + self.range_length(width, wanted)).min(self.client.origin.length);
            let range = InFlight::new(&self.client, self.asked..end, self.body.is_some());
            self.ranges.push_back(range);
            self.asked = end;
        }
    }

    /// The first ranges share what is wanted, so that all their connections grow together.
    fn range_length(&self, width: usize, wanted: u64) -> u64 {
        match self.body {
            Some(_) => {
                let share = (wanted - self.asked) / (width - self.under_way()) as u64;
                share.next_multiple_of(BLOCK).clamp(SHORT_RANGE, RANGE)
            }
            None => RANGE,
        }
    }

    /// The body is silent while others arrive: what it has not brought before the first range is a range too.
    fn replace_body(&mut self) {
        self.body = None;
        if let Some(first) = self.ranges.front().filter(|first| first.left.start > self.at) {
            let range = InFlight::new(&self.client, self.at..first.left.start, false);
            self.ranges.push_front(range);
        }
    }

    /// Whether nothing else brings the next byte.
    fn is_needed(&self) -> bool {
        self.body.is_none() && self.ranges.is_empty()
    }

    fn under_way(&self) -> usize {
        self.ranges.iter().filter(|range| !range.has_ended).count() + self.handed_on.len()
    }

    /// Whether one more range may be under way. A host that does not answer is asked for few; where the body arrives it does.
    fn has_room(&self, width: usize) -> bool {
        let answered = self.ranges.iter().filter(|range| range.started.is_some()).count();
        let is_full = self.pace.is_some_and(|(silent, whole)| silent * MOSTLY_AT_WORK < whole);
        let width = if is_full { width.min(MOST_OF_A_FULL_LINE) } else { width };
        let is_answering = self.body.is_some() || self.ranges.len() - answered < 2 + 2 * answered;
        self.under_way() < width && is_answering && self.budget.has_room(RANGE as usize)
    }

    fn poll_next(&mut self, cx: &mut Context) -> Poll<Result<Bytes, RangeError>> {
        self.handed_on.retain_mut(|chunks| chunks.poll_next_unpin(cx).is_pending());
        let has_body = self.body.is_some();
        for range in self.ranges.iter_mut().skip(usize::from(!has_body)) {
            if let Some((silent, whole)) = range.fill(cx, &self.budget, has_body) {
                let (mean_silent, mean_whole) = self.pace.unwrap_or((silent, whole));
                self.pace = Some(((3 * mean_silent + silent) / 4, (3 * mean_whole + whole) / 4));
            }
        }
        if self.body.is_some() {
            self.hand_over();
        }
        if let Some(body) = &mut self.body {
            return body.poll_next_unpin(cx).map(|chunk| chunk.unwrap_or(Err(RangeError::Other)));
        }
        match self.ranges.front_mut() {
            Some(first) => first.poll_next(cx, self.at),
            None => Poll::Ready(Err(RangeError::Other)),
        }
    }

    /// The body ends where the first range has arrived. Where a range is refused, or the body is faster, it goes on alone.
    fn hand_over(&mut self) {
        let is_overtaken = self.ranges.front().is_some_and(|first| first.left.end <= self.at);
        if is_overtaken || self.ranges.iter().any(InFlight::has_failed) {
            tracing::debug!(place = %self.client.origin.place, is_overtaken, "the body goes on alone");
            self.ranges.clear();
            self.width = Some(1);
        }
        if self.ranges.front().is_some_and(|first| first.left.start <= self.at && first.started.is_some()) {
            self.body = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_or_slow_line_is_filled_by_one_body() {
        let grows = |round_trip, took| is_growing(Duration::from_millis(round_trip), Duration::from_millis(took));
        assert!(grows(40, 240) && grows(150, 1000), "its connection grows");
        assert!(grows(40, 380), "its window is 64 KiB");
        assert!(!grows(40, 450), "10 Mbit/s");
        assert!(!grows(2, 12), "near");
        assert!(grows(2000, 2100), "a server that takes long before each answer");
    }
}
