//! One exchange with a host, and what its end says of the host's health.

use super::HttpError;
use super::bulk::Way;
use super::limits::{Admission, Host};
use crate::causes::chain;
use crate::document::Uri;
use std::time::{Duration, Instant};

/// An exchange under way, which tells the breaker how it ended, also when it is dropped before it ended.
pub(super) struct Exchange<'a> {
    pub host: &'a Host,
    pub uri: &'a Uri,
    pub way: Way,
    pub admission: Admission,
    pub begun: Instant,
    /// A host that stays silent for so long has failed even if the caller gave up.
    pub patience: Duration,
    pub is_over: bool,
}

impl Exchange<'_> {
    /// It has ended so.
    pub fn ended(mut self, outcome: &Result<reqwest::Response, HttpError>) {
        match outcome {
            Ok(answer) => {
                let (status, latency) = (answer.status().as_u16(), self.begun.elapsed());
                self.host.counters.answered(status, latency);
                self.host.answered(status, latency, Instant::now());
            }
            Err(_) => self.host.counters.failed(),
        }
        let mut breaker = self.host.breaker(self.uri);
        match outcome {
            Ok(_) => breaker.succeeded(),
            // That the host takes no further connection says nothing about those that it has.
            Err(_) if self.way == Way::Apart => breaker.abandoned(self.admission),
            Err(
                cause @ (HttpError::Name { .. }
                | HttpError::Connect { .. }
                | HttpError::Tls { .. }
                | HttpError::Head { .. }),
            ) => {
                let why = chain(cause);
                let over = matches!(cause, HttpError::Head { .. }).then_some(self.uri);
                breaker.failed(Instant::now(), self.admission, over);
                breaker.failed_for(why);
                drop(breaker);
                self.host.unanswered(Instant::now());
            }
            // A refusal of ours says nothing about the host's health.
            Err(_) => breaker.abandoned(self.admission),
        }
        self.is_over = true;
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if self.begun.elapsed() >= self.patience && self.way == Way::Shared {
            self.host.counters.failed();
            self.host.breaker(self.uri).failed(Instant::now(), self.admission, Some(self.uri));
            self.host.unanswered(Instant::now());
        } else {
            self.host.breaker(self.uri).abandoned(self.admission);
        }
    }
}
