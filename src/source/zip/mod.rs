//! Packages of Resource Dumps and Change Dumps, read in place over ranges (sections 11.1 and 13.1): a ZIP's directory from
//! its end, members by their ranges, neighbours joined; the whole package where that is cheaper or ranges are not to be had.
//!
//! `remote` asks the server, `end` is what the `zip` crate sees of it, `directory` keeps what it says of the members and
//! finds them by a manifest's `path` (`path`); `bytes` reads on from an offset wherever the package lies, `decoder` makes
//! a member of that, `members` several of one request. A package is read in place only under a strong ETag, which every
//! range is bound to; each member is checked against the directory and by its CRC-32 before its last bytes go out.

mod decoder;
mod directory;
mod end;
mod error;
mod kept;
mod manifest;
mod members;
mod package_bytes;
mod path;
mod preview;
mod remote;
mod siblings;
mod whole;
mod windows;

#[cfg(test)]
mod tests;

pub use directory::Directory;
pub use error::PackageError;
pub use manifest::Manifest;
pub use members::{Member, Members, Stored};
pub use preview::Listed;

use super::http::Client;
use crate::document::{Limits, Uri};
use directory::{Version, too_large};
use end::End;
use lru::LruCache;
use package_bytes::Place;
use preview::Previews;
use remote::Answer;
use siblings::Siblings;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a package that cannot be read is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(60);

/// How long a failure that may pass is told to all who ask.
const FAILED_FOR: Duration = Duration::from_secs(5);

/// Ranges of one directory: its end, its beginning, and what a wrong account of its beginning costs.
const RANGES: usize = 3;

/// What packages may ask of this machine.
#[derive(Clone, Debug)]
pub struct PackageConfig {
    /// A folder of this mount alone, for manifests, directories and whole packages.
    pub folder: PathBuf,
    /// PackageBytes of memory for directories.
    pub memory: u64,
    /// PackageBytes that one directory may have at the server.
    pub directory: u64,
    /// PackageBytes of the folder that whole packages may take.
    pub whole: u64,
    /// PackageBytes that whole packages leave free on the file system.
    pub reserve: u64,
    /// How the free bytes of the file system of a folder are asked.
    pub free_space: fn(&Path) -> std::io::Result<u64>,
    /// Bounds on manifests.
    pub documents: Limits,
}

impl PackageConfig {
    /// 32 MiB of memory, directories up to 64 MiB (about 700,000 members), 4 GiB for whole packages, no reserve.
    pub fn new(folder: PathBuf) -> PackageConfig {
        let documents = Limits::default();
        let (memory, directory, whole) = (32 << 20, 64 << 20, 4 << 30);
        PackageConfig { folder, memory, directory, whole, reserve: 0, free_space: |_| Ok(u64::MAX), documents }
    }
}

/// The packages of a Source; cheap to clone, clones share everything.
#[derive(Clone, Debug)]
pub struct Packages {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    config: PackageConfig,
    /// Lock order: `opening` before `known`; neither is held while anything is waited for. Of one package the turn for its
    /// directory is taken first, and those for its other parts are never held together.
    opening: Mutex<Turns>,
    known: Mutex<Known>,
    /// PackageBytes that whole packages on their way may take, by [`kept::key`]; held for nothing else.
    arriving: Mutex<HashMap<String, u64>>,
    /// One of them is here, or was given up.
    arrived: tokio::sync::Notify,
    siblings: Siblings,
    /// Taken last, held for nothing else.
    previews: Mutex<Previews>,
    /// A package says other things than what was stated of it.
    contradiction: tokio::sync::Notify,
}

/// The turns that are taken or waited for.
type Turns = HashMap<(Uri, Piece), Arc<tokio::sync::Mutex<()>>>;

/// What of a package one task at a time brings here: a question for its directory or its copy waits for no whole package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Piece {
    Directory,
    Whole,
    /// The published copy of its manifest.
    Copy,
}

/// What is in memory.
#[derive(Debug)]
struct Known {
    directories: LruCache<Uri, Arc<Directory>>,
    /// PackageBytes that `directories` take.
    bytes: u64,
    failures: LruCache<Uri, (Instant, PackageError)>,
    /// Versions that are no ZIP, with what is wrong: one that the server still has is not fetched again.
    refused: LruCache<Uri, (Version, PackageError)>,
    /// Hosts that have shown that packages can be read in place.
    ranged: LruCache<Box<str>, ()>,
}

