//! Digests while the bytes pass, and the verdict: what may be handed out, when, and whether it was right.
//!
//! Everything here is pure: bytes in, answers out. [`Verifier`] sees the bytes of one attempt in order, [`judge`]
//! compares what it saw with what is expected, [`releasable`] says how far a reader may go before the verdict, and
//! [`HandedOut`] remembers what went out before it, so that a later attempt can be held to it byte for byte.

use super::{Fixity, Verified};
use crate::document::{Algorithm, Digest};
use ring::digest::{self, Context};
use sha2::Digest as _;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Objects up to this many bytes are verified whole before their first byte is handed out.
pub const WHOLE_LIMIT: u64 = 16 << 20;

/// Larger objects are handed out in blocks of this many bytes while they stream.
pub const BLOCK: u64 = 128 << 10;

/// So many bytes at the end of a streamed object are withheld until the whole verifies.
pub const WITHHELD: u64 = 128 << 10;

/// A digest algorithm at work. `ring` hashes several times as fast as portable code can; it has neither MD5 nor SHA-224.
enum Hasher {
    Md5(md5::Md5),
    Sha224(sha2::Sha224),
    Ring(Algorithm, Context),
}

impl Hasher {
    fn new(algorithm: Algorithm) -> Hasher {
        let ring = match algorithm {
            Algorithm::Md5 => return Hasher::Md5(md5::Md5::new()),
            Algorithm::Sha224 => return Hasher::Sha224(sha2::Sha224::new()),
            Algorithm::Sha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
            Algorithm::Sha256 => &digest::SHA256,
            Algorithm::Sha384 => &digest::SHA384,
            Algorithm::Sha512 => &digest::SHA512,
        };
        Hasher::Ring(algorithm, Context::new(ring))
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Md5(hasher) => hasher.update(bytes),
            Hasher::Sha224(hasher) => hasher.update(bytes),
            Hasher::Ring(_, hasher) => hasher.update(bytes),
        }
    }

    /// `None` never happens: an algorithm's output has the algorithm's length.
    fn finish(self) -> Option<Digest> {
        match self {
            Hasher::Md5(hasher) => Digest::new(Algorithm::Md5, &hasher.finalize()),
            Hasher::Sha224(hasher) => Digest::new(Algorithm::Sha224, &hasher.finalize()),
            Hasher::Ring(algorithm, hasher) => Digest::new(algorithm, hasher.finish().as_ref()),
        }
    }
}

/// What the bytes of an object must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// The published length, as transferred.
    pub length: Option<u64>,
    /// The strongest published digest, as transferred; `None` where there is none or [`Fixity::Off`] ignores it.
    pub published: Option<Digest>,
    /// The digest that an earlier complete fetch of this very version gave, as transferred.
    pub earlier: Option<Digest>,
}

impl Expected {
    /// The algorithm to compute: the published digest's, else an earlier fetch's, else SHA-256, so that a later fetch
    /// can be held to this one.
    pub fn algorithm(&self) -> Algorithm {
        self.published.or(self.earlier).map_or(Algorithm::Sha256, |digest| digest.algorithm())
    }
}

/// What an attempt's bytes were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Bytes, as transferred.
    pub length: u64,
    /// Their digest.
    pub digest: Digest,
}

/// Hashes the bytes of one attempt as they pass, in order from the first.
pub struct Verifier {
    hasher: Hasher,
    length: u64,
}

impl Verifier {
    /// A verifier that has seen nothing.
    pub fn new(algorithm: Algorithm) -> Verifier {
        Verifier { hasher: Hasher::new(algorithm), length: 0 }
    }

    /// The next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
    }

    /// Bytes seen so far.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// What was seen in all.
    pub fn finish(self) -> Option<Seen> {
        let length = self.length;
        self.hasher.finish().map(|digest| Seen { length, digest })
    }
}

/// The verdict on a complete body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The bytes are what they must be; how far that is known.
    Right(Verified),
    /// They are not what the Source published: what, published and seen.
    Wrong(String),
    /// Nothing published is broken, but they are not what an earlier fetch of this version gave.
    Other,
}

/// Compares a complete body with what is expected. The length is held to as the digest is.
pub fn judge(expected: &Expected, seen: &Seen) -> Verdict {
    if let Some(length) = expected.length.filter(|length| *length != seen.length) {
        return Verdict::Wrong(format!("{} bytes came where {length} are published", seen.length));
    }
    if let Some(published) = expected.published {
        return if published == seen.digest {
            Verdict::Right(Verified::Digest(published.algorithm()))
        } else {
            Verdict::Wrong(format!("its digest is {} where {published} is published", seen.digest))
        };
    }
    if expected.earlier.is_some_and(|earlier| earlier != seen.digest) {
        return Verdict::Other;
    }
    Verdict::Right(if expected.length.is_some() { Verified::Length } else { Verified::Transfer })
}

