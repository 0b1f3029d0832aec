//! Packages of Resource Dumps and Change Dumps, read in place over ranges (sections 11.1 and 13.1): a ZIP's directory from
//! its end, members by their ranges; a local copy where that is cheaper or the server has no ranges.
//!
//! `remote` asks the server, `directory` keeps what the `zip` crate reads from the end and finds members by a manifest's
//! `path`; `bytes` reads on from an offset wherever the package is, `member` unpacks one member of that; `window` decides
//! what comes together. A package is read in place only under a strong ETag, which every range is bound to; each member is
//! checked against the directory and by its CRC-32 before its last bytes go out.

mod arriving;
mod bytes;
mod directory;
mod error;
mod folder;
mod local_copy;
mod local_header;
mod manifest;
mod member;
mod path;
mod preview;
mod reading;
mod remote;
mod window;

#[cfg(test)]
mod tests;

pub use directory::Directory;
pub use error::PackageError;
pub use manifest::Manifest;
pub use member::{Member, Stored};
pub use preview::Listed;
pub use reading::Reading;
pub use remote::Received;

use super::http::Client;
use crate::document::{Limits, Uri};
use crate::platform::memory_budget::Budget;
use crate::platform::penalty_box::PenaltyBox;
use crate::platform::single_flight::SingleFlight;
use bytes::BytesPlace;
use directory::{DIRECTORY, EndRecord};
use local_copy::LocalCopies;
use lru::LruCache;
use preview::StandIns;
use remote::{Counter, PackageAnswer, PackageServer, PackageVersion};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use window::Walks;

/// How long a package that cannot be read is not asked for.
const PENALTY: Duration = Duration::from_secs(60);

/// Penalty after a failure that may pass.
const SHORT_PENALTY: Duration = Duration::from_secs(5);

/// Failures remembered; an older one is met again.
const FAILURES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1023);

/// Ranges of one directory: its end, its beginning, and what a wrong account of its beginning costs.
const RANGES: usize = 3;

/// Memory for windows where no budget is handed in.
const MEMORY: usize = 32 << 20;

/// Resources of this machine that packages may take.
#[derive(Clone)]
pub struct PackageConfig {
    /// A folder of this mount alone, for manifests and local copies.
    pub folder: PathBuf,
    /// Bytes of memory for directories.
    pub memory: u64,
    /// Bytes that one directory may have at the server.
    pub directory: u64,
    /// Bytes of the folder that local copies may take.
    pub whole: u64,
    /// Bytes that local copies leave free on the file system.
    pub reserve: u64,
    /// How the free bytes of the file system of a folder are asked.
    pub free_space: fn(&Path) -> std::io::Result<u64>,
    /// Bounds on manifests.
    pub documents: Limits,
    /// Memory for windows.
    pub(crate) budget: Budget,
}

impl PackageConfig {
    /// 32 MiB of memory, directories up to 64 MiB (about 700,000 members), 4 GiB for local copies, no reserve.
    pub fn new(folder: PathBuf) -> PackageConfig {
        let (memory, directory, whole, reserve) = (32 << 20, 64 << 20, 4 << 30, 0);
        let (documents, budget) = (Limits::default(), Budget::new(MEMORY));
        PackageConfig { folder, memory, directory, whole, reserve, free_space: |_| Ok(u64::MAX), documents, budget }
    }
}

/// The packages of a Source; cheap to clone, clones share everything.
#[derive(Clone)]
pub struct Packages {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    config: PackageConfig,
    /// The directories that are being read, with the bytes that come for it: the one that is known, or of what the server has now.
    reading: SingleFlight<(Uri, Asked), Result<Arc<Directory>, PackageError>, Counter>,
    /// Each lock is held for nothing else, and while nothing is waited for and no file is touched.
    known: Mutex<Known>,
    stand_ins: Mutex<StandIns>,
    /// One lock a package, held while its stand-in is replaced or compared.
    comparing: Mutex<HashMap<Uri, Arc<tokio::sync::Mutex<()>>>>,
    /// The manifests that are being unpacked, by their files, with the bytes that come for them.
    unpacking: SingleFlight<PathBuf, Result<(), PackageError>, Counter>,
    copies: LocalCopies,
    walks: Walks,
    /// A package says other things than what was stated of it.
    contradiction: Notify,
}

/// Which directory is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Asked {
    Known,
    Current,
}

/// Part of a package that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Piece {
    Directory,
    LocalCopy,
}

/// Directories in memory.
struct Known {
    directories: LruCache<Uri, Arc<Directory>>,
    /// Bytes that `directories` take.
    bytes: u64,
    failures: PenaltyBox<(Uri, Piece), PackageError>,
}

impl std::fmt::Debug for Packages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packages").field("folder", &self.shared.config.folder).finish_non_exhaustive()
    }
}

