//! One place asked: a document, something else, or nothing there.

use super::{html, is_well_known};
use crate::document::{Deviations, DocumentError, Entry, Limits, Reader, Uri};
use crate::source::{
    ACCEPT, DocumentLocation, SourceError,
    documents::outermost_but_one,
    head::{Head, Kind},
    http::{Body, Client, HttpError, Request, Response, Status},
    off_the_workers,
};
use flate2::read::MultiGzDecoder;
use std::{
    borrow::Cow,
    fs::File,
    io::{BufRead, Cursor, Read},
    path::Path,
    time::Duration,
};

/// The head of an answer is due within this, repetitions included, or sooner where less patience is asked for.
const HEAD_DUE: Duration = Duration::from_secs(30);

/// Received of a document that are looked at to tell what it is.
const BEGINNING: u64 = 64 * 1024;

/// Received of a page, or of robots.txt, that are looked at.
const PAGE: u64 = 1024 * 1024;

/// Received of a Source Description or Capability List as they come, and unpacked.
const OFFERS: u64 = 32 * 1024 * 1024;
const UNPACKED: u64 = 8 * OFFERS;

/// Times that a body which broke is asked for anew, and the pause before.
const BODY_RETRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

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
    bytes: Received,
}

/// What a document of [`Kind::Offers`] holds.
pub(super) struct Offered {
    pub entries: Vec<Entry>,
    /// Entries that cannot be understood.
    pub skipped: u64,
    pub deviations: Deviations,
}

/// What is no document.
pub(super) struct Page {
    /// Where it came from after redirects; `None` for a file.
    pub base: Option<Uri>,
    /// Targets of `Link: …; rel="resourcesync"`.
    pub headers: Vec<Uri>,
    /// Why it is no document.
    pub cause: DocumentError,
    media_type: Option<Box<str>>,
    bytes: Received,
}

/// Why there is no answer to go on with.
pub(super) enum Silence {
    /// The place said for good that there is nothing for us.
    Nothing(HttpError),
    /// It may say something else next time, so no other place may be taken instead.
    Failed(SourceError),
}

/// The beginning of a body.
struct Received {
    bytes: Vec<u8>,
    /// Whether there are no more.
    whole: bool,
}

impl Document {
    /// What it is.
    pub fn kind(&self) -> Kind {
        self.head.kind()
    }

    /// Whether it lies where a Source Description is expected and says nothing: its entries decide what it is.
    pub fn is_silent_description(&self) -> bool {
        self.head.is_silent_list() && matches!(&self.location, DocumentLocation::Uri(uri) if is_well_known(uri))
    }

    /// All of a document of [`Kind::Offers`], of up to `most` entries.
    pub fn read(&self, limits: Limits, most: usize) -> Result<Offered, SourceError> {
        let broken = |cause| SourceError::Document { location: self.location.clone(), cause };
        let too_much = |what: String| {
            let what = format!("a Source Description or Capability List of more than {what}");
            SourceError::Structure { location: self.location.clone(), what }
        };
        if !self.bytes.whole {
            return Err(too_much(format!("{OFFERS} bytes")));
        }
        let limits = Limits { document: limits.document.min(UNPACKED), ..limits };
        let mut reader = self.bytes.reader(self.base.clone(), limits).map_err(broken)?;
        let mut entries = Vec::new();
        while let Some(entry) = reader.next_entry().map_err(broken)? {
            if entries.len() >= most {
                return Err(too_much(format!("{most} entries")));
            }
            entries.push(entry);
        }
        Ok(Offered { entries, skipped: reader.skipped(), deviations: reader.deviations().clone() })
    }
}

impl Page {
    /// Targets of `<link rel="resourcesync">`, where this is HTML.
    pub fn html_links(&self) -> Vec<Uri> {
        if !self.may_be_html() {
            return Vec::new();
        }
        let links = html::resourcesync_links(&self.bytes.plain());
        let base =
            links.base.and_then(|base| Uri::resolve(self.base.as_ref(), &base).ok()).or_else(|| self.base.clone());
        links.hrefs.iter().filter_map(|href| Uri::resolve(base.as_ref(), href).ok()).collect()
    }

    /// Its text, as far as it was read.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.plain()).into_owned()
    }

    /// Whether robots.txt may look like this: a web page in its place is none.
    pub fn may_be_robots(&self) -> bool {
        let html = self.media_type.as_deref().is_some_and(|media_type| media_type.contains("html"));
        !html && !self.bytes.plain().trim_ascii_start().starts_with(b"<")
    }

    /// What was found instead of a document.
    pub fn description(&self) -> String {
        match (self.cause.format(), self.media_type.as_deref()) {
            (Some(format), _) => format!("{format}, which is not read"),
            (None, Some(media_type)) => format!("{media_type}, no document"),
            (None, None) => "no document".to_owned(),
        }
    }

    fn may_be_html(&self) -> bool {
        may_be_html(self.media_type.as_deref())
    }
}

