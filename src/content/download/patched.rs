//! A version made of the one before it and what changed (section 14.4), where that is cheaper than the whole.
//!
//! Nothing says that the version before is the one that is kept here: changes may have been missed. So only a result
//! of the published digest counts, and whatever fails on the way costs no more than the patches.

use super::fetch::{Ended, Fetch, Landed, Stop};
use super::held::Held;
use super::promise::{Form, Promise, published_coding};
use crate::content::fixity::Verifier;
use crate::content::patch::{Document, LIMIT};
use crate::content::store::ObjectKey;
use crate::content::{Content, FetchSpec, Patch};
use crate::document::{Digest, Uri};
use crate::source::http::Request;
use crate::source::over_bytes;
use bytes::{Bytes, BytesMut};
use fuser::INodeNo;

/// The media types of JSON Patch: the registered one, and the standard's own.
const JSON_PATCH: [&str; 2] = ["application/json-patch+json", "application/json-patch"];

/// A version that is kept here.
struct Base {
    held: Held,
    length: u64,
}

/// Where what is known of the version last kept of a resource lies among what is known of inodes, which are smaller numbers.
fn version_of(uri: &Uri) -> INodeNo {
    INodeNo(1 << 63 | xxhash_rust::xxh3::xxh3_64(uri.as_str().as_bytes()))
}

/// A media type without parameters, in lower case.
fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Whether patches of a kind that can be applied are to be expected of a resource of this type.
fn is_json(wanted: &FetchSpec, served: Option<&str>) -> bool {
    match wanted.media_type.as_deref().or(served).map(essence) {
        Some(media_type) => media_type.ends_with("/json") || media_type.ends_with("+json"),
        None => wanted.uri.path().ends_with(".json"),
    }
}

impl Content {
    /// The object `key` of `size` bytes is the version of `wanted`: the next one may be made of it.
    pub(super) fn keep_for_patches(&self, wanted: &FetchSpec, served: Option<&str>, key: &ObjectKey, size: u64) {
        if size > LIMIT || wanted.is_past() || published_coding(wanted).is_some() || !is_json(wanted, served) {
            return;
        }
        self.observed.update(version_of(&wanted.uri), |version| {
            version.object = Some(key.clone());
            version.size = Some(size);
        });
    }

    /// The version that was kept last. That of `wanted` itself is not here, or nobody would ask.
    fn version_before(&self, wanted: &FetchSpec) -> Option<Base> {
        let known = self.observed.get(version_of(&wanted.uri))?;
        let object = self.disk.get(&known.object?)?;
        let length = object.length();
        (known.size == Some(length)).then_some(Base { held: Held::Store(object), length })
    }
}

impl Fetch {
    /// The version made by its patches; `None`: it must be fetched whole.
    pub(super) async fn patched(&mut self) -> Result<Option<Landed>, Ended> {
        let Some(bytes) = self.patched_bytes().await else { return Ok(None) };
        let promise = Promise { form: Form::Plain, length: None, expected: self.expected(Form::Plain) };
        self.received = bytes.len() as u64;
        self.rest.push(bytes);
        match self.verdict(promise).await {
            Ok(landed) => return Ok(Some(landed)),
            Err(Stop::End(ended)) => return Err(ended),
            Err(Stop::Failure(failure)) => {
                tracing::debug!(uri = %self.wanted.uri, ?failure, "patches do not lead here")
            }
            Err(Stop::Again | Stop::Rest) => {}
            Err(Stop::Full(error)) => tracing::debug!(uri = %self.wanted.uri, %error, "no room for a patched version"),
        }
        self.begin_again(false).await;
        Ok(None)
    }

    async fn patched_bytes(&self) -> Option<Bytes> {
        self.published?;
        if Form::published(&self.wanted) != Form::Plain {
            return None;
        }
        // What is not understood is ignored, as the standard says.
        let is_known = |patch: &&Patch| {
            patch.media_type.as_deref().is_some_and(|media_type| JSON_PATCH.contains(&essence(media_type).as_str()))
        };
        let patches: Vec<Patch> = self.wanted.patches.iter().filter(is_known).cloned().collect();
        if patches.is_empty() {
            return None;
        }
        let base = self.content.version_before(&self.wanted)?;
        let whole = self.wanted.length.unwrap_or(base.length);
        let told = patches.iter().try_fold(0_u64, |sum, patch| sum.checked_add(patch.length.unwrap_or(0)))?;
        if told >= whole || whole > LIMIT {
            return None;
        }
        // Who would have to wait is better served by the whole.
        let _memory = self.content.memory.whole_at_once()?;
        let mut document = tokio::task::spawn_blocking(move || {
            let bytes = base.held.read(0, u32::try_from(base.length).ok()?)?;
            Document::read(&bytes)
        })
        .await
        .ok()??;
        let mut left = whole;
        let mut bodies = Vec::with_capacity(patches.len());
        for patch in &patches {
            let body = self.patch_body(patch, left).await?;
            left -= body.len() as u64;
            bodies.push(body);
        }
        let uri = self.wanted.uri.clone();
        let patched = tokio::task::spawn_blocking(move || {
            for body in &bodies {
                if let Err(error) = document.apply(body) {
                    tracing::debug!(%uri, error = %crate::causes::chain(&error), "a patch cannot be applied");
                    return None;
                }
            }
            document.write()
        });
        patched.await.ok()?.map(Bytes::from)
    }

    /// The bytes of a patch, fewer than `limit`, and what is published of them.
    async fn patch_body(&self, patch: &Patch, limit: u64) -> Option<Bytes> {
        let content = &self.content;
        let packed = self.packed_patch(patch, limit).await;
        if let Some(body) = packed.filter(|body| over_bytes(body.len() as u64, || is_as_published(patch, body))) {
            return Some(body);
        }
        let mut request = Request::get(patch.uri.clone(), content.head_budget(self.plan.len() + 1));
        request.accept = patch.media_type.clone();
        request.priority = self.download.urgency().awaited();
        let response = content.client.send(request).await.inspect_err(|error| {
            tracing::debug!(uri = %patch.uri, %error, "a patch cannot be fetched");
        });
        let mut response = response.ok()?;
        if response.content_length.is_some_and(|length| length >= limit) || response.encoding.is_some() {
            return None;
        }
        let mut body = BytesMut::new();
        while let Some(chunk) = tokio::time::timeout(content.config.stall, response.body.chunk()).await.ok()?.ok()? {
            self.download.touch();
            body.extend_from_slice(&chunk);
            if body.len() as u64 >= limit {
                return None;
            }
        }
        over_bytes(body.len() as u64, || is_as_published(patch, &body)).then(|| body.freeze())
    }
}

/// Whether a patch has the published length and digest.
fn is_as_published(patch: &Patch, body: &[u8]) -> bool {
    let gives = |published: &Digest| {
        let mut verifier = Verifier::new(published.algorithm());
        verifier.update(body);
        verifier.finish().is_some_and(|seen| seen.digest == *published)
    };
    let strongest = patch.hashes.iter().max_by_key(|digest| digest.algorithm());
    patch.length.is_none_or(|length| length == body.len() as u64) && strongest.is_none_or(gives)
}
