//! One place asked: a document, a page, or nothing there. A failure may pass, so no other place is taken instead.

use super::is_well_known;
use crate::document::{
    Deviations, DocumentError, Entry, Limits, Reader, Uri, WebLink,
    web_link::{links_of_html, links_of_link_set},
};
use crate::platform::error_chain::chain;
use crate::platform::scheduling::off_the_workers;
use crate::source::{
    ACCEPT, DocumentLocation, SourceError, body_retries,
    document_kind::{DocumentKind, DocumentStart},
    documents::{DocumentCache, unpacked},
    http::{Client, HttpError, Request, Status},
};
use std::{
    fs::File,
    io::{BufRead, Read},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Deadline for the head of an answer, retries included; a client with less patience has its own.
const HEAD_DUE: Duration = Duration::from_secs(30);

/// Bytes of a document that show what it is.
const BEGINNING: u64 = 64 * 1024;

/// Bytes that are read of a page, or of robots.txt.
pub(super) const PAGE: u64 = 1024 * 1024;

/// Bytes of all Source Descriptions and Capability Lists together that are longer than [`BEGINNING`]: a Source that nests them
/// must not fill the memory. It is also the most that one of them unpacks to.
pub(super) const OFFERS: u64 = 64 * 1024 * 1024;

/// Part of the address of an OAI-PMH request in a page, lower case.
const OAI_REQUEST: &str = "verb=identify";

/// The description of a page with such a request goes on like this.
const OAI_PMH: &str = "; it links to OAI-PMH";

/// How places are asked; clones count together.
#[derive(Clone)]
pub(super) struct Places {
    pub client: Client,
    pub limits: Limits,
    /// Lists that are asked in any case, so not here.
    pub lists: Option<Arc<DocumentCache>>,
    /// Bytes that count against [`OFFERS`].
    received: Arc<AtomicU64>,
}

/// Content of a place that answered.
pub(super) enum PlaceAnswer {
    /// A ResourceSync document or sitemap.
    Document(FoundDocument),
    /// Anything else.
    Page(Page),
    /// The place answers for good that there is nothing for this program.
    Nothing(HttpError),
}

impl PlaceAnswer {
    /// The document, or why there is none at `place`.
    pub fn document(self, place: &Uri) -> Result<FoundDocument, String> {
        match self {
            PlaceAnswer::Document(document) => Ok(document),
            PlaceAnswer::Page(page) => Err(format!("{place} ({})", page.description())),
            PlaceAnswer::Nothing(cause) => Err(chain(&cause)),
        }
    }
}

/// A document: its beginning, or all of it where it is, or may be the index of, one of [`DocumentKind::Offers`].
pub(super) struct FoundDocument {
    /// Location of the request.
    pub location: DocumentLocation,
    /// Address after redirects; `None` for a file.
    pub base: Option<Uri>,
    pub head: DocumentStart,
    body: Beginning,
}

/// Entries of a document of [`DocumentKind::Offers`].
pub(super) struct Offered {
    pub entries: Vec<Entry>,
    /// Entries that cannot be understood.
    pub skipped: u64,
    pub deviations: Deviations,
}

/// An answer that is not a document.
pub(super) struct Page {
    /// Address after redirects.
    pub base: Uri,
    /// Links of its header, then those of its HTML head.
    pub links: Vec<WebLink>,
    /// Number of those of its header.
    of_header: usize,
    /// Reason why it is not a document.
    pub cause: DocumentError,
    media_type: Option<Box<str>>,
    body: Beginning,
}

/// The beginning of a body.
struct Beginning {
    bytes: Vec<u8>,
    /// True if there are no more.
    is_whole: bool,
}

impl FoundDocument {
    /// Kind of the document.
    pub fn kind(&self) -> DocumentKind {
        self.head.kind()
    }

    /// Returns whether its place is that of a Source Description and it says nothing: its entries decide what it is.
    pub fn is_silent_description(&self) -> bool {
        self.head.is_silent_list() && self.location.uri().is_some_and(is_well_known)
    }

    /// All of a document of [`DocumentKind::Offers`], of up to `most` entries.
    pub fn read(&self, limits: Limits, most: usize) -> Result<Offered, SourceError> {
        let broken = |cause| SourceError::Document { location: self.location.clone(), cause };
        if !self.body.is_whole {
            return Err(too_much(&self.location, &format!("{OFFERS} bytes")));
        }
        let limits = Limits { document: limits.document.min(OFFERS), ..limits };
        let mut reader = self.body.reader(self.base.clone(), limits).map_err(broken)?;
        let mut entries = Vec::new();
        while let Some(entry) = reader.next_entry().map_err(broken)? {
            if entries.len() >= most {
                return Err(too_much(&self.location, &format!("{most} entries")));
            }
            entries.push(entry);
        }
        Ok(Offered { entries, skipped: reader.skipped(), deviations: reader.deviations().clone() })
    }
}

fn too_much(location: &DocumentLocation, what: &str) -> SourceError {
    let what = format!("a Source Description or Capability List of more than {what}");
    SourceError::Structure { location: location.clone(), what }
}

impl Page {
    /// A page that its server calls HTML.
    pub fn is_html(&self) -> bool {
        self.media_type.as_deref().is_some_and(is_html)
    }

    /// Targets of its links by `rel`: those of its header, and those of its HTML head.
    pub fn targets(&self, rel: &str) -> [Vec<Uri>; 2] {
        let (of_header, of_html) = self.links.split_at(self.of_header);
        [of_header, of_html].map(|links| links.iter().filter_map(|link| link.leads_by(rel)).cloned().collect())
    }

    /// True if it links to files or metadata records that belong to it.
    pub fn is_landing_page(&self) -> bool {
        ["item", "describedby", "linkset"].iter().any(|rel| self.links.iter().any(|link| link.leads_by(rel).is_some()))
    }

    /// Its links, if it is a link set, or why it is none.
    pub fn link_set(&self) -> Result<Vec<WebLink>, String> {
        let media_type = self.media_type.as_deref().unwrap_or_default();
        let is_json = media_type.ends_with("json");
        if !is_json && media_type != "application/linkset" {
            return Err(self.description());
        }
        links_of_link_set(&self.body.plain(), is_json, &self.base).map_err(|error| chain(&error))
    }

    /// The beginning of its text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body.plain()).into_owned()
    }

    /// Returns whether all of it was read.
    pub fn is_whole(&self) -> bool {
        self.body.is_whole
    }

    /// Returns whether it may be a robots.txt: a web page in its place is none.
    pub fn may_be_robots(&self) -> bool {
        !self.is_html() && !self.body.plain().trim_ascii_start().starts_with(b"<")
    }

    /// A text of addresses, though not as a text sitemap has them.
    pub fn is_nearly_list(&self) -> bool {
        matches!(self.cause, DocumentError::NotLines { .. })
    }

    /// Description of the page, for a person who expected a document.
    pub fn description(&self) -> String {
        let instead =
            if self.is_html() && self.text().to_ascii_lowercase().contains(OAI_REQUEST) { OAI_PMH } else { "" };
        match (self.cause.format(), self.media_type.as_deref()) {
            _ if self.is_nearly_list() => self.cause.to_string(),
            (Some(format), _) => format!("{format}, which is not supported"),
            (None, Some(media_type)) => format!("{media_type}, not a sitemap{instead}"),
            (None, None) => "not a sitemap".to_owned(),
        }
    }
}

