//! Reads here and there of a large object: few requests, each block requested once, right or not at all.

use super::*;
use crate::source::tests::server::{Gate, Received, Reply, Server, honest};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

const ETAG: &str = "\"v1\"";
const MIB: usize = 1 << 20;

/// The last block is short.
const LENGTH: usize = 40 * MIB + 12_345;

/// The blocks that were requested, those of the first read apart.
fn asked(server: &Server) -> Vec<Range<usize>> {
    let block = BLOCK as usize;
    let ranges = server.received().into_iter().skip(1).map(|request| request.range(LENGTH).unwrap());
    ranges.map(|range| range.start / block..range.end.div_ceil(block)).collect()
}

/// A mount that knows the version, because it has read the last block.
async fn mounted(server: &Server, body: &[u8]) -> (Mounted, FetchSpec) {
    let (mounted, spec) = (Mounted::plain(server), vouched(server, body));
    read(&mounted, &spec, body, LENGTH - 5..LENGTH).await;
    (mounted, spec)
}

async fn read(mounted: &Mounted, spec: &FetchSpec, body: &[u8], range: Range<usize>) {
    let bytes = mounted.read(spec, range.start as u64, (range.end - range.start) as u32).await.unwrap();
    assert!(bytes == body[range]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_here_and_there_get_what_they_ask_for_once() {
    let body = bytes(LENGTH, 301);
    let server = Server::of(&body, Some(ETAG));
    let (mounted, spec) = mounted(&server, &body).await;
    for _ in 0..2 {
        for block in [70, 130, 100, 200] {
            let at = block * BLOCK as usize;
            read(&mounted, &spec, &body, at + 5..at + 100).await;
        }
    }
    assert_eq!(asked(&server), [70, 130, 100, 200].map(|block| block..block + 1));
    assert!(server.received()[1..].iter().all(|request| request.field("if-range") == Some(ETAG)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_random_reads_are_not_transferred_again() {
    let body = bytes(LENGTH, 302);
    let server = Server::of(&body, Some(ETAG));
    let (mounted, spec) = mounted(&server, &body).await;
    let block = BLOCK as usize;
    let read_at: Vec<usize> = (0..64).map(|number| 120 * block + number * block).collect();
    for at in &read_at {
        read(&mounted, &spec, &body, *at..*at + 10).await;
    }

    assert!(mounted.read_all(&spec).await.unwrap() == body);

    let begins: Vec<_> =
        server.received().iter().filter_map(|request| request.range(LENGTH)).map(|range| range.start).collect();
    assert!(begins.contains(&(191 * block)), "the stream goes on behind them: {begins:?}");
    assert_eq!(mounted.content.state(spec.ino).1, Verified::Digest(Algorithm::Sha256));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_random_reads_outlast_a_restart() {
    let body = bytes(LENGTH, 308);
    let server = Server::of(&body, Some(ETAG));
    let (mounted, spec) = mounted(&server, &body).await;
    let block = BLOCK as usize;
    for number in 0..16 {
        let at = (120 + number) * block;
        read(&mounted, &spec, &body, at..at + 10).await;
    }
    read(&mounted, &spec, &body, 0..10).await;
    mounted.gives_way(&spec).await;
    let mounted = mounted.restarted(&server).await;
    let before = server.received().len();

    for number in 2..14 {
        let at = (120 + number) * block;
        read(&mounted, &spec, &body, at..at + 10).await;
    }

    assert!(server.received().len() <= before + 1, "one head says that it is the version: {:?}", asked(&server));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_block_is_requested_that_is_here_or_coming() {
    let body = bytes(LENGTH, 303);
    let (whole, gate) = (body.clone(), Gate::default());
    let (held, answered) = (gate.clone(), AtomicUsize::new(0));
    let server = Server::start(move |request| {
        let reply = honest(request, &whole, Some(ETAG));
        if answered.fetch_add(1, Ordering::SeqCst) == 0 { reply } else { reply.gated_at(0, &held) }
    });
    let (mounted, spec) = mounted(&server, &body).await;
    let block = BLOCK as usize;
    let at = |blocks: Range<usize>| read(&mounted, &spec, &body, blocks.start * block..blocks.end * block);

    let reads = async { tokio::join!(at(100..103), at(102..110), at(101..102)) };
    let opened = async {
        until(|| server.received().len() >= 3).await;
        gate.open();
    };
    tokio::join!(reads, opened);

    let mut asked = asked(&server);
    asked.sort_by_key(|range| range.start);
    assert_eq!(asked.iter().map(Range::len).sum::<usize>(), 10, "{asked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_right_or_missing_however_they_are_answered() {
    let body = bytes(LENGTH, 305);
    type Answer = fn(&Received, &[u8]) -> Reply;
    let answers: [(&str, Answer); 8] = [
        ("the whole", |_, body| Reply::full(body).with("ETag", ETAG)),
        ("another version", |request, body| described_as(request, body, "\"v2\"", 0)),
        ("a weak ETag", |request, body| described_as(request, body, "W/\"v1\"", 0)),
        ("another place", |request, body| described_as(request, body, ETAG, 1)),
        ("a coding", |request, body| honest(request, body, Some(ETAG)).with("Content-Encoding", "gzip")),
        ("not satisfiable", |_, _| Reply::status(416)),
        ("nothing of it", |request, body| honest(request, body, Some(ETAG)).cut_at(0)),
        ("half of it", |request, body| honest(request, body, Some(ETAG)).cut_at(BLOCK as usize + 5)),
    ];
    for (what, answer) in answers {
        for lies in [1, 3] {
            let (answered, whole) = (AtomicUsize::new(0), body.clone());
            let server = Server::start(move |request| match answered.fetch_add(1, Ordering::SeqCst) {
                number if (1..=lies).contains(&number) => answer(request, &whole),
                _ => honest(request, &whole, Some(ETAG)),
            });
            let (mounted, spec) = mounted(&server, &body).await;
            let at = 100 * BLOCK as usize;

            let read = mounted.read(&spec, at as u64, 3 * BLOCK as u32).await;

            assert!(read.as_ref().map_or(true, |read| read == &body[at..at + 3 * BLOCK as usize]), "{what}: {read:?}");
            assert!(read.is_ok() || lies > 1, "{what}: {read:?}");
        }
    }
}

/// The range of the request under a Content-Range `by` bytes later.
fn described_as(request: &Received, body: &[u8], etag: &str, by: usize) -> Reply {
    let Some(range) = request.range(LENGTH) else { return honest(request, body, Some(etag)) };
    let described = format!("bytes {}-{}/{LENGTH}", range.start + by, range.end + by - 1);
    Reply::full(&body[range]).with_status(206).with("ETag", etag).with("Content-Range", &described)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_directory_of_an_archive_takes_few_requests() {
    // As unzip does: the end, backwards to the directory, and on through it.
    let body = bytes(LENGTH, 307);
    let server = Server::of(&body, Some(ETAG));
    let (mounted, spec) = mounted(&server, &body).await;
    let directory = LENGTH - 700_000;
    read(&mounted, &spec, &body, LENGTH - 4096..LENGTH).await;
    read(&mounted, &spec, &body, LENGTH - 66_000..LENGTH - 60_000).await;
    for at in (directory..LENGTH).step_by(8 << 10) {
        read(&mounted, &spec, &body, at..(at + (8 << 10)).min(LENGTH)).await;
    }
    assert!(server.received().len() <= 4, "{:?}", asked(&server));
}
