//! The folders in which a mount keeps its state: one identity, one catalog.
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
//!     observed/INSTANCE/         learnt metadata of the inodes of one instance of the catalog; mounts with `fixity=off` have
//!                                separate folders
//! ```

use super::mountpoint;
use super::{MountConfig, MountError};
use crate::source::EntryPoint;
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The cache folder of the system, and where it is made.
const SYSTEM_CACHE: [&str; 2] = ["/var/cache/resyncfs", "/var/cache"];

/// Prefix of the folder of a tree that is being removed; its name and the process follow.
pub(super) const CLEARED: &str = ".cleared-";

/// The folders of one mount, as drawn above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folders {
    /// The folder of its identity.
    pub own: PathBuf,
    /// The folders of all identities.
    pub mounts: PathBuf,
    /// Objects, shared with other mounts.
    pub content: PathBuf,
}

impl Folders {
    /// The folders of `config`, not made yet.
    pub fn of(config: &MountConfig) -> Folders {
        let mounts = config.cache.join("mounts");
        Folders { own: mounts.join(name(config)), content: config.cache.join("content"), mounts }
    }

    /// The folders of `config`, made for their owner alone.
    pub fn prepare(config: &MountConfig) -> Result<Folders, MountError> {
        let folders = Folders::of(config);
        check_place(&config.cache, &config.directory)?;
        check_owner(&config.cache)?;
        let own = ["catalog", "observed", "spool", "packages"].map(|name| folders.own.join(name));
        for folder in own.iter().chain([&folders.content]) {
            make(folder).map_err(MountError::cache(&config.cache))?;
        }
        let file = folders.own.join("identity");
        fs::write(&file, text(config)).map_err(MountError::cache(&file))?;
        Ok(folders)
    }

    /// Removes the folder of a tree that could not be made, unless the next try can continue with lists that are here. Its lock is held by
    /// this process.
    pub(super) fn remove_unmade(&self) {
        let is_empty = |folder: &Path| fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
        if is_empty(&self.own.join("spool")) {
            let name = self.own.file_name().unwrap_or_default().to_string_lossy();
            let away = self.mounts.join(format!("{CLEARED}{name}-{}", std::process::id()));
            let removed = fs::rename(&self.own, &away).and_then(|()| fs::remove_dir_all(&away));
            removed.unwrap_or_else(|cause| tracing::warn!(%cause, "the folder of a tree that was not made stays"));
        }
    }

    /// The folder for learnt metadata of this instance of the catalog. That of earlier instances is removed: their inodes stand
    /// for other resources now.
    pub fn observed_of(&self, instance: &str) -> Result<PathBuf, MountError> {
        let observed = self.own.join("observed");
        let failed = MountError::cache(&observed);
        for entry in fs::read_dir(&observed).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            if entry.file_name() != instance {
                fs::remove_dir_all(entry.path()).map_err(&failed)?;
            }
        }
        let folder = observed.join(instance);
        make(&folder).map_err(&failed)?;
        Ok(folder)
    }
}

/// Everything that identifies a tree, a line each.
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
    lines.extend(sync.follows_items.then(|| "items=follow".to_owned()));
    lines.extend(sync.as_of.iter().map(|at| format!("at={at}")));
    lines.extend(sync.selection.identity());
    lines.extend(config.fs.alternate.as_ref().map(|it| format!("alternate={}", it.to_ascii_lowercase())));
    lines.join("\n") + "\n"
}

fn name(config: &MountConfig) -> String {
    Sha256::digest(text(config)).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// A mount hides its mount point and everything below: its own cache must not be there.
fn check_place(cache: &Path, directory: &Path) -> Result<(), MountError> {
    let failed = MountError::cache(cache);
    let refused = || {
        let what = format!("it is at or below the mount point {}, and the mount would hide it", directory.display());
        Err(failed(io::Error::new(io::ErrorKind::InvalidInput, what)))
    };
    // First by the names alone: files below an automount must not be accessed from here.
    let named: PathBuf = std::path::absolute(cache).map_err(&failed)?.components().collect();
    let at: PathBuf = std::path::absolute(directory).map_err(&failed)?.components().collect();
    if named.starts_with(&at) {
        return refused();
    }
    let at = mountpoint::resolve(directory).map_err(&failed)?;
    let exists = named.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let really = exists.map_or(named.clone(), |(above, real)| match named.strip_prefix(above) {
        Ok(below) => real.join(below),
        Err(_) => named.clone(),
    });
    if really.starts_with(at) { refused() } else { Ok(()) }
}

/// Refuses a cache folder in which another user could change what is shown. A missing folder is fine.
pub fn check_owner(folder: &Path) -> Result<(), MountError> {
    let failed = MountError::cache(folder);
    let found = match fs::metadata(folder) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(&failed)?,
    };
    let (own, owner, shown) = (rustix::process::geteuid().as_raw(), found.uid(), folder.display());
    let what = if owner != own && owner != 0 {
        format!(
            "it belongs to user {owner}, who could change what is shown; make it yours (chown {own} {shown}) or name another"
        )
    } else if found.mode() & 0o022 != 0 {
        format!("others can write to it and change what is shown; forbid it with: chmod go-w {shown}, or name another")
    } else {
        return Ok(());
    };
    Err(failed(io::Error::new(io::ErrorKind::PermissionDenied, what)))
}

fn make(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// The cache folder of this user: systemd's, the system's for root, else the user's own. The system's does not belong to the root of
/// a user's own namespace. Root has no other where it cannot be written to: the tree in it is what is shown without the Source.
pub fn default_cache() -> Option<PathBuf> {
    let is_of_root = |folder: &&str| fs::metadata(folder).map_or(true, |found| found.uid() == 0);
    let root = rustix::process::geteuid().is_root() && SYSTEM_CACHE.iter().all(is_of_root);
    let named = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    named("CACHE_DIRECTORY")
        .or_else(|| root.then(|| PathBuf::from(SYSTEM_CACHE[0])))
        .or_else(|| named("XDG_CACHE_HOME").map(|cache| cache.join("resyncfs")))
        // mount(8) leaves its helper no HOME; the user database knows it too.
        .or_else(|| std::env::home_dir().filter(|home| home.is_absolute()).map(|home| home.join(".cache/resyncfs")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_cache_folder_that_others_can_write_to_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (mode, is_good) in [(0o700, true), (0o755, true), (0o775, false), (0o702, false), (0o1777, false)] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();

            let checked = check_owner(folder.path());

            assert_eq!(checked.is_ok(), is_good, "{mode:o}");
            if let Err(MountError::Cache { cause, .. }) = checked {
                assert!(cause.to_string().contains("chmod go-w"), "{cause}");
            }
        }
    }
}
