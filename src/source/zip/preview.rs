//! Published copies of manifests (`contents`, sections 11.1 and 13.1), where the package cannot be read in place.
//!
//! A package whose server has ranges and a strong ETag gives its own manifest for two requests, and that one is taken. Else the
//! copy stands in for it until a member is read and the package is here. Where the manifest inside differs it takes the copy's
//! place, and the package is *contradicted*: what was stated is to be read again ([`Packages::contradiction_found`]), and
//! until that has been taken over ([`Packages::corrected`]) no member may stand for a version that no digest vouches for.
//! Paths alone may differ, where they lead to the same members: a copy often has those of the publisher's own disk.

use super::directory::{Directory, Found};
use super::folder::{self, Description, Unnamed};
use super::manifest::{Sum, excess_of, inside};
use super::path::is_plausible;
use super::remote::{IN_MEMORY, Version};
use super::{Manifest, PackageError, Packages, Piece};
use crate::causes::chain;
use crate::document::{Capability, Entry, Uri};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, PoisonError};

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

/// The manifests that stand in for packages.
pub(super) type StandIns = HashMap<Uri, StandIn>;

/// What is known of the manifest in `KEY.copy`, in `KEY.preview` as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StandIn {
    /// The version of the package that it speaks for.
    of: Description,
    /// The base of its relative references.
    base: String,
    sum: Sum,
    /// It says what the manifest inside does; the package may have been removed since.
    is_confirmed: bool,
    /// What was stated before was something else, and that has not been taken over.
    pub is_contradicted: bool,
}

/// Those that earlier processes have left.
pub(super) fn left(folder: &Path) -> Result<StandIns, PackageError> {
    let files =
        folder::files(folder)?.into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "preview"));
    let read = |path| serde_json::from_slice::<StandIn>(&fs::read(path).ok()?).ok();
    let named = |stand_in: StandIn| Some((Uri::parse(&stand_in.of.package).ok()?, stand_in));
    Ok(files.filter_map(read).filter_map(named).collect())
}

impl Packages {
    /// What a listed package holds: its own manifest where that is here or can be read in place, else the published copy of
    /// it, else its own by way of the whole package.
    ///
    /// # Errors
    /// See [`Packages::manifest`].
    pub async fn stated(&self, listed: &Listed) -> Result<Manifest, PackageError> {
        let is_in_place = self.known(&listed.package).is_some_and(|known| known.is_read_in_place());
        if let Some(copy) = listed.copy.as_ref().filter(|_| !is_in_place) {
            let _turn = self.turn(&listed.package, Piece::StandIn).await;
            if let Some(manifest) = self.stand_in(listed, copy).await? {
                return Ok(manifest);
            }
        }
        self.manifest(&listed.package).await
    }

    /// Whether what was last stated of this package is not what it says itself, and that has not been taken over.
    pub fn is_contradicted(&self, package: &Uri) -> bool {
        self.stand_ins().get(package).is_some_and(|stand_in| stand_in.is_contradicted)
    }

    /// All of those.
    pub fn contradicted(&self) -> HashSet<Uri> {
        let stand_ins = self.stand_ins();
        let contradicted = stand_ins.iter().filter(|(_, stand_in)| stand_in.is_contradicted);
        contradicted.map(|(package, _)| package.clone()).collect()
    }

    /// Ends when a package turns out to say other things than what was stated of it; for one waiter.
    pub async fn contradiction_found(&self) {
        self.shared.contradiction.notified().await;
    }

    /// What these packages say themselves has been taken over.
    pub fn corrected(&self, packages: &HashSet<Uri>) {
        for package in packages {
            if let Some(stand_in) = self.stand_in_of(package) {
                self.keep(package, StandIn { is_contradicted: false, ..stand_in });
            }
        }
    }

