//! Whole packages on this machine's disk: where the server has no ranges or no strong ETag, or most of one is wanted.

use super::directory::{Directory, Version};
use super::kept::{self, Description, failed};
use super::package_bytes::{PackageBytes, Place};
use super::{PackageError, Packages, Piece, remote};
use crate::document::Uri;
use crate::source::http::{Priority, Response};
use bytes::Bytes;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::io::AsyncWriteExt;

/// How often a package that broke off where it cannot be resumed, or changed, is begun anew.
const ANEW: u32 = 2;

/// PackageBytes of which it is checked that there is room for them.
const STEP: u64 = 16 << 20;

/// How long a package waits for those on their way that leave it no room.
const ROOM_DUE: Duration = Duration::from_secs(3600);

/// The room of a package on its way, which nobody else takes; given back when dropped.
pub(super) struct Claim<'p> {
    packages: &'p Packages,
    key: String,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.packages.arriving().remove(&self.key);
        self.packages.shared.arrived.notify_waiters();
    }
}

impl Packages {
    /// Brings a whole package to the disk, where most of it is wanted; what came before a break or a restart is not fetched
    /// again where the server has a strong ETag. `limit` bounds it besides [`super::PackageConfig::whole`], which bounds all.
    ///
    /// # Errors
    /// [`PackageError::TooLarge`], [`PackageError::Folder`], any error of the package.
    pub async fn whole(&self, package: &Uri, limit: u64) -> Result<Arc<Directory>, PackageError> {
        let limit = limit.min(self.shared.config.whole);
        for _ in 0..ANEW {
            let directory = self.directory(package).await?;
            if !matches!(directory.place, Place::Server) {
                return Ok(directory);
            }
            if directory.length() > limit {
                return Err(too_large(package, limit));
            }
            let _turn = self.turn(package, Piece::Whole).await;
            if let Some(known) = self.known(package).filter(|known| !matches!(known.place, Place::Server)) {
                return Ok(known);
            }
            match self.resume(package, &directory).await {
                Err(PackageError::Changed { .. }) => self.forget(&directory),
                // Meanwhile the server was found to have another version.
                Ok(_) if self.known(package).is_some_and(|known| known.version != directory.version) => {}
                whole => return self.remember(package, whole.map(Arc::new)),
            }
        }
        Err(PackageError::Changed { package: package.clone() })
    }

    /// PackageBytes that have come so far of a package that is being fetched whole.
    pub fn arrived(&self, package: &Uri) -> Option<u64> {
        fs::metadata(kept::file(&self.shared.config.folder, package, "part")).ok().map(|part| part.len())
    }

    /// Fetches what is missing of a version that has a strong ETag.
    async fn resume(&self, package: &Uri, directory: &Directory) -> Result<Directory, PackageError> {
        let (folder, version) = (&self.shared.config.folder, &directory.version);
        // First: from here on nobody removes what has come of it before.
        let _claim = self.claimed(package, Some(version.length)).await?;
        let part = kept::file(folder, package, "part");
        let is_same = described(folder, package).as_ref() == Some(version);
        let here = fs::metadata(&part).map(|metadata| metadata.len()).ok();
        let from = here.filter(|here| is_same && *here <= version.length).unwrap_or_default();
        if from == 0 {
            kept::remove(&part);
        }
        describe(folder, package, version)?;
        self.make_room(package, version.length, from)?;
        let mut file = append(&part).await?;
        let place = Place::Server;
        let bytes = PackageBytes::new(&self.shared.client, package, version, place, from, version.length);
        // Its members are read in place meanwhile.
        let mut bytes = bytes.awaited(Priority::Background);
        while bytes.position() < version.length {
            let next = bytes.next(version.length - bytes.position()).await;
            match next {
                Ok(next) => file.write_all(&next).await.map_err(failed(&part))?,
                Err(error) => {
                    // What has come is there for the next attempt.
                    file.flush().await.map_err(failed(&part))?;
                    if !error.is_retryable() {
                        kept::remove(&part);
                    }
                    return Err(error);
                }
            }
        }
        file.flush().await.map_err(failed(&part))?;
        self.complete(package, version.clone()).await
    }

