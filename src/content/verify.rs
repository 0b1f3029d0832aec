//! What `audit` and `verify` ask: the bytes kept on this machine, read to their end, and the bytes that the Source serves; both are
//! compared with their digests. No reader waits for it.

use super::fixity::{Expected, Seen, Verdict, Verifier, judge};
use super::form::{Form, is_decoded, published_coding, request, soft_failure, unasked};
use super::store::{BLOCK, Inventory, Object, ObjectKey, Removal};
use super::{Content, FetchSpec, Verified};
use crate::document::{Algorithm, Digest, PackageMember};
use crate::platform::error_chain::chain;
use crate::platform::scheduling::over_bytes;
use crate::source::http::{Client, HttpError, Priority};
use crate::source::zip::{PackageError, Packages};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Result of a check of the bytes on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// The bytes are not here, or not whole.
    Absent,
    /// The bytes are right; how many.
    Intact(u64),
    /// The bytes are wrong: how. Damaged ones are removed from the cache and downloaded again at the next read.
    Corrupt(String),
    /// The bytes cannot be read now, or are damaged and cannot be removed. They stay.
    Failed(String),
}

/// Answer of the Source that was asked for one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The right bytes: by the published digest or length, or those of the download before.
    Same,
    /// Bytes, while nothing is published that they can be compared with.
    There,
    /// Other bytes: what differs.
    Changed(String),
    /// Nothing: the answer.
    Gone(String),
    /// Unknown: why.
    Failed(String),
}

impl Content {
    /// Reads the bytes of `spec` that are kept here and compares them with the published digest, and with the one that they gave
    /// when they were downloaded. No request, no use in the LRU index. Blocks on the disk, as long as reading does.
    pub fn check(&self, spec: &FetchSpec) -> Checked {
        if self.local.is_poisoned(spec.ino) {
            return Checked::Corrupt("a program has read bytes that are not the published ones".to_owned());
        }
        let Some(held) = self.local.peek(spec.ino) else { return Checked::Absent };
        let is_coded = published_coding(spec).is_some();
        let expected = Expected {
            length: spec.length.filter(|_| !is_coded),
            published: self.local.vouching_digest(spec).filter(|_| !is_coded),
            earlier: self.digest_before(spec),
        };
        match read_through(&held, expected.algorithm()) {
            Err(checked) => checked,
            Ok(seen) => match judge(&expected, &seen) {
                Verdict::Right(_) => Checked::Intact(held.length()),
                Verdict::Wrong(what) => Checked::Corrupt(format!("the cached copy is wrong: {what}")),
                Verdict::Other => Checked::Corrupt("the cached copy is not what was downloaded".to_owned()),
            },
        }
    }

    /// Asks the Source for the whole of `spec` and compares the answer with what is published, and with the download before
    /// where that is known. Stores nothing. The head is due within `patience`; `received` counts the bytes of the body.
    pub async fn ask(&self, spec: &FetchSpec, patience: Duration, received: &AtomicU64) -> Asked {
        let expected = Expected {
            length: spec.length,
            published: self.local.vouching_digest(spec),
            // The digest kept is of what a read returns.
            earlier: self.digest_before(spec).filter(|_| published_coding(spec).is_none()),
        };
        ask((&self.client, self.packages.get()), spec, &expected, patience, received).await
    }

    fn digest_before(&self, spec: &FetchSpec) -> Option<Digest> {
        self.local.metadata.get(spec.ino)?.digests.first().copied()
    }
}

/// Reads one object of a cache folder to its end, with no mount; a damaged one is removed. Blocks on the disk.
pub fn check_object(inventory: &mut Inventory, key: &ObjectKey) -> Checked {
    let object = match inventory.read(key) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Checked::Absent,
        Err(cause) => return Checked::Failed(format!("the cached copy cannot be read now: {cause}")),
        Ok(object) => object,
    };
    let what = match &object {
        None => "it is incomplete, or not a file of the cache".to_owned(),
        Some(object) => {
            let digest = key.vouching();
            let algorithm = digest.map_or(Algorithm::Sha256, |digest| digest.algorithm());
            match read_through(object, algorithm) {
                Err(Checked::Corrupt(what)) => what,
                Err(unread) => return unread,
                Ok(Seen { digest: seen, .. }) if digest.is_some_and(|digest| digest != seen) => {
                    format!("its bytes give {seen}")
                }
                Ok(_) => return Checked::Intact(object.length()),
            }
        }
    };
    match inventory.remove_damaged(key, object.as_ref()) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            Checked::Failed(format!("damaged, and cannot be removed: {what}; {cause}"))
        }
        Ok(moved @ Removal::Moved(_)) => Checked::Corrupt(format!("{what}: {moved}")),
        _ => Checked::Corrupt(what),
    }
}

