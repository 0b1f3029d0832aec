//! ZIPs written octet by octet, so that any field can lie.

use flate2::{Compression, Crc, write::DeflateEncoder};
use std::io::Write as _;

/// One member, as its two headers tell of it.
#[derive(Clone, Debug)]
pub struct Raw {
    pub name: Vec<u8>,
    /// The name in the local header.
    pub local_name: Vec<u8>,
    /// Octets as they lie in the package.
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
    /// What follows its octets.
    pub after: Vec<u8>,
}

/// A stored member that tells the truth.
pub fn stored(name: &str, octets: &[u8]) -> Raw {
    let (crc, length) = (crc(octets), octets.len() as u32);
    Raw {
        name: name.into(),
        local_name: name.into(),
        packed: octets.into(),
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

/// A deflated member that tells the truth.
pub fn deflated(name: &str, octets: &[u8]) -> Raw {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(octets).unwrap();
    let packed = encoder.finish().unwrap();
    let local = (crc(octets), packed.len() as u32, octets.len() as u32);
    Raw { packed, method: 8, local, ..stored(name, octets) }
}

pub fn crc(octets: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(octets);
    crc.sum()
}

/// Where the parts of a package begin, and the package.
pub struct Crafted {
    pub octets: Vec<u8>,
    /// Offset of the directory.
    pub directory: usize,
    /// Offset of the record at its end.
    pub end: usize,
}

/// The package of these members.
pub fn craft(members: &[Raw]) -> Crafted {
    let (mut octets, mut directory) = (Vec::new(), Vec::new());
    for member in members {
        let header = member.header.unwrap_or(octets.len() as u32);
        octets.extend(b"PK\x03\x04");
        numbers(&mut octets, &[20, member.flags, member.method, 0, 0x21]);
        let (crc, packed, length) = member.local;
        [crc, packed, length].iter().for_each(|number| octets.extend(number.to_le_bytes()));
        numbers(&mut octets, &[member.local_name.len() as u16, member.local_extra.len() as u16]);
        octets.extend(&member.local_name);
        octets.extend(&member.local_extra);
        octets.extend(&member.packed);
        octets.extend(&member.after);

        directory.extend(b"PK\x01\x02");
        numbers(&mut directory, &[20, 20, member.flags, member.method, 0, 0x21]);
        let sizes = [member.crc, member.packed.len() as u32, member.length];
        sizes.iter().for_each(|number| directory.extend(number.to_le_bytes()));
        numbers(&mut directory, &[member.name.len() as u16, 0, 0, 0, 0, 0, 0]);
        directory.extend(header.to_le_bytes());
        directory.extend(&member.name);
    }
    let start = octets.len();
    octets.extend(&directory);
    let end = octets.len();
    octets.extend(b"PK\x05\x06");
    numbers(&mut octets, &[0, 0, members.len() as u16, members.len() as u16]);
    octets.extend((directory.len() as u32).to_le_bytes());
    octets.extend((start as u32).to_le_bytes());
    numbers(&mut octets, &[0]);
    Crafted { octets, directory: start, end }
}

/// The same package with a Zip64 end that claims `entries` in a directory of `size` octets.
pub fn with_zip64_end(crafted: &Crafted, entries: u64, size: u64) -> Vec<u8> {
    let mut octets = crafted.octets[..crafted.end].to_vec();
    let record = octets.len() as u64;
    octets.extend(b"PK\x06\x06");
    octets.extend(44_u64.to_le_bytes());
    numbers(&mut octets, &[45, 45, 0, 0, 0, 0]);
    for number in [entries, entries, size, crafted.directory as u64] {
        octets.extend(number.to_le_bytes());
    }
    octets.extend(b"PK\x06\x07");
    octets.extend(0_u32.to_le_bytes());
    octets.extend(record.to_le_bytes());
    octets.extend(1_u32.to_le_bytes());
    octets.extend(b"PK\x05\x06");
    numbers(&mut octets, &[0, 0, u16::MAX, u16::MAX]);
    octets.extend(u32::MAX.to_le_bytes());
    octets.extend(u32::MAX.to_le_bytes());
    numbers(&mut octets, &[0]);
    octets
}

fn numbers(octets: &mut Vec<u8>, numbers: &[u16]) {
    numbers.iter().for_each(|number| octets.extend(number.to_le_bytes()));
}
