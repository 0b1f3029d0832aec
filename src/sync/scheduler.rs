//! The schedule: each document has its own interval. Pure: time is passed in.

use super::status::PollAnswer;
use crate::source::DocumentLocation;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// The interval for documents that answer soon.
pub const SHORTEST: Duration = Duration::from_secs(5 * 60);
/// Each document is asked for this often at least.
pub const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The answers to polls may take one part in this many of a host's time: a list that is made at each request is dear, if small.
const DUTY: u32 = 100;
/// Polling is this much rarer while notifications arrive.
const LIVE: u32 = 4;
/// First pause after a failure; doubles up to the interval.
const FIRST_RETRY: Duration = Duration::from_secs(10);

/// The cost of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes that were downloaded: of the document and of all below it.
    pub bytes: u64,
    /// The time that it took.
    pub took: Duration,
    /// `Cache-Control: max-age`: asking before is pointless.
    pub max_age: Option<Duration>,
}

/// The documents that are followed, each a list or an index with all below it, and when they are due.
#[derive(Debug)]
pub struct Schedule {
    /// `poll=`
    fixed: Option<Duration>,
    /// True if every set has a notification channel that is alive.
    live: bool,
    documents: BTreeMap<DocumentLocation, PollPlan>,
}

/// A document in the schedule.
#[derive(Clone, Debug)]
pub struct PollPlan {
    /// The time between two requests for it.
    pub interval: Duration,
    /// The time of the last request.
    pub asked: Option<Instant>,
    /// The time of the next.
    pub due: Instant,
    /// The answer.
    pub answer: PollAnswer,
    failures: u32,
    /// The number of failures before the last answer.
    failures_before: u32,
}

impl Schedule {
    /// A schedule of no documents; `fixed` is `poll=`.
    pub fn new(fixed: Option<Duration>) -> Schedule {
        Schedule { fixed, live: false, documents: BTreeMap::new() }
    }

