//! What is asked of paths and URIs of the tree.

use super::client::{ControlError, ask_lines};
use super::server::{self, Answers, Lines};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, Response};
use axum::routing::post;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Octets that an order may have: more than a command line can.
const LONGEST_ORDER: usize = 16 << 20;

/// What `POST /prefetch`, `POST /evict` and `POST /uris` are asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathsOrder {
    /// Paths below the root of the mount, without a leading slash; the empty one is the root.
    pub paths: Vec<String>,
}

/// What `POST /paths` is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UrisOrder {
    /// URIs of resources.
    pub uris: Vec<String>,
    /// Read the Source's lists anew for those that are not in the tree.
    #[serde(default)]
    pub ask: bool,
}

/// What the socket answers of the tree, as whoever mounts has it. Each is called within a runtime.
pub struct OfTree {
    /// Fetches files and folders into the cache; ends when nobody listens any more.
    pub prefetch: Box<dyn Fn(PathsOrder) -> Lines + Send + Sync>,
    /// Drops what is cached of files and folders.
    pub evict: Box<dyn Fn(PathsOrder) -> Lines + Send + Sync>,
    /// Tells where resources lie.
    pub paths: Box<dyn Fn(UrisOrder) -> Lines + Send + Sync>,
    /// Tells which resources lie at paths.
    pub uris: Box<dyn Fn(PathsOrder) -> Lines + Send + Sync>,
}

pub(super) fn routes() -> Router<Arc<Answers>> {
    Router::new()
        .route("/prefetch", post(prefetch))
        .route("/evict", post(evict))
        .route("/paths", post(paths))
        .route("/uris", post(uris))
        .layer(DefaultBodyLimit::max(LONGEST_ORDER))
}

async fn prefetch(State(answers): State<Arc<Answers>>, body: Bytes) -> Response<Body> {
    answer(&body, &answers.tree.prefetch)
}

async fn evict(State(answers): State<Arc<Answers>>, body: Bytes) -> Response<Body> {
    answer(&body, &answers.tree.evict)
}

async fn paths(State(answers): State<Arc<Answers>>, body: Bytes) -> Response<Body> {
    answer(&body, &answers.tree.paths)
}

async fn uris(State(answers): State<Arc<Answers>>, body: Bytes) -> Response<Body> {
    answer(&body, &answers.tree.uris)
}

fn answer<O: DeserializeOwned + Default>(body: &[u8], tell: &dyn Fn(O) -> Lines) -> Response<Body> {
    match server::order(body) {
        Ok(order) => server::lines(tell(order)),
        Err(response) => *response,
    }
}

/// Has files fetched into the cache; `lines` get how far that is. Ends when that is done, or when nobody takes the lines any
/// more, and the fetching ends with it. Within a runtime only.
pub async fn ask_prefetch<T: DeserializeOwned>(
    socket: &Path,
    order: &PathsOrder,
    lines: mpsc::Sender<T>,
) -> Result<(), ControlError> {
    post_order(socket, "/prefetch", order, lines).await
}

/// Has what is cached of files dropped. Within a runtime only.
pub async fn ask_evict<T: DeserializeOwned>(
    socket: &Path,
    order: &PathsOrder,
    lines: mpsc::Sender<T>,
) -> Result<(), ControlError> {
    post_order(socket, "/evict", order, lines).await
}

/// Where resources lie; a line each. Within a runtime only.
pub async fn ask_paths<T: DeserializeOwned>(
    socket: &Path,
    order: &UrisOrder,
    lines: mpsc::Sender<T>,
) -> Result<(), ControlError> {
    post_order(socket, "/paths", order, lines).await
}

/// Which resources lie at paths; a line each. Within a runtime only.
pub async fn ask_uris<T: DeserializeOwned>(
    socket: &Path,
    order: &PathsOrder,
    lines: mpsc::Sender<T>,
) -> Result<(), ControlError> {
    post_order(socket, "/uris", order, lines).await
}

async fn post_order<O: Serialize, T: DeserializeOwned>(
    socket: &Path,
    path: &str,
    order: &O,
    lines: mpsc::Sender<T>,
) -> Result<(), ControlError> {
    ask_lines(socket, Method::POST, path, Body::from(serde_json::to_vec(order)?), lines).await
}
