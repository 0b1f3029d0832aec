//! Where hubs verify and deliver. Any machine that reaches the port can speak to it: only requests for a path that a hub was
//! given count, and everything is bounded: connections, time, bytes.

use super::registry::{Member, Subject};
use super::signature::is_genuine;
use super::subscription::Mode;
use super::{Delivery, Shared};
use crate::document::{Uri, web_link::links_of_header};
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::{BodyExt, Collected, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::borrow::Cow;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The name of the field that signs a delivery.
const SIGNATURE: &str = "x-hub-signature";

/// A pause after the system refused a connection: it has no descriptors left, and asking at once would only spin.
const REFUSED: Duration = Duration::from_millis(100);

/// Bounds for one peer, and for all together.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeliveryBounds {
    /// Connections at once; further ones wait in the system's queue.
    pub connections: usize,
    /// Time for a request and its answer.
    pub time: Duration,
    /// Bytes of a delivery. A notification has one entry, seldom more; a full queue of the largest is 64 MiB.
    pub body: usize,
}

impl Default for DeliveryBounds {
    fn default() -> DeliveryBounds {
        DeliveryBounds { connections: 256, time: Duration::from_secs(10), body: 256 << 10 }
    }
}

/// Why a delivery is not passed on: the answer, and the name in `status` and the log.
struct DeliveryRefusal(StatusCode, &'static str);

const TOO_LARGE: DeliveryRefusal = DeliveryRefusal(StatusCode::PAYLOAD_TOO_LARGE, "too-large");
const BROKEN: DeliveryRefusal = DeliveryRefusal(StatusCode::BAD_REQUEST, "malformed");
const WRONG_TOPIC: DeliveryRefusal = DeliveryRefusal(StatusCode::ACCEPTED, "wrong-topic");
/// Answered as a delivery is: the answer betrays nothing about signatures.
const FORGED: DeliveryRefusal = DeliveryRefusal(StatusCode::ACCEPTED, "forged");
const BUSY: DeliveryRefusal = DeliveryRefusal(StatusCode::SERVICE_UNAVAILABLE, "busy");

/// Answers on `listener` as long as the runtime lives.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>, bounds: DeliveryBounds) {
    let permits = Arc::new(Semaphore::new(bounds.connections));
    while let Ok(permit) = permits.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(converse(stream, shared.clone(), bounds, permit));
            }
            Err(cause) => {
                tracing::debug!(%cause, "no connection of a hub");
                tokio::time::sleep(REFUSED).await;
            }
        }
    }
}

/// One request and its answer. A peer that is too slow or speaks no HTTP loses its own connection alone.
async fn converse(stream: TcpStream, shared: Arc<Shared>, bounds: DeliveryBounds, _permit: OwnedSemaphorePermit) {
    let _ = stream.set_nodelay(true);
    let answering = service_fn(|request| async { Ok::<_, Infallible>(answer(&shared, request, bounds).await) });
    let conversation = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), answering);
    let _ = tokio::time::timeout(bounds.time, conversation).await;
}

async fn answer(shared: &Shared, request: Request<Incoming>, bounds: DeliveryBounds) -> Response {
    // A proxy may have put other segments before it.
    let path = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    match *request.method() {
        Method::GET => verify(shared, &path, request.uri().query().unwrap_or_default()),
        Method::POST => deliver(shared, &path, request, bounds).await.into_response(),
        _ => {
            shared.registry().count("unknown");
            (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, POST")]).into_response()
        }
    }
}

/// Verification of intent and denial (WebSub, 5.2 and 5.3).
fn verify(shared: &Shared, path: &str, query: &str) -> Response {
    let fields: HashMap<_, _> = url::form_urlencoded::parse(query.as_bytes()).collect();
    let mut registry = shared.registry();
    let (name, challenge) =
        registry.members.get_mut(path).map_or(("unknown", None), |member| intended(member, &fields));
    registry.count(name);
    drop(registry);
    let Some(challenge) = challenge else { return StatusCode::NOT_FOUND.into_response() };
    shared.changed();
    // A peer chose the text: no browser may run it.
    let plain = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (plain, challenge.to_owned()).into_response()
}

/// The name in `status`, and the text that confirms.
fn intended<'a>(
    member: &mut Member,
    fields: &'a HashMap<Cow<'_, str>, Cow<'_, str>>,
) -> (&'static str, Option<&'a str>) {
    let field = |name: &str| fields.get(name).map(|value| &**value);
    let topic = field("hub.topic").and_then(|topic| Uri::parse(topic).ok());
    let (Some(topic), Some(mode)) = (topic.filter(|topic| *topic == member.subject.topic), field("hub.mode")) else {
        return ("not-asked", None);
    };
    let now = SystemTime::now();
    if mode == "denied" {
        member.subscription.denied(now);
        let reason = field("hub.reason").unwrap_or_default();
        tracing::warn!(%topic, ?reason, "the hub denies the subscription; changes are polled instead");
        return ("denied", Some(""));
    }
    let lease = field("hub.lease_seconds").and_then(|seconds| seconds.parse().ok());
    let confirmed = Mode::parse(mode).zip(field("hub.challenge"));
    match confirmed.filter(|(mode, _)| member.subscription.verify(now, *mode, lease)) {
        Some((_, challenge)) => {
            tracing::info!(%topic, mode, ?lease, "a request of the hub is confirmed");
            ("verified", Some(challenge))
        }
        None => ("not-asked", None),
    }
}

