//! One subscription as a state machine: what is to be sent when, and what may be answered. It does no I/O and reads no clock.
//!
//! ```text
//! due --wake--> asked --verify--> confirmed --wake (2/3 of the lease)--> asked …
//!                 |  \--nothing comes, or the hub refuses--> due (later and later)
//!                 \--denied--> due (a day later)
//! leave: one request to `unsubscribe`; where it comes to nothing the lease runs out
//! ```
//!
//! Times are the wall clock's: a lease runs on while the machine sleeps.

use std::time::{Duration, SystemTime};

/// The lease that is asked for; the granted one counts.
pub const LEASE_ASKED: Duration = Duration::from_secs(86_400);
/// No lease is believed to be longer (Framework Notification, 4.2: "not more than 1 month").
const LONGEST_LEASE: Duration = Duration::from_secs(31 * 86_400);
/// No hub makes us ask more often, however short its lease.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// A hub that has accepted a request and does not verify it within this is asked again.
const VERIFIED_WITHIN: Duration = Duration::from_secs(120);
/// The first pause after a failure; doubles up to the last.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LAST_PAUSE: Duration = Duration::from_secs(3600);
/// A hub that has denied a subscription is asked again after this.
const AFTER_DENIAL: Duration = Duration::from_secs(86_400);

/// `hub.mode`: what is asked for, and what a hub wants verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// To receive deliveries.
    Subscribe,
    /// To receive no more.
    Unsubscribe,
}

impl Mode {
    /// The word in requests and verifications.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Subscribe => "subscribe",
            Mode::Unsubscribe => "unsubscribe",
        }
    }

    /// The mode that a verification names.
    pub fn parse(raw: &str) -> Option<Mode> {
        [Mode::Subscribe, Mode::Unsubscribe].into_iter().find(|mode| mode.as_str() == raw)
    }
}

/// One subscription. Its owner sends the request of [`Subscription::wake`] and reports the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    mode: Mode,
    /// A request was sent, and neither refused nor denied: the hub may verify it, also again.
    is_open: bool,
    /// When the next request is to be sent, if ever.
    due: Option<SystemTime>,
    /// A request has been sent and the hub's answer to it is not here; no other is sent meanwhile.
    is_under_way: bool,
    lease_ends: Option<SystemTime>,
    /// Requests since the last verification.
    requests: u32,
    is_denied: bool,
}

/// The state of a subscription, for `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Known from an earlier mount; discovery has not found yet whether it is still wanted.
    Kept,
    /// Asked for, not verified yet.
    Asked,
    /// Its lease runs.
    Active,
    /// The hub does not verify or does not answer; it is asked again.
    Failing,
    /// The hub has refused it for good; it is asked again a day later.
    Denied,
    /// No longer wanted.
    Left,
}

impl Standing {
    /// The word in `status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Standing::Kept => "kept",
            Standing::Asked => "asked",
            Standing::Active => "active",
            Standing::Failing => "failing",
            Standing::Denied => "denied",
            Standing::Left => "left",
        }
    }
}

impl Subscription {
    /// A subscription that is wanted and due at once.
    pub fn new(now: SystemTime) -> Subscription {
        Subscription { due: Some(now), ..Subscription::kept(None) }
    }

    /// One of an earlier mount, with the lease that was granted then: nothing is sent before [`Subscription::join`] or
    /// [`Subscription::leave`].
    pub fn kept(lease_ends: Option<SystemTime>) -> Subscription {
        Subscription {
            mode: Mode::Subscribe,
            is_open: false,
            due: None,
            is_under_way: false,
            lease_ends,
            requests: 0,
            is_denied: false,
        }
    }

    /// Joins: the subscription is wanted. Nothing changes where it was before.
    pub fn join(&mut self, now: SystemTime) {
        if self.mode == Mode::Unsubscribe || self.due.is_none() {
            *self =
                Subscription { due: Some(now), is_under_way: self.is_under_way, ..Subscription::kept(self.lease_ends) };
        }
    }

