//! The mount's side of the socket.

use super::{AuditOrder, OfTree, RefreshOrder, metrics, tree};
use crate::platform::error_chain::printable_json;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::middleware::{self, Next};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use futures_util::{Stream, StreamExt, stream};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Octets that an order may have.
const LONGEST_ORDER: usize = 64 << 10;

/// What one is told who asks something else.
const REQUESTS: &str = "there are GET /status, GET /metrics, GET /files, POST /refresh, POST /audit, POST /prefetch, POST /evict, POST /paths and POST /uris";

/// Answers of many lines that are under way at a time: each may take a thread, and files of its own on the disk.
const LISTENERS: usize = 32;

/// How long a client may take no line before it is left.
const STALLED: Duration = Duration::from_secs(600);

/// Why a refresh brought nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It failed, because of this.
    Failed(String),
    /// The mount ends before.
    Ending,
}

/// What a refresh that was asked for comes to, once it does.
pub type Waiting = Pin<Box<dyn Future<Output = Result<Value, Refusal>> + Send>>;

/// What is told bit by bit. Dropped where nobody listens any more.
pub type Lines = Pin<Box<dyn Stream<Item = Value> + Send>>;

/// What the socket answers, as whoever mounts has it.
pub struct Answers {
    /// The mount as it is now. Must not wait.
    pub status: Box<dyn Fn() -> Value + Send + Sync>,
    /// The same in numbers.
    pub metrics: metrics::Metrics,
    /// Has a refresh done; ready when it is.
    pub refresh: Box<dyn Fn(RefreshOrder) -> Waiting + Send + Sync>,
    /// Compares the mount with its Source and tells what is found. Called within a runtime.
    pub audit: Box<dyn Fn(AuditOrder) -> Lines + Send + Sync>,
    /// Tells of every file. Called within a runtime.
    pub files: Box<dyn Fn() -> Lines + Send + Sync>,
    /// Fetches, drops and finds files.
    pub tree: OfTree,
}

/// Answers whoever connects to `listener`, until the future is dropped.
pub async fn serve(listener: UnixListener, answers: Answers) -> io::Result<()> {
    let app = Router::new()
        .route("/audit", post(audit))
        .route("/files", get(files))
        .merge(tree::routes())
        .route_layer(middleware::from_fn_with_state(Arc::new(Semaphore::new(LISTENERS)), bounded))
        .route("/status", get(status))
        .route("/metrics", get(metrics::answer))
        .route("/refresh", post(refresh))
        .fallback(async || failure(StatusCode::NOT_FOUND, REQUESTS))
        .method_not_allowed_fallback(async || failure(StatusCode::METHOD_NOT_ALLOWED, REQUESTS))
        .layer(DefaultBodyLimit::max(LONGEST_ORDER))
        .layer(middleware::from_fn(only_the_owner))
        .with_state(Arc::new(answers));
    axum::serve(listener, app.into_make_service_with_connect_info::<Peer>()).await
}

async fn status(State(answers): State<Arc<Answers>>) -> Response<Body> {
    answer(StatusCode::OK, (answers.status)())
}

async fn refresh(State(answers): State<Arc<Answers>>, body: Bytes) -> Response<Body> {
    let order = match order(&body) {
        Ok(order) => order,
        Err(response) => return *response,
    };
    match (answers.refresh)(order).await {
        Ok(refreshed) => answer(StatusCode::OK, refreshed),
        Err(Refusal::Failed(error)) => failure(StatusCode::BAD_GATEWAY, &error),
        Err(Refusal::Ending) => failure(StatusCode::SERVICE_UNAVAILABLE, "the mount is ending"),
    }
}

async fn audit(State(answers): State<Arc<Answers>>, body: Bytes) -> Response<Body> {
    match order(&body) {
        Ok(order) => lines((answers.audit)(order)),
        Err(response) => *response,
    }
}

async fn files(State(answers): State<Arc<Answers>>) -> Response<Body> {
    lines((answers.files)())
}

/// What is ordered; without a body the usual.
pub(super) fn order<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, Box<Response<Body>>> {
    let order = if body.is_empty() { Ok(T::default()) } else { serde_json::from_slice(body) };
    order.map_err(|cause| {
        Box::new(failure(StatusCode::BAD_REQUEST, &format!("the order cannot be understood: {cause}")))
    })
}

/// Who is at the other end, as the kernel says (`SO_PEERCRED`); `None` where it does not.
#[derive(Clone, Copy, Debug)]
struct Peer {
    uid: Option<u32>,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Peer {
        Peer { uid: stream.io().peer_cred().ok().map(|peer| peer.uid()) }
    }
}

