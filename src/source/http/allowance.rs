//! The bytes that a run may download (`max-download=`). The bodies of resources are counted; lists and change documents are not.

use super::{HttpError, Method, Request};
use crate::document::Uri;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The bytes of a run: how many it may download, and how many came; also as JSON shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownloadLimit {
    /// Bytes that it may.
    #[serde(rename = "limit_bytes")]
    pub limit: u64,
    /// Bytes that came.
    #[serde(rename = "used_bytes")]
    pub used: u64,
}

impl DownloadLimit {
    /// Bytes that may still come.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// Counts them.
pub(super) struct Allowance {
    limit: u64,
    used: AtomicU64,
    is_reported: AtomicBool,
}

impl Allowance {
    pub(super) fn new(limit: u64) -> Allowance {
        Allowance { limit, used: AtomicU64::new(0), is_reported: AtomicBool::new(false) }
    }

    pub(super) fn state(&self) -> DownloadLimit {
        DownloadLimit { limit: self.limit, used: self.used.load(Ordering::Relaxed) }
    }

    /// An error where no byte is left for the answer to `request`. One that may well have no body is sent all the same.
    pub(super) fn check(&self, request: &Request) -> Result<(), HttpError> {
        let has_body = request.method == Method::Get && !request.is_document && !request.is_conditional();
        if has_body && self.state().left() == 0 { Err(self.spent(&request.uri)) } else { Ok(()) }
    }

    /// Bytes of a body came for `uri`; an error where they are more than were left.
    pub(super) fn take(&self, uri: &Uri, bytes: u64) -> Result<(), HttpError> {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        if bytes > 0 && before.saturating_add(bytes) > self.limit { Err(self.spent(uri)) } else { Ok(()) }
    }

    fn spent(&self, uri: &Uri) -> HttpError {
        let limit = self.limit;
        if !self.is_reported.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                limit,
                "max-download= is reached: until the next mount files that are not here cannot be read"
            );
        }
        HttpError::Spent { uri: uri.clone(), limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn bodies_of_resources_fail_past_the_limit_and_others_go_on() {
        let uri = Uri::parse("http://h/a").unwrap();
        let get = || Request::get(uri.clone(), Duration::from_secs(1));
        let allowance = Allowance::new(100);

        assert!(allowance.take(&uri, 60).is_ok() && allowance.check(&get()).is_ok());
        assert!(allowance.take(&uri, 40).is_ok(), "all of it");

        assert!(matches!(allowance.check(&get()), Err(HttpError::Spent { limit: 100, .. })));
        let list = Request { is_document: true, ..get() };
        let conditional = Request { if_none_match: Some("\"a\"".into()), ..get() };
        for other in [list, conditional, Request::head(uri.clone(), Duration::from_secs(1))] {
            assert!(allowance.check(&other).is_ok(), "{other:?}");
        }
        assert!(allowance.take(&uri, 0).is_ok() && allowance.take(&uri, 1).is_err());
        assert_eq!((allowance.state().used, allowance.state().left()), (101, 0));
    }
}
