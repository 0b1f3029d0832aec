//! What a running mount can be asked over its control socket, and what it answers.
//!
//! | request | answer |
//! |---|---|
//! | `GET /status` | the status of the mount |
//! | `GET /metrics` | the same in numbers for Prometheus; the only answer that is not JSON |
//! | `GET /files` | lines: every file |
//! | `POST /refresh` | what the refresh did, once it is done; 502 where it failed, 503 where the mount ends |
//! | `POST /audit` | lines: what an audit finds, as it finds it |
//! | `POST /prefetch` | lines of [`PrefetchEvent`]; the download ends with the connection |
//! | `POST /evict` | lines of [`EvictEvent`] |
//! | `POST /paths` | lines of [`Located`], one for each URI |
//! | `POST /uris` | lines of [`Identified`], one for each path |
//!
//! The fields of a [`Request`] are the JSON object in the body. An empty body is an empty object.

use crate::source::http::Pace;
use axum::http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A request to a running mount; the name of the variant is its path. Paths of files are below the root of the mount,
/// without a leading slash; the empty path is the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// The status of the mount.
    Status {},
    /// The status in the text format of Prometheus.
    Metrics {},
    /// Every file of the mount.
    Files {},
    /// Refresh the tree from the Source.
    Refresh {
        /// Apply the unconfirmed deletions too.
        #[serde(default)]
        accept_deletions: bool,
    },
    /// Compare the tree with the Source.
    Audit {
        /// Read every cached object too.
        #[serde(default)]
        content: bool,
        /// Download every resource from the Source too.
        #[serde(default)]
        fetch: bool,
    },
    /// Download files, and folders with all below them, into the cache.
    Prefetch {
        /// Files and folders.
        paths: Vec<String>,
        /// Count what would be downloaded, and download nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// Remove files, and folders with all below them, from the cache.
    Evict {
        /// Files and folders.
        paths: Vec<String>,
    },
    /// The paths of resources.
    Paths {
        /// URIs of resources.
        uris: Vec<String>,
        /// Read the Source's lists again for URIs that are not in the tree.
        #[serde(default)]
        ask: bool,
    },
    /// The URIs of files and folders.
    Uris {
        /// Files and folders.
        paths: Vec<String>,
    },
}

/// The names of all requests that are made with this method.
pub(super) fn names(method: &Method) -> &'static [&'static str] {
    match *method {
        Method::GET => &["status", "metrics", "files"],
        Method::POST => &["refresh", "audit", "prefetch", "evict", "paths", "uris"],
        _ => &[],
    }
}

impl Request {
    /// The request with this name and the fields in `body`.
    pub(super) fn parse(name: &str, body: &[u8]) -> serde_json::Result<Request> {
        let fields = if body.is_empty() { json!({}) } else { serde_json::from_slice(body)? };
        serde_json::from_value(json!({ name: fields }))
    }

    /// True if the answer is JSON lines, whose work continues while the client reads them.
    pub(super) fn is_answered_in_lines(&self) -> bool {
        !matches!(self, Request::Status {} | Request::Metrics {} | Request::Refresh { .. })
    }

