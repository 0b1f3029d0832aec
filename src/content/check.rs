//! For an audit, away from every reader: what is kept here, read again to its end, and what the Source serves, asked for
//! again; both held to their digests.

use super::download::{Form, is_decoded, published_coding, soft_failure, unasked};
use super::fixity::{BLOCK, Expected, Verdict, Verifier, judge};
use super::{Content, FetchSpec, Verified};
use crate::causes::chain;
use crate::document::{Digest, PackageMember};
use crate::source::http::{Client, HttpError, Request};
use crate::source::over_bytes;
use crate::source::zip::{PackageError, Packages};
use std::time::Duration;

/// What was found of the bytes of one version on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// They are not here, or not whole.
    Absent,
    /// They are what they must be.
    Intact,
    /// They are not: what is wrong. Damaged ones are gone from the cache now and are fetched again when they are read.
    Corrupt(String),
}

impl Content {
    /// Reads the bytes of `wanted` that are kept here and compares them with the published digest, and with the one that they had
    /// when they came. Asks nobody, takes as long as reading them does, and moves nothing up in the cache. Blocks on the disk.
    pub fn check(&self, wanted: &FetchSpec) -> Checked {
        if self.is_poisoned(wanted.ino) {
            return Checked::Corrupt("other bytes were handed out than those that are published".to_owned());
        }
        let Some(held) = self.peek_local(wanted.ino) else { return Checked::Absent };
        let kept = self.observed.get(wanted.ino).and_then(|observation| observation.digests.first().copied());
        let is_coded = published_coding(wanted).is_some();
        let expected = Expected {
            length: wanted.length.filter(|_| !is_coded),
            published: self.vouching_digest(wanted).filter(|_| !is_coded),
            earlier: kept,
        };
        let mut verifier = Verifier::new(expected.algorithm());
        while verifier.length() < held.length() {
            // What is read is left to the blocks' checksums first.
            match held.read(verifier.length(), BLOCK as u32) {
                Some(bytes) if !bytes.is_empty() => verifier.update(&bytes),
                _ => return Checked::Corrupt(format!("the cached copy is damaged after {} bytes", verifier.length())),
            }
        }
        let Some(seen) = verifier.finish() else { return Checked::Absent };
        match judge(&expected, &seen) {
            Verdict::Right(_) => Checked::Intact,
            Verdict::Wrong(what) => Checked::Corrupt(format!("of the cached copy {what}")),
            Verdict::Other => Checked::Corrupt("the cached copy is not what was fetched".to_owned()),
        }
    }

    /// Asks the Source for the whole of `wanted` and compares what comes with what is published, and with what came before
    /// where that is kept. Nothing is kept of it. The head is due within `patience`.
    pub async fn ask(&self, wanted: &FetchSpec, patience: Duration) -> Asked {
        let kept = || self.observed.get(wanted.ino).and_then(|observation| observation.digests.first().copied());
        let expected = Expected {
            length: wanted.length,
            published: self.vouching_digest(wanted),
            // What is kept is what a read returns.
            earlier: kept().filter(|_| published_coding(wanted).is_none()),
        };
        ask((&self.client, self.packages.get()), wanted, &expected, patience).await
    }
}

/// What the Source served when it was asked for one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// What must be: by the published digest or length, or as it came before.
    Same,
    /// Something, and nothing is published that it could be compared with.
    There,
    /// Something else: what.
    Changed(String),
    /// Nothing: the answer.
    Gone(String),
    /// No telling: why.
    Failed(String),
}

