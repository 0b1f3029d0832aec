//! The window of a host that limits its requests: how many are left until when. Pure: the caller passes the time.

use crate::source::http::announced::AnnouncedLimits;
use std::time::{Duration, Instant};

/// Resets are announced in whole seconds, so that those of one window differ by as much.
const SLACK: Duration = Duration::from_millis(1500);

/// Time between two requests that go alone to learn whether the next window has begun. They go where no request is known to be left.
const PROBE: Duration = Duration::from_secs(1);

/// The window that the last answers told of. It begins with the first announcement, or with a pause that the host asks for.
///
/// Invariant: what answers tell never raises `left` within a window, because they come in any order.
#[derive(Debug)]
pub(super) struct LimitWindow {
    /// Requests in a window; 0 where that is not known.
    limit: u64,
    /// Requests left, those that are not answered yet included.
    left: u64,
    ends: Instant,
    /// The longest time to a reset that was announced, or the announced length.
    length: Duration,
    /// When the last request was sent, or the window was made.
    last: Instant,
    /// The host has refused a request, and is left alone until the end.
    is_refused: bool,
    /// The host has said when it ends.
    pub(super) is_announced: bool,
    /// The end is supposed, from the length of the windows before.
    is_guessed: bool,
}

/// State of a window, for a person.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::source::http) struct LimitStanding {
    pub(in crate::source::http) limit: Option<u64>,
    pub(in crate::source::http) length: Option<Duration>,
    pub(in crate::source::http) remaining: Option<u64>,
    pub(in crate::source::http) ends_in: Option<Duration>,
}

impl LimitWindow {
    pub(super) fn new(now: Instant) -> LimitWindow {
        let (length, last) = (Duration::ZERO, now);
        LimitWindow {
            limit: 0,
            left: 0,
            ends: now,
            length,
            last,
            is_refused: false,
            is_announced: true,
            is_guessed: false,
        }
    }

    /// An answer has announced what is left.
    pub(super) fn announce(&mut self, announced: &AnnouncedLimits, now: Instant) {
        let ends = now + announced.reset;
        let is_over = now >= self.ends;
        if !is_over && !self.is_guessed && self.ends > ends + SLACK {
            // It is of the window before, or of another limit that ends earlier.
            return;
        }
        if self.is_refused && !is_over {
            // It was sent before the refusal, which counts for more.
            return;
        }
        let is_same = !is_over && !self.is_guessed && ends <= self.ends + SLACK;
        if announced.limit.is_some_and(|limit| limit != self.limit) {
            (self.limit, self.length) = (announced.limit.unwrap_or(0), Duration::ZERO);
        }
        self.left = if is_same { self.left.min(announced.remaining) } else { announced.remaining };
        self.ends = if is_same { self.ends.max(ends) } else { ends };
        self.limit = self.limit.max(announced.remaining);
        self.length = announced.window.unwrap_or(self.length.max(announced.reset));
        (self.is_refused, self.is_announced, self.is_guessed) = (false, true, false);
    }

    /// A request was answered without an announcement, or not at all. `false`: nothing is known of a limit any more.
    pub(super) fn spend(&mut self, now: Instant) -> bool {
        if now < self.ends {
            self.left = self.left.saturating_sub(1);
        } else if self.limit > 0 && !self.length.is_zero() {
            // A host may tell only with its refusals.
            (self.left, self.ends, self.is_refused) = (self.limit - 1, now + self.length, false);
            self.is_guessed = true;
        } else {
            return false;
        }
        true
    }

    /// The host has refused a request, and may be asked again at `until`.
    pub(super) fn refuse(&mut self, until: Instant, is_announced: bool, now: Instant) {
        self.ends = if self.is_refused && now < self.ends { self.ends.max(until) } else { until };
        (self.left, self.is_refused, self.is_announced, self.is_guessed) = (0, true, is_announced, false);
    }

    /// The host is asked again at once.
    pub(super) fn end_pause(&mut self, now: Instant) {
        self.ends = self.ends.min(now);
    }

