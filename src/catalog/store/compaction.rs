//! A store that is written while readers use another, and then replaces it.

use super::super::error::io_error;
use super::super::sort::SpillFolder;
use super::codec::seal;
use super::environment::{empty_folder, numbered, sync_folder};
use super::{CatalogError, Store, meta};
use heed::{CompactionOption, EnvFlags, FlagSetMode};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A store that is to replace another; unless it does, its files are removed with it. No reader sees it before, so that it may be written
/// in any number of commits: they wait for no disk, and what they wrote is made durable all at once.
pub struct Successor {
    store: Store,
    folder: SuccessorFolder,
}

impl Successor {
    fn in_folder(folder: SuccessorFolder, hash_bits: u32) -> Result<Successor, CatalogError> {
        Ok(Successor { store: Store::open_tables(&folder.path, EnvFlags::NO_SYNC, hash_bits)?, folder })
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Makes the store durable and gives it a number greater than that of `other`, as at the next opening the greatest counts; then
    /// removes the files of `other`, which lives on while it is open.
    pub fn take_place_of(self, other: &Store) -> Result<Store, CatalogError> {
        let Successor { mut store, mut folder } = self;
        // It is whole, and the next opening tries again.
        if let Err(error) = store.shorten() {
            tracing::warn!(%error, "the catalog's file cannot be shortened");
        }
        store.env.force_sync()?;
        // SAFETY: no other thread has the environment yet; from here on each commit is durable.
        unsafe { store.env.set_flags(EnvFlags::NO_SYNC, FlagSetMode::Disable)? };
        let catalog = other.folder.parent().unwrap_or(Path::new("."));
        let number = numbered(catalog)?.last().map_or(1, |(number, _)| number + 1);
        sync_folder(&folder.path)?;
        store.folder = catalog.join(format!("store-{number}"));
        std::fs::rename(&folder.path, &store.folder).map_err(io_error(&store.folder))?;
        folder.is_in_place = true;
        // After the renaming nothing may fail: this store counts from now on.
        if let Err(error) = sync_folder(catalog).and_then(|()| other.unlink()) {
            tracing::warn!(%error, "the catalog's old store could not be removed");
        }
        Ok(store)
    }
}

/// The folder of a successor, removed unless it has replaced another.
struct SuccessorFolder {
    path: PathBuf,
    is_in_place: bool,
}

impl SuccessorFolder {
    /// An empty folder below `spill_folder`. Its name is new in this process: LMDB knows environments that are still open by the path at
    /// which they were opened.
    fn new(spill_folder: &Path) -> Result<SuccessorFolder, CatalogError> {
        static SUCCESSORS: AtomicU64 = AtomicU64::new(0);
        let path = spill_folder.join(format!("successor-{}", SUCCESSORS.fetch_add(1, Ordering::Relaxed)));
        let folder = SuccessorFolder { path, is_in_place: false };
        empty_folder(&folder.path)?;
        Ok(folder)
    }
}

impl Drop for SuccessorFolder {
    fn drop(&mut self) {
        if !self.is_in_place {
            if let Err(error) = std::fs::remove_dir_all(&self.path) {
                tracing::warn!(%error, folder = %self.path.display(), "an unfinished store cannot be removed before the next mount");
            }
        }
    }
}

impl Store {
    /// A copy of the current revision without holes, to replace this store. Nothing may be committed here meanwhile.
    pub fn compacted(&self, spill_folder: &SpillFolder) -> Result<Successor, CatalogError> {
        let folder = SuccessorFolder::new(&spill_folder.path)?;
        let file = self.env.copy_to_path(folder.path.join("data.mdb"), CompactionOption::Enabled)?;
        file.sync_all().map_err(io_error(&folder.path))?;
        Successor::in_folder(folder, self.hash_bits)
    }

    /// An empty store, to replace this one.
    pub fn empty(&self, spill_folder: &SpillFolder) -> Result<Successor, CatalogError> {
        Successor::in_folder(SuccessorFolder::new(&spill_folder.path)?, self.hash_bits)
    }

    /// An empty store, to replace this one, whose inodes and numbers it goes on with: what is kept by inode elsewhere stays in use.
    pub fn of_the_same_instance(&self, spill_folder: &SpillFolder) -> Result<Successor, CatalogError> {
        let successor = self.empty(spill_folder)?;
        let store = successor.store();
        let mut row = self.instance(&*self.env.read_txn()?)?.to_le_bytes().to_vec();
        seal(meta::INSTANCE, &mut row);
        let mut txn = store.env.write_txn()?;
        store.meta.put(&mut txn, meta::INSTANCE, &row)?;
        store.commit(txn)?;
        Ok(successor)
    }
}
