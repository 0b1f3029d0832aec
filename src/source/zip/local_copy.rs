//! Local copies: whole packages in the folder, within their limit and the free-space reserve.
//!
//! A copy on its way holds one reservation: while it lasts no other download of the package begins, its bytes have their place on
//! the disk, and its files are not removed. Requests for the directory or the manifest never wait for it.

use super::arriving::{Arriving, Feed};
use super::bytes::{PackageBytes, Place};
use super::directory::Directory;
use super::folder::{self, Unnamed, describe, described, failed, file};
use super::remote::{self, Remote, Version};
use super::{PackageError, Packages, Piece};
use crate::causes::chain;
use crate::document::Uri;
use crate::source::http::{Priority, Response};
use crate::source::off_the_workers;
use bytes::Bytes;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How often a whole package that cannot be resumed is asked for.
const ATTEMPTS: u32 = 3;

/// A package of unknown length gets disk space in steps of so many bytes.
const STEP: u64 = 16 << 20;

/// How long a package waits for disk space that others on their way have reserved.
const SPACE_DEADLINE: Duration = Duration::from_secs(3600);

/// Disk space is reserved in units of so many bytes.
const UNIT: u64 = 1 << 10;

/// The copies on their way.
#[derive(Debug)]
pub(super) struct LocalCopies {
    /// Of a package without ranges nothing can be read before it is here. Held for nothing else.
    under_way: Mutex<HashMap<Uri, Option<Arc<Arriving>>>>,
    /// A permit for each [`UNIT`] that local copies may take and none on its way has reserved.
    space: Arc<Semaphore>,
    units: u32,
}

/// The right to bring one local copy here, with its disk space.
pub(super) struct Reservation {
    packages: Packages,
    package: Uri,
    space: OwnedSemaphorePermit,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.packages.shared.copies.under_way().remove(&self.package);
    }
}

