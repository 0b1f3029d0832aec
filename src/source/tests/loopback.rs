//! A server for tests: a table of answers on loopback, with the faults that real servers have.

use super::http::{Client, Credentials, HttpConfig};
use crate::document::{Limits, Uri};
use std::{
    collections::HashMap,
    io::Write as _,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::Barrier,
};

/// What the server says at one path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// So many times the body breaks off half way.
    cuts: usize,
    ranges: Ranges,
    /// Requests are answered when so many wait.
    together: Option<Arc<Barrier>>,
    /// Behind so many bytes of a body nothing comes any more.
    stalls_after: Option<usize>,
}

/// What a server makes of a question for a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ranges {
    /// It sends the whole.
    #[default]
    Ignored,
    /// What was asked for, while `If-Range` is its ETag.
    Right,
    /// As `Right`, but it says of those that count from the end that they cannot be satisfied.
    FromStart,
    /// As `Right`, but it does not say of how many bytes they are.
    Lengthless,
    /// Other bytes than those that were asked for.
    Shifted,
    /// It says that none can be satisfied.
    Refused,
}

impl Answer {
    pub fn new(media_type: &str, body: impl Into<Vec<u8>>) -> Answer {
        Answer { status: 200, body: body.into(), ..Answer::default() }.header("Content-Type", media_type)
    }

    pub fn xml(body: impl Into<Vec<u8>>) -> Answer {
        Answer::new("application/xml", body)
    }

    pub fn html(body: impl Into<Vec<u8>>) -> Answer {
        Answer::new("text/html; charset=utf-8", body)
    }

    pub fn status(status: u16) -> Answer {
        Answer { status, ..Answer::default() }
    }

    pub fn redirect(to: &str) -> Answer {
        Answer::status(302).header("Location", to)
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Answer {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// In place of an earlier one.
    pub fn etag(mut self, etag: &str) -> Answer {
        self.headers.retain(|(name, _)| *name != "ETag");
        self.header("ETag", &format!("\"{etag}\""))
    }

    pub fn ranges(mut self, ranges: Ranges) -> Answer {
        self.ranges = ranges;
        self
    }

    /// Requests are answered only when as many wait as `barrier` holds.
    pub fn together(mut self, barrier: &Arc<Barrier>) -> Answer {
        self.together = Some(Arc::clone(barrier));
        self
    }

    pub fn stalls_after(mut self, bytes: usize) -> Answer {
        self.stalls_after = Some(bytes);
        self
    }

    pub fn cut(mut self, times: usize) -> Answer {
        self.cuts = times;
        self
    }
}

/// One request as the server saw it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Asked {
    pub path: String,
    /// Whether it bore If-None-Match or If-Modified-Since.
    pub conditional: bool,
    /// Bytes of the body that was sent.
    pub sent: usize,
}

#[derive(Default)]
struct Shared {
    answers: HashMap<String, Answer>,
    log: Vec<Asked>,
    /// Path and `Range` of each request that had one.
    ranges: Vec<(String, String)>,
}

/// The server; it ends with the runtime of its test.
pub(crate) struct Loopback {
    pub authority: String,
    shared: Arc<Mutex<Shared>>,
}

impl Loopback {
    pub async fn start() -> Loopback {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let server = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&server)));
            }
        });
        Loopback { authority, shared }
    }

    /// The answer at `path`.
    pub fn answer(&self, path: &str) -> Answer {
        self.shared.lock().unwrap().answers.get(path).cloned().unwrap_or_default()
    }

    /// A server with the answers of `table`.
    pub async fn with(table: &[(&str, Answer)]) -> Loopback {
        let server = Loopback::start().await;
        table.iter().for_each(|(path, answer)| server.put(path, answer.clone()));
        server
    }

    pub fn put(&self, path: &str, answer: Answer) {
        self.shared.lock().unwrap().answers.insert(path.to_owned(), answer);
    }

    pub fn uri(&self, path: &str) -> Uri {
        Uri::parse(&format!("http://{}{path}", self.authority)).unwrap()
    }

    /// The requests since the last call, in the order of their paths.
    pub fn asked(&self) -> Vec<Asked> {
        let mut log = std::mem::take(&mut self.shared.lock().unwrap().log);
        log.sort();
        log
    }

    /// `Range` of each request for `path` since the last call, in the order of their arrival; empty for the whole.
    pub fn asked_ranges(&self, path: &str) -> Vec<String> {
        let mut shared = self.shared.lock().unwrap();
        let (those, others) = std::mem::take(&mut shared.ranges).into_iter().partition(|(asked, _)| asked == path);
        shared.ranges = others;
        those.into_iter().map(|(_, range)| range).collect()
    }

    /// The paths of all requests since the last call, in the order of their arrival.
    pub fn asked_in_order(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.lock().unwrap().ranges).into_iter().map(|(path, _)| path).collect()
    }

    /// A client that may reach this server.
    pub fn client(&self) -> Client {
        Client::new(HttpConfig {
            own_authority: Some(self.authority.as_str().into()),
            allowed_hosts: vec!["127.0.0.1".into()],
            rewrites: Vec::new(),
            credentials: Credentials::default(),
            ca_bundle: None,
            rate: None,
            connections: 16,
            waits_for_hosts: true,
            patience: Duration::from_secs(600),
            connect_timeout: Duration::from_secs(5),
            max_download: None,
            low_speed_limit: 1,
            low_speed_time: Duration::from_secs(30),
        })
        .unwrap()
    }
}

