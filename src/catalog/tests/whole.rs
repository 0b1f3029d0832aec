//! Revisions that share so little with the one before that they are written whole into a store of their own.

use super::changes::{ONE, OTHER, apply, held, list, measured, statement};
use super::*;
use crate::document::Change;
use std::fs;

/// A tree of some folders, each file with that content.
fn edition(content: u8) -> Vec<Entry> {
    let file = |number: u64| Entry {
        hashes: vec![digest(Algorithm::Sha256, content)],
        ..entry(&format!("http://h/f{}/{number}", number % 7))
    };
    (0..60).map(file).collect()
}

fn stores(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|name| name.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("store")).collect()
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder.join("tmp")).unwrap().next().is_none()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().unwrap().is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

#[test]
fn kill_while_a_tree_is_rebuilt_leaves_the_old_one() {
    let (folder, catalog) = catalog();
    catalog.write_in_place(0);
    commit(&catalog, &edition(1));
    let before = tree(&catalog);
    let image = tempfile::tempdir().unwrap();
    let mut baseline = catalog.commit_of_lists(naming()).unwrap();
    edition(2).iter().for_each(|entry| baseline.add(entry).unwrap());

    let decide = &mut |_: &Losses| {
        copy(folder.path(), image.path());
        // What a process leaves that is killed in the midst of it.
        copy(&store_folder(folder.path()), &image.path().join("tmp/successor-7"));
        (Held::Nothing, b"second".to_vec())
    };
    baseline.finish(None, decide).unwrap();

    let killed = open(image.path());
    assert_eq!(tree(&killed), before);
    assert_eq!(killed.snapshot().unwrap().position().unwrap().as_deref(), Some(&b""[..]));
    assert_eq!((stores(image.path()).len(), is_empty(image.path())), (1, true));
    let after = tree(&catalog);
    assert!(after.iter().all(|(path, name)| name.node.kind == Kind::Folder || name.node != before[path].node));
    assert!(is_durable(&catalog));
    let instance = catalog.instance().unwrap();
    drop(catalog);
    let catalog = open(folder.path());
    assert_eq!((tree(&catalog), catalog.instance().unwrap()), (after, instance));
    assert_eq!(catalog.snapshot().unwrap().position().unwrap().as_deref(), Some(&b"second"[..]));
    assert_eq!((stores(folder.path()).len(), is_empty(folder.path())), (1, true));
}

#[test]
fn a_rebuilt_store_is_as_long_as_its_pages() {
    let (_folder, catalog) = catalog();
    catalog.write_in_place(0);
    let edition =
        |content| (0..2000).map(move |number| Entry { length: Some(content), ..entry(&format!("http://h/{number}")) });
    for content in [1, 2] {
        let before = catalog.store();

        commit(&catalog, &edition(content).collect::<Vec<_>>());

        let store = catalog.store();
        assert!(!Arc::ptr_eq(&before, &store));
        assert_eq!(store.env.real_disk_size().unwrap(), store.whole_length());
    }
}

#[test]
fn kill_while_the_first_tree_is_written_leaves_none() {
    let (folder, catalog) = catalog();
    let instance = catalog.instance().unwrap();
    let image = tempfile::tempdir().unwrap();
    let mut baseline = catalog.commit_of_lists(naming()).unwrap();
    edition(1).iter().for_each(|entry| baseline.add(entry).unwrap());

    let decide = &mut |_: &Losses| {
        copy(folder.path(), image.path());
        assert!(!is_empty(image.path()), "most of it is written already");
        (Held::Nothing, b"first".to_vec())
    };
    baseline.finish(None, decide).unwrap();

    let killed = open(image.path());
    assert_eq!(killed.revision().unwrap(), None);
    assert_eq!((stores(image.path()).len(), is_empty(image.path())), (1, true));
    let whole = tree(&catalog);
    assert!(is_durable(&catalog));
    commit(&killed, &edition(1));
    assert!(tree(&killed).keys().eq(whole.keys()));
    drop(catalog);
    let catalog = open(folder.path());
    assert_eq!((tree(&catalog), catalog.instance().unwrap()), (whole, instance));
    assert_eq!(catalog.snapshot().unwrap().position().unwrap().as_deref(), Some(&b"first"[..]));
    assert_eq!((stores(folder.path()).len(), is_empty(folder.path())), (1, true));
}

