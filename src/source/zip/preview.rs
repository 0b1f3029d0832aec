//! Copies of manifests beside packages (`contents`, sections 11.1 and 13.1): previews, where nothing better is cheap.
//!
//! A package that can be read in place gives its own manifest for two requests, and that one is taken. Where the server tells
//! of no ranges, or has no strong ETag, the copy stands in for it until a member is read and the package is here: then the
//! manifest inside wins. For each package with a copy it is remembered what was last stated of it, the copy or the manifest
//! inside. When a package is opened the two are compared; where they say different things the package is *contradicted*:
//!
//! - what was stated is to be read again ([`Packages::contradiction_found`]), and then the manifest inside is given;
//! - until that has been taken over ([`Packages::corrected`]) no member may stand for a version that no digest vouches for.
//!
//! Paths alone may differ, where they lead to the same members: a copy often has those of the publisher's own disk.

use super::directory::{Directory, Found, Version};
use super::kept::{self, Description, failed};
use super::manifest::{NAME, fingerprint, manifest_file};
use super::path::{Excess, is_plausible, plain};
use super::{Manifest, PackageError, Packages, Piece, remote};
use crate::causes::chain;
use crate::document::{Capability, Entry, Limits, Reader, Uri};
use crate::source::http::{Body, Request, Status};
use crate::source::off_the_workers;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The head of a response is due within this, repetitions included.
const HEAD_DUE: Duration = Duration::from_secs(60);

/// A package as a dump lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The package.
    pub package: Uri,
    /// Where a copy of its manifest is.
    pub copy: Option<Uri>,
    /// What its manifest is: [`Capability::ResourceDumpManifest`] or [`Capability::ChangeDumpManifest`].
    pub capability: Capability,
}

impl Listed {
    /// The package that an entry of a dump lists.
    pub fn of(entry: &Entry, capability: Capability) -> Listed {
        let copy = entry.links.iter().filter(|link| &*link.rel == "contents").find_map(|link| link.uri()).cloned();
        Listed { package: entry.loc.clone(), copy, capability }
    }
}

/// What is remembered of packages that have a copy.
pub(super) type Previews = HashMap<Uri, Preview>;

/// What was last stated of a package that has a copy; lies in the folder as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Preview {
    /// The version that the server told of when the copy was taken, else that of which the manifest was read.
    package: Description,
    /// Where the copy came from, and its validators.
    copy: Description,
    /// [`Manifest::fingerprint`] of what was stated.
    stated: u64,
    /// Whether that was the copy.
    is_copy: bool,
    /// The manifest inside, of `package`'s version: CRC-32 and bytes. It is kept although the package may be evicted.
    inside: Option<(u32, u64)>,
    /// Whether what was stated is not what the package says.
    pub is_contradicted: bool,
}

impl Preview {
    /// PackageBytes of the package.
    pub fn bytes(&self) -> u64 {
        self.package.length
    }
}

/// The previews that earlier processes have left.
pub(super) fn left(folder: &Path) -> Result<Previews, PackageError> {
    let mut previews = Previews::new();
    for path in kept::files(folder)?.iter().filter(|path| path.extension().is_some_and(|kind| kind == "preview")) {
        let preview = fs::read(path).ok().and_then(|bytes| serde_json::from_slice::<Preview>(&bytes).ok());
        let package = preview.as_ref().and_then(|preview| Uri::parse(&preview.package.package).ok());
        match package.zip(preview) {
            Some((package, preview)) => previews.insert(package, preview).map_or((), drop),
            None => kept::remove(path),
        }
    }
    Ok(previews)
}

impl Packages {
    /// What a listed package holds: its own manifest where that is here or can be read in place, else the published copy of
    /// it, else its own by way of the whole package. A copy that cannot be had, is no manifest of the right kind or leads to
    /// no plausible members is as none.
    ///
    /// # Errors
    /// See [`Packages::manifest`].
    pub async fn stated(&self, listed: &Listed) -> Result<Manifest, PackageError> {
        let package = &listed.package;
        if let Some(copy) = listed.copy.as_ref().filter(|_| !self.has_ranges(package)) {
            let preview = {
                let _turn = self.turn(package, Piece::Copy).await;
                self.previewed(listed, copy).await?
            };
            if let Some(manifest) = preview {
                return Ok(manifest);
            }
        }
        let manifest = self.manifest(package).await?;
        self.note_stated(&manifest);
        Ok(manifest)
    }

