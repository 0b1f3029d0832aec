//! The local header of a member, checked against what the directory says of it.

use super::directory::{ENCRYPTED, MemberRecord};

/// Signature of a local header (APPNOTE 4.3.7).
const SIGNATURE: [u8; 4] = *b"PK\x03\x04";

/// The bit that says that sizes and CRC follow the bytes (APPNOTE 4.4.4).
const DESCRIBED_AFTER: u16 = 1 << 3;

/// Extra fields with 64-bit sizes, and with the name in UTF-8 (APPNOTE 4.5.3 and 4.6.9).
const ZIP64: u16 = 0x0001;
const UNICODE_NAME: u16 = 0x7075;

/// The fixed part of a local header.
#[derive(Debug)]
pub(super) struct LocalHeader {
    flags: u16,
    method: u16,
    crc: u32,
    packed: u32,
    length: u32,
    pub name_length: u16,
    pub extra_length: u16,
}

impl LocalHeader {
    pub fn read(bytes: &[u8]) -> Option<LocalHeader> {
        if !bytes.starts_with(&SIGNATURE) {
            return None;
        }
        Some(LocalHeader {
            flags: u16_at(bytes, 6)?,
            method: u16_at(bytes, 8)?,
            crc: u32_at(bytes, 14)?,
            packed: u32_at(bytes, 18)?,
            length: u32_at(bytes, 22)?,
            name_length: u16_at(bytes, 26)?,
            extra_length: u16_at(bytes, 28)?,
        })
    }

    /// Returns whether this is the member that the directory describes, under the name `listed` there.
    pub fn agrees(&self, record: &MemberRecord, listed: &[u8], name: &[u8], extra: &[u8]) -> bool {
        // The directory's name may be the one that such a field gives in UTF-8: version, CRC-32 of the other, the name.
        let unicode = field(extra, UNICODE_NAME).and_then(|field| field.get(5..));
        let is_named = name == listed || unicode == Some(listed);
        let is_alike = self.method == record.method && (self.flags ^ record.flags) & ENCRYPTED == 0;

        let wide = field(extra, ZIP64);
        let mut wide_sizes = wide
            .unwrap_or_default()
            .chunks_exact(8)
            .map(|size| u64::from_le_bytes(size.try_into().unwrap_or_default()));
        let mut size = |narrow: u32| match narrow {
            u32::MAX if wide.is_some() => wide_sizes.next(),
            narrow => Some(narrow.into()),
        };
        // In this order they lie in the field.
        let (length, packed) = (size(self.length), size(self.packed));
        let may_follow = self.flags & DESCRIBED_AFTER != 0;
        let is_right = |here: Option<u64>, listed: u64| here == Some(listed) || (may_follow && here == Some(0));
        is_named
            && is_alike
            && is_right(length, record.length)
            && is_right(packed, record.packed)
            && is_right(Some(self.crc.into()), record.crc.into())
    }
}

/// An extra field: its bytes behind kind and length.
fn field(mut extra: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let (here, length) = (u16_at(extra, 0)?, usize::from(u16_at(extra, 2)?));
        let content = extra.get(4..4 + length)?;
        if here == kind {
            return Some(content);
        }
        extra = extra.get(4 + length..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}
