//! Published copies of manifests (`contents`, sections 11.1 and 13.1), where the package cannot be read in place.
//!
//! A package without a manifest inside is what the copy says. Else:
//! a package whose server has ranges and a strong ETag gives its own manifest for two requests, and that one is taken. Else the
//! copy stands in for it until a member is read and the package is here. Where the manifest inside differs it takes the copy's
//! place, and the package is *contradicted*: what was stated is to be read again ([`Packages::contradiction_found`]), and
//! until that has been taken over ([`Packages::corrected`]) no member may stand for a version that no digest vouches for.
//! Paths alone may differ, where they lead to the same members: a copy often has those of the publisher's own disk.

use super::directory::{Directory, FoundMember};
use super::folder::{self, Description, Unnamed};
use super::manifest::{Sum, folder_of, inside};
use super::remote::{IN_MEMORY, PackageVersion, Received};
use super::{Manifest, PackageError, Packages};
use crate::document::{Capability, Entry, Timestamp, Uri};
use crate::platform::error_chain::chain;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use tokio::sync::OwnedMutexGuard;
use xxhash_rust::xxh3::xxh3_64;

/// The day, since the epoch.
pub(super) fn today() -> i64 {
    Timestamp::now().seconds / 86_400
}

/// A package as a dump lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The package.
    pub package: Uri,
    /// Address of a copy of its manifest.
    pub copy: Option<Uri>,
    /// Capability of its manifest: [`Capability::ResourceDumpManifest`] or [`Capability::ChangeDumpManifest`].
    pub capability: Capability,
    /// The state of its entry. Where this is another the manifest may be another too.
    pub state: u64,
}

impl Listed {
    /// The package that an entry of a dump lists. An entry with neither time, length nor digest is in another state each day.
    pub fn of(entry: &Entry, capability: Capability) -> Listed {
        let copy = entry.links.iter().filter(|link| &*link.rel == "contents").find_map(|link| link.uri()).cloned();
        let is_dated = entry.lastmod.is_some() || entry.length.is_some() || !entry.hashes.is_empty();
        let day = (!is_dated).then(today);
        let state = format!("{copy:?} {:?} {:?} {:?} {day:?}", entry.lastmod, entry.length, entry.hashes);
        Listed { package: entry.loc.clone(), copy, capability, state: xxh3_64(state.as_bytes()) }
    }

    /// A package of which no entry is here.
    pub fn unlisted(package: Uri, capability: Capability) -> Listed {
        Listed { package, copy: None, capability, state: 0 }
    }
}

/// The manifests that stand in for packages.
pub(super) type StandIns = HashMap<Uri, StandIn>;

/// Facts about the manifest in `KEY.copy`, kept in `KEY.preview` as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StandIn {
    /// The version of the package that it speaks for.
    of: Description,
    /// The base of its relative references.
    base: String,
    sum: Sum,
    /// True if it says what the manifest inside does; the package may have been removed since.
    is_confirmed: bool,
    /// True if something else was stated before, and the difference has not been taken over.
    pub is_contradicted: bool,
}

impl StandIn {
    /// Bytes of the package.
    pub fn length(&self) -> u64 {
        self.of.version.length
    }

    fn is_compared_with(&self, version: &PackageVersion) -> bool {
        self.is_confirmed && self.of.version == *version
    }
}

/// Stand-ins that earlier processes have left.
pub(super) fn left(folder: &Path) -> Result<StandIns, PackageError> {
    let files =
        folder::files(folder)?.into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "preview"));
    let read = |path| serde_json::from_slice::<StandIn>(&fs::read(path).ok()?).ok();
    let named = |stand_in: StandIn| Some((Uri::parse(&stand_in.of.package).ok()?, stand_in));
    Ok(files.filter_map(read).filter_map(named).collect())
}

impl Packages {
    /// Manifest of a listed package: its own where that is here or can be read in place, else the published copy of
    /// it, else its own by way of the whole package.
    ///
    /// # Errors
    /// See [`Packages::manifest`].
    pub async fn stated(&self, listed: &Listed) -> Result<Manifest, PackageError> {
        if let Some(copy) = &listed.copy {
            let manifest = self.stand_in(listed, copy).await;
            // A package that has come meanwhile was compared with an earlier copy at most.
            if let Some(manifest) = manifest.filter(|_| self.known(&listed.package).is_none()) {
                return Ok(manifest);
            }
        }
        let own = self.manifest(&listed.package).await;
        match (&own, &listed.copy) {
            (Err(PackageError::NoManifest { .. }), Some(copy)) => self.outside(listed, copy).await.map_or(own, Ok),
            _ => own,
        }
    }

