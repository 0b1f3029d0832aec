//! The forms of an answer: one JSON value, JSON lines, a failure.

use super::api::Failure;
use crate::platform::text::printable_json;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
use serde::Serialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::pin::Pin;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

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

/// `permit` is held until the last line is taken.
pub(super) fn lines(lines: Lines, permit: Option<OwnedSemaphorePermit>) -> Response {
    let body = lines.map(move |line| {
        let _held = &permit;
        Ok::<_, Infallible>(printable_json(&line) + "\n")
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(body)).into_response()
}

pub(super) fn value(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], printable_json(value) + "\n").into_response()
}

pub(super) fn failure(status: StatusCode, error: impl Into<String>, kind: Option<String>) -> Response {
    value(status, &json!(Failure { error: error.into(), kind }))
}

pub(super) fn metrics(text: String) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response()
}
