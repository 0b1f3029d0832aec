//! Asking the server of a package: its end, its ranges, all of it.

use super::PackageError;
use super::directory::Version;
use super::end::End;
use crate::document::Uri;
use crate::source::http::{Body, Client, HttpError, Priority, Request, Response, Status};
use bytes::Bytes;
use std::ops::Range;
use std::time::Duration;

/// The head of a response is due within this, repetitions included; the body has the client's low-speed limit.
const HEAD_DUE: Duration = Duration::from_secs(60);

/// PackageBytes asked for from the end. The directory's last record lies within the last 64 KiB and 22; the rest holds the
/// directory of about a thousand members, for less than a second request would cost.
pub(super) const END: u64 = 128 << 10;

/// A package that comes whole, although its end was asked for, is kept in memory up to here.
pub(super) const SMALL: u64 = 1 << 20;

/// What the server says to a question for the end of a package.
pub(super) enum Answer {
    /// The end, or all of it where it is small, of a version.
    End(Version, End),
    /// It is as it was.
    Same,
    /// It cannot be read in place: the whole is on its way.
    Whole(Box<Response>),
}

/// What the server says of the version that it has.
pub(super) enum Seen {
    /// It is as it was.
    Same,
    /// This one, and whether it tells of ranges.
    Other(Version, bool),
}

/// Asks which version of `package` the server has, and brings nothing of it.
pub(super) async fn ask_version(client: &Client, package: &Uri, known: Option<&Version>) -> Result<Seen, PackageError> {
    let mut request = Request::head(package.clone(), HEAD_DUE);
    request.is_document = true;
    if let Some(known) = known {
        unless_changed(&mut request, known);
    }
    let response = client.send(request).await.map_err(|cause| PackageError::http(package, cause))?;
    match (response.status, response.content_length) {
        (Status::NotModified, _) => Ok(Seen::Same),
        (_, Some(length)) => Ok(Seen::Other(version(package, &response, length)?, response.accepts_ranges)),
        (_, None) => Err(PackageError::damaged(package, "its server does not tell its length")),
    }
}

/// Makes `request` a question whether the server has another version than `known`.
fn unless_changed(request: &mut Request, known: &Version) {
    request.if_none_match = known.etag.clone().or(known.weak_etag.clone());
    request.if_modified_since = known.last_modified.clone().filter(|_| request.if_none_match.is_none());
}

/// Asks for the end of `package`. With `known` the answer can be that it is still that version.
pub(super) async fn ask_end(client: &Client, package: &Uri, known: Option<&Version>) -> Result<Answer, PackageError> {
    let mut request = request(package);
    request.suffix = Some(END);
    request.is_document = true;
    if let Some(known) = known {
        unless_changed(&mut request, known);
    }
    let response = match client.send(request).await {
        Ok(response) => response,
        // What does not know how to count from the end says that the range cannot be satisfied, or sends another, or one of a
        // whole whose length it does not tell.
        Err(HttpError::Status { status: 416, .. } | HttpError::WrongRange { .. }) => {
            return ask_explicitly(client, package, None).await;
        }
        Err(cause) => return Err(PackageError::http(package, cause)),
    };
    match response.status {
        Status::NotModified => Ok(Answer::Same),
        // Of a suffix the client takes no other.
        Status::Partial { first, total: Some(total), .. } => {
            // One body is of one version, whatever its validators are worth.
            let is_whole = first == 0;
            if strong(&response).is_some() || is_whole {
                let version = version(package, &response, total)?;
                let bytes = all(package, response.body, total - first).await?;
                return Ok(Answer::End(version, End::new(total, bytes)));
            }
            drop(response);
            ask_whole(client, package).await.map(|response| Answer::Whole(response.into()))
        }
        Status::Partial { total: None, .. } => {
            ask_whole(client, package).await.map(|response| Answer::Whole(response.into()))
        }
        Status::Full => match response.content_length {
            Some(length) if length <= SMALL => {
                let version = version(package, &response, length)?;
                let bytes = all(package, response.body, length).await?;
                Ok(Answer::End(version, End::new(length, bytes)))
            }
            Some(length) if strong(&response).is_some() => {
                drop(response);
                ask_explicitly(client, package, Some(length)).await
            }
            _ => Ok(Answer::Whole(response.into())),
        },
    }
}

/// Asks for the end by its offsets; a server that has no ranges at all sends the whole.
async fn ask_explicitly(client: &Client, package: &Uri, length: Option<u64>) -> Result<Answer, PackageError> {
    let length = match length {
        Some(length) => length,
        None => {
            let head = Request::head(package.clone(), HEAD_DUE);
            let response = client.send(head).await.map_err(|cause| PackageError::http(package, cause))?;
            match response.content_length {
                Some(length) => length,
                None => return ask_whole(client, package).await.map(|response| Answer::Whole(response.into())),
            }
        }
    };
    if length == 0 {
        return Err(PackageError::NotZip { package: package.clone(), seen: "empty".into() });
    }
    let mut request = request(package);
    request.range = Some((length.saturating_sub(END), Some(length - 1)));
    request.is_document = true;
    let response = match client.send(request).await {
        Ok(response) => response,
        Err(HttpError::Status { status: 416, .. }) => return Err(PackageError::Changed { package: package.clone() }),
        Err(cause) => return Err(PackageError::http(package, cause)),
    };
    match response.status {
        Status::Partial { first, total: Some(total), .. } if total == length && strong(&response).is_some() => {
            let version = version(package, &response, total)?;
            let bytes = all(package, response.body, total - first).await?;
            Ok(Answer::End(version, End::new(total, bytes)))
        }
        Status::Full => Ok(Answer::Whole(response.into())),
        Status::Partial { .. } | Status::NotModified => {
            drop(response);
            ask_whole(client, package).await.map(|response| Answer::Whole(response.into()))
        }
    }
}

