//! When the head of an answer is due.

use super::Request;
use super::pause::{KnownPause, STEP};
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::time::timeout_at;

/// The deadline of one request, with all that is tried for it. A pause that is known does not count, as long as the request has patience. Beside that
/// it is moved on only while the request waits for a permit of a host that answers others, and in all by half of the time that the request had.
#[derive(Debug)]
pub(super) struct Deadline {
    at: Instant,
    limit: Instant,
    /// How much more of known pauses does not count.
    patience: Duration,
    /// Time that has not counted, for those that wait for the answer.
    pause: KnownPause,
}

impl Deadline {
    /// `patience`: the longest pause that does not count, unless the request itself has less.
    pub(super) fn of(request: &Request, patience: Duration) -> Deadline {
        let budget = request.deadline.saturating_duration_since(Instant::now());
        let (patience, pause) = (patience.min(request.patience), request.pause.clone());
        Deadline { at: request.deadline, limit: request.deadline + budget / 2, patience, pause }
    }

    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// Latest time at which a held request may be sent; `is_known`: a pause counts for none of the time.
    pub(super) fn latest(&self, is_known: bool) -> Instant {
        if is_known { self.at + self.patience } else { self.at }
    }

    /// The output of `work`; `None` where the deadline passes first.
    pub(super) async fn within<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        timeout_at(self.at.into(), work).await.ok()
    }

    /// Puts the deadline off by a known pause; returns the part that did not count.
    fn put_off(&mut self, pause: Duration) -> Duration {
        let pause = pause.min(self.patience);
        self.patience -= pause;
        (self.at, self.limit) = (self.at + pause, self.limit + pause);
        self.pause.add(pause);
        pause
    }

    /// A pause that is known.
    pub(super) async fn pause_until(&mut self, until: Instant) {
        loop {
            let (begun, next) = (Instant::now(), until.min(Instant::now() + STEP));
            tokio::time::sleep_until(next.into()).await;
            self.put_off(begun.elapsed());
            if next == until {
                return;
            }
        }
    }

    /// The output of `wait`, while the request waits for a permit. `progress` rises with each answer of the host, and with each byte of one, `paced` by the
    /// time in which the queue was held for a reason that is known.
    pub(super) async fn extended<T>(
        &mut self,
        wait: impl Future<Output = T>,
        progress: impl Fn() -> u64,
        paced: impl Fn() -> Duration,
    ) -> Option<T> {
        let (begun, before, mut wait) = (Instant::now(), progress(), pin!(wait));
        let (mut counted, mut uncounted, mut is_extended) = (paced(), Duration::ZERO, false);
        let outcome = loop {
            let due = if is_extended { self.limit } else { self.at };
            let outcome = timeout_at(due.min(Instant::now() + STEP).into(), &mut wait).await.ok();
            let held = paced();
            // What does not count moves both ends.
            let pause = self.put_off(held.saturating_sub(counted));
            (counted, uncounted) = (held, uncounted + pause);
            let is_due = Instant::now() >= due + pause;
            if outcome.is_some() || (is_due && (is_extended || progress() == before)) {
                break outcome;
            }
            is_extended |= is_due;
        };
        if progress() != before {
            self.at = self.at.max(self.limit.min(self.at + begun.elapsed().saturating_sub(uncounted)));
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Uri;
    use std::cell::Cell;

    #[tokio::test]
    async fn a_pause_that_begins_in_the_extension_is_no_stall() {
        let (begun, looks) = (Instant::now(), Cell::new(0));
        let request = Request::get(Uri::parse("http://example.org/").unwrap(), Duration::from_millis(400));
        // The deadline passes after 400 ms and its extension after 600 ms.
        let paced = || begun.elapsed().saturating_sub(Duration::from_millis(450)).min(Duration::from_millis(600));
        let progress = || {
            looks.set(looks.get() + 1);
            looks.get()
        };
        let mut deadline = Deadline::of(&request, Duration::from_secs(60));

        let waited = tokio::time::sleep(Duration::from_millis(900));
        assert_eq!(deadline.extended(waited, progress, paced).await, Some(()));

        let begun = Instant::now();
        let request = Request::get(request.uri, Duration::from_millis(400));
        let mut impatient = Deadline::of(&request, Duration::ZERO);
        let waited = tokio::time::sleep(Duration::from_secs(60));
        assert_eq!(impatient.extended(waited, progress, || begun.elapsed()).await, None);
        assert!(begun.elapsed() >= Duration::from_millis(600), "{:?}", begun.elapsed());
    }
}
