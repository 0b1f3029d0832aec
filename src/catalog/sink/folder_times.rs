//! The folders in which, or beneath which, a commit changes something: as many as there are, in bounded memory.

use super::super::CatalogError;
use super::super::sort::{SMALL_SORT, Sorted, Sorter, SpillFolder};
use super::super::store::codec::{damaged, number, pack, unpack};
use super::super::store::keys::ino_key;
use crate::document::Timestamp;
use serde::{Deserialize, Serialize};

/// The changes in one folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderChange {
    /// The newest time of what changed.
    pub newest: Timestamp,
    /// True where the folder's own listing changed: its names or their inodes.
    pub scope: bool,
}

impl FolderChange {
    fn and(self, other: FolderChange) -> FolderChange {
        FolderChange { newest: self.newest.max(other.newest), scope: self.scope || other.scope }
    }
}

/// Takes changes in any order; those of one folder in a row cost nothing.
pub struct ChangedFolders {
    sorter: Sorter,
    /// The folder noted last, which is not in the sorter yet.
    last: Option<(u64, FolderChange)>,
}

impl ChangedFolders {
    pub fn new(spill_folder: &SpillFolder) -> ChangedFolders {
        ChangedFolders { sorter: Sorter::new(spill_folder, SMALL_SORT), last: None }
    }

    /// Notes a change of `folder`, an inode.
    pub fn note(&mut self, folder: u64, change: FolderChange) -> Result<(), CatalogError> {
        let (last, known) = self.last.take().unwrap_or((folder, change));
        if last == folder {
            self.last = Some((folder, known.and(change)));
            return Ok(());
        }
        self.last = Some((folder, change));
        self.sorter.add(&ino_key(last), &pack(&known))
    }

    /// All of them, for [`next_folder`]. Empty again afterwards.
    pub fn take(&mut self) -> Result<Sorted, CatalogError> {
        if let Some((last, known)) = self.last.take() {
            self.sorter.add(&ino_key(last), &pack(&known))?;
        }
        self.sorter.split_off()?.finish()
    }
}

/// The next folder with all that happened to it, ascending; `None` at the end.
pub fn next_folder(changes: &mut Sorted) -> Result<Option<(u64, FolderChange)>, CatalogError> {
    let Some((key, value)) = changes.next()? else { return Ok(None) };
    let folder = number(key).ok_or_else(|| damaged("key", key))?;
    let mut change = unpack::<FolderChange>(value).ok_or_else(|| damaged("content", key))?;
    while let Some((key, value)) = changes.peek()?.filter(|(key, _)| number(key) == Some(folder)) {
        change = change.and(unpack::<FolderChange>(value).ok_or_else(|| damaged("content", key))?);
        changes.next()?;
    }
    Ok(Some((folder, change)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_folder_the_newest_time_and_any_listing_count() {
        let folder = tempfile::tempdir().unwrap();
        let mut changed = ChangedFolders::new(&SpillFolder::new(folder.path()));
        let at = |seconds| Timestamp { seconds, nanos: 0 };
        assert_eq!(next_folder(&mut changed.take().unwrap()).unwrap(), None);
        for (folder, seconds, scope) in [(7, 5, false), (7, 9, false), (2, 1, false), (7, 3, true), (2, 0, false)] {
            changed.note(folder, FolderChange { newest: at(seconds), scope }).unwrap();
        }

        let mut changes = changed.take().unwrap();

        assert_eq!(next_folder(&mut changes).unwrap(), Some((2, FolderChange { newest: at(1), scope: false })));
        assert_eq!(next_folder(&mut changes).unwrap(), Some((7, FolderChange { newest: at(9), scope: true })));
        assert_eq!(next_folder(&mut changes).unwrap(), None);
    }
}
