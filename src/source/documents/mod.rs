//! Documents on this machine's disk, each with the validators it came with: what makes a poll a 304 and a killed
//! baseline go on where it stopped.
//!
//! ```text
//! FOLDER/KEY.json            what is known of a document; KEY is the XXH3-128 of its location, in hex
//! FOLDER/KEY.DIGEST          its bytes as they came
//! FOLDER/KEY.DIGEST.gz       the same, compressed here
//! FOLDER/NUMBER.tmp          being written
//! ```
//!
//! `KEY.json` names its content file and that file's length, and is replaced by a rename after the content is in place:
//! so a killed process leaves the document of before or the new one, never a mixture. Nothing is synced: what a power
//! cut leaves is found by the length, by gzip's CRC, or by the reader of the document, and is fetched again.

#[cfg(test)]
mod tests;

use super::{DocumentLocation, SourceError, off_the_workers};
use crate::document::gunzip::{GZIP_MAGIC, Gunzip};
use crate::document::{DocumentError, Limits, Reader, Rule, Timestamp, Uri};
use crate::room::{Room, Short};
use flate2::{Compression, write::GzEncoder};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};

/// Compressions of one document that are undone: `.xml.gz` sent with `Content-Encoding: gzip` has two.
const COMPRESSIONS: usize = 3;

/// Bytes moved at once.
const BLOCK: usize = 128 * 1024;

/// A folder of spooled documents; one owner at a time.
#[derive(Debug)]
pub struct DocumentCache {
    folder: PathBuf,
    next_temporary: AtomicU64,
    room: Arc<Room>,
    /// For what is read of documents before whoever asked for them reads them.
    limits: Limits,
}

/// One document in the spool, complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedDocument {
    /// Where it was asked for.
    pub location: DocumentLocation,
    /// Where it came from after redirects: the base of its relative references.
    pub base: Option<Uri>,
    /// Bytes as transferred.
    pub size: u64,
    /// XXH3 of the bytes: tells a change where there is no validator. Of bytes that have come from one place and then from
    /// another, and hold relative references, it tells the place too.
    pub digest: u64,
    /// `Last-Modified` of the response.
    pub modified: Option<Timestamp>,
}

/// What the spool remembers for the next request of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// The document.
    pub document: CachedDocument,
    /// What it came with.
    pub validators: Validators,
    /// Whether these bytes have been settled: used to the end by whoever asked for them.
    pub settled: bool,
}

/// Validators of a response, as the server wrote them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Validators {
    /// `ETag`
    pub etag: Option<Box<str>>,
    /// `Last-Modified`
    pub last_modified: Option<Box<str>>,
}

/// `KEY.json`. Unknown fields are ignored, a missing one makes the document unknown: it is fetched again.
#[derive(Serialize, Deserialize)]
struct Sidecar {
    /// For whoever looks into the folder; the key is what counts.
    location: String,
    base: Option<String>,
    validators: Validators,
    modified: Option<(i64, u32)>,
    /// Bytes as transferred, and their XXH3.
    size: u64,
    digest: u64,
    /// Name of the content file, and its length as it lies here.
    content: String,
    content_length: u64,
    settled: bool,
    /// XXH3 of the bytes alone, where `digest` tells of the place that they came from too.
    #[serde(default)]
    bytes: Option<u64>,
    /// Whether references in it are relative, once somebody had to know.
    #[serde(default)]
    is_relative: Option<bool>,
}

impl Sidecar {
    fn bytes(&self) -> u64 {
        self.bytes.unwrap_or(self.digest)
    }
}

impl DocumentCache {
    /// Opens or makes the folder; what a killed process left half written is removed.
    ///
    /// # Errors
    /// [`SourceError::DocumentCache`] where the folder cannot be made or read.
    pub fn open(folder: &Path) -> Result<DocumentCache, SourceError> {
        fs::create_dir_all(folder).map_err(failed(folder))?;
        let spool = DocumentCache {
            folder: folder.to_owned(),
            next_temporary: AtomicU64::new(0),
            room: Arc::default(),
            limits: Limits::default(),
        };
        let keys: HashSet<String> = spool
            .files()?
            .iter()
            .filter_map(|name| name.strip_suffix(".json"))
            .filter(|key| spool.sidecar(key).is_some())
            .map(str::to_owned)
            .collect();
        spool.retain(&keys)?;
        Ok(spool)
    }

