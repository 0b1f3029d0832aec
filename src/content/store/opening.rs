//! What is done when a cache folder is opened: clearing after dead processes, and the rescan after a loss.

use super::cache::{Cache, allocated, make_folder};
use super::recency::{OBJECTS, Recency, micros};
use super::sidecar::Sidecar;
use super::{ObjectKey, StoreError, flock, io_error};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// For so long another process may clear up and make environments in the folder that is to be opened.
const OPENING: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });

/// Partials lie below it.
pub(super) const PARTIALS: &str = "tmp/";

/// The pins of this process: a folder of hard links, locked as long as this lives.
pub(super) struct PinFolder {
    pub(super) path: PathBuf,
    _lock: File,
}

/// Locks the folder that is opened, for one process at a time clears up and makes environments.
pub(super) fn lock(file: &File) -> io::Result<()> {
    let due = Instant::now() + OPENING;
    while !flock(file) {
        if Instant::now() >= due {
            let what = "another process has held its lock all the time that it takes to open a cache: it hangs; fuser -v names it";
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Removes the pins of dead processes and makes a folder for this one's. The flag: some process died without closing.
/// Call with the cache folder locked, so that a folder just made is never taken for a dead one.
pub(super) fn open_pins(folder: &Path) -> Result<(PinFolder, bool), StoreError> {
    let mut died = false;
    for entry in std::fs::read_dir(folder).map_err(io_error(folder))?.flatten() {
        let path = entry.path();
        // A lock and not the process id tells who lives: ids are used again, and differ between containers.
        if File::open(&path).is_ok_and(|pins| flock(&pins)) {
            died = true;
            if let Err(cause) = std::fs::remove_dir_all(&path) {
                tracing::warn!(path = %path.display(), %cause, "pins of a dead process cannot be removed");
            }
        }
    }
    let mut number = 0;
    loop {
        let name = match number {
            0 => std::process::id().to_string(),
            _ => format!("{}-{number}", std::process::id()),
        };
        let path = folder.join(name);
        match std::fs::create_dir(&path) {
            // Another mount of this process, or a namesake in another container.
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => number += 1,
            outcome => {
                outcome.and_then(|()| make_private(&path)).map_err(io_error(&path))?;
                let lock = File::open(&path).map_err(io_error(&path))?;
                flock(&lock);
                return Ok((PinFolder { path, _lock: lock }, died));
            }
        }
    }
}

fn make_private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}

/// Removes what dead processes left in `tmp/`, but for partials that can be resumed, and makes the records agree.
pub(super) fn clear_partials(folder: &Path, recency: &Recency) -> Result<(), StoreError> {
    let partials = folder.join(PARTIALS);
    let mut found = HashMap::new();
    for entry in std::fs::read_dir(&partials).map_err(io_error(&partials))?.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Some(name) = name.to_str() else { continue };
        if let Some(partial) = name.trim_end_matches('~').strip_suffix(Sidecar::SUFFIX) {
            if !partials.join(partial).exists() {
                let _ = std::fs::remove_file(&path);
            }
            continue;
        }
        let resumable = ObjectKey::parse(name).is_some_and(|key| Sidecar::read(&path, &key).is_some());
        if !resumable && File::open(&path).is_ok_and(|file| flock(&file)) {
            let _ = std::fs::remove_file(&path);
            Sidecar::remove(&path);
        } else if let Some(record) = measure(&path) {
            found.insert(format!("{PARTIALS}{name}"), record);
        }
    }
    // On a full disk nothing can be written down, and what is here is served all the same.
    if let Err(cause) = recency.reconcile(PARTIALS, &found, |name| folder.join(name).exists()) {
        tracing::warn!(%cause, "what the cache holds cannot be written down");
    }
    Ok(())
}

/// Brings all records in line with the files, shard by shard; ends early when the cache is closed.
pub(super) fn rescan(cache: &Cache) {
    for shard in 0..=u8::MAX {
        if cache.is_stopped() {
            return;
        }
        let prefix = format!("{OBJECTS}{shard:02x}/");
        let mut found = HashMap::new();
        // A shard that is not there has no files.
        for entry in std::fs::read_dir(cache.path(&prefix)).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let key = name.to_str().and_then(ObjectKey::parse);
            if let (Some(key), Some(record)) = (key, measure(&entry.path())) {
                found.insert(format!("{prefix}{key}"), record);
            }
        }
        if let Err(cause) = cache.recency.reconcile(&prefix, &found, |name| allocated(&cache.path(name)).is_some()) {
            tracing::warn!(%cause, "what the cache holds cannot be written down");
            return;
        }
    }
}

/// Bytes and last use of a file, as far as it tells: reading does not change a file's time, so the latter is when it was written.
fn measure(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path).ok().filter(|m| m.is_file())?;
    Some((metadata.blocks() * 512, micros(metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH))))
}

/// Makes the folders of a cache.
pub(super) fn make_folders(folder: &Path) -> Result<(), StoreError> {
    for name in ["", OBJECTS, PARTIALS, "pins", "recency"] {
        let path = folder.join(name);
        make_folder(&path).map_err(io_error(&path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::*;

    #[test]
    fn a_process_that_hangs_while_it_opens_the_cache_does_not_make_others_hang() {
        let folder = tempfile::tempdir().unwrap();
        let hanging = File::open(folder.path()).unwrap();
        assert!(flock(&hanging));

        let told = Store::open(folder.path(), None, 0).err().unwrap();

        let StoreError::Io { path, cause } = told else { panic!("{told}") };
        assert_eq!((&*path, cause.kind()), (folder.path(), io::ErrorKind::TimedOut));
        drop(hanging);
        Store::open(folder.path(), None, 0).unwrap();
    }
}
