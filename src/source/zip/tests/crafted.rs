//! ZIPs written byte by byte, so that any field can lie.

use flate2::{Compression, Crc, write::DeflateEncoder};
use std::io::Write as _;

/// One member, as its two headers describe it.
#[derive(Clone, Debug)]
pub struct Raw {
    pub name: Vec<u8>,
    /// The name in the local header.
    pub local_name: Vec<u8>,
    /// Bytes as they lie in the package.
    pub packed: Vec<u8>,
    pub method: u16,
    pub flags: u16,
    pub crc: u32,
    pub length: u32,
    /// CRC and sizes in the local header.
    pub local: (u32, u32, u32),
    pub local_extra: Vec<u8>,
    /// Where the directory says that it lies, instead of where it does.
    pub header: Option<u32>,
    /// What follows its bytes.
    pub after: Vec<u8>,
}

/// A stored member with right headers.
pub fn stored(name: &str, bytes: &[u8]) -> Raw {
    let (crc, length) = (crc(bytes), bytes.len() as u32);
    Raw {
        name: name.into(),
        local_name: name.into(),
        packed: bytes.into(),
        method: 0,
        flags: 0,
        crc,
        length,
        local: (crc, length, length),
        local_extra: Vec::new(),
        header: None,
        after: Vec::new(),
    }
}

/// A deflated member with right headers.
pub fn deflated(name: &str, bytes: &[u8]) -> Raw {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    let packed = encoder.finish().unwrap();
    let local = (crc(bytes), packed.len() as u32, bytes.len() as u32);
    Raw { packed, method: 8, local, ..stored(name, bytes) }
}

pub fn crc(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Where the parts of a package begin, and the package.
pub struct Crafted {
    pub bytes: Vec<u8>,
    /// Offset of the directory.
    pub directory: usize,
    /// Offset of the record at its end.
    pub end: usize,
}

/// The package of these members.
pub fn craft(members: &[Raw]) -> Crafted {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for member in members {
        let header = member.header.unwrap_or(bytes.len() as u32);
        bytes.extend(b"PK\x03\x04");
        numbers(&mut bytes, &[20, member.flags, member.method, 0, 0x21]);
        let (crc, packed, length) = member.local;
        [crc, packed, length].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        numbers(&mut bytes, &[member.local_name.len() as u16, member.local_extra.len() as u16]);
        bytes.extend(&member.local_name);
        bytes.extend(&member.local_extra);
        bytes.extend(&member.packed);
        bytes.extend(&member.after);

        directory.extend(b"PK\x01\x02");
        numbers(&mut directory, &[20, 20, member.flags, member.method, 0, 0x21]);
        let sizes = [member.crc, member.packed.len() as u32, member.length];
        sizes.iter().for_each(|number| directory.extend(number.to_le_bytes()));
        numbers(&mut directory, &[member.name.len() as u16, 0, 0, 0, 0, 0, 0]);
        directory.extend(header.to_le_bytes());
        directory.extend(&member.name);
    }
    let start = bytes.len();
    bytes.extend(&directory);
    let end = bytes.len();
    bytes.extend(b"PK\x05\x06");
    numbers(&mut bytes, &[0, 0, members.len() as u16, members.len() as u16]);
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend((start as u32).to_le_bytes());
    numbers(&mut bytes, &[0]);
    Crafted { bytes, directory: start, end }
}

/// The same package with a Zip64 end that claims `entries` in a directory of `size` bytes.
pub fn with_zip64_end(crafted: &Crafted, entries: u64, size: u64) -> Vec<u8> {
    let mut bytes = crafted.bytes[..crafted.end].to_vec();
    let record = bytes.len() as u64;
    bytes.extend(b"PK\x06\x06");
    bytes.extend(44_u64.to_le_bytes());
    numbers(&mut bytes, &[45, 45, 0, 0, 0, 0]);
    for number in [entries, entries, size, crafted.directory as u64] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(b"PK\x06\x07");
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(record.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(b"PK\x05\x06");
    numbers(&mut bytes, &[0, 0, u16::MAX, u16::MAX]);
    bytes.extend(u32::MAX.to_le_bytes());
    bytes.extend(u32::MAX.to_le_bytes());
    numbers(&mut bytes, &[0]);
    bytes
}

fn numbers(bytes: &mut Vec<u8>, numbers: &[u16]) {
    numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
}