impl Received {
    /// A reader at the start.
    fn reader(&self, base: Option<Uri>, limits: Limits) -> Result<Reader<Box<dyn BufRead + Send + '_>>, DocumentError> {
        Reader::new(outermost_but_one(Cursor::new(&*self.bytes), limits.document)?, base, limits)
    }

    /// The head, if this is a document. One that is damaged behind its root element is a document all the same:
    /// whoever reads it to the end meets that, while to pass it over would be to name another tree.
    fn head(&self, base: Option<&Uri>, limits: Limits) -> Result<Head, DocumentError> {
        off_the_workers(|| Head::read(&mut self.reader(base.cloned(), limits)?, true))
    }

    /// The bytes of a page with its compression, if any, undone.
    fn plain(&self) -> Cow<'_, [u8]> {
        if !self.bytes.starts_with(&[0x1f, 0x8b]) {
            return Cow::Borrowed(&self.bytes);
        }
        let mut plain = Vec::new();
        // A beginning ends within the compression: what came out until then is what there is to look at.
        let _ = MultiGzDecoder::new(&*self.bytes).take(PAGE).read_to_end(&mut plain);
        Cow::Owned(plain)
    }

    /// How many bytes are worth having, after what is there now.
    fn wanted(&self, asked: Option<&Uri>, base: Option<&Uri>, media_type: Option<&str>, limits: Limits) -> u64 {
        match self.head(base, limits) {
            Ok(head) if head.kind() == Kind::Offers || head.is_silent_index() => OFFERS,
            Ok(head) if head.is_silent_list() && asked.is_some_and(is_well_known) => OFFERS,
            Ok(_) => BEGINNING,
            Err(_) if may_be_html(media_type) || media_type.is_some_and(|t| t.starts_with("text/")) => PAGE,
            Err(_) => BEGINNING,
        }
    }
}

fn may_be_html(media_type: Option<&str>) -> bool {
    media_type.is_none_or(|media_type| media_type.contains("html"))
}

/// Asks `uri`, and reads as much of the answer as tells what it is.
pub(super) async fn ask(client: &Client, uri: &Uri, limits: Limits) -> Result<Answer, Silence> {
    let location = DocumentLocation::Uri(uri.clone());
    let mut retries = 0;
    loop {
        let cause = match ask_once(client, uri, limits).await {
            Ok((mut response, bytes)) => {
                let base = Some(response.final_uri);
                return Ok(match bytes.head(base.as_ref(), limits) {
                    Ok(head) => Answer::Document(Document { location, base, head, bytes }),
                    // More of a document than may be read is not for another place to make up for.
                    Err(cause @ DocumentError::TooLong { .. }) => {
                        return Err(Silence::Failed(SourceError::Document { location, cause }));
                    }
                    Err(cause) => {
                        response.links.retain(|(relation, _)| {
                            relation.split_ascii_whitespace().any(|r| r.eq_ignore_ascii_case("resourcesync"))
                        });
                        let headers = response.links.into_iter().map(|(_, target)| target).collect();
                        Answer::Page(Page { base, headers, cause, media_type: response.media_type, bytes })
                    }
                });
            }
            Err(Broken::Head(cause)) if is_definite(&cause) => return Err(Silence::Nothing(cause)),
            Err(Broken::Head(cause)) => cause,
            Err(Broken::Body(_)) if retries < BODY_RETRIES => {
                tokio::time::sleep(PAUSE * 2_u32.pow(retries)).await;
                retries += 1;
                continue;
            }
            Err(Broken::Body(cause)) => cause,
        };
        return Err(Silence::Failed(SourceError::Http { location, cause }));
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

/// Reads as much of a file as tells what it is.
pub(super) fn open(path: &Path, limits: Limits) -> Result<Answer, SourceError> {
    let failed = |cause| SourceError::File { path: path.to_owned(), cause };
    let mut file = File::open(path).map_err(failed)?;
    let mut bytes = Received { bytes: Vec::new(), whole: false };
    let mut wanted = BEGINNING;
    while !bytes.whole && (bytes.bytes.len() as u64) < wanted {
        let missing = wanted - bytes.bytes.len() as u64;
        let read = file.by_ref().take(missing).read_to_end(&mut bytes.bytes).map_err(failed)?;
        bytes.whole = (read as u64) < missing;
        wanted = bytes.wanted(None, None, None, limits);
    }
    Ok(match bytes.head(None, limits) {
        Ok(head) => {
            Answer::Document(Document { location: DocumentLocation::File(path.to_owned()), base: None, head, bytes })
        }
        Err(cause) => Answer::Page(Page { base: None, headers: Vec::new(), cause, media_type: None, bytes }),
    })
}

/// Where a request broke.
enum Broken {
    Head(HttpError),
    Body(HttpError),
}

/// The response (its body read as far as wanted, and closed) and that much of its body.
async fn ask_once(client: &Client, uri: &Uri, limits: Limits) -> Result<(Response, Received), Broken> {
    let mut request = Request::get(uri.clone(), client.patience().min(HEAD_DUE));
    request.is_document = true;
    request.accept = Some(ACCEPT.into());
    request.accept_encoding = "gzip".into();
    let mut response = client.send(request).await.map_err(Broken::Head)?;
    let mut bytes = Received { bytes: Vec::new(), whole: false };
    if response.status != Status::Full {
        // Neither a range nor a condition was asked for: an answer without bytes is no document.
        bytes.whole = true;
        return Ok((response, bytes));
    }
    let mut wanted = BEGINNING;
    loop {
        bytes.read_to(&mut response.body, wanted).await.map_err(Broken::Body)?;
        let more = bytes.wanted(Some(uri), Some(&response.final_uri), response.media_type.as_deref(), limits);
        if bytes.whole || more <= wanted {
            return Ok((response, bytes));
        }
        wanted = more;
    }
}

impl Received {
    async fn read_to(&mut self, body: &mut Body, wanted: u64) -> Result<(), HttpError> {
        while !self.whole && (self.bytes.len() as u64) < wanted {
            match body.chunk().await? {
                Some(bytes) => self.bytes.extend_from_slice(&bytes),
                None => self.whole = true,
            }
        }
        Ok(())
    }
}
