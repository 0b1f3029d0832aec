//! Why a request failed, and whether asking again can help.

use super::policy::AddressRefusal;
use crate::document::{Uri, UriError};
use std::time::Duration;

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
    #[error("{uri} answered {status}")]
    Status {
        /// What was asked.
        uri: Uri,
        /// The status code.
        status: u16,
        /// `Retry-After`
        retry_after: Option<Duration>,
    },
    /// The deadline passed; the last failure before it, if any.
    #[error("{uri}: no answer in time")]
    Deadline {
        /// What was asked.
        uri: Uri,
        /// The last failure.
        #[source]
        last: Option<Box<HttpError>>,
    },
    /// The deadline passed while the first attempt waited for a permit: its host was not asked, or only for a redirect.
    #[error("{uri}: the request waited for a permit until its deadline")]
    NotSent {
        /// What was to be asked.
        uri: Uri,
    },
    /// The host, or an address of it, is not one that a Source may send us to.
    #[error("{uri}: refused to go to {target}")]
    AddressRefused {
        /// What was asked.
        uri: Uri,
        /// Where that led to: itself, or what it redirects to.
        target: Uri,
        /// The host, its address and the option that would allow it.
        #[source]
        cause: AddressRefusal,
    },
    /// The host's name has no address.
    #[error("{uri}: the name {host} cannot be resolved")]
    Name {
        /// What was asked.
        uri: Uri,
        /// The host.
        host: Box<str>,
        /// The resolver's answer.
        #[source]
        cause: reqwest::Error,
    },
    /// No connection.
    #[error("{uri}: cannot connect to {host}")]
    Connect {
        /// What was asked.
        uri: Uri,
        /// `HOST[:PORT]`
        host: Box<str>,
        /// The operating system's or the proxy's answer.
        #[source]
        cause: reqwest::Error,
    },
    /// No trust: a certificate that does not verify, ours refused, or no common protocol.
    #[error("{uri}: no TLS connection with {host}")]
    Tls {
        /// What was asked.
        uri: Uri,
        /// `HOST[:PORT]`
        host: Box<str>,
        /// What does not verify.
        #[source]
        cause: rustls::Error,
    },
    /// The connection ended before a whole response head, or what came is not HTTP.
    #[error("{uri}: no response head from {host}")]
    Head {
        /// What was asked.
        uri: Uri,
        /// `HOST[:PORT]`
        host: Box<str>,
        /// What happened.
        #[source]
        cause: reqwest::Error,
    },
    /// The host failed so often in a row that it is left alone for a while; nothing was sent.
    #[error("{uri}: {host} did not answer repeatedly, it is asked again in {} s", .retry_in.as_secs() + 1)]
    CircuitOpen {
        /// What was asked.
        uri: Uri,
        /// `HOST[:PORT]`
        host: Box<str>,
        /// When it is asked again.
        retry_in: Duration,
        /// What this request met before, if anything.
        #[source]
        last: Option<Box<HttpError>>,
    },
    /// The host asked for a pause (`Retry-After`) that outlasts the deadline; nothing was sent.
    #[error("{uri}: {host} asked for a pause of another {} s", .retry_in.as_secs() + 1)]
    Paused {
        /// What was asked.
        uri: Uri,
        /// `HOST[:PORT]`
        host: Box<str>,
        /// When it may be asked again.
        retry_in: Duration,
    },
    /// More redirects than a Source needs, as where they lead in a circle.
    #[error("{uri}: more than {limit} redirects")]
    TooManyRedirects {
        /// What was asked.
        uri: Uri,
        /// How many are followed.
        limit: usize,
    },
    /// A redirect to something that is not an http or https URI.
    #[error("{uri}: redirected to what cannot be fetched")]
    BadRedirect {
        /// What was asked.
        uri: Uri,
        /// What is wrong with the target.
        #[source]
        cause: UriError,
    },
    /// A 206 that is not the range asked for, or without a range asked for.
    #[error("{uri}: asked for {asked}, answered with {got}")]
    WrongRange {
        /// What was asked.
        uri: Uri,
        /// The range in the request, or `the whole`.
        asked: String,
        /// What the response claims to be.
        got: String,
    },
    /// The body came too slowly.
    #[error("{uri}: less than {limit} bytes a second over {over:?}, after {got} bytes")]
    Stalled {
        /// What was asked.
        uri: Uri,
        /// The limit, bytes a second.
        limit: u64,
        /// The time it was measured over.
        over: Duration,
        /// Bytes received.
        got: u64,
    },
    /// The body ended before its announced length.
    #[error("{uri}: the body ended after {got} of {expected} bytes")]
    Truncated {
        /// What was asked.
        uri: Uri,
        /// Announced bytes.
        expected: u64,
        /// Bytes received.
        got: u64,
        /// How the connection ended, where it did not end properly.
        #[source]
        cause: Option<reqwest::Error>,
    },
    /// The body went on past its announced length.
    #[error("{uri}: the body has more than its {expected} bytes")]
    Overlong {
        /// What was asked.
        uri: Uri,
        /// Announced bytes.
        expected: u64,
    },
    /// A body of no announced length was cut; `cause` is absent when the body is read again after a failure.
    #[error("{uri}: the body broke off after {got} bytes")]
    Body {
        /// What was asked.
        uri: Uri,
        /// Bytes received.
        got: u64,
        /// What happened.
        #[source]
        cause: Option<reqwest::Error>,
    },
}

impl HttpError {
    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            HttpError::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504),
            HttpError::Deadline { .. }
            | HttpError::NotSent { .. }
            | HttpError::Name { .. }
            | HttpError::Connect { .. }
            | HttpError::Head { .. }
            | HttpError::CircuitOpen { .. }
            | HttpError::Paused { .. }
            | HttpError::Stalled { .. }
            | HttpError::Truncated { .. }
            | HttpError::Body { .. } => true,
            HttpError::Config { .. }
            | HttpError::AddressRefused { .. }
            | HttpError::Tls { .. }
            | HttpError::TooManyRedirects { .. }
            | HttpError::BadRedirect { .. }
            | HttpError::WrongRange { .. }
            | HttpError::Overlong { .. } => false,
        }
    }

    /// Whether the server says that there is nothing (any more): 404 or 410.
    pub fn is_gone(&self) -> bool {
        matches!(self.status(), Some(404 | 410))
    }

    /// The status code, where a status was the failure.
    pub fn status(&self) -> Option<u16> {
        match self {
            HttpError::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}
