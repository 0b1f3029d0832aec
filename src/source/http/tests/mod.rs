//! The client against servers that work and servers that lie.

mod answers;
mod bulk;
mod certificates;
mod forms;
mod repetition;
mod tls;
mod trust;

use super::transport::{Proxy, ProxySettings};
use super::*;
use crate::source::tests::server::{Act, Server, ok, status};

/// Long enough for a busy machine; no test waits for it to pass.
const PLENTY: Duration = Duration::from_secs(60);

fn config(own: &Server) -> HttpConfig {
    HttpConfig { own_authority: Some(own.authority().into()), ..HttpConfig::default() }
}

/// A client that ignores the proxies of the environment.
fn client(config: HttpConfig) -> Client {
    Client::with_proxies(config, &ProxySettings::default()).unwrap()
}

fn proxy_at(address: &str) -> Option<Proxy> {
    Some(Proxy { variable: "all_proxy".to_owned(), address: address.to_owned() })
}

/// A client certificate and its key.
fn identity(pem: impl Into<Vec<u8>>) -> Credentials {
    Credentials { client_certificate: Some(pem.into()), ..Credentials::default() }
}

async fn read(body: &mut Body) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::new();
    while let Some(piece) = body.chunk().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

async fn get(client: &Client, uri: Uri) -> Result<(Response, Result<Vec<u8>, HttpError>), HttpError> {
    let mut response = client.send(Request::get(uri, PLENTY)).await?;
    let bytes = read(&mut response.body).await;
    Ok((response, bytes))
}

/// An error as it is logged: its own text, its causes', and its debug form.
fn described(error: &HttpError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text += &format!(" {error} {error:?}");
        cause = error.source();
    }
    text
}

#[tokio::test]
async fn a_get_brings_head_and_body() {
    let server = Server::always(
        "HTTP/1.1 200 OK\nContent-Length: 5\nContent-Type: text/plain; charset=utf-8\nETag: \"v1\"\n\
         Last-Modified: Thu, 01 Jan 1970 00:00:05 GMT\nLink: </up.xml>; rel=\"up\"",
        b"hello",
    );
    let (response, bytes) = get(&client(config(&server)), server.uri("/a?b=c")).await.unwrap();

    assert_eq!(bytes.unwrap(), b"hello");
    assert_eq!(response.status, Status::Full);
    assert_eq!(response.final_uri, server.uri("/a?b=c"));
    assert_eq!(response.content_length, Some(5));
    assert_eq!(response.etag.as_deref(), Some("\"v1\""));
    assert_eq!(response.modified.map(|time| time.seconds), Some(5));
    assert_eq!(response.media_type.as_deref(), Some("text/plain"));
    assert_eq!(
        response.links.iter().map(|link| link.leads_by("up")).collect::<Vec<_>>(),
        [Some(&server.uri("/up.xml"))]
    );
    let request = &server.received()[0];
    assert_eq!(request.path, "/a?b=c");
    let user_agent = request.field("user-agent").unwrap();
    let program = concat!("resyncfs/", env!("CARGO_PKG_VERSION"), " (ResourceSync file system)");
    assert!(user_agent.starts_with(program), "{user_agent}");
    assert_eq!(request.field("accept-encoding"), Some("identity"));
    assert_eq!(request.field("authorization"), None);
}

#[tokio::test]
async fn a_published_type_that_is_no_header_value_is_not_sent() {
    let server = Server::start(|_| ok(b"hello"));
    let client = client(config(&server));
    let mut request = Request::get(server.uri("/a"), PLENTY);

    for published in ["text/\u{1b}[31m", "text/plain\r\nX-Other: 1"] {
        request.accept = Some(published.into());
        client.send(request.clone()).await.unwrap();
    }

    assert!(server.received().iter().all(|request| request.field("accept") == Some("*/*")), "{:?}", server.received());
}

#[tokio::test]
async fn a_published_encoding_that_is_no_header_value_is_not_sent() {
    let server = Server::start(|_| ok(b"hello"));
    let client = client(config(&server));
    for published in ["gzip\u{1b}[31m", "gzip\r\nX-Other: 1"] {
        let request = Request { accept_encoding: published.into(), ..Request::get(server.uri("/a"), PLENTY) };
        client.send(request).await.unwrap();
    }
    assert!(server.received().iter().all(|request| request.field("accept-encoding") == Some("identity")));
}

