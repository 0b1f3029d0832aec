//! One exchange with one host: admitted by policy and limiter, sent, and sent once more where its connection may be dead or takes no ranges.

use super::announced::announced;
use super::attempt::{HostAnswer, Payload, RequestAttempt, failure, fields, refuses_range};
use super::client::{Client, Own};
use super::host::Host;
use super::policy::Reach;
use super::transport::Generation;
use super::{HttpError, Way, relay};
use crate::document::{Uri, UriError};
use crate::platform::error_chain::chain;
use futures_util::future::{Either, select};
use reqwest::header;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use url::Url;

/// A request that waited for one part in so many of `connect-timeout=` met a silent host. Questions for sizes have little more.
const SILENT_PART: u32 = 3;

/// Address of a request, with the rules that apply to it.
struct RequestTarget<'a> {
    uri: &'a Uri,
    url: Url,
    own: &'a Own,
    host: Arc<Host>,
    reach: Reach,
}

impl Client {
    /// The head of one host's answer. A range that the host refuses over a dedicated connection is asked for once more over the shared one.
    pub(super) async fn ask(&self, attempt: &mut RequestAttempt<'_>, uri: &Uri) -> Result<HostAnswer, HttpError> {
        let (shared, request) = (&*self.shared, attempt.request);
        let url = Url::parse(uri.as_str()).map_err(|_| HttpError::BadRedirect {
            uri: request.uri.clone(),
            cause: UriError::Malformed(uri.to_string()),
        })?;
        let own = self.own();
        let (admitted, host) = match attempt.payload {
            Payload::Whole(..) => (own.policy.admit_named(&url), shared.hosts.store(uri.authority())),
            Payload::Nothing | Payload::Form(_) => (own.policy.admit(&url), shared.hosts.host(uri.authority())),
        };
        let reach = admitted.and_then(|reach| match reach {
            Reach::Public => shared.transport.check_not_proxy(&url).map(|()| reach),
            Reach::Trusted => Ok(reach),
        });
        let reach = reach.map_err(|cause| HttpError::AddressRefused {
            uri: request.uri.clone(),
            target: uri.clone(),
            cause,
        })?;
        let target = RequestTarget { uri, url, own: &own, host, reach };

        if request.way == Way::Shared || !target.host.separates_ranges() {
            return self.exchange(attempt, &target, Way::Shared).await;
        }
        let answer = self.exchange(attempt, &target, Way::Ranges).await;
        if !refuses_range(&answer) {
            if answer.as_ref().is_ok_and(|answer| answer.status() < 400) {
                target.host.answers_ranges();
            }
            return answer;
        }
        let was_closed = matches!(answer, Err(HttpError::Head { .. }));
        tracing::debug!(%uri, was_closed, "no range over a separate connection");
        // Its permit is free for the next request.
        drop(answer);
        let answer = self.exchange(attempt, &target, Way::Shared).await;
        if answer.as_ref().is_ok_and(|answer| answer.status() < 400) {
            target.host.refuse_ranges(was_closed);
        }
        answer
    }