    /// The same, which leaves `room` free on its file system.
    pub fn leaving(self, room: Arc<Room>) -> DocumentCache {
        DocumentCache { room, ..self }
    }

    /// The same, which itself reads no more of a document than `limits` allow.
    pub fn within(self, limits: Limits) -> DocumentCache {
        DocumentCache { limits, ..self }
    }

    /// The document of `location`, where it is here and complete.
    pub fn known(&self, location: &DocumentLocation) -> Option<CachedDocument> {
        self.held(location).map(|held| held.document)
    }

    /// A reader at the start of a spooled document, all but one of its compressions undone (the reader undoes that).
    ///
    /// # Errors
    /// [`SourceError::DocumentCache`] where it is not here any more, [`SourceError::Document`] where it is none.
    pub fn reader(
        &self,
        document: &CachedDocument,
        limits: Limits,
    ) -> Result<Reader<Box<dyn BufRead + Send>>, SourceError> {
        let bytes = self.bytes(document, limits.document)?;
        Reader::new(bytes, document.base.clone(), limits)
            .map_err(|cause| SourceError::Document { location: document.location.clone(), cause })
    }

    /// Says that `keep` have been used to the end, so that they count as unchanged from now on; compresses them
    /// and drops all others. To be called when what was made of them is durable.
    ///
    /// # Errors
    /// [`SourceError::DocumentCache`]; the documents are all still there then.
    pub fn settle(&self, keep: &[CachedDocument]) -> Result<(), SourceError> {
        let keys: HashSet<String> = keep.iter().map(|document| key(&document.location)).collect();
        self.retain(&keys)?;
        self.room.renew();
        for document in keep {
            let key = key(&document.location);
            let Some(mut sidecar) = self.sidecar(&key).filter(|sidecar| sidecar.digest == document.digest) else {
                continue;
            };
            let compressed = self.compress(&sidecar)?;
            if sidecar.settled && compressed.is_none() {
                continue;
            }
            let replaced = compressed.map(|(content, length)| {
                sidecar.content_length = length;
                std::mem::replace(&mut sidecar.content, content)
            });
            sidecar.settled = true;
            self.write_sidecar(&key, &sidecar)?;
            if let Some(replaced) = replaced {
                self.remove(&replaced)?;
            }
        }
        Ok(())
    }

    /// Drops the document of `location`, so that it is fetched anew: what it holds turned out not to be readable.
    ///
    /// # Errors
    /// [`SourceError::DocumentCache`]
    pub fn forget(&self, location: &DocumentLocation) -> Result<(), SourceError> {
        let key = key(location);
        let content = self.sidecar(&key).map(|sidecar| sidecar.content);
        self.remove(&format!("{key}.json"))?;
        content.map_or(Ok(()), |content| self.remove(&content))
    }

    /// What the next request of `location` can build on.
    pub(super) fn held(&self, location: &DocumentLocation) -> Option<Held> {
        let sidecar = self.sidecar(&key(location))?;
        let base = match &sidecar.base {
            Some(base) => Some(Uri::parse(base).ok()?),
            None => None,
        };
        Some(Held {
            document: CachedDocument {
                location: location.clone(),
                base,
                size: sidecar.size,
                digest: sidecar.digest,
                modified: sidecar.modified.map(|(seconds, nanos)| Timestamp { seconds, nanos }),
            },
            validators: sidecar.validators,
            settled: sidecar.settled,
        })
    }

