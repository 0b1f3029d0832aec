//! The versions of the files: few bytes are made, and all versions are parts of them.

use super::super::{bytes as bytes_of, digest};
use super::random::Random;
use crate::content::fixity::{BLOCK, WHOLE_LIMIT};
use crate::document::{Algorithm, Digest};
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

/// Bytes of the longest body.
const LONGEST: u64 = 2 * WHOLE_LIMIT + 5 * BLOCK + 99;

/// Bytes by which a version made of the other body is shifted.
const SHIFT: u64 = 4096 + 8;

/// Two bodies without a page in common; all others are made of these.
static FIRST: LazyLock<Vec<u8>> = LazyLock::new(|| bytes_of((LONGEST + SHIFT) as usize, 1));
static OTHER: LazyLock<Vec<u8>> = LazyLock::new(|| bytes_of((LONGEST + SHIFT) as usize, 2));

/// The difference between a version and the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Variant {
    First,
    /// Everywhere.
    Other,
    /// In one block in the middle.
    Block,
    /// In its last byte.
    End,
    /// As `First` to the middle and as `Other` from there on: it was changed while it was sent.
    Torn,
    /// As `First`, and it ends earlier.
    Shorter,
    /// Everywhere, and it ends earlier.
    Third,
    /// As `First`, and it ends some blocks earlier.
    Prefix,
}

const VARIANTS: [Variant; 8] = [
    Variant::First,
    Variant::Other,
    Variant::Block,
    Variant::End,
    Variant::Torn,
    Variant::Shorter,
    Variant::Third,
    Variant::Prefix,
];

/// One version of a file.
pub(super) struct Body {
    length: u64,
    pub(super) variant: Variant,
    /// Bytes of the first version.
    of_first: u64,
    digest: OnceLock<Digest>,
}

impl Body {
    fn new(of_first: u64, variant: Variant) -> Body {
        let length = match variant {
            Variant::Shorter => of_first - of_first.min(5_000) / 2,
            Variant::Third => of_first.saturating_sub(3 * BLOCK + 1).max(of_first / 2),
            Variant::Prefix => of_first.saturating_sub(2 * BLOCK).max(of_first / 2 / BLOCK * BLOCK),
            _ => of_first,
        };
        Body { length, variant, of_first, digest: OnceLock::new() }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn digest(&self) -> Digest {
        *self.digest.get_or_init(|| digest(Algorithm::Sha256, &self.read(0..self.length)))
    }

    fn middle(&self) -> u64 {
        (self.of_first / 2).next_multiple_of(BLOCK).min(self.length)
    }

    /// The pages by which each version is told from the others.
    pub(super) fn telling(&self) -> [u64; 3] {
        [0, (self.length / 2).saturating_sub(1), self.length.saturating_sub(1)].map(|byte| byte / 4096 * 4096)
    }

    /// The bytes of `range` but for the one that is flipped: two pieces, and that byte where it lies in the range.
    fn pieces(&self, range: &Range<u64>) -> ([&'static [u8]; 2], Option<usize>) {
        let of = |from: &'static [u8], range: Range<u64>| &from[range.start as usize..range.end as usize];
        let flipped = match self.variant {
            Variant::Block => (self.length / 2).checked_sub(1),
            Variant::End => self.length.checked_sub(1),
            _ => None,
        };
        let pieces = match self.variant {
            Variant::Other => [of(&OTHER, range.clone()), &[]],
            Variant::Third => [of(&OTHER, range.start + SHIFT..range.end + SHIFT), &[]],
            Variant::Torn => {
                let middle = self.middle().clamp(range.start, range.end);
                [of(&FIRST, range.start..middle), of(&OTHER, middle..range.end)]
            }
            _ => [of(&FIRST, range.clone()), &[]],
        };
        let flipped = flipped.filter(|flipped| range.contains(flipped));
        (pieces, flipped.map(|flipped| (flipped - range.start) as usize))
    }

    /// The bytes of `range`.
    pub(super) fn read(&self, range: Range<u64>) -> Bytes {
        let (pieces, flipped) = self.pieces(&range);
        if let (None, [piece, []] | [[], piece]) = (flipped, pieces) {
            return Bytes::from_static(piece);
        }
        let mut bytes = pieces.concat();
        flipped.into_iter().for_each(|flipped| bytes[flipped] ^= 1);
        bytes.into()
    }

    /// Returns whether these are its bytes from `at` on.
    pub(super) fn has(&self, at: u64, piece: &[u8]) -> bool {
        let range = at..at + piece.len() as u64;
        if range.end > self.length {
            return false;
        }
        let ([one, two], flipped) = self.pieces(&range);
        match flipped {
            Some(_) => self.read(range) == piece,
            None => piece[..one.len()] == *one && piece[one.len()..] == *two,
        }
    }
}

type Bodies = HashMap<(u64, Variant), Arc<Body>>;

/// Made once: to hash those of large files is most of the work.
static BODIES: LazyLock<Mutex<Bodies>> = LazyLock::new(Mutex::default);

fn body(length: u64, variant: Variant) -> Arc<Body> {
    let mut bodies = BODIES.lock().unwrap();
    Arc::clone(bodies.entry((length, variant)).or_insert_with(|| Arc::new(Body::new(length, variant))))
}

/// The length of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Any,
    /// Not resumed by a later download.
    Small,
    /// Resumed, and handed out whole.
    Medium,
    /// Streamed.
    Large,
}

impl Length {
    fn bytes(self, random: &mut Random) -> u64 {
        let whole = WHOLE_LIMIT;
        match self {
            Length::Any => match random.below(16) {
                0 => 0,
                1 => 1 + random.below(3) * 5,
                2..=6 => Length::Small.bytes(random),
                7..=8 => Length::Medium.bytes(random),
                9 => LONGEST,
                _ => Length::Large.bytes(random),
            },
            Length::Small => random.one_of(&[BLOCK, 3 * BLOCK, 4096 * 5 + 77, 4096 * 50 + 77, 4096 * 90 + 77]),
            Length::Medium => 1_500_000,
            Length::Large => {
                random.one_of(&[whole + 1, whole + 2 * BLOCK, whole + 3 * BLOCK + 12_345, whole + 3 * BLOCK + 12_345])
            }
        }
    }
}

/// The versions of one file; the first is the first. No two are equal.
pub(super) fn bodies(length: Length, random: &mut Random) -> Vec<Arc<Body>> {
    let length = length.bytes(random);
    let mut bodies = vec![body(length, Variant::First)];
    for variant in VARIANTS.into_iter().skip(1) {
        let body = body(length, variant);
        // Large ones differ as they are made.
        if length > 1 << 20 || bodies.iter().all(|known| known.digest() != body.digest()) {
            bodies.push(body);
        }
    }
    bodies
}
