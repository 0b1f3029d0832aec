//! One document into the spool: conditionally, and anew where its body breaks.

use super::Asking;
use crate::document::{DocumentError, Limits, Timestamp, Uri};
use crate::source::{
    ACCEPT, DocumentLocation, SourceError,
    documents::{DocumentCache, Held, Validators},
    http::{Client, HttpError, Request, Status},
    off_the_workers,
};
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    time::Duration,
};

/// The head of a response is due within this, repetitions included; the body has the client's low-speed limit.
const HEAD_DUE: Duration = Duration::from_secs(120);

/// The same where nobody is patient: what fails is not asked for again.
const HURRIED_HEAD_DUE: Duration = Duration::from_secs(20);

/// Times that a document is asked for anew after its body broke.
const BODY_RETRIES: u32 = 4;

/// Pause before the first of them; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Bytes of a document that are written at once.
const WRITTEN_AT_ONCE: usize = 256 << 10;

/// What files of packages and archives begin with: ZIP, empty ZIP, xz, 7z.
const PACKAGE_MAGIC: [&[u8]; 4] = [b"PK\x03\x04", b"PK\x05\x06", b"\xfd7zXZ\0", b"7z\xbc\xaf"];

/// Bytes that the longest of these has: so many are waited for, however few come at once.
const MAGIC_BYTES: u64 = 6;

/// What came of asking for a document.
pub(super) enum Fetched {
    /// It is in the spool.
    Document {
        held: Held,
        /// Bytes of its body that were transferred for this.
        bytes: u64,
        /// How long it may be kept without asking.
        max_age: Option<Duration>,
    },
    /// It is a package; not read further.
    Package,
}

/// Why one try failed.
enum Failure {
    /// The body broke: the next one may be whole.
    Broken(HttpError),
    /// For good.
    Final(SourceError),
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        Failure::Final(error)
    }
}

/// Brings the document of `location` into `spool`, as `asking` says; `received` hears of bytes as they arrive.
pub(super) async fn fetch(
    client: &Client,
    spool: &DocumentCache,
    location: &DocumentLocation,
    limits: Limits,
    asking: Asking<'_>,
    received: &(dyn Fn(u64) + Send + Sync),
) -> Result<Fetched, SourceError> {
    let mut retries = 0;
    loop {
        let tried = match location {
            DocumentLocation::Uri(_) => {
                let asking = Asking { past_caches: asking.past_caches || retries > 0, ..asking };
                fetch_once(client, spool, location, limits, asking, received).await
            }
            DocumentLocation::File(path) => {
                off_the_workers(|| copy(spool, location, path, limits, received)).map_err(Failure::Final)
            }
        };
        match tried {
            Ok(fetched) => return Ok(fetched),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Broken(cause)) if retries == BODY_RETRIES || !asking.is_patient => {
                return Err(SourceError::Http { location: location.clone(), cause });
            }
            Err(Failure::Broken(cause)) => {
                tracing::debug!(%location, error = %cause, "document broke off, asking anew");
                tokio::time::sleep(FIRST_PAUSE * 2_u32.pow(retries)).await;
                retries += 1;
            }
        }
    }
}

/// How a document is asked for, of which `held` is kept.
fn request(uri: &Uri, held: Option<&Held>, asking: Asking<'_>) -> Request {
    let mut request = Request::get(uri.clone(), if asking.is_patient { HEAD_DUE } else { HURRIED_HEAD_DUE });
    request.accept = Some(ACCEPT.into());
    request.accept_encoding = "gzip".into();
    request.no_cache = asking.past_caches;
    request.repeats = asking.is_patient;
    request.is_document = true;
    if let Some(held) = held {
        request.if_none_match = held.validators.etag.clone();
        request.if_modified_since = held.validators.last_modified.clone();
    }
    request
}