    /// The same bytes by their server's word, which come from `base` now. Where it says when they were `written`, that holds from now on
    /// (RFC 9111, section 4.3.4), with the validator that it makes.
    pub(super) fn confirmed(
        &self,
        held: Held,
        base: &Uri,
        written: Option<(Timestamp, Option<Box<str>>)>,
    ) -> Result<Held, SourceError> {
        let location = &held.document.location;
        let key = key(location);
        let is_other_base = held.document.base.as_ref() != Some(base);
        let written = written.filter(|(modified, _)| Some(*modified) != held.document.modified);
        if !is_other_base && written.is_none() {
            return Ok(held);
        }
        let Some(mut sidecar) = self.sidecar(&key) else { return Ok(held) };
        if is_other_base {
            self.rebase(&mut sidecar, Some(base));
        }
        if let Some((modified, validator)) = written {
            sidecar.modified = Some((modified.seconds, modified.nanos));
            sidecar.validators.last_modified = validator;
        }
        self.write_sidecar(&key, &sidecar)?;
        Ok(self.held(location).unwrap_or(held))
    }

    /// Notes where the bytes of `sidecar` came from. From another folder than before they are another document, if references
    /// in them are relative to it.
    fn rebase(&self, sidecar: &mut Sidecar, base: Option<&Uri>) {
        fn folder(base: Option<&str>) -> &str {
            let path = base.and_then(|base| base.split(['?', '#']).next()).unwrap_or_default();
            path.rsplit_once('/').map_or("", |(folder, _)| folder)
        }
        let base = base.map(Uri::as_str);
        let before = std::mem::replace(&mut sidecar.base, base.map(str::to_owned));
        if folder(before.as_deref()) == folder(base) {
            return;
        }
        let is_relative = sidecar.is_relative.unwrap_or_else(|| self.holds_relative(&sidecar.content));
        sidecar.is_relative = Some(is_relative);
        if is_relative {
            let bytes = sidecar.bytes();
            sidecar.bytes = Some(bytes);
            sidecar.digest = xxh3_64(format!("{bytes:016x} {}", folder(base)).as_bytes());
            sidecar.settled = false;
        }
    }

    /// Whether references in this file are relative; so they may be where it cannot be read to its end.
    fn holds_relative(&self, content: &str) -> bool {
        let read = || {
            let limits = self.limits;
            let bytes = outermost_but_one(File::open(self.folder.join(content))?, limits.document)?;
            let mut reader = Reader::new(bytes, Uri::parse("http://base.invalid/").ok(), limits)?;
            while reader.next_entry()?.is_some() {}
            Ok::<_, DocumentError>(reader.deviations().count(Rule::UriRelative) > 0)
        };
        off_the_workers(read).unwrap_or(true)
    }

