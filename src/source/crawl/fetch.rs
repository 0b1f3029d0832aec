//! One document into the cache: conditionally, and again where its body breaks.

use super::{Asking, structure};
use crate::document::{DocumentError, Limits, Timestamp, Uri};
use crate::platform::scheduling::off_the_workers;
use crate::source::{
    ACCEPT, DocumentLocation, SourceError, body_retries,
    documents::{CachedDocument, DocumentCache, Validators},
    http::{Client, HttpError, Request, Response, Status},
};
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    time::Duration,
};

/// Deadline for the head of a response, retries included; the body has the client's low-speed limit.
const HEAD_DUE: Duration = Duration::from_secs(120);

/// Deadline of a crawl that is not patient, which does not retry.
const HURRIED_HEAD_DUE: Duration = Duration::from_secs(20);

/// Bytes of a document that are written at once.
const WRITTEN_AT_ONCE: usize = 256 << 10;

/// First bytes of packages and archives: ZIP, empty ZIP, xz, 7z.
const PACKAGE_MAGIC: [&[u8]; 4] = [b"PK\x03\x04", b"PK\x05\x06", b"\xfd7zXZ\0", b"7z\xbc\xaf"];

/// Bytes of the longest of these: so many are collected, however few come at once.
const MAGIC_BYTES: u64 = 6;

/// Result of a request for a document.
pub(super) enum Fetched {
    /// Document that is in the cache.
    Document {
        document: CachedDocument,
        /// Bytes of its body that were transferred for this.
        bytes: u64,
        /// How long it may be kept without asking.
        max_age: Option<Duration>,
    },
    /// Package, which is not read further.
    Package,
}

/// Progress of a document.
#[derive(Clone, Copy)]
pub(super) enum Progressed {
    /// The head of the answer, with the length that it announces.
    Length(Option<u64>),
    /// Bytes of the body.
    Bytes(u64),
}

/// Brings the document of `location` into `cache`, as `asking` says; `received` is called with all that arrives.
pub(super) async fn fetch(
    client: &Client,
    cache: &DocumentCache,
    location: &DocumentLocation,
    limits: Limits,
    asking: Asking<'_>,
    received: &(dyn Fn(Progressed) + Send + Sync),
) -> Result<Fetched, SourceError> {
    let uri = match location {
        DocumentLocation::Uri(uri) => uri,
        DocumentLocation::File(path) => return off_the_workers(|| copy(cache, path, limits, received)),
    };
    let mut pauses = body_retries().take(if asking.is_patient { usize::MAX } else { 0 });
    let mut asking = asking;
    loop {
        let cached = cache.known(location);
        let response = client.send(request(uri, cached.as_ref(), asking)).await.map_err(|cause| {
            let location = location.clone();
            match cause.status() {
                // No content is an empty document.
                Some(204) => SourceError::Document { location, cause: DocumentError::Empty },
                _ => SourceError::Http { location, cause },
            }
        })?;
        match (response.status, cached) {
            (Status::NotModified, Some(cached)) => {
                let written = response.modified.map(|modified| (modified, response.modified_validator));
                let document = cache.confirm(cached, &response.final_uri, written)?;
                return Ok(Fetched::Document { document, bytes: 0, max_age: response.max_age });
            }
            (Status::Full, _) => {}
            (status, _) => {
                return Err(structure(location, &format!("the server answered {status:?} to a plain request")));
            }
        }
        let cause = match receive(cache, location, response, limits, received).await? {
            Ok(fetched) => return Ok(fetched),
            Err(cause) => cause,
        };
        let Some(pause) = pauses.next() else {
            return Err(SourceError::Http { location: location.clone(), cause });
        };
        tracing::debug!(%location, error = %cause, "the download of a document ended early; it is repeated");
        tokio::time::sleep(pause).await;
        asking.past_caches = true;
    }
}

/// How a document is asked for, of which `cached` is here.
fn request(uri: &Uri, cached: Option<&CachedDocument>, asking: Asking<'_>) -> Request {
    let mut request = Request::get(uri.clone(), if asking.is_patient { HEAD_DUE } else { HURRIED_HEAD_DUE });
    request.accept = Some(ACCEPT.into());
    request.accept_encoding = "gzip".into();
    request.no_cache = asking.past_caches;
    request.repeats = asking.is_patient;
    request.is_document = true;
    if let Some(cached) = cached {
        request.if_none_match = cached.validators.etag.clone();
        request.if_modified_since = cached.validators.last_modified.clone();
    }
    request
}

