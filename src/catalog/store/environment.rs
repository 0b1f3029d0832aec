//! The environment of a store: its folder and file, opening, commits.

use super::super::error::io_error;
use super::codec::{pack, seal};
use super::{CatalogError, DAMAGED, ROOT, TABLES, TableId, TreeStore, meta};
use crate::platform::lmdb::{Readers, StructureError, check, make_files, with_map};
use heed::types::Bytes;
use heed::{CommitOrAbort, EnvFlags, EnvOpenOptions, RwTxn};
use std::fs::{DirBuilder, File};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Changes with everything that a reader of the tables must know, and with the rules for names.
const FORMAT: &[u8] = b"resyncfs catalog 9";

/// Address space only; a catalog of 100 million resources takes a tenth.
const MAP_SIZE: u64 = 1 << 38;

/// Snapshots at one time: far more than threads that hold one.
const MAX_READERS: u32 = 1024;

/// Makes a folder that its owner alone can enter, with all above it.
pub fn make_folder(folder: &Path) -> Result<(), CatalogError> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io_error(folder))
}

/// Removes a folder, where it is there.
pub fn remove_folder(folder: &Path) -> Result<(), CatalogError> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error(folder)(error)),
        _ => Ok(()),
    }
}

/// The folders `store-N` of a catalog by number, ascending.
pub(super) fn numbered(catalog: &Path) -> Result<Vec<(u64, PathBuf)>, CatalogError> {
    let mut folders = Vec::new();
    for folder in std::fs::read_dir(catalog).map_err(io_error(catalog))? {
        let folder = folder.map_err(io_error(catalog))?;
        let name = folder.file_name();
        if let Some(number) = name.to_str().and_then(|name| name.strip_prefix("store-")?.parse().ok()) {
            folders.push((number, folder.path()));
        }
    }
    folders.sort_unstable();
    Ok(folders)
}

pub(super) fn sync_folder(folder: &Path) -> Result<(), CatalogError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error(folder))
}

impl TreeStore {
    /// Opens the environment of the catalog in `catalog`, or makes it. One that is damaged or of another format is moved
    /// to [`DAMAGED`] (in place of an older one), and an empty one takes its place.
    pub fn open(catalog: &Path, hash_bits: u32) -> Result<TreeStore, CatalogError> {
        let mut folders = numbered(catalog)?;
        let (number, folder) = folders.pop().unwrap_or_else(|| (1, catalog.join("store-1")));
        for (_, superseded) in folders {
            remove_folder(&superseded)?;
        }
        match TreeStore::open_checked(&folder, hash_bits) {
            Err(error) if error.is_damage() => {
                let damaged = catalog.join(DAMAGED);
                tracing::warn!(%error, moved_to = %damaged.display(), "the catalog is damaged and is rebuilt");
                remove_folder(&damaged)?;
                std::fs::rename(&folder, &damaged).map_err(io_error(&folder))?;
                TreeStore::open_checked(&catalog.join(format!("store-{}", number + 1)), hash_bits)
            }
            opened => opened,
        }
    }

    fn open_checked(folder: &Path, hash_bits: u32) -> Result<TreeStore, CatalogError> {
        check(folder, false).map_err(|error| match error {
            StructureError::Io(cause) => io_error(folder)(cause),
            damaged => CatalogError::Damaged(damaged.to_string()),
        })?;
        let store = TreeStore::open_tables(folder, EnvFlags::empty(), hash_bits, None)?;
        store.check()?;
        store.clear_orphans()?;
        Ok(store)
    }

