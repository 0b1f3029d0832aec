//! A body in parallel ranges: in order, right or an error, within the budget, however the server answers.

use super::*;
use crate::content::download::object::Origin;
use crate::content::download::ranges::{RangeClient, RangeError, Ranges};
use crate::platform::memory_budget::Budget;
use crate::source::http::{KnownPause, Priority, Request};
use crate::source::tests::server::{Gate, Received, Reply, Server, honest};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;

const ETAG: &str = "\"v1\"";
const MIB: usize = 1 << 20;
const HUGE: usize = 48 * MIB + 3 * BLOCK as usize + 12_345;

/// Far enough that ranges are worth it.
const FAR: Duration = Duration::from_millis(400);

/// A test that waits for silence waits so long.
const SILENCE: Duration = Duration::from_secs(2);

struct Fetched {
    ranges: Ranges,
    demand: watch::Sender<u64>,
    budget: Budget,
}

fn client(server: &Server) -> RangeClient {
    let http = HttpConfig { own_authority: Some(server.authority().into()), ..HttpConfig::default() };
    let (place, length) = (server.uri("/a"), HUGE as u64);
    RangeClient {
        client: Client::new(http).unwrap(),
        origin: Origin { place, etag: ETAG.into(), first: 0, total: length, length, shared: None },
        priority: Priority::default(),
        pause: KnownPause::default(),
        head: PLENTY,
        silence: SILENCE,
        shared_cache: None,
    }
}

impl Fetched {
    async fn start(client: RangeClient, budget: usize, demand: u64, round_trip: Duration) -> Fetched {
        let asked = client.client.send(Request::get(client.origin.place.clone(), PLENTY)).await.unwrap();
        let (budget, (demand, wanted)) = (Budget::new(budget), watch::channel(demand));
        let ranges = Ranges::start(client, budget.clone(), wanted, 0, Box::new(asked.body), round_trip);
        Fetched { ranges, demand, budget }
    }

    /// All of it is wanted, over a line where that takes several ranges.
    async fn whole(server: &Server) -> Fetched {
        Fetched::start(client(server), 256 * MIB, u64::MAX, FAR).await
    }

    async fn next(&mut self) -> Result<Option<Bytes>, RangeError> {
        tokio::time::timeout(HANG, self.ranges.next()).await.expect("a range hangs")
    }

    /// Until so many bytes are here, or the end.
    async fn read(&mut self, bytes: usize) -> Result<Vec<u8>, RangeError> {
        let mut read = Vec::new();
        while read.len() < bytes {
            let Some(chunk) = self.next().await? else { break };
            read.extend_from_slice(&chunk);
        }
        Ok(read)
    }
}

/// Honest but to the ranges that `lie` answers. `lie` sees how many such ranges there were before.
fn lying(body: &[u8], from: usize, lie: impl Fn(&Received, usize) -> Option<Reply> + Send + Sync + 'static) -> Server {
    let (body, lies) = (body.to_vec(), AtomicUsize::new(0));
    Server::start(move |request| {
        let is_meant = request.range(HUGE).is_some_and(|range| range.start >= from);
        let lie = is_meant.then(|| lie(request, lies.fetch_add(1, Ordering::SeqCst))).flatten();
        lie.unwrap_or_else(|| honest(request, &body, Some(ETAG)))
    })
}

/// The range of the request under a Content-Range `by` bytes later, in a whole of `total` bytes.
fn described(request: &Received, body: &[u8], by: usize, total: usize, etag: &str) -> Reply {
    let range = request.range(HUGE).unwrap();
    let described = format!("bytes {}-{}/{total}", range.start + by, range.end + by - 1);
    Reply::full(&body[range]).with_status(206).with("ETag", etag).with("Content-Range", &described)
}

