//! The keys of the tables.
//!
//! Numbers are big-endian and of 40 bits, so that keys sort by them: the children of a folder are neighbours, and a first
//! baseline, level by level, appends.

use super::super::SetId;
use crate::document::Uri;
use sha2::{Digest, Sha256};

/// A key of two parts.
fn joined<const N: usize>(front: &[u8], back: &[u8]) -> [u8; N] {
    let mut key = [0; N];
    key[..front.len()].copy_from_slice(front);
    key[front.len()..].copy_from_slice(back);
    key
}

/// Key of `inodes` and `orphans`.
pub fn ino_key(ino: u64) -> [u8; 5] {
    let [_, _, _, key @ ..] = ino.to_be_bytes();
    key
}

/// Key of `entries`.
pub fn entry_key(parent: u64, entry: u64) -> [u8; 10] {
    joined(&ino_key(parent), &ino_key(entry))
}

/// Key of `names`.
pub fn name_key(parent: u64, hash: u32) -> [u8; 9] {
    joined(&ino_key(parent), &hash.to_be_bytes())
}

/// Bytes of a digest within a key.
const DIGEST: usize = 16;

/// Key of `journal` and `held`. Two URIs cannot be made to have one digest.
pub fn resource_key(set: SetId, uri: &Uri) -> [u8; 4 + DIGEST] {
    joined(&set.0.to_be_bytes(), &digest(uri.as_str()))
}

/// The set of a key of `journal` or `held`.
pub fn set_of_key(key: &[u8]) -> Option<SetId> {
    key.first_chunk().map(|set| SetId(u32::from_be_bytes(*set)))
}

/// Key of `displaced`.
pub fn displaced_key(path: &str, uri: &Uri) -> [u8; 2 * DIGEST] {
    joined(&digest(path), &digest(uri.as_str()))
}

/// The digest of a URI; or of a path, with which the keys of all names begin that lost its plain name.
pub fn digest(text: &str) -> [u8; DIGEST] {
    let mut digest = [0; DIGEST];
    digest.copy_from_slice(&Sha256::digest(text.as_bytes())[..DIGEST]);
    digest
}
