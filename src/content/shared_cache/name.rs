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
    pub(in crate::content) fn of(wanted: &FetchSpec, etag: Option<&str>) -> Option<Name> {
        if wanted.encoding.is_some() {
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
        let etag = etag.filter(|_| !is_published);
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

    pub(in crate::content) fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Whether the CRCs of its blocks are needed, of an object of `length` bytes where that is known: where no digest says which bytes
    /// are right, and where blocks are handed out before the digest is known.
    pub(super) fn needs_checks(&self, length: Option<u64>) -> bool {
        !self.is_vouched || length.is_none_or(|length| length > WHOLE_LIMIT)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path)
    }
}

fn strongest(wanted: &FetchSpec) -> Option<Digest> {
    wanted.hashes.iter().max_by_key(|digest| digest.algorithm()).copied()
}

fn is_strong(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::Sha256 | Algorithm::Sha384 | Algorithm::Sha512)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Timestamp, Uri};
    use fuser::INodeNo;

    fn wanted() -> FetchSpec {
        let lastmod = Some(Timestamp { seconds: 100, nanos: 7 });
        let wanted = FetchSpec::new(INodeNo(2), Uri::parse("http://example.org/a").unwrap());
        FetchSpec { lastmod, length: Some(5), ..wanted }
    }

    #[test]
    fn a_strong_digest_names_the_bytes_wherever_they_are() {
        let hashes = vec![Digest::new(Algorithm::Sha256, &[0xab; 32]).unwrap()];
        let here = FetchSpec { hashes, is_replaced: true, ..wanted() };
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
            FetchSpec { uri: Uri::parse("http://example.org/b").unwrap(), ..wanted() },
            FetchSpec { lastmod: Some(Timestamp { seconds: 100, nanos: 8 }), ..wanted() },
            FetchSpec { length: Some(6), ..wanted() },
            FetchSpec { hashes: hash(1), ..wanted() },
            FetchSpec { hashes: hash(2), ..wanted() },
        ];
        let mut names: Vec<_> = others.iter().map(|other| Name::of(other, None).unwrap().to_string()).collect();
        names.push(Name::of(&wanted(), None).unwrap().to_string());
        let bare = FetchSpec { lastmod: None, ..wanted() };
        names.extend(["\"v1\"", "\"v2\""].map(|etag| Name::of(&bare, Some(etag)).unwrap().to_string()));
        assert_eq!(Name::of(&wanted(), Some("\"v1\"")), Name::of(&wanted(), None), "what is published is enough");

        let all = names.len();
        names.sort();
        names.dedup();

        assert_eq!(names.len(), all);
        assert!(names.iter().all(|name| name.starts_with("versions/") && name.len() == 9 + 64));
    }

    #[test]
    fn a_version_that_nothing_identifies_has_no_name() {
        let unnamed = [
            FetchSpec { lastmod: None, ..wanted() },
            FetchSpec { length: None, ..wanted() },
            FetchSpec { encoding: Some("gzip".into()), ..wanted() },
            FetchSpec {
                encoding: Some("gzip".into()),
                hashes: vec![Digest::new(Algorithm::Sha256, &[1; 32]).unwrap()],
                ..wanted()
            },
            FetchSpec { is_replaced: true, ..wanted() },
            FetchSpec { as_of: Some(Timestamp { seconds: 1, nanos: 0 }), ..wanted() },
        ];
        assert!(unnamed.iter().all(|version| Name::of(version, None).is_none()));
    }
}
