//! When the head of an answer is due.

use super::Request;
use std::pin::pin;
use std::time::Instant;
use tokio::time::timeout_at;

/// The deadline of one request, with all that is tried for it. It is moved on only while the request waits for a permit of a host that answers
/// others, and in all by half of the time that the request had.
#[derive(Debug)]
pub(super) struct Deadline {
    at: Instant,
    limit: Instant,
}

impl Deadline {
    pub(super) fn of(request: &Request) -> Deadline {
        let budget = request.deadline.saturating_duration_since(Instant::now());
        Deadline { at: request.deadline, limit: request.deadline + budget / 2 }
    }

    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// The output of `work`; `None` where the deadline passes first.
    pub(super) async fn within<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        timeout_at(self.at.into(), work).await.ok()
    }

    /// The same while the request waits for a permit. `progress` rises with each answer of the host, and with each byte of one.
    pub(super) async fn extended<T>(&mut self, wait: impl Future<Output = T>, progress: impl Fn() -> u64) -> Option<T> {
        let (begun, before, mut wait) = (Instant::now(), progress(), pin!(wait));
        let mut outcome = self.within(&mut wait).await;
        if progress() != before {
            if outcome.is_none() {
                outcome = timeout_at(self.limit.into(), wait).await.ok();
            }
            self.at = self.at.max(self.limit.min(self.at + begun.elapsed()));
        }
        outcome
    }
}
