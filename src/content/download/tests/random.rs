//! Random reads: few requests, each block asked for once, right or not at all.

use super::server::{Gate, Received, Reply, Server, honest};
use super::*;
use crate::content::block_cache::BlockCache;
use crate::content::download::object::Origin;
use crate::content::download::random::RandomReads;
use crate::content::download::ranges::RangeClient;
use crate::platform::memory_budget::Budget;
use crate::source::http::{KnownPause, Priority};
use futures_util::FutureExt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

const ETAG: &str = "\"v1\"";
const MIB: usize = 1 << 20;
const BLOCKS: usize = 100;

/// The last block is short.
const LENGTH: usize = BLOCKS * BLOCK as usize + 12_345;
const OBJECT: (INodeNo, u64) = (INodeNo(7), 1);

struct Reader {
    reads: Arc<RandomReads>,
    budget: Budget,
    client: RangeClient,
}

impl Reader {
    fn of(server: &Server) -> Reader {
        Reader::with(server, 64 * MIB, 32 * MIB)
    }

    fn with(server: &Server, budget: usize, cached: usize) -> Reader {
        let budget = Budget::new(budget);
        let reads = RandomReads::new(&BlockCache::new(&budget, cached), &budget);
        let http = HttpConfig { own_authority: Some(server.authority().into()), ..HttpConfig::default() };
        let (place, length) = (server.uri("/a"), LENGTH as u64);
        let client = RangeClient {
            client: Client::new(http).unwrap(),
            origin: Origin { place, etag: ETAG.into(), first: 0, total: length, length, shared: None },
            priority: Priority::default(),
            pause: KnownPause::default(),
            head: PLENTY,
            silence: Duration::from_secs(2),
            shared_cache: None,
        };
        Reader { reads, budget, client }
    }

    async fn blocks(&self, blocks: Range<u64>) -> Option<Bytes> {
        tokio::time::timeout(HANG, self.reads.read(OBJECT, blocks, &self.client)).await.expect("a read hangs")
    }

    /// Reads these bytes as `download` does.
    async fn read(&self, body: &[u8], range: Range<usize>) {
        let block = BLOCK as usize;
        let blocks = range.start / block..range.end.div_ceil(block);
        let read = self.blocks(blocks.start as u64..blocks.end as u64).await.unwrap();
        assert!(read == body[blocks.start * block..(blocks.end * block).min(LENGTH)]);
    }
}

