//! The LRU index: the files of a cache folder by last use, and what they take. An LMDB environment that all processes share.
//!
//! ```text
//! unnamed database      key                           value
//! a file                'f', name                     last use u64, bytes u64
//! the order             'o', last use u64, name       (empty)
//! the sums              's'                           bytes u64, objects u64
//! ```
//!
//! Numbers are big-endian, so that the order sorts by time; a last use is a [`Moment`]. A name is a path below the cache folder:
//! `objects/XX/KEY` or `tmp/KEY`. Invariant of each commit: one order record for each file record, and the sums are theirs.
//! Files and records may differ after a kill: for eviction and for a rescan the file is the truth.

use super::environment::Environment;
use super::files::{OBJECTS, allocated, lock};
use super::policy::Moment;
use heed::types::Bytes;
use heed::{Database, Env, RoTxn, RwTxn, WithoutTls};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Files that one transaction evicts, and how long it may take to find and remove them: other processes wait for it. The records lie
/// anywhere in the tree and each commit waits for the disk: the more go at once, the less each costs.
const MOST_EVICTED: usize = 4096;
const HOLD: Duration = Duration::from_millis(150);

const FILE: u8 = b'f';
const ORDER: u8 = b'o';
const SUMS: &[u8] = b"s";

/// Change to be recorded of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The file is there, takes so many bytes and was used then.
    Present { bytes: u64, used: Moment },
    /// The file was used then.
    Used(Moment),
    /// The file is gone.
    Gone,
}

/// Changes not recorded yet, the last one of each file.
pub(super) type Changes = HashMap<Box<str>, Change>;

impl Change {
    /// Both, this one after `earlier`. A use may be reported late.
    pub(super) fn after(self, earlier: Change) -> Change {
        match (earlier, self) {
            (Change::Present { bytes, used: before }, Change::Used(used)) => {
                Change::Present { bytes, used: used.max(before) }
            }
            (Change::Used(before), Change::Used(used)) => Change::Used(used.max(before)),
            (Change::Gone, Change::Used(_)) => Change::Gone,
            (_, later) => later,
        }
    }
}

/// Sums of all files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) bytes: u64,
    pub(super) objects: u64,
}

/// A file found in the folder: its bytes and its last use.
pub(super) type IndexedFile = (u64, Moment);

/// The open environment.
pub(super) struct LruIndex {
    env: Env<WithoutTls>,
    database: Database<'static, Bytes, Bytes>,
}

/// LMDB must not be opened twice in one process (its file locks are the process's): two caches of one folder share it.
static OPEN: Mutex<Vec<(PathBuf, Weak<LruIndex>)>> = Mutex::new(Vec::new());

impl LruIndex {
    /// Opens the environment in a folder that exists; `unclean`: some process did not close it. The flag answered: it was missing
    /// or damaged, and no file is recorded yet.
    pub(super) fn open(folder: &Path, unclean: bool) -> heed::Result<(Arc<LruIndex>, bool)> {
        let folder = folder.canonicalize()?;
        let mut open = lock(&OPEN);
        open.retain(|(_, index)| index.strong_count() > 0);
        let shared = open.iter().find(|(path, _)| *path == folder).and_then(|(_, index)| index.upgrade());
        let index = match shared {
            Some(index) => index,
            None => {
                let Environment { env, database } = Environment::open(&folder, unclean)?;
                let index = Arc::new(LruIndex { env, database });
                open.push((folder, Arc::downgrade(&index)));
                index
            }
        };
        let txn = index.env.read_txn()?;
        let is_new = index.database.get(&txn, SUMS)?.is_none();
        drop(txn);
        Ok((index, is_new))
    }

    /// Returns the sums of all files, as last committed by any process.
    pub(super) fn sums(&self) -> heed::Result<Sums> {
        let txn = self.env.read_txn()?;
        self.read_sums(&txn)
    }

    /// Records changes in one commit. The use of a file without a record makes none: a rescan finds the file.
    pub(super) fn apply(&self, changes: &Changes) -> heed::Result<()> {
        let mut txn = self.env.write_txn()?;
        let mut sums = self.read_sums(&txn)?;
        for (name, change) in changes {
            match *change {
                Change::Present { bytes, used } => self.put(&mut txn, &mut sums, name, (bytes, used))?,
                Change::Gone => self.remove(&mut txn, &mut sums, name)?,
                Change::Used(used) => {
                    if let Some((bytes, _)) = self.read(&txn, name)? {
                        self.put(&mut txn, &mut sums, name, (bytes, used))?;
                    }
                }
            }
        }
        self.commit(txn, sums)
    }

