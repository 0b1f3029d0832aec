//! The other side of the socket: what a mount is asked by commands.

use super::{AuditOrder, RefreshOrder, socket};
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use futures_util::StreamExt;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// Octets that an answer may have.
const LONGEST_ANSWER: usize = 16 << 20;

/// Why a mount does not answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody can be reached at the socket.
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
    /// The answer is no JSON of the kind expected: another version of resyncfs.
    #[error("the mount's answer cannot be understood; is it served by another version of resyncfs?")]
    Json(#[from] serde_json::Error),
    /// A request that HTTP cannot carry.
    #[error("the request cannot be written")]
    Request(#[from] axum::http::Error),
    /// The kernel tells the mount that somebody else asks.
    #[error("{said}")]
    Forbidden {
        /// What the mount said.
        said: String,
    },
    /// The mount refused or failed.
    #[error("{said}")]
    Refused {
        /// What the mount said.
        said: String,
    },
}

/// What every answer that is no success holds.
#[derive(Deserialize)]
struct Failure {
    error: String,
}

/// The user whose process answers at a socket (`SO_PEERCRED`), without asking it anything. Within a runtime only.
pub async fn served_by(socket: &Path) -> Result<u32, ControlError> {
    let unreachable = |cause| ControlError::Unreachable { socket: socket.to_owned(), cause };
    let stream = socket::connect(socket).await.map_err(unreachable)?;
    Ok(stream.peer_cred().map_err(unreachable)?.uid())
}

/// The mount as it is now. Within a runtime only.
pub async fn ask_status<T: DeserializeOwned>(socket: &Path) -> Result<T, ControlError> {
    ask(socket, Method::GET, "/status", Body::empty()).await
}

/// Has the mount look at its Source; answers when that is done. Within a runtime only.
pub async fn ask_refresh<T: DeserializeOwned>(socket: &Path, order: RefreshOrder) -> Result<T, ControlError> {
    ask(socket, Method::POST, "/refresh", Body::from(serde_json::to_vec(&order)?)).await
}

/// Has the mount audited; `lines` get what it finds. Ends when that is done, or when nobody takes the lines any more. Within a
/// runtime only.
pub async fn ask_audit<T: DeserializeOwned>(
    socket: &Path,
    order: AuditOrder,
    lines: mpsc::Sender<T>,
) -> Result<(), ControlError> {
    ask_lines(socket, Method::POST, "/audit", Body::from(serde_json::to_vec(&order)?), lines).await
}

/// Every file of the mount; otherwise as [`ask_audit`].
pub async fn ask_files<T: DeserializeOwned>(socket: &Path, lines: mpsc::Sender<T>) -> Result<(), ControlError> {
    ask_lines(socket, Method::GET, "/files", Body::empty(), lines).await
}

async fn ask<T: DeserializeOwned>(socket: &Path, method: Method, path: &str, body: Body) -> Result<T, ControlError> {
    let (connection, answer) = request(socket, method, path, body).await?;
    let answer = axum::body::to_bytes(Body::new(answer), LONGEST_ANSWER).await?;
    connection.abort();
    Ok(serde_json::from_slice(&answer)?)
}

pub(super) async fn ask_lines<T: DeserializeOwned>(
    socket: &Path,
    method: Method,
    path: &str,
    body: Body,
    lines: mpsc::Sender<T>,
) -> Result<(), ControlError> {
    let (connection, answer) = request(socket, method, path, body).await?;
    let mut pieces = Body::new(answer).into_data_stream();
    let mut begun = Vec::new();
    while let Some(piece) = pieces.next().await {
        begun.extend_from_slice(&piece?);
        let Some(end) = begun.iter().rposition(|octet| *octet == b'\n') else { continue };
        for line in begun[..end].split(|octet| *octet == b'\n') {
            if lines.send(serde_json::from_slice(line)?).await.is_err() {
                connection.abort();
                return Ok(());
            }
        }
        begun.drain(..=end);
    }
    connection.abort();
    Ok(())
}

/// Asks, and gives the body of an answer that is a success, with the connection that it comes by.
async fn request(
    socket: &Path,
    method: Method,
    path: &str,
    body: Body,
) -> Result<(AbortHandle, Incoming), ControlError> {
    let unreachable = |cause| ControlError::Unreachable { socket: socket.to_owned(), cause };
    let stream = socket::connect(socket).await.map_err(unreachable)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .body(body)?;
    let connection = tokio::spawn(connection).abort_handle();
    let response = sender.send_request(request).await?;
    let status = response.status();
    if status.is_success() {
        return Ok((connection, response.into_body()));
    }
    let answer = axum::body::to_bytes(Body::new(response.into_body()), LONGEST_ANSWER).await?;
    connection.abort();
    let said = serde_json::from_slice::<Failure>(&answer)?.error;
    Err(match status {
        StatusCode::FORBIDDEN => ControlError::Forbidden { said },
        _ => ControlError::Refused { said },
    })
}
