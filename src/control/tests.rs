//! Server and client over a real socket.

use super::*;
use futures_util::stream;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

/// More lines than fit into any buffer on the way.
const FILES: u64 = 100_000;

fn status() -> Value {
    json!({ "source": "https://repo.example.org/", "files": 3 })
}

fn committed() -> Value {
    json!({ "committed": { "created": 1 } })
}

/// A socket at `path` whose refreshes come to `outcome`; the orders that arrived.
fn listen(path: &Path, outcome: Result<Value, Refusal>) -> (Socket, Arc<Mutex<Vec<RefreshOrder>>>) {
    let (socket, listener) = Socket::bind(path).unwrap();
    let orders = Arc::new(Mutex::new(Vec::new()));
    let seen = orders.clone();
    let answers = Answers {
        status: Box::new(status),
        metrics: Arc::new(|| "# HELP x y\n".to_owned()),
        refresh: Box::new(move |order| {
            seen.lock().unwrap().push(order);
            let outcome = outcome.clone();
            Box::pin(async move { outcome })
        }),
        audit: Box::new(|order| Box::pin(stream::iter([json!(order), json!({ "in": "sync" })]))),
        files: Box::new(|| Box::pin(stream::iter((0..FILES).map(|number| json!({ "path": number }))))),
        tree: OfTree {
            prefetch: Box::new(|order| {
                Box::pin(stream::iter(order.paths.into_iter().map(|path| json!({ "fetched": path }))))
            }),
            evict: Box::new(|order| Box::pin(stream::iter([json!(order)]))),
            paths: Box::new(|order| Box::pin(stream::iter([json!(order)]))),
            uris: Box::new(|order| Box::pin(stream::iter([json!(order)]))),
        },
    };
    tokio::spawn(serve(listener, answers));
    (socket, orders)
}

#[tokio::test]
async fn a_mount_tells_its_status() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, _) = listen(&folder.path().join("control"), Err(Refusal::Ending));

    let told: Value = ask_status(socket.path()).await.unwrap();

    assert_eq!(told, status());
}

#[tokio::test]
async fn a_refresh_is_ordered_and_its_outcome_told() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, orders) = listen(&folder.path().join("control"), Ok(committed()));

    let order = RefreshOrder { accept_deletions: true };
    let told: Value = ask_refresh(socket.path(), order).await.unwrap();

    assert_eq!(told, committed());
    assert_eq!(*orders.lock().unwrap(), [order]);
}

#[tokio::test]
async fn a_refresh_that_failed_and_one_that_never_ends_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let failed = Refusal::Failed("the Source cannot be read".into());
    let (failing, _) = listen(&folder.path().join("failing"), Err(failed));
    let (ending, _) = listen(&folder.path().join("ending"), Err(Refusal::Ending));

    let failed = ask_refresh::<Value>(failing.path(), RefreshOrder::default()).await.unwrap_err();
    let ended = ask_refresh::<Value>(ending.path(), RefreshOrder::default()).await.unwrap_err();

    assert_eq!(failed.to_string(), "the Source cannot be read");
    assert_eq!(ended.to_string(), "the mount is ending");
}

#[tokio::test]
async fn an_audit_is_told_line_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, _) = listen(&folder.path().join("control"), Err(Refusal::Ending));
    let (sender, mut lines) = mpsc::channel::<Value>(8);

    let order = AuditOrder { content: true, fetch: false };
    ask_audit(socket.path(), order, sender).await.unwrap();

    assert_eq!(lines.recv().await.unwrap(), json!({ "content": true, "fetch": false }));
    assert_eq!(lines.recv().await.unwrap(), json!({ "in": "sync" }));
    assert_eq!(lines.recv().await, None);
}

#[tokio::test]
async fn every_file_is_told_and_who_has_heard_enough_may_leave() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, _) = listen(&folder.path().join("control"), Err(Refusal::Ending));
    let listen_to = async |most: u64| {
        let (sender, mut lines) = mpsc::channel::<Value>(8);
        let hear = async move {
            let mut heard = 0;
            while heard < most && lines.recv().await.is_some_and(|line| line["path"] == heard) {
                heard += 1;
            }
            heard
        };
        let (told, heard) = tokio::join!(ask_files(socket.path(), sender), hear);
        told.unwrap();
        heard
    };

    assert_eq!(listen_to(u64::MAX).await, FILES);
    assert_eq!(listen_to(3).await, 3);
}

#[tokio::test]
async fn more_paths_than_fit_into_another_order_are_one_order() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, _) = listen(&folder.path().join("control"), Err(Refusal::Ending));
    let (sender, mut lines) = mpsc::channel::<Value>(8);
    let order = PathsOrder { paths: (0..100_000).map(|number| format!("files/{number}")).collect() };

    let count = async move {
        let mut count = 0;
        while lines.recv().await.is_some_and(|line| line["fetched"] == format!("files/{count}")) {
            count += 1;
        }
        count
    };
    let (told, count) = tokio::join!(ask_prefetch(socket.path(), &order, sender), count);

    told.unwrap();
    assert_eq!(count, 100_000);
}

/// Sends `request` as it stands; the answer as it comes.
async fn raw(socket: &Path, request: &str) -> String {
    let mut stream = super::socket::connect(socket).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn what_is_not_understood_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, orders) = listen(&folder.path().join("control"), Ok(committed()));
    let closing = "Host: x\r\nConnection: close\r\n";

    for (request, status) in [
        (format!("POST /metrics HTTP/1.1\r\n{closing}\r\n"), 405),
        (format!("GET /frob HTTP/1.1\r\n{closing}\r\n"), 404),
        (format!("DELETE /status HTTP/1.1\r\n{closing}\r\n"), 405),
        (format!("POST /refresh HTTP/1.1\r\n{closing}Content-Length: 3\r\n\r\nyes"), 400),
        (format!("POST /refresh HTTP/1.1\r\n{closing}Content-Length: 14\r\n\r\n{{\"accept\":true}}"), 400),
        (format!("POST /refresh HTTP/1.1\r\n{closing}Content-Length: 70000\r\n\r\n{}", " ".repeat(70_000)), 413),
    ] {
        let answer = raw(socket.path(), &request).await;

        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}\n{answer}");
    }
    assert!(orders.lock().unwrap().is_empty());
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
async fn an_order_may_be_empty() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, orders) = listen(&folder.path().join("control"), Ok(committed()));

    let answer = raw(socket.path(), "POST /refresh HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;

    assert!(answer.ends_with("{\"committed\":{\"created\":1}}\n"), "{answer}");
    assert_eq!(*orders.lock().unwrap(), [RefreshOrder::default()]);
}

#[tokio::test]
async fn the_socket_is_the_owners_alone_replaces_a_dead_one_and_goes_with_its_mount() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());

    let dead = ask_status::<Value>(&path).await.unwrap_err();
    let (socket, _) = listen(&path, Err(Refusal::Ending));

    assert!(matches!(dead, ControlError::Unreachable { .. }), "{dead}");
    assert!(ask_status::<Value>(&path).await.is_ok());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    drop(socket);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[tokio::test]
async fn a_path_longer_than_a_socket_can_carry_is_no_hindrance() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("d".repeat(120));
    std::fs::create_dir(&deep).unwrap();

    let (socket, _) = listen(&deep.join("control"), Err(Refusal::Ending));

    assert_eq!(ask_status::<Value>(socket.path()).await.unwrap(), status());
}
