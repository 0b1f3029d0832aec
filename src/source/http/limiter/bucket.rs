//! The token bucket of a bounded rate: what the person has set, what the host wants, and what its refusals have taught. Pure: the caller passes the
//! time.

use super::window::{LimitStanding, LimitWindow};
use crate::source::http::announced::AnnouncedLimits;
use std::time::{Duration, Instant};

/// A host that wants more time between two requests is given this much.
const INTERVAL_LIMIT: Duration = Duration::from_secs(60);

/// A learnt interval shrinks so often, by a fifth, down to the least one.
const GROWTH: Duration = Duration::from_secs(10);
const LEAST_INTERVAL: Duration = Duration::from_millis(10);

/// The rate that a refusal halves is that of so long a time at most, and of so long at least.
const MEASURED: Duration = Duration::from_secs(60);
const BURST: Duration = Duration::from_secs(1);
/// Fewer requests show no rate: the host is out of order, or bears fewer at a time.
const SHOWS_A_RATE: u32 = 32;

/// The first pause after a refusal without a word of when to ask again; it doubles with each in a row.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_LIMIT: Duration = Duration::from_secs(8);

/// A bucket of one second's tokens, kept as a schedule: each token moves it on by one interval. A host's window bounds it as well.
#[derive(Debug)]
pub(super) struct Bucket {
    /// The interval of `rate=`.
    configured: Duration,
    /// The slower one of `rate=` and `Crawl-delay`. Zero: the rate is unbounded.
    interval: Duration,
    /// When the next token would come to a bucket that is never full.
    next: Option<Instant>,
    window: Option<LimitWindow>,
    /// Requests that may count in the window, and have no answer.
    unanswered: u64,
    learnt: Learnt,
}

/// Lessons of refusals that name no limit.
#[derive(Debug, Default)]
struct Learnt {
    interval: Duration,
    /// When it was changed.
    changed: Option<Instant>,
    /// Tokens taken since then.
    measured: Option<(Instant, u32)>,
    /// Refusals without another answer between them.
    refusals: u32,
}

impl Bucket {
    /// `rate` requests a second; unbounded for `None`.
    pub(super) fn new(rate: Option<f64>) -> Bucket {
        let rate = rate.filter(|rate| *rate > 0.0);
        let interval = rate.and_then(|rate| Duration::try_from_secs_f64(1.0 / rate).ok()).unwrap_or_default();
        let learnt = Learnt::default();
        Bucket { configured: interval, interval, next: None, window: None, unanswered: 0, learnt }
    }

    /// The host's own interval, or zero where it has withdrawn that. The slower of this and `rate=` holds.
    pub(super) fn slow_down(&mut self, interval: Duration) {
        self.interval = self.configured.max(interval.min(INTERVAL_LIMIT));
    }

    fn interval(&self) -> Duration {
        self.interval.max(self.learnt.interval)
    }

    /// The time of the next token; not after `now` where one is here. `is_ahead`: no reader waits for it.
    pub(super) fn next(&self, is_ahead: bool, now: Instant) -> Instant {
        let scheduled = self.next.filter(|_| !self.interval().is_zero()).unwrap_or(now);
        self.window.as_ref().map_or(scheduled, |it| it.next(is_ahead, self.unanswered, now).max(scheduled))
    }

    /// Takes the next token, which is here.
    pub(super) fn take(&mut self, now: Instant) {
        self.learnt.take(now);
        let burst = Duration::from_secs(1).saturating_sub(self.interval());
        let earliest = now.checked_sub(burst).unwrap_or(now);
        self.next = Some(self.next.map_or(earliest, |next| next.max(earliest)) + self.interval());
        if let Some(window) = &mut self.window {
            window.take(now);
        }
        self.unanswered += 1;
    }

