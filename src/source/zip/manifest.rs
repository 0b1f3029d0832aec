//! A package's own manifest, `manifest.xml` at its top (sections 11.1.1 and 13.1.1), on this machine's disk.

use super::decoder::Decoder;
use super::directory::{Directory, Found, Version};
use super::kept::{failed, key, remove};
use super::package_bytes::PackageBytes;
use super::path::{Excess, plain};
use super::{PackageError, Packages};
use crate::document::{Capability, DocumentError, Entry, Header, Limits, PackageMember, Reader, Uri};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use xxhash_rust::xxh3::xxh3_64;

/// Name of the member.
pub(super) const NAME: &str = "manifest.xml";

/// The manifest of one version of a package.
#[derive(Clone, Debug)]
pub struct Manifest {
    package: Uri,
    /// Where the package came from: the base of relative references.
    base: Uri,
    /// Opened by each reader: a dump may have more packages than a process may have open files.
    path: Arc<Path>,
    header: Header,
    limits: Limits,
    fingerprint: u64,
}

impl Manifest {
    /// The manifest that lies at `path`.
    pub(super) fn open(
        package: Uri,
        base: Uri,
        path: Arc<Path>,
        fingerprint: u64,
        limits: Limits,
    ) -> Result<Manifest, PackageError> {
        let header = read(&package, &path, &base, limits)?.header().clone();
        Ok(Manifest { package, base, path, header, limits, fingerprint })
    }

    /// Two of one package that have the same say the same.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// The package that it lies in.
    pub fn package(&self) -> &Uri {
        &self.package
    }

    /// What stands before its first entry.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// [`Capability::ResourceDumpManifest`] or [`Capability::ChangeDumpManifest`], also where the publisher wrote the dump's
    /// own capability; `None` where it says neither.
    pub fn capability(&self) -> Option<Capability> {
        capability(&self.header)
    }

    /// Its entries, from the first.
    ///
    /// # Errors
    /// [`PackageError::Manifest`], [`PackageError::Folder`]
    pub fn reader(&self) -> Result<Reader<Box<dyn BufRead + Send>>, PackageError> {
        read(&self.package, &self.path, &self.base, self.limits)
    }

    /// Where the bytes of an entry lie; `None` where it has no `path`, as a deletion.
    pub fn member(&self, entry: &Entry) -> Option<PackageMember> {
        entry.path.as_ref().map(|path| PackageMember { package: self.package.clone(), path: path.clone() })
    }
}

/// See [`Manifest::capability`].
pub(super) fn capability(header: &Header) -> Option<Capability> {
    match header.capability {
        Some(Capability::ResourceDumpManifest | Capability::ResourceDump) => Some(Capability::ResourceDumpManifest),
        Some(Capability::ChangeDumpManifest | Capability::ChangeDump) => Some(Capability::ChangeDumpManifest),
        _ => None,
    }
}

/// [`Manifest::fingerprint`] of these bytes, whose relative references are relative to `base`.
pub(super) fn fingerprint(crc: u32, length: u64, base: &Uri) -> u64 {
    let folder = base.as_str().rsplit_once('/').map_or("", |(folder, _)| folder);
    xxh3_64(format!("{crc:08x} {length} {folder}").as_bytes())
}

fn read(
    package: &Uri,
    path: &Path,
    base: &Uri,
    limits: Limits,
) -> Result<Reader<Box<dyn BufRead + Send>>, PackageError> {
    let file = File::open(path).map_err(failed(path))?;
    let bytes: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(128 << 10, file));
    let failed = |cause| PackageError::Manifest { package: package.clone(), cause: Arc::new(cause) };
    let reader = Reader::new(bytes, Some(base.clone()), limits).map_err(failed)?;
    if reader.header().root.is_feed_or_text() {
        return Err(failed(DocumentError::FEED_OR_TEXT));
    }
    Ok(reader)
}

impl Packages {
    /// The manifest of the version that the server has now. The one inside the package counts, whatever copy of it is
    /// published beside it.
    ///
    /// # Errors
    /// [`PackageError::NoManifest`], [`PackageError::Manifest`], any error of the package.
    pub async fn manifest(&self, package: &Uri) -> Result<Manifest, PackageError> {
        let mut directory = self.current(package).await?;
        for _ in 0..2 {
            match self.manifest_of(&directory).await {
                Err(PackageError::Changed { .. }) => {
                    self.forget(&directory);
                    directory = self.directory(package).await?;
                }
                manifest => return manifest,
            }
        }
        self.manifest_of(&directory).await
    }