    /// The published copy of the manifest of a package that has none inside.
    async fn outside(&self, listed: &Listed, copy: &Uri) -> Option<Manifest> {
        let version = self.known(&listed.package)?.version.clone();
        let before = self.stand_in_of(&listed.package).filter(|before| before.of.version == version);
        let before = before.filter(|_| version.has_validator());
        if let Some(manifest) = before.and_then(|before| self.opened_stand_in(&listed.package, &before).ok()) {
            return Some(manifest);
        }
        self.copied(listed, copy, version).await
    }

    /// Returns whether what was last stated of this package is not what it says itself, and that has not been taken over.
    pub fn is_contradicted(&self, package: &Uri) -> bool {
        self.stand_ins().get(package).is_some_and(|stand_in| stand_in.is_contradicted)
    }

    /// All of those.
    pub fn contradicted(&self) -> HashSet<Uri> {
        let stand_ins = self.stand_ins();
        let contradicted = stand_ins.iter().filter(|(_, stand_in)| stand_in.is_contradicted);
        contradicted.map(|(package, _)| package.clone()).collect()
    }

    /// Manifest of a package for which nothing large is downloaded. In place of one that cannot be read in place its published copy is
    /// read, unless a web page answers where the package should be.
    ///
    /// # Errors
    /// [`PackageError::Unknown`], any error of the package
    pub(super) async fn stated_cheaply(&self, listed: &Listed) -> Result<Manifest, PackageError> {
        let package = &listed.package;
        let head = match self.remote(package).in_background().version(None).await {
            Ok(head) => head,
            // Some servers answer no HEAD, or without a length.
            Err(PackageError::Http { cause, .. }) if matches!(cause.status(), Some(405 | 501)) => None,
            Err(PackageError::Damaged { .. }) => None,
            Err(cause) => return Err(cause),
        };
        let is_cheap = head.as_ref().is_some_and(|head| head.is_page || head.is_read_in_place);
        let is_small = head.as_ref().is_some_and(|head| head.version.length <= IN_MEMORY);
        let version = head.map_or_else(|| PackageVersion::unknown(package), |head| head.version);
        let unknown = PackageError::Unknown {
            package: package.clone(),
            why: "its server has no ranges, and no copy of its manifest is published".to_owned(),
        };
        let copied = match &listed.copy {
            Some(copy) if !is_cheap => self.fetch_copy(listed, copy, version.clone()).await,
            _ => Err(unknown),
        };
        let own = match copied {
            Err(cause) if (is_cheap || is_small) && !cause.is_retryable() => self.manifest(package).await,
            Err(cause) => return Err(cause),
            Ok(copied) => {
                // A local copy may be of another state of the entry.
                let here = self.here(package).await;
                let is_other = |here: &Arc<Directory>| here.version != version || !version.has_validator();
                here.filter(is_other).iter().for_each(|here| self.forget(here));
                return Ok(copied);
            }
        };
        match (&own, &listed.copy) {
            (Err(PackageError::NoManifest { .. }), Some(copy)) => self.fetch_copy(listed, copy, version).await.or(own),
            _ => own,
        }
    }

    /// Ends when packages turn out to say other things than what was stated of them, or say something at last; for one waiter.
    pub async fn contradiction_found(&self) {
        self.shared.contradiction.notified().await;
    }

    /// Records that the manifests inside these packages have been taken over.
    pub fn corrected(&self, packages: &HashSet<Uri>) {
        for package in packages {
            if let Some(stand_in) = self.stand_in_of(package) {
                self.keep(package, StandIn { is_contradicted: false, ..stand_in });
            }
        }
    }

    /// Forgets those of other packages.
    pub(super) fn retain_stand_ins(&self, packages: &HashSet<Uri>) {
        self.stand_ins().retain(|package, _| packages.contains(package));
    }