    /// Offers files that were last used before `since` to `remove`, least recently used first, until all take no more bytes than
    /// `target` makes of what they take now. `remove` answers whether the file is gone; one that stays counts as used now. Returns
    /// the bytes of what went. One call removes a bounded number, so that other processes need not wait long: call again while it
    /// makes progress.
    pub(super) fn evict(
        &self,
        target: impl Fn(u64) -> u64,
        since: Moment,
        mut remove: impl FnMut(&str) -> bool,
    ) -> heed::Result<u64> {
        let mut txn = self.env.write_txn()?;
        let began = Instant::now();
        let mut sums = self.read_sums(&txn)?;
        let (mut removed, mut kept) = (Vec::new(), Vec::new());
        let (mut left, mut gone) = (sums.bytes, 0);
        let target = target(sums.bytes);
        let mut is_all = true;
        let mut stray = Vec::new();
        for record in self.database.prefix_iter(&txn, &[ORDER])? {
            let order = record?.0;
            let Some((used, name)) = order[1..].split_first_chunk() else { continue };
            let is_long =
                removed.len() + stray.len() >= MOST_EVICTED || (!removed.is_empty() && began.elapsed() >= HOLD);
            if left <= target || is_long || Moment(u64::from_be_bytes(*used)) >= since {
                is_all = false;
                break;
            }
            let name = name_of(name);
            let Some((bytes, _)) = self.read(&txn, &name)?.filter(|(_, last)| last.0.to_be_bytes() == *used) else {
                stray.push(order.to_vec());
                continue;
            };
            if remove(&name) {
                left = left.saturating_sub(bytes);
                gone += bytes;
                removed.push(name);
            } else {
                kept.push((name, bytes));
            }
        }
        if !is_all && removed.is_empty() && kept.is_empty() && stray.is_empty() {
            // Nothing to write down: a commit waits for the disk.
            return Ok(0);
        }
        // Damage left them without a file record: nothing else would remove them.
        stray.iter().try_for_each(|order| self.database.delete(&mut txn, order).map(|_| ()))?;
        removed.iter().try_for_each(|name| self.remove(&mut txn, &mut sums, name))?;
        kept.iter().try_for_each(|(name, bytes)| self.put(&mut txn, &mut sums, name, (*bytes, Moment::now())))?;
        if is_all {
            // Nothing else is left. Damaged sums end here: they would have everything evicted for ever.
            let objects = kept.iter().filter(|(name, _)| name.starts_with(OBJECTS)).count() as u64;
            sums = Sums { bytes: kept.iter().map(|(_, bytes)| bytes).sum(), objects };
        }
        self.commit(txn, sums)?;
        Ok(gone)
    }

    /// Brings the records of the files whose names begin with `prefix` in line with those `found` there. `exists` asks again within
    /// the transaction, as files come and go meanwhile.
    pub(super) fn reconcile(
        &self,
        prefix: &str,
        found: &HashMap<String, IndexedFile>,
        exists: impl Fn(&str) -> bool,
    ) -> heed::Result<()> {
        let mut txn = self.env.write_txn()?;
        let mut sums = self.read_sums(&txn)?;
        let mut missing = Vec::new();
        for record in self.database.prefix_iter(&txn, &file_key(prefix))? {
            let name = name_of(&record?.0[1..]);
            if !found.contains_key(&name) && !exists(&name) {
                missing.push(name);
            }
        }
        let mut differs = !missing.is_empty();
        missing.iter().try_for_each(|name| self.remove(&mut txn, &mut sums, name))?;
        for (name, (bytes, used)) in found {
            let recorded = self.read(&txn, name)?;
            // A file that a killed process wrote has grown since it was recorded.
            let is_too_little = recorded.is_none_or(|(recorded, _)| recorded < *bytes);
            if is_too_little && exists(name) {
                let used = recorded.map_or(*used, |(_, used)| used);
                self.put(&mut txn, &mut sums, name, (*bytes, used))?;
                differs = true;
            }
        }
        // Hundreds of folders are looked at in a row, and each commit waits for the disk.
        if differs { self.commit(txn, sums) } else { Ok(()) }
    }

    /// Bytes of the environment's own files.
    pub(super) fn own_bytes(&self) -> u64 {
        let files = ["data.mdb", "lock.mdb"].map(|name| allocated(&self.env.path().join(name)));
        files.into_iter().flatten().sum()
    }