    /// Its name and its fields.
    pub(super) fn parts(&self) -> serde_json::Result<(String, Value)> {
        let named: Map<String, Value> = serde_json::from_value(serde_json::to_value(self)?)?;
        Ok(named.into_iter().next().unwrap_or_default())
    }
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failure {
    /// The reason, for a person.
    pub(super) error: String,
    /// Its kind, where there is one: what a program may tell apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<String>,
}

/// One line of the answer to [`Request::Paths`]: where one URI is in the tree, or why it is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located {
    /// The URI as requested.
    pub uri: String,
    /// Its path; `None` where it is not in the tree.
    pub path: Option<String>,
    /// Its other paths: landing pages link to it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub further_paths: Vec<String>,
    /// The path that it would have by the rules for names alone.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub would_be: Option<String>,
    /// Options that leave it out.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub hidden_by: Vec<String>,
    /// Options that may leave it out: the mount does not know the properties that they select by.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub may_be_hidden_by: Vec<String>,
    /// True if the Source lists it; known if its lists were read again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub listed: Option<bool>,
    /// Why there is no answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// One line of the answer to [`Request::Uris`]: the resource at one path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identified {
    /// The path as requested.
    pub path: String,
    /// The URI of a file's resource; of a folder the address below which its files are.
    pub uri: Option<String>,
    /// True for a folder.
    #[serde(default)]
    pub folder: bool,
    /// The representation whose bytes are shown in its place (`alternate=`).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub shown_by: Option<String>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// One line of the answer to [`Request::Evict`]; the last is `Done` or `Failure`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvictEvent {
    /// The bytes of this path stay: an earlier version of it is open, or it is being downloaded.
    Kept(String),
    /// There is no such path in the tree.
    Missing(String),
    /// All of it is done.
    Done(EvictSummary),
    /// The mount could not continue, and why.
    Failure(String),
}

/// The result of an eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictSummary {
    /// Files of which bytes were removed.
    pub files: u64,
    /// Bytes that were removed, in allocated blocks where they were on the disk.
    pub bytes: u64,
    /// Files whose bytes stay.
    pub kept: u64,
    /// Paths that are not in the tree.
    pub missing: u64,
}

/// One line of the answer to [`Request::Prefetch`]; the last is `Counted`, `Done` or `Failure`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrefetchEvent {
    /// How much is done.
    Progress(PrefetchProgress),
    /// A file that was not downloaded, or a path that is not in the tree.
    Failed(NotPrefetched),
    /// The answer to a dry run.
    Counted(PrefetchTotal),
    /// Landing pages are read first: so many of all below.
    Pages {
        /// Pages that are read.
        read: u64,
        /// All.
        all: u64,
    },
    /// All that could be downloaded is here.
    Done(PrefetchSummary),
    /// The mount could not continue, and why.
    Failure(String),
}

/// How much of a prefetch is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchProgress {
    /// Files that are done: downloaded, in the cache before, or failed.
    pub files: u64,
    /// Bytes that were downloaded, those of running downloads included.
    pub bytes: u64,
    /// Bytes of the files that were in the cache before.
    pub cached_bytes: u64,
    /// The whole request, once it is counted.
    pub of: Option<PrefetchTotal>,
    /// The host whose limit paces it.
    #[serde(default)]
    pub pace: Option<Pace>,
}

/// The size of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchTotal {
    /// Files.
    pub files: u64,
    /// Sum of the sizes that are known.
    pub bytes: u64,
    /// Files of unknown size that are not in the cache.
    pub unsized_files: u64,
    /// Files that are in the cache already.
    pub cached_files: u64,
    /// Sum of their sizes, and of what is here of other files of known size.
    pub cached_bytes: u64,
    /// Bytes that may still be downloaded (`max-download=`), where that is bounded.
    #[serde(default)]
    pub left: Option<u64>,
}

/// A file that was not downloaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotPrefetched {
    /// Its path.
    pub path: String,
    /// The URI of its resource; `None` where there is no such path.
    pub uri: Option<String>,
    /// The reason, for a person.
    pub why: String,
}

/// The result of a prefetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchSummary {
    /// Files that were downloaded.
    pub fetched: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that were in the cache before.
    pub here: u64,
    /// Files that were not downloaded, and paths that are not in the tree.
    pub failed: u64,
    /// Why the prefetch ended before its end, if it did.
    pub stopped: Option<Stopped>,
}

/// Why a prefetch ended before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stopped {
    /// The cache is full of what this prefetch downloaded and of what was read since it began.
    Full,
    /// The Source does not answer.
    Silent,
    /// The cache folder cannot be written.
    Unwritable,
    /// The mount has downloaded as much as it may (`max-download=`).
    Spent,
}
