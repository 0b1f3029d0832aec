//! Published digests: the `hash` attribute of `rs:md` and `rs:ln` (section 7; Atom Link Extensions).

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Serialize};

/// Bytes before the colon of a digest that has its algorithm's name.
const LONGEST_NAME: usize = 16;

/// Base64 whose last digit may hold bits that mean nothing.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone),
);

/// A digest algorithm, weakest first, so that the strongest compares greatest. The numbers are kept on disk and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Algorithm {
    Md5 = 0,
    Sha1 = 1,
    Sha224 = 2,
    Sha256 = 3,
    Sha384 = 4,
    Sha512 = 5,
}

/// A digest and its algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "(Algorithm, Vec<u8>)", try_from = "(Algorithm, Vec<u8>)")]
pub struct Digest {
    algorithm: Algorithm,
    bytes: [u8; Algorithm::LONGEST],
}

impl From<Digest> for (Algorithm, Vec<u8>) {
    fn from(digest: Digest) -> Self {
        (digest.algorithm, digest.bytes().to_vec())
    }
}

impl TryFrom<(Algorithm, Vec<u8>)> for Digest {
    type Error = &'static str;

    fn try_from((algorithm, bytes): (Algorithm, Vec<u8>)) -> Result<Digest, Self::Error> {
        Digest::new(algorithm, &bytes).ok_or("a digest of another length")
    }
}

impl Algorithm {
    const ALL: [Algorithm; 6] =
        [Algorithm::Md5, Algorithm::Sha1, Algorithm::Sha224, Algorithm::Sha256, Algorithm::Sha384, Algorithm::Sha512];

    /// The algorithm of the number that stands for it in what is kept on disk.
    pub fn numbered(number: u8) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| *algorithm as u8 == number)
    }

    /// Bytes of the longest digest.
    const LONGEST: usize = 64;

    /// The algorithm of a name, in any letter case, with or without hyphen.
    fn named(name: &[u8]) -> Option<Algorithm> {
        fn plain(name: &[u8]) -> impl Iterator<Item = u8> + '_ {
            name.iter().filter(|byte| !matches!(byte, b'-' | b'_')).map(u8::to_ascii_lowercase)
        }
        match name {
            b"md5" => Some(Algorithm::Md5),
            b"sha-1" => Some(Algorithm::Sha1),
            b"sha-256" => Some(Algorithm::Sha256),
            _ => Algorithm::ALL.into_iter().find(|algorithm| plain(algorithm.name().as_bytes()).eq(plain(name))),
        }
    }

    /// The name the standard uses: `md5`, `sha-1`, `sha-256`, …
    pub fn name(self) -> &'static str {
        self.facts().0
    }

    /// Length of the digest in bytes.
    pub fn digest_length(self) -> usize {
        self.facts().1.len() / 2
    }

    /// The name, and the digest of no bytes.
    fn facts(self) -> (&'static str, &'static str) {
        match self {
            Algorithm::Md5 => ("md5", "d41d8cd98f00b204e9800998ecf8427e"),
            Algorithm::Sha1 => ("sha-1", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
            Algorithm::Sha224 => ("sha-224", "d14a028c2a3a2bc9476102bb288234c415a2b01f828ea62ac5b3e42f"),
            Algorithm::Sha256 => ("sha-256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            Algorithm::Sha384 => (
                "sha-384",
                "38b060a751ac96384cd9327eb1b1e36a21fdb71114be07434c0cc7bf63f6e1da274edebfe76f65fbd51ad2f14898b95b",
            ),
            Algorithm::Sha512 => (
                "sha-512",
                "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce\
                 47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e",
            ),
        }
    }
}

impl Digest {
    /// A digest from its bytes; `None` where their number is not the algorithm's.
    pub fn new(algorithm: Algorithm, digest: &[u8]) -> Option<Digest> {
        if digest.len() != algorithm.digest_length() {
            return None;
        }
        let mut bytes = [0; Algorithm::LONGEST];
        bytes[..digest.len()].copy_from_slice(digest);
        Some(Digest { algorithm, bytes })
    }

    /// The algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The digest's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.algorithm.digest_length()]
    }

    /// Answers whether this is the digest of no bytes at all.
    pub fn is_of_nothing(&self) -> bool {
        self.to_string().rsplit(':').next() == Some(self.algorithm.facts().1)
    }
}

