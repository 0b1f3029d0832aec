//! A large body in parallel ranges, each written to the block map where it belongs.
//!
//! A connection brings at most its window in a round trip, so several bring several times as much of a line that one does not fill.
//! Whether one fills it shows at the beginning of the body that was requested first ([`is_growing`]), and again while ranges arrive: where
//! they fill the line, fewer are enough. The body continues until it meets a range that arrives. A server that refuses a range loses
//! nothing by that: the body continues alone.
//!
//! Ranges are requested under the body's strong ETag, and begin only before what readers want of the download. Each holds a reservation for
//! the blocks that it receives and writes. Only the one that comes next goes without: neither a silent host nor another download can keep it.

use super::extent::{ExtentError, ExtentFetch};
use super::in_flight::Download;
use super::object::Origin;
use crate::content::fixity::BLOCK;
use crate::content::{Content, FetchSpec};
use crate::platform::memory_budget::Reservation;
use crate::source::http::Way;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

/// Blocks of a range, at most, and of one of the first ranges, at least.
const RANGE: u64 = 32;
const SHORT_RANGE: u64 = 8;

/// Ranges of one body under way at once, at most. Their connections begin together: one that begins later grows while all wait for it.
const MOST: usize = 14;

/// Most ranges under way where the line is full: their connections are silent for less than one part in [`MOSTLY_AT_WORK`] of their time.
/// More ranges lose packets then, and all wait for the first.
const MOST_OF_A_FULL_LINE: usize = 8;
const MOSTLY_AT_WORK: u32 = 4;

/// Bytes of the body that are measured, and the round trips that they may take. A connection that grows brings them in six, one that is
/// held to 64 KiB a round trip in nine, and a line that brings less gains nothing by several.
const MEASURED: u64 = 512 << 10;
const ROUND_TRIPS: u32 = 10;

/// Round trip below which one connection fills the line.
const NEAR: Duration = Duration::from_millis(3);

/// Bytes that the body brings while the connections of the first ranges grow.
const MEANWHILE: u64 = 8 << 20;

/// The range that comes next may fail this many times before the attempt does. As many may be answered with another version: each such
/// answer may be the whole.
const FAILURES: u32 = 2;

/// Ranges that may fail one after the other before the attempt does: all that are under way may be cut at once.
const FAILURES_IN_A_ROW: usize = MOST;

/// Returns whether several connections bring more than one: the first [`MEASURED`] bytes `took` so long, a `round_trip` included.
fn is_growing(round_trip: Duration, took: Duration) -> bool {
    round_trip > NEAR && took < ROUND_TRIPS * round_trip
}

/// One range under way.
struct InFlight {
    task: AbortHandle,
    blocks: Range<u64>,
    /// Requested while the body arrives: how long its connection, which grows, is at work says nothing of the line.
    is_early: bool,
    begun: Instant,
    started: Arc<OnceLock<Instant>>,
    /// For one block that arrives and one that is written; `None` for the range that comes next.
    _memory: Option<Reservation>,
}

impl InFlight {
    fn has_started(&self) -> bool {
        self.started.get().is_some()
    }
}

/// The ranges of one attempt. Dropped they end.
pub(super) struct Ranges {
    content: Arc<Content>,
    spec: FetchSpec,
    download: Arc<Download>,
    attempt: u64,
    origin: Origin,
    tasks: JoinSet<Result<(), ExtentError>>,
    in_flight: Vec<InFlight>,
    /// Bytes and time of the body while it is measured; the time begins with its request.
    measured: (u64, Duration),
    /// Round trip of the body's request.
    round_trip: Duration,
    /// Ranges under way at once; `None` before it is measured.
    width: Option<usize>,
    /// Mean times of the latest ranges: how long a connection was silent, and at work with it.
    pace: Option<(Duration, Duration)>,
    /// Ranges that failed since one arrived.
    failures: usize,
    /// Ranges that were answered with another version, or another range.
    refusals: u32,
    /// The block that comes next when a range of it failed, and how often that was.
    failed_at: (u64, u32),
    /// The body brings what comes next.
    has_body: bool,
    /// A range was begun.
    has_begun: bool,
    /// Behind the last block that was requested.
    asked: u64,
}

