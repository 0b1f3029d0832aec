//! The persistent index: which names exist, what inode and attributes each has, and which resource it stands for.
//!
//! Readers see one revision at a time through a [`Snapshot`]; the only writer is [`update`], driven by `sync`.
//!
//! - A path is a function of the set of URIs that the Source lists ([`path`]).
//! - An inode is a path with one content version: other content is another inode, no number is ever given twice. What
//!   makes a version is said in `renew::version`.
//! - An entry id belongs to a path for as long as the path exists, and is its directory cookie.
//! - An inode that loses its name is an orphan until the kernel has forgotten it, or the catalog is opened again.
//! - A revision is the whole tree with the position of `sync`: it is shown whole or not at all.
//! - A resource is a member of one or more sets, and goes when the last drops it. What it is shown as was said last.
//! - A change that was applied stays in the journal until its set's list speaks for a later time: an older list neither
//!   undoes it nor brings back what it deleted.
//! - Of the URIs that share a path the first 100 are shown, by the order of the URIs. Where one of these goes, the next baseline shows
//!   another in its place.
//! - A deletion that is held back leaves its resource in the tree, until it is accepted or its set has the resource again.
//!
//! On disk it is one LMDB environment (`store`), filled in key order from an external sort (`sorter`). A first revision that is not small,
//! and one that shares little with the one before, is written whole into another, which takes its place; what lost its name then is still read in
//! the old one for a while (`past`).

mod apply;
mod baseline;
mod changes;
mod coming;
mod folders;
mod going;
mod held;
mod ingest;
mod journal;
mod lock;
mod losses;
mod merge;
pub mod naming;
mod rebuild;
mod renew;
pub mod snapshot;
mod sort;
mod statement;
mod statements;
mod store;
mod superseded;
mod version;
mod write_budget;

use crate::document::{ChangeFrequency, Digest, Link, PackageMember, Timestamp, Uri};
use crate::inodes::InodeSet;
use crate::room::{BETWEEN_LOOKS, Room};
use arc_swap::ArcSwap;
use fuser::INodeNo;
use heed::MdbError;
use sort::{RunLimits, SpillFolder};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use tokio::sync::Notify;

pub use baseline::Baseline;
pub use changes::{Applied, Changes, HeldDeletion, Journaled, Statement};
pub use ingest::{Share, Shared};
pub use lock::FolderLock;
pub use losses::{Decision, Losses, SetLoss};
pub use naming::Naming;
pub use renew::Committed;
pub use renew::Renewal;
pub use snapshot::Snapshot;
pub use statements::{LastStatement, LastStatements, Standing, Statements};

/// A folder, and a name in it.
pub type Place = (INodeNo, Box<[u8]>);

/// What a change of the tree means for the kernel; travels through one channel to `fs::invalidator`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// The name in this folder stands for something else, or for nothing, or newly exists.
    Name {
        /// The folder.
        parent: INodeNo,
        /// The name.
        name: Box<[u8]>,
        /// The inode that the name stood for until now and that may live on as an orphan.
        orphan: Option<INodeNo>,
    },
    /// The folder's listing or attributes changed.
    Folder(INodeNo),
    /// Those of so many folders that they are told together.
    Folders(InodeSet),
    /// The attributes (size, times) of this inode changed, its bytes did not.
    Attributes(INodeNo),
    /// So much changed that everything known is to be asked again. These are the folders changed; names and the inodes that lost theirs
    /// are not listed.
    Everything(InodeSet),
    /// Of all inodes that have lost their names the kernel is to be asked which it knows ([`Catalog::settle_orphans`]).
    Orphans,
}

/// Folder or file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Folder,
    File,
}

/// How it becomes known that the bytes of a file are others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Its entry has `lastmod` or a hash: the list tells. So it is of every folder.
    Listed,
    /// Its entry has neither: the Source must be asked, as often as `changefreq` suggests.
    Asked(Option<ChangeFrequency>),
}

