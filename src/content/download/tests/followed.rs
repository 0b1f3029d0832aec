//! A large object is downloaded while it is read, in one version, and goes on where it stopped.

use super::*;
use crate::content::State;
use crate::source::tests::server::{Reply, Server, honest};
use std::sync::atomic::{AtomicBool, Ordering};

const ETAG: &str = "\"v1\"";
const MIB: usize = 1 << 20;

/// Bytes of an object that is downloaded while it is read, whose last block is short.
const HUGE: usize = 48 * MIB + 3 * BLOCK as usize + 12_345;

/// Bytes that have come out of the network so far.
fn came(mounted: &Mounted) -> usize {
    mounted.content.client.traffic().iter().map(|host| host.bytes as usize).sum()
}

/// Bytes that the network of this machine may hold of one connection, in the buffers of both ends (tcp(7)).
fn held_by_the_network() -> usize {
    let most = |buffer: &str| {
        let sizes = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{buffer}")).unwrap();
        sizes.split_whitespace().next_back().unwrap().parse::<usize>().unwrap()
    };
    most("tcp_rmem") + most("tcp_wmem")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_strong_validator_or_ranges_it_comes_in_one_body() {
    let body = bytes(HUGE, 81);
    for (etag, ranges) in [(Some("W/\"v1\""), "bytes"), (None, "bytes"), (Some(ETAG), "none")] {
        let whole = body.clone();
        let server = Server::start(move |_| {
            let reply = Reply::full(&whole).with("Accept-Ranges", ranges);
            etag.map_or(reply.clone(), |etag| reply.with("ETag", etag))
        });
        let mounted = Mounted::plain(&server);

        assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
        assert_eq!(server.received().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_in_another_coding_than_published_comes_whole() {
    let body = bytes(HUGE, 92);
    let server = Server::of(&body, Some(ETAG));
    let mounted = Mounted::plain(&server);
    let spec = FetchSpec { encoding: Some("gzip".into()), ..bare(&server, "/a") };

    mounted.read(&spec, 0, MIB as u32).await.unwrap();

    // No reader goes on.
    until(|| server.sent() >= HUGE).await;
    assert!(mounted.read_all(&FetchSpec { length: Some(HUGE as u64), ..spec }).await.unwrap() == body);
    assert_eq!(server.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_amid_a_large_object_are_an_error() {
    let body = bytes(HUGE, 88);
    let mut wrong = body.clone();
    wrong[40 * MIB] ^= 1;
    let server = Server::of(&wrong, Some(ETAG));
    let mut mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);

    assert!(is_mismatch(&mounted.read_all(&spec).await));
    let event = tokio::time::timeout(HANG, mounted.events.recv()).await.unwrap();
    assert_eq!(event, Some(Event::Poisoned(spec.ino)));
    assert_eq!(mounted.content.read_local(spec.ino, 0, 10), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_full_midway_costs_a_reader_nothing() {
    let body = bytes(HUGE, 89);
    let server = Server::of(&body, Some(ETAG));
    let mounted = Mounted::new(&server, |config| config.quota = Some(20 << 20));

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_here_is_where_the_next_mount_goes_on() {
    let body = bytes(HUGE, 90);
    let (whole, is_down) = (body.clone(), Arc::new(AtomicBool::new(true)));
    let down = Arc::clone(&is_down);
    let server = Server::start(move |request| match request.range(HUGE) {
        Some(range) if down.load(Ordering::SeqCst) && range.end > 20 * MIB => Reply::status(500),
        None if down.load(Ordering::SeqCst) => honest(request, &whole, Some(ETAG)).cut_at(10 * MIB),
        _ => honest(request, &whole, Some(ETAG)),
    });
    let mounted = Mounted::new(&server, |config| config.stall = Duration::from_secs(2));
    let spec = vouched(&server, &body);
    assert!(mounted.read_all(&spec).await.is_err());
    until(|| mounted.content.table.lock().is_empty()).await;
    let mounted = mounted.restarted(&server).await;
    is_down.store(false, Ordering::SeqCst);
    let (asked, sent) = (server.received().len(), server.sent());

    assert!(mounted.read_all(&spec).await.unwrap() == body);
    let next = server.received()[asked].range(HUGE).map(|range| range.start);
    assert!(next.is_some_and(|first| first >= 8 * MIB), "it begins at {next:?}");
    assert!(server.sent() - sent < HUGE, "{} bytes sent again", server.sent() - sent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_read_is_not_fetched() {
    let body = bytes(2 * HUGE, 91);
    let server = Server::of(&body, Some(ETAG));
    let mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);

    assert!(mounted.read(&spec, 0, MIB as u32).await.unwrap() == body[..MIB]);
    until(|| server.busy() == 0).await;

    let (came, sent) = (came(&mounted), server.sent());
    assert!(
        came < 8 * MIB && sent < 8 * MIB + held_by_the_network(),
        "{came} bytes came for one MiB, {sent} were sent"
    );
    assert!(mounted.read_all(&spec).await.unwrap() == body, "who reads on gets it");
    assert_eq!(mounted.content.state(spec.ino).0, State::Cached);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_the_end_has_little_more_than_that_fetched() {
    let body = bytes(2 * HUGE, 92);
    let server = Server::of(&body, Some(ETAG));
    let mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    let far = body.len() - 3 * MIB;

    assert!(mounted.read(&spec, body.len() as u64 - 100, 4096).await.unwrap() == body[body.len() - 100..]);
    assert!(mounted.read(&spec, far as u64, 4096).await.unwrap() == body[far..far + 4096]);
    until(|| server.busy() == 0).await;
    assert!(server.sent() < 8 * MIB, "{} bytes sent", server.sent());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_that_gave_way_is_gone_on_with() {
    let body = bytes(2 * HUGE, 94);
    let server = Server::of(&body, Some(ETAG));
    let mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    assert!(mounted.read(&spec, 0, MIB as u32).await.unwrap() == body[..MIB]);
    mounted.gives_way(&spec).await;
    let (asked, sent) = (server.received().len(), server.sent());

    assert!(mounted.read(&spec, 2 * MIB as u64, MIB as u32).await.unwrap() == body[2 * MIB..3 * MIB]);
    assert!(server.sent() - sent < 40 * MIB, "{} bytes sent", server.sent() - sent);
    assert!(mounted.read_all(&spec).await.unwrap() == body);
    let next = server.received()[asked].clone();
    assert!(next.field("if-range") == Some(ETAG) && next.range(body.len()).unwrap().start > 0);
}