    /// A place for the bytes of a document of `location` that is arriving.
    pub(super) fn receive(&self, location: &DocumentLocation) -> Result<Arriving<'_>, SourceError> {
        let path = self.temporary();
        // It may have been removed below the mount.
        fs::create_dir_all(&self.folder).map_err(failed(&self.folder))?;
        let file = File::create(&path).map_err(failed(&path))?;
        Ok(Arriving {
            spool: self,
            location: location.clone(),
            file: BufWriter::with_capacity(BLOCK, file),
            path,
            size: 0,
            digest: Xxh3::new(),
            done: false,
        })
    }

    /// An empty file beside the documents, for so many bytes, that has no name: whatever ends this process ends it too.
    pub fn scratch(&self, bytes: u64) -> io::Result<File> {
        fs::create_dir_all(&self.folder)?;
        self.room.take(&self.folder, bytes, bytes)?;
        let path = self.temporary();
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        Ok(file)
    }

    /// The bytes of `document`, all but one compression undone, none of which unpacks to more than `limit`.
    fn bytes(&self, document: &CachedDocument, limit: u64) -> Result<Box<dyn BufRead + Send>, SourceError> {
        let key = key(&document.location);
        let content = self
            .sidecar(&key)
            .filter(|sidecar| sidecar.digest == document.digest)
            .map(|sidecar| self.folder.join(sidecar.content))
            .ok_or_else(|| SourceError::DocumentCache {
                path: self.folder.join(format!("{key}.json")),
                cause: io::Error::new(io::ErrorKind::NotFound, format!("{} is not spooled", document.location)),
            })?;
        let file = File::open(&content).map_err(failed(&content))?;
        outermost_but_one(file, limit).map_err(failed(&content))
    }

    /// Compresses the content of `sidecar`; the new file's name and length, `None` where it is compressed already.
    fn compress(&self, sidecar: &Sidecar) -> Result<Option<(String, u64)>, SourceError> {
        let path = self.folder.join(&sidecar.content);
        let mut file = BufReader::with_capacity(BLOCK, File::open(&path).map_err(failed(&path))?);
        if file.fill_buf().map_err(failed(&path))?.starts_with(&GZIP_MAGIC) {
            return Ok(None);
        }
        let temporary = self.temporary();
        let length = (|| {
            let mut encoder = GzEncoder::new(File::create(&temporary)?, Compression::fast());
            io::copy(&mut file, &mut encoder)?;
            encoder.finish()?.metadata().map(|metadata| metadata.len())
        })()
        .map_err(failed(&temporary));
        let length = match length {
            Ok(length) => length,
            Err(error) => {
                // The disk may be full: what was written of the copy must not stay in the way.
                let _ = fs::remove_file(&temporary);
                return Err(error);
            }
        };
        let name = format!("{}.gz", sidecar.content);
        let compressed = self.folder.join(&name);
        fs::rename(&temporary, &compressed).map_err(failed(&compressed))?;
        Ok(Some((name, length)))
    }

    /// The sidecar of `key`, if it can be read and its content is there in full.
    fn sidecar(&self, key: &str) -> Option<Sidecar> {
        let raw = fs::read(self.folder.join(format!("{key}.json"))).ok()?;
        let sidecar: Sidecar = serde_json::from_slice(&raw).ok()?;
        let content = fs::metadata(self.folder.join(&sidecar.content)).ok()?;
        (sidecar.content.starts_with(key) && content.len() == sidecar.content_length).then_some(sidecar)
    }

    fn write_sidecar(&self, key: &str, sidecar: &Sidecar) -> Result<(), SourceError> {
        let path = self.folder.join(format!("{key}.json"));
        let temporary = self.temporary();
        let json = serde_json::to_vec(sidecar).map_err(|cause| failed(&path)(cause.into()))?;
        fs::write(&temporary, json).map_err(failed(&temporary))?;
        fs::rename(&temporary, &path).map_err(failed(&path))
    }

    /// Removes every file of ours that does not belong to a document of `keys`.
    fn retain(&self, keys: &HashSet<String>) -> Result<(), SourceError> {
        for name in self.files()? {
            let key = name.split('.').next().unwrap_or_default();
            let belongs = keys.contains(key)
                && (name.strip_suffix(".json") == Some(key)
                    || self.sidecar(key).is_some_and(|sidecar| sidecar.content == name));
            if !belongs {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// The names of our files in the folder; whatever else lies there is left alone.
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

    fn temporary(&self) -> PathBuf {
        self.folder.join(format!("{}.tmp", self.next_temporary.fetch_add(1, Ordering::Relaxed)))
    }
}

/// A document while its bytes arrive; dropped before [`Arriving::complete`], it was never there.
pub(super) struct Arriving<'a> {
    spool: &'a DocumentCache,
    location: DocumentLocation,
    file: BufWriter<File>,
    path: PathBuf,
    size: u64,
    digest: Xxh3,
    done: bool,
}

impl Arriving<'_> {
    /// Adds the next bytes, where there is room for them, or there is soon. Blocks on that and on the disk.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        let (room, count) = (&self.spool.room, bytes.len() as u64);
        room.take(&self.spool.folder, count, 0).map_err(|Short { free, floor, .. }| SourceError::NoRoom {
            location: self.location.clone(),
            folder: self.spool.folder.clone(),
            size: self.size,
            free,
            floor,
        })?;
        self.file.write_all(bytes).map_err(failed(&self.path))?;
        self.digest.update(bytes);
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Makes the bytes the document of its location. Whether they are those it had before is told by the digest. Blocks on the disk.
    pub fn complete(
        mut self,
        base: Option<Uri>,
        modified: Option<Timestamp>,
        validators: Validators,
    ) -> Result<Held, SourceError> {
        self.file.flush().map_err(failed(&self.path))?;
        let location = self.location.clone();
        let (spool, key, digest) = (self.spool, key(&location), self.digest.digest());
        let before = spool.sidecar(&key);
        let is_same = |before: &Sidecar| before.bytes() == digest && before.size == self.size;
        let (mut sidecar, before) = match before {
            // Its content is kept: it may be compressed already.
            Some(before) if is_same(&before) => (before, None),
            before => {
                let content = format!("{key}.{digest:016x}");
                let path = spool.folder.join(&content);
                fs::rename(&self.path, &path).map_err(failed(&path))?;
                self.done = true;
                let sidecar = Sidecar {
                    location: location.to_string(),
                    base: base.as_ref().map(|base| base.as_str().to_owned()),
                    validators: Validators::default(),
                    modified: None,
                    size: self.size,
                    digest,
                    content,
                    content_length: self.size,
                    settled: false,
                    bytes: None,
                    is_relative: None,
                };
                (sidecar, before)
            }
        };
        sidecar.validators = validators.clone();
        sidecar.modified = modified.map(|time| (time.seconds, time.nanos));
        spool.rebase(&mut sidecar, base.as_ref());
        spool.write_sidecar(&key, &sidecar)?;
        if let Some(before) = before.filter(|before| before.content != sidecar.content) {
            spool.remove(&before.content)?;
        }
        let Sidecar { size, digest, settled, .. } = sidecar;
        let document = CachedDocument { location, base, size, digest, modified };
        Ok(Held { document, validators, settled })
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        if !self.done {
            // What cannot be removed now is removed when the spool is opened.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// `file` from its start, with compressions undone as long as what they hold is compressed again: the last one is
/// left to the reader of the document, which bounds what it expands to; each of the others expands to `limit` bytes at most.
pub(super) fn outermost_but_one<'a, R: Read + Seek + Send + 'a>(
    mut file: R,
    limit: u64,
) -> io::Result<Box<dyn BufRead + Send + 'a>> {
    let mut layers: usize = 0;
    while layers < COMPRESSIONS {
        file.rewind()?;
        let mut bytes = peeled(&mut file, layers + 1, limit);
        let mut magic = [0; 2];
        // What is no gzip at all fails here as well; the reader of the document says then what is wrong with it.
        if bytes.read_exact(&mut magic).is_err() || magic != GZIP_MAGIC {
            break;
        }
        drop(bytes);
        layers += 1;
    }
    file.rewind()?;
    Ok(peeled(file, layers, limit))
}

/// `bytes` with so many compressions undone, each up to `limit` bytes.
fn peeled<'a, R: Read + Send + 'a>(bytes: R, layers: usize, limit: u64) -> Box<dyn BufRead + Send + 'a> {
    let mut bytes: Box<dyn BufRead + Send + 'a> = Box::new(BufReader::with_capacity(BLOCK, bytes));
    for _ in 0..layers {
        bytes = Box::new(BufReader::with_capacity(BLOCK, Gunzip::new(bytes, limit)));
    }
    bytes
}

/// What a location's files are named by. URIs and paths cannot be taken for each other.
fn key(location: &DocumentLocation) -> String {
    let hash = match location {
        DocumentLocation::Uri(uri) => xxh3_128(format!("uri {uri}").as_bytes()),
        DocumentLocation::File(path) => xxh3_128(&[b"file ", path.as_os_str().as_bytes()].concat()),
    };
    format!("{hash:032x}")
}

/// Whether a file name is one of those in the module's picture.
fn is_ours(name: &str) -> bool {
    match name.split_once('.') {
        Some((number, "tmp")) => number.bytes().all(|byte| byte.is_ascii_digit()),
        Some((key, _)) => key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => false,
    }
}

/// An operating system's answer about `path` as our error.
fn failed(path: &Path) -> impl FnOnce(io::Error) -> SourceError {
    let path = path.to_owned();
    move |cause| SourceError::DocumentCache { path, cause }
}
