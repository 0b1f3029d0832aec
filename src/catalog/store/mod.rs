//! The LMDB environment: tables, keys, opening, locking; what takes its place (`compaction`).
//!
//! | table | key | record |
//! |---|---|---|
//! | entries | parent inode, entry id | [`NodeRecord`]: name, kind, inode, size, times |
//! | names | parent inode, hash of the name | the entry ids of the names with this hash, almost always one; see [`UNNAMED`] |
//! | inodes | inode | [`InodeRecord`]: parent inode, entry id, resource |
//! | orphans | inode | [`OrphanRecord`] |
//! | displaced | path by rule, URI (digests) | the URI of a resource that lost that path's plain name to another |
//! | journal | set, URI (digest) | what was changed there last (`journal`) |
//! | held | set, URI (digest) | a deletion held back: its time, the URI |
//! | meta | a word | format, instance, revision, position, naming, symbols, sets |
//!
//! The root is entry 1 of inode 0, which does not exist. A first baseline, level by level, appends to every table.

pub(super) mod codec;
mod compaction;
pub(super) mod keys;
mod parts;
pub(super) mod previous;
pub(super) mod record;
pub(super) mod sets;
pub(super) mod symbols;

pub(super) use compaction::Successor;

use super::error::io_error;
use super::naming::resolve::DEEPEST;
use super::{CatalogError, Naming};
use crate::document::Uri;
use crate::platform::lmdb::{Readers, StructureError, reserve_lock_file, with_map};
use codec::{Octets, damaged, push_string, seal, unseal};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithoutTls};
use keys::{entry_key, ino_key, name_hash, name_key};
use record::{InodeRecord, NodeRecord, OrphanRecord, ResourceRecord, RevisionRecord};
use sets::SetTable;
use std::fs::{DirBuilder, File};
use std::ops::Bound;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use symbols::Symbols;

/// The root's inode.
pub(super) const ROOT: u64 = 1;

/// The root's entry id, in the folder that does not exist.
pub(super) const ROOT_ENTRY: u64 = 1;

/// Changes with everything that a reader of the tables must know, and with the rules for names.
const FORMAT: &[u8] = b"resyncfs catalog 5";

/// Earlier programs entered no names of a folder of so few children: these are looked for among its first children.
const UNNAMED: usize = 48;

/// Address space only; a catalog of 100 million resources takes a tenth.
const MAP_SIZE: u64 = 1 << 38;

/// Snapshots at one time: far more than threads that hold one.
const MAX_READERS: u32 = 1024;

/// A table; keys and records are plain octets, see [`record`].
pub(super) type Table = Database<'static, Bytes, Bytes>;

/// Which table of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableId {
    Entries,
    Names,
    Inodes,
    Orphans,
    Displaced,
    Journal,
    Held,
    Meta,
}

/// Keys of `meta`.
pub(super) mod meta {
    pub const FORMAT: &[u8] = b"format";
    pub const INSTANCE: &[u8] = b"instance";
    pub const REVISION: &[u8] = b"revision";
    pub const POSITION: &[u8] = b"position";
    pub const NAMING: &[u8] = b"naming";
    pub const SYMBOLS: &[u8] = b"symbols";
    pub const SETS: &[u8] = b"sets";
}

/// A store is compacted where it takes more than so many times what is in it, and more than so many octets.
pub(super) const WASTE_FACTOR: u64 = 2;
pub(super) const WASTE_LEAST: u64 = 64 << 20;

/// The folder of a store that was found damaged when it was opened.
pub(super) const DAMAGED: &str = "store.damaged";

/// The open environment, in the folder `store-N` of the catalog. One that takes its place is `store-N+1`; the greatest number counts.
#[derive(Clone)]
pub(super) struct Store {
    folder: PathBuf,
    pub env: Env<WithoutTls>,
    pub readers: Arc<Readers>,
    pub entries: Table,
    pub names: Table,
    pub inodes: Table,
    pub orphans: Table,
    pub displaced: Table,
    pub journal: Table,
    pub held: Table,
    pub meta: Table,
}

/// Makes a folder that its owner alone can enter, with all above it.
pub(super) fn make_folder(folder: &Path) -> Result<(), CatalogError> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io_error(folder))
}

/// Removes what an earlier process left in the spill folder, and makes it.
pub(super) fn empty_folder(folder: &Path) -> Result<(), CatalogError> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error(folder)(error)),
        _ => make_folder(folder),
    }
}

