//! The directory of one version of a package: the place of each member and what it must be, in few bytes.

use super::PackageError;
use super::bytes::BytesPlace;
use super::path::plain;
use super::remote::PackageVersion;
use crate::document::Uri;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;
use zip::HasZipMetadata;
use zip::result::ZipError;
use zip::unstable::read::ZipIterable;

/// Fixed bytes of a local header (APPNOTE 4.3.7).
pub(super) const LOCAL_HEADER: u64 = 30;

/// Fixed bytes of an entry of the directory (APPNOTE 4.3.12).
const CENTRAL_HEADER: usize = 46;

/// Allowance for the extra fields of a local header, whose length the directory does not hold: a longer one costs one more request.
const EXTRA: u64 = 256;

/// Deflate makes of one byte at most so many (RFC 1951: 258 of two bits), and a little more in one block.
const DEFLATE_RATIO: u64 = 1032;

/// Compression methods that are read (APPNOTE 4.4.5).
pub(super) const STORED: u16 = 0;
/// See [`STORED`].
pub(super) const DEFLATED: u16 = 8;

/// The encrypted bit of the general purpose flags (APPNOTE 4.4.4).
pub(super) const ENCRYPTED: u16 = 1;

/// The part of a package that is a directory, for a person.
pub(super) const DIRECTORY: &str = "its directory";

/// Record of one member in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemberRecord {
    /// Offset of its local header in the package.
    pub header: u64,
    /// Bytes as they lie in the package.
    pub packed: u64,
    /// Bytes when unpacked.
    pub length: u64,
    /// CRC-32 of the unpacked bytes.
    pub crc: u32,
    /// First byte of its name in [`Parsed::names`].
    pub name: u32,
    pub name_length: u16,
    /// Compression method.
    pub method: u16,
    /// General purpose flags.
    pub flags: u16,
}

/// The members of a package.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    /// Offset of the central directory: every member ends before it.
    pub start: u64,
    /// All names, one behind the other.
    pub names: Vec<u8>,
    pub records: Vec<MemberRecord>,
}

/// The directory of one version of a package. Members are numbered in the order in which they lie.
#[derive(Debug)]
pub struct Directory {
    package: Uri,
    pub(super) version: PackageVersion,
    /// Place of the bytes of this version.
    pub(super) place: BytesPlace,
    /// Its records are in the order of `header`; none overlaps the next.
    parsed: Parsed,
    /// Hashes of the plain names, in order, and the numbers of their records.
    by_name: Box<[(u64, u32)]>,
    /// The folder on the publisher's disk that the manifest's paths begin with, once that was looked for.
    pub(super) folder: tokio::sync::OnceCell<Option<Box<str>>>,
}

/// Result of a search for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoundMember {
    Member(u32),
    Nothing,
    Several,
}

impl Directory {
    /// Reads the directory of a package from `file`, which may be an [`EndRecord`] of it; checks what holds between members and makes
    /// them findable.
    pub(super) fn read(
        package: &Uri,
        version: &PackageVersion,
        place: BytesPlace,
        file: impl Read + Seek,
        limit: u64,
    ) -> Result<Directory, PackageError> {
        let (mut parsed, version) = (parse(package, file, limit)?, version.clone());
        parsed.records.sort_unstable_by_key(|record| record.header);
        let name = |record: &MemberRecord| String::from_utf8_lossy(parsed.name(record)).into_owned();
        for (number, record) in parsed.records.iter().enumerate() {
            let Some(end) = record.least_end().filter(|end| *end <= parsed.start) else {
                let what = format!("the member {:?} is past the directory", name(record));
                return Err(PackageError::damaged(package, what));
            };
            if let Some(next) = parsed.records.get(number + 1).filter(|next| next.header < end) {
                let what = format!("the members {:?} and {:?} overlap", name(record), name(next));
                return Err(PackageError::damaged(package, what));
            }
        }
        let hash = |record: &MemberRecord| xxh3_64(parsed.plain_name(record).as_bytes());
        let mut by_name: Box<[(u64, u32)]> = parsed.records.iter().map(hash).zip(0..).collect();
        by_name.sort_unstable();
        let package = package.clone();
        Ok(Directory { package, version, place, parsed, by_name, folder: Default::default() })
    }

    /// The package.
    pub fn package(&self) -> &Uri {
        &self.package
    }

    /// Bytes of the whole package.
    pub fn length(&self) -> u64 {
        self.version.length
    }

    /// Number of members, folders included.
    pub fn len(&self) -> usize {
        self.parsed.records.len()
    }

    /// Returns whether it has no member.
    pub fn is_empty(&self) -> bool {
        self.parsed.records.is_empty()
    }

    /// Returns whether its members are read at the server.
    pub(super) fn is_read_in_place(&self) -> bool {
        self.version.etag.is_some() && matches!(self.place, BytesPlace::Server)
    }

