//! A Source on loopback that publishes what a test puts there, and lies when told to.
//!
//! Bytes are written by hand on purpose: no HTTP library would send what broken servers send.

use super::requests::wait_for_quiet;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use super::requests::Logged;

/// A resource as it is served and as it is published; both by default agree.
#[derive(Clone, Debug)]
pub struct Resource {
    /// What a GET returns; not copied for each.
    pub bytes: Arc<Vec<u8>>,
    /// `<lastmod>`
    pub lastmod: Option<String>,
    /// Attributes of `rs:md`, as written: `hash="…" length="…"`.
    pub md: String,
    /// `rs:ln` elements, as written.
    pub links: String,
    /// `ETag`, with its quotes; none is sent for `None`.
    pub etag: Option<String>,
    /// `Content-Type`
    pub media_type: String,
    /// Further header lines, each ended by CRLF.
    pub headers: String,
}

impl Resource {
    /// A resource with length, SHA-256 and a strong ETag.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Resource {
        let bytes = bytes.into();
        let digest = hex(&Sha256::digest(&bytes));
        Resource {
            lastmod: Some("2024-05-01T10:00:00Z".into()),
            md: format!("hash=\"sha-256:{digest}\" length=\"{}\"", bytes.len()),
            links: String::new(),
            etag: Some(format!("\"{}\"", &digest[..16])),
            media_type: "application/octet-stream".into(),
            headers: String::new(),
            bytes: Arc::new(bytes),
        }
    }

    /// A resource of which nothing but the name is published, as in most sitemaps.
    pub fn bare(bytes: impl Into<Vec<u8>>) -> Resource {
        Resource { md: String::new(), lastmod: None, ..Resource::new(bytes) }
    }
}

/// What goes wrong with an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// This status, with these header lines (each ended by CRLF) and no body.
    Status(u16, String),
    /// The body ends after so many bytes and the connection is cut.
    Cut(usize),
    /// The whole answer says that the body has so many bytes, and sends those of the real one, cut or padded.
    Length(usize),
    /// These bytes in place of the body, with a matching Content-Length.
    Body(Vec<u8>),
    /// Ranges are ignored: 200 and the whole.
    NoRanges,
    /// `Content-Range` tells another range than was asked for.
    WrongRange,
    /// Another ETag than before.
    Etag(String),
    /// `Content-Encoding: gzip` and gzip bytes, asked for or not.
    Gzip,
    /// Nothing is sent for so long, then the connection is cut.
    StallHead(Duration),
    /// So many bytes of the body are sent, then nothing for so long, then the connection is cut.
    StallBody(usize, Duration),
    /// So many bytes of the resource are sent, the rest when all is mended.
    Held(usize),
    /// Each 16 KiB of the body takes so long.
    Slow(Duration),
    /// Another media type.
    MediaType(String),
    /// No Content-Length: the body ends with the connection.
    NoLength,
    /// A HEAD announces so many bytes; the body has its own length.
    HeadLength(usize),
}

#[derive(Default)]
struct State {
    resources: BTreeMap<String, Resource>,
    documents: HashMap<String, Resource>,
    faults: HashMap<String, VecDeque<(Fault, u64)>>,
    log: Vec<Logged>,
    edition: u64,
    /// How long each answer is held back, while no more than so many are under way: beyond, they get in each other's way.
    pause: Duration,
    bears: Option<usize>,
    /// Requests not answered yet, and the most there were.
    under_way: usize,
    most_under_way: usize,
}

/// The Source. Its Resource List is made anew at each request of it.
#[derive(Clone)]
pub struct Source {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Source {
    /// A Source without resources, on a free port.
    pub fn start() -> Source {
        Source::on(TcpListener::bind(("127.0.0.1", 0)).unwrap())
    }

