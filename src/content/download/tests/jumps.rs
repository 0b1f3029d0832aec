//! Readers that look at large objects here and there, or at their end alone: they get what they read, and little else is sent.

use super::*;
use crate::content::State;
use crate::source::tests::server::{Act, Gate, Received, Reply, Server, honest};
use futures_util::FutureExt;
use std::sync::atomic::{AtomicBool, Ordering};

const ETAG: &str = "\"v1\"";

/// Bytes of an object that is downloaded while it is read, whose last block is short.
const HUGE: usize = (48 << 20) + 3 * BLOCK as usize + 12_345;

const STEP: usize = 8 << 10;

/// Where the last block begins.
const LAST: usize = HUGE - HUGE % BLOCK as usize;

/// A server whose answers to ranges are what `ranges` makes of them.
fn answering(body: &[u8], ranges: impl Fn(&Received, &[u8]) -> Reply + Send + Sync + 'static) -> Server {
    let body = body.to_vec();
    Server::start(move |request| match request.field("range") {
        Some(_) => ranges(request, &body),
        None => honest(request, &body, Some(ETAG)),
    })
}

fn asked(server: &Server) -> Vec<Option<String>> {
    server.received().iter().map(|request| request.field("range").map(str::to_owned)).collect()
}

fn range(first: usize, end: usize) -> Option<String> {
    Some(format!("bytes={first}-{}", end - 1))
}