    /// The answer to a request that took a token came, or never will (`None`). It is a refusal only where [`Bucket::refused`] follows.
    pub(super) fn answered(&mut self, answer: Option<(u16, Option<AnnouncedLimits>)>, now: Instant) {
        self.unanswered = self.unanswered.saturating_sub(1);
        match answer {
            Some((_, Some(announced))) => {
                self.window.get_or_insert_with(|| LimitWindow::new(now)).announce(&announced, now);
            }
            // A refusal says nothing of the window that follows.
            Some((429 | 503, None)) => return,
            _ if self.window.as_mut().is_some_and(|window| !window.spend(now)) => self.window = None,
            _ => {}
        }
        if answer.is_some_and(|(status, _)| !matches!(status, 429 | 503)) {
            self.learnt.refusals = 0;
        }
    }

    /// The host has refused a request, and asks for this pause, if for any.
    pub(super) fn refused(&mut self, pause: Option<Duration>, now: Instant) {
        let window = self.window.get_or_insert_with(|| LimitWindow::new(now));
        let is_held = window.is_exhausted(0, now);
        let until = now + pause.unwrap_or_else(|| self.learnt.pause());
        // Those that were under way together count once.
        if !is_held {
            let is_limited = window.standing(0, now).limit.is_some();
            self.learnt.refuse((!is_limited).then_some(self.interval), now);
        }
        if !is_held || pause.is_some() {
            window.refuse(until, pause.is_some(), now);
        }
    }

    /// The end of a pause that the host asked for.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.window.as_ref().and_then(LimitWindow::paused_until)
    }

    /// The host is asked again at once.
    pub(super) fn end_pause(&mut self, now: Instant) {
        if let Some(window) = &mut self.window {
            window.end_pause(now);
        }
    }

    /// Returns whether nothing is left before the end of the window.
    pub(super) fn is_exhausted(&self, now: Instant) -> bool {
        self.window.as_ref().is_some_and(|it| it.is_exhausted(self.unanswered, now))
    }

    /// Returns whether a request that waits for a token knows why: the person or the host has said so.
    pub(super) fn is_known(&self, now: Instant) -> bool {
        self.window.as_ref().is_none_or(|it| it.is_announced || it.ends() <= now)
    }

    /// The window of the host, for a person.
    pub(super) fn standing(&self, now: Instant) -> LimitStanding {
        self.window.as_ref().map(|it| it.standing(self.unanswered, now)).unwrap_or_default()
    }

    /// The length of the host's window, where the host holds requests.
    pub(super) fn window(&self) -> Option<Duration> {
        self.window.as_ref().map(LimitWindow::length)
    }

    /// Returns whether it has a token, and the host has not asked for more time between two.
    pub(super) fn is_at_rest(&self, now: Instant) -> bool {
        let is_over = self.window.as_ref().is_none_or(|it| it.ends() <= now);
        is_over && self.interval == self.configured && self.next(false, now) <= now
    }
}

impl Learnt {
    fn take(&mut self, now: Instant) {
        let since = |at: Option<Instant>| at.map_or(Duration::MAX, |at| now.saturating_duration_since(at));
        if !self.interval.is_zero() && self.refusals == 0 && since(self.changed) >= GROWTH {
            let interval = self.interval.mul_f64(0.8);
            self.interval = if interval < LEAST_INTERVAL { Duration::ZERO } else { interval };
            self.changed = Some(now);
        }
        match &mut self.measured {
            Some((begun, taken)) if now.saturating_duration_since(*begun) < MEASURED => *taken += 1,
            measured => *measured = Some((now, 1)),
        }
    }

    fn pause(&self) -> Duration {
        PAUSE.saturating_mul(1 << self.refusals.min(16)).min(PAUSE_LIMIT)
    }