/// What `stat` needs of one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The inode: (path, content version).
    pub ino: INodeNo,
    /// Folder or file.
    pub kind: Kind,
    /// The published length of what is read; `None` where not published or `encoding` is given.
    pub size: Option<u64>,
    /// Modification time as DESIGN says.
    pub mtime: Timestamp,
    /// When this machine saw the change.
    pub ctime: Timestamp,
    /// How a change of its bytes becomes known.
    pub freshness: Freshness,
}

/// A directory cookie: given once to a path and kept through its versions. 0 is before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub u64);

/// One of the sets of resources of the Source (section 6.1), by the number that `sync` has given it for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetId(pub u32);

/// All that the Source published of the resource behind a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its URI.
    pub uri: Uri,
    /// `lastmod`
    pub lastmod: Option<Timestamp>,
    /// `changefreq`
    pub changefreq: Option<ChangeFrequency>,
    /// `length`: of the coded octets where `encoding` is given.
    pub length: Option<u64>,
    /// `hash`, strongest first.
    pub hashes: Vec<Digest>,
    /// `type`
    pub media_type: Option<Box<str>>,
    /// `encoding`
    pub encoding: Option<Box<str>>,
    /// `rs:ln`
    pub links: Vec<Link>,
    /// The sets it is a member of, ascending.
    pub sets: Vec<SetId>,
    /// Where a package holds exactly this version.
    pub member: Option<PackageMember>,
}

/// Sums over the current revision, kept with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Files.
    pub files: u64,
    /// Folders, the root included.
    pub folders: u64,
    /// Sum of the published lengths.
    pub octets: u64,
    /// Files without a published length.
    pub unsized_files: u64,
}

/// What the current revision is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Counts commits from 1.
    pub number: u64,
    /// When it was committed here.
    pub committed: Timestamp,
    /// The time it speaks for: the earliest `at` of its lists.
    pub at: Option<Timestamp>,
    /// Sums.
    pub totals: Totals,
}

/// Why the catalog cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// Another mount has it open.
    #[error("{folder} is in use by {holder}", folder = .folder.display())]
    Busy {
        /// The catalog's folder.
        folder: PathBuf,
        /// Process and mount point of the other, as far as known.
        holder: String,
    },
    /// The operating system refused.
    #[error("{path}", path = .path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Its answer.
        #[source]
        cause: std::io::Error,
    },
    /// The store failed.
    #[error("the catalog's store failed")]
    Store(#[from] heed::Error),
    /// A record does not match its checksum or makes no sense: the next baseline must build the store anew
    /// ([`Catalog::distrust`]).
    #[error("the catalog is damaged: {0}")]
    Damaged(String),
    /// The store before, which orphans alone are read in until the kernel was asked about them, is damaged: the tree is not.
    #[error("the store of the tree before is damaged: {0}")]
    DamagedBefore(String),
    /// The store is damaged and is to be built again, and deletions are to be held back that it cannot be read for.
    #[error(
        "the catalog is damaged, and so many files are no longer listed that it is not built again unasked: if they are gone \
         from the Source: resyncfs refresh --accept-deletions DIR"
    )]
    Undecided,
    /// Changes have nothing to change before the first baseline.
    #[error("the catalog has no revision yet")]
    NoRevision,
}

impl CatalogError {
    /// Whether a store that answers so can only be made anew.
    pub fn is_damage(&self) -> bool {
        match self {
            CatalogError::Damaged(_) => true,
            CatalogError::Store(heed::Error::Mdb(error)) => matches!(
                error,
                MdbError::PageNotFound
                    | MdbError::Corrupted
                    | MdbError::Panic
                    | MdbError::VersionMismatch
                    | MdbError::Invalid
                    | MdbError::MapResized
                    | MdbError::DbsFull
                    | MdbError::Incompatible
            ),
            _ => false,
        }
    }
}