    /// Bytes that the member has which the `path` of a manifest's entry means.
    pub fn length_of(&self, path: &str) -> Option<u64> {
        match self.find(path) {
            FoundMember::Member(number) => self.record(number).map(|record| record.length),
            FoundMember::Nothing | FoundMember::Several => None,
        }
    }

    /// Bytes of memory it takes.
    pub(super) fn bytes(&self) -> u64 {
        let held = if let BytesPlace::Memory(bytes) = &self.place { bytes.len() } else { 0 };
        let records = self.parsed.records.len() * (size_of::<MemberRecord>() + size_of::<(u64, u32)>());
        (self.parsed.names.len() + records + held + size_of::<Directory>()) as u64
    }

    pub(super) fn record(&self, number: u32) -> Option<&MemberRecord> {
        self.parsed.records.get(number as usize)
    }

    pub(super) fn name(&self, record: &MemberRecord) -> &[u8] {
        self.parsed.name(record)
    }

    /// Bytes of a member in the package, local header included: all of it, but for an unusually long header.
    pub(super) fn extent(&self, number: u32) -> Range<u64> {
        let (record, start) = (self.record(number), self.parsed.start);
        let Some(record) = record else { return 0..0 };
        let next = self.parsed.records.get(number as usize + 1).map_or(start, |next| next.header);
        record.header..record.least_end().unwrap_or(start).saturating_add(EXTRA).min(next)
    }

    /// End of the last member that ends by `most`.
    pub(super) fn last_end(&self, most: u64) -> u64 {
        let behind = self.parsed.records.partition_point(|record| record.header < most) as u32;
        let ends = (behind.saturating_sub(2)..behind).map(|number| self.extent(number).end);
        ends.filter(|end| *end <= most).max().unwrap_or_default()
    }

    /// The member that the `path` of a manifest's entry means: the one of that name, with or without leading slash; else
    /// the one whose name differs in slashes and escapes alone; else, where the manifest's paths are those of the
    /// publisher's own disk, the one behind the folder that they all begin with.
    pub(super) fn find(&self, path: &str) -> FoundMember {
        self.find_behind(path, self.folder.get().and_then(Option::as_deref))
    }

    /// Finds a member by a path that begins with a folder.
    pub(super) fn find_behind(&self, path: &str, folder: Option<&str>) -> FoundMember {
        let plain = plain(path);
        for name in [path.strip_prefix('/').unwrap_or(path), path] {
            match self.one_of(self.alike(&plain).filter(|number| self.name_of(*number) == name.as_bytes())) {
                FoundMember::Nothing => {}
                found => return found,
            }
        }
        match (self.spelt(&plain), folder.and_then(|folder| plain.strip_prefix(folder))) {
            (FoundMember::Nothing, Some(rest)) => self.spelt(rest),
            (found, _) => found,
        }
    }

    /// The member of this plain name.
    pub(super) fn spelt(&self, plain: &str) -> FoundMember {
        self.one_of(self.alike(plain))
    }

    /// The members of this plain name.
    fn alike<'d>(&'d self, plain: &'d str) -> impl Iterator<Item = u32> + 'd {
        let hash = xxh3_64(plain.as_bytes());
        let first = self.by_name.partition_point(|(other, _)| *other < hash);
        let same = self.by_name.iter().skip(first).take_while(move |(other, _)| *other == hash);
        let is_alike = move |record: &MemberRecord| self.parsed.plain_name(record) == plain;
        same.map(|(_, number)| *number).filter(move |number| self.record(*number).is_some_and(is_alike))
    }

    /// Last of several members, where all hold the same.
    fn one_of(&self, numbers: impl Iterator<Item = u32>) -> FoundMember {
        let mut last = None;
        for number in numbers {
            // Without a look at the rest: an archive may have a million of one name.
            if last.is_some_and(|before| !self.is_same(before, number)) {
                return FoundMember::Several;
            }
            last = Some(number);
        }
        last.map_or(FoundMember::Nothing, FoundMember::Member)
    }

    /// Returns whether two members hold the same bytes, by length and CRC-32.
    fn is_same(&self, one: u32, other: u32) -> bool {
        match (self.record(one), self.record(other)) {
            (Some(one), Some(other)) => (one.length, one.crc) == (other.length, other.crc),
            _ => false,
        }
    }

    fn name_of(&self, number: u32) -> &[u8] {
        self.record(number).map_or(&[], |record| self.name(record))
    }
}

impl MemberRecord {
    /// Earliest end of the member: its local header may have extra fields.
    fn least_end(&self) -> Option<u64> {
        self.header.checked_add(LOCAL_HEADER + u64::from(self.name_length))?.checked_add(self.packed)
    }

