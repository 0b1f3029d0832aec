//! Names that go, with all beneath them: who has one open may still read it, so inodes become orphans.

use super::super::store::ROOT;
use super::super::store::codec::damaged;
use super::super::store::keys::{entry_key, ino_key, name_hash, name_key};
use super::super::store::record::{NodeRecord, OrphanRecord, ResourceRecord};
use super::super::{CatalogError, Kind, Naming};
use super::write::{Place, Writer};
use heed::RoTxn;

impl Writer<'_> {
    /// Removes a name and all beneath it.
    pub(in crate::catalog) fn remove(
        &mut self,
        old: &RoTxn<'_>,
        naming: &Naming,
        place: Place,
        node: &NodeRecord<'_>,
    ) -> Result<(), CatalogError> {
        if node.kind == Kind::Folder {
            self.remove_children(old, naming, node.ino)?;
        }
        self.remove_one(old, naming, place, node)?;
        self.folder_changed(place.0, self.now, true)
    }

    /// Removes everything beneath a folder that goes itself.
    pub(in crate::catalog) fn remove_children(
        &mut self,
        old: &RoTxn<'_>,
        naming: &Naming,
        folder: u64,
    ) -> Result<(), CatalogError> {
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            for child in self.store.children(old, folder, 0)? {
                let (entry, node) = child?;
                if node.kind == Kind::Folder {
                    folders.push(node.ino);
                }
                self.remove_one(old, naming, (folder, entry), &node)?;
            }
        }
        Ok(())
    }

    fn remove_one(
        &mut self,
        old: &RoTxn<'_>,
        naming: &Naming,
        (parent, entry): Place,
        node: &NodeRecord<'_>,
    ) -> Result<(), CatalogError> {
        self.count(node.kind, |writer| &mut writer.deleted);
        self.name_changed(parent, node.name, Some(node.ino));
        if self.is_rewrite() {
            return Ok(());
        }
        self.orphan(old, naming, node)?;
        let store = self.store;
        self.write(|txn, record| {
            txn.entries.table.delete(&mut txn.txn, &entry_key(parent, entry))?;
            let key = name_key(parent, name_hash(node.name));
            let Some(namesakes) = store.get(&txn.txn, store.names, &key)? else { return Ok(()) };
            for id in namesakes.chunks(5) {
                if id != &entry.to_be_bytes()[3..] {
                    record.extend_from_slice(id);
                }
            }
            if record.is_empty() {
                txn.names.table.delete(&mut txn.txn, &key)?;
                return Ok(());
            }
            txn.names.put(&mut txn.txn, &key, record)
        })
    }

    /// Moves an inode to the orphans: it has lost its name, but may be open.
    pub(in crate::catalog) fn orphan(
        &mut self,
        old: &RoTxn<'_>,
        naming: &Naming,
        node: &NodeRecord<'_>,
    ) -> Result<(), CatalogError> {
        let store = self.store;
        let key = ino_key(node.ino);
        let sense = || damaged("resource", &key);
        let place = store.inode(old, node.ino)?.ok_or_else(sense)?;
        let mut with_uri = Vec::new();
        if !place.resource.is_empty() {
            let resource = ResourceRecord::decode(place.resource).ok_or_else(sense)?;
            match resource.uri {
                Some(_) => with_uri.extend_from_slice(place.resource),
                None => {
                    let name = std::str::from_utf8(node.name).map_err(|_| sense())?;
                    let path = self.folder_path(old, place.parent)?.to_string() + name;
                    let uri = naming.uri(&path, resource.https).ok_or_else(sense)?;
                    resource.push_with_uri(Some(uri.as_str()), &mut with_uri);
                }
            }
        }
        self.displaced(naming, node.name, &with_uri, false)?;
        let ctime = self.now;
        self.write(|txn, record| {
            let node = NodeRecord { ctime, ..*node };
            OrphanRecord { parent: place.parent, node, resource: &with_uri }.encode(record);
            txn.orphans.put(&mut txn.txn, &key, record)?;
            txn.inodes.table.delete(&mut txn.txn, &key)?;
            Ok(())
        })
    }

    /// The path of a folder of the revision before, with its slash; empty for the root.
    fn folder_path(&mut self, old: &RoTxn<'_>, folder: u64) -> Result<&str, CatalogError> {
        let sense = || damaged("absence", &ino_key(folder));
        let store = self.store;
        let [last, above] = &mut self.orphan_folders;
        if last.as_ref().is_none_or(|(known, _)| *known != folder) {
            let path = if folder == ROOT {
                String::new()
            } else {
                let (place, node) = store.inode_entry(old, folder)?.ok_or_else(sense)?;
                if above.as_ref().is_none_or(|(known, _)| *known != place.parent) {
                    let path = store.path_of(old, place.parent)?.ok_or_else(sense)?;
                    *above = Some((place.parent, if path.is_empty() { path } else { path + "/" }));
                }
                let name = std::str::from_utf8(node.name).map_err(|_| damaged("name", &ino_key(folder)))?;
                format!("{}{name}/", above.as_ref().map_or("", |(_, path)| path))
            };
            *last = Some((folder, path));
        }
        Ok(last.as_ref().map_or("", |(_, path)| path))
    }
}
