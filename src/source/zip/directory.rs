//! The directory of one version of a package: where each member lies and what it must be, in few bytes.

use super::PackageError;
use super::end::End;
use super::package_bytes::Place;
use super::path::{behind, plain};
use crate::document::Uri;
use std::collections::HashMap;
use std::io::{Read, Seek};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use zip::HasZipMetadata;
use zip::result::ZipError;
use zip::unstable::read::ZipIterable;

/// Fixed bytes of a local header (APPNOTE 4.3.7).
pub(super) const LOCAL_HEADER: u64 = 30;

/// Fixed bytes of an entry of the directory (APPNOTE 4.3.12).
const CENTRAL_HEADER: usize = 46;

/// Room for the extra fields of a local header, whose length the directory does not tell: one that is longer costs one
/// request more.
const EXTRA: u64 = 256;

/// Deflate makes of one byte at most so many (RFC 1951: 258 of two bits), and a little more in one block.
const DEFLATE_RATIO: u64 = 1032;

/// Compression methods that are read (APPNOTE 4.4.5).
pub(super) const STORED: u16 = 0;
/// See [`STORED`].
pub(super) const DEFLATED: u16 = 8;

/// The encrypted bit of the general purpose flags (APPNOTE 4.4.4).
pub(super) const ENCRYPTED: u16 = 1;

/// Which version of a package bytes belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// Where it came from, after redirects: the base of its manifest.
    pub final_uri: Uri,
    /// A strong ETag: only under one can it be read in place.
    pub etag: Option<Box<str>>,
    /// A weak one: it tells whether the whole is still the same.
    pub weak_etag: Option<Box<str>>,
    /// `Last-Modified`, as the server wrote it, where it is old enough to tell two versions apart.
    pub last_modified: Option<Box<str>>,
    /// PackageBytes of the whole.
    pub length: u64,
}

/// What the directory says of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Offset of its local header in the package.
    pub header: u64,
    /// PackageBytes as they lie in the package.
    pub packed: u64,
    /// PackageBytes when unpacked.
    pub length: u64,
    /// CRC-32 of the unpacked bytes.
    pub crc: u32,
    /// Where its name begins in [`Directory::names`].
    pub name: u32,
    pub name_length: u16,
    /// Compression method.
    pub method: u16,
    /// General purpose flags.
    pub flags: u16,
}

/// The directory of one version of a package. Members are numbered in the order in which they lie.
#[derive(Debug)]
pub struct Directory {
    package: Uri,
    pub(super) version: Version,
    /// Where the bytes of this version are.
    pub(super) place: Place,
    /// Offset of the central directory: every member ends before it.
    start: u64,
    names: Box<[u8]>,
    /// In the order of `header`; none overlaps the next.
    records: Box<[Record]>,
    /// Numbers of the records in the order of their names.
    by_name: Box<[u32]>,
    /// Members by plain name, of several the last that is the same as the others; made when first needed.
    spellings: OnceLock<HashMap<Box<str>, Spelling>>,
    /// Segments that the manifest's paths have in excess, once that was looked for.
    pub(super) excess: OnceLock<Option<usize>>,
    /// Held by who looks for it.
    pub(super) learning: tokio::sync::Mutex<()>,
}

/// A member of a plain name.
#[derive(Clone, Copy, Debug)]
enum Spelling {
    One(u32),
    /// Members whose bytes differ.
    Several,
}

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Member(u32),
    Nothing,
    Several,
}

impl Directory {
    /// Reads the directory at the end of a package. `Ok(None)`: it begins before `end` does, where [`End::missed`] says.
    pub(super) fn read(
        package: &Uri,
        version: &Version,
        end: &mut End,
        limit: u64,
    ) -> Result<Option<Directory>, PackageError> {
        match parse(package, &mut *end, limit) {
            Ok(parsed) => Directory::new(package.clone(), version.clone(), Place::Server, parsed).map(Some),
            Err(Unread::Package(error)) => Err(error),
            Err(Unread::Zip(cause)) => match end.missed() {
                Some(_) => Ok(None),
                None => Err(unreadable(package, cause)),
            },
        }
    }

    /// Reads the directory of a package that lies in a file.
    pub(super) fn of_file(
        package: &Uri,
        version: &Version,
        place: Place,
        file: impl Read + Seek,
        limit: u64,
    ) -> Result<Directory, PackageError> {
        match parse(package, file, limit) {
            Ok(parsed) => Directory::new(package.clone(), version.clone(), place, parsed),
            Err(Unread::Package(error)) => Err(error),
            Err(Unread::Zip(cause)) => Err(unreadable(package, cause)),
        }
    }

