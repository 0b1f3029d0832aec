//! The mount's side of the socket.

use super::{AuditOrder, OfTree, RefreshOrder, metrics, tree};
use crate::causes::printable_json;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::middleware::{self, Next};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use futures_util::{Stream, StreamExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use tokio::net::UnixListener;

/// Octets that an order may have.
const LONGEST_ORDER: usize = 64 << 10;

/// What one is told who asks something else.
const REQUESTS: &str = "there are GET /status, GET /metrics, GET /files, POST /refresh, POST /audit, POST /prefetch, POST /evict, POST /paths and POST /uris";

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
        .route("/status", get(status))
        .route("/metrics", get(metrics::answer))
        .route("/refresh", post(refresh))
        .route("/audit", post(audit))
        .route("/files", get(files))
        .merge(tree::routes())
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

    #[test]
    fn root_and_the_owner_may_ask_and_nobody_else() {
        let of = |uid| Peer { uid };

        assert!(of(Some(1000)).may_ask(1000) && of(Some(0)).may_ask(1000));
        assert!(!of(Some(1001)).may_ask(1000) && !of(Some(1000)).may_ask(0));
        assert!(!of(None).may_ask(1000), "who cannot be named is nobody");
    }
}
