//! One place asked: a document, a page, or nothing there.

use super::{html, is_well_known};
use crate::document::{Deviations, DocumentError, Entry, Limits, Reader, Uri};
use crate::source::{
    ACCEPT, DocumentLocation, SourceError,
    documents::outermost_but_one,
    head::{Head, Kind},
    http::{Client, HttpError, Request, Status},
    off_the_workers,
};
use flate2::read::MultiGzDecoder;
use std::{
    borrow::Cow,
    fs::File,
    io::{BufRead, Cursor, Read},
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
const PAGE: u64 = 1024 * 1024;

/// Bytes of all Source Descriptions and Capability Lists together that are longer than [`BEGINNING`]: a Source that nests them
/// must not fill the memory. It is also the most that one of them unpacks to.
pub(super) const OFFERS: u64 = 64 * 1024 * 1024;

/// Retries of a request whose body broke, and the pause before the first.
const BODY_RETRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// How places are asked; clones count together.
#[derive(Clone)]
pub(super) struct Places {
    pub client: Client,
    pub limits: Limits,
    /// Bytes that count against [`OFFERS`].
    received: Arc<AtomicU64>,
}

/// What lies at a place that answered.
pub(super) enum Answer {
    /// A ResourceSync document or sitemap.
    Document(Document),
    /// Anything else.
    Page(Page),
}

/// A document: its beginning, or all of it where it is, or may be the index of, one of [`Kind::Offers`].
pub(super) struct Document {
    /// Where it was asked for.
    pub location: DocumentLocation,
    /// Where it came from after redirects; `None` for a file.
    pub base: Option<Uri>,
    pub head: Head,
    body: Beginning,
}

/// What a document of [`Kind::Offers`] holds.
pub(super) struct Offered {
    pub entries: Vec<Entry>,
    /// Entries that cannot be understood.
    pub skipped: u64,
    pub deviations: Deviations,
}

/// An answer that is no document.
pub(super) struct Page {
    /// Where it came from after redirects; `None` for a file.
    pub base: Option<Uri>,
    /// Targets of `Link: …; rel="resourcesync"`.
    pub headers: Vec<Uri>,
    /// Why it is no document.
    pub cause: DocumentError,
    media_type: Option<Box<str>>,
    body: Beginning,
}

/// Why there is no answer to go on with.
pub(super) enum Silence {
    /// The place answers for good that there is nothing for us.
    Nothing(HttpError),
    /// It may answer differently next time, so no other place may be taken instead.
    Failed(SourceError),
}

/// The beginning of a body.
struct Beginning {
    bytes: Vec<u8>,
    /// Whether there are no more.
    is_whole: bool,
}

impl Document {
    /// What it is.
    pub fn kind(&self) -> Kind {
        self.head.kind()
    }

    /// Whether it lies where a Source Description is expected and says nothing: its entries decide what it is.
    pub fn is_silent_description(&self) -> bool {
        self.head.is_silent_list() && self.location.uri().is_some_and(is_well_known)
    }

    /// All of a document of [`Kind::Offers`], of up to `most` entries.
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
    /// Targets of `<link rel="resourcesync">`, where this is HTML.
    pub fn html_links(&self) -> Vec<Uri> {
        if !may_be_html(self.media_type.as_deref()) {
            return Vec::new();
        }
        let links = html::resourcesync_links(&self.body.plain());
        let base =
            links.base.and_then(|base| Uri::resolve(self.base.as_ref(), &base).ok()).or_else(|| self.base.clone());
        links.hrefs.iter().filter_map(|href| Uri::resolve(base.as_ref(), href).ok()).collect()
    }

    /// The beginning of its text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body.plain()).into_owned()
    }

    /// Whether it may be a robots.txt: a web page in its place is none.
    pub fn may_be_robots(&self) -> bool {
        let html = self.media_type.as_deref().is_some_and(|media_type| media_type.contains("html"));
        !html && !self.body.plain().trim_ascii_start().starts_with(b"<")
    }

    /// What was found instead of a document.
    pub fn description(&self) -> String {
        match (self.cause.format(), self.media_type.as_deref()) {
            (Some(format), _) => format!("{format}, which is not read"),
            (None, Some(media_type)) => format!("{media_type}, no document"),
            (None, None) => "no document".to_owned(),
        }
    }
}

