//! Server and client over a real socket.

use super::api::*;
use super::*;
use futures_util::stream;
use serde_json::{Value, json};
use std::future::ready;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

/// More lines than fit into any buffer between server and client.
const FILES: u64 = 100_000;

fn status() -> Value {
    json!({ "source": "https://repo.example.org/", "files": 3 })
}

fn committed() -> Value {
    json!({ "committed": { "created": 1 } })
}

/// A socket at `path` whose refreshes end with `outcome`, and the refresh requests that arrive there.
fn listen(path: &Path, outcome: Result<Value, Refusal>) -> (Socket, Arc<Mutex<Vec<RefreshRequest>>>) {
    let (socket, listener) = Socket::bind(path).unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = requests.clone();
    let routes = Routes::default()
        .value(|StatusRequest {}| ready(Ok(status())))
        .value(move |request: RefreshRequest| {
            seen.lock().unwrap().push(request);
            ready(outcome.clone())
        })
        .lines(|request: AuditRequest| Box::pin(stream::iter([json!(request), json!({ "in": "sync" })])))
        .lines(|FilesRequest {}| Box::pin(stream::iter((0..FILES).map(|number| json!({ "path": number })))))
        .lines(|request: UrisRequest| {
            lines_of(async move |answers| {
                for path in request.paths {
                    answers.send(Identified { path, ..Identified::default() }).await.unwrap();
                }
            })
        });
    tokio::spawn(serve(listener, routes, Arc::new(|| "# HELP x y\n".to_owned())));
    (socket, requests)
}

async fn status_at(socket: &Path) -> Result<Value, ControlError> {
    call(socket, &StatusRequest {}).await
}

/// The first `most` lines of an answer.
async fn first_lines<Q: Request>(socket: &Path, request: &Q, most: usize) -> Vec<Value> {
    let (sender, mut lines) = mpsc::channel(8);
    let receive = async move {
        let mut received = Vec::new();
        while received.len() < most {
            let Some(line) = lines.recv().await else { break };
            received.push(line);
        }
        received
    };
    let (answered, received) = tokio::join!(call_lines(socket, request, sender), receive);
    answered.unwrap();
    received
}

#[tokio::test]
async fn a_call_returns_the_value_of_the_mount() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, requests) = listen(&folder.path().join("control"), Ok(committed()));
    let request = RefreshRequest { accept_deletions: true };

    let refreshed: Value = call(socket.path(), &request).await.unwrap();

    assert_eq!(status_at(socket.path()).await.unwrap(), status());
    assert_eq!(refreshed, committed());
    assert_eq!(*requests.lock().unwrap(), [request]);
}

#[tokio::test]
async fn a_refresh_that_fails_or_never_ends_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let failed = Refusal::Failed("the Source cannot be read".into());
    let (failing, _) = listen(&folder.path().join("failing"), Err(failed));
    let (ending, _) = listen(&folder.path().join("ending"), Err(Refusal::Ending));

    let failed = call::<_, Value>(failing.path(), &RefreshRequest::default()).await.unwrap_err();
    let ended = call::<_, Value>(ending.path(), &RefreshRequest::default()).await.unwrap_err();

    assert_eq!(failed.to_string(), "the Source cannot be read");
    assert_eq!(ended.to_string(), "the mount is ending");
}

#[tokio::test]
async fn every_line_arrives_and_a_client_may_leave_early() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, _) = listen(&folder.path().join("control"), Err(Refusal::Ending));
    let audit = AuditRequest { content: true, fetch: false };

    let audited = first_lines(socket.path(), &audit, usize::MAX).await;
    let files = first_lines(socket.path(), &FilesRequest {}, usize::MAX).await;
    let some = first_lines(socket.path(), &FilesRequest {}, 3).await;

    assert_eq!(audited, [json!({ "content": true, "fetch": false }), json!({ "in": "sync" })]);
    assert!((0..FILES).eq(files.iter().map(|line| line["path"].as_u64().unwrap())));
    assert_eq!(some, files[..3]);
}

#[tokio::test]
async fn a_request_for_lines_may_hold_many_paths() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, _) = listen(&folder.path().join("control"), Err(Refusal::Ending));
    let request = UrisRequest { paths: (0..100_000).map(|number| format!("files/{number}")).collect() };

    let answers = first_lines(socket.path(), &request, usize::MAX).await;

    assert!(request.paths.iter().eq(answers.iter().map(|line| line["path"].as_str().unwrap())));
}

#[tokio::test]
async fn the_work_behind_lines_ends_with_its_client() {
    let (alive, mut dropped) = mpsc::channel::<()>(1);
    let lines = lines_of(async move |answers| {
        let _alive = alive;
        answers.send(1).await.unwrap();
        std::future::pending::<()>().await;
    });

    drop(lines);

    assert_eq!(dropped.recv().await, None);
}

/// Sends `request` as it stands; the answer as it arrives.
async fn raw(socket: &Path, request: &str) -> String {
    let mut stream = super::socket::connect(socket).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_wrong_request_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, requests) = listen(&folder.path().join("control"), Ok(committed()));
    let closing = "Host: x\r\nConnection: close\r\n";

    for (request, status) in [
        (format!("POST /metrics HTTP/1.1\r\n{closing}\r\n"), 405),
        (format!("GET /frob HTTP/1.1\r\n{closing}\r\n"), 404),
        (format!("DELETE /status HTTP/1.1\r\n{closing}\r\n"), 405),
        (format!("GET /audit HTTP/1.1\r\n{closing}\r\n"), 405),
        (format!("POST /refresh HTTP/1.1\r\n{closing}Content-Length: 3\r\n\r\nyes"), 400),
        (format!("POST /audit HTTP/1.1\r\n{closing}Content-Length: 3\r\n\r\nyes"), 400),
        (format!("POST /refresh HTTP/1.1\r\n{closing}Content-Length: 15\r\n\r\n{{\"accept\":true}}"), 400),
        (format!("POST /refresh HTTP/1.1\r\n{closing}Content-Length: 70000\r\n\r\n{}", " ".repeat(70_000)), 413),
    ] {
        let answer = raw(socket.path(), &request).await;

        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}\n{answer}");
        assert!(status < 404 || status == 413 || answer.contains("GET /status"), "the requests are named: {answer}");
    }
    assert!(requests.lock().unwrap().is_empty());
}

#[tokio::test]
async fn metrics_are_plain_text() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, _) = listen(&folder.path().join("control"), Err(Refusal::Ending));

    let answer = raw(socket.path(), "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;

    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n# HELP x y\n"), "{answer}");
}

#[tokio::test]
async fn an_empty_body_is_the_default_request() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, requests) = listen(&folder.path().join("control"), Ok(committed()));

    let answer = raw(socket.path(), "POST /refresh HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;

    assert!(answer.ends_with("{\"committed\":{\"created\":1}}\n"), "{answer}");
    assert_eq!(*requests.lock().unwrap(), [RefreshRequest::default()]);
}

#[tokio::test]
async fn the_socket_replaces_a_dead_one_and_goes_with_its_mount() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());

    let dead = status_at(&path).await.unwrap_err();
    let (socket, _) = listen(&path, Err(Refusal::Ending));

    assert!(matches!(dead, ControlError::Unreachable { .. }), "{dead}");
    assert!(status_at(&path).await.is_ok());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    drop(socket);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[tokio::test]
async fn a_path_longer_than_a_socket_address_works() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("d".repeat(120));
    std::fs::create_dir(&deep).unwrap();

    let (socket, _) = listen(&deep.join("control"), Err(Refusal::Ending));

    assert_eq!(status_at(socket.path()).await.unwrap(), status());
}
