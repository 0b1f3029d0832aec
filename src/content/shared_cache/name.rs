//! Under which name the shared cache has a version.

use super::super::FetchSpec;
use super::super::download::{published_coding, strong};
use super::super::fixity::WHOLE_LIMIT;
use super::super::store::ObjectKey;
use crate::document::{Algorithm, Digest};
use sha2::{Digest as _, Sha256};
use std::fmt::Write;

/// The rules by which names of versions are made. Other rules make other names.
const RULES: &str = "resyncfs shared version 1";

/// The name of an object in the shared cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::content) struct Name {
    /// Below the prefix of the cache.
    path: String,
    /// Stands in the CRC object, so that the CRCs of another object are not taken for its own.
    key: ObjectKey,
    /// The digest in the name says which bytes are right.
    is_vouched: bool,
}

impl Name {
    /// `objects/sha-256/HEX` for a published digest of SHA-256 or stronger, else `versions/HEX` of all that identifies the version: its URI and
    /// what is published of it. `etag` is the ETag under which the Source serves it; it counts where nothing is published that would.
    ///
    /// `None`: nothing identifies the version, or it has a content coding. What is kept of that is not what is published.
    pub(in crate::content) fn of(wanted: &FetchSpec, etag: Option<&str>) -> Option<Name> {
        if published_coding(wanted).is_some() {
            return None;
        }
        if let Some(digest) = strongest(wanted).filter(|digest| is_strong(digest.algorithm())) {
            let key = ObjectKey::digest("", &digest);
            let algorithm = digest.algorithm().name();
            let hex = key.as_str().strip_prefix(algorithm)?.trim_start_matches('-');
            return Some(Name { path: format!("objects/{algorithm}/{hex}"), key, is_vouched: true });
        }
        // Of a past version the Source may serve another one's bytes.
        if wanted.is_past() {
            return None;
        }
        let mut identity = format!("{RULES}\n{}\n", wanted.uri);
        let mut hashes: Vec<String> = wanted.hashes.iter().map(Digest::to_string).collect();
        hashes.sort();
        let is_published = !hashes.is_empty() || (wanted.lastmod.is_some() && wanted.length.is_some());
        let etag = strong(etag).filter(|_| !is_published);
        if !is_published && etag.is_none() {
            return None;
        }
        let lastmod = wanted.lastmod.map(|time| (time.seconds, time.nanos));
        // Writing to a String cannot fail.
        let _ = write!(identity, "{hashes:?}\n{lastmod:?}\n{:?}\n{etag:?}\n", wanted.length);
        let mut hex = String::new();
        Sha256::digest(identity.as_bytes()).iter().for_each(|byte| {
            let _ = write!(hex, "{byte:02x}");
        });
        let key = ObjectKey::parse(&format!("version-{hex}"))?;
        Some(Name { path: format!("versions/{hex}"), key, is_vouched: false })
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Whether the CRCs of its blocks are needed, of an object of `length` bytes where that is known: where no digest says which bytes
    /// are right, and where blocks are handed out before the digest is known.
    pub(super) fn needs_checks(&self, length: Option<u64>) -> bool {
        !self.is_vouched || length.is_none_or(|length| length > WHOLE_LIMIT)
    }
}

fn strongest(wanted: &FetchSpec) -> Option<Digest> {
    wanted.hashes.iter().max_by_key(|digest| digest.algorithm()).copied()
}

fn is_strong(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::Sha256 | Algorithm::Sha384 | Algorithm::Sha512)
}