impl Packages {
    /// Opens the folder, or makes it.
    ///
    /// # Errors
    /// [`PackageError::Folder`]
    pub fn open(client: Client, config: PackageConfig) -> Result<Packages, PackageError> {
        fs::create_dir_all(&config.folder).map_err(kept::failed(&config.folder))?;
        kept::sweep(&config.folder, None)?;
        let failures = LruCache::new(FAILURES);
        let (refused, ranged) = (LruCache::new(FAILURES), LruCache::new(RANGED_HOSTS));
        let known = Known { directories: LruCache::unbounded(), bytes: 0, failures, refused, ranged };
        let previews = preview::left(&config.folder)?;
        let contradiction = tokio::sync::Notify::new();
        if previews.values().any(|preview| preview.is_contradicted) {
            contradiction.notify_one();
        }
        let (opening, siblings) = (Mutex::default(), Siblings::new());
        let (known, previews) = (Mutex::new(known), Mutex::new(previews));
        let (arriving, arrived) = (Mutex::default(), tokio::sync::Notify::new());
        let shared = Shared { client, config, opening, known, arriving, arrived, siblings, previews, contradiction };
        Ok(Packages { shared: Arc::new(shared) })
    }

    /// The directory of a package that is in memory; nothing is waited for.
    pub fn known(&self, package: &Uri) -> Option<Arc<Directory>> {
        self.lock().directories.get(package).cloned()
    }

    /// The directory of a package: the one that is known, else read from the end of the package. Where it cannot be read
    /// in place the whole package is fetched, up to [`PackageConfig::whole`].
    ///
    /// # Errors
    /// Any [`PackageError`] of the package; one that was met lately is told again without asking.
    pub async fn directory(&self, package: &Uri) -> Result<Arc<Directory>, PackageError> {
        if let Some(directory) = self.known(package) {
            return Ok(directory);
        }
        let _turn = self.turn(package, Piece::Directory).await;
        if let Some(known) = self.recall(package) {
            return known;
        }
        let read = match self.left(package).await {
            Some(left) => Ok(left),
            None => self.read(package, None).await,
        };
        self.opened(package, read).await
    }

    /// The directory of the version that the server has now: it is asked whether it is still the known one.
    ///
    /// # Errors
    /// See [`Packages::directory`].
    pub async fn current(&self, package: &Uri) -> Result<Arc<Directory>, PackageError> {
        let _turn = self.turn(package, Piece::Directory).await;
        let known = match self.recall(package) {
            Some(Ok(known)) => Some(known),
            Some(Err(error)) => return Err(error),
            None => self.left(package).await,
        };
        let read = self.read(package, known).await;
        self.opened(package, read).await
    }

    /// A directory has been read: it is remembered, and held against what was stated of the package.
    async fn opened(
        &self,
        package: &Uri,
        read: Result<Arc<Directory>, PackageError>,
    ) -> Result<Arc<Directory>, PackageError> {
        if let Ok(directory) = &read {
            if directory.version.etag.is_some() && matches!(directory.place, Place::Server) {
                self.lock().ranged.put(package.authority().into(), ());
            }
            self.confirm(directory).await;
        }
        self.remember(package, read)
    }

    /// Whether the host of `package` has shown that packages can be read in place.
    fn has_ranges(&self, package: &Uri) -> bool {
        self.lock().ranged.contains(package.authority())
    }

    /// Drops everything that is kept of other packages than these and those that are being read just now.
    ///
    /// # Errors
    /// [`PackageError::Folder`]
    pub fn retain(&self, packages: &HashSet<Uri>) -> Result<(), PackageError> {
        // Held to the end: nobody begins to read a package while its files are dropped.
        let opening = self.shared.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let retained: HashSet<&Uri> = packages.iter().chain(opening.keys().map(|(package, _)| package)).collect();
        let others: Vec<Arc<Directory>> = {
            let known = self.lock();
            let others = known.directories.iter().filter(|(package, _)| !retained.contains(package));
            others.map(|(_, directory)| Arc::clone(directory)).collect()
        };
        others.iter().for_each(|directory| self.forget(directory));
        self.retain_previews(&retained);
        kept::sweep(&self.shared.config.folder, Some(&retained))
    }

