//! The one HTTP client: addresses checked, credentials bound to their host, rates bounded, retries inside a deadline.
//!
//! A request runs through the files in this order: `rewrite` (where it is fetched from), `policy` (whether that may be reached), `host` (the wait for a
//! permit, which `limiter` decides), `credentials` (what is sent along), `transport` (over which connections, to addresses of `resolver`; `silence`: when over others), `head`
//! (what the answer says), `announced` (which limits its host has), `body` (its bytes under the low-speed limit). `client` has the loops for redirects and retries of an
//! `attempt`, `exchange` sends it to one host, `relay` takes requests that another library has made; `metrics` counts.

mod allowance;
mod announced;
mod attempt;
mod body;
mod cause;
mod certificates;
mod client;
mod credentials;
mod deadline;
mod error;
mod exchange;
mod field;
mod head;
mod host;
mod hosts;
mod limiter;
mod metrics;
mod netrc;
mod pause;
mod policy;
mod priority;
mod relay;
mod resolver;
mod retry;
mod rewrite;
mod silence;
mod transport;

#[cfg(test)]
mod tests;

pub use allowance::DownloadLimit;
pub use body::Body;
pub use cause::{ConnectionError, TlsError};
pub use certificates::system_roots;
pub use client::Client;
pub use credentials::Credentials;
pub use error::{HttpError, silent_host};
pub use metrics::{HostTraffic, LATENCIES, Pace, per_minute};
pub use pause::KnownPause;
pub use policy::AddressRefusal;
pub use priority::{Priority, Requester};
pub use transport::proxies_in_use;

use crate::document::{Timestamp, Uri, WebLink};
use std::time::{Duration, Instant};

/// Configuration of the client, never printed: addresses may hold passwords.
#[derive(Clone)]
pub struct HttpConfig {
    /// The Source's own `HOST[:PORT]`, reachable at every address, and the only one that gets credentials.
    ///
    /// With `https://` before it credentials never go over http.
    pub own_authority: Option<Box<str>>,
    /// Hosts reachable although their address is private (`allow-host=`), `HOST` (every port) or `HOST:PORT`.
    pub allowed_hosts: Vec<Box<str>>,
    /// (FROM, TO) URI prefixes: a URI that begins with FROM is fetched from TO (`rewrite=`). The longest FROM counts,
    /// and `HOST:PORT` of TO is reachable as if it were among `allowed_hosts`.
    pub rewrites: Vec<(Box<str>, Box<str>)>,
    /// Credentials for the Source's host, and what every host learns of the person.
    pub credentials: Credentials,
    /// Extra trusted certificates, PEM.
    pub ca_bundle: Option<Vec<u8>>,
    /// Requests a second to one host; unbounded without.
    pub rate: Option<f64>,
    /// Bytes of resources that may be downloaded (`max-download=`); unbounded without.
    pub max_download: Option<u64>,
    /// The longest known pause that does not count against a request's deadline.
    pub patience: Duration,
    /// Requests in flight at one host, at most; at least 1. How many at a time depends on its answers (`limiter`).
    pub connections: usize,
    /// True if a host that refuses connections is asked until the deadline, as it may be about to start.
    pub waits_for_hosts: bool,
    /// Time for name, connection and TLS.
    pub connect_timeout: Duration,
    /// A body slower than this many bytes a second over `low_speed_time` has failed; with 0 only silence fails.
    pub low_speed_limit: u64,
    /// See `low_speed_limit`.
    pub low_speed_time: Duration,
}

impl std::fmt::Debug for HttpConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HttpConfig(…)")
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        HttpConfig {
            own_authority: None,
            allowed_hosts: Vec::new(),
            rewrites: Vec::new(),
            credentials: Credentials::default(),
            ca_bundle: None,
            rate: None,
            max_download: None,
            patience: Duration::from_secs(600),
            connections: 8,
            waits_for_hosts: true,
            connect_timeout: Duration::from_secs(10),
            low_speed_limit: 1024,
            low_speed_time: Duration::from_secs(20),
        }
    }
}

/// How a resource is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Method {
    Get,
    Head,
}

/// Over which of the connections to its host a request goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// One that it may share with all others.
    #[default]
    Shared,
    /// One of HTTP/1.1 for itself: one of several ranges of a large file that are asked for at once. HTTP/2 has all of them share a TCP connection,
    /// which brings one window in a round trip.
    Ranges,
}

