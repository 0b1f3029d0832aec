//! Server and client over a real socket.

use super::api::*;
use super::*;
use futures_util::stream;
use serde_json::{Value, json};
use std::future::ready;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

/// More lines than fit into any buffer between server and client.
const FILES: u64 = 100_000;

fn committed() -> Answer {
    Answer::Value(json!({ "committed": { "created": 1 } }))
}

/// A socket at `path` whose refreshes end with `refreshed`, and the requests that arrive there.
fn listen(path: &Path, refreshed: fn() -> Answer) -> (Socket, Arc<Mutex<Vec<Request>>>) {
    let (socket, listener) = Socket::bind(path).unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = requests.clone();
    let answer = move |request: Request| {
        seen.lock().unwrap().push(request.clone());
        ready(match request {
            Request::Refresh { .. } => refreshed(),
            Request::Files {} => {
                Answer::Lines(Box::pin(stream::iter((0..FILES).map(|number| json!({ "path": number })))))
            }
            Request::Uris { paths } => Answer::Lines(lines_of(async move |answers| {
                for path in paths {
                    answers.send(Identified { path, ..Identified::default() }).await.unwrap();
                }
            })),
            other => Answer::Lines(Box::pin(stream::iter([json!(other), json!({ "in": "sync" })]))),
        })
    };
    tokio::spawn(serve(listener, answer));
    (socket, requests)
}

/// The first `most` lines of an answer.
async fn first_lines(socket: &Path, request: &Request, most: usize) -> Vec<Value> {
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
async fn a_mount_that_ends_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, _) = listen(&folder.path().join("control"), || Answer::Ending);

    let ended = call::<Value>(socket.path(), &Request::Refresh { accept_deletions: false }).await.unwrap_err();

    assert_eq!(ended.to_string(), "the mount is ending");
}

#[tokio::test]
async fn every_line_arrives_and_a_client_may_leave_early() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, _) = listen(&folder.path().join("control"), || Answer::Ending);
    let audit = Request::Audit { content: true, fetch: false };

    let audited = first_lines(socket.path(), &audit, usize::MAX).await;
    let files = first_lines(socket.path(), &Request::Files {}, usize::MAX).await;
    let some = first_lines(socket.path(), &Request::Files {}, 3).await;

    assert_eq!(audited, [json!(audit), json!({ "in": "sync" })]);
    assert!((0..FILES).eq(files.iter().map(|line| line["path"].as_u64().unwrap())));
    assert_eq!(some, files[..3]);
}

#[tokio::test]
async fn a_request_for_lines_may_hold_many_paths() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, _) = listen(&folder.path().join("control"), || Answer::Ending);
    let paths: Vec<_> = (0..100_000).map(|number| format!("files/{number}")).collect();
    let request = Request::Uris { paths: paths.clone() };

    let answers = first_lines(socket.path(), &request, usize::MAX).await;

    assert!(paths.iter().eq(answers.iter().map(|line| line["path"].as_str().unwrap())));
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

/// Sends `request` as it stands; the answer as it arrives. The server may close before it has read all.
async fn raw(socket: &Path, request: &str) -> String {
    let mut stream = super::socket::connect(socket).await.unwrap();
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn one_answer_in_lines_too_many_does_no_work() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, requests) = listen(&folder.path().join("control"), committed);
    let (mut stalled, get) = (Vec::new(), b"GET /files HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for _ in 0..32 {
        let mut stream = super::socket::connect(socket.path()).await.unwrap();
        stream.write_all(get).await.unwrap();
        stream.read_exact(&mut [0; 12]).await.unwrap();
        stalled.push(stream);
    }
    requests.lock().unwrap().clear();

    let evict = Request::Evict { paths: vec![String::new()] };
    let refused = call_lines(socket.path(), &evict, mpsc::channel::<Value>(1).0).await.unwrap_err();
    let refreshed: Result<Value, _> = call(socket.path(), &Request::Refresh { accept_deletions: false }).await;

    assert!(refused.to_string().contains("try again"), "{refused}");
    assert!(refreshed.is_ok(), "requests for one value have no such limit");
    assert_eq!(*requests.lock().unwrap(), [Request::Refresh { accept_deletions: false }]);
}

#[tokio::test]
async fn a_wrong_request_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, requests) = listen(&folder.path().join("control"), committed);
    let closing = "Host: x\r\nConnection: close\r\n";

    for (request, status) in [
        (format!("POST /metrics HTTP/1.1\r\n{closing}\r\n"), 405),
        (format!("GET /frob HTTP/1.1\r\n{closing}\r\n"), 404),
        (format!("DELETE /status HTTP/1.1\r\n{closing}\r\n"), 405),
        (format!("GET /audit HTTP/1.1\r\n{closing}\r\n"), 405),
        (format!("POST /refresh HTTP/1.1\r\n{closing}Content-Length: 3\r\n\r\nyes"), 400),
        (format!("POST /audit HTTP/1.1\r\n{closing}Content-Length: 3\r\n\r\nyes"), 400),
        (format!("POST /refresh HTTP/1.1\r\n{closing}Content-Length: 15\r\n\r\n{{\"accept\":true}}"), 400),
        (format!("POST /audit HTTP/1.1\r\n{closing}Content-Length: 13\r\n\r\n{{\"fetch\":1.5}}"), 400),
        (format!("POST /evict HTTP/1.1\r\n{closing}\r\n"), 400),
        (format!("POST /evict HTTP/1.1\r\n{closing}Content-Length: 20000000\r\n\r\n{}", " ".repeat(20_000_000)), 413),
    ] {
        let answer = raw(socket.path(), &request).await;

        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{:.300}\n{answer}", request);
        assert!(answer.contains("{\"error\":\""), "{answer}");
        assert_eq!((404..=405).contains(&status), answer.contains("GET /status, /metrics, /files"), "{answer}");
    }
    assert!(requests.lock().unwrap().is_empty());
}