    /// A Source without resources that serves whoever `listener` hears of.
    pub fn on(listener: TcpListener) -> Source {
        let source = Source { address: listener.local_addr().unwrap(), state: Arc::default() };
        let serving = source.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                std::thread::spawn(move || serving.serve(stream));
            }
        });
        source
    }

    /// `http://127.0.0.1:PORT/`
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// The Source's Resource List.
    pub fn list_url(&self) -> String {
        format!("{}resourcelist.xml", self.url())
    }

    /// Publishes a resource at `path` (percent-encoded, no leading slash).
    pub fn put(&self, path: &str, resource: Resource) {
        let mut state = self.state.lock().unwrap();
        state.resources.insert(path.to_owned(), resource);
        state.edition += 1;
    }

    /// Stops publishing it.
    pub fn remove(&self, path: &str) {
        let mut state = self.state.lock().unwrap();
        state.resources.remove(path);
        state.edition += 1;
    }

    /// Whether there is a resource at `path`.
    pub fn has(&self, path: &str) -> bool {
        self.state.lock().unwrap().resources.contains_key(path)
    }

    /// A Resource List of what there is now, that speaks for `at`.
    pub fn resource_list_at(&self, at: &str) -> Vec<u8> {
        self.list_of(&self.state.lock().unwrap(), at)
    }

    /// Serves `bytes` at `path` beside the resources: another document. Replaces the Resource List too if named so.
    pub fn document(&self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.page(path, document(bytes.into()));
    }

    /// Serves a resource at `path` that the Resource List does not list: a page, robots.txt.
    pub fn page(&self, path: &str, resource: Resource) {
        self.state.lock().unwrap().documents.insert(path.to_owned(), resource);
    }

    /// [`Source::page`] for a client that asks for `resource` by its media type, where one address has several.
    pub fn variant(&self, path: &str, resource: Resource) {
        self.page(&format!("{path}\n{}", resource.media_type), resource);
    }

    /// From now on each answer is held back for so long.
    pub fn pause(&self, pause: Duration) {
        self.state.lock().unwrap().pause = pause;
    }

    /// Answers take the longer (by the square) the more than `bears` are under way; with `None` they no longer do.
    pub fn bears(&self, bears: Option<usize>) {
        self.state.lock().unwrap().bears = bears;
    }

    /// The most requests that were under way at once since the last call.
    pub fn take_most_at_once(&self) -> usize {
        std::mem::take(&mut self.state.lock().unwrap().most_under_way)
    }

    /// The next `times` answers for `path` go wrong; several faults are taken one after the other.
    pub fn fault(&self, path: &str, fault: Fault, times: u64) {
        self.state.lock().unwrap().faults.entry(path.to_owned()).or_default().push_back((fault, times));
    }

    /// Whether a digest of the resource at `path` is published.
    pub fn is_hashed(&self, path: &str) -> bool {
        self.state.lock().unwrap().resources.get(path).is_some_and(|resource| resource.md.contains("hash="))
    }

    /// All answers are right again.
    pub fn mend(&self) {
        self.state.lock().unwrap().faults.clear();
    }

    /// The requests since the last call.
    pub fn take_log(&self) -> Vec<Logged> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }

    /// The requests since the last `take_log`.
    pub fn log(&self) -> Vec<Logged> {
        self.state.lock().unwrap().log.clone()
    }

    /// Waits until nothing has been asked for for half a second.
    pub fn wait_for_quiet(&self) {
        wait_for_quiet(|| {
            let state = self.state.lock().unwrap();
            (state.log.len(), state.under_way)
        });
    }

    /// The requests of `path` since the last `take_log`.
    pub fn requests_of(&self, path: &str) -> Vec<Logged> {
        let wanted = format!("/{path}");
        self.state.lock().unwrap().log.iter().filter(|logged| logged.path == wanted).cloned().collect()
    }

    /// What the mount must show: path as published (still percent-encoded) and bytes.
    pub fn published(&self) -> BTreeMap<String, Vec<u8>> {
        let state = self.state.lock().unwrap();
        state.resources.iter().map(|(path, resource)| (path.clone(), resource.bytes.to_vec())).collect()
    }

    fn serve(&self, stream: TcpStream) {
        // Head and body are two writes: without this the second waits for the client's delayed acknowledgement, 40 ms.
        let _ = stream.set_nodelay(true);
        let Ok(reading) = stream.try_clone() else { return };
        let mut reading = BufReader::new(reading);
        let mut stream = stream;
        while let Some(request) = Request::read(&mut reading) {
            let pause = {
                let mut state = self.state.lock().unwrap();
                state.under_way += 1;
                state.most_under_way = state.most_under_way.max(state.under_way);
                let times = state.bears.map_or(1.0, |bears| (state.under_way as f64 / bears as f64).powi(2).max(1.0));
                state.pause.mul_f64(times)
            };
            std::thread::sleep(pause);
            let answered = self.answer(&request, &mut stream);
            self.state.lock().unwrap().under_way -= 1;
            if answered.is_none() {
                return;
            }
        }
    }

    /// `None`: the connection ends.
    fn answer(&self, request: &Request, stream: &mut TcpStream) -> Option<()> {
        let path = request.path.trim_start_matches('/').to_owned();
        let (resource, fault) = {
            let mut state = self.state.lock().unwrap();
            let variant = state.documents.get(&format!("{path}\n{}", request.media_type())).cloned();
            (variant.or_else(|| self.find(&state, &path)), take_fault(&mut state, &path))
        };
        let log = |status| {
            self.state.lock().unwrap().log.push(Logged {
                method: request.method.clone(),
                path: request.path.clone(),
                range: request.range.clone(),
                if_range: request.if_range.clone(),
                status,
                head: request.head.clone(),
            });
        };
        if let Some(Fault::StallHead(time)) = fault {
            log(0);
            std::thread::sleep(time);
            return None;
        }
        if let Some(Fault::Status(status, headers)) = &fault {
            log(*status);
            return send(stream, &format!("HTTP/1.1 {status} Told So\r\nContent-Length: 0\r\n{headers}\r\n"), &[]);
        }
        let Some(mut resource) = resource else {
            log(404);
            return send(
                stream,
                "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n",
                if request.is_head() { &[] } else { b"not found" },
            );
        };

        let mut extra = resource.headers.clone();
        match &fault {
            Some(Fault::Body(other)) => resource.bytes = Arc::new(other.clone()),
            Some(Fault::Etag(other)) => resource.etag = Some(other.clone()),
            Some(Fault::MediaType(other)) => resource.media_type = other.clone(),
            Some(Fault::Gzip) => {
                let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                coder.write_all(&resource.bytes).unwrap();
                resource.bytes = Arc::new(coder.finish().unwrap());
                extra.push_str("Content-Encoding: gzip\r\n");
            }
            _ => {}
        }
        if let Some(etag) = &resource.etag {
            let _ = write!(extra, "ETag: {etag}\r\n");
            if request.if_none_match.as_ref() == Some(etag) {
                log(304);
                return send(stream, &format!("HTTP/1.1 304 Not Modified\r\n{extra}\r\n"), &[]);
            }
        }
        let _ = write!(extra, "Content-Type: {}\r\nAccept-Ranges: bytes\r\n", resource.media_type);

        let range_holds = request.if_range.is_none() || request.if_range == resource.etag;
        let range = request
            .range
            .as_deref()
            .filter(|_| range_holds && fault != Some(Fault::NoRanges))
            .and_then(|range| parse_range(range, resource.bytes.len()));
        let asked = request.range.is_some() && range_holds && fault != Some(Fault::NoRanges);
        if asked && range.is_none() {
            log(416);
            let head =
                format!("HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */{}\r\n", resource.bytes.len());
            return send(stream, &format!("{head}Content-Length: 0\r\n\r\n"), &[]);
        }
        let (status, bytes) = match range {
            Some((first, last)) => {
                let (told_first, told_last) =
                    if fault == Some(Fault::WrongRange) { (first + 1, last + 1) } else { (first, last) };
                let _ = write!(extra, "Content-Range: bytes {told_first}-{told_last}/{}\r\n", resource.bytes.len());
                (206, first..last + 1)
            }
            None => (200, 0..resource.bytes.len()),
        };
        let mut body = Cow::Borrowed(&resource.bytes[bytes]);
        let told_length = match &fault {
            Some(Fault::Length(length)) => {
                body.to_mut().resize(*length, b'!');
                *length
            }
            _ => body.len(),
        };
        let told_length = match &fault {
            Some(Fault::HeadLength(length)) if request.is_head() => *length,
            _ => told_length,
        };
        if fault != Some(Fault::NoLength) {
            let _ = write!(extra, "Content-Length: {told_length}\r\n");
        }
        log(status);
        let reason = if status == 206 { "Partial Content" } else { "OK" };
        send(stream, &format!("HTTP/1.1 {status} {reason}\r\n{extra}\r\n"), &[])?;
        if request.is_head() {
            return Some(());
        }
        match fault {
            Some(Fault::Cut(after)) => {
                let _ = stream.write_all(&body[..after.min(body.len())]);
                None
            }
            Some(Fault::StallBody(after, time)) => {
                let _ = stream.write_all(&body[..after.min(body.len())]);
                std::thread::sleep(time);
                None
            }
            Some(Fault::Held(after)) => {
                let begin = range.map_or(0, |(first, _)| first);
                let (first, rest) = body.split_at(after.saturating_sub(begin).min(body.len()));
                stream.write_all(first).ok()?;
                while !rest.is_empty() && self.state.lock().unwrap().faults.contains_key(&path) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                stream.write_all(rest).ok()
            }
            Some(Fault::Slow(pause)) => body.chunks(16 << 10).try_for_each(|chunk| {
                std::thread::sleep(pause);
                stream.write_all(chunk).ok()
            }),
            Some(Fault::NoLength) => {
                let _ = stream.write_all(&body);
                None
            }
            _ => stream.write_all(&body).ok(),
        }
    }

    fn find(&self, state: &State, path: &str) -> Option<Resource> {
        if let Some(found) = state.documents.get(path) {
            return Some(found.clone());
        }
        match path {
            ".well-known/resourcesync" => Some(document(self.description())),
            "capabilitylist.xml" => Some(document(self.capability_list())),
            "resourcelist.xml" => Some(document(self.resource_list(state))),
            _ => state.resources.get(path).cloned(),
        }
    }

    fn description(&self) -> Vec<u8> {
        let base = self.url();
        format!(
            "{URLSET}<rs:md capability=\"description\"/><url><loc>{base}capabilitylist.xml</loc>\
             <rs:md capability=\"capabilitylist\"/></url></urlset>"
        )
        .into_bytes()
    }

    fn capability_list(&self) -> Vec<u8> {
        let base = self.url();
        format!(
            "{URLSET}<rs:ln rel=\"up\" href=\"{base}.well-known/resourcesync\"/><rs:md capability=\"capabilitylist\"/>\
             <url><loc>{base}resourcelist.xml</loc><rs:md capability=\"resourcelist\"/></url></urlset>"
        )
        .into_bytes()
    }

    fn resource_list(&self, state: &State) -> Vec<u8> {
        // Each edition is a second later than the one before.
        let (day, second) = (1 + state.edition / 86_400, state.edition % 86_400);
        let at = format!("2024-05-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60);
        self.list_of(state, &at)
    }

    fn list_of(&self, state: &State, at: &str) -> Vec<u8> {
        let base = self.url();
        let mut list = format!(
            "{URLSET}<rs:ln rel=\"up\" href=\"{base}capabilitylist.xml\"/><rs:md capability=\"resourcelist\" at=\"{at}\"/>\n"
        );
        for (path, resource) in &state.resources {
            let _ = write!(list, "<url><loc>{base}{}</loc>", path.replace('&', "&amp;"));
            if let Some(lastmod) = &resource.lastmod {
                let _ = write!(list, "<lastmod>{lastmod}</lastmod>");
            }
            if !resource.md.is_empty() {
                let _ = write!(list, "<rs:md {}/>", resource.md);
            }
            let _ = writeln!(list, "{}</url>", resource.links);
        }
        list.push_str("</urlset>\n");
        list.into_bytes()
    }
}