impl Store {
    /// Opens the environment of the catalog in `catalog`, or makes it. One that is damaged or of another format is moved
    /// to [`DAMAGED`] (in place of an older one), and an empty one takes its place.
    pub(super) fn open(catalog: &Path) -> Result<Store, CatalogError> {
        let mut folders = numbered(catalog)?;
        let (number, folder) = folders.pop().unwrap_or_else(|| (1, catalog.join("store-1")));
        for (_, superseded) in folders {
            std::fs::remove_dir_all(&superseded).map_err(io_error(&superseded))?;
        }
        match Store::open_checked(&folder) {
            Err(error) if error.is_damage() => {
                let aside = catalog.join(DAMAGED);
                tracing::warn!(%error, aside = %aside.display(), "the catalog is made anew");
                match std::fs::remove_dir_all(&aside) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io_error(&aside)(error)),
                    _ => std::fs::rename(&folder, &aside).map_err(io_error(&folder))?,
                }
                Store::open_checked(&catalog.join(format!("store-{}", number + 1)))
            }
            opened => opened,
        }
    }

    fn open_checked(folder: &Path) -> Result<Store, CatalogError> {
        check_structure(folder)?;
        let store = Store::open_tables(folder, EnvFlags::empty())?;
        store.check()?;
        // A process that was killed may have left it longer.
        if let Err(error) = store.shorten() {
            tracing::warn!(%error, "the catalog's file stays longer than what is in it");
        }
        store.clear_orphans()?;
        Ok(store)
    }

    fn open_tables(folder: &Path, flags: EnvFlags) -> Result<Store, CatalogError> {
        make_folder(folder)?;
        reserve_lock_file(folder, MAX_READERS).map_err(io_error(folder))?;
        // SAFETY: The folder is locked by this process ([`FolderLock`]) and for its owner alone, so nothing else changes the mapped
        // file. What NO_SYNC leaves undone [`Successor`] does.
        let env = unsafe { open_environment(folder, flags)? };
        env.clear_stale_readers()?;
        lengthen(folder, &env)?;
        match Store::existing_tables(&env)? {
            Some(tables) => Ok(Store::new(folder, env, tables)),
            None => Store::create_tables(folder, env),
        }
    }

    fn new(folder: &Path, env: Env<WithoutTls>, tables: [Table; 8]) -> Store {
        let [entries, names, inodes, orphans, displaced, journal, held, meta] = tables;
        let (folder, readers) = (folder.to_path_buf(), Arc::default());
        Store { folder, env, readers, entries, names, inodes, orphans, displaced, journal, held, meta }
    }

    pub(super) fn table(&self, id: TableId) -> Table {
        self.tables()[id as usize]
    }

    /// In the order of [`Store::TABLES`] and of [`TableId`].
    pub(super) fn tables(&self) -> [Table; 8] {
        let Store { entries, names, inodes, orphans, displaced, journal, held, meta, .. } = *self;
        [entries, names, inodes, orphans, displaced, journal, held, meta]
    }

    pub(super) const TABLES: [&'static str; 8] =
        ["entries", "names", "inodes", "orphans", "displaced", "journal", "held", "meta"];

    fn existing_tables(env: &Env<WithoutTls>) -> Result<Option<[Table; 8]>, CatalogError> {
        let opened = env.open_databases_and_commit(env.read_txn()?, |opener, txn| {
            let mut tables = [None; 8];
            for (table, name) in tables.iter_mut().zip(Store::TABLES) {
                *table = opener.open_database::<Bytes, Bytes>(txn, Some(name))?;
            }
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(tables))
        })?;
        let Some(tables) = opened.commit() else { return Ok(None) };
        let [Some(first), ..] = tables else { return Ok(None) };
        let mut found = [first; 8];
        for (place, table) in found.iter_mut().zip(tables) {
            let Some(table) = table else { return Ok(None) };
            *place = table;
        }
        Ok(Some(found))
    }

    fn create_tables(folder: &Path, env: Env<WithoutTls>) -> Result<Store, CatalogError> {
        let created = env.create_databases_and_commit(env.write_txn()?, |opener, txn| {
            let mut table = |index: usize| opener.create_database::<Bytes, Bytes>(txn, Some(Store::TABLES[index]));
            let tables = [table(0)?, table(1)?, table(2)?, table(3)?, table(4)?, table(5)?, table(6)?, table(7)?];
            let [.., meta] = tables;
            let mut format = FORMAT.to_vec();
            seal(meta::FORMAT, &mut format);
            // The format is written in the commit that makes the tables: a store without it is foreign.
            meta.put(txn, meta::FORMAT, &format)?;
            let mut instance = new_instance().to_le_bytes().to_vec();
            seal(meta::INSTANCE, &mut instance);
            meta.put(txn, meta::INSTANCE, &instance)?;
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(tables))
        })?;
        match created.commit() {
            Some(tables) => Ok(Store::new(folder, env, tables)),
            None => Err(CatalogError::Damaged("its tables cannot be made".into())),
        }
    }

    /// Format, revision and root make sense; everything else is checked when it is read.
    fn check(&self) -> Result<(), CatalogError> {
        let txn = self.env.read_txn()?;
        if self.meta(&txn, meta::FORMAT)? != Some(FORMAT) {
            return Err(CatalogError::Damaged("another format".into()));
        }
        self.instance(&txn)?;
        self.symbols(&txn)?;
        if self.revision(&txn)?.is_some() {
            self.naming(&txn)?;
            self.inode_entry(&txn, ROOT)?.ok_or_else(|| CatalogError::Damaged("no root".into()))?;
        }
        Ok(())
    }

    /// Orphans are for the mount that was running: its kernel has gone.
    fn clear_orphans(&self) -> Result<(), CatalogError> {
        if self.orphans.is_empty(&*self.env.read_txn()?)? {
            return Ok(());
        }
        let mut txn = self.env.write_txn()?;
        self.orphans.clear(&mut txn)?;
        self.commit(txn)
    }

    /// Octets of all pages that were committed.
    pub(super) fn whole_length(&self) -> u64 {
        whole_length(&self.env)
    }

    /// Commits, and gives the file its whole length, so that the next opening need not follow all of it. The caller alone writes.
    pub(super) fn commit(&self, txn: RwTxn<'_>) -> Result<(), CatalogError> {
        txn.commit()?;
        self.readers.let_go();
        // The commit is done: this is no failure of it.
        if let Err(error) = lengthen(&self.folder, &self.env) {
            tracing::warn!(%error, "the catalog's file stays short");
        }
        Ok(())
    }

    /// Frees what lies behind the end of the store, of a transaction that was not committed. The caller alone writes.
    pub(super) fn shorten(&self) -> Result<(), CatalogError> {
        let whole = self.whole_length();
        // Readers have no page behind it.
        if self.env.real_disk_size()? > whole { set_length(&self.folder, whole) } else { Ok(()) }
    }

    /// What a copy without holes would take, where the file takes more than `factor` times as much and more than `least` octets.
    pub(super) fn wastes(&self, factor: u64, least: u64) -> Result<Option<u64>, CatalogError> {
        let used = self.env.real_disk_size()?;
        let txn = self.env.read_txn()?;
        let mut live = 0;
        for table in self.tables() {
            let stat = table.stat(&txn)?;
            live += (stat.branch_pages + stat.leaf_pages + stat.overflow_pages) as u64 * u64::from(stat.page_size);
        }
        Ok((used > least && used / factor > live).then_some(live))
    }

    /// Removes the files; the open environment goes on until it is dropped.
    fn unlink(&self) -> Result<(), CatalogError> {
        std::fs::remove_dir_all(&self.folder).map_err(io_error(&self.folder))
    }

    /// The record at `key` of `table`, checked.
    pub(super) fn get<'t>(
        &self,
        txn: &'t RoTxn<'_>,
        table: Table,
        key: &[u8],
    ) -> Result<Option<&'t [u8]>, CatalogError> {
        table.get(txn, key)?.map(|sealed| unseal(key, sealed)).transpose()
    }

    pub(super) fn meta<'t>(&self, txn: &'t RoTxn<'_>, key: &[u8]) -> Result<Option<&'t [u8]>, CatalogError> {
        self.get(txn, self.meta, key)
    }

    pub(super) fn revision(&self, txn: &RoTxn<'_>) -> Result<Option<RevisionRecord>, CatalogError> {
        let record = self.meta(txn, meta::REVISION)?;
        record.map(|octets| RevisionRecord::decode(octets).ok_or_else(|| damaged("sense", meta::REVISION))).transpose()
    }

    /// What distinguishes this store from every other: see [`super::Catalog::instance`].
    pub(super) fn instance(&self, txn: &RoTxn<'_>) -> Result<u64, CatalogError> {
        let octets = self.meta(txn, meta::INSTANCE)?.and_then(|octets| octets.try_into().ok());
        octets.map(u64::from_le_bytes).ok_or_else(|| damaged("sense", meta::INSTANCE))
    }

    pub(super) fn symbols(&self, txn: &RoTxn<'_>) -> Result<Symbols, CatalogError> {
        let octets = self.meta(txn, meta::SYMBOLS)?.unwrap_or_default();
        Symbols::decode(octets).ok_or_else(|| damaged("sense", meta::SYMBOLS))
    }

    /// The sets of the revision; none before the first.
    pub(super) fn sets(&self, txn: &RoTxn<'_>) -> Result<SetTable, CatalogError> {
        let octets = self.meta(txn, meta::SETS)?.unwrap_or_default();
        SetTable::decode(octets).ok_or_else(|| damaged("sense", meta::SETS))
    }

    /// The naming that the revision was made with.
    pub(super) fn naming(&self, txn: &RoTxn<'_>) -> Result<Naming, CatalogError> {
        self.meta(txn, meta::NAMING)?.and_then(decode_naming).ok_or_else(|| damaged("sense", meta::NAMING))
    }

    /// The path of an inode's name; `None` where it has none.
    pub(super) fn path_of(&self, txn: &RoTxn<'_>, ino: u64) -> Result<Option<String>, CatalogError> {
        let (mut names, mut above) = (Vec::new(), ino);
        while above != ROOT {
            match self.inode_entry(txn, above)? {
                // Every folder is older in its path than what lies in it: a chain longer than any path is a cycle.
                Some((place, node)) if names.len() <= DEEPEST => {
                    names.push(std::str::from_utf8(node.name).map_err(|_| damaged("name", &ino_key(above)))?);
                    above = place.parent;
                }
                None if names.is_empty() => return Ok(None),
                _ => return Err(damaged("parent", &ino_key(above))),
            }
        }
        names.reverse();
        Ok(Some(names.join("/")))
    }

    /// The URI of the resource that `ino` stands for in a revision made under `naming`.
    pub(super) fn uri_of(
        &self,
        txn: &RoTxn<'_>,
        ino: u64,
        record: &ResourceRecord<'_>,
        naming: &Naming,
    ) -> Result<Uri, CatalogError> {
        let sense = || damaged("resource", &ino_key(ino));
        match record.uri {
            Some(uri) => Uri::parse(uri).map_err(|_| sense()),
            None => naming.uri(&self.path_of(txn, ino)?.ok_or_else(sense)?, record.https).ok_or_else(sense),
        }
    }

    pub(super) fn entry<'t>(
        &self,
        txn: &'t RoTxn<'_>,
        parent: u64,
        entry: u64,
    ) -> Result<Option<NodeRecord<'t>>, CatalogError> {
        let key = entry_key(parent, entry);
        let record = self.get(txn, self.entries, &key)?;
        record.map(|octets| NodeRecord::decode(octets).ok_or_else(|| damaged("sense", &key))).transpose()
    }

    pub(super) fn inode<'t>(&self, txn: &'t RoTxn<'_>, ino: u64) -> Result<Option<InodeRecord<'t>>, CatalogError> {
        let key = ino_key(ino);
        let record = self.get(txn, self.inodes, &key)?;
        record.map(|octets| InodeRecord::decode(octets).ok_or_else(|| damaged("sense", &key))).transpose()
    }

    pub(super) fn orphan<'t>(&self, txn: &'t RoTxn<'_>, ino: u64) -> Result<Option<OrphanRecord<'t>>, CatalogError> {
        let key = ino_key(ino);
        let record = self.get(txn, self.orphans, &key)?;
        record.map(|octets| OrphanRecord::decode(octets).ok_or_else(|| damaged("sense", &key))).transpose()
    }

    /// Place, resource and node of an inode that has a name.
    #[allow(clippy::type_complexity)]
    pub(super) fn inode_entry<'t>(
        &self,
        txn: &'t RoTxn<'_>,
        ino: u64,
    ) -> Result<Option<(InodeRecord<'t>, NodeRecord<'t>)>, CatalogError> {
        let Some(place) = self.inode(txn, ino)? else { return Ok(None) };
        match self.entry(txn, place.parent, place.entry)? {
            Some(node) if node.ino == ino => Ok(Some((place, node))),
            _ => Err(damaged("entry", &ino_key(ino))),
        }
    }

    /// Entry id and node of `name` in `parent`.
    pub(super) fn named<'t>(
        &self,
        txn: &'t RoTxn<'_>,
        parent: u64,
        name: &[u8],
    ) -> Result<Option<(u64, NodeRecord<'t>)>, CatalogError> {
        let key = name_key(parent, name_hash(name));
        let mut ids = Octets(self.get(txn, self.names, &key)?.unwrap_or_default());
        while let Some(id) = ids.number() {
            let node = self.entry(txn, parent, id)?.ok_or_else(|| damaged("entry", &key))?;
            if node.name == name {
                return Ok(Some((id, node)));
            }
        }
        for child in self.children(txn, parent, 0)?.take(UNNAMED) {
            let (id, node) = child?;
            if node.name == name {
                return Ok(Some((id, node)));
            }
        }
        Ok(None)
    }

    /// The children of `parent` behind entry `after`, in the order of their entry ids.
    pub(super) fn children<'t>(
        &self,
        txn: &'t RoTxn<'_>,
        parent: u64,
        after: u64,
    ) -> Result<impl Iterator<Item = Result<(u64, NodeRecord<'t>), CatalogError>> + use<'t>, CatalogError> {
        let (first, end) = (entry_key(parent, after), entry_key(parent + 1, 0));
        let range = (Bound::Excluded(&first[..]), Bound::Excluded(&end[..]));
        Ok(self.entries.range(txn, &range)?.map(|pair| {
            let (key, sealed) = pair?;
            let node = NodeRecord::decode(unseal(key, sealed)?).ok_or_else(|| damaged("sense", key))?;
            let id = key.get(5..).and_then(|id| Octets(id).number()).ok_or_else(|| damaged("key", key))?;
            Ok((id, node))
        }))
    }
}

