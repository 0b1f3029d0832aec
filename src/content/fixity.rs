//! Digests of the bytes, and the verdict: what may be handed out, when, and whether it was right.
//!
//! [`Verifier`] sees the bytes of one attempt in order, [`judge`] compares them with what is expected, [`releasable`] says how far a
//! reader may go before the verdict, and [`BlockDigests`] holds later attempts, block by block, to what was handed out before it.

use super::{Fixity, Verified};
use crate::document::{Algorithm, Digest};
use crate::platform::descriptors::opened;
use ring::digest::{self, Context};
use sha2::Digest as _;
use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Objects up to this many bytes are verified whole before their first byte is handed out.
pub const WHOLE_LIMIT: u64 = 16 << 20;

/// Larger objects are handed out in blocks of this many bytes while they stream.
pub const BLOCK: u64 = 128 << 10;

/// Bytes at the end of a streamed object that are withheld until the whole verifies.
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

    fn finish(self) -> Digest {
        let digest = match self {
            Hasher::Md5(hasher) => Digest::new(Algorithm::Md5, &hasher.finalize()),
            Hasher::Sha224(hasher) => Digest::new(Algorithm::Sha224, &hasher.finalize()),
            Hasher::Ring(algorithm, hasher) => Digest::new(algorithm, hasher.finish().as_ref()),
        };
        digest.unwrap_or_else(|| unreachable!("the output of an algorithm has its length"))
    }
}

/// Requirements that the bytes of an object must meet.
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

/// Length and digest of the bytes that an attempt brought.
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

    /// Returns length and digest of all bytes.
    pub fn finish(self) -> Seen {
        Seen { length: self.length, digest: self.hasher.finish() }
    }
}

/// The verdict on a complete body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The bytes are what they must be; how far that is known.
    Right(Verified),
    /// Other bytes than the Source published: what differs, published and seen.
    Wrong(String),
    /// Nothing published is broken, but they are not what an earlier fetch of this version gave.
    Other,
}