    /// From now on exactly these documents are followed; new ones are due at once.
    pub fn follow<'a>(&mut self, locations: impl IntoIterator<Item = &'a DocumentLocation>, now: Instant) {
        let mut followed = std::mem::take(&mut self.documents);
        for location in locations {
            let new = || PollPlan {
                interval: self.fixed.unwrap_or(SHORTEST),
                asked: None,
                due: now,
                failures: 0,
                failures_before: 0,
                answer: PollAnswer::None,
            };
            let plan = followed.remove(location).unwrap_or_else(new);
            self.documents.insert(location.clone(), plan);
        }
    }

    /// Notes if every set has a notification channel that is alive. Where that ends, the usual intervals count at once.
    pub fn set_live(&mut self, live: bool) {
        self.live = live;
        for plan in self.documents.values_mut().filter(|plan| plan.failures == 0) {
            if let Some(asked) = plan.asked {
                let usual = asked + plan.interval;
                plan.due = if live { plan.due.max(usual) } else { plan.due.min(usual) };
            }
        }
    }

    /// True if this document is due; one that is not followed never is.
    pub fn is_due(&self, location: &DocumentLocation, now: Instant) -> bool {
        self.documents.get(location).is_some_and(|plan| plan.due <= now)
    }

    /// The document has answered; `jitter` from 0 to 1 spreads Destinations.
    pub fn answered(&mut self, location: &DocumentLocation, cost: Cost, jitter: f64, now: Instant) {
        let (fixed, live) = (self.fixed, self.live);
        let Some(plan) = self.documents.get_mut(location) else { return };
        plan.interval = interval(fixed, cost);
        plan.asked = Some(now);
        plan.failures_before = std::mem::take(&mut plan.failures);
        plan.answer = if cost.bytes == 0 { PollAnswer::Unchanged } else { PollAnswer::Downloaded(cost.bytes) };
        let rarer = if live && fixed.is_none() { LIVE } else { 1 };
        plan.due = now + jittered(plan.interval * rarer, jitter);
    }

    /// The document has answered a second time at one poll: it is not asked more often for the cheaper answer.
    pub fn answered_again(&mut self, location: &DocumentLocation, cost: Cost, jitter: f64, now: Instant) {
        let Some(before) = self.documents.get(location).cloned() else { return };
        self.answered(location, cost, jitter, now);
        let Some(plan) = self.documents.get_mut(location) else { return };
        (plan.interval, plan.due) = (plan.interval.max(before.interval), plan.due.max(before.due));
        if cost.bytes == 0 && matches!(before.answer, PollAnswer::Downloaded(_)) {
            plan.answer = before.answer;
        }
    }

    /// A document that is asked for with this one took so long: it too keeps to its part of its host's time.
    pub fn answered_with(&mut self, location: &DocumentLocation, took: Duration) {
        let Some(plan) = self.documents.get_mut(location).filter(|_| self.fixed.is_none()) else { return };
        let interval = (took * DUTY).min(LONGEST).max(plan.interval);
        plan.due += interval - plan.interval;
        plan.interval = interval;
    }

    /// The document is missing, cannot be reached or cannot be read.
    pub fn failed(&mut self, location: &DocumentLocation, why: String, jitter: f64, now: Instant) {
        let Some(plan) = self.documents.get_mut(location) else { return };
        plan.failures += 1;
        plan.asked = Some(now);
        plan.answer = PollAnswer::Failed(why);
        plan.due = now + jittered(retry_pause(plan.failures, plan.interval), jitter);
    }

    /// The document has answered, but not all that it leads to can be read.
    pub fn failed_in_part(&mut self, location: &DocumentLocation, why: String, jitter: f64, now: Instant) {
        if let Some(plan) = self.documents.get_mut(location) {
            plan.failures = plan.failures_before;
        }
        self.failed(location, why, jitter, now);
    }

    /// The document has answered with something that is not used.
    pub fn ignored(&mut self, location: &DocumentLocation, why: String) {
        if let Some(plan) = self.documents.get_mut(location) {
            plan.answer = PollAnswer::Failed(why);
        }
    }

    /// The time at which the next document is due.
    pub fn next(&self) -> Option<Instant> {
        self.documents.values().map(|plan| plan.due).min()
    }

    /// When the next document is due of those that are not due at `now`.
    pub fn next_after(&self, now: Instant) -> Option<Instant> {
        self.documents.values().map(|plan| plan.due).filter(|due| *due > now).min()
    }

    /// True if a document has answered since `then`, it and all that it leads to.
    pub fn has_answered_since(&self, then: Instant) -> bool {
        self.documents.values().any(|plan| plan.failures == 0 && plan.asked >= Some(then))
    }

    /// Every document, in the order of their locations.
    pub fn documents(&self) -> impl Iterator<Item = (&DocumentLocation, &PollPlan)> {
        self.documents.iter()
    }
}

/// The pause before the next poll: `fixed` where `poll=` gives it, else by the cost of the last one and by how long the server lets the
/// answer be kept.
fn interval(fixed: Option<Duration>, cost: Cost) -> Duration {
    fixed.unwrap_or_else(|| (cost.took * DUTY).max(cost.max_age.unwrap_or_default()).clamp(SHORTEST, LONGEST))
}

/// The pause after `failures` in a row.
pub fn retry_pause(failures: u32, interval: Duration) -> Duration {
    FIRST_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(interval)
}

/// Up to a tenth more, so that many Destinations do not ask at one moment.
pub fn jittered(pause: Duration, jitter: f64) -> Duration {
    pause + pause.mul_f64(jitter.clamp(0.0, 1.0) / 10.0)
}

