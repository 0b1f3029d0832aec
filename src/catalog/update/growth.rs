//! What a transaction adds to a store's file, held to the room that is left on the disk.

use super::super::CatalogError;
use super::super::sorter::SpillFolder;
use super::super::store::{Store, io_error};
use crate::room::{BETWEEN_LOOKS, Short};

/// Octets of changed pages that LMDB holds in memory before it writes them to the file: `MDB_IDL_UM_MAX` pages under the feature
/// `mdb_idl_logn_13`.
const HELD: u64 = 64 << 20;

/// A page of the file.
const PAGE: u64 = 4096;

/// Octets between two words to the room.
const STEP: u64 = BETWEEN_LOOKS / 4;

/// Counts what one transaction writes, from its beginning.
pub(super) struct Growth {
    folder: SpillFolder,
    /// Octets of records that lie behind all others.
    octets: u64,
    /// Octets of pages that are written anew, no more than there are.
    pages: u64,
    most_pages: u64,
    unsaid: u64,
}

impl Growth {
    /// Of a store on the disk of `folder` in which there is nothing yet.
    pub(super) fn of_empty(folder: &SpillFolder) -> Growth {
        Growth { folder: folder.clone(), octets: 0, pages: 0, most_pages: 0, unsaid: 0 }
    }

    /// Of `store`, which LMDB changes by writing each page that is touched to another place.
    pub(super) fn of(store: &Store, folder: &SpillFolder) -> Result<Growth, CatalogError> {
        let most_pages = store.env.real_disk_size()?.max(PAGE);
        Ok(Growth { most_pages, ..Growth::of_empty(folder) })
    }

    /// Records of so many octets are written behind all others.
    ///
    /// # Errors
    /// Less than is to stay free would be left.
    pub(super) fn appended(&mut self, octets: usize) -> Result<(), CatalogError> {
        self.octets += octets as u64;
        self.count(octets as u64)
    }

    /// A record is written, or removed, wherever it belongs.
    ///
    /// # Errors
    /// Less than is to stay free would be left.
    pub(super) fn touched(&mut self) -> Result<(), CatalogError> {
        self.pages = self.most_pages.min(self.pages + PAGE);
        self.count(PAGE)
    }

    fn count(&mut self, octets: u64) -> Result<(), CatalogError> {
        self.unsaid += octets;
        if self.unsaid < STEP {
            return Ok(());
        }
        let SpillFolder { path, room } = &self.folder;
        let taken = room.take(path, std::mem::take(&mut self.unsaid), self.unseen());
        taken.map_err(|short: Short| io_error(path)(short.into()))
    }

    /// Whether there is room for what only the commit writes. So little as is written without asking has it.
    ///
    /// # Errors
    /// Less than is to stay free would be left.
    pub(super) fn fits(&self) -> Result<(), CatalogError> {
        let SpillFolder { path, room } = &self.folder;
        match self.unseen() {
            ..BETWEEN_LOOKS => Ok(()),
            unseen => room.look(path, unseen).map_err(|short| io_error(path)(short.into())),
        }
    }

    /// Octets that the file system does not know of yet, at most.
    fn unseen(&self) -> u64 {
        HELD.min(self.octets + self.pages)
    }
}
