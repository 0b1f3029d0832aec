//! What is asked again, when, and how much at a time.

use super::*;
use crate::source::tests::server::{Act, Server, answer, ok, status};

#[tokio::test]
async fn what_may_pass_is_repeated_until_it_does() {
    for code in [408, 425, 429, 500, 502, 503, 504] {
        let server = Server::start(move |request| if request.number < 2 { status(code, "X: y") } else { ok(b"up") });
        let (_, bytes) = get(&client(config(&server)), server.uri("/")).await.unwrap();
        assert_eq!(bytes.unwrap(), b"up");
        assert_eq!(server.received().len(), 3, "{code}");
    }
}

#[tokio::test]
async fn lasting_failures_are_reported_at_once() {
    for code in [204, 300, 304, 400, 401, 403, 404, 405, 410, 416, 501] {
        let server = Server::start(move |_| vec![Act::Send(answer(&format!("HTTP/1.1 {code} No"), b"")), Act::Close]);
        let error = get(&client(config(&server)), server.uri("/")).await.unwrap_err();
        assert_eq!(error.status(), Some(code));
        assert_eq!(server.received().len(), 1, "{code}");
    }
}

#[tokio::test]
async fn a_head_that_is_cut_is_asked_for_again() {
    let server = Server::start(|request| match request.number {
        0 => vec![Act::Close],
        1 => vec![Act::Send(b"HTTP/1.1 200 OK\r\nContent-Le".to_vec()), Act::Close],
        _ => ok(b"whole"),
    });
    let (_, bytes) = get(&client(config(&server)), server.uri("/")).await.unwrap();
    assert_eq!(bytes.unwrap(), b"whole");
}

#[tokio::test]
async fn retry_after_is_waited_for() {
    let server = Server::start(|request| match request.number {
        0 => status(429, "Retry-After: 1"),
        1 => status(503, "Retry-After: Thu, 01 Jan 1970 00:00:02 GMT\r\nDate: Thu, 01 Jan 1970 00:00:02 GMT"),
        _ => ok(b"now"),
    });
    let begun = Instant::now();
    let (_, bytes) = get(&client(config(&server)), server.uri("/")).await.unwrap();
    assert_eq!(bytes.unwrap(), b"now");
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!(server.received().len(), 3);
}

/// A body of the only connection, sent in pieces with pauses between them.
fn slowly(pieces: usize, pause: Duration) -> Vec<Act> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {pieces}\r\n\r\n");
    let body = (0..pieces).flat_map(|_| [Act::Wait(pause), Act::Send(b"x".to_vec())]);
    std::iter::once(Act::Send(head.into_bytes())).chain(body).collect()
}