#[test]
fn a_failed_rebuild_leaves_the_old_tree() {
    let (folder, catalog) = catalog();
    catalog.write_in_place(0);
    commit(&catalog, &edition(1));
    let before = tree(&catalog);
    let mut baseline = catalog.commit_of_lists(naming()).unwrap();
    edition(2).iter().for_each(|entry| baseline.add(entry).unwrap());

    let decide = &mut |_: &Losses| {
        // Where it is to be put nothing can be: the catalog's folder is a file.
        fs::rename(folder.path(), folder.path().with_extension("away")).unwrap();
        fs::write(folder.path(), "").unwrap();
        (Held::Nothing, Vec::new())
    };
    let store = catalog.store();
    let failed = baseline.finish(None, decide);
    fs::remove_file(folder.path()).unwrap();
    fs::rename(folder.path().with_extension("away"), folder.path()).unwrap();

    assert!(matches!(failed, Err(CatalogError::Io { .. })), "{failed:?}");
    assert_eq!((tree(&catalog), is_rebuilt(&catalog, &store)), (before, false));
    drop(store);
    commit(&catalog, &edition(3));
    assert_eq!(stores(folder.path()).len(), 1);
}

#[test]
fn orphans_of_rebuilds_are_read_until_they_are_dropped() {
    let (_folder, catalog) = catalog();
    catalog.write_in_place(0);
    commit(&catalog, &edition(1));
    let before = tree(&catalog);
    let committed = commit(&catalog, &edition(2));

    let files: Vec<&TreeEntry> = before.values().filter(|name| name.node.kind == Kind::File).collect();
    assert_eq!(committed.updated, 60);
    let (open, closed) = (files[3], files[4]);
    let shown = |of: &TreeEntry| {
        let snapshot = catalog.snapshot().unwrap();
        (snapshot.attributes(of.node.ino).unwrap().is_some(), snapshot.resource(of.node.ino).unwrap())
    };
    assert_eq!((shown(open), shown(closed)), ((true, open.resource.clone()), (true, closed.resource.clone())));

    // The store of the next tree takes over what the one has that goes.
    tree(&catalog);
    commit(&catalog, &edition(3));
    assert_eq!((shown(open), shown(closed)), ((true, open.resource.clone()), (true, closed.resource.clone())));
    assert_eq!(catalog.snapshot().unwrap().orphans(Ino(0), 1000).unwrap().len(), 120);
    catalog.drop_orphans(&[closed.node.ino]).unwrap();

    assert_eq!((shown(open), shown(closed)), ((true, open.resource.clone()), (false, None)));
    catalog.drop_orphans(&[open.node.ino]).unwrap();
    assert_eq!(shown(open), (false, None));
}

#[test]
fn an_orphan_dropped_during_a_commit_leaves_no_row() {
    let (_folder, catalog) = catalog();
    catalog.write_in_place(0);
    commit(&catalog, &edition(1));
    let file = tree(&catalog).values().find(|name| name.node.kind == Kind::File).unwrap().node.ino;
    commit(&catalog, &edition(2));

    // While the commit goes on.
    let writer = catalog.writer.lock().unwrap();
    catalog.drop_orphans(&[file]).unwrap();
    drop(writer);
    catalog.drop_orphans(&[]).unwrap();

    assert_eq!(catalog.snapshot().unwrap().attributes(file).unwrap(), None);
}

/// What an old list has of files deleted since, and of their folders, is not there; nor is a name another for it.
#[test]
fn a_rebuild_shows_no_folder_of_superseded_entries_alone() {
    let [gone, below, both] = ["a/b/gone", "a/c/below", "d/gone"].map(|name| entry(&format!("http://h/{name}")));
    let [file, stays] = ["d", "a/stays"].map(|name| entry(&format!("http://h/{name}")));
    let listed = [edition(1), vec![gone.clone(), below.clone(), both.clone(), file, stays.clone()]].concat();
    for most_in_place in [u64::MAX, 0] {
        let (_folder, catalog) = catalog();
        catalog.write_in_place(most_in_place);
        list(&catalog, &[(ONE, Some(10), &listed)], &[], Held::Nothing);
        for deleted in [&gone, &below, &both] {
            apply(&catalog, &[statement(ONE, Change::Deleted, 90, deleted)]);
        }
        let before: Vec<String> = tree(&catalog).into_keys().collect();

        let again: Vec<Entry> = listed.iter().filter(|entry| entry.loc != stays.loc).cloned().collect();
        list(&catalog, &[(ONE, Some(20), &again)], &[], Held::Nothing);

        let tree = tree(&catalog);
        let expected = before.into_iter().filter(|path| path != "a" && path != "a/stays");
        assert!(tree.keys().cloned().eq(expected), "{:?}", tree.keys());
        assert_eq!(tree["d"].node.kind, Kind::File);
        let totals = catalog.revision().unwrap().unwrap().totals;
        assert_eq!((totals.files, totals.folders), (61, 8));
    }
}

