//! Why a request failed, and whether asking again can help.

use super::cause::{ConnectionError, TlsError};
use super::policy::AddressRefusal;
use crate::document::{Uri, UriError};
use std::time::Duration;

/// The host of which the words of a failure say that it does not answer. `None`: they are about one resource.
pub fn silent_host(why: &str) -> Option<&str> {
    let host_after = |words: &&str| {
        let (_, rest) = why.split_once(words)?;
        Some(rest.split(' ').next()?.trim_end_matches([':', ';']))
    };
    let words = ["cannot connect to ", "no TLS connection with ", "no valid answer from ", "the host name "];
    let of_pause = || why.split_once(" gets no requests for ")?.0.rsplit(' ').next();
    words.iter().find_map(host_after).or_else(of_pause)
}

/// Why a request failed. `uri` is always the published URI that was asked for; URIs in it carry no credentials.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// A setting that the client cannot work with; `what` names it, never its secret.
    #[error("{what}")]
    Config {
        /// The setting and what is wrong with it.
        what: String,
        /// The parser's answer.
        #[source]
        cause: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// A status that is neither 200, 206 nor 304, or one that the request did not allow.
    #[error("{uri} answered {status}{}{}", meaning(*.status), pause(*.retry_after))]
    Status {
        /// Address of the request.
        uri: Uri,
        /// The status code.
        status: u16,
        /// `Retry-After`
        retry_after: Option<Duration>,
    },
    /// The deadline passed; the last failure before it, if any.
    #[error("{uri}: no answer in time")]
    Deadline {
        /// Address of the request.
        uri: Uri,
        /// The last failure.
        #[source]
        last: Option<Box<HttpError>>,
    },
    /// The deadline passed while the first attempt waited for a permit: its host was not asked, or only for a redirect.
    #[error("{uri}: too many other requests to its host were waiting")]
    NotSent {
        /// Address of the request that was not sent.
        uri: Uri,
    },
    /// No descriptor was free for a connection: its host was not asked.
    #[error("{uri}: too many files and connections are open for another one")]
    NoDescriptor {
        /// Address of the request that was not sent.
        uri: Uri,
    },
    /// The run has downloaded as much as it may.
    #[error("{uri}: max-download= allows this mount no more than {limit} bytes until it is mounted again")]
    Spent {
        /// Address of the request.
        uri: Uri,
        /// Bytes that may be downloaded.
        limit: u64,
    },
    /// The host, or an address of it, is not one that a Source may send us to.
    #[error("{uri}: connections to {target} are not allowed")]
    AddressRefused {
        /// Address of the request.
        uri: Uri,
        /// The address itself, or the target of its redirect.
        target: Uri,
        /// The host, its address and the option that would allow it.
        #[source]
        cause: AddressRefusal,
    },
    /// The host's name has no address.
    #[error("{uri}: the host name {host} cannot be resolved")]
    Name {
        /// Address of the request.
        uri: Uri,
        /// The host.
        host: Box<str>,
        /// The resolver's answer.
        #[source]
        cause: ConnectionError,
    },
    /// No connection.
    #[error("{uri}: cannot connect to {host}")]
    Connect {
        /// Address of the request.
        uri: Uri,
        /// `HOST[:PORT]`
        host: Box<str>,
        /// The answer of the system or the proxy.
        #[source]
        cause: ConnectionError,
    },
    /// No TLS: none spoken there, a certificate that does not verify, ours refused, or no common protocol.
    #[error("{uri}: no TLS connection with {host}")]
    Tls {
        /// Address of the request.
        uri: Uri,
        /// `HOST[:PORT]`
        host: Box<str>,
        /// Fault.
        #[source]
        cause: TlsError,
    },
    /// The connection ended before a whole response head, or the answer is not HTTP.
    #[error("{uri}: no valid answer from {host}")]
    Head {
        /// Address of the request.
        uri: Uri,
        /// `HOST[:PORT]`
        host: Box<str>,
        /// Cause.
        #[source]
        cause: ConnectionError,
    },
    /// The host failed so often in a row that it is left alone for a while; nothing was sent.
    #[error("{uri}: {}{host} gets no requests for {} s", behind(why, last), .retry_in.as_secs() + 1)]
    CircuitOpen {
        /// Address of the request.
        uri: Uri,
        /// `HOST[:PORT]`
        host: Box<str>,
        /// When it is asked again.
        retry_in: Duration,
        /// Its last failure.
        why: Box<str>,
        /// Failure that this request met before, if any.
        #[source]
        last: Option<Box<HttpError>>,
    },
    /// The host asked for a pause (`Retry-After`) that outlasts the deadline; nothing was sent.
    #[error("{uri}: {host} allows no requests for another {} s", .retry_in.as_secs() + 1)]
    Paused {
        /// Address of the request.
        uri: Uri,
        /// `HOST[:PORT]`
        host: Box<str>,
        /// When it may be asked again.
        retry_in: Duration,
    },
    /// More redirects than a Source needs, as where they lead in a circle.
    #[error("{uri}: more than {limit} redirects")]
    TooManyRedirects {
        /// Address of the request.
        uri: Uri,
        /// How many are followed.
        limit: usize,
    },
    /// A redirect to something that is not an http or https URI.
    #[error("{uri}: the server redirects to an address that cannot be used")]
    BadRedirect {
        /// Address of the request.
        uri: Uri,
        /// Fault of the target.
        #[source]
        cause: UriError,
    },
    /// A 206 that is not the range asked for, or without a range asked for.
    #[error("{uri}: requested {asked}, received {got}")]
    WrongRange {
        /// Address of the request.
        uri: Uri,
        /// The range in the request, or `the whole`.
        asked: String,
        /// Range or status that the response claims.
        got: String,
    },
    /// The body came too slowly.
    #[error("{uri}: the download is too slow: less than {limit} bytes per second for {over:?}, after {got} bytes")]
    Stalled {
        /// Address of the request.
        uri: Uri,
        /// The limit, bytes a second.
        limit: u64,
        /// The time it was measured over.
        over: Duration,
        /// Bytes received.
        got: u64,
    },
    /// The body ended before its announced length.
    #[error("{uri}: the download ended after {got} of {expected} bytes")]
    Truncated {
        /// Address of the request.
        uri: Uri,
        /// Announced bytes.
        expected: u64,
        /// Bytes received.
        got: u64,
        /// How the connection ended, where it did not end properly.
        #[source]
        cause: Option<ConnectionError>,
    },
    /// The body went on past its announced length.
    #[error("{uri}: the server sent more than the {expected} bytes that it announced")]
    Overlong {
        /// Address of the request.
        uri: Uri,
        /// Announced bytes.
        expected: u64,
    },
    /// A body of no announced length was cut; `cause` is absent when the body is read again after a failure.
    #[error("{uri}: the download ended early, after {got} bytes")]
    Body {
        /// Address of the request.
        uri: Uri,
        /// Bytes received.
        got: u64,
        /// Cause.
        #[source]
        cause: Option<ConnectionError>,
    },
}

