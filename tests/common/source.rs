//! A Source on loopback that publishes what a test puts there, and misbehaves on request.

use super::requests::wait_for_quiet;
use super::server::{Act, Gate, Received, Reply, Server};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write as _;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use super::requests::Logged;

/// A resource as it is served and as it is published; both by default agree.
#[derive(Clone, Debug)]
pub struct Resource {
    /// What a GET returns.
    pub bytes: Bytes,
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
            bytes: bytes.into(),
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

/// By path, with how many answers each spoils.
type Faults = HashMap<String, VecDeque<(Fault, u64)>>;

#[derive(Default)]
struct State {
    resources: BTreeMap<String, Resource>,
    documents: HashMap<String, Resource>,
    faults: Faults,
    log: Vec<Logged>,
    edition: u64,
    /// How long each answer is held back, while no more than so many are under way: beyond, they get in each other's way.
    pause: Duration,
    bears: Option<usize>,
    /// The most requests that were under way at once.
    most_under_way: usize,
    /// Opened when all is mended.
    mended: Gate,
}

/// The Source. Its Resource List is made for each request.
#[derive(Clone)]
pub struct Source {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    server: Arc<Server>,
}

impl Source {
    /// A Source without resources, on a free port.
    pub fn start() -> Source {
        Source::on(TcpListener::bind(("127.0.0.1", 0)).unwrap())
    }

    /// A Source without resources, at the address of `listener`.
    pub fn on(listener: TcpListener) -> Source {
        let address = listener.local_addr().unwrap();
        let state = Arc::<Mutex<State>>::default();
        let answering = Arc::clone(&state);
        let server = Server::on(listener, None, move |request| {
            let pause = {
                let mut state = answering.lock().unwrap();
                state.most_under_way = state.most_under_way.max(request.busy);
                let times = state.bears.map_or(1.0, |bears| (request.busy as f64 / bears as f64).powi(2).max(1.0));
                state.pause.mul_f64(times)
            };
            std::thread::sleep(pause);
            answering.lock().unwrap().answer(&format!("http://{address}/"), request)
        });
        Source { address, state, server: Arc::new(server) }
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
        self.state.lock().unwrap().list_of(&self.url(), at)
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
        let mut state = self.state.lock().unwrap();
        state.faults.clear();
        std::mem::take(&mut state.mended).open();
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
        wait_for_quiet(|| (self.state.lock().unwrap().log.len(), self.server.busy()));
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
}

impl State {
    fn answer(&mut self, base: &str, request: &Received) -> Vec<Act> {
        // A proxy is asked for whole URIs.
        let from_host = request.path.strip_prefix("http://");
        let path =
            from_host.map_or(&*request.path, |rest| rest.find('/').map_or("/", |slash| &rest[slash..])).to_owned();
        let name = path.trim_start_matches('/');
        // The media type that is asked for first.
        let accepted = request.field("accept").unwrap_or_default().split([',', ';']).next().unwrap_or_default();
        let variant = self.documents.get(&format!("{name}\n{}", accepted.trim())).cloned();
        let resource = variant.or_else(|| self.find(base, name));
        let fault = take_fault(&mut self.faults, name);
        let (status, acts) = self.acts(request, resource, fault);
        self.log.push(Logged {
            method: request.method.clone(),
            range: request.field("range").map(str::to_owned),
            if_range: request.field("if-range").map(str::to_owned),
            status,
            head: request.head.split_once("\r\n").unwrap_or_default().1.to_owned(),
            path,
        });
        acts
    }