/// A document as it is served.
fn document(bytes: Vec<u8>) -> Resource {
    Resource {
        etag: Some(format!("\"d{}\"", hex(&Sha256::digest(&bytes)[..8]))),
        media_type: "application/xml".into(),
        ..Resource::bare(bytes)
    }
}

/// The root element of every document here, with both namespaces.
pub const URLSET: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\" \
                          xmlns:rs=\"http://www.openarchives.org/rs/terms/\">";

struct Request {
    method: String,
    path: String,
    range: Option<String>,
    if_range: Option<String>,
    if_none_match: Option<String>,
    accept: String,
    head: String,
}

impl Request {
    fn read(stream: &mut impl BufRead) -> Option<Request> {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let mut words = line.split_ascii_whitespace();
        let mut request = Request {
            method: words.next()?.to_owned(),
            path: words.next()?.to_owned(),
            range: None,
            if_range: None,
            if_none_match: None,
            accept: String::new(),
            head: String::new(),
        };
        // A proxy is asked for whole URIs.
        if let Some(rest) = request.path.strip_prefix("http://") {
            request.path = rest.find('/').map_or("/", |slash| &rest[slash..]).to_owned();
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok()?;
            let Some((name, value)) = line.split_once(':') else {
                return line.trim().is_empty().then_some(request);
            };
            let value = value.trim().to_owned();
            request.head.push_str(&line);
            match name.to_ascii_lowercase().as_str() {
                "range" => request.range = Some(value),
                "if-range" => request.if_range = Some(value),
                "if-none-match" => request.if_none_match = Some(value),
                "accept" => request.accept = value,
                _ => {}
            }
        }
    }

    /// The media type that is asked for first.
    fn media_type(&self) -> &str {
        self.accept.split([',', ';']).next().unwrap_or_default().trim()
    }

    fn is_head(&self) -> bool {
        self.method == "HEAD"
    }
}

fn take_fault(state: &mut State, path: &str) -> Option<Fault> {
    let queue = state.faults.get_mut(path)?;
    let (fault, left) = queue.front_mut()?;
    let taken = fault.clone();
    *left -= 1;
    if *left == 0 {
        queue.pop_front();
    }
    Some(taken)
}

fn parse_range(range: &str, length: usize) -> Option<(usize, usize)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let first: usize = first.parse().ok()?;
    let end = length.checked_sub(1)?;
    let last = if last.is_empty() { end } else { last.parse().ok()? };
    (first <= end && first <= last).then_some((first, last.min(end)))
}

fn send(stream: &mut TcpStream, head: &str, body: &[u8]) -> Option<()> {
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|octet| format!("{octet:02x}")).collect()
}
