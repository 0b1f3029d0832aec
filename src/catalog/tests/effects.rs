//! What a commit tells others of: counts, invalidations, and orphans that are kept.

use super::*;

#[test]
fn many_changes_become_one_invalidation_with_the_folders() {
    let (_folder, catalog) = catalog();
    commit(&catalog, [&entry("http://h/f/first")]);
    let folder = tree(&catalog)["f"].node.ino;

    let entries: Vec<_> = (0..20_001).map(|index| entry(&format!("http://h/f/{index}"))).collect();
    let committed = commit(&catalog, &entries);

    assert_eq!(committed.invalidations, [Invalidation::Everything([Ino(1), folder].into_iter().collect())]);
}

/// Hazard: files whose attributes alone are others leave the listing of their folder as it was.
#[test]
fn folders_of_many_touched_files_are_in_the_one_invalidation() {
    let (_folder, catalog) = catalog();
    let edition = |seconds: i64| -> Vec<Entry> {
        let hashes = vec![digest(Algorithm::Md5, 1)];
        let file = |index| Entry {
            hashes: hashes.clone(),
            lastmod: Some(at(seconds)),
            ..entry(&format!("http://h/f/{index}"))
        };
        (0..20_001).map(file).collect()
    };
    commit(&catalog, &edition(100));
    let folder = tree(&catalog)["f"].node.ino;

    let committed = commit(&catalog, &edition(50));

    assert_eq!((committed.touched, committed.updated), (20_001, 0));
    let [Invalidation::Everything(folders)] = &committed.invalidations[..] else { panic!("one for all") };
    assert!(folders.contains(folder));
}

#[test]
fn an_orphan_goes_when_it_is_dropped_and_at_the_next_opening() {
    let (folder, catalog) = catalog();
    commit(&catalog, &[entry("http://h/a"), entry("http://h/b")]);
    let inodes: Vec<_> = tree(&catalog).into_values().map(|name| name.node.ino).collect();
    commit(&catalog, []);

    catalog.drop_orphans(&inodes[..1]).unwrap();

    assert_eq!(catalog.snapshot().unwrap().orphans(Ino(0), usize::MAX).unwrap(), [inodes[1]]);
    assert_eq!(catalog.snapshot().unwrap().attributes(inodes[0]).unwrap(), None);
    drop(catalog);
    assert_eq!(open(folder.path()).snapshot().unwrap().orphans(Ino(0), usize::MAX).unwrap(), []);
}

#[test]
fn dropping_an_orphan_never_waits_for_a_commit() {
    let (_folder, catalog) = catalog();
    commit(&catalog, &[entry("http://h/a"), entry("http://h/b")]);
    commit(&catalog, [&entry("http://h/b")]);
    let orphans = |catalog: &Catalog| catalog.snapshot().unwrap().orphans(Ino(0), usize::MAX).unwrap();
    let [orphan] = orphans(&catalog)[..] else { panic!("one name went") };

    let running = catalog.writer.lock().unwrap();
    catalog.drop_orphans(&[orphan]).unwrap();
    assert_eq!(orphans(&catalog), [orphan], "the record stays until the next write");
    drop(running);
    commit(&catalog, []);

    assert!(!orphans(&catalog).contains(&orphan));
}

/// Counts are of files: one that takes the place of a folder is new, and one whose place a folder takes is gone.
#[test]
fn a_file_in_place_of_a_folder_is_no_update() {
    for most_in_place in [0, 100] {
        let (_folder, catalog) = catalog();
        commit(&catalog, &["http://h/d/a", "http://h/x"].map(entry));
        catalog.write_in_place(most_in_place);

        let folder_to_file = commit(&catalog, &["http://h/d", "http://h/x"].map(entry));
        let file_to_folder = commit(&catalog, &["http://h/d/a", "http://h/x"].map(entry));

        for committed in [folder_to_file, file_to_folder] {
            let Committed { created, updated, touched, deleted, .. } = committed;
            assert_eq!((created, updated, touched, deleted), (1, 0, 0, 1), "{most_in_place}");
        }
    }
}

/// Promise: an open file keeps its bytes. An eviction right behind the commit finds them pinned.
#[test]
fn orphans_are_kept_from_before_they_lose_their_names() {
    for most_in_place in [0, 100] {
        let (_folder, catalog) = catalog();
        let catalog = std::sync::Arc::new(catalog);
        let version = |content| with("http://h/a", |entry| entry.hashes = vec![digest(Algorithm::Md5, content)]);
        commit(&catalog, &[version(1), entry("http://h/b")]);
        let [old, gone] = ["a", "b"].map(|path| tree(&catalog)[path].node.ino);
        let (kept, weak) = (std::sync::Arc::<std::sync::Mutex<Vec<_>>>::default(), std::sync::Arc::downgrade(&catalog));
        let noted = kept.clone();
        catalog.keep_orphans_by(Box::new(move |orphans, keep| {
            let still_shown = weak.upgrade().unwrap().snapshot().unwrap().find("a").unwrap().unwrap().ino == old;
            noted.lock().unwrap().push((orphans.to_vec(), keep, still_shown));
        }));
        catalog.write_in_place(most_in_place);

        commit(&catalog, &[version(2)]);

        let mut kept = kept.lock().unwrap().clone();
        kept.iter_mut().for_each(|(orphans, ..)| orphans.sort());
        assert_eq!(kept[0], (vec![old, gone], true, true), "{most_in_place}");
    }
}