    /// One exchange with one host.
    async fn exchange(
        &self,
        attempt: &mut RequestAttempt<'_>,
        target: &RequestTarget<'_>,
        way: Way,
    ) -> Result<HostAnswer, HttpError> {
        let (RequestTarget { uri, host, .. }, request) = (target, attempt.request);
        let mut permit = host.permit(request, uri, &mut attempt.deadline, attempt.number > 1).await?;
        permit.sent(way);
        let (begun, before) = (Instant::now(), host.progress());
        let outcome = attempt.deadline.within(self.connected(attempt, target, way)).await;
        let outcome = outcome.unwrap_or_else(|| Err(HttpError::Deadline { uri: request.uri.clone(), last: None }));
        let round_trip = match &outcome {
            Ok((_, sent)) => sent.elapsed(),
            Err(_) => begun.elapsed(),
        };
        match &outcome {
            Ok((head, _)) => {
                if way == Way::Shared && uri.scheme() == "https" {
                    host.shares(head.version() >= reqwest::Version::HTTP_2);
                }
                let announced = announced(head.headers(), SystemTime::now());
                let status = head.status().as_u16();
                permit.answered(uri, (status, announced), request.is_refused_by(status), round_trip);
            }
            Err(error) => {
                // Whether there was a connection, where it is a failure of the host. A deadline that had passed soon says nothing of the host, nor
                // does one in whose time others were answered.
                let is_long = round_trip >= self.shared.connect_timeout / SILENT_PART;
                let is_connected = match error {
                    HttpError::Name { .. } | HttpError::Connect { .. } | HttpError::Tls { .. } => Some(false),
                    HttpError::Head { .. } => Some(true),
                    HttpError::Deadline { .. } => (is_long && host.progress() == before).then_some(true),
                    _ => None,
                };
                // That a host takes no further connection says nothing of those that it has. Parallel ranges fail together as well: the
                // download that they are for could not wait until the host is back.
                let is_connected = is_connected.filter(|_| way == Way::Shared && request.way == Way::Shared);
                permit.failed(uri, is_connected.map(|is_connected| (is_connected, chain(error).to_string())));
            }
        }
        outcome.map(|(head, _)| HostAnswer { head, permit, round_trip })
    }

    /// Sends the request, without a limit of time, and once more over a new connection where an idle one may be dead. The head of the first
    /// answer, and when its request was sent.
    async fn connected(
        &self,
        attempt: &RequestAttempt<'_>,
        target: &RequestTarget<'_>,
        way: Way,
    ) -> Result<(reqwest::Response, Instant), HttpError> {
        let transport = &self.shared.transport;
        let (begun, generation) = (Instant::now(), transport.generation());
        let pools = generation.number;
        let mut first = pin!(self.sent(attempt, target, way, generation));
        let mut repetition = tokio::select! {
            biased;
            answer = &mut first => return answer,
            repetition = target.host.silence(attempt.request, pools, begun), if attempt.payload.is_repeatable() => repetition,
        };
        tracing::debug!(uri = %target.uri, "no answer over a connection that may be dead: asked again over a new one");
        let second = pin!(self.sent(attempt, target, way, transport.renewed(pools)?));
        let answer = match select(first, second).await {
            Either::Left((Err(_), second)) => second.await,
            Either::Right((Err(_), first)) => first.await,
            Either::Left((answer, _)) | Either::Right((answer, _)) => answer,
        };
        repetition.is_answered = answer.is_ok();
        answer
    }

    /// Sends the request over pools of this generation.
    async fn sent(
        &self,
        attempt: &RequestAttempt<'_>,
        RequestTarget { uri, url, own, host, reach }: &RequestTarget<'_>,
        way: Way,
        generation: Arc<Generation>,
    ) -> Result<(reqwest::Response, Instant), HttpError> {
        let begun = Instant::now();
        let client = generation.pools(*reach, own.policy.is_own(url)).of(way);
        let keyed = |fields| attempt.keys.apply(fields, url, own.policy.is_own(url), own.is_https);
        let fields = match &attempt.payload {
            Payload::Nothing => keyed(fields(attempt.request, client, url.clone())),
            Payload::Form(form) => keyed(
                client
                    .post(url.clone())
                    .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                    .body((*form).to_owned()),
            ),
            Payload::Whole(whole, url) => relay::fields(client, (*whole, *url), keyed),
        };
        let sent = fields.send().await;
        let outcome = sent.map_err(|cause| failure(attempt.request, uri, host, cause.without_url()));
        if let Err(HttpError::Connect { .. }) = outcome {
            // The host may have another address by now.
            self.shared.transport.forget_addresses(url);
        }
        let head = outcome?;
        host.answered_over(attempt.request, generation.number, begun);
        Ok((head, begun))
    }
}