/// Asks for the whole of `wanted` at its own URI and compares what comes with what is `expected`. Where nothing is there the
/// package that holds it is asked, as a read does.
pub async fn ask(
    (client, packages): (&Client, Option<&Packages>),
    wanted: &FetchSpec,
    expected: &Expected,
    patience: Duration,
) -> Asked {
    let mut request = Request::get(wanted.uri.clone(), patience);
    request.accept = wanted.media_type.clone();
    if let Some(coding) = published_coding(wanted) {
        request.accept_encoding = coding.into();
    }
    // An audit asks the Source and not what stands between.
    request.no_cache = true;
    match received(client, request, wanted, expected).await {
        Ok(asked) => asked,
        Err(cause) if cause.is_gone() => match (packages, &wanted.member) {
            (Some(packages), Some(member)) => match packed(packages, member, expected).await {
                Ok(asked) => asked,
                Err(cause) if cause.is_retryable() => Asked::Failed(chain(&cause)),
                Err(cause) => Asked::Gone(chain(&cause)),
            },
            _ => Asked::Gone(chain(&cause)),
        },
        Err(cause) => Asked::Failed(chain(&cause)),
    }
}

/// Compares a member of a package with what is `expected`; its CRC is held to in any case.
async fn packed(packages: &Packages, member: &PackageMember, expected: &Expected) -> Result<Asked, PackageError> {
    let mut read = packages.member(&member.package, &member.path).await?;
    let mut verifier = Verifier::new(expected.algorithm());
    while let Some(bytes) = read.chunk().await? {
        over_bytes(bytes.len() as u64, || verifier.update(&bytes));
    }
    let Some(seen) = verifier.finish() else { return Ok(Asked::There) };
    Ok(match judge(expected, &seen) {
        Verdict::Wrong(what) => Asked::Changed(what),
        Verdict::Other => Asked::Changed(format!("its digest is {} now", seen.digest)),
        Verdict::Right(_) => Asked::Same,
    })
}

async fn received(
    client: &Client,
    request: Request,
    wanted: &FetchSpec,
    expected: &Expected,
) -> Result<Asked, HttpError> {
    let mut response = client.send(request).await?;
    if let Some(page) = soft_failure(wanted, expected.published.is_some(), response.media_type.as_deref()) {
        return Ok(Asked::Failed(chain(&page)));
    }
    let coding = response.encoding.as_deref().unwrap_or_default();
    match Form::of(wanted, response.encoding.as_deref(), false) {
        Err(what) => return Ok(Asked::Failed(what)),
        // Its bytes are decoded before they are read; what came before is no measure for the coded ones.
        Ok(Form::Unasked(_)) if wanted.length.is_none() && expected.published.is_none() => return Ok(Asked::There),
        Ok(Form::Unasked(_)) if wanted.length.is_none() => return Ok(Asked::Failed(unasked(coding))),
        Ok(_) => {}
    }
    let mut verifier = Verifier::new(expected.algorithm());
    while let Some(bytes) = response.body.chunk().await? {
        over_bytes(bytes.len() as u64, || verifier.update(&bytes));
    }
    let Some(seen) = verifier.finish() else { return Ok(Asked::There) };
    Ok(match judge(expected, &seen) {
        Verdict::Wrong(what) => Asked::Changed(what),
        Verdict::Other => Asked::Changed(format!("its digest is {} now", seen.digest)),
        Verdict::Right(Verified::Digest(_)) => Asked::Same,
        Verdict::Right(_) => match (response.modified, wanted.lastmod) {
            // HTTP tells whole seconds.
            (Some(modified), Some(lastmod)) if modified.seconds > lastmod.seconds => {
                Asked::Changed(format!("it was modified at {modified}"))
            }
            _ if expected.length.is_some() || expected.earlier.is_some() => Asked::Same,
            _ => Asked::There,
        },
    })
}

/// The published digests of what a read returns: none where the bytes are decoded, for they speak of the coded ones.
pub fn digests_shown(wanted: &FetchSpec) -> &[Digest] {
    if is_decoded(wanted) { &[] } else { &wanted.hashes }
}

/// What the bytes of `wanted` must be, by what is published alone.
pub fn published(wanted: &FetchSpec) -> Expected {
    let strongest = wanted.hashes.iter().max_by_key(|digest| digest.algorithm());
    Expected { length: wanted.length, published: strongest.copied(), earlier: None }
}