#[test]
fn a_rebuild_keeps_what_is_no_part_of_the_tree() {
    let (_folder, catalog) = catalog();
    let [gone, stays, other] = ["gone", "stays", "other"].map(|name| entry(&format!("http://h/{name}")));
    let listed = [edition(1), vec![gone.clone(), stays.clone()]].concat();
    let others = std::slice::from_ref(&other);
    list(&catalog, &[(ONE, Some(10), &listed), (OTHER, Some(10), others)], &[], Held::Nothing);
    let changed = measured("http://h/stays", 7);
    apply(&catalog, &[statement(ONE, Change::Updated, 90, &changed)]);
    let orphans = catalog.snapshot().unwrap().orphans(Ino(0), 10).unwrap();
    assert_eq!(orphans.len(), 1);
    catalog.write_in_place(0);
    let store = catalog.store();

    let listed = [edition(2), vec![stays.clone()]].concat();
    list(&catalog, &[(ONE, Some(20), &listed), (OTHER, Some(20), others)], &[], Held::All);

    assert!(is_rebuilt(&catalog, &store));
    assert_eq!(held(&catalog), [(0, "http://h/gone".to_string())]);
    let snapshot = catalog.snapshot().unwrap();
    assert_eq!(snapshot.journaled(ONE, &stays.loc).unwrap().map(|row| row.time), Some(at(90)));
    assert_eq!(snapshot.find("stays").unwrap().unwrap().size, Some(7));
    assert!(snapshot.attributes(orphans[0]).unwrap().is_some());
    assert_eq!(snapshot.sets().into_keys().collect::<Vec<_>>(), [ONE, OTHER]);
}

#[test]
fn a_rebuild_keeps_changes_of_a_set_that_is_not_listed() {
    let (_folder, catalog) = catalog();
    let others = [entry("http://h/other")];
    list(&catalog, &[(ONE, Some(10), &edition(1)), (OTHER, Some(10), &others)], &[], Held::Nothing);
    let changed = measured("http://h/other", 7);
    apply(&catalog, &[statement(OTHER, Change::Updated, 90, &changed)]);
    catalog.write_in_place(0);
    let store = catalog.store();

    list(&catalog, &[(ONE, Some(20), &edition(2))], &[], Held::All);

    assert!(is_rebuilt(&catalog, &store));
    let journaled = catalog.snapshot().unwrap().journaled(OTHER, &others[0].loc).unwrap();
    assert_eq!(journaled.map(|row| row.time), Some(at(90)));
}

/// With what is held back, packed, journaled, and of a set that was never listed.
#[test]
fn many_changes_write_the_whole_tree_with_the_same_result() {
    let results = [u64::MAX, 0].map(|most_in_place| {
        let (_folder, catalog) = catalog();
        let listed = ["f/a", "f/b", "g/c", "g/d", "h"].map(|path| measured(&format!("http://h/{path}"), 1));
        list(&catalog, &[(ONE, Some(10), &listed), (OTHER, Some(10), &listed[..1])], &[], Held::Nothing);
        let packed = PackageMember { package: uri("http://h/1.zip"), path: "f/b".into() };
        let b = Entry { lastmod: Some(at(15)), ..listed[1].clone() };
        apply(&catalog, &[StatedChange { member: Some(&packed), ..statement(ONE, Change::Updated, 20, &b) }]);
        list(&catalog, &[(ONE, Some(15), &listed[..4]), (OTHER, Some(10), &listed[..1])], &[], Held::All);
        assert_eq!(held(&catalog).len(), 1);
        catalog.write_in_place(most_in_place);
        let (store, before) = (catalog.store(), tree(&catalog));

        let (new, never) = (measured("http://h/f/new", 3), entry("http://h/never"));
        let touched = Entry { media_type: Some("text/plain".into()), ..b };
        let committed = apply(
            &catalog,
            &[
                statement(ONE, Change::Deleted, 30, &listed[0]),
                statement(ONE, Change::Updated, 30, &touched),
                statement(ONE, Change::Deleted, 30, &listed[2]),
                statement(ONE, Change::Deleted, 30, &never),
                statement(SetId(9), Change::Created, 30, &new),
                statement(ONE, Change::Updated, 5, &measured("http://h/g/d", 9)),
            ],
        );

        assert_eq!(is_rebuilt(&catalog, &store), most_in_place == 0);
        let after = tree(&catalog);
        let resources: Vec<_> = after.iter().map(|(path, it)| (path.clone(), it.resource.clone())).collect();
        let kept: Vec<_> = after.keys().filter(|path| before.contains_key(*path)).collect();
        let kept: Vec<_> = kept.into_iter().filter(|path| before[*path].node.ino == after[*path].node.ino).collect();
        assert_eq!(kept, ["f", "f/a", "f/b", "g", "g/d", "h"]);
        let snapshot = catalog.snapshot().unwrap();
        let journaled = [&listed[0], &touched, &never].map(|it| snapshot.journaled(ONE, &it.loc).unwrap());
        let Committed { created, updated, touched, deleted, unknown, .. } = committed;
        let counts = (created, updated, touched, deleted, unknown);
        assert_eq!(counts, (1, 0, 2, 1, 1));
        (resources, held(&catalog), journaled, counts)
    });

    assert_eq!(results[0], results[1]);
    assert!(results[0].0.iter().any(|(path, it)| path == "f/b" && it.as_ref().is_some_and(|it| it.member.is_some())));
}
