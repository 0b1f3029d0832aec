//! Local copies: whole packages in the folder, within their limit and the free-space reserve.
//!
//! A copy on its way holds one reservation: while it lasts no other download of the package begins, its bytes have their place on
//! the disk, and its files are not removed. Requests for the directory or the manifest never wait for it.

use super::arriving::{Arriving, Feed};
use super::bytes::{BytesPlace, PackageBytes};
use super::directory::Directory;
use super::folder::{self, Unnamed, describe, described, failed, file};
use super::remote::{self, PackageServer, PackageVersion};
use super::{PackageError, Packages, Piece};
use crate::document::Uri;
use crate::platform::error_chain::chain;
use crate::platform::scheduling::off_the_workers;
use crate::source::http::{Priority, Response};
use bytes::Bytes;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;

/// How often a whole package that cannot be resumed is asked for.
const ATTEMPTS: u32 = 3;

/// A package of unknown length gets disk space in steps of so many bytes.
const STEP: u64 = 16 << 20;

/// How long a package waits for disk space that others on their way have reserved.
const SPACE_DEADLINE: Duration = Duration::from_secs(3600);

/// The copies on their way.
#[derive(Debug, Default)]
pub(super) struct LocalCopies {
    /// Held for nothing else.
    under_way: Mutex<HashMap<Uri, UnderWay>>,
    /// One of them has released its space.
    released: Notify,
}

#[derive(Debug)]
struct UnderWay {
    /// Disk space that is reserved for it.
    bytes: u64,
    /// Copy that can be read while it arrives; `None` for a package without ranges.
    copy: Option<Arc<Arriving>>,
}

/// The right to bring one local copy here, with its disk space.
pub(super) struct CopyReservation {
    packages: Packages,
    package: Uri,
}

impl Drop for CopyReservation {
    fn drop(&mut self) {
        let copies = &self.packages.shared.copies;
        copies.under_way().remove(&self.package);
        copies.released.notify_waiters();
    }
}

impl LocalCopies {
    fn under_way(&self) -> MutexGuard<'_, HashMap<Uri, UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The packages whose files are being written.
    pub fn packages(&self) -> Vec<Uri> {
        self.under_way().keys().cloned().collect()
    }

    fn reserved(&self) -> u64 {
        self.under_way().values().map(|copy| copy.bytes).sum()
    }
}

impl Packages {
    /// The local copy of this version that is on its way.
    pub(super) fn local_copy(&self, directory: &Directory) -> Option<Arc<Arriving>> {
        let under_way = self.shared.copies.under_way();
        let copy = under_way.get(directory.package())?.copy.clone();
        copy.filter(|copy| copy.version == directory.version)
    }

    /// Local copy of this version; where there is none one begins, unless there is no space for it or it failed lately. Never waits.
    pub(super) fn begin_local_copy(&self, directory: &Arc<Directory>) -> Option<Arc<Arriving>> {
        if let Some(copy) = self.local_copy(directory) {
            return Some(copy);
        }
        let package = directory.package();
        if self.failure(package, Piece::LocalCopy).is_some() {
            return None;
        }
        let remote = self.remote(package);
        let (copy, feed) = Arriving::local_copy(&directory.version, &remote.received);
        let reservation = self.reserve(package, directory.length(), Some(Arc::clone(&copy)))?;
        let task = self.clone().bring_local_copy(Arc::clone(directory), remote, copy.priority(), feed, reservation);
        tokio::spawn(task);
        Some(copy)
    }

    /// `None` where the copies on their way leave too little space for now, or this package is one of them.
    pub(super) fn reserve(&self, package: &Uri, bytes: u64, copy: Option<Arc<Arriving>>) -> Option<CopyReservation> {
        let copies = &self.shared.copies;
        let mut under_way = copies.under_way();
        let reserved: u64 = under_way.values().map(|copy| copy.bytes).sum();
        if reserved.saturating_add(bytes) > self.shared.config.whole || under_way.contains_key(package) {
            return None;
        }
        under_way.insert(package.clone(), UnderWay { bytes, copy });
        Some(CopyReservation { packages: self.clone(), package: package.clone() })
    }