/// Returns length and digest of the bytes of `object`.
/// The error is the result of the check: the bytes are damaged, or cannot be read now.
fn read_through(object: &Object, algorithm: Algorithm) -> Result<Seen, Checked> {
    let mut verifier = Verifier::new(algorithm);
    while verifier.length() < object.length() {
        let at = verifier.length();
        let bytes = object.check(at, BLOCK as usize).map_err(|damaged| match damaged.unread() {
            Some(cause) => Checked::Failed(format!("the cached copy cannot be read now after {at} bytes: {cause}")),
            None => Checked::Corrupt(format!("the cached copy is damaged after {at} bytes")),
        })?;
        verifier.update(&bytes);
    }
    Ok(verifier.finish())
}

/// Asks for the whole of `spec` at its own URI and compares the answer with what is `expected`. Where the Source has nothing there
/// the package that holds it is asked, as for a read.
pub async fn ask(
    (client, packages): (&Client, Option<&Packages>),
    spec: &FetchSpec,
    expected: &Expected,
    patience: Duration,
    received: &AtomicU64,
) -> Asked {
    match asked_by_uri(client, spec, expected, patience, received).await {
        Ok(asked) => asked,
        Err(cause) if cause.is_gone() => match (packages, &spec.member) {
            (Some(packages), Some(member)) => match asked_of_package(packages, member, expected, received).await {
                Ok(asked) => asked,
                Err(cause) if cause.is_retryable() => Asked::Failed(chain(&cause)),
                Err(cause) => Asked::Gone(chain(&cause)),
            },
            _ => Asked::Gone(chain(&cause)),
        },
        Err(cause) => Asked::Failed(chain(&cause)),
    }
}

/// Compares a member of a package with what is `expected`; its CRC is checked in any case.
async fn asked_of_package(
    packages: &Packages,
    member: &PackageMember,
    expected: &Expected,
    received: &AtomicU64,
) -> Result<Asked, PackageError> {
    let mut read = packages.member(&member.package, &member.path).await?;
    let mut verifier = Verifier::new(expected.algorithm());
    while let Some(bytes) = read.chunk().await? {
        received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        over_bytes(bytes.len() as u64, || verifier.update(&bytes));
    }
    Ok(compared(expected, verifier, || Asked::Same))
}

async fn asked_by_uri(
    client: &Client,
    spec: &FetchSpec,
    expected: &Expected,
    patience: Duration,
    received: &AtomicU64,
) -> Result<Asked, HttpError> {
    let mut request = request(spec, &spec.uri, patience, Priority::default());
    // An audit asks the Source and not a cache between.
    request.no_cache = true;
    let mut response = client.send(request).await?;
    if let Some(page) = soft_failure(spec, expected.published.is_some(), response.media_type.as_deref()) {
        return Ok(Asked::Failed(chain(&page)));
    }
    let coding = response.encoding.as_deref().unwrap_or_default();
    match Form::of(spec, response.encoding.as_deref(), false) {
        Err(what) => return Ok(Asked::Failed(what)),
        // A read decodes its bytes; the digest of the download before is not that of the coded ones.
        Ok(Form::Unasked(_)) if spec.length.is_none() && expected.published.is_none() => return Ok(Asked::There),
        Ok(Form::Unasked(_)) if spec.length.is_none() => return Ok(Asked::Failed(unasked(coding))),
        Ok(_) => {}
    }
    let mut verifier = Verifier::new(expected.algorithm());
    while let Some(bytes) = response.body.chunk().await? {
        received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        over_bytes(bytes.len() as u64, || verifier.update(&bytes));
    }
    Ok(compared(expected, verifier, || match (response.modified, spec.lastmod) {
        // HTTP has whole seconds.
        (Some(modified), Some(lastmod)) if modified.seconds > lastmod.latest() => {
            Asked::Changed(format!("its server has a version of {modified}, later than the published time"))
        }
        _ if expected.length.is_some() || expected.earlier.is_some() => Asked::Same,
        _ => Asked::There,
    }))
}

/// How the bytes seen compare with what is `expected`; `otherwise`: they are right, but by no published digest.
fn compared(expected: &Expected, verifier: Verifier, otherwise: impl FnOnce() -> Asked) -> Asked {
    let seen = verifier.finish();
    match judge(expected, &seen) {
        Verdict::Wrong(what) => Asked::Changed(what),
        Verdict::Other => Asked::Changed(format!("its digest is {} now", seen.digest)),
        Verdict::Right(Verified::Digest(_)) => Asked::Same,
        Verdict::Right(_) => otherwise(),
    }
}

/// The published digests of what a read returns: none where the bytes are decoded, for they are of the coded ones.
pub fn digests_shown(spec: &FetchSpec) -> &[Digest] {
    if is_decoded(spec) { &[] } else { &spec.hashes }
}

/// Returns the requirements on the bytes of `spec`, by what is published alone.
pub fn published(spec: &FetchSpec) -> Expected {
    Expected { length: spec.length, published: spec.strongest_hash(), earlier: None }
}
