//! The catalog of one mount identity: the store that is read now, and what takes its place.

use super::edit::MOST_IN_PLACE;
use super::error::{CatalogError, io_error};
use super::known_folders::KnownFolders;
use super::lock::FolderLock;
use super::sort::SpillFolder;
use super::store::{self, Successor, TreeStore};
use crate::platform::free_space::SpaceGuard;
use crate::platform::ino::Ino;
use crate::platform::inode_set::InodeSet;
use arc_swap::ArcSwap;
use heed::MdbError;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::Notify;

/// Bits of a name's hash in the keys of `names`: a folder of ten million names has some thousand that share one.
const HASH_BITS: u32 = 32;

/// Keeps the objects of inodes that are about to lose their names, for as long as they are open. With `false` they keep their names after
/// all.
pub type KeepOrphans = Box<dyn Fn(&[Ino], bool) + Send + Sync>;

/// The catalog of one mount identity; share it by `Arc`.
///
/// Readers never wait for a commit, nor for each other. Lock order: `writer`, then the store's own write lock, then `forgotten` or
/// `known_folders`, which are not held while another lock is taken.
pub struct Catalog {
    /// Replaced by [`Catalog::compact`] and by a rebuild, both with `writer` held. An operation uses the one that it took to the end.
    pub(super) current: ArcSwap<TreeStore>,
    /// The folder into which sorters spill.
    pub(super) spill_folder: SpillFolder,
    /// One commit at a time: the revision a commit was computed from is the one it replaces.
    pub(super) writer: Mutex<()>,
    /// Set when damage was found in `current`.
    pub(super) distrusted: AtomicBool,
    distrust: Notify,
    /// Orphans that the next writer drops.
    pub(super) forgotten: Mutex<InodeSet>,
    pub(super) known_folders: KnownFolders,
    keep_orphans: OnceLock<KeepOrphans>,
    /// Changes that one commit makes in place, at most; more are a rebuild.
    pub(super) most_in_place: AtomicU64,
    /// Behind all others, so that the folder is released when the store is closed.
    _lock: FolderLock,
}

impl Catalog {
    /// Opens or makes the catalog in `folder`; `holder` is shown to a second opener (mount point and process).
    /// A catalog that is damaged or of another format is moved away, and an empty one made.
    pub fn open(folder: &Path, holder: &str) -> Result<Catalog, CatalogError> {
        Catalog::open_hashed(folder, holder, HASH_BITS)
    }

    /// `hash_bits` are those of a name's hash in the store's keys, the same for all that open one store.
    pub(super) fn open_hashed(folder: &Path, holder: &str, hash_bits: u32) -> Result<Catalog, CatalogError> {
        store::make_folder(folder)?;
        let lock = FolderLock::take(folder, holder)?;
        let spill_folder = SpillFolder::new(&folder.join("tmp"));
        // An earlier process may have left files there.
        store::remove_folder(&spill_folder.path)?;
        store::make_folder(&spill_folder.path)?;
        Ok(Catalog {
            current: ArcSwap::from_pointee(TreeStore::open(folder, hash_bits)?),
            spill_folder,
            writer: Mutex::default(),
            distrusted: AtomicBool::new(false),
            distrust: Notify::new(),
            forgotten: Mutex::default(),
            known_folders: KnownFolders::default(),
            keep_orphans: OnceLock::new(),
            most_in_place: AtomicU64::new(MOST_IN_PLACE),
            _lock: lock,
        })
    }

    /// Keeps a reserve on its disk: a commit that would use it fails, and changes nothing.
    pub fn leaving(mut self, room: SpaceGuard) -> Catalog {
        self.spill_folder.room = Arc::new(room);
        self
    }

    /// Watches the free space of its disk.
    pub fn room(&self) -> Arc<SpaceGuard> {
        self.spill_folder.room.clone()
    }

    /// Has `keep` called before each commit that takes names of inodes; the first `keep` counts.
    pub fn keep_orphans_by(&self, keep: KeepOrphans) {
        let _ = self.keep_orphans.set(keep);
    }

