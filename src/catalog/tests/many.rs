//! So much at once that nothing of it may be held in memory name by name.

use super::*;
use crate::document::{Algorithm, Change};

/// More folders than are told one by one, in some others.
const FOLDERS: u64 = 20_001;
const SHELVES: u64 = 300;

#[test]
fn many_changed_folders_are_reported_together_in_place() {
    let (_folder, catalog) = catalog();
    many_changed_folders(&catalog);
}

#[test]
fn many_changed_folders_are_reported_together_in_a_rebuild() {
    let (_folder, catalog) = catalog();
    catalog.write_in_place(1000);
    let store = catalog.store();
    many_changed_folders(&catalog);
    assert!(is_rebuilt(&catalog, &store));
}

fn many_changed_folders(catalog: &Catalog) {
    let edition = |content: u8| -> Vec<Entry> {
        let file = |number: u64| Entry {
            hashes: vec![digest(Algorithm::Sha256, content)],
            lastmod: Some(at(i64::from(content) * 1_000_000 + (number * 7919 % FOLDERS) as i64)),
            ..entry(&format!("http://h/deep/{}/{number}/file", number % SHELVES))
        };
        (0..FOLDERS).map(file).collect()
    };
    commit(catalog, &edition(1));
    let folders: InodeSet = {
        let snapshot = catalog.snapshot().unwrap();
        let mut below = vec![Ino(1)];
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

    let committed = commit(catalog, &edition(2));

    assert_eq!(committed.updated, FOLDERS);
    assert_eq!(committed.invalidations, [Invalidation::Everything(folders)]);
    let snapshot = catalog.snapshot().unwrap();
    let mtime = |path: &[&[u8]]| {
        let folder = path.iter().fold(Ino(1), |parent, name| snapshot.lookup(parent, name).unwrap().unwrap().ino);
        snapshot.attributes(folder).unwrap().unwrap().mtime
    };
    let newest = at(2_000_000 + FOLDERS as i64 - 1);
    assert_eq!((mtime(&[]), mtime(&[b"deep"])), (newest, newest));
    assert_eq!(mtime(&[b"deep", b"3", b"3"]), at(2_000_000 + (3 * 7919 % FOLDERS) as i64));
}

/// A folder grows and shrinks by lists and by changes, in one commit or in many.
#[test]
fn every_name_is_found_while_folders_grow_and_shrink() {
    let (_folder, catalog) = catalog();
    let file = |number: u64| entry(&format!("http://h/folder/file-{number}"));
    let mut listed: Vec<u64> = vec![0];
    let mut next = 1;
    let mut step = 3u64;
    for round in 0..200 {
        let time = at(1_000_000_000 + round);
        step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (kind, count) = (step >> 60, 1 + (step >> 40) % 5);
        if kind % 2 == 0 || listed.len() < 2 {
            listed.extend(next..next + count);
            next += count;
        } else {
            let keep = 1 + (step >> 20) as usize % listed.len();
            let (_, rest) = listed.split_at(listed.len() - keep);
            listed = rest.to_vec();
        }
        if kind < 8 {
            let mut baseline = catalog.commit_of_lists(naming()).unwrap();
            baseline.begin_list(SetId::default(), Some(time));
            listed.iter().for_each(|number| baseline.add(&file(*number)).unwrap());
            baseline.commit(None, b"").unwrap();
        } else {
            let mut changes = catalog.commit_of_changes();
            for number in 0..next {
                let is_listed = listed.contains(&number);
                let entry = file(number);
                let is_there = catalog.snapshot().unwrap().locate(&entry.loc).unwrap().is_some();
                if is_listed != is_there {
                    let change = if is_listed { Change::Created } else { Change::Deleted };
                    let set = SetId::default();
                    changes
                        .apply(StatedChange { set, change, time, is_left_out: false, entry: &entry, member: None })
                        .unwrap();
                }
            }
            changes.finish(None, &mut |_| (Held::Nothing, Vec::new())).unwrap();
        }

        let snapshot = catalog.snapshot().unwrap();
        let folder = snapshot.lookup(Ino(1), b"folder").unwrap().unwrap().ino;
        let mut children = 0;
        let count = &mut |_: EntryId, _: &[u8], _: Node| {
            children += 1;
            true
        };
        snapshot.children(folder, EntryId(0), count).unwrap();
        assert_eq!(children, listed.len());
        for number in 0..next {
            let found = snapshot.lookup(folder, format!("file-{number}").as_bytes()).unwrap();
            assert_eq!(found.is_some(), listed.contains(&number), "file-{number} of {listed:?}");
        }
    }
}

/// Children of a folder that are more than are read at once are looked up one by one.
#[test]
fn one_folder_of_many_files_changes_a_little() {
    const FILES: u64 = 20_000;
    for in_place in [u64::MAX, 0] {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(folder.path(), "a test").unwrap();
        let file = |number: u64| entry(&format!("http://h/folder/{number}"));
        let mut listed: Vec<Entry> = (0..FILES).map(file).collect();
        commit(&catalog, &listed);
        let find = |number: u64| catalog.snapshot().unwrap().find(&format!("folder/{number}")).unwrap();
        let before = [5, 6, 12_345, FILES].map(find);
        catalog.write_in_place(in_place);
        listed[5].length = Some(7);
        listed.remove(12_345);
        listed.push(file(FILES));

        let store = catalog.store();

        let committed = commit(&catalog, &listed);

        assert_eq!((committed.created, committed.updated, committed.deleted), (1, 1, 1));
        assert_eq!(is_rebuilt(&catalog, &store), in_place == 0);
        let [changed, stays, gone, new] = [5, 6, 12_345, FILES].map(find);
        assert!(changed.is_some() && changed != before[0]);
        assert_eq!((stays, gone), (before[1], None));
        assert!(before[3].is_none() && new.is_some());
    }
}

/// Of many sets each row costs about what it costs of a few.
#[test]
fn many_sets_cost_no_more_than_their_rows() {
    const FILES: u32 = 20_000;
    let files: Vec<Entry> = (0..FILES).map(|number| entry(&format!("http://h/{}/{number}", number % 100))).collect();
    let second_commit = |sets: u32| {
        let (_folder, catalog) = catalog();
        let list = |seconds: i64| {
            let mut baseline = catalog.commit_of_lists(naming()).unwrap();
            (0..sets).for_each(|set| baseline.begin_list(SetId(set), Some(at(seconds))));
            for (number, file) in (0..).zip(&files) {
                for set in [number % sets, (number + 1) % sets] {
                    baseline.begin_list(SetId(set), Some(at(seconds)));
                    baseline.add(file).unwrap();
                }
                let set = SetId(number % sets);
                let statement = StatedChange {
                    set,
                    change: Change::Updated,
                    time: at(90),
                    is_left_out: false,
                    entry: file,
                    member: None,
                };
                baseline.apply(statement).unwrap();
            }
            baseline
        };
        list(10).commit(None, b"").unwrap();
        let again = list(20);
        let begun = std::time::Instant::now();
        again.commit(None, b"").unwrap();
        begun.elapsed()
    };

    let (few, many) = (second_commit(2), second_commit(5000));

    assert!(many < few * 3 + std::time::Duration::from_millis(500), "{many:?} against {few:?}");
}