    /// Why its bytes cannot be unpacked, if they cannot.
    pub fn unreadable(&self) -> Option<String> {
        if self.flags & ENCRYPTED != 0 {
            return Some("is encrypted".into());
        }
        let is_possible = match self.method {
            STORED => self.length == self.packed,
            DEFLATED => self.length <= self.packed.saturating_mul(DEFLATE_RATIO),
            other => return Some(format!("is compressed by method {other}, which is neither stored nor deflated")),
        };
        (!is_possible).then(|| format!("cannot be {} bytes unpacked from {}", self.length, self.packed))
    }
}

impl Parsed {
    fn name(&self, record: &MemberRecord) -> &[u8] {
        let first = record.name as usize;
        self.names.get(first..first + usize::from(record.name_length)).unwrap_or_default()
    }

    fn plain_name(&self, record: &MemberRecord) -> String {
        plain(&decoded(self.name(record)))
    }
}

/// The end of a package as a file of which the rest is missing. A read of other bytes fails, and where it began is known.
#[derive(Debug)]
pub(super) struct EndRecord {
    /// Bytes of the whole.
    pub length: u64,
    /// Offset of the first byte that is here.
    pub first: u64,
    /// The bytes from there to the end.
    pub bytes: Vec<u8>,
    position: u64,
    /// First byte of the last failed read.
    pub missed: Option<u64>,
}

impl EndRecord {
    pub fn new(first: u64, bytes: Vec<u8>) -> EndRecord {
        EndRecord { length: first + bytes.len() as u64, first, bytes, position: 0, missed: None }
    }

    /// Returns whether something here looks like the record that a directory ends with.
    pub fn has_directory(&self) -> bool {
        self.bytes.windows(4).any(|bytes| bytes == b"PK\x05\x06")
    }
}

impl Read for EndRecord {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position < self.first && !buffer.is_empty() {
            self.missed = Some(self.position);
            return Err(io::Error::other("this part of the package was not fetched"));
        }
        let offset = self.position.saturating_sub(self.first).min(self.bytes.len() as u64);
        let count = self.bytes.get(offset as usize..).unwrap_or_default().read(buffer)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for EndRecord {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => self.length.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = position.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}

/// Reads entry by entry, so that memory is bounded by what is there, and by `limit`, not by what is claimed.
fn parse(package: &Uri, file: impl Read + Seek, limit: u64) -> Result<Parsed, PackageError> {
    let unreadable = |cause: ZipError| {
        let what = "the directory cannot be read".into();
        PackageError::Damaged { package: package.clone(), what, cause: Some(Arc::new(cause)) }
    };
    let mut zip = ZipIterable::try_new(file, Default::default()).map_err(unreadable)?;
    let mut parsed = Parsed::default();
    let mut start = None;
    for entry in zip.files().map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let (name, member) = (entry.name_raw(), entry.get_metadata());
        start.get_or_insert(member.central_header_start);
        if (parsed.names.len() + parsed.records.len() * CENTRAL_HEADER) as u64 > limit {
            return Err(PackageError::too_large(package, DIRECTORY, limit));
        }
        let position = u32::try_from(parsed.names.len());
        let (Ok(position), Ok(name_length)) = (position, u16::try_from(name.len())) else {
            return Err(PackageError::too_large(package, DIRECTORY, limit));
        };
        parsed.records.push(MemberRecord {
            header: member.header_start,
            packed: member.compressed_size,
            length: member.uncompressed_size,
            crc: member.crc32,
            name: position,
            name_length,
            method: method(member.compression_method),
            flags: member.flags.as_u16(),
        });
        parsed.names.extend_from_slice(name);
    }
    parsed.start = start.unwrap_or_default();
    parsed.names.shrink_to_fit();
    parsed.records.shrink_to_fit();
    Ok(parsed)
}

/// The number of a compression method.
#[allow(deprecated)]
fn method(method: zip::CompressionMethod) -> u16 {
    match method {
        zip::CompressionMethod::Stored => STORED,
        zip::CompressionMethod::Deflated => DEFLATED,
        zip::CompressionMethod::Unsupported(number) => number,
        // Those that the crate could read and this program does not.
        _ => u16::MAX,
    }
}

/// A name as text: UTF-8, or the code page 437 of old archives (APPNOTE, appendix D), of which ASCII is the same.
fn decoded(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(name) => name.to_owned(),
        Err(_) => name.iter().map(|byte| cp437(*byte)).collect(),
    }
}

/// A character of code page 437.
fn cp437(byte: u8) -> char {
    const UPPER: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";
    match byte.checked_sub(0x80) {
        None => char::from(byte),
        Some(upper) => UPPER.chars().nth(usize::from(upper)).unwrap_or(char::REPLACEMENT_CHARACTER),
    }
}
