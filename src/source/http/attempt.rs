//! One request on its way: what is sent, where to, and what came of it.

use super::cause::{ConnectionError, find};
use super::credentials::Keys;
use super::deadline::Deadline;
use super::host::{Host, RequestPermit};
use super::policy::AddressRefusal;
use super::{HttpError, Method, Request, field, head};
use crate::document::Uri;
use crate::platform::descriptors::is_shortage;
use bytes::Bytes;
use hyper::http;
use reqwest::header::{self, HeaderName};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// Returns whether a range over a dedicated connection was refused. The resource itself may be refused too: the shared connection shows it. A host that
/// asks for fewer requests gets fewer.
pub(super) fn refuses_range(answer: &Result<HostAnswer, HttpError>) -> bool {
    match answer {
        Ok(answer) => matches!(answer.status(), 400..=428 | 430..=499 | 505),
        Err(error) => matches!(
            error,
            HttpError::Tls { .. } | HttpError::Name { .. } | HttpError::Connect { .. } | HttpError::Head { .. }
        ),
    }
}

/// The request with every field but credentials.
pub(super) fn fields(request: &Request, client: &reqwest::Client, url: Url) -> reqwest::RequestBuilder {
    let method = match request.method {
        Method::Get => reqwest::Method::GET,
        Method::Head => reqwest::Method::HEAD,
    };
    let range = head::range_text(request);
    let accept_datetime = request.accept_datetime.and_then(field::date_text);
    // Taken from what a Source published, which may be anything.
    let is_value = |published: &&str| header::HeaderValue::from_str(published).is_ok();
    let optional = [
        (header::ACCEPT, request.accept.as_deref().filter(is_value)),
        (header::ACCEPT_ENCODING, Some(&*request.accept_encoding).filter(is_value).or(Some("identity"))),
        (header::RANGE, range.as_deref()),
        (header::IF_RANGE, request.if_range.as_deref().filter(|_| range.is_some())),
        (header::IF_NONE_MATCH, request.if_none_match.as_deref()),
        (header::IF_MODIFIED_SINCE, request.if_modified_since.as_deref()),
        (HeaderName::from_static("accept-datetime"), accept_datetime.as_deref()),
        (header::CACHE_CONTROL, request.no_cache.then_some("no-cache")),
        (header::PRAGMA, request.no_cache.then_some("no-cache")),
    ];
    optional
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| (name, value)))
        .fold(client.request(method, url), |builder, (name, value)| builder.header(name, value))
}

/// Payload besides the fields of a [`Request`].
pub(super) enum Payload<'a> {
    /// Nothing: the request is a GET or HEAD.
    Nothing,
    /// A form, which is posted.
    Form(&'a str),
    /// The request was made whole by another library, and goes to this address as it is.
    Whole(&'a http::Request<Bytes>, &'a Url),
}

impl Payload<'_> {
    /// Returns whether it does no more when it is sent twice.
    pub(super) fn is_repeatable(&self) -> bool {
        match self {
            Payload::Nothing => true,
            Payload::Form(_) => false,
            Payload::Whole(whole, _) => whole.method().is_safe(),
        }
    }
}

/// A request with its deadline, and which attempt this is; the first is 1.
pub(super) struct RequestAttempt<'a> {
    pub(super) request: &'a Request,
    pub(super) payload: Payload<'a>,
    pub(super) deadline: Deadline,
    pub(super) number: u32,
    pub(super) keys: Arc<Keys>,
    /// The request is repeated with credentials that have changed.
    pub(super) has_new_keys: bool,
}

impl<'a> RequestAttempt<'a> {
    pub(super) fn of(
        request: &'a Request,
        payload: Payload<'a>,
        keys: Arc<Keys>,
        patience: Duration,
    ) -> RequestAttempt<'a> {
        let deadline = Deadline::of(request, patience);
        RequestAttempt { request, payload, deadline, number: 1, keys, has_new_keys: false }
    }
}

/// The head of an answer, whose body is to come.
pub(super) struct HostAnswer {
    pub(super) head: reqwest::Response,
    pub(super) permit: RequestPermit,
    pub(super) round_trip: Duration,
}

impl HostAnswer {
    pub(super) fn status(&self) -> u16 {
        self.head.status().as_u16()
    }
}

/// Sorts what reqwest reports by its causes.
pub(super) fn failure(request: &Request, asked: &Uri, host: &Host, cause: reqwest::Error) -> HttpError {
    let uri = request.uri.clone();
    let host = host.authority.clone();
    if let Some(refusal) = find::<AddressRefusal>(&cause) {
        return HttpError::AddressRefused { uri, target: asked.clone(), cause: refusal.clone() };
    }
    if let Some(error) = find::<rustls::Error>(&cause) {
        return HttpError::Tls { uri, host, cause: error.into() };
    }
    if find::<io::Error>(&cause).is_some_and(is_shortage) {
        return HttpError::NoDescriptor { uri };
    }
    if cause.is_builder() {
        return HttpError::Config { what: format!("{uri}: the request is not valid"), cause: Some(cause.into()) };
    }
    let (is_name, is_connection, cause) = (cause.is_dns(), cause.is_connect(), ConnectionError::from(&cause));
    match (is_name, is_connection) {
        (true, _) => HttpError::Name { uri, host, cause },
        (false, true) => HttpError::Connect { uri, host, cause },
        (false, false) => HttpError::Head { uri, host, cause },
    }
}