    fn read_sums(&self, txn: &RoTxn<'_>) -> heed::Result<Sums> {
        let (bytes, objects) = self.database.get(txn, SUMS)?.map_or((0, 0), pair_of);
        Ok(Sums { bytes, objects })
    }

    fn commit(&self, mut txn: RwTxn<'_>, sums: Sums) -> heed::Result<()> {
        self.database.put(&mut txn, SUMS, &pair(sums.bytes, sums.objects))?;
        txn.commit()
    }

    fn read(&self, txn: &RoTxn<'_>, name: &str) -> heed::Result<Option<IndexedFile>> {
        let pair = self.database.get(txn, &file_key(name))?.map(pair_of);
        Ok(pair.map(|(used, bytes)| (bytes, Moment(used))))
    }

    fn put(&self, txn: &mut RwTxn<'_>, sums: &mut Sums, name: &str, (bytes, used): IndexedFile) -> heed::Result<()> {
        self.remove(txn, sums, name)?;
        self.database.put(txn, &file_key(name), &pair(used.0, bytes))?;
        self.database.put(txn, &order_key(used, name), &[])?;
        sums.bytes += bytes;
        sums.objects += u64::from(name.starts_with(OBJECTS));
        Ok(())
    }

    fn remove(&self, txn: &mut RwTxn<'_>, sums: &mut Sums, name: &str) -> heed::Result<()> {
        if let Some((bytes, used)) = self.read(txn, name)? {
            self.database.delete(txn, &file_key(name))?;
            self.database.delete(txn, &order_key(used, name))?;
            sums.bytes = sums.bytes.saturating_sub(bytes);
            sums.objects = sums.objects.saturating_sub(u64::from(name.starts_with(OBJECTS)));
        }
        Ok(())
    }
}

fn file_key(name: &str) -> Vec<u8> {
    [&[FILE], name.as_bytes()].concat()
}

fn order_key(used: Moment, name: &str) -> Vec<u8> {
    [&[ORDER], &used.0.to_be_bytes()[..], name.as_bytes()].concat()
}

/// Names are ours and ASCII; a damaged one names no file and goes at its turn.
fn name_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn pair(a: u64, b: u64) -> [u8; 16] {
    ((u128::from(a) << 64) | u128::from(b)).to_be_bytes()
}

