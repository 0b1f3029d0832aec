//! Paths that more URIs share than are shown.

use super::*;
use crate::document::Change;
use std::collections::BTreeSet;

/// As many as are shown of one path.
const MOST: usize = 100;

/// URIs of the one path `a/,,,…`, more than are shown: they differ in which of their reserved characters are escaped. Ascending; the
/// last one is that which the path gives by itself.
fn sharing() -> Vec<Entry> {
    let escaped = |number: usize| -> String {
        (0..8).rev().map(|bit| if number >> bit & 1 == 1 { "," } else { "%2C" }).collect()
    };
    let numbers = (0..MOST + 39).chain([(1 << 8) - 1]);
    numbers.map(|number| entry(&format!("http://h/a/{}", escaped(number)))).collect()
}

fn shuffled(mut entries: Vec<Entry>, seed: u64) -> Vec<Entry> {
    XorshiftStar(seed).shuffle(&mut entries);
    entries
}

/// What is shown, by path.
fn shown(catalog: &Catalog) -> BTreeMap<String, Option<Uri>> {
    let uri = |name: TreeEntry| name.resource.map(|resource| resource.uri);
    tree(catalog).into_iter().map(|(path, name)| (path, uri(name))).collect()
}

fn change(catalog: &Catalog, change: Change, entries: &[Entry]) -> Committed {
    let mut changes = catalog.commit_of_changes();
    for entry in entries {
        changes
            .apply(StatedChange { set: SetId(0), change, time: at(10), is_left_out: false, entry, member: None })
            .unwrap();
    }
    changes.finish(None, &mut |_| (Held::Nothing, Vec::new())).unwrap()
}

fn files_of_the_set(catalog: &Catalog) -> u64 {
    let store = catalog.store();
    let txn = store.env.read_txn().unwrap();
    store.sets(&txn).unwrap().get(&SetId(0)).map_or(0, |set| set.files)
}

#[test]
fn of_uris_of_one_path_the_first_are_shown_in_any_history() {
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let [first, second, third] = [0, 1, 2].map(|number| open(folders[number].path()));
    let (sharing, other) = (sharing(), entry("http://h/b"));

    commit(&first, sharing.iter().chain([&other]));
    commit_spilling(&second, shuffled(sharing.clone(), 7).iter().chain([&other]));
    // Most come first, and those before them by changes, some at a time.
    commit(&third, sharing[50..].iter().chain([&other]));
    change(&third, Change::Created, &sharing[25..50]);
    change(&third, Change::Created, &sharing[..25]);
    change(&third, Change::Updated, &sharing[MOST + 35..]);

    let tree = shown(&first);
    let files: Vec<&Uri> = tree.values().flatten().collect();
    assert!(files.contains(&&other.loc), "what else is listed is shown");
    assert_eq!(files.len(), MOST + 1);
    let shown_uris: BTreeSet<&Uri> = files.into_iter().collect();
    assert!(sharing[..MOST].iter().all(|entry| shown_uris.contains(&entry.loc)), "the first by their URIs");
    assert!(shown(&second) == tree, "the order of the list is nothing");
    assert!(shown(&third) == tree, "nor is the history");
    for catalog in [&first, &second, &third] {
        assert_eq!(catalog.revision().unwrap().unwrap().totals.files, MOST as u64 + 1);
        assert_eq!(files_of_the_set(catalog), MOST as u64 + 1);
    }
}

#[test]
fn another_takes_the_place_of_what_goes_by_the_next_baseline() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    let sharing = sharing();
    let uris = |catalog: &Catalog| -> BTreeSet<Uri> { shown(catalog).into_values().flatten().collect() };
    let of = |entries: &[Entry]| entries.iter().map(|entry| entry.loc.clone()).collect::<BTreeSet<_>>();
    let path = format!("a/{}", ",".repeat(8));
    let committed = commit(&catalog, &sharing[1..]);
    assert_eq!(committed.left_out, BTreeMap::from([(path.clone(), 39)]));

    // What is not shown comes, changes and goes as it likes.
    let committed = change(&catalog, Change::Updated, &sharing[MOST + 1..]);
    assert_eq!(committed.left_out, BTreeMap::from([(path, 39)]));
    change(&catalog, Change::Deleted, &sharing[MOST + 39..]);
    assert!(uris(&catalog) == of(&sharing[1..MOST + 1]));
    // One that is shown goes, and nothing comes in its place.
    change(&catalog, Change::Deleted, &sharing[5..6]);
    assert!(uris(&catalog) == of(&[&sharing[1..5], &sharing[6..MOST + 1]].concat()));
    assert_eq!(files_of_the_set(&catalog), MOST as u64 - 1);
    // One that comes takes the free place.
    change(&catalog, Change::Created, &sharing[..1]);
    assert!(uris(&catalog) == of(&[&sharing[..5], &sharing[6..MOST + 1]].concat()));
    assert_eq!(files_of_the_set(&catalog), MOST as u64);

    // The lists know of the rest. They speak for no time, so the changes stay in force.
    commit(&catalog, &sharing[2..]);
    assert!(uris(&catalog) == of(&[&sharing[..1], &sharing[2..5], &sharing[6..MOST + 2]].concat()));
    let committed = commit(&catalog, &sharing[MOST..]);
    assert_eq!(committed.left_out, BTreeMap::new());
    assert_eq!(uris(&catalog).len(), 40);
}
