//! A bound on the work of each host, for callers that have not been moved to the limiter yet.

use super::Requester;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A bound for each host.
pub struct Turns {
    at_once: usize,
    hosts: Mutex<HashMap<Box<str>, Arc<Semaphore>>>,
}

/// Leave to work, until it is dropped.
#[derive(Debug)]
pub struct Place {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// Each host may have `at_once`.
    pub fn new(at_once: usize) -> Turns {
        Turns { at_once, hosts: Mutex::default() }
    }

    /// Waits for leave to work for `requester` at `authority`.
    pub async fn take(&self, authority: &str, _requester: Requester) -> Place {
        let turns = {
            let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
            hosts.retain(|_, turns| Arc::strong_count(turns) > 1);
            Arc::clone(hosts.entry(authority.into()).or_insert_with(|| Arc::new(Semaphore::new(self.at_once))))
        };
        Place { _permit: turns.acquire_owned().await.ok() }
    }
}
