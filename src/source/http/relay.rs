//! A request that another library has made whole, its signature included, to a host that the person named.

use bytes::Bytes;
use reqwest::header::{self, HeaderMap};
use reqwest::{Method, RequestBuilder, StatusCode};
use url::Url;

/// The request. It is sent once and not redirected, as its signature counts for this address alone.
#[derive(Clone, Debug)]
pub struct Relayed {
    /// The method.
    pub method: Method,
    /// The address.
    pub url: Url,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body, empty where there is none.
    pub body: Bytes,
}

/// Its answer, whatever the status. The body is checked for its Content-Length and the low-speed limit alone.
#[derive(Debug)]
pub struct RelayedAnswer {
    /// The status code.
    pub status: StatusCode,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body.
    pub body: super::Body,
}

impl RelayedAnswer {
    /// Bytes of the body, where its head says so.
    pub(super) fn length(asked: &Method, head: &reqwest::Response) -> Option<u64> {
        let is_empty = *asked == Method::HEAD || matches!(head.status().as_u16(), 204 | 304);
        if is_empty { Some(0) } else { head.content_length() }
    }
}

/// What is sent. `keyed` adds the credentials of this program, where the request has none of its own.
pub(super) fn fields(
    client: &reqwest::Client,
    relayed: &Relayed,
    keyed: impl FnOnce(RequestBuilder) -> RequestBuilder,
) -> RequestBuilder {
    let request = client.request(relayed.method.clone(), relayed.url.clone());
    let request = if relayed.headers.contains_key(header::AUTHORIZATION) { request } else { keyed(request) };
    let request = request.headers(relayed.headers.clone());
    if relayed.body.is_empty() { request } else { request.body(relayed.body.clone()) }
}