    /// Leaves: a subscription that the hub may hold is undone.
    pub fn leave(&mut self, now: SystemTime) {
        if self.mode == Mode::Unsubscribe {
            return;
        }
        let may_be_held = self.lease_ends.is_some_and(|end| end > now) || self.is_open;
        *self = Subscription {
            mode: Mode::Unsubscribe,
            due: may_be_held.then_some(now),
            is_under_way: self.is_under_way,
            ..Subscription::kept(self.lease_ends)
        };
    }

    /// When [`Subscription::wake`] has a request.
    pub fn due(&self) -> Option<SystemTime> {
        self.due.filter(|_| !self.is_under_way)
    }

    /// Request that is to be sent now, if any; [`Subscription::answered`] must follow.
    pub fn wake(&mut self, now: SystemTime) -> Option<Mode> {
        self.due().filter(|due| *due <= now)?;
        if self.mode == Mode::Unsubscribe && self.requests > 0 {
            self.due = None;
            return None;
        }
        self.due = Some(now + VERIFIED_WITHIN.max(pause(self.requests)));
        self.requests += 1;
        self.is_open = true;
        self.is_denied = false;
        self.is_under_way = true;
        Some(self.mode)
    }

    /// The hub's answer to the request of [`Subscription::wake`]: whether it `accepted` it, and the pause it asked for.
    /// `mode` is what was sent: a wish that is newer is not touched by it.
    pub fn answered(&mut self, now: SystemTime, mode: Mode, accepted: bool, retry_after: Option<Duration>) {
        self.is_under_way = false;
        // Some verify before they answer; what is verified does not depend on the answer.
        if accepted || self.mode != mode || self.requests == 0 {
            return;
        }
        self.is_open = false;
        let wait = pause(self.requests).max(retry_after.unwrap_or_default()).min(LAST_PAUSE);
        self.due = (self.mode == Mode::Subscribe).then(|| now + wait);
    }

    /// Returns whether the answer to a hub that asks if `mode` is intended, with that `hub.lease_seconds`, is yes. The lease granted
    /// counts from now on.
    pub fn verify(&mut self, now: SystemTime, mode: Mode, lease_seconds: Option<u64>) -> bool {
        if mode != self.mode || !self.is_open {
            return false;
        }
        // A hub that did not get the answer asks again, which changes nothing here.
        if std::mem::take(&mut self.requests) == 0 {
            return true;
        }
        match mode {
            Mode::Subscribe => {
                let lease = lease_seconds.map_or(LEASE_ASKED, Duration::from_secs).min(LONGEST_LEASE);
                self.lease_ends = Some(now + lease);
                self.due = Some(now + (lease * 2 / 3).max(SHORTEST_PAUSE));
            }
            Mode::Unsubscribe => {
                self.lease_ends = None;
                self.due = None;
            }
        }
        true
    }

    /// The hub has sent `hub.mode=denied`, which it may at any time.
    pub fn denied(&mut self, now: SystemTime) {
        self.is_open = false;
        self.lease_ends = None;
        self.requests = 0;
        self.is_denied = true;
        self.due = (self.mode == Mode::Subscribe).then(|| now + AFTER_DENIAL);
    }

    /// Returns whether what is delivered is taken: 410 otherwise.
    pub fn is_wanted(&self) -> bool {
        self.mode == Mode::Subscribe && !self.is_denied
    }

    /// Returns whether the hub delivers, by the lease it has granted.
    pub fn is_active(&self, now: SystemTime) -> bool {
        self.is_wanted() && self.lease_ends.is_some_and(|end| end > now)
    }

    /// Returns whether it is left and nothing more will be sent.
    pub fn is_over(&self) -> bool {
        self.mode == Mode::Unsubscribe && self.due.is_none()
    }

    /// Until when the hub has promised to deliver, or may still do so.
    pub fn lease_ends(&self) -> Option<SystemTime> {
        self.lease_ends
    }