/// The blocks that were asked for.
fn asked(server: &Server) -> Vec<Range<usize>> {
    let block = BLOCK as usize;
    let ranges = server.received().into_iter().map(|request| request.range(LENGTH).unwrap());
    ranges.map(|range| range.start / block..range.end.div_ceil(block)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_here_and_there_get_what_they_ask_for_once() {
    let body = bytes(LENGTH, 301);
    let server = Server::of(&body, Some(ETAG));
    let reader = Reader::of(&server);
    for _ in 0..2 {
        for block in [70, 10, 40, 90] {
            let at = block * BLOCK as usize;
            reader.read(&body, at + 5..at + 100).await;
        }
    }
    assert_eq!(asked(&server), [70, 10, 40, 90].map(|block| block..block + 1));
    assert!(server.received().iter().all(|request| request.field("if-range") == Some(ETAG)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_goes_on_gets_more_each_time() {
    const STEP: usize = 8 << 10;
    let body = bytes(LENGTH, 302);
    let server = Server::of(&body, Some(ETAG));
    let reader = Reader::of(&server);
    let from = 20 * BLOCK as usize;
    for at in (from..from + 2 * MIB).step_by(STEP) {
        reader.read(&body, at..at + STEP).await;
    }
    assert_eq!(asked(&server), [20..21, 21..23, 23..27, 27..35, 35..43]);

    let server = Server::of(&body, Some(ETAG));
    let reader = Reader::of(&server);
    for step in 1..=2 * MIB / STEP {
        reader.read(&body, LENGTH - step * STEP..LENGTH - (step - 1) * STEP).await;
    }
    assert_eq!(asked(&server), [99..101, 96..99, 90..96, 82..90]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_block_is_asked_for_that_is_here_or_on_its_way() {
    let body = bytes(LENGTH, 303);
    let (whole, gate) = (body.clone(), Gate::default());
    let held = gate.clone();
    let server = Server::start(move |request| honest(request, &whole, Some(ETAG)).gated_at(0, &held));
    let reader = Reader::of(&server);

    let reads = async { tokio::join!(reader.blocks(10..13), reader.blocks(12..20), reader.blocks(11..12)) };
    let opened = async {
        until(|| server.received().len() == 2).await;
        gate.open();
    };
    let ((first, second, third), ()) = tokio::join!(reads, opened);

    let block = BLOCK as usize;
    assert!(first.unwrap() == body[10 * block..13 * block] && second.unwrap() == body[12 * block..20 * block]);
    assert!(third.unwrap() == body[11 * block..12 * block]);
    let mut asked = asked(&server);
    asked.sort_by_key(|range| range.start);
    assert_eq!(asked, [10..13, 13..20]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_waits_for_its_own_blocks_alone() {
    let body = bytes(LENGTH, 304);
    let (whole, gate) = (body.clone(), Gate::default());
    let held = gate.clone();
    let server =
        Server::start(move |request| honest(request, &whole, Some(ETAG)).gated_at(2 * BLOCK as usize + 9, &held));
    let reader = Reader::of(&server);
    let all = reader.blocks(10..14);
    tokio::pin!(all);
    assert!((&mut all).now_or_never().is_none());

    let block = BLOCK as usize;
    assert!(reader.blocks(11..12).await.unwrap() == body[11 * block..12 * block]);
    assert!((&mut all).now_or_never().is_none());
    gate.open();
    assert!(all.await.unwrap() == body[10 * block..14 * block]);
    assert_eq!(server.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_blocks_are_right_or_missing_however_they_are_answered() {
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
        for lies in [1, usize::MAX] {
            let (answered, whole) = (AtomicUsize::new(0), body.clone());
            let server = Server::start(move |request| match answered.fetch_add(1, Ordering::SeqCst) < lies {
                true => answer(request, &whole),
                false => honest(request, &whole, Some(ETAG)),
            });
            let reader = Reader::of(&server);
            let block = BLOCK as usize;

            let read = reader.blocks(10..13).await;

            assert!(read.as_ref().is_none_or(|read| read == &body[10 * block..13 * block]), "{what}");
            assert_eq!(read.is_some(), lies == 1 || what == "half of it" && server.received().len() > 2, "{what}");
            assert!(server.received().len() <= 3, "{what}: asked for once more");
        }
    }
}

/// The range of the request under a Content-Range `by` bytes later.
fn described_as(request: &Received, body: &[u8], etag: &str, by: usize) -> Reply {
    let range = request.range(LENGTH).unwrap();
    let described = format!("bytes {}-{}/{LENGTH}", range.start + by, range.end + by - 1);
    Reply::full(&body[range]).with_status(206).with("ETag", etag).with("Content-Range", &described)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_stay_within_the_cache_and_the_budget() {
    let body = bytes(LENGTH, 306);
    let server = Server::of(&body, Some(ETAG));
    let block = BLOCK as usize;
    let reader = Reader::with(&server, 8 * MIB, 4 * MIB);
    for at in (0..BLOCKS).step_by(3) {
        reader.read(&body, at * block..at * block + 1).await;
        assert!(reader.budget.free() >= 3 * MIB);
    }
    // Cached blocks are given up for any reservation.
    let other = tokio::time::timeout(HANG, reader.budget.reserve(8 * MIB)).await.unwrap();
    // A block that has no memory is handed out all the same, and not cached.
    let before = server.received().len();
    for _ in 0..2 {
        let read = tokio::time::timeout(HANG, reader.blocks(0..1)).await.unwrap();
        assert!(read.unwrap() == body[..block]);
    }
    assert_eq!(server.received().len(), before + 2);
    drop(other);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_directory_of_an_archive_takes_few_requests() {
    // As unzip does: the end, backwards to the directory, and on through it.
    let body = bytes(LENGTH, 307);
    let server = Server::of(&body, Some(ETAG));
    let reader = Reader::of(&server);
    let directory = LENGTH - 700_000;
    reader.read(&body, LENGTH - 4096..LENGTH).await;
    reader.read(&body, LENGTH - 66_000..LENGTH - 60_000).await;
    for at in (directory..LENGTH).step_by(8 << 10) {
        reader.read(&body, at..(at + (8 << 10)).min(LENGTH)).await;
    }
    assert!(server.received().len() <= 4, "{:?}", asked(&server));
}