/// The catalog of one mount identity; share it by `Arc`.
///
/// Readers never wait for a commit, nor for each other. Lock order: `writer`, then the store's own write lock, then `forgotten`, which
/// is not held while another lock is taken.
pub struct Catalog {
    /// Replaced by [`Catalog::compact`] and where a revision was written into a store of its own; whoever uses it keeps the one that they took to
    /// the end. Who replaces it holds `writer`.
    current: ArcSwap<Current>,
    symbols: store::symbols::Symbols,
    /// Where baselines spill.
    spill_folder: SpillFolder,
    /// One commit at a time: the revision a commit was computed from is the one it replaces.
    writer: Mutex<()>,
    /// Whether damage was found in `store`, and who waits for that.
    distrusted: AtomicBool,
    distrust: Notify,
    /// Orphans to be dropped by whoever writes next.
    forgotten: Mutex<InodeSet>,
    /// See [`Catalog::most_in_place`].
    most_in_place: AtomicU64,
    /// Behind all others, so that the folder is released when the store is closed.
    _lock: FolderLock,
}

/// What is read.
#[derive(Clone)]
struct Current {
    store: Arc<store::Store>,
    /// The store before, as long as orphans are read in it.
    past: Option<Arc<store::previous::Past>>,
}

impl Catalog {
    /// Opens or makes the catalog in `folder`; `holder` is what a second opener is told (mount point and process).
    /// A damaged or foreign-format catalog is moved aside and made anew, empty.
    pub fn open(folder: &Path, holder: &str) -> Result<Catalog, CatalogError> {
        store::make_folder(folder)?;
        let lock = FolderLock::take(folder, holder)?;
        let spill_folder = SpillFolder::new(&folder.join("tmp"));
        store::empty_folder(&spill_folder.path)?;
        let store = store::Store::open(folder)?;
        let symbols = store.symbols(&*store.env.read_txn()?)?;
        Ok(Catalog {
            current: ArcSwap::from_pointee(Current { store: Arc::new(store), past: None }),
            symbols,
            spill_folder,
            writer: Mutex::default(),
            distrusted: AtomicBool::new(false),
            distrust: Notify::new(),
            forgotten: Mutex::default(),
            // Trees of unit tests are small, and those that want it say so.
            most_in_place: AtomicU64::new(if cfg!(test) { u64::MAX } else { rebuild::rewrite::REWRITTEN_LEAST }),
            _lock: lock,
        })
    }

    /// The same, which leaves `room` free on its disk: whatever would take of that fails, and changes nothing.
    pub fn leaving(mut self, room: Room) -> Catalog {
        self.spill_folder.room = Arc::new(room);
        self
    }

    /// What is left free on its disk.
    pub fn room(&self) -> Arc<Room> {
        self.spill_folder.room.clone()
    }

    fn store(&self) -> Arc<store::Store> {
        self.current.load().store.clone()
    }

    fn current(&self) -> Current {
        Current::clone(&self.current.load())
    }

    /// So many names, and no more, of a tree of so many files may differ in a commit that is written over the revision before;
    /// where more do it may be written whole.
    fn most_in_place(&self, files: u64) -> u64 {
        if self.current().past.is_some() {
            // Two at a time would take the room of three.
            return u64::MAX;
        }
        self.most_in_place.load(Ordering::Relaxed).max(files / 64)
    }

    /// Distinguishes this catalog from one that was in the same folder before it and gave the same inodes to others:
    /// whatever is kept by inode elsewhere is kept under this name.
    pub fn instance(&self) -> Result<String, CatalogError> {
        let store = self.store();
        let txn = store.env.read_txn()?;
        Ok(format!("{:016x}", store.instance(&txn)?))
    }

    /// The current revision; `None` before the first commit.
    pub fn revision(&self) -> Result<Option<Revision>, CatalogError> {
        self.snapshot()?.revision()
    }