#[tokio::test]
async fn a_busy_host_puts_a_deadline_off_by_half_at_most() {
    let server = Server::start(|request| match &*request.path {
        "/slow" => slowly(16, Duration::from_millis(50)),
        "/slower" => slowly(16, Duration::from_millis(250)),
        "/silent" => vec![Act::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx".to_vec()), Act::Hang],
        _ => ok(b"served"),
    });
    let within = Duration::from_millis(750);
    let next = || Request::get(server.uri("/next"), within);

    let busy = client(HttpConfig { connections: 1, ..config(&server) });
    let mut slow = busy.send(Request::get(server.uri("/slow"), PLENTY)).await.unwrap();
    let (whole, served) = tokio::join!(read(&mut slow.body), busy.send(next()));
    assert_eq!((whole.unwrap().len(), served.unwrap().status), (16, Status::Full));

    let (mut slower, begun) = (busy.send(Request::get(server.uri("/slower"), PLENTY)).await.unwrap(), Instant::now());
    let late = async { (busy.send(next()).await.unwrap_err(), begun.elapsed()) };
    let (whole, (late, waited)) = tokio::join!(read(&mut slower.body), late);
    assert!(matches!(late, HttpError::NotSent { .. }), "what others are sent is no progress: {late:?}");
    assert!(waited > within && waited < 3 * within, "{waited:?}");
    assert_eq!(whole.unwrap().len(), 16);

    let silent = client(HttpConfig { connections: 1, ..config(&server) });
    let held = silent.send(Request::get(server.uri("/silent"), PLENTY)).await.unwrap();
    let refused = silent.send(next()).await.unwrap_err();
    assert!(matches!(refused, HttpError::NotSent { .. }), "{refused:?}");
    drop(held);
}

#[tokio::test]
async fn a_pause_past_the_deadline_is_reported_at_once() {
    let server = Server::start(|request| match request.path.as_str() {
        "/list" => status(503, "Retry-After: 18446744073709551615"),
        "/a" => status(429, "Retry-After: 18446744073709551615"),
        _ => ok(b"served"),
    });
    let client = client(config(&server));
    let resource = |path| Request::get(server.uri(path), PLENTY / 2);
    let document = |path| Request { is_document: true, ..resource(path) };
    let error = client.send(document("/list")).await.unwrap_err();
    assert!(matches!(error, HttpError::Status { status: 503, retry_after: Some(_), .. }), "{error:?}");
    let error = client.send(document("/list")).await.unwrap_err();
    assert!(matches!(error, HttpError::Paused { .. }), "{error:?}");
    assert!(client.send(document("/other")).await.is_ok(), "another list");
    assert!(client.send(resource("/b")).await.is_ok(), "no reader waits for a pause of a list");

    client.send(resource("/a")).await.unwrap_err();
    let error = client.send(resource("/b")).await.unwrap_err();
    assert!(error.to_string().ends_with("allows no requests for another 3600 s"), "{error}");
    let error = client.send(document("/other")).await.unwrap_err();
    assert!(matches!(error, HttpError::Paused { .. }), "the host would refuse it too: {error:?}");
    assert_eq!(server.received().len(), 4);

    client.end_pauses();
    assert!(client.send(resource("/b")).await.is_ok());
    assert_eq!(client.traffic()[0].paused_for, None);
}

/// Promise: a pause that a host announces is no stall.
#[tokio::test]
async fn a_known_pause_counts_for_no_deadline_up_to_patience() {
    let within = Duration::from_millis(400);
    let server = Server::start(|request| match request.number {
        0 | 2 => status(429, "Retry-After: 1"),
        _ => ok(b"served"),
    });
    let request = Request::get(server.uri("/a"), within);
    let pause = request.pause.clone();
    assert!(client(config(&server)).send(request).await.is_ok());
    assert!(pause.total() >= Duration::from_secs(1), "those that wait are told: {:?}", pause.total());

    let hasty = client(HttpConfig { patience: within, ..config(&server) });
    let error = hasty.send(Request::get(server.uri("/a"), within)).await.unwrap_err();
    assert!(matches!(error, HttpError::Status { status: 429, .. }), "{error:?}");
    let error = hasty.send(Request::get(server.uri("/b"), within)).await.unwrap_err();
    assert_eq!(error.to_string().split("allows").nth(1), Some(" no requests for another 1 s"));
    assert!(error.is_unsent());
}

/// The same of a pace that is kept without a word of the host.
#[tokio::test]
async fn the_wait_for_a_token_counts_for_no_deadline() {
    let server = Server::start(|_| ok(b"served"));
    let client = client(HttpConfig { rate: Some(2.0), ..config(&server) });
    client.slow_down(&server.uri("/"), Duration::from_secs(1));
    let begun = Instant::now();
    for _ in 0..3 {
        client.send(Request::get(server.uri("/a"), Duration::from_millis(200))).await.unwrap();
    }
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
}

/// A host that allows `limit` requests in each `length`, as `head` announces with what is left, and refuses the rest.
fn limited(limit: u64, length: Duration, head: fn(u64, Duration) -> String) -> Server {
    let window = std::sync::Mutex::new((Instant::now(), 0));
    Server::start(move |_| {
        let mut window = window.lock().unwrap();
        if window.0.elapsed() >= length {
            *window = (Instant::now(), 0);
        }
        window.1 += 1;
        let head = head(limit.saturating_sub(window.1), length.saturating_sub(window.0.elapsed()));
        status(if window.1 > limit { 429 } else { 200 }, &head)
    })
}

/// Promise: a host that announces its limit hardly has to refuse a request, whatever form it announces it in.
#[tokio::test]
async fn announced_limits_are_kept_by_many_readers_at_once() {
    let forms: [fn(u64, Duration) -> String; 3] = [
        |left, reset| {
            let reset = reset.as_secs() + 1;
            format!("X-RateLimit-Limit: 12\r\nX-RateLimit-Remaining: {left}\r\nX-RateLimit-Reset: {reset}")
        },
        |left, reset| {
            let reset = reset.as_secs() + 1;
            format!("RateLimit: \"a\";r={left};t={reset}\r\nRateLimit-Policy: \"a\";q=12;w=2")
        },
        |left, reset| format!("RateLimit: limit=12, remaining={left}, reset={}", reset.as_secs() + 1),
    ];
    let runs = forms.map(|form| async move {
        let server = limited(12, Duration::from_secs(2), form);
        let client = client(HttpConfig { connections: 64, ..config(&server) });
        client.send(Request::get(server.uri("/first"), PLENTY)).await.unwrap();
        let begun = Instant::now();
        let all = (0..29).map(|number| {
            let kind = if number % 3 == 0 { Priority::background() } else { Priority::default() };
            let request = Request::get(server.uri(&format!("/{number}")), Duration::from_millis(900));
            client.send(Request { priority: kind, ..request })
        });
        let failed: Vec<_> = futures_util::future::join_all(all).await.into_iter().filter_map(Result::err).collect();
        assert!(failed.is_empty(), "{failed:?}");
        let (took, traffic) = (begun.elapsed(), client.traffic().remove(0));
        assert!(traffic.refusals <= 3, "{traffic:?}");
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert_eq!((traffic.limit, traffic.waiting_readers), (Some(12), 0));
        assert!(traffic.window.is_some_and(|window| (2..=3).contains(&window.as_secs())), "{traffic:?}");
    });
    futures_util::future::join_all(runs).await;
}

/// A fresh window costs no reader any time, and what is fetched ahead leaves half of it.
#[tokio::test]
async fn readers_take_a_window_at_once_and_prefetches_half() {
    let server = limited(40, PLENTY, |left, reset| {
        format!("X-RateLimit-Limit: 40\r\nX-RateLimit-Remaining: {left}\r\nX-RateLimit-Reset: {}", reset.as_secs())
    });
    let client = client(config(&server));
    let request = |priority| client.send(Request { priority, ..Request::get(server.uri("/"), PLENTY) });
    request(Priority::default()).await.unwrap();
    let ahead = futures_util::future::join_all((0..40).map(|_| request(Priority::background())));
    let waiting = tokio::time::timeout(Duration::from_millis(300), ahead).await;
    assert!(waiting.is_err());
    assert_eq!(server.received().len(), 20);
    assert!(client.is_paced(&server.uri("/")));

    let begun = Instant::now();
    for _ in 0..9 {
        request(Priority::default()).await.unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

/// Promise: a host that asks for a pause gets it, however many pauses it asks for.
#[tokio::test]
async fn pauses_of_many_documents_end_none_of_resources() {
    let server = Server::start(|_| status(429, "Retry-After: 3600"));
    let client = client(config(&server));
    let resource = |path: &str| Request::get(server.uri(path), Duration::from_secs(5));
    client.send(resource("/a")).await.unwrap_err();
    for number in 0..100 {
        let list = Request { is_document: true, ..resource(&format!("/list/{number}")) };
        client.send(list).await.unwrap_err();
    }
    let asked = server.received().len();

    let error = client.send(resource("/b")).await.unwrap_err();

    assert!(matches!(error, HttpError::Paused { .. }), "{error:?}");
    assert_eq!(server.received().len(), asked);
}

/// Promise: a reader never waits behind what is fetched ahead.
#[tokio::test]
async fn readers_take_the_next_token_of_a_bounded_rate() {
    let server = Server::start(|_| ok(b"served"));
    let client = client(HttpConfig { rate: Some(10.0), connections: 64, ..config(&server) });
    let mut ahead = tokio::task::JoinSet::new();
    for number in 0..64 {
        let request = Request {
            priority: Priority::background(),
            ..Request::get(server.uri(&format!("/ahead/{number}")), PLENTY)
        };
        let client = client.clone();
        ahead.spawn(async move { drop(client.send(request).await) });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;

    let begun = Instant::now();
    for _ in 0..3 {
        client.send(Request::get(server.uri("/read"), PLENTY)).await.unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(server.received().len() < 40);
}

#[tokio::test]
async fn a_dead_host_is_soon_answered_for_at_once() {
    let gone = Server::start(|_| ok(b""));
    let config = config(&gone);
    let uri = gone.uri("/");
    drop(gone);
    let client = client(config);
    let mut errors = Vec::new();
    for _ in 0..20 {
        errors.push(client.send(Request::get(uri.clone(), Duration::from_millis(100))).await.unwrap_err());
    }
    assert!(errors.iter().all(HttpError::is_retryable), "{errors:?}");
    let last = client.send(Request::get(uri, PLENTY)).await.unwrap_err();
    assert!(matches!(last, HttpError::CircuitOpen { .. }), "{last:?}");
    let text = crate::platform::error_chain::chain(&last);
    assert_eq!(text.matches("connection refused").count(), 1, "{text}");
    assert!(text.contains(" gets no requests for ") && text.matches("http:").count() == 1, "{text}");
}

/// A host that restarts: the ranges of one download fail together, and what goes on with it waits for the host.
#[tokio::test]
async fn parallel_ranges_do_not_open_the_breaker() {
    let gone = Server::start(|_| ok(b""));
    let config = config(&gone);
    let uri = gone.uri("/");
    drop(gone);
    let client = client(config);
    for _ in 0..20 {
        let usual = Request::get(uri.clone(), Duration::from_millis(100));
        let range = Request { range: Some((0, Some(9))), way: Way::Ranges, repeats: false, ..usual };
        let error = client.send(range).await.unwrap_err();
        assert!(!matches!(error, HttpError::CircuitOpen { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_silent_host_counts_as_dead_although_each_caller_gave_up() {
    let silent = Server::start(|_| vec![Act::Hang]);
    let client = client(HttpConfig { connect_timeout: Duration::from_millis(30), ..config(&silent) });
    for number in 0..5 {
        let request = Request::get(silent.uri(&format!("/{number}")), Duration::from_millis(60));
        let error = client.send(request).await.unwrap_err();
        assert!(matches!(error, HttpError::Deadline { .. } | HttpError::Connect { .. }), "{error:?}");
    }
    let error = client.send(Request::get(silent.uri("/0"), PLENTY)).await.unwrap_err();
    assert!(matches!(error, HttpError::CircuitOpen { .. }), "{error:?}");
}

#[tokio::test]
async fn a_body_holds_its_place_until_it_is_dropped_or_read() {
    let server = Server::start(|_| ok(b"body"));
    let client = client(HttpConfig { connections: 1, ..config(&server) });
    let mut held = client.send(Request::get(server.uri("/1"), PLENTY)).await.unwrap();

    let refused = client.send(Request::get(server.uri("/2"), Duration::from_millis(100))).await.unwrap_err();
    assert!(matches!(refused, HttpError::NotSent { .. }), "{refused:?}");
    assert_eq!(server.received().len(), 1);

    read(&mut held.body).await.unwrap();
    let dropped = client.send(Request::get(server.uri("/3"), PLENTY)).await.unwrap();
    drop(dropped);
    assert!(get(&client, server.uri("/4")).await.is_ok());
}

#[tokio::test]
async fn requests_may_be_sent_from_any_thread() {
    let server = Server::start(|_| ok(b"body"));
    let client = client(HttpConfig { rate: Some(1e6), ..config(&server) });
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let (client, uri) = (client.clone(), server.uri("/"));
            tokio::spawn(async move { get(&client, uri).await.unwrap().1.unwrap() })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), b"body");
    }
    assert_eq!(server.received().len(), 32);
}