/// # Safety
/// As of [`EnvOpenOptions::open`], but for NO_READ_AHEAD, which only advises the kernel.
unsafe fn open_environment(folder: &Path, flags: EnvFlags) -> heed::Result<Env<WithoutTls>> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.max_dbs(Store::TABLES.len() as u32).max_readers(MAX_READERS);
    // SAFETY: the caller's.
    let open = |size| unsafe { options.map_size(size).flags(EnvFlags::NO_READ_AHEAD | flags).open(folder) };
    with_map(MAP_SIZE, open)
}

/// See [`crate::platform::lmdb::check`].
fn check_structure(folder: &Path) -> Result<(), CatalogError> {
    crate::platform::lmdb::check(folder, false).map_err(|error| match error {
        StructureError::Io(cause) => io_error(folder)(cause),
        damaged => CatalogError::Damaged(damaged.to_string()),
    })
}

/// Makes the file as long as its store says: pages that one commit takes at the end and frees are never written, and a file that is short
/// is followed whole at the next opening.
fn lengthen(folder: &Path, env: &Env<WithoutTls>) -> Result<(), CatalogError> {
    let whole = whole_length(env);
    let length = env.real_disk_size()?;
    // A new file has no pages yet.
    if length == 0 || length >= whole { Ok(()) } else { set_length(folder, whole) }
}

