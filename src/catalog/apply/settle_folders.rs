//! The folders of the revision before whose listing or times change with what lies in them.

use super::super::CatalogError;
use super::super::store::ROOT;
use super::super::store::codec::damaged;
use super::super::store::keys::ino_key;
use super::super::store::record::NodeRecord;
use super::folder_times::FolderChange;
use super::write::Writer;
use crate::document::Timestamp;
use fuser::INodeNo;
use heed::RoTxn;

impl Writer<'_> {
    /// Something of this time changed in a folder of the revision before; `listing`: its names or their inodes.
    pub(in crate::catalog) fn folder_changed(
        &mut self,
        folder: u64,
        newest: Timestamp,
        listing: bool,
    ) -> Result<(), CatalogError> {
        if !self.shown {
            return Ok(());
        }
        self.folders.note(folder, FolderChange { newest: newest.min(self.now), listing })
    }

    /// Writes the folders whose listing changed or whose mtime moved, and carries the times up to the root: all folders that
    /// changed themselves, then those above them, and so on, so that none is held in memory.
    pub(in crate::catalog) fn settle_folders(&mut self, old: &RoTxn<'_>) -> Result<(), CatalogError> {
        let mut name = Vec::new();
        let mut settling = self.folders.take()?;
        loop {
            let mut is_last = true;
            while let Some((folder, change)) = settling.next()? {
                let txn = if self.is_rewrite() {
                    // Of what is written of it more than once the newest time counts.
                    old
                } else {
                    self.begin()?;
                    let Some(txn) = &self.txn else { continue };
                    // Written before, where something changed both in it and beneath it.
                    &txn.txn
                };
                let known = self.store.inode_entry(txn, folder)?.ok_or_else(|| damaged("absence", &ino_key(folder)))?;
                let (place, node) = ((known.0.parent, known.0.entry), known.1);
                if !change.listing && change.newest <= node.mtime {
                    continue;
                }
                name.clear();
                name.extend_from_slice(node.name);
                let mtime = node.mtime.max(change.newest);
                let node = NodeRecord { mtime, ctime: self.now, name: &name, ..node };
                self.put_entry(place, &node)?;
                self.told_folders.insert(INodeNo(folder));
                // No folder is older than what lies in it.
                if folder != ROOT {
                    self.folders.note(place.0, FolderChange { newest: change.newest, listing: false })?;
                    is_last = false;
                }
            }
            if is_last {
                return Ok(());
            }
            settling = self.folders.take()?;
        }
    }
}