/// A number from 0 to 1, another each time.
pub fn jitter() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    (RandomState::new().hash_one(std::process::id()) % 1000) as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Uri;

    const FREE: Cost = Cost { bytes: 0, took: Duration::from_millis(30), max_age: None };

    fn at(path: &str) -> DocumentLocation {
        DocumentLocation::Uri(Uri::parse(&format!("http://example.org/{path}")).unwrap())
    }

    /// A schedule of `a` and `b`, and the time when it was made.
    fn schedule(fixed: Option<Duration>) -> (Schedule, Instant) {
        let now = Instant::now();
        let mut schedule = Schedule::new(fixed);
        schedule.follow([&at("a"), &at("b")], now);
        (schedule, now)
    }

    #[test]
    fn a_list_that_its_host_makes_slowly_is_asked_for_less_often() {
        let slow = Cost { bytes: 900, took: Duration::from_secs(20), max_age: None };
        assert_eq!(interval(None, slow), Duration::from_secs(2000));
        assert_eq!(interval(None, Cost { bytes: 0, ..slow }), Duration::from_secs(2000), "unchanged too");
        assert_eq!(interval(None, FREE), SHORTEST);
        assert_eq!(interval(Some(SHORTEST), slow), SHORTEST, "a person's word");
    }

    #[test]
    fn a_small_or_unchanged_document_is_asked_every_five_minutes() {
        assert_eq!(interval(None, FREE), SHORTEST);
    }

    #[test]
    fn a_big_document_takes_less_than_a_hundredth_of_the_time() {
        let slow = Cost { bytes: 88_000_000, took: Duration::from_secs(20), ..FREE };

        assert_eq!(interval(None, slow), Duration::from_secs(2000));
        assert_eq!(interval(None, Cost { took: Duration::from_secs(86_400), ..slow }), LONGEST);
    }

    #[test]
    fn what_the_server_says_may_be_kept_is_not_asked_for_sooner() {
        let keeps = |seconds| Cost { max_age: Some(Duration::from_secs(seconds)), ..FREE };

        assert_eq!(interval(None, keeps(3600)), Duration::from_secs(3600));
        assert_eq!(interval(None, keeps(0)), SHORTEST, "it is not asked more often for that");
        assert_eq!(interval(None, keeps(31_536_000)), LONGEST);
    }

    #[test]
    fn a_fixed_interval_is_kept() {
        let slow = Cost { bytes: 88_000_000, took: Duration::from_secs(20), max_age: Some(LONGEST) };

        assert_eq!(interval(Some(Duration::from_secs(2)), slow), Duration::from_secs(2));
    }

    #[test]
    fn each_document_has_its_own_time() {
        let (mut schedule, now) = schedule(None);
        assert!(schedule.is_due(&at("a"), now) && schedule.is_due(&at("b"), now));

        schedule.answered(&at("a"), FREE, 0.0, now);
        schedule.answered(&at("b"), Cost { bytes: 88_000_000, took: Duration::from_secs(20), ..FREE }, 0.0, now);

        assert_eq!(schedule.next(), Some(now + SHORTEST));
        assert!(schedule.is_due(&at("a"), now + SHORTEST) && !schedule.is_due(&at("b"), now + SHORTEST));
        assert!(!schedule.is_due(&at("c"), now + LONGEST), "it is not followed");
    }

    #[test]
    fn new_documents_are_due_at_once_and_the_others_keep_their_time() {
        let (mut schedule, now) = schedule(None);
        schedule.answered(&at("a"), FREE, 0.0, now);

        schedule.follow([&at("a"), &at("c")], now);

        assert!(!schedule.is_due(&at("a"), now) && !schedule.is_due(&at("b"), now) && schedule.is_due(&at("c"), now));
    }

    #[test]
    fn live_channels_make_polling_four_times_rarer() {
        let (mut schedule, now) = schedule(None);
        schedule.set_live(true);
        schedule.answered(&at("a"), FREE, 0.0, now);
        schedule.answered(&at("b"), FREE, 0.0, now);
        assert_eq!(schedule.next(), Some(now + SHORTEST * 4));

        schedule.set_live(false);

        assert_eq!(schedule.next(), Some(now + SHORTEST));
    }

    #[test]
    fn failures_are_retried_soon_and_then_ever_less_often() {
        let pauses: Vec<u64> = (1..=7).map(|n| retry_pause(n, SHORTEST).as_secs()).collect();

        assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(retry_pause(u32::MAX, SHORTEST), SHORTEST);
    }

    #[test]
    fn a_document_that_fails_does_not_hurry_the_others() {
        let (mut schedule, now) = schedule(None);
        schedule.answered(&at("b"), FREE, 1.0, now);

        schedule.failed(&at("a"), "gone".into(), 0.0, now);

        assert_eq!(schedule.next(), Some(now + FIRST_RETRY));
        assert!(schedule.has_answered_since(now) && !schedule.has_answered_since(now + FIRST_RETRY));
        assert_eq!(schedule.next_after(now + FIRST_RETRY), Some(now + SHORTEST.mul_f64(1.1)), "the other one");
        assert!(!schedule.is_due(&at("b"), now + SHORTEST), "a tenth later by jitter");
        assert!(schedule.is_due(&at("b"), now + SHORTEST.mul_f64(1.1)));
    }
}
