//! Who is reached, and with what: addresses, rewriting, credentials, proxies.

use super::certificates::{CA, server_config};
use super::*;
use crate::source::tests::server::{Act, Server, ok, status};

#[tokio::test]
async fn a_private_address_is_reached_as_own_or_when_allowed() {
    let server = Server::start(|_| ok(b"inside"));
    let stranger = client(HttpConfig::default());
    let error = get(&stranger, server.uri("/")).await.unwrap_err();
    assert!(matches!(error, HttpError::AddressRefused { .. }), "{error:?}");

    assert!(get(&stranger.with_own_authority(&server.authority()), server.uri("/")).await.is_ok());
    let allowed = HttpConfig { allowed_hosts: vec!["127.0.0.1".into()], ..HttpConfig::default() };
    assert!(get(&client(allowed), server.uri("/")).await.is_ok());
    let by_name = HttpConfig { allowed_hosts: vec!["localhost".into()], ..HttpConfig::default() };
    let uri = Uri::parse(&format!("http://localhost:{}/", server.port())).unwrap();
    assert!(get(&client(by_name), uri.clone()).await.is_ok());
    // A name of this machine is refused as its address is.
    let error = get(&stranger, uri).await.unwrap_err();
    assert!(described(&error).contains("-o allow-host=localhost"), "{error:?}");
}

#[tokio::test]
async fn a_name_without_address_fails_soon_and_says_so() {
    // A label of more than 63 bytes is refused by every resolver without asking anyone.
    let uri = Uri::parse(&format!("http://{}.example/", "a".repeat(64))).unwrap();
    let error = get(&client(HttpConfig::default()), uri).await.unwrap_err();
    assert!(matches!(error, HttpError::Name { .. }), "{error:?}");
}

#[tokio::test]
async fn rewriting_changes_the_address_and_not_the_name() {
    let server = Server::start(|request| if request.path == "/a" { ok(b"here") } else { status(404, "X: y") });
    let rewrites = vec![("http://published.invalid/".into(), server.uri("/").as_str().into())];
    let client = client(HttpConfig { rewrites, ..HttpConfig::default() });

    let (response, bytes) = get(&client, Uri::parse("http://published.invalid/a").unwrap()).await.unwrap();
    assert_eq!(bytes.unwrap(), b"here");
    assert_eq!(response.final_uri, server.uri("/a"));
    let missing = Uri::parse("http://published.invalid/b").unwrap();
    let error = get(&client, missing.clone()).await.unwrap_err();
    assert!(matches!(&error, HttpError::Status { uri, status: 404, .. } if *uri == missing), "{error:?}");
}

fn secretive(own: &Server) -> HttpConfig {
    HttpConfig {
        credentials: Credentials {
            headers: vec![("Authorization".into(), "Bearer SECRET1".into()), ("X-Key".into(), "SECRET2".into())],
            netrc: Some("machine 127.0.0.1 login ann password SECRET3".into()),
            ..Credentials::default()
        },
        allowed_hosts: vec!["127.0.0.1".into()],
        ..config(own)
    }
}

#[tokio::test]
async fn credentials_stay_with_their_host_and_port() {
    let other = Server::always("HTTP/1.1 403 Forbidden\nContent-Length: 0", b"");
    let target = other.uri("/there");
    let own = Server::start(move |_| status(302, &format!("Location: {target}")));
    let config = secretive(&own);
    let debug = format!("{config:?}");
    let client = client(config);

    let error = get(&client, own.uri("/here")).await.unwrap_err();

    assert_eq!(error.status(), Some(403));
    assert_eq!(own.received()[0].field("authorization"), Some("Bearer SECRET1"));
    assert_eq!(own.received()[0].field("x-key"), Some("SECRET2"));
    let strange = &other.received()[0].head;
    assert!(!strange.contains("SECRET") && !strange.to_ascii_lowercase().contains("authorization"), "{strange}");
    for text in [described(&error), debug, format!("{client:?}")] {
        assert!(!text.contains("SECRET"), "{text}");
    }
}

#[tokio::test]
async fn no_failure_contains_credentials() {
    for answer in [
        &b"HTTP/1.1 abc\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"",
        b"HTTP/1.1 206 P\r\n\r\n",
    ] {
        let server = Server::start(move |_| vec![Act::Send(answer.to_vec()), Act::Close]);
        let request = Request::get(server.uri("/"), Duration::from_millis(300));
        let error = match client(secretive(&server)).send(request).await {
            Ok(mut response) => read(&mut response.body).await.unwrap_err(),
            Err(error) => error,
        };
        assert!(!described(&error).contains("SECRET"), "{error:?}");
    }
    let headers = vec![("Authorization".into(), "Bearer SECRET\n".repeat(2).into())];
    let credentials = Credentials { headers, ..Credentials::default() };
    let refused = Client::with_proxies(HttpConfig { credentials, ..HttpConfig::default() }, &ProxySettings::default());
    assert!(!described(&refused.unwrap_err()).contains("SECRET"));
}