#[tokio::test]
async fn a_head_has_the_length_and_no_body() {
    let server = Server::always("HTTP/1.1 200 OK\nContent-Length: 12345", b"");
    let client = client(config(&server));
    for _ in 0..2 {
        let mut response = client.send(Request::head(server.uri("/"), PLENTY)).await.unwrap();
        assert_eq!(response.content_length, Some(12345));
        assert_eq!(read(&mut response.body).await.unwrap(), b"");
    }
    assert_eq!(server.received()[0].method, "HEAD");
}

#[tokio::test]
async fn a_range_is_asked_for_and_checked() {
    let server = Server::always("HTTP/1.1 206 Partial\nContent-Range: bytes 2-4/10\nContent-Length: 3", b"cde");
    let request =
        Request { range: Some((2, Some(4))), if_range: Some("\"v1\"".into()), ..Request::get(server.uri("/"), PLENTY) };
    let mut response = client(config(&server)).send(request).await.unwrap();

    assert_eq!(response.status, Status::Partial { first: 2, last: 4, total: Some(10) });
    assert_eq!(read(&mut response.body).await.unwrap(), b"cde");
    assert_eq!(server.received()[0].field("range"), Some("bytes=2-4"));
    assert_eq!(server.received()[0].field("if-range"), Some("\"v1\""));
}

#[tokio::test]
async fn the_end_is_asked_for_without_knowing_the_length() {
    let server = Server::always("HTTP/1.1 206 Partial\nContent-Range: bytes 7-9/10\nContent-Length: 3", b"hij");
    let request = Request { suffix: Some(3), ..Request::get(server.uri("/"), PLENTY) };
    let response = client(config(&server)).send(request).await.unwrap();

    assert_eq!(response.status, Status::Partial { first: 7, last: 9, total: Some(10) });
    assert_eq!(server.received()[0].field("range"), Some("bytes=-3"));
}

#[tokio::test]
async fn a_200_to_a_range_is_the_whole() {
    let server = Server::always("HTTP/1.1 200 OK\nContent-Length: 5", b"hello");
    let request = Request { range: Some((2, Some(4))), ..Request::get(server.uri("/"), PLENTY) };
    let response = client(config(&server)).send(request).await.unwrap();
    assert_eq!(response.status, Status::Full);
}

#[tokio::test]
async fn a_304_keeps_its_validators() {
    let server = Server::always("HTTP/1.1 304 Not Modified\nETag: \"v1\"\nCache-Control: max-age=9", b"");
    let request = Request {
        if_none_match: Some("\"v1\"".into()),
        if_modified_since: Some("Thu, 01 Jan 1970 00:00:05 GMT".into()),
        no_cache: true,
        ..Request::get(server.uri("/"), PLENTY)
    };
    let mut response = client(config(&server)).send(request).await.unwrap();

    assert_eq!(response.status, Status::NotModified);
    assert_eq!(response.etag.as_deref(), Some("\"v1\""));
    assert_eq!(response.max_age, Some(Duration::from_secs(9)));
    assert_eq!(read(&mut response.body).await.unwrap(), b"");
    let request = &server.received()[0];
    assert_eq!(request.field("if-none-match"), Some("\"v1\""));
    assert_eq!(request.field("if-modified-since"), Some("Thu, 01 Jan 1970 00:00:05 GMT"));
    assert_eq!(request.field("cache-control"), Some("no-cache"));
}

#[tokio::test]
async fn redirects_are_followed_to_where_they_end() {
    let server = Server::start(|request| match request.path.as_str() {
        "/a/1" => status(301, "Location: /b/2"),
        "/b/2" => status(307, "Location: 3#fragment"),
        _ => ok(b"here"),
    });
    let (response, bytes) = get(&client(config(&server)), server.uri("/a/1")).await.unwrap();
    assert_eq!(bytes.unwrap(), b"here");
    assert_eq!(response.final_uri, server.uri("/b/3"));
}