    /// What an earlier process has left: the whole package, or the directory of a version with a strong ETag, to which every
    /// range will be bound.
    async fn left(&self, package: &Uri) -> Option<Arc<Directory>> {
        if let Some(whole) = self.left_whole(package).await {
            return Some(Arc::new(whole));
        }
        let (folder, limit) = (self.shared.config.folder.clone(), self.shared.config.directory);
        let package = package.clone();
        let kept = tokio::task::spawn_blocking(move || kept::kept(&folder, &package, limit));
        kept.await.ok()?.map(Arc::new)
    }

    /// Forgets a directory whose version the server does not have any more, and what is kept of it.
    fn forget(&self, directory: &Directory) {
        let package = directory.package();
        {
            let mut known = self.lock();
            if known.directories.peek(package).is_some_and(|known| known.version != directory.version) {
                // Someone else has the new version already.
                return;
            }
            if let Some(gone) = known.directories.pop(package) {
                known.bytes = known.bytes.saturating_sub(gone.bytes());
            }
        }
        let folder = &self.shared.config.folder;
        if self.bytes_of_preview(package).is_none() {
            manifest::remove_manifest(folder, directory);
        }
        for kind in ["directory", "whole", "part", "json"] {
            kept::remove(&kept::file(folder, package, kind));
        }
    }

    /// Forgets the directory of a whole package that is about to be removed.
    fn forget_file(&self, path: &Path) {
        let gone = self.lock().directories.iter().find_map(|(_, directory)| match &directory.place {
            Place::File { path: own, .. } if own.as_path() == path => Some(Arc::clone(directory)),
            _ => None,
        });
        if let Some(gone) = gone {
            self.forget(&gone);
        }
    }