/// The failure behind an open breaker, unless it follows as the cause.
fn behind(why: &str, last: &Option<Box<HttpError>>) -> String {
    if last.is_some() || why.is_empty() { String::new() } else { format!("{why}; ") }
}

/// Meaning of a status for a person, with advice.
fn meaning(status: u16) -> &'static str {
    match status {
        401 => ": a user name and password, or a token, is required: -o netrc=FILE or -o bearer-file=FILE",
        403 => {
            " (access denied): this address, program or user is refused; a password or token may help (-o netrc=FILE)"
        }
        404 => " (not found)",
        407 => ": the proxy requires a user name and password",
        410 => " (gone)",
        429 => " (too many requests)",
        500..=599 => " (a failure of the server)",
        _ => "",
    }
}

fn pause(retry_after: Option<Duration>) -> String {
    retry_after.map_or_else(String::new, |pause| format!("; it asks for a pause of {} s", pause.as_secs()))
}

impl HttpError {
    /// Returns whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            HttpError::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504),
            HttpError::Deadline { .. }
            | HttpError::NotSent { .. }
            | HttpError::NoDescriptor { .. }
            | HttpError::Name { .. }
            | HttpError::Connect { .. }
            | HttpError::Head { .. }
            | HttpError::CircuitOpen { .. }
            | HttpError::Paused { .. }
            | HttpError::Stalled { .. }
            | HttpError::Truncated { .. }
            | HttpError::Body { .. } => true,
            HttpError::Config { .. }
            | HttpError::Spent { .. }
            | HttpError::AddressRefused { .. }
            | HttpError::Tls { .. }
            | HttpError::TooManyRedirects { .. }
            | HttpError::BadRedirect { .. }
            | HttpError::WrongRange { .. }
            | HttpError::Overlong { .. } => false,
        }
    }

    /// Returns whether the reason is this machine's, or the host is known to allow no requests now: that says nothing of the host.
    pub fn is_unsent(&self) -> bool {
        use HttpError::{NoDescriptor, NotSent, Paused, Spent};
        matches!(self, NotSent { .. } | Paused { .. } | NoDescriptor { .. } | Spent { .. })
    }

    /// Returns whether nothing more may be downloaded.
    pub fn is_spent(&self) -> bool {
        matches!(self, HttpError::Spent { .. })
    }

    /// How long the host is known to allow no requests.
    pub fn paused_for(&self) -> Option<Duration> {
        match self {
            HttpError::Paused { retry_in, .. } => Some(*retry_in),
            _ => None,
        }
    }

    /// Returns whether the server says that there is nothing (any more): 404 or 410.
    pub fn is_gone(&self) -> bool {
        matches!(self.status(), Some(404 | 410))
    }

    /// Returns whether other credentials may have another answer. Servers answer 400 to a client certificate that has expired, or end the connection.
    pub(super) fn may_be_of_credentials(&self) -> bool {
        matches!(self.status(), Some(400 | 401 | 403)) || matches!(self, HttpError::Tls { .. })
    }

    /// The status code, where a status was the failure.
    pub fn status(&self) -> Option<u16> {
        match self {
            HttpError::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}
