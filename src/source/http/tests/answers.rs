//! Answers that lie, and answers that take their time.

use super::*;
use crate::source::tests::server::{Act, Received, Server, answer, ok};

#[tokio::test]
async fn a_range_that_was_not_asked_for_is_refused() {
    let answers = [
        ("HTTP/1.1 206 P\nContent-Range: bytes 0-2/10\nContent-Length: 3", Some((2, Some(4)))),
        ("HTTP/1.1 206 P\nContent-Range: bytes 2-4/10\nContent-Length: 3", None),
        ("HTTP/1.1 206 P\nContent-Length: 3", Some((2, Some(4)))),
        ("HTTP/1.1 206 P\nContent-Range: bytes 2-4/10\nContent-Length: 5", Some((2, Some(4)))),
    ];
    for (head, range) in answers {
        let server = Server::always(head, b"abc");
        let request = Request { range, ..Request::get(server.uri("/"), PLENTY) };
        let error = client(config(&server)).send(request).await.unwrap_err();
        assert!(matches!(error, HttpError::WrongRange { .. }), "{head}: {error:?}");
        assert_eq!(server.received().len(), 1);
    }
}

#[tokio::test]
async fn a_chunked_range_must_have_its_length_too() {
    let chunked = "HTTP/1.1 206 P\nContent-Range: bytes 2-4/10\nTransfer-Encoding: chunked";
    let bodies: [(&[u8], bool); 3] =
        [(b"3\r\ncde\r\n0\r\n\r\n", true), (b"2\r\ncd\r\n0\r\n\r\n", false), (b"4\r\ncdef\r\n0\r\n\r\n", false)];
    for (body, is_right) in bodies {
        let server = Server::always(chunked, body);
        let request = Request { range: Some((2, Some(4))), ..Request::get(server.uri("/"), PLENTY) };
        let mut response = client(config(&server)).send(request).await.unwrap();
        let outcome = read(&mut response.body).await;
        match (&outcome, is_right) {
            (Ok(bytes), true) => assert_eq!(bytes, b"cde"),
            (
                Err(HttpError::Truncated { expected: 3, got: 2, .. } | HttpError::Overlong { expected: 3, .. }),
                false,
            ) => {}
            _ => panic!("{outcome:?}"),
        }
    }
}

#[tokio::test]
async fn a_body_cut_anywhere_is_truncated_and_stays_so() {
    for length in 0..10 {
        let server = Server::start(move |_| {
            vec![Act::Send(answer("HTTP/1.1 200 OK\nContent-Length: 10", &b"0123456789"[..length])), Act::Close]
        });
        let mut response = client(config(&server)).send(Request::get(server.uri("/"), PLENTY)).await.unwrap();
        let error = read(&mut response.body).await.unwrap_err();
        let expected = length as u64;
        assert!(matches!(error, HttpError::Truncated { expected: 10, got, .. } if got == expected), "{error:?}");
        assert!(error.is_retryable());
        assert!(response.body.chunk().await.is_err(), "a failed body never seems to end well");
    }
}

