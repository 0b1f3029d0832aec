//! The server of a package: its end, its ranges, all of it. What comes is counted for the requests that wait for it.

use super::PackageError;
use crate::document::Uri;
use crate::source::http::{Body, Client, HttpError, KnownPause, Priority, Request, Response, Status};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Deadline of a response head, repetitions included; the body has the client's low-speed limit.
const HEAD_DEADLINE: Duration = Duration::from_secs(60);

/// Bytes asked for from the end. The directory's last record is within the last 64 KiB and 22 bytes; the rest holds the
/// directory of about a thousand members, for less than a second request would cost.
const END: u64 = 128 << 10;

/// A package of at most so many bytes that comes whole, although its end was asked for, stays in memory.
pub(super) const IN_MEMORY: u64 = 1 << 20;

/// Bytes that show of what kind a package is: a tar has its mark at 257.
const BEGINNING: usize = 512;

/// Which version of a package bytes belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PackageVersion {
    /// Address after redirects.
    final_uri: String,
    /// A strong ETag: only under one can it be read in place.
    pub etag: Option<Box<str>>,
    /// A weak one: it shows whether the whole is still the same.
    weak_etag: Option<Box<str>>,
    /// `Last-Modified`, as the server wrote it, where it is old enough to distinguish two versions.
    last_modified: Option<Box<str>>,
    /// Bytes of the whole.
    pub length: u64,
}

impl PackageVersion {
    /// The version of a package of which its server publishes nothing.
    pub fn unknown(package: &Uri) -> PackageVersion {
        let (final_uri, length) = (package.to_string(), u64::MAX);
        PackageVersion { final_uri, etag: None, weak_etag: None, last_modified: None, length }
    }

    /// The base of the manifest's relative references.
    pub fn base(&self, package: &Uri) -> Uri {
        Uri::parse(&self.final_uri).unwrap_or_else(|_| package.clone())
    }

    /// Returns whether another version would differ from it in more than its length.
    pub fn has_validator(&self) -> bool {
        self.etag.is_some() || self.weak_etag.is_some() || self.last_modified.is_some()
    }
}

/// The answer to a request for the end of a package.
pub(super) enum PackageAnswer {
    /// The bytes from an offset on to the end of a version.
    End(PackageVersion, u64, Vec<u8>),
    /// The server still has the known version.
    Same,
    /// Whole package on its way: it cannot be read in place.
    Whole(Box<Response>),
}

/// Bytes of bodies that came for one purpose, and milliseconds of known pauses.
pub(super) type Counter = Arc<AtomicU64>;

/// The answer to a request for the head of a package.
pub(super) struct PackageHead {
    pub version: PackageVersion,
    /// True if the server announces all that a package is read in place by.
    pub is_read_in_place: bool,
    /// True if a web page answers.
    pub is_page: bool,
}

/// The bytes that came of what one request waits for. Bytes of other members are none of them.
#[derive(Clone, Debug, Default)]
pub struct Received(Arc<Mutex<Vec<Counter>>>);

impl Received {
    /// Bytes so far, which rise while they come.
    pub fn bytes(&self) -> u64 {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }

    /// Adds what another counter counts.
    pub(super) fn add(&self, counter: &Counter) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(counter));
    }
}

/// The server of one package, as it is asked for one purpose.
#[derive(Clone, Debug)]
pub(super) struct PackageServer {
    client: Client,
    pub package: Uri,
    pub received: Counter,
    /// True if no reader waits for it.
    is_background: bool,
}

impl PackageServer {
    pub fn new(client: &Client, package: &Uri) -> PackageServer {
        let (client, received) = (client.clone(), Counter::default());
        PackageServer { client, package: package.clone(), received, is_background: false }
    }

    /// Server whose requests give way to those of readers.
    pub fn in_background(self) -> PackageServer {
        PackageServer { is_background: true, ..self }
    }

    /// Asks which version the server has, without its bytes. `None`: still the known one.
    pub async fn version(&self, known: Option<&PackageVersion>) -> Result<Option<PackageHead>, PackageError> {
        let response = self.send(conditional(Request::head(self.package.clone(), HEAD_DEADLINE), known)).await?;
        match (response.status, response.content_length) {
            (Status::NotModified, _) => Ok(None),
            (_, Some(length)) => {
                let version = self.version_of(&response, length)?;
                let is_page = response.media_type.as_deref() == Some("text/html");
                let is_read_in_place = response.accepts_ranges && version.etag.is_some();
                Ok(Some(PackageHead { version, is_read_in_place, is_page }))
            }
            (_, None) => Err(PackageError::damaged(&self.package, "its server does not publish its length")),
        }
    }

