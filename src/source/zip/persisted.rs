//! The directory of a version on this machine's disk, for the next process.

use super::PackageError;
use super::bytes::Place;
use super::directory::{Directory, Parsed, Record};
use super::folder::{self, Description, failed, file};
use crate::document::Uri;
use std::fs;
use std::path::Path;

/// What a file with a directory begins with.
const MAGIC: &[u8; 8] = b"resyncd2";

/// Eight bytes each: header, packed, length; CRC and place of the name; its length, method and flags.
const WORDS: usize = 5;

/// Writes a directory down.
pub(super) fn write(folder: &Path, directory: &Directory) -> Result<(), PackageError> {
    let Parsed { start, names, records } = directory.parts();
    let description = Description { package: directory.package().to_string(), version: directory.version.clone() };
    let description = serde_json::to_vec(&description).map_err(|error| failed(folder)(error.into()))?;
    let mut bytes = Vec::with_capacity(64 + description.len() + records.len() * WORDS * 8 + names.len());
    bytes.extend(MAGIC);
    for number in [description.len() as u64, records.len() as u64, *start] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(&description);
    for record in records {
        let place = u64::from(record.crc) | u64::from(record.name) << 32;
        let kind = u64::from(record.name_length) | u64::from(record.method) << 16 | u64::from(record.flags) << 32;
        let words: [u64; WORDS] = [record.header, record.packed, record.length, place, kind];
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    }
    bytes.extend(names);
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    folder::replace(folder, &file(folder, directory.package(), "directory"), &bytes)
}

/// The directory that was written down; `None` where there is none or it is damaged.
pub(super) fn read(folder: &Path, package: &Uri, limit: u64) -> Option<Directory> {
    let path = file(folder, package, "directory");
    // Names and records are smaller than what they were read from.
    if fs::metadata(&path).ok()?.len() > limit.saturating_add(1 << 20) {
        return None;
    }
    let bytes = fs::read(&path).ok()?;
    let (bytes, crc) = bytes.split_last_chunk::<4>()?;
    if crc32c::crc32c(bytes) != u32::from_le_bytes(*crc) {
        return None;
    }
    let (head, bytes) = bytes.strip_prefix(MAGIC)?.split_at_checked(3 * 8)?;
    let [description, count, start] = numbers(head)?;
    let (description, bytes) = bytes.split_at_checked(usize::try_from(description).ok()?)?;
    let (records, names) = bytes.split_at_checked(usize::try_from(count).ok()?.checked_mul(WORDS * 8)?)?;
    let description: Description = serde_json::from_slice(description).ok()?;
    if description.package != package.as_str() {
        return None;
    }
    let records = records.chunks_exact(WORDS * 8).map(record).collect::<Option<Vec<Record>>>()?;
    let parsed = Parsed { start, names: names.into(), records };
    Directory::new(package.clone(), description.version, Place::Server, parsed).ok()
}

fn record(bytes: &[u8]) -> Option<Record> {
    let [header, packed, length, place, kind] = numbers::<WORDS>(bytes)?;
    let (crc, name) = (place as u32, (place >> 32) as u32);
    let (name_length, method, flags) = (kind as u16, (kind >> 16) as u16, (kind >> 32) as u16);
    Some(Record { header, packed, length, crc, name, name_length, method, flags })
}

fn numbers<const COUNT: usize>(bytes: &[u8]) -> Option<[u64; COUNT]> {
    bytes.as_chunks::<8>().0.first_chunk::<COUNT>().map(|words| words.map(u64::from_le_bytes))
}