impl Ranges {
    /// Ranges of a body whose head was here `round_trip` after the request was sent. None begins before the body is measured.
    pub(super) fn new(
        content: &Arc<Content>,
        spec: &FetchSpec,
        download: &Arc<Download>,
        origin: Origin,
        round_trip: Duration,
    ) -> Ranges {
        Ranges {
            content: Arc::clone(content),
            spec: spec.clone(),
            attempt: download.state().attempt(),
            download: Arc::clone(download),
            origin,
            tasks: JoinSet::new(),
            in_flight: Vec::new(),
            measured: (0, round_trip),
            round_trip,
            width: None,
            pace: None,
            failures: 0,
            refusals: 0,
            failed_at: (0, 0),
            has_body: true,
            has_begun: false,
            asked: 0,
        }
    }

    /// The body brought so many bytes and is at `received` now. Only the time that is spent waiting counts: a reader may be slow.
    pub(super) fn measure(&mut self, bytes: u64, took: Duration, received: u64) {
        if self.width.is_some() {
            return;
        }
        self.measured = (self.measured.0 + bytes, self.measured.1 + took);
        if self.measured.0 >= MEASURED {
            let is_growing = is_growing(self.round_trip, self.measured.1);
            // One connection fewer than the host may have: one of an earlier range may still be open.
            let most = self.content.client.connections().saturating_sub(1).clamp(1, MOST);
            self.width = Some(if is_growing { most } else { 1 });
            self.asked = (received + MEANWHILE).div_ceil(BLOCK);
            tracing::debug!(place = %self.origin.place, width = ?self.width, "parallel ranges");
        }
    }

    /// The longest wait for the body, where ranges can do without it.
    pub(super) fn silence(&self) -> Option<Duration> {
        (!self.in_flight.is_empty()).then(|| self.content.range_silence())
    }

