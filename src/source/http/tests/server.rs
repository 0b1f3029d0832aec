//! A server on loopback that sends exactly the bytes of the test, true or not.

use crate::document::Uri;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the server does next on a connection.
pub(super) enum Act {
    Send(Vec<u8>),
    Wait(Duration),
    /// Closes the connection; without it the next request is awaited.
    Close,
    /// Says nothing more until the client closes.
    Hang,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(super) struct Received {
    /// From 0, over all connections.
    pub(super) number: usize,
    pub(super) method: String,
    pub(super) path: String,
    /// The whole head, as sent.
    pub(super) head: String,
}

impl Received {
    /// The value of a field, `None` where it was not sent.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Stops listening when dropped.
pub(super) struct TestServer {
    pub(super) port: u16,
    received: Arc<Mutex<Vec<Received>>>,
    is_stopped: Arc<AtomicBool>,
}

impl TestServer {
    /// Answers each request with what `script` returns for it.
    pub(super) fn start(script: impl Fn(&Received) -> Vec<Act> + Send + Sync + 'static) -> TestServer {
        TestServer::start_with(None, script)
    }

    /// The same over TLS.
    pub(super) fn start_with(
        tls: Option<Arc<rustls::ServerConfig>>,
        script: impl Fn(&Received) -> Vec<Act> + Send + Sync + 'static,
    ) -> TestServer {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let received = Arc::new(Mutex::new(Vec::new()));
        let is_stopped = Arc::new(AtomicBool::new(false));
        let script = Arc::new(script);
        let (log, stop) = (Arc::clone(&received), Arc::clone(&is_stopped));
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (script, log, tls) = (Arc::clone(&script), Arc::clone(&log), tls.clone());
                std::thread::spawn(move || {
                    let connection = connection.unwrap();
                    // A client that goes away ends the conversation, not the test.
                    let _ = match tls {
                        Some(tls) => {
                            let session = rustls::ServerConnection::new(tls).unwrap();
                            converse(rustls::StreamOwned::new(session, connection), &*script, &log)
                        }
                        None => converse(connection, &*script, &log),
                    };
                });
            }
        });
        TestServer { port, received, is_stopped }
    }

    /// The same answer to everyone: `head` lines without the last empty one, then `body`; connections are kept.
    pub(super) fn always(head: &str, body: &[u8]) -> TestServer {
        let answer = answer(head, body);
        TestServer::start(move |_| vec![Act::Send(answer.clone())])
    }

    pub(super) fn uri(&self, path: &str) -> Uri {
        Uri::parse(&format!("http://127.0.0.1:{}{path}", self.port)).unwrap()
    }

    pub(super) fn authority(&self) -> Box<str> {
        format!("127.0.0.1:{}", self.port).into()
    }

    pub(super) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// A head (its first line and fields, separated by `\n`) and a body as sent over the wire.
pub(super) fn answer(head: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = head.lines().flat_map(|line| [line.trim(), "\r\n"]).collect::<String>().into_bytes();
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}

/// 200 with its true length.
pub(super) fn ok(body: &[u8]) -> Vec<Act> {
    vec![Act::Send(answer(&format!("HTTP/1.1 200 OK\nContent-Length: {}", body.len()), body))]
}

/// An empty answer of that status with one more field line.
pub(super) fn status(code: u16, field: &str) -> Vec<Act> {
    vec![Act::Send(answer(&format!("HTTP/1.1 {code} Some\nContent-Length: 0\n{field}"), b""))]
}

fn converse(
    mut connection: impl Read + Write,
    script: &dyn Fn(&Received) -> Vec<Act>,
    log: &Mutex<Vec<Received>>,
) -> std::io::Result<()> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if connection.read(&mut byte)? == 0 {
                return Ok(());
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
        let request = {
            let mut log = log.lock().unwrap();
            let request = Received { number: log.len(), method, path, head };
            log.push(request.clone());
            request
        };
        for act in script(&request) {
            match act {
                Act::Send(bytes) => connection.write_all(&bytes)?,
                Act::Wait(time) => std::thread::sleep(time),
                Act::Close => return Ok(()),
                Act::Hang => {
                    while connection.read(&mut [0; 64])? > 0 {}
                    return Ok(());
                }
            }
        }
    }
}