impl Packages {
    /// Opens the folder, or makes it.
    ///
    /// # Errors
    /// [`PackageError::Folder`]
    pub fn open(client: Client, config: PackageConfig) -> Result<Packages, PackageError> {
        fs::create_dir_all(&config.folder).map_err(folder::failed(&config.folder))?;
        // What was half written when a process was killed, and directories, which earlier releases wrote down.
        folder::sweep(&config.folder, |name, _| !name.ends_with(".tmp") && !name.ends_with(".directory"))?;
        let failures = PenaltyBox::new(FAILURES);
        let known = Known { directories: LruCache::unbounded(), bytes: 0, failures };
        let (stand_ins, copies) = (preview::left(&config.folder)?, LocalCopies::default());
        let contradiction = Notify::new();
        if stand_ins.values().any(|stand_in| stand_in.is_contradicted) {
            contradiction.notify_one();
        }
        let shared = Shared {
            client,
            config,
            reading: SingleFlight::default(),
            known: Mutex::new(known),
            stand_ins: Mutex::new(stand_ins),
            comparing: Mutex::default(),
            unpacking: SingleFlight::default(),
            copies,
            walks: Walks::new(),
            contradiction,
        };
        Ok(Packages { shared: Arc::new(shared) })
    }

    /// The directory of a package that is in memory; nothing is waited for.
    pub fn known(&self, package: &Uri) -> Option<Arc<Directory>> {
        self.lock().directories.get(package).cloned()
    }

    /// The directory of a package: the one that is known, else read from the end of the package. Where it cannot be read
    /// in place the whole package is fetched, up to [`PackageConfig::whole`]. It goes on where this is dropped.
    ///
    /// # Errors
    /// Any [`PackageError`] of the package; a recent one is repeated without a request.
    pub async fn directory(&self, package: &Uri) -> Result<Arc<Directory>, PackageError> {
        self.directory_for(package, &Received::default()).await
    }

    /// Directory of a package; its bytes are counted as `received`.
    async fn directory_for(&self, package: &Uri, received: &Received) -> Result<Arc<Directory>, PackageError> {
        match self.known(package) {
            Some(directory) => Ok(self.confirmed(directory, received).await),
            None => self.read_once(package, Asked::Known, received).await,
        }
    }

    /// The directory of the version that the server has now: it is asked whether it is still the known one.
    ///
    /// # Errors
    /// See [`Packages::directory`].
    pub async fn current(&self, package: &Uri) -> Result<Arc<Directory>, PackageError> {
        self.read_once(package, Asked::Current, &Received::default()).await
    }

    async fn read_once(
        &self,
        package: &Uri,
        asked: Asked,
        received: &Received,
    ) -> Result<Arc<Directory>, PackageError> {
        let (counter, reading) = self.shared.reading.join(&Handle::current(), (package.clone(), asked), || {
            let (packages, remote) = (self.clone(), self.remote(package));
            (Arc::clone(&remote.received), async move { packages.read(&remote, asked).await })
        });
        received.add(&counter);
        let broken = || Err(PackageError::damaged(package, "reading its directory failed"));
        Ok(self.confirmed(reading.await.unwrap_or_else(broken)?, received).await)
    }

    /// Reads a directory, and remembers it.
    async fn read(&self, remote: &PackageServer, asked: Asked) -> Result<Arc<Directory>, PackageError> {
        let package = &remote.package;
        if let Some(error) = self.failure(package, Piece::Directory) {
            return Err(error);
        }
        let read = match self.here(package).await {
            Some(here) if asked == Asked::Known => Ok(here),
            here => self.read_from_server(remote, here).await,
        };
        self.remember(package, read)
    }

    /// The directory that is in memory, or that of the local copy; the server is not asked.
    async fn here(&self, package: &Uri) -> Option<Arc<Directory>> {
        match self.known(package) {
            Some(known) => Some(known),
            None => self.left_copy(package).await.map(Arc::new),
        }
    }

    /// Drops everything of other packages than these and those of which a local copy is on its way.
    ///
    /// # Errors
    /// [`PackageError::Folder`]
    pub fn retain(&self, packages: &HashSet<Uri>) -> Result<(), PackageError> {
        let retained: HashSet<Uri> = packages.iter().cloned().chain(self.shared.copies.packages()).collect();
        let others = self.directories().into_iter().filter(|directory| !retained.contains(directory.package()));
        others.for_each(|directory| self.forget(&directory));
        self.retain_stand_ins(&retained);
        let keys: HashSet<String> = retained.iter().map(folder::key).collect();
        // A package that begins to be read meanwhile may lose a file, and asks for it again.
        folder::sweep(&self.shared.config.folder, |name, key| name.ends_with(".tmp") || keys.contains(key))
    }

    /// Forgets a directory whose version the server does not have any more, and its files.
    fn forget(&self, directory: &Directory) {
        let package = directory.package();
        {
            let mut known = self.lock();
            if known.directories.peek(package).is_some_and(|known| known.version != directory.version) {
                // The new version is here already.
                return;
            }
            if let Some(gone) = known.directories.pop(package) {
                known.bytes = known.bytes.saturating_sub(gone.bytes());
            }
        }
        let folder = &self.shared.config.folder;
        manifest::remove_manifest(folder, directory);
        for kind in ["whole", "json"] {
            folder::remove(&folder::file(folder, package, kind));
        }
    }