    async fn bring_local_copy(
        self,
        directory: Arc<Directory>,
        remote: PackageServer,
        priority: Priority,
        feed: Feed,
        reservation: CopyReservation,
    ) {
        let package = directory.package();
        match self.download(&directory, remote, priority, &feed).await {
            // Unless the server was found to have another version meanwhile.
            Ok(copy) if self.known(package).is_none_or(|known| known.version == copy.version) => {
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
        remote: PackageServer,
        priority: Priority,
        feed: &Feed,
    ) -> Result<Directory, PackageError> {
        let (package, version) = (directory.package(), &directory.version);
        off_the_workers(|| self.make_space(0))?;
        let mut file = Unnamed::new(&self.shared.config.folder)?;
        feed.begin_in(file.local()?);
        let mut bytes = PackageBytes::new(remote, version, BytesPlace::Server, (0, version.length), priority);
        while bytes.position() < version.length {
            let next = bytes.next(version.length - bytes.position()).await?;
            file.write(&next)?;
            feed.reached(bytes.position());
        }
        self.complete(package, version.clone(), file).await
    }

    /// Brings the body of `response`, which is the whole, to the disk; asks again where it breaks off.
    pub(super) async fn receive(&self, remote: &PackageServer, response: Response) -> Result<Directory, PackageError> {
        let (package, limit) = (&remote.package, self.shared.config.whole);
        let (mut response, mut attempts) = (Some(response), 0);
        loop {
            let released = self.shared.copies.released.notified();
            let body = match response.take() {
                Some(response) => response,
                None => remote.whole().await?,
            };
            if body.content_length.is_some_and(|bytes| bytes > limit) {
                return Err(PackageError::too_large(package, "the whole of it", limit));
            }
            let Some(reservation) = self.reserve(package, body.content_length.unwrap_or(STEP).min(limit), None) else {
                // The copies that it waits for may need its connection.
                drop(body);
                let waited = tokio::time::timeout(SPACE_DEADLINE, released).await;
                waited.map_err(|_| self.no_space())?;
                continue;
            };
            attempts += 1;
            match self.receive_once(remote, body, &reservation).await {
                Err(error @ PackageError::Http { .. }) if error.is_retryable() && attempts < ATTEMPTS => {
                    tracing::debug!(%package, %error, "the download of a package ended early; it is repeated");
                }
                outcome => return outcome,
            }
        }
    }

    async fn receive_once(
        &self,
        remote: &PackageServer,
        mut response: Response,
        own: &CopyReservation,
    ) -> Result<Directory, PackageError> {
        let (package, limit) = (&remote.package, self.shared.config.whole);
        let mut version = remote.version_of(&response, 0)?;
        let first = remote.beginning(&mut response.body).await?;
        if let Some(seen) = remote::other_kind(&first) {
            // The rest, however long, would show nothing else.
            return Err(PackageError::NotZip { package: package.clone(), seen: seen.to_owned() });
        }
        off_the_workers(|| self.make_space(0))?;
        let mut file = Unnamed::new(&self.shared.config.folder)?;
        let mut next = Some(Bytes::from(first));
        while let Some(bytes) = next {
            version.length += bytes.len() as u64;
            if version.length > limit {
                return Err(PackageError::too_large(package, "the whole of it", limit));
            }
            self.extend(own, version.length)?;
            file.write(&bytes)?;
            next = remote.chunk(&mut response.body).await?;
        }
        self.complete(package, version, file).await
    }

    /// Reserves a further step of disk space where `length` bytes pass what is reserved.
    fn extend(&self, own: &CopyReservation, length: u64) -> Result<(), PackageError> {
        let (copies, limit) = (&self.shared.copies, self.shared.config.whole);
        {
            let mut under_way = copies.under_way();
            let others: u64 =
                under_way.iter().filter(|(other, _)| **other != own.package).map(|(_, it)| it.bytes).sum();
            let Some(copy) = under_way.get_mut(&own.package).filter(|copy| copy.bytes < length) else { return Ok(()) };
            copy.bytes = (length + STEP).min(limit.saturating_sub(others));
            if copy.bytes < length {
                return Err(self.no_space());
            }
        }
        off_the_workers(|| self.make_space(length))
    }

    fn no_space(&self) -> PackageError {
        failed(&self.shared.config.folder)(io::ErrorKind::StorageFull.into())
    }

    /// Gives a whole package its name, and reads its directory.
    pub(super) async fn complete(
        &self,
        package: &Uri,
        version: PackageVersion,
        copy: Unnamed,
    ) -> Result<Directory, PackageError> {
        let folder = &self.shared.config.folder;
        let whole = file(folder, package, "whole");
        folder::remove(&whole);
        describe(folder, package, &version)?;
        // From now on the file counts, not its reservation. Counted twice it could be removed to make space for another.
        if let Some(own) = self.shared.copies.under_way().get_mut(package) {
            own.bytes = 0;
        }
        copy.name(&whole)?;
        let read = self.read_local(package, version).await;
        if read.as_ref().is_err_and(|error| !error.is_retryable()) {
            folder::remove(&whole);
        }
        read
    }

    /// The directory of the local copy in the folder, which is of this version.
    async fn read_local(&self, package: &Uri, version: PackageVersion) -> Result<Directory, PackageError> {
        let (folder, limit) = (&self.shared.config.folder, self.shared.config.directory);
        let (path, own) = (file(folder, package, "whole"), package.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let file = File::open(&path).map_err(failed(&path))?;
            // Used now: others are removed before it.
            file.set_modified(SystemTime::now()).map_err(failed(&path))?;
            let clone = file.try_clone().map_err(failed(&path))?;
            let place = BytesPlace::File((Arc::new(file), Arc::new(path)));
            Directory::read(&own, &version, place, BufReader::new(clone), limit)
        });
        match reading.await.unwrap_or_else(|cause| Err(failed(folder)(io::Error::other(cause)))) {
            Err(PackageError::Damaged { cause: Some(_), .. }) => Err(PackageError::no_directory(package)),
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

    /// Removes the least recently used copies until those on their way have their space, within the limit and the reserve; one of
    /// them has `here` bytes on the disk already.
    pub(super) fn make_space(&self, here: u64) -> Result<(), PackageError> {
        let config = &self.shared.config;
        let mut copies = Vec::new();
        for path in folder::files(&config.folder)? {
            // A file that was removed meanwhile takes no space.
            if path.extension().is_some_and(|kind| kind == "whole") {
                if let Ok(metadata) = fs::metadata(&path) {
                    copies.push((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), metadata.len(), path));
                }
            }
        }
        copies.sort();
        let (taken, coming) = (copies.iter().map(|(_, length, _)| length).sum::<u64>(), self.shared.copies.reserved());
        // Where the free bytes are unknown the file system's own refusal has to do.
        let free = (config.free_space)(&config.folder).unwrap_or(u64::MAX);
        let shortage = config.reserve.saturating_add(coming.saturating_sub(here)).saturating_sub(free);
        if shortage > taken {
            return Err(self.no_space());
        }
        let mut excess = taken.saturating_add(coming).saturating_sub(config.whole).max(shortage);
        for (_, bytes, path) in copies {
            if excess == 0 {
                break;
            }
            self.forget_file(&path);
            folder::remove(&path);
            excess = excess.saturating_sub(bytes);
        }
        Ok(())
    }

    /// Forgets the directory of a local copy that is about to be removed.
    fn forget_file(&self, path: &Path) {
        let is_own =
            |directory: &Arc<Directory>| matches!(&directory.place, BytesPlace::File((_, own)) if **own == path);
        let gone = self.directories().into_iter().find(is_own);
        gone.iter().for_each(|gone| self.forget(gone));
    }
}
