//! A large body in stripes: one connection brings a window in a round trip, several bring several.
//!
//! The model. In a round trip r a connection brings at most its window W, so one brings min(W / r, B) bytes a second of a
//! line of B, and n bring min(n W / r, B). A range costs a request, that is a round trip in which its connection is silent:
//! of S bytes at b a second it is at work S / (S + b r) of the time. From that follows:
//!
//! - Below some windows, [`super::state::LARGE`], the round trips of new connections cost what they win.
//! - Where r is [`NEAR`] or less one connection fills the line, or this machine has enough to do with it.
//! - Where the beginning comes slower than [`FIRST`] in [`FAST`], without the round trips that it takes, the line is so slow that
//!   they count little. What comes of a new connection at once tells that it is not.
//! - A new connection brings ten packets, then twice as many each round trip. So all are made as soon as more is wanted than a look
//!   at the beginning ([`WORTH_OTHERS`]), and little that is wanted ahead of the reader is parted among all of them: they grow
//!   together. As long as they do their ranges are the longer the later they are asked for ([`growing`]), so that they end one
//!   after the other and what is here can be handed on, in order, while the others come.
//! - Else W and B are not known, but how long a range is silent of the time that it takes: [`Usual::lanes`].
//!
//! The body that was asked for first brings the beginning, until the range that it has reached is here. Ranges are asked for under
//! the body's strong ETag, and only as far as the download goes ([`Download::limit`]); each must be exactly what was asked for.
//! What they bring is held in memory until its turn: at most [`ALL_AT_ONCE`] ranges. All wait for the first: where it takes longer
//! than usual (a new connection, a lost packet) and half of those behind it are here, its rest is asked for anew. One that fails
//! ends them all: while the body is open it goes on alone, later the fetch asks for the rest in one.
//!
//! A connection of HTTP/1.1 ends with a body that is not read to its end, and a new one takes six round trips and more to bring
//! its first range, for which all others wait. So ranges are read to their end also where somebody else was faster; those alone
//! are broken off that no reader comes to any more.

use super::held::Origin;
use super::lanes::{SHORTEST, STRIPE, TELLING, Usual, growing, length};
use super::state::Download;
use crate::content::fixity::BLOCK;
use crate::content::{Content, ContentError};
use crate::document::Uri;
use crate::source::http::{Body, Priority, Request, Status, Way};
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// Less beyond what is here is one connection's: whoever looks at the first pages needs no others. Who reads half a MiB at once
/// has as much asked ahead.
const WORTH_OTHERS: u64 = 2 << 20;

/// So many of the first ranges' bytes beyond the beginning the body brings, and at least: its connection is two round trips older
/// than theirs. A test's connections are as fast from the beginning as they ever are.
const MEANWHILE: u64 = 2;
const MEANWHILE_LEAST: u64 = if cfg!(test) { STRIPE } else { SHORTEST };

/// Ranges under way or in memory at once, of all objects. The first of each may be under way twice.
const ALL_AT_ONCE: usize = 18;

/// So many of them what goes past the cache leaves to those whose ranges do not wait for readers.
const LEFT_TO_OTHERS: usize = 4;

/// Bytes of the beginning that tell how fast the line is, and those that come of a new connection at once.
const FIRST: u64 = 128 << 10;
const AT_ONCE: u64 = 8 << 10;

/// Round trips that a new connection takes for that behind its first bytes: it brings ten packets, then twice as many each time.
const ITS_ROUND_TRIPS: u32 = 3;

/// How long [`AT_ONCE`] and [`FIRST`] bytes take of a fast line, see the model. A test's server is as far away as the test needs
/// it, however busy the machine.
const FAST: [Duration; 2] =
    if cfg!(test) { [Duration::from_secs(3600); 2] } else { [Duration::from_millis(20), Duration::from_millis(300)] };

/// See the model.
const NEAR: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 3 });

/// Of so many pieces of a range that are here the others come soon: its connection is no more a new one.
const PIECES: usize = 3;

/// One part in so many of the time that a reader waits, a range may be silent.
const PATIENCE: u32 = 6;

/// Whether a slow range is to be asked for anew is looked at so often.
const LOOK: Duration = Duration::from_millis(20);