/// How many bytes from the first may be handed out before the verdict, of an object of `length` bytes of which the
/// first `frontier` are here. Always a multiple of [`BLOCK`]; what it withholds is at least [`WITHHELD`].
pub fn releasable(fixity: Fixity, length: Option<u64>, frontier: u64) -> u64 {
    match length {
        Some(length) if fixity != Fixity::Strict && length > WHOLE_LIMIT => {
            let limit = frontier.min(length - WITHHELD);
            limit - limit % BLOCK
        }
        _ => 0,
    }
}

/// Digests of single blocks, comparable within one process: the seed is unknown to any server, so that two different
/// blocks of one digest cannot be made.
#[derive(Clone, Copy)]
pub struct BlockDigests {
    seed: u64,
}

impl Default for BlockDigests {
    fn default() -> Self {
        BlockDigests { seed: RandomState::new().hash_one(BLOCK) }
    }
}

impl BlockDigests {
    /// The digest of one block.
    pub fn of(self, block: &[u8]) -> u128 {
        xxh3_128_with_seed(block, self.seed)
    }
}

/// What was handed out of one inode before its verdict, a digest for each [`BLOCK`]. Outlives the fetch it belongs to:
/// the kernel keeps the pages, so every later fetch must agree with them.
#[derive(Default)]
pub struct HandedOut {
    blocks: HashMap<u64, u128>,
}

impl HandedOut {
    /// Nothing went out.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// How many blocks went out.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the block of this number went out.
    pub fn went_out(&self, block: u64) -> bool {
        self.blocks.contains_key(&block)
    }

    /// Whether these blocks would complete the `of` blocks of an object. A reader who has all of them, in whichever order, has passed
    /// the verdict by: the last one missing waits for it, as the end of a stream does.
    pub fn would_complete(&self, blocks: Range<u64>, of: u64) -> bool {
        let new = blocks.filter(|block| !self.went_out(*block)).count() as u64;
        new > 0 && self.blocks.len() as u64 + new >= of
    }

    /// Whether each of these blocks, numbered from `first`, went out with this digest.
    pub fn holds(&self, first: u64, digests: &[u128]) -> bool {
        (first..).zip(digests).all(|(block, digest)| self.blocks.get(&block) == Some(digest))
    }

    /// Whether another block went out in the place of one of these.
    pub fn contradicts(&self, first: u64, digests: &[u128]) -> bool {
        (first..).zip(digests).any(|(block, digest)| self.blocks.get(&block).is_some_and(|out| out != digest))
    }

    /// The blocks of these digests go out, numbered from `first`. False, and none of them must, where another block
    /// went out in the place of one.
    #[must_use]
    pub fn record(&mut self, first: u64, digests: &[u128]) -> bool {
        let agrees = !self.contradicts(first, digests);
        if agrees {
            self.blocks.extend((first..).zip(digests.iter().copied()));
        }
        agrees
    }

