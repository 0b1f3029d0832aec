//! The folder with what outlives a process: manifests and local copies. A directory is read again by each process.
//!
//! ```text
//! FOLDER/KEY.VERSION.manifest   the manifest.xml of a version; KEY is the XXH3-128 of the package's URI
//! FOLDER/KEY.whole              a local copy, and KEY.json, which version it is
//! FOLDER/KEY.copy               the manifest that stands in for a package that is not here (`preview`), and
//! FOLDER/KEY.preview            what is known of it
//! FOLDER/KEY.reading            the last reading of a package next to lists (`reading`)
//! FOLDER/*.tmp                  being written
//! ```
//!
//! Every file is complete when it gets its name. Nothing is synced: damage after a power cut is found by CRC or
//! length, or by the CRC-32 of a member, and the bytes are fetched again.

use super::PackageError;
use super::remote::PackageVersion;
use crate::document::Uri;
use crate::platform::scheduling::off_the_workers;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// Bytes read from a file at once.
const BLOCK: u64 = 128 << 10;

/// A file of the folder with bytes of a package; its bytes never change, but more may be appended.
pub(super) type Local = (Arc<fs::File>, Arc<PathBuf>);

/// Which version of which package a file belongs to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Description {
    /// The file's name has only its hash.
    pub package: String,
    pub version: PackageVersion,
}

/// Key in the names of one package's files.
pub(super) fn key(package: &Uri) -> String {
    format!("{:032x}", xxh3_128(package.as_str().as_bytes()))
}

/// A file of a package.
pub(super) fn file(folder: &Path, package: &Uri, kind: &str) -> PathBuf {
    folder.join(format!("{}.{kind}", key(package)))
}

/// Which version the local copy of `package` is.
pub(super) fn described(folder: &Path, package: &Uri) -> Option<PackageVersion> {
    let description: Description = serde_json::from_slice(&fs::read(file(folder, package, "json")).ok()?).ok()?;
    (description.package == package.as_str()).then_some(description.version)
}

/// Writes down which version the local copy of `package` is.
pub(super) fn describe(folder: &Path, package: &Uri, version: &PackageVersion) -> Result<(), PackageError> {
    let description = Description { package: package.to_string(), version: version.clone() };
    replace_json(folder, &file(folder, package, "json"), &description)
}

/// Puts a value at `path` as JSON, whole or not at all.
pub(super) fn replace_json(folder: &Path, path: &Path, value: &impl Serialize) -> Result<(), PackageError> {
    let bytes = serde_json::to_vec(value).map_err(|error| failed(path)(error.into()))?;
    replace(folder, path, &bytes)
}

/// Puts `bytes` at `path`, whole or not at all.
pub(super) fn replace(folder: &Path, path: &Path, bytes: &[u8]) -> Result<(), PackageError> {
    let mut file = Unnamed::new(folder)?;
    file.write(bytes)?;
    file.name(path)
}

/// A file that disappears unless it gets a name.
pub(super) struct Unnamed(tempfile::NamedTempFile);

impl Unnamed {
    pub fn new(folder: &Path) -> Result<Unnamed, PackageError> {
        tempfile::Builder::new().suffix(".tmp").tempfile_in(folder).map(Unnamed).map_err(failed(folder))
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), PackageError> {
        off_the_workers(|| self.0.write_all(bytes)).map_err(failed(self.0.path()))
    }

    /// To be read while bytes are appended.
    pub fn local(&self) -> Result<Local, PackageError> {
        let path = self.0.path();
        Ok((Arc::new(self.0.as_file().try_clone().map_err(failed(path))?), Arc::new(path.to_owned())))
    }

    pub fn name(self, path: &Path) -> Result<(), PackageError> {
        self.0.persist(path).map(drop).map_err(|error| failed(path)(error.error))
    }
}

/// At least one byte from `position` on, at most `most`, where the file has them.
pub(super) async fn read_at((file, path): &Local, position: u64, most: u64) -> Result<Bytes, PackageError> {
    let (file, mut block) = (Arc::clone(file), vec![0; most.min(BLOCK) as usize]);
    let read = tokio::task::spawn_blocking(move || file.read_exact_at(&mut block, position).map(|()| block)).await;
    read.map_err(io::Error::other).and_then(|read| read).map(Bytes::from).map_err(failed(path))
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

/// Removes the files that `is_wanted` rejects by their name and its part before the first dot.
pub(super) fn sweep(folder: &Path, is_wanted: impl Fn(&str, &str) -> bool) -> Result<(), PackageError> {
    for path in files(folder)? {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !is_wanted(name, name.split('.').next().unwrap_or_default()) {
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

/// The operating system's error about `path` as ours.
pub(super) fn failed(path: &Path) -> impl FnOnce(io::Error) -> PackageError {
    let path = path.to_owned();
    move |cause| PackageError::Folder { path, cause: Arc::new(cause) }
}