/// Content distribution (WebSub, 7).
async fn deliver(shared: &Shared, path: &str, request: Request<Incoming>, bounds: DeliveryBounds) -> StatusCode {
    let found = shared
        .registry()
        .members
        .get(path)
        .map(|member| (member.subscription.is_wanted(), member.subject.clone(), member.secret.clone()));
    let Some((is_wanted, subject, secret)) = found else {
        shared.registry().count("unknown");
        return StatusCode::NOT_FOUND;
    };
    if !is_wanted {
        shared.registry().count("gone");
        return StatusCode::GONE;
    }
    let topic = subject.topic.clone();
    let passed_on = pass_on(shared, subject, secret.as_deref(), request, bounds).await;
    let mut registry = shared.registry();
    match passed_on {
        Ok(()) => {
            registry.count("delivered");
            if let Some(member) = registry.members.get_mut(path) {
                member.deliveries += 1;
                member.last_delivery = Some(SystemTime::now());
            }
            StatusCode::ACCEPTED
        }
        Err(DeliveryRefusal(status, name)) => {
            let count = registry.count(name);
            // A hub that goes on doing wrong does not fill the log.
            if count.is_power_of_two() {
                tracing::warn!(%topic, count, "a delivery is ignored: {name}");
            }
            status
        }
    }
}

/// Reads the delivery, checks it and puts it into the queue.
async fn pass_on(
    shared: &Shared,
    subject: Subject,
    secret: Option<&str>,
    request: Request<Incoming>,
    bounds: DeliveryBounds,
) -> Result<(), DeliveryRefusal> {
    let (head, body) = request.into_parts();
    let body = whole(body, bounds.body).await?;
    if !names_topic(&head.headers, &subject.topic) {
        return Err(WRONG_TOPIC);
    }
    let signature = head.headers.get(SIGNATURE).and_then(|field| field.to_str().ok());
    if secret.is_some_and(|secret| !is_genuine(signature, secret, &body)) {
        return Err(FORGED);
    }
    shared.deliveries.try_send(Delivery { subject, body }).map_err(|_| BUSY)
}

/// The whole body, of at most `most` bytes; one that announces more is not read at all.
async fn whole(body: Incoming, most: usize) -> Result<Bytes, DeliveryRefusal> {
    if body.size_hint().lower() > most as u64 {
        return Err(TOO_LARGE);
    }
    let read = Limited::new(body, most).collect().await;
    read.map(Collected::to_bytes).map_err(|cause| if cause.is::<LengthLimitError>() { TOO_LARGE } else { BROKEN })
}

/// Returns whether the delivery says that it is of `topic` (Framework Notification, 4.3) and of no other.
fn names_topic(headers: &HeaderMap, topic: &Uri) -> bool {
    let lines = headers.get_all(header::LINK).iter().filter_map(|line| line.to_str().ok());
    let links = links_of_header(lines, topic);
    let mut named = links.iter().filter_map(|link| link.leads_by("self")).peekable();
    named.peek().is_some() && named.all(|named| named == topic)
}