async fn fetch_once(
    client: &Client,
    spool: &DocumentCache,
    location: &DocumentLocation,
    limits: Limits,
    asking: Asking<'_>,
    received: &(dyn Fn(u64) + Send + Sync),
) -> Result<Fetched, Failure> {
    let DocumentLocation::Uri(uri) = location else {
        return Err(unusable(location, "a file cannot be fetched").into());
    };
    let held = spool.held(location);
    let mut response = client.send(request(uri, held.as_ref(), asking)).await.map_err(|cause| {
        let location = location.clone();
        Failure::Final(match cause.status() {
            // No content is an empty document.
            Some(204) => SourceError::Document { location, cause: DocumentError::Empty },
            _ => SourceError::Http { location, cause },
        })
    })?;
    match (response.status, held) {
        (Status::NotModified, Some(held)) => {
            let (validator, modified) = (response.modified_validator, response.modified);
            let held = spool.confirmed(held, &response.final_uri, modified.map(|modified| (modified, validator)))?;
            return Ok(Fetched::Document { held, bytes: 0, max_age: response.max_age });
        }
        (Status::Full, _) => {}
        (status, _) => {
            return Err(unusable(location, &format!("the server answered {status:?} to a plain request")).into());
        }
    }
    let mut arriving = spool.receive(location)?;
    let (mut size, mut waiting) = (0, Vec::new());
    while let Some(bytes) = response.body.chunk().await.map_err(Failure::Broken)? {
        let is_beginning = size < MAGIC_BYTES;
        size += bytes.len() as u64;
        if size > limits.document {
            return Err(too_large(location, limits).into());
        }
        received(bytes.len() as u64);
        waiting.extend_from_slice(&bytes);
        if is_beginning && PACKAGE_MAGIC.iter().any(|magic| waiting.starts_with(magic)) {
            return Ok(Fetched::Package);
        }
        if waiting.len() >= WRITTEN_AT_ONCE {
            off_the_workers(|| arriving.write(&waiting))?;
            waiting.clear();
        }
    }
    let lasts = response.modified_validator.is_some();
    let tells_more = |tag: &str| lasts || !response.modified.is_some_and(|modified| is_of_the_second(tag, modified));
    let etag = response.etag.filter(|tag| tells_more(tag));
    let validators = Validators { etag, last_modified: response.modified_validator };
    let held = off_the_workers(|| {
        arriving.write(&waiting)?;
        arriving.complete(Some(response.final_uri), response.modified, validators)
    })?;
    Ok(Fetched::Document { held, bytes: size, max_age: response.max_age })
}

/// Whether an `ETag` is made of nothing but the second of the last change and the length, as nginx makes it: a document that
/// grows no longer in the same second has it still.
fn is_of_the_second(tag: &str, modified: Timestamp) -> bool {
    let tag = tag.trim_start_matches("W/").trim_matches('"');
    let second = tag.split_once('-').and_then(|(second, _)| i64::from_str_radix(second, 16).ok());
    second == Some(modified.seconds)
}

/// A document on disk is copied, so that it stays the same while it is read.
fn copy(
    spool: &DocumentCache,
    location: &DocumentLocation,
    path: &Path,
    limits: Limits,
    received: &(dyn Fn(u64) + Send + Sync),
) -> Result<Fetched, SourceError> {
    let failed = |cause: io::Error| SourceError::File { path: path.to_owned(), cause };
    let mut file = File::open(path).map_err(failed)?;
    let modified = file.metadata().and_then(|metadata| metadata.modified()).map_err(failed)?;
    let mut arriving = spool.receive(location)?;
    let mut block = vec![0; 128 * 1024];
    let mut size = 0;
    loop {
        let length = match file.read(&mut block) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        size += length as u64;
        if size > limits.document {
            return Err(too_large(location, limits));
        }
        arriving.write(&block[..length])?;
        received(length as u64);
    }
    let held = arriving.complete(None, Some(modified.into()), Validators::default())?;
    Ok(Fetched::Document { held, bytes: 0, max_age: None })
}

fn too_large(location: &DocumentLocation, limits: Limits) -> SourceError {
    unusable(location, &format!("larger than the limit of {} bytes", limits.document))
}

fn unusable(location: &DocumentLocation, what: &str) -> SourceError {
    SourceError::Structure { location: location.clone(), what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::walk;
    use super::*;
    use crate::source::crawl::EVERYTHING;
    use crate::source::tests::loopback::{Answer, Loopback, limits, resource_list};
    use std::time::Instant;

    /// Promise: a look waits up to 120 s for the head of a list, and 20 s for that of a change document.
    #[test]
    fn the_head_of_a_document_is_due_in_time_and_sooner_where_it_is_asked_for_again() {
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
    async fn a_list_written_twice_in_the_second_of_its_etag_is_read_again() {
        let (second, now, later) =
            ("Thu, 03 Jan 2013 09:00:00 GMT", "Thu, 03 Jan 2013 09:00:00 GMT", "Thu, 03 Jan 2013 09:00:01 GMT");
        let served = |resource: &str, etag: &str, date: &str| {
            let list = Answer::xml(resource_list(resource)).etag(etag);
            list.header("Last-Modified", second).header("Date", date)
        };
        let read_of = async |etag: &str, date: &str| {
            let folder = tempfile::tempdir().unwrap();
            let spool = DocumentCache::open(folder.path()).unwrap();
            let server = Loopback::with(&[("/list.xml", served("/a", etag, date))]).await;
            let location = DocumentLocation::Uri(server.uri("/list.xml"));
            walk(&server.client(), &spool, &location, limits(), &|_| {}).await.unwrap();
            server.put("/list.xml", served("/b", etag, date));
            let walked = walk(&server.client(), &spool, &location, limits(), &|_| {}).await.unwrap();
            let mut reader = spool.reader(&walked.leaves[0].document, limits()).unwrap();
            reader.next_entry().unwrap().unwrap().loc.path().to_owned()
        };

        assert_eq!(read_of("50e54890-2a", now).await, "/b");
        assert_eq!(read_of("50e54890-2a", later).await, "/a", "its second was over");
        assert_eq!(read_of("digest-of-the-bytes", now).await, "/a", "a tag of another kind tells all versions apart");
    }
}