    /// Waits until no other task brings this `piece` of `package` here.
    async fn turn(&self, package: &Uri, piece: Piece) -> Turn<'_> {
        let of = (package.clone(), piece);
        let lock = {
            let mut opening = self.shared.opening.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(opening.entry(of.clone()).or_default())
        };
        let guard = Arc::clone(&lock).lock_owned().await;
        Turn { packages: self, of, guard: Some(guard) }
    }

    /// What is known of `package`, a failure included.
    fn recall(&self, package: &Uri) -> Option<Result<Arc<Directory>, PackageError>> {
        let mut known = self.lock();
        if let Some(directory) = known.directories.get(package) {
            return Some(Ok(Arc::clone(directory)));
        }
        let (since, error) = known.failures.peek(package)?;
        let counts = if error.is_retryable() { FAILED_FOR } else { LEFT_ALONE };
        if since.elapsed() < counts {
            return Some(Err(error.clone()));
        }
        known.failures.pop(package);
        None
    }

    /// Whether a failure of `package` is remembered that counts still.
    fn has_failed(&self, package: &Uri) -> bool {
        matches!(self.recall(package), Some(Err(_)))
    }

    fn remember(
        &self,
        package: &Uri,
        read: Result<Arc<Directory>, PackageError>,
    ) -> Result<Arc<Directory>, PackageError> {
        let mut known = self.lock();
        match &read {
            Ok(directory) => {
                known.failures.pop(package);
                // The whole of this version came while the server was asked for it.
                if matches!(directory.place, Place::Server)
                    && let Some(whole) = known.directories.get(package)
                    && whole.version == directory.version
                    && !matches!(whole.place, Place::Server)
                {
                    return Ok(Arc::clone(whole));
                }
                known.bytes += directory.bytes();
                if let Some(before) = known.directories.put(package.clone(), Arc::clone(directory)) {
                    known.bytes = known.bytes.saturating_sub(before.bytes());
                }
                // The newest stays, however large it is: it is about to be used.
                while known.bytes > self.shared.config.memory
                    && known.directories.len() > 1
                    && let Some((_, evicted)) = known.directories.pop_lru()
                {
                    known.bytes = known.bytes.saturating_sub(evicted.bytes());
                }
            }
            Err(error) => {
                known.failures.put(package.clone(), (Instant::now(), error.clone()));
            }
        }
        read
    }

    /// Reads the directory from the server, or finds that the `known` one is still right.
    async fn read(&self, package: &Uri, known: Option<Arc<Directory>>) -> Result<Arc<Directory>, PackageError> {
        let client = &self.shared.client;
        let refused = self.lock().refused.get(package).cloned().filter(|_| known.is_none());
        for _ in 0..RANGES {
            let version = known.as_ref().map(|known| &known.version);
            let version = version.or(refused.as_ref().map(|(version, _)| version));
            match (remote::ask_end(client, package, version).await?, &known) {
                (Answer::Same, Some(known)) => return Ok(Arc::clone(known)),
                (Answer::Same, None) => match refused {
                    Some((_, error)) => return Err(error),
                    // A 304 to a question without condition is refused by the client.
                    None => break,
                },
                (Answer::Whole(response), _) => return self.arrive(package, *response).await.map(Arc::new),
                (Answer::End(version, end), _) => match self.in_place(package, version.clone(), end).await {
                    // Another version came up between two ranges.
                    Err(PackageError::Changed { .. }) => {}
                    Err(error) => return Err(self.refuse(package, version, error)),
                    Ok(directory) => return Ok(self.keep(directory).await),
                },
            }
        }
        Err(PackageError::Changed { package: package.clone() })
    }

    /// Remembers of which version it is that it is no ZIP.
    fn refuse(&self, package: &Uri, version: Version, error: PackageError) -> PackageError {
        if matches!(error, PackageError::NotZip { .. }) {
            self.lock().refused.put(package.clone(), (version, error.clone()));
        }
        error
    }

    /// Writes a directory down for the next process.
    async fn keep(&self, directory: Directory) -> Arc<Directory> {
        let (folder, directory) = (self.shared.config.folder.clone(), Arc::new(directory));
        if !matches!(directory.place, Place::Server) {
            return directory;
        }
        let own = Arc::clone(&directory);
        let written =
            tokio::task::spawn_blocking(move || kept::keep(&folder, &own)).await.map_err(std::io::Error::other);
        if let Err(error) = written.and_then(|written| written) {
            let package = directory.package();
            tracing::warn!(%package, %error, "a directory cannot be kept; it will be asked for after a restart");
        }
        directory
    }

    /// Reads the directory of a version of which the end is here, and more of it where it is larger than that.
    async fn in_place(&self, package: &Uri, version: Version, mut end: End) -> Result<Directory, PackageError> {
        let limit = self.shared.config.directory;
        for _ in 0..RANGES {
            let (package_, version_) = (package.clone(), version.clone());
            // A directory of a million members takes a second to read.
            let task = tokio::task::spawn_blocking(move || {
                let read = Directory::read(&package_, &version_, &mut end, limit);
                (read, end)
            });
            let (read, back) =
                task.await.map_err(|_| PackageError::damaged(package, "reading its directory failed"))?;
            end = back;
            match (read, end.missed()) {
                (Ok(Some(mut directory)), _) => {
                    if let Some(bytes) = end.into_whole() {
                        directory.place = Place::Memory { first: 0, bytes: bytes.into() };
                    }
                    return Ok(directory);
                }
                (Ok(None), Some(missed)) => {
                    if end.length() - missed > limit {
                        return Err(too_large(package, limit));
                    }
                    let range = missed..end.first();
                    end.prepend(remote::range(&self.shared.client, package, &version, range).await?);
                }
                (Err(PackageError::Damaged { cause: Some(cause), .. }), _) if !end.has_directory() => {
                    tracing::debug!(%package, error = %cause, "no directory at the end of a package");
                    let seen = remote::describe(&self.shared.client, package).await;
                    return Err(PackageError::NotZip { package: package.clone(), seen });
                }
                (Err(error), _) => return Err(error),
                (Ok(None), None) => break,
            }
        }
        Err(PackageError::damaged(package, "its directory begins at ever other places"))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.shared.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hosts remembered for their ranges.
const RANGED_HOSTS: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN.saturating_add(255);

/// Failures remembered; an older one is met again.
const FAILURES: std::num::NonZeroUsize = match std::num::NonZeroUsize::new(1024) {
    Some(failures) => failures,
    None => std::num::NonZeroUsize::MIN,
};

/// The right to bring one part of one package here.
struct Turn<'a> {
    packages: &'a Packages,
    of: (Uri, Piece),
    guard: Option<tokio::sync::OwnedMutexGuard<()>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut opening = self.packages.shared.opening.lock().unwrap_or_else(PoisonError::into_inner);
        self.guard = None;
        // Those who wait hold clones of it; who comes later makes another.
        if opening.get(&self.of).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            opening.remove(&self.of);
        }
    }
}