    /// Checks what holds between members and makes them findable.
    pub(super) fn new(package: Uri, version: Version, place: Place, parsed: Parsed) -> Result<Directory, PackageError> {
        let Parsed { start, names, mut records } = parsed;
        records.sort_unstable_by_key(|record| record.header);
        let name = |record: &Record| String::from_utf8_lossy(slice(&names, record)).into_owned();
        let mut before: Option<&Record> = None;
        for record in &records {
            if least_end(record).is_none_or(|end| end > start) {
                let what = format!("the member {:?} lies past the directory", name(record));
                return Err(PackageError::damaged(&package, what));
            }
            if let Some(before) = before.filter(|before| least_end(before) > Some(record.header)) {
                let what = format!("the members {:?} and {:?} overlap", name(before), name(record));
                return Err(PackageError::damaged(&package, what));
            }
            before = Some(record);
        }
        let mut by_name: Vec<u32> = (0..records.len() as u32).collect();
        by_name.sort_unstable_by_key(|number| {
            records.get(*number as usize).map(|record| (slice(&names, record), record.header))
        });
        Ok(Directory {
            package,
            version,
            place,
            start,
            names: names.into(),
            records: records.into(),
            by_name: by_name.into(),
            spellings: OnceLock::new(),
            excess: OnceLock::new(),
            learning: tokio::sync::Mutex::default(),
        })
    }

    /// The package.
    pub fn package(&self) -> &Uri {
        &self.package
    }

    /// PackageBytes of the whole package.
    pub fn length(&self) -> u64 {
        self.version.length
    }

    /// Number of members, folders included.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether it has no member.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The names of the members, in the order in which they lie; what is not UTF-8 is shown with U+FFFD. They are whatever
    /// the publisher wrote: never paths of this machine.
    pub fn names(&self) -> impl Iterator<Item = std::borrow::Cow<'_, str>> {
        self.records.iter().map(|record| String::from_utf8_lossy(slice(&self.names, record)))
    }

    /// PackageBytes that the member has which the `path` of a manifest's entry means.
    pub fn length_of(&self, path: &str) -> Option<u64> {
        match self.find(path) {
            Found::Member(number) => self.record(number).map(|record| record.length),
            Found::Nothing | Found::Several => None,
        }
    }

    /// PackageBytes of memory it takes.
    pub(super) fn bytes(&self) -> u64 {
        let spellings = if self.spellings.get().is_some() { self.names.len() + 64 * self.records.len() } else { 0 };
        let records = (size_of::<Record>() + size_of::<u32>()) * self.records.len();
        let held = if let Place::Memory { bytes, .. } = &self.place { bytes.len() } else { 0 };
        (self.names.len() + records + spellings + held + size_of::<Directory>()) as u64
    }

    pub(super) fn record(&self, number: u32) -> Option<&Record> {
        self.records.get(number as usize)
    }

    pub(super) fn name(&self, record: &Record) -> &[u8] {
        slice(&self.names, record)
    }

    /// The parts from which [`Directory::new`] makes it again.
    pub(super) fn parts(&self) -> (u64, &[u8], &[Record]) {
        (self.start, &self.names, &self.records)
    }

    /// PackageBytes of the package in which a member lies, local header included: at least all of it, but for an unusually long
    /// header.
    pub(super) fn extent(&self, number: u32) -> Range<u64> {
        let Some(record) = self.record(number) else { return 0..0 };
        let next = self.records.get(number as usize + 1).map_or(self.start, |next| next.header);
        let likely = least_end(record).unwrap_or(self.start).saturating_add(EXTRA);
        record.header..likely.min(next)
    }

    /// Where the last member ends that, with all before it from `number` on, ends by `most`; at least the end of the first.
    pub(super) fn run_end(&self, number: u32, most: u64) -> u64 {
        let first = self.extent(number).end;
        let others = self.records.partition_point(|record| record.header < most);
        let last = (number as usize + 1..others).rev().map(|other| self.extent(other as u32).end);
        last.into_iter().find(|end| *end <= most).map_or(first, |end| end.max(first))
    }

    /// Where the last member ends that begins before `offset`.
    pub(super) fn end_near(&self, offset: u64) -> u64 {
        let behind = self.records.partition_point(|record| record.header < offset);
        behind.checked_sub(1).map_or(0, |last| self.extent(last as u32).end)
    }

    /// The member that the `path` of a manifest's entry means: the one of that name, with or without leading slash; else
    /// the one whose name differs in slashes and escapes alone; else, where the manifest's paths are those of the
    /// publisher's own disk, the one behind what they all have in excess.
    pub(super) fn find(&self, path: &str) -> Found {
        for name in [path.strip_prefix('/').unwrap_or(path), path] {
            match self.exact(name.as_bytes()) {
                Found::Nothing => {}
                found => return found,
            }
        }
        let plain = plain(path);
        match (self.spelt(&plain), self.excess.get()) {
            (Found::Nothing, Some(Some(segments))) => {
                behind(&plain, *segments).map_or(Found::Nothing, |rest| self.spelt(rest))
            }
            (found, _) => found,
        }
    }

    /// As [`Directory::find`], of paths that all have so many segments in excess.
    pub(super) fn find_behind(&self, path: &str, excess: Option<usize>) -> Found {
        match (self.find(path), excess) {
            (Found::Nothing, Some(segments)) => {
                behind(&plain(path), segments).map_or(Found::Nothing, |rest| self.spelt(rest))
            }
            (found, _) => found,
        }
    }

    /// The member of exactly this name; of several that hold the same the last.
    fn exact(&self, name: &[u8]) -> Found {
        let first = self.by_name.partition_point(|number| self.name_of(*number) < name);
        let same = self.by_name.get(first..).unwrap_or_default();
        let same = same.iter().take_while(|number| self.name_of(**number) == name);
        same.fold(Found::Nothing, |found, number| self.either(found, *number))
    }

    /// The member of this plain name.
    pub(super) fn spelt(&self, plain: &str) -> Found {
        match self.spellings().get(plain) {
            None => Found::Nothing,
            Some(Spelling::One(number)) => Found::Member(*number),
            Some(Spelling::Several) => Found::Several,
        }
    }

    fn spellings(&self) -> &HashMap<Box<str>, Spelling> {
        self.spellings.get_or_init(|| {
            let mut spellings: HashMap<Box<str>, Spelling> = HashMap::with_capacity(self.records.len());
            for (number, record) in (0u32..).zip(&self.records) {
                let name = self::plain(&decoded(slice(&self.names, record)));
                let spelling = match spellings.get(name.as_str()) {
                    None => Spelling::One(number),
                    Some(Spelling::One(before)) if self.is_same(*before, number) => Spelling::One(number),
                    Some(_) => Spelling::Several,
                };
                spellings.insert(name.into(), spelling);
            }
            spellings
        })
    }

    fn either(&self, found: Found, number: u32) -> Found {
        match found {
            Found::Nothing => Found::Member(number),
            Found::Member(before) if self.is_same(before, number) => Found::Member(number),
            Found::Member(_) | Found::Several => Found::Several,
        }
    }

    /// Whether two members hold the same bytes, by length and CRC-32.
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

