//! A package's own manifest, `manifest.xml` at its top (sections 11.1.1 and 13.1.1), on this machine's disk.

use super::directory::{Directory, FoundMember};
use super::folder::{Unnamed, failed, key, remove};
use super::member::Member;
use super::path::{folder_before_member, plain};
use super::remote::{PackageServer, PackageVersion, Received};
use super::{PackageError, Packages};
use crate::document::{Capability, DocumentError, Entry, Header, Limits, PackageMember, Reader, Uri};
use crate::source::http::Priority;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Handle;
use xxhash_rust::xxh3::xxh3_64;

/// Name of the member.
pub(super) const NAME: &str = "manifest.xml";

/// The manifest of one version of a package.
#[derive(Clone, Debug)]
pub struct Manifest {
    package: Uri,
    /// Address of the package: the base of relative references.
    base: Uri,
    /// Opened by each reader: a dump may have more packages than a process may have open files.
    path: Arc<Path>,
    header: Header,
    limits: Limits,
    sum: Sum,
    fingerprint: u64,
}

impl Manifest {
    /// The manifest at `path`.
    pub(super) fn open(
        package: Uri,
        base: Uri,
        path: Arc<Path>,
        sum: Sum,
        limits: Limits,
    ) -> Result<Manifest, PackageError> {
        let header = read(&package, &path, &base, limits)?.header().clone();
        let folder = base.as_str().rsplit_once('/').map_or("", |(folder, _)| folder);
        let fingerprint = xxh3_64(format!("{:08x} {} {folder}", sum.crc, sum.length).as_bytes());
        Ok(Manifest { package, base, path, header, limits, sum, fingerprint })
    }

    /// Two of one package that have the same say the same.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn base(&self) -> &Uri {
        &self.base
    }

    pub(super) fn sum(&self) -> Sum {
        self.sum
    }

    /// Reads it to its end; true if it lists something.
    pub(super) fn is_sound(&self) -> Result<bool, PackageError> {
        let (mut reader, mut lists) = (self.reader()?, false);
        while reader.next_entry().map_err(|cause| broken(&self.package, cause))?.is_some() {
            lists = true;
        }
        Ok(lists)
    }

    /// Its package.
    pub fn package(&self) -> &Uri {
        &self.package
    }

    /// Header before its first entry.
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
        read(&self.package, &self.path, &self.base, self.limits)
    }

    /// Member with the bytes of an entry; `None` where it has no `path`, as a deletion.
    pub fn member(&self, entry: &Entry) -> Option<PackageMember> {
        entry.path.as_ref().map(|path| PackageMember { package: self.package.clone(), path: path.clone() })
    }
}

fn read(
    package: &Uri,
    path: &Path,
    base: &Uri,
    limits: Limits,
) -> Result<Reader<Box<dyn BufRead + Send>>, PackageError> {
    let file = File::open(path).map_err(failed(path))?;
    let bytes: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(128 << 10, file));
    let reader = Reader::new(bytes, Some(base.clone()), limits).map_err(|cause| broken(package, cause))?;
    if reader.header().root.is_feed_or_text() {
        return Err(broken(package, DocumentError::FEED_OR_TEXT));
    }
    Ok(reader)
}

impl Packages {
    /// The manifest of the version that the server has now. The one inside the package counts, not a
    /// published copy of it.
    ///
    /// # Errors
    /// [`PackageError::NoManifest`], [`PackageError::Manifest`], any error of the package.
    pub async fn manifest(&self, package: &Uri) -> Result<Manifest, PackageError> {
        let mut directory = self.current(package).await?;
        let received = Received::default();
        for _ in 0..2 {
            match self.manifest_of(&directory, &received).await {
                Err(PackageError::Changed { .. }) => {
                    self.forget(&directory);
                    directory = self.directory(package).await?;
                }
                manifest => return manifest,
            }
        }
        self.manifest_of(&directory, &received).await
    }

