//! A large body in parallel ranges over a line where several are faster: right or an error however the server answers, nothing beyond
//! what readers want, nothing twice, and in place of memory on the disk.

use super::*;
use crate::source::tests::server::{Gate, Received, Reply, Server, honest};
use std::sync::atomic::{AtomicUsize, Ordering};

const ETAG: &str = "\"v1\"";
const MIB: usize = 1 << 20;
const HUGE: usize = 48 * MIB + 3 * BLOCK as usize + 12_345;

const ROUND_TRIP: Duration = Duration::from_millis(100);

/// A range that is silent for a sixth of it has failed.
const STALL: Duration = Duration::from_secs(12);

/// Bytes of a body a second. Ranges are faster, also on a busy machine.
const PACE: usize = 40 * MIB;

/// A server whose bodies seem to come from far away, so that ranges are worth it, and whose ranges come at once.
fn far(script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Server {
    Server::start(move |request| {
        let reply = script(request);
        if request.field("range").is_some() {
            return reply;
        }
        std::thread::sleep(ROUND_TRIP);
        reply.paced(PACE)
    })
}

fn far_and_honest(body: &[u8]) -> Server {
    lying(body, usize::MAX, |_, _| None)
}

/// Far, and honest but to the ranges that `lie` answers. `lie` sees how many such ranges there were before.
fn lying(body: &[u8], from: usize, lie: impl Fn(&Received, usize) -> Option<Reply> + Send + Sync + 'static) -> Server {
    let (body, lies) = (body.to_vec(), AtomicUsize::new(0));
    far(move |request| {
        let is_meant = request.range(HUGE).is_some_and(|range| range.start >= from);
        let lie = is_meant.then(|| lie(request, lies.fetch_add(1, Ordering::SeqCst))).flatten();
        lie.unwrap_or_else(|| honest(request, &body, Some(ETAG)))
    })
}

fn mount(server: &Server) -> Mounted {
    Mounted::new(server, |config| config.stall = STALL)
}

/// The range of the request under a Content-Range `by` bytes later, in a whole of `total` bytes.
fn described(request: &Received, body: &[u8], by: usize, total: usize, etag: &str) -> Reply {
    let range = request.range(HUGE).unwrap();
    let described = format!("bytes {}-{}/{total}", range.start + by, range.end + by - 1);
    Reply::full(&body[range]).with_status(206).with("ETag", etag).with("Content-Range", &described)
}

fn ranges_of(server: &Server) -> Vec<std::ops::Range<usize>> {
    server.received().iter().filter_map(|request| request.range(HUGE)).collect()
}

/// Reads so many bytes in order.
async fn read_start(mounted: &Mounted, spec: &FetchSpec, bytes: usize) -> Vec<u8> {
    let mut read = Vec::new();
    while read.len() < bytes {
        read.extend_from_slice(&mounted.read(spec, read.len() as u64, MIB as u32).await.unwrap());
    }
    read
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_far_body_comes_in_several_ranges_of_one_version() {
    let body = bytes(HUGE, 201);
    let server = far_and_honest(&body);
    let mounted = mount(&server);

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);

    let ranges = ranges_of(&server);
    // The first are short, for little is wanted then.
    assert!((6..=40).contains(&ranges.len()), "{} ranges", ranges.len());
    let received = server.received();
    let mut of_ranges = received.iter().filter(|request| request.field("range").is_some());
    assert!(of_ranges.all(|request| request.field("if-range") == Some(ETAG)));
    assert!(server.sent() < HUGE + 10 * MIB, "{} bytes sent", server.sent());
}

/// Promise: of a host or mirror that answers one range wrongly no wrong byte is ever handed on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bytes_are_right_however_ranges_are_answered() {
    let (body, newer) = (bytes(HUGE, 203), bytes(HUGE, 204));
    type Lie = fn(&Received, &[u8], &[u8]) -> Reply;
    let lies: [(&str, Lie); 11] = [
        ("another version", |request, _, newer| described(request, newer, 0, HUGE, "\"v2\"")),
        ("a weak ETag", |request, body, _| described(request, body, 0, HUGE, "W/\"v1\"")),
        ("another place", |request, body, _| described(request, body, 1, HUGE, ETAG)),
        ("another length of all", |request, body, _| described(request, body, 0, HUGE + 1, ETAG)),
        ("a coding", |request, body, _| honest(request, body, Some(ETAG)).with("Content-Encoding", "gzip")),
        ("the whole", |_, body, _| Reply::full(body).with("ETag", ETAG).with("Accept-Ranges", "bytes")),
        ("too many requests", |_, _, _| Reply::status(429)),
        ("no service", |_, _, _| Reply::status(503)),
        ("not satisfiable", |_, _, _| Reply::status(416)),
        ("half of it", |request, body, _| honest(request, body, Some(ETAG)).cut_at(MIB + 5)),
        ("nothing of it", |request, body, _| honest(request, body, Some(ETAG)).cut_at(0)),
    ];
    for (what, lie) in lies {
        for (from, times) in [(0, usize::MAX), (20 * MIB, 1), (20 * MIB, usize::MAX)] {
            let (truth, other) = (body.clone(), newer.clone());
            let server =
                lying(&body, from, move |request, before| (before < times).then(|| lie(request, &truth, &other)));
            let mounted = Mounted::new(&server, |config| config.stall = Duration::from_secs(3));
            let spec = measured(&server, &body);

            let mut read = Vec::new();
            let outcome = loop {
                match mounted.read(&spec, read.len() as u64, MIB as u32).await {
                    Ok(piece) if piece.is_empty() => break Ok(()),
                    Ok(piece) => read.extend_from_slice(&piece),
                    Err(error) => break Err(error),
                }
            };

            assert!(read == body[..read.len()], "{what} from {from} on, {times} times");
            match outcome {
                Ok(()) => assert_eq!(read.len(), HUGE, "{what}"),
                Err(error) => assert!(times > 1, "{what} from {from} on, {times} times: {error:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_ranges_are_refused_the_body_goes_on_alone() {
    let body = bytes(HUGE, 205);
    let whole = body.clone();
    let server = far(move |_| Reply::full(&whole).with("ETag", ETAG).with("Accept-Ranges", "bytes"));
    let mounted = mount(&server);

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
    let requests = server.received().len();
    assert!((2..=15).contains(&requests), "the body and each of the first ranges once: {requests}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rest_of_a_cut_range_is_requested_once() {
    let body = bytes(HUGE, 206);
    let whole = body.clone();
    let cut = move |request: &Received, before: usize| {
        (before == 0).then(|| honest(request, &whole, Some(ETAG)).cut_at(3 * BLOCK as usize + 7))
    };
    let server = lying(&body, 20 * MIB, cut);
    let mounted = mount(&server);

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
    let starts: Vec<usize> = ranges_of(&server).iter().map(|range| range.start).collect();
    let rest = starts.iter().filter(|start| starts.contains(&start.saturating_sub(3 * BLOCK as usize))).count();
    assert_eq!(rest, 1, "from the block on that was cut: {starts:?}");
}

/// Hazard: one moment of the network in which all connections are cut must not leave a single one for the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_that_are_cut_at_once_are_all_requested_again() {
    let body = bytes(HUGE, 218);
    let whole = body.clone();
    let cut = move |request: &Received, before: usize| {
        (before < 7).then(|| honest(request, &whole, Some(ETAG)).cut_at(2 * BLOCK as usize + 9))
    };
    let server = lying(&body, 16 * MIB, cut);
    let mounted = mount(&server);

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
    let received = server.received();
    let without_end = |request: &&Received| request.field("range").is_some_and(|range| range.ends_with('-'));
    assert_eq!(received.iter().find(without_end).map(|request| &request.path), None, "no body goes on alone");
}

/// Promise: never a stuck process. A range that never comes is given up although others arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_never_comes_is_given_up_while_others_arrive() {
    let body = bytes(HUGE, 219);
    let (whole, gate) = (body.clone(), Gate::default());
    let held = gate.clone();
    // A cache on the way that has lost one part.
    let lost = 20 * MIB;
    let silent = move |request: &Received, _| {
        let is_lost = request.field("range").is_some_and(|range| !range.ends_with('-'))
            && request.range(HUGE).is_some_and(|range| range.contains(&lost));
        is_lost.then(|| honest(request, &whole, Some(ETAG)).gated_at(0, &held))
    };
    let server = lying(&body, 0, silent);
    let mounted = Mounted::new(&server, |config| config.stall = Duration::from_secs(6));
    let spec = vouched(&server, &body);
    let (content, ahead) = (Arc::clone(&mounted.content), spec.clone());
    let prefetch = tokio::spawn(async move { content.prefetch(&ahead, crate::content::store::Moment::now()).await });

    assert!(mounted.read_all(&spec).await.unwrap() == body);
    prefetch.await.unwrap().unwrap();
    gate.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_range_is_requested_again_while_later_ones_arrive() {
    let body = bytes(HUGE, 207);
    let (whole, gate) = (body.clone(), Gate::default());
    let held = gate.clone();
    let silent = move |request: &Received, before: usize| {
        (before == 0).then(|| honest(request, &whole, Some(ETAG)).gated_at(1000, &held))
    };
    let server = lying(&body, 20 * MIB, silent);
    let mounted = mount(&server);

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
    gate.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_body_is_replaced_by_a_range() {
    let body = bytes(HUGE, 208);
    let (whole, gate) = (body.clone(), Gate::default());
    let held = gate.clone();
    let server = far(move |request| {
        let reply = honest(request, &whole, Some(ETAG));
        if request.field("range").is_none() { reply.gated_at(3 * MIB, &held) } else { reply }
    });
    let mounted = mount(&server);

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
    assert_eq!(server.received().iter().filter(|request| request.field("range").is_none()).count(), 1);
    gate.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_range_is_requested_beyond_what_readers_want() {
    let body = bytes(HUGE, 210);
    let server = far_and_honest(&body);
    let mounted = mount(&server);
    let spec = measured(&server, &body);

    let read = read_start(&mounted, &spec, 5 * MIB).await;
    tokio::time::sleep(3 * ROUND_TRIP).await;
    // The stream comes four times as far ahead as it was read at a stretch.
    let wanted = 5 * read.len();
    assert!(ranges_of(&server).iter().all(|range| range.start < wanted), "{:?}", ranges_of(&server));
    let arrived = mounted.content.arrived(spec.ino) as usize;
    assert!(arrived <= wanted + 4 * MIB, "{arrived} bytes, and the last range may be whole");

    assert!(mounted.read_all(&spec).await.unwrap() == body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_ends_ranges_that_are_not_wanted_any_more() {
    let body = bytes(HUGE, 211);
    let (whole, gate) = (body.clone(), Gate::default());
    let held = gate.clone();
    // A body that is not overtaken, and ranges that are silent.
    let hold = move |request: &Received| {
        let reply = honest(request, &whole, Some(ETAG));
        match request.range(HUGE) {
            None => reply.gated_at(7 * MIB, &held),
            Some(range) if range.len() > BLOCK as usize => reply.gated_at(0, &held),
            Some(_) => reply,
        }
    };
    let server = far(hold);
    let mounted = mount(&server);
    let spec = measured(&server, &body);
    read_start(&mounted, &spec, 5 * MIB).await;
    let download = mounted.content.table.get(spec.ino).unwrap();
    let blocks = || 6 * MIB as u64 / BLOCK..(HUGE as u64).div_ceil(BLOCK);
    let is_coming = || download.state().is_coming(blocks());
    until(is_coming).await;

    let far = HUGE as u64 - MIB as u64;
    assert!(mounted.read(&spec, far, 4096).await.unwrap() == body[far as usize..][..4096]);

    until(|| !is_coming()).await;
    gate.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_behind_a_silent_one_take_no_memory() {
    let body = bytes(HUGE, 212);
    let (whole, gate) = (body.clone(), Gate::default());
    let held = gate.clone();
    let hold = move |request: &Received, before: usize| {
        (before == 0).then(|| honest(request, &whole, Some(ETAG)).gated_at(1000, &held))
    };
    let server = lying(&body, 9 * MIB, hold);
    let mounted = Mounted::new(&server, |_| {});
    let spec = measured(&server, &body);
    let whole = mounted.content.memory.free();
    read_start(&mounted, &spec, 8 * MIB).await;

    // Ranges behind it come, and wait for it on the disk.
    until(|| server.sent() >= 24 * MIB).await;

    let taken = whole - mounted.content.memory.free();
    assert!(taken <= 4 * MIB, "{taken} bytes");
    gate.open();
    assert!(mounted.read_all(&spec).await.unwrap() == body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_body_arrives_though_no_memory_is_left() {
    let body = bytes(HUGE, 213);
    let server = far_and_honest(&body);
    let mounted = mount(&server);
    let _others = mounted.content.memory.try_reserve(mounted.content.memory.free());

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_past_the_cache_stay_within_their_window() {
    let body = bytes(HUGE, 214);
    let server = far_and_honest(&body);
    let mounted = Mounted::new(&server, |config| (config.stall, config.quota) = (STALL, Some(1)));

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
    assert!(server.sent() < HUGE + 10 * MIB, "{} bytes sent", server.sent());
    assert_eq!(walk(&mounted.config.folder.join("objects")), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_whose_ranges_are_silent_gets_few_of_them() {
    let body = bytes(HUGE, 215);
    let (whole, gate) = (body.clone(), Gate::default());
    let held = gate.clone();
    let hold = move |request: &Received, _| Some(honest(request, &whole, Some(ETAG)).gated_at(0, &held));
    let server = lying(&body, 0, hold);
    let mounted = Mounted::new(&server, |_| {});

    // The body goes on, as no range has arrived.
    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
    assert!(ranges_of(&server).len() <= 14, "{} ranges", ranges_of(&server).len());
    gate.open();
}

/// A connection that begins later grows while all wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_ranges_begin_together_within_the_demand() {
    let body = bytes(HUGE, 216);
    let (whole, gate) = (body.clone(), Gate::default());
    let held = gate.clone();
    let server = far(move |request| {
        let reply = honest(request, &whole, Some(ETAG));
        let arrives = if request.field("range").is_none() { 7 * MIB } else { 0 };
        reply.gated_at(arrives, &held)
    });
    let mounted = Mounted::new(&server, |_| {});
    let spec = measured(&server, &body);

    let read = read_start(&mounted, &spec, 6 * MIB).await;

    // One connection of eight stays free.
    until(|| ranges_of(&server).len() == 7).await;
    let asked = ranges_of(&server);
    let wanted = 5 * read.len();
    assert!(asked.iter().all(|range| range.start < wanted && range.len() < 5 * MIB), "{asked:?}");
    gate.open();
    assert!(mounted.read_all(&spec).await.unwrap() == body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_pass_over_blocks_that_are_here() {
    let body = bytes(HUGE, 217);
    let server = far_and_honest(&body);
    let mounted = mount(&server);
    let spec = measured(&server, &body);
    let here = 30 * MIB;
    assert!(mounted.read(&spec, here as u64, 4096).await.unwrap() == body[here..][..4096]);

    assert!(mounted.read_all(&spec).await.unwrap() == body);

    let twice = ranges_of(&server).iter().filter(|range| range.contains(&here)).count();
    assert_eq!(twice, 1, "{:?}", ranges_of(&server));
}
