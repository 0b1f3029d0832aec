//! The requests of the object store go through the one HTTP client: its limiter, its breaker, its certificates and proxies.

use crate::source::http::{Body, Client, Priority};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::stream::{BoxStream, StreamExt, try_unfold};
use hyper::Method;
use hyper::body::Frame;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

/// Bytes of what a store answers besides objects. The library keeps all of it in memory.
const LONGEST: usize = 64 << 10;

/// Purpose of a request of the store. The store's own calls do not carry it.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) priority: Priority,
    /// The head of its answer is due within this time.
    pub(super) within: Duration,
}

tokio::task_local! {
    /// The call under way in this task.
    pub(super) static CALL: Call;
}

/// Makes the store's client of ours.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    client: Client,
}

impl Connector {
    pub(super) fn new(client: &Client) -> Connector {
        Connector { client: client.clone() }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let is_get = parts.method == Method::GET;
        let (mut body, mut pieces) = (pin!(body), BytesMut::new());
        while let Some(frame) = poll_fn(|context| hyper::body::Body::poll_frame(body.as_mut(), context)).await {
            pieces.extend_from_slice(frame?.data_ref().unwrap_or(&Bytes::new()));
        }
        let relayed = hyper::http::Request::from_parts(parts, pieces.freeze());
        let usual = Call { priority: Priority::background(), within: Duration::from_secs(10) };
        let Call { priority, within } = CALL.try_with(Call::clone).unwrap_or(usual);
        let answer = self.client.relay(&relayed, priority, within).await;
        let answer = answer.map_err(|cause| HttpError::new(HttpErrorKind::Unknown, cause))?;
        let (head, mut body) = answer.into_parts();
        if is_get && head.status.is_success() {
            return Ok(HttpResponse::from_parts(head, HttpResponseBody::new(Incoming::new(body))));
        }
        let mut text = Vec::new();
        while text.len() < LONGEST {
            // The status counts, whether its explanation is whole or not.
            let Ok(Some(piece)) = body.chunk().await else { break };
            text.extend_from_slice(&piece);
        }
        text.truncate(LONGEST);
        // In any charset: the library takes one error for another where it is not UTF-8.
        Ok(HttpResponse::from_parts(head, String::from_utf8_lossy(&text).into_owned().into()))
    }
}

/// A body of our client as the store takes one. The lock makes it `Sync`, and is never taken.
struct Incoming(Mutex<BoxStream<'static, Result<Bytes, HttpError>>>);

impl Incoming {
    fn new(body: Body) -> Incoming {
        let pieces = try_unfold(body, |mut body| async move {
            let piece = body.chunk().await.map_err(|cause| HttpError::new(HttpErrorKind::Unknown, cause))?;
            Ok(piece.map(|piece| (piece, body)))
        });
        Incoming(Mutex::new(pieces.boxed()))
    }
}

impl hyper::body::Body for Incoming {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let pieces = self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        pieces.poll_next_unpin(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