    /// Returns whether the body, which is at `received`, is not needed any more: the next block is here, or a range begins with it. Where a
    /// range was refused, or the body is faster, the ranges end and the body continues alone.
    pub(super) fn replace_body(&mut self, received: u64) -> Result<bool, ExtentError> {
        let block = received / BLOCK;
        let mut is_alone = self.in_flight.iter().any(|range| range.blocks.end <= block && !range.has_started());
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            match self.end(ended) {
                Err(ExtentError::Refused | ExtentError::Cut(_)) => is_alone = true,
                ended => ended?,
            }
        }
        if is_alone {
            tracing::debug!(place = %self.origin.place, received, "the download continues without ranges");
            self.tasks.abort_all();
            self.in_flight.clear();
            (self.width, self.has_begun) = (Some(1), false);
        }
        let arrives = |range: &InFlight| range.blocks.start == block && range.has_started();
        Ok(self.has_begun && (self.in_flight.iter().any(arrives) || self.download.state().has_block(block)))
    }

    /// From now on ranges alone bring the version.
    pub(super) fn leave_body(&mut self) {
        self.has_body = false;
    }

    /// Ends ranges from the byte `wanted` on, and begins those before it, of which `frontier` bytes are here.
    pub(super) fn begin(&mut self, frontier: u64, wanted: u64) {
        let has_body = self.has_body;
        let end = self.origin.length.min(self.download.state().takes_until());
        let (wanted, end) = (wanted.min(end).div_ceil(BLOCK), end.div_ceil(BLOCK));
        let asked = &mut self.asked;
        self.in_flight.retain(|range| {
            let is_wanted = range.blocks.start < wanted;
            if !is_wanted {
                range.task.abort();
                *asked = range.blocks.start.min(*asked);
            }
            is_wanted
        });
        let Some(width) = self.width.filter(|width| !has_body || *width > 1) else { return };
        let next = frontier / BLOCK;
        let is_needed = !has_body && next < wanted && !self.download.state().is_coming(next..next + 1);
        self.asked = if is_needed { next } else { self.asked.max(next) };
        while self.asked < wanted {
            let memory = if self.has_room(width) { self.content.memory.try_reserve(2 * BLOCK as usize) } else { None };
            if memory.is_none() && !(is_needed && self.asked == next) {
                return;
            }
            // The first ranges share what is wanted, so that all their connections grow together.
            let blocks = match has_body {
                true => ((wanted - self.asked) / (width - self.in_flight.len()) as u64).clamp(SHORT_RANGE, RANGE),
                false => RANGE,
            };
            let within = self.asked..end;
            let Some(blocks) = self.download.state().begin_missing(self.attempt, within, wanted, blocks) else {
                self.asked = wanted;
                return;
            };
            self.asked = blocks.end;
            self.has_begun = true;
            self.spawn(blocks, memory);
        }
    }

    fn spawn(&mut self, blocks: Range<u64>, memory: Option<Reservation>) {
        let (extent, priority) = ((self.attempt, blocks.clone()), self.download.priority());
        let fetch = ExtentFetch::new(&self.content, &self.spec, &self.download, extent, Way::Ranges, priority);
        let (started, begun) = (fetch.started(), Instant::now());
        let task = self.tasks.spawn(fetch.run_for_stream(self.origin.clone()));
        self.in_flight.push(InFlight { task, blocks, is_early: self.has_body, begun, started, _memory: memory });
    }

    /// Returns whether one more range may be under way. A host that does not answer is asked for few; where the body arrives it does.
    fn has_room(&self, width: usize) -> bool {
        let answered = self.in_flight.iter().filter(|range| range.has_started()).count();
        let is_full = self.pace.is_some_and(|(silent, whole)| silent * MOSTLY_AT_WORK < whole);
        let width = if is_full { width.min(MOST_OF_A_FULL_LINE) } else { width };
        let under_way = self.in_flight.len();
        under_way < width && (self.has_body || under_way - answered < 2 + 2 * answered)
    }

    /// A range failed. Returns whether readers wait for it and it failed too often.
    fn is_given_up(&mut self, blocks: &Range<u64>) -> bool {
        let next = self.download.state().frontier() / BLOCK;
        if self.has_body || !blocks.contains(&next) {
            return false;
        }
        let before = if self.failed_at.0 == next { self.failed_at.1 } else { 0 };
        self.failed_at = (next, before + 1);
        before >= FAILURES
    }

    /// Waits until a range has ended; for ever where none is under way. An error: too many failed. May be dropped while it waits.
    pub(super) async fn ended(&mut self) -> Result<(), ExtentError> {
        match self.tasks.join_next_with_id().await {
            Some(ended) => self.end(ended),
            None => std::future::pending().await,
        }
    }

    fn end(&mut self, ended: Result<(Id, Result<(), ExtentError>), JoinError>) -> Result<(), ExtentError> {
        let (id, fetched) = match ended {
            Ok(ended) => ended,
            Err(error) if error.is_cancelled() => return Ok(()),
            Err(_) => return Err(ExtentError::Interrupted),
        };
        let Some(ended) = self.in_flight.iter().position(|range| range.task.id() == id) else { return Ok(()) };
        let InFlight { blocks, is_early, begun, started, .. } = self.in_flight.swap_remove(ended);
        let started = started.get().copied();
        if let Some(started) = started.filter(|_| !is_early) {
            let (silent, whole) = (started - begun, begun.elapsed());
            let (mean_silent, mean_whole) = self.pace.unwrap_or((silent, whole));
            self.pace = Some(((3 * mean_silent + silent) / 4, (3 * mean_whole + whole) / 4));
        }
        match fetched {
            Ok(()) => self.failures = 0,
            Err(error @ (ExtentError::Refused | ExtentError::Cut(_))) => {
                tracing::debug!(place = %self.origin.place, %error, ?blocks, "a range failed");
                self.failures += 1;
                self.refusals += u32::from(started.is_none() && matches!(error, ExtentError::Refused));
                // A host that refused it may refuse all, which the body, where it arrives, makes up for.
                let is_refused = (self.has_body && started.is_none()) || self.refusals > FAILURES;
                if is_refused || self.failures > FAILURES_IN_A_ROW || self.is_given_up(&blocks) {
                    return Err(error);
                }
                // What is missing of it is requested again when it comes next.
            }
            fetched => return fetched,
        }
        Ok(())
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