    /// The manifest of one version, from the folder or out of the package.
    pub(super) async fn manifest_of(&self, directory: &Directory) -> Result<Manifest, PackageError> {
        let package = directory.package();
        let Found::Member(number) = directory.find(NAME) else {
            return Err(PackageError::NoManifest { package: package.clone() });
        };
        let Some(record) = directory.record(number).copied() else {
            return Err(PackageError::NoManifest { package: package.clone() });
        };
        let limits = self.shared.config.documents;
        if record.length > limits.document {
            let what = "its manifest.xml";
            return Err(PackageError::TooLarge { package: package.clone(), what, limit: limits.document });
        }
        let path = manifest_file(&self.shared.config.folder, package, &directory.version, (record.crc, record.length));
        if !std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() == record.length) {
            self.unpack(directory, number, &path).await?;
        }
        let base = directory.version.final_uri.clone();
        let fingerprint = fingerprint(record.crc, record.length, &base);
        Manifest::open(package.clone(), base, path.into(), fingerprint, limits)
    }

    /// Puts a member at `path`, whole or not at all.
    async fn unpack(&self, directory: &Directory, number: u32, path: &Path) -> Result<(), PackageError> {
        let package = directory.package();
        let Some(record) = directory.record(number).copied() else {
            return Err(PackageError::NoManifest { package: package.clone() });
        };
        let extent = directory.extent(number);
        let (client, place) = (&self.shared.client, directory.place.clone());
        let mut bytes = PackageBytes::new(client, package, &directory.version, place, extent.start, extent.end);
        let mut decoder = Decoder::begin(directory, record, NAME, &mut bytes).await?;
        let temporary = tempfile::Builder::new()
            .suffix(".tmp")
            .tempfile_in(&self.shared.config.folder)
            .map_err(failed(&self.shared.config.folder))?;
        let (file, temporary) = temporary.into_parts();
        let mut file = tokio::fs::File::from_std(file);
        while let Some(chunk) = decoder.chunk(directory, &mut bytes).await? {
            file.write_all(&chunk).await.map_err(failed(&temporary))?;
        }
        file.flush().await.map_err(failed(&temporary))?;
        temporary.persist(path).map_err(|error| failed(path)(error.error))
    }

    /// Finds out what the paths of the manifest have in excess of the members' names, once.
    pub(super) async fn learn_excess(&self, directory: &Arc<Directory>) {
        // Whoever comes while somebody reads the manifest waits for what he finds.
        let _learning = directory.learning.lock().await;
        if directory.excess.get().is_some() {
            return;
        }
        let manifest = match self.manifest_of(directory).await {
            Ok(manifest) => manifest,
            Err(error) => {
                if !error.is_retryable() {
                    // Nobody else has set it.
                    let _ = directory.excess.set(None);
                }
                return;
            }
        };
        let own = Arc::clone(directory);
        let learning = tokio::task::spawn_blocking(move || {
            let mut excess = Excess::default();
            let mut reader = manifest.reader()?;
            let broken = |cause| PackageError::Manifest { package: own.package().clone(), cause: Arc::new(cause) };
            while let Some(entry) = reader.next_entry().map_err(broken)? {
                if let Some(path) = &entry.path {
                    excess.add(&plain(path), |name| own.spelt(name) != Found::Nothing);
                }
            }
            Ok::<_, PackageError>(excess.segments())
        });
        let learnt = match learning.await {
            Ok(Ok(segments)) => segments,
            Ok(Err(error)) if !error.is_retryable() => None,
            Ok(Err(_)) | Err(_) => return,
        };
        // As above.
        let _ = directory.excess.set(learnt);
    }
}

/// Where the manifest of this version, of this CRC-32 and length, is kept.
pub(super) fn manifest_file(folder: &Path, package: &Uri, version: &Version, (crc, length): (u32, u64)) -> PathBuf {
    let version = format!("{version:?} {crc:08x} {length}");
    folder.join(format!("{}.{:016x}.manifest", key(package), xxh3_64(version.as_bytes())))
}

/// Removes the manifest of a version that is about to be forgotten.
pub(super) fn remove_manifest(folder: &Path, directory: &Directory) {
    if let Found::Member(number) = directory.find(NAME)
        && let Some(record) = directory.record(number)
    {
        let of = (record.crc, record.length);
        remove(&manifest_file(folder, directory.package(), &directory.version, of));
    }
}
