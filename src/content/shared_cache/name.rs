//! Under which name the shared cache has a version.

use super::super::FetchSpec;
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
    /// what is published of it. `etag` is the strong ETag under which the Source serves it; it counts where nothing is published that would.
    ///
    /// `None`: nothing identifies the version, or it has a content coding. What is kept of that is not what is published.
    pub(in crate::content) fn of(spec: &FetchSpec, etag: Option<&str>) -> Option<Name> {
        if spec.encoding.is_some() {
            return None;
        }
        if let Some(digest) = spec.strongest_hash().filter(|digest| is_strong(digest.algorithm())) {
            let key = ObjectKey::digest("", &digest);
            let algorithm = digest.algorithm().name();
            let hex = key.as_str().strip_prefix(algorithm)?.trim_start_matches('-');
            return Some(Name { path: format!("objects/{algorithm}/{hex}"), key, is_vouched: true });
        }
        // Of a past version the Source may serve another one's bytes.
        if spec.is_past() {
            return None;
        }
        let mut identity = format!("{RULES}\n{}\n", spec.uri);
        let mut hashes: Vec<String> = spec.hashes.iter().map(Digest::to_string).collect();
        hashes.sort();
        let is_published = !hashes.is_empty() || (spec.lastmod.is_some() && spec.length.is_some());
        let etag = etag.filter(|_| !is_published);
        if !is_published && etag.is_none() {
            return None;
        }
        let lastmod = spec.lastmod.map(|time| (time.seconds, time.nanos));
        // Writing to a String cannot fail.
        let _ = write!(identity, "{hashes:?}\n{lastmod:?}\n{:?}\n{etag:?}\n", spec.length);
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

    pub(in crate::content) fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Returns whether the CRCs of its blocks are needed; `length`: bytes of the object, where known. They are needed where no digest says which
    /// bytes are right, and where blocks are handed out before the digest is known.
    pub(super) fn needs_checks(&self, length: Option<u64>) -> bool {
        !self.is_vouched || length.is_none_or(|length| length > WHOLE_LIMIT)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path)
    }
}

fn is_strong(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::Sha256 | Algorithm::Sha384 | Algorithm::Sha512)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Timestamp, Uri};
    use crate::platform::ino::Ino;

    fn spec() -> FetchSpec {
        let lastmod = Some(Timestamp { seconds: 100, nanos: 7 });
        let spec = FetchSpec::new(Ino(2), Uri::parse("http://example.org/a").unwrap());
        FetchSpec { lastmod, length: Some(5), ..spec }
    }

    #[test]
    fn a_strong_digest_names_the_bytes_wherever_they_are() {
        let hashes = vec![Digest::new(Algorithm::Sha256, &[0xab; 32]).unwrap()];
        let here = FetchSpec { hashes, is_replaced: true, ..spec() };
        let there = FetchSpec { uri: Uri::parse("http://b.example/").unwrap(), lastmod: None, ..here.clone() };

        let name = Name::of(&here, None).unwrap();

        assert_eq!(name.to_string(), format!("objects/sha-256/{}", "ab".repeat(32)));
        assert_eq!(Name::of(&there, Some("\"v1\"")), Some(name.clone()));
        assert_eq!((name.needs_checks(Some(5)), name.needs_checks(None)), (false, true));
    }

    #[test]
    fn all_that_identifies_a_version_is_in_its_name() {
        let hash = |byte| vec![Digest::new(Algorithm::Md5, &[byte; 16]).unwrap()];
        let others = [
            FetchSpec { uri: Uri::parse("http://example.org/b").unwrap(), ..spec() },
            FetchSpec { lastmod: Some(Timestamp { seconds: 100, nanos: 8 }), ..spec() },
            FetchSpec { length: Some(6), ..spec() },
            FetchSpec { hashes: hash(1), ..spec() },
            FetchSpec { hashes: hash(2), ..spec() },
        ];
        let mut names: Vec<_> = others.iter().map(|other| Name::of(other, None).unwrap().to_string()).collect();
        names.push(Name::of(&spec(), None).unwrap().to_string());
        let bare = FetchSpec { lastmod: None, ..spec() };
        names.extend(["\"v1\"", "\"v2\""].map(|etag| Name::of(&bare, Some(etag)).unwrap().to_string()));
        assert_eq!(Name::of(&spec(), Some("\"v1\"")), Name::of(&spec(), None), "what is published is enough");

        let all = names.len();
        names.sort();
        names.dedup();

        assert_eq!(names.len(), all);
        assert!(names.iter().all(|name| name.starts_with("versions/") && name.len() == 9 + 64));
    }

    #[test]
    fn a_version_that_nothing_identifies_has_no_name() {
        let unnamed = [
            FetchSpec { lastmod: None, ..spec() },
            FetchSpec { length: None, ..spec() },
            FetchSpec { encoding: Some("gzip".into()), ..spec() },
            FetchSpec {
                encoding: Some("gzip".into()),
                hashes: vec![Digest::new(Algorithm::Sha256, &[1; 32]).unwrap()],
                ..spec()
            },
            FetchSpec { is_replaced: true, ..spec() },
            FetchSpec { as_of: Some(Timestamp { seconds: 1, nanos: 0 }), ..spec() },
        ];
        assert!(unnamed.iter().all(|version| Name::of(version, None).is_none()));
    }
}
