//! A request that another library has made whole, its signature included, to a host that the person named.

use super::attempt::{HostAnswer, Payload, RequestAttempt};
use super::{Body, Client, HttpError, Priority, Request, field};
use crate::document::Uri;
use bytes::Bytes;
use hyper::http;
use reqwest::{RequestBuilder, header};
use std::time::{Duration, SystemTime};
use url::Url;

/// Request as reqwest sends it. `keyed` adds the credentials of this program, where the request has none.
pub(super) fn fields(
    client: &reqwest::Client,
    (relayed, url): (&http::Request<Bytes>, &Url),
    keyed: impl FnOnce(RequestBuilder) -> RequestBuilder,
) -> RequestBuilder {
    let request = client.request(relayed.method().clone(), url.clone());
    let is_keyed = relayed.headers().contains_key(header::AUTHORIZATION);
    let request = if is_keyed { request } else { keyed(request) }.headers(relayed.headers().clone());
    if relayed.body().is_empty() { request } else { request.body(relayed.body().clone()) }
}

impl Client {
    /// Sends a request that another library has made, once, to `url`. The head of the answer is due within `within`. Its host is one of those
    /// that the limiter and the breaker know, without the limits that are meant for the Source.
    pub async fn relay(
        &self,
        relayed: &http::Request<Bytes>,
        priority: Priority,
        within: Duration,
    ) -> Result<http::Response<Body>, HttpError> {
        let bad = |cause| HttpError::Config { what: "a request cannot be sent".to_owned(), cause };
        let address = relayed.uri().to_string();
        let uri = Uri::parse(address.split('?').next().unwrap_or_default()).map_err(|_| bad(None))?;
        let url = Url::parse(&address).map_err(|cause| bad(Some(cause.into())))?;
        let request = Request { priority, ..Request::get(uri.clone(), within) };
        // What is in the store is at the Source too: no pause of the store is waited for.
        let mut attempt = RequestAttempt::of(&request, Payload::Whole(relayed, &url), self.keys(), Duration::ZERO);
        let mut answer = self.ask(&mut attempt, &uri).await?;
        if matches!(answer.status(), 401 | 403) && self.renew_keys(&attempt.keys).await {
            attempt.keys = self.keys();
            drop(answer);
            answer = self.ask(&mut attempt, &uri).await?;
        }
        let HostAnswer { head, permit, round_trip } = answer;
        let (status, headers, low_speed) = (head.status(), head.headers().clone(), self.shared.low_speed);
        let pause = field::retry_after(&headers, SystemTime::now()).filter(|_| matches!(status.as_u16(), 429 | 503));
        if let Some(pause) = pause {
            permit.host.refused(&request, status.as_u16(), Some(pause));
        }
        let expected = head.content_length().filter(|_| relayed.method() != reqwest::Method::HEAD);
        let allowance = self.shared.allowance.clone().filter(|_| relayed.method() == reqwest::Method::GET);
        let body = Body::new(uri, head, expected, low_speed, permit.reading(round_trip), allowance);
        let mut answer = http::Response::new(body);
        (*answer.status_mut(), *answer.headers_mut()) = (status, headers);
        Ok(answer)
    }
}