    /// Asks for the end. With `known` the answer can be that it is still that version.
    pub async fn end(&self, known: Option<&PackageVersion>) -> Result<PackageAnswer, PackageError> {
        let request = Request { suffix: Some(END), ..conditional(self.get(), known) };
        let length = match self.client.send(self.waiting(request)).await {
            Ok(response) => match (response.status, response.content_length) {
                (Status::Full, Some(length)) if length > IN_MEMORY && strong(&response).is_some() => Some(length),
                _ => return self.answer(response).await,
            },
            // A server that cannot count from the end says that the range cannot be satisfied, or sends another.
            Err(HttpError::Status { status: 416, .. } | HttpError::WrongRange { .. }) => {
                self.send(Request::head(self.package.clone(), HEAD_DEADLINE)).await?.content_length
            }
            Err(cause) => return Err(self.http(cause)),
        };
        match length {
            None => self.whole().await.map(|response| PackageAnswer::Whole(response.into())),
            Some(0) => Err(PackageError::NotZip { package: self.package.clone(), seen: "empty".into() }),
            Some(length) => {
                let range = Some((length.saturating_sub(END), Some(length - 1)));
                self.answer(self.send_for_range(Request { range, ..document(self.get()) }).await?).await
            }
        }
    }

    /// Meaning of a response to a request for the end.
    async fn answer(&self, response: Response) -> Result<PackageAnswer, PackageError> {
        let (first, length) = match (response.status, response.content_length) {
            (Status::NotModified, _) => return Ok(PackageAnswer::Same),
            // One body is of one version, even without validators.
            (Status::Partial { first, last, total: Some(total) }, _)
                if last + 1 == total && (first == 0 || strong(&response).is_some()) =>
            {
                (first, total)
            }
            (Status::Full, Some(length)) if length <= IN_MEMORY => (0, length),
            (Status::Full, _) => return Ok(PackageAnswer::Whole(response.into())),
            (Status::Partial { .. }, _) => {
                drop(response);
                return self.whole().await.map(|response| PackageAnswer::Whole(response.into()));
            }
        };
        let version = self.version_of(&response, length)?;
        Ok(PackageAnswer::End(version, first, self.all(response.body, length - first).await?))
    }

    /// Asks for the whole.
    pub async fn whole(&self) -> Result<Response, PackageError> {
        let response = self.send(self.get()).await?;
        self.uncoded(&response).map(|()| response)
    }

    /// Asks for a document, such as a copy of a manifest.
    pub async fn document(&self) -> Result<Response, PackageError> {
        let response = self.send(document(self.get())).await?;
        self.uncoded(&response).map(|()| response)
    }

    /// A range of one version, as its body.
    pub async fn range(
        &self,
        version: &PackageVersion,
        range: Range<u64>,
        priority: Priority,
    ) -> Result<Body, PackageError> {
        let asked = Some((range.start, Some(range.end.saturating_sub(1))));
        let request = Request { range: asked, if_range: version.etag.clone(), priority, ..self.get() };
        let response = self.send_for_range(request).await?;
        let is_same = version.etag.is_some() && strong(&response) == version.etag.as_deref();
        let whole = Some(version.length);
        match response.status {
            Status::Partial { first, last, total }
                if is_same && first == range.start && last + 1 == range.end && total == whole =>
            {
                self.uncoded(&response)?;
                Ok(response.body)
            }
            _ => Err(self.changed()),
        }
    }

    /// The next bytes of a body; `None` at its end.
    pub async fn chunk(&self, body: &mut Body) -> Result<Option<Bytes>, PackageError> {
        let chunk = body.chunk().await.map_err(|cause| self.http(cause))?;
        self.received.fetch_add(chunk.as_ref().map_or(0, |chunk| chunk.len() as u64), Ordering::Relaxed);
        Ok(chunk)
    }

