//! The promise of a response's head: how its bytes relate to those that a read returns, and what they must be.

use crate::content::fixity::Expected;
use crate::content::form::{Form, soft_failure};
use crate::content::{ContentError, FetchSpec};
use crate::source::http::{Response, Status};

/// Announcement of the bytes that follow: the head of a response, or a member's entry in the directory of its package.
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
    /// Something else than is published: what.
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
