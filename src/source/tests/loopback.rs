//! A server for tests: a table of answers on loopback, with the faults that real servers have.

use super::server::{Act, Received, Reply, Server};
use crate::document::{Limits, Uri};
use crate::source::http::{Client, Credentials, HttpConfig};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Barrier;

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

/// The server.
pub(crate) struct Loopback {
    pub authority: String,
    shared: Arc<Mutex<Shared>>,
    _server: Server,
}

impl Loopback {
    pub fn start() -> Loopback {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let (answering, runtime) = (Arc::clone(&shared), Handle::current());
        let server = Server::start(move |request| {
            let path = &request.path;
            let together = answering.lock().unwrap().answers.get(path).and_then(|answer| answer.together.clone());
            if let Some(barrier) = together {
                runtime.block_on(barrier.wait());
            }
            answering.lock().unwrap().acts(request)
        });
        Loopback { authority: server.authority(), shared, _server: server }
    }

    /// The answer at `path`.
    pub fn answer(&self, path: &str) -> Answer {
        self.shared.lock().unwrap().answers.get(path).cloned().unwrap_or_default()
    }

    /// A server with the answers of `table`.
    pub fn with(table: &[(&str, Answer)]) -> Loopback {
        let server = Loopback::start();
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

impl Shared {
    fn acts(&mut self, request: &Received) -> Vec<Act> {
        let path = &request.path;
        let answer = self.answers.get(path).cloned().unwrap_or_else(|| Answer::status(404));
        let header = |name| answer.headers.iter().find(|(header, _)| *header == name).map(|(_, value)| value.as_str());
        let condition = request.field("if-none-match").or(request.field("if-modified-since"));
        let matches = condition.is_some() && [header("ETag"), header("Last-Modified")].contains(&condition);
        let range = request.field("range");
        self.ranges.push((path.clone(), range.unwrap_or_default().to_owned()));
        let if_range = request.field("if-range");
        let range = range.filter(|_| if_range.is_none() || if_range == header("ETag"));
        let (status, body, content_range) = match (matches, range) {
            (true, _) => (304, Vec::new(), None),
            (false, Some(range)) if answer.ranges != Ranges::Ignored => part(range, answer.ranges, &answer.body),
            (false, _) => (answer.status, answer.body.clone(), None),
        };
        let mut sent = if request.is_head() { 0 } else { body.len() };
        if answer.cuts > 0 {
            sent /= 2;
            self.answers.get_mut(path).unwrap().cuts -= 1;
        }
        self.log.push(Asked { path: path.clone(), conditional: condition.is_some(), sent });
        let stalls = answer.stalls_after.is_some_and(|bytes| bytes < sent);
        let ranges = (answer.ranges != Ranges::Ignored).then(|| ("Accept-Ranges", "bytes".to_owned()));
        let content_range = content_range.map(|range| ("Content-Range", range));
        let fields = [("Connection", "close".to_owned())].into_iter().chain(ranges).chain(content_range);
        let reply = Reply::of(body.into()).with_status(status).cut_at(sent.min(answer.stalls_after.unwrap_or(sent)));
        let reply = fields.chain(answer.headers).fold(reply, |reply, (name, value)| reply.with(name, &value));
        let mut acts = reply.acts(request.is_head());
        if stalls {
            acts.pop();
            acts.push(Act::Hang);
        }
        acts
    }
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