async fn serve(stream: TcpStream, shared: Arc<Mutex<Shared>>) {
    let mut stream = BufReader::new(stream);
    let (mut path, mut condition, mut line) = (String::new(), None, String::new());
    let (mut range, mut if_range) = (None, None);
    let mut is_head = false;
    loop {
        line.clear();
        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }
        let text = line.trim_end();
        if path.is_empty() {
            path = text.split(' ').nth(1).unwrap().to_owned();
            is_head = text.starts_with("HEAD ");
        } else if text.is_empty() {
            break;
        } else if let Some((name, value)) = text.split_once(": ") {
            match name.to_ascii_lowercase().as_str() {
                "if-none-match" | "if-modified-since" => {
                    condition.get_or_insert(value.to_owned());
                }
                "range" => range = Some(value.to_owned()),
                "if-range" => if_range = Some(value.to_owned()),
                _ => {}
            }
        }
    }
    let together = shared.lock().unwrap().answers.get(&path).and_then(|answer| answer.together.clone());
    if let Some(barrier) = together {
        barrier.wait().await;
    }
    let (head, mut body, stalls_after) = {
        let mut shared = shared.lock().unwrap();
        let answer = shared.answers.get(&path).cloned().unwrap_or_else(|| Answer::status(404));
        let validators = answer.headers.iter().filter(|(name, _)| ["ETag", "Last-Modified"].contains(name));
        let matches = condition.is_some() && validators.map(|(_, value)| Some(value.clone())).any(|v| v == condition);
        shared.ranges.push((path.clone(), range.clone().unwrap_or_default()));
        let etag = answer.headers.iter().find(|(name, _)| *name == "ETag").map(|(_, value)| value.clone());
        let range = range.filter(|_| if_range.is_none() || if_range == etag);
        let (status, mut body, content_range) = match (matches, range) {
            (true, _) => (304, Vec::new(), None),
            (false, Some(range)) if answer.ranges != Ranges::Ignored => part(&range, answer.ranges, &answer.body),
            (false, _) => (answer.status, answer.body.clone(), None),
        };
        let mut head = format!("HTTP/1.1 {status} Status\r\nConnection: close\r\n").into_bytes();
        if !matches {
            write!(head, "Content-Length: {}\r\n", body.len()).unwrap();
        }
        if answer.ranges != Ranges::Ignored {
            head.extend(b"Accept-Ranges: bytes\r\n");
        }
        if let Some(content_range) = content_range {
            write!(head, "Content-Range: {content_range}\r\n").unwrap();
        }
        for (name, value) in &answer.headers {
            write!(head, "{name}: {value}\r\n").unwrap();
        }
        head.extend(b"\r\n");
        if answer.cuts > 0 {
            body.truncate(body.len() / 2);
            shared.answers.get_mut(&path).unwrap().cuts -= 1;
        }
        if is_head {
            body.clear();
        }
        shared.log.push(Asked { path, conditional: condition.is_some(), sent: body.len() });
        (head, body, answer.stalls_after)
    };
    let is_stalled = stalls_after.is_some_and(|bytes| bytes < body.len());
    body.truncate(stalls_after.unwrap_or(body.len()));
    // The client may have gone: a fault of its test, if any.
    let _ = stream.write_all(&[head, body].concat()).await;
    if is_stalled {
        // Until the test is over.
        std::future::pending::<()>().await;
    }
    let _ = stream.shutdown().await;
}