    /// Whether what was last stated of this package is not what it says itself, and that has not been taken over.
    pub fn is_contradicted(&self, package: &Uri) -> bool {
        self.previews().get(package).is_some_and(|preview| preview.is_contradicted)
    }

    /// All of those.
    pub fn contradicted(&self) -> HashSet<Uri> {
        let previews = self.previews();
        let contradicted = previews.iter().filter(|(_, preview)| preview.is_contradicted);
        contradicted.map(|(package, _)| package.clone()).collect()
    }

    /// Ends when a package turns out to say other things than what was stated of it; for one waiter.
    pub async fn contradiction_found(&self) {
        self.shared.contradiction.notified().await;
    }

    /// What these packages say themselves has been taken over.
    pub fn corrected(&self, packages: &HashSet<Uri>) {
        for package in packages {
            let corrected = self.previews().get_mut(package).map(|preview| {
                preview.is_contradicted = false;
                preview.clone()
            });
            corrected.iter().for_each(|preview| self.keep_preview(package, preview));
        }
    }

    /// PackageBytes of a package of which only the copy of its manifest is here.
    pub(super) fn bytes_of_preview(&self, package: &Uri) -> Option<u64> {
        self.previews().get(package).map(Preview::bytes)
    }

    /// Forgets the previews of packages that are not among these.
    pub(super) fn retain_previews(&self, packages: &HashSet<&Uri>) {
        self.previews().retain(|package, _| packages.contains(package));
    }

    fn previews(&self) -> std::sync::MutexGuard<'_, Previews> {
        self.shared.previews.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The manifest of a package that is not to be fetched for it; `None` where its own is the cheaper, or the only one.
    async fn previewed(&self, listed: &Listed, copy: &Uri) -> Result<Option<Manifest>, PackageError> {
        let package = &listed.package;
        let known = match self.recall(package) {
            Some(Ok(known)) => Some(known),
            Some(Err(error)) => return Err(error),
            None => self.left(package).await,
        };
        let before = self.previews().get(package).cloned();
        let version = known.as_ref().map(|known| known.version.clone());
        let version = version.or_else(|| before.clone().and_then(|before| before.package.version()));
        let now = match remote::ask_version(&self.shared.client, package, version.as_ref()).await {
            Ok(remote::Seen::Same) => version,
            Ok(remote::Seen::Other(now, accepts_ranges)) => {
                let is_small = now.length <= remote::SMALL;
                if is_small || (accepts_ranges && now.etag.is_some()) {
                    return Ok(None);
                }
                if let Some(known) = known.as_ref().filter(|known| known.version != now) {
                    self.forget(known);
                }
                Some(now)
            }
            Err(error) => {
                tracing::debug!(%package, error = %chain(&error), "a package does not tell its version");
                return Ok(None);
            }
        };
        let Some(now) = now else { return Ok(None) };
        if let Some(known) = known.filter(|known| known.version == now) {
            let known = self.remember(package, Ok(known))?;
            let manifest = self.manifest_of(&known).await?;
            self.note_stated(&manifest);
            return Ok(Some(manifest));
        }
        if let Some(inside) = self.kept_inside(package, &now, before.as_ref()) {
            return Ok(Some(inside));
        }
        match self.copy(listed, copy, &now, before).await {
            Ok(manifest) => Ok(Some(manifest)),
            Err(why) => {
                tracing::info!(%package, %copy, why, "the copy of a manifest is of no use");
                Ok(None)
            }
        }
    }

    /// The manifest inside, which was read when the package was here.
    fn kept_inside(&self, package: &Uri, now: &Version, before: Option<&Preview>) -> Option<Manifest> {
        let before = before?;
        let (crc, length) = before.inside?;
        let is_same = before.package.clone().version().as_ref() == Some(now);
        let path = manifest_file(&self.shared.config.folder, package, now, (crc, length));
        let is_here = fs::metadata(&path).is_ok_and(|metadata| metadata.len() == length);
        if !is_same || !is_here {
            return None;
        }
        let limits = self.shared.config.documents;
        let fingerprint = fingerprint(crc, length, &now.final_uri);
        Manifest::open(package.clone(), now.final_uri.clone(), path.into(), fingerprint, limits).ok()
    }