/// Whether the line is fast, as far as that is told by so many bytes of the beginning, which came `took` behind their head,
/// which came after `round_trip`. How long a server thinks is in that too, so no more of it counts than of the bytes.
fn is_fast(came: u64, took: Duration, round_trip: Duration, [at_once, first]: [Duration; 2]) -> Option<bool> {
    match came {
        AT_ONCE.. if took <= at_once => Some(true),
        FIRST.. => Some(took <= first + ITS_ROUND_TRIPS * round_trip.min(first)),
        _ => None,
    }
}

/// A body, and the ranges that follow it.
pub(super) struct Stripes {
    content: Arc<Content>,
    download: Arc<Download>,
    origin: Origin,
    /// From the request for the body to its head.
    round_trip: Duration,
    begun: Instant,
    /// Where the body begins.
    from: u64,
    /// The next byte to hand on.
    at: u64,
    /// Until its end, or until the first range has come.
    body: Option<Box<Body>>,
    /// Behind the last byte that was asked for in a range; `None` while there are none.
    asked: Option<u64>,
    /// In order, without gap.
    under_way: VecDeque<Stripe>,
    /// Requests for ranges under way, also for those that others were faster with: so many connections are busy.
    busy: Arc<AtomicUsize>,
    /// One was refused, or cut while somebody waited for it. Told before its connection is free.
    has_failed: Arc<AtomicBool>,
    usual: Arc<Usual>,
    /// Bytes of all ranges that were asked for.
    in_all: u64,
    /// A range is here: its connection is free.
    ended: Arc<Notify>,
    /// The line, see [`is_fast`].
    is_fast: Option<bool>,
}

/// One range under way.
struct Stripe {
    /// From the next byte to hand on.
    left: Range<u64>,
    attempt: Attempt,
    /// What was left of it when it was slow, over another connection: each byte is taken from where it comes first.
    anew: Option<Attempt>,
    begun: Instant,
    /// It is not asked for anew twice.
    was_asked_anew: bool,
    /// Others were faster.
    is_late: bool,
    /// Of [`ALL_AT_ONCE`], as long as it is under way or held.
    place: Place,
}

type Place = Arc<OwnedSemaphorePermit>;

/// One request for a range.
struct Attempt {
    /// The next byte that comes out of `pieces`.
    at: u64,
    pieces: UnboundedReceiver<Bytes>,
    task: AbortHandle,
    /// Told before `pieces` ends.
    has_failed: Arc<AtomicBool>,
}

impl Stripe {
    fn attempts(&self) -> impl Iterator<Item = &Attempt> {
        [&self.attempt].into_iter().chain(&self.anew)
    }

    /// It cannot be had.
    fn has_failed(&self) -> bool {
        self.attempts().all(|attempt| attempt.has_failed.load(Ordering::Relaxed))
    }

    /// All of it is here, or one of its attempts has failed.
    fn has_ended(&self) -> bool {
        self.attempts().any(|attempt| attempt.pieces.is_closed())
    }

    /// The next bytes; `None` where they cannot be had. May be dropped while it waits.
    async fn piece(&mut self) -> Option<Bytes> {
        loop {
            let (piece, is_second) = match &mut self.anew {
                None => (self.attempt.pieces.recv().await, false),
                Some(anew) => tokio::select! {
                    biased;
                    piece = self.attempt.pieces.recv() => (piece, false),
                    piece = anew.pieces.recv() => (piece, true),
                },
            };
            let Some(mut piece) = piece else {
                // What the one that failed would have brought, the other brings.
                let other = self.anew.take()?;
                if !is_second {
                    self.attempt = other;
                }
                continue;
            };
            let attempt = self.anew.as_mut().filter(|_| is_second).unwrap_or(&mut self.attempt);
            // Both began at `left.start`, or before, and what comes of them is contiguous.
            let from = attempt.at;
            attempt.at += piece.len() as u64;
            if attempt.at > self.left.start {
                piece.advance((self.left.start - from) as usize);
                self.left.start = attempt.at;
                return Some(piece);
            }
        }
    }
}

/// One of [`Stripes::busy`].
struct Busy(Arc<AtomicUsize>);

impl Busy {
    fn counted(all: &Arc<AtomicUsize>) -> Busy {
        all.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(all))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Stripe {
    fn drop(&mut self) {
        if !self.is_late && !self.left.is_empty() {
            self.attempts().for_each(|attempt| attempt.task.abort());
        }
    }
}

impl Stripes {
    /// `body` brings `origin` from the byte `from` on; its head came after `round_trip`.
    pub(super) fn new(
        content: &Arc<Content>,
        download: &Arc<Download>,
        origin: Origin,
        body: Box<Body>,
        from: u64,
        round_trip: Duration,
    ) -> Stripes {
        let now = Instant::now();
        Stripes {
            content: Arc::clone(content),
            download: Arc::clone(download),
            origin,
            round_trip,
            begun: now,
            from,
            at: from,
            body: Some(body),
            asked: None,
            under_way: VecDeque::new(),
            busy: Arc::default(),
            has_failed: Arc::default(),
            usual: Arc::default(),
            in_all: 0,
            ended: Arc::default(),
            is_fast: None,
        }
    }

