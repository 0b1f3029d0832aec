//! An HTTP/1.1 server on loopback that sends exactly what a test scripts, true or not. Unit tests use it too.
//!
//! Bytes are written by hand on purpose: no HTTP library would send what broken servers send.

use bytes::Bytes;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Received {
    /// From 0, over all connections.
    pub number: usize,
    pub method: String,
    /// Path and query; of a request to a proxy too.
    pub path: String,
    /// The whole head, as sent.
    pub head: String,
    /// Requests under way when it came, itself included.
    pub busy: usize,
}

impl Received {
    /// The value of a field, `None` where it was not sent.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The bytes asked for of a body of that length.
    pub fn range(&self, length: usize) -> Option<Range<usize>> {
        let (first, last) = self.field("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let end = last.parse().map_or(length, |last: usize| last + 1);
        Some(match first.parse() {
            Ok(first) => first..end.min(length),
            // The last bytes.
            Err(_) => length.saturating_sub(end - 1)..length,
        })
    }

    pub fn is_head(&self) -> bool {
        self.method == "HEAD"
    }
}

/// Opened once, by the test.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    pub fn pass(&self) {
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |open| !*open).unwrap());
    }
}

/// What the server does next on a connection. Behind the last act it waits for the next request.
pub enum Act {
    Send(Vec<u8>),
    /// Bytes of a body: [`Server::sent`] counts them.
    Body(Bytes),
    /// Sends them again and again.
    Repeat(Bytes),
    /// A body that is computed as it is sent.
    Pieces(Box<dyn Iterator<Item = Bytes> + Send>),
    Wait(Duration),
    Pass(Gate),
    /// Ends its own direction, so that every byte sent arrives before the end.
    End,
    Close,
    /// Says nothing more until the client closes.
    Hang,
}

/// What is answered to one request.
#[derive(Clone, Default)]
pub struct Reply {
    status: u16,
    /// Header lines, each ended by CRLF.
    lines: String,
    /// Content-Length; without one the connection's end shows it.
    announced: Option<usize>,
    body: Bytes,
    /// Bytes of the body that are sent before the connection is closed.
    cut: Option<usize>,
    /// After so many bytes of the body the gate must be passed.
    gate: Option<(usize, Gate)>,
    /// The body comes in pieces of so many bytes, with a pause behind each.
    pace: Option<(usize, Duration)>,
    /// The body is sent again and again.
    is_endless: bool,
}

impl Reply {
    pub fn status(status: u16) -> Reply {
        Reply { status, announced: Some(0), ..Reply::default() }
    }

    /// 200 and its true length.
    pub fn full(body: &[u8]) -> Reply {
        Reply::of(Bytes::copy_from_slice(body))
    }

    /// [`Reply::full`] without a copy of the body.
    pub fn of(body: Bytes) -> Reply {
        Reply { announced: Some(body.len()), body, ..Reply::status(200) }
    }

    pub fn with_status(mut self, status: u16) -> Reply {
        self.status = status;
        self
    }

    pub fn with(self, name: &str, value: &str) -> Reply {
        self.with_lines(&format!("{name}: {value}\r\n"))
    }

    pub fn with_lines(mut self, lines: &str) -> Reply {
        self.lines.push_str(lines);
        self
    }

    pub fn announcing(mut self, announced: Option<usize>) -> Reply {
        self.announced = announced;
        self
    }

    pub fn cut_at(mut self, bytes: usize) -> Reply {
        self.cut = Some(bytes);
        self
    }

    /// It breaks off there, from 0 to 1.
    pub fn cut_within(self, fraction: f64) -> Reply {
        let bytes = (self.body.len() as f64 * fraction) as usize;
        self.cut_at(bytes)
    }

    /// A body that has no end, and no length.
    pub fn endless(mut self) -> Reply {
        self.is_endless = true;
        self.announcing(None)
    }

    /// As many bytes a second.
    pub fn paced(self, rate: usize) -> Reply {
        self.in_pieces(rate / 20, Duration::from_millis(50))
    }

    pub fn in_pieces(mut self, bytes: usize, pause: Duration) -> Reply {
        self.pace = Some((bytes, pause));
        self
    }

    pub fn gated_at(mut self, bytes: usize, gate: &Gate) -> Reply {
        self.gate = Some((bytes, gate.clone()));
        self
    }