    /// Brings the copy here, or finds that it is here, and checks it.
    async fn copy(
        &self,
        listed: &Listed,
        copy: &Uri,
        now: &Version,
        before: Option<Preview>,
    ) -> Result<Manifest, String> {
        let (folder, limits) = (self.shared.config.folder.clone(), self.shared.config.documents);
        let path = kept::file(&folder, &listed.package, "copy");
        let before = before.filter(|before| before.is_copy && before.copy.package == copy.as_str() && path.exists());
        let known = before.as_ref().and_then(|before| before.copy.clone().version());
        let mut request = Request::get(copy.clone(), HEAD_DUE);
        request.is_document = true;
        if let Some(known) = &known {
            request.if_none_match = known.etag.clone().or(known.weak_etag.clone());
            request.if_modified_since = known.last_modified.clone();
        }
        let response = self.shared.client.send(request).await.map_err(|error| chain(&error))?;
        let version = match (response.status, known) {
            (Status::NotModified, Some(known)) => known,
            (Status::Full, _) => {
                let mut version = remote::version(copy, &response, 0).map_err(|error| chain(&error))?;
                version.length = receive(response.body, &folder, &path, limits.document).await?;
                version
            }
            (status, _) => return Err(format!("the server answered {status:?} to a plain request")),
        };
        let (wanted, base, own) = (listed.capability.clone(), version.final_uri.clone(), path.clone());
        let checking = tokio::task::spawn_blocking(move || check(&own, &wanted, &base, limits));
        let (crc, length) = checking.await.map_err(|error| error.to_string())??;
        let fingerprint = fingerprint(crc, length, &version.final_uri);
        let package = listed.package.clone();
        let manifest = Manifest::open(package.clone(), version.final_uri.clone(), path.into(), fingerprint, limits);
        let manifest = manifest.map_err(|error| chain(&error))?;
        let preview = Preview {
            package: Description::of(&package, now),
            copy: Description::of(copy, &version),
            stated: fingerprint,
            is_copy: true,
            inside: None,
            is_contradicted: false,
        };
        self.keep_preview(&package, &preview);
        self.previews().insert(package, preview);
        Ok(manifest)
    }

    /// What a package says itself is stated.
    fn note_stated(&self, manifest: &Manifest) {
        let noted = self.previews().get_mut(manifest.package()).map(|preview| {
            (preview.stated, preview.is_copy) = (manifest.fingerprint(), false);
            preview.clone()
        });
        noted.iter().for_each(|preview| self.keep_preview(manifest.package(), preview));
    }

    /// Compares a package that has just been opened with what was stated of it.
    pub(super) async fn confirm(&self, directory: &Arc<Directory>) {
        let package = directory.package();
        let _turn = self.turn(package, Piece::Copy).await;
        let Some(before) = self.previews().get(package).cloned() else { return };
        let inside = match directory.find(NAME) {
            Found::Member(number) => directory.record(number).map(|record| (record.crc, record.length)),
            Found::Nothing | Found::Several => None,
        };
        let base = &directory.version.final_uri;
        let mut agrees = inside.is_some_and(|(crc, length)| fingerprint(crc, length, base) == before.stated);
        // It is read while the package is here: the package may be evicted.
        let manifest = self.manifest_of(directory).await;
        if let (false, true, Ok(manifest)) = (agrees, before.is_copy, &manifest) {
            let path = kept::file(&self.shared.config.folder, package, "copy");
            let (manifest, own) = (manifest.clone(), Arc::clone(directory));
            let base = before.copy.clone().version().map(|version| version.final_uri);
            let comparing = tokio::task::spawn_blocking(move || says_the_same(&path, base, &manifest, &own));
            agrees = comparing.await.unwrap_or(false);
        }
        let told = Preview {
            package: Description::of(package, &directory.version),
            inside: inside.filter(|_| manifest.is_ok()),
            is_contradicted: !agrees,
            ..before
        };
        self.keep_preview(package, &told);
        self.previews().insert(package.clone(), told);
        if !agrees {
            tracing::warn!(%package, "a package says other things than what was published of it: its own manifest counts");
            self.shared.contradiction.notify_one();
        }
    }

