//! The control socket of a running mount: HTTP + JSON over a Unix socket, so that `curl --unix-socket` works too.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /status` | | 200 and what the mount tells of itself |
//! | `GET /metrics` | | 200 and the same in numbers, as Prometheus reads them (the one answer that is no JSON) |
//! | `POST /refresh` | none, or a [`RefreshOrder`] | when the refresh is done: 200 and what it did, 502 where it failed, 503 where the mount ends |
//! | `POST /audit` | none, or an [`AuditOrder`] | 200 and, a line each, what an audit finds as it finds it |
//! | `GET /files` | | 200 and, a line each, every file |
//! | `POST /prefetch` | a [`PathsOrder`] | 200 and, a line each, how far the fetching is; it ends with the connection |
//! | `POST /evict` | a [`PathsOrder`] | 200 and, a line each, what was not dropped from the cache, then what was |
//! | `POST /paths` | a [`UrisOrder`] | 200 and, a line each, where a resource lies |
//! | `POST /uris` | a [`PathsOrder`] | 200 and, a line each, which resource lies at a path |
//!
//! Of the answers of many lines 32 are under way at a time: one more is refused (503). A client that takes nothing for ten minutes is left.
//!
//! Every other answer is JSON; one that is no success is `{"error": "…"}`. The socket lies in the mount's own folder of the
//! cache and answers root and the user of the mount alone. What is told is the mount's to say ([`Answers`]): here it
//! is just JSON.

mod client;
mod metrics;
mod server;
mod socket;
#[cfg(test)]
mod tests;
mod tree;

pub use client::{ControlError, ask_audit, ask_files, ask_refresh, ask_status, served_by};
pub use metrics::{Metrics, loopback, serve_metrics};
pub use server::{Answers, Lines, Refusal, Waiting, serve};
pub use socket::Socket;
pub use tree::{OfTree, PathsOrder, UrisOrder, ask_evict, ask_paths, ask_prefetch, ask_uris};

use serde::{Deserialize, Serialize};

/// What `POST /refresh` is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefreshOrder {
    /// Apply the deletions that are held back.
    #[serde(default)]
    pub accept_deletions: bool,
}

/// What `POST /audit` is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditOrder {
    /// Read every cached object too.
    #[serde(default)]
    pub content: bool,
    /// Ask for every resource at the Source too.
    #[serde(default)]
    pub fetch: bool,
}
