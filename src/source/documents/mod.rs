//! Documents on this machine's disk, each with the validators it came with: so a poll is a 304, and a killed baseline goes on
//! where it stopped.
//!
//! ```text
//! FOLDER/KEY.json            the record of a document; KEY is the XXH3-128 of its location, in hex
//! FOLDER/KEY.DIGEST          its bytes as transferred
//! FOLDER/new-*.tmp           being written
//! ```
//!
//! `KEY.json` names its content file and that file's length, and is replaced by a rename after the content is in place:
//! so a killed process leaves the document of before or the new one, never a mixture. Nothing is synced: what a power
//! cut damages is found by the length, by gzip's CRC, or by the reader of the document, and is fetched again.

#[cfg(test)]
mod tests;

use super::{DocumentLocation, SourceError};
use crate::document::gunzip::{GZIP_MAGIC, Gunzip};
use crate::document::{Limits, Reader, Timestamp, Uri};
use crate::platform::free_space::{NoSpace, SpaceGuard};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};
use tempfile::NamedTempFile;
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};

/// Compressions of one document that are undone: `.xml.gz` sent with `Content-Encoding: gzip` has two.
const COMPRESSIONS: usize = 3;

/// Bytes that a compression may expand to beyond the limit of the document: its reader is the first to stop, and names the limit.
const BEYOND: u64 = 1 << 20;

/// Bytes moved at once.
const BLOCK: usize = 128 * 1024;

/// Prefix and suffix of a file's name while it is written.
const TEMPORARY: (&str, &str) = ("new-", ".tmp");

/// A folder of documents; one owner at a time.
#[derive(Debug)]
pub struct DocumentCache {
    folder: PathBuf,
    room: Arc<SpaceGuard>,
}

/// One complete document of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedDocument {
    /// Location of the request.
    pub location: DocumentLocation,
    /// Address after redirects: the base of its relative references.
    pub base: Option<Uri>,
    /// Bytes as transferred.
    pub size: u64,
    /// XXH3 of the bytes and of the folder they came from: differs after a change, where there is no validator.
    pub digest: u64,
    /// `Last-Modified` of the response.
    pub modified: Option<Timestamp>,
    /// Validators for the next request of it.
    pub validators: Validators,
}

/// Validators of a response, as the server wrote them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validators {
    /// `ETag`
    pub etag: Option<Box<str>>,
    /// `Last-Modified`
    pub last_modified: Option<Box<str>>,
}

/// `KEY.json`. Unknown fields are ignored; where one is missing, the document is unknown and fetched again.
#[derive(Serialize, Deserialize)]
struct Record {
    /// For a person who reads the folder; the key is what counts.
    location: String,
    base: Option<Uri>,
    validators: Validators,
    modified: Option<Timestamp>,
    /// Bytes of the content, and their XXH3.
    size: u64,
    bytes: u64,
    /// Name of the content file.
    content: String,
}

impl Record {
    /// References may be relative to the folder, so bytes that have moved to another are another document.
    fn digest(&self) -> u64 {
        let path = self.base.as_ref().and_then(|base| base.as_str().split(['?', '#']).next()).unwrap_or_default();
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        xxh3_64(format!("{:016x} {folder}", self.bytes).as_bytes())
    }

    fn document(self, location: DocumentLocation) -> CachedDocument {
        let digest = self.digest();
        let Record { base, size, modified, validators, .. } = self;
        CachedDocument { location, base, size, digest, modified, validators }
    }
}

impl DocumentCache {
    /// Opens or makes the folder; what a killed process has half written is removed.
    ///
    /// # Errors
    /// [`SourceError::DocumentCache`] where the folder cannot be made or read.
    pub fn open(folder: &Path) -> Result<DocumentCache, SourceError> {
        fs::create_dir_all(folder).map_err(failed(folder))?;
        let cache = DocumentCache { folder: folder.to_owned(), room: Arc::default() };
        cache.retain(|_| true)?;
        Ok(cache)
    }

    /// Leaves `room` free on its file system.
    pub fn leaving(self, room: Arc<SpaceGuard>) -> DocumentCache {
        DocumentCache { room, ..self }
    }

    /// The document of `location`, where it is here and complete.
    pub fn known(&self, location: &DocumentLocation) -> Option<CachedDocument> {
        Some(self.record(&key(location))?.document(location.clone()))
    }