    /// Makes a commit by which `orphans` lose their names. An eviction right behind it finds their objects kept.
    pub(super) fn keeping<T>(
        &self,
        orphans: &[Ino],
        commit: impl FnOnce() -> Result<T, CatalogError>,
    ) -> Result<T, CatalogError> {
        let Some(keep) = self.keep_orphans.get() else { return commit() };
        keep(orphans, true);
        commit().inspect_err(|_| keep(orphans, false))
    }

    pub(super) fn store(&self) -> Arc<TreeStore> {
        self.current.load_full()
    }

    /// Changes that one commit makes in place, at most; more are a rebuild.
    pub(super) fn most_in_place(&self) -> u64 {
        self.most_in_place.load(Ordering::Relaxed)
    }

    /// Distinguishes this catalog from one that was in the same folder before it and gave the same inodes to others:
    /// what is kept by inode elsewhere is kept under this name.
    pub fn instance(&self) -> Result<String, CatalogError> {
        let store = self.store();
        let txn = store.env.read_txn()?;
        Ok(format!("{:016x}", store.instance(&txn)?))
    }

    /// Copies the store without its holes where it takes more than twice what is in it, and uses the copy from then on; answers whether it
    /// did. Called after commits, or when many orphans were dropped, on a worker: commits wait for it, readers do not.
    pub fn compact(&self) -> Result<bool, CatalogError> {
        self.compact_beyond(store::WASTE_FACTOR, store::WASTE_LEAST)
    }

    pub(super) fn compact_beyond(&self, factor: u64, least: u64) -> Result<bool, CatalogError> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let store = self.store();
        let Some(bytes) = store.wastes(factor, least)? else { return Ok(false) };
        let SpillFolder { path, room } = &self.spill_folder;
        if let Err(short) = room.check(path, bytes) {
            tracing::info!(folder = %path.display(), "the catalog cannot be compacted: {short}");
            return Ok(false);
        }
        let before = self.replace_store(store.compacted(&self.spill_folder)?)?;
        // Closing it and freeing its space takes a while, and commits do not wait for that.
        drop(writer);
        drop((store, before));
        Ok(true)
    }

    /// Uses another store from now on. The caller holds `writer`, and drops what is returned without it. Snapshots that have the old one
    /// open keep it until they are dropped.
    pub(super) fn replace_store(&self, successor: Successor) -> Result<Arc<TreeStore>, CatalogError> {
        let store = successor.take_place_of(&self.store())?;
        Ok(self.current.swap(Arc::new(store)))
    }

    /// Marks the store as damaged: the next baseline builds it again, and until then it answers as well as it can. Snapshots and commits
    /// that find damage call this.
    pub fn distrust(&self) {
        if !self.distrusted.swap(true, Ordering::AcqRel) {
            tracing::error!("the catalog is damaged; the next refresh rebuilds it");
            self.distrust.notify_one();
        }
    }

    /// Removes the damaged store that was replaced when the catalog was opened: there is a tree again.
    pub(super) fn drop_damaged(&self) {
        let folder = self.spill_folder.path.with_file_name(store::DAMAGED);
        if let Err(error) = store::remove_folder(&folder) {
            tracing::warn!(%error, "a damaged store cannot be removed");
        }
    }

    /// Why a commit failed, in words that help. LMDB reports EIO where the disk took only a part of a write: so it is where next to nothing is
    /// free but the reserve.
    pub(super) fn failure(&self, error: CatalogError) -> CatalogError {
        let SpillFolder { path, room } = &self.spill_folder;
        match &error {
            CatalogError::Store(heed::Error::Io(cause)) if cause.raw_os_error() == Some(libc::EIO) => {
                room.check(path, room.step()).map_or_else(|short| io_error(path)(short.into()), |()| error)
            }
            CatalogError::Store(heed::Error::Mdb(MdbError::MapFull)) => {
                io_error(path)(crate::platform::lmdb::no_address_space())
            }
            _ => error,
        }
    }

    /// Answers whether damage was found since the store was built.
    pub fn is_distrusted(&self) -> bool {
        self.distrusted.load(Ordering::Acquire)
    }

    /// Waits until damage is found, once each time; for one waiter.
    pub async fn damage_found(&self) {
        self.distrust.notified().await;
    }
}
