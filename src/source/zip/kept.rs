//! What is kept of packages in the folder, so that a restart need not ask again.
//!
//! ```text
//! FOLDER/KEY.directory          the directory of a version with a strong ETag; KEY is the XXH3-128 of the package's URI
//! FOLDER/KEY.VERSION.manifest   the manifest.xml of a version
//! FOLDER/KEY.whole              a whole package, and KEY.json, which version it is
//! FOLDER/KEY.part               a whole package as far as it has come; the same KEY.json
//! FOLDER/KEY.copy               the copy of a manifest that is published beside a package
//! FOLDER/KEY.preview            what was last stated of such a package (`preview`)
//! FOLDER/*.tmp                  being written
//! ```
//!
//! Every file is complete when it gets its name, but `part`. Nothing is synced: what a power cut leaves is found by CRC or
//! length, or by the CRC-32 of a member, and is fetched again.

use super::PackageError;
use super::directory::{Directory, Parsed, Record, Version};
use super::package_bytes::Place;
use crate::document::Uri;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

/// What a file with a directory begins with.
const MAGIC: &[u8; 8] = b"resyncd1";

/// PackageBytes of a record in the file: header, packed, length, CRC, place of the name, its length, method, flags.
const RECORD: usize = 3 * 8 + 2 * 4 + 3 * 2;

/// Which version the files of a package are of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Description {
    /// For whoever looks into the folder; the name of the file is what counts.
    pub package: String,
    final_uri: String,
    etag: Option<Box<str>>,
    weak_etag: Option<Box<str>>,
    last_modified: Option<Box<str>>,
    /// PackageBytes of the whole.
    pub length: u64,
    /// Of a directory: its offset, its number of records, and bytes of all names.
    directory: Option<(u64, usize, usize)>,
}

impl Description {
    pub fn of(package: &Uri, version: &Version) -> Description {
        Description {
            package: package.to_string(),
            final_uri: version.final_uri.to_string(),
            etag: version.etag.clone(),
            weak_etag: version.weak_etag.clone(),
            last_modified: version.last_modified.clone(),
            length: version.length,
            directory: None,
        }
    }

    pub fn version(self) -> Option<Version> {
        Some(Version {
            final_uri: Uri::parse(&self.final_uri).ok()?,
            etag: self.etag,
            weak_etag: self.weak_etag,
            last_modified: self.last_modified,
            length: self.length,
        })
    }
}

/// What the files of one package are named by.
pub(super) fn key(package: &Uri) -> String {
    format!("{:032x}", xxh3_128(package.as_str().as_bytes()))
}

/// A file of a package.
pub(super) fn file(folder: &Path, package: &Uri, kind: &str) -> PathBuf {
    folder.join(format!("{}.{kind}", key(package)))
}

/// Keeps a directory; what cannot be kept is asked for again after a restart.
pub(super) fn keep(folder: &Path, directory: &Directory) -> io::Result<()> {
    let (start, names, records) = directory.parts();
    let mut description = Description::of(directory.package(), &directory.version);
    description.directory = Some((start, records.len(), names.len()));
    let description = serde_json::to_vec(&description)?;
    let mut bytes = Vec::with_capacity(MAGIC.len() + 8 + description.len() + records.len() * RECORD + names.len());
    bytes.extend(MAGIC);
    bytes.extend((description.len() as u32).to_le_bytes());
    bytes.extend(&description);
    for record in records {
        [record.header, record.packed, record.length].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        [record.crc, record.name].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        let shorts = [record.name_length, record.method, record.flags];
        shorts.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    }
    bytes.extend(names);
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    replace(folder, &file(folder, directory.package(), "directory"), &bytes)
}

/// The directory that was kept; `None` where there is none or it is damaged.
pub(super) fn kept(folder: &Path, package: &Uri, limit: u64) -> Option<Directory> {
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
    let bytes = bytes.strip_prefix(MAGIC)?;
    let (length, bytes) = bytes.split_first_chunk::<4>()?;
    let (description, bytes) = bytes.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let description: Description = serde_json::from_slice(description).ok()?;
    let (start, records, names) = description.directory?;
    let (records, rest) = bytes.split_at_checked(records.checked_mul(RECORD)?)?;
    if description.package != package.as_str() || rest.len() != names {
        return None;
    }
    let records = records.chunks_exact(RECORD).map(record).collect::<Option<Vec<Record>>>()?;
    let parsed = Parsed { start, names: rest.to_vec(), records };
    Directory::new(package.clone(), description.version()?, Place::Server, parsed).ok()
}

fn record(bytes: &[u8]) -> Option<Record> {
    let (numbers, rest) = bytes.split_at_checked(24)?;
    let number = |at: usize| Some(u64::from_le_bytes(numbers.get(at..at + 8)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
    let short = |at: usize| Some(u16::from_le_bytes(rest.get(at..at + 2)?.try_into().ok()?));
    Some(Record {
        header: number(0)?,
        packed: number(8)?,
        length: number(16)?,
        crc: word(0)?,
        name: word(4)?,
        name_length: short(8)?,
        method: short(10)?,
        flags: short(12)?,
    })
}

/// Puts `bytes` at `path`, whole or not at all.
pub(super) fn replace(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = tempfile::Builder::new().suffix(".tmp").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Removes a file that may not be there.
pub(super) fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "a file of a package cannot be removed");
        }
        _ => {}
    }
}

/// Removes what belongs to none of `packages`, and of all what was half written when a process was killed.
pub(super) fn sweep(folder: &Path, packages: Option<&HashSet<&Uri>>) -> Result<(), PackageError> {
    let keys: Option<HashSet<String>> = packages.map(|packages| packages.iter().map(|package| key(package)).collect());
    for path in files(folder)? {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_wanted = match (&keys, name.split('.').next()) {
            // While packages are read what is being written belongs to someone.
            (Some(keys), Some(key)) => name.ends_with(".tmp") || keys.contains(key),
            _ => !name.ends_with(".tmp"),
        };
        if !is_wanted {
            remove(&path);
        }
    }
    Ok(())
}

/// The files of the folder.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>, PackageError> {
    let entries = fs::read_dir(folder).map_err(failed(folder))?;
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed(folder))).collect()
}

/// An operating system's answer about `path` as our error.
pub(super) fn failed(path: &Path) -> impl FnOnce(io::Error) -> PackageError {
    let path = path.to_owned();
    move |cause| PackageError::Folder { path, cause: std::sync::Arc::new(cause) }
}