    /// A reader at the start of a document, its compressions undone.
    ///
    /// # Errors
    /// [`SourceError::DocumentCache`] where it is not here any more, [`SourceError::Document`] where it is none.
    pub fn reader(
        &self,
        document: &CachedDocument,
        limits: Limits,
    ) -> Result<Reader<Box<dyn BufRead + Send>>, SourceError> {
        let broken = |cause| SourceError::Document { location: document.location.clone(), cause };
        let bytes = unpacked(self.content(document)?, limits.document).map_err(|cause| broken(cause.into()))?;
        Reader::new(bytes, document.base.clone(), limits).map_err(broken)
    }

    /// Drops all documents but those of `locations`. To be called when what was made of them is durable.
    ///
    /// # Errors
    /// [`SourceError::DocumentCache`]
    pub fn keep(&self, locations: &[DocumentLocation]) -> Result<(), SourceError> {
        let keys: HashSet<String> = locations.iter().map(key).collect();
        self.retain(|key| keys.contains(key))?;
        self.room.settle();
        Ok(())
    }

    /// Drops the document of `location`, so that it is fetched again: it cannot be read to its end.
    ///
    /// # Errors
    /// [`SourceError::DocumentCache`]
    pub fn forget(&self, location: &DocumentLocation) -> Result<(), SourceError> {
        let key = key(location);
        let content = self.record(&key).map(|record| record.content);
        self.remove(&format!("{key}.json"))?;
        content.map_or(Ok(()), |content| self.remove(&content))
    }

    /// The server answered that the bytes are the same, and they come from `base` now. The time at which it says that they were
    /// `written`, and the validator of that time, hold from now on (RFC 9111, section 4.3.4).
    pub(super) fn confirm(
        &self,
        document: CachedDocument,
        base: &Uri,
        written: Option<(Timestamp, Option<Box<str>>)>,
    ) -> Result<CachedDocument, SourceError> {
        let written = written.filter(|(written, _)| Some(*written) != document.modified);
        if document.base.as_ref() == Some(base) && written.is_none() {
            return Ok(document);
        }
        let key = key(&document.location);
        let Some(mut record) = self.record(&key) else { return Ok(document) };
        record.base = Some(base.clone());
        if let Some((modified, validator)) = written {
            record.modified = Some(modified);
            record.validators.last_modified = validator;
        }
        self.write(&key, &record)?;
        Ok(record.document(document.location))
    }

    /// Begins to write a document of `location`.
    pub(super) fn receive(&self, location: &DocumentLocation) -> Result<NewDocument<'_>, SourceError> {
        // The folder may have been removed during the mount.
        fs::create_dir_all(&self.folder).map_err(failed(&self.folder))?;
        let file = BufWriter::with_capacity(BLOCK, self.temporary()?);
        Ok(NewDocument { cache: self, location: location.clone(), file, size: 0, digest: Xxh3::new() })
    }

    /// The content file of `document`.
    pub(super) fn content(&self, document: &CachedDocument) -> Result<File, SourceError> {
        let key = key(&document.location);
        let record = self.record(&key).filter(|record| record.digest() == document.digest).ok_or_else(|| {
            let cause = io::Error::new(io::ErrorKind::NotFound, format!("{} is not in it", document.location));
            failed(&self.folder.join(format!("{key}.json")))(cause)
        })?;
        let path = self.folder.join(record.content);
        File::open(&path).map_err(failed(&path))
    }

    /// The record of `key`, if it can be read and its content is there in full.
    fn record(&self, key: &str) -> Option<Record> {
        let raw = fs::read(self.folder.join(format!("{key}.json"))).ok()?;
        let record: Record = serde_json::from_slice(&raw).ok()?;
        let content = fs::metadata(self.folder.join(&record.content)).ok()?;
        (record.content.starts_with(key) && content.len() == record.size).then_some(record)
    }

    fn write(&self, key: &str, record: &Record) -> Result<(), SourceError> {
        let path = self.folder.join(format!("{key}.json"));
        let mut file = self.temporary()?;
        let json = serde_json::to_vec(record).map_err(|cause| failed(&path)(cause.into()))?;
        file.write_all(&json).map_err(failed(&path))?;
        file.persist(&path).map_err(|cause| failed(&path)(cause.error))?;
        Ok(())
    }

    /// Removes every file of ours that does not belong to a whole document whose key is kept.
    fn retain(&self, keeps: impl Fn(&str) -> bool) -> Result<(), SourceError> {
        for name in self.files()? {
            let key = name.split('.').next().unwrap_or_default();
            let belongs = |record: Record| record.content == name || name.strip_suffix(".json") == Some(key);
            if !(keeps(key) && self.record(key).is_some_and(belongs)) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// The names of our files in the folder; other files are left alone.
    fn files(&self) -> Result<Vec<String>, SourceError> {
        let entries = fs::read_dir(&self.folder).map_err(failed(&self.folder))?;
        let names: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.file_name().into_string())).collect();
        let names = names.map_err(failed(&self.folder))?.into_iter().filter_map(Result::ok);
        Ok(names.filter(|name| is_ours(name)).collect())
    }

    fn remove(&self, name: &str) -> Result<(), SourceError> {
        let path = self.folder.join(name);
        match fs::remove_file(&path) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(failed(&path)(cause)),
            _ => Ok(()),
        }
    }

    /// A new file, removed at drop unless it is renamed.
    fn temporary(&self) -> Result<NamedTempFile, SourceError> {
        let (prefix, suffix) = TEMPORARY;
        tempfile::Builder::new().prefix(prefix).suffix(suffix).tempfile_in(&self.folder).map_err(failed(&self.folder))
    }
}

