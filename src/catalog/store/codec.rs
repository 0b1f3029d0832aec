//! The encoding of numbers, strings and times, and the checksum at the end of every record.
//!
//! Integers are LEB128 varints, signed ones zigzagged, as postcard has them; inodes and entry ids within keys and values are 40 bits,
//! big-endian.

use super::super::CatalogError;
use crate::document::Timestamp;
use serde::{Deserialize, Serialize};

/// Inodes and entry ids are below this: 40 bits in every key.
pub const NUMBER_LIMIT: u64 = 1 << 40;

/// 2015-01-01T00:00:00Z: times near it are short.
const EPOCH: i64 = 1_420_070_400;

/// Bytes of the checksum at the end of each record.
const CHECKSUM: usize = 4;

/// Appends the checksum of `key` and `record` to `record`.
pub fn seal(key: &[u8], record: &mut Vec<u8>) {
    let sum = crc32c::crc32c_append(crc32c::crc32c(key), record);
    record.extend_from_slice(&sum.to_le_bytes());
}

/// The record that [`seal`] made, without its checksum; [`CatalogError::Damaged`] where it does not match.
pub fn unseal<'a>(key: &[u8], sealed: &'a [u8]) -> Result<&'a [u8], CatalogError> {
    match sealed.split_last_chunk::<CHECKSUM>() {
        Some((record, sum)) if crc32c::crc32c_append(crc32c::crc32c(key), record).to_le_bytes() == *sum => Ok(record),
        _ => Err(damaged("checksum", key)),
    }
}

/// The error for a corrupt record.
pub fn damaged(what: &str, key: &[u8]) -> CatalogError {
    CatalogError::Damaged(format!("{what} of record {}", key.escape_ascii()))
}

/// Bytes being decoded; `None` from any method means that they end too early or are corrupt.
#[derive(Clone, Copy)]
pub struct Decoder<'a>(pub &'a [u8]);

impl<'a> Decoder<'a> {
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    /// A number as a varint, a string or bytes with their length before them, or a tuple of such.
    pub fn value<T: Deserialize<'a>>(&mut self) -> Option<T> {
        let (value, rest) = postcard::take_from_bytes(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    /// The number that [`push_number`] wrote.
    pub fn number(&mut self) -> Option<u64> {
        let bytes: [u8; 5] = self.take(5)?.try_into().ok()?;
        Some(bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    pub fn time(&mut self) -> Option<Timestamp> {
        let (seconds, fraction) = self.value::<(i64, u64)>()?;
        let seconds = seconds.checked_add(EPOCH)?;
        let nanos = if fraction & 1 == 1 { fraction >> 1 } else { (fraction >> 1).checked_mul(1_000_000)? };
        (nanos < 1_000_000_000).then_some(Timestamp { seconds, nanos: nanos as u32 })
    }
}

/// The bit of a flag, where it is set.
pub fn when(condition: bool, bit: u8) -> u8 {
    if condition { bit } else { 0 }
}

/// A value of few rows.
pub fn pack<T: Serialize>(value: &T) -> Vec<u8> {
    // A value in memory is never refused.
    postcard::to_allocvec(value).unwrap_or_default()
}

/// The value that [`pack`] wrote; `None` where it is corrupt.
pub fn unpack<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}

/// The number that is all of `bytes`.
pub fn number(bytes: &[u8]) -> Option<u64> {
    Decoder(bytes).number()
}

/// Appends an integer as a varint, or a pair of such.
pub fn push_varint<T: Serialize>(out: &mut Vec<u8>, value: T) {
    // The longest pair.
    let mut bytes = [0; 20];
    out.extend_from_slice(postcard::to_slice(&value, &mut bytes).unwrap_or_default());
}

/// An inode or entry id as 5 bytes, big-endian, so that keys sort by number.
pub fn push_number(out: &mut Vec<u8>, number: u64) {
    debug_assert!(number < NUMBER_LIMIT);
    out.extend_from_slice(&number.to_be_bytes()[3..]);
}

pub fn push_string(out: &mut Vec<u8>, string: &str) {
    push_varint(out, string.len() as u64);
    out.extend_from_slice(string.as_bytes());
}

/// Whole milliseconds take at most two bytes besides the seconds, finer fractions five.
pub fn push_time(out: &mut Vec<u8>, time: Timestamp) {
    let fraction = match time.nanos {
        nanos if nanos % 1_000_000 == 0 => u64::from(nanos / 1_000_000) << 1,
        nanos => u64::from(nanos) << 1 | 1,
    };
    push_varint(out, (time.seconds.saturating_sub(EPOCH), fraction));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_come_back() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            push_varint(&mut bytes, value);
            assert_eq!(Decoder(&bytes).value(), Some(value));
        }
        for seconds in [i64::MAX, i64::MIN + EPOCH, -1, 0, 1, EPOCH] {
            for nanos in [0, 1, 999_000_000, 999_999_999] {
                let (time, mut bytes) = (Timestamp { seconds, nanos }, Vec::new());
                push_time(&mut bytes, time);
                assert_eq!(Decoder(&bytes).time(), Some(time));
            }
        }
        let mut bytes = Vec::new();
        push_number(&mut bytes, NUMBER_LIMIT - 1);
        assert_eq!(Decoder(&bytes).number(), Some(NUMBER_LIMIT - 1));
        assert_eq!(Decoder(&bytes[1..]).number(), None);
    }

    #[test]
    fn a_varint_without_end_is_refused() {
        assert_eq!(Decoder(&[0x80; 20]).value::<u64>(), None);
        assert_eq!(Decoder(&[0x80, 0x80]).value::<u64>(), None);
    }

    #[test]
    fn a_record_under_another_key_is_damage() {
        let mut record = b"record".to_vec();
        seal(b"key", &mut record);

        assert_eq!(unseal(b"key", &record).unwrap(), b"record");
        assert!(unseal(b"kez", &record).is_err());
        assert!(unseal(b"key", &record[..3]).is_err());
    }
}