impl Peer {
    fn may_ask(self, owner: u32) -> bool {
        self.uid.is_some_and(|uid| uid == 0 || uid == owner)
    }
}

/// The modes of socket and folder say the same; they are the administrator's to change, this is not.
async fn only_the_owner(ConnectInfo(peer): ConnectInfo<Peer>, request: Request, next: Next) -> Response<Body> {
    // SAFETY: geteuid has no preconditions and cannot fail.
    let owner = unsafe { libc::geteuid() };
    if peer.may_ask(owner) {
        return next.run(request).await;
    }
    failure(StatusCode::FORBIDDEN, "only root and the user of the mount may ask")
}

/// Lets in so many at a time, and ends the answer of a client that does not take it.
async fn bounded(State(listeners): State<Arc<Semaphore>>, request: Request, next: Next) -> Response<Body> {
    let Ok(permit) = listeners.try_acquire_owned() else {
        let error =
            format!("{LISTENERS} audits, listings and the like are under way already; try again when some have ended");
        return failure(StatusCode::SERVICE_UNAVAILABLE, &error);
    };
    match tokio::time::timeout(STALLED, next.run(request)).await {
        Ok(answer) => answer.map(|body| taken(body, STALLED, permit)),
        Err(_) => failure(StatusCode::REQUEST_TIMEOUT, "the order has not come whole"),
    }
}

/// `body` as long as a client takes of it within `stalled`. What makes it ends with it.
fn taken(body: Body, stalled: Duration, permit: OwnedSemaphorePermit) -> Body {
    // `None` is the end: without it the client was left, and is not to take what it has for all.
    let (sender, pieces) = mpsc::channel::<Option<Result<Bytes, axum::Error>>>(1);
    tokio::spawn(async move {
        let _permit = permit;
        let mut body = body.into_data_stream();
        loop {
            let piece = tokio::select! {
                piece = body.next() => piece,
                () = sender.closed() => return,
            };
            let is_end = piece.is_none();
            let is_taken = matches!(tokio::time::timeout(stalled, sender.send(piece)).await, Ok(Ok(())));
            if is_end || !is_taken {
                return;
            }
        }
    });
    Body::from_stream(stream::unfold(Some(pieces), |pieces| async {
        let mut pieces = pieces?;
        match pieces.recv().await {
            Some(piece) => piece.map(|piece| (piece, Some(pieces))),
            None => Some((Err(axum::Error::new(io::Error::from(io::ErrorKind::TimedOut))), None)),
        }
    }))
}

pub(super) fn failure(status: StatusCode, error: &str) -> Response<Body> {
    answer(status, json!({ "error": error }))
}

pub(super) fn lines(lines: Lines) -> Response<Body> {
    let mut response =
        Response::new(Body::from_stream(lines.map(|line| Ok::<_, Infallible>(printable_json(&line) + "\n"))));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}

fn answer(status: StatusCode, value: Value) -> Response<Body> {
    let mut response = Response::new(Body::from(printable_json(&value) + "\n"));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_left_and_a_slow_one_is_not() {
        let listeners = Arc::new(Semaphore::new(1));
        let lines = || Body::from_stream(stream::iter((0..4).map(|it| Ok::<_, Infallible>(format!("{it}\n")))));
        let begin = async |stalled| {
            taken(lines(), stalled, Arc::clone(&listeners).acquire_owned().await.unwrap()).into_data_stream()
        };

        let mut stalling = begin(Duration::from_millis(10)).await;
        // The permit is free again although the answer is still held.
        let slow = begin(Duration::from_secs(60)).await;
        let heard = [stalling.next().await, stalling.next().await];
        let all: Vec<_> = slow.then(async |piece| piece.unwrap()).collect().await;

        assert!(heard[0].as_ref().unwrap().is_ok() && heard[1].as_ref().unwrap().is_err(), "{heard:?}");
        assert_eq!(all.concat(), b"0\n1\n2\n3\n");
    }

    #[test]
    fn root_and_the_owner_may_ask_and_nobody_else() {
        let of = |uid| Peer { uid };

        assert!(of(Some(1000)).may_ask(1000) && of(Some(0)).may_ask(1000));
        assert!(!of(Some(1001)).may_ask(1000) && !of(Some(1000)).may_ask(0));
        assert!(!of(None).may_ask(1000), "who cannot be named is nobody");
    }
}