impl LocalCopies {
    /// At most `limit` bytes.
    pub fn new(limit: u64) -> LocalCopies {
        let units = units(limit);
        LocalCopies { under_way: Mutex::default(), space: Arc::new(Semaphore::new(units as usize)), units }
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<Uri, Option<Arc<Arriving>>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The packages whose files are being written.
    pub fn packages(&self) -> Vec<Uri> {
        self.under_way().keys().cloned().collect()
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(Semaphore::MAX_PERMITS as u32)
}

impl Packages {
    /// The local copy of this version that is on its way.
    pub(super) fn local_copy(&self, directory: &Directory) -> Option<Arc<Arriving>> {
        let under_way = self.shared.copies.under_way().get(directory.package()).cloned().flatten();
        under_way.filter(|copy| copy.version == directory.version)
    }

    /// The same; where there is none one begins, unless there is no space for it or it failed lately. Nothing is waited for.
    pub(super) fn begin_local_copy(&self, directory: &Arc<Directory>) -> Option<Arc<Arriving>> {
        if let Some(copy) = self.local_copy(directory) {
            return Some(copy);
        }
        let (package, length) = (directory.package(), directory.length());
        if length > self.shared.config.whole || self.failure(package, Piece::LocalCopy).is_some() {
            return None;
        }
        let (copy, feed) = Arriving::local_copy(&directory.version);
        let reservation = self.reserve(package, length, Some(Arc::clone(&copy)))?;
        let task = self.clone().bring_local_copy(Arc::clone(directory), copy.priority(), feed, reservation);
        tokio::spawn(task);
        Some(copy)
    }

    /// `None` where the copies on their way leave too little space for now, or this package is one of them.
    pub(super) fn reserve(&self, package: &Uri, bytes: u64, copy: Option<Arc<Arriving>>) -> Option<Reservation> {
        let space = Arc::clone(&self.shared.copies.space).try_acquire_many_owned(units(bytes)).ok()?;
        self.entered(package, space, copy)
    }

    fn entered(&self, package: &Uri, space: OwnedSemaphorePermit, copy: Option<Arc<Arriving>>) -> Option<Reservation> {
        let mut under_way = self.shared.copies.under_way();
        if under_way.contains_key(package) {
            return None;
        }
        under_way.insert(package.clone(), copy);
        Some(Reservation { packages: self.clone(), package: package.clone(), space })
    }

    async fn bring_local_copy(
        self,
        directory: Arc<Directory>,
        priority: Priority,
        feed: Feed,
        reservation: Reservation,
    ) {
        let package = directory.package();
        match self.download(&directory, priority, &feed, &reservation).await {
            // Unless the server was found to have another version meanwhile.
            Ok(copy) if self.known(package).is_none_or(|known| known.version == copy.version) => {
                // What was remembered is what was given.
                let _ = self.remember(package, Ok(Arc::new(copy)));
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%package, error = %chain(&error), "a local copy of a package failed");
                match error {
                    PackageError::Changed { .. } => self.forget(&directory),
                    _ => self.punish(package, Piece::LocalCopy, &error),
                }
                feed.fail(error);
            }
        }
        drop(reservation);
    }

    /// Fetches a version that has a strong ETag.
    async fn download(
        &self,
        directory: &Directory,
        priority: Priority,
        feed: &Feed,
        reservation: &Reservation,
    ) -> Result<Directory, PackageError> {
        let (package, version) = (directory.package(), &directory.version);
        off_the_workers(|| self.make_space(reservation, version.length, 0))?;
        let mut file = Unnamed::new(&self.shared.config.folder)?;
        feed.begin_in(file.local()?);
        let span = (0, version.length);
        let mut bytes = PackageBytes::new(self.remote(package), version, Place::Server, span, priority);
        while bytes.position() < version.length {
            let next = bytes.next(version.length - bytes.position()).await?;
            file.write(&next)?;
            feed.reached(bytes.position());
        }
        self.complete(package, version.clone(), file).await
    }

    /// Brings the body of `response`, which is the whole, to the disk; asks again where it breaks off.
    pub(super) async fn receive(&self, remote: &Remote, response: Response) -> Result<Directory, PackageError> {
        let (mut response, mut attempts) = (Some(response), 0);
        loop {
            let attempt = match response.take() {
                Some(response) => response,
                None => remote.whole().await?,
            };
            attempts += 1;
            match self.receive_once(remote, attempt).await {
                Err(error @ PackageError::Http { .. }) if error.is_retryable() && attempts < ATTEMPTS => {
                    tracing::debug!(package = %remote.package, %error, "a whole package broke off, asking again");
                }
                outcome => return outcome,
            }
        }
    }

    async fn receive_once(&self, remote: &Remote, mut response: Response) -> Result<Directory, PackageError> {
        let (folder, limit) = (&self.shared.config.folder, self.shared.config.whole);
        let (package, announced) = (&remote.package, response.content_length);
        if announced.is_some_and(|bytes| bytes > limit) {
            return Err(too_large(package, limit));
        }
        let wanted = announced.unwrap_or(limit);
        let reservation = match self.reserve(package, wanted, None) {
            Some(reservation) => reservation,
            None => {
                // The copies that it waits for may need its connection.
                drop(response);
                let waiting = Arc::clone(&self.shared.copies.space).acquire_many_owned(units(wanted));
                let granted = tokio::time::timeout(SPACE_DEADLINE, waiting).await.ok().and_then(Result::ok);
                let space = granted.ok_or_else(|| failed(folder)(io::ErrorKind::StorageFull.into()))?;
                let changed = || PackageError::Changed { package: package.clone() };
                response = remote.whole().await?;
                if response.content_length != announced {
                    return Err(changed());
                }
                self.entered(package, space, None).ok_or_else(changed)?
            }
        };
        let announced = announced.unwrap_or_default();
        let mut version = remote.version_of(&response, announced)?;
        let first = remote.beginning(&mut response.body).await?;
        if let Some(seen) = remote::other_kind(&first) {
            // The rest, however long, would show nothing else.
            return Err(PackageError::NotZip { package: package.clone(), seen: seen.to_owned() });
        }
        off_the_workers(|| self.make_space(&reservation, announced, 0))?;
        let mut file = Unnamed::new(folder)?;
        let (mut length, mut granted) = (0, announced);
        let mut next = Some(Bytes::from(first));
        while let Some(bytes) = next {
            length += bytes.len() as u64;
            if length > limit {
                return Err(too_large(package, limit));
            }
            if length > granted {
                granted = length + STEP;
                off_the_workers(|| self.make_space(&reservation, granted.min(limit), length))?;
            }
            file.write(&bytes)?;
            next = remote.chunk(&mut response.body).await?;
        }
        version.length = length;
        self.complete(package, version, file).await
    }

    /// Gives a whole package its name, and reads its directory.
    async fn complete(&self, package: &Uri, version: Version, copy: Unnamed) -> Result<Directory, PackageError> {
        let folder = &self.shared.config.folder;
        let whole = file(folder, package, "whole");
        folder::remove(&whole);
        describe(folder, package, &version)?;
        copy.name(&whole)?;
        let read = self.read_local(package, version).await;
        if read.as_ref().is_err_and(|error| !error.is_retryable()) {
            folder::remove(&whole);
        }
        read
    }

    /// The directory of the local copy in the folder, which is of this version.
    async fn read_local(&self, package: &Uri, version: Version) -> Result<Directory, PackageError> {
        let (folder, limit) = (&self.shared.config.folder, self.shared.config.directory);
        let (path, own) = (file(folder, package, "whole"), package.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let file = File::open(&path).map_err(failed(&path))?;
            // Used now: others are removed before it.
            file.set_modified(SystemTime::now()).map_err(failed(&path))?;
            let clone = file.try_clone().map_err(failed(&path))?;
            let place = Place::File((Arc::new(file), Arc::new(path)));
            Directory::read(&own, &version, place, BufReader::new(clone), limit)
        });
        match reading.await.unwrap_or_else(|cause| Err(failed(folder)(io::Error::other(cause)))) {
            Err(PackageError::Damaged { cause: Some(_), .. }) => {
                let seen = self.remote(package).kind().await;
                Err(PackageError::NotZip { package: package.clone(), seen })
            }
            read => read,
        }
    }

