//! A version made of the one before it by JSON Patches (section 14.4), where these are shorter than the whole.
//!
//! Nothing proves that the last local version is the one before: changes may have been missed. So only a result of the published
//! digest counts. Any failure costs the patches, and the version is fetched whole.

use super::plan::Failure;
use super::promise::Promise;
use super::task::{Completed, DownloadTask, Stop};
use crate::content::Patch;
use crate::content::fixity::Verifier;
use crate::content::form::{Form, essence};
use crate::content::patch::{Document, LIMIT};
use crate::document::Digest;
use crate::platform::scheduling::over_bytes;
use crate::source::http::Request;
use bytes::{Bytes, BytesMut};

/// The media types of JSON Patch: the registered one, and the standard's own.
const JSON_PATCH: [&str; 2] = ["application/json-patch+json", "application/json-patch"];

impl DownloadTask {
    /// The version made by its patches.
    pub(super) async fn patched(&mut self) -> Result<Completed, Stop> {
        let Some(bytes) = self.patched_bytes().await else {
            return Err(Stop::Failure(Failure::Refused(self.stalled())));
        };
        let promise = Promise { form: Form::Plain, length: None, expected: self.expected(Form::Plain) };
        self.intake.received = bytes.len() as u64;
        self.intake.batch.push(&bytes, None, &self.content.memory);
        self.verdict(promise).await
    }

    async fn patched_bytes(&self) -> Option<Bytes> {
        self.published?;
        if Form::published(&self.spec) != Form::Plain {
            return None;
        }
        // Patches of other types are ignored, as the standard demands.
        let is_known = |patch: &&Patch| {
            patch.media_type.as_deref().is_some_and(|media_type| JSON_PATCH.contains(&essence(media_type).as_str()))
        };
        let patches: Vec<&Patch> = self.spec.patches.iter().filter(is_known).collect();
        if patches.is_empty() {
            return None;
        }
        // Not the version itself, or nothing would be fetched.
        let base = self.content.local.last_version(&self.spec.uri)?;
        let whole = self.spec.length.unwrap_or(base.length());
        let published = patches.iter().try_fold(0_u64, |sum, patch| sum.checked_add(patch.length.unwrap_or(0)))?;
        if published >= whole || whole > LIMIT {
            return None;
        }
        // Without memory at once the whole is faster.
        let _memory = self.content.memory.try_reserve(whole as usize)?;
        let mut bodies = Vec::with_capacity(patches.len());
        let mut left = whole;
        for patch in patches {
            let body = self.patch_body(patch, left).await?;
            left -= body.len() as u64;
            bodies.push(body);
        }
        let uri = self.spec.uri.clone();
        let patching = tokio::task::spawn_blocking(move || {
            let mut document = Document::read(&base.read(0, base.length() as usize).ok()?)?;
            let applied = bodies.iter().try_for_each(|body| document.apply(body));
            applied
                .inspect_err(
                    |error| tracing::debug!(%uri, error = %crate::platform::error_chain::chain(error), "a patch fails"),
                )
                .ok()?;
            document.write()
        });
        patching.await.ok()?.map(Bytes::from)
    }

    /// The bytes of a patch, fewer than `limit`, of the published length and digest.
    async fn patch_body(&self, patch: &Patch, limit: u64) -> Option<Bytes> {
        let mut request = Request::get(patch.uri.clone(), self.content.head_budget(self.plan.len() + 1));
        request.accept = patch.media_type.clone();
        request.priority = self.download.priority();
        request.pause = self.download.pause().clone();
        let response = self.content.client.send(request).await;
        let failed = |error: &_| tracing::debug!(uri = %patch.uri, %error, "a patch cannot be fetched");
        let mut response = response.inspect_err(failed).ok().filter(|response| response.encoding.is_none())?;
        let (stall, mut body) = (self.content.config.stall, BytesMut::new());
        while let Some(chunk) = tokio::time::timeout(stall, response.body.chunk()).await.ok()?.ok()? {
            self.download.state().touch();
            body.extend_from_slice(&chunk);
            if body.len() as u64 >= limit {
                return None;
            }
        }
        over_bytes(body.len() as u64, || is_as_published(patch, &body)).then(|| body.freeze())
    }
}

/// Returns whether a patch has the published length and digest.
fn is_as_published(patch: &Patch, body: &[u8]) -> bool {
    let matches = |published: &Digest| {
        let mut verifier = Verifier::new(published.algorithm());
        verifier.update(body);
        verifier.finish().digest == *published
    };
    let strongest = patch.hashes.iter().max_by_key(|digest| digest.algorithm());
    patch.length.is_none_or(|length| length == body.len() as u64) && strongest.is_none_or(matches)
}
