//! Where hubs verify and deliver. Whoever finds the port can talk to it, so that nothing is believed that does not come to a
//! path given to a hub, and everything is bounded: connections, time, bytes.

use super::counters::Seen;
use super::signature::is_genuine;
use super::subscription::Mode;
use super::{Delivery, LARGE, Shared, WAITING_LARGE};
use crate::document::Uri;
use crate::source::http::links;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

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
    /// Bytes of a delivery. A notification has one entry, seldom more.
    pub body: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { connections: 256, head: Duration::from_secs(5), whole: Duration::from_secs(10), body: 1 << 20 }
    }
}

/// Answers on `listener` until it is dropped.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>, bounds: Bounds) {
    let router = Router::new().fallback(answer).with_state(Listening { shared: shared.clone(), bounds });
    let places = Arc::new(Semaphore::new(bounds.connections));
    loop {
        // Never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(cause) => {
                tracing::debug!(%cause, "no connection of a hub");
                tokio::time::sleep(REFUSED).await;
                continue;
            }
        };
        let (router, shared) = (router.clone(), shared.clone());
        tokio::spawn(async move {
            if !converse(stream, router, bounds).await {
                shared.counters.add(Seen::TooSlow);
            }
            drop(place);
        });
    }
}

/// One request and its answer; whether they came in time.
async fn converse(stream: TcpStream, router: Router, bounds: Bounds) -> bool {
    let _ = stream.set_nodelay(true);
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(bounds.whole, conversation).await {
        Ok(Ok(())) => true,
        Ok(Err(cause)) => !cause.is_timeout(),
        Err(_) => false,
    }
}

#[derive(Clone)]
struct Listening {
    shared: Arc<Shared>,
    bounds: Bounds,
}

async fn answer(State(Listening { shared, bounds }): State<Listening>, request: Request) -> Response {
    // Whatever a proxy has put before it.
    let path = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    if *request.method() == Method::GET {
        return verify(&shared, &path, request.uri().query().unwrap_or_default());
    }
    if *request.method() == Method::POST {
        return deliver(&shared, &path, request, bounds).await.into_response();
    }
    shared.counters.add(Seen::Unknown);
    (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, POST")]).into_response()
}

/// Verification of intent and denial (WebSub, 5.2 and 5.3).
fn verify(shared: &Shared, path: &str, query: &str) -> Response {
    let field =
        |name: &str| url::form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == name).map(|(_, value)| value);
    let (mode, challenge) = (field("hub.mode"), field("hub.challenge"));
    let topic = field("hub.topic").and_then(|topic| Uri::parse(&topic).ok());
    let lease = field("hub.lease_seconds").and_then(|seconds| seconds.parse().ok());
    let not_found = |seen| {
        shared.counters.add(seen);
        StatusCode::NOT_FOUND.into_response()
    };

    let mut registry = shared.registry();
    let Some(member) = registry.members.get_mut(path) else { return not_found(Seen::Unknown) };
    let (Some(mode), Some(topic)) = (mode, topic.filter(|topic| *topic == member.subject.topic)) else {
        return not_found(Seen::NotAsked);
    };
    let now = SystemTime::now();
    if mode == "denied" {
        member.subscription.denied(now);
        drop(registry);
        let reason = field("hub.reason").unwrap_or_default();
        tracing::warn!(%topic, ?reason, "the hub denies the subscription: changes are polled for");
        shared.counters.add(Seen::Denied);
        shared.changed();
        return StatusCode::OK.into_response();
    }
    let Some((mode, challenge)) = Mode::parse(&mode).zip(challenge) else { return not_found(Seen::NotAsked) };
    if !member.subscription.verify(now, mode, lease) {
        return not_found(Seen::NotAsked);
    }
    let lease = member.subscription.lease_ends().and_then(|end| end.duration_since(now).ok());
    drop(registry);
    tracing::info!(%topic, mode = mode.as_str(), ?lease, "verified to the hub");
    shared.counters.add(Seen::Verified);
    shared.changed();
    // What somebody else wrote is text and nothing that a browser would run.
    let plain = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (plain, challenge.into_owned()).into_response()
}

/// Content distribution (WebSub, 7). A forgery is answered as a delivery is: whoever tries signatures learns nothing.
async fn deliver(shared: &Shared, path: &str, request: Request, bounds: Bounds) -> StatusCode {
    let (subject, secret) = match shared.registry().members.get(path) {
        None => {
            shared.counters.add(Seen::Unknown);
            return StatusCode::NOT_FOUND;
        }
        Some(member) if !member.subscription.is_wanted() => {
            shared.counters.add(Seen::Gone);
            return StatusCode::GONE;
        }
        Some(member) => (member.subject.clone(), member.secret.clone()),
    };
    let refused = |seen: Seen, what: &str| {
        let count = shared.counters.add(seen);
        // A hub that goes on doing wrong does not fill the log.
        if count.is_power_of_two() {
            tracing::warn!(topic = %subject.topic, count, "a delivery is ignored: {what}");
        }
    };
    let (head, body) = request.into_parts();
    let body = match whole(&head.headers, body, bounds.body).await {
        Ok(body) => body,
        Err(Unfit::TooLarge) => {
            refused(Seen::TooLarge, "it is larger than any notification");
            return StatusCode::PAYLOAD_TOO_LARGE;
        }
        Err(Unfit::Broken) => {
            refused(Seen::Malformed, "its body broke off");
            return StatusCode::BAD_REQUEST;
        }
    };
    if !names_topic(&head.headers, &subject.topic) {
        refused(Seen::WrongTopic, "its Link does not name the topic");
        return StatusCode::ACCEPTED;
    }
    if let Some(secret) = &secret {
        let signature = head.headers.get(SIGNATURE).and_then(|field| field.to_str().ok());
        if !is_genuine(signature, secret, &body) {
            refused(Seen::Forged, "its signature is missing or wrong");
            return StatusCode::ACCEPTED;
        }
    }
    let waiting = shared.deliveries.max_capacity() - shared.deliveries.capacity();
    let fits = body.len() <= LARGE || waiting < WAITING_LARGE;
    let delivery = Delivery { subject: subject.clone(), body };
    if !fits || matches!(shared.deliveries.try_send(delivery), Err(mpsc::error::TrySendError::Full(_))) {
        refused(Seen::Busy, "too many wait to be looked at");
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    shared.counters.add(Seen::Delivered);
    if let Some(member) = shared.registry().members.get_mut(path) {
        member.deliveries += 1;
        member.last_delivery = Some(SystemTime::now());
    }
    StatusCode::ACCEPTED
}

/// Why there is no body to look at.
enum Unfit {
    TooLarge,
    Broken,
}

/// The whole body, of at most `most` bytes; what tells that it is larger is not read at all.
async fn whole(headers: &HeaderMap, body: Body, most: usize) -> Result<Bytes, Unfit> {
    let told = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if told.is_some_and(|told| told > most as u64) {
        return Err(Unfit::TooLarge);
    }
    let mut bytes = BytesMut::new();
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| Unfit::Broken)?;
        if bytes.len() + piece.len() > most {
            return Err(Unfit::TooLarge);
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