/// Asks for the whole of `package`.
pub(super) async fn ask_whole(client: &Client, package: &Uri) -> Result<Response, PackageError> {
    let response = client.send(request(package)).await.map_err(|cause| PackageError::http(package, cause))?;
    uncoded(package, &response)?;
    Ok(response)
}

/// A range of one version of a package, as its body.
pub(super) async fn ask_range(
    client: &Client,
    package: &Uri,
    version: &Version,
    range: Range<u64>,
    awaited: Priority,
) -> Result<Body, PackageError> {
    let changed = || PackageError::Changed { package: package.clone() };
    let mut request = request(package);
    request.range = Some((range.start, Some(range.end.saturating_sub(1))));
    request.if_range = version.etag.clone();
    request.priority = awaited;
    let response = match client.send(request).await {
        Ok(response) => response,
        Err(HttpError::Status { status: 416 | 412, .. }) => return Err(changed()),
        Err(cause) => return Err(PackageError::http(package, cause)),
    };
    let is_same = version.etag.is_some() && strong(&response) == version.etag.as_deref();
    match response.status {
        Status::Partial { first, last, total }
            if is_same && first == range.start && last + 1 == range.end && total == Some(version.length) =>
        {
            uncoded(package, &response)?;
            Ok(response.body)
        }
        _ => Err(changed()),
    }
}

/// The bytes of a range, which is no longer than the caller is ready to hold.
pub(super) async fn range(
    client: &Client,
    package: &Uri,
    version: &Version,
    range: Range<u64>,
) -> Result<Vec<u8>, PackageError> {
    let length = range.end.saturating_sub(range.start);
    let body = ask_range(client, package, version, range, Priority::default()).await?;
    all(package, body, length).await
}

/// What the first bytes of a package say that it is.
pub(super) async fn describe(client: &Client, package: &Uri) -> String {
    let mut request = request(package);
    request.range = Some((0, Some(511)));
    let Ok(mut response) = client.send(request).await else { return "something else".into() };
    let first = beginning(package, &mut response.body).await.unwrap_or_default();
    kind(&first, response.media_type.as_deref()).to_owned()
}

/// PackageBytes that tell of what kind a package is: a tar has its mark at 257.
const BEGINNING: usize = 512;

/// The first bytes of a body.
pub(super) async fn beginning(package: &Uri, body: &mut Body) -> Result<Vec<u8>, PackageError> {
    let mut first = Vec::new();
    while first.len() < BEGINNING
        && let Some(bytes) = chunk(package, body).await?
    {
        first.extend_from_slice(&bytes);
    }
    Ok(first)
}

/// What begins with these bytes.
fn kind<'a>(first: &[u8], media_type: Option<&'a str>) -> &'a str {
    match other_kind(first) {
        Some(kind) => kind,
        None if first.starts_with(b"PK\x03\x04") => "a ZIP whose end, and with it the directory, is missing",
        None => media_type.unwrap_or("of an unknown kind"),
    }
}

/// What begins with these bytes, where that is known and no ZIP.
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

fn request(package: &Uri) -> Request {
    Request::get(package.clone(), HEAD_DUE)
}

/// The ETag of a response, where it is a strong one.
pub(super) fn strong(response: &Response) -> Option<&str> {
    response.etag.as_deref().filter(|etag| etag.starts_with('"'))
}

/// The version that a response is of.
pub(super) fn version(package: &Uri, response: &Response, length: u64) -> Result<Version, PackageError> {
    uncoded(package, response)?;
    Ok(Version {
        final_uri: response.final_uri.clone(),
        etag: strong(response).map(Box::from),
        weak_etag: response.etag.clone().filter(|_| strong(response).is_none()),
        last_modified: response.modified_validator.clone(),
        length,
    })
}

/// Offsets in a package mean nothing where a content coding lies over it.
fn uncoded(package: &Uri, response: &Response) -> Result<(), PackageError> {
    match &response.encoding {
        None => Ok(()),
        Some(coding) => {
            let what = format!("it is sent with the content coding {coding:?}, which was not asked for");
            Err(PackageError::damaged(package, what))
        }
    }
}

/// A body to its end, of a length that is known.
async fn all(package: &Uri, mut body: Body, length: u64) -> Result<Vec<u8>, PackageError> {
    let mut bytes = Vec::with_capacity(length as usize);
    while let Some(chunk) = body.chunk().await.map_err(|cause| PackageError::http(package, cause))? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The next bytes of a body; `None` at its end.
pub(super) async fn chunk(package: &Uri, body: &mut Body) -> Result<Option<Bytes>, PackageError> {
    body.chunk().await.map_err(|cause| PackageError::http(package, cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_zip_is_named() {
        assert_eq!(kind(b"\xfd7zXZ\0rest", Some("application/zip")), "an xz archive (.tar.xz)");
        assert_eq!(kind(b"\n <!DOCTYPE html>", None), "an HTML or XML page");
        let tar = [&[b'a'; 257][..], b"ustar"].concat();
        assert_eq!(kind(&tar, None), "a tar archive");
        assert_eq!(kind(b"whatever", Some("image/png")), "image/png");
        assert_eq!(kind(b"", None), "of an unknown kind");
    }
}