/// Status, body and `Content-Range` for `bytes=FIRST-[LAST]` or `bytes=-BYTES`.
fn part(range: &str, ranges: Ranges, whole: &[u8]) -> (u16, Vec<u8>, Option<String>) {
    let length = whole.len();
    let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    let refused = ranges == Ranges::Refused || (first.is_empty() && ranges == Ranges::FromStart);
    let (first, past): (usize, usize) = match (first, last) {
        ("", bytes) => (length.saturating_sub(bytes.parse().unwrap()), length),
        (first, "") => (first.parse().unwrap(), length),
        (first, last) => (first.parse().unwrap(), length.min(last.parse::<usize>().unwrap() + 1)),
    };
    if refused || first >= past {
        return (416, Vec::new(), Some(format!("bytes */{length}")));
    }
    let shift = usize::from(ranges == Ranges::Shifted);
    let total = if ranges == Ranges::Lengthless { "*".to_owned() } else { length.to_string() };
    let content_range = format!("bytes {}-{}/{total}", first + shift, past - 1);
    (206, whole[first + shift..past].to_vec(), Some(content_range))
}

/// Limits that no test document meets.
pub(crate) fn limits() -> Limits {
    Limits::default()
}

/// A document of the standard: root element, attributes of its `rs:md` (none where empty), links and entries.
pub(crate) fn document(root: &str, md: &str, links: &[(&str, &str)], entries: &[String]) -> String {
    let namespaces =
        "xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\" xmlns:rs=\"http://www.openarchives.org/rs/terms/\"";
    let links: String =
        links.iter().map(|(relation, href)| format!("<rs:ln rel=\"{relation}\" href=\"{href}\"/>")).collect();
    let md = if md.is_empty() { String::new() } else { format!("<rs:md {md}/>") };
    format!("<?xml version=\"1.0\"?><{root} {namespaces}>{links}{md}{}</{root}>", entries.concat())
}

/// A `<urlset>`.
pub(crate) fn urlset(md: &str, links: &[(&str, &str)], entries: &[String]) -> String {
    document("urlset", md, links, entries)
}

/// A `<sitemapindex>`.
pub(crate) fn sitemapindex(md: &str, links: &[(&str, &str)], children: &[&str]) -> String {
    let entries: Vec<String> = children.iter().map(|loc| format!("<sitemap><loc>{loc}</loc></sitemap>")).collect();
    document("sitemapindex", md, links, &entries)
}

/// A `<url>` with the attributes of its `rs:md` (none where empty).
pub(crate) fn url(loc: &str, md: &str) -> String {
    let md = if md.is_empty() { String::new() } else { format!("<rs:md {md}/>") };
    format!("<url><loc>{loc}</loc>{md}</url>")
}

/// A `<url>` that says which capability its document has.
pub(crate) fn offer(capability: &str, loc: &str) -> String {
    url(loc, &format!("capability=\"{capability}\""))
}

/// A Resource List of one resource.
pub(crate) fn resource_list(resource: &str) -> String {
    urlset("capability=\"resourcelist\" at=\"2013-01-03T09:00:00Z\"", &[], &[url(resource, "")])
}
