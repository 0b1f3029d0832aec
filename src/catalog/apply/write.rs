//! What a commit writes: what is created, replaced and removed, and what the kernel is to be told of it.

use super::super::Committed;
use super::super::held;
use super::super::naming::disambiguated;
use super::super::naming::resolve::{path_of_record, split};
use super::super::rebuild::Apart;
use super::super::rebuild::first::{FirstRevision, Target};
use super::super::rebuild::rewrite::Rewrite;
use super::super::rebuild::transaction::Transaction;
use super::super::store::codec::{NUMBER_LIMIT, damaged, push_number, seal};
use super::super::store::keys::{displaced_key, entry_key, ino_key, name_key};
use super::super::store::record::{InodeRecord, NodeRecord, ResourceRecord, RevisionRecord};
use super::super::store::sets::SetTable;
use super::super::store::{ROOT, ROOT_ENTRY, Store, TableId};
use super::super::store::{meta, push_naming};
use super::super::write_budget::WriteBudget;
use super::super::{Catalog, CatalogError, Freshness, Invalidation, Kind, Naming, Totals};
use super::folder_times::ChangedFolders;
use crate::document::{Timestamp, Uri};
use crate::platform::inode_set::InodeSet;
use fuser::INodeNo;
use heed::RoTxn;
use std::collections::BTreeMap;
use std::sync::PoisonError;

/// More invalidations of names and attributes than this become one [`Invalidation::Everything`], with all folders. More of folders alone
/// become one [`Invalidation::Folders`].
const MOST_INVALIDATIONS: usize = 20_000;

/// Stands in every name that a resource has because the plain one belongs to another ([`disambiguated`]).
const DISPLACED: &[u8] = b"%~";

/// Writes into one transaction, which begins with the first write, where nothing differs into none, or apart ([`Apart`]).
///
/// What exists is read from the revision before (`old` in the methods), never from this transaction: nothing written here
/// is met again.
pub(in crate::catalog) struct Writer<'c> {
    pub(in crate::catalog) catalog: &'c Catalog,
    pub(in crate::catalog) store: &'c Store,
    pub(in crate::catalog) txn: Option<Transaction<'c>>,
    /// Of that transaction.
    budget: Option<WriteBudget>,
    /// In its place for a revision that is written apart, and reads nothing of what it writes.
    pub(in crate::catalog) apart: Option<Apart<'c>>,
    /// The time of this commit.
    pub now: Timestamp,
    pub(in crate::catalog) numbers: Numbers,
    record: Vec<u8>,
    /// The folder that the last orphan lay in and the one above, each with its path and a slash: orphans come folder by folder,
    /// and folders do too.
    pub(in crate::catalog) orphan_folders: [Option<(u64, String)>; 2],
    /// `false` for the first revision: nothing was shown, so the kernel need not be notified.
    pub(in crate::catalog) shown: bool,
    names: Vec<Invalidation>,
    /// Whether `names` ceased to be complete.
    too_many: bool,
    /// Folders of the revision before in which something changed.
    pub(in crate::catalog) folders: ChangedFolders,
    /// Those whose listing or attributes are others now, once that is settled.
    pub(in crate::catalog) told_folders: InodeSet,
    /// Files; folders that come and go are counted apart.
    created: u64,
    updated: u64,
    touched: u64,
    pub(in crate::catalog) deleted: u64,
    /// Folders that came or went.
    pub(in crate::catalog) folders_changed: u64,
    /// Forgotten orphans whose records this commit drops.
    dropping: InodeSet,
    /// Whether what was written into the store is none of it.
    is_given_up: bool,
}

/// The numbers that a revision ends with: no later one gives any of them again.
#[derive(Clone, Copy, Debug)]
pub(in crate::catalog) struct Numbers {
    pub revision: u64,
    pub next_ino: u64,
    pub next_entry: u64,
}

impl Numbers {
    /// Before the first revision; the root's inode and entry id are given.
    pub(in crate::catalog) const FIRST: Numbers =
        Numbers { revision: 0, next_ino: ROOT + 1, next_entry: ROOT_ENTRY + 1 };
}

impl From<&RevisionRecord> for Numbers {
    fn from(revision: &RevisionRecord) -> Numbers {
        let RevisionRecord { number, next_ino, next_entry, .. } = *revision;
        Numbers { revision: number, next_ino, next_entry }
    }
}

/// How names followed from URIs in the revision before, and how they do now.
#[derive(Clone, Copy)]
pub(in crate::catalog) struct Namings<'n> {
    pub old: &'n Naming,
    pub new: &'n Naming,
}