    /// Brings the body of `response`, which is the whole, to the disk; begins anew where it breaks off.
    pub(super) async fn arrive(&self, package: &Uri, response: Response) -> Result<Directory, PackageError> {
        let _turn = self.turn(package, Piece::Whole).await;
        let mut response = Some(response);
        for _ in 0..ANEW {
            let attempt = match response.take() {
                Some(response) => response,
                None => remote::ask_whole(&self.shared.client, package).await?,
            };
            match self.receive(package, attempt).await {
                Err(error @ PackageError::Http { .. }) if error.is_retryable() => {
                    tracing::debug!(%package, %error, "a whole package broke off, asking anew");
                }
                outcome => return outcome,
            }
        }
        let response = remote::ask_whole(&self.shared.client, package).await?;
        self.receive(package, response).await
    }

    async fn receive(&self, package: &Uri, mut response: Response) -> Result<Directory, PackageError> {
        let (folder, limit) = (&self.shared.config.folder, self.shared.config.whole);
        let announced = response.content_length;
        if announced.is_some_and(|bytes| bytes > limit) {
            return Err(too_large(package, limit));
        }
        let _claim = match self.claim(package, announced) {
            Some(claim) => claim,
            None => {
                // Those that it waits for may need its connection.
                drop(response);
                let claim = self.claimed(package, announced).await?;
                response = remote::ask_whole(&self.shared.client, package).await?;
                if response.content_length != announced {
                    return Err(PackageError::Changed { package: package.clone() });
                }
                claim
            }
        };
        let announced = announced.unwrap_or_default();
        let mut version = remote::version(package, &response, announced)?;
        let part = kept::file(folder, package, "part");
        kept::remove(&part);
        kept::remove(&kept::file(folder, package, "json"));
        let first = remote::beginning(package, &mut response.body).await?;
        if let Some(seen) = remote::other_kind(&first) {
            // The rest, however long, would say nothing else.
            let error = PackageError::NotZip { package: package.clone(), seen: seen.to_owned() };
            return Err(self.refuse(package, version, error));
        }
        self.make_room(package, announced, 0)?;
        let mut file = append(&part).await?;
        let (mut length, mut roomy) = (0, announced);
        let mut next = Some(Bytes::from(first));
        while let Some(bytes) = next {
            length += bytes.len() as u64;
            if length > limit {
                drop(file);
                kept::remove(&part);
                return Err(too_large(package, limit));
            }
            if length > roomy {
                roomy = length + STEP;
                self.make_room(package, roomy.min(limit), length)?;
            }
            file.write_all(&bytes).await.map_err(failed(&part))?;
            next = remote::chunk(package, &mut response.body).await?;
        }
        file.flush().await.map_err(failed(&part))?;
        version.length = length;
        describe(folder, package, &version)?;
        self.complete(package, version).await
    }

    /// Gives a part that is whole its name, and reads its directory.
    async fn complete(&self, package: &Uri, version: Version) -> Result<Directory, PackageError> {
        let folder = &self.shared.config.folder;
        let whole = kept::file(folder, package, "whole");
        fs::rename(kept::file(folder, package, "part"), &whole).map_err(failed(&whole))?;
        let read = self.read_whole(package, version).await;
        if let Err(error) = &read
            && !error.is_retryable()
        {
            kept::remove(&whole);
        }
        read
    }

