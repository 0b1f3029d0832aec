//! Servers behind one name that have an ETag each, and break off.

use super::*;
use crate::source::tests::server::{Gate, Received, Reply, Server, honest};
use std::sync::atomic::{AtomicBool, Ordering};

const ETAGS: [&str; 3] = ["\"a\"", "\"b\"", "\"c\""];

/// The answer of node `number`, which has another ETag than the others and breaks off after a fifth.
fn answer(request: &Received, number: usize, body: &[u8]) -> Reply {
    honest(request, body, Some(ETAGS[number % 3])).cut_at(body.len() / 5)
}

/// Promise: a file with a published digest comes whole, however its servers name their copies, without being sent again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_an_etag_each_bring_one_file_together() {
    for length in [700_000, LARGE, 40 << 20] {
        let body = bytes(length, 80);
        let whole = body.clone();
        let server = Server::start(move |request| answer(request, request.number, &whole));
        let mounted = Mounted::plain(&server);

        assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body, "{length}");

        assert!(server.sent() < length * 3 / 2, "{} of {length}", server.sent());
        assert!(server.received().len() < 18, "{:?}", server.received());
    }
}

/// Promise: never two versions in one open file. The nodes have really different bytes, and a reader has begun with those of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_file_never_mixes_the_versions_of_nodes() {
    let body = bytes(LARGE, 81);
    let other = bytes(LARGE, 82);
    for published in [&body, &other] {
        let (gate, versions) = (Gate::default(), [body.clone(), other.clone()]);
        let held = gate.clone();
        let server = Server::start(move |request| match request.number {
            0 => answer(request, 0, &versions[0]).gated_at(1 << 20, &held),
            number => answer(request, number, &versions[1]),
        });
        let mounted = Mounted::plain(&server);
        let spec = vouched(&server, published);
        assert_eq!(mounted.read(&spec, 0, 10).await.unwrap(), body[..10], "before the verdict");
        gate.open();

        let fifth = LARGE / 5 / BLOCK as usize;
        for block in fifth..LARGE / BLOCK as usize {
            let read = mounted.read(&spec, block as u64 * BLOCK, 10).await;
            assert!(read.is_err(), "{block}");
            mounted.content.forget_failures();
        }
        assert!(server.sent() < 4 * LARGE, "{}", server.sent());
    }
}

/// What is kept of several nodes is handed out after the verdict alone, also by the next mount.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_of_several_nodes_waits_for_the_verdict() {
    let body = bytes(LARGE, 83);
    for is_other in [false, true] {
        let second = if is_other { bytes(LARGE, 84) } else { body.clone() };
        let (whole, is_down) = (body.clone(), Arc::new(AtomicBool::new(false)));
        let down = Arc::clone(&is_down);
        let server = Server::start(move |request| match request.number {
            0 => answer(request, 0, &whole),
            1 | 2 => answer(request, 1, &second),
            _ if down.load(Ordering::SeqCst) => Reply::status(500),
            _ => honest(request, &whole, Some(ETAGS[0])),
        });
        is_down.store(true, Ordering::SeqCst);
        let mounted = Mounted::new(&server, |config| config.stall = Duration::from_secs(2));
        let spec = vouched(&server, &body);
        assert!(mounted.read_all(&spec).await.is_err());
        until(|| mounted.content.table.get(spec.ino).is_none()).await;
        is_down.store(false, Ordering::SeqCst);

        let mounted = mounted.restarted(&server).await;
        let asked = server.received().len();

        let in_second = LARGE as u64 * 3 / 10;
        assert_eq!(mounted.read(&spec, in_second, 100).await.unwrap(), body[in_second as usize..][..100]);
        assert!(mounted.read_all(&spec).await.unwrap() == body);
        let ranges: Vec<_> =
            server.received()[asked..].iter().map(|request| request.field("range").is_some()).collect();
        assert_eq!(ranges, if is_other { vec![true, false] } else { vec![true] }, "a mix is made again from 0");
    }
}
