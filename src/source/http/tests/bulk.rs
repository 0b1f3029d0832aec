//! Ranges of something large, asked for at once of a host whose requests share a connection.

use super::certificates::{CA, CLIENT, server_config};
use super::*;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request as Asking, Response as Answering};
use hyper_util::rt::{TokioExecutor, TokioIo};
use reqwest::Version;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio_rustls::TlsAcceptor;

const ALL: &[&str] = &["h2", "http/1.1"];

/// Bytes of a range, and of all.
const RANGE: u64 = 1000;
const TOTAL: u64 = 100_000_000;

/// A request as it came.
#[derive(Clone, Debug)]
struct Asked {
    connection: usize,
    version: Version,
    range: Option<(u64, u64)>,
    authorization: Option<String>,
}

/// What a host is like.
#[derive(Clone)]
struct Manner {
    protocols: &'static [&'static str],
    /// Connections open at once.
    most: usize,
    /// Whether further ones are left without an answer rather than closed.
    is_silent: bool,
    with_client: bool,
    /// So many ranges are under way before one of them is answered.
    together: usize,
    /// What a request is answered with.
    status: fn(&Asked) -> u16,
}

const USUAL: Manner = Manner {
    protocols: ALL,
    most: usize::MAX,
    is_silent: false,
    with_client: false,
    together: 1,
    status: |asked| if asked.range.is_some() { 206 } else { 200 },
};

/// A host over TLS that notes over which connection it is asked.
struct Host {
    authority: Box<str>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    asked: Mutex<Vec<Asked>>,
    opened: AtomicUsize,
    open: AtomicUsize,
    most_open: AtomicUsize,
}