    /// Opens the environment in `folder`, or makes one of `instance`, by default of one that no other store has.
    pub(super) fn open_tables(
        folder: &Path,
        flags: EnvFlags,
        hash_bits: u32,
        instance: Option<u64>,
    ) -> Result<TreeStore, CatalogError> {
        make_folder(folder)?;
        make_files(folder, MAX_READERS).map_err(io_error(folder))?;
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.max_dbs(TABLES.len() as u32).max_readers(MAX_READERS);
        // SAFETY: this process has locked the folder (`FolderLock`), which is for its owner alone: nothing else changes the
        // mapped file. NO_READ_AHEAD only advises the kernel. `Successor` does what NO_SYNC leaves undone.
        let open = |size| unsafe { options.map_size(size).flags(EnvFlags::NO_READ_AHEAD | flags).open(folder) };
        let env = with_map(MAP_SIZE, open)?;
        env.clear_stale_readers()?;
        let opened = env.create_databases_and_commit(env.write_txn()?, |opener, txn| {
            let mut table = |index: usize| opener.create_database::<Bytes, Bytes>(txn, Some(TABLES[index]));
            let tables =
                [table(0)?, table(1)?, table(2)?, table(3)?, table(4)?, table(5)?, table(6)?, table(7)?, table(8)?];
            // Only a new environment has no rows: one without a format is foreign.
            if tables.iter().map(|table| table.len(txn)).sum::<heed::Result<u64>>()? == 0 {
                // From the operating system's randomness.
                let instance = instance.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()));
                for (key, row) in [(meta::FORMAT, FORMAT), (meta::INSTANCE, &pack(&instance))] {
                    let mut row = row.to_vec();
                    seal(key, &mut row);
                    tables[TableId::Meta as usize].put(txn, key, &row)?;
                }
            }
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(tables))
        })?;
        let no_tables = || CatalogError::Damaged("its tables cannot be made".into());
        let tables = opened.commit().ok_or_else(no_tables)?;
        let (folder, readers) = (folder.to_path_buf(), Arc::<Readers>::default());
        let store = TreeStore { folder, hash_bits, env, readers, tables };
        // A process that was killed may have left it longer.
        store.fit_length();
        Ok(store)
    }

    /// Format, revision and root make sense; everything else is checked when it is read.
    fn check(&self) -> Result<(), CatalogError> {
        let txn = self.env.read_txn()?;
        if self.meta(&txn, meta::FORMAT)? != Some(FORMAT) {
            return Err(CatalogError::Damaged("another format".into()));
        }
        self.instance(&txn)?;
        if self.revision(&txn)?.is_some() {
            self.naming(&txn)?;
            self.by_ino(&txn, ROOT)?.ok_or_else(|| CatalogError::Damaged("no root".into()))?;
        }
        Ok(())
    }

    /// The orphans were those of an earlier mount, whose kernel forgot them.
    fn clear_orphans(&self) -> Result<(), CatalogError> {
        if self.table(TableId::Orphans).is_empty(&*self.env.read_txn()?)? {
            return Ok(());
        }
        let mut txn = self.env.write_txn()?;
        self.table(TableId::Orphans).clear(&mut txn)?;
        self.commit(txn)
    }

    /// Commits, and makes the file whole, so that the next opening need not follow all of it. No other thread writes meanwhile.
    pub fn commit(&self, txn: RwTxn<'_>) -> Result<(), CatalogError> {
        txn.commit()?;
        self.readers.let_go();
        self.fit_length();
        Ok(())
    }

    /// Makes the file as long as its store says. Pages that one commit takes at the end and frees are never written, and a
    /// file that is short is followed whole at the next opening; the bytes behind it are of a transaction that was not
    /// committed, and no reader has it. No other thread writes meanwhile. The commit does not fail, and the next one tries
    /// again.
    pub fn fit_length(&self) {
        let (whole, path) = (self.whole_length(), self.folder.join("data.mdb"));
        let fitted = self.env.real_disk_size().map_err(CatalogError::from).and_then(|length| match length {
            // A new file has no pages yet.
            0 => Ok(()),
            length if length == whole => Ok(()),
            _ => File::options().write(true).open(&path).and_then(|file| file.set_len(whole)).map_err(io_error(&path)),
        });
        if let Err(error) = fitted {
            tracing::warn!(%error, "the catalog's file cannot be given its length");
        }
    }

    /// Bytes of all pages that were committed.
    pub fn whole_length(&self) -> u64 {
        let pages = self.env.info().last_page_number as u64 + 1;
        pages.saturating_mul(u64::from(self.env.unnamed_database_stat().page_size))
    }

    /// The size of a copy without holes, where the file takes more than `factor` times as much and more than `least` bytes.
    pub fn wastes(&self, factor: u64, least: u64) -> Result<Option<u64>, CatalogError> {
        let used = self.env.real_disk_size()?;
        let txn = self.env.read_txn()?;
        let mut live = 0;
        for table in &self.tables {
            let stat = table.stat(&txn)?;
            live += (stat.branch_pages + stat.leaf_pages + stat.overflow_pages) as u64 * u64::from(stat.page_size);
        }
        Ok((used > least && used / factor > live).then_some(live))
    }
}
