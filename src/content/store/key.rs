//! What an object is called.

use super::files::{OBJECTS, PARTIALS};
use crate::document::{Algorithm, Digest};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt::Write;
use std::sync::Arc;

/// The name of an object: one content version. It is the file's name in the cache folder.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Box<str>")]
pub struct ObjectKey(Arc<str>);

impl TryFrom<Box<str>> for ObjectKey {
    type Error = &'static str;

    fn try_from(text: Box<str>) -> Result<ObjectKey, Self::Error> {
        ObjectKey::parse(&text).ok_or("not an object name")
    }
}

/// Longer than any key: `sha-512-` and 128 hex digits are 136 bytes.
const MAX_LENGTH: usize = 160;

impl ObjectKey {
    /// `sha-256-9f86d0…`: bytes that gave this digest, from any Source. Of md5 and SHA-1 other bytes with the same
    /// digest can be made, and SHA-224 is short of what is asked of it today, so under these only the same Source shares:
    /// `md5-HASH-9f86d0…`. Otherwise one Source could plant what another one's readers get.
    pub fn digest(source: &str, digest: &Digest) -> ObjectKey {
        let mut text = format!("{}-", digest.algorithm().name());
        match digest.algorithm() {
            Algorithm::Sha256 | Algorithm::Sha384 | Algorithm::Sha512 => {}
            Algorithm::Md5 | Algorithm::Sha1 | Algorithm::Sha224 => {
                push_source(&mut text, source);
                text.push('-');
            }
        }
        push_hex(&mut text, digest.bytes());
        ObjectKey(text.into())
    }

    /// `ino-HASH-INO`: the version that a Source has under an inode, where no digest vouches for the bytes.
    pub fn inode(source: &str, ino: u64) -> ObjectKey {
        let mut text = String::from("ino-");
        push_source(&mut text, source);
        let _ = write!(text, "-{ino:016x}");
        ObjectKey(text.into())
    }

    /// The digest that its bytes gave; `None` where the key is by inode.
    pub fn vouching(&self) -> Option<Digest> {
        use Algorithm::{Md5, Sha1, Sha224, Sha256, Sha384, Sha512};
        let algorithm = [Md5, Sha1, Sha224, Sha256, Sha384, Sha512]
            .into_iter()
            .find(|algorithm| self.0.strip_prefix(algorithm.name()).is_some_and(|rest| rest.starts_with('-')))?;
        let hex = self.0.rsplit('-').next()?;
        let pairs = hex.as_bytes().chunks(2);
        let bytes: Option<Vec<u8>> =
            pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
        Digest::new(algorithm, &bytes?)
    }

    /// Returns whether it names what this Source alone has: a version by its inode, or by a digest that could be forged.
    pub fn is_of(&self, source: &str) -> bool {
        let mut name = String::new();
        push_source(&mut name, source);
        self.0.split('-').any(|part| part == name)
    }

    /// A key from its text; `None` where the text could not be a file's name in the cache folder.
    pub fn parse(text: &str) -> Option<ObjectKey> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let fits = (3..=MAX_LENGTH).contains(&text.len())
            && text.bytes().all(plain)
            && text.bytes().rev().take(2).all(|b| b.is_ascii_hexdigit());
        fits.then(|| ObjectKey(text.into()))
    }

    /// Its text: lower-case letters, digits and `-` only.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path of its object below the cache folder.
    pub(super) fn object_name(&self) -> String {
        format!("{OBJECTS}{}/{self}", self.shard())
    }

    /// The path of its partial.
    pub(super) fn partial_name(&self) -> String {
        format!("{PARTIALS}{self}")
    }

    /// Its folder below `objects/`: one of 256, which digests and counted inodes fill evenly.
    pub(super) fn shard(&self) -> &str {
        // Never past the start: every key has at least three bytes, all of them ASCII.
        &self.0[self.0.len() - 2..]
    }

    /// A hash of it, the same in every process. It stands in an object's trailer, so that a file under another object's name is not
    /// taken for it.
    pub fn hash(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(self.0.as_bytes())
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn push_source(text: &mut String, source: &str) {
    push_hex(text, &Sha256::digest(source.as_bytes())[..16]);
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_file_names_and_come_back_from_their_text() {
        let digest = Digest::new(Algorithm::Sha512, &[0xab; 64]).unwrap();
        for key in [ObjectKey::digest("https://a.example/", &digest), ObjectKey::inode("https://a.example/", u64::MAX)]
        {
            assert!(key.as_str().len() <= MAX_LENGTH);
            assert_eq!(ObjectKey::parse(key.as_str()), Some(key.clone()));
            assert_eq!(key.shard().len(), 2);
        }
    }

    #[test]
    fn a_key_shows_its_digest_and_its_source() {
        use Algorithm::{Md5, Sha1, Sha224, Sha256, Sha384, Sha512};
        for algorithm in [Md5, Sha1, Sha224, Sha256, Sha384, Sha512] {
            let digest = Digest::new(algorithm, &vec![0x5c; algorithm.digest_length()]).unwrap();
            let key = ObjectKey::digest("a", &digest);
            assert_eq!(key.vouching(), Some(digest));
            assert_eq!(key.is_of("a"), matches!(algorithm, Md5 | Sha1 | Sha224), "{key}");
            assert!(!key.is_of("b"));
        }
        assert_eq!(ObjectKey::inode("a", 7).vouching(), None);
        assert!(ObjectKey::inode("a", 7).is_of("a") && !ObjectKey::inode("a", 7).is_of("b"));
    }

    #[test]
    fn texts_that_leave_the_folder_are_not_keys() {
        for text in ["", "..", "../x", "a/b", "sha-256-AB", "a~1", "ü--", "sha-1-", "abc-"] {
            assert_eq!(ObjectKey::parse(text), None, "{text}");
        }
    }

    #[test]
    fn sources_do_not_share_inodes() {
        assert_ne!(ObjectKey::inode("a", 7), ObjectKey::inode("b", 7));
        assert_ne!(ObjectKey::inode("a", 7), ObjectKey::inode("a", 8));
    }
    #[test]
    fn sources_share_only_digests_that_cannot_be_forged() {
        use Algorithm::{Md5, Sha1, Sha224, Sha256, Sha384, Sha512};
        for algorithm in [Md5, Sha1, Sha224, Sha256, Sha384, Sha512] {
            let digest = Digest::new(algorithm, &vec![0xab; algorithm.digest_length()]).unwrap();
            let (one, other) = (ObjectKey::digest("a", &digest), ObjectKey::digest("b", &digest));
            assert_eq!(one == other, matches!(algorithm, Sha256 | Sha384 | Sha512), "{}", algorithm.name());
            assert_eq!(ObjectKey::parse(one.as_str()), Some(one));
        }
    }
}