#[tokio::test]
async fn a_chunked_body_that_is_cut_is_an_error() {
    let server = Server::start(|_| {
        vec![Act::Send(answer("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"5\r\nhello\r\n")), Act::Close]
    });
    let (response, bytes) = get(&client(config(&server)), server.uri("/")).await.unwrap();
    assert_eq!(response.content_length, None);
    assert!(matches!(bytes, Err(HttpError::Body { got: 5, .. })), "{bytes:?}");
}

#[tokio::test]
async fn bytes_past_the_length_never_reach_the_next_answer() {
    let server = Server::start(|request| match request.number {
        0 => vec![Act::Send(answer(
            "HTTP/1.1 200 OK\nContent-Length: 5",
            b"helloHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad",
        ))],
        _ => ok(b"good"),
    });
    let client = client(config(&server));
    assert_eq!(get(&client, server.uri("/")).await.unwrap().1.unwrap(), b"hello");
    assert_eq!(get(&client, server.uri("/")).await.unwrap().1.unwrap(), b"good");
}

#[tokio::test]
async fn an_unrequested_coding_is_reported_and_not_undone() {
    let server = Server::always("HTTP/1.1 200 OK\nContent-Length: 4\nContent-Encoding: GZip", b"\x1f\x8b\x08\0");
    let (response, bytes) = get(&client(config(&server)), server.uri("/")).await.unwrap();
    assert_eq!(response.encoding.as_deref(), Some("gzip"));
    assert_eq!(bytes.unwrap(), b"\x1f\x8b\x08\0");
}

fn impatient(own: &Server) -> HttpConfig {
    HttpConfig { low_speed_limit: 1000, low_speed_time: Duration::from_millis(200), ..config(own) }
}

#[tokio::test]
async fn a_body_that_stalls_or_drips_has_failed() {
    let stalls: fn(&Received) -> Vec<Act> =
        |_| vec![Act::Send(answer("HTTP/1.1 200 OK\nContent-Length: 999", b"begin")), Act::Hang];
    let drips: fn(&Received) -> Vec<Act> = |_| {
        let head = Act::Send(answer("HTTP/1.1 200 OK\nContent-Length: 999", b""));
        let drop = || [Act::Wait(Duration::from_millis(10)), Act::Send(vec![b'x'])];
        std::iter::once(head).chain((0..999).flat_map(|_| drop())).collect()
    };
    for script in [stalls, drips] {
        let server = Server::start(script);
        let (_, bytes) = get(&client(impatient(&server)), server.uri("/")).await.unwrap();
        assert!(matches!(bytes, Err(HttpError::Stalled { limit: 1000, .. })), "{bytes:?}");
    }
}

#[tokio::test]
async fn a_slow_reader_is_not_a_slow_server() {
    let server = Server::start(|_| ok(&[7; 1 << 20]));
    let mut response = client(impatient(&server)).send(Request::get(server.uri("/"), PLENTY)).await.unwrap();
    let first = response.body.chunk().await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(first.len() + read(&mut response.body).await.unwrap().len(), 1 << 20);
}

#[tokio::test]
async fn a_black_hole_is_given_up_at_the_deadline() {
    let server = Server::start(|_| vec![Act::Hang]);
    let begun = Instant::now();
    let request = Request::get(server.uri("/"), Duration::from_millis(200));
    let error = client(config(&server)).send(request).await.unwrap_err();
    assert!(matches!(error, HttpError::Deadline { last: None, .. }), "{error:?}");
    assert!(begun.elapsed() < PLENTY / 4);
}

/// As curl reads them.
#[tokio::test]
async fn malformed_lines_of_a_head_are_passed_over() {
    let many: Vec<u8> = (0..900).flat_map(|number| format!("X-{number}: y\r\n").into_bytes()).collect();
    let lines: [&[u8]; 10] = [
        b"X-A : a\r\n",
        b"PHP Warning: x\r\n",
        b"X-A: a\r\n b\r\n\tc\r\n",
        b"nonsense\r\n",
        b": empty\r\n",
        b"X-Caf\xe9: 1\r\n",
        b"X-A: caf\xe9 \xff\r\n",
        b"Set-Cookie: a=\x7f\x01; path=/\r\n",
        b"X-A: bare\nX-B: line feeds\n",
        &many,
    ];
    for line in lines {
        let line = line.to_vec();
        let head = [&b"HTTP/1.1 200 OK\r\n"[..], &line, b"Content-Length: 5\r\n\r\nhello"].concat();
        let server = Server::start(move |_| vec![Act::Send(head.clone())]);
        let reading = client(config(&server));
        for _ in 0..2 {
            let (response, bytes) = get(&reading, server.uri("/")).await.unwrap();
            assert_eq!(bytes.unwrap(), b"hello");
            assert_eq!(response.content_length, Some(5), "{}", String::from_utf8_lossy(&line));
        }
    }
}