impl Beginning {
    /// A reader at the start.
    fn reader(&self, base: Option<Uri>, limits: Limits) -> Result<Reader<Box<dyn BufRead + Send + '_>>, DocumentError> {
        Reader::new(outermost_but_one(Cursor::new(&*self.bytes), limits.document)?, base, limits)
    }

    /// The head, if this is a document. One that is damaged behind its root element is a document all the same:
    /// the reader that reads it to the end finds that, while to pass it over would be to name another tree.
    fn head(&self, base: Option<&Uri>, limits: Limits) -> Result<Head, DocumentError> {
        off_the_workers(|| Head::read(&mut self.reader(base.cloned(), limits)?, true))
    }

    /// The bytes of a page with its compression, if any, undone.
    fn plain(&self) -> Cow<'_, [u8]> {
        if !self.bytes.starts_with(&[0x1f, 0x8b]) {
            return Cow::Borrowed(&self.bytes);
        }
        let mut plain = Vec::new();
        // A beginning ends within the compression: the bytes before that end are used.
        let _ = MultiGzDecoder::new(&*self.bytes).take(PAGE).read_to_end(&mut plain);
        Cow::Owned(plain)
    }
}

fn may_be_html(media_type: Option<&str>) -> bool {
    media_type.is_none_or(|media_type| media_type.contains("html"))
}

impl Places {
    pub fn new(client: Client, limits: Limits) -> Places {
        Places { client, limits, received: Arc::default() }
    }

    /// Asks `uri`, and reads as much of the answer as shows what it is.
    pub async fn ask(&self, uri: &Uri) -> Result<Answer, Silence> {
        let mut retries = 0;
        loop {
            match self.ask_once(uri).await {
                Err(Silence::Failed(SourceError::Http { cause, .. }))
                    if retries < BODY_RETRIES && is_of_the_body(&cause) =>
                {
                    tokio::time::sleep(PAUSE * 2_u32.pow(retries)).await;
                    retries += 1;
                }
                answer => return answer,
            }
        }
    }

    async fn ask_once(&self, uri: &Uri) -> Result<Answer, Silence> {
        let location = DocumentLocation::Uri(uri.clone());
        let failed = |cause| Silence::Failed(SourceError::Http { location: location.clone(), cause });
        let mut request = Request::get(uri.clone(), self.client.patience().min(HEAD_DUE));
        request.is_document = true;
        request.accept = Some(ACCEPT.into());
        request.accept_encoding = "gzip".into();
        let sent = self.client.send(request).await;
        let mut response =
            sent.map_err(|cause| if is_definite(&cause) { Silence::Nothing(cause) } else { failed(cause) })?;
        let media_type = response.media_type;
        let base = Some(response.final_uri);
        // Neither a range nor a condition was asked for: an answer without bytes is no document.
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
                        return Err(Silence::Failed(too_much(&location, &what)));
                    }
                }
            }
            let head = body.head(base.as_ref(), self.limits);
            let more = match &head {
                Ok(head) if head.kind() == Kind::Offers || head.is_silent_index() => OFFERS,
                Ok(head) if head.is_silent_list() && is_well_known(uri) => OFFERS,
                Err(_) if media_type.as_deref().is_none_or(|it| it.contains("html") || it.starts_with("text/")) => PAGE,
                _ => BEGINNING,
            };
            if body.is_whole || more <= wanted {
                break head;
            }
            wanted = more;
        };
        Ok(match head {
            Ok(head) => Answer::Document(Document { location, base, head, body }),
            // No other place makes up for a document that is longer than may be read.
            Err(cause @ DocumentError::TooLong { .. }) => {
                return Err(Silence::Failed(SourceError::Document { location, cause }));
            }
            Err(cause) => {
                response.links.retain(|(relation, _)| {
                    relation.split_ascii_whitespace().any(|r| r.eq_ignore_ascii_case("resourcesync"))
                });
                let headers = response.links.into_iter().map(|(_, target)| target).collect();
                Answer::Page(Page { base, headers, cause, media_type, body })
            }
        })
    }
}

/// Whether a failure says for good that there is nothing at a place. A name, a connection or a certificate that
/// fails says nothing of the place.
fn is_definite(failure: &HttpError) -> bool {
    match failure {
        HttpError::Status { .. } => !failure.is_retryable(),
        HttpError::AddressRefused { .. }
        | HttpError::RedirectLoop { .. }
        | HttpError::TooManyRedirects { .. }
        | HttpError::BadRedirect { .. } => true,
        _ => false,
    }
}

/// Whether the head of the answer was here: the next body may be whole.
fn is_of_the_body(failure: &HttpError) -> bool {
    use HttpError::*;
    matches!(failure, Stalled { .. } | Truncated { .. } | Overlong { .. } | Body { .. })
}

/// Reads as much of a file as shows what it is.
pub(super) fn open(path: &Path, limits: Limits) -> Result<Answer, SourceError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(OFFERS).read_to_end(&mut bytes));
    let read = read.map_err(|cause| SourceError::File { path: path.to_owned(), cause })?;
    let body = Beginning { bytes, is_whole: (read as u64) < OFFERS };
    Ok(match body.head(None, limits) {
        Ok(head) => {
            Answer::Document(Document { location: DocumentLocation::File(path.to_owned()), base: None, head, body })
        }
        Err(cause) => Answer::Page(Page { base: None, headers: Vec::new(), cause, media_type: None, body }),
    })
}
