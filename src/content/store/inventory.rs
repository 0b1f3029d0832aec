//! A cache folder looked through and cleared by a process that mounts nothing from it, while others may.

use super::cache::{allocated, same_file, unlink_idle_partial};
use super::foreign::{self, Owners, PutAway};
use super::object::Object;
use super::opening::PARTIALS;
use super::recency::{Change, Changes, Fate, OBJECTS, Recency};
use super::{ObjectKey, object_name};
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// Removals that are written down at once.
const BATCH: usize = 1000;

/// The objects of one cache folder.
///
/// Eviction is not its business: whatever it does not remove stays, whoever's quota is exceeded.
pub struct Inventory {
    folder: PathBuf,
    /// `None`: nobody has written down anything yet, or it is damaged, and whoever opens the cache next counts all anew.
    recency: Option<Arc<Recency>>,
    gone: Changes,
}

/// What came of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// It was not there any more.
    Absent,
    /// So many bytes in allocated blocks.
    Bytes(u64),
    /// A running mount has it pinned, or writes it.
    InUse,
}

impl Inventory {
    /// Of the objects in `folder`, which need not exist.
    pub fn open(folder: &Path) -> Inventory {
        let environment = folder.join("recency");
        let is_there = environment.join("data.mdb").exists();
        let recency = match is_there.then(|| Recency::open(&environment, false)).transpose() {
            Ok(Some((recency, false))) => Some(recency),
            Ok(None) => None,
            // An empty one, made in the place of a damaged one, would pass for true.
            Ok(Some((_, true))) | Err(_) => {
                let _ = std::fs::remove_file(environment.join("data.mdb"));
                let _ = std::fs::remove_file(environment.join("lock.mdb"));
                None
            }
        };
        Inventory { folder: folder.to_owned(), recency, gone: Changes::default() }
    }

    /// Every whole object, one folder after the other, with its bytes in allocated blocks.
    pub fn objects(&self) -> impl Iterator<Item = (ObjectKey, u64)> + use<> {
        let objects = self.folder.join(OBJECTS);
        (0..=u8::MAX).flat_map(move |shard| keys_in(&objects.join(format!("{shard:02x}"))))
    }

    /// Every object that is being written, or was and can be gone on with.
    pub fn partials(&self) -> impl Iterator<Item = (ObjectKey, u64)> + use<> {
        keys_in(&self.folder.join(PARTIALS)).into_iter()
    }

    /// Bytes of an object in allocated blocks; `None`: it is not there.
    pub fn bytes(&self, key: &ObjectKey) -> Option<u64> {
        allocated(&self.folder.join(object_name(key)))
    }

    /// Opens an object without counting that as a use. `Ok(None)`: it is not whole, or no file of the cache.
    pub fn read(&self, key: &ObjectKey) -> io::Result<Option<Object>> {
        let mut options = File::options();
        let file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let path = self.folder.join(object_name(key));
        match file.open(&path) {
            Ok(file) => Ok(Object::open(key, file, &Owners::of(&self.folder), Weak::new())),
            Err(cause) if !foreign::is_in_the_way(&path) => Err(cause),
            _ => Ok(None),
        }
    }

    /// Removes what was found damaged, unless another file has its name by now (`object`: the one that was read); what became
    /// of it.
    pub fn remove_damaged(&mut self, key: &ObjectKey, object: Option<&Object>) -> io::Result<PutAway> {
        let name = object_name(key);
        let path = self.folder.join(&name);
        if object.is_none_or(|object| same_file(object.file(), &path)) {
            let put = foreign::put_away(&self.folder, &path)?;
            self.note_gone(name);
            return Ok(put);
        }
        Ok(PutAway::Removed)
    }

    /// Removes an object that no running mount has pinned.
    pub fn remove(&mut self, key: &ObjectKey) -> io::Result<Removed> {
        let name = object_name(key);
        let path = self.folder.join(&name);
        let metadata = match std::fs::symlink_metadata(&path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Removed::Absent),
            known => known?,
        };
        if metadata.is_file() && metadata.nlink() > 1 {
            return Ok(Removed::InUse);
        }
        foreign::put_away(&self.folder, &path)?;
        self.note_gone(name);
        Ok(Removed::Bytes(metadata.blocks() * 512))
    }

    /// Removes a partial that nobody writes.
    pub fn remove_partial(&mut self, key: &ObjectKey) -> Removed {
        let name = format!("{PARTIALS}{key}");
        let path = self.folder.join(&name);
        let Some(bytes) = allocated(&path) else { return Removed::Absent };
        match unlink_idle_partial(&path) {
            Fate::Kept => Removed::InUse,
            Fate::Removed => {
                self.note_gone(name);
                Removed::Bytes(bytes)
            }
        }
    }

    fn note_gone(&mut self, name: String) {
        self.gone.insert(name.into(), Change::Gone);
        if self.gone.len() >= BATCH {
            self.write_down();
        }
    }

    /// What cannot be written down is found gone by whoever would evict it.
    fn write_down(&mut self) {
        let gone = std::mem::take(&mut self.gone);
        if let Some(recency) = self.recency.as_ref().filter(|_| !gone.is_empty())
            && let Err(cause) = recency.apply(&gone, |_| None)
        {
            tracing::warn!(%cause, "what was removed cannot be written down");
        }
    }
}

impl Drop for Inventory {
    fn drop(&mut self) {
        self.write_down();
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