/// Zeros where the value is damaged.
fn pair_of(value: &[u8]) -> (u64, u64) {
    let both = u128::from_be_bytes(value.try_into().unwrap_or_default());
    ((both >> 64) as u64, both as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATEST: u64 = u64::MAX;

    fn put(index: &LruIndex, name: &str, bytes: u64, used: u64) {
        let changes = Changes::from([(name.into(), Change::Present { bytes, used: Moment(used) })]);
        index.apply(&changes).unwrap();
    }

    #[test]
    fn a_late_use_makes_nothing_older() {
        let present = |used| Change::Present { bytes: 1, used: Moment(used) };
        assert_eq!(Change::Used(Moment(5)).after(Change::Used(Moment(7))), Change::Used(Moment(7)));
        assert_eq!(Change::Used(Moment(5)).after(present(7)), present(7));
        assert_eq!(Change::Used(Moment(7)).after(present(5)), present(7));
        assert_eq!(Change::Used(Moment(7)).after(Change::Gone), Change::Gone);
    }

    #[test]
    fn damaged_sums_are_corrected_once_all_files_were_offered() {
        let folder = tempfile::tempdir().unwrap();
        let (index, _) = LruIndex::open(folder.path(), false).unwrap();
        put(&index, "objects/aa/1", 100, 10);
        put(&index, "objects/aa/2", 200, 20);
        let txn = index.env.write_txn().unwrap();
        index.commit(txn, Sums { bytes: 1 << 60, objects: 7 }).unwrap();

        let remove = |name: &str| name != "objects/aa/1";
        index.evict(|_| 1000, Moment(LATEST), remove).unwrap();

        assert_eq!(index.sums().unwrap(), Sums { bytes: 100, objects: 1 });
    }

    #[test]
    fn a_stray_order_record_is_removed_and_never_offered() {
        let folder = tempfile::tempdir().unwrap();
        let (index, _) = LruIndex::open(folder.path(), false).unwrap();
        put(&index, "objects/aa/1", 100, 10);
        let mut txn = index.env.write_txn().unwrap();
        index.database.put(&mut txn, &order_key(Moment(5), "objects/aa/0"), &[]).unwrap();
        txn.commit().unwrap();

        let mut offered = Vec::new();
        for _ in 0..2 {
            let remove = |name: &str| {
                offered.push(name.to_owned());
                true
            };
            index.evict(|_| 0, Moment(LATEST), remove).unwrap();
            put(&index, "objects/aa/2", 100, 20);
        }

        assert_eq!(offered, ["objects/aa/1", "objects/aa/2"]);
        let txn = index.env.read_txn().unwrap();
        assert_eq!(index.database.prefix_iter(&txn, &[ORDER]).unwrap().count(), 1, "of the last object");
    }

    #[test]
    fn evicts_by_last_use_and_skips_what_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (index, is_new) = LruIndex::open(folder.path(), false).unwrap();
        assert!(is_new);
        for (name, used) in [("objects/aa/1", 30), ("objects/aa/2", 10), ("objects/aa/3", 20), ("tmp/4", 5)] {
            put(&index, name, 100, used);
        }
        index.apply(&Changes::from([("objects/aa/2".into(), Change::Used(Moment(40)))])).unwrap();
        assert_eq!(index.sums().unwrap(), Sums { bytes: 400, objects: 3 });

        let mut offered = Vec::new();
        let removed = index.evict(
            |_| 150,
            Moment(LATEST),
            |name| {
                offered.push(name.to_owned());
                name != "objects/aa/3"
            },
        );

        assert_eq!(offered, ["tmp/4", "objects/aa/3", "objects/aa/1", "objects/aa/2"]);
        assert_eq!(removed.unwrap(), 300);
        assert_eq!(index.sums().unwrap(), Sums { bytes: 100, objects: 1 });
    }

    #[test]
    fn files_used_since_a_moment_are_spared() {
        let folder = tempfile::tempdir().unwrap();
        let (index, _) = LruIndex::open(folder.path(), false).unwrap();
        for (name, used) in [("objects/aa/1", 10), ("objects/aa/2", 20), ("objects/aa/3", 30)] {
            put(&index, name, 100, used);
        }
        let mut offered = Vec::new();

        let removed = index.evict(
            |_| 0,
            Moment(20),
            |name| {
                offered.push(name.to_owned());
                true
            },
        );

        assert_eq!(offered, ["objects/aa/1"]);
        assert_eq!(removed.unwrap(), 100);
        assert_eq!(index.sums().unwrap(), Sums { bytes: 200, objects: 2 });
    }

    #[test]
    fn ends_when_everything_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (index, _) = LruIndex::open(folder.path(), false).unwrap();
        put(&index, "objects/aa/1", 100, 1);
        put(&index, "objects/aa/2", 100, LATEST - 1);
        let mut offered = 0;
        let removed = index
            .evict(
                |_| 0,
                Moment(LATEST),
                |_| {
                    offered += 1;
                    false
                },
            )
            .unwrap();
        assert_eq!((offered, removed, index.sums().unwrap().bytes), (2, 0, 200));
    }

    #[test]
    fn a_damaged_environment_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        drop(LruIndex::open(folder.path(), false).unwrap());
        std::fs::write(folder.path().join("data.mdb"), vec![7; 65536]).unwrap();
        let (index, is_new) = LruIndex::open(folder.path(), false).unwrap();
        assert!(is_new);
        assert_eq!(index.sums().unwrap(), Sums::default());
    }

    #[test]
    fn reconcile_raises_a_record_and_never_lowers_one() {
        let folder = tempfile::tempdir().unwrap();
        let (index, _) = LruIndex::open(folder.path(), false).unwrap();
        put(&index, "tmp/grown", 100, 20);
        put(&index, "tmp/ahead", 500, 10);
        put(&index, "tmp/gone", 1000, 30);
        let found = [("tmp/grown", 700), ("tmp/ahead", 400), ("tmp/new", 50)];
        let found = HashMap::from(found.map(|(name, bytes)| (name.to_owned(), (bytes, Moment(25)))));

        index.reconcile("tmp/", &found, |name| name != "tmp/gone").unwrap();

        assert_eq!(index.sums().unwrap(), Sums { bytes: 700 + 500 + 50, objects: 0 });
        let mut order = Vec::new();
        let removed = |name: &str| {
            order.push(name.to_owned());
            true
        };
        index.evict(|_| 0, Moment(LATEST), removed).unwrap();
        assert_eq!(order, ["tmp/ahead", "tmp/grown", "tmp/new"], "by last use");
    }
}
