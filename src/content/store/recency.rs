//! The files of a cache folder by last use, and what they take: an LMDB environment that all processes share.
//!
//! ```text
//! unnamed database      key                           value
//! a file                'f', name                     last use u64, bytes u64
//! the order             'o', last use u64, name       (empty)
//! the sums              's'                           bytes u64, objects u64
//! ```
//!
//! Numbers are big-endian, so that the order sorts by time. A name is a path below the cache folder: `objects/XX/KEY` or
//! `tmp/KEY`. Invariant of each commit: one order record for each file record, and the sums are theirs.
//! Files and records may differ after a kill; what evicts or rescans treats the file as the truth.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use super::environment::Environment;
use heed::types::Bytes;
use heed::{Database, Env, RoTxn, RwTxn, WithoutTls};

/// Victims of one transaction, and how long it may take to find and unlink them: other processes wait for it. Each victim's record
/// lies anywhere in the tree, and each commit waits for the disk: the more of a large cache go at once, the less each costs.
const VICTIMS: usize = 4096;
const HOLD: Duration = Duration::from_millis(150);

const FILE: u8 = b'f';
const ORDER: u8 = b'o';
const SUMS: &[u8] = b"s";

/// Objects lie below it; what does not is a partial.
pub(super) const OBJECTS: &str = "objects/";

/// What is to be written about one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It is there, takes so many bytes and was used then.
    Present { bytes: u64, used: u64 },
    /// It was used then.
    Used(u64),
    /// It is gone.
    Gone,
}

/// Changes not yet written, the last one of each file.
pub(super) type Changes = HashMap<Box<str>, Change>;

impl Change {
    /// Both, this one after `earlier`. A use may be told late.
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

/// What all files take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) bytes: u64,
    pub(super) objects: u64,
}

/// What has become of a file that was to be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It has no name any more.
    Removed,
    /// It is pinned or being written: as good as used now.
    Kept,
}

/// Microseconds since the epoch: the unit of last use.
pub(super) fn now() -> u64 {
    micros(SystemTime::now())
}