    /// The manifest of one version, from the folder or out of the package; its bytes are counted as `received`. It comes once for all that wait for
    /// it, and goes on where this is dropped.
    pub(super) async fn manifest_of(
        &self,
        directory: &Arc<Directory>,
        received: &Received,
    ) -> Result<Manifest, PackageError> {
        let (package, limits) = (directory.package().clone(), self.shared.config.documents);
        let Some((number, inside)) = inside(directory) else { return Err(PackageError::NoManifest { package }) };
        if inside.length > limits.document {
            return Err(PackageError::too_large(&package, "its manifest.xml", limits.document));
        }
        let path = manifest_file(&self.shared.config.folder, &package, &directory.version, inside);
        if !std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() == inside.length) {
            let (counter, unpacking) = self.shared.unpacking.join(&Handle::current(), path.clone(), || {
                let (packages, own, path, remote) =
                    (self.clone(), Arc::clone(directory), path.clone(), self.remote(&package));
                (Arc::clone(&remote.received), async move { packages.unpack(remote, &own, number, &path).await })
            });
            received.add(&counter);
            let broken = || Err(PackageError::damaged(&package, "reading its manifest failed"));
            unpacking.await.unwrap_or_else(broken)?;
        }
        let base = directory.version.base(&package);
        Manifest::open(package, base, path.into(), inside, limits)
    }

    /// Puts the manifest at `path`, whole or not at all.
    async fn unpack(
        &self,
        remote: PackageServer,
        directory: &Arc<Directory>,
        number: u32,
        path: &Path,
    ) -> Result<(), PackageError> {
        let place = directory.place.clone();
        let mut member = Member::begin(remote, directory, (number, NAME), place, Priority::default()).await?;
        let mut file = Unnamed::new(&self.shared.config.folder)?;
        while let Some(chunk) = member.chunk().await? {
            file.write(&chunk)?;
        }
        file.name(path)
    }

    /// Finds the folder on the publisher's disk that the paths of the manifest begin with, once for all that wait for it. Each of them counts the bytes
    /// of the manifest as `received`.
    pub(super) async fn learn_folder(&self, directory: &Arc<Directory>, received: &Received) {
        if directory.folder.initialized() {
            return;
        }
        let manifest = match self.stand_in_of(directory.package()) {
            // Its paths are those that were stated.
            Some(stand_in) => self.opened_stand_in(directory.package(), &stand_in),
            None => self.manifest_of(directory, received).await,
        };
        let learning = directory.folder.get_or_try_init(async || match folder_in(manifest, directory).await {
            Err(error) if !error.is_retryable() => Ok(None),
            learnt => learnt,
        });
        if let Err(error) = learning.await {
            tracing::debug!(package = %directory.package(), %error, "the paths of a manifest are not understood for now");
        }
    }
}

async fn folder_in(
    manifest: Result<Manifest, PackageError>,
    directory: &Arc<Directory>,
) -> Result<Option<Box<str>>, PackageError> {
    let (manifest, own) = (manifest?, Arc::clone(directory));
    let path = Arc::clone(&manifest.path);
    let broken = |cause| failed(&path)(std::io::Error::other(cause));
    tokio::task::spawn_blocking(move || folder_of(&manifest, &own)).await.map_err(broken)?
}

/// The folder on the publisher's own disk that all paths of a manifest begin with, where they do: the first path that leads to
/// a member behind one decides.
pub(super) fn folder_of(manifest: &Manifest, directory: &Directory) -> Result<Option<Box<str>>, PackageError> {
    let (mut folder, mut reader) = (None::<Box<str>>, manifest.reader()?);
    while let Some(entry) = reader.next_entry().map_err(|cause| broken(&manifest.package, cause))? {
        let Some(path) = entry.path.as_deref().map(plain) else { continue };
        match &folder {
            Some(folder) if !path.starts_with(&**folder) => return Ok(None),
            Some(_) => {}
            None => {
                folder =
                    folder_before_member(&path, |name| directory.spelt(name) != FoundMember::Nothing).map(Box::from)
            }
        }
        if folder.as_deref() == Some("") {
            return Ok(None);
        }
    }
    Ok(folder)
}

/// CRC-32 and length of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sum {
    pub crc: u32,
    pub length: u64,
}

/// Number, CRC-32 and length of the member that is the manifest.
pub(super) fn inside(directory: &Directory) -> Option<(u32, Sum)> {
    let FoundMember::Member(number) = directory.find(NAME) else { return None };
    let record = directory.record(number)?;
    Some((number, Sum { crc: record.crc, length: record.length }))
}

fn broken(package: &Uri, cause: DocumentError) -> PackageError {
    PackageError::Manifest { package: package.clone(), cause: Arc::new(cause) }
}

/// The file with the manifest of this version.
fn manifest_file(folder: &Path, package: &Uri, version: &PackageVersion, sum: Sum) -> PathBuf {
    let version = xxh3_64(format!("{version:?} {sum:?}").as_bytes());
    folder.join(format!("{}.{version:016x}.manifest", key(package)))
}

/// Removes the manifest of a version that is about to be forgotten.
pub(super) fn remove_manifest(folder: &Path, directory: &Directory) {
    if let Some((_, sum)) = inside(directory) {
        remove(&manifest_file(folder, directory.package(), &directory.version, sum));
    }
}
