//! Objects for which the cache folder has no room: large ones stream past it to their readers, no less verified.

use super::*;
use crate::source::tests::server::{Gate, Reply, Server, honest};
use futures_util::future::join_all;
use std::sync::atomic::{AtomicUsize, Ordering};

/// More than what is held of what goes past.
const HUGE: usize = 2 * WHOLE_LIMIT as usize + (5 << 20) + 77_777;

/// A mount whose cache has room for nothing.
fn without_room(server: &Server) -> Mounted {
    Mounted::new(server, |config| config.quota = Some(1))
}

/// Reads it to its end, which is refused.
async fn is_wrong_and_taken_back(mounted: &mut Mounted, spec: &FetchSpec) {
    assert!(is_mismatch(&mounted.read_all(spec).await));
    let event = tokio::time::timeout(HANG, mounted.events.recv()).await.unwrap();
    assert_eq!(event, Some(Event::Poisoned(spec.ino)), "the bytes handed out before are withdrawn");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_object_is_read_past_the_cache_with_one_request() {
    let body = bytes(HUGE, 51);
    let server = Server::of(&body, None);
    let mut mounted = without_room(&server);
    let spec = vouched(&server, &body);

    assert!(mounted.read_all(&spec).await.unwrap() == body);
    assert_eq!(mounted.content.local.metadata.get(spec.ino).unwrap().verified, Verified::Digest(Algorithm::Sha256));
    assert!(mounted.read_all(&spec).await.unwrap() == body);

    assert_eq!(server.received().len(), 2, "none tried the cache");
    assert_eq!(walk(&mounted.config.folder.join("objects")), 0);
    assert!(mounted.events().iter().all(|event| matches!(event, Event::Sized(..))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_wrong_bytes_is_never_handed_out() {
    let body = bytes(HUGE, 52);
    let mut wrong = body.clone();
    wrong[HUGE - 1] ^= 1;
    let server = Server::of(&wrong, None);
    let mut mounted = without_room(&server);
    let spec = vouched(&server, &body);

    is_wrong_and_taken_back(&mut mounted, &spec).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_before_a_cut_poison_when_the_whole_is_right() {
    let body = bytes(HUGE, 55);
    let mut wrong = body.clone();
    wrong[77] ^= 1;
    let (honest, requests) = (body.clone(), AtomicUsize::new(0));
    // The first goes past the cache and breaks.
    let server = Server::start(move |_| match requests.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::full(&wrong).cut_at(20 << 20),
        _ => Reply::full(&honest),
    });
    let mut mounted = without_room(&server);
    let spec = vouched(&server, &body);

    is_wrong_and_taken_back(&mut mounted, &spec).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_reader_at_another_place_has_it_fetched_again() {
    let body = bytes(HUGE, 53);
    let server = Server::of(&body, None);
    let mounted = without_room(&server);
    let spec = vouched(&server, &body);
    let late = 30 << 20;

    assert_eq!(mounted.read(&spec, late, 1 << 20).await.unwrap(), body[late as usize..][..1 << 20]);
    let before = server.received().len();
    assert_eq!(mounted.read(&spec, 5, 100_000).await.unwrap(), body[5..100_005]);
    assert_eq!(server.received().len(), before + 1);
    assert!(mounted.read_all(&spec).await.unwrap() == body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_have_passed_are_requested_under_a_strong_etag() {
    let body = bytes(HUGE, 54);
    let server = Server::of(&body, Some("\"v1\""));
    let mounted = without_room(&server);
    let spec = vouched(&server, &body);
    let follow = async {
        let mut offset = 0;
        // The stream runs ahead of its reader, and here must not come to its end: then nothing is under way any more.
        while offset < 30 << 20 {
            assert_eq!(mounted.read(&spec, offset, 1 << 20).await.unwrap(), body[offset as usize..][..1 << 20]);
            offset += 1 << 20;
        }
    };
    follow.await;

    assert_eq!(mounted.read(&spec, 5, 100_000).await.unwrap(), body[5..100_005]);
    // Ranges of what follows may be asked for meanwhile.
    assert!(server.received().iter().any(|request| request.field("range") == Some("bytes=0-131071")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_version_at_the_second_read_is_an_error() {
    let (one, other) = (bytes(HUGE, 55), bytes(HUGE, 56));
    let (first, second) = (one.clone(), other.clone());
    let changed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let now = Arc::clone(&changed);
    let server = Server::start(move |request| {
        let is_changed = now.load(Ordering::SeqCst);
        honest(request, if is_changed { &second } else { &first }, None)
    });
    let mut mounted = without_room(&server);
    let spec = measured(&server, &one);
    assert!(mounted.read_all(&spec).await.unwrap() == one);
    changed.store(true, Ordering::SeqCst);

    assert!(matches!(mounted.read(&spec, 0, 4096).await, Err(ContentError::Changed { .. })));
    let event = async { while mounted.events.recv().await != Some(Event::Changed(spec.ino)) {} };
    tokio::time::timeout(HANG, event).await.expect("the change is reported");
}

/// Promise: with `fixity=strict` verified before the first byte is handed out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_fixity_past_the_cache_takes_two_requests() {
    let body = bytes(HUGE, 57);
    let mut wrong = body.clone();
    wrong[HUGE / 2] ^= 1;
    let lie = wrong.clone();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let honest_body = body.clone();
    let server = Server::start(move |request| {
        count.fetch_add(1, Ordering::SeqCst);
        honest(request, if request.path == "/wrong" { &lie } else { &honest_body }, None)
    });
    let mounted = Mounted::new(&server, |config| {
        config.quota = Some(1);
        config.fixity = Fixity::Strict;
    });
    let spec = vouched(&server, &body);

    assert!(mounted.read_all(&spec).await.unwrap() == body);
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    let wrong = FetchSpec { ino: Ino(3), uri: server.uri("/wrong"), ..spec };
    assert!(matches!(mounted.read(&wrong, 0, 1).await, Err(ContentError::Mismatch { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_without_readers_ends_and_can_be_read_again() {
    let body = bytes(HUGE, 58);
    let server = Server::of(&body, None);
    let mounted = Mounted::new(&server, |config| {
        config.quota = Some(1);
        config.stall = Duration::from_secs(4);
    });
    let spec = vouched(&server, &body);
    assert_eq!(mounted.read(&spec, 0, 4096).await.unwrap(), body[..4096]);

    let ended = async {
        while !mounted.content.table.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, ended).await.expect("it waits for readers that are gone");
    assert_eq!(mounted.read(&spec, 4096, 4096).await.unwrap(), body[4096..8192]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_size_that_only_the_body_shows_is_learnt_past_the_cache() {
    let body = bytes(HUGE, 59);
    let whole = body.clone();
    let server = Server::start(move |request| match request.method.as_str() {
        "HEAD" => Reply::status(405),
        _ => Reply::full(&whole),
    });
    let mounted = without_room(&server);
    let spec = bare(&server, "/a");

    assert_eq!(mounted.size(&spec).await.unwrap(), HUGE as u64);
    assert!(mounted.read_all(&spec).await.unwrap() == body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_readers_share_a_stream_past_the_cache() {
    let body = bytes(HUGE, 60);
    let (gate, whole) = (Gate::default(), body.clone());
    let held = gate.clone();
    let server = Server::start(move |request| honest(request, &whole, None).gated_at(1 << 20, &held));
    let mounted = without_room(&server);
    let spec = vouched(&server, &body);
    let readers = async { tokio::join!(mounted.read_all(&spec), mounted.read_all(&spec)) };
    let opened = async { gate.open() };

    let ((one, other), ()) = tokio::join!(readers, opened);

    assert!(one.unwrap() == body && other.unwrap() == body);
}

/// Bytes of an object that comes in ranges.
const IN_RANGES: usize = (96 << 20) + 77_777;

/// Read through by one reader that asks for several pieces at once, in any order, as the kernel does.
async fn read_ahead(mounted: &Mounted, spec: &FetchSpec, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let offsets: Vec<_> = (bytes.len() as u64..length as u64).step_by(1 << 20).take(6).collect();
        let pieces = offsets
            .into_iter()
            .rev()
            .map(|offset| async move { (offset, mounted.read(spec, offset, 1 << 20).await.unwrap()) });
        let mut pieces = join_all(pieces).await;
        pieces.sort_by_key(|(offset, _)| *offset);
        pieces.into_iter().for_each(|(_, piece)| bytes.extend_from_slice(&piece));
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_past_the_cache_are_sent_once() {
    let body = bytes(IN_RANGES, 61);
    let server = Server::of(&body, Some("\"v1\""));
    let mounted = without_room(&server);
    let spec = vouched(&server, &body);

    assert!(read_ahead(&mounted, &spec, IN_RANGES).await == body);

    assert_eq!(mounted.content.local.metadata.get(spec.ino).unwrap().verified, Verified::Digest(Algorithm::Sha256));
    assert_eq!(walk(&mounted.config.folder.join("objects")), 0);
    assert!(server.sent() < IN_RANGES + (20 << 20), "{} bytes sent", server.sent());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_past_the_cache_stop_soon_behind_the_reader() {
    let body = bytes(IN_RANGES, 62);
    let server = Server::of(&body, Some("\"v1\""));
    let mounted = without_room(&server);
    let spec = vouched(&server, &body);
    let read = 4 << 20;

    for offset in (0..read).step_by(1 << 20) {
        assert_eq!(mounted.read(&spec, offset, 1 << 20).await.unwrap(), body[offset as usize..][..1 << 20]);
    }

    // Until nothing was requested for a while.
    let mut before = 0;
    while before < server.sent() {
        before = server.sent();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let asked: usize = server.received().iter().filter_map(|it| it.range(IN_RANGES)).map(|range| range.len()).sum();
    assert!(asked <= 5 * read as usize + (4 << 20), "{asked} bytes asked for in ranges");
    // The reader goes on where it was, or jumps, and nothing is lost.
    assert_eq!(mounted.read(&spec, read, 1 << 20).await.unwrap(), body[read as usize..][..1 << 20]);
    assert_eq!(mounted.read(&spec, 80 << 20, 1 << 20).await.unwrap(), body[80 << 20..][..1 << 20]);
    assert_eq!(mounted.read(&spec, 5, 4096).await.unwrap(), body[5..5 + 4096]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_range_is_found_before_the_end_is_handed_out() {
    let body = bytes(IN_RANGES, 63);
    let mut wrong = body.clone();
    wrong[50 << 20] ^= 1;
    let server = Server::of(&wrong, Some("\"v1\""));
    let mut mounted = without_room(&server);
    let spec = vouched(&server, &body);

    is_wrong_and_taken_back(&mut mounted, &spec).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_returns_after_reading_elsewhere_is_served() {
    let body = bytes(IN_RANGES, 64);
    let server = Server::of(&body, Some("\"v1\""));
    let mounted = Mounted::new(&server, |config| {
        config.quota = Some(1);
        // Each request has this deadline too, on a busy machine as well.
        config.stall = Duration::from_secs(5);
    });
    let spec = vouched(&server, &body);
    let begun = std::time::Instant::now();
    assert_eq!(mounted.read(&spec, 0, BLOCK as u32).await.unwrap(), body[..BLOCK as usize]);

    for piece in 0.. {
        let offset = (60 << 20) + piece * BLOCK;
        assert_eq!(mounted.read(&spec, offset, 4096).await.unwrap(), body[offset as usize..][..4096]);
        if begun.elapsed() > Duration::from_secs(6) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    assert_eq!(
        mounted.read(&spec, 10 * BLOCK, BLOCK as u32).await.unwrap(),
        body[10 * BLOCK as usize..][..BLOCK as usize]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_behind_the_window_does_not_delay_others() {
    let body = bytes(IN_RANGES, 65);
    let server = Server::of(&body, Some("\"v1\""));
    let mounted = without_room(&server);
    let spec = vouched(&server, &body);
    let first = 40;
    assert!(read_ahead(&mounted, &spec, first << 20).await[..first << 20] == body[..first << 20]);

    for piece in 0..16 {
        for offset in [first + 6 + piece, piece].map(|piece| piece << 20) {
            assert!(mounted.read(&spec, offset as u64, 1 << 20).await.unwrap() == body[offset..][..1 << 20]);
        }
    }

    // What the one read, and asked ahead; what the other read; and what the network holds of the body that was let go.
    let most = IN_RANGES + (16 << 20) + (20 << 20);
    assert!(server.sent() <= most, "{} bytes sent", server.sent());
}

/// Only the whole shows how long it is: it passes once for that, and memory is waited for once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_of_unknown_length_passes_once_for_its_size() {
    let body = bytes(HUGE, 66);
    let whole = body.clone();
    let server = Server::start(move |request| match request.method.as_str() {
        "HEAD" => Reply::status(405),
        _ => Reply::full(&whole).announcing(None),
    });
    let mounted = without_room(&server);
    let spec = bare(&server, "/a");

    assert!(mounted.read_all(&spec).await.unwrap() == body);
    assert_eq!(server.received().len(), 3, "one tried the disk, one was for the verdict, one for the reader");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_object_in_memory_is_shown_and_dropped_as_one_on_disk() {
    let body = bytes(3 * BLOCK as usize + 77, 67);
    let server = Server::of(&body, None);
    let mounted = without_room(&server);
    let (spec, content) = (vouched(&server, &body), &mounted.content);
    assert!(mounted.read_all(&spec).await.unwrap() == body);

    assert_eq!(content.state(spec.ino), (crate::content::State::Cached, Verified::Digest(Algorithm::Sha256)));
    assert_eq!(content.read_local(spec.ino, BLOCK - 5, 10).unwrap(), body[BLOCK as usize - 5..][..10]);
    assert!(matches!(content.read_in_memory(spec.ino, 0, 10), crate::content::LocalRead::Bytes(_)));
    assert!(content.is_here(spec.ino) && content.prefetch(&spec, crate::content::store::Moment::now()).await.is_err());
    assert_eq!(content.evict(&spec), crate::content::store::Evicted::Bytes(body.len() as u64));
    assert_eq!(content.state(spec.ino).0, crate::content::State::Remote);
    assert!(mounted.read_all(&spec).await.unwrap() == body);
    assert_eq!(server.received().len(), 4, "tried on disk and read past it, twice");
}