impl Record {
    /// Why its bytes cannot be had, if they cannot.
    pub fn unreadable(&self) -> Option<String> {
        if self.flags & ENCRYPTED != 0 {
            return Some("is encrypted".into());
        }
        let is_possible = match self.method {
            STORED => self.length == self.packed,
            DEFLATED => self.length <= self.packed.saturating_mul(DEFLATE_RATIO),
            other => return Some(format!("is compressed by method {other}, which is none of stored and deflated")),
        };
        (!is_possible).then(|| format!("cannot be {} bytes unpacked from {}", self.length, self.packed))
    }
}

/// A directory as it was read, unchecked.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub start: u64,
    pub names: Vec<u8>,
    pub records: Vec<Record>,
}

enum Unread {
    Zip(ZipError),
    Package(PackageError),
}

impl From<ZipError> for Unread {
    fn from(error: ZipError) -> Unread {
        Unread::Zip(error)
    }
}

/// Reads entry by entry, so that memory is bounded by what is there, and by `limit`, not by what is claimed.
fn parse(package: &Uri, bytes: impl Read + Seek, limit: u64) -> Result<Parsed, Unread> {
    let mut zip = ZipIterable::try_new(bytes, Default::default())?;
    let mut parsed = Parsed::default();
    let mut start = None;
    for entry in zip.files()? {
        let entry = entry?;
        let (name, member) = (entry.name_raw(), entry.get_metadata());
        start.get_or_insert(member.central_header_start);
        if (parsed.names.len() + parsed.records.len() * CENTRAL_HEADER) as u64 > limit {
            return Err(Unread::Package(too_large(package, limit)));
        }
        let position = u32::try_from(parsed.names.len());
        let (Ok(position), Ok(name_length)) = (position, u16::try_from(name.len())) else {
            return Err(Unread::Package(too_large(package, limit)));
        };
        parsed.records.push(Record {
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

fn unreadable(package: &Uri, cause: ZipError) -> PackageError {
    let what = "its directory cannot be read".into();
    PackageError::Damaged { package: package.clone(), what, cause: Some(Arc::new(cause)) }
}

pub(super) fn too_large(package: &Uri, limit: u64) -> PackageError {
    PackageError::TooLarge { package: package.clone(), what: "its directory", limit }
}

fn slice<'a>(names: &'a [u8], record: &Record) -> &'a [u8] {
    let first = record.name as usize;
    names.get(first..first + usize::from(record.name_length)).unwrap_or_default()
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

/// Where a member ends at the earliest, its local header without extra fields.
fn least_end(record: &Record) -> Option<u64> {
    record.header.checked_add(LOCAL_HEADER + u64::from(record.name_length))?.checked_add(record.packed)
}
