//! Published digests: the `hash` attribute of `rs:md` and `rs:ln` (section 7; Atom Link Extensions).

use serde::{Deserialize, Serialize};

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

    /// The number that stands for it in what is kept on disk.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The algorithm of a [number](Algorithm::number).
    pub fn numbered(number: u8) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.number() == number)
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
            b"sha-256" => Some(Algorithm::Sha256),
            _ => Algorithm::ALL.into_iter().find(|algorithm| plain(algorithm.name().as_bytes()).eq(plain(name))),
        }
    }

    /// The name the standard uses: `md5`, `sha-1`, `sha-256`, …
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Md5 => "md5",
            Algorithm::Sha1 => "sha-1",
            Algorithm::Sha224 => "sha-224",
            Algorithm::Sha256 => "sha-256",
            Algorithm::Sha384 => "sha-384",
            Algorithm::Sha512 => "sha-512",
        }
    }

    /// Length of the digest in bytes.
    pub fn digest_length(self) -> usize {
        match self {
            Algorithm::Md5 => 16,
            Algorithm::Sha1 => 20,
            Algorithm::Sha224 => 28,
            Algorithm::Sha256 => 32,
            Algorithm::Sha384 => 48,
            Algorithm::Sha512 => 64,
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

    /// Whether it is the digest of no bytes at all.
    pub fn is_of_nothing(&self) -> bool {
        let of_nothing = match self.algorithm {
            Algorithm::Md5 => "d41d8cd98f00b204e9800998ecf8427e",
            Algorithm::Sha1 => "da39a3ee5e6b4b0d3255bfef95601890afd80709",
            Algorithm::Sha224 => "d14a028c2a3a2bc9476102bb288234c415a2b01f828ea62ac5b3e42f",
            Algorithm::Sha256 => "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            Algorithm::Sha384 => {
                "38b060a751ac96384cd9327eb1b1e36a21fdb71114be07434c0cc7bf63f6e1da274edebfe76f65fbd51ad2f14898b95b"
            }
            Algorithm::Sha512 => {
                "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce\
                 47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e"
            }
        };
        self.to_string().rsplit(':').next() == Some(of_nothing)
    }

    /// Every digest of a `hash` attribute that can be understood, strongest first, and whether anything could not be.
    ///
    /// Digests are separated by blanks. Besides `sha-256:` and lower-case hex, understood are names spelt `sha256` or
    /// `SHA-256`, upper-case hex, base64 and base64url with or without padding, and a digest with no name, whose length
    /// shows the algorithm. Two different digests of one algorithm contradict each other: neither is believed.
    pub fn parse_list(attribute: &str) -> (Vec<Digest>, bool) {
        let published = PublishedHashes::parse(attribute);
        (published.digests, published.unknown)
    }
}

/// The published length where it is a size. Publishers write 0 where they do not know it: 0 counts only beside the digest of no
/// bytes, and with no other digest.
pub fn believed_length(length: Option<u64>, digests: &[Digest]) -> Option<u64> {
    let is_of_nothing = || !digests.is_empty() && digests.iter().all(Digest::is_of_nothing);
    length.filter(|length| *length > 0 || is_of_nothing())
}