    /// Whether a whole object of these block digests is what went out: no block of another digest, none past its end.
    pub fn agrees_with(&self, digests: &[u128]) -> bool {
        self.blocks
            .iter()
            .all(|(block, out)| usize::try_from(*block).is_ok_and(|block| digests.get(block) == Some(out)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(algorithm: Algorithm, bytes: &[u8]) -> Seen {
        let mut verifier = Verifier::new(algorithm);
        bytes.chunks(2).for_each(|chunk| verifier.update(chunk));
        verifier.finish().unwrap()
    }

    #[test]
    fn length_0_does_not_count_with_the_digest_of_bytes() {
        for algorithm in (0..6).filter_map(Algorithm::numbered) {
            let empty = Verifier::new(algorithm).finish().unwrap().digest;
            let mut verifier = Verifier::new(algorithm);
            verifier.update(b"x");
            let other = verifier.finish().unwrap().digest;

            assert!(empty.is_of_nothing() && !other.is_of_nothing(), "{algorithm:?}");
            assert_eq!(crate::document::believed_length(Some(0), &[empty]), Some(0));
            assert_eq!(crate::document::believed_length(Some(0), &[other]), None);
            assert_eq!(crate::document::believed_length(Some(0), &[empty, other]), None);
            assert_eq!(crate::document::believed_length(Some(5), &[other]), Some(5));
        }
        assert_eq!(
            (crate::document::believed_length(Some(0), &[]), crate::document::believed_length(None, &[])),
            (Some(0), None)
        );
    }

    #[test]
    fn every_algorithm_gives_its_digest() {
        let of_abc = [
            (Algorithm::Md5, "900150983cd24fb0d6963f7d28e17f72"),
            (Algorithm::Sha1, "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (Algorithm::Sha224, "23097d223405d8228642a477bda255b32aadbce4bda0b3f7e36c9da7"),
            (Algorithm::Sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                Algorithm::Sha384,
                "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7",
            ),
            (
                Algorithm::Sha512,
                "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
            ),
        ];
        for (algorithm, hex) in of_abc {
            let seen = seen(algorithm, b"abc");
            assert_eq!(seen.digest.to_string(), format!("{}:{hex}", algorithm.name()));
            assert_eq!(seen.length, 3);
        }
    }

    #[test]
    fn the_verdict_says_how_far_the_bytes_are_known() {
        let abc = seen(Algorithm::Sha256, b"abc");
        let published = Expected { length: Some(3), published: Some(abc.digest), earlier: None };
        let only_length = Expected { length: Some(3), ..Expected::default() };
        let again = Expected { earlier: Some(abc.digest), ..Expected::default() };

        assert_eq!(judge(&published, &abc), Verdict::Right(Verified::Digest(Algorithm::Sha256)));
        assert_eq!(judge(&only_length, &abc), Verdict::Right(Verified::Length));
        assert_eq!(judge(&again, &abc), Verdict::Right(Verified::Transfer));
        assert_eq!(judge(&Expected::default(), &abc), Verdict::Right(Verified::Transfer));
    }

    #[test]
    fn wrong_length_wrong_digest_and_another_version_are_told_apart() {
        let abd = seen(Algorithm::Sha256, b"abd");
        let abc = seen(Algorithm::Sha256, b"abc").digest;
        let wrong = |expected| matches!(judge(&expected, &abd), Verdict::Wrong(_));

        assert!(wrong(Expected { length: Some(4), ..Expected::default() }));
        assert!(wrong(Expected { published: Some(abc), ..Expected::default() }));
        assert!(wrong(Expected { length: Some(3), published: Some(abc), earlier: Some(abd.digest) }));
        assert_eq!(judge(&Expected { earlier: Some(abc), ..Expected::default() }, &abd), Verdict::Other);
    }

    #[test]
    fn nothing_is_released_early_of_small_unmeasured_or_strict_objects() {
        assert_eq!(releasable(Fixity::Stream, Some(WHOLE_LIMIT), WHOLE_LIMIT), 0);
        assert_eq!(releasable(Fixity::Stream, None, 1 << 40), 0);
        assert_eq!(releasable(Fixity::Strict, Some(1 << 40), 1 << 39), 0);
    }

    #[test]
    fn the_end_of_a_streamed_object_is_withheld() {
        let length = WHOLE_LIMIT + 1;
        for frontier in (0..=length).step_by(77_777).chain([length]) {
            let released = releasable(Fixity::Stream, Some(length), frontier);
            assert!(released <= frontier && released <= length - WITHHELD && released.is_multiple_of(BLOCK));
        }
        assert_eq!(releasable(Fixity::Stream, Some(length), BLOCK), BLOCK);
        assert_eq!(releasable(Fixity::Off, Some(length), length), WHOLE_LIMIT - BLOCK);
    }

    #[test]
    fn what_went_out_binds_what_may_follow() {
        let digests = BlockDigests::default();
        let (a, b) = (digests.of(b"a"), digests.of(b"b"));
        let mut out = HandedOut::default();
        assert!(out.is_empty() && out.record(1, &[a]));

        assert!(out.record(1, &[a]));
        assert!(!out.record(0, &[a, b]) && out.record(0, &[b]), "of a refused range nothing is recorded");
        assert!(out.agrees_with(&[b, a]) && !out.agrees_with(&[b, b]));
        assert!(!out.agrees_with(&[a]), "a block past the end went out");
    }

    #[test]
    fn the_last_block_missing_waits_whichever_it_is() {
        let digest = BlockDigests::default().of(b"a");
        let mut out = HandedOut::default();
        assert!(out.record(2, &[digest, digest]));

        assert!(!out.would_complete(0..1, 4) && !out.would_complete(2..4, 4));
        assert!(out.would_complete(0..2, 4), "both at once");
        assert!(out.record(0, &[digest]));
        assert!(out.would_complete(1..2, 4) && out.would_complete(0..3, 4));
        assert!(!out.would_complete(1..2, 5));
        assert!(out.record(1, &[digest]) && !out.would_complete(0..4, 4), "what went out may go out again");
    }
}
