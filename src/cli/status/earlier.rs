//! Rates between two statuses of one mount.

use crate::cli::render::size;
use crate::fs::programs::Reading;
use crate::mount::status::{HostStatus, Status};
use std::time::Duration;

/// An earlier status of the same mount.
#[derive(Clone, Copy, Debug)]
pub struct Earlier<'a> {
    /// The status.
    pub status: &'a Status,
    /// How long ago it was.
    pub ago: Duration,
}

impl Earlier<'_> {
    /// The rates of all reads, downloads and requests together.
    pub fn totals(&self, now: &Status) -> String {
        let read = |status: &Status| status.cache.hit_bytes + status.cache.miss_bytes;
        let received = |status: &Status| status.hosts.iter().map(|host| host.bytes).sum();
        let requests = |status: &Status| status.hosts.iter().map(|host| host.requests).sum();
        format!(
            "read {}, received {}, {:.1} requests/s",
            self.bytes(read(self.status), read(now)),
            self.bytes(received(self.status), received(now)),
            self.rate(requests(self.status), requests(now))
        )
    }

    /// The rates of a host that was asked since.
    pub fn of_host(&self, now: &HostStatus) -> Option<String> {
        let before = self.status.hosts.iter().find(|before| before.host == now.host)?;
        let requests = self.rate(before.requests, now.requests);
        (requests > 0.0).then(|| format!("{requests:.1}/s, {}", self.bytes(before.bytes, now.bytes)))
    }

    /// The rate of a program that has read since.
    pub fn of_program(&self, now: &Reading) -> Option<String> {
        let before = self.status.programs.iter().find(|before| before.program == now.program)?;
        (before.bytes < now.bytes).then(|| self.bytes(before.bytes, now.bytes))
    }

    fn bytes(&self, before: u64, now: u64) -> String {
        format!("{}/s", size(self.rate(before, now) as u64))
    }

    /// The growth a second.
    fn rate(&self, before: u64, now: u64) -> f64 {
        now.saturating_sub(before) as f64 / self.ago.as_secs_f64().max(0.001)
    }
}
