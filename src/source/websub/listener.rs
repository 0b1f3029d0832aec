//! Where hubs verify and deliver. Any machine that reaches the port can speak to it: only requests for a path that a hub was
//! given count, and everything is bounded: connections, time, bytes.

use super::registry::Subject;
use super::signature::is_genuine;
use super::subscription::Mode;
use super::{Delivery, Shared};
use crate::document::Uri;
use crate::source::http::links;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
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

/// What one peer, or all together, may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Connections at once; further ones wait in the system's queue.
    pub connections: usize,
    /// Time for the head of a request.
    pub head: Duration,
    /// Time for a request and its answer.
    pub whole: Duration,
    /// Bytes of a delivery. A notification has one entry, seldom more; a full queue of the largest is 64 MiB.
    pub body: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { connections: 256, head: Duration::from_secs(5), whole: Duration::from_secs(10), body: 256 << 10 }
    }
}

/// Why a delivery is not passed on.
#[derive(Clone, Copy)]
struct Refusal {
    status: StatusCode,
    /// Its name in `status`.
    name: &'static str,
    why: &'static str,
}

/// Answers on `listener` as long as the runtime lives.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>, bounds: Bounds) {
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
async fn converse(stream: TcpStream, shared: Arc<Shared>, bounds: Bounds, _permit: OwnedSemaphorePermit) {
    let _ = stream.set_nodelay(true);
    let answering = service_fn(|request| async { Ok::<_, Infallible>(answer(&shared, request, bounds).await) });
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answering);
    let _ = tokio::time::timeout(bounds.whole, conversation).await;
}

async fn answer(shared: &Shared, request: Request<Incoming>, bounds: Bounds) -> Response {
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
    let field = |name: &str| fields.get(name).map(|value| &**value);
    let topic = field("hub.topic").and_then(|topic| Uri::parse(topic).ok());
    let now = SystemTime::now();
    let mut registry = shared.registry();
    let Some(member) = registry.members.get_mut(path) else {
        registry.count("unknown");
        return StatusCode::NOT_FOUND.into_response();
    };
    let subscription = &mut member.subscription;
    let (name, challenge) = match (field("hub.mode"), field("hub.challenge")) {
        _ if topic.as_ref() != Some(&member.subject.topic) => ("not-asked", None),
        (Some("denied"), _) => {
            subscription.denied(now);
            ("denied", Some(""))
        }
        (Some(mode), challenge) => {
            let lease = field("hub.lease_seconds").and_then(|seconds| seconds.parse().ok());
            let is_intended = |mode| challenge.is_some() && subscription.verify(now, mode, lease);
            if Mode::parse(mode).is_some_and(is_intended) { ("verified", challenge) } else { ("not-asked", None) }
        }
        (None, _) => ("not-asked", None),
    };
    registry.count(name);
    drop(registry);
    let Some(challenge) = challenge else { return StatusCode::NOT_FOUND.into_response() };
    match name {
        "denied" => {
            let reason = field("hub.reason").unwrap_or_default();
            tracing::warn!(
                topic = field("hub.topic"),
                ?reason,
                "the hub denies the subscription: changes are polled for"
            );
        }
        _ => tracing::info!(topic = field("hub.topic"), mode = field("hub.mode"), "verified to the hub"),
    }
    shared.changed();
    // A peer chose the text: no browser may run it.
    let plain = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (plain, challenge.to_owned()).into_response()
}

/// Content distribution (WebSub, 7). A forgery is answered as a delivery is: the answer betrays nothing about signatures.
async fn deliver(shared: &Shared, path: &str, request: Request<Incoming>, bounds: Bounds) -> StatusCode {
    let found = shared
        .registry()
        .members
        .get(path)
        .map(|member| (member.subscription.is_wanted(), member.subject.clone(), member.secret.clone()));
    let (name, status, subject) = match found {
        None => ("unknown", StatusCode::NOT_FOUND, None),
        Some((false, ..)) => ("gone", StatusCode::GONE, None),
        Some((true, subject, secret)) => match pass_on(shared, &subject, secret.as_deref(), request, bounds).await {
            Ok(()) => ("delivered", StatusCode::ACCEPTED, None),
            Err(Refusal { status, name, why }) => (name, status, Some((subject, why))),
        },
    };
    let mut registry = shared.registry();
    let count = registry.count(name);
    if name == "delivered"
        && let Some(member) = registry.members.get_mut(path)
    {
        member.deliveries += 1;
        member.last_delivery = Some(SystemTime::now());
    }
    // A hub that goes on doing wrong does not fill the log.
    if let Some((subject, why)) = subject
        && count.is_power_of_two()
    {
        tracing::warn!(topic = %subject.topic, count, "a delivery is ignored: {why}");
    }
    status
}

/// Reads the delivery, checks it and puts it into the queue.
async fn pass_on(
    shared: &Shared,
    subject: &Subject,
    secret: Option<&str>,
    request: Request<Incoming>,
    bounds: Bounds,
) -> Result<(), Refusal> {
    let (head, body) = request.into_parts();
    let body = whole(body, bounds.body).await?;
    if !names_topic(&head.headers, &subject.topic) {
        let why = "its Link does not name the topic";
        return Err(Refusal { status: StatusCode::ACCEPTED, name: "wrong-topic", why });
    }
    let signature = head.headers.get(SIGNATURE).and_then(|field| field.to_str().ok());
    if secret.is_some_and(|secret| !is_genuine(signature, secret, &body)) {
        let why = "its signature is missing or wrong";
        return Err(Refusal { status: StatusCode::ACCEPTED, name: "forged", why });
    }
    let delivery = Delivery { subject: subject.clone(), body };
    let why = "too many wait to be read";
    let busy = Refusal { status: StatusCode::SERVICE_UNAVAILABLE, name: "busy", why };
    shared.deliveries.try_send(delivery).map_err(|_| busy)
}

/// The whole body, of at most `most` bytes; one that announces more is not read at all.
async fn whole(body: Incoming, most: usize) -> Result<Bytes, Refusal> {
    let why = "it is larger than any notification";
    let too_large = Refusal { status: StatusCode::PAYLOAD_TOO_LARGE, name: "too-large", why };
    if body.size_hint().lower() > most as u64 {
        return Err(too_large);
    }
    let mut bytes = BytesMut::new();
    let mut pieces = Body::new(body).into_data_stream();
    while let Some(piece) = pieces.next().await {
        let broken = Refusal { status: StatusCode::BAD_REQUEST, name: "malformed", why: "its body broke off" };
        let piece = piece.map_err(|_| broken)?;
        if bytes.len() + piece.len() > most {
            return Err(too_large);
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.freeze())
}

/// Whether the delivery says that it is of `topic` (Framework Notification, 4.3) and of no other.
fn names_topic(headers: &HeaderMap, topic: &Uri) -> bool {
    let lines = headers.get_all(header::LINK).iter().filter_map(|line| line.to_str().ok());
    let links = links::parse(lines, topic);
    let mut named = links.iter().filter(|(relation, _)| &**relation == "self").map(|(_, target)| target).peekable();
    named.peek().is_some() && named.all(|named| named == topic)
}
