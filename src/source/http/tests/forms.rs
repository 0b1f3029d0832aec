//! Forms that are posted: once, to where they were meant for, and nowhere else.

use super::*;
use crate::source::tests::server::{Act, Server, answer, status};

/// Answers as soon as the head has come, and swallows the form behind it: the server reads heads alone.
fn form_server(code: u16, field: &'static str) -> Server {
    Server::start(move |_| {
        let sent = answer(&format!("HTTP/1.1 {code} Some\nContent-Length: 4\nConnection: close\n{field}"), b"sent");
        vec![Act::Send(sent), Act::Hang]
    })
}

#[tokio::test]
async fn a_form_is_posted_and_every_status_is_reported() {
    for code in [202, 400, 500] {
        let server = form_server(code, "Retry-After: 7");
        let posted = client(config(&server)).post_form(&server.uri("/hub"), "a=b&c=d", PLENTY).await.unwrap();

        assert_eq!((posted.status, posted.text.as_str()), (code, "sent"));
        assert_eq!(posted.retry_after, Some(Duration::from_secs(7)));
        let received = server.received();
        assert_eq!((received.len(), received[0].method.as_str(), received[0].path.as_str()), (1, "POST", "/hub"));
        assert_eq!(received[0].field("content-type"), Some("application/x-www-form-urlencoded"));
        assert_eq!(received[0].field("content-length"), Some("7"));
    }
}

#[tokio::test]
async fn a_redirect_of_a_form_is_reported_and_not_followed() {
    let other = Server::start(|_| status(202, "X: y"));
    let to = format!("Location: {}", other.uri("/elsewhere"));
    let server =
        Server::start(move |_| vec![Act::Send(answer(&format!("HTTP/1.1 307 Some\nContent-Length: 0\n{to}"), b""))]);
    let posted = client(config(&server)).post_form(&server.uri("/hub"), "a=b", PLENTY).await.unwrap();

    assert_eq!((posted.status, posted.location), (307, Some(other.uri("/elsewhere"))));
    assert!(other.received().is_empty());
}

#[tokio::test]
async fn a_form_goes_to_no_private_address_unless_allowed() {
    let server = form_server(202, "X: y");
    let error = client(HttpConfig::default()).post_form(&server.uri("/hub"), "a=b", PLENTY).await.unwrap_err();

    assert!(matches!(error, HttpError::AddressRefused { .. }), "{error:?}");
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn a_form_without_an_answer_fails_in_time() {
    let server = Server::start(|_| vec![Act::Hang]);
    let within = Duration::from_millis(200);
    let error = client(config(&server)).post_form(&server.uri("/hub"), "a=b", within).await.unwrap_err();

    assert!(matches!(error, HttpError::Deadline { .. }), "{error:?}");
    assert_eq!(server.received().len(), 1);
}
