//! Large objects: handed out while they stream, the end withheld, wrong ones poisoned.

use super::*;
use crate::content::State;
use crate::source::tests::server::{Gate, Reply, Server, honest};
use futures_util::FutureExt;
use std::sync::atomic::{AtomicBool, Ordering};

const ETAG: &str = "\"v1\"";

/// Where the servers below wait for the test: most of the object has been sent.
const PAUSE: usize = LARGE - 700_000;

/// Handed out before the pause.
const EARLY: u64 = 15 << 20;

/// A server that pauses in its first body and sends `first` to its first request, `later` to all others.
fn pausing(gate: &Gate, etag: Option<&'static str>, first: Vec<u8>, later: Vec<u8>) -> Server {
    let gate = gate.clone();
    Server::start(move |request| match request.number {
        0 => honest(request, &first, etag).gated_at(PAUSE, &gate),
        _ => honest(request, &later, etag),
    })
}

fn damaged_end(body: &[u8]) -> Vec<u8> {
    let mut damaged = body.to_vec();
    damaged[LARGE - 1] ^= 1;
    damaged
}

/// Most of an object has gone out whose end is wrong.
async fn begun_with_a_wrong_end(seed: u64) -> (Server, Mounted, FetchSpec) {
    let body = bytes(LARGE, seed);
    let gate = Gate::default();
    let server = pausing(&gate, None, damaged_end(&body), damaged_end(&body));
    let mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    mounted.read(&spec, 0, 10).await.unwrap();
    gate.open();
    (server, mounted, spec)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_object_streams_and_its_end_waits_for_the_verdict() {
    let body = bytes(LARGE, 50);
    let gate = Gate::default();
    let server = pausing(&gate, None, body.clone(), Vec::new());
    let mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);

    assert_eq!(mounted.read(&spec, 0, 4096).await.unwrap(), body[..4096]);
    assert_eq!(mounted.read(&spec, EARLY - 100, 100).await.unwrap(), body[EARLY as usize - 100..EARLY as usize]);
    assert!(matches!(mounted.content.state(spec.ino), (State::Partial(bytes), Verified::NotYet) if bytes >= EARLY));
    let end = mounted.read(&spec, LARGE as u64 - 1000, 4096);
    tokio::pin!(end);
    assert!((&mut end).now_or_never().is_none());
    gate.open();

    assert_eq!(end.await.unwrap(), body[LARGE - 1000..]);
    assert!(mounted.read_all(&spec).await.unwrap() == body);
    assert_eq!(server.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_end_poisons_the_inode_for_every_reader() {
    let body = bytes(LARGE, 51);
    let gate = Gate::default();
    let server = pausing(&gate, None, damaged_end(&body), damaged_end(&body));
    let mut mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    assert_eq!(mounted.read(&spec, EARLY - 100, 100).await.unwrap(), body[EARLY as usize - 100..EARLY as usize]);
    gate.open();

    assert!(matches!(mounted.read(&spec, LARGE as u64 - 10, 10).await, Err(ContentError::Mismatch { .. })));
    assert!(matches!(mounted.read(&spec, 0, 10).await, Err(ContentError::Mismatch { .. })), "later readers too");
    assert_eq!(mounted.content.read_local(spec.ino, 0, 10), None);
    assert_eq!(mounted.content.state(spec.ino), (State::Poisoned, Verified::Failed));
    let event = tokio::time::timeout(HANG, mounted.events.recv()).await.unwrap();
    assert_eq!(event, Some(Event::Poisoned(spec.ino)));
    mounted.content.forget_failures();
    assert!(matches!(mounted.read(&spec, 0, 10).await, Err(ContentError::Mismatch { .. })), "a refresh is no cure");
    assert_eq!(server.received().len(), 2);
}

// On one thread, so that the event is sent before the next read begins.
#[tokio::test]
async fn poison_is_reported_once_however_many_read() {
    let (_server, mut mounted, spec) = begun_with_a_wrong_end(52).await;
    assert!(mounted.read(&spec, LARGE as u64 - 10, 10).await.is_err());

    assert!(mounted.read(&spec, 0, 10).await.is_err() && mounted.read(&spec, 0, 20).await.is_err());

    assert_eq!(mounted.events(), [Event::Poisoned(spec.ino)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_inode_after_a_poisoned_one_waits_for_the_verdict() {
    let body = bytes(LARGE, 60);
    let wrong = damaged_end(&body);
    let gates = [Gate::default(), Gate::default()];
    let [first, second] = gates.clone();
    let server = Server::start(move |request| match request.number {
        0 => honest(request, &wrong, None).gated_at(PAUSE, &first),
        2 => honest(request, &wrong, None).gated_at(PAUSE, &second),
        _ => honest(request, &wrong, None),
    });
    let mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    mounted.read(&spec, 0, 10).await.unwrap();
    gates[0].open();
    assert!(matches!(mounted.read(&spec, LARGE as u64 - 10, 10).await, Err(ContentError::Mismatch { .. })));

    let next = FetchSpec { ino: Ino(3), ..spec };
    let start = mounted.read(&next, 0, 10);
    tokio::pin!(start);
    while !matches!(mounted.content.state(next.ino), (State::Partial(bytes), _) if bytes >= EARLY) {
        assert!((&mut start).now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    assert!((&mut start).now_or_never().is_none());
    gates[1].open();
    assert!(matches!(start.await, Err(ContentError::Mismatch { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_releases_the_end_if_it_equals_what_was_handed_out() {
    let body = bytes(LARGE, 52);
    let gate = Gate::default();
    let server = pausing(&gate, None, damaged_end(&body), body.clone());
    let mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    mounted.read(&spec, EARLY - 100, 100).await.unwrap();
    gate.open();

    assert_eq!(mounted.read(&spec, LARGE as u64 - 10, 10).await.unwrap(), body[LARGE - 10..]);
    assert!(mounted.read_all(&spec).await.unwrap() == body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_retry_after_wrong_bytes_poisons_and_keeps_the_object() {
    let body = bytes(LARGE, 53);
    let mut wrong = body.clone();
    wrong[5] ^= 1;
    let gate = Gate::default();
    let server = pausing(&gate, None, wrong.clone(), body.clone());
    let mut mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    assert_eq!(mounted.read(&spec, 0, 10).await.unwrap(), wrong[..10], "not verified yet");
    gate.open();

    assert!(matches!(mounted.read(&spec, LARGE as u64 - 10, 10).await, Err(ContentError::Mismatch { .. })));
    let event = tokio::time::timeout(HANG, mounted.events.recv()).await.unwrap();
    assert_eq!(event, Some(Event::Poisoned(spec.ino)));
    let next = FetchSpec { ino: Ino(3), ..spec };
    assert!(mounted.read_all(&next).await.unwrap() == body, "the name's new inode finds it");
    assert_eq!(server.received().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_fixity_hands_nothing_out_before_the_verdict() {
    let body = bytes(LARGE, 54);
    let server = Server::of(&damaged_end(&body), None);
    let mut mounted = Mounted::new(&server, |config| config.fixity = Fixity::Strict);
    let spec = vouched(&server, &body);

    assert!(matches!(mounted.read(&spec, 0, 10).await, Err(ContentError::Mismatch { .. })));
    assert_eq!(mounted.events(), [], "nothing went out, nothing is poisoned");
    assert_eq!(mounted.content.state(spec.ino).0, State::Remote);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_cut_under_a_strong_etag_is_resumed_for_its_readers() {
    let body = bytes(LARGE, 55);
    let whole = body.clone();
    let server = Server::start(move |request| match request.number {
        0 => honest(request, &whole, Some(ETAG)).cut_at(PAUSE),
        _ => honest(request, &whole, Some(ETAG)),
    });
    let mounted = Mounted::plain(&server);

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
    assert_eq!(server.received()[1].field("range"), Some(&*format!("bytes={PAUSE}-")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_version_after_a_cut_is_never_mixed_in() {
    let body = bytes(LARGE, 56);
    let newer = bytes(LARGE, 57);
    for etag in [Some("\"v2\""), None] {
        let gate = Gate::default();
        let (held, whole, other) = (gate.clone(), body.clone(), newer.clone());
        let first_etag = etag.and(Some(ETAG));
        let server = Server::start(move |request| match request.number {
            0 => honest(request, &whole, first_etag).gated_at(PAUSE, &held).cut_at(PAUSE),
            _ => honest(request, &other, etag),
        });
        let mut mounted = Mounted::plain(&server);
        let spec = measured(&server, &body);
        assert_eq!(mounted.read(&spec, 0, 10).await.unwrap(), body[..10]);
        gate.open();

        assert!(matches!(mounted.read(&spec, LARGE as u64 - 10, 10).await, Err(ContentError::Changed { .. })));
        assert_eq!(mounted.events(), [Event::Changed(spec.ino)]);
        mounted.content.forget_failures();
        assert!(mounted.read(&spec, EARLY, 10).await.is_err(), "what went out binds every later fetch");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_download_goes_on_after_a_cut_one() {
    let body = bytes(LARGE, 58);
    let (whole, is_down) = (body.clone(), Arc::new(AtomicBool::new(true)));
    let down = Arc::clone(&is_down);
    let server = Server::start(move |request| match request.number {
        0 => honest(request, &whole, Some(ETAG)).cut_at(PAUSE),
        _ if down.load(Ordering::SeqCst) => Reply::status(500),
        _ => honest(request, &whole, Some(ETAG)),
    });
    let mounted = Mounted::new(&server, |config| config.stall = Duration::from_secs(2));
    let spec = vouched(&server, &body);
    assert_eq!(mounted.read(&spec, 0, 10).await.unwrap(), body[..10]);
    assert!(mounted.read(&spec, LARGE as u64 - 10, 10).await.is_err());
    let asked = server.received().len();
    is_down.store(false, Ordering::SeqCst);
    mounted.content.forget_failures();

    // A reader may come while the failed fetch is still ending.
    while mounted.read(&spec, LARGE as u64 - 10, 10).await.is_err() {
        mounted.content.forget_failures();
    }
    assert!(mounted.read_all(&spec).await.unwrap() == body);
    let first_block_absent = PAUSE as u64 - PAUSE as u64 % BLOCK;
    let requests: Vec<_> = server.received()[asked..].iter().map(|it| it.field("range").map(str::to_owned)).collect();
    assert_eq!(requests.last(), Some(&Some(format!("bytes={first_block_absent}-"))), "{requests:?}");
}

/// Damages a bit in the middle of each partial.
fn damage_partials(mounted: &Mounted) {
    use std::os::unix::fs::FileExt;
    for entry in std::fs::read_dir(mounted.config.folder.join("tmp")).unwrap() {
        let file = std::fs::File::options().read(true).write(true).open(entry.unwrap().path()).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 5 << 20).unwrap();
        file.write_all_at(&[byte[0] ^ 1], 5 << 20).unwrap();
    }
}

/// Promise: a damaged block is fetched again, whichever reader finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_block_of_a_partial_is_fetched_again() {
    let body = bytes(LARGE, 59);
    for (read_before, first_read) in [(0, 5 << 20), (5 << 20, 5 << 20), (5 << 20, 0)] {
        let (whole, is_down) = (body.clone(), Arc::new(AtomicBool::new(true)));
        let down = Arc::clone(&is_down);
        let server = Server::start(move |request| match request.number {
            0 => honest(request, &whole, Some(ETAG)).cut_at(PAUSE),
            _ if down.load(Ordering::SeqCst) => Reply::status(500),
            _ => honest(request, &whole, Some(ETAG)),
        });
        let mounted = Mounted::new(&server, |config| config.stall = Duration::from_secs(2));
        let spec = vouched(&server, &body);
        assert_eq!(mounted.read(&spec, read_before, 10).await.unwrap(), body[read_before as usize..][..10]);
        assert!(mounted.read(&spec, LARGE as u64 - 10, 10).await.is_err());
        until(|| mounted.content.table.get(spec.ino).is_none()).await;
        is_down.store(false, Ordering::SeqCst);
        mounted.content.forget_failures();
        damage_partials(&mounted);

        assert_eq!(mounted.read(&spec, first_read, 10).await.unwrap(), body[first_read as usize..][..10]);
        assert!(mounted.read_all(&spec).await.unwrap() == body, "{read_before} {first_read}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_damaged_under_a_download_is_fetched_again() {
    let body = bytes(LARGE, 66);
    let (gate, whole) = (Gate::default(), body.clone());
    let held = gate.clone();
    let server = Server::start(move |request| match request.number {
        0 => honest(request, &whole, Some(ETAG)).gated_at(PAUSE, &held),
        _ => honest(request, &whole, Some(ETAG)),
    });
    let mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    assert_eq!(mounted.read(&spec, 0, 10).await.unwrap(), body[..10]);
    until(|| mounted.content.arrived(spec.ino) > 6 << 20).await;
    damage_partials(&mounted);

    let (damaged, ()) = tokio::join!(mounted.read(&spec, 5 << 20, 10), async { gate.open() });
    assert_eq!(damaged.unwrap(), body[5 << 20..][..10]);
    assert!(mounted.read_all(&spec).await.unwrap() == body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_rest_is_refused_is_fetched_whole() {
    let body = bytes(LARGE, 62);
    let whole = body.clone();
    let server = Server::start(move |request| match request.number {
        0 => honest(request, &whole, Some(ETAG)).cut_at(PAUSE),
        1 => Reply::status(404),
        _ => honest(request, &whole, Some(ETAG)),
    });
    let mounted = Mounted::plain(&server);

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
    assert_eq!(server.received()[2].field("range"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_jumps_is_served_under_a_strong_etag() {
    let body = bytes(LARGE, 59);
    let (gate, whole) = (Gate::default(), body.clone());
    let stream = gate.clone();
    let server = Server::start(move |request| match request.field("range") {
        None => honest(request, &whole, Some(ETAG)).gated_at(1 << 20, &stream),
        Some(_) => honest(request, &whole, Some(ETAG)),
    });
    let mut mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);

    assert_eq!(mounted.read(&spec, 0, 10).await.unwrap(), body[..10]);
    let far = 9_000_000;
    assert_eq!(mounted.read(&spec, far as u64, 1 << 20).await.unwrap(), body[far..far + (1 << 20)]);
    assert_eq!(mounted.read(&spec, LARGE as u64 - 10, 4096).await.unwrap(), body[LARGE - 10..], "the last block too");
    let asked = server.received();
    let ranges: Vec<_> = asked[1..].iter().filter_map(|request| request.field("range")).collect();
    assert!(ranges.contains(&"bytes=8912896-9961471"), "the first eight of the blocks that are read: {ranges:?}");
    assert!(asked[1..].iter().all(|request| request.field("if-range") == Some(ETAG)));
    gate.open();

    assert!(mounted.read_all(&spec).await.unwrap() == body);
    let end = LARGE as u64;
    assert_eq!(mounted.events(), [Event::Recheck(spec.ino, end - 10..end), Event::Sized(spec.ino, end)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_jumps_waits_where_ranges_are_not_trusted() {
    let body = bytes(LARGE, 60);
    type Answer = fn(&server::Received, &[u8]) -> Reply;
    let weak: (Option<&'static str>, Answer) = (Some("W/\"v1\""), |request, body| honest(request, body, None));
    let newer: (Option<&'static str>, Answer) = (Some(ETAG), |request, body| honest(request, body, Some("\"v2\"")));
    for (etag, answer) in [weak, newer] {
        let (gate, whole) = (Gate::default(), body.clone());
        let stream = gate.clone();
        let server = Server::start(move |request| match request.field("range") {
            None => Reply::full(&whole).with("ETag", etag.unwrap()).gated_at(1 << 20, &stream),
            Some(_) => answer(request, &whole),
        });
        let mounted = Mounted::plain(&server);
        let spec = vouched(&server, &body);
        assert_eq!(mounted.read(&spec, 0, 10).await.unwrap(), body[..10]);

        let far = mounted.read(&spec, 9_000_000, 10);
        tokio::pin!(far);
        assert!((&mut far).now_or_never().is_none());
        gate.open();

        assert_eq!(far.await.unwrap(), body[9_000_000..9_000_010]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_that_the_stream_contradicts_poisons_the_inode() {
    let body = bytes(LARGE, 61);
    let mut wrong = body.clone();
    wrong[9_000_000] ^= 1;
    let (gate, whole) = (Gate::default(), body.clone());
    let stream = gate.clone();
    let server = Server::start(move |request| match request.field("range") {
        None => honest(request, &whole, Some(ETAG)).gated_at(1 << 20, &stream),
        Some(_) => honest(request, &wrong, Some(ETAG)),
    });
    let mut mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    assert_eq!(mounted.read(&spec, 9_000_000, 1).await.unwrap(), [body[9_000_000] ^ 1][..]);
    gate.open();

    let event = tokio::time::timeout(HANG, mounted.events.recv()).await.unwrap();
    assert_eq!(event, Some(Event::Poisoned(spec.ino)));
    assert!(matches!(mounted.read(&spec, 0, 10).await, Err(ContentError::Mismatch { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mirror_completes_a_stream_if_it_agrees() {
    let body = bytes(LARGE, 63);
    let (gate, whole) = (Gate::default(), body.clone());
    let held = gate.clone();
    let server = Server::start(move |request| match (request.number, request.path.as_str()) {
        (0, _) => honest(request, &whole, None).gated_at(PAUSE, &held).cut_at(PAUSE),
        (_, "/mirror") => honest(request, &whole, None),
        _ => Reply::status(404),
    });
    let mounted = Mounted::plain(&server);
    let spec = FetchSpec { mirrors: vec![server.uri("/first"), server.uri("/mirror")], ..vouched(&server, &body) };
    assert_eq!(mounted.read(&spec, 0, 10).await.unwrap(), body[..10]);
    gate.open();

    assert!(mounted.read_all(&spec).await.unwrap() == body);
    let asked: Vec<String> = server.received().iter().map(|request| request.path.clone()).collect();
    assert_eq!(asked, ["/first", "/first", "/first", "/mirror"], "the rest, and the whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_survives_a_restart() {
    let (server, mut mounted, spec) = begun_with_a_wrong_end(65).await;
    let event = tokio::time::timeout(HANG, mounted.events.recv()).await.unwrap();
    assert_eq!(event, Some(Event::Poisoned(spec.ino)));

    let mut mounted = mounted.restarted(&server).await;

    assert_eq!(mounted.content.state(spec.ino).0, State::Poisoned);
    assert!(mounted.read(&spec, 0, 10).await.is_err());
    assert!(mounted.read(&spec, 0, 10).await.is_err());
    let again = "the mount before may have ended before the name had another inode";
    assert_eq!(mounted.events(), [Event::Poisoned(spec.ino)], "{again}");
}

/// Bytes went out of a download that was cut. The object that another mount has verified since does not replace the comparison with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_of_another_mount_is_compared_with_what_went_out() {
    let body = bytes(LARGE, 67);
    for is_wrong in [true, false] {
        let mut first = body.clone();
        first[5] ^= u8::from(is_wrong);
        let (whole, gate, is_down) = (body.clone(), Gate::default(), Arc::new(AtomicBool::new(true)));
        let (held, down, sent) = (gate.clone(), Arc::clone(&is_down), first.clone());
        let server = Server::start(move |request| match (&*request.path, request.number) {
            ("/b", _) => honest(request, &whole, None),
            (_, 0) => honest(request, &sent, None).gated_at(PAUSE, &held).cut_at(PAUSE),
            _ if down.load(Ordering::SeqCst) => Reply::status(500),
            _ => honest(request, &whole, None),
        });
        let one = Mounted::new(&server, |config| config.stall = Duration::from_secs(2));
        let spec = vouched(&server, &body);
        assert_eq!(one.read(&spec, 0, 10).await.unwrap(), first[..10], "before the verdict");
        gate.open();
        until(|| one.content.table.get(spec.ino).is_none()).await;
        let (folder, source) = (one.config.folder.clone(), one.config.source.clone());
        let other = Mounted::new(&server, |config| (config.folder, config.source) = (folder, source));
        let elsewhere = FetchSpec { uri: server.uri("/b"), ..spec.clone() };
        assert!(other.read_all(&elsewhere).await.unwrap() == body);
        is_down.store(false, Ordering::SeqCst);
        one.content.forget_failures();

        let end = one.read(&spec, LARGE as u64 - 10, 10).await;

        assert_eq!(end.is_err(), is_wrong, "{end:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_came_since_are_read_despite_an_earlier_failure() {
    let (body, gate) = (bytes(LARGE, 91), Gate::default());
    let (whole, held) = (body.clone(), gate.clone());
    let server = Server::start(move |request| honest(request, &whole, Some("\"v1\"")).gated_at(2 << 20, &held));
    let mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    assert!(mounted.read(&spec, 0, 4096).await.unwrap() == body[..4096]);
    let error = ContentError::Stalled { uri: spec.uri.clone() };
    for offset in [4096, 8 << 20] {
        mounted.content.failures().read_failed(spec.ino, offset, 4096, &error, std::time::Instant::now());
    }

    let here = mounted.read(&spec, 4096, 4096).await;
    let absent = mounted.read(&spec, 8 << 20, 4096).await;
    gate.open();

    assert!(here.unwrap() == body[4096..8192]);
    assert!(matches!(absent, Err(ContentError::Stalled { .. })), "it is not asked for again at once");
}
