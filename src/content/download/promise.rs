//! What a response's head promises: how its bytes relate to those that a read returns, and what they must be.

use super::coding::Coding;
use crate::content::fixity::Expected;
use crate::content::{Content, ContentError, FetchSpec, Fixity};
use crate::document::Digest;

/// The ETag if it is strong: of two responses that carry it the bytes are equal (RFC 9110, 8.8.3).
pub(super) fn strong(etag: Option<&str>) -> Option<&str> {
    etag.filter(|etag| etag.starts_with('"') && etag.len() > 2)
}

/// Whether a coding changes nothing.
fn is_identity(coding: &str) -> bool {
    coding.trim().is_empty() || coding.trim().eq_ignore_ascii_case("identity")
}

/// What is wrong with an answer in a content coding that no request asked for.
pub(in crate::content) fn unasked(coding: &str) -> String {
    format!("its server sends it in the content coding {coding}, which the request did not ask for")
}

/// Whether a resource is a compressed file by its name.
fn is_gzip_by_name(wanted: &FetchSpec) -> bool {
    let path = wanted.uri.path().to_ascii_lowercase();
    [".gz", ".tgz", ".svgz"].iter().any(|end| path.ends_with(end))
}

fn is_same_coding(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other) || Coding::named(one).is_some_and(|coding| Coding::named(other) == Some(coding))
}

/// The content coding in which a resource is published, if any.
pub(in crate::content) fn published_coding(wanted: &FetchSpec) -> Option<&str> {
    wanted.encoding.as_deref().filter(|coding| !is_identity(coding))
}

/// Whether the length that is published is not the size that is shown.
pub(in crate::content) fn is_decoded(wanted: &FetchSpec) -> bool {
    published_coding(wanted).is_some_and(|coding| Coding::named(coding).is_some())
}

/// A page of HTML where something else is published and no digest tells it from the resource.
pub(in crate::content) fn soft_failure(
    wanted: &FetchSpec,
    vouched: bool,
    media_type: Option<&str>,
) -> Option<ContentError> {
    let published = wanted.media_type.as_deref()?.split(';').next()?.trim().to_ascii_lowercase();
    let is_page = |media_type: &str| media_type == "text/html" || media_type == "application/xhtml+xml";
    let page = media_type.filter(|media_type| is_page(media_type))?;
    if vouched || is_page(&published) {
        return None;
    }
    let what = format!("a {page} came where {published} is published: a login page or a soft 404");
    Some(ContentError::Mismatch { uri: wanted.uri.clone(), what })
}

/// How the bytes of one response relate to those that a read returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::content) enum Form {
    /// They are the same.
    Plain,
    /// As published: verified, then decoded.
    Published(Coding),
    /// Coded although the request did not ask for that: right if they verify as they are, or decoded. Where nothing is published to
    /// verify them by, the resource is what the coding was applied to.
    Unasked(Option<Coding>),
}

impl Form {
    /// The form in which a resource is published, and asked for.
    pub(super) fn published(wanted: &FetchSpec) -> Form {
        match published_coding(wanted).and_then(Coding::named) {
            Some(coding) => Form::Published(coding),
            None => Form::Plain,
        }
    }

    /// The form of a response with this Content-Encoding; `vouched`: a digest tells right bytes from wrong ones.
    /// An error names the coding that can be neither judged nor undone.
    pub(in crate::content) fn of(wanted: &FetchSpec, encoding: Option<&str>, vouched: bool) -> Result<Form, String> {
        let can_tell = vouched || wanted.length.is_some();
        match (published_coding(wanted), encoding.filter(|coding| !is_identity(coding))) {
            (None, None) => Ok(Form::Plain),
            (Some(asked), Some(came)) if is_same_coding(asked, came) => Ok(Form::published(wanted)),
            // A coded file served as it lies: only what is published tells it from one that was decoded on the way.
            (Some(_), None) if can_tell => Ok(Form::published(wanted)),
            (Some(_), None) => Ok(Form::Plain),
            // The resource is compressed itself, and the server says so: its readers want it as it is.
            (None, Some(came)) if !can_tell && Coding::named(came) == Some(Coding::Gzip) && is_gzip_by_name(wanted) => {
                Ok(Form::Plain)
            }
            (_, Some(came)) if can_tell || Coding::named(came).is_some() => Ok(Form::Unasked(Coding::named(came))),
            (_, Some(came)) => Err(unasked(came)),
        }
    }
}

/// What one response promises.
pub(super) struct Promise {
    /// See [`Form`].
    pub(super) form: Form,
    /// What the transferred bytes must be.
    pub(super) expected: Expected,
    /// Bytes of the transferred whole, where anybody tells.
    pub(super) length: Option<u64>,
}

impl Content {
    /// The digest that tells right bytes from wrong ones: the strongest published, unless fixity is off.
    pub(in crate::content) fn vouching_digest(&self, wanted: &FetchSpec) -> Option<Digest> {
        let strongest = wanted.hashes.iter().max_by_key(|digest| digest.algorithm());
        strongest.copied().filter(|_| self.config.fixity != Fixity::Off)
    }
}
