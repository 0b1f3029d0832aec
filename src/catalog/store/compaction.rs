//! Stores that are written beside the one that readers have, and take its place.

use super::super::error::io_error;
use super::super::sort::SpillFolder;
use super::codec::{damaged, seal};
use super::{CatalogError, Store, empty_folder, meta, numbered, sync_folder};
use heed::{CompactionOption, EnvFlags, FlagSetMode};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A store that is to take the place of another; its files go with it unless it does. Nobody sees it before, so that it may be written
/// in as many commits as is best: they wait for no disk, and what they wrote is made durable all at once.
pub(in crate::catalog) struct Successor {
    store: Store,
    folder: SuccessorFolder,
}

impl Successor {
    fn in_folder(folder: SuccessorFolder) -> Result<Successor, CatalogError> {
        Ok(Successor { store: Store::open_tables(&folder.path, EnvFlags::NO_SYNC)?, folder })
    }

    pub(in crate::catalog) fn store(&self) -> &Store {
        &self.store
    }

    /// Makes the store durable and gives it the number behind that of `other`, for at the next opening the greatest number counts; then
    /// removes the files of `other`, which goes on for those who have it open.
    pub(in crate::catalog) fn take_place_of(self, other: &Store) -> Result<Store, CatalogError> {
        let Successor { mut store, mut folder } = self;
        // It is whole, and the next opening tries again.
        if let Err(error) = store.shorten() {
            tracing::warn!(%error, "the catalog's file stays longer than it need be");
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
        // Behind the renaming nothing may fail: this store is the one that counts.
        if let Err(error) = sync_folder(catalog).and_then(|()| other.unlink()) {
            tracing::warn!(%error, "the catalog's old store could not be removed");
        }
        Ok(store)
    }
}

/// The folder of a successor, which is removed unless it was put in its place.
struct SuccessorFolder {
    path: PathBuf,
    is_in_place: bool,
}

impl SuccessorFolder {
    /// An empty folder below `spill_folder`, of another name for each successor within a process: environments that are
    /// still open are known by the path that they were opened at.
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
        if !self.is_in_place
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            tracing::warn!(%error, folder = %self.path.display(), "a store that was not finished stays until the next mount");
        }
    }
}

impl Store {
    /// A copy of the current revision without holes, to take the place of this store. Nothing may be committed here meanwhile.
    pub(in crate::catalog) fn compacted(&self, spill_folder: &SpillFolder) -> Result<Successor, CatalogError> {
        let folder = SuccessorFolder::new(&spill_folder.path)?;
        let file = self.env.copy_to_path(folder.path.join("data.mdb"), CompactionOption::Enabled)?;
        file.sync_all().map_err(io_error(&folder.path))?;
        Successor::in_folder(folder)
    }

    /// An empty store, to take the place of another.
    pub(in crate::catalog) fn empty(spill_folder: &SpillFolder) -> Result<Successor, CatalogError> {
        Successor::in_folder(SuccessorFolder::new(&spill_folder.path)?)
    }

    /// An empty store, to take the place of this one, which is empty too: it goes on giving inodes where this one begins.
    pub(in crate::catalog) fn of_the_same_instance(
        &self,
        spill_folder: &SpillFolder,
    ) -> Result<Successor, CatalogError> {
        let successor = Store::empty(spill_folder)?;
        let store = successor.store();
        let old = self.env.read_txn()?;
        let instance = self.meta(&old, meta::INSTANCE)?.ok_or_else(|| damaged("absence", meta::INSTANCE))?;
        let mut row = instance.to_vec();
        seal(meta::INSTANCE, &mut row);
        let mut txn = store.env.write_txn()?;
        store.meta.put(&mut txn, meta::INSTANCE, &row)?;
        store.commit(txn)?;
        Ok(successor)
    }
}