impl Host {
    async fn start(manner: Manner) -> Host {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let authority = listener.local_addr().unwrap().to_string().into();
        let mut tls = Arc::unwrap_or_clone(server_config(manner.with_client));
        tls.alpn_protocols = manner.protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let (tls, together) = (TlsAcceptor::from(Arc::new(tls)), Arc::new(Barrier::new(manner.together)));
        let seen = Arc::new(Seen::default());
        let host = Host { authority, seen: Arc::clone(&seen) };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let connection = seen.opened.fetch_add(1, Ordering::SeqCst);
                let open = seen.open.fetch_add(1, Ordering::SeqCst) + 1;
                seen.most_open.fetch_max(open, Ordering::SeqCst);
                let (seen, together, tls, manner) =
                    (Arc::clone(&seen), Arc::clone(&together), tls.clone(), manner.clone());
                tokio::spawn(async move {
                    if open > manner.most && manner.is_silent {
                        let mut stream = stream;
                        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                    } else if open <= manner.most {
                        if let Ok(stream) = tls.accept(stream).await {
                            let is_shared = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                            let service =
                                service_fn(|asking| answer(asking, connection, &seen, &together, manner.status));
                            // A client that leaves ends the conversation, not the test.
                            let _ = if is_shared {
                                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                                let shared = (Arc::clone(&seen), Arc::clone(&together), manner.status);
                                let service = service_fn(move |asking| {
                                    let (seen, together, status) = shared.clone();
                                    async move { answer(asking, connection, &seen, &together, status).await }
                                });
                                server.serve_connection(TokioIo::new(stream), service).await
                            } else {
                                let server = hyper::server::conn::http1::Builder::new();
                                server.serve_connection(TokioIo::new(stream), service).await
                            };
                        }
                    }
                    seen.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        host
    }

    fn uri(&self) -> Uri {
        Uri::parse(&format!("https://{}/large", self.authority)).unwrap()
    }

    fn config(&self) -> HttpConfig {
        HttpConfig {
            own_authority: Some(format!("https://{}", self.authority).into()),
            ca_bundle: Some(CA.into()),
            ..HttpConfig::default()
        }
    }

    fn asked(&self) -> Vec<Asked> {
        self.seen.asked.lock().unwrap().clone()
    }

    fn opened(&self) -> usize {
        self.seen.opened.load(Ordering::SeqCst)
    }
}

async fn answer(
    asking: Asking<Incoming>,
    connection: usize,
    seen: &Seen,
    together: &Barrier,
    status: fn(&Asked) -> u16,
) -> Result<Answering<reqwest::Body>, hyper::http::Error> {
    let field = |name: &str| Some(asking.headers().get(name)?.to_str().ok()?.to_owned());
    let range = field("range").and_then(|range| {
        let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    });
    let asked = Asked { connection, version: asking.version(), range, authorization: field("authorization") };
    seen.asked.lock().unwrap().push(asked.clone());
    let answering = Answering::builder().status(status(&asked)).header("etag", "\"v1\"");
    match (status(&asked), range) {
        (206, Some((first, last))) => {
            together.wait().await;
            let bytes: Vec<u8> = (first..=last).map(|at| (at % 251) as u8).collect();
            answering.header("content-range", format!("bytes {first}-{last}/{TOTAL}")).body(bytes.into())
        }
        (200, _) => answering.body("small".into()),
        (503, _) => answering.header("retry-after", "1000").body("".into()),
        _ => answering.body("".into()),
    }
}

/// Asks for so many ranges at once; what each came to.
async fn ranges(client: &Client, uri: &Uri, count: u64) -> Vec<Result<(), HttpError>> {
    let asking: Vec<_> = (0..count)
        .map(|number| {
            let (first, last) = (number * RANGE, (number + 1) * RANGE - 1);
            let (range, if_range) = (Some((first, Some(last))), Some("\"v1\"".into()));
            let usual = Request::get(uri.clone(), PLENTY / 2);
            let request = Request { range, if_range, way: Way::Ranges, repeats: false, ..usual };
            let client = client.clone();
            tokio::spawn(async move {
                let mut response = client.send(request).await?;
                assert_eq!(response.status, Status::Partial { first, last, total: Some(TOTAL) });
                let bytes = read(&mut response.body).await?;
                assert!(bytes.iter().copied().eq((first..=last).map(|at| (at % 251) as u8)));
                Ok(())
            })
        })
        .collect();
    let mut outcomes = Vec::new();
    for one in asking {
        outcomes.push(one.await.unwrap());
    }
    outcomes
}

fn connections(asked: &[Asked]) -> BTreeSet<usize> {
    asked.iter().map(|asked| asked.connection).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_goes_over_a_connection_of_its_own_and_all_else_over_one() {
    let host = Host::start(Manner { together: 6, ..USUAL }).await;
    let headers = vec![("Authorization".into(), "Bearer TOKEN".into())];
    let client = client(HttpConfig { credentials: Credentials { headers, ..Credentials::default() }, ..host.config() });
    get(&client, host.uri()).await.unwrap().1.unwrap();

    for _ in 0..3 {
        assert!(ranges(&client, &host.uri(), 6).await.iter().all(Result::is_ok));
        get(&client, host.uri()).await.unwrap().1.unwrap();
    }

    let (ranges, others): (Vec<_>, Vec<_>) = host.asked().into_iter().partition(|asked| asked.range.is_some());
    assert_eq!(ranges.len(), 18, "none is asked for twice");
    assert!(ranges.iter().all(|asked| asked.version == Version::HTTP_11));
    assert!(others.iter().all(|asked| asked.version == Version::HTTP_2));
    assert_eq!((connections(&ranges).len(), connections(&others).len()), (6, 1), "idle ones are used again");
    assert!(connections(&ranges).is_disjoint(&connections(&others)));
    assert!(ranges.iter().chain(&others).all(|asked| asked.authorization.as_deref() == Some("Bearer TOKEN")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_no_more_such_connections_than_permits() {
    const PERMITS: usize = 3;
    let host = Host::start(Manner { together: PERMITS, ..USUAL }).await;
    let client = client(HttpConfig { connections: PERMITS, ..host.config() });
    get(&client, host.uri()).await.unwrap().1.unwrap();

    assert!(ranges(&client, &host.uri(), 8 * PERMITS as u64).await.iter().all(Result::is_ok));

    assert_eq!(host.seen.most_open.load(Ordering::SeqCst), PERMITS + 1, "and the one for all else");
}

#[tokio::test]
async fn over_http_1_1_there_is_one_pool() {
    let host = Host::start(Manner { protocols: &["http/1.1"], ..USUAL }).await;
    let client = client(host.config());
    for _ in 0..3 {
        get(&client, host.uri()).await.unwrap().1.unwrap();
        assert!(ranges(&client, &host.uri(), 1).await[0].is_ok());
    }
    assert_eq!(host.opened(), 1);
}

#[tokio::test]
async fn the_client_certificate_is_shown_there_too() {
    let host = Host::start(Manner { with_client: true, ..USUAL }).await;
    let client = client(HttpConfig { credentials: identity(CLIENT), ..host.config() });
    get(&client, host.uri()).await.unwrap().1.unwrap();
    assert!(ranges(&client, &host.uri(), 1).await[0].is_ok());
    let versions: Vec<_> = host.asked().iter().map(|asked| asked.version).collect();
    assert_eq!(versions, [Version::HTTP_2, Version::HTTP_11]);
}

/// A proxy that connects every client, and counts them.
async fn proxy() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let connected = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connected);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(near.read_u8().await?);
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                let mut far = TcpStream::connect(head.split(' ').nth(1).unwrap_or_default()).await?;
                near.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await?;
                tokio::io::copy_bidirectional(&mut near, &mut far).await
            });
        }
    });
    (address, connected)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_go_through_a_proxy_too() {
    let host = Host::start(Manner { together: 4, ..USUAL }).await;
    let (https, connected) = proxy().await;
    let settings = ProxySettings { https: proxy_at(&https), ..ProxySettings::default() };
    let client = Client::with_proxies(host.config(), &settings).unwrap();
    get(&client, host.uri()).await.unwrap().1.unwrap();

    assert!(ranges(&client, &host.uri(), 4).await.iter().all(Result::is_ok));

    assert_eq!((connected.load(Ordering::SeqCst), host.opened()), (5, 5));
}

