//! The promise of a response's head: how its bytes relate to those that a read returns, and what they must be.

use super::coding::Coding;
use crate::content::fixity::Expected;
use crate::content::{Content, ContentError, FetchSpec, Fixity};
use crate::document::{Digest, Uri};
use crate::source::http::{Priority, Request, Response, Status};
use std::time::Duration;

/// The ETag if it is strong: of two responses that carry it the bytes are equal (RFC 9110, 8.8.3).
pub(super) fn strong(etag: Option<&str>) -> Option<&str> {
    etag.filter(|etag| etag.starts_with('"') && etag.len() > 2)
}

/// The fault of an answer in a content coding that was not requested.
pub(in crate::content) fn unasked(coding: &str) -> String {
    format!("the server sends it with the content coding {coding}, which was not requested")
}

/// Whether a resource is a compressed file, to judge by its name.
fn is_gzip_by_name(spec: &FetchSpec) -> bool {
    let path = spec.uri.path().to_ascii_lowercase();
    [".gz", ".tgz", ".svgz"].iter().any(|end| path.ends_with(end))
}

fn is_same_coding(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other) || Coding::named(one).is_some_and(|coding| Coding::named(other) == Some(coding))
}

/// The content coding in which a resource is published, if any.
pub(in crate::content) fn published_coding(spec: &FetchSpec) -> Option<&str> {
    let coding = spec.encoding.as_deref().map(str::trim);
    coding.filter(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("identity"))
}

/// Whether the published length is of coded bytes, and the size shown another.
pub(in crate::content) fn is_decoded(spec: &FetchSpec) -> bool {
    published_coding(spec).is_some_and(|coding| Coding::named(coding).is_some())
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

/// A media type without parameters, in lower case.
pub(super) fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// A page of HTML where another type is published and no digest distinguishes it from the resource.
pub(in crate::content) fn soft_failure(
    spec: &FetchSpec,
    vouched: bool,
    media_type: Option<&str>,
) -> Option<ContentError> {
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
pub(in crate::content) enum Form {
    /// They are the same.
    Plain,
    /// As published: verified, then decoded.
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
    pub(in crate::content) fn of(spec: &FetchSpec, encoding: Option<&str>, vouched: bool) -> Result<Form, String> {
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

/// What a head announces of the bytes that follow: that of a response, or a member's entry in the directory of its package.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Head<'a> {
    pub(super) media_type: Option<&'a str>,
    pub(super) encoding: Option<&'a str>,
    /// Bytes of the whole.
    pub(super) length: Option<u64>,
}

impl<'a> From<&'a Response> for Head<'a> {
    fn from(response: &'a Response) -> Head<'a> {
        let length = match response.status {
            Status::Partial { total, .. } => total,
            Status::Full => response.content_length,
            Status::NotModified => None,
        };
        Head { media_type: response.media_type.as_deref(), encoding: response.encoding.as_deref(), length }
    }
}

/// Why the bytes that follow a head cannot be those of the version.
pub(super) enum Disagreement {
    /// A page instead of the resource.
    Page(ContentError),
    /// What is published otherwise.
    Wrong(String),
    /// The size that was shown is another.
    Changed,
}

impl Head<'_> {
    /// The form of the bytes that follow, and how many are transferred, where that is known. `shown`: the size that was shown.
    pub(super) fn agree(
        &self,
        spec: &FetchSpec,
        vouched: bool,
        shown: Option<u64>,
    ) -> Result<(Form, Option<u64>), Disagreement> {
        if let Some(page) = soft_failure(spec, vouched, self.media_type) {
            return Err(Disagreement::Page(page));
        }
        let form = Form::of(spec, self.encoding, vouched).map_err(Disagreement::Wrong)?;
        // In a coding that was not requested they are other bytes than the published ones.
        let published = spec.length.filter(|_| !matches!(form, Form::Unasked(_)));
        let shown = shown.filter(|_| form == Form::Plain);
        match (published, shown, self.length) {
            (Some(published), _, Some(announced)) if published != announced => {
                let what = format!("the server announces {announced} bytes, but {published} are published");
                Err(Disagreement::Wrong(what))
            }
            // A digest decides which of two lengths was wrong.
            (None, Some(shown), Some(announced)) if shown != announced && !vouched => Err(Disagreement::Changed),
            _ => Ok((form, published.or(self.length).or(shown))),
        }
    }
}

/// The bytes that an attempt must have.
#[derive(Clone, Debug)]
pub(super) struct Promise {
    /// See [`Form`].
    pub(super) form: Form,
    /// The transferred bytes must be these.
    pub(super) expected: Expected,
    /// Bytes of the transferred whole, where known.
    pub(super) length: Option<u64>,
}

impl Content {
    /// The digest that distinguishes right bytes from wrong ones: the strongest published, unless fixity is off.
    pub(in crate::content) fn vouching_digest(&self, spec: &FetchSpec) -> Option<Digest> {
        let strongest = spec.hashes.iter().max_by_key(|digest| digest.algorithm());
        strongest.copied().filter(|_| self.config.fixity != Fixity::Off)
    }
}