    /// The next bytes of the version of `uri`; `None` at the end.
    pub(super) async fn chunk(&mut self, uri: &Uri) -> Result<Option<Bytes>, ContentError> {
        if self.at >= self.origin.length {
            return Ok(None);
        }
        let piece = loop {
            self.decide();
            self.hand_over();
            self.ask_ahead();
            if self.body.is_none() && self.at >= self.download.limit() {
                // Its reader has jumped away.
                return Ok(Some(Bytes::new()));
            }
            let Some(body) = &mut self.body else {
                break Some(self.striped().await.ok_or_else(|| ContentError::Stalled { uri: uri.clone() })?);
            };
            tokio::select! {
                biased;
                piece = body.chunk() => {
                    break piece.map_err(|cause| ContentError::Fetch { uri: uri.clone(), cause: Arc::new(cause) })?;
                }
                // It may be the one that the body is let go for, whose next bytes may be a round trip away.
                () = self.ended.notified() => {}
            }
        };
        if let Some(piece) = &piece {
            self.at += piece.len() as u64;
        }
        Ok(piece)
    }

    /// Whether what is handed on next comes, or is about to come, of ranges.
    pub(super) fn are_under_way(&self) -> bool {
        self.asked.is_some()
    }

    /// As soon as the beginning tells: whether ranges follow it.
    fn decide(&mut self) {
        if self.is_fast.is_none() {
            self.is_fast = match self.round_trip <= NEAR {
                true => Some(false),
                false => is_fast(self.at - self.from, self.begun.elapsed(), self.round_trip, FAST),
            };
        }
    }

    /// Where the first range begins, as soon as enough is wanted.
    fn first_range(&self, limit: u64) -> Option<u64> {
        let wanted = limit.saturating_sub(self.at);
        let meanwhile = (MEANWHILE * growing(wanted, self.in_all)).max(MEANWHILE_LEAST);
        (self.is_fast == Some(true) && self.body.is_some() && wanted >= WORTH_OTHERS)
            .then(|| (self.at + meanwhile).next_multiple_of(BLOCK).min(self.origin.length))
    }

    /// The body is let go when a range is here that begins where it is, or before. Until then nothing depends on the ranges.
    fn hand_over(&mut self) {
        if self.body.is_some() && self.is_fast == Some(true) && self.has_failed.load(Ordering::Relaxed) {
            tracing::debug!(place = %self.origin.place, "the body goes on alone: ranges of it cannot be had");
            self.under_way.clear();
            (self.asked, self.is_fast) = (None, Some(false));
        }
        while let Some(late) = self.under_way.front_mut().filter(|first| first.left.end <= self.at) {
            late.is_late = true;
            self.under_way.pop_front();
        }
        let is_here = |first: &Stripe| {
            let pieces = first.attempt.pieces.len();
            first.left.start <= self.at && (pieces >= PIECES || (pieces > 0 && first.has_ended()))
        };
        if self.under_way.front().is_some_and(is_here) {
            self.body = None;
        }
    }

    /// Lets go what no reader comes to any more, and asks for what they come to.
    fn ask_ahead(&mut self) {
        let limit = self.download.limit().min(self.origin.length);
        let Some(mut asked) = self.asked.or_else(|| self.first_range(limit)) else { return };
        while let Some(last) = self.under_way.back().filter(|last| last.left.start >= limit) {
            asked = last.left.start;
            self.under_way.pop_back();
        }
        // The body may have come further.
        asked = asked.max(self.at);
        // What is here waits in memory for its turn and needs no connection. Readers of other files find places.
        let here = self.under_way.iter().filter(|stripe| stripe.has_ended()).count();
        let mut busy = self.busy.load(Ordering::Acquire);
        // Of a range that cannot be had is told when it is its turn. While the body comes, that is at once.
        let is_over = match self.body {
            Some(_) => self.has_failed.load(Ordering::Relaxed),
            None => self.under_way.iter().any(Stripe::has_failed),
        };
        let all = (ALL_AT_ONCE - self.content.stripes.available_permits()).saturating_sub(here);
        let free = self.content.client.prefetch_permits(&self.origin.place).saturating_sub(all);
        let most = if is_over { 0 } else { self.usual.lanes().min(busy + free) };
        // What goes past the cache waits in memory for readers who may be slow.
        let left_to_others = if self.download.is_passing() { LEFT_TO_OTHERS } else { 0 };
        while busy < most && asked < limit && self.content.stripes.available_permits() > left_to_others {
            let Ok(place) = Arc::clone(&self.content.stripes).try_acquire_owned() else { break };
            // `asked` is below `limit`, and `at` not beyond `asked`.
            asked = self.ask(asked, self.next_length(), Arc::new(place));
            busy += 1;
        }
        self.asked = Some(asked);
    }