/// Compares a complete body with what is expected. The length is held to as the digest is.
pub fn judge(expected: &Expected, seen: &Seen) -> Verdict {
    if let Some(length) = expected.length.filter(|length| *length != seen.length) {
        return Verdict::Wrong(format!("it has {} bytes, but {length} are published", seen.length));
    }
    if let Some(published) = expected.published {
        return if published == seen.digest {
            Verdict::Right(Verified::Digest(published.algorithm()))
        } else {
            Verdict::Wrong(format!("its digest is {}, but {published} is published", seen.digest))
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

/// Digests of single blocks, comparable within one process: no server knows the seed, so none can make two different
/// blocks of one digest.
#[derive(Clone, Copy)]
pub struct BlockHasher {
    seed: u64,
}

impl Default for BlockHasher {
    fn default() -> Self {
        BlockHasher { seed: RandomState::new().hash_one(BLOCK) }
    }
}

impl BlockHasher {
    /// The digest of each block of `bytes`, which begin with a block. None is 0.
    pub fn digests(self, bytes: &[u8]) -> Vec<u128> {
        bytes.chunks(BLOCK as usize).map(|block| xxh3_128_with_seed(block, self.seed).max(1)).collect()
    }
}

/// Digests of one list that are kept in memory: those of 512 MiB.
const IN_MEMORY: usize = 4096;

/// Bytes of a digest in a file.
const DIGEST: u64 = 16;

/// A digest a block, of any blocks of an object. However many there are, they take a bounded amount of memory: a long list
/// is a file without a name.
///
/// Those of what was handed out of an inode before its verdict outlive the download: the kernel keeps the pages, and every later
/// download must agree with them.
#[derive(Default)]
pub struct BlockDigests {
    in_memory: HashMap<u64, u128>,
    /// Digests at their block's number times [`DIGEST`]; 0: none.
    file: Option<File>,
    in_file: u64,
    /// Behind the last block.
    end: u64,
    /// The file could not be written: it is tried again when so many more are in memory.
    kept_back: usize,
}

impl BlockDigests {
    /// How many blocks have a digest.
    pub fn len(&self) -> u64 {
        self.in_memory.len() as u64 + self.in_file
    }

    /// Returns whether no block has a digest.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of them are in memory.
    pub fn in_memory(&self) -> usize {
        self.in_memory.len()
    }

    /// Returns whether some of the digests are in a file.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// The number behind that of the last block.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The digest of a block. A file that cannot be read has 0 for it, which is no block's: a comparison fails.
    pub fn get(&self, block: u64) -> Option<u128> {
        if block >= self.end {
            return None;
        }
        let in_memory = self.in_memory.get(&block).copied();
        in_memory.or_else(|| self.file.as_ref().and_then(|file| read_digest(file, block).unwrap_or(Some(0))))
    }

    /// Adds the digest of a block that has none. `folder` is where a file is made.
    pub fn put(&mut self, block: u64, digest: u128, folder: &Path) {
        self.end = self.end.max(block + 1);
        self.in_memory.insert(block, digest);
        if self.in_memory.len() > self.kept_back + IN_MEMORY {
            if let Err(error) = self.spill(folder) {
                self.kept_back = self.in_memory.len();
                // They stay in memory: to forget one would let other bytes be handed out in its place.
                tracing::warn!(%error, folder = %folder.display(), "digests of blocks cannot be written to the cache folder");
            }
        }
    }

    fn spill(&mut self, folder: &Path) -> io::Result<()> {
        let file = match self.file.take() {
            Some(file) => self.file.insert(file),
            None => self.file.insert(opened(|| tempfile::tempfile_in(folder))?),
        };
        for (block, digest) in &self.in_memory {
            file.write_all_at(&digest.to_le_bytes(), block * DIGEST)?;
        }
        self.in_file += self.in_memory.len() as u64;
        self.in_memory.clear();
        self.kept_back = 0;
        Ok(())
    }

    /// Returns whether the block of this number has a digest.
    pub fn has(&self, block: u64) -> bool {
        self.get(block).is_some()
    }

    /// Returns whether these blocks would complete the `of` blocks of an object.
    /// A reader who has all of them, in whichever order, has passed the verdict by. So the last one missing waits for the verdict, as the end
    /// of a stream does.
    pub fn would_complete(&self, blocks: Range<u64>, of: u64) -> bool {
        if self.len() + (blocks.end - blocks.start) < of {
            return false;
        }
        let new = blocks.filter(|block| !self.has(*block)).count() as u64;
        new > 0 && self.len() + new >= of
    }

    /// Returns whether each of these blocks, numbered from `first`, was handed out with this digest.
    pub fn holds(&self, first: u64, digests: &[u128]) -> bool {
        (first..).zip(digests).all(|(block, digest)| self.get(block) == Some(*digest))
    }

    /// Returns whether another block was handed out in the place of one of these.
    pub fn contradicts(&self, first: u64, digests: &[u128]) -> bool {
        let mut blocks = (first..).zip(digests);
        blocks.any(|(block, digest)| self.get(block).is_some_and(|out| out != *digest))
    }

    /// Hands out the blocks of these digests, numbered from `first`. False, and none of them must be, where another block
    /// was handed out in the place of one.
    #[must_use]
    pub fn record(&mut self, first: u64, digests: &[u128], folder: &Path) -> bool {
        let agrees = !self.contradicts(first, digests);
        for (block, digest) in (first..).zip(digests).filter(|_| agrees) {
            if !self.has(block) {
                self.put(block, *digest, folder);
            }
        }
        agrees
    }
}

fn read_digest(file: &File, block: u64) -> io::Result<Option<u128>> {
    let mut digest = [0; DIGEST as usize];
    match file.read_exact_at(&mut digest, block * DIGEST) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        read => read.map(|()| Some(u128::from_le_bytes(digest)).filter(|digest| *digest != 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(algorithm: Algorithm, bytes: &[u8]) -> Seen {
        let mut verifier = Verifier::new(algorithm);
        bytes.chunks(2).for_each(|chunk| verifier.update(chunk));
        verifier.finish()
    }

    #[test]
    fn length_0_counts_only_with_the_digest_of_no_bytes() {
        for algorithm in (0..6).filter_map(Algorithm::numbered) {
            let empty = Verifier::new(algorithm).finish().digest;
            let mut verifier = Verifier::new(algorithm);
            verifier.update(b"x");
            let other = verifier.finish().digest;

            assert!(empty.is_of_nothing() && !other.is_of_nothing(), "{algorithm:?}");
            assert_eq!(crate::document::believed_length(Some(0), &[empty]), Some(0));
            assert_eq!(crate::document::believed_length(Some(0), &[other]), None);
            assert_eq!(crate::document::believed_length(Some(0), &[empty, other]), None);
            assert_eq!(crate::document::believed_length(Some(5), &[other]), Some(5));
        }
        assert_eq!(
            (crate::document::believed_length(Some(0), &[]), crate::document::believed_length(None, &[])),
            (None, None)
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

        for length in [2, 4] {
            assert!(wrong(Expected { length: Some(length), ..Expected::default() }), "{length}");
        }
        assert!(wrong(Expected { published: Some(abc), ..Expected::default() }));
        assert!(wrong(Expected { length: Some(3), published: Some(abc), earlier: Some(abd.digest) }));
        assert_eq!(judge(&Expected { earlier: Some(abc), ..Expected::default() }, &abd), Verdict::Other);
    }

    #[test]
    fn small_unmeasured_and_strict_objects_are_not_released_early() {
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

    fn digests(blocks: &[&str]) -> Vec<u128> {
        let hasher = BlockHasher { seed: 7 };
        blocks.iter().flat_map(|block| hasher.digests(block.as_bytes())).collect()
    }

    #[test]
    fn handed_out_blocks_bind_later_ones() {
        let folder = tempfile::tempdir().unwrap();
        let mut out = BlockDigests::default();
        let mut record = |first, blocks: &[&str]| out.record(first, &digests(blocks), folder.path());
        assert!(record(1, &["a"]) && record(1, &["a"]));

        assert!(!record(0, &["a", "b"]));
        assert!(record(0, &["b"]), "of a refused range nothing is recorded");
        assert!(out.holds(0, &digests(&["b", "a"])) && !out.holds(1, &digests(&["a", "a"])));
        assert!(out.contradicts(1, &digests(&["b"])) && !out.contradicts(2, &digests(&["b"])));
        assert_eq!((out.len(), out.end()), (2, 2));
    }

    #[test]
    fn the_last_missing_block_waits_whichever_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let mut out = BlockDigests::default();
        assert!(out.record(2, &digests(&["a", "a"]), folder.path()));

        assert!(!out.would_complete(0..1, 4) && !out.would_complete(2..4, 4));
        assert!(out.would_complete(0..2, 4), "both at once");
        assert!(out.record(0, &digests(&["a"]), folder.path()));
        assert!(out.would_complete(1..2, 4) && out.would_complete(0..3, 4));
        assert!(!out.would_complete(1..2, 5));
        assert!(out.record(1, &digests(&["a"]), folder.path()) && !out.would_complete(0..4, 4), "again");
    }

    /// However long an object is, its digests take a bounded amount of memory, and are compared all the same.
    #[test]
    fn digests_of_many_blocks_are_kept_outside_memory() {
        let folder = tempfile::tempdir().unwrap();
        let mut out = BlockDigests::default();
        let far = (1 << 40) / BLOCK;
        let blocks: Vec<u64> = (0..3 * IN_MEMORY as u64 + 5).chain([far - 1]).collect();
        for block in &blocks {
            assert!(out.record(*block, &[u128::from(*block) + 1], folder.path()));
            assert!(out.in_memory() <= IN_MEMORY);
        }
        assert_eq!((out.len(), out.end()), (blocks.len() as u64, far));
        for block in &blocks {
            assert!(out.holds(*block, &[u128::from(*block) + 1]) && out.contradicts(*block, &[u128::MAX]));
        }
        assert!(!out.has(far - 2) && !out.has(far) && out.has_file());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "its file has no name");
    }

    /// A full disk: every digest counts still, and the file is tried again seldom.
    #[test]
    fn digests_without_a_file_stay_in_memory() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("later");
        let mut out = BlockDigests::default();
        let all = 2 * IN_MEMORY as u64 + 2;
        for block in 0..all {
            assert!(out.record(block, &[u128::from(block) + 1], &folder));
            if block == IN_MEMORY as u64 + 1 {
                std::fs::create_dir(&folder).unwrap();
            }
            assert_eq!(out.has_file(), block == all - 1, "{block}");
        }

        assert_eq!((out.len(), out.in_memory()), (all, 0));
        assert!((0..all).all(|block| out.get(block) == Some(u128::from(block) + 1)));
    }

    /// A block whose digest cannot be read may be any: none is handed out in its place.
    #[test]
    fn digests_in_a_file_that_cannot_be_read_contradict() {
        let folder = tempfile::tempdir().unwrap();
        let mut out = BlockDigests::default();
        assert!((0..=IN_MEMORY as u64).all(|block| out.record(block, &[7], folder.path())));
        assert!(out.has_file() && out.record(3, &[7], folder.path()));

        out.file = Some(File::options().write(true).open("/dev/null").unwrap());

        assert!(out.has(3) && out.contradicts(3, &[7]) && !out.holds(3, &[7]) && !out.record(3, &[7], folder.path()));
        assert!(!out.contradicts(IN_MEMORY as u64 + 1, &[7]), "that was not handed out");
    }

    /// Promise: the last 128 KiB of a large file wait for the verdict.
    #[test]
    fn the_last_128_kib_are_withheld_whatever_the_length() {
        for more in [1, 4096, 65_536, 131_071, 131_072, 131_073, 200_000] {
            let length = (16 << 20) + more;
            let released = releasable(Fixity::Stream, Some(length), length);
            assert!(length - released >= 131_072 && released % 131_072 == 0, "{more}: {released}");
        }
    }
}