    /// Halves the rate, if the host has answered enough since the last refusal. `least` is the interval that holds anyway; `None`: the host has
    /// announced a limit, so that no rate is learnt.
    fn refuse(&mut self, least: Option<Duration>, now: Instant) {
        if let Some(least) = least.filter(|_| self.refusals == 0) {
            let measured = self.measured.take().filter(|(_, taken)| *taken >= SHOWS_A_RATE);
            if let Some((begun, taken)) = measured {
                let measured = now.saturating_duration_since(begun).max(BURST) / taken;
                let before = measured.max(self.interval).max(least);
                self.interval = before.saturating_mul(2).min(INTERVAL_LIMIT);
                self.changed = Some(now);
            }
        }
        self.refusals = self.refusals.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes tokens as they come until `until`; when they came.
    fn taken(bucket: &mut Bucket, mut now: Instant, until: Instant) -> Vec<Duration> {
        let (begun, mut times) = (now, Vec::new());
        loop {
            now = now.max(bucket.next(false, now));
            if now > until {
                return times;
            }
            bucket.take(now);
            times.push(now - begun);
        }
    }

    #[test]
    fn a_burst_is_one_seconds_worth() {
        let (mut bucket, now) = (Bucket::new(Some(4.0)), Instant::now());
        let times = taken(&mut bucket, now, now + Duration::from_secs(1));
        assert_eq!(times.iter().filter(|time| time.is_zero()).count(), 4);
        assert_eq!(times[4..], [250, 500, 750, 1000].map(Duration::from_millis));
        let later = now + Duration::from_secs(100);
        assert_eq!(taken(&mut bucket, later, later).len(), 4, "a rest fills it once");
    }

    #[test]
    fn slow_rates_have_no_burst() {
        let (mut bucket, now) = (Bucket::new(Some(0.5)), Instant::now());
        assert_eq!(taken(&mut bucket, now, now + Duration::from_secs(5)), [0, 2, 4].map(Duration::from_secs));
    }

    #[test]
    fn a_host_may_be_slower_than_set_but_not_faster() {
        let (mut bucket, now) = (Bucket::new(Some(2.0)), Instant::now());
        bucket.slow_down(Duration::from_secs(3));
        assert_eq!(taken(&mut bucket, now, now + Duration::from_secs(6)), [0, 3, 6].map(Duration::from_secs));
        bucket.slow_down(Duration::from_millis(1));
        let later = now + Duration::from_secs(100);
        assert_eq!(taken(&mut bucket, later, later).len(), 2);
        bucket.slow_down(Duration::from_secs(1 << 20));
        assert_eq!(bucket.interval, INTERVAL_LIMIT);
    }

    #[test]
    fn without_a_rate_tokens_are_always_here() {
        let (mut bucket, now) = (Bucket::new(None), Instant::now());
        (0..1000).for_each(|_| bucket.take(now));
        assert_eq!(bucket.next(false, now), now);
    }

    /// A host that allows 60 requests a minute, and says only that it refuses. How many it refuses in each minute.
    #[test]
    fn an_unannounced_limit_is_learnt_from_refusals() {
        let start = Instant::now();
        let (mut bucket, mut now) = (Bucket::new(None), start);
        let (mut served, mut refused) = ([0; 20], [0; 20]);
        loop {
            now = now.max(bucket.next(false, now));
            let minute = (now - start).as_secs() as usize / 60;
            if minute >= served.len() {
                break;
            }
            bucket.take(now);
            now += Duration::from_millis(10);
            if served[minute] < 60 {
                served[minute] += 1;
                bucket.answered(Some((200, None)), now);
            } else {
                refused[minute] += 1;
                let left = start + (minute as u32 + 1) * Duration::from_secs(60) - now;
                bucket.answered(Some((429, None)), now);
                bucket.refused(Some(left), now);
            }
        }
        assert!(refused.iter().all(|refused| *refused <= 1), "{refused:?}");
        assert!(served.iter().all(|served| *served > 50), "{served:?}");
    }

    #[test]
    fn refusals_in_a_row_halve_a_rate_once_and_lengthen_the_pause() {
        let (mut bucket, mut now) = (Bucket::new(None), Instant::now());
        (0..40).for_each(|_| bucket.take(now));
        (0..40).for_each(|_| bucket.answered(Some((200, None)), now));
        for pause in [1, 2, 4, 8, 8] {
            bucket.take(now);
            bucket.answered(Some((429, None)), now);
            bucket.refused(None, now);
            bucket.refused(None, now);
            assert_eq!(bucket.next(false, now), now + Duration::from_secs(pause));
            assert!(!bucket.is_known(now), "the host has not said so");
            now += Duration::from_secs(pause);
        }
        assert_eq!(bucket.learnt.interval, Duration::from_secs(1) / 41 * 2);
    }
}
