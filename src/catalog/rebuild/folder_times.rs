//! The folders in which, or beneath which, a commit changes something: as many as there are, in bounded memory.

use super::super::CatalogError;
use super::super::sort::{RunLimits, Sorted, Sorter, SpillFolder};
use super::super::store::codec::{Decoder, damaged, push_time};
use super::super::store::keys::ino_key;
use crate::document::Timestamp;

/// In addition to the store's dirty pages; 20 bytes a folder.
const LIMITS: RunLimits = RunLimits { bytes: 4 << 20, pairs: 1 << 17, resident: 4 << 20 };

/// What happened to one folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::catalog) struct FolderChange {
    /// The newest time of what changed.
    pub newest: Timestamp,
    /// Whether the folder's own listing changed: its names or their inodes.
    pub listing: bool,
}

impl FolderChange {
    fn and(self, other: FolderChange) -> FolderChange {
        FolderChange { newest: self.newest.max(other.newest), listing: self.listing || other.listing }
    }
}

/// Takes changes in any order; those of one folder in a row cost nothing.
pub(in crate::catalog) struct ChangedFolders {
    spill_folder: SpillFolder,
    sorter: Option<Sorter>,
    /// The folder noted last, which is not in the sorter yet.
    last: Option<(u64, FolderChange)>,
}

impl ChangedFolders {
    pub(in crate::catalog) fn new(spill_folder: &SpillFolder) -> ChangedFolders {
        ChangedFolders { spill_folder: spill_folder.clone(), sorter: None, last: None }
    }

    /// Notes a change of `folder`, an inode.
    pub(in crate::catalog) fn note(&mut self, folder: u64, change: FolderChange) -> Result<(), CatalogError> {
        match &mut self.last {
            Some((last, known)) if *last == folder => {
                *known = known.and(change);
                Ok(())
            }
            _ => self.put(Some((folder, change))),
        }
    }

    /// Puts the last folder away for another.
    fn put(&mut self, next: Option<(u64, FolderChange)>) -> Result<(), CatalogError> {
        let Some((folder, change)) = std::mem::replace(&mut self.last, next) else { return Ok(()) };
        let mut value = vec![u8::from(change.listing)];
        push_time(&mut value, change.newest);
        let sorter = self.sorter.get_or_insert_with(|| Sorter::new(&self.spill_folder, LIMITS));
        sorter.add(&ino_key(folder), &value)
    }

    /// Every folder once, ascending, with all that happened to it. Empty again afterwards.
    pub(in crate::catalog) fn take(&mut self) -> Result<Settling, CatalogError> {
        self.put(None)?;
        Ok(Settling(self.sorter.take().map(Sorter::finish).transpose()?))
    }
}

/// See [`ChangedFolders::take`].
pub(in crate::catalog) struct Settling(Option<Sorted>);

impl Settling {
    /// The next folder; `None` at the end.
    pub(in crate::catalog) fn next(&mut self) -> Result<Option<(u64, FolderChange)>, CatalogError> {
        let Some(sorted) = &mut self.0 else { return Ok(None) };
        let Some((key, value)) = sorted.next()? else { return Ok(None) };
        let folder = Decoder(key).number().ok_or_else(|| damaged("key", key))?;
        let mut change = decode(key, value)?;
        while let Some((key, value)) = sorted.peek()? {
            if Decoder(key).number() != Some(folder) {
                break;
            }
            change = change.and(decode(key, value)?);
            sorted.next()?;
        }
        Ok(Some((folder, change)))
    }
}

fn decode(key: &[u8], value: &[u8]) -> Result<FolderChange, CatalogError> {
    let mut bytes = Decoder(value);
    let sense = || damaged("sense", key);
    let listing = bytes.byte().ok_or_else(sense)? != 0;
    Ok(FolderChange { newest: bytes.time().ok_or_else(sense)?, listing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_folder_the_newest_time_counts_and_whether_any_change_was_of_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let mut changed = ChangedFolders::new(&SpillFolder::new(folder.path()));
        let at = |seconds| Timestamp { seconds, nanos: 0 };
        assert_eq!(changed.take().unwrap().next().unwrap(), None);
        for (folder, seconds, listing) in [(7, 5, false), (7, 9, false), (2, 1, false), (7, 3, true), (2, 0, false)] {
            changed.note(folder, FolderChange { newest: at(seconds), listing }).unwrap();
        }

        let mut settling = changed.take().unwrap();

        assert_eq!(settling.next().unwrap(), Some((2, FolderChange { newest: at(1), listing: false })));
        assert_eq!(settling.next().unwrap(), Some((7, FolderChange { newest: at(9), listing: true })));
        assert_eq!(settling.next().unwrap(), None);
    }
}
