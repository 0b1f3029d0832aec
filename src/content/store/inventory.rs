//! A cache folder listed and cleared by a process that mounts nothing from it, while others may.

use super::files::{OBJECTS, PARTIALS, allocated, open_to_read, same_file};
use super::index::{Change, Changes, LruIndex};
use super::object::Object;
use super::removal::{self, Removal, evict_file, is_unexpected};
use super::{Evicted, ObjectKey};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Removals that are recorded at once.
const BATCH: usize = 1000;

/// The objects of one cache folder. What it does not remove stays, even beyond the quota.
pub struct Inventory {
    folder: PathBuf,
    /// `None`: there is none yet, or it is damaged, and the next open of the cache makes it new.
    index: Option<Arc<LruIndex>>,
    gone: Changes,
}

impl Inventory {
    /// Opens the inventory of the objects in `folder`, which need not exist.
    pub fn open(folder: &Path) -> Inventory {
        let environment = folder.join("recency");
        let is_there = environment.join("data.mdb").exists();
        let opened = is_there.then(|| LruIndex::open(&environment, false).ok()).flatten();
        // Nothing is recorded in an empty index: it would pass for complete.
        let index = opened.filter(|(_, is_new)| !is_new).map(|(index, _)| index);
        Inventory { folder: folder.to_owned(), index, gone: Changes::default() }
    }

    /// Every whole object, one folder after the other, with its bytes in allocated blocks.
    pub fn objects(&self) -> impl Iterator<Item = (ObjectKey, u64)> + use<> {
        let objects = self.folder.join(OBJECTS);
        (0..=u8::MAX).flat_map(move |shard| keys_in(&objects.join(format!("{shard:02x}"))))
    }

    /// Every partial.
    pub fn partials(&self) -> impl Iterator<Item = (ObjectKey, u64)> + use<> {
        keys_in(&self.folder.join(PARTIALS)).into_iter()
    }

    /// Bytes of an object in allocated blocks; `None`: it is not there.
    pub fn bytes(&self, key: &ObjectKey) -> Option<u64> {
        allocated(&self.folder.join(key.object_name()))
    }

    /// Opens an object without counting that as a use. `Ok(None)`: it is not whole, or no file of the cache.
    pub fn read(&self, key: &ObjectKey) -> io::Result<Option<Object>> {
        let path = self.folder.join(key.object_name());
        match open_to_read(&path) {
            Ok(file) => Object::open(key, file, None),
            Err(cause) if !is_unexpected(&path) => Err(cause),
            Err(_) => Ok(None),
        }
    }

    /// Removes what was found damaged, unless another file has its name by now (`object`: the one that was read); what became
    /// of it.
    pub fn remove_damaged(&mut self, key: &ObjectKey, object: Option<&Object>) -> io::Result<Removal> {
        let name = key.object_name();
        let path = self.folder.join(&name);
        if object.is_some_and(|object| !same_file(object.file(), &path)) {
            return Ok(Removal::Removed);
        }
        let removal = removal::remove(&self.folder, &path)?;
        self.note_gone(name);
        Ok(removal)
    }

    /// Removes an object that no running mount has pinned, and its partial if no process writes it.
    pub fn remove(&mut self, key: &ObjectKey) -> io::Result<Evicted> {
        let mut evicted = Evicted::Absent;
        for name in [key.object_name(), key.partial_name()] {
            let removed = evict_file(&self.folder, &name)?;
            evicted = evicted.and(removed);
            if matches!(removed, Evicted::Bytes(_)) {
                self.note_gone(name);
            }
        }
        Ok(evicted)
    }

    fn note_gone(&mut self, name: String) {
        self.gone.insert(name.into(), Change::Gone);
        if self.gone.len() >= BATCH {
            self.record();
        }
    }

    /// Records the objects that are gone. One that cannot be recorded is found gone by the next eviction.
    fn record(&mut self) {
        let gone = std::mem::take(&mut self.gone);
        if let Some(index) = self.index.as_ref().filter(|_| !gone.is_empty()) {
            if let Err(cause) = index.apply(&gone) {
                tracing::warn!(%cause, "the LRU index cannot be written");
            }
        }
    }
}

impl Drop for Inventory {
    fn drop(&mut self) {
        self.record();
    }
}

/// The keys in one folder; none where it is not there.
fn keys_in(folder: &Path) -> Vec<(ObjectKey, u64)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let known = entries.filter_map(|entry| {
        let key = ObjectKey::parse(entry.file_name().to_str()?)?;
        Some((key, allocated(&entry.path())?))
    });
    known.collect()
}
