//! The form of a resource's bytes on their way, as it is requested: as a read returns them, or in a content coding.

use super::coding::Coding;
use super::{ContentError, FetchSpec};
use crate::document::Uri;
use crate::source::http::{Priority, Request};
use std::time::Duration;

/// The fault of an answer in a content coding that was not requested.
pub(super) fn unasked(coding: &str) -> String {
    format!("the server sends it with the content coding {coding}, which was not requested")
}

/// Returns whether a resource is a compressed file, to judge by its name.
fn is_gzip_by_name(spec: &FetchSpec) -> bool {
    let path = spec.uri.path().to_ascii_lowercase();
    [".gz", ".tgz", ".svgz"].iter().any(|end| path.ends_with(end))
}

fn is_same_coding(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other) || Coding::named(one).is_some_and(|coding| Coding::named(other) == Some(coding))
}

/// The content coding in which a resource is published, if any.
pub(super) fn published_coding(spec: &FetchSpec) -> Option<&str> {
    let coding = spec.encoding.as_deref().map(str::trim);
    coding.filter(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("identity"))
}

/// A request for the resource at `location`, in its published type and coding.
pub(super) fn request(spec: &FetchSpec, location: &Uri, within: Duration, priority: Priority) -> Request {
    let mut request = Request::get(location.clone(), within);
    request.accept = spec.media_type.clone();
    if let Some(coding) = published_coding(spec) {
        request.accept_encoding = coding.into();
    }
    request.priority = priority;
    request
}

/// Returns whether the published length counts coded bytes, so that the size shown is another.
pub(super) fn is_decoded(spec: &FetchSpec) -> bool {
    published_coding(spec).is_some_and(|coding| Coding::named(coding).is_some())
}

/// A media type without parameters, in lower case.
pub(super) fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// A page of HTML where another type is published and no digest distinguishes it from the resource.
pub(super) fn soft_failure(spec: &FetchSpec, vouched: bool, media_type: Option<&str>) -> Option<ContentError> {
    let published = essence(spec.media_type.as_deref()?);
    let is_page = |media_type: &str| media_type == "text/html" || media_type == "application/xhtml+xml";
    let page = media_type.filter(|media_type| is_page(media_type))?;
    if vouched || is_page(&published) {
        return None;
    }
    let what = format!(
        "the server sent {page}, but {published} is published: perhaps a login page, or a \"not found\" page with status 200"
    );
    Some(ContentError::Mismatch { uri: spec.uri.clone(), what })
}

/// How the bytes of one response relate to those that a read returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Bytes as a read returns them.
    Plain,
    /// Bytes in the published coding: verified, then decoded.
    Published(Coding),
    /// Coded without request: right if they verify as they are, or decoded. Where nothing is published to verify them by, the resource
    /// is the decoded bytes.
    Unasked(Option<Coding>),
}

impl Form {
    /// The form in which a resource is published, and requested.
    pub(super) fn published(spec: &FetchSpec) -> Form {
        match published_coding(spec).and_then(Coding::named) {
            Some(coding) => Form::Published(coding),
            None => Form::Plain,
        }
    }

    /// The form of a response with this Content-Encoding; `vouched`: a digest distinguishes right bytes from wrong ones.
    /// An error names a coding that can be neither verified nor decoded.
    pub(super) fn of(spec: &FetchSpec, encoding: Option<&str>, vouched: bool) -> Result<Form, String> {
        let can_verify = vouched || spec.length.is_some();
        match (published_coding(spec), encoding) {
            (None, None) => Ok(Form::Plain),
            (Some(asked), Some(sent)) if is_same_coding(asked, sent) => Ok(Form::published(spec)),
            // A coded file served as it is stored: only a published length or digest distinguishes it from one decoded on the way.
            (Some(_), None) if can_verify => Ok(Form::published(spec)),
            (Some(_), None) => Ok(Form::Plain),
            // The resource itself is compressed, and the server says so: its readers want it as it is.
            (None, Some(sent)) if !can_verify && Coding::named(sent) == Some(Coding::Gzip) && is_gzip_by_name(spec) => {
                Ok(Form::Plain)
            }
            (_, Some(sent)) if can_verify || Coding::named(sent).is_some() => Ok(Form::Unasked(Coding::named(sent))),
            (_, Some(sent)) => Err(unasked(sent)),
        }
    }
}