/// A document while it is written; dropped before [`NewDocument::commit`], it was never there.
pub(super) struct NewDocument<'a> {
    cache: &'a DocumentCache,
    location: DocumentLocation,
    file: BufWriter<NamedTempFile>,
    size: u64,
    digest: Xxh3,
}

impl NewDocument<'_> {
    /// Adds the next bytes, where the disk has room for them. Blocks on the disk.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        let DocumentCache { folder, room } = self.cache;
        room.reserve(folder, bytes.len() as u64, 0).map_err(|NoSpace { free, floor, .. }| SourceError::NoRoom {
            location: self.location.clone(),
            folder: folder.clone(),
            size: self.size,
            free,
            floor,
        })?;
        self.file.write_all(bytes).map_err(failed(folder))?;
        self.digest.update(bytes);
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Makes the bytes the document of its location. Blocks on the disk.
    pub fn commit(
        self,
        base: Option<Uri>,
        modified: Option<Timestamp>,
        validators: Validators,
    ) -> Result<CachedDocument, SourceError> {
        let NewDocument { cache, location, file, size, digest } = self;
        let file = file.into_inner().map_err(|cause| failed(&cache.folder)(cause.into_error()))?;
        let (key, bytes) = (key(&location), digest.digest());
        let content = format!("{key}.{bytes:016x}");
        let replaced = cache.record(&key).map(|before| before.content).filter(|before| *before != content);
        let path = cache.folder.join(&content);
        file.persist(&path).map_err(|cause| failed(&path)(cause.error))?;
        let record = Record { location: location.to_string(), base, validators, modified, size, bytes, content };
        cache.write(&key, &record)?;
        if let Some(replaced) = replaced {
            cache.remove(&replaced)?;
        }
        Ok(record.document(location))
    }
}

/// `bytes` with its compressions undone.
pub(crate) fn unpacked<'a>(bytes: impl Read + Send + 'a, limit: u64) -> io::Result<Box<dyn BufRead + Send + 'a>> {
    let mut bytes: Box<dyn BufRead + Send + 'a> = Box::new(BufReader::with_capacity(BLOCK, bytes));
    for _ in 0..COMPRESSIONS {
        if !bytes.fill_buf()?.starts_with(&GZIP_MAGIC) {
            break;
        }
        bytes = Box::new(BufReader::with_capacity(BLOCK, Gunzip::new(bytes, limit.saturating_add(BEYOND))));
    }
    Ok(bytes)
}

/// Key in the names of a location's files. No URI has the key of a path.
fn key(location: &DocumentLocation) -> String {
    let hash = match location {
        DocumentLocation::Uri(uri) => xxh3_128(format!("uri {uri}").as_bytes()),
        DocumentLocation::File(path) => xxh3_128(&[b"file ", path.as_os_str().as_bytes()].concat()),
    };
    format!("{hash:032x}")
}

/// Returns whether a file name is one of those in the module's picture.
fn is_ours(name: &str) -> bool {
    let is_key = |key: &str| key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (prefix, suffix) = TEMPORARY;
    name.split_once('.').is_some_and(|(key, _)| is_key(key)) || name.starts_with(prefix) && name.ends_with(suffix)
}

/// An error of the operating system about `path` as ours.
fn failed(path: &Path) -> impl FnOnce(io::Error) -> SourceError {
    let path = path.to_owned();
    move |cause| SourceError::DocumentCache { path, cause }
}
