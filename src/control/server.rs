//! The mount's side of the socket.

use super::api::{Request, names};
use super::reply::{self, Lines};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::serve::IncomingStream;
use futures_util::{StreamExt, stream};
use serde_json::Value;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// The most bytes of a request: more than a command line can hold.
const MAX_REQUEST: usize = 16 << 20;

/// Answers of many lines at a time: each may need a thread, and files on the disk.
const MAX_LISTENERS: usize = 32;

/// A client that takes no line for this long is disconnected, and so is one that sends its request for longer.
const STALLED: Duration = Duration::from_secs(600);

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
        let request = match parsed(request, STALLED).await {
            Ok(request) => request,
            Err((status, error)) => return reply::failure(status, error, None),
        };
        if !request.is_answered_in_lines() {
            return response(answer(request).await, None);
        }
        // Before the work begins: a refused request takes no thread, and removes nothing.
        match listeners.try_acquire_owned() {
            Ok(permit) => response(answer(request).await, Some(permit)),
            Err(_) => {
                let error = format!(
                    "{MAX_LISTENERS} audits, prefetches and listings run already; try again when some have ended"
                );
                reply::failure(StatusCode::SERVICE_UNAVAILABLE, error, None)
            }
        }
    };
    let router = Router::new().fallback(respond);
    axum::serve(listener, router.into_make_service_with_connect_info::<Peer>()).await
}

/// The request, whose body arrives within `patience`; otherwise the status and the reason of its refusal.
async fn parsed(request: extract::Request, patience: Duration) -> Result<Request, (StatusCode, String)> {
    let (head, body) = request.into_parts();
    let name = head.uri.path().trim_start_matches('/');
    if !names(&head.method).contains(&name) {
        let is_known = [Method::GET, Method::POST].iter().any(|method| names(method).contains(&name));
        let status = if is_known { StatusCode::METHOD_NOT_ALLOWED } else { StatusCode::NOT_FOUND };
        let known = [Method::GET, Method::POST].map(|method| format!("{method} /{}", names(&method).join(", /")));
        return Err((status, format!("the requests are {}", known.join("; "))));
    }
    let body = match tokio::time::timeout(patience, axum::body::to_bytes(body, MAX_REQUEST)).await {
        Ok(Ok(body)) => body,
        // Where the connection broke there is no client to get this answer.
        Ok(Err(_)) => {
            let error = format!("a request may have at most {} MiB; split it", MAX_REQUEST >> 20);
            return Err((StatusCode::PAYLOAD_TOO_LARGE, error));
        }
        Err(_) => {
            let error = format!("the request did not arrive within {} s", patience.as_secs());
            return Err((StatusCode::REQUEST_TIMEOUT, error));
        }
    };
    Request::parse(name, &body)
        .map_err(|cause| (StatusCode::BAD_REQUEST, format!("the request cannot be understood: {cause}")))
}

/// `permit` is held until the last line is taken.
fn response(answer: Answer, permit: Option<OwnedSemaphorePermit>) -> Response {
    match answer {
        Answer::Value(value) => reply::value(StatusCode::OK, &value),
        Answer::Metrics(text) => reply::metrics(text),
        Answer::Lines(lines) => reply::lines(lines).map(|body| while_taken(body, STALLED, permit)),
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

/// `body`, for as long as the client takes a piece of it within `stalled`. The work behind it ends with it.
fn while_taken(body: Body, stalled: Duration, permit: Option<OwnedSemaphorePermit>) -> Body {
    // `None` is the end. Without it the client was disconnected, and must not take the pieces for all.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[tokio::test]
    async fn only_a_client_that_takes_nothing_is_disconnected() {
        let listeners = Arc::new(Semaphore::new(1));
        let lines = || Body::from_stream(stream::iter((0..4).map(|it| Ok::<_, Infallible>(format!("{it}\n")))));
        let begin = async |stalled| {
            while_taken(lines(), stalled, Arc::clone(&listeners).acquire_owned().await.ok()).into_data_stream()
        };

        let mut stalling = begin(Duration::from_millis(10)).await;
        // The permit is free again although the client still holds the answer.
        let slow = begin(Duration::from_secs(60)).await;
        let received = [stalling.next().await, stalling.next().await];
        let all: Vec<_> = slow.then(async |piece| piece.unwrap()).collect().await;

        assert!(received[0].as_ref().unwrap().is_ok() && received[1].as_ref().unwrap().is_err(), "{received:?}");
        assert_eq!(all.concat(), b"0\n1\n2\n3\n");
    }

    #[tokio::test]
    async fn a_request_that_never_ends_is_refused() {
        let (_sender, pieces) = mpsc::channel::<Result<Bytes, axum::Error>>(1);
        let body = Body::from_stream(stream::unfold(pieces, async |mut pieces| Some((pieces.recv().await?, pieces))));
        let request = extract::Request::post("/evict").body(body).unwrap();

        let refused = parsed(request, Duration::from_millis(10)).await.unwrap_err();

        assert_eq!(refused.0, StatusCode::REQUEST_TIMEOUT);
    }

    #[test]
    fn only_root_and_the_owner_may_ask() {
        let of = |uid| Peer { uid };

        assert!(of(Some(1000)).may_ask(1000) && of(Some(0)).may_ask(1000));
        assert!(!of(Some(1001)).may_ask(1000) && !of(Some(1000)).may_ask(0));
        assert!(!of(None).may_ask(1000), "an unknown user may not ask");
    }
}