    fn stand_ins(&self) -> std::sync::MutexGuard<'_, StandIns> {
        self.shared.stand_ins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stand_in_of(&self, package: &Uri) -> Option<StandIn> {
        self.stand_ins().get(package).cloned()
    }

    /// The manifest of a package that is not to be fetched for it; `None` where its own is cheaper, or the only one.
    async fn stand_in(&self, listed: &Listed, copy: &Uri) -> Option<Manifest> {
        let package = &listed.package;
        let here = self.here(package).await;
        if here.as_ref().is_some_and(|here| here.is_read_in_place()) {
            return None;
        }
        let before = self.stand_in_of(package);
        let known = here.as_ref().map(|here| &here.version).or(before.as_ref().map(|before| &before.of.version));
        let version = match self.remote(package).version(known).await.ok()? {
            Some(now) if now.version.length <= IN_MEMORY || now.is_read_in_place => return None,
            Some(now) => now.version,
            None => known?.clone(),
        };
        match here {
            Some(here) if here.version == version => return None,
            Some(here) => self.forget(&here),
            None => {}
        }
        let before = before.filter(|before| before.of.version == version && version.has_validator());
        if let Some(manifest) = before.and_then(|before| self.opened_stand_in(package, &before).ok()) {
            return Some(manifest);
        }
        self.copied(listed, copy, version).await
    }

    /// A copy that is brought here, where it can be used.
    async fn copied(&self, listed: &Listed, copy: &Uri, version: PackageVersion) -> Option<Manifest> {
        let fetched = self.fetch_copy(listed, copy, version).await;
        let package = &listed.package;
        fetched
            .inspect_err(|why| {
                let why = chain(why);
                tracing::info!(%package, %copy, why, "a published copy of a manifest cannot be used");
            })
            .ok()
    }

    pub(super) fn opened_stand_in(&self, package: &Uri, stand_in: &StandIn) -> Result<Manifest, PackageError> {
        let path = folder::file(&self.shared.config.folder, package, "copy");
        self.opened(package, &path, &stand_in.base, stand_in.sum)
    }

    /// The manifest of `package` in a file of the folder.
    pub(super) fn opened(&self, package: &Uri, path: &Path, base: &str, sum: Sum) -> Result<Manifest, PackageError> {
        let base = Uri::parse(base).unwrap_or_else(|_| package.clone());
        Manifest::open(package.clone(), base, path.into(), sum, self.shared.config.documents)
    }

    /// Brings the copy here and checks that it is a manifest of the right kind, which leads to members.
    async fn fetch_copy(&self, listed: &Listed, copy: &Uri, version: PackageVersion) -> Result<Manifest, PackageError> {
        let (folder, limits) = (&self.shared.config.folder, self.shared.config.documents);
        let (package, remote) = (&listed.package, self.remote(copy).in_background());
        let mut response = remote.document().await?;
        let mut file = Unnamed::new(folder)?;
        let (mut crc, mut length) = (flate2::Crc::new(), 0);
        while let Some(bytes) = remote.chunk(&mut response.body).await? {
            length += bytes.len() as u64;
            if length > limits.document {
                return Err(PackageError::too_large(copy, "a copy of a manifest", limits.document));
            }
            crc.update(&bytes);
            file.write(&bytes)?;
        }
        let stand_in = StandIn {
            of: Description { package: package.to_string(), version },
            base: response.final_uri.to_string(),
            sum: Sum { crc: crc.sum(), length },
            is_confirmed: false,
            is_contradicted: false,
        };
        // The copy of before stays where this one cannot be used.
        let (sum, base, path) = (stand_in.sum, response.final_uri, file.local()?.1);
        let own = Manifest::open(package.clone(), base, path.as_path().into(), sum, limits)?;
        let wanted = listed.capability.clone();
        let checking = tokio::task::spawn_blocking(move || check(&own, &wanted));
        checking.await.unwrap_or_else(|error| Err(PackageError::damaged(package, error.to_string())))?;
        let _turn = self.turn(package).await;
        file.name(&folder::file(folder, package, "copy"))?;
        self.keep(package, stand_in.clone());
        self.opened_stand_in(package, &stand_in)
    }