    /// Bytes of a package for which another manifest stands in.
    pub(super) fn length_of_stand_in(&self, package: &Uri) -> Option<u64> {
        self.stand_ins().get(package).map(|stand_in| stand_in.of.version.length)
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
    async fn stand_in(&self, listed: &Listed, copy: &Uri) -> Result<Option<Manifest>, PackageError> {
        let package = &listed.package;
        let here = match self.recall(package) {
            Some(known) => Some(known?),
            None => self.left(package).await,
        };
        let before = self.stand_in_of(package);
        let known = here.as_ref().map(|here| here.version.clone());
        let known = known.or_else(|| before.as_ref().map(|before| before.of.version.clone()));
        let now = match (self.remote(package).version(known.as_ref()).await, known) {
            (Ok(Some((now, ranges))), _) if now.length <= IN_MEMORY || (ranges && now.etag.is_some()) => {
                return Ok(None);
            }
            (Ok(Some((now, _))), _) | (Ok(None), Some(now)) => now,
            (Ok(None), None) | (Err(_), _) => return Ok(None),
        };
        match here {
            // Its own manifest is here, for one more question whether it is still the same.
            Some(here) if here.version == now => return Ok(None),
            Some(here) => self.forget(&here),
            None => {}
        }
        if let Some(before) = before.filter(|before| before.of.version == now && now.has_validator())
            && let Ok(manifest) = self.opened_stand_in(package, &before)
        {
            return Ok(Some(manifest));
        }
        match self.fetch_copy(listed, copy, now).await {
            Ok(manifest) => Ok(Some(manifest)),
            Err(why) => {
                tracing::info!(%package, %copy, why, "the copy of a manifest is of no use");
                Ok(None)
            }
        }
    }

    pub(super) fn opened_stand_in(&self, package: &Uri, stand_in: &StandIn) -> Result<Manifest, PackageError> {
        let base = Uri::parse(&stand_in.base).unwrap_or_else(|_| package.clone());
        let path = folder::file(&self.shared.config.folder, package, "copy");
        Manifest::open(package.clone(), base, path.into(), stand_in.sum, self.shared.config.documents)
    }

    /// Brings the copy here and checks that it is a manifest of the right kind, which leads to members.
    async fn fetch_copy(&self, listed: &Listed, copy: &Uri, version: Version) -> Result<Manifest, String> {
        let (folder, limit) = (&self.shared.config.folder, self.shared.config.documents.document);
        let (package, remote) = (&listed.package, self.remote(copy));
        let mut response = remote.document().await.map_err(|error| chain(&error))?;
        let mut file = Unnamed::new(folder).map_err(|error| chain(&error))?;
        let (mut crc, mut length) = (flate2::Crc::new(), 0);
        while let Some(bytes) = remote.chunk(&mut response.body).await.map_err(|error| chain(&error))? {
            length += bytes.len() as u64;
            if length > limit {
                return Err(format!("it is larger than the limit of {limit} bytes"));
            }
            crc.update(&bytes);
            file.write(&bytes).map_err(|error| chain(&error))?;
        }
        file.name(&folder::file(folder, package, "copy")).map_err(|error| chain(&error))?;
        let stand_in = StandIn {
            of: Description { package: package.to_string(), version },
            base: response.final_uri.to_string(),
            sum: Sum { crc: crc.sum(), length },
            is_confirmed: false,
            is_contradicted: false,
        };
        let manifest = self.opened_stand_in(package, &stand_in).map_err(|error| chain(&error))?;
        let (wanted, own) = (listed.capability.clone(), manifest.clone());
        let checking = tokio::task::spawn_blocking(move || check(&own, &wanted));
        checking.await.map_err(|error| error.to_string())??;
        self.keep(package, stand_in);
        Ok(manifest)
    }

    /// Compares a package that has just been opened with what was stated of it. The package counts.
    pub(super) async fn confirm(&self, directory: &Arc<Directory>) {
        let package = directory.package();
        let Some(before) = self.stand_in_of(package) else { return };
        let _turn = self.turn(package, Piece::StandIn).await;
        if before.is_confirmed && before.of.version == directory.version {
            return;
        }
        let of = Description { package: package.to_string(), version: directory.version.clone() };
        let confirmed = StandIn { of, is_confirmed: true, ..before };
        let (stated, own) = (self.opened_stand_in(package, &confirmed), self.manifest_of(directory).await);
        if let (Ok(stated), Ok(own)) = (stated, &own) {
            let (own, directory) = (own.clone(), Arc::clone(directory));
            let comparing = tokio::task::spawn_blocking(move || says_the_same(&stated, &own, &directory));
            if comparing.await.unwrap_or(false) {
                return self.keep(package, confirmed);
            }
        }
        let copy = folder::file(&self.shared.config.folder, package, "copy");
        if !own.is_ok_and(|own| fs::copy(own.path(), &copy).is_ok()) {
            // A package without manifest has no stand-in either.
            folder::remove(&copy);
        }
        let sum = inside(directory).map_or(confirmed.sum, |(_, sum)| sum);
        let base = directory.version.base(package).to_string();
        self.keep(package, StandIn { base, sum, is_contradicted: true, ..confirmed });
        tracing::warn!(%package, "a package says other things than what was published of it: its own manifest counts");
        self.shared.contradiction.notify_one();
    }

    fn keep(&self, package: &Uri, stand_in: StandIn) {
        let folder = &self.shared.config.folder;
        if let Err(error) = folder::replace_json(folder, &folder::file(folder, package, "preview"), &stand_in) {
            tracing::warn!(%package, error = %chain(&error), "what is known of a package's manifest is lost with this process");
        }
        self.stand_ins().insert(package.clone(), stand_in);
    }
}

/// Reads a copy to its end.
fn check(copy: &Manifest, wanted: &Capability) -> Result<(), String> {
    let (mut reader, mut is_empty) = (copy.reader().map_err(|error| chain(&error))?, true);
    while let Some(entry) = reader.next_entry().map_err(|error| chain(&error))? {
        if let Some(path) = entry.path.as_deref().filter(|path| !is_plausible(path)) {
            return Err(format!("{path:?} can be no member's name"));
        }
        is_empty = false;
    }
    match copy.capability().as_ref() == Some(wanted) {
        false => Err(format!("it is no {}", wanted.as_str())),
        true if is_empty => Err("it lists nothing".to_owned()),
        true => Ok(()),
    }
}

/// Whether a copy lists what the manifest inside does, in the same order, and its paths lead to the same members.
fn says_the_same(copy: &Manifest, inside: &Manifest, directory: &Directory) -> bool {
    let excess = excess_of(copy, directory).ok().flatten();
    let leads_there = |stated: &Option<Box<str>>, path: &Option<Box<str>>| match (stated, path) {
        (Some(stated), Some(path)) if stated != path => {
            let found = directory.find(path);
            matches!(found, Found::Member(_)) && directory.find_behind(stated, excess) == found
        }
        _ => stated == path,
    };
    let (Ok(mut copy), Ok(mut inside)) = (copy.reader(), inside.reader()) else { return false };
    loop {
        match (copy.next_entry(), inside.next_entry()) {
            (Ok(Some(mut one)), Ok(Some(mut other))) => {
                if !leads_there(&one.path.take(), &other.path.take()) || one != other {
                    return false;
                }
            }
            (Ok(None), Ok(None)) => return true,
            _ => return false,
        }
    }
}