/// Promise: no reader sees an error, and a host that refuses is not asked for it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_host_does_not_take_comes_over_the_connection_for_all() {
    let asks_to_upgrade: fn(&Asked) -> u16 = |asked| match asked.range {
        Some(_) if asked.version == Version::HTTP_11 => 426,
        Some(_) => 206,
        None => 200,
    };
    let is_forbidden: fn(&Asked) -> u16 = |asked| match asked.version {
        Version::HTTP_11 => 403,
        _ => (USUAL.status)(asked),
    };
    let manners = [
        ("it speaks HTTP/2 alone", Manner { protocols: &["h2"], ..USUAL }),
        ("it closes further connections", Manner { most: 1, ..USUAL }),
        ("it leaves further connections without an answer", Manner { most: 1, is_silent: true, ..USUAL }),
        ("it asks for another protocol", Manner { status: asks_to_upgrade, ..USUAL }),
        ("it forbids the other protocol", Manner { status: is_forbidden, ..USUAL }),
    ];
    for (what, manner) in manners {
        let host = Host::start(manner).await;
        let client = client(host.config());
        get(&client, host.uri()).await.unwrap().1.unwrap();
        for _ in 0..3 {
            let outcomes = ranges(&client, &host.uri(), 7).await;
            assert!(outcomes.iter().all(Result::is_ok), "{what}: {outcomes:?}");
        }
        get(&client, host.uri()).await.unwrap().1.unwrap();

        let opened = host.opened();
        assert!(opened > 1 && opened <= 8, "{what}: {opened} connections");
        let over_all = host.asked().iter().filter(|asked| asked.version == Version::HTTP_2).count();
        assert_eq!(over_all, 2 + 21, "{what}");
        let traffic = &client.traffic()[0];
        assert_eq!((traffic.failures_in_a_row, traffic.opens_in), (0, None), "{what}: {traffic:?}");
    }
}

