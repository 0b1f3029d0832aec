//! What lies beside the objects and counts in the same quota: catalogs, observations and spools of all mounts.

use super::cache::{allocated, lock};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What was measured counts so long: a catalog grows once in minutes.
const MEASURED_EVERY: Duration = Duration::from_secs(60);

/// The folder beside the objects, and what it took when it was last measured.
#[derive(Default)]
pub(super) struct Beside {
    bytes: AtomicU64,
    /// And when that was; `None`: not yet.
    folder: Mutex<Option<(PathBuf, Option<Instant>)>>,
}

impl Beside {
    /// Counts `folder` from the next [`Beside::refresh`] on, with everything below it: there may be many files.
    pub(super) fn count(&self, folder: &Path) {
        *lock(&self.folder) = Some((folder.to_owned(), None));
    }

    /// Measures where the last time is long ago.
    pub(super) fn refresh(&self) {
        let due = match &mut *lock(&self.folder) {
            Some((folder, measured)) if measured.is_none_or(|at| at.elapsed() >= MEASURED_EVERY) => {
                *measured = Some(Instant::now());
                folder.clone()
            }
            _ => return,
        };
        self.bytes.store(allocated_below(&due), Ordering::Relaxed);
    }

    /// Bytes that count in `quota`: never more than half of it, for a catalog cannot be evicted, and without room
    /// for objects nothing large could be read.
    pub(super) fn bytes(&self, quota: u64) -> u64 {
        self.bytes.load(Ordering::Relaxed).min(quota / 2)
    }
}

/// Bytes in allocated blocks of all files below a folder, those that go away meanwhile not counted.
pub fn allocated_below(folder: &Path) -> u64 {
    let mut bytes = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => bytes += allocated(&entry.path()).unwrap_or(0),
                _ => {}
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_below_counts_but_never_more_than_half_the_quota() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        std::fs::write(folder.path().join("a/one"), vec![1; 100_000]).unwrap();
        std::fs::write(folder.path().join("a/b/two"), vec![1; 100_000]).unwrap();
        let beside = Beside::default();
        assert_eq!(beside.bytes(1 << 30), 0);

        beside.count(folder.path());
        beside.refresh();

        assert!((200_000..300_000).contains(&beside.bytes(1 << 30)));
        assert_eq!(beside.bytes(100_000), 50_000);
    }
}
