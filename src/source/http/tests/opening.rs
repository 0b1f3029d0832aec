//! How many connections a host has open at once, as it counts them itself, and which of them are known to come back.

use super::certificates::{CA, server_config};
use super::server::Act;
use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const PLACES: usize = 8;

/// A server to which it takes longer to connect than it takes to answer: over TLS from afar it is three round trips to one.
struct Afar {
    authority: Box<str>,
    open: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Afar {
    fn start(to_connect: Duration, to_answer: Duration) -> Afar {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let afar = Afar {
            authority: listener.local_addr().unwrap().to_string().into(),
            open: Arc::default(),
            most: Arc::default(),
        };
        let (open, most) = (Arc::clone(&afar.open), Arc::clone(&afar.most));
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let now = open.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                let open = Arc::clone(&open);
                std::thread::spawn(move || {
                    std::thread::sleep(to_connect);
                    // Whoever leaves ends the conversation, not the test.
                    let _ = answer(connection, to_answer);
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        afar
    }
}

fn answer(connection: TcpStream, to_answer: Duration) -> std::io::Result<()> {
    let mut config = Arc::unwrap_or_clone(server_config(false));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let session = rustls::ServerConnection::new(Arc::new(config)).unwrap();
    let mut stream = rustls::StreamOwned::new(session, connection);
    let mut head = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        let count = stream.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        head.extend_from_slice(&bytes[..count]);
        while let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            head.drain(..end + 4);
            std::thread::sleep(to_answer);
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")?;
            stream.flush()?;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http_1_1_there_are_no_more_connections_than_places() {
    let afar = Afar::start(Duration::from_millis(100), Duration::from_millis(10));
    let config = HttpConfig {
        own_authority: Some(afar.authority.clone()),
        ca_bundle: Some(CA.into()),
        connections: PLACES,
        ..HttpConfig::default()
    };
    let client = client(config);
    let uri = Uri::parse(&format!("https://{}/", afar.authority)).unwrap();

    let readers: Vec<_> = (0..4 * PLACES)
        .map(|_| {
            let (client, uri) = (client.clone(), uri.clone());
            tokio::spawn(async move {
                for _ in 0..20 {
                    assert_eq!(get(&client, uri.clone()).await.unwrap().1.unwrap(), b"hello");
                }
            })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }

    let most = afar.most.load(Ordering::SeqCst);
    assert!(most > PLACES / 2 && most <= 3 * PLACES / 2, "{most} at once for {PLACES} places");
}

#[tokio::test]
async fn a_connection_is_given_back_when_all_of_its_answer_is_here_and_it_serves_others() {
    let said = |answer: &str| vec![Act::Send(answer.replace('\n', "\r\n").into_bytes()), Act::Close];
    let server = TestServer::start(move |request| match &*request.path {
        "/closes" => said("HTTP/1.1 200 OK\nContent-Length: 5\nConnection: keep-alive, Close\n\nhello"),
        "/old" => said("HTTP/1.0 200 OK\nContent-Length: 5\n\nhello"),
        "/endless" => said("HTTP/1.1 200 OK\n\nhello"),
        "/chunked" => said("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n5\nhello\n0\n\n"),
        "/cut" => said("HTTP/1.1 200 OK\nContent-Length: 9\n\nhello"),
        _ if request.method == "HEAD" => ok(b""),
        _ => ok(b"hello"),
    });
    let given_back = async |path: &str, pieces: usize| {
        let client = client(config(&server));
        let mut response = client.send(Request::get(server.uri(path), PLENTY)).await.unwrap();
        for _ in 0..pieces {
            // Some of these end with an error.
            let _ = response.body.chunk().await;
        }
        drop(response);
        client.opening(&server.uri(path)).given_back()
    };

    assert_eq!(given_back("/", 2).await, 1, "read to its end");
    assert_eq!(given_back("/", 1).await, 1, "all of it was read, and nobody looked whether that was the end");
    assert_eq!(given_back("/", 0).await, 0, "nothing of it was read");
    assert_eq!(given_back("/chunked", 2).await, 1);
    assert_eq!(given_back("/chunked", 1).await, 0, "that it was all is not told yet");
    for path in ["/closes", "/old", "/endless", "/cut"] {
        assert_eq!(given_back(path, 2).await, 0, "{path}");
    }

    let client = client(config(&server));
    client.send(Request::head(server.uri("/"), PLENTY)).await.unwrap();
    assert_eq!(client.opening(&server.uri("/")).given_back(), 1, "it has no body");
    get(&client, server.uri("/")).await.unwrap().1.unwrap();
    let is_one = async {
        while client.opening(&server.uri("/")).given_back() != 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PLENTY, is_one).await.expect("it took that and gave it back");
}