    /// The reply to a request of this method, HEAD or another.
    pub fn acts(self, is_head: bool) -> Vec<Act> {
        let mut head = format!("HTTP/1.1 {} Some\r\n{}", self.status, self.lines);
        match self.announced {
            _ if self.status == 304 => {}
            Some(bytes) => head += &format!("Content-Length: {bytes}\r\n"),
            None => head += "Connection: close\r\n",
        }
        let mut acts = vec![Act::Send((head + "\r\n").into_bytes())];
        let is_short = self.cut.is_some() || self.announced != Some(self.body.len());
        if !is_head {
            let sent = self.body.len().min(self.cut.unwrap_or(usize::MAX));
            let before = self.gate.as_ref().map_or(sent, |(bytes, _)| sent.min(*bytes));
            let pieces = |bytes: Range<usize>| -> Vec<Act> {
                let Some((most, pause)) = self.pace else { return vec![Act::Body(self.body.slice(bytes))] };
                let piece = |first| Act::Body(self.body.slice(first..bytes.end.min(first + most)));
                bytes.clone().step_by(most).flat_map(|first| [piece(first), Act::Wait(pause)]).collect()
            };
            acts.extend(pieces(0..before));
            acts.extend(self.gate.as_ref().map(|(_, gate)| Act::Pass(gate.clone())));
            acts.extend(pieces(before..sent));
            acts.extend(self.is_endless.then(|| Act::Repeat(self.body.clone())));
        }
        acts.extend((self.announced.is_none() || is_short && !is_head).then_some(Act::End));
        acts
    }
}

/// What an honest server answers for a body: HEAD, ranges and If-Range, under an ETag if there is one.
pub fn honest(request: &Received, body: &[u8], etag: Option<&str>) -> Reply {
    let with_etag = |reply: Reply| match etag {
        Some(etag) => reply.with("ETag", etag).with("Accept-Ranges", "bytes"),
        None => reply,
    };
    let is_current = request.field("if-range").is_none_or(|spec| Some(spec) == etag);
    match request.range(body.len()).filter(|_| is_current && etag.is_some()) {
        Some(range) if range.is_empty() => {
            with_etag(Reply::status(416)).with("Content-Range", &format!("bytes */{}", body.len()))
        }
        Some(range) => {
            let described = format!("bytes {}-{}/{}", range.start, range.end - 1, body.len());
            with_etag(Reply::full(&body[range]).with_status(206)).with("Content-Range", &described)
        }
        None => with_etag(Reply::full(body)),
    }
}

/// A head (its first line and fields, separated by `\n`) and a body as sent over the wire.
pub fn answer(head: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = head.lines().flat_map(|line| [line.trim(), "\r\n"]).collect::<String>().into_bytes();
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}

/// 200 with its true length.
pub fn ok(body: &[u8]) -> Vec<Act> {
    Reply::full(body).acts(false)
}

/// An empty answer of that status with one more field line.
pub fn status(code: u16, field: &str) -> Vec<Act> {
    vec![Act::Send(answer(&format!("HTTP/1.1 {code} Some\nContent-Length: 0\n{field}"), b""))]
}

/// Something that a request can be answered with.
pub trait Answering {
    fn acts(self, request: &Received) -> Vec<Act>;
}

impl Answering for Vec<Act> {
    fn acts(self, _: &Received) -> Vec<Act> {
        self
    }
}

impl Answering for Reply {
    fn acts(self, request: &Received) -> Vec<Act> {
        Reply::acts(self, request.is_head())
    }
}

/// Stops listening when dropped.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    received: Mutex<Vec<Received>>,
    sent: AtomicUsize,
    busy: AtomicUsize,
    is_stopped: AtomicBool,
}

impl Server {
    /// Answers each request with what `script` returns for it.
    pub fn start<A: Answering>(script: impl Fn(&Received) -> A + Send + Sync + 'static) -> Server {
        Server::start_with(None, script)
    }

    /// The same over TLS.
    pub fn start_with<A: Answering>(
        tls: Option<Arc<rustls::ServerConfig>>,
        script: impl Fn(&Received) -> A + Send + Sync + 'static,
    ) -> Server {
        Server::on(TcpListener::bind(("127.0.0.1", 0)).unwrap(), tls, script)
    }

