//! Certificates, theirs and ours.

use super::certificates::{CA, CLIENT, SELF_SIGNED, SELF_SIGNED_LONG_AGO, self_signed_config, server_config};
use super::*;
use crate::source::tests::server::{Server, ok};
use std::io::{Read, Write};
use std::sync::Arc;

fn https(server: &Server) -> Uri {
    Uri::parse(&format!("https://{}/", server.authority())).unwrap()
}

#[tokio::test]
async fn a_private_ca_is_trusted_when_named_and_only_for_its_names() {
    let server = Server::start_with(Some(server_config(false)), |_| ok(b"sealed"));
    let trusting =
        HttpConfig { ca_bundle: Some(CA.into()), allowed_hosts: vec!["localhost".into()], ..config(&server) };
    let trusting = client(trusting);
    assert_eq!(get(&trusting, https(&server)).await.unwrap().1.unwrap(), b"sealed");

    let error = get(&client(config(&server)), https(&server)).await.unwrap_err();
    assert!(matches!(error, HttpError::Tls { .. }), "{error:?}");
    let other_name = Uri::parse(&format!("https://localhost:{}/", server.port())).unwrap();
    let error = get(&trusting, other_name).await.unwrap_err();
    assert!(matches!(error, HttpError::Tls { .. }), "{error:?}");
    assert_eq!(server.received().len(), 1);
}

/// As curl trusts it: byte for byte the one that is named, for its names and its time.
#[tokio::test]
async fn a_named_certificate_is_trusted_by_itself() {
    let now = Server::start_with(Some(self_signed_config(SELF_SIGNED)), |_| ok(b"sealed"));
    let past = Server::start_with(Some(self_signed_config(SELF_SIGNED_LONG_AGO)), |_| ok(b"sealed"));
    let naming = |server: &Server, pem: &str| {
        let ca_bundle = Some([CA, pem].concat().into());
        client(HttpConfig { ca_bundle, allowed_hosts: vec!["localhost".into()], ..config(server) })
    };
    let trusting = naming(&now, SELF_SIGNED);
    assert_eq!(get(&trusting, https(&now)).await.unwrap().1.unwrap(), b"sealed");

    let other_name = Uri::parse(&format!("https://localhost:{}/", now.port())).unwrap();
    for (client, uri) in [
        (trusting, other_name),
        (naming(&now, ""), https(&now)),
        (naming(&now, SELF_SIGNED_LONG_AGO), https(&now)),
        (naming(&past, SELF_SIGNED_LONG_AGO), https(&past)),
    ] {
        let error = get(&client, uri).await.unwrap_err();
        assert!(matches!(error, HttpError::Tls { .. }), "{error:?}");
    }
    assert_eq!((now.received().len(), past.received().len()), (1, 0));
}

#[tokio::test]
async fn the_client_certificate_is_shown_to_the_source_alone() {
    let server = Server::start_with(Some(server_config(true)), |_| ok(b"for members"));
    let member = HttpConfig {
        ca_bundle: Some(CA.into()),
        credentials: identity(CLIENT),
        allowed_hosts: vec!["127.0.0.1".into()],
        ..config(&server)
    };
    let stranger = HttpConfig { own_authority: Some("repo.example.org".into()), ..member.clone() };

    assert_eq!(get(&client(member), https(&server)).await.unwrap().1.unwrap(), b"for members");
    let error = get(&client(stranger), https(&server)).await.unwrap_err();
    assert!(matches!(error, HttpError::Tls { .. }), "{error:?}");
    assert_eq!(server.received().len(), 1);
}

#[tokio::test]
async fn a_client_certificate_that_was_replaced_is_shown_from_then_on() {
    let server = Server::start_with(Some(server_config(true)), |_| ok(b"for members"));
    let config = HttpConfig {
        ca_bundle: Some(CA.into()),
        credentials: Credentials { changed: Some(Arc::new(|| Some(identity(CLIENT)))), ..Credentials::default() },
        ..config(&server)
    };

    assert_eq!(get(&client(config), https(&server)).await.unwrap().1.unwrap(), b"for members");
}

#[tokio::test]
async fn plain_http_where_tls_belongs_is_an_error_at_once() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let authority: Box<str> = listener.local_addr().unwrap().to_string().into();
    let served = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        connection
    });
    let uri = Uri::parse(&format!("https://{authority}/")).unwrap();
    let config = HttpConfig { own_authority: Some(authority), ..HttpConfig::default() };
    let error = get(&client(config), uri).await.unwrap_err();
    assert!(matches!(error, HttpError::Tls { .. }), "{error:?}");
    drop(served.join());
}

#[test]
fn broken_certificates_are_found_at_the_start() {
    for pem in [&b""[..], b"no PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let bundle = HttpConfig { ca_bundle: Some(pem.to_vec()), ..HttpConfig::default() };
        let identity = HttpConfig { credentials: identity(pem), ..HttpConfig::default() };
        for config in [bundle, identity] {
            let error = Client::with_proxies(config, &ProxySettings::default()).unwrap_err();
            assert!(matches!(error, HttpError::Config { .. }), "{error:?}");
        }
    }
}

#[tokio::test]
async fn tls_goes_through_a_proxy_that_learns_no_credentials() {
    let server = Server::start_with(Some(server_config(false)), |_| ok(b"tunnelled"));
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let https = format!("http://{}", listener.local_addr().unwrap());
    let target = server.authority();
    let greeting = std::thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            near.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        near.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").unwrap();
        let far = std::net::TcpStream::connect(&*target).unwrap();
        let (mut back_from, mut back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
        std::thread::spawn(move || std::io::copy(&mut { near }, &mut { far }));
        String::from_utf8(head).unwrap()
    });
    let headers = vec![("Authorization".into(), "Bearer SECRET".into())];
    let credentials = Credentials { headers, ..Credentials::default() };
    let config = HttpConfig { ca_bundle: Some(CA.into()), credentials, ..config(&server) };
    let client =
        Client::with_proxies(config, &ProxySettings { https: proxy_at(&https), ..ProxySettings::default() }).unwrap();

    assert_eq!(get(&client, self::https(&server)).await.unwrap().1.unwrap(), b"tunnelled");
    let greeting = greeting.join().unwrap();
    assert!(greeting.starts_with(&format!("CONNECT {} HTTP/1.1\r\n", server.authority())), "{greeting}");
    assert!(!greeting.contains("SECRET"), "{greeting}");
    assert_eq!(server.received()[0].field("authorization"), Some("Bearer SECRET"));
}