    /// The local copy that an earlier process has left; its version is not compared with the server's.
    pub(super) async fn left_copy(&self, package: &Uri) -> Option<Directory> {
        let folder = &self.shared.config.folder;
        let length = fs::metadata(file(folder, package, "whole")).ok()?.len();
        let version = described(folder, package).filter(|version| version.length == length)?;
        self.read_local(package, version).await.ok()
    }

    /// Removes the least recently used copies until this one of `length` bytes has its space, of which `here` are on the disk
    /// already: within the limit and the reserve. Copies on their way keep theirs.
    fn make_space(&self, own: &Reservation, length: u64, here: u64) -> Result<(), PackageError> {
        let (config, copies) = (&self.shared.config, &self.shared.copies);
        let reserved = copies.units as usize - copies.space.available_permits();
        let coming = reserved.saturating_sub(own.space.num_permits()) as u64 * UNIT;
        let mut others = Vec::new();
        for path in
            folder::files(&config.folder)?.into_iter().filter(|path| path.extension().is_some_and(|it| it == "whole"))
        {
            // A file that was removed meanwhile takes no space.
            if let Ok(metadata) = fs::metadata(&path) {
                others.push((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), metadata.len(), path));
            }
        }
        others.sort();
        let mut taken: u64 = others.iter().map(|(_, length, _)| length).sum();
        // Where the free bytes are unknown the file system's own refusal has to do.
        let free = (config.free_space)(&config.folder).unwrap_or(u64::MAX);
        let needed = config.reserve.saturating_add(length.saturating_sub(here)).saturating_add(coming);
        let mut shortage = needed.saturating_sub(free);
        if shortage > taken {
            return Err(failed(&config.folder)(io::ErrorKind::StorageFull.into()));
        }
        for (_, bytes, path) in others {
            if taken.saturating_add(coming).saturating_add(length) <= config.whole && shortage == 0 {
                break;
            }
            self.forget_file(&path);
            folder::remove(&path);
            taken = taken.saturating_sub(bytes);
            shortage = shortage.saturating_sub(bytes);
        }
        Ok(())
    }

    /// Forgets the directory of a local copy that is about to be removed.
    fn forget_file(&self, path: &Path) {
        let is_own = |directory: &Arc<Directory>| matches!(&directory.place, Place::File((_, own)) if **own == path);
        let gone = self.directories().into_iter().find(is_own);
        gone.iter().for_each(|gone| self.forget(gone));
    }
}

fn too_large(package: &Uri, limit: u64) -> PackageError {
    PackageError::TooLarge { package: package.clone(), what: "the whole of it", limit }
}