/// Parent inode and entry id.
pub(in crate::catalog) type Place = (u64, u64);

impl<'c> Writer<'c> {
    /// `shown`: whether readers have seen a revision that this one replaces.
    pub(in crate::catalog) fn new(
        catalog: &'c Catalog,
        store: &'c Store,
        numbers: Numbers,
        shown: bool,
        now: Timestamp,
    ) -> Writer<'c> {
        Writer {
            catalog,
            store,
            txn: None,
            budget: None,
            apart: (!shown).then(|| Apart::First(Box::new(FirstRevision::new(store, &catalog.spill_folder)))),
            now,
            numbers,
            record: Vec::new(),
            orphan_folders: [None, None],
            shown,
            names: Vec::new(),
            too_many: false,
            folders: ChangedFolders::new(&catalog.spill_folder),
            told_folders: InodeSet::default(),
            created: 0,
            updated: 0,
            touched: 0,
            deleted: 0,
            folders_changed: 0,
            dropping: InodeSet::default(),
            is_given_up: false,
        }
    }

    /// From here on all is written, what stays too, into the store that `rewrite` is about.
    pub(in crate::catalog) fn rewrite(&mut self, old: &RoTxn<'_>, rewrite: Rewrite) -> Result<(), CatalogError> {
        self.apart = Some(Apart::Whole(Box::new(rewrite)));
        let sense = || damaged("absence", &ino_key(ROOT));
        let (place, root) = self.store.inode_entry(old, ROOT)?.ok_or_else(sense)?;
        self.put_entry((place.parent, place.entry), &root)?;
        self.put_inode(ROOT, (place.parent, place.entry), &[])
    }

    /// Whether all of the revision is written, what stays too.
    pub(in crate::catalog) fn is_rewrite(&self) -> bool {
        matches!(self.apart, Some(Apart::Whole(_)))
    }

    /// How many names differ so far from the revision before.
    pub(in crate::catalog) fn differences(&self) -> u64 {
        self.created + self.updated + self.touched + self.deleted + self.folders_changed
    }

    pub(in crate::catalog) fn begin(&mut self) -> Result<(), CatalogError> {
        if self.apart.is_some() {
            // It would wait for the transaction of the revision that is written apart, which waits for this one.
            return Err(CatalogError::Damaged("a first revision finds something to replace".into()));
        }
        if self.txn.is_none() {
            self.budget = Some(WriteBudget::of(self.store, &self.catalog.spill_folder)?);
            self.txn = Some(Transaction::begin(self.store)?);
        }
        Ok(())
    }

    /// Runs `write` on the transaction, which begins here at the latest.
    pub(in crate::catalog) fn write(
        &mut self,
        write: impl FnOnce(&mut Transaction<'c>, &mut Vec<u8>) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        self.begin()?;
        self.budget.as_mut().map_or(Ok(()), WriteBudget::touched)?;
        self.record.clear();
        match &mut self.txn {
            Some(txn) => write(txn, &mut self.record),
            None => Ok(()),
        }
    }

    fn new_ino(&mut self) -> Result<u64, CatalogError> {
        take_number(&mut self.numbers.next_ino, "inodes")
    }

    pub(in crate::catalog) fn put_entry(
        &mut self,
        (parent, entry): Place,
        node: &NodeRecord<'_>,
    ) -> Result<(), CatalogError> {
        if let Some(apart) = &mut self.apart {
            return apart.put(Target::Entries, &entry_key(parent, entry), |record| node.encode(record));
        }
        self.write(|txn, record| {
            node.encode(record);
            txn.entries.put(&mut txn.txn, &entry_key(parent, entry), record)
        })
    }

    fn put_inode(&mut self, ino: u64, (parent, entry): Place, resource: &[u8]) -> Result<(), CatalogError> {
        let place = InodeRecord { parent, entry, resource };
        if let Some(apart) = &mut self.apart {
            return apart.put(Target::Inodes, &ino_key(ino), |record| place.encode(record));
        }
        self.write(|txn, record| {
            place.encode(record);
            txn.inodes.put(&mut txn.txn, &ino_key(ino), record)
        })
    }

    /// Makes the root of an empty store.
    pub(in crate::catalog) fn create_root(&mut self, mtime: Timestamp) -> Result<(), CatalogError> {
        let node = NodeRecord {
            ino: ROOT,
            kind: Kind::Folder,
            size: None,
            mtime,
            ctime: self.now,
            freshness: Freshness::Listed,
            name: b"",
        };
        self.put_entry((0, ROOT_ENTRY), &node)?;
        self.put_inode(ROOT, (0, ROOT_ENTRY), &[])
    }

    /// Gives `node.name` in `parent` a new inode and entry id; `node.ino` does not count. The caller sees to the folder's names
    /// ([`Writer::put_names`]) and tells of the new name ([`Writer::name_changed`]) where the folder existed.
    pub(in crate::catalog) fn create(
        &mut self,
        parent: u64,
        node: NodeRecord<'_>,
        resource: &[u8],
        naming: &Naming,
    ) -> Result<(u64, u64), CatalogError> {
        let ino = self.new_ino()?;
        let entry = take_number(&mut self.numbers.next_entry, "entry ids")?;
        self.put_entry((parent, entry), &NodeRecord { ino, ..node })?;
        self.put_inode(ino, (parent, entry), resource)?;
        self.displaced(naming, node.name, resource, true)?;
        self.count(node.kind, |writer| &mut writer.created);
        Ok((ino, entry))
    }

    /// Counts a file that came or went in `files`, a folder among folders.
    pub(in crate::catalog) fn count(&mut self, kind: Kind, files: fn(&mut Self) -> &mut u64) {
        match kind {
            Kind::File => *files(self) += 1,
            Kind::Folder => self.folders_changed += 1,
        }
    }

    /// Gives an existing name a new inode: new content, or a folder where a file was. `new.ino` and `new.ctime` do not count.
    /// Returns the inode.
    pub(in crate::catalog) fn replace(
        &mut self,
        old: &RoTxn<'_>,
        namings: Namings<'_>,
        place: Place,
        before: &NodeRecord<'_>,
        new: NodeRecord<'_>,
        resource: &[u8],
    ) -> Result<u64, CatalogError> {
        let Namings { old: naming, .. } = namings;
        if before.kind == Kind::Folder {
            self.remove_children(old, naming, before.ino)?;
        }
        let ino = self.new_ino()?;
        if !self.is_rewrite() {
            self.orphan(old, naming, before)?;
        }
        self.put_entry(place, &NodeRecord { ino, ctime: self.now, ..new })?;
        self.put_inode(ino, place, resource)?;
        self.displaced(namings.new, new.name, resource, true)?;
        self.updated += 1;
        self.name_changed(place.0, before.name, Some(before.ino));
        let newest = if before.kind == new.kind { new.mtime } else { self.now };
        self.folder_changed(place.0, newest, true)?;
        Ok(ino)
    }

    /// A name stays as it is.
    pub(in crate::catalog) fn keep(
        &mut self,
        place: Place,
        node: &NodeRecord<'_>,
        resource: &[u8],
        naming: &Naming,
    ) -> Result<(), CatalogError> {
        if !self.is_rewrite() {
            return Ok(());
        }
        self.put_entry(place, node)?;
        self.put_inode(node.ino, place, resource)?;
        self.displaced(naming, node.name, resource, true)
    }

    /// Rewrites the metadata of an inode that stays.
    pub(in crate::catalog) fn touch(
        &mut self,
        place: Place,
        before: &NodeRecord<'_>,
        new: NodeRecord<'_>,
        resource: &[u8],
        naming: &Naming,
    ) -> Result<(), CatalogError> {
        self.touched += 1;
        let differs = (new.size, new.mtime, new.freshness) != (before.size, before.mtime, before.freshness);
        let node = if differs { NodeRecord { ctime: self.now, ..new } } else { *before };
        if self.is_rewrite() {
            self.keep(place, &node, resource, naming)?;
        } else {
            self.put_inode(before.ino, place, resource)?;
        }
        if differs {
            if !self.is_rewrite() {
                self.put_entry(place, &node)?;
            }
            self.tell(Invalidation::Attributes(INodeNo(before.ino)));
            self.folder_changed(place.0, new.mtime, false)?;
        }
        Ok(())
    }

    /// Enters new names of one folder, given as (hash, entry id), and leaves the list empty.
    pub(in crate::catalog) fn put_names(
        &mut self,
        parent: u64,
        names: &mut Vec<(u64, u64)>,
    ) -> Result<(), CatalogError> {
        names.sort_unstable();
        let store = self.store;
        for namesakes in names.chunk_by(|a, b| a.0 == b.0) {
            let Some(&(hash, _)) = namesakes.first() else { continue };
            if let Some(apart) = &mut self.apart {
                let ids = |record: &mut Vec<u8>| namesakes.iter().for_each(|&(_, entry)| push_number(record, entry));
                apart.put(Target::Names, &name_key(parent, hash), ids)?;
                continue;
            }
            self.write(|txn, record| {
                let key = name_key(parent, hash);
                if txn.names.holds(&key)
                    && let Some(present) = store.get(&txn.txn, store.names, &key)?
                {
                    record.extend_from_slice(present);
                }
                namesakes.iter().for_each(|&(_, entry)| push_number(record, entry));
                txn.names.put(&mut txn.txn, &key, record)
            })?;
        }
        names.clear();
        Ok(())
    }

    /// A name stands for something else, or for nothing, or is new.
    pub(in crate::catalog) fn name_changed(&mut self, parent: u64, name: &[u8], orphan: Option<u64>) {
        if self.shown && !self.too_many {
            self.tell(Invalidation::Name { parent: INodeNo(parent), name: name.into(), orphan: orphan.map(INodeNo) });
        }
    }

    fn tell(&mut self, invalidation: Invalidation) {
        if !self.shown || self.too_many {
            return;
        }
        self.names.push(invalidation);
        if self.names.len() > MOST_INVALIDATIONS {
            self.too_many = true;
            self.names = Vec::new();
        }
    }

    /// Whether anything was written.
    pub(in crate::catalog) fn changed(&self) -> bool {
        self.txn.is_some() || self.apart.as_ref().is_some_and(Apart::is_begun)
    }

    /// Whether readers will see another tree.
    pub(in crate::catalog) fn changed_tree(&self) -> bool {
        !self.shown || self.differences() > 0
    }

    /// Writes a row of a table beside the tree.
    pub(in crate::catalog) fn put_row(&mut self, table: TableId, key: &[u8], row: &[u8]) -> Result<(), CatalogError> {
        if let Some(apart) = &mut self.apart {
            return apart.put(Target::Row(table), key, |record| record.extend_from_slice(row));
        }
        let store = self.store;
        self.write(|txn, record| {
            record.extend_from_slice(row);
            seal(key, record);
            Ok(store.table(table).put(&mut txn.txn, key, record)?)
        })
    }

    /// Drops a row of a table beside the tree, where it is there.
    pub(in crate::catalog) fn drop_row(&mut self, table: TableId, key: &[u8]) -> Result<(), CatalogError> {
        if let Some(apart) = &mut self.apart {
            return apart.put(Target::Nothing(table), key, |_| {});
        }
        let store = self.store;
        self.write(|txn, _| {
            store.table(table).delete(&mut txn.txn, key)?;
            Ok(())
        })
    }

    /// The deletion of `uri` is held back.
    pub(in crate::catalog) fn put_held(&mut self, key: &[u8], time: Timestamp, uri: &Uri) -> Result<(), CatalogError> {
        let mut row = Vec::new();
        held::encode(time, uri, &mut row);
        self.put_row(TableId::Held, key, &row)
    }

    /// Where a file has its name because the plain one belongs to another: enters, or forgets, that the URI is among those of
    /// its path.
    pub(in crate::catalog) fn displaced(
        &mut self,
        naming: &Naming,
        name: &[u8],
        resource: &[u8],
        there: bool,
    ) -> Result<(), CatalogError> {
        let is_marked = memchr::memchr_iter(b'%', name).any(|at| name[at..].starts_with(DISPLACED));
        if resource.is_empty() || !is_marked {
            return Ok(());
        }
        let sense = || damaged("resource", name);
        let record = ResourceRecord::decode(resource).ok_or_else(sense)?;
        // A name that is not by rule has its URI in the record.
        let Some(uri) = record.uri.and_then(|uri| Uri::parse(uri).ok()) else { return Ok(()) };
        let (path, _) = path_of_record(naming, &uri, &record, &self.catalog.symbols).ok_or_else(sense)?;
        let (_, plain) = split(&path);
        if plain.as_bytes() == name || disambiguated(plain, &uri).as_bytes() != name {
            return Ok(());
        }
        let key = displaced_key(&path, &uri);
        match there {
            true => self.put_row(TableId::Displaced, &key, uri.as_str().as_bytes()),
            false => self.drop_row(TableId::Displaced, &key),
        }
    }

    /// The next revision.
    pub(in crate::catalog) fn next_revision(&self, at: Option<Timestamp>, totals: Totals) -> RevisionRecord {
        let Numbers { revision, next_ino, next_entry } = self.numbers;
        RevisionRecord { number: revision + 1, committed: self.now, at, totals, next_ino, next_entry }
    }

    /// Drops the orphans that the kernel has forgotten. Where this is not committed they stay among the forgotten.
    pub(in crate::catalog) fn drop_forgotten(&mut self) -> Result<(), CatalogError> {
        self.dropping = std::mem::take(&mut *self.catalog.forgotten.lock().unwrap_or_else(PoisonError::into_inner));
        let forgotten: Vec<INodeNo> = self.dropping.iter().collect();
        // The store of a first revision has no orphans.
        let is_first = self.apart.is_some() && !self.is_rewrite();
        for ino in forgotten.into_iter().filter(|_| !is_first) {
            self.drop_row(TableId::Orphans, &ino_key(ino.0))?;
        }
        Ok(())
    }

    /// Commits what is no change of the tree.
    pub(in crate::catalog) fn commit_bare(mut self) -> Result<(), CatalogError> {
        self.commit_written()?;
        self.dropping = InodeSet::default();
        Ok(())
    }

    fn commit_written(&mut self) -> Result<(), CatalogError> {
        if let Some(apart) = self.apart.take_if(|apart| apart.is_begun()) {
            let committed = apart.commit().inspect_err(|_| self.is_given_up = true)?;
            return committed.map_or(Ok(()), |successor| self.catalog.replace_store(successor, |_| None).map(drop));
        }
        self.budget.as_ref().map_or(Ok(()), WriteBudget::fits)?;
        match self.txn.take() {
            Some(txn) => self.store.commit(txn.txn).inspect_err(|_| self.is_given_up = true),
            None => Ok(()),
        }
    }

    /// Commits, and says what was done.
    pub(in crate::catalog) fn commit(mut self) -> Result<Committed, CatalogError> {
        let mut invalidations = std::mem::take(&mut self.names);
        let folders = std::mem::take(&mut self.told_folders);
        if self.too_many {
            invalidations.push(Invalidation::Everything(folders));
        } else if folders.len() > MOST_INVALIDATIONS {
            invalidations.push(Invalidation::Folders(folders));
        } else {
            invalidations.extend(folders.iter().map(Invalidation::Folder));
        }
        let committed = Committed {
            revision: self.numbers.revision,
            created: self.created,
            updated: self.updated,
            touched: self.touched,
            deleted: self.deleted,
            invalidations,
            left_out: BTreeMap::new(),
        };
        self.commit_bare()?;
        Ok(committed)
    }
}