    /// The same for the connections that `listener` accepts.
    pub fn on<A: Answering>(
        listener: TcpListener,
        tls: Option<Arc<rustls::ServerConfig>>,
        script: impl Fn(&Received) -> A + Send + Sync + 'static,
    ) -> Server {
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let (serving, script) = (Arc::clone(&shared), Arc::new(script));
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                if serving.is_stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (script, serving, tls) = (Arc::clone(&script), Arc::clone(&serving), tls.clone());
                std::thread::spawn(move || {
                    let connection = connection.unwrap();
                    // Head and body are two writes: otherwise the second waits 40 ms for the client's delayed acknowledgement.
                    let _ = connection.set_nodelay(true);
                    let socket = connection.try_clone().unwrap();
                    // A client that goes away ends the conversation, not the test.
                    let _ = match tls {
                        Some(tls) => {
                            let session = rustls::ServerConnection::new(tls).unwrap();
                            serving.converse(rustls::StreamOwned::new(session, connection), &socket, &*script)
                        }
                        None => serving.converse(connection, &socket, &*script),
                    };
                });
            }
        });
        Server { address, shared }
    }

    /// The same answer to everyone: `head` lines without the last empty one, then `body`; connections are kept.
    pub fn always(head: &str, body: &[u8]) -> Server {
        let answer = answer(head, body);
        Server::start(move |_| vec![Act::Send(answer.clone())])
    }

    /// An honest server of one body.
    pub fn of(body: &[u8], etag: Option<&'static str>) -> Server {
        let body = body.to_vec();
        Server::start(move |request| honest(request, &body, etag))
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// `HOST:PORT`
    pub fn authority(&self) -> String {
        self.address.to_string()
    }

    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().unwrap().clone()
    }

    /// Forgets the requests so far: there may be very many.
    pub fn forget_received(&self) {
        self.shared.received.lock().unwrap().clear();
    }

    /// Bytes of bodies that the network has taken.
    pub fn sent(&self) -> usize {
        self.shared.sent.load(Ordering::SeqCst)
    }

    /// Requests whose answers are under way.
    pub fn busy(&self) -> usize {
        self.shared.busy.load(Ordering::SeqCst)
    }

    /// Number of requests of that method.
    pub fn count(&self, method: &str) -> usize {
        self.received().iter().filter(|request| request.method == method).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
    }
}

/// An answer under way.
struct Busy<'a>(&'a AtomicUsize);

impl Busy<'_> {
    fn new(busy: &AtomicUsize) -> Busy<'_> {
        busy.fetch_add(1, Ordering::SeqCst);
        Busy(busy)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    fn converse<A: Answering>(
        &self,
        connection: impl Read + Write,
        socket: &TcpStream,
        script: &dyn Fn(&Received) -> A,
    ) -> std::io::Result<()> {
        let mut connection = BufReader::new(connection);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if connection.read_line(&mut head)? == 0 {
                    return Ok(());
                }
            }
            if self.is_stopped.load(Ordering::SeqCst) {
                return Ok(());
            }
            let mut words = head.split(' ');
            let (method, path) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
            let busy = Busy::new(&self.busy);
            let request = {
                let mut received = self.received.lock().unwrap();
                let request =
                    Received { number: received.len(), method, path, head, busy: busy.0.load(Ordering::SeqCst) };
                received.push(request.clone());
                request
            };
            for act in script(&request).acts(&request) {
                if !self.act(act, &mut connection, socket)? {
                    return Ok(());
                }
            }
            drop(busy);
        }
    }

    /// `false`: the conversation is over.
    fn act<C: Read + Write>(
        &self,
        act: Act,
        connection: &mut BufReader<C>,
        socket: &TcpStream,
    ) -> std::io::Result<bool> {
        let mut send = |bytes: &[u8]| {
            bytes.chunks(64 << 10).try_for_each(|piece| {
                connection.get_mut().write_all(piece)?;
                self.sent.fetch_add(piece.len(), Ordering::SeqCst);
                Ok::<_, std::io::Error>(())
            })
        };
        match act {
            Act::Send(bytes) => connection.get_mut().write_all(&bytes)?,
            Act::Body(bytes) => send(&bytes)?,
            Act::Repeat(bytes) => loop {
                send(&bytes)?;
            },
            Act::Pieces(mut pieces) => pieces.try_for_each(|piece| send(&piece))?,
            Act::Wait(time) => std::thread::sleep(time),
            Act::Pass(gate) => gate.pass(),
            Act::Close => return Ok(false),
            Act::End | Act::Hang => {
                if matches!(act, Act::End) {
                    socket.shutdown(Shutdown::Write)?;
                }
                while connection.read(&mut [0; 64])? > 0 {}
                return Ok(false);
            }
        }
        Ok(true)
    }
}