    /// A body to its end, of a length that the caller has bounded.
    pub async fn all(&self, mut body: Body, length: u64) -> Result<Vec<u8>, PackageError> {
        let mut bytes = Vec::with_capacity(length as usize);
        while let Some(chunk) = self.chunk(&mut body).await? {
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// The first bytes of a body: enough to see what kind of file it is.
    pub async fn beginning(&self, body: &mut Body) -> Result<Vec<u8>, PackageError> {
        let mut first = Vec::new();
        while first.len() < BEGINNING {
            let Some(bytes) = self.chunk(body).await? else { break };
            first.extend_from_slice(&bytes);
        }
        Ok(first)
    }

    /// The version that a response is of.
    pub fn version_of(&self, response: &Response, length: u64) -> Result<PackageVersion, PackageError> {
        self.uncoded(response)?;
        Ok(PackageVersion {
            final_uri: response.final_uri.to_string(),
            etag: strong(response).map(Box::from),
            weak_etag: response.etag.clone().filter(|_| strong(response).is_none()),
            last_modified: response.modified_validator.clone(),
            length,
        })
    }

    /// A known pause is progress of the request.
    fn waiting(&self, request: Request) -> Request {
        let request = Request { pause: KnownPause::counted_in(&self.received), ..request };
        if self.is_background { Request { priority: Priority::background(), ..request } } else { request }
    }

    fn get(&self) -> Request {
        Request::get(self.package.clone(), HEAD_DEADLINE)
    }

    async fn send(&self, request: Request) -> Result<Response, PackageError> {
        self.client.send(self.waiting(request)).await.map_err(|cause| self.http(cause))
    }

    /// A range that does not exist any more shows that the package has changed.
    async fn send_for_range(&self, request: Request) -> Result<Response, PackageError> {
        self.client.send(self.waiting(request)).await.map_err(|cause| match cause {
            HttpError::Status { status: 416 | 412, .. } => self.changed(),
            cause => self.http(cause),
        })
    }

    /// Offsets in a package mean nothing where it is sent with a content coding.
    fn uncoded(&self, response: &Response) -> Result<(), PackageError> {
        let Some(coding) = &response.encoding else { return Ok(()) };
        let what = format!("the server sends it with the content coding {coding:?}, which was not requested");
        Err(PackageError::damaged(&self.package, what))
    }

    fn changed(&self) -> PackageError {
        PackageError::Changed { package: self.package.clone() }
    }

    fn http(&self, cause: HttpError) -> PackageError {
        PackageError::Http { package: self.package.clone(), cause: Arc::new(cause) }
    }
}

fn document(request: Request) -> Request {
    Request { is_document: true, ..request }
}

/// Makes `request` a question whether the server has another version than `known`.
fn conditional(request: Request, known: Option<&PackageVersion>) -> Request {
    let if_none_match = known.and_then(|known| known.etag.clone().or(known.weak_etag.clone()));
    let if_modified_since = known.and_then(|known| known.last_modified.clone()).filter(|_| if_none_match.is_none());
    Request { if_none_match, if_modified_since, ..document(request) }
}

/// The ETag of a response, where it is a strong one.
fn strong(response: &Response) -> Option<&str> {
    response.etag.as_deref().filter(|etag| etag.starts_with('"'))
}

/// The kind of file that begins with these bytes, where that is known and no ZIP.
pub(super) fn other_kind(first: &[u8]) -> Option<&'static str> {
    const KINDS: [(&[u8], &str); 7] = [
        (b"\xfd7zXZ\0", "an xz archive (.tar.xz)"),
        (b"\x1f\x8b", "a gzip archive (.tar.gz)"),
        (b"BZh", "a bzip2 archive (.tar.bz2)"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
        (b"\x28\xb5\x2f\xfd", "a zstd archive (.tar.zst)"),
        (b"Rar!", "a RAR archive"),
        (b"<", "an HTML or XML page"),
    ];
    let known = KINDS.iter().find(|(magic, _)| first.trim_ascii_start().starts_with(magic));
    let is_tar = || first.get(257..262) == Some(b"ustar");
    known.map(|(_, kind)| *kind).or_else(|| is_tar().then_some("a tar archive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_zip_is_named() {
        assert_eq!(other_kind(b"\xfd7zXZ\0rest"), Some("an xz archive (.tar.xz)"));
        assert_eq!(other_kind(b"\n <!DOCTYPE html>"), Some("an HTML or XML page"));
        let tar = [&[b'a'; 257][..], b"ustar"].concat();
        assert_eq!(other_kind(&tar), Some("a tar archive"));
        assert_eq!((other_kind(b"PK\x03\x04"), other_kind(b"")), (None, None));
    }
}