/// The published length where it is a size. Publishers write 0 where they do not know it: 0 counts only beside the digest of no
/// bytes, and with no other digest.
pub fn believed_length(length: Option<u64>, digests: &[Digest]) -> Option<u64> {
    let is_of_nothing = || !digests.is_empty() && digests.iter().all(Digest::is_of_nothing);
    length.filter(|length| *length > 0 || is_of_nothing())
}

/// The digests of a `hash` attribute, and how well they are spelt.
#[derive(Debug, Default)]
pub(super) struct PublishedHashes {
    /// Strongest first, one of each algorithm.
    pub digests: Vec<Digest>,
    /// Something could not be understood.
    pub unknown: bool,
    /// Something was understood that is not `NAME:HEX` with a name as the standard spells it.
    pub misspelt: bool,
}

impl PublishedHashes {
    /// Every digest of a `hash` attribute that can be understood, strongest first.
    ///
    /// Digests are separated by blanks. Besides `sha-256:` and lower-case hex, understood are names spelt `sha256` or
    /// `SHA-256`, upper-case hex, base64 and base64url with or without padding, and a digest with no name, whose length
    /// shows the algorithm. Two different digests of one algorithm contradict each other: neither is believed.
    pub fn parse(attribute: &str) -> PublishedHashes {
        let mut published = PublishedHashes::default();
        let mut contradicted = Vec::new();
        let mut rest = attribute.as_bytes();
        while let Some(start) = rest.iter().position(|byte| !separates(*byte)) {
            rest = rest.get(start..).unwrap_or_default();
            let (digest, is_well_spelt) = match split_hex(rest) {
                Some((digest, is_well_spelt, behind)) => {
                    rest = behind;
                    (digest, is_well_spelt)
                }
                None => {
                    let end = rest.iter().position(|byte| separates(*byte)).unwrap_or(rest.len());
                    let token;
                    (token, rest) = rest.split_at(end);
                    let Some(digest) = parse_misspelt(token) else {
                        published.unknown = true;
                        continue;
                    };
                    (digest, false)
                }
            };
            published.misspelt |= !is_well_spelt;
            match published.digests.iter().find(|known| known.algorithm == digest.algorithm) {
                None => published.digests.push(digest),
                Some(known) if *known == digest => {}
                Some(_) => contradicted.push(digest.algorithm),
            }
        }
        published.unknown |= !contradicted.is_empty();
        published.digests.retain(|digest| !contradicted.contains(&digest.algorithm));
        published.digests.sort_unstable_by_key(|digest| std::cmp::Reverse(digest.algorithm));
        published
    }
}

/// Blanks and commas stand between two digests.
fn separates(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == b','
}

/// The digest that `text` begins with, its name and hex, whether the name is spelt as the standard spells it, and what follows.
fn split_hex(text: &[u8]) -> Option<(Digest, bool, &[u8])> {
    let colon = text.iter().take(LONGEST_NAME).position(|byte| *byte == b':')?;
    let (name, value) = (text.get(..colon)?, text.get(colon + 1..)?);
    let algorithm = Algorithm::named(name)?;
    let (digits, behind) = value.split_at_checked(2 * algorithm.digest_length())?;
    let mut digest = Digest { algorithm, bytes: [0; Algorithm::LONGEST] };
    let is_whole = decode_hex(digits, &mut digest.bytes) && behind.first().is_none_or(|byte| separates(*byte));
    is_whole.then_some((digest, name == algorithm.name().as_bytes(), behind))
}

/// A digest without a name, or in base64. The length of what has no name shows the algorithm.
fn parse_misspelt(token: &[u8]) -> Option<Digest> {
    let (algorithm, value) = match token.iter().position(|byte| *byte == b':') {
        Some(colon) => (Some(Algorithm::named(token.get(..colon)?)?), token.get(colon + 1..)?),
        None => (None, token),
    };
    // A value of hex digits alone is hex: base64 of a digest does not look so by chance.
    let is_hex = value.iter().all(u8::is_ascii_hexdigit);
    let bytes = if is_hex { from_hex(value)? } else { decode_base64(value)? };
    let of_length = || Algorithm::ALL.into_iter().find(|algorithm| algorithm.digest_length() == bytes.len());
    Digest::new(algorithm.or_else(of_length)?, &bytes)
}

