//! Opening a cache folder: clearing after dead processes, and the rescan after a loss.

use super::cache::Cache;
use super::files::{OBJECTS, PARTIALS, allocated, flock, make_folder};
use super::index::{IndexedFile, LruIndex};
use super::partial::Tail;
use super::policy::Moment;
use super::{ObjectKey, StoreError, io_error};
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Makes the folders of a cache.
pub(super) fn make_folders(folder: &Path) -> Result<(), StoreError> {
    for name in ["", OBJECTS, PARTIALS, "pins", "recency"] {
        let path = folder.join(name);
        make_folder(&path).map_err(io_error(&path))?;
    }
    Ok(())
}

/// Locks the folder that is opened, for one process at a time clears it and makes environments. Another one may take `patience`.
pub(super) fn lock_folder(file: &File, patience: Duration) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    while !flock(file)? {
        if Instant::now() >= deadline {
            let what = "another process has held its lock too long and probably hangs; fuser -v names it";
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Removes what dead processes left in `tmp/`, but for partials that can be resumed, and makes the index agree. Returns how many partials
/// another version of this program had written.
pub(super) fn clear_partials(folder: &Path, index: &LruIndex) -> u32 {
    let of_other_versions = Cell::new(0);
    reconcile(folder, index, PARTIALS, |path, name| {
        let file = File::open(path);
        let can_resume = |key: &ObjectKey| file.as_ref().is_ok_and(|file| Tail::read(file, key).is_some());
        if !ObjectKey::parse(name).is_some_and(|key| can_resume(&key)) {
            if let Some(file) = file.ok().filter(|file| flock(file).unwrap_or(false)) {
                of_other_versions.set(of_other_versions.get() + u32::from(Tail::is_of_other_version(&file)));
                let _ = std::fs::remove_file(path);
            }
        }
        true
    });
    let removed = of_other_versions.get();
    if removed > 0 {
        tracing::info!(
            "{removed} unfinished downloads of another version of resyncfs were removed; they begin again when they are read"
        );
    }
    removed
}

/// Brings the index in line with the files, shard by shard; ends early when the cache is closed.
pub(super) fn rescan(cache: &Cache) {
    let is_object = |_: &Path, name: &str| ObjectKey::parse(name).is_some();
    for prefix in (0..=u8::MAX).map(|shard| format!("{OBJECTS}{shard:02x}/")) {
        if cache.is_stopped() || !reconcile(&cache.folder, &cache.index, &prefix, is_object) {
            return;
        }
    }
}

/// Brings the index in line with the files of one folder that `is_ours` accepts. On a full disk it cannot be written, and what is
/// here is served all the same: then false.
fn reconcile(folder: &Path, index: &LruIndex, prefix: &str, is_ours: impl Fn(&Path, &str) -> bool) -> bool {
    let mut found = HashMap::new();
    // A folder that is missing has no files.
    for entry in std::fs::read_dir(folder.join(prefix)).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if let Some(name) = name.to_str().filter(|name| is_ours(&path, name)) {
            if let Some(record) = measure(&path) {
                found.insert(format!("{prefix}{name}"), record);
            }
        }
    }
    let reconciled = index.reconcile(prefix, &found, |name| allocated(&folder.join(name)).is_some());
    reconciled.inspect_err(|cause| tracing::warn!(%cause, "the LRU index cannot be written")).is_ok()
}

/// Bytes and last use of a file. Reading does not change a file's time, so the latter is when it was written.
fn measure(path: &Path) -> Option<IndexedFile> {
    let metadata = std::fs::symlink_metadata(path).ok().filter(|m| m.is_file())?;
    Some((metadata.blocks() * 512, Moment::at(metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH))))
}

#[cfg(test)]
mod tests {
    use super::super::{BLOCK, EvictionPolicy, Store};
    use super::*;
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_process_that_hangs_in_its_open_delays_others_for_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let hanging = File::open(folder.path()).unwrap();
        assert!(flock(&hanging).unwrap());

        let patience = Duration::from_millis(100);
        let error = Store::open_on(folder.path(), None, 0, Box::new(|| Ok(1 << 40)), patience).err().unwrap();

        let StoreError::Io { path, cause } = error else { panic!("{error}") };
        assert_eq!((&*path, cause.kind()), (folder.path(), io::ErrorKind::TimedOut));
        drop(hanging);
        Store::open(folder.path(), None, 0).unwrap();
    }

    #[test]
    fn partials_of_another_version_are_removed_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), None, 0).unwrap();
        let key = ObjectKey::inode("source", 1);
        let partial = store.begin(&key, None, EvictionPolicy::Any).unwrap();
        partial.keep(Some("\"v1\""), Some(9 * BLOCK));
        partial.append(&vec![7; 2 * BLOCK as usize], EvictionPolicy::Any).unwrap();
        partial.kill(true);
        drop(store);
        let file = OpenOptions::new().write(true).open(folder.path().join(key.partial_name())).unwrap();
        // Before the magic and the CRC.
        let version_at = file.metadata().unwrap().len() - 16;
        file.write_all_at(&3_u32.to_le_bytes(), version_at).unwrap();
        drop(file);
        let (index, _) = LruIndex::open(&folder.path().join("recency"), false).unwrap();

        let removed = [clear_partials(folder.path(), &index), clear_partials(folder.path(), &index)];

        assert_eq!(removed, [1, 0]);
        assert_eq!(std::fs::read_dir(folder.path().join(PARTIALS)).unwrap().count(), 0);
    }
}