    fn remote(&self, package: &Uri) -> PackageServer {
        PackageServer::new(&self.shared.client, package)
    }

    fn failure(&self, package: &Uri, piece: Piece) -> Option<PackageError> {
        self.lock().failures.cause(&(package.clone(), piece), Instant::now()).cloned()
    }

    fn punish(&self, package: &Uri, piece: Piece, error: &PackageError) {
        if error.is_unsent() {
            return;
        }
        let length = if error.is_retryable() { SHORT_PENALTY } else { PENALTY };
        self.lock().failures.punish((package.clone(), piece), length, error.clone(), Instant::now());
    }

    fn remember(
        &self,
        package: &Uri,
        read: Result<Arc<Directory>, PackageError>,
    ) -> Result<Arc<Directory>, PackageError> {
        let directory = read.inspect_err(|error| self.punish(package, Piece::Directory, error))?;
        let mut known = self.lock();
        known.failures.forgive(&(package.clone(), Piece::Directory));
        // The local copy of this version came while the server was asked for it.
        if directory.is_read_in_place() {
            if let Some(copy) = known.directories.get(package) {
                if copy.version == directory.version && !copy.is_read_in_place() {
                    return Ok(Arc::clone(copy));
                }
            }
        }
        known.bytes += directory.bytes();
        if let Some(before) = known.directories.put(package.clone(), Arc::clone(&directory)) {
            known.bytes = known.bytes.saturating_sub(before.bytes());
        }
        // The newest stays, however large it is: it is about to be used.
        while known.bytes > self.shared.config.memory && known.directories.len() > 1 {
            let Some((_, evicted)) = known.directories.pop_lru() else { break };
            known.bytes = known.bytes.saturating_sub(evicted.bytes());
        }
        Ok(directory)
    }

    /// Reads the directory from the server, or finds that the `known` one is still right.
    async fn read_from_server(
        &self,
        remote: &PackageServer,
        known: Option<Arc<Directory>>,
    ) -> Result<Arc<Directory>, PackageError> {
        for _ in 0..RANGES {
            match (remote.end(known.as_ref().map(|known| &known.version)).await?, &known) {
                (PackageAnswer::Same, Some(known)) => return Ok(Arc::clone(known)),
                // A 304 to a question without condition is refused by the client.
                (PackageAnswer::Same, None) => break,
                (PackageAnswer::Whole(response), _) => return self.receive(remote, *response).await.map(Arc::new),
                (PackageAnswer::End(version, first, bytes), _) => {
                    match self.in_place(remote, version, EndRecord::new(first, bytes)).await {
                        // Another version came up between two ranges.
                        Err(PackageError::Changed { .. }) => {}
                        read => return read.map(Arc::new),
                    }
                }
            }
        }
        Err(PackageError::Changed { package: remote.package.clone() })
    }

    /// Reads the directory of a version of which the end is here, and more of it where it is larger than that.
    async fn in_place(
        &self,
        remote: &PackageServer,
        version: PackageVersion,
        mut end: EndRecord,
    ) -> Result<Directory, PackageError> {
        let (package, limit) = (&remote.package, self.shared.config.directory);
        for _ in 0..RANGES {
            let (own, of) = (package.clone(), version.clone());
            // A directory of a million members takes a second to read.
            let reading = tokio::task::spawn_blocking(move || {
                let read = Directory::read(&own, &of, BytesPlace::Server, &mut end, limit);
                (read, end)
            });
            let (read, back) =
                reading.await.map_err(|_| PackageError::damaged(package, "reading its directory failed"))?;
            end = back;
            match (read, end.missed.take()) {
                (Ok(mut directory), _) => {
                    if end.first == 0 {
                        directory.place = BytesPlace::Memory(end.bytes.into());
                    }
                    return Ok(directory);
                }
                (Err(_), Some(missed)) if end.length - missed > limit => {
                    return Err(PackageError::too_large(package, DIRECTORY, limit));
                }
                (Err(PackageError::Damaged { cause: Some(_), .. }), Some(missed)) => {
                    let (range, length) = (missed..end.first, end.first - missed);
                    let body = remote.range(&version, range, Default::default()).await?;
                    let mut bytes = remote.all(body, length).await?;
                    bytes.append(&mut end.bytes);
                    end = EndRecord::new(missed, bytes);
                }
                (Err(PackageError::Damaged { cause: Some(cause), .. }), None) if !end.has_directory() => {
                    tracing::debug!(%package, error = %cause, "no directory at the end of a package");
                    let kind = (end.first == 0).then(|| remote::other_kind(&end.bytes)).flatten();
                    let not_zip = |seen: &str| PackageError::NotZip { package: package.clone(), seen: seen.into() };
                    return Err(kind.map_or_else(|| PackageError::no_directory(package), not_zip));
                }
                (Err(error), _) => return Err(error),
            }
        }
        Err(PackageError::damaged(package, "its directory begins at a different place each time"))
    }

    fn directories(&self) -> Vec<Arc<Directory>> {
        self.lock().directories.iter().map(|(_, directory)| Arc::clone(directory)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.shared.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