    /// The directory of the whole package that lies in the folder, which is of this version.
    async fn read_whole(&self, package: &Uri, version: Version) -> Result<Directory, PackageError> {
        let (folder, limit) = (&self.shared.config.folder, self.shared.config.directory);
        let (path, own) = (kept::file(folder, package, "whole"), package.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let file = File::open(&path).map_err(failed(&path))?;
            // Used now: others make room before it does.
            file.set_modified(SystemTime::now()).map_err(failed(&path))?;
            let clone = file.try_clone().map_err(failed(&path))?;
            let place = Place::File { file: Arc::new(file), path: Arc::new(path) };
            Directory::of_file(&own, &version, place, BufReader::new(clone), limit)
        });
        let read = reading.await.unwrap_or_else(|cause| Err(failed(folder)(std::io::Error::other(cause))));
        match read {
            Err(PackageError::Damaged { cause: Some(_), .. }) => {
                let seen = remote::describe(&self.shared.client, package).await;
                Err(PackageError::NotZip { package: package.clone(), seen })
            }
            read => read,
        }
    }

    /// The whole package that an earlier process has left; its version is not compared with the server's.
    pub(super) async fn left_whole(&self, package: &Uri) -> Option<Directory> {
        let folder = &self.shared.config.folder;
        let whole = kept::file(folder, package, "whole");
        let length = fs::metadata(&whole).ok()?.len();
        let version = described(folder, package).filter(|version| version.length == length)?;
        self.read_whole(package, version).await.ok()
    }

    fn arriving(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.shared.arriving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for `bytes` of a package on its way, beside all others that are: all there may be where nobody knows how many.
    /// `None` where the others leave too little for now.
    pub(super) fn claim(&self, package: &Uri, bytes: Option<u64>) -> Option<Claim<'_>> {
        let (key, limit) = (kept::key(package), self.shared.config.whole);
        let bytes = bytes.unwrap_or(limit);
        let mut arriving = self.arriving();
        let taken = arriving.values().fold(bytes, |sum, other| sum.saturating_add(*other));
        if !arriving.is_empty() && taken > limit {
            return None;
        }
        arriving.insert(key.clone(), bytes);
        Some(Claim { packages: self, key })
    }

    /// The same, once there is room.
    async fn claimed(&self, package: &Uri, bytes: Option<u64>) -> Result<Claim<'_>, PackageError> {
        let waiting = async {
            loop {
                let mut arrived = pin!(self.shared.arrived.notified());
                // From here on none is missed.
                arrived.as_mut().enable();
                if let Some(claim) = self.claim(package, bytes) {
                    return claim;
                }
                arrived.await;
            }
        };
        let full = |_| failed(&self.shared.config.folder)(std::io::ErrorKind::StorageFull.into());
        tokio::time::timeout(ROOM_DUE, waiting).await.map_err(full)
    }

    /// Removes the whole packages that were used least lately, until `bytes` of this one have room, of which `here` are on
    /// the disk already: within what whole packages may take, and beside the reserve. Those on their way stay, and have their
    /// room.
    fn make_room(&self, package: &Uri, bytes: u64, here: u64) -> Result<(), PackageError> {
        let folder = &self.shared.config.folder;
        let own = kept::key(package);
        let mut arriving = self.arriving().clone();
        arriving.remove(&own);
        let coming = arriving.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        let mut promised = coming;
        let mut others = Vec::new();
        for path in kept::files(folder)? {
            let is_large = path.extension().is_some_and(|kind| kind == "whole" || kind == "part");
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if is_large && *stem != *own {
                // One that was removed meanwhile takes no room.
                let Ok(metadata) = fs::metadata(&path) else { continue };
                if arriving.contains_key(stem) {
                    promised = promised.saturating_sub(metadata.len());
                    continue;
                }
                others.push((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), metadata.len(), path));
            }
        }
        others.sort();
        let mut taken: u64 = others.iter().map(|(_, length, _)| length).sum();
        let config = &self.shared.config;
        // Where nobody can tell what is free, the file system's own refusal has to do.
        let free = (config.free_space)(folder).unwrap_or(u64::MAX);
        let needed = config.reserve.saturating_add(bytes.saturating_sub(here)).saturating_add(promised);
        let mut shortage = needed.saturating_sub(free);
        if shortage > taken {
            let cause = std::io::Error::from(std::io::ErrorKind::StorageFull);
            return Err(failed(folder)(cause));
        }
        for (_, length, path) in others {
            if taken.saturating_add(coming).saturating_add(bytes) <= config.whole && shortage == 0 {
                break;
            }
            self.forget_file(&path);
            kept::remove(&path);
            taken = taken.saturating_sub(length);
            shortage = shortage.saturating_sub(length);
        }
        Ok(())
    }
}

/// Which version the whole package, or the part of it, in the folder is of.
fn described(folder: &Path, package: &Uri) -> Option<Version> {
    let description: Description = serde_json::from_slice(&fs::read(kept::file(folder, package, "json")).ok()?).ok()?;
    (description.package == package.as_str()).then(|| description.version()).flatten()
}

fn describe(folder: &Path, package: &Uri, version: &Version) -> Result<(), PackageError> {
    let path = kept::file(folder, package, "json");
    let description = serde_json::to_vec(&Description::of(package, version)).map_err(std::io::Error::from);
    description.and_then(|description| kept::replace(folder, &path, &description)).map_err(failed(&path))
}

async fn append(path: &Path) -> Result<tokio::fs::File, PackageError> {
    tokio::fs::OpenOptions::new().create(true).append(true).open(path).await.map_err(failed(path))
}

fn too_large(package: &Uri, limit: u64) -> PackageError {
    PackageError::TooLarge { package: package.clone(), what: "the whole of it", limit }
}