/// One request, repeated inside its deadline where that can help.
#[derive(Clone, Debug)]
pub struct Request {
    /// Published URI; rewrites are applied by the client.
    pub uri: Uri,
    /// GET or HEAD.
    pub method: Method,
    /// First and (inclusive) last byte; an open end where `None`.
    pub range: Option<(u64, Option<u64>)>,
    /// The last so many bytes (at least 1), or all where there are fewer; counts without `range` only.
    pub suffix: Option<u64>,
    /// A strong ETag: the range is wanted only of that version (`If-Range`).
    pub if_range: Option<Box<str>>,
    /// `If-None-Match`
    pub if_none_match: Option<Box<str>>,
    /// `If-Modified-Since`, as the server wrote it.
    pub if_modified_since: Option<Box<str>>,
    /// `Accept-Datetime`: of a TimeGate the version of that time is wanted (RFC 7089, 2.1.1). Redirects keep it.
    pub accept_datetime: Option<Timestamp>,
    /// `Accept`
    pub accept: Option<Box<str>>,
    /// `Accept-Encoding`: `identity` by default.
    pub accept_encoding: Box<str>,
    /// Past caches (`Cache-Control: no-cache`).
    pub no_cache: bool,
    /// A list rather than a resource: one permit is reserved for lists, so that readers of a host that hangs do not hold them up.
    pub is_document: bool,
    /// Nothing promises that it exists: a 404 or 410 is an answer like others, not a refusal.
    pub may_be_absent: bool,
    /// Decides where in the host's queue it waits. It may rise meanwhile.
    pub priority: Priority,
    /// Over which connections it goes.
    pub way: Way,
    /// True if it is asked again at once where that can help.
    pub repeats: bool,
    /// The response head must be here by then, retries included. Known pauses do not count.
    pub deadline: Instant,
    /// How long known pauses may be; [`HttpConfig::patience`] bounds it too.
    pub patience: Duration,
    /// Counts its known pauses.
    pub pause: KnownPause,
}

impl Request {
    /// A plain GET, identity coding, head due within `within`.
    pub fn get(uri: Uri, within: Duration) -> Request {
        Request {
            uri,
            method: Method::Get,
            range: None,
            suffix: None,
            if_range: None,
            if_none_match: None,
            if_modified_since: None,
            accept_datetime: None,
            accept: None,
            accept_encoding: "identity".into(),
            no_cache: false,
            is_document: false,
            may_be_absent: false,
            priority: Priority::default(),
            way: Way::default(),
            repeats: true,
            deadline: Instant::now() + within,
            patience: Duration::MAX,
            pause: KnownPause::default(),
        }
    }

    /// A HEAD, otherwise as [`Request::get`].
    pub fn head(uri: Uri, within: Duration) -> Request {
        Request { method: Method::Head, ..Request::get(uri, within) }
    }

    /// Returns whether an answer with this status counts as a refusal.
    fn is_refused_by(&self, status: u16) -> bool {
        status >= 400 && !(self.may_be_absent && matches!(status, 404 | 410))
    }

    /// Returns whether a 304 would be an answer to it.
    fn is_conditional(&self) -> bool {
        self.if_none_match.is_some() || self.if_modified_since.is_some()
    }
}

/// The answer to a form that was posted. The caller decides which status is a success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The status code.
    pub status: u16,
    /// Target of a redirect, which has not been followed.
    pub location: Option<Uri>,
    /// `Retry-After`
    pub retry_after: Option<Duration>,
    /// The beginning of the answer's text, for a person.
    pub text: String,
}

/// The status of an answer: 200, 206 or 304. Every other one is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// 200: the whole representation (also in answer to a range).
    Full,
    /// 206, with its checked Content-Range: first and last byte, the whole length where known.
    Partial {
        /// First byte.
        first: u64,
        /// Last byte.
        last: u64,
        /// Length of the whole, `None` for `*`.
        total: Option<u64>,
    },
    /// 304
    NotModified,
}

/// A response head and its body to come.
#[derive(Debug)]
pub struct Response {
    /// Which of the three.
    pub status: Status,
    /// Address after rewriting and redirects.
    pub final_uri: Uri,
    /// From the permit to the head of the answer.
    pub round_trip: Duration,
    /// Content-Length of this body (for HEAD: of the body there would be).
    pub content_length: Option<u64>,
    /// `ETag` as written, weak ones with their `W/`.
    pub etag: Option<Box<str>>,
    /// `Date`: when the host sent it, by its clock.
    pub date: Option<Timestamp>,
    /// `Last-Modified` as written.
    pub last_modified: Option<Box<str>>,
    /// Last-Modified, where it distinguishes this version from every later one (RFC 9110, 8.8.2.2).
    pub modified_validator: Option<Box<str>>,
    /// `Last-Modified` understood.
    pub modified: Option<Timestamp>,
    /// `Memento-Datetime`: the time whose state of a resource this is, for good (RFC 7089, 2.1.1).
    pub memento_datetime: Option<Timestamp>,
    /// `Content-Type` without parameters, lower case.
    pub media_type: Option<Box<str>>,
    /// `Content-Encoding`, lower case, `None` for identity.
    pub encoding: Option<Box<str>>,
    /// The name that `Content-Disposition` gives the file.
    pub filename: Option<String>,
    /// `Cache-Control: max-age`; zero for `no-cache` and `no-store`.
    pub max_age: Option<Duration>,
    /// `Accept-Ranges: bytes`: the server says that it knows ranges. One that does may be silent about it.
    pub accepts_ranges: bool,
    /// Links of every `Link` header value.
    pub links: Vec<WebLink>,
    /// The body; empty for HEAD and 304.
    pub body: Body,
}