    /// Bytes of the next range. Connections that have grown are not asked for few, although their reader has jumped.
    fn next_length(&self) -> u64 {
        match self.usual.has_grown() {
            true => length(self.download.ahead()).max(TELLING),
            false => growing(self.download.ahead(), self.in_all),
        }
    }

    /// Asks for the range from `first` on; answers the byte behind it.
    fn ask(&mut self, first: u64, length: u64, place: Place) -> u64 {
        // At least a block, so behind `first`.
        let end = first + length;
        let end = (end - end % BLOCK).min(self.origin.length);
        self.in_all += end - first;
        let attempt = self.begin(first..end, &place);
        let begun = Instant::now();
        let stripe =
            Stripe { left: first..end, attempt, anew: None, begun, was_asked_anew: false, is_late: false, place };
        self.under_way.push_back(stripe);
        end
    }

    fn begin(&self, range: Range<u64>, place: &Place) -> Attempt {
        let (at, (sender, pieces)) = (range.start, mpsc::unbounded_channel());
        let (content, origin, usual) = (Arc::clone(&self.content), self.origin.clone(), Arc::clone(&self.usual));
        let (ended, place, busy) = (Arc::clone(&self.ended), Arc::clone(place), Busy::counted(&self.busy));
        let has_failed = Arc::<AtomicBool>::default();
        let failed = [Arc::clone(&self.has_failed), Arc::clone(&has_failed)];
        // As ranges of what is read: they were never put off for other readers.
        let awaited = Priority::Reader(self.download.urgency().demanded().unwrap_or_default());
        let task = self.content.runtime.spawn(async move {
            let brought = bring(content, origin, range, &sender, usual, awaited).await;
            // What is cut of a range that nobody waits for says nothing of the others.
            if brought == Brought::Nothing || (brought == Brought::Part && !sender.is_closed()) {
                failed.iter().for_each(|failed| failed.store(true, Ordering::Release));
            }
            drop(sender);
            drop((busy, place));
            ended.notify_one();
        });
        Attempt { at, pieces, task: task.abort_handle(), has_failed }
    }

    /// When the first range under way is slow, if it is not known to be.
    fn slow_at(&self) -> Option<Instant> {
        let first = self.under_way.front().filter(|first| !first.was_asked_anew)?;
        let usual = self.usual.all();
        (!usual.is_zero()).then(|| first.begun + usual)
    }

    /// Asks for what is left of the first range over another connection, if most of those behind it are here and one of theirs is
    /// free: a new one would be slow too.
    fn ask_anew(&mut self) {
        let here = self.under_way.iter().skip(1).filter(|stripe| stripe.has_ended()).count();
        let is_free = self.busy.load(Ordering::Acquire) < self.usual.lanes();
        if here == 0 || 2 * here < self.under_way.len() - 1 || !is_free {
            return;
        }
        let Some((left, place)) = self.under_way.front().map(|first| (first.left.clone(), Arc::clone(&first.place)))
        else {
            return;
        };
        let anew = self.begin(left, &place);
        if let Some(first) = self.under_way.front_mut() {
            (first.anew, first.was_asked_anew) = (Some(anew), true);
        }
    }

