//! The catalog from outside: a model it is compared with, and the faults it must survive.

mod changes;
mod effects;
mod faults;
mod held;
mod histories;
mod many;
mod model;
mod pages;
mod rules;
mod shared_paths;
mod three_sets;
mod whole;

use super::store::TableId;
use super::*;
use crate::document::{Algorithm, Change, ChangeFrequency, Digest, Entry, Link, PackageMember, Timestamp, Uri};
use crate::platform::free_space::SpaceGuard;
use crate::platform::ino::Ino;
use crate::platform::inode_set::InodeSet;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Snapshot<'_> {
    /// The deletions that are held back.
    fn held(&self) -> Vec<(SetId, Uri)> {
        let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        let rows = self.store.rows(self.txn(), TableId::Held, all).unwrap();
        rows.map(|row| row.map(|(key, row)| super::store::record::held(key, row).unwrap()).unwrap()).collect()
    }
}

impl Catalog {
    pub(crate) fn write_in_place(&self, most: u64) {
        self.most_in_place.store(most, std::sync::atomic::Ordering::Relaxed);
    }
}

/// The naming of all tests but those of naming itself.
pub(super) fn naming() -> Naming {
    Naming { own_authority: "h".into(), ..Naming::default() }
}

pub(super) fn uri(uri: &str) -> Uri {
    Uri::parse(uri).unwrap()
}

pub(super) fn entry(loc: &str) -> Entry {
    Entry::new(uri(loc))
}

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

/// A digest that stands for content number `content`.
pub(super) fn digest(algorithm: Algorithm, content: u8) -> Digest {
    Digest::new(algorithm, &vec![content; algorithm.digest_length()]).unwrap()
}

pub(super) fn open(folder: &Path) -> Catalog {
    // Names collide often.
    Catalog::open_hashed(folder, "a test", 4).unwrap()
}

/// The one store of the catalog in `folder`.
pub(super) fn store_folder(folder: &Path) -> PathBuf {
    let all = std::fs::read_dir(folder).unwrap().map(|found| found.unwrap().path());
    let is_store = |path: &PathBuf| path.file_name().unwrap().as_encoded_bytes().starts_with(b"store-");
    let stores: Vec<_> = all.filter(is_store).collect();
    assert_eq!(stores.len(), 1, "{stores:?}");
    stores[0].clone()
}

impl Commit<'_> {
    /// [`Commit::finish`] where all that is not listed may go.
    pub(crate) fn commit(self, at: Option<Timestamp>, state: &[u8]) -> Result<Committed, CatalogError> {
        self.finish(at, &mut |_| (Held::Nothing, state.to_vec()))
    }
}

impl Snapshot<'_> {
    /// How many files are members of each set.
    pub(super) fn sets(&self) -> BTreeMap<SetId, u64> {
        let sets = self.store.sets(self.txn()).unwrap();
        sets.into_iter().map(|(set, record)| (set, record.files)).collect()
    }
}

/// Whether another store took the place of `before`.
pub(super) fn is_rebuilt(catalog: &Catalog, before: &Arc<super::store::TreeStore>) -> bool {
    !Arc::ptr_eq(before, &catalog.store())
}

/// Whether each commit from here on is on the disk when it is done.
pub(super) fn is_durable(catalog: &Catalog) -> bool {
    catalog.store().env.get_flags().unwrap() & heed::EnvFlags::NO_SYNC.bits() == 0
}

/// Commits a baseline of these entries, in this order.
pub(super) fn commit<'e>(catalog: &Catalog, entries: impl IntoIterator<Item = &'e Entry>) -> Committed {
    let mut baseline = catalog.commit_of_lists(naming()).unwrap();
    entries.into_iter().for_each(|entry| baseline.add(entry).unwrap());
    baseline.commit(None, b"").unwrap()
}

/// The same with runs so small that nearly all is spilled.
pub(super) fn commit_spilling<'e>(catalog: &Catalog, entries: impl IntoIterator<Item = &'e Entry>) -> Committed {
    let mut baseline = Commit::with_memory(catalog, naming(), 512);
    entries.into_iter().for_each(|entry| baseline.add(entry).unwrap());
    baseline.commit(None, b"").unwrap()
}

/// One name of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TreeEntry {
    pub parent: Ino,
    pub id: EntryId,
    pub node: Node,
    pub resource: Option<Resource>,
}

/// The whole tree by path, the root without. Every way to ask for a node must give the same answer.
pub(super) fn tree(catalog: &Catalog) -> BTreeMap<String, TreeEntry> {
    let snapshot = catalog.snapshot().unwrap();
    let mut tree = BTreeMap::new();
    let mut folders = vec![(Ino(1), String::new())];
    while let Some((parent, prefix)) = folders.pop() {
        catalog.kernel_looks_into(parent);
        let mut last = EntryId(0);
        let mut children = Vec::new();
        snapshot
            .children(parent, EntryId(0), &mut |id, name, node| {
                assert!(id > last, "entry ids ascend");
                last = id;
                children.push((id, name.to_vec(), node));
                true
            })
            .unwrap();
        for (id, name, node) in children {
            let path = format!("{prefix}{}", std::str::from_utf8(&name).unwrap());
            assert_eq!(snapshot.lookup(parent, &name).unwrap(), Some(node), "{path}");
            assert_eq!(snapshot.attributes(node.ino).unwrap(), Some(node), "{path}");
            let inode = Inode {
                node,
                name: Some(super::InodeName { folder: parent, entry: id, name: name.into() }),
                former: None,
            };
            assert_eq!(snapshot.inode(node.ino).unwrap(), Some(inode), "{path}");
            assert_eq!(snapshot.path(node.ino).unwrap().as_ref(), Some(&path));
            assert_eq!(snapshot.find(&path).unwrap(), Some(node), "{path}");
            let resource = snapshot.resource(node.ino).unwrap();
            assert_eq!(resource.is_some(), node.kind == Kind::File, "{path}");
            if node.kind == Kind::Folder {
                folders.push((node.ino, format!("{path}/")));
            }
            assert!(
                tree.insert(path.clone(), TreeEntry { parent, id, node, resource }).is_none(),
                "{path} is listed twice"
            );
        }
    }
    tree
}

/// Numbers that look random and are the same in every run (xorshift64*).
pub(super) struct XorshiftStar(pub u64);

impl XorshiftStar {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }

    pub(super) fn one_in(&mut self, limit: u64) -> bool {
        self.below(limit) == 0
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index as u64 + 1) as usize);
        }
    }
}

/// An empty catalog, and its folder.
fn catalog() -> (tempfile::TempDir, Catalog) {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    (folder, catalog)
}

/// An entry with more than its address.
fn with(loc: &str, describe: impl FnOnce(&mut Entry)) -> Entry {
    let mut entry = entry(loc);
    describe(&mut entry);
    entry
}