/// As a host does that closes idle connections, where the next range is on its way to it.
#[tokio::test]
async fn a_closed_connection_refuses_no_range_once_one_was_answered() {
    let closes: fn(&Asked) -> u16 = |asked| match asked.range {
        // No status: the connection is closed.
        Some((RANGE, _)) if asked.version == Version::HTTP_11 => 0,
        _ => (USUAL.status)(asked),
    };
    let host = Host::start(Manner { status: closes, ..USUAL }).await;
    let client = client(host.config());
    get(&client, host.uri()).await.unwrap().1.unwrap();
    for _ in 0..2 {
        assert!(ranges(&client, &host.uri(), 1).await[0].is_ok());
        assert!(ranges(&client, &host.uri(), 2).await[1].is_ok(), "over the connection for all");
    }

    let of_first = host.asked().into_iter().filter(|asked| asked.range.is_some_and(|range| range.0 == 0));
    assert!(of_first.map(|asked| asked.version).eq([Version::HTTP_11; 4]));
    let of_second = host.asked().into_iter().filter(|asked| asked.range.is_some_and(|range| range.0 == RANGE));
    assert_eq!(of_second.filter(|asked| asked.version == Version::HTTP_2).count(), 2);
}

#[tokio::test]
async fn a_refusal_over_both_is_an_error_and_refuses_no_further_range() {
    let is_gone: fn(&Asked) -> u16 = |asked| match asked.range {
        Some((0, _)) => 404,
        Some(_) => 206,
        None => 200,
    };
    let host = Host::start(Manner { status: is_gone, ..USUAL }).await;
    let client = client(host.config());
    get(&client, host.uri()).await.unwrap().1.unwrap();

    assert!(ranges(&client, &host.uri(), 1).await.remove(0).is_err_and(|error| error.is_gone()));
    assert!(ranges(&client, &host.uri(), 2).await[1].is_ok());

    let came_over = |first| {
        let asked = host.asked().into_iter().filter(move |asked| asked.range.is_some_and(|range| range.0 == first));
        asked.map(|asked| asked.version).collect::<Vec<_>>()
    };
    let both = [Version::HTTP_11, Version::HTTP_2];
    assert_eq!((came_over(0), came_over(RANGE)), ([both, both].concat(), vec![Version::HTTP_11]));
}

#[tokio::test]
async fn a_host_that_asks_for_a_pause_gets_it() {
    let is_busy: fn(&Asked) -> u16 = |asked| if asked.range.is_some() { 503 } else { 200 };
    let host = Host::start(Manner { status: is_busy, ..USUAL }).await;
    let client = client(HttpConfig { patience: Duration::ZERO, ..host.config() });
    get(&client, host.uri()).await.unwrap().1.unwrap();

    for _ in 0..3 {
        assert!(ranges(&client, &host.uri(), 1).await[0].is_err());
    }

    assert_eq!(host.asked().len(), 2, "nothing is sent while it wants to be left alone: {:?}", host.asked());
    assert!(client.traffic()[0].paused_for.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_bodies_stop_no_others_of_their_connection() {
    const LARGE: u64 = 4 << 20;
    let host = Host::start(USUAL).await;
    let client = client(HttpConfig { connections: 16, ..host.config() });
    let large = Request { range: Some((0, Some(LARGE - 1))), ..Request::get(host.uri(), PLENTY) };
    let mut unread = Vec::new();
    for _ in 0..8 {
        unread.push(client.send(large.clone()).await.unwrap());
    }

    let mut response = client.send(large).await.unwrap();
    let bytes = tokio::time::timeout(PLENTY / 2, read(&mut response.body)).await.expect("it is not stopped");

    assert_eq!(bytes.unwrap().len() as u64, LARGE);
    let asked = host.asked();
    assert!(asked.iter().all(|asked| asked.version == Version::HTTP_2));
    assert_eq!((asked.len(), connections(&asked).len()), (9, 1));
}