    /// The current revision for one operation. Short: a snapshot held keeps old pages from reuse.
    pub fn snapshot(&self) -> Result<Snapshot<'_>, CatalogError> {
        Snapshot::new(self)
    }

    #[cfg(test)]
    fn write_in_place(&self, most: u64) {
        self.most_in_place.store(most, Ordering::Relaxed);
    }

    /// Begins a new baseline: a complete statement of what exists.
    pub fn baseline(&self, naming: Naming) -> Result<Baseline<'_>, CatalogError> {
        Ok(Baseline::new(self, naming))
    }

    /// For entries that another thread adds before the baseline of theirs is begun; they count as added at [`Baseline::join`].
    pub fn share<'c>(&'c self, naming: &'c Naming, set: SetId) -> Share<'c> {
        Share::new(self, naming, set, RunLimits::default())
    }

    /// Begins an incremental commit: changes of single resources over the current revision, made under its naming.
    pub fn changes(&self) -> Result<Changes<'_>, CatalogError> {
        Changes::new(self)
    }

    /// Drops the records of orphans that the kernel has forgotten, in one commit. While another commit is running they stay
    /// until the next write: nobody waits.
    pub fn drop_orphans(&self, inodes: &[INodeNo]) -> Result<(), CatalogError> {
        let Current { store, past } = self.current();
        let mut forgotten = inodes.to_vec();
        if let Some(past) = past {
            past.drop_orphans(inodes);
            let txn = store.env.read_txn()?;
            let mut present = Vec::new();
            for ino in forgotten {
                present.extend(store.orphans.get(&txn, &store::keys::ino_key(ino.0))?.map(|_| ino));
            }
            forgotten = present;
        }
        if forgotten.is_empty() {
            return Ok(());
        }
        self.forgotten.lock().unwrap_or_else(PoisonError::into_inner).extend(forgotten);
        match self.writer.try_lock() {
            Err(TryLockError::WouldBlock) => Ok(()),
            Ok(_) | Err(TryLockError::Poisoned(_)) => renew::drop_forgotten(self),
        }
    }

    /// Copies the store without its holes where it takes more than twice what is in it, and goes on with the copy;
    /// answers whether it did. To be called after commits, or when many orphans were dropped, away from every reader:
    /// commits wait for it, readers do not.
    pub fn compact(&self) -> Result<bool, CatalogError> {
        self.compact_beyond(store::WASTE_FACTOR, store::WASTE_LEAST)
    }

    fn compact_beyond(&self, factor: u64, least: u64) -> Result<bool, CatalogError> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let store = self.store();
        let Some(octets) = store.wastes(factor, least)? else { return Ok(false) };
        let SpillFolder { path, room } = &self.spill_folder;
        if let Err(short) = room.look(path, octets) {
            tracing::info!(folder = %path.display(), "the catalog keeps its holes: {short}");
            return Ok(false);
        }
        let before = self.replace_store(store.compacted(&self.spill_folder)?, |current| current.past)?;
        // To close it and to give back what it took needs a while, and commits do not wait for that.
        drop(writer);
        drop((store, before));
        Ok(true)
    }

    /// Goes on with a store that the whole of a revision was written into. The caller holds `writer`.
    fn succeed(&self, successor: store::Successor, since: Timestamp) -> Result<(), CatalogError> {
        self.replace_store(successor, |current| Some(Arc::new(store::previous::Past::new(current.store, since))))
            .map(drop)
    }

    /// The number of the store that orphans are still read in beside the present one; `None` where there is none.
    pub fn past(&self) -> Option<u64> {
        self.current().past.map(|past| past.number)
    }

    /// The kernel was asked about all orphans, beginning when there was the store number `past_number`, and knows these: the records
    /// of all others are dropped with that store. To be called away from every reader.
    ///
    /// # Errors
    /// The records of the known could not be written (the disk is full): the store stays, and may be settled later.
    pub fn settle_orphans(&self, past_number: u64, known: &InodeSet) -> Result<(), CatalogError> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let Current { store, past } = self.current();
        let Some(past) = past.filter(|known| known.number == past_number) else { return Ok(()) };
        renew::take_over(self, &past, known)?;
        self.drop_late(&past, known)?;
        let before = self.current.swap(Arc::new(Current { store, past: None }));
        // To close it and to give back what it took needs a while, and commits do not wait for that.
        drop(writer);
        drop((past, before));
        Ok(())
    }

    /// Drops those that were let go while they were taken over: their rows were in neither store that [`Catalog::drop_orphans`] looked
    /// into. The caller holds `writer`.
    fn drop_late(&self, past: &store::previous::Past, known: &InodeSet) -> Result<(), CatalogError> {
        let late = past.dropped(known);
        if late.is_empty() {
            return Ok(());
        }
        self.forgotten.lock().unwrap_or_else(PoisonError::into_inner).extend(late);
        renew::drop_forgotten(self)
    }

    /// Goes on with another store. The caller holds `writer`, and where no past one keeps what there was before, drops that
    /// without it. Snapshots that still
    /// have the old one open keep it until they are dropped.
    fn replace_store(
        &self,
        successor: store::Successor,
        past: impl FnOnce(Current) -> Option<Arc<store::previous::Past>>,
    ) -> Result<Arc<Current>, CatalogError> {
        let current = self.current();
        let store = Arc::new(successor.take_place_of(&current.store)?);
        Ok(self.current.swap(Arc::new(Current { store, past: past(current) })))
    }

    /// Says that a record was found damaged: the next baseline builds the store anew, which until then answers as well as
    /// it can. Snapshots and commits that find damage say so themselves.
    pub fn distrust(&self) {
        if !self.distrusted.swap(true, Ordering::AcqRel) {
            tracing::error!("the catalog is damaged; the next refresh builds it anew");
            self.distrust.notify_one();
        }
    }

    /// Removes the damaged store that was replaced when the catalog was opened. A tree has taken its place.
    fn drop_damaged(&self) {
        let folder = self.spill_folder.path.with_file_name(store::DAMAGED);
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(%error, folder = %folder.display(), "a damaged store stays");
            }
            _ => {}
        }
    }

    /// Why a commit failed, in words that help. LMDB reports a write that the disk took but a part of as EIO; where next to nothing is free beside
    /// the reserve it is that.
    fn failure(&self, error: CatalogError) -> CatalogError {
        match &error {
            CatalogError::Store(heed::Error::Io(cause)) if cause.raw_os_error() == Some(libc::EIO) => {
                let SpillFolder { path, room } = &self.spill_folder;
                room.look(path, BETWEEN_LOOKS).map_or_else(|short| store::io_error(path)(short.into()), |()| error)
            }
            CatalogError::Store(heed::Error::Mdb(MdbError::MapFull)) => {
                store::io_error(&self.spill_folder.path)(crate::lmdb::no_address_space())
            }
            _ => error,
        }
    }

    /// Whether damage was found since the store was built.
    pub fn is_distrusted(&self) -> bool {
        self.distrusted.load(Ordering::Acquire)
    }

    /// Ends when damage is found, once each time; for one waiter.
    pub async fn damage_found(&self) {
        self.distrust.notified().await;
    }

    /// Gives files new inodes, all in one commit: their bytes were found wrong after some were handed out, or changed. What is no file
    /// with a name has nothing left to renew.
    pub fn renew(
        &self,
        inodes: impl IntoIterator<Item = (INodeNo, Renewal)>,
    ) -> Result<Vec<Invalidation>, CatalogError> {
        let renewed = renew::renew(self, inodes.into_iter().collect());
        if renewed.as_ref().is_err_and(CatalogError::is_damage) {
            self.distrust();
        }
        renewed
    }
}

#[cfg(test)]
mod tests;