/// The bytes of hex digits in pairs.
pub(crate) fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = vec![0; digits.len() / 2];
    decode_hex(digits, &mut bytes).then_some(bytes)
}

/// Decodes pairs of hex digits; `false` where one of `digits` is not of hex or is left over.
fn decode_hex(digits: &[u8], bytes: &mut [u8]) -> bool {
    let mut all = 0;
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let (high, low) = (HEX[usize::from(pair[0])], HEX[usize::from(pair[1])]);
        all |= high | low;
        *byte = high << 4 | low;
    }
    all < 16 && digits.len() % 2 == 0
}

/// The values of hex digits; of anything else more than four bits.
static HEX: [u8; 256] = {
    let mut values = [u8::MAX; 256];
    let mut value = 0;
    while value < 16 {
        let digit = b"0123456789abcdef"[value as usize];
        values[digit as usize] = value;
        values[digit.to_ascii_uppercase() as usize] = value;
        value += 1;
    }
    values
};

/// Decodes base64 or base64url (RFC 4648, 4 and 5), with padding or without.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let standard = |digit: &u8| match digit {
        b'-' => b'+',
        b'_' => b'/',
        digit => *digit,
    };
    let digits: Vec<u8> = text.iter().take(text.len() - padding).map(standard).collect();
    BASE64.decode(digits).ok().filter(|_| padding <= 2)
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// `sha-256:9f86d0…`
impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.algorithm.name())?;
        self.bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Digest {
        /// The digests of an attribute, and true if something in it cannot be understood.
        pub(crate) fn parse_list(attribute: &str) -> (Vec<Digest>, bool) {
            let published = PublishedHashes::parse(attribute);
            (published.digests, published.unknown)
        }
    }

    const EMPTY_MD5: &str = "md5:d41d8cd98f00b204e9800998ecf8427e";
    const EMPTY_SHA1: &str = "sha-1:da39a3ee5e6b4b0d3255bfef95601890afd80709";
    const EMPTY_SHA256: &str = "sha-256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[track_caller]
    fn reads_as(attribute: &str, expected: &[&str], unknown: bool) {
        let (digests, something_unknown) = Digest::parse_list(attribute);
        let digests: Vec<String> = digests.iter().map(Digest::to_string).collect();
        assert_eq!(digests, expected, "{attribute:?}");
        assert_eq!(something_unknown, unknown, "{attribute:?}");
    }

    #[test]
    fn each_byte_is_a_hex_digit_or_none() {
        for byte in 0..=u8::MAX {
            let mut decoded = [0];
            let is_hex = decode_hex(&[b'7', byte], &mut decoded);
            let value = char::from(byte).to_digit(16).map(|value| 0x70 | value as u8);
            assert_eq!(is_hex.then_some(decoded[0]), value, "{byte}");
        }
    }

    #[test]
    fn every_algorithm_by_its_name() {
        for algorithm in Algorithm::ALL {
            let attribute = format!("{}:{}", algorithm.name(), "0a".repeat(algorithm.digest_length()));
            reads_as(&attribute, &[&attribute], false);
        }
    }

    #[test]
    fn a_digest_of_wrong_length_is_unknown_and_the_next_is_read() {
        for algorithm in ["md5", "sha-1", "sha-256"] {
            for digits in (0..=130).step_by(2) {
                let attribute = format!("{algorithm}:{} {EMPTY_MD5}", "d4".repeat(digits / 2));
                let expected = Digest::new(Algorithm::named(algorithm.as_bytes()).unwrap(), &vec![0xd4; digits / 2]);
                match expected.map(|digest| digest.to_string()) {
                    Some(_) if algorithm == "md5" => reads_as(&attribute, &[], true),
                    Some(digest) => reads_as(&attribute, &[&digest, EMPTY_MD5], false),
                    None => reads_as(&attribute, &[EMPTY_MD5], true),
                }
            }
        }
    }

    #[test]
    fn names_spelt_without_hyphen_or_in_upper_case() {
        let value = &EMPTY_SHA256["sha-256:".len()..];
        for name in ["sha256", "SHA-256", "Sha256", "sha_256"] {
            reads_as(&format!("{name}:{value}"), &[EMPTY_SHA256], false);
        }
        reads_as(&EMPTY_SHA1.replace("sha-1", "sha1"), &[EMPTY_SHA1], false);
        reads_as(&EMPTY_MD5.replace("md5", "MD5"), &[EMPTY_MD5], false);
    }

    #[test]
    fn upper_case_hex() {
        reads_as("md5:D41D8CD98F00B204E9800998ECF8427E", &[EMPTY_MD5], false);
    }

    #[test]
    fn several_in_any_order_come_strongest_first() {
        reads_as(&format!("{EMPTY_MD5} {EMPTY_SHA256}\n\t{EMPTY_SHA1}"), &[EMPTY_SHA256, EMPTY_SHA1, EMPTY_MD5], false);
        reads_as(&format!("{EMPTY_SHA256}, {EMPTY_MD5}"), &[EMPTY_SHA256, EMPTY_MD5], false);
    }

    #[test]
    fn unknown_algorithms_among_known_ones() {
        reads_as(&format!("crc32:00000000 {EMPTY_MD5} blake3:abcd"), &[EMPTY_MD5], true);
    }

    #[test]
    fn base64_md5() {
        reads_as("md5:Yx8m6CqWBJjKT5VBggoWeQ==", &["md5:631f26e82a960498ca4f9541820a1679"], false);
        reads_as("md5:1B2M2Y8AsgTpgAmY7PhCfg", &[EMPTY_MD5], false);
    }

    #[test]
    fn base64url_without_padding() {
        reads_as("sha-256:47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU", &[EMPTY_SHA256], false);
        reads_as("sha-256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", &[EMPTY_SHA256], false);
    }

    #[test]
    fn a_bare_digest_is_told_by_its_length() {
        for expected in [EMPTY_MD5, EMPTY_SHA1, EMPTY_SHA256] {
            let (_, value) = expected.split_once(':').unwrap();
            reads_as(value, &[expected], false);
        }
        reads_as("1B2M2Y8AsgTpgAmY7PhCfg==", &[EMPTY_MD5], false);
    }

    #[test]
    fn no_known_form_or_length_is_unknown() {
        for attribute in [
            "md5:",
            "md5",
            ":",
            "md5:d41d8cd98f",
            "sha-256:d41d8cd98f00b204e9800998ecf8427e",
            "md5:zz!!",
            "md5:====",
            "md5:Yx8m6CqWBJjKT5VBggoWeQ===",
            "abc",
            "md5:é",
        ] {
            reads_as(attribute, &[], true);
        }
        reads_as(&"a".repeat(100_000), &[], true);
        reads_as("", &[], false);
    }

    #[test]
    fn a_hex_digest_of_another_length_is_not_taken_for_base64() {
        reads_as(&EMPTY_SHA256.replace("sha-256", "sha-384"), &[], true);
    }

    #[test]
    fn numbers_that_are_kept_on_disk_stay_what_they_are() {
        let numbered: Vec<_> = (0..=6).map(|number| Algorithm::numbered(number).map(Algorithm::name)).collect();
        let names = ["md5", "sha-1", "sha-224", "sha-256", "sha-384", "sha-512"];
        assert_eq!(numbered, [&names.map(Some)[..], &[None]].concat());
        assert!(Algorithm::ALL.into_iter().all(|algorithm| Algorithm::numbered(algorithm as u8) == Some(algorithm)));
    }

    #[test]
    fn contradicting_digests_of_one_algorithm_are_not_believed() {
        let other = "md5:00000000000000000000000000000000";
        reads_as(&format!("{EMPTY_MD5} {other} {EMPTY_SHA1}"), &[EMPTY_SHA1], true);
        reads_as(&format!("{EMPTY_MD5} {EMPTY_MD5}"), &[EMPTY_MD5], false);
    }

    proptest! {
        #![proptest_config(crate::document::fixed_cases(500))]

        #[test]
        fn what_is_written_is_read_back(bytes in prop::collection::vec(any::<u8>(), 64), which in 0usize..6) {
            let algorithm = Algorithm::ALL[which];
            let digest = Digest::new(algorithm, &bytes[..algorithm.digest_length()]).unwrap();
            prop_assert_eq!(Digest::parse_list(&digest.to_string()), (vec![digest], false));
        }

        #[test]
        fn any_text_is_read_or_refused(attribute in "[a-fA-F0-9:+/=_ -]{0,200}|.{0,40}") {
            let (digests, _) = Digest::parse_list(&attribute);
            prop_assert!(digests.is_sorted_by(|a, b| a.algorithm() > b.algorithm()));
        }
    }
}
