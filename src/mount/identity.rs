//! Which folders a mount keeps its state in: one identity, one catalog.
//!
//! ```text
//! CACHE/                         0700
//!   content/                     objects of all mounts of this cache folder
//!   mounts/DIGEST/               one identity
//!     identity                   the text the digest is of
//!     catalog/  spool/  log
//!     packages/                  directories and manifests of packages, and whole packages
//!     websub.json                paths and secrets of subscriptions, 0600
//!     control                    the socket of the mount that runs
//!     audits/                    a folder for each audit under way
//!     observed/INSTANCE/         what reading taught of the inodes of one instance of the catalog; other folders of
//!                                mounts with `fixity=off`
//! ```

use super::point;
use super::privacy::check_cache;
use super::{MountConfig, MountError};
use crate::source::EntryPoint;
use sha2::{Digest, Sha256};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The folders of one mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folders {
    /// The catalog.
    pub catalog: PathBuf,
    /// What reading taught; a folder for each instance of the catalog.
    pub observed: PathBuf,
    /// Spooled documents.
    pub spool: PathBuf,
    /// Packages of dumps.
    pub packages: PathBuf,
    /// Objects, shared with other mounts.
    pub content: PathBuf,
    /// What all mounts keep beside the objects, this one's folders among them.
    pub mounts: PathBuf,
    /// Where a daemon writes its log.
    pub log: PathBuf,
    /// What subscriptions need to outlive the process.
    pub websub: PathBuf,
    /// The control socket.
    pub control: PathBuf,
    /// What audits under way need.
    pub audits: PathBuf,
}

impl Folders {
    /// The folders of `config`, not made yet.
    pub fn of(config: &MountConfig) -> Folders {
        let mounts = config.cache.join("mounts");
        let own = mounts.join(name(config));
        Folders {
            catalog: own.join("catalog"),
            observed: own.join("observed"),
            spool: own.join("spool"),
            packages: own.join("packages"),
            content: config.cache.join("content"),
            log: own.join("log"),
            websub: own.join("websub.json"),
            control: own.join("control"),
            audits: own.join("audits"),
            mounts,
        }
    }

    /// The folders of `config`, made for their owner alone.
    pub fn prepare(config: &MountConfig) -> Result<Folders, MountError> {
        let folders = Folders::of(config);
        check_place(&config.cache, &config.directory)?;
        check_cache(&config.cache)?;
        for folder in [&folders.catalog, &folders.observed, &folders.spool, &folders.packages, &folders.content] {
            make(folder).map_err(|cause| MountError::Cache { folder: folder.clone(), cause })?;
        }
        if let Some(own) = folders.log.parent() {
            let file = own.join("identity");
            std::fs::write(&file, text(config)).map_err(|cause| MountError::Cache { folder: file, cause })?;
        }
        Ok(folders)
    }
}

impl Folders {
    /// The folder for what is observed of the inodes of this instance of the catalog. What was observed of earlier ones is
    /// dropped: their inodes stand for other resources now.
    pub fn observed_of(&self, instance: &str) -> Result<PathBuf, MountError> {
        let failed = |folder: &Path| {
            let folder = folder.to_owned();
            move |cause| MountError::Cache { folder, cause }
        };
        for entry in std::fs::read_dir(&self.observed).map_err(failed(&self.observed))? {
            let entry = entry.map_err(failed(&self.observed))?;
            if entry.file_name() != instance {
                let path = entry.path();
                std::fs::remove_dir_all(&path).map_err(failed(&path))?;
            }
        }
        let folder = self.observed.join(instance);
        make(&folder).map_err(failed(&folder))?;
        Ok(folder)
    }
}

/// Everything that makes one tree another tree, a line each.
fn text(config: &MountConfig) -> String {
    let sync = &config.sync;
    let entry = match &sync.entry {
        EntryPoint::Uri(uri) => uri.to_string(),
        EntryPoint::File(path) => format!("file:{}", path.display()),
    };
    let mut lines = vec![format!("entry={entry}")];
    lines.extend(sync.set.iter().map(|set| format!("set={set}")));
    lines.extend(sync.host.iter().map(|host| format!("host={host}")));
    lines.extend(sync.maps.iter().map(|(from, to)| format!("map={from}={to}")));
    lines.extend(sync.extension_by_type.then(|| "extension=type".to_owned()));
    lines.extend(sync.as_of.iter().map(|at| format!("at={at}")));
    lines.extend(sync.selection.identity());
    lines.extend(config.fs.alternate.as_ref().map(|it| format!("alternate={}", it.to_ascii_lowercase())));
    lines.join("\n") + "\n"
}

fn name(config: &MountConfig) -> String {
    Sha256::digest(text(config)).iter().take(16).map(|octet| format!("{octet:02x}")).collect()
}

/// A mount hides what lies at and below its mount point: its own cache must not.
fn check_place(cache: &Path, directory: &Path) -> Result<(), MountError> {
    let refused = || MountError::Cache {
        folder: cache.to_owned(),
        cause: io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("it lies at or below the mount point {}, and the mount would hide it", directory.display()),
        ),
    };
    let failed = |cause| MountError::Cache { folder: cache.to_owned(), cause };
    // First by the names alone: below an automount nothing may be looked at from here.
    let named: PathBuf = std::path::absolute(cache).map_err(failed)?.components().collect();
    let at: PathBuf = std::path::absolute(directory).map_err(failed)?.components().collect();
    if named.starts_with(&at) {
        return Err(refused());
    }
    let at = point::resolve(directory).map_err(failed)?;
    let exists = named.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let really = exists.map_or(named.clone(), |(above, real)| match named.strip_prefix(above) {
        Ok(below) => real.join(below),
        Err(_) => named.clone(),
    });
    if really.starts_with(at) { Err(refused()) } else { Ok(()) }
}

fn make(folder: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// The cache folder of this user: systemd's, the system's for root, else the user's own.
pub fn default_cache() -> Option<PathBuf> {
    // SAFETY: geteuid has no preconditions and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let named = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    named("CACHE_DIRECTORY")
        .or_else(|| root.then(|| PathBuf::from("/var/cache/resyncfs")))
        .or_else(|| named("XDG_CACHE_HOME").map(|cache| cache.join("resyncfs")))
        // mount(8) leaves its helper no HOME; the user database knows it too.
        .or_else(|| std::env::home_dir().filter(|home| home.is_absolute()).map(|home| home.join(".cache/resyncfs")))
}
