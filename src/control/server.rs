//! The mount's side of the socket.

use super::api::Request;
use super::metrics::{self, Metrics};
use super::reply::{self, Lines};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{self, DefaultBodyLimit, State};
use axum::http::{Response, StatusCode};
use axum::middleware::{self, Next};
use axum::routing::{MethodFilter, on};
use axum::serve::IncomingStream;
use futures_util::{StreamExt, stream};
use serde_json::Value;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// The most bytes of a request whose answer is one value.
const MAX_REQUEST: usize = 64 << 10;

/// The most bytes of a request whose answer is lines: more than a command line can hold.
const MAX_LONG_REQUEST: usize = 16 << 20;

/// Answers of many lines at a time: each may need a thread, and files on the disk.
const MAX_LISTENERS: usize = 32;

/// A client that takes no line for this long is disconnected.
const STALLED: Duration = Duration::from_secs(600);

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It failed, for this reason.
    Failed(String),
    /// The mount ends before.
    Ending,
}

/// The routes of a control socket: how the mount answers each kind of request.
#[derive(Default)]
pub struct Routes {
    values: Router,
    lines: Router,
    /// `GET /status`, for the client that asks for another.
    names: Vec<String>,
}

impl Routes {
    /// Answers `Q` with one value. The function is called within a runtime.
    pub fn value<Q, F>(mut self, answer: impl Fn(Q) -> F + Clone + Send + Sync + 'static) -> Routes
    where
        Q: Request,
        F: Future<Output = Result<Value, Refusal>> + Send + 'static,
    {
        self.names.push(name::<Q>());
        let handler = async move |body: Bytes| match parsed(&body) {
            Ok(request) => match answer(request).await {
                Ok(value) => reply::value(&value),
                Err(Refusal::Failed(error)) => reply::failure(StatusCode::BAD_GATEWAY, &error),
                Err(Refusal::Ending) => reply::failure(StatusCode::SERVICE_UNAVAILABLE, "the mount is ending"),
            },
            Err(cause) => misunderstood(&cause),
        };
        Routes { values: self.values.route(Q::PATH, on(filter::<Q>(), handler)), ..self }
    }

    /// Answers `Q` with lines. The function is called within a runtime.
    pub fn lines<Q: Request>(mut self, answer: impl Fn(Q) -> Lines + Clone + Send + Sync + 'static) -> Routes {
        self.names.push(name::<Q>());
        let handler = async move |body: Bytes| match parsed(&body) {
            Ok(request) => reply::lines(answer(request)),
            Err(cause) => misunderstood(&cause),
        };
        Routes { lines: self.lines.route(Q::PATH, on(filter::<Q>(), handler)), ..self }
    }

    fn router(self, metrics: Metrics) -> Router {
        let listeners = Arc::new(Semaphore::new(MAX_LISTENERS));
        let lines = self.lines.layer(DefaultBodyLimit::max(MAX_LONG_REQUEST));
        let names: Arc<str> = format!("the requests are GET /metrics, {}", self.names.join(", ")).into();
        let unknown = move |status| {
            let names = names.clone();
            async move || reply::failure(status, &names)
        };
        lines
            .route_layer(middleware::from_fn_with_state(listeners, bounded))
            .merge(self.values.layer(DefaultBodyLimit::max(MAX_REQUEST)))
            .merge(metrics::router(metrics))
            .fallback(unknown(StatusCode::NOT_FOUND))
            .method_not_allowed_fallback(unknown(StatusCode::METHOD_NOT_ALLOWED))
            .layer(middleware::from_fn(only_the_owner))
    }
}

/// Serves the connections of `listener`, until the future is dropped.
pub async fn serve(listener: UnixListener, routes: Routes, metrics: Metrics) -> io::Result<()> {
    axum::serve(listener, routes.router(metrics).into_make_service_with_connect_info::<Peer>()).await
}

fn name<Q: Request>() -> String {
    format!("{} {}", Q::METHOD, Q::PATH)
}

fn filter<Q: Request>() -> MethodFilter {
    if Q::METHOD == axum::http::Method::GET { MethodFilter::GET } else { MethodFilter::POST }
}

/// The request in a body; without a body the default.
fn parsed<Q: Request>(body: &[u8]) -> serde_json::Result<Q> {
    if body.is_empty() { Ok(Q::default()) } else { serde_json::from_slice(body) }
}

fn misunderstood(cause: &serde_json::Error) -> Response<Body> {
    reply::failure(StatusCode::BAD_REQUEST, &format!("the request cannot be understood: {cause}"))
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

/// Bounds the answers of many lines, and ends the answer of a client that does not take it.
async fn bounded(State(listeners): State<Arc<Semaphore>>, request: extract::Request, next: Next) -> Response<Body> {
    let Ok(permit) = listeners.try_acquire_owned() else {
        let error =
            format!("{MAX_LISTENERS} audits, prefetches and listings run already; try again when some have ended");
        return reply::failure(StatusCode::SERVICE_UNAVAILABLE, &error);
    };
    match tokio::time::timeout(STALLED, next.run(request)).await {
        Ok(answer) => answer.map(|body| while_taken(body, STALLED, permit)),
        Err(_) => reply::failure(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time"),
    }
}

/// `body`, for as long as the client takes a piece of it within `stalled`. The work behind it ends with it.
fn while_taken(body: Body, stalled: Duration, permit: OwnedSemaphorePermit) -> Body {
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
            while_taken(lines(), stalled, Arc::clone(&listeners).acquire_owned().await.unwrap()).into_data_stream()
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
