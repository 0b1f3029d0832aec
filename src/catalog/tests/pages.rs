//! Items of landing pages: changes of a set without lists, and the rows of the pages that they hang on.

use super::*;

fn page(links: &[&str]) -> ReadPage {
    ReadPage {
        uri: uri("http://h/records/1"),
        version: Some(7),
        is_partial: false,
        read: at(10),
        validator: Some("\"e\"".into()),
        links: vec![("license".into(), "https://l.example/by".into())],
        items: links.iter().map(|item| Box::from(*item)).collect(),
    }
}

/// Commits these items of the page, and the page with them.
fn commit_items(catalog: &Catalog, change: Change, items: &[&str]) -> Committed {
    let mut commit = catalog.commit_of_changes();
    for item in items {
        let entry = Entry::new(uri("http://h/records/1").item(item));
        commit
            .apply(StatedChange { set: ITEMS, change, time: at(10), is_left_out: false, entry: &entry, member: None })
            .unwrap();
    }
    commit.set_page(&uri("http://h/records/1"), Some(&page(items)));
    commit.commit(None, b"").unwrap()
}

/// A baseline as `sync` makes it where items are followed.
fn baseline(catalog: &Catalog, entries: &[Entry]) -> Committed {
    let mut baseline = catalog.commit_of_lists(naming()).unwrap();
    baseline.begin_list(ITEMS, None);
    baseline.begin_list(SetId::default(), Some(at(20)));
    entries.iter().for_each(|entry| baseline.add(entry).unwrap());
    baseline.commit(None, b"").unwrap()
}

#[test]
fn items_and_their_page_outlive_a_baseline_in_either_form() {
    for most_in_place in [u64::MAX, 0] {
        let folder = tempfile::tempdir().unwrap();
        let catalog = open(folder.path());
        baseline(&catalog, &[entry("http://h/records/1")]);
        let committed = commit_items(&catalog, Change::Created, &["a.csv", "code/run.py"]);
        assert_eq!((committed.created, committed.deleted), (2, 0));
        let before = tree(&catalog);

        catalog.write_in_place(most_in_place);
        let store = catalog.store();
        let committed = baseline(&catalog, &[entry("http://h/records/1"), entry("http://h/records/2")]);

        assert_eq!((committed.created, committed.updated, committed.deleted), (1, 0, 0));
        assert_eq!(is_rebuilt(&catalog, &store), most_in_place == 0);
        for path in ["records/1", "records/1%items/a.csv", "records/1%items/code/run.py"] {
            assert_eq!(tree(&catalog)[path].node.ino, before[path].node.ino, "{path}");
        }
        let snapshot = catalog.snapshot().unwrap();
        assert_eq!(snapshot.page(&uri("http://h/records/1")).unwrap(), Some(page(&["a.csv", "code/run.py"])));
        assert_eq!((snapshot.page(&uri("http://h/records/2")).unwrap(), snapshot.page_count().unwrap()), (None, 1));
        let item = snapshot.locate(&uri("http://h/records/1").item("a.csv")).unwrap().unwrap();
        assert_eq!(item.ino, before["records/1%items/a.csv"].node.ino);
    }
}

#[test]
fn of_two_items_of_one_path_the_second_has_a_digest() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    baseline(&catalog, &[entry("http://h/records/1")]);
    let first = uri("http://h/records/1").item("a.csv");
    let second = first.namesake("0123");

    let mut commit = catalog.commit_of_changes();
    for uri in [&second, &first] {
        let entry = Entry::new(uri.clone());
        commit
            .apply(StatedChange {
                set: ITEMS,
                change: Change::Created,
                time: at(1),
                is_left_out: false,
                entry: &entry,
                member: None,
            })
            .unwrap();
    }
    commit.commit(None, b"").unwrap();

    let names = tree(&catalog);
    assert_eq!(names["records/1%items/a.csv"].resource.as_ref().unwrap().uri, first);
    let other = names.iter().find(|(path, _)| path.starts_with("records/1%items/a%~")).unwrap();
    assert!(other.0.ends_with(".csv"));
    assert_eq!(other.1.resource.as_ref().unwrap().uri, second);
    assert!(catalog.snapshot().unwrap().locate(&second).unwrap().is_some());
}

#[test]
fn a_page_that_goes_takes_its_items_and_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    baseline(&catalog, &[entry("http://h/records/1"), entry("http://h/records/2")]);
    commit_items(&catalog, Change::Created, &["a.csv"]);
    baseline(&catalog, &[entry("http://h/records/2")]);

    let mut commit = catalog.commit_of_changes();
    let entry = Entry::new(uri("http://h/records/1").item("a.csv"));
    let deleted = StatedChange {
        set: ITEMS,
        change: Change::Deleted,
        time: at(30),
        is_left_out: false,
        entry: &entry,
        member: None,
    };
    commit.apply(deleted).unwrap();
    commit.set_page(&uri("http://h/records/1"), None);
    commit.commit(None, b"").unwrap();

    assert_eq!(tree(&catalog).into_keys().collect::<Vec<_>>(), ["records", "records/2"]);
    assert_eq!(catalog.snapshot().unwrap().page_count().unwrap(), 0);
}
