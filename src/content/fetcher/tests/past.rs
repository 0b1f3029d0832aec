//! Large objects for which the cache has no room: they go past it to those who read them, no less verified.

use super::server::{Gate, Reply, Server, honest};
use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// More than what is held of what goes past.
const HUGE: usize = 2 * WHOLE_LIMIT as usize + (5 << 20) + 77_777;

/// A mount whose cache has room for nothing.
fn without_room(server: &Server) -> Mounted {
    Mounted::new(server, |config| config.quota = Some(1))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_object_is_read_to_its_end_with_one_request_and_again_with_another() {
    let body = octets(HUGE, 51);
    let server = Server::of(&body, None);
    let mut mounted = without_room(&server);
    let wanted = vouched(&server, &body);

    assert!(mounted.read_all(&wanted).await.unwrap() == body);
    assert_eq!(mounted.content.observed.get(wanted.ino).unwrap().verified, Verified::Digest(Algorithm::Sha256));
    assert!(mounted.read_all(&wanted).await.unwrap() == body);

    assert_eq!(server.received().len(), 2 + 1, "the first tried the cache");
    assert_eq!(walk(&mounted.config.folder.join("objects")), 0);
    assert!(mounted.events().iter().all(|event| matches!(event, Event::Sized(..))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_wrong_bytes_the_end_is_never_handed_out() {
    let body = octets(HUGE, 52);
    let mut wrong = body.clone();
    wrong[HUGE - 1] ^= 1;
    let server = Server::of(&wrong, None);
    let mut mounted = without_room(&server);
    let wanted = vouched(&server, &body);

    assert!(is_mismatch(&mounted.read_all(&wanted).await));
    let told = tokio::time::timeout(HANG, mounted.events.recv()).await.unwrap();
    assert_eq!(told, Some(Event::Poisoned(wanted.ino)), "what went out before is taken back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_that_went_out_before_a_cut_are_told_when_the_whole_is_right() {
    let body = octets(HUGE, 55);
    let mut wrong = body.clone();
    wrong[77] ^= 1;
    let (honest, requests) = (body.clone(), AtomicUsize::new(0));
    // The first tries the cache, the second goes past it and breaks.
    let server = Server::start(move |_| match requests.fetch_add(1, Ordering::SeqCst) {
        1 => Reply::full(&wrong).cut_at(20 << 20),
        _ => Reply::full(&honest),
    });
    let mut mounted = without_room(&server);
    let wanted = vouched(&server, &body);

    assert!(is_mismatch(&mounted.read_all(&wanted).await));
    let told = tokio::time::timeout(HANG, mounted.events.recv()).await.unwrap();
    assert_eq!(told, Some(Event::Poisoned(wanted.ino)), "what went out before is taken back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_reader_at_another_place_has_it_fetched_again() {
    let body = octets(HUGE, 53);
    let server = Server::of(&body, None);
    let mounted = without_room(&server);
    let wanted = vouched(&server, &body);
    let late = 30 << 20;

    assert_eq!(mounted.read(&wanted, late, 1 << 20).await.unwrap(), body[late as usize..][..1 << 20]);
    let before = server.received().len();
    assert_eq!(mounted.read(&wanted, 5, 100_000).await.unwrap(), body[5..100_005]);
    assert_eq!(server.received().len(), before + 1);
    assert!(mounted.read_all(&wanted).await.unwrap() == body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_strong_etag_what_has_gone_past_is_asked_for_by_itself() {
    let body = octets(HUGE, 54);
    let server = Server::of(&body, Some("\"v1\""));
    let mounted = without_room(&server);
    let wanted = vouched(&server, &body);
    let follow = async {
        let mut offset = 0;
        // The stream runs ahead of its reader, and here must not come to its end: then nothing is under way any more.
        while offset < 30 << 20 {
            assert_eq!(mounted.read(&wanted, offset, 1 << 20).await.unwrap(), body[offset as usize..][..1 << 20]);
            offset += 1 << 20;
        }
    };
    follow.await;

    assert_eq!(mounted.read(&wanted, 5, 100_000).await.unwrap(), body[5..100_005]);
    let last = server.received().pop().unwrap();
    assert_eq!(last.field("range"), Some("bytes=0-131071"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_version_at_the_second_reading_is_an_error_and_never_a_mix() {
    let (one, other) = (octets(HUGE, 55), octets(HUGE, 56));
    let (first, second) = (one.clone(), other.clone());
    let changed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let now = Arc::clone(&changed);
    let server = Server::start(move |request| {
        let is_changed = now.load(Ordering::SeqCst);
        honest(request, if is_changed { &second } else { &first }, None)
    });
    let mut mounted = without_room(&server);
    let wanted = measured(&server, &one);
    assert!(mounted.read_all(&wanted).await.unwrap() == one);
    changed.store(true, Ordering::SeqCst);

    assert!(matches!(mounted.read(&wanted, 0, 4096).await, Err(ContentError::Changed { .. })));
    let told = async { while mounted.events.recv().await != Some(Event::Changed(wanted.ino)) {} };
    tokio::time::timeout(HANG, told).await.expect("the change is told");
}

/// Promise: with `fixity=strict` verified before the first byte is handed out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strictly_it_goes_past_once_for_the_verdict_and_once_for_the_reader() {
    let body = octets(HUGE, 57);
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
    let wanted = vouched(&server, &body);

    assert!(mounted.read_all(&wanted).await.unwrap() == body);
    assert_eq!(asked.load(Ordering::SeqCst), 3, "and once for the cache");
    let wrong = Wanted { ino: INodeNo(3), uri: server.uri("/wrong"), ..wanted };
    assert!(matches!(mounted.read(&wrong, 0, 1).await, Err(ContentError::Mismatch { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_follows_ends_by_itself_and_can_be_read_again() {
    let body = octets(HUGE, 58);
    let server = Server::of(&body, None);
    let mounted = Mounted::new(&server, |config| {
        config.quota = Some(1);
        config.stall = Duration::from_secs(4);
    });
    let wanted = vouched(&server, &body);
    assert_eq!(mounted.read(&wanted, 0, 4096).await.unwrap(), body[..4096]);

    let ended = async {
        while !mounted.content.flights.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, ended).await.expect("it waits for readers that are gone");
    assert_eq!(mounted.read(&wanted, 4096, 4096).await.unwrap(), body[4096..8192]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_size_that_only_the_whole_tells_is_told_although_nothing_is_kept() {
    let body = octets(HUGE, 59);
    let whole = body.clone();
    let server = Server::start(move |request| match request.method.as_str() {
        "HEAD" => Reply::status(405),
        _ => Reply::full(&whole),
    });
    let mounted = without_room(&server);
    let wanted = bare(&server, "/a");

    assert_eq!(mounted.size(&wanted).await.unwrap(), HUGE as u64);
    assert!(mounted.read_all(&wanted).await.unwrap() == body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_one_moment_share_what_goes_past() {
    let body = octets(HUGE, 60);
    let (gate, whole) = (Gate::default(), body.clone());
    let held = gate.clone();
    let server = Server::start(move |request| honest(request, &whole, None).gated_at(1 << 20, &held));
    let mounted = without_room(&server);
    let wanted = vouched(&server, &body);
    let readers = async { tokio::join!(mounted.read_all(&wanted), mounted.read_all(&wanted)) };
    let opened = async { gate.open() };

    let ((one, other), ()) = tokio::join!(readers, opened);

    assert!(one.unwrap() == body && other.unwrap() == body);
}