#[tokio::test]
async fn netrc_serves_the_source_where_no_field_does() {
    let server = Server::start(|_| ok(b""));
    let netrc = Some("machine 127.0.0.1 login ann password pw".into());
    let credentials = Credentials { netrc, ..Credentials::default() };
    get(&client(HttpConfig { credentials, ..config(&server) }), server.uri("/")).await.unwrap().1.unwrap();
    assert_eq!(server.received()[0].field("authorization"), Some("Basic YW5uOnB3"));
}

#[tokio::test]
async fn a_source_over_https_gets_no_credentials_over_http() {
    let server = Server::start(|_| ok(b""));
    let own = format!("HTTPS://{}", server.authority());
    let client = client(HttpConfig { own_authority: Some(own.as_str().into()), ..secretive(&server) });
    get(&client, server.uri("/")).await.unwrap().1.unwrap();
    get(&client.with_own_authority(&own), server.uri("/")).await.unwrap().1.unwrap();
    assert!(server.received().iter().all(|request| !request.head.contains("SECRET")));
}

/// The entry point's host has moved (`example.org` to `www.example.org`): its new name is no reason to forget the scheme.
#[tokio::test]
async fn a_moved_https_source_gets_no_credentials_over_http() {
    let tls = Server::start_with(Some(server_config(false)), |_| ok(b""));
    let (plain, moved) = (Server::start(|_| ok(b"")), Server::start(|_| ok(b"")));
    let config = HttpConfig { ca_bundle: Some(CA.into()), ..secretive(&tls) };
    let own = format!("https://{}", tls.authority());
    let (over_https, early) =
        (client(HttpConfig { own_authority: Some(own.as_str().into()), ..config.clone() }), client(config));
    for place in [&plain, &moved] {
        over_https.move_to(&place.authority());
        get(&over_https.with_own_authority(&place.authority()), place.uri("/list")).await.unwrap().1.unwrap();
        get(&over_https, place.uri("/list")).await.unwrap().1.unwrap();
    }
    // An entry point over http may lead to https, and stays there.
    early.move_to(&own);
    early.move_to(&format!("http://{}", moved.authority()));
    get(&early, Uri::parse(&own).unwrap()).await.unwrap().1.unwrap();
    get(&early, moved.uri("/list")).await.unwrap().1.unwrap();

    let received = [plain.received(), moved.received()].concat();
    assert_eq!(received.len(), 5);
    assert!(received.iter().all(|request| !request.head.contains("SECRET")), "{received:?}");
    assert!(tls.received().iter().all(|request| request.field("x-key") == Some("SECRET2")));
}

#[tokio::test]
async fn a_proxy_is_asked_for_everything_but_its_exceptions() {
    let proxy = Server::start(|_| ok(b"by proxy"));
    let server = Server::start(|_| ok(b"direct"));
    let settings = ProxySettings {
        http: proxy_at(&format!("http://user:pass@127.0.0.1:{}", proxy.port())),
        except: "127.0.0.1".to_owned(),
        ..ProxySettings::default()
    };
    let client = Client::with_proxies(secretive(&server), &settings).unwrap();

    let (_, bytes) = get(&client, Uri::parse("http://repo.example.org/a").unwrap()).await.unwrap();
    assert_eq!(bytes.unwrap(), b"by proxy");
    let (_, bytes) = get(&client, server.uri("/b")).await.unwrap();
    assert_eq!(bytes.unwrap(), b"direct");
    for inside in ["http://10.0.0.1/", "http://localhost/", "http://169.254.169.254/"] {
        let error = get(&client, Uri::parse(inside).unwrap()).await.unwrap_err();
        assert!(matches!(error, HttpError::AddressRefused { .. }), "{error:?}");
    }
    let asked = proxy.received();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].path, "http://repo.example.org/a");
    assert_eq!(asked[0].field("proxy-authorization"), Some("Basic dXNlcjpwYXNz"));
    assert!(!asked[0].head.contains("SECRET"));
}

#[test]
fn a_proxy_that_is_none_is_an_error_without_its_password() {
    for address in ["ftp://user:SECRET@127.0.0.1:1080", "http://user:SECRET@:x", "user:SECRET@pro xy", "socks5h://"] {
        let settings = ProxySettings { https: proxy_at(address), ..ProxySettings::default() };
        let error = Client::with_proxies(HttpConfig::default(), &settings).unwrap_err();
        assert!(matches!(error, HttpError::Config { .. }), "{error:?}");
        let place = address.rsplit(['@', '/']).next().unwrap();
        assert!(described(&error).contains("all_proxy=") && described(&error).contains(place), "{error}");
        assert!(!described(&error).contains("SECRET"), "{error:?}");
    }
}