/// Writes the body into the cache. The inner error is one of the body: the next try may be whole.
async fn receive(
    cache: &DocumentCache,
    location: &DocumentLocation,
    mut response: Response,
    limits: Limits,
    received: &(dyn Fn(Progressed) + Send + Sync),
) -> Result<Result<Fetched, HttpError>, SourceError> {
    let mut new = cache.receive(location)?;
    received(Progressed::Length(response.content_length));
    let (mut size, mut waiting) = (0, Vec::new());
    loop {
        let bytes = match response.body.chunk().await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => break,
            Err(cause) => return Ok(Err(cause)),
        };
        let is_beginning = size < MAGIC_BYTES;
        size += bytes.len() as u64;
        check_size(location, size, limits)?;
        received(Progressed::Bytes(bytes.len() as u64));
        waiting.extend_from_slice(&bytes);
        if is_beginning && PACKAGE_MAGIC.iter().any(|magic| waiting.starts_with(magic)) {
            return Ok(Ok(Fetched::Package));
        }
        if waiting.len() >= WRITTEN_AT_ONCE {
            off_the_workers(|| new.write(&waiting))?;
            waiting.clear();
        }
    }
    let is_lasting = response.modified_validator.is_some();
    let is_precise =
        |tag: &str| is_lasting || !response.modified.is_some_and(|modified| is_of_the_second(tag, modified));
    let etag = response.etag.filter(|tag| is_precise(tag));
    let validators = Validators { etag, last_modified: response.modified_validator };
    let document = off_the_workers(|| {
        new.write(&waiting)?;
        new.commit(Some(response.final_uri), response.modified, validators)
    })?;
    Ok(Ok(Fetched::Document { document, bytes: size, max_age: response.max_age }))
}

/// Returns whether an `ETag` is made of nothing but the second of the last change and the length, as nginx makes it: a document that
/// changes again within the second, at the same length, still has it.
fn is_of_the_second(tag: &str, modified: Timestamp) -> bool {
    let tag = tag.trim_start_matches("W/").trim_matches('"');
    let second = tag.split_once('-').and_then(|(second, _)| i64::from_str_radix(second, 16).ok());
    second == Some(modified.seconds)
}

/// A document on disk is copied, so that it stays the same while it is read.
fn copy(
    cache: &DocumentCache,
    path: &Path,
    limits: Limits,
    received: &(dyn Fn(Progressed) + Send + Sync),
) -> Result<Fetched, SourceError> {
    let location = DocumentLocation::File(path.to_owned());
    let failed = |cause: io::Error| SourceError::File { path: path.to_owned(), cause };
    let mut file = File::open(path).map_err(failed)?;
    let modified = file.metadata().and_then(|metadata| metadata.modified()).map_err(failed)?;
    let mut new = cache.receive(&location)?;
    let mut block = vec![0; WRITTEN_AT_ONCE];
    let mut size = 0;
    loop {
        let length = match file.read(&mut block) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        size += length as u64;
        check_size(&location, size, limits)?;
        new.write(&block[..length])?;
        received(Progressed::Bytes(length as u64));
    }
    let document = new.commit(None, Some(modified.into()), Validators::default())?;
    Ok(Fetched::Document { document, bytes: 0, max_age: None })
}

fn check_size(location: &DocumentLocation, size: u64, limits: Limits) -> Result<(), SourceError> {
    let limit = limits.document;
    if size > limit { Err(structure(location, &format!("larger than the limit of {limit} bytes"))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::crawl;
    use super::*;
    use crate::source::crawl::EVERYTHING;
    use crate::source::tests::loopback::{Answer, Loopback, limits, resource_list};
    use std::time::Instant;

    /// Promise: a poll waits up to 120 s for the head of a list, and 20 s for that of a change document.
    #[test]
    fn the_head_of_a_document_has_a_deadline() {
        let uri = Uri::parse("http://example.org/list.xml").unwrap();
        for (is_patient, seconds) in [(true, 120), (false, 20)] {
            let before = Instant::now();
            let request = request(&uri, None, Asking { is_patient, ..EVERYTHING });
            let due = request.deadline.duration_since(before).as_secs();
            assert_eq!((due, request.repeats), (seconds, is_patient));
        }
    }

    /// What nginx does with a list that is written twice within a second, at one length.
    #[tokio::test]
    async fn a_list_written_twice_in_one_second_is_read_again() {
        let (second, now, later) =
            ("Thu, 03 Jan 2013 09:00:00 GMT", "Thu, 03 Jan 2013 09:00:00 GMT", "Thu, 03 Jan 2013 09:00:01 GMT");
        let served = |resource: &str, etag: &str, date: &str| {
            let list = Answer::xml(resource_list(resource)).etag(etag);
            list.header("Last-Modified", second).header("Date", date)
        };
        let read_of = async |etag: &str, date: &str| {
            let folder = tempfile::tempdir().unwrap();
            let cache = DocumentCache::open(folder.path()).unwrap();
            let server = Loopback::with(&[("/list.xml", served("/a", etag, date))]);
            let location = DocumentLocation::Uri(server.uri("/list.xml"));
            crawl(&server.client(), &cache, &location, limits(), EVERYTHING, &|_| {}).await.unwrap();
            server.put("/list.xml", served("/b", etag, date));
            let crawled = crawl(&server.client(), &cache, &location, limits(), EVERYTHING, &|_| {}).await.unwrap();
            let mut reader = cache.reader(&crawled.leaves[0].document, limits()).unwrap();
            reader.next_entry().unwrap().unwrap().loc.path().to_owned()
        };

        assert_eq!(read_of("50e54890-2a", now).await, "/b");
        assert_eq!(read_of("50e54890-2a", later).await, "/a", "its second was over");
        assert_eq!(read_of("digest-of-the-bytes", now).await, "/a", "a tag of another kind differs for every version");
    }
}