impl Beginning {
    /// A reader at the start.
    fn reader(&self, base: Option<Uri>, limits: Limits) -> Result<Reader<Box<dyn BufRead + Send + '_>>, DocumentError> {
        Reader::new(unpacked(&*self.bytes, limits.document)?, base, limits)
    }

    /// The head, if this is a document. One that is damaged behind its root element is a document all the same:
    /// the reader that reads it to the end finds that, while to pass it over would be to name another tree.
    fn head(&self, base: Option<&Uri>, limits: Limits) -> Result<DocumentStart, DocumentError> {
        off_the_workers(|| DocumentStart::read(&mut self.reader(base.cloned(), limits)?, true))
    }

    /// The bytes of a page with its compression, if any, undone.
    fn plain(&self) -> Vec<u8> {
        let mut plain = Vec::new();
        // A beginning ends within the compression: the bytes before that end are used.
        let _ = unpacked(&*self.bytes, PAGE).and_then(|bytes| bytes.take(PAGE).read_to_end(&mut plain));
        plain
    }
}

impl Places {
    pub fn new(client: Client, limits: Limits) -> Places {
        Places { client, limits, lists: None, received: Arc::default() }
    }

    /// Asks `uri`, and reads as much of the answer as shows what it is.
    pub async fn ask(&self, uri: &Uri) -> Result<PlaceAnswer, SourceError> {
        self.ask_whether(uri, false).await
    }

    /// Asks `uri`, which nothing names: most sites have nothing there.
    pub async fn look_at(&self, uri: &Uri) -> Result<PlaceAnswer, SourceError> {
        self.ask_whether(uri, true).await
    }

    async fn ask_whether(&self, uri: &Uri, may_be_absent: bool) -> Result<PlaceAnswer, SourceError> {
        if let Some(list) = off_the_workers(|| self.known(uri)) {
            return Ok(PlaceAnswer::Document(list));
        }
        let mut pauses = body_retries();
        loop {
            let answer = self.ask_once(uri, may_be_absent).await;
            let is_broken = matches!(&answer, Err(SourceError::Http { cause, .. }) if is_of_the_body(cause));
            let Some(pause) = pauses.next().filter(|_| is_broken) else { return answer };
            tokio::time::sleep(pause).await;
        }
    }

