//! A server on loopback that answers as a test scripts it, true or not.

use crate::document::Uri;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A request as it was received.
#[derive(Clone, Debug)]
pub(super) struct Received {
    /// From 0, over all connections.
    pub(super) number: usize,
    pub(super) method: String,
    pub(super) path: String,
    head: String,
}

impl Received {
    /// The value of a field, `None` where it was not sent.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The bytes asked for of a body of that length.
    pub(super) fn range(&self, length: usize) -> Option<Range<usize>> {
        let (first, last) = self.field("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let first: usize = first.parse().unwrap();
        let end = last.parse().map_or(length, |last: usize| last + 1);
        Some(first..end.min(length))
    }
}

/// Opened once, by the test.
#[derive(Clone, Default)]
pub(super) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(super) fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    pub(super) fn pass(&self) {
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |open| !*open).unwrap());
    }
}

/// What is answered to one request.
#[derive(Clone)]
pub(super) struct Reply {
    status: u16,
    fields: Vec<(String, String)>,
    /// Content-Length; without one the connection's end shows it.
    announced: Option<usize>,
    body: Vec<u8>,
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
    pub(super) fn status(status: u16) -> Reply {
        Reply {
            status,
            fields: Vec::new(),
            announced: Some(0),
            body: Vec::new(),
            cut: None,
            gate: None,
            pace: None,
            is_endless: false,
        }
    }

    /// 200 and its true length.
    pub(super) fn full(body: &[u8]) -> Reply {
        Reply { announced: Some(body.len()), body: body.to_vec(), ..Reply::status(200) }
    }

    pub(super) fn with_status(mut self, status: u16) -> Reply {
        self.status = status;
        self
    }

    pub(super) fn with(mut self, name: &str, value: &str) -> Reply {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(super) fn announcing(mut self, announced: Option<usize>) -> Reply {
        self.announced = announced;
        self
    }

    pub(super) fn cut_at(mut self, bytes: usize) -> Reply {
        self.cut = Some(bytes);
        self
    }

    /// It breaks off there, from 0 to 1.
    pub(super) fn cut_within(self, fraction: f64) -> Reply {
        let bytes = (self.body.len() as f64 * fraction) as usize;
        self.cut_at(bytes)
    }

    /// A body that has no end, and no length.
    pub(super) fn endless(mut self) -> Reply {
        self.is_endless = true;
        self.announcing(None)
    }

    /// As many bytes a second.
    pub(super) fn paced(mut self, rate: usize) -> Reply {
        self.pace = Some((rate / 20, Duration::from_millis(50)));
        self
    }

    pub(super) fn gated_at(mut self, bytes: usize, gate: &Gate) -> Reply {
        self.gate = Some((bytes, gate.clone()));
        self
    }
}

/// What an honest server answers for a body: HEAD, ranges and If-Range, under an ETag if there is one.
pub(super) fn honest(request: &Received, body: &[u8], etag: Option<&str>) -> Reply {
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
            with_etag(Reply { status: 206, ..Reply::full(&body[range]) }).with("Content-Range", &described)
        }
        None => with_etag(Reply::full(body)),
    }
}

/// Stops listening when dropped.
pub(super) struct Server {
    port: u16,
    received: Arc<Mutex<Vec<Received>>>,
    sent: Arc<AtomicUsize>,
    busy: Arc<AtomicUsize>,
    is_stopped: Arc<AtomicBool>,
}

impl Server {
    /// Answers each request with what `script` returns for it.
    pub(super) fn start(script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let sent = Arc::<AtomicUsize>::default();
        let (log, stop, script) = (Arc::clone(&received), Arc::clone(&is_stopped), Arc::new(script));
        let busy = Arc::<AtomicUsize>::default();
        let (sent_here, busy_here) = (Arc::clone(&sent), Arc::clone(&busy));
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (script, log) = (Arc::clone(&script), Arc::clone(&log));
                let (sent, busy) = (Arc::clone(&sent_here), Arc::clone(&busy_here));
                std::thread::spawn(move || {
                    // A client that goes away ends the conversation, not the test.
                    let _ = converse(connection.unwrap(), &*script, &log, &sent, &busy);
                });
            }
        });
        Server { port, received, sent, busy, is_stopped }
    }

    /// An honest server of one body.
    pub(super) fn of(body: &[u8], etag: Option<&'static str>) -> Server {
        let body = body.to_vec();
        Server::start(move |request| honest(request, &body, etag))
    }

    pub(super) fn uri(&self, path: &str) -> Uri {
        Uri::parse(&format!("http://{}{path}", self.authority())).unwrap()
    }

    pub(super) fn authority(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(super) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// Bytes of bodies that the network has taken.
    pub(super) fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }

    /// Requests whose answers are under way.
    pub(super) fn busy(&self) -> usize {
        self.busy.load(Ordering::SeqCst)
    }

    /// Number of requests of that method.
    pub(super) fn count(&self, method: &str) -> usize {
        self.received().iter().filter(|request| request.method == method).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// An answer under way.
struct Busy(Arc<AtomicUsize>);

impl Busy {
    fn new(busy: &Arc<AtomicUsize>) -> Busy {
        busy.fetch_add(1, Ordering::SeqCst);
        Busy(Arc::clone(busy))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn converse(
    mut connection: TcpStream,
    script: &dyn Fn(&Received) -> Reply,
    log: &Mutex<Vec<Received>>,
    sent_bytes: &AtomicUsize,
    busy: &Arc<AtomicUsize>,
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
        let _busy = Busy::new(busy);
        let request = {
            let mut log = log.lock().unwrap();
            let request = Received { number: log.len(), method, path, head };
            log.push(request.clone());
            request
        };
        let reply = script(&request);
        let mut head = format!("HTTP/1.1 {} Some\r\n", reply.status);
        reply.fields.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        match reply.announced {
            Some(bytes) => head += &format!("Content-Length: {bytes}\r\n"),
            None => head += "Connection: close\r\n",
        }
        head += "\r\n";
        connection.write_all(head.as_bytes())?;
        let sent = if request.method == "HEAD" { 0 } else { reply.cut.unwrap_or(reply.body.len()) };
        let sent = sent.min(reply.body.len());
        let before = reply.gate.as_ref().map_or(sent, |(bytes, _)| sent.min(*bytes));
        let send = |mut connection: &TcpStream, bytes: &[u8]| -> std::io::Result<()> {
            let (most, pause) = reply.pace.unwrap_or((64 << 10, Duration::ZERO));
            for piece in bytes.chunks(most) {
                connection.write_all(piece)?;
                sent_bytes.fetch_add(piece.len(), Ordering::SeqCst);
                std::thread::sleep(pause);
            }
            Ok(())
        };
        send(&connection, &reply.body[..before])?;
        if let Some((_, gate)) = reply.gate.filter(|_| request.method != "HEAD") {
            connection.flush()?;
            gate.pass();
        }
        send(&connection, &reply.body[before..sent])?;
        if reply.is_endless && request.method != "HEAD" {
            loop {
                send(&connection, &reply.body)?;
            }
        }
        if reply.cut.is_some() || reply.announced.is_none() || reply.announced != Some(reply.body.len()) {
            // Every byte sent arrives before the end: only our own direction is closed.
            connection.shutdown(Shutdown::Write)?;
            while connection.read(&mut [0; 64])? > 0 {}
            return Ok(());
        }
    }
}