#[tokio::test]
async fn a_proxy_that_is_gone_is_reported_without_its_password() {
    let gone = Server::start(|_| ok(b""));
    let http = format!("http://user:SECRET@127.0.0.1:{}", gone.port());
    drop(gone);
    let settings = ProxySettings { http: proxy_at(&http), ..ProxySettings::default() };
    let client = Client::with_proxies(HttpConfig::default(), &settings).unwrap();
    let request = Request::get(Uri::parse("http://repo.example.org/").unwrap(), Duration::from_millis(200));
    let error = client.send(request).await.unwrap_err();
    assert!(error.is_retryable());
    assert!(!described(&error).contains("SECRET"), "{error:?}");
}

/// A proxy that speaks SOCKS 5 and serves every address by `server`; counts those that it was given as names.
fn socks(server: &Server) -> (std::net::SocketAddr, std::sync::Arc<std::sync::Mutex<Vec<String>>>) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (address, target) = (listener.local_addr().unwrap(), server.authority());
    let asked = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = std::sync::Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut near in listener.incoming().flatten() {
            let mut greeting = [0; 2];
            near.read_exact(&mut greeting).unwrap();
            near.read_exact(&mut vec![0; greeting[1].into()]).unwrap();
            near.write_all(&[5, 0]).unwrap();
            let mut head = [0; 4];
            near.read_exact(&mut head).unwrap();
            let mut rest = match head[3] {
                1 => vec![0; 6],
                3 => {
                    let mut length = [0];
                    near.read_exact(&mut length).unwrap();
                    vec![0; usize::from(length[0]) + 2]
                }
                other => panic!("address of kind {other}"),
            };
            near.read_exact(&mut rest).unwrap();
            let place = match head[3] {
                1 => format!("{}.{}.{}.{}", rest[0], rest[1], rest[2], rest[3]),
                _ => String::from_utf8(rest[..rest.len() - 2].to_vec()).unwrap(),
            };
            noted.lock().unwrap().push(place);
            near.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
            let far = std::net::TcpStream::connect(&*target).unwrap();
            let (mut back_from, mut back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
            std::thread::spawn(move || std::io::copy(&mut { near }, &mut { far }));
        }
    });
    (address, asked)
}

#[tokio::test]
async fn socks_proxies_are_used_and_with_socks5_addresses_are_checked() {
    let server = Server::start(|_| ok(b"by proxy"));
    let (address, asked) = socks(&server);
    let through = |scheme: &str| {
        let proxy = proxy_at(&format!("{scheme}://{address}"));
        let settings = ProxySettings { http: proxy.clone(), https: proxy, ..ProxySettings::default() };
        let allowed_hosts = vec!["localhost".into()];
        Client::with_proxies(HttpConfig { allowed_hosts, ..HttpConfig::default() }, &settings).unwrap()
    };
    let (inside, outside) = (Uri::parse("http://localhost/").unwrap(), Uri::parse("http://repo.example.org/").unwrap());
    // The proxy looks the name up.
    assert_eq!(get(&through("socks5h"), outside).await.unwrap().1.unwrap(), b"by proxy");
    // This machine does.
    assert_eq!(get(&through("socks5"), inside).await.unwrap().1.unwrap(), b"by proxy");
    assert_eq!(*asked.lock().unwrap(), ["repo.example.org", "127.0.0.1"]);
    let error = get(&through("socks5"), Uri::parse("http://127.0.0.2/").unwrap()).await.unwrap_err();
    assert!(matches!(error, HttpError::AddressRefused { .. }), "{error:?}");
}

#[tokio::test]
async fn an_asterisk_in_no_proxy_stands_for_all_hosts() {
    let server = Server::start(|_| ok(b"direct"));
    for except in ["*", "example.org, *"] {
        for address in ["socks5h://127.0.0.1:1", "http://127.0.0.1:1", "nonsense://x"] {
            let http = proxy_at(address);
            let settings = ProxySettings { http, except: except.to_owned(), ..ProxySettings::default() };
            let client = Client::with_proxies(config(&server), &settings).unwrap();
            assert_eq!(get(&client, server.uri("/")).await.unwrap().1.unwrap(), b"direct");
        }
    }
}

#[tokio::test]
async fn the_user_agent_has_the_contact() {
    let server = Server::start(|_| ok(b""));
    let credentials = Credentials { contact: Some("mailto:ann@example.org".into()), ..Credentials::default() };
    get(&client(HttpConfig { credentials, ..config(&server) }), server.uri("/")).await.unwrap().1.unwrap();
    assert!(server.received()[0].field("user-agent").unwrap().ends_with(") mailto:ann@example.org"));
}

#[test]
fn a_config_is_printed_without_what_it_holds() {
    let secret = "http://user:SECRET@host/";
    let config = HttpConfig {
        rewrites: vec![("http://host/".into(), secret.into())],
        ca_bundle: Some(b"SECRET".into()),
        ..HttpConfig::default()
    };
    let printed = format!("{config:?}");
    assert!(!printed.contains("SECRET") && !printed.contains("83, 69"), "{printed}");
}