/// As browsers and curl follow them.
#[tokio::test]
async fn redirects_that_are_not_escaped_are_followed() {
    let table: [(&[u8], &str); 5] = [
        ("/caf\u{e9}".as_bytes(), "/caf%C3%A9"),
        (b"/caf\xe9", "/caf%E9"),
        (b"/\x82\xa0?q=\xff", "/%82%A0?q=%FF"),
        (b" /with blanks in it ", "/with%20blanks%20in%20it"),
        (b"//HOST/\xe9\xc3\xa9", "/%E9%C3%A9"),
    ];
    for (location, expected) in table {
        let server = Server::start(move |request| match request.path == "/" {
            true => {
                let host = request.field("host").unwrap().as_bytes();
                let mut head = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: ".to_vec();
                match location.strip_prefix(b"//HOST") {
                    Some(path) => head.extend_from_slice(&[b"//", host, path].concat()),
                    None => head.extend_from_slice(location),
                }
                head.extend_from_slice(b"\r\n\r\n");
                vec![Act::Send(head)]
            }
            false => ok(b"here"),
        });
        get(&client(config(&server)), server.uri("/")).await.unwrap().1.unwrap();
        assert_eq!(server.received()[1].path, expected);
    }
}

#[tokio::test]
async fn circles_and_endless_redirects_end() {
    let server = Server::start(|request| match request.path.as_str() {
        "/circle" => status(302, "Location: /elsewhere"),
        "/elsewhere" => status(302, "Location: /circle"),
        path => status(302, &format!("Location: {path}x")),
    });
    let client = client(config(&server));

    let error = get(&client, server.uri("/circle")).await.unwrap_err();
    assert!(matches!(&error, HttpError::TooManyRedirects { uri, .. } if *uri == server.uri("/circle")), "{error:?}");
    let asked = server.received().len();
    let error = get(&client, server.uri("/endless")).await.unwrap_err();
    assert!(matches!(error, HttpError::TooManyRedirects { .. }), "{error:?}");
    assert_eq!(server.received().len() - asked, 11);
}

#[tokio::test]
async fn redirects_to_what_is_no_http_uri_are_refused() {
    let server = Server::always("HTTP/1.1 302 Found\nContent-Length: 0\nLocation: file:///etc/passwd", b"");
    let error = get(&client(config(&server)), server.uri("/")).await.unwrap_err();
    assert!(matches!(error, HttpError::BadRedirect { .. }), "{error:?}");
}

#[tokio::test]
async fn a_redirect_to_a_private_address_is_refused_before_asking() {
    let inside = Server::always("HTTP/1.1 200 OK\nContent-Length: 0", b"");
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "10.0.0.1", "169.254.169.254"] {
        let target = format!("http://{host}:{}/", inside.port());
        let server = Server::start(move |_| status(302, &format!("Location: {target}")));
        let error = get(&client(config(&server)), server.uri("/")).await.unwrap_err();
        assert!(
            matches!(&error, HttpError::AddressRefused { uri, .. } if *uri == server.uri("/")),
            "{host}: {error:?}"
        );
        assert!(
            described(&error).contains(&format!(":{}/", inside.port())),
            "names where it leads to: {}",
            described(&error)
        );
        assert_eq!(described(&error).contains("-o allow-host="), host != "169.254.169.254", "{error:?}");
        assert_eq!(server.received().len(), 1, "a refusal is not repeated");
    }
    assert_eq!(inside.received().len(), 0);
}

#[tokio::test]
async fn uris_travel_as_they_are_written_here() {
    let server = Server::start(|_| ok(b""));
    let client = client(config(&server));
    for path in [
        "/",
        "//",
        "/a//b/",
        "/?",
        "/a?b?c=/d",
        "/%2F%25%00%5C",
        "/a;b=c,d!$&()*+=:@~-._'",
        "/%C3%BC%20%22%3C%3E%60%7B%7C%7D%5E%5B%5D",
        "/?x=%27%22%20+&y[]=1",
        "/a b|c^d`e{f}",
        "/ü?ü",
    ] {
        let uri = server.uri(path);
        get(&client, uri.clone()).await.unwrap().1.unwrap();
        let sent = server.received().pop().unwrap().path;
        assert_eq!(format!("http://{}{sent}", server.authority()), uri.as_str());
    }
}