    /// The end of a pause that the host asked for.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.is_refused.then_some(self.ends)
    }

    /// When the next request may be sent, while `unanswered` are under way; `is_ahead`: no reader waits for it, so that half is left.
    pub(super) fn next(&self, is_ahead: bool, unanswered: u64, now: Instant) -> Instant {
        let kept = if is_ahead { self.limit / 2 } else { 0 };
        let free = self.left.saturating_sub(unanswered).saturating_sub(kept);
        let last = self.last;
        if now >= self.ends {
            // What was left is left in the next window too. Its first answer tells the rest.
            let is_free = free > 0 || unanswered == 0;
            return if is_free { now } else { last + PROBE };
        }
        if free == 0 {
            return self.ends;
        }
        if is_ahead || 4 * free > self.limit {
            return now;
        }
        let rest = self.ends.saturating_duration_since(last);
        last + rest / u32::try_from(free + 1).unwrap_or(u32::MAX)
    }

    /// A request is sent.
    pub(super) fn take(&mut self, now: Instant) {
        self.last = now;
    }

    pub(super) fn ends(&self) -> Instant {
        self.ends
    }

    /// No request but one may be sent before its end.
    pub(super) fn is_exhausted(&self, unanswered: u64, now: Instant) -> bool {
        now < self.ends && self.left <= unanswered
    }

    /// For how long a host whose requests are not held any more may still hold the next ones.
    pub(super) fn length(&self) -> Duration {
        self.length
    }

    pub(super) fn standing(&self, unanswered: u64, now: Instant) -> LimitStanding {
        let ends_in = Some(self.ends.saturating_duration_since(now)).filter(|left| !left.is_zero());
        LimitStanding {
            limit: Some(self.limit).filter(|limit| *limit > 0),
            length: Some(self.length).filter(|length| !length.is_zero()),
            remaining: ends_in.map(|_| self.left.saturating_sub(unanswered)),
            ends_in,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount begins in a window of which most is used.
    #[test]
    fn a_window_seen_late_grants_at_the_time_that_it_names() {
        let (mut window, now) = (LimitWindow::new(Instant::now()), Instant::now());
        window.announce(
            &AnnouncedLimits { limit: Some(60), window: None, remaining: 14, reset: 3600 * Duration::from_secs(1) },
            now,
        );

        let next = window.next(false, 0, now);

        assert!(now < next && next < now + Duration::from_secs(600));
        assert_eq!(window.next(false, 0, next), next);
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn told(limit: u64, remaining: u64, reset: Duration) -> AnnouncedLimits {
        AnnouncedLimits { limit: Some(limit), window: None, remaining, reset }
    }

    /// A host that allows `limit` requests in fixed windows of 60 s, and answers at once. When each of `count` requests was answered well, and how
    /// many were refused.
    fn served(limit: u64, is_ahead: bool, count: usize) -> (Vec<u64>, usize) {
        let (start, mut times, mut refused, mut used) = (Instant::now(), Vec::new(), 0, (0, 0));
        let (mut now, mut window) = (start, LimitWindow::new(start));
        while times.len() < count {
            now = now.max(window.next(is_ahead, 0, now));
            window.take(now);
            let passed = (now - start).as_secs();
            if used.0 != passed / 60 {
                used = (passed / 60, 0);
            }
            used.1 += 1;
            let reset = start + (used.0 as u32 + 1) * 60 * SECOND - now;
            window.announce(&told(limit, limit.saturating_sub(used.1), reset), now);
            match used.1 > limit {
                true => refused += 1,
                false => times.push(passed),
            }
        }
        (times, refused)
    }

    #[test]
    fn three_quarters_go_at_once_and_the_rest_is_spread() {
        let (times, refused) = served(60, false, 200);
        assert_eq!((times[44], times[44 + 60], refused), (0, 60, 0));
        assert!(times[46..60].windows(2).all(|pair| (3..=4).contains(&(pair[1] - pair[0]))), "{times:?}");
        assert!((180..=184).contains(&times[199]), "{times:?}");
    }

    #[test]
    fn what_is_fetched_ahead_leaves_half() {
        let (times, refused) = served(60, true, 60);
        assert_eq!((times[29], times[30], times[59], refused), (0, 60, 60, 0));
    }

    #[test]
    fn requests_under_way_count_and_answers_come_in_any_order() {
        let now = Instant::now();
        let mut window = LimitWindow::new(now);
        window.announce(&told(10, 8, 60 * SECOND), now);
        assert_eq!(window.next(false, 3, now), now);
        assert_eq!(window.next(false, 8, now), now + 60 * SECOND);
        window.announce(&told(10, 4, 60 * SECOND), now);
        window.announce(&told(10, 6, 60 * SECOND), now);
        assert_eq!(window.standing(1, now).remaining, Some(3), "a later answer told less");
        window.announce(&told(10, 9, Duration::ZERO), now);
        assert_eq!(window.standing(1, now).remaining, Some(3), "it is of the window before");
    }

    #[test]
    fn the_next_window_is_asked_for_by_one_request() {
        let now = Instant::now();
        let mut window = LimitWindow::new(now);
        window.announce(&told(10, 0, 60 * SECOND), now);
        let then = now + 60 * SECOND;
        assert_eq!((window.next(false, 0, now), window.next(false, 0, then)), (then, then));
        window.take(then);
        assert_eq!(window.next(false, 1, then), then + PROBE);
        window.announce(&told(10, 9, 60 * SECOND), then);
        assert_eq!(window.next(false, 5, then), then);
    }

    #[test]
    fn what_was_left_is_left_in_the_next_window() {
        let now = Instant::now();
        let mut window = LimitWindow::new(now);
        window.announce(&told(10, 7, 60 * SECOND), now);
        let then = now + 60 * SECOND;
        assert_eq!((window.next(false, 6, then), window.next(true, 1, then)), (then, then));
        assert!(window.spend(then), "a new one begins");
        assert_eq!(window.standing(0, then).remaining, Some(9));
    }

    #[test]
    fn a_pause_ends_with_one_request_and_leaves_no_limit() {
        let now = Instant::now();
        let mut window = LimitWindow::new(now);
        window.refuse(now + 5 * SECOND, true, now);
        window.refuse(now + 3 * SECOND, true, now);
        let then = now + 5 * SECOND;
        assert_eq!((window.paused_until(), window.next(false, 0, now)), (Some(then), then));
        assert_eq!(window.next(false, 0, then), then);
        assert!(!window.spend(then));
    }
}
