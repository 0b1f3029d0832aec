//! A request that another library has made whole, its signature included, to a host that the person named.

use bytes::Bytes;
use hyper::http::Request;
use reqwest::{Client, RequestBuilder, header};
use url::Url;

/// What is sent. `keyed` adds the credentials of this program, where the request has none of its own.
pub(super) fn fields(
    client: &Client,
    (relayed, url): (&Request<Bytes>, &Url),
    keyed: impl FnOnce(RequestBuilder) -> RequestBuilder,
) -> RequestBuilder {
    let request = client.request(relayed.method().clone(), url.clone());
    let is_keyed = relayed.headers().contains_key(header::AUTHORIZATION);
    let request = if is_keyed { request } else { keyed(request) }.headers(relayed.headers().clone());
    if relayed.body().is_empty() { request } else { request.body(relayed.body().clone()) }
}
