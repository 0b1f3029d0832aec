//! The mount's side of the socket.

use super::api::{Request, names};
use super::reply::{self, Lines};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{self, DefaultBodyLimit};
use axum::http::{Method, Response, StatusCode, Uri};
use axum::middleware::{self, Next};
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

/// A client that takes no line for this long is disconnected.
const STALLED: Duration = Duration::from_secs(600);

/// How a mount answers a request.
pub enum Answer {
    /// One JSON value.
    Value(Value),
    /// Metrics for Prometheus.
    Metrics(String),
    /// JSON lines, as they come.
    Lines(Lines),
    /// It failed, for this reason.
    Failed(String),
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
    let respond = async move |method: Method, uri: Uri, body: Bytes| {
        let request = match request(&method, &uri, &body) {
            Ok(request) => request,
            Err(refusal) => return *refusal,
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
                reply::failure(StatusCode::SERVICE_UNAVAILABLE, &error)
            }
        }
    };
    let router = Router::new()
        .fallback(respond)
        .layer(DefaultBodyLimit::max(MAX_REQUEST))
        .layer(middleware::from_fn(only_the_owner));
    axum::serve(listener, router.into_make_service_with_connect_info::<Peer>()).await
}

fn request(method: &Method, uri: &Uri, body: &[u8]) -> Result<Request, Box<Response<Body>>> {
    let name = uri.path().trim_start_matches('/');
    if names(method).contains(&name) {
        return Request::parse(name, body).map_err(|cause| {
            let error = format!("the request cannot be understood: {cause}");
            Box::new(reply::failure(StatusCode::BAD_REQUEST, &error))
        });
    }
    let is_known = [Method::GET, Method::POST].iter().any(|method| names(method).contains(&name));
    let status = if is_known { StatusCode::METHOD_NOT_ALLOWED } else { StatusCode::NOT_FOUND };
    let known = [Method::GET, Method::POST].map(|method| format!("{method} /{}", names(&method).join(", /")));
    Err(Box::new(reply::failure(status, &format!("the requests are {}", known.join("; ")))))
}

/// `permit` is held until the last line is taken.
fn response(answer: Answer, permit: Option<OwnedSemaphorePermit>) -> Response<Body> {
    match answer {
        Answer::Value(value) => reply::value(&value),
        Answer::Metrics(text) => reply::metrics(text),
        Answer::Lines(lines) => reply::lines(lines).map(|body| while_taken(body, STALLED, permit)),
        Answer::Failed(error) => reply::failure(StatusCode::BAD_GATEWAY, &error),
        Answer::Ending => reply::failure(StatusCode::SERVICE_UNAVAILABLE, "the mount is ending"),
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

/// The modes of the socket and its folder forbid others too, but an administrator may change these.
async fn only_the_owner(ConnectInfo(peer): ConnectInfo<Peer>, request: extract::Request, next: Next) -> Response<Body> {
    if peer.may_ask(rustix::process::geteuid().as_raw()) {
        return next.run(request).await;
    }
    reply::failure(StatusCode::FORBIDDEN, "only root and the user of the mount may ask")
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

    #[test]
    fn only_root_and_the_owner_may_ask() {
        let of = |uid| Peer { uid };

        assert!(of(Some(1000)).may_ask(1000) && of(Some(0)).may_ask(1000));
        assert!(!of(Some(1001)).may_ask(1000) && !of(Some(1000)).may_ask(0));
        assert!(!of(None).may_ask(1000), "an unknown user may not ask");
    }
}