/// What a `hash` attribute says, and how well it is spelt.
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
    pub fn parse(attribute: &str) -> PublishedHashes {
        let mut published = PublishedHashes::default();
        let mut contradicted = Vec::new();
        let mut rest = attribute.as_bytes();
        while let Some(start) = rest.iter().position(|byte| !separates(*byte)) {
            rest = rest.get(start..).unwrap_or_default();
            let digest = match split_usual(rest) {
                Some((digest, behind)) => {
                    rest = behind;
                    digest
                }
                None => {
                    let end = rest.iter().position(|byte| separates(*byte)).unwrap_or(rest.len());
                    let token;
                    (token, rest) = rest.split_at(end);
                    let Some((digest, well_spelt)) = parse_one(token) else {
                        published.unknown = true;
                        continue;
                    };
                    published.misspelt |= !well_spelt;
                    digest
                }
            };
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

/// Whether it stands between two digests.
fn separates(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == b','
}

/// The digest that `text` begins with, spelt as nearly all are, and what follows: its algorithm gives its length.
fn split_usual(text: &[u8]) -> Option<(Digest, &[u8])> {
    let (algorithm, value) = match text {
        [b'm', b'd', b'5', b':', value @ ..] => (Algorithm::Md5, value),
        [b's', b'h', b'a', b'-', b'1', b':', value @ ..] => (Algorithm::Sha1, value),
        [b's', b'h', b'a', b'-', b'2', b'5', b'6', b':', value @ ..] => (Algorithm::Sha256, value),
        _ => return None,
    };
    let (digits, behind) = value.split_at_checked(2 * algorithm.digest_length())?;
    let mut bytes = [0; Algorithm::LONGEST];
    let is_whole = behind.first().is_none_or(|byte| separates(*byte));
    (is_whole && decode_eights(digits, &mut bytes)).then_some((Digest { algorithm, bytes }, behind))
}

/// One digest and whether it is spelt as the standard spells it.
fn parse_one(token: &[u8]) -> Option<(Digest, bool)> {
    let mut bytes = [0; Algorithm::LONGEST];
    match token.iter().position(|byte| *byte == b':') {
        Some(colon) => {
            let (name, value) = (token.get(..colon)?, token.get(colon + 1..)?);
            let algorithm = Algorithm::named(name)?;
            let (length, hex) = decode(value, &mut bytes)?;
            let digest = Digest::new(algorithm, bytes.get(..length)?)?;
            Some((digest, hex && name == algorithm.name().as_bytes()))
        }
        None => {
            let (length, _) = decode(token, &mut bytes)?;
            let algorithm = Algorithm::ALL.into_iter().find(|algorithm| algorithm.digest_length() == length)?;
            Some((Digest::new(algorithm, bytes.get(..length)?)?, false))
        }
    }
}

/// Decodes hex or base64 into `bytes`: how many there are, and whether it was hex. What is all hex digits is hex: no
/// base64 of a digest is that by chance.
fn decode(text: &[u8], bytes: &mut [u8; Algorithm::LONGEST]) -> Option<(usize, bool)> {
    let pairs = text.chunks_exact(2);
    let odd = pairs.remainder();
    // Beyond four bits where a digit was none of hex.
    let mut all = odd.first().map_or(0, |digit| hex_value(*digit));
    for (byte, pair) in bytes.iter_mut().zip(pairs.clone()) {
        let (high, low) = (hex_value(pair[0]), hex_value(pair[1]));
        all |= high | low;
        *byte = high << 4 | low;
    }
    all |= pairs.clone().skip(bytes.len()).flatten().fold(0, |all, digit| all | hex_value(*digit));
    if all < 16 {
        return (odd.is_empty() && pairs.len() <= bytes.len()).then_some((pairs.len(), true));
    }
    let padding = text.iter().rev().take_while(|b| **b == b'=').count();
    let digits = text.split_at(text.len() - padding).0;
    let length = digits.len() * 6 / 8;
    if padding > 2 || digits.len() % 4 == 1 || length > bytes.len() {
        return None;
    }
    for (bytes, digits) in bytes.chunks_mut(3).zip(digits.chunks(4)) {
        let mut group = 0;
        for position in 0..4 {
            group = group << 6 | digits.get(position).map_or(Some(0), |digit| base64_value(*digit))?;
        }
        for (byte, value) in bytes.iter_mut().zip(&group.to_be_bytes()[1..]) {
            *byte = *value;
        }
    }
    Some((length, false))
}

/// Decodes `digits`, eight at a time; whether that is all of them, and all are hex.
fn decode_eights(digits: &[u8], bytes: &mut [u8; Algorithm::LONGEST]) -> bool {
    let eights = digits.chunks_exact(8);
    let is_whole = eights.remainder().is_empty();
    let pairs = eights.zip(bytes.chunks_exact_mut(4));
    is_whole && pairs.fold(true, |all, (digits, four)| decode_eight(digits, four) & all)
}

/// Decodes eight hex digits at once, where all are; each byte of a number is treated alike.
#[inline]
fn decode_eight(digits: &[u8], bytes: &mut [u8]) -> bool {
    const ALL: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHEST: u64 = ALL << 7;
    let digits = u64::from_le_bytes(digits.try_into().unwrap_or_default());
    let (ascii, small) = (digits & !HIGHEST, (digits & !HIGHEST) | (ALL * 0x20));
    // The highest bit of each byte above `limit`; nothing is carried, for all are below 128.
    let above = |bytes: u64, limit: u8| bytes + ALL * u64::from(127 - limit);
    let is_number = above(ascii, b'0' - 1) & !above(ascii, b'9');
    let is_letter = above(small, b'a' - 1) & !above(small, b'f') & HIGHEST;
    let values = (digits & (ALL * 0x0f)) + (is_letter >> 7) * 9;
    // The first of two digits is the higher half of an byte.
    let pairs = (values << 4 | values >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    bytes.copy_from_slice(&((fours | fours >> 16) as u32).to_le_bytes());
    (is_number | is_letter) & !digits & HIGHEST == HIGHEST
}

/// The value of a hex digit; of anything else 255.
#[inline]
fn hex_value(digit: u8) -> u8 {
    static VALUES: [u8; 256] = {
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
    VALUES[usize::from(digit)]
}

/// The value of a digit of base64 or of base64url (RFC 4648, 4 and 5).
fn base64_value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    };
    Some(u32::from(value))
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
    fn eight_digits_at_once_are_read_as_each_by_itself() {
        for place in 0..8 {
            for byte in 0..=u8::MAX {
                let mut digits = *b"09aFfA72";
                digits[place] = byte;
                let values = digits.map(hex_value);
                let (pairs, _) = values.as_chunks::<2>();
                let mut bytes = [0; 4];
                let all = decode_eight(&digits, &mut bytes);
                assert_eq!(all, values.iter().all(|value| *value < 16), "{digits:?}");
                if all {
                    assert_eq!(bytes.to_vec(), pairs.iter().map(|[high, low]| high << 4 | low).collect::<Vec<_>>());
                }
            }
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
        assert!(Algorithm::ALL.into_iter().all(|algorithm| Algorithm::numbered(algorithm.number()) == Some(algorithm)));
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
