//! Bodies that no reader wants any more are bounded, also where their servers send without end.

use super::*;
use crate::source::tests::server::{Reply, Server, honest};

const MIB: usize = 1 << 20;

/// Bytes of a large object whose download cannot be resumed.
const HUGE: usize = 100 * MIB;

/// A cache of which an eighth is 16 MiB, and a reader's patience of a second.
fn small(server: &Server) -> Mounted {
    Mounted::new(server, |config| {
        config.quota = Some(128 << 20);
        config.stall = Duration::from_secs(1);
        config.size_deadline = Duration::from_millis(300);
    })
}

/// The bytes that were sent until nothing more is.
async fn sent_in_all(server: &Server, mounted: &Mounted, spec: &FetchSpec) -> usize {
    until(|| mounted.content.table.get(spec.ino).is_none()).await;
    until(|| server.busy() == 0).await;
    server.sent()
}

/// Promise: a resource that has no end fills neither the cache nor the line. Its size is asked for, and the reader is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_body_ends_at_a_bound() {
    let piece = bytes(MIB, 1);
    let server = Server::start(move |_| Reply::full(&piece).endless());
    let mounted = small(&server);
    let spec = bare(&server, "/a");

    assert!(mounted.size(&spec).await.is_err());
    let sent = sent_in_all(&server, &mounted, &spec).await;
    let again = mounted.size(&spec).await;

    assert!(sent < 90 * MIB, "{sent}");
    assert!(matches!(again, Err(ContentError::Endless { .. } | ContentError::Stalled { .. })), "{again:?}");
    until(|| mounted.content.metrics().bytes < MIB as u64).await;
}

/// A prefetch of it ends too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_body_ends_a_prefetch() {
    let piece = bytes(MIB, 2);
    let server = Server::start(move |_| Reply::full(&piece).endless());
    let mounted = small(&server);

    let spec = bare(&server, "/a");

    let prefetch = mounted.content.prefetch(&spec, crate::content::store::Moment::now());
    let ended = tokio::time::timeout(HANG, prefetch).await.expect("it has no end");

    assert!(matches!(ended, Err(ContentError::Endless { .. })), "{ended:?}");
}

/// `head -c1` of a file without strong validator costs a part of it, and a reader that goes on gets all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_beginning_without_strong_validator_costs_a_bounded_part() {
    let body = bytes(HUGE, 3);
    for is_vouched in [false, true] {
        let server = Server::of(&body, None);
        let mounted = small(&server);
        let spec = if is_vouched { vouched(&server, &body) } else { measured(&server, &body) };

        assert_eq!(mounted.read(&spec, 0, 1).await.unwrap(), body[..1]);
        until(|| server.busy() == 0).await;
        assert!(server.sent() < 60 * MIB, "{}", server.sent());

        assert!(mounted.read_all(&spec).await.unwrap() == body, "{is_vouched}");
    }
}

/// A reader of the end that gives up, behind a server without ranges, leaves no download of the whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_the_end_that_leaves_ends_the_stream() {
    let body = bytes(HUGE, 4);
    for etag in [None, Some("\"v1\"")] {
        let whole = body.clone();
        let server = Server::start(move |request| match (request.field("range"), etag) {
            (Some(_), Some(etag)) if request.number > 0 => Reply::full(&whole).with("ETag", etag).paced(20 * MIB),
            _ => honest(request, &whole, None).with("ETag", etag.unwrap_or("W/\"w\"")).paced(20 * MIB),
        });
        let mounted = small(&server);
        let spec = measured(&server, &body);
        assert_eq!(mounted.read(&spec, 0, 1).await.unwrap(), body[..1]);

        let end = mounted.read(&spec, HUGE as u64 - 10, 10);
        assert!(tokio::time::timeout(Duration::from_millis(300), end).await.is_err(), "it waits for the stream");

        until(|| server.busy() == 0).await;
        assert!(server.sent() < 70 * MIB, "{etag:?}: {}", server.sent());
    }
}
