//! Paths that more URIs share than are shown.

use super::*;
use crate::document::{Change, Link};
use std::collections::BTreeSet;

/// As many as are shown of one path.
const MOST: usize = 5_000;

/// URIs of the one path `a/,,,…`, more than are shown: they differ in which of their reserved characters are escaped. Ascending; the
/// last one is that which the path gives by itself.
fn crowd() -> Vec<Entry> {
    let escaped = |number: usize| -> String {
        (0..13).rev().map(|bit| if number >> bit & 1 == 1 { "," } else { "%2C" }).collect()
    };
    let numbers = (0..MOST + 39).chain([(1 << 13) - 1]);
    numbers.map(|number| entry(&format!("http://h/a/{}", escaped(number)))).collect()
}

fn shuffled(mut entries: Vec<Entry>, seed: u64) -> Vec<Entry> {
    Random(seed).shuffle(&mut entries);
    entries
}

/// What is shown, by path.
fn shown(catalog: &Catalog) -> BTreeMap<String, Option<Uri>> {
    let uri = |name: Name| name.resource.map(|resource| resource.uri);
    tree(catalog).into_iter().map(|(path, name)| (path, uri(name))).collect()
}

fn change(catalog: &Catalog, change: Change, entries: &[Entry]) -> Result<Committed, CatalogError> {
    let mut changes = catalog.changes()?;
    for entry in entries {
        changes.apply(Statement { set: SetId(0), change, time: at(10), entry, member: None })?;
    }
    changes.commit(None, &mut |_| (Decision::Apply, Vec::new()))
}

fn files_of_the_set(catalog: &Catalog) -> u64 {
    let store = catalog.store();
    let txn = store.env.read_txn().unwrap();
    store.sets(&txn).unwrap().files(SetId(0))
}

#[test]
fn of_too_many_uris_of_one_path_the_first_are_shown_whatever_the_order_and_the_history() {
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let [first, second, third] = [0, 1, 2].map(|number| open(folders[number].path()));
    let (crowd, other) = (crowd(), entry("http://h/b"));

    commit(&first, crowd.iter().chain([&other]));
    commit_spilling(&second, shuffled(crowd.clone(), 7).iter().chain([&other]));
    // Most come first, and those before them by changes, some at a time.
    commit(&third, crowd[100..].iter().chain([&other]));
    change(&third, Change::Created, &crowd[50..100]).unwrap();
    change(&third, Change::Created, &crowd[..50]).unwrap();
    change(&third, Change::Updated, &crowd[MOST + 35..]).unwrap();

    let tree = shown(&first);
    let files: Vec<&Uri> = tree.values().flatten().collect();
    assert!(files.contains(&&other.loc), "what else is listed is shown");
    assert_eq!(files.len(), MOST + 1);
    let shown_uris: BTreeSet<&Uri> = files.into_iter().collect();
    assert!(crowd[..MOST].iter().all(|entry| shown_uris.contains(&entry.loc)), "the first by their URIs");
    assert!(shown(&second) == tree, "the order of the list is nothing");
    assert!(shown(&third) == tree, "nor is the history");
    for catalog in [&first, &second, &third] {
        assert_eq!(catalog.revision().unwrap().unwrap().totals.files, MOST as u64 + 1);
        assert_eq!(files_of_the_set(catalog), MOST as u64 + 1);
    }
}

#[test]
fn what_is_left_out_is_told_and_takes_the_place_of_what_goes_by_the_next_baseline() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    let crowd = crowd();
    let uris = |catalog: &Catalog| -> BTreeSet<Uri> { shown(catalog).into_values().flatten().collect() };
    let left_out = || catalog.snapshot().unwrap().left_out().unwrap();
    let of = |entries: &[Entry]| entries.iter().map(|entry| entry.loc.clone()).collect::<BTreeSet<_>>();
    let path = format!("a/{}", ",".repeat(13));
    commit(&catalog, &crowd[1..]);
    assert_eq!(left_out(), [(path.clone(), 39)]);

    // What is not shown comes, changes and goes as it likes.
    change(&catalog, Change::Updated, &crowd[MOST + 1..]).unwrap();
    change(&catalog, Change::Deleted, &crowd[MOST + 39..]).unwrap();
    assert!(uris(&catalog) == of(&crowd[1..MOST + 1]));
    // One that is shown goes: who comes in its place is in no record.
    let told = change(&catalog, Change::Deleted, &crowd[5..6]).unwrap_err();
    assert!(matches!(&told, CatalogError::Crowded { path: told } if *told == path), "{told}");
    assert!(uris(&catalog) == of(&crowd[1..MOST + 1]), "nothing has changed");
    // Another that comes with it leaves no room.
    let mut changes = catalog.changes().unwrap();
    for (change, entry) in [(Change::Deleted, &crowd[5]), (Change::Created, &crowd[0])] {
        changes.apply(Statement { set: SetId(0), change, time: at(11), entry, member: None }).unwrap();
    }
    changes.commit(None, &mut |_| (Decision::Apply, Vec::new())).unwrap();
    let all_but = |number: usize| [&crowd[..number], &crowd[number + 1..MOST + 1]].concat();
    assert!(uris(&catalog) == of(&all_but(5)));
    assert_eq!(files_of_the_set(&catalog), MOST as u64);

    // The lists know of the rest, and what they do not list any more is no crowd.
    commit(&catalog, &crowd[2..]);
    assert!(uris(&catalog) == of(&[&crowd[..1], &crowd[2..5], &crowd[6..MOST + 2]].concat()));
    commit(&catalog, &crowd[MOST..]);
    assert_eq!(left_out(), []);
    change(&catalog, Change::Created, &crowd[MOST - 1..MOST]).unwrap();
    assert_eq!(uris(&catalog).len(), 41 - 1 + 1);
}

#[test]
fn where_the_first_that_is_left_out_for_its_length_goes_the_lists_tell_which_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    // A MiB is said of each but the last.
    let links = vec![Link::new("describedby", uri(&format!("http://h/{}", "x".repeat(1 << 20))))];
    let mut crowd = crowd();
    crowd.truncate(34);
    crowd[..33].iter_mut().for_each(|entry| entry.links = links.clone());
    let files = || catalog.revision().unwrap().unwrap().totals.files;

    commit(&catalog, &crowd);
    assert_eq!(files(), 31);
    change(&catalog, Change::Deleted, &crowd[32..33]).unwrap();
    change(&catalog, Change::Updated, &crowd[33..]).unwrap();
    assert_eq!(files(), 31, "what comes behind one that is left out is not shown");
    let told = change(&catalog, Change::Deleted, &crowd[31..32]).unwrap_err();
    assert!(matches!(told, CatalogError::Crowded { .. }), "{told}");

    commit(&catalog, crowd[..31].iter().chain(&crowd[33..]));
    assert_eq!(files(), 32);
    assert_eq!(catalog.snapshot().unwrap().left_out().unwrap(), []);
}