/// Octets of all pages that were committed.
fn whole_length(env: &Env<WithoutTls>) -> u64 {
    let pages = env.info().last_page_number as u64 + 1;
    pages.saturating_mul(u64::from(env.unnamed_database_stat().page_size))
}

fn set_length(folder: &Path, octets: u64) -> Result<(), CatalogError> {
    let path = folder.join("data.mdb");
    File::options().write(true).open(&path).and_then(|file| file.set_len(octets)).map_err(io_error(&path))
}

/// The folders `store-N` of a catalog by number, ascending.
fn numbered(catalog: &Path) -> Result<Vec<(u64, PathBuf)>, CatalogError> {
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

pub(super) fn push_naming(out: &mut Vec<u8>, naming: &Naming) {
    let Naming { own_authority, maps, extension_by_type } = naming;
    out.push(u8::from(*extension_by_type));
    push_string(out, own_authority);
    for (prefix, path) in maps {
        push_string(out, prefix);
        push_string(out, path);
    }
}

fn decode_naming(octets: &[u8]) -> Option<Naming> {
    let mut octets = Octets(octets);
    let extension_by_type = octets.octet()? != 0;
    let own_authority = octets.string()?.into();
    let mut maps = Vec::new();
    while !octets.0.is_empty() {
        maps.push((octets.string()?.into(), octets.string()?.into()));
    }
    Some(Naming { own_authority, maps, extension_by_type })
}

/// A number that no other store has, from the operating system's randomness.
fn new_instance() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