pub(super) fn micros(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// The open environment.
pub(super) struct Recency {
    env: Env<WithoutTls>,
    database: Database<'static, Bytes, Bytes>,
}

/// LMDB must not be opened twice in one process (its file locks are the process's): two caches of one folder share it.
static OPEN: Mutex<Vec<(PathBuf, Weak<Recency>)>> = Mutex::new(Vec::new());

impl Recency {
    /// Opens the environment in a folder that exists; `unclean`: some process did not close it. The flag answered: it was not there, or damaged, and knows no file now.
    pub(super) fn open(folder: &Path, unclean: bool) -> heed::Result<(Arc<Recency>, bool)> {
        let folder = folder.canonicalize()?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, recency)| recency.strong_count() > 0);
        if let Some(recency) = open.iter().find(|(path, _)| *path == folder).and_then(|(_, recency)| recency.upgrade())
        {
            return Ok((recency, false));
        }
        let Environment { env, database, anew } = Environment::open(&folder, unclean)?;
        let recency = Arc::new(Recency { env, database });
        open.push((folder, Arc::downgrade(&recency)));
        Ok((recency, anew))
    }

    /// What all files take, as last committed by any process.
    pub(super) fn sums(&self) -> heed::Result<Sums> {
        let txn = self.env.read_txn()?;
        self.read_sums(&txn)
    }

    /// Writes changes in one commit. `bytes_of` answers for a used file that has no record (`None`: it is not there).
    pub(super) fn apply(&self, changes: &Changes, bytes_of: impl Fn(&str) -> Option<u64>) -> heed::Result<Sums> {
        let mut txn = self.env.write_txn()?;
        let mut sums = self.read_sums(&txn)?;
        for (name, change) in changes {
            match *change {
                Change::Present { bytes, used } => self.put(&mut txn, &mut sums, name, bytes, used)?,
                Change::Gone => self.remove(&mut txn, &mut sums, name)?,
                Change::Used(used) => {
                    let bytes = match self.read(&txn, name)? {
                        Some((_, bytes)) => Some(bytes),
                        None => bytes_of(name),
                    };
                    if let Some(bytes) = bytes {
                        self.put(&mut txn, &mut sums, name, bytes, used)?;
                    }
                }
            }
        }
        self.commit(txn, sums)
    }

    /// Offers files that were last used before `since` (microseconds since the epoch) to `victim`, least recently used first,
    /// until all take no more bytes than `target` makes of what they take now. Answers the bytes of what was removed, whatever
    /// others add meanwhile. One call removes a bounded number, so that other processes need not wait long: call again while it
    /// makes progress.
    pub(super) fn evict(
        &self,
        target: impl Fn(u64) -> u64,
        since: u64,
        mut victim: impl FnMut(&str) -> Fate,
    ) -> heed::Result<u64> {
        let mut txn = self.env.write_txn()?;
        let began = Instant::now();
        let mut sums = self.read_sums(&txn)?;
        let (mut removed, mut kept) = (Vec::new(), Vec::new());
        let (mut left, mut gone) = (sums.bytes, 0);
        let target = target(sums.bytes);
        let mut is_all = true;
        for record in self.database.prefix_iter(&txn, &[ORDER])? {
            let is_long = removed.len() == VICTIMS || (!removed.is_empty() && began.elapsed() >= HOLD);
            if left <= target || is_long {
                is_all = false;
                break;
            }
            let Some((used, name)) = record?.0[1..].split_first_chunk::<8>() else { continue };
            if u64::from_be_bytes(*used) >= since {
                is_all = false;
                break;
            }
            let name = name_of(name);
            let (_, bytes) = self.read(&txn, &name)?.unwrap_or_default();
            match victim(&name) {
                Fate::Removed => {
                    left = left.saturating_sub(bytes);
                    gone += bytes;
                    removed.push(name);
                }
                Fate::Kept => kept.push((name, bytes)),
            }
        }
        removed.iter().try_for_each(|name| self.remove(&mut txn, &mut sums, name))?;
        kept.iter().try_for_each(|(name, bytes)| self.put(&mut txn, &mut sums, name, *bytes, now()))?;
        if is_all {
            // Nothing else is left: damaged sums end here, which would have everything evicted for ever.
            let objects = kept.iter().filter(|(name, _)| name.starts_with(OBJECTS)).count() as u64;
            sums = Sums { bytes: kept.iter().map(|(_, bytes)| bytes).sum(), objects };
        }
        self.commit(txn, sums)?;
        Ok(gone)
    }

    /// Brings the records of the files whose names begin with `prefix` in line with those found there, name and bytes
    /// and last use: those that take more than is recorded too. `exists` asks again within the transaction, as files come and go
    /// meanwhile.
    pub(super) fn reconcile(
        &self,
        prefix: &str,
        found: &HashMap<String, (u64, u64)>,
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
        for name in missing {
            self.remove(&mut txn, &mut sums, &name)?;
        }
        for (name, (bytes, used)) in found {
            let recorded = self.read(&txn, name)?;
            // A file that a killed process wrote has grown since it was written down.
            let is_too_little = recorded.is_none_or(|(_, recorded)| recorded < *bytes);
            if is_too_little && exists(name) {
                self.put(&mut txn, &mut sums, name, *bytes, recorded.map_or(*used, |(used, _)| used))?;
                differs = true;
            }
        }
        // Hundreds of folders are looked at in a row, and each commit waits for the disk.
        if differs { self.commit(txn, sums).map(|_| ()) } else { Ok(()) }
    }

    /// Bytes of the environment's own files.
    pub(super) fn own_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let file = |name| std::fs::metadata(self.env.path().join(name)).map_or(0, |m| m.blocks() * 512);
        file("data.mdb") + file("lock.mdb")
    }

    fn read_sums(&self, txn: &RoTxn<'_>) -> heed::Result<Sums> {
        let (bytes, objects) = self.database.get(txn, SUMS)?.map_or((0, 0), pair_of);
        Ok(Sums { bytes, objects })
    }

    fn commit(&self, mut txn: RwTxn<'_>, sums: Sums) -> heed::Result<Sums> {
        self.database.put(&mut txn, SUMS, &pair(sums.bytes, sums.objects))?;
        txn.commit()?;
        Ok(sums)
    }

    /// Last use and bytes of a file.
    fn read(&self, txn: &RoTxn<'_>, name: &str) -> heed::Result<Option<(u64, u64)>> {
        Ok(self.database.get(txn, &file_key(name))?.map(pair_of))
    }

    fn put(&self, txn: &mut RwTxn<'_>, sums: &mut Sums, name: &str, bytes: u64, used: u64) -> heed::Result<()> {
        self.remove(txn, sums, name)?;
        self.database.put(txn, &file_key(name), &pair(used, bytes))?;
        self.database.put(txn, &order_key(used, name), &[])?;
        sums.bytes += bytes;
        sums.objects += u64::from(name.starts_with(OBJECTS));
        Ok(())
    }

    fn remove(&self, txn: &mut RwTxn<'_>, sums: &mut Sums, name: &str) -> heed::Result<()> {
        if let Some((used, bytes)) = self.read(txn, name)? {
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

fn order_key(used: u64, name: &str) -> Vec<u8> {
    [&[ORDER], &used.to_be_bytes()[..], name.as_bytes()].concat()
}

/// Names are ours and ASCII; a damaged one names no file and goes when its turn comes.
fn name_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn pair(a: u64, b: u64) -> [u8; 16] {
    let mut value = [0; 16];
    value[..8].copy_from_slice(&a.to_be_bytes());
    value[8..].copy_from_slice(&b.to_be_bytes());
    value
}

fn pair_of(value: &[u8]) -> (u64, u64) {
    let number =
        |at: usize| value.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes);
    (number(0), number(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(recency: &Recency, name: &str, bytes: u64, used: u64) {
        let changes = Changes::from([(name.into(), Change::Present { bytes, used })]);
        recency.apply(&changes, |_| None).unwrap();
    }

    #[test]
    fn a_use_that_is_told_late_makes_nothing_older() {
        let present = |used| Change::Present { bytes: 1, used };
        assert_eq!(Change::Used(5).after(Change::Used(7)), Change::Used(7));
        assert_eq!(Change::Used(5).after(present(7)), present(7));
        assert_eq!(Change::Used(7).after(present(5)), present(7));
        assert_eq!(Change::Used(7).after(Change::Gone), Change::Gone);
    }

    #[test]
    fn damaged_sums_are_right_again_once_all_was_offered() {
        let folder = tempfile::tempdir().unwrap();
        let (recency, _) = Recency::open(folder.path(), false).unwrap();
        put(&recency, "objects/aa/1", 100, 10);
        put(&recency, "objects/aa/2", 200, 20);
        let txn = recency.env.write_txn().unwrap();
        recency.commit(txn, Sums { bytes: 1 << 60, objects: 7 }).unwrap();

        let keep = |name: &str| if name == "objects/aa/1" { Fate::Kept } else { Fate::Removed };
        recency.evict(|_| 1000, u64::MAX, keep).unwrap();

        assert_eq!(recency.sums().unwrap(), Sums { bytes: 100, objects: 1 });
    }

    #[test]
    fn evicts_by_last_use_and_passes_over_what_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (recency, anew) = Recency::open(folder.path(), false).unwrap();
        assert!(anew);
        for (name, used) in [("objects/aa/1", 30), ("objects/aa/2", 10), ("objects/aa/3", 20), ("tmp/4", 5)] {
            put(&recency, name, 100, used);
        }
        recency.apply(&Changes::from([("objects/aa/2".into(), Change::Used(40))]), |_| None).unwrap();
        assert_eq!(recency.sums().unwrap(), Sums { bytes: 400, objects: 3 });

        let mut offered = Vec::new();
        let removed = recency.evict(
            |_| 150,
            u64::MAX,
            |name| {
                offered.push(name.to_owned());
                if name == "objects/aa/3" { Fate::Kept } else { Fate::Removed }
            },
        );

        assert_eq!(offered, ["tmp/4", "objects/aa/3", "objects/aa/1", "objects/aa/2"]);
        assert_eq!(removed.unwrap(), 300);
        assert_eq!(recency.sums().unwrap(), Sums { bytes: 100, objects: 1 });
    }

    #[test]
    fn what_was_used_since_then_is_spared() {
        let folder = tempfile::tempdir().unwrap();
        let (recency, _) = Recency::open(folder.path(), false).unwrap();
        for (name, used) in [("objects/aa/1", 10), ("objects/aa/2", 20), ("objects/aa/3", 30)] {
            put(&recency, name, 100, used);
        }
        let mut offered = Vec::new();

        let removed = recency.evict(
            |_| 0,
            20,
            |name| {
                offered.push(name.to_owned());
                Fate::Removed
            },
        );

        assert_eq!(offered, ["objects/aa/1"]);
        assert_eq!(removed.unwrap(), 100);
        assert_eq!(recency.sums().unwrap(), Sums { bytes: 200, objects: 2 });
    }

    #[test]
    fn ends_when_everything_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (recency, _) = Recency::open(folder.path(), false).unwrap();
        put(&recency, "objects/aa/1", 100, 1);
        put(&recency, "objects/aa/2", 100, u64::MAX - 1);
        let mut offered = 0;
        let removed = recency
            .evict(
                |_| 0,
                u64::MAX,
                |_| {
                    offered += 1;
                    Fate::Kept
                },
            )
            .unwrap();
        assert_eq!((offered, removed, recency.sums().unwrap().bytes), (2, 0, 200));
    }

    #[test]
    fn a_damaged_environment_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        drop(Recency::open(folder.path(), false).unwrap());
        std::fs::write(folder.path().join("data.mdb"), vec![7; 65536]).unwrap();
        let (recency, anew) = Recency::open(folder.path(), false).unwrap();
        assert!(anew);
        assert_eq!(recency.sums().unwrap(), Sums::default());
    }

    #[test]
    fn a_use_of_a_file_without_a_record_makes_one_if_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let (recency, _) = Recency::open(folder.path(), false).unwrap();
        let changes =
            Changes::from([("objects/aa/here".into(), Change::Used(1)), ("objects/aa/gone".into(), Change::Used(1))]);
        let sums = recency.apply(&changes, |name| name.ends_with("here").then_some(7)).unwrap();
        assert_eq!(sums, Sums { bytes: 7, objects: 1 });
    }

    #[test]
    fn a_file_that_is_larger_than_was_written_down_counts_with_what_it_takes_and_no_file_with_less() {
        let folder = tempfile::tempdir().unwrap();
        let (recency, _) = Recency::open(folder.path(), false).unwrap();
        put(&recency, "tmp/grown", 100, 20);
        put(&recency, "tmp/ahead", 500, 10);
        put(&recency, "tmp/gone", 1000, 30);
        let found = [("tmp/grown", 700), ("tmp/ahead", 400), ("tmp/new", 50)];
        let found = HashMap::from(found.map(|(name, bytes)| (name.to_owned(), (bytes, 25))));

        recency.reconcile("tmp/", &found, |name| name != "tmp/gone").unwrap();

        assert_eq!(recency.sums().unwrap(), Sums { bytes: 700 + 500 + 50, objects: 0 });
        let mut order = Vec::new();
        let removed = |name: &str| {
            order.push(name.to_owned());
            Fate::Removed
        };
        recency.evict(|_| 0, u64::MAX, removed).unwrap();
        assert_eq!(order, ["tmp/ahead", "tmp/grown", "tmp/new"], "by last use");
    }
}
