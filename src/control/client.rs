//! The commands' side of the socket.

use super::api::{Failure, Request, names};
use super::socket;
use axum::body::Body;
use axum::http::{self, Method, StatusCode, header};
use futures_util::StreamExt;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// The most bytes of an answer that is one value.
const MAX_ANSWER: usize = 16 << 20;

/// Why a mount does not answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No process accepts connections at the socket.
    #[error("the control socket {socket} cannot be reached", socket = .socket.display())]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// The operating system's answer.
        #[source]
        cause: io::Error,
    },
    /// The connection broke.
    #[error("the mount does not answer; resyncfs list shows whether it still runs")]
    Broken(#[from] hyper::Error),
    /// The answer broke off or is too long.
    #[error("the mount's answer cannot be read")]
    Body(#[from] axum::Error),
    /// The answer is not the JSON that is expected: another version of resyncfs.
    #[error("the mount's answer cannot be understood; does another version of resyncfs serve it?")]
    Json(#[from] serde_json::Error),
    /// A request that HTTP cannot carry.
    #[error("the request cannot be written")]
    Request(#[from] http::Error),
    /// This user may not ask.
    #[error("{0}")]
    Forbidden(String),
    /// The mount refused or failed.
    #[error("{error}")]
    Refused {
        /// Why.
        error: String,
        /// The kind of failure, where the mount tells it.
        kind: Option<String>,
    },
}

/// The user whose process serves a socket (`SO_PEERCRED`), without a request to it. Within a runtime only.
pub async fn served_by(socket: &Path) -> Result<u32, ControlError> {
    let unreachable = |cause| ControlError::Unreachable { socket: socket.to_owned(), cause };
    let stream = socket::connect(socket).await.map_err(unreachable)?;
    Ok(stream.peer_cred().map_err(unreachable)?.uid())
}

/// Sends a request and returns its answer. Within a runtime only.
pub async fn call<T: DeserializeOwned>(socket: &Path, request: &Request) -> Result<T, ControlError> {
    let (connection, answer) = send(socket, request).await?;
    let answer = axum::body::to_bytes(Body::new(answer), MAX_ANSWER).await?;
    connection.abort();
    Ok(serde_json::from_slice(&answer)?)
}

/// Sends a request and passes on each line of its answer. Ends with the answer, or when the receiver is dropped; then the
/// mount's work ends too. Within a runtime only.
pub async fn call_lines<T: DeserializeOwned>(
    socket: &Path,
    request: &Request,
    lines: mpsc::Sender<T>,
) -> Result<(), ControlError> {
    let (connection, answer) = send(socket, request).await?;
    let mut pieces = Body::new(answer).into_data_stream();
    let mut pending = Vec::new();
    while let Some(piece) = pieces.next().await {
        pending.extend_from_slice(&piece?);
        let Some(end) = pending.iter().rposition(|byte| *byte == b'\n') else { continue };
        for line in pending[..end].split(|byte| *byte == b'\n') {
            if lines.send(serde_json::from_slice(line)?).await.is_err() {
                connection.abort();
                return Ok(());
            }
        }
        pending.drain(..=end);
    }
    connection.abort();
    Ok(())
}

/// Sends a request; the body of a successful answer, and the connection that it comes over.
async fn send(socket: &Path, request: &Request) -> Result<(AbortHandle, Incoming), ControlError> {
    let unreachable = |cause| ControlError::Unreachable { socket: socket.to_owned(), cause };
    let stream = socket::connect(socket).await.map_err(unreachable)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let (name, fields) = request.parts()?;
    let is_get = names(&Method::GET).contains(&name.as_str());
    let request = http::Request::builder()
        .method(if is_get { Method::GET } else { Method::POST })
        .uri(format!("/{name}"))
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(fields.to_string()))?;
    let connection = tokio::spawn(connection).abort_handle();
    let response = sender.send_request(request).await?;
    let status = response.status();
    if status.is_success() {
        return Ok((connection, response.into_body()));
    }
    let answer = axum::body::to_bytes(Body::new(response.into_body()), MAX_ANSWER).await?;
    connection.abort();
    let Failure { error, kind } = serde_json::from_slice(&answer)?;
    Err(match status {
        StatusCode::FORBIDDEN => ControlError::Forbidden(error),
        _ => ControlError::Refused { error, kind },
    })
}