    /// The list of `uri` as it was read last.
    fn known(&self, uri: &Uri) -> Option<FoundDocument> {
        let (lists, location) = (self.lists.as_ref()?, DocumentLocation::Uri(uri.clone()));
        let list = lists.known(&location)?;
        let (mut content, mut bytes) = (lists.content(&list).ok()?, Vec::new());
        (&mut content).take(BEGINNING).read_to_end(&mut bytes).ok()?;
        let mut body = Beginning { bytes, is_whole: list.size <= BEGINNING };
        let head = body.head(list.base.as_ref(), self.limits).ok()?;
        if !body.is_whole && wanted_of(&head, uri) > BEGINNING {
            (&mut content).take(OFFERS - BEGINNING).read_to_end(&mut body.bytes).ok()?;
            body.is_whole = list.size <= OFFERS;
        }
        Some(FoundDocument { location, base: list.base, head, body })
    }

    async fn ask_once(&self, uri: &Uri, may_be_absent: bool) -> Result<PlaceAnswer, SourceError> {
        let location = DocumentLocation::Uri(uri.clone());
        let failed = |cause| SourceError::Http { location: location.clone(), cause };
        let mut request = Request::get(uri.clone(), self.client.longest_silence().min(HEAD_DUE));
        request.is_document = true;
        request.may_be_absent = may_be_absent;
        request.accept = Some(ACCEPT.into());
        request.accept_encoding = "gzip".into();
        let mut response = match self.client.send(request).await {
            Err(cause) if is_definite(&cause) => return Ok(PlaceAnswer::Nothing(cause)),
            sent => sent.map_err(failed)?,
        };
        let media_type = response.media_type;
        let base = response.final_uri;
        // Neither a range nor a condition was asked for: an answer without bytes is not a document.
        let mut body = Beginning { bytes: Vec::new(), is_whole: response.status != Status::Full };
        let mut wanted = BEGINNING;
        let head = loop {
            while !body.is_whole && (body.bytes.len() as u64) < wanted {
                let Some(bytes) = response.body.chunk().await.map_err(failed)? else {
                    body.is_whole = true;
                    break;
                };
                body.bytes.extend_from_slice(&bytes);
                if wanted == OFFERS {
                    let before = self.received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    if before + bytes.len() as u64 > OFFERS {
                        let what = format!("{OFFERS} bytes, with those that were read before it");
                        return Err(too_much(&location, &what));
                    }
                }
            }
            let head = body.head(Some(&base), self.limits);
            let more = head.as_ref().map_or(PAGE, |head| wanted_of(head, uri));
            if body.is_whole || more <= wanted {
                break head;
            }
            wanted = more;
        };
        Ok(match head {
            Ok(head) => PlaceAnswer::Document(FoundDocument { location, base: Some(base), head, body }),
            // No other place makes up for a document that is longer than may be read.
            Err(cause @ DocumentError::TooLong { .. }) => {
                return Err(SourceError::Document { location, cause });
            }
            Err(cause) => {
                let of_header = response.links.len();
                let mut links = response.links;
                if media_type.as_deref().is_none_or(is_html) {
                    links.extend(off_the_workers(|| links_of_html(&body.plain(), &base)).0);
                }
                PlaceAnswer::Page(Page { base, links, of_header, cause, media_type, body })
            }
        })
    }
}

/// Bytes that are wanted of the document at `uri`: all of one whose entries lead to sets.
fn wanted_of(head: &DocumentStart, uri: &Uri) -> u64 {
    let may_offer = head.is_silent_index() || head.is_silent_list() && is_well_known(uri);
    if may_offer || head.kind() == DocumentKind::Offers { OFFERS } else { BEGINNING }
}

fn is_html(media_type: &str) -> bool {
    media_type.contains("html")
}

/// Returns whether a failure says for good that there is nothing at a place. A name, a connection or a certificate that
/// fails says nothing of the place.
fn is_definite(failure: &HttpError) -> bool {
    match failure {
        HttpError::Status { .. } => !failure.is_retryable(),
        HttpError::AddressRefused { .. } | HttpError::TooManyRedirects { .. } | HttpError::BadRedirect { .. } => true,
        _ => false,
    }
}

/// Returns whether the head of the answer was here: the next body may be whole.
fn is_of_the_body(failure: &HttpError) -> bool {
    use HttpError::*;
    matches!(failure, Stalled { .. } | Truncated { .. } | Overlong { .. } | Body { .. })
}

/// Reads as much of the file of a document as shows what it is.
pub(super) fn open(path: &Path, limits: Limits) -> Result<FoundDocument, SourceError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(OFFERS).read_to_end(&mut bytes));
    let read = read.map_err(|cause| SourceError::File { path: path.to_owned(), cause })?;
    let location = DocumentLocation::File(path.to_owned());
    let body = Beginning { bytes, is_whole: (read as u64) < OFFERS };
    match body.head(None, limits) {
        Ok(head) => Ok(FoundDocument { location, base: None, head, body }),
        Err(cause) => Err(SourceError::Document { location, cause }),
    }
}