    /// For `status`.
    pub fn standing(&self, now: SystemTime) -> Standing {
        match self.mode {
            Mode::Unsubscribe => Standing::Left,
            Mode::Subscribe if self.is_denied => Standing::Denied,
            Mode::Subscribe if self.due.is_none() => Standing::Kept,
            Mode::Subscribe if self.is_active(now) => Standing::Active,
            // The first request alone has not failed while its verification may come.
            Mode::Subscribe if self.requests > u32::from(self.is_open) => Standing::Failing,
            Mode::Subscribe => Standing::Asked,
        }
    }
}

/// The pause after so many failures in a row.
fn pause(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        _ => FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(16)).min(LAST_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// So many seconds after the test began.
    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000) + Duration::from_secs(seconds)
    }

    /// Subscribed at 0 with that lease.
    fn subscribed(lease: u64) -> Subscription {
        let mut subscription = Subscription::new(at(0));
        assert_eq!(subscription.wake(at(0)), Some(Mode::Subscribe));
        subscription.answered(at(0), Mode::Subscribe, true, None);
        assert!(subscription.verify(at(0), Mode::Subscribe, Some(lease)));
        subscription
    }

    #[test]
    fn a_verification_after_the_answer_makes_it_active() {
        let mut subscription = Subscription::new(at(0));
        assert_eq!(subscription.wake(at(0)), Some(Mode::Subscribe));
        subscription.answered(at(1), Mode::Subscribe, true, None);
        assert_eq!(subscription.standing(at(1)), Standing::Asked);

        assert!(subscription.verify(at(2), Mode::Subscribe, Some(300)));

        assert_eq!(subscription.standing(at(2)), Standing::Active);
        assert!(subscription.is_active(at(301)) && !subscription.is_active(at(302)));
    }

    #[test]
    fn a_verification_before_the_answer_counts() {
        for accepted in [true, false] {
            let mut subscription = Subscription::new(at(0));
            subscription.wake(at(0));
            assert!(subscription.verify(at(1), Mode::Subscribe, Some(300)));
            subscription.answered(at(2), Mode::Subscribe, accepted, None);

            assert!(subscription.is_active(at(2)));
            assert_eq!(subscription.due(), Some(at(201)));
        }
    }

    #[test]
    fn a_lease_is_renewed_at_two_thirds_and_runs_on_meanwhile() {
        let mut subscription = subscribed(300);
        assert_eq!((subscription.wake(at(199)), subscription.due()), (None, Some(at(200))));

        assert_eq!(subscription.wake(at(200)), Some(Mode::Subscribe));
        assert!(subscription.is_active(at(250)));
        assert!(subscription.verify(at(250), Mode::Subscribe, Some(600)));

        assert_eq!(subscription.lease_ends(), Some(at(850)));
        assert_eq!(subscription.due(), None, "the answer is still to come");
        subscription.answered(at(251), Mode::Subscribe, true, None);
        assert_eq!(subscription.due(), Some(at(650)));
    }

    #[test]
    fn a_renewal_that_fails_is_repeated_and_the_lease_runs_out() {
        let mut subscription = subscribed(300);
        subscription.wake(at(200));
        subscription.answered(at(200), Mode::Subscribe, false, None);

        assert_eq!(subscription.due(), Some(at(210)));
        assert!(subscription.is_active(at(299)));
        assert_eq!(subscription.standing(at(300)), Standing::Failing);
    }

    #[test]
    fn nothing_is_verified_that_was_not_asked_for() {
        let mut idle = Subscription::new(at(0));
        assert!(!idle.verify(at(0), Mode::Subscribe, Some(300)), "before any request");

        let mut asked = Subscription::new(at(0));
        asked.wake(at(0));
        assert!(!asked.verify(at(1), Mode::Unsubscribe, None), "another mode");

        let mut refused = Subscription::new(at(0));
        refused.wake(at(0));
        refused.answered(at(1), Mode::Subscribe, false, None);
        assert!(!refused.verify(at(2), Mode::Subscribe, Some(300)), "a request that the hub refused");
    }

    #[test]
    fn a_hub_that_lost_our_answer_may_ask_again() {
        let mut subscription = subscribed(86_400);

        for lease in [Some(300), Some(0), None] {
            assert!(subscription.verify(at(30), Mode::Subscribe, lease));
            assert_eq!(subscription.lease_ends(), Some(at(86_400)), "a replay changes nothing");
        }
    }

    #[test]
    fn very_long_and_very_short_leases_are_bounded() {
        assert_eq!(subscribed(u64::MAX).lease_ends(), Some(at(31 * 86_400)));
        assert_eq!(subscribed(0).due(), Some(at(1)));
        let mut silent = Subscription::new(at(0));
        silent.wake(at(0));
        assert!(silent.verify(at(0), Mode::Subscribe, None));
        assert_eq!(silent.lease_ends(), Some(at(0) + LEASE_ASKED));
    }

    #[test]
    fn a_hub_that_refuses_is_asked_ever_less_often_and_when_it_says() {
        let mut subscription = Subscription::new(at(0));
        let mut pauses = Vec::new();
        let mut now = at(0);
        for _ in 0..10 {
            assert_eq!(subscription.wake(now), Some(Mode::Subscribe));
            subscription.answered(now, Mode::Subscribe, false, None);
            let due = subscription.due().unwrap();
            pauses.push(due.duration_since(now).unwrap().as_secs());
            now = due;
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600]);

        let mut subscription = Subscription::new(at(0));
        subscription.wake(at(0));
        subscription.answered(at(0), Mode::Subscribe, false, Some(Duration::from_secs(90)));
        assert_eq!(subscription.due(), Some(at(90)));
        subscription.wake(at(90));
        subscription.answered(at(90), Mode::Subscribe, false, Some(Duration::from_secs(u64::MAX)));
        assert_eq!(subscription.due(), Some(at(90) + LAST_PAUSE));
    }

    #[test]
    fn a_hub_that_never_verifies_is_asked_again() {
        let mut subscription = Subscription::new(at(0));
        subscription.wake(at(0));
        subscription.answered(at(0), Mode::Subscribe, true, None);
        assert_eq!(subscription.due(), Some(at(0) + VERIFIED_WITHIN));

        assert_eq!(subscription.wake(at(120)), Some(Mode::Subscribe));
        subscription.answered(at(120), Mode::Subscribe, true, None);
        assert_eq!(subscription.standing(at(121)), Standing::Failing);
        assert!(subscription.verify(at(130), Mode::Subscribe, Some(300)));
        assert_eq!(subscription.standing(at(131)), Standing::Active);
    }

    #[test]
    fn a_denial_ends_it_and_it_is_asked_for_again_a_day_later() {
        for mut subscription in [subscribed(300), Subscription::new(at(0))] {
            subscription.denied(at(5));

            assert!(!subscription.is_wanted() && !subscription.is_active(at(5)));
            assert_eq!(subscription.standing(at(5)), Standing::Denied);
            assert_eq!(subscription.due(), Some(at(5) + AFTER_DENIAL));
            subscription.join(at(6));
            assert_eq!(subscription.standing(at(6)), Standing::Denied, "that it is still wanted is no news");
            assert_eq!(subscription.wake(at(5) + AFTER_DENIAL), Some(Mode::Subscribe));
            assert!(subscription.is_wanted());
        }
    }

    #[test]
    fn leaving_unsubscribes_and_refuses_deliveries_at_once() {
        let mut subscription = subscribed(300);
        subscription.leave(at(10));

        assert!(!subscription.is_wanted() && !subscription.is_over());
        assert_eq!(subscription.wake(at(10)), Some(Mode::Unsubscribe));
        assert!(!subscription.verify(at(11), Mode::Subscribe, Some(300)));
        assert!(subscription.verify(at(11), Mode::Unsubscribe, Some(300)));
        subscription.answered(at(12), Mode::Unsubscribe, true, None);
        assert!(subscription.is_over());
        assert_eq!(subscription.lease_ends(), None);
    }

    #[test]
    fn a_subscription_never_asked_for_is_left_silently() {
        let mut subscription = Subscription::new(at(0));
        subscription.leave(at(1));

        assert!(subscription.is_over());
        assert_eq!(subscription.wake(at(1)), None);
    }

    #[test]
    fn a_late_answer_changes_nothing() {
        let mut subscription = Subscription::new(at(0));
        subscription.wake(at(0));
        subscription.leave(at(1));
        assert_eq!(subscription.due(), None, "one request at a time");

        subscription.answered(at(2), Mode::Subscribe, false, None);

        assert_eq!(subscription.wake(at(2)), Some(Mode::Unsubscribe));
    }

    #[test]
    fn an_unsubscription_that_fails_is_not_repeated() {
        for accepted in [true, false] {
            let mut subscription = subscribed(86_400);
            subscription.leave(at(0));
            assert_eq!(subscription.wake(at(0)), Some(Mode::Unsubscribe));
            subscription.answered(at(1), Mode::Unsubscribe, accepted, None);
            assert_eq!(subscription.is_over(), !accepted, "one that was accepted may be verified");

            assert_eq!(subscription.wake(at(1) + VERIFIED_WITHIN), None);
            assert!(subscription.is_over());
        }
    }

    #[test]
    fn a_subscription_of_an_earlier_mount_takes_deliveries() {
        let mut subscription = Subscription::kept(Some(at(100)));
        assert!(subscription.is_wanted() && subscription.is_active(at(99)));
        assert_eq!((subscription.due(), subscription.standing(at(0))), (None, Standing::Kept));

        subscription.join(at(5));

        assert_eq!(subscription.wake(at(5)), Some(Mode::Subscribe));
        assert!(subscription.is_active(at(99)));
    }

    /// In any order of events: nothing is verified that was not sent, one request is under way at a time, and no
    /// hub makes us ask more often than once a second.
    #[test]
    fn no_order_of_events_breaks_the_rules() {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut below = move |limit: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % limit
        };
        for _ in 0..2000 {
            let mut now = at(0);
            let mut subscription = Subscription::new(now);
            // What was sent and not answered; the last mode sent since wishes changed; when something was last sent.
            let (mut under_way, mut sent, mut last) = (None, None, None);
            for _ in 0..60 {
                now += Duration::from_millis(below(200_000));
                match below(8) {
                    0..=2 => {
                        if let Some(mode) = subscription.wake(now) {
                            assert_eq!(under_way, None);
                            assert!(last.is_none_or(|last| now >= last + SHORTEST_PAUSE), "asked all the time");
                            (under_way, sent, last) = (Some(mode), Some(mode), Some(now));
                        }
                    }
                    3 | 4 => {
                        if let Some(mode) = under_way.take() {
                            subscription.answered(now, mode, below(2) == 0, None);
                        }
                    }
                    5 => {
                        let mode = if below(2) == 0 { Mode::Subscribe } else { Mode::Unsubscribe };
                        let lease = [None, Some(0), Some(below(1000)), Some(u64::MAX)][below(4) as usize];
                        assert!(!subscription.verify(now, mode, lease) || sent == Some(mode));
                    }
                    6 => subscription.denied(now),
                    _ => {
                        let before = subscription.mode;
                        if below(2) == 0 {
                            subscription.leave(now)
                        } else {
                            subscription.join(now)
                        }
                        if subscription.mode != before {
                            (sent, last) = (None, None);
                        }
                    }
                }
                assert!(subscription.lease_ends().is_none_or(|end| end <= now + LONGEST_LEASE));
                assert!(subscription.is_wanted() || !subscription.is_active(now));
            }
        }
    }

    #[test]
    fn a_left_subscription_can_be_joined_again() {
        let mut subscription = subscribed(300);
        subscription.leave(at(10));
        subscription.join(at(20));

        assert!(subscription.is_wanted());
        assert_eq!(subscription.wake(at(20)), Some(Mode::Subscribe));
        assert_eq!(subscription.due(), None);
        subscription.answered(at(20), Mode::Subscribe, true, None);
        assert!(subscription.verify(at(20) + SECOND, Mode::Subscribe, Some(60)));
    }
}
