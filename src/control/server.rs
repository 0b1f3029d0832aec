//! The mount's side of the socket.

use super::api::{Request, names};
use super::reply::{self, Lines};
use axum::Router;
use axum::extract;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::serve::IncomingStream;
use serde_json::Value;
use std::io;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most bytes of a request: more than a command line can hold.
const MAX_REQUEST: usize = 16 << 20;

/// Answers of many lines at a time: each may need a thread, and files on the disk.
const MAX_LISTENERS: usize = 32;

/// How a mount answers a request.
pub enum Answer {
    /// One JSON value.
    Value(Value),
    /// Metrics for Prometheus.
    Metrics(String),
    /// JSON lines, as they come.
    Lines(Lines),
    /// A failure.
    Failed {
        /// The reason, for a person.
        why: String,
        /// Its kind, where programs tell kinds apart.
        kind: Option<String>,
    },
    /// The mount ends before.
    Ending,
}

/// Serves the connections of `listener` by `answer`, until the future is dropped.
pub async fn serve<F>(
    listener: UnixListener,
    answer: impl Fn(Request) -> F + Clone + Send + Sync + 'static,
) -> io::Result<()>
where
    F: Future<Output = Answer> + Send + 'static,
{
    let listeners = Arc::new(Semaphore::new(MAX_LISTENERS));
    let respond = async move |ConnectInfo(peer): ConnectInfo<Peer>, request: extract::Request| {
        // The modes of the socket and its folder forbid others too, but an administrator may change these.
        if !peer.may_ask(rustix::process::geteuid().as_raw()) {
            return reply::failure(StatusCode::FORBIDDEN, "only root and the user of the mount can query it", None);
        }
        let request = match parsed(request).await {
            Ok(request) => request,
            Err((status, error)) => return reply::failure(status, error, None),
        };
        // Before the work begins: a refused request takes no thread, and removes nothing.
        let Ok(permit) = request.is_answered_in_lines().then(|| listeners.try_acquire_owned()).transpose() else {
            let error =
                format!("{MAX_LISTENERS} audits, prefetches and listings run already; try again when some have ended");
            return reply::failure(StatusCode::SERVICE_UNAVAILABLE, error, None);
        };
        response(answer(request).await, permit)
    };
    let router = Router::new().fallback(respond);
    axum::serve(listener, router.into_make_service_with_connect_info::<Peer>()).await
}

/// The request; otherwise the status and the reason of its refusal.
async fn parsed(request: extract::Request) -> Result<Request, (StatusCode, String)> {
    let (head, body) = request.into_parts();
    let name = head.uri.path().trim_start_matches('/');
    if !names(&head.method).contains(&name) {
        let is_known = [Method::GET, Method::POST].iter().any(|method| names(method).contains(&name));
        let status = if is_known { StatusCode::METHOD_NOT_ALLOWED } else { StatusCode::NOT_FOUND };
        let known = [Method::GET, Method::POST].map(|method| format!("{method} /{}", names(&method).join(", /")));
        return Err((status, format!("the requests are {}", known.join("; "))));
    }
    // Where the connection broke there is no client to get this answer.
    let body = axum::body::to_bytes(body, MAX_REQUEST).await.map_err(|_| {
        let error = format!("a request may have at most {} MiB; split it", MAX_REQUEST >> 20);
        (StatusCode::PAYLOAD_TOO_LARGE, error)
    })?;
    Request::parse(name, &body)
        .map_err(|cause| (StatusCode::BAD_REQUEST, format!("the request cannot be understood: {cause}")))
}

/// `permit` is held until the last line is taken.
fn response(answer: Answer, permit: Option<OwnedSemaphorePermit>) -> Response {
    match answer {
        Answer::Value(value) => reply::value(StatusCode::OK, &value),
        Answer::Metrics(text) => reply::metrics(text),
        Answer::Lines(lines) => reply::lines(lines, permit),
        Answer::Failed { why, kind } => reply::failure(StatusCode::BAD_GATEWAY, why, kind),
        Answer::Ending => reply::failure(StatusCode::SERVICE_UNAVAILABLE, "the mount is ending", None),
    }
}

/// The user at the other end as the kernel reports it (`SO_PEERCRED`); `None` where it reports none.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_owner_may_ask() {
        let of = |uid| Peer { uid };

        assert!(of(Some(1000)).may_ask(1000) && of(Some(0)).may_ask(1000));
        assert!(!of(Some(1001)).may_ask(1000) && !of(Some(1000)).may_ask(0));
        assert!(!of(None).may_ask(1000), "an unknown user may not ask");
    }
}
