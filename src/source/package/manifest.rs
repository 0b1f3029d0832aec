//! A package's own manifest, `manifest.xml` at its top (sections 11.1.1 and 13.1.1), on this machine's disk.

use super::decoder::Decoder;
use super::directory::{Directory, Found, Record};
use super::kept::{failed, key, remove};
use super::octets::Octets;
use super::path::{Excess, plain};
use super::{PackageError, Packages};
use crate::document::{Capability, Entry, Header, Limits, PackageMember, Reader, Uri};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use xxhash_rust::xxh3::xxh3_64;

/// Name of the member.
const NAME: &str = "manifest.xml";

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
}

impl Manifest {
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
        match self.header.capability {
            Some(Capability::ResourceDumpManifest | Capability::ResourceDump) => Some(Capability::ResourceDumpManifest),
            Some(Capability::ChangeDumpManifest | Capability::ChangeDump) => Some(Capability::ChangeDumpManifest),
            _ => None,
        }
    }

    /// Its entries, from the first.
    ///
    /// # Errors
    /// [`PackageError::Manifest`], [`PackageError::Folder`]
    pub fn reader(&self) -> Result<Reader<Box<dyn BufRead + Send>>, PackageError> {
        let file = File::open(&self.path).map_err(failed(&self.path))?;
        let octets: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(128 << 10, file));
        Reader::new(octets, Some(self.base.clone()), self.limits)
            .map_err(|cause| PackageError::Manifest { package: self.package.clone(), cause: Arc::new(cause) })
    }

    /// Where the bytes of an entry lie; `None` where it has no `path`, as a deletion.
    pub fn member(&self, entry: &Entry) -> Option<PackageMember> {
        entry.path.as_ref().map(|path| PackageMember { package: self.package.clone(), path: path.clone() })
    }
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
        let path = manifest_file(&self.shared.config.folder, directory, &record);
        if !std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() == record.length) {
            self.unpack(directory, number, &path).await?;
        }
        let base = directory.version.final_uri.clone();
        let header = Header {
            root: crate::document::Root::UrlSet,
            capability: None,
            at: None,
            completed: None,
            from: None,
            until: None,
            links: Vec::new(),
        };
        let mut manifest = Manifest { package: package.clone(), base, path: path.into(), header, limits };
        manifest.header = manifest.reader()?.header().clone();
        Ok(manifest)
    }

    /// Puts a member at `path`, whole or not at all.
    async fn unpack(&self, directory: &Directory, number: u32, path: &Path) -> Result<(), PackageError> {
        let package = directory.package();
        let Some(record) = directory.record(number).copied() else {
            return Err(PackageError::NoManifest { package: package.clone() });
        };
        let extent = directory.extent(number);
        let (client, place) = (&self.shared.client, directory.place.clone());
        let mut octets = Octets::new(client, package, &directory.version, place, extent.start, extent.end);
        let mut decoder = Decoder::begin(directory, record, NAME, &mut octets).await?;
        let temporary = tempfile::Builder::new()
            .suffix(".tmp")
            .tempfile_in(&self.shared.config.folder)
            .map_err(failed(&self.shared.config.folder))?;
        let (file, temporary) = temporary.into_parts();
        let mut file = tokio::fs::File::from_std(file);
        while let Some(chunk) = decoder.chunk(directory, &mut octets).await? {
            file.write_all(&chunk).await.map_err(failed(&temporary))?;
        }
        file.flush().await.map_err(failed(&temporary))?;
        temporary.persist(path).map_err(|error| failed(path)(error.error))
    }

    /// Finds out what the paths of the manifest have in excess of the members' names, once.
    pub(super) async fn learn_excess(&self, directory: &Arc<Directory>) {
        if directory.excess.get().is_some() {
            return;
        }
        let manifest = match self.manifest_of(directory).await {
            Ok(manifest) => manifest,
            Err(error) => {
                if !error.is_retryable() {
                    // Whoever was first found the same.
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
        if let Ok(Ok(segments)) = learning.await {
            // As above.
            let _ = directory.excess.set(segments);
        }
    }
}

/// Where the manifest of this version is kept, which is this record of its directory.
fn manifest_file(folder: &Path, directory: &Directory, record: &Record) -> PathBuf {
    let version = format!("{:?} {:08x} {}", directory.version, record.crc, record.length);
    folder.join(format!("{}.{:016x}.manifest", key(directory.package()), xxh3_64(version.as_bytes())))
}

/// Removes the manifest of a version that is about to be forgotten.
pub(super) fn remove_manifest(folder: &Path, directory: &Directory) {
    if let Found::Member(number) = directory.find(NAME)
        && let Some(record) = directory.record(number)
    {
        remove(&manifest_file(folder, directory, record));
    }
}