async fn read_the_end(mounted: &Mounted, spec: &FetchSpec, body: &[u8]) {
    let bytes = mounted.read(spec, HUGE as u64 - 100, 4096).await.unwrap();
    assert!(bytes == body[HUGE - 100..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_read_of_the_end_requests_that_alone() {
    let body = bytes(HUGE, 101);
    let server = Server::of(&body, Some(ETAG));
    let mut mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);

    read_the_end(&mounted, &spec, &body).await;
    let before = LAST - STEP;
    assert!(mounted.read(&spec, before as u64, STEP as u32).await.unwrap() == body[before..LAST]);

    let window = range(LAST - BLOCK as usize, HUGE);
    assert_eq!(asked(&server), [window], "one range, without a body");
    assert!(server.sent() < 200 << 10, "{} bytes sent", server.sent());
    assert!(mounted.read_all(&spec).await.unwrap() == body);
    assert_eq!(server.received()[1].field("range"), None);
    assert_eq!(mounted.content.state(spec.ino), (State::Cached, Verified::Digest(Algorithm::Sha256)));
    let end = HUGE as u64;
    let dropped = [end - 100..end, before as u64..LAST as u64].map(|range| Event::Recheck(spec.ino, range));
    let [last, before] = dropped;
    assert_eq!(mounted.events(), [last, before, Event::Sized(spec.ino, end)], "the end meets the verdict");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_read_of_the_end_past_the_cache_requests_that_alone() {
    let body = bytes(HUGE, 103);
    let server = Server::of(&body, Some(ETAG));
    let mounted = Mounted::new(&server, |config| config.quota = Some(1));
    let spec = vouched(&server, &body);

    read_the_end(&mounted, &spec, &body).await;

    assert_eq!(asked(&server), [range(LAST - BLOCK as usize, HUGE)], "one range, without a body");
    assert!(mounted.read_all(&spec).await.unwrap() == body);
    assert_eq!(walk(&mounted.config.folder.join("objects")), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_read_of_the_end_survives_odd_answers() {
    let body = bytes(HUGE, 102);
    type Answer = fn(&Received, &[u8]) -> Reply;
    let answers: [(&str, usize, Answer); 9] = [
        ("the whole", 1, |_, body| Reply::full(body).with("ETag", ETAG)),
        ("a weak ETag", 2, |request, body| {
            let range = request.range(HUGE).unwrap();
            let described = format!("bytes {}-{}/{HUGE}", range.start, range.end - 1);
            Reply::full(&body[range]).with_status(206).with("ETag", "W/\"v1\"").with("Content-Range", &described)
        }),
        ("no ETag", 2, |request, body| {
            let range = request.range(HUGE).unwrap();
            let described = format!("bytes {}-{}/{HUGE}", range.start, range.end - 1);
            Reply::full(&body[range]).with_status(206).with("Content-Range", &described)
        }),
        ("another place", 2, |request, body| {
            let range = request.range(HUGE).unwrap();
            let described = format!("bytes {}-{}/{HUGE}", range.start - 1, range.end - 2);
            Reply::full(&body[range]).with_status(206).with("ETag", ETAG).with("Content-Range", &described)
        }),
        ("a coding", 2, |request, body| honest(request, body, Some(ETAG)).with("Content-Encoding", "gzip")),
        ("not satisfiable", 2, |_, _| Reply::status(416)),
        ("forbidden", 2, |_, _| Reply::status(403)),
        ("nothing of it", 2, |request, body| honest(request, body, Some(ETAG)).cut_at(0)),
        ("too little", 2, |request, body| honest(request, body, Some(ETAG)).cut_at(BLOCK as usize + 5)),
    ];
    for (what, requests, answer) in answers {
        let is_first = AtomicBool::new(true);
        let server = answering(&body, move |request, body| match is_first.swap(false, Ordering::SeqCst) {
            true => answer(request, body),
            false => honest(request, body, Some(ETAG)),
        });
        let folder = TempDir::new().unwrap();
        // With one connection no answer may be kept while another is waited for.
        let mounted = Mounted::asking(&server, config(&folder, &server.uri("/")), folder, 1);

        read_the_end(&mounted, &vouched(&server, &body), &body).await;

        let asked = server.received();
        assert!(asked.len() >= requests, "{what}: {} requests", asked.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_range_is_requested_again_where_it_stopped() {
    let body = bytes(HUGE, 113);
    let is_first = AtomicBool::new(true);
    let server = answering(&body, move |request, body| {
        let reply = honest(request, body, Some(ETAG));
        if is_first.swap(false, Ordering::SeqCst) { reply.cut_at(BLOCK as usize + 5) } else { reply }
    });
    let mounted = Mounted::plain(&server);

    read_the_end(&mounted, &vouched(&server, &body), &body).await;

    // What has come of it is not asked for again.
    assert_eq!(asked(&server), [range(LAST - BLOCK as usize, HUGE), range(LAST, HUGE)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_body_is_requested_where_no_range_may_be_handed_out() {
    let body = bytes(HUGE, 103);
    let servers = [(); 4].map(|()| Server::of(&body, Some(ETAG)));
    let [strict, bare, coded, near] = &servers;

    let mounted = Mounted::new(strict, |config| config.fixity = Fixity::Strict);
    read_the_end(&mounted, &vouched(strict, &body), &body).await;
    read_the_end(&Mounted::plain(bare), &super::bare(bare, "/a"), &body).await;
    let spec = FetchSpec { encoding: Some("gzip".into()), ..vouched(coded, &body) };
    let no_gzip = Mounted::plain(coded).read(&spec, HUGE as u64 - 100, 4096).await;
    assert!(matches!(no_gzip, Err(ContentError::Mismatch { .. })), "{no_gzip:?}");
    let at = 3 << 20;
    let read = Mounted::plain(near).read(&vouched(near, &body), at as u64, 10).await;
    assert_eq!(read.unwrap(), body[at..at + 10]);

    assert!(servers.iter().all(|server| server.received()[0].field("range").is_none()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_of_another_length_than_is_published_is_an_error() {
    let body = bytes(HUGE, 104);
    let longer = bytes(HUGE + 1, 105);
    let server = Server::of(&longer, Some(ETAG));
    let mounted = Mounted::plain(&server);
    let read = mounted.read(&vouched(&server, &body), HUGE as u64 - 100, 4096).await;
    assert!(matches!(read, Err(ContentError::Mismatch { .. })), "{read:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_of_a_range_poison_the_inode() {
    let body = bytes(HUGE, 106);
    let mut wrong = body.clone();
    wrong[HUGE - 1] ^= 1;
    let server = answering(&body, move |request, _| honest(request, &wrong, Some(ETAG)));
    let mut mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    let end = mounted.read(&spec, HUGE as u64 - 1, 1).await.unwrap();
    assert_eq!(end, [body[HUGE - 1] ^ 1][..], "not verified yet");

    assert!(is_mismatch(&mounted.read_all(&spec).await));
    let poisoned = async { while mounted.events.recv().await != Some(Event::Poisoned(spec.ino)) {} };
    tokio::time::timeout(HANG, poisoned).await.expect("it is reported");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_version_is_never_mixed_with_the_end_handed_out() {
    let (body, newer) = (bytes(HUGE, 107), bytes(HUGE, 108));
    let (other, is_newer) = (newer.clone(), Arc::new(AtomicBool::new(false)));
    let (whole, now) = (body.clone(), Arc::clone(&is_newer));
    let server = Server::start(move |request| match now.load(Ordering::SeqCst) {
        true => honest(request, &other, Some("\"v2\"")),
        false => honest(request, &whole, Some(ETAG)),
    });
    let mut mounted = Mounted::plain(&server);
    let spec = measured(&server, &body);
    read_the_end(&mounted, &spec, &body).await;
    is_newer.store(true, Ordering::SeqCst);

    for offset in [0, HUGE as u64 / 2, HUGE as u64 - 50] {
        let read = mounted.read(&spec, offset, 10).await;
        let at = offset as usize;
        assert!(read.as_ref().map_or(true, |bytes| *bytes == body[at..at + 10]), "{read:?} at {offset}");
    }
    assert!(mounted.read(&spec, 0, 10).await.is_err());
    assert!(mounted.events().contains(&Event::Changed(spec.ino)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_reads_that_go_on_request_more_each_time() {
    let body = bytes(HUGE, 109);
    let block = BLOCK as usize;
    let server = Server::of(&body, Some(ETAG));
    let mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    let mib = 1 << 20;

    for step in 1..=mib / STEP {
        let at = HUGE - step * STEP;
        assert!(mounted.read(&spec, at as u64, STEP as u32).await.unwrap() == body[at..at + STEP]);
    }
    let [three, six] = [3, 9].map(|blocks| LAST - block - blocks * block);
    let backwards = [range(LAST - block, HUGE), range(three, LAST - block), range(six, three)];
    assert_eq!(asked(&server), backwards);

    let far = 20 * mib;
    for step in 0..mib / STEP {
        let at = far + step * STEP;
        assert!(mounted.read(&spec, at as u64, STEP as u32).await.unwrap() == body[at..at + STEP]);
    }
    let on = [0, 1, 3, 7, 15].map(|blocks| far + blocks * block);
    let forwards: Vec<_> = on.windows(2).map(|window| range(window[0], window[1])).collect();
    assert_eq!(asked(&server)[3..], forwards);
}

/// What was read here and there leaves holes: a long read over them needs no stream from the beginning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_over_many_holes_requests_each_of_them() {
    let body = bytes(HUGE, 112);
    let (far, block) = (20 << 20, BLOCK as usize);
    let server = Server::of(&body, Some(ETAG));
    let mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    for number in [0, 3, 6] {
        let at = far + number * block;
        assert!(mounted.read(&spec, at as u64, 4096).await.unwrap() == body[at..at + 4096]);
    }

    let read = mounted.read(&spec, far as u64, 8 * block as u32).await.unwrap();

    assert!(read == body[far..far + 8 * block]);
    // The last one goes on a little, as for a reader that continues.
    let holes = [(1, 3), (4, 6), (7, 15)].map(|(first, end)| range(far + first * block, far + end * block));
    let asked = asked(&server);
    assert!(asked.iter().all(Option::is_some), "a body was requested: {asked:?}");
    // They are requested at once.
    let mut requested = asked[3..].to_vec();
    requested.sort();
    assert_eq!(requested, holes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_at_a_host_that_fell_silent_ends_in_time() {
    const STALL: Duration = Duration::from_secs(4);
    let body = bytes(HUGE, 113);
    let (gate, whole, is_silent) = (Gate::default(), body.clone(), Arc::new(AtomicBool::new(false)));
    let (held, falls_silent) = (gate.clone(), Arc::clone(&is_silent));
    let server = Server::start(move |request| {
        let mut acts = honest(request, &whole, Some(ETAG)).acts(false);
        if falls_silent.load(Ordering::SeqCst) {
            acts.insert(0, Act::Pass(held.clone()));
        }
        acts
    });
    let mounted = Mounted::new(&server, |config| config.stall = STALL);
    let spec = vouched(&server, &body);
    mounted.read(&spec, 20 << 20, 4096).await.unwrap();
    is_silent.store(true, Ordering::SeqCst);
    let begun = std::time::Instant::now();

    let read = mounted.read(&spec, 40 << 20, 4096).await;

    assert!(read.is_err() && begun.elapsed() < STALL * 2, "{:?}", begun.elapsed());
    gate.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_is_answered_as_soon_as_its_blocks_are_here() {
    let body = bytes(HUGE, 110);
    let (far, block) = (20 << 20, BLOCK as usize);
    let gate = Gate::default();
    let held = gate.clone();
    let server = answering(&body, move |request, body| {
        let reply = honest(request, body, Some(ETAG));
        // Of two blocks the second comes later.
        let is_second = request.range(HUGE).is_some_and(|range| range.start == far + block);
        if is_second { reply.gated_at(block + 100, &held) } else { reply }
    });
    let mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    let read = |block_number: usize| {
        let at = far + block_number * block;
        let read = mounted.read(&spec, at as u64 + 5, 1000);
        let expected = body[at + 5..at + 1005].to_vec();
        async move { assert!(read.await.unwrap() == expected) }
    };

    read(0).await;
    read(1).await;
    let late = read(2);
    tokio::pin!(late);
    assert!((&mut late).now_or_never().is_none());
    gate.open();
    late.await;
    assert_eq!(asked(&server), [range(far, far + block), range(far + block, far + 3 * block)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_download_requests_first_what_is_read() {
    let body = bytes(HUGE, 111);
    let server = Server::of(&body, Some(ETAG));
    let mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    assert!(mounted.read(&spec, 0, 1 << 20).await.unwrap() == body[..1 << 20]);
    mounted.gives_way(&spec).await;
    let mounted = mounted.restarted(&server).await;
    let before = server.received().len();

    read_the_end(&mounted, &spec, &body).await;

    let first = server.received()[before].clone();
    assert_eq!(first.field("range").map(str::to_owned), range(LAST - BLOCK as usize, HUGE));
    assert_eq!(first.field("if-range"), Some(ETAG), "of the version that is here in part");
    assert_eq!(server.received().len(), before + 1);
    assert!(mounted.read_all(&spec).await.unwrap() == body);
    let next = server.received()[before + 1].range(HUGE).unwrap();
    assert!(next.start >= 1 << 20, "what is here does not come again");
}
