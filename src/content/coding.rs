//! Content codings decoded: `gzip` and `deflate`, under a limit. Resources in others are shown coded.

use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use std::io::{self, BufRead, BufReader, Read};

/// A decoded object may have this many times the bytes of the coded one …
const EXPANSION_RATIO: u64 = 256;

/// … or this many, whichever is more.
const EXPANSION_FLOOR: u64 = 64 << 20;

/// A coding that can be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// RFC 1952, also called `x-gzip`.
    Gzip,
    /// RFC 1950; some servers send bare RFC 1951 under the same name.
    Deflate,
}

impl Coding {
    /// The coding of that name, if it can be decoded.
    pub(super) fn named(name: &str) -> Option<Coding> {
        let is = |coding: &str| name.trim().eq_ignore_ascii_case(coding);
        if is("gzip") || is("x-gzip") {
            Some(Coding::Gzip)
        } else if is("deflate") {
            Some(Coding::Deflate)
        } else {
            None
        }
    }

    /// Reads `coded`, of `length` bytes, and passes the decoded bytes to `sink`, a piece at a time.
    /// Data that is cut, damaged or grows past the limit is [`io::ErrorKind::InvalidData`] or `UnexpectedEof`.
    pub(super) fn decode<'a, E: From<io::Error>>(
        self,
        coded: impl Read + 'a,
        length: u64,
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut coded = BufReader::new(coded);
        let mut decoder: Box<dyn Read + 'a> = match self {
            Coding::Gzip => Box::new(MultiGzDecoder::new(coded)),
            Coding::Deflate if has_zlib_header(coded.fill_buf()?) => Box::new(ZlibDecoder::new(coded)),
            Coding::Deflate => Box::new(DeflateDecoder::new(coded)),
        };
        let limit = length.saturating_mul(EXPANSION_RATIO).max(EXPANSION_FLOOR);
        let mut piece = vec![0; 128 << 10];
        let mut decoded = 0;
        loop {
            let read = match decoder.read(&mut piece) {
                Ok(0) => return Ok(decoded),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            decoded += read as u64;
            if decoded > limit {
                let what = format!("{length} coded bytes decode to more than {limit}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what).into());
            }
            sink(&piece[..read])?;
        }
    }
}

/// RFC 1950, 2.2: method 8, and the first two bytes a multiple of 31.
fn has_zlib_header(start: &[u8]) -> bool {
    matches!(start, [first, second, ..] if first & 0x0f == 8 && (u16::from(*first) << 8 | u16::from(*second)) % 31 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use std::io::Write;

    fn decoded(coding: Coding, coded: &[u8]) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        coding.decode(coded, coded.len() as u64, |piece| -> io::Result<()> {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn gzip_members_and_both_kinds_of_deflate_are_decoded() {
        let two = [gzip(b"ab"), gzip(b"c")].concat();
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(b"abc").unwrap();
        let mut bare = DeflateEncoder::new(Vec::new(), Compression::fast());
        bare.write_all(b"abc").unwrap();

        assert_eq!(decoded(Coding::Gzip, &two).unwrap(), b"abc");
        assert_eq!(decoded(Coding::Deflate, &zlib.finish().unwrap()).unwrap(), b"abc");
        assert_eq!(decoded(Coding::Deflate, &bare.finish().unwrap()).unwrap(), b"abc");
    }

    #[test]
    fn cut_and_foreign_data_are_errors() {
        let whole = gzip(b"some text that is coded");
        for cut in 0..whole.len() {
            assert!(cut == 0 || decoded(Coding::Gzip, &whole[..cut]).is_err(), "cut at {cut}");
        }
        assert!(decoded(Coding::Gzip, b"plain text").is_err());
    }

    #[test]
    fn expansion_is_limited() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&vec![0; EXPANSION_FLOOR as usize + 1]).unwrap();
        let outcome = decoded(Coding::Gzip, &encoder.finish().unwrap());
        assert_eq!(outcome.err().map(|error| error.kind()), Some(io::ErrorKind::InvalidData));
    }

    #[test]
    fn codings_are_known_by_name() {
        assert_eq!(Coding::named(" X-GZip"), Some(Coding::Gzip));
        assert_eq!(Coding::named("deflate"), Some(Coding::Deflate));
        assert_eq!(Coding::named("br"), None);
    }
}