impl Writer<'_> {
    pub(in crate::catalog) fn put_revision(&mut self, revision: &RevisionRecord) -> Result<(), CatalogError> {
        self.numbers.revision = revision.number;
        self.put_meta(meta::REVISION, |record| revision.encode(record))
    }

    pub(in crate::catalog) fn put_position(&mut self, position: &[u8]) -> Result<(), CatalogError> {
        self.put_meta(meta::POSITION, |record| record.extend_from_slice(position))
    }

    pub(in crate::catalog) fn put_naming(&mut self, naming: &Naming) -> Result<(), CatalogError> {
        self.put_meta(meta::NAMING, |record| push_naming(record, naming))
    }

    pub(in crate::catalog) fn put_symbols(&mut self) -> Result<(), CatalogError> {
        let symbols = &self.catalog.symbols;
        self.put_meta(meta::SYMBOLS, |record| symbols.encode(record))
    }

    pub(in crate::catalog) fn put_sets(&mut self, sets: &SetTable) -> Result<(), CatalogError> {
        self.put_meta(meta::SETS, |record| sets.encode(record))
    }

    fn put_meta(&mut self, key: &[u8], encode: impl FnOnce(&mut Vec<u8>)) -> Result<(), CatalogError> {
        let store = self.store;
        if let Some(apart) = &mut self.apart {
            return apart.put(Target::Row(TableId::Meta), key, encode);
        }
        self.write(|txn, record| {
            encode(record);
            seal(key, record);
            Ok(store.meta.put(&mut txn.txn, key, record)?)
        })
    }
}

impl Drop for Writer<'_> {
    /// Gives the room back that a transaction has taken which was not committed, and what it was to drop.
    fn drop(&mut self) {
        if !self.dropping.is_empty() {
            let mut forgotten = self.catalog.forgotten.lock().unwrap_or_else(PoisonError::into_inner);
            forgotten.extend(self.dropping.iter());
        }
        let has_written = self.txn.take().is_some() | self.apart.take().is_some_and(|apart| apart.is_begun());
        if (has_written || self.is_given_up)
            && let Err(error) = self.store.shorten()
        {
            tracing::warn!(%error, "the catalog's file stays longer than what is in it");
        }
    }
}

/// The next number of a kind; a catalog that has used all is rebuilt.
fn take_number(next: &mut u64, what: &str) -> Result<u64, CatalogError> {
    let number = *next;
    if number >= NUMBER_LIMIT {
        return Err(CatalogError::Damaged(format!("all {what} are used")));
    }
    *next += 1;
    Ok(number)
}
