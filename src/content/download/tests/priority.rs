//! Priority at one host: readers before all prefetches, and what a reader inherits from the prefetch that it joins.

use super::*;
use crate::source::http::Request;
use crate::source::tests::server::{Gate, Server, honest};

const ETAG: &str = "\"v1\"";

/// A resource of its own inode.
fn numbered(server: &Server, number: u64) -> FetchSpec {
    FetchSpec { ino: Ino(number + 2), ..bare(server, &format!("/{number}")) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_waits_behind_no_prefetch_nor_for_one_that_it_joins() {
    const AHEAD: u64 = 128;
    let gate = Gate::default();
    let held = gate.clone();
    let server = Server::start(move |request| match request.path.as_str() {
        "/0" | "/100" => honest(request, request.path.as_bytes(), None),
        path => honest(request, path.as_bytes(), None).gated_at(0, &held),
    });
    let mounted = Mounted::new(&server, |_| {});
    let fetch_ahead = |number| {
        let (content, spec) = (Arc::clone(&mounted.content), numbered(&server, number));
        tokio::spawn(async move { content.fetch_ahead(&spec, Requester::default(), u64::MAX).await })
    };
    let mut ahead: Vec<_> = (1..100).chain(101..=AHEAD).map(fetch_ahead).collect();
    until(|| mounted.content.table.len() == ahead.len()).await;
    // The last of them, so that it waits in the queue: its own answer is not held back.
    ahead.push(fetch_ahead(100));
    until(|| mounted.content.table.get(numbered(&server, 100).ino).is_some()).await;

    let other = mounted.read_all(&numbered(&server, 0)).await;
    let joined = mounted.read_all(&numbered(&server, 100)).await;

    gate.open();
    assert_eq!((other.unwrap(), joined.unwrap()), (b"/0".to_vec(), b"/100".to_vec()));
    for fetch in ahead {
        assert!(fetch.await.unwrap().is_ok());
    }
}

/// Our own queue is no fault of a host, nor of a file: both are asked as before when the queue is empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_in_our_own_queue_is_no_fault() {
    let gate = Gate::default();
    let held = gate.clone();
    let server = Server::start(move |request| match request.path.as_str() {
        "/0" => honest(request, b"slow", None).gated_at(0, &held),
        path => honest(request, path.as_bytes(), None),
    });
    let folder = TempDir::new().unwrap();
    let mut config = config(&folder, &server.uri("/"));
    (config.stall, config.size_deadline) = (Duration::from_secs(1), Duration::from_secs(1));
    let mounted = Mounted::asking(&server, config, folder, 1);
    let (read, asked_ahead, asked) = (numbered(&server, 1), numbered(&server, 2), numbered(&server, 3));
    let holding = mounted.content.client.send(Request::get(server.uri("/0"), PLENTY)).await.unwrap();

    assert!(mounted.content.fetch_ahead(&read, Requester::default(), u64::MAX).await.is_err());
    assert!(mounted.content.size_ahead(&asked_ahead, Requester::default()).await.is_err());
    assert!(mounted.size(&asked).await.is_err());
    assert_eq!(mounted.content.metrics().cooling, [], "the host was not asked");
    assert_eq!(server.received().len(), 1);
    gate.open();
    drop(holding);

    assert_eq!(mounted.read_all(&read).await.unwrap(), b"/1");
    assert_eq!((mounted.size(&asked_ahead).await.unwrap(), mounted.size(&asked).await.unwrap()), (2, 2));
}

/// A reader has its own deadline, however late it joins a prefetch: its bytes are asked for once more, from where they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_reader_does_not_inherit_a_prefetchs_deadline() {
    let body = bytes(1_000_000, 52);
    let stall = Duration::from_secs(3);
    for cut in [None, Some(600_000)] {
        let (gate, whole) = (Gate::default(), body.clone());
        let held = gate.clone();
        let silent = usize::from(cut.is_some());
        let server = Server::start(move |request| {
            if request.number == silent {
                held.pass();
            }
            let reply = honest(request, &whole, Some(ETAG));
            match cut.filter(|_| request.number == 0) {
                Some(cut) => reply.cut_at(cut),
                None => reply,
            }
        });
        let mounted = Mounted::new(&server, |config| config.stall = stall);
        let spec = measured(&server, &body);
        let (content, ahead) = (Arc::clone(&mounted.content), spec.clone());
        let prefetch = tokio::spawn(async move { content.fetch_ahead(&ahead, Requester::default(), u64::MAX).await });
        until(|| server.received().len() == silent + 1).await;
        tokio::time::sleep(stall / 2).await;

        assert_eq!(mounted.read_all(&spec).await.unwrap(), body, "{cut:?}");

        let last = server.received().pop().unwrap();
        assert_eq!(last.number, silent + 1);
        assert_eq!(last.range(body.len()).is_some_and(|range| range.start > 0), cut.is_some(), "what came is kept");
        assert!(prefetch.await.unwrap().is_ok());
        gate.open();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_size_does_not_inherit_a_prefetchs_deadline() {
    let deadline = Duration::from_secs(3);
    let gate = Gate::default();
    let held = gate.clone();
    let server = Server::start(move |request| {
        if request.number < 2 {
            held.pass();
        }
        honest(request, b"sized", Some(ETAG))
    });
    let mounted = Mounted::new(&server, |config| config.size_deadline = deadline);
    let spec = bare(&server, "/a");
    let (content, ahead) = (Arc::clone(&mounted.content), spec.clone());
    let asking_ahead = tokio::spawn(async move { content.size_ahead(&ahead, Requester::default()).await });
    until(|| server.received().len() == 2).await;
    tokio::time::sleep(deadline / 10).await;

    // The first one raises the question, and both ask once more.
    let (size, again) = tokio::join!(mounted.size(&spec), mounted.size(&spec));
    assert_eq!((size.unwrap(), again.unwrap()), (5, 5));
    assert_eq!(server.received().len(), 3, "one question for both");
    let _ = asking_ahead.await.unwrap();
    assert_eq!(mounted.read_all(&spec).await.unwrap(), b"sized", "no failure is remembered");
    gate.open();
}
