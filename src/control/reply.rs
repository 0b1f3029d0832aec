//! The forms of an answer: one JSON value, JSON lines, a failure.

use super::api::Failure;
use crate::platform::text::printable_json;
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use futures_util::{Stream, StreamExt, stream};
use prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
use serde::Serialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::pin::Pin;
use tokio::sync::mpsc;

/// Lines that wait for the client.
const LINES: usize = 256;

/// The values of an answer of many lines. Its work ends when it is dropped.
pub type Lines = Pin<Box<dyn Stream<Item = Value> + Send>>;

/// Runs `work` in the background; each value that it sends is a line. The work is dropped when the lines are.
pub fn lines_of<T, F>(work: impl FnOnce(mpsc::Sender<T>) -> F + Send + 'static) -> Lines
where
    T: Serialize + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel::<T>(LINES);
    let left = sender.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = work(sender) => {}
            () = left.closed() => {}
        }
    });
    Box::pin(stream::unfold(receiver, async |mut receiver| receiver.recv().await.map(|it| (json!(it), receiver))))
}

pub(super) fn lines(lines: Lines) -> Response<Body> {
    let body = Body::from_stream(lines.map(|line| Ok::<_, Infallible>(printable_json(&line) + "\n")));
    reply(StatusCode::OK, "application/x-ndjson", body)
}

pub(super) fn value(value: &Value) -> Response<Body> {
    json_reply(StatusCode::OK, value)
}

pub(super) fn failure(status: StatusCode, error: &str) -> Response<Body> {
    failure_of(status, error, None)
}

pub(super) fn failure_of(status: StatusCode, error: &str, kind: Option<String>) -> Response<Body> {
    json_reply(status, &json!(Failure { error: error.to_owned(), kind }))
}

pub(super) fn metrics(text: String) -> Response<Body> {
    reply(StatusCode::OK, CONTENT_TYPE, Body::from(text))
}

fn json_reply(status: StatusCode, value: &Value) -> Response<Body> {
    reply(status, "application/json", Body::from(printable_json(value) + "\n"))
}

fn reply(status: StatusCode, media_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