    /// Status and answer.
    fn acts(&self, request: &Received, resource: Option<Resource>, fault: Option<Fault>) -> (u16, Vec<Act>) {
        let replied = |status: u16, reply: Reply| (status, reply.with_status(status).acts(request.is_head()));
        match &fault {
            Some(Fault::StallHead(time)) => return (0, vec![Act::Wait(*time), Act::Close]),
            Some(Fault::Status(status, lines)) => return replied(*status, Reply::full(b"").with_lines(lines)),
            _ => {}
        }
        let Some(mut resource) = resource else { return replied(404, Reply::full(b"not found")) };
        match &fault {
            Some(Fault::Body(other)) => resource.bytes = other.clone().into(),
            Some(Fault::Etag(other)) => resource.etag = Some(other.clone()),
            Some(Fault::MediaType(other)) => resource.media_type = other.clone(),
            Some(Fault::Gzip) => {
                let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                coder.write_all(&resource.bytes).unwrap();
                resource.bytes = coder.finish().unwrap().into();
                resource.headers.push_str("Content-Encoding: gzip\r\n");
            }
            _ => {}
        }
        let Resource { bytes, etag, media_type, headers: mut lines, .. } = resource;
        if let Some(etag) = &etag {
            let _ = write!(lines, "ETag: {etag}\r\n");
            if request.field("if-none-match") == Some(etag) {
                return replied(304, Reply::full(b"").with_lines(&lines));
            }
        }
        let _ = write!(lines, "Content-Type: {media_type}\r\nAccept-Ranges: bytes\r\n");
        let is_current = request.field("if-range").is_none_or(|validator| Some(validator) == etag.as_deref());
        let asked = request.field("range").filter(|_| is_current && fault != Some(Fault::NoRanges));
        let (status, range) = match asked.map(|range| parse_range(range, bytes.len())) {
            Some(None) => {
                let length = bytes.len();
                return replied(416, Reply::full(b"").with("Content-Range", &format!("bytes */{length}")));
            }
            Some(Some((first, last))) => {
                let shift = usize::from(fault == Some(Fault::WrongRange));
                let length = bytes.len();
                let _ = write!(lines, "Content-Range: bytes {}-{}/{length}\r\n", first + shift, last + shift);
                (206, first..last + 1)
            }
            None => (200, 0..bytes.len()),
        };
        let begin = range.start;
        let body = bytes.slice(range);
        let padded = |length| [&body, &*vec![b'!'; length]].concat();
        let reply = match fault {
            Some(Fault::Length(length)) => Reply::of(Bytes::from(padded(length)).slice(..length)),
            Some(Fault::HeadLength(length)) if request.is_head() => Reply::of(body).announcing(Some(length)),
            Some(Fault::NoLength) => Reply::of(body).announcing(None),
            Some(Fault::Cut(after) | Fault::StallBody(after, _)) => Reply::of(body).cut_at(after),
            // A range that ends before that byte leaves its connection free.
            Some(Fault::Held(after)) if begin + body.len() > after => {
                Reply::of(body).gated_at(after.saturating_sub(begin), &self.mended)
            }
            Some(Fault::Slow(pause)) => Reply::of(body).in_pieces(16 << 10, pause),
            _ => Reply::of(body),
        };
        let (status, mut acts) = replied(status, reply.with_lines(&lines));
        if let Some(Fault::StallBody(_, time)) = fault.filter(|_| !request.is_head()) {
            acts.insert(acts.len() - 1, Act::Wait(time));
        }
        (status, acts)
    }

    fn find(&self, base: &str, path: &str) -> Option<Resource> {
        if let Some(found) = self.documents.get(path) {
            return Some(found.clone());
        }
        match path {
            ".well-known/resourcesync" => Some(document(description(base))),
            "capabilitylist.xml" => Some(document(capability_list(base))),
            "resourcelist.xml" => Some(document(self.resource_list(base))),
            _ => self.resources.get(path).cloned(),
        }
    }

    fn resource_list(&self, base: &str) -> Vec<u8> {
        // Each edition is a second later than the one before.
        let (day, second) = (1 + self.edition / 86_400, self.edition % 86_400);
        let at = format!("2024-05-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60);
        self.list_of(base, &at)
    }

    fn list_of(&self, base: &str, at: &str) -> Vec<u8> {
        let mut list = format!(
            "{URLSET}<rs:ln rel=\"up\" href=\"{base}capabilitylist.xml\"/><rs:md capability=\"resourcelist\" at=\"{at}\"/>\n"
        );
        for (path, resource) in &self.resources {
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

fn description(base: &str) -> Vec<u8> {
    format!(
        "{URLSET}<rs:md capability=\"description\"/><url><loc>{base}capabilitylist.xml</loc>\
         <rs:md capability=\"capabilitylist\"/></url></urlset>"
    )
    .into_bytes()
}

fn capability_list(base: &str) -> Vec<u8> {
    format!(
        "{URLSET}<rs:ln rel=\"up\" href=\"{base}.well-known/resourcesync\"/><rs:md capability=\"capabilitylist\"/>\
         <url><loc>{base}resourcelist.xml</loc><rs:md capability=\"resourcelist\"/></url></urlset>"
    )
    .into_bytes()
}

/// A document as it is served.
fn document(bytes: Vec<u8>) -> Resource {
    Resource {
        etag: Some(format!("\"d{}\"", hex(&Sha256::digest(&bytes)[..8]))),
        media_type: "application/xml".into(),
        ..Resource::bare(bytes)
    }
}

/// The root element of an index, with both namespaces.
pub const SITEMAPINDEX: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<sitemapindex \
                            xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\" \
                            xmlns:rs=\"http://www.openarchives.org/rs/terms/\">";

/// The root element of every document here, with both namespaces.
pub const URLSET: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\" \
                          xmlns:rs=\"http://www.openarchives.org/rs/terms/\">";

fn take_fault(faults: &mut Faults, path: &str) -> Option<Fault> {
    let queue = faults.get_mut(path)?;
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

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|octet| format!("{octet:02x}")).collect()
}