fn ranges_of(server: &Server) -> Vec<Received> {
    server.received().into_iter().filter(|request| request.field("range").is_some()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_far_body_comes_in_order_in_several_ranges_of_one_version() {
    let body = bytes(HUGE, 201);
    let server = Server::of(&body, Some(ETAG));
    let mut fetched = Fetched::whole(&server).await;

    assert!(fetched.read(usize::MAX).await.unwrap() == body);
    assert_eq!(fetched.next().await.unwrap(), None);
    let ranges = ranges_of(&server);
    assert!((6..=16).contains(&ranges.len()), "{} ranges", ranges.len());
    assert!(ranges.iter().all(|request| request.field("if-range") == Some(ETAG)));
    assert_eq!(fetched.budget.free(), 256 * MIB);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_near_body_comes_alone() {
    let body = bytes(HUGE, 202);
    let server = Server::of(&body, Some(ETAG));
    let near = Duration::from_millis(1);
    let mut fetched = Fetched::start(client(&server), 256 * MIB, u64::MAX, near).await;

    assert!(fetched.read(usize::MAX).await.unwrap() == body);
    assert_eq!(ranges_of(&server).len(), 0);
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
            let mut fetched = Fetched::whole(&server).await;

            let mut read = Vec::new();
            let outcome = loop {
                match fetched.next().await {
                    Ok(Some(chunk)) => read.extend_from_slice(&chunk),
                    outcome => break outcome,
                }
            };
            assert!(read == body[..read.len()], "{what} from {from} on, {times} times");
            match outcome {
                Ok(_) => assert_eq!(read.len(), HUGE, "{what}"),
                Err(error) => assert!(times > 1, "{what} from {from} on, {times} times: {error:?}"),
            }
            drop(fetched.ranges);
            assert_eq!(fetched.budget.free(), 256 * MIB, "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_ranges_are_refused_the_body_goes_on_alone() {
    let body = bytes(HUGE, 205);
    let whole = body.clone();
    let server = Server::start(move |_| Reply::full(&whole).with("ETag", ETAG).with("Accept-Ranges", "bytes"));
    let mut fetched = Fetched::whole(&server).await;

    assert!(fetched.read(usize::MAX).await.unwrap() == body);
    assert!(ranges_of(&server).len() <= 14, "each of the first ones once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_is_cut_is_gone_on_with_once() {
    let body = bytes(HUGE, 206);
    let whole = body.clone();
    let cut = move |request: &Received, before: usize| {
        (before == 0).then(|| honest(request, &whole, Some(ETAG)).cut_at(MIB + 7))
    };
    let server = lying(&body, 20 * MIB, cut);
    let mut fetched = Fetched::whole(&server).await;

    assert!(fetched.read(usize::MAX).await.unwrap() == body);
    let starts: Vec<usize> = ranges_of(&server).iter().map(|request| request.range(HUGE).unwrap().start).collect();
    let rest = starts.iter().filter(|start| starts.contains(&(*start - (MIB + 7).min(**start)))).count();
    assert_eq!(rest, 1, "only what was cut off: {starts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_range_is_asked_for_again_while_later_ones_arrive() {
    let body = bytes(HUGE, 207);
    let (whole, gate) = (body.clone(), Gate::default());
    let held = gate.clone();
    let silent = move |request: &Received, before: usize| {
        (before == 0).then(|| honest(request, &whole, Some(ETAG)).gated_at(1000, &held))
    };
    let server = lying(&body, 20 * MIB, silent);
    let mut fetched = Fetched::whole(&server).await;

    assert!(fetched.read(usize::MAX).await.unwrap() == body);
    gate.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_body_is_replaced_by_a_range() {
    let body = bytes(HUGE, 208);
    let (whole, gate) = (body.clone(), Gate::default());
    let held = gate.clone();
    let server = Server::start(move |request| {
        let reply = honest(request, &whole, Some(ETAG));
        if request.field("range").is_none() { reply.gated_at(3 * MIB, &held) } else { reply }
    });
    let mut fetched = Fetched::whole(&server).await;

    assert!(fetched.read(usize::MAX).await.unwrap() == body);
    gate.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_range_is_begun_past_the_demand_and_more_demand_is_seen() {
    let body = bytes(HUGE, 210);
    let server = Server::of(&body, Some(ETAG));
    let wanted = 20 * MIB as u64;
    let mut fetched = Fetched::start(client(&server), 256 * MIB, wanted, FAR).await;

    let mut read = Vec::new();
    while read.len() < wanted as usize {
        read.extend_from_slice(&fetched.next().await.unwrap().unwrap());
    }
    assert!(tokio::time::timeout(Duration::from_millis(200), fetched.ranges.next()).await.is_err());
    let begun = || ranges_of(&server).iter().map(|request| request.range(HUGE).unwrap().start).max();
    assert!(begun().unwrap() < wanted as usize, "{:?}", begun());

    // While it waits, too.
    let more = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        fetched.demand.send_replace(u64::MAX);
    };
    let rest = async {
        while let Some(chunk) = tokio::time::timeout(HANG, fetched.ranges.next()).await.unwrap().unwrap() {
            read.extend_from_slice(&chunk);
        }
    };
    tokio::join!(more, rest);
    assert!(read == body);
}

/// Hazard: a jump while the reader of the ranges waits must not be missed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_drops_what_is_not_wanted_any_more_at_once() {
    let body = bytes(HUGE, 211);
    let (whole, gate) = (body.clone(), Gate::default());
    let held = gate.clone();
    let hold = move |request: &Received, _| Some(honest(request, &whole, Some(ETAG)).gated_at(MIB, &held));
    let server = lying(&body, 16 * MIB, hold);
    let mut fetched = Fetched::whole(&server).await;
    let read = fetched.read(16 * MIB).await.unwrap();
    // More is on its way, and charged.
    let waiting = async { while let Ok(Some(_)) = fetched.ranges.next().await {} };
    let jumped = async {
        until(|| fetched.budget.free() < 256 * MIB).await;
        fetched.demand.send_replace(read.len() as u64);
        until(|| fetched.budget.free() == 256 * MIB).await;
    };
    tokio::select! {
        () = waiting => panic!("nothing is wanted"),
        () = jumped => {}
    }
    gate.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_stays_within_the_budget_behind_a_slow_first_range() {
    let body = bytes(HUGE, 212);
    let (whole, gate) = (body.clone(), Gate::default());
    let held = gate.clone();
    let hold = move |request: &Received, before: usize| {
        (before == 0).then(|| honest(request, &whole, Some(ETAG)).gated_at(1000, &held))
    };
    let server = lying(&body, 12 * MIB, hold);
    let client = RangeClient { silence: HANG, ..client(&server) };
    let traffic = client.client.clone();
    let mut fetched = Fetched::start(client, 10 * MIB, u64::MAX, FAR).await;

    let mut read = Vec::new();
    while let Ok(chunk) = tokio::time::timeout(Duration::from_secs(1), fetched.ranges.next()).await {
        read.extend_from_slice(&chunk.unwrap().unwrap());
    }
    let arrived: usize = traffic.traffic().iter().map(|host| host.bytes as usize).sum();
    // Beyond the budget a chunk of each range.
    assert!(arrived - read.len() <= 10 * MIB + 4 * MIB, "{} bytes are held", arrived - read.len());
    assert!(fetched.budget.free() < 8 * MIB);
    gate.open();
    read.extend(fetched.read(usize::MAX).await.unwrap());
    assert!(read == body);
    assert_eq!(fetched.budget.free(), 10 * MIB);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_memory_the_first_range_arrives_all_the_same() {
    let body = bytes(HUGE, 213);
    let server = Server::of(&body, Some(ETAG));
    let mut fetched = Fetched::start(client(&server), 10 * MIB, u64::MAX, FAR).await;
    let _others = fetched.budget.try_reserve(10 * MIB);

    assert!(fetched.read(usize::MAX).await.unwrap() == body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_download_releases_its_reservations_and_connections() {
    let body = bytes(HUGE, 214);
    let server = Server::of(&body, Some(ETAG));
    let mut fetched = Fetched::whole(&server).await;
    let first = fetched.read(10 * MIB).await.unwrap();
    assert!(first == body[..first.len()]);

    drop(fetched.ranges);

    assert_eq!(fetched.budget.free(), 256 * MIB);
    until(|| server.busy() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_silent_keeps_no_memory_and_few_requests() {
    let body = bytes(HUGE, 215);
    let (whole, gate) = (body.clone(), Gate::default());
    let held = gate.clone();
    let hold = move |request: &Received, _| Some(honest(request, &whole, Some(ETAG)).gated_at(0, &held));
    let server = lying(&body, 0, hold);
    let client = RangeClient { silence: HANG, ..client(&server) };
    let mut fetched = Fetched::start(client, 256 * MIB, u64::MAX, FAR).await;

    // The body goes on, as no range has arrived.
    let read = fetched.read(HUGE - 10 * MIB).await.unwrap();
    assert!(read == body[..read.len()]);
    assert_eq!(fetched.budget.free(), 256 * MIB);
    assert!(ranges_of(&server).len() <= 14, "{} ranges", ranges_of(&server).len());
    gate.open();
}

/// A connection that begins later grows while all wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_ranges_begin_together_within_the_demand() {
    let body = bytes(HUGE, 216);
    let (whole, gate) = (body.clone(), Gate::default());
    let held = gate.clone();
    let server = Server::start(move |request| {
        let reply = honest(request, &whole, Some(ETAG));
        let arrives = if request.field("range").is_none() { 6 * MIB } else { 0 };
        reply.gated_at(arrives, &held)
    });
    let client = RangeClient { silence: HANG, ..client(&server) };
    let wanted = 26 * MIB;
    let mut fetched = Fetched::start(client, 256 * MIB, wanted as u64, FAR).await;

    let waiting = async { while let Ok(Some(_)) = fetched.ranges.next().await {} };
    tokio::select! {
        () = waiting => panic!("the body is held"),
        // One connection of eight stays free.
        () = until(|| ranges_of(&server).len() == 7) => {}
    }
    let asked = ranges_of(&server).iter().map(|request| request.range(HUGE).unwrap()).collect::<Vec<_>>();
    assert!(asked.iter().all(|range| range.start < wanted && range.len() < 3 * MIB), "{asked:?}");
    gate.open();
}
