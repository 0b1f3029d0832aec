//! So much at once that nothing of it may be held in memory name by name.

use super::changes::catalog;
use super::*;
use crate::document::Algorithm;

/// More folders than are told one by one, in some others.
const FOLDERS: u64 = 20_001;
const SHELVES: u64 = 300;

#[test]
fn very_many_changed_folders_are_told_together_and_carry_their_times_to_the_root() {
    let (_folder, catalog) = catalog();
    let edition = |content: u8| -> Vec<Entry> {
        let file = |number: u64| Entry {
            hashes: vec![digest(Algorithm::Sha256, content)],
            lastmod: Some(at(i64::from(content) * 1_000_000 + (number * 7919 % FOLDERS) as i64)),
            ..entry(&format!("http://h/deep/{}/{number}/file", number % SHELVES))
        };
        (0..FOLDERS).map(file).collect()
    };
    commit(&catalog, &edition(1));
    let folders: InodeSet = {
        let snapshot = catalog.snapshot().unwrap();
        let mut below = vec![INodeNo(1)];
        let mut folders = InodeSet::default();
        while let Some(folder) = below.pop() {
            folders.insert(folder);
            let visit = &mut |_: EntryId, _: &[u8], node: Node| {
                below.extend((node.kind == Kind::Folder).then_some(node.ino));
                true
            };
            snapshot.children(folder, EntryId(0), visit).unwrap();
        }
        folders
    };
    assert_eq!(folders.len() as u64, FOLDERS + SHELVES + 2);

    let committed = commit(&catalog, &edition(2));

    assert_eq!(committed.updated, FOLDERS);
    assert_eq!(committed.invalidations, [Invalidation::Everything, Invalidation::Folders(folders)]);
    let snapshot = catalog.snapshot().unwrap();
    let mtime = |path: &[&[u8]]| {
        let folder = path.iter().fold(INodeNo(1), |parent, name| snapshot.lookup(parent, name).unwrap().unwrap().ino);
        snapshot.attributes(folder).unwrap().unwrap().mtime
    };
    let newest = at(2_000_000 + FOLDERS as i64 - 1);
    assert_eq!((mtime(&[]), mtime(&[b"deep"])), (newest, newest));
    assert_eq!(mtime(&[b"deep", b"3", b"3"]), at(2_000_000 + (3 * 7919 % FOLDERS) as i64));
}
