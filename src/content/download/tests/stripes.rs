//! Objects that come in several ranges at once, as far as they are read.

use super::server::{Gate, Received, Reply, Server, honest};
use super::*;
use crate::content::State;
use crate::content::download::lanes::{MOST_LANES, STRIPE};
use crate::content::download::stripes::places;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const ETAG: &str = "\"v1\"";

/// Bytes of an object that comes in stripes.
const HUGE: usize = (48 << 20) + 3 * BLOCK as usize + 12_345;

const MIB: usize = 1 << 20;

/// A server that is honest but to the ranges of `HUGE` that `lie` answers.
fn lying(body: &[u8], lie: impl Fn(&Received) -> Option<Reply> + Send + Sync + 'static) -> Server {
    let body = body.to_vec();
    Server::start(move |request| {
        let lie = request.field("range").and_then(|_| lie(request));
        lie.unwrap_or_else(|| honest(request, &body, Some(ETAG)))
    })
}

/// Where the range that was asked for begins.
fn first_of(request: &Received) -> usize {
    request.range(usize::MAX).map_or(0, |range| range.start)
}

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

/// Waits until nothing is fetched for a while, which is when nobody reads.
pub(super) async fn until(is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, waiting).await.expect("it never comes to that");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_object_comes_in_several_ranges_of_one_version_and_is_verified() {
    let body = bytes(HUGE, 80);
    let server = Server::of(&body, Some(ETAG));
    let mut mounted = Mounted::plain(&server);
    let wanted = vouched(&server, &body);

    assert!(mounted.read_all(&wanted).await.unwrap() == body);
    assert_eq!(mounted.content.state(wanted.ino), (State::Cached, Verified::Digest(Algorithm::Sha256)));
    assert_eq!(mounted.events(), [Event::Sized(wanted.ino, HUGE as u64)]);
    let asked = server.received();
    // The body, short ranges of each connection, then some of 4 MiB; some of them may be asked for anew.
    assert!((5..=40).contains(&asked.len()) && asked[0].field("range").is_none(), "{} requests", asked.len());
    assert!(asked[1..].iter().all(|request| request.field("if-range") == Some(ETAG)));
    assert!(server.sent() < HUGE + 20 * MIB, "{} bytes sent", server.sent());
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
async fn what_comes_in_another_coding_than_published_comes_in_one_body_whoever_follows() {
    let body = bytes(HUGE, 92);
    let server = Server::of(&body, Some(ETAG));
    let mounted = Mounted::plain(&server);
    let wanted = FetchSpec { encoding: Some("gzip".into()), ..bare(&server, "/a") };

    mounted.read(&wanted, 0, MIB as u32).await.unwrap();

    // Nobody reads on.
    until(|| server.sent() >= HUGE).await;
    assert!(mounted.read_all(&FetchSpec { length: Some(HUGE as u64), ..wanted }).await.unwrap() == body);
    assert_eq!(server.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_one_range_is_answered_the_bytes_are_right() {
    let body = bytes(HUGE, 82);
    let newer = bytes(HUGE, 83);
    type Lie = fn(&Received, &[u8], &[u8]) -> Reply;
    let lies: [(&str, Lie); 9] = [
        ("another version", |request, _, newer| {
            let reply = honest(request, newer, None).with("ETag", "\"v2\"").with_status(206);
            let range = request.range(HUGE).unwrap();
            reply.with("Content-Range", &format!("bytes {}-{}/{HUGE}", range.start, range.end - 1))
        }),
        ("another place", |request, body, _| {
            let range = request.range(HUGE).unwrap();
            let moved = format!("bytes {}-{}/{HUGE}", range.start + 1, range.end);
            Reply::full(&body[range]).with_status(206).with("ETag", ETAG).with("Content-Range", &moved)
        }),
        ("another length of all", |request, body, _| {
            let range = request.range(HUGE).unwrap();
            let longer = format!("bytes {}-{}/{}", range.start, range.end - 1, HUGE + 1);
            Reply::full(&body[range]).with_status(206).with("ETag", ETAG).with("Content-Range", &longer)
        }),
        ("the whole", |_, body, _| Reply::full(body).with("ETag", ETAG).with("Accept-Ranges", "bytes")),
        ("too many requests", |_, _, _| Reply::status(429).with("Retry-After", "1")),
        ("no service", |_, _, _| Reply::status(503)),
        ("not satisfiable", |_, _, _| Reply::status(416)),
        ("half of it", |request, body, _| honest(request, body, Some(ETAG)).cut_at(MIB + 5)),
        ("nothing of it", |request, body, _| honest(request, body, Some(ETAG)).cut_at(0)),
    ];
    for (what, lie) in lies {
        for first in [4, 24] {
            let is_told = AtomicBool::new(false);
            let (truth, other) = (body.clone(), newer.clone());
            let server = lying(&body, move |request| {
                let is_now = first_of(request) >= first * MIB
                    && !is_told.swap(first_of(request) >= first * MIB, Ordering::SeqCst);
                is_now.then(|| lie(request, &truth, &other))
            });
            let mounted = Mounted::plain(&server);

            let read = mounted.read_all(&vouched(&server, &body)).await;
            assert!(read.is_ok_and(|read| read == body), "{what} from {first} MiB on");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ignores_every_range_sends_the_whole_once() {
    let body = bytes(HUGE, 84);
    let whole = body.clone();
    let server = Server::start(move |_| Reply::full(&whole).with("ETag", ETAG).with("Accept-Ranges", "bytes"));
    let mounted = Mounted::wide(&server, |_| {});

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
    let wholes = server.received().iter().filter(|request| request.field("range").is_none()).count();
    assert_eq!(wholes, 1, "the body that was begun goes on");
    let ranges = server.received().len() - wholes;
    assert!(ranges <= MOST_LANES, "{ranges} ranges are asked for, of which none is answered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_never_comes_is_asked_for_again_before_a_reader_gives_up() {
    let body = bytes(HUGE, 85);
    let (gate, whole, is_told) = (Gate::default(), body.clone(), AtomicBool::new(false));
    let held = gate.clone();
    let server = lying(&body, move |request| {
        let is_now = first_of(request) >= 20 * MIB && !is_told.swap(first_of(request) >= 20 * MIB, Ordering::SeqCst);
        is_now.then(|| honest(request, &whole, Some(ETAG)).gated_at(1000, &held))
    });
    let mounted = Mounted::new(&server, |config| config.stall = Duration::from_secs(24));

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
    gate.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_that_are_here_are_handed_on_although_the_body_before_them_is_silent() {
    const BROUGHT: usize = 6 * MIB;
    let body = bytes(HUGE, 98);
    let (bodies, ranges, whole) = (Gate::default(), Gate::default(), body.clone());
    let held = [bodies.clone(), ranges.clone()];
    let server = Server::start(move |request| {
        let reply = honest(request, &whole, Some(ETAG));
        match request.field("range") {
            None => reply.gated_at(BROUGHT, &held[0]),
            Some(_) => reply.gated_at(0, &held[1]),
        }
    });
    let mounted = Mounted::plain(&server);
    let wanted = vouched(&server, &body);

    let opened = async {
        // Then all that the body brought is handed on, and more of it waited for.
        until(|| mounted.content.arrived(wanted.ino) >= BROUGHT as u64 && server.received().len() > 1).await;
        ranges.open();
    };
    let (read, ()) = tokio::join!(mounted.read_all(&wanted), opened);

    assert!(read.unwrap() == body);
    let asked = server.received();
    let rests = asked[1..].iter().filter(|request| request.field("range").is_none_or(|range| range.ends_with('-')));
    assert_eq!(rests.count(), 0, "the body was waited for until it was given up");
    bodies.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rest_of_a_range_that_all_others_wait_for_is_asked_for_anew() {
    let body = bytes(2 * HUGE, 95);
    let (gate, whole, is_told) = (Gate::default(), body.clone(), AtomicBool::new(false));
    let held = gate.clone();
    let server = lying(&body, move |request| {
        let is_late = first_of(request) >= 40 * MIB && !is_told.swap(first_of(request) >= 40 * MIB, Ordering::SeqCst);
        is_late.then(|| honest(request, &whole, Some(ETAG)).gated_at(MIB, &held))
    });
    // Silence would be borne for ten seconds.
    let mounted = Mounted::plain(&server);

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
    let asked = server.received();
    let ranges: Vec<_> = asked[1..].iter().filter_map(|request| request.range(body.len())).collect();
    let again = |rest: &Range<usize>| ranges.iter().any(|range| range.start < rest.start && rest.end == range.end);
    assert!(ranges.iter().any(again), "what had come of it is not asked for again");
    gate.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_was_asked_for_anew_is_taken_from_where_it_comes_first() {
    let body = bytes(2 * HUGE, 97);
    type Answer = fn(&Received, &[u8], &Gate) -> Reply;
    let slow: Answer = |request, body, gate| honest(request, body, Some(ETAG)).gated_at(MIB + 5, gate);
    let cases: [(&str, Answer, Answer); 4] = [
        ("the second is silent", slow, |request, body, never| honest(request, body, Some(ETAG)).gated_at(0, never)),
        ("the second is slower", slow, |request, body, never| honest(request, body, Some(ETAG)).gated_at(MIB, never)),
        ("the second is refused", slow, |_, _, _| Reply::status(503)),
        (
            "the first is cut",
            |request, body, gate| honest(request, body, Some(ETAG)).gated_at(MIB + 5, gate).cut_at(2 * MIB + 7),
            |request, body, _| honest(request, body, Some(ETAG)),
        ),
    ];
    for (what, first, second) in cases {
        let (gate, never, whole) = (Gate::default(), Gate::default(), body.clone());
        let (held, never_held) = (gate.clone(), never.clone());
        // Where the range ends, and how often it was asked for.
        let (end, times) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&times);
        let server = lying(&body, move |request| {
            let range = request.range(whole.len())?;
            if range.start >= 40 * MIB && counted.load(Ordering::SeqCst) == 0 {
                let is_it = end.compare_exchange(0, range.end, Ordering::SeqCst, Ordering::SeqCst).is_ok();
                if is_it {
                    counted.store(1, Ordering::SeqCst);
                    return Some(first(request, &whole, &held));
                }
            }
            if range.end != end.load(Ordering::SeqCst) || counted.fetch_add(1, Ordering::SeqCst) != 1 {
                return None;
            }
            // It is asked for anew: now the first one comes.
            held.open();
            Some(second(request, &whole, &never_held))
        });
        let mounted = Mounted::plain(&server);

        assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body, "{what}");
        assert!(times.load(Ordering::SeqCst) > 1, "{what}, and it is not asked for anew");
        let asked = server.received();
        let longest = asked.iter().filter_map(|request| request.range(body.len())).map(|range| range.len()).max();
        assert!(longest <= Some(STRIPE as usize), "{what}, and the rest of the object is asked for");
        gate.open();
        never.open();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_ranges_that_are_refused_behind_others_few_are_asked_for() {
    let body = bytes(4 * HUGE, 99);
    let refused = Arc::new(AtomicUsize::new(0));
    let (counted, is_down, whole) = (Arc::clone(&refused), Arc::new(AtomicBool::new(true)), body.clone());
    let down = Arc::clone(&is_down);
    let (gate, is_held) = (Gate::default(), AtomicBool::new(false));
    let held = gate.clone();
    let server = lying(&body, move |request| {
        let first = first_of(request);
        if first >= 60 * MIB && down.load(Ordering::SeqCst) {
            counted.fetch_add(1, Ordering::SeqCst);
            return Some(Reply::status(503));
        }
        // All wait for one of those before.
        let is_it = (40 * MIB..60 * MIB).contains(&first) && !is_held.swap(first >= 40 * MIB, Ordering::SeqCst);
        is_it.then(|| honest(request, &whole, Some(ETAG)).gated_at(0, &held))
    });
    let mounted = Mounted::wide(&server, |config| config.stall = Duration::from_secs(120));
    let wanted = vouched(&server, &body);

    let reading = async { mounted.read_all(&wanted).await.unwrap() == body };
    let watching = async {
        until(|| refused.load(Ordering::SeqCst) > 0).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let asked = refused.load(Ordering::SeqCst);
        is_down.store(false, Ordering::SeqCst);
        gate.open();
        asked
    };
    let (is_right, asked) = tokio::join!(reading, watching);

    assert!(is_right);
    assert!(asked <= MOST_LANES, "{asked} refused requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_busy_as_long_as_it_brings_what_others_have_brought() {
    let body = bytes(2 * HUGE, 98);
    let (gate, whole) = (Gate::default(), body.clone());
    let held = gate.clone();
    // The body passes one range after the other.
    let server = lying(&body, move |request| Some(honest(request, &whole, Some(ETAG)).gated_at(0, &held)));
    let mounted = Mounted::wide(&server, |_| {});

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
    let ranges = server.received().len() - 1;
    assert!((2..=MOST_LANES).contains(&ranges), "{ranges} at once");
    gate.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_changes_midway_is_never_mixed_with_what_went_out() {
    let body = bytes(HUGE, 86);
    let newer = bytes(HUGE, 87);
    let (one, other) = (body.clone(), newer.clone());
    let server = Server::start(move |request| match first_of(request) {
        0 if request.number == 0 => honest(request, &one, Some(ETAG)),
        first if (1..20 * MIB).contains(&first) => honest(request, &one, Some(ETAG)),
        _ => honest(request, &other, Some("\"v2\"")),
    });
    let mut mounted = Mounted::plain(&server);
    let wanted = measured(&server, &body);

    assert!(matches!(mounted.read_all(&wanted).await, Err(ContentError::Changed { .. })));
    assert_eq!(mounted.events(), [Event::Changed(wanted.ino)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_in_a_range_are_an_error_and_the_end_never_goes_out() {
    let body = bytes(HUGE, 88);
    let mut wrong = body.clone();
    wrong[40 * MIB] ^= 1;
    let server = Server::of(&wrong, Some(ETAG));
    let mut mounted = Mounted::plain(&server);
    let wanted = vouched(&server, &body);

    assert!(is_mismatch(&mounted.read_all(&wanted).await));
    let told = tokio::time::timeout(HANG, mounted.events.recv()).await.unwrap();
    assert_eq!(told, Some(Event::Poisoned(wanted.ino)));
    assert_eq!(mounted.content.read_local(wanted.ino, 0, 10), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_full_midway_costs_a_reader_nothing() {
    let body = bytes(HUGE, 89);
    let server = Server::of(&body, Some(ETAG));
    let mounted = Mounted::new(&server, |config| config.quota = Some(20 << 20));

    assert!(mounted.read_all(&vouched(&server, &body)).await.unwrap() == body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_in_ranges_is_where_the_next_mount_goes_on() {
    let body = bytes(HUGE, 90);
    let (whole, is_down) = (body.clone(), Arc::new(AtomicBool::new(true)));
    let down = Arc::clone(&is_down);
    let server = Server::start(move |request| match request.range(HUGE) {
        Some(range) if down.load(Ordering::SeqCst) && range.end > 20 * MIB => Reply::status(500),
        None if down.load(Ordering::SeqCst) => honest(request, &whole, Some(ETAG)).cut_at(10 * MIB),
        _ => honest(request, &whole, Some(ETAG)),
    });
    let mounted = Mounted::new(&server, |config| config.stall = Duration::from_secs(2));
    let wanted = vouched(&server, &body);
    assert!(mounted.read_all(&wanted).await.is_err());
    until(|| mounted.content.in_flight.lock().unwrap().is_empty()).await;
    let mounted = mounted.restarted(&server).await;
    is_down.store(false, Ordering::SeqCst);
    let (asked, sent) = (server.received().len(), server.sent());

    assert!(mounted.read_all(&wanted).await.unwrap() == body);
    let next = server.received()[asked].range(HUGE).map(|range| range.start);
    assert!(next.is_some_and(|first| first >= 8 * MIB), "it begins at {next:?}");
    assert!(server.sent() - sent < HUGE, "{} bytes sent again", server.sent() - sent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_reads_is_not_fetched() {
    let body = bytes(2 * HUGE, 91);
    let server = Server::of(&body, Some(ETAG));
    let mounted = Mounted::plain(&server);
    let wanted = vouched(&server, &body);

    assert!(mounted.read(&wanted, 0, MIB as u32).await.unwrap() == body[..MIB]);
    until(|| server.busy() == 0).await;

    let (came, sent) = (came(&mounted), server.sent());
    assert!(
        came < 8 * MIB && sent < 8 * MIB + held_by_the_network(),
        "{came} bytes came for one MiB, {sent} were sent"
    );
    assert!(mounted.read_all(&wanted).await.unwrap() == body, "who reads on gets it");
    assert_eq!(mounted.content.state(wanted.ino).0, State::Cached);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_the_end_alone_has_little_more_than_that_fetched() {
    let body = bytes(2 * HUGE, 92);
    let server = Server::of(&body, Some(ETAG));
    let mounted = Mounted::plain(&server);
    let wanted = vouched(&server, &body);
    let far = body.len() - 3 * MIB;

    assert!(mounted.read(&wanted, body.len() as u64 - 100, 4096).await.unwrap() == body[body.len() - 100..]);
    assert!(mounted.read(&wanted, far as u64, 4096).await.unwrap() == body[far..far + 4096]);
    until(|| server.busy() == 0).await;
    assert!(server.sent() < 8 * MIB, "{} bytes sent", server.sent());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_jumps_away_ends_what_was_asked_for_ahead_of_it() {
    let body = bytes(4 * HUGE, 93);
    let (whole, gate, ahead) = (body.clone(), Gate::default(), Arc::new(AtomicUsize::new(0)));
    let (held, counted) = (gate.clone(), Arc::clone(&ahead));
    let server = Server::start(move |request| match request.range(whole.len()) {
        // Ranges ahead of the reader are silent until the test opens them: whoever asked is gone by then.
        Some(range) if (16 * MIB..100 * MIB).contains(&range.start) => {
            counted.fetch_add(1, Ordering::SeqCst);
            honest(request, &whole, Some(ETAG)).gated_at(0, &held)
        }
        _ => honest(request, &whole, Some(ETAG)),
    });
    let mounted = Mounted::plain(&server);
    let wanted = vouched(&server, &body);
    for read in 0..12 {
        let bytes = mounted.read(&wanted, (read * MIB) as u64, MIB as u32).await.unwrap();
        assert!(bytes == body[read * MIB..(read + 1) * MIB]);
    }
    until(|| ahead.load(Ordering::SeqCst) > 0).await;

    let far = 150 * MIB;
    assert!(mounted.read(&wanted, far as u64, 4096).await.unwrap() == body[far..far + 4096]);
    let all = mounted.content.stripes.clone();
    until(|| all.available_permits() == places().available_permits()).await;
    let asked = ahead.load(Ordering::SeqCst);
    gate.open();

    assert!(server.sent() < 40 * MIB, "{} bytes sent, {asked} ranges ahead", server.sent());
    assert!(mounted.read_all(&wanted).await.unwrap() == body, "who comes back gets it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_that_was_left_is_gone_on_with_and_its_readers_wait_for_no_verdict() {
    let body = bytes(2 * HUGE, 94);
    let server = Server::of(&body, Some(ETAG));
    let mounted = Mounted::plain(&server);
    let wanted = vouched(&server, &body);
    // As many others stand still as may.
    let others = Arc::clone(&mounted.content.resting);
    let _others = others.acquire_many(others.available_permits() as u32).await.unwrap();
    assert!(mounted.read(&wanted, 0, MIB as u32).await.unwrap() == body[..MIB]);
    until(|| mounted.content.in_flight.lock().unwrap().is_empty()).await;
    let (asked, sent) = (server.received().len(), server.sent());

    assert!(mounted.read(&wanted, 2 * MIB as u64, MIB as u32).await.unwrap() == body[2 * MIB..3 * MIB]);
    assert!(server.sent() - sent < 40 * MIB, "{} bytes sent", server.sent() - sent);
    assert!(mounted.read_all(&wanted).await.unwrap() == body);
    let next = server.received()[asked].clone();
    assert!(next.field("if-range") == Some(ETAG) && next.range(body.len()).unwrap().start > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_still_takes_no_turn_from_other_reads_of_its_host() {
    let body = bytes(2 * HUGE, 96);
    let server = Server::of(&body, Some(ETAG));
    let mounted = Mounted::new(&server, |config| config.stall = Duration::from_secs(10));
    let wanted = vouched(&server, &body);
    let taken =
        (1..crate::content::FETCHES).map(|_| mounted.content.fetches.take(wanted.uri.authority(), wanted.requester));
    let taken = futures_util::future::join_all(taken).await;
    let resting = Arc::clone(&mounted.content.resting);
    let places = resting.available_permits();
    assert!(mounted.read(&wanted, 0, MIB as u32).await.unwrap() == body[..MIB], "one turn is left");
    until(|| resting.available_permits() < places).await;

    let other = FetchSpec { ino: INodeNo(77), uri: server.uri("/other"), ..wanted.clone() };
    assert!(mounted.read(&other, 0, 10).await.unwrap() == body[..10]);

    drop(taken);
    assert!(mounted.read_all(&wanted).await.unwrap() == body, "who comes back gets it");
}