    /// The directory, once its package has been compared with what was stated of it. The package counts.
    pub(super) async fn confirmed(&self, directory: Arc<Directory>, received: &Received) -> Arc<Directory> {
        let is_open = |stand_in: &StandIn| !stand_in.is_compared_with(&directory.version);
        if self.stand_in_of(directory.package()).is_some_and(|stand_in| is_open(&stand_in)) {
            // Before its turn: each reader counts the bytes that come, and nothing is asked for meanwhile.
            let own = self.manifest_of(&directory, received).await;
            let _turn = self.turn(directory.package()).await;
            if let Some(before) = self.stand_in_of(directory.package()).filter(is_open) {
                self.compare(&directory, before, own).await;
            }
        }
        directory
    }

    /// The right to replace or compare the stand-in of a package.
    async fn turn(&self, package: &Uri) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.shared.comparing.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(package.clone()).or_default())
        };
        turn.lock_owned().await
    }

    async fn compare(&self, directory: &Arc<Directory>, before: StandIn, own: Result<Manifest, PackageError>) {
        let package = directory.package();
        let of = Description { package: package.to_string(), version: directory.version.clone() };
        let confirmed = StandIn { of, is_confirmed: true, ..before };
        if matches!(own, Err(PackageError::NoManifest { .. })) {
            // Nothing inside says otherwise.
            return self.keep(package, confirmed);
        }
        if let (Ok(stated), Ok(own)) = (self.opened_stand_in(package, &confirmed), &own) {
            let (own, directory) = (own.clone(), Arc::clone(directory));
            let comparing = tokio::task::spawn_blocking(move || says_the_same(&stated, &own, &directory));
            if comparing.await.unwrap_or(false) {
                return self.keep(package, confirmed);
            }
        }
        let copy = folder::file(&self.shared.config.folder, package, "copy");
        if !own.is_ok_and(|own| fs::copy(own.path(), &copy).is_ok()) {
            folder::remove(&copy);
        }
        let sum = inside(directory).map_or(confirmed.sum, |(_, sum)| sum);
        let base = directory.version.base(package).to_string();
        self.keep(package, StandIn { base, sum, is_contradicted: true, ..confirmed });
        tracing::warn!(%package, "a package differs from the published copy of its manifest; its own manifest is used");
        self.shared.contradiction.notify_one();
    }

    fn keep(&self, package: &Uri, stand_in: StandIn) {
        let folder = &self.shared.config.folder;
        if let Err(error) = folder::replace_json(folder, &folder::file(folder, package, "preview"), &stand_in) {
            tracing::warn!(%package, error = %chain(&error), "the manifest of a package cannot be cached");
        }
        self.stand_ins().insert(package.clone(), stand_in);
    }
}

/// Reads a copy to its end.
fn check(copy: &Manifest, wanted: &Capability) -> Result<(), PackageError> {
    let unknown = |why| Err(PackageError::Unknown { package: copy.package().clone(), why });
    match (copy.is_sound()?, copy.capability().as_ref() == Some(wanted)) {
        (_, false) => unknown(format!("the copy of its manifest is not a {}", wanted.as_str())),
        (false, true) => unknown("the copy of its manifest lists nothing".to_owned()),
        (true, true) => Ok(()),
    }
}

/// Returns whether a copy lists what the manifest inside does, in the same order, and its paths lead to the same members.
fn says_the_same(copy: &Manifest, inside: &Manifest, directory: &Directory) -> bool {
    let folder = folder_of(copy, directory).ok().flatten();
    let leads_there = |stated: &Option<Box<str>>, path: &Option<Box<str>>| match (stated, path) {
        (Some(stated), Some(path)) if stated != path => {
            let found = directory.find(path);
            matches!(found, FoundMember::Member(_)) && directory.find_behind(stated, folder.as_deref()) == found
        }
        _ => stated == path,
    };
    let (Ok(mut copy), Ok(mut inside)) = (copy.reader(), inside.reader()) else { return false };
    loop {
        match (copy.next_entry(), inside.next_entry()) {
            (Ok(Some(mut one)), Ok(Some(mut other))) => {
                // A server that writes a manifest at each request may take that time for the members' own.
                if !one.hashes.is_empty() && one.hashes == other.hashes {
                    one.lastmod = other.lastmod;
                }
                if !leads_there(&one.path.take(), &other.path.take()) || one != other {
                    return false;
                }
            }
            (Ok(None), Ok(None)) => return true,
            _ => return false,
        }
    }
}