    fn keep_preview(&self, package: &Uri, preview: &Preview) {
        let folder = &self.shared.config.folder;
        let bytes = serde_json::to_vec(preview).map_err(std::io::Error::from);
        let written = bytes.and_then(|bytes| kept::replace(folder, &kept::file(folder, package, "preview"), &bytes));
        if let Err(error) = written {
            tracing::warn!(%package, %error, "what is known of a package's manifest is lost with this process");
        }
    }
}

/// Puts a body of at most `limit` bytes at `path`, whole or not at all; how many they were.
async fn receive(mut body: Body, folder: &Path, path: &Path, limit: u64) -> Result<u64, String> {
    let written = |error: std::io::Error| chain(&failed(folder)(error));
    let mut file = tempfile::Builder::new().suffix(".tmp").tempfile_in(folder).map_err(written)?;
    let mut length = 0;
    while let Some(bytes) = body.chunk().await.map_err(|error| chain(&error))? {
        length += bytes.len() as u64;
        if length > limit {
            return Err(format!("it is larger than the limit of {limit} bytes"));
        }
        off_the_workers(|| file.write_all(&bytes)).map_err(written)?;
    }
    file.persist(path).map_err(|error| written(error.error))?;
    Ok(length)
}

/// Reads a copy to its end: CRC-32 and bytes of one that is a manifest of the right kind.
fn check(path: &Path, wanted: &Capability, base: &Uri, limits: Limits) -> Result<(u32, u64), String> {
    let mut reader = open(path, base.clone(), limits)?;
    let mut entries = 0_u64;
    while let Some(entry) = reader.next_entry().map_err(|error| chain(&error))? {
        if let Some(path) = entry.path.as_deref().filter(|path| !is_plausible(path)) {
            return Err(format!("{path:?} can be no member's name"));
        }
        entries += 1;
    }
    let is_right = super::manifest::capability(reader.header()).as_ref() == Some(wanted);
    if !is_right {
        return Err(format!("it is no {}", wanted.as_str()));
    }
    if entries == 0 {
        return Err("it lists nothing".to_owned());
    }
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let mut crc = flate2::Crc::new();
    crc.update(&bytes);
    Ok((crc.sum(), bytes.len() as u64))
}

fn open(path: &Path, base: Uri, limits: Limits) -> Result<Reader<Box<dyn BufRead + Send>>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let bytes: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(128 << 10, file));
    Reader::new(bytes, Some(base), limits).map_err(|error| chain(&error))
}

/// Whether the copy at `path` lists what the manifest inside does, in the same order, and its paths lead to the same members.
fn says_the_same(path: &Path, base: Option<Uri>, inside: &Manifest, directory: &Directory) -> bool {
    let readers = || {
        let copy = open(path, base.clone()?, inside.limits()).ok()?;
        Some((copy, inside.reader().ok()?))
    };
    // The copy's own paths may have segments in excess, which the paths inside have not.
    let mut excess = Excess::default();
    let Some((mut copy, _)) = readers() else { return false };
    while let Ok(Some(entry)) = copy.next_entry() {
        if let Some(path) = &entry.path {
            excess.add(&plain(path), |name| directory.spelt(name) != Found::Nothing);
        }
    }
    let Some((mut copy, mut own)) = readers() else { return false };
    let excess = excess.segments();
    loop {
        let (one, other) = match (copy.next_entry(), own.next_entry()) {
            (Ok(Some(one)), Ok(Some(other))) => (one, other),
            (Ok(None), Ok(None)) => break,
            _ => return false,
        };
        let (stated, member) = (one.path.clone(), other.path.clone());
        let leads_there = stated == member
            || matches!((&stated, &member), (Some(stated), Some(member)) if
                matches!(directory.find(member), Found::Member(_))
                    && directory.find_behind(stated, excess) == directory.find(member));
        if !leads_there || (Entry { path: None, ..one }) != (Entry { path: None, ..other }) {
            return false;
        }
    }
    // Whoever asks by a path of the copy finds the member.
    if excess.is_some_and(|excess| excess > 0) {
        let _ = directory.excess.set(excess);
    }
    true
}
