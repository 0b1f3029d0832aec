//! A store that is written while readers use another, and then replaces it.

use super::super::error::io_error;
use super::super::sort::SpillFolder;
use super::environment::{make_folder, numbered, remove_folder, sync_folder};
use super::{CatalogError, TreeStore};
use heed::{CompactionOption, EnvFlags, FlagSetMode};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::{Builder, TempDir};

/// A store that is to replace another; unless it does, its files are removed with it. No reader sees it before, so that it may be written
/// in any number of commits: they wait for no disk, and what they wrote is made durable all at once.
pub struct Successor {
    pub store: TreeStore,
    folder: TempDir,
}

impl Successor {
    fn in_folder(folder: TempDir, hash_bits: u32, instance: Option<u64>) -> Result<Successor, CatalogError> {
        Ok(Successor { store: TreeStore::open_tables(folder.path(), EnvFlags::NO_SYNC, hash_bits, instance)?, folder })
    }

    /// Makes the store durable and gives it a number greater than that of `other`, as at the next opening the greatest counts; then
    /// removes the files of `other`, which lives on while it is open.
    pub fn take_place_of(self, other: &TreeStore) -> Result<TreeStore, CatalogError> {
        let Successor { mut store, folder } = self;
        store.fit_length();
        store.env.force_sync()?;
        // SAFETY: no other thread has the environment yet; from here on each commit is durable.
        unsafe { store.env.set_flags(EnvFlags::NO_SYNC, FlagSetMode::Disable)? };
        let catalog = other.folder.parent().unwrap_or(Path::new("."));
        let number = numbered(catalog)?.last().map_or(1, |(number, _)| number + 1);
        sync_folder(folder.path())?;
        store.folder = catalog.join(format!("store-{number}"));
        std::fs::rename(folder.path(), &store.folder).map_err(io_error(&store.folder))?;
        let _ = folder.keep();
        // After the renaming nothing may fail: this store counts from now on.
        if let Err(error) = sync_folder(catalog).and_then(|()| remove_folder(&other.folder)) {
            tracing::warn!(%error, "the catalog's old store could not be removed");
        }
        Ok(store)
    }
}

/// A folder below `spill_folder`, removed unless it is kept. LMDB knows environments that are still open by the path at which they were
/// opened: its name is new.
fn new_folder(spill_folder: &SpillFolder) -> Result<TempDir, CatalogError> {
    make_folder(&spill_folder.path)?;
    let made = Builder::new().permissions(Permissions::from_mode(0o700)).tempdir_in(&spill_folder.path);
    made.map_err(io_error(&spill_folder.path))
}

impl TreeStore {
    /// A copy of the current revision without holes, to replace this store. Nothing may be committed here meanwhile.
    pub fn compacted(&self, spill_folder: &SpillFolder) -> Result<Successor, CatalogError> {
        let folder = new_folder(spill_folder)?;
        let file = self.env.copy_to_path(folder.path().join("data.mdb"), CompactionOption::Enabled)?;
        file.sync_all().map_err(io_error(folder.path()))?;
        Successor::in_folder(folder, self.hash_bits, None)
    }

    /// An empty store, to replace this one. It goes on with the inodes and numbers of `instance`, where that is given: what is kept by
    /// inode elsewhere stays in use.
    pub fn empty(&self, spill_folder: &SpillFolder, instance: Option<u64>) -> Result<Successor, CatalogError> {
        Successor::in_folder(new_folder(spill_folder)?, self.hash_bits, instance)
    }
}