    /// The next bytes out of the ranges; `None` where they cannot be had.
    async fn striped(&mut self) -> Option<Bytes> {
        let patience = self.content.config.stall / PATIENCE;
        let silent_at = Instant::now() + patience;
        loop {
            if self.under_way.is_empty() {
                let place = Arc::clone(&self.content.stripes).acquire_owned();
                let place = tokio::time::timeout(patience, place).await.ok()?.ok()?;
                self.asked = Some(self.ask(self.at, self.next_length(), Arc::new(place)));
            }
            let slow_at = self.slow_at().map_or(silent_at, |slow_at| slow_at.max(Instant::now() + LOOK).min(silent_at));
            let stripe = self.under_way.front_mut()?;
            // The body may have brought the beginning of it.
            stripe.left.start = stripe.left.start.max(self.at);
            let piece = tokio::select! {
                biased;
                piece = stripe.piece() => piece?,
                () = self.download.turned() => {
                    self.ask_ahead();
                    match self.under_way.is_empty() {
                        true => return Some(Bytes::new()),
                        false => continue,
                    }
                }
                () = self.ended.notified() => {
                    self.ask_ahead();
                    continue;
                }
                () = tokio::time::sleep_until(slow_at.into()) => {
                    if Instant::now() >= silent_at {
                        return None;
                    }
                    self.ask_anew();
                    continue;
                }
            };
            if stripe.left.is_empty() {
                self.under_way.pop_front();
            }
            return Some(piece);
        }
    }
}

/// What came of a range.
#[derive(PartialEq)]
enum Brought {
    All,
    Part,
    /// It was refused.
    Nothing,
}

/// Sends the bytes of one range of the version that `origin` names, none beyond it.
async fn bring(
    content: Arc<Content>,
    origin: Origin,
    range: Range<u64>,
    sender: &UnboundedSender<Bytes>,
    usual: Arc<Usual>,
    awaited: Priority,
) -> Brought {
    let asked = Instant::now();
    let (first, last) = (origin.first + range.start, origin.first + range.end - 1);
    let mut request = Request::get(origin.place.clone(), content.head_budget(1));
    request.range = Some((first, Some(last)));
    request.if_range = Some(origin.etag.clone());
    request.way = Way::Ranges;
    request.priority = awaited;
    // Who refuses one of several is not asked for several again.
    request.repeats = false;
    let mut response = match content.client.send(request).await {
        Ok(response) => response,
        Err(error) => {
            tracing::debug!(place = %origin.place, %error, "a range cannot be fetched");
            return Brought::Nothing;
        }
    };
    let expected = Status::Partial { first, last, total: Some(origin.total) };
    if response.status != expected || response.etag.as_deref() != Some(&origin.etag) || response.encoding.is_some() {
        tracing::debug!(place = %origin.place, status = ?response.status, "a range of another version");
        return Brought::Nothing;
    }
    let silent = asked.elapsed();
    let mut left = range.end - range.start;
    let mut filling = content.buffers.lend();
    let mut is_wanted = true;
    while let Ok(Ok(Some(piece))) = tokio::time::timeout(content.config.stall, response.body.chunk()).await {
        let Some(rest) = left.checked_sub(piece.len() as u64) else { return Brought::Part };
        left = rest;
        let mut piece = &piece[..];
        while !piece.is_empty() && is_wanted {
            piece = filling.fill(piece);
            if filling.is_full() {
                let full = std::mem::replace(&mut filling, content.buffers.lend());
                is_wanted = sender.send(full.freeze()).is_ok();
            }
        }
    }
    let (bytes, took) = (range.end - range.start, asked.elapsed());
    if left == 0 {
        usual.note(bytes, silent, took);
    }
    if filling.len() > 0 {
        // Whoever waited for it may have gone.
        let _ = sender.send(filling.freeze());
    }
    if left == 0 { Brought::All } else { Brought::Part }
}

/// Leave for [`ALL_AT_ONCE`].
pub(in crate::content) fn places() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(ALL_AT_ONCE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_slow_whose_bytes_are_and_not_one_whose_round_trips_are() {
        let millis = Duration::from_millis;
        let is_fast =
            |came, took, round_trip| is_fast(came, millis(took), millis(round_trip), [millis(20), millis(300)]);
        assert_eq!(is_fast(AT_ONCE, 3, 150), Some(true), "its first packets came all at once");
        assert_eq!(is_fast(AT_ONCE - 1, 3, 150), None, "too few");
        assert_eq!(is_fast(AT_ONCE, 30, 40), None, "a line of 2.5 Mbit/s, or somebody else had the processor");
        assert_eq!([is_fast(FIRST, 120, 40), is_fast(FIRST, 450, 150)], [Some(true); 2], "three round trips");
        assert_eq!(is_fast(FIRST, 421, 40), Some(false), "2.5 Mbit/s");
        assert_eq!(is_fast(FIRST, 3000, 2000), Some(false), "a server that thinks for long before a line that is slow");
    }
}
